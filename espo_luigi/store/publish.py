"""Atomic publication: write beside the final name, check, rename. Removal is atomic, too.

`Publication` says under which conditions a job publishes. `written_aside` writes and publishes a file or a folder,
`partial_of` a store that several processes write.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.files import HeldFolder, keep_rights, sync_path
from espo_luigi.store.disk import delete, delete_quietly, disk_errors
from espo_luigi.store.partials import BlockCount, partial_path, recorded, sweep_partials

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EPERM}
# Another process published, or removed, between the look at the name and the renaming.
_TAKEN_MEANWHILE = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR}
_PUBLISH_ATTEMPTS = 100
_DELETE_ATTEMPTS = 10

# Raises an error if nothing may be published any more.
Check = Callable[[], None]


@dataclass(frozen=True)
class Publication:
    """The conditions under which a job publishes its stores, and its count of blocks.

    The process that runs a job makes it. All that the process writes inside of `in_force` is published under it, in
    whichever thread: a process runs a single job.

    Parameters
    ----------
    claim : callable, optional
        Raises once this process is no longer the only one that may write the job's stores. With a claim, a writer
        takes over the partials of earlier starts of the job, whether their processes are dead or not.
    checks : tuple of callable
        Further checks before each publication.
    blocks : BlockCount
        The blocks that the job found and computed.
    """

    claim: Check | None = None
    checks: tuple[Check, ...] = ()
    blocks: BlockCount = field(default_factory=BlockCount)

    @classmethod
    def current(cls) -> Publication:
        """Return the publication that is in force; outside of a job, a publication without conditions."""
        return _in_force[-1] if _in_force else cls()

    @contextlib.contextmanager
    def in_force(self) -> Iterator[Publication]:
        """Put it in force inside the `with` block."""
        _in_force.append(self)
        try:
            yield self
        finally:
            # Not the last: in another thread, a publication may have begun later.
            del _in_force[next(place for place, one in enumerate(_in_force) if one is self)]

    def only_after(self, check: Check) -> Publication:
        """Return the same publication with a further check."""
        return replace(self, checks=(*self.checks, check))

    def check(self) -> None:
        """Raise what any of the checks raises."""
        for check in (self.claim, *self.checks):
            if check is not None:
                check()


# The innermost last; no context variable, since the threads of a job would not see it.
_in_force: list[Publication] = []


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """Yield a file or folder to make; publish it as `path` when the `with` block ends well, and delete it otherwise.

    Raises
    ------
    StoreError
        If the disk refuses: full, read-only, over quota, no permission.
    """
    with partial_of(path) as partial:
        yield partial.content


@contextlib.contextmanager
def partial_of(path: Path, *, resumable: bool = False) -> Iterator[HeldFolder]:
    """Yield a new partial; publish its content as `path` when the `with` block ends well, and delete it otherwise.

    A `resumable` partial with complete blocks stays after a signal or too little memory: a later writer takes its
    content over. Raises as `written_aside` does.
    """
    with disk_errors(path, "write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep_partials(path, spare_resumable=resumable)
        partial = HeldFolder.make(partial_path(path))
        try:
            yield partial
            Publication.current().check()
            publish(partial.content, path)
        except BaseException as error:
            if isinstance(error, StoreError):
                error.args = tuple(str(one).replace(str(partial.inside), str(partial.path)) for one in error.args)
            if not (resumable and _is_stop(error) and recorded(partial.inside)):
                _delete_what_is_still_written(partial)
            raise
        _delete_what_is_still_written(partial)
        sweep_partials(path, published=True)


def _is_stop(error: BaseException) -> bool:
    """Whether an error leaves the blocks before it valid: a signal, or too little memory."""
    # By name, as a job without Dask does not import Dask's error of dead workers.
    return isinstance(error, (SystemExit, KeyboardInterrupt, MemoryError)) or type(error).__name__ == "KilledWorker"


def _delete_what_is_still_written(partial: HeldFolder) -> None:
    """Delete a partial into which other threads of a failed computation may still write for a moment."""
    for _ in range(_DELETE_ATTEMPTS):
        with contextlib.suppress(OSError):
            return partial.delete()
        time.sleep(0.1)


def publish(partial: Path, path: Path) -> None:
    """Give a finished partial its final name, then delete the store that had the name.

    Where the file system can swap two names, a store is under `path` at every moment. Elsewhere the old store is
    moved aside first: after a kill between the two renames, `path` is missing, and the task runs again. If several
    processes publish under the same name, the store of the last process stays, whole.
    """
    former = [former for former in _taking_the_name(partial, path) if former is not None]
    sync_path(path.parent)
    for aside in former:
        delete_quietly(aside)


def _taking_the_name(partial: Path, path: Path) -> Iterator[Path | None]:
    """Rename the partial, and yield where former stores are now; try again if another process publishes meanwhile."""
    for attempt in range(1, _PUBLISH_ATTEMPTS + 1):
        aside = None
        try:
            if path.is_dir() and not path.is_symlink():
                if _exchange(partial, path):
                    yield partial
                    return
                aside = _moved_aside(path)
            # A catalogue of a group stays the group's.
            keep_rights(partial, path)
            os.replace(partial, path)
            yield aside
            return
        except OSError as error:
            # A full disk may refuse the new name: the former store gets its own back, unless another process publishes.
            if aside is not None and not _put_back(aside, path):
                yield aside
            if error.errno not in _TAKEN_MEANWHILE or attempt == _PUBLISH_ATTEMPTS or not partial.exists():
                raise


def _put_back(aside: Path, path: Path) -> bool:
    try:
        os.rename(aside, path)
    except OSError:
        return not path.exists()
    return True


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names atomically (Linux `renameat2`); False where the file system cannot (NFS, Lustre)."""
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


def _moved_aside(path: Path) -> Path | None:
    """Rename a store to a partial, and return that; None if another process has just moved or removed it."""
    aside = partial_path(path)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
        return aside
    return None


def remove(path: Path) -> None:
    """Remove a store, directory or zip, if it is there; it is renamed first, so that no reader sees half of it.

    Raises
    ------
    StoreError
        If the folder does not allow it.
    """
    path = Path(path)
    with disk_errors(path, "remove"):
        if aside := _moved_aside(path):
            with contextlib.suppress(FileNotFoundError):
                delete(aside)
        if path.parent.is_dir():
            sweep_partials(path)
