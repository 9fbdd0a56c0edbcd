"""The settings of a scheduler's engine: one frozen value, read from luigi.cfg once and handed down."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from espo_luigi.jobs.schedulers.site import Site

# The folder of the records of any scheduler's jobs, in a run's work folder.
STATE_FOLDER = "scheduler"


@dataclass(frozen=True)
class Patience:
    """How long, in seconds, the driver waits for different things, and why so long."""

    # A network file system shows a new file after a minute at most, which its caches last.
    latency_wait: float = 60.0
    # A job that the answers lack counts as gone after that: a restarted controller lists all in a few minutes.
    absent_after: float = 300.0
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
    Python first, carries out an order file. A job asks for `node_cpus` and `node_memory_bytes` at most. A job that
    exceeds the `site`'s limits is refused. `retries` are further attempts after a charged cause (`policy.CAUSES`),
    `max_uncharged` further submissions in a row after an uncharged one. Memory and time grow up to the caps. A job
    without a heartbeat for `stall_timeout_seconds` counts as hanging. A command of the scheduler may take
    `command_seconds`.
    """

    workdir: Path = Path()
    start_dir: Path = Path()
    log_dir: Path = Path()
    work: tuple[str, ...] = ()
    site: Site = field(default_factory=Site)
    node_cpus: int | None = None
    node_memory_bytes: int | None = None
    retries: int = 2
    max_uncharged: int = 20
    memory_cap_bytes: int | None = None
    time_cap_minutes: int | None = None
    stall_timeout_seconds: float | None = 1800.0
    max_jobs: int = 500
    poll_seconds: float = 10.0
    result_seconds: float = 10.0
    beat_seconds: float = 30.0
    command_seconds: float = 60.0
    max_status_per_second: float = 1.0
    max_submit_per_second: float = 10.0
    patience: Patience = field(default_factory=Patience)

    @property
    def run(self) -> str:
        """The run's name, with which the names of its jobs begin."""
        return self.workdir.absolute().name

    @property
    def state_dir(self) -> Path:
        """The folder of the driver's lock and of the jobs' records."""
        return self.workdir.absolute() / STATE_FOLDER
