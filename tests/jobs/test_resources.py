"""Amounts in Slurm's notations, contradictory requests, and the limits of cgroups."""

import os
from pathlib import Path

import pytest

from espo_luigi.errors import SizingError
from espo_luigi.jobs import resources
from espo_luigi.jobs.resources import (
    GIB,
    Resources,
    cgroup_cpu_quota,
    cgroup_memory_limit,
    headroom,
    machine_cpus,
    machine_memory,
    parse_memory,
    parse_time,
    render_memory,
)
from espo_luigi.jobs.schedulers import slurm

MIB = 2**20


# As in the --mem option of Slurm's sbatch manual: MiB without a suffix; K, M, G and T are powers of 1024.
@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        (4000, 4000 * MIB),
        ("4000", 4000 * MIB),
        ("512K", 512 * 1024),
        ("3500M", 3500 * MIB),
        ("60G", 60 * GIB),
        ("60GB", 60 * GIB),
        ("60GiB", 60 * GIB),
        ("60 gb", 60 * GIB),
        ("1.5G", 1536 * MIB),
        ("2T", 2048 * GIB),
    ],
)
def test_memory_is_read_as_slurm_reads_it(text: str | int, n_bytes: int) -> None:
    assert parse_memory(text) == n_bytes


@pytest.mark.parametrize("text", ["", "much", "60X", "-4G", "0", "0G", "4G 4G", "1,5G"])
def test_what_is_no_amount_of_memory_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(SizingError, match="is not an amount of memory; expected for example 60GB") as caught:
        parse_memory(text)
    assert repr(text) in str(caught.value)


# The formats of the --time option in Slurm's sbatch manual; Slurm too rounds seconds up to the next minute.
@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        (90, 90),
        ("90", 90),
        ("90:00", 90),
        ("90:01", 91),
        ("1:30:00", 90),
        ("01:30:30", 91),
        ("2-12", 3600),
        ("2-12:30", 3630),
        ("2-12:30:00", 3630),
        ("0-00:00:01", 1),
        (" 15 ", 15),
    ],
)
def test_time_is_read_as_slurm_reads_it(text: str | int, minutes: int) -> None:
    assert parse_time(text) == minutes


@pytest.mark.parametrize("text", ["", "soon", "1:2:3:4", "1h", "-5", "1-", "1.5", "1::2"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(SizingError, match="is not a duration; expected minutes"):
        parse_time(text)


@pytest.mark.parametrize("text", ["0", "0:00", "0:00:00", "0-0"])
def test_no_time_at_all_is_refused(text: str) -> None:
    with pytest.raises(SizingError, match="no time at all; expected at least 1"):
        parse_time(text)


def test_memory_is_written_in_whole_mib_and_read_back() -> None:
    assert render_memory(60 * GIB) == "61440M"
    assert render_memory(MIB + 1) == "1M"
    assert parse_memory(render_memory(3500 * MIB)) == 3500 * MIB


def test_a_tenth_is_kept_free_and_two_gib_at_most() -> None:
    assert headroom(10 * GIB) == GIB
    assert headroom(20 * GIB) == 2 * GIB
    assert headroom(500 * GIB) == 2 * GIB


def test_workers_share_equally_what_the_headroom_leaves() -> None:
    request = Resources(4, 8, "42GB")
    assert request.worker_memory_bytes == 10 * GIB
    assert request.threads_per_worker == 2


def test_the_least_memory_with_which_a_worker_has_256_mib_is_enough_and_no_less() -> None:
    refused = []
    for mib in (283, 284, 285, 286):
        try:
            Resources(1, 1, f"{mib}M", "2-12").check("Extract")
        except SizingError:
            refused.append(mib)
    assert refused == [283, 284]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Resources(0, 4), "Extract: n_workers = 0; expected at least 1"),
        (Resources(1, 0), "Extract: cpus_per_task = 0; expected at least 1"),
        (Resources(3, 10), "cpus_per_task = 10 cannot be shared equally by n_workers = 3; .*: 9 or 12"),
        (Resources(4, 2), "cpus_per_task = 2 cannot be shared equally by n_workers = 4; .* can: 4$"),
        (Resources(4, 4, "1GB"), "memory = 1GB leaves 230 MiB for each of 4 Dask workers; .*raise memory or lower"),
        (Resources(1, 1, "a lot"), "'a lot' is not an amount"),
        (Resources(1, 1, "4GB", "a while"), "'a while' is not a duration"),
    ],
)
def test_a_contradiction_is_named_with_the_rule_and_the_way_out(request_: Resources, message: str) -> None:
    with pytest.raises(SizingError, match=message):
        request_.check("Extract")


def test_a_request_that_fits_the_machine_stays_as_it_is() -> None:
    request = Resources(2, 4, "8GB")
    assert request.fitted(4, 8 * GIB) is request


def test_a_request_is_cut_to_the_machine_and_still_shared_equally() -> None:
    assert Resources(3, 12, "60GB", "2:00:00").fitted(8, 16 * GIB) == Resources(3, 6, "16384M", "2:00:00")
    assert Resources(8, 8, "4GB").fitted(2, 16 * GIB) == Resources(2, 2, "4GB")
    assert Resources(1, 1, "60GB").fitted(8, 16 * GIB) == Resources(1, 1, "16384M")


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
        monkeypatch.setattr(resources, "cgroup_cpu_quota", lambda own, root, quota=quota: quota)
        assert machine_cpus() == cpus


def test_the_machines_memory_is_cut_to_the_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "cgroup_memory_limit", lambda own, root: 12345)
    assert machine_memory() == 12345
    monkeypatch.setattr(resources, "cgroup_memory_limit", lambda own, root: 2**63)
    assert GIB / 4 < machine_memory() < 2**50


def test_what_slurm_gave_is_read_from_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.delenv("SLURM_MEM_PER_NODE", raising=False)
    assert slurm.given(os.environ) == {}
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "8")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "61440")
    assert slurm.given(os.environ) == {"cpus_per_task": 8, "memory_bytes": 60 * GIB}
