"""A validation of finished products, read as a stranger reads them: a table of checks, each a function of problems."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import re
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import dask
import numpy as np
import pandas as pd
import xarray as xr

from espo_luigi import store
from espo_luigi.audit import sample
from espo_luigi.catalog.files import first_line, is_zarr, open_netcdf
from espo_luigi.config.health_checks import Validation as Thresholds
from espo_luigi.errors import DataError, ParameterError, StoreError
from espo_luigi.export.folder import CHECKSUMS, OWNER_NAME
from espo_luigi.export.netcdf import Layout, described, write_netcdf
from espo_luigi.files import read_object
from espo_luigi.publication import release
from espo_luigi.publication.catalogue import Row, read_rows, row_of
from espo_luigi.publication.products import Product
from espo_luigi.replacing import check_ours
from espo_luigi.science.calendar import joined
from espo_luigi.science.choices import Validated
from espo_luigi.science.finalize import gaps
from espo_luigi.science.possible import limits_in
from espo_luigi.science.quality import flags_name, meanings
from espo_luigi.science.stack import horizontal_dims
from espo_luigi.science.variables import VARIABLES
from espo_luigi.store.table import read_checksums
from espo_luigi.tasks.context import RunContext, context, settings
from espo_luigi.tasks.ensembles import maker_of

_SHOWN = 10
_DATES = re.compile(r"_\d{8}-\d{8}$")
_NO_LAND = xr.DataArray()
# The attributes that a product and its archive of flags share.
_OF_FLAGS = "cat:id", "cat:domain"


class NotDone(Exception):
    """A check cannot be done; the message says why."""


class NotApplicable(NotDone):
    """A check of archives, where there are none."""


@dataclass(frozen=True)
class Check:
    """A check of all products: its problems, or why it was not done."""

    name: Validated
    verdict: Literal["passed", "failed", "not done", "not applicable"]
    details: list[str]


@dataclass(frozen=True)
class Validation:
    """The checks of finished products, the release that was written, and the checks that prevented a release."""

    final: Path
    products: int
    checks: list[Check]
    seconds: float
    release: Path | None
    refused: tuple[str, ...]


@dataclass(frozen=True)
class _Seen:
    """Facts about the data, whose values are read once; no file stays open, as a production has too many.

    `rows` belong to Zarr data. `products` have the share of days with a value (y, x), by variable. `days` are those of
    each product. `flags` have the names of an archive's flags. `problems` were met while reading, by check. An archive
    `is_alone` if no folder was given.
    """

    folder: Path
    files: list[Path]
    is_alone: bool
    run: RunContext | None
    rows: dict[Path, Row] = field(default_factory=dict)
    products: dict[str, xr.Dataset] = field(default_factory=dict)
    days: dict[str, pd.Index] = field(default_factory=dict)
    flags: dict[str, xr.Dataset] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def thresholds(self) -> Thresholds:
        return self.run.config.validation if self.run else Thresholds()

    def need_archives(self) -> None:
        if not any(is_zarr(path.name) for path in self.files):
            raise NotApplicable("these are NetCDF files; validate the archives that they were exported from, too")


def validate(final: Path, progress: Callable[[str], None], version: str = "") -> Validation:
    """Check finished products in blocks. With a `version`, write `RELEASE.json` if the checks pass.

    `final` is a folder of products, an archive, or a folder of NetCDF files. `progress` gets lines about the work.

    Raises
    ------
    ParameterError, StoreError
        If a release is to be of one archive; if there are no products, or `RELEASE.json` is not ours or not writable.
    """
    began, final = time.monotonic(), final.resolve()
    if version and is_zarr(final.name):
        raise ParameterError(f"--release {version}: got {final}, expected the folder of all products of the release")
    unlisted: list[tuple[Path, str]] = []
    folder = final.parent if (is_alone := is_zarr(final.name)) else final
    # Taken before anything is read: a release is of these files.
    examined = {final.name: {}} if is_alone else release.identities(folder, unlisted)
    files = [folder / name for name in examined]
    check_ours(folder / release.RELEASE, release.OF_OURS)
    seen = _Seen(folder, files, is_alone, _run_of(folder))
    seen.problems["checksums"] += [f"{path}: {reason}" for path, reason in unlisted]
    by_product: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        name = path.relative_to(folder).as_posix()
        by_product[name if is_zarr(name) else _DATES.sub("", name.removesuffix(path.suffix))].append(path)
    for name, of_product in by_product.items():
        progress(f"reads {name}")
        try:
            _read(name, of_product, seen)
        # Damaged data may raise nearly anything.
        except Exception as error:
            seen.problems["checksums"].append(f"{name} cannot be read: {first_line(error)}")
    if not seen.products and not any(seen.problems.values()):
        raise StoreError(f"{final} has no daily product, neither Zarr nor NetCDF; expected those of a finished run")
    # A new release does not have the files of the former.
    seen.problems["checksums"] += () if version else release.differences(folder)
    checks = [_checked(name, seen, progress) for name in CHECKS]
    needed = {"failed": {*CHECKS}, "not done": {*CHECKS} - {*seen.thresholds.optional}}
    refused = tuple(check.name for check in checks if version and check.name in needed.get(check.verdict, ()))
    written = release.write_release(folder, version, checks, examined) if version and not refused else None
    return Validation(final, len(seen.products), checks, time.monotonic() - began, written, refused)


def _run_of(folder: Path) -> RunContext | None:
    """The production of luigi.cfg, if the products in the folder are its own, or an export of them."""
    run = context() if settings().config_files else None
    home = run.config.paths.final.absolute() if run else Path()
    is_export = (read_object(folder / OWNER_NAME) or {}).get("products") == str(home)
    return run if is_export or folder.is_relative_to(home.resolve()) else None


def _checked(name: Validated, seen: _Seen, progress: Callable[[str], None]) -> Check:
    progress(f"checks {name}")
    problems = list(seen.problems[name])
    try:
        for problem in CHECKS[name][1](seen):
            problems.append(problem)
    except NotDone as reason:
        if not problems:
            return Check(name, "not applicable" if isinstance(reason, NotApplicable) else "not done", [str(reason)])
    # Damaged data may raise nearly anything, here as above.
    except Exception as error:
        problems.append(f"cannot be done: {first_line(error)}")
    return Check(name, "failed" if problems else "passed", problems)


def _read(name: str, files: list[Path], seen: _Seen) -> None:
    """Open a product, and read all its values once; of statistics as NetCDF the metadata."""
    if not is_zarr(name):
        if _table_of(files[0]):
            return
        parts = [open_netcdf(str(path), (), {"chunks": {}}) for path in files]
        ds = joined(parts) if len(parts) > 1 else parts[0]
        for var in _series(ds):
            if len(units := {str(part[var].attrs.get("units")) for part in parts}) > 1:
                seen.problems["bounds"].append(f"{name}: {var} has different units by file: {', '.join(sorted(units))}")
        seen.problems["cf"] += [problem for path in files for problem in _faults(path)]
        if "time" in ds.dims and (np.diff(ds.indexes["time"]) < timedelta(days=28)).any():
            _read_values(name, ds, seen)
        return
    with store.open_store(files[0]) as ds:
        row = seen.rows[files[0]] = row_of(Product(files[0], store.read_marker(files[0]) or store.Marker("")))
        if any("flag_masks" in da.attrs for da in ds.values()):
            seen.flags[name] = xr.Dataset(dict.fromkeys(ds, 0), attrs=ds.attrs)
        elif row.get("processing_level") == "final" and row.get("xrfreq") == "D":
            _read_values(name, ds, seen)
            with tempfile.TemporaryDirectory() as scratch:
                for var in _series(ds):
                    path, title = Path(scratch) / f"{Path(name).name}+{var}.nc", str(ds.attrs.get("title", name))
                    first = described(ds.isel(time=slice(2)), var, var, {"global": {"title": title}})
                    write_netcdf(first, path, Layout({}))
                    seen.problems["cf"] += _faults(path)


def _read_values(name: str, ds: xr.Dataset, seen: _Seen) -> None:
    """Look at the days; count the days with values by cell, and the impossible values, block by block."""
    table, lazy, y_x = seen.run.config.table if seen.run else VARIABLES, {}, horizontal_dims(ds)
    sea = xr.DataArray(np.zeros([ds.sizes[dim] for dim in y_x], bool), dims=y_x)
    for var, da in _series(ds).items():
        try:
            limits = limits_in(var.removesuffix("Adjust"), str(da.attrs.get("units", "")), table)
        except DataError as error:
            limits = -np.inf, np.inf
            seen.problems["bounds"].append(f"{name}: {error}")
        lazy[var] = da.count("time").data / da.sizes["time"], gaps.count_impossible(da, ds, sea, limits)
    allowed = int(ds.attrs.get(gaps.IMPOSSIBLE_VALUES, 0)) + seen.thresholds.impossible_values
    maps = {}
    for var, (share, blocks) in dask.compute(lazy)[0].items():
        # Most products have the same map, which is kept once.
        known = (one.values for product in seen.products.values() for one in product.values())
        maps[var] = y_x, next((one for one in known if np.array_equal(one, share)), share)
        wrong = [(number, first) for number, first in blocks.flat if number]
        if (number := sum(each for each, _ in wrong)) > allowed:
            told = f"{number} impossible values of {var}, the first {wrong[0][1]}; expected {allowed} at most"
            seen.problems["bounds"].append(f"{name}: {told}")
    days = ds.indexes["time"].floor("D")
    # Most have the same days, too.
    seen.days[name] = next((known for known in seen.days.values() if known.equals(days)), days)
    seen.products[name] = xr.Dataset(maps, {dim: ds[dim].astype("f4") for dim in y_x}, ds.attrs)


def _series(ds: xr.Dataset) -> dict[str, xr.DataArray]:
    """The daily maps of a product."""
    return {str(var): da for var, da in ds.items() if set(da.dims) == {"time", *horizontal_dims(ds)}}


def _table_of(path: Path) -> store.Marker | None:
    """The marker of the table beside a NetCDF file of the same name, whose task made both; None of an export."""
    return None if is_zarr(path.name) else store.read_marker(path.with_suffix(".csv"))


def _id_of(ds: xr.Dataset) -> str:
    """The simulation of a product; no attribute of a NetCDF file has a colon."""
    return str(ds.attrs.get("cat:id", ds.attrs.get("cat_id", "")))


@functools.cache
def _compliance_checker() -> Any:
    if importlib.util.find_spec("compliance_checker") is None:
        return None
    from compliance_checker.runner import CheckSuite, ComplianceChecker

    CheckSuite.load_all_available_checkers()
    return ComplianceChecker


def _faults(path: Path) -> list[str]:
    """What compliance-checker says against a file by CF 1.11, most strictly."""
    if not (checker := _compliance_checker()):
        return []
    with tempfile.NamedTemporaryFile() as report, contextlib.redirect_stdout(io.StringIO()):
        how = {"output_filename": report.name, "output_format": ["json"]}
        checker.run_checker(str(path), ["cf:1.11"], 0, "strict", **how)
        told = json.loads(Path(report.name).read_text())["cf:1.11"]
    kinds = [told[f"{kind}_priorities"] for kind in ("high", "medium", "low")]
    return [f"{path.name}: {message}" for kind in kinds for each in kind for message in each["msgs"]]


def _checksums(seen: _Seen) -> Iterator[str]:
    tables = sorted(seen.folder.rglob(f"*{CHECKSUMS}"))
    summed = {table.with_name(name): told for table in tables for name, told in read_checksums(table).items()}
    yield from (f"{path} is gone, and {CHECKSUMS} has it" for path in summed if not path.exists())
    for path in seen.files:
        if path.suffix == ".zip" and store.is_complete(path):
            with zipfile.ZipFile(path) as archive:
                if member := archive.testzip():
                    yield f"{path}: the CRC-32 of {member} differs from the archive's"
        elif marker := _table_of(path):
            if (maker := maker_of(path)) != marker.id:
                yield f"{path} was made with the marker {maker}; the table beside it has {marker.id}"
        elif not is_zarr(path.name) and (told := summed.get(path)) != (found := release.digest_of(path)):
            yield f"{path} has the SHA-256 {found}; its {CHECKSUMS} of `espo export` has {told}"


def _times(seen: _Seen) -> Iterator[str]:
    """Years that no product has lie between the stretches of a production that only its configuration knows."""
    given = seen.run.config.custom.stretches if seen.run else ()
    every = {year for first, last in given for year in range(int(first), int(last) + 1)}
    every = every or {int(year) for days in seen.days.values() for year in days.year}
    for name, days in seen.days.items():
        calendar = days.calendar if (is_cftime := isinstance(days, xr.CFTimeIndex)) else "standard"
        ends = f"{min(every):04}-01-01", f"{max(every):04}-12-{30 if calendar == '360_day' else 31}"
        whole = xr.date_range(*ends, calendar=calendar, use_cftime=is_cftime)
        expected = whole[np.isin(whole.year, list(every))]
        if len(differ := expected.symmetric_difference(days)):
            yield f"{name}: {len(differ)} days are missing or too many, the first {str(differ[0])[:10]}"
        elif not days.equals(expected):
            yield f"{name}: days are not in order, or there twice"


def _cells(seen: _Seen) -> Iterator[str]:
    lands: dict[bytes, Any] = defaultdict(bool)
    maps: list[tuple[str, Mapping[Any, Any], bytes, str, np.ndarray]] = []
    for name, one in seen.products.items():
        grid = b"".join(one[dim].values.tobytes() for dim in horizontal_dims(one))
        for var, share in one.items():
            maps.append((name, one.attrs, grid, str(var), share.values))
            lands[grid] = lands[grid] | (share.values > 0)
    for name, attrs, grid, var, days in maps:
        allowed = gaps.allowed_gaps(attrs, _NO_LAND) + seen.thresholds.cells_without_data
        lacks = days == 0 if gaps.may_lack_values(attrs, _NO_LAND, var) else days < 1
        if (number := int((lands[grid] & lacks).sum())) > allowed:
            yield f"{name}: {var} lacks days in {number} of {lands[grid].sum()} land cells; expected {allowed} at most"
    if len(maps) < 2:
        raise NotDone("a single map, to which no other tells the land; name the folder of all products")


def _variables(seen: _Seen) -> Iterator[str]:
    found: dict[str, set[str]] = defaultdict(set)
    for one in seen.products.values():
        found[_id_of(one)].update(map(str, one))
    every = set().union(*found.values())
    for id, there in found.items():
        yield from (f"{id} has no {var}, which others have" for var in sorted(every - there))
    if seen.run and not seen.is_alone and seen.folder == seen.run.config.paths.final.resolve():
        products = {(seen.folder / name).resolve(): one for name, one in seen.products.items()}
        for sim_id in seen.run.simulations:
            for var, info in seen.run.archives(sim_id).items():
                if var not in products.get(Path(info.path).resolve(), ()):
                    yield f"{var} of {sim_id} is missing; expected it in {info.path}"


def _cf(_seen: _Seen) -> Iterator[str]:
    if not _compliance_checker():
        raise NotDone("compliance-checker is not installed: pip install compliance-checker")
    yield from ()


def _audit(seen: _Seen) -> Iterator[str]:
    seen.need_archives()
    number = seen.thresholds.sample
    if not number or not seen.run:
        raise NotDone("luigi.cfg names no configuration of these products, or `validation.sample` is 0")
    try:
        found = sample.audit(number, 0)
    except StoreError as error:
        raise NotDone(str(error)) from error
    yield from (f"{number} sample(s): {reason}" for reason, number in found.failures.items())
    yield from map(str, found.differences)
    if not found.rows:
        raise NotDone("; ".join(found.left_out) or "no cell could be compared")


def _catalogue(seen: _Seen) -> Iterator[str]:
    seen.need_archives()
    path = (seen.run and seen.run.config.paths.project_catalog) or seen.folder / "catalog.json"
    if not path.exists():
        raise NotDone(f"there is no {path}; `espo publish` makes it")
    listed = {Path(row["path"]).resolve(): row for row in read_rows(path)[2]}
    for file in listed:
        if file.is_relative_to(seen.folder) and not file.exists():
            yield f"{file}: the catalogue has it, and its file is gone"
    for file, row in seen.rows.items():
        there = listed.get(file.resolve())
        if row and not there:
            yield f"{file}: no row of the catalogue has it"
        elif there and (differ := [name for name in row if name != "path" and there.get(name) != row[name]]):
            yield f"{file}: its row has another {', '.join(differ)}"


def _flags(seen: _Seen) -> Iterator[str]:
    seen.need_archives()
    if not seen.flags and (seen.is_alone or not seen.run or seen.run.config.flagging is None):
        raise NotDone("no archive of flags is beside the products")
    compared = 0
    for name in filter(is_zarr, seen.products):
        product, key = store.open_store(seen.folder / name), [seen.products[name].attrs.get(each) for each in _OF_FLAGS]
        there = [one for one, ds in seen.flags.items() if [ds.attrs.get(each) for each in _OF_FLAGS] == key]
        for var, values in _series(product).items():
            if not (of_it := [one for one in there if flags_name(var) in seen.flags[one]]):
                yield f"{name}: no archive has flags of {var}"
            for one in of_it:
                flags = store.open_store(seen.folder / one)[flags_name(var)]
                if apart := [str(dim) for dim in values.dims if not values.indexes[dim].equals(flags.get_index(dim))]:
                    yield f"{name}: {one} has another {', '.join(apart)}"
                    continue
                masks = {f"{var}_days_{kind}": mask for kind, mask in meanings(flags).items()}
                counts = [str(count) for count in product if str(count).startswith(f"{var}_days_")]
                compared += len(counts)
                days = [((flags & masks.get(count, 0)) > 0).sum("time") for count in counts]
                for count, flagged in zip(counts, dask.compute(*days), strict=True):
                    if number := int((flagged != product[count].fillna(0)).sum()):
                        yield f"{one}: days are flagged in other numbers than {count} has in {number} cells"
    if not compared:
        raise NotDone("no product counts days with which its flags could be compared")


CHECKS: Mapping[Validated, tuple[str, Callable[[_Seen], Iterable[str]]]] = {
    "checksums": ("every file is whole", _checksums),
    "times": ("every day is there", _times),
    "cells": ("all land has values", _cells),
    "variables": ("every variable is there", _variables),
    "bounds": ("units and values are possible", lambda seen: ()),
    "cf": ("compliance-checker accepts CF 1.11", _cf),
    "flags": ("flags are as many as were counted", _flags),
    "audit": ("a sample is what the raw files give", _audit),
    "catalogue": ("catalogue and files agree", _catalogue),
}


def render(found: Validation) -> str:
    """Return the table of checks, with the first problems of each."""
    lines = []
    for check in found.checks:
        lines.append(f"{check.verdict:<14} {check.name:<10} {CHECKS[check.name][0]}")
        lines += [f"{'':<15}{detail}" for detail in check.details[:_SHOWN]]
        lines += [f"{'':<15}… and {len(check.details) - _SHOWN} more"] if len(check.details) > _SHOWN else []
    lines.append(f"{found.products} product(s) in {found.seconds:.0f} s")
    if found.refused:
        lines.append(
            f"no release: {', '.join(found.refused)} must pass (`validation.optional` excuses what is not done)"
        )
    return "\n".join(lines + ([f"{found.release} is written"] if found.release else []))
