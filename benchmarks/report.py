"""Seconds and megabytes of the report of 20 simulations in 4 domains: ``python benchmarks/report.py``.

The stores are made first, outside of the time: maps of 21 properties on domains of 50 x 80 cells (80 x 324 the fourth,
as Magtogoek at 0.1 degree), summaries of series, tables of flags, and the results of 60 jobs a simulation. Real: all of
the report, from reading the stores to the page, in a process of its own. Not measured: `SeriesSummary` and
`FlagDetails`, which read daily series, are jobs like those of any other rule. CPU seconds stand beside elapsed ones, as
the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import xarray as xr
from scipy.ndimage import gaussian_filter

from espo_luigi import store
from espo_luigi.machine import machine_cpus
from espo_luigi.report.improvement import PUBLISHED
from espo_luigi.report.reading import Diagnosed, Made, RunView
from espo_luigi.science.diagnose import diagnosis, yearly

DOMAINS = {"Haudenosaunee": (50, 80), "Ute": (50, 80), "Dene": (50, 80), "Magtogoek": (80, 324)}
PROPERTIES = (*PUBLISHED, "mean_dtr", "q99_dtr")
RULES = ("Extract", "Regrid", "Train", "Adjust", "CleanUp")
JOBS_OF_A_SIMULATION = 60
# So many simulations have stores of their own; the others are links to them.
KINDS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=20)
    parser.add_argument("--keep", type=Path, help="leave the report in this folder")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "view").write_bytes(pickle.dumps(make(folder, options.simulations)))
        command = [sys.executable, __file__, "--measure", str(folder)]
        print(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout, end="")
        if options.keep:
            shutil.copytree(folder / "out", options.keep, dirs_exist_ok=True)


def measure(folder: Path) -> None:
    """Write the report, in this process, and print what it took; imports are counted."""
    began = time.perf_counter()
    from espo_luigi.report.make import write_report

    view, out = pickle.loads((folder / "view").read_bytes()), folder / "out" / "report.html"  # noqa: S301  # our own file
    write_report(view, out, processes=min(4, machine_cpus()))
    used, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    figures = {
        "elapsed_s": round(time.perf_counter() - began, 1),
        "cpu_s": round(sum(one.ru_utime + one.ru_stime for one in (used, others)), 1),
        "page_MB": round(out.stat().st_size / 1e6, 2),
        "figures": len(list((folder / "out" / "report-figures").iterdir())),
        "peak_MiB": max(used.ru_maxrss, others.ru_maxrss) // 1024,
    }
    print(json.dumps(figures))


def make(folder: Path, n: int) -> RunView:
    """Write everything that the report reads; return the view of it."""
    sim_ids = [f"CMIP6_ScenarioMIP_X_Model-{number:02}_ssp585_r1i1p1f1_global" for number in range(n)]
    diagnosed = []
    for domain, shape in DOMAINS.items():
        kinds = [_write(folder / f"{domain}-{kind}", shape, kind) for kind in range(min(KINDS, n))]
        for number, sim_id in enumerate(sim_ids):
            improvement = folder / f"{sim_id}+{domain}+improvement.zarr"
            _save(_improvement(number), improvement)
            paths = kinds[number % KINDS]
            diagnosed.append(Diagnosed(sim_id=sim_id, domain=domain, improvement=improvement, **paths))
    _write_jobs(folder / "run", sim_ids)
    return RunView(
        config_files=(),
        config_hash="benchmark",
        reference="ERA5-Land",
        simulations=tuple(sim_ids),
        domains=tuple(DOMAINS),
        period=(1991, 2020),
        final=folder,
        workdir=folder / "run",
        engine="slurm",
        products=tuple(
            Made("DiagMeasuresImprovement", f"DiagMeasuresImprovement {one.sim_id}", (one.improvement,), True)
            for one in diagnosed
        ),
        diagnosed=tuple(diagnosed),
    )


def _write(folder: Path, shape: tuple[int, int], kind: int) -> dict[str, Path]:
    reference, raw, adjusted = (_properties(shape, offset) for offset in (0.0, 1.0 + kind, 0.1))
    stores = {
        "reference": reference,
        "sim_prop": raw,
        "scen_prop": adjusted,
        "sim_meas": _measures(raw, reference),
        "scen_meas": _measures(adjusted, reference),
        "summary": _summary(kind),
    }
    for name, ds in stores.items():
        _save(ds, folder / f"{name}.zarr")
    return {name: folder / f"{name}.zarr" for name in stores}


def _save(ds: xr.Dataset, path: Path) -> None:
    store.write_store(ds, path, store.Marker("Benchmark", {}, {"xarray": xr.__version__}, {}, "benchmark"))


def _properties(shape: tuple[int, int], offset: float) -> xr.Dataset:
    random = np.random.default_rng(7)
    row, column = np.indices(shape)
    land = column < shape[1] * (0.8 + 0.1 * np.sin(row / 9))
    coords = {"lat": 42 + 0.1 * np.arange(shape[0]), "lon": -92 + 0.1 * np.arange(shape[1])}
    attrs = {"units": "K", "long_name": "A property of daily temperatures in this domain", "measure": "BIAS"}
    climate = 280 + offset + row / 9
    # As far as fields of climate are smooth: over some ten cells.
    noises = {name: 3 * gaussian_filter(random.standard_normal(shape), 3) for name in PROPERTIES}
    fields = {name: np.where(land, climate + noise, np.nan) for name, noise in noises.items()}
    return xr.Dataset({name: (("lat", "lon"), values, attrs) for name, values in fields.items()}, coords)


def _measures(found: xr.Dataset, reference: xr.Dataset) -> xr.Dataset:
    attrs = {"units": "K", "history": "xsdba.measures.BIAS"}
    return xr.Dataset({name: (found[name] - reference[name]).assign_attrs(attrs) for name in found})


def _improvement(number: int) -> xr.Dataset:
    random = np.random.default_rng(number)
    coords = {"lat": [45.0], "lon": np.arange(50.0)}
    dims, attrs = ("lat", "lon"), {"history": "xsdba.measures.BIAS"}
    one = xr.Dataset({name: (dims, np.ones((1, 50)), attrs) for name in PROPERTIES}, coords)
    other = xr.Dataset({name: (dims, random.uniform(0, 1.3, (1, 50)), attrs) for name in PROPERTIES}, coords)
    return diagnosis.improvement(one, other)


def _summary(kind: int) -> xr.Dataset:
    return yearly.compare(
        {name: _daily(7 * kind + seed) for seed, name in enumerate(("reference", "raw", "adjusted"))},
        period=(1991, 2020),
        periods=((1991, 2020), (2071, 2100)),
    ).assign_attrs(cells="4 of 3600 land cells")


def _daily(seed: int) -> xr.Dataset:
    random = np.random.default_rng(seed)
    days = xr.date_range("1950-01-01", periods=151 * 365, calendar="noleap", use_cftime=True)
    tasmax = 10 + 5 * random.standard_normal((days.size, 4))
    fields = {"tasmax": tasmax, "tasmin": tasmax - 8, "pr": random.gamma(0.3, 8.0, tasmax.shape)}
    ds = xr.Dataset({name: (("time", "cell"), values) for name, values in fields.items()}, {"time": days})
    for name in fields:
        ds[name].attrs = {"units": yearly.display_units(name), "long_name": f"Daily {name} of a benchmark"}
    return ds


def _write_jobs(workdir: Path, sim_ids: list[str]) -> None:
    asked = {"n_workers": "2", "cpus_per_task": "4", "memory": "60GB", "time": "1000"}
    for rule in RULES:
        (workdir / "jobs" / rule).mkdir(parents=True)
    for number, (sim_id, place) in enumerate(product(sim_ids, range(JOBS_OF_A_SIMULATION))):
        rule, started = RULES[place % len(RULES)], 60.0 * number
        stem = workdir / "jobs" / rule / f"sim_id={sim_id},number={place}"
        result = {
            "outcome": "success",
            "family": rule,
            "parameters": asked,
            "node": f"n{number % 40}",
            "started": started,
            "ended": started + 600 + 10 * (number % 17),
            "peak_memory_bytes": 2**33,
            "cpu_seconds": 1800.0,
        }
        Path(f"{stem}.json").write_text(json.dumps({"label": rule}))
        Path(f"{stem}.result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
