"""tasmax, tasmin and dtr made consistent, against the institute's own expressions and xclim."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import xarray as xr
import xclim.indices

from espo_luigi.errors import DataError
from espo_luigi.science.derivations import NEEDED_FOR
from espo_luigi.science.finalize.consistency import (
    consistent,
    count_inversions,
    inversions_before_and_after,
    swap_inversions,
)

DAYS, CELLS = 371, 23
CALENDARS = ("noleap", "360_day", "standard")


def adjusted(name: str, middle: float, *, calendar: str = "noleap", gaps: bool = True) -> xr.DataArray:
    """A stacked variable, in tenths, so that some days tie: some days are NaN, and one cell has none with data."""
    rng = np.random.default_rng(len(name) + int(middle))
    values = rng.normal(middle, 4, (DAYS, CELLS)).round(1).astype("f4")
    if gaps:
        values[rng.random(values.shape) < 0.05] = np.nan
        values[:, 7] = np.nan
    coords = {
        "time": xr.date_range("2001-01-01", periods=DAYS, calendar=calendar, use_cftime=calendar != "standard"),
        "lat": ("loc", np.linspace(45, 50, CELLS)),
        "lon": ("loc", np.linspace(280, 290, CELLS)),
    }
    attrs = {"units": "K", "history": f"adjusted {name}", "cell_methods": f"time: {name[3:]}imum"}
    return xr.DataArray(values, coords, ("time", "loc"), name=name, attrs=attrs)


def pair(**options: object) -> tuple[xr.DataArray, xr.DataArray]:
    return adjusted("tasmax", 284, **options), adjusted("tasmin", 281, **options)


@pytest.mark.parametrize("calendar", CALENDARS)
def test_the_exchange_is_the_institutes(calendar: str) -> None:
    tasmax, tasmin = pair(calendar=calendar, gaps=False)
    swapped = swap_inversions(tasmax, tasmin)
    valid = tasmax >= tasmin
    assert 0.1 < float(valid.mean()) < 0.9 and (tasmax == tasmin).any()
    np.testing.assert_array_equal(swapped.tasmax, tasmax.where(valid, other=tasmin))
    np.testing.assert_array_equal(swapped.tasmin, tasmin.where(valid, other=tasmax))
    expected = xclim.indices.daily_temperature_range(tasmax=tasmax, tasmin=tasmin, freq="D")
    np.testing.assert_array_equal(swapped.dtrpreswap, expected)
    assert swapped.dtrpreswap.attrs["units_metadata"] == "temperature: difference"
    assert swapped.attrs == {}, "the attributes of variables are not those of the dataset"
    assert {str(da.dtype) for da in swapped.data_vars.values()} == {"float32"}


def test_a_day_on_which_one_of_the_two_is_missing_is_no_inversion() -> None:
    tasmax, tasmin = pair()
    swapped = swap_inversions(tasmax, tasmin)
    incomplete = tasmax.isnull() | tasmin.isnull()
    assert bool((incomplete & (tasmax.notnull() | tasmin.notnull())).any())
    np.testing.assert_array_equal(swapped.tasmax.where(incomplete), tasmax.where(incomplete))
    np.testing.assert_array_equal(swapped.tasmin.where(incomplete), tasmin.where(incomplete))


def test_a_tasmin_in_other_units_is_compared_in_those_of_tasmax() -> None:
    tasmax, tasmin = pair()
    in_celsius = (tasmin.astype("f8") - 273.15).assign_attrs(units="degC")
    swapped, expected = swap_inversions(tasmax, in_celsius), swap_inversions(tasmax, tasmin)
    assert {swapped.tasmax.units, swapped.tasmin.units} == {"K"}
    np.testing.assert_allclose(swapped.tasmin, expected.tasmin, rtol=1e-9)


def test_attributes_stay_each_variables_own_and_tell_of_the_exchange() -> None:
    swapped = swap_inversions(*pair())
    assert swapped.tasmin.attrs["cell_methods"] == "time: minimum" and swapped.tasmin.attrs["units"] == "K"
    assert swapped.tasmin.attrs["history"].splitlines()[1] == "adjusted tasmin"
    assert "exchanged" in swapped.tasmax.attrs["history"].splitlines()[0]


def test_inversions_are_counted_by_cell_before_and_after() -> None:
    tasmax, tasmin = pair()
    before = count_inversions(tasmax, tasmin)
    cells = zip(tasmax.T.values, tasmin.T.values, strict=True)
    expected = [sum(high < low for high, low in zip(*cell, strict=True)) for cell in cells]
    np.testing.assert_array_equal(before.inversions, expected)
    np.testing.assert_array_equal(before.days, (tasmax + tasmin).count("time"))
    assert before.inversions[7] == before.days[7] == 0 < before.inversions[6] < before.days[6]
    swapped = swap_inversions(tasmax, tasmin)
    after = count_inversions(swapped.tasmax, swapped.tasmin)
    assert not after.inversions.any()
    np.testing.assert_array_equal(after.days, before.days)


def test_inversions_before_the_exchange_are_counted_from_the_range_that_was_kept() -> None:
    tasmax, tasmin = pair()
    swapped = swap_inversions(tasmax, tasmin)
    counts = inversions_before_and_after(swapped.dtrpreswap, swapped.tasmax, swapped.tasmin)
    expected = (tasmax < tasmin).sum("time").where((tasmax + tasmin).count("time") > 0)
    np.testing.assert_array_equal(counts.before, expected)
    assert np.isnan(counts.before[7]) and np.isnan(counts.after[7])
    assert counts.before.sum() > 0 == counts.after.sum()
    untouched = inversions_before_and_after(swapped.dtrpreswap, tasmax, tasmin)
    np.testing.assert_array_equal(untouched.after, expected)


def test_dqm_dtr_keeps_the_adjusted_tasmax_and_takes_tasmin_from_dtr() -> None:
    tasmax, tasmin = pair()
    dtr = abs(adjusted("dtr", 8)).assign_attrs(units="K")
    undone = consistent({"tasmax": tasmax, "tasmin": tasmin, "dtr": dtr}, how="dqm-dtr")
    np.testing.assert_array_equal(undone.tasmax, tasmax)
    np.testing.assert_array_equal(undone.tasmin, tasmax - dtr)
    np.testing.assert_array_equal(undone.dtrpreswap, swap_inversions(tasmax, tasmin).dtrpreswap)
    assert undone.tasmin.attrs["history"] == "tasmin = tasmax - dtr, of the adjusted tasmax and dtr"
    # Never an inversion, since dtr is not negative.
    assert not count_inversions(undone.tasmax, undone.tasmin).inversions.any()


def test_the_institutes_way_to_undo_the_exchange_gives_the_same() -> None:
    tasmax, tasmin = pair(gaps=False)
    dtr = abs(adjusted("dtr", 8, gaps=False)).assign_attrs(units="K")
    swapped = swap_inversions(tasmax, tasmin)
    unswapped = swapped.tasmax.where(swapped.dtrpreswap > 0, other=swapped.tasmin)
    undone = consistent({"tasmax": tasmax, "tasmin": tasmin, "dtr": dtr}, how="dqm-dtr")
    np.testing.assert_array_equal(undone.tasmax, unswapped)
    np.testing.assert_array_equal(undone.tasmin, unswapped - dtr)


@pytest.mark.parametrize("how", ["swap", "derived", "dqm-dtr"])
def test_each_way_makes_a_pair_of_what_it_takes_and_keeps_the_range_before(how: str) -> None:
    high, low = pair(gaps=False)
    dtr = abs(adjusted("dtr", 8, gaps=False)).assign_attrs(units="K")
    given = {"tasmax": high, "tasmin": low, "dtr": dtr}
    made = consistent({name: given[name] for name in NEEDED_FOR[how]}, how=how)
    tasmax, tasmin, before = {
        "swap": (np.maximum(high, low), np.minimum(high, low), high - low),
        "derived": (high, high - dtr, dtr),
        "dqm-dtr": (high, high - dtr, high - low),
    }[how]
    np.testing.assert_array_equal(made.tasmax, tasmax)
    np.testing.assert_array_equal(made.tasmin, tasmin)
    np.testing.assert_allclose(made.dtrpreswap, before, atol=1e-4)


def test_blocks_of_any_size_give_the_same_lazily() -> None:
    tasmax, tasmin = pair()
    expected = swap_inversions(tasmax, tasmin)
    swapped = swap_inversions(tasmax.chunk(time=100, loc=9), tasmin.chunk(time=64, loc=10))
    counts = count_inversions(tasmax.chunk(time=100, loc=9), tasmin.chunk(time=64, loc=10))
    assert all(dask.is_dask_collection(da.data) for ds in (swapped, counts) for da in ds.data_vars.values())
    xr.testing.assert_identical(swapped.compute(), expected)
    xr.testing.assert_identical(counts.compute(), count_inversions(tasmax, tasmin))


@pytest.mark.parametrize("other", [{"time": slice(1, None)}, {"loc": slice(None, None, -1)}])
def test_variables_with_different_days_or_cells_are_refused(other: dict[str, slice]) -> None:
    tasmax, tasmin = pair()
    with pytest.raises(DataError, match="tasmax, tasmin have different days, cells"):
        swap_inversions(tasmax, tasmin.isel(other))
