"""Where flags are worst: of data with planted days, and with the counts that xclim's own flags agree with."""

import numpy as np
import pytest
import xarray as xr
from xclim.core import dataflags

from espo_luigi.science.diagnose.flags import flag_details

TIME = xr.date_range("2000-01-01", periods=400, calendar="noleap", use_cftime=True)


@pytest.fixture()
def product() -> xr.Dataset:
    """Two years on 2 x 3 cells, of which one is sea, in chunks as a product has them."""
    random = np.random.default_rng(5)
    shape = (TIME.size, 2, 3)
    tasmax = 285 + random.random(shape)
    fields = {"tasmax": tasmax, "tasmin": tasmax - 5, "pr": random.random(shape) / 86400}
    coords = {"time": TIME, "lat": [45.0, 46.0], "lon": [-70.0, -69.0, -68.0]}
    ds = xr.Dataset({name: (("time", "lat", "lon"), values) for name, values in fields.items()}, coords)
    for name, units in (("tasmax", "K"), ("tasmin", "K"), ("pr", "kg m-2 s-1")):
        ds[name].attrs = {"units": units, "cell_methods": "time: mean", "standard_name": "air_temperature"}
    ds["pr"].attrs["standard_name"] = "precipitation_flux"
    ds = ds.where(xr.DataArray([[True, True, True], [True, True, False]], dims=("lat", "lon")))
    return ds.chunk(time=150, lat=1)


def planted(ds: xr.Dataset, name: str, days: dict[int, float], cell: tuple[int, int]) -> xr.Dataset:
    values = ds[name].values.copy()
    for day, value in days.items():
        values[day, cell[0], cell[1]] = value
    return ds.assign({name: ds[name].copy(data=values).chunk(time=150, lat=1)})


def test_a_flag_has_its_count_and_its_worst_value_day_and_cell(product: xr.Dataset) -> None:
    hot = planted(product, "tasmax", {37: 273.15 + 61, 200: 273.15 + 64.5}, (1, 0))
    settings = {"tasmax": {"temperature_extremely_high": {"thresh": "60 degC"}}}
    (detail,) = flag_details(hot, {"tasmax_temperature_extremely_high": True}, settings)
    flagged = dataflags.temperature_extremely_high(hot["tasmax"], thresh="60 degC")
    assert detail.count == int(flagged.sum())
    assert (detail.count, detail.units, detail.lat, detail.lon) == (2, "degC", 46.0, -70.0)
    assert detail.worst == pytest.approx(64.5, abs=1e-3)
    assert detail.day == TIME[200].strftime("%Y-%m-%d")
    assert detail.meaning == "warmer than 60 °C"


def test_negative_daily_ranges_are_counted_in_kelvin(product: xr.Dataset) -> None:
    """xclim's flag of negative sums takes any variable; v2 asks for it of dtr."""
    ranges = product.assign(dtr=(product["tasmax"] - product["tasmin"]).assign_attrs(units="K"))
    odd = planted(ranges, "dtr", {37: -0.25, 200: -1.5}, (0, 1))
    odd["dtr"].attrs = ranges["dtr"].attrs
    (detail,) = flag_details(odd, {"dtr_negative_accumulation_values": True}, {})
    assert detail.count == int(dataflags.negative_accumulation_values(odd["dtr"]).sum()) == 2
    assert (detail.worst, detail.units, detail.meaning) == (-1.5, "K", "negative daily temperature range")


def test_days_with_tasmin_above_tasmax_are_counted(product: xr.Dataset) -> None:
    upside = planted(product, "tasmin", {10: 300.0, 11: 299.0, 399: 305.0}, (0, 2))
    (detail,) = flag_details(upside, {"tasmax_tasmax_below_tasmin": True}, {})
    expected = int((upside["tasmax"] < upside["tasmin"]).sum())
    assert (expected, detail.count, detail.lon, detail.day) == (3, 3, -68.0, TIME[399].strftime("%Y-%m-%d"))
    assert detail.worst == pytest.approx(float((upside["tasmax"] - upside["tasmin"]).min()))


def test_a_threshold_that_is_not_configured_is_xclims_own(product: xr.Dataset) -> None:
    cold = planted(product, "tasmin", {5: 273.15 - 91}, (0, 0))
    (detail,) = flag_details(cold, {"tasmin_temperature_extremely_low": True}, {"tasmin": None})
    assert detail.meaning == "colder than -90 °C"
    assert detail.count == 1


def test_nothing_is_read_for_flags_that_are_not_raised(product: xr.Dataset) -> None:
    def fail(block: np.ndarray) -> np.ndarray:
        raise AssertionError("was read")

    unreadable = product.map(
        lambda da: da.copy(data=da.data.map_blocks(fail, dtype=da.dtype, meta=np.empty((0, 0, 0))))
    )
    names = ("pr_negative_accumulation_values", "tasmax_land_cells_without_data", "tasmax_temperature_extremely_high")
    found = flag_details(unreadable, dict.fromkeys(names, False), {})
    assert [(one.variable, one.count, one.worst) for one in found] == [
        ("pr", 0, None),
        ("tasmax", 0, None),
        ("tasmax", 0, None),
    ]


def test_a_flag_of_another_kind_is_raised_without_a_count(product: xr.Dataset) -> None:
    (detail,) = flag_details(product, {"pr_values_repeating_for_5_days": True}, {})
    assert (detail.variable, detail.raised, detail.count, detail.worst) == ("pr", True, None, None)


def test_a_flag_of_a_scope_is_worst_within_the_scope_and_has_the_scope_s_threshold(product: xr.Dataset) -> None:
    wet = planted(product, "pr", {37: 500 / 86400, 200: 450 / 86400}, (0, 0))
    wet = planted(wet, "pr", {12: 401 / 86400, 13: 430 / 86400, 14: 399 / 86400}, (1, 1))
    wet["pr"].attrs = product["pr"].attrs
    flag = "very_large_precipitation_events"
    scopes = {
        "QC": {"lon_bnds": (-69.5, -68.5), "lat_bnds": (44, 47), "flags": {"pr": {flag: {"thresh": "400 mm/d"}}}},
        "QC_south": {"lon_bnds": (-69.5, -68.5), "lat_bnds": (44, 45.5), "flags": {"pr": {flag: {"thresh": "1 mm/d"}}}},
    }
    raised = {f"pr_{flag}": True, f"QC_pr_{flag}": True, f"QC_south_pr_{flag}": False}
    whole, quebec, south = flag_details(wet, raised, {"pr": {flag: {"thresh": "410 mm/d"}}}, scopes)
    assert [(one.scope, one.variable, one.flag) for one in (whole, quebec, south)] == [
        ("", "pr", flag),
        ("QC", "pr", flag),
        ("QC_south", "pr", flag),
    ]
    assert (whole.count, quebec.count, south.count) == (3, 2, 0)
    assert (whole.lat, whole.lon, quebec.lat, quebec.lon) == (45.0, -70.0, 46.0, -69.0)
    assert (whole.worst, quebec.worst) == (pytest.approx(500), pytest.approx(430))
    assert quebec.meaning == "more precipitation than 400 mm/d"


def test_limits_of_the_daily_range_are_differences(product: xr.Dataset) -> None:
    dtr = (product["tasmax"] - product["tasmin"]).assign_attrs(units="K")
    ds = planted(product.assign(dtr=dtr), "dtr", {7: -5.5, 8: -1.0, 9: -0.5}, (0, 1))
    ds["dtr"].attrs = {"units": "K"}
    settings = {"dtr": {"temperature_extremely_low": {"thresh": "-1 K"}}}
    (detail,) = flag_details(ds, {"dtr_temperature_extremely_low": True}, settings)
    flagged = dataflags.temperature_extremely_low(ds["dtr"], thresh="-1 K")
    assert detail.count == int(flagged.sum()) == 1
    assert (detail.worst, detail.units, detail.meaning) == (-5.5, "K", "a daily range smaller than -1 K")
