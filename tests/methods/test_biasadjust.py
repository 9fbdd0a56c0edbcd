"""Training and adjusting: the golden files of the reference workflow's own software, and xsdba itself."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import xarray as xr
import xsdba

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods import blocks
from espo_luigi.methods.xsdba import Xsdba

LOESS = {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}
# Monthly groups take xsdba a fraction of a second where days of year take many.
MONTHLY: dict[str, Any] = {"period": [2000, 2004], "group": "time.month"}
QUICK = {"periods": [2000, 2009], "xclim_adjust_args": {"detrend": LOESS, "interp": "nearest"}}


def series(name: str, seed: int, calendar: str = "noleap", cells: int = 5, units: str | None = None) -> xr.DataArray:
    """Ten years of synthetic daily data (time, loc); rain is dry on about half of the days."""
    time = xr.date_range("2000-01-01", "2009-12-30", calendar=calendar)
    random = np.random.default_rng(seed)
    shape = (time.size, cells)
    rain = random.gamma(0.5, 4e-5 * seed, shape) * (random.random(shape) > 0.3 + 0.1 * seed)
    values = {"pr": rain, "tasmax": random.normal(280 + seed, 4 + seed, shape)}[name].astype("float32")
    attrs = {"units": units or {"pr": "kg m-2 s-1", "tasmax": "K"}[name]}
    if units == "degC":
        values = values - np.float32(273.15)
    coords = {"time": time, "lat": ("loc", np.linspace(40, 50, cells))}
    return xr.DataArray(values, dims=("time", "loc"), coords=coords, attrs=attrs, name=name)


def trained_by_xsdba(reference: xr.DataArray, historical: xr.DataArray, **kwargs: Any) -> Any:
    return xsdba.DetrendedQuantileMapping.train(
        reference.sel(time=slice("2000", "2004")), historical.sel(time=slice("2000", "2004")), **kwargs
    )


@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_a_simulation_of_360_days_takes_the_reference_to_its_calendar(calendar: str) -> None:
    reference, simulation = series("tasmax", 1, calendar), series("tasmax", 2, "360_day")
    training = blocks.train(reference, simulation, **MONTHLY)
    expected = trained_by_xsdba(
        reference.convert_calendar("360_day", align_on="year"), simulation, group="time.month", nquantiles=15
    )
    xr.testing.assert_allclose(training.af, expected.ds.af.transpose("loc", "month", "quantiles"))
    scenario = blocks.adjust(simulation, training, **QUICK)
    assert scenario.time.dt.calendar == "360_day"
    assert scenario.sizes == simulation.sizes
    detrend = xsdba.detrending.LoessDetrend(group=expected.group, kind="+", **LOESS["LoessDetrend"])
    np.testing.assert_allclose(
        scenario, expected.adjust(simulation, detrend=detrend).transpose("time", "loc"), rtol=1e-6
    )


def test_a_standard_simulation_loses_29_february_by_default() -> None:
    simulation = series("tasmax", 2, "standard")
    training = blocks.train(series("tasmax", 1), simulation, **MONTHLY)
    scenario = blocks.adjust(simulation, training, **QUICK)
    assert scenario.time.dt.calendar == "noleap"
    assert scenario.sizes["time"] == simulation.sizes["time"] - 3


def test_a_standard_simulation_keeps_29_february_where_the_calendar_may_be_standard() -> None:
    simulation = series("tasmax", 2, "standard")
    training = blocks.train(series("tasmax", 1, "standard"), simulation, maximal_calendar="standard", **MONTHLY)
    scenario = blocks.adjust(simulation, training, **QUICK)
    assert scenario.time.equals(simulation.time)


def test_times_that_differ_are_both_shown() -> None:
    reference, simulation = series("tasmax", 1), series("tasmax", 2).isel(time=slice(10, None))
    with pytest.raises(
        DataError,
        match=r"reference has 1825 times from 2000-01-01.*\(noleap\) and historical has 1815 times from 2000-01-11",
    ):
        blocks.train(reference, simulation, **MONTHLY)


def test_a_period_without_data_is_an_error_that_says_what_there_is() -> None:
    data = series("tasmax", 1)
    with pytest.raises(DataError, match=r"reference has no data in 1951-1980; it covers 2000-01-01.* to 2009-12-30"):
        blocks.train(data, data, period=["1951", "1980"], group="time.month")


def test_cells_that_differ_are_refused() -> None:
    with pytest.raises(DataError, match="reference has 5 cells along 'loc' and historical 4"):
        blocks.train(series("tasmax", 1), series("tasmax", 2, cells=4), **MONTHLY)


@pytest.mark.parametrize(("which", "units"), [(0, "warm"), (1, "warm"), (1, "mm d-1")])
def test_units_that_are_unknown_or_do_not_convert_are_named(which: int, units: str) -> None:
    pair = [series("tasmax", 1), series("tasmax", 2)]
    pair[which] = pair[which].assign_attrs(units=units)
    with pytest.raises(DataError, match=f"variable 'tasmax'.*{units}|{units}.*variable 'tasmax'"):
        blocks.train(*pair, **MONTHLY)


def test_the_simulation_is_converted_to_the_units_of_the_reference() -> None:
    reference, kelvin, celsius = series("tasmax", 1), series("tasmax", 2), series("tasmax", 2, units="degC")
    expected, got = (
        blocks.adjust(simulation, blocks.train(reference, simulation, **MONTHLY), **QUICK)
        for simulation in (kelvin, celsius)
    )
    assert got.attrs["units"] == "K"
    # nearest factors may flip on round-off
    assert (abs(got - expected) > 1e-3).mean() < 1e-3


@pytest.mark.parametrize("jitter", [None, {"thresh": "1e-4 K"}])
def test_a_difference_of_temperature_stays_one(jitter: dict[str, str] | None) -> None:
    said = {"units": "K", "units_metadata": "temperature: difference"}
    reference, simulation = (
        (series("tasmax", seed) - 270).rename("dtr").assign_attrs(said).convert_calendar("noleap") for seed in (1, 2)
    )
    training = blocks.train(reference, simulation, **MONTHLY)
    scenario = blocks.adjust(simulation, training, **QUICK, jitter_under=jitter)
    assert said.items() <= scenario.attrs.items()


def test_a_flux_and_thresholds_in_millimetres_go_together() -> None:
    reference, simulation = series("pr", 1), series("pr", 2)
    args = {**MONTHLY, "xclim_train_args": {"kind": "*"}, "adapt_freq": {"thresh": "1 mm d-1"}, "seed": "a"}
    per_day = (reference * 86400).assign_attrs(units="mm d-1")
    flux, depth = (blocks.train(one, simulation, **args) for one in (reference, per_day))
    np.testing.assert_allclose(depth.dP0, flux.dP0)
    np.testing.assert_allclose(depth.pth, flux.pth * 86400, rtol=1e-5)
    assert depth.hist_q.attrs["units"] == flux.hist_q.attrs["units"].replace("kg m-2 s-1", "mm d-1")


RANDOM = {
    **MONTHLY,
    "xclim_train_args": {"kind": "*"},
    "jitter_under": {"thresh": "0.01 mm d-1"},
    "adapt_freq": {"thresh": "1 mm d-1"},
}


def test_the_same_seed_gives_the_same_bytes_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Xsdba, "cells_in_a_block", 2)
    reference, simulation = series("pr", 1), series("pr", 2)
    eager = blocks.train(reference, simulation, **RANDOM, seed="a", engine="xsdba")
    for cells in (1, 5):
        chunked = reference.chunk(loc=4), simulation.chunk(loc=cells)
        lazy = blocks.train(*chunked, **RANDOM, seed="a", engine="xsdba")
        assert lazy.chunksizes["loc"] == (2, 2, 1)
        xr.testing.assert_identical(lazy.compute(scheduler="threads", num_workers=2), eager)
    adjusted = [
        blocks.adjust(one, eager, **QUICK, jitter_under={"thresh": "0.1 mm d-1"}, seed="a", engine="xsdba")
        for one in (simulation, simulation.chunk(loc=1), simulation.chunk(loc=3))
    ]
    for lazy in adjusted[1:]:
        xr.testing.assert_identical(lazy.compute(), adjusted[0])


DAYOFYEAR: dict[str, Any] = {
    "period": [2000, 2004],
    "group": {"group": "time.dayofyear", "window": 31},
    "xclim_train_args": {"kind": "*", "nquantiles": 20},
    "jitter_under": {"thresh": "0.01 mm d-1"},
}


def test_our_kernels_give_the_same_bytes_whatever_the_chunks(log: pytest.LogCaptureFixture) -> None:
    reference, simulation = series("pr", 1), series("pr", 2)
    arguments = {"periods": [2000, 2009], "xclim_adjust_args": {"detrend": LOESS}}
    eager = blocks.train(reference, simulation, **DAYOFYEAR, seed="a")
    adjusted = blocks.adjust(simulation, eager, **arguments, jitter_under={"thresh": "0.1 mm d-1"}, seed="a")
    for cells in (1, 3):
        chunked = simulation.chunk(loc=cells)
        lazy = blocks.train(reference.chunk(loc=2), chunked, **DAYOFYEAR, seed="a")
        xr.testing.assert_identical(lazy.compute(scheduler="threads", num_workers=2), eager)
        lazy_scenario = blocks.adjust(chunked, lazy, **arguments, jitter_under={"thresh": "0.1 mm d-1"}, seed="a")
        xr.testing.assert_identical(lazy_scenario.compute(), adjusted)
    assert log.messages and all(message.endswith("by our kernels") for message in log.messages)


def test_our_kernels_need_neither_xsdba_nor_xclim_to_be_imported() -> None:
    """Either takes longer to import than a block takes to train."""
    program = """
import sys
import numpy as np, xarray as xr
from espo_luigi.methods import blocks
time = xr.date_range("2000-01-01", "2002-12-31", calendar="noleap")
pr = xr.DataArray(np.ones((time.size, 1), "f4"), dims=("time", "loc"), coords={"time": time}, attrs={"units": "mm d-1"})
thresholds = {"jitter_under": {"thresh": "1e-7 kg m-2 s-1"}}
training = blocks.train(pr, pr, period=[2000, 2002], group={"group": "time.dayofyear", "window": 31}, **thresholds)
loess = {"detrend": {"LoessDetrend": {"f": 0.9}}}
blocks.adjust(pr, training, periods=[2000, 2002], xclim_adjust_args=loess)
sys.exit(str({"xsdba", "xclim"} & set(sys.modules)) if {"xsdba", "xclim"} & set(sys.modules) else 0)
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_another_seed_gives_other_draws() -> None:
    reference, simulation = series("pr", 1), series("pr", 2)
    first, second = (blocks.train(reference, simulation, **RANDOM, seed=seed, engine="xsdba") for seed in "ab")
    assert (first.hist_q != second.hist_q).any()
    np.testing.assert_array_equal(first.dP0, second.dP0)


def test_adapt_freq_thresh_goes_through_to_xsdba() -> None:
    reference, simulation = series("pr", 1), series("pr", 2)
    args = {**MONTHLY, "xclim_train_args": {"kind": "*", "adapt_freq_thresh": "1 mm d-1"}}
    training = blocks.train(reference, simulation, **args, seed="a")
    assert {"P0_ref", "P0_hist", "pth"} <= set(training.data_vars)
    scenario = blocks.adjust(simulation, training, **QUICK, seed="a")
    xr.testing.assert_identical(scenario, blocks.adjust(simulation.chunk(loc=2), training, **QUICK, seed="a").compute())


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("EmpiricalQuantileMapping", {"kind": "*", "nquantiles": [0.1, 0.5, 0.9]}),
        ("Scaling", {"kind": "*"}),
    ],
)
def test_other_methods_give_what_xsdba_gives(method: str, arguments: dict[str, Any]) -> None:
    reference, simulation = series("pr", 1), series("pr", 2)
    training = blocks.train(reference, simulation, method=method, xsdba_train_args=arguments, **MONTHLY)
    scenario = blocks.adjust(simulation, training, periods=[2000, 2009], xsdba_adjust_args={"interp": "linear"})
    direct = dict(arguments)
    if isinstance(direct.get("nquantiles"), list):
        direct["nquantiles"] = np.array(direct["nquantiles"])
    calibration = (one.sel(time=slice("2000", "2004")) for one in (reference, simulation))
    expected = getattr(xsdba.adjustment, method).train(*calibration, group="time.month", **direct)
    np.testing.assert_allclose(
        scenario, expected.adjust(simulation, interp="linear").transpose("time", "loc"), rtol=1e-5
    )


@pytest.mark.parametrize("dims", [("time", "lat", "lon"), ("lat", "lon", "time"), ("time",)])
def test_cells_may_lie_along_any_dimensions(dims: tuple[str, ...]) -> None:
    def shaped(data: xr.DataArray) -> xr.DataArray:
        data = data.isel(loc=slice(4))
        grid = xr.DataArray(data.values.reshape(-1, 2, 2), dims=("time", "lat", "lon"), coords={"time": data.time})
        grid = grid.assign_coords(lat=[10.0, 20.0], lon=[1.0, 2.0]).assign_attrs(data.attrs).rename(data.name)
        return grid.transpose(*dims) if "lat" in dims else grid.isel(lat=0, lon=0)

    reference, simulation = series("tasmax", 1), series("tasmax", 2)
    stacked = blocks.adjust(simulation, blocks.train(reference, simulation, **MONTHLY), **QUICK)
    training = blocks.train(shaped(reference), shaped(simulation), **MONTHLY)
    scenario = blocks.adjust(shaped(simulation).chunk(), training, **QUICK)
    assert scenario.dims == dims
    # xsdba's means over blocks of other shapes round off otherwise
    assert (abs(scenario.compute() - shaped(stacked)) > 1e-3).mean() < 1e-3


def test_several_periods_are_adjusted_one_by_one() -> None:
    simulation = series("tasmax", 2)
    training = blocks.train(series("tasmax", 1), simulation, **MONTHLY)
    args = QUICK["xclim_adjust_args"]
    pairs = [[2000, 2004], ["2005", "2009"]]
    lazy = blocks.adjust(simulation.chunk(loc=2), training, periods=pairs, xclim_adjust_args=args)
    assert len(lazy.chunksizes["time"]) == 1
    both = lazy.compute()
    second = blocks.adjust(simulation, training, periods=["2005", "2009"], xclim_adjust_args=args)
    assert both.sizes == simulation.sizes
    np.testing.assert_array_equal(both.sel(time=slice("2005", None)), second)


def test_chunks_along_time_are_joined_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    reference, simulation = series("tasmax", 1), series("tasmax", 2)
    expected = blocks.train(reference, simulation, **MONTHLY, seed="a")
    with caplog.at_level(logging.WARNING, logger="espo_luigi"):
        lazy = blocks.train(reference, simulation.chunk(time=365, loc=2), **MONTHLY, seed="a")
    assert "historical has 5 chunks along time" in caplog.text
    xr.testing.assert_identical(lazy.compute(), expected)


def test_both_names_of_the_arguments_are_the_same_and_nothing_is_changed() -> None:
    reference, simulation = series("tasmax", 1), series("tasmax", 2)
    training_args = {**MONTHLY, "group": {"group": "time.month", "window": 1}, "xclim_train_args": {"nquantiles": 5}}
    adjusting_args = copy.deepcopy(QUICK)
    given = copy.deepcopy([training_args, adjusting_args])
    before = copy.deepcopy([reference, simulation])
    training = blocks.train(reference, simulation, **training_args, seed="a")
    scenario = blocks.adjust(simulation, training, **adjusting_args)
    assert [training_args, adjusting_args] == given
    for data, original in zip([reference, simulation], before, strict=True):
        xr.testing.assert_identical(data, original)
    training_args["xsdba_train_args"] = training_args.pop("xclim_train_args")
    adjusting_args["xsdba_adjust_args"] = adjusting_args.pop("xclim_adjust_args")
    again = blocks.train(reference, simulation, **training_args, seed="a")
    xr.testing.assert_identical(again, training)
    xr.testing.assert_identical(blocks.adjust(simulation, again, **adjusting_args), scenario)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"method": "QuantileMaping"}, "method is 'QuantileMaping'; expected DetrendedQuantileMapping"),
        ({"xclim_train_args": {}, "xsdba_train_args": {}}, r"training_args\.xsdba_train_args: Extra"),
        ({"engine": "fortran"}, "engine is 'fortran'; expected auto or xsdba"),
    ],
)
def test_an_argument_that_is_wrong_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        blocks.train(series("tasmax", 1), series("tasmax", 2), **{**MONTHLY, **changed})


def test_a_wrong_argument_of_adjust_is_named() -> None:
    simulation = series("tasmax", 2)
    training = blocks.train(series("tasmax", 1), simulation, **MONTHLY)
    with pytest.raises(ConfigurationError, match=r"adjusting_args\.periods: expected two years"):
        blocks.adjust(simulation, training, **{**QUICK, "periods": ["2000"]})


def test_a_dataset_that_is_no_training_is_refused() -> None:
    with pytest.raises(DataError, match="not a training dataset"):
        blocks.adjust(series("tasmax", 1), xr.Dataset(), **QUICK)


def test_the_path_taken_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="espo_luigi"):
        blocks.train(series("tasmax", 1), series("tasmax", 2), **MONTHLY, engine="xsdba")
    assert "training of tasmax by xsdba: asked for" in caplog.text


def test_xsdba_adjusts_what_our_kernels_have_trained() -> None:
    reference, simulation = (series("tasmax", seed, cells=2) for seed in (1, 2))
    how: dict[str, Any] = {"period": [2000, 2004], "group": {"group": "time.dayofyear", "window": 31}}
    arguments = {"periods": [2000, 2009], "xclim_adjust_args": {"interp": "linear", "detrend": LOESS}}
    training, expected = (blocks.train(reference, simulation, **how, engine=engine) for engine in ("auto", "xsdba"))
    assert "_xsdba_adjustment" not in training.attrs
    got, direct = (blocks.adjust(simulation, trained, **arguments) for trained in (training, expected))
    np.testing.assert_allclose(got, direct, rtol=0, atol=2e-3)
    assert got.attrs["bias_adjustment"] == direct.attrs["bias_adjustment"]


def test_the_steps_of_a_day_end_with_its_scenario() -> None:
    reference, simulation = series("pr", 1), series("pr", 2)
    training = blocks.train(reference, simulation, **DAYOFYEAR, seed="a")
    how: dict[str, Any] = {
        "periods": [[2000, 2004], [2005, 2009]],
        "xclim_adjust_args": {"detrend": LOESS},
        "jitter_under": {"thresh": "0.1 mm d-1"},
        "seed": "b",
    }
    scenario = blocks.adjust(simulation, training, **how)
    for date in ("2003-05-07", "2007-11-30"):
        cell: dict[str, Any] = {"loc": [3]}
        told = blocks.steps(simulation.isel(cell), training.isel(cell), date=date, first_cell=3, **how)
        expected = float(scenario.isel(loc=3).sel(time=date).item())
        assert told[-1].value == pytest.approx(expected, rel=1e-5)
    with pytest.raises(DataError, match="2010-01-01 is not adjusted"):
        blocks.steps(simulation.isel(loc=[3]), training.isel(loc=[3]), date="2010-01-01", **how)


def test_the_nearest_quantile_of_the_own_day_is_the_same_in_any_unit_and_the_plane_s_is_not() -> None:
    """Pressure in hPa and in Pa: in xsdba's plane, a day of the year counts as much as a unit of the value."""
    time = xr.date_range("2000-01-01", "2005-12-31", calendar="noleap", use_cftime=True)
    day = np.asarray(xr.DataArray(time, dims="time").dt.dayofyear)
    reference, simulation = (
        xr.DataArray(
            1.01e5
            + 400 * np.sin(day / 58 + seed)
            + np.random.default_rng(seed).normal(0, 700 + 300 * seed, (2, day.size)),
            dims=("loc", "time"),
            coords={"time": time},
            attrs={"units": "Pa"},
        )
        for seed in (0, 1)
    )
    group = {"group": "time.dayofyear", "window": 31}
    training: dict[str, Any] = {"period": [2000, 2005], "group": group, "xclim_train_args": {"nquantiles": 20}}
    found: dict[tuple[str, str], np.ndarray] = {}
    for unit, size in (("Pa", 1.0), ("hPa", 100.0), ("bar", 1e5)):
        known, given = ((one / size).assign_attrs(units=unit) for one in (reference, simulation))
        trained = blocks.train(known, given, **training)
        for interp in ("nearest", "nearest_quantile"):
            how = {"detrend": LOESS, "interp": interp, "extrapolation": "constant"}
            made = blocks.adjust(given, trained, periods=[2000, 2005], xclim_adjust_args=how)
            found[unit, interp] = made.transpose("loc", "time").values * size
    for unit in ("hPa", "bar"):
        np.testing.assert_allclose(found[unit, "nearest_quantile"], found["Pa", "nearest_quantile"], atol=1e-6)
    # Of numbers that differ by less than a day, xsdba's plane finds the own day's points, too.
    np.testing.assert_allclose(found["bar", "nearest"], found["Pa", "nearest_quantile"], atol=1e-6)
    differs = np.abs(found["Pa", "nearest"] - found["hPa", "nearest"]) > 0.01 * float(simulation.std())
    assert differs.mean() > 0.3, "a row of the issue"
