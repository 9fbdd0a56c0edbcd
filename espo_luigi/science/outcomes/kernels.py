"""The commonest of xclim's indices on plain arrays, a hundred times cheaper than on xarray's objects.

A kernel takes daily arrays (day, ...) and the first days of its groups, and knows nothing of missing days. `kernel_of`
offers a kernel for a function of xclim's; `indicators` takes it where it gives xclim's numbers on a sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.outcomes.percentiles import Base, Percentile, days_beyond, share_beyond
from espo_luigi.science.quantities import ORDERS
from espo_luigi.science.units import convert_to, units_of

# xclim's functions that compare days with a threshold, with the operator of those that have no argument for it.
_COUNTS = {
    "hot_days": ">", "frost_days": "<", "ice_days": "<",
    **dict.fromkeys(
        f"{one}_days_{side}" for one in ("tg", "tx", "tn", "tx_tn") for side in ("above", "below")
    ),
    **dict.fromkeys(("tropical_nights", "warm_day_frequency", "warm_night_frequency", "wetdays", "dry_days",
                     "heat_wave_frequency", "maximum_consecutive_dry_days", "maximum_consecutive_wet_days",
                     "multiday_temperature_swing")),
}  # fmt: skip
_RUNS = {
    "maximum_consecutive_dry_days": "longest",
    "maximum_consecutive_wet_days": "longest",
    "heat_wave_frequency": "events",
    "multiday_temperature_swing": "events",
}
_EXCESS = {"growing_degree_days": ">", "cooling_degree_days": ">", "heating_degree_days": "<"}
_BEYOND = [f"{one}{level}p" for one in ("tg", "tx", "tn") for level in (10, 90)]
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_TEMPERATURE_UNITS = ("K", "degC")


@dataclass(frozen=True)
class Kernel:
    """A function of arrays by variable and groups' edges; its number times `factor` plus `offset` is xclim's.

    The function needs so many days (`before`) before a group; if `dated`, as the last array, month * 100 + day; of a
    `percentile`, its values and the `Base`.
    """

    variables: tuple[str, ...]
    function: Callable[[Sequence[Any], np.ndarray], np.ndarray]
    factor: float = 1.0
    offset: float = 0.0
    before: int = 0
    dated: bool = False
    percentile: str = ""

    def __call__(self, data: Mapping[str, np.ndarray], edges: np.ndarray, days: Base) -> np.ndarray:
        """Return (group, ...) of daily arrays (day, ...); group i has the days from edges[i] up to edges[i + 1]."""
        further = [data[self.percentile], days] if self.percentile else [days.dates] if self.dated else []
        made = self.function([*(data[name] for name in self.variables), *further], edges)
        return made * self.factor + self.offset


def kernel_of(
    name: str,
    given: Mapping[str, Any],
    data: Mapping[str, xr.DataArray],
    units: str,
    percentiles: Sequence[Percentile] = (),
) -> Kernel | None:
    """Return the kernel of a function of xclim's with its arguments, for data in their units; None if there is none.

    `data` are the series by their argument, `units` the result's.
    """
    variables = tuple(str(series.name) for series in data.values())
    make = partial(Kernel, variables)
    first = next(iter(data.values()))
    try:
        if percentiles:
            return _of_percentile(name, given, first, percentiles[0], make) if len(percentiles) == 1 else None
        if name.split("_")[0] in ("tg", "tx", "tn") and name.partition("_")[2] in ("mean", "max", "min"):
            return make(partial(_statistic, name.partition("_")[2]), *_affine(first, units))
        if name == "daily_temperature_range" and given["op"] in ("mean", "max", "min") and _same_units(data):
            return make(partial(_range, list(data).index("tasmax"), given["op"]))
        if name in _EXCESS and units_of(first) in _TEMPERATURE_UNITS:
            sign = 1 if _EXCESS[name] == ">" else -1
            return make(partial(_excess, sign, _threshold(given["thresh"], first)))
        swing = name == "multiday_temperature_swing"
        if name in _COUNTS and given.get("resample_before_rl", True) and (not swing or given["op"] == "count"):
            ops = [str(given[f"op_{key}"] if swing else given.get("op") or _COUNTS[name]) for key in data]
            compared = partial(_compared, [ORDERS[op] for op in ops], _thresholds(given, data))
            how = partial(_runs, _RUNS[name], given.get("window", 1)) if name in _RUNS else _count
            return make(partial(_of_days, compared, how))
        if name == "growing_season_length":
            month, day = map(int, given["mid_date"].split("-"))
            compared = partial(_compared, [ORDERS[given["op"]]], _thresholds(given, data))
            return make(partial(_season, compared, int(given["window"]), month * 100 + day), dated=True)
        return _of_precipitation(name, given, first, make)
    # Units or arguments that the kernels do not know, and comparisons for equality, which no random sample proves.
    except (DataError, KeyError, AttributeError, ValueError):
        return None


def _of_precipitation(name: str, given: Mapping[str, Any], pr: xr.DataArray, make: Any) -> Kernel | None:
    if name == "max_1day_precipitation_amount":
        return make(partial(_statistic, "max"), *_affine(pr, "mm d-1"))
    if name == "precip_accumulation" and given["phase"] is None:
        return make(partial(_statistic, "sum"), *_affine(pr, "mm d-1"))
    if name == "max_n_day_precipitation_amount":
        window = int(given["window"])
        return make(partial(_largest_sum, window), *_affine(pr, "mm d-1"), before=window - 1)
    if name == "daily_pr_intensity":
        compare, threshold = ORDERS[given["op"]], _threshold(given["thresh"], pr)
        return make(partial(_intensity, compare, threshold), *_affine(pr, "mm d-1"))
    return None


def _of_percentile(
    name: str, given: Mapping[str, Any], data: xr.DataArray, per: Percentile, make: Any
) -> Kernel | None:
    op = given.get("op", ">")
    op, quantile = _SIGNS.get(op, op), per.level / 100 if given["bootstrap"] else 0.0
    if name in _BEYOND:
        return make(partial(days_beyond, op, 1, quantile, None), percentile=per.name)
    if name.endswith("_spell_duration_index") and given["resample_before_rl"]:
        return make(partial(days_beyond, op, int(given["window"]), quantile, None), percentile=per.name)
    if name == "days_over_precip_thresh" and not quantile:
        return make(partial(days_beyond, op, 1, 0.0, _threshold(given["thresh"], data)), percentile=per.name)
    if name in ("fraction_over_precip_thresh", "precipitation_over_percentile") and not quantile:
        relative, thresh = name[0] == "f", _threshold(given["thresh"], data)
        units = (1.0, 0.0) if relative else _affine(data, "mm d-1")
        return make(partial(share_beyond, op, thresh, relative), *units, percentile=per.name)
    return None


def _affine(data: xr.DataArray, units: str) -> tuple[float, float]:
    """Return factor and offset from the units of the data to others."""
    ends = xr.DataArray([0.0, 1.0], dims="end", name=data.name, attrs=data.attrs)
    low, high = convert_to(ends, units).values
    return float(high - low), float(low)


def _same_units(data: Mapping[str, xr.DataArray]) -> bool:
    units = {units_of(series) for series in data.values()}
    return len(units) == 1 and units <= set(_TEMPERATURE_UNITS)


def _threshold(text: Any, data: xr.DataArray) -> float:
    from xclim.core.units import convert_units_to

    return float(convert_units_to(text, data, context="hydro"))


def _thresholds(given: Mapping[str, Any], data: Mapping[str, xr.DataArray]) -> list[float]:
    """Return a threshold for each series: `thresh`, or `thresh_tasmax` and `thresh_tasmin`."""
    return [_threshold(given.get(f"thresh_{name}") or given["thresh"], series) for name, series in data.items()]


def _groups(values: np.ndarray, edges: np.ndarray, reduce: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.stack([reduce(values[first:last]) for first, last in pairwise(edges)])


def _statistic(how: str, arrays: Sequence[np.ndarray], edges: np.ndarray) -> np.ndarray:
    return _groups(arrays[0], edges, _REDUCERS[how])


_REDUCERS: Mapping[str, Callable[[np.ndarray], Any]] = {
    "mean": partial(np.mean, axis=0, dtype=np.float64),
    "sum": partial(np.sum, axis=0, dtype=np.float64),
    "max": partial(np.fmax.reduce, axis=0),
    "min": partial(np.fmin.reduce, axis=0),
}


def _range(tasmax: int, how: str, arrays: Sequence[np.ndarray], edges: np.ndarray) -> np.ndarray:
    return _statistic(how, [arrays[tasmax] - arrays[1 - tasmax]], edges)


def _excess(sign: int, threshold: float, arrays: Sequence[np.ndarray], edges: np.ndarray) -> np.ndarray:
    excess = (arrays[0] - threshold) * sign
    return _statistic("sum", [excess.clip(0, out=excess)], edges)


def _compared(compare: Sequence[Any], thresholds: Sequence[float], arrays: Sequence[np.ndarray]) -> np.ndarray:
    days = [one(values, threshold) for one, values, threshold in zip(compare, arrays, thresholds, strict=True)]
    return np.logical_and.reduce(days) if len(days) > 1 else days[0]


def _of_days(compared: Any, how: Any, arrays: Sequence[np.ndarray], edges: np.ndarray) -> np.ndarray:
    return np.asarray(how(compared(arrays), edges))


def _count(days: np.ndarray, edges: np.ndarray) -> np.ndarray:
    # A year's days in 16 bits.
    return _groups(days.view(np.uint8), edges, partial(np.add.reduce, axis=0, dtype=np.uint16)).astype(np.float64)


def _runs(how: str, window: int, days: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the longest run in each group, or the number of runs of at least `window` days."""

    def of_group(group: np.ndarray) -> np.ndarray:
        run, made = np.zeros(group.shape[1:], np.int16), np.zeros(group.shape[1:], np.int16)
        for day in group:
            run += 1
            run *= day
            if how == "longest":
                np.maximum(made, run, out=made)
            else:
                made += run == window
        return made

    return _groups(days, edges, of_group).astype(np.float64)


def _season(compared: Any, window: int, middle: int, arrays: Sequence[np.ndarray], edges: np.ndarray) -> np.ndarray:
    """Return the days from the first run before the middle's date to the first run of other days after it."""
    days, made = compared(arrays[:-1]), np.zeros((len(edges) - 1, *arrays[0].shape[1:]))
    for group, (first, last) in enumerate(pairwise(edges)):
        at = np.flatnonzero(arrays[-1][first:last] == middle)
        if at.size == 1:
            start = _first_run(days[first : first + at[0] + window - 1], window)
            end = _first_run(~days[first + at[0] : last], window)
            end = np.where(end < 0, last - first, end + at[0])
            made[group] = np.where(start < 0, 0, end - start)
    return made


def _first_run(days: np.ndarray, window: int) -> np.ndarray:
    """Return the first day of the first run of `window` days, -1 where there is none."""
    run, first = np.zeros(days.shape[1:], np.int16), np.full(days.shape[1:], -1)
    for i, day in enumerate(days):
        run += 1
        run *= day
        first[(run == window) & (first < 0)] = i - window + 1
    return first


def _largest_sum(window: int, arrays: Sequence[np.ndarray], edges: np.ndarray) -> np.ndarray:
    """Return the largest sum of `window` days that end in the group, of days that the series has."""
    values = arrays[0]
    sums = values.copy()
    for back in range(1, window):
        sums[back:] += values[:-back]
    sums[: window - 1] = np.nan
    return _statistic("max", [sums], edges)


def _intensity(compare: Any, threshold: float, arrays: Sequence[np.ndarray], edges: np.ndarray) -> np.ndarray:
    wet = compare(arrays[0], threshold)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _statistic("sum", [arrays[0] * wet], edges) / _count(wet, edges)
