"""Whether the files of products are as they were written, and whether each belongs to a product."""

from __future__ import annotations

import os
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import dask

from espo_luigi import store
from espo_luigi.catalog import build
from espo_luigi.catalog.files import first_line, is_zarr
from espo_luigi.export.folder import CHECKSUMS, OWNER_NAME
from espo_luigi.files import open_regular, parse_json, read_object
from espo_luigi.publication import origin, release
from espo_luigi.replacing import MANIFEST_NAME, by_content, digest_of_ours
from espo_luigi.store.inventory import check_dense, digest_of
from espo_luigi.store.marker import MARKER_NAME, ROOT_METADATA_NAME, digests_of, marked, marker_beside
from espo_luigi.store.table import checksum_pairs
from espo_luigi.tasks.ensembles import maker_of

_OURS = (
    release.OF_OURS,
    release.SIGNATURE_OF_OURS,
    origin.OF_OURS,
    origin.RELATIONS,
    build.OF_OURS,
    by_content(lambda content: content.startswith(",".join(build.COLUMNS).encode()), "the table of a catalogue"),
)
_OF_PEOPLE = re.compile(r"(README|LICEN[CS]E|CITATION|\.).*")


class Remark(str):
    """What a check has left out though it has passed."""


def told(path: Path, problems: Iterator[str]) -> Iterator[str]:
    """Yield the problems of a file; one that cannot be read ends no check."""
    try:
        yield from problems
    # Damaged data may raise nearly anything.
    except Exception as error:
        yield f"{path}: cannot be read: {first_line(error)}"


def has_table(path: Path) -> bool:
    """Return whether the marker of a table beside a NetCDF file has its SHA-256: one task made both."""
    sums = (read_object(marker_beside(path.with_suffix(".csv"))) or {}).get("sha256")
    return isinstance(sums, dict) and path.name in sums


def checksums(folder: Path, files: Sequence[Path], read: Collection[Path]) -> Iterator[str]:
    """Yield what differs from checksums: of `files`, of which all values of some were `read`, and of the tables."""
    tables = sorted(folder.rglob(f"*{CHECKSUMS}"))
    pairs = [(table.with_name(name), digest) for table in tables for name, digest in checksum_pairs(table)]
    summed, times = dict(pairs), Counter(path for path, _ in pairs)
    yield from (f"{path} has {number} checksums; expected one" for path, number in times.items() if number > 1)
    yield from (f"{path} is gone, and {CHECKSUMS} has it" for path in summed if not path.exists())
    for marker in sorted(folder.rglob(f"*.csv.{MARKER_NAME}")):
        yield from told(marker, _table(marker))
    for path in files:
        if is_zarr(path.name):
            yield from told(path, _archive(path) if path.suffix == ".zip" else _store(path, path in read))
        elif not has_table(path) and (listed := summed.get(path)) != (found := digest_of(path)):
            yield f"{path} has the SHA-256 {found}; its {CHECKSUMS} of `espo export` has {listed}"


def _archive(path: Path) -> Iterator[str]:
    with open_regular(path) as opened, zipfile.ZipFile(opened) as archive:
        size = sum(one.file_size for one in archive.infolist())
        if size > (there := os.fstat(opened.fileno()).st_size):
            yield f"{path}: its members have {size} bytes, and it has {there}; expected bytes of its own for each"
            return
        if member := archive.testzip():
            yield f"{path}: the CRC-32 of {member} differs from the archive's"
        arrays = parse_json(archive.read(ROOT_METADATA_NAME))["consolidated_metadata"]["metadata"]
        known, names = {MARKER_NAME, ROOT_METADATA_NAME, *arrays}, Counter(map(os.path.normpath, archive.namelist()))
    for name in [name for name, number in names.items() if number > 1 or name.partition("/")[0] not in known][:1]:
        yield f"{path}: {name} is there twice, or belongs to none of its arrays"


def _store(path: Path, is_read: bool) -> Iterator[str]:
    """Outcomes have a SHA-256. Of others, each chunk has a checksum, and metadata are there twice."""
    if listed := (read_object(path / MARKER_NAME) or {}).get("sha256"):
        if (found := digest_of(path, but=MARKER_NAME)) != listed:
            yield f"{path} has the SHA-256 {found}; its {MARKER_NAME} has {listed}"
        return
    check_dense(path)
    if not is_read:
        with store.open_store(path) as ds:
            dask.compute([data.notnull().any().data for data in ds.data_vars.values()])


def _table(beside: Path) -> Iterator[str]:
    """Yield how a table, and the NetCDF file that its task made, differ from their marker."""
    table, said = beside.with_name(beside.name.removesuffix(f".{MARKER_NAME}")), read_object(beside) or {}
    if not digests_of(table):
        yield f"{beside} is empty or damaged; expected the marker of {table.name}, with its SHA-256"
        return
    for name, listed in said["sha256"].items():
        path = beside.with_name(name) if name else table
        if not path.exists():
            yield f"{path} is gone, and {beside.name} is there"
        elif (found := digest_of(path)) != listed:
            yield f"{path} has the SHA-256 {found}; {beside.name} has {listed}"
        elif name and (maker := maker_of(path)) != (own := said.get("id")):
            yield f"{path} was made with the marker {maker}; the table beside it has {own}"


def strays(folder: Path, examined: Collection[str]) -> Iterator[str]:
    """Yield files that belong to no product; people may add README, LICENSE, CITATION and hidden names.

    Archives, stores and NetCDF files are `examined` elsewhere.
    """
    found, listed = list[Path](), {folder / OWNER_NAME, *(folder / name for name in examined)}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(".zarr") and not name.startswith(".")]
        found += [Path(place, name) for name in names if not _OF_PEOPLE.fullmatch(name)]
        if manifest := read_object(Path(place, MANIFEST_NAME)):
            listed |= {Path(place, name) for name in (MANIFEST_NAME, *manifest["files"])}
            listed |= {Path(place).with_name(name) for name in manifest["beside"]}
    for path in sorted({*found} - listed):
        if not any(digest_of_ours(path, judge) for judge in (*_OURS, marked(path, inside=False))):
            yield f"{path} belongs to no product: move it elsewhere"
