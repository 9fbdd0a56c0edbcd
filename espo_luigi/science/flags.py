"""Where a flag of the health checks is worst, how often it is true, and what that means in plain words."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dask
import dask.array
import numpy as np
import xarray as xr

from espo_luigi.science.extract import day_of
from espo_luigi.science.health import LAND_FLAG
from espo_luigi.science.stack import horizontal_dims
from espo_luigi.science.units import convert_to

# What is flagged, on which side of its threshold it is wrong, and how the values are shown.
_KINDS = {
    "temperature_extremely_high": ("above", "degC"),
    "temperature_extremely_low": ("below", "degC"),
    "very_large_precipitation_events": ("above", "mm d-1"),
    "negative_accumulation_values": ("below", "mm d-1"),
    "tasmax_below_tasmin": ("below", "K"),
}
_WORDS = {
    "temperature_extremely_high": "warmer than {threshold:g} °C",
    "temperature_extremely_low": "colder than {threshold:g} °C",
    "very_large_precipitation_events": "more precipitation than {threshold:g} mm d⁻¹",
    "negative_accumulation_values": "negative precipitation",
    "tasmax_below_tasmin": "tasmax below tasmin (the value is tasmax minus tasmin)",
    LAND_FLAG: "land cells of the reference without data on all days of a chunk of time",
}


@dataclass(frozen=True)
class FlagDetail:
    """One flag of one variable: what it means, on how many days of a cell it is true, and the worst of them."""

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


def flag_details(
    ds: xr.Dataset, raised: Mapping[str, bool], settings: Mapping[str, Mapping[str, Any] | None]
) -> list[FlagDetail]:
    """Describe the flags that `health.health_checks` has stored, named {variable}_{flag}.

    Computes, block by block; of flags that are not raised, nothing is read: their count is 0. `settings` are the flags
    of each variable with their arguments, as configured. A flag of another kind has no count and no worst value.
    """
    return [_detail(ds, *_split(ds, name), bool(is_raised), settings) for name, is_raised in raised.items()]


def _split(ds: xr.Dataset, name: str) -> tuple[str, str]:
    variable = max((str(one) for one in ds.data_vars if name.startswith(f"{one}_")), key=len, default=name)
    return variable, name.removeprefix(f"{variable}_")


def _detail(ds: xr.Dataset, variable: str, flag: str, raised: bool, settings: Mapping[str, Any]) -> FlagDetail:
    threshold = _threshold(flag, (settings.get(variable) or {}).get(flag) or {})
    meaning = _WORDS.get(flag, flag.replace("_", " ")).format(threshold=threshold)
    if flag not in _KINDS or variable not in ds:
        return FlagDetail(variable, flag, raised, meaning, None if raised else 0)
    if not raised:
        return FlagDetail(variable, flag, False, meaning, 0)
    side, units = _KINDS[flag]
    values = ds["tasmax"] - ds["tasmin"] if flag == "tasmax_below_tasmin" else convert_to(ds[variable], units)
    return FlagDetail(variable, flag, True, meaning, units=units, **_worst(values, side, threshold))


def _threshold(flag: str, arguments: Mapping[str, Any]) -> float:
    """The threshold as configured, or xclim's own, in the units in which values are shown."""
    if flag not in _KINDS:
        return np.nan
    from xclim.core import dataflags, units

    text = arguments.get("thresh")
    if text is None:
        parameters = inspect.signature(getattr(dataflags, flag)).parameters
        text = parameters["thresh"].default if "thresh" in parameters else None
    return 0.0 if text is None else float(units.convert_units_to(str(text), _KINDS[flag][1], context="hydro"))


def _worst(values: xr.DataArray, side: str, threshold: float) -> dict[str, Any]:
    y, x = horizontal_dims(values.to_dataset(name="values"))
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
