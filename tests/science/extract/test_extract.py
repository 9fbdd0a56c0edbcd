"""Extraction: dtr, periods and boxes, against plain xarray and xclim."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from xclim.core.units import convert_units_to

from espo_luigi.errors import DataError
from espo_luigi.science.extract.dataset import extract
from espo_luigi.science.geometry.cutting import beyond_the_grid, subset_box

ALL = {"tasmax": "D", "tasmin": "D", "pr": "D", "dtr": "D"}
GLOBE_LON = np.arange(0.0, 360.0, 7.5)
GLOBE_LAT = np.arange(-85.0, 86.0, 10.0)


def region(lon: Any = (-110.0, -70.0), lat: Any = (35.0, 55.0), **extra: Any) -> dict[str, Any]:
    return {"name": "NAM", "method": "bbox", "lon_bnds": lon, "lat_bnds": lat} | extra


def world(
    *,
    calendar: str = "noleap",
    lon: Any = GLOBE_LON,
    lat: Any = GLOBE_LAT,
    start: str = "2000-01-01",
    end: str = "2002-12-31",
    units: str = "K",
) -> xr.Dataset:
    time = xr.date_range(start, end, freq="D", calendar=calendar)
    rng = np.random.default_rng(1)
    shape = (len(time), len(lat), len(lon))
    low = {"K": 260.0, "degC": -13.0}[units]
    fields = {
        "tasmin": (low + rng.uniform(0, 10, shape), units),
        "tasmax": (low + 10 + rng.uniform(0, 10, shape), units),
        "pr": (rng.uniform(0, 1e-4, shape), "kg m-2 s-1"),
    }
    data = {
        name: (("time", "lat", "lon"), values.astype("float32"), {"units": u}) for name, (values, u) in fields.items()
    }
    return xr.Dataset(
        data, {"time": time, "lat": np.asarray(lat), "lon": np.asarray(lon)}, {"cat:id": "CMIP6_M", "title": "t"}
    )


def cut(
    ds: xr.Dataset, where: dict[str, Any] | None = None, *, period: Any = ("2000", "2002"), **kwargs: Any
) -> xr.Dataset:
    return extract(ds, **{"variables_and_freqs": ALL, "period": period, "region": where or region()} | kwargs)


def test_wind_and_the_mean_temperature_are_derived_if_they_are_not_there() -> None:
    ds = world(units="degC")
    wind = ds.rename(pr="uas")["uas"].assign_attrs(units="km h-1")
    ds = ds.assign(uas=3.6 * (wind * 1e5 - 5), vas=(wind * 1e5).assign_attrs(units="m s-1"))
    ds["uas"].attrs["units"] = "km h-1"
    out = cut(ds, variables_and_freqs={"sfcWind": "D", "tas": "D"})
    at = {"lat": out["lat"], "lon": out["lon"]}
    np.testing.assert_allclose(out["sfcWind"], np.hypot(ds["uas"].sel(at) / 3.6, ds["vas"].sel(at)), rtol=1e-5)
    np.testing.assert_allclose(out["tas"], (ds["tasmax"] + ds["tasmin"]).sel(at) / 2 + 273.15, rtol=1e-6)
    assert out["tas"].attrs["cell_methods"] == "time: mean" and out["sfcWind"].attrs["units"] == "m s-1"


def test_dtr_is_tasmax_minus_tasmin_as_a_difference_in_kelvin_and_float32() -> None:
    ds = world()
    dtr = cut(ds)["dtr"]
    plain = (ds["tasmax"] - ds["tasmin"]).sel(lat=slice(35, 55), lon=slice(250, 290))
    np.testing.assert_array_equal(dtr.values, plain.values)
    assert dtr.dtype == "float32"
    assert dtr.attrs["units"] == "K"
    assert dtr.attrs["units_metadata"] == "temperature: difference"


@pytest.mark.parametrize("which", [("tasmax", "tasmin"), ("tasmin",), ("tasmax",)])
def test_dtr_does_not_depend_on_the_units_of_its_sources(which: tuple[str, ...]) -> None:
    kelvin, mixed = world(), world()
    for name in which:
        mixed[name] = convert_units_to(mixed[name].astype("float64"), "degC")
    result = cut(mixed)
    np.testing.assert_allclose(result["dtr"], cut(kelvin)["dtr"], atol=1e-4)
    np.testing.assert_allclose(result["tasmax"], cut(kelvin)["tasmax"], atol=1e-4)
    assert {result[name].attrs["units"] for name in ("tasmax", "tasmin", "dtr")} == {"K"}


def test_a_stored_dtr_is_kept_and_one_in_celsius_is_not_shifted() -> None:
    ds = world()
    ds["dtr"] = (ds["tasmax"] * 0 + 7.0).assign_attrs(units="degC")
    dtr = cut(ds)["dtr"]
    assert float(dtr.min()) == float(dtr.max()) == 7.0
    assert dtr.attrs["units"] == "K"


@pytest.mark.parametrize("stated", [{}, {"units_metadata": "temperature: unknown"}])
@pytest.mark.parametrize("units", ["K", "degC"])
def test_a_stored_dtr_says_that_it_is_a_difference(units: str, stated: dict[str, str]) -> None:
    ds = world()
    ds["dtr"] = (ds["tasmax"] * 0 + 7.0).assign_attrs(units=units, long_name="range", **stated)
    found = cut(ds)
    assert found["dtr"].attrs["units_metadata"] == "temperature: difference"
    assert found["dtr"].attrs["long_name"] == "range"
    assert "units_metadata" not in found["tasmax"].attrs
    assert ds["dtr"].attrs.get("units_metadata") == stated.get("units_metadata"), "the input is not changed"


def test_variables_come_in_the_order_asked_for_and_no_others() -> None:
    ds = world().assign(other=world()["pr"])
    assert list(cut(ds).data_vars) == list(ALL)
    assert list(cut(ds, variables_and_freqs={"pr": "D"}).data_vars) == ["pr"]


def test_a_missing_variable_is_named() -> None:
    with pytest.raises(DataError, match=r"variable dtr is missing; got \['pr', 'tasmax'\]"):
        cut(world().drop_vars("tasmin"), variables_and_freqs={"tasmax": "D", "dtr": "D"})
    with pytest.raises(DataError, match=r"\{'pr': 'MS'\} are wanted; expected D"):
        cut(world(), variables_and_freqs={"pr": "MS"})


@pytest.mark.parametrize("units", ["furlong", "kg", None])
def test_units_that_are_not_temperature_are_refused_with_what_was_expected(units: str | None) -> None:
    ds = world()
    ds["tasmax"].attrs = {} if units is None else {"units": units}
    with pytest.raises(DataError, match=f"tasmax has units '{units or 'none'}'; expected K"):
        cut(ds)


@pytest.mark.parametrize(("calendar", "days"), [("noleap", 365), ("standard", 366), ("360_day", 360)])
def test_whole_years_are_selected_in_the_native_calendar(calendar: str, days: int) -> None:
    end = "2002-12-30" if calendar == "360_day" else "2002-12-31"
    ds = world(calendar=calendar, start="1999-01-01", end=end)
    result = cut(ds, period=("2000", "2001"))
    assert result.sizes["time"] == days + (360 if calendar == "360_day" else 365)
    assert set(result["time"].dt.year.values.tolist()) == {2000, 2001}
    assert result["time"].dtype == ds["time"].dtype


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        ("2000-01-01", "2001-12-31", "365 days are missing from 2002-01-01 to 2002-12-31"),
        ("2000-01-02", "2002-12-31", "1 day is missing: 2000-01-01"),
    ],
)
def test_a_period_that_the_data_do_not_cover_says_what_was_wanted_and_found(start: str, end: str, found: str) -> None:
    with pytest.raises(DataError, match=f"{found} of the period 2000-2002"):
        cut(world(start=start, end=end))


def test_data_that_have_nothing_of_the_period_say_what_they_have() -> None:
    with pytest.raises(DataError, match=r"2050-2060 is wanted, .* no day of it, but 2000-01-01 to 2002-12-31"):
        cut(world(), period=("2050", "2060"))


def test_missing_and_double_days_in_the_period_are_refused() -> None:
    ds = world()
    with pytest.raises(DataError, match="1 day is missing: 2000-01-06"):
        cut(ds.isel(time=np.delete(np.arange(ds.sizes["time"]), 5)))
    with pytest.raises(DataError, match="2000-01-06: days are there more than once"):
        cut(ds.isel(time=np.insert(np.arange(ds.sizes["time"]), 5, 5)))


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
def test_of_several_periods_the_years_between_are_left_out_and_need_not_be_there(calendar: str) -> None:
    whole = world(calendar=calendar, end="2005-12-30" if calendar == "360_day" else "2005-12-31")
    periods = [("2000", "2001"), ("2004", "2005")]
    expected = whole.isel(time=whole.time.dt.year.isin([2000, 2001, 2004, 2005]))
    made = cut(whole, period=periods)
    xr.testing.assert_identical(made.time.drop_attrs(), expected.time.drop_attrs())
    np.testing.assert_array_equal(made["pr"], cut(whole, period=("2000", "2005"))["pr"].sel(time=expected.time))
    xr.testing.assert_identical(cut(expected.chunk(time=500), period=periods), made)
    assert made.attrs["history"] == "espo_luigi: extracted 2000-2001 and 2004-2005, region NAM"
    with pytest.raises(DataError, match="2004-05-05"):
        cut(whole.isel(time=whole.time.dt.strftime("%Y-%m-%d") != "2004-05-05"), period=periods)


def test_time_that_was_not_decoded_is_refused() -> None:
    ds = world()
    with pytest.raises(DataError, match=r"not dates\. Correct its units"):
        cut(ds.assign_coords(time=np.arange(ds.sizes["time"])))


def test_bounds_of_the_box_are_inclusive() -> None:
    result = cut(world(), region(lon=(-112.5, -90.0), lat=(35.0, 55.0)))
    assert result["lon"].values.tolist() == [247.5, 255.0, 262.5, 270.0]
    assert result["lat"].values.tolist() == [35.0, 45.0, 55.0]


@pytest.mark.parametrize("flip", [("lat",), ("lon",), ("lat", "lon")])
def test_descending_coordinates_give_the_same_cells_in_their_own_order(flip: tuple[str, ...]) -> None:
    ds = world()
    reverse = {name: slice(None, None, -1) for name in flip}
    xr.testing.assert_equal(cut(ds.isel(reverse)), cut(ds).isel(reverse))


def test_bounds_follow_the_longitude_convention_of_the_data() -> None:
    ds = world()
    west = ds.assign_coords(lon=((ds["lon"] + 180) % 360) - 180).sortby("lon")
    by_east = cut(ds)
    by_west = cut(west)
    assert by_west["lon"].values.tolist() == (by_east["lon"].values - 360).tolist()
    np.testing.assert_array_equal(by_west["tasmax"], by_east["tasmax"])
    xr.testing.assert_equal(cut(west, region(lon=(250.0, 290.0))), by_west)
    xr.testing.assert_equal(cut(ds, region(lon=(250.0, 290.0))), by_east)


def test_longitudes_that_begin_just_before_greenwich_count_as_0_to_360() -> None:
    ds = world(lon=GLOBE_LON - 3.75)
    result = cut(ds)
    np.testing.assert_array_equal(result["lon"], ds["lon"].sel(lon=slice(250, 290)))


def turned(ds: xr.Dataset, first: float) -> xr.Dataset:
    """The same globe with longitudes that begin elsewhere."""
    return ds.assign_coords(lon=(ds["lon"] - first) % 360 + first).sortby("lon")


@pytest.mark.parametrize("first", [-180.0, -172.5, 0.0, 97.5, 180.0])
@pytest.mark.parametrize("buffer", [0, 1.5])
@pytest.mark.parametrize("bounds", [(-20.0, 20.0), (170.0, 190.0), (350.0, 360.0), (-120.0, -100.0), (0.0, 360.0)])
def test_a_box_has_the_same_cells_side_by_side_whatever_the_datas_first_longitude(
    first: float, buffer: float, bounds: tuple[float, float]
) -> None:
    ds, box = world(), region(lon=bounds, tile_buffer=buffer)
    found, signed = (subset_box(turned(ds, start), box) for start in (first, -180.0))
    assert (np.diff(found["lon"]) == 7.5).all()
    np.testing.assert_array_equal(found["lon"] % 360, signed["lon"] % 360)
    np.testing.assert_array_equal(found["tasmax"], signed["tasmax"])
    wanted = (bounds[1] - bounds[0] + 2 * buffer * 7.5) // 7.5
    assert found.sizes["lon"] == pytest.approx(wanted, abs=1)
    by_hand = [ds["tasmax"].sel(lat=found["lat"], lon=lon % 360).values for lon in found["lon"].values]
    np.testing.assert_array_equal(found["tasmax"], np.stack(by_hand, axis=-1))


def test_a_box_of_descending_or_shuffled_longitudes_has_its_columns_in_order() -> None:
    ds, box = world(), region(lon=(-20.0, 20.0))
    expected = subset_box(ds, box)
    assert expected["lon"].values.tolist() == [-15.0, -7.5, 0.0, 7.5, 15.0]
    flipped = subset_box(ds.isel(lon=slice(None, None, -1)), box)
    xr.testing.assert_equal(flipped, expected.isel(lon=slice(None, None, -1)))
    # As some files count: from 0 to 180, then from -180.
    xr.testing.assert_equal(subset_box(ds.assign_coords(lon=(ds["lon"] + 180) % 360 - 180), box), expected)


def test_a_column_that_a_file_has_at_both_ends_is_taken_once() -> None:
    ds, box = world(), region(lon=(-20.0, 20.0))
    cyclic = xr.concat([ds, ds.isel(lon=[0]).assign_coords(lon=[360.0])], dim="lon", data_vars="minimal")
    xr.testing.assert_equal(subset_box(cyclic, box), subset_box(ds, box))


def test_a_box_across_the_edge_of_a_curvilinear_globe_has_its_columns_side_by_side() -> None:
    ds = world()
    lat, lon = xr.broadcast(ds["lat"], ds["lon"])
    grid = ds.drop_vars(["lat", "lon"]).rename(lat="j", lon="i")
    curvilinear = grid.assign_coords(lat=(("j", "i"), lat.values), lon=(("j", "i"), lon.values))
    box = region(lon=(-20.0, 20.0))
    found, expected = subset_box(curvilinear, box), subset_box(ds, box)
    np.testing.assert_array_equal(found["tasmax"], expected["tasmax"])
    np.testing.assert_array_equal((found["lon"][0] + 180) % 360 - 180, expected["lon"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.assign_coords(lat=ds["lat"].where(ds["lat"] != 45)), "1 of 5 values of lat are missing"),
        (lambda ds: ds.assign_coords(lon=ds["lon"].where(ds["lon"] != 0)), "1 of 48 values of lon are missing"),
        (lambda ds: ds.isel(lat=[0, 2, 1, 3, 4]), "lat neither rises nor falls from row to row"),
        (lambda ds: ds.isel(lon=[*range(48), 3, 4]), "several columns have the same lon"),
        (lambda ds: ds.assign_coords(lat=ds["lat"] * 3), "lat is 105 to 225; expected degrees, 90 at most"),
        (lambda ds: ds.assign_coords(lon=ds["lon"].assign_attrs(units="radians")), "lon holds float64 in radians"),
    ],
)
def test_coordinates_that_are_missing_or_out_of_order_are_refused(
    change: Callable[[xr.Dataset], xr.Dataset], message: str
) -> None:
    ds = world(lat=np.arange(35.0, 76.0, 10.0))
    with pytest.raises(DataError, match=message):
        subset_box(change(ds), region())


def test_cells_without_coordinates_are_refused_inside_of_the_box_only() -> None:
    ds = rotated(False)
    box = region(lon=(-95.0, -85.0), lat=(42.0, 48.0))
    missing = ds.assign_coords(lat=ds["lat"].copy(data=np.where(np.arange(15) < 1, np.nan, ds["lat"])))
    xr.testing.assert_equal(subset_box(missing, box), subset_box(ds, box))
    inside = ds.assign_coords(lat=ds["lat"].where((ds["lat"] - 45) ** 2 + (ds["lon"] + 90) ** 2 > 1))
    with pytest.raises(DataError, match="values of lat are missing"):
        subset_box(inside, box)


@pytest.mark.parametrize(
    ("bounds", "buffer", "message"),
    [
        ({"lat": (45.0, 50.4)}, 0, ""),
        (
            {"lat": (45.0, 50.7)},
            0,
            r"\(45..50.7 degrees north.* data \(40..50 degrees.*: 0.2 degrees in the north further",
        ),
        ({"lat": (45.0, 51.5)}, 1.5, ""),
        ({"lat": (38.0, 50.0)}, 1.5, r"0.5 degrees in the south further than 1.5 cells"),
        ({"lon": (-110.0, -89.0)}, 0, r"9.5 degrees in the west and 0.5 degrees in the east further than 0.5 cells"),
        ({"lon": (250.0, 271.0)}, 1.5, r"8.5 degrees in the west further than 1.5 cells"),
    ],
)
def test_a_box_that_reaches_beyond_the_grid_says_how_far(
    bounds: dict[str, tuple[float, float]], buffer: float, message: str
) -> None:
    regional = world(lat=np.arange(40.0, 50.1), lon=np.arange(-100.0, -89.9), end="2000-12-31")
    box = region(**{"lat": (41.0, 49.0), "lon": (-99.0, -91.0)} | bounds, tile_buffer=buffer)
    assert bool(beyond_the_grid(regional, box)) == bool(message)
    assert re.search(message, beyond_the_grid(regional, box))


def test_a_grid_across_its_own_first_longitude_is_no_globe() -> None:
    alps = world(lon=np.append(np.arange(350.0, 360.0), np.arange(0.0, 11.0)), end="2000-12-31")
    assert not beyond_the_grid(alps, region(lon=(-9.0, 9.0)))
    assert "30 degrees in the west and 50" in beyond_the_grid(alps, region(lon=(-40.5, 60.5))).replace(".5", "")
    assert beyond_the_grid(alps, region(lon=(-40.0, 9.0)))


def test_nothing_is_beyond_the_poles_or_the_edge_of_a_global_grid() -> None:
    globe = world(lat=np.arange(-86.0, 87.0, 4.0), end="2000-12-31")
    assert not beyond_the_grid(globe, region(lon=(-180.0, 180.0), lat=(-90.0, 90.0)))


@pytest.mark.parametrize("dims", itertools.permutations(("time", "lat", "lon")))
def test_variables_come_as_time_lat_lon_whatever_their_order_in_the_file(dims: tuple[str, ...]) -> None:
    ds = world(end="2002-12-31")
    extra = ds.transpose(*dims).expand_dims(height=[2.0], axis=1)
    xr.testing.assert_equal(cut(extra), cut(ds))
    assert cut(extra)["pr"].dims == ("time", "lat", "lon")


def test_other_dimensions_and_text_are_refused_with_what_was_expected() -> None:
    ds = world()
    with pytest.raises(DataError, match=r"tasmax has the dimensions .*member \(2\).*; expected time, lat, lon and no"):
        cut(ds.expand_dims(member=[1, 2]))
    with pytest.raises(DataError, match=r"tasmax has the dimensions lat .* expected time, lat, lon"):
        cut(ds.assign(tasmax=ds["tasmax"].isel(time=0, drop=True)))
    with pytest.raises(DataError, match=r"pr holds <U.*; expected numbers"):
        cut(ds.assign(pr=ds["pr"].astype(str)))


@pytest.mark.parametrize("calendar", ["standard", "noleap", "all_leap"])
def test_the_last_day_of_the_period_is_31_december_but_in_360_day_calendars(calendar: str) -> None:
    ds = world(calendar=calendar, end="2002-12-30")
    with pytest.raises(DataError, match="1 day is missing: 2002-12-31 of the period 2000-2002"):
        cut(ds)


def test_the_buffer_widens_each_bound_by_so_many_of_the_largest_steps() -> None:
    lat = [20.0, 30.0, 38.0, 44.0, 48.0, 60.0, 80.0]
    ds = world(lat=lat)
    narrow = cut(ds, region(lat=(40.0, 50.0)))
    assert narrow["lat"].values.tolist() == [44.0, 48.0]
    # The largest step is 20: 0.5 of it on each side reaches 30 to 60.
    wide = cut(ds, region(lat=(40.0, 50.0), tile_buffer=0.5))
    assert wide["lat"].values.tolist() == [30.0, 38.0, 44.0, 48.0, 60.0]
    lon = wide["lon"].values
    assert (lon[0], lon[-1]) == (247.5, 292.5)
    by_xarray = ds["tasmax"].sel(lat=slice(30, 60), lon=slice(250 - 3.75, 290 + 3.75))
    np.testing.assert_array_equal(wide["tasmax"], by_xarray)


def test_a_box_without_cells_says_where_the_data_are() -> None:
    regional = world(lon=np.arange(0.0, 30.0, 5.0), lat=np.arange(40.0, 60.0, 5.0))
    with pytest.raises(DataError, match=r"region NAM .* holds no cell of the data \(0 to 25 °E, 40 to 55 °N\)"):
        cut(regional)


def rotated(east: bool) -> xr.Dataset:
    """A grid of its own, turned against the meridians, with 2-D lat and lon."""
    y, x = np.arange(12.0), np.arange(15.0)
    lat = 36 + 1.5 * y[:, None] + 0.3 * x[None, :]
    lon = -100 + 2.0 * x[None, :] - 0.5 * y[:, None]
    ds = world(lat=y, lon=x, end="2000-12-31").rename(lat="rlat", lon="rlon")
    coords = {"lat": (("rlat", "rlon"), lat), "lon": (("rlat", "rlon"), lon % 360 if east else lon)}
    return ds.assign_coords(coords)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bound_on_a_grid_point_is_inside_as_in_xarrays_slices_whatever_the_coordinates_dtype(dtype: str) -> None:
    lat, lon = (np.round(np.arange(start, start + 100) / 10, 1).astype(dtype) for start in (400, -900))
    ds = xr.Dataset({"tas": (("lat", "lon"), np.zeros((100, 100)))}, {"lat": lat, "lon": lon})
    found = subset_box(ds, region(lon=(-88.1, -83.3), lat=(41.4, 49.4)))
    xr.testing.assert_identical(found, ds.sel(lat=slice(41.4, 49.4), lon=slice(-88.1, -83.3)))


@pytest.mark.parametrize("east", [True, False])
def test_a_curvilinear_grid_is_cropped_and_cells_outside_the_box_are_nan(east: bool) -> None:
    ds = rotated(east)
    result = cut(ds, region(lon=(-95.0, -85.0), lat=(42.0, 48.0)), period=("2000", "2000"))
    signed = ((ds["lon"] + 180) % 360) - 180
    inside = (signed >= -95) & (signed <= -85) & (ds["lat"] >= 42) & (ds["lat"] <= 48)
    oracle = ds["tasmax"].where(inside, drop=True)
    np.testing.assert_array_equal(result["tasmax"].values, oracle.values)
    assert result["tasmax"].dims == ("time", "rlat", "rlon")
    assert result["tasmax"].dtype == "float32"
    assert result["dtr"].isnull().any()
    assert 0 < int(result["tasmax"][0].notnull().sum()) == int(inside.sum())
    assert not result["lat"].isnull().any()


def test_the_buffer_of_a_curvilinear_grid_counts_the_steps_along_its_dimensions() -> None:
    ds = rotated(False)
    wide = cut(ds, region(lon=(-95.0, -85.0), lat=(42.0, 48.0), tile_buffer=1.0), period=("2000", "2000"))
    inside = (ds["lon"] >= -97) & (ds["lon"] <= -83) & (ds["lat"] >= 40.5) & (ds["lat"] <= 49.5)
    assert int(wide["tasmax"][0].notnull().sum()) == int(inside.sum())


def test_latitude_and_longitude_are_named_lat_and_lon_and_other_scalars_go() -> None:
    ds = world().rename(lat="latitude", lon="longitude").assign_coords(height=2.0)
    result = cut(ds)
    assert set(result.coords) == {"time", "lat", "lon"}
    xr.testing.assert_equal(result, cut(world()))
    with pytest.raises(DataError, match="no coordinate lat and lon"):
        cut(world().rename(lat="a", lon="b"))


def test_attributes_say_what_was_extracted_and_keep_the_rest() -> None:
    ds = world().assign_attrs(source_id="M", history="of one of the files")
    attrs = cut(ds).attrs
    expected = {
        "cat:domain": "NAM",
        "cat:processing_level": "extracted",
        "cat:xrfreq": "D",
        "cat:frequency": "day",
        "cat:variable": ",".join(ALL),
        "cat:date_start": "2000-01-01",
        "cat:date_end": "2002-12-31",
        "cat:id": "CMIP6_M",
        "source_id": "M",
        "history": "espo_luigi: extracted 2000-2002, region NAM",
    }
    assert attrs == expected


# Of a file of CanESM5 as ESGF has it, and of other centres' files.
OF_ONE_FILE = {
    "CCCma_model_hash": "7e8e715f3f2ce47e1bab830db971c362ca329419",
    "CCCma_parent_runid": "rc3-pictrl",
    "CCCma_runid": "rc3.1-his01",
    "YMDH_branch_time_in_child": "1850:01:01:00",
    "branch_method": "Spin-up documentation",
    "branch_time_in_parent": 1223115.0,
    "case_id": "15",
    "cmor_version": "3.4.0",
    "comment": "none",
    "contact": "ec.cccma.info-info.ccmac.ec@canada.ca",
    "creation_date": "2019-04-30T17:32:18Z",
    "data_specs_version": "01.00.29",
    "experiment": "all-forcing simulation of the recent past",
    "external_variables": "areacella",
    "further_info_url": "https://furtherinfo.es-doc.org/CMIP6.CCCma.CanESM5.historical.none.r1i1p1f1",
    "parent_experiment_id": "piControl",
    "parent_time_units": "days since 1850-01-01 0:0:0.0",
    "product": "model-output",
    "status": "2019-10-25;created;by nhn2@columbia.edu",
    "table_id": "day",
    "table_info": "Creation Date:(20 February 2019) MD5:374fbe5a2bcca535c40f7f23da271e49",
    "title": "CanESM5 output prepared for CMIP6",
    "tracking_id": "hdl:21.14100/6e6b3a4b-9b9f-4b5c-9f7d-9d0e0f9c4b0e",
    "variable_id": "tasmax",
    "variant_info": "CMIP6 20th century experiment",
    "intake_esm_dataset_key": "CMIP6_M.global.raw.D",
    "intake_esm_attrs:path": "/raw/tasmax.nc",
    "cat:path": "/raw/tasmax.nc",
    "cat:format": "nc",
}
OF_THE_SIMULATION = {
    "activity_id": "ScenarioMIP",
    "experiment_id": "ssp585",
    "forcing_index": 1,
    "frequency": "day",
    "grid": "T63L49 native atmosphere, T63 Linear Gaussian Grid; 128 x 64 longxlat",
    "grid_label": "gn",
    "institution": "Canadian Centre for Climate Modelling and Analysis",
    "institution_id": "CCCma",
    "license": "CMIP6 model data produced by … is licensed under …",
    "mip_era": "CMIP6",
    "nominal_resolution": "500 km",
    "realm": "atmos",
    "references": "Geophysical Model Development",
    "source_id": "CanESM5",
    "sub_experiment_id": "none",
    "variant_label": "r1i1p1f1",
}


def test_what_cmip6_files_say_of_themselves_alone_goes_and_what_is_true_of_the_simulation_stays() -> None:
    ds = world().assign_attrs(**OF_ONE_FILE, **OF_THE_SIMULATION, Conventions="CF-1.7 CMIP-6.2")
    attrs = cut(ds).attrs
    assert not set(OF_ONE_FILE) & set(attrs)
    assert OF_THE_SIMULATION.items() <= attrs.items()
    assert attrs["Conventions"] == "CF-1.7"


def test_variables_name_nothing_that_only_their_files_hold_and_no_range_of_the_raw_values() -> None:
    ds = world()
    true = {"units": "K", "standard_name": "air_temperature", "long_name": "Maximum", "comment": "2 m"}
    of_the_file = {"cell_measures": "area: areacella", "history": "altered by CMOR", "original_name": "STMX"}
    ds["tasmax"].attrs = {**true, **of_the_file, "valid_min": 200.0, "actual_range": [210.0, 320.0], "GRIB_Nx": 9}
    for name in ("time", "lat", "lon"):
        ds[name].attrs |= {"axis": name, "bounds": f"{name}_bnds"}
    before = ds.copy(deep=True)
    found = cut(ds)
    assert found["tasmax"].attrs == true
    assert {name: found[name].attrs for name in ("time", "lat", "lon")} == {
        name: {"axis": name} for name in ("time", "lat", "lon")
    }
    xr.testing.assert_identical(ds, before)


def test_it_is_lazy_and_mutates_nothing() -> None:
    ds = world().chunk({"time": 365})
    before = ds.copy(deep=True)
    result = cut(ds)
    assert all(variable.chunks is not None for variable in result.data_vars.values())
    xr.testing.assert_identical(ds, before)
