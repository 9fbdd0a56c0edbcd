"""What may be wrong with the values of raw daily files, found in one pass, a block of days at a time."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import xarray as xr

from espo_luigi.science.choices import InputProblem
from espo_luigi.science.chunks import indexer
from espo_luigi.science.extract import CANONICAL_UNITS
from espo_luigi.science.input_problems import Problem, RawSeries
from espo_luigi.science.units import convert_to

# The lowest and the highest possible value of a variable.
Limits = tuple[float, float]
Series = Mapping[str, Sequence[RawSeries]]

# A smaller map may be of one value by chance.
CELLS_OF_A_MAP = 9
# With impossible values on more days than this part, it is the units that are wrong.
MISLABELLED = 0.5
_DAYS_OF_A_BLOCK = 365
# What a flag of the health checks limits: 0 is the lowest value, 1 the highest.
_FLAGS = {
    "temperature_extremely_low": 0,
    "negative_accumulation_values": 0,
    "temperature_extremely_high": 1,
    "very_large_precipitation_events": 1,
}
_TEMPERATURES = ("tasmax", "tasmin", "tas")


def limits_of(flags: Mapping[str, Mapping[str, Mapping[str, str] | None] | None]) -> dict[str, Limits]:
    """Return the limits that the data flags of the health checks give each variable, in `CANONICAL_UNITS`.

    Temperatures share theirs: no minimum is above the highest maximum. A flag without threshold has xclim's own.
    """
    found: dict[str, Limits] = {}
    for name, chosen in flags.items():
        bounds = [-np.inf, np.inf]
        for flag in [flag for flag in chosen or {} if flag in _FLAGS and name in CANONICAL_UNITS]:
            bounds[_FLAGS[flag]] = _bound(flag, name, ((chosen or {})[flag] or {}).get("thresh"))
        found[name] = (bounds[0], bounds[1])
    warm = [found[name] for name in _TEMPERATURES if name in found]
    finite = [[one for one in side if np.isfinite(one)] for side in zip(*warm, strict=True)] if warm else [[], []]
    shared = (min(finite[0], default=-np.inf), max(finite[1], default=np.inf))
    limits = found | {name: shared for name in _TEMPERATURES}
    return {name: pair for name, pair in limits.items() if np.isfinite(pair).any()}


def _bound(flag: str, name: str, threshold: str | None) -> float:
    if flag == "negative_accumulation_values":
        return 0.0
    if threshold is None:
        from xclim.core import dataflags

        threshold = str(inspect.signature(getattr(dataflags, flag)).parameters["thresh"].default)
    number, _, units = threshold.strip().partition(" ")
    return float(convert_to(xr.DataArray(float(number), name=name, attrs={"units": units}), CANONICAL_UNITS[name]))


@dataclass
class _Tally:
    """One kind of problem in one file: how many values, on how many days, and the worst of them."""

    raw: RawSeries
    values: int = 0
    days: int = 0
    first: int = 0
    worst: float = -1.0
    """How far the worst value is from what is possible."""
    worst_day: int = 0
    worst_value: float | None = None
    cell: dict[str, int] = field(default_factory=dict)

    def add(self, days: np.ndarray, values: int) -> None:
        self.first = int(days[0]) if not self.days else min(self.first, int(days[0]))
        self.values += values
        self.days += days.size

    def add_values(self, days: np.ndarray, excess: np.ndarray, values: np.ndarray) -> None:
        """Add the days of a block (days, y, x) on which an excess is above 0, each of which has one at least."""
        self.add(days, int((excess > 0).sum()))
        place = np.unravel_index(int(np.nanargmax(excess)), excess.shape)
        if excess[place] > self.worst:
            self.worst, self.worst_day = float(excess[place]), int(days[place[0]])
            self.worst_value = float(values[place])
            self.cell = dict(zip(map(str, self.raw.data.dims[1:]), map(int, place[1:]), strict=True))


class _Tallies:
    """All tallies, by kind and file."""

    def __init__(self) -> None:
        self.found: dict[tuple[InputProblem, str, str], _Tally] = {}
        self.unreadable: dict[str, Problem] = {}

    def of(self, kind: InputProblem, raw: RawSeries) -> _Tally:
        return self.found.setdefault((kind, raw.file, raw.name), _Tally(raw))


@dataclass(frozen=True, eq=False)
class _Block:
    """Some days of one file in memory."""

    raw: RawSeries
    days: np.ndarray
    values: np.ndarray


def value_problems(series: Series, limits: Mapping[str, Limits]) -> list[Problem]:
    """Read the files of each variable once, and return what is wrong with their values; computes.

    Parameters
    ----------
    series
        Per variable, its daily files, cut to what is to be looked at; only one block of days, of all variables, is in
        memory at a time: a Dask chunk of the first variable.
    limits
        What `limits_of` returns.

    Returns
    -------
    list of Problem
        One for each kind and file: impossible values and days on which tasmax is below tasmin, with the worst day and
        cell, maps without data or of one value, with the first day, and what cannot be read.
    """
    tallies = _Tallies()
    for first, last in _spans(series):
        blocks = {name: list(_read(files, first, last, tallies)) for name, files in series.items()}
        for block in itertools.chain.from_iterable(blocks.values()):
            _look_at_maps(block, tallies)
            _look_at_range(block, limits.get(block.raw.name), tallies)
        for warm, cold in itertools.product(blocks.get("tasmax", []), blocks.get("tasmin", [])):
            _compare(warm, cold, tallies)
    problems = [_problem(kind, tally, limits) for (kind, *_), tally in tallies.found.items()]
    return [*tallies.unreadable.values(), *problems]


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


def _chunks(raw: RawSeries) -> tuple[int, ...]:
    return raw.data.chunks[0] if raw.data.chunks else (_DAYS_OF_A_BLOCK,) * -(-raw.days.size // _DAYS_OF_A_BLOCK)


def _read(files: Sequence[RawSeries], first: int, after: int, tallies: _Tallies) -> Iterator[_Block]:
    for raw in files:
        there = np.flatnonzero((raw.days >= first) & (raw.days < after))
        if not there.size or raw.file in tallies.unreadable:
            continue
        try:
            values = raw.data.isel(time=indexer(there)).values
        except Exception as error:  # a backend may raise nearly anything on a damaged file
            message = f"cannot be read from this day on ({type(error).__name__}: {error})"
            tallies.unreadable[raw.file] = raw.problem("unreadable_files", message, int(raw.days[there[0]]), 1)
            continue
        yield _Block(raw, raw.days[there], values)


def _look_at_maps(block: _Block, tallies: _Tallies) -> None:
    flat = block.values.reshape(block.days.size, -1)
    low, high = np.fmin.reduce(flat, axis=1), np.fmax.reduce(flat, axis=1)
    empty = np.isnan(high)
    if empty.any():
        tallies.of("maps_without_data", block.raw).add(block.days[empty], int(empty.sum()))
    # A day without rain anywhere is nothing special; one of 0 K is.
    one_value = (low == high) & ((high != 0) | (CANONICAL_UNITS.get(block.raw.name) == "K"))
    constant = [day for day in np.flatnonzero(one_value) if np.isfinite(flat[day]).sum() >= CELLS_OF_A_MAP]
    if constant:
        tally = tallies.of("constant_maps", block.raw)
        if not tally.days:
            tally.worst_value = float(high[constant[0]])
        tally.add(block.days[constant], len(constant))


def _look_at_range(block: _Block, limits: Limits | None, tallies: _Tallies) -> None:
    if limits is None:
        return
    flat = block.values.reshape(block.days.size, -1)
    outside = (np.fmin.reduce(flat, axis=1) < limits[0]) | (np.fmax.reduce(flat, axis=1) > limits[1])
    if outside.any():
        values = block.values[outside]
        excess = np.fmax(limits[0] - values, values - limits[1])
        tallies.of("values_out_of_range", block.raw).add_values(block.days[outside], excess, values)


def _compare(warm: _Block, cold: _Block, tallies: _Tallies) -> None:
    shared, of_warm, of_cold = np.intersect1d(warm.days, cold.days, return_indices=True)
    if warm.values.shape[1:] != cold.values.shape[1:] or not shared.size:
        return
    excess = _taken(cold.values, of_cold) - _taken(warm.values, of_warm)
    wrong = np.fmax.reduce(excess.reshape(shared.size, -1), axis=1) > 0
    if wrong.any():
        tallies.of("tasmax_below_tasmin", warm.raw).add_values(shared[wrong], excess[wrong], -excess[wrong])


def _taken(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    return values if places.size == len(values) and (np.diff(places) == 1).all() else values[places]


def _problem(kind: InputProblem, tally: _Tally, limits: Mapping[str, Limits]) -> Problem:
    raw = tally.raw
    if kind in ("maps_without_data", "constant_maps"):
        message = f"{tally.days} map(s), the first of them on this day"
        return replace(raw.problem(kind, message, tally.first, tally.days), value=tally.worst_value)
    message = f"{tally.values} value(s) on {tally.days} day(s) from {raw.day(tally.first)} on, the worst of them here"
    if kind == "tasmax_below_tasmin":
        message = f"{message}; the value is tasmax - tasmin"
    else:
        low, high = limits[raw.name]
        message = f"{message}; expected {low:.6g} to {high:.6g} {CANONICAL_UNITS[raw.name]}"
    if kind == "values_out_of_range" and tally.days > MISLABELLED * raw.days.size:
        kind, message = "mislabelled_units", f"the units attribute is probably wrong: {message}"
    lat, lon = (_at(raw.data[name], tally.cell) for name in ("lat", "lon"))
    return replace(raw.problem(kind, message, tally.worst_day, tally.values), lat=lat, lon=lon, value=tally.worst_value)


def _at(coordinate: xr.DataArray, cell: Mapping[str, int]) -> float:
    return float(coordinate.isel({dim: cell[str(dim)] for dim in coordinate.dims}))
