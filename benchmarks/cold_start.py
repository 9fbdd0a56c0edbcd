"""Time from the start of a process to the first result of one small block: ours and xsdba's.

Prints a table and, as its last line, the same figures as one JSON object. Wall-clock seconds, best of a few. Ours is
measured with kernels kept on disk, as every process after the first finds them, and once without.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SETUP = """
import warnings; warnings.simplefilter("ignore")
import numpy as np
n_train, n_days = 10, 365
random = np.random.default_rng(0)
reference, historical = random.normal(280, 5, (2, 4, n_train * n_days)).astype("f4")
simulation = random.normal(280, 5, (4, 20 * n_days)).astype("f4")
"""
SERIES = """
import xarray as xr
def series(values):
    n = values.shape[1] // n_days
    time = xr.date_range("1990-01-01", f"{1989 + n}-12-31", calendar="noleap", use_cftime=True)
    return xr.DataArray(values, dims=("loc", "time"), coords={"time": time}, attrs={"units": "K"}, name="tasmax")
"""
OURS = f"""{SERIES}
from espo_luigi.methods import blocks
trained = blocks.train(series(reference), series(historical), period=("1990", "1999"),
                           group={{"group": "time.dayofyear", "window": 31}},
                           xclim_train_args={{"kind": "+", "nquantiles": 50}})
detrend = {{"LoessDetrend": {{"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}}}
blocks.adjust(series(simulation), trained, periods=("1990", "2009"),
                  xclim_adjust_args={{"interp": "nearest", "extrapolation": "constant", "detrend": detrend}}).load()
"""
XSDBA = f"""{SERIES}
import xsdba
group = xsdba.Grouper("time.dayofyear", 31)
trained = xsdba.DetrendedQuantileMapping.train(series(reference), series(historical), nquantiles=50, group=group)
loess = xsdba.detrending.LoessDetrend(group=group, kind="+", f=0.2, niter=1, d=0, weights="tricube")
trained.adjust(series(simulation), interp="nearest", extrapolation="constant", detrend=loess).load()
"""


def seconds(code: str, cache: Path | None = None) -> float:
    """Wall-clock seconds of a Python process that runs ``code``."""
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if cache:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", SETUP + code], check=True, env=environment, capture_output=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        compiling = seconds(OURS, Path(folder))
        ours = min(seconds(OURS, Path(folder)) for _ in range(repeats))
    seconds(XSDBA)
    figures = {
        "numpy.seconds": min(seconds("") for _ in range(repeats)),
        "ours.seconds": ours,
        "ours_first_on_a_machine.seconds": compiling,
        "xsdba.seconds": min(seconds(XSDBA) for _ in range(repeats)),
    }
    figures["ratio"] = figures["xsdba.seconds"] / figures["ours.seconds"]
    print(f"load average {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    for name, value in figures.items():
        print(f"{name:34}{value:8.2f}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
