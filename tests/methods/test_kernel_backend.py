"""The seam between blocks and our kernels: which configurations go there, and their stores beside xsdba's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.methods.base import Setup, method_named
from espo_luigi.methods.dqm.method import Kernels
from espo_luigi.science.calendar import TimeAxis

DAYS = {"group": "time.dayofyear", "window": 31}
ESPO_G = {"detrend": {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}, "interp": "nearest"}
THRESHOLDS = {"adapt_freq_thresh": "1e-05 kg m-2 s-1", "max_tail_factor": 10}


def setup_of(
    calendar: str = "noleap",
    members: tuple[str, ...] | None = None,
    adjusting: dict[str, Any] | None = None,
    **training: Any,
) -> Setup:
    time = xr.date_range("2001-01-01", "2002-12-30", calendar=calendar)
    return Setup(
        units={"pr": "kg m-2 s-1"},
        time=TimeAxis.of(xr.DataArray(np.zeros(time.size), dims="time", coords={"time": time})),
        dtype=np.dtype("float32"),
        training={"group": DAYS, "xclim_train_args": {"kind": "*", "nquantiles": 50}} | training,
        adjusting={} if adjusting is None else {"periods": (2001, 2002), "xclim_adjust_args": adjusting},
        seed="a",
        members=members,
    )


def chosen(setup: Setup, method: str = "DetrendedQuantileMapping") -> str | None:
    """Return why xsdba computes; None if our kernels do."""
    reason = Kernels.why_not(setup, method)
    assert isinstance(method_named(method).chosen(setup), Kernels) == (reason is None)
    assert not isinstance(method_named(method, "xsdba").chosen(setup), Kernels)
    return reason


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
@pytest.mark.parametrize(
    "training",
    [{}, {"adapt_freq": {"thresh": "1 mm d-1"}}, {"xclim_train_args": {"kind": "*", "nquantiles": 50, **THRESHOLDS}}],
    ids=["plain", "adapt_freq", "adapt_freq_thresh"],
)
def test_a_training_is_laid_out_as_xsdbas(calendar: str, training: dict[str, Any]) -> None:
    assert_laid_out_as_xsdbas(setup_of(calendar, **training))


def test_a_training_of_a_pool_is_laid_out_as_xsdbas() -> None:
    group = DAYS | {"add_dims": ["realization"]}
    training = {"group": group, "xclim_train_args": {"kind": "*", "nquantiles": 50, **THRESHOLDS}}
    assert_laid_out_as_xsdbas(setup_of(members=("a", "b"), **training))


def assert_laid_out_as_xsdbas(setup: Setup) -> None:
    ours, xsdbas = (method.layout(setup) for method in (Kernels(), method_named("xsdba.DetrendedQuantileMapping")))
    assert set(ours) == set(xsdbas)
    for name, array in xsdbas.items():
        assert set(ours[name].dims) == set(array.dims), name
        assert ours[name].dtype == array.dtype, name
        for dim, values in array.dims.items():
            np.testing.assert_allclose(ours[name].dims[dim], values, rtol=1e-6)


def test_what_espo_g_trains_and_adjusts_goes_to_the_kernels() -> None:
    assert chosen(setup_of()) is None
    assert chosen(setup_of(jitter_under={"thresh": "1e-7 kg m-2 s-1"})) is None
    assert chosen(setup_of(adjusting={**ESPO_G, "extrapolation": "constant"})) is None
    assert chosen(setup_of(adjusting={"detrend": {"LoessDetrend": {}}})) is None
    assert chosen(setup_of(additive_space={"lower_bound": "0 mm d-1"})) is None


def test_what_espo_g_2_trains_and_adjusts_goes_to_the_kernels() -> None:
    training = {"xclim_train_args": {"kind": "*", "nquantiles": 50, **THRESHOLDS}}
    assert chosen(setup_of(**training)) is None
    assert chosen(setup_of(**training, adjusting={"detrend": {"LoessDetrend": {"mult_skip_zeros": True}}})) is None


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        ({"group": "time.month"}, "not Grouper(name='time.month')"),
        ({"group": {"group": "time.dayofyear", "window": 30}}, "odd windows of 1 to 127"),
        ({"xclim_train_args": {"jitter_under_thresh_value": "1 mm d-1"}}, "no jitter_under_thresh_value"),
        (
            {"additive_space": {"lower_bound": "0 mm d-1"}, "adapt_freq": {"thresh": "1 mm d-1"}},
            "no frequencies in an additive_space",
        ),
    ],
)
def test_another_training_goes_to_xsdba_and_says_why(training: dict[str, Any], reason: str) -> None:
    assert reason in str(chosen(setup_of(**training)))
    assert "no EmpiricalQuantileMapping" in str(chosen(setup_of(), "EmpiricalQuantileMapping"))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({**ESPO_G, "interp": "linear"}, "interp='linear'"),
        ({**ESPO_G, "extrapolation": "nan"}, "extrapolation='nan'"),
        ({"interp": "nearest"}, "not by None"),
        ({"detrend": {"NoDetrend": {}}}, "NoDetrend"),
        ({"detrend": {"LoessDetrend": {"niter": 2}}}, "{'niter': 2}"),
        ({"detrend": {"LoessDetrend": {"f": 1.5}}}, "not 1.5"),
    ],
)
def test_another_adjustment_goes_to_xsdba_and_says_why(arguments: dict[str, Any], reason: str) -> None:
    assert reason in str(chosen(setup_of(adjusting=arguments)))
