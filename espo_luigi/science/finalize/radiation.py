"""The most solar radiation that a day can have: that at the top of the atmosphere."""

from __future__ import annotations

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.chunks import join
from espo_luigi.science.units import convert_to, units_of

# A year without and with a leap day; the years of other calendars have the same number of days.
_YEARS = (2001, 2000)


def limited_to_potential_radiation(data: xr.DataArray) -> xr.DataArray:
    """Return daily means of solar radiation, at most those at the top of the atmosphere; dtype and attributes stay.

    `data` has `time`, in any calendar, and the coordinate `lat` (degrees north), of one or two dimensions. The limit
    is xclim's `extraterrestrial_solar_radiation` at noon by day of year, for years of each length; 0 in the polar
    night. NaN stays. Lazy if the data are.

    Raises
    ------
    DataError
        If there are no latitudes, or the units are none of radiation.
    """
    if "lat" not in data.coords:
        raise DataError(f"{data.name} cannot be limited to the potential radiation: it has no coordinate lat.")
    axis = TimeAxis.of(data)
    day = xr.DataArray(_places(axis), dims="time")
    lat = data["lat"].reset_coords(drop=True).astype(np.float64).assign_attrs(units="degrees_north")
    if data.chunks:
        day, lat = day.chunk(time=data.chunksizes["time"]), lat.chunk({dim: data.chunksizes[dim] for dim in lat.dims})
    limits = convert_to(_by_day(axis.calendar, lat).rename(data.name), units_of(data)).astype(data.dtype)
    made = xr.apply_ufunc(
        _limited,
        data.transpose("time", ...),
        day,
        limits,
        input_core_dims=[[], [], ["day"]],
        dask="parallelized",
        output_dtypes=[data.dtype],
        keep_attrs="override",
    )
    return made.transpose(*data.dims)


def potential_radiation(axis: TimeAxis, lat: np.ndarray, units: str) -> np.ndarray:
    """Return that limit itself, (cell, time), on dates at latitudes (cell), in units of radiation."""
    of_cells = xr.DataArray(lat, dims="cell", attrs={"units": "degrees_north"})
    limits = convert_to(_by_day(axis.calendar, of_cells).rename("potential_radiation"), units)
    return np.asarray(limits.transpose("cell", "day").values[:, _places(axis)])


def _places(axis: TimeAxis) -> np.ndarray:
    """The place of each date among the days of `_by_day`: those of a leap year come after those of another."""
    is_leap = axis.calendar == "standard" and xr.DataArray(axis.index, dims="time").dt.is_leap_year.values
    return axis.dayofyear - 1 + np.where(is_leap, 365, 0)


def _by_day(calendar: str, lat: xr.DataArray) -> xr.DataArray:
    """The radiation (…, day) of the days of a common year, and of a leap year in a calendar that has some."""
    from xclim.indices.helpers import extraterrestrial_solar_radiation

    parts = []
    for year in _YEARS if calendar == "standard" else _YEARS[:1]:
        last = f"{year}-12-{30 if calendar == '360_day' else 31} 12:00"
        days = xr.date_range(f"{year}-01-01 12:00", last, calendar=calendar, use_cftime=True)
        chunks = None if lat.chunks is None else {"time": -1, **lat.chunksizes}
        of_days = extraterrestrial_solar_radiation(xr.DataArray(days, {"time": days}, ["time"]), lat, chunks=chunks)
        parts.append(of_days.drop_vars("time").rename(time="day") / 86400)
    made = join(parts, "day").clip(0)
    return (made.chunk(day=-1) if made.chunks else made).assign_attrs(units="W m-2")


def _limited(data: np.ndarray, day: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Limit a block (time, …); `limits` (…, day) are those of all days of year, `day` (time, …) the block's."""
    of_days = np.moveaxis(limits[..., day.ravel()], -1, 0)
    return np.where(data > of_days, of_days, data)
