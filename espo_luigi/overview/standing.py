"""How a run stands, from its files alone: what its driver writes, or, without a driver, the jobs' own files."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from luigi.configuration import get_config

from espo_luigi.driver.display.status import duration, is_alive, status_lines
from espo_luigi.driver.run.board import read_state
from espo_luigi.driver.run.stale import stale_lines
from espo_luigi.driver.settings.espo import settings, state_dir
from espo_luigi.jobs.lifecycle.records import SUBMITTED, SUBMITTING, RecordStore
from espo_luigi.jobs.order import JobFiles, heartbeat_files
from espo_luigi.overview.traces import is_beating

_OPEN = re.compile(rb'"state": "(submitting|submitted)"')


def read() -> dict[str, Any]:
    """Return the state that the driver wrote last, whether it lives, and, if not, the jobs that it left."""
    workdir = Path(settings().workdir).absolute()
    state = read_state(workdir)
    alive = is_alive(state)
    return {"workdir": str(workdir), "alive": alive, "run": state or None, "left": {} if alive else _left(workdir)}


def _left(workdir: Path) -> dict[str, dict[str, int]]:
    """By rule, the jobs that are out although no driver is: those with a sign of life are at work."""
    found: dict[str, Counter[str]] = {}
    beating = {path for path in heartbeat_files(workdir) if is_beating(JobFiles.at(path))}
    for record in _open_records(RecordStore(state_dir()).folder / "records"):
        # What was only planned is no job.
        if record.get("state") in (SUBMITTING, SUBMITTED):
            rule = str(record.get("rule"))
            if JobFiles.of(workdir, rule, record.get("wildcards", {})).heartbeat not in beating:
                found.setdefault(rule, Counter())[str(record["state"])] += 1
    for path in beating:
        found.setdefault(path.parent.name, Counter())["at work"] += 1
    return {rule: dict(counts) for rule, counts in sorted(found.items())}


def _open_records(folder: Path) -> Iterator[dict[str, Any]]:
    """The records that may be of jobs that are out; there may be 20 000 others, which are not parsed."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError, ValueError, RecursionError):
                text = Path(entry.path).read_bytes()
                if _OPEN.search(text):
                    yield json.loads(text)


def render(found: Mapping[str, Any], lines: int = 0) -> list[str]:
    """Return the state as lines for people; if `lines` is a number, cut to so many."""
    state = found["run"]
    if state is None:
        return [f"{found['workdir']}: no run has begun here{_lacking()}", *_rendered_left(found["left"])]
    silent = duration(state["silent_seconds"])
    now = state["updated"] + state["silent_seconds"]  # by the clock of the driver's host, as are the times in its state
    since = f"since {duration(now - state['started'])}"
    if not found["alive"]:
        state = {**state, "jobs": {}}
    if found["alive"]:
        driver = f"driver: process {state['pid']} on {state['host']}, {since}"
    elif state["ended"]:
        driver = f"no driver: the last run ended {silent} ago: {state.get('outcome', '')}".removesuffix(": ")
    else:
        driver = f"no driver: process {state['pid']} on {state['host']} was heard last {silent} ago"
    left = _rendered_left(found["left"])
    room = max(lines - 1 - len(left), 1) if lines else 0
    stale = [] if found["alive"] else list(stale_lines(state.get("stale", {})))
    return [driver, *status_lines(state, now, room), *(["", *stale] if stale else []), *left][: lines or None]


def _lacking() -> str:
    return "" if get_config().sections() else "; there is no luigi.cfg in this folder: give the command where yours is"


def _rendered_left(left: Mapping[str, Mapping[str, int]]) -> list[str]:
    lines = [f"  {rule}: {', '.join(f'{n} {name}' for name, n in counts.items())}" for rule, counts in left.items()]
    return ["", "jobs that go on without a driver (the next one takes them over):", *lines] if lines else []
