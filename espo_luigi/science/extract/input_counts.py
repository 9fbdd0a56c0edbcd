"""What the examination of raw files counts: days with values and crossed temperatures in each cell, and fill values.

Fill values are numbers that stand for missing values without saying so, or that may be real values.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd
import xarray as xr

from espo_luigi.science.calendar import calendar_of
from espo_luigi.science.extract.dataset import to_canonical_units
from espo_luigi.science.extract.input_problems import Problem, RawSeries, wanted_days
from espo_luigi.science.problems import InputProblem
from espo_luigi.science.units import convert_to
from espo_luigi.science.variables import VARIABLES, Limits, Variable, variable

Series = Mapping[str, Sequence[RawSeries]]
# A part of the map: rows and columns.
Tile = Mapping[str, slice]

# The least share of the days, all or the calibration's, on which a cell has to have values.
ENOUGH_DAYS = 0.9
# The largest share of a file's values on which tasmax may be at or below tasmin; so many cells may have it on a
# larger share of their days.
CROSSED = 0.05
# The largest share in any cell: coarse precision leaves a cell of sea ice or polar night many days without a range.
CROSSED_IN_A_CELL = 0.5
# Fewer values may be equal by chance.
_RECURS = 9
# In mislabelled units, many numbers are impossible, and none of them is that part.
_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Block:
    """Some days of one file in memory."""

    raw: RawSeries
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


@dataclass
class _Days:
    """Counts days with values in each cell of a variable, over all days and over the calibration."""

    found: np.ndarray
    in_calibration: np.ndarray
    days: int = 0
    calibration_days: int = 0
    in_file: dict[RawSeries, np.ndarray] = field(default_factory=dict)
    """By file, how many values it has, and how many days and cells."""

    @property
    def few(self) -> np.ndarray:
        """Which cells have values on too few days."""
        lacks = self.found < ENOUGH_DAYS * self.days
        return lacks | (self.in_calibration < ENOUGH_DAYS * self.calibration_days)


@dataclass
class _Crossed:
    """Counts the days of each cell on which tasmax is not above tasmin, and the days on which both have values."""

    met: np.ndarray
    days: np.ndarray
    in_file: dict[RawSeries, np.ndarray] = field(default_factory=dict)
    """By file, both numbers, summed over its cells."""


class Cells:
    """Counts days with values, and days on which tasmax is not above tasmin, in each cell of each variable."""

    def __init__(self, series: Series, mask_variable: str, calibration: tuple[str, str] | None) -> None:
        files = {name: sorted(held, key=lambda raw: int(raw.days.min())) for name, held in series.items() if held}
        self.first = next(iter(files.values()), [None])[0]
        self.mask_files = files.get(mask_variable, [])
        shape = self.first.data.shape[1:] if self.first else (0, 0)
        self.on_first_day = np.zeros(shape, bool)
        self.days = {name: _Days(np.zeros(shape, np.int32), np.zeros(shape, np.int32)) for name in files}
        self.crossed = {name: _Crossed(np.zeros(shape, np.int32), np.zeros(shape, np.int32)) for name in files}
        self.calibration = (0, -1)
        if calibration and self.first:
            begin, end = map(self.first.number, wanted_days(*calibration, calendar_of(self.first.data)))
            self.calibration = begin, end

    def add(self, block: Block) -> None:
        tile, days = tuple(block.tile.values()), self.days[block.raw.name]
        inside = (block.days >= self.calibration[0]) & (block.days <= self.calibration[1])
        found = block.finite.sum(axis=0, dtype=np.int32)
        days.found[tile] += found
        days.in_file[block.raw] = days.in_file.get(block.raw, 0) + np.array([found.sum(), block.finite.size])
        days.in_calibration[tile] += found if inside.all() else block.finite[inside].sum(axis=0, dtype=np.int32)
        if not any(rows.start for rows in tile):
            days.days += block.days.size
            days.calibration_days += int(inside.sum())
        mask = self.mask_files[0] if self.mask_files else None
        if mask and block.raw.name == mask.name and block.days.min() == mask.days.min():
            self.on_first_day[tile] = block.finite[block.days.argmin()]
        if block.raw.known.is_range:
            self.add_crossed(block, block.values <= 0, block.finite)

    def add_crossed(self, block: Block, met: np.ndarray, known: np.ndarray) -> None:
        """Add values (days, y, x) of tasmax or dtr: on which tasmax is not above tasmin, and which are known."""
        crossed, tile = self.crossed[block.raw.name], tuple(block.tile.values())
        crossed.met[tile] += met.sum(axis=0, dtype=np.int32)
        crossed.days[tile] += known.sum(axis=0, dtype=np.int32)
        both = np.array([met.sum(), known.sum()])
        crossed.in_file[block.raw] = crossed.in_file.get(block.raw, 0) + both

    def problems(self, series: Series, empty_maps: Mapping[str, int]) -> Iterator[Problem]:
        """Yield the problems of variables that have values; maps without data are told of elsewhere."""
        yield from self._late()
        for crossed in self.crossed.values():
            yield from _crossed_problems(crossed)
        for name in [name for name in series if name in self.days]:
            # Variables of regional models may lack rows at the border that others have.
            wanted = self.on_first_day if self.on_first_day.any() else self.days[name].found > 0
            yield from self._lacking(name, series[name], wanted, empty_maps.get(name, 0))

    def _lacking(self, name: str, files: Sequence[RawSeries], wanted: np.ndarray, empty: int) -> Iterator[Problem]:
        days = self.days[name]
        # The file with the smallest share of values, of equal ones the earliest.
        shares = {raw: has / of for raw, (has, of) in days.in_file.items()}
        raw = min(files, key=lambda raw: (shares.get(raw, 1), raw.days.min()))
        few = wanted & days.few
        if few.any():
            share = np.minimum(days.found / days.days, days.in_calibration / max(days.calibration_days, 1))
            cell = first_cell(raw, np.where(few, share if days.calibration_days else days.found, np.inf))
            at = tuple(cell.values())
            message = (
                f"{int(few.sum())} cell(s) have values on less than {ENOUGH_DAYS:.0%} of the days; the worst of them, "
                f"here, on {days.found[at]} of {days.days}"
            )
            if days.calibration_days:
                message += f", and on {days.in_calibration[at]} of the calibration's {days.calibration_days}"
            yield in_cell(raw.problem("too_few_days", message, int(raw.days.min()), int(few.sum())), raw, cell)
        lacked = np.where(wanted & ~few, days.days - empty - days.found, 0)
        if (lacked > 0).any():
            cell = first_cell(raw, -lacked)
            message = (
                f"{int((lacked > 0).sum())} cell(s) lack values, the worst of them, here, on {lacked.max()} day(s)"
            )
            number = int(np.maximum(lacked, 0).sum())
            yield in_cell(raw.problem("missing_values", message, int(raw.days.min()), number), raw, cell)

    def _late(self) -> Iterator[Problem]:
        if not self.mask_files:
            return
        raw = self.mask_files[0]
        late = (self.days[raw.name].found > 0) & ~self.on_first_day
        # Of a first day without any value, other checks tell.
        if late.any() and self.on_first_day.any():
            message = (
                f"{int(late.sum())} cell(s) have data, but none on this day, which says where land is: they are left "
                "out, the first of them here"
            )
            found = raw.problem("cells_without_first_day", message, int(raw.days.min()), int(late.sum()))
            yield in_cell(found, raw, first_cell(raw, ~late))


def _crossed_problems(crossed: _Crossed) -> Iterator[Problem]:
    """Yield a problem if tasmax is at or below tasmin too often, and a suspicion if that is so in single cells."""
    if not crossed.met.any():
        return
    shares = {raw: met / max(known, 1) for raw, (met, known) in crossed.in_file.items()}
    raw = max(shares, key=shares.__getitem__)
    of_cell = crossed.met / np.maximum(crossed.days, 1)
    cells = int((of_cell > CROSSED).sum())
    if shares[raw] <= CROSSED and not cells:
        return
    is_wrong = max(shares[raw], cells / (crossed.days > 0).sum()) > CROSSED or of_cell.max() > CROSSED_IN_A_CELL
    guess = ": the variables are probably exchanged" if shares[raw] > 0.5 else ""
    message = (
        f"tasmax is not above tasmin in {shares[raw]:.1%} of this file's values, on more than {CROSSED:.0%} of the "
        f"days in {cells} cell(s), and on {of_cell.max():.1%} of the days of the worst cell, here; expected at most "
        f"{CROSSED:.0%} of the values and of the cells, and {CROSSED_IN_A_CELL:.0%} of a cell's days{guess}"
    )
    kind: InputProblem = "crossed_temperatures" if is_wrong else "tasmax_below_tasmin"
    found = raw.problem(kind, message, int(raw.days.min()), int(crossed.met.sum()))
    yield in_cell(found, raw, first_cell(raw, -of_cell))


def first_cell(raw: RawSeries, values: np.ndarray) -> dict[str, int]:
    """Return the place of the first cell with the lowest value."""
    place = np.unravel_index(int(values.argmin()), values.shape)
    return {str(dim): int(at) for dim, at in zip(raw.data.dims[1:], place, strict=True)}


def in_cell(problem: Problem, raw: RawSeries, cell: Mapping[str, int]) -> Problem:
    return replace(problem, lat=value_at(raw.data["lat"], cell), lon=value_at(raw.data["lon"], cell))


def is_within(values: np.ndarray, limits: Limits) -> np.ndarray:
    return (values >= limits[0]) & (values <= limits[1])


def value_at(coordinate: xr.DataArray, cell: Mapping[str, int]) -> float:
    return float(coordinate.isel({dim: cell[str(dim)] for dim in coordinate.dims}))


def doubtful_fill(data: xr.DataArray, table: Mapping[str, Variable] = VARIABLES) -> float | None:
    """Return the number that a file declares as missing, in its units, if the variable may have this value; else None.

    Zarr 2's default is 0, and xarray takes a dry day for missing. Packed numbers are codes, not values.
    """
    fill = data.encoding.get("_FillValue", data.encoding.get("missing_value"))
    packed = {"scale_factor", "add_offset"} & data.encoding.keys()
    name, stored = str(data.name), np.dtype(data.encoding.get("dtype", data.dtype))
    low, high = variable(name, table).no_fills
    if not np.isfinite((low, high)).all() or packed or stored.kind != "f" or fill is None or np.size(fill) != 1:
        return None
    number = float(np.asarray(fill).item())
    value = float(
        to_canonical_units(xr.DataArray(number, name=name, attrs={"units": data.attrs.get("units")}), table=table)
    )
    return number if low <= value <= high else None


@dataclass
class _Count:
    """Where a number stands in a file: on which days, in how many cells and values."""

    raw: RawSeries
    values: int = 0
    days: set[int] = field(default_factory=set)
    cells: set[tuple[int, ...]] = field(default_factory=set)
    """Two cells at most."""

    def add(self, there: np.ndarray, days: np.ndarray, tile: Mapping[str, slice]) -> None:
        self.values += int(there.sum())
        self.days.update(days[there.any(axis=(1, 2))].tolist())
        corner = [part.start for part in tile.values()]
        found = (tuple(map(int, cell + corner)) for cell in np.argwhere(there.any(axis=0))[:2])
        self.cells = set(sorted(self.cells.union(found))[:2])

    @property
    def recurs(self) -> bool:
        """Whether several values, days and cells have the number."""
        return self.values >= _RECURS and len(self.days) > 1 and len(self.cells) > 1

    def problem(self, value: float, message: str) -> Problem:
        """Return a problem on the first day and in the first cell."""
        cell = dict(zip(map(str, self.raw.data.dims[1:]), min(self.cells), strict=True))
        text = f"{self.values} value(s) on {len(self.days)} day(s) from this one on {message}"
        told = in_cell(self.raw.problem("fill_values", text, min(self.days), self.values), self.raw, cell)
        return replace(told, value=value)


class Fills:
    """Counts such numbers, block by block."""

    def __init__(self) -> None:
        self._declared: dict[tuple[str, str], _Count] = {}
        self._impossible: dict[tuple[str, str], dict[float, _Count]] = defaultdict(dict)
        self._all_impossible: Counter[tuple[str, str]] = Counter()

    def taken_out(self, raw: RawSeries, days: np.ndarray, values: np.ndarray, tile: Mapping[str, slice]) -> np.ndarray:
        """Count the numbers of a block (days, y, x); return it with NaN in place of impossible numbers that recur.

        Other checks then see the cells as they are meant.
        """
        if raw.doubtful_fill is not None:
            missing = np.isnan(values)
            missing &= ~missing.all(axis=0)
            if missing.any():
                self._declared.setdefault((raw.file, raw.name), _Count(raw)).add(missing, days, tile)
        low, high = raw.known.no_fills
        if not (np.fmin.reduce(values, axis=None) < low or np.fmax.reduce(values, axis=None) > high):
            return values
        impossible = values[np.isfinite(values) & ((values < low) | (values > high))]
        self._all_impossible[raw.file, raw.name] += impossible.size
        known = self._impossible[raw.file, raw.name]
        numbers, counts = np.unique(impossible, return_counts=True)
        # Single numbers would make the known ones grow with each block.
        for number in numbers[(counts >= max(2, _SHARE * impossible.size)) | np.isin(numbers, list(known))]:
            there = values == number
            count = known.setdefault(float(number), _Count(raw))
            count.add(there, days, tile)
            if self._is_fill(count):
                values = np.where(there, np.nan, values)
        return values

    def _is_fill(self, count: _Count) -> bool:
        return count.recurs and count.values >= _SHARE * self._all_impossible[count.raw.file, count.raw.name]

    def problems(self) -> Iterator[Problem]:
        """Yield each number of each file."""
        for count in self._declared.values():
            raw, fill = count.raw, float(count.raw.doubtful_fill or 0)
            yield count.problem(
                fill,
                f"are missing in cells that have others, as the file declares {fill:g} {raw.units} as missing, which "
                f"{raw.name} may really be. If they are real, set `xr_open_kwargs: {{mask_and_scale: {{{raw.name}: "
                "false}}`, or write the file with another _FillValue",
            )
        for numbers in self._impossible.values():
            for number, count in numbers.items():
                if self._is_fill(count):
                    yield _undeclared(number, count)


def _undeclared(number: float, count: _Count) -> Problem:
    canonical = str(count.raw.data.attrs.get("units", ""))
    units = count.raw.units or canonical
    value = float(convert_to(xr.DataArray(number, name=count.raw.name, attrs={"units": canonical}), units))
    declared = [
        f"{name} ({fill}, {type(fill).__name__}) declares, but not as readers take it"
        for name, fill in count.raw.fills.items()
        if np.isclose(pd.to_numeric(np.ravel(fill), errors="coerce"), value, rtol=1e-5).any()
    ]
    return count.problem(
        value,
        f"are {value:.6g} {units}, which is impossible: a fill value that {(*declared, 'no attribute declares')[0]}. "
        "Declare it in the file as _FillValue, in the variable's own type",
    )
