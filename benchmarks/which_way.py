"""Adjusting on fine cells, and adjusting coarse ones and downscaling after, against withheld years of a reference.

    python benchmarks/which_way.py FOLDER tasrange pr hurs

FOLDER has ISIMIP's files, NAME_obs-hist_fine_*.nc. The pseudo-model is the reference itself, averaged to 1 degree and
made wrong on purpose. The first half of the years calibrates, the second is the truth. What is told of each way is its
distance from the truth, in standard deviations of the truth's own value over resampled years; the best way is near 0.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xarray as xr

from espo_luigi.downscaling import blocks as downscaling
from espo_luigi.downscaling.base import DOWNSCALERS
from espo_luigi.methods import blocks
from espo_luigi.science.coarse import (
    CoarseGrid,
    areas_of,
    by_coarse_cells,
    coarse_cells,
    coarse_means,
    coarse_numbers,
    places_of,
)
from espo_luigi.science.stack import stack_drop_nans
from espo_luigi.science.variables import VARIABLES

GRID = CoarseGrid(1.0)
SAMPLES = 200
TABLE = {**VARIABLES, "tasrange": VARIABLES["dtr"]}
NAMES = {"tasrange": "dtr"}


def reference_of(folder: Path, name: str) -> xr.DataArray:
    """Return the reference (time, loc) in the noleap calendar, in memory."""
    (path,) = folder.glob(f"{name}_obs-hist_fine_*.nc")
    ds = xr.open_dataset(path)[[name]].rename({name: NAMES.get(name, name)}).convert_calendar("noleap").load()
    return by_coarse_cells(stack_drop_nans(ds.transpose("time", "lat", "lon")), GRID)[NAMES.get(name, name)]


def pseudo_model(coarse: xr.DataArray, kind: str) -> xr.DataArray:
    """Return a wrong model: too large and too variable."""
    with xr.set_options(keep_attrs=True):
        return coarse * 1.2 if kind == "*" else (coarse - coarse.mean("time")) * 1.2 + coarse.mean("time") + 1


def adjusted(
    reference: xr.DataArray, model: xr.DataArray, halves: tuple[tuple[str, str], tuple[str, str]]
) -> xr.DataArray:
    """Adjust the second half of the years."""
    training = blocks.train(reference, model, method="QuantileDeltaMapping", period=halves[0], seed="which")
    return blocks.adjust(model, training, periods=halves[1])


def correlations(values: np.ndarray, pairs: list[tuple[int, int]]) -> float:
    """Return the mean correlation of pairs of cells (time, cell)."""
    return float(np.mean([np.corrcoef(values[:, one], values[:, other])[0, 1] for one, other in pairs]))


def measures(fine: xr.DataArray, wet: float | None) -> dict[str, Callable[[np.ndarray], float]]:
    """Return what is compared, by name: functions of values (time, cell)."""
    areas, lat, lon = areas_of(fine.to_dataset()), fine["lat"].values, fine["lon"].values
    own = GRID.numbers(lat, lon)
    step = np.diff(np.unique(lat)).min()
    near = np.abs(lat[:, None] - lat) + np.abs(lon[:, None] - lon) < 1.01 * step
    pairs = [(one, other) for one, other in zip(*np.nonzero(np.triu(near, 1)), strict=True)]
    inside = [pair for pair in pairs if own[pair[0]] == own[pair[1]]]
    across = [pair for pair in pairs if own[pair[0]] != own[pair[1]]]
    made: dict[str, Callable[[np.ndarray], float]] = {
        "mean": lambda values: float(values.mean()),
        "spread of the area mean": lambda values: float(np.average(values, axis=1, weights=areas).std()),
        "spread of a cell": lambda values: float(values.std(axis=0).mean()),
        "highest of 18 years": lambda values: float(values.max(axis=0).mean()),
        "neighbours inside": lambda values: correlations(values, inside),
        "neighbours across": lambda values: correlations(values, across),
    }
    if wet is not None:
        made["share of wet days"] = lambda values: float((values >= wet).mean())
        made["days all dry"] = lambda values: float((values < wet).all(axis=1).mean())
    return made


def compare(folder: Path, name: str) -> None:
    """Print a table of a variable."""
    fine = reference_of(folder, name)
    row = TABLE[name]
    numbers = coarse_numbers(GRID, fine.to_dataset())
    cells, _ = coarse_cells(GRID, numbers, west=float(fine["lon"].min()))
    coarse = coarse_means(fine.to_dataset(), GRID, numbers).assign_coords(cells.coords)[fine.name]
    years = np.unique(fine["time"].dt.year)
    middle = years[years.size // 2]
    halves = (str(years[0]), str(middle - 1)), (str(middle), str(years[-1]))
    model = pseudo_model(coarse, row.kind)
    places = places_of(GRID, numbers, fine["lat"].values, fine["lon"].values)
    near = (model.values[:, places.corners] * places.weights).sum(axis=-1).astype("float32")
    ways = {"fine cells": adjusted(fine, fine.copy(data=near), halves)}
    on_coarse = adjusted(coarse, model, halves)
    known = fine.sel(time=slice(*halves[0]))
    for downscaler in DOWNSCALERS:
        given = {"years": 18} if downscaler != "BCSD" else {}
        ways[downscaler] = downscaling.downscale(
            on_coarse,
            coarse.sel(time=slice(*halves[0])),
            known,
            downscaler=downscaler,
            grid=GRID,
            seed="which",
            **given,
        )
    truth = fine.sel(time=slice(*halves[1])).values
    rng = np.random.default_rng(0)
    by_year = truth.reshape(-1, 365, truth.shape[1])
    resampled = [by_year[rng.integers(0, len(by_year), len(by_year))].reshape(truth.shape) for _ in range(SAMPLES)]
    print(f"{name:26}" + "".join(f"{way:>12}" for way in ways) + f"{'truth':>12}")
    for measure, of in measures(fine, row.wet).items():
        noise = np.std([of(one) for one in resampled])
        apart = [(of(way.transpose("time", "loc").values) - of(truth)) / noise for way in ways.values()]
        print(f"{measure:26}" + "".join(f"{one:12.1f}" for one in apart) + f"{of(truth):12.4g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("variables", nargs="+")
    given = parser.parse_args()
    for variable in given.variables:
        compare(given.folder, variable)
