"""Clean-up and concatenation against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import dask
import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import join
from espo_luigi.science.finalize.scenario import (
    Land,
    Treatment,
    concatenate,
    finish,
)
from espo_luigi.science.stack import grid_of, stack_drop_nans, unstack_fill_nan
from espo_luigi.science.variables import VARIABLES

NY, NX = 2, 3
TREATMENT = Treatment(round_var={"pr": 10}, to_level="cleaned_up")


def together(adjusted: list[xr.Dataset]) -> xr.Dataset:
    return join(adjusted, attributes="drop_conflicts", what="The adjusted variables")


def clean_up(adjusted: list[xr.Dataset], mask: bool = False, **treatment: object) -> xr.Dataset:
    """The product of 2024 of these maps."""
    return finish(together(adjusted), treatment=replace(TREATMENT, **treatment), temperatures="derived", mask=mask)


def make_grid() -> dict:
    return {
        "time": xr.date_range("2000-01-01", periods=2, calendar="noleap", use_cftime=True),
        "lat": np.array([45.0, 45.1]),
        "lon": np.array([-71.2, -71.1, -71.0]),
    }


def make_adjusted(values: float, name: str, units: str, **attrs: str) -> xr.Dataset:
    data = np.full((2, NY, NX), values, "float32") + np.arange(6, dtype="float32").reshape(NY, NX) * np.float32(
        values / 100
    )
    da = xr.DataArray(data, make_grid(), ("time", "lat", "lon"), attrs={"units": units, **attrs})
    return da.to_dataset(name=name).assign_attrs({"cat:id": "sim", "cat:domain": "south", "cat:variable": name})


def make_three(tasmax_units: str = "K", dtr: float = 10.0) -> list[xr.Dataset]:
    tasmax = make_adjusted(300.0, "tasmax", tasmax_units, standard_name="air_temperature", history="x")
    return [
        tasmax,
        make_adjusted(dtr, "dtr", "K", long_name="range"),
        make_adjusted(1.23456789e-5, "pr", "kg m-2 s-1", standard_name="precipitation_flux"),
    ]


def test_tasmin_is_tasmax_minus_dtr_and_dtr_is_gone():
    out = clean_up(make_three())
    assert set(out.data_vars) == {"tasmax", "pr", "tasmin"}
    expected = 290 + np.arange(6).reshape(NY, NX) * 2.9
    np.testing.assert_allclose(out.tasmin.isel(time=1), expected, rtol=1e-6)


def test_tasmin_keeps_the_units_of_a_tasmax_in_celsius():
    adjusted = make_three()
    adjusted[0]["tasmax"] = (adjusted[0].tasmax - 273.15).astype("float32").assign_attrs(units="degC")
    out = clean_up(adjusted)
    assert out.tasmin.attrs["units"] == "degC"
    np.testing.assert_allclose(out.tasmin.isel(time=0, lat=0, lon=0), 16.85, atol=1e-4)


def test_tasmin_of_celsius_and_a_range_that_says_it_is_a_difference_is_a_temperature():
    adjusted = make_three()
    adjusted[0]["tasmax"] = (adjusted[0].tasmax - 273.15).astype("float32").assign_attrs(units="degC")
    adjusted[1]["dtr"].attrs["units_metadata"] = "temperature: difference"
    out = clean_up(adjusted)
    np.testing.assert_allclose(out.tasmin.isel(time=0, lat=0, lon=0), 16.85, atol=1e-4)
    assert "units_metadata" not in out.tasmin.attrs


def test_the_product_names_its_variables_in_its_own_order_unless_the_configuration_says_otherwise():
    out = clean_up(make_three())
    assert out.attrs["cat:variable"] == ",".join(out.data_vars) == "tasmax,pr,tasmin"
    said = {"add_attrs": {"global": {"cat:variable": "all"}}}
    assert clean_up(make_three(), **said).attrs["cat:variable"] == "all"


def test_float32_stays_float32():
    out = clean_up(make_three())
    assert {str(da.dtype) for da in out.data_vars.values()} == {"float32"}


def test_precipitation_is_rounded_to_ten_decimals():
    out = clean_up(make_three())
    np.testing.assert_allclose(out.pr.isel(time=0, lat=0, lon=0), 1.23457e-5, rtol=1e-6)
    assert abs(float(out.pr[0, 0, 0]) - 1.23456789e-5) > 1e-11


def test_tasmin_says_that_it_is_a_difference_of_what_is_adjusted_and_claims_no_adjustment_of_its_own():
    adjusted = make_three()
    own = {"history": "adjusted by A(kind='+')", "bias_adjustment": "A(kind='+')", "original_name": "tasmax"}
    adjusted[0]["tasmax"].attrs |= {**own, "long_name": "Maximum", "cell_methods": "time: maximum"}
    adjusted[1]["dtr"].attrs |= {"bias_adjustment": "B(kind='*')"}
    tasmin = clean_up(adjusted).tasmin
    assert tasmin.attrs == {
        "standard_name": "air_temperature",
        "long_name": "Daily minimum temperature",
        "units": "K",
        "cell_methods": "time: minimum within days",
        "history": "tasmin = tasmax - dtr, of the adjusted tasmax and dtr",
        "bias_adjustment": "not adjusted itself: tasmax - dtr, each of which is adjusted; tasmax: A(kind='+'); "
        "dtr: B(kind='*')",
    }


@pytest.mark.parametrize(("calendar", "last"), [("noleap", "2001-12-31"), ("360_day", "2001-12-30")])
def test_dates_and_version_of_the_product_are_not_those_of_the_raw_files(calendar: str, last: str):
    time = xr.date_range("2000-01-01", last, calendar=calendar, use_cftime=True)
    said = {"cat:date_start": "1850-01-01", "cat:date_end": "2300-12-31", "cat:version": "v20190429", "version": "1"}
    raw = [ds.isel(time=0, drop=True).expand_dims(time=time).assign_attrs(said) for ds in make_three()]
    attrs = clean_up(raw).attrs
    assert (attrs["cat:date_start"], attrs["cat:date_end"]) == ("2000-01-01", last)
    assert not {"cat:version", "version"} & set(attrs)
    chosen = clean_up(raw, add_attrs={"global": {"version": "2"}})
    assert chosen.attrs["version"] == "2"


def test_attributes_of_the_configuration_win():
    attrs = {"tasmin": {"long_name": "Minimal"}, "global": {"version": "1"}, "lat": {"axis": "Y"}}
    out = clean_up(make_three(), add_attrs=attrs)
    assert out.tasmin.attrs["long_name"] == "Minimal"
    assert out.tasmax.attrs["long_name"] == VARIABLES["tasmax"].long_name
    assert out.lat.attrs == {"axis": "Y"}
    assert out.attrs == {
        "cat:id": "sim",
        "cat:domain": "south",
        "cat:variable": "tasmax,pr,tasmin",
        "version": "1",
        "cat:processing_level": "cleaned_up",
        "cat:_data_format_": "zarr",
        "cat:date_start": "2000-01-01",
        "cat:date_end": "2000-01-02",
    }


def test_crossing_temperatures_are_exchanged_and_variables_derived_of_them_before_they_are_clipped():
    tasmax, _, _ = make_three()
    low = tasmax.rename(tasmax="tasmin") + xr.DataArray([-4.0, 6.0], dims="time")
    low["tasmin"].attrs = {"units": "K"}
    bounds = {"tas": (None, 305.0)}
    made = finish(
        together([tasmax, low]),
        treatment=replace(TREATMENT, clip_var=bounds),
        temperatures="swap",
        derived={"tas": ("tasmax", "tasmin")},
    )
    assert (made.tasmax >= made.tasmin).all() and (made.tasmax.values[1] == low.tasmin.values[1]).all()
    mean = (tasmax.tasmax.values + low.tasmin.values) / 2
    np.testing.assert_allclose(made.tas.values, np.minimum(mean, 305))
    assert made.tas.attrs["espo_luigi_days_clipped"] == (mean > 305).sum() > 0
    assert made.tas.attrs["cell_methods"] == "time: mean" and "not adjusted itself" in made.tas.attrs["bias_adjustment"]


def test_the_inputs_are_not_changed():
    adjusted = make_three()
    before = [ds.copy(deep=True) for ds in adjusted]
    clean_up(adjusted, mask=True, add_attrs={"tasmax": {"a": 1}, "global": {"b": 1}})
    for ds, copy in zip(adjusted, before, strict=True):
        xr.testing.assert_identical(ds, copy)


def test_a_problem_simulation_loses_every_variable_where_tasmin_is_not_above_100_kelvin():
    adjusted = make_three()
    adjusted[1]["dtr"][0, 0, 0] = 200.0
    adjusted[1]["dtr"][0, 0, 1] = 202.9
    out = clean_up(adjusted, mask=True)
    for da in out.data_vars.values():
        assert bool(da[0, 0, 0].isnull()) and bool(da[0, 0, 1] > 0) and int(da.isnull().sum()) == 1
    assert out.tasmin.attrs["units"] == "K" and out.tasmin.dtype == "float32"
    assert int(clean_up(adjusted).pr.isnull().sum()) == 0


def test_stacked_data_come_out_on_the_complete_grid_lazily_in_the_chunks_of_the_reference():
    sea = xr.DataArray([[True, False, True], [True, True, False]], dims=("lat", "lon"))
    whole = [ds.where(sea) for ds in make_three()]
    stacked = [stack_drop_nans(ds).chunk(loc=2, time=1) for ds in whole]
    land = Land(sea.assign_coords(lat=whole[0].lat, lon=whole[0].lon), grid_of(whole[0]))
    out = finish(together(stacked), treatment=TREATMENT, land=land, temperatures="derived")
    assert all(dask.is_dask_collection(da) for da in out.data_vars.values())
    assert out.tasmin.dims == ("time", "lat", "lon") and out.pr.chunksizes["time"] == (2,)
    expected = clean_up(whole)
    xr.testing.assert_equal(out.compute(), expected)


@pytest.mark.parametrize(
    ("prefix", "kept"),
    [("", "cat:id"), ("dataset", "dataset:id"), ("dataset:", "dataset:id")],
)
def test_a_variable_of_v2_is_rounded_clipped_and_described_in_this_order(prefix: str, kept: str) -> None:
    sea = xr.DataArray([[True, False, True], [True, True, False]], dims=("lat", "lon"))
    values = make_adjusted(1.2345678912345e-5, "pr", "kg m-2 s-1", history="adjusted", long_name="rain", other="x")
    whole = values.assign_attrs({"cat:source": "M", "cat:xrfreq": "D", "espo_luigi_config": "abc"}).where(sea)
    treatment = Treatment(
        round_var={"pr": 10},
        clip_var={"pr": (None, 1.25e-5)},
        remove_all_attrs_except={"global": ["cat:id", "cat:so.*", "history"], "pr": ["units", "history"]},
        add_attrs={"global": {"version": "v2.0"}, "pr": {"long_name": "Precipitation"}},
        change_attr_prefix=prefix,
    )
    out = finish(
        stack_drop_nans(whole),
        land=Land(sea.assign_coords(lat=whole.lat, lon=whole.lon), grid_of(whole), days=2),
        treatment=treatment,
        chunks={"lat": 2, "lon": 2, "time": 2},
    ).compute()
    expected = np.minimum(np.float32(np.round(whole.pr.values, 10)), np.float32(1.25e-5))
    np.testing.assert_allclose(out.pr.values, expected, rtol=1e-6)
    assert np.isnan(out.pr.values[:, ~sea.values]).all() and float(out.pr.max()) == np.float32(1.25e-5)
    assert out.pr.attrs == {
        "units": "kg m-2 s-1",
        "history": "adjusted",
        "long_name": "Precipitation",
        "espo_luigi_days": 8,
        "espo_luigi_days_clipped": (out.pr == np.float32(1.25e-5)).sum(),
    }
    names = {kept, kept.replace("id", "source"), "history", "version", "espo_luigi_config"}
    assert out.attrs.keys() == names and out.attrs["history"] == "adjusted"


def test_variables_on_different_cells_or_days_are_an_error():
    tasmax, dtr, pr = make_three()
    moved = [stack_drop_nans(ds) for ds in (tasmax, dtr.assign_coords(lat=dtr.lat + 1e-9), pr)]
    for adjusted in (moved, [tasmax, dtr, pr.isel(time=[0])]):
        with pytest.raises(DataError, match="The adjusted variables have different days, cells or variables"):
            clean_up(adjusted)


def make_regions() -> list[xr.Dataset]:
    first = clean_up(make_three())
    return [first.assign_coords(lat=first.lat + shift) for shift in (0, 10, 20)]


def test_regions_are_joined_along_latitude_with_the_domains_attributes():
    regions = make_regions()
    out = concatenate(regions, domain="NAM")
    np.testing.assert_allclose(out.lat, [45, 45.1, 55, 55.1, 65, 65.1])
    np.testing.assert_array_equal(out.pr, np.concatenate([r.pr.values for r in regions], axis=1))
    assert out.attrs["cat:domain"] == "NAM" and out.attrs["cat:processing_level"] == "final"
    assert regions[0].attrs["cat:domain"] == "south", "the input is not changed"


def test_coordinates_keep_what_regions_agree_on_and_no_shape_of_a_region_even_where_all_have_the_same():
    regions = [unstack_fill_nan(stack_drop_nans(region), grid_of(region)) for region in make_regions()]
    for region, note in zip(regions, ("a", "b", "a"), strict=True):
        region["lat"].attrs |= {"axis": "Y", "note": note}
        assert region.lat.attrs["original_shape"] == region.lon.attrs["original_shape"] == "2x3"
    regions[1]["lon"].attrs["axis"] = "X"
    out = concatenate(regions, domain="NAM")
    assert out.lat.attrs == {"axis": "Y"} and out.lon.attrs == {"axis": "X"}
    assert regions[0].lat.attrs == {"original_shape": "2x3", "axis": "Y", "note": "a"}, "the input is not changed"
    xr.testing.assert_equal(out, concatenate(make_regions(), domain="NAM"))


def test_regions_whose_latitudes_descend_are_joined_from_the_north():
    regions = [region.isel(lat=slice(None, None, -1)) for region in make_regions()]
    out = concatenate(regions, domain="NAM")
    np.testing.assert_allclose(out.lat, [65.1, 65, 55.1, 55, 45.1, 45])


def test_rotated_regions_are_joined_along_rlat_with_their_2d_coordinates():
    regions = [region.rename(lat="rlat", lon="rlon") for region in make_regions()]
    regions = [r.assign_coords(lat=r.rlat + 0 * r.rlon).assign(rotated_pole=((), 0)) for r in regions]
    out = concatenate(regions, domain="NAM")
    assert out.pr.dims == ("time", "rlat", "rlon") and out.lat.shape == (6, 3) and out.rotated_pole.ndim == 0


def test_joining_is_lazy_and_keeps_the_blocks():
    regions = [region.chunk(time=1, lon=1) for region in make_regions()]
    whole = concatenate(regions, domain="NAM")
    assert dask.is_dask_collection(whole.pr.data)
    assert whole.pr.chunks == (regions[0].pr.chunks[0], (2, 2, 2), regions[0].pr.chunks[2])


def test_overlapping_or_unordered_regions_are_an_error():
    south, middle, north = make_regions()
    with pytest.raises(DataError, match=r"overlap or are not in order along lat: they span 45\.0 to 45\.1, 65"):
        concatenate([south, north, middle], domain="NAM")
    with pytest.raises(DataError, match="overlap"):
        concatenate([south, south], domain="NAM")


def test_regions_with_other_days_or_longitudes_are_an_error():
    south, middle, _ = make_regions()
    with pytest.raises(DataError, match=r"Regions have different days, cells or variables .*time"):
        concatenate([south, middle.isel(time=[0])], domain="NAM")
    with pytest.raises(DataError, match=r"Regions have different .*lon"):
        concatenate([south, middle.assign_coords(lon=middle.lon + 0.1)], domain="NAM")


def test_days_are_counted_as_clipped_where_the_rounded_value_is_beyond_a_bound() -> None:
    nan = np.nan
    values = np.array([[-1e-9, -0.2, 0.0, 5.0, nan], [100.0, 100.04, 100.2, 300.0, nan], [nan] * 5]).T
    time = xr.date_range("2001-01-01", periods=5, calendar="noleap", use_cftime=True)
    cells = xr.Dataset({name: (("time", "loc"), values) for name in ("hurs", "pr")}, {"time": time}).chunk(loc=1)
    treatment = Treatment({"hurs": 1}, {"hurs": (0.0, 100.0), "pr": (0.0, None)})
    made = finish(cells, treatment=treatment, chunks={})
    assert {"espo_luigi_days": 15, "espo_luigi_days_clipped": 3}.items() <= made["hurs"].attrs.items()
    assert made["pr"].attrs["espo_luigi_days_clipped"] == 2
    assert set(made) == {"hurs", "pr"} and made.chunks == cells.chunks
    assert "espo_luigi_days" not in finish(cells, treatment=Treatment(), chunks={})["hurs"].attrs


def test_treated_days_become_sums_in_the_products_attributes_which_regions_add_up() -> None:
    sea = xr.DataArray([[True, False, True], [True, True, False]], dims=("lat", "lon"))
    whole = make_three()[2].where(sea)
    cells = stack_drop_nans(whole)
    days = {"jittered": [0, 2, 4, 6], "made_wet": [1, 3, 5, 7]}
    adjusted = cells.assign({f"pr_days_{kind}": ("loc", np.array(of, "uint32")) for kind, of in days.items()})
    land = Land(sea.assign_coords(lat=whole.lat, lon=whole.lon), grid_of(whole))
    made = finish(adjusted, treatment=Treatment(), land=land).compute()
    xr.testing.assert_equal(made, finish(cells, treatment=Treatment(), land=land))
    sums = {"espo_luigi_days": 8, "espo_luigi_days_jittered": 12, "espo_luigi_days_made_wet": 16}
    assert sums.items() <= made["pr"].attrs.items()
    both = concatenate([made, made.assign_coords(lat=made.lat + 10)], domain="NAM")
    assert {name: 2 * days for name, days in sums.items()}.items() <= both["pr"].attrs.items()
    assert made["pr"].attrs["espo_luigi_days"] == 8, "the input is not changed"
    part = land.grid.isel(lon=[0, 1])
    cut = finish(adjusted, treatment=Treatment(), land=replace(land, cells=land.cells.isel(lon=[0, 1]), part=part))
    assert cut["pr"].attrs["espo_luigi_days_made_wet"] == 13
