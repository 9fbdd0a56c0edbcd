"""A Luigi target is complete if a published store has the marker of its task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import luigi

from espo_luigi import store


class ZarrTarget(luigi.Target):
    """A Zarr store of a task with certain parameters: a folder (``.zarr``) or an archive (``.zarr.zip``)."""

    def __init__(self, path: Path, task: str, parameters: Mapping[str, str]) -> None:
        self.path = path
        self.task = task
        self.parameters = dict(parameters)

    def exists(self) -> bool:
        """Return True if the store has its root metadata, and a marker of this task and parameters."""
        return self.marker() is not None

    def marker(self) -> store.Marker | None:
        """Return the marker if the store is complete and has this task and parameters; a single read."""
        marker = store.read_marker(self.path)
        ours = marker is not None and marker.task == self.task and dict(marker.parameters) == self.parameters
        return marker if ours else None

    def __str__(self) -> str:
        return str(self.path)
