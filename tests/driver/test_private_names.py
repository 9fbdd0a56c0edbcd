"""The private names of Luigi that the driver uses exist, with their signatures, and the list of them is complete."""

import ast
import importlib
import inspect
import multiprocessing
import re
from pathlib import Path
from typing import Any

import luigi
import pytest
from luigi.configuration import get_config
from luigi.rpc import RemoteScheduler
from luigi.scheduler import Scheduler, SimpleTaskState
from luigi.worker import TaskProcess, TaskStatusReporter, Worker
from luigis_private_names import PRIVATE_NAMES

import espo_luigi
import espo_luigi.tasks.ports  # which imports sciluigi without its side effects
from espo_luigi.driver.install import WorkerSchedulerFactory, install
from espo_luigi.driver.scheduler import LinearScheduler, PatientScheduler, ReadyTasks
from espo_luigi.driver.threads import ThreadTaskProcess
from espo_luigi.driver.worker import EspoWorker

FOLDER = Path(espo_luigi.__file__).parent
IMPORTS = re.compile(r"^\s*(import|from) (sci)?luigi\b", re.MULTILINE)
CASES = [(home, name, form) for home, names in PRIVATE_NAMES.items() for name, form in names.items()]


def instances() -> dict[str, Any]:
    scheduler, task = Scheduler(), luigi.Task()
    reporter = TaskStatusReporter(scheduler, task.task_id, "w", None)
    return {
        "luigi.configuration.LuigiConfigParser": get_config(),
        "luigi.parameter": luigi.parameter,
        "luigi.parameter.Parameter": luigi.Parameter(),
        "luigi.parameter.ChoiceParameter": luigi.ChoiceParameter(choices=["a"]),
        "luigi.rpc.RemoteScheduler": RemoteScheduler("http://127.0.0.1:1"),
        "luigi.scheduler.Scheduler": scheduler,
        "luigi.scheduler.SimpleTaskState": scheduler._state,
        "luigi.worker.TaskProcess": TaskProcess(task, "w", multiprocessing.Queue(), reporter),
        "luigi.worker.TaskStatusReporter": reporter,
        "luigi.worker.Worker": Worker(scheduler=scheduler),
    }


def found(home: str) -> Any:
    if home == "luigi.interface._WorkerSchedulerFactory":  # Luigi's own, also where `install` has put ours in its place
        return WorkerSchedulerFactory.__base__
    try:
        return importlib.import_module(home)
    except ModuleNotFoundError:
        module, _, name = home.rpartition(".")
        return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize(("home", "name", "form"), CASES, ids=lambda value: str(value))
def test_a_name_that_is_relied_on_is_there_with_its_signature(home: str, name: str, form: str) -> None:
    install()
    if form:
        assert str(inspect.signature(getattr(found(home), name))) == form
    else:
        assert hasattr(instances()[home], name)


def test_luigis_own_table_of_tasks_is_the_one_that_ours_extends() -> None:
    assert type(Scheduler()._state) is SimpleTaskState


def test_every_private_name_of_luigi_and_sciluigi_that_is_used_is_in_the_list() -> None:
    listed = {name for names in PRIVATE_NAMES.values() for name in names}
    ours: set[str] = set()
    used: set[str] = set()
    for path in FOLDER.rglob("*.py"):
        if not IMPORTS.search(text := path.read_text()) and path.stem != "ports":
            continue
        nodes = list(ast.walk(ast.parse(text)))
        parts = [part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values]
        for node in nodes:
            if node in parts:
                continue
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                ours.add(node.name)
            elif isinstance(node, ast.Attribute):
                (ours if isinstance(node.ctx, ast.Store) else used).add(node.attr)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("luigi", "sciluigi")):
                used |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                used |= {node.value} if re.fullmatch(r"_[A-Za-z]\w+", node.value) else set()
    private = {name for name in used if name.startswith("_") and not name.startswith("__")}
    assert private - ours - listed == set()


@pytest.mark.parametrize("ours", [EspoWorker, ThreadTaskProcess, LinearScheduler, ReadyTasks, PatientScheduler])
def test_what_overrides_a_private_method_of_luigi_is_in_the_list(ours: type) -> None:
    (base,) = ours.__bases__
    overridden = {name for name in vars(ours) if re.match("_[a-z]", name) and hasattr(base, name)}
    assert overridden <= PRIVATE_NAMES.get(f"{base.__module__}.{base.__name__}", {}).keys()
