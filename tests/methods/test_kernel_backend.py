"""The seam between blocks and our kernels: which configurations go there, and datasets laid out as xsdba's."""

from __future__ import annotations

import dataclasses
from typing import Any

import dask.array
import numpy as np
import pytest
import xarray as xr

from espo_luigi.methods import xsdba as xsdba_backend
from espo_luigi.methods.base import AdjustmentSetup, Grouping, TrainedObject, TrainingSetup
from espo_luigi.methods.dqm import method as kernel_backend
from espo_luigi.science.calendar import TimeAxis

ESPO_G = {"detrend": {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}, "interp": "nearest"}


def setup_of(calendar: str = "noleap", **changed: Any) -> TrainingSetup:
    time = xr.DataArray(dims="time", data=xr.date_range("2001-01-01", "2002-12-30", calendar=calendar))
    return TrainingSetup(
        **{
            "method": "DetrendedQuantileMapping",
            "group": Grouping("time.dayofyear", 31),
            "train_args": {"kind": "*", "nquantiles": 50},
            "time": TimeAxis.of(time.assign_coords(time=time.values)),
            "units": "kg m-2 s-1",
            "seed": "a",
            **changed,
        }
    )


def inputs(setup: TrainingSetup, dims: tuple[str, ...] = ("time", "loc")) -> xr.Dataset:
    shape = [len(setup.time) if dim == "time" else 4 for dim in dims]
    chunks = tuple(-1 if dim == "time" else 2 for dim in dims)
    series = xr.DataArray(dask.array.zeros(shape, chunks=chunks, dtype="float32"), dims=dims)
    return xr.Dataset({"reference": series, "historical": series})


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
@pytest.mark.parametrize("dims", [("time", "loc"), ("lat", "time", "lon")])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"adapt_freq": 1e-5},
        {"train_args": {"kind": "*", "nquantiles": 50, "adapt_freq_thresh": "1e-05 kg m-2 s-1", "max_tail_factor": 10}},
    ],
    ids=["plain", "adapt_freq", "adapt_freq_thresh"],
)
def test_a_training_dataset_is_laid_out_as_xsdbas(
    calendar: str, dims: tuple[str, ...], changed: dict[str, Any]
) -> None:
    setup = setup_of(calendar, **changed)
    assert_laid_out_as_xsdbas(inputs(setup, dims), setup)


def test_a_training_dataset_of_a_pool_is_laid_out_as_xsdbas() -> None:
    arguments = {"kind": "*", "nquantiles": 50, "adapt_freq_thresh": "1e-05 kg m-2 s-1", "max_tail_factor": 10}
    group = Grouping("time.dayofyear", 31, ("realization",))
    setup = setup_of(group=group, train_args=arguments, members=("a", "b"))
    single = inputs(setup)
    assert_laid_out_as_xsdbas(single.assign(historical=single["historical"].expand_dims(realization=2)), setup)


def assert_laid_out_as_xsdbas(data: xr.Dataset, setup: TrainingSetup) -> None:
    ours, xsdbas = (backend.layout(data, setup) for backend in (kernel_backend, xsdba_backend))
    assert set(ours.variables) == set(xsdbas.variables)
    assert ours.attrs == xsdbas.attrs
    for name, variable in xsdbas.variables.items():
        assert set(ours[name].dims) == set(variable.dims)
        assert ours[name].attrs == variable.attrs, name
        assert ours[name].dtype == variable.dtype, name
        assert ours[name].variable.chunksizes == variable.chunksizes, name
    for name, coordinate in xsdbas.coords.items():
        np.testing.assert_allclose(ours[name], coordinate, rtol=1e-6)


def test_what_espo_g_trains_goes_to_the_kernels() -> None:
    assert kernel_backend.why_not_train(setup_of()) is None
    assert kernel_backend.why_not_train(setup_of(jitter_under=1e-7)) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"method": "EmpiricalQuantileMapping"}, "no EmpiricalQuantileMapping"),
        ({"group": Grouping("time.month")}, "not Grouper(name='time.month')"),
        ({"group": Grouping("time.dayofyear", 30)}, "odd windows of 1 to 127"),
        ({"train_args": {"nquantiles": 5, "jitter_under_thresh_value": "1 mm d-1"}}, "no jitter_under_thresh_value"),
        ({"additive_space": {"lower_bound": "0 %"}}, "no additive_space"),
    ],
)
def test_another_training_goes_to_xsdba_and_says_why(changed: dict[str, Any], reason: str) -> None:
    assert reason in str(kernel_backend.why_not_train(setup_of(**changed)))


def adjustment(arguments: dict[str, Any], **state: Any) -> AdjustmentSetup:
    training = kernel_backend.layout(inputs(setup_of()), setup_of())
    trained = TrainedObject.of(training)
    trained = dataclasses.replace(trained, state={**trained.state, **state})
    return AdjustmentSetup(trained=trained, adjust_args=arguments, time=setup_of().time, seed="a")


def test_what_espo_g_adjusts_goes_to_the_kernels() -> None:
    assert kernel_backend.why_not_adjust(adjustment({**ESPO_G, "extrapolation": "constant"})) is None
    assert kernel_backend.why_not_adjust(adjustment({"detrend": {"LoessDetrend": None}})) is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({**ESPO_G, "interp": "linear"}, "interp='linear'"),
        ({**ESPO_G, "extrapolation": "nan"}, "extrapolation='nan'"),
        ({"interp": "nearest"}, "not by None"),
        ({"detrend": 1}, "not by 1"),
        ({"detrend": {"MeanDetrend": {}}}, "MeanDetrend"),
        ({"detrend": {"LoessDetrend": {"niter": 2}}}, "{'niter': 2}"),
        ({"detrend": {"LoessDetrend": {"f": 1.5}}}, "not 1.5"),
    ],
)
def test_another_adjustment_goes_to_xsdba_and_says_why(arguments: dict[str, Any], reason: str) -> None:
    assert reason in str(kernel_backend.why_not_adjust(adjustment(arguments)))


def test_what_espo_g_2_trains_and_adjusts_goes_to_the_kernels() -> None:
    thresholds = {"adapt_freq_thresh": "1e-5 kg m-2 s-1", "max_tail_factor": 10}
    assert kernel_backend.why_not_train(setup_of(train_args={"kind": "*", "nquantiles": 50, **thresholds})) is None
    detrend = {"LoessDetrend": {"mult_skip_zeros": True}}
    assert kernel_backend.why_not_adjust(adjustment({"detrend": detrend}, **thresholds)) is None
