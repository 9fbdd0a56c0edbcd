"""The `espo` command, as a user gives it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from given_commands import espo
from json_shapes import check_shape
from small_demo import SMALL_CONFIG, ensure_small_demo

from espo_luigi.commands import cli
from espo_luigi.tasks import make

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository's luigi.cfg and the demo's configuration, as the README's reader has, in small."""
    here = tmp_path_factory.mktemp("here")
    (here / "config").symlink_to(REPOSITORY / "config")
    settings = (REPOSITORY / "luigi.cfg").read_text()
    (here / "luigi.cfg").write_text(settings.replace("demo/paths.yml", f"demo/paths.yml {SMALL_CONFIG}"))
    ensure_small_demo(here / "espo-demo" / "raw")
    return here


def test_rules_lists_every_rule_and_those_that_are_named_with_their_files(folder: Path) -> None:
    head, *rows = espo(folder, "rules").stdout.splitlines()
    assert head.split() == ["rule", "parameters", "what", "it", "makes"]
    names = {rule.__name__ for rule in make.rules()}
    assert {row.split()[0] for row in rows} == names and len(rows) == len(names)
    assert [row.split()[1:4] for row in rows if row.startswith("Train ")] == [["pool", "piece", "var"]]
    done = espo(folder, "rules", *names)
    assert done.returncode == 0, done.stderr
    # "Rule: what it does." and, indented, "port  template".
    blocks = re.findall(r"^(\w+): \S.*\.\n((?: +\w+  \S+\n)+)", done.stdout, re.MULTILINE)
    assert sum(1 + ports.count("\n") for _, ports in blocks) == done.stdout.count("\n"), done.stdout
    listed = {rule: dict(line.split() for line in ports.splitlines()) for rule, ports in blocks}
    assert listed.keys() == names
    demo = f"{folder}/espo-demo"
    assert listed["Train"] == {"out_training": demo + "/work/{pool}+{piece}+{var}+training.zarr"}
    assert listed["Move"] == {
        "out_scenario": demo + "/final/NAM_SPLIT/{piece}/day+{sim_id}+{piece}+1950-2100.zarr.zip",
        "out_regridded": demo + "/final/regridded/day+{sim_id}+{piece}+regchunked.zarr.zip",
    }
    told = json.loads(espo(folder, "rules", "--json").stdout)
    check_shape("rules", told)
    assert {rule: one["files"] for rule, one in told.items()} == listed
    assert json.loads(espo(folder, "rules", "Train", "--json").stdout) == {"Train": told["Train"]}


def test_a_rule_that_there_is_not_is_an_error_that_names_the_nearest(folder: Path) -> None:
    done = espo(folder, "rules", "Trian")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "espo: there is no rule Trian here. Did you mean Train? `espo rules` lists them.\n"


@pytest.mark.parametrize("arguments", [("rules",), ("--help",), ("rules", "--help")])
def test_a_reader_that_goes_away_ends_the_command_quietly(folder: Path, arguments: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "espo_luigi.commands.cli", *arguments]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        command, cwd=folder, env=environ, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert done.stderr == ""
    assert done.returncode == 128 + signal.SIGPIPE


def test_a_broken_pipe_that_is_not_the_readers_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(module: str) -> None:
        raise BrokenPipeError("a connection of the work itself")

    monkeypatch.setattr("espo_luigi.tasks.make.rules", broken)
    with pytest.raises(BrokenPipeError, match="of the work itself"):
        cli.main(["--debug", "rules"])
    assert cli.main(["rules"]) == 1
    assert capfd.readouterr().err == "espo: a connection of the work itself\n"


def test_make_builds_the_file_that_is_named_and_tasks_tells_what_it_took(folder: Path) -> None:
    wanted = folder / "espo-demo" / "final" / "reference" / "Demo-Land+south+noleap.zarr"
    done = espo(folder, "make", str(wanted))
    assert done.returncode == 0, done.stderr
    assert (wanted / "zarr.json").exists()
    again = espo(folder, "make", str(wanted))
    assert again.returncode == 0, again.stderr
    assert f"Nothing to do: what was asked for is there already: {wanted}" in again.stderr
    told = espo(folder, "tasks")
    assert told.stderr == ""
    table = told.stdout
    assert [line.split()[0] for line in table.splitlines()] == [
        "rule",
        "RefInputCheck",
        "RefDefault",
        "ReferenceCalendar",
    ]
    figures = json.loads(espo(folder, "tasks", "--json").stdout)
    check_shape("tasks", figures)
    assert [one["rule"] for one in figures] == [line.split()[0] for line in table.splitlines()[1:]]
    assert [one["jobs"] for one in figures] == [1, 1, 1]
    assert all(0 < one["total_seconds"] == one["longest_seconds"] for one in figures)
    # The cost of a second region is learnt from these.
    planned = json.loads(espo(folder, "plan", "ReferenceCalendar", "--region", "middle", "--json").stdout)
    check_shape("plan", planned)
    costs = {one["rule"]: one["cost"] for one in planned["tasks"] if one["state"] == "to run"}
    assert costs.keys() == {"RefDefault", "ReferenceCalendar"}
    assert all(cost["basis"] == "jobs" and cost["seconds"] > 0 and cost["files"] > 10 for cost in costs.values())


def test_the_backend_of_a_notebook_in_a_different_environment_is_ignored_where_figures_are_drawn(folder: Path) -> None:
    environ = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    paths = os.pathsep.join([str(REPOSITORY), environ.get("PYTHONPATH", "")])
    job = "from espo_luigi import job\njob.run_order = lambda *_: not __import__('matplotlib')\nexit(job.main(['']))"
    command = "from espo_luigi.commands import cli\ncli.main(['--version'])\nimport matplotlib"
    for program in (command, job):
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, cwd=folder, env={**environ, "PYTHONPATH": paths}, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_path_that_no_task_makes_is_an_error_that_names_the_nearest(folder: Path) -> None:
    done = espo(folder, "make", "espo-demo/final/reference/Demo-Land+suoth+noleap.zarr")
    assert done.returncode == 1
    assert "no task makes" in done.stderr
    assert "--region 'suoth' is not one of: south, middle, north" in done.stderr
    assert "Demo-Land+south+noleap.zarr" in done.stderr
    assert "Traceback" not in done.stderr


def test_script_prints_what_would_be_submitted_and_the_dask_layout(folder: Path) -> None:
    done = espo(folder, "script", "RefDefault", "--region", "south", "--memory", "60GB", "--qos", "it's $(high)")
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --mem=61440M" in done.stdout
    assert "#SBATCH --cpus-per-task=10" in done.stdout
    assert '#SBATCH --qos="it\'s $(high)"' in done.stdout
    assert "# Dask in the job: 2 worker(s) x 5 thread(s), 29.0 GiB each of 60.0 GiB" in done.stdout
    assert not (folder / "slurm_logs").exists()


def test_catalog_makes_a_catalogue_and_lists_what_it_could_not_read(folder: Path, tmp_path: Path) -> None:
    raw = folder / "espo-demo" / "raw"
    broken = raw / "reconstruction" / "tasmax_day_broken_historical_r1i1p1f1_gn_19500101-19501231.nc"
    broken.write_bytes(b"not NetCDF")
    try:
        command = ("catalog", str(raw / "reconstruction"), "--out", str(tmp_path / "cat.json"))
        done, told = espo(folder, *command), json.loads(espo(folder, *command, "--json").stdout)
    finally:
        broken.unlink()
    check_shape("catalog", told)
    assert (told["found"], list(told["unreadable"])) == (3, [str(broken)])
    assert done.returncode == 0, done.stderr
    assert "3 file(s)" in done.stdout
    assert broken.name in done.stdout
    assert json.loads((tmp_path / "cat.json").read_text())["assets"]["column_name"] == "path"


def test_detach_without_a_driver_says_so(folder: Path) -> None:
    done = espo(folder, "detach")
    assert done.returncode == 0
    assert "no driver works in" in done.stdout


def test_names_and_messages_of_others_reach_the_terminal_as_text(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a\x1b[2J.nc").write_bytes(b"no NetCDF")
    done = espo(tmp_path, "catalog", str(raw), "--out", str(tmp_path / "cat.json"))
    assert done.returncode == 1
    assert "a\\x1b[2J.nc" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("settings", "words", "told"),
    [
        ("\ufeff[espo]\n", ["plan"], "espo: luigi.cfg: got a byte order mark, expected text in UTF-8 without it"),
        ("[espo]\nworkdir = work\n", ["why", "One"], "`espo status` tells how they stand"),
    ],
    ids=["byte order mark", "own tasks"],
)
def test_a_luigi_cfg_that_does_not_serve_is_told_with_the_remedy(
    settings: str, words: list[str], told: str, tmp_path: Path
) -> None:
    (tmp_path / "luigi.cfg").write_text(settings, "utf-8")
    code = "from espo_luigi.commands.cli import main; raise SystemExit(main())"
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and told in done.stderr
