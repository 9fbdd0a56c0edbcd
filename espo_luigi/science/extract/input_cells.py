"""What the examination of raw files counts in each cell: days with values, and days without a range of temperatures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import xarray as xr

from espo_luigi.science.calendar import calendar_of
from espo_luigi.science.extract.dataset import wanted_days
from espo_luigi.science.extract.input_problems import Problem, RawSeries
from espo_luigi.science.possible import Limits

Series = Mapping[str, Sequence[RawSeries]]
# A part of the map: rows and columns.
Tile = Mapping[str, slice]

# The least share of the days, all or the calibration's, on which a cell has to have values.
ENOUGH_DAYS = 0.9
# The largest share of a file's values, or of a cell's days, on which tasmax may be at or below tasmin.
CROSSED = 0.05


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
    """On how many days each cell of a variable has values, and the number of all days; and of the calibration."""

    found: np.ndarray
    in_calibration: np.ndarray
    days: int = 0
    calibration_days: int = 0

    @property
    def few(self) -> np.ndarray:
        """Which cells have values on too few days."""
        lacks = self.found < ENOUGH_DAYS * self.days
        return lacks | (self.in_calibration < ENOUGH_DAYS * self.calibration_days)


class Cells:
    """What is counted in each cell: days with values, and days on which tasmax is not above tasmin."""

    def __init__(self, series: Series, mask_variable: str, calibration: tuple[str, str] | None) -> None:
        files = {name: sorted(held, key=lambda raw: int(raw.days.min())) for name, held in series.items() if held}
        self.first = next(iter(files.values()), [None])[0]
        self.mask_files = files.get(mask_variable, [])
        shape = self.first.data.shape[1:] if self.first else (0, 0)
        self.on_first_day = np.zeros(shape, bool)
        self.days = {name: _Days(np.zeros(shape, np.int32), np.zeros(shape, np.int32)) for name in files}
        self.crossed, self.crossed_in_file = np.zeros(shape, np.int32), Counter[RawSeries]()
        self.calibration = (0, -1)
        if calibration and self.first:
            begin, end = map(self.first.number, wanted_days(*calibration, calendar_of(self.first.data)))
            self.calibration = begin, end

    def add(self, block: Block) -> None:
        tile, days = tuple(block.tile.values()), self.days[block.raw.name]
        inside = (block.days >= self.calibration[0]) & (block.days <= self.calibration[1])
        found = block.finite.sum(axis=0, dtype=np.int32)
        days.found[tile] += found
        days.in_calibration[tile] += found if inside.all() else block.finite[inside].sum(axis=0, dtype=np.int32)
        if not any(rows.start for rows in tile):
            days.days += block.days.size
            days.calibration_days += int(inside.sum())
        mask = self.mask_files[0] if self.mask_files else None
        if mask and block.raw.name == mask.name and block.days.min() == mask.days.min():
            self.on_first_day[tile] = block.finite[block.days.argmin()]
        if block.raw.name == "dtr":
            self.add_crossed(block, block.values <= 0)

    def add_crossed(self, warm: Block, met: np.ndarray) -> None:
        self.crossed[tuple(warm.tile.values())] += met.sum(axis=0, dtype=np.int32)
        self.crossed_in_file[warm.raw] += int(met.sum())

    def problems(self, series: Series, empty_maps: Mapping[str, int]) -> Iterator[Problem]:
        """Yield the problems of variables that have values; maps without data are told of elsewhere."""
        yield from self._late()
        yield from self._crossed()
        known = [name for name in series if name in self.days]
        wanted = self.on_first_day
        if not wanted.any():
            wanted = np.logical_or.reduce([self.days[name].found > 0 for name in known])
        for name in known:
            yield from self._lacking(name, series[name], wanted, empty_maps.get(name, 0))

    def _lacking(self, name: str, files: Sequence[RawSeries], wanted: np.ndarray, empty: int) -> Iterator[Problem]:
        days, raw = self.days[name], min(files, key=lambda raw: int(raw.days.min()))
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

    def _crossed(self) -> Iterator[Problem]:
        if not self.crossed_in_file:
            return
        raw, most = max(self.crossed_in_file.items(), key=lambda item: item[1] / item[0].data.size)
        of_cell = self.crossed / np.maximum(self.days[raw.name].found, 1)
        if max(most / raw.data.size, of_cell.max()) > CROSSED:
            where = first_cell(raw, -of_cell)
            guess = ": the variables are probably exchanged" if most > 0.5 * raw.data.size else ""
            message = (
                f"tasmax is not above tasmin in {most / raw.data.size:.1%} of this file's values, and on "
                f"{of_cell.max():.1%} of the days of the worst cell, here; expected at most {CROSSED:.0%}{guess}"
            )
            number = sum(self.crossed_in_file.values())
            yield in_cell(raw.problem("crossed_temperatures", message, int(raw.days.min()), number), raw, where)

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
