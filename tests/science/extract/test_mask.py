"""Masks of fixed fields, against what xscen 0.15.1 gives."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import ConfigurationError
from espo_luigi.science.extract.mask import create_mask

SHARES = xr.DataArray(
    np.array([[0, 24.5, 25], [25.5, 100, np.nan]], "float32"),
    dims=("lat", "lon"),
    coords={"lat": [1.0, 2.0], "lon": [3.0, 4.0, 5.0]},
    name="sftlf",
    attrs={"units": "%", "standard_name": "land_area_fraction"},
)
# By `xscen.regrid.create_mask` of xscen 0.15.1: the six cells with mask_nans, and without.
BY_XSCEN = {
    ">=": ("001110", "001111"),
    ">": ("000110", "000111"),
    "<=": ("111000", "111001"),
    "<": ("110000", "110001"),
    "==": ("001000", "001001"),
    "!=": ("110110", "110111"),
}


@pytest.mark.parametrize("mask_nans", [True, False])
@pytest.mark.parametrize("sign", BY_XSCEN)
def test_each_operator_gives_what_xscen_gives(sign: str, mask_nans: bool) -> None:
    mask = create_mask(SHARES, where_operator=sign, where_threshold=25, mask_nans=mask_nans)
    expected = SHARES.copy(data=np.array(list(BY_XSCEN[sign][not mask_nans]), "float32").reshape(2, 3)).rename("mask")
    expected.attrs = {"long_name": "Mask", "where_threshold": f"sftlf {sign} 25", "mask_NaNs": str(mask_nans)}
    xr.testing.assert_identical(mask, expected)
    assert mask.dtype == np.float32


def test_the_first_of_several_times_counts_and_nothing_is_computed() -> None:
    timed = xr.concat([SHARES, SHARES * 0], "time").chunk(lat=1)
    mask = create_mask(timed, where_operator=">=", where_threshold=25)
    assert mask.chunks is not None
    xr.testing.assert_equal(mask.compute(), create_mask(SHARES, where_operator=">=", where_threshold=25))


def test_a_fraction_as_threshold_of_a_field_in_percent_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    create_mask(SHARES, where_operator=">=", where_threshold=25)
    create_mask(SHARES.assign_attrs(units="1"), where_operator=">=", where_threshold=0.25)
    assert not caplog.records
    create_mask(SHARES, where_operator=">=", where_threshold=0.25)
    assert "sftlf is in %, and where_threshold is 0.25: nearly all cells count" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"where_operator": "=>", "where_threshold": 25}, "where_operator is '=>'; expected one of >=, >, <=, <, =="),
        ({"where_operator": ">=", "where_threshold": "25 %"}, "where_threshold is '25 %'; expected a number, in the u"),
        ({"where_operator": ">=", "where_threshold": True}, "where_threshold is True; expected a number"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_an_error(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        create_mask(SHARES, **arguments)
