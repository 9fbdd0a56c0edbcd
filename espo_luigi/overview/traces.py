"""The files of one task's job: its order, its record, its sign of life, its result and its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.driver.settings.espo import settings, state_dir
from espo_luigi.errors import JobError, ParameterError
from espo_luigi.files import age_of
from espo_luigi.jobs.lifecycle.records import Record, RecordStore, read_json
from espo_luigi.jobs.order import JobFiles, jobs_folder, label_of, order_files
from espo_luigi.jobs.schedulers.known import SCHEDULERS
from espo_luigi.jobs.schedulers.script import task_name

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
