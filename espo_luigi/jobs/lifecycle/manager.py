"""The job manager: thousands of jobs from one thread, each brought to an outcome once.

`JobManager.submit` returns a handle at once. One thread does the rest, in cycles. Each submits ready jobs, looks
at all jobs (`Watcher`), decides each job's next action (`policy.step`) and takes it. The number of commands in a
cycle does not depend on the number of jobs. `records` hold all that must survive the driver.

If an action fails because of a file, it is taken again in the next cycle. So each action writes its files before
anything changes here or at the scheduler, and writes the same when it is taken again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from espo_luigi.errors import EspoError, Failure, JobError
from espo_luigi.files import passes
from espo_luigi.jobs.bundles.members import Bundles
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.control import BREAK, CANCEL, DETACH, cancel_jobs, take_control
from espo_luigi.jobs.lifecycle.observe import Watcher
from espo_luigi.jobs.lifecycle.policy import (
    Action,
    Step,
    failure_of,
    pause_before,
    step,
    success_of,
)
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lifecycle.state import End, Handle, Intent, Job, Outcome
from espo_luigi.jobs.lifecycle.submit import Submission, Submitter
from espo_luigi.jobs.lock import DriverLock, HeldLocks
from espo_luigi.jobs.order import JobOrder, JobState, end_of_log
from espo_luigi.jobs.retry import DRIVERS_PATIENCE_SECONDS, Minutely, persistently, start
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import task_name

logger = logging.getLogger(__name__)


class JobManager:
    """Submits orders to a scheduler and brings each to an outcome.

    Use `start` before and `detach` or `cancel_all` after. Only its own thread touches the jobs; the other
    methods may be called from any thread. `locks` are the driver's, to which the lock of `state_dir` is added.
    """

    def __init__(self, commands: Commands, locks: HeldLocks | None = None) -> None:
        self.settings = settings = commands.settings
        self.commands = commands
        self._scheduler = commands.scheduler
        self._clock = commands.clock
        self.store = RecordStore(settings.state_dir)
        self.submitter = Submitter(commands, self.store)
        self._nodes = self.submitter.nodes
        self.stopping: str | None = None
        self.cancelled = 0
        # Whether nobody waits for the thread any more, whose locks may be another driver's as soon as it goes on.
        self._left_behind = False
        self._lock = DriverLock(settings.state_dir)
        self._trouble = Minutely(self._clock)
        self._locks = locks or HeldLocks(logger.error, self._clock)
        # Orders without an outcome, by task; the thread has yet to admit the `_incoming`.
        self._handles: dict[str, Handle] = {}
        self._incoming: deque[Handle] = deque()
        self._guard = threading.Lock()
        self._closed = False
        # The ids of orders whose jobs are to end.
        self._unwanted: set[str] = set()
        # Jobs to submit, and jobs under way by task.
        self._ready: deque[Job] = deque()
        self._jobs: dict[str, Job] = {}
        # The node of each task whose job could not open its log, before any job of the run could.
        self._without_log: dict[str, str] = {}
        self._bundles = Bundles(self.store, lambda: (job.record for job in self._jobs.values()))
        # The ids of jobs that have their outcome and are queued again all the same.
        self._requeued: list[str] = []
        self._watcher = Watcher(commands, self.store, self.submitter, self._bundles, self._trouble)
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

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

        Only an order whose job is being cancelled waits for that job's end, and gets a new job.
        If an earlier driver submitted a job for the same run, rule and wildcards, this driver takes it over.
        Raises SubmissionError for values that cannot be passed to the scheduler safely.
        """
        task = task_name(self.settings.run, order.family, order.wildcards, self.store.salt)
        self.submitter.check(task, order)
        if order.id in self._unwanted and (cancelled := self._handles.get(task)):
            cancelled.wait()
        with self._guard:
            handle = self._handles.get(task)
            if handle is None:
                handle = Handle(task, order)
                if self._closed:
                    handle.resolve(self._stopped(handle))
                    return handle
                self._unwanted.discard(order.id)
                self._handles[task] = handle
                self._incoming.append(handle)
        self._wake.set()
        return handle

    def cancel(self, order_id: str) -> None:
        """Cancel the job of one order, which fails unless it has succeeded meanwhile; the others go on."""
        self._unwanted.add(order_id)
        self._wake.set()

    def cancel_all(self) -> int:
        """Stop, cancel all jobs of this run, and return how many there were."""
        self._stop(CANCEL)
        return self.cancelled

    def detach(self) -> None:
        """Stop, and leave the jobs to the next driver."""
        self._stop(DETACH)

    def _stop(self, how: str) -> None:
        longest = self.settings.patience.ending
        self.stopping = self.stopping or how
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._left_behind = False
            self._thread.join(longest)
            self._left_behind = self._thread.is_alive()
            if self._left_behind:
                logger.error("this run has not ended within %.0f s: the next one takes over its jobs", longest)

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
                cancelled = cancel_jobs(self.store, self.commands, records, self._watcher.own)
                if cancelled is None:
                    said = "%s did not take the cancellation: the next driver, or `espo cancel`, finds the jobs"
                    logger.error(said, self._scheduler.NAME)
                else:
                    logger.warning("cancelled %d job(s) of this run", cancelled)
                self.cancelled = cancelled or 0
            elif self._unwanted:
                self._take_steps(self._clock.now(), self._cancelled_among(*self._ready, *self._jobs.values()))
                if self._is_still_ours():
                    self._send_cancellations(())
            if not self._locks.lost and (orphans := self._watcher.orphans_at_the_end()) and self._is_still_ours():
                self.commands.cancel(orphans)
        finally:
            with self._guard:
                self._closed = True
                left, self._handles = list(self._handles.values()), {}
            for handle in left:
                handle.resolve(self._stopped(handle))
            self._locks.release(self._lock)

    def _stopped(self, handle: Handle) -> Failure:
        """The outcome of an order that has none when this driver stops."""
        cause = {BREAK: Cause.INTERNAL, CANCEL: Cause.DRIVER_CANCELLED}.get(self.stopping or DETACH, Cause.DETACHED)
        job = self._jobs.get(handle.task)
        return Failure(handle.order.label, cause.explanation(), cause, attempts=job.record.attempt if job else 0)

    def _cycle(self) -> None:
        # All steps are as of now: what hangs between this look and a step must not count as waiting in vain.
        now = self._clock.now()
        self._watcher.notice_absence(self._jobs.values(), self._cycle_seconds)
        self._tolerantly(self._obey_control)
        if not self._is_still_ours():
            return
        self._tolerantly(self._admit)
        self._take_steps(now, self._cancelled_among(*self._ready))
        until = self._clock.now() + self._cycle_seconds  # then it is time to look at the results
        while self._is_still_ours() and self._clock.now() + self.commands.submit_rate.wait_seconds <= until:
            if not (group := self._next_ready()):
                break
            self._submit(group)
        orphans = self._watcher.look(self._jobs.values())
        self._take_steps(now, self._jobs.values())
        if self._is_still_ours():
            self._send_cancellations(orphans)

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
            # The step is taken again in the next cycle, until somebody has had the time to mend what does not pass.
            now, patience = self._clock.now(), self.settings.patience.lasting_trouble
            job.trouble_since = now if job.trouble_since is None else job.trouble_since
            self._trouble.warn("trouble with the files of %s, going on: %s", job.record.name, error)
            if not passes(error) and job.watched_for(job.trouble_since, now, patience):
                self._give_up(job, error)
        except Exception as error:
            logger.exception("%s: the driver could not handle this job", job.record.name)
            self._give_up(job, error)
        return False

    def _give_up(self, job: Job, error: Exception) -> None:
        self._finish(job, failure_of(job, Cause.INTERNAL, f"{type(error).__name__}: {error}"))

    def _tolerantly(self, look: Callable[[], None]) -> None:
        """Neither a file system that fails for a while nor a damaged record must end the driver of a run of days."""
        try:
            look()
        except (JobError, OSError) as error:
            self._trouble.warn("trouble with the files in %s, going on: %s", self.store.folder, error)

    def _obey_control(self) -> None:
        asked = take_control(self.store.folder)
        if asked is not None:
            logger.warning("asked from outside to %s", asked)
            self.stopping = self.stopping or asked

    def _is_still_ours(self) -> bool:
        """Whether this driver may act; asked before it does. Where the locks cannot be looked at, it has to wait."""
        try:
            ours = not self._left_behind and self._locks.still_held()
        except OSError as error:
            self._trouble.warn("trouble with the files in %s, going on: %s", self.store.folder, error)
            return False
        if not ours:
            self.stopping = DETACH
        return ours

    # Taking in orders.

    def _admit(self) -> None:
        while self._incoming:
            handle = self._incoming.popleft()
            order = handle.order
            self._watcher.workers_about |= bool(order.workers)
            try:
                record = self.store.load(handle.task)
                if record is None or record.is_over:
                    record = self.submitter.first_record(handle.task, order, record)
                job = Job(order, record, self._scheduler, handle.report)
                if record.state is JobState.READY:
                    job.intent = Intent(ready=self._clock.now())
                    self._ready.append(job)
                    continue
                owner = record.job_id or self.store.claim_owner(record.name)
                logger.info("%s: taken over from an earlier driver (job %s)", record.name, owner or "id not known yet")
                job.adopted, job.record = True, replace(record, job_id=owner)
                self._jobs[handle.task] = job
                self._watcher.hurry()
            except Exception as error:
                if isinstance(error, OSError) and passes(error):
                    self._incoming.appendleft(handle)
                    raise
                self._resolve(handle.task, Failure(handle.order.label, str(error), Cause.INTERNAL))

    # Submitting.

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
            most = self.submitter.most_together(first, room)
            group = self.submitter.together(first, self._ready, most, now)
            waited = now - first.intent.ready >= self.settings.patience.gather
            if waited or len(group) == most or first.intent.alone:
                return group
            seen.update(map(id, group))
        return []

    def _submit(self, group: list[Job]) -> None:
        try:
            submission = self.submitter.made_of(group)
        except Exception as error:
            logger.exception("%s: the driver could not write this job's script", group[0].record.name)
            self._give_up(group[0], error)
            return
        prepare = partial(self._prepare, submission)
        if not all(self._guarded(partial(prepare, place), job) for place, job in enumerate(group)):
            return
        # Writing for many may have taken a while.
        if not self._is_still_ours():
            return
        for job in group:
            self._ready.remove(job)
            self._jobs[job.record.task] = job
        self.submitter.submit(submission)
        if any(job.intent.accepted for job in group):
            self._watcher.hurry()

    def _prepare(self, submission: Submission, place: int, job: Job) -> None:
        try:
            self.submitter.prepare(submission, place)
        except OSError:
            # Put last: other jobs' files may work.
            self._ready.remove(job)
            self._ready.append(job)
            self.submitter.pause()
            raise

    def _cancelled_among(self, *jobs: Job) -> list[Job]:
        return [job for job in jobs if job.order.id in self._unwanted]

    def _take_steps(self, now: float, jobs: Iterable[Job]) -> None:
        for job in list(jobs):
            if self._is_still_ours():
                self._guarded(partial(self._take_step, now), job)

    def _take_step(self, now: float, job: Job) -> None:
        self.submitter.save(job)
        job.end, job.unwanted = replace(job.end, complete=None), job.order.id in self._unwanted
        decided = step(job, now, self.settings)
        if decided.action is Action.CANCEL:
            # The last look may be older than the pause that the job, or this driver, has just had.
            job.listen(now)
            decided = step(job, now, self.settings)
        looks = {
            Action.LOOK: self._look_for_output,
            Action.CLAIM: self._close_unclaimed,
            Action.CLOSE: self._close,
            Action.WITHDRAW: self._withdraw,
        }
        # `step` decides by what they find out.
        while (look := looks.get(decided.action)) and look(job, now):
            decided = step(job, now, self.settings)
        job.state, former, queued_again = decided.state, job.record, job.end.queued_again
        job.tell(job.progress(self._watcher.drained))
        if decided.action is Action.SUCCEED:
            self._succeed(job, decided)
        elif decided.action is Action.FAIL:
            self._fail(job, decided)
        elif decided.action is Action.CANCEL:
            self._cancel(job, decided)
        elif decided.record is not None:
            self._again(job, decided)
        if queued_again and decided.record is not None and not self._bundles.needs_job(former):
            job_id = str(former.job_id)
            logger.warning("%s: queued again after it failed for good: cancelling job %s", former.name, job_id)
            self._requeued.append(job_id)

    # What `step` asks for: each returns whether it has found it out.

    def _look_for_output(self, job: Job, now: float) -> bool:
        is_complete = job.order.is_complete
        job.end = replace(job.end, complete=job.files.succeeded if is_complete is None else is_complete())
        return True

    def _close_unclaimed(self, job: Job, now: float) -> bool:
        name = job.record.name
        if self.store.close_unclaimed(name):
            job.end = self._end(job, unclaimed=True)
            return True
        if owner := self.store.claim_owner(name):
            # The job runs all the same: a second one would do the same work.
            self.submitter.confirm(job, owner)
        elif self.store.is_claimed_by_nobody(name) and job.files.claim_empty_since is None:
            job.files = replace(job.files, claim_empty_since=now)
        return False

    def _close(self, job: Job, now: float) -> bool:
        """Close the claim: the job must not work beside its successor if somebody requeues it. Look how it ended."""
        task, logs = job.record.task, self._bundles.logs(job.record, job.log)
        no_log = job.row is not None and job.row.no_log and not any(True for _ in self.settings.log_dir.rglob("*.out"))
        others = {*self._without_log.values()} - {job.node}
        says_memory = any(job.scheduler.says_out_of_memory(end_of_log(log)) for log in logs)
        job.listen(now)
        name = job.record.name
        closed = self.store.close_unclaimed(name)
        is_empty = not closed and self.store.is_claimed_by_nobody(name)
        if job.record.job_id is None and (owner := self.store.claim_owner(name)):
            self.submitter.confirm(job, owner)  # it has begun since the last look
            return False
        if is_empty:
            logger.warning("%s is empty, and no job has that name: closing it", self.store.claim_path(name))
        if not closed:
            self.store.close(name)
        job.end = replace(
            self._end(job, unclaimed=closed or is_empty),
            log_says_memory=says_memory,
            no_log=no_log,
            no_log_again=no_log and (task in self._without_log or bool(others)),
        )
        if no_log:
            self._without_log[task] = job.node
        return True

    def _end(self, job: Job, unclaimed: bool) -> End:
        return End(
            unclaimed=unclaimed,
            complete=job.end.complete,
            is_accounted=not self.commands.lacking,
            avoids_nodes=self.submitter.avoids_nodes(job),
            is_only_job=not any(other.record.job_id for other in self._jobs.values()),
        )

    def _withdraw(self, job: Job, now: float) -> bool:
        self._close(job, now)
        job.end = replace(job.end, queued_again=True)
        return True

    # What it decides.

    def _cancel(self, job: Job, decided: Step) -> None:
        record, cause = decided.record, decided.cause
        assert record is not None and cause is not None
        # On disk first: the next driver must not take this for a user's cancellation.
        self.store.save(record)
        job.record = record
        if job.row is not None and job.row.hopeless:
            job.intent = replace(job.intent, complaint=job.row.said)
        self._bundles.stop(record)
        logger.warning("%s: cancelling job %s: %s", record.name, record.job_id, cause.words(job.scheduler))
        job.intent = replace(job.intent, to_cancel=True)

    def _send_cancellations(self, orphans: Iterable[str]) -> None:
        """Cancel all jobs of a cycle, and those with the ids that are `orphans`, together: it may take a minute.

        A job that tasks share is cancelled when none needs it any more; a member ends once its claim is closed.
        """
        jobs = [job for job in self._jobs.values() if job.intent.to_cancel]
        going = [job for job in jobs if not self._bundles.needs_job(job.record)]
        requeued, self._requeued = self._requeued, []
        if ids := dict.fromkeys([*orphans, *requeued, *(str(job.record.job_id) for job in going)]):
            self.commands.cancel(ids)
        now = self._clock.now()
        for job in jobs:
            job.intent = replace(job.intent, to_cancel=False, cancelled=now)

    def _succeed(self, job: Job, decided: Step) -> None:
        if decided.cause is None:
            self._nodes.does_well(job.node, job.seen.off_node)
            # If a bundle is requeued, this member has no work.
            self._bundles.stop(job.record)
        else:
            words = decided.cause.words(job.scheduler)
            logger.warning("%s: job %s: %s; but its output is complete", job.record.name, job.record.job_id, words)
        self._finish(job, success_of(job), decided.record, done=decided.cause is None)

    def _fail(self, job: Job, decided: Step) -> None:
        assert decided.cause is not None
        if not job.unwanted:
            self._nodes.ended(job, decided.cause, self._clock.now())
        self._finish(job, failure_of(job, decided.cause), decided.record)

    def _again(self, job: Job, decided: Step) -> None:
        former, record, now, intent = job.record, decided.record, self._clock.now(), job.intent
        assert record is not None and decided.cause is not None
        self.store.save(record)
        self._nodes.ended(job, decided.cause, now)
        self._say_again(job, decided)
        if decided.action is Action.AGAIN_ANYWHERE:
            self._nodes.allow_all(record.task)
        not_before = now + pause_before(record, self.settings.patience.after_trouble)
        alone = decided.action is Action.AGAIN_ALONE or intent.alone
        job.again(record, Intent(now, not_before, alone, intent.refused_since, intent.unclear))
        del self._jobs[record.task]
        if self._nodes.in_trouble:
            # A task that fails anywhere must not keep the rest waiting: the next task is tried.
            self._ready.append(job)
        else:
            self._ready.appendleft(job)
        self._tolerantly(partial(self._bundles.forget, former))

    def _say_again(self, job: Job, decided: Step) -> None:
        name, cause, words = job.record.name, decided.cause, job.intent.refused or job.intent.complaint
        assert cause is not None
        if decided.action is Action.AGAIN_ALONE:
            logger.warning("%s: in a bundle: %s; trying again without", name, words)
        elif decided.action is Action.AGAIN_ANYWHERE:
            logger.warning("%s: %s; trying again on any node", name, words)
        elif cause is Cause.NO_OUTPUT:
            logger.info("%s: its result is of an earlier run and its output is gone; submitting anew", name)
        elif cause is not Cause.UNCONFIRMED:
            # What a job without a result says of its end stands in its log alone.
            last = (job.tail().splitlines() or [""])[-1][:300] if cause is Cause.CRASHED else ""
            said = f'; its log ends with "{last}"' if last else ""
            if job.end.no_log and cause is Cause.CRASHED:
                said = f"; {Cause.NO_LOG.words(job.scheduler)}: {Cause.NO_LOG.explanation(job.scheduler)}"
            how = cause.words(job.scheduler)
            logger.warning("%s: job %s: %s%s; trying again", name, job.record.job_id, how, said)

    def _finish(self, job: Job, outcome: Outcome, record: Record | None = None, done: bool = False) -> None:
        """Give a task its outcome; without a record, what is on disk stays as it is."""
        if record is not None:
            self.store.save(record)
            job.record = record
        if self._jobs.pop(job.record.task, None) is None:
            with suppress(ValueError):
                self._ready.remove(job)
        self._resolve(job.record.task, outcome)
        self._tolerantly(partial(self._bundles.forget, job.record, done))

    def _resolve(self, task: str, outcome: Outcome) -> None:
        with self._guard:
            handle = self._handles.pop(task, None)
        if handle is not None:
            handle.resolve(outcome)
