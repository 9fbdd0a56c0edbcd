"""Make the golden results of pools of members, by the libraries of ESPO 2.0 themselves.

The environment is Python 3.12 after `pip install xscen==0.15.1 xsdba==0.7.0`. From the project's root:

    python tests/golden/make_pools.py tests/data/golden

All cells are in one block: with `max_tail_factor`, xsdba 0.7.0 mixes the members in a block of a single cell.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr
import xscen
import xsdba
import xsdba._adjustment as steps

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from pools import KEPT_DAYS, KEPT_TIMES, POOLS, Pool, distribution

log = logging.getLogger("pools")
warnings.filterwarnings("ignore")


class Adaptations:
    """What `xsdba` does in each call of its frequency adaptation, which its results do not tell."""

    def __init__(self) -> None:
        self._original = steps._adapt_freq_preprocess
        self.replaced: list[xr.DataArray] = []
        self.adapted: xr.DataArray | None = None
        steps._adapt_freq_preprocess = self._recorded

    def _recorded(self, ds: xr.Dataset, *args: Any, **kwargs: Any) -> xr.Dataset:
        before, out = ds["sim"].copy(deep=True), self._original(ds, *args, **kwargs)
        if args[0] is not None:
            changed = (out["sim"] != before) & before.notnull()
            self.replaced.append(changed.sum([dim for dim in changed.dims if dim == "window"]))
            self.adapted = out["sim"].copy(deep=True)
        return out


def main(folder: Path) -> None:
    """Write a file for each pool that has none."""
    adaptations = Adaptations()
    folder.mkdir(parents=True, exist_ok=True)
    for pool in POOLS:
        if (folder / f"{pool.name}.nc").exists():
            continue
        log.info("%s", pool.name)
        runs = [run(pool, seed, adaptations) for seed in range(pool.seeds)]
        result = drawn(runs) if pool.drawn else runs[0].drop_vars("quantiles_of_scenario")
        result = result.isel(dayofyear=KEPT_DAYS)
        result["scenario"] = result["scenario"].isel(time=KEPT_TIMES).rename(time="kept")
        write(result.drop_vars("kept", errors="ignore"), folder / f"{pool.name}.nc")


def run(pool: Pool, seed: int, adaptations: Adaptations) -> xr.Dataset:
    """Train and adjust; training, scenario, and what was replaced and kept."""
    reference, simulation = pool.reference().to_dataset(), pool.simulation().to_dataset()
    if pool.drawn:
        np.random.seed(seed)
    adaptations.replaced.clear()
    training = xscen.train(
        reference.chunk(time=-1, loc=-1),
        simulation.chunk(time=-1, loc=-1, realization=-1),
        pool.variable,
        **pool.training_args(),
    )
    with tempfile.TemporaryDirectory() as scratch:
        # As in a production: the training is read from a store, in which all fields are float32.
        training.attrs["train_params"] = str(training.attrs["train_params"])
        training.to_zarr(f"{scratch}/training.zarr")
        training = xr.open_zarr(f"{scratch}/training.zarr").load()
    trained = list(adaptations.replaced)
    arguments = pool.adjusting_args()
    if jitter := arguments.pop("jitter_under", None):
        simulation[pool.variable] = xsdba.processing.jitter_under_thresh(simulation[pool.variable], **jitter)
    adaptations.replaced.clear()
    adaptations.adapted = None
    lazy = simulation.chunk(time=-1, loc=-1, realization=-1)
    scenario = xscen.adjust(training.chunk(), lazy, **arguments)[pool.variable].load()
    scenario = scenario.transpose("time", "realization", "loc")
    result = training.drop_attrs().transpose("dayofyear", "quantiles", "realization", "loc", missing_dims="ignore")
    result["scenario"] = scenario.drop_attrs().drop_vars("height", errors="ignore")
    result["quantiles_of_scenario"] = distribution(scenario)
    if adaptations.adapted is not None:
        counts = [changed.sum("time") for changed in trained]
        result["replaced_in_training"] = xr.concat(counts, result.dayofyear).transpose(
            "dayofyear", "realization", "loc"
        )
        (changed,) = adaptations.replaced
        replaced = changed.groupby("time.dayofyear").sum().transpose("dayofyear", "realization", "loc")
        result["replaced_in_adjustment"] = replaced.reindex(dayofyear=result.dayofyear)
    if pool.variable == "pr":
        result["tail"] = tail(pool, result, simulation.pr if adaptations.adapted is None else adaptations.adapted)
    return result


def tail(pool: Pool, result: xr.Dataset, adapted: xr.DataArray) -> xr.DataArray:
    """Days above 10 times the last quantile, which keep the adapted value."""
    calendar = result.scenario.time.dt.calendar
    if adapted.time.dt.calendar != calendar:
        adapted = adapted.convert_calendar(calendar, align_on="year")
    factor = pool.training_args()["xsdba_train_args"]["max_tail_factor"]
    last = result.hist_q_raw.isel(quantiles=-1, drop=True)
    mask = adapted.groupby("time.dayofyear") > factor * last
    kept = result.scenario.where(mask)
    np.testing.assert_array_equal(kept, adapted.transpose(*kept.dims).where(mask))
    return mask.drop_vars("dayofyear").transpose("time", "realization", "loc")


def drawn(runs: list[xr.Dataset]) -> xr.Dataset:
    """What does not change from seed to seed as it is; of the rest the mean and the standard deviation, or all."""
    stacked = xr.concat(runs, "seed", coords="minimal", compat="override")
    result = runs[0].copy()
    for name in ("af", "hist_q", "hist_q_raw", "scaling"):
        result[name] = stacked[name].mean("seed")
        result[f"{name}_spread"] = stacked[name].std("seed", ddof=1)
    result["quantiles_of_scenario"] = stacked["quantiles_of_scenario"]
    result["scenario"] = stacked["scenario"].mean("seed")
    result["scenario_spread"] = stacked["scenario"].std("seed", ddof=1)
    result["scenario_spread"] = result["scenario_spread"].isel(time=KEPT_TIMES).rename(time="kept")
    for name in ("P0_ref", "P0_hist", "replaced_in_training", "replaced_in_adjustment"):
        if name in stacked:
            same = (stacked[name] == stacked[name].isel(seed=0)) | stacked[name].isnull()
            result.attrs[f"{name}_same_in_all_seeds"] = str(bool(same.all()))
    if "pth" in stacked:
        result.attrs["pth_spread"] = float(stacked.pth.std("seed").max())
    if "tail" in stacked:
        result["tail"] = stacked["tail"].mean("seed").astype("float32")
    return result


def write(result: xr.Dataset, path: Path) -> None:
    """Write float32, compressed."""
    result = result.drop_vars("time")
    kinds = {"f": "float32", "i": "int16", "u": "int16", "b": "int8"}
    for name, variable in result.data_vars.items():
        result[name] = variable.astype(kinds[variable.dtype.kind])
    result.to_netcdf(
        path, encoding={name: {"zlib": True, "complevel": 9, "shuffle": True} for name in result.data_vars}
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    with dask.config.set(scheduler="synchronous"):
        main(Path(sys.argv[1]))
