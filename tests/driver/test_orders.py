"""What of luigi.cfg travels with a job, and how many jobs it lets run at once."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import luigi
import pytest
import toy_tasks
from luigi.configuration import get_config

from espo_luigi import job
from espo_luigi.driver.task import module_with_folder
from espo_luigi.files import read_json
from espo_luigi.jobs.order import JobOrder

SECRETS = {"smtp": "password", "s3": "aws_secret_access_key", "my_database": "token", "core": "rpc-secret"}


class ours(luigi.Config):
    place = luigi.Parameter(default="here")


@pytest.fixture(autouse=True)
def luigi_cfg() -> None:
    get_config().read_dict({section: {name: "hunter2"} for section, name in SECRETS.items()})
    sizes = {"Sum": {"memory": "3GB"}, "Count": {"time": "7"}, "Fail": {"memory": "9GB"}}
    get_config().read_dict({**sizes, "ours": {"place": "there"}, "slurm": {"environment": '{"TOKEN": "hunter2"}'}})


def test_an_order_holds_what_its_task_needs_and_nobodys_password(tmp_path: Path) -> None:
    order = toy_tasks.Sum(n=1, folder=str(tmp_path)).order()
    order.write()
    assert "hunter2" not in order.files.order.read_text()
    settings = json.loads(order.files.order.read_text())["settings"]
    assert settings.keys() == {"espo", "Sum", "Count", "ours"}
    assert (settings["Sum"], settings["Count"]) == ({"memory": "3GB"}, {"time": "7"})
    assert settings["ours"] == {"place": "there"}


def test_a_task_is_rebuilt_from_its_order_as_the_driver_had_it(tmp_path: Path) -> None:
    order = toy_tasks.Sum(n=1, folder=str(tmp_path)).order()
    order.write()
    get_config().set("ours", "place", "elsewhere")
    get_config().set("Sum", "memory", "1GB")
    task = job.rebuild_task(JobOrder.parsed(read_json(order.files.order) or {}))
    assert (task.memory, ours().place) == ("3GB", "there")


def test_as_many_tasks_run_at_once_as_jobs_may_be_in_flight(tmp_path: Path) -> None:
    (tmp_path / "luigi.cfg").touch()
    code = "import luigi.interface as i; from espo_luigi import install; install(); print(i.core().workers)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "500"


def test_an_order_names_the_folder_of_a_module_that_its_job_would_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("alone.py", "package/__init__.py", "package/inner.py", "spread/inner.py", "more/spread/second.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.syspath_prepend(str(tmp_path / "more"))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("alone", "package", "package.inner", "spread.inner", "spread.second"):
        importlib.import_module(name)
        folder = tmp_path / "more" if name == "spread.second" else tmp_path
        assert module_with_folder(name) == f"{folder}:{name}"
    assert module_with_folder("toy_tasks") == "toy_tasks"  # by PYTHONPATH
    assert module_with_folder("luigi") == "luigi"
