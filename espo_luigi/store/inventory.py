"""The inventory of a store: whether all files that were written are still there."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from espo_luigi.errors import InputChangedError, StoreError
from espo_luigi.files import load_json, sha256_of
from espo_luigi.store.marker import ID_LENGTH, MARKER_NAME, REMAKE, ROOT_METADATA_NAME, Marker, raise_it, render


@dataclass(frozen=True)
class Inventory:
    """How many files a store directory holds besides its marker, and their size in bytes.

    Zarr reads a missing chunk as fill values and raises nothing; the inventory shows that a file is missing.
    """

    files: int
    size_bytes: int


def render_marker_file(root: Path, marker: Marker, fingerprint: str = "", *, summed: bool = False) -> str:
    """Render the marker file of a store directory: the marker, the directory's inventory, and the fingerprint.

    The fingerprint covers all that the values of the store depend on; the file keeps its hash. If it is `summed`, all
    files are read, and the marker file has their SHA-256.
    """
    content = {**json.loads(marker.to_json()), "inventory": asdict(take_inventory(root))}
    content |= {"fingerprint": _hashed(fingerprint)} if fingerprint else {}
    return render(content | ({"sha256": digest_of(root, but=MARKER_NAME)} if summed else {}))


def digest_of(path: Path, but: str = "") -> str:
    """Return the SHA-256 of a file; of a store that of its files' lines as `sha256sum` has them, sorted by name."""
    if path.is_dir():
        lines = (f"{digest_of(path / name)}  {name}\n" for name in files_of(path) if name != but)
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    return sha256_of(path)


def files_of(path: Path) -> list[str]:
    """Return the names of all files below a path, sorted; "." of a file."""
    return sorted(file.relative_to(path).as_posix() for file in (path, *path.rglob("*")) if file.is_file())


def _hashed(fingerprint: str) -> str:
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:ID_LENGTH]


def has_fingerprint(root: Path, fingerprint: str) -> bool:
    """Whether a store directory is whole, and its marker file has this fingerprint."""
    try:
        content = load_json(root / MARKER_NAME)
        check_inventory(root)
    except (OSError, ValueError, StoreError):
        return False
    return isinstance(content, dict) and content.get("fingerprint") == _hashed(fingerprint)


def read_inventory(root: Path) -> Inventory | None:
    """Read the inventory from a store directory's marker file, None if it has none. Raises OSError, StoreError."""
    path = root / MARKER_NAME
    try:
        found = load_json(path).get("inventory")
        return Inventory(int(found["files"]), int(found["size_bytes"])) if found else None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} is damaged ({type(error).__name__}: {error}); {REMAKE}") from error


def take_inventory(root: Path) -> Inventory:
    """Count the files under a store's root and their bytes, without its marker (one `stat` per file)."""
    # From Python 3.12 on, `rglob` passes over a folder that goes meanwhile.
    files = (Path(parent, name) for parent, _, names in os.walk(root, onerror=raise_it) for name in names)
    sizes = [file.stat().st_size for file in files if file != root / MARKER_NAME]
    return Inventory(len(sizes), sum(sizes))


def check_inventory(root: Path) -> None:
    """Check that a store directory has as many files and bytes as its marker says (one `stat` per file).

    Raises
    ------
    StoreError
        If it has more or fewer.
    InputChangedError
        If the store is replaced or deleted meanwhile.
    """
    try:
        expected = read_inventory(root)
        found = take_inventory(root)
    except FileNotFoundError as error:
        gone = f"{error.filename} is gone"
        raise InputChangedError(f"{root} was replaced or deleted while it was opened: {gone}") from error
    if expected is not None and expected != found:
        raise StoreError(
            f"{root} was changed after it was written: got {found.files} files of {found.size_bytes} bytes, expected "
            f"{expected.files} of {expected.size_bytes}; {REMAKE}"
        )


def size_bytes(path: Path) -> int | None:
    """Return the bytes of a file or a folder, of a store as its inventory has them; None if it went meanwhile."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        try:
            inventory = read_inventory(path)
        except (OSError, StoreError):
            inventory = None
        if inventory is not None:
            return inventory.size_bytes
        return sum(Path(parent, name).lstat().st_size for parent, _, names in os.walk(path) for name in names)
    except FileNotFoundError:
        return None


def check_dense(partial: Path) -> None:
    """Check that a store has its metadata and every chunk before it is published, and that no chunk is empty.

    Somebody may have deleted a part of it while it was written: Zarr makes deleted folders again and raises nothing.
    Raises `StoreError` if a file is missing or empty, or the consolidated metadata differ from those of the arrays.
    """
    try:
        root = load_json(partial / ROOT_METADATA_NAME)
        for name, array in root["consolidated_metadata"]["metadata"].items():
            own = load_json(partial / name / ROOT_METADATA_NAME)
            # Readers use the root's copy.
            if {**own, "consolidated_metadata": None} != {**array, "consolidated_metadata": None}:
                raise StoreError(f"{partial}: the metadata of {name} differ from their copy in {ROOT_METADATA_NAME}")
            if array["node_type"] == "array":
                _check_array(partial / name, array)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(_deleted(f"{error.filename} is gone")) from error


def lost_bytes(entry: Path) -> StoreError:
    """Return the error about a file of a store that has no bytes."""
    return StoreError(f"{entry} has no bytes: the file system lost what was written; run the task again")


def _deleted(found: str) -> str:
    return (
        f"{found}, which was deleted while it was written. Nothing is published. Another job or another person works "
        "in that folder, or took this job for dead: find out who, and run the task again"
    )


def _check_array(folder: Path, array: dict[str, Any]) -> None:
    shape, files = array["shape"], array["chunk_grid"]["configuration"]["chunk_shape"]
    expected = math.prod(-(-length // size) for length, size in zip(shape, files, strict=True))
    chunks, found = folder / "c", list[Path]()
    if expected and chunks.is_file():  # an array without dimensions
        found = [chunks]
    elif expected:
        for parent, _, names in os.walk(chunks, onerror=raise_it):
            found += [Path(parent, name) for name in names if name.isdecimal()]
    if len(found) != expected:
        raise StoreError(_deleted(f"{folder} has {len(found)} of its {expected} files"))
    for entry in found:
        if not entry.stat().st_size:
            raise lost_bytes(entry)
