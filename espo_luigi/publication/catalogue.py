"""The catalogue of the products, in the format of intake-esm and xscen; rows of other people stay."""

from __future__ import annotations

import csv
import io
import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import xarray as xr

from espo_luigi.catalog.build import OF_OURS, describe_product, description
from espo_luigi.catalog.files import first_line, open_zarr
from espo_luigi.catalog.read import COLUMNS, table_of
from espo_luigi.errors import CatalogError, StoreError, as_cell
from espo_luigi.files import read_bytes, write_new
from espo_luigi.jobs.lock import DriverLock, HeldLocks, SecondDriverError
from espo_luigi.publication.products import Product
from espo_luigi.replacing import Judge, by_digest, check_ours
from espo_luigi.science.quality import is_flags
from espo_luigi.store.disk import disk_errors
from espo_luigi.store.marker import REMAKE
from espo_luigi.store.publish import written_aside

Row = dict[str, str]

logger = logging.getLogger(__name__)

# A writer on a second node with an older lock is dead: living writers refresh theirs ten times as often.
SILENT_SECONDS = 300.0
# Longer than the time after which a silent writer counts as dead.
PATIENCE_SECONDS = 600.0
_LOOK_EVERY_SECONDS = 0.2

Write = Callable[[Path, str, Judge], None]

# What ESPO v2 keeps from before the exchange of tasmax and tasmin; its attribute is that of the final data.
_PRESWAP = "ConcatCleanPreswap"
# The levels of products whose clean-up removes the attribute, by the task that makes them.
_LEVELS = {"ConcatClean": "final", _PRESWAP: "preswap"}


@dataclass(frozen=True)
class Catalogued:
    """The rows of a catalogue after products were put into it."""

    catalogue: Path
    rows: int
    """Rows of the run's products."""
    others: int
    """Rows that were there before, and stay."""
    left_out: tuple[Path, ...]
    """Stores without the name of their dataset, and stores that went meanwhile."""


def add_to_catalogue(catalogue: Path, products: Sequence[Product], folder: Path) -> Catalogued:
    """Put the data among `products` into a catalogue; a missing catalogue is made.

    Rows of the same files are replaced, and rows of missing files below `folder` are removed. All other rows stay.
    Several processes may do this at the same time: no row is lost.

    Raises
    ------
    CatalogError
        If the catalogue is there, and cannot be read or changed.
    StoreError
        If the disk refuses, or another process writes it for too long.
    """
    check_catalogue(catalogue)
    catalogue, folder = catalogue.parent.resolve() / catalogue.name, folder.absolute()
    data = [product for product in products if product.is_data]
    rows = [{name: str(as_cell(of)) for name, of in row.items()} for product in data if (row := row_of(product))]
    catalogue.parent.mkdir(parents=True, exist_ok=True)
    with alone(catalogue) as write:
        table, columns, former, judge = read_rows(catalogue)
        new = {row["path"] for row in rows}
        # Rows of missing files below the folder of products go.
        others = [
            row
            for row in former
            if row["path"] not in new and not ((path := Path(row["path"])).is_relative_to(folder) and not path.exists())
        ]
        text = io.StringIO()
        names = [*columns, *(name for name in COLUMNS if name not in columns)]
        writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*others, *rows])
        write(table, text.getvalue(), judge)
        if not catalogue.exists():
            write(catalogue, json.dumps(description(catalogue, table, "espo publish"), indent=2) + "\n", OF_OURS)
    return Catalogued(
        catalogue, len(rows), len(others), tuple(product.path for product in data if str(product.path) not in new)
    )


def check_catalogue(catalogue: Path) -> Path:
    """Return a catalogue's table; `CatalogError` if one of the two is a link, or the table lies in another folder.

    Whoever may write the folder of a shared catalogue could otherwise have a private file of ours rewritten.
    """
    for path in (catalogue, table := table_of(catalogue) if catalogue.is_file() else catalogue.with_suffix(".csv")):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise CatalogError(
                f"{path} is a link, a folder or a device, expected a file: publishing follows no link, as it would "
                "rewrite a file elsewhere. Nothing was changed. Name the catalogue itself in paths.project_catalog"
            )
    if table.parent.resolve() != catalogue.parent.resolve():
        raise CatalogError(
            f"{catalogue} has its table elsewhere (catalog_file: {table}); expected the name of a file beside it, as "
            "publishing rewrites the table. Nothing was changed. Correct catalog_file, or name another catalogue in "
            "paths.project_catalog"
        )
    return table


def row_of(product: Product) -> Row:
    """Return the row of a product; empty if it has no dataset, or is gone by now."""
    try:
        with ends_of(product.path) as ds:
            row, of_flags = describe_product(ds), ds.data_vars and all(map(is_flags, ds.data_vars))
    # A store that is deleted or replaced meanwhile may raise nearly anything.
    except Exception as error:
        if product.path.exists():
            raise StoreError(f"cannot read {product.path} ({first_line(error)}); {REMAKE}") from error
        return {}
    if row and (product.marker.task == _PRESWAP or not row.get("processing_level")):
        row["processing_level"] = _LEVELS.get(product.marker.task, "")
    if row and of_flags:
        row["processing_level"] += "_flags"
    # Else the reference and its copies in two calendars would be the same dataset, of the same level.
    copy = product.marker.parameters.get("calendar")
    if row and copy:
        row["processing_level"] = f"{row['processing_level']}_{copy}"
    return row and row | {"format": "zarr", "path": str(product.path)}


@contextmanager
def ends_of(path: Path) -> Iterator[xr.Dataset]:
    """Open a product lazily, its first two days and its last only.

    Making the dates of a hundred and fifty years takes half a second.
    """
    with open_zarr(str(path), {"chunks": None, "decode_times": False}) as ds:
        last = ds.sizes.get("time", 0) - 1
        ends = ds.isel(time=sorted({0, min(1, last), last})) if last >= 0 else ds
        yield xr.decode_cf(ends, decode_timedelta=False)


def read_rows(catalogue: Path) -> tuple[Path, Sequence[str], list[Row], Judge]:
    """The CSV file of a catalogue, its columns and its rows, and a judge that knows the file by its content."""
    table = check_catalogue(catalogue)
    if not catalogue.exists():
        # Ours, too, after a kill between the two files: nothing in it shows that.
        check_ours(table, lambda _: f"there is no catalogue {catalogue.name} that it belongs to, so it may be yours")
        return table, COLUMNS, [], by_digest(())
    try:
        content = read_bytes(table)
        reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True, restval="")
        rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CatalogError(f"{table}, the catalog_file of {catalogue}, cannot be read: {error}.") from None
    columns = reader.fieldnames or COLUMNS
    if "path" not in columns or any(None in row for row in rows):
        raise CatalogError(
            f"{table}: expected a column `path`, and as many cells in each row as columns; got the columns "
            f"{', '.join(columns)[:500]}. Nothing was changed. Name another file in paths.project_catalog"
        )
    return table, columns, rows, by_digest({sha256(content).hexdigest()})


@contextmanager
def alone(path: Path, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[Write]:
    """Wait until no other process changes `path`; yield a function that replaces a file of ours by a text.

    The file is replaced whole or not at all.

    The lock is a file beside it, with host, process and start of its holder. The lock of a dead process of this host is
    taken at once. The lock of a process of a second host is taken once it has not been refreshed for long.

    Raises
    ------
    StoreError
        If another process holds the lock for longer than `patience_seconds`, or the folder cannot be written to.
    """
    lock, locks = DriverLock(path.parent, SILENT_SECONDS, name=f".{path.name}.lock"), HeldLocks(logger.warning)
    deadline = time.monotonic() + patience_seconds
    with disk_errors(path, "write"):
        while True:
            try:
                locks.hold(lock)
                break
            except SecondDriverError:
                holder = lock.holder()
                if holder is not None and time.monotonic() > deadline:
                    raise StoreError(
                        f"{path} is being written by process {holder['pid']} on {holder['host']}, also after a long "
                        f"wait: give the command again later, or remove {lock.path} if you know that it is dead"
                    ) from None
            time.sleep(_LOOK_EVERY_SECONDS)

    def write(target: Path, text: str, judge: Judge) -> None:
        with written_aside(target, judge=judge) as partial:
            write_new(partial, text, durable=True)
            if not locks.still_held():
                raise StoreError(
                    f"{path} was not written: this process was suspended, and another process writes there now; give "
                    "the command again"
                )

    try:
        yield write
    finally:
        locks.release()
