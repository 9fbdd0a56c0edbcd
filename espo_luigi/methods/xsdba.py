"""Training and adjusting a block of cells with xsdba itself, on numpy arrays inside a Dask task.

Each block goes through xsdba as plain numpy and comes back with explicit dimensions and types. xsdba's kernels hold the
GIL, and its own use of Dask orders dimensions by hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods.base import ATTRIBUTE, AdjustmentSetup, Grouping, Step, TrainingSetup, member_seeds
from espo_luigi.science import seeds
from espo_luigi.science.chunks import REALIZATION

if TYPE_CHECKING:
    import xsdba

# xsdba costs seconds a block whatever its size, and about 4 MB a cell while it adapts frequencies.
CELLS_IN_A_BLOCK = 300
# It draws random numbers for a block at a time, and the shape of a block decides how its means round off.
FIXED_BLOCKS = True
COUNTS_TREATMENTS = False


def grouper(group: Grouping) -> xsdba.Grouper:
    """xsdba's own object for a grouping."""
    import xsdba

    try:
        return xsdba.Grouper(group.name, group.window, list(group.add_dims))
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
    if block["cell"].size == 1 and block["cell"].ndim and setup.train_args.get("max_tail_factor") is not None:
        # xsdba 0.7.0 sorts the data of a lone cell in place while it computes hist_q_raw.
        dim = block["cell"].dims[0]
        return train_block(block.isel({dim: [0, 0]}), setup).isel({dim: [0]})
    reference, historical = (_prepared(block, name, setup) for name in ("reference", "historical"))
    with seeds.numpy_state(setup.seed, "train", _first_cell(block, setup)):
        extra: dict[str, xr.DataArray] = {}
        if setup.additive_space is not None:
            reference, historical = (_additive(one, setup.additive_space) for one in (reference, historical))
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
    if setup.additive_space is not None:
        simulation = _additive(simulation, setup.additive_space)
    with seeds.numpy_state(setup.seed, "adjust", _first_cell(block, setup)), xsdba.set_options(extra_output=False):
        scenario = trained.adjust(simulation, **arguments)
    if setup.additive_space is not None:
        bounds = {name: value for name, value in setup.additive_space.items() if name != "clip_next_to_bounds"}
        scenario = xsdba.processing.from_additive_space(scenario, **bounds, units=setup.trained.units)
    return scenario.to_dataset(name="simulation")


def steps(block: xr.Dataset, setup: AdjustmentSetup, step: int, member: int) -> list[Step]:
    """Return no steps: xsdba tells none."""
    return []


def _additive(data: xr.DataArray, arguments: Mapping[str, Any]) -> xr.DataArray:
    """A series in the space where differences make sense; it has no units there, so that xsdba keeps the data's."""
    import xsdba

    try:
        transformed = xsdba.processing.to_additive_space(data, **arguments)
    except (ValueError, NotImplementedError, TypeError) as error:
        raise DataError(f"additive_space {dict(arguments)!r} does not fit the data: {error}") from error
    return transformed.assign_attrs(units=data.attrs["units"])


def _prepared(block: xr.Dataset, name: str, setup: TrainingSetup | AdjustmentSetup) -> xr.DataArray:
    """A series of the block with its dates and units, jittered if that is asked for."""
    cells = block["cell"]
    of_members = REALIZATION in block[name].dims
    dims = (*cells.dims, *([REALIZATION] if of_members else []), "time")
    units = setup.units if isinstance(setup, TrainingSetup) else setup.trained.units
    values = np.ascontiguousarray(block[name].transpose(*dims).values)
    if setup.jitter_under is not None:
        flat = values.reshape(cells.size, *values.shape[cells.ndim :])
        of_series = member_seeds(setup) if of_members else [setup.seed]
        places = cells.values.ravel() + setup.first_cell
        flat = seeds.jitter_members(flat, setup.jitter_under, seeds=of_series, role=name, cells=places)
        values = flat.reshape(values.shape)
    return xr.DataArray(values, dims=dims, coords={"time": setup.time.index}, attrs={"units": units}, name=name)


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


def _first_cell(block: xr.Dataset, setup: TrainingSetup | AdjustmentSetup) -> int:
    return int(np.min(block["cell"].values + setup.first_cell))
