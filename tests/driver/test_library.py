"""The package as a library: Luigi and psutil, the wheel without its dependencies, and the page's example on Slurm."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from test_documented_example import CODE, COMMANDS, INSTALL, blocks_of
from throwaway_slurm import ClusterSpec, ThrowawayCluster
from visited_files import note_visits, visited

ROOT = Path(__file__).parents[2]
CLUSTER = ClusterSpec(nodes=1, cpus=2)
# The files that a trivial job visits, in the driver and on the node.
MOST_FILES = 45
_IMPORTS = """
import sys
{}
ours = [name for name in sys.modules if name.partition(".")[0] == "espo_luigi"]
heavy = {{"numpy", "dask", "distributed", "pydantic", "yaml", "xarray", "rich", "click"}} & set(sys.modules)
print(len(ours), *heavy)
"""


def given(folder: Path, commands: str, **environ: str) -> str:
    """Give commands in a folder; return what they print."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | environ
    words = ["bash", "-euo", "pipefail", "-c", commands]
    done = subprocess.run(words, cwd=folder, env=inherited, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, into which nothing is written."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "extra.cfg").write_text(f"[egg_info]\negg_base = {folder}\n[build]\nbuild_base = {folder}/build\n")
    build = f"'{sys.executable}' -m build --wheel --no-isolation --outdir . '{ROOT}'"
    given(folder, build, DIST_EXTRA_CONFIG=str(folder / "extra.cfg"))
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a new environment, made as the page says, whose processes note what they visit."""
    home = tmp_path_factory.mktemp("library")
    given(home, f"'{sys.executable}' -m venv env")
    if subprocess.run([home / "env/bin/pip", "download", "--no-deps", "six"], cwd=home, check=False).returncode:
        pytest.skip("no index of packages can be reached")
    paths = f"{home}/env/bin{os.pathsep}{os.environ['PATH']}"
    given(home, INSTALL.replace("espo_luigi", f"'{wheel}'"), PATH=paths)
    note_visits(home / "notes", home / "env" / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix))
    return home / "env" / "bin"


@pytest.mark.parametrize(
    ("statement", "most"),
    [
        ("from espo_luigi import Resources, SlurmTask", 27),
        ("from espo_luigi import Resources, SlurmTask, install", 47),
        ("import espo_luigi.job", 33),
    ],
)
def test_a_driver_and_a_job_import_luigi_and_psutil_and_few_modules_of_ours(
    statement: str, most: int, tmp_path: Path
) -> None:
    program = _IMPORTS.format(statement)
    modules, *heavy = given(tmp_path, f"'{sys.executable}' -P -c '{program}'").split()
    assert heavy == []
    assert int(modules) <= most


@pytest.mark.slurm
def test_the_page_s_example_runs_on_slurm_in_an_environment_of_luigi_and_psutil_alone(
    programs: Path, cluster: ThrowawayCluster, tmp_path: Path
) -> None:
    (tmp_path / "squares.py").write_text(CODE)
    paths = {"PATH": f"{programs}{os.pathsep}{cluster.environ['PATH']}"}
    given(tmp_path, COMMANDS.replace("--n 100", "--n 3"), **paths)
    assert (tmp_path / "square-3.txt").read_text() == "5", "on this machine"
    (settings,) = blocks_of("slurm-task.md", "ini")
    notes = programs.parents[1] / "notes"
    for old in notes.glob("*.visited"):
        old.unlink()
    (tmp_path / "luigi.cfg").write_text(settings.replace("/scratch/me/squares", str(tmp_path / "work")))
    given(tmp_path, COMMANDS, **{**cluster.environ, **paths})
    assert (tmp_path / "square-100.txt").read_text() == str(sum(i * i for i in range(100)))
    (log,) = (tmp_path / "slurm_logs" / "Square").iterdir()
    assert re.search(r"Square n=100 is done", log.read_text())
    found = visited(notes)
    assert {"job.py", "jobs/node/run.py", "driver/worker.py"} <= found.keys()
    assert len(found) <= MOST_FILES, sorted(found)
