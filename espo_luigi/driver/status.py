"""How a run stands, as lines of text, from what its driver wrote."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from espo_luigi.jobs.slurm_reasons import in_plain_words

RUNNING, PENDING, WAITING = "running", "pending", "waiting"
# Words with which a message begins of a job that was submitted and does not run yet.
_PENDING = re.compile(r"(PENDING|CONFIGURING|REQUEUED?\w*|qw|hqw|submitting|submitted)\b")
_WAITING = re.compile(r"(waiting|planned)\b")
_REASON = re.compile(r"PENDING \((\w+)")
LONGEST = 5
_SHOWN_FAILURES = 5
# Of a job's message: where it is, and what Dask has to do; not how to reach the dashboard.
_SHOWN_LINES = 2
# A driver writes every two seconds; one that has not for so long is gone, or hangs.
SILENT_SECONDS = 60.0


def standing(message: str) -> str:
    """Return where a job stands, from its message."""
    return WAITING if _WAITING.match(message) else PENDING if _PENDING.match(message) else RUNNING


def status_lines(state: Mapping[str, Any], now: float | None = None) -> list[str]:
    """Return the status of a run: its tasks by rule, its longest jobs, what pends and why, what failed."""
    now = time.time() if now is None else now
    jobs = list(state["jobs"].values())
    counts = Counter((job["rule"], standing(job["message"])) for job in jobs)
    return [
        summary_line(state, now),
        "",
        *_table(state["rules"], counts),
        *_longest([job for job in jobs if standing(job["message"]) == RUNNING], now),
        *_pending(jobs),
        *_failures(state["failures"]),
    ]


def summary_line(state: Mapping[str, Any], now: float) -> str:
    """Return one line: how much is done, and how long the rest may take."""
    rules = state["rules"].values()
    total, done, failed = (sum(rule[name] for rule in rules) for name in ("total", "done", "failed"))
    by_standing = Counter(standing(job["message"]) for job in state["jobs"].values())
    at_work = ", ".join(f"{by_standing[name]} {name}" for name in (RUNNING, PENDING, WAITING) if by_standing[name])
    hours = sum(rule["core_hours"] for rule in rules)
    left = seconds_left(state, now)
    parts = [
        f"{state['root'] or 'run'}: {done} of {total} done",
        at_work,
        f"{failed} FAILED" if failed else "",
        f"{hours:.3g} core-hours",
        f"about {duration(left)} left" if left and not state["ended"] else "",
    ]
    return ", ".join(part for part in parts if part)


def seconds_left(state: Mapping[str, Any], now: float) -> float:
    """Return about how long the rest takes at the pace so far; 0 where nothing has ended yet."""
    rules = state["rules"].values()
    seconds, done = (sum(rule[name] for rule in rules) for name in ("seconds", "done"))
    if not done or not seconds:
        return 0.0
    left = sum(
        (rule["total"] - rule["done"] - rule["failed"])
        * (rule["seconds"] / rule["done"] if rule["done"] else seconds / done)
        for rule in rules
    )
    at_once = seconds / max(now - state["started"], 1.0)
    return float(left / max(at_once, 1e-9))


def _table(rules: Mapping[str, Any], counts: Mapping[tuple[str, str], int]) -> Iterator[str]:
    yield f"{'rule':24}{'tasks':>8}{'done':>8}{'running':>9}{'pending':>9}{'waiting':>9}{'failed':>8}{'core-h':>10}"
    for name, rule in rules.items():
        at_work = (counts.get((name, where), 0) for where in (RUNNING, PENDING, WAITING))
        cells = "".join(f"{count or '-':>9}" for count in at_work)
        yield (
            f"{name:24}{rule['total']:>8}{rule['done'] or '-':>8}{cells}{rule['failed'] or '-':>8}"
            f"{rule['core_hours']:>10.3g}"
        )


def _longest(jobs: list[Any], now: float) -> Iterator[str]:
    if jobs:
        yield from ("", "longest at work:")
    for job in sorted(jobs, key=lambda job: job["since"])[:LONGEST]:
        # The name last: it is the longest, and a terminal may cut it.
        said = ", ".join([duration(now - job["since"]), *job["message"].splitlines()[:_SHOWN_LINES]])
        yield f"  {said}: {job['label']}"


def _pending(jobs: list[Any]) -> Iterator[str]:
    found = (_REASON.match(job["message"]) for job in jobs)
    reasons = Counter(match[1] for match in found if match)
    if reasons:
        yield from ("", "pending:")
    for reason, count in reasons.most_common():
        yield f"  {count} job(s), {reason}: {in_plain_words(reason)}"


def _failures(failures: Mapping[str, str]) -> Iterator[str]:
    if failures:
        yield from ("", "failed:")
    for reason in list(failures.values())[-_SHOWN_FAILURES:]:
        yield f"  {reason}"
    if len(failures) > _SHOWN_FAILURES:
        yield f"  and {len(failures) - _SHOWN_FAILURES} more"


def duration(seconds: float) -> str:
    """Return seconds as people say them: ``45 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
