"""Two variables compared: numbers that are counted by hand."""

import json
from dataclasses import asdict

import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.diagnose import differences

# Two days of January, one of July, in two cells.
DAYS = ("2001-01-30", "2001-01-31", "2001-07-01")


def series(values: list[list[float]], days: tuple[str, ...] = DAYS) -> xr.DataArray:
    time = np.array(days, "datetime64[ns]")
    coords = {"time": time, "cell": ["x", "y"]}
    return xr.DataArray(np.array(values, "float32"), coords, ("time", "cell"), "pr", {"units": "mm d-1"})


def test_differences_of_two_cells_are_those_counted_by_hand() -> None:
    a = series([[1, 2], [3, np.nan], [5, 6]])
    b = series([[1, 4], [2, 7], [5, np.nan]])
    rows, maps, said = differences.compare(a, b, draws=False)
    year, winter, spring, summer, autumn = rows
    # Differences are 0, 2 and -1 in winter, and 0 in summer; a value of each season is in one only.
    assert (year.days, year.missing, year.share, year.largest, year.mean) == (4, 2, 0.5, 2, 0.25)
    assert (winter.days, winter.missing, winter.share, winter.largest, winter.mean) == (3, 1, 2 / 3, 2, 1 / 3)
    assert (summer.days, summer.missing, summer.share, summer.largest, summer.mean) == (1, 1, 0, 0, 0)
    assert [row.q999 for row in rows] == [2, 2, 0, 0, 0]
    assert [row.days for row in (spring, autumn)] == [0, 0]
    assert [row.beyond_noise for row in rows] == [True, True, False, True, False]
    np.testing.assert_allclose(maps["share"], [1 / 3, 1])
    np.testing.assert_allclose(maps["largest"], [1, 2])
    np.testing.assert_allclose(maps["mean"], [-1 / 3, 2])
    assert said == []
    assert differences.compare(a, a + 1)[0][0].beyond_noise is None, "few cells leave noise open"


def test_the_same_days_and_cells_in_another_order_are_equal() -> None:
    a = series([[1, 2], [3, 4], [5, 6]])
    b = series([[0, 0], [6, 5], [4, 3]], ("2000-12-31", DAYS[2], DAYS[1])).assign_coords(cell=["y", "x"])
    (year, *_), _, said = differences.compare(a, b.transpose("cell", "time"))
    assert (year.days, year.share) == (4, 0)
    assert said == ["time: 1 of 3 only in A", "time: 1 of 3 only in B"]


@pytest.mark.filterwarnings("error")
def test_infinite_values_are_missing_and_every_number_is_json() -> None:
    a = series([[1, np.inf], [3, np.inf], [5, 6]])
    b = series([[1, np.inf], [3, 4], [5, -np.inf]])
    rows, maps, _ = differences.compare(a, b, draws=False)
    assert [(row.days, row.missing, row.share) for row in rows[:2]] == [(3, 2, 0), (2, 1, 0)]
    json.dumps([asdict(row) for row in rows], allow_nan=False)
    np.testing.assert_array_equal(maps["largest"], [0, np.nan])


def test_other_draws_are_noise_where_cells_differ_in_their_amounts() -> None:
    """Cells of 0.03 to 300 mm, with 0.5 to 60 % of wet days: their differences have sizes of their own."""
    random, shape = np.random.default_rng(1), (3 * 365, 20, 20)
    wet, amount = random.uniform(0.005, 0.7, shape[1:]) ** 1.5, 10 ** random.uniform(-1, 2, shape[1:])
    given = np.where(random.random(shape) < wet, random.gamma(0.7, amount, shape), 0)
    drawn = [np.where(random.random(shape) < 0.3, given * random.lognormal(0, 1, shape), given) for _ in "ab"]
    time = np.arange("2001-01-01", "2004-01-01", dtype="datetime64[D]").astype("datetime64[ns]")
    a, b = (xr.DataArray(of.astype("f4"), {"time": time}, ("time", "lat", "lon"), "pr") for of in drawn)
    rows, *_ = differences.compare(a, b)
    assert rows[0].share > 0.05
    assert [row.beyond_noise for row in rows] == [False] * 5
    b[dict(zip(("lat", "lon"), np.unravel_index(wet.argmax(), wet.shape), strict=True))] *= 3
    assert differences.compare(a, b)[0][0].beyond_noise
    # With the same draws, a cell that differs alone differs by something else.
    assert differences.compare(a, a.where((a["lat"] != 3) | (a["lon"] != 3), a * 1.01))[0][0].beyond_noise


def test_other_draws_in_a_dry_season_are_not_called_more_than_noise() -> None:
    """Of 60 cells, five have rain in summer."""
    random, shape = np.random.default_rng(1), (3 * 365, 60)
    time = xr.date_range("2001-01-01", periods=shape[0], calendar="noleap", use_cftime=True)
    given = np.where(random.random(shape) < 0.4, random.gamma(0.7, 5, shape), 0)
    given[np.ix_(np.isin(time.month, (6, 7, 8)), np.arange(5, 60))] = 0
    drawn = [np.where(random.random(shape) < 0.3, given * random.lognormal(0, 1, shape), given) for _ in "ab"]
    a, b = (xr.DataArray(of.astype("f4"), {"time": time}, ("time", "cell"), "pr") for of in drawn)
    assert [row.beyond_noise for row in differences.compare(a, b)[0]] == [False, False, False, None, False]


def test_a_day_that_is_there_twice_is_refused() -> None:
    a = series([[1, 2], [3, 4], [5, 6]])
    twice = series([[1, 2], [3, 4], [5, 6]], (DAYS[0], DAYS[0], DAYS[2]))
    with pytest.raises((DataError, ValueError), match="duplicate"):
        differences.compare(a, twice)
