"""The settings of a scheduler's engine and the rules of its site: one frozen value, read once and handed down."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from espo_luigi.jobs.keys import FOLDER, NAMES, NUMBER, TABLE, WHOLE, key, table_of
from espo_luigi.jobs.resources import MEMORY, TIME, JobOptions, Resources, said_memory, said_time

# The folder of the records of any scheduler's jobs, in a run's work folder.
STATE_FOLDER = "scheduler"
# How amounts are written; what is not here is a number.
_AS_TEXT: Mapping[str, Callable[[int], str]] = {"memory": said_memory, "time": said_time}
# The options whose names differ from their limits'.
_OPTIONS: Mapping[str, str] = {"jobs": "max_jobs"}

_WARNING_SECONDS = 60


@dataclass(frozen=True)
class Site:
    """A site's rules, and the place that they come from (`[slurm] profile = narval`).

    Limits of memory are in bytes, those of time in minutes.
    """

    where: str = ""
    limits: Mapping[str, int] = key(
        {},
        "the most `memory`, `cpus`, `time` and `steps` of a job, and `jobs` at once. More is refused before anything "
        "is submitted; retries stop there. Without `max_jobs`, `jobs` takes its place",
        table_of({"cpus": WHOLE, "jobs": WHOLE, "memory": MEMORY, "steps": WHOLE, "time": TIME}),
    )
    needs: Mapping[str, str] = key(
        {}, "options that each user has to give, with an example. `SBATCH_ACCOUNT` and the like count", TABLE
    )
    grace: Mapping[str, int] = key(
        {}, "seconds between SIGTERM and the end of a preempted job, by pattern of partition", table_of(WHOLE)
    )
    not_for_workers: Mapping[str, tuple[str, ...]] = key(
        {}, 'values that jobs of Dask\'s workers may not have: `{partition: "gpu*,hpc*"}`', table_of(NAMES)
    )

    def exceeded(self, called: Mapping[str, str] = _OPTIONS, /, **asked: int) -> list[str]:
        """Return a sentence about each amount above its limit; `called` maps amounts to options of different names."""
        said = {name: _AS_TEXT.get(name, str) for name in asked}
        return [
            f"{called.get(name, name)} = {said[name](value)} is more than the {said[name](self.limits[name])} that "
            f"{self.where} allows"
            for name, value in asked.items()
            if value > self.limits.get(name, value)
        ]

    def missing(self, options: JobOptions) -> list[str]:
        """Return a sentence about each option that the user still has to give."""
        return [
            f"{self.where} needs your own {name}: write `{name} = …` below it (such as {example})"
            for name, example in self.needs.items()
            if not getattr(options, name)
        ]

    def warning_seconds(self, options: JobOptions, time_minutes: int) -> int:
        """Return how long before its end a job gets a signal: its grace time or a minute, at most a 20th of its time.

        Return 0 (no signal) if that is less than a minute and the partition has no grace time, as Slurm may send it a
        minute early. A signal that the user asks for in `extra` takes precedence.
        """
        own = options.extra.get("signal", "").rpartition("@")[2]
        if own.isdigit():
            return int(own)
        partitions = str(getattr(options, "partition", None) or "").split(",")
        graces = [seconds for pattern, seconds in self.grace.items() if fnmatch.filter(partitions, pattern)]
        seconds = min(min(graces, default=_WARNING_SECONDS), 60 * time_minutes // 20)
        return seconds if graces or seconds >= _WARNING_SECONDS else 0

    def refusals(self, resources: Resources, options: JobOptions, max_jobs: int) -> list[str]:
        """Return a sentence about each rule that a job, or so many jobs at once, would break."""
        sizes = self.exceeded(memory=resources.memory_bytes, cpus=resources.cpus_per_task, time=resources.time_minutes)
        return [*self.missing(options), *sizes, *self.exceeded(jobs=max_jobs)]


@dataclass(frozen=True)
class Patience:
    """How long, in seconds, the driver waits for different things, and why so long."""

    # A network file system shows a new file after a minute at most, which its caches last.
    latency_wait: float = key(60.0, "seconds until all nodes see a new file", NUMBER)
    # A job that the answers lack counts as gone after that: a restarted controller lists all in a few minutes.
    absent_after: float = key(300.0, "seconds until an unknown job is lost", NUMBER)
    # A submission that gave no id may still reach the scheduler; then its job is listed by its name.
    settle: float = 15.0
    # A refusal may pass whose words are unknown.
    unclear_refusal: float = 300.0
    # A job may pend for a reason that does not pass by itself; an administrator needs minutes to change a limit.
    hopeless: float = 600.0
    # Somebody may mend an error with a job's files that does not pass by itself: a permission, a missing folder.
    lasting_trouble: float = 300.0
    # More tasks that may go in the same bundle come within moments, as Luigi finds them.
    gather: float = 2.0
    # A file system failed under a job: the next submission waits, each time five times as long, half an hour at most.
    after_trouble: float = 60.0
    # Jobs end at once on all nodes: submission waits before each single try. The six waits take an hour, in which an
    # administrator may notice.
    broken_nodes: float = 600.0
    # A cancellation is lost when the controller goes down: it is repeated.
    cancel_again: float = 60.0
    # A job that ends without a result sooner is more likely the node's fault than the task's.
    quick: float = 300.0
    # A submission got no id: the next waits so long, each time twice as long, and at most that long.
    first_refusal: float = 5.0
    longest_refusal: float = 300.0
    # A cycle of the manager begins after that: requests to stop, and results of short jobs, wait no longer.
    cycle: float = 2.0
    # Records of cancelled jobs are written as soon as a file system that fails works again.
    writing_down: float = 30.0
    # A driver that ends waits for its thread, whose commands may all hang: those of a cycle and of a cancellation.
    ending: float = 600.0


@dataclass(frozen=True)
class BatchSettings:
    """How jobs go to a scheduler; times in seconds.

    `workdir` is the run's folder. Jobs start in `start_dir`, and log to ``{log_dir}/{rule}/``. The command `work`,
    Python first, carries out an order file. A job that exceeds the `site`'s limits is refused. Charged and uncharged
    causes are those of `causes.CAUSES`. A command of the scheduler may take `command_seconds`.
    """

    workdir: Path = Path()
    start_dir: Path = Path()
    log_dir: Path = key(Path(), "folder of the jobs' logs", FOLDER)
    work: tuple[str, ...] = ()
    site: Site = field(default_factory=Site)
    node_cpus: int | None = key(
        None, "most CPUs of a job, where nodes are small; 0: as the rule says", WHOLE, is_optional=True
    )
    node_memory_bytes: int | None = key(
        None,
        "most memory of a job, such as 180GB; empty: as the rule says",
        MEMORY,
        name="node_memory",
        is_optional=True,
    )
    retries: int = key(
        2, "further attempts after too little memory or time, a stall, a lost job or a failed file system", WHOLE
    )
    max_uncharged: int = key(
        20, "further submissions in a row that count as no attempt, as after a failed node or a preemption", WHOLE
    )
    memory_cap_bytes: int | None = key(
        None, "most memory of a retry, such as 500GB; empty: no limit", MEMORY, name="memory_cap", is_optional=True
    )
    time_cap_minutes: int | None = key(
        None, "longest time of a retry, such as 2-00:00:00; empty: no limit", TIME, name="time_cap", is_optional=True
    )
    stall_timeout_seconds: float | None = key(
        1800,
        "seconds without heartbeat after which a job is taken for hanging; 0: never",
        WHOLE,
        name="stall_timeout",
        is_optional=True,
    )
    max_jobs: int = key(500, "jobs in flight at once", WHOLE)
    poll_seconds: float = key(10.0, "between two looks at squeue, qstat", NUMBER)
    result_seconds: float = key(10.0, "between two looks at results", NUMBER)
    beat_seconds: float = key(30.0, "between a job's signs of life", NUMBER, name="heartbeat_seconds")
    command_seconds: float = 60.0
    max_status_per_second: float = key(1.0, "most queries (squeue, sacct, qstat, qacct) a second", NUMBER)
    max_submit_per_second: float = key(10.0, "most calls of sbatch or qsub a second", NUMBER)
    patience: Patience = field(default_factory=Patience)

    @property
    def run(self) -> str:
        """The run's name, with which the names of its jobs begin."""
        return self.workdir.absolute().name

    @property
    def state_dir(self) -> Path:
        """The folder of the driver's lock and of the jobs' records."""
        return self.workdir.absolute() / STATE_FOLDER
