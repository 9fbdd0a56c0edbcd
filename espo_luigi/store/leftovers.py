"""What writers and deletions that were killed have left below a folder, and how much room a path takes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from espo_luigi.store.marker import Inventory, read_inventory
from espo_luigi.store.publish import PARTIAL_SUFFIX, discard, disk_errors, is_abandoned


def abandoned_partials(folder: Path) -> Iterator[Path]:
    """Yield the partials below `folder` whose process is dead, as far as this host can know, or long silent.

    Stores are not looked into.
    """
    for parent, folders, files in os.walk(folder):
        partials = [name for name in (*folders, *files) if name.startswith(".") and name.endswith(PARTIAL_SUFFIX)]
        folders[:] = [name for name in folders if name not in partials and not name.endswith(".zarr")]
        for name in sorted(partials):
            with contextlib.suppress(FileNotFoundError):  # its writer has just published it
                if is_abandoned(Path(parent, name)):
                    yield Path(parent, name)


def remove_partial(path: Path) -> None:
    """Delete a partial that nobody writes any more. Raises StoreError if the folder does not allow it."""
    with disk_errors(path, "remove"):
        discard(path)


def size_bytes(path: Path) -> int | None:
    """Return the bytes of a file or a folder, of a store without a look at its files; None if it went meanwhile."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        inventory = _inventory(path)
        if inventory is not None:
            return inventory.size_bytes
        return sum(Path(parent, name).lstat().st_size for parent, _, names in os.walk(path) for name in names)
    except FileNotFoundError:
        return None


def _inventory(path: Path) -> Inventory | None:
    try:
        return read_inventory(path)
    except (OSError, ValueError, TypeError):
        return None
