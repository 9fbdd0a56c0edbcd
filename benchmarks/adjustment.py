"""Time training, preparation and adjustment: xsdba against our kernels, on the same data in one go.

Prints a table and, as its last line, the same figures as one JSON object. Times are CPU seconds per cell of the process
(of one thread), block overhead included; ours are the median of several runs. Threads are compared by wall-clock time,
the best of as many runs of each, in turns. Peak memory is that of a process which adjusts; xsdba's trains, too.

With `--members`, cells are pools: members trained and adjusted together, pr with frequencies adapted in training and
adjusting and with a limit of tails, as ESPO-G v2 has it. Noise counts as training there.

With `--method QuantileDeltaMapping`, that method is measured; with `--moving-window`, in
moving windows of 30 years with steps of 10, which xsdba gets as stacked periods.

xsdba is measured in one block of 300 cells or more, as it is. In smaller ones it takes longer per cell (of 100: 74 ms
against 49), and how much cannot be told from other blocks: fewer are refused.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

WINDOW, N_QUANTILES, FRACTION = 31, 50, 0.2
TRAINING_YEARS = 30
FIRST_YEAR = 1950
REFERENCE_FIRST_YEAR = 1991
DAYS = 365
KINDS = {"tasmax": "+", "dtr": "*", "pr": "*"}
JITTER = {"tasmax": None, "dtr": 1e-4, "pr": 0.01}
ADAPT = {"tasmax": None, "dtr": None, "pr": 1.0}
UNITS = {"tasmax": "K", "dtr": "K", "pr": "mm/d"}
# Cells that xsdba gets through fastest; more cost memory and no less time.
XSDBA_BEST_BLOCK = 300
STEPS = ("prepare", "train", "adjust")
REPEATS = 5
TAIL_FACTOR = 10
DQM, QDM = "DetrendedQuantileMapping", "QuantileDeltaMapping"
MOVING = {"window": 30, "step": 10}


@dataclass(frozen=True)
class Series:
    """One variable's reference, historical and simulation, noleap: (cell, time), of pools (cell, member, time)."""

    reference: np.ndarray
    historical: np.ndarray
    simulation: np.ndarray

    def first(self, n_cells: int) -> Series:
        return Series(self.reference[:n_cells], self.historical[:n_cells], self.simulation[:n_cells])


def make(variable: str, n_cells: int, n_years: int) -> Series:
    """Make series with a season, a warming and, for pr, dry days; deterministic."""
    random = np.random.default_rng(0)

    def draw(n: int, bias: float) -> np.ndarray:
        season = np.sin(np.tile(np.arange(DAYS), n) * 2 * np.pi / DAYS)
        trend = np.linspace(0, n / 40, n * DAYS)
        shape = (n_cells, n * DAYS)
        if variable == "tasmax":
            return random.normal(285 + bias + 14 * season + trend, 5, shape).astype("f4")
        if variable == "dtr":
            return np.maximum(random.normal(10 + bias + 3 * season, 4, shape), 0).astype("f4")
        wet = random.random(shape) < 0.5 - 0.1 * bias + 0.1 * season
        return np.where(wet, random.gamma(0.7, 6 + trend, shape), 0).astype("f4")

    simulation = draw(n_years, 1.0)
    start = max(0, min(REFERENCE_FIRST_YEAR - FIRST_YEAR, n_years - TRAINING_YEARS)) * DAYS
    return Series(draw(TRAINING_YEARS, 0.0), simulation[:, start : start + TRAINING_YEARS * DAYS].copy(), simulation)


def make_pools(variable: str, n_cells: int, n_years: int, members: int) -> Series:
    """Make pools; the members differ by their draws."""
    series = make(variable, n_cells * members, n_years)
    historical, simulation = (one.reshape(n_cells, members, -1) for one in (series.historical, series.simulation))
    return Series(series.reference[:n_cells], historical, simulation)


def timed(call: Callable[[], Any], clock: Callable[[], float]) -> tuple[float, Any]:
    started = clock()
    result = call()
    return clock() - started, result


@dataclass(frozen=True)
class How:
    """The method, and whether quantile delta mapping ranks in moving windows of years."""

    method: str = DQM
    moves: bool = False


# Ours


def adjust_ours(
    variable: str, series: Series, training: Any, how: How, threads: int, adaptation: Any = None
) -> np.ndarray:
    """Adjust series, or pools; trends of pools that are divided by are left alone where they are 0."""
    from espo_luigi.methods.dqm import quantile_mapping as qm
    from espo_luigi.methods.dqm import ranking
    from espo_luigi.methods.dqm.windows import YearWindow, year_windows

    kind, days = KINDS[variable], np.arange(series.simulation.shape[-1])
    shared: dict[str, Any] = {"kind": kind, "adaptation": adaptation, "threads": threads}
    if how.method == DQM:
        made = qm.plan_adjustment(days % DAYS + 1, days, window=WINDOW, fraction=FRACTION, n_training_days=DAYS)
        skips = series.simulation.ndim == 3 and kind == "*"
        return qm.adjust(series.simulation, training, made, skips_zeros=skips, **shared)[0]
    spans = [YearWindow(0, days.size, 0, days.size)]
    if how.moves:
        spans = year_windows(FIRST_YEAR + days // DAYS, **MOVING)
    plans = ranking.plan_ranks(days % DAYS + 1, days, spans, window=1, n_training_days=DAYS)
    levels = ((np.arange(N_QUANTILES) + 0.5) / N_QUANTILES).astype("f4")
    return ranking.adjust(series.simulation, training.factors, levels, plans, **shared)[0]


def our_steps(
    variable: str, series: Series, threads: int, clock: Callable[[], float] = time.process_time, how: How = How()
) -> tuple[dict[str, float], np.ndarray, Any]:
    """Seconds of each step for all cells, the scenario and what was prepared."""
    from espo_luigi.methods.dqm import quantile_mapping as qm
    from espo_luigi.methods.dqm.windows import plan_windows

    kind = KINDS[variable]
    n_cells = len(series.simulation)
    seconds: dict[str, float] = {}
    day = np.tile(np.arange(1, DAYS + 1), TRAINING_YEARS)
    plan_seconds, plan = timed(lambda: plan_windows(day, WINDOW), clock)
    quantiles = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES

    def prepare() -> Any:
        seeds = qm.cell_seeds("benchmark", np.arange(n_cells))
        reference, historical, noise = series.reference, series.historical, JITTER[variable]
        if noise is not None:
            reference = qm.jitter(reference, noise, seeds=seeds, reference=True, threads=threads)
            historical = qm.jitter(historical, noise, seeds=seeds, threads=threads)
        if (wet := ADAPT[variable]) is not None:
            historical, *_ = qm.adapt_frequencies(reference, historical, plan, wet, seeds=seeds, threads=threads)
        return reference, historical

    seconds["prepare"], prepared = timed(prepare, clock)
    seconds["train"], training = timed(
        lambda: qm.train(
            *prepared,
            plan,
            quantiles=quantiles,
            kind=kind,
            detrended=how.method == DQM,
            threads=threads,
        ),
        clock,
    )
    seconds["train"] += plan_seconds
    seconds["adjust"], scenario = timed(lambda: adjust_ours(variable, series, training, how, threads), clock)
    return seconds, scenario, prepared


def our_pools(
    variable: str, series: Series, threads: int, clock: Callable[[], float] = time.process_time, how: How = How()
) -> tuple[dict[str, float], np.ndarray, Any]:
    """Seconds of training (with noise) and adjusting pools."""
    from espo_luigi.methods.dqm import quantile_mapping as qm
    from espo_luigi.methods.dqm.windows import plan_windows

    kind, threshold = KINDS[variable], ADAPT[variable]
    n_cells, members, _ = series.simulation.shape
    quantiles = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES
    seeds = qm.cell_seeds("reference", np.arange(n_cells))
    of_members = np.stack([qm.cell_seeds(str(one), np.arange(n_cells)) for one in range(members)], axis=-1)

    def train() -> Any:
        plan = plan_windows(np.tile(np.arange(1, DAYS + 1), TRAINING_YEARS), WINDOW)
        reference, historical = series.reference, series.historical
        if JITTER[variable] is not None:
            noise = {"threshold": JITTER[variable], "threads": threads}
            reference = qm.jitter(reference, seeds=seeds, reference=True, **noise)
            historical = qm.jitter(historical, seeds=of_members, **noise)
        adapts = {"raw": threshold is not None, "adapt_freq_thresh": threshold, "seeds": of_members}
        options = {"quantiles": quantiles, "kind": kind, "detrended": how.method == DQM, "threads": threads}
        return qm.train(reference, historical, plan, **options, **adapts)

    def adjust(training: Any) -> np.ndarray:
        more = None
        if threshold is not None:
            limits = np.float32(TAIL_FACTOR) * training.raw_quantiles[..., -1]
            more = qm.Adaptation(threshold, training.shares, of_members, limits)
        return adjust_ours(variable, series, training, how, threads, more)

    seconds: dict[str, float] = {}
    seconds["train"], training = timed(train, clock)
    seconds["adjust"], scenario = timed(lambda: adjust(training), clock)
    return seconds, scenario, None


# xsdba


def adjust_xsdbas(trained: Any, simulation: xr.DataArray, how: How, detrend: Any) -> xr.DataArray:
    import xsdba

    own = {"interp": "nearest", "extrapolation": "constant"}
    if how.method == DQM:
        return trained.adjust(simulation, detrend=detrend, **own)
    if not how.moves:
        return trained.adjust(simulation, **own)
    stacked = xsdba.stack_periods(simulation, MOVING["window"], MOVING["step"])
    return xsdba.unstack_periods(trained.adjust(stacked, **own))


def xsdba_pools(variable: str, series: Series, prepared: Any, how: How = How()) -> tuple[dict[str, float], np.ndarray]:
    """Seconds of the same by xsdba."""
    import xsdba

    units, kind = UNITS[variable], KINDS[variable]
    group = xsdba.Grouper("time.dayofyear", WINDOW, add_dims=["realization"])
    reference = as_series(series.reference, REFERENCE_FIRST_YEAR, units)
    historical = as_series(series.historical, REFERENCE_FIRST_YEAR, units)
    simulation = as_series(series.simulation, FIRST_YEAR, units)
    arguments: dict[str, Any] = {"nquantiles": N_QUANTILES, "kind": kind, "group": group}
    if ADAPT[variable] is not None:
        arguments |= {"adapt_freq_thresh": f"{ADAPT[variable]} {units}", "max_tail_factor": TAIL_FACTOR}
    detrend = xsdba.detrending.LoessDetrend(
        group=group, kind=kind, f=FRACTION, niter=1, d=0, weights="tricube", mult_skip_zeros=kind == "*"
    )

    def train() -> Any:
        series = [reference, historical]
        if JITTER[variable] is not None:
            series = [xsdba.processing.jitter_under_thresh(one, f"{JITTER[variable]} {units}") for one in series]
        return getattr(xsdba, how.method).train(*series, **arguments)

    seconds: dict[str, float] = {}
    seconds["train"], trained = timed(train, time.process_time)
    seconds["adjust"], scenario = timed(
        lambda: adjust_xsdbas(trained, simulation, how, detrend),
        time.process_time,
    )
    return seconds, scenario.transpose("loc", "realization", "time").values


def as_series(values: np.ndarray, first_year: int, units: str) -> xr.DataArray:
    n_years = values.shape[-1] // DAYS
    times = xr.date_range(
        f"{first_year}-01-01", f"{first_year + n_years - 1}-12-31", calendar="noleap", use_cftime=True
    )
    dims = ("loc", "time") if values.ndim == 2 else ("loc", "realization", "time")
    return xr.DataArray(values, dims=dims, coords={"time": times}, attrs={"units": units})


def xsdba_prepare(variable: str, series: Series) -> float:
    """Seconds of jitter and frequency adaptation."""
    import xsdba

    units = UNITS[variable]
    reference, historical = (
        as_series(one, REFERENCE_FIRST_YEAR, units) for one in (series.reference, series.historical)
    )
    group = xsdba.Grouper("time.dayofyear", WINDOW)

    def call() -> None:
        jittered = [
            xsdba.processing.jitter_under_thresh(one, f"{JITTER[variable]} {units}") for one in (reference, historical)
        ]
        if ADAPT[variable] is not None:
            xsdba.processing.adapt_freq(*jittered, group=group, thresh=f"{ADAPT[variable]} {units}")

    return timed(call, time.process_time)[0]


def xsdba_train_and_adjust(
    variable: str, series: Series, prepared: Any, how: How = How()
) -> tuple[dict[str, float], np.ndarray]:
    """Seconds of both steps, from the series that our kernels prepared, and the scenario."""
    import xsdba

    units, kind = UNITS[variable], KINDS[variable]
    n_cells = len(series.simulation)
    group = xsdba.Grouper("time.dayofyear", WINDOW)
    reference, historical = (as_series(one[:n_cells], REFERENCE_FIRST_YEAR, units) for one in prepared)
    simulation = as_series(series.simulation, FIRST_YEAR, units)
    loess = xsdba.detrending.LoessDetrend(group=group, kind=kind, f=FRACTION, niter=1, d=0, weights="tricube")
    seconds: dict[str, float] = {}
    seconds["train"], trained = timed(
        lambda: getattr(xsdba, how.method).train(reference, historical, nquantiles=N_QUANTILES, kind=kind, group=group),
        time.process_time,
    )
    seconds["adjust"], scenario = timed(
        lambda: adjust_xsdbas(trained, simulation, how, loess),
        time.process_time,
    )
    return seconds, scenario.transpose("loc", "time").values


# Memory and the floor


def peak_of(adjuster: str, variable: str, n_cells: int, n_years: int) -> float:
    """Peak resident MB of a process that adjusts a block of so many cells on one thread."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import adjustment as a;"
        "getattr(a, sys.argv[2])(sys.argv[3], int(sys.argv[4]), int(sys.argv[5]));"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    arguments = [str(Path(__file__).parent), adjuster, variable, str(n_cells), str(n_years)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout) / 1024


def adjust_repeated(variable: str, n_cells: int, n_years: int) -> None:
    """Adjust a block made of a few cells again and again, whose making needs no memory beyond itself."""
    from espo_luigi.methods.dqm import quantile_mapping as qm
    from espo_luigi.methods.dqm.windows import plan_windows

    few = make(variable, 4, n_years)
    kind, days = KINDS[variable], np.arange(few.simulation.shape[1])
    plan = plan_windows(days[: few.reference.shape[1]] % DAYS + 1, WINDOW)
    quantiles = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES
    training = qm.train(few.reference + 1, few.historical + 1, plan, quantiles=quantiles, kind=kind)
    picked = np.arange(n_cells) % 4
    repeated = qm.Training(*(None if one is None else one[picked] for one in training))
    made = qm.plan_adjustment(days % DAYS + 1, days, window=WINDOW, fraction=FRACTION, n_training_days=DAYS)
    qm.adjust(few.simulation[picked], repeated, made, kind=kind)


def adjust_by_xsdba(variable: str, n_cells: int, n_years: int) -> None:
    """Train and adjust a block with xsdba; adjusting takes the most memory."""
    warnings.simplefilter("ignore")
    series = make(variable, n_cells, n_years)
    xsdba_train_and_adjust(variable, series, series)


def floor_seconds(series: Series) -> dict[str, float]:
    """CPU seconds, per cell, to read a step's inputs from files in memory and write its output once."""
    n_cells = len(series.simulation)
    quantiles = np.zeros((n_cells, DAYS, N_QUANTILES), "f4")
    steps = {
        "prepare": ((series.reference, series.historical), (series.reference, series.historical)),
        "train": ((series.reference, series.historical), (quantiles, quantiles)),
        "adjust": ((series.simulation, quantiles, quantiles), (series.simulation,)),
    }
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        return {
            step: _copy_seconds(inputs, outputs, Path(folder)) / n_cells for step, (inputs, outputs) in steps.items()
        }


def _copy_seconds(inputs: tuple[np.ndarray, ...], outputs: tuple[np.ndarray, ...], folder: Path) -> float:
    paths = [folder / f"input-{index}.npy" for index in range(len(inputs))]
    for path, one in zip(paths, inputs, strict=True):
        np.save(path, one)

    def copy() -> None:
        for path in paths:
            np.load(path)
        for index, one in enumerate(outputs):
            np.save(folder / f"output-{index}.npy", one)

    return timed(copy, time.process_time)[0]


def speedup_of_hashing(threads: int) -> float:
    """Speed-up of work that only needs a core (hashing outside the GIL): what the machine had to give meanwhile."""
    data = bytes(1 << 22)

    def wall(n_threads: int) -> float:
        started = time.perf_counter()
        with ThreadPoolExecutor(n_threads) as pool:
            list(pool.map(lambda _: hashlib.sha256(data).digest(), range(64)))
        return time.perf_counter() - started

    return wall(1) / wall(threads)


# The run

Steps = Callable[..., tuple[dict[str, float], np.ndarray, Any]]


def xsdba_steps(variable: str, series: Series, prepared: Any, how: How = How()) -> tuple[dict[str, float], np.ndarray]:
    seconds, scenario = xsdba_train_and_adjust(variable, series, prepared, how)
    if JITTER[variable] is not None:
        seconds["prepare"] = xsdba_prepare(variable, series)
    return seconds, scenario


def time_ours(ours: Steps, variable: str, series: Series, threads: int) -> tuple[dict[str, float], float]:
    """CPU seconds of each step on one thread, the median of some runs, and how much faster several threads are."""
    runs: dict[int, list[dict[str, float]]] = {1: [], threads: []}
    seconds = []
    for _ in range(REPEATS):
        seconds.append(ours(variable, series, 1, time.process_time)[0])
        for n in runs:
            runs[n].append(ours(variable, series, n, time.perf_counter)[0])
    steps = seconds[0]
    best = {n: sum(min(run[step] for run in of_n) for step in steps) for n, of_n in runs.items()}
    return {step: float(np.median([one[step] for one in seconds])) for step in steps}, best[1] / best[threads]


def measure(variable: str, options: argparse.Namespace) -> dict[str, Any]:
    pooled = options.members > 1
    how = How(options.method, options.moving_window)
    run_ours, run_xsdba = (
        functools.partial(one, how=how) for one in ((our_pools, xsdba_pools) if pooled else (our_steps, xsdba_steps))
    )
    if pooled:
        series = make_pools(variable, options.cells, options.years, options.members)
    else:
        series = make(variable, options.cells, options.years)
    few = series.first(options.xsdba_cells)
    run_ours(variable, series.first(2), 1)  # loads the compiled kernels
    _, scenario, prepared = run_ours(variable, series, 1)
    ours, speedup = time_ours(run_ours, variable, series, options.threads)
    control = speedup_of_hashing(options.threads)
    floor = floor_seconds(series)
    run_xsdba(variable, series.first(2), prepared)  # compiles LOESS
    block, their_scenario = run_xsdba(variable, few, prepared)
    theirs = {step: seconds / options.xsdba_cells for step, seconds in block.items()}
    result: dict[str, Any] = {}
    for step in STEPS:
        if step in theirs:
            us, them = ours[step] / options.cells, theirs[step]
            result[step] = {"ours_s": us, "xsdba_s": them, "ratio": them / us, "times_the_floor": us / floor[step]}
    # xsdba leaves years out that no whole window has.
    difference = np.abs(scenario[: options.xsdba_cells, ..., : their_scenario.shape[-1]] - their_scenario)
    scale = 1.0 if KINDS[variable] == "+" else np.maximum(np.abs(their_scenario), 1e-3)
    result["max_difference"] = float(np.nanmax(difference))
    result["share_off"] = float(np.mean(difference > 1e-4 * scale))
    result["threads"] = {"n": options.threads, "speedup": speedup, "control": control}
    return result


def memory(variable: str, options: argparse.Namespace) -> dict[str, float]:
    sizes = {"adjust_repeated": (20, options.memory_cells), "adjust_by_xsdba": (20, 60)}
    peaks = {name: [peak_of(name, variable, n_cells, options.years) for n_cells in few] for name, few in sizes.items()}
    per_cell = {name: (peaks[name][1] - peaks[name][0]) / (few[1] - few[0]) for name, few in sizes.items()}
    return {
        f"peak_mb_{options.memory_cells}_cells": peaks["adjust_repeated"][1],
        "mb_per_cell": per_cell["adjust_repeated"],
        "xsdba_mb_per_cell": per_cell["adjust_by_xsdba"],
    }


def print_table(results: dict[str, Any]) -> None:
    print(f"{'variable':9}{'step':9}{'xsdba ms':>10}{'ours ms':>9}{'ratio':>8}{'x floor':>9}")
    for variable, result in results.items():
        for step in STEPS:
            if step in result:
                one = result[step]
                print(
                    f"{variable:9}{step:9}{one['xsdba_s'] * 1e3:10.1f}{one['ours_s'] * 1e3:9.3f}"
                    f"{one['ratio']:8.0f}{one['times_the_floor']:9.1f}"
                )
        print(
            f"{variable:9}max difference {result['max_difference']:.2g}, off by more than 1e-4: "
            f"{result['share_off']:.2g}; {result['threads']['n']} threads {result['threads']['speedup']:.2f} x one "
            f"(work that needs but a core: {result['threads']['control']:.2f})"
        )
        for name, value in result["memory"].items():
            print(f"{variable:9}{name} {value:.2f}")


def flat(results: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Flatten nested figures into dotted names."""
    figures: dict[str, float] = {}
    for name, value in results.items():
        figures.update(flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value})
    return figures


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=300, help="cells of our block, 300 series or more")
    parser.add_argument("--members", type=int, default=1, help="members of a pool; 1 for single simulations")
    parser.add_argument("--years", type=int, default=151, help="years of the simulation")
    parser.add_argument(
        "--xsdba-cells", type=int, default=300, help="how many of them xsdba gets, in one block; 300 series or more"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--memory-cells", type=int, default=600, help="cells of the block whose memory is measured")
    parser.add_argument("--method", choices=[DQM, QDM], default=DQM)
    parser.add_argument("--moving-window", action="store_true", help="QDM in moving windows of 30 years, 10 kept")
    parser.add_argument("--variables", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    options = parser.parse_args()
    if not XSDBA_BEST_BLOCK <= options.xsdba_cells * options.members <= options.cells * options.members:
        parser.error(
            f"got --cells {options.cells} and --xsdba-cells {options.xsdba_cells}, expected {XSDBA_BEST_BLOCK} <= "
            "XSDBA_CELLS x members, and XSDBA_CELLS <= CELLS: a smaller block of xsdba's costs more per cell, and "
            "would make ours look better"
        )
    before = os.getloadavg()[0]
    results = {
        variable: measure(variable, options)
        | {"memory": memory(variable, options) if options.members == 1 and options.method == DQM else {}}
        for variable in options.variables
    }
    print(
        f"{options.cells} cells of {options.members} members (xsdba in one block of {options.xsdba_cells}) x "
        f"{options.years} years; one thread, CPU time per cell"
    )
    cores = len(os.sched_getaffinity(0))
    print(f"load average before {before:.1f}, after {os.getloadavg()[0]:.1f}, on {cores} cores")
    print_table(results)
    print(json.dumps({**flat(results), "load_before": before}))


if __name__ == "__main__":
    main()
