"""Jobs that have succeeded and do not go: they waste their allocation until somebody cancels them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from espo_luigi.jobs.commands import Commands
from espo_luigi.jobs.scheduler import Phase, Row

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

    def look(self, rows: Mapping[str, Row], now: float) -> None:
        """Cancel those that have stayed for too long, by what the scheduler says of jobs by their names."""
        for name, since in list(self._since.items()):
            row, late = rows.get(name), now - since >= self._patience
            if row is None and not late:
                continue  # an answer may be older than the job
            if row is None or _is_gone(row):
                del self._since[name]
            elif late:
                self._cancel({name: row})
                self._since[name] = now

    def end(self) -> None:
        """See all of them gone, or cancel them: nobody looks any more after this run."""
        alive: dict[str, Row] = {}
        for pause in _LAST_PAUSES if self._since else ():
            self._commands.clock.sleep(pause)
            rows = self._commands.jobs() or []
            alive = {row.name: row for row in rows if row.name in self._since and not _is_gone(row)}
            if not alive:
                return
        if alive:
            self._cancel(alive)

    def _cancel(self, alive: Mapping[str, Row]) -> None:
        ids = [row.job_id for row in alive.values()]
        names = ", ".join(alive)
        logger.warning("%s: has written its result and does not end: cancelling job %s", names, ", ".join(ids))
        self._commands.cancel(ids)


def _is_gone(row: Row) -> bool:
    # What is leaving has no processes any more: its epilog is the site's business.
    return row.phase.ended or row.phase is Phase.LEAVING
