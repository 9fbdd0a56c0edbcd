"""Numbers in raw daily files that stand for missing values without saying so, or that may be real values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import xarray as xr

from espo_luigi.science.choices import CANONICAL_UNITS
from espo_luigi.science.extract.dataset import to_canonical_units
from espo_luigi.science.extract.input_problems import Problem, RawSeries
from espo_luigi.science.possible import NO_FILLS
from espo_luigi.science.units import convert_to

# Fewer values may be equal by chance.
_RECURS = 9
# In mislabelled units, many numbers are impossible, and none of them is that part.
_SHARE = 0.25


def doubtful_fill(data: xr.DataArray) -> float | None:
    """Return the number that a file declares as missing, in its units, if the variable may have this value; else None.

    Zarr 2's default is 0, and xarray takes a dry day for missing. Packed numbers are codes, not values.
    """
    fill = data.encoding.get("_FillValue", data.encoding.get("missing_value"))
    packed = {"scale_factor", "add_offset"} & data.encoding.keys()
    name, stored = str(data.name), np.dtype(data.encoding.get("dtype", data.dtype))
    if name not in NO_FILLS or packed or stored.kind != "f" or fill is None or np.size(fill) != 1:
        return None
    number = float(np.asarray(fill).item())
    value = float(to_canonical_units(xr.DataArray(number, name=name, attrs={"units": data.attrs.get("units")})))
    low, high = NO_FILLS[name]
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
        places = (self.raw.data[name] for name in ("lat", "lon"))
        lat, lon = (float(one.isel({dim: cell[str(dim)] for dim in one.dims})) for one in places)
        text = f"{self.values} value(s) on {len(self.days)} day(s) from this one on {message}"
        return replace(
            self.raw.problem("fill_values", text, min(self.days), self.values), value=value, lat=lat, lon=lon
        )


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
        low, high = NO_FILLS.get(raw.name, (-np.inf, np.inf))
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
    canonical = CANONICAL_UNITS[count.raw.name]
    units = count.raw.units or canonical
    value = float(convert_to(xr.DataArray(number, name=count.raw.name, attrs={"units": canonical}), units))
    return count.problem(
        value,
        f"are {value:.6g} {units}, which is impossible: a fill value that no attribute declares. Declare it in the "
        "file as _FillValue",
    )
