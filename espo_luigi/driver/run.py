"""A driver's run: its tasks, which unfinished tasks need which outputs, and how each task ended."""

from __future__ import annotations

import logging
import textwrap
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from luigi.task import Task, WrapperTask, flatten

from espo_luigi.driver.board import board
from espo_luigi.driver.graph import Graph
from espo_luigi.driver.scratch import Scratch
from espo_luigi.driver.settings.espo import settings, state_dir
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.driver.status import by_their_cause
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import EspoError, Failure, SubmissionError
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.lock import DriverLock
from espo_luigi.jobs.schedulers import SCHEDULERS, slurm
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.driver_job import Note, note_path, withdraw
from espo_luigi.redaction import without_secrets

logger = logging.getLogger(__name__)

# The number of further tries of a task whose input was gone or replaced. More would not help: its input is taken away
# each time.
INPUT_RETRIES = 3
# The words for a task that was stopped with its run, by the run's outcome.
_STOPPED = {"stopped": "stopped", "detached": "left to the next run"}
_MOST_CHARACTERS = 4000
# How many of the tasks that failed for one cause are named at the end of a run.
_NAMED = 5


def expect_on_scratch(scratch: Scratch, graph: Graph, pending: Set[str]) -> None:
    """Tell `scratch` each task's group, what the `pending` tasks will write, and what lies on the disk."""
    tasks = [task for task in graph if isinstance(task, SlurmTask)]
    if tasks:
        kind = type(tasks[0])
        for task, writes, on_disk in zip(tasks, kind.scratch_to_write(tasks), kind.scratch_on_disk(tasks), strict=True):
            is_left = task.task_id in pending
            scratch.expect(task.task_id, task.scratch_group(), writes=writes, on_disk=on_disk, is_left=is_left)


class Run:
    """The tasks of this driver's run: which outputs are still needed, and how many tasks are done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All tasks below those that were asked for, which are its roots.
        self.graph = Graph()
        # By task: those that are to run, or have failed, and read its temporary outputs.
        self._readers = defaultdict[str, set[str]](set)
        # The tasks that are to run, and the tasks that ended without success or cannot run.
        self._open: set[str] = set()
        self.failed: set[str] = set()
        # Tasks such as `All`, which are no jobs, count neither as expected nor as done.
        self._jobs: set[str] = set()
        self._done: set[str] = set()
        self._put_back: Counter[str] = Counter()
        self._failures: dict[str, Failure] = {}
        self._stopped: dict[str, str] = {}
        # The account of temporary stores, if there is a limit.
        self.scratch: Scratch | None = None
        # Whether a root says that no task outside of its graph needs its outputs: only then outputs are deleted.
        self.covers_everything = False
        # Set when the driver ends: from then on, tasks start no job.
        self.is_over = False

    def report(self) -> None:
        """Log how the run ended: what failed, why, and where the logs are; and how many tasks were stopped with it."""
        if self._failures:
            logger.error("%d of %d tasks done, %d failed:", len(self._done), len(self._jobs), len(self._failures))
            for *others, failure in by_their_cause(self._failures.values()):
                named = [other.task for other in others[:_NAMED]]
                more = ", …" if len(others) > _NAMED else ""
                alike = f"\n  {len(others)} more failed alike: {', '.join(named)}{more}" if others else ""
                logger.error("%s%s", textwrap.indent(failure.message, "  "), alike)
        if self._stopped:
            known = len(self._done), len(self._jobs), len(self._stopped), _STOPPED[next(iter(self._stopped.values()))]
            logger.warning("%d of %d tasks done, %d %s: the same command goes on from there", *known)

    def budget(self, limit: int, graph: Graph) -> None:
        """Start tasks only as scratch space has room. Raises SubmissionError if a group needs more than the limit."""
        self.scratch = self.scratch or Scratch(limit)
        expect_on_scratch(self.scratch, graph, graph.pending()[0])
        if problem := self.scratch.too_large():
            raise SubmissionError(problem)

    def _look_at_scratch(self, tasks: Iterable[Task], *, ended: bool = False) -> None:
        """Record the bytes that tasks have on the disk now, and whether they can still run."""
        found = [task for task in tasks if isinstance(task, SlurmTask)]
        if self.scratch is None or not found:
            return
        sizes: Sequence[int | None] = [None] * len(found)
        try:
            sizes = type(found[0]).scratch_on_disk(found)
        except (EspoError, OSError) as error:
            logger.warning("%s: the size of its temporary stores is not known: %s", found[0].label(), error)
        for task, on_disk in zip(found, sizes, strict=True):
            self.scratch.note(task.task_id, on_disk=on_disk, is_left=False if ended else None)

    def can_go_on(self) -> bool:
        """Whether a task is left that could run: all its needs are there."""
        with self._lock:
            left = self._open | self.failed
            return any(left.isdisjoint(self.graph.needs.get(task_id, ())) for task_id in self._open)

    def add(self, graph: Graph, pending: Mapping[str, bool], *, again: bool = False) -> None:
        """Add the graph of a root that is asked for, and its pending tasks, each with whether it can run.

        With `again`, these are tasks that run again, because an output was missing when a task was to use it.
        """
        with self._lock:
            if not again:
                (root,) = graph.roots.values()
                tasks = [task for task in graph if task.task_id in pending and isinstance(task, SlurmTask)]
                board().expect(named(root), settings().engine, ((task.task_id, task.task_family) for task in tasks))
                self.graph.roots |= graph.roots
                self.covers_everything |= getattr(root, "covers_everything", False)
            self.graph.add(graph)
            self._done -= pending.keys()
            for task_id, runnable in pending.items():
                task = graph.tasks.get(task_id)
                if isinstance(task, SlurmTask):
                    self._jobs.add(task_id)
                (self._open if runnable else self.failed).add(task_id)
                if task is not None and not isinstance(task, WrapperTask):  # which reads nothing
                    needs = graph.needs_of(task)
                    for need in task.reads_temporary(needs) if isinstance(task, SlurmTask) else needs:
                        self._readers[need.task_id].add(task_id)
                if self.scratch is not None:
                    self.scratch.note(task_id, is_left=True)

    def use_a_try(self, task: Task) -> bool:
        """Count a try of `task`, which found an input gone or replaced; return whether it may try again."""
        with self._lock:
            self._put_back[task.task_id] += 1
            tries = self._put_back[task.task_id]
        if tries <= INPUT_RETRIES:
            logger.warning("%s: trying again, %d of %d, after what it needs", named(task), tries, INPUT_RETRIES)
        return tries <= INPUT_RETRIES

    def left_over(self) -> list[SlurmTask]:
        """Return tasks whose outputs an earlier run may have left, and that no pending task needs, if they may go.

        Tasks behind an outdated product are left out: they are needed to make it again. All roots are added by then.
        """
        if not self.covers_everything:
            return []
        with self._lock:
            done_with = [task for task in self.graph if self._is_done_with(task.task_id)]
        held = [task for task in done_with if not (isinstance(task, SlurmTask) and task.has_no_temporary())]
        made_of_held, kept = {task.task_id for task in held}, set[str]()
        for task_id, needs in self.graph.needs.items():
            if not made_of_held.isdisjoint(needs):
                made_of_held.add(task_id)
        for task_id, task in reversed(self.graph.tasks.items()):
            if task_id in made_of_held and (task_id in kept or _is_outdated(task)):
                kept.update(self.graph.needs[task_id])
        left = [task for task in held if isinstance(task, SlurmTask)]
        return [task for task in left if _is_outdated(task) or task.task_id not in kept]

    def ended(self, task: Task, failure: Failure | None, seconds: float) -> None:
        """Record the end of `task`, and delete the outputs that only it still needed, or that nothing needs."""
        self._look_at_scratch([task], ended=True)
        with self._lock:
            if failure is None and task.task_id in self._jobs:
                self._done.add(task.task_id)
            self._open.discard(task.task_id)
            outcome = "done" if failure is None else "FAILED"
            worked, cpu_seconds = getattr(task, "job_seconds", 0.0), getattr(task, "job_cpu_seconds", None)
            if failure:
                more = len(failure.words) - _MOST_CHARACTERS
                where = f"the log: {failure.log_path}" if failure.log_path else "what was logged when it failed"
                rest = f" …\n({more} characters more, in {where})" if more > 0 else ""
                words = without_secrets(failure.words[:_MOST_CHARACTERS] + rest)
                failure = replace(failure, words=words, tail="")
            board().end(task.task_id, failure, worked, cpu_seconds)
            if task.task_id in self._jobs or failure:
                known = len(self._done), len(self._jobs), named(task), outcome, worked or seconds
                logger.info("[%d/%d] %s %s in %.1f s", *known)
            if failure:
                self.failed.add(task.task_id)
                self._failures[task.task_id] = failure
                self._give_up_after(task.task_id)
                return
            self.failed.discard(task.task_id)
            self._failures.pop(task.task_id, None)
            self._stopped.pop(task.task_id, None)
            needs = self.graph.needs_of(task) if task.task_id in self.graph.tasks else []
            for need in needs:
                self._readers[need.task_id].discard(task.task_id)
            done_with = [one for one in (*needs, task) if self._is_done_with(one.task_id)]
        if self.covers_everything:
            self.delete_temporary(done_with)

    def delete_temporary(self, tasks: Sequence[Task]) -> None:
        """Delete the outputs of tasks that no task needs any more."""
        # Outside of the lock: deleting a large store takes a while, and tasks end meanwhile.
        for task in tasks:
            if isinstance(task, SlurmTask):
                try:
                    task.delete_temporary()
                except (EspoError, OSError) as error:
                    logger.warning("%s: what nobody needs any more could not be deleted: %s", task.label(), error)
        self._look_at_scratch(tasks)

    def _give_up_after(self, task_id: str) -> None:
        """Tell the account that the tasks which need a failed task, directly or not, will write nothing."""
        if self.scratch is not None:
            after = {task_id}
            for later, needs in self.graph.needs.items():
                if not after.isdisjoint(needs):
                    after.add(later)
                    self.scratch.note(later, is_left=False)

    def stopped(self, task: Task, outcome: str) -> None:
        """Record that `task` was stopped with its run, by the run's `outcome`; log it if its job worked."""
        with self._lock:
            self._open.discard(task.task_id)
            self.failed.add(task.task_id)
            self._stopped[task.task_id] = outcome
            if worked := board().stop(task.task_id, outcome):
                so_far = f"{_STOPPED[outcome]} after {worked:.1f} s"
                logger.info("[%d/%d] %s %s", len(self._done), len(self._jobs), named(task), so_far)

    def _is_done_with(self, task_id: str) -> bool:
        return task_id not in self._open and task_id not in self.graph.roots and not self._readers[task_id]


def _is_outdated(task: Task) -> bool:
    return isinstance(task, SlurmTask) and bool(task.stale(files=False))


def named(task: Task) -> str:
    """Return a task's name for people."""
    return task.label() if isinstance(task, SlurmTask) else str(task)


def places_of(task: Task) -> list[str]:
    """Return where the results of `task` are: the folder that it names itself, or its outputs that are there."""
    if folder := getattr(task, "results_folder", None):
        return [str(folder)]
    return [str(target.path) for target in flatten(task.output()) if hasattr(target, "path") and target.exists()]


def preview(task: SlurmTask) -> str:
    """Return the script that the first submission of `task` would be, and the Dask cluster that its job will start."""
    from espo_luigi.jobs import engine

    task.check()
    name = scheduler_name()
    return engine.preview(task.order(name), SCHEDULERS[name], SECTIONS[name]().batch_settings())


def stop_from_outside(how: str) -> str:
    """Cancel or detach the run of ``[espo] workdir`` from a second terminal; return a sentence about it."""
    from espo_luigi.jobs.lifecycle.control import DETACH, cancel_jobs, request_stop

    name = scheduler_name()
    chosen = SECTIONS[name]().batch_settings()
    # Before anything of another version is cancelled, or its note deleted.
    store = RecordStore(state_dir())
    store.check_layout()
    lock, note = DriverLock(state_dir()), Note.read(note_path(state_dir()))
    holder = lock.holder()
    # A driver without jobs of a scheduler looks for no requests to stop.
    if holder is not None and holder.get("engine") and (note is None or not note.alone):
        raise SubmissionError(
            f"the driver of {settings().workdir} has no jobs of a scheduler ([espo] engine = {holder['engine']}): end "
            f"it with Ctrl-C in its terminal, or with `kill {holder['pid']}` on {holder['host']}; what is complete "
            f"stays. If it is dead, remove {lock.path}"
        )
    note = withdraw(state_dir(), Commands(slurm, chosen))
    if note is not None and note.alone:
        return f"the driver's job {note.job_id}, in which all was computed, is cancelled; what is complete stays"
    first = f"the driver's job {note.job_id} does not start again; " if note is not None else ""
    if request_stop(state_dir(), how):
        return f"{first}asked the driver of {state_dir()} to {how}"
    if how == DETACH:
        return f"{first}no driver works in {state_dir()}: its jobs, if any, go on by themselves"
    cancelled = cancel_jobs(store, Commands(SCHEDULERS[name], chosen))
    if cancelled is None:
        raise SubmissionError(f"{SCHEDULERS[name].NAME} did not answer: nothing was cancelled; try again later")
    return f"{first}{cancelled} job(s) cancelled"


def scheduler_name() -> str:
    """Return the scheduler of ``[espo] engine``; for an engine without a scheduler, the first: Slurm."""
    return settings().engine if settings().engine in SCHEDULERS else next(iter(SCHEDULERS))
