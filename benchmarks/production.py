"""Measure production's size: a region of 0.1° land, one pool of simulations, every rule, as a user runs it.

Makes its input: land with a coast and a lake, simulations of 1°. Runs `luigi … All` with jobs fitted to one CPU, two at
a time. The configuration is `config/espo-g6`, for one simulation of 151 years. With `--workflow v2` it is
`config/espo-v2`, for a pool of some members on a rotated grid with mask and orography, from 1951 on, in three slices.

Prints for each rule: jobs, seconds, CPU seconds, peak memory, bytes read (rchar of /proc/PID/io) and written (its
write_bytes); and the most that temporary stores took. Then the floor, in the same run (`production_floor.py`). Only the
table of a whole production is extrapolated. The last line is a JSON object.

    python benchmarks/production.py [--workflow 2024|v2] [--members 3] [--cells 10000] [--years 151] [--columns 125]
                                    [--folder FOLDER] [--no-floor | --threads | --downscaling METHOD] [--table FILE]

`--cells 2500 10000 20000` runs one after the other and deletes the stores of each before the next; the last line is
then that of the last, and a line names each rule whose memory grows with cells by more than 10 %. `--threads` instead
runs the chain twice, one job at a time, with jobs of one CPU and of two, and prints how many times as fast two are.
`--downscaling QPLAD` runs it once as it is and once on a grid of 1°, downscaled after, and prints both side by side.

`--table espo_luigi/tasks/measured.yml`, with two sizes or more, writes what `espo plan` expects of a rule before any of
its jobs has ended: CPU seconds and memory of a job, as a line over its cells x years x variables x members. Rules of
other workflows stay. The report, the diagnostics of whole regions, and the demo's indicators are then made, too. The
package's table, after `espo env --compile`: `--cells 1000 5000 --no-floor --table espo_luigi/tasks/measured.yml`, and
the same with `--workflow v2 --cells 1000 2500`. The rows "Adjust MBCn" are of 24 to 200 cells, in one block of the
stores, of a group in the place of its variables (tasmax, dtr and pr; of v2, two members and tasmin, too): more cells
may take less memory. Of v2, the rows of indicators, and of what is made of them, are of 80 to 10 000 cells on 26
November 2026. Until the table is measured again, Summaries has the sums of what SeriesSummary and YearlySums took,
which is too much, and FlagDetails an estimate; CoarseReference and Downscale have what 8 to 21 coarse cells of the
demo took, Daily and RefDaily what `daily.py` printed. All rules that `--table` measures have `flags`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import production_floor
import yaml
from production_input import REFERENCE, Region, make_input, region_of
from production_workflows import ROOT, WORKFLOWS, Workflow, add_outcomes

GIB, GB = 2**30, 1e9
# Products and temporary stores, of a single simulation.
BYTES_A_CELL_AND_YEAR = 25_000


@dataclass(frozen=True)
class Size:
    """The size of a run, and how its jobs are fitted."""

    region: Region
    cells: int
    last_year: int
    members: int = 1
    cpus: int = 1
    side_by_side: bool = True
    all_rules: bool = False


@dataclass(frozen=True)
class Run:
    """One run of the chain: its folder and size, what each rule took, and the most bytes of temporary stores."""

    folder: Path
    size: Size
    rules: dict[str, dict[str, float]]
    most_temporary: int
    # Cells of the reference in a degree squared.
    density: float

    def total(self, what: str) -> float:
        return sum(rule[what] for rule in self.rules.values())

    def millions(self, rule: str) -> float:
        """Millions of cells x years x variables x members of a job; its size is in degrees squared and days."""
        return self.rules[rule]["size"] / self.rules[rule]["jobs"] * self.density / 365e6


def configure(folder: Path, workflow: Workflow, size: Size, downscaler: str = "") -> None:
    """Write the workflow's configuration for the one region and domain, and luigi.cfg."""
    shipped = ROOT / "config" / workflow.configuration
    config = yaml.safe_load((shipped / "config.yml").read_text())
    period = [str(workflow.first_year), str(size.last_year)]
    simulation, reference = config["extraction"]["simulation"], config["extraction"]["reference"]
    simulation["search_data_catalogs"] |= {"data_catalogs": [str(folder / "raw/simulation.json")], "periods": period}
    simulation["extract_dataset"]["periods"] = period
    # In v2, a reference has a block of its own, under its name.
    search = next(one for one in (reference, *reference.values()) if "search_data_catalogs" in one)
    search["search_data_catalogs"] |= {
        "data_catalogs": [str(folder / "raw/reconstruction.json")],
        "other_search_criteria": {"source": REFERENCE},
    }
    for variable in config["biasadjust"]["variables"].values():
        variable["adjusting_args"]["periods"] = period
    if "sim_period" in (custom := config.get("custom", {})):
        custom["sim_period"] = period
    all_checks = config.get("health_checks", {})
    for checks in (all_checks, *all_checks.values()):
        if isinstance(checks, dict) and "end_date" in checks:
            checks |= {"start_date": f"{period[0]}-01-01", "end_date": f"{period[1]}-12-30"}
    workflow.reduce(config, size.region, size.cells)
    if downscaler:
        config["downscaling"] = {"grid": 1.0, "method": downscaler}
    if size.all_rules:
        config["flags"] = {}
        workflow.add_all_rules(config)
        add_outcomes(config, folder)
    (folder / "config.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    for properties in shipped.glob("*propert*.yml"):
        shutil.copy(properties, folder)
    (folder / "paths.yml").write_text(
        yaml.safe_dump({"paths": {"tmpdir": str(folder / "tmp"), "final": str(folder / "final")}})
    )
    (folder / "luigi.cfg").write_text(
        f"[core]\nworkers = {500 if size.side_by_side else 1}\nlog_level = WARNING\nno_lock = true\n"
        f"[espo]\nconfig = config.yml paths.yml\nengine = local\nworkdir = run\nlocal_cpus = {2 * size.cpus}\n"
        f"report = {size.all_rules}\n"
        "local_memory = 21600MB\n[worker]\nwait_interval = 0.2\n" + (shipped / "luigi.cfg").read_text()
    )


def run_chain(folder: Path, size: Size, cores: int) -> Run:
    """Run the command that a user gives, on so many cores, and add up what its jobs took."""
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    shutil.rmtree(folder / "final", ignore_errors=True)
    shutil.rmtree(folder / "run", ignore_errors=True)
    most_temporary = luigi(folder, cores)
    with ProcessPoolExecutor(1) as alone:
        density = alone.submit(density_of, folder).result()
    return Run(folder, size, rules_of(folder / "run"), most_temporary, density)


def luigi(folder: Path, cores: int, *words: str) -> int:
    """Run `luigi … All` with these words; return the most bytes that temporary stores had, looked at each second."""
    command = [str(Path(sys.executable).parent / "luigi"), "--module", "espo_luigi.tasks", "All", "--local-scheduler"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    pinned = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores])), *command, *words]
    most = 0
    with (folder / "luigi.log").open("w") as log:
        running = subprocess.Popen(pinned, cwd=folder, stderr=log, env=environment)
        while running.poll() is None:
            most = max(most, size_of(folder / "tmp"))
            time.sleep(1)
    if running.returncode:
        raise SystemExit(f"the chain ended with {running.returncode}:\n{(folder / 'luigi.log').read_text()[-4000:]}")
    return most


def density_of(folder: Path) -> float:
    """Cells of the reference in a degree squared, by which a task's size was counted."""
    from espo_luigi.config import load
    from espo_luigi.tasks.context import RunContext

    return RunContext(load([folder / "config.yml", folder / "paths.yml"])).cells_by_area


def rules_of(workdir: Path) -> dict[str, dict[str, float]]:
    """What the jobs of each rule took, in the order of the chain; and by what they are multiplied."""
    rules: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    results = [json.loads(path.read_text()) for path in workdir.glob("jobs/*/*.result.json")]
    for result in sorted(results, key=lambda one: one["started"]):
        rule = rules[result["family"]]
        rule["jobs"] += 1
        rule["seconds"] += result["ended"] - result["started"]
        for name in ("cpu_seconds", "read_bytes", "written_bytes", "size"):
            rule[name] += result[name]
        rule["peak"] = max(rule["peak"], result["peak_memory_bytes"])
        for name in ("piece", "pool", "sim_id"):
            rule[name] = float(name in result["parameters"])
    return rules


def size_of(folder: Path) -> int:
    """Bytes of the files in a folder, whose files may vanish meanwhile; linked files count once."""
    sizes = {}
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                found = os.stat(os.path.join(path, name))
            except FileNotFoundError:
                continue
            sizes[found.st_ino] = found.st_size
    return sum(sizes.values())


# Reports


@dataclass(frozen=True)
class Kept:
    """Bytes of what is kept, and of the reference's part of it, which a production has once."""

    size: int
    of_reference: int


@dataclass(frozen=True)
class Measured:
    """A run, what of it is kept, and its summary."""

    run: Run
    kept: Kept
    summary: dict[str, Any]


def show(run: Run, spent: dict[str, float], kept: Kept) -> dict[str, Any]:
    print(f"\n{run.size.cells} land cells, {run.size.members} simulations, until {run.size.last_year}")
    print(f"{'rule':24}{'jobs':>5}{'seconds':>9}{'CPU s':>8}{'peak MiB':>10}{'read GB':>9}{'written GB':>12}")
    for name, rule in run.rules.items():
        print(
            f"{name:24}{rule['jobs']:5.0f}{rule['seconds']:9.1f}{rule['cpu_seconds']:8.1f}{rule['peak'] / 2**20:10.0f}"
            f"{rule['read_bytes'] / GB:9.2f}{rule['written_bytes'] / GB:12.2f}"
        )
    for name, value in spent.items():
        print(f"floor: {name:24}{value:9.1f}")
    print(f"kept products: {kept.size / GB:.2f} GB; temporary stores: {run.most_temporary / GB:.2f} GB at most")
    print(f"load over 15 minutes now {os.getloadavg()[2]:.1f}")
    job_seconds, floor_seconds = run.total("seconds"), sum(spent.values())
    return {
        "job_seconds": round(job_seconds, 1),
        # On a machine that has other work, jobs wait for a CPU: these count their own work alone.
        "job_cpu_seconds": round(run.total("cpu_seconds"), 1),
        "floor_seconds": round(floor_seconds, 1),
        "ratio": round(job_seconds / floor_seconds, 2) if floor_seconds else None,
        "peak_mib": round(max(rule["peak"] for rule in run.rules.values()) / 2**20),
        "bytes_written_per_product_byte": round(run.total("written_bytes") / kept.size, 2),
        "kept_gb": round(kept.size / GB, 2),
        "most_temporary_gb": round(run.most_temporary / GB, 2),
        "cells": run.size.cells,
    }


def show_whole(runs: Sequence[Run], workflow: Workflow, kept: Kept) -> None:
    """What the whole production would take, by these runs' figures: the only extrapolation here.

    By one run, all is in proportion to cells and simulations. By several, a job takes what the line through their sizes
    says; its memory then is an upper limit, as most rules hold no more than some blocks of cells.
    """
    whole, run = workflow.whole, runs[-1]
    of_cells, of_members = whole.cells / run.size.cells, whole.members / run.size.members
    pool = whole.members / whole.pools / run.size.members
    products = kept.of_reference + (kept.size - kept.of_reference) * of_members
    basis = "in proportion" if len(runs) == 1 else f"by the lines through {len(runs)} sizes"
    print(f"\n{whole.name}, {basis} (ESPO-G asks for {whole.requested}):")
    hours, written = 0.0, 0.0
    lines = lines_of(runs)
    for name, rule in run.rules.items():
        times = of_cells * (of_members if rule["sim_id"] or rule["pool"] else 1)
        more = {"piece": whole.pieces / workflow.pieces, "sim_id": of_members, "pool": whole.pools}
        jobs = rule["jobs"] * np.prod([number for one, number in more.items() if rule[one]])
        seconds, peak = rule["cpu_seconds"] * times / jobs, f"{rule['peak'] / GIB:.1f} GiB here"
        if len(runs) > 1:
            line, millions = lines[name], run.millions(name) * rule["jobs"] * times / jobs
            seconds = line["seconds"] + line["seconds_a_million"] * millions
            peak += f", at most {(line['mib'] + line['mib_a_million'] * millions) / 1024:.1f} there"
        print(f"  {name:24}{seconds * jobs / 3600:8.1f} core-hours{jobs:7.0f} jobs{seconds / 60:7.1f} minutes, {peak}")
        hours += seconds * jobs / 3600
        written += rule["written_bytes"] * times
    print(f"  {hours:.0f} core-hours, {written / 1e12:.1f} TB written, {products * of_cells / 1e12:.1f} TB kept")
    print(f"  temporary stores of a pool of mean size: {run.most_temporary * of_cells * pool / 1e12:.2f} TB at most")


def lines_of(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """What a job of each rule took: a constant, and so much for a million cells x years x variables x members."""
    lines: dict[str, dict[str, float]] = {}
    for name in sorted(runs[0].rules):
        measured = [run.rules[name] for run in runs]
        millions = [run.millions(name) for run in runs]
        seconds = line_through(millions, [rule["cpu_seconds"] / rule["jobs"] for rule in measured])
        mib = line_through(millions, [rule["peak"] / 2**20 for rule in measured])
        lines[name] = {"seconds": seconds[0], "seconds_a_million": seconds[1], "mib": mib[0], "mib_a_million": mib[1]}
    return lines


def table_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The lines of all rules, and where they were measured."""
    processors = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": processors[0].partition(":")[2].strip() if processors else platform.processor(),
        "date": date.today().isoformat(),
        "cells": [run.size.cells for run in runs],
        "load": round(os.getloadavg()[1], 1),
        "rules": lines_of(runs),
    }


def write_table(path: Path, workflow: str, table: dict[str, Any]) -> None:
    """Write a workflow's table beside those of others, as YAML with a line for each rule."""
    tables = yaml.safe_load(path.read_text()) if path.exists() else {}
    # Rules that these runs lack keep their lines: that of Export is by benchmarks/export.py.
    lines = tables.get(workflow, {}).get("rules", {}) | table["rules"]
    tables[workflow] = table | {"rules": dict(sorted(lines.items()))}
    text = "# What a job of each rule took: written by benchmarks/production.py --table, whose docstring says how.\n"
    for name, one in tables.items():
        head = yaml.safe_dump({key: value for key, value in one.items() if key != "rules"}, sort_keys=False)
        rules = "".join(f"    {rule}: {json.dumps(line)}\n" for rule, line in one["rules"].items())
        text += f"{name}:\n" + "".join(f"  {line}\n" for line in head.splitlines()) + f"  rules:\n{rules}"
    path.write_text(text)


def line_through(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The constant and the slope of the line with the least relative errors; neither is below 0."""
    weights = 1 / np.maximum(values, 1e-6)
    slope, constant = np.polyfit(sizes, values, 1, w=weights) if len(set(sizes)) > 1 else (0.0, np.mean(values))
    if slope < 0:
        slope, constant = 0.0, np.mean(values)
    elif constant < 0:
        slope, constant = np.mean(np.divide(values, sizes)), 0.0
    return float(f"{constant:.3g}"), float(f"{slope:.3g}")


def compare_threads(folder: Path, workflow: Workflow, size: Size) -> None:
    """Run the chain with jobs of one CPU and of two, one at a time, and print how many times as fast two are."""
    runs = []
    for cpus in (1, 2):
        configure(folder, workflow, replace(size, cpus=cpus, side_by_side=False))
        runs.append(run_chain(folder, size, cores=cpus))
    one, two = (run.rules for run in runs)
    times = {name: round(rule["seconds"] / two[name]["seconds"], 2) for name, rule in one.items()}
    print(*(f"{name:24}{value:7.2f}" for name, value in times.items()), sep="\n")
    print(json.dumps(times))


def compare_ways(folder: Path, workflow: Workflow, size: Size, downscaler: str) -> None:
    """Run the chain on the reference's cells, and adjusted on coarse ones; print CPU seconds and memory of both."""
    runs = []
    for name in ("", downscaler):
        configure(folder, workflow, size, name)
        runs.append(run_chain(folder, size, cores=2))
    usual, other = (run.rules for run in runs)
    print(
        f"\n{size.cells} land cells until {size.last_year}\n{'':24}{'CPU s':>8}{downscaler:>9}{'MiB':>8}{downscaler:>9}"
    )
    for rule in dict.fromkeys((*usual, *other)):
        pairs = [[of[rule][key] if rule in of else 0.0 for of in (usual, other)] for key in ("cpu_seconds", "peak")]
        print("{:24}{:8.1f}{:9.1f}{:8.0f}{:9.0f}".format(rule, *pairs[0], *(one / 2**20 for one in pairs[1])))
    totals = {key: [round(run.total(key), 1) for run in runs] for key in ("cpu_seconds", "seconds")}
    shares = {f"share_of_{key}": round(other / usual, 3) for key, (usual, other) in totals.items()}
    peaks = [round(max(rule["peak"] for rule in run.rules.values()) / 2**20) for run in runs]
    print(json.dumps({"cells": size.cells, **totals, **shares, "peak_mib": peaks}))


def measure(folder: Path, workflow: Workflow, size: Size, *, with_floor: bool) -> Measured:
    """Run the chain and its floor, and print what they took."""
    configure(folder, workflow, size)
    run = run_chain(folder, size, cores=2)
    final = folder / "final"
    kept = Kept(size_of(final), size_of(final / "reference"))
    spent: dict[str, float] = {}
    if with_floor:
        luigi(folder, 2, "--until", "Regrid")
        with ProcessPoolExecutor(1) as alone:
            spent = alone.submit(production_floor.floor, folder).result()
    summary = show(run, spent, kept)
    print(json.dumps(summary), flush=True)
    return Measured(run, kept, summary)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workflow", choices=WORKFLOWS, default="2024")
    parser.add_argument("--members", type=int, default=None, help="simulations of the pool of v2, 1 to 5; 3 by default")
    parser.add_argument("--cells", type=int, nargs="+", default=[10_000], help="1000 or more")
    parser.add_argument("--years", type=int, default=151, help="from 1950 on; 71 or more")
    parser.add_argument("--columns", type=int, default=125, help="width of the region; North America's is 1700")
    parser.add_argument("--folder", type=Path, default=None, help="where the data go; kept if given")
    parser.add_argument("--no-floor", action="store_true", help="only the chain")
    parser.add_argument("--threads", action="store_true", help="jobs of one CPU and of two")
    parser.add_argument("--downscaling", default="", help="both ways, side by side: a downscaler")
    parser.add_argument("--table", type=Path, default=None, help="file for the table of `espo plan`")
    options = parser.parse_args(arguments)
    most = WORKFLOWS[options.workflow].most_members
    options.members = min(3, most) if options.members is None else options.members
    if not 1 <= options.members <= most:
        parser.error(f"--members {options.members}: a pool of the workflow {options.workflow} has 1 to {most}")
    if min(options.cells) < 1000 or options.years < 71:
        parser.error("the diagnostics' domain has 1000 cells, and the reference period ends in 2020, after 71 years")
    if options.table and len(set(options.cells)) < 2:
        parser.error("a table needs two sizes: --cells 1000 5000")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    workflow, last_year = WORKFLOWS[options.workflow], 1949 + options.years
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the folder is removed
    with tempfile.TemporaryDirectory(prefix="espo-production-", ignore_cleanup_errors=True) as temporary:
        base = options.folder or Path(temporary)
        measured = measure_sizes(options, workflow, base.absolute(), last_year)
    runs = [one.run for one in measured]
    if options.table:
        write_table(options.table, f"espo-{options.workflow}", table_of(runs))
    if measured:
        show_whole(runs, workflow, measured[-1].kept)
        show_sizes(measured)


def measure_sizes(options: argparse.Namespace, workflow: Workflow, base: Path, last_year: int) -> list[Measured]:
    """Measure one size after the other; each is removed before the next."""
    base.mkdir(parents=True, exist_ok=True)
    needed = BYTES_A_CELL_AND_YEAR * max(options.cells) * options.years * (options.members or 1)
    if (free := shutil.disk_usage(base).free) < needed:
        sys.exit(f"{base} has {free / GB:.0f} GB free; expected {needed / GB:.0f} GB for {max(options.cells)} cells.")
    measured: list[Measured] = []
    for wanted in options.cells:
        folder = base / f"cells{wanted}"
        folder.mkdir(parents=True, exist_ok=True)
        region, cells = region_of(wanted, options.columns, workflow.pole)
        size = Size(region, cells, last_year, options.members, all_rules=options.table is not None)
        make_input(folder / "raw", region, last_year, options.members)
        if options.threads:
            compare_threads(folder, workflow, size)
            continue
        if options.downscaling:
            compare_ways(folder, workflow, size, options.downscaling)
            if options.folder is None:
                shutil.rmtree(folder)
            continue
        measured.append(measure(folder, workflow, size, with_floor=not options.no_floor))
        if len(options.cells) > 1 or options.folder is None:
            shutil.rmtree(folder)
    return measured


def show_sizes(measured: Sequence[Measured]) -> None:
    """Compare the sizes, and name the rules whose memory grows with cells by more than 10 %; the last line is JSON."""
    print(f"\n{'cells':>8}{'seconds a cell':>16}{'peak MiB':>10}{'ratio':>8}")
    for one in (each.summary for each in measured):
        print(f"{one['cells']:8}{one['job_seconds'] / one['cells']:16.4f}{one['peak_mib']:10}{one['ratio'] or 0:8.2f}")
    runs = sorted((one.run for one in measured), key=lambda run: run.size.cells)
    for name, rule in runs[-1].rules.items():
        if rule["peak"] > 1.1 * (before := runs[0].rules[name]["peak"]):
            print(f"memory grows with cells: {name} {before / 2**20:.0f} MiB to {rule['peak'] / 2**20:.0f} MiB")
    print(json.dumps(measured[-1].summary))


if __name__ == "__main__":
    main()
