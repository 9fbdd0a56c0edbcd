"""The one place that runs Slurm's commands: without a shell, with a time limit, and never faster than allowed."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.cluster.answers import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    Row,
    chunked,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
)

logger = logging.getLogger(__name__)

# What a user's environment may say to Slurm's commands. The rest would change the form of their answers
# (SQUEUE_FORMAT…) or, where the driver itself runs in a job, make the jobs inherit its sizes (SLURM_CPUS_PER_TASK…).
_KEPT = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT")
_DROPPED_PREFIXES = ("SLURM_", "SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_")


@dataclass(frozen=True)
class CommandSettings:
    """Limits on the use of Slurm's commands. `accounting` None finds out from sacct's first answer."""

    timeout_seconds: float = 60.0
    max_status_per_second: float = 1.0
    max_submit_per_second: float = 10.0
    accounting: bool | None = None


@dataclass(frozen=True)
class Answer:
    """What a command answered; `returncode` is None when it did not end in time or could not be started.

    `installed` False means that this machine has no such command, or not for us.
    """

    returncode: int | None
    stdout: str = ""
    stderr: str = ""
    installed: bool = True

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def words(self) -> str:
        """The command's own words about what went wrong, on one line."""
        return " ".join((self.stderr or self.stdout).split()) or f"exit code {self.returncode}"


class RateLimit:
    """Spaces calls by at least ``1 / per_second`` seconds, for all threads together."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1.0 / per_second if per_second > 0 else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next call may be made."""
        return max(0.0, self._next - time.monotonic())

    def wait(self) -> None:
        """Sleep until the next call may be made, and take it."""
        with self._lock:
            time.sleep(self.wait_seconds)
            self._next = time.monotonic() + self._interval


class SlurmCommands:
    """Runs sbatch, squeue, sacct, scontrol and scancel. None instead of rows means that Slurm did not answer."""

    def __init__(self, settings: CommandSettings | None = None, environ: Mapping[str, str] | None = None) -> None:
        self.settings = settings or CommandSettings()
        self.accounting = self.settings.accounting
        self.counts: Counter[str] = Counter()
        self.submit_rate = RateLimit(self.settings.max_submit_per_second)
        self._status_rate = RateLimit(self.settings.max_status_per_second)
        self._environ = _clean(os.environ if environ is None else environ)

    def sbatch(self, directives: Iterable[str], script: Path) -> Answer:
        """Submit one script; ``stdout`` holds the job's id when it was accepted."""
        self.submit_rate.wait()
        return self._run("sbatch", "--parsable", *directives, str(script))

    def squeue(self) -> list[Row] | None:
        """All jobs of this user that the controller knows, those that ended a short while ago included."""
        self._status_rate.wait()
        # --states=all: ended jobs stay for MinJobAge, so that one command answers for nearly all of them.
        form = ["--all", "--noheader", "--states=all", f"--format={SQUEUE_FORMAT}"]
        answer = self._run("squeue", *form, f"--user={_user()}")
        return parse_squeue(answer.stdout) if answer.ok else self._silence("squeue", answer)

    def remembered(self, job_ids: Iterable[str], names: Iterable[str]) -> list[Row] | None:
        """What Slurm remembers of jobs that squeue does not know: from sacct, or from scontrol without accounting.

        `job_ids` and `names` are two sets of jobs; the names are those of which the id is not known.
        """
        if self.accounting is not False:
            rows = self._sacct(list(job_ids), list(names))
            if self.accounting is not False:
                return rows
        self._status_rate.wait()
        answer = self._run("scontrol", "--oneliner", "--all", "show", "jobs")
        return parse_scontrol(answer.stdout) if answer.ok else self._silence("scontrol", answer)

    def scancel(self, job_ids: Iterable[str]) -> bool:
        """Cancel jobs of this user by id, in as few commands as the length of a command line allows."""
        answers = [self._run("scancel", f"--user={_user()}", *group) for group in chunked(job_ids)]
        return all(self._cancelled(answer) for answer in answers)

    def dump_stack(self, job_id: str) -> None:
        """Send SIGUSR1 to the job's command, which writes its stack to the log."""
        self._run("scancel", "--signal=USR1", "--batch", job_id)

    def _sacct(self, job_ids: list[str], names: list[str]) -> list[Row] | None:
        selections = [f"--jobs={','.join(group)}" for group in chunked(job_ids)]
        # By name, sacct looks no further back than midnight unless told.
        by_name = [f"--name={','.join(group)}" for group in chunked(names)]
        rows: list[Row] = []
        for selection, since in [*((s, []) for s in selections), *((s, ["--starttime=now-30days"]) for s in by_name)]:
            self._status_rate.wait()
            form = ["--parsable2", "--noheader", "--allocations", "--duplicates", f"--format={SACCT_FORMAT}"]
            answer = self._run("sacct", *form, *since, f"--user={_user()}", selection)
            if not answer.ok:
                self._sacct_failed(answer)
                return None
            rows += parse_sacct(answer.stdout)
        return rows

    def _sacct_failed(self, answer: Answer) -> None:
        disabled = self.accounting is None and "accounting storage is disabled" in answer.stderr
        if disabled or not answer.installed:
            logger.info("no accounting (%s): squeue and scontrol are asked instead of sacct", answer.words)
            self.accounting = False
            return
        self._silence("sacct", answer)

    def _run(self, *command: str) -> Answer:
        self.counts[command[0]] += 1
        try:
            done = subprocess.run(
                command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.settings.timeout_seconds,
                encoding="utf-8",
                errors="replace",
                check=False,
                start_new_session=True,  # Ctrl-C at the driver must not interrupt an sbatch half-way
            )
        except subprocess.TimeoutExpired:
            return Answer(None, stderr=f"{command[0]} did not answer in {self.settings.timeout_seconds:g} s")
        except OSError as error:
            # Others, such as too many processes, pass.
            installed = not isinstance(error, FileNotFoundError | PermissionError)
            return Answer(None, stderr=f"{command[0]} could not be started: {error}", installed=installed)
        return Answer(done.returncode, done.stdout, done.stderr)

    @staticmethod
    def _silence(command: str, answer: Answer) -> None:
        logger.debug("no answer from %s: %s", command, answer.words)

    @staticmethod
    def _cancelled(answer: Answer) -> bool:
        # A job that ended meanwhile is no failure to cancel it.
        if answer.ok or "Invalid job id" in answer.stderr or "already completing or completed" in answer.stderr:
            return True
        logger.warning("scancel failed: %s", answer.words)
        return False


def _user() -> str:
    # A number, as Slurm's commands take it too: the name in $LOGNAME may be another user's.
    return str(os.getuid())


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in environ.items() if key in _KEPT or not key.startswith(_DROPPED_PREFIXES)}
    return {**kept, "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard"}
