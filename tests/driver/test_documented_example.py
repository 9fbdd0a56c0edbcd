"""The examples of documents, as they stand there."""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

PROJECT = Path(__file__).parent.parent.parent
PYTHON = (PROJECT / "docs" / "extend" / "python.md").read_text()
(CODE,) = re.findall(r"```python\n(from pathlib.*?)```", PYTHON, re.DOTALL)
(SCIENCE,) = re.findall(r"```python\n(from espo_luigi.config.*?)```", PYTHON, re.DOTALL)


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


def series(first: str, last: str, seed: int) -> xr.DataArray:
    """Daily maxima of two cells."""
    time = xr.date_range(first, last, calendar="noleap", use_cftime=True)
    values = np.random.default_rng(seed).normal(280 + seed, 5, (time.size, 2)).astype("float32")
    cells = {"lat": ("loc", [45.0, 46.0]), "lon": ("loc", [-70.0, -69.0])}
    return xr.DataArray(values, {"time": time, **cells}, ("time", "loc"), "tasmax", {"units": "K"})


def test_the_documented_call_of_the_science_takes_the_arguments_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(PROJECT / "config" / "demo")
    given = {
        "reference": series("1991-01-01", "2020-12-31", 1),
        "historical": series("1991-01-01", "2020-12-31", 5),
        "simulation": series("1991-01-01", "2030-12-31", 5),
    }
    exec(SCIENCE, given)
    scenario = given["scenario"].sel(time=slice("1991", "2020"))
    np.testing.assert_allclose(scenario.mean("time"), given["reference"].mean("time"), atol=0.5)


def test_what_the_documents_say_that_a_configuration_means_is_what_python_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(PROJECT / "config" / "espo-g6")
    for name in ("SCRATCH", "OUTPUT", "CATALOGS"):
        monkeypatch.setenv(f"ESPO_{name}", f"/site/{name.lower()}")
    failed, tried = doctest.testfile(str(PROJECT / "docs" / "reference" / "configuration.md"), module_relative=False)
    assert (failed, tried) == (0, 4)
