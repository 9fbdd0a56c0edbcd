"""Days of a year of hours: CPU seconds against those of reading the files alone, and memory; each in its process.

Files are months of temperature as archives have them, packed or plain. The last line is JSON; `ratio` is that of CPU
seconds, without those of imports.

    python benchmarks/daily.py [--cells 10000] [--years 1] [--variables tas] [--plain]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path

import dask
import measuring
import numpy as np
import pandas as pd
import xarray as xr

from espo_luigi import store
from espo_luigi.catalog import Catalog
from espo_luigi.catalog.build import make_catalog
from espo_luigi.catalog.hours import open_days
from espo_luigi.store import Marker


def write(folder: Path, cells: int, years: int, plain: bool) -> None:
    """Write months of hours on a square grid."""
    side = math.isqrt(cells)
    lat, lon = np.linspace(60, 60 - side / 10, side), np.linspace(-90, -90 + side / 10, side)
    draw = np.random.default_rng(1)
    field = draw.normal(0, 3, (side, side)).cumsum(0).cumsum(1) / side
    for month in pd.date_range("2000-01-01", periods=12 * years, freq="MS"):
        times = pd.date_range(month, month + pd.offsets.MonthBegin(1), freq="h", inclusive="left")
        noise = draw.normal(0, 1, (times.size, 1, 1)) + draw.normal(0, 0.2, (times.size, side, side))
        tas = (280 + field + noise).astype("float32")
        ds = xr.Dataset({"tas": (("time", "lat", "lon"), tas, {"units": "K"})}, {"time": times, "lat": lat, "lon": lon})
        packed = {
            "dtype": "int16",
            "_FillValue": -32768,
            "scale_factor": 0.001,
            "add_offset": 280.0,
            "zlib": True,
            "complevel": 1,
        }
        how = {} if plain else packed | {"chunksizes": (min(187, times.size), *(min(side, 64),) * 2)}
        ds.to_netcdf(folder / f"{month:%Y%m}.nc", encoding={"tas": how})


def work(kind: str, folder: Path, years: int, variables: list[str]) -> None:
    """Import, and then only read (`read`), or make days (`days`) in two threads, as jobs do."""
    if kind == "import":
        return
    catalogue = folder / "catalogue.json"
    if kind == "read":
        with dask.config.set(scheduler="threads", num_workers=2):
            for path in sorted(folder.glob("*.nc")):
                with xr.open_dataset(path, chunks={"time": 187}) as ds:
                    ds["tas"].data.map_blocks(lambda block: block[:1, :1, :1], chunks=(1, 1, 1)).compute()
        return
    periods = ["2000", str(1999 + years)]
    wanted = dict.fromkeys(variables, "D")
    (match,) = (
        Catalog.from_files([catalogue])
        .search(variables_and_freqs=wanted, periods=periods, allow_resampling=True)
        .values()
    )
    region = {"name": "all", "lat_bnds": [-90, 90], "lon_bnds": [-180, 180]}
    with dask.config.set(scheduler="threads", num_workers=2):
        days = open_days(match, region=region, accumulation={}, xr_open_kwargs={})
        store.write_store(days, folder / "daily.zarr", Marker("Daily"), by_place=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--years", type=int, default=1)
    parser.add_argument("--variables", nargs="+", default=["tas"])
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        work(given.only[0], Path(given.only[1]), given.years, given.variables)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, given.cells, given.years, given.plain)
        make_catalog(folder, folder / "catalogue.json", source="Hours")
        words = ["--years", str(given.years), "--variables", *given.variables]
        taken = {}
        for kind in ("import", "read", "days"):
            taken[kind], _ = measuring.script(__file__, *words, "--only", kind, folder)
            print(kind, taken[kind].rounded(), file=sys.stderr)
        idle = taken["import"].cpu_seconds
        ratio = (taken["days"].cpu_seconds - idle) / (taken["read"].cpu_seconds - idle)
        print(json.dumps({kind: one.rounded() for kind, one in taken.items()} | {"ratio": round(ratio, 2)}))


if __name__ == "__main__":
    main()
