"""The sources of a job's Slurm options, and the refusals before anything is submitted."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import luigi
import pytest
import yaml
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import get_config

from espo_luigi import Resources, SlurmTask
from espo_luigi.driver import engines
from espo_luigi.driver.run import preview
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.errors import ConfigurationError, SubmissionError
from espo_luigi.jobs.resources import parse_memory
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.slurm import SlurmOptions


class Job(SlurmTask):
    n = luigi.IntParameter(default=1)
    resources_default = Resources(n_workers=2, cpus_per_task=8, memory="32GB", time="1:00:00")
    options_default = {"slurm": dict.fromkeys(("qos", "constraint", "gres", "licenses"), "of the rule")}


def test_steps_of_an_allocation_ask_for_no_memory_where_luigi_cfg_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(engines, "Steps", lambda _, options: made.append(options))
    monkeypatch.setattr(engines, "LocalEngine", lambda *_: None)
    monkeypatch.setattr(engines._held, "hold", lambda lock: None)
    get_config().set("slurm", "memory_resource", "none")
    engines._made("allocation")
    assert slurm.memory_asked(made[0], 2**30, 1) == {}


def test_each_source_overrides_the_ones_before_it(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yml"
    profile.write_text("account: of the profile\nqos: of the profile\nsetup: |\n  module load python\n")
    said = {"profile": profile, "constraint": "of luigi.cfg", "gres": "of luigi.cfg"}
    get_config().read_dict({"slurm": said, "Job": {"gres": "of the task's section"}})
    options = Job(licenses="of the command line").order("slurm").options
    assert isinstance(options, SlurmOptions)
    assert options.account == "of the profile"
    assert options.setup == "module load python\n"
    assert options.qos == "of the rule"
    assert options.constraint == "of luigi.cfg"
    assert options.gres == "of the task's section"
    assert options.licenses == "of the command line"
    assert options.scratch == "$SLURM_TMPDIR"


@pytest.mark.parametrize(
    ("words", "qos", "memory"),
    [
        ([], "of [Count]", "2GB"),
        (["--slurm-qos", "of all"], "of [Count]", "2GB"),
        (["--Count-qos", "of Counts", "--slurm-memory", "9GB"], "of Counts", "2GB"),
        (["--Count-memory", "3GB"], "of [Count]", "3GB"),
    ],
)
def test_of_the_command_line_and_luigi_cfg_the_rules_own_value_counts(words: list[str], qos: str, memory: str) -> None:
    get_config().read_dict({"slurm": {"qos": "of [slurm]"}, "Count": {"qos": "of [Count]", "memory": "2GB"}})
    command = ["--module", "toy_tasks", "Count", "--n", "1", "--folder", ".", *words]
    with CmdlineParser.global_instance(command, allow_override=True) as parser:
        order = parser.get_task_obj().order("slurm")
    assert (order.options.qos, order.resources.memory) == (qos, parse_memory(memory))


def test_jobs_are_run_by_the_python_that_the_profile_names(tmp_path: Path) -> None:
    assert f"\nexec {sys.executable} -P -m espo_luigi.job " in preview(Job())
    (tmp_path / "profile.yml").write_text("python: python\nsetup: source $SLURM_TMPDIR/env/bin/activate\n")
    get_config().set("slurm", "profile", str(tmp_path / "profile.yml"))
    assert "\nexec python -P -m espo_luigi.job " in preview(Job())


HOW_TO = Path(__file__).parents[3] / "docs" / "run"
# The packaged profiles, which tests/driver/settings/test_profiles.py reads, are in blocks that the code makes.
MADE = re.compile(r"<!-- made: .*?<!-- end made -->", re.DOTALL)
PROFILES = [
    dedent(found)
    for page in ("offline.md", "cluster.md")
    for found in re.findall(r"```yaml\n(.*?) *```", MADE.sub("", (HOW_TO / page).read_text()), re.DOTALL)
]


def test_the_pages_have_a_profile_for_each_way_to_install_and_for_a_cluster() -> None:
    assert len(PROFILES) >= 5


@pytest.mark.parametrize("profile", PROFILES)
def test_each_profile_of_the_documents_makes_a_script(profile: str, tmp_path: Path) -> None:
    (tmp_path / "profile.yml").write_text(profile)
    get_config().set("slurm", "profile", str(tmp_path / "profile.yml"))
    script = preview(Job())
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    said = yaml.safe_load(profile)
    assert said.get("setup", "").strip() in script
    assert ("\nexec python -P -m espo_luigi.job " in script) == ("python" in said)
    assert all(f"export {name}={value}\n" in script for name, value in said.get("environment", {}).items())


def test_the_preview_is_the_script_and_the_dask_layout() -> None:
    text = preview(Job(n=3))
    assert "#SBATCH --cpus-per-task=8" in text
    assert "#SBATCH --mem=32768M" in text
    assert "#SBATCH --time=60" in text
    assert text.endswith("# Dask in the job: 2 worker(s) x 4 thread(s), 15.0 GiB each of 32.0 GiB\n")


def test_a_job_asks_for_no_more_than_a_node_has() -> None:
    get_config().read_dict({"slurm": {"node_cpus": "2", "node_memory": "4GB"}})
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
    get_config().read_dict({"slurm": options})
    assert SECTIONS["slurm"]().batch_settings().beat_seconds == seconds


def profile_of(folder: Path, text: str) -> Mapping[str, object]:
    (folder / "profile.yml").write_text(text)
    return SECTIONS["slurm"].profile_called(str(folder / "profile.yml")).options


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("account: 12345", "account", "12345"),
        ("account: 012345", "account", "012345"),
        ("qos: 1_0", "qos", "1_0"),
        ("partition: yes", "partition", "yes"),
        ("environment: {THREADS: 4, A: 1.50, B: true}", "environment", {"THREADS": "4", "A": "1.50", "B": "true"}),
        ("extra: {gpus-per-node: 1, exclusive: }", "extra", {"gpus-per-node": "1", "exclusive": ""}),
        ("exclude: n1,n2", "exclude", ("n1", "n2")),
        ("exclude: [n1, n2]", "exclude", ("n1", "n2")),
        ("exclude: 'n[1-3,7], m1'", "exclude", ("n[1-3,7]", "m1")),
        ("exclude: 17", "exclude", ("17",)),
    ],
)  # fmt: skip
def test_scalars_of_a_profile_are_text_and_lists_may_be_written_as_text(
    tmp_path: Path, text: str, name: str, value: object
) -> None:
    assert profile_of(tmp_path, text) == {name: value}
    get_config().set("slurm", "profile", str(tmp_path / "profile.yml"))
    assert getattr(Job().order("slurm").options, name) == value or name == "qos", "the rule has a QOS of its own"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- account", r"expected options, such as 'account: ctb-somebody', not \['account'\]"),
        ("account: [a, b]", r"account = \['a', 'b'\]: expected text or a number"),
        ("environment: A=1", "environment = A=1: expected names with values"),
        ("extra: {a: {b: 1}}", r"extra: a = {'b': '1'}: expected text or a number"),
        ("exclude: [[n1]]", r"exclude = \[\['n1'\]\]: expected text"),
    ],
)
def test_a_value_of_another_kind_is_an_error_with_the_profiles_name(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^\[slurm\] profile = .*profile.yml: " + words):
        profile_of(tmp_path, text)


def test_options_of_a_rule_that_nothing_reads_are_refused() -> None:
    misspelt: Any = type("Misspelt", (Job,), {"options_default": {"slrum": {"qos": "low"}}})
    with pytest.raises(SubmissionError, match="'slrum'; expected slurm or sge"):
        misspelt().check()


def test_numbers_in_luigi_cfg_and_in_a_rule_are_text_too(monkeypatch: pytest.MonkeyPatch) -> None:
    get_config().set("slurm", "environment", '{"NUMBA_NUM_THREADS": 4}')
    get_config().set("Job", "extra", '{"gpus-per-node": 1}')
    monkeypatch.setattr(Job, "options_default", {"slurm": {"exclude": ["n1"], "account": 7}})
    options = Job().order("slurm").options
    assert isinstance(options, SlurmOptions)
    assert (options.environment, options.extra) == ({"NUMBA_NUM_THREADS": "4"}, {"gpus-per-node": "1"})
    assert (options.exclude, options.account) == (("n1",), "7")
