"""Deleting files, and the meaning of the disk's errors."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.files import causes
from espo_luigi.replacing import delete

logger = logging.getLogger(__name__)

_ADVICE = {
    errno.ENOSPC: "free space there, or point the paths of the configuration elsewhere, and run again",
    errno.EDQUOT: "your quota is used up: delete what you can, or point the paths of the configuration elsewhere",
    errno.EACCES: "ask for write permission, or point the paths of the configuration at a folder of yours",
    errno.EPERM: "ask for write permission, or point the paths of the configuration at a folder of yours",
    errno.EROFS: "the file system is mounted read-only: point the paths of the configuration elsewhere",
    errno.EIO: "the disk or the network file system failed: run again, and tell its administrator if it stays",
    errno.ESTALE: "the network file system lost the file: run again",
}


def delete_quietly(path: Path) -> None:
    """Delete what has a hidden name of ours, and nothing needs any more: an error is only logged."""
    try:
        delete(path)
    except OSError as error:
        logger.warning("cannot remove %s, which is not needed any more: %s", path, error)


@contextlib.contextmanager
def disk_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn errors of the disk, however wrapped, into a StoreError that says what to do; all other errors pass.

    The message names `verb` and `path`, the system's reason, the free space, and advice.
    """
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        found = next((one for one in causes(error) if isinstance(one, OSError) and one.errno is not None), None)
        if found is None:  # Dask and Zarr wrap the disk's errors
            raise
        number = found.errno or 0
        reason = f"{errno.errorcode.get(number, number)}: {os.strerror(number)}"
        advice = _ADVICE.get(number, "check the folder and run again")
        raise StoreError(f"cannot {verb} {path} ({reason}; {_free_space(path)}); {advice}") from error


def _free_space(path: Path) -> str:
    folder = next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))
    try:
        found = os.statvfs(folder)
        # Some file systems count no files, and say 0 of 0.
        files = (
            "no file more (all inodes are taken: delete or pack small files), "
            if found.f_files and not found.f_favail
            else ""
        )
        return f"{files}{found.f_bavail * found.f_frsize / 1e9:.3f} GB free in {folder}"
    except OSError:
        return f"free space in {folder} unknown"
