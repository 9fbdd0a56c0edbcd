"""Time trends by Theil and Sen, and return levels with their intervals, beside scipy and xclim cell by cell.

    python benchmarks/trends.py [--cells 10000] [--others 100] [--years 151]

Ours of all cells on Dask, in memory; scipy (`theilslopes`, `kendalltau`) and xclim (`frequency_analysis`, by
lmoments3 where it is installed, else of maximum likelihood), which have no intervals, of a few. Prints CPU seconds of
10 000 cells and ratios; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import warnings
from typing import Any

import measuring
import numpy as np
import xarray as xr

from espo_luigi.science.outcomes.return_levels import return_levels, with_intervals
from espo_luigi.science.outcomes.trends import trends


def others(few: xr.DataArray, way: str) -> None:
    """Compute trends by scipy, or return levels by xclim."""
    if way == "scipy":
        from scipy import stats

        for values in few.values.T:
            stats.theilslopes(values)
            stats.kendalltau(np.arange(values.size), values)
        return
    from xclim.indices.stats import frequency_analysis

    how: dict[str, Any] = {"dist": "genextreme", "method": "ML"}
    try:
        from lmoments3 import distr

        how = {"dist": distr.gev, "method": "PWM"}
    except ImportError:
        pass
    frequency_analysis(few[:30], mode="max", t=[20, 50, 100], freq="YS", **how).load()


def main() -> None:
    """Take the CPU time of each way, once warm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("cells", 10_000), ("others", 100), ("years", 151)):
        parser.add_argument(f"--{name}", type=int, default=number)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    time = xr.date_range("1950-01-01", periods=asked.years, freq="YS")
    values = np.random.default_rng(1).gumbel(40, 10, (asked.years, asked.cells)).astype("f4")
    attrs = {"units": "mm/day", "cell_methods": "time: maximum over days"}
    ds = xr.Dataset({"rx1day": (("time", "x"), values, attrs)}, {"time": time}, {"cat:xrfreq": "YS-JAN"})
    lazy, few = ds.chunk(x=2500), ds["rx1day"][:, : asked.others]
    ways = {
        "trends": (asked.cells, lambda: trends(lazy).load()),
        "scipy": (asked.others, lambda: others(few, "scipy")),
        "return levels": (asked.cells, lambda: with_intervals(return_levels(lazy, periods=[[1950, 1979]])).load()),
        "xclim": (asked.others, lambda: others(few, "xclim")),
    }
    others(few[:, :1], "xclim")
    taken = {}
    for way, (cells, compute) in ways.items():
        before = measuring.cpu_seconds()
        compute()
        taken[way] = round((measuring.cpu_seconds() - before) * 10_000 / cells, 2)
        print(f"{way:14} {taken[way]:8.2f} CPU s of 10 000 cells", flush=True)
    taken["scipy by trends"] = round(taken["scipy"] / taken["trends"], 1)
    taken["xclim by return levels"] = round(taken["xclim"] / taken["return levels"], 1)
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
