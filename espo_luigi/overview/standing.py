"""How a run and its tasks stand, from files alone: `run.json` of the driver, and the files of each job."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from luigi.configuration import get_config

from espo_luigi.driver.display.live import status_lines
from espo_luigi.driver.display.status import duration, is_alive
from espo_luigi.driver.run.board import read_state
from espo_luigi.driver.run.stale import stale_lines
from espo_luigi.driver.settings.espo import settings, state_dir
from espo_luigi.errors import JobError, ParameterError
from espo_luigi.files import age_of
from espo_luigi.jobs.lifecycle.records import SUBMITTED, SUBMITTING, Record, RecordStore, read_json
from espo_luigi.jobs.order import JobFiles, heartbeat_files, jobs_folder, label_of, order_files
from espo_luigi.jobs.schedulers.known import SCHEDULERS
from espo_luigi.jobs.schedulers.script import task_name

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


# Without a sign of life for so long, or for so many times what is usual between two, a job is not at work.
_SILENT_SECONDS, _SILENT_BEATS = 120.0, 4


@dataclass(frozen=True)
class Trace:
    """One task's job, by its files; what is not there (any more) is None. `is_alive`: it is at work."""

    label: str
    files: JobFiles
    is_alive: bool
    order: Mapping[str, Any]
    record: Record | None
    result: Mapping[str, Any] | None
    beat: Mapping[str, Any] | None

    def logs(self) -> list[Path]:
        """Return the logs that are there, of all submissions, the latest last."""
        found = [self.files.log] if self.files.log.is_file() else []
        if self.record is not None:
            ids = [*(past["job_id"] for past in self.record.history), self.record.job_id]
            paths = [_log_path(self.record, job_id) for job_id in ids if job_id]
            found += [path for path in dict.fromkeys(paths) if path.is_file()]
        return found


def trace_of(family: str, wildcards: Mapping[str, str]) -> Trace:
    """Return what there is of the job of a task."""
    workdir = Path(settings().workdir).absolute()
    files = JobFiles.of(workdir, family, wildcards)
    return Trace(
        label_of(family, wildcards),
        files,
        is_beating(files),  # before the result is read: one that ends meanwhile has one
        read_json(files.order) or {},
        _record(workdir.name, family, wildcards),
        read_json(files.result),
        read_json(files.heartbeat),
    )


def is_beating(files: JobFiles) -> bool:
    """Return whether a job has given a sign of life a short while ago, by its file's time: nodes' clocks may differ."""
    try:
        silent = age_of(files.heartbeat)
    except OSError:  # it has not begun, or has ended
        return False
    beat = float((read_json(files.order) or {}).get("beat_seconds", 0.0)) if silent > _SILENT_SECONDS else 0.0
    return silent < max(_SILENT_SECONDS, _SILENT_BEATS * beat)


def _record(run: str, family: str, wildcards: Mapping[str, str]) -> Record | None:
    store = RecordStore(state_dir())
    try:
        return store.load(task_name(run, family, wildcards, store.salt))
    except (OSError, JobError):
        return None


def _log_path(record: Record, job_id: str) -> Path:
    scheduler = SCHEDULERS.get(settings().engine) or next(iter(SCHEDULERS.values()))
    return Path(scheduler.log_path(record.log_pattern, job_id))


def traces_like(words: Sequence[str]) -> list[Trace]:
    """Return the jobs that were ordered and are of the first word's rule, and whose parameters hold the other words.

    Raises
    ------
    ParameterError
        If there is none.
    """
    family, *rest = words
    workdir = Path(settings().workdir).absolute()
    orders = [order for path in order_files(workdir, family) if (order := read_json(path)) is not None]
    found = [order for order in orders if fits(order.get("wildcards", {}), rest)]
    if not found:
        folder = jobs_folder(workdir)
        known = sorted(path.name for path in folder.glob("*") if path.is_dir())
        raise ParameterError(
            f"no job of {' '.join(words)} was ordered in {folder}: got the rule {family}, of which "
            f"{len(orders)} job(s) were; rules with jobs: {', '.join(known) or '(none)'}"
        )
    return [trace_of(family, order["wildcards"]) for order in found]


def said_of(wildcards: Mapping[str, str]) -> list[str]:
    """Return the words that stand for a task's parameters: each value, alone and as ``name=value``."""
    return [*wildcards.values(), *(f"{name}={value}" for name, value in wildcards.items())]


def fits(wildcards: Mapping[str, str], words: Sequence[str]) -> bool:
    """Return whether each word is part of one that stands for these parameters; ``--name`` is passed over."""
    return all(any(word in said for said in said_of(wildcards)) for word in words if not word.startswith("--"))
