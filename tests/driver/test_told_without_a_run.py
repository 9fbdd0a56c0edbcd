"""Whom `notify` names hears of a run that is refused, and of one that has nothing to do."""

import signal
import sys
from pathlib import Path

import luigi
import pytest
import toy_tasks
from luigi.configuration import get_config
from toy_tasks import run

from espo_luigi import SlurmTask
from espo_luigi.errors import SizingError


class Impossible(SlurmTask):
    """A task that cannot run as asked."""

    def check(self) -> None:
        raise SizingError("Impossible: memory = 0 is not an amount of memory")


@pytest.fixture()
def heard(tmp_path: Path) -> Path:
    """Return the file that the command writes."""
    listener = tmp_path / "listen.py"
    listener.write_text(
        f"import os, sys\nfile = open({str(tmp_path / 'heard')!r}, 'w')\n"
        "file.write(os.environ['ESPO_RESULT'] + '|' + sys.stdin.read())\n"
    )
    get_config().set("espo", "notify", f"{sys.executable} {listener}")
    return tmp_path / "heard"


def test_a_run_that_is_refused_says_why(heard: Path, own_workdir: Path) -> None:
    assert not run(Impossible()).scheduling_succeeded
    told = heard.read_text()
    assert told.startswith("refused|refused: nothing was started: Impossible\n")
    assert "  Impossible: memory = 0 is not an amount of memory" in told
    assert not (own_workdir / "run.json").exists()


def test_a_run_with_nothing_to_do_says_so(heard: Path, tmp_path: Path) -> None:
    (tmp_path / "echo.txt").write_text("so")
    assert run(toy_tasks.Echo(n=1, text="so", folder=str(tmp_path))).scheduling_succeeded
    assert heard.read_text().startswith("done|done: nothing to do: Echo folder=")


def test_looking_for_stale_tasks_comes_after_the_word_of_the_end_and_can_be_interrupted(
    heard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupted(*_: object) -> None:
        assert heard.exists() and signal.getsignal(signal.SIGINT) is before
        raise KeyboardInterrupt

    monkeypatch.setattr("espo_luigi.driver.worker.told_of", interrupted)
    (tmp_path / "echo.txt").write_text("so")
    with pytest.raises(KeyboardInterrupt):
        run(toy_tasks.Echo(n=1, text="so", folder=str(tmp_path)))


def test_a_run_of_other_tasks_that_fails_is_not_told_as_done(heard: Path) -> None:
    class Plain(luigi.Task):
        def run(self) -> None:
            raise ValueError("no")

    assert not run(Plain()).scheduling_succeeded
    assert not heard.exists()


class Last(luigi.Task):
    """A task without a job that fails after its need."""

    folder = luigi.Parameter()

    def requires(self) -> luigi.Task:
        return toy_tasks.Echo(n=1, text="so", folder=str(self.folder))

    def run(self) -> None:
        raise OSError("Disk quota exceeded")


def test_a_run_of_which_only_the_end_failed_has_failed(heard: Path, own_workdir: Path, tmp_path: Path) -> None:
    assert not run(Last(folder=str(tmp_path))).scheduling_succeeded
    told = heard.read_text()
    assert told.startswith("failed|failed: 1 of 1 done, ")
    assert "Last(folder=" in told
