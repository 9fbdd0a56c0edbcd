"""Units of series and thresholds, against xclim's conversions."""

from __future__ import annotations

import gc
import time
import weakref

import numpy as np
import pytest
import xarray as xr
from xclim.core.units import amount2rate, convert_units_to

from espo_luigi.errors import DataError
from espo_luigi.science.attributes import STATED_UNITS
from espo_luigi.science.units import convert_to, threshold_in, units_of, with_stated_units


def series(units: str, name: str = "pr", **attrs: str) -> xr.DataArray:
    return xr.DataArray(
        np.array([0.0, 1.5, np.nan, 270.0], dtype="float32"), dims="time", name=name, attrs={"units": units, **attrs}
    )


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("mm d-1", "kg m-2 s-1"),
        ("mm/day", "kg m-2 s-1"),
        ("mm s-1", "kg m-2 s-1"),
        ("m s-1", "kg m-2 s-1"),
        ("kg m-2 s-1", "mm d-1"),
        ("kg m-2 d-1", "kg m-2 s-1"),
        ("degC", "K"),
        ("K", "degC"),
        ("degF", "K"),
    ],
)
def test_series_convert_as_xclim_converts_them(source: str, target: str) -> None:
    data = series(source)
    converted = convert_to(data, target)
    expected = convert_units_to(data, target, context="hydro")
    np.testing.assert_allclose(converted, expected, rtol=3e-7)
    assert converted.dtype == data.dtype
    assert converted.attrs["units"] == target
    assert data.attrs["units"] == source


@pytest.mark.parametrize(
    "how",
    [
        {"name": "dtr"},
        {"name": "x", "units_metadata": "temperature: difference"},
        {"name": "tas", "cell_methods": "area: mean time: standard_deviation"},
    ],
)
def test_a_temperature_difference_has_no_offset(how: dict[str, str]) -> None:
    data = series("degC", **how)
    np.testing.assert_array_equal(convert_to(data, "K"), data)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("int8", "float32"), ("uint8", "float32"), ("int16", "float32"), ("uint16", "float32"), ("float16", "float32"),
     ("int32", "float64"), ("int64", "float64"), (">f4", "float32"), (">i2", "float32"), ("float64", "float64")],
)  # fmt: skip
@pytest.mark.parametrize(("units", "target"), [("mm d-1", "kg m-2 s-1"), ("degC", "K"), ("K", "K")])
def test_the_type_of_a_file_limits_no_result(dtype: str, expected: str, units: str, target: str) -> None:
    numbers = np.array([0, 1, 90, 120])
    found = convert_to(xr.DataArray(numbers.astype(dtype), dims="time", name="x", attrs={"units": units}), target)
    exact = convert_units_to(xr.DataArray(numbers * 1.0, attrs={"units": units}), target, context="hydro")
    assert found.dtype == np.dtype(expected)
    np.testing.assert_allclose(found, exact, rtol=1e-7)


@pytest.mark.parametrize("units", ["percent K", "% degC", "K count", "degree m"])
def test_a_unit_times_a_number_is_no_unit_of_a_temperature(units: str) -> None:
    with pytest.raises(DataError, match=r"multiply a quantity with .*; expected a unit that converts to K"):
        convert_to(series(units, "tasmax"), "K")


def test_conversion_is_lazy() -> None:
    assert convert_to(series("degC", "tasmax").chunk(), "K").chunks


@pytest.mark.parametrize(
    ("threshold", "units"), [("0.01 mm d-1", "kg m-2 s-1"), ("1 mm d-1", "mm d-1"), ("1 mm/day", "m s-1")]
)
def test_thresholds_convert_as_xclim_converts_them(threshold: str, units: str) -> None:
    expected = convert_units_to(threshold, units, context="hydro")
    assert threshold_in(threshold, units) == pytest.approx(expected, rel=1e-12)


def test_a_conversion_leaves_no_array_of_its_callers_in_a_cycle() -> None:
    def caller() -> weakref.ref[np.ndarray]:
        block = np.zeros(1)
        threshold_in("0.01 mm d-1", "kg m-2 s-1")
        return weakref.ref(block)

    often = gc.get_threshold()
    gc.set_threshold(0)
    try:
        assert caller()() is None
    finally:
        gc.set_threshold(*often)


@pytest.mark.parametrize("units", ["K", "degC"])
def test_a_temperature_threshold_is_a_difference(units: str) -> None:
    assert threshold_in("1e-4 K", units) == pytest.approx(1e-4, rel=1e-9)


@pytest.mark.parametrize(
    ("data", "target", "message"),
    [
        (series("furlongs of rain"), "K", "units 'furlongs of rain' of variable 'pr' are unknown"),
        (series("mm d-1"), "K", "cannot convert the units of variable 'pr' from mm d-1 to K"),
        (series("K").drop_attrs(), "K", "variable 'pr' has no units"),
    ],
)
def test_units_that_do_not_convert_are_named(data: xr.DataArray, target: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        convert_to(data, target)


@pytest.mark.parametrize("threshold", ["mm d-1", "", "one mm d-1"])
def test_a_threshold_without_a_number_is_refused(threshold: str) -> None:
    with pytest.raises(DataError, match=r"0\.01 mm d-1"):
        threshold_in(threshold, "kg m-2 s-1")


@pytest.mark.parametrize(
    "units",
    [
        *("9**9**9", "9^9^9", "9⁹⁹⁹", "m**9**9", "m2**99", "m²**9", "m**999", "((9**99)**99)**99", "10**10**9"),
        *("9 squared squared squared squared", "10^(9**9)", "m" + " m" * 20000, "(" * 3000 + "m" + ")" * 3000),
    ],
)
def test_units_that_would_take_for_ever_are_refused_at_once(units: str) -> None:
    begun = time.process_time()
    with pytest.raises(DataError, match=r"units .* are not read: .*expected CF units such as K") as caught:
        convert_to(series(units), "K")
    assert time.process_time() - begun < 10
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "units",
    ["kg m-2 s-1", "kg m**-2 s^-1", "kg·m⁻²·s⁻¹", "kg/(m^2 s)", "kg m**(-2) s-1", "10^0 K", "m s-1"],
)
def test_spellings_of_units_are_read_as_pint_reads_them(units: str) -> None:
    assert units_of(series(units)) == units


@pytest.mark.parametrize(
    ("spelled", "units", "target"),
    [
        *(
            (text, "degC", "K")
            for text in ("degrees C", "Degrees Celsius", "deg C", "degree_C", "°C", "º C", "CELSIUS")
        ),
        *((text, "K", "degC") for text in ("Kelvin", "deg K", "degrees_kelvin")),
        *((text, "degF", "K") for text in ("degrees F", "Fahrenheit")),
        *((text, "hPa", "Pa") for text in ("mb", "hpa", "millibars")),
        *((text, "mm d-1", "kg m-2 s-1") for text in ("mm/day", "mm/24h", "mm per day", "mm  of water equivalent/day")),
        ("inches/day", "in d-1", "kg m-2 s-1"),
        ("w/m2", "W m-2", "W m-2"),
        ("(0 - 1)", "1", "%"),
    ],
)
def test_usual_spellings_are_units_of_the_registry(spelled: str, units: str, target: str) -> None:
    expected = convert_units_to(series(units), target, context="hydro")
    np.testing.assert_allclose(convert_to(series(spelled), target), expected, rtol=3e-7)


TOTALS = [
    ("mm", "kg m-2 s-1"),
    ("m", "kg m-2 s-1"),
    ("m of water equivalent", "kg m-2 s-1"),
    ("kg m-2", "kg m-2 s-1"),
    ("cm", "kg m-2 s-1"),
    ("inches", "kg m-2 s-1"),
    ("J m-2", "W m-2"),
    ("MJ/m2", "W m-2"),
    ("kWh m-2", "W m-2"),
]


def days(units: str, **attrs: str) -> xr.DataArray:
    data = series(units, **attrs)
    return data.assign_coords(time=xr.date_range("2000-02-27", periods=data.size, freq="D"))


@pytest.mark.parametrize("how", ["cell_methods", "stated", "is_total"])
@pytest.mark.parametrize(("units", "target"), TOTALS)
def test_totals_of_a_day_become_the_rates_that_xclim_makes(units: str, target: str, how: str) -> None:
    given = days(units, cell_methods="area: mean time: sum (interval: 1 hour)" if how == "cell_methods" else "")
    if how == "stated":
        given.attrs["units"] = "unknown"
    told = with_stated_units(given, target, units=units if how == "stated" else "", is_total=how == "is_total")
    known_to_xclim = days(units.removesuffix(" of water equivalent"))
    expected = convert_units_to(amount2rate(known_to_xclim), target, context="hydro")
    np.testing.assert_allclose(convert_to(told, target), expected, rtol=3e-7)
    assert "sum" not in told.attrs["cell_methods"]
    assert told.attrs[STATED_UNITS].endswith(f"in place of {given.attrs['units']}")


@pytest.mark.parametrize("units", ["mm", "J m-2"])
def test_an_amount_is_no_total_unless_something_says_so(units: str) -> None:
    given = days(units, cell_methods="time: mean")
    xr.testing.assert_identical(with_stated_units(given, "kg m-2 s-1"), given)


@pytest.mark.parametrize(
    ("units", "target"), [("mm/day", "kg m-2 s-1"), ("K", "K"), ("mm", "kg m-2"), ("furlong", "K"), ("mm", "")]
)
def test_what_is_no_amount_of_the_wanted_rate_keeps_its_units(units: str, target: str) -> None:
    given = days(units, cell_methods="time: sum")
    xr.testing.assert_identical(with_stated_units(given, target, is_total=True), given)


def test_stated_units_take_the_place_of_those_of_a_file_and_of_none() -> None:
    wrong, absent = days("kg m-2 s-1"), days("")
    del absent.attrs["units"]
    for given, said in ((wrong, "kg m-2 s-1"), (absent, "none")):
        told = with_stated_units(given, "kg m-2 s-1", units="mm d-1")
        assert told.attrs == {"units": "mm d-1", STATED_UNITS: f"mm d-1 in place of {said}"}
        np.testing.assert_array_equal(told, given)
    assert "units" not in with_stated_units(absent, "K").attrs
