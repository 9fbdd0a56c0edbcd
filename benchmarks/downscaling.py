"""Time adjusting fine cells, and adjusting coarse ones and downscaling after, in one go.

    OPENBLAS_NUM_THREADS=1 python benchmarks/downscaling.py --side 100

`--side` 100 makes 100 x 100 fine cells of 0.1 degrees, in 100 coarse ones of 1 degree, with 151 years of which 30
calibrate. All is in memory; CPU seconds are of a second call. The means of reference and simulation count as a part of
the second way; a run regrids the simulation to fewer cells in their place.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.downscaling import blocks as downscaling
from espo_luigi.methods import blocks
from espo_luigi.science.coarse import CoarseGrid, coarse_cells, coarse_means, coarse_numbers
from espo_luigi.science.stack import stack_drop_nans

GRID = CoarseGrid(1.0)
KNOWN = ("1991", "2020")


def series(first: str, last: str, side: int) -> xr.DataArray:
    """Return daily maxima (loc, time): a season, weather that all cells share, and a cell's own."""
    days = xr.date_range(f"{first}-01-01", f"{last}-12-31", calendar="noleap", use_cftime=True)
    rng = np.random.default_rng(days.size)
    shared = 280 + 10 * np.sin(2 * np.pi * np.arange(days.size) / 365) + rng.normal(0, 3, days.size)
    values = rng.standard_normal((days.size, side, side), np.float32) + shared[:, None, None].astype(np.float32)
    coords = {"time": days, "lat": 50.05 + 0.1 * np.arange(side), "lon": 5.05 + 0.1 * np.arange(side)}
    ds = xr.DataArray(values, coords, name="tasmax", attrs={"units": "K"}).to_dataset()
    made: xr.DataArray = stack_drop_nans(ds)["tasmax"].transpose("loc", "time").load()
    return made


def adjust(reference: xr.DataArray, simulation: xr.DataArray) -> xr.DataArray:
    """Train and adjust by the usual settings."""
    training = blocks.train(reference, simulation, period=KNOWN, seed="benchmark").load()
    return blocks.adjust(simulation, training).load()


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return CPU seconds and the result."""
    began = time.process_time()
    made = function()
    return time.process_time() - began, made


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=30, help="fine cells along each side, a multiple of 10")
    parser.add_argument("--downscaler", nargs="+", default=["QPLAD", "BCSD"])
    given = parser.parse_args()
    fine, simulation = series(*KNOWN, given.side), series("1950", "2100", given.side)
    numbers = coarse_numbers(GRID, fine.to_dataset())
    cells, _ = coarse_cells(GRID, numbers, west=5.0)

    def means(of: xr.DataArray) -> xr.DataArray:
        return (
            coarse_means(of.to_dataset(), GRID, numbers).assign_coords(cells.coords)["tasmax"].transpose("loc", "time")
        )

    few = {"loc": slice(0, 100)}
    adjust(fine.isel(few), simulation.isel(few))
    usual, _ = timed(lambda: adjust(fine, simulation))
    averaging, (coarse, model) = timed(lambda: (means(fine), means(simulation)))
    adjusting, adjusted = timed(lambda: adjust(coarse, model))
    print(
        f"{fine.sizes['loc']} cells: train and adjust {usual:.1f} s; means {averaging:.1f} s, adjust {adjusting:.1f} s"
    )
    for name in given.downscaler:
        how: dict[str, Any] = {"downscaler": name, "grid": GRID, "seed": "benchmark"}
        one = {"loc": slice(0, 1)}
        downscaling.downscale(adjusted.isel(one), coarse.isel(one), fine.isel(few), **how)
        own, _ = timed(lambda how=how: downscaling.downscale(adjusted, coarse, fine, **how))
        share = (averaging + adjusting + own) / usual
        print(f"{name}: downscale {own:.1f} s; {share:.2f} of the time of the usual way")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, with all series")


if __name__ == "__main__":
    main()
