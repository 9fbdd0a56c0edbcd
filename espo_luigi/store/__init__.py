"""Zarr 3 stores: written beside their final name, published by a rename, opened lazily, zipped, linked, removed.

A store under its final name is whole: an interrupted writer leaves the former store or the new store.

Four words say which content a store has.

- A **marker** (`espo.json`, written last) says what made a store; its id is a hash of that.
- An **inventory**, in a marker, is the number and the bytes of a store's files.
- An **identity** (inode and time) says which file or folder a path names now; an equal new store has a new identity.
- A **fingerprint** is a text that changes with everything a value depends on: configuration, raw files, inputs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espo_luigi.store.archive import pack
    from espo_luigi.store.identity import unchanged
    from espo_luigi.store.link import join_stores
    from espo_luigi.store.marker import MARKER_NAME, Marker, array_bytes, is_complete, read_marker
    from espo_luigi.store.publish import Publication, remove
    from espo_luigi.store.read import open_store
    from espo_luigi.store.table import Row, read_table, write_page, write_table
    from espo_luigi.store.write import write_store

_HOMES = {
    "archive": ("pack",),
    "identity": ("unchanged",),
    "link": ("join_stores",),
    "marker": ("MARKER_NAME", "Marker", "array_bytes", "is_complete", "read_marker"),
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
