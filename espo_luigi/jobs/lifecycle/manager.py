"""The job manager: thousands of jobs from one thread, each brought to an outcome once.

`JobManager.submit` returns a handle at once. One thread does the rest, in cycles. Each submits ready jobs, looks
at all jobs (`Watcher`), decides each job's next action (`policy.decide`) and takes it (`Actions`). The number of
commands in a cycle does not depend on the number of jobs. `records` hold all that must survive the driver.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from espo_luigi.errors import EspoError, Failure
from espo_luigi.files import passes
from espo_luigi.jobs.bundles.members import Bundles
from espo_luigi.jobs.lifecycle.actions import Actions, failure_of
from espo_luigi.jobs.lifecycle.control import BREAK, CANCEL, DETACH, Signals, cancel_run, take_control
from espo_luigi.jobs.lifecycle.observe import Watcher
from espo_luigi.jobs.lifecycle.policy import Cause
from espo_luigi.jobs.lifecycle.records import FINISHED, PLANNED, RecordStore
from espo_luigi.jobs.lifecycle.requests import Handle, Requests
from espo_luigi.jobs.lifecycle.state import Intent, Job
from espo_luigi.jobs.lifecycle.submit import Submission, Submitter, bundling_of
from espo_luigi.jobs.lock import DriverLock, HeldLocks
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.retry import DRIVERS_PATIENCE_SECONDS, Minutely, persistently, start
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import task_name
from espo_luigi.jobs.settings import BatchSettings
from espo_luigi.jobs.state import JobState

logger = logging.getLogger(__name__)


class JobManager:
    """Submits orders to a scheduler and brings each to an outcome.

    Use `start` before and `detach`, `cancel_all` or `close` after. Only its own thread touches the jobs; the other
    methods may be called from any thread. `locks` are the driver's, to which the lock of the records is added.
    """

    def __init__(
        self,
        settings: BatchSettings,
        commands: Commands,
        locks: HeldLocks | None = None,
    ) -> None:
        self.settings = settings
        self.commands = commands
        self._scheduler = commands.scheduler
        self._clock = commands.clock
        self.store = RecordStore(settings.state_dir)
        self.submitter = Submitter(settings, commands, self.store)
        self._nodes = self.submitter.nodes
        self.stopping: str | None = None
        self.cancelled = 0
        self._lock = DriverLock(settings.state_dir)
        self._trouble = Minutely(self._clock)
        self._locks = locks or HeldLocks(logger.error, self._clock)
        self._requests = Requests()
        self._ready: deque[Job] = deque()
        self._jobs: dict[str, Job] = {}
        self._bundles = Bundles(self.store, self._jobs)
        self._watcher = Watcher(settings, commands, self.store, self.submitter, self._bundles, self._trouble)
        self._signals = Signals(commands, self._bundles)
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._actions = Actions(
            commands=commands,
            store=self.store,
            submitter=self.submitter,
            watcher=self._watcher,
            signals=self._signals,
            bundles=self._bundles,
            requests=self._requests,
            jobs=self._jobs,
            ready=self._ready,
            tolerantly=self._tolerantly,
        )

    def start(self) -> None:
        """Take the driver's lock and begin.

        Raises SecondDriverError if a living driver has it, SubmissionError in a folder of another layout, and
        ProcessLimitError.
        """
        persistently(partial(self._locks.hold, self._lock), DRIVERS_PATIENCE_SECONDS)
        try:
            persistently(self.store.create_folders, DRIVERS_PATIENCE_SECONDS)
            # It is kept from here on.
            persistently(lambda: self.store.salt, DRIVERS_PATIENCE_SECONDS)
            take_control(self.store.folder)
            start(self._thread)
        except EspoError:
            self._locks.release(self._lock)
            raise

    def submit(self, order: JobOrder) -> Handle:
        """Take an order and return at once; its `on_progress` is called in the manager's thread, and must be quick.

        If an earlier driver submitted a job for the same run, rule and wildcards, this driver takes it over.
        Raises SubmissionError for values that cannot be passed to the scheduler safely.
        """
        task = task_name(self.settings.run, order.family, order.wildcards, self.store.salt)
        self.submitter.check(task, order)
        handle = self._requests.add(task, order)
        self._wake.set()
        return handle

    def status(self) -> dict[JobState, int]:
        """The number of orders in each state."""
        counts = Counter(job.state for job in list(self._jobs.values()))
        counts[JobState.READY] += len(self._requests.incoming) + len(self._ready)
        return {**counts, **self._actions.ended}

    def cancel_all(self, timeout: float | None = None) -> int:
        """Stop, cancel all jobs of this run, and return how many there were."""
        self._stop(CANCEL, timeout)
        return self.cancelled

    def detach(self, timeout: float | None = None) -> None:
        """Stop, and leave the jobs to the next driver."""
        self._stop(DETACH, timeout)

    close = detach

    def _stop(self, how: str, timeout: float | None) -> None:
        timeout = self.settings.patience.ending if timeout is None else timeout
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
                records = [job.record for job in self._jobs.values()]
                patience, own = self.settings.patience, self._watcher.own
                self.cancelled = cancel_run(self.store, self.commands, records, patience, own)
            self._cancel_leftovers()
        finally:
            attempts = {task: job.record.attempt for task, job in self._jobs.items()}
            self._requests.close_all(self.stopping or DETACH, attempts)
            self._locks.release(self._lock)

    def _cycle(self) -> None:
        # All steps are as of now: what hangs between this look and a step must not count as waiting in vain.
        now = self._clock.now()
        self._watcher.notice_absence(self._jobs.values(), self._cycle_seconds)
        self._tolerantly(self._obey_control)
        if not self._is_still_ours():
            return
        self._tolerantly(self._admit)
        self._submit_ready()
        unwanted = self._watcher.look(self._jobs.values())
        for job in list(self._jobs.values()):
            if self._is_still_ours():
                self._guarded(partial(self._actions.take_step, now), job)
        if self._is_still_ours():
            self._signals.send(unwanted)

    @property
    def _cycle_seconds(self) -> float:
        return min(self.settings.patience.cycle, self.settings.result_seconds, self.settings.poll_seconds)

    def _pause(self) -> float:
        """Seconds until the next cycle; with more to submit, no longer than the rate of submission demands."""
        longest = self._cycle_seconds
        return min(longest, self.commands.submit_rate.wait_seconds) if self._next_ready() else longest

    def _guarded(self, step: Callable[[Job], None], job: Job) -> bool:
        """Take a step for a job, whose trouble must not stop other jobs; return whether there was none."""
        try:
            step(job)
            job.trouble_since = None
            return True
        except OSError as error:
            self._survive(job, error)
        except Exception as error:
            logger.exception("%s: the driver could not handle this job", job.record.name)
            self._give_up(job, error)
        return False

    def _survive(self, job: Job, error: OSError) -> None:
        """Take the step again in the next cycle; give up after a while if the error does not pass."""
        now = self._clock.now()
        job.trouble_since = now if job.trouble_since is None else job.trouble_since
        self._trouble.warn("trouble with the files of %s, going on: %s", job.record.name, error)
        if not passes(error) and job.lasts(job.trouble_since, now, self.settings.patience.lasting_trouble):
            self._give_up(job, error)

    def _give_up(self, job: Job, error: Exception) -> None:
        with suppress(ValueError):
            self._ready.remove(job)
        failure = failure_of(job, Cause.INTERNAL, f"{type(error).__name__}: {error}")
        self._actions.finish(job, failure, keep_record=True)

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
        """Whether this driver may act; asked before it does. Where the locks cannot be looked at, it has to wait."""
        try:
            ours = self._locks.still_held()
        except OSError as error:
            self._trouble.warn("trouble with the files in %s, going on: %s", self.store.folder, error)
            return False
        if not ours:
            self.stopping = DETACH
        return ours

    # Taking in orders.

    def _admit(self) -> None:
        while self._requests.incoming:
            handle = self._requests.incoming.popleft()
            try:
                self._admit_one(handle)
            except Exception as error:
                if isinstance(error, OSError) and passes(error):
                    self._requests.incoming.appendleft(handle)
                    raise
                self._requests.close(handle.task, Failure(handle.order.label, str(error), Cause.INTERNAL))

    def _admit_one(self, handle: Handle) -> None:
        order = handle.order
        self._watcher.workers_about |= order.workers is not None
        record = self.store.load(handle.task)
        if record is None or record.state == FINISHED:
            record = self.submitter.plan(handle.task, order, record)
        job = Job(order, record, self._scheduler, handle.report)
        if record.state == PLANNED:
            job.intent = Intent(ready=self._clock.now())
            self._ready.append(job)
            return
        owner = record.job_id or self.store.claim_owner(record.name)
        logger.info("%s: taken over from an earlier driver (job %s)", record.name, owner or "id not known yet")
        job.adopted, job.record = True, replace(record, job_id=owner)
        self._jobs[handle.task] = job
        self._watcher.hurry()

    # Submitting.

    def _submit_ready(self) -> None:
        """Submit until it is time to look at the results."""
        until = self._clock.now() + self._cycle_seconds
        while self._is_still_ours() and self._clock.now() + self.commands.submit_rate.wait_seconds <= until:
            group = self._next_ready()
            if not group:
                return
            self._submit(group)

    def _next_ready(self) -> list[Job]:
        """The next jobs to submit together; none while more may come for their bundle."""
        now = self._clock.now()
        room = self.settings.max_jobs - len({job.record.job_name for job in self._jobs.values()})
        if room <= 0 or self.stopping is not None or self.submitter.held(now):
            return []
        seen = set[int]()
        for first in self._ready:
            if first.intent.not_before > now or id(first) in seen:
                continue
            # While there is trouble, one task is tried.
            most = 1 if self._nodes.in_trouble else bundling_of(first.order, self.settings).of_room(room)
            group = self.submitter.together(first, self._ready, most, now)
            waited = now - first.intent.ready >= self.settings.patience.gather
            if waited or len(group) == most or first.intent.alone:
                return group
            seen.update(map(id, group))
        return []

    def _submit(self, group: list[Job]) -> None:
        submission = self._submission(group)
        if submission is None or not all(
            self._guarded(partial(self._prepare, submission, place), job) for place, job in enumerate(group)
        ):
            return
        # Writing for many may have taken a while.
        if not self._is_still_ours():
            return
        for job in group:
            self._ready.remove(job)
            self._jobs[job.record.task] = job
        refused = self.submitter.submit(submission)
        if any(job.intent.accepted for job in group):
            self._watcher.hurry()
        if refused is not None:
            for job in group:
                self._guarded(partial(self._actions.refused, words=refused), job)

    def _submission(self, group: list[Job]) -> Submission | None:
        try:
            return self.submitter.made_of(group)
        except Exception as error:
            logger.exception("%s: the driver could not write this job's script", group[0].record.name)
            self._give_up(group[0], error)
            return None

    def _prepare(self, submission: Submission, place: int, job: Job) -> None:
        try:
            self.submitter.prepare(submission, place)
        except OSError:
            # Put last: other jobs' files may work.
            self._ready.remove(job)
            self._ready.append(job)
            self.submitter.pause()
            raise

    # Stopping.

    def _cancel_leftovers(self) -> None:
        unwanted = [] if self._locks.lost else self._watcher.unwanted_at_the_end()
        if unwanted and self._is_still_ours():
            self.commands.cancel(unwanted)
