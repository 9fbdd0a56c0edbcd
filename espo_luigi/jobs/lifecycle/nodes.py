"""Nodes on which jobs end as soon as they start, and pauses when jobs do so on all nodes.

A broken node is always free, so that it gets job after job. And where something fails for all nodes (the file system
with the programs, for example), every job of a run would use up its attempts within a minute.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict

from espo_luigi.jobs.lifecycle.flights import Flight
from espo_luigi.jobs.lifecycle.policy import Cause

logger = logging.getLogger(__name__)

# So many different tasks, none of which gave a result, make a node one that is avoided.
_TASKS_ON_A_NODE = 3
_MOST_NODES = 20
# So many different tasks in a row, on nodes that are not avoided, make submission pause.
_TASKS_IN_A_ROW = 6
# After each pause one job is tried; after the last, an hour in all, the run goes on as if nothing were known.
_PAUSES = (60.0, 120.0, 240.0, 480.0, 960.0, 1800.0)


class NodeWatch:
    """What a run learns of nodes from how jobs end on them. Times are the driver's monotonic clock."""

    def __init__(self) -> None:
        self.excluded: tuple[str, ...] = ()
        self._anywhere: set[str] = set()
        self._seen: set[str] = set()
        # when jobs of which tasks ended at once on a node, since one that started later did well there
        self._crashed: defaultdict[str, dict[str, float]] = defaultdict(dict)
        # on which node the jobs of which tasks ended at once, since one that started after `_row_since` did well
        self._in_a_row: dict[str, str] = {}
        self._row_since = -math.inf
        self.in_trouble = False
        self._hold_until = 0.0
        self._pauses: list[float] = list(_PAUSES)

    def avoided_by(self, task: str) -> tuple[str, ...]:
        """The nodes to which no job of the task goes, whatever has become of its own jobs there."""
        return () if task in self._anywhere else self.excluded

    def allow_all(self, task: str) -> None:
        """Avoid no node for this task any more: there is none for it without them."""
        self._anywhere.add(task)

    def held(self, now: float) -> bool:
        """Whether to wait before the next submission."""
        return self.in_trouble and now < self._hold_until

    def learn(self, flight: Flight, cause: Cause, now: float) -> bool:
        """Learn from how a flight's job did not succeed; whether that is known to be none of the task's fault."""
        task, node = flight.record.task, flight.node
        # A file system that failed under the job may be the node's own: no evidence that the node works.
        if flight.has_failed and cause is not Cause.FILES:
            self.does_well(node, flight.started_after)
        if cause is not Cause.CRASHED or not flight.ended_at_once(now):
            return False
        self.crashed(task, node, now)
        return self.in_trouble or node in self.avoided_by(task)

    def does_well(self, node: str, started_after: float | None) -> None:
        """Take in that a job wrote a result there, or works there for a while; it started after that moment.

        One that had started before others ended at once says nothing of what has happened to the node since.
        """
        if started_after is None:
            return
        self._seen |= {node} - {""}
        if started_after >= min(self._crashed[node].values(), default=-math.inf):
            self._crashed.pop(node)
        if started_after >= self._row_since:
            if self.in_trouble:
                logger.warning("jobs do not end at once any more: submission goes on")
            self._start_anew(-math.inf, _PAUSES)

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
        if not self.in_trouble and self._pauses and len(self._in_a_row) >= _TASKS_IN_A_ROW:
            self.in_trouble, self._row_since = True, now
            self._pause(now)

    def submitted(self, now: float) -> None:
        """Take in a submission: while there is trouble, one at a time."""
        if not self.in_trouble:
            return
        if self._pauses:
            self._pause(now)
        else:
            logger.warning("jobs still end at once, after several pauses: submission goes on, and attempts are counted")
            self._start_anew(now, ())

    def _exclude(self, node: str) -> None:
        most = min(_MOST_NODES, max(1, len(self._seen) // 2))
        if len(self.excluded) >= most:
            return
        self.excluded = (*self.excluded, node)
        tasks = ", ".join(sorted(self._crashed[node]))
        logger.warning(
            "node %s: jobs of %d tasks ended there at once, without a result (%s): no further job of this run goes to "
            "it; tell the cluster's administrators",
            node,
            len(self._crashed[node]),
            tasks,
        )

    def _pause(self, now: float) -> None:
        seconds = self._pauses.pop(0)
        self._hold_until = now + seconds
        logger.warning(
            "jobs of %d tasks in a row ended at once, without a result (on %s), as if something were broken for all of "
            "them: look into their logs; submission pauses for %.0f s, then one job is tried",
            len(self._in_a_row),
            ", ".join(sorted({node or "unknown nodes" for node in self._in_a_row.values()})),
            seconds,
        )

    def _start_anew(self, since: float, pauses: tuple[float, ...]) -> None:
        self.in_trouble = False
        self._in_a_row.clear()
        self._row_since, self._pauses = since, list(pauses)
