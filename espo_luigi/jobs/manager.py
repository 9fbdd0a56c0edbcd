"""The job manager: thousands of jobs from one thread, each brought to an outcome once.

`JobManager.submit` returns a handle at once. One thread does the rest, in a cycle that costs the same number of
commands however many jobs there are: submit what may be submitted; look at what became of the jobs (`Watcher`); then
take each job's next step (`Flight.next_step`). All state that must survive the driver is in `records`.

A step that the file system refuses is taken again in the next cycle. So each one writes before anything changes here or
in the scheduler, and what it writes twice is the same.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from espo_luigi.jobs.commands import Commands
from espo_luigi.jobs.flights import Flight, Step
from espo_luigi.jobs.handles import Failure, Handle, JobRequest, Outcome, Progress, Success
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.ownership import Ownership
from espo_luigi.jobs.policy import Cause, last_record, pause_before
from espo_luigi.jobs.records import FINISHED, PLANNED, Record, RecordStore
from espo_luigi.jobs.requests import Requests
from espo_luigi.jobs.scheduler import Refusal
from espo_luigi.jobs.script import task_name
from espo_luigi.jobs.signals import Signals
from espo_luigi.jobs.stopping import CANCEL, DETACH, cancel_run, take_control
from espo_luigi.jobs.submitter import JobSettings, Submitter
from espo_luigi.jobs.trouble import DRIVERS_PATIENCE_SECONDS, Minutely, passes, persistently
from espo_luigi.jobs.watcher import Watcher

logger = logging.getLogger(__name__)

_CYCLE_SECONDS = 2.0
# What a cycle and a cancellation may take where each of their commands hangs.
_END_SECONDS = 600.0
# Of why a job was not successful, what says nothing about whether its output is there.
_MAY_BE_DONE = frozenset(Cause) - {Cause.EXCEPTION, Cause.INPUT, Cause.NO_OUTPUT}


class JobManager:
    """Submits requests to a scheduler and brings each to an outcome.

    Use `start` before and `detach`, `cancel_all` or `close` after. Only its own thread touches the flights; the other
    methods may be called from any thread. `still_ours` says whether other folders than `state_dir` are this driver's.
    """

    def __init__(
        self,
        settings: JobSettings,
        commands: Commands,
        state_dir: Path,
        still_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        self.settings = settings
        self.commands = commands
        self._scheduler = commands.scheduler
        self._clock = commands.clock
        self.store = RecordStore(state_dir)
        self.submitter = Submitter(settings, commands, self.store)
        self._nodes = self.submitter.nodes
        self.stopping: str | None = None
        self.cancelled = 0
        self._lock = DriverLock(state_dir)
        self._trouble = Minutely(self._clock)
        self._ownership = Ownership(self._lock, still_ours, self._clock, self._trouble)
        self._requests = Requests()
        self._ready: deque[Flight] = deque()
        self._flights: dict[str, Flight] = {}
        self._watcher = Watcher(settings, commands, self.store, self.submitter, self._trouble)
        self._signals = Signals(commands)
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._ended: Counter[str] = Counter()
        self._salt = ""

    def start(self) -> None:
        """Take the driver's lock and begin. Raises SecondDriverError when another driver has it."""
        for step in (self._lock.acquire, self.store.create_folders):
            persistently(step, DRIVERS_PATIENCE_SECONDS)
        self._salt = persistently(lambda: self.store.salt, DRIVERS_PATIENCE_SECONDS)
        take_control(self.store.folder)
        self._thread.start()

    def submit(self, request: JobRequest, on_progress: Callable[[Progress], None] | None = None) -> Handle:
        """Take a request and return at once; `on_progress` is called in the manager's thread, and must be quick.

        What an earlier driver submitted for the same run, rule and wildcards is taken over instead of submitted again.
        Raises SubmissionError for values that cannot be passed to the scheduler safely.
        """
        task = task_name(request.run, request.rule, request.wildcards, self._salt)
        self.submitter.check(task, request)
        handle = self._requests.add(task, request, on_progress)
        self._wake.set()
        return handle

    def status(self) -> dict[str, int]:
        """Number of requests by where they stand: waiting, pending, running, …, and succeeded and failed so far."""
        flights = list(self._flights.values())
        counts = Counter(f.row.phase.value if f.row is not None else f.record.state for f in flights)
        return {"waiting": len(self._requests.incoming) + len(self._ready), **counts, **self._ended}

    def cancel_all(self, timeout: float = _END_SECONDS) -> int:
        """Stop, cancel all jobs of this run, and return how many there were."""
        self._stop(CANCEL, timeout)
        return self.cancelled

    def detach(self, timeout: float = _END_SECONDS) -> None:
        """Stop, and leave the jobs to the next driver."""
        self._stop(DETACH, timeout)

    close = detach

    def _stop(self, how: str, timeout: float) -> None:
        self.stopping = self.stopping or how
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)
            if self._thread.is_alive():
                logger.error("this run has not ended within %.0f s: the next one sees to what is left", timeout)

    # The thread.

    def _run(self) -> None:
        try:
            while self.stopping is None:
                self._tolerantly(self._cycle)
                self._clock.wait(self._wake, self._pause())
                self._wake.clear()
        except Exception:
            logger.exception("the job manager cannot go on; jobs stay as they are, for the next driver")
            self.stopping = DETACH
        try:
            self._is_still_ours()  # or all is left to whose it is now
            if self.stopping == CANCEL:
                self.cancelled = cancel_run(self.store, self.commands, [one.record for one in self._flights.values()])
            self._cancel_leftovers()
        finally:
            attempts = {task: flight.record.attempt for task, flight in self._flights.items()}
            self._requests.close_all(self.stopping or DETACH, attempts)
            # What cannot be removed is a lock whose holder will be dead.
            self._tolerantly(self._lock.release)

    def _cycle(self) -> None:
        # All steps are as of now: what hangs between this look and a step must not count as waiting in vain.
        now = self._clock.now()
        self._watcher.notice_absence(self._flights.values(), self._cycle_seconds)
        self._tolerantly(self._obey_control)
        if not self._is_still_ours():
            return
        self._tolerantly(self._admit)
        self._submit_ready()
        unwanted = self._watcher.look(self._flights.values())
        for flight in list(self._flights.values()):
            if self._is_still_ours():
                self._guarded(partial(self._take_step, now), flight)
        if self._is_still_ours():
            self._signals.send(unwanted)

    @property
    def _cycle_seconds(self) -> float:
        return min(_CYCLE_SECONDS, self.settings.result_seconds, self.settings.poll_seconds)

    def _pause(self) -> float:
        """Seconds until the next cycle; with more to submit, no longer than the rate of submission demands."""
        longest = self._cycle_seconds
        return min(longest, self.commands.submit_rate.wait_seconds) if self._next_ready() is not None else longest

    def _guarded(self, step: Callable[[Flight], None], flight: Flight) -> None:
        """One task's trouble (its folder unwritable, say) must not end the others."""
        try:
            step(flight)
            flight.trouble_since = None
        except OSError as error:
            self._survive(flight, error)
        except Exception as error:
            logger.exception("%s: the driver could not handle this job", flight.record.name)
            self._give_up(flight, error)

    def _survive(self, flight: Flight, error: OSError) -> None:
        """Take the step again in the next cycle; what no waiting cures is given up after a while."""
        now = self._clock.now()
        flight.trouble_since = flight.trouble_since or now
        self._trouble.warn("trouble with the files of %s, going on: %s", flight.record.name, error)
        if not passes(error) and now - flight.trouble_since >= self.settings.patience.lasting_trouble:
            self._give_up(flight, error)

    def _give_up(self, flight: Flight, error: Exception) -> None:
        with suppress(ValueError):
            self._ready.remove(flight)
        self._finish(flight, flight.failure(Cause.INTERNAL, f"{type(error).__name__}: {error}"), keep_record=True)

    def _tolerantly(self, look: Callable[[], None]) -> None:
        """A file system that fails for a while (ESTALE, EIO, EDQUOT) must not end the driver of a run of days."""
        try:
            look()
        except OSError as error:
            self._trouble.warn("trouble with the files in %s, going on: %s", self.store.folder, error)

    def _obey_control(self) -> None:
        asked = take_control(self.store.folder)
        if asked is not None:
            logger.warning("asked from outside to %s", asked)
            self.stopping = self.stopping or asked

    def _is_still_ours(self) -> bool:
        """To be asked before anything is done."""
        sure = self._ownership.is_sure()
        if self._ownership.lost:
            self.stopping = DETACH
        return sure

    # Taking in requests.

    def _admit(self) -> None:
        while self._requests.incoming:
            request, handle = self._requests.incoming.popleft()
            try:
                self._admit_one(request, handle)
            except Exception as error:
                if isinstance(error, OSError) and passes(error):
                    self._requests.incoming.appendleft((request, handle))
                    raise
                self._requests.close(handle, Failure(Cause.INTERNAL, 0, f"{request.label}: {error}"))

    def _admit_one(self, request: JobRequest, handle: Handle) -> None:
        record = self.store.load(handle.task)
        if record is None or record.state == FINISHED:
            record = self.submitter.plan(handle.task, request, record)
        if record.state == PLANNED:
            self._ready.append(Flight(request, handle, record, self._scheduler))
            return
        owner = record.job_id or self.store.claim_owner(record.name)
        logger.info("%s: taken over from an earlier driver (job %s)", record.name, owner or "id not known yet")
        record = replace(record, job_id=owner)
        self._flights[handle.task] = Flight(request, handle, record, self._scheduler, adopted=True, old_order=True)
        self._watcher.hurry()

    # Submitting.

    def _submit_ready(self) -> None:
        """Submit for as long as one look at the results may wait."""
        until = self._clock.now() + self._cycle_seconds
        while self._is_still_ours() and self._clock.now() + self.commands.submit_rate.wait_seconds <= until:
            flight = self._next_ready()
            if flight is None:
                return
            self._ready.remove(flight)
            self._guarded(self._submit_one, flight)

    def _next_ready(self) -> Flight | None:
        """The next flight that may be submitted now."""
        now, room = self._clock.now(), len(self._flights) < self.settings.max_jobs
        if not room or self.stopping is not None or self.submitter.held(now):
            return None
        return next((flight for flight in self._ready if flight.not_before <= now), None)

    def _submit_one(self, flight: Flight) -> None:
        try:
            self.submitter.prepare(flight)
        except OSError:
            # To the end: the files of this one may be the only ones that fail.
            self._ready.append(flight)
            self.submitter.pause()
            raise
        self._flights[flight.handle.task] = flight
        refused = self.submitter.submit(flight)
        if refused is not None and self.submitter.avoids_nodes(flight):
            self._allow_all_nodes(flight, Cause.REFUSED, refused)
        elif refused is not None:
            self._finish(flight, flight.failure(Cause.REFUSED, refused))

    def _allow_all_nodes(self, flight: Flight, cause: Cause, words: str) -> None:
        """Without the nodes where jobs ended badly there is none for this job: better those than none."""
        logger.warning("%s: %s; trying again on any node", flight.record.name, words)
        self._again(flight, self.submitter.following_anywhere(flight, cause))

    # Each job's next step.

    def _take_step(self, now: float, flight: Flight) -> None:
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
            self._signals.dump(flight)
        elif step is not Step.WAIT:
            self._cancel_one(flight, flight.ending(step))

    def _cancel_one(self, flight: Flight, ending: str) -> None:
        # On disk first: the next driver must not take our own cancellation for somebody's wish.
        record = replace(flight.record, ending=ending)
        self.store.save(record)
        flight.record = record
        logger.warning("%s: cancelling job %s: %s", flight.record.name, flight.record.job_id, ending)
        self._signals.cancel(flight)

    def _succeed(self, flight: Flight, now: float) -> None:
        if flight.request.is_complete is not None and not flight.request.is_complete():
            waited = now - (flight.result_since or now)
            if waited >= self.settings.patience.latency_wait:
                self._output_missing(flight)
            return
        self._nodes.does_well(flight.node, flight.started_after)
        if flight.row is None or not flight.row.phase.ended:
            self._watcher.leftovers.add(flight.record.name, now)
        name = flight.record.name
        self._finish(flight, flight.success())
        self._tolerantly(partial(self.store.forget_files, name))

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
        alone = not any(other.record.job_id for other in self._flights.values())
        unclear = flight.refusal is Refusal.UNCLEAR and alone
        if unclear and now - (flight.refused_since or now) >= self.settings.patience.unclear_refusal:
            self._finish(flight, flight.failure(Cause.REFUSED, flight.refusal_words))
        else:
            self._again(flight, flight.record.next_submission(Cause.UNCONFIRMED.words(self._scheduler)))

    def _retry_or_fail(self, flight: Flight, cause: Cause) -> None:
        # From here on, nobody's `scontrol requeue` can make the old job work beside the new one.
        self.store.close(flight.record.name)
        if cause in _MAY_BE_DONE and flight.request.is_complete is not None and flight.request.is_complete():
            logger.warning(
                "%s: job %s: %s; but its output is complete", flight.record.name, flight.record.job_id, cause.value
            )
            self._finish(flight, flight.success())
            return
        if cause is Cause.HOPELESS and self.submitter.avoids_nodes(flight):
            self._allow_all_nodes(flight, cause, flight.hopeless_words)
            return
        following = self.submitter.following(flight, cause)
        if following is None:
            self._finish(flight, flight.failure(cause))
        else:
            logger.warning("%s: job %s: %s; trying again", flight.record.name, flight.record.job_id, cause.value)
            self._again(flight, following)

    def _again(self, flight: Flight, record: Record) -> None:
        self.store.save(record)
        flight.start_over(record)
        flight.not_before = self._clock.now() + pause_before(record, self.settings.patience.after_trouble)
        del self._flights[flight.handle.task]
        if self._nodes.in_trouble:
            # Of all tasks the next one is tried, lest one that fails anywhere keeps all others waiting.
            self._ready.append(flight)
        else:
            self._ready.appendleft(flight)

    def _finish(self, flight: Flight, outcome: Outcome, keep_record: bool = False) -> None:
        if not keep_record:
            cause = None if isinstance(outcome, Success) else outcome.cause
            record = last_record(flight.record, cause, self._scheduler)
            self.store.save(record)
            flight.record = record
        self._ended["succeeded" if isinstance(outcome, Success) else "failed"] += 1
        self._flights.pop(flight.handle.task, None)
        self._requests.close(flight.handle, outcome)

    # Stopping.

    def _cancel_leftovers(self) -> None:
        unwanted = [] if self._ownership.lost else self._watcher.leftovers.unwanted_at_the_end()
        if unwanted and self._is_still_ours():
            self.commands.cancel(unwanted)
