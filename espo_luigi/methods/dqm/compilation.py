"""Compiling all that jobs would compile at its first use, by using it on a few cells of a few years."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from llvmlite import binding
from numba.core import event

from espo_luigi.errors import InstallationError
from espo_luigi.methods import blocks
from espo_luigi.methods.dqm import kernels
from espo_luigi.methods.dqm.kernel_cache import KernelCache, chosen_folder
from espo_luigi.methods.dqm.kernels.adjusting import adjust_cells
from espo_luigi.methods.dqm.kernels.loess import weigh_classes
from espo_luigi.methods.dqm.kernels.preparation import adapt_cells, jitter_cells
from espo_luigi.methods.dqm.kernels.ranking import adjust_ranked
from espo_luigi.methods.dqm.kernels.training import train_cells
from espo_luigi.methods.dqm.quantile_mapping import cell_seeds, jitter
from espo_luigi.methods.mbcn.kernels import adjust_together
from espo_luigi.methods.mbcn.transform import Univariate, adjust, plan
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.chunks import join
from espo_luigi.science.diagnose import properties

_HERE = os.path.dirname(str(kernels.__file__))
_KERNELS = (adapt_cells, adjust_cells, adjust_ranked, adjust_together, jitter_cells, train_cells, weigh_classes)
_FIRST, _LAST = 2001, 2010
_DETREND = {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}
_SPELLS = {
    "base": "xsdba.properties.spell_length_distribution",
    "input": {"da": "pr"},
    "parameters": {"method": "amount", "op": "<", "thresh": "1 mm d-1", "stat": "max"},
}


class Compilation(NamedTuple):
    """The number of compiled functions, the seconds, the processor, and the folder of the kernels' code."""

    functions: int
    seconds: float
    processor: str
    folder: str

    @property
    def is_beside(self) -> bool:
        """Whether the code is kept beside the package, for all who use it."""
        return _is_below(self.folder, _HERE)


def _is_below(path: str, folder: str) -> bool:
    above = os.path.abspath(folder)
    return os.path.commonpath([os.path.abspath(path), above]) == above


def compile_all() -> Compilation:
    """Compile the kernels, and xsdba's and xclim's functions, for this processor; load code that is kept already.

    Raises
    ------
    InstallationError
        If the code cannot be kept, or not where `NUMBA_CACHE_DIR` says.
    """
    started = time.monotonic()
    folder = _folder()
    with event.install_recorder("numba:compile") as recorder:
        try:
            _use()
        except OSError as error:
            raise InstallationError(f"{error}: set NUMBA_CACHE_DIR to a folder that can be written") from error
    compiled = sum(one.is_start for _, one in recorder.buffer)
    return Compilation(compiled, time.monotonic() - started, binding.get_host_cpu_name(), folder)


def _folder() -> str:
    folders = {kernel._cache.cache_path for kernel in _KERNELS if isinstance(kernel._cache, KernelCache)}
    if len(folders) != 1:
        raise InstallationError(
            f"neither {_HERE} nor the user's cache folder can be written: "
            "set NUMBA_CACHE_DIR to a folder that can, here and for the jobs"
        )
    (folder,) = folders
    chosen = chosen_folder()
    if chosen and not _is_below(folder, chosen):
        raise InstallationError(f"NUMBA_CACHE_DIR = {chosen} cannot be written: name a folder that can")
    return folder


def _use() -> None:
    reference, historical = (_series(seed) for seed in (0, 1))
    period = (str(_FIRST), str(_LAST))
    windows: dict[str, Any] = {"group": "time.dayofyear", "window": 31}
    asked: dict[str, Any] = {"jitter_under": {"thresh": "0.01 mm d-1"}, "period": period, "seed": "compilation"}
    arguments = {"interp": "nearest", "extrapolation": "constant", "detrend": _DETREND}
    multiplied: dict[str, Any] = {"kind": "*", "nquantiles": 20}
    training = blocks.train(
        reference, historical, group=windows, xclim_train_args=multiplied, adapt_freq={"thresh": "1 mm d-1"}, **asked
    )
    blocks.adjust(historical, training, periods=period, xclim_adjust_args=arguments).load()
    pool = join([historical, reference], "realization").assign_coords(realization=["one", "other"])
    asked |= {
        "group": windows | {"add_dims": ["realization"]},
        "xclim_train_args": multiplied | {"adapt_freq_thresh": "1 mm d-1", "max_tail_factor": 10},
    }
    for method, own in (("DetrendedQuantileMapping", arguments), ("QuantileDeltaMapping", {"interp": "nearest"})):
        training = blocks.train(reference, pool, method=method, **asked)
        blocks.adjust(pool, training, periods=period, xclim_adjust_args=own, seed="compilation").load()
    axis, levels = TimeAxis("noleap", np.arange(reference.sizes["time"], dtype=np.float64)), np.array([0.25, 0.75])
    values = np.stack([reference.values, historical.values])
    turns = np.broadcast_to(np.eye(2), (values.shape[1], 1, 1, 2, 2))
    alone = [Univariate("+", levels)] * 2
    noisy = jitter(values.astype(np.float64), 0.01, seeds=cell_seeds("compilation", np.arange(values[..., 0].size)))
    adjust(noisy, noisy, noisy, plan(axis, axis), rotations=turns, levels=levels, variables=alone)
    definitions = {"indicators": {"spells": _SPELLS}}
    properties.properties(reference.to_dataset(), definitions=definitions, period=period, to_level="none").load()


def _series(seed: int) -> xr.DataArray:
    """Two cells of precipitation, in float32 as simulations are stored."""
    days = xr.date_range(f"{_FIRST}-01-01", f"{_LAST}-12-31", calendar="noleap", use_cftime=True)
    values = np.random.default_rng(seed).gamma(0.5, 4.0, (2, days.size)).astype(np.float32)
    attributes = {"units": "mm d-1", "standard_name": "precipitation_flux"}
    return xr.DataArray(values, dims=("loc", "time"), coords={"time": days}, name="pr", attrs=attributes)
