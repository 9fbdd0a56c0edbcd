"""Zarr 3 stores: written aside and renamed, complete only with a marker inside, opened lazily, zipped, linked, removed.

A store under its final name is whole: whatever interrupts a writer leaves the former store or the new one.
"""

from espo_luigi.store.archive import pack
from espo_luigi.store.inputs import unchanged
from espo_luigi.store.link import join_stores, link_store
from espo_luigi.store.marker import MARKER_NAME, Marker
from espo_luigi.store.publish import publishing_after, remove
from espo_luigi.store.read import is_complete, open_store, read_marker
from espo_luigi.store.table import Row, read_table, write_table
from espo_luigi.store.write import write_store

__all__ = [
    "MARKER_NAME",
    "Marker",
    "Row",
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
    "write_store",
    "write_table",
]
