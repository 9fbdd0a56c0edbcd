"""Time training, preparation and adjustment: xsdba against our kernels, on the same data in one go.

Prints a table and, as its last line, the same figures as one JSON object. Times are CPU seconds per cell of the process
(of one thread), block overhead included; ours are the median of several runs. Threads are compared by wall-clock time,
the best of as many runs of each, in turns. Peak memory is that of a process which adjusts; xsdba's trains, too.
The flags' time is that of one block in one thread, reading and writing apart.

`adjust` searches in xsdba's plane of days and values (`interp: nearest`), `usual` among the quantiles of a value's own
day; both are compared with xsdba's `nearest`. With `--method QuantileDeltaMapping`, that method is measured; with
`--windows`, its values are ranked in windows of 31 days and 30 years, every 10 years, of which xsdba does the first:
its time is scaled to all of them.

xsdba is measured in one block of 300 cells or more, as it is. In smaller ones it takes longer per cell (of 100: 74 ms
against 49), and how much cannot be told from other blocks: fewer are refused.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import measuring
import numpy as np
import xarray as xr

WINDOW, N_QUANTILES, FRACTION = 31, 50, 0.2
TRAINING_YEARS = 30
FIRST_YEAR = 1950
REFERENCE_FIRST_YEAR = 1991
DAYS = 365
KINDS = {"tasmax": "+", "dtr": "*", "pr": "*", "psl": "+", "rlds": "+", "hurs": "+"}
JITTER = {"dtr": 1e-4, "pr": 0.01}
ADAPT = {"pr": 1.0}
UNITS = {"tasmax": "K", "dtr": "K", "pr": "mm/d", "psl": "Pa", "rlds": "W m-2", "hurs": "%"}
# Middle, season's amplitude, deviation of a day, and the highest value; of hurs, which has ties, many days are at it.
SHAPES = {
    "tasmax": (285, 14, 5, np.inf),
    "psl": (101_000, 300, 900, np.inf),
    "rlds": (300, 50, 30, np.inf),
    "hurs": (80, 10, 15, 100),
}
YEARS_RANKED, YEARS_APART = 30, 10
# Cells that xsdba gets through fastest; more cost memory and no less time.
XSDBA_BEST_BLOCK = 300
STEPS = ("prepare", "train", "adjust", "usual")
REPEATS = 5
QUANTILES = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES
DQM, QDM = "DetrendedQuantileMapping", "QuantileDeltaMapping"
Seconds = dict[str, float]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Series:
    """A variable's reference, historical and simulation (cell, time), noleap."""

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
        if variable in SHAPES:
            middle, amplitude, deviation, highest = SHAPES[variable]
            values = random.normal(middle + bias + amplitude * season + trend, deviation, shape)
            return np.minimum(values, highest).astype("f4")
        if variable == "dtr":
            return np.maximum(random.normal(10 + bias + 3 * season, 4, shape), 0).astype("f4")
        wet = random.random(shape) < 0.5 - 0.1 * bias + 0.1 * season
        return np.where(wet, random.gamma(0.7, 6 + trend, shape), 0).astype("f4")

    simulation = draw(n_years, 1.0)
    start = max(0, min(REFERENCE_FIRST_YEAR - FIRST_YEAR, n_years - TRAINING_YEARS)) * DAYS
    return Series(draw(TRAINING_YEARS, 0.0), simulation[:, start : start + TRAINING_YEARS * DAYS].copy(), simulation)


def timed(call: Callable[[], Any], clock: Clock = time.process_time) -> tuple[float, Any]:
    started = clock()
    result = call()
    return clock() - started, result


# Ours


def our_steps(
    variable: str, series: Series, method: str, windows: bool, threads: int, clock: Clock = time.process_time
) -> tuple[Seconds, np.ndarray, Any]:
    """Seconds of each step for all cells, the scenario and what was prepared."""
    from espo_luigi.methods.dqm import quantile_mapping as qm
    from espo_luigi.methods.dqm import ranking
    from espo_luigi.methods.dqm.windows import plan_windows, spans_of

    kind, days = KINDS[variable], np.arange(series.simulation.shape[-1])
    seeds = qm.cell_seeds("benchmark", np.arange(len(series.simulation)))
    windows_s, plan = timed(lambda: plan_windows(np.tile(np.arange(1, DAYS + 1), TRAINING_YEARS), WINDOW), clock)

    def prepare() -> tuple[np.ndarray, np.ndarray]:
        own: dict[str, Any] = {"seeds": seeds, "threads": threads}
        reference, historical = series.reference, series.historical
        if (noise := JITTER.get(variable)) is not None:
            reference = qm.jitter(reference, noise, series="reference", **own)
            historical = qm.jitter(historical, noise, **own)
        if (threshold := ADAPT.get(variable)) is not None:
            historical = qm.adapt_frequencies(reference, historical, plan, threshold, **own)[0]
        return reference, historical

    def train() -> Any:
        how: dict[str, Any] = {"quantiles": QUANTILES, "kind": kind, "detrended": method == DQM, "threads": threads}
        return qm.train(*prepared, plan, **how)

    def adjust(reach: float = 1.0) -> np.ndarray:
        how: dict[str, Any] = {"kind": kind, "threads": threads}
        if method == DQM:
            made = qm.plan_adjustment(days % DAYS + 1, days, window=WINDOW, fraction=FRACTION, n_training_days=DAYS)
            return qm.adjust(series.simulation, training, made._replace(reach=reach), **how)[0]
        spans = spans_of(days // DAYS, {"window": YEARS_RANKED, "step": YEARS_APART} if windows else None)
        window = WINDOW if windows else 1
        plans = ranking.plan_ranks(days % DAYS + 1, days, spans, window=window, n_training_days=DAYS)
        return ranking.adjust(series.simulation, training.factors, QUANTILES.astype("f4"), plans, **how)[0]

    prepare_s, prepared = timed(prepare, clock)
    train_s, training = timed(train, clock)
    adjust_s, scenario = timed(adjust, clock)
    seconds = {"prepare": prepare_s, "train": windows_s + train_s, "adjust": adjust_s}
    if method == DQM:
        seconds["usual"] = timed(lambda: adjust(np.inf), clock)[0]
    return seconds, scenario, prepared


def flag_ours(variable: str, series: Series, adjusted: np.ndarray) -> float:
    """Seconds of the flags of an adjusted series, in one block; those of two cells, a call's own, are taken off."""
    from espo_luigi.science import quality

    def seconds(n_cells: int) -> float:
        given = (series.reference, REFERENCE_FIRST_YEAR), (series.simulation, FIRST_YEAR), (adjusted, FIRST_YEAR)
        each = (as_series(values[:n_cells], year, UNITS[variable]) for values, year in given)
        reference, simulation, scenario = (one.to_dataset(name=variable) for one in each)
        raw = quality.of_regridded(simulation, simulation, {variable: np.zeros(n_cells, bool)}, ()).chunk()
        limits, da = quality.limits_of(reference, 0.1, 0.25).load(), scenario[variable].chunk()
        marks = (da > 290).astype(np.uint8).assign_attrs(flag_masks=[1], flag_meanings="marked").persist()
        how: dict[str, Any] = {"period": [f"{REFERENCE_FIRST_YEAR}", "2020"], "kind": KINDS[variable], "signal": 1.0}

        def of_adjusted() -> xr.Dataset:
            return xr.Dataset(quality.of_adjusted(da, raw, marks, wet=ADAPT.get(variable), **how)).persist()

        maps = scenario.assign(of_adjusted().compute()).transpose("time", ...)
        maps = maps.map(lambda data: data.copy(data=np.ascontiguousarray(data)))
        calls = [lambda: (of_adjusted(), quality.with_beyond(maps, limits))] * REPEATS
        return min(timed(call)[0] for call in calls)

    return seconds(len(adjusted)) - seconds(2)


# xsdba


def as_series(values: np.ndarray, first_year: int, units: str) -> xr.DataArray:
    times = xr.date_range(f"{first_year}-01-01", periods=values.shape[-1], calendar="noleap", use_cftime=True)
    return xr.DataArray(values, dims=("loc", "time"), coords={"time": times}, attrs={"units": units})


def xsdba_prepare(variable: str, series: Series) -> float:
    """Seconds of jitter and frequency adaptation."""
    import xsdba

    units = UNITS[variable]
    both = [as_series(one, REFERENCE_FIRST_YEAR, units) for one in (series.reference, series.historical)]
    group = xsdba.Grouper("time.dayofyear", WINDOW)

    def call() -> None:
        jittered = [xsdba.processing.jitter_under_thresh(one, f"{JITTER.get(variable)} {units}") for one in both]
        if ADAPT.get(variable) is not None:
            xsdba.processing.adapt_freq(*jittered, group=group, thresh=f"{ADAPT.get(variable)} {units}")

    return timed(call)[0]


def xsdba_steps(variable: str, series: Series, prepared: Any, method: str, windows: bool) -> tuple[Seconds, np.ndarray]:
    """Seconds of the steps, training and adjusting from the series that our kernels prepared; and the scenario.

    With windows, the scenario ends with the years that the first window keeps.
    """
    import xsdba

    from espo_luigi.methods.dqm.windows import year_windows

    units, kind = UNITS[variable], KINDS[variable]
    n_cells = len(series.simulation)
    group = xsdba.Grouper("time.dayofyear", WINDOW)
    reference, historical = (as_series(one[:n_cells], REFERENCE_FIRST_YEAR, units) for one in prepared)
    simulation = as_series(series.simulation, FIRST_YEAR, units)
    own: dict[str, Any] = {"interp": "nearest", "extrapolation": "constant"}
    if method == DQM:
        loess = {"f": FRACTION, "niter": 1, "d": 0, "weights": "tricube"}
        own["detrend"] = xsdba.detrending.LoessDetrend(group=group, kind=kind, **loess)
    several, kept = 1, series.simulation.shape[-1]
    if windows:
        spans = year_windows(np.arange(kept) // DAYS, YEARS_RANKED, YEARS_APART)
        several, kept = len(spans), spans[0].kept_last
        simulation, own["rank_window"] = simulation.isel(time=slice(spans[0].last)), True
    how: dict[str, Any] = {"nquantiles": N_QUANTILES, "kind": kind, "group": group}
    train_s, trained = timed(lambda: getattr(xsdba, method).train(reference, historical, **how))
    adjust_s, scenario = timed(lambda: trained.adjust(simulation, **own))
    seconds = {"train": train_s, "adjust": adjust_s * several}
    if method == DQM:
        seconds["usual"] = adjust_s
    if JITTER.get(variable) is not None:
        seconds["prepare"] = xsdba_prepare(variable, series)
    return seconds, scenario.transpose("loc", "time").values[:, :kept]


# Memory


def peak_of(adjuster: str, variable: str, n_cells: int, n_years: int) -> float:
    """Peak resident MB of a process that adjusts a block of so many cells on one thread."""
    return measuring.script(__file__, "--adjuster", adjuster, variable, n_cells, n_years)[0].peak_mib


def adjust_repeated(variable: str, n_cells: int, n_years: int) -> None:
    """Adjust a block made of a few cells again and again, whose making needs no memory beyond itself."""
    from espo_luigi.methods.dqm import quantile_mapping as qm
    from espo_luigi.methods.dqm.windows import plan_windows

    few = make(variable, 4, n_years)
    kind, days = KINDS[variable], np.arange(few.simulation.shape[1])
    plan = plan_windows(days[: few.reference.shape[1]] % DAYS + 1, WINDOW)
    training = qm.train(few.reference + 1, few.historical + 1, plan, quantiles=QUANTILES, kind=kind)
    picked = np.arange(n_cells) % 4
    repeated = qm.Training(*(None if one is None else one[picked] for one in training))
    made = qm.plan_adjustment(days % DAYS + 1, days, window=WINDOW, fraction=FRACTION, n_training_days=DAYS)
    qm.adjust(few.simulation[picked], repeated, made, kind=kind)


def adjust_by_xsdba(variable: str, n_cells: int, n_years: int) -> None:
    """Train and adjust a block with xsdba; adjusting takes the most memory."""
    series = make(variable, n_cells, n_years)
    xsdba_steps(variable, series, (series.reference, series.historical), DQM, False)


def memory(variable: str, options: argparse.Namespace) -> dict[str, float]:
    sizes = {"adjust_repeated": (20, options.memory_cells), "adjust_by_xsdba": (20, 60)}
    peaks = {name: [peak_of(name, variable, n_cells, options.years) for n_cells in few] for name, few in sizes.items()}
    per_cell = {name: (peaks[name][1] - peaks[name][0]) / (few[1] - few[0]) for name, few in sizes.items()}
    return {
        f"peak_mb_{options.memory_cells}_cells": peaks["adjust_repeated"][1],
        "mb_per_cell": per_cell["adjust_repeated"],
        "xsdba_mb_per_cell": per_cell["adjust_by_xsdba"],
    }


# The run


def time_ours(variable: str, series: Series, method: str, windows: bool, threads: int) -> tuple[Seconds, float]:
    """CPU seconds of each step on one thread, the median of some runs, and how much faster several threads are."""
    walls: dict[int, list[float]] = {1: [], threads: []}
    seconds = []
    for _ in range(REPEATS):
        seconds.append(our_steps(variable, series, method, windows, 1)[0])
        for n in walls:
            walls[n].append(sum(our_steps(variable, series, method, windows, n, time.perf_counter)[0].values()))
    medians = {step: float(np.median([one[step] for one in seconds])) for step in seconds[0]}
    return medians, min(walls[1]) / min(walls[threads])


def measure(variable: str, options: argparse.Namespace) -> dict[str, Any]:
    how = options.method, options.windows
    series = make(variable, options.cells, options.years)
    our_steps(variable, series.first(2), *how, 1)  # loads the compiled kernels
    _, scenario, prepared = our_steps(variable, series, *how, 1)
    ours, speedup = time_ours(variable, series, *how, options.threads)
    xsdba_steps(variable, series.first(2), prepared, *how)  # compiles LOESS
    theirs, their_scenario = xsdba_steps(variable, series.first(options.xsdba_cells), prepared, *how)
    result: dict[str, Any] = {}
    for step in theirs:
        us, them = ours[step] / options.cells, theirs[step] / options.xsdba_cells
        result[step] = {"ours_s": us, "xsdba_s": them, "ratio": them / us}
    difference = np.abs(scenario[: options.xsdba_cells, : their_scenario.shape[1]] - their_scenario)
    size = np.abs(their_scenario)  # of psl, float32 has steps of 0.008 Pa
    scale = np.maximum(size / 1000, 1) if KINDS[variable] == "+" else np.maximum(size, 1e-3)
    result["max_difference"] = float(np.nanmax(difference))
    result["share_off"] = float(np.mean(difference > 1e-4 * scale))
    result["speedup"], result["flags_s"] = speedup, flag_ours(variable, series, scenario) / options.cells
    return result | {"memory": memory(variable, options) if options.method == DQM else {}}


def print_table(results: dict[str, Any], threads: int) -> None:
    print(f"{'variable':9}{'step':9}{'xsdba ms':>10}{'ours ms':>9}{'ratio':>8}")
    for variable, result in results.items():
        for step in STEPS:
            if one := result.get(step):
                figures = f"{one['xsdba_s'] * 1e3:10.1f}{one['ours_s'] * 1e3:9.3f}{one['ratio']:8.0f}"
                print(f"{variable:9}{step:9}{figures}")
        print(f"{variable:9}{'flags':19}{result['flags_s'] * 1e3:9.3f}")
        print(
            f"{variable:9}max difference {result['max_difference']:.2g}, off by more than 1e-4: "
            f"{result['share_off']:.2g}; {threads} threads {result['speedup']:.2f} x one"
        )
        for name, value in result["memory"].items():
            print(f"{variable:9}{name} {value:.2f}")


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=300, help="cells of our block, 300 or more")
    parser.add_argument("--years", type=int, default=151, help="years of the simulation")
    parser.add_argument("--xsdba-cells", type=int, default=300, help="how many of them xsdba gets; 300 or more")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--memory-cells", type=int, default=600, help="cells of the block whose memory is measured")
    parser.add_argument("--method", choices=[DQM, QDM], default=DQM)
    parser.add_argument("--windows", action="store_true", help="of QuantileDeltaMapping, which it implies")
    parser.add_argument("--variables", nargs="+", choices=sorted(KINDS), default=["tasmax", "dtr", "pr"])
    parser.add_argument("--adjuster", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.adjuster:
        name, variable, n_cells, n_years = options.adjuster
        globals()[name](variable, int(n_cells), int(n_years))
        return
    if not XSDBA_BEST_BLOCK <= options.xsdba_cells <= options.cells:
        parser.error(
            f"got --cells {options.cells} and --xsdba-cells {options.xsdba_cells}, expected {XSDBA_BEST_BLOCK} <= "
            "XSDBA_CELLS <= CELLS: a smaller block of xsdba's costs more per cell, and would make ours look better"
        )
    if options.windows:
        options.method = QDM
    before = os.getloadavg()[0]
    results = {variable: measure(variable, options) for variable in options.variables}
    print(
        f"{options.cells} cells (of xsdba {options.xsdba_cells}), {options.years} years; CPU time of one thread a cell"
    )
    print(f"load average before {before:.1f}, after {os.getloadavg()[0]:.1f}")
    print_table(results, options.threads)
    print(json.dumps({**results, "load_before": before}))


if __name__ == "__main__":
    main()
