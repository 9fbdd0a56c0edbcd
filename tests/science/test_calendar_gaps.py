"""Filling in time, against xarray's interpolate_na, ffill and bfill; missing days inserted."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science import calendar
from espo_luigi.science.attributes import INSERTED_DAYS
from espo_luigi.science.calendar import insert_days, without_inserted_days
from espo_luigi.science.extract.input_problems import require_days
from espo_luigi.science.variables import VARIABLES

DAYS, MEMBERS, CELLS = 1103, 2, 17
CALENDARS = ("noleap", "360_day", "standard")
NAMES = ("tasmax", "tasmin", "dtr", "pr")


def fill_in_time(ds: xr.Dataset) -> xr.Dataset:
    return calendar.fill_in_time(ds, how={name: VARIABLES[name].filling for name in NAMES})


def with_gaps(calendar: str = "noleap", days: int = DAYS) -> xr.Dataset:
    """Members and cells with gaps of all lengths: at the beginning, at the end, in between; and cells without data."""
    rng = np.random.default_rng(3)
    shape = (days, MEMBERS, CELLS)
    variables = {}
    for name in NAMES:
        values = rng.normal(280, 9, shape).astype("f4")
        values[rng.random(shape) < 0.02] = np.nan
        values[:4, :, 2] = values[-3:, :, 3] = values[100:480, 0, 4] = values[:, 1, 5] = values[1:, :, 6] = np.nan
        values[:-1, 0, 7] = values[500] = np.nan
        values[:, :, 8] = 1
        variables[name] = (("time", "realization", "loc"), values, {"units": "K"})
    time = xr.date_range("2014-01-01", periods=days, calendar=calendar, use_cftime=calendar != "standard")
    return xr.Dataset(variables | {"mask": ("loc", np.full(CELLS, np.nan))}, {"time": time})


def institutes(ds: xr.Dataset) -> xr.Dataset:
    """The institute's expressions, apart from precipitation of cells without data, which it makes 0."""
    forward = {name: ds[name].interpolate_na("time", method="linear").ffill("time") for name in NAMES[:3]}
    both = {name: forward[name].bfill("time") for name in NAMES[1:3]}
    return ds.assign(forward | both | {"pr": ds.pr.where(ds.pr.notnull() | ds.pr.isnull().all("time"), other=0)})


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("calendar", CALENDARS)
def test_filled_values_are_xarrays_to_the_last_bit(calendar: str, dtype: str) -> None:
    ds = with_gaps(calendar).astype(dtype) / 3
    filled = fill_in_time(ds)
    xr.testing.assert_identical(filled, institutes(ds))
    assert {filled[name].dtype for name in NAMES} == {np.dtype(dtype)}


def test_tasmax_has_no_values_before_its_first_and_cells_without_data_stay_nan() -> None:
    filled = fill_in_time(with_gaps())
    assert filled.tasmax[:4, 0, 2].isnull().all() and filled.tasmax[4:, 0, 2].notnull().all()
    assert filled.tasmin[:, 0, 2].notnull().all()
    assert all(filled[name][:, 1, 5].isnull().all() for name in NAMES)
    assert filled.mask.isnull().all()


@pytest.mark.parametrize("chunks", [{"time": 200, "realization": 1, "loc": 5}, {"time": -1, "loc": 4}])
def test_blocks_of_any_size_give_the_same_bytes_lazily(chunks: dict[str, int]) -> None:
    ds = with_gaps()
    filled = fill_in_time(ds.chunk(chunks))
    assert all(dask.is_dask_collection(filled[name].data) for name in NAMES)
    assert filled.tasmax.chunksizes["time"] == (DAYS,) and max(filled.tasmax.chunksizes["loc"]) == chunks["loc"]
    xr.testing.assert_identical(filled.compute(), fill_in_time(ds))


def test_the_order_of_dimensions_does_not_matter_and_the_input_stays() -> None:
    ds = with_gaps()
    kept = ds.copy(deep=True)
    turned = fill_in_time(ds.transpose("loc", "realization", "time"))
    xr.testing.assert_identical(turned.transpose("time", "realization", "loc"), fill_in_time(ds))
    xr.testing.assert_identical(ds, kept)


def test_days_out_of_order_are_not_filled() -> None:
    with pytest.raises(DataError, match="expected days in order"):
        fill_in_time(with_gaps().isel(time=slice(None, None, -1)))


def without(ds: xr.Dataset, *days: str) -> xr.Dataset:
    return ds.drop_sel(time=[ds.time.sel(time=day).values.item() if ds.time.dtype == "O" else day for day in days])


@pytest.mark.parametrize("calendar", CALENDARS)
@pytest.mark.parametrize("chunks", [None, {"time": 200, "realization": 1, "loc": 5}])
def test_the_day_that_regional_files_lack_is_inserted_and_filled(calendar: str, chunks: dict[str, int] | None) -> None:
    whole = with_gaps(calendar)
    lacking = without(whole, "2015-01-01")
    found = insert_days(lacking.chunk(chunks) if chunks else lacking, days=["2015-01-01"])
    assert found.attrs[INSERTED_DAYS] == "2015-01-01" and INSERTED_DAYS not in lacking.attrs
    require_days(found)
    np.testing.assert_array_equal(found.time, whole.time)
    assert found.time.dt.calendar == whole.time.dt.calendar
    if chunks:
        assert dask.is_dask_collection(found.pr.data)
        assert found.pr.chunks == whole.pr.chunk(chunks).chunks
    expected = whole[list(NAMES)].where(whole.time != whole.time.sel(time="2015-01-01").squeeze(drop=True))
    xr.testing.assert_equal(found[list(NAMES)].compute(), expected)
    assert found.tasmax.dtype == "f4" and "time" not in found.mask.dims
    filled = fill_in_time(found).sel(time="2015-01-01").tasmax[..., 9:].squeeze().compute()
    around = fill_in_time(lacking).tasmax.sel(time=slice("2014-12-29", "2015-01-03"))[..., 9:]
    assert filled.notnull().all()
    assert bool((filled <= around.max("time")).all() & (filled >= around.min("time")).all())


def test_days_at_noon_stay_at_noon() -> None:
    noon = with_gaps("standard")
    noon = noon.assign_coords(time=noon.time + np.timedelta64(12, "h"))
    lacking = noon.isel(time=[0, 1, 3, 4, 7])
    found = insert_days(lacking, days=["2014-01-03", "2014-01-06", "2014-01-07", "2014-01-05", "1999-01-01"])
    np.testing.assert_array_equal(found.time, noon.time[:8])
    assert found.attrs[INSERTED_DAYS] == "2014-01-03,2014-01-06,2014-01-07"


def test_a_series_that_lacks_no_day_is_returned_as_it_is() -> None:
    ds = with_gaps()
    assert insert_days(ds, days=["2015-01-01"]) is ds


@pytest.mark.parametrize("days", [[], ["2015-01-01"]])
def test_other_days_that_are_missing_are_refused(days: list[str]) -> None:
    lacking = without(with_gaps(), "2015-01-01", "2015-03-04")
    first = "2015-03-04" if days else "2015-01-01"
    with pytest.raises(DataError, match=f"lacks {2 - len(days)} days, the first is {first}"):
        insert_days(lacking, days=days)


@pytest.mark.parametrize("day", ["2015-02-30", "2015-13-01", "January"])
def test_a_day_that_the_calendar_lacks_is_refused(day: str) -> None:
    with pytest.raises(DataError, match=f"{day}' is no day of the noleap calendar"):
        insert_days(without(with_gaps(), "2015-01-01"), days=[day])


def test_a_double_day_is_refused() -> None:
    with pytest.raises(DataError, match="2014-01-02 is followed by 2014-01-02"):
        insert_days(with_gaps().isel(time=[0, 1, 1, 3]), days=["2014-01-03"])


@pytest.mark.parametrize("calendar", CALENDARS)
def test_inserted_days_can_be_left_out_again(calendar: str) -> None:
    gappy = without(with_gaps(calendar).drop_vars("mask"), "2015-01-01", "2016-03-02")
    inserted = insert_days(gappy, days=("2015-01-01", "2016-03-02"))
    assert inserted.sizes["time"] == DAYS
    xr.testing.assert_identical(without_inserted_days(inserted), gappy)
    assert without_inserted_days(gappy) is gappy
