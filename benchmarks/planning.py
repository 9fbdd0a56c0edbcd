"""Seconds to schedule a root with N tasks below it, and to run them when they do nothing: ours and stock Luigi.

``python benchmarks/planning.py --tasks 20000``. Real: Luigi's parameters, worker, local scheduler; the graph is built
within the time. Each measurement is a process of its own (the imports are not counted), CPU seconds beside elapsed
ones, as the machine may be shared. Ours: `SlurmTask` with `EspoWorker`. Stock: `luigi.Task` with the same
parameters, Luigi's worker and scheduler. `run` and `complete` do nothing, so that what is measured is the machinery.
A stock run takes time in proportion to the square of the tasks, so it is measured for the smallest size only.

``--plan --tasks 100000`` measures `espo plan Adjust`, as a command: 500 simulations x 20 pieces x 5 variables x Train
and Adjust, and the tasks that these need. The simulations are found in a catalogue of files that are not there. Every
second simulation, and what comes before Train, is complete (markers without data), with as many results of jobs. N is a
multiple of 200 tasks of Train and Adjust; making the run takes longer than the plan.

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
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring

ROOT = Path(__file__).absolute().parent.parent
SIZES = (20, 4, 1)  # N divided by each
# Of `--plan`: simulations follow from the number of tasks of Train and Adjust, of 100 000 tasks 500.
PIECES, VARIABLES = 20, 5
MORE_VARIABLES = ("hurs", "sfcWind")
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
    wall, cpu = time.perf_counter(), measuring.cpu_seconds()
    act()
    return {f"{name}_s": time.perf_counter() - wall, f"{name}_cpu_s": measuring.cpu_seconds() - cpu}


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


def command(folder: Path, *words: str) -> tuple[dict[str, float], str]:
    """Run a command of ours in a folder; return its elapsed and CPU seconds, and what it printed."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    taken, told = measuring.run(sys.executable, *words, cwd=folder, env=environ)
    return taken.rounded(), told


def plan_seconds(n: int) -> dict[str, Any]:
    """Make a run of `n` tasks of Train and Adjust, half of them complete, and time `espo plan Adjust` of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "config", folder / "config")
        text = (ROOT / "luigi.cfg").read_text().replace("demo/outcomes.yml", "demo/wide.yml")
        (folder / "luigi.cfg").write_text(text.replace("[espo]\n", "[espo]\nfinal_format = sharded\n"))
        (folder / "config/demo/wide.yml").write_text(json.dumps(_wide()))
        command(folder, __file__, "--make-run", "--tasks", str(n))
        figures, said = command(folder, "-m", "espo_luigi.commands.cli", "plan", "Adjust")
        (counted,) = (line for line in said.splitlines() if " tasks: " in line)
        return figures | {"counted": counted}


def _wide() -> dict[str, Any]:
    """Return what the demo's configuration lacks: `PIECES` pieces, and variables that no file has."""
    height = 5 / PIECES
    bands = {
        f"band-{i}": {"lon_bnds": [-72.75, -62.75], "lat_bnds": [44.25 + i * height, 44.25 + (i + 1) * height]}
        for i in range(PIECES)
    }
    how = {
        "training_args": {"group": "time.dayofyear", "xclim_train_args": {"kind": "+", "nquantiles": 50}},
        "adjusting_args": {"bias_adjust_institution": "X", "bias_adjust_project": "X"},
    }
    searched = {"variables_and_freqs": dict.fromkeys(MORE_VARIABLES, "D")}
    simulated = searched | {"other_search_criteria": {"source": "Demo-NoLeap.*"}}
    return {
        "custom": {"regions": {**dict.fromkeys(("south", "middle", "north")), **bands}},
        "extraction": {
            "reference": {"search_data_catalogs": searched},
            "simulation": {"search_data_catalogs": simulated},
        },
        "biasadjust": {"variables": dict.fromkeys(MORE_VARIABLES, how)},
        "off-diag": None,
        "diagnostics": None,
    }


def status_seconds(n: int) -> dict[str, Any]:
    """Make the files of a run of `n` tasks, and time `espo status` of it, with a driver and without."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "luigi.cfg").write_text("[espo]\nworkdir = run\nengine = slurm\n")
        figures = {}
        for driver in ("alive", "dead"):
            _make_state(folder / "run", n, time.time() if driver == "alive" else 1.0)
            figures[driver], said = command(folder, "-m", "espo_luigi.commands.cli", "status")
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
            board.end(str(number), None, 60.0)
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
    from espo_luigi.demo import ensure_demo
    from espo_luigi.driver.graph import Graph
    from espo_luigi.jobs.order import JobFiles, write_json
    from espo_luigi.tasks.context import context, settings
    from espo_luigi.tasks.partition import pieces

    ensure_demo(context().config.demo)
    for name in ("reconstruction", "simulation"):
        _widen(Path(f"espo-demo/raw/{name}.csv"), n // (2 * PIECES * VARIABLES) - 1)
    run = context()
    ends = [
        tasks.Adjust(pool=pool, piece=piece, var=var)
        for pool in run.pools
        for piece in pieces(run)
        for var in run.config.biasadjust.variables
    ]
    assert 2 * len(ends) == n, f"{2 * len(ends)} tasks"
    done, workdir = set(list(run.pools)[::2]), Path(settings().workdir).absolute()
    for task in Graph(ends):
        if getattr(task, "pool", "") in done or not isinstance(task, tasks.Train | tasks.Adjust):
            inputs = task.input_ids()
            marker = store.Marker(task.task_family, task.wildcards, inputs=inputs, fingerprints=_parts(task))
            _complete(task, marker)
            write_json(JobFiles.of(workdir, task.task_family, task.wildcards).result, _result(task))


def _widen(path: Path, copies: int) -> None:
    """Add the variables that no file has, and so many copies of a simulation, to a catalogue."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    of_tasmin = [row for row in rows if "tasmin" in row["variable"]]
    more = [row | {"variable": f"('{name}',)"} for row in of_tasmin for name in MORE_VARIABLES]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows([*rows, *more])
        for number in range(copies):
            for row in [*rows, *more]:
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


def compare(n: int, departures: bool) -> dict[str, Any]:
    """Schedule, and run, by ours and stock Luigi or with each departure left out; each in a process of its own."""
    rows = [(kind, SIZES[0], True) for kind in DEPARTURES]
    if not departures:
        rows = [*(("ours", part, True) for part in SIZES), ("stock", SIZES[0], True), ("stock", SIZES[-1], False)]
    made = []
    for kind, part, run in rows:
        words = ["--one", kind, "--tasks", n // part, *["--run"] * run]
        figures = json.loads(measuring.script(__file__, *words)[1].splitlines()[-1])
        made.append({"kind": kind, "tasks": n // part, **{name: round(value, 2) for name, value in figures.items()}})
        print(*(f"{name} {value}" for name, value in made[-1].items()), sep=", ", flush=True)
    if departures:
        return {"rows": made}
    small, _, large, stock_small, stock_large = made
    schedule = stock_large["schedule_cpu_s"] / large["schedule_cpu_s"]
    return {"rows": made, "schedule_ratio": schedule, "run_ratio": stock_small["run_cpu_s"] / small["run_cpu_s"]}


def main() -> None:
    """Print a line for each measurement, then the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--departures", action="store_true", help="what each departure from stock Luigi earns")
    parser.add_argument("--one", choices=[*DEPARTURES, "stock"], help=argparse.SUPPRESS)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plan", action="store_true", help="measure espo plan instead")
    parser.add_argument("--status", action="store_true", help="measure espo status instead")
    parser.add_argument("--make-run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    n = options.tasks
    if options.make_run:
        make_run(n)
    elif options.one:
        print(json.dumps(measure(options.one, n, options.run)))
    elif options.plan or options.status:
        print(json.dumps({"tasks": n, **(plan_seconds(n) if options.plan else status_seconds(n))}))
    else:
        print(json.dumps({"tasks": n, **compare(n, options.departures)}))


if __name__ == "__main__":
    main()
