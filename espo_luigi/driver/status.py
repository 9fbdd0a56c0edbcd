"""How a run stands: a value made from `run.json`, which a screen shows in part and `espo status` as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espo_luigi.errors import Failure
from espo_luigi.files import read_json
from espo_luigi.jobs.order import JobState
from espo_luigi.jobs.schedulers import SCHEDULERS

RUNNING, PENDING, WAITING = "running", "pending", "waiting"
# The column that counts a job, by its state. A job that is missing or being cancelled stays where it was.
COLUMNS: Mapping[JobState, str] = {
    JobState.READY: WAITING,
    **dict.fromkeys((JobState.SUBMITTING, JobState.QUEUED), PENDING),
    **dict.fromkeys((JobState.RUNNING, JobState.ENDED, JobState.SUCCEEDED, JobState.FAILED), RUNNING),
}
LONGEST = 5
SHOWN_FAILURES = 5
# A job's message begins with its place and with Dask's work; then follows how to reach the dashboard.
_SHOWN_LINES = 2
# A driver writes every two seconds. After so much silence it is gone or hangs.
_SILENT_SECONDS = 60.0


def is_alive(state: Mapping[str, Any]) -> bool:
    """Return whether the driver is at work that wrote this state (of `board.read_state`)."""
    return bool(state) and not state["ended"] and state["silent_seconds"] < _SILENT_SECONDS


@dataclass(frozen=True)
class RunStatus:
    """The parts of a display: a summary, rules, and lists by title: the longest jobs, why jobs pend, failures.

    A rule has the values of `board.Rule`, and a count for each column. `folded` are the lines that stand for rules
    without a row. Failures begin with the last. No list is empty.
    """

    summary: str
    rules: Mapping[str, Mapping[str, Any]]
    lists: Mapping[str, Sequence[str]]
    folded: Sequence[str] = ()

    @property
    def height(self) -> int:
        """The number of lines that the whole status takes."""
        return 3 + len(self.rules) + len(self.folded) + sum(2 + len(lines) for lines in self.lists.values())


def status_of(state: Mapping[str, Any], now: float, most_failures: int = SHOWN_FAILURES) -> RunStatus:
    """Return the status of a run from its state; `now` is by the clock of the driver's host."""
    by_column: dict[str, list[Any]] = {RUNNING: [], PENDING: [], WAITING: []}
    for job in state["jobs"].values():
        by_column[job["column"]].append(job)
    counts = {column: Counter(job["rule"] for job in jobs) for column, jobs in by_column.items()}
    rules = {
        name: {**rule, **{column: count[name] for column, count in counts.items()}}
        for name, rule in state["rules"].items()
    }
    lists = {
        "longest at work": list(_longest(by_column[RUNNING], now)),
        "pending": list(_pending(by_column[PENDING], state["engine"])),
        "failed": list(_failures(failures_in(state).values(), most_failures)),
    }
    return RunStatus(summary_line(state, now), rules, {title: lines for title, lines in lists.items() if lines})


def fitted(found: RunStatus, lines: int) -> RunStatus:
    """Return a status of at most so many lines: first idle rules are folded, then the lists are shortened."""
    if found.height <= lines:
        return found
    # Rules that have begun and are unfinished, or have failed tasks.
    at_work = {
        name: rule
        for name, rule in found.rules.items()
        if any(rule[key] for key in (RUNNING, PENDING, WAITING, "failed")) or 0 < rule["done"] < rule["total"]
    }
    idle: dict[str, dict[str, int]] = {"done": {}, "to come": {}}
    for name, rule in found.rules.items():
        if name not in at_work:
            idle["done" if rule["done"] else "to come"][name] = rule["total"]
    folded = [f"{title}: {sum(of.values())} task(s) of {', '.join(of)}" for title, of in idle.items() if of]
    found = replace(found, rules=at_work, folded=folded)
    while found.height > lines and any(len(shown) > 1 for shown in found.lists.values()):
        longest = max(found.lists, key=lambda title: len(found.lists[title]))
        found = replace(found, lists={**found.lists, longest: found.lists[longest][:-1]})
    return found


def summary_line(state: Mapping[str, Any], now: float) -> str:
    """Return a line: how much is done, and about how long the rest takes."""
    rules = state["rules"].values()
    total, done, failed = (sum(rule[name] for rule in rules) for name in ("total", "done", "failed"))
    by_column = Counter(job["column"] for job in state["jobs"].values())
    at_work = ", ".join(f"{by_column[name]} {name}" for name in (RUNNING, PENDING, WAITING) if by_column[name])
    hours, used = sum(rule["core_hours"] for rule in rules), sum(map(cpu_seconds, rules)) / 3600
    left, refused = seconds_left(state, now), state.get("outcome") == "refused"
    parts = [
        f"{done} of {total} done" if total else f"nothing {'was started' if refused else 'to do'}",
        at_work,
        f"{failed} FAILED" if failed else "",
        f"{cpu_time(used)} of CPU time of {cpu_time(hours)} reserved" if total else "",
        f"about {duration(left)} left" if left and not state["ended"] else "",
    ]
    # The name comes last: it may be long, and a terminal may cut it.
    return f"{', '.join(part for part in parts if part)}: {state['root'] or 'run'}"


def seconds_left(state: Mapping[str, Any], now: float) -> float:
    """Return about how long the rest takes at the pace so far; 0 before the first task has ended."""
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


def _longest(jobs: list[Any], now: float) -> Iterator[str]:
    for job in sorted(jobs, key=_begun)[:LONGEST]:
        beat = read_json(Path(job["heartbeat"])) or {}
        # Each span is by the clock of its own host. A job that this driver took over began before the driver.
        seconds = max(now - _begun(job), seconds_at_work(beat))
        # The name comes last: it is the longest, and a terminal may cut it.
        parts = ", ".join([duration(seconds), *job["message"].splitlines()[:_SHOWN_LINES]])
        yield f"{parts}: {job.get('words') or job['label']}"


def seconds_at_work(beat: Mapping[str, Any]) -> float:
    """Return how long a job had worked when it wrote this heartbeat; 0 if the heartbeat does not tell."""
    return float(beat["time"]) - float(beat["started"]) if beat.get("started") else 0.0


def _begun(job: Mapping[str, Any]) -> float:
    return float(job.get("running_since") or job["since"])


def _pending(jobs: list[Any], engine: str) -> Iterator[str]:
    # Behind a comma, Slurm lists nodes: "ReqNodeNotAvail, UnavailableNodes:n[1-3]".
    reasons = Counter(job["reason"].partition(",")[0] for job in jobs if job["reason"])
    for reason, count in reasons.most_common():
        words = SCHEDULERS[engine].in_words(reason) if engine in SCHEDULERS else ""
        yield f"{count} job(s), {reason}{f': {words}' if words else ''}"
    # Behind its first line, a message names the nodes that the scheduler itself took out of use.
    queued = (job["message"] for job in jobs if job["state"] == JobState.QUEUED)
    yield from dict.fromkeys(line for message in queued for line in message.splitlines()[1:])


def failures_in(state: Mapping[str, Any]) -> dict[str, Failure]:
    """Return the failures by task id."""
    return {task_id: Failure(**values) for task_id, values in state.get("failures", {}).items()}


def _failures(failures: Iterable[Failure], most: int) -> Iterator[str]:
    by_cause = by_their_cause(failures)[::-1]
    for alike in by_cause[:most]:
        one = " ".join(alike[-1].message.split())
        yield f"{len(alike)} alike: {one}" if len(alike) > 1 else one
    if before := sum(map(len, by_cause[most:])):
        yield f"and {before} before"


def by_their_cause(failures: Iterable[Failure]) -> list[list[Failure]]:
    """Group failures that differ only in task, job, node and log, in the order of each group's last failure."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        cause = failure.cause, failure.words
        groups[cause] = [*groups.pop(cause, []), failure]
    return list(groups.values())


def duration(seconds: float) -> str:
    """Return seconds as people write them: ``45 s``, ``12 min``, ``3 h 20 min``, ``2 d 4 h``."""
    if seconds < 90:
        return f"{seconds:.1g} s" if 0 < seconds < 0.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def cpu_seconds(rule: Mapping[str, Any]) -> float:
    """Return the CPU time of a rule's jobs; of a run of an earlier version, what they reserved."""
    return float(rule.get("cpu_seconds", 3600 * rule["core_hours"]))


def cpu_time(core_hours: float) -> str:
    """Return CPU time as people write it: ``0.4 s``, ``12 min``, ``3 h 20 min``, and from two days on, ``1,234 h``."""
    return duration(core_hours * 3600) if core_hours < 48 else f"{core_hours:,.0f} h"
