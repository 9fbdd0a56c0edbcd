"""What is done about a job, by what is known of it: it is left alone, cancelled, tried again, or over."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from espo_luigi.jobs.bundles.members import Bundles
from espo_luigi.jobs.lifecycle.flights import Flight, Step
from espo_luigi.jobs.lifecycle.handles import Outcome, Success
from espo_luigi.jobs.lifecycle.observe import Watcher
from espo_luigi.jobs.lifecycle.policy import Cause, last_record, pause_before
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lifecycle.requests import Requests
from espo_luigi.jobs.lifecycle.signals import Signals
from espo_luigi.jobs.lifecycle.submit import JobSettings, Submitter
from espo_luigi.jobs.schedulers.base import Phase, Refusal, Row
from espo_luigi.jobs.trouble import Clock

logger = logging.getLogger(__name__)

# Causes after which the output may be there nevertheless.
_MAY_BE_DONE = frozenset(Cause) - {Cause.EXCEPTION, Cause.INPUT, Cause.NO_OUTPUT}


@dataclass(frozen=True)
class Verdicts:
    """Takes the steps of a manager's `flights`, which are under way, and gives back those that are `ready` again.

    `ended` counts those that are over. Only the manager's thread uses it.
    """

    settings: JobSettings
    store: RecordStore
    submitter: Submitter
    watcher: Watcher
    signals: Signals
    bundles: Bundles
    requests: Requests
    flights: dict[str, Flight]
    ready: deque[Flight]
    clock: Clock
    tolerantly: Callable[[Callable[[], None]], None]
    ended: Counter[str] = field(default_factory=Counter)

    def refused(self, flight: Flight, words: str) -> None:
        """Take in that the scheduler will never take the flight's job, in its words."""
        if flight.record.bundle:
            self._go_alone(flight, Cause.REFUSED, words)
        elif self.submitter.avoids_nodes(flight):
            self._allow_all_nodes(flight, Cause.REFUSED, words)
        else:
            self.finish(flight, flight.failure(Cause.REFUSED, words))

    def _go_alone(self, flight: Flight, cause: Cause, words: str) -> None:
        """Submit the task again by itself: its bundle asks for more than there is."""
        logger.warning("%s: in a bundle: %s; trying again without", flight.record.name, words)
        flight.alone = True
        self._again(flight, flight.record.next_submission(cause.words(flight.scheduler)))

    def _allow_all_nodes(self, flight: Flight, cause: Cause, words: str) -> None:
        """Submit the job again to any node: those where jobs ended badly are better than none."""
        logger.warning("%s: %s; trying again on any node", flight.record.name, words)
        self._again(flight, self.submitter.following_anywhere(flight, cause))

    def take_step(self, now: float, flight: Flight) -> None:
        """Do what follows from what is known of the flight's job."""
        self.submitter.save(flight)
        step = flight.next_step(now, self.settings.patience)
        if step in (Step.DUMP_STACK, Step.CANCEL_STALLED):
            # The last look may be older than the pause that the job, or this driver, has just had.
            flight.read_beat(now)
            step = flight.next_step(now, self.settings.patience)
        if step is Step.SUCCEED:
            self._succeed(flight, now)
        elif step is Step.ENDED:
            self._retry_or_fail(flight, flight.cause())
        elif step is Step.LOST:
            self._retry_or_fail(flight, self.submitter.cause_of_loss(flight))
        elif step is Step.GIVE_UP_NAME:
            self._give_up_name(flight, now)
        elif step is Step.DUMP_STACK:
            self.signals.dump(flight)
        elif step is not Step.WAIT:
            self._cancel_one(flight, flight.ending(step))

    def _cancel_one(self, flight: Flight, ending: str) -> None:
        # On disk first: the next driver must not take our own cancellation for somebody's wish.
        record = replace(flight.record, ending=ending)
        self.store.save(record)
        flight.record = record
        if record.shares_job:
            self.store.close(record.name)
        logger.warning("%s: cancelling job %s: %s", flight.record.name, flight.record.job_id, ending)
        self.signals.cancel(flight)

    def _succeed(self, flight: Flight, now: float) -> None:
        if flight.request.is_complete is not None and not flight.request.is_complete():
            waited = now - (flight.result_since or now)
            if waited >= self.settings.patience.latency_wait:
                self._output_missing(flight)
            return
        self.submitter.nodes.does_well(flight.node, flight.started_after)
        name = flight.record.name
        if flight.record.shares_job:
            # If it does not end by itself, this stops it.
            self.store.close(name)
            self.finish(flight, flight.success())
            return
        if flight.row is None or not flight.row.phase.ended:
            self.watcher.leftovers.add(flight.record.job_name, now)
        self.finish(flight, flight.success())
        self.tolerantly(partial(self.store.forget_files, name))

    def _leave_bundle(self, record: Record, row: Row | None) -> None:
        gone = row is not None and row.phase.ended
        if record.bundle and self.bundles.forget_if_over(record) and record.shares_job and not gone:
            self.watcher.leftovers.add(record.job_name, self.clock.now())

    def _output_missing(self, flight: Flight) -> None:
        if not flight.adopted:
            self._retry_or_fail(flight, Cause.NO_OUTPUT)
            return
        # An old success, whose output was removed since: the work has to be done again.
        logger.info("%s: its result is of an earlier run and its output is gone; submitting anew", flight.record.name)
        flight.adopted = False
        self._again(flight, flight.record.next_submission(Cause.NO_OUTPUT.value, attempt=1))

    def _give_up_name(self, flight: Flight, now: float) -> None:
        """A submission without an answer left no trace: see that it never will, and try again under a new name."""
        if not self.store.close_unclaimed(flight.record.name):
            owner = self.store.claim_owner(flight.record.name)
            if owner is not None:
                self.submitter.confirm(flight, owner)
            else:
                self.submitter.close_empty_claim(flight, now)
            return
        alone = not any(other.record.job_id for other in self.flights.values())
        unclear = flight.refusal is Refusal.UNCLEAR and alone
        if unclear and now - (flight.refused_since or now) >= self.settings.patience.unclear_refusal:
            self.finish(flight, flight.failure(Cause.REFUSED, flight.refusal_words))
        else:
            self._again(flight, flight.record.next_submission(Cause.UNCONFIRMED.words(flight.scheduler)))

    def _retry_or_fail(self, flight: Flight, cause: Cause) -> None:
        if flight.record.shares_job and (cause in (Cause.TIMEOUT, Cause.MEMORY) or _was_left_out(flight, cause)):
            cause = Cause.NOT_BEGUN if self.store.close_unclaimed(flight.record.name) else cause
        # From here on, nobody's `scontrol requeue` can make the old job work beside the new one.
        self.store.close(flight.record.name)
        if cause in _MAY_BE_DONE and flight.request.is_complete is not None and flight.request.is_complete():
            logger.warning(
                "%s: job %s: %s; but its output is complete", flight.record.name, flight.record.job_id, cause.value
            )
            self.finish(flight, flight.success())
            return
        if cause is Cause.HOPELESS and flight.record.bundle:
            self._go_alone(flight, cause, flight.hopeless_words)
            return
        if cause is Cause.HOPELESS and self.submitter.avoids_nodes(flight):
            self._allow_all_nodes(flight, cause, flight.hopeless_words)
            return
        following = self.submitter.following(flight, cause)
        if following is None:
            self.finish(flight, flight.failure(cause))
        else:
            logger.warning("%s: job %s: %s; trying again", flight.record.name, flight.record.job_id, cause.value)
            self._again(flight, following)

    def _again(self, flight: Flight, record: Record) -> None:
        self.store.save(record)
        former, row, now = flight.record, flight.row, self.clock.now()
        flight.start_over(record)
        flight.ready_since = now
        flight.not_before = now + pause_before(record, self.settings.patience.after_trouble)
        del self.flights[flight.handle.task]
        if self.submitter.nodes.in_trouble:
            # The next task is tried, lest one that fails anywhere keeps all others waiting.
            self.ready.append(flight)
        else:
            self.ready.appendleft(flight)
        self.tolerantly(partial(self._leave_bundle, former, row))

    def finish(self, flight: Flight, outcome: Outcome, keep_record: bool = False) -> None:
        """Bring a flight to its outcome."""
        if not keep_record:
            cause = None if isinstance(outcome, Success) else outcome.cause
            record = last_record(flight.record, cause, flight.scheduler)
            self.store.save(record)
            flight.record = record
        self.ended["succeeded" if isinstance(outcome, Success) else "failed"] += 1
        self.flights.pop(flight.handle.task, None)
        self.requests.close(flight.handle, outcome)
        self.tolerantly(partial(self._leave_bundle, flight.record, flight.row))


def _was_left_out(flight: Flight, cause: Cause) -> bool:
    """Whether the bundle's job ended well without this member, as one that got a signal starts no more."""
    completed = flight.row is not None and flight.row.phase is Phase.COMPLETED
    return cause is Cause.CRASHED and completed and flight.exit_code is None
