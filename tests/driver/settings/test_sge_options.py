"""Options of Grid Engine from luigi.cfg to the script; a task's options for Slurm are left out."""

from __future__ import annotations

import re
from pathlib import Path

import luigi
import pytest
from luigi.configuration import get_config

from espo_luigi.driver.run import preview
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers.gridengine import SgeOptions


class Walk(SlurmTask):
    n = luigi.IntParameter(default=1)
    resources_default = Resources(n_workers=2, cpus_per_task=8, memory="32GB", time="1:00:00")
    options_default = {
        "slurm": {"qos": "high", "partition": "of the rule"},
        "sge": {"queue": "of the rule", "project": "of the rule"},
    }


@pytest.fixture(autouse=True)
def engine() -> None:
    get_config().set("espo", "engine", "sge")


def test_each_source_overrides_the_ones_before_it_and_slurms_options_are_slurms(tmp_path: Path) -> None:
    profile = tmp_path / "perun.yml"
    profile.write_text("memory_per: job\nqueue: of the profile\nparallel_environment: smp\n")
    said = {"profile": profile, "project": "of luigi.cfg"}
    get_config().read_dict({"sge": said, "Walk": {"memory_per": "slot"}})
    options = Walk(parallel_environment="of the command line", qos="of Slurm", pack="4").order().options
    assert options == SgeOptions(
        queue="of the rule",
        project="of luigi.cfg",
        parallel_environment="of the command line",
        memory_per="slot",
        scratch="$TMP",
    )


def test_a_time_for_all_jobs_is_the_sections_time_and_there_is_no_other(tmp_path: Path) -> None:
    get_config().set("sge", "time", "99:99:99")
    assert "#$ -l h_rt=362460,h_vmem=410M" in preview(Rest()).splitlines()
    (tmp_path / "perun.yml").write_text("h_rt: 99:99:99\n")
    get_config().set("sge", "profile", str(tmp_path / "perun.yml"))
    with pytest.raises(ConfigurationError, match=r"h_rt: unknown key.* time"):
        preview(Rest())


class Model(SlurmTask):
    """Has its own parameters with the names of schedulers' options."""

    project = luigi.Parameter()
    queue = luigi.Parameter(default="cmip6")
    resources_default = Resources()


class Run(Model):
    n = luigi.IntParameter(default=1)


def test_a_tasks_own_parameter_is_no_option_of_the_scheduler_of_the_same_name() -> None:
    get_config().set("sge", "queue", "long.q")
    for kind in (Model, Run):
        order = kind(project="CMIP", memory_per="job").order()
        assert order.options == SgeOptions(queue="long.q", memory_per="job", scratch="$TMP")
        assert (order.wildcards["project"], order.wildcards["queue"]) == ("CMIP", "cmip6")


class Rest(SlurmTask):
    resources_default = Resources(cpus_per_task=10)


def test_the_packaged_profile_asks_for_what_its_document_asks_for() -> None:
    get_config().set("sge", "profile", "sge")
    lines = preview(Rest()).splitlines()
    asked = ["#$ -cwd", "#$ -pe threaded 10", "#$ -q 256G-batch", "#$ -l h_rt=362460,h_vmem=6554M"]
    assert [line for line in lines if line in asked] == asked
    # Its `-V`, without showing the environment to every account.
    assert any(re.fullmatch(r"environment_file=\S+/environment\.sh", line) for line in lines)
    assert '. "$environment_file" || exit 1' in lines


def test_the_preview_is_the_script_with_its_options() -> None:
    get_config().set("sge", "node_cpus", "4")
    text = preview(Walk())
    for line in (
        "#$ -pe threaded 4",
        "#$ -q 'of the rule'",
        "#$ -l h_rt=3600,h_vmem=8G",
        "export ESPO_MEMORY_MIB=32768",
        'export ESPO_NODE_SCRATCH="${TMP:-${TMPDIR:-/tmp}}"',
    ):
        assert line in text.splitlines()
    assert f"-o {Path.cwd()}/sge_logs/Walk/Walk-n=1-$JOB_ID.out" in text.replace("'", "")
    assert text.endswith("# Dask in the job: 2 worker(s) x 2 thread(s), 15.0 GiB each of 32.0 GiB\n")
