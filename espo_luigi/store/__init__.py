"""Zarr 3 stores: written aside and renamed, complete only with a marker inside, opened lazily, zipped, linked, removed.

A store under its final name is whole: whatever interrupts a writer leaves the former store or the new one.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from espo_luigi.store.archive import pack
    from espo_luigi.store.inputs import fingerprint, unchanged
    from espo_luigi.store.link import join_stores, link_store
    from espo_luigi.store.marker import MARKER_NAME, Marker
    from espo_luigi.store.publish import publishing_after, remove
    from espo_luigi.store.read import is_complete, open_store, read_marker
    from espo_luigi.store.table import Row, read_table, write_page, write_table
    from espo_luigi.store.write import write_store

__all__ = [
    "MARKER_NAME",
    "Marker",
    "Row",
    "fingerprint",
    "is_complete",
    "join_stores",
    "link_store",
    "open_store",
    "pack",
    "publishing_after",
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
    "inputs": ("fingerprint", "unchanged"),
    "link": ("join_stores", "link_store"),
    "marker": ("MARKER_NAME", "Marker"),
    "publish": ("publishing_after", "remove"),
    "read": ("is_complete", "open_store", "read_marker"),
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
