"""Time MBCn of several variables together: our kernels, xsdba's MBCn, and our DQM of the same variables, in one go.

    python benchmarks/together.py --cells 2500 --variables 2 3 5 --group 5D/7 month
    python benchmarks/together.py --cells 50 150 --xsdba-cells 0

A row is a number of variables, a grouping and a number of cells: CPU seconds of training and adjusting all cells,
`--years` years of which 30 calibrate, MBCn in windows of 30 years with steps of 10, DQM by its usual settings; bytes
that adjusting reads and writes; the peak memory of a process that does only that. The last line is the same as JSON.

xsdba's MBCn is trained once and adjusts one window of 30 years, in a block of `--xsdba-cells` cells and in
`--xsdba-groups` groups of days over the year; its time is scaled to all groups, windows and cells. What is scaled is a
second call with the same cells: a first call with other sizes costs seconds more. It shares what a group costs among
the cells of its block: of 10 cells, a cell takes twice as long as of 150. It has no months.
Series are drawn as those of variables.py, in blocks of `--block` cells, which are repeated until all cells are done.
DQM is measured in 400 cells at least: of fewer, it takes three times as long a cell.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import variables
import xarray as xr
from variables import FIRST_YEAR, TRAINING, draw, settings

from espo_luigi.methods import blocks
from espo_luigi.methods.dqm.windows import year_windows

NAMES = ("tasmax", "dtr", "pr", "hurs", "sfcWind")
WINDOWS: dict[str, Any] = {"window": 30, "step": 10}
N_ITER, N_QUANTILES = 20, 20
GROUPS: dict[str, dict[str, Any]] = {
    "5D/7": {"group": "5D", "window": 7},
    "dayofyear/31": {"group": "time.dayofyear", "window": 31},
    "month": {"group": "time.month"},
}
ONE_MM = "1.1574e-05 kg m-2 s-1"
# What a block costs beside its cells is small in so many.
DQM_CELLS = 400
# ESPO-G6: three bands of land cells.
NORTH_AMERICA = 450_000


def by_variable(names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return how each variable is treated by itself: kind, noise, dry days and bounds of its usual settings."""
    made = {}
    for name in names:
        given = settings(name)["training_args"]
        own = {"kind": given["xclim_train_args"]["kind"]}
        own |= {key: given[key] for key in ("jitter_under", "additive_space") if key in given}
        if "adapt_freq" in given:
            own["adapt_freq_thresh"] = given["adapt_freq"]["thresh"]
        made[name] = own
    return made


def series(names: tuple[str, ...], years: int, cells: int, seed: int) -> xr.Dataset:
    """Draw the variables."""
    return xr.Dataset({name: draw(name, years, cells, seed + place) for place, name in enumerate(names)})


def in_blocks(cells: int, block: int, work: Callable[[int], None], told: str) -> float:
    """Return CPU seconds of the work on each block, given by its first cell; how far it is goes to the screen."""
    spent = 0.0
    for first in range(0, cells, block):
        began = time.process_time()
        work(first)
        spent += time.process_time() - began
        print(f"\r{told}: {min(first + block, cells)} of {cells} cells ", end="", file=sys.stderr, flush=True)
    return spent * cells / (-(-cells // block) * block)


def mbcn(names: tuple[str, ...], group: str, years: int, cells: int, block: int) -> float:
    """Return CPU seconds of our MBCn."""
    reference, simulation = series(names, years, block, 1), series(names, years, block, 20)
    how = {"period": TRAINING, "group": GROUPS[group], "by_variable": by_variable(names)}
    how |= {"n_iter": N_ITER, "nquantiles": N_QUANTILES}

    def work(first: int, part: slice = slice(None)) -> None:
        blocks.adjust_and_count(
            simulation.isel(loc=part),
            method="MBCn",
            training_args=how,
            reference=reference.isel(loc=part),
            seed="s",
            first_cell=first,
            periods=(str(FIRST_YEAR), str(FIRST_YEAR + years - 1)),
            moving_yearly_window=WINDOWS,
        ).load()

    work(0, slice(1))  # compiles
    return in_blocks(cells, block, work, f"MBCn of {len(names)}, {group}")


def dqm(names: tuple[str, ...], years: int, cells: int, block: int) -> float:
    """Return CPU seconds of our DQM, each variable by its usual settings."""
    variables.CELLS_OF_A_BLOCK = block
    spent = 0.0
    for name in names:
        variables.seconds(name, years, 2, "auto")  # compiles
        spent += sum(variables.seconds(name, years, cells, "auto"))
        print(f"\rDQM: {name} ", end="", file=sys.stderr, flush=True)
    return spent


def peer(names: tuple[str, ...], group: str, years: int, cells: int, some: int) -> float:
    """Return CPU seconds of xsdba's MBCn of a block of cells: the training, and all windows of years."""
    import xsdba
    from xsdba import adjustment

    how = xsdba.Grouper(GROUPS[group]["group"], GROUPS[group]["window"])
    parts = [series(names, 30, cells, seed) for seed in (1, 20)]
    reference, simulation = (xsdba.stack_variables(one.astype("f8").fillna(0)) for one in parts)
    original, total = adjustment.grouped_time_indexes, 0

    def few(*arguments: Any) -> list[xr.DataArray]:
        nonlocal total
        made = original(*arguments)
        dim = made[1].attrs["group_dim"]
        total = made[1].sizes[dim]
        kept = np.unique(np.linspace(0, total - 1, some).astype(int))
        return [one.isel({dim: kept}) for one in made]

    adjustment.grouped_time_indexes = few
    own = {
        name: {"kind": one["kind"]} | ({"adapt_freq_thresh": ONE_MM} if name == "pr" else {})
        for name, one in by_variable(names).items()
    }

    def run() -> tuple[float, float]:
        began = time.process_time()
        how_trained = {"nquantiles": N_QUANTILES, "group": how}
        trained = xsdba.MBCn.train(reference, simulation, base_kws=how_trained, n_iter=N_ITER)
        trained.ds.load()
        halfway = time.process_time()
        print(f"\rxsdba's MBCn of {len(names)}, {group}: trained ", end="", file=sys.stderr, flush=True)
        trained.adjust(sim=simulation, ref=reference, hist=simulation, base_kws_vars=own).load()
        return halfway - began, time.process_time() - halfway

    run()  # compiles for these sizes
    training, adjusting = run()
    of_years = np.repeat(np.arange(FIRST_YEAR, FIRST_YEAR + years), 365)
    return (training + len(year_windows(of_years, **WINDOWS)) * adjusting) * total / some


def alone(work: Callable[..., float], *arguments: Any) -> tuple[float, float]:
    """Return what the work returns in a process of its own, and that process's peak memory in GB."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        seconds = pool.submit(_quietly, work, *arguments).result()
        peak = pool.submit(_peak).result()
    print("\r" + " " * 60, end="\r", file=sys.stderr, flush=True)
    return seconds, peak


def _quietly(work: Callable[..., float], *arguments: Any) -> float:
    warnings.simplefilter("ignore")
    return work(*arguments)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


@functools.cache
def of_dqm(names: tuple[str, ...], years: int, cells: int, block: int) -> tuple[float, float]:
    """Return CPU seconds of DQM, and its peak memory in GB: the same for any grouping of MBCn."""
    most = max(cells, DQM_CELLS)
    seconds, peak = alone(dqm, names, years, most, max(block, DQM_CELLS))
    return seconds * cells / most, peak


def row(number: int, group: str, cells: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a number of variables, a grouping and a number of cells, and print them."""
    names, block = NAMES[:number], min(asked.block, cells)
    ours, peak = alone(mbcn, names, group, asked.years, cells, block)
    univariate, peak_alone = of_dqm(names, asked.years, cells, block)
    theirs = peers_peak = None
    if group != "month" and asked.xsdba_cells:
        theirs, peers_peak = alone(peer, names, group, asked.years, asked.xsdba_cells, asked.xsdba_groups)
        theirs *= cells / asked.xsdba_cells
    figures = {
        "variables": number,
        "group": group,
        "cells": cells,
        "mbcn_s": ours,
        "ms_a_cell": 1000 * ours / cells,
        "xsdba_s": theirs,
        "ratio_to_xsdba": theirs / ours if theirs else None,
        "dqm_s": univariate,
        "ratio_to_dqm": ours / univariate,
        "peak_gb": peak,
        "dqm_peak_gb": peak_alone,
        "xsdba_peak_gb": peers_peak,
        "gb_read_and_written": 2 * number * cells * asked.years * 365 * 4 / 1e9,
        "north_america_core_hours": ours / cells * NORTH_AMERICA / 3600,
    }
    print("".join(_cell(one) for one in figures.values()), flush=True)
    return figures


def _cell(one: Any) -> str:
    return f"{one:>13}" if isinstance(one, str) else f"{'-' if one is None else format(one, '.4g'):>10}"


def main() -> None:
    """Print a table, and the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[2500])
    parser.add_argument("--variables", type=int, nargs="+", choices=range(2, 6), default=[2, 3, 5], help="how many")
    parser.add_argument("--group", nargs="+", choices=GROUPS, default=["5D/7", "month"])
    parser.add_argument("--years", type=int, default=151)
    parser.add_argument("--block", type=int, default=500, help="cells that are in memory at once")
    parser.add_argument("--xsdba-cells", type=int, default=150, help="0 leaves xsdba out")
    parser.add_argument("--xsdba-groups", type=int, default=2)
    asked = parser.parse_args()
    heads: tuple[str, ...] = (
        "variables",
        "group",
        "cells",
        "MBCn [s]",
        "ms/cell",
        "xsdba [s]",
        "ratio",
        "DQM [s]",
        "ratio",
        "peak [GB]",
    )
    heads += ("of DQM", "of xsdba", "GB r+w", "NAM [h]")
    print("".join(f"{head:>{13 if head == 'group' else 10}}" for head in heads), flush=True)
    every = itertools.product(asked.variables, asked.group, asked.cells)
    rows = [row(*one, asked) for one in every]
    print(f"load {os.getloadavg()[0]:.1f}; NAM: core-hours of {NORTH_AMERICA} cells")
    print(json.dumps({"arguments": vars(asked), "rows": rows}))


if __name__ == "__main__":
    main()
