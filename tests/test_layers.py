"""Modules import downward only, as the table in docs/architecture.md says."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "espo_luigi"
LAYERS = {
    "errors": 0,
    "config": 1,
    "paths": 1,
    "science": 1,
    "catalog": 2,
    "store": 2,
    "demo": 2,
    "cluster": 2,
    "targets": 3,
    "ports": 3,
    "engine": 4,
    "tasks": 5,
    "api": 6,
    "job": 6,
    "report": 6,
    "cli": 7,
}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_names(path: Path) -> set[str]:
    """The full names that a module imports, at whatever depth of its code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_units(path: Path) -> set[str]:
    parts = (name.split(".") for name in imported_names(path) if name.startswith("espo_luigi."))
    return {names[1] for names in parts if names[1] in LAYERS}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_its_own_layer_or_below(path: Path) -> None:
    unit = unit_of(path)
    upward = {other for other in imported_units(path) if other != unit and LAYERS[other] > LAYERS[unit]}
    assert not upward, f"{unit} (layer {LAYERS[unit]}) imports {upward}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_ports_imports_sciluigi_and_the_science_knows_no_luigi_nor_paths(path: Path) -> None:
    outside = {name.split(".")[0] for name in imported_names(path)}
    if unit_of(path) != "ports":
        assert "sciluigi" not in outside
    if unit_of(path) == "science":
        assert not outside & {"luigi", "pathlib", "zarr"}
        assert "config" not in imported_units(path)


def test_packages_of_one_layer_do_not_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for path in MODULES:
        edges.setdefault(unit_of(path), set()).update(imported_units(path) - {unit_of(path)})

    def reachable(unit: str) -> set[str]:
        found: set[str] = set()
        stack = list(edges[unit])
        while stack:
            other = stack.pop()
            if other not in found:
                found.add(other)
                stack.extend(edges.get(other, ()))
        return found

    assert not [unit for unit in edges if unit in reachable(unit)]


def test_importing_the_tasks_leaves_no_folder_no_handlers_and_no_warnings(tmp_path: Path) -> None:
    program = (
        "import logging; import espo_luigi.tasks; "
        "assert not logging.getLogger('luigi-interface').handlers; "
        "assert not logging.getLogger('sciluigi-interface').handlers"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout + done.stderr == ""
    assert list(tmp_path.iterdir()) == []
