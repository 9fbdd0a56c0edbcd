"""Drivers of a real luigid that restarts, forgets, disables, and keeps the running tasks of a dead driver."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from drivers import Luigid
from throwaway_daemons import ended, eventually

BIN = Path(sys.executable).parent


@pytest.fixture()
def luigid(tmp_path: Path) -> Iterator[Luigid]:
    folder = tmp_path / "luigid"
    folder.mkdir()
    server = Luigid(folder)
    server.start()
    yield server
    server.stop(signal.SIGKILL)


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path) -> None:
    (tmp_path / "luigi.cfg").write_text(
        "[core]\nworkers = 50\nlog_level = WARNING\nno_lock = true\nrpc-retry-attempts = 1\n"
        "[espo]\nworkdir = work\n[worker]\nwait_interval = 0.2\n[retcode]\ntask_failed = 30\nscheduling_error = 35\n"
    )


def start(luigid: Luigid, folder: Path, task: str, *arguments: str) -> subprocess.Popen[str]:
    command = [str(BIN / "luigi"), "--module", "toy_tasks", task, "--folder", str(folder), *arguments]
    return subprocess.Popen(
        [*command, "--scheduler-url", f"http://127.0.0.1:{luigid.port}"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def starts(folder: Path) -> Counter[str]:
    path = folder / "starts"
    return Counter(path.read_text().split()) if path.exists() else Counter()


def test_a_run_goes_on_when_luigid_forgets_it_and_starts_no_task_twice(tmp_path: Path, luigid: Luigid) -> None:
    driver = start(luigid, tmp_path, "Link", "--n", "4", "--seconds", "1")
    eventually(lambda: starts(tmp_path)["1"])
    luigid.stop(signal.SIGKILL)
    time.sleep(0.5)
    luigid.start()
    errors = ended(driver, timeout=60)
    assert (tmp_path / "link-4.txt").exists()
    assert starts(tmp_path) == Counter({str(n): 1 for n in range(5)})
    assert "luigid does not know" in errors


def test_the_state_of_an_earlier_day_makes_no_task_run_twice(tmp_path: Path, luigid: Luigid) -> None:
    driver = start(luigid, tmp_path, "Link", "--n", "4", "--seconds", "1")
    eventually(lambda: starts(tmp_path)["1"])
    luigid.stop()  # writes its state: 1 is running
    luigid.start()
    eventually(lambda: starts(tmp_path)["3"])
    luigid.stop(signal.SIGKILL)  # writes nothing
    luigid.start()
    ended(driver, timeout=60)
    assert starts(tmp_path) == Counter({str(n): 1 for n in range(5)})


def test_the_restart_of_a_killed_driver_begins_at_once(tmp_path: Path, luigid: Luigid) -> None:
    arguments = ("Link", "--n", "2", "--seconds", "0.5")
    driver = start(luigid, tmp_path, *arguments)
    eventually(lambda: starts(tmp_path)["1"])
    driver.kill()
    driver.communicate()
    began = time.monotonic()
    ended(start(luigid, tmp_path, *arguments), timeout=60)
    assert (tmp_path / "link-2.txt").exists()
    assert time.monotonic() - began < 45  # luigid gives a dead worker up after 60 s


def test_what_only_a_killed_driver_was_asked_for_is_not_run_by_the_next(tmp_path: Path, luigid: Luigid) -> None:
    driver = start(luigid, tmp_path, "Link", "--n", "2", "--seconds", "0.5")
    eventually(lambda: starts(tmp_path)["0"])
    driver.kill()
    driver.communicate()
    ended(start(luigid, tmp_path, "Count", "--n", "5"), timeout=60)
    assert (tmp_path / "count-5.txt").exists()
    assert not (tmp_path / "link-2.txt").exists()


def test_what_failed_is_tried_again_by_the_next_driver(tmp_path: Path, luigid: Luigid) -> None:
    ended(start(luigid, tmp_path, "Lucky", "--n", "1"), 30, timeout=60)
    (tmp_path / "luck").touch()
    ended(start(luigid, tmp_path, "Lucky", "--n", "1"), timeout=60)
    assert (tmp_path / "count-1.txt").read_text() == "lucky"


def test_a_task_whose_input_went_has_it_made_again(tmp_path: Path, luigid: Luigid) -> None:
    ended(start(luigid, tmp_path, "Bereft", "--n", "10"), timeout=60)
    assert (tmp_path / "bereft-10.txt").read_text() == "45"
    assert starts(tmp_path) == Counter({"start": 2})


def test_a_second_driver_is_refused_and_does_not_disturb_the_first(tmp_path: Path, luigid: Luigid) -> None:
    arguments = ("Link", "--n", "1", "--seconds", "4")
    first = start(luigid, tmp_path, *arguments)
    eventually(lambda: starts(tmp_path)["0"])
    errors = ended(start(luigid, tmp_path, *arguments), 35, timeout=60)
    assert f"process {first.pid} on" in errors
    ended(first, timeout=60)
    assert starts(tmp_path) == Counter({"0": 1, "1": 1})


def test_a_luigid_that_never_answered_is_an_error(tmp_path: Path, luigid: Luigid) -> None:
    luigid.stop()
    driver = start(luigid, tmp_path, "Lucky", "--n", "1")
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode != 0
    assert f"127.0.0.1:{luigid.port}" in errors
    assert not (tmp_path / "work" / "jobs").exists()
