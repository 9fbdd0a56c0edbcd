"""What `espo shell` and `espo submit` give to Slurm, beside what the document of the Institut quantique says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from luigi.configuration import LuigiConfigParser, get_config

from espo_luigi.commands import cli
from espo_luigi.commands.interactive import OPTIONS, allocation_command, request_of, script_command
from espo_luigi.errors import EspoError, SubmissionError

# Their aliases, as that document has them.
ALIASES = {
    "salloc-iq": ("salloc", "-p c-iq"),
    "sbatch-iq": ("sbatch", "-p c-iq"),
    "salloc-iq-gpu": ("salloc", "-p c-iq --nodelist=cp3705"),
    "sbatch-iq-gpu": ("sbatch", "-p c-iq --nodelist=cp3705"),
}


@pytest.fixture(autouse=True)
def own_section(own_settings: LuigiConfigParser) -> None:
    own_settings.remove_section("slurm")


@pytest.mark.parametrize("alias", ALIASES)
def test_a_profile_is_what_an_alias_of_the_document_gives(alias: str, tmp_path: Path) -> None:
    program, options = ALIASES[alias]
    given = {"profile": "iq-gpu" if alias.endswith("gpu") else "iq"}
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --time=3:00:00 --mem-per-cpu=1G\n#SBATCH --ntasks=40\n")
    if program == "salloc":
        command, rest = allocation_command(request_of(given), []), {"--nodes=1", "--ntasks-per-node=1"}
        rest |= {"--cpus-per-task=1", "--mem=8192M", "--time=60"}
    else:
        command, rest = script_command(request_of(given), given, script, ["x"]), {"--parsable", str(script), "x"}
    assert command[0] == program
    assert set(command[1:]) - rest == set(options.replace("-p ", "--partition=").split())


def test_the_command_line_goes_before_luigi_cfg_and_that_before_the_profile() -> None:
    said = {"profile": "iq", "memory": "9GB", "account": "of luigi.cfg", "extra": '{"reservation": "maintenance"}'}
    get_config().read_dict({"slurm": said})
    command = allocation_command(request_of({"account": "50% mine", "time": "1-0", "nodes": "2"}), ["hostname", "-f"])
    assert command == (
        "salloc",
        "--nodes=2",
        "--cpus-per-task=1",
        "--mem=9216M",
        "--time=1440",
        "--ntasks-per-node=1",
        "--partition=c-iq",
        "--account=50% mine",
        "--reservation=maintenance",
        "hostname",
        "-f",
    )


@pytest.mark.parametrize(
    ("header", "given", "sizes"),
    [
        ("#SBATCH --time=10\n#SBATCH --mem=1G\n", {"memory": "2G"}, ["--mem=2048M"]),
        ("#SBATCH --time-min=5 -t3\n", {}, ["--mem=8192M"]),
        ("#SBATCH --time-min=5\n", {"nodes": "2"}, ["--nodes=2", "--mem=8192M", "--time=60", "--ntasks-per-node=1"]),
    ],
)
def test_of_a_script_the_command_lines_sizes_stand_then_its_own_then_those_of_luigi_cfg(
    tmp_path: Path, header: str, given: dict[str, str], sizes: list[str]
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{header}")
    given = {"profile": "iq", **given}
    command = script_command(request_of(given), given, script, [])
    assert [word for word in command if word.startswith(("--mem", "--time", "--nodes", "--nt"))] == sizes


@pytest.mark.parametrize("name", sorted(OPTIONS.keys() - {"profile", "memory", "time", "cpus_per_task", "nodes"}))
def test_no_value_holds_what_a_terminal_or_slurm_would_take_for_more_than_text(name: str) -> None:
    with pytest.raises(EspoError, match="control character"):
        allocation_command(request_of({name: "a\nb"}), [])


def test_a_scheduler_that_is_not_slurm_is_refused_with_its_own_commands() -> None:
    get_config().set("espo", "engine", "sge")
    with pytest.raises(SubmissionError, match=r"engine = sge, .* on Grid Engine, give qrsh or qsub with"):
        request_of({})


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("shell", "--memory", "8 apples"), "memory = 8 apples: '8 apples' is not an amount of memory"),
        (("shell", "--cpus-per-task", "0"), "cpus_per_task = 0; expected at least 1"),
        (("shell", "--profile", "narval"), "needs your own account"),
        (("shell", "--profile", "in2p3", "--account", "a", "--memory", "64G"), "64GB is more than the 32GB"),
        (("submit", "nowhere.sh"), "there is no file nowhere.sh to submit"),
        (("submit", "--time", "5", "luigi", "--module", "toy_tasks", "Fail"), "too little for a driver"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_submitted(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for program in ("salloc", "sbatch"):
        (tmp_path / program).write_text("#!/bin/sh\ntouch submitted\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    get_config().read_dict({"espo": {"engine": "slurm"}, "slurm": {"profile": "iq"}})
    assert cli.main([*words]) == 1
    assert says in capsys.readouterr().err
    assert not (tmp_path / "submitted").exists()


@pytest.mark.parametrize(("program", "words"), [("salloc", ("shell", "true")), ("sbatch", ("submit", "job.sh"))])
def test_settings_that_concern_other_commands_cause_no_warning(
    tmp_path: Path, program: str, words: tuple[str, ...]
) -> None:
    (tmp_path / "luigi.cfg").write_text("[espo]\nengine = slurm\nfinal_format = zip\n[slurm]\nprofile = iq\n")
    (tmp_path / "job.sh").write_text("#!/bin/bash\n")
    (tmp_path / program).write_text("#!/bin/sh\necho 7\n")
    (tmp_path / program).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "espo_luigi.commands.cli", *words],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "7" in done.stdout
