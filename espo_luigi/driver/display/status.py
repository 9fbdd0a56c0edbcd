"""How a run stands, from what its driver wrote: as a value, cut to fit a screen, and as lines of text."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espo_luigi.jobs.lifecycle.records import read_json
from espo_luigi.jobs.schedulers.base import Phase
from espo_luigi.jobs.schedulers.known import SCHEDULERS

RUNNING, PENDING, WAITING = "running", "pending", "waiting"
# What a scheduler's state means, where there is one.
_BY_PHASE = {
    Phase.PENDING.value: PENDING,
    Phase.SUSPENDED.value: PENDING,
    Phase.RUNNING.value: RUNNING,
    Phase.LEAVING.value: RUNNING,
}
# Else, words with which a message begins of a job that was submitted and does not run yet.
_PENDING = re.compile(r"(submitting|submitted)\b")
_WAITING = re.compile(r"(waiting|planned)\b")
_REASON = re.compile(r"(\w+) \(((\w+)[^)]*)\)")
LONGEST = 5
_SHOWN_FAILURES = 5
# Lines of a job's message: where it is, and what Dask has to do; not how to reach the dashboard.
_SHOWN_LINES = 2
# A driver writes every two seconds; one that has not for so long is gone, or hangs.
_SILENT_SECONDS = 60.0
_NOTHING = {"refused": "nothing was started"}
# The lists of a standing, and their titles.
TITLES = {"longest": "longest at work:", "pending": "pending:", "failed": "failed:"}


def is_alive(state: Mapping[str, Any]) -> bool:
    """Whether the driver that writes this state, which `board.read_state` has read, is at work."""
    return bool(state) and not state["ended"] and state["silent_seconds"] < _SILENT_SECONDS


@dataclass(frozen=True)
class RuleRow:
    """One rule's tasks: how many there are, where they stand, and what those that ended took."""

    name: str
    total: int
    done: int
    running: int
    pending: int
    waiting: int
    failed: int
    core_hours: float

    @property
    def is_at_work(self) -> bool:
        """Whether anything of it is begun and not done, or has failed."""
        return bool(self.running or self.pending or self.waiting or self.failed or 0 < self.done < self.total)


@dataclass(frozen=True)
class Standing:
    """What is shown of a run: one line, its rules, its longest jobs, what pends and why, what failed (last first).

    `folded` are lines in the place of rules that are not listed one by one.
    """

    summary: str
    rules: Sequence[RuleRow]
    folded: Sequence[str]
    longest: Sequence[str]
    pending: Sequence[str]
    failed: Sequence[str]

    def parts(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield the lists that are not empty, by name."""
        yield from ((name, lines) for name in TITLES if (lines := getattr(self, name)))

    @property
    def height(self) -> int:
        """How many lines it takes."""
        return 3 + len(self.rules) + len(self.folded) + sum(2 + len(lines) for _, lines in self.parts())


def standing_of(state: Mapping[str, Any], now: float, most_failures: int = _SHOWN_FAILURES) -> Standing:
    """Return how a run stands that has this state; `now` is by the clock of its driver's host."""
    jobs = list(state["jobs"].values())
    counts = Counter((job["rule"], _standing(job)) for job in jobs)
    return Standing(
        summary_line(state, now),
        [_row(name, rule, counts) for name, rule in state["rules"].items()],
        [],
        list(_longest([job for job in jobs if _standing(job) == RUNNING], now)),
        list(_pending([job for job in jobs if _standing(job) == PENDING], state["engine"])),
        list(_failures(state["failures"], most_failures)),
    )


def _standing(job: Mapping[str, Any]) -> str:
    return standing(job["message"], job.get("phase", ""))


def standing(message: str, phase: str = "") -> str:
    """Return where a job stands, from its phase, or from its message where it has none."""
    if phase in _BY_PHASE:
        return _BY_PHASE[phase]
    return WAITING if _WAITING.match(message) else PENDING if _PENDING.match(message) else RUNNING


def fitted(found: Standing, lines: int) -> Standing:
    """Return what fits so many lines: first the rules that are not at work are folded, then lists become shorter."""
    if found.height <= lines:
        return found
    found = _folded(found)
    while found.height > lines:
        longest = max(TITLES, key=lambda name: len(getattr(found, name)))
        if len(getattr(found, longest)) < 2:
            break
        found = replace(found, **{longest: getattr(found, longest)[:-1]})
    return found


def _folded(found: Standing) -> Standing:
    done = [rule for rule in found.rules if not rule.is_at_work and rule.done]
    later = [rule for rule in found.rules if not rule.is_at_work and not rule.done]
    folded = [f"{said}: {_named(rules)}" for said, rules in (("done", done), ("to come", later)) if rules]
    return replace(found, rules=[rule for rule in found.rules if rule.is_at_work], folded=folded)


def _named(rules: Sequence[RuleRow]) -> str:
    count = sum(rule.total for rule in rules)
    return f"{count} task(s) of {', '.join(rule.name for rule in rules)}"


def status_lines(
    state: Mapping[str, Any], now: float | None = None, lines: int = 0, most_failures: int = _SHOWN_FAILURES
) -> list[str]:
    """Return the status of a run as text, cut to `lines` lines if there is such a number."""
    found = standing_of(state, time.time() if now is None else now, most_failures)
    return list(_as_text(fitted(found, lines) if lines else found))[: lines or None]


def _as_text(found: Standing) -> Iterator[str]:
    yield from (found.summary, "")
    yield f"{'rule':24}{'tasks':>8}{'done':>8}{'running':>9}{'pending':>9}{'waiting':>9}{'failed':>8}{'core-h':>10}"
    for rule in found.rules:
        at_work = "".join(f"{count or '-':>9}" for count in (rule.running, rule.pending, rule.waiting))
        counts = f"{rule.total:>8}{rule.done or '-':>8}{at_work}{rule.failed or '-':>8}"
        yield f"{rule.name:24}{counts}{rule.core_hours:>10.3g}"
    yield from found.folded
    for name, lines in found.parts():
        yield from ("", TITLES[name], *(f"  {line}" for line in lines))


def summary_line(state: Mapping[str, Any], now: float) -> str:
    """Return one line: how much is done, and how long the rest may take."""
    rules = state["rules"].values()
    total, done, failed = (sum(rule[name] for rule in rules) for name in ("total", "done", "failed"))
    by_standing = Counter(_standing(job) for job in state["jobs"].values())
    at_work = ", ".join(f"{by_standing[name]} {name}" for name in (RUNNING, PENDING, WAITING) if by_standing[name])
    hours = sum(rule["core_hours"] for rule in rules)
    left = seconds_left(state, now)
    parts = [
        f"{done} of {total} done" if total else _NOTHING.get(state.get("outcome", ""), "nothing to do"),
        at_work,
        f"{failed} FAILED" if failed else "",
        f"{hours:.3g} core-hours" if total else "",
        f"about {duration(left)} left" if left and not state["ended"] else "",
    ]
    # The name last: it may be long, and a terminal may cut it.
    return f"{', '.join(part for part in parts if part)}: {state['root'] or 'run'}"


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


def _row(name: str, rule: Mapping[str, Any], counts: Mapping[tuple[str, str], int]) -> RuleRow:
    running, pending, waiting = (counts.get((name, where), 0) for where in (RUNNING, PENDING, WAITING))
    total, done, failed = rule["total"], rule["done"], rule["failed"]
    return RuleRow(name, total, done, running, pending, waiting, failed, rule["core_hours"])


def _longest(jobs: list[Any], now: float) -> Iterator[str]:
    for job in sorted(jobs, key=_begun)[:LONGEST]:
        beat = read_json(Path(job["heartbeat"])) or {}
        # Each by the clock of its own host; the job began before this driver did, if that has taken it over.
        seconds = max(now - _begun(job), seconds_at_work(beat))
        # The name last: it is the longest, and a terminal may cut it.
        said = ", ".join([duration(seconds), *job["message"].splitlines()[:_SHOWN_LINES]])
        yield f"{said}: {job.get('words') or job['label']}"


def seconds_at_work(beat: Mapping[str, Any]) -> float:
    """Return how long a job had worked when it wrote this sign of life; 0 where it does not say so."""
    return float(beat["time"]) - float(beat["started"]) if beat.get("started") else 0.0


def _begun(job: Mapping[str, Any]) -> float:
    return float(job.get("running_since") or job["since"])


def _pending(jobs: list[Any], engine: str) -> Iterator[str]:
    found = (_REASON.match(job["message"]) for job in jobs)
    reasons = Counter(_said(match, engine) for match in found if match)
    for reason, count in reasons.most_common():
        yield f"{count} job(s), {reason}"
    # Behind the first line: which nodes the scheduler itself took out of use.
    yield from dict.fromkeys(line for job in jobs for line in job["message"].splitlines()[1:])


def _said(found: re.Match[str], engine: str) -> str:
    words = SCHEDULERS[engine].in_words(found[3]) if engine in SCHEDULERS else ""
    return f"{found[3]}: {words}" if words else f"{found[1]}: {found[2]}"


def _failures(failures: Mapping[str, str], most: int) -> Iterator[str]:
    yield from list(failures.values())[: -most - 1 : -1]
    if len(failures) > most:
        yield f"and {len(failures) - most} before"


def duration(seconds: float) -> str:
    """Return seconds as people write them: ``45 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
