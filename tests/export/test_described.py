"""A product's variable in the forms of CF 1.11; `tests/tasks/test_export.py` has the files checked by others."""

import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.export.netcdf import cell_methods, described, stretches
from espo_luigi.science.finalize.quantization import round_bits
from espo_luigi.science.variables import Variable


def a_product(**attrs: str) -> xr.Dataset:
    """Two days of 2 x 3 cells of a rotated grid, with a mask."""
    rotated = {"grid_mapping_name": "rotated_latitude_longitude", "grid_north_pole_latitude": 31.0}
    maps = ("rlat", "rlon"), np.arange(6, dtype="f4").reshape(2, 3)
    coords = {
        "time": xr.date_range("2000-02-29", periods=2, calendar="standard", use_cftime=True),
        "rlat": ("rlat", np.float32([0.1, 0.2]), {"standard_name": "grid_latitude", "units": "degrees"}),
        "rlon": ("rlon", np.float32([1, 2, 3]), {"standard_name": "grid_longitude", "units": "degrees"}),
        "lat": (*maps, {"standard_name": "latitude", "_FillValue": np.nan, "original_shape": "17x19"}),
        "lon": (*maps, {"standard_name": "longitude"}),
        "mask": maps,
        "rotated_pole": ((), "", rotated),
    }
    given = {"units": "K", "long_name": "Maximum", "cell_methods": "time: maximum within days", **attrs}
    data = {"tasmax": (("time", "rlat", "rlon"), np.full((2, 2, 3), 280, "f4"), given)}
    return xr.Dataset(data, coords, {"cat:id": "an id", "n": 3})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("time: maximum within days", "area: mean time: maximum"),
        ("time: minimum within days", "area: mean time: minimum"),
        ("time: range within days", "area: mean time: range"),
        ("time: mean within days", "area: time: mean"),
        ("area: mean time: maximum (interval: 1 hour)", "area: mean time: maximum (interval: 1 hour)"),
        ("time: mean within days time: mean over years", "time: mean within days time: mean over years"),
    ],
)
def test_a_daily_statistic_is_no_climatology(given: str, expected: str) -> None:
    assert cell_methods(given) == expected


@pytest.mark.parametrize("methods", ["time: range within days", "time: standard_deviation"])
def test_a_temperature_is_on_a_scale_and_a_range_or_deviation_is_a_difference(methods: str) -> None:
    on_scale = described(a_product(), "tasmax", "tasmax", {})["tasmax"]
    a_range = described(a_product(cell_methods=methods), "tasmax", "tasmax", {})["tasmax"]
    flux = described(a_product(units="kg m-2 s-1"), "tasmax", "tasmax", {})["tasmax"]
    assert on_scale.attrs["units_metadata"] == "temperature: on_scale"
    assert a_range.attrs["units_metadata"] == "temperature: difference"
    assert "units_metadata" not in flux.attrs


def test_names_that_a_variable_lacks_are_the_table_s_and_an_unknown_variable_has_its_own() -> None:
    product = a_product()
    for name, units in {"hurs": "%", "dtr": "K", "ozone": "ppb"}.items():
        product[name] = product["tasmax"].assign_attrs(units=units)
        product[name].attrs = {"units": units}
    of_cordex = {"variable": {"long_name": "Bias-Adjusted {long_name}"}}
    humidity = described(product, "hurs", "hursAdjust", of_cordex)["hursAdjust"].attrs
    assert humidity["standard_name"] == "relative_humidity" and humidity["cell_methods"] == "time: mean"
    assert humidity["long_name"] == "Bias-Adjusted Near-Surface Relative Humidity"
    a_range = described(product, "dtr", "dtr", {})["dtr"].attrs
    assert (
        a_range["units_metadata"] == "temperature: difference" and a_range["cell_methods"] == "area: mean time: range"
    )
    unknown = described(product, "ozone", "ozone", of_cordex)["ozone"].attrs
    assert unknown["long_name"] == "Bias-Adjusted ozone" and not {"standard_name", "cell_methods"} & unknown.keys()
    table = {"ozone": Variable(standard_name="mole_fraction_of_ozone_in_air", long_name="Ozone")}
    named = described(product, "ozone", "ozone", of_cordex, table)["ozone"].attrs
    assert named["standard_name"] == "mole_fraction_of_ozone_in_air" and named["long_name"] == "Bias-Adjusted Ozone"
    own = a_product(standard_name="its_own")
    assert described(own, "tasmax", "tasmax", {})["tasmax"].attrs["standard_name"] == "its_own"


def test_coordinates_are_double_without_fill_value_and_the_rotated_grid_keeps_its_mapping() -> None:
    made = described(a_product(), "tasmax", "tasmaxAdjust", {})
    assert {str(made[name].dtype) for name in ("rlat", "rlon", "lat", "lon")} == {"float64"}
    assert not any("_FillValue" in one.attrs for one in made.variables.values())
    assert made["tasmaxAdjust"].attrs["grid_mapping"] == "rotated_pole"
    assert made["tasmaxAdjust"].attrs["coordinates"] == "lat lon"
    assert made["rotated_pole"].attrs["grid_north_pole_latitude"] == 31.0
    assert set(made.variables) == {"time", "rlat", "rlon", "lat", "lon", "rotated_pole", "tasmaxAdjust"}


def test_attributes_to_set_win_and_may_name_the_variables_own() -> None:
    given = {
        "global": {"title": "T", "n": 4},
        "variable": {"long_name": "Bias-Adjusted {long_name}"},
        "lat": {"x": "y"},
    }
    made = described(a_product(), "tasmax", "tasmax", given)
    assert made["tasmax"].attrs["long_name"] == "Bias-Adjusted Maximum"
    assert made.attrs == {"cat_id": "an id", "n": 4, "title": "T", "Conventions": "CF-1.11"}
    assert made["lat"].attrs == {"standard_name": "latitude", "x": "y"}


def test_conventions_and_project_are_not_those_of_the_raw_files() -> None:
    raw = a_product().assign_attrs(Conventions="CF-1.4", project_id="CORDEX")
    found = described(raw, "tasmax", "tasmax", {}).attrs
    assert found["Conventions"] == "CF-1.11" and "project_id" not in found
    assert described(raw, "tasmax", "tasmax", {"global": {"Conventions": "CF-1.13"}}).attrs["Conventions"] == "CF-1.13"


@pytest.mark.parametrize("prefix", ["cat", "espo-g"])
def test_what_is_true_of_the_whole_product_only_is_not_said_of_a_file(prefix: str) -> None:
    whole = {"variable": "tasmax,pr", "date_start": "1950-01-01", "date_end": "2100-12-31", "_data_format_": "zarr"}
    product = a_product().assign_attrs({f"{prefix}:{name}": value for name, value in whole.items()})
    made = described(product, "tasmax", "tasmax", {})
    assert made.attrs == {"cat_id": "an id", "n": 3, "Conventions": "CF-1.11"}


def test_rounded_bits_are_told_by_the_container_of_cf_1_12() -> None:
    made = described(round_bits(a_product(), ["tasmax"], 9, version="1"), "tasmax", "tasmax", {})
    assert made.attrs["Conventions"] == "CF-1.11 CF-1.12"
    assert made["tasmax"].attrs["quantization_nsb"] == 9
    assert made[made["tasmax"].attrs["quantization"]].attrs["algorithm"] == "bitround"
    assert "quantization_info" not in described(a_product(), "tasmax", "tasmax", {})


def test_a_variable_that_the_product_lacks_is_named_with_those_that_it_has() -> None:
    with pytest.raises(DataError, match="no variable pr; it has tasmax"):
        described(a_product(), "pr", "pr", {})


@pytest.mark.parametrize(
    ("years", "first_year", "expected"),
    [
        (4, None, ["19500101-19531230", "19540101-19571230", "19580101-19581230"]),
        (5, 1951, ["19500101-19501230", "19510101-19551230", "19560101-19581230"]),
        (10, 1941, ["19500101-19501230", "19510101-19581230"]),
    ],
)
def test_files_have_whole_years_and_all_days_once(years: int, first_year: int | None, expected: list[str]) -> None:
    days = xr.date_range("1950-01-01", "1958-12-30", calendar="360_day", use_cftime=True)
    time = xr.DataArray(days, {"time": days}, ("time",))
    found = stretches(time, years, first_year)
    assert [one.dates for one in found] == expected
    xr.testing.assert_identical(xr.concat([time.isel(time=one.days) for one in found], "time"), time)


def test_no_file_has_a_gap_of_years() -> None:
    days = xr.date_range("1951-01-01", "1960-12-31", calendar="noleap", use_cftime=True)
    days = days[(days.year < 1954) | (days.year > 1957)]
    found = stretches(xr.DataArray(days, {"time": days}, ("time",)), 10)
    assert [one.dates for one in found] == ["19510101-19531231", "19580101-19601231"]
