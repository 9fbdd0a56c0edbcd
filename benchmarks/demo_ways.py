"""The demo of one simulation by every way in which its jobs can go: figures of each, and whether the data are the same.

``python benchmarks/demo_ways.py [--only local,pilot]``. Real: Slurm with accounting and Grid Engine (the throw-away
clusters of `tests/`, one node with this machine's CPUs), and the command as users give it. The demo is that of
`tests/tasks/test_demo_on_clusters.py` with all of its domains: many chunks in every dimension, two regions, no report.

Jobs are those that Slurm accounts for (each element of an array is one, Dask's workers in jobs of their own are some),
submissions the calls of sbatch or salloc. Core-seconds are what Slurm accounts: CPUs that were allocated, by seconds;
used are the CPU seconds of the tasks' own processes while they worked, without their imports. The data are compared,
value by value and attribute by attribute, with those of the first way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bundles import accounted

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "tasks"))
from demo_runs import write_config
from test_demo_on_clusters import TWO_BANDS
from test_production_shape import MANY, SHAPE, assert_same, make_raw
from throwaway_sge import ThrowawayGridEngine
from throwaway_slurm import ClusterSpec, ThrowawayCluster

CPUS = os.cpu_count() or 1
# A job has one CPU, so that as many run at once as the node has: alone, or as members of one bundle.
BUNDLES = "pack = 8\npack_at_once = {cpus}\nbundle = {kind}\n"
SPREAD = ("Regrid", "Train", "Adjust", "CleanUp", "ConcatenationFinal")
CONFIGURATION = """\
[core]
workers = 500
log_level = WARNING
no_lock = true
[espo]
engine = {engine}
workdir = run
config = {config}
{options}[worker]
wait_interval = 0.5
"""
OF_A_CLUSTER = "[{engine}]\nnode_cpus = 1\nnode_memory = {memory}\npoll_seconds = 1\nresult_seconds = 1\n"


class Way(NamedTuple):
    """How the demo's jobs go: an engine, its options, those of rules, and the words that start the command."""

    engine: str
    options: str = ""
    rules: str = ""
    within: tuple[str, ...] = ()


WAYS = {
    "local": Way("local"),
    "slurm": Way("slurm"),
    "steps": Way("slurm", BUNDLES.format(cpus=CPUS, kind="steps")),
    "array": Way("slurm", "pack = 8\nbundle = array\n"),
    "pilot": Way("slurm", BUNDLES.format(cpus=CPUS, kind="pilot")),
    # One after the other: two that held all CPUs would wait for workers that find none.
    "jobqueue": Way("slurm", "max_jobs = 1\n", rules="".join(f"[{rule}]\ncluster = jobqueue\n" for rule in SPREAD)),
    "allocation": Way("allocation", within=("salloc", f"--cpus-per-task={CPUS}", "--mem=8G", "--time=60")),
    "sge": Way("sge", "queue = main.q\n"),
}


def run_demo(way: Way, folder: Path, raw: Path, environ: Mapping[str, str]) -> None:
    """Make everything in `folder` by the command; exits with its last words if it fails."""
    folder.mkdir()
    config = " ".join(map(str, write_config(folder, raw, **{**SHAPE, **MANY, **TWO_BANDS})))
    memory = "8GB" if way.engine == "sge" else "4GB"
    of_a_cluster = OF_A_CLUSTER.format(engine=way.engine, memory=memory) if way.engine in ("slurm", "sge") else ""
    text = CONFIGURATION.format(engine=way.engine, config=config, options=of_a_cluster + way.options)
    (folder / "luigi.cfg").write_text(text + way.rules)
    luigi = [str(Path(sys.executable).parent / "luigi"), "--module", "espo_luigi.tasks", "All", "--local-scheduler"]
    with (folder / "stderr").open("w") as stderr:
        code = subprocess.call([*way.within, *luigi], cwd=folder, env=environ, stderr=stderr)
    if code:
        sys.exit(f"{folder.name} ended with {code}:\n{(folder / 'stderr').read_text()[-4000:]}")


def products(folder: Path) -> dict[str, Path]:
    """The stores, archives and tables in a folder, by their names in it."""
    found: dict[str, Path] = {}
    for place, folders, files in os.walk(folder):
        stores = [name for name in folders if name.endswith(".zarr")]
        folders[:] = [name for name in folders if name not in stores]
        made = [*stores, *(name for name in files if name.endswith((".zip", ".csv", ".nc")))]
        found |= {str((Path(place) / name).relative_to(folder)): Path(place) / name for name in made}
    return found


def is_same(folder: Path, other: Path) -> bool:
    """Whether two folders hold the same products. Prints what differs."""
    made, wanted = products(folder), products(other)
    differing = sorted(made.keys() ^ wanted.keys())
    for name in made.keys() & wanted.keys():
        try:
            assert_same(made[name], wanted[name])
        except AssertionError as error:
            differing.append(f"{name}: {str(error)[:500]}")
    print(*differing, sep="\n", end="\n" if differing else "", file=sys.stderr)
    return bool(made) and not differing


def measure(name: str, folder: Path, raw: Path, cluster: Any) -> dict[str, Any]:
    """Run one way; return its figures."""
    began = time.monotonic()
    run_demo(WAYS[name], folder, raw, dict(os.environ) if cluster is None else cluster.environ)
    seconds = time.monotonic() - began
    results = [json.loads(path.read_text()) for path in (folder / "run" / "jobs").glob("*/*.result.json")]
    submissions, jobs, cores = accounted(cluster) if isinstance(cluster, ThrowawayCluster) else ("-", "-", "-")
    return {
        "way": name,
        "tasks": len(results),
        "submissions": submissions,
        "jobs": jobs,
        "core_seconds": cores,
        "used_seconds": round(sum(result["cpu_seconds"] for result in results)),
        "seconds": round(seconds),
    }


def main() -> None:
    """Print the table, then the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(WAYS), help="ways, separated by commas")
    names = parser.parse_args().only.split(",")
    engines = {WAYS[name].engine for name in names}
    columns = ("tasks", "submissions", "jobs", "core_seconds", "used_seconds", "seconds", "same")
    rows = []
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="espo-ways-", ignore_cleanup_errors=True)
        place = Path(stack.enter_context(folder))
        clusters: dict[str, Any] = {"local": None}
        if "sge" in engines:
            clusters["sge"] = stack.enter_context(ThrowawayGridEngine.start())
        if engines & {"slurm", "allocation"}:
            slurm = ThrowawayCluster.start(ClusterSpec(1, CPUS, 64_000, accounting=True))
            clusters["slurm"] = clusters["allocation"] = stack.enter_context(slurm)
        raw = make_raw(place / "raw")
        print(f"{'':12}" + "".join(f"{column:>14}" for column in columns), flush=True)
        for name in names:
            row = measure(name, place / name, raw, clusters[WAYS[name].engine])
            row["same"] = is_same(place / name / "final", place / names[0] / "final")
            rows.append(row)
            print(f"{name:12}" + "".join(f"{row[column]!s:>14}" for column in columns), flush=True)
    print(json.dumps({"rows": rows, "cpus": CPUS, "load": os.getloadavg()}))


if __name__ == "__main__":
    main()
