"""Time MBCn of several variables together: our kernels, xsdba's MBCn, and our DQM of the same variables, in one go.

    python benchmarks/together.py --cells 2500 --variables 2 3 5 --group 15D/7 5D/7
    python benchmarks/together.py --cells 50 150 --xsdba-cells 0

A row is a number of variables, a grouping and a number of cells: CPU seconds of training and adjusting all cells,
`--years` years of which 30 calibrate, MBCn in windows of 30 years with steps of 10, DQM by its usual settings; bytes
that adjusting reads and writes; the peak memory of a process that does only that. The last line is the same as JSON.

xsdba's MBCn is trained once and adjusts one window of 30 years, in a block of `--xsdba-cells` cells and in
`--xsdba-groups` groups of days over the year; its time is scaled to all groups, windows and cells. What is scaled is a
second call with the same cells: a first call with other sizes costs seconds more. It shares what a group costs among
the cells of its block: of 10 cells, a cell takes twice as long as of 150. It has neither months nor 15D.
Series are drawn between the limits of each variable, with a season, in blocks of `--block` cells, which are repeated
until all cells are done. DQM is measured in 400 cells at least: of fewer, it takes three times as long a cell.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import measuring
import numpy as np
import xarray as xr

from espo_luigi.config.usual import give_usual_settings
from espo_luigi.methods import blocks
from espo_luigi.methods.dqm.windows import year_windows
from espo_luigi.science.variables import VARIABLES

FIRST_YEAR, TRAINING = 1950, ("1991", "2020")
# Where most values lie: middle, season's amplitude, deviation of a day; the order in which variables are taken.
SHAPES = {
    "tasmax": (280.0, 12.0, 5.0),
    "dtr": (10.0, 3.0, 3.0),
    "pr": (),
    "hurs": (70.0, 10.0, 20.0),
    "sfcWind": (4.0, 1.0, 2.0),
}
WINDOWS: dict[str, Any] = {"window": 30, "step": 10}
N_ITER, N_QUANTILES = 20, 20
GROUPS: dict[str, dict[str, Any]] = {
    "5D/7": {"group": "5D", "window": 7},
    "dayofyear/31": {"group": "time.dayofyear", "window": 31},
    "15D/7": {"group": "15D", "window": 7},
    "month": {"group": "time.month"},
}
ONE_MM = "1.1574e-05 kg m-2 s-1"
# What a block costs beside its cells is small in so many.
DQM_CELLS = 400
# ESPO-G6: three bands of land cells.
NORTH_AMERICA = 450_000


def draw(name: str, years: int, cells: int, seed: int) -> xr.DataArray:
    """Draw daily series (loc, time), noleap, within the variable's possible range."""
    random = np.random.default_rng(seed)
    times = xr.date_range(f"{FIRST_YEAR}-01-01", periods=365 * years, calendar="noleap", use_cftime=True)
    season = np.sin(np.arange(365 * years) * 2 * np.pi / 365)
    if name == "pr":
        wet = random.random((cells, season.size)) < 0.5 + 0.1 * season
        values = np.where(wet, random.gamma(0.7, 6, wet.shape), 0) / 86400
    else:
        middle, amplitude, deviation = SHAPES[name]
        values = random.normal(middle + amplitude * season, deviation, (cells, season.size))
    row = VARIABLES[name]
    data = values.clip(*row.possible).astype("f4")
    return xr.DataArray(data, {"time": times}, ("loc", "time"), name, {"units": row.units})


def series(names: list[str], years: int, cells: int, seed: int) -> xr.Dataset:
    return xr.Dataset({name: draw(name, years, cells, seed + place) for place, name in enumerate(names)})


def settings(name: str) -> dict[str, Any]:
    """Return the usual settings."""
    content: dict[str, Any] = {"biasadjust": {"variables": {name: {}}}}
    give_usual_settings(content)
    return content["biasadjust"]["variables"][name]


def by_variable(names: list[str]) -> dict[str, dict[str, Any]]:
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


def in_blocks(cells: int, block: int, work: Callable[[int], None]) -> float:
    """Return CPU seconds of the work on each block, given by its first cell; the last block counts by its cells."""
    began = time.process_time()
    for first in range(0, cells, block):
        work(first)
    return (time.process_time() - began) * cells / (-(-cells // block) * block)


def mbcn(names: list[str], group: str, years: int, cells: int, block: int) -> float:
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
    return in_blocks(cells, block, work)


def dqm(names: list[str], group: str, years: int, cells: int, block: int) -> float:
    """Return CPU seconds of our DQM, each variable by its usual settings."""
    periods = (str(FIRST_YEAR), str(FIRST_YEAR + years - 1))

    def work(name: str, both: xr.Dataset, first: int) -> None:
        how = settings(name)
        trained = blocks.train(
            both["reference"], both["simulation"], seed="s", first_cell=first, period=TRAINING, **how["training_args"]
        )
        blocks.adjust(both["simulation"], trained.load(), periods=periods, **how["adjusting_args"]).load()

    spent = 0.0
    for name in names:
        both = xr.Dataset({"reference": draw(name, years, block, 1), "simulation": draw(name, years, block, 2)})
        work(name, both.isel(loc=slice(2)), 0)  # compiles
        spent += in_blocks(cells, block, functools.partial(work, name, both))
    return spent


def peer(names: list[str], group: str, years: int, cells: int, some: int) -> float:
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
        trained.adjust(sim=simulation, ref=reference, hist=simulation, base_kws_vars=own).load()
        return halfway - began, time.process_time() - halfway

    run()  # compiles for these sizes
    training, adjusting = run()
    of_years = np.repeat(np.arange(FIRST_YEAR, FIRST_YEAR + years), 365)
    return (training + len(year_windows(of_years, **WINDOWS)) * adjusting) * total / some


WAYS = {one.__name__: one for one in (mbcn, dqm, peer)}


@functools.cache
def alone(way: str, number: int, group: str, *sizes: int) -> tuple[float, float]:
    """Return CPU seconds of a way in a process of its own, and that process's peak memory in GB."""
    taken, told = measuring.script(__file__, "--way", way, number, group, *sizes)
    return float(told.splitlines()[-1]), taken.peak_mib * 2**20 / 1e9


def row(number: int, group: str, cells: int, asked: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of a number of variables, a grouping and a number of cells, and print them."""
    block, most = min(asked.block, cells), max(cells, DQM_CELLS)
    ours, peak = alone("mbcn", number, group, asked.years, cells, block)
    # The same for any grouping of MBCn.
    univariate, peak_alone = alone("dqm", number, "", asked.years, most, max(block, DQM_CELLS))
    univariate *= cells / most
    theirs = peers_peak = None
    if group in ("5D/7", "dayofyear/31") and asked.xsdba_cells:
        theirs, peers_peak = alone("peer", number, group, asked.years, asked.xsdba_cells, asked.xsdba_groups)
        theirs *= cells / asked.xsdba_cells
    figures = {
        "variables": number,
        "group": group,
        "cells": cells,
        "MBCn [s]": ours,
        "ms/cell": 1000 * ours / cells,
        "xsdba [s]": theirs,
        "xsdba/MBCn": theirs / ours if theirs else None,
        "DQM [s]": univariate,
        "MBCn/DQM": ours / univariate,
        "peak [GB]": peak,
        "of DQM": peak_alone,
        "of xsdba": peers_peak,
        "GB r+w": 2 * number * cells * asked.years * 365 * 4 / 1e9,
        "NAM [h]": ours / cells * NORTH_AMERICA / 3600,
    }
    for name, value in figures.items():
        text = value if isinstance(value, str) else "-" if value is None else f"{value:.4g}"
        print(f"{name} {text}", end=", ", flush=True)
    print()
    return figures


def main() -> None:
    """Print a table, and the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[2500])
    parser.add_argument("--variables", type=int, nargs="+", choices=range(2, 6), default=[2, 3, 5], help="how many")
    parser.add_argument("--group", nargs="+", choices=GROUPS, default=["15D/7", "5D/7", "month"])
    parser.add_argument("--years", type=int, default=151)
    parser.add_argument("--block", type=int, default=500, help="cells that are in memory at once")
    parser.add_argument("--xsdba-cells", type=int, default=150, help="0 leaves xsdba out")
    parser.add_argument("--xsdba-groups", type=int, default=2)
    parser.add_argument("--way", nargs=6, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.way:
        warnings.simplefilter("ignore")
        way, number, group, *sizes = asked.way
        print(WAYS[way](list(SHAPES)[: int(number)], group, *map(int, sizes)))
        return
    rows = [row(*one, asked) for one in itertools.product(asked.variables, asked.group, asked.cells)]
    print(f"load {os.getloadavg()[0]:.1f}; NAM: core-hours of {NORTH_AMERICA} cells")
    print(json.dumps({"arguments": vars(asked), "rows": rows}))


if __name__ == "__main__":
    main()
