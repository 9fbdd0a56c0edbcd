"""Stacks and cancellations: one command for all jobs of a cycle, as each may take a minute of a busy scheduler."""

from __future__ import annotations

from collections.abc import Iterable

from espo_luigi.jobs.commands import Commands
from espo_luigi.jobs.flights import Flight


class Signals:
    """Collects what the jobs of flights are to be told, until it is sent."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._to_dump: list[Flight] = []
        self._to_cancel: list[Flight] = []

    def dump(self, flight: Flight) -> None:
        """Have the job write its stack to its log."""
        self._to_dump.append(flight)

    def cancel(self, flight: Flight) -> None:
        """Have the job end."""
        self._to_cancel.append(flight)

    def send(self, unwanted: Iterable[str]) -> None:
        """Send all, and cancel the jobs with the ids that are `unwanted`, too."""
        dumped, self._to_dump = self._to_dump, []
        cancelled, self._to_cancel = self._to_cancel, []
        ids = [*unwanted, *(str(flight.record.job_id) for flight in cancelled)]
        if dumped:
            self._commands.dump_stacks(str(flight.record.job_id) for flight in dumped)
        if ids:
            self._commands.cancel(ids)
        now = self._commands.clock.now()
        for flight in dumped:
            flight.dumped_since = now
        for flight in cancelled:
            flight.cancel_since = now
