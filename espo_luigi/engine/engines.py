"""Which engine runs the jobs: one instance of each for the whole driver."""

from __future__ import annotations

import functools
from typing import Protocol

from espo_luigi.engine.local import LocalEngine
from espo_luigi.engine.task import SlurmTask


class Engine(Protocol):
    """Runs a task's job and waits for it; stops it."""

    def run(self, task: SlurmTask) -> None: ...

    def stop(self, task: SlurmTask) -> None: ...


@functools.cache
def engine(name: str) -> Engine:
    """Return the engine called `name` in ``[espo] engine``."""
    return {"local": LocalEngine}[name]()
