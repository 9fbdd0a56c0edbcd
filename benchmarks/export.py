"""How fast a product is exported: MB of values by second of one CPU, and the peak of memory, beside other writers.

    python benchmarks/export.py [--years 4] [--cells 150]

An invented product (a yearly cycle, weather and noise, a quarter of sea) is packed as a run packs its archives. Each
writer then makes the same file in a process of its own, once: ours; `xarray.to_netcdf` of the same archive, block by
block; `nccopy` and `ncks`, which read no Zarr, of an uncompressed NetCDF file with the same values. All have the same
chunks, deflate 1 and shuffle. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import measuring
import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.export.netcdf import FILL_VALUE, Layout, described, write_netcdf

CHUNKS = {"Y": 50, "X": 50}


def product(years: int, cells: int) -> xr.Dataset:
    """Daily temperatures of cells x cells, a quarter of them sea."""
    time = xr.date_range("2001-01-01", periods=365 * years, calendar="noleap", use_cftime=True)
    random = np.random.default_rng(1)
    season = 12 * np.sin(2 * np.pi * (np.arange(len(time)) - 105) / 365)
    weather = np.cumsum(random.normal(0, 2, len(time)) - 0.05, 0) % 15
    south_to_north = np.linspace(12, -12, cells)[:, None] + random.normal(0, 2, (cells, cells))
    values = np.empty((len(time), cells, cells), np.float32)
    for day in range(len(time)):
        values[day] = 280 + season[day] + weather[day] + south_to_north + random.normal(0, 1, (cells, cells))
    values[:, : cells // 2, cells // 2 :] = np.nan
    attrs = {"units": "K", "standard_name": "air_temperature", "cell_methods": "time: maximum within days"}
    coords = {
        "time": time,
        "lat": ("lat", np.linspace(40, 55, cells), {"standard_name": "latitude", "units": "degrees_north"}),
        "lon": ("lon", np.linspace(-80, -65, cells), {"standard_name": "longitude", "units": "degrees_east"}),
    }
    return xr.Dataset({"tasmax": (("time", "lat", "lon"), values, attrs)}, coords)


def ours(archive: Path, out: Path) -> None:
    """Write the file as `espo export` does."""
    ds = store.open_store(archive, cut=False)
    write_netcdf(described(ds, "tasmax", "tasmax", {}), out, Layout(CHUNKS))


def by_xarray(archive: Path, out: Path) -> None:
    """Write the file with `to_netcdf`, by dask in one thread."""
    import dask

    ds = store.open_store(archive)
    sizes = (ds.sizes["time"], min(CHUNKS["Y"], ds.sizes["lat"]), min(CHUNKS["X"], ds.sizes["lon"]))
    packed = {"zlib": True, "complevel": 1, "shuffle": True, "chunksizes": sizes, "_FillValue": FILL_VALUE}
    with dask.config.set(scheduler="synchronous"):
        ds.to_netcdf(out, engine="netcdf4", encoding={"tasmax": packed})


def main() -> None:
    """Measure, and print the table and the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--years", type=int, default=4)
    parser.add_argument("--cells", type=int, default=150)
    parser.add_argument("--writer", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.writer:
        name, archive, out = given.writer
        {"ours": ours, "xarray": by_xarray, "nothing": lambda archive, _: store.open_store(archive)}[name](
            Path(archive), Path(out)
        )
        return
    with tempfile.TemporaryDirectory(prefix="export-") as folder:
        report(given.years, given.cells, Path(folder))


def report(years: int, cells: int, folder: Path) -> None:
    """Measure each writer in `folder`."""
    ds, archive, plain = product(years, cells), folder / "archive.zarr.zip", folder / "plain.nc"
    store.write_store(ds, folder / "archive.zarr", store.Marker("a"), chunks={"time": 1460, "lat": 50, "lon": 50})
    store.pack(folder / "archive.zarr", archive)
    days, rows, columns = ds["tasmax"].shape
    ds.to_netcdf(plain, encoding={"tasmax": {"_FillValue": FILL_VALUE}})
    megabytes = ds["tasmax"].nbytes / 1e6
    start = measuring.script(__file__, "--writer", "nothing", archive, folder / "none")[0]
    chunk = f"time/{days},lat/{min(50, rows)},lon/{min(50, columns)}"
    per_dim = [word for part in chunk.split(",") for word in ("--cnk_dmn", part.replace("/", ","))]
    writers = {
        name: [sys.executable, __file__, "--writer", name, str(archive), str(folder / f"{name}.nc")]
        for name in ("ours", "xarray")
    }
    writers |= {
        "nccopy": ["nccopy", "-d", "1", "-s", "-c", chunk, str(plain), str(folder / "nccopy.nc")],
        "ncks": ["ncks", "-O", "-4", "-L", "1", *per_dim, str(plain), str(folder / "ncks.nc")],
    }
    figures = {}
    print(
        f"{megabytes:.0f} MB of float32, in chunks {chunk}; Python's start ({start.cpu_seconds:.1f} s) does not count"
    )
    print(f"{'writer':<10}{'CPU s':>8}{'MB/s':>8}{'peak MB':>10}{'file MB':>10}")
    for name, words in writers.items():
        if shutil.which(words[0]) is None:
            print(f"{name:<10}  not here: install netcdf-bin and nco")
            continue
        taken = measuring.run(*words)[0]
        seconds = taken.cpu_seconds - (start.cpu_seconds if words[0] == sys.executable else 0.0)
        size = (folder / f"{name}.nc").stat().st_size / 1e6
        figures[name] = {
            "cpu_seconds": seconds,
            "mb_s": megabytes / seconds,
            "peak_mb": taken.peak_mib,
            "file_mb": size,
        }
        print(f"{name:<10}{seconds:>8.2f}{megabytes / seconds:>8.1f}{taken.peak_mib:>10.0f}{size:>10.1f}")
    ratios = {name: figures["ours"]["mb_s"] / one["mb_s"] for name, one in figures.items() if name != "ours"}
    print("ours is " + ", ".join(f"{ratio:.2f} times as fast as {name}" for name, ratio in ratios.items()))
    print(json.dumps({"megabytes": megabytes, "start_peak_mb": start.peak_mib, "writers": figures, "ratios": ratios}))


if __name__ == "__main__":
    main()
