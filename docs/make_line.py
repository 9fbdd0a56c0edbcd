"""Make the home page's six pictures of the line, docs/assets/line-*.png: ``python docs/make_line.py DEMO``.

DEMO is the folder of a finished run of the demo, `espo-demo`, with ``keep: [regridded]``. Each picture has a ground of
its own, so that it is readable on a dark page, too.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
import xarray as xr
from make_figure import on_map
from matplotlib.figure import Figure
from PIL import Image

from espo_luigi.config import load
from espo_luigi.methods import blocks
from espo_luigi.store import open_store

HERE = Path(__file__).parent
YEARS = slice("1991", "2020")
# January's tasmax in °C, on all maps; the box of the demo.
COLOURS = {"vmin": -16, "vmax": 2, "cmap": "RdYlBu_r"}
WEST, EAST, SOUTH, NORTH = -72.75, -62.75, 44.25, 49.25
RAW, REFERENCE, ADJUSTED = "#c0392b", "#555555", "#1f6fb2"


def main(demo: Path) -> None:
    final = demo / "final"
    (product,) = final.glob("final/NAM/day+*Demo-NoLeap*.zarr.zip")
    scenario = open_store(product).tasmax
    (regridded,) = final.glob("regridded/day+*Demo-NoLeap*+south+*.zarr.zip")
    (reference,) = final.glob("reference/*+south+noleap.zarr")
    cell, truth = (open_store(path).tasmax.isel(loc=slice(100, 101)).load() for path in (regridded, reference))
    pictures: dict[str, Callable[[Any], None]] = {
        "raw": lambda axes: mapped(axes, january(raw_file(demo))),
        "regridded": lambda axes: mapped(axes, on_map(final.glob("regridded/day+*Demo-NoLeap*.zarr.zip"))),
        "trained": lambda axes: draw_factors(axes, cell, truth),
        "adjusted": lambda axes: draw_cycle(axes, cell, truth, scenario),
        "cleaned": lambda axes: mapped(axes, january(scenario)),
        "report": lambda axes: draw_improvement(axes, final / "report" / "report-improvement.csv"),
    }
    for name, draw in pictures.items():
        figure = Figure(figsize=(3.2, 2.1), facecolor="white", layout="constrained")
        axes = figure.subplots()
        axes.tick_params(labelsize=7)
        draw(axes)
        save(figure, HERE / "assets" / f"line-{name}.png")


def save(figure: Figure, path: Path) -> None:
    """Write a figure in 32 colours, which makes the file small."""
    kept = io.BytesIO()
    figure.savefig(kept, dpi=130)
    Image.open(kept).convert("RGB").quantize(32).save(path, optimize=True)


def raw_file(demo: Path) -> xr.DataArray:
    (path,) = demo.glob("raw/simulation/CMIP/**/tasmax_day_Demo-NoLeap_*.nc")
    return xr.open_dataset(path, decode_times=xr.coders.CFDatetimeCoder(use_cftime=True)).tasmax


def january(tasmax: xr.DataArray) -> xr.DataArray:
    """Return the mean tasmax of January in °C."""
    chosen = tasmax.sel(time=YEARS)
    return chosen.sel(time=chosen.time.dt.month == 1).mean("time").load() - 273.15


def mapped(axes: Any, field: xr.DataArray) -> None:
    """Draw a map; longitudes as -180..180, cells without values grey."""
    lons = (field.lon.values + 180) % 360 - 180
    axes.set_facecolor("#dddddd")
    axes.pcolormesh(lons, field.lat, field.transpose("lat", "lon"), **COLOURS)
    axes.set(xlim=(WEST, EAST), ylim=(SOUTH, NORTH), xticks=[], yticks=[])


def draw_factors(axes: Any, simulation: xr.DataArray, reference: xr.DataArray) -> None:
    """Draw what training gives for a cell: a factor for each quantile and day of the year."""
    settings = load([HERE.parent / "config" / "demo" / name for name in ("config.yml", "paths.yml")])
    arguments = settings.biasadjust.variables["tasmax"].training_args.arguments()
    trained = blocks.train(reference, simulation.sel(time=YEARS), **arguments)
    factors = trained.af.squeeze().transpose("quantiles", "dayofyear")
    axes.pcolormesh(factors.dayofyear, factors["quantiles"], factors, vmin=-3, vmax=3, cmap="RdBu_r")
    axes.set_xlabel("day of the year", fontsize=7)
    axes.set_ylabel("quantile", fontsize=7)


def draw_cycle(axes: Any, simulation: xr.DataArray, reference: xr.DataArray, scenario: xr.DataArray) -> None:
    """Draw a cell's annual cycle: reference, raw and adjusted."""
    place = {name: float(reference[name].squeeze()) for name in ("lat", "lon")}
    series = {
        ("raw", RAW): simulation.squeeze(),
        ("reference", REFERENCE): reference.squeeze(),
        ("adjusted", ADJUSTED): scenario.sel(place).load(),
    }
    for (name, colour), values in series.items():
        months = values.sel(time=YEARS).groupby("time.month").mean() - 273.15
        style = {"linestyle": "--", "linewidth": 2} if name == "adjusted" else {"linewidth": 1.5}
        axes.plot(months.month, months, color=colour, label=name, **style)
    axes.legend(fontsize=7, frameon=False)
    axes.set_xticks([1, 4, 7, 10], ["Jan", "Apr", "Jul", "Oct"])
    axes.set_ylabel("tasmax (°C)", fontsize=7)


def draw_improvement(axes: Any, table: Path) -> None:
    """Draw the share of cells that the adjustment brought nearer to the reference, by property."""
    with table.open() as file:
        row = next(row for row in csv.DictReader(file) if row["domain"] == "Highland" and "NoLeap" in row["simulation"])
    names = ["mean_tasmax", "q99_tasmax", "mean_pr", "q99_pr", "dry_spell_freq", "corr_tasmax_pr"]
    axes.barh(np.arange(6), [100 * float(row[name]) for name in names], color=ADJUSTED)
    axes.set_yticks(np.arange(6), names)
    axes.invert_yaxis()
    axes.set_xlabel("cells improved (%)", fontsize=7)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
