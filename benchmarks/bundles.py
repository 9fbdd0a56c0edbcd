"""Jobs, core-seconds and wall time of many small tasks on a real Slurm: alone, packed, as arrays, with pilots.

``python benchmarks/bundles.py --tasks 24 [--only alone,pilot]``. Real: Slurm with accounting (the throw-away cluster of
`throwaway_slurm.py`, one node with this machine's CPUs), its jobs, and the command as users give it. Each task
imports what a rule imports, starts Dask and computes for a moment.

Jobs are those that Slurm accounts for (each element of an array is one), submissions the calls of sbatch. Core-seconds
are what Slurm accounts: CPUs that were allocated, by seconds; used are the CPU seconds of the tasks' own processes
while they worked, without their imports.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import luigi

from espo_luigi import Resources, SlurmTask, install

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from throwaway_slurm import ClusterSpec, ThrowawayCluster

install()

KINDS = {
    "alone": "",
    "steps": "pack = {n}\npack_at_once = {cpus}\n",
    "array": "pack = {n}\nbundle = array\n",
    "pilot": "pack = {n}\nbundle = pilot\npack_at_once = {cpus}\n",
}
CONFIGURATION = """\
[core]
workers = 500
log_level = WARNING
no_lock = true
[espo]
engine = slurm
workdir = work
[slurm]
poll_seconds = 1
result_seconds = 1
max_status_per_second = 10
{options}
[worker]
wait_interval = 0.5
"""


class Small(SlurmTask):
    """Write the sum of some integers, computed by Dask."""

    n = luigi.IntParameter()
    resources_default = Resources(1, 1, "1GB", "10")
    preload = (*SlurmTask.preload, "xarray", "zarr")

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(str(Path("out").absolute() / f"{self.n}.txt"))

    def work(self) -> None:
        import dask.array
        import xarray

        numbers = xarray.DataArray(dask.array.arange(1000 * int(self.n), chunks=100), dims="x")
        with self.output().open("w") as file:
            file.write(str(int(numbers.sum().compute())))


class Many(luigi.WrapperTask):
    """So many of them."""

    tasks = luigi.IntParameter()

    def requires(self) -> list[luigi.Task]:
        return [Small(n=n + 1) for n in range(int(self.tasks))]


def measure(kind: str, n: int, cpus: int, cluster: ThrowawayCluster) -> dict[str, Any]:
    """Run one kind with `n` tasks in a folder of its own; return its figures."""
    modules = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory(prefix="espo-bundles-", ignore_cleanup_errors=True) as folder:
        run = Path(folder) / f"run-{kind}"
        run.mkdir()
        options = KINDS[kind].format(n=n, cpus=cpus)
        (run / "luigi.cfg").write_text(CONFIGURATION.format(options=options))
        (run / "out").mkdir()
        command = [str(Path(sys.executable).parent / "luigi"), "--module", "bundles", "Many", "--tasks", str(n)]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--local-scheduler"],
            cwd=run,
            env=cluster.environ | {"PYTHONPATH": modules},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
        if done.returncode:
            print(f"{kind}: exit code {done.returncode}\n{done.stderr[-2000:]}", file=sys.stderr)
        results = [json.loads(path.read_text()) for path in run.glob("work/jobs/Small/*.result.json")]
        outputs = sorted((run / "out").glob("*.txt"))
        digest = hashlib.sha256("".join(path.name + path.read_text() for path in outputs).encode()).hexdigest()[:8]
    submissions, jobs, cores = accounted(cluster)
    return {
        "kind": kind,
        "tasks": len(outputs),
        "submissions": submissions,
        "jobs": jobs,
        "core_seconds": cores,
        "used_seconds": round(sum(result["cpu_seconds"] for result in results)),
        "seconds": seconds,
        "sha256": digest,
    }


def accounted(cluster: ThrowawayCluster) -> tuple[int, int, int]:
    """The submissions, jobs and core-seconds of the jobs that have ended since this was asked last."""
    while cluster.run("squeue", "--noheader").strip():
        time.sleep(0.5)
    time.sleep(2)
    said = cluster.run("sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,CPUTimeRAW")
    rows = [line.split("|") for line in said.splitlines()]
    fresh = [(job_id, int(cores)) for job_id, cores in rows if job_id not in _seen]
    _seen.update(job_id for job_id, _ in fresh)
    return len({job_id.partition("_")[0] for job_id, _ in fresh}), len(fresh), sum(cores for _, cores in fresh)


_seen: set[str] = set()


def main() -> None:
    """Print the table, then the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    options = parser.parse_args()
    cpus = os.cpu_count() or 1
    rows = []
    with ThrowawayCluster.start(ClusterSpec(nodes=1, cpus=cpus, memory_mib=64_000, accounting=True)) as cluster:
        names = ("tasks", "submissions", "jobs", "core_seconds", "used_seconds", "seconds", "sha256")
        print(f"{'':8}" + "".join(f"{name:>14}" for name in names))
        for kind in options.only.split(","):
            rows.append(row := measure(kind, options.tasks, cpus, cluster))
            cells = (f"{row[name]:.1f}" if name == "seconds" else str(row[name]) for name in names)
            print(f"{kind:8}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
    print(json.dumps({"rows": rows, "cpus": cpus, "load": os.getloadavg()}))


if __name__ == "__main__":
    main()
