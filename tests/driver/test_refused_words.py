"""Luigi's command refuses a wrong value of this package's own options, and damaged settings, in a paragraph."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from espo_luigi.jobs.dask import imported

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
    ("words", "said"),
    [
        (["--espo-engine", "locla"], "--espo-engine: locla is not a valid choice"),
        (
            ["--worker-task-limit", "3"],
            "[worker] task_limit = 3 is less than the 4 tasks of this run, complete tasks included: leave",
        ),
    ],
)
def test_our_own_option_is_named_with_what_was_expected(tmp_path: Path, words: list[str], said: str) -> None:
    ended, told = luigi(tmp_path, "toy_tasks", "SlowOnes", "--n", "3", "--folder", ".", *words)
    assert (ended, told[: len(said)]) == (35, said)


def test_a_damaged_file_of_the_users_own_settings_of_dask_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("distributed:\n  worker: {memory: [unclosed\n")
    environ = {**os.environ, "DASK_CONFIG": str(tmp_path)}
    done = subprocess.run(
        [LUIGI, "--module", "toy_tasks", "Count", "--n", "1", "--folder", ".", "--local-scheduler"],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"Nothing was started: A dask config file at '{tmp_path}/mine.yaml' is malformed, ")
    assert "line 2, column 20" in done.stderr and done.stderr.endswith("that file, which all jobs read\n")


def test_another_error_of_dask_is_not_taken_for_a_file_of_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, *_: object) -> None:
            raise ValueError("an installation of parts that do not fit")

    monkeypatch.delitem(sys.modules, "dask")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ValueError, match="an installation of parts that do not fit"):
        runpy.run_path(imported.__file__)
