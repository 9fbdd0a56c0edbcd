"""Machine code that is kept: it follows every kernel module, and one process makes it."""

from __future__ import annotations

import ast
import errno
import fcntl
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from strangers import NOBODY, as_root

import espo_luigi
from espo_luigi.methods.dqm import kernel_cache

PACKAGE = Path(espo_luigi.__file__).parent
METHODS = PACKAGE / "methods"
KERNELS = PACKAGE / "methods" / "dqm" / "kernels"
KERNELS_NAME = "espo_luigi.methods.dqm.kernels"
# A kernel in a module of its own, which calls a helper of another one.
TOY = """
from espo_luigi.methods.dqm.kernels.compiled import compiled
from espo_luigi.methods.dqm.kernels.loess import tricube

@compiled
def weigh(distance):
    return tricube(distance, 2.0)
"""
RUN = """
import logging, sys
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
from espo_luigi.methods.dqm.kernels.toy_kernels import weigh
print(weigh(1.0), sum(weigh.stats.cache_misses.values()), weigh.stats.cache_path)
"""


@pytest.fixture()
def copy(tmp_path: Path) -> Path:
    """A folder with copies of the package's modules and the toy kernel."""
    (tmp_path / "espo_luigi" / "methods" / "dqm" / "kernels").mkdir(parents=True)
    for module in (
        "__init__.py",
        "methods/__init__.py",
        "methods/dqm/__init__.py",
        "methods/dqm/kernels/__init__.py",
        "errors.py",
        "redaction.py",
        "files.py",
        "methods/dqm/kernels/compiled.py",
        "methods/dqm/kernel_cache.py",
    ):
        shutil.copy(PACKAGE / module, tmp_path / "espo_luigi" / module)
    shutil.copy(KERNELS / "loess.py", tmp_path / "espo_luigi" / "methods" / "dqm" / "kernels")
    (tmp_path / "espo_luigi" / "methods" / "dqm" / "kernels" / "toy_kernels.py").write_text(TOY)
    return tmp_path


def start(copy: Path, **environment: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    environ |= {"PYTHONPATH": str(copy), "HOME": str(copy / "home")} | environment
    return subprocess.Popen([sys.executable, "-c", RUN], cwd=copy, env=environ, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> tuple[float, int, Path]:
    """What the kernel returned, how often it was compiled, and where it is kept."""
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    *told, last = out.splitlines()
    value, compilations, folder = last.split()
    assert [line for line in told if "Compiling toy_kernels.weigh " in line] or compilations == "0"
    return float(value), int(compilations), Path(folder)


def test_an_edited_helper_in_another_module_is_compiled_anew(copy: Path) -> None:
    value, compilations, folder = said(start(copy))
    assert (value, compilations) == ((1 - 0.5**3) ** 3, 1)
    assert folder.parent == copy / "espo_luigi" / "methods" / "dqm" / "kernels" / "__pycache__"
    assert said(start(copy)) == (value, 0, folder)
    helper = copy / "espo_luigi" / "methods" / "dqm" / "kernels" / "loess.py"
    helper.write_text(helper.read_text().replace("relative = distance / half_width", "relative = distance / 4.0"))
    assert said(start(copy))[:2] == ((1 - 0.25**3) ** 3, 1)


def test_processes_that_start_together_compile_once(copy: Path) -> None:
    together = [start(copy, NUMBA_CACHE_DIR=str(copy / "kept")) for _ in range(3)]
    results = [said(process) for process in together]
    assert sorted(compilations for _, compilations, _ in results) == [0, 0, 1]
    assert {folder for _, _, folder in results} == {results[0][2]}
    assert results[0][2].is_relative_to(copy / "kept")


def test_processes_that_cannot_wait_for_each_other_never_get_the_code_of_other_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def total(values: Any) -> Any:
        return values.sum()

    def nowhere(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", nowhere)
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    dispatcher = numba.njit(total)
    # Arrays of the same values, side by side or not: with the code of the other, sums are wrong without a word.
    one, other = (numba.typeof(np.zeros(4)[::step]) for step in (1, 2))
    made = {kind: (dispatcher.compile((kind,)), dispatcher.overloads[kind,])[1] for kind in (one, other)}
    first, second = (kernel_cache.KernelCache(total) for _ in range(2))
    # Both read the list of what is there before either writes it; the first's code is written last.
    save = first._cache_file._save_data
    monkeypatch.setattr(second._cache_file, "_load_index", dict)

    def save_last(*code: Any) -> None:
        second.save_overload((other,), made[other])
        save(*code)

    monkeypatch.setattr(first._cache_file, "_save_data", save_last)
    first.save_overload((one,), made[one])
    found = [kernel_cache.KernelCache(total).load_overload((kind,), dispatcher.targetctx) for kind in (one, other)]
    assert [None if code is None else code.signature.args for code in found] == [None, (other,)]


def test_an_installation_elsewhere_finds_what_the_first_has_compiled(
    copy: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "copy"
    shutil.copytree(copy, elsewhere)
    kept = str(copy / "kept")
    value, compilations, folder = said(start(copy, NUMBA_CACHE_DIR=kept))
    assert compilations == 1
    shutil.rmtree(copy / "espo_luigi")
    assert said(start(elsewhere, NUMBA_CACHE_DIR=kept)) == (value, 0, folder)


def test_a_process_that_was_killed_while_it_compiled_holds_nobody_up(copy: Path) -> None:
    holder = start(copy)
    deadline = time.monotonic() + 300
    kept = copy / "espo_luigi" / "methods" / "dqm" / "kernels" / "__pycache__"
    while not list(kept.glob("kernels-*/*.lock")) and time.monotonic() < deadline:
        time.sleep(0.01)
    holder.kill()
    holder.communicate()
    started = time.monotonic()
    assert said(start(copy))[:2] == ((1 - 0.5**3) ** 3, 1)
    assert time.monotonic() - started < kernel_cache._PATIENCE_SECONDS / 2


def test_where_the_package_cannot_be_written_the_code_is_in_the_users_cache(copy: Path) -> None:
    (
        copy / "espo_luigi" / "methods" / "dqm" / "kernels" / "__pycache__"
    ).touch()  # no folder, which not even root can write in
    _, compilations, folder = said(start(copy))
    assert compilations == 1 and folder.is_relative_to(copy / "home")
    assert said(start(copy))[1:] == (0, folder)


@as_root
@pytest.mark.parametrize("how", ["another account's", "others may write it"])
def test_code_that_others_may_have_written_is_not_read(copy: Path, how: str) -> None:
    kept = copy / "kept"
    value, _, folder = said(start(copy, NUMBA_CACHE_DIR=str(kept)))
    assert folder.parent == kept
    if how == "others may write it":
        folder.chmod(0o777)
    else:
        os.chown(folder, NOBODY, NOBODY)
    # A pickle that runs when it is read, instead of each file.
    for file in folder.iterdir():
        file.write_bytes(pickle.dumps(Ran(str(copy / "ran"))))
    again = said(start(copy, NUMBA_CACHE_DIR=str(kept)))
    assert not (copy / "ran").exists()
    assert again[:2] == (value, 1) and not again[2].is_relative_to(kept)


class Ran:
    """What says that it was unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (self.path, "w")


def test_only_code_that_nobody_has_used_for_long_is_removed(tmp_path: Path) -> None:
    mine, others, old, foreign = (tmp_path / f"kernels-{name}" for name in ("0" * 16, "1" * 16, "2" * 16, "of-a-user"))
    for folder in (mine, others, old, foreign):
        folder.mkdir()
        (folder / "a.nbc").touch()
    for folder in (mine, old, foreign):
        os.utime(folder, (0, 0))
    kernel_cache.remove_unused(str(mine))
    assert sorted(tmp_path.iterdir()) == [mine, others, foreign]


def test_the_code_follows_every_module_that_kernels_are_made_of() -> None:
    sources = [Path(path) for path in kernel_cache.sources()]
    hashed = {path.name for path in sources}
    for path in METHODS.rglob("*.py"):
        names = _imported(path)
        if names & {"espo_luigi.methods.dqm.kernels.compiled"} and path.name != "compiled.py":
            assert path.name in hashed
    for path in sources:
        if path.name != "compiled.py":
            ours = {one for one in _imported(path) if one.startswith("espo_luigi")}
            files = {"__init__.py" if one == KERNELS_NAME else f"{one.rpartition('.')[2]}.py" for one in ours}
            assert files <= hashed, path


def _imported(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
