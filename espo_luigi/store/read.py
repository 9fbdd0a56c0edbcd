"""Looking at stores: complete or not, what made them, and their data, lazily."""

from __future__ import annotations

import logging
import zipfile
from pathlib import Path
from typing import Any

import xarray as xr
import zarr

from espo_luigi.errors import StoreError
from espo_luigi.store.archive import read_packed_marker
from espo_luigi.store.marker import MARKER_NAME, ROOT_METADATA_NAME, Marker, parse_inventory, take_inventory

logger = logging.getLogger(__name__)

_REMAKE = "delete it and run the task that makes it again"


def _marker_text(path: Path) -> str | None:
    """The text of a store's marker file, None if the store is missing, half there or not ours."""
    try:
        if path.suffix == ".zip":
            return read_packed_marker(path)
        text = (path / MARKER_NAME).read_text(encoding="utf-8")
        return text if (path / ROOT_METADATA_NAME).stat().st_size else None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, UnicodeDecodeError):
        return None


def read_marker(path: Path) -> Marker | None:
    """The marker of a complete store, directory or `.zip`, None if it is not complete; well under a millisecond."""
    text = _marker_text(Path(path))
    try:
        return None if text is None else Marker.from_json(text)
    except StoreError:
        return None


def is_complete(path: Path) -> bool:
    """Whether root metadata and a readable marker are there (of a `.zip`: both its ends); well under a millisecond."""
    return read_marker(path) is not None


def open_store(path: Path, *, check: bool = True) -> xr.Dataset:
    """Open a complete store lazily, in its stored chunks; time deltas stay numbers.

    Parameters
    ----------
    path : Path
        A `.zarr` directory or a `.zarr.zip` archive.
    check : bool
        Compare the number of files and their bytes with the marker's (one `stat` a file): Zarr would read a lost chunk
        as fill values. A chunk altered without a change of size raises when it is read, by its checksum.

    Returns
    -------
    xr.Dataset
        Backed by dask; nothing but coordinates is read.

    Raises
    ------
    StoreError
        If the store is missing, truncated, without marker, or unreadable.
    """
    path = Path(path)
    if not is_complete(path):
        raise StoreError(_why_not_complete(path))
    if check and path.is_dir():
        _check_inventory(path, (path / MARKER_NAME).read_text(encoding="utf-8"))
    return _open(path)


def _open(path: Path) -> xr.Dataset:
    try:
        source: Any = zarr.storage.ZipStore(path, mode="r") if path.is_file() else path
        return xr.open_zarr(source, chunks={}, consolidated=True, decode_timedelta=False)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile) as error:
        raise StoreError(f"cannot open {path} ({type(error).__name__}: {error}); {_REMAKE}") from error


def _why_not_complete(path: Path) -> str:
    if not path.exists():
        return f"there is no store at {path}: run the task that makes it"
    if path.suffix == ".zip":
        lost = f"its end, its {MARKER_NAME} or its {ROOT_METADATA_NAME} is missing"
        return f"{path} is truncated or was not packed by espo_luigi: {lost}; {_REMAKE}"
    missing = [name for name in (MARKER_NAME, ROOT_METADATA_NAME) if not (path / name).is_file()]
    lost = f"no readable {' and '.join(missing) or MARKER_NAME} inside"
    return f"{path} is not a complete store of espo_luigi: {lost}; {_REMAKE}"


def _check_inventory(path: Path, marker_text: str) -> None:
    expected, found = parse_inventory(marker_text), take_inventory(path)
    if expected is not None and expected != found:
        raise StoreError(
            f"{path} was changed after it was written: got {found.files} files of {found.size_bytes} bytes, expected "
            f"{expected.files} of {expected.size_bytes}; {_REMAKE}"
        )
