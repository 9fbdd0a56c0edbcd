"""Bias-adjusted climate scenarios from raw simulations: the ESPO-G production line as Luigi tasks.

`build` runs tasks from Python; `SlurmTask` is the base class for jobs of any Luigi project; `science` is usable alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espo_luigi.api import Summary, build
    from espo_luigi.cluster.resources import Resources
    from espo_luigi.engine.task import SlurmTask

__all__ = ["Resources", "SlurmTask", "Summary", "build"]

_HOMES = {
    "build": "espo_luigi.api",
    "Summary": "espo_luigi.api",
    "SlurmTask": "espo_luigi.engine.task",
    "Resources": "espo_luigi.cluster.resources",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: a job imports only what it needs."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'espo_luigi' has no attribute {name!r}")
    if name == "SlurmTask":
        # Whoever defines a SlurmTask has Luigi's command wait in threads: forked processes would each be a driver.
        importlib.import_module("espo_luigi.engine.worker").install()
    return getattr(importlib.import_module(_HOMES[name]), name)
