"""Daily series of three calendars for the golden tests of indicators, climatologies and changes.

Only numpy and xarray are imported: the environment of the original has no `espo_luigi`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

DATA = Path(__file__).parents[1] / "data"
MODULE = Path(__file__).with_name("outcomes.yml")
CALENDARS = ("noleap", "standard", "360_day")
FREQUENCIES = ("YS-JAN", "QS-DEC", "MS", "YS-JUL")
# The indicators of which there are climatologies.
AVERAGED = ("tg_mean", "prcptot", "dtr", "frost_days")
BASELINE = "1981-2010"
# Windows of the climatologies: years, stride, operation.
CLIMATOLOGIES = {
    "mean-30": {"window": 30, "stride": 10, "op": "mean"},
    "mean-20": {"window": 20, "stride": 5, "op": "mean"},
    "std-30": {"window": 30, "stride": 30, "op": "std"},
    "some-30": {"window": 30, "stride": 10, "op": "median", "min_periods": 0.8},
}
# The beginning and the end are no whole years.
_FIRST, _LAST, LONG = "1980-12-01", "1991-03-15", "2041-03-15"


def daily(calendar: str, last: str = _LAST) -> xr.Dataset:
    """Return tas, tasmax, tasmin and pr of a climate model (time, loc) at three places, with a few missing days.

    Other calendars than noleap have its days at the same place of the year; a 29 February is as the day before.
    """
    with xr.open_dataset(DATA / "CanESM2_1950-2100.nc", engine="h5netcdf") as ds:
        source = (
            ds.sel(time=slice(_FIRST, last))
            .rename(location="loc")
            .assign_coords(loc=[0, 1, 2])[["tasmax", "pr"]]
            .load()
        )
    random = np.random.default_rng(1)
    shape = source["tasmax"].shape
    days = {
        "tasmax": source["tasmax"],
        "tasmin": source["tasmax"] - random.gamma(4, 2, shape),
        "pr": source["pr"],
    }
    days["tas"] = (days["tasmax"] + days["tasmin"]) / 2
    made = xr.Dataset({name: data.transpose("time", "loc").astype("float32") for name, data in days.items()})
    if calendar == "standard":
        made = made.convert_calendar("standard", missing=np.nan, use_cftime=False).ffill("time")
    elif calendar == "360_day":
        made = made.convert_calendar("360_day", align_on="year")
    for name, method in (("tas", "mean"), ("tasmax", "maximum"), ("tasmin", "minimum"), ("pr", "mean")):
        kind = "precipitation_flux" if name == "pr" else "air_temperature"
        units = "kg m-2 s-1" if name == "pr" else "K"
        made[name].attrs = {"units": units, "standard_name": kind, "cell_methods": f"time: {method} within days"}
        made[name][{"time": made["time"].dt.year.values == 1987, "loc": 2}] = np.nan
        made[name][{"time": slice(3330, 3332), "loc": 1}] = np.nan
    return made.drop_attrs(deep=False)
