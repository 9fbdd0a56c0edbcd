"""Carries out the actions of `policy.decide`.

If an action fails because of a file, it is taken again in the next cycle. So each action writes its files before
anything changes here or at the scheduler, and writes the same when it is taken again.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from espo_luigi.errors import Failure
from espo_luigi.jobs.bundles.members import Bundles
from espo_luigi.jobs.lifecycle.control import Signals
from espo_luigi.jobs.lifecycle.observe import Watcher
from espo_luigi.jobs.lifecycle.policy import (
    CAUSES,
    Action,
    Cause,
    Do,
    cause_of_end,
    decide,
    last_record,
    next_record,
    pause_before,
    words_of,
)
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lifecycle.requests import Outcome, Requests, Success
from espo_luigi.jobs.lifecycle.state import Intent, Job
from espo_luigi.jobs.lifecycle.submit import Submitter
from espo_luigi.jobs.schedulers.base import Phase, Refusal, Row
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.state import JobState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Actions:
    """Takes the steps of a manager's `jobs`, which are under way, and gives back those that are `ready` again.

    `ended` counts those that are over. Only the manager's thread uses it.
    """

    commands: Commands
    store: RecordStore
    submitter: Submitter
    watcher: Watcher
    signals: Signals
    bundles: Bundles
    requests: Requests
    jobs: dict[str, Job]
    ready: deque[Job]
    tolerantly: Callable[[Callable[[], None]], None]
    ended: Counter[JobState] = field(default_factory=Counter)
    # The node of each task whose job could not open its log, before any job of the run could.
    without_log: dict[str, str] = field(default_factory=dict)

    def take_step(self, now: float, job: Job) -> None:
        """Decide the job's next action, and take it."""
        settings = self.submitter.settings
        self.submitter.save(job)
        action = decide(job, now, settings)
        if action == Action(Do.CANCEL, Cause.STALLED):
            # The last look may be older than the pause that the job, or this driver, has just had.
            job.listen(now)
            action = decide(job, now, settings)
        if action.do is Do.SUCCEED:
            self._succeed(job, now)
        elif action.do is Do.END:
            self._retry_or_fail(job, cause_of_end(job))
        elif action.do is Do.LOSE:
            self._retry_or_fail(job, cause_of_loss(job, self.store, self.commands))
        elif action.do is Do.GIVE_UP_NAME:
            self._give_up_name(job, now)
        elif action.do is Do.CANCEL:
            self._cancel(job, action.ending)

    def _cancel(self, job: Job, ending: str) -> None:
        # On disk first: the next driver must not take this for a user's cancellation.
        record = replace(job.record, ending=ending)
        self.store.save(record)
        job.record = record
        if job.row is not None and job.row.hopeless:
            job.intent = replace(job.intent, complaint=job.row.said)
        if record.shares_job:
            self.store.close(record.name)
        logger.warning("%s: cancelling job %s: %s", record.name, record.job_id, words_of(ending, job.scheduler))
        self.signals.cancel(job)

    # Success.

    def _succeed(self, job: Job, now: float) -> None:
        if not _is_complete(job, otherwise=True):
            if job.lasts(job.files.result_since, now, self.submitter.settings.patience.latency_wait):
                self._output_missing(job)
            return
        self.submitter.nodes.does_well(job.node, job.seen.off_node)
        name = job.record.name
        if job.record.shares_job:
            # This stops a member that does not end by itself.
            self.store.close(name)
            self.finish(job, success_of(job))
            return
        if job.row is None or not job.row.phase.ended:
            self.watcher.leftovers.add(job.record.job_name, now)
        self.finish(job, success_of(job))
        self.tolerantly(partial(self.store.forget_files, name))

    def _output_missing(self, job: Job) -> None:
        if not job.adopted:
            self._retry_or_fail(job, Cause.NO_OUTPUT)
            return
        # An old success, whose output was removed since: the job is submitted again.
        logger.info("%s: its result is of an earlier run and its output is gone; submitting anew", job.record.name)
        self._again(job, job.record.next_submission(Cause.NO_OUTPUT, attempt=1))

    # No success.

    def refused(self, job: Job, words: str) -> None:
        """Take in that the scheduler refused the job for good; `words` is its message."""
        if not self.store.close_unclaimed(job.record.name):
            # The job runs all the same, and is found by its name: a second one would do the same work.
            return
        if not self._goes_elsewhere(job, Cause.REFUSED, words):
            self.finish(job, failure_of(job, Cause.REFUSED, words))

    def _goes_elsewhere(self, job: Job, cause: Cause, words: str) -> bool:
        """Submit a job that gets no place alone, or to any node; return False if it asked for no less already."""
        if job.record.bundle:
            logger.warning("%s: in a bundle: %s; trying again without", job.record.name, words)
            self._again(job, job.record.next_submission(cause), alone=True)
            return True
        if self.submitter.avoids_nodes(job):
            # Nodes where jobs ended badly are better than none.
            logger.warning("%s: %s; trying again on any node", job.record.name, words)
            self.submitter.nodes.allow_all(job.record.task)
            self._again(job, job.record.next_submission(cause, exclude=()))
            return True
        return False

    def _give_up_name(self, job: Job, now: float) -> None:
        """Close the claim of a submission that has left no trace, and submit the task under a new name."""
        if not self.store.close_unclaimed(job.record.name):
            owner = self.store.claim_owner(job.record.name)
            if owner is not None:
                self.submitter.confirm(job, owner)
            else:
                self._close_empty_claim(job, now)
            return
        refused, alone = job.intent.refused, not any(other.record.job_id for other in self.jobs.values())
        unclear = refused if refused is not None and refused.meaning is Refusal.UNCLEAR and alone else None
        if unclear and job.lasts(unclear.since, now, self.submitter.settings.patience.unclear_refusal):
            self.finish(job, failure_of(job, Cause.REFUSED, unclear.words))
        else:
            self._again(job, job.record.next_submission(Cause.UNCONFIRMED))

    def _close_empty_claim(self, job: Job, now: float) -> None:
        """Close a claim that stays empty: a driver or a job could not write it."""
        if not self.store.is_claimed_by_nobody(job.record.name):
            return
        since = now if job.files.unclaimed is None else job.files.unclaimed
        job.files = replace(job.files, unclaimed=since)
        if job.lasts(since, now, self.submitter.settings.patience.latency_wait):
            path = self.store.claim_path(job.record.name)
            logger.warning("%s is empty, and no job of that name is known: closing it", path)
            self.store.close(job.record.name)

    def _retry_or_fail(self, job: Job, cause: Cause) -> None:
        if job.record.shares_job and (cause in (Cause.TIMEOUT, Cause.MEMORY) or _was_left_out(job, cause)):
            cause = Cause.NOT_BEGUN if self.store.close_unclaimed(job.record.name) else cause
        nothing_ran = cause in (Cause.CRASHED, Cause.HOPELESS) and job.row is not None and job.row.no_log
        no_log = nothing_ran and not self.submitter.any_log()
        if no_log and self._is_no_single_nodes_fault(job):
            cause = Cause.NO_LOG
        # The old job must not work beside its successor if somebody requeues it.
        self.store.close(job.record.name)
        name, words = f"{job.record.name}: job {job.record.job_id}", cause.words(job.scheduler)
        if CAUSES[cause].may_be_done and _is_complete(job, otherwise=False):
            logger.warning("%s: %s; but its output is complete", name, words)
            self.finish(job, success_of(job))
            return
        if cause is Cause.HOPELESS and self._goes_elsewhere(job, cause, job.intent.complaint):
            return
        following = self._following(job, cause)
        if following is None:
            self.finish(job, failure_of(job, Cause.NO_LOG if no_log else cause))
        else:
            # What a job without a result says of its end stands in its log alone.
            said = f'; its log ends with "{_last_line(job)}"' if cause is Cause.CRASHED and _last_line(job) else ""
            if no_log:
                said = f"; {Cause.NO_LOG.words(job.scheduler)}: {Cause.NO_LOG.explanation(job.scheduler)}"
            logger.warning("%s: %s%s; trying again", name, words, said)
            self._again(job, following)

    def _is_no_single_nodes_fault(self, job: Job) -> bool:
        """Whether a second node, or this task's second job, could not open its log; takes this job in."""
        others = {node for node in self.without_log.values() if node != job.node}
        again = job.record.task in self.without_log or bool(others)
        self.without_log[job.record.task] = job.node
        return again

    def _following(self, job: Job, cause: Cause) -> Record | None:
        """The record of the next submission after the job has ended; None if it is not tried again."""
        now = self.commands.clock.now()
        excused = self.submitter.nodes.learn(job, cause, now)
        if cause is Cause.CONFIGURATION and job.adopted:
            # It was ordered under an earlier driver's configuration.
            return job.record.next_submission(cause)
        job.listen(now)
        return next_record(job.record, cause, self.submitter.settings, job.node, excused, job.blocks_done > 0)

    def _again(self, job: Job, record: Record, alone: bool = False) -> None:
        self.store.save(record)
        former, row, now = job.record, job.row, self.commands.clock.now()
        not_before = now + pause_before(record, self.submitter.settings.patience.after_trouble)
        job.again(record, Intent(now, not_before, alone or job.intent.alone, job.intent.refused))
        del self.jobs[record.task]
        if self.submitter.nodes.in_trouble:
            # A task that fails anywhere must not keep the rest waiting: the next task is tried.
            self.ready.append(job)
        else:
            self.ready.appendleft(job)
        self.tolerantly(partial(self._leave_bundle, former, row))

    def finish(self, job: Job, outcome: Outcome, keep_record: bool = False) -> None:
        """Bring a job to its outcome."""
        if not keep_record:
            record = last_record(job.record, None if isinstance(outcome, Success) else Cause(outcome.cause))
            self.store.save(record)
            job.record = record
        self.ended[JobState.SUCCEEDED if isinstance(outcome, Success) else JobState.FAILED] += 1
        self.jobs.pop(job.record.task, None)
        self.requests.close(job.record.task, outcome)
        self.tolerantly(partial(self._leave_bundle, job.record, job.row))

    def _leave_bundle(self, record: Record, row: Row | None) -> None:
        gone = row is not None and row.phase.ended
        if record.bundle and self.bundles.forget_if_over(record) and record.shares_job and not gone:
            self.watcher.leftovers.add(record.job_name, self.commands.clock.now())


def _last_line(job: Job) -> str:
    return (job.tail().splitlines() or [""])[-1][:300]


def _is_complete(job: Job, otherwise: bool) -> bool:
    """Whether the job's output is there; `otherwise` if the order does not say how to find out."""
    return otherwise if job.order.is_complete is None else job.order.is_complete()


def _was_left_out(job: Job, cause: Cause) -> bool:
    """Whether the bundle's job ended well without this member: after a signal, it starts no more members."""
    completed = job.row is not None and job.row.phase is Phase.COMPLETED
    return cause is Cause.CRASHED and completed and job.files.exit_code is None


def cause_of_loss(job: Job, store: RecordStore, commands: Commands) -> Cause:
    """Why no listing has the job any more: somebody cancelled it while it waited, or it was lost."""
    waited = job.row is None or job.row.phase is Phase.PENDING
    # Slurm forgets elements of an array that are cancelled while they wait.
    forgets = job.scheduler.FORGETS_CANCELLED or (bool(job.record.bundle) and not job.record.shares_job)
    if not (forgets and waited):
        return Cause.LOST
    # The accounting, or without it the claim, would show that the job has begun since.
    accounted = job.row is not None and not commands.lacking
    return Cause.CANCELLED if accounted or store.close_unclaimed(job.record.name) else Cause.LOST


def success_of(job: Job) -> Success:
    """The outcome of a job whose work is done."""
    record, result = job.record, dict(job.files.result or {})
    log = job.log or Path(record.log_pattern)
    return Success(str(result.get("job_id") or record.job_id), record.attempt, log, result, job.adopted)


def failure_of(job: Job, cause: Cause, words: str = "") -> Failure:
    """The outcome of a job that is not tried again; `words` are the scheduler's or Python's own, if any."""
    record, row = job.record, job.row
    if cause in (Cause.EXCEPTION, Cause.INPUT, Cause.CONFIGURATION, Cause.FILES):
        words = str((job.files.result or {}).get("exception") or "")
    elif not words and row is not None:
        words = job.intent.complaint or row.said
    return Failure(
        job.order.label,
        f"{cause.words(job.scheduler)}{f': {words}' if words else ''}",
        cause,
        cause.explanation(job.scheduler),
        record.attempt,
        record.job_id or "",
        row.node if row is not None else "",
        job.log,
        job.tail(),
    )
