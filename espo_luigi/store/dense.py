"""Whether all that was written is there: somebody may have deleted a part, and Zarr makes deleted folders again."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from espo_luigi.errors import StoreError
from espo_luigi.store.marker import ROOT_METADATA_NAME


def check_dense(partial: Path) -> None:
    """Check that a store which is about to be published has its metadata and every chunk, none of them empty.

    Raises
    ------
    StoreError
        If it has not.
    """
    try:
        for name, array in _arrays(partial):
            _check_array(partial / name, array)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(_told(f"{error.filename} is gone")) from error


def emptied(entry: Path) -> StoreError:
    """The error of a file of a store in which nothing is."""
    return StoreError(f"{entry} has no bytes: the file system lost what was written; run the task again")


def _told(what: str) -> str:
    return (
        f"{what}, which was deleted while it was written. Nothing is published. Another job or another person works in "
        "that folder, or took this job for dead: find out who, and run the task again"
    )


def _arrays(partial: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the metadata of each array, of which readers take the root's copy."""
    root = json.loads((partial / ROOT_METADATA_NAME).read_text(encoding="utf-8"))
    for name, array in root["consolidated_metadata"]["metadata"].items():
        own = json.loads((partial / name / ROOT_METADATA_NAME).read_text(encoding="utf-8"))
        if {**own, "consolidated_metadata": None} != {**array, "consolidated_metadata": None}:
            raise StoreError(f"{partial}: the metadata of {name} differ from their copy in {ROOT_METADATA_NAME}")
        if array["node_type"] == "array":
            yield name, array


def _check_array(folder: Path, array: dict[str, Any]) -> None:
    shape, files = array["shape"], array["chunk_grid"]["configuration"]["chunk_shape"]
    expected = math.prod(-(-length // size) for length, size in zip(shape, files, strict=True))
    found = list(_chunk_files(folder / "c")) if expected else []
    if len(found) != expected:
        raise StoreError(_told(f"{folder} has {len(found)} of its {expected} files"))
    for entry in found:
        if not entry.stat().st_size:
            raise emptied(entry)


def _chunk_files(chunks: Path) -> Iterator[Path]:
    """The files of an array's chunks; of one without dimensions, the one file."""
    if chunks.is_file():
        yield chunks
        return
    for parent, _, names in os.walk(chunks, onerror=_raise):
        yield from (Path(parent, name) for name in names if name.isdecimal())


def _raise(error: OSError) -> None:
    raise error
