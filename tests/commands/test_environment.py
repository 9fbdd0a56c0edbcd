"""The installation is made again without an index, from what `espo env` collects, and works."""

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from espo_luigi.commands import cli, environment
from espo_luigi.errors import InstallationError

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


def test_an_environment_made_of_the_wheelhouse_alone_runs_a_task(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(TASK)
    shutil.copy(ROOT / "luigi.cfg", tmp_path)
    command = (installed / "luigi", "--module", "counting", "Count", "--folder", tmp_path, "--local-scheduler")
    done = run(*command, folder=tmp_path, environ=offline() | {"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    total, package = (tmp_path / "total.txt").read_text().split()
    assert int(total) == sum(range(100))
    assert Path(package).is_relative_to(installed.parent)


def test_the_requirements_are_what_pip_finds_needed(installed: Path, tmp_path: Path) -> None:
    told = espo_here(tmp_path, "env", "--requirements").stdout
    pip = (sys.executable, "-m", "pip", "--python", installed / "python")
    # pip installed the project's newest wheel and its requirements: it knows nothing of our list.
    frozen = run(*pip, "freeze", "--all", folder=tmp_path, environ=offline()).stdout.splitlines()
    assert sorted(line for line in told.splitlines() if not line.startswith("#")) == sorted(frozen)
    assert espo_here(tmp_path, "env", "--requirements", "pins.txt").returncode == 0
    assert (tmp_path / "pins.txt").read_text() == told
    again = run(installed / "espo", "env", "--requirements", folder=tmp_path, environ=offline())
    assert again.stdout == told


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
    assert re.search(r"`pip wheel` ended with code 1:\nERROR: .*\n(.*\n)*It needs the internet", done.stderr)
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "wheels").iterdir()) == []


@pytest.fixture()
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installed distributions that require each other in a circle, under markers, and by extras."""
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "top", "middle[fast,Slow]", "never; sys_platform == 'nowhere'")
    install(tmp_path, "middle", "quick; extra == 'fast'", "idle; extra == 'unasked'", "Deep_One")
    install(tmp_path, "deep-one", "middle[late]", "top")
    install(tmp_path, "quick")
    return tmp_path


def install(folder: Path, name: str, *requirements: str, origin: str = "") -> Distribution:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requirements)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    if origin:
        (info / "direct_url.json").write_text(origin)
    return Distribution.at(info)


def test_markers_and_extras_count_and_circles_end(packages: Path) -> None:
    names = [one.name for one in environment.needed_distributions("top")]
    assert names == ["deep-one", "middle", "quick", "top"]


def test_an_extra_that_is_asked_for_late_counts_too(packages: Path) -> None:
    (packages / "middle-1.0.dist-info" / "METADATA").write_text(
        "Name: middle\nVersion: 1.0\nRequires-Dist: deep-one\nRequires-Dist: missing>=2; extra == 'late'\n"
    )
    with pytest.raises(InstallationError, match="middle requires missing, which is not installed in"):
        environment.needed_distributions("top")


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ("", "tool==1.0"),
        ('{"url": "file:///my/tool", "dir_info": {"editable": true}}', Path("/my/tool")),
        ('{"url": "file:///my/big%20tool", "dir_info": {}}', Path("/my/big tool")),
        ('{"url": "https://h/t", "vcs_info": {"vcs": "git", "commit_id": "abc"}}', "tool @ git+https://h/t@abc"),
        ('{"url": "https://h/tool.whl", "archive_info": {}}', "tool @ https://h/tool.whl"),
    ],
)
def test_a_wheel_is_made_of_what_was_installed(tmp_path: Path, origin: str, source: str | Path) -> None:
    assert environment._source(install(tmp_path, "tool", origin=origin)) == source


def test_a_folder_of_other_things_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").touch()
    assert cli.main(["env", "--wheelhouse", str(tmp_path)]) == 1
    assert "holds thesis.tex, expected an empty folder" in capsys.readouterr().err
    assert cli.main(["env", "--wheelhouse", str(tmp_path / "thesis.tex")]) == 1
    assert "thesis.tex is a file, expected a folder" in capsys.readouterr().err
    assert cli.main(["env", "--requirements", str(tmp_path / "gone" / "pins.txt")]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_what_was_cut_short_is_done_again_and_what_is_there_is_used(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Sequence[str]] = []

    def pip(command: str, _no_deps: str, target: str, *sources: str) -> None:
        asked.append(sources)
        for source in sources:
            wheel = Path(target.partition("=")[2]) / f"{source.replace('-', '_').replace('==', '-')}-py3-none-any.whl"
            wheel.touch()
            if len(asked) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(environment, "_pip", pip)
    monkeypatch.setattr(environment, "PROJECT", "middle")
    monkeypatch.setattr(environment, "_checkout", lambda one: None)
    folder = tmp_path / "wheels"
    with pytest.raises(KeyboardInterrupt):
        environment.collect_wheels(folder)
    assert list(folder.iterdir()) == []
    (folder / "quick-1.0-py3-none-any.whl").touch()
    (folder / "middle-1.0-cp27-cp27m-win32.whl").touch()
    killed = folder / f".wheels.{socket.gethostname()}-999999999-0123456789abcdef.partial"
    killed.mkdir()
    (killed / "half.whl").touch()
    environment.collect_wheels(folder)
    assert asked[1] == ("deep-one==1.0", "middle==1.0", "top==1.0")
    names = {path.name for path in folder.iterdir()}
    assert names == {f"{name}-1.0-py3-none-any.whl" for name in ("deep_one", "middle", "quick", "top")} | {
        "middle-1.0-cp27-cp27m-win32.whl"
    }
