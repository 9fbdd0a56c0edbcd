"""Training and adjusting a block of cells with our own kernels; the same blocks and results as `xsdba_backend`."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.machine import given_cpus
from espo_luigi.methods.base import (
    ATTRIBUTE,
    AdjustmentSetup,
    Grouping,
    Step,
    TrainingSetup,
    member_seeds,
    object_attribute,
)
from espo_luigi.methods.dqm.windows import plan_windows
from espo_luigi.science import seeds
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.choices import DEFAULT_METHOD, TREATED, TREATMENTS
from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.units import threshold_in

if TYPE_CHECKING:
    from espo_luigi.methods.dqm.quantile_mapping import Adaptation, AdjustmentPlan, Training

# Enough to keep every thread busy; a block's memory grows with it. The members of a pool share them.
CELLS_IN_A_BLOCK = 600
# Every cell is computed, and draws, by itself.
FIXED_BLOCKS = False
COUNTS_TREATMENTS = True

_TRAIN_ARGS = {"kind", "nquantiles", "adapt_freq_thresh", "max_tail_factor"}
_LOESS = {"niter": 1, "d": 0, "weights": "tricube", "equal_spacing": None, "skipna": True}
_BY_DAY, _BY_QUANTILE = ("dayofyear",), ("dayofyear", "quantiles")
_ADJUST_ARGS = {"interp": "nearest", "extrapolation": "constant"}


def why_not_train(setup: TrainingSetup) -> str | None:
    """Say why the kernels cannot do this training; None if they can."""
    others = set(setup.train_args) - _TRAIN_ARGS
    if others:
        return f"the kernels have no {', '.join(sorted(others))}"
    if setup.additive_space is not None:
        return "the kernels have no additive_space"
    if setup.adapt_freq is not None and setup.adapt_freq_group not in (None, setup.group):
        return f"the kernels adapt frequencies in the training's groups, not in {setup.adapt_freq_group}"
    return _why_not(setup.method, setup.group, setup.time)


def why_not_adjust(setup: AdjustmentSetup) -> str | None:
    """Say why the kernels cannot do this adjustment; None if they can."""
    if setup.additive_space is not None:
        return "the kernels have no additive_space"
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
    given = {
        name: value for name, value in (detrend["LoessDetrend"] or {}).items() if name not in ("f", "mult_skip_zeros")
    }
    if any(name not in _LOESS or _LOESS[name] != value for name, value in given.items()):
        return f"the kernels' LOESS is {_LOESS}, not {given}"
    if not 0 < _fraction(arguments) < 1:
        return f"the kernels' LOESS has a fraction between 0 and 1, not {_fraction(arguments)}"
    return None


def layout(inputs: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Return the training dataset that will be made of `reference` and `historical`, as a lazy template.

    Dimensions, types, coordinates and attributes are those of xsdba's DetrendedQuantileMapping.
    """
    series = inputs["reference"].isel(time=0).astype(inputs["historical"].dtype)
    quantiles = _quantiles(setup).astype(inputs["reference"].dtype)
    days = xr.DataArray(np.arange(1, setup.time.days_in_longest_year + 1), dims="dayofyear", name="dayofyear")
    by_day = xr.zeros_like(series).expand_dims(dayofyear=days.size, axis=-1)
    by_quantile = by_day.expand_dims(quantiles=quantiles.size, axis=-1)
    template = xr.Dataset({"af": by_quantile, "hist_q": by_quantile, "scaling": by_day})
    if setup.adapt_freq is not None:
        template = template.assign(pth=by_day.astype(np.float64), dP0=by_day.astype(np.float64))
    if setup.train_args.get("max_tail_factor") is not None:
        template = template.assign(hist_q_raw=by_quantile)
    if setup.adapt_freq_thresh is not None:
        of_members = inputs["historical"].isel(time=0).expand_dims(dayofyear=days.size, axis=-1)
        of_members = xr.zeros_like(of_members.transpose(..., *_of_members(setup)))
        template = template.assign(P0_ref=of_members, P0_hist=of_members, pth=of_members)
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
        "hist_q_raw": {
            "standard_name": "Model quantiles",
            "long_name": "Quantiles of model on the reference period, befofe the preprocessing steps.",
        },
    }
    present = {name: attrs for name, attrs in variables.items() if name in template}
    template = template.assign({name: template[name].assign_attrs(attrs) for name, attrs in present.items()})
    more = ", ".join(f"{name}={setup.train_args.get(name)!r}" for name in ("adapt_freq_thresh", "max_tail_factor"))
    parameters = f"{DEFAULT_METHOD}(group={setup.group}, kind={kind!r}, {more})"
    return template.assign_attrs({ATTRIBUTE: object_attribute(setup, kind), "adj_params": parameters})


def train_block(block: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Train on a block with the variables `reference`, `historical` (cells, time) and `cell` (cells)."""
    from espo_luigi.methods.dqm import quantile_mapping

    dtype = np.result_type(block["reference"], block["historical"])
    reference = _flat(block, "reference", ("time",)).astype(dtype, copy=False)
    historical = _flat(block, "historical", _series_dims(setup)).astype(dtype, copy=False)
    _check_members(historical, setup)
    plan = plan_windows(setup.time.dayofyear, setup.group.window)
    of_members = _seeds_of_members(block, setup)
    seeds = of_members.ravel() if setup.members is None else _cell_seeds(block, setup, setup.seed)
    pth, dry_share = None, None
    if setup.adapt_freq is not None:
        reference, historical, pth, dry_share = quantile_mapping.prepare(
            reference,
            historical,
            plan,
            seeds=seeds,
            jitter_under=setup.jitter_under,
            adapt_freq=setup.adapt_freq,
            threads=_threads(),
        )
    elif setup.jitter_under is not None:
        reference = quantile_mapping.jitter(
            reference, setup.jitter_under, seeds=seeds, reference=True, threads=_threads()
        )
        historical = quantile_mapping.jitter(historical, setup.jitter_under, seeds=of_members, threads=_threads())
    made = quantile_mapping.train(
        reference,
        historical,
        plan,
        quantiles=_quantiles(setup),
        kind=_kind(setup),
        raw=setup.train_args.get("max_tail_factor") is not None,
        adapt_freq_thresh=setup.adapt_freq_thresh,
        seeds=of_members,
        threads=_threads(),
    )
    arrays: dict[str, tuple[np.ndarray | None, tuple[str, ...]]] = {
        "af": (made.factors, _BY_QUANTILE),
        "hist_q": (made.historical_quantiles, _BY_QUANTILE),
        "hist_q_raw": (made.raw_quantiles, _BY_QUANTILE),
        "scaling": (made.scaling, _BY_DAY),
        "pth": (pth, _BY_DAY),
        "dP0": (dry_share, _BY_DAY),
    }
    if made.shares is not None:
        new = zip(("P0_ref", "P0_hist", "pth"), made.shares, strict=True)
        arrays |= {name: (one if setup.members is not None else one[..., 0], _of_members(setup)) for name, one in new}
    return xr.Dataset(
        {
            name: _shaped(block, _all_days(values, plan.dayofyear, setup), dims)
            for name, (values, dims) in arrays.items()
            if values is not None
        }
    )


def adjust_block(block: xr.Dataset, setup: AdjustmentSetup) -> xr.Dataset:
    """Adjust a block with the variables `simulation`, `cell` and the training's.

    `simulation` becomes the scenario; `treated` counts the days of each cell (and member), as `TREATMENTS` names them.
    """
    from espo_luigi.methods.dqm import quantile_mapping

    simulation, n_jittered = _simulation(block, setup)
    _check_members(simulation, setup)
    training, plan, how = _training(block, setup)
    adjusted, treated = quantile_mapping.adjust(simulation, training, plan, **how, threads=_threads())
    treated[..., TREATMENTS.index("jittered")] = n_jittered
    dims = _series_dims(setup)
    return xr.Dataset(
        {"simulation": _shaped(block, adjusted, dims), TREATED: _shaped(block, treated, (*dims[:-1], "treatment"))}
    )


def steps(block: xr.Dataset, setup: AdjustmentSetup, step: int, member: int) -> list[Step]:
    """Return the steps of a value of a block of one cell, as `adjust_block` gets it; the last is the scenario's."""
    from espo_luigi.methods.dqm.steps import steps_of_day

    training, plan, how = _training(block, setup)
    given, noisy = (
        _simulation(block, one)[0].reshape(-1, setup.time.days.size)
        for one in (dataclasses.replace(setup, jitter_under=None), setup)
    )
    units = setup.trained.units
    first = []
    if setup.jitter_under is not None and given[member, step] < setup.jitter_under:
        first = [
            Step("noise", float(noisy[member, step]), units, f"Values below {setup.jitter_under:.4g} {units} are.")
        ]
    levels = block["quantiles"].values
    return first + steps_of_day(noisy, training, plan, **how, units=units, levels=levels, step=step, member=member)


def _training(block: xr.Dataset, setup: AdjustmentSetup) -> tuple[Training, AdjustmentPlan, dict[str, Any]]:
    """The training, the plan and the other arguments of `quantile_mapping.adjust`."""
    from espo_luigi.methods.dqm import quantile_mapping

    training = quantile_mapping.Training(
        _flat(block, "af", _BY_QUANTILE), _flat(block, "hist_q", _BY_QUANTILE), _flat(block, "scaling", _BY_DAY)
    )
    plan = quantile_mapping.plan_adjustment(
        setup.time.dayofyear,
        setup.time.days,
        window=setup.trained.group.window,
        fraction=_fraction(setup.adjust_args),
        n_training_days=block.sizes["dayofyear"],
    )
    skips_zeros = bool((setup.adjust_args["detrend"]["LoessDetrend"] or {}).get("mult_skip_zeros"))
    how = {"kind": setup.trained.kind or "+", "skips_zeros": skips_zeros, "adaptation": _adaptation(block, setup)}
    return training, plan, how


def _adaptation(block: xr.Dataset, setup: AdjustmentSetup) -> Adaptation:
    """Read how the training adapted dry days and limited tails."""
    from espo_luigi.methods.dqm import quantile_mapping

    state = setup.trained.state
    made = quantile_mapping.Adaptation.none(block["af"].dtype)
    if state["adapt_freq_thresh"] is not None:
        shares = [_flat(block, name, _of_members(setup)) for name in ("P0_ref", "P0_hist", "pth")]
        made = dataclasses.replace(
            made,
            threshold=threshold_in(state["adapt_freq_thresh"], setup.trained.units),
            shares=quantile_mapping.Shares(*(one.reshape(*one.shape[:2], -1) for one in shares)),
            seeds=_seeds_of_members(block, setup),
        )
    if state["max_tail_factor"] is not None:
        tails = _flat(block, "hist_q_raw", _BY_QUANTILE)[..., -1]
        made = dataclasses.replace(made, limits=tails.dtype.type(state["max_tail_factor"]) * tails)
    return made


def _cell_seeds(block: xr.Dataset, setup: TrainingSetup | AdjustmentSetup, seed: str) -> np.ndarray:
    from espo_luigi.methods.dqm import quantile_mapping

    return quantile_mapping.cell_seeds(seed, block["cell"].values + setup.first_cell)


def _seeds_of_members(block: xr.Dataset, setup: TrainingSetup | AdjustmentSetup) -> np.ndarray:
    """Seeds (cell, member)."""
    return np.stack([_cell_seeds(block, setup, seed) for seed in member_seeds(setup)], axis=-1)


def _simulation(block: xr.Dataset, setup: AdjustmentSetup) -> tuple[np.ndarray, np.ndarray | int]:
    """Simulation as (cell, time) or (cell, member, time), jittered if that is asked for, and on how many days."""
    values = _flat(block, "simulation", _series_dims(setup))
    if setup.jitter_under is None:
        return values, 0
    cells = block["cell"].values.ravel() + setup.first_cell
    of_members, n_jittered = member_seeds(setup), (values < setup.jitter_under).sum(axis=-1)
    return seeds.jitter_members(
        values, setup.jitter_under, seeds=of_members, role="simulation", cells=cells
    ), n_jittered


def _check_members(values: np.ndarray, setup: TrainingSetup | AdjustmentSetup) -> None:
    """Check that each member of a pool has values if any has."""
    if setup.members is None or len(setup.members) == 1:
        return
    empty = np.array([np.isnan(values[:, member]).all() for member in range(len(setup.members))])
    if empty.any() and not empty.all():
        without = ", ".join(label for label, lacks in zip(setup.members, empty, strict=True) if lacks)
        raise DataError(
            f"No value of the members {without} in {setup.time}, where the pool's other members have values; "
            "a pool needs the same years of all. Leave them out of the pool, or shorten the period."
        )


def _series_dims(setup: TrainingSetup | AdjustmentSetup) -> tuple[str, ...]:
    return ("time",) if setup.members is None else (REALIZATION, "time")


def _of_members(setup: TrainingSetup | AdjustmentSetup) -> tuple[str, ...]:
    return ("dayofyear",) if setup.members is None else ("dayofyear", REALIZATION)


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
    """All CPUs given if this process computes a block at a time, or 1 if Dask runs a block in each of its threads."""
    return given_cpus() if threading.current_thread() is threading.main_thread() else 1
