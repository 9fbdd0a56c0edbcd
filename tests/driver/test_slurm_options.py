"""Where a job's Slurm options come from, and what is refused before anything is submitted."""

from collections.abc import Iterator
from pathlib import Path

import luigi
import pytest
from luigi.configuration import get_config

from espo_luigi import Resources, SlurmTask
from espo_luigi.driver.preview import preview
from espo_luigi.driver.sections import SECTIONS, read_profile
from espo_luigi.errors import ConfigurationError, SizingError, SubmissionError
from espo_luigi.jobs.slurm import SlurmOptions


class Job(SlurmTask):
    n = luigi.IntParameter(default=1)
    resources_default = Resources(n_workers=2, cpus_per_task=8, memory="32GB", time="1:00:00")
    slurm_default = {
        "qos": "of the rule",
        "constraint": "of the rule",
        "gres": "of the rule",
        "licenses": "of the rule",
    }


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    yield
    for section in ("slurm", "Job"):
        get_config().remove_section(section)
    luigi.task_register.Register.clear_instance_cache()


def test_each_source_overrides_the_ones_before_it(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yml"
    profile.write_text("account: of the profile\nqos: of the profile\nsetup: |\n  module load python\n")
    configuration = get_config()
    configuration.set("slurm", "profile", str(profile))
    configuration.set("slurm", "constraint", "of luigi.cfg")
    configuration.set("slurm", "gres", "of luigi.cfg")
    configuration.set("Job", "gres", "of the task's section")
    options = Job(licenses="of the command line").order("slurm").options
    assert isinstance(options, SlurmOptions)
    assert options.account == "of the profile"
    assert options.setup == "module load python\n"
    assert options.qos == "of the rule"
    assert options.constraint == "of luigi.cfg"
    assert options.gres == "of the task's section"
    assert options.licenses == "of the command line"
    assert options.scratch == "$SLURM_TMPDIR"


def test_a_profile_with_an_unknown_option_lists_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "profile.yml").write_text("acount: ctb\n")
    with pytest.raises(ConfigurationError, match=r"unknown acount; expected some of: account, constraint"):
        read_profile("slurm", str(tmp_path / "profile.yml"), SlurmOptions)


def test_the_preview_is_the_script_and_the_dask_layout() -> None:
    text = preview(Job(n=3))
    assert "#SBATCH --cpus-per-task=8" in text
    assert "#SBATCH --mem=32768M" in text
    assert "#SBATCH --time=60" in text
    assert text.endswith("# Dask in the job: 2 worker(s) x 4 thread(s), 15.0 GiB each of 32.0 GiB\n")


@pytest.mark.parametrize("value", ["two\nlines", "bell\a", "null\x00"])
def test_control_characters_are_refused(value: str) -> None:
    with pytest.raises(SubmissionError, match="control character"):
        preview(Job(qos=value))


def test_sizes_that_contradict_each_other_are_refused_with_the_nearest_ones() -> None:
    with pytest.raises(SizingError, match=r"cpus_per_task = 8 cannot be shared equally by n_workers = 3.*6 or 9"):
        preview(Job(n_workers=3))


def test_a_job_asks_for_no_more_than_a_node_has() -> None:
    get_config().set("slurm", "node_cpus", "2")
    get_config().set("slurm", "node_memory", "4GB")
    text = preview(Job())
    assert "#SBATCH --cpus-per-task=2" in text
    assert "#SBATCH --mem=4096M" in text


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 30.0),
        ({"heartbeat_seconds": "60"}, 60.0),
        ({"absent_after": "20"}, 5.0),
        ({"stall_timeout": "40"}, 10.0),
        ({"stall_timeout": "0"}, 30.0),
    ],
)
def test_signs_of_life_come_several_times_in_the_time_for_which_they_are_waited_for(
    options: dict[str, str], seconds: float
) -> None:
    for name, value in options.items():
        get_config().set("slurm", name, value)
    assert SECTIONS["slurm"]().batch_settings().manager.beat_seconds == seconds
