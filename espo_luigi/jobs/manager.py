"""The job manager: thousands of jobs from one thread, each brought to an outcome once.

`JobManager.submit` returns a handle at once. One thread does the rest, in a cycle that costs the same number of
commands however many jobs there are: submit what may be submitted; look for result files; ask the scheduler about all
jobs, and its memory about those that it does not list; then take each job's next step (`Flight.next_step`).
All state that must survive the driver is in `records`.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from espo_luigi.jobs.commands import Commands
from espo_luigi.jobs.flights import Flight, Step, with_results
from espo_luigi.jobs.handles import Failure, Handle, JobRequest, Outcome, Progress, Success
from espo_luigi.jobs.leftovers import Leftovers
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.policy import Cause, last_record, next_record
from espo_luigi.jobs.records import FINISHED, PLANNED, Record, RecordStore
from espo_luigi.jobs.scheduler import Phase, Refusal, Row
from espo_luigi.jobs.script import task_name
from espo_luigi.jobs.stopping import CANCEL, DETACH, cancel_run, stopped, take_control
from espo_luigi.jobs.submitter import JobSettings, Submitter

logger = logging.getLogger(__name__)

_SAY_SILENT_EVERY = 60.0
_REFRESH_LOCK_EVERY = 30.0


class JobManager:
    """Submits requests to a scheduler and brings each to an outcome.

    Use `start` before and `detach`, `cancel_all` or `close` after. Only its own thread touches the flights; the other
    methods may be called from any thread.
    """

    def __init__(self, settings: JobSettings, commands: Commands, state_dir: Path) -> None:
        self.settings = settings
        self.commands = commands
        self._scheduler = commands.scheduler
        self._clock = commands.clock
        self.store = RecordStore(state_dir)
        self._submitter = Submitter(settings, commands, self.store)
        self._nodes = self._submitter.nodes
        self.stopping: str | None = None
        self.cancelled = 0
        self._lock = DriverLock(state_dir)
        self._handles: dict[str, Handle] = {}
        self._guard = threading.Lock()
        self._incoming: deque[tuple[JobRequest, Handle]] = deque()
        self._ready: deque[Flight] = deque()
        self._flights: dict[str, Flight] = {}
        self._leftovers = Leftovers(commands, settings.patience.latency_wait)
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._next_poll = self._next_refresh = 0.0
        self._said_silent = self._said_file_error = -_SAY_SILENT_EVERY
        self._silent_since: float | None = None
        self._ended: Counter[str] = Counter()
        self._salt = ""

    def start(self) -> None:
        """Take the driver's lock and begin. Raises SecondDriverError when another driver has it."""
        self._lock.acquire()
        self.store.create_folders()
        self._salt = self.store.salt
        take_control(self.store.folder)
        self._thread.start()

    def submit(self, request: JobRequest, on_progress: Callable[[Progress], None] | None = None) -> Handle:
        """Take a request and return at once; `on_progress` is called in the manager's thread, and must be quick.

        What an earlier driver submitted for the same run, rule and wildcards is taken over instead of submitted again.
        Raises SubmissionError for values that cannot be passed to the scheduler safely.
        """
        task = task_name(request.run, request.rule, request.wildcards, self._salt)
        self._submitter.check(task, request)
        with self._guard:
            handle = self._handles.get(task)
            if handle is not None:
                return handle
            handle = Handle(task, request.label, on_progress)
            if self.stopping:
                handle.resolve(stopped(self.stopping, 0, request.label))
                return handle
            self._handles[task] = handle
            self._incoming.append((request, handle))
        self._wake.set()
        return handle

    def status(self) -> dict[str, int]:
        """Number of requests by where they stand: waiting, pending, running, …, and succeeded and failed so far."""
        flights = list(self._flights.values())
        counts = Counter(f.row.phase.value if f.row is not None else f.record.state for f in flights)
        return {"waiting": len(self._incoming) + len(self._ready), **counts, **self._ended}

    def cancel_all(self, timeout: float = 180.0) -> int:
        """Stop, cancel all jobs of this run, and return how many there were."""
        self._stop(CANCEL, timeout)
        return self.cancelled

    def detach(self, timeout: float = 180.0) -> None:
        """Stop, and leave the jobs to the next driver."""
        self._stop(DETACH, timeout)

    close = detach

    def _stop(self, how: str, timeout: float) -> None:
        self.stopping = self.stopping or how
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    # The thread.

    def _run(self) -> None:
        try:
            while self.stopping is None:
                self._cycle()
                self._clock.wait(self._wake, self._pause())
                self._wake.clear()
        except Exception:
            logger.exception("the job manager cannot go on; jobs stay as they are, for the next driver")
            self.stopping = DETACH
        try:
            if self.stopping == CANCEL:
                self._cancel_everything()
            self._leftovers.end()
        finally:
            self._resolve_rest()
            self._lock.release()

    def _cycle(self) -> None:
        self._tolerantly(self._obey_control)
        self._admit()
        self._submit_ready()
        self._read_results()
        now = self._clock.now()
        if now >= self._next_poll and (self._flights or self._leftovers):
            self._poll(now)
            self._next_poll = self._clock.now() + self.settings.poll_seconds
        for flight in list(self._flights.values()):
            self._guarded(self._take_step, flight)
        if now >= self._next_refresh:
            self._next_refresh = now + _REFRESH_LOCK_EVERY
            self._tolerantly(self._refresh_lock)

    def _pause(self) -> float:
        """Seconds until the next cycle; with more to submit, no longer than the rate of submission demands."""
        longest = self.settings.result_seconds
        return min(longest, self.commands.submit_rate.wait_seconds) if self._may_submit() else longest

    def _guarded(self, step: Callable[[Flight], None], flight: Flight) -> None:
        """One task's trouble (its folder unwritable, say) must not end the others."""
        try:
            step(flight)
        except Exception as error:
            logger.exception("%s: the driver could not handle this job", flight.record.name)
            self._finish(flight, flight.failure(Cause.INTERNAL, f"{type(error).__name__}: {error}"), keep_record=True)

    def _tolerantly(self, look: Callable[[], None]) -> None:
        """A file system that fails for a while (ESTALE, EIO, EDQUOT) must not end the driver of a run of days."""
        try:
            look()
        except OSError as error:
            if self._clock.now() - self._said_file_error >= _SAY_SILENT_EVERY:
                self._said_file_error = self._clock.now()
                logger.warning("trouble with the files in %s, going on: %s", self.store.folder, error)

    def _obey_control(self) -> None:
        asked = take_control(self.store.folder)
        if asked is not None:
            logger.warning("asked from outside to %s", asked)
            self.stopping = self.stopping or asked

    def _refresh_lock(self) -> None:
        if not self._lock.refresh():
            logger.error("%s is no longer this driver's: it stops, and leaves its jobs alone", self._lock.path)
            self.stopping = self.stopping or DETACH

    # Taking in requests.

    def _admit(self) -> None:
        while self._incoming:
            request, handle = self._incoming.popleft()
            try:
                self._admit_one(request, handle)
            except Exception as error:
                self._forget(handle, Failure(Cause.INTERNAL, 0, f"{request.label}: {error}"))

    def _admit_one(self, request: JobRequest, handle: Handle) -> None:
        record = self.store.load(handle.task)
        if record is None or record.state == FINISHED:
            self._ready.append(
                Flight(request, handle, self._submitter.plan(handle.task, request, record), self._scheduler)
            )
        elif record.state == PLANNED:
            self._ready.append(Flight(request, handle, record, self._scheduler))
        else:
            owner = record.job_id or self.store.claim_owner(record.name)
            logger.info("%s: taken over from an earlier driver (job %s)", record.name, owner or "id not known yet")
            record = replace(record, job_id=owner)
            self._flights[handle.task] = Flight(request, handle, record, self._scheduler, adopted=True)
            self._next_poll = 0.0

    # Submitting.

    def _submit_ready(self) -> None:
        """Submit for as long as one look at the results may wait."""
        until = self._clock.now() + self.settings.result_seconds
        while self._may_submit() and self._clock.now() + self.commands.submit_rate.wait_seconds <= until:
            flight = self._ready.popleft()
            self._flights[flight.handle.task] = flight
            self._guarded(self._submit_one, flight)

    def _may_submit(self) -> bool:
        room = len(self._flights) < self.settings.max_jobs
        return bool(self._ready) and room and self.stopping is None and not self._submitter.held(self._clock.now())

    def _submit_one(self, flight: Flight) -> None:
        refused = self._submitter.submit(flight)
        if refused is not None and self._submitter.avoids_nodes(flight):
            self._allow_all_nodes(flight, Cause.REFUSED, refused)
        elif refused is not None:
            self._finish(flight, flight.failure(Cause.REFUSED, refused))

    def _allow_all_nodes(self, flight: Flight, cause: Cause, words: str) -> None:
        """Without the nodes where jobs ended badly there is none for this job: better those than none."""
        logger.warning("%s: %s; trying again on any node", flight.record.name, words)
        self._nodes.allow_all(flight.record.task)
        allowed = flight.request.options.exclude
        self._again(flight, flight.record.next_submission(cause.words(self._scheduler), exclude=allowed))

    # Watching.

    def _read_results(self) -> None:
        flights = list(self._flights.values())
        present = {flight.handle.task for flight in with_results(flights)}
        now = self._clock.now()
        for flight in flights:
            if flight.handle.task in present:
                flight.read_result(self.store, now)
            elif flight.result is not None:
                flight.lost_result()

    def _poll(self, now: float) -> None:
        rows = self.commands.jobs()
        if rows is None:
            self._scheduler_is_silent(now, self._flights.values())
            return
        by_name = {row.name: row for row in rows}
        missing = [flight for flight in self._flights.values() if not self._take_in(flight, by_name, now)]
        leaving = [f for f in self._flights.values() if f.leaves_for_long(now, self.settings.patience)]
        self._leftovers.look(by_name, now)
        if (missing or leaving) and not self._ask_memory(missing, leaving, now):
            self._scheduler_is_silent(now, [flight for flight in missing if flight.record.job_id])
        else:
            self._silent_since = None
        for flight in self._flights.values():
            # Also of a job that the scheduler does not know: a beating one is not lost, even if never seen running.
            if flight.absent_since is not None or (flight.row is not None and flight.row.phase is Phase.RUNNING):
                flight.read_beat(now)
            if flight.has_begun_well(now):
                self._nodes.does_well(flight.node, flight.started_after)
            flight.handle.report(flight.progress())

    def _take_in(self, flight: Flight, by_name: Mapping[str, Row], now: float) -> bool:
        """Whether the answer settles this flight: it is known, or was known to have ended."""
        row = by_name.get(flight.record.name)
        if row is None:
            return flight.ended_since is not None
        if flight.record.job_id is None:
            self._submitter.confirm(flight, row.job_id)
        flight.saw(row, now)
        return True

    def _ask_memory(self, missing: list[Flight], leaving: list[Flight], now: float) -> bool:
        ids = [f.record.job_id for f in (*missing, *leaving) if f.record.job_id]
        names = [f.record.name for f in missing if not f.record.job_id]
        rows = self.commands.remembered(ids, names)
        # A memory may call a job running that the scheduler has forgotten: only its ends are believed.
        by_name = {row.name: row for row in rows or () if row.phase.ended}
        for flight in leaving:
            # Where the accounting has its end already, a site's epilog is not waited for.
            self._take_in(flight, by_name, now)
        for flight in missing:
            known = self._take_in(flight, by_name, now)
            # A submission without an id is settled by its claim: it does not have to wait for a database.
            if not known and (rows is not None or flight.record.job_id is None):
                flight.missed(now)
        return rows is not None

    def _scheduler_is_silent(self, now: float, flights: Iterable[Flight]) -> None:
        for flight in flights:
            flight.heard_nothing()
        self._silent_since = self._silent_since or now
        if now - self._said_silent >= _SAY_SILENT_EVERY:
            self._said_silent = now
            name, seconds = self._scheduler.NAME, now - self._silent_since
            logger.warning("%s has not answered for %.0f s; waiting, its jobs go on", name, seconds)

    # Each job's next step.

    def _take_step(self, flight: Flight) -> None:
        now = self._clock.now()
        step = flight.next_step(now, self.settings.patience)
        if step is Step.SUCCEED:
            self._succeed(flight, now)
        elif step is Step.ENDED:
            self._retry_or_fail(flight, flight.cause())
        elif step is Step.LOST:
            self._retry_or_fail(flight, Cause.LOST)
        elif step is Step.GIVE_UP_NAME:
            self._give_up_name(flight, now)
        elif step is Step.DUMP_STACK:
            logger.warning("%s: no heartbeat; asking job %s for its stack", flight.record.name, flight.record.job_id)
            self.commands.dump_stack(str(flight.record.job_id))
            flight.dumped_since = now
        elif step is not Step.WAIT:
            self._cancel_one(flight, flight.ending(step), now)

    def _cancel_one(self, flight: Flight, ending: str, now: float) -> None:
        # On disk first: the next driver must not take our own cancellation for somebody's wish.
        flight.record = replace(flight.record, ending=ending)
        self.store.save(flight.record)
        logger.warning("%s: cancelling job %s: %s", flight.record.name, flight.record.job_id, ending)
        self.commands.cancel([str(flight.record.job_id)])
        flight.cancel_since = now

    def _succeed(self, flight: Flight, now: float) -> None:
        if flight.request.is_complete is not None and not flight.request.is_complete():
            waited = now - (flight.result_since or now)
            if waited >= self.settings.patience.latency_wait:
                self._output_missing(flight)
            return
        self._nodes.does_well(flight.node, flight.started_after)
        result = dict(flight.result or {})
        if flight.row is None or not flight.row.phase.ended:
            self._leftovers.add(flight.record.name, now)
        log, attempts = flight.log or Path(flight.record.log_pattern), flight.record.attempt
        self._finish(flight, Success(str(result.get("job_id")), attempts, log, result, flight.adopted))
        self.store.forget_files(flight.record.name)

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
                self._submitter.confirm(flight, owner)
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
        if cause is Cause.HOPELESS and self._submitter.avoids_nodes(flight):
            self._allow_all_nodes(flight, cause, flight.hopeless_words)
            return
        excused = self._nodes.learn(flight, cause, self._clock.now())
        limits = flight.request.limits(self.settings.max_uncharged)
        following = next_record(flight.record, cause, limits, flight.node, excused)
        if following is None:
            self._finish(flight, flight.failure(cause))
        else:
            logger.warning("%s: job %s: %s; trying again", flight.record.name, flight.record.job_id, cause.value)
            self._again(flight, following)

    def _again(self, flight: Flight, record: Record) -> None:
        self.store.save(record)
        flight.start_over(record)
        del self._flights[flight.handle.task]
        if self._nodes.in_trouble:
            # Of all tasks the next one is tried, lest one that fails anywhere keeps all others waiting.
            self._ready.append(flight)
        else:
            self._ready.appendleft(flight)

    def _finish(self, flight: Flight, outcome: Outcome, keep_record: bool = False) -> None:
        if not keep_record:
            cause = None if isinstance(outcome, Success) else outcome.cause
            flight.record = last_record(flight.record, cause, self._scheduler)
            self.store.save(flight.record)
        self._ended["succeeded" if isinstance(outcome, Success) else "failed"] += 1
        self._flights.pop(flight.handle.task, None)
        self._forget(flight.handle, outcome)

    def _forget(self, handle: Handle, outcome: Outcome) -> None:
        with self._guard:
            self._handles.pop(handle.task, None)
        handle.resolve(outcome)

    # Stopping.

    def _cancel_everything(self) -> None:
        self.cancelled = cancel_run(self.store, self.commands, [flight.record for flight in self._flights.values()])

    def _resolve_rest(self) -> None:
        with self._guard:
            left, self._handles = list(self._handles.values()), {}
        attempts = {task: flight.record.attempt for task, flight in self._flights.items()}
        for handle in left:
            handle.resolve(stopped(self.stopping or DETACH, attempts.get(handle.task, 0), handle.label))
