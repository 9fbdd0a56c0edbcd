"""The installation is made again without an index, from what `espo env` collects, and works."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from espo_luigi.commands import cli, environment

ROOT = Path(__file__).parents[2]
# Without an index, a configuration file or a network.
OFFLINE = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "ALL_PROXY": "http://127.0.0.1:9"}
# The second process that imports something need not parse it again.
UNSET = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")

TASK = """
from pathlib import Path
import luigi
import espo_luigi

espo_luigi.install()

class Count(espo_luigi.SlurmTask):
    folder = luigi.Parameter()
    resources_default = espo_luigi.Resources(n_workers=1, cpus_per_task=1, memory="1GB", time="10")

    def output(self):
        return luigi.LocalTarget(str(Path(self.folder) / "total.txt"))

    def work(self):
        import dask.array
        total = int(dask.array.arange(100, chunks=10).sum().compute())
        with self.output().open("w") as file:
            file.write(f"{total} {espo_luigi.__file__}")
"""


def offline() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in UNSET} | OFFLINE


def run(*command: object, folder: Path, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, check=False)


def espo_here(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return run(
        sys.executable,
        "-m",
        "espo_luigi.commands.cli",
        *arguments,
        folder=folder,
        environ=dict(os.environ, PYTHONPATH=paths),
    )


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("collected") / "wheels"
    done = espo_here(folder.parent, "env", "--wheelhouse", folder)
    if done.returncode:
        probe = run(sys.executable, "-m", "pip", "download", "--no-deps", "six", folder=folder.parent)
        if probe.returncode:
            pytest.skip(f"no index of packages can be reached: {probe.stderr[-500:]}")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(wheelhouse: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds what the wheelhouse does, and nothing else, not even pip."""
    home = tmp_path_factory.mktemp("offline")
    run(sys.executable, "-m", "venv", "--without-pip", "env", folder=home)
    pip = (sys.executable, "-m", "pip", "--python", home / "env/bin/python", "install", "--no-compile", "--quiet")
    done = run(*pip, "--no-index", "--find-links", wheelhouse, "espo_luigi", folder=home, environ=offline())
    assert done.returncode == 0, done.stderr
    return home / "env" / "bin"


@pytest.mark.long
def test_an_environment_made_of_the_wheelhouse_alone_runs_a_task(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(TASK)
    shutil.copy(ROOT / "luigi.cfg", tmp_path)
    command = (installed / "luigi", "--module", "counting", "Count", "--folder", tmp_path, "--local-scheduler")
    done = run(*command, folder=tmp_path, environ=offline() | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    total, package = (tmp_path / "total.txt").read_text().split()
    assert int(total) == sum(range(100))
    assert Path(package).is_relative_to(installed.parent)


def test_the_installed_versions_are_written_or_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env", "--requirements", str(tmp_path / "pins.txt")]) == 0
    capsys.readouterr()
    assert cli.main(["env", "--requirements"]) == 0
    pins = (tmp_path / "pins.txt").read_text()
    assert capsys.readouterr().out == pins
    named = {line.partition("==")[0].lower() for line in pins.splitlines()[1:]}
    assert {"luigi", "xarray", "zarr"} <= named


@pytest.mark.long
def test_the_wheels_have_the_versions_that_are_installed(wheelhouse: Path, tmp_path: Path) -> None:
    pins = espo_here(tmp_path, "env", "--requirements").stdout
    here = {tuple(re.sub("[-_.]+", "-", line.lower()).split("==")) for line in pins.splitlines()[1:]}
    wheels = {
        tuple(re.sub("[-_.]+", "-", part.lower()) for part in wheel.name.split("-")[:2])
        for wheel in wheelhouse.glob("*.whl")
    }
    assert wheels <= here
    assert not any(name == "pytest" for name, _ in wheels), "what the project does not require"
    packed = zipfile.ZipFile(next(wheelhouse.glob("espo_luigi-*.whl"))).namelist()
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "espo_luigi").rglob("*.py")}
    assert {name for name in packed if name.endswith(".py")} == sources


@pytest.mark.long
def test_without_pip_the_command_says_how_to_have_it(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "espo", "env", "--wheelhouse", "wheels", folder=tmp_path, environ=offline())
    assert done.returncode == 1
    assert "has no pip" in done.stderr and "-m ensurepip" in done.stderr


def test_without_an_index_the_command_says_what_it_needs_and_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    done = espo_here(tmp_path, "env", "--wheelhouse", "wheels")
    assert done.returncode == 1
    assert re.search(r"code 1:\nERROR: .*\n(.*\n)*It needs the internet", done.stderr)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_was_installed_from_a_file_has_its_version_as_constraint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As conda's packages and local wheels are."""

    def pip(command: str, *arguments: str, **_: object) -> str:
        if command == "wheel":
            constraints.extend(Path(word.partition("=")[2]) for word in arguments if word.startswith("--constraint="))
            (tmp_path / "wheels").mkdir(exist_ok=True)
        elif command == "freeze":
            return "numpy @ file:///built/numpy.whl\n-e git+https://example.org/other\n"
        return "numpy==2.1.3\n"

    constraints: list[Path] = []
    monkeypatch.setattr(environment, "_pip", pip)
    environment._make_wheels(tmp_path)
    assert [path.read_text().split() for path in constraints] == [["numpy==2.1.3"]]


def test_a_folder_of_other_things_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    assert cli.main(["env", "--wheelhouse", str(tmp_path)]) == 1
    assert "it has no espo-files.json of espo env --wheelhouse" in capsys.readouterr().err
    assert cli.main(["env", "--wheelhouse", str(tmp_path / "thesis.tex")]) == 1
    assert "it is no folder" in capsys.readouterr().err
    assert cli.main(["env", "--requirements", str(tmp_path / "gone" / "pins.txt")]) == 1
    assert "No such file or directory" in capsys.readouterr().err
