"""QPLAD against the golden result of its authors' own code, and what has to hold of any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from downscaling_blocks import axis, block

from espo_luigi.downscaling.kernels import order_days, rank_days
from espo_luigi.downscaling.qplad import QPLAD, days_around

DATA = Path(__file__).parents[2] / "../shared/data"
GOLDEN = DATA / "downscaling" / "tasrange_qplad.nc"


@pytest.mark.skipif(not GOLDEN.is_file(), reason="no ../shared/data/downscaling beside the project")
def test_the_authors_result_with_its_own_quantiles() -> None:
    golden = xr.open_dataset(GOLDEN)
    fine = xr.open_dataset(DATA / "isimip-berlin" / "tasrange_obs-hist_fine_1979-2014.nc")["tasrange"]
    fine = fine.convert_calendar("noleap").sel(lat=golden["lat"], lon=golden["lon"])
    coarse = fine.weighted(np.cos(np.deg2rad(fine["lat"]))).mean(["lat", "lon"])
    padded = {"time": slice("1989-12-17", "2010-01-15")}
    fine, coarse = (one.sel(padded).astype(float) for one in (fine, coarse))
    series = fine.stack(cell=("lat", "lon")).transpose("cell", "time").values
    given = {"window": 31, "years": 21, "reference": axis(series.shape[1], first_day=350)}
    made = block(series, coarse.values[None], golden["adjusted_coarse"].values[None], "+", **given)
    method = QPLAD()
    learned = method.learn(made.coarse, made.fine, made.setup)
    # The first and the last fifteen days only stand around others.
    dayofyear = made.setup.reference.dayofyear.copy()
    dayofyear[:15] = dayofyear[-15:] = 0
    order, counts = order_days(made.coarse, *days_around(dayofyear, 31))
    assert (counts == 620).all()
    learned = learned._replace(order=order, counts=counts)
    setup = replace(made.setup, quantiles=golden["sim_q"].values[None])
    got = method.apply(made.adjusted, learned, setup)
    expected = golden["downscaled"].stack(cell=("lat", "lon")).transpose("cell", "time").values
    np.testing.assert_allclose(got, expected, atol=1e-10)


def example(kind: str, wet: float | None = None, years: int = 6):  # type: ignore[no-untyped-def]
    days, rng = years * 365, np.random.default_rng(3)
    season = 10 + 5 * np.sin(2 * np.pi * np.arange(days) / 365)
    fine = season + rng.gamma(2, 2, (4, days)) if wet is None else rng.gamma(0.4, 5, (4, days))
    weights = np.array([1.0, 2.0, 2.0, 1.0])
    coarse = (weights[:, None] * fine).sum(0, keepdims=True) / weights.sum()
    return block(fine, coarse, coarse, kind, areas=weights, wet=wet, window=31, years=21)


@pytest.mark.parametrize("kind", ["+", "*"])
def test_the_reference_itself_comes_back(kind: str) -> None:
    made = example(kind)
    method = QPLAD()
    got = method.apply(made.adjusted, method.learn(made.coarse, made.fine, made.setup), made.setup)
    np.testing.assert_allclose(got, made.fine, rtol=1e-12)


@pytest.mark.parametrize("kind", ["+", "*"])
def test_the_mean_over_a_coarse_cell_is_kept(kind: str) -> None:
    made = example(kind)
    adjusted = np.random.default_rng(5).gamma(3, 3, made.adjusted.shape)
    method = QPLAD()
    got = method.apply(adjusted, method.learn(made.coarse, made.fine, made.setup), made.setup)
    np.testing.assert_allclose(np.average(got, axis=0, weights=made.setup.areas), adjusted[0], rtol=1e-12)


def test_dry_days_stay_dry_and_no_amount_lies_below_a_wet_day() -> None:
    made = example("*", wet=1.0)
    method = QPLAD()
    got = method.apply(made.adjusted, method.learn(made.coarse, made.fine, made.setup), made.setup)
    assert ((got == 0) | (got >= 1.0)).all()
    assert abs((got > 0).mean() - (made.fine >= 1.0).mean()) < 0.03
    # The amounts that dry days are given are the cell's own: the same in each block.
    again = method.apply(made.adjusted, method.learn(made.coarse, made.fine, made.setup), made.setup)
    np.testing.assert_array_equal(got, again)


def test_a_quantile_is_the_rank_among_days_around_in_years_around() -> None:
    made = example("+", years=30)
    got = QPLAD().quantiles(made.adjusted, made.setup)[0]
    values, day = made.adjusted[0], 20 * 365 + 100
    years = range(10, 30)  # the last 21 of 30 are 9 to 29, of which the year 20 has 10 to 30 around it
    sample = np.concatenate([values[y * 365 + 85 : y * 365 + 116] for y in (9, *years)])
    expected = ((sample < values[day]).sum() + 0.5) / sample.size
    assert sample.size == 651
    assert got[day] == pytest.approx(expected)


def test_ranks_of_leap_years_missing_years_and_missing_days_are_those_of_plain_counting() -> None:
    axis = xr.date_range("1999-03-01", "2008-10-31", calendar="standard", use_cftime=True)
    dates = axis[(axis.year < 2003) | (axis.year > 2004)]
    year, day = np.asarray(dates.year), np.asarray(dates.dayofyear)
    values = np.random.default_rng(0).normal(size=(1, dates.size)).round(1)
    values[0, 500:520] = np.nan
    ranks = rank_days(values, day, year, 3, 5, 366)[0]
    for place in [0, 300, 490, 519, 1100, dates.size - 1, *np.flatnonzero(day == 366)]:
        first = max(1999, min(year[place] - 2, 2004))
        centres = np.flatnonzero((day == day[place]) & (year >= first) & (year < first + 5))
        among = np.concatenate([values[0, max(0, at - 3) : at + 4] for at in centres])
        lower, equal = (among < values[0, place]).sum(), (among == values[0, place]).sum()
        plain = (lower + equal / 2) / np.isfinite(among).sum() if np.isfinite(values[0, place]) else np.nan
        np.testing.assert_equal(ranks[place], plain)


def test_cells_without_data_stay_so() -> None:
    made = example("+")
    fine = made.fine.copy()
    fine[1] = np.nan
    method = QPLAD()
    got = method.apply(made.adjusted, method.learn(made.coarse, fine, made.setup), made.setup)
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2, 3]]).all()
