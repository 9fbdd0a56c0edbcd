"""The folder of an export: whose it is, and a product's files in it, written file by file, with checksums last."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import h5py
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import StoreError
from espo_luigi.export.netcdf import Layout, Stretch, write_netcdf
from espo_luigi.files import aside_of, load_json, open_regular, write_atomically, write_new
from espo_luigi.replacing import Judge, by_digest, check_ours, digest_of_ours, give_name, is_file, why_not
from espo_luigi.science.netcdf import text_attribute
from espo_luigi.store.disk import disk_errors
from espo_luigi.store.publish import check_replaceable
from espo_luigi.store.table import checksum_pairs, read_checksums, write_checksums

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
            said = load_json(path)
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error}); export into another folder") from error
        told = {name: said.get(name) if isinstance(said, dict) else None for name in asdict(self)}
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
                # It fails if a second run was faster.
                give_name(aside, path)
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

    A file is ours if the former checksums, or the notes of an attempt that was cut short, have its SHA-256: no file
    else is replaced or removed. Files of an earlier attempt at the same export stay. Files that an export of former
    inputs or settings has left go. Raises `StoreError` if a file has a name of these files and is not ours: nothing is
    written then. So it does if the disk refuses.

    Parameters
    ----------
    ds : xr.Dataset
        One variable of a product, from `netcdf.described`, or all variables of an outcome.
    checksums : Path
        From `checksums_of`.
    days : sequence of Stretch
        The days of each file; a file of all without dates in its name has none.
    layout : Layout
        How files are cut.
    marker : Marker
        Its id is the export's; it is the last line of the checksums.
    """
    stem = checksums.name.removesuffix(CHECKSUMS)
    paths = [checksums.with_name("_".join(filter(None, (stem, stretch.dates))) + ".nc") for stretch in days]
    notes = _Notes(checksums.with_name(f".{checksums.name}.espo-notes"))
    noted = notes.read(checksums)
    kept = {path.name: digest for path in paths if (digest := _kept(path, noted, marker.id))}
    notes.begin(noted)
    store.remove(checksums)
    names = {path.name for path in paths}
    for name in sorted(set(noted) - names):
        former = checksums.with_name(name)
        if not why_not(former, by_digest(noted[name])):
            store.remove(former, by_digest(noted[name]))
    for stretch, path in zip(days, paths, strict=True):
        if path.name not in kept:
            cut = ds.isel(time=stretch.days) if "time" in ds.dims else ds
            part = cut.assign_attrs({EXPORT_ID: marker.id})
            kept[path.name] = write_netcdf(part, path, layout, notes.judge(path.name), notes.add)
    write_checksums(dict(sorted(kept.items())), checksums, marker)
    notes.end()


def _kept(path: Path, noted: Mapping[str, Collection[str]], id: str) -> str:
    """The SHA-256 of a file of ours of this very export; "" for other files of ours, and where there is no file.

    Raises `StoreError` if the file is not ours.
    """
    digests = noted.get(path.name, ())
    with disk_errors(path, "read"):
        digest = digest_of_ours(path, lambda descriptor: "" if is_file(descriptor) else "no file")
        if digest and digest[0] in digests:
            with open_regular(path) as opened, h5py.File(opened) as file:
                return digest[0] if text_attribute(file, EXPORT_ID) == id else ""
        check_ours(path, by_digest(digests))
    return ""


class _Notes:
    """The SHA-256 of each file of an unfinished export, noted before the file gets its name: they tell it from others'.

    The hidden file of notes is there from before the former checksums are removed until the new ones are written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, set[str]] = defaultdict(set)

    def read(self, checksums: Path) -> Mapping[str, set[str]]:
        """Return the SHA-256 by name, of the notes and of the former checksums."""
        if checksums.exists():
            check_replaceable(checksums)
        for path in (self._path, checksums):
            if os.path.lexists(path):
                for name, digest in checksum_pairs(path):
                    self._known[name].add(digest)
        return {name: set(digests) for name, digests in self._known.items()}

    def begin(self, noted: Mapping[str, Collection[str]]) -> None:
        """Write what is known."""
        lines = [f"{digest}  {name}\n" for name, digests in sorted(noted.items()) for digest in sorted(digests)]
        with disk_errors(self._path, "write"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, "".join(lines), durable=True, public=True)

    def add(self, path: Path, digest: str) -> None:
        """Note a file that is about to get its name."""
        self._known[path.name].add(digest)
        self.begin(self._known)

    def judge(self, name: str) -> Judge:
        """Return the judge of what stands at a file's name."""
        return by_digest(self._known.get(name, ()))

    def end(self) -> None:
        """Remove the notes."""
        with disk_errors(self._path, "remove"):
            self._path.unlink(missing_ok=True)
