"""What people write about a rule's worker jobs (`worker_jobs = {"jobs": 10, …}`), as the value that its job takes.

The names are dask-jobqueue's (`cores`, `processes`, `memory`, `walltime`, `resource_spec`, `job_extra`, …), and those
of the scheduler's own options. All raise a `ConfigurationError`, whose message begins with `where`, for a wrong name or
value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from espo_luigi.driver.settings.espo import state_dir
from espo_luigi.driver.settings.sections import BatchSection
from espo_luigi.errors import ConfigurationError, SizingError
from espo_luigi.jobs.dask import Directive, WorkerJobs, WorkerTable, read_directive, read_resources
from espo_luigi.jobs.keys import keys_of, layered
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.resources import MIB, JobOptions, Resources
from espo_luigi.jobs.schedulers import SCHEDULERS

# What of a rule's options holds for any job of the user, on whatever partition.
_FOR_ANY_PARTITION = ("account", "project", "setup", "environment", "python", "scratch", "exclude")


WORKER_KEYS = keys_of(WorkerJobs, WorkerTable)


def worker_table(section: BatchSection, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the table of worker jobs, merged from the profile, luigi.cfg's section, and the caller's own tables.

    A later table overrides an earlier one, name by name.
    """
    name = type(section).__name__
    of_profile = section.profile_called(section.profile).settings.get("worker_jobs", {})
    of_section = section.worker_jobs if "worker_jobs" in section.given() else {}
    layers = {f"[{name}] profile = {section.profile}": of_profile, f"[{name}] worker_jobs": of_section, **own}
    return layered({**keys_of(section.options), **WORKER_KEYS}, layers)


def workers_of(
    section: BatchSection,
    where: str,
    table: Mapping[str, Any],
    resources: Resources,
    options: JobOptions,
    rule: str,
    wildcards: Mapping[str, str],
) -> WorkerJobs:
    """Return the worker jobs, which share `resources`, of a rule (or of what else logs by that name)."""
    scheduler, logs = type(section).__name__, str(Path(section.log_dir).absolute() / "workers")
    values: dict[str, Any] = {
        "jobs": resources.n_workers,
        "cores": resources.threads_per_worker,
        "memory_bytes": resources.memory_bytes // resources.n_workers // MIB * MIB,
        "walltime_minutes": resources.time_minutes,
        **{one.field: table[name] for name, one in keys_of(WorkerJobs).items() if name in table},
    }
    chosen = asdict(options) | {name: table[name] for name in asdict(options) if name in table}
    if "virtual_env" in table:
        chosen["python"] = f"{table['virtual_env']}/bin/python"
    if "queue" in table and "queue" not in chosen:
        chosen["partition"] = table["queue"]
    lines: list[Any] = [(f"job_extra: {line!r}", read_directive, line) for line in table.get("job_extra", ())]
    if text := table.get("resource_spec"):
        lines.append(("resource_spec", read_resources, text))
    for name, read, line in lines:
        try:
            _take(read(scheduler, line, chosen), chosen, values)
        except (ValueError, SizingError) as error:
            raise ConfigurationError(f"{where}: {name}: {error}") from error
    if "n" in table:
        values["jobs"] = math.ceil(table["n"] / values.get("processes", 1))
    return WorkerJobs(
        scheduler=scheduler,
        workdir=str(Path.cwd()),
        log_pattern=SCHEDULERS[scheduler].log_pattern(logs, rule, wildcards),
        folder=str(state_dir() / "dask"),
        options=chosen,
        memory_cap_bytes=section.batch_settings().memory_cap_bytes,
        **values,
    )


def _take(asked: Directive, options: dict[str, Any], values: dict[str, Any]) -> None:
    """Add a directive's request to the options, and its amounts to the values."""
    options.update(asked.options)
    values |= {"job_cpu": asked.cpus} if asked.cpus else {}
    values |= {"walltime_minutes": asked.time_minutes} if asked.time_minutes else {}
    slots = max(values["cores"], values.get("job_cpu", 0)) if asked.per_slot else 1
    values |= {"job_mem_bytes": asked.memory_bytes // MIB * MIB * slots} if asked.memory_bytes else {}


def with_cluster(order: JobOrder, section: BatchSection, kind: str, own: Mapping[str, Any]) -> JobOrder:
    """Return the order of a rule whose Dask workers are in jobs of their own, or on several nodes."""
    nodes = getattr(order.options, "nodes", None)
    if kind == "allocation":
        if not hasattr(order.options, "nodes"):
            raise ConfigurationError(f"{order.label}: cluster = allocation is Slurm's; expected cluster = jobqueue")
        if not (nodes or "").isdecimal() or nodes == "0":
            expected = f"cluster = allocation: nodes = {nodes!r}; expected a number, such as 4"
            raise ConfigurationError(f"{order.label}: {expected}")
        return replace(order, cluster=kind)
    if nodes not in (None, "1"):
        raise ConfigurationError(f"{order.label}: nodes = {nodes} is of use with cluster = allocation only")
    if kind != "jobqueue":
        return order
    table, where = worker_table(section, {f"[{order.family}] worker_jobs": own}), f"{order.label}: worker_jobs"
    workers = workers_of(section, where, table, order.resources, order.options, order.family, order.wildcards)
    resources, options = scheduler_job(section, table, order.resources, order.options)
    return replace(order, cluster=kind, workers=asdict(workers), resources=resources, options=options)


def scheduler_job(
    section: BatchSection, table: Mapping[str, Any], resources: Resources, options: JobOptions
) -> tuple[Resources, JobOptions]:
    """Return the resources and the options of the job of Dask's scheduler, on the partition of its own profile."""
    chosen = table.get("scheduler_profile", "")
    profile = section.profile_called(chosen)
    memory = table.get("scheduler_memory") or profile.settings.get("memory", "")
    time = table.get("scheduler_time") or profile.settings.get("time", "") or resources.time
    asked = Resources(memory=memory, time=time).completed()
    kept = {name: value for name, value in asdict(options).items() if name in _FOR_ANY_PARTITION and value}
    return asked, type(options)(**{**profile.options, **kept}) if chosen else options
