"""The requests of worker jobs, their sources, and the refusals before anything is submitted."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import luigi
import pytest
from luigi.configuration import get_config

from espo_luigi import Resources, SlurmTask
from espo_luigi.cluster import session
from espo_luigi.driver.run import preview
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.errors import ConfigurationError, EspoError, SizingError, SubmissionError
from espo_luigi.jobs.dask import WorkerJobs
from espo_luigi.jobs.engine import BatchEngine
from espo_luigi.jobs.order import JobOrder
from espo_luigi.jobs.schedulers import SCHEDULERS

SEED = {
    "walltime": "99:99:99",
    "resource_spec": "h_vmem=64G",
    "queue": "256G-batch",
    "job_extra": ["-cwd", "-V", "-pe threaded 10"],
    "cores": 1,
    "processes": 1,
    "memory": "1GB",
}
IN2P3 = {"profile": "in2p3", "account": "group", "log_dir": "log"}


class Many(SlurmTask):
    n = luigi.IntParameter(default=1)
    resources_default = Resources(n_workers=3, cpus_per_task=12, memory="96GB", time="8:00:00")


@pytest.fixture(autouse=True)
def in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def table(**values: Any) -> Many:
    return Many(cluster="jobqueue", worker_jobs=values)


def workers_of(order: JobOrder) -> WorkerJobs:
    workers = WorkerJobs(**order.workers)
    assert workers is not None
    return workers


def directives(script: str) -> list[str]:
    return re.findall(r"^#(?:SBATCH|\$) (.*)$", script, re.MULTILINE)


def workers_script(task: Many) -> str:
    return preview(task).split("# Dask's workers: ")[1]


def check(task: Many) -> JobOrder:
    """Do the checks of a run before it submits anything."""
    engine = BatchEngine(SCHEDULERS["slurm"], SECTIONS["slurm"]().batch_settings())
    try:
        order = task.order("slurm")
        engine.check([order])
        return order
    finally:
        engine.close()


def test_each_worker_of_the_rule_becomes_a_job_with_its_share_and_the_task_keeps_the_scheduler() -> None:
    get_config().set("slurm", "partition", "long")
    order = Many(cluster="jobqueue").order("slurm")
    workers = workers_of(order)
    assert (workers.jobs, workers.cores, workers.walltime_minutes) == (3, 4, 480)
    assert workers.memory_bytes == 32 * 2**30
    assert workers.options["partition"] == "long"
    assert (order.resources.cpus_per_task, order.resources.memory_bytes, order.resources.time_minutes) == (
        1,
        4 * 2**30,
        480,
    )


def test_an_order_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    order = table(jobs=7, exclude=["n1", "n2"], environment={"A": "b"}).order("slurm")
    order.write()
    parsed = JobOrder.parsed(json.loads(order.files.order.read_text()))
    assert workers_of(parsed).values("x", "x") == workers_of(order).values("x", "x")
    assert parsed.cluster == "jobqueue"


@pytest.mark.parametrize(
    ("said", "jobs", "waited_for"),
    [
        ({"jobs": 10, "wait_for_workers": "50%"}, 10, 5),
        ({"jobs": 10, "processes": 2, "cores": 2, "wait_for_workers": "50%"}, 10, 10),
        ({"n": 10, "processes": 2, "cores": 2}, 5, 0),
        ({"n": 9, "processes": 2, "cores": 2, "wait_for_workers": 3}, 5, 3),
        ({"minimum_jobs": 2, "maximum_jobs": 20, "wait_for_workers": "100%"}, 20, 2),
        ({"maximum_jobs": 20, "wait_for_workers": 1}, 20, 0),
        ({"jobs": 2, "wait_for_workers": 50}, 2, 2),
    ],
)
def test_as_many_jobs_as_dask_would_scale_to_and_as_many_workers_waited_for(
    said: Mapping[str, Any], jobs: int, waited_for: int
) -> None:
    workers = workers_of(table(**said).order("slurm"))
    assert (workers.most_jobs, workers.workers_to_wait_for) == (jobs, waited_for)


def test_the_call_of_the_document_for_grid_engine_gives_its_script() -> None:
    get_config().set("espo", "engine", "sge")
    script = workers_script(table(**SEED))
    said = directives(script)
    assert {"-q 256G-batch", "-pe threaded 10", "-cwd", "-j y"} <= set(said)
    (resources,) = [line for line in said if line.startswith("-l ")]
    assert set(resources.removeprefix("-l ").split(",")) == {"h_vmem=64G", f"h_rt={(99 * 60 + 99 + 2) * 60}"}
    assert (
        f"{sys.executable} -P -m distributed.cli.dask_worker tls://SCHEDULER:PORT --name NAME --nthreads 1 " in script
    )
    assert " --memory-limit 0.90GiB --nanny --death-timeout 60 " in script


def test_processes_share_the_cores_and_the_memory_of_a_job() -> None:
    script = workers_script(table(cores=10, processes=5, memory="100GB"))
    assert "--nthreads 2 " in script and "--nworkers 5 " in script and "--memory-limit 19.60GiB " in script
    assert {"--cpus-per-task=10", "--mem=102400M"} <= set(directives(script))


def test_any_directive_and_option_reaches_the_workers_and_not_the_scheduler() -> None:
    task = table(account="a b", job_extra=["--reservation=x", "--gres gpu:1"], setup="module load python", job_cpu=9)
    script = workers_script(task)
    assert {'--account="a b"', "--reservation=x", "--gres=gpu:1", "--cpus-per-task=9"} <= set(directives(script))
    assert "\nmodule load python\n" in script
    assert "reservation" not in preview(task).split("# Dask's workers: ")[0]


def test_what_is_written_for_a_rule_overrides_the_section_and_that_the_profile(tmp_path: Path) -> None:
    profile = tmp_path / "mine.yml"
    profile.write_text("worker_jobs:\n  walltime: 1:00:00\n  jobs: 2\n  processes: 2\n")
    get_config().read_dict({"slurm": {"profile": profile, "worker_jobs": '{"jobs": 3, "processes": 4}'}})
    workers = workers_of(table(processes=1).order("slurm"))
    assert (workers.walltime_minutes, workers.jobs, workers.processes) == (60, 3, 1)


def test_the_scheduler_waits_on_the_daemon_partition_and_the_workers_have_the_licence() -> None:
    get_config().read_dict({"slurm": IN2P3, "Many": {"memory": "9GB"}})
    mine, theirs = (set(directives(part)) for part in preview(table(jobs=10)).split("# Dask's workers: "))
    assert {"--partition=htc_daemon", "--account=group", "--mem=1024M", "--cpus-per-task=1", "--time=480"} <= mine
    assert {"--partition=htc", "--account=group", "--licenses=sps", "--mem=3072M"} <= theirs
    assert not [line for line in mine if line.startswith("--licenses")]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"jobs": 3001}, "jobs = 3001 is more than the 3000"),
        ({"maximum_jobs": 3001}, "jobs = 3001 is more than the 3000"),
        ({"memory": "33G"}, "memory = 33GB is more than the 32GB"),
        ({"cores": 33}, "cores = 33 is more than the 32"),
        ({"walltime": "08:01:00"}, "walltime = 8:01:00 is more than the 8:00:00"),
        ({"partition": "gpu_v100"}, "partition = gpu_v100 is not for Dask workers"),
        ({"queue": "hpc"}, "partition = hpc is not for Dask workers"),
        ({"job_extra": ["--gres=gpu:1"]}, "gres = gpu:1 is not for Dask workers"),
        ({"job_extra": ["--gpus-per-node=1"]}, "gpus-per-node = 1 is not for Dask workers"),
        ({"job_extra": ["--gpus=2"]}, "gpus = 2 is not for Dask workers"),
    ],
)
def test_what_the_site_does_not_allow_is_refused_for_a_rule_and_for_a_session(
    said: Mapping[str, Any], words: str
) -> None:
    get_config().read_dict({"slurm": IN2P3, "Many": {"memory": "9GB"}})
    expected = re.escape(words) + ".* profile = in2p3"
    with pytest.raises(SubmissionError, match=f"worker_jobs: {expected}"):
        check(table(**said))
    with pytest.raises(SubmissionError, match=expected), session(**said):
        pass
    assert "# Would be refused: worker_jobs: " in preview(table(**said))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"scheduler_memory": "64G"}, "scheduler_memory = 64GB is more than the 32GB"),
        ({"scheduler_time": "24:00:00"}, "scheduler_time = 1-00:00:00 is more than the 8:00:00"),
    ],
)
def test_the_limits_hold_for_the_job_of_a_session_s_scheduler(said: Mapping[str, Any], words: str) -> None:
    get_config().read_dict({"slurm": IN2P3})
    with pytest.raises(SubmissionError, match=re.escape(words)), session(scheduler_in_job=True, **said):
        pass


def test_what_luigi_cfg_says_of_worker_jobs_goes_before_a_session_s_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[WorkerJobs] = []

    def opened(workers: WorkerJobs, *_: object, **__: object) -> object:
        seen.append(workers)
        raise SubmissionError("seen")

    monkeypatch.setattr("espo_luigi.jobs.dask.jobqueue.jobqueue_session", opened)
    monkeypatch.setattr("shutil.which", lambda _: "/bin/true")
    get_config().set("slurm", "worker_jobs", '{"idle_timeout": "10 minutes", "jobs": 4, "wait_for_workers": 3}')
    for said in ({}, {"wait_for_workers": 2}):
        with pytest.raises(SubmissionError, match="seen"), session(**said):
            pass
    assert [(one.idle_timeout, one.workers_to_wait_for) for one in seen] == [("10 minutes", 3), ("10 minutes", 2)]


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        ({"job": 3}, ConfigurationError, r"worker_jobs: job: unknown key; did you mean \w+\?"),
        ({"jobs": "some"}, ConfigurationError, "jobs = some: expected a whole number"),
        ({"jobs": 0}, SizingError, "jobs = 0; expected at least 1"),
        ({"cores": 3, "processes": 2}, SizingError, "cores = 3 cannot be shared equally by processes = 2"),
        ({"memory": "lots"}, ConfigurationError, "'lots' is not an amount of memory"),
        ({"memory": "200MB"}, SizingError, "less than 256 MiB"),
        ({"minimum_jobs": 3, "maximum_jobs": 2}, SizingError, "minimum_jobs = 3 is more than maximum_jobs = 2"),
        ({"wait_for_workers": "half"}, SizingError, "half"),
        ({"job_extra": ["--array=1-9"]}, SubmissionError, "more than one job"),
        ({"job_extra": {"a": "b"}}, ConfigurationError, "expected a list"),
        ({"resource_spec": "h_vmem=1G"}, ConfigurationError, "resource_spec: it is Grid Engine's"),
        ({"account": "a\nb"}, SubmissionError, "control character"),
        ({"job_extra": ["mail"]}, ConfigurationError, "job_extra: 'mail': expected --NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_submitted(
    said: Mapping[str, Any], error: type[EspoError], words: str
) -> None:
    with pytest.raises(error, match=words):
        check(table(**said))


def test_a_session_where_there_is_no_scheduler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SubmissionError, match="no sbatch here: Slurm is needed"), session():
        pass
    with (
        pytest.raises(ConfigurationError, match="engine = 'local'"),
        session(engine="local"),
    ):
        pass


def test_nodes_are_of_use_with_an_allocation_only_and_have_to_be_said() -> None:
    assert {"--nodes=3", "--ntasks=3", "--ntasks-per-node=1"} <= set(
        directives(preview(Many(cluster="allocation", nodes="3")))
    )
    for task in (Many(nodes="3"), Many(cluster="allocation"), Many(cluster="allocation", nodes="many")):
        with pytest.raises(ConfigurationError, match="nodes"):
            check(task)
    with pytest.raises(ConfigurationError, match="cluster = allocation is Slurm's"):
        Many(cluster="allocation", nodes="3").order("sge")


def test_workers_are_no_larger_than_a_node_and_grow_with_their_job_up_to_the_cap() -> None:
    get_config().set("slurm", "memory_cap", "40GB")
    workers = workers_of(table(cores=8, processes=4).order("slurm"))
    small = workers.fitted(6, 8 * 2**30)
    assert (small.cores, small.processes, small.memory_bytes) == (6, 3, 8 * 2**30)
    assert [workers.grown(factor).memory_bytes // 2**30 for factor in (0.5, 1.0, 1.125, 1.5)] == [32, 32, 36, 40]


def test_here_a_rule_computes_by_itself() -> None:
    order = Many(cluster="jobqueue").order("local")
    assert (order.cluster, order.workers, order.resources.cpus_per_task) == ("", {}, 12)


def test_the_script_of_a_worker_is_what_bash_reads(tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(
        workers_script(table(environment={"A": "it's; $(touch x)"}, python="/a b/python")).partition("\n\n")[2]
    )
    assert subprocess.run(["bash", "-n", str(script)], check=False, capture_output=True).returncode == 0
    assert "'/a b/python' -P -m distributed.cli.dask_worker" in script.read_text()
