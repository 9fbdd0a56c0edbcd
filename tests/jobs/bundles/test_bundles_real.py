"""Bundles on a real, throw-away Slurm: members that end badly beside good ones, killed drivers, a requeued bundle."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from job_work import Work
from real_clusters import MIB, running, start_driver
from throwaway_daemons import eventually
from throwaway_slurm import ClusterSpec, ThrowawayCluster

from espo_luigi.errors import Failure
from espo_luigi.jobs.bundles import KINDS, Bundling
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.manager import JobManager
from espo_luigi.jobs.lifecycle.state import Handle, Outcome, Success
from espo_luigi.jobs.resources import ARRAY, PILOT, STEPS
from espo_luigi.jobs.schedulers.slurm import SlurmOptions

pytestmark = pytest.mark.slurm
CLUSTER = ClusterSpec(nodes=2)


def submit(
    manager: JobManager, work: Work, bundling: Bundling, members: dict[str, tuple[Any, float]]
) -> dict[str, Handle]:
    """Submit members by name, each with its work and its seconds; the kind of the bundle is part of their labels."""
    label = f"{bundling.kind}{bundling.per_step}{bundling.at_once}"
    return {
        name: manager.submit(
            work.order(
                f"{label}-{name}",
                do,
                seconds=seconds,
                memory_bytes=60 * MIB,
                options=SlurmOptions(
                    pack=str(bundling.most),
                    bundle=bundling.kind,
                    pack_at_once=str(bundling.at_once),
                    pack_per_step=str(bundling.per_step),
                ),
            )
        )
        for name, (do, seconds) in members.items()
    }


def said(outcome: Outcome | None) -> tuple[Any, int]:
    assert outcome is not None
    return (outcome.cause if isinstance(outcome, Failure) else "success"), outcome.attempts


BADLY = {
    "good": ("succeed", 5),
    "fails": ("fail", 0.5),
    "dies": (["die", "succeed"], 0.2),
    "hungry": (["memory", "succeed"], 5),
}
SO_THEY_END = {"good": ("success", 1), "fails": (Cause.EXCEPTION, 1), "dies": ("success", 2), "hungry": ("success", 2)}


def test_members_fail_crash_and_run_out_of_memory_and_the_others_go_on(
    made: Callable[[Path], Work], tmp_path: Path, cluster: ThrowawayCluster
) -> None:
    # A member that runs out of memory in a pilot or in a shared step takes its neighbours along.
    light = {name: how for name, how in BADLY.items() if name != "hungry"}
    ordinary, sharing = (made(tmp_path / name) for name in ("ordinary", "sharing"))
    for work in (ordinary, sharing):
        work.folder.mkdir()
    with running(ordinary, cluster, retries=1) as one, running(sharing, cluster, retries=1) as other:
        bundles = [
            submit(one, ordinary, Bundling(STEPS, 4), BADLY),
            submit(one, ordinary, Bundling(ARRAY, 4), BADLY),
            submit(other, sharing, Bundling(STEPS, 3, per_step=3), light),
            submit(other, sharing, Bundling(PILOT, 3, at_once=2), light),
        ]
        cancelled = _cancelled_while_it_waits(cluster, other, sharing)
        for hungry in (handles["hungry"] for handles in bundles if "hungry" in handles):
            eventually(lambda hungry=hungry: hungry.progress.attempt == 2)
            ordinary.end(hungry.order.id)
        outcomes = [{name: handle.wait(60) for name, handle in bundle.items()} for bundle in bundles]
        assert said(cancelled.wait(30)) == (Cause.CANCELLED, 1)
    for ended in outcomes:
        assert {name: said(one) for name, one in ended.items()} == {name: SO_THEY_END[name] for name in ended}
        good = ended["good"]
        assert isinstance(good, Success) and good.log_path.exists()
    assert Counter(ordinary.starts()).total() == len(set(ordinary.starts())) == 2 * (4 + 2)
    assert len(set(sharing.starts())) == len(sharing.starts())


def _cancelled_while_it_waits(cluster: ThrowawayCluster, manager: JobManager, work: Work) -> Handle:
    members = dict.fromkeys(("first", "second"), ("succeed", 3.0))
    waiting = submit(manager, work, Bundling(ARRAY, 2, at_once=1), members)["second"]
    eventually(lambda: waiting.progress.message.startswith("PENDING"))
    cluster.run("scancel", str(waiting.progress.job_id))
    return waiting


def test_drivers_killed_at_any_moment_lose_and_double_no_member(tmp_path: Path, cluster: ThrowawayCluster) -> None:
    works = {kind: Work(tmp_path / kind) for kind in KINDS}
    for work in works.values():
        work.folder.mkdir()
    moments = random.Random(11)
    for _ in range(5):
        drivers = [start_driver(work, cluster, 8, 1, kind) for kind, work in works.items()]
        time.sleep(moments.uniform(0.4, 1.6))
        for driver in drivers:
            driver.kill()
            driver.communicate()
    for driver in [start_driver(work, cluster, 8, 1, kind) for kind, work in works.items()]:
        assert json.loads(driver.communicate(timeout=90)[0]) == {"complete": 8}
    for work in works.values():
        tasks = Counter(name.rpartition(".")[0] for name in work.starts())
        assert Counter(tasks.values()) == {1: 8}, "every task's job started exactly once"


def test_a_requeued_bundle_does_what_is_left(work: Work, cluster: ThrowawayCluster) -> None:
    with running(work, cluster, retries=1) as manager:
        bundles = [
            submit(manager, work, Bundling(kind, 2, at_once=2), {"short": ("succeed", 0.1), "long": ("succeed", 2.5)})
            for kind in (STEPS, PILOT)
        ]
        for handles in bundles:
            assert said(handles["short"].wait(30)) == ("success", 1)
            eventually(lambda handles=handles: handles["long"].progress.percent is not None)
        ids = [str(handles["long"].progress.job_id) for handles in bundles]
        cluster.run("scontrol", "requeue", ",".join(ids))
        for job_id, handles in zip(ids, bundles, strict=True):
            eventually(lambda handles=handles: handles["long"].progress.message.startswith("PENDING"))
            cluster.start_at_once(
                job_id, lambda handles=handles: not handles["long"].progress.message.startswith("PENDING")
            )
        assert {said(handles["long"].wait(60)) for handles in bundles} == {("success", 1)}
    assert sorted(Counter(work.starts()).values()) == [1, 1, 2, 2]


@pytest.mark.parametrize("kind", [STEPS, PILOT])
def test_members_of_a_bundle_that_is_told_to_end_say_so_themselves_and_go_again(
    work: Work, cluster: ThrowawayCluster, kind: str
) -> None:
    members = {"a": ("give way", 300.0), "b": ("give way", 300.0), "left out": ("give way", 0.5)}
    with running(work, cluster, retries=1) as manager:
        handles = submit(manager, work, Bundling(kind, 3, at_once=2), members)
        eventually(lambda: all(handles[name].progress.percent is not None for name in "ab"))
        cluster.run("scancel", "--signal=TERM", "--batch", str(handles["a"].progress.job_id))
        eventually(lambda: all(manager.store.load(handle.task).submission == 2 for handle in handles.values()))
        for name in "ab":
            work.end(f"{kind}12-{name}")
        assert {said(handle.wait(60)) for handle in handles.values()} == {("success", 1)}
        records = {name: manager.store.load(handle.task) for name, handle in handles.items()}
    whys = {name: [past["ended"] for past in record.history] for name, record in records.items() if record}
    assert whys == {"a": ["preempted"], "b": ["preempted"], "left out": [Cause.NOT_BEGUN.value]}
