"""Aspects of real daily series, by VALUE's definitions, against xclim, xsdba, statsmodels, xarray and counting."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science import display, grid
from espo_luigi.science.diagnose import climate_aspects, statistics
from espo_luigi.science.variables import VARIABLES

DATA = Path(__file__).parents[2] / "data"
PERIOD = (1981, 2010)
SOURCES = {"reference": "ahccd_1950-2013.nc", "raw": "CanESM2_1950-2100.nc"}


def opened(file: str) -> xr.Dataset:
    """Series of a file in display units, with a tasmin that depends on the weather; cells are the places."""
    ds = display.in_display_units(xr.open_dataset(DATA / file).rename(location="cell").reset_coords(drop=True))
    ds = ds.sel(time=slice(str(PERIOD[0]), str(PERIOD[1]))).transpose("time", "cell").load()
    tasmin = (ds["tasmax"] - 6 - 4 / (1 + ds["pr"])).assign_attrs(ds["tasmax"].attrs)
    return ds.assign(tasmin=tasmin, pr=ds["pr"].assign_attrs(standard_name="precipitation_flux"))


@pytest.fixture(scope="module")
def sources() -> dict[str, xr.Dataset]:
    found = {name: opened(file) for name, file in SOURCES.items()}
    adjusted = (found["raw"] * 1.1).map(lambda da: da.assign_attrs(found["raw"][da.name].attrs))
    return {**found, "adjusted": adjusted}


@pytest.fixture(scope="module")
def sums(sources: dict[str, xr.Dataset]) -> xr.Dataset:
    beside = {name: ds.roll(cell=1) for name, ds in sources.items()}
    return climate_aspects.yearly_sums(sources, beside, period=PERIOD)


def number(sums: xr.Dataset, name: str, source: str) -> np.ndarray:
    """The aspect over all years, by cell."""
    of_all = sums[name].sel(source=source).sum("year").transpose(..., "cell").values
    return climate_aspects.aspects_of(VARIABLES)[name].number(*of_all)


def runs(inside: np.ndarray) -> list[int]:
    """How long the runs of true values are."""
    return [len(list(run)) for one, run in itertools.groupby(inside) if one]


def test_every_aspect_has_a_number_in_every_place(sums: xr.Dataset) -> None:
    assert set(sums.data_vars) == set(climate_aspects.aspects_of(["tasmax", "tasmin", "pr"]))
    for name, source in itertools.product(sums.data_vars, sums["source"].values):
        assert np.isfinite(number(sums, str(name), str(source))).all(), (name, source)


def test_spells_and_transitions_are_xclims_and_xsdbas(sums: xr.Dataset, sources: dict[str, xr.Dataset]) -> None:
    import xsdba.properties as properties
    from xclim.indices.run_length import rle_statistics

    pr = sources["raw"]["pr"].assign_attrs(units="mm d-1")
    for words, op, initial in (("wet", ">=", pr >= 1), ("dry", "<", pr < 1)):
        spells = rle_statistics(initial, reducer="mean", window=1)
        np.testing.assert_allclose(number(sums, f"{words}_spell", "raw"), spells, rtol=1e-6)
        joint = properties.transition_probability(pr, initial_op=op, final_op=">=", thresh="1 mm d-1")
        # VALUE's are conditional: the probability of a wet day, given the day before.
        conditional = joint.values.squeeze() / initial.isel(time=slice(-1)).mean("time").values
        np.testing.assert_allclose(number(sums, f"wet_after_{words}", "raw"), conditional, rtol=1e-6)


def test_the_longest_spells_heat_waves_and_five_days_are_those_that_counting_finds(
    sums: xr.Dataset, sources: dict[str, xr.Dataset]
) -> None:
    daily, reference = sources["raw"], sources["reference"]
    hot = daily["tasmax"] > reference["tasmax"].quantile(0.95, "time")
    conditions = {
        "longest_wet_spell": (daily["pr"] >= 1, max),
        "longest_dry_spell": (daily["pr"] < 1, max),
        "heat_wave_days": (hot, lambda found: sum(days for days in found if days >= 3)),
    }
    for name, (inside, statistic) in conditions.items():
        by_year = [year.transpose("cell", "time").values for _, year in inside.groupby("time.year")]
        expected = [np.mean([statistic([0, *runs(year[cell])]) for year in by_year]) for cell in range(3)]
        np.testing.assert_allclose(number(sums, name, "raw"), expected)
    five = daily["pr"].rolling(time=5).sum().groupby("time.year").max().mean("year")
    np.testing.assert_allclose(number(sums, "most_in_5_days", "raw"), five, rtol=1e-5)
    cold = (daily["pr"] >= 1) & ((daily["tasmax"] + daily["tasmin"]) / 2 < 0)
    np.testing.assert_allclose(number(sums, "snow_days", "raw"), cold.groupby("time.year").sum().mean("year"))


def test_persistence_is_xsdbas_and_december_belongs_to_the_next_winter(
    sums: xr.Dataset, sources: dict[str, xr.Dataset]
) -> None:
    import xsdba.properties as properties
    from statsmodels.tsa.stattools import acf

    tasmax = sources["raw"]["tasmax"]
    by_season = properties.acf(tasmax, lag=1, group="time.season").sel(season="JJA")
    np.testing.assert_allclose(number(sums, "lag1_tasmax_JJA", "raw"), by_season, rtol=1e-6)
    winters = [tasmax.sel(time=slice(f"{year - 1}-12-01", f"{year}-02-28")) for year in range(1981, 2011)]
    expected = [np.mean([acf(one.isel(cell=cell), nlags=1)[1] for one in winters]) for cell in range(3)]
    np.testing.assert_allclose(number(sums, "lag1_tasmax_DJF", "raw"), expected, rtol=1e-5)


def test_correlations_are_xsdbas(sums: xr.Dataset, sources: dict[str, xr.Dataset]) -> None:
    import xsdba.properties as properties

    daily = sources["raw"]
    daily = daily.assign(dtr=(daily["tasmax"] - daily["tasmin"]).assign_attrs(units="K"))
    pairs = {
        "corr_tasmax_pr": (daily["tasmax"], daily["pr"]),
        "corr_dtr_pr": (daily["dtr"], daily["pr"]),
        "next_cell_pr": (daily["pr"], daily["pr"].roll(cell=1)),
    }
    for name, (one, other) in pairs.items():
        expected = properties.corr_btw_var(one, other, corr_type="Spearman", group="time.season")
        for season in ("DJF", "JJA"):
            found = number(sums, f"{name}_{season}", "raw")
            np.testing.assert_allclose(found, expected.sel(season=season), rtol=1e-5)


def test_means_wet_days_and_variability_between_years_are_xarrays(
    sums: xr.Dataset, sources: dict[str, xr.Dataset]
) -> None:
    import xsdba.properties as properties
    from scipy.stats import percentileofscore

    daily = sources["raw"]
    by_season = properties.mean(daily["tasmax"], group="time.season")
    for season in statistics.SEASONS:
        np.testing.assert_allclose(
            number(sums, f"mean_tasmax_{season}", "raw"), by_season.sel(season=season), rtol=1e-6
        )
    np.testing.assert_allclose(number(sums, "wet_days", "raw"), 100 * (daily["pr"] >= 1).mean("time"))
    of_years = daily["pr"].groupby("time.year").mean().std("year", ddof=1)
    np.testing.assert_allclose(number(sums, "between_years_pr", "raw"), of_years, rtol=1e-4)
    limits = sources["reference"]["tasmax"].quantile([0.05, 0.95], "time").values
    for name, level in (("below_q05_tasmax", 0), ("above_q95_tasmax", 1)):
        # Ties are half days: the station's tenths of a degree make many.
        below = [
            percentileofscore(daily["tasmax"].isel(cell=cell).values, limits[level, cell], kind="mean")
            for cell in range(3)
        ]
        expected = np.array(below) if level == 0 else 100 - np.array(below)
        np.testing.assert_allclose(number(sums, name, "raw"), expected)
        np.testing.assert_allclose(number(sums, name, "reference"), 5, atol=0.3)


def test_years_that_a_source_lacks_are_refused_with_both_numbers(sources: dict[str, xr.Dataset]) -> None:
    short = {**sources, "raw": sources["raw"].sel(time=slice("1990", None))}
    with pytest.raises(DataError, match="raw has 21 of the 30 years 1981-2010; its years are 1990 to 2010"):
        climate_aspects.yearly_sums(short, short, period=PERIOD)


def test_neighbours_are_adjacent_cells_with_data_and_a_lone_cell_has_none() -> None:
    land = np.array(
        [[1, 1, np.nan, 1], [np.nan, np.nan, np.nan, np.nan], [1, np.nan, 1, np.nan], [1, np.nan, np.nan, 1]]
    )
    field = xr.DataArray(land, {"lat": [10.0, 11, 12, 13], "lon": [1.0, 2, 3, 4]}, ("lat", "lon"), name="prop")
    cells = grid.evenly(field, 20)
    near = grid.beside(field, cells)
    places = dict(
        zip(zip(cells.rows, cells.columns, strict=True), zip(near.rows, near.columns, strict=True), strict=True)
    )
    assert places == {
        (10.0, 1.0): (10.0, 2.0),
        (10.0, 2.0): (10.0, 1.0),
        (10.0, 4.0): (10.0, 4.0),
        (12.0, 1.0): (13.0, 1.0),
        (12.0, 3.0): (12.0, 3.0),
        (13.0, 1.0): (12.0, 1.0),
        (13.0, 4.0): (13.0, 4.0),
    }
    series = grid.at_neighbours(field.expand_dims(time=2).to_dataset(), cells, near)["prop"]
    assert series.isnull().all("time").values.tolist() == [False, False, True, False, True, False, True]
