"""Where a job stands, for people: from what its scheduler says, its last sign of life, and its result."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from espo_luigi.jobs.lifecycle.handles import Progress
from espo_luigi.jobs.lifecycle.records import PLANNED, SUBMITTED, SUBMITTING
from espo_luigi.jobs.order import Standing, seconds_of
from espo_luigi.jobs.resources import GIB
from espo_luigi.jobs.schedulers.base import Phase
from espo_luigi.jobs.state import JobState

# The heartbeat of a young job is read more often, so that a job of seconds shows its progress.
_SHORTEST_SECONDS = 0.5


def between_beats(age: float, every_seconds: float) -> float:
    """Return how many seconds pass between two signs of life of a job that is `age` seconds old."""
    return min(every_seconds, max(_SHORTEST_SECONDS, age / 5))


def of_batch(progress: Progress) -> Standing:
    """Return where a scheduler's job stands."""
    state = _STATES.get(progress.state, JobState.READY) if progress.phase is None else _state_of(progress.phase)
    return replace(_of_batch(progress), state=state, reason=progress.reason)


_STATES = {SUBMITTING: JobState.SUBMITTING, SUBMITTED: JobState.QUEUED}


def _state_of(phase: Phase) -> JobState:
    if phase.ended:
        return JobState.ENDED
    return JobState.QUEUED if phase in (Phase.PENDING, Phase.SUSPENDED) else JobState.RUNNING


def _of_batch(progress: Progress) -> Standing:
    job = f"job {progress.job_id}" if progress.job_id else ""
    place = f"{job} on {progress.node}" if progress.node else job
    again = f"attempt {progress.attempt}" if progress.attempt > 1 else ""
    if progress.phase is Phase.RUNNING:
        return at_work(_listed(place, again), progress.heartbeat)
    state = "waiting to be submitted" if progress.state == PLANNED else progress.state
    return Standing(_listed(state, place, again) + (f": {progress.why}" if progress.why else ""))


def at_work(where: str, beat: Mapping[str, Any]) -> Standing:
    """Return ``job 1234 on n3, 43 %, 12.1 of 32 GiB``, what Dask has to do, and how to reach the dashboard."""
    percent, port = _number(beat, "percent"), _number(beat, "dashboard_port")
    url = f"http://127.0.0.1:{port}/status" if port else ""
    lines = [
        _listed(where, f"{percent} %" if percent else "", _memory(beat) if beat else "starting"),
        str(beat.get("message", "")),
        f"Dashboard: {url}\nafter, where your browser is:\n{_tunnel(port, beat)}" if port else "",
    ]
    return Standing("\n".join(filter(None, lines)), percent if beat else None, url, state=JobState.RUNNING)


def done(result: Mapping[str, Any]) -> Standing:
    """Return where and how long the job worked, from its result, and the most memory that it took."""
    job = f"job {result['job_id']}" if result.get("job_id") else ""
    node = f"on {result['node']}" if result.get("node") else ""
    took = _listed(f"{job} {node}".strip(), f"{seconds_of(result):.1f} s", _memory(result))
    return Standing(f"done: {took}", 100, state=JobState.SUCCEEDED)


def _listed(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _memory(said: Mapping[str, Any]) -> str:
    peak, asked = _number(said, "peak_memory_bytes"), _number(said, "memory_bytes")
    return f"{peak / GIB:.1f} of {asked / GIB:.3g} GiB" if peak and asked else ""


def _tunnel(port: int, beat: Mapping[str, Any]) -> str:
    here, node = socket.gethostname(), str(beat.get("node") or socket.gethostname())
    through = [] if node == here else ["-J", here]
    return shlex.join(["ssh", "-N", "-L", f"{port}:127.0.0.1:{port}", *through, node])


def _number(said: Mapping[str, Any], name: str) -> int:
    """Another version may have written the file."""
    value = said.get(name)
    return int(value) if isinstance(value, (int, float)) else 0
