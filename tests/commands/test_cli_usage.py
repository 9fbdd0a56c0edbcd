"""What every subcommand of `espo` has: help with an example that is accepted, completion, exit codes, short errors."""

import configparser
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from luigi.configuration import LuigiConfigParser

from espo_luigi import tasks
from espo_luigi.commands import cli
from espo_luigi.driver.settings.profile import packaged_profiles

COMMANDS = cli.espo.commands
REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_help_fits_a_screen_and_cuts_no_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    listed = dict(line.split(maxsplit=1) for line in lines if line.startswith("  ") and line.split()[0] in COMMANDS)
    named = set(re.findall(r"`espo (\w+)`", lines[1]))
    assert "docs" in named
    assert listed.keys() | named == COMMANDS.keys()
    assert [said for said in listed.values() if not said.endswith(".") or said.endswith("...")] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_an_example_that_is_accepted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == 0
    example = re.search(rf"Example: espo ({name}\b.*)", capsys.readouterr().out)
    assert example, f"`espo {name} --help` has no example"
    _, *words = shlex.split(example[1])
    COMMANDS[name].make_context(name, words)  # a wrong one raises click.UsageError


@pytest.mark.parametrize("name", COMMANDS)
def test_the_documentation_tells_what_each_command_prints_as_json(name: str) -> None:
    has_json = any("--json" in one.opts for one in COMMANDS[name].params)
    assert has_json == (f"\n## espo {name}\n" in (REFERENCE / "json.md").read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("foo", r"espo: there is no command foo\. See `espo --help`\."),
        ("staus", r"espo: there is no command staus; did you mean status\? See `espo --help`\."),
        ("--debgu plan", r"espo: there is no option --debgu; did you mean --debug\? See `espo --help`\."),
        ("plan --regoin x", r"espo plan: there is no option --regoin; did you mean --region\? See .*"),
        ("shell --memroy 4GB", r"espo shell: there is no option --memroy; did you mean --memory\? .*"),
        ("plan --dag", r"espo plan: .*'--dag' requires an argument\. See `espo plan --help`\."),
        ("make", r"espo make: Missing argument 'PATH'\. See `espo make --help`\."),
        ("make a b", r"espo make: Got unexpected extra argument \(b\)\. See `espo make --help`\."),
        ("make a --workers many", r"espo make: Invalid value for '--workers': 'many' is not a valid integer\. .*"),
        (
            "init --from dmo",
            r"espo init: Invalid value for '--from': 'dmo' is not one of 'demo', 'demo-downscaled', 'demo-humid', .*",
        ),
        ("env", r"espo env: expected one of .*"),
        ("env --compile --wheelhouse w", r"espo env: expected one of .*"),
    ],
)
def test_a_wrong_command_line_is_exit_code_2_and_a_paragraph(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words.split()) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert re.fullmatch(f"{said}\n", found.err)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (["RefDefalt"], r"No task RefDefalt. Did you mean:\nRefDefault(\n\w+)*"),
        (["RefDefault"], r"RefDefault: requires the 'piece' parameter to be set"),
    ],
)
def test_words_that_luigi_refuses_are_an_error_in_one_paragraph(
    parameters: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["script", *parameters]) == 1
    assert re.fullmatch(rf"espo: {said}\n", capsys.readouterr().err, re.DOTALL)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("engine", "slrm", r"got 'slrm', expected one of: allocation, local, sge, slurm; did you mean slurm\?"),
        ("publish", "maybe", "got 'maybe', expected true or false\\."),
        ("local_cpus", "many", "got 'many', expected a whole number, such as 4\\."),
    ],
)
def test_a_wrong_value_in_luigi_cfg_is_named_with_what_was_expected(
    option: str, value: str, said: str, own_settings: LuigiConfigParser, capsys: pytest.CaptureFixture[str]
) -> None:
    own_settings.set("espo", option, value)
    assert cli.main(["tasks"]) == 1
    assert re.fullmatch(
        rf"espo: luigi\.cfg, `\[espo\] {option}`( \(luigi\.cfg:\d+\))?: {said}\n", capsys.readouterr().err
    )


def test_an_unexpected_error_is_one_line_and_with_debug_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def defect() -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("espo_luigi.driver.settings.profile.packaged_profiles", defect)
    assert cli.main(["profiles", "--json"]) == 1
    assert capsys.readouterr().err == (
        "espo: RuntimeError: a defect (`espo --debug profiles --json` shows where in the program)\n"
    )
    with pytest.raises(RuntimeError, match="a defect"):
        cli.main(["--debug", "profiles", "--json"])


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("espo pro", {"profiles"}),
        ("espo clean --", {"--yes", "--json", "--help"}),
        ("espo profiles na", {name for name in packaged_profiles() if name.startswith("na")}),
    ],
)
def test_bash_is_offered_what_completes_a_word(line: str, offered: set[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_ESPO_COMPLETE": "bash_complete"}
    command = [sys.executable, "-m", "espo_luigi.commands.cli"]
    done = subprocess.run(command, env=os.environ | words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {answer.removeprefix("plain,") for answer in done.stdout.split()} == offered


def test_the_help_imports_nothing_that_takes_long() -> None:
    program = (
        "import sys; from espo_luigi.commands import cli; cli.main(['--help']); "
        "print({'luigi', 'xarray', 'yaml', 'logging'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "set()", done.stdout + done.stderr


def test_cancel_where_nothing_runs_says_that_alone(tmp_path: Path) -> None:
    (tmp_path / "luigi.cfg").write_text("[espo]\nconfig = config.yml\nreport = true\n")
    command = [sys.executable, "-m", "espo_luigi.commands.cli", "cancel"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0 job(s) cancelled\n", "")


def test_the_table_of_rules_has_a_line_of_the_screen_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert cli.main(["rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(hasattr(tasks, line.split()[0]) for line in lines[1:]) and max(map(len, lines)) == 80
    assert any(re.match(r"Train +pool piece var +what a method learns", line) for line in lines)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"workdir = x\n", "luigi.cfg, line 1: got 'workdir = x\\n', expected a `[section]` before the first key"),
        (b"[espo\nworkdir = x\n", "luigi.cfg, line 1: got '[espo\\n', expected a `[section]` before the first key"),
        (b"[espo]\nworkdir\n", "luigi.cfg, line 2: got 'workdir\\n', expected `key = value`"),
        (b"[espo]\na = 1\na = 2\n", "luigi.cfg, line 3: a second `a` in [espo]; remove one"),
        (b"[espo]\n[espo]\n", "luigi.cfg, line 2: a second [espo]; join the two sections"),
        (b"[espo]\nworkdir = \xe9\n", "luigi.cfg, line 2: got the byte 0xe9, expected text in UTF-8: save the file so"),
    ],
)
def test_a_luigi_cfg_that_cannot_be_read_is_told_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("luigi.cfg").write_bytes(content)
    with pytest.raises((ValueError, configparser.Error)) as caught:
        LuigiConfigParser().read("luigi.cfg", encoding="utf-8")
    assert cli._unexpected(caught.value, ["status"]) == told
