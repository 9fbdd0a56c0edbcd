"""What summaries of daily series say, against xclim, xsdba, scipy and numpy."""

import itertools
from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science import display, grid
from espo_luigi.science.diagnose import summaries

N_CELLS = 3


@pytest.fixture(scope="module")
def daily() -> xr.Dataset:
    """Thirty years of 365 days in kelvins and fluxes, (time, cell)."""
    random = np.random.default_rng(3)
    time = xr.date_range("1991-01-01", periods=30 * 365, calendar="noleap", use_cftime=True)
    season = 12 * np.sin(2 * np.pi * (np.arange(time.size) - 100) / 365)[:, None]
    shape = (time.size, N_CELLS)
    tasmax = 283 + season + 4 * random.standard_normal(shape)
    pr = np.where(random.random(shape) < 0.4, random.gamma(0.8, 6.0, shape), 0.02) / 86400
    ds = xr.Dataset({"tasmax": (("time", "cell"), tasmax), "pr": (("time", "cell"), pr)}, {"time": time})
    ds["tasmax"].attrs = {"units": "K", "standard_name": "air_temperature"}
    ds["pr"].attrs = {"units": "kg m-2 s-1", "standard_name": "precipitation_flux"}
    return ds


@pytest.fixture(scope="module")
def found(daily: xr.Dataset) -> xr.Dataset:
    return summaries.summary(display.in_display_units(daily), period=(1991, 2020))


def test_temperatures_are_shown_in_degrees_and_precipitation_in_millimetres_a_day(daily: xr.Dataset) -> None:
    shown = display.in_display_units(daily.assign(tasmin=daily["tasmax"]))
    assert {name: da.attrs["units"] for name, da in shown.items()} == {
        "tasmax": "degC",
        "tasmin": "degC",
        "pr": "mm d-1",
    }
    np.testing.assert_allclose(shown["tasmax"], daily["tasmax"] - 273.15)
    np.testing.assert_allclose(shown["pr"], daily["pr"] * 86400)


def test_the_annual_cycle_and_the_yearly_means_are_xarrays_own(daily: xr.Dataset, found: xr.Dataset) -> None:
    celsius = daily["tasmax"] - 273.15
    by_month = celsius.mean("cell").groupby("time.month").mean()
    np.testing.assert_allclose(found["tasmax_cycle"], by_month)
    np.testing.assert_allclose(found["tasmax_yearly"], celsius.mean("cell").groupby("time.year").mean())
    assert found["year"].values.tolist() == list(range(1991, 2021))


def test_quantiles_are_those_of_each_cell_averaged(daily: xr.Dataset, found: xr.Dataset) -> None:
    levels = found["quantile"].values
    expected = (daily["pr"] * 86400).quantile(levels, dim="time").mean("cell")
    np.testing.assert_allclose(found["pr_quantile"], expected, rtol=1e-12)


def test_wet_days_and_transitions_are_xsdbas(daily: xr.Dataset, found: xr.Dataset) -> None:
    import xsdba.properties as properties
    from xclim.indices import wetdays

    pr = (daily["pr"] * 86400).assign_attrs(units="mm d-1")
    wet = wetdays(pr.assign_attrs(standard_name="precipitation_flux"), thresh="1 mm/day", freq="MS")
    july = wet.sel(time=wet["time"].dt.month == 7).mean() / 31
    np.testing.assert_allclose(found["wet_day_frequency"].sel(month=7), july)
    for name, initial in (("wet_wet", ">="), ("dry_wet", "<")):
        expected = properties.transition_probability(pr, initial_op=initial, final_op=">=", thresh="1 mm d-1")
        # xsdba divides by the number of days, of which the last has no next one.
        np.testing.assert_allclose(found[name], expected.mean(), rtol=2e-4)


def test_the_spells_are_the_runs_of_wet_days_of_each_cell(daily: xr.Dataset, found: xr.Dataset) -> None:
    wet = (daily["pr"] * 86400 >= 1).values
    runs = [(is_wet, len(list(run))) for cell in wet.T for is_wet, run in itertools.groupby(cell)]
    lengths = np.array([length for is_wet, length in runs if is_wet])
    for days in (1, 2, 5):
        np.testing.assert_allclose(found["wet_spell"].sel(days=days), (lengths >= days).mean())


def test_the_correlation_is_scipys_of_each_cell_averaged(daily: xr.Dataset, found: xr.Dataset) -> None:
    from scipy.stats import spearmanr

    april = daily.sel(time=daily["time"].dt.month == 4)
    each = [spearmanr(april["tasmax"][:, cell], april["pr"][:, cell]).statistic for cell in range(N_CELLS)]
    np.testing.assert_allclose(found["corr_tasmax_pr"].sel(month=4), np.mean(each))


def test_days_without_data_are_left_out(daily: xr.Dataset, found: xr.Dataset) -> None:
    gappy = display.in_display_units(daily).copy(deep=True)
    gappy["tasmax"][:31] = np.nan
    with_gap = summaries.summary(gappy, period=(1991, 2020))
    others = gappy["tasmax"].isel(time=slice(31, None))
    january = others.sel(time=others["time"].dt.month == 1)
    np.testing.assert_allclose(with_gap["tasmax_cycle"].sel(month=1), january.mean())
    assert float(with_gap["tasmax_cycle"].sel(month=1)) != float(found["tasmax_cycle"].sel(month=1))


def test_a_change_is_a_difference_of_temperature_and_per_cent_of_precipitation(daily: xr.Dataset) -> None:
    ds = display.in_display_units(daily).copy(deep=True)
    later = ds["time"].dt.year >= 2006
    ds["tasmax"] = ds["tasmax"].where(~later, ds["tasmax"] + 3)
    changed = summaries.changes(ds, ((1991, 2005), (2006, 2020)))
    summer = ds.sel(time=ds["time"].dt.season == "JJA")
    before, after = (summer.sel(time=slice(first, last)) for first, last in (("1991", "2005"), ("2006", "2020")))
    levels = changed["change_quantile"].values
    for name, relative in (("tasmax", False), ("pr", True)):
        old, new = (one[name].quantile(levels, "time").mean("cell") for one in (before, after))
        expected = 100 * (new / old - 1).where(old >= 0.1) if relative else new - old
        np.testing.assert_allclose(changed[f"{name}_change"].sel(season="JJA"), expected, rtol=1e-9)
    assert changed["tasmax_change"].attrs["units"] == "K"
    assert changed["pr_change"].attrs["units"] == "%"
    assert bool(changed["pr_change"].isel(change_quantile=0).isnull().all()), "dry quantiles have no per cent"


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (1950, 2100, ((1991, 2020), (2071, 2100))),
        (1991, 2100, ((1991, 2020), (2071, 2100))),
        (1950, 2050, ((1950, 1999), (2001, 2050))),
        (2015, 2100, ((2015, 2057), (2058, 2100))),
    ],
)
def test_periods_of_change_are_the_usual_ones_or_the_longest_two_of_equal_length(
    first: int, last: int, expected: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    assert summaries.periods_of_change(range(first, last + 1), ((1991, 2020), (2071, 2100))) == expected


def test_periods_of_change_do_not_hold_years_that_are_not_there() -> None:
    years = [*range(1979, 2015), *range(2065, 2101)]
    assert summaries.periods_of_change(years, ((1991, 2020), (2071, 2100))) == ((1979, 2014), (2065, 2100))
    assert summaries.periods_of_change(years, ((1985, 2014), (2071, 2100))) == ((1985, 2014), (2071, 2100))
    assert summaries.periods_of_change(years[:40], ((1991, 2020), (2071, 2100))) == ((1979, 1982), (2065, 2068))
    with pytest.raises(DataError, match="expected two years at least"):
        summaries.periods_of_change([2000], ((1991, 2020), (2071, 2100)))


def test_sample_cells_are_land_evenly_spaced_and_the_same_of_a_grid_as_of_stacked_cells() -> None:
    from espo_luigi.science.stack import stack_drop_nans

    values = np.arange(12.0).reshape(3, 4)
    values[0, :2] = np.nan
    field = xr.DataArray(values, {"lat": [45.0, 46.0, 47.0], "lon": [-70.0, -69.0, -68.0, -67.0]}, ("lat", "lon"))
    cells = grid.evenly(field, 4)
    assert cells.of == 10
    series = field.expand_dims(time=xr.date_range("2000-01-01", periods=2)).to_dataset(name="tasmax")
    of_grid = grid.at_cells(series, cells)["tasmax"]
    assert of_grid.isel(time=0).values.tolist() == [2.0, 5.0, 8.0, 11.0]
    np.testing.assert_array_equal(grid.at_cells(stack_drop_nans(series), cells)["tasmax"], of_grid)
    elsewhere = field.assign_coords(lon=field["lon"] + 0.5).expand_dims(time=1).to_dataset(name="tasmax")
    with pytest.raises(DataError, match="not all of 10 cells"):
        grid.at_cells(elsewhere, grid.evenly(field, 50))


def test_parts_of_the_same_data_read_each_block_once() -> None:
    read: list[tuple[int, ...]] = []

    def count(block: np.ndarray, block_info: Any) -> np.ndarray:
        read.append(tuple(block_info[0]["chunk-location"]))
        return block

    time = xr.date_range("2000-01-01", periods=20, calendar="noleap", use_cftime=True)
    ds = xr.Dataset({"pr": (("time", "cell"), np.arange(60.0).reshape(20, 3))}, {"time": time})
    blocks = ds.chunk(time=6)["pr"]
    lazy = ds.assign(pr=blocks.copy(data=blocks.data.map_blocks(count, dtype=float, meta=np.empty((0, 0)))))
    places = {"time": slice(4, 15), "cell": [0, 2, 2]}
    parts = grid.read_together(whole=lazy, part=lazy.isel(places))
    assert sorted(read) == [(place, 0) for place in range(4)]
    xr.testing.assert_identical(parts["whole"], ds)
    xr.testing.assert_identical(parts["part"], ds.isel(places))
