"""The catalogue of the products, in the format of intake-esm and xscen; rows of other people stay."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import xarray as xr

from espo_luigi.catalog.build import OF_OURS, TABLE_OF_OURS, describe_product, description
from espo_luigi.catalog.files import first_line, open_zarr
from espo_luigi.catalog.read import COLUMNS, table_of
from espo_luigi.errors import CatalogError, StoreError
from espo_luigi.files import read_bytes
from espo_luigi.publication.alone import alone
from espo_luigi.publication.products import Product
from espo_luigi.replacing import Judge, by_digest, check_ours
from espo_luigi.store.marker import REMAKE

Row = dict[str, str]

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
    rows = [row for product in data if (row := row_of(product))]
    catalogue.parent.mkdir(parents=True, exist_ok=True)
    with alone(catalogue) as write:
        table, columns, found, judge = _read(catalogue)
        new = {row["path"] for row in rows}
        others = [row for row in found if row["path"] not in new and not _is_gone(Path(row["path"]), folder)]
        text = _as_csv([*columns, *(name for name in COLUMNS if name not in columns)], [*others, *rows])
        write(table, text, judge)
        if not catalogue.exists():
            write(catalogue, json.dumps(description(catalogue, table, "espo publish"), indent=2) + "\n", OF_OURS)
    return Catalogued(catalogue, len(rows), len(others), tuple(one.path for one in data if str(one.path) not in new))


def check_catalogue(catalogue: Path) -> None:
    """Raise `CatalogError` if a catalogue, or its table, is a link, or its table lies in another folder.

    Whoever may write the folder of a shared catalogue could otherwise have a private file of ours rewritten.
    """
    _check_regular(catalogue)
    table = table_of(catalogue) if catalogue.exists() else catalogue.with_suffix(".csv")
    _check_regular(table)
    if table.parent.resolve() != catalogue.parent.resolve():
        raise CatalogError(
            f"{catalogue} has its table elsewhere (catalog_file: {table}); expected the name of a file beside it, as "
            "publishing rewrites the table. Nothing was changed. Correct catalog_file, or name another catalogue in "
            "paths.project_catalog"
        )


def _check_regular(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise CatalogError(
            f"{path} is a link, a folder or a device, expected a file: publishing follows no link, as it would rewrite "
            "a file elsewhere. Nothing was changed. Name the catalogue itself in paths.project_catalog"
        )


def row_of(product: Product) -> Row:
    """Return the row of a product; empty if it has no dataset, or is gone by now."""
    try:
        with ends_of(product.path) as ds:
            row = describe_product(ds)
    # A store that is deleted or replaced meanwhile may raise nearly anything.
    except Exception as error:
        if product.path.exists():
            raise StoreError(f"cannot read {product.path} ({first_line(error)}); {REMAKE}") from error
        return {}
    if row and (product.marker.task == _PRESWAP or not row.get("processing_level")):
        row["processing_level"] = _LEVELS.get(product.marker.task, "")
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


def _is_gone(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) and not path.exists()


def _read(catalogue: Path) -> tuple[Path, Sequence[str], list[Row], Judge]:
    """The CSV file of a catalogue, its columns and its rows, and a judge that knows the file by its content."""
    check_catalogue(catalogue)
    table = table_of(catalogue) if catalogue.exists() else catalogue.with_suffix(".csv")
    if not catalogue.exists() and check_ours(table, TABLE_OF_OURS) is None:
        return table, COLUMNS, [], TABLE_OF_OURS
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


def _as_csv(columns: Sequence[str], rows: Iterable[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
