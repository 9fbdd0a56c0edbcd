"""Looks at the jobs under way: result files, the scheduler's listing and accounting, heartbeats.

A look costs the same number of commands, and of folder listings, however many jobs there are.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from espo_luigi.files import listed_names
from espo_luigi.jobs.bundles.members import Bundles
from espo_luigi.jobs.lifecycle.control import OwnJobs
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.lifecycle.state import Job
from espo_luigi.jobs.lifecycle.submit import Submitter
from espo_luigi.jobs.order import between_beats
from espo_luigi.jobs.retry import Minutely
from espo_luigi.jobs.schedulers.base import Phase, Row
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import owner_of

logger = logging.getLogger(__name__)

# A driver that was away for longer than so many commands may take has been stopped, or its file system hung.
_AWAY_COMMANDS = 4
# While jobs pend, it is asked once in so many polls whether the scheduler itself took nodes out of use.
_DRAINED_POLLS = 6
# Up to so many running jobs, results of young jobs are looked for more often.
_FEW_JOBS = 50
# How many polls ask the accounting for a job's host. It may be written 15 s late, and each question reads all of it.
_MOST_QUESTIONS = 5


class Watcher:
    """Looks at files and the scheduler for the jobs of a manager; only the manager's thread uses it."""

    def __init__(
        self, commands: Commands, store: RecordStore, submitter: Submitter, bundles: Bundles, trouble: Minutely
    ) -> None:
        self._settings = commands.settings
        self._commands = commands
        self._store = store
        self._submitter = submitter
        self._bundles = bundles
        self._trouble = trouble
        self._silence = Minutely(commands.clock)
        self._silent_since: float | None = None
        self._held: set[str] = set()
        # The nodes that the scheduler itself took out of use while jobs pend, in words.
        self.drained = ""
        self._pending_since: float | None = None
        # By name, the end of a job that its host could not start, and how often it was asked for.
        self._failed_starts: dict[str, Row] = {}
        self._questions: Counter[str] = Counter()
        self.own = OwnJobs(store)
        self._last_cycle = commands.clock.now()
        self._next_poll = self._last_poll = self._next_results = self._last_results = 0.0
        # Whether there may be jobs of Dask's workers.
        self.workers_about = False

    def orphans_at_the_end(self) -> list[str]:
        """Return the ids of jobs to cancel at the end of a run, after which nobody looks any more."""
        rows = self.own.renamed_back(self._commands.jobs() or ()) if self.workers_about else ()
        return orphans(rows, self._store.knows)

    def look(self, jobs: Iterable[Job]) -> list[str]:
        """Look at all that is due; return the ids of jobs to cancel: workers' whose own job has ended."""
        jobs, now = list(jobs), self._commands.clock.now()
        orphans: list[str] = []
        if now >= self._next_poll and jobs:
            orphans = self._poll(jobs, now)
            now = self._commands.clock.now()
            self._last_poll, self._next_poll = now, now + self._settings.poll_seconds
        if now >= self._next_results or any((job.ended_since or 0.0) > self._last_results for job in jobs):
            self._read_results(jobs, now)
            self._look_at_members(jobs, now)
            longest = min(self._settings.result_seconds, self._settings.patience.latency_wait / 2)
            began = [job.began for job in jobs if job.began is not None]
            # A young job may take seconds. In a large run some job is always young, and each look lists the folders of
            # all results.
            looks_soon = 0 < len(began) <= _FEW_JOBS
            self._last_results = now
            self._next_results = now + (between_beats(now - max(began), longest) if looks_soon else longest)
        return orphans

    def hurry(self) -> None:
        """Ask the scheduler in the next cycle, unless it has just been asked: thousands may be handed over."""
        self._next_poll = min(self._next_poll, self._last_poll + self._settings.patience.settle / 3)

    def notice_absence(self, jobs: Iterable[Job], pause: float) -> None:
        """After a gap, let all waiting start from zero: the observations before it are old."""
        now = self._commands.clock.now()
        away, self._last_cycle = now - self._last_cycle, now
        if away <= pause + _AWAY_COMMANDS * self._settings.command_seconds:
            return
        logger.warning(
            "this driver did not run for %.0f s (stopped, or its file system hung): it asks about all jobs anew", away
        )
        self._next_poll = self._next_results = 0.0
        for job in jobs:
            job.watched_since = now

    def _read_results(self, jobs: Iterable[Job], now: float) -> None:
        by_folder: dict[Path, list[Job]] = {}
        for job in jobs:
            by_folder.setdefault(job.order.files.result.parent, []).append(job)
        for folder, members in by_folder.items():
            try:
                names = listed_names(folder)
            except OSError as error:
                self._saw_no_files(members, error, now)
                continue
            for job in members:
                if job.order.files.result.name not in names:
                    # A requeued job removes what its last run wrote, unless it succeeded.
                    job.files = job.files.without_result()
                    continue
                try:
                    job.read_result(self._store, now)
                except OSError as error:
                    self._saw_no_files([job], error, now)

    def _look_at_members(self, jobs: Iterable[Job], now: float) -> None:
        try:
            self._bundles.look()
        except OSError as error:
            self._trouble.warn("trouble with the files of bundles, going on: %s", error)
            return
        for job in jobs:
            row = self._bundles.row_of(job.record)
            if row is not None and row != job.row:
                job.stands(row, now)

    def _saw_no_files(self, jobs: Iterable[Job], error: OSError, now: float) -> None:
        self._trouble.warn("trouble with the files of results, going on: %s", error)
        for job in jobs:
            if job.files.result is None:
                # The wait for a result starts from zero.
                job.files = replace(job.files, unreadable=now)

    def _poll(self, jobs: list[Job], now: float) -> list[str]:
        rows = self._commands.jobs()
        if rows is None:
            self._scheduler_is_silent(now, jobs)
            return []
        for job in jobs:
            self.own.add(job.record, submitted_here=not job.adopted)
        rows = self.own.renamed_back(rows)
        self._look_at_members(jobs, now)
        by_name = {row.name: row for row in rows}
        missing = [job for job in jobs if not self._take_in(job, by_name, now)]
        # The accounting need not be asked for jobs that succeeded.
        self._read_results(missing, now)
        missing = [job for job in missing if not job.files.succeeded]
        # They may be a colleague's, whose jobs the listing lacks, or hidden by defaults of the site.
        others = self._commands.by_id(job.record.job_id for job in missing if job.record.job_id)
        by_name |= {row.name: row for row in self.own.renamed_back(others or ())}
        missing = [job for job in missing if not self._take_in(job, by_name, now)]
        # Their processes are gone without a result, while the site's epilog goes on.
        wait = self._settings.patience.latency_wait
        unknown = [job for job in jobs if job.files.result is None and job.ended_since is None]
        leaving = [job for job in unknown if job.watched_for(job.seen.since_when(Phase.LEAVING), now, wait)]
        # A member that is being stopped leaves a job that goes on.
        leaving = [job for job in leaving if (row := by_name.get(job.record.job_name)) and row.phase is Phase.LEAVING]
        known = not (missing or leaving) or self._ask_memory(missing, leaving, now)
        if not known or others is None:
            self._scheduler_is_silent(now, [job for job in missing if job.record.job_id])
        else:
            self._silent_since = None
        self.find_failed_starts(jobs, now)
        self._say_held(jobs)
        self._say_drained(jobs, now)
        for job in jobs:
            # A missing job with a heartbeat is not lost, even if it was never seen running.
            runs = job.seen.since_when(Phase.RUNNING) is not None
            age = math.inf if job.seen.off_node is None else now - job.seen.off_node
            if runs or job.seen.missing is not None:
                job.listen(now, between_beats(age, self._settings.beat_seconds))
            if runs and job.files.beat and age >= self._settings.patience.quick:
                # On a broken node, it could not give signs of life for so long.
                self._submitter.nodes.does_well(job.node, job.seen.off_node)
        return orphans(rows, self._store.knows)

    def find_failed_starts(self, jobs: Iterable[Job], now: float) -> None:
        """Find the hosts that could not start jobs; a task whose host is avoided has to go elsewhere.

        Such a host is always free, and puts job after job into Grid Engine's state ``Eqw``. Then qstat does not name
        the host and the reason, but qacct does.
        """
        nodes, ends, questions = self._submitter.nodes, self._failed_starts, self._questions
        in_error = {job.record.name: job for job in jobs if job.row is not None and job.row.in_error}
        asked = {name for name in in_error if name not in ends and questions[name] < _MOST_QUESTIONS}
        questions.update(asked)
        ids = [str(in_error[name].record.job_id) for name in asked]
        for row in (self._commands.remembered(ids, [], asked) if asked else None) or ():
            if row.name in asked and row.node:
                ends[row.name] = row
                nodes.crashed(in_error[row.name].record.task, row.node, now)
        for name, job in in_error.items():
            if job.row is not None and (end := ends.get(name)):
                avoided = end.node in nodes.excluded
                row = replace(job.row, node=end.node, reason=end.reason, no_log=end.no_log, launch_failed=avoided)
                job.seen = replace(job.seen, row=row)

    def _say_held(self, jobs: Iterable[Job]) -> None:
        """Name the jobs that would wait for ever without a word, once."""
        rows = {job.row.job_id: job.row for job in jobs if job.row is not None and job.row.held}
        new: dict[str, list[Row]] = {}
        for job_id in rows.keys() - self._held:
            new.setdefault(rows[job_id].said, []).append(rows[job_id])
        for said, alike in new.items():
            words = self._commands.scheduler.in_words(alike[0].reason) or "it is held, until somebody releases it"
            others = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
            logger.warning("%s: job %s%s: %s: %s", alike[0].name, alike[0].job_id, others, said, words)
        self._held = set(rows)

    def _say_drained(self, jobs: Iterable[Job], now: float) -> None:
        """Say which nodes the scheduler itself took out of use, while jobs pend; of each reason once."""
        # A member that waits for its turn has a node already.
        pending = sum(job.row is not None and job.row.phase is Phase.PENDING and not job.row.node for job in jobs)
        if not pending:
            self._pending_since, self.drained = None, ""
            return
        self._pending_since = now if self._pending_since is None else self._pending_since
        if now - self._pending_since >= _DRAINED_POLLS * self._settings.poll_seconds:
            self._pending_since = now
            said = "\n".join(self._commands.drained())
            for sentence in said.splitlines() if said != self.drained else ():
                logger.warning("%d job(s) pend; %s", pending, sentence)
            self.drained = said

    def _take_in(self, job: Job, by_name: Mapping[str, Row], now: float) -> bool:
        """Whether the answer settles this job: it is known, or was known to have ended."""
        row = self._bundles.row_of(job.record, by_name)
        if row is None:
            return job.ended_since is not None
        if job.record.job_id != row.job_id:
            self._submitter.confirm(job, row.job_id)
        job.saw(row, now)
        return True

    def _ask_memory(self, missing: list[Job], leaving: list[Job], now: float) -> bool:
        # The members of a bundle may share an id.
        ids = dict.fromkeys(job.record.job_id for job in (*missing, *leaving) if job.record.job_id)
        names = dict.fromkeys(job.record.job_name for job in missing if not job.record.job_id)
        known_names = dict.fromkeys(job.record.job_name for job in (*missing, *leaving) if job.record.job_id)
        rows = self._commands.remembered(ids, names, known_names)
        # The accounting may list a job as running that the scheduler has forgotten: only ends are believed.
        by_name = {row.name: row for row in self.own.renamed_back(rows or ()) if row.ended}
        for job in leaving:
            # The driver does not wait for a site's epilog if the accounting has the job's end.
            self._take_in(job, by_name, now)
        for job in missing:
            known = self._take_in(job, by_name, now)
            # A submission without an id is settled by its claim: it does not have to wait for a database.
            if not known and (rows is not None or job.record.job_id is None):
                since = now if job.seen.missing is None else job.seen.missing
                job.seen = replace(job.seen, missing=since, answered=True)
        return rows is not None

    def _scheduler_is_silent(self, now: float, jobs: Iterable[Job]) -> None:
        for job in jobs:
            # Only replies can show that a job is gone.
            job.seen = replace(job.seen, missing=None, answered=False)
        self._silent_since = self._silent_since or now
        name, seconds, why = self._commands.scheduler.NAME, now - self._silent_since, self._commands.silence
        self._silence.warn("%s has not answered for %.0f s (%s); waiting, its jobs go on", name, seconds, why)


def orphans(rows: Iterable[Row], is_ours: Callable[[str], bool]) -> list[str]:
    """Return the ids of worker jobs whose own job, `is_ours` by its name, neither waits nor runs any more."""
    # A job that leaves has no processes any more; its epilog is the site's business.
    alive = [row for row in rows if not (row.ended or row.phase is Phase.LEAVING)]
    names = {row.name for row in alive}
    left = [row for row in alive if (owner := owner_of(row.name)) not in names and is_ours(owner)]
    for row in left:
        logger.warning("%s: the job whose workers these are has ended: cancelling job %s", row.name, row.job_id)
    return [row.job_id for row in left]
