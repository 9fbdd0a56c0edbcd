"""Zarr 3 stores: written beside their final name, published by a rename, opened lazily, zipped, linked, removed.

A store under its final name is whole: a writer that is interrupted leaves the former store, or the new one.

Four words say which content a store has:

- **marker**: what made a store (`espo.json`, written last), with an id that is a hash of it.
- **inventory**: the files that a store must have: number and bytes in its marker file, size and checksum in a partial.
- **identity**: which file or folder a path names now (inode and time); a new store has a new one, even if it is equal.
- **fingerprint**: a text that changes with all that something depends on: parts of the configuration, files, inputs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espo_luigi.store.archive import pack
    from espo_luigi.store.identity import fingerprint, unchanged
    from espo_luigi.store.link import join_stores, link_store
    from espo_luigi.store.marker import MARKER_NAME, Marker, is_complete, read_marker
    from espo_luigi.store.publish import Publication, remove
    from espo_luigi.store.read import open_store
    from espo_luigi.store.table import Row, read_table, write_page, write_table
    from espo_luigi.store.write import write_store

__all__ = [
    "MARKER_NAME",
    "Marker",
    "Publication",
    "Row",
    "fingerprint",
    "is_complete",
    "join_stores",
    "link_store",
    "open_store",
    "pack",
    "read_marker",
    "read_table",
    "remove",
    "unchanged",
    "write_page",
    "write_store",
    "write_table",
]

_HOMES = {
    "archive": ("pack",),
    "identity": ("fingerprint", "unchanged"),
    "link": ("join_stores", "link_store"),
    "marker": ("MARKER_NAME", "Marker", "is_complete", "read_marker"),
    "publish": ("Publication", "remove"),
    "read": ("open_store",),
    "table": ("Row", "read_table", "write_page", "write_table"),
    "write": ("write_store",),
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: a job of a task without Zarr needs `publish` only."""
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute {name!r}")
