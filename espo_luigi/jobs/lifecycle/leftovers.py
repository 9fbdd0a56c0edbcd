"""Jobs that have succeeded and do not end: they hold their allocation for nothing until somebody cancels them.

This module finds them; its caller cancels them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from espo_luigi.jobs.schedulers.base import Phase, Row
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import owner_name

logger = logging.getLogger(__name__)

# At the end of a run, the jobs that were the last to write their result get so long, in seconds, to end by themselves.
_LAST_PAUSES = (0.0, 1.0, 2.0, 4.0)


class Leftovers:
    """The jobs, by name, since when; `patience` is how long, in seconds, one may stay."""

    def __init__(self, commands: Commands, patience: float) -> None:
        self._commands = commands
        self._patience = patience
        self._since: dict[str, float] = {}

    def __bool__(self) -> bool:
        return bool(self._since)

    def add(self, name: str, now: float) -> None:
        """Take in that the job of that name has succeeded, and was still there."""
        self._since[name] = now

    def start_anew(self, now: float) -> None:
        """Let all have their time again: nobody has looked for a while."""
        self._since = dict.fromkeys(self._since, now)

    def unwanted(self, rows: Mapping[str, Row], now: float) -> list[str]:
        """The ids of those that have stayed for too long, by the scheduler's rows, by name."""
        late_rows: list[Row] = []
        for name, since in list(self._since.items()):
            row, late = rows.get(name), now - since >= self._patience
            if row is None and not late:
                continue  # an answer may be older than the job
            if row is None or _is_gone(row):
                del self._since[name]
            elif late:
                late_rows.append(row)
                self._since[name] = now
        return _said(late_rows)

    def unwanted_at_the_end(self) -> list[str]:
        """The ids of those that do not go within a few seconds: nobody looks any more after this run."""
        alive: list[Row] = []
        for pause in _LAST_PAUSES if self._since else ():
            self._commands.clock.sleep(pause)
            rows = self._commands.jobs() or []
            alive = [row for row in rows if row.name in self._since and not _is_gone(row)]
            if not alive:
                break
        return _said(alive)


def orphans(rows: Iterable[Row], is_ours: Callable[[str], bool]) -> list[str]:
    """The ids of Dask workers' jobs whose own job neither waits nor runs any more.

    `is_ours` returns whether a job of such a name was this run's.
    """
    alive = [row for row in rows if not _is_gone(row)]
    names = {row.name for row in alive}
    left = [row for row in alive if (owner := owner_name(row.name)) and owner not in names and is_ours(owner)]
    for row in left:
        logger.warning("%s: the job whose workers these are has ended: cancelling job %s", row.name, row.job_id)
    return [row.job_id for row in left]


def _said(alive: Iterable[Row]) -> list[str]:
    for row in alive:
        logger.warning("%s has written its result and does not end: cancelling job %s", row.name, row.job_id)
    return [row.job_id for row in alive]


def _is_gone(row: Row) -> bool:
    # What is leaving has no processes any more: its epilog is the site's business.
    return row.phase.ended or row.phase is Phase.LEAVING
