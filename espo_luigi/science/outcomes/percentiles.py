"""Percentiles of a base period, by day of the year or of wet days, and days beyond them, with a bootstrap in the base.

Values are those of `xclim.core.calendar.percentile_doy` and of xclim's `bootstrap=True`. xclim sorts the days around a
date again for each pair of a year and another year in its place. Here they are sorted once: without the days of a
year, and with as many of another, the percentile moves by a few ranks only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.chunks import CellBlocks, assign_coords, block_sizes, is_lazy, rechunk
from espo_luigi.science.quantities import ORDERS
from espo_luigi.science.units import as_floats

if TYPE_CHECKING:
    from xclim.core.indicator import Indicator
    from xclim.core.utils import Quantified

SUFFIX = "_per"
WINDOW = 5
# Plotting positions of Hyndman and Fan's method 8, as xclim's `percentile_doy` and climdex.pcic have them.
ALPHA = BETA = 1 / 3
# xclim's functions that tell no level: ETCCDI's.
_LEVELS = {"warm_spell_duration_index": 90.0, "cold_spell_duration_index": 10.0}
_LEVEL = re.compile(r"(\d+(?:\.\d+)?)(?:st|nd|rd|th) percentile|(first|third) quartile", re.IGNORECASE)
_OF_ALL_DAYS = ("days_over_precip_thresh", "fraction_over_precip_thresh", "precipitation_over_percentile")
_OPS = (">", ">=", "<", "<=")


@dataclass(frozen=True, order=True)
class Percentile:
    """A percentile of a variable: of the days around each day of the year, or of all (`daily` is False).

    With `wet`, an amount of precipitation, it is that of days with at least so much.
    """

    variable: str
    level: float
    daily: bool = True
    wet: str = ""

    @property
    def name(self) -> str:
        """Return the name that its values have in datasets."""
        kind = "_".join(filter(None, ("" if self.daily else "all_days", self.wet and f"wet_{self.wet}")))
        return re.sub(r"\W+", "_", f"{self.variable}_p{self.level:g}_{kind}").strip("_")


def percentiles_of(indicator: Indicator) -> dict[str, Percentile]:
    """Return the percentiles that an indicator needs, by xclim's argument.

    The description of an indicator's argument, such as `tasmax_per`, says the level ("95th percentile"), and that wet
    days are meant. Those of precipitation above a percentile are of all days of the base, others by day of the year.

    Raises
    ------
    ConfigurationError
        If no level is told.
    """
    parameters, function, found = indicator.parameters, indicator.compute.__name__, {}
    for key, meta in parameters.items():
        if meta.kind != 0 or not key.endswith(SUFFIX) or key.removesuffix(SUFFIX) not in parameters:
            continue
        told = _LEVEL.search(meta.description)
        if told:
            level = float(told[1]) if told[1] else {"first": 25.0, "third": 75.0}[told[2].lower()]
        elif function in _LEVELS:
            level = _LEVELS[function]
        else:
            raise ConfigurationError(
                f"its {key} tells no level; expected parameters: {{{key}: {{description: 95th percentile of …}}}}."
            )
        of_day = function not in _OF_ALL_DAYS or any("_DOY_" in one.__name__ for one in type(indicator).__mro__)
        is_wet = not of_day or "wet day" in meta.description
        thresh = indicator._all_parameters.get("thresh")
        wet = str((thresh.value if thresh.injected else thresh.default) if thresh else "1 mm/day") if is_wet else ""
        found[key] = Percentile(str(parameters[key.removesuffix(SUFFIX)].default), level, of_day, wet)
    return found


def compute_percentiles(
    ds: xr.Dataset, percentiles: Iterable[Percentile], period: tuple[int, int], *, cells_in_a_block: int = 2500
) -> xr.Dataset:
    """Return percentiles of the years of a base period (both included), by `Percentile.name`, in the data's units.

    Daily series (time, cells) become (dayofyear, cells), in double precision; percentiles of all days have the cells
    only. In calendars with 29 February, 366 days are interpolated from 365 as xclim does: the 366th has less years. If
    no year of the base has it, there are 365. Days without a value are left out; without any, the percentile is NaN.
    The attributes tell the method, as xclim's do. Lazy if `ds` is lazy.

    Raises
    ------
    DataError
        If the series does not have all years of the base period.

    References
    ----------
    `xclim.core.calendar.percentile_doy`, with a window of 5 days; Hyndman and Fan (1996), method 8.
    """
    days = _of_period(ds, period)
    axis, wanted = TimeAxis.of(days), sorted(set(percentiles))
    series = {name: days[name] for name in dict.fromkeys(one.variable for one in wanted)}
    if is_lazy(days):
        whole = rechunk(xr.Dataset(series), {"time": -1, **cut_like(days, len(axis))})
        series = {str(name): data for name, data in whole.items()}
    blocks = CellBlocks.of(series, cells_in_a_block=cells_in_a_block, fixed=False)
    doys = np.arange(1, int(axis.dayofyear.max()) + 1)
    cell = blocks.data["cell"].drop_vars(blocks.data["cell"].coords)
    empty = xr.zeros_like(cell, np.float64)
    like = {
        one.name: (empty.expand_dims(dayofyear=doys).chunk({"dayofyear": -1}) if one.daily else empty).assign_attrs(
            _attrs(one, days, axis)
        )
        for one in wanted
    }
    units = {name: dict(data.attrs) for name, data in series.items()}
    made = blocks.map(_block, xr.Dataset(like), (wanted, axis, units))
    coords = {name: coord for name, coord in ds.coords.items() if "time" not in coord.dims}
    return assign_coords(made, coords).assign_attrs(ds.attrs)


def _of_period(ds: xr.Dataset, period: tuple[int, int]) -> xr.Dataset:
    years = ds["time"].dt.year.values
    days = ds.isel(time=slice(int(np.searchsorted(years, period[0])), int(np.searchsorted(years, period[1], "right"))))
    if len(np.unique(days["time"].dt.year.values)) < period[1] - period[0] + 1:
        raise DataError(f"The base period is {period[0]}-{period[1]}; the series has {years[0]}-{years[-1]} only.")
    return days


def cut_like(ds: xr.Dataset, days: int) -> dict[Any, int]:
    """Return the sizes of blocks of so many days that have no more values than the series' own blocks."""
    sizes = {dim: size for dim, size in block_sizes(ds).items() if dim != "time"}
    excess = max(1, -(-days // block_sizes(ds).get("time", max(days, 1))))
    for dim, size in sizes.items():
        sizes[dim] = max(1, -(-size // excess))
        excess = -(-excess * sizes[dim] // size)
    return sizes


def _attrs(one: Percentile, days: xr.Dataset, axis: TimeAxis) -> dict[str, Any]:
    """Return attributes as `percentile_doy` has them, from which xclim reads how the percentiles were made."""
    of = f"days with at least {one.wet}" if one.wet else "all days"
    told = {
        **{key: text for key, text in days[one.variable].attrs.items() if key in ("units", "standard_name")},
        "long_name": f"{one.level:g}th percentile of {of} of {one.variable}",
        "climatology_bounds": [str(days["time"].values[at])[:10] for at in (0, -1)],
        "alpha": ALPHA,
        "beta": BETA,
        "history": "percentile_doy" if one.daily else "percentile of all days",
    }
    if one.daily:
        told["window"] = WINDOW
        if axis.calendar == "standard":
            has_leap = axis.dayofyear.max() == 366
            when = "from 365 to 366" if has_leap else "to 366 where years have as many (none of the base has)"
            told["comment"] = f"days of the year are interpolated {when}, as xclim does"
    return told


def _block(block: xr.Dataset, task: tuple[Sequence[Percentile], TimeAxis, Mapping[str, dict[str, Any]]]) -> xr.Dataset:
    from xclim.core.calendar import adjust_doy_calendar
    from xclim.core.units import convert_units_to

    wanted, axis, attrs = task
    cells = block["cell"].dims
    pools, made = _pools(axis.dayofyear), {}
    for one in wanted:
        data = as_floats(block[one.variable].transpose("time", *cells)).assign_attrs(attrs[one.variable])
        values = data.values
        if one.wet:
            values = np.where(values >= float(convert_units_to(one.wet, data, context="hydro")), values, np.nan)
        own = pools if one.daily else np.arange(len(axis), dtype=np.int32)[None]
        found = _quantiles(values.reshape(len(axis), -1), own, (one.level / 100, ALPHA, BETA))
        found = found.reshape(len(own), *values.shape[1:])
        if not one.daily:
            made[one.name] = xr.Variable(cells, found[0])
            continue
        per = xr.DataArray(found, {"dayofyear": np.arange(1, len(own) + 1)}, ("dayofyear", *cells))
        if axis.dayofyear.max() == 366:
            per = adjust_doy_calendar(per, xr.Dataset(coords={"time": axis.index}))
        made[one.name] = per.variable
    return xr.Dataset(made)


def _pools(doys: np.ndarray) -> np.ndarray:
    """Return the places of the days around each day of the year (day of the year, days), ascending; some are outside.

    The 366th is left out, as in `percentile_doy`.
    """
    last = min(int(doys.max()), 365)
    found = np.full((last, int(np.bincount(doys)[1 : last + 1].max()) * WINDOW), doys.size, np.int32)
    for doy, pool in enumerate(found, 1):
        places = np.flatnonzero(doys == doy)[:, None] + np.arange(-(WINDOW // 2), WINDOW // 2 + 1)
        pool[: places.size] = places.ravel()
    return found


@dataclass(frozen=True, eq=False)
class Base:
    """The base period within a series, and the years of the bootstrap.

    Of each day, `doys` is the day of the year and `dates` month * 100 + day. The base has the days from `first` up to
    `last`; `years` has the places in the series of the years that begin in the base, and `groups` those of the base's
    days in each of its years: both have begin, end. `own` has the place of each of `years` in `groups`.
    """

    doys: np.ndarray
    dates: np.ndarray
    first: int = 0
    last: int = 0
    years: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    own: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    groups: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))

    @classmethod
    def of(cls, ds: xr.Dataset, freq: str, period: tuple[int, int] | None) -> Base:
        """Return the base in a series; without years to bootstrap if there is none, or none in the series.

        Raises DataError if the series has a part of the base only.
        """
        from xclim.core.bootstrapping import _get_bootstrap_freq

        time, years = ds["time"].dt, ds["time"].dt.year.values
        doys, dates = time.dayofyear.values.astype(np.int32), time.month.values * 100 + time.day.values
        if period is None or years[-1] < period[0] or period[1] < years[0]:
            return cls(doys, dates)
        first, last = int(np.searchsorted(years, period[0])), int(np.searchsorted(years, period[1], "right"))
        _of_period(ds, period)
        days = xr.DataArray(np.arange(years.size), {"time": ds["time"].variable}, ("time",))
        groups = days.isel(time=slice(first, last)).resample(time=_get_bootstrap_freq(freq)).groups
        every = days.resample(time=_get_bootstrap_freq(freq)).groups
        begins = xr.DataArray(list(groups), dims="time").dt.year.values
        own = np.flatnonzero((period[0] <= begins) & (begins <= period[1]))
        return cls(
            doys, dates, first, last, _ends([every[key] for key in np.array([*groups])[own]], years.size), own,
            _ends(groups.values(), last - first) + first,
        )  # fmt: skip

    @property
    def span(self) -> tuple[int, int]:
        """Return the days from the first up to the last (excluded) that the bootstrap needs together."""
        if len(self.groups) < 2:
            return 0, 0
        return min(self.first, int(self.years.min())), max(self.last, int(self.years.max()))

    def part(self, begin: int, end: int) -> Base:
        """Return the base of the days from `begin` up to `end`; without years to bootstrap if it is not all there."""
        first, last = self.span
        if not begin <= first < last <= end:
            return Base(self.doys[begin:end], self.dates[begin:end])
        return replace(
            self, doys=self.doys[begin:end], dates=self.dates[begin:end], first=self.first - begin,
            last=self.last - begin, years=self.years - begin, groups=self.groups - begin,
        )  # fmt: skip

    def substitutes(self) -> np.ndarray:
        """Return, of each bootstrapped year and each other year, the days in place of the year's, counted in the base.

        (year, other, day), -1 for a 29 February that the other year lacks; as `build_bootstrap_year_da` of xclim.
        """
        groups = self.groups - self.first
        is_leap = self.dates[self.first : self.last] == 229
        longest = int(np.diff(groups).max())
        found = np.full((len(self.own), len(groups) - 1, longest), -1, np.int32)
        for places, at in zip(found, self.own, strict=True):
            begin, end = groups[at]
            size = end - begin
            for row, (first, last) in zip(places, np.delete(groups, at, 0), strict=True):
                source = np.arange(first, last)
                if source.size < min(360, size):
                    source = np.arange(begin, end)
                elif size == 365 and source.size == 366:
                    source = source[~is_leap[first:last]]
                elif size == 366 and source.size == 365:
                    source = np.insert(source, np.flatnonzero(is_leap[begin:end]), -1)
                row[:size] = source[:size]
        return found


def _ends(slices: Iterable[Any], size: int) -> np.ndarray:
    return np.array([one.indices(size)[:2] for one in slices], np.int64).reshape(-1, 2)


def days_beyond(
    op: str, window: int, quantile: float, thresh: float | None, arrays: Sequence[Any], edges: np.ndarray
) -> np.ndarray:
    """Return of each group the days beyond a percentile that lie in runs of at least `window` such days.

    `arrays` are the values (day, ...), their percentiles (day of the year, ...) or (...), and the `Base` of these days.
    Percentiles below `thresh` are taken as `thresh`. With a `quantile`, it is, of years in the base, the mean over its
    percentiles with each other year in the place of their own.
    """
    values, per, base = arrays
    per = per[None] if per.ndim < values.ndim else per
    per = per if thresh is None else np.where(per > thresh, per, thresh)
    made = np.empty((len(edges) - 1, *values.shape[1:]))
    flat, out = values.reshape(len(values), -1), made.reshape(len(made), -1)
    _days_beyond(flat, per.reshape(len(per), -1), base.doys, _OPS.index(op), window, edges, out)
    if quantile and len(base.groups) > 1:
        at = np.arange(len(per)), np.arange(len(per)), np.zeros(len(per)), np.ones(len(per))
        if len(per) == 366:
            axis, days = np.linspace(1, 366, 365), np.arange(1, 367)
            upper = np.searchsorted(axis, days).clip(1, 364)
            at = upper - 1, upper, days - axis[upper - 1], axis[upper] - axis[upper - 1]
        _bootstrap(
            flat, (base.first, base.last), _pools(base.doys[base.first : base.last]), base.years,
            base.groups[base.own] - base.first, base.substitutes(), base.doys, at, (quantile, ALPHA, BETA),
            _OPS.index(op), window, edges, out,
        )  # fmt: skip
    return made


def share_beyond(op: str, thresh: float, relative: bool, arrays: Sequence[Any], edges: np.ndarray) -> np.ndarray:
    """Return of each group the amount on wet days beyond a percentile, or `relative` its share of that on wet days."""
    values, per, base = arrays
    made = np.empty((len(edges) - 1, *values.shape[1:]))
    compare, per = ORDERS[op], np.where(per > thresh, per, thresh)
    for group, (first, last) in enumerate(pairwise(edges)):
        days = values[first:last]
        limit = per[base.doys[first:last] - 1] if per.ndim == values.ndim else per
        made[group] = np.where(compare(days, limit), days, 0).sum(0, dtype=np.float64)
        if relative:
            with np.errstate(divide="ignore", invalid="ignore"):
                made[group] /= np.where(compare(days, thresh), days, 0).sum(0, dtype=np.float64)
    return made


def precipitation_over_percentile(
    pr: xr.DataArray, pr_per: xr.DataArray, thresh: Quantified = "1 mm/day", freq: str = "YS"
) -> xr.DataArray:
    """Return the amount of precipitation on wet days above a percentile of wet days: ETCCDI's R95p, for xclim."""
    from xclim.core.calendar import resample_doy
    from xclim.core.units import convert_units_to, rate2amount

    per, least = (convert_units_to(one, pr, context="hydro") for one in (pr_per, thresh))
    limit = per.where(per > least, least)
    limit = resample_doy(limit, pr) if "dayofyear" in limit.coords else limit
    amount = rate2amount(pr.where(pr > limit, 0))
    return amount.resample(time=freq).sum(dim="time").assign_attrs(units=amount.attrs["units"])


def _compiled(function: Any) -> Any:
    """Compile with numba, kept on disk where a folder can be written; exact semantics of floats."""
    made = numba.njit(nogil=True, error_model="numpy")(function)
    with suppress(RuntimeError):
        made.enable_caching()
    return made


@_compiled
def _is_beyond(value, limit, op):  # type: ignore[no-untyped-def]
    return (value > limit if op < 2 else value < limit) or (op % 2 == 1 and value == limit)


@_compiled
def _days_beyond(values, per, doys, op, window, edges, out):  # type: ignore[no-untyped-def]
    run = np.empty(values.shape[1], np.int32)
    for group in range(len(edges) - 1):
        run[:] = 0
        made = out[group]
        made[:] = 0
        for day in range(edges[group], edges[group + 1]):
            limits = per[min(doys[day], len(per)) - 1]
            for cell in range(run.size):
                run[cell] = run[cell] + 1 if _is_beyond(values[day, cell], limits[cell], op) else 0
                made[cell] += window if run[cell] == window else run[cell] > window


@_compiled
def _place(size, positions):  # type: ignore[no-untyped-def]
    """Return the place of a quantile in a sorted sample, as xclim's `_compute_virtual_index`."""
    quantile, alpha, beta = positions
    return size * quantile + (alpha + quantile * (1 - alpha - beta)) - 1


@_compiled
def _between(left, right, gamma):  # type: ignore[no-untyped-def]
    """Interpolate as xclim's `_linear_interpolation`: the difference has the type of the data."""
    difference = right - left
    return right - difference * (1 - gamma) if gamma >= 0.5 else left + difference * gamma


@_compiled
def _sorted_pool(series, pool, out):  # type: ignore[no-untyped-def]
    """Sort the values of a pool's days, and return their number."""
    size = 0
    for day in pool:
        if 0 <= day < series.size and not np.isnan(series[day]):
            out[size] = series[day]
            size += 1
    out[:size].sort()
    return size


@_compiled
def _of_union(kept, size, extra, number, rank):  # type: ignore[no-untyped-def]
    """Return the value of a rank (from 0) among two sorted samples."""
    best = np.inf
    for taken in range(max(0, rank + 1 - size), min(number, rank + 1) + 1):
        largest = kept[rank - taken] if taken <= rank else extra[taken - 1]
        if taken and extra[taken - 1] > largest:
            largest = extra[taken - 1]
        best = min(best, largest)
    return kept.dtype.type(best)


@_compiled
def _quantiles(values, pools, positions):  # type: ignore[no-untyped-def]
    """Return the quantile of each pool (pool, cell) of values (day, cell)."""
    made, buffer = np.empty((len(pools), values.shape[1])), np.empty(pools.shape[1], values.dtype)
    nothing = buffer[:0]
    for cell in range(values.shape[1]):
        series = values[:, cell].copy()
        for at in range(len(pools)):
            size = _sorted_pool(series, pools[at], buffer)
            made[at, cell] = _quantile(buffer, size, nothing, 0, positions)
    return made


@_compiled
def _quantile(kept, size, extra, number, positions):  # type: ignore[no-untyped-def]
    """Return the quantile of two sorted samples together, as xclim's `_nan_quantile`."""
    total = size + number
    if total == 0:
        return np.nan
    place = _place(total, positions)
    if total < 2 or place >= total - 1:
        return np.float64(_of_union(kept, size, extra, number, total - 1))
    if place < 0:
        return np.float64(_of_union(kept, size, extra, number, 0))
    rank = int(np.floor(place))
    left = _of_union(kept, size, extra, number, rank)
    return _between(left, _of_union(kept, size, extra, number, rank + 1), place - rank)


@_compiled
def _without(pool, size, removed, number, out):  # type: ignore[no-untyped-def]
    """Copy a sorted pool without some of its values, sorted, and return how many are left."""
    left, at = 0, 0
    for value in pool[:size]:
        if at < number and value == removed[at]:
            at += 1
        else:
            out[left] = value
            left += 1
    return left


@_compiled
def _insert(value, sample, number):  # type: ignore[no-untyped-def]
    """Insert a value in a sorted sample."""
    while number > 0 and sample[number - 1] > value:
        sample[number] = sample[number - 1]
        number -= 1
    sample[number] = value


@_compiled
def _bootstrap(  # type: ignore[no-untyped-def]  # noqa: C901
    values, base, pools, years, own, substitutes, doys, at, positions, op, window, edges, out
):
    """Set the periods in `years` to the mean days beyond percentiles with each other year in place of their own."""
    (below, above, distance, width), others = at, substitutes.shape[1]
    replaced = np.empty((len(own), len(pools), 2), np.int64)
    for pool in range(len(pools)):
        for year in range(len(own)):
            replaced[year, pool] = np.searchsorted(pools[pool], own[year])
    most = (replaced[..., 1] - replaced[..., 0]).max()
    pooled, sizes = np.empty(pools.shape, values.dtype), np.empty(len(pools), np.int64)
    limits, known = np.empty((len(pools), others)), np.empty(len(pools), np.int64)
    kept = np.empty(pools.shape[1], values.dtype)
    removed, extra = np.empty(most, values.dtype), np.empty(most, values.dtype)
    longest = 0
    for begin, end in years:
        longest = max(longest, end - begin)
    flags, run = np.empty((longest, others), np.uint8), np.empty(others, np.int32)
    for cell in range(values.shape[1]):
        series = values[base[0] : base[1], cell].copy()
        for pool in range(len(pools)):
            sizes[pool] = _sorted_pool(series, pools[pool], pooled[pool])
        known[:] = -1
        has_gap = np.isnan(series).any()
        for year in range(len(years)):
            begin, end = years[year]
            can_differ = has_gap or (substitutes[year, :, : own[year, 1] - own[year, 0]] < 0).any()
            for day in range(begin, end):
                value, doy = values[day, cell], doys[day] - 1
                low, high = np.inf, -np.inf
                for pool in (below[doy], above[doy]):
                    number, size = replaced[year, pool, 1] - replaced[year, pool, 0], sizes[pool]
                    spare = number if can_differ else 0
                    rank = int(np.floor(_place(size - spare, positions))) - number
                    low = min(low, pooled[pool, rank]) if 0 <= rank < size else -np.inf
                    rank = int(np.floor(_place(size + spare, positions))) + 1 + number
                    high = max(high, pooled[pool, rank]) if 0 <= rank < size else np.inf
                # Interpolation between days may round beyond its ends.
                low, high = low - 1e-12 * abs(low), high + 1e-12 * abs(high)
                if not low <= value <= high:
                    flags[day - begin] = (value > high) == (op < 2) and not np.isnan(value)
                    continue
                for pool in (below[doy], above[doy]):
                    if known[pool] != year:
                        known[pool] = year
                        days = pools[pool, replaced[year, pool, 0] : replaced[year, pool, 1]]
                        number = 0
                        for day_of_pool in days:
                            if not np.isnan(series[day_of_pool]):
                                _insert(series[day_of_pool], removed, number)
                                number += 1
                        size = _without(pooled[pool], sizes[pool], removed, number, kept)
                        for other in range(others):
                            number = 0
                            for day_of_pool in days:
                                substitute = substitutes[year, other, day_of_pool - own[year, 0]]
                                if substitute >= 0 and not np.isnan(series[substitute]):
                                    _insert(series[substitute], extra, number)
                                    number += 1
                            limits[pool, other] = _quantile(kept, size, extra, number, positions)
                for other in range(others):
                    limit = limits[below[doy], other]
                    if distance[doy] != 0:
                        limit = (limits[above[doy], other] - limit) / width[doy] * distance[doy] + limit
                    flags[day - begin, other] = _is_beyond(value, limit, op)
            for group in range(np.searchsorted(edges, begin), np.searchsorted(edges, end)):
                total = 0
                run[:] = 0
                for day in range(edges[group] - begin, edges[group + 1] - begin):
                    for other in range(others):
                        run[other] = (run[other] + 1) * flags[day, other]
                        total += (run[other] == window) * window + (run[other] > window)
                out[group, cell] = total / others
