"""Profiles of clusters: their values, what they inherit, a site's refusals, and that an installation has them."""

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import get_config

from espo_luigi import Resources, SlurmTask
from espo_luigi.commands import cli
from espo_luigi.driver.engines import engine
from espo_luigi.driver.run import preview
from espo_luigi.driver.settings.profile import PROFILES, describe, login_host_of, packaged_profiles, values_of
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.driver.task import without_effect
from espo_luigi.driver.worker import EspoWorker
from espo_luigi.errors import ConfigurationError, SubmissionError
from espo_luigi.jobs.engine import BatchEngine
from espo_luigi.jobs.local import LocalEngine
from espo_luigi.jobs.resources import GIB
from espo_luigi.jobs.schedulers.slurm import SlurmOptions
from espo_luigi.jobs.settings import BatchSettings

REPOSITORY = Path(__file__).parents[3]


class Silent(SlurmTask):
    """Says nothing of memory and time."""

    resources_default = Resources(n_workers=1, cpus_per_task=2)


class Sized(SlurmTask):
    """Says all."""

    resources_default = Resources(n_workers=1, cpus_per_task=40, memory="50GB", time="1000")


@pytest.fixture()
def chosen(tmp_path: Path) -> Callable[..., BatchSettings]:
    """Choose a profile of this text, with other values of [slurm]; return how the engine then works."""

    def choose(text: str, **others: str) -> BatchSettings:
        (tmp_path / "mine.yml").write_text(text)
        get_config().read_dict({"slurm": {"profile": tmp_path / "mine.yml", **others}})
        return SECTIONS["slurm"]().batch_settings()

    return choose


def test_there_is_a_profile_for_each_cluster_of_the_documents() -> None:
    assert {"narval", "iq", "mila", "in2p3", "sge", "workstation"} <= set(packaged_profiles())


@pytest.mark.parametrize("name", packaged_profiles())
def test_the_sections_of_schedulers_take_the_packaged_profiles(name: str) -> None:
    # Inherited values count, too.
    scheduler = yaml.safe_load(describe(name).partition("\n")[2]).get("scheduler")
    for section, kind in SECTIONS.items():
        get_config().set(section, "profile", name)
        if scheduler in (None, section):
            kind().batch_settings()
        else:
            with pytest.raises(ConfigurationError, match=f"for engine = {scheduler}; name it in .{scheduler}."):
                kind()


def test_narval_submits_as_the_snakemake_profile_of_espo_g_does() -> None:
    get_config().read_dict({"slurm": {"profile": "narval", "account": "ctb-frigon"}})
    text = preview(Silent())
    for directive in ("partition=c-frigon", "account=ctb-frigon", "constraint=genoa", "qos=high_priority"):
        assert f"#SBATCH --{directive}\n" in text
    assert "#SBATCH --mem=61440M\n" in text
    assert "#SBATCH --time=5\n" in text
    assert "refused" not in text
    how = SECTIONS["slurm"]().batch_settings()
    assert (how.retries, how.max_jobs, how.patience.latency_wait) == (3, 500, 60.0)
    assert (how.max_submit_per_second, how.max_status_per_second) == (10.0, 10.0)


def test_a_partition_with_grace_is_known_by_its_name() -> None:
    slurm = SECTIONS["slurm"]
    assert slurm.profile_called("mila-grace").options["partition"] == "main-grace"
    grace = {name: dict(slurm.profile_called(name).site.grace) for name in ("mila-grace", "mila-gcp", "mila-aws")}
    assert grace == {"mila-grace": {"*-grace": 120}, "mila-gcp": {"*": 30}, "mila-aws": {"*": 120}}


def test_memory_and_time_of_a_profile_are_for_rules_that_say_none(chosen: Callable[..., BatchSettings]) -> None:
    assert Silent().order("slurm").resources == Resources(1, 2, "4GB", "1:00:00").completed()
    chosen("memory: 60GB\ntime: 5\n")
    assert Silent().order("slurm").resources == Resources(1, 2, "60GB", "5").completed()
    assert Silent().order("local").resources == Resources(1, 2, "4GB", "1:00:00").completed()
    assert Sized().order("slurm").resources == Sized.resources_default.completed()
    assert Silent(memory="7GB").order("slurm").resources == Resources(1, 2, "7GB", "5").completed()
    get_config().set("slurm", "time", "9")
    assert Silent().order("slurm").resources == Resources(1, 2, "60GB", "9").completed()


@pytest.mark.parametrize("told", [True, False])
def test_memory_of_the_section_that_no_task_of_a_run_takes_is_told(
    told: bool, chosen: Callable[..., BatchSettings]
) -> None:
    chosen("time: 5\n", memory="60GB")
    get_config().set("espo", "engine", "slurm")
    words = "[slurm] memory = 60GB changes no job of this run, as each rule has its own: set `memory` in the section of"
    expected = [f"{words} a rule, such as [Sized], or give --Sized-memory 60GB"]
    assert without_effect([Sized()] if told else [Sized(), Silent()]) == (expected if told else [])
    get_config().set("espo", "engine", "local")
    assert without_effect([Sized()]) == []


def test_a_driver_warns_of_memory_that_changes_no_job(
    chosen: Callable[..., BatchSettings], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chosen("time: 5\n", memory="60GB")
    get_config().set("espo", "engine", "slurm")
    monkeypatch.setattr("espo_luigi.driver.worker.engine", lambda name: SimpleNamespace(check=list))
    EspoWorker()._checked(Sized())
    assert [one.levelname for one in caplog.records if "memory = 60GB changes no job" in one.message] == ["WARNING"]
    caplog.clear()
    EspoWorker()._checked(Silent())
    assert "changes no job" not in caplog.text


def test_settings_of_a_profile_stand_between_the_defaults_and_luigi_cfg(chosen: Callable[..., BatchSettings]) -> None:
    text = "retries: 7\nmax_jobs: 20\npoll_seconds: 3\n"
    assert chosen(text).retries == 7
    # Said in luigi.cfg, a value counts even if it is the default.
    how = chosen(text, retries="2")
    assert (how.retries, how.max_jobs, how.poll_seconds) == (2, 20, 3.0)
    with CmdlineParser.global_instance(
        ["--module", "toy_tasks", "Count", "--slurm-max-jobs", "9"], allow_override=True
    ):
        assert SECTIONS["slurm"]().batch_settings().max_jobs == 9


def test_the_fast_folder_of_a_profile_is_used(chosen: Callable[..., BatchSettings]) -> None:
    chosen("scratch: /fast\n")
    assert Silent().order("slurm").options.scratch == "/fast"
    get_config().set("slurm", "scratch", "$SLURM_TMPDIR")
    assert Silent().order("slurm").options.scratch == "$SLURM_TMPDIR"


def test_a_profile_inherits_entries_of_tables_and_may_leave_things_out(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "base.yml").write_text(
        "extends: in2p3\nenvironment: {A: 1, B: 1}\nexclude: n1,n2\nlimits: {cpus: 8}\naccount: ours\n"
    )
    mine = tmp_path / "sub" / "mine.yml"
    mine.write_text("extends: ../base.yml\nlicenses: ~\nenvironment: {B: 2}\nexclude: n3\nmemory: 2G\n")
    profile = SECTIONS["slurm"].profile_called(str(mine))
    assert profile.options == {
        "partition": "htc",
        "account": "ours",
        "environment": {"A": "1", "B": "2"},
        "exclude": ("n3",),
    }
    workers = {"scheduler_profile": "in2p3-daemon"}
    assert profile.settings == {"memory": "2G", "time": "02:00:00", "log_dir": "log", "worker_jobs": workers}
    assert profile.site.limits == {"memory": 32 * GIB, "cpus": 8, "time": 480, "jobs": 3000}
    assert profile.site.missing(SlurmOptions(account="ours")) == []


def test_a_profile_may_lift_inherited_entries_of_tables_and_its_parent(tmp_path: Path) -> None:
    slurm = SECTIONS["slurm"]
    (tmp_path / "base.yml").write_text(
        "extends: narval\nenvironment: {A: 1, B: 1}\nextra: {exclusive: ''}\nlimits: {cpus: 8}\n"
    )
    mine = tmp_path / "mine.yml"
    mine.write_text("extends: base.yml\nneeds: {account: ~}\nlimits: {cpus: ~, jobs: null}\nenvironment: {A: ~}\n")
    profile = slurm.profile_called(str(mine))
    assert (profile.site.needs, profile.site.limits) == ({}, {"time": 7 * 1440})
    # An empty value makes a flag.
    assert (profile.options["environment"], profile.options["extra"]) == ({"B": "1"}, {"exclusive": ""})
    (tmp_path / "again.yml").write_text("extends: mine.yml\nlimits: {cpus: 4}\n")
    assert slurm.profile_called(str(tmp_path / "again.yml")).site.limits == {"time": 7 * 1440, "cpus": 4}
    (tmp_path / "alone.yml").write_text("extends: ~\naccount: ours\n")
    assert slurm.profile_called(str(tmp_path / "alone.yml")).options == {"account": "ours"}


def test_an_amount_that_luigi_cfg_overrides_is_read_all_the_same(chosen: Callable[..., BatchSettings]) -> None:
    with pytest.raises(ConfigurationError, match=r"mine.yml: memory = much: "):
        chosen("memory: much\n", memory="4G")


def test_a_circle_of_profiles_is_an_error_that_names_its_way(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("extends: b.yml\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.yml").write_text("extends: sub/../a.yml\n")
    with pytest.raises(ConfigurationError, match=r"a.yml: extends b.yml: extends sub/../a.yml: a circle"):
        SECTIONS["slurm"].profile_called(str(tmp_path / "a.yml"))


def test_an_unknown_name_is_an_error_with_the_names_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"profile = narwal: there is no file .*; .* in2p3, .* narval, .*; did you mean narval\?",
    ):
        SECTIONS["slurm"].profile_called("narwal")
    (tmp_path / "mine.yml").write_text("extends: narwal\n")
    with pytest.raises(ConfigurationError, match=r"mine.yml: extends narwal: there is no file"):
        SECTIONS["slurm"].profile_called(str(tmp_path / "mine.yml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("retries: many", "retries = many: expected a whole number"),
        ("on_sigterm: shrug", "on_sigterm = shrug: "),
        ("limits: {disk: 1}", "limits: disk: unknown key. Allowed here: cpus, jobs, memory, steps, time"),
        ("limits: {cpus: all}", "limits: cpus = all: expected a whole number"),
        ("limits: {memory: much}", "limits: memory = much: 'much' is not an amount"),
        ("limits: {time: soon}", "limits: time = soon: 'soon' is not a duration"),
        ("limits: 5", "limits = 5: expected names with values"),
        ("needs: {acount: ctb}", r"needs: acount: unknown key; did you mean account\?"),
        ("grace: {main: soon}", "grace: main = soon: expected a whole number"),
        ("memory: much", "memory = much: 'much' is not an amount"),
        ("node_memory: much", "node_memory = much: "),
        ("memory_cap: much", "memory_cap = much: "),
        ("time: soon", "time = soon: 'soon' is not a duration"),
        ("time_cap: soon", "time_cap = soon: "),
        ("max_jobs: 1.5", "max_jobs = 1.5: expected a whole number"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_profile(
    chosen: Callable[..., BatchSettings], text: str, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"^\[slurm\] profile = .*mine.yml: " + words):
        chosen(text)


@pytest.mark.parametrize("name", ["memory", "node_memory", "memory_cap", "time", "time_cap"])
def test_a_bad_amount_in_luigi_cfg_is_an_error_that_names_the_key(
    chosen: Callable[..., BatchSettings], name: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^luigi.cfg, \[slurm\]: {name} = 3XB: "):
        chosen("", **{name: "3XB"})


def test_the_memory_of_this_machine_that_is_no_amount_is_an_error_that_names_the_key() -> None:
    get_config().set("espo", "local_memory", "3XB")
    with pytest.raises(ConfigurationError, match=r"^luigi.cfg, \[espo\]: local_memory = 3XB: "):
        engine("local")


def test_what_exceeds_a_limit_is_refused_with_both_numbers(chosen: Callable[..., BatchSettings]) -> None:
    how = chosen("limits: {memory: 32G, cpus: 32, time: 08:00:00, jobs: 300, steps: 10}\n", max_jobs="301")
    order = Sized().order("slurm")
    refusals = how.site.refusals(order.resources, order.options, how.max_jobs)
    asked = [one.partition(f" that {how.site.where} allows")[0] for one in refusals]
    assert asked == [
        "memory = 50GB is more than the 32GB",
        "cpus = 40 is more than the 32",
        "time = 16:40:00 is more than the 8:00:00",
        "max_jobs = 301 is more than the 300",
    ]
    assert how.site.exceeded(steps=11) == [f"steps = 11 is more than the 10 that {how.site.where} allows"]
    assert how.site.exceeded(steps=10, memory=32 * GIB, time=480, cpus=32, jobs=300) == []


@pytest.mark.parametrize(("limit", "jobs"), [("100", 100), ("1000", 500)])
def test_who_asks_for_no_number_of_jobs_gets_as_many_as_the_site_allows(
    chosen: Callable[..., BatchSettings], limit: str, jobs: int
) -> None:
    how = chosen(f"limits: {{jobs: {limit}}}\n")
    assert how.max_jobs == SECTIONS["slurm"]().max_jobs == jobs
    assert "refused" not in preview(Silent())


@pytest.mark.parametrize(("profile", "section"), [("max_jobs: 500\n", {}), ("", {"max_jobs": "500"})])
def test_a_number_of_jobs_that_was_asked_for_is_refused_by_its_name(
    chosen: Callable[..., BatchSettings], profile: str, section: dict[str, str]
) -> None:
    chosen("limits: {jobs: 100}\n" + profile, **section)
    assert "# Would be refused: max_jobs = 500 is more than the 100 that " in preview(Silent())


def test_the_engine_refuses_before_it_starts_and_the_script_can_be_seen(chosen: Callable[..., BatchSettings]) -> None:
    how = chosen("extends: in2p3\naccount: ours\n")
    order = Sized().order("slurm")
    cluster = engine("slurm")
    assert isinstance(cluster, BatchEngine)
    with pytest.raises(
        SubmissionError, match=r"^Sized: memory = 50GB is more than the 32GB .*; cpus = 40 is more than"
    ):
        cluster.check([order])
    assert not any(how.state_dir.glob("records/*"))
    text = preview(Sized())
    assert "#SBATCH --mem=51200M\n" in text
    assert f"# Would be refused: memory = 50GB is more than the 32GB that {how.site.where} allows\n" in text


def test_jobs_fitted_to_small_nodes_are_compared_as_they_are_asked_for(chosen: Callable[..., BatchSettings]) -> None:
    chosen("limits: {memory: 32G, cpus: 32}\nnode_memory: 32G\nnode_cpus: 16\n")
    assert "refused" not in preview(Sized())


def test_retries_grow_no_further_than_the_limits(chosen: Callable[..., BatchSettings]) -> None:
    how = chosen("limits: {memory: 32G, time: 08:00:00}\n")
    assert (how.memory_cap_bytes, how.time_cap_minutes) == (32 * GIB, 480)
    how = chosen("limits: {memory: 32G, time: 08:00:00}\n", memory_cap="10G", time_cap="2-00:00:00")
    assert (how.memory_cap_bytes, how.time_cap_minutes) == (10 * GIB, 480)


def test_submissions_that_count_as_no_attempt_have_a_limit_of_their_own(chosen: Callable[..., BatchSettings]) -> None:
    assert chosen("max_uncharged: 7\n").max_uncharged == 7
    assert chosen("max_uncharged: 7\n", max_uncharged="0").max_uncharged == 0


def test_a_missing_account_is_asked_for_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SBATCH_ACCOUNT", raising=False)
    get_config().set("slurm", "profile", "narval")
    line = "[slurm] profile = narval needs your own account: write `account = …` below it (such as ctb-frigon)"
    cluster = engine("slurm")
    assert isinstance(cluster, BatchEngine)
    with pytest.raises(SubmissionError) as refused:
        cluster.check([Silent().order("slurm")])
    assert str(refused.value) == f"Silent: {line}"
    assert f"# Would be refused: {line}\n" in preview(Silent())
    assert "refused" not in preview(Silent(account="ctb-mine"))
    monkeypatch.setenv("SBATCH_ACCOUNT", "ctb-mine")
    assert "refused" not in preview(Silent())


def test_login_hosts_are_known_with_and_without_their_domain() -> None:
    names = packaged_profiles()
    assert login_host_of("narval3", names) == "narval"
    assert login_host_of("narval1.narval.calcul.quebec", names) == "narval"
    assert login_host_of("login-2", names) == "mila"
    assert login_host_of("cca015.in2p3.fr", ["mila", "in2p3"]) == "in2p3"
    assert login_host_of("nc31222", names) is None


@pytest.mark.parametrize("name", packaged_profiles())
def test_login_hosts_of_packaged_profiles_are_found_without_yaml(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (*_, host) = yaml.safe_load((PROFILES / f"{name}.yml").read_text()).get("login_hosts") or ["none"]
    monkeypatch.setitem(sys.modules, "yaml", None)
    found = login_host_of(host.replace("[0-9]*", "7"), packaged_profiles())
    assert found == (None if host == "none" else name)
    with pytest.raises(ConfigurationError, match=f"profile {name}: a profile needs PyYAML: run `pip install PyYAML`"):
        values_of(name)


def test_the_local_engine_is_refused_on_a_login_host_unless_it_is_allowed(
    chosen: Callable[..., BatchSettings],
) -> None:
    host = socket.gethostname()
    chosen(f"login_hosts: ['{host[:-1]}?']\n")
    with pytest.raises(SubmissionError, match=rf"^{host} is a login host \(profile .*mine.yml\), .* allow_login_host"):
        engine("local")
    get_config().set("espo", "allow_login_host", "true")
    assert isinstance(engine("local"), LocalEngine)


def test_a_profile_that_is_not_there_does_not_keep_the_local_engine_from_working() -> None:
    get_config().set("slurm", "profile", "of-another-machine.yml")
    assert isinstance(engine("local"), LocalEngine)


def test_espo_profiles_lists_all_with_what_they_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["profiles"]) == 0
    shown = capsys.readouterr().out
    blocks = dict(block.split("\n", 1) for block in shown.strip().split("\n\n"))
    assert sorted(blocks) == packaged_profiles()
    assert "  parallel_environment: threaded\n" in blocks["sge"]
    daemon = yaml.load(blocks["in2p3-daemon"], Loader=yaml.BaseLoader)
    assert (daemon["partition"], daemon["time"]) == ("htc_daemon", "08:00:00")
    assert daemon["limits"] == {"memory": "32G", "cpus": "1", "time": "08:00:00", "jobs": "3000"}
    assert "licenses" not in daemon


def test_espo_profiles_shows_one_by_name_or_path_so_that_it_can_be_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yml").write_text("extends: narval\naccount: 012345\nsetup: |\n  module load a\n  true\n")
    assert cli.main(["profiles", str(tmp_path / "mine.yml")]) == 0
    name, text = capsys.readouterr().out.split("\n", 1)
    assert name == str(tmp_path / "mine.yml")
    (tmp_path / "copy.yml").write_text(text)
    slurm = SECTIONS["slurm"]
    copy, mine = (slurm.profile_called(str(tmp_path / one)) for one in ("copy.yml", "mine.yml"))
    assert (copy.options, copy.settings) == (mine.options, mine.settings)
    assert mine.options["account"] == "012345"
    assert cli.main(["profiles", "narwal"]) == 1
    assert "there is no file" in capsys.readouterr().err
