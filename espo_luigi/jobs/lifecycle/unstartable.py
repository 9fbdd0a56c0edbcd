"""Hosts that cannot start jobs: of a job in Grid Engine's state ``Eqw``, qstat does not name the host, qacct does.

Such a host is always free, and puts job after job into that state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from espo_luigi.jobs.lifecycle.flights import Flight
from espo_luigi.jobs.lifecycle.nodes import NodeWatch
from espo_luigi.jobs.schedulers.commands import Commands

# At successive polls: the accounting may be written 15 s late, and each question reads all of it.
_MOST_QUESTIONS = 5


class Unstartable:
    """Finds out which host could not start a job, and adds it to the `nodes` of a run."""

    def __init__(self, commands: Commands, nodes: NodeWatch) -> None:
        self._commands = commands
        self._nodes = nodes
        self._hosts: dict[str, str] = {}
        self._questions: Counter[str] = Counter()

    def learn(self, flights: Iterable[Flight], now: float) -> None:
        """Take in the hosts of all jobs in error; a task of a host that is avoided is one that has to go elsewhere."""
        in_error = {flight.record.name: flight for flight in flights if flight.row is not None and flight.row.in_error}
        self._ask([flight for name, flight in in_error.items() if self._is_worth_asking(name)], now)
        for name, flight in in_error.items():
            if flight.row is not None and (host := self._hosts.get(name)):
                flight.row = replace(flight.row, node=host, launch_failed=host in self._nodes.excluded)

    def _is_worth_asking(self, name: str) -> bool:
        return name not in self._hosts and self._questions[name] < _MOST_QUESTIONS

    def _ask(self, flights: list[Flight], now: float) -> None:
        if not flights:
            return
        names = {flight.record.name: flight.record.task for flight in flights}
        self._questions.update(names.keys())
        rows = self._commands.remembered([str(flight.record.job_id) for flight in flights], [], names)
        for row in rows or ():
            if row.name in names and row.node:
                self._hosts[row.name] = row.node
                self._nodes.crashed(names[row.name], row.node, now)
