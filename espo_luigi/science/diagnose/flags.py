"""What the health checks find in values: how often a flag is true, where most, in plain words; and missing days.

Missing days are found by the methods of xclim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any

import dask
import dask.array
import numpy as np
import xarray as xr

from espo_luigi.science.calendar import DAYS_IN_YEAR, TimeAxis, day_of
from espo_luigi.science.display import of_differences, units_text
from espo_luigi.science.geometry.cells import cells_in, cut_to, horizontal_dims
from espo_luigi.science.limits import CROSSED_FLAG, FLAGS, Flag, arguments_of_flags
from espo_luigi.science.quantities import Quantity
from espo_luigi.science.units import convert_to, value_in
from espo_luigi.science.variables import VARIABLES, Limits, Variable
from espo_luigi.science.variables import variable as row_of

Methods = Mapping[str, Any] | Sequence[str] | str
"""Names of methods, or their arguments by name."""

_TEMPERATURES = ("tasmax", "tasmin", "tas")


@dataclass(frozen=True)
class FlagDetail:
    """A flag of a variable: its meaning, on how many days of a cell it is true, and the worst day."""

    variable: str
    flag: str
    raised: bool
    meaning: str
    count: int | None = None
    worst: float | None = None
    units: str = ""
    day: str = ""
    lat: float | None = None
    lon: float | None = None
    scope: str = ""


def flag_details(
    ds: xr.Dataset,
    raised: Mapping[str, bool],
    settings: Mapping[str, Mapping[str, Any] | None],
    scopes: Mapping[str, Mapping[str, Any]] | None = None,
    table: Mapping[str, Variable] = VARIABLES,
) -> list[FlagDetail]:
    """Describe the flags that `health.health_checks` has stored, named {variable}_{flag} or {scope}_{variable}_{flag}.

    Computes, block by block; flags that are not raised have a count of 0, without reading. `settings` are the flags of
    each variable with their arguments, as configured; `scopes` are the further sets of checks. Other kinds of flags
    lack a count and a worst value.
    """
    sets = {"": (ds, settings)}
    for name, arguments in (scopes or {}).items():
        sets[name] = cut_to(ds, cells_in(ds, name, arguments))[0], arguments.get("flags") or {}
    details = []
    for name, is_raised in raised.items():
        scope = _longest(sets, name)
        part, of_scope = sets[scope]
        of_variable = name.removeprefix(f"{scope}_")
        variable = _longest(map(str, ds.data_vars), of_variable) or of_variable
        flag = of_variable.removeprefix(f"{variable}_")
        details.append(replace(_detail(part, variable, flag, bool(is_raised), of_scope, table), scope=scope))
    return details


def _longest(beginnings: Iterable[str], name: str) -> str:
    """The longest of the beginnings that a name has before an underscore, "" if it has none."""
    return max((each for each in beginnings if each and name.startswith(f"{each}_")), key=len, default="")


def _detail(
    ds: xr.Dataset,
    variable: str,
    flag: str,
    raised: bool,
    settings: Mapping[str, Any],
    table: Mapping[str, Variable],
) -> FlagDetail:
    kind, row = FLAGS.get(flag, Flag(flag)), row_of(variable, table)
    units = row.shown_units or str(ds[variable].attrs.get("units", "") if variable in ds else "")
    if row.difference or flag == CROSSED_FLAG:  # 1 degC is 1 K, and 0 degC is 0 K
        units = of_differences(units)
    threshold = _threshold(flag, variable, units, (settings.get(variable) or {}).get(flag) or {}) if kind.side else 0.0
    meaning = kind.meaning or flag.replace("_", " ")
    if row.difference and kind.side and kind.of:
        meaning = f"a daily range {'larger' if kind.side == 'above' else 'smaller'} than {{threshold}}"
    shown = f"{threshold:g} {units_text(units)}"
    meaning = meaning.format(threshold=shown, name=row.long_name.lower() or variable)
    if not raised:
        return FlagDetail(variable, flag, False, meaning, 0)
    if not kind.side or variable not in ds:
        return FlagDetail(variable, flag, True, meaning)
    values = ds["tasmax"] - ds["tasmin"] if flag == CROSSED_FLAG else convert_to(ds[variable], units)
    return FlagDetail(variable, flag, True, meaning, units=units, **_worst(values, kind.side, threshold))


def limits_of(
    flags: Mapping[str, Mapping[str, Mapping[str, str] | None] | None], table: Mapping[str, Variable] = VARIABLES
) -> dict[str, Limits]:
    """Return the limits that data flags give each variable, in the table's units.

    Temperatures share theirs: no minimum is above the highest maximum. A flag without threshold has xclim's own.
    """
    found: dict[str, Limits] = {}
    for name, chosen in flags.items():
        low, high, units = -np.inf, np.inf, row_of(name, table).units
        for flag, arguments in (chosen or {}).items():
            side = FLAGS[flag].side if flag in FLAGS and flag != CROSSED_FLAG and units else ""
            limit = _threshold(flag, name, units, arguments or {}) if side else np.nan
            low, high = (limit if side == "below" else low), (limit if side == "above" else high)
        found[name] = low, high
    warm = [found[name] for name in _TEMPERATURES if name in found]
    finite = [[limit for limit in side if np.isfinite(limit)] for side in zip(*warm, strict=True)] if warm else [[], []]
    shared = (min(finite[0], default=-np.inf), max(finite[1], default=np.inf))
    limits = found | {name: shared for name in _TEMPERATURES}
    return {name: pair for name, pair in limits.items() if np.isfinite(pair).any()}


def _threshold(flag: str, name: str, units: str, arguments: Mapping[str, Any]) -> float:
    """The threshold of a variable's flag as configured, or xclim's own, in other units; 0 if the flag has none."""
    text = arguments.get("thresh") or arguments_of_flags()[flag].get("thresh")
    if text is None:
        return 0.0
    return value_in(Quantity(text), name, units)


def _worst(values: xr.DataArray, side: str, threshold: float) -> dict[str, Any]:
    y, x = horizontal_dims(values)
    sign = 1.0 if side == "above" else -1.0
    data = dask.array.asarray(sign * values.transpose("time", y, x).data)
    ranked = dask.array.where(dask.array.isnan(data), -np.inf, data)
    count, place, most = dask.compute((data > sign * threshold).sum(), ranked.argmax(), ranked.max())
    time, row, column = np.unravel_index(int(place), data.shape)
    cell = values.isel({"time": int(time), y: int(row), x: int(column)})
    return {
        "count": int(count),
        "worst": sign * float(most),
        "day": day_of(values.indexes["time"][int(time)]),
        "lat": float(cell["lat"]),
        "lon": float(cell["lon"]),
    }


def lacking(ds: xr.Dataset, methods: Methods, cells: xr.DataArray | None) -> dict[str, dict[str, Any]]:
    """Return whether each variable on time lacks values by each method, in some of the cells; lazy.

    Without a regular time axis there is nothing to compare with: the result is empty.
    """
    names = [methods] if isinstance(methods, str) else methods
    arguments = dict(methods) if isinstance(methods, Mapping) else {name: {} for name in names}
    functions = {method: method_of(method) for method in arguments}
    if not functions or inferred_freq(ds) is None:
        return {}
    series = {str(name): da for name, da in ds.data_vars.items() if "time" in da.dims}

    def lacks(method: str, part: xr.DataArray) -> xr.DataArray:
        found = functions[method](part, **{"freq": "YS", **(arguments[method] or {})})
        return (found if cells is None else found & cells).any()

    return {
        method: {name: reduce(or_, (lacks(method, part) for part in _runs_of_years(da))) for name, da in series.items()}
        for method in functions
    }


def method_of(method: str) -> Callable[..., xr.DataArray]:
    """Return the function of xclim, or our own of the same result."""
    from xclim.core import missing

    if method.removeprefix("missing_") == "some_but_not_all":
        return some_but_not_all
    return getattr(missing, method, None) or getattr(missing, f"missing_{method}")


def inferred_freq(ds: xr.Dataset) -> str | None:
    """Return the frequency of a time axis; None if it is irregular, or has too few steps to tell.

    Whole years may be missing: stretches of years of the same frequency have it.
    """
    found = {_freq_of(time) for time in _runs_of_years(ds["time"])}
    return found.pop() if len(found) == 1 else None


def _freq_of(time: xr.DataArray) -> str | None:
    if time.size < 3:
        return None
    calendar = time.dt.calendar
    if calendar in DAYS_IN_YEAR:
        # xarray subtracts dates one by one, for a second.
        days = TimeAxis.of_index(calendar, time.indexes["time"]).days
        if (np.diff(days) == 1).all():
            return "D"
    return xr.infer_freq(time)


def _runs_of_years(da: xr.DataArray) -> list[xr.DataArray]:
    """Return the parts of a series between which whole years are missing, in order; lazy."""
    year = da["time"].dt.year.values
    ends = np.flatnonzero(np.diff(year, append=year[-1:] + 2) > 1) + 1
    return [da.isel(time=slice(first, end)) for first, end in pairwise([0, *ends.tolist()])]


def some_but_not_all(da: xr.DataArray, freq: str, **kwargs: Any) -> xr.DataArray:
    """Return which cells have a period that lacks some of its days, but not all of them; lazy.

    The same as `xclim.core.missing.missing_some_but_not_all(da, freq).any("time")`, in 4 tasks a block instead of more
    than 40. A period that the time axis covers in part lacks days; a cell without any day of it passes. With arguments
    of xclim but `freq` (months, a season), xclim itself computes.

    Parameters
    ----------
    da
        On time and other dimensions; the time axis is regular.
    freq
        The periods, as pandas writes them.
    """
    from xclim.core import missing

    if kwargs:
        return missing.missing_some_but_not_all(da, freq=freq, **kwargs).any("time")
    ordered = da.transpose("time", ...)
    days = xr.ones_like(ordered["time"], dtype=int).resample(time=freq).sum().values.astype(int)
    expected = missing.expected_count(ordered["time"], freq=freq, src_timestep=_freq_of(ordered["time"])).values
    valid = dask.array.asarray(ordered.notnull().data)
    period = np.repeat(np.arange(days.size), days)
    of_block = np.split(period, np.cumsum(valid.chunks[0])[:-1])
    others = (1,) * (valid.ndim - 1)
    counts = dask.array.map_blocks(
        _count,
        valid,
        dask.array.from_array(period.reshape(-1, *others), chunks=(valid.chunks[0], *others)),
        dtype=np.int32,
        chunks=(tuple(int(periods[-1] - periods[0]) + 1 for periods in of_block), *valid.chunks[1:]),
    )
    # A period at the end of a block goes on in the next: it has a row of counts in each.
    rows = np.concatenate([np.arange(periods[0], periods[-1] + 1) for periods in of_block])
    partial = counts.rechunk({0: -1}).map_blocks(_is_partial, rows, expected, drop_axis=0, dtype=bool)
    return ordered.isel(time=0, drop=True).copy(data=partial)


def _count(valid: np.ndarray, period: np.ndarray) -> np.ndarray:
    """The number of valid days in each period that a block has days of."""
    ends = np.flatnonzero(np.diff(period.ravel(), append=-1)) + 1
    parts = np.split(valid, ends[:-1])
    return np.stack([np.count_nonzero(part, axis=0) for part in parts]).astype(np.int32)


def _is_partial(counts: np.ndarray, rows: np.ndarray, expected: np.ndarray) -> np.ndarray:
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    valid = np.add.reduceat(counts, first, axis=0)
    whole = expected.reshape(-1, *(1,) * (counts.ndim - 1))
    return ((valid != whole) & (valid != 0)).any(axis=0)
