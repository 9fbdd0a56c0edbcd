"""What people write about a rule's worker jobs (`worker_jobs = {"jobs": 10, …}`), as the value that its job takes.

The names are dask-jobqueue's (`cores`, `processes`, `memory`, `walltime`, `resource_spec`, `job_extra`, …), and those
of the scheduler's own options. All raise a `ConfigurationError`, whose message begins with `where`, for a wrong name or
value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from espo_luigi.driver.settings.espo import state_dir
from espo_luigi.driver.settings.profile import as_options, as_text
from espo_luigi.driver.settings.sections import BatchSection
from espo_luigi.errors import ConfigurationError, SizingError
from espo_luigi.jobs.dask.jobs import Directive, WorkerJobs, read_directive, read_resources
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.resources import JobOptions, Resources, parse_memory, render_memory
from espo_luigi.jobs.schedulers import SCHEDULERS

_NUMBERS = ("jobs", "n", "minimum_jobs", "maximum_jobs", "cores", "job_cpu", "processes", "death_timeout")
_TEXTS = ("memory", "job_mem", "walltime", "wait_for_workers", "idle_timeout", "interface")
_TRANSLATED = ("queue", "resource_spec", "job_extra", "virtual_env")
# Of the job that holds Dask's scheduler.
SCHEDULER_NAMES = ("scheduler_profile", "scheduler_memory", "scheduler_time")
# What of a rule's options holds for any job of the user, on whatever partition.
_FOR_ANY_PARTITION = ("account", "project", "setup", "environment", "python", "scratch", "exclude")


def known_names(options: type[JobOptions]) -> list[str]:
    """Return all names that a table of worker jobs may hold."""
    return sorted({*_NUMBERS, *_TEXTS, *_TRANSLATED, *SCHEDULER_NAMES, *(one.name for one in fields(options))})


def merged(options: type[JobOptions], layers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge tables, given by their places: a later table overrides an earlier one, name by name."""
    table: dict[str, Any] = {}
    for where, layer in layers.items():
        if unknown := set(layer) - set(known_names(options)):
            raise ConfigurationError(
                f"{where}: unknown {', '.join(sorted(unknown))}; expected some of: {', '.join(known_names(options))}"
            )
        table |= layer
    return table


def worker_jobs(
    where: str, scheduler: str, table: Mapping[str, Any], resources: Resources, options: JobOptions, **places: Any
) -> WorkerJobs:
    """Return the worker jobs of a rule. The workers share `resources`; the jobs have `options` of `scheduler`.

    `places` are the fields of `WorkerJobs` that users do not set.
    """
    texts = {name: as_text(name, table[name], where) for name in (*_NUMBERS, *_TEXTS) if name in table}
    values: dict[str, Any] = {
        "jobs": resources.n_workers,
        "cores": resources.threads_per_worker,
        "memory": _share(resources),
        "walltime": resources.time,
        **{name: _number(where, name, text) if name in _NUMBERS else text for name, text in texts.items()},
    }
    n = values.pop("n", None)
    chosen = asdict(options) | as_options({name: table[name] for name in asdict(options) if name in table}, where)
    if "virtual_env" in table:
        chosen["python"] = f"{as_text('virtual_env', table['virtual_env'], where)}/bin/python"
    if "queue" in table and "queue" not in asdict(options):
        chosen["partition"] = as_text("queue", table["queue"], where)
    for line in _lines(where, table.get("job_extra", ())):
        _take(f"{where}: job_extra: {line!r}", partial(read_directive, scheduler), line, chosen, values)
    if text := as_text("resource_spec", table.get("resource_spec", ""), where):
        _take(f"{where}: resource_spec", partial(read_resources, scheduler), text, chosen, values)
    if n is not None:
        values["jobs"] = math.ceil(n / values.get("processes", 1))
    return WorkerJobs(scheduler=scheduler, options=chosen, **values, **places)


def _share(resources: Resources) -> str:
    return (
        resources.memory if resources.n_workers == 1 else render_memory(resources.memory_bytes // resources.n_workers)
    )


def _number(where: str, name: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigurationError(f"{where}: {name} = {text!r}; expected a whole number")
    return int(text)


def _lines(where: str, value: Any) -> list[str]:
    if isinstance(value, Mapping) or not isinstance(value, (str, Sequence)):
        raise ConfigurationError(f"{where}: job_extra is {value!r}, expected a list such as ['--reservation=name']")
    return [value] if isinstance(value, str) else [as_text("job_extra", one, where) for one in value]


def _take(
    where: str,
    read: Callable[[str, Mapping[str, Any]], Directive],
    text: str,
    options: dict[str, Any],
    values: dict[str, Any],
) -> None:
    """Add a directive's request to the options, and its amounts to the values."""
    try:
        asked = read(text, options)
        options.update(asked.options)
        if asked.cpus is not None:
            values["job_cpu"] = _number(where, "CPUs", asked.cpus)
        if asked.time is not None:
            values["walltime"] = asked.time
        if asked.memory is not None:
            slots = max(values["cores"], values.get("job_cpu", 0)) if asked.per_slot else 1
            values["job_mem"] = render_memory(parse_memory(asked.memory) * slots)
    except (ValueError, SizingError) as error:
        raise ConfigurationError(f"{where}: {error}") from error


def scheduler_options(options: JobOptions, profile: Mapping[str, Any]) -> JobOptions:
    """Return the options of the job of Dask's scheduler, on the partition that a `profile` describes."""
    kept = {name: value for name, value in asdict(options).items() if name in _FOR_ANY_PARTITION and value}
    return type(options)(**{**as_options(profile, "scheduler_profile"), **kept})


def with_cluster(order: JobOrder, section: BatchSection | None, kind: str, own: Mapping[str, Any]) -> JobOrder:
    """Return the order of a rule whose Dask workers are not (all) in its job: in jobs of their own, or on more nodes.

    The local engine's jobs always compute by themselves.
    """
    if section is None:
        return order
    nodes = getattr(order.options, "nodes", None)
    if kind != "allocation" and nodes not in (None, "1"):
        raise ConfigurationError(f"{order.label}: nodes = {nodes} is of use with cluster = allocation only")
    if kind == "allocation":
        return _on_nodes(order, nodes)
    return _with_worker_jobs(order, section, own) if kind == "jobqueue" else order


def _on_nodes(order: JobOrder, nodes: str | None) -> JobOrder:
    if not hasattr(order.options, "nodes"):
        raise ConfigurationError(f"{order.label}: cluster = allocation is Slurm's; expected cluster = jobqueue")
    if not (nodes or "").isdecimal() or nodes == "0":
        raise ConfigurationError(
            f"{order.label}: cluster = allocation: nodes = {nodes!r}; expected a number, such as 4"
        )
    return replace(order, cluster="allocation")


def _with_worker_jobs(order: JobOrder, section: BatchSection, own: Mapping[str, Any]) -> JobOrder:
    table, where = worker_table(section, {f"[{order.family}] worker_jobs": own}), f"{order.label}: worker_jobs"
    workers = workers_of(section, where, table, order.resources, order.options, order.family, order.wildcards)
    resources, options = scheduler_job(section, table, order.resources, order.options)
    return replace(order, cluster="jobqueue", workers=asdict(workers), resources=resources, options=options)


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
    name, logs = type(section).__name__, str(Path(section.log_dir).absolute() / "workers")
    return worker_jobs(
        where,
        name,
        table,
        resources,
        options,
        workdir=str(Path.cwd()),
        log_pattern=SCHEDULERS[name].log_pattern(logs, rule, wildcards),
        folder=str(state_dir() / "dask"),
        memory_cap_bytes=section.batch_settings().memory_cap_bytes,
    )


def worker_table(section: BatchSection, own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the table of worker jobs, merged from the profile, luigi.cfg's section, and the caller's own tables."""
    name = type(section).__name__
    of_profile = json.loads(section.profile_called(section.profile).settings.get("worker_jobs", "{}"))
    of_section = section.worker_jobs if "worker_jobs" in section.given() else {}
    layers = {f"[{name}] profile = {section.profile}": of_profile, f"[{name}] worker_jobs": of_section, **own}
    return merged(section.options, layers)


def scheduler_job(
    section: BatchSection, table: Mapping[str, Any], resources: Resources, options: JobOptions
) -> tuple[Resources, JobOptions]:
    """Return the resources and the options of the job of Dask's scheduler."""
    texts = {name: as_text(name, table.get(name, ""), "worker_jobs") for name in SCHEDULER_NAMES}
    profile = section.profile_called(texts["scheduler_profile"])
    memory = texts["scheduler_memory"] or profile.settings.get("memory", "")
    time = texts["scheduler_time"] or profile.settings.get("time", "") or resources.time
    asked = Resources(memory=memory, time=time).completed()
    return asked, scheduler_options(options, profile.options) if texts["scheduler_profile"] else options
