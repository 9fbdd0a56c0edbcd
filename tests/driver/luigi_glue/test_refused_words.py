"""Luigi's command refuses wrong words in a paragraph."""

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
    ],
)
def test_it_is_named_with_what_was_expected(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    ended, told = luigi(tmp_path, "toy_tasks", *words)
    assert (ended, told[: len(said)]) == (code, said)
    assert "usage:" not in told


def test_what_a_program_does_wrong_keeps_its_traceback() -> None:
    words = ["Sum", "--n", "1", "--folder", "."]
    with pytest.raises(MissingParameterException) as caught:
        toy_tasks.Count(n=1)
    assert reason(caught.value, words) == ""
    assert reason(ValueError("math domain error"), words) == ""
