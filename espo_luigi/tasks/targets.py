"""What "complete" means for a Luigi target: a published store with the marker of its task, never half of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import luigi

from espo_luigi import store


class ZarrTarget(luigi.Target):
    """A Zarr store, as a folder (``.zarr``) or as one file (``.zarr.zip``), of one task with certain parameters."""

    def __init__(self, path: Path, task: str, parameters: Mapping[str, str]) -> None:
        self.path = path
        self.task = task
        self.parameters = dict(parameters)

    def exists(self) -> bool:
        """Return True if the store has its root metadata, and the marker, written last, of this task and parameters."""
        return self.marker() is not None

    def marker(self) -> store.Marker | None:
        """Return the marker of a complete store of this task and parameters, None of any other; one read."""
        marker = store.read_marker(self.path)
        ours = marker is not None and marker.task == self.task and dict(marker.parameters) == self.parameters
        return marker if ours else None

    def __str__(self) -> str:
        return str(self.path)
