"""Where a flag of the health checks is worst, how often it is true, and its meaning in plain words."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array
import numpy as np
import xarray as xr

from espo_luigi.science.calendar import day_of
from espo_luigi.science.choices import CANONICAL_UNITS, FLAGS, Flag
from espo_luigi.science.grid import cells_in, cut_to
from espo_luigi.science.stack import horizontal_dims
from espo_luigi.science.units import convert_to


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
) -> list[FlagDetail]:
    """Describe the flags that `health.health_checks` has stored, named {variable}_{flag} or {scope}_{variable}_{flag}.

    Computes, block by block; flags that are not raised have a count of 0, without reading. `settings` are the flags of
    each variable with their arguments, as configured; `scopes` are the further sets of checks. Other kinds of flags
    lack a count and a worst value.
    """
    sets = {"": (ds, settings)}
    for name, arguments in (scopes or {}).items():
        sets[name] = cut_to(ds, cells_in(ds, name, arguments))[0], arguments.get("flags") or {}
    found = []
    for name, is_raised in raised.items():
        scope = max((one for one in sets if one and name.startswith(f"{one}_")), key=len, default="")
        part, of_scope = sets[scope]
        variable, flag = _split(ds, name.removeprefix(f"{scope}_"))
        found.append(replace(_detail(part, variable, flag, bool(is_raised), of_scope), scope=scope))
    return found


def _split(ds: xr.Dataset, name: str) -> tuple[str, str]:
    variable = max((str(one) for one in ds.data_vars if name.startswith(f"{one}_")), key=len, default=name)
    return variable, name.removeprefix(f"{variable}_")


def _detail(ds: xr.Dataset, variable: str, flag: str, raised: bool, settings: Mapping[str, Any]) -> FlagDetail:
    kind = _kind(variable, flag)
    threshold = _threshold(flag, kind, (settings.get(variable) or {}).get(flag) or {})
    meaning = (kind.meaning or flag.replace("_", " ")).format(threshold=threshold)
    if not kind.side or variable not in ds:
        return FlagDetail(variable, flag, raised, meaning, None if raised else 0)
    if not raised:
        return FlagDetail(variable, flag, False, meaning, 0)
    values = ds["tasmax"] - ds["tasmin"] if flag == "tasmax_below_tasmin" else convert_to(ds[variable], kind.units)
    return FlagDetail(variable, flag, True, meaning, units=kind.units, **_worst(values, kind.side, threshold))


def _kind(variable: str, flag: str) -> Flag:
    kind = FLAGS.get(flag, Flag(flag))
    if variable == "dtr" and kind.units == "degC":  # a difference: 1 degC is 1 K, and 0 degC is 0 K
        words = "larger" if kind.side == "above" else "smaller"
        return replace(kind, meaning=f"a daily range {words} than {{threshold:g}} K", units="K")
    if flag == "negative_accumulation_values" and variable != "pr":
        return replace(kind, meaning=f"negative {variable}", units=CANONICAL_UNITS.get(variable, ""))
    return kind


def _threshold(flag: str, kind: Flag, arguments: Mapping[str, Any]) -> float:
    """The threshold as configured, or xclim's own, in the units of display."""
    if not kind.side:
        return np.nan
    from xclim.core import units

    text = arguments.get("thresh") or default_threshold(flag)
    return 0.0 if text is None else float(units.convert_units_to(str(text), kind.units, context="hydro"))


def default_threshold(flag: str) -> str | None:
    """Return the threshold that xclim takes by default; None if the flag lacks it."""
    from xclim.core import dataflags

    found = inspect.signature(getattr(dataflags, flag)).parameters.get("thresh")
    return None if found is None else str(found.default)


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
