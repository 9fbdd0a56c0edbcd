"""A work folder whose orders are small jobs that do as they are told, and managers with a short patience."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espo_luigi.files import write_atomically
from espo_luigi.jobs.lifecycle.manager import JobManager
from espo_luigi.jobs.order import JobFiles, JobOrder
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.retry import Clock
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.settings import BatchSettings, Patience

NODE_JOB = Path(__file__).with_name("node_job.py")
PATIENCE = Patience(
    latency_wait=1.5,
    absent_after=6.0,
    settle=1.0,
    unclear_refusal=3.0,
    hopeless=3.0,
    first_refusal=0.5,
)


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
        """An order of rule ``rule`` for wildcard ``name``, whose job does as told."""
        files = {part: self.folder / f"{part}s" / name for part in ("result", "heartbeat")}
        job_file = self.folder / f"{name}.json"
        job = {"do": do, "seconds": seconds, "starts": self.folder / "starts.txt", "output": self.output(name), **files}
        # Whole at any moment: jobs of a killed driver read it, too.
        write_atomically(job_file, json.dumps(job, default=str))
        return Order(
            id=name,
            label=f"rule (name={name})",
            module="",
            family=rule,
            parameters={},
            wildcards=wildcards or {"name": name},
            resources=Resources(1, cpus_per_task, f"{memory_bytes // 2**10}K", str(time_minutes)),
            files=JobFiles(job_file, log=self.folder / f"{name}.log", **files),
            **more,
        )

    def output(self, name: str) -> Path:
        """The file that the job of that name makes."""
        return self.folder / f"{name}.output"

    def end(self, name: str) -> None:
        """Have the job of that name end its work, however long it should take."""
        Path(f"{self.output(name)}.told").touch()

    @property
    def state_dir(self) -> Path:
        """The folder of the records."""
        return self.settings.state_dir

    @property
    def settings(self) -> BatchSettings:
        """Settings with short waits, under which a failed job is not tried again."""
        return BatchSettings(
            workdir=self.folder / "run",
            start_dir=self.folder,
            log_dir=self.folder / f"{self.scheduler}_logs",
            # -S: without site-packages, a job starts in a tenth of the time
            work=(sys.executable, "-I", "-S", str(NODE_JOB)),
            retries=0,
            stall_timeout_seconds=None,
            poll_seconds=0.5,
            result_seconds=0.1,
            beat_seconds=0.5,
            command_seconds=20.0,
            max_status_per_second=10.0,
            max_submit_per_second=100.0,
            patience=PATIENCE,
        )

    def manager(self, environ: Mapping[str, str], clock: Clock | None = None, **settings: Any) -> JobManager:
        """A manager that is not started, with short waits."""
        chosen = replace(self.settings, **settings)
        return JobManager(Commands(SCHEDULERS[self.scheduler], chosen, environ, clock))

    def starts(self) -> list[str]:
        """Names of the jobs that started their work, one entry a start."""
        path = self.folder / "starts.txt"
        return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []
