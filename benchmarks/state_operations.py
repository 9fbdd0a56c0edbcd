"""Operations on the shared file system that keeping watch takes: of one job's heart, and of a driver with N jobs.

``python benchmarks/state_operations.py [--jobs 500] [--seconds 60]``. Both run under ``strace``, with production's
settings, and calls that name a path or an open file below the work folder are counted. Real: the job's heart and the
job manager. Stood in for: Slurm's commands (`tests/support/fake_slurm.py`, whose own files do not count), and the work,
which is made to look as if it always moved. Rules: `--rules` folders, with `--ended` results of jobs before.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
import fake_slurm

from espo_luigi.jobs.lifecycle.manager import JobManager
from espo_luigi.jobs.node.heartbeat import Monitor
from espo_luigi.jobs.node.run import signs_of_life
from espo_luigi.jobs.order import JobFiles, JobOrder
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.settings import BatchSettings

# Calls that ask the metadata server, or the disk, on a network file system; reading a listing on asks again.
_CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)$")


def beat(folder: Path, seconds: float) -> None:
    """Be a job that works for so long."""
    Monitor.look = lambda self: True  # type: ignore[method-assign]
    order = _order(folder, 0, 1)
    for path in (order.files.order, order.files.heartbeat):
        path.parent.mkdir(parents=True, exist_ok=True)
    (folder / "START").touch()
    with signs_of_life(order, Monitor()):
        time.sleep(seconds)
        (folder / "STOP").touch()


def drive(folder: Path, jobs: int, rules: int, ended: int, seconds: float) -> None:
    """Be a driver of so many running jobs; what is done from the line ``START`` on counts."""
    stand_ins = Path(tempfile.mkdtemp(prefix="espo-fake-"))
    fake_slurm.install(stand_ins)
    for rule in range(rules):
        for number in range(ended // rules):
            files = _order(folder, rule + rules * (number + jobs), rules).files
            for path in (files.order, files.result):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
    settings = BatchSettings(folder, log_dir=folder / "logs", work=("true",), max_jobs=jobs, max_submit_per_second=0)
    commands = Commands(slurm, settings, {"PATH": f"{stand_ins}/bin:/usr/bin:/bin"})
    manager = JobManager(commands)
    manager.start()
    orders = [_order(folder, number, rules) for number in range(jobs)]
    handles = [manager.submit(order) for order in orders]
    while not all(handle.progress.job_id for handle in handles):
        time.sleep(0.5)
    for order in orders:
        order.files.heartbeat.parent.mkdir(parents=True, exist_ok=True)
        order.files.heartbeat.write_text('{"percent": 1, "message": "working"}')
    listed = stand_ins / "jobs"
    listed.write_text(listed.read_text().replace("|PENDING||Priority|", "|RUNNING|n1|None|"))
    while not all(handle.progress.state == "running" for handle in handles):
        time.sleep(0.5)
    (folder / "START").touch()
    time.sleep(seconds)
    (folder / "STOP").touch()
    manager.detach()


def _order(folder: Path, number: int, rules: int) -> JobOrder:
    family, wildcards = f"Rule{number % rules}", {"n": str(number)}
    return JobOrder(
        id=str(number),
        label=f"{family} {number}",
        module="m",
        family=family,
        parameters={},
        wildcards=wildcards,
        resources=Resources(memory="1GB"),
        files=JobFiles.of(folder, family, wildcards),
        beat_seconds=BatchSettings.beat_seconds,
    )


def counted(folder: Path, *arguments: str) -> Counter[str]:
    """Run this file with the arguments under strace; return the calls on files below `folder`."""
    trace = folder.with_suffix(".trace")
    strace = ["strace", "-f", "-y", "-s", "0", "-e", "trace=%file,%desc", "-e", "signal=none", "-o", str(trace)]
    subprocess.run([*strace, sys.executable, __file__, *arguments], check=True)
    lines = trace.read_text(errors="replace").splitlines()
    starts = [number for number, line in enumerate(lines) if f"{folder}/START" in line]
    stops = [number for number, line in enumerate(lines) if f"{folder}/STOP" in line]
    calls: Counter[str] = Counter()
    for line in lines[starts[-1] + 1 if starts else 0 : stops[0] if stops else None]:
        found = _CALL.match(line)
        if found and str(folder) in found[2]:
            calls[found[1]] += 1
    trace.unlink()
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--rules", type=int, default=5)
    parser.add_argument("--ended", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--be", choices=("job", "driver"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.be == "job":
        return beat(chosen.folder, chosen.seconds)
    if chosen.be == "driver":
        return drive(chosen.folder, chosen.jobs, chosen.rules, chosen.ended, chosen.seconds)
    said: dict[str, Any] = {"jobs": chosen.jobs}
    numbers = [f"--{name}={getattr(chosen, name)}" for name in ("jobs", "rules", "ended", "seconds")]
    with tempfile.TemporaryDirectory(prefix="espo-ops-") as where:
        for kind, share in (("job", chosen.jobs), ("driver", 1)):
            folder = Path(where) / kind
            folder.mkdir()
            calls = counted(folder, "--be", kind, "--folder", str(folder), *numbers)
            said[kind] = dict(calls.most_common())
            said[f"{kind}_per_second"] = round(sum(calls.values()) * share / chosen.seconds, 1)
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
