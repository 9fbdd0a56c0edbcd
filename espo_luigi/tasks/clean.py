"""What may be deleted now: temporary stores that no unfinished task needs, and what killed writers have left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from luigi.task import Task

from espo_luigi import store
from espo_luigi.driver.run.engines import close_engines, hold_folders
from espo_luigi.driver.run.run import Run, checked_graph, pending_in
from espo_luigi.store.inventory import size_bytes
from espo_luigi.store.partials import PARTIAL_SUFFIX, abandoned_partials, remove_partial
from espo_luigi.tasks.all import All
from espo_luigi.tasks.base import EspoTask


@dataclass(frozen=True)
class Leftover:
    """Something that may be deleted, and its size."""

    path: Path
    size_bytes: int


def leftovers() -> list[Leftover]:
    """Return what nothing needs any more in the folders of the configuration, in the order of their paths.

    These are the temporary stores that no unfinished task of `All` needs, and the partials of writers and of deletions
    that were killed on this host, or have been silent for two days.
    """
    paths = {path for task in _finished_with(All()) for path in task.temporary_paths() if store.is_complete(path)}
    for folder in set(EspoTask.exclusive_folders()):
        paths |= set(abandoned_partials(folder))
    return [Leftover(path, size) for path in sorted(paths) if (size := size_bytes(path)) is not None]


def delete(leftover: Leftover) -> None:
    """Delete it; inside `alone`, with a leftover that was found there.

    Raises
    ------
    StoreError
        If the folder does not allow it.
    """
    if leftover.path.name.endswith(PARTIAL_SUFFIX):
        remove_partial(leftover.path)
    else:
        store.remove(leftover.path)


@contextmanager
def alone() -> Iterator[None]:
    """Hold the folders of the configuration inside the block. Raises SecondDriverError if a driver works there."""
    try:
        hold_folders(EspoTask.exclusive_folders())
        yield
    finally:
        close_engines()


def _finished_with(root: Task) -> list[EspoTask]:
    run, graph = Run(), checked_graph(root)
    run.planned(root, graph, dict.fromkeys(pending_in([root], graph)[0], True))
    return [task for task in run.left_over() if isinstance(task, EspoTask)]
