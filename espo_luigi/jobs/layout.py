"""Takes over, sets aside or refuses the state folder of a different version of this package.

Versions with the same `LAYOUT` read each other's files. With a different layout a driver refuses while jobs live, and
else begins with new records. To find those jobs, it relies on parts that no layout may change:

- the file `layout.json`, the driver's lock, and the claims in ``claims/``;
- in each ``records/*.json`` the entries ``task``, ``submission``, ``state``, ``job_id`` and ``bundle``.

A job that cannot read its order reports that to the driver that wrote it. So these never change either:

- the command of a job, ``python -m espo_luigi.job ORDER``;
- in each order ``layout``, ``version``, ``label``, ``family``, ``parent``, ``files.result`` and ``files.heartbeat``;
- in each result ``outcome``, ``exception`` and ``job_id``.
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
from espo_luigi.files import read_json, read_object, this_version, write_atomically
from espo_luigi.jobs.lifecycle.records import SUBMITTED, SUBMITTING, RecordStore
from espo_luigi.jobs.schedulers.base import Row
from espo_luigi.jobs.schedulers.commands import Commands
from espo_luigi.jobs.schedulers.script import owner_name, submission_name

logger = logging.getLogger(__name__)

# Raise it when records, claims, orders, results or heartbeats change so that an older version would misread them.
LAYOUT = 1
_FILE = "layout.json"
# The contents of a state folder that are moved away when the layout has changed.
_CONTENTS = ("records", "claims", "scripts", "salt")
_MOST_NAMED = 5


@dataclass(frozen=True)
class Written:
    """The layout of a state folder, and the version of the last driver there."""

    layout: int
    version: str

    @classmethod
    def of(cls, folder: Path) -> Written:
        """Read `layout.json`; a folder without it is new."""
        said = read_object(folder / _FILE) or {}
        return cls(int(said.get("layout", LAYOUT)), str(said.get("version", "(unknown)")))

    @property
    def is_other(self) -> bool:
        """Return whether this version cannot read the folder."""
        return self.layout != LAYOUT


def prepare(store: RecordStore, commands: Commands) -> None:
    """Prepare the state folder for this version: keep the records if the layout is the same, else set them aside.

    Raises
    ------
    SubmissionError
        If jobs of a different layout live, or may live because the scheduler does not answer.
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
            # A job that the scheduler does not list yet may still start: it finds its claim closed and ends.
            store.close(name)
    store.create_folders()
    if written != Written(LAYOUT, this_version()) or not (store.folder / _FILE).exists():
        text = json.dumps({"layout": LAYOUT, "version": this_version()})
        write_atomically(store.folder / _FILE, text, durable=True)


def cancel_other(folder: Path, commands: Commands) -> int | None:
    """Cancel the jobs of a folder of a different layout; return their number, or None if the layout is this one."""
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
    """Yield the names under which the scheduler may know jobs of the folder."""
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
