"""Missing values of years against xclim's own answer, on series of several blocks in each dimension."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import xarray as xr
from xclim.core import missing

from espo_luigi.science.diagnose.flags import inferred_freq, lacking, some_but_not_all


def series(calendar: str, start: str = "2001-01-01", end: str = "2005-01-01") -> xr.DataArray:
    """Four years of 3 x 4 cells: complete, sea, without a year, without a day, with one day only."""
    time = xr.date_range(start, end, calendar=calendar, use_cftime=calendar != "standard", inclusive="left")
    values = np.ones((time.size, 3, 4), "float32")
    year = np.asarray(time.year)
    values[:, 0, 1] = np.nan
    values[year == 2003, 0, 2] = np.nan
    values[700, 0, 3] = np.nan
    values[:, 1, 0] = np.where(np.arange(time.size) == 400, 1, np.nan)
    values[year <= 2002, 1, 1] = np.nan
    values[year == 2004, 1, 2] = np.nan
    values[-1, 1, 2] = 1
    values[0, 2, 3] = np.nan
    return xr.DataArray(values, {"time": time}, ("time", "rlat", "rlon"), name="pr", attrs={"units": "kg m-2 s-1"})


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
@pytest.mark.parametrize(
    "period", [("2001-01-01", "2005-01-01"), ("2001-06-11", "2004-12-30")], ids=["whole years", "partial years"]
)
@pytest.mark.parametrize("chunks", [None, {"time": 365, "rlat": 1}, {"time": 499, "rlat": 2, "rlon": 3}, {"time": 7}])
@pytest.mark.parametrize("freq", ["YS", "QS-DEC"])
def test_partial_periods_are_those_of_xclim_whatever_the_blocks(calendar, period, chunks, freq):
    da = series(calendar, *period)
    theirs = missing.missing_some_but_not_all(da, freq=freq).any("time")
    found = some_but_not_all(da.chunk(chunks) if chunks else da, freq=freq)
    assert dask.is_dask_collection(found)
    xr.testing.assert_equal(found.compute(), theirs)


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
def test_a_time_axis_may_lack_whole_years(calendar):
    da = series(calendar, "1991-01-01", "2005-01-01")
    stretches = da.isel(time=(da.time.dt.year < 1994) | (da.time.dt.year > 2000)).chunk(time=499)
    assert inferred_freq(stretches.to_dataset()) == "D"
    gap = stretches.isel(time=stretches.time.dt.strftime("%Y-%m-%d") != "2002-05-05")
    assert inferred_freq(gap.to_dataset()) is None
    for method in ("some_but_not_all", "any"):
        for cell in ({"rlat": 0, "rlon": 0}, {"rlat": 0, "rlon": 3}, {"rlat": 1, "rlon": 1}, {"rlat": 2, "rlon": 3}):
            found = lacking(stretches.isel(cell).to_dataset(), [method], None)[method]["pr"]
            years = getattr(missing, f"missing_{method}")(da.isel(cell), freq="YS")
            assert bool(found) == bool(years.sel(time=years.time.dt.year.isin(stretches.time.dt.year)).any())


def test_cells_without_a_year_pass_and_cells_without_a_day_do_not():
    found = some_but_not_all(series("noleap").chunk(time=499, rlon=3), freq="YS").values
    assert np.argwhere(found).tolist() == [[0, 3], [1, 0], [1, 2], [2, 3]]


def test_other_arguments_are_xclims_and_the_order_of_dimensions_is_of_no_matter():
    da = series("noleap")
    theirs = missing.missing_some_but_not_all(da, freq="YS", month=[6, 7]).any("time")
    xr.testing.assert_equal(some_but_not_all(da.chunk(time=365), freq="YS", month=[6, 7]).compute(), theirs)
    turned = some_but_not_all(da.transpose("rlon", "rlat", "time").chunk(time=100), freq="YS")
    xr.testing.assert_equal(turned.transpose("rlat", "rlon").compute(), some_but_not_all(da, freq="YS").compute())


def test_a_store_of_production_s_shape_needs_few_tasks_a_block():
    time = xr.date_range("1951-01-01", "2100-12-30", calendar="360_day", use_cftime=True)
    blocks = dask.array.zeros((time.size, 100, 100), chunks=(1461, 50, 50), dtype="float32")
    da = xr.DataArray(blocks, {"time": time}, ("time", "rlat", "rlon"))
    assert len(some_but_not_all(da, freq="YS").__dask_graph__()) < 8 * blocks.npartitions
