"""Training and adjusting a block of cells with our own kernels; the same blocks and results as `xsdba_backend`."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science import seeds
from espo_luigi.science.adjust.training import ATTRIBUTE, AdjustmentSetup, Grouping, TrainingSetup, object_attribute
from espo_luigi.science.adjust.windows import plan_windows
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.choices import DEFAULT_METHOD

# Enough to keep every thread busy; a block's memory grows with it.
CELLS_IN_A_BLOCK = 600
# Every cell is computed, and draws, by itself.
FIXED_BLOCKS = False

_TRAIN_ARGS = {"kind", "nquantiles"}
_LOESS = {"niter": 1, "d": 0, "weights": "tricube", "equal_spacing": None, "skipna": True, "mult_skip_zeros": False}
_ADJUST_ARGS = {"interp": "nearest", "extrapolation": "constant"}


def why_not_train(setup: TrainingSetup) -> str | None:
    """Say why the kernels cannot do this training; None if they can."""
    others = set(setup.train_args) - _TRAIN_ARGS
    if others:
        return f"the kernels have no {', '.join(sorted(others))}"
    if setup.adapt_freq is not None and setup.adapt_freq_group not in (None, setup.group):
        return f"the kernels adapt frequencies in the training's groups, not in {setup.adapt_freq_group}"
    return _why_not(setup.method, setup.group, setup.time)


def why_not_adjust(setup: AdjustmentSetup) -> str | None:
    """Say why the kernels cannot do this adjustment; None if they can."""
    if any(setup.trained.state.get(name) is not None for name in ("adapt_freq_thresh", "max_tail_factor")):
        return "the training adapts or limits the simulation, too"
    trained = setup.trained
    return _why_not(trained.method, trained.group, setup.time) or _why_not_arguments(setup.adjust_args)


def _why_not(method: str, group: Grouping, time: TimeAxis) -> str | None:
    if method != DEFAULT_METHOD:
        return f"the kernels have no {method}"
    if group.name != "time.dayofyear":
        return f"the kernels do days of year, not {group}"
    try:
        plan_windows(time.dayofyear, group.window)
    except DataError as error:
        return str(error)
    return None


def _why_not_arguments(arguments: Mapping[str, Any]) -> str | None:
    for name, value in arguments.items():
        if name != "detrend" and _ADJUST_ARGS.get(name) != value:
            return f"the kernels do not do {name}={value!r}"
    detrend = arguments.get("detrend")
    if not isinstance(detrend, Mapping) or set(detrend) != {"LoessDetrend"}:
        return f"the kernels detrend by LOESS only, not by {detrend!r}"
    given = {name: value for name, value in (detrend["LoessDetrend"] or {}).items() if name != "f"}
    if any(name not in _LOESS or _LOESS[name] != value for name, value in given.items()):
        return f"the kernels' LOESS is {_LOESS}, not {given}"
    if not 0 < _fraction(arguments) < 1:
        return f"the kernels' LOESS has a fraction between 0 and 1, not {_fraction(arguments)}"
    return None


def layout(inputs: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Return the training dataset that will be made of `reference` and `historical`, as a lazy template.

    Dimensions, types, coordinates and attributes are those of xsdba's DetrendedQuantileMapping.
    """
    series = inputs["historical"].isel(time=0)
    quantiles = _quantiles(setup).astype(inputs["reference"].dtype)
    days = xr.DataArray(np.arange(1, setup.time.days_in_longest_year + 1), dims="dayofyear", name="dayofyear")
    by_day = xr.zeros_like(series).expand_dims(dayofyear=days.size, axis=-1)
    by_quantile = by_day.expand_dims(quantiles=quantiles.size, axis=-1)
    template = xr.Dataset({"af": by_quantile, "hist_q": by_quantile, "scaling": by_day})
    if setup.adapt_freq is not None:
        template = template.assign(pth=by_day.astype(np.float64), dP0=by_day.astype(np.float64))
    return _described(template.assign_coords(dayofyear=days, quantiles=quantiles), setup)


def _described(template: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Attributes as xsdba writes them."""
    kind = _kind(setup)
    variables = {
        "af": {"standard_name": "Adjustment factors", "long_name": "Quantile mapping adjustment factors"},
        "hist_q": {
            "standard_name": "Model quantiles",
            "long_name": "Quantiles of the anomalies of the model on the reference period, after preprocessing steps. ",
        },
        "scaling": {
            "standard_name": "Scaling factor",
            "description": "Scaling factor making the mean of hist match the one of hist.",
        },
    }
    template = template.assign({name: template[name].assign_attrs(attrs) for name, attrs in variables.items()})
    parameters = f"{DEFAULT_METHOD}(group={setup.group}, kind={kind!r}, adapt_freq_thresh=None, max_tail_factor=None)"
    return template.assign_attrs({ATTRIBUTE: object_attribute(setup, kind), "adj_params": parameters})


def train_block(block: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Train on a block with the variables `reference`, `historical` (cells, time) and `cell` (cells)."""
    from espo_luigi.science.adjust import quantile_mapping

    reference, historical = (_flat(block, name, ("time",)) for name in ("reference", "historical"))
    plan = plan_windows(setup.time.dayofyear, setup.group.window)
    prepared = quantile_mapping.prepare(
        reference,
        historical,
        plan,
        seeds=quantile_mapping.cell_seeds(setup.seed, block["cell"].values),
        jitter_under=setup.jitter_under,
        adapt_freq=setup.adapt_freq,
        threads=_threads(),
    )
    made = quantile_mapping.train(
        prepared.reference,
        prepared.historical,
        plan,
        quantiles=_quantiles(setup),
        kind=_kind(setup),
        threads=_threads(),
    )
    by_day, by_quantile = ("dayofyear",), ("dayofyear", "quantiles")
    arrays = {
        "af": (made.factors, by_quantile),
        "hist_q": (made.historical_quantiles, by_quantile),
        "scaling": (made.scaling, by_day),
        "pth": (prepared.pth, by_day),
        "dP0": (prepared.dP0, by_day),
    }
    return xr.Dataset(
        {
            name: _shaped(block, _all_days(values, plan.dayofyear, setup), dims)
            for name, (values, dims) in arrays.items()
            if values is not None
        }
    )


def adjust_block(block: xr.Dataset, setup: AdjustmentSetup) -> xr.Dataset:
    """Adjust a block with the variables `simulation`, `cell` and the training's; `simulation` becomes the scenario."""
    from espo_luigi.science.adjust import quantile_mapping

    trained = setup.trained
    training = quantile_mapping.Training(
        *(_flat(block, name, last) for name, last in (
            ("af", ("dayofyear", "quantiles")), ("hist_q", ("dayofyear", "quantiles")), ("scaling", ("dayofyear",))
        ))
    )  # fmt: skip
    plan = quantile_mapping.plan_adjustment(
        setup.time.dayofyear,
        setup.time.days,
        window=trained.group.window,
        fraction=_fraction(setup.adjust_args),
        n_training_days=block.sizes["dayofyear"],
    )
    adjusted = quantile_mapping.adjust(
        _simulation(block, setup), training, plan, kind=trained.kind or "+", threads=_threads()
    )
    return xr.Dataset({"simulation": _shaped(block, adjusted, ("time",))})


def _simulation(block: xr.Dataset, setup: AdjustmentSetup) -> np.ndarray:
    """Simulation as (cell, time), jittered if that is asked for."""
    values = _flat(block, "simulation", ("time",))
    if setup.jitter_under is None:
        return values
    cells = block["cell"].values.ravel()
    return seeds.jitter_under(values, setup.jitter_under, seed=setup.seed, role="simulation", cells=cells)


def _flat(block: xr.Dataset, name: str, last: tuple[Hashable, ...]) -> np.ndarray:
    """Variable with all cells along the first axis, in the order of `cell`, and the given dimensions after it."""
    values = block[name].transpose(*block["cell"].dims, *last).values
    return np.ascontiguousarray(values).reshape(block["cell"].size, *values.shape[block["cell"].ndim :])


def _shaped(block: xr.Dataset, values: np.ndarray, last: tuple[Hashable, ...]) -> xr.DataArray:
    """Inverse of `_flat`."""
    return xr.DataArray(values.reshape(*block["cell"].shape, *values.shape[1:]), dims=(*block["cell"].dims, *last))


def _all_days(values: np.ndarray, days: np.ndarray, setup: TrainingSetup) -> np.ndarray:
    """Fill absent days of year with NaN (29 February's in a period without leap years)."""
    longest = setup.time.days_in_longest_year
    if days.size == longest:
        return values
    filled = np.full((values.shape[0], longest, *values.shape[2:]), np.nan, dtype=values.dtype)
    filled[:, days - 1] = values
    return filled


def _quantiles(setup: TrainingSetup) -> np.ndarray:
    """Middles of as many equal bins, to xsdba's last bit, or the quantiles that are given."""
    asked = setup.train_args["nquantiles"]
    if not isinstance(asked, (int, np.integer)):
        return np.asarray(asked)
    half_bin = 1 / int(asked) / 2
    return np.linspace(half_bin, 1 - half_bin, int(asked))


def _kind(setup: TrainingSetup) -> str:
    return str(setup.train_args.get("kind", "+"))


def _fraction(arguments: Mapping[str, Any]) -> float:
    return float((arguments["detrend"]["LoessDetrend"] or {}).get("f", 0.2))


def _threads() -> int:
    """All cores if this process computes a block at a time, or 1 if Dask runs a block in each of its threads."""
    return len(os.sched_getaffinity(0)) if threading.current_thread() is threading.main_thread() else 1
