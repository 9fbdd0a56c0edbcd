"""A work folder whose orders are small jobs that do as they are told, and managers with a short patience."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from espo_luigi.files import replace_text
from espo_luigi.jobs.lifecycle.manager import JobManager, JobSettings
from espo_luigi.jobs.lifecycle.policy import Patience
from espo_luigi.jobs.order import JobFiles, JobOrder, Limits, Terms
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.retry import Clock
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.commands import Commands, CommandSettings

NODE_JOB = Path(__file__).with_name("node_job.py")
PILOT_JOB = Path(__file__).with_name("pilot_job.py")
PATIENCE = Patience(latency_wait=1.5, absent_after=6.0, settle=1.0, unclear_refusal=3.0, hopeless=3.0)


LIMITS = {one.name for one in fields(Limits)}
TERMS = {one.name for one in fields(Terms)} - {"limits"}


@dataclass(frozen=True)
class Order(JobOrder):
    """An order whose file is what the stand-in for a job reads; `rewritten` is called instead of writing it."""

    rewritten: Callable[[], None] = lambda: None

    def write(self, **more: Any) -> None:
        self.rewritten()


@dataclass(frozen=True)
class Work:
    """A work folder, and the requests and managers of tests in it."""

    folder: Path
    scheduler: str = "slurm"

    def order(
        self,
        name: str,
        do: str | list[str] = "succeed",
        seconds: float = 0.0,
        *,
        rule: str = "rule",
        wildcards: Mapping[str, str] | None = None,
        cpus_per_task: int = 1,
        memory_bytes: int = 100 * 2**20,
        time_minutes: int = 10,
        **more: Any,
    ) -> Order:
        """An order of rule ``rule`` for wildcard ``name``, whose job does as told, on terms that `more` may have."""
        files = {part: self.folder / f"{part}s" / name for part in ("result", "heartbeat")}
        job_file = self.folder / f"{name}.json"
        job = {"do": do, "seconds": seconds, "starts": self.folder / "starts.txt", "output": self.output(name), **files}
        job["stack_after"] = 0.5 * more.get("stall_timeout_seconds", 0.0)
        # Whole at any moment: jobs of a killed driver read it, too.
        replace_text(job_file, json.dumps(job, default=str))
        limits = {key: more.pop(key) for key in LIMITS & more.keys()}
        # -S: without site-packages, a job starts in a tenth of the time
        command = (sys.executable, "-I", "-S", str(NODE_JOB), str(job_file))
        terms = {"run": "run", "command": command, **{key: more.pop(key) for key in TERMS & more.keys()}}
        return Order(
            id=name,
            label=f"rule (name={name})",
            module="",
            family=rule,
            parameters={},
            wildcards=wildcards or {"name": name},
            resources=Resources(1, cpus_per_task, f"{memory_bytes // 2**10}K", str(time_minutes)),
            files=JobFiles(job_file, log=self.folder / f"{name}.log", **files),
            terms=Terms(limits=Limits(**limits), **terms),
            **more,
        )

    def output(self, name: str) -> Path:
        """The file that the job of that name makes."""
        return self.folder / f"{name}.output"

    def manager(
        self,
        environ: Mapping[str, str],
        commands: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        **settings: Any,
    ) -> JobManager:
        """A manager that is not started, with short waits."""
        limits = {"max_status_per_second": 10.0, "max_submit_per_second": 100.0, "timeout_seconds": 20.0}
        running = Commands(
            SCHEDULERS[self.scheduler], CommandSettings(**{**limits, **(commands or {})}), environ, clock
        )
        looks = {"poll_seconds": 0.5, "result_seconds": 0.1, "beat_seconds": 0.5}
        times = {**looks, "first_backoff": 0.5, "patience": PATIENCE}
        where = {"workdir": self.folder, "log_dir": self.folder / f"{self.scheduler}_logs"}
        return JobManager(JobSettings(**{**where, **times, **settings}), running, self.folder / "state")

    def starts(self) -> list[str]:
        """Names of the jobs that started their work, one entry a start."""
        path = self.folder / "starts.txt"
        return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []
