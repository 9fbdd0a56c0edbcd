"""Atomic publication on a file system: write aside, swap the names, delete the old; and what the disk's errors mean."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.files import keep_rights, process_start, sync_path
from espo_luigi.store import manifest

logger = logging.getLogger(__name__)

# No job runs this long: whatever process has the number of a partial's writer now, it is another one.
SILENT_PARTIAL_AGE_HOURS = 48
PARTIAL_SUFFIX = ".partial"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EPERM}
# Another published, or removed, between the look at the name and the renaming.
_TAKEN_MEANWHILE = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR}
_PUBLISH_ATTEMPTS = 100
_FSYNC_THREADS = 8
_DELETE_ATTEMPTS = 10

# What has to hold before anything gets its final name. Not a context variable: other threads of the job publish, too.
_checks: list[Callable[[], None]] = []
# Those of them that say whether this process alone may write its stores.
_sole: list[Callable[[], None]] = []
# The names that this process has given to partials: in a container, each writer may have the same number.
_own_names: set[str] = set()

_ADVICE = {
    errno.ENOSPC: "free space there, or point the paths of the configuration elsewhere, and run again",
    errno.EDQUOT: "your quota is used up: delete what you can, or point the paths of the configuration elsewhere",
    errno.EACCES: "ask for write permission, or point the paths of the configuration at a folder of yours",
    errno.EPERM: "ask for write permission, or point the paths of the configuration at a folder of yours",
    errno.EROFS: "the file system is mounted read-only: point the paths of the configuration elsewhere",
    errno.EIO: "the disk or the network file system failed: run again, and tell its administrator if it stays",
    errno.ESTALE: "the network file system lost the file: run again",
}


def _owner() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def partial_path(path: Path) -> Path:
    """Name a hidden neighbour of `path`, unique, that tells which process on which host made it."""
    name = f".{path.name}.{_owner()}-{uuid.uuid4().hex[:8]}{PARTIAL_SUFFIX}"
    _own_names.add(name)
    return path.parent / name


def is_abandoned(partial: Path) -> bool:
    """Whether the process that made this partial is dead, as far as this host can know, or long silent."""
    here = re.search(rf"\.{re.escape(socket.gethostname())}-(\d+)-[0-9a-f]+{re.escape(PARTIAL_SUFFIX)}$", partial.name)
    if here is not None and not _lives(int(here[1]), partial.name):
        return True
    signs = (partial, *(partial / manifest.FOLDER_NAME).glob("*"))
    age_hours = (time.time() - max(sign.stat().st_mtime for sign in signs)) / 3600
    return age_hours > SILENT_PARTIAL_AGE_HOURS


def _lives(pid: int, name: str) -> bool:
    return name in _own_names if pid == os.getpid() else process_start(pid) is not None


def _is_elsewhere(partial: Path, name: str) -> bool:
    return not partial.name.startswith(f".{name}.{socket.gethostname()}-")


def partials_of(path: Path) -> list[Path]:
    """Return what writers and deletions of the same store have beside it."""
    prefix = f".{path.name}."
    names = [entry.name for entry in os.scandir(path.parent)]
    return [path.parent / name for name in names if name.startswith(prefix) and name.endswith(PARTIAL_SUFFIX)]


def sweep_partials(path: Path, *, published: bool = False, spare_resumable: bool = False) -> None:
    """Delete what killed writers of the same store left beside it; if told so, not what somebody may go on from.

    Once the store is `published`, also what writers on other hosts left: whether those live cannot be told here, but
    only one job at a time makes a store, so that it is the remainder of an earlier attempt.
    """
    for partial in partials_of(path):
        with contextlib.suppress(OSError):
            swept = is_abandoned(partial) or (published and _is_elsewhere(partial, path.name))
            if swept and not (spare_resumable and manifest.read_base(partial)):
                logger.info("removing %s, left behind by a writer that was killed", partial)
                discard(partial)


def take_on(partial: Path, path: Path) -> set[manifest.Block]:
    """Put what an earlier attempt at the same work has left in place of `partial`, which has no block yet.

    An attempt is over if its process is dead, as far as this host can know, or if this process is the only one that may
    write its stores. One of several that want it gets it, by a rename; a writer that lives on finds its own gone.

    Returns
    -------
    set of Block
        Its complete blocks; those that were damaged are deleted.
    """
    base = manifest.read_base(partial)
    for check in list(_sole):
        check()
    for former in partials_of(path):
        if former.name in _own_names or base is None or not _is_of_the_same_work(former, base):
            continue
        taken = partial_path(path)
        with contextlib.suppress(FileNotFoundError):
            os.rename(former, taken)
            blocks = manifest.verified(taken)
            if blocks:
                delete(partial)
                os.rename(taken, partial)
                return blocks
            _delete_quietly(taken)
    return set()


def _is_of_the_same_work(former: Path, base: manifest.Base) -> bool:
    found = manifest.read_base(former)
    try:
        return found is not None and found.id == base.id and (bool(_sole) or is_abandoned(former))
    except FileNotFoundError:
        return False


def discard(partial: Path) -> None:
    """Delete a partial of another process, whose name is taken away first.

    If that process lives after all, it cannot publish what is being deleted.
    """
    aside = partial_path(partial.with_name(partial.name.removeprefix(".").removesuffix(PARTIAL_SUFFIX)))
    with contextlib.suppress(FileNotFoundError):
        os.rename(partial, aside)
        delete(aside)


def delete(path: Path) -> None:
    """Delete a file or a tree, without atomicity."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _delete_quietly(path: Path) -> None:
    """Delete what is of no use any more; failing to is no failure of the store that was published."""
    try:
        delete(path)
    except OSError as error:
        logger.warning("cannot remove %s, which is not needed any more: %s", path, error)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step (Linux `renameat2`); False where the file system cannot (NFS, Lustre)."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(second))


def publish(partial: Path, path: Path) -> None:
    """Give a finished partial its final name; a store that bore the name is deleted afterwards.

    Where the file system can swap two names, there is no instant without a store under `path`. Elsewhere the old one
    is moved aside first: killed between the two renames, `path` is missing, which means run again, not half a store.
    Of several that publish under one name at the same time, the last one's store stays, whole.
    """
    former = [former for former in _taking_the_name(partial, path) if former is not None]
    sync_path(path.parent)
    for aside in former:
        _delete_quietly(aside)


def _taking_the_name(partial: Path, path: Path) -> Iterator[Path | None]:
    """Rename the partial, and yield where former stores are now; tried again where another publishes meanwhile."""
    for attempt in range(1, _PUBLISH_ATTEMPTS + 1):
        try:
            if path.is_dir() and not path.is_symlink():
                if _exchange(partial, path):
                    yield partial
                    return
                yield _moved_aside(path)
            # A catalogue of a group stays the group's.
            keep_rights(partial, path)
            os.replace(partial, path)
            return
        except OSError as error:
            if error.errno not in _TAKEN_MEANWHILE or attempt == _PUBLISH_ATTEMPTS or not partial.exists():
                raise


def _moved_aside(path: Path) -> Path | None:
    """Where the store that bore the name is now; None if another publisher has just moved it."""
    aside = partial_path(path)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
        return aside
    return None


def remove(path: Path) -> None:
    """Remove a store, directory or zip: renamed away first, so that it is never half there. Missing is fine.

    Raises
    ------
    StoreError
        If the folder does not allow it.
    """
    path = Path(path)
    aside = partial_path(path)
    with disk_errors(path, "remove"):
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, aside)
            delete(aside)
        if path.parent.is_dir():
            sweep_partials(path)


def sync_tree(root: Path) -> None:
    """Force a tree onto the disk, files first and folders last, so that a power cut finds no empty chunk."""
    entries = list(root.rglob("*"))
    files = [entry for entry in entries if not entry.is_dir()]
    folders = [entry for entry in entries if entry.is_dir()]
    with ThreadPoolExecutor(_FSYNC_THREADS) as pool:
        list(pool.map(sync_path, files))
        list(pool.map(sync_path, [*folders, root]))


def _find_os_error(error: BaseException | None) -> OSError | None:
    """The disk's error among an exception and its causes (Dask and Zarr wrap it)."""
    while error is not None and not (isinstance(error, OSError) and error.errno is not None):
        error = error.__cause__ or error.__context__
    return error


def describe_disk_error(error: OSError, path: Path, verb: str) -> str:
    """Say what could not be done, where, why by the system's own words, how much space is free, and what to do."""
    number = error.errno or 0
    reason = f"{errno.errorcode.get(number, number)}: {os.strerror(number)}"
    advice = _ADVICE.get(number, "check the folder and run again")
    return f"cannot {verb} {path} ({reason}; {_free_space(path)}); {advice}"


def _free_space(path: Path) -> str:
    folder = next((parent for parent in path.absolute().parents if parent.is_dir()), Path("/"))
    try:
        return f"{shutil.disk_usage(folder).free / 1e9:.3f} GB free in {folder} without what was half written"
    except OSError:
        return f"free space in {folder} unknown"


@contextlib.contextmanager
def disk_errors(path: Path, verb: str) -> Iterator[None]:
    """Turn the disk's errors, however wrapped, into a StoreError that says what to do; let all others pass."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        cause = _find_os_error(error)
        if cause is None:
            raise
        raise StoreError(describe_disk_error(cause, path, verb)) from error


@contextlib.contextmanager
def publishing_after(check: Callable[[], None], *, sole: bool = False) -> Iterator[None]:
    """Call `check` before each store that this process publishes in the block; what it raises, stops that.

    As long as the check of a `sole` writer raises nothing, no other process is to write the same stores.
    """
    _checks.append(check)
    _sole.extend([check] if sole else [])
    try:
        yield
    finally:
        _checks.remove(check)
        if sole:
            _sole.remove(check)


@contextlib.contextmanager
def written_aside(path: Path, verb: str = "write", *, resumable: bool = False) -> Iterator[Path]:
    """Yield a partial to write; publish it as `path` when the block ends well, delete it when it does not.

    A `resumable` one stays, for whoever goes on from it, where the block was stopped.

    Raises
    ------
    StoreError
        If the disk refuses: full, read-only, over quota, no permission.
    """
    partial = partial_path(path)
    with disk_errors(path, verb):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_partials(path, spare_resumable=resumable)
        try:
            yield partial
            for check in list(_checks):
                check()
            publish(partial, path)
            sweep_partials(path, published=True)
        except BaseException as error:
            if not (resumable and was_stopped(error) and manifest.lines_of(partial)):
                _delete_what_is_still_written(partial)
            raise


def was_stopped(error: BaseException) -> bool:
    """Whether an error says nothing against what was written before it: a signal's, or too little memory."""
    # Dask's own for workers that died is imported only where there is Dask.
    return isinstance(error, (SystemExit, KeyboardInterrupt, MemoryError)) or type(error).__name__ == "KilledWorker"


def _delete_what_is_still_written(partial: Path) -> None:
    """Delete a partial into which other threads of the failed computation may still write for a moment."""
    for _ in range(_DELETE_ATTEMPTS):
        with contextlib.suppress(OSError):
            delete(partial)
        if not partial.exists():
            return
        time.sleep(0.1)
