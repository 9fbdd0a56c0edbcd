"""Whether an archive is whole, by its first and last bytes: that is cheaper than opening it."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from espo_luigi.store.marker import MARKER_NAME, ROOT_METADATA_NAME

# PKWARE's APPNOTE, sections 4.3.7 and 4.3.14 to 4.3.16.
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_END = struct.Struct("<4s4H2IH")
_ZIP64_LOCATOR = struct.Struct("<4sIQI")
_ZIP64_END = struct.Struct("<4sQ2H2I4Q")
_SENTINEL = 0xFFFFFFFF


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
