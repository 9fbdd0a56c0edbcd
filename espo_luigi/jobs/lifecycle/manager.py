"""The job manager: thousands of jobs from one thread, each brought to an outcome once.

`JobManager.submit` returns a handle at once. One thread does the rest, in a cycle that costs the same number of
commands however many jobs there are: submit what may be submitted; look at what became of the jobs (`Watcher`); then
take each job's next step (`Flight.next_step`, `Verdicts`). All state that must survive the driver is in `records`.

If a step fails because of a file, it is taken again in the next cycle. So each writes its files before anything changes
here or at the scheduler, and taken again it writes the same.
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

from espo_luigi.errors import EspoError
from espo_luigi.jobs.bundles.members import Bundles
from espo_luigi.jobs.layout import prepare
from espo_luigi.jobs.lifecycle.control import BREAK, CANCEL, DETACH, cancel_run, take_control
from espo_luigi.jobs.lifecycle.flights import Flight
from espo_luigi.jobs.lifecycle.handles import Failure, Handle, JobRequest, Progress
from espo_luigi.jobs.lifecycle.observe import Watcher
from espo_luigi.jobs.lifecycle.ownership import Ownership
from espo_luigi.jobs.lifecycle.policy import Cause
from espo_luigi.jobs.lifecycle.records import FINISHED, PLANNED, RecordStore
from espo_luigi.jobs.lifecycle.requests import Requests
from espo_luigi.jobs.lifecycle.signals import Signals
from espo_luigi.jobs.lifecycle.submissions import Submission
from espo_luigi.jobs.lifecycle.submit import JobSettings, Submitter
from espo_luigi.jobs.lifecycle.verdicts import Verdicts
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import task_name
from espo_luigi.jobs.trouble import DRIVERS_PATIENCE_SECONDS, Minutely, passes, persistently

logger = logging.getLogger(__name__)

_CYCLE_SECONDS = 2.0
# What a cycle and a cancellation may take where each of their commands hangs.
_END_SECONDS = 600.0


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
        self._bundles = Bundles(self.store, self._flights)
        self._watcher = Watcher(settings, commands, self.store, self.submitter, self._bundles, self._trouble)
        self._signals = Signals(commands, self._bundles)
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._salt = ""
        self._verdicts = Verdicts(
            settings=settings,
            store=self.store,
            submitter=self.submitter,
            watcher=self._watcher,
            signals=self._signals,
            bundles=self._bundles,
            requests=self._requests,
            flights=self._flights,
            ready=self._ready,
            clock=self._clock,
            tolerantly=self._tolerantly,
        )

    def start(self) -> None:
        """Take the driver's lock and begin.

        Raises SecondDriverError when another driver has it, SubmissionError while jobs of another layout live.
        """
        persistently(self._lock.acquire, DRIVERS_PATIENCE_SECONDS)
        try:
            persistently(partial(prepare, self.store, self.commands), DRIVERS_PATIENCE_SECONDS)
        except EspoError:
            self._lock.release()
            raise
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
        return {"waiting": len(self._requests.incoming) + len(self._ready), **counts, **self._verdicts.ended}

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
                logger.error("this run has not ended within %.0f s: the next one takes over its jobs", timeout)

    # The thread.

    def _run(self) -> None:
        try:
            while self.stopping is None:
                self._tolerantly(self._cycle)
                self._clock.wait(self._wake, self._pause())
                self._wake.clear()
        except Exception:
            logger.exception("the job manager cannot go on; jobs stay as they are, for the next driver")
            self.stopping = BREAK
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
                self._guarded(partial(self._verdicts.take_step, now), flight)
        if self._is_still_ours():
            self._signals.send(unwanted)

    @property
    def _cycle_seconds(self) -> float:
        return min(_CYCLE_SECONDS, self.settings.result_seconds, self.settings.poll_seconds)

    def _pause(self) -> float:
        """Seconds until the next cycle; with more to submit, no longer than the rate of submission demands."""
        longest = self._cycle_seconds
        return min(longest, self.commands.submit_rate.wait_seconds) if self._next_ready() else longest

    def _guarded(self, step: Callable[[Flight], None], flight: Flight) -> bool:
        """Take a step, whose trouble (an unwritable folder, say) must not end the others; whether there was none."""
        try:
            step(flight)
            flight.trouble_since = None
            return True
        except OSError as error:
            self._survive(flight, error)
        except Exception as error:
            logger.exception("%s: the driver could not handle this job", flight.record.name)
            self._give_up(flight, error)
        return False

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
        failure = flight.failure(Cause.INTERNAL, f"{type(error).__name__}: {error}")
        self._verdicts.finish(flight, failure, keep_record=True)

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
        """Whether this driver may act; asked before it does."""
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
        self._watcher.workers_about |= request.has_workers
        record = self.store.load(handle.task)
        if record is None or record.state == FINISHED:
            record = self.submitter.plan(handle.task, request, record)
        if record.state == PLANNED:
            self._ready.append(Flight(request, handle, record, self._scheduler, ready_since=self._clock.now()))
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
            group = self._next_ready()
            if not group:
                return
            self._submit(group)

    def _next_ready(self) -> list[Flight]:
        """The next flights that may be submitted now, as one job; none where more may come for it in a moment."""
        now = self._clock.now()
        room = self.settings.max_jobs - len({flight.record.job_name for flight in self._flights.values()})
        if room <= 0 or self.stopping is not None or self.submitter.held(now):
            return []
        seen = set[int]()
        for first in self._ready:
            if first.not_before > now or id(first) in seen:
                continue
            # While there is trouble, one task is tried.
            most = 1 if self._nodes.in_trouble else first.request.bundling.of_room(room)
            group = self.submitter.submissions.together(first, self._ready, most, now)
            waited = now - (first.ready_since or now) >= self.settings.patience.gather
            if waited or len(group) == most or first.alone:
                return group
            seen.update(map(id, group))
        return []

    def _submit(self, group: list[Flight]) -> None:
        submission = self._submission(group)
        if submission is None or not all(
            self._guarded(partial(self._prepare, submission, place), flight) for place, flight in enumerate(group)
        ):
            return
        # Writing for many may have taken a while.
        if not self._is_still_ours():
            return
        for flight in group:
            self._ready.remove(flight)
            self._flights[flight.handle.task] = flight
        refused = self.submitter.submit(submission)
        for flight in group if refused is not None else []:
            self._verdicts.refused(flight, str(refused))

    def _submission(self, group: list[Flight]) -> Submission | None:
        try:
            return self.submitter.submissions.of(group)
        except Exception as error:
            logger.exception("%s: the driver could not write this job's script", group[0].record.name)
            self._give_up(group[0], error)
            return None

    def _prepare(self, submission: Submission, place: int, flight: Flight) -> None:
        try:
            self.submitter.prepare(submission, place)
        except OSError:
            # Put last: the files of this one may be the only ones that fail.
            self._ready.remove(flight)
            self._ready.append(flight)
            self.submitter.pause()
            raise

    # Stopping.

    def _cancel_leftovers(self) -> None:
        unwanted = [] if self._ownership.lost else self._watcher.unwanted_at_the_end()
        if unwanted and self._is_still_ours():
            self.commands.cancel(unwanted)
