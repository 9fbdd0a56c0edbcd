"""Runs a scheduler's commands, as the only module: without a shell, with a time limit, never faster than allowed."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.files import write_atomically
from espo_luigi.jobs.retry import Clock, process_limit
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.base import Found, Query, Row, Scheduler, Usage, chunked
from espo_luigi.jobs.settings import BatchSettings

logger = logging.getLogger(__name__)

# Pauses before the looks for the id of a job that was taken without one.
_ID_LOOKS_SECONDS = 0.0, 1.0, 2.0, 4.0


@dataclass(frozen=True)
class Answer:
    """The answer of a command; `returncode` is None if it did not end in time or could not be started.

    `installed` is False if this machine has no such command, or forbids this user to run it.
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
        """The command's own message about its failure, on one line."""
        return " ".join((self.stderr or self.stdout).split()) or f"exit code {self.returncode}"


class RateLimit:
    """Spaces the calls of all threads by at least ``1 / per_second`` seconds."""

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
        """Sleep until the next call may be made, and count that call."""
        with self._lock:
            self._clock.sleep(self.wait_seconds)
            self._next = self._clock.now() + self._interval


class Commands:
    """Runs the commands of a scheduler. A query returns None if the scheduler did not answer."""

    def __init__(
        self,
        scheduler: Scheduler,
        settings: BatchSettings | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.clock = clock or Clock()
        self.settings = settings or BatchSettings()
        self.counts: Counter[str] = Counter()
        # Why the last question got no answer.
        self.silence = ""
        # Programs of the accounting that this cluster lacks, as their first answer showed.
        self.lacking: set[str] = set()
        self.submit_rate = RateLimit(self.settings.max_submit_per_second, self.clock)
        self._status_rate = RateLimit(self.settings.max_status_per_second, self.clock)
        mine = os.environ if environ is None else environ
        # If this driver is a job of a different scheduler, its jobs must not take themselves for jobs of that one.
        foreign = tuple(other.VARIABLES for other in SCHEDULERS.values() if other is not scheduler)
        own = {name: value for name, value in mine.items() if not name.startswith(foreign)}
        self._environ = scheduler.environment(own)
        # A submission hands its environment on to the job, and reads the user's times (``--begin``) in the user's zone.
        own_zone = {"TZ": mine["TZ"]} if "TZ" in mine else {}
        without_zone = {name: value for name, value in self._environ.items() if name != "TZ"}
        self._submit_environ = without_zone | own_zone

    def submit(self, argv: tuple[str, ...]) -> Answer:
        """Submit a script, after `write_environment`; ``stdout`` holds the job's id if the scheduler accepted it."""
        self.submit_rate.wait()
        return self.run(argv, self._submit_environ)

    def id_of(self, answer: Answer, name: str = "") -> str | None:
        """Return the id of the job that `submit` answered; if a site's own command does not tell it, by `name`.

        None after a success means that the job was accepted, and is not listed within some seconds.
        """
        if not answer.ok:
            return None
        told = (re.findall(form, answer.stdout, re.MULTILINE) for form in self.scheduler.ID_FORMS)
        ids = set(next(filter(None, told), ()))
        if len(ids) == 1:
            return str(ids.pop())
        for pause in _ID_LOOKS_SECONDS if name else ():
            self.clock.sleep(pause)
            alive = [row.job_id for row in self.jobs() or () if row.name == name and not row.ended]
            if alive:
                return alive[-1]
        return None

    def write_environment(self, path: Path) -> None:
        """Write the file from which the jobs' scripts read their environment, for the user alone, if they need it."""
        if lines := self.scheduler.environment_script(self._submit_environ):
            write_atomically(path, lines, mode=0o600)

    def jobs(self, job_ids: Iterable[str] = ()) -> list[Row] | None:
        """Return all jobs of this user that the scheduler lists, those that ended a short while ago included.

        Jobs with these ids that are not among them are asked for `by_id`.
        """
        rows, _ = self._ask([self.scheduler.LISTING])
        listed = {row.job_id for row in rows or ()}
        others = None if rows is None else self.by_id(job_id for job_id in job_ids if job_id not in listed)
        return None if rows is None or others is None else rows + others

    def by_id(self, job_ids: Iterable[str]) -> list[Row] | None:
        """Return the jobs with these ids that the scheduler has, also those that `jobs` lacks: a colleague's, say."""
        rows, _ = self._ask(self.scheduler.by_id(list(dict.fromkeys(job_ids))))
        return rows

    def one(self, job_id: str) -> Row | None:
        """Return a job; None if the scheduler does not list it, or gives no answer."""
        rows, _ = self._ask([self.scheduler.one_job(job_id)])
        return next((row for row in rows or () if row.job_id == job_id), None)

    def drained(self) -> list[str]:
        """Return sentences about nodes that the scheduler itself took out of use; empty if it gives no answer."""
        return (self._ask([self.scheduler.DRAINED])[0] or []) if self.scheduler.DRAINED else []

    def remembered(
        self, job_ids: Iterable[str], names: Iterable[str], known_names: Iterable[str] = ()
    ) -> list[Row] | None:
        """Return jobs that `jobs` no longer lists, from the scheduler's accounting.

        `names` are of jobs whose ids are unknown; `known_names` are of the jobs in `job_ids`.
        """
        said, instead = self.scheduler.NO_ACCOUNTING, self.scheduler.INSTEAD_OF_ACCOUNTING
        queries = self.scheduler.accounting(list(job_ids), list(names), list(known_names))
        if not self.lacking:
            rows, failed = self._ask(queries)
            if failed is None or (failed.installed and not (said and said in failed.stderr)):
                return rows
            logger.info(self.scheduler.WITHOUT_ACCOUNTING, failed.words)
            self.lacking.add(queries[0].argv[0])
        # The scheduler has answered, and keeps no accounting: a job that is not listed is gone.
        return self._ask([instead])[0] if instead else []

    def usage(self, job_ids: Iterable[str], names: Iterable[str]) -> list[Usage] | None:
        """Return the resources that the jobs with these ids and names were given and used; None without an answer."""
        runs, _ = self._ask(self.scheduler.usage(list(job_ids), list(names)))
        return runs

    def cancel(self, job_ids: Iterable[str]) -> bool:
        """Cancel jobs of this user by id; return whether none is left that a command has missed."""
        all_done = True
        for group in chunked(job_ids):
            answer = self.run((*self.scheduler.CANCEL, *group))
            if not answer.ok and not any(said in answer.stderr for said in self.scheduler.HAS_ENDED):
                logger.warning("%s failed: %s", self.scheduler.CANCEL[0], answer.words)
                all_done = False
        return all_done

    def _ask(self, queries: Iterable[Query[Found]]) -> tuple[list[Found] | None, Answer | None]:
        """Return the rows of all answers, or None and the first failure."""
        rows: list[Found] = []
        for query in queries:
            self._status_rate.wait()
            answer = self.run(query.argv)
            if not answer.ok and any(message in answer.stdout + answer.stderr for message in query.none):
                continue
            try:
                if not answer.ok:
                    raise ValueError(answer.words)
                rows += query.parse(answer.stdout)
            except ValueError as error:
                self.silence = str(error)
                logger.debug("no answer from %s: %s", query.argv[0], error)
                return None, answer
        return rows, None

    def run(self, argv: tuple[str, ...], environ: Mapping[str, str] | None = None) -> Answer:
        """Run a command and return its answer."""
        self.counts[argv[0]] += 1
        try:
            done = subprocess.run(
                argv,
                env=environ or self._environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.settings.command_seconds,
                encoding="utf-8",
                errors="replace",
                check=False,
                start_new_session=True,  # Ctrl-C in the driver must not interrupt a submission half-way
            )
        except subprocess.TimeoutExpired:
            return Answer(None, stderr=f"{argv[0]} did not answer in {self.settings.command_seconds:g} s")
        except OSError as error:
            # Any other error, such as too many processes, may pass.
            installed = not isinstance(error, FileNotFoundError | PermissionError)
            why = process_limit(error) if isinstance(error, BlockingIOError) else error
            return Answer(None, stderr=f"{argv[0]} could not be started: {why}", installed=installed)
        return Answer(done.returncode, done.stdout, done.stderr)
