"""A validation of finished products, read as a stranger reads them.

To add a check, write a function that yields the problems of what `_Seen` has, and give it a row in `CHECKS`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import dask
import numpy as np
import pandas as pd
import xarray as xr

from espo_luigi import store
from espo_luigi.audit import cells, integrity, outcomes, sample
from espo_luigi.catalog.files import first_line, is_zarr, open_netcdf
from espo_luigi.config.health_checks import Validated
from espo_luigi.config.health_checks import Validation as Thresholds
from espo_luigi.errors import DataError, ParameterError, StoreError
from espo_luigi.export.folder import OWNER_NAME
from espo_luigi.export.netcdf import Layout, described, write_netcdf
from espo_luigi.files import read_object
from espo_luigi.publication import release
from espo_luigi.publication.catalogue import Row, read_rows, row_of
from espo_luigi.publication.products import Product
from espo_luigi.replacing import check_ours
from espo_luigi.science.attributes import CELLS_WITHOUT_DATA, IMPOSSIBLE_VALUES
from espo_luigi.science.chunks import join
from espo_luigi.science.derivations import with_lacking
from espo_luigi.science.finalize import gaps
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.limits import FACTOR_OF_UNITS
from espo_luigi.science.possible import limits_in, totalled
from espo_luigi.science.quality import flags_name, is_flags
from espo_luigi.science.units import convert_to, threshold_in
from espo_luigi.science.variables import VARIABLES, variable
from espo_luigi.tasks.context import RunContext, context, settings
from espo_luigi.tasks.outcomes import chosen

_SHOWN = 10
# The part of a NetCDF file's name that is not the product's.
_OF_A_FILE = re.compile(r"(_\d{8}-\d{8})?\.nc4?$")
_A_MONTH = np.timedelta64(28, "D")
_NO_LAND = xr.DataArray()
# The checks of archives, which NetCDF files cannot pass or fail.
_OF_ARCHIVES = ("magnitudes", "flags", "audit", "catalogue")
_OF_PRODUCTS = ("times", "cells", "variables", "bounds")
_VERSION = re.compile(r"\w[\w.+-]*", re.ASCII)
_NO_RUN = "luigi.cfg in the present folder names no configuration of these products"
# The checks that compare products with each other only if there is no configuration.
_OF_EACH_OTHER = ("times", "cells", "variables")
# So many cells are compared with the reference.
_CELLS = 16


class NotDone(Exception):
    """A check cannot be done; the message says why."""


@dataclass(frozen=True)
class Check:
    """A check of all products: its problems, why it was not done, or what it has left out."""

    name: Validated
    verdict: Literal["passed", "failed", "not done", "not applicable"]
    details: list[str]


@dataclass(frozen=True)
class Validation:
    """The checks of finished products, the release that was written, and the checks that prevented a release."""

    products: int
    checks: list[Check]
    release: Path | None
    refused: tuple[str, ...]
    signed: bool = False


@dataclass(frozen=True)
class _Product:
    """A daily product, and the facts that a single reading of its values gives.

    `of` has its simulation and domain. `shares` are maps (y, x) of the share of days with a value, by variable.
    """

    name: str
    files: list[Path]
    of: tuple[str, ...]
    attrs: Mapping[Any, Any]
    days: pd.Index
    grid: bytes
    shares: Mapping[str, np.ndarray]
    units: Mapping[str, str]
    impossible: list[str]


@dataclass(frozen=True)
class _Seen:
    """The facts that checks look at. No file stays open, as a production has too many.

    `files` can be read. `rows` are those that a catalogue should have, `lands` are maps (y, x), by grid. Archives of
    `flags`, and `outcomes` (indicators and statistics of them), belong to a simulation and a domain. `examined` are
    all archives, stores and NetCDF files, by name.
    """

    folder: Path
    is_alone: bool
    version: str | None
    run: RunContext | None
    thresholds: Thresholds
    unreadable: Sequence[tuple[Path, str]]
    examined: Collection[str] = ()
    files: list[Path] = field(default_factory=list)
    products: list[_Product] = field(default_factory=list)
    rows: dict[Path, Row] = field(default_factory=dict)
    lands: dict[bytes, np.ndarray] = field(default_factory=dict)
    flags: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    outcomes: dict[Path, tuple[str, ...]] = field(default_factory=dict)

    @functools.cached_property
    def reference(self) -> list[xr.DataArray]:
        """The land of each piece of the reference; none if unknown, or if products are cut to their simulations."""
        with contextlib.suppress(StoreError):
            if self.run and not any(map(self.run.is_regional, self.run.simulations)):
                return [land.grid["land"] for land in cells.lands(self.run)]
        return []


def validate(
    final: Path, progress: Callable[[str], None], version: str | None = None, key: Path | None = None
) -> Validation:
    """Check finished products in blocks. With a `version`, write `RELEASE.json` if the checks pass.

    A `key` of ssh-keygen signs it. `final` is a folder of products, an archive, or a folder of NetCDF files. `progress`
    gets lines about the work.

    Raises
    ------
    ParameterError, StoreError
        If a release is to be of one archive, or its version is none; if there are no products, or `RELEASE.json` is not
        ours or not writable, or has files behind links out of the folder.
    """
    final = final.resolve()
    if not (final.is_dir() or (is_zarr(final.name) and final.exists())):
        raise StoreError(f"{final} is no folder and no archive; expected finished products (paths.final)")
    if version is not None and (is_zarr(final.name) or not _VERSION.fullmatch(version)):
        expected = "the folder of all products, and a version of letters, digits, and . _ + - (such as 1.0)"
        raise ParameterError(f"--release: got {final} and the version {version!r}; expected {expected}")
    unreadable: list[tuple[Path, str]] = []
    folder = final.parent if (is_alone := is_zarr(final.name)) else final
    # Taken before anything is read: a release is of these files.
    examined = {final.name: {}} if is_alone else release.states(folder, unreadable)
    check_ours(folder / release.RELEASE, release.OF_OURS)
    check_ours(folder / release.SIGNATURE, release.SIGNATURE_OF_OURS)
    if version:
        release.check_inside(folder, examined)
    run = _run_of(folder)
    seen = _Seen(folder, is_alone, version, run, run.config.validation if run else Thresholds(), unreadable, examined)
    by_product: dict[str, list[Path]] = defaultdict(list)
    for name in (name for name in examined if not name.endswith((".csv", f".{store.MARKER_NAME}"))):
        by_product[_OF_A_FILE.sub("", name)].append(folder / name)
    for name, files in by_product.items():
        progress(f"reads {name}")
        try:
            _read(name, files, seen)
        # Damaged data may raise nearly anything.
        except Exception as error:
            unreadable.append((Path(name), f"cannot be read: {first_line(error)}"))
        else:
            seen.files.extend(files)
    if not seen.products and not unreadable:
        raise StoreError(f"{final} has no daily product, neither Zarr nor NetCDF; expected those of a finished run")
    checks = [_checked(name, seen, progress) for name in CHECKS]
    needed = {"failed": {*CHECKS}, "not done": {*CHECKS} - {*seen.thresholds.optional}}
    refused = tuple(check.name for check in checks if version and check.name in needed.get(check.verdict, ()))
    written = release.write_release(folder, version, checks, examined, key) if version and not refused else None
    return Validation(len(seen.products), checks, written, refused, bool(written and key))


def _run_of(folder: Path) -> RunContext | None:
    """The production of luigi.cfg, if the products in the folder are its own, or an export of them."""
    run = context() if settings().config_files else None
    home = run.config.paths.final.absolute() if run else Path()
    is_export = (read_object(folder / OWNER_NAME) or {}).get("products") == str(home)
    return run if is_export or folder.is_relative_to(home.resolve()) else None


def _checked(name: Validated, seen: _Seen, progress: Callable[[str], None]) -> Check:
    progress(f"checks {name}")
    if name in _OF_ARCHIVES and not seen.rows:
        why = "no archive can be read; of NetCDF files, validate the archives that they were exported from, too"
        return Check(name, "not applicable", [why])
    if name in _OF_PRODUCTS and not seen.products:
        return Check(name, "not applicable", ["no daily product could be read"])
    if name == "outcomes" and not seen.outcomes:
        return Check(name, "not applicable", ["there are no indicators"])
    problems: list[str] = []
    is_poor = name in _OF_EACH_OTHER and not seen.run
    remarks = [f"products were compared with each other only: {_NO_RUN}"] if is_poor else []
    try:
        for problem in CHECKS[name][1](seen):
            (remarks if isinstance(problem, integrity.Remark) else problems).append(problem)
    except NotDone as reason:
        if not problems:
            return Check(name, "not done", [str(reason)])
    # Damaged data may raise nearly anything, here as above.
    except Exception as error:
        problems.append(f"cannot be done: {first_line(error)}")
    return Check(name, "failed" if problems else "passed", problems or remarks)


def _open(files: Sequence[Path]) -> xr.Dataset:
    if is_zarr(files[0].name):
        return store.open_store(files[0])
    parts = [open_netcdf(str(path), (), {"chunks": {}}) for path in files]
    # Units that differ from file to file are none.
    ds: xr.Dataset = join(parts, "time", "drop_conflicts") if len(parts) > 1 else parts[0]
    # CORDEX-Adjust names variables so.
    return ds.rename({var: str(var).removesuffix("Adjust") for var in ds})


def _read(name: str, files: list[Path], seen: _Seen) -> None:
    """Open a product, and read all values of a daily product."""
    with _open(files) as ds:
        marker = (store.read_marker(files[0]) if is_zarr(name) else None) or store.Marker("")
        # No attribute of a NetCDF file has a colon.
        named = ("id", "domain", "xrfreq")
        id, domain, freq = (str(ds.attrs.get(f"cat:{each}", ds.attrs.get(f"cat_{each}", ""))) for each in named)
        # `change_attr_prefix` may have taken the id.
        of = id or marker.parameters.get("sim_id", ""), domain
        if is_zarr(name):
            seen.rows[files[0]] = row_of(Product(files[0], marker))
        is_final = seen.rows.get(files[0], {}).get("processing_level") in (None, "", "final")
        if any(map(is_flags, ds)):
            seen.flags[files[0]] = of
        elif is_final and "time" in ds.dims and (np.diff(ds.indexes["time"]) < _A_MONTH).any():
            seen.products.append(_look(name, files, of, ds, seen))
        elif freq not in ("", "D", "fx"):
            seen.outcomes[files[0]] = of


def _look(name: str, files: list[Path], of: tuple[str, ...], ds: xr.Dataset, seen: _Seen) -> _Product:
    """Count the days with values of each cell, and the impossible values, block by block."""
    y_x, table, impossible, lazy = horizontal_dims(ds), seen.run.config.table if seen.run else VARIABLES, [], {}
    series = {str(var): da for var, da in ds.items() if set(da.dims) == {"time", *y_x}}
    units = {var: str(da.attrs.get("units", "")) for var, da in series.items()}
    # tasmin, which comes later, must not be above.
    warmest = next((each for each in seen.products if each.of == of and of[0] and "tasmax" in each.shares), None)
    if warmest and "tasmax" not in ds:
        ds = ds.assign(tasmax=_open(warmest.files)["tasmax"])
    sea = xr.DataArray(np.zeros([ds.sizes[dim] for dim in y_x], bool), dims=y_x)
    for var, da in series.items():
        try:
            limits = limits_in(var, units[var], table)
        except DataError as error:
            limits = -np.inf, np.inf
            impossible.append(f"{name}: {error}")
        lazy[var] = da.count("time").data / da.sizes["time"], gaps.count_impossible(da, ds, sea, limits)
    allowed = int(ds.attrs.get(IMPOSSIBLE_VALUES, 0)) + seen.thresholds.impossible_values
    grid = b"".join(ds[dim].values.astype("f4").tobytes() for dim in y_x)
    shares, land = dict[str, np.ndarray](), seen.lands.get(grid, sea.values)
    # NetCDF files may have rounded coordinates, which the reference lacks.
    with contextlib.suppress(KeyError):
        land = land | gaps.join_land(seen.reference, ds).transpose(*y_x).values if seen.reference else land
    for var, (share, blocks) in dask.compute(lazy)[0].items():
        land = land | (share > 0)
        # Most products have the same map and the same days, which are kept once.
        known = (former for product in seen.products for former in product.shares.values())
        shares[var] = next((former for former in known if np.array_equal(former, share)), share)
        number, first = totalled(blocks)
        if number > allowed:
            which = f"{number} impossible values of {var}, the first {first}"
            impossible.append(f"{name}: {which}; expected {allowed} at most")
    seen.lands[grid], days = land, ds.indexes["time"].floor("D")
    days = next((product.days for product in seen.products if product.days.equals(days)), days)
    return _Product(name, files, of, ds.attrs, days, grid, shares, units, impossible)


def _checksums(seen: _Seen) -> Iterator[str]:
    yield from (f"{path}: {reason}" for path, reason in seen.unreadable)
    read = [path for product in seen.products for path in product.files]
    yield from integrity.checksums(seen.folder, seen.files, read)
    # A new release does not have the files of the former.
    only = [path.name for path in seen.files] if seen.is_alone else ()
    yield from () if seen.version else release.differences(seen.folder, only=only)


def _files(seen: _Seen) -> Iterator[str]:
    if seen.is_alone:
        raise NotDone("a single archive was given; give the folder of all")
    yield from integrity.strays(seen.folder, seen.examined)


def _times(seen: _Seen) -> Iterator[str]:
    """Years that no product has lie between the stretches of a production that only its configuration knows."""
    given = seen.run.config.custom.stretches if seen.run else ()
    every = {year for first, last in given for year in range(int(first), int(last) + 1)}
    every = every or {int(year) for product in seen.products for year in product.days.year}
    for name, days in ((product.name, product.days) for product in seen.products):
        calendar = days.calendar if (is_cftime := isinstance(days, xr.CFTimeIndex)) else "standard"
        ends = f"{min(every):04}-01-01", f"{max(every):04}-12-{30 if calendar == '360_day' else 31}"
        whole = xr.date_range(*ends, calendar=calendar, use_cftime=is_cftime)
        expected = whole[np.isin(whole.year, list(every))]
        if len(differ := expected.symmetric_difference(days)):
            yield f"{name}: {len(differ)} days are missing or too many, the first {str(differ[0])[:10]}"
        elif not days.equals(expected):
            yield f"{name}: days are not in order, or there twice"


def _cells(seen: _Seen) -> Iterator[str]:
    """Land is where the reference has it, if that is known, and where any product of the same grid has values."""
    maps = [(product, var, share) for product in seen.products for var, share in product.shares.items()]
    if len(maps) < 2 and not seen.reference:
        raise NotDone("neither the reference nor a second map tells where land is; name the folder of all products")
    always = seen.thresholds.cells_without_data + sum(gaps.allowed_gaps({}, land) for land in seen.reference)
    for product, var, share in maps:
        allowed, land = always + gaps.allowed_gaps(product.attrs, _NO_LAND), seen.lands[product.grid]
        # Cells that a product counts lack years. Single days of any cell are missing for other reasons only.
        others = {name: value for name, value in product.attrs.items() if name != CELLS_WITHOUT_DATA}
        lacks = share == 0 if gaps.may_lack_values(others, _NO_LAND, var) else share < 1
        if (number := int((land & lacks).sum())) > allowed:
            yield f"{product.name}: {var} lacks days in {number} of {land.sum()} land cells; expected {allowed} at most"


def _variables(seen: _Seen) -> Iterator[str]:
    found: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for product in seen.products:
        found[product.of].update(product.shares)
    for (id, domain), there in found.items():
        every = set().union(*(names for of, names in found.items() if of[1] == domain))
        yield from (f"{id} has no {var} of {domain}, which others have" for var in sorted(every - there))
    if seen.run and not seen.is_alone and seen.folder == seen.run.config.paths.final.resolve():
        kept = {(product.files[0].resolve(), var) for product in seen.products for var in product.shares}
        for sim_id in seen.run.simulations:
            for var, info in seen.run.archives(sim_id).items():
                if (Path(info.path).resolve(), var) not in kept:
                    yield f"{var} of {sim_id} is missing; expected it in {info.path}"


def _bounds(seen: _Seen) -> Iterator[str]:
    units: dict[str, dict[str, str]] = defaultdict(dict)
    for product in seen.products:
        yield from product.impossible
        for var, unit in product.units.items():
            units[var].setdefault(unit, product.name)
    for var, of in units.items():
        if len(of) > 1:
            yield f"{var} has different units: {', '.join(f'{unit!r} in {name}' for unit, name in of.items())}"


def _magnitudes(seen: _Seen) -> Iterator[str]:
    """Wrong units of all products alike show in the size of values: of some cells, in the reference's years."""
    extracted = {path: row for path, row in seen.rows.items() if row.get("processing_level") == "extracted"}
    stores = [path for path, row in extracted.items() if row.get("type") != "simulation"]
    if not (stores := stores[:: max(1, len(stores) // 4)][:4]):
        raise NotDone("the folder has no daily values of the reference")
    means: dict[tuple[str, str, str], list[list[float]]] = defaultdict(list)
    for product in (each for each in seen.products if is_zarr(each.name)):
        for path in stores:
            with _open(product.files) as ds, _open([path]) as of:
                y, x = horizontal_dims(ds)
                of = of.stack(loc=(y, x)) if y in of.dims else of
                rows, columns = (ds.indexes[dim].get_indexer(of[dim].values) for dim in (y, x))
                is_land = next(iter(product.shares.values()))[rows, columns] > 0
                at = np.flatnonzero((rows >= 0) & (columns >= 0) & is_land)
                at = at[:: max(1, at.size * len(stores) // _CELLS)]
                cut = {dim: xr.DataArray(own[at], dims="loc") for dim, own in ((y, rows), (x, columns))}
                years = slice(*(f"{int(year):04}" for year in of["time"].dt.year.values[[0, -1]]))
                for var in {*product.shares} & {*of}:
                    theirs = convert_to(of[var].isel(loc=at), product.units[var])
                    pair = abs(ds[var].isel(cut).sel(time=years)).mean(), abs(theirs).mean()
                    if np.isfinite(sizes := [float(size) for size in dask.compute(*pair)]).all():
                        means[product.name, var, product.units[var]].append(sizes)
    for (name, var, units), pairs in means.items():
        ours, theirs = np.mean(pairs, axis=0)
        known = variable(var)
        # Of snow or rain that hardly falls, means of some cells differ by any factor.
        least = threshold_in(f"{10 * known.jitter!r} {known.units}", units) if known.jitter else 0.0
        if theirs and max(ours, theirs) > max(least, FACTOR_OF_UNITS * min(ours, theirs)):
            told = f"a mean of {ours:.3g} {units} in some cells and the reference's years, the reference {theirs:.3g}"
            yield f"{name}: {var} has {told}; expected at most a factor of {FACTOR_OF_UNITS}: are the units right?"
    if not means:
        raise NotDone("the reference has no variable of the products")


def _outcomes(seen: _Seen) -> Iterator[str]:
    again = 0
    for path, of in seen.outcomes.items():
        with _open([path]) as ds:
            yield from integrity.told(path, (f"{path}: {problem}" for problem in outcomes.out_of_order(ds)))
            is_sampled = seen.thresholds.sample and seen.rows.get(path, {}).get("processing_level") == "indicators"
            if seen.run and is_sampled:
                again += 1
                found = _made_again(seen, seen.run, of, ds)
                yield from integrity.told(path, (f"{path}: {problem}" for problem in found))
    if not again:
        why = "`validation.sample` is 0, or no archive has them" if seen.run else _NO_RUN
        yield integrity.Remark(f"no indicators of scenarios were computed again: {why}")


def _made_again(seen: _Seen, run: RunContext, of: tuple[str, ...], ds: xr.Dataset) -> Iterator[str]:
    """Compute some cells again from the products, those first that lack a value."""
    own = [product for product in seen.products if product.of == of and is_zarr(product.name)]
    if not own:
        yield "the folder has no days of which it was made"
        return
    y, x = horizontal_dims(ds)
    at = outcomes.sample_of(ds, seen.lands[own[0].grid], seen.thresholds.sample)
    rows, columns = np.unravel_index(at, (ds.sizes[y], ds.sizes[x]))
    cut = {y: xr.DataArray(rows, dims="cell"), x: xr.DataArray(columns, dims="cell")}
    days = xr.merge([_open(each.files)[list(each.shares)].isel(cut) for each in own], combine_attrs="drop_conflicts")
    days = with_lacking(days.load(), run.config.derived, run.config.table)
    spans = run.needed("indicators").periods or run.config.custom.stretches
    ds, ours = outcomes.comparable(ds, chosen(run)[ds.attrs["cat:xrfreq"]])
    yield from outcomes.differences(ds.isel(cut).load(), days, ours, spans)


def _cf(seen: _Seen) -> Iterator[str]:
    if importlib.util.find_spec("compliance_checker") is None:
        raise NotDone("compliance-checker is not installed: pip install compliance-checker")
    for path in seen.files:
        # A region has no place in the order of axes that the checker recommends.
        if not is_zarr(path.name) and not integrity.has_table(path):
            yield from _faults(path)
    for product in seen.products:
        if is_zarr(product.name):
            with tempfile.TemporaryDirectory() as scratch, _open(product.files) as ds:
                for var in product.shares:
                    path, title = Path(scratch) / f"{Path(product.name).name}+{var}.nc", ds.attrs.get("title", var)
                    first = described(ds.isel(time=slice(2)), var, var, {"global": {"title": str(title)}})
                    write_netcdf(first, path, Layout({}))
                    yield from _faults(path)


def _faults(path: Path) -> list[str]:
    """What compliance-checker says against a file by CF 1.11, most strictly."""
    import requests
    from compliance_checker.runner import CheckSuite, ComplianceChecker

    # Attributes of the file name versions of tables and taxa, which the checker would ask servers for.
    offline = mock.patch("requests.sessions.Session.request", side_effect=requests.ConnectionError("checked offline"))
    CheckSuite.load_all_available_checkers()
    with tempfile.NamedTemporaryFile() as report, contextlib.redirect_stdout(io.StringIO()), offline:
        how = {"output_filename": report.name, "output_format": ["json"]}
        ComplianceChecker.run_checker(str(path), ["cf:1.11"], 0, "strict", **how)
        found = json.loads(Path(report.name).read_text())["cf:1.11"]
    results = [each for kind in ("high", "medium", "low") for each in found[f"{kind}_priorities"]]
    # The checker has words on calendars that pass, too: `value` is the number of points, and the most possible.
    faults = [each["msgs"] for each in results if each["value"][0] < each["value"][1]]
    return [f"{path.name}: {message}" for messages in faults for message in messages]


def _flags(seen: _Seen) -> Iterator[str]:
    if not seen.flags and (seen.is_alone or not seen.run or seen.run.config.flagging is None):
        why = "a single archive was given; give the folder of all" if seen.is_alone else "the folder has none"
        raise NotDone(f"no archive of flags: {why}")
    for product in (each for each in seen.products if is_zarr(each.name)):
        archives = [_open([path]) for path, of in seen.flags.items() if of == product.of]
        ds, flags = _open(product.files), xr.Dataset({name: bits for each in archives for name, bits in each.items()})
        if missing := [var for var in product.shares if flags_name(var) not in flags]:
            yield f"{product.name}: no archive has flags of {', '.join(missing)}"
        elif apart := [str(dim) for dim, index in flags.indexes.items() if not index.equals(ds.indexes[dim])]:
            yield f"{product.name}: its flags have another {', '.join(apart)}"


def _audit(seen: _Seen) -> Iterator[str]:
    if not seen.run:
        raise NotDone(_NO_RUN)
    if not (number := seen.thresholds.sample):
        raise NotDone("`validation.sample` is 0")
    try:
        found = sample.audit(number, 0)
    except StoreError as error:
        raise NotDone(str(error)) from error
    yield from (f"{number} sample(s): {reason}" for reason, number in found.failures.items())
    yield from map(str, found.differences)
    if not found.rows:
        raise NotDone("; ".join(found.left_out) or "no cell could be compared")


def _catalogue(seen: _Seen) -> Iterator[str]:
    path = (seen.run and seen.run.config.paths.project_catalog) or seen.folder / "catalog.json"
    if not path.exists():
        raise NotDone(f"there is no {path}; `espo publish` makes it")
    listed = {Path(row["path"]).resolve(): row for row in read_rows(path)[2]}
    gone = (file for file in listed if file.is_relative_to(seen.folder) and not file.exists())
    problems = [f"{file}: the catalogue has it, and its file is gone" for file in gone]
    for file, row in seen.rows.items():
        there = listed.get(file.resolve())
        if row and not there:
            problems.append(f"{file}: no row of the catalogue has it")
        elif there and (differ := [name for name in row if name != "path" and there.get(name) != row[name]]):
            problems.append(f"{file}: its row has another {', '.join(differ)}")
    if problems:
        yield f"{len(problems)} file(s) differ: if they were made since, as by `espo export`, `espo publish` adds them"
    yield from problems


CHECKS: Mapping[Validated, tuple[str, Callable[[_Seen], Iterable[str]]]] = {
    "checksums": ("every file is whole", _checksums),
    "files": ("every file belongs to a product", _files),
    "times": ("every day is there", _times),
    "cells": ("all land has values", _cells),
    "variables": ("every variable is there", _variables),
    "bounds": ("units and values are possible", _bounds),
    "magnitudes": ("values are as large as the reference's", _magnitudes),
    "outcomes": ("indicators are those of the products, and in order", _outcomes),
    "cf": ("compliance-checker accepts CF 1.11", _cf),
    "flags": ("all values have flags", _flags),
    "audit": ("a sample is what the raw files give", _audit),
    "catalogue": ("catalogue and files agree", _catalogue),
}


def render(found: Validation) -> str:
    """Return the table of checks: what is true if nothing was left out, or else the first problems of each."""
    lines = []
    for check in found.checks:
        lines.append(f"{check.verdict:<14} {check.name:<10} {'' if check.details else CHECKS[check.name][0]}".rstrip())
        lines += [f"{'':<15}{detail}" for detail in check.details[:_SHOWN]]
        lines += [f"{'':<15}… and {len(check.details) - _SHOWN} more"] if len(check.details) > _SHOWN else []
    lines.append(f"{found.products} product(s)")
    why = f"{', '.join(found.refused)} must pass (`validation.optional` excuses what is not done)"
    lines += [f"no release: {why}"] if found.refused else []
    how = f"signed by {release.SIGNATURE}" if found.signed else f"{release.UNSIGNED} (`--sign KEY`)"
    return "\n".join(lines + ([f"{found.release} is written, {how}"] if found.release else []))
