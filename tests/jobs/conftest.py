"""Fixtures of the cluster's tests: a work folder, fake and real schedulers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from job_work import Work

from espo_luigi.jobs.lifecycle.records import RecordStore

pytest.register_assert_rewrite("real_clusters")

if TYPE_CHECKING:
    from fake_cluster import FakeCluster
    from throwaway_sge import ThrowawayGridEngine
    from throwaway_slurm import ThrowawayCluster


@pytest.fixture
def work(tmp_path: Path, request: pytest.FixtureRequest) -> Work:
    """The folder of a test, and the scheduler that it is on."""
    return Work(tmp_path, "sge" if "grid_engine" in request.fixturenames else "slurm")


@pytest.fixture
def made() -> Callable[[Path], Work]:
    return Work


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    store = RecordStore(tmp_path / "state")
    store.create_folders()
    return store


@pytest.fixture
def fake(work: Work, tmp_path: Path) -> Iterator[FakeCluster]:
    from fake_cluster import FakeCluster

    fake = FakeCluster(work, tmp_path / "fake")
    yield fake
    for manager in fake.managers:
        manager.detach()


@pytest.fixture(scope="session")
def with_accounting() -> Iterator[ThrowawayCluster]:
    """A real Slurm with accounting, the same for all modules that a process tests, as are those below."""
    from throwaway_slurm import ClusterSpec, ThrowawayCluster

    enforce = "AccountingStorageEnforce=associations,limits,qos,safe"
    with ThrowawayCluster.start(ClusterSpec(accounting=True, conf=(enforce,))) as cluster:
        cluster.run("sacctmgr", "-i", "add", "qos", "two", "MaxSubmitJobsPerUser=2")
        cluster.run("sacctmgr", "-i", "add", "qos", "short", "MaxWall=1", "Flags=DenyOnLimit")
        cluster.run("sacctmgr", "-i", "modify", "user", "root", "set", "qos+=two,short")
        yield cluster


@pytest.fixture(scope="session")
def without_accounting() -> Iterator[ThrowawayCluster]:
    from throwaway_slurm import ThrowawayCluster

    with ThrowawayCluster.start() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def grid_engine() -> Iterator[ThrowawayGridEngine]:
    from throwaway_sge import ThrowawayGridEngine

    with ThrowawayGridEngine.start() as cluster:
        yield cluster
