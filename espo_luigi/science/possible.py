"""What daily values can be: the table for raw data, references and products, and small defects of raw data repaired."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.choices import CANONICAL_UNITS
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
    low, high = limits_in(str(da.name), str(da.attrs.get("units", "")), OF_RAW_DATA)

    def look(values: np.ndarray) -> np.ndarray:
        wrong = (values < low) | (values > high) | np.isinf(values)
        if wrong.any():
            raise DataError(
                f"{da.name} has {int(wrong.sum())} impossible values after its repairs, such as {values[wrong][0]:g}; "
                f"expected {low:g} to {high:g} {da.attrs.get('units', '')}. Add rows to "
                "`extraction.simulation.repairs` (the table of InputCheck has them), or exclude the simulation."
            )
        return values

    checked: xr.DataArray = xr.apply_ufunc(look, da, dask="parallelized", output_dtypes=[da.dtype], keep_attrs=True)
    return checked


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
