"""Time twenty indicators of a store: our blocks in memory beside xclim on Dask, and the floor of reading.

    python benchmarks/indicators.py [--cells 2500] [--years 151] [--percentiles]

Invented daily tas, tasmax, tasmin and pr in the noleap calendar lie in a Zarr store, chunked as products are: four
years of 50 x 50 cells. Each way then reads the same store in a process of its own: ours; xclim, indicator by indicator
on the lazy store, as its documentation has it; reading alone. Prints seconds, CPU seconds and peak memory of each; the
last line is JSON. `--ways` chooses. With `--percentiles`, it is the days beyond percentiles of 1981-2010, bootstrap
included, of which xclim, here on data in memory, takes some seconds a cell.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import xarray as xr

WAYS = ("ours", "xclim", "read")
DAYS_OF_A_CHUNK, SIDE_OF_A_CHUNK = 1460, 50
# Cells of a block in memory with all of its days.
CELLS_OF_A_BLOCK = 250

MODULE = """
module: benchmark
indicators:
  tg_mean: {base: tg_mean}
  tx_mean: {base: tx_mean}
  tx_max: {base: tx_max}
  tn_min: {base: tn_min}
  tx_days_above_30: {base: tx_days_above, parameters: {thresh: 30 degC}}
  frost_days: {base: frost_days}
  ice_days: {base: ice_days}
  tropical_nights: {base: tropical_nights}
  growing_degree_days: {base: growing_degree_days}
  heating_degree_days: {base: heating_degree_days}
  cooling_degree_days: {base: cooling_degree_days}
  dtr: {base: dtr}
  freezethaw_spell_frequency: {base: freezethaw_spell_frequency}
  heat_wave_frequency: {base: heat_wave_frequency}
  growing_season_length: {base: growing_season_length}
  prcptot: {base: prcptot}
  wetdays: {base: wetdays}
  rx1day: {base: rx1day}
  rx5day: {base: max_n_day_precipitation_amount, parameters: {window: 5}}
  cdd: {base: cdd}
"""
BASE = ("1981", "2010")
WITH_PERCENTILES = """
module: benchmark
indicators:
  tx90p: {base: tx90p}
  tx10p: {base: tx10p}
  tn90p: {base: tn90p}
  tn10p: {base: tn10p}
  wsdi: {base: warm_spell_duration_index, parameters: {bootstrap: false}}
  csdi: {base: cold_spell_duration_index, parameters: {bootstrap: false}}
"""


def draw(store: Path, years: int, side: int) -> None:
    """Write the store, chunk of years by chunk of years."""
    random = np.random.default_rng(1)
    days = 365 * years
    dates = xr.date_range("1950-01-01", periods=days, calendar="noleap", use_cftime=True)
    for first in range(0, days, DAYS_OF_A_CHUNK):
        at = np.arange(first, min(first + DAYS_OF_A_CHUNK, days))
        shape = (at.size, side, side)
        season = np.sin((at - 105) * 2 * np.pi / 365)[:, None, None]
        weather = random.normal(0, 5, (at.size, 1, 1)) + random.normal(0, 1, shape)
        tasmax = (283 + 14 * season + weather).round(1)
        tasmin = (tasmax - random.gamma(5, 2, shape)).round(1)
        pr = np.where(random.random(shape) < 0.5, random.gamma(0.7, 6, shape).round(1), 0) / 86400
        ds = xr.Dataset(coords={"time": dates[at], "lat": 45 + np.arange(side) / 10, "lon": np.arange(side) / 10})
        for name, values, method in (
            ("tas", (tasmax + tasmin) / 2, "mean"),
            ("tasmax", tasmax, "maximum"),
            ("tasmin", tasmin, "minimum"),
            ("pr", pr, "mean"),
        ):
            kind = "precipitation_flux" if name == "pr" else "air_temperature"
            attrs = {"units": "kg m-2 s-1" if name == "pr" else "K", "standard_name": kind}
            attrs["cell_methods"] = f"time: {method} within days"
            ds[name] = ("time", "lat", "lon"), values.astype(np.float32), attrs
        chunks = (DAYS_OF_A_CHUNK, min(side, SIDE_OF_A_CHUNK), min(side, SIDE_OF_A_CHUNK))
        if first:
            ds.to_zarr(store, append_dim="time", zarr_format=2)
        else:
            encoding: dict[str, Any] = {name: {"chunks": chunks} for name in ds.data_vars}
            ds.to_zarr(store, encoding={**encoding, "time": {"units": "days since 1950-01-01"}}, zarr_format=2)


def xclim(store: Path, module: Path) -> None:
    """Compute all indicators by xclim on Dask in one computation."""
    from xclim import build_indicator_module_from_yaml
    from xclim.core.calendar import percentile_doy

    ds = xr.open_zarr(store)
    if "tx90p" in module.read_text():  # on Dask, its bootstrap has no end in minutes, or ends in an error
        ds = ds.load()
    made = []
    for name, one in build_indicator_module_from_yaml(module).iter_indicators():
        given: dict[str, Any] = {}
        for key in (key for key in one.parameters if key.endswith("_per")):
            days = ds[key.removesuffix("_per")].sel(time=slice(*BASE))
            level = 90 if "90" in name or name == "wsdi" else 10
            given[key] = percentile_doy(days, per=level)
            given |= {"bootstrap": True} if "bootstrap" in one.parameters else {}
        made.append(one(ds=ds, **given))
    xr.merge([data.to_dataset() for data in made], compat="override").load()


def read(store: Path, module: Path) -> None:
    """Read all values."""
    import dask

    ds = xr.open_zarr(store)
    dask.compute([data.data.sum() for data in ds.data_vars.values()])


def ours(store: Path, module: Path) -> None:
    """Compute all indicators in blocks of cells."""
    from espo_luigi.science.outcomes.indicators import compute_indicators, load_indicators

    ds = xr.open_zarr(store)
    made = compute_indicators(ds, load_indicators(str(module)), cells_in_a_block=CELLS_OF_A_BLOCK, base_period=BASE)
    made["YS-JAN"].load()


def main() -> None:
    """Make the store, and run each way in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=2500)
    parser.add_argument("--years", type=int, default=151)
    parser.add_argument("--percentiles", action="store_true", help="days beyond percentiles")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--folder", type=Path, help="keeps the store there")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp())
    store, module = folder / "daily.zarr", folder / "benchmark.yml"
    if asked.way:
        warnings.simplefilter("ignore")
        globals()[asked.way](store, module)
        return
    if not store.exists():
        draw(store, asked.years, round(asked.cells**0.5))
        module.write_text(WITH_PERCENTILES if asked.percentiles else MODULE)
    results = {}
    for way in asked.ways:
        results[way] = measuring.script(__file__, "--way", way, "--folder", folder)[0].rounded()
        print(f"{way:6} {results[way]}", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
