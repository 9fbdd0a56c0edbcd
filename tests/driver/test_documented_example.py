"""The examples of documents, as they stand there."""

import doctest
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client
from store_examples import make

PROJECT = Path(__file__).parent.parent.parent
EXTEND = PROJECT / "docs" / "extend"


def blocks_of(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (EXTEND / page).read_text(), re.DOTALL | re.MULTILINE)


CODE, WITH_DASK = blocks_of("slurm-task.md", "python")
INSTALL, COMMANDS = blocks_of("slurm-task.md", "sh")
RUN, SCIENCE, OPENING, CLUSTER = blocks_of("python.md", "python")


def shell(folder: Path, commands: str) -> subprocess.CompletedProcess[str]:
    """Give a page's commands in `folder`, as its reader does."""
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def run(folder: Path, code: str, task: str = "Square") -> subprocess.CompletedProcess[str]:
    (folder / "squares.py").write_text(code)
    return shell(folder, COMMANDS.replace("Square", task))


@pytest.mark.parametrize("task", ["Square", "DaskSquare"])
def test_the_documented_task_runs_alone_with_the_local_scheduler(task: str, tmp_path: Path) -> None:
    assert "climate" not in CODE and "espo_luigi.tasks" not in CODE
    done = run(tmp_path, CODE + WITH_DASK, task)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "square-100.txt").read_text() == str(sum(i * i for i in range(100)))
    assert f"{task} n=100 done" in done.stderr


def test_without_a_luigi_cfg_a_failure_still_has_its_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, CODE.replace("sum(", "no_such_function("))
    assert done.returncode == 30
    assert "no_such_function" in done.stderr


def test_a_module_beside_the_script_that_imports_it_is_found_by_its_job_wherever_the_script_is_run(
    tmp_path: Path,
) -> None:
    (here := tmp_path / "here").mkdir()
    (there := tmp_path / "there").mkdir()
    (there / "squares.py").write_text(CODE)
    (there / "main.py").write_text(
        "import luigi\nfrom squares import Square\n"
        "if __name__ == '__main__':\n    luigi.build([Square(n=3)], local_scheduler=True)\n"
    )
    command = [sys.executable, str(there / "main.py")]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False)
    assert (here / "square-3.txt").read_text() == "5", done.stderr


def test_a_task_defined_in_the_script_that_is_run_is_refused_with_words(tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(CODE + "\nluigi.build([Square(n=3)], local_scheduler=True)\n")
    command = [sys.executable, "squares.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "put it into a module of its own" in done.stderr
    assert not (tmp_path / "square-3.txt").exists()


def test_the_documented_call_of_the_science_runs_as_pasted_in_the_demo_s_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PROJECT / "config" / "demo")
    given: dict[str, Any] = {}
    exec(SCIENCE, given)
    assert float(capsys.readouterr().out) == pytest.approx(281, abs=0.5)
    scenario = given["scenario"].sel(time=slice("1991", "2020"))
    np.testing.assert_allclose(scenario.mean("time"), given["reference"].mean("time"), atol=0.5)


def test_the_documented_build_runs_as_a_script_with_a_task_of_the_demo_in_place_of_all(tmp_path: Path) -> None:
    assert shell(tmp_path, "espo init demo").returncode == 0
    small = "RefInputCheck()"
    code = RUN.replace("import All", "import RefInputCheck").replace("All()", small)
    assert small in code
    (tmp_path / "demo" / "run.py").write_text(code)
    (command,) = blocks_of("python.md", "sh")
    done = shell(tmp_path / "demo", command)
    assert done.stdout.startswith("True ") and "1 RefInputCheck" in done.stdout, done.stdout + done.stderr


def test_the_documented_opening_of_products_prints_each_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("espo-demo/final/final/NAM")
    folder.mkdir(parents=True)
    make(7, folder / "pr.zarr.zip")
    exec(OPENING, {})
    assert "pr       (time, loc)" in capsys.readouterr().out


def test_the_documented_session_asks_for_what_the_cluster_takes_and_its_code_runs_on_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a cluster of this machine, in place of jobs; sessions on a real Slurm are in test_many_nodes.py."""
    asked: list[Any] = []

    @contextmanager
    def here(workers: Any, *_: Any, **__: Any) -> Iterator[Client]:
        asked.append(workers)
        with Client(processes=False, n_workers=workers.workers_to_wait_for, dashboard_address=None) as client:
            yield client

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("espo_luigi.jobs.dask.jobqueue.jobqueue_session", here)
    exec(CLUSTER, {"__name__": "__main__"})
    assert json.loads(capsys.readouterr().out) == [n * n for n in range(100)]
    assert asked[0].options["account"] == "def-someone"


def test_what_the_documents_say_that_a_configuration_means_is_what_python_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(PROJECT / "config" / "espo-g6")
    for name in ("SCRATCH", "OUTPUT", "CATALOGS"):
        monkeypatch.setenv(f"ESPO_{name}", f"/site/{name.lower()}")
    failed, tried = doctest.testfile(str(PROJECT / "docs" / "reference" / "configuration.md"), module_relative=False)
    assert (failed, tried) == (0, 4)
