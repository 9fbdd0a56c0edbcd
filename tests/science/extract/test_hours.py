"""Days of hours are those of CDO and xclim; days that lack hours are missing by WMO's rule."""

from pathlib import Path

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hourly_files import cdo as by_cdo
from hourly_files import since_midnight, weather, write_months

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import TO_MIDPOINT
from espo_luigi.science.extract.hours import days_of, lacking, offsets_of, steps_in_a_day

DAY_OF_RAIN = 1000 / 86400


def named(ds: xr.Dataset, steps: int = 50) -> xr.Dataset:
    return ds.rename(valid_time="time", latitude="lat", longitude="lon").chunk({"time": steps, "lat": 3})


@pytest.fixture(scope="module")
def hourly() -> xr.Dataset:
    return weather("2000-02-25", "2000-03-05T00")


@pytest.fixture(scope="module")
def files(hourly: xr.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_months(hourly, tmp_path_factory.mktemp("hours") / "files")


def whole(data: xr.DataArray) -> xr.DataArray:
    return data.sel(time=slice("2000-02-25", "2000-03-04"))


@pytest.mark.parametrize(("name", "operator"), [("tas", "daymean"), ("tasmax", "daymax"), ("tasmin", "daymin")])
def test_means_and_extremes_of_days_are_those_of_cdo(
    hourly: xr.Dataset, files: Path, tmp_path: Path, name: str, operator: str
) -> None:
    made = whole(days_of(named(hourly)["tas"].rename(name)))
    wanted = by_cdo(f"-{operator}", paths=sorted(files.glob("tas_*")), out=tmp_path / "cdo.nc")["tas"]
    np.testing.assert_allclose(made, wanted[:-1], rtol=1e-6)
    assert made.sizes["time"] == 9 and made.dtype == "float32"
    assert str(made["time"].values[4])[:10] == "2000-02-29"


@pytest.mark.parametrize(("day", "hours"), [("UTC", 0), ("UTC-05:00", -5), ("UTC+05:30", 5.5)])
def test_totals_of_the_hours_before_their_stamps_are_those_of_cdo_in_any_zone(
    hourly: xr.Dataset, files: Path, tmp_path: Path, day: str, hours: float
) -> None:
    made = days_of(named(hourly)["pr"], accumulation="over_step", day=day)
    shift = f"-shifttime,{int(60 * hours) - 30}minute"
    wanted = by_cdo("-daysum", shift, paths=sorted(files.glob("pr_*")), out=tmp_path / "cdo.nc")["pr"]
    inner = slice("2000-02-26", "2000-03-03")
    np.testing.assert_allclose(made.sel(time=inner), wanted.sel(valid_time=inner) * DAY_OF_RAIN, rtol=2e-6)
    assert made.attrs["units"] == "kg m-2 s-1"


@pytest.mark.parametrize("day", ["UTC", "UTC-05:00", "UTC+09:00", "local"])
def test_amounts_since_midnight_give_the_totals_of_the_hours(hourly: xr.Dataset, day: str) -> None:
    of_hours = days_of(named(hourly)["pr"], accumulation="over_step", day=day)
    made = days_of(named(since_midnight(hourly))["pr"], accumulation="since_midnight", day=day)
    inner = slice("2000-02-26", "2000-03-03")
    np.testing.assert_allclose(made.sel(time=inner), of_hours.sel(time=inner), rtol=1e-4, atol=1e-9)
    assert made.sel(time=inner)[:, :-1].notnull().all()


def test_a_lost_hour_within_a_day_does_not_matter_to_amounts_since_midnight(hourly: xr.Dataset) -> None:
    land = named(since_midnight(hourly))["pr"]
    lost = land.sel(time=land["time"] != np.datetime64("2000-02-27T11"))
    xr.testing.assert_identical(
        days_of(lost, accumulation="since_midnight").compute(), days_of(land, accumulation="since_midnight").compute()
    )
    lost = land.sel(time=land["time"] != np.datetime64("2000-02-28T00"))
    found = days_of(lost, accumulation="since_midnight").isel(lat=0, lon=0).isnull()
    assert [str(day)[:10] for day in found["time"].values[found.values]] == ["2000-02-27"]


def test_a_local_day_is_that_of_the_longitude(hourly: xr.Dataset) -> None:
    tas = named(hourly)["tas"].rename("tasmax")
    by_longitude = days_of(tas, day="local")
    for lon, day in ((-72.5, "UTC-05:00"), (-64.5, "UTC-04:00")):
        wanted = days_of(tas, day=day).sel(lon=lon, time=by_longitude["time"][1:])
        xr.testing.assert_allclose(by_longitude.sel(lon=lon)[1:], wanted)
    assert offsets_of("local", xr.DataArray([187.4, 172.6, 359.0], dims="lon"), 24).tolist() == [-12 / 24, 12 / 24, 0]


def test_means_are_those_of_xclim(hourly: xr.Dataset) -> None:
    from xclim.core.units import convert_units_to

    tas = named(hourly)["tas"]
    wanted = convert_units_to(tas.resample(time="D").mean(), "K")
    xr.testing.assert_allclose(whole(days_of(tas)), whole(wanted), rtol=1e-6)


def missing(lost: list[int], steps: int = 24, name: str = "tas") -> bool:
    """Whether a day is missing without these of its steps: absent in all cells, or in this one."""
    times = pd.date_range("2000-01-01", periods=3 * steps, freq=pd.Timedelta(1 / steps, "D"))
    numbers, coords = np.arange(250, 250 + times.size, dtype="float32"), {"time": times, "lat": [50.0], "lon": [0.0]}
    attrs = {"units": "K" if name == "tas" else "m"}
    values = xr.DataArray(numbers[:, None, None], coords, ("time", "lat", "lon"), name, attrs)
    gone = [steps + step for step in lost]
    absent = values.drop_isel(time=gone)
    values[gone] = np.nan
    how = {} if name == "tas" else {"accumulation": "over_step"}
    found = [days_of(data.chunk(), **how).sel(time="2000-01-02").isnull().values.item() for data in (absent, values)]
    assert found[0] == found[1]
    return bool(found[0])


def test_a_day_without_nine_of_its_hours_or_four_in_a_row_is_missing() -> None:
    assert not missing([0, 1, 2])
    assert missing([0, 1, 2, 3])
    assert not missing([0, 2, 4, 6, 8, 10, 12, 14])
    assert missing([0, 2, 4, 6, 8, 10, 12, 14, 16])
    assert (missing([0], 8), missing([0, 1], 8), missing([0], 4)) == (False, True, True)
    assert missing([5], name="pr")


def test_missing_steps_are_counted(hourly: xr.Dataset) -> None:
    tas = named(hourly)["tas"].sel(time=slice("2000-02-26", "2000-03-04"))
    lost = tas.sel(time=~tas["time"].isin(tas["time"][[30, 31]]))
    assert lacking(tas, days_of(tas)) == ""
    assert lacking(lost, days_of(lost)) == "2 of 192 steps are missing, the first on 2000-02-27"
    # The last total of a day has the stamp of 00 UTC of the next.
    rain = named(hourly)["pr"].sel(time=slice("2000-02-25T01", "2000-03-04T23"))
    made = days_of(rain, accumulation="over_step")
    assert lacking(rain, made, "over_step").endswith("steps are missing, the first on 2000-03-04")


def test_a_day_whose_hours_are_all_lost_is_missing(hourly: xr.Dataset) -> None:
    tas = named(hourly)["tas"]
    made = days_of(tas.sel(time=tas["time"].dt.day != 28))
    assert made.sizes["time"] == 10 and made.sel(time="2000-02-28").isnull().all()


def test_a_step_with_bounds_belongs_to_the_day_of_its_middle(hourly: xr.Dataset) -> None:
    ends = named(hourly)["tas"].rename("tdps")
    bounded = ends.assign_coords({TO_MIDPOINT: ("time", np.full(ends.sizes["time"], -0.5 / 24))})
    xr.testing.assert_identical(
        days_of(bounded).drop_attrs().compute(),
        days_of(ends.assign_coords(time=ends["time"] - np.timedelta64(30, "m"))).drop_attrs().compute(),
    )


def test_maxima_of_steps_are_of_the_time_before_their_stamps(hourly: xr.Dataset) -> None:
    tasmax = named(hourly)["tas"].rename("tasmax")
    shifted = tasmax.assign_coords(time=tasmax["time"] - np.timedelta64(1, "h"))
    made = days_of(tasmax, accumulation="over_step")
    np.testing.assert_array_equal(made[1:], days_of(shifted)[1:])
    # An instant's temperature is not of a step.
    tas = named(hourly)["tas"]
    np.testing.assert_array_equal(days_of(tas, accumulation="over_step"), days_of(tas))


def test_other_calendars_keep_their_days() -> None:
    times = xr.date_range("2001-02-27", periods=24 * 6, freq="h", calendar="360_day", use_cftime=True)
    data = xr.DataArray(da.ones((times.size, 1, 1), chunks=30), {"time": times, "lat": [1.0], "lon": [2.0]},
                        ("time", "lat", "lon"), "huss", {"units": "1"})  # fmt: skip
    made = days_of(data)
    assert [str(day)[:10] for day in made["time"].values[2:5]] == ["2001-02-29", "2001-02-30", "2001-03-01"]
    assert (made == 1).all()


def test_steps_and_amounts_that_make_no_days_are_refused(hourly: xr.Dataset) -> None:
    ds = named(hourly)
    with pytest.raises(DataError, match="over_step"):
        days_of(ds["pr"])
    with pytest.raises(DataError, match="steps of 10 hours"):
        days_of(ds["tas"].isel(time=slice(None, None, 10)))
    with pytest.raises(DataError, match="followed by"):
        steps_in_a_day(ds["tas"].isel(time=[0, 1, 1]))
    with pytest.raises(DataError, match="range"):
        days_of(ds["tas"].rename("dtr"))
    with pytest.raises(DataError, match="midnight"):
        days_of(ds["pr"], accumulation="since_midnight", day="UTC+05:30")
