"""Order and result of a job: the driver writes the order, a small JSON file, and the job answers with a result."""

from __future__ import annotations

import enum
import hashlib
import json
import os
import re
import shlex
import site
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from espo_luigi.files import this_version, write_atomically
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.resources import GIB, JobOptions, Resources

# Raise it when records, claims, orders, results or heartbeats change so that an older version would misread them.
# Whatever the layout, an order has `layout`, `version`, `label` and `files.result`, and a result has `outcome`,
# `exception` and `job_id`: by them, a job tells the driver that ordered it that it cannot read its order.
LAYOUT = 2
# The heartbeat of a young job is read more often, so that a job of seconds shows its progress.
_SHORTEST_SECONDS = 0.5
# Only the end of a log is read: this many bytes for each of the last lines.
_BYTES_OF_A_LINE = 1000
_RESULT = ".result.json"


class JobState(enum.StrEnum):
    """Where a job stands; the same codes in `run.json`, `espo status`, on the page and in records.

    ============ ====================================================================
    READY        to be submitted, or waiting for room on this machine
    SUBMITTING   handed to the scheduler, which has not confirmed it yet
    QUEUED       pending or suspended at the scheduler, or waiting for its turn in
                 a bundle
    RUNNING      at work
    MISSING      the scheduler answers and does not list it; a job that never
                 arrived is submitted anew
    CANCELLING   the driver has cancelled it and waits for its end
    ENDED        the scheduler has ended it; its result is awaited
    SUCCEEDED    an outcome: the driver does nothing more about the job
    FAILED       likewise, with a cause
    ============ ====================================================================

    A record is READY, SUBMITTING, QUEUED (confirmed by an id; it may run by now), SUCCEEDED or FAILED.
    """

    READY = "ready"
    SUBMITTING = "submitting"
    QUEUED = "queued"
    RUNNING = "running"
    MISSING = "missing"
    CANCELLING = "cancelling"
    ENDED = "ended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class ResultWord(enum.StrEnum):
    """How a job's work ended, as the entry ``outcome`` of its result says.

    ================================ ===============================================================
    SUCCESS                          the work is done
    ERROR                            an exception that would recur
    INPUT                            an input was gone or replaced
    CONFIGURATION                    the order is of another configuration or layout: nothing was done
    MEMORY, FILES                    no memory; a disk, a quota or a network file system failed
    WORKERS_LOST, no outcome         the scheduler's accounting tells the cause
    PREEMPTED, TIME_LIMIT, STOPPED   a signal told the job to end
    ================================ ===============================================================
    """

    SUCCESS = "success"
    ERROR = "error"
    INPUT = "input"
    CONFIGURATION = "configuration"
    MEMORY = "memory"
    FILES = "files"
    WORKERS_LOST = "workers lost"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time limit"
    STOPPED = "stopped"


# Why the work did not succeed, by the result's word. A signal to stop may be a requeue's, and tells no cause.
_CAUSES: Mapping[str, Cause] = {
    ResultWord.ERROR: Cause.EXCEPTION,
    ResultWord.INPUT: Cause.INPUT,
    ResultWord.CONFIGURATION: Cause.CONFIGURATION,
    ResultWord.FILES: Cause.FILES,
    ResultWord.MEMORY: Cause.MEMORY,
    ResultWord.PREEMPTED: Cause.PREEMPTED,
    ResultWord.TIME_LIMIT: Cause.TIMEOUT,
    ResultWord.WORKERS_LOST: Cause.CRASHED,
}
# Those of them that the job itself knows; the scheduler's word on a signal's reason or on lost workers is better.
OWN_CAUSES = frozenset({Cause.EXCEPTION, Cause.INPUT, Cause.CONFIGURATION, Cause.FILES, Cause.MEMORY})
# A job that ended so by itself would end so again.
_FINAL = frozenset({Cause.EXCEPTION, Cause.INPUT, Cause.CONFIGURATION})


def result_cause(result: Mapping[str, Any] | None) -> Cause | None:
    """Return why a job did not succeed, by its result; None after a success, or if the result does not tell."""
    return _CAUSES.get(str(result.get("outcome"))) if result else None


def is_final(result: Mapping[str, Any] | None) -> bool:
    """Return whether a job ended so that no further start of it makes sense, even if a site's queue starts it again.

    An error after a signal to end may be the signal's work.
    """
    return result is not None and result_cause(result) in _FINAL and not result.get("told_to_end")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as a durable JSON file that appears whole, and make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(value, indent=1, default=os.fspath), durable=True)


def label_of(family: str, wildcards: Mapping[str, str]) -> str:
    """Return a task's name for people: its family and its wildcards."""
    return " ".join([family, *(f"{name}={value}" for name, value in wildcards.items())])


@dataclass(frozen=True)
class JobFiles:
    """The files of one job: order, result, heartbeat, and the log of a job of the local engine."""

    order: Path
    result: Path
    heartbeat: Path
    log: Path

    @classmethod
    def of(cls, workdir: Path, family: str, wildcards: Mapping[str, str]) -> JobFiles:
        """Return the files of a task, named by its wildcards and a hash, below the run's work folder."""
        text = json.dumps([family, wildcards], sort_keys=True)
        readable = re.sub(r"[^A-Za-z0-9_.+=,-]", "_", ",".join(f"{k}={v}" for k, v in wildcards.items()))[:120]
        stem = "-".join(part for part in (readable, hashlib.sha256(text.encode()).hexdigest()[:10]) if part)
        return cls.at(jobs_folder(workdir) / family / f"{stem}.json")

    @classmethod
    def at(cls, path: Path) -> JobFiles:
        """Return the files of the job whose order, result or heartbeat is at `path`."""
        stem = path.name.removesuffix(_RESULT).removesuffix(".json")
        workdir, family = path.parents[2], path.parent.name
        jobs = jobs_folder(workdir) / family
        return cls(
            jobs / f"{stem}.json",
            jobs / f"{stem}{_RESULT}",
            # Apart from the results, since the driver lists those again and again.
            workdir / "heartbeats" / family / f"{stem}.json",
            workdir / "logs" / family / f"{family}-{stem}.out",
        )

    @property
    def claim(self) -> Path:
        """The claim of a job of the local engine; schedulers' jobs have theirs in the state folder."""
        return self.heartbeat.with_suffix(".claim")

    @property
    def workdir(self) -> Path:
        """The run's work folder."""
        return self.order.parents[2]


def extra_folders() -> list[str]:
    """Return the folders of `sys.path` that a job would miss, such as the work folder.

    A job runs with ``-P``; it has `PYTHONPATH` and the folders of the installation.
    """
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    own = [*installed, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    named = {os.path.abspath(entry) for entry in own}
    standard = os.path.dirname(sysconfig.get_path("stdlib")) + os.sep
    found = [os.path.abspath(entry) for entry in sys.path]
    return [entry for entry in dict.fromkeys(found) if entry not in named and not entry.startswith(standard)]


def jobs_folder(workdir: Path) -> Path:
    """Return the folder of orders and results, which has a subfolder for each rule."""
    return workdir / "jobs"


def order_files(workdir: Path, family: str = "") -> list[Path]:
    """Return the order files of a work folder, or only those of the rule `family`."""
    found = (jobs_folder(workdir) / family).rglob("*.json")
    return sorted(path for path in found if not path.name.endswith(_RESULT))


def result_files(workdir: Path) -> list[Path]:
    """Return the result files of a work folder."""
    return list(jobs_folder(workdir).glob(f"*/*{_RESULT}"))


def heartbeat_files(workdir: Path) -> list[Path]:
    """Return the heartbeat files of a work folder."""
    return list((workdir / "heartbeats").glob("*/*.json"))


@dataclass(frozen=True)
class Progress:
    """Where a job stands: a message of some lines, how many per cent are done if that is known, the dashboard's URL.

    `reason` is the scheduler's code for why it pends, such as ``Priority``. The job with `job_id`, if it has an id yet,
    is the task's `attempt`, on that `node`. `given` are its resources, if these are known only now.
    """

    message: str
    percent: int | None = None
    dashboard: str = ""
    state: JobState | None = None
    reason: str = ""
    job_id: str | None = None
    attempt: int = 1
    node: str = ""
    given: Resources | None = None


@dataclass(frozen=True)
class JobOrder:
    """One job, as engines take it; the order file holds the part that the job itself reads.

    - `id` is unique in the run, `label` is the name for people; `wildcards` are the parameters that identify the task.
    - `module`, `family`, `parameters` and `settings` let the job rebuild its task. `configuration` is a hash of the
      configuration: a job that finds a different one refuses to work.
    - `cluster` places Dask's workers: empty for the job's own process or node, ``jobqueue`` for jobs of their own,
      ``allocation`` for all nodes of the job. `workers` are the fields of `dask.WorkerJobs`.
    - `preload` are modules that the local engine imports once for all jobs.
    - `beat_seconds` is the pause between heartbeats of a job that makes progress. After `stack_after_seconds` without
      a heartbeat, the job writes its stack to its log (0: never).
    - `size` is the amount of work in a unit of the task, 0 if unknown; figures of earlier jobs are scaled by it.
    - `is_complete` is called after the job has ended, `on_progress` whenever its progress changes.
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
    workers: Mapping[str, Any] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    beat_seconds: float = 2.0
    stack_after_seconds: float = 0.0
    size: float = 0.0
    is_complete: Callable[[], bool] | None = None
    on_progress: Callable[[Progress], None] = lambda _: None

    def write(self, **more: Any) -> None:
        """Write the order file; `more` are entries of the engine."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _NOT_THE_JOBS}
        values |= {"layout": LAYOUT, "version": this_version()}
        self.files.log.parent.mkdir(parents=True, exist_ok=True)
        parts = {name: asdict(getattr(self, name)) for name in ("resources", "files")}
        write_json(self.files.order, values | parts | more)

    @classmethod
    def parsed(cls, values: Mapping[str, Any]) -> JobOrder:
        """Return the order from the entries of its file."""
        known = {one.name: values[one.name] for one in fields(cls) if one.name in values}
        files = JobFiles(**{name: Path(path) for name, path in values["files"].items()})
        return cls(**known | {"resources": Resources(**values["resources"]), "files": files})


# Left out of the file: callbacks, the scheduler's options, and modules that are imported before the job begins.
_NOT_THE_JOBS = ("options", "preload", "is_complete", "on_progress")


class Engine(Protocol):
    """Runs jobs: on this machine, as steps of an allocation, or through a scheduler."""

    def check(self, orders: Iterable[JobOrder]) -> None:
        """Raise an `EspoError` for an order that this engine cannot run."""

    def fitted(self, order: JobOrder) -> JobOrder:
        """Return the order with its resources cut to the room of this engine."""

    def run(self, order: JobOrder) -> Mapping[str, Any]:
        """Run the job, wait for its end, and return its result."""

    def cancel(self, order_id: str) -> None:
        """End the job of that order; the others go on."""

    def stop(self) -> None:
        """End all jobs, and start no further ones."""

    def detach(self) -> None:
        """Leave running jobs to the next driver, where they can outlive this one; else stop them."""

    def close(self) -> None:
        """End the engine's own threads and processes."""


def seconds_of(result: Mapping[str, Any]) -> float:
    """Return the duration of a job's work in seconds, from its result."""
    return float(result.get("ended", 0.0)) - float(result.get("started", 0.0))


def end_of_log(log: Path, lines: int = 20) -> str:
    """Return the last lines of a log, fewer if they are very long; an empty text if the log cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - _BYTES_OF_A_LINE * lines, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-lines:])


def between_beats(age: float, every_seconds: float) -> float:
    """Return how many seconds pass between two signs of life of a job that is `age` seconds old."""
    return min(every_seconds, max(_SHORTEST_SECONDS, age / 5))


def at_work(where: str, beat: Mapping[str, Any]) -> Progress:
    """Return ``job 1234 on n3, 43 %, 12.1 of 32 GiB``, what Dask has to do, and how to reach the dashboard."""
    percent, port = _number(beat, "percent"), _number(beat, "dashboard_port")
    url = f"http://127.0.0.1:{port}/status" if port else ""
    lines = [
        listed(where, f"{percent} %" if percent else "", _memory(beat) if beat else "starting"),
        str(beat.get("message", "")),
        f"Dashboard: {url}\nafter, where your browser is:\n{_tunnel(port, beat)}" if port else "",
    ]
    return Progress("\n".join(filter(None, lines)), percent if beat else None, url, state=JobState.RUNNING)


def done(result: Mapping[str, Any]) -> Progress:
    """Return where and how long the job worked, from its result, and the most memory that it took."""
    job = f"job {result['job_id']}" if result.get("job_id") else ""
    node = f"on {result['node']}" if result.get("node") else ""
    said = listed(f"{job} {node}".strip(), f"{seconds_of(result):.1f} s", _memory(result))
    return Progress(f"done: {said}", 100, state=JobState.SUCCEEDED)


def listed(*parts: str) -> str:
    """Return the parts that are not empty, as a list in words."""
    return ", ".join(filter(None, parts))


def _memory(said: Mapping[str, Any]) -> str:
    peak, asked = _number(said, "peak_memory_bytes"), _number(said, "memory_bytes")
    return f"{peak / GIB:.1f} of {asked / GIB:.3g} GiB" if peak and asked else ""


def _tunnel(port: int, beat: Mapping[str, Any]) -> str:
    here = socket.gethostname()
    node = str(beat.get("node") or here)
    through = [] if node == here else ["-J", here]
    return shlex.join(["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", *through, node])


def _number(said: Mapping[str, Any], name: str) -> int:
    """Return a number of a file of any version; 0 if the value is no number."""
    value = said.get(name)
    return int(value) if isinstance(value, (int, float)) else 0
