"""The toy tasks can be imported here and in the jobs, and every test has its own work folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from luigi.configuration import LuigiConfigParser
from luigi.task_register import Register

from espo_luigi.driver.engines import close_engines

if TYPE_CHECKING:
    from drivers import Driver
    from throwaway_slurm import ThrowawayCluster

# Jobs import the toy tasks from here.
SUPPORT = str(Path(__file__).parents[1] / "support")


@pytest.fixture(autouse=True)
def own_workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_settings: LuigiConfigParser) -> Iterator[Path]:
    """Make a work folder, and forget the engines, tasks and settings of the test at its end."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [SUPPORT, os.environ.get("PYTHONPATH")])))
    own_settings.set("espo", "workdir", str(tmp_path / "work"))
    own_settings.set("espo", "engine", "local")
    forget()
    yield tmp_path / "work"
    forget()


@pytest.fixture()
def driver(tmp_path: Path, cluster: ThrowawayCluster) -> Driver:
    """The `luigi` command in the test's folder, on the module's Slurm."""
    from drivers import Driver

    return Driver(tmp_path, cluster)


def forget() -> None:
    close_engines()
    Register.clear_instance_cache()


@pytest.fixture(autouse=True)
def a_hang_up_is_heard() -> Iterator[None]:
    """Commands that the tests start hear SIGHUP and SIGINT, even where the tests run under nohup or with `&`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, before)
