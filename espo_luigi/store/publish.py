"""Atomic publication: write beside the final name, check, rename. Removal is atomic, too.

`Publication` says under which conditions a job publishes. `written_aside` writes and publishes a file or a folder,
`partial_of` a store that several processes write.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.files import HeldFolder, is_file_trouble, sync_path
from espo_luigi.replacing import Judge, check_ours, delete, partial_path, put, take_away
from espo_luigi.store.disk import delete_quietly, disk_errors
from espo_luigi.store.marker import marked, marker_beside
from espo_luigi.store.partials import BlockCount, sweep_partials

logger = logging.getLogger(__name__)

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
def written_aside(path: Path, *, judge: Judge | None = None) -> Iterator[Path]:
    """Yield a file or folder to make; publish it as `path` when the `with` block ends well, and delete it otherwise.

    Raises `StoreError` if something is at `path` that is not ours: by the `judge`, or else by its marker; or
    if the disk refuses: full, read-only, over quota, no permission.
    """
    with partial_of(path, judge=judge) as partial:
        yield partial.content


@contextlib.contextmanager
def partial_of(path: Path, *, resumable: bool = False, judge: Judge | None = None) -> Iterator[HeldFolder]:
    """Yield a new partial; publish its content as `path` when the `with` block ends well, and delete it otherwise.

    A `resumable` partial stays after a signal, too little memory, or a failure of the disk: a later writer goes on
    from its blocks. Raises as `written_aside` does.
    """
    with disk_errors(path, "write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        check_ours(path, judge or marked(path))
        sweep_partials(path, spare_resumable=resumable)
        partial = HeldFolder.make(partial_path(path))
        try:
            yield partial
            Publication.current().check()
            publish(partial.content, path, judge)
        except BaseException as error:
            if isinstance(error, StoreError):
                error.args = tuple(str(one).replace(str(partial.inside), str(partial.path)) for one in error.args)
            if not (resumable and _leaves_blocks_valid(error)):
                _delete_what_is_still_written(partial)
            raise
        _delete_what_is_still_written(partial)
        sweep_partials(path, published=True)


def _leaves_blocks_valid(error: BaseException) -> bool:
    """Whether the blocks before an error are as valid as after SIGKILL: a signal, too little memory, a failing disk."""
    is_stop = isinstance(error, (SystemExit, KeyboardInterrupt, MemoryError))
    # By name, as a job without Dask does not import Dask's error of dead workers.
    return is_stop or type(error).__name__ == "KilledWorker" or is_file_trouble(error)


def _delete_what_is_still_written(partial: HeldFolder) -> None:
    """Delete a partial into which other threads of a failed computation may still write for a moment."""
    for attempt in range(1, _DELETE_ATTEMPTS + 1):
        try:
            return partial.delete()
        except OSError as error:
            if attempt == _DELETE_ATTEMPTS:
                logger.warning("cannot remove %s, which is not needed any more: %s", partial.path, error)
        time.sleep(0.1)


def publish(partial: Path, path: Path, judge: Judge | None = None) -> None:
    """Give a finished partial its final name, then delete the store of ours that had the name.

    Readers see a whole store at every moment, as `replacing.put` says. If several processes publish under the same
    name, the store of the last process stays, whole.
    """
    former = put(partial, path, judge or marked(path))
    sync_path(path.parent)
    for aside in former:
        # What is in the place of the new store now goes with its folder.
        if aside != partial:
            delete_quietly(aside)


def check_replaceable(path: Path) -> None:
    """Raise `StoreError` if a store, archive, table or page cannot be written, as something not ours is there.

    What the user has put into a store stops the task that would replace it, not the plan.
    """
    if os.path.lexists(path):  # a plan looks at thousands of outputs, most of which are not there
        with disk_errors(path, "write"):
            check_ours(path, marked(path, inside=False))


def remove(path: Path, judge: Judge | None = None) -> None:
    """Remove a store, directory or zip, if it is there; it is renamed first, so that no reader sees half of it.

    Raises
    ------
    StoreError
        If it is not ours, by default by its marker, or the folder does not allow it.
    """
    path = Path(path)
    with disk_errors(path, "remove"):
        if path.parent.is_dir():
            sweep_partials(path)
        asides = take_away(path, judge or marked(path))
        if path.suffix == ".csv":
            asides += take_away(beside := marker_beside(path), marked(beside))
        for aside in asides:
            with contextlib.suppress(FileNotFoundError):
                delete(aside)
