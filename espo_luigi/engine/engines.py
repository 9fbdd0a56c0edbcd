"""Which engine runs the jobs: one instance of each for the whole driver."""

from __future__ import annotations

import threading
from typing import Protocol

from espo_luigi.engine.local import LocalEngine
from espo_luigi.engine.task import SlurmTask


class Engine(Protocol):
    """Runs a task's job and waits for it; stops it."""

    def run(self, task: SlurmTask) -> None: ...

    def stop(self, task: SlurmTask) -> None: ...


_lock = threading.Lock()
_engines: dict[str, Engine] = {}


def engine(name: str) -> Engine:
    """Return the engine called `name` in ``[espo] engine``; tasks ask from many threads at once."""
    with _lock:
        if name not in _engines:
            _engines[name] = {"local": LocalEngine}[name]()
        return _engines[name]


def forget_engines() -> None:
    """Forget the engines, so that changed settings count."""
    with _lock:
        _engines.clear()
