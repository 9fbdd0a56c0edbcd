"""A lock is taken only from a driver that is known to be dead, or silent for long."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from racing import winners_of
from strangers import NOBODY, as_root, reachable
from throwaway_daemons import eventually

from espo_luigi import files
from espo_luigi.errors import SubmissionError
from espo_luigi.files import process_room, read_object
from espo_luigi.jobs.engine import BatchEngine
from espo_luigi.jobs.lifecycle.control import request_stop, take_control
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lock import DriverLock, HeldLocks, SecondDriverError
from espo_luigi.jobs.order import JobFiles, JobOrder, JobState
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers.driver_job import Note
from espo_luigi.jobs.schedulers.script import task_name
from espo_luigi.jobs.settings import BatchSettings

_HOLD = (
    "import sys; from pathlib import Path; from espo_luigi.jobs.lock import DriverLock\n"
    "DriverLock(Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()"
)
_LOOK = (
    "import sys; from pathlib import Path; from espo_luigi.jobs.lock import DriverLock\n"
    "print((DriverLock(Path(sys.argv[1])).holder() or {}).get('pid'))"
)
_CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.fixture
def hold() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Let a driver that is started by `prefix` hold the lock of a folder."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, *prefix: str) -> subprocess.Popen[str]:
        argv = [*prefix, sys.executable, "-c", _HOLD, str(folder)]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None and started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for process in started:
        process.communicate()


def _seen(folder: Path, *prefix: str) -> str:
    argv = [*prefix, sys.executable, "-c", _LOOK, str(folder)]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def _age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


@as_root
def test_a_driver_in_another_container_of_this_host_lives_until_it_is_silent_for_long(
    tmp_path: Path, hold: Callable[..., Any]
) -> None:
    path = tmp_path / "driver.lock"
    hold(tmp_path, *_CONTAINER)
    with pytest.raises(SecondDriverError, match=rf"on {socket.gethostname()} \(in another container there, or before"):
        DriverLock(tmp_path).acquire()
    said = json.loads(path.read_text())
    assert _seen(tmp_path, *_CONTAINER) == str(said["pid"]), "its number is perhaps that of the looking process"
    _age(path, 1000)
    assert DriverLock(tmp_path).holder() is None


@as_root
def test_a_driver_hidden_by_hidepid_lives_until_its_number_is_free_or_it_is_silent_for_long(
    tmp_path: Path, hold: Callable[..., Any]
) -> None:
    first, path = hold(tmp_path), tmp_path / "driver.lock"
    path.chmod(0o644)
    other = f"mount -t proc -o hidepid=2 proc /proc; exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups"
    hidden = ("unshare", "--mount", "--propagation", "private", "sh", "-c", f'{other} "$@"', "sh")
    with reachable(tmp_path):
        tmp_path.chmod(0o777)
        assert _seen(tmp_path, *hidden) == str(first.pid)
        _age(path, 1000)
        assert _seen(tmp_path, *hidden) == "None", "a later process may have its number"
        _age(path, 0)
        first.communicate()
        assert _seen(tmp_path, *hidden) == "None"


def test_a_driver_before_the_reboot_counts_by_the_age_of_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DriverLock(tmp_path).acquire()
    monkeypatch.setattr("espo_luigi.jobs.lock.process_room", lambda: "another boot")
    monkeypatch.setattr(files, "process_room", lambda: "another boot")
    with pytest.raises(SecondDriverError, match="before its last reboot"):
        DriverLock(tmp_path).acquire()
    _age(tmp_path / "driver.lock", 1000)
    DriverLock(tmp_path).acquire()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, int, int], None]:
    """Let the next reads of a file fail with an error."""
    read = files.read_bytes

    def fail(path: Path, error: int, times: int = 10**6) -> None:
        left = [times]

        def failing_read(name: Any, *more: Any, **options: Any) -> bytes:
            if Path(name) == path and left[0]:
                left[0] -= 1
                raise OSError(error, os.strerror(error), str(path))
            return read(name, *more, **options)

        monkeypatch.setattr(files, "read_bytes", failing_read)

    return fail


@pytest.mark.parametrize("error", [errno.ESTALE, errno.EIO, errno.EACCES])
def test_a_lock_that_cannot_be_read_is_neither_taken_nor_removed(
    tmp_path: Path, error: int, hold: Callable[..., Any], failing: Callable[..., None]
) -> None:
    hold(tmp_path)
    said, lock = (tmp_path / "driver.lock").read_text(), DriverLock(tmp_path)
    failing(lock.path, error)
    for act in (lock.acquire, lock.holder, lock.refresh, lock.release):
        with pytest.raises(OSError, match=r"driver\.lock"):
            act()
    assert lock.path.read_text() == said


def test_a_note_of_a_drivers_job_that_cannot_be_read_for_a_moment_is_read_again(
    tmp_path: Path, failing: Callable[..., None]
) -> None:
    path, note = tmp_path / "driver-job.json", Note("token", "7")
    note.write(path)
    failing(path, errno.ESTALE, 1)
    assert Note.read(path) == note
    failing(path, errno.EACCES)
    with pytest.raises(PermissionError):
        Note.read(path)


def test_an_order_that_cannot_be_read_for_a_moment_is_not_overwritten(
    tmp_path: Path, failing: Callable[..., None]
) -> None:
    order = JobOrder("id", "R", "m", "R", {}, {}, Resources(), JobFiles.of(tmp_path, "R", {}), configuration="new")
    replace(order, configuration="its job's").write()
    said, store, settings = order.files.order.read_text(), RecordStore(tmp_path), BatchSettings(workdir=tmp_path)
    store.create_folders()
    task = task_name(settings.run, order.family, order.wildcards, store.salt)
    store.save(Record(task, "R", {}, 1, 1, "log", state=JobState.QUEUED, job_id="7"))
    engine = BatchEngine.__new__(BatchEngine)
    engine.__dict__ |= {"_settings": settings, "_manager": SimpleNamespace(store=store)}
    failing(order.files.order, errno.ESTALE)
    with pytest.raises(OSError, match="Stale"):
        engine._write(order)
    assert order.files.order.read_text() == said


def test_only_displays_take_what_cannot_be_read_for_absent() -> None:
    package = Path(files.__file__).parent
    users = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "read_json(" in path.read_text(encoding="utf-8").replace("def read_json(", "")
    }
    # A heartbeat that is shown (jobs/local.py), `espo status`, `espo why`, the page and its figures.
    displays = {"jobs/local.py", "driver/board.py", "driver/status.py", "overview/states.py", "report/reading.py"}
    assert users == displays, "a decision needs read_object, which raises what is not FileNotFoundError"


def test_a_second_driver_is_refused_while_the_first_lives_and_let_in_once_it_is_dead(
    tmp_path: Path, hold: Callable[..., Any]
) -> None:
    first = hold(tmp_path)
    with pytest.raises(SecondDriverError, match=f"process {first.pid} on {socket.gethostname()}"):
        DriverLock(tmp_path).acquire()
    assert DriverLock(tmp_path).holder() is not None
    first.kill()
    first.wait()
    assert DriverLock(tmp_path).holder() is None
    DriverLock(tmp_path).acquire()


def test_a_process_that_got_the_dead_drivers_number_does_not_count(tmp_path: Path) -> None:
    lock = {"host": socket.gethostname(), "pid": os.getppid(), "started": "1", "room": process_room()}
    (tmp_path / "driver.lock").write_text(json.dumps(lock))
    DriverLock(tmp_path).acquire()
    assert json.loads((tmp_path / "driver.lock").read_text())["pid"] == os.getpid()


def test_a_driver_gets_all_the_folders_that_it_wants_or_none_and_leaves_nothing_in_them(
    tmp_path: Path, hold: Callable[..., Any]
) -> None:
    def locks(*names: str) -> list[DriverLock]:
        return [DriverLock(tmp_path / name) for name in names]

    first = hold(tmp_path / "b")
    held = HeldLocks(on_lost=pytest.fail)
    with pytest.raises(SecondDriverError, match=rf"{tmp_path}/b: process {first.pid}"):
        held.hold(*locks("b", "a"))
    assert locks("a")[0].holder() is None
    first.kill()
    first.wait()
    held.hold(*locks("b", "a"))
    held.hold(*locks("b", "c"))
    assert [lock.holder() is not None for lock in locks("a", "b", "c")] == [True] * 3
    held.release()
    assert [list((tmp_path / name).iterdir()) for name in "abc"] == [[], [], []]
    held.hold(*locks("a"))
    assert locks("a")[0].holder() is not None
    held.release()


def test_held_locks_are_kept_fresh_and_one_that_another_driver_took_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("espo_luigi.jobs.lock.REFRESH_EVERY_SECONDS", 0.05)
    lost: list[SecondDriverError] = []
    held, path = HeldLocks(lost.append), tmp_path / "driver.lock"
    held.hold(DriverLock(tmp_path))
    os.utime(path, (time.time() - 1000, time.time() - 1000))
    eventually(lambda: time.time() - path.stat().st_mtime < 500)
    other = json.dumps({"host": "login2", "pid": 1, "started": "1"})
    # Again and again: a refresh that has read the file just before would write over it.
    eventually(lambda: path.write_text(other) and lost)
    time.sleep(0.2)
    assert [str(path) in str(error) for error in lost] == [True]
    held.release()
    assert "login2" in path.read_text()


def test_a_lock_that_is_taken_over_while_its_driver_refreshes_it_has_one_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DriverLock(tmp_path)
    lock._mine |= {"host": "login2", "room": "elsewhere"}
    lock.acquire()
    takes = (
        "import sys; from pathlib import Path; from espo_luigi.jobs.lock import DriverLock\n"
        "lock = DriverLock(Path(sys.argv[1]), stale_after_seconds=-1000)\nprint('now', flush=True)\nlock.acquire()"
    )
    others: list[subprocess.Popen[bytes]] = []

    def read(path: Path) -> dict[str, Any] | None:
        found = read_object(path)
        others.append(subprocess.Popen([sys.executable, "-c", takes, str(tmp_path)], stdout=subprocess.PIPE))
        assert others[0].stdout is not None
        assert others[0].stdout.readline() == b"now\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            others[0].wait(2)
        return found

    with monkeypatch.context() as patch:
        patch.setattr("espo_luigi.jobs.lock.read_object", lambda path: read(path) if not others else read_object(path))
        lock.refresh()
    assert others[0].wait(60) == 0
    assert json.loads(lock.path.read_text())["pid"] == others[0].pid, "who was told that it has the lock has it"
    assert not lock.refresh()


@pytest.mark.parametrize("text", [None, "", "{"])
def test_a_lock_that_names_nobody_is_taken_back_by_the_driver_that_had_it(tmp_path: Path, text: str | None) -> None:
    lock = DriverLock(tmp_path)
    lock.acquire()
    before = (tmp_path / "driver.lock").read_text()
    (tmp_path / "driver.lock").unlink()
    if text is not None:
        (tmp_path / "driver.lock").write_text(text)
    assert lock.refresh()
    assert (tmp_path / "driver.lock").read_text() == before


def test_a_driver_that_does_not_take_a_request_to_stop_is_named_and_not_said_to_be_asked(tmp_path: Path) -> None:
    (tmp_path / "driver.lock").write_text(json.dumps({"host": "login2", "pid": 77, "started": "1"}))
    with pytest.raises(SubmissionError, match=r"process 77 on login2.*has not taken.*driver\.lock"):
        request_stop(tmp_path, "cancel", timeout=0.3)
    assert take_control(tmp_path) == "cancel", "if it lives after all, it finds the request"


def test_a_driver_that_ends_before_it_takes_a_request_leaves_none_to_the_next(
    tmp_path: Path, hold: Callable[..., Any]
) -> None:
    first = hold(tmp_path)
    killer = threading.Timer(0.3, first.kill)
    killer.start()
    assert not request_stop(tmp_path, "cancel", timeout=3.0)
    first.wait()
    assert take_control(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        json.dumps({"host": socket.gethostname()}),
        '{"host": 5}',
        '{"host": "\\u001b[2Jelsewhere", "pid": "x"}',
        '{"host": "elsewhere", "pid": null}',
        '{"host": "login2", "pid": 0, "started": "1"}',
    ],
)
def test_a_lock_of_another_host_or_of_nobody_is_respected_until_it_is_old(tmp_path: Path, content: str) -> None:
    path = tmp_path / "driver.lock"
    path.write_text(content)
    with pytest.raises(SecondDriverError, match=r"already works in .*: process 0 on .*remove .*driver\.lock"):
        DriverLock(tmp_path).acquire()
    assert DriverLock(tmp_path).holder() is not None
    os.utime(path, (0, 0))
    DriverLock(tmp_path).acquire()


def test_of_many_drivers_that_start_at_once_one_gets_the_lock(tmp_path: Path) -> None:
    assert len(winners_of("DriverLock(Path(sys.argv[1])).acquire()", str(tmp_path))) == 1
