"""Handing flights to the scheduler so that whatever happens on the way, each is handed over once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from espo_luigi.jobs.lifecycle.flights import Flight, Patience
from espo_luigi.jobs.lifecycle.handles import JobRequest
from espo_luigi.jobs.lifecycle.nodes import NodeWatch
from espo_luigi.jobs.lifecycle.policy import Cause, next_record
from espo_luigi.jobs.lifecycle.records import SUBMITTED, Record, RecordStore, write_atomically
from espo_luigi.jobs.lifecycle.submissions import Submission, Submissions
from espo_luigi.jobs.schedulers.base import Phase, Refusal
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import ScriptValues

logger = logging.getLogger(__name__)

_LONGEST_BACKOFF = 300.0


@dataclass(frozen=True)
class JobSettings:
    """How the manager works. `workdir` is where jobs start, logs go to ``{log_dir}/{rule}/``; times in seconds."""

    workdir: Path
    log_dir: Path
    max_jobs: int = 500
    poll_seconds: float = 10.0
    result_seconds: float = 10.0
    beat_seconds: float = 30.0
    first_backoff: float = 5.0
    max_uncharged: int = 20
    patience: Patience = field(default_factory=Patience)


class Submitter:
    """Writes a flight's record, then submits it; after a refusal that may pass it asks for a pause."""

    def __init__(self, settings: JobSettings, commands: Commands, store: RecordStore) -> None:
        self._settings = settings
        self._commands = commands
        self._scheduler = commands.scheduler
        self._store = store
        self._backoff = 0.0
        self._hold_until = 0.0
        self._made_folders: set[Path] = set()
        self._handed_on = False
        self.nodes = NodeWatch()
        self.submissions = Submissions(self._scheduler, store, str(settings.log_dir), self.script_values)

    def check(self, task: str, request: JobRequest) -> None:
        """Raise SubmissionError for values that cannot be passed to the scheduler safely."""
        self.preview(task, request)
        if request.bundling.most > 1:
            self.preview(task, request, 1)

    def preview(self, task: str, request: JobRequest, members: int = 0) -> str:
        """Return the script of the task's first job, or that of a bundle of so many members, each as this one."""
        record = self.plan(task, request, None)
        if not members:
            return self._scheduler.render(self.script_values(request, record))
        values = self.submissions.bundle_values(f"{task}.bundle", [request] * members, [record] * members)
        bundled = self._scheduler.bundled(values)
        return f"{bundled.script}\n# The script of a member:\n{bundled.members[0]}"

    def plan(self, task: str, request: JobRequest, old: Record | None) -> Record:
        """The first record of a new run of the task, after the `old` one if there was one.

        What was too little in an earlier run is not tried again, unless that is as much as retries may ask for.
        """
        memory = _learnt(request.memory_bytes, old.learnt_memory_bytes if old else 0, request.memory_cap_bytes)
        minutes = _learnt(request.time_minutes, old.learnt_time_minutes if old else 0, request.time_cap_minutes)
        return Record(
            task=task,
            rule=request.rule,
            wildcards=dict(request.wildcards),
            memory_bytes=memory,
            time_minutes=minutes,
            learnt_memory_bytes=old.learnt_memory_bytes if old else 0,
            learnt_time_minutes=old.learnt_time_minutes if old else 0,
            log_pattern=self._scheduler.log_pattern(str(self._settings.log_dir), request.rule, request.wildcards),
            # Numbers go on: no name is ever given twice.
            submission=1 if old is None else old.submission + 1,
        )

    def following(self, flight: Flight, cause: Cause) -> Record | None:
        """The record of another submission after the job has ended for a cause; None if there is to be none."""
        excused = self.nodes.learn(flight, cause, self._commands.clock.now())
        if cause is Cause.CONFIGURATION and flight.old_order:
            return flight.record.next_submission(cause.value)
        limits = flight.request.limits(self._settings.max_uncharged)
        flight.read_beat(self._commands.clock.now())
        return next_record(flight.record, cause, limits, flight.node, excused, progressed=flight.blocks_done > 0)

    def following_anywhere(self, flight: Flight, cause: Cause) -> Record:
        """The record of another submission, which may go to any node that the request allows."""
        self.nodes.allow_all(flight.record.task)
        return flight.record.next_submission(cause.words(self._scheduler), exclude=())

    def held(self, now: float) -> bool:
        """Whether to wait before the next submission."""
        return now < self._hold_until or self.nodes.held(now)

    def avoids_nodes(self, flight: Flight) -> bool:
        """Whether the flight's job may not go to nodes to which it could go if jobs had not ended badly there."""
        return bool({*self._avoided(flight.record)} - set(flight.request.options.exclude))

    def prepare(self, submission: Submission, place: int) -> None:
        """Write down that the flight in that place is about to be submitted, and what its job needs.

        Raises OSError when that cannot be written: it was not submitted, and its name can be used again.
        """
        flight, record = submission.flights[place], submission.records[place]
        self._store.save(record, durable=True)
        self._prepare_files(flight, record.log_pattern)
        for path, text in submission.texts[place].items():
            write_atomically(path, text)
        flight.record = record

    def pause(self) -> None:
        """Submit nothing for a moment."""
        self._hold_until = self._commands.clock.now() + self._settings.first_backoff

    def submit(self, submission: Submission) -> str | None:
        """Submit what is prepared; return the scheduler's words when it will never take this job.

        After any other answer the flights are under way: with their job's id, or, where that failed or was not
        answered, without; then what became of it is found out by its name. Raises no OSError: it is not to be submitted
        again.
        """
        answer = self._commands.submit(submission.command)
        now = self._commands.clock.now()
        for flight in submission.flights:
            flight.started_after = now
        job_id = self._scheduler.submitted_id(answer.stdout) if answer.ok else None
        if job_id is not None:
            self.nodes.submitted(now)
            for place, flight in enumerate(submission.flights):
                self.confirm(flight, submission.member_id(job_id, place))
            self._backoff = 0.0
        elif answer.returncode is not None and self._scheduler.refusal(answer.words) is Refusal.PERMANENT:
            return answer.words
        else:
            self._hold(submission.flights, answer.words)
        return None

    def confirm(self, flight: Flight, job_id: str) -> None:
        """Take in the id of the flight's job, and write it down now or, where the file system fails, later."""
        flight.record = replace(flight.record, state=SUBMITTED, job_id=job_id)
        flight.unsaved = True
        with contextlib.suppress(OSError):
            self.save(flight)
        flight.refusal = flight.refused_since = None
        flight.handle.report(flight.progress())

    def cause_of_loss(self, flight: Flight) -> Cause:
        """Why no listing has the flight's job any more: somebody cancelled it while it waited, or it was lost."""
        waited = flight.row is None or flight.row.phase is Phase.PENDING
        # Slurm forgets elements of an array that are cancelled while they wait.
        forgets = self._scheduler.FORGETS_CANCELLED or (bool(flight.record.bundle) and not flight.record.shares_job)
        if not (forgets and waited):
            return Cause.LOST
        # One that has begun since would be in the accounting, if there is one; else there is its claim.
        accounted = flight.row is not None and not self._commands.lacking
        return Cause.CANCELLED if accounted or self._store.close_unclaimed(flight.record.name) else Cause.LOST

    def save(self, flight: Flight) -> None:
        """Write down what is known of the flight, if that is not yet done."""
        if flight.unsaved:
            self._store.save(flight.record)
            flight.unsaved = False

    def close_empty_claim(self, flight: Flight, now: float) -> None:
        """Close a claim that names nobody, and stays so: a driver or a job could not write it."""
        if not self._store.is_claimed_by_nobody(flight.record.name):
            return
        flight.empty_claim_since = flight.empty_claim_since or now
        if now - flight.empty_claim_since >= self._settings.patience.latency_wait:
            path = self._store.claim_path(flight.record.name)
            logger.warning("%s is empty, and no job of that name is known: closing it", path)
            self._store.close(flight.record.name)

    def script_values(self, request: JobRequest, record: Record) -> ScriptValues:
        """What the script of the record's submission is made of."""
        exclude = dict.fromkeys((*request.options.exclude, *self._avoided(record)))
        return ScriptValues(
            name=record.name,
            attempt=record.attempt,
            argv=request.argv,
            cpus_per_task=request.cpus_per_task,
            memory_bytes=record.memory_bytes,
            time_minutes=record.time_minutes,
            log_pattern=record.log_pattern,
            claim_file=str(self._store.claim_path(record.name)),
            workdir=str(self._settings.workdir),
            options=replace(request.options, exclude=tuple(exclude)),
            warning_seconds=request.warning_seconds(record.time_minutes),
            environment_file=str(self._store.environment_path),
        )

    def _avoided(self, record: Record) -> tuple[str, ...]:
        """The nodes where this task's jobs ended badly, and those that the run avoids."""
        return *record.exclude, *self.nodes.avoided_by(record.task)

    def _hold(self, flights: Sequence[Flight], words: str) -> None:
        self._backoff = min(max(2 * self._backoff, self._settings.first_backoff), _LONGEST_BACKOFF)
        now = self._commands.clock.now()
        self._hold_until = now + self._backoff
        for flight in flights:
            flight.refusal, flight.refusal_words = self._scheduler.refusal(words), words
            flight.refused_since = flight.refused_since or now
        logger.warning("%s: %s; next submission in %.0f s", flights[0].record.job_name, words, self._backoff)

    def _prepare_files(self, flight: Flight, log_pattern: str) -> None:
        request = flight.request
        if flight.old_order and request.write_order is not None:
            request.write_order()
        flight.old_order = False
        if not self._handed_on:
            self._commands.hand_on(self._store.environment_path)
            self._handed_on = True
        log = Path(self._scheduler.log_path(log_pattern, "0"))
        folders = (log.parent, request.result_file.parent)
        for folder in (*folders, request.heartbeat_file.parent):
            if folder not in self._made_folders:
                folder.mkdir(parents=True, exist_ok=True)
                self._made_folders.add(folder)
        request.result_file.unlink(missing_ok=True)
        request.heartbeat_file.unlink(missing_ok=True)


def _learnt(asked: int, learnt: int, cap: int | None) -> int:
    return max(asked, learnt if cap is None else min(learnt, cap))
