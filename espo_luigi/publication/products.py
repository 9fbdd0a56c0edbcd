"""Finding the products in a folder: everything that has a marker."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from espo_luigi import store
from espo_luigi.redaction import without_secrets
from espo_luigi.store import Marker

FORMATS = {".zarr": "application/vnd.zarr", ".zarr.zip": "application/zip", ".csv": "text/csv", ".html": "text/html"}
# The tasks that look at raw files; the inputs in their markers are these files, with tracking ids.
_LOOK_AT_RAW_FILES = ("InputCheck", "RefInputCheck")


@dataclass(frozen=True)
class Product:
    """A store, an archive, a table or a page that is complete."""

    path: Path
    marker: Marker

    @property
    def format(self) -> str:
        """Its media type."""
        return next(media for ending, media in FORMATS.items() if self.path.name.endswith(ending))

    @property
    def is_data(self) -> bool:
        """Whether it is a Zarr store, folder or archive."""
        return self.path.name.endswith((".zarr", ".zarr.zip"))


def find_products(folder: Path) -> list[Product]:
    """Return the complete products below a folder, sorted by path; stores are not searched."""
    found = ((path, store.read_marker(path)) for path in sorted(_candidates(folder.absolute())))
    return [Product(path, marker) for path, marker in found if marker is not None]


def raw_files(products: Iterable[Product]) -> dict[tuple[str, str], Mapping[str, str]]:
    """Return the raw files with their tracking ids, by dataset and fingerprint, from `InputCheck`'s tables."""
    looked_at = [one.marker for one in products if one.marker.task in _LOOK_AT_RAW_FILES]
    # Earlier versions kept addresses as the catalogue has them.
    return {
        raw: {without_secrets(path): tracking for path, tracking in marker.inputs.items()}
        for marker in looked_at
        for raw in marker.raw.items()
    }


def _candidates(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        stores = [name for name in folders if name.endswith(".zarr")]
        folders[:] = [name for name in folders if name not in stores]
        found = [*stores, *(name for name in files if name.endswith(tuple(FORMATS)))]
        # Partials are hidden.
        yield from (Path(place) / name for name in found if not name.startswith("."))
