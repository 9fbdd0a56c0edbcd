"""Solar radiation is at most that of its day and latitude at the top of the atmosphere, by xclim."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from xclim.indices.helpers import extraterrestrial_solar_radiation

from espo_luigi.errors import DataError
from espo_luigi.science.finalize.radiation import limited_to_potential_radiation
from espo_luigi.science.finalize.scenario import Treatment, finish

LATITUDES = [-90.0, -66.0, 0.0, 45.0, 80.0]


def radiation(calendar: str, *dims: str, units: str = "W m-2", fill: float = 1e4, years: int = 5) -> xr.DataArray:
    """More than there can be in rows of latitudes (in their order), at noon."""
    last = f"{1999 + years}-12-{30 if calendar == '360_day' else 31}"
    time = xr.date_range("2000-01-01 12:00", f"{last} 12:00", calendar=calendar, use_cftime=calendar != "standard")
    sizes = {"time": time.size, "lat": 5, "rlat": 5, "lon": 3, "rlon": 3}
    values = np.full([sizes[dim] for dim in dims], fill, "float32")
    made = xr.DataArray(values, {"time": time}, dims, "rsds", {"units": units})
    if "rlat" in dims:
        return made.assign_coords(lat=(("rlat", "rlon"), np.add.outer(LATITUDES, [0, 0.25, 0.5]).clip(-90, 90)))
    return made.assign_coords(lat=("lat", LATITUDES))


@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
@pytest.mark.parametrize("dims", [("time", "lat", "lon"), ("lat", "time"), ("time", "rlat", "rlon")])
def test_the_limit_is_xclims_of_each_day_whatever_the_blocks(calendar: str, dims: tuple[str, ...]) -> None:
    data = radiation(calendar, *dims)
    limited = limited_to_potential_radiation(data)
    lat = data["lat"].assign_attrs(units="degrees_north")
    expected = (extraterrestrial_solar_radiation(data["time"], lat) / 86400).broadcast_like(data).transpose(*dims)
    np.testing.assert_allclose(limited, expected, rtol=1e-5, atol=1e-4)
    blocks = {"time": 700, "lat": 2, "lon": 2, "rlat": 2, "rlon": 2}
    lazy = limited_to_potential_radiation(data.chunk({dim: blocks[dim] for dim in dims}))
    assert lazy.chunks is not None
    xr.testing.assert_identical(lazy.compute(), limited)
    assert limited.attrs == data.attrs and limited.dims == dims and limited.dtype == data.dtype


def test_the_polar_night_has_no_radiation_and_lower_and_missing_values_stay() -> None:
    data = radiation("noleap", "time", "lat", fill=50.0)
    data[7, 2] = np.nan
    limited = limited_to_potential_radiation(data)
    in_june = limited.sel(time=slice("2001-06-01", "2001-06-30"))
    assert (in_june.sel(lat=-90) == 0).all() and (in_june.sel(lat=[0, 45, 80]) == 50).all()
    assert limited.isnull().sum() == 1
    assert limited.min() == 0


def test_other_units_of_radiation_convert() -> None:
    watts, joules = (radiation("noleap", "time", "lat", units=one, fill=1e9) for one in ("W m-2", "MJ m-2 d-1"))
    one, other = (limited_to_potential_radiation(data).values for data in (watts, joules))
    np.testing.assert_allclose(one * 0.0864, other, rtol=1e-6)


def test_limited_days_are_counted_with_those_that_are_clipped() -> None:
    data = radiation("noleap", "time", "lat", "lon", fill=100.0, years=1)
    data[:4] = -1
    treatment = Treatment(clip_var={"rsds": (0.0, None)}, limit_var={"rsds": "potential_radiation"})
    made = finish(data.to_dataset().chunk(time=100), treatment=treatment, chunks={"time": 100})
    limit = limited_to_potential_radiation(radiation("noleap", "time", "lat", "lon", years=1))
    days = (limit[4:] < 100).sum("time") + 4
    assert made["rsds"].attrs["espo_luigi_days_clipped"] == days.sum()
    assert days.min() == 4 < days.max()
    assert (made["rsds"] <= limit).all() and made["rsds"].min() == 0


def test_without_latitudes_or_with_other_units_nothing_is_limited() -> None:
    data = radiation("noleap", "time", "lat", years=1)
    with pytest.raises(DataError, match="rsds cannot be limited to the potential radiation: it has no coordinate lat"):
        limited_to_potential_radiation(data.drop_vars("lat"))
    with pytest.raises(DataError, match="cannot convert the units of variable 'rsds' from W m-2 to K"):
        limited_to_potential_radiation(data.assign_attrs(units="K"))
