"""Submits jobs, alone or as a bundle, each once, even if the driver dies on the way."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espo_luigi.files import write_atomically
from espo_luigi.jobs.bundles import BundleText, BundleValues, Bundling, total_minutes
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.policy import has_failed
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lifecycle.state import Job
from espo_luigi.jobs.order import JobOrder, JobState
from espo_luigi.jobs.resources import ARRAY, PILOT, STEPS, PackOptions
from espo_luigi.jobs.retry import growing_pause
from espo_luigi.jobs.schedulers.base import Refusal
from espo_luigi.jobs.schedulers.commands import Answer, Commands
from espo_luigi.jobs.schedulers.script import ScriptValues
from espo_luigi.jobs.settings import BatchSettings, Patience

logger = logging.getLogger(__name__)

# A node is avoided after so many different tasks ended at once there without a result.
_TASKS_ON_A_NODE = 3
_MOST_NODES = 20
# Submission is held after so many different tasks in a row ended at once, on nodes that are not avoided.
_TASKS_IN_A_ROW = 6
# More than Slurm lets an array have.
_MOST_ELEMENTS = 2**22
# After each hold one job is tried; after the last, an hour in all, the run goes on until a job does well.
_HOLDS = 6


@dataclass(frozen=True)
class Submission:
    """Jobs with the `records` that are to be on disk before `command` runs, and the `texts` to write, by path.

    The first job's texts are those of the whole, too.
    """

    jobs: tuple[Job, ...]
    records: tuple[Record, ...]
    texts: tuple[Mapping[Path, str], ...]
    command: tuple[str, ...]
    bundle: BundleValues | None = None

    @property
    def elements(self) -> int:
        """How many jobs the scheduler counts."""
        is_array = self.bundle is not None and self.bundle.bundling.kind == ARRAY
        return len(self.jobs) if is_array else 1


class NodeWatch:
    """Finds broken nodes by the ends of jobs, and holds submissions while jobs end at once on all nodes.

    A broken node is always free, and gets job after job. If all nodes fail, as the file system with the programs does,
    all jobs of a run would use up their attempts within a minute. Times are the driver's monotonic clock.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self.excluded: tuple[str, ...] = ()
        self._anywhere: set[str] = set()
        self._seen: set[str] = set()
        # By node and task, when jobs ended at once there; a job that starts later and does well clears a node's.
        self._crashed: defaultdict[str, dict[str, float]] = defaultdict(dict)
        # By task, the node where its job ended at once; a job that starts after `_row_since` and does well clears it.
        self._in_a_row: dict[str, str] = {}
        self._row_since = -math.inf
        self.in_trouble = False
        self._hold_until = 0.0
        self._holds = 0

    def avoided_by(self, task: str) -> tuple[str, ...]:
        return () if task in self._anywhere else self.excluded

    def allow_all(self, task: str) -> None:
        """Let this task's jobs go to any node, as the rest is not enough for it."""
        self._anywhere.add(task)

    def held(self, now: float) -> bool:
        return self.in_trouble and now < self._hold_until

    def ended(self, job: Job, cause: Cause, now: float) -> None:
        # A file system that failed under the job may be the node's own: no evidence that the node works.
        if has_failed(job) and cause is not Cause.FILES:
            self.does_well(job.node, job.seen.off_node)
        began = job.seen.off_node
        at_once = began is not None and (job.ended_since or now) - began < self._patience.quick
        if cause is Cause.CRASHED and at_once:
            self.crashed(job.record.task, job.node, now)

    def does_well(self, node: str, started_after: float | None) -> None:
        """Take in that a job wrote a result there, or works there for a while; it started after that moment.

        It says nothing of the node's state after that moment.
        """
        if started_after is None:
            return
        self._seen |= {node} - {""}
        if started_after >= min(self._crashed[node].values(), default=-math.inf):
            self._crashed.pop(node)
        if started_after >= self._row_since:
            if self.in_trouble:
                logger.warning("jobs do not end at once any more: submission goes on")
            self.in_trouble, self._row_since, self._holds = False, -math.inf, 0
            self._in_a_row.clear()

    def crashed(self, task: str, node: str, now: float) -> None:
        """Take in that a job of the task ended at once, without a result."""
        self._seen |= {node} - {""}
        self._crashed[node][task] = now
        tasks, room = self._crashed[node], min(_MOST_NODES, max(1, len(self._seen) // 2))
        if node and node not in self.excluded and len(tasks) >= _TASKS_ON_A_NODE and len(self.excluded) < room:
            self.excluded = (*self.excluded, node)
            said = f"jobs of {len(tasks)} tasks ended there at once, without a result ({', '.join(sorted(tasks))})"
            logger.warning("node %s: %s: this run avoids it now; tell the cluster's administrators", node, said)
        if node in self.avoided_by(task):
            return
        if not self._in_a_row:
            self._row_since = now
        self._in_a_row[task] = node
        if not self.in_trouble and self._holds < _HOLDS and len(self._in_a_row) >= _TASKS_IN_A_ROW:
            self.in_trouble, self._row_since = True, now
            self._hold(now)

    def submitted(self, now: float) -> None:
        """Take in a submission: while there is trouble, it is a single job, whose end is awaited."""
        if self.in_trouble and self._holds < _HOLDS:
            self._hold(now)
        elif self.in_trouble:
            logger.warning("jobs still end at once, after an hour: submission goes on")
            self.in_trouble = False

    def _hold(self, now: float) -> None:
        self._holds += 1
        self._hold_until = now + self._patience.broken_nodes
        where = ", ".join(sorted({node or "unknown nodes" for node in self._in_a_row.values()}))
        said = f"jobs of {len(self._in_a_row)} tasks in a row ended at once, without a result (on {where})"
        why = "as if something were broken for all of them: look into their logs"
        logger.warning("%s, %s; after %.0f s, one job is tried", said, why, self._patience.broken_nodes)


class Submitter:
    """Writes a job's record, then submits it; after a refusal that may pass it asks for a pause."""

    def __init__(self, commands: Commands, store: RecordStore) -> None:
        self.settings = commands.settings
        self._commands = commands
        self._scheduler = commands.scheduler
        self._store = store
        self._refusals = 0
        self._refusal = ""
        self._hold_until = 0.0
        # The most elements of the next array, and of any. Slurm counts each as a job of the user.
        self._elements = self._most_elements = _MOST_ELEMENTS
        self._made_folders: set[Path] = set()
        self._wrote_environment = False
        self.nodes = NodeWatch(self.settings.patience)

    # The parts of a submission.

    def check(self, task: str, order: JobOrder) -> None:
        """Raise SubmissionError for values that cannot be passed to the scheduler safely."""
        self.preview(task, order)
        if bundling_of(order, self.settings).most > 1:
            self.preview(task, order, 1)

    def preview(self, task: str, order: JobOrder, members: int = 0) -> str:
        """Return the script of the task's first job, or of a bundle of so many members like it."""
        record = self.first_record(task, order, None)
        if not members:
            return self._scheduler.render(self._script_values(order, record))
        values = self._bundle_values(f"{task}.bundle", [order] * members, [record] * members)
        text = _bundled(values)
        return f"{text.script}\n# The script of a member:\n{text.members[0]}"

    def first_record(self, task: str, order: JobOrder, old: Record | None) -> Record:
        """The first record of a new run of the task, after the `old` run's record, if any."""
        record = Record(task, order.family, dict(order.wildcards), 0, 0, self._log_pattern(order))
        if old is not None:
            learnt = {name: getattr(old, name) for name in ("learnt_memory_bytes", "learnt_time_minutes")}
            # Numbers go on: no name is ever given twice.
            record = replace(record, submission=old.submission + 1, **learnt)
        return self._asking(order, record)

    def _asking(self, order: JobOrder, record: Record) -> Record:
        """The record with the amounts of its next submission.

        They are those of the order, or what the task has learnt to ask for if that is more, within the caps. Settings
        may have changed since the record was written.
        """
        asked, chosen = order.resources, self.settings
        return replace(
            record,
            memory_bytes=_larger(asked.memory_bytes, record.learnt_memory_bytes, chosen.memory_cap_bytes),
            time_minutes=_larger(asked.time_minutes, record.learnt_time_minutes, chosen.time_cap_minutes),
        )

    def most_together(self, first: Job, room: int) -> int:
        """Return how many jobs may go together, `first` included, where `room` more may be submitted."""
        if self.nodes.in_trouble:
            return 1  # a single task is tried
        bundling = bundling_of(first.order, self.settings)
        return min(bundling.most, room, self._elements) if bundling.kind == ARRAY else bundling.most

    def together(self, first: Job, ready: Iterable[Job], most: int, now: float) -> list[Job]:
        """The jobs that may go with the `first` of those that are ready, `most` of them at most."""
        if most < 2 or not _is_free(first, now):
            return [first]
        kind, rule = self._kind(first), first.order.family
        alike = (job for job in ready if job.order.family == rule and _is_free(job, now) and self._kind(job) == kind)
        return list(itertools.islice(alike, most))

    def made_of(self, jobs: Sequence[Job]) -> Submission:
        """The submission of these jobs together. Raises SubmissionError for values that cannot be passed safely."""
        return self._alone(jobs[0]) if len(jobs) == 1 else self._bundle(tuple(jobs))

    def _alone(self, job: Job) -> Submission:
        record = self._asking(job.order, job.record)
        record = replace(record, state=JobState.SUBMITTING, bundle="", log_pattern=self._log_pattern(job.order))
        values, path = self._script_values(job.order, record), self._store.script_path(record.name)
        script = self._scheduler.render(values)
        return Submission((job,), (record,), ({path: script},), self._scheduler.submit_command(values, path))

    def _bundle(self, jobs: tuple[Job, ...]) -> Submission:
        orders = [job.order for job in jobs]
        # The name is unique: members may be bundled again.
        name = f"{jobs[0].record.task.rpartition('.')[0]}.bundle-{secrets.token_hex(6)}"
        planned = [self._asking(job.order, job.record) for job in jobs]
        bundle = self._bundle_values(name, orders, planned)
        text, path = _bundled(bundle), self._store.script_path(name)
        # The members, as a pilot reads them.
        members = [
            {"name": job.name, "script": script, "order": str(order.files.order)}
            | {"log": job.log_pattern, "claim": job.claim_file}
            for job, script, order in zip(bundle.members, bundle.scripts, orders, strict=True)
        ]
        listing = json.dumps({"at_once": bundle.width, "members": members})
        common = {path: text.script, Path(bundle.listing): listing}
        common |= {Path(f"{bundle.listing}.{ending}"): more for ending, more in text.files.items()}
        own = [{Path(script): member} for script, member in zip(bundle.scripts, text.members, strict=True)]
        names = [bundle.member_name(place) for place in range(len(jobs))]
        records = tuple(
            replace(record, state=JobState.SUBMITTING, bundle=name, log_pattern=values.log_pattern)
            for record, name, values in zip(planned, names, bundle.members, strict=True)
        )
        return Submission(jobs, records, (own[0] | common, *own[1:]), (*text.command, str(path)), bundle)

    def _bundle_values(self, name: str, orders: Sequence[JobOrder], records: Sequence[Record]) -> BundleValues:
        first, listing = orders[0], str(self._store.script_path(name).with_suffix(".json"))
        bundling = bundling_of(first, self.settings)
        kind, per_step = bundling.kind, bundling.per_step
        # The tasks of a step log where its first does, but for their number.
        named = [orders[place - place % per_step] if kind == STEPS else order for place, order in enumerate(orders)]
        patterns = [self._log_pattern(order, kind, place % per_step) for place, order in enumerate(named)]
        members = [
            self._script_values(order, replace(record, log_pattern=pattern))
            for order, record, pattern in zip(orders, records, patterns, strict=True)
        ]
        whole = self._scheduler.log_pattern(str(self.settings.log_dir), first.family, {"bundle": str(len(orders))})
        minutes = total_minutes(bundling, len(orders), records[0].time_minutes, self.settings.time_cap_minutes)
        modules = filter(None, (*first.preload, first.module))
        return BundleValues(
            name=name,
            bundling=bundling,
            members=tuple(members),
            scripts=tuple(str(self._store.script_path(record.name)) for record in records),
            log_pattern=patterns[0] if bundling.kind == ARRAY else whole,
            time_minutes=minutes,
            listing=listing,
            pilot=(*self._command(first), "--pilot", listing, *modules) if bundling.kind == PILOT else (),
        )

    def _log_pattern(self, order: JobOrder, *bundle_and_task: Any) -> str:
        log_dir = str(self.settings.log_dir)
        return self._scheduler.log_pattern(log_dir, order.family, order.wildcards, *bundle_and_task)

    def _kind(self, job: Job) -> tuple[Bundling, ScriptValues]:
        """What is equal for jobs that may go together."""
        values = self._script_values(job.order, self._asking(job.order, job.record))
        values = replace(values, name="", attempt=1, argv=(), log_pattern="", claim_file="")
        return bundling_of(job.order, self.settings), values

    def _command(self, order: JobOrder) -> tuple[str, ...]:
        """The command that an order's file, or ``--pilot`` and a bundle's listing, follows."""
        driver_python, *work = self.settings.work
        return order.options.python or driver_python, *work

    def _script_values(self, order: JobOrder, record: Record) -> ScriptValues:
        exclude = dict.fromkeys((*order.options.exclude, *self._avoided(record)))
        return ScriptValues(
            name=record.name,
            attempt=record.attempt,
            argv=(*self._command(order), str(order.files.order)),
            cpus_per_task=order.resources.cpus_per_task,
            memory_bytes=record.memory_bytes,
            time_minutes=record.time_minutes,
            log_pattern=record.log_pattern,
            claim_file=str(self._store.claim_path(record.name)),
            workdir=str(self.settings.start_dir),
            options=replace(order.options, exclude=tuple(exclude)),
            warning_seconds=self.settings.site.warning_seconds(order.options, record.time_minutes),
            environment_file=str(self._store.environment_path),
        )

    def avoids_nodes(self, job: Job) -> bool:
        """Whether the job avoids nodes because jobs ended badly there."""
        return bool({*self._avoided(job.record)} - set(job.order.options.exclude))

    def _avoided(self, record: Record) -> tuple[str, ...]:
        """The nodes where this task's jobs ended badly, and those that the run avoids."""
        return *record.exclude, *self.nodes.avoided_by(record.task)

    # Submitting it.

    def held(self, now: float) -> bool:
        """Whether to wait before the next submission."""
        return now < self._hold_until or self.nodes.held(now)

    def pause(self) -> None:
        self._hold_until = self._commands.clock.now() + self.settings.patience.first_refusal

    def prepare(self, submission: Submission, place: int) -> None:
        """Write down that the job in that place is about to be submitted, and write its files.

        Raises OSError when that cannot be written: it was not submitted, and its name can be used again.
        """
        job, record = submission.jobs[place], submission.records[place]
        self._store.save(record, durable=True)
        files, log = job.order.files, Path(self._scheduler.log_path(record.log_pattern, "0"))
        if job.adopted:
            job.order.write()
            job.adopted = False
        if not self._wrote_environment:
            self._commands.write_environment(self._store.environment_path)
            self._wrote_environment = True
        for folder in {log.parent, files.result.parent, files.heartbeat.parent} - self._made_folders:
            folder.mkdir(parents=True, exist_ok=True)
            self._made_folders.add(folder)
        files.result.unlink(missing_ok=True)
        files.heartbeat.unlink(missing_ok=True)
        for path, text in submission.texts[place].items():
            write_atomically(path, text)
        job.record, job.state = record, record.state

    def submit(self, submission: Submission) -> None:
        """Run the submission's command; if the scheduler will never take this job, its words go to `Intent.refused`.

        After any other answer the jobs are under way; without an id, the watcher finds them by name. An exit code of 0
        is never a refusal, whatever the command writes. It never raises OSError, after which they would be submitted
        again.
        """
        answer, bundle = self._commands.submit(submission.command), submission.bundle
        now = self._commands.clock.now()
        for job in submission.jobs:
            job.seen = replace(job.seen, off_node=now)
        job_id = self._commands.id_of(answer)
        if answer.ok:
            self.nodes.submitted(now)
            if self._refusals:
                logger.warning("%s takes jobs again", self._scheduler.NAME)
            self._refusals, self._refusal = 0, ""
            if submission.elements == self._elements:
                self._elements = min(2 * self._elements, self._most_elements)
        if job_id is not None:
            for place, job in enumerate(submission.jobs):
                self.confirm(job, bundle.member_id(job_id, place) if bundle else job_id)
        elif answer.ok:
            logger.info("%s took %s and told no id: %s", self._scheduler.SUBMIT, submission.command[-1], answer.words)
            for job in submission.jobs:
                job.intent = replace(job.intent, accepted=True)
        else:
            self._refused(submission, answer)

    def confirm(self, job: Job, job_id: str) -> None:
        """Take in the id of the job, and write it down now or, where the file system fails, later."""
        job.record = replace(job.record, state=JobState.QUEUED, job_id=job_id)
        job.state, job.unsaved = job.record.state, True
        with contextlib.suppress(OSError):
            self.save(job)
        job.intent = replace(job.intent, refused_since=None, unclear="", refused="")
        job.tell(job.progress())

    def save(self, job: Job) -> None:
        """Write the job's record, unless that on disk is the same."""
        if job.unsaved:
            self._store.save(job.record)
            job.unsaved = False

    def _refused(self, submission: Submission, answer: Answer) -> None:
        jobs, words, refusal = submission.jobs, answer.words, self._scheduler.refusal(answer.words)
        if answer.returncode is not None and refusal is Refusal.PERMANENT:
            for job in jobs:
                job.intent = replace(job.intent, refused=words)
            return
        self._refusals += 1
        if refusal in (Refusal.TOO_MANY, Refusal.TOO_LARGE):
            self._elements = min(self._elements, max(1, submission.elements // 2))
        if refusal is Refusal.TOO_LARGE:
            self._most_elements = self._elements
        patience, now = self.settings.patience, self._commands.clock.now()
        self._hold_until = now + growing_pause(self._refusals, patience.first_refusal, patience.longest_refusal)
        unclear = words if refusal is Refusal.UNCLEAR else ""
        for job in jobs:
            since = now if job.intent.refused_since is None else job.intent.refused_since
            job.intent = replace(job.intent, refused_since=since, unclear=unclear)
        if words != self._refusal:
            self._refusal = words
            name, longest = jobs[0].record.job_name, patience.longest_refusal
            logger.warning("%s: %s; submission is tried again, at least every %.0f s", name, words, longest)


def bundling_of(order: JobOrder, settings: BatchSettings) -> Bundling:
    """Return with how many of its kind an order may go: no more at once than a node has room for, if that is known."""
    options, asked = order.options, order.resources
    if not isinstance(options, PackOptions) or order.cluster:
        # Dask's workers on other nodes are one job's.
        return Bundling()
    node = settings.node_cpus, settings.node_memory_bytes
    return Bundling.of(options).within_node(asked.cpus_per_task, asked.memory_bytes, *node)


def _bundled(values: BundleValues) -> BundleText:
    # Most runs have no bundles.
    from espo_luigi.jobs.bundles.slurm import bundled

    return bundled(values)


def _is_free(job: Job, now: float) -> bool:
    return not job.intent.alone and job.trouble_since is None and job.intent.not_before <= now


def _larger(asked: int, learnt: int, cap: int | None) -> int:
    return max(asked, learnt if cap is None else min(learnt, cap))
