"""Measure regridding: the cascade as one matrix against its stages one after another.

A production-like case: a model of 88 × 64 cells over North America → 172 × 75 → 344 × 150 → stacked points, all
bilinear with inverse-distance extrapolation. One process, no dask: the cost of a block. Last line: one JSON object.

    python benchmarks/regridding.py [--points 20000] [--days 365] [--repeat 3]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from espo_luigi.science.regrid import Stage, apply_weights, cascade
from espo_luigi.science.sphere import Extrapolation, Grid, weights_and_outside

IDW = Extrapolation()
SOURCE = Grid(np.linspace(8.5, 85.5, 64), np.linspace(178, 352, 88), "rectilinear")
REG1 = Grid(np.arange(9.5, 84), np.arange(179.55, 351), "rectilinear")
REG2 = Grid(np.arange(9.15, 84, 0.5), np.arange(179.29, 351, 0.5), "rectilinear")


def stacked_points(count: int) -> Grid:
    rng = np.random.default_rng(0)
    return Grid(rng.uniform(10, 83.4, count), rng.uniform(-179, -10, count), "points")


def curvilinear(source: Grid) -> Grid:
    return Grid(*source.coordinates(), "curvilinear")


def seconds(repeat: int, run: Callable[[], object]) -> float:
    """Best wall time of ``repeat`` runs."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def measure(points: int, days: int, repeat: int) -> dict[str, float]:
    grids = [SOURCE, REG1, REG2, stacked_points(points)]
    stages = [Stage(grid, IDW) for grid in grids[1:]]
    build = seconds(repeat, lambda: cascade(SOURCE, stages))
    build_curvilinear = seconds(repeat, lambda: cascade(curvilinear(SOURCE), stages))
    product = cascade(SOURCE, stages)[0]
    matrices = [weights_and_outside(source, target, IDW)[0] for source, target in pairwise(grids)]
    block = np.random.default_rng(1).normal(280, 10, (days, *SOURCE.shape)).astype("float32")

    def stage_by_stage() -> np.ndarray:
        values = block
        for matrix, grid in zip(matrices, grids[1:], strict=True):
            values = apply_weights(values.reshape(days, 1, -1), matrix, grid.shape)
        return values

    # Float32 between the stages, as xESMF has it, costs some round-off.
    np.testing.assert_allclose(apply_weights(block, product, (points,)), stage_by_stage(), rtol=1e-6)
    one = seconds(repeat, lambda: apply_weights(block, product, (points,))) / days * 1000
    many = seconds(repeat, stage_by_stage) / days * 1000
    return {
        "points": points,
        "build_s": build,
        "build_curvilinear_s": build_curvilinear,
        "nnz": int(product.nnz),
        "nnz_of_stages": int(sum(matrix.nnz for matrix in matrices)),
        "one_matrix_s_per_1000_days": one,
        "stages_s_per_1000_days": many,
        "stages_over_one_matrix": many / one,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    result = {key: round(value, 4) for key, value in measure(options.points, options.days, options.repeat).items()}
    for key, value in result.items():
        print(f"{key:28} {value:>12}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
