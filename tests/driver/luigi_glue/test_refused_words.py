"""Luigi's command refuses wrong words in a paragraph."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import toy_tasks
from luigi.parameter import MissingParameterException

from espo_luigi.driver.luigi_glue.words import reason

LUIGI = str(Path(sys.executable).parent / "luigi")


def luigi(folder: Path, module: str, *words: str) -> tuple[int, str]:
    (folder / "luigi.cfg").write_text("[core]\nlog_level = WARNING\n[espo]\nworkdir = work\n")
    done = subprocess.run(
        [LUIGI, "--module", module, *words, "--local-scheduler"], cwd=folder, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    (said,) = [line for line in done.stderr.splitlines() if "ERROR" in line]
    return done.returncode, said.partition("Nothing was started: ")[2]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["Echoes"], 1, "there is no task Echoes; did you mean Echo?"),
        (["Count", "--foldre", "."], 2, "Count has no option --foldre; did you mean --folder?"),
        (["Count", "--n"], 2, "argument --n: expected one argument"),
        (["Count", "--n", "5"], 35, "Count: --folder is missing"),
        (["Count", "--n", "five", "--folder", "."], 35, "--n 'five': invalid literal for int() with base 10: 'five'"),
        (
            ["Echo", "--text", "x", "--folder", ".", "--espo-engine", "locla"],
            35,
            "--espo-engine 'locla' is not one of: allocation, local, sge, slurm",
        ),
        (
            ["SlowOnes", "--n", "3", "--folder", ".", "--worker-task-limit", "3"],
            35,
            "[worker] task_limit = 3 is less than the 4 tasks of this run, complete tasks included: leave",
        ),
    ],
)
def test_it_is_named_with_what_was_expected(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    ended, told = luigi(tmp_path, "toy_tasks", *words)
    assert (ended, told[: len(said)]) == (code, said)
    assert "usage:" not in told


def test_a_damaged_file_of_the_users_own_settings_of_dask_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("distributed:\n  worker: {memory: [unclosed\n")
    environ = {**os.environ, "DASK_CONFIG": str(tmp_path)}
    done = subprocess.run(
        [LUIGI, "--module", "toy_tasks", "Echo", "--text", "x", "--local-scheduler"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"Nothing was started: A dask config file at '{tmp_path}/mine.yaml' is malformed, ")
    assert "line 2, column 20" in done.stderr and done.stderr.endswith("that file, which all jobs read\n")


def test_what_a_program_does_wrong_keeps_its_traceback() -> None:
    words = ["Sum", "--n", "1", "--folder", "."]
    with pytest.raises(MissingParameterException) as caught:
        toy_tasks.Count(n=1)
    assert reason(caught.value, words) == ""
    assert reason(ValueError("math domain error"), words) == ""
