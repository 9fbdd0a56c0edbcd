"""`espo init` writes a folder that can be run as it is, and overwrites nothing."""

import os
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from espo_luigi import config
from espo_luigi.commands import cli
from espo_luigi.config.schema import fingerprint
from espo_luigi.config.usual import NEWEST

ROOT = Path(__file__).parents[2]
# The demo's files go on after the daily scenarios.
NAMED = {"demo": "config.yml paths.yml outcomes.yml"}
RAW = dict.fromkeys(("ESPO_OUTPUT", "ESPO_SCRATCH", "ESPO_CATALOGS"), "/site")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in RAW.items():
        monkeypatch.setenv(name, value)


def settings_of(*paths: Path) -> dict[str, dict[str, str]]:
    parser = ConfigParser(interpolation=None)
    assert parser.read(paths) == [str(path) for path in paths]
    return {name: dict(section) for name, section in parser.items() if name != "DEFAULT"}


@pytest.mark.parametrize("start", ["demo", "demo-downscaled", "demo-humid", "espo-g6", "espo-v2", "v2-demo"])
def test_the_configuration_is_the_repositorys(start: str) -> None:
    assert cli.main(["init", "mine", "--from", start]) == 0
    written = {path.name: path.read_text() for path in Path("mine").iterdir()}
    theirs = {path.name: path.read_text() for path in (ROOT / "config" / start).iterdir() if path.name != "luigi.cfg"}
    assert written == theirs | {name: written[name] for name in ("README.md", "luigi.cfg")}
    assert f"\nusual: {NEWEST}\n" in written["config.yml"], "a later version may have other usual settings"


@pytest.mark.parametrize("start", ["demo", "demo-downscaled", "demo-humid", "espo-g6", "espo-v2", "v2-demo"])
def test_luigi_cfg_names_the_files_beside_it_which_are_valid(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["init", "mine", "--from", start]) == 0
    monkeypatch.chdir("mine")
    named = settings_of(Path("luigi.cfg"))["espo"]["config"]
    assert named == NAMED.get(start, "config.yml paths.yml")
    loaded = config.load([Path(name) for name in named.split()])
    project = loaded.project.name if loaded.project else ""
    assert project == {
        "demo": "ESPO-demo",
        "demo-downscaled": "ESPO-downscaled",
        "demo-humid": "ESPO-humid",
        "espo-g6": "ESPO-G6-E5L",
    }.get(start, "")
    assert (loaded.subregions is not None) == ("v2" in start)


def test_settings_are_the_repositorys_but_for_the_places() -> None:
    assert cli.main(["init", "mine"]) == 0
    expected = settings_of(ROOT / "luigi.cfg")
    expected["espo"] |= {"config": NAMED["demo"]}
    assert settings_of(Path("mine/luigi.cfg")) == expected
    assert cli.main(["init", "g6", "--from", "espo-g6"]) == 0
    expected |= settings_of(ROOT / "config" / "espo-g6" / "luigi.cfg")
    expected["espo"] |= {"workdir": "espo-work", "config": "config.yml paths.yml"}
    assert settings_of(Path("g6/luigi.cfg")) == expected
    assert cli.main(["init", "v2", "--from", "v2-demo"]) == 0
    demo, jobs = settings_of(Path("mine/luigi.cfg")), settings_of(ROOT / "config" / "v2-demo" / "luigi.cfg")
    demo["espo"] |= {"workdir": "espo-v2-demo/run", "config": "config.yml paths.yml"}
    assert settings_of(Path("v2/luigi.cfg")) == demo | jobs


def parts(folder: Path) -> dict[str, str]:
    loaded = config.load([folder / "config.yml", folder / "paths.yml"])
    return {"hash": loaded.hash, **{name: fingerprint(loaded, name) for name in type(loaded).model_fields}}


@pytest.mark.parametrize("start", ["espo-g6", "espo-v2"])
def test_a_translation_of_older_files_means_the_same_in_current_keys(start: str) -> None:
    assert cli.main(["init", "new", "--import", str(ROOT / "config" / start)]) == 0
    assert parts(Path("new")) == parts(ROOT / "config" / start)
    written = Path("new/config.yml").read_text()
    assert written.startswith("project:") or start == "espo-v2"
    assert f"\nusual: {NEWEST}\n" in written
    for old in ("amno_region", "full_region", "xsdba_train_args", "finalNAM", "diagregion", "CaSR:", "chunks:\n  w"):
        assert old not in written
    assert settings_of(Path("new/luigi.cfg"))["espo"]["config"] == "config.yml paths.yml"


def test_an_import_takes_the_files_that_luigi_cfg_names_and_overwrites_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["init", "old", "--from", "espo-v2"]) == 0
    Path("old/config.yml").rename("old/mine.yml")
    settings = Path("old/luigi.cfg")
    settings.write_text(settings.read_text().replace("config = config.yml", "config = mine.yml"))
    with Path("old/mine.yml").open("a") as file:
        file.write("project: {name: ESPO-Mine}\n")
    assert cli.main(["init", "new", "--import", "old"]) == 0
    assert config.load([Path("new/config.yml"), Path("new/paths.yml")]).project.name == "ESPO-Mine"
    assert settings_of(Path("new/luigi.cfg"))["espo"] == settings_of(ROOT / "luigi.cfg")["espo"] | {
        "config": "config.yml paths.yml",
        "workdir": "espo-work",
    }
    assert cli.main(["init", "new", "--import", "old"]) == 1
    assert "already has" in capsys.readouterr().err
    assert cli.main(["init", "other", "--import", "new"]) == 0
    assert Path("other/config.yml").read_text() == Path("new/config.yml").read_text()


@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_is_overwritten(is_link: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = tmp_path / "paths.yml"
    theirs.symlink_to("gone") if is_link else theirs.write_text("mine")
    assert cli.main(["init"]) == 1
    assert "already has paths.yml" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [theirs]
    assert is_link or theirs.read_text() == "mine"


def test_a_folder_that_holds_other_files_is_filled_and_the_next_step_told(capsys: pytest.CaptureFixture[str]) -> None:
    here = Path("my runs")
    here.mkdir()
    (here / "notes.txt").write_text("mine")
    assert cli.main(["init", "my runs"]) == 0
    *written, last = capsys.readouterr().out.splitlines()
    assert {Path(line) for line in written} | {here / "notes.txt"} == set(here.iterdir())
    assert last == "Next: `cd 'my runs'`, then `espo plan`; README.md has the other steps."
    assert len((here / "README.md").read_text().splitlines()) <= 10


def test_a_run_in_a_folder_without_luigi_cfg_says_in_two_lines_how_to_have_one() -> None:
    command = [sys.executable, "-m", "luigi", "--module", "espo_luigi.tasks", "All", "--local-scheduler"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (35, "")
    first, second = done.stderr.splitlines()
    assert f"Nothing was started: {Path.cwd()} has no luigi.cfg" in first and "`espo init`" in second


def older(folder: str, luigi_cfg: str, **files: str) -> None:
    assert cli.main(["init", folder, "--from", "espo-g6"]) == 0
    Path(folder, "luigi.cfg").write_text(luigi_cfg)
    for name, text in files.items():
        Path(folder, f"{name}.yml").write_text(text)


def test_an_import_reads_luigi_cfg_as_a_run_does_and_replaces_the_names_of_the_files_only() -> None:
    older(
        "old",
        "[first]\nconfig = theirs.conf\n[espo]\nworkdir = w\nconfig = config.yml, paths.yml\n    'my own.yml'\n"
        "report = true\n[last]\nconfig = theirs.conf\n",
    )
    Path("old/my own.yml").write_text("project: {version: 9}\n")
    assert cli.main(["init", "new", "--import", "old"]) == 0
    assert settings_of(Path("new/luigi.cfg")) == {
        "first": {"config": "theirs.conf"},
        "espo": {"workdir": "w", "config": "config.yml paths.yml", "report": "true"},
        "last": {"config": "theirs.conf"},
    }
    assert config.load([Path("new/config.yml"), Path("new/paths.yml")]).project.version == "9"


@pytest.mark.parametrize("name", ["nowhere.yml", "$NOT_SET/p.yml", "config.yml"])
def test_an_import_copies_a_file_of_properties_or_says_that_it_is_missing(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    older(
        "old", "[espo]\nconfig = main.yml\n", main=f"off-diag: {{a: {{properties: {name}}}}}\n", config="indicators: {}"
    )
    done = cli.main(["init", "new", "--import", "old"])
    if name == "nowhere.yml":
        assert done == 1
        assert "got 'nowhere.yml', expected a YAML file of properties; looked in" in capsys.readouterr().err
    else:
        kept = str(Path("old/config.yml").absolute()) if name == "config.yml" else name
        assert (done, f"properties: {kept}" in Path("new/config.yml").read_text()) == (0, True)


def test_an_import_names_files_of_indicators_of_warming_and_of_regions_by_their_full_paths() -> None:
    older(
        "old",
        "[espo]\nconfig = main.yml\n",
        main="indicators: {module: mine.yml}\nwarming_levels: {tas_src: means.csv}\n",
        mine="indicators: {}",
    )
    Path("old/means.csv").write_text("year\n")
    assert cli.main(["init", "new", "--import", "old"]) == 0
    written = Path("new/config.yml").read_text()
    assert f"module: {Path('old/mine.yml').absolute()}\n" in written
    assert f"tas_src: {Path('old/means.csv').absolute()}\n" in written
    Path("old/main.yml").write_text("indicators: {module: anuclim}\n")
    assert cli.main(["init", "other", "--import", "old"]) == 0
    assert "module: anuclim\n" in Path("other/config.yml").read_text()


def test_an_import_makes_nothing_readable_by_more_people_and_comments_out_what_would_run_as_me(
    capsys: pytest.CaptureFixture[str],
) -> None:
    older(
        "old",
        "[espo]\nconfig = main.yml\nnotify = curl -T x elsewhere\n[smtp]\npassword = xyz\n[slurm]\nsetup =\n  a\n\n"
        "# b\n  c\naccount = d\n[sge]\n  Python: /theirs/python\n[core]\nlogging-conf-file=l.cfg\n",
        main="off-diag: {a: {properties: p.yml}}\n",
        p="{}",
    )
    Path("old/luigi.cfg").chmod(0o600)
    assert cli.main(["init", "new", "--import", "old"]) == 0
    assert {path.stat().st_mode & 0o077 for path in Path("new").iterdir()} == {0}
    assert settings_of(Path("new/luigi.cfg")) == {
        "espo": {"config": "config.yml paths.yml"},
        "smtp": {"password": "xyz"},
        "slurm": {"account": "d"},
        "sge": {},
        "core": {},
    }
    told = capsys.readouterr().out
    assert "lines of old run something as you" in told and "notify = curl" in told and "/theirs/python" in told


@pytest.mark.parametrize("name", ["luigi.cfg", "config.yml", "p.yml"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_an_import_follows_no_link_out_of_the_folder_and_waits_for_no_pipe(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older("old", "[espo]\nconfig = config.yml\n", config="off-diag: {a: {properties: p.yml}}\n", p="{}")
    (tmp_path / "secret").write_text("[espo]\npassword: xyz\n")
    (there := Path("old", name)).unlink()
    there.symlink_to(tmp_path / "secret") if kind == "link" else os.mkfifo(there)
    assert cli.main(["init", "new", "--import", "old"]) == 1
    told = capsys.readouterr().err
    assert name in told and "xyz" not in told and (kind == "pipe" or "outside of old" in told)
    assert not Path("new").exists()
