"""Small datasets and a small run, of which figures and pages are made."""

import functools
import json
import os
import time
from pathlib import Path

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.report.reading import Diagnosed, Made, RunView
from espo_luigi.science.diagnose import diagnosis, summaries
from espo_luigi.science.variables import VARIABLES

SIMULATIONS = (
    "CMIP6_ScenarioMIP_X_Model-A_ssp585_r1i1p1f1_global",
    "CMIP6_ScenarioMIP_X_Model-B_ssp585_r1i1p1f1_global",
)
DOMAIN = "Magtogoek"
BIAS = "bias: xsdba.measures.BIAS(sim=…)"
RATIO = "ratio: xsdba.measures.RATIO(sim=…)"


def field(values: np.ndarray, long_name: str, units: str, **attrs: str) -> xr.DataArray:
    """A map of which the first cell is sea."""
    land = np.array(values, float)
    land[0, 0] = np.nan
    coords = {
        "lat": ("lat", 45.0 + 0.5 * np.arange(land.shape[0]), {"long_name": "latitude", "units": "degrees_north"}),
        "lon": ("lon", -70.0 + 0.5 * np.arange(land.shape[1]), {"long_name": "longitude", "units": "degrees_east"}),
    }
    return xr.DataArray(land, coords, ("lat", "lon"), attrs={"long_name": long_name, "units": units, **attrs})


def properties(offset: float) -> xr.Dataset:
    """Two properties, so far from the reference, which has 0."""
    shape = np.arange(12.0).reshape(3, 4)
    return xr.Dataset(
        {
            "mean_tasmax": field(280 + shape + offset, "Mean daily maximum temperature", "K", measure="BIAS"),
            "mean_pr": field(
                (2 + shape / 10 + offset / 10) / 86400, "Mean precipitation", "kg m-2 s-1", measure="BIAS"
            ),
        }
    )


def measures(offset: float) -> xr.Dataset:
    """The distance of `properties` from those of the reference."""
    found, reference = properties(offset), properties(0.0)
    attrs = {name: {**da.attrs, "history": BIAS} for name, da in reference.items()}
    return xr.Dataset({name: (found[name] - reference[name]).assign_attrs(attrs[name]) for name in found})


def daily(seed: int, warmer: float = 0.0, years: int = 20) -> xr.Dataset:
    """Daily series of two cells in display units, from 1991 on."""
    random = np.random.default_rng(seed)
    time_axis = xr.date_range("1991-01-01", periods=365 * years, calendar="noleap", use_cftime=True)
    cycle = warmer + 12 * np.sin(2 * np.pi * (np.arange(time_axis.size) - 100) / 365)[:, None]
    tasmax = 10 + cycle + 4 * random.standard_normal((time_axis.size, 2))
    pr = np.where(random.random(tasmax.shape) < 0.4, random.gamma(0.8, 6.0, tasmax.shape), 0.0)
    ds = xr.Dataset(
        {name: (("time", "cell"), values) for name, values in (("tasmax", tasmax), ("tasmin", tasmax - 8), ("pr", pr))},
        {"time": time_axis},
    )
    names = {"tasmax": "Daily maximum temperature", "tasmin": "Daily minimum temperature", "pr": "Precipitation"}
    for name, long_name in names.items():
        ds[name].attrs = {"long_name": long_name, "units": VARIABLES[name].shown_units}
    return ds


@functools.cache
def compared() -> xr.Dataset:
    """The summary of a reference, a raw simulation and a scenario, whose years do not reach 2100."""
    sources = {"reference": daily(1), "raw": daily(2, warmer=2.0), "adjusted": daily(3)}
    found = summaries.compare(sources, period=(1991, 2010), periods=((1991, 2020), (2071, 2100)))
    return found.assign_attrs(cells="2 of 11 land cells")


def write_run(folder: Path) -> RunView:
    """Write all that a page about two simulations in one domain shows; return the view of it."""
    diagnosed = tuple(
        _write_diagnosed(folder, sim_id, offset) for sim_id, offset in zip(SIMULATIONS, (1.0, 3.0), strict=True)
    )
    flags = {sim_id: _write_flags(folder / f"{sim_id}_flags.csv", sim_id == SIMULATIONS[0]) for sim_id in SIMULATIONS}
    for number in range(4):
        write_job(folder / "run", "Train", f"var={number}", started=100.0 + 10 * number)
    made = tuple(
        Made("DiagMeasuresImprovement", f"DiagMeasuresImprovement sim_id={one.sim_id}", (one.improvement,), True)
        for one in diagnosed
    )
    return RunView(
        config_files=(Path("config.yml"),),
        config_hash="abc",
        reference="ERA5-Land",
        simulations=SIMULATIONS,
        domains=(DOMAIN,),
        period=(1991, 2010),
        final=folder,
        workdir=folder / "run",
        engine="slurm",
        products=made,
        diagnosed=diagnosed,
        flags=flags,
    )


def _write_diagnosed(folder: Path, sim_id: str, offset: float) -> Diagnosed:
    stores = {
        "reference": properties(0.0),
        "sim_prop": properties(offset),
        "sim_meas": measures(offset),
        "scen_prop": properties(0.1),
        "scen_meas": measures(0.1),
        "improvement": diagnosis.improvement(measures(offset), measures(0.1)),
        "summary": compared(),
    }
    paths = {name: folder / f"{sim_id}+{name}.zarr" for name in stores}
    for name, ds in stores.items():
        store.write_store(ds, paths[name], store.Marker("Example", {"sim_id": sim_id}, {"xarray": "1"}, {}, "abc"))
    return Diagnosed(sim_id=sim_id, domain=DOMAIN, **paths)


def _write_flags(path: Path, raised: bool) -> Path:
    columns = ("variable", "flag", "raised", "count", "worst", "units", "day", "lat", "lon", "meaning")
    hot = (
        "tasmax",
        "temperature_extremely_high",
        "True",
        "3",
        "61.2",
        "degC",
        "2088-07-14",
        "46.5",
        "-69.5",
        "warmer than 60 °C",
    )
    below = ("tasmax", "tasmax_below_tasmin", "False", "0", "", "", "", "", "", "tasmax below tasmin")
    rows = [dict(zip(columns, row, strict=True)) for row in ([hot, below] if raised else [below])]
    store.write_table(columns, rows, path, None)
    return path


def write_job(
    workdir: Path, rule: str, name: str, started: float, outcome: str = "success", node: str = "n1", job_id: str = ""
) -> None:
    """Write the order and the result of a job of 60 s that used 1.5 of 4 CPUs and 1.5 of 8 GiB."""
    folder = workdir / "jobs" / rule
    folder.mkdir(parents=True, exist_ok=True)
    order = {"label": f"{rule} {name}", "files": {"log": f"/logs/{name}.out"}}
    (folder / f"{name}.json").write_text(json.dumps(order))
    result = {
        "outcome": outcome,
        "exception": None if outcome == "success" else "ValueError: <the cause>",
        "job_id": job_id or None,
        "family": rule,
        "parameters": {"n_workers": "2", "cpus_per_task": "4", "memory": "8GB", "time": "1000"},
        "node": node,
        "started": started,
        "ended": started + 60,
        "peak_memory_bytes": 3 * 2**29,
        "cpu_seconds": 90.0,
    }
    (folder / f"{name}.result.json").write_text(json.dumps(result))
    os.utime(folder / f"{name}.result.json", (started + 60,) * 2)
    assert time.time() > started
