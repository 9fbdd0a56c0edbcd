"""The floor of a run of `production.py`: the same work by one process on one CPU, with the machine for itself.

CPU seconds of the numerical work on data that lie in memory (regridding's product, training, adjusting, consistent
temperatures, the domain's properties), seconds to read the source once, and to write each kept product once with the
same codec. The run's regridded series have to be there: `luigi … All --until Regrid` makes them again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import xarray as xr

Seconds = dict[str, float]


def floor(folder: Path) -> Seconds:
    """Seconds of the floor of the run in a folder, in a process of its own."""
    os.chdir(folder)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "BLOSC_NTHREADS")})
    from espo_luigi.jobs.dask.settings import keep_freed_memory
    from espo_luigi.tasks.context import context

    keep_freed_memory()
    dask.config.set(scheduler="synchronous")
    seconds: Seconds = defaultdict(float)
    numerical_work(context(), seconds)
    seconds["properties"] = properties(context())
    read_source(folder, seconds)
    write_products(folder, seconds)
    return dict(seconds)


def cpu_seconds(work: Any, *arguments: Any, **keywords: Any) -> tuple[Any, float]:
    started = time.process_time()
    result = work(*arguments, **keywords)
    return result, time.process_time() - started


def opened(port: Any, **keywords: Any) -> xr.Dataset:
    """The store of a task's port."""
    from espo_luigi.store import open_store

    return open_store(port().path, **keywords)


def in_memory(data: xr.DataArray, chunks: Any = -1) -> xr.DataArray:
    """The values in memory as Dask blocks, by default one; nobody makes a token, which would read them once more."""
    return data.copy(data=dask.array.from_array(data.values, chunks=chunks, name=False))


# Numerical work


def numerical_work(run: Any, seconds: Seconds) -> None:
    """CPU seconds of regridding's product, training, adjusting and making consistent, block by block in memory."""
    from espo_luigi.tasks import partition
    from espo_luigi.tasks.reference import ReferenceCalendar
    from espo_luigi.tasks.simulation import Extract, Regrid

    size = int(run.config.custom.working_chunks["loc"])
    is_warm = False
    for pool in run.pools:
        members = partition.members(run, pool)
        source = opened(Extract(sim_id=members[0]).out_extracted)
        for piece in partition.pieces(run):
            reference = opened(ReferenceCalendar(piece=piece, calendar="noleap").out_reference)
            regridded = [opened(Regrid(sim_id=member, piece=piece).out_regridded) for member in members]
            if not is_warm:  # load the kernels' machine code, and take the dates apart once
                adjust_block(run, pool, piece, cut_to(slice(2), reference, regridded))
                is_warm = True
            for first in range(0, reference.sizes["loc"], size):
                block = cut_to(slice(first, first + size), reference, regridded)
                for name, spent in adjust_block(run, pool, piece, block).items():
                    seconds[name] += spent
                seconds["regrid"] += len(members) * regrid_block(source, block[0])


def cut_to(cells: slice, reference: xr.Dataset, members: Sequence[xr.Dataset]) -> tuple[xr.Dataset, list[xr.Dataset]]:
    return reference.isel(loc=cells), [member.isel(loc=cells) for member in members]


def adjust_block(run: Any, pool: str, piece: str, block: tuple[xr.Dataset, list[xr.Dataset]]) -> Seconds:
    """CPU seconds of training, adjusting, and making temperatures consistent."""
    from espo_luigi.methods import blocks
    from espo_luigi.science.derivations import NEEDED_FOR
    from espo_luigi.science.finalize import consistency
    from espo_luigi.tasks.adjustment import MAKERS, Train

    config, (reference, members) = run.config, block
    seconds: Seconds = defaultdict(float)
    adjusted: dict[str, xr.DataArray] = {}
    how = config.clean_up.temperatures
    for name, variable in config.biasadjust.variables.items():
        simulated = Train(pool=pool, piece=piece, var=name).pooled(members)[name]
        ours, theirs = in_memory(reference[name]), in_memory(simulated)
        trained = blocks.train(ours, theirs, **variable.training_args.arguments(), seed="x")
        training, spent = cpu_seconds(trained.compute)
        seconds["train"] += spent
        lazy = blocks.adjust(theirs, training, **variable.adjusting_args.arguments(*MAKERS), seed="x")
        made, spent = cpu_seconds(lazy.compute)
        seconds["adjust"] += spent
        if name in NEEDED_FOR[how]:
            adjusted[name] = in_memory(made)
    lazy = consistency.consistent(adjusted, how=how)
    seconds["consistent temperatures"] += cpu_seconds(lazy.compute)[1]
    return seconds


def regrid_block(source: xr.Dataset, cells: xr.Dataset) -> float:
    """CPU seconds of regridding's product for a simulation's variables."""
    from espo_luigi.science.regrid import apply_weights

    weights = example_weights(source, cells)
    values = np.random.default_rng(1).random((source.sizes["time"], 1, weights.shape[1]), np.float32)
    return sum(cpu_seconds(apply_weights, values, weights, (cells.sizes["loc"],))[1] for _ in source.data_vars)


def example_weights(source: xr.Dataset, cells: xr.Dataset) -> Any:
    """The weights of a block, by way of ESPO-G's two grids."""
    from espo_luigi.science.regrid import Stage, cascade
    from espo_luigi.science.sphere import Extrapolation, Grid

    how = Extrapolation()
    stages = [
        Stage(Grid(np.arange(9.5, 84), np.arange(179.55, 351), "rectilinear"), how),
        Stage(Grid(np.arange(9.15, 84, 0.5), np.arange(179.29, 351, 0.5), "rectilinear"), how),
        Stage(Grid(cells["lat"].values, cells["lon"].values, "points"), how),
    ]
    weights = cascade(Grid(source["lat"].values, source["lon"].values, "rectilinear"), stages)[0]
    return weights[:, np.unique(weights.indices)].tocsr()


# The domain's properties


def properties(run: Any) -> float:
    """CPU seconds of the properties over the domain, in memory: of the reference, the simulations and the products."""
    from espo_luigi.science.diagnose.diagnosis import Diagnosis

    spent = 0.0
    for name, dataset in described_datasets(run):
        step = (run.config.off_diag or run.config.domain_diag).steps[name].step
        local = on_domain(run, dataset.sel(time=slice(*step.period))).load()
        y, x = local[next(iter(local.data_vars))].dims[-2:]
        Diagnosis(local.isel({y: slice(1), x: slice(1)}), step).properties().compute()
        spent += cpu_seconds(lambda local=local, step=step: Diagnosis(local, step).properties().compute())[1]
    return spent


def described_datasets(run: Any) -> Iterator[tuple[str, xr.Dataset]]:
    from espo_luigi.science import stack
    from espo_luigi.science.chunks import join
    from espo_luigi.science.finalize.scenario import merge_products
    from espo_luigi.tasks import partition
    from espo_luigi.tasks.product import HealthChecks
    from espo_luigi.tasks.reference import RefDefault
    from espo_luigi.tasks.simulation import Regrid

    pieces = partition.pieces(run)
    yield "ref", join([opened(RefDefault(piece=piece).out_reference) for piece in pieces], stack.STACKED_DIM)
    for sim_id in run.simulations:
        series = [opened(Regrid(sim_id=sim_id, piece=piece).out_regridded) for piece in pieces]
        yield "sim", join(series, stack.STACKED_DIM)
        final = HealthChecks(sim_id=sim_id).in_final
        ports = final if isinstance(final, list) else [final]
        yield "scen", merge_products([opened(port, cut=False) for port in ports])


def on_domain(run: Any, dataset: xr.Dataset) -> xr.Dataset:
    """The domain's maps, lazily."""
    from espo_luigi.science import stack
    from espo_luigi.science.diagnose.diagnosis import cut_domain
    from espo_luigi.tasks import partition
    from espo_luigi.tasks.reference import RefDefault

    box = run.domains["Domain"].arguments()
    if stack.STACKED_DIM in dataset.dims:
        grid = opened(RefDefault(piece=partition.pieces(run)[0]).out_grid).drop_vars("land")
        dataset = stack.unstack_fill_nan(dataset, grid, {}, part=cut_domain(grid, box))
    return cut_domain(dataset, box)


# Files


def read_source(folder: Path, seconds: Seconds) -> None:
    """Seconds to read every raw file once."""
    for path in sorted((folder / "raw").rglob("*.nc")):
        started = time.perf_counter()
        with xr.open_dataset(path, decode_times=False) as ds:
            ds.load()
        seconds["read the source"] += time.perf_counter() - started


def write_products(folder: Path, seconds: Seconds) -> None:
    """Seconds to write every kept product once, in its own chunks with its own codec, onto the disk."""
    from espo_luigi.replacing import sync_tree

    kept = sorted([*(folder / "final").rglob("*.zarr"), *(folder / "final").rglob("*.zarr.zip")])
    for path in kept:
        scratch = folder / "floor.zarr"
        for part in parts_of(path):
            seconds["write the products"] += write_part(part, scratch)
        started = time.perf_counter()
        if scratch.exists():
            sync_tree(scratch)
            seconds["write the products"] += time.perf_counter() - started
            shutil.rmtree(scratch)


def parts_of(path: Path) -> Iterator[xr.Dataset]:
    """A product, a row of its chunks at a time, in memory."""
    from espo_luigi.store import open_store

    ds = open_store(path)
    for name, data in ds.data_vars.items():
        if data.ndim < 2:
            continue
        dim = "loc" if "loc" in data.dims else "time" if "time" in data.dims else data.dims[0]
        edges = np.cumsum((0, *data.variable.chunksizes[dim]))
        for place in range(len(edges) - 1):
            whole = data.isel({dim: slice(edges[place], edges[place + 1])}).load().drop_vars(data.coords)
            yield whole.to_dataset(name=f"{name}-{place}")


def write_part(part: xr.Dataset, scratch: Path) -> float:
    from espo_luigi.store.write import laid_out_for, prepared, write_zarr

    chunks = {dim: n for data in part.values() for dim, n in zip(data.dims, data.encoding["chunks"], strict=True)}
    lazy = part.map(lambda data: in_memory(data, tuple(chunks[dim] for dim in data.dims)))
    started = time.perf_counter()
    laid_out, encoding = laid_out_for(prepared(lazy), chunks, None)
    write_zarr(laid_out, scratch, mode="a", encoding=encoding)
    return time.perf_counter() - started
