"""Numbers in raw files that stand for missing values without saying so, or that may be real values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import xarray as xr

from espo_luigi.science.extract.dataset import to_canonical_units
from espo_luigi.science.extract.input_problems import Problem, RawSeries
from espo_luigi.science.limits import RECURRING, SHARE_OF_A_FILL, is_outside
from espo_luigi.science.units import convert_to
from espo_luigi.science.variables import VARIABLES, Variable, variable


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
    """Where a number stands in a file: on which days, in how many values, and in which cells, of which two are kept."""

    values: int = 0
    days: set[int] = field(default_factory=set)
    cells: set[tuple[int, ...]] = field(default_factory=set)

    def add(self, there: np.ndarray, days: np.ndarray, tile: tuple[slice, ...]) -> None:
        self.values += int(there.sum())
        self.days.update(days[there.any(axis=(1, 2))].tolist())
        corner = [part.start for part in tile]
        found = (tuple(map(int, cell + corner)) for cell in np.argwhere(there.any(axis=0))[:2])
        self.cells = set(sorted(self.cells.union(found))[:2])


class Fills:
    """Counts such numbers of a file, block by block."""

    def __init__(self, raw: RawSeries) -> None:
        self.raw = raw
        self._declared = _Count()
        self._impossible: dict[float, _Count] = {}
        self._all_impossible = 0

    def taken_out(self, days: np.ndarray, values: np.ndarray, tile: tuple[slice, ...]) -> np.ndarray:
        """Count the numbers of a block (days, y, x); return it with NaN in place of impossible numbers that recur.

        Other checks then see the cells as they are meant.
        """
        if self.raw.doubtful_fill is not None:
            missing = np.isnan(values)
            missing &= ~missing.all(axis=0)
            if missing.any():
                self._declared.add(missing, days, tile)
        low, high = limits = self.raw.known.no_fills
        if not (np.fmin.reduce(values, axis=None) < low or np.fmax.reduce(values, axis=None) > high):
            return values
        impossible = values[np.isfinite(values) & is_outside(values, limits)]
        self._all_impossible += impossible.size
        numbers, counts = np.unique(impossible, return_counts=True)
        is_known = np.isin(numbers, list(self._impossible))
        # Single numbers would make the known ones grow with each block.
        for number in numbers[(counts >= max(2, SHARE_OF_A_FILL * impossible.size)) | is_known]:
            there = values == number
            count = self._impossible.setdefault(float(number), _Count())
            count.add(there, days, tile)
            if self._is_fill(count):
                values = np.where(there, np.nan, values)
        return values

    def _is_fill(self, count: _Count) -> bool:
        """Whether several values, days and cells have the number, and a large share of the impossible values."""
        is_usual = count.values >= max(RECURRING, SHARE_OF_A_FILL * self._all_impossible)
        return is_usual and len(count.days) > 1 and len(count.cells) > 1

    def problems(self) -> Iterator[Problem]:
        """Yield each number, on its first day and in its first cell."""
        raw = self.raw
        canonical = str(raw.data.attrs.get("units", ""))
        units = raw.units or canonical
        if self._declared.values:
            fill = float(raw.doubtful_fill or 0)
            yield self._problem(
                self._declared,
                fill,
                f"missing in cells that have others, as the file declares {fill:g} {raw.units} as missing, which "
                f"{raw.name} may really be. If they are real, set `xr_open_kwargs: {{mask_and_scale: {{{raw.name}: "
                "false}}`, or write the file with another _FillValue",
            )
        for number, count in self._impossible.items():
            if not self._is_fill(count):
                continue
            value = float(convert_to(xr.DataArray(number, name=raw.name, attrs={"units": canonical}), units))
            declared = [
                f"{name} ({fill}, {type(fill).__name__}) declares, but not as readers take it"
                for name, fill in raw.fills.items()
                if np.isclose(pd.to_numeric(np.ravel(fill), errors="coerce"), value, rtol=1e-5).any()
            ]
            yield self._problem(
                count,
                value,
                f"{value:.6g} {units}, which is impossible: a fill value that {(*declared, 'no attribute declares')[0]}"
                ". Declare it in the file as _FillValue, in the variable's own type",
            )

    def _problem(self, count: _Count, value: float, message: str) -> Problem:
        text = f"{count.values} value(s) on {len(count.days)} day(s) from this one on are {message}"
        return self.raw.problem("fill_values", text, min(count.days), count.values, min(count.cells), value)
