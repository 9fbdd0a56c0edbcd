"""How far two versions of a variable are apart: by season and cell, in one pass over blocks.

Each cell's random draws (noise below a threshold, days made wet, rotations) have their own seed. So differences by
other draws alone are independent from cell to cell, and have no sign: the mean over cells is small against its standard
error, and no cell stands out. Days of a cell are not independent, as draws in the training change factors of all years.
Yet draws spare the order of days, and a cell's mean: its square is a small share of the mean square of differences.
Noise is told by cube roots, since differences of a few extreme days would hide those of all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import calendar_of
from espo_luigi.science.diagnose.yearly import SEASONS, Days

# A block has at most so many values; with blocks of 3.7 million, a process took 0.38 GB in all.
_BLOCK_VALUES = 2**23
# Of a difference in float32, these bits are dropped: a bin is as wide as 1/2048 of its values.
_DROPPED_BITS, _BINS = 12, 2**19
# In standard errors, and in root mean squares of the other cells: other seeds reached 4.3 and 6.0.
_MOST_ERRORS, _MOST_OF_OTHERS, _LEAST_CELLS = 6.0, 8.0, 8
# The squares of cells' means, as a share of mean squares: other seeds reached 0.0006 in a year, 0.16 in a season.
_MOST_OF_SQUARES, _MOST_OF_A_YEARS = 0.3, 0.01
# The mean square, as a multiple of the variance: 0.99 with other seeds, and 2 for values without correlation.
_MOST_OF_VARIANCE = 1.5


@dataclass(frozen=True)
class Difference:
    """Differences, B minus A, of a variable in a season or all year, in its units.

    `days` counts values (days and cells) in both, `missing` those in A or B alone. `share` is the share of `days`
    that differ. `q999` is the quantile 0.999 of absolute differences, to 0.05 %. `beyond_noise` is false where other
    random draws explain the differences, and null where that cannot be told: with fewer than eight cells, of flags, and
    of what is not daily.
    """

    season: str
    days: int
    missing: int
    share: float
    largest: float
    q999: float
    mean: float
    beyond_noise: bool | None


def shared(first: xr.DataArray, second: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray, list[str]]:
    """Return the days and cells that both variables have, lazily, `time` first; and words on the rest.

    Raises
    ------
    DataError
        If dimensions or units differ, or they have no day or no cell in common.
    """
    units = [one.attrs.get("units") for one in (first, second)]
    if set(first.dims) != set(second.dims) or units[0] != units[1]:
        got = " and ".join(f"{data.dims} in {unit}" for data, unit in zip((first, second), units, strict=True))
        raise DataError(f"got {got}; expected the same units and dimensions")
    calendars = [calendar_of(one) for one in (first, second) if "time" in one.dims]
    said = [f"calendars {' and '.join(calendars)}, compared by date"] if len(set(calendars)) > 1 else []
    for dim in first.dims:
        _, *places = np.intersect1d(_labels(first, dim), _labels(second, dim), return_indices=True)
        if not places[0].size:
            raise DataError(f"they have no {dim} in common")
        order, both = np.argsort(places[0]), {"A": first, "B": second}
        sizes = {name: data.sizes[dim] for name, data in both.items() if data.sizes[dim] > order.size}
        said += [f"{dim}: {size - order.size} of {size} only in {name}" for name, size in sizes.items()]
        cuts = [slice(at[0], at[-1] + 1) if (np.diff(at) == 1).all() else at for at in (at[order] for at in places)]
        first, second = (data.isel({dim: cut}) for data, cut in zip(both.values(), cuts, strict=True))
    dims = sorted(first.dims, key=lambda dim: dim != "time")
    return first.transpose(*dims), second.transpose(*dims), said


def _labels(data: xr.DataArray, dim: Any) -> np.ndarray:
    index: Any = data.get_index(dim)
    if dim == "time":
        return np.asarray(index.year * 10000 + index.month * 100 + index.day)
    if index.dtype.kind not in "iuf":
        return np.asarray(index, str)
    if "lat" not in data.coords or data["lat"].dims != (dim,) or dim == "lat":
        return np.round(index, 4)
    # Cells of a stacked grid have no labels.
    lat, lon = (np.round(data[name].values, 4) for name in ("lat", "lon"))
    return np.asarray(lat + 1j * lon)


def compare(
    first: xr.DataArray, second: xr.DataArray, tell: Callable[[str], object], draws: bool | None = True
) -> tuple[list[Difference], xr.Dataset]:
    """Return the differences of all year and of each season, and maps of `share`, `largest` and `mean`; computes.

    Both have the same days, cells and units, as `shared` returns them. Without times, all year is the only season.
    `tell` gets the progress. `draws` says whether values have random draws, of the same adjustment; without any, each
    difference is beyond noise. None leaves that open.
    """
    has_time, cells = first.dims[0] == "time", first.shape[1:]
    season = Days.of(first).season if has_time else np.zeros(first.shape[0], int)
    # By season and cell: values in both, in one of them, and different; sums of differences; and `_moments`.
    counts, sums, largest = np.zeros((3, 4, *cells), np.int64), np.zeros((4, *cells)), np.zeros((4, *cells))
    moments = np.zeros((5, 4, *cells))
    bins, blocks = np.zeros((4, _BINS), np.int64), list(_blocks(first, second))
    for number, (days, *place) in enumerate(blocks, 1):
        tell(f"{first.name}: block {number} of {len(blocks)}")
        both = [data[(days, *place)].values for data in (first, second)]
        for of in np.unique(season[days]):
            a, b = (values[season[days] == of] for values in both)
            at, apart = (..., of, *place), b - a.astype(np.float64)
            known = apart == apart
            apart[~known] = 0
            counts[at] += [np.count_nonzero(each, axis=0) for each in (known, np.isnan(a) != np.isnan(b), apart)]
            sums[at] += apart.sum(axis=0)
            if draws:
                moments[at] += _moments(*(np.where(known, values, 0) for values in (a, b)))
            size = np.abs(apart)
            largest[at] = np.maximum(largest[at], size.max(axis=0))
            codes = size[known].astype(np.float32).view(np.uint32) >> _DROPPED_BITS
            bins[of] += np.bincount(codes, minlength=_BINS)
    of_season = {name: slice(number, number + 1) for number, name in enumerate(SEASONS if has_time else ())}
    rows = []
    for name, cut in ({"year": slice(None)} | of_season).items():
        told = draws and _beyond_noise(counts[0, cut].sum(axis=0), moments[:, cut].sum(axis=1), name == "year")
        rows.append(_row(name, counts[:, cut], sums[cut], largest[cut], bins[cut].sum(axis=0), draws is False or told))
    total = np.where(counts[0].any(axis=0), counts[0].sum(axis=0), np.nan)
    maps = {"share": counts[2].sum(axis=0) / total, "largest": largest.max(axis=0), "mean": sums.sum(axis=0) / total}
    grid = first.isel({first.dims[0]: 0}, drop=True)
    return rows, xr.Dataset({name: grid.copy(data=field) for name, field in maps.items()}).where(total > 0)


def _row(
    season: str, counts: np.ndarray, sums: np.ndarray, largest: np.ndarray, bins: np.ndarray, beyond: bool | None
) -> Difference:
    days, missing, different = (int(count.sum()) for count in counts)
    code = np.array([np.searchsorted(np.cumsum(bins), 0.999 * days)], np.uint32)
    q999, mean = (code << _DROPPED_BITS).view(np.float32)[0], sums.sum() / max(days, 1)
    beyond_noise = missing > 0 or (different > 0 and beyond)
    far = different / max(days, 1), float(largest.max()), float(q999), float(mean)
    return Difference(season, days, missing, *far, beyond_noise)


def _blocks(first: xr.DataArray, second: xr.DataArray) -> Iterator[tuple[slice, ...]]:
    """Blocks of the larger chunks of both, unless they are too large: chunks are read once or a few times."""
    chunks = [data.encoding.get("preferred_chunks", {}) for data in (first, second)]
    sizes = [max(of.get(dim, 100) for of in chunks) for dim in first.dims]
    while np.prod(sizes) > _BLOCK_VALUES:
        sizes[int(np.argmax(sizes))] //= 2
    for starts in product(*(range(0, size, step) for size, step in zip(first.shape, sizes, strict=True))):
        yield tuple(slice(start, start + step) for start, step in zip(starts, sizes, strict=True))


def _moments(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """Sums over days, of cube roots: differences, those of squares, squared differences, values of both, squares."""
    u, v = (np.cbrt(values.astype(np.float64)) for values in (a, b))
    return [each.sum(axis=0) for each in (v - u, v**2 - u**2, (v - u) ** 2, u + v, u**2 + v**2)]


def _beyond_noise(days: np.ndarray, moments: np.ndarray, is_year: bool) -> bool | None:
    """Whether other draws do not explain the differences of cells; None with few cells."""
    if (days > 0).sum() < _LEAST_CELLS:
        return None
    mean, of_squares, squared, both, squares = moments[:, days > 0] / days[days > 0]
    variance, most = squares / 2 - (both / 2) ** 2, _MOST_OF_A_YEARS if is_year else _MOST_OF_SQUARES
    if (mean**2).sum() > most * squared.sum() or squared.sum() > _MOST_OF_VARIANCE * variance.sum():
        return True
    for apart in (mean, of_squares):
        others, top = np.split(np.sort(np.abs(apart)), [-1])
        error = apart.std(ddof=1) / np.sqrt(apart.size)
        if abs(apart.mean()) > _MOST_ERRORS * error or top[0] > _MOST_OF_OTHERS * np.sqrt(np.mean(others**2)):
            return True
    return False
