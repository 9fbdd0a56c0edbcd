"""Training and adjusting against the golden files of the reference workflow's own software."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import xarray as xr
import xsdba
from test_biasadjust import LOESS

from espo_luigi.methods import blocks
from espo_luigi.science.units import convert_to

DATA = Path(__file__).parents[1] / "data"
TRAINING_ARGS: dict[str, dict[str, Any]] = {
    "tasmax": {
        "period": ["1981", "2010"],
        "method": "DetrendedQuantileMapping",
        "group": {"group": "time.dayofyear", "window": 31},
        "xclim_train_args": {"kind": "+", "nquantiles": 50},
    },
    "pr": {
        "period": ["1981", "2010"],
        "method": "DetrendedQuantileMapping",
        "group": {"group": "time.dayofyear", "window": 31},
        "jitter_under": {"thresh": "0.01 mm d-1"},
        "adapt_freq": {"thresh": "1 mm d-1"},
        "xclim_train_args": {"kind": "*", "nquantiles": 50},
    },
}
ADJUSTING_ARGS: dict[str, Any] = {
    "periods": ["1950", "2100"],
    "xclim_adjust_args": {"detrend": LOESS, "interp": "nearest", "extrapolation": "constant"},
}


class Golden(NamedTuple):
    """One variable through training and adjustment, with a fourth cell that is all NaN, beside the golden files."""

    training: xr.Dataset
    scenario: xr.DataArray
    expected_training: xr.Dataset
    expected_scenario: xr.DataArray
    engine: str


def with_missing_cell(data: xr.DataArray) -> xr.DataArray:
    missing = xr.full_like(data.isel(loc=[0]), np.nan)
    return xr.concat([data, missing], "loc").transpose("time", "loc").chunk(loc=4)


@functools.cache
def golden(variable: str, engine: str) -> Golden:
    opened = {
        name: xr.open_dataset(DATA / file)[variable].rename(location="loc").drop_vars("loc").load()
        for name, file in (("reference", "ahccd_1950-2013.nc"), ("simulation", "CanESM2_1950-2100.nc"))
    }
    # The golden files are in the model's units; in ESPO-G both have them.
    reference = convert_to(opened["reference"], opened["simulation"].attrs["units"])
    reference, simulation = with_missing_cell(reference), with_missing_cell(opened["simulation"])
    training = blocks.train(reference, simulation, **TRAINING_ARGS[variable], seed="golden", engine=engine)
    training = training.compute()
    scenario = blocks.adjust(simulation, training, **ADJUSTING_ARGS, seed="golden", engine=engine).compute()
    return Golden(
        training,
        scenario,
        xr.open_dataset(DATA / "golden" / f"{variable}-training.nc").load(),
        xr.open_dataset(DATA / "golden" / f"{variable}-scenario.nc")[variable].load(),
        engine,
    )


@pytest.fixture(params=["xsdba", "auto"])
def tasmax(request: pytest.FixtureRequest) -> Golden:
    return golden("tasmax", request.param)


@pytest.fixture(params=[pytest.param("xsdba", marks=pytest.mark.long), "auto"])
def pr(request: pytest.FixtureRequest) -> Golden:
    return golden("pr", request.param)


def test_golden_tasmax_training(tasmax: Golden) -> None:
    for name, expected in tasmax.expected_training.data_vars.items():
        got = tasmax.training[name].isel(loc=slice(3))
        assert got.dims == expected.dims
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4, err_msg=str(name))
    for name in ("dayofyear", "quantiles"):
        np.testing.assert_array_equal(tasmax.training[name], tasmax.expected_training[name])


def test_golden_tasmax_scenario(tasmax: Golden) -> None:
    got = tasmax.scenario.isel(loc=slice(3))
    assert got.dims == ("time", "loc")
    assert got.dtype == np.float32
    wrong = ~(abs(got.transpose(*tasmax.expected_scenario.dims).values - tasmax.expected_scenario.values) <= 1e-3)
    assert wrong.mean() <= 1e-4


def test_golden_pr_training(pr: Golden) -> None:
    """`dP0` counts, and `pth` is a quantile above the threshold: no random number reaches either."""
    assert {str(name): pr.training[name].dtype.name for name in pr.training.data_vars} == {
        "af": "float32", "hist_q": "float32", "scaling": "float32", "pth": "float64", "dP0": "float64",
    }  # fmt: skip
    for name in ("pth", "dP0"):
        expected = pr.expected_training[name]
        got = pr.training[name].isel(loc=slice(3))
        assert got.dims == expected.dims
        np.testing.assert_allclose(got, expected, rtol=1e-5, err_msg=name)


def test_golden_pr_scenario_has_the_same_distribution(pr: Golden) -> None:
    got, expected = (
        one.isel(loc=slice(3)).transpose("loc", "time").values * 86400 for one in (pr.scenario, pr.expected_scenario)
    )
    np.testing.assert_allclose(got.mean(1), expected.mean(1), rtol=0.005)
    np.testing.assert_allclose((got >= 1).mean(1), (expected >= 1).mean(1), rtol=0, atol=0.005)
    for quantile in (0.95, 0.99):
        np.testing.assert_allclose(np.quantile(got, quantile, 1), np.quantile(expected, quantile, 1), rtol=0.01)


def test_a_cell_without_data_stays_missing(tasmax: Golden, pr: Golden) -> None:
    for result in (tasmax, pr):
        assert result.scenario.isel(loc=3).isnull().all()
        assert result.scenario.isel(loc=slice(3)).notnull().all()
        assert result.training.af.isel(loc=3).isnull().all()


def test_a_scenario_says_how_it_was_made(pr: Golden) -> None:
    attrs = pr.scenario.attrs
    assert attrs["units"] == "kg m-2 s-1"
    assert attrs["standard_name"] == "precipitation_flux"
    assert attrs["history"].splitlines()[0].startswith("Bias-adjusted with DetrendedQuantileMapping(")
    assert attrs["history"].splitlines()[1].startswith("2011-04-13T23:04:41Z altered by CMOR")
    assert "LoessDetrend" in attrs["bias_adjustment"] and "xsdba_train_args" not in attrs["bias_adjustment"]
    assert attrs["bias_adjustment"].endswith(
        ", ref and hist were prepared with jitter_under_thresh(ref, hist, {'thresh': '0.01 mm d-1'}) "
        "and adapt_freq(ref, hist, {'thresh': '1 mm d-1'})"
    )
    assert not [name for name in attrs if name.startswith("cat:")], "these are the dataset's"


def test_a_training_dataset_says_how_it_was_made(pr: Golden) -> None:
    told = json.loads(pr.training.attrs["espo_luigi_training"])
    assert (told["method"], told["units"], told["seed"]) == ("DetrendedQuantileMapping", {"pr": "kg m-2 s-1"}, "golden")
    assert told["arguments"]["jitter_under"] == {"thresh": "0.01 mm d-1"}
    assert "hist_q_raw" not in pr.training
    assert ("_xsdba_adjustment" in pr.training.attrs) == (pr.engine == "xsdba")


@pytest.mark.parametrize("tasmax", ["xsdba"], indirect=True)
def test_xsdba_reads_its_own_training_after_a_round_trip_through_zarr(tasmax: Golden, tmp_path: Path) -> None:
    tasmax.training.to_zarr(tmp_path / "training.zarr", zarr_format=3)
    stored = xr.open_zarr(tmp_path / "training.zarr")
    trained = xsdba.adjustment.TrainAdjust.from_dataset(stored)
    assert isinstance(trained, xsdba.DetrendedQuantileMapping)
    assert (trained.group.name, trained.group.window, trained.kind) == ("time.dayofyear", 31, "+")
    assert (trained.train_units, trained.adapt_freq_thresh) == ("K", None)
    xr.testing.assert_equal(trained.ds.af.compute(), tasmax.training.af)
