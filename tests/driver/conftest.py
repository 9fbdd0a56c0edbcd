"""The toy tasks can be imported here and in the jobs, and every test has a work folder of its own."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from luigi.configuration import get_config

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture(autouse=True)
def own_workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))
    configuration = get_config()
    before = dict(configuration.items("espo")) if configuration.has_section("espo") else {}
    configuration.set("espo", "workdir", str(tmp_path / "work"))
    configuration.set("espo", "engine", "local")
    yield tmp_path / "work"
    for name, value in before.items():
        configuration.set("espo", name, value)


@pytest.fixture(autouse=True)
def a_hang_up_is_heard() -> Iterator[None]:
    """Commands that the tests start hear SIGHUP and SIGINT, even where the tests run under nohup or with `&`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, before)
