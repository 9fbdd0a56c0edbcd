"""What "complete" means for a Luigi target: a published store with its marker, never half of one."""

from __future__ import annotations

from pathlib import Path

import luigi

from espo_luigi import store


class ZarrTarget(luigi.Target):
    """A Zarr store, as a folder (``.zarr``) or as one file (``.zarr.zip``)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        """Return True if the store has its root metadata and the marker that is written last."""
        return store.is_complete(self.path)

    def __str__(self) -> str:
        return str(self.path)
