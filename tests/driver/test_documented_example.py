"""The example in docs/python.md, as it stands there, run by luigi's own command."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs" / "python.md"
(CODE,) = re.findall(r"```python\n(from pathlib.*?)```", DOCS.read_text(), re.DOTALL)


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "squares.py").write_text(code)
    luigi = Path(sys.executable).parent / "luigi"
    command = [str(luigi), "--module", "squares", "Square", "--n", "100", "--local-scheduler"]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_the_documented_task_runs_alone_with_the_local_scheduler(tmp_path: Path) -> None:
    assert "climate" not in CODE and "espo_luigi.tasks" not in CODE
    done = run(tmp_path, CODE)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "square-100.txt").read_text() == str(sum(i * i for i in range(100)))
    assert "Square n=100 done" in done.stderr


def test_without_a_luigi_cfg_a_failure_still_has_its_exit_code(tmp_path: Path) -> None:
    done = run(tmp_path, CODE.replace("dask.array.arange", "dask.array.no_such_function"))
    assert done.returncode == 30
    assert "no_such_function" in done.stderr


def test_a_task_defined_in_the_script_that_is_run_is_refused_with_words(tmp_path: Path) -> None:
    (tmp_path / "squares.py").write_text(CODE + "\nluigi.build([Square(n=3)], local_scheduler=True)\n")
    command = [sys.executable, "squares.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "put it into a module of its own" in done.stderr
    assert not (tmp_path / "square-3.txt").exists()
