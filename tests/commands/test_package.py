"""The source archive and the wheel are complete, and the wheel works outside of the checkout."""

import os
import re
import subprocess
import sys
import sysconfig
from configparser import ConfigParser
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SETUP = ConfigParser()
SETUP.read(ROOT / "setup.cfg")
VERSION = SETUP["metadata"]["version"]
NOT_SHIPPED = {"__pycache__"}


def run(*command: object, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, cwd=folder, env=inherited | environ, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The source archive, and the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "extra.cfg").write_text(f"[egg_info]\negg_base = {folder}\n")  # writes nothing into the checkout
    build = (sys.executable, "-m", "build", "--outdir", folder / "dist", ROOT)
    done = run(*build, folder=folder, DIST_EXTRA_CONFIG=str(folder / "extra.cfg"))
    if done.returncode:
        probe = run(sys.executable, "-m", "pip", "download", "--no-deps", "six", folder=folder)
        if probe.returncode:
            pytest.skip(f"no index of packages can be reached: {probe.stderr[-500:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted((folder / "dist").iterdir())


@pytest.fixture(scope="module")
def installed(archives: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment with the wheel, which finds its dependencies where this process does."""
    home = tmp_path_factory.mktemp("installed")
    assert run(sys.executable, "-m", "venv", "--without-pip", "env", folder=home).returncode == 0
    python = home / "env" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile")
    done = run(*pip, archives[0], folder=home)
    assert done.returncode == 0, done.stderr
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", folder=home).stdout.strip()
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def test_archives_have_the_version_and_metadata_that_an_index_accepts(archives: list[Path], tmp_path: Path) -> None:
    assert [path.name for path in archives] == [
        f"espo_luigi-{VERSION}-py3-none-any.whl",
        f"espo_luigi-{VERSION}.tar.gz",
    ]
    done = run(sys.executable, "-m", "twine", "check", "--strict", *archives, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_has_every_file_of_the_package_and_no_other(archives: list[Path]) -> None:
    ours = {
        Path(folder, name).relative_to(ROOT).as_posix()
        for folder, _, names in os.walk(ROOT / "espo_luigi", followlinks=True)
        for name in names
        if not NOT_SHIPPED & set(Path(folder).parts)
    }
    with ZipFile(archives[0]) as wheel:
        theirs = {name for name in wheel.namelist() if ".dist-info/" not in name}
    pages = {name for name in theirs if f"{VERSION}.data/data/share/doc/" in name}
    assert theirs - pages == ours


def test_the_installed_wheel_shows_every_page_of_the_documentation(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "espo", "docs", "--path", folder=tmp_path)
    assert listed.returncode == 0, listed.stderr
    paths = [Path(line.split()[1]) for line in listed.stdout.splitlines() if line.startswith("  ")]
    assert all(path.is_relative_to(installed.parent) for path in paths)
    theirs = {path.relative_to(installed.parent / "share" / "doc" / "espo_luigi").as_posix(): path for path in paths}
    pages = {path.relative_to(ROOT / "docs").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    pages |= {f"project/{name}": ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md")}
    assert theirs.keys() == pages.keys()
    assert [name for name, path in theirs.items() if path.read_text() != pages[name].read_text()] == []
    shown = run(installed / "espo", "docs", "tutorial", folder=tmp_path)
    assert shown.stdout.startswith("# Tutorial")


def test_a_folder_that_the_installed_wheel_makes_can_be_run(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "espo", "--version", folder=tmp_path).stdout == f"espo_luigi {VERSION}\n"
    done = run(installed / "espo", "init", "demo", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    where = run(installed / "python", "-c", "import espo_luigi; print(espo_luigi.__file__)", folder=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent)
    planned = run(installed / "espo", "plan", folder=tmp_path / "demo")
    assert planned.returncode == 0, planned.stderr
    assert re.search(r"^(\d+) tasks: 0 done, \1 to run, 0 blocked$", planned.stdout, re.MULTILINE)


def test_the_citation_and_the_changes_are_of_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == VERSION
    newest = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == ("Unreleased" if "dev" in VERSION else VERSION)
