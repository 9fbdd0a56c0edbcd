"""Bias-adjusted climate scenarios from raw simulations: the ESPO-G production line as Luigi tasks.

`build` runs tasks from Python. `SlurmTask` is the base class for jobs of any Luigi project, which has to call `install`
where its tasks are defined. `science` can be used alone.
"""

import os
from typing import TYPE_CHECKING, Any

# Here, as HDF5 reads it once, when any module imports h5py or netCDF4. Nobody else writes the files that are read or
# written here, and on many networks' file systems locks fail.
os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")

if TYPE_CHECKING:
    from espo_luigi.api import Summary, build
    from espo_luigi.driver.install import install
    from espo_luigi.driver.task import SlurmTask
    from espo_luigi.jobs.resources import Resources

__all__ = ["Resources", "SlurmTask", "Summary", "build", "install"]

_HOMES = {
    "build": "espo_luigi.api",
    "Summary": "espo_luigi.api",
    "SlurmTask": "espo_luigi.driver.task",
    "install": "espo_luigi.driver.install",
    "Resources": "espo_luigi.jobs.resources",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, to keep the start of jobs short."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'espo_luigi' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
