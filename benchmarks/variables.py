"""Time ten variables by their usual settings: our kernels against xsdba, each through the same training and adjusting.

    python benchmarks/variables.py --cells 2500 --xsdba-cells 100

Prints CPU seconds of all cells by variable and rule, the same by xsdba (scaled from fewer cells, in one block), their
ratio, the peak memory of the process and the bytes that adjusting reads and writes. Series are drawn between the limits
of each variable, with a season; 30 years train, all are adjusted.
"""

from __future__ import annotations

import argparse
import resource
import time
import warnings
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.config.usual import give_usual_settings
from espo_luigi.methods import blocks
from espo_luigi.science.variables import VARIABLES

NAMES = ("tas", "tasmax", "dtr", "pr", "hurs", "huss", "sfcWind", "rsds", "rlds", "psl")
FIRST_YEAR, TRAINING = 1950, ("1991", "2020")
CELLS_OF_A_BLOCK = 500
# Where most values lie: middle, season's amplitude, deviation of a day.
SHAPES = {
    **dict.fromkeys(("tas", "tasmax"), (280.0, 12.0, 5.0)),
    "dtr": (10.0, 3.0, 3.0),
    "hurs": (70.0, 10.0, 20.0),
    "huss": (6e-3, 3e-3, 2e-3),
    "sfcWind": (4.0, 1.0, 2.0),
    "rsds": (150.0, 140.0, 60.0),
    "rlds": (300.0, 40.0, 30.0),
    "psl": (101_300.0, 300.0, 800.0),
}


def draw(name: str, years: int, cells: int, seed: int) -> xr.DataArray:
    """Draw daily series (loc, time), noleap, within the variable's possible range."""
    random = np.random.default_rng(seed)
    time_ = xr.date_range(f"{FIRST_YEAR}-01-01", periods=365 * years, calendar="noleap", use_cftime=True)
    season = np.sin(np.arange(365 * years) * 2 * np.pi / 365)
    if name == "pr":
        wet = random.random((cells, season.size)) < 0.5 + 0.1 * season
        values = np.where(wet, random.gamma(0.7, 6, wet.shape), 0) / 86400
    else:
        middle, amplitude, deviation = SHAPES[name]
        values = random.normal(middle + amplitude * season, deviation, (cells, season.size))
    row = VARIABLES[name]
    data = values.clip(*row.possible).astype("f4")
    return xr.DataArray(data, {"time": time_}, ("loc", "time"), name, {"units": row.units})


def settings(name: str) -> dict[str, Any]:
    """Return the usual settings."""
    content: dict[str, Any] = {"biasadjust": {"variables": {name: {}}}}
    give_usual_settings(content)
    return content["biasadjust"]["variables"][name]


def seconds(name: str, years: int, cells: int, engine: Any) -> tuple[float, float]:
    """Return CPU seconds of training and of adjusting."""
    how, spent = settings(name), [0.0, 0.0]
    size = min(cells, CELLS_OF_A_BLOCK)
    reference, simulation = draw(name, years, size, 1), draw(name, years, size, 2)
    for first in range(0, cells, size):
        began = time.process_time()
        trained = blocks.train(
            reference, simulation, engine=engine, seed="s", first_cell=first, period=TRAINING, **how["training_args"]
        )
        trained.load()
        halfway = time.process_time()
        periods = (str(FIRST_YEAR), str(FIRST_YEAR + years - 1))
        blocks.adjust(simulation, trained, engine=engine, periods=periods, **how["adjusting_args"]).load()
        spent = [spent[0] + halfway - began, spent[1] + time.process_time() - halfway]
    return spent[0], spent[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=2500)
    parser.add_argument("--xsdba-cells", type=int, default=100)
    parser.add_argument("--years", type=int, default=151)
    parser.add_argument("--variables", nargs="+", choices=NAMES, default=NAMES)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print("variable   train [CPU s]  xsdba   ratio   adjust [CPU s]  xsdba   ratio")
    for name in asked.variables:
        seconds(name, asked.years, 2, "auto")  # compiles
        ours = seconds(name, asked.years, asked.cells, "auto")
        seconds(name, asked.years, 1, "xsdba")
        peers = [
            asked.cells / asked.xsdba_cells * one for one in seconds(name, asked.years, asked.xsdba_cells, "xsdba")
        ]
        parts = (f"{own:14.1f} {peer:7.0f} {peer / own:7.0f}" for own, peer in zip(ours, peers, strict=True))
        print(f"{name:9}{'  '.join(parts)}", flush=True)
    gigabytes = asked.cells * asked.years * 365 * 4 / 1e9
    print(
        f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB (blocks of {CELLS_OF_A_BLOCK})"
    )
    print(f"bytes of a variable: adjusting reads and writes {gigabytes:.1f} GB each")


if __name__ == "__main__":
    main()
