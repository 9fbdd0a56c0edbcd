"""`espo env --compile` compiles what jobs would, once, and says where that is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import espo_luigi
from espo_luigi.commands import environment
from espo_luigi.errors import InstallationError
from espo_luigi.methods.dqm import compilation

PACKAGE = Path(espo_luigi.__file__).parent
KERNELS = PACKAGE / "methods" / "dqm" / "kernels"


def espo_env_compile(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "espo_luigi.commands.cli", "env", "--compile"]
    environ = {**os.environ, "PYTHONPATH": paths, **environ}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_after_it_no_process_has_anything_to_compile_and_the_code_is_where_it_says(tmp_path: Path) -> None:
    done = compilation.compile_all()
    again = espo_env_compile(tmp_path)
    assert again.returncode == 0, again.stderr
    where = f"machine code for this kind of processor ({done.processor}) is in {done.folder}\n"
    assert again.stdout == f"nothing to do: the kernels' {where}"
    kept = {path.name.split("-")[0] for path in Path(done.folder).glob("*.nbc")}
    assert kept >= {f"{one.py_func.__module__.rpartition('.')[2]}.{one.__name__}" for one in compilation._KERNELS}


def test_a_chosen_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = espo_env_compile(tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "file"))
    assert done.returncode == 1
    assert f"NUMBA_CACHE_DIR = {tmp_path / 'file'} is not used: it cannot be made or looked at" in done.stderr


def test_where_nothing_can_be_kept_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_KERNELS", ())
    with pytest.raises(InstallationError, match="set NUMBA_CACHE_DIR to a folder"):
        compilation.compile_all()


@pytest.mark.parametrize("functions", [0, 120])
def test_code_in_the_users_own_cache_folder_is_said_to_be_for_one_user(
    functions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    done = compilation.Compilation(functions, 61.7, "znver4", str(tmp_path / "kernels-1"))
    monkeypatch.setattr(compilation, "compile_all", lambda: done)
    text = environment.compile_kernels()
    assert text.startswith(f"{functions} functions compiled in 62 s: " if functions else "nothing to do: ")
    assert "this code is for you alone" in text and "NUMBA_CACHE_DIR" in text
    beside = done._replace(folder=str(KERNELS / "__pycache__" / "k"))
    monkeypatch.setattr(compilation, "compile_all", lambda: beside)
    assert "NUMBA_CACHE_DIR" not in environment.compile_kernels()
