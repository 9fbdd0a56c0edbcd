"""Packing store directories into uncompressed zip archives."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.files import load_json, read_text, sync_path
from espo_luigi.store.identity import unchanged
from espo_luigi.store.inventory import check_inventory, lost_bytes
from espo_luigi.store.marker import MARKER_NAME, ROOT_METADATA_NAME, Marker
from espo_luigi.store.publish import written_aside

# The oldest time that a zip can hold; fixed, so that the same store packs to the same bytes.
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_COPY_BUFFER_BYTES = 4 * 1024**2
_FIRST_MEMBERS = (MARKER_NAME, ROOT_METADATA_NAME)


def pack(path: Path, zip_path: Path, marker: Marker | None = None, without: Collection[str] = ()) -> None:
    """Pack a store directory into an uncompressed zip, and publish it atomically.

    Members are named relative to the store's root, folders have entries, order and times are fixed, and the marker
    comes first. `xr.open_zarr(zarr.storage.ZipStore(zip_path, mode="r"))` reads it.

    Parameters
    ----------
    path : Path
        A complete store directory.
    zip_path : Path
        The archive; it replaces an archive of the same name.
    marker : Marker, optional
        The archive's marker; by default the store's.
    without : collection of str, optional
        Arrays that are left out.

    Raises
    ------
    StoreError
        If `path` is not a complete store directory, has lost files, or is replaced meanwhile; if the disk refuses.
    """
    path, zip_path = Path(path), Path(zip_path)
    if not all((path / name).is_file() for name in _FIRST_MEMBERS):
        raise StoreError(
            f"cannot pack {path}: expected a complete store directory, with {' and '.join(_FIRST_MEMBERS)} inside; "
            "make it first"
        )
    with unchanged([path]), written_aside(zip_path) as partial:
        check_inventory(path)
        # "x" refuses a file that is there already.
        with zipfile.ZipFile(partial, "x", zipfile.ZIP_STORED, allowZip64=True) as archive:
            text = read_text(path / MARKER_NAME) if marker is None else marker.to_json()
            archive.writestr(_member(MARKER_NAME, 0o644), text.encode())
            # All files share a buffer: clearing the pages of new memory took longer than copying.
            buffer = memoryview(bytearray(_COPY_BUFFER_BYTES))
            for entry in _members(path):
                name = entry.relative_to(path)
                if without and name.as_posix() == ROOT_METADATA_NAME:
                    metadata = load_json(entry)
                    for array in without:
                        del metadata["consolidated_metadata"]["metadata"][array]
                    archive.writestr(_member(ROOT_METADATA_NAME, 0o644), json.dumps(metadata, ensure_ascii=False))
                elif name.parts[0] not in without:
                    _add(archive, entry, name.as_posix(), buffer)
        sync_path(partial)
        check_inventory(path)  # again: a file may have gone before the walk came to it


def _members(root: Path) -> list[Path]:
    """All files and folders but the marker, sorted by name; the root's metadata come first."""
    entries = [entry for entry in root.rglob("*") if entry != root / MARKER_NAME]
    return sorted(entries, key=lambda entry: (entry != root / ROOT_METADATA_NAME, entry.relative_to(root).as_posix()))


def _member(name: str, mode: int) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _FIXED_TIME)
    member.external_attr = mode << 16
    return member


def _add(archive: zipfile.ZipFile, entry: Path, name: str, buffer: memoryview) -> None:
    if entry.is_dir():
        archive.writestr(_member(f"{name}/", 0o40755), b"")
        return
    member = _member(name, 0o644)
    # zipfile decides by the announced size whether the member needs Zip64.
    member.file_size, copied = entry.stat().st_size, 0
    with entry.open("rb", buffering=0) as source, archive.open(member, "w") as target:
        while size := source.readinto(buffer):
            target.write(buffer[:size])
            copied += size
    if not copied:
        raise lost_bytes(entry)
