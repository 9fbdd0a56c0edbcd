"""Memory of a driver with N jobs in flight, at the start and after 600 polls, and the Slurm commands that it ran.

``python benchmarks/driver_memory.py --jobs 2000``. Real: Slurm (the throw-away cluster of
`tests/support/throwaway_slurm.py`), its N jobs, Luigi, the worker with N waiting tasks, the job manager. The jobs are
submitted with ``--begin=now+1day`` and so stay pending, at no cost. Ten minutes of polling at 1 Hz are made short by
polling as often as Slurm answers; the number of polls is the same. The driver is a process of its own, whose memory is
what the kernel says (VmRSS).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import luigi
from luigi.configuration import get_config

from espo_luigi import Resources, SlurmTask
from espo_luigi.driver.engines import engine
from espo_luigi.driver.install import WorkerSchedulerFactory

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from throwaway_slurm import ClusterSpec, ThrowawayCluster


class Later(SlurmTask):
    """A job that does not begin while this benchmark runs."""

    n = luigi.IntParameter()
    resources_default = Resources(1, 1, "1GB", "10")
    options_default = {"slurm": {"extra": {"begin": "now+1day"}}}

    def complete(self) -> bool:
        return False


class Laters(luigi.WrapperTask):
    """`n` of them."""

    n = luigi.IntParameter()

    def requires(self) -> list[luigi.Task]:
        return [Later(n=i) for i in range(int(self.n))]


def drive(n: int, polls: int) -> None:
    """Be the driver: `n` jobs in flight, `polls` polls, then an end; print figures as a JSON object a line."""
    workdir = tempfile.mkdtemp(prefix="espo-driver-memory-")
    os.chdir(workdir)
    configuration = get_config()
    for section, option, value in (
        ("espo", "engine", "slurm"),
        ("espo", "workdir", workdir),
        ("slurm", "max_jobs", str(n)),
        ("slurm", "max_submit_per_second", "1000"),
        ("slurm", "max_status_per_second", "1000"),
        ("slurm", "poll_seconds", "0.05"),
        ("slurm", "result_seconds", "0.05"),
    ):
        configuration.set(section, option, value)
    logging.getLogger("espo_luigi").setLevel(logging.CRITICAL)  # each of the N tasks says that it was cancelled
    logging.getLogger("espo_luigi").addHandler(logging.NullHandler())
    print(json.dumps({"at": "import", "rss_mb": _rss()}), flush=True)
    threading.Thread(target=_watch, args=(n, polls), daemon=True).start()
    try:
        luigi.build(
            [Laters(n=n)],
            local_scheduler=True,
            workers=n + 10,
            worker_scheduler_factory=WorkerSchedulerFactory(),
            log_level="ERROR",
        )
    except KeyboardInterrupt:
        print(json.dumps({"at": "end", "rss_mb": _rss()}), flush=True)


def _watch(n: int, polls: int) -> None:
    counts: Any = {}
    while counts.get("sbatch", 0) < n:
        time.sleep(0.2)
        counts = engine("slurm")._manager.commands.counts  # type: ignore[attr-defined]
    time.sleep(2)
    first, began = counts["squeue"], time.monotonic()
    for part in range(5):
        while counts["squeue"] < first + part * polls // 4:
            time.sleep(0.05)
        figures = {"at": f"{part * polls // 4} polls", "rss_mb": _rss(), "threads": threading.active_count()}
        print(json.dumps(figures | {"seconds": time.monotonic() - began, "commands": dict(counts)}), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _rss() -> float:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


def main() -> None:
    """Print the table, then the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--polls", type=int, default=600)
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(options.jobs, options.polls)
        return
    rows: list[dict[str, Any]] = []
    with ThrowawayCluster.start(ClusterSpec(nodes=1, cpus=4, conf=(f"MaxJobCount={options.jobs + 100}",))) as cluster:
        # Not as a script: a job has to be able to import its task's module.
        program = "import driver_memory; driver_memory.main()"
        command = [sys.executable, "-c", program, "--drive", f"--jobs={options.jobs}", f"--polls={options.polls}"]
        environ = cluster.environ | {"PYTHONPATH": str(Path(__file__).parent)}
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout is not None
            print(f"{'':12} {'RSS, MB':>8} {'threads':>8} {'seconds':>8}  Slurm commands so far")
            for line in driver.stdout:
                row = json.loads(line)
                rows.append(row)
                done = " ".join(f"{name} {count}" for name, count in row.get("commands", {}).items())
                cells = (f"{row['rss_mb']:8.1f}", f"{row.get('threads', ''):>8}", f"{row.get('seconds', 0):8.0f}")
                print(f"{row['at']:12}", *cells, "", done, flush=True)
    start, end = rows[1], rows[-2]
    grown = end["rss_mb"] - start["rss_mb"]
    print(f"{options.jobs} jobs: {start['rss_mb']:.0f} MB at first, {grown:+.1f} MB after {options.polls} polls")
    print(json.dumps({"jobs": options.jobs, "polls": options.polls, "grown_mb": grown, "rows": rows}))


if __name__ == "__main__":
    main()
