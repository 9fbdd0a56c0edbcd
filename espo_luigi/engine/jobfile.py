"""What travels from the driver to a job and back: small JSON files, no pickles."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from luigi.configuration import get_config

from espo_luigi.cluster.records import write_atomically
from espo_luigi.cluster.resources import Resources
from espo_luigi.engine.settings import settings
from espo_luigi.engine.task import SlurmTask


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON beside `path` and rename it there, so that nobody ever reads half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(value, indent=1), durable=True)


@dataclass(frozen=True)
class JobFiles:
    """The files of one task's job: its order, its result, its sign of life and its log."""

    order: Path
    result: Path
    heartbeat: Path
    log: Path


def job_name(task: SlurmTask) -> str:
    """Return the deterministic name of a task's job: its wildcards, readable, and the hash of its parameters."""
    text = json.dumps([task.get_task_family(), task.wildcards], sort_keys=True)
    readable = re.sub(r"[^A-Za-z0-9_.+=,-]", "_", ",".join(f"{k}={v}" for k, v in task.wildcards.items()))[:120]
    return "-".join(part for part in (readable, hashlib.sha256(text.encode()).hexdigest()[:10]) if part)


def job_files(task: SlurmTask) -> JobFiles:
    """Return where the files of a task's job lie, below the run's work folder."""
    work, rule, name = Path(settings().workdir).absolute(), task.get_task_family(), job_name(task)
    jobs = work / "jobs" / rule
    return JobFiles(
        jobs / f"{name}.json",
        jobs / f"{name}.result.json",
        jobs / f"{name}.heartbeat.json",
        work / "logs" / rule / f"{rule}-{name}.out",
    )


def write_order(task: SlurmTask, resources: Resources, **extra: Any) -> JobFiles:
    """Write the order from which ``python -m espo_luigi.job`` rebuilds `task`."""
    files = job_files(task)
    configuration = get_config()
    order = {
        "module": task.task_module,
        "family": task.get_task_family(),
        "parameters": task.to_str_params() | {name: str(value) for name, value in asdict(resources).items()},
        "espo": settings().to_str_params(),
        "luigi": {section: dict(configuration.items(section, raw=True)) for section in configuration.sections()},
        "resources": asdict(resources),
        "result": str(files.result),
        "heartbeat": str(files.heartbeat),
    }
    files.log.parent.mkdir(parents=True, exist_ok=True)
    write_json(files.order, order | extra)
    return files


def seconds_of(result: Mapping[str, Any]) -> float:
    """Return how long a job worked, from its result."""
    return float(result.get("ended", 0.0)) - float(result.get("started", 0.0))


def last_lines(text: str) -> str:
    """Return the last lines of a traceback or a log, each on a line of its own, to stand behind a message."""
    return "".join(f"\n    {line}" for line in text.strip().splitlines()[-12:])
