"""Problems with the values of raw daily files: statistics of a single pass, and what `limits` says of them.

The pass reads a block at a time: some days of a part of the map, of all variables. To add a problem, gather its
statistic in `_File` (by day) or `_Cells` (by cell), and yield the problem in a function that `value_problems` calls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import xarray as xr

from espo_luigi.science.calendar import calendar_of
from espo_luigi.science.chunks import indexer
from espo_luigi.science.extract.input_fills import Fills
from espo_luigi.science.extract.input_problems import Problem, RawSeries, wanted_days
from espo_luigi.science.limits import (
    CELLS_OF_A_MAP,
    CROSSED,
    CROSSED_IN_A_CELL,
    DAYS_OF_A_YEAR,
    ENOUGH_DAYS,
    FAR,
    FRACTION,
    MISLABELLED,
    SLACK,
    expected,
    is_outside,
)
from espo_luigi.science.stations import STATION
from espo_luigi.science.units import convert_to
from espo_luigi.science.variables import Limits

Series = Mapping[str, Sequence[RawSeries]]
# A part of the map: rows and columns.
Tile = tuple[slice, ...]
Cell = tuple[int, ...]

_DAYS_OF_A_BLOCK = 365
_ANY: Limits = (-np.inf, np.inf)


@dataclass(frozen=True, eq=False)
class Block:
    """Some days of one file in memory: their places in the file, their numbers, and values (days, y, x) of a tile."""

    places: np.ndarray
    days: np.ndarray
    values: np.ndarray
    tile: Tile

    @cached_property
    def finite(self) -> np.ndarray:
        """Which values are numbers."""
        return np.isfinite(self.values)

    @cached_property
    def extremes(self) -> np.ndarray:
        """The lowest and the highest value of each day."""
        flat = self.values.reshape(self.days.size, -1)
        return np.stack([np.fmin.reduce(flat, axis=1), np.fmax.reduce(flat, axis=1)])

    def where(self, kept: np.ndarray) -> Block:
        """Return the block with NaN in place of other values."""
        return Block(self.places, self.days, np.where(kept, self.values, np.nan), self.tile)


@dataclass
class _Outside:
    """The values of a file that are beyond limits: their number, their days, and the worst of them."""

    expected: str
    values: int = 0
    days: set[int] = field(default_factory=set)
    far_days: set[int] = field(default_factory=set)
    """The days on which most values are far from what is possible."""
    excess: float = -1.0
    """How far the worst value is beyond the limits."""
    day: int = 0
    value: float = np.nan
    cell: Cell = ()

    def add(self, days: np.ndarray, excess: np.ndarray, values: np.ndarray, tile: Tile) -> None:
        """Add the days of a block (days, y, x), each with an excess above 0 in some cell."""
        self.values += int((excess > 0).sum())
        # As a set: a day may be in several tiles.
        self.days.update(days.tolist())
        day, *cell = np.unravel_index(int(np.nanargmax(excess)), excess.shape)
        if excess[day, *cell] > self.excess:
            self.excess, self.day, self.value = float(excess[day, *cell]), int(days[day]), float(values[day, *cell])
            self.cell = tuple(part.start + int(at) for part, at in zip(tile, cell, strict=True))


class _File:
    """The statistics of a file: by day the lowest, the highest and the number of values; values beyond limits."""

    def __init__(self, raw: RawSeries) -> None:
        self.raw, self.fills = raw, Fills(raw)
        self.low, self.high = np.full((2, raw.days.size), np.nan, raw.data.dtype)
        self.cells = np.zeros(raw.days.size, int)
        self.outside: dict[tuple[str, int], _Outside] = {}
        """By the kind of problem, and the number of the part of the map that has its own limits."""
        self.beyond = 0
        """How many values are beyond the bounds of a transformation."""
        self.crossed = np.zeros(2, int)
        """The number of values on which tasmax is not above tasmin, and of those that are known."""

    def read(self, first: int, after: int, tile: Tile, unreadable: dict[str, Problem]) -> Iterator[Block]:
        raw = self.raw
        places = np.flatnonzero((raw.days >= first) & (raw.days < after))
        if not places.size or raw.file in unreadable:
            return
        days = raw.days[places]
        try:
            values = raw.data[(indexer(places), *tile)].values
        except Exception as error:  # a backend may raise nearly anything on a damaged file
            message = f"cannot be read from this day on ({type(error).__name__}: {error})"
            unreadable[raw.file] = raw.problem("unreadable_files", message, int(days[0]), 1)
            return
        yield Block(places, days, self.fills.taken_out(days, values, tile), tile)

    def add(self, block: Block, limits: Sequence[tuple[np.ndarray | None, Limits | None]]) -> None:
        """Add a block; `limits` are those of the whole map (None), and of parts of it."""
        at, known = block.places, self.raw.known
        low, high = block.extremes
        self.low[at], self.high[at] = np.fmin(self.low[at], low), np.fmax(self.high[at], high)
        self.cells[at] += block.finite.sum(axis=(1, 2))
        if known.transformation:
            lowest, highest = (none if end is None else end for end, none in zip(known.bounds, _ANY, strict=True))
            slack = SLACK * (highest - lowest) if np.isfinite(highest - lowest) else 0.0
            self.beyond += int(is_outside(block.values, (lowest - slack, highest + slack)).sum())
        if impossible := self._add_outside("impossible_values", 0, block, known.raw):
            far = FAR * (known.raw[1] - known.raw[0])
            # A few cells of 0 K on all days are no matter of units.
            beyond = is_outside(block.values, (known.raw[0] - far, known.raw[1] + far)) & block.finite
            most = beyond.sum(axis=(1, 2)) > 0.5 * block.finite.sum(axis=(1, 2))
            impossible.far_days.update(block.days[most].tolist())
            block = block.where(~is_outside(block.values, known.raw))
        for scope, (inside, of_scope) in enumerate(limits):
            if of_scope:
                part = block if inside is None else block.where(inside[block.tile])
                self._add_outside("values_out_of_range", scope, part, of_scope)

    def _add_outside(self, kind: str, scope: int, block: Block, limits: Limits) -> _Outside | None:
        low, high = block.extremes
        on = (low < limits[0]) | (high > limits[1])
        if not on.any():
            return None
        # A side without a limit of its own has that of what is possible.
        low, high = (own if np.isfinite(own) else other for own, other in zip(limits, self.raw.known.raw, strict=True))
        units = str(self.raw.data.attrs.get("units", ""))
        found = self.outside.setdefault((kind, scope), _Outside(f"; expected {expected((low, high), units)}"))
        values = block.values[on]
        found.add(block.days[on], np.fmax(limits[0] - values, values - limits[1]), values, block.tile)
        return found


class _Variable:
    """The statistics of a variable: of its files, in order of time, and of each cell, (y, x)."""

    def __init__(self, held: Sequence[RawSeries], calibration: tuple[str, str] | None) -> None:
        self.files = [_File(raw) for raw in sorted(held, key=lambda raw: int(raw.days.min()))]
        self.raw = raw = self.files[0].raw
        self.known, self.first = raw.known, int(raw.days.min())
        self.days = np.concatenate([file.raw.days for file in self.files])
        ends = wanted_days(*calibration, calendar_of(raw.data)) if calibration else ()
        self.calibration = [raw.number(day) for day in ends] or [0, -1]
        self.found, self.in_calibration, self.met, self.compared = np.zeros((4, *raw.data.shape[1:]), np.int32)
        self.on_first_day = np.zeros(self.found.shape, bool)

    def is_in_calibration(self, days: np.ndarray) -> np.ndarray:
        return (days >= self.calibration[0]) & (days <= self.calibration[1])

    def add(self, file: _File, block: Block) -> None:
        tile, found = block.tile, block.finite.sum(axis=0, dtype=np.int32)
        inside = self.is_in_calibration(block.days)
        self.found[tile] += found
        self.in_calibration[tile] += found if inside.all() else block.finite[inside].sum(axis=0, dtype=np.int32)
        if block.days.min() == self.first:
            self.on_first_day[tile] = block.finite[block.days.argmin()]
        if self.known.is_range:
            self.add_crossed(file, tile, block.values <= 0, block.finite)

    def add_crossed(self, file: _File, tile: Tile, met: np.ndarray, known: np.ndarray) -> None:
        """Add values (days, y, x) of tasmax or dtr: on which tasmax is not above tasmin, and which are known."""
        self.met[tile] += met.sum(axis=0, dtype=np.int32)
        self.compared[tile] += known.sum(axis=0, dtype=np.int32)
        file.crossed += met.sum(), known.sum()

    def compare(self, file: _File, warm: Block, cold: Block, possible: Limits) -> None:
        """Compare a block of this variable, tasmax, with one of tasmin, whose `possible` values are given."""
        shared, of_warm, of_cold = np.intersect1d(warm.days, cold.days, return_indices=True)
        if not shared.size:
            return
        maxima, minima = _taken(warm.values, of_warm), _taken(cold.values, of_cold)
        excess = minima - maxima
        met = excess >= 0
        if met.any():
            # Values that are impossible by themselves say nothing about the other variable.
            met &= ~(is_outside(maxima, self.known.raw) | is_outside(minima, possible))
        self.add_crossed(file, warm.tile, met, np.isfinite(excess))
        wrong = np.fmax.reduce(excess.reshape(shared.size, -1), axis=1) > 0
        if wrong.any():
            found = file.outside.setdefault(("tasmax_below_tasmin", 0), _Outside("; the value is tasmax - tasmin"))
            found.add(shared[wrong], excess[wrong], -excess[wrong], warm.tile)


def _taken(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    return values if places.size == len(values) and (np.diff(places) == 1).all() else values[places]


def value_problems(
    series: Series,
    limits: Mapping[str, Limits],
    mask_variable: str = "",
    calibration: tuple[str, str] | None = None,
    scopes: Sequence[tuple[np.ndarray, Mapping[str, Limits]]] = (),
) -> list[Problem]:
    """Read the files of each variable once, and return the problems with their values; computes.

    Parameters
    ----------
    series
        Per variable, its daily files on one grid, cut to what is to be examined; only one tile of the map, for a block
        of days, is in memory at a time, of all variables: a Dask chunk of the first one.
    limits
        What `diagnose.flags.limits_of` returns; impossible values (`Variable.raw`) count apart from those beyond these
        limits.
    mask_variable
        The variable whose first map says which cells are land, if one does.
    calibration
        First and last year of the calibration, whose days are counted apart, too.
    scopes
        Further limits, each of a part of the cells, boolean (y, x).

    Returns
    -------
    list of Problem
        One for each kind and file: impossible values and days on which tasmax is below tasmin, with the worst day and
        cell, maps without data or of one value, with the first day, and what cannot be read. One for each variable that
        has the same value everywhere, or none, that is drier than any desert, or whose cells lack values, and for cells
        of the mask's variable that begin to have data later.
    """
    variables = {name: _Variable(held, calibration) for name, held in series.items() if held}
    everywhere: list[tuple[np.ndarray | None, Mapping[str, Limits]]] = [(None, limits), *scopes]
    unreadable: dict[str, Problem] = {}
    for (first, after), tile in itertools.product(_spans(series), list(_tiles(series))):
        blocks = {
            name: [(file, block) for file in one.files for block in file.read(first, after, tile, unreadable)]
            for name, one in variables.items()
        }
        for name, (file, block) in ((name, each) for name, read in blocks.items() for each in read):
            file.add(block, [(inside, own.get(name)) for inside, own in everywhere])
            variables[name].add(file, block)
        for (file, warm), (other, cold) in itertools.product(blocks.get("tasmax", []), blocks.get("tasmin", [])):
            variables["tasmax"].compare(file, warm, cold, other.raw.known.raw)
    return [*unreadable.values(), *_found(variables, mask_variable, {*unreadable})]


def _found(variables: Mapping[str, _Variable], mask_variable: str, unreadable: set[str]) -> Iterator[Problem]:
    """Yield the problems of statistics; another problem of the same values is left out."""
    whole = {name: one for name, one in variables.items() if not unreadable & {file.raw.file for file in one.files}}
    constant = {name: problem for name, one in whole.items() for problem in _constant(one)}
    varying = [one for name, one in variables.items() if name not in constant]
    told = dict.fromkeys([
        *constant.values(),
        *(each for one in variables.values() for file in one.files for each in _outside(file)),
        *(each for one in varying for file in one.files if file.raw.file not in unreadable for each in _maps(file)),
        *(each for one in variables.values() for file in one.files for each in file.fills.problems()),
        *(each for one in varying for each in (*_too_dry(one), *_fractions(one))),
    ])  # fmt: skip
    yield from told
    mislabelled = {(each.file, each.variable) for each in told if each.kind == "mislabelled_units"}
    files = [file for one in variables.values() for file in one.files]
    yield from (each for file in files if (file.raw.file, file.raw.name) not in mislabelled for each in _beyond(file))
    if unreadable:
        return
    mask = variables.get(mask_variable)
    points = {dim for file in files for dim in file.raw.data.dims} >= {STATION}
    # Of a first day without any value, other checks tell. All stations count.
    if points:
        mask = None
    if mask and mask.on_first_day.any() and (late := (mask.found > 0) & ~mask.on_first_day).any():
        message = (
            f"{int(late.sum())} cell(s) have data, but none on this day, which says where land is: they are left "
            "out, the first of them here"
        )
        yield mask.raw.problem("cells_without_first_day", message, mask.first, int(late.sum()), _lowest(~late))
    is_below = any(each.kind == "tasmax_below_tasmin" for each in told)
    for one in variables.values():
        yield from (each for each in _crossed(one) if not (is_below and each.kind == "tasmax_below_tasmin"))
    for one in varying:
        # Variables of regional models may lack rows at the border that others have.
        yield from _lacking(one, mask.on_first_day if mask and mask.on_first_day.any() else (one.found > 0) | points)


def _range(files: Sequence[_File]) -> tuple[float, float, int]:
    """Return the lowest and the highest value of files, and how many values they have."""
    low, high, cells = (np.concatenate([getattr(file, name) for file in files]) for name in ("low", "high", "cells"))
    return float(np.fmin.reduce(low)), float(np.fmax.reduce(high)), int(cells.sum())


def _constant(one: _Variable) -> Iterator[Problem]:
    """Yield a variable with a single value in all cells on all days, or with none."""
    low, high, values = _range(one.files)
    if not values or (low == high and values >= CELLS_OF_A_MAP):
        what = f"the value is {low:g} in all cells on all days" if values else "no cell has a value on any day"
        message, value = f"{what}; expected values that vary", low if values else None
        yield one.raw.problem("constant_series", message, one.first, one.days.size, value=value)


def _outside(file: _File) -> Iterator[Problem]:
    """Yield the values beyond each kind of limits."""
    raw = file.raw
    for (kind, _), found in file.outside.items():
        days = f"{len(found.days)} day(s) from {raw.day(min(found.days))} on"
        message = f"{found.values} value(s) on {days}, the worst of them here{found.expected}"
        if len(found.far_days) > MISLABELLED * raw.days.size:
            kind, message = "mislabelled_units", f"the units or the fill value are probably wrong: {message}"
        yield raw.problem(kind, message, found.day, found.values, found.cell, found.value)


def _maps(file: _File) -> Iterator[Problem]:
    """Yield the days without data, and those of a single value."""
    days, high = file.raw.days, file.high
    # A day without rain anywhere is nothing special; a day of 0 K is.
    one_value = (file.low == high) & ((high != 0) | (file.raw.known.units == "K")) & (file.cells >= CELLS_OF_A_MAP)
    for kind, there in (("maps_without_data", np.isnan(high)), ("constant_maps", one_value)):
        if there.any() and STATION not in file.raw.data.dims:
            first, number = np.where(there, days, np.inf).argmin(), np.unique(days[there]).size
            value = None if np.isnan(high[first]) else float(high[first])
            message = f"{number} map(s), the first of them on this day"
            yield file.raw.problem(kind, message, int(days[first]), number, value=value)


def _too_dry(one: _Variable) -> Iterator[Problem]:
    """Yield the longest time without precipitation to speak of in any cell, if no desert has that."""
    known, order = one.known, np.argsort(one.days, kind="stable")
    if not (known.wet and known.longest_dry):
        return
    # A few cells may all lie in a desert.
    highest = np.concatenate([np.where(file.cells >= CELLS_OF_A_MAP, file.high, np.nan) for file in one.files])[order]
    # Days without data, of which nothing is known, end a dry time.
    wet = np.flatnonzero(np.append(~(highest < known.wet), True))
    runs = np.diff(wet, prepend=-1) - 1
    longest, after = int(runs.max()), int(wet[runs.argmax()])
    if longest < known.longest_dry:
        return
    first, most = int(one.days[order][after - longest]), float(highest[after - longest : after].max())
    raw = next(file.raw for file in one.files if first in file.raw.days)
    shown = known.shown_units
    given = xr.DataArray([most, known.wet], dims="side", attrs={"units": known.units})
    least = [f"{number:.2g} {shown}" for number in convert_to(given, shown).values]
    message = (
        f"the units are probably wrong: on none of {longest} days from this one on has any cell more than {least[0]}; "
        f"expected a day with {least[1]} or more within {known.longest_dry / 365:g} years"
    )
    yield raw.problem("mislabelled_units", message, first, longest, value=most)


def _fractions(one: _Variable) -> Iterator[Problem]:
    """Yield the first of a variable's files if all its percentages are fractions of 1; zeros alone say nothing."""
    low, high, values = _range(one.files)
    is_percentage = (one.known.units, one.known.bounds) == ("%", (0, 100))
    if is_percentage and one.days.size >= DAYS_OF_A_YEAR and 0 < high <= FRACTION:
        message = (
            f"the units are probably wrong: all values lie between {low:.3g} and {high:.3g} %, so they are probably "
            f"fractions of 1; expected values up to 100 %. Correct the attribute `units` of the files, which is "
            f"{one.raw.units or '%'}, to 1"
        )
        yield one.raw.problem("mislabelled_units", message, one.first, values, value=high)


def _beyond(file: _File) -> Iterator[Problem]:
    """Yield a file more than half of whose values are beyond the bounds of a transformation."""
    (low, high, values), raw = _range([file]), file.raw
    if file.beyond <= MISLABELLED * values:
        return
    (lowest, highest), units = raw.known.bounds, raw.data.attrs.get("units", "")
    bounds = f"{lowest:g} or more" if highest is None else f"{lowest:g} to {highest:g}"
    message = (
        f"the units or the bounds are probably wrong: {file.beyond} of {values} values, which go from {low:.6g} to "
        f"{high:.6g} {units}, are beyond the bounds; expected {bounds}"
    )
    yield raw.problem("mislabelled_units", message, int(raw.days.min()), file.beyond, value=high)


def _crossed(one: _Variable) -> Iterator[Problem]:
    """Yield a problem if tasmax is at or below tasmin too often, and a suspicion if that is so in single cells."""
    shares = [met / max(known, 1) for met, known in (file.crossed for file in one.files)]
    share, raw = max(shares), one.files[int(np.argmax(shares))].raw
    of_cell = one.met / np.maximum(one.compared, 1)
    cells = int((of_cell > CROSSED).sum())
    if share <= CROSSED and not cells:
        return
    is_wrong = max(share, cells / (one.compared > 0).sum()) > CROSSED or of_cell.max() > CROSSED_IN_A_CELL
    guess = ": the variables are probably exchanged" if share > 0.5 else ""
    message = (
        f"tasmax is not above tasmin in {share:.1%} of this file's values, on more than {CROSSED:.0%} of the "
        f"days in {cells} cell(s), and on {of_cell.max():.1%} of the days of the worst cell, here; expected at most "
        f"{CROSSED:.0%} of the values and of the cells, and {CROSSED_IN_A_CELL:.0%} of a cell's days{guess}"
    )
    kind = "crossed_temperatures" if is_wrong else "tasmax_below_tasmin"
    yield raw.problem(kind, message, int(raw.days.min()), int(one.met.sum()), _lowest(-of_cell))


def _lacking(one: _Variable, wanted: np.ndarray) -> Iterator[Problem]:
    """Yield the cells that have values on too few days, or lack some; maps without data are told of elsewhere."""
    # The file with the smallest share of values, of equal ones the earliest.
    raw = min(one.files, key=lambda file: float(file.cells.mean())).raw
    first, days = int(raw.days.min()), one.days.size
    calibration_days = int(one.is_in_calibration(one.days).sum())
    few = (one.found < ENOUGH_DAYS * days) | (one.in_calibration < ENOUGH_DAYS * calibration_days)
    if (few := wanted & few).any():
        share = np.minimum(one.found / days, one.in_calibration / calibration_days if calibration_days else 1)
        worst = _lowest(np.where(few, share, np.inf))
        message = (
            f"{int(few.sum())} cell(s) have values on less than {ENOUGH_DAYS:.0%} of the days; the worst of them, "
            f"here, on {one.found[worst]} of {days}"
        )
        if calibration_days:
            message += f", and on {one.in_calibration[worst]} of the calibration's {calibration_days}"
        yield raw.problem("too_few_days", message, first, int(few.sum()), worst)
    empty = sum(int(np.isnan(file.high).sum()) for file in one.files)
    lacked = np.where(wanted & ~few, days - empty - one.found, 0)
    if (lacked > 0).any():
        message = f"{int((lacked > 0).sum())} cell(s) lack values, the worst of them, here, on {lacked.max()} day(s)"
        yield raw.problem("missing_values", message, first, int(np.maximum(lacked, 0).sum()), _lowest(-lacked))


def _lowest(values: np.ndarray) -> Cell:
    """Return the first cell with the lowest value."""
    return tuple(map(int, np.unravel_index(int(values.argmin()), values.shape)))


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
        chunks = raw.data.chunks[1:] if raw.data.chunks else [(size,) for size in raw.data.shape[1:]]
        ends = [zip(itertools.accumulate(lengths), lengths, strict=True) for lengths in chunks]
        yield from itertools.product(*([slice(stop - length, stop) for stop, length in each] for each in ends))


def _chunks(raw: RawSeries) -> tuple[int, ...]:
    return raw.data.chunks[0] if raw.data.chunks else (_DAYS_OF_A_BLOCK,) * -(-raw.days.size // _DAYS_OF_A_BLOCK)
