"""Problems with the values of raw daily files, found in a single pass, a block of days at a time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import xarray as xr

from espo_luigi.science.chunks import indexer
from espo_luigi.science.diagnose.flags import default_threshold
from espo_luigi.science.extract.input_counts import Block, Cells, Fills, Series, Tile, is_within, value_at
from espo_luigi.science.extract.input_problems import Problem, RawSeries
from espo_luigi.science.problems import FLAGS, InputProblem
from espo_luigi.science.units import convert_to
from espo_luigi.science.variables import VARIABLES, Limits, Variable, variable

# A smaller map may hold a single value by chance.
CELLS_OF_A_MAP = 9
# With values that are far from possible on more days than this part, it is the units that are wrong.
MISLABELLED = 0.5
# How far that is, as a part of the possible range's width.
FAR = 0.1
# The share of the range between bounds beyond which a value counts as beyond them: air may be supersaturated.
_SLACK = 0.01
# Within a year, some cell is cloudy or humid on some day. Percentages that never exceed this (in %) are fractions of 1
# that are labelled percent, unless they all are 0: the tropics may have no snow, and no sea ice.
DAYS_OF_A_YEAR, FRACTION = 360, 1.5
_DAYS_OF_A_BLOCK = 365
# The limit that a flag of the health checks sets: 0 is the lowest value, 1 the highest.
_LIMITED = {name: ("below", "above").index(flag.side) for name, flag in FLAGS.items() if flag.side}
del _LIMITED["tasmax_below_tasmin"]  # limits no variable's own values
_TEMPERATURES = ("tasmax", "tasmin", "tas")


def limits_of(
    flags: Mapping[str, Mapping[str, Mapping[str, str] | None] | None], table: Mapping[str, Variable] = VARIABLES
) -> dict[str, Limits]:
    """Return the limits that the data flags of the health checks give each variable, in the table's units.

    Temperatures share theirs: no minimum is above the highest maximum. A flag without threshold has xclim's own.
    """
    found: dict[str, Limits] = {}
    for name, chosen in flags.items():
        bounds = [-np.inf, np.inf]
        units = variable(name, table).units
        for flag in [flag for flag in chosen or {} if flag in _LIMITED and units]:
            bounds[_LIMITED[flag]] = _bound(flag, name, units, ((chosen or {})[flag] or {}).get("thresh"))
        found[name] = (bounds[0], bounds[1])
    warm = [found[name] for name in _TEMPERATURES if name in found]
    finite = [[limit for limit in side if np.isfinite(limit)] for side in zip(*warm, strict=True)] if warm else [[], []]
    shared = (min(finite[0], default=-np.inf), max(finite[1], default=np.inf))
    limits = found | {name: shared for name in _TEMPERATURES}
    return {name: pair for name, pair in limits.items() if np.isfinite(pair).any()}


def _bound(flag: str, name: str, wanted: str, threshold: str | None) -> float:
    if flag == "negative_accumulation_values":
        return 0.0
    number, _, units = str(threshold or default_threshold(flag)).strip().partition(" ")
    return float(convert_to(xr.DataArray(float(number), name=name, attrs={"units": units}), wanted))


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
        # By file and variable, the lowest and the highest value, and how many values there are.
        self.ranges: dict[tuple[str, str], tuple[float, float, int]] = {}
        # By variable with dry days, the highest value of each day.
        self.wettest: dict[str, list[tuple[RawSeries, np.ndarray, np.ndarray]]] = {}
        self.empty_maps: dict[str, int] = {}
        # By file and variable that is adjusted through a transformation, how many values are beyond its bounds.
        self.beyond: Counter[tuple[str, str]] = Counter()

    def range_of(self, files: Sequence[RawSeries]) -> tuple[float, float, int]:
        """Return the lowest and the highest value of files, and how many values they have."""
        held = [self.ranges[raw.file, raw.name] for raw in files if (raw.file, raw.name) in self.ranges]
        return min((r[0] for r in held), default=0.0), max((r[1] for r in held), default=0.0), sum(r[2] for r in held)

    def of(self, kind: InputProblem, raw: RawSeries) -> _Tally:
        return self.found.setdefault((kind, raw.file, raw.name), _Tally(raw))


@dataclass
class _Maps:
    """Whole maps of some days of a file, filled tile by tile."""

    raw: RawSeries
    days: np.ndarray
    extremes: np.ndarray
    cells: np.ndarray
    """How many have a value."""

    def add(self, block: Block) -> None:
        low, high = block.extremes
        self.extremes = np.stack([np.fmin(self.extremes[0], low), np.fmax(self.extremes[1], high)])
        self.cells = self.cells + block.finite.sum(axis=(1, 2))


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
        Per variable, its daily files, cut to what is to be examined; only one tile of the map, for a block of days, is
        in memory at a time, of all variables: a Dask chunk of the first one.
    limits
        What `limits_of` returns; impossible values (`Variable.raw`) count apart from those beyond these limits.
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
    tallies, of_scopes = _Tallies(), [_Tallies() for _ in scopes]
    cells = Cells(series, mask_variable, calibration)
    for first, last in _spans(series):
        maps: dict[tuple[str, str], _Maps] = {}
        for tile in _tiles(series):
            blocks = {name: list(_read(files, first, last, tile, tallies)) for name, files in series.items()}
            for block in itertools.chain.from_iterable(blocks.values()):
                _add_to_maps(maps, block)
                _look_at_range(block, limits.get(block.raw.name), tallies)
                for (inside, narrower), found in zip(scopes, of_scopes, strict=True):
                    _look_inside(block, inside, narrower.get(block.raw.name), found)
                cells.add(block)
            for warm, cold in itertools.product(blocks.get("tasmax", []), blocks.get("tasmin", [])):
                _compare(warm, cold, tallies, cells)
        for whole in maps.values():
            _look_at_maps(whole, tallies)
    constant = list(_constant_series(series, tallies))
    explained = {problem.variable for problem in constant}
    problems = [
        _problem(kind, tally, limits)
        for (kind, _, name), tally in tallies.found.items()
        if kind not in ("maps_without_data", "constant_maps") or name not in explained
    ]
    for (_, narrower), found in zip(scopes, of_scopes, strict=True):
        beyond = [tally for (kind, *_), tally in found.found.items() if kind == "values_out_of_range"]
        again = [_problem("values_out_of_range", tally, narrower) for tally in beyond]
        problems += [problem for problem in again if problem not in problems]
    wettest = [of_days for name, of_days in tallies.wettest.items() if name not in explained]
    scaled = [problem for of_days in wettest for problem in _too_dry(of_days)]
    scaled += [one for name, files in series.items() if name not in explained for one in _fractions(files, tallies)]
    told = {(one.file, one.variable) for one in (*problems, *scaled) if one.kind == "mislabelled_units"}
    others = [raw for files in series.values() for raw in files if (raw.file, raw.name) not in told]
    scaled += [one for raw in others for one in _mostly_beyond(raw, tallies)]
    complete = {name: files for name, files in series.items() if name not in explained}
    of_cells = [] if tallies.unreadable else list(cells.problems(complete, tallies.empty_maps))
    if any(problem.kind == "tasmax_below_tasmin" for problem in problems):
        of_cells = [problem for problem in of_cells if problem.kind != "tasmax_below_tasmin"]
    return [
        *tallies.unreadable.values(),
        *constant,
        *problems,
        *tallies.fills.problems(),
        *scaled,
        *of_cells,
    ]


def _both(limits: Limits | None, default: Limits) -> Limits:
    """Return limits with a default for each side that has none."""
    low, high = limits or (-np.inf, np.inf)
    return low if np.isfinite(low) else default[0], high if np.isfinite(high) else default[1]


def _too_dry(wettest: Sequence[tuple[RawSeries, np.ndarray, np.ndarray]]) -> Iterator[Problem]:
    """Yield the longest time without precipitation to speak of in any cell, if no desert has that."""
    known = wettest[0][0].known
    threshold, longest_dry = known.wet or 0.0, known.longest_dry or np.inf
    days = np.concatenate([days for _, days, _ in wettest])
    order = np.argsort(days, kind="stable")
    highest = np.concatenate([high for _, _, high in wettest])[order]
    # Days without data, of which nothing is known, end a dry time.
    wet = np.flatnonzero(np.append(~(highest < threshold), True))
    runs = np.diff(wet, prepend=-1) - 1
    longest, after = int(runs.max()), int(wet[runs.argmax()])
    if longest < longest_dry:
        return
    first, most = int(days[order][after - longest]), float(highest[after - longest : after].max())
    raw = next(raw for raw, of_block, _ in wettest if first in of_block)
    shown = known.display_units or known.units
    given = xr.DataArray([most, threshold], dims="side", attrs={"units": known.units})
    least = [f"{number:.2g} {shown}" for number in convert_to(given, shown).values]
    message = (
        f"the units are probably wrong: on none of {longest} days from this one on has any cell more than {least[0]}; "
        f"expected a day with {least[1]} or more within {longest_dry / 365:g} years"
    )
    yield replace(raw.problem("mislabelled_units", message, first, longest), value=most)


def _constant_series(series: Series, tallies: _Tallies) -> Iterator[Problem]:
    """Yield the variables with a single value in all cells on all days, or with none, unless a file cannot be read."""
    for files in series.values():
        low, high, values = tallies.range_of(files)
        if any(raw.file in tallies.unreadable for raw in files) or not files:
            continue
        if not values or (low == high and values >= CELLS_OF_A_MAP):
            raw, days = min(files, key=lambda raw: int(raw.days.min())), sum(raw.days.size for raw in files)
            what = f"the value is {low:g} in all cells on all days" if values else "no cell has a value on any day"
            found = raw.problem("constant_series", f"{what}; expected values that vary", int(raw.days.min()), days)
            yield replace(found, value=low if values else None)


def _mostly_beyond(raw: RawSeries, tallies: _Tallies) -> Iterator[Problem]:
    """Yield a file more than half of whose values are beyond the bounds of a transformation."""
    (low, high, values), outside = tallies.range_of([raw]), tallies.beyond[raw.file, raw.name]
    if outside <= MISLABELLED * values:
        return
    (lowest, highest), units = raw.known.bounds, raw.data.attrs.get("units", "")
    expected = f"{lowest:g} or more" if highest is None else f"{lowest:g} to {highest:g}"
    message = (
        f"the units or the bounds are probably wrong: {outside} of {values} values, which go from {low:.6g} to "
        f"{high:.6g} {units}, are beyond the bounds; expected {expected}"
    )
    yield replace(raw.problem("mislabelled_units", message, int(raw.days.min()), outside), value=high)


def _fractions(files: Sequence[RawSeries], tallies: _Tallies) -> Iterator[Problem]:
    """Yield the first of a variable's files if all its percentages are fractions of 1; zeros alone say nothing."""
    low, high, values = tallies.range_of(files)
    is_long = sum(raw.days.size for raw in files) >= DAYS_OF_A_YEAR
    if not (is_long and (files[0].known.units, files[0].known.bounds) == ("%", (0, 100)) and 0 < high <= FRACTION):
        return
    raw = min(files, key=lambda raw: int(raw.days.min()))
    message = (
        f"the units are probably wrong: all values lie between {low:.3g} and {high:.3g} %, so they are probably "
        f"fractions of 1; expected values up to 100 %. Correct the attribute `units` of the files, which is "
        f"{raw.units or '%'}, to 1"
    )
    yield replace(raw.problem("mislabelled_units", message, int(raw.days.min()), values), value=high)


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


def _read(files: Sequence[RawSeries], first: int, after: int, tile: Tile, tallies: _Tallies) -> Iterator[Block]:
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
        yield Block(raw, days, tallies.fills.taken_out(raw, days, values, tile), tile)


def _add_to_maps(maps: dict[tuple[str, str], _Maps], block: Block) -> None:
    none = np.full_like(block.extremes, np.nan), np.zeros(block.days.size, int)
    maps.setdefault((block.raw.file, block.raw.name), _Maps(block.raw, block.days, *none)).add(block)


def _look_at_maps(maps: _Maps, tallies: _Tallies) -> None:
    if maps.raw.file in tallies.unreadable:
        return
    low, high = maps.extremes
    empty = np.isnan(high)
    before = tallies.ranges.get((maps.raw.file, maps.raw.name), (np.inf, -np.inf, 0))
    tallies.ranges[maps.raw.file, maps.raw.name] = (
        float(np.fmin.reduce(low, initial=before[0])),
        float(np.fmax.reduce(high, initial=before[1])),
        before[2] + int(maps.cells.sum()),
    )
    if maps.raw.known.wet and maps.raw.known.longest_dry:
        # A few cells may all lie in a desert.
        known = np.where(maps.cells >= CELLS_OF_A_MAP, high, np.nan)
        tallies.wettest.setdefault(maps.raw.name, []).append((maps.raw, maps.days, known))
    if empty.any():
        tallies.empty_maps[maps.raw.name] = tallies.empty_maps.get(maps.raw.name, 0) + int(empty.sum())
        tallies.of("maps_without_data", maps.raw).add(maps.days[empty], int(empty.sum()))
    # A day without rain anywhere is nothing special; a day of 0 K is.
    one_value = (low == high) & ((high != 0) | (maps.raw.known.units == "K"))
    constant = np.flatnonzero(one_value & (maps.cells >= CELLS_OF_A_MAP))
    if constant.size:
        tally = tallies.of("constant_maps", maps.raw)
        if not tally.days:
            tally.worst_value = float(high[constant[0]])
        tally.add(maps.days[constant], constant.size)


def _look_at_range(block: Block, limits: Limits | None, tallies: _Tallies) -> None:
    """Add impossible values, and others that are beyond the limits of the data flags."""
    rest, possible = block, block.raw.known.raw
    lowest, highest = (np.nan if one is None else one for one in block.raw.known.bounds)
    if block.raw.known.transformation:
        slack = 0 if np.isnan(highest) else _SLACK * (highest - lowest)
        outside = (block.values < lowest - slack) | (block.values > highest + slack)
        tallies.beyond[block.raw.file, block.raw.name] += int(outside.sum())
    if impossible := _add_outside("impossible_values", block, possible, tallies):
        far = FAR * (possible[1] - possible[0])
        # A few cells of 0 K on all days are no matter of units.
        beyond = ~is_within(block.values, (possible[0] - far, possible[1] + far)) & block.finite
        far_days = block.days[beyond.sum(axis=(1, 2)) > 0.5 * block.finite.sum(axis=(1, 2))]
        impossible.far_days.update(far_days.tolist())
        within = np.where(is_within(block.values, possible), block.values, np.nan)
        rest = Block(block.raw, block.days, within, block.tile)
    if limits:
        _add_outside("values_out_of_range", rest, limits, tallies)


def _look_inside(block: Block, inside: np.ndarray, limits: Limits | None, tallies: _Tallies) -> None:
    """Add the values beyond the limits of a scope, in its cells."""
    of_tile = inside[tuple(block.tile.values())]
    if limits and of_tile.any():
        _look_at_range(replace(block, values=np.where(of_tile, block.values, np.nan)), limits, tallies)


def _add_outside(kind: InputProblem, block: Block, limits: Limits, tallies: _Tallies) -> _Tally | None:
    low, high = block.extremes
    outside = (low < limits[0]) | (high > limits[1])
    if not outside.any():
        return None
    values, tally = block.values[outside], tallies.of(kind, block.raw)
    tally.add_values(block.days[outside], np.fmax(limits[0] - values, values - limits[1]), values, block.tile)
    return tally


def _compare(warm: Block, cold: Block, tallies: _Tallies, cells: Cells) -> None:
    shared, of_warm, of_cold = np.intersect1d(warm.days, cold.days, return_indices=True)
    if warm.values.shape[1:] != cold.values.shape[1:] or not shared.size:
        return
    maxima, minima = _taken(warm.values, of_warm), _taken(cold.values, of_cold)
    excess = minima - maxima
    worst = np.fmax.reduce(excess.reshape(shared.size, -1), axis=1)
    met = excess >= 0
    if met.any():
        # Values that are impossible by themselves say nothing about the other variable.
        met &= is_within(maxima, warm.raw.known.raw) & is_within(minima, cold.raw.known.raw)
    cells.add_crossed(warm, met, np.isfinite(excess))
    wrong = worst > 0
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
        possible = raw.known.raw
        low, high = possible if kind == "impossible_values" else _both(limits.get(raw.name), possible)
        message = f"{message}; expected {low:.6g} to {high:.6g} {raw.data.attrs.get('units', '')}".rstrip()
    if kind == "impossible_values" and len(tally.far_days) > MISLABELLED * raw.days.size:
        kind, message = "mislabelled_units", f"the units or the fill value are probably wrong: {message}"
    lat, lon = (value_at(raw.data[name], tally.cell) for name in ("lat", "lon"))
    return replace(raw.problem(kind, message, tally.worst_day, tally.values), lat=lat, lon=lon, value=tally.worst_value)
