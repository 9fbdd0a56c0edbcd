"""`espo_luigi.jobs` is a library of its own: it runs jobs where there is no Luigi, no xarray, and no ESPO-G."""

import subprocess
import sys
from pathlib import Path

BLOCK = """\
import sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        outside = name.split(".")[0] in ("luigi", "sciluigi", "xarray")
        known = ("jobs", "errors", "files", "machine", "redaction")
        if outside or (name.startswith("espo_luigi.") and name.split(".")[1] not in known):
            raise ModuleNotFoundError(f"{name} is blocked")

sys.meta_path.insert(0, Nowhere())
"""
JOB = """\
import nowhere, sys
from pathlib import Path
from espo_luigi.jobs.forkserver import serve
from espo_luigi.jobs.node.run import run_order, signs_of_life

def work(order, monitor):
    with signs_of_life(order, monitor):
        Path(order.parameters["path"]).write_text(order.label)

if __name__ == "__main__":
    serve(lambda order: run_order(order, work))
"""
DRIVER = """\
import nowhere, pkgutil, importlib, sys
from pathlib import Path
import espo_luigi.jobs
for module in pkgutil.iter_modules(espo_luigi.jobs.__path__):
    importlib.import_module(f"espo_luigi.jobs.{module.name}")
from espo_luigi.errors import JobError
from espo_luigi.jobs.local import Forks, LocalEngine
from espo_luigi.jobs.order import JobFiles, JobOrder
from espo_luigi.jobs.resources import Resources

states = []

def order(path):
    wildcards, files = {"path": path}, JobFiles.of(Path("run").absolute(), "Write", {"path": path})
    told = lambda progress: states.append(progress.state)
    return JobOrder(
        path, f"Write {path}", "nowhere", "Write", wildcards, wildcards, Resources(), files, on_progress=told
    )

engine = LocalEngine(Forks((sys.executable, "job.py")))
engine.run(order("there"))
assert list(dict.fromkeys(states)) == ["ready", "running", "succeeded"], states
try:
    engine.run(order("no/such/folder"))
except JobError as error:
    print(error)
engine.close()
assert not {"luigi", "xarray"} & set(sys.modules)
"""


def test_a_job_runs_where_neither_luigi_nor_xarray_can_be_imported(tmp_path: Path) -> None:
    for name, text in {"nowhere": BLOCK, "job": JOB, "driver": DRIVER}.items():
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run([sys.executable, "driver.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "there").read_text() == "Write there"
    assert done.stdout.startswith("Write no/such/folder failed: FileNotFoundError")
