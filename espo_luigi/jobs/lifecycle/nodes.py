"""Nodes on which jobs end as soon as they start, and the hold of submissions while jobs do so on all nodes.

A broken node is always free, and gets job after job. If all nodes fail, as the file system with the programs does, all
jobs of a run would use up their attempts within a minute.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from espo_luigi.jobs.lifecycle.policy import Cause, has_failed
from espo_luigi.jobs.lifecycle.state import Job
from espo_luigi.jobs.schedulers.base import Row
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.settings import Patience

logger = logging.getLogger(__name__)

# A node is avoided after so many different tasks ended at once there without a result.
_TASKS_ON_A_NODE = 3
_MOST_NODES = 20
# Submission is held after so many different tasks in a row ended at once, on nodes that are not avoided.
_TASKS_IN_A_ROW = 6
# After each hold one job is tried; after the last, an hour in all, the run goes on until a job does well.
_HOLDS = 6
# How many polls ask the accounting for a job's host. It may be written 15 s late, and each question reads all of it.
_MOST_QUESTIONS = 5


class NodeWatch:
    """Finds broken nodes by the ends of jobs. Times are the driver's monotonic clock."""

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
        """The nodes that the run avoids for this task."""
        return () if task in self._anywhere else self.excluded

    def allow_all(self, task: str) -> None:
        """Let this task's jobs go to any node, as the rest is not enough for it."""
        self._anywhere.add(task)

    def held(self, now: float) -> bool:
        """Whether to wait before the next submission."""
        return self.in_trouble and now < self._hold_until

    def ended(self, job: Job, cause: Cause, now: float) -> None:
        """Take in that a job did not succeed."""
        # A file system that failed under the job may be the node's own: no evidence that the node works.
        if has_failed(job) and cause is not Cause.FILES:
            self.does_well(job.node, job.seen.off_node)
        if cause is Cause.CRASHED and job.ended_at_once(now, self._patience.quick):
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
        if node and node not in self.excluded and len(self._crashed[node]) >= _TASKS_ON_A_NODE:
            self._exclude(node)
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

    def _exclude(self, node: str) -> None:
        if len(self.excluded) >= min(_MOST_NODES, max(1, len(self._seen) // 2)):
            return
        self.excluded = (*self.excluded, node)
        logger.warning(
            "node %s: jobs of %d tasks ended there at once, without a result (%s): no further job of this run goes to "
            "it; tell the cluster's administrators",
            node,
            len(self._crashed[node]),
            ", ".join(sorted(self._crashed[node])),
        )

    def _hold(self, now: float) -> None:
        self._holds += 1
        self._hold_until = now + self._patience.broken_nodes
        logger.warning(
            "jobs of %d tasks in a row ended at once, without a result (on %s), as if something were broken for all of "
            "them: look into their logs; after %.0f s, one job is tried",
            len(self._in_a_row),
            ", ".join(sorted({node or "unknown nodes" for node in self._in_a_row.values()})),
            self._patience.broken_nodes,
        )


class Unstartable:
    """Finds the host that could not start a job, and adds it to the `nodes` of a run.

    Such a host is always free, and puts job after job into Grid Engine's state ``Eqw``. Then qstat does not name the
    host and the reason, but qacct does.
    """

    def __init__(self, commands: Commands, nodes: NodeWatch) -> None:
        self._commands = commands
        self._nodes = nodes
        self._ends: dict[str, Row] = {}
        self._questions: Counter[str] = Counter()

    def learn(self, jobs: Iterable[Job], now: float) -> None:
        """Take in the hosts of all jobs in error; a task whose host is avoided has to go elsewhere."""
        in_error = {job.record.name: job for job in jobs if job.row is not None and job.row.in_error}
        asked = {name for name in in_error if name in self._ends or self._questions[name] >= _MOST_QUESTIONS}
        self._ask([job for name, job in in_error.items() if name not in asked], now)
        for name, job in in_error.items():
            if job.row is not None and (end := self._ends.get(name)):
                avoided = end.node in self._nodes.excluded
                row = replace(job.row, node=end.node, reason=end.reason, no_log=end.no_log, launch_failed=avoided)
                job.seen = replace(job.seen, row=row)

    def _ask(self, jobs: list[Job], now: float) -> None:
        if not jobs:
            return
        names = {job.record.name: job.record.task for job in jobs}
        self._questions.update(names.keys())
        rows = self._commands.remembered([str(job.record.job_id) for job in jobs], [], names)
        for row in rows or ():
            if row.name in names and row.node:
                self._ends[row.name] = row
                self._nodes.crashed(names[row.name], row.node, now)
