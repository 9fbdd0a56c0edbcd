"""The products in a folder, which are all that has a marker, and the NetCDF files that `espo export` has made of them.

Files of an export are found by their checksum files, which are written last.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py

from espo_luigi import store
from espo_luigi.catalog.files import first_line
from espo_luigi.errors import InstallationError, StoreError, nearest
from espo_luigi.files import open_regular
from espo_luigi.redaction import without_secrets
from espo_luigi.science.netcdf import text_attribute
from espo_luigi.store import Marker
from espo_luigi.store.table import read_checksums

FORMATS = {".zarr": "application/vnd.zarr", ".zarr.zip": "application/zip", ".csv": "text/csv", ".html": "text/html"}
NETCDF = "application/netcdf"
# The tasks that look at raw files; the inputs in their markers are these files, with tracking ids.
LOOK_AT_RAW_FILES = ("InputCheck", "RefInputCheck")
PRODUCT, TRACKING_ID = "espo_luigi_product", "tracking_id"
_EXPORT_AGAIN = "give `espo export` again"


def is_installed(package: str) -> bool:
    """Return whether a package of the extra `publication` is there."""
    return importlib.util.find_spec(package) is not None


def check_installed(package: str, purpose: str) -> None:
    """Raise InstallationError unless a package of the extra `publication` is there."""
    if not is_installed(package):
        raise InstallationError(
            f"{purpose} needs the package {package}, which is not installed here: "
            "pip install 'espo_luigi[publication]'. Nothing was written"
        )


@dataclass(frozen=True)
class Product:
    """A store, an archive, a table or a page that is complete."""

    path: Path
    marker: Marker

    @property
    def format(self) -> str:
        """Its media type."""
        return next((media for ending, media in FORMATS.items() if self.path.name.endswith(ending)), NETCDF)

    @property
    def is_data(self) -> bool:
        """Whether it is a Zarr store, folder or archive."""
        return self.path.name.endswith((".zarr", ".zarr.zip"))

    def below(self, final: Path) -> str:
        """Return its path below the folder of products."""
        return self.path.relative_to(final).as_posix()


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


def find_products(folder: Path) -> list[Product]:
    """Return the complete products below a folder, sorted by path; stores are not searched.

    A NetCDF file beside a table of the same name, as of regions, is a result of the table's task.
    """
    paths = []
    for place, folders, files in os.walk(folder.absolute()):
        stores = [name for name in folders if name.endswith(".zarr")]
        folders[:] = [name for name in folders if name not in stores]
        names = [*stores, *(name for name in files if name.endswith(tuple(FORMATS)))]
        # Partials are hidden.
        paths += [Path(place) / name for name in names if not name.startswith(".")]
    markers = {path: marker for path in paths if (marker := store.read_marker(path)) is not None}
    beside = {path.with_suffix(".nc"): marker for path, marker in markers.items() if path.suffix == ".csv"}
    markers |= {path: marker for path, marker in beside.items() if path.is_file()}
    return [Product(path, marker) for path, marker in sorted(markers.items(), key=lambda each: each[0])]


def raw_files(products: Iterable[Product]) -> dict[tuple[str, str], Mapping[str, str]]:
    """Return the raw files with their tracking ids, by dataset and fingerprint, from `InputCheck`'s tables."""
    looked_at = [product.marker for product in products if product.marker.task in LOOK_AT_RAW_FILES]
    # Earlier versions kept addresses as the catalogue has them.
    return {
        raw: {without_secrets(path): tracking for path, tracking in marker.inputs.items()}
        for marker in looked_at
        for raw in marker.raw.items()
    }


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
    tables = [path for path in folder.rglob("*.sha256") if not path.name.startswith(".")]
    files = sorted((file for table in tables for file in _files_of(table)), key=lambda file: file.path)
    if not files:
        raise StoreError(f"no checksum file (.sha256) in {folder}: expected a folder that `espo export` has finished")
    by_product: dict[str, list[ExportedFile]] = {}
    for file in files:
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


def _files_of(table: Path) -> list[ExportedFile]:
    sums, marker = read_checksums(table), store.read_marker(table)
    if not sums or marker is None:
        raise StoreError(
            f"{table} has no {'marker' if sums else 'checksum'}; expected a line for each file of a product, and the "
            f"marker last: {_EXPORT_AGAIN}"
        )
    inputs = {Path(path).name: id for path, id in marker.inputs.items()}
    files = [_described(table.with_name(name), sha256, table, inputs) for name, sha256 in sums.items()]
    if len(products := {file.product for file in files}) > 1:
        raise StoreError(f"{table} has files of several products, {', '.join(sorted(products))}; expected those of one")
    return files


def _described(path: Path, sha256: str, table: Path, inputs: Mapping[str, str]) -> ExportedFile:
    try:
        # xarray needs ten times as long, and an export may have ten thousands of files.
        with open_regular(path) as opened, h5py.File(opened) as file:
            product, tracking_id = (text_attribute(file, name) for name in (PRODUCT, TRACKING_ID))
        size = path.stat().st_size
    except FileNotFoundError:
        raise StoreError(f"{path} is missing, though {table} lists it; {_EXPORT_AGAIN}") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read as NetCDF-4 ({first_line(error)}); {_EXPORT_AGAIN}") from error
    if not product:
        raise StoreError(f"{path} has no global attribute {PRODUCT}; expected a file that `espo export` has made")
    return ExportedFile(path, product, tracking_id, sha256, size, inputs.get(Path(product).name, ""))
