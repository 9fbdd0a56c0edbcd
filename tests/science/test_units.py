"""Units of series and thresholds, against xclim's conversions."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from xclim.core.units import convert_units_to

from espo_luigi.errors import DataError
from espo_luigi.science.units import convert_to, threshold_in


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


@pytest.mark.parametrize("how", [{"name": "dtr"}, {"name": "x", "units_metadata": "temperature: difference"}])
def test_a_temperature_difference_has_no_offset(how: dict[str, str]) -> None:
    data = series("degC", **how)
    np.testing.assert_array_equal(convert_to(data, "K"), data)


def test_conversion_is_lazy() -> None:
    assert convert_to(series("degC", "tasmax").chunk(), "K").chunks


@pytest.mark.parametrize(
    ("threshold", "units"), [("0.01 mm d-1", "kg m-2 s-1"), ("1 mm d-1", "mm d-1"), ("1 mm/day", "m s-1")]
)
def test_thresholds_convert_as_xclim_converts_them(threshold: str, units: str) -> None:
    expected = convert_units_to(threshold, units, context="hydro")
    assert threshold_in(threshold, units) == pytest.approx(expected, rel=1e-12)


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
