"""`espo clean`: deletes temporary stores that no unfinished task needs, and partials that killed writers have left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from espo_luigi import store
from espo_luigi.driver.engines import close_engines, hold_folders
from espo_luigi.driver.graph import Graph
from espo_luigi.driver.run import Run
from espo_luigi.store.inventory import size_bytes
from espo_luigi.store.partials import PARTIAL_SUFFIX, abandoned_partials, remove_partial
from espo_luigi.tasks.all import All
from espo_luigi.tasks.base import EspoTask


@dataclass(frozen=True)
class Leftover:
    """A store or a partial that nothing needs any more, its size, and whether it was deleted."""

    path: Path
    size_bytes: int
    deleted: bool = False


def leftovers() -> list[Leftover]:
    """Return the leftovers in the configuration's folders, in the order of their paths.

    A leftover is a temporary store that no unfinished task of `All` needs; or the partial of a writer (or a deletion)
    that was killed on this host or has been silent for two days.
    """
    run = Run()
    graph = Graph([All()])  # unchecked: a file in an output's way is no reason to keep what is left over
    run.add(graph, dict.fromkeys(graph.pending()[0], True))
    unneeded = [task for task in run.left_over() if isinstance(task, EspoTask)]
    paths = {path for task in unneeded for path in task.temporary_paths() if store.is_complete(path)}
    for folder in set(EspoTask.exclusive_folders()):
        paths |= set(abandoned_partials(folder))
    return [Leftover(path, size) for path in sorted(paths) if (size := size_bytes(path)) is not None]


def delete(leftover: Leftover) -> None:
    """Delete a leftover that was found inside the same `alone`.

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
