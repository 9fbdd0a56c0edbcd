"""Store directories → uncompressed zip archives, and a look at an archive's ends that costs less than opening it."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from espo_luigi.errors import StoreError
from espo_luigi.store.marker import MARKER_NAME, ROOT_METADATA_NAME, Marker, check_inventory
from espo_luigi.store.publish import sync_path, written_aside

# The oldest time that a zip can hold: the same store packs to the same bytes.
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_COPY_BUFFER_BYTES = 4 * 1024**2
_FIRST_MEMBERS = (MARKER_NAME, ROOT_METADATA_NAME)

# PKWARE's APPNOTE, sections 4.3.7 and 4.3.14 to 4.3.16.
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_END = struct.Struct("<4s4H2IH")
_ZIP64_LOCATOR = struct.Struct("<4sIQI")
_ZIP64_END = struct.Struct("<4sQ2H2I4Q")
_SENTINEL = 0xFFFFFFFF


def pack(path: Path, zip_path: Path, marker: Marker | None = None) -> None:
    """Pack a store directory into an uncompressed zip, and publish it atomically.

    Members are named relative to the store's root, folders have entries, order and times are fixed, and the marker
    comes first. `xr.open_zarr(zarr.storage.ZipStore(zip_path, mode="r"))` reads it.

    Parameters
    ----------
    path : Path
        A complete store directory.
    zip_path : Path
        The archive; one of the same name is replaced.
    marker : Marker, optional
        The archive's own marker; by default the store's.

    Raises
    ------
    StoreError
        If `path` is not a complete store directory, or has lost files, or the disk refuses.
    """
    path, zip_path = Path(path), Path(zip_path)
    if not all((path / name).is_file() for name in _FIRST_MEMBERS):
        raise StoreError(
            f"cannot pack {path}: expected a complete store directory, with {' and '.join(_FIRST_MEMBERS)} inside; "
            "make it first"
        )
    check_inventory(path)
    with written_aside(zip_path) as partial:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            _add_marker(archive, path, marker)
            # One buffer for all: of memory taken anew each time, clearing the pages took longer than copying.
            buffer = memoryview(bytearray(_COPY_BUFFER_BYTES))
            for entry in _members(path):
                _add(archive, entry, entry.relative_to(path).as_posix(), buffer)
        sync_path(partial)


def _members(root: Path) -> list[Path]:
    """All files and folders but the marker: the root's metadata first, the others in the order of their names."""
    entries = [entry for entry in root.rglob("*") if entry != root / MARKER_NAME]
    return sorted(entries, key=lambda entry: (entry != root / ROOT_METADATA_NAME, entry.relative_to(root).as_posix()))


def _add_marker(archive: zipfile.ZipFile, root: Path, marker: Marker | None) -> None:
    text = (root / MARKER_NAME).read_text(encoding="utf-8") if marker is None else marker.to_json()
    archive.writestr(_member(MARKER_NAME, 0o644), text.encode())


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
    member.file_size = entry.stat().st_size
    with entry.open("rb", buffering=0) as source, archive.open(member, "w") as target:
        while size := source.readinto(buffer):
            target.write(buffer[:size])


def read_packed_marker(zip_path: Path) -> str | None:
    """The text of the marker in an archive that `pack` made and that has both its ends; None of any other file.

    Reads a few hundred bytes, however many members there are. What lies between is not checked: each chunk's checksum
    is compared when it is read.
    """
    with zip_path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if not _has_whole_directory(file, size):
            return None
        file.seek(0)
        text = _read_member(file, MARKER_NAME)
        return text.decode() if text is not None and _read_member(file, ROOT_METADATA_NAME) is not None else None


def _read_member(file: BinaryIO, name: str) -> bytes | None:
    """The content of the member whose local header starts here, None if it is not the one expected."""
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size:
        return None
    signature, _, _, method, *_, size, name_length, extra_length = _LOCAL_HEADER.unpack(header)
    if signature != b"PK\x03\x04" or method != zipfile.ZIP_STORED or file.read(name_length) != name.encode():
        return None
    file.seek(extra_length, os.SEEK_CUR)
    return file.read(size)


def _has_whole_directory(file: BinaryIO, size: int) -> bool:
    """Whether the end record is the file's last bytes and the directory that it names ends right before it."""
    if size < _END.size:
        return False
    end = size - _END.size
    file.seek(end)
    signature, *_, directory_size, directory_start, comment_length = _END.unpack(file.read(_END.size))
    if signature != b"PK\x05\x06" or comment_length:
        return False
    if _SENTINEL in (directory_size, directory_start) or _has_zip64(file, end):
        end, directory_size, directory_start = _read_zip64(file, end)
    if directory_start + directory_size != end or directory_start < 0:
        return False
    file.seek(directory_start)
    return file.read(4) == b"PK\x01\x02"


def _has_zip64(file: BinaryIO, end: int) -> bool:
    file.seek(max(end - _ZIP64_LOCATOR.size, 0))
    return file.read(4) == b"PK\x06\x07"


def _read_zip64(file: BinaryIO, end: int) -> tuple[int, int, int]:
    """Where the Zip64 end record starts, and the size and the start of the directory; (-1, 0, 0) if there is none."""
    file.seek(max(end - _ZIP64_LOCATOR.size, 0))
    signature, _, record_start, _ = _ZIP64_LOCATOR.unpack(file.read(_ZIP64_LOCATOR.size))
    if signature != b"PK\x06\x07" or not 0 <= record_start <= end - _ZIP64_END.size:
        return -1, 0, 0
    file.seek(record_start)
    *_, directory_size, directory_start = _ZIP64_END.unpack(file.read(_ZIP64_END.size))
    return record_start, directory_size, directory_start
