"""BCSD against pandas' and plain means, and what has to hold of any."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from downscaling_blocks import block

from espo_luigi.downscaling.bcsd import BCSD, climatology
from espo_luigi.science.coarse import CoarseGrid, places_of

GRID = CoarseGrid(1.0)


def example(kind: str, years: int = 3):  # type: ignore[no-untyped-def]
    lat, lon = (one.ravel() for one in np.meshgrid(50.125 + 0.25 * np.arange(12), 5.125 + 0.25 * np.arange(12)))
    numbers = np.unique(GRID.numbers(lat, lon))
    places = places_of(GRID, numbers, lat, lon)
    days, rng = 365 * years, np.random.default_rng(0)
    season = 280 + 10 * np.sin(2 * np.pi * np.arange(days) / 365)
    fine = season + lat[:, None] + rng.normal(size=(lat.size, days))
    coarse = np.stack([fine[places.own == place].mean(axis=0) for place in range(numbers.size)])
    return block(fine, coarse, coarse, kind, places=places, window=31), lat, lon, numbers


def test_the_climatology_is_that_of_a_moving_mean() -> None:
    made, *_ = example("+")
    days = xr.DataArray(made.coarse, dims=("cell", "time")).assign_coords(time=made.setup.reference.index)
    daily = days.groupby("time.dayofyear").mean()
    around = daily.pad(dayofyear=15, mode="wrap").rolling(dayofyear=31, center=True).mean()[:, 15:-15]
    np.testing.assert_allclose(climatology(made.coarse, made.setup), around.values)


@pytest.mark.parametrize("kind", ["+", "*"])
def test_anomalies_are_interpolated_as_xarray_does(kind: str) -> None:
    made, lat, lon, numbers = example(kind)
    method = BCSD()
    adjusted = made.adjusted + np.random.default_rng(1).normal(size=made.adjusted.shape)
    learned = method.learn(made.coarse, made.fine, made.setup)
    got = method.apply(adjusted, learned, made.setup)
    usual, fine = (np.tile(one, 3) for one in learned)
    field = (adjusted - usual if kind == "+" else adjusted / usual).reshape(3, 3, -1)
    at = [np.unique(one) for one in GRID.centres(numbers)]
    gridded = xr.DataArray(field, {"lat": at[0], "lon": at[1]}, ("lat", "lon", "time"))
    near = gridded.interp(lat=xr.DataArray(lat, dims="cell"), lon=xr.DataArray(lon, dims="cell")).values
    expected = fine + near if kind == "+" else fine * near
    inside = np.isfinite(near).all(axis=1)
    assert inside.sum() == 64
    np.testing.assert_allclose(got[inside], expected[inside])
    own = field.reshape(9, -1)[made.setup.places.own]
    beyond = fine + own if kind == "+" else fine * own
    np.testing.assert_allclose(got[~inside], beyond[~inside])


def test_a_climatology_without_rain_stays_dry() -> None:
    made, *_ = example("*")
    zeros = made.fine * 0
    method = BCSD()
    learned = method.learn(made.coarse * 0, zeros, made.setup)
    assert (method.apply(made.adjusted, learned, made.setup) == 0).all()
