"""Estimate the core-hours of a perfect-model experiment, in proportion to what fits in two minutes.

A pair is compared as the rule `PerfectPair` does, with production's method (days of year, 50 quantiles, LOESS) on
1950-2100 and three variables, on few and on more cells. What a cell adds, and what a pair costs whatever its cells,
give the figure for all ordered pairs of the simulations. Regridding is not part of it. Times are CPU seconds of the
process, with one thread of Dask; the last line is JSON.

    python benchmarks/perfect_model.py --simulations 11 --cells 2000
"""

from __future__ import annotations

import argparse
import json
import time

import dask
import numpy as np
import xarray as xr

from espo_luigi.methods import perfect_model
from espo_luigi.methods.perfect_model import ADJUSTED, SCALING, Adjustment, Plan, Sampling
from espo_luigi.tasks.perfect_model import by_method

KINDS = {"tasmax": "+", "dtr": "*", "pr": "*"}
LOESS = {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}
METHODS = {SCALING: "Scaling", "QDM": "QuantileDeltaMapping", "EQM": "EmpiricalQuantileMapping"}
TOGETHER = ("MBCn",)
LATER = [(2041, 2070), (2071, 2100)]
BLOCK = 250


def simulation(cells: int, seed: int) -> xr.Dataset:
    """Invented daily series of 1950-2100, (loc, time), in blocks of cells."""
    index = xr.date_range("1950-01-01", "2100-12-31", calendar="noleap", use_cftime=True)
    draws = np.random.default_rng(seed)
    season = 12 * np.sin(2 * np.pi * np.arange(index.size) / 365)
    made = {
        "tasmax": (280 + season + draws.normal(0, 4, (cells, index.size)), "K"),
        "dtr": (draws.gamma(4, 2.5, (cells, index.size)), "K"),
        "pr": (np.maximum(draws.gamma(0.5, 6, (cells, index.size)) - 1, 0) / 86400, "kg m-2 s-1"),
    }
    data = {name: (("loc", "time"), values.astype("float32"), {"units": unit}) for name, (values, unit) in made.items()}
    return xr.Dataset(data, {"time": index, "loc": np.arange(cells)}).chunk(loc=BLOCK)


def adjustments(name: str, methods: list[str]) -> dict[str, Adjustment]:
    """Production's method, and the further methods, of a variable."""
    train = {
        "period": (1991, 2020),
        "group": {"group": "time.dayofyear", "window": 31},
        "xclim_train_args": {"kind": KINDS[name], "nquantiles": 50},
        "jitter_under": {"dtr": {"thresh": "1e-4 K"}, "pr": {"thresh": "0.01 mm d-1"}}.get(name),
        "adapt_freq": {"thresh": "1 mm d-1"} if name == "pr" else None,
    }
    train = {key: value for key, value in train.items() if value is not None}
    arguments = {"detrend": LOESS, "interp": "nearest", "extrapolation": "constant"}
    adjust = {"periods": (1950, 2100), "xclim_adjust_args": arguments}
    own = Adjustment((name,), "DetrendedQuantileMapping", train, adjust, {"seed": name})
    in_slices = [(1991, 2020), *LATER]
    further = {label: by_method(METHODS[label], own, in_slices) for label in methods if label in METHODS}
    if ibicus := [label for label in methods if label not in (*METHODS, *TOGETHER)]:
        further |= {
            label: Adjustment((name,), label, {"period": (1991, 2020)}, {"periods": in_slices}) for label in ibicus
        }
    return {ADJUSTED: own, **further}


def together() -> Adjustment:
    """MBCn of the three variables."""
    own = {name: {"kind": kind, "nquantiles": 50} for name, kind in KINDS.items()}
    own["pr"] |= {"jitter_under": {"thresh": "0.01 mm d-1"}, "adapt_freq_thresh": "1 mm d-1"}
    train = {"period": (1991, 2020), "group": {"group": "5D", "window": 7}, "by_variable": own}
    return Adjustment(tuple(KINDS), "MBCn", train, {"periods": [(1991, 2020), *LATER]}, {"seed": "MBCn"})


def seconds(cells: int, sample: int, methods: list[str]) -> float:
    """CPU seconds of a pair."""
    truth, other = (simulation(cells, seed) for seed in (1, 2))
    each = [adjustments(name, methods) for name in KINDS]
    compared = {label: [of[label] for of in each] for label in each[0]} | {
        label: [together()] for label in methods if label in TOGETHER
    }
    plans = {name: Plan((1991, 2020)) for name in KINDS}
    begin = time.process_time()
    sampling = Sampling(LATER, sample, "seed", groups=[tuple(KINDS)])
    perfect_model.compare(truth, other, plans=plans, methods=compared, sampling=sampling)
    return time.process_time() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=11)
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--measured", type=int, nargs=2, default=(20, 120), metavar="CELLS")
    parser.add_argument("--sampled", type=int, nargs=2, default=(2, 12), metavar="CELLS")
    parser.add_argument("--methods", nargs="*", default=[SCALING], help="Scaling, QDM, EQM, MBCn, ibicus.CDFt")
    given = parser.parse_args()
    (few, many), (less, more) = given.measured, given.sampled
    with dask.config.set(scheduler="synchronous"):
        seconds(few, less, given.methods)  # compiles
        base, by_cells, by_sample = (seconds(*one, given.methods) for one in ((few, less), (many, less), (few, more)))
    of_cell, of_sampled = (by_cells - base) / (many - few), (by_sample - base) / (more - less)
    pair = base + of_cell * (given.cells - few) + of_sampled * (min(given.sample, given.cells) - less)
    pairs = given.simulations * (given.simulations - 1)
    found = {
        "methods": [ADJUSTED, *given.methods],
        "cpu_seconds_of_a_cell": round(of_cell, 4),
        "cpu_seconds_of_a_sampled_cell": round(of_sampled, 4),
        "cpu_seconds_of_a_pair": round(pair, 1),
        "pairs": pairs,
        "core_hours": round(pairs * pair / 3600, 2),
    }
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<32}{value}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
