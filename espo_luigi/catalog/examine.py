"""Finding all problems of a dataset's files; opening it stops at the first."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dask
import numpy as np
import xarray as xr

from espo_luigi.catalog.criteria import Period
from espo_luigi.catalog.files import is_zarr
from espo_luigi.catalog.missing_chunks import missing_chunks
from espo_luigi.catalog.open import on_grid_of, open_years, single, wanted_of, within
from espo_luigi.catalog.read import Asset
from espo_luigi.catalog.search import Match
from espo_luigi.errors import DataError
from espo_luigi.science.calendar import calendar_of, day_of
from espo_luigi.science.choices import InputProblem
from espo_luigi.science.extract.dataset import as_maps, beyond_the_grid, subset_boxes, wanted_days
from espo_luigi.science.extract.input_fills import doubtful_fill
from espo_luigi.science.extract.input_problems import Problem, RawSeries, day_problems, is_daily, neighbour_problems
from espo_luigi.science.extract.input_values import value_problems
from espo_luigi.science.grid import cells_in
from espo_luigi.science.possible import Limits

logger = logging.getLogger(__name__)

# The most of one variable that is in memory at a time, unless a stored chunk is larger.
BLOCK_BYTES = 64 * 1024**2
# The problems after which a file is not examined any further.
LOST = ("unreadable_files", "units", "calendars", "grids")


@dataclass
class _Held:
    """The opened files, split by variable, and the problems of all files."""

    pieces: list[tuple[str, xr.Dataset]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    units_and_fill: dict[tuple[str, str], tuple[str, float | None]] = field(default_factory=dict)
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
) -> list[Problem]:
    """Return the problems of a match's files, each kind once for a file; reads the files once.

    Parameters
    ----------
    match : Match
        A result of `Catalog.search`.
    period, regions
        The part that will be extracted: years, both included, and boxes as of `science.extract.subset_box`. Only this
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
        Further limits, each of a part of the regions (`science.grid.cells_in`). A scope without cells is logged.
    """
    held = _open(match, period, dict(xr_open_kwargs or {}))
    problems = held.problems
    series: dict[str, list[RawSeries]] = {}
    for file, piece in _on_one_grid(_in_one_calendar(held.pieces, problems), problems):
        name = _named(piece)
        piece = masked(piece) if masked else piece
        series.setdefault(name, []).append(RawSeries(file, piece[name], may_lack, *held.units_and_fill[file, name]))
    problems += _absent(match, period, series, problems)
    lost = {name for problem in problems if problem.kind in LOST for name in problem.variable.split(",")}
    for name, files in series.items():
        problems += [problem for raw in files for problem in day_problems(raw)]
        # Days that lie in a file that cannot be used do not count as missing, too.
        problems += [] if name in lost else [*neighbour_problems(files), *_ends(files, period)]
    daily = {name: [raw for raw in files if is_daily(raw)] for name, files in series.items()}
    # One process, one thread: reading is what takes its time, and HDF5 lets one thread read.
    with dask.config.set(scheduler="synchronous"):
        cut = _cut(daily, regions, problems)
        problems += value_problems(cut, limits, mask_variable, calibration, list(_cells_of(scopes, cut, match)))
    return problems


def _absent(match: Match, period: Period, series: Mapping[str, Any], problems: Sequence[Problem]) -> Iterator[Problem]:
    """Yield the variables without a day in the period; the catalogue's dates do not count."""
    explained = {name for problem in problems for name in problem.variable.split(",")}
    for name in match.variables:
        if name not in explained | series.keys():
            message = f"no file has a day of {period[0]}-{period[1]}; correct the dates in the catalogue"
            yield Problem("missing_days", message, variable=name)


def _open(match: Match, period: Period, open_kwargs: dict[str, Any]) -> _Held:
    held = _Held()
    for name, asset in match.fixed.items():
        held.problems += _missing_chunks(asset, [name], period, open_kwargs)
    for asset in match.assets:
        held.problems += _missing_chunks(asset, wanted_of(asset, match), period, open_kwargs)
        try:
            ds = within(open_years(asset, match, open_kwargs, BLOCK_BYTES), (period,))
        except DataError as error:
            held.problems.append(Problem("unreadable_files", str(error), asset.path, ",".join(wanted_of(asset, match))))
            continue
        for name in wanted_of(asset, match) if ds.sizes["time"] else ():
            kind: InputProblem = "grids"
            try:
                as_maps(ds[name])
                kind = "units"
                held.pieces.append((asset.path, single(ds, name, asset)))
                held.units_and_fill[asset.path, name] = str(ds[name].attrs.get("units", "")), doubtful_fill(ds[name])
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


def _ends(files: Sequence[RawSeries], period: Period) -> Iterator[Problem]:
    first, last = min(files, key=_first_day), max(files, key=_last_day)
    begin, end = map(first.number, wanted_days(*period, calendar_of(first.data)))
    of_period = f" of the period {period[0]}-{period[1]}"
    if (late := _first_day(first) - begin) > 0:
        message = first.missing(late, begin, begin + late - 1) + of_period
        yield first.problem("missing_days", message, begin, late)
    if (early := end - _last_day(last)) > 0:
        message = last.missing(early, end - early + 1, end) + of_period
        yield last.problem("missing_days", message, end - early + 1, early)


def _first_day(raw: RawSeries) -> int:
    return int(raw.days.min())


def _last_day(raw: RawSeries) -> int:
    return int(raw.days.max())


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
