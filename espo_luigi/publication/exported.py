"""The NetCDF files that `espo export` has made of products: found by their checksum files, which are written last."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import h5py

from espo_luigi.catalog.files import first_line
from espo_luigi.errors import StoreError, nearest
from espo_luigi.files import open_regular
from espo_luigi.store.marker import read_marker
from espo_luigi.store.table import read_checksums

PRODUCT, TRACKING_ID = "espo_luigi_product", "tracking_id"
_EXPORT_AGAIN = "give `espo export` again"


@dataclass(frozen=True)
class ExportedFile:
    """A NetCDF file of a product, with what its checksum file and its global attributes say."""

    path: Path
    product: str
    """The path of the product's archive below the folder of products."""
    tracking_id: str
    """Empty if the file has none."""
    sha256: str
    size_bytes: int
    made_from: str = ""
    """The id of the marker of the exported archive, from the marker in the checksum file; empty if it names none."""


def find_exported(folder: Path, products: Mapping[str, str]) -> dict[str, list[ExportedFile]]:
    """Return the files of each product that was exported whole, in the order of their paths.

    Parameters
    ----------
    folder : Path
        The folder that was given to `espo export`.
    products : mapping of str to str
        The id of the marker of each of this run's products, by its path below their folder.

    Raises
    ------
    StoreError
        If the folder holds no whole product, a product of another run, a product that was made again since, or not
        what its checksum files say.
    """
    folder = folder.absolute()
    found = sorted((one for table in _checksum_files(folder) for one in _files_of(table)), key=lambda f: f.path)
    if not found:
        raise StoreError(f"no checksum file (.sha256) in {folder}: expected a folder that `espo export` has finished")
    by_product: dict[str, list[ExportedFile]] = {}
    for file in found:
        if file.product not in products:
            raise StoreError(
                f"{file.path} is of the product {file.product}, which is not complete in this run"
                f"{nearest(file.product, products)}; expected files of this run's products only: name the folder of "
                "this run's export, or remove what is not of it"
            )
        if file.made_from not in ("", products[file.product]):
            raise StoreError(
                f"{file.path} was exported from an earlier {file.product}: its archive had the marker "
                f"{file.made_from}, expected {products[file.product]}; {_EXPORT_AGAIN}"
            )
        by_product.setdefault(file.product, []).append(file)
    return by_product


def unfinished(folder: Path, exported: Collection[ExportedFile]) -> int:
    """Return how many NetCDF files below a folder belong to no product that was exported whole."""
    known = {file.path for file in exported}
    return sum(path not in known for path in folder.absolute().rglob("*.nc") if not path.name.startswith("."))


def _checksum_files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place) / name for name in names if name.endswith(".sha256") and not name.startswith("."))


def _files_of(table: Path) -> Iterator[ExportedFile]:
    sums, marker = read_checksums(table), read_marker(table)
    if not sums or marker is None:
        raise StoreError(
            f"{table} has no {'marker' if sums else 'checksum'}; expected a line for each file of a product, and the "
            f"marker last: {_EXPORT_AGAIN}"
        )
    inputs = {Path(path).name: id for path, id in marker.inputs.items()}
    products = set()
    for name, sha256 in sums.items():
        file = _described(table.with_name(name), sha256, table)
        products.add(file.product)
        yield replace(file, made_from=inputs.get(Path(file.product).name, ""))
    if len(products) > 1:
        raise StoreError(f"{table} has files of several products, {', '.join(sorted(products))}; expected those of one")


def _described(path: Path, sha256: str, table: Path) -> ExportedFile:
    try:
        # xarray needs ten times as long, and an export may have ten thousands of files.
        with open_regular(path) as opened, h5py.File(opened) as file:
            product, tracking_id = (_text(file.attrs.get(name, "")) for name in (PRODUCT, TRACKING_ID))
        size = path.stat().st_size
    except FileNotFoundError:
        raise StoreError(f"{path} is missing, though {table} lists it; {_EXPORT_AGAIN}") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read as NetCDF-4 ({first_line(error)}); {_EXPORT_AGAIN}") from error
    if not product:
        raise StoreError(f"{path} has no global attribute {PRODUCT}; expected a file that `espo export` has made")
    return ExportedFile(path, product, tracking_id, sha256, size)


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
