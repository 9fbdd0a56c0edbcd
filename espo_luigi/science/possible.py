"""What daily values can be: the table for raw data, references and products, and small defects of raw data repaired.

The place of an impossible value is named by its date, latitude and longitude, in any calendar and on any grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import dask.array
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import day_of
from espo_luigi.science.choices import CANONICAL_UNITS
from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.units import convert_to

# The lowest and the highest possible value of a variable.
Limits = tuple[float, float]

# In `CANONICAL_UNITS`. Air was measured from 184 K (Vostok) to 330 K (Death Valley), which a warmer climate may pass;
# the most precipitation of a day is 1825 mm (La Réunion).
POSSIBLE: Mapping[str, Limits] = {
    "tasmax": (180.0, 340.0),
    "tasmin": (180.0, 340.0),
    "tas": (180.0, 340.0),
    "dtr": (0.0, 100.0),
    "pr": (0.0, 3000.0 / 86400),
}
# Models may be colder over Antarctica, and have hot spikes: the limits are near -100 and 80 °C. Spectral models and
# interpolation leave up to 1 mm/d below zero, and some models a tasmin above tasmax: `credible`.
OF_RAW_DATA: Mapping[str, Limits] = {
    **dict.fromkeys(("tasmax", "tasmin", "tas"), (170.0, 353.0)),
    "dtr": (-100.0, 100.0),
    "pr": (-1.0 / 86400, POSSIBLE["pr"][1]),
}
# A number that recurs beyond `POSSIBLE` by more than this stands for missing values, such as -99 degrees Celsius or mm
# a day. Rounding leaves lesser numbers below zero that recur, too.
_FILL_MARGINS: Mapping[str, float] = {"dtr": 10.0, "pr": 5.0 / 86400}
NO_FILLS: Mapping[str, Limits] = {
    name: (low - _FILL_MARGINS.get(name, 0), high + _FILL_MARGINS.get(name, 0))
    for name, (low, high) in POSSIBLE.items()
}
# Takes the place of a range of zero or below. A multiplicative adjustment divides by the lowest quantiles: with noise
# near zero there, it would make thousands of kelvins of the values beside them. Of 0.1 to 2 K, this keeps the adjusted
# ranges of such days nearest to the reference's lowest, where 1 to 6 % of the days have them.
SMALLEST_RANGE_K = 0.5


def limits_in(name: str, units: str, table: Mapping[str, Limits] = POSSIBLE) -> Limits:
    """Return the limits of a table in other units; no limits for a variable that the table does not have."""
    if name not in table:
        return -np.inf, np.inf
    given = xr.DataArray(list(table[name]), dims="side", name=name, attrs={"units": CANONICAL_UNITS[name]})
    low, high = convert_to(given, units).values
    return float(low), float(high)


def require_possible(da: xr.DataArray) -> xr.DataArray:
    """Return the same raw data, which raise `DataError` where a value is beyond `OF_RAW_DATA`; lazy on dask."""
    units = str(da.attrs.get("units", ""))
    low, high = limits_in(str(da.name), units, OF_RAW_DATA)

    def look(values: np.ndarray, beside: Mapping[str, np.ndarray]) -> np.ndarray:
        wrong = (values < low) | (values > high) | np.isinf(values)
        if wrong.any():
            raise DataError(
                f"{da.name} has {int(wrong.sum())} impossible values after its repairs, such as "
                f"{first_of(wrong, values, units, beside)}; expected {low:g} to {high:g} {units}. Add rows to "
                "`extraction.simulation.repairs` (the table of InputCheck has them), or exclude the simulation."
            )
        return values

    return da.copy(data=over_blocks(da, look, places_of(da)))


def places_of(da: xr.DataArray) -> dict[str, xr.Variable]:
    """Return the coordinates that tell where a value is: member, date (as text), latitude and longitude, if any."""
    places = {name: da[name].variable for name in (REALIZATION, "time", "lat", "lon") if name in da.coords}
    if "time" in places:
        places["time"] = xr.Variable(places["time"].dims, np.vectorize(day_of, otypes=["U10"])(places["time"].values))
    return places


def over_blocks(
    da: xr.DataArray,
    look: Callable[[np.ndarray, dict[str, np.ndarray]], np.ndarray],
    beside: Mapping[str, xr.Variable],
    **options: Any,
) -> Any:
    """Return what `look` makes of each block and of the same part of `beside`; lazy if `da` is on dask.

    In `beside` are variables on some of the dimensions of `da`; a block has length 1 along the others. `options` are
    those of `dask.array.map_blocks`.
    """
    parts = [part_beside(da, variable) for variable in beside.values()]
    whole = partial(_look_at_block, look=look, names=tuple(beside))
    if da.chunks is None:
        return whole(da.values, *(part.compute() for part in parts))
    return dask.array.map_blocks(whole, da.data, *parts, **{"dtype": da.dtype, "meta": da.data._meta} | options)


def part_beside(da: xr.DataArray, variable: xr.Variable) -> dask.array.Array:
    """Return a variable on some of the dimensions of `da`, with all of its dimensions, in its chunks."""
    chunks = {dim: da.variable.chunksizes.get(dim, -1) for dim in variable.dims}
    return variable.to_base_variable().chunk(chunks).set_dims(list(da.dims)).data


def _look_at_block(block: np.ndarray, *parts: np.ndarray, look: Callable[..., Any], names: tuple[str, ...]) -> Any:
    return look(block, dict(zip(names, parts, strict=True)))


def first_of(wrong: np.ndarray, values: np.ndarray, units: str, beside: Mapping[str, np.ndarray]) -> str:
    """Return the first wrong value and its place: ``345 K on 2030-07-10 at latitude 45.5, longitude -73.25``."""
    first = tuple(np.argwhere(wrong)[0])
    place = {name: np.broadcast_to(coord, wrong.shape)[first] for name, coord in beside.items()}
    words = [f"{values[first]:g} {units}".rstrip()]
    words += [f"of {place[REALIZATION]}"] if REALIZATION in place else []
    words += [f"on {place['time']}"] if "time" in place else []
    if "lat" in place and "lon" in place:
        words.append(f"at latitude {place['lat']:.6g}, longitude {place['lon']:.6g}")
    return " ".join(words)


def credible(ds: xr.Dataset) -> xr.Dataset:
    """Return raw data without precipitation below zero, which is 0, and ranges of zero or below; lazy.

    Such a range becomes `SMALLEST_RANGE_K`. All other values keep their bits.
    """
    made = dict(ds.data_vars)
    if "pr" in ds:
        made["pr"] = ds["pr"].where(~(ds["pr"] < 0), 0)
    if "dtr" in ds:
        made["dtr"] = ds["dtr"].where(~(ds["dtr"] <= 0), SMALLEST_RANGE_K)
    return ds.assign(made)
