"""Raw files and configurations of small productions with any set of daily variables, all of them invented."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

FIRST, LAST = 1991, 1994
PERIOD, KNOWN = [str(FIRST), str(LAST)], ["1991", "1992"]
UNITS = {"tas": "K", "tasmax": "K", "tasmin": "degC", "pr": "mm d-1", "hurs": "%", "huss": "kg kg-1", "ps": "hPa",
         "sfcWind": "m s-1", "uas": "m s-1", "vas": "m s-1", "ozone": "ug m-3"}  # fmt: skip
# What multiplies; the rest is added.
_MULTIPLIED = ("pr", "dtr", "huss", "sfcWind")
_COLUMNS = (
    "id", "type", "mip_era", "activity", "institution", "source", "experiment", "member", "xrfreq", "variable",
    "domain", "date_start", "date_end", "processing_level", "format", "path",
)  # fmt: skip


def weather(name: str, lat: np.ndarray, lon: np.ndarray, *, seed: int, wrong: float) -> xr.DataArray:
    """A variable of 1991-1994 without leap days, (time, lat, lon), with the error of a model."""
    time = xr.date_range(f"{FIRST}-01-01", f"{LAST}-12-31", calendar="noleap", use_cftime=True)
    draw = np.random.default_rng([seed, *name.encode()])
    shape = time.size, lat.size, lon.size
    season = -np.cos(2 * np.pi * np.arange(time.size) / 365)[:, None, None] + 0.1 * np.add.outer(lat, lon)[None] / 10
    noise = draw.normal(size=shape)
    warm = 280 + 10 * season + 3 * noise + wrong
    values = {
        "tas": warm,
        "tasmax": warm + 4,
        "tasmin": warm - 4 - 273.15,
        "pr": np.maximum(draw.gamma(0.6, 4, shape) - 0.5 + wrong / 10, 0),
        "hurs": np.clip(75 + 8 * noise + 3 * wrong, 20, 103),
        "huss": 6e-3 * np.exp(0.3 * season + 0.25 * noise + 0.05 * wrong),
        "ps": 1000 + 8 * noise + wrong,
        "sfcWind": draw.gamma(4, 1 + wrong / 10, shape),
        "uas": 4 * noise + wrong,
        "vas": 3 * noise - wrong,
        "ozone": 40 + 5 * season + 4 * noise + wrong,
    }[name]
    coords = {
        "time": time,
        "lat": ("lat", lat, {"units": "degrees_north", "standard_name": "latitude"}),
        "lon": ("lon", lon, {"units": "degrees_east", "standard_name": "longitude"}),
    }
    return xr.DataArray(values.astype("f4"), coords, name=name, attrs={"units": UNITS[name]})


def write_raw(folder: Path, variables: Sequence[str]) -> None:
    """Write a reference of 5 x 7 cells, two of them sea, and a simulation of 7 x 6, with their catalogues."""
    folder.mkdir(parents=True)
    grids = {
        "reference": (np.arange(45.25, 47.5, 0.5), np.arange(-66.75, -63.5, 0.5)),
        "simulation": (np.arange(40.5, 54, 2.0), np.arange(-72.0, -57, 2.5)),
    }
    for number, (kind, (lat, lon)) in enumerate(grids.items()):
        paths = {}
        for name in variables:
            data = weather(name, lat, lon, seed=number, wrong=1.5 * number)
            if kind == "reference":
                data[:, 0, :2] = np.nan
            paths[name] = folder / f"{kind}-{name}.nc"
            data.to_netcdf(paths[name])
        write_catalogue(folder, kind, paths)


def write_catalogue(folder: Path, kind: str, paths: Mapping[str, Path]) -> None:
    """Write the catalogue of a reference or a simulation, of the file of each variable."""
    with (folder / f"{kind}.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, _COLUMNS)
        table.writeheader()
        table.writerows(_row(kind, name, path) for name, path in paths.items())
    content = {"id": kind, "catalog_file": f"{kind}.csv", "assets": {"column_name": "path"}, "attributes": []}
    (folder / f"{kind}.json").write_text(json.dumps({"esmcat_version": "0.1.0", **content}))


def _row(kind: str, name: str, path: Path) -> dict[str, str]:
    is_simulation = kind == "simulation"
    run = {"mip_era": "CMIP6", "activity": "ScenarioMIP", "experiment": "ssp370", "member": "r1i1p1f1"}
    return {
        **(run if is_simulation else {}),
        "id": "CMIP6_ScenarioMIP_X_Any_ssp370_r1i1p1f1_gn" if is_simulation else "X_Any-Reference",
        "type": kind,
        "institution": "X",
        "source": "Any" if is_simulation else "Any-Reference",
        "xrfreq": "D",
        "variable": f"('{name}',)",
        "domain": "gn" if is_simulation else "NAM",
        "date_start": f"{FIRST}-01-01",
        "date_end": f"{LAST}-12-31",
        "processing_level": "raw",
        "format": "nc",
        "path": str(path),
    }


def configuration(
    folder: Path, raw: Path, adjusted: Sequence[str], *, v2: bool, more: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write the configuration of a production that extracts and adjusts variables; `more` is a file over it."""
    box = {"lon_bnds": [-67, -63.5], "lat_bnds": [45, 47.5]}

    def adjustment(name: str) -> dict[str, Any]:
        trend = {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}
        group = {"group": "time.dayofyear", "window": 31, **({"add_dims": ["realization"]} if v2 else {})}
        kind = {"kind": "*" if name in _MULTIPLIED else "+", "nquantiles": 50}
        wet = {"adapt_freq": {"thresh": "1 mm d-1"}, "jitter_under": {"thresh": "0.01 mm d-1"}} if name == "pr" else {}
        return {
            "training_args": {"period": KNOWN, "group": group, "xclim_train_args": kind, **wet},
            "adjusting_args": {
                "periods": PERIOD,
                "bias_adjust_institution": "X",
                "xclim_adjust_args": {"interp": "nearest", "extrapolation": "constant", "detrend": trend},
            },
        }

    search = {"variables_and_freqs": dict.fromkeys(adjusted, "D"), "periods": PERIOD, "allow_conversion": True}
    content: dict[str, Any] = {
        "paths": {"tmpdir": str(folder / "work"), "final": str(folder / "final")},
        "domain": {"name": "NAM", "method": "bbox", "tile_buffer": 2, **box},
        "custom": {
            "ref_period": PERIOD,
            "sim_period": PERIOD,
            "working_chunks": {"loc": 20},
            "final_chunks": {"lat": 2, "lon": 3},
            **({} if v2 else {"regions": {"all": {"name": "all", "method": "bbox", **box}}}),
        },
        **({"subregions": {"n": 19}} if v2 else {}),
        "extraction": {
            "ref_source": "Any-Reference",
            **{
                kind: {"search_data_catalogs": {"data_catalogs": [str(raw / f"{kind}.json")], **search}}
                for kind in ("reference", "simulation")
            },
        },
        "biasadjust": {"variables": {name: adjustment(name) for name in adjusted}},
        "health_checks": {"freq": "D", "raise_on": ["freq", "land"]},
    }
    files = [folder / "config.yml"]
    files[0].write_text(yaml.safe_dump(content, sort_keys=False))
    if more:
        files.append(folder / "more.yml")
        files[1].write_text(yaml.safe_dump(more, sort_keys=False))
    return files
