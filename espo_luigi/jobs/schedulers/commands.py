"""The one place that runs a scheduler's commands: without a shell, with a time limit, and never faster than allowed."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.files import replace_text
from espo_luigi.jobs.schedulers import known as schedulers
from espo_luigi.jobs.schedulers.base import Account, Memory, Query, Row, Said, Scheduler
from espo_luigi.jobs.trouble import Clock

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CommandSettings:
    """Limits on the use of a scheduler's commands."""

    timeout_seconds: float = 60.0
    max_status_per_second: float = 1.0
    max_submit_per_second: float = 10.0


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

    def __init__(self, per_second: float, clock: Clock | None = None) -> None:
        self._interval = 1.0 / per_second if per_second > 0 else 0.0
        self._clock = clock or Clock()
        self._next = 0.0
        self._lock = threading.Lock()

    @property
    def wait_seconds(self) -> float:
        """Seconds until the next call may be made."""
        return max(0.0, self._next - self._clock.now())

    def wait(self) -> None:
        """Sleep until the next call may be made, and take it."""
        with self._lock:
            self._clock.sleep(self.wait_seconds)
            self._next = self._clock.now() + self._interval


class Commands:
    """Runs what a scheduler's module says. None instead of rows means that the scheduler did not answer."""

    def __init__(
        self,
        scheduler: Scheduler,
        settings: CommandSettings | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.clock = clock or Clock()
        self.settings = settings or CommandSettings()
        self.counts: Counter[str] = Counter()
        # Programs that this cluster has not, as their first answer said.
        self.lacking: set[str] = set()
        self.submit_rate = RateLimit(self.settings.max_submit_per_second, self.clock)
        self._status_rate = RateLimit(self.settings.max_status_per_second, self.clock)
        mine = os.environ if environ is None else environ
        self._environ = schedulers.environment(scheduler, mine)
        # A submission hands its environment on to the job, and takes a time of the user's (``--begin``) in their zone.
        own_zone = {"TZ": mine["TZ"]} if "TZ" in mine else {}
        without_zone = {name: value for name, value in self._environ.items() if name != "TZ"}
        self._submit_environ = without_zone | own_zone

    def submit(self, argv: tuple[str, ...]) -> Answer:
        """Submit one script, after `hand_on`; ``stdout`` holds the job's id when it was accepted."""
        self.submit_rate.wait()
        return self.run(argv, self._submit_environ)

    def hand_on(self, path: Path) -> None:
        """Write the environment of the jobs where their scripts read it, for the user alone, if they have to."""
        if lines := self.scheduler.handed_on(self._submit_environ):
            replace_text(path, lines, 0o600)

    def jobs(self) -> list[Row] | None:
        """All jobs of this user that the scheduler knows, those that ended a short while ago included."""
        rows, _ = self._ask([self.scheduler.listing(_user())])
        return rows

    def one(self, job_id: str) -> Row | None:
        """One job, by one command; None where the scheduler does not list it, or does not answer."""
        rows, _ = self._ask([self.scheduler.one_job(_user(), job_id)])
        return next((row for row in rows or () if row.job_id == job_id), None)

    def drained(self) -> list[str]:
        """Sentences about nodes that the scheduler itself took out of use; none where it does not answer."""
        query = self.scheduler.drained_nodes()
        return (self._ask([query])[0] or []) if query is not None else []

    def remembered(
        self, job_ids: Iterable[str], names: Iterable[str], known_names: Iterable[str] = ()
    ) -> list[Row] | None:
        """What the scheduler remembers of jobs that `jobs` does not hold.

        `job_ids` and `names` are two sets of jobs; the names are those of which the id is not known. `known_names` are
        the names of the others.
        """
        for memory in self.scheduler.memories(_user(), list(job_ids), list(names), list(known_names)):
            if memory.program not in self.lacking:
                rows, failed = self._ask(memory.queries)
                if failed is None or not self._is_lacking(memory, failed):
                    return rows
        # The scheduler has answered, and keeps no memory: what is in no listing is gone.
        return []

    def accounted(self, job_ids: Iterable[str], names: Iterable[str]) -> list[Account] | None:
        """What the scheduler has accounted of jobs, each with its id and its name; None where that is not to be had."""
        said, _ = self._ask(self.scheduler.accounts(_user(), list(job_ids), list(names)))
        return said

    def cancel(self, job_ids: Iterable[str]) -> bool:
        """Cancel jobs of this user by id."""
        return all([self._cancelled(argv) for argv in self.scheduler.cancellations(_user(), job_ids)])

    def dump_stacks(self, job_ids: Iterable[str]) -> None:
        """Have the jobs' commands write their stacks to their logs."""
        for argv in self.scheduler.stack_dumps(job_ids):
            self.run(argv)

    def _ask(self, queries: Iterable[Query[Said]]) -> tuple[list[Said] | None, Answer | None]:
        """Return the rows of all answers, or None and the first that was none."""
        rows: list[Said] = []
        for query in queries:
            self._status_rate.wait()
            answer = self.run(query.argv)
            if not answer.ok and any(words in answer.stdout + answer.stderr for words in query.none):
                continue
            try:
                if not answer.ok:
                    raise ValueError(answer.words)
                rows += query.parse(answer.stdout)
            except ValueError as error:
                logger.debug("no answer from %s: %s", query.argv[0], error)
                return None, answer
        return rows, None

    def _is_lacking(self, memory: Memory, answer: Answer) -> bool:
        if not memory.without or (answer.installed and not self.scheduler.keeps_no_memory(answer.stderr)):
            return False
        logger.info(memory.without, answer.words)
        self.lacking.add(memory.program)
        return True

    def _cancelled(self, argv: tuple[str, ...]) -> bool:
        answer = self.run(argv)
        if answer.ok or self.scheduler.has_ended(answer.stderr):
            return True
        logger.warning("%s failed: %s", argv[0], answer.words)
        return False

    def run(self, argv: tuple[str, ...], environ: Mapping[str, str] | None = None) -> Answer:
        """Run one command as it is, and return what it answered."""
        self.counts[argv[0]] += 1
        try:
            done = subprocess.run(
                argv,
                env=environ or self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.settings.timeout_seconds,
                encoding="utf-8",
                errors="replace",
                check=False,
                start_new_session=True,  # Ctrl-C at the driver must not interrupt a submission half-way
            )
        except subprocess.TimeoutExpired:
            return Answer(None, stderr=f"{argv[0]} did not answer in {self.settings.timeout_seconds:g} s")
        except OSError as error:
            # Others, such as too many processes, pass.
            installed = not isinstance(error, FileNotFoundError | PermissionError)
            return Answer(None, stderr=f"{argv[0]} could not be started: {error}", installed=installed)
        return Answer(done.returncode, done.stdout, done.stderr)


def _user() -> str:
    # A number, as schedulers' commands take it too: the name in $LOGNAME may be another user's.
    return str(os.getuid())
