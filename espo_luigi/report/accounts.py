"""A scheduler's accounts of a run's jobs, combined with what these have counted themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from espo_luigi.jobs.bundles.model import array_of, shares_job
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.schedulers.base import Phase, Usage
from espo_luigi.jobs.schedulers.commands import Commands, CommandSettings
from espo_luigi.jobs.schedulers.known import SCHEDULERS
from espo_luigi.report.run import Job

_LONGEST_ANSWER_SECONDS = 30.0

# A job by its id and its name, as ids are used again.
Submissions = Mapping[tuple[str, str], Record]


def submissions(records: Iterable[Record]) -> Submissions:
    """Return the record of each job that was one task's alone, of earlier attempts too."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        for past in record.history:
            if past["job_id"] and not shares_job(past.get("bundle", "")):
                found[past["job_id"], array_of(past.get("bundle") or past["name"])] = record
        if record.job_id and not record.shares_job:
            found[record.job_id, array_of(record.job_name)] = record
    return found


def read_accounts(engine: str, known: Submissions) -> list[Usage]:
    """Return the scheduler's accounts of these jobs; none where it keeps none or does not answer."""
    if engine not in SCHEDULERS or not known:
        return []
    commands = Commands(SCHEDULERS[engine], CommandSettings(timeout_seconds=_LONGEST_ANSWER_SECONDS))
    ids, names = zip(*known, strict=True)
    said = commands.usage(dict.fromkeys(ids), dict.fromkeys(names))
    return [one for one in said or () if (one.job_id, one.name) in known and one.started and one.ended]


def accounted(jobs: Sequence[Job], known: Submissions, accounts: Sequence[Usage]) -> list[Job]:
    """Return the jobs, corrected by the accounts of them, and after them the runs that have left no result."""
    last = {account.job_id: account for account in sorted(accounts, key=lambda one: one.started)}
    own = {job.job_id for job in jobs}
    workers = {job.rule: job.n_workers for job in jobs}
    runs = [account for account in accounts if account.job_id not in own or account is not last[account.job_id]]
    without = [_without_result(one, known[one.job_id, one.name], workers) for one in runs]
    return [*(_corrected(job, last.get(job.job_id)) for job in jobs), *without]


def _corrected(job: Job, account: Usage | None) -> Job:
    """The job with the times, the node and the sizes of its account; memory is the larger, as both are samples."""
    if account is None:
        return job
    return replace(
        job,
        node=account.node or job.node,
        started=account.started,
        ended=account.ended,
        ordered=account.queued or job.ordered,
        cpus=account.cpus or job.cpus,
        memory_bytes=account.memory_bytes or job.memory_bytes,
        time_minutes=account.time_minutes or job.time_minutes,
        peak_memory_bytes=max(account.peak_memory_bytes, job.peak_memory_bytes),
        cpu_seconds=account.cpu_seconds or job.cpu_seconds,
        accounted=True,
    )


def _without_result(account: Usage, record: Record, workers: Mapping[str, int]) -> Job:
    return Job(
        rule=record.rule,
        node=account.node or "?",
        started=account.started,
        ended=account.ended,
        ordered=account.queued or None,
        succeeded=account.phase is Phase.COMPLETED,
        n_workers=workers.get(record.rule, 1),
        cpus=max(1, account.cpus),
        memory_bytes=account.memory_bytes or record.memory_bytes,
        time_minutes=account.time_minutes or record.time_minutes,
        peak_memory_bytes=account.peak_memory_bytes,
        cpu_seconds=account.cpu_seconds,
        job_id=account.job_id,
        accounted=True,
    )
