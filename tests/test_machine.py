"""The CPUs and the memory that a process may use: affinity, limits of cgroups, and what a job was given."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from espo_luigi import machine
from espo_luigi.machine import cgroup_cpu_quota, cgroup_memory_limit, machine_cpus, machine_memory
from espo_luigi.methods.dqm import method as dqm_method


def write_limits(folder: Path, name: str, limits: dict[str, str]) -> None:
    for path, limit in limits.items():
        (folder / path).mkdir(parents=True, exist_ok=True)
        (folder / path / name).write_text(f"{limit}\n")


def test_the_limit_of_a_slurm_job_above_the_leaf_counts_in_cgroup_version_2(tmp_path: Path) -> None:
    scope = "system.slice/slurmstepd.scope"
    limits = {f"{scope}/job_7": "1000", f"{scope}/job_7/step_batch": "2000", f"{scope}/job_7/step_batch/user": "max"}
    write_limits(tmp_path, "memory.max", {**limits, f"{scope}/job_8": "10"})
    assert cgroup_memory_limit(f"0::/{scope}/job_7/step_batch/user/task_0\n", tmp_path) == 1000


def test_the_memory_controllers_line_counts_in_cgroup_version_1(tmp_path: Path) -> None:
    limits = {
        "": "9223372036854771712",
        "slurm/uid_1/job_7": "3000",
        "slurm/uid_1/job_7/step_batch": "4000",
        "cpu": "1",
    }
    write_limits(tmp_path / "memory", "memory.limit_in_bytes", limits)
    own = "11:cpu,cpuacct:/cpu\n9:memory:/slurm/uid_1/job_7/step_batch\n1:name=systemd:/a:b\n0::/\n"
    assert cgroup_memory_limit(own, tmp_path) == 3000
    assert cgroup_memory_limit(own.replace("9:memory", "9:hugetlb,memory"), tmp_path) == 3000


def test_a_containers_limit_is_found_at_the_mount(tmp_path: Path) -> None:
    write_limits(tmp_path, "memory.max", {"": "5000"})
    assert cgroup_memory_limit("0::/docker/of-the-host\n", tmp_path) == 5000


def test_without_a_numeric_limit_there_is_none(tmp_path: Path) -> None:
    write_limits(tmp_path, "memory.max", {"a": "max"})
    assert cgroup_memory_limit("0::/a\n", tmp_path) is None
    assert cgroup_memory_limit("", tmp_path) is None


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({"a/b/cpu.max": "150000 100000", "a/cpu.max": "400000 100000", "cpu.max": "max 100000"}, "0::/a/b/c", 1.5),
        ({"cpu.max": "100000 100000"}, "0::/docker/of-the-host", 1.0),
        ({"cpu.max": "max 100000"}, "0::/a", None),
        ({"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/a/b", 0.5),
        ({"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/a", None),
        ({}, "", None),
    ],
)
def test_the_least_quota_of_cpus_counts(
    tmp_path: Path, files: dict[str, str], own: str, expected: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    assert cgroup_cpu_quota(own, tmp_path) == expected


def test_the_machines_cpus_are_cut_to_whole_ones_of_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    for quota, cpus in ((None, 4), (2.5, 2), (0.5, 1), (64.0, 4)):
        monkeypatch.setattr(machine, "cgroup_cpu_quota", lambda own, root, quota=quota: quota)
        assert machine_cpus() == cpus


def test_the_machines_memory_is_cut_to_the_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cgroup_memory_limit", lambda own, root: 12345)
    assert machine_memory() == 12345
    monkeypatch.setattr(machine, "cgroup_memory_limit", lambda own, root: 2**63)
    assert 2**28 < machine_memory() < 2**50


@pytest.mark.parametrize(
    ("quota", "variables", "cpus"),
    [
        (None, {}, 8),
        (2.0, {}, 2),
        (None, {"SLURM_CPUS_PER_TASK": "3"}, 3),
        (2.0, {"NSLOTS": "4"}, 2),
        (None, {"NSLOTS": "x", "SLURM_CPUS_PER_TASK": "0"}, 8),
    ],
)
def test_kernels_use_the_cpus_of_the_quota_and_of_the_job(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, variables: dict[str, str], cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(machine, "cgroup_cpu_quota", lambda own, root: quota)
    for name in ("SLURM_CPUS_PER_TASK", "NSLOTS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert dqm_method.given_threads() == cpus
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(dqm_method.given_threads).result() == 1
