"""Foreign tasks in luigid and foreign modules in the work folder are never run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from luigi.scheduler import Scheduler
from strangers import AS_STRANGER, NOBODY, as_root
from throwaway_slurm import ClusterSpec
from toy_tasks import Echo

from espo_luigi.driver.luigid import LuigidWorker

CLUSTER = ClusterSpec(nodes=1, cpus=8)
# Modules that every job, its Dask workers, or Python itself imports sooner or later.
PLANTED = ("psutil", "dask", "distributed", "multiprocessing", "numpy", "luigi", "yaml", "pickle", "espo_luigi")
PLANT = """
import sys
for name in sys.argv[2:]:
    with open(f"{name}.py", "w") as file:
        file.write(f"open({sys.argv[1]!r}, 'a').write({name!r} + chr(10))")
"""


@pytest.mark.usefixtures("one_fork_server")
def test_a_task_that_this_run_has_not_asked_for_is_neither_imported_nor_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger.py").write_text(
        "from pathlib import Path\nimport luigi\n"
        f"Path({str(tmp_path / 'imported')!r}).touch()\n"
        "class Stranger(luigi.Task):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    scheduler, own = Scheduler(retry_count=1), Echo(n=1, text="done", folder=str(tmp_path))
    with LuigidWorker(scheduler=scheduler, worker_processes=1) as worker:
        assert worker.add(own)
        strange = {"family": "Stranger", "module": "stranger", "params": {}, "priority": 100}
        scheduler.add_task(worker=worker._id, task_id="Stranger__1", **strange)
        assert worker.run()
    assert not (tmp_path / "imported").exists()
    assert Path(own.output().path).read_text() == "done"
    assert "Not of the run" in scheduler.fetch_error("Stranger__1")["error"]


def plant(folder: Path, ran: Path) -> None:
    """Let a second account write modules into a folder; each of them would report that it ran."""
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    folder.chmod(0o777)
    subprocess.run([*AS_STRANGER, sys.executable, "-c", PLANT, str(ran), *PLANTED], cwd=folder, check=True)
    assert (folder / "psutil.py").stat().st_uid == NOBODY


@as_root
@pytest.mark.parametrize("engine", ["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def test_a_module_that_somebody_has_put_into_the_work_folder_is_not_run(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    # An empty entry would be the work folder.
    environ = os.environ | {"PYTHONPATH": os.environ["PYTHONPATH"].strip(os.pathsep)}
    if engine == "slurm":
        environ = request.getfixturevalue("cluster").environ | {"PYTHONPATH": environ["PYTHONPATH"]}
    ran = tmp_path / "ran"
    (folder := tmp_path / "shared").mkdir()
    plant(folder, ran)
    (folder / "luigi.cfg").write_text(
        f"[core]\nno_lock = true\n[espo]\nengine = {engine}\nworkdir = work\n[slurm]\npoll_seconds = 0.5\n"
        "result_seconds = 0.2\n[Count]\nn_workers = 2\ncpus_per_task = 2\nmemory = 1GB\n"
    )
    command = [str(Path(sys.executable).parent / "luigi"), "--module", "toy_tasks", "Count", "--n", "3"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path), "--local-scheduler"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not ran.exists(), ran.read_text()
    assert done.returncode == 0, done.stderr
