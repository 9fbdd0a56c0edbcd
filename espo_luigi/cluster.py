"""Dask on a cluster without a task: `session` gives a client whose workers are jobs of Slurm or Grid Engine."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from espo_luigi.driver.settings.espo import settings
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.driver.settings.worker_jobs import scheduler_job, worker_table, workers_of
from espo_luigi.errors import ConfigurationError, SubmissionError
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from distributed import Client

# The defaults of a session.
_DEFAULTS: Mapping[str, Any] = {"wait_for_workers": "1", "idle_timeout": "2 hours"}


@contextmanager
def session(
    *, engine: str = "slurm", profile: str = "", scheduler_in_job: bool = False, **options: Any
) -> Iterator[Client]:
    """Submit Dask workers as jobs, and yield a `distributed.Client` once enough workers have come.

    At any end, all jobs of the session are cancelled; if this process is killed, they end by themselves.

    Parameters
    ----------
    engine
        The scheduler: ``"slurm"`` or ``"sge"``.
    profile
        Name or path of the cluster's profile; by default luigi.cfg's. Its limits hold here.
    scheduler_in_job
        Whether Dask's scheduler runs in a separate job (`scheduler_profile`, `scheduler_memory`, `scheduler_time`)
        rather than in this process.
    options
        The keys of luigi.cfg's ``worker_jobs``: ``jobs``, ``cores``, ``processes``, ``memory``, ``walltime``,
        ``minimum_jobs``, ``maximum_jobs``, ``wait_for_workers`` (a number, or per cent: ``"50%"``; 0: none),
        ``idle_timeout``, ``virtual_env``, and the scheduler's options (``account``, ``partition``, …).

    Raises
    ------
    SubmissionError
        If the request exceeds the profile's limits, before anything is submitted.
    JobError
        If the cluster refuses the jobs, or if none of them begins to work.
    """
    if engine not in SECTIONS:
        raise ConfigurationError(f"engine = {engine!r}; expected one of: {', '.join(SECTIONS)}")
    section = SECTIONS[engine](**({"profile": str(profile)} if profile else {}))
    table = {**_DEFAULTS, **worker_table(section, {"session": options})}
    resources, site = Resources().completed(section.memory, section.time), section.site()
    workers = workers_of(section, "session", table, resources, section.options_of({}, {}), "session", {})
    workers.check("session")
    if refusals := [*site.missing(workers.job_options), *workers.refusals(site)]:
        raise SubmissionError(f"session: {'; '.join(refusals)}")
    scheduler = SCHEDULERS[engine]
    if shutil.which(scheduler.SUBMIT) is None:
        raise SubmissionError(f"session: there is no {scheduler.SUBMIT} here: {scheduler.NAME} is needed")
    owner = f"espo-session.{secrets.token_hex(4)}"
    from espo_luigi.jobs.dask.jobqueue import jobqueue_session, remote_session  # Dask takes long to import

    if scheduler_in_job:
        asked, of_scheduler = scheduler_job(section, table, resources, workers.job_options)
        called = {name: f"scheduler_{name}" for name in ("memory", "time")}
        if refusals := site.exceeded(called, memory=asked.memory_bytes, time=asked.time_minutes):
            raise SubmissionError(f"session: {'; '.join(refusals)}")
        opened = remote_session(workers, owner, asked, of_scheduler)
    else:
        opened = jobqueue_session(workers, owner, dashboard=settings().dashboard)
    with opened as client:
        if workers.workers_to_wait_for:
            client.wait_for_workers(workers.workers_to_wait_for)
        yield client
