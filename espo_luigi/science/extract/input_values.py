"""Problems with the values of raw daily files, found in a single pass, a block of days at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import xarray as xr

from espo_luigi.science.choices import CANONICAL_UNITS, FLAGS, InputProblem
from espo_luigi.science.chunks import indexer
from espo_luigi.science.diagnose.flags import default_threshold
from espo_luigi.science.extract.input_fills import Fills
from espo_luigi.science.extract.input_problems import Problem, RawSeries
from espo_luigi.science.units import convert_to

# The lowest and the highest possible value of a variable.
Limits = tuple[float, float]
Series = Mapping[str, Sequence[RawSeries]]
# A part of the map: rows and columns.
Tile = Mapping[str, slice]

# A smaller map may hold a single value by chance.
CELLS_OF_A_MAP = 9
# With values that are far from possible on more days than this part, it is the units that are wrong.
MISLABELLED = 0.5
# How far that is, as a part of the possible range's width: some models have precipitation of a little below zero.
FAR = 0.1
# Beyond every observation on Earth, for limits that no flag gives.
DEFAULT_LIMITS: Mapping[str, Limits] = {
    "tasmax": (150.0, 350.0),
    "tasmin": (150.0, 350.0),
    "tas": (150.0, 350.0),
    "dtr": (-1.0, 100.0),
    "pr": (0.0, 3000.0 / 86400),
}
_DAYS_OF_A_BLOCK = 365
# The limit that a flag of the health checks sets: 0 is the lowest value, 1 the highest.
_LIMITED = {name: ("below", "above").index(flag.side) for name, flag in FLAGS.items() if flag.side}
del _LIMITED["tasmax_below_tasmin"]  # limits no variable's own values
_TEMPERATURES = ("tasmax", "tasmin", "tas")


def limits_of(flags: Mapping[str, Mapping[str, Mapping[str, str] | None] | None]) -> dict[str, Limits]:
    """Return the limits that the data flags of the health checks give each variable, in `CANONICAL_UNITS`.

    Temperatures share theirs: no minimum is above the highest maximum. A flag without threshold has xclim's own.
    """
    found: dict[str, Limits] = {}
    for name, chosen in flags.items():
        bounds = [-np.inf, np.inf]
        for flag in [flag for flag in chosen or {} if flag in _LIMITED and name in CANONICAL_UNITS]:
            bounds[_LIMITED[flag]] = _bound(flag, name, ((chosen or {})[flag] or {}).get("thresh"))
        found[name] = (bounds[0], bounds[1])
    warm = [found[name] for name in _TEMPERATURES if name in found]
    finite = [[one for one in side if np.isfinite(one)] for side in zip(*warm, strict=True)] if warm else [[], []]
    shared = (min(finite[0], default=-np.inf), max(finite[1], default=np.inf))
    limits = found | {name: shared for name in _TEMPERATURES}
    return {name: pair for name, pair in limits.items() if np.isfinite(pair).any()}


def _bound(flag: str, name: str, threshold: str | None) -> float:
    if flag == "negative_accumulation_values":
        return 0.0
    number, _, units = str(threshold or default_threshold(flag)).strip().partition(" ")
    return float(convert_to(xr.DataArray(float(number), name=name, attrs={"units": units}), CANONICAL_UNITS[name]))


@dataclass
class _Tally:
    """A kind of problem in a file: the number of values and of days, and the worst value."""

    raw: RawSeries
    values: int = 0
    days: set[int] = field(default_factory=set)
    far_days: set[int] = field(default_factory=set)
    """The days on which most values are far from what is possible."""
    worst: float = -1.0
    """How far the worst value is from what is possible."""
    worst_day: int = 0
    worst_value: float | None = None
    cell: dict[str, int] = field(default_factory=dict)

    def add(self, days: np.ndarray, values: int) -> None:
        # As a set: a day may be in several tiles.
        self.values += values
        self.days.update(days.tolist())

    def add_values(self, days: np.ndarray, excess: np.ndarray, values: np.ndarray, tile: Tile) -> None:
        """Add the days of a block (days, y, x), each with an excess above 0 in some cell."""
        self.add(days, int((excess > 0).sum()))
        place = np.unravel_index(int(np.nanargmax(excess)), excess.shape)
        if excess[place] > self.worst:
            self.worst, self.worst_day = float(excess[place]), int(days[place[0]])
            self.worst_value = float(values[place])
            self.cell = {dim: rows.start + int(at) for (dim, rows), at in zip(tile.items(), place[1:], strict=True)}


class _Tallies:
    """All tallies, by kind and file."""

    def __init__(self) -> None:
        self.found: dict[tuple[InputProblem, str, str], _Tally] = {}
        self.unreadable: dict[str, Problem] = {}
        self.fills = Fills()
        # By variable, its lowest and highest value, and how many values it has.
        self.ranges: dict[str, tuple[float, float, int]] = {}

    def of(self, kind: InputProblem, raw: RawSeries) -> _Tally:
        return self.found.setdefault((kind, raw.file, raw.name), _Tally(raw))


@dataclass(frozen=True, eq=False)
class _Block:
    """Some days of one file in memory."""

    raw: RawSeries
    days: np.ndarray
    values: np.ndarray
    tile: Tile

    @cached_property
    def extremes(self) -> np.ndarray:
        """The lowest and the highest value of each day."""
        flat = self.values.reshape(self.days.size, -1)
        return np.stack([np.fmin.reduce(flat, axis=1), np.fmax.reduce(flat, axis=1)])


@dataclass
class _Maps:
    """Whole maps of some days of a file, filled tile by tile."""

    raw: RawSeries
    days: np.ndarray
    extremes: np.ndarray
    cells: np.ndarray
    """How many have a value."""

    def add(self, block: _Block) -> None:
        low, high = block.extremes
        self.extremes = np.stack([np.fmin(self.extremes[0], low), np.fmax(self.extremes[1], high)])
        self.cells = self.cells + np.isfinite(block.values).sum(axis=(1, 2))


def value_problems(series: Series, limits: Mapping[str, Limits], mask_variable: str = "") -> list[Problem]:
    """Read the files of each variable once, and return the problems with their values; computes.

    Parameters
    ----------
    series
        Per variable, its daily files, cut to what is to be examined; only one tile of the map, for a block of days, is
        in memory at a time, of all variables: a Dask chunk of the first one.
    limits
        What `limits_of` returns; `DEFAULT_LIMITS` where it says nothing.
    mask_variable
        The variable whose first map says which cells are land, if one does.

    Returns
    -------
    list of Problem
        One for each kind and file: impossible values and days on which tasmax is below tasmin, with the worst day and
        cell, maps without data or of one value, with the first day, and what cannot be read. One for each variable that
        has the same value everywhere, or none, and for cells of the mask's variable that begin to have data later.
    """
    tallies = _Tallies()
    bounds = {name: _both(limits.get(name), DEFAULT_LIMITS[name]) for name in DEFAULT_LIMITS}
    cells = _Cells(series.get(mask_variable, ()))
    for first, last in _spans(series):
        maps: dict[tuple[str, str], _Maps] = {}
        for tile in _tiles(series):
            blocks = {name: list(_read(files, first, last, tile, tallies)) for name, files in series.items()}
            for block in itertools.chain.from_iterable(blocks.values()):
                _add_to_maps(maps, block)
                _look_at_range(block, limits.get(block.raw.name), bounds.get(block.raw.name), tallies)
                if block.raw.name == mask_variable:
                    cells.add(block)
            for warm, cold in itertools.product(blocks.get("tasmax", []), blocks.get("tasmin", [])):
                _compare(warm, cold, tallies)
        for whole in maps.values():
            _look_at_maps(whole, tallies)
    constant = list(_constant_series(series, tallies))
    explained = {problem.variable for problem in constant}
    problems = [
        _problem(kind, tally, bounds)
        for (kind, _, name), tally in tallies.found.items()
        if kind not in ("maps_without_data", "constant_maps") or name not in explained
    ]
    return [*tallies.unreadable.values(), *constant, *problems, *tallies.fills.problems(), *cells.problems()]


def _both(limits: Limits | None, default: Limits) -> Limits:
    """Return limits with a default for each side that has none."""
    low, high = limits or (-np.inf, np.inf)
    return low if np.isfinite(low) else default[0], high if np.isfinite(high) else default[1]


class _Cells:
    """Which cells of the mask's variable have data: on the first day, and on any."""

    def __init__(self, files: Sequence[RawSeries]) -> None:
        self.files = sorted(files, key=lambda raw: int(raw.days.min()))
        shape = self.files[0].data.shape[1:] if self.files else (0, 0)
        self.on_first_day, self.on_any = np.zeros(shape, bool), np.zeros(shape, bool)

    def add(self, block: _Block) -> None:
        tile = tuple(block.tile.values())
        if block.days.min() == self.files[0].days.min():
            self.on_first_day[tile] = np.isfinite(block.values[block.days.argmin()])
        new = ~self.on_any[tile]
        self.on_any[tile][new] = np.isfinite(block.values[:, new]).any(axis=0)

    def problems(self) -> Iterator[Problem]:
        late = self.on_any & ~self.on_first_day
        # Of a first day without any value, other checks tell.
        if late.any() and self.on_first_day.any():
            raw, (row, column) = self.files[0], (int(at[0]) for at in np.nonzero(late))
            cell = dict(zip(map(str, raw.data.dims[1:]), (row, column), strict=True))
            message = (
                f"{int(late.sum())} cell(s) have data, but none on this day, which says where land is: they are left "
                "out, the first of them here"
            )
            lat, lon = (_at(raw.data[name], cell) for name in ("lat", "lon"))
            found = raw.problem("cells_without_first_day", message, int(raw.days.min()), int(late.sum()))
            yield replace(found, lat=lat, lon=lon)


def _constant_series(series: Series, tallies: _Tallies) -> Iterator[Problem]:
    """Yield the variables with a single value in all cells on all days, or with none, unless a file cannot be read."""
    for name, files in series.items():
        low, high, values = tallies.ranges.get(name, (0.0, 0.0, 0))
        if any(raw.file in tallies.unreadable for raw in files) or not files:
            continue
        if not values or (low == high and values >= CELLS_OF_A_MAP):
            raw, days = min(files, key=lambda raw: int(raw.days.min())), sum(raw.days.size for raw in files)
            what = f"the value is {low:g} in all cells on all days" if values else "no cell has a value on any day"
            found = raw.problem("constant_series", f"{what}; expected values that vary", int(raw.days.min()), days)
            yield replace(found, value=low if values else None)


def _spans(series: Series) -> Iterator[tuple[int, int]]:
    """Yield the first days of neighbouring blocks: those of all files, and of the chunks of the first variable's."""
    files = [raw for held in series.values() for raw in held]
    edges = {edge for raw in files for edge in (int(raw.days.min()), int(raw.days.max()) + 1)}
    longest = max((max(_chunks(raw)) for raw in files), default=_DAYS_OF_A_BLOCK)
    for raw in next(iter(series.values()), ()):
        edges |= {int(raw.days[start]) for start in np.cumsum([0, *_chunks(raw)[:-1]])}
    for first, after in itertools.pairwise(sorted(edges)):
        for start in range(first, after, longest):
            yield start, min(start + longest, after)


def _tiles(series: Series) -> Iterator[Tile]:
    """Yield the parts of the map that the Dask chunks of the first variable's first file have."""
    for raw in itertools.islice(itertools.chain.from_iterable(series.values()), 1):
        dims, sizes = raw.data.dims[1:], raw.data.shape[1:]
        chunks = raw.data.chunks[1:] if raw.data.chunks else [(size,) for size in sizes]
        for corner in itertools.product(*(_slices(lengths) for lengths in chunks)):
            yield dict(zip(map(str, dims), corner, strict=True))


def _slices(lengths: Sequence[int]) -> list[slice]:
    return [slice(stop - length, stop) for stop, length in zip(itertools.accumulate(lengths), lengths, strict=True)]


def _chunks(raw: RawSeries) -> tuple[int, ...]:
    return raw.data.chunks[0] if raw.data.chunks else (_DAYS_OF_A_BLOCK,) * -(-raw.days.size // _DAYS_OF_A_BLOCK)


def _read(files: Sequence[RawSeries], first: int, after: int, tile: Tile, tallies: _Tallies) -> Iterator[_Block]:
    for raw in files:
        there = np.flatnonzero((raw.days >= first) & (raw.days < after))
        if not there.size or raw.file in tallies.unreadable:
            continue
        try:
            values = raw.data.isel({"time": indexer(there), **tile}).values
        except Exception as error:  # a backend may raise nearly anything on a damaged file
            message = f"cannot be read from this day on ({type(error).__name__}: {error})"
            tallies.unreadable[raw.file] = raw.problem("unreadable_files", message, int(raw.days[there[0]]), 1)
            continue
        days = raw.days[there]
        yield _Block(raw, days, tallies.fills.taken_out(raw, days, values, tile), tile)


def _add_to_maps(maps: dict[tuple[str, str], _Maps], block: _Block) -> None:
    none = np.full_like(block.extremes, np.nan), np.zeros(block.days.size, int)
    maps.setdefault((block.raw.file, block.raw.name), _Maps(block.raw, block.days, *none)).add(block)


def _look_at_maps(maps: _Maps, tallies: _Tallies) -> None:
    if maps.raw.file in tallies.unreadable:
        return
    low, high = maps.extremes
    empty = np.isnan(high)
    before = tallies.ranges.get(maps.raw.name, (np.inf, -np.inf, 0))
    tallies.ranges[maps.raw.name] = (
        float(np.fmin.reduce(low, initial=before[0])),
        float(np.fmax.reduce(high, initial=before[1])),
        before[2] + int(maps.cells.sum()),
    )
    if empty.any():
        tallies.of("maps_without_data", maps.raw).add(maps.days[empty], int(empty.sum()))
    # A day without rain anywhere is nothing special; a day of 0 K is.
    one_value = (low == high) & ((high != 0) | (CANONICAL_UNITS.get(maps.raw.name) == "K"))
    constant = np.flatnonzero(one_value & (maps.cells >= CELLS_OF_A_MAP))
    if constant.size:
        tally = tallies.of("constant_maps", maps.raw)
        if not tally.days:
            tally.worst_value = float(high[constant[0]])
        tally.add(maps.days[constant], constant.size)


def _look_at_range(block: _Block, limits: Limits | None, bounds: Limits | None, tallies: _Tallies) -> None:
    """Add the values beyond a variable's limits, and, without flags, values far from the possible range."""
    if bounds is None:
        return
    low, high = block.extremes
    far = FAR * (bounds[1] - bounds[0])
    lowest, highest = limits or (bounds[0] - far, bounds[1] + far)
    outside = (low < lowest) | (high > highest)
    if outside.any():
        values = block.values[outside]
        excess = np.fmax(lowest - values, values - highest)
        tally = tallies.of("values_out_of_range", block.raw)
        tally.add_values(block.days[outside], excess, values, block.tile)
        # A few cells of 0 K on all days are no matter of units.
        days = np.flatnonzero((low < bounds[0] - far) | (high > bounds[1] + far))
        cells = block.values[days]
        impossible = ((cells < bounds[0] - far) | (cells > bounds[1] + far)).sum(axis=(1, 2))
        tally.far_days.update(block.days[days[impossible > 0.5 * np.isfinite(cells).sum(axis=(1, 2))]].tolist())


def _compare(warm: _Block, cold: _Block, tallies: _Tallies) -> None:
    shared, of_warm, of_cold = np.intersect1d(warm.days, cold.days, return_indices=True)
    if warm.values.shape[1:] != cold.values.shape[1:] or not shared.size:
        return
    excess = _taken(cold.values, of_cold) - _taken(warm.values, of_warm)
    wrong = np.fmax.reduce(excess.reshape(shared.size, -1), axis=1) > 0
    if wrong.any():
        tallies.of("tasmax_below_tasmin", warm.raw).add_values(shared[wrong], excess[wrong], -excess[wrong], warm.tile)


def _taken(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    return values if places.size == len(values) and (np.diff(places) == 1).all() else values[places]


def _problem(kind: InputProblem, tally: _Tally, limits: Mapping[str, Limits]) -> Problem:
    raw, first = tally.raw, min(tally.days)
    if kind in ("maps_without_data", "constant_maps"):
        message = f"{len(tally.days)} map(s), the first of them on this day"
        return replace(raw.problem(kind, message, first, len(tally.days)), value=tally.worst_value)
    message = f"{tally.values} value(s) on {len(tally.days)} day(s) from {raw.day(first)} on, the worst of them here"
    if kind == "tasmax_below_tasmin":
        message = f"{message}; the value is tasmax - tasmin"
    else:
        low, high = limits[raw.name]
        message = f"{message}; expected {low:.6g} to {high:.6g} {CANONICAL_UNITS[raw.name]}"
    if kind == "values_out_of_range" and len(tally.far_days) > MISLABELLED * raw.days.size:
        kind, message = "mislabelled_units", f"the units or the fill value are probably wrong: {message}"
    lat, lon = (_at(raw.data[name], tally.cell) for name in ("lat", "lon"))
    return replace(raw.problem(kind, message, tally.worst_day, tally.values), lat=lat, lon=lon, value=tally.worst_value)


def _at(coordinate: xr.DataArray, cell: Mapping[str, int]) -> float:
    return float(coordinate.isel({dim: cell[str(dim)] for dim in coordinate.dims}))
