"""Time the ensemble's statistics and the robustness of changes: 30 simulations, 100 000 cells, bounded memory.

    python benchmarks/ensemble.py [--members 30] [--cells 25000 100000]

Invented changes by three horizons, and yearly values of 30 years, lie in a Zarr store for each simulation, in chunks of
50 x 50 cells. A process for each number of cells computes percentiles, mean, spread, agreement and the robustness of
IPCC AR6, and writes them. Two simulations share a model in `--votes`, where xclim goes from cell to cell. Prints
seconds, CPU seconds and peak memory; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path

import measuring
import numpy as np
import xarray as xr

SIDE = 50
HORIZONS = ["1991-2020", "2021-2050", "2071-2100"]


def draw(folder: Path, members: int, cells: int) -> None:
    """Write the stores of each member."""
    rows = -(-cells // 500)
    coords = {"lat": np.arange(rows) / 10, "lon": np.arange(500) / 10}
    dates = xr.date_range("1991-01-01", periods=30, freq="YS")
    for member in range(members):
        random = np.random.default_rng(member)
        for name, dim, values in (("change", "horizon", HORIZONS), ("yearly", "time", dates)):
            field = random.normal(0.5, 1, (len(values), rows, 500)).astype("float32")
            attrs = {"units": "K", "delta_kind": "abs."}
            ds = xr.Dataset({"t": ((dim, "lat", "lon"), field, attrs)}, {dim: values, **coords})
            ds.attrs["cat:xrfreq"] = "YS-JAN"
            chunks = {"t": {"chunks": (len(values), SIDE, SIDE)}}
            ds.to_zarr(folder / f"{name}-{member}.zarr", encoding=chunks, zarr_format=2)


def compute(folder: Path, members: int, votes: bool) -> None:
    """Compute and write what rule Ensemble does."""
    from espo_luigi.science.outcomes.climatology import by_year
    from espo_luigi.science.outcomes.ensemble import MEMBER, agreement, join, present, statistics, variability, weigh

    opened = {
        name: [xr.open_zarr(folder / f"{name}-{member}.zarr") for member in range(members)]
        for name in ("change", "yearly")
    }
    ens = join({f"m{i}": ds for i, ds in enumerate(opened["change"])})
    there = present(ens)
    weight = weigh(there["t"], {f"m{i}": str(i // (1 + votes)) if i < 2 else f"m{i}" for i in range(members)})
    thresholds = xr.concat([variability(by_year(ds)["t"], 30) for ds in opened["yearly"]], ens[MEMBER])
    made = statistics(ens, there, weights={"t": weight})
    shares = agreement(ens["t"], there["t"], thresholds=thresholds.broadcast_like(ens["t"]), weights=weight)
    made = made.merge(shares, compat="override").drop_encoding().chunk(lat=SIDE, lon=SIDE)
    made.drop_attrs().to_zarr(folder / "made.zarr", mode="w", zarr_format=2)


def main() -> None:
    """Run each number of cells in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=30)
    parser.add_argument("--cells", type=int, nargs="+", default=[25_000, 100_000])
    parser.add_argument("--votes", action="store_true", help="two simulations are of one model")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.folder:
        warnings.simplefilter("ignore")
        compute(asked.folder, asked.members, asked.votes)
        return
    results = {}
    for cells in asked.cells:
        with tempfile.TemporaryDirectory() as folder:
            draw(Path(folder), asked.members, cells)
            words = ["--folder", folder, "--members", asked.members, *["--votes"] * asked.votes]
            results[cells] = measuring.script(__file__, *words)[0].rounded()
            print(f"{cells:7} cells {results[cells]}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
