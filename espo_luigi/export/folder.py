"""The folder of an export: whose it is, and a product's files in it, written file by file, with checksums last."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import netCDF4
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import StoreError
from espo_luigi.export.conventions import Stretch
from espo_luigi.export.netcdf import Layout, write_netcdf
from espo_luigi.files import aside_of, write_new
from espo_luigi.store.disk import disk_errors
from espo_luigi.store.table import read_checksums, write_checksums

logger = logging.getLogger(__name__)

OWNER_NAME = "espo-export.json"
CHECKSUMS = ".sha256"
# Global attributes: the archive, from the folder of the products, and the attempts that may go on from a file.
PRODUCT, EXPORT_ID, INPUT_IDS = "espo_luigi_product", "espo_luigi_export", "input_tracking_id"


@dataclass(frozen=True)
class Owner:
    """Whose export a folder holds: of a run, by the folder of its products, and by a DRS, its name and its files'."""

    products: str
    drs: str
    names: str

    def check(self, folder: Path) -> bool:
        """Return whether the folder has an owner's file; raise `StoreError` if it names a different owner."""
        path = folder / OWNER_NAME
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error}); export into another folder") from error
        told = {name: found.get(name) if isinstance(found, dict) else None for name in asdict(self)}
        if differing := [name for name, value in asdict(self).items() if told[name] != value]:
            lines = {
                "products": f"the products of {told['products']}, and this run's are in {self.products}",
                "drs": f"an export by the DRS {told['drs']}, and this is by {self.drs}",
                "names": f"an export by an earlier content of the DRS {self.drs}, which named files otherwise",
            }
            raise StoreError(f"{folder} holds {lines[differing[0]]} ({path}): export into another folder")
        return True

    def claim(self, folder: Path) -> None:
        """Make the folder's file, unless it is there; raise `StoreError` if it names a different owner."""
        if self.check(folder):
            return
        path = folder / OWNER_NAME
        with disk_errors(path, "write"):
            folder.mkdir(parents=True, exist_ok=True)
            aside = aside_of(path)
            try:
                write_new(aside, json.dumps(asdict(self), indent=1) + "\n", durable=True)
                # Unlike a rename, a link fails if a second run was faster.
                os.link(aside, path)
            except FileExistsError:
                self.check(folder)
            finally:
                aside.unlink(missing_ok=True)


def checksums_of(folder: Path, stem: Path) -> Path:
    """Return the file with the checksums of a product's files, whose presence says that all of them are whole."""
    return (folder / stem).with_name(stem.name + CHECKSUMS)


def is_whole(checksums: Path) -> bool:
    """Return whether all files that a product's checksums name are there; damaged checksums name none."""
    try:
        return all(path.exists() for path in files_of(checksums))
    except StoreError:
        return False


def files_of(checksums: Path) -> list[Path]:
    """Return the files that a product's checksums name."""
    return [checksums.parent / name for name in read_checksums(checksums)]


def export_files(
    ds: xr.Dataset, checksums: Path, days: Sequence[Stretch], layout: Layout, marker: store.Marker
) -> None:
    """Write a product's files, then their checksums.

    A file that an earlier attempt at the same export has written stays, unless former checksums say that it has changed
    since. Files that an export of former inputs or settings has left go.

    Parameters
    ----------
    ds : xr.Dataset
        One variable of a product, from `conventions.described`.
    checksums : Path
        From `checksums_of`.
    days : sequence of Stretch
        The days of each file.
    layout : Layout
        How files are cut.
    marker : Marker
        Its id is the export's; it is the last line of the checksums.

    Raises
    ------
    StoreError
        If a file has a name of these files and no export made it: nothing is written then. If the disk refuses.
    """
    stem = checksums.name.removesuffix(CHECKSUMS)
    paths = [checksums.with_name(f"{stem}_{one.dates}.nc") for one in days]
    sums = {path.name: sha256_of(path) for path in paths if export_id_of(path) == marker.id}
    if checksums.exists():
        try:
            former_sums = read_checksums(checksums)
            sums = {name: digest for name, digest in sums.items() if former_sums.get(name, digest) == digest}
        except (StoreError, ValueError):
            sums = {}  # damaged: nothing vouches for the files
        store.remove(checksums)
    # The stem of a different variable may begin with this one.
    dated = re.compile(rf"{re.escape(stem)}_\d{{8}}-\d{{8}}\.nc")
    there = {path for path in checksums.parent.glob("*.nc") if dated.fullmatch(path.name)}
    for former in sorted(there - set(paths)):
        if _attributes(former).get(PRODUCT) == ds.attrs[PRODUCT]:
            store.remove(former)
    for one, path in zip(days, paths, strict=True):
        if path.name not in sums:
            write_netcdf(ds.isel(time=one.days).assign_attrs({EXPORT_ID: marker.id}), path, layout)
            sums[path.name] = sha256_of(path)
    write_checksums(dict(sorted(sums.items())), checksums, marker)


def export_id_of(path: Path) -> str:
    """Return the id of the export that made a file; an empty text if there is no such file.

    Raises
    ------
    StoreError
        If no export of espo_luigi made the file.
    """
    if not path.exists():
        return ""
    if found := _attributes(path).get(EXPORT_ID):
        return found
    raise StoreError(
        f"{path} is there, and no export of espo_luigi made it: move it away, or export into another folder"
    )


def _attributes(path: Path) -> Mapping[str, str]:
    try:
        with netCDF4.Dataset(path) as file:
            return {name: str(getattr(file, name, "")) for name in (EXPORT_ID, PRODUCT)}
    except OSError:
        return {}


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with disk_errors(path, "read"), path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
