"""Which engine runs the jobs: one instance of each for the whole driver."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from espo_luigi.engine.local import LocalEngine
from espo_luigi.engine.slurm import SlurmEngine
from espo_luigi.engine.task import SlurmTask


class Engine(Protocol):
    """Refuses tasks that it cannot run, runs jobs and says how many seconds one took, stops them, ends."""

    def check(self, tasks: Sequence[SlurmTask]) -> None: ...

    def run(self, task: SlurmTask) -> float: ...

    def stop(self, task: SlurmTask) -> None: ...

    def detach(self) -> None: ...

    def close(self) -> None: ...


_lock = threading.Lock()
_engines: dict[str, Engine] = {}


def engine(name: str) -> Engine:
    """Return the engine called `name` in ``[espo] engine``; tasks ask from many threads at once."""
    with _lock:
        if name not in _engines:
            _engines[name] = SlurmEngine() if name == "slurm" else LocalEngine()
        return _engines[name]


def close_engines(*, detach: bool = False) -> None:
    """End all engines; with `detach`, their jobs are left to the next driver."""
    with _lock:
        ended, running = dict(_engines), _engines.values()
        for one in running:
            one.detach() if detach else one.close()
        for name in ended:
            del _engines[name]
