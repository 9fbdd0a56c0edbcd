"""What a driver gives to a job, an order (a value, and a small JSON file), and what it gets back, a result."""

from __future__ import annotations

import hashlib
import json
import os
import re
import site
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from espo_luigi.jobs.bundles.model import Bundling
from espo_luigi.jobs.dask.jobs import WorkerJobs
from espo_luigi.jobs.layout import LAYOUT
from espo_luigi.jobs.lifecycle.records import write_atomically
from espo_luigi.jobs.lock import this_version
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers.script import JobOptions
from espo_luigi.jobs.state import JobState

# So that the last lines of a log are found without all that is before them.
_BYTES_OF_A_LINE = 1000
_RESULT = ".result.json"


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON beside `path` and rename it there, so that nobody ever reads half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(value, indent=1, default=os.fspath), durable=True)


def label_of(family: str, wildcards: Mapping[str, str]) -> str:
    """Return a task's name for people: its family and its wildcards."""
    return " ".join([family, *(f"{name}={value}" for name, value in wildcards.items())])


@dataclass(frozen=True)
class JobFiles:
    """The files of one job: its order, its result, its sign of life, and its log where the local engine runs it."""

    order: Path
    result: Path
    heartbeat: Path
    log: Path

    @classmethod
    def of(cls, workdir: Path, family: str, wildcards: Mapping[str, str]) -> JobFiles:
        """Return where they lie below the run's work folder: named by the wildcards, readable, and their hash."""
        text = json.dumps([family, wildcards], sort_keys=True)
        readable = re.sub(r"[^A-Za-z0-9_.+=,-]", "_", ",".join(f"{k}={v}" for k, v in wildcards.items()))[:120]
        stem = "-".join(part for part in (readable, hashlib.sha256(text.encode()).hexdigest()[:10]) if part)
        return cls._named(workdir, family, stem)

    @classmethod
    def at(cls, path: Path) -> JobFiles:
        """Return those of the job one of whose JSON files is at `path`."""
        stem = path.name.removesuffix(_RESULT).removesuffix(".json")
        return cls._named(path.parents[2], path.parent.name, stem)

    @property
    def workdir(self) -> Path:
        """The run's work folder."""
        return self.order.parents[2]

    @classmethod
    def _named(cls, workdir: Path, family: str, stem: str) -> JobFiles:
        jobs = jobs_folder(workdir) / family
        return cls(
            jobs / f"{stem}.json",
            jobs / f"{stem}{_RESULT}",
            # Not among the results, which are listed again and again.
            workdir / "heartbeats" / family / f"{stem}.json",
            workdir / "logs" / family / f"{family}-{stem}.out",
        )


def extra_folders() -> list[str]:
    """Return where this process looks for modules, and a job of it would not by itself: the work folder, for example.

    A job runs with ``-P``, and has `PYTHONPATH` and the installation's folders.
    """
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    own = [*installed, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    named = {os.path.abspath(entry) for entry in own}
    standard = os.path.dirname(sysconfig.get_path("stdlib")) + os.sep
    found = [os.path.abspath(entry) for entry in sys.path]
    return [entry for entry in dict.fromkeys(found) if entry not in named and not entry.startswith(standard)]


def jobs_folder(workdir: Path) -> Path:
    """Return where the orders and the results lie, in a folder for each rule."""
    return workdir / "jobs"


def order_files(workdir: Path, family: str = "") -> list[Path]:
    """Return the orders of all jobs of a work folder, or of one rule's."""
    found = (jobs_folder(workdir) / family).rglob("*.json")
    return sorted(path for path in found if not path.name.endswith(_RESULT))


def result_files(workdir: Path) -> list[Path]:
    """Return the results of all jobs of a work folder."""
    return list(jobs_folder(workdir).glob(f"*/*{_RESULT}"))


def heartbeat_files(workdir: Path) -> list[Path]:
    """Return the signs of life of all jobs of a work folder."""
    return list((workdir / "heartbeats").glob("*/*.json"))


@dataclass(frozen=True)
class Standing:
    """Where a job stands: a message of some lines, how many per cent are done if that is known, the dashboard's URL.

    `reason` is the scheduler's code for why it pends, such as ``Priority``, and `phase` the value of its `Phase`; the
    job with `job_id`, if it has an id yet, is the task's `attempt`, on that `node`.
    """

    message: str
    percent: int | None = None
    dashboard: str = ""
    phase: str = ""
    state: JobState | None = None
    reason: str = ""
    job_id: str | None = None
    attempt: int = 1
    node: str = ""


@dataclass(frozen=True)
class Limits:
    """How far a job may go: its attempts beside the first, what it may ask for at most, how long it may be silent.

    `max_uncharged` ends a series of submissions that are no attempts, such as those to failing nodes.
    """

    retries: int = 0
    memory_cap_bytes: int | None = None
    time_cap_minutes: int | None = None
    max_uncharged: int = 20
    stall_timeout_seconds: float | None = None


@dataclass(frozen=True)
class Terms:
    """How a scheduler's engine carries out an order.

    `run` is the run's name, which is part of the job's; `command` does the work, `pilot` that of a bundle's plan, whose
    path follows. `bundling` says with how many of its kind the job may go, `warning_seconds` how long before the end of
    so many minutes it gets a signal.
    """

    run: str = ""
    command: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    bundling: Bundling = field(default_factory=Bundling)
    pilot: tuple[str, ...] = ()
    warning_seconds: Callable[[int], int] = lambda minutes: 0


@dataclass(frozen=True)
class JobOrder:
    """All that an engine needs of one job; what the job itself needs of it is the order file.

    `id` tells it from the others of the run, `label` names it for people. `module`, `family`, `parameters` and
    `settings` say what is to be done, in the words of whoever does it, and `configuration` what else that depends on;
    `wildcards` are the parameters that identify it. `cluster` says where Dask's workers are if not all in the job:
    ``jobqueue``, as `workers` says, or ``allocation``, on all of its nodes. `preload` are modules to import once for
    all jobs. `beat_seconds` is how often it gives a sign of life while it gets on. `size` is how much there is to do,
    in a unit of the task's own, by which figures of other jobs are scaled; 0 if unknown. `is_complete` is called
    after the job has ended, `on_progress` whenever its standing changes. `terms` are a scheduler's engine's.
    """

    id: str
    label: str
    module: str
    family: str
    parameters: Mapping[str, str]
    wildcards: Mapping[str, str]
    resources: Resources
    files: JobFiles
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    configuration: str = ""
    options: JobOptions = field(default_factory=JobOptions)
    cluster: str = ""
    workers: WorkerJobs | None = None
    preload: tuple[str, ...] = ()
    beat_seconds: float = 2.0
    size: float = 0.0
    is_complete: Callable[[], bool] | None = None
    on_progress: Callable[[Standing], None] | None = None
    terms: Terms = field(default_factory=Terms)

    def write(self, **more: Any) -> None:
        """Write the order file, with what an engine has to add."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _NOT_THE_JOBS}
        values |= {"layout": LAYOUT, "version": this_version()}
        self.files.log.parent.mkdir(parents=True, exist_ok=True)
        parts = {name: asdict(getattr(self, name)) for name in ("resources", "files", "workers") if values[name]}
        write_json(self.files.order, values | parts | more)

    @classmethod
    def parsed(cls, values: Mapping[str, Any]) -> JobOrder:
        """Return the order that a file holds."""
        known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        files = JobFiles(**{name: Path(path) for name, path in values["files"].items()})
        workers = WorkerJobs(**values["workers"]) if values.get("workers") else None
        return cls(**known | {"resources": Resources(**values["resources"]), "files": files, "workers": workers})

    @classmethod
    def of_another_layout(cls, values: Mapping[str, Any]) -> JobOrder:
        """Return what an order says in any layout: whose it is, and where its result and its sign of life go."""
        files = {name: Path(values["files"].get(name, "")) for name in ("order", "result", "heartbeat", "log")}
        return cls("", values["label"], "", values["family"], {}, {}, Resources(), JobFiles(**files))

    def report(self, standing: Standing) -> None:
        """Call `on_progress` with where the job stands."""
        if self.on_progress is not None:
            self.on_progress(standing)


# Callbacks, what is in the scheduler's own script, and what was imported before the job began.
_NOT_THE_JOBS = ("options", "preload", "is_complete", "on_progress", "terms")


class Engine(Protocol):
    """Refuses orders that it cannot run, fits one to its room, runs it and returns its seconds, stops one, and ends."""

    def check(self, orders: Iterable[JobOrder]) -> None: ...

    def fitted(self, order: JobOrder) -> JobOrder: ...

    def run(self, order: JobOrder) -> float: ...

    def stop(self, order_id: str) -> None: ...

    def detach(self) -> None: ...

    def close(self) -> None: ...


def seconds_of(result: Mapping[str, Any]) -> float:
    """Return how long a job worked, from its result."""
    return float(result.get("ended", 0.0)) - float(result.get("started", 0.0))


def end_of_log(log: Path, lines: int = 20) -> str:
    """Return the last lines of a log, as far as they are of usual length; nothing of one that cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _BYTES_OF_A_LINE * lines, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def last_lines(text: str) -> str:
    """Return the last lines of a traceback or a log, each on a line of its own, to stand behind a message."""
    return "".join(f"\n    {line}" for line in text.strip().splitlines()[-12:])
