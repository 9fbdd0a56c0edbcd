"""Names in luigi.cfg that nothing reads are errors before anything starts; a stranger's are left alone."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from configparser import InterpolationError
from pathlib import Path

import luigi
import pytest
import toy_tasks
from hypothesis import given, settings
from hypothesis import strategies as st
from luigi.configuration import get_config
from luigi.parameter import UnconsumedParameterWarning

from espo_luigi import install
from espo_luigi.driver.install import wrong_setting
from espo_luigi.driver.settings.espo import check_names, espo
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.errors import ConfigurationError

# Sections of Luigi's documentation (configuration.rst) that no class reads, and of programs beside it.
STRANGERS = (
    "batch_notifier cors dropbox elasticsearch external_task hadoop hdfs hive kubernetes luigid mysql postgres "
    "prometheus redshift resources s3 salesforce scalding simulate snakebite spark task_history task_process_context "
    "webhdfs logging mlflow ml smtp-relay queue cluster"
)
CHECK = "from espo_luigi.driver.settings.espo import check_names; check_names()"


class mine(luigi.Config):
    place = luigi.Parameter(default=".")


def refused(**sections: Mapping[str, str]) -> str:
    get_config().read_dict(sections)
    with pytest.raises(ConfigurationError) as caught:
        check_names()
    return str(caught.value)


def refused_lines(folder: Path, code: str, luigi_cfg: str) -> list[str]:
    """The problems of a luigi.cfg that a process of its own tells."""
    (folder / "luigi.cfg").write_text(luigi_cfg)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    return [line for line in done.stderr.splitlines() if line.startswith("- ")]


@pytest.mark.parametrize(
    ("section", "key", "said"),
    [
        ("espo", "work_dir", "`[espo] work_dir`: unknown key; did you mean workdir?"),
        ("slurm", "acount", "`[slurm] acount`: unknown key; did you mean account?"),
        ("sge", "zzz", "`[sge] zzz`: unknown key. Allowed here: "),
        ("sge", "pack", "`[sge] pack`: unknown key. Allowed here: "),
        ("Count", "memroy", "`[Count] memroy`: unknown key; did you mean memory?"),
        ("Cuont", "memory", "`[Cuont]`: unknown section; did you mean Count?"),
        ("SLURM", "account", "`[SLURM]`: unknown section; did you mean slurm?"),
        ("local", "cpus", "`[local]`: unknown section. The engine local has its keys in [espo]."),
    ],
)
def test_a_wrong_name_is_told_with_the_nearest_or_else_with_all_that_are_allowed(
    section: str, key: str, said: str
) -> None:
    told = refused(**{section: {key: "1"}})
    assert told.startswith(f"luigi.cfg has a problem:\n- {said}")
    assert told.endswith("?") == said.endswith("?"), "after a hint, no list"


@pytest.mark.parametrize(
    ("section", "key", "got", "expected"),
    [
        ("Count", "cpus_per_task", "two", "a whole number, such as 4"),
        ("slurm", "poll_seconds", "1 min", "a number, such as 0.5"),
        ("espo", "live", "ja", "true or false"),
    ],
)
def test_a_number_or_boolean_that_is_none_is_told(section: str, key: str, got: str, expected: str) -> None:
    told = refused(**{section: {key: got}})
    assert told.splitlines()[1:] == [f"- `[{section}] {key}`: got {got!r}, expected {expected}."]


def test_all_problems_are_told_at_once() -> None:
    assert refused(espo={"work_dir": "x", "engin": "local"}, Fial={}).startswith("luigi.cfg has 3 problems:\n- ")


def test_names_of_luigi_of_others_and_of_the_projects_own_sections_are_left_alone() -> None:
    get_config().read_dict(
        {name: {"some": "thing"} for name in [*STRANGERS.split(), "core", "worker", "retcode", "mine"]}
    )
    get_config().read_dict({"Count": {"cpus-per-task": "1", "n": "3"}})
    get_config().defaults()["home"] = "/home"
    check_names()
    del get_config().defaults()["home"]


def test_a_key_that_a_task_lets_stand_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy_tasks.Count, "ignore_unconsumed", {"note"}, raising=False)
    get_config().read_dict({"Count": {"note": "hello"}})
    check_names()


def test_several_classes_of_projects_for_the_driver_do_not_hide_its_section(tmp_path: Path) -> None:
    twins = "from espo_luigi.driver.settings import espo\none, other = (type('espo', (espo.espo,), {}) for _ in 'ab')\n"
    (line,) = refused_lines(tmp_path, twins + CHECK, "[espo]\nwork_dir = x\n")
    assert line.startswith("- `[espo] work_dir` (luigi.cfg:2): unknown key; did you mean workdir?")


def test_a_section_of_a_rule_that_has_gone_is_told_once_with_the_rules_that_do_its_work(
    log: pytest.LogCaptureFixture,
) -> None:
    get_config().read_dict({"Rechunk": {"memory": "2GB"}})
    check_names()
    check_names()
    said = "`[Rechunk]` has no effect: that rule has gone, and [Regrid] has its work"
    assert log.messages == [said]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_a_section_is_known(section: str) -> None:
    get_config().read_dict({section: {name: "" for name, _ in SECTIONS[section].get_params()}})
    check_names()


def test_luigis_resources_are_no_misspelt_task_of_the_projects(tmp_path: Path) -> None:
    program = f"from espo_luigi.driver.task import SlurmTask\nclass Source(SlurmTask): pass\n{CHECK}"
    (line,) = refused_lines(tmp_path, program, "[resources]\nlicences = 2\n[Sourse]\n")
    assert line == "- `[Sourse]` (luigi.cfg:3): unknown section; did you mean Source?"


def test_keys_of_a_projects_own_espo_may_stand_there_before_its_module_is_imported(tmp_path: Path) -> None:
    (line,) = refused_lines(tmp_path, CHECK, "[espo]\nreport = true\nenigne = local\n[Trian]\n")
    assert line.startswith("- `[espo] enigne` (luigi.cfg:3): unknown key; did you mean engine?")


def test_file_and_line_are_told(tmp_path: Path) -> None:
    text = "[Cuont]\n[slurm]\n; nods = 3\nnodes = 1\nnods = 2\n[sge]\nnods = 1\n"
    lines = refused_lines(tmp_path, f"import toy_tasks; {CHECK}", text)
    places = ["`[Cuont]` (luigi.cfg:1)", "`[slurm] nods` (luigi.cfg:5)", "`[sge] nods` (luigi.cfg:7)"]
    assert [line.split(": ")[0] for line in lines] == [f"- {place}" for place in places]


def test_a_run_refuses_it_before_anything_starts_and_python_does_not_warn(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    get_config().read_dict({"espo": {"work_dir": "x"}})
    task = toy_tasks.Count(n=9, folder=str(tmp_path))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=UnconsumedParameterWarning)
        install()
        assert toy_tasks.run(task).status == luigi.LuigiStatusCode.SCHEDULING_FAILED
    assert "Nothing was started: luigi.cfg has a problem:\n- `[espo] work_dir`: unknown key" in log.text
    assert not task.complete()


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), max_size=12) | st.text(
    "%(){}$ab", max_size=8
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["workdir", "engine", "scratch_limit", "rerun", "config"]), TEXTS)
def test_any_text_in_luigi_cfg_is_read_or_told_with_its_key(key: str, text: str) -> None:
    get_config().read_string(f"[espo]\n{key} = {text}\n")
    told = ""
    try:
        check_names()
        told = wrong_setting_of(lambda: espo())
    except ConfigurationError as error:
        told = str(error)
    finally:
        get_config().remove_option("espo", key)
    assert not told or f"[espo] {key}" in told


def wrong_setting_of(action: Callable[[], object]) -> str:
    try:
        action()
    except ValueError as error:
        return wrong_setting(error) or f"{type(error)}: {error}"
    return ""


def test_a_wrong_value_of_one_of_several_classes_of_a_name_is_told_with_its_key() -> None:
    class Twin(luigi.Config):
        size = luigi.IntParameter()

    other = type("Twin", (luigi.Config,), {})
    get_config().read_dict({"Twin": {"size": "big"}})
    assert wrong_setting_of(Twin).startswith("luigi.cfg, `[Twin] size`: invalid literal for int()"), other


@pytest.mark.parametrize("text", ["100%", "%(HOME)s", "${NO_SUCH_VARIABLE}/x", "a%b", "%(workdir)s"])
def test_a_value_with_a_wrong_reference_is_told_with_the_spellings(text: str) -> None:
    get_config().read_string(f"[espo]\nworkdir = {text}\n[core]\nmax_reschedules = 1%\n")
    told = refused()
    assert told.startswith("luigi.cfg has a problem:\n- `[espo] workdir`")
    assert f"got {text!r}; expected `%%` for a per cent sign" in told
    with pytest.raises(ValueError, match="workdir") as caught:
        espo()
    assert "expected `%%` for a per cent sign" in wrong_setting(caught.value)
    # A section of Luigi's, which it reads by itself.
    with pytest.raises(InterpolationError) as luigis:
        get_config().get("core", "max_reschedules")
    assert "`[core] max_reschedules`: got '1%'; expected `%%`" in wrong_setting(luigis.value)


def test_a_dashboard_without_bokeh_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture
) -> None:
    get_config().set("espo", "dashboard", "true")
    monkeypatch.setitem(sys.modules, "bokeh", None)
    install()
    toy_tasks.run(toy_tasks.Count(n=9, folder=str(tmp_path)))
    assert "pip install 'espo_luigi[dashboard]'" in log.text
    assert list(tmp_path.iterdir()) == []
