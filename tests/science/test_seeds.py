"""Random draws that depend on the seed and the cell alone."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
import xsdba
from scipy import stats

from espo_luigi.science.seeds import jitter_under, numpy_state

RAIN = np.random.default_rng(0).gamma(0.3, 2e-5, size=(4, 4000)).astype("float32")
THRESHOLD = 0.01 / 86400


@pytest.fixture
def jittered() -> np.ndarray:
    return jitter_under(RAIN, THRESHOLD, seed="a", role="reference", cells=np.arange(4))


def test_jitter_changes_what_is_strictly_below_the_threshold_as_xsdba_does(jittered: np.ndarray) -> None:
    data = xr.DataArray(RAIN, dims=("loc", "time"), attrs={"units": "kg m-2 s-1"})
    expected = xsdba.processing.jitter_under_thresh(data, f"{THRESHOLD!r} kg m-2 s-1").values
    np.testing.assert_array_equal(jittered != RAIN, expected != RAIN)
    noise = jittered[RAIN < THRESHOLD]
    assert noise.min() > 0
    assert noise.max() < THRESHOLD
    # both are uniform; with 4000 values a p-value under 1e-3 would be a wrong distribution, and the seed is fixed
    assert stats.ks_2samp(noise, expected[RAIN < THRESHOLD]).pvalue > 1e-3


def test_jitter_keeps_missing_values_and_the_input() -> None:
    values = np.array([[np.nan, 0.0, 5e-5, 1e-4]])
    out = jitter_under(values, 1e-4, seed="a", role="simulation", cells=np.array([0]))
    assert np.isnan(out[0, 0])
    assert out[0, 3] == 1e-4
    np.testing.assert_array_equal(values, [[np.nan, 0.0, 5e-5, 1e-4]])


def test_a_cell_draws_the_same_whatever_its_neighbours(jittered: np.ndarray) -> None:
    alone = jitter_under(RAIN[2:3], THRESHOLD, seed="a", role="reference", cells=np.array([2]))
    np.testing.assert_array_equal(alone[0], jittered[2])


@pytest.mark.parametrize("other", [{"seed": "b"}, {"role": "historical"}, {"cells": np.arange(1, 5)}])
def test_seed_role_and_cell_each_change_the_draws(jittered: np.ndarray, other: dict) -> None:
    again = jitter_under(RAIN, THRESHOLD, **{"seed": "a", "role": "reference", "cells": np.arange(4), **other})
    assert (again[RAIN < THRESHOLD] != jittered[RAIN < THRESHOLD]).mean() > 0.99


def test_numpys_own_generator_is_seeded_and_put_back() -> None:
    np.random.seed(1)
    expected = np.random.random(2)
    np.random.seed(1)
    first = np.random.random()
    with numpy_state("a", "train", 0):
        inside = np.random.random()
    with numpy_state("a", "train", 0):
        assert np.random.random() == inside
    assert [first, np.random.random()] == list(expected)
