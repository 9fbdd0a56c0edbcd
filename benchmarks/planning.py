"""Seconds to schedule a root with N tasks below it, and to run them when they do nothing: ours and stock Luigi.

``python benchmarks/planning.py --tasks 20000``. Real: Luigi's parameters, worker, local scheduler; the graph is built
within the time. Each measurement is a process of its own (the imports are not counted), CPU seconds beside elapsed
ones, as the machine may be shared. Ours: `SlurmTask` with `EspoWorker`. Stock: `luigi.Task` with the same
parameters, Luigi's worker and scheduler. `run` and `complete` do nothing, so that what is measured is the machinery.
A stock run takes time in proportion to the square of the tasks, so it is measured for the smallest size only.

``--plan`` measures `espo plan`, as a command: the demo's rules for as many simulations as make N tasks, found in a
catalogue of files that are not there, with every second simulation complete (markers without data), and as many results
of jobs as tasks are complete.

``--status`` measures `espo status`, as a command, of a run of N tasks with as many records of jobs: while its driver
lives (500 jobs under way), and after it has died.

``--departures`` measures, at a twentieth of N, what each departure from stock Luigi earns: ours without the scheduler
of its own, without the tasks' parameters that are looked up once, without the sections of luigi.cfg that are looked up
once, and without the threads in place of processes.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SIZES = (20, 4, 1)  # N divided by each
DEPARTURES = ("ours", "stock scheduler", "stock parameters", "stock sections", "stock processes")


def measure(kind: str, n: int, run: bool) -> dict[str, float]:
    """Schedule (and run) a root with `n` tasks in this process; return elapsed and CPU seconds."""
    root, worker = _stock(n) if kind == "stock" else _ours(n, kind)
    logging.disable(logging.WARNING)
    figures = _timed("schedule", lambda: worker.add(root()))
    if run:

        def work() -> None:
            with worker:
                assert worker.run()

        figures |= _timed("run", work)
        assert root().complete()
    return figures


def _timed(name: str, act: Any) -> dict[str, float]:
    wall, cpu = time.perf_counter(), _cpu_seconds()
    act()
    return {f"{name}_s": time.perf_counter() - wall, f"{name}_cpu_s": _cpu_seconds() - cpu}


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _tasks(base: Any, n: int) -> Any:
    import luigi

    done = multiprocessing.Array("b", n + 1, lock=False)  # for processes, too

    class Leaf(base):  # type: ignore[misc]
        n = luigi.IntParameter()

        def complete(self) -> bool:
            return bool(done[int(self.n)])

        def run(self) -> None:
            done[int(self.n)] = 1

    class Root(Leaf):
        def requires(self) -> list[luigi.Task]:
            return [Leaf(n=i) for i in range(int(self.n))]

    return lambda: Root(n=n)


def _ours(n: int, kind: str) -> tuple[Any, Any]:
    import luigi.scheduler
    import luigi.worker

    from espo_luigi import SlurmTask
    from espo_luigi.driver.install import WorkerSchedulerFactory
    from espo_luigi.driver.settings.espo import Settings

    factory, base = WorkerSchedulerFactory(), SlurmTask
    scheduler = factory.create_local_scheduler()
    if kind == "stock scheduler":
        scheduler = luigi.scheduler.Scheduler(prune_on_get_work=True, record_task_history=False)
    names = ("get_params", "get_param_values")
    if kind == "stock sections":
        for name in names:
            setattr(Settings, name, luigi.Task.__dict__[name])
    if kind == "stock parameters":
        base = type("Base", (SlurmTask,), {name: luigi.Task.__dict__[name] for name in names})
    if kind == "stock processes":
        return _tasks(base, n), luigi.worker.Worker(scheduler=scheduler, worker_processes=50)
    return _tasks(base, n), factory.create_worker(scheduler, worker_processes=50)


def _stock(n: int) -> tuple[Any, Any]:
    import luigi
    from luigi.interface import _WorkerSchedulerFactory

    from espo_luigi import SlurmTask

    base = type("Base", (luigi.Task,), dict(SlurmTask.get_params()))
    factory = _WorkerSchedulerFactory()
    return _tasks(base, n), factory.create_worker(factory.create_local_scheduler(), worker_processes=1)


def _in_a_process(kind: str, n: int, run: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", kind, "--tasks", str(n), *(["--run"] if run else [])]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def plan_seconds(n: int) -> dict[str, float]:
    """Make a run of about `n` tasks, half of them complete, and time `espo plan` of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(Path(__file__).parent.parent / "config", folder / "config")
        text = (Path(__file__).parent.parent / "luigi.cfg").read_text()
        (folder / "luigi.cfg").write_text(text.replace("[espo]\n", "[espo]\nfinal_format = sharded\n"))
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        made = [sys.executable, __file__, "--make-run", "--tasks", str(n)]
        subprocess.run(made, cwd=folder, env=environ, check=True)
        command = [sys.executable, "-m", "espo_luigi.commands.cli", "plan", "--json"]
        wall, cpu = time.perf_counter(), _cpu_seconds()
        said = subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, text=True).stdout
        figures = {"plan_s": time.perf_counter() - wall, "plan_cpu_s": _cpu_seconds() - cpu}
        return figures | json.loads(said)["counts"]


def status_seconds(n: int) -> dict[str, float]:
    """Make the files of a run of `n` tasks, and time `espo status` of it, with a driver and without."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "luigi.cfg").write_text("[espo]\nworkdir = run\nengine = slurm\n")
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
        figures = {}
        for driver in ("alive", "dead"):
            _make_state(folder / "run", n, time.time() if driver == "alive" else 1.0)
            wall, cpu = time.perf_counter(), _cpu_seconds()
            command = [sys.executable, "-m", "espo_luigi.commands.cli", "status"]
            said = subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, text=True).stdout
            figures |= {f"{driver}_s": time.perf_counter() - wall, f"{driver}_cpu_s": _cpu_seconds() - cpu}
            assert f"of {n} done" in said, said
        return figures


def _make_state(workdir: Path, n: int, updated: float) -> None:
    from espo_luigi.driver.board import FILE, BegunTask, Board
    from espo_luigi.jobs.lifecycle.records import Record, RecordStore
    from espo_luigi.jobs.order import JobState, Progress

    board, store = Board(), RecordStore(workdir / "scheduler")
    store.create_folders()
    board.expect("All", "slurm", [(str(number), f"Rule{number % 28}") for number in range(n)])
    for number in range(n):
        rule, is_done, beat = f"Rule{number % 28}", number < n // 2, workdir / f"{number}.json"
        if is_done:
            board.end(str(number), True, 60.0, "")
        elif number < n // 2 + 500:
            board.begin(BegunTask(str(number), f"{rule} n={number}", rule, updated, 4, 2**30, str(beat)))
            pending = Progress("PENDING (Priority), job 1", state=JobState.QUEUED, reason="Priority")
            board.tell(str(number), pending if number % 2 else Progress("RUNNING", state=JobState.RUNNING))
        state = JobState.QUEUED if n // 2 <= number < n // 2 + 500 else JobState.SUCCEEDED
        store.save(Record(f"{rule}-{number}", rule, {"n": str(number)}, 2**30, 60, "log", state=state, job_id="1"))
    (workdir / FILE).write_text(json.dumps(board.snapshot() | {"updated": updated}))


def make_run(n: int) -> None:
    """Make the catalogue, the markers and the results, in the working folder."""
    from espo_luigi import store, tasks
    from espo_luigi.driver.run import each_after_its_needs, walk
    from espo_luigi.jobs.order import write_json
    from espo_luigi.tasks.base import EspoTask
    from espo_luigi.tasks.context import context, forget
    from espo_luigi.tasks.partition import simulations_of

    first, second = context().simulations
    of_both = [task for task in walk([tasks.All()]) if isinstance(task, EspoTask) and simulations_of(task)]
    copies = -(-n // (len(of_both) // 2)) - 2
    _copy_rows(Path("espo-demo/raw/simulation.csv"), copies)
    config = Path("config/demo/config.yml")
    config.write_text(config.read_text().replace("- Demo-NoLeap", "- Demo-NoLeap.*"))
    forget()
    done = set(list(context().simulations)[::2]) | {first, second}
    for task, _ in each_after_its_needs([tasks.All()]).values():
        if isinstance(task, EspoTask) and simulations_of(task) & done:
            inputs = task.input_ids()
            _complete(
                task, store.Marker(task.get_task_family(), task.wildcards, inputs=inputs, fingerprints=_parts(task))
            )
            write_json(task.order().files.result, _result(task))


def _copy_rows(path: Path, copies: int) -> None:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
        for number in range(copies):
            for row in rows:
                if "Demo-NoLeap" in row["id"]:
                    copied = {key: row[key].replace("Demo-NoLeap", f"Demo-NoLeap{number}") for key in ("id", "source")}
                    writer.writerow(row | copied)


def _parts(task: Any) -> dict[str, str]:
    from espo_luigi.tasks import staleness

    keys = {key for one in [task, *task.requires()] for key in one.reading()}
    return staleness.fingerprints_of(task.context, keys, None, [])


def _complete(task: Any, marker: Any) -> None:
    for target in task.output():
        path = Path(str(target))
        if path.suffix == ".csv":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"action\n# espo.json: {json.dumps(json.loads(marker.to_json()))}\n")
        else:
            path.mkdir(parents=True)
            (path / "zarr.json").write_text("{}")
            (path / "espo.json").write_text(marker.to_json())


def _result(task: Any) -> dict[str, Any]:
    parameters = {**task.wildcards, "cpus_per_task": "4"}
    figures = {"started": 1.0, "ended": 61.0, "peak_memory_bytes": 10**9, "size": task.work_size()}
    return {"family": task.get_task_family(), "outcome": "success", "parameters": parameters, **figures}


def main() -> None:
    """Print the table, then the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--departures", action="store_true", help="what each departure from stock Luigi earns")
    parser.add_argument("--one", choices=[*DEPARTURES, "stock"], help=argparse.SUPPRESS)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plan", action="store_true", help="measure espo plan instead")
    parser.add_argument("--status", action="store_true", help="measure espo status instead")
    parser.add_argument("--make-run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make_run:
        make_run(options.tasks)
        return
    if options.plan:
        print(json.dumps({"tasks": options.tasks, **plan_seconds(options.tasks)}))
        return
    if options.status:
        print(json.dumps({"tasks": options.tasks, **status_seconds(options.tasks)}))
        return
    if options.one:
        print(json.dumps(measure(options.one, options.tasks, options.run)))
        return
    figures: dict[str, Any] = {"tasks": options.tasks, "rows": []}
    print(f"{'':16} {'tasks':>7} {'schedule':>10} {'(CPU)':>8} {'run':>10} {'(CPU)':>8}  CPU ms a task")
    ours_and_stock = (
        *(("ours", part, True) for part in SIZES),
        ("stock", SIZES[0], True),
        ("stock", SIZES[-1], False),
    )
    for kind, part, run in [(kind, SIZES[0], True) for kind in DEPARTURES] if options.departures else ours_and_stock:
        n = options.tasks // part
        row = _in_a_process(kind, n, run)
        figures["rows"].append({"kind": kind, "tasks": n, **row})
        text = [f"{row[name]:.2f}" if name in row else "-" for name in ("schedule_s", "schedule_cpu_s")]
        text += [f"{row[name]:.2f}" if name in row else "-" for name in ("run_s", "run_cpu_s")]
        each = 1000 * row.get("run_cpu_s", 0.0) / n
        print(f"{kind:16} {n:7} {text[0]:>10} {text[1]:>8} {text[2]:>10} {text[3]:>8}  {each:.2f}", flush=True)
    if not options.departures:
        figures |= _ratios(figures["rows"])
        ratios = f"scheduling: stock / ours = {figures['schedule_ratio']:.1f}; run: stock / ours = "
        print(f"{ratios}{figures['run_ratio']:.1f}")
    print(json.dumps(figures))


def _ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    small, _, large, stock_small, stock_large = rows
    return {
        "schedule_ratio": stock_large["schedule_cpu_s"] / large["schedule_cpu_s"],
        "run_ratio": stock_small["run_cpu_s"] / small["run_cpu_s"],
        "run_growth": (large["run_cpu_s"] / large["tasks"]) / (small["run_cpu_s"] / small["tasks"]),
    }


if __name__ == "__main__":
    main()
