"""Training and adjusting a block of cells with xsdba itself, on numpy arrays inside a Dask task.

Each block goes through xsdba as plain numpy and comes back with explicit dimensions and types. xsdba's kernels hold the
GIL, and its own use of Dask orders dimensions by hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.errors import ConfigurationError
from espo_luigi.science import seeds
from espo_luigi.science.adjust.training import ATTRIBUTE, AdjustmentSetup, Grouping, TrainingSetup

if TYPE_CHECKING:
    import xsdba

# xsdba costs seconds a block whatever its size, and about 4 MB a cell while it adapts frequencies.
CELLS_IN_A_BLOCK = 300
# It draws random numbers for a block at a time, and the shape of a block decides how its means round off.
FIXED_BLOCKS = True


def grouper(group: Grouping) -> xsdba.Grouper:
    """xsdba's own object for a grouping."""
    import xsdba

    try:
        return xsdba.Grouper(group.name, group.window)
    except ValueError as error:
        raise ConfigurationError(f"group {group} is not possible: {error}") from error


def layout(inputs: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Return the training dataset that xsdba would make of `reference` and `historical`, as a lazy template."""
    dated = inputs.assign_coords(time=setup.time.index)
    reference, historical = (dated[name].assign_attrs(units=setup.units) for name in ("reference", "historical"))
    training = _train(reference, historical, setup)
    if setup.adapt_freq is not None:
        shape = training["af"].isel(quantiles=0, missing_dims="ignore", drop=True).drop_attrs()
        empty = xr.full_like(shape, np.nan, dtype=np.float64)
        training = training.assign(pth=empty, dP0=empty)
    return _without_raw(training, setup)


def train_block(block: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Train on a block with the variables `reference` and `historical` (cells and time) and `cell` (cells).

    Computes. The result has the cells' dimensions first, then the group's, then quantiles.
    """
    reference, historical = (_prepared(block, name, setup) for name in ("reference", "historical"))
    with seeds.numpy_state(setup.seed, "train", _first_cell(block)):
        extra: dict[str, xr.DataArray] = {}
        if setup.adapt_freq is not None:
            historical, extra = _adapt_freq(reference, historical, setup)
        training = _train(reference, historical, setup).assign(extra)
    return _without_raw(training, setup)


def adjust_block(block: xr.Dataset, setup: AdjustmentSetup) -> xr.Dataset:
    """Adjust a block with the variables `simulation` and `cell` and the training's.

    Computes. The result's `simulation` is the scenario.
    """
    import xsdba
    from xsdba.adjustment import TrainAdjust

    simulation = _prepared(block, "simulation", setup)
    trained = TrainAdjust.from_dataset(
        block.drop_vars(["simulation", "cell"]).assign_attrs({ATTRIBUTE: setup.trained.attribute})
    )
    arguments = {**setup.adjust_args}
    if isinstance(arguments.get("detrend"), Mapping):
        arguments["detrend"] = _detrending(arguments["detrend"], trained)
    with seeds.numpy_state(setup.seed, "adjust", _first_cell(block)), xsdba.set_options(extra_output=False):
        return trained.adjust(simulation, **arguments).to_dataset(name="simulation")


def _prepared(block: xr.Dataset, name: str, setup: TrainingSetup | AdjustmentSetup) -> xr.DataArray:
    """A series of the block with its dates and units, jittered if that is asked for."""
    data = block[name].transpose(..., "time")
    units = setup.units if isinstance(setup, TrainingSetup) else setup.trained.units
    values = np.ascontiguousarray(data.values)
    if setup.jitter_under is not None:
        flat = values.reshape(-1, values.shape[-1])
        cells = block["cell"].transpose(*data.dims[:-1]).values.ravel()
        flat = seeds.jitter_under(flat, setup.jitter_under, seed=setup.seed, role=name, cells=cells)
        values = flat.reshape(values.shape)
    return xr.DataArray(values, dims=data.dims, coords={"time": setup.time.index}, attrs={"units": units}, name=name)


def _adapt_freq(
    reference: xr.DataArray, historical: xr.DataArray, setup: TrainingSetup
) -> tuple[xr.DataArray, dict[str, xr.DataArray]]:
    from xsdba.processing import adapt_freq

    group = grouper(setup.adapt_freq_group or setup.group)
    threshold = f"{setup.adapt_freq!r} {setup.units}"
    adapted, pth, dp0 = adapt_freq(reference, historical, group=group, thresh=threshold)
    # the random values come out as float64, which would double the size of the training
    adapted = adapted.transpose(*historical.dims).astype(historical.dtype)
    return adapted, {"pth": pth.astype(np.float64), "dP0": dp0.astype(np.float64)}


def _train(reference: xr.DataArray, historical: xr.DataArray, setup: TrainingSetup) -> xr.Dataset:
    import xsdba

    method = getattr(xsdba.adjustment, setup.method)
    try:
        return method.train(reference, historical, group=grouper(setup.group), **setup.train_args).ds
    except TypeError as error:
        raise ConfigurationError(
            f"xclim_train_args {dict(setup.train_args)!r} do not fit the method {setup.method}: {error}"
        ) from error


def _detrending(spec: Mapping[str, Any], trained: Any) -> Any:
    """Detrending object of the configuration, {name: arguments}, with the trained object's group and kind."""
    import xsdba

    (name, arguments), *others = spec.items()
    if others or not hasattr(xsdba.detrending, name):
        raise ConfigurationError(
            f"detrend is {dict(spec)!r}; expected one of xsdba's detrending classes with its arguments, "
            'for example {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}.'
        )
    return getattr(xsdba.detrending, name)(**{"group": trained.group, "kind": trained.kind, **(arguments or {})})


def _without_raw(training: xr.Dataset, setup: TrainingSetup) -> xr.Dataset:
    """Drop what xsdba fills with NaN unless a maximal tail factor is used."""
    if setup.train_args.get("max_tail_factor") is not None:
        return training
    return training.drop_vars("hist_q_raw", errors="ignore")


def _first_cell(block: xr.Dataset) -> int:
    return int(block["cell"].values.min())
