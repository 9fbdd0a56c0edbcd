"""Stacks and cancellations: one command for all jobs of a cycle, as each may take a minute of a busy scheduler.

A member of a bundle whose job is others', too, writes its stack and ends once it finds its claim closed; the job is
cancelled when it is there for nobody any more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from espo_luigi.jobs.bundles.members import Bundles
from espo_luigi.jobs.lifecycle.flights import Flight
from espo_luigi.jobs.schedulers.commands import Commands

logger = logging.getLogger(__name__)


class Signals:
    """Collects signals and cancellations, which are sent together at the end of a cycle."""

    def __init__(self, commands: Commands, bundles: Bundles) -> None:
        self._commands = commands
        self._bundles = bundles
        self._to_dump: list[tuple[Flight, str]] = []
        self._to_cancel: list[tuple[Flight, str]] = []

    def dump(self, flight: Flight) -> None:
        """Have the job write its stack to its log, where it can be asked to; else it only gets some more time."""
        name, job_id = flight.record.name, flight.record.job_id
        if self._commands.scheduler.stack_dumps([str(job_id)]):
            logger.warning("%s: no heartbeat; asking job %s for its stack", name, job_id)
        else:
            logger.warning("%s: no heartbeat of job %s; a last look follows", name, job_id)
        self._to_dump.append((flight, str(flight.record.job_id)))

    def cancel(self, flight: Flight) -> None:
        """Have the job end."""
        self._to_cancel.append((flight, str(flight.record.job_id)))

    def send(self, unwanted: Iterable[str]) -> None:
        """Send all, and cancel the jobs with the ids that are `unwanted`, too."""
        # It may have waited until the driver was sure of its lock: by now, a flight may have another job.
        dumped = [flight for flight, job_id in self._to_dump if flight.record.job_id == job_id]
        cancelled = [flight for flight, job_id in self._to_cancel if flight.record.job_id == job_id]
        self._to_dump, self._to_cancel = [], []
        ids = dict.fromkeys([*unwanted, *(str(flight.record.job_id) for flight in cancelled if self._goes(flight))])
        alone = [str(flight.record.job_id) for flight in dumped if not flight.record.shares_job]
        if alone:
            self._commands.dump_stacks(alone)
        if ids:
            self._commands.cancel(ids)
        now = self._commands.clock.now()
        for flight in dumped:
            flight.dumped_since = now
        for flight in cancelled:
            flight.cancel_since = now

    def _goes(self, flight: Flight) -> bool:
        return not flight.record.shares_job or not self._bundles.is_needed(flight.record)
