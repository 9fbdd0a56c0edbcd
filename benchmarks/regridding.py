"""Measure regridding: the cascade as one matrix against its stages one after another, and conservative against CDO.

A production-like case: a model of 88 × 64 cells over North America → 172 × 75 → 344 × 150 → stacked points, all
bilinear with inverse-distance extrapolation. One process, no dask: the cost of a block. Last line: one JSON object.

    python benchmarks/regridding.py [--points 20000] [--days 365] [--repeat 3]

With `--conservative`, the same model or a rotated grid of `--columns` columns goes to cells of 0.1° over North America,
by our weights and by CDO's `gencon` and `remap`, with one thread, in CPU seconds; CDO reads and writes files.

    python benchmarks/regridding.py --conservative [--days 30] [--columns 200]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import xarray as xr

from espo_luigi.science.conservative import cells_of, conservative_weights
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


def rotated(columns: int) -> Grid:
    """A grid of square cells around 47.5 °N 97 °W, with corners, over 60 degrees of its equator."""
    step = 60 / columns
    edges = [np.arange(-n / 2, n / 2 + 1) * step for n in (columns * 3 // 4, columns)]

    def turned(rlat: np.ndarray, rlon: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        up, along = np.deg2rad(np.meshgrid(rlat, rlon, indexing="ij"))
        tilt = np.deg2rad(47.5)
        x, y, z = np.cos(up) * np.cos(along), np.cos(up) * np.sin(along), np.sin(up)
        north, out = x * np.sin(tilt) + z * np.cos(tilt), x * np.cos(tilt) - z * np.sin(tilt)
        return np.rad2deg(np.arcsin(north)), np.rad2deg(np.arctan2(y, out)) - 97

    around = [
        np.stack([c[:-1, :-1], c[:-1, 1:], c[1:, 1:], c[1:, :-1]], axis=-1).astype("float64") for c in turned(*edges)
    ]
    return Grid(*turned(*((e[1:] + e[:-1]) / 2 for e in edges)), "curvilinear", bounds=(around[0], around[1]))


def write(grid: Grid, values: np.ndarray, path: Path) -> None:
    """Write (time, y, x) for CDO."""
    dims = ("lat", "lon") if grid.layout == "rectilinear" else ("y", "x")
    ds = xr.Dataset({"pr": (("time", *dims), values.astype("float32"), {"coordinates": "lat lon"})})
    for number, (name, centres) in enumerate({"lat": grid.lat, "lon": grid.lon}.items()):
        attrs = {"units": f"degrees_{'north' if name == 'lat' else 'east'}", "bounds": f"{name}_vertices"}
        ds[name] = ((name,) if centres.ndim == 1 else dims, centres, attrs)
        if grid.bounds:
            ds[f"{name}_vertices"] = ((*dims, "vertices"), grid.bounds[number])
    ds["time"] = ("time", np.arange(len(values)), {"units": "days since 2000-01-01"})
    ds.to_netcdf(path)


def cpu_seconds(run: Callable[[], object]) -> float:
    """CPU seconds of this process and of those that it ran."""

    def so_far() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)

    start = so_far()
    run()
    return so_far() - start


def measure_conservative(source: Grid, days: int) -> dict[str, float]:
    target = Grid(np.arange(15.05, 75, 0.1), np.arange(-139.95, -55, 0.1), "rectilinear")
    block = np.random.default_rng(1).gamma(0.5, 5, (days, *source.shape)).astype("float32")
    made = []
    build = cpu_seconds(lambda: made.append(conservative_weights(cells_of(source), cells_of(target), normed=True)))
    matrix = made[0]
    apply = cpu_seconds(lambda: apply_weights(block, matrix, target.shape))
    found = apply_weights(block[:1], matrix, target.shape)[0]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(source, block, folder / "source.nc")
        write(target, np.zeros((1, *target.shape)), folder / "target.nc")

        def cdo(*words: str) -> None:
            subprocess.run(["cdo", "-s", "-P", "1", *words], cwd=folder, check=True, capture_output=True)

        cdo_build = cpu_seconds(lambda: cdo("gencon,target.nc", "source.nc", "weights.nc"))
        cdo_apply = cpu_seconds(lambda: cdo("remap,target.nc,weights.nc", "source.nc", "out.nc"))
        with xr.open_dataset(folder / "out.nc", decode_times=False) as out:
            differs = float(np.nanmax(np.abs(out["pr"].values[0] - found)))
    return {
        "cells_of_source": source.size,
        "cells_of_target": target.size,
        "nnz": int(matrix.nnz),
        "weights_cpu_s": build,
        "apply_cpu_s": apply,
        "cdo_weights_cpu_s": cdo_build,
        "cdo_apply_cpu_s": cdo_apply,
        "peak_mib": memory,
        "largest_difference_mm": differs,
        "largest_value_mm": float(block[0].max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--conservative", action="store_true")
    parser.add_argument("--columns", type=int, default=0, help="of a rotated source; by default the model's grid")
    options = parser.parse_args()
    if options.conservative:
        measured = measure_conservative(rotated(options.columns) if options.columns else SOURCE, options.days)
    else:
        measured = measure(options.points, options.days, options.repeat)
    result = {key: float(f"{value:.4g}") for key, value in measured.items()}
    for key, value in result.items():
        print(f"{key:28} {value:>12}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
