"""State folders that another version of this package has written: taken over, set aside, or refused while jobs live.

A version that is not told by `LAYOUT` may read what this one writes. Whatever the layout, these stay as they are: the
file `layout.json`, the driver's lock, and of each ``records/*.json`` the entries ``task``, ``submission``, ``state``,
``job_id`` and ``bundle``, by which jobs are known to the scheduler, and their claims in ``claims/``.

A job that cannot read its order says so to the driver that wrote it. For that, these stay, too: of each order the
entries ``layout``, ``version``, ``label``, ``family``, ``parent``, ``files.result`` and ``files.heartbeat``, of each
result ``outcome``, ``exception`` and ``job_id``, and the command of a job, ``python -m espo_luigi.job ORDER``.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.lifecycle.records import (
    SUBMITTED,
    SUBMITTING,
    RecordStore,
    read_json,
    read_object,
    write_atomically,
)
from espo_luigi.jobs.lock import this_version
from espo_luigi.jobs.schedulers.base import Row
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import owner_name, submission_name

logger = logging.getLogger(__name__)

# To be raised when records, claims, orders, results or heartbeats change so that another version would misread them.
LAYOUT = 1
# Of what does not say it, as it was written before there was another.
FIRST_LAYOUT = 1
_FILE = "layout.json"
# What of a state folder a driver of another layout does not use again.
_CONTENTS = ("records", "claims", "scripts", "salt")
_MOST_NAMED = 5


@dataclass(frozen=True)
class Written:
    """Which layout a state folder has, and the version whose driver worked there last."""

    layout: int
    version: str

    @classmethod
    def of(cls, folder: Path) -> Written:
        """Return what `layout.json` says; a folder without it is of a version before there was one, or new."""
        said = read_object(folder / _FILE) or {}
        return cls(int(said.get("layout", FIRST_LAYOUT)), str(said.get("version", "an earlier one")))

    @property
    def is_other(self) -> bool:
        """Whether this version cannot read the folder."""
        return self.layout != LAYOUT


def prepare(store: RecordStore, commands: Commands) -> None:
    """Make the state folder this version's: go on from one of the same layout, begin anew in one of another.

    Raises
    ------
    SubmissionError
        If jobs of another layout live, or may live because the scheduler does not answer.
    """
    written = Written.of(store.folder)
    if written.is_other:
        names = set(_open_names(store.folder))
        rows = _living(names, commands, store.folder)
        if rows:
            raise SubmissionError(_refusal(store.folder, written, rows))
        _set_aside(store.folder, written)
        store.create_folders()
        for name in names:
            # One that the scheduler has not listed may still come: it finds its claim closed.
            store.close(name)
    store.create_folders()
    if written != Written(LAYOUT, this_version()) or not (store.folder / _FILE).exists():
        text = json.dumps({"layout": LAYOUT, "version": this_version()})
        write_atomically(store.folder / _FILE, text, durable=True)


def cancel_other(folder: Path, commands: Commands) -> int | None:
    """Cancel the jobs of a folder of another layout; return how many, or None where the folder is of this layout."""
    if not Written.of(folder).is_other:
        return None
    rows = _living(set(_open_names(folder)), commands, folder)
    if rows and not commands.cancel(row.job_id for row in rows):
        raise SubmissionError(f"{commands.scheduler.NAME} did not take the cancellation; try again later")
    return len(rows)


def _living(names: set[str], commands: Commands, folder: Path) -> list[Row]:
    rows = commands.jobs() if names else []
    if rows is None:
        raise SubmissionError(
            f"{folder} was written by another version of espo_luigi, and {commands.scheduler.NAME} does not answer: "
            "its jobs may live, and nothing is done; try again later"
        )
    return [row for row in rows if not row.phase.ended and (owner_name(row.name) or row.name) in names]


def _refusal(folder: Path, written: Written, rows: list[Row]) -> str:
    named = ", ".join(f"{row.job_id} ({row.name}, {row.said})" for row in rows[:_MOST_NAMED])
    more = f" and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
    return (
        f"{folder} was written by espo_luigi {written.version} (layout {written.layout}), and this is "
        f"{this_version()} (layout {LAYOUT}), which cannot take over its {len(rows)} job(s) that live: {named}{more}. "
        f"Finish the run with espo_luigi {written.version}, or give `espo cancel` and then this command again"
    )


def _open_names(folder: Path) -> Iterator[str]:
    """The names that the scheduler may know of jobs that are out."""
    for path in (folder / "records").glob("*.json"):
        record = read_json(path) or {}
        if record.get("state") in (SUBMITTING, SUBMITTED):
            yield submission_name(str(record.get("task", path.stem)), int(record.get("submission", 1)))
            if record.get("bundle"):
                yield str(record["bundle"])


def _set_aside(folder: Path, written: Written) -> None:
    aside = folder / f"layout-{written.layout}-{time.time_ns()}"
    aside.mkdir()
    for name in _CONTENTS:
        if (folder / name).exists():
            os.replace(folder / name, aside / name)
    logger.warning(
        "%s was written by espo_luigi %s (layout %d, now %d): none of its jobs lives, and its records are in %s now",
        folder,
        written.version,
        written.layout,
        LAYOUT,
        aside.name,
    )
