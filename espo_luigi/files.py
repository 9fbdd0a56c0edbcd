"""How files are created in folders that others may write, too, and which folders nobody else may write.

Files are never created through a link that somebody has put there.
Whoever may write a folder can give a link the name of a file that another person is about to write. Opened as usual,
the file that the link points to is emptied, and its owner is the person who was made to write.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import secrets
import stat
import time
from pathlib import Path

# What a link and a FIFO without a reader answer.
_NO_FILE = {errno.ELOOP, errno.ENXIO}
_TRIES = 5


def open_new(path: str | os.PathLike[str], mode: int = 0o666, how: int = 0) -> int:
    """Create a file and open it to write. Raises FileExistsError for anything that has the name, a link too."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | how, mode)


def open_own(path: str | os.PathLike[str], how: int = 0, mode: int = 0o666) -> int:
    """Open a file to write that may be there already, and create it otherwise.

    `how` is ``O_TRUNC``, ``O_APPEND``, or 0 for a file that is only locked. A link, a FIFO and, unless it is only
    locked, a file that has other names or another owner are removed first: their names are taken for the new file.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            return _open_own(path, how, mode)
    raise FileExistsError(errno.EEXIST, "others put links or pipes there again and again", os.fspath(path))


def _open_own(path: str | os.PathLike[str], how: int, mode: int) -> int:
    append = how & os.O_APPEND
    try:
        # Opened without O_TRUNC, as a hard link is seen only then; without O_NONBLOCK, a FIFO would be waited for.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | append, mode)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
    else:
        found = os.fstat(descriptor)
        is_own = found.st_nlink <= 1 and found.st_uid == os.geteuid()
        if stat.S_ISREG(found.st_mode) and (is_own or not how):
            if how & os.O_TRUNC:
                os.ftruncate(descriptor, 0)
            return descriptor
        os.close(descriptor)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return open_new(path, mode, append)


def write_new(path: Path, text: str, mode: int = 0o666, durable: bool = False) -> None:
    """Write a file that is not there yet; `durable` forces it onto the disk. Raises FileExistsError as `open_new`."""
    with open(open_new(path, mode), "w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def replace_text(path: Path, text: str, mode: int = 0o666, durable: bool = False, shared: bool = False) -> None:
    """Write a file beside its name and rename it: a reader sees the old text or the new one.

    A `shared` file keeps mode and group of the file that it replaces.
    """
    aside = aside_of(path)
    try:
        write_new(aside, text, mode, durable)
        if shared:
            keep_rights(aside, path)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def aside_of(path: Path) -> Path:
    """Return a hidden neighbour's name that nobody can foresee."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(8)}")


def server_time(path: Path) -> float:
    """Return the time by the clock of a file's server, from a file that is made beside it for a moment."""
    probe = aside_of(path)
    try:
        write_new(probe, "")
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def age_of(path: Path) -> float:
    """Return how many seconds ago a file was written, by its server's clock. Raises FileNotFoundError.

    In a folder where this process may create no file, the time is this host's.
    """
    return time.time() + _clock_offset(path.parent) - path.stat().st_mtime


@functools.cache
def _clock_offset(folder: Path) -> float:
    """Return by how much the clock of a folder's server is ahead of this host's; asked once for each folder."""
    with contextlib.suppress(OSError):
        return server_time(folder / "clock") - time.time()
    return 0.0


def keep_rights(new: Path, former: Path) -> None:
    """Give a new file mode and group of the file that it is about to replace, as far as its owner may do that."""
    with contextlib.suppress(OSError):
        replaced = os.lstat(former)
        descriptor = os.open(new, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if stat.S_ISREG(replaced.st_mode) and stat.S_ISREG(os.fstat(descriptor).st_mode):
                # The group first: its rights are not for another group.
                os.fchown(descriptor, -1, replaced.st_gid)
                os.fchmod(descriptor, replaced.st_mode & 0o777)
        finally:
            os.close(descriptor)


def make_private(folder: str | os.PathLike[str], others: int = 0o022) -> bool:
    """Make a folder for this user alone, if there is none; return whether it is this user's and closed to others.

    `others` are the rights of group and others that it must not give, by default to write. Raises OSError.
    """
    with contextlib.suppress(FileExistsError):
        os.makedirs(folder, 0o700)
    found = os.stat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder))
    return found.st_uid == os.geteuid() and not found.st_mode & others


def drop_shared_numba_cache() -> str:
    """Unset `NUMBA_CACHE_DIR` if it is not for this user alone; return why, or nothing.

    To be called before numba is imported. What numba keeps are pickles, also for the functions of xsdba and xclim.
    """
    folder = os.environ.get("NUMBA_CACHE_DIR", "")
    try:
        if not folder or make_private(folder, others=0o077):
            return ""
        found = os.stat(folder)
        why = (
            f"its owner is {found.st_uid} and its mode {stat.filemode(found.st_mode)}, expected {os.geteuid()} and "
            "drwx------, as whoever can write there has your jobs run what they like"
        )
    except OSError as error:
        why = f"it cannot be made or looked at ({error.strerror})"
    del os.environ["NUMBA_CACHE_DIR"]
    return f"NUMBA_CACHE_DIR = {folder} is not used: {why}. Name a folder of your own (`mkdir -m 700`, or `chmod 700`)"
