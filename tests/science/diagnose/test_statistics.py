"""Statistics of daily series and their noise, against scipy, xsdba and samples drawn afresh."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.science import display
from espo_luigi.science.diagnose import climate_aspects, statistics

DATA = Path(__file__).parents[2] / "data"


def winter(file: str) -> np.ndarray:
    """Winters of three variables in three places, (variable, cell, time); the third has values that are missing."""
    ds = display.in_display_units(xr.load_dataset(DATA / file).sel(time=slice("1981", "1988")))
    ds = ds.sel(time=ds["time"].dt.season == "DJF").transpose("location", "time")
    values = np.stack([ds["tasmax"].values, ds["pr"].values, 6 + 4 / (1 + ds["pr"].values)])
    values[1, 2, 10:30] = np.nan
    return values


REFERENCE, RAW = winter("ahccd_1950-2013.nc"), winter("CanESM2_1950-2100.nc")


def test_rank_correlations_are_scipys() -> None:
    from scipy.stats import spearmanr

    made = statistics.rank_correlation(REFERENCE)
    for row, (first, second) in enumerate(((0, 1), (0, 2), (1, 2))):
        wanted = [
            spearmanr(REFERENCE[first, cell], REFERENCE[second, cell], nan_policy="omit").statistic for cell in range(3)
        ]
        np.testing.assert_allclose(made[row], wanted, atol=1e-12)


def test_the_energy_distance_is_xsdbas_score_of_standardised_samples_without_their_sizes() -> None:
    from xsdba.processing import escore

    both = [xr.DataArray(values, dims=("variables", "cell", "time")) for values in (REFERENCE, RAW[..., :-50])]
    wanted = []
    for cell in range(2):
        first, second = (da.isel(cell=cell) for da in both)
        weight = first.sizes["time"] * second.sizes["time"] / (first.sizes["time"] + second.sizes["time"]) / 2
        wanted.append(float(escore(first, second, scale=True)) / weight)
    made = distance(*(da.values for da in both))
    np.testing.assert_allclose(made[:2], wanted, rtol=1e-6)
    assert np.isfinite(made[2]) and made.min() > 0


def distance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    years = np.zeros(first.shape[-1])
    return statistics.energy_distances(first, [second], years, np.random.default_rng(1))[0][0]


def exceeded(*given: Any) -> np.ndarray:
    _, noise = statistics.energy_distances(given[0], [], *given[1:])
    return np.asarray(np.quantile(noise, statistics.NOISE_QUANTILE, axis=0))


def test_equal_samples_have_no_distance_and_a_constant_has_no_number() -> None:
    np.testing.assert_allclose(distance(REFERENCE, REFERENCE[..., ::-1]), 0, atol=1e-12)
    dry = REFERENCE.copy()
    dry[1, 0], dry[:, 1] = 0, np.nan
    for made in (distance(dry, RAW), exceeded(dry, YEARS, np.random.default_rng(1))):
        assert np.isnan(made[:2]).all() and np.isfinite(made[2])


YEARS = np.repeat(np.arange(30), 30)[: REFERENCE.shape[-1]]


def persistent(random: np.random.Generator, cells: int) -> np.ndarray:
    """Thirty years of thirty days of two variables, whose years are not alike: (variable, cell, time)."""
    shape = (cells, 30, 30)
    year = random.normal(size=(*shape[:2], 1))
    first = 0.7 * year + random.normal(size=shape)
    return np.stack([first, 0.5 * first + random.gamma(0.5, size=shape)]).reshape(2, cells, -1)


def test_the_noise_is_what_independent_samples_of_one_climate_exceed_in_about_one_case_of_twenty() -> None:
    random, years = np.random.default_rng(5), np.repeat(np.arange(30), 30)
    first, second = persistent(random, 40), persistent(random, 40)
    noise = exceeded(first, years, random)
    apart = distance(first, second)
    assert (apart > noise).mean() < 0.13
    assert noise.mean() == pytest.approx(np.quantile(apart, 0.95), rel=0.3)
    # Days by themselves would have far less noise.
    by_day = exceeded(first[:, :1], np.arange(900), random)
    assert (by_day < 0.5 * noise[:1]).all()


def series(of: str) -> xr.Dataset:
    ds = display.in_display_units(xr.load_dataset(DATA / of).rename(location="cell").reset_coords(drop=True))
    return ds.sel(time=slice("1981", "1992")).transpose("time", "cell")


def test_energies_of_a_group_are_by_season_and_smaller_where_the_simulation_is_the_reference_again() -> None:
    reference, raw = series("ahccd_1950-2013.nc"), series("CanESM2_1950-2100.nc")
    order = np.random.default_rng(1).permutation(reference.sizes["time"])
    mixed = reference.assign(pr=reference["pr"].copy(data=reference["pr"].values[order]))
    sources = {"reference": reference, "raw": raw, "DQM": mixed, "adjusted": reference}
    random = np.random.default_rng(2)
    made = climate_aspects.energies(sources, groups=[("tasmax", "pr")], random=random)
    assert dict(made.sizes) == {"distance": 4, "other": 3, "cell": 3}
    energy, noise = made["energy"], made["energy_noise"]
    np.testing.assert_allclose(energy.sel(other="adjusted"), 0, atol=1e-12)
    assert (energy.sel(other="raw") > noise).all() and (noise > 0).all()
    autumn = reference["time"].dt.season == "SON"
    days = [np.stack([ds[one].values[autumn.values][::3].T for one in ("tasmax", "pr")]) for ds in (reference, mixed)]
    np.testing.assert_allclose(energy.sel(other="DQM", distance="tasmax, pr, SON"), distance(*days))
