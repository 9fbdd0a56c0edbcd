"""Finding all problems of a dataset's files; opening it stops at the first."""

from __future__ import annotations

import itertools
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import dask
import numpy as np
import xarray as xr

from espo_luigi.catalog.cmip7 import NAMES_IN_FILES
from espo_luigi.catalog.criteria import Period
from espo_luigi.catalog.files import is_zarr, open_zarr, zarr_store
from espo_luigi.catalog.open import on_grid_of, open_years, single, wanted_of, within
from espo_luigi.catalog.read import Asset
from espo_luigi.catalog.search import Match
from espo_luigi.errors import DataError
from espo_luigi.science.calendar import calendar_of, day_of
from espo_luigi.science.extract.dataset import as_maps
from espo_luigi.science.extract.input_fills import doubtful_fill
from espo_luigi.science.extract.input_problems import (
    Problem,
    RawSeries,
    day_problems,
    end_problems,
    is_daily,
    neighbour_problems,
)
from espo_luigi.science.extract.input_values import value_problems
from espo_luigi.science.geometry.cells import COORDINATE_NAMES, cells_in
from espo_luigi.science.geometry.cutting import beyond_the_grid, subset_boxes
from espo_luigi.science.limits import INPUT_PROBLEMS
from espo_luigi.science.variables import VARIABLES, Limits, Variable, variable

logger = logging.getLogger(__name__)

# The most of one variable that is in memory at a time, unless a stored chunk is larger.
BLOCK_BYTES = 64 * 1024**2
# To compare the names of more chunks of an array takes some ten seconds.
MOST_CHUNKS = 5_000_000
# The problems after which a file is not examined any further.
LOST = {name for name, kind in INPUT_PROBLEMS.items() if kind.counts == "files" and not kind.may_warn}


@dataclass
class _Held:
    """The opened files, split by variable, and the problems of all files."""

    pieces: list[tuple[str, xr.Dataset]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    told: dict[tuple[str, str], tuple[str, float | None, Variable, Mapping[str, Any]]] = field(default_factory=dict)
    """By file and variable, the last fields of `RawSeries`."""


def examine_match(
    match: Match,
    *,
    period: Period,
    regions: Sequence[Mapping[str, Any]],
    limits: Mapping[str, Limits],
    mask_variable: str = "",
    calibration: Period | None = None,
    xr_open_kwargs: Mapping[str, Any] | None = None,
    may_lack: Sequence[str] = (),
    masked: Callable[[xr.Dataset], xr.Dataset] | None = None,
    scopes: Sequence[tuple[Mapping[str, Any], Mapping[str, Limits]]] = (),
    table: Mapping[str, Variable] = VARIABLES,
) -> list[Problem]:
    """Return the problems of a match's files, each kind once for a file; reads the files once.

    Parameters
    ----------
    match : Match
        A result of `Catalog.search`.
    period, regions
        The part that will be extracted: years, both included, and boxes as of `geometry.cutting.subset_box`. Only this
        part is read.
    limits
        The possible values of each variable, in canonical units.
    mask_variable
        The variable whose first map marks the land, if any.
    calibration
        The years whose days are counted apart in each cell, too.
    xr_open_kwargs, may_lack : optional
        As of `open_match`.
    masked : optional
        A function that takes out the values of cells that will not be used, lazily.
    scopes : optional
        Further limits, each of a part of the regions (`geometry.cells.cells_in`). A scope without cells is logged.
    table : mapping
        What is known of variables.
    """
    may_lack = [*may_lack, *match.days_lacking]
    held = _open(match, period, dict(xr_open_kwargs or {}), table)
    problems = held.problems
    series: dict[str, list[RawSeries]] = {}
    for file, piece in _on_one_grid(_in_one_calendar(held.pieces, problems), problems):
        name = _named(piece)
        piece = masked(piece) if masked else piece
        series.setdefault(name, []).append(RawSeries(file, piece[name], may_lack, *held.told[file, name]))
    # The catalogue's dates do not count.
    explained = {name for problem in problems for name in problem.variable.split(",")} | series.keys()
    message = f"no file has a day of {period[0]}-{period[1]}; correct the dates in the catalogue"
    absent = [name for name in match.variables if name not in explained]
    problems += [Problem("missing_days", message, variable=name) for name in absent]
    lost = {name for problem in problems if problem.kind in LOST for name in problem.variable.split(",")}
    for name, files in series.items():
        problems += [problem for raw in files for problem in day_problems(raw)]
        # Days that lie in a file that cannot be used do not count as missing, too.
        problems += [] if name in lost else [*neighbour_problems(files), *end_problems(files, period)]
    daily = {name: [raw for raw in files if is_daily(raw)] for name, files in series.items()}
    # One process, one thread: reading is what takes its time, and HDF5 lets one thread read.
    with dask.config.set(scheduler="synchronous"):
        cut = _cut(daily, regions, problems)
        problems += value_problems(cut, limits, mask_variable, calibration, list(_cells_of(scopes, cut, match)))
    return problems


def _open(match: Match, period: Period, open_kwargs: dict[str, Any], table: Mapping[str, Variable]) -> _Held:
    held = _Held()
    for name, asset in match.fixed.items():
        held.problems += _missing_chunks(asset, [name], period, open_kwargs)
    for asset in match.assets:
        held.problems += _missing_chunks(asset, wanted_of(asset, match), period, open_kwargs)
        try:
            ds = within(open_years(asset, match, open_kwargs, BLOCK_BYTES, table), (period,))
        except DataError as error:
            held.problems.append(Problem("unreadable_files", str(error), asset.path, ",".join(wanted_of(asset, match))))
            continue
        for name in wanted_of(asset, match) if ds.sizes["time"] else ():
            kind = "grids"
            units, known = str(ds[name].attrs.get("units", "")), variable(name, table)
            try:
                as_maps(ds[name])
                kind = "units"
                held.pieces.append((asset.path, single(ds, name, asset, table)))
                given = ds[name].attrs | ds[name].encoding
                fills = {key: given[key] for key in ("_FillValue", "missing_value") if key in given}
                held.told[asset.path, name] = units, doubtful_fill(ds[name], table), known, fills
            except DataError as error:
                held.problems.append(Problem(kind, str(error), asset.path, name))
    return held


def _missing_chunks(
    asset: Asset, names: Sequence[str], period: Period, open_kwargs: Mapping[str, Any]
) -> Iterator[Problem]:
    if not is_zarr(asset.path, asset.columns.get("format", "")):
        return
    years = int(period[0][:4]), int(period[1][:4])
    try:
        found = missing_chunks(asset.path, names, years, open_kwargs)
    # A backend may raise nearly anything on a damaged store; opening it reports that.
    except Exception:
        return
    for lacking in found:
        message = (
            f"{len(lacking.keys)} of {lacking.wanted} chunks are not in the store, the first of them "
            f"{lacking.keys[0]}: the copy is not complete, or its writer left out chunks of fill values. "
            "Copy the store again. If the fill values are real, set `extraction.on_input_problem.missing_chunks: warn`"
        )
        day = "" if lacking.day is None else day_of(lacking.day)
        yield Problem("missing_chunks", message, asset.path, lacking.array, day, count=len(lacking.keys))


def _named(piece: xr.Dataset) -> str:
    return str(next(iter(piece.data_vars)))


def _in_one_calendar(
    pieces: Sequence[tuple[str, xr.Dataset]], problems: list[Problem]
) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield the files in the calendar that most of them have."""
    calendars = [calendar_of(piece) for _, piece in pieces]
    usual = Counter(calendars).most_common(1)[0][0] if calendars else ""
    for (file, piece), calendar in zip(pieces, calendars, strict=True):
        if calendar == usual:
            yield file, piece
        else:
            first = day_of(piece["time"].values[0])
            message = f"the calendar is {calendar}, and {usual} in other files; expected one"
            problems.append(Problem("calendars", message, file, _named(piece), first))


def _on_one_grid(pieces: Iterator[tuple[str, xr.Dataset]], problems: list[Problem]) -> Iterator[tuple[str, xr.Dataset]]:
    """Yield the files on the grid of the first file, with its coordinates."""
    first_file, first = next(pieces, ("", xr.Dataset()))
    if first_file:
        yield first_file, first
    for file, piece in pieces:
        placed = on_grid_of(first, piece)
        if placed is None:
            message = f"latitudes or longitudes are not those of {first_file}; expected one grid"
            problems.append(Problem("grids", message, file, _named(piece)))
            continue
        problems += _round_off(first_file, first, file, placed)
        yield file, placed.assign_coords({name: first[name] for name in ("lat", "lon")})


def _round_off(first_file: str, first: xr.Dataset, file: str, piece: xr.Dataset) -> Iterator[Problem]:
    # Cells without coordinates have none in either file.
    apart = {name: np.nan_to_num(np.abs(piece[name].values - first[name].values)) for name in ("lat", "lon")}
    far = {name: float(values.max()) for name, values in apart.items()}
    if not any(far.values()):
        return
    name = max(far, key=far.__getitem__)
    place = np.unravel_index(int(apart[name].argmax()), apart[name].shape)
    at = float(piece[name].values[place])
    message = f"{name} differs by up to {far[name]:.1g} degrees from {first_file}, whose coordinates are taken"
    yield Problem(
        "coordinates_by_round_off",
        message,
        file,
        _named(piece),
        lat=at if name == "lat" else None,
        lon=at if name == "lon" else None,
        value=far[name],
        count=sum(int((values > 0).sum()) for values in apart.values()),
    )


def _cut(
    series: Mapping[str, Sequence[RawSeries]], regions: Sequence[Mapping[str, Any]], problems: list[Problem]
) -> dict[str, list[RawSeries]]:
    """Cut all files to the boxes; return nothing if these do not fit their grid."""
    first = next((raw for files in series.values() for raw in files), None)
    if first is None:
        return {}
    try:
        cut = {
            name: [replace(raw, data=subset_boxes(raw.data.to_dataset(), regions)[name]) for raw in files]
            for name, files in series.items()
        }
    except DataError as error:
        problems.append(Problem("grids", str(error), first.file))
        return {}
    beyond = (beyond_the_grid(first.data.to_dataset(), region) for region in regions)
    problems += [Problem("extrapolation", text, first.file) for text in beyond if text]
    return cut


def _cells_of(
    scopes: Sequence[tuple[Mapping[str, Any], Mapping[str, Limits]]],
    series: Mapping[str, Sequence[RawSeries]],
    match: Match,
) -> Iterator[tuple[np.ndarray, Mapping[str, Limits]]]:
    """Yield the cells of each scope, (y, x), and its limits."""
    for first in [raw.data for files in series.values() for raw in files][:1]:
        for scope, limits in scopes:
            try:
                cells = cells_in(first.to_dataset(), scope["name"], scope)
            except DataError as error:
                logger.warning("%s: the limits of a part of the domain are not looked at: %s", match.id, error)
                continue
            yield cells.transpose(*first.dims[1:]).values, limits


class MissingChunks(NamedTuple):
    """The chunks (or shards) of an array that are absent."""

    array: str
    keys: Sequence[str]
    """Their keys in the store, in order of time."""
    wanted: int
    """How many chunks the array has in the years."""
    day: Any = None
    """The first date in the first missing chunk, numpy's or cftime's; None for coordinates."""


def missing_chunks(
    path: str, variables: Sequence[str], years: tuple[int, int], options: Mapping[str, Any]
) -> list[MissingChunks]:
    """Return the arrays of a Zarr store that lack chunks in some years, coordinates or else variables.

    Zarr reads fill values there, and writers leave out chunks that hold nothing else. So if the fill value stands for
    missing values, chunks of the same cells may be absent at all times, and all chunks of a single day. A coordinate's
    chunk of a single value may be absent. Nothing is returned for stores whose keys cannot be listed (HTTP), nor for
    arrays of over `MOST_CHUNKS`.
    """
    how = {name: options[name] for name in ("group", "storage_options") if options.get(name)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # By xarray's own function, as `arrays_of` does: of its metadata only.
        group = xr.backends.ZarrStore.open_group(
            zarr_store(path), mode="r", consolidated=options.get("consolidated"), **how
        )
    arrays = dict(group.zarr_group.arrays())
    coordinates = {*group.get_dimensions(), *COORDINATE_NAMES["lat"], *COORDINATE_NAMES["lon"]} & arrays.keys()
    absent = {name: _absent_chunks(arrays[name]) for name in sorted(coordinates)}
    lacking = {name: there for name, there in absent.items() if there.any() and math.prod(_file(arrays[name])) > 1}
    if lacking:
        # Without coordinates, the dates and cells of other chunks are unknown.
        return [MissingChunks(name, _keys(arrays[name], there), there.size) for name, there in lacking.items()]
    found: list[MissingChunks] = []
    with open_zarr(path, {**options, "chunks": None}) as ds:
        dates = ds["time"].dt.year.values if "time" in ds.dims else np.array([])
        steps = np.flatnonzero((dates >= years[0]) & (dates <= years[1]))
        names = [name if name in arrays else NAMES_IN_FILES.get(name, "") for name in variables]
        for name in [name for name in names if name in arrays]:
            array, data, there = arrays[name], ds[name], _absent_chunks(arrays[name])
            if not there.any():
                continue
            # Chunks that hold nothing but missing values may be absent.
            missing = [data.encoding[key] for key in ("_FillValue", "missing_value") if key in data.encoding]
            fill = array.fill_value
            may_be_empty = fill is not None and (fill != fill or fill in missing) and not there.all()
            if data.sizes.get("time", 1) == 1:
                found += [] if may_be_empty else [MissingChunks(name, _keys(array, there), there.size)]
            elif steps.size:
                found += _of_series(array, data, there, may_be_empty, (int(steps[0]), int(steps[-1])))
    return found


def _of_series(
    array: Any, data: xr.DataArray, absent: np.ndarray, may_be_empty: bool, steps: tuple[int, int]
) -> Iterator[MissingChunks]:
    """Yield the absent chunks of a variable between two steps of time, if there are any."""
    axis = data.dims.index("time")
    length = _file(array)[axis]
    absent = np.moveaxis(absent, axis, 0)
    if may_be_empty:
        empty = np.pad(absent.all(axis=tuple(range(1, absent.ndim))), 1)
        absent &= ~absent.all(axis=0)
        if length == 1:
            # A map that was empty from the start; several days in a row are rather a copy that stopped.
            absent[empty[1:-1] & ~empty[:-2] & ~empty[2:]] = False
    first, last = steps[0] // length, steps[1] // length
    absent[:first] = absent[last + 1 :] = False
    if absent.any():
        chunk = int(np.flatnonzero(absent.any(axis=tuple(range(1, absent.ndim))))[0])
        day = data["time"].values[max(chunk * length, steps[0])]
        wanted = (last - first + 1) * math.prod(absent.shape[1:])
        yield MissingChunks(str(array.basename), _keys(array, np.moveaxis(absent, 0, axis)), wanted, day)


def _file(array: Any) -> tuple[int, ...]:
    """Return the shape of a file of an array: a shard, or a chunk."""
    return tuple(array.shards or array.chunks)


def _absent_chunks(array: Any) -> np.ndarray:
    """Return which files of the grid of chunks (shards) are not in the store; none if it cannot be listed."""
    from zarr.core.sync import collect_aiterator

    store, prefix = array.store_path.store, f"{array.path}/" if array.path else ""
    grid = tuple(-(-size // length) for size, length in zip(array.shape, _file(array), strict=True))
    if math.prod(grid) > MOST_CHUNKS:
        return np.zeros(1, bool)
    try:
        there = set(collect_aiterator(store.list_prefix(prefix)))
    # Remote stores may raise nearly anything where they cannot list; local stores can.
    except Exception:
        there = set()
    absent = np.zeros(grid, bool)
    # Zarr reads a shard without bytes as fill values, too.
    root = getattr(getattr(store, "_store", store), "root", None) if array.shards else None
    for at in itertools.product(*map(range, grid)) if there else ():
        key = prefix + array.metadata.encode_chunk_key(at)
        absent[at] = key not in there or (isinstance(root, Path) and not (root / key).stat().st_size)
    return absent


def _keys(array: Any, absent: np.ndarray) -> list[str]:
    return [f"{array.path}/{array.metadata.encode_chunk_key(tuple(map(int, at)))}" for at in np.argwhere(absent)]
