"""Differences between two versions of a variable: by season and cell, in one pass over blocks.

Each cell draws its random numbers by itself: differences by draws alone are independent from cell to cell, and have no
sign. Days of a cell are not independent, as draws in the training change factors of all years. Yet draws spare the
order of days and a cell's mean. Cube roots keep a few extreme days from hiding the differences of all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from dask.array.core import normalize_chunks, slices_from_chunks

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import calendar_of
from espo_luigi.science.diagnose.statistics import SEASONS

# A block has at most so many values; with blocks of 3.7 million, a process took 0.38 GB in all.
_BLOCK_VALUES = 2**23
# Of a difference in float32, these bits are dropped: a bin is as wide as 1/2048 of its values.
_DROPPED_BITS, _BINS = 12, 2**19
# In standard errors, or in root mean squares of the other cells: other seeds reached 3.1 and 4.0.
_FAR, _LEAST_CELLS = 6.0, 8
# The squares of cells' means, as a share of mean squares: other seeds reached 0.0007 in a year, 0.16 in a season.
_MOST_OF_SQUARES, _MOST_OF_A_YEARS = 0.3, 0.01
# The mean square, as a multiple of the variance: 0.99 with other seeds, and 2 for values without correlation.
_MOST_OF_VARIANCE = 1.5


@dataclass(frozen=True)
class Difference:
    """Differences, B minus A, of a variable in a season or all year, in its units.

    `days` counts values (days and cells) in both, `missing` those in A or B alone. `share` is the share of `days`
    that differ. `q999` is the quantile 0.999 of absolute differences, to 0.05 %. `beyond_noise` is false where other
    random draws explain the differences, and null where that cannot be told: with fewer than eight cells (that have
    rain), of what is not daily, and of what does not say how it was adjusted, such as flags.
    """

    season: str
    days: int
    missing: int
    share: float
    largest: float
    q999: float
    mean: float
    beyond_noise: bool | None


def compare(
    first: xr.DataArray, second: xr.DataArray, draws: bool | None = True
) -> tuple[list[Difference], xr.Dataset, list[str]]:
    """Compare the days and cells that both have: all year and by season; maps of `share`, `largest` and `mean`.

    Also return words on days and cells of one alone. Infinite values count as missing. Without times, all year is the
    only season. `draws` says whether values have random draws, of the same adjustment; without any, each difference is
    beyond noise. None leaves that open. Raises `DataError` if dimensions or units differ, or no day or no cell is in
    both.
    """
    first, second, notes = _shared(first, second)
    has_time, cells = first.dims[0] == "time", first.shape[1:]
    season = first["time"].values // 100 % 100 % 12 // 3 if has_time else np.zeros(first.shape[0], int)
    # By season and cell: values in both, in one of them, and different; sums of differences. Of cube roots, sums of
    # differences, those of squares, the squares of either, the values of both, and their squares.
    sums, largest = np.zeros((10 if draws else 4, 4, *cells)), np.zeros((4, *cells))
    bins = np.zeros((4, _BINS), np.int64)
    for days, *place in _blocks(first, second):
        read = (data[(days, *place)].values for data in (first, second))
        both = [np.where(np.isinf(values), np.nan, values) for values in read]
        for of in np.unique(season[days]):
            a, b = (values[season[days] == of] for values in both)
            at, apart = (of, *place), b - a.astype(np.float64)
            known = apart == apart
            apart[~known] = 0
            added = [known, np.isnan(a) != np.isnan(b), apart != 0, apart]
            if draws:
                u, v = (np.cbrt(np.where(known, values, 0), dtype=np.float64) for values in (a, b))
                added += [v - u, v**2 - u**2, (v - u) ** 2, (v**2 - u**2) ** 2, u + v, u**2 + v**2]
            sums[(..., *at)] += [each.sum(axis=0) for each in added]
            size = np.abs(apart)
            largest[at] = np.maximum(largest[at], size.max(axis=0))
            codes = size[known].astype(np.float32).view(np.uint32) >> _DROPPED_BITS
            bins[of] += np.bincount(codes, minlength=_BINS)
    cuts = [("year", slice(None)), *((name, slice(at, at + 1)) for at, name in enumerate(SEASONS) if has_time)]
    rows = [_row(name, sums[:, cut].sum(axis=1), largest[cut], bins[cut], draws) for name, cut in cuts]
    number, _, different, total = sums[:4].sum(axis=1)
    most = np.maximum(number, 1)
    maps = {"share": different / most, "largest": largest.max(axis=0), "mean": total / most}
    grid = first.isel({first.dims[0]: 0}, drop=True)
    return rows, xr.Dataset({name: grid.copy(data=field) for name, field in maps.items()}).where(number > 0), notes


def _row(season: str, sums: np.ndarray, largest: np.ndarray, bins: np.ndarray, draws: bool | None) -> Difference:
    days, missing, different, total = (float(each.sum()) for each in sums[:4])
    code = np.array(np.searchsorted(np.cumsum(bins.sum(axis=0)), 0.999 * days), np.uint32)
    q999, most = (code << _DROPPED_BITS).view(np.float32), max(days, 1)
    beyond = draws is False or (draws and _beyond_noise(sums[0], sums[4:], season == "year"))
    beyond_noise = missing > 0 or (different > 0 and beyond)
    far = different / most, float(largest.max()), float(q999), total / most
    return Difference(season, int(days), int(missing), *far, beyond_noise)


def _shared(first: xr.DataArray, second: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray, list[str]]:
    """The days and cells in both, lazily, `time` first and labelled by `_labels`; and words on the others."""
    both = {"A": first, "B": second}
    if set(first.dims) != set(second.dims) or first.attrs.get("units") != second.attrs.get("units"):
        got = " and ".join(f"{data.dims} in {data.attrs.get('units')}" for data in both.values())
        raise DataError(f"got {got}; expected the same units and dimensions")
    dims = sorted(first.dims, key=lambda dim: dim != "time")
    calendars = [calendar_of(data) for data in both.values() if "time" in dims]
    notes = [f"calendars {' and '.join(calendars)}, compared by date"] if len(set(calendars)) > 1 else []
    labels = [{dim: (dim, _labels(data, dim), data[dim].attrs) for dim in dims} for data in both.values()]
    labelled = [data.assign_coords(of).transpose(*dims) for data, of in zip(both.values(), labels, strict=True)]
    a, b = xr.align(*labelled, join="inner")
    for dim in dims:
        if not a.sizes[dim]:
            raise DataError(f"they have no {dim} in common")
        sizes = {name: data.sizes[dim] for name, data in both.items() if data.sizes[dim] > a.sizes[dim]}
        notes += [f"{dim}: {size - a.sizes[dim]} of {size} only in {name}" for name, size in sizes.items()]
    return a, b, notes


def _labels(data: xr.DataArray, dim: Any) -> np.ndarray:
    index: Any = data.get_index(dim)
    if dim == "time":
        return np.asarray(index.year * 10000 + index.month * 100 + index.day)
    if index.dtype.kind not in "iuf":
        return np.asarray(index, str)
    if "lat" not in data.coords or data["lat"].dims != (dim,) or dim == "lat":
        return np.round(index, 4)
    # Cells of a stacked grid have no labels.
    return np.asarray(data["lat"].values.round(4) + 1j * data["lon"].values.round(4))


def _blocks(first: xr.DataArray, second: xr.DataArray) -> Sequence[tuple[slice, ...]]:
    """Blocks of the larger chunks of both, joined or cut: chunks are read once or a few times."""
    chunks = [data.encoding.get("preferred_chunks", {}) for data in (first, second)]
    stored = normalize_chunks([max(of.get(dim, 100) for of in chunks) for dim in first.dims], first.shape)
    return slices_from_chunks(normalize_chunks("auto", first.shape, _BLOCK_VALUES, np.int8, previous_chunks=stored))


def _beyond_noise(days: np.ndarray, moments: np.ndarray, is_year: bool) -> bool | None:
    """Whether other draws do not explain the differences of cells; None with few cells, without the dry."""
    if ((days > 0) & (moments[5] > 0)).sum() < _LEAST_CELLS:
        return None
    if (differ := moments[2] > 0).sum() < _LEAST_CELLS:
        return True  # all others have the same draws
    mean, of_squares, squared, fourth, both, squares = moments[:, differ] / days[differ]
    variance, most = squares / 2 - (both / 2) ** 2, _MOST_OF_A_YEARS if is_year else _MOST_OF_SQUARES
    if (mean**2).sum() > most * squared.sum() or squared.sum() > _MOST_OF_VARIANCE * variance.sum():
        return True
    for apart, own in ((mean, squared), (of_squares, fourth)):
        # Wet cells differ by more than dry cells do.
        scaled = apart / np.sqrt(np.maximum(own, np.finfo(float).tiny))
        others, top = np.split(np.sort(np.abs(scaled)), [-1])
        error = scaled.std(ddof=1) / np.sqrt(scaled.size)
        if abs(scaled.mean()) > _FAR * error or top[0] > _FAR * np.sqrt(np.mean(others**2)):
            return True
    return False
