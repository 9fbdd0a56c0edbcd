"""Conservative weights and their product against CDO's: CPU seconds, memory and differences, on one thread.

The source is a model of 88 x 64 cells over North America, or a rotated grid of `--columns` columns; the target has
cells of 0.1°. CDO's `gencon` and `remap` read and write files, too. The last line is JSON.

    python benchmarks/regridding.py [--days 30] [--columns 200]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import measuring
import numpy as np
import xarray as xr

from espo_luigi.science.conservative import cells_of, conservative_weights
from espo_luigi.science.regrid import apply_weights
from espo_luigi.science.sphere import Grid

SOURCE = Grid(np.linspace(8.5, 85.5, 64), np.linspace(178, 352, 88), "rectilinear")


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
    start = measuring.cpu_seconds()
    run()
    return measuring.cpu_seconds() - start


def measure(source: Grid, days: int) -> dict[str, float]:
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
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--columns", type=int, default=0, help="of a rotated source; by default the model's grid")
    options = parser.parse_args()
    measured = measure(rotated(options.columns) if options.columns else SOURCE, options.days)
    result = {key: float(f"{value:.4g}") for key, value in measured.items()}
    for key, value in result.items():
        print(f"{key:28} {value:>12}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
