"""Where the demo's time goes: every rule of the demo, with our kernels and with xsdba, one after the other.

    python benchmarks/pipeline.py                  # both
    python benchmarks/pipeline.py --only kernels

Each run is the README's main job in a temporary folder, from the raw data on, temporary stores kept; the figures come
from the results that the jobs write themselves. Then, for each rule's longest job, with our kernels: the job once more,
alone, beside the same task done straight, which is its inputs read into memory whole, the same science function on
them, and the result written, without Dask's cluster. Both have as many cores as the job asked for; the best of three,
in turns. "read" is that of Zarr stores; Extract and RefDefault read NetCDF while they compute. The last line is
the same as one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import xarray as xr
import yaml

from espo_luigi import job, store
from espo_luigi.files import read_json
from espo_luigi.jobs.order import JobFiles, JobOrder, seconds_of
from espo_luigi.report.reading import job_results, job_table, results_of

REPOSITORY = Path(__file__).parent.parent
ENGINES = {"kernels": "auto", "xsdba": "xsdba"}
REPEATS = 3


def main() -> None:
    """Run the demo as asked, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ENGINES, help="run one of the two")
    only = parser.parse_args().only
    figures: dict[str, Any] = {"load_before": os.getloadavg()[0], "cpus": os.cpu_count()}
    for name in [only] if only else ENGINES:
        figures[name] = measure(name)
    if not only:
        figures["ratio"] = round(figures["xsdba"]["wall_seconds"] / figures["kernels"]["wall_seconds"], 2)
        print(f"\nwhole demo: xsdba / kernels = {figures['ratio']}")
    print(json.dumps(figures))


def measure(name: str) -> dict[str, Any]:
    """Run the demo with one way of adjusting; return its wall time and each rule's seconds and peak memory."""
    with tempfile.TemporaryDirectory(prefix="espo-pipeline-") as folder:
        prepare(Path(folder), ENGINES[name])
        luigi = Path(sys.executable).parent / "luigi"
        command = [str(luigi), "--module", "espo_luigi.tasks", "All", "--local-scheduler"]
        started = time.monotonic()
        with (Path(folder) / "log").open("wb") as log:
            code = subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=False).returncode
        wall = time.monotonic() - started
        if code:
            raise SystemExit(f"the demo failed:\n{(Path(folder) / 'log').read_text()[-3000:]}")
        work = Path(folder) / "espo-demo" / "run"
        print(f"\n{name}: {wall:.0f} s\n{job_table(work)}")
        figures = {"wall_seconds": round(wall, 1), "rules": rules(work)}
        return figures | ({"straight": compare_with_straight(Path(folder), work)} if name == "kernels" else {})


def prepare(folder: Path, engine: str) -> None:
    """Copy the demo's configuration, with the way of adjusting set for every variable."""
    (folder / "config" / "demo").mkdir(parents=True)
    for source in (REPOSITORY / "config" / "demo").glob("*.yml"):
        (folder / "config" / "demo" / source.name).write_text(source.read_text())
    text = (REPOSITORY / "luigi.cfg").read_text()
    (folder / "luigi.cfg").write_text(text.replace("\n[espo]\n", "\n[espo]\nkeep_temporary = true\n"))
    file = folder / "config" / "demo" / "config.yml"
    config = yaml.safe_load(file.read_text())
    for variable in config["biasadjust"]["variables"].values():
        variable["engine"] = engine
    file.write_text(yaml.safe_dump(config, sort_keys=False))


def rules(work: Path) -> dict[str, dict[str, float]]:
    """Return seconds in all and peak MiB of each rule."""
    found: dict[str, dict[str, float]] = {}
    for result in job_results(work):
        rule = found.setdefault(result["family"], {"jobs": 0, "seconds": 0.0, "peak_mib": 0.0})
        rule["jobs"] += 1
        rule["seconds"] = round(rule["seconds"] + seconds_of(result), 2)
        rule["peak_mib"] = max(rule["peak_mib"], round(result["peak_memory_bytes"] / 2**20))
    return found


# Straight read, compute, write


def compare_with_straight(folder: Path, work: Path) -> dict[str, dict[str, float]]:
    """Time each rule's longest job, alone, and the same task done straight; both in children of a warm process."""
    os.chdir(folder)
    by_seconds = sorted(results_of(work), key=lambda one: seconds_of(one[1]))
    longest = {result["family"]: JobFiles.at(path).order for path, result in by_seconds}
    orders = {rule: JobOrder.parsed(read_json(path) or {}) for rule, path in longest.items()}
    for module in job.rebuild_task(next(iter(orders.values()))).preload:
        importlib.import_module(module)
    found = {}
    print(f"\n{'rule':24}{'job s':>8}{'straight s':>12}{'read':>7}{'write':>7}{'job / straight':>16}")
    for rule, order in orders.items():
        runs = [(in_child(run_job, order), in_child(run_straight, order)) for _ in range(REPEATS)]
        seconds = min(of_job["all"] for of_job, _ in runs)
        straight = min((of_straight for _, of_straight in runs), key=lambda one: one["all"])
        found[rule] = {"job": seconds, **straight, "ratio": round(seconds / straight["all"], 2)}
        print(
            f"{rule:24}{seconds:8.2f}{straight['all']:12.2f}{straight['read']:7.2f}{straight['write']:7.2f}"
            f"{found[rule]['ratio']:16.2f}",
            flush=True,
        )
    return found


def in_child(call: Callable[[JobOrder], dict[str, float]], order: JobOrder) -> dict[str, float]:
    """Call in a forked child, as the local engine does, on the order's number of cores; its answer."""
    answer = Path("answer.json")
    answer.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        log = os.open("child.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 2)
        try:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: order.resources.cpus_per_task])
            answer.write_text(json.dumps(call(order)))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)  # never back into the parent's stack, whose folder is temporary
    os.waitpid(pid, 0)
    if not answer.exists():
        raise SystemExit(f"{call.__name__} of {order.family} failed:\n{Path('child.log').read_text()[-3000:]}")
    return dict(json.loads(answer.read_text()))


def run_job(order: JobOrder) -> dict[str, float]:
    """Run the job as an engine does: Dask's cluster, signs of life, result file."""
    path = Path("order.json")
    path.write_text(json.dumps({**(read_json(order.files.order) or {}), "parent": os.getppid()}))
    started = time.monotonic()
    if job.main([str(path)]):
        raise SystemExit(f"the job of {order.family} failed")
    return {"all": round(time.monotonic() - started, 3)}


def run_straight(order: JobOrder) -> dict[str, float]:
    """Do the work of a task with all that it opens read at once, and what it writes computed before."""
    gc.freeze()
    seconds = {"read": 0.0, "write": 0.0}
    open_store, write_store = store.open_store, store.write_store

    def read(*arguments: Any, **keywords: Any) -> xr.Dataset:
        started = time.monotonic()
        dataset = open_store(*arguments, **keywords).load()
        seconds["read"] += time.monotonic() - started
        return dataset

    def write(dataset: xr.Dataset, *arguments: Any, **keywords: Any) -> None:
        chunks = {name: sizes[0] for name, sizes in dataset.chunksizes.items()}
        dataset = dataset.load()
        started = time.monotonic()
        write_store(dataset, *arguments, **{"chunks": chunks, **keywords})
        seconds["write"] += time.monotonic() - started

    started = time.monotonic()
    task = job.rebuild_task(order)
    store.open_store, store.write_store = read, write  # type: ignore[assignment]
    with dask.config.set(scheduler="synchronous"):
        task.work()
    return {name: round(value, 3) for name, value in {"all": time.monotonic() - started, **seconds}.items()}


if __name__ == "__main__":
    main()
