"""Adjusting fine cells, and adjusting coarse ones and downscaling after, against withheld years of a reference.

    python benchmarks/which_way.py FOLDER tasrange pr hurs

FOLDER has ISIMIP's files, NAME_obs-hist_fine_*.nc. The simulation is the reference itself, averaged to 1 degree. The
first half of the years calibrates, the second is the truth. Printed are the errors of each way in multiples of their
noise, as `espo perfect-model --truth reference` has them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import xarray as xr

from espo_luigi.downscaling import withheld
from espo_luigi.downscaling.base import DOWNSCALERS
from espo_luigi.methods.perfect_model import Adjustment, Plan, shown_as
from espo_luigi.science.coarse import CoarseGrid, by_coarse_cells, coarse_cells, coarse_means, coarse_numbers
from espo_luigi.science.stack import stack_drop_nans

GRID = CoarseGrid(1.0)
NAMES = {"tasrange": "dtr"}


def compare(folder: Path, of_file: str) -> xr.Dataset:
    """Return the comparison of a variable."""
    (path,) = folder.glob(f"{of_file}_obs-hist_fine_*.nc")
    name = NAMES.get(of_file, of_file)
    ds = xr.open_dataset(path)[[of_file]].rename({of_file: name}).convert_calendar("noleap").load()
    fine = by_coarse_cells(stack_drop_nans(ds.transpose("time", "lat", "lon")), GRID)
    numbers = coarse_numbers(GRID, fine)
    cells, _ = coarse_cells(GRID, numbers, west=float(fine["lon"].min()))
    coarse = coarse_means(fine, GRID, numbers).assign_coords(cells.coords)
    first, last = (int(fine["time"].dt.year[place]) for place in (0, -1))
    middle = (first + last) // 2
    halves = (first, middle), (middle + 1, last)
    adjusting = {"periods": halves, "keeps_ranks": True}
    how = Adjustment((name,), "QuantileDeltaMapping", {"period": halves[0]}, adjusting, {"seed": "which"})
    return withheld.compare(
        fine,
        coarse,
        grid=GRID,
        plans={name: Plan(halves[0], **shown_as(name))},
        adjustments=[how],
        ways={way: {name: {"downscaler": way, "seed": "which"}} for way in DOWNSCALERS},
        withheld=halves[1],
    ).isel(variable=0)


def main() -> None:
    """Print a table of each variable."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("variables", nargs="+")
    given = parser.parse_args()
    for name in given.variables:
        found = compare(given.folder, name)
        print(f"{name:14}" + "".join(f"{way:>12}" for way in found["way"].values) + f"{'truth':>12}{'noise':>12}")
        for measure in found["measure"].values[np.isfinite(found["truth"].values)]:
            of = found.sel(measure=measure)
            multiples = "".join(f"{one:12.1f}" for one in (of["error"] / of["noise"]).values)
            print(f"{measure:14}{multiples}{float(of['truth']):12.4g}{float(of['noise']):12.2g}")


if __name__ == "__main__":
    main()
