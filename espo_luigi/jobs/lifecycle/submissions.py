"""What goes to a scheduler as one job: one flight, or several of a kind as a bundle, and what is written for it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from espo_luigi.jobs.bundles.model import ARRAY, PILOT, STEPS, BundleValues, total_minutes
from espo_luigi.jobs.lifecycle.flights import Flight
from espo_luigi.jobs.lifecycle.handles import JobRequest
from espo_luigi.jobs.lifecycle.records import SUBMITTING, Record, RecordStore
from espo_luigi.jobs.schedulers.base import Scheduler
from espo_luigi.jobs.schedulers.script import ScriptValues


@dataclass(frozen=True)
class Submission:
    """Flights with the `records` that are to be on disk before `command` runs, and the `texts` to write, by path.

    The first flight's texts are those of the whole, too.
    """

    flights: tuple[Flight, ...]
    records: tuple[Record, ...]
    texts: tuple[Mapping[Path, str], ...]
    command: tuple[str, ...]
    bundle: BundleValues | None = None

    def member_id(self, job_id: str, place: int) -> str:
        """The id of the job of the flight in that place, of a submission that was answered with `job_id`."""
        return self.bundle.member_id(job_id, place) if self.bundle else job_id


@dataclass(frozen=True)
class Submissions:
    """Makes them; `values` returns what a script of a request and its record is made of."""

    scheduler: Scheduler
    store: RecordStore
    log_dir: str
    values: Callable[[JobRequest, Record], ScriptValues]

    def of(self, flights: Sequence[Flight]) -> Submission:
        """What is to be done to hand over these. Raises SubmissionError for a value that cannot be passed safely."""
        return self._alone(flights[0]) if len(flights) == 1 else self._bundle(tuple(flights))

    def _alone(self, flight: Flight) -> Submission:
        pattern = self.scheduler.log_pattern(self.log_dir, flight.request.rule, flight.request.wildcards)
        record = replace(flight.record, state=SUBMITTING, bundle="", log_pattern=pattern)
        mine, path = self.values(flight.request, record), self.store.script_path(record.name)
        script = self.scheduler.render(mine)
        return Submission((flight,), (record,), ({path: script},), self.scheduler.submit_command(mine, path))

    def _bundle(self, flights: tuple[Flight, ...]) -> Submission:
        requests = [flight.request for flight in flights]
        # A name that is never given twice, whatever becomes of the members.
        name = f"{flights[0].record.task.rpartition('.')[0]}.bundle-{secrets.token_hex(6)}"
        bundle = self.bundle_values(name, requests, [flight.record for flight in flights])
        text, path = self.scheduler.bundled(bundle), self.store.script_path(name)
        common = {path: text.script, Path(bundle.plan): json.dumps(_plan(bundle, requests))}
        common |= {Path(f"{bundle.plan}.{ending}"): more for ending, more in text.files.items()}
        own = [{Path(script): member} for script, member in zip(bundle.scripts, text.members, strict=True)]
        records = tuple(
            replace(flight.record, state=SUBMITTING, bundle=bundle.member_name(place), log_pattern=values.log_pattern)
            for place, (flight, values) in enumerate(zip(flights, bundle.members, strict=True))
        )
        return Submission(flights, records, (own[0] | common, *own[1:]), (*text.command, str(path)), bundle)

    def bundle_values(self, name: str, requests: Sequence[JobRequest], records: Sequence[Record]) -> BundleValues:
        """All that the submission of these as a bundle is made of."""
        first, plan = requests[0], str(self.store.script_path(name).with_suffix(".json"))
        patterns = self._log_patterns(requests)
        members = [
            self.values(request, replace(record, log_pattern=pattern))
            for request, record, pattern in zip(requests, records, patterns, strict=True)
        ]
        whole = self.scheduler.log_pattern(self.log_dir, first.rule, {"bundle": str(len(requests))})
        return BundleValues(
            name=name,
            bundling=first.bundling,
            members=tuple(members),
            scripts=tuple(str(self.store.script_path(record.name)) for record in records),
            log_pattern=patterns[0] if first.bundling.kind == ARRAY else whole,
            time_minutes=total_minutes(first.bundling, len(requests), records[0].time_minutes, first.time_cap_minutes),
            plan=plan,
            pilot=(*first.pilot, plan, *first.preload) if first.bundling.kind == PILOT else (),
        )

    def _log_patterns(self, requests: Sequence[JobRequest]) -> list[str]:
        """Where each logs: the tasks of a step where its first does, but for their number."""
        bundling, patterns = requests[0].bundling, []
        for place, request in enumerate(requests):
            task = place % bundling.per_step
            wildcards = requests[place - task].wildcards if bundling.kind == STEPS else request.wildcards
            patterns.append(self.scheduler.log_pattern(self.log_dir, request.rule, wildcards, bundling.kind, task))
        return patterns

    def together(self, first: Flight, ready: Iterable[Flight], most: int, now: float) -> list[Flight]:
        """The flights that may go with the `first` of those that are ready, `most` of them at most."""
        if most < 2 or not _is_free(first, now):
            return [first]
        group: list[Flight] = []
        for flight in ready:
            if flight is first or (_is_free(flight, now) and self._is_of_a_kind(first, flight)):
                group.append(flight)
            if len(group) == most:
                break
        return group

    def _is_of_a_kind(self, one: Flight, other: Flight) -> bool:
        if one.request.rule != other.request.rule or one.request.bundling != other.request.bundling:
            return False
        return self._size(one) == self._size(other)

    def _size(self, flight: Flight) -> ScriptValues:
        values = self.values(flight.request, flight.record)
        return replace(values, name="", attempt=1, argv=(), log_pattern="", claim_file="")


def _is_free(flight: Flight, now: float) -> bool:
    return not flight.alone and flight.trouble_since is None and flight.not_before <= now


def _plan(bundle: BundleValues, requests: Iterable[JobRequest]) -> dict[str, Any]:
    """Who is in the bundle, and what a pilot does for each."""
    members = [
        {"name": one.name, "script": script, "order": str(request.job_file), "log": one.log_pattern}
        for one, script, request in zip(bundle.members, bundle.scripts, requests, strict=True)
    ]
    claims = [one.claim_file for one in bundle.members]
    return {
        "at_once": bundle.width,
        "members": [member | {"claim": claim} for member, claim in zip(members, claims, strict=True)],
    }
