"""Files import downward only, as the table in docs/architecture.md says, and never in a circle."""

import ast
import functools
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "espo_luigi"
MODULES = sorted(PACKAGE.rglob("*.py"))
# Texts that name a module and import none: the program that a job runs, and its logger; the distribution.
ONLY_NAMES = {"espo_luigi.job", "espo_luigi"}


def layers_of_the_documentation() -> dict[str, int]:
    """The layer of each unit (a package, or a module beside them), from the table that people read."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| (\d) \| (`.*?`) \|", text, re.MULTILINE)
    return {unit.rstrip("/"): int(layer) for layer, cell in rows for unit in re.findall(r"`([^`]+)`", cell)}


def rows_of_the_documentation() -> dict[str, int]:
    """The row of each room of `jobs/` and `driver/`, from the second table."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `(jobs|driver)/` \| (\d) \| (`.*?`) \|", text, re.MULTILINE)
    return {f"{unit}/{room.rstrip('/')}": int(row) for unit, row, cell in rows for room in re.findall(r"`(.+?)`", cell)}


LUIGIS_INSIDES = re.compile(
    r"(?<!sci)luigi(?:\.| import )(?:cmdline_parser|task_register|interface|worker|scheduler|rpc)\b"
)
LAYERS = layers_of_the_documentation()
ROWS = rows_of_the_documentation()


def unit_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def room_of(path: Path) -> str:
    return "/".join(path.relative_to(PACKAGE).with_suffix("").parts[:2])


ROOMS = {
    path: room_of(path)
    for path in MODULES
    if unit_of(path) in ("jobs", "driver") and not room_of(path).endswith("__init__")
}


def test_only_bundles_know_whether_a_job_is_shared() -> None:
    outside = [path for path in MODULES if room_of(path) != "jobs/bundles"]
    assert not [path.name for path in outside if "shares_job" in path.read_text()]
    asks = {path.name for path in (PACKAGE / "jobs").rglob("*.py") if re.search(r"record\.bundle\b", path.read_text())}
    # The table has one that finds no place in its bundle go alone.
    assert asks <= {"members.py", "accounts.py", "policy.py"}


@functools.cache
def imported_names(path: Path) -> set[str]:
    """The full names that a file imports, at whatever depth of its code, or holds as texts, which may be imported."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in ONLY_NAMES:
            names |= {node.value} if module_file(node.value) else set()
    return names


def file_of(name: str) -> Path | None:
    """The file of the package that holds the module, or the name of a module, called `name`."""
    return module_file(name) or module_file(name.rpartition(".")[0])


def module_file(name: str) -> Path | None:
    """The file of a module of the package."""
    if not re.fullmatch(r"espo_luigi(\.\w+)*", name):
        return None
    whole = ROOT.joinpath(*name.split("."))
    return next((path for path in (whole.with_suffix(".py"), whole / "__init__.py") if path.is_file()), None)


@functools.cache
def imported_files(path: Path) -> set[Path]:
    return {other for other in map(file_of, imported_names(path)) if other is not None} - {path}


def imported_units(path: Path) -> set[str]:
    return {unit_of(other) for other in imported_files(path)} - {unit_of(path)}


def test_the_documentation_has_every_package_and_module_and_no_other() -> None:
    assert LAYERS.keys() == {unit_of(path) for path in MODULES} - {"__init__"}


def test_the_documentation_has_every_room_of_jobs_and_driver_and_no_other() -> None:
    assert ROWS.keys() == set(ROOMS.values())


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_of_a_room_imports_only_from_its_own_room_or_the_rows_above(path: Path) -> None:
    unit, own = unit_of(path), ROOMS[path]
    others = {ROOMS[other] for other in imported_files(path) if unit_of(other) == unit and other in ROOMS} - {own}
    wrong = {other for other in others if ROWS[other] >= ROWS[own]}
    assert not wrong, f"{path} (row {ROWS[own]}) imports {wrong}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_its_own_layer_or_below(path: Path) -> None:
    layer = LAYERS.get(unit_of(path), max(LAYERS.values()))  # the package's own names may come from anywhere
    upward = {other for other in imported_units(path) if LAYERS[other] > layer}
    assert not upward, f"{path} (layer {layer}) imports {upward}"


def test_no_file_imports_itself_by_way_of_others() -> None:
    try:
        TopologicalSorter({path: imported_files(path) for path in MODULES}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(str(path.relative_to(PACKAGE)) for path in error.args[1]))


def test_packages_of_one_layer_do_not_import_each_other_in_a_circle() -> None:
    edges: dict[str, set[str]] = {}
    for path in MODULES:
        edges.setdefault(unit_of(path), set()).update(imported_units(path))
    TopologicalSorter(edges).prepare()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_what_each_part_must_not_know(path: Path) -> None:
    outside = {name.split(".")[0] for name in imported_names(path)}
    if unit_of(path) != "driver":
        assert not LUIGIS_INSIDES.findall(path.read_text())
    if path.name != "ports.py":
        assert "sciluigi" not in outside
    if unit_of(path) == "science":
        assert not outside & {"luigi", "pathlib", "zarr"}
        assert "config" not in imported_units(path)
    if unit_of(path) == "jobs":
        assert not outside & {"luigi", "xarray"}
        assert imported_units(path) <= {"errors", "files", "machine"}


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


def test_what_starts_any_job_imports_neither_xarray_nor_zarr_nor_dask() -> None:
    """They take longer to import than all else that a task without climate data needs."""
    program = "import sys, espo_luigi.job; print({'xarray', 'zarr', 'dask', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stdout + done.stderr
