"""Measure production's size: one region of 0.1° land, one simulation, 151 years, every rule, as a user runs it.

Makes its input (land with a coast and a lake; a simulation of 1°), runs `luigi … All` under `config/espo-g6` with jobs
fitted to one CPU, two at a time, and prints for each rule: jobs, seconds, CPU seconds, peak memory, bytes read (rchar
of /proc/PID/io) and written (its write_bytes). Then the floor, in the same run, by one process on one CPU with the
machine for itself: CPU seconds of the numerical work on data that lie in memory (regridding's product, preparation,
training, adjusting, the domain's properties), seconds to read the source once, and to write each kept product once
with the same codec. Nothing is extrapolated but what the last table says is. Last line: one JSON object.

    python benchmarks/production.py [--cells 10000] [--years 151] [--columns 125] [--folder FOLDER]
                                    [--no-floor | --threads] [--table FILE]

`--cells 2500 10000 20000` runs one after the other and deletes the stores of each before the next; the last line is
then that of the last. `--threads` instead runs the chain twice, one job at a time, with jobs of one CPU and of two, and
prints how many times as fast two are, beside work that needs but a core.

`--table espo_luigi/tasks/measured.yml`, with two sizes or more, writes what `espo plan` expects of a rule before any
of its jobs has ended: CPU seconds and memory of a job, as a line over its cells x years x variables. The report and the
diagnostics of whole regions are then made, too. The package's table, after `espo env --compile`:
`--cells 1000 5000 --no-floor --table espo_luigi/tasks/measured.yml`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import dask
import dask.array
import numpy as np
import xarray as xr
import yaml
from production_input import SIMULATION, SOUTH, Region, make_input, region_of

ROOT = Path(__file__).parent.parent
GIB, GB = 2**30, 1e9
# ESPO-G's requests: memory of a job, and its time limit in minutes.
REQUESTED = "48 to 100 GB and up to 1000 minutes a job"
BANDS, BAND_CELLS, SIMULATIONS = 3, 150_000, 11


@dataclass(frozen=True)
class Run:
    """One run of the chain: its folder, what each rule took, and the number of land cells."""

    folder: Path
    rules: dict[str, dict[str, float]]
    cells: int

    def total(self, what: str) -> float:
        return sum(rule[what] for rule in self.rules.values())


def configure(
    folder: Path, region: Region, last_year: int, cpus: int, *, side_by_side: bool, all_rules: bool = False
) -> None:
    """Write the configuration of `config/espo-g6` for the one region and domain, and luigi.cfg."""
    config = yaml.safe_load((ROOT / "config/espo-g6/config.yml").read_text())
    longitudes = [region.west - 0.05, region.west - 0.05 + region.columns / 10]
    box = {"method": "bbox", "lon_bnds": longitudes, "lat_bnds": [SOUTH - 0.05, SOUTH - 0.05 + region.rows / 10]}
    config["custom"]["regions"] = {"south": {"name": "south", **box}}
    config["custom"]["amno_region"] |= box
    period = ["1950", str(last_year)]
    config["custom"]["sim_period"] = period
    simulation = config["extraction"]["simulation"]
    simulation["search_data_catalogs"] |= {
        "data_catalogs": [str(folder / "raw/simulation.json")],
        "periods": period,
        "other_search_criteria": {"source": [SIMULATION], "experiment": ["ssp585"], "processing_level": "raw"},
    }
    simulation["extract_dataset"]["periods"] = period
    simulation.pop("chunks", None)
    reference = config["extraction"]["reference"]["search_data_catalogs"]
    reference |= {"data_catalogs": [str(folder / "raw/reconstruction.json")]}
    reference["other_search_criteria"] = {"source": "Made-Land"}
    for variable in config["biasadjust"]["variables"].values():
        variable["adjusting_args"]["periods"] = period
    config["health_checks"]["end_date"] = f"{last_year}-12-30"
    diagnosed = config["off-diag"]
    diagnosed["domains"] = {"Domain": {**box, "name": "Domain", **domain_of(region)}}
    for step in diagnosed["steps"].values():
        step["domain"] = {"Domain": "NAM" if "NAM" in step["domain"].values() else "south"}
    if all_rules:
        diagnose_regions(config)
    (folder / "config.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    for properties in (ROOT / "config/espo-g6").glob("*propert*.yml"):
        shutil.copy(properties, folder)
    (folder / "paths.yml").write_text(
        yaml.safe_dump({"paths": {"tmpdir": str(folder / "tmp"), "final": str(folder / "final")}})
    )
    (folder / "luigi.cfg").write_text(
        f"[core]\nworkers = {500 if side_by_side else 1}\nlog_level = WARNING\nno_lock = true\n"
        f"[espo]\nconfig = config.yml paths.yml\nengine = local\nworkdir = run\nlocal_cpus = {2 * cpus}\n"
        f"report = {all_rules}\n"
        "local_memory = 21600MB\n[worker]\nwait_interval = 0.2\n" + (ROOT / "config/espo-g6/luigi.cfg").read_text()
    )


def diagnose_regions(config: dict[str, Any]) -> None:
    """Add the diagnostics of whole regions, as the demo has them."""
    demo = yaml.safe_load((ROOT / "config/demo/config.yml").read_text())
    config["diagnostics"] = demo["diagnostics"]
    of_reference = demo["extraction"]["reference"]["properties_and_measures"]
    config["extraction"]["reference"]["properties_and_measures"] = of_reference
    for step in (of_reference, *(one["properties_and_measures"] for one in demo["diagnostics"].values())):
        step["properties"] = "properties_ESPO-G.yml"


def domain_of(region: Region) -> dict[str, list[float]]:
    """A domain of the diagnostics of about an eighth of the region's cells."""
    west, width, height = region.west + 1.95, region.columns * 0.032, region.rows * 0.03
    return {"lon_bnds": [west, west + width], "lat_bnds": [40.5, 40.55 + height]}


def run_chain(folder: Path, cells: int, cores: int) -> Run:
    """Run the command that a user gives, on so many cores, and add up what its jobs took."""
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    shutil.rmtree(folder / "final", ignore_errors=True)
    shutil.rmtree(folder / "run", ignore_errors=True)
    luigi = Path(sys.executable).parent / "luigi"
    command = [str(luigi), "--module", "espo_luigi.tasks", "All", "--local-scheduler"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    pinned = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores])), *command]
    done = subprocess.run(pinned, cwd=folder, check=False, stderr=subprocess.PIPE, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"the chain ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return Run(folder, rules_of(folder / "run"), cells)


def rules_of(workdir: Path) -> dict[str, dict[str, float]]:
    """What the jobs of each rule took, in the order of the chain."""
    rules: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    results = [json.loads(path.read_text()) for path in workdir.glob("jobs/*/*.result.json")]
    for result in sorted(results, key=lambda one: one["started"]):
        rule = rules[result["family"]]
        rule["jobs"] += 1
        rule["seconds"] += result["ended"] - result["started"]
        for name in ("cpu_seconds", "read_bytes", "written_bytes", "size"):
            rule[name] += result[name]
        rule["peak"] = max(rule["peak"], result["peak_memory_bytes"])
    return rules


def size_of(folder: Path) -> int:
    return sum(entry.stat().st_size for entry in folder.rglob("*") if entry.is_file())


# The floor


def floor(folder: Path) -> dict[str, float]:
    """Seconds of the floor, on one CPU."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "BLOSC_NTHREADS")})
    from espo_luigi.jobs.dask.local import keep_freed_memory

    keep_freed_memory()
    dask.config.set(scheduler="synchronous")
    seconds: dict[str, float] = defaultdict(float)
    numerical_work(folder, seconds)
    read_source(folder, seconds)
    write_products(folder, seconds)
    return dict(seconds)


def cpu_seconds(work: Any, *arguments: Any, **keywords: Any) -> tuple[Any, float]:
    started = time.process_time()
    result = work(*arguments, **keywords)
    return result, time.process_time() - started


def numerical_work(folder: Path, seconds: dict[str, float]) -> None:
    """CPU seconds of regridding's product, training, adjusting and properties, block by block in memory."""
    from espo_luigi.config import load
    from espo_luigi.science.adjust import biasadjust
    from espo_luigi.science.regrid.cascade import apply_weights
    from espo_luigi.store import open_store
    from espo_luigi.tasks.adjustment import MAKERS

    config = load([folder / "config.yml", folder / "paths.yml"])
    final = folder / "final"
    reference = open_store(next(final.glob("reference/*+noleap.zarr")))
    regridded = open_store(next(final.glob("regridded/*.zarr.zip")))
    warm_up(config, reference, regridded)
    cells = int(config.custom.working_chunks["loc"])
    weights = example_weights(cells)
    for first in range(0, reference.sizes["loc"], cells):
        block = {"loc": slice(first, first + cells)}
        for name, variable in config.biasadjust.variables.items():
            ours, theirs = in_memory(reference[name].isel(block)), in_memory(regridded[name].isel(block))
            trained = biasadjust.train(ours, theirs, **variable.training_args.arguments(), seed="x")
            training, spent = cpu_seconds(trained.compute)
            seconds["train"] += spent
            adjusted = biasadjust.adjust(theirs, training, **variable.adjusting_args.arguments(*MAKERS), seed="x")
            seconds["adjust"] += cpu_seconds(adjusted.compute)[1]
            del adjusted, trained
        source = np.random.default_rng(1).random((regridded.sizes["time"], 1, weights.shape[1]), np.float32)
        for _ in regridded.data_vars:
            _, spent = cpu_seconds(apply_weights, source, weights[: ours.sizes["loc"]], (ours.sizes["loc"],))
            seconds["regrid"] += spent
    seconds["properties"] = properties(config, final)


def in_memory(data: xr.DataArray, chunks: Any = -1) -> xr.DataArray:
    """The values in memory as Dask blocks, by default one; nobody makes a token, which would read them once more."""
    return data.copy(data=dask.array.from_array(data.values, chunks=chunks, name=False))


def warm_up(config: Any, reference: xr.Dataset, regridded: xr.Dataset) -> None:
    """Load the kernels' machine code, and take the dates apart once."""
    from espo_luigi.science.adjust import biasadjust
    from espo_luigi.tasks.adjustment import MAKERS

    for name, variable in config.biasadjust.variables.items():
        ours, theirs = reference[name].isel(loc=slice(2)).load(), regridded[name].isel(loc=slice(2)).load()
        training = biasadjust.train(ours, theirs, **variable.training_args.arguments(), seed="x")
        biasadjust.adjust(theirs, training, **variable.adjusting_args.arguments(*MAKERS), seed="x")


def example_weights(cells: int) -> Any:
    """The weights of a block in the middle of the region, as `Regrid` has them."""
    from espo_luigi.science.regrid.cascade import Stage, cascade
    from espo_luigi.science.regrid.sphere import Extrapolation, Grid

    how = Extrapolation()
    rows, columns = np.arange(36.0, 50.0), np.arange(276.0, 300.0)
    lat, lon = np.divmod(np.arange(cells), 125)
    stages = [
        Stage(Grid(np.arange(9.5, 84), np.arange(179.55, 351), "rectilinear"), how),
        Stage(Grid(np.arange(9.15, 84, 0.5), np.arange(179.29, 351, 0.5), "rectilinear"), how),
        Stage(Grid(43 + lat / 10, 281 + lon / 10, "points"), how),
    ]
    weights = cascade(Grid(rows, columns, "rectilinear"), stages)
    return weights[:, np.unique(weights.indices)].tocsr()


def properties(config: Any, final: Path) -> float:
    """CPU seconds of the three steps' properties over the domain, in memory."""
    from espo_luigi.science import stack
    from espo_luigi.science.diagnose import comparison, domains
    from espo_luigi.store import open_store

    box = config.off_diag.domains["Domain"].arguments()
    grid = open_store(next(final.glob("reference/*+coords.zarr"))).drop_vars("land")
    part = domains.cut_domain(grid, box)
    stores = {
        "ref": next(final.glob("reference/*+default.zarr")),
        "sim": next(final.glob("regridded/*.zarr.zip")),
        "scen": next(final.glob("final/*/*.zarr.zip")),
    }
    spent = 0.0
    for step, path in stores.items():
        settings = config.off_diag.steps[step].properties_and_measures
        ds = open_store(path, cut=False).sel(time=slice(*settings.period))
        local = domains.cut_domain(ds, box) if step == "scen" else stack.unstack_fill_nan(ds, grid, {}, part=part)
        local = local.load()
        options = {"definitions": settings.properties, "period": settings.period, "to_level": settings.to_level_prop}
        comparison.properties(local.isel(lat=slice(1), lon=slice(1)), **options)
        spent += cpu_seconds(comparison.properties, local, **options)[1]
    return spent


def read_source(folder: Path, seconds: dict[str, float]) -> None:
    """Seconds to read every raw file once."""
    for path in sorted((folder / "raw").rglob("*.nc")):
        started = time.perf_counter()
        with xr.open_dataset(path, decode_times=False) as ds:
            ds.load()
        seconds["read the source"] += time.perf_counter() - started


def write_products(folder: Path, seconds: dict[str, float]) -> None:
    """Seconds to write every kept product once, in its own chunks with its own codec, onto the disk."""
    from espo_luigi.store.disk import sync_tree

    kept = sorted([*(folder / "final").rglob("*.zarr"), *(folder / "final").rglob("*.zarr.zip")])
    for path in kept:
        scratch = folder / "floor.zarr"
        for part in parts_of(path):
            seconds["write the products"] += write_part(part, scratch)
        started = time.perf_counter()
        if scratch.exists():
            sync_tree(scratch)
            seconds["write the products"] += time.perf_counter() - started
            shutil.rmtree(scratch)


def parts_of(path: Path) -> Iterator[xr.Dataset]:
    """A product, a row of its chunks at a time, in memory."""
    from espo_luigi.store import open_store

    ds = open_store(path)
    for name, data in ds.data_vars.items():
        if data.ndim < 2:
            continue
        dim = "loc" if "loc" in data.dims else "time" if "time" in data.dims else data.dims[0]
        edges = np.cumsum((0, *data.variable.chunksizes[dim]))
        for place in range(len(edges) - 1):
            whole = data.isel({dim: slice(edges[place], edges[place + 1])}).load().drop_vars(data.coords)
            yield whole.to_dataset(name=f"{name}-{place}")


def write_part(part: xr.Dataset, scratch: Path) -> float:
    from espo_luigi.store.write import laid_out_for, prepared, write_zarr

    chunks = {dim: n for data in part.values() for dim, n in zip(data.dims, data.encoding["chunks"], strict=True)}
    lazy = part.map(lambda data: in_memory(data, tuple(chunks[dim] for dim in data.dims)))
    started = time.perf_counter()
    laid_out, encoding = laid_out_for(prepared(lazy), chunks, None)
    write_zarr(laid_out, scratch, mode="a", encoding=encoding)
    return time.perf_counter() - started


# Reports


def show(run: Run, spent: dict[str, float], kept: int) -> dict[str, Any]:
    print(f"\n{run.cells} land cells")
    print(f"{'rule':24}{'jobs':>5}{'seconds':>9}{'CPU s':>8}{'peak MiB':>10}{'read GB':>9}{'written GB':>12}")
    for name, rule in run.rules.items():
        print(
            f"{name:24}{rule['jobs']:5.0f}{rule['seconds']:9.1f}{rule['cpu_seconds']:8.1f}{rule['peak'] / 2**20:10.0f}"
            f"{rule['read_bytes'] / GB:9.2f}{rule['written_bytes'] / GB:12.2f}"
        )
    for name, value in spent.items():
        print(f"floor: {name:24}{value:9.1f}")
    print(f"kept products: {kept / GB:.2f} GB; 1-minute load now {os.getloadavg()[0]:.1f}")
    job_seconds, floor_seconds = run.total("seconds"), sum(spent.values())
    return {
        "job_seconds": round(job_seconds, 1),
        "floor_seconds": round(floor_seconds, 1),
        "ratio": round(job_seconds / floor_seconds, 2) if floor_seconds else None,
        "peak_mib": round(max(rule["peak"] for rule in run.rules.values()) / 2**20),
        "bytes_written_per_product_byte": round(run.total("written_bytes") / kept, 2),
        "cells": run.cells,
    }


def show_continent(run: Run) -> None:
    """What the whole of North America would take, by this run's figures: the only extrapolation here."""
    once = ("RefInputCheck", "RefDefault", "ReferenceCalendar", "OffDiagRefProp", "MoveRef")
    factor = BANDS * BAND_CELLS / run.cells
    cpu = {
        name: rule["cpu_seconds"] * factor * (1 if name in once else SIMULATIONS) / 3600
        for name, rule in run.rules.items()
    }
    written = sum(
        rule["written_bytes"] * factor * (1 if name in once else SIMULATIONS) for name, rule in run.rules.items()
    )
    print(f"\nNorth America ({BANDS} bands of {BAND_CELLS} land cells, {SIMULATIONS} simulations), in proportion:")
    print(f"  {sum(cpu.values()):.0f} core-hours, {written / 1e12:.1f} TB written; ESPO-G asks for {REQUESTED}")
    for name, rule in run.rules.items():
        minutes = rule["seconds"] / rule["jobs"] * BAND_CELLS / run.cells / 60
        peak = rule["peak"] / GIB
        print(f"  {name:24}{cpu[name]:8.1f} core-hours{minutes:6.0f} minutes a job on one CPU, {peak:.1f} GiB here")


def table_of(runs: Sequence[Run]) -> str:
    """What a job of each rule took, as YAML: a constant, and so much for a million cells x years x variables."""
    from espo_luigi.tasks.cost import measured

    # Rules that these runs lack keep their lines: that of Export is by `benchmarks/export.py`.
    rules: dict[str, dict[str, float]] = dict(measured()["rules"])
    for name in runs[0].rules:
        jobs = [run.rules[name] for run in runs]
        # A size is degrees squared x days x variables, of cells of 0.1 degrees.
        millions = [rule["size"] / rule["jobs"] * 100 / 365 / 1e6 for rule in jobs]
        seconds = line_through(millions, [rule["cpu_seconds"] / rule["jobs"] for rule in jobs])
        mib = line_through(millions, [rule["peak"] / 2**20 for rule in jobs])
        rules[name] = {"seconds": seconds[0], "seconds_a_million": seconds[1], "mib": mib[0], "mib_a_million": mib[1]}
    processors = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    head = {
        "processor": processors[0].partition(":")[2].strip() if processors else platform.processor(),
        "date": date.today().isoformat(),
        "cells": [run.cells for run in runs],
        "load": round(os.getloadavg()[1], 1),
    }
    comment = "# What a job of each rule took: written by benchmarks/production.py --table, whose docstring says how.\n"
    rows = "".join(f"  {name}: {json.dumps(rules[name])}\n" for name in sorted(rules))
    return f"{comment}{yaml.safe_dump(head, sort_keys=False)}rules:\n{rows}"


def line_through(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The constant and the slope of the line with the least relative errors; neither is below 0."""
    weights = 1 / np.maximum(values, 1e-6)
    slope, constant = np.polyfit(sizes, values, 1, w=weights) if len(set(sizes)) > 1 else (0.0, np.mean(values))
    if slope < 0:
        slope, constant = 0.0, np.mean(values)
    elif constant < 0:
        slope, constant = np.mean(np.divide(values, sizes)), 0.0
    return float(f"{constant:.3g}"), float(f"{slope:.3g}")


def compare_threads(folder: Path, region: Region, cells: int, last_year: int) -> None:
    """Run the chain with jobs of one CPU and of two, one at a time, and print how many times as fast two are."""
    runs = []
    for cpus in (1, 2):
        configure(folder, region, last_year, cpus, side_by_side=False)
        runs.append(run_chain(folder, cells, cores=cpus))
    print(f"{'rule':24}{'1 CPU s':>9}{'2 CPUs s':>10}{'times':>7}")
    times = {}
    for name, one in runs[0].rules.items():
        two = runs[1].rules[name]["seconds"]
        times[name] = round(one["seconds"] / two, 2)
        print(f"{name:24}{one['seconds']:9.1f}{two:10.1f}{times[name]:7.2f}")
    times["work that needs but a core"] = round(core_bound(2), 2)
    print(f"{'work that needs but a core':43}{times['work that needs but a core']:7.2f}")
    print(json.dumps(times))


def core_bound(processes: int) -> float:
    """How many times as much of pure arithmetic so many processes do as one."""
    with ProcessPoolExecutor(processes) as pool:
        alone = pool.submit(arithmetic).result()
        together = list(pool.map(arithmetic, [None] * processes))
    return processes * alone / max(together)


def arithmetic(_: None = None) -> float:
    started = time.perf_counter()
    sum(number * number % 7 for number in range(20_000_000))
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[10_000], help="1000 or more")
    parser.add_argument("--years", type=int, default=151, help="from 1950 on; 71 or more")
    parser.add_argument("--columns", type=int, default=125, help="width of the region; North America's is 1700")
    parser.add_argument("--folder", type=Path, default=None, help="where the data go; kept if given")
    parser.add_argument("--no-floor", action="store_true", help="only the chain")
    parser.add_argument("--threads", action="store_true", help="jobs of one CPU and of two")
    parser.add_argument("--table", type=Path, default=None, help="file for the table of `espo plan`")
    options = parser.parse_args(arguments)
    if min(options.cells) < 1000 or options.years < 71:
        parser.error("the diagnostics' domain has 1000 cells, and the reference period ends in 2020, after 71 years")
    if options.table and len(set(options.cells)) < 2:
        parser.error("a table needs two sizes: --cells 1000 5000")
    last_year = 1949 + options.years
    base = options.folder or Path(tempfile.mkdtemp(prefix="espo-production-"))
    summaries, runs = [], []
    for wanted in options.cells:
        folder = base.absolute() / f"cells{wanted}"
        folder.mkdir(parents=True, exist_ok=True)
        region, cells = region_of(wanted, options.columns)
        make_input(folder / "raw", region, last_year)
        if options.threads:
            compare_threads(folder, region, cells, last_year)
            continue
        configure(folder, region, last_year, 1, side_by_side=True, all_rules=options.table is not None)
        run = run_chain(folder, cells, cores=2)
        runs.append(run)
        with ProcessPoolExecutor(1) as alone:
            spent = alone.submit(floor, folder).result() if not options.no_floor else {}
        summaries.append(show(run, spent, size_of(folder / "final")))
        show_continent(run)
        print(json.dumps(summaries[-1]), flush=True)
        if len(options.cells) > 1 or options.folder is None:
            shutil.rmtree(folder)
    if options.table:
        options.table.write_text(table_of(runs))
    if len(summaries) > 1:
        print(f"\n{'cells':>8}{'seconds a cell':>16}{'peak MiB':>10}{'ratio':>8}")
        for one in summaries:
            print(
                f"{one['cells']:8}{one['job_seconds'] / one['cells']:16.4f}{one['peak_mib']:10}{one['ratio'] or 0:8.2f}"
            )
        print(json.dumps(summaries[-1]))


if __name__ == "__main__":
    main()
