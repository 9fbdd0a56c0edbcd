"""Reading for a report: stores and tables that may be missing, and the results and records of jobs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from espo_luigi import store
from espo_luigi.errors import EspoError
from espo_luigi.files import read_json
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.order import JobFiles, ResultWord, order_files
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.settings import STATE_FOLDER
from espo_luigi.report.job_results import results_of
from espo_luigi.report.job_use import Job


@dataclass(frozen=True)
class Failed:
    """A job that failed, or left no result, with its message and the path of its log."""

    label: str
    words: str
    log: str


class Reader:
    """Opens a report's stores and tables, and remembers why any could not be read."""

    def __init__(self) -> None:
        self.lacking: list[str] = []

    def dataset(self, path: Path) -> xr.Dataset | None:
        """Return a small store in memory, or None if it is missing or unreadable."""
        return self._read(path, load=True)

    def lazy(self, path: Path) -> xr.Dataset | None:
        """Return a store whose variables are not read, or None if it is missing or unreadable."""
        return self._read(path, load=False)

    def _read(self, path: Path, *, load: bool) -> xr.Dataset | None:
        try:
            opened = store.open_store(path, cut=False)
            return opened.load() if load else opened
        except Exception as error:  # a damaged chunk raises whatever its codec does
            self.lacking.append(f"{path}: not made" if not path.exists() else _words(path, error))
            return None

    def has(self, path: Path) -> bool:
        """Return whether a store is there."""
        if store.is_complete(path):
            return True
        self.lacking.append(f"{path}: not made")
        return False

    def table(self, path: Path, columns: Collection[str]) -> list[store.Row] | None:
        """Return a table's rows, or None if it is missing, unreadable, or lacks a column."""
        try:
            return store.read_table(path, columns)
        except EspoError as error:
            self.lacking.append(f"{path}: not made" if not path.exists() else str(error))
            return None


def _words(path: Path, error: Exception) -> str:
    return str(error) if isinstance(error, EspoError) else f"{path}: {type(error).__name__}: {error}"


def read_jobs(workdir: Path) -> list[Job]:
    """Return the jobs below a run's work folder whose result has all that they took."""
    found: list[Job] = []
    for path, result in results_of(workdir):
        order = JobFiles.at(path).order
        with suppress(KeyError, ValueError, TypeError, EspoError):
            # Slurm's jobs were submitted, local jobs started, when their order was written, by the file server's clock.
            # The job's own times are by its node's clock, which read `ended` when the result was written.
            ago = path.stat().st_mtime - order.stat().st_mtime if order.exists() else None
            found.append(Job.of(result, None if ago is None else float(result["ended"]) - ago))
    return found


def read_failures(workdir: Path, engine: str = "") -> Iterator[Failed]:
    """Yield the jobs that have failed, and those that were ordered and have left no result."""
    logs = _scheduler_logs(workdir, engine)
    for path in order_files(workdir):
        result = read_json(JobFiles.at(path).result)
        if result is None or result.get("outcome") != ResultWord.SUCCESS:
            order = read_json(path) or {}
            own = str(order.get("files", {}).get("log", ""))
            yield _failed(order, result, path, logs.get(_key(path.parent.name, order.get("wildcards", {})), own))


def _scheduler_logs(workdir: Path, engine: str) -> dict[tuple[Any, ...], str]:
    """Return the log of each task's last job of a scheduler, which is not where the local engine's would be."""
    if engine not in SCHEDULERS:
        return {}
    records, _ = read_records(workdir)
    return {
        _key(one.rule, one.wildcards): SCHEDULERS[engine].log_path(one.log_pattern, one.job_id)
        for one in records
        if one.job_id
    }


def _key(rule: str, wildcards: Mapping[str, str]) -> tuple[Any, ...]:
    return rule, *sorted(wildcards.items())


def _failed(order: Mapping[str, Any], result: Mapping[str, Any] | None, path: Path, log: str) -> Failed:
    label = str(order.get("label", path.stem))
    if result is None:
        return Failed(label, "no result: it is still waiting or at work, or was killed", log)
    return Failed(label, str(result.get("exception") or result.get("outcome")), log)


def read_records(workdir: Path) -> tuple[list[Record], str]:
    """Return the records of a run's submissions, and the problems with reading others, if any."""
    problems: list[str] = []
    return list(RecordStore(workdir / STATE_FOLDER).all(problems.append)), "; ".join(problems)
