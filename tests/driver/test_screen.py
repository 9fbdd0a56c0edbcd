"""A run in its terminal: a table that fits, or lines of text; a strange terminal does no harm."""

import fcntl
import io
import json
import logging
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from throwaway_daemons import eventually

from espo_luigi.driver.board import BegunTask, Board, notify, reported
from espo_luigi.driver.screen import Screen, as_table, status_lines
from espo_luigi.driver.status import status_of
from espo_luigi.errors import Failure
from espo_luigi.jobs.order import JobState, Progress

SUPPORT = Path(__file__).parents[1] / "support"
RUN = """
import sys
import luigi, toy_tasks
from espo_luigi.driver.install import WorkerSchedulerFactory

tasks = [toy_tasks.Gated(n=n, folder=sys.argv[1], seconds=0.0) for n in range(2)]
done = luigi.build(tasks, local_scheduler=True, worker_scheduler_factory=WorkerSchedulerFactory(), log_level="ERROR")
sys.exit(0 if done else 1)
"""


def large_board() -> Board:
    """Of 28 rules, ten are done, five at work; some jobs run, pend, wait, and have failed."""
    board = Board()
    for number in range(28):
        board.expect("All", "slurm", [(f"{number}-{task}", f"Rule{number}") for task in range(20)])
    for number in range(10):
        for task in range(20):
            board.end(f"{number}-{task}", None, 60.0)
    told = [
        Progress("RUNNING, 20 %", state=JobState.RUNNING),
        Progress("PENDING (Priority), job 1", state=JobState.QUEUED, reason="Priority"),
        Progress("PENDING (QOS…), job 2", state=JobState.QUEUED, reason="QOSMaxCpuPerUserLimit"),
        Progress("planned, job -", state=JobState.READY),
    ]
    for number in range(10, 15):
        for task, progress in enumerate(told * 2):
            name = f"{number}-{task}"
            board.begin(
                BegunTask(name, f"Rule{number} n={task}", f"Rule{number}", time.time() - 600, 4, 2**30, "nowhere")
            )
            board.tell(name, progress)
        board.end(f"{number}-19", Failure(f"Rule{number} n=19", "ValueError: a reason"), 60.0)
    return board


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (60, 10), (20, 3)])
def test_the_table_fits_the_terminal_and_shows_what_is_at_work_before_what_is_not(width: int, height: int) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=width, height=height)
    console.print(as_table(status_of(large_board().snapshot(), time.time()), width, height))
    lines = screen.getvalue().splitlines()
    assert len(lines) <= max(height - 1, 5) and max(map(len, lines)) <= width
    assert lines[0].startswith("200 of 560 done, ")
    if height >= 24:
        assert {f"Rule{number}" for number in range(10, 15)} <= {line.split()[0] for line in lines if line.strip()}
        assert any("Rule14 n=19 failed: ValueError" in line for line in lines)
        assert any("other people's jobs go first" in line for line in lines)
        folded = any(line.startswith("done: 200 task(s) of Rule0, Rule1") for line in lines)
        assert folded == (height == 24)


def test_status_is_cut_to_the_lines_that_there_are_and_whole_without_a_limit() -> None:
    state = large_board().snapshot()
    assert len(status_lines(state, lines=20)) <= 20
    whole = status_lines(state)
    assert sum(line.startswith("Rule") for line in whole) == 28
    assert [line for line in whole if "ValueError" in line] == ["  5 alike: Rule14 n=19 failed: ValueError: a reason"]


def test_tasks_that_failed_for_one_cause_share_a_line_whatever_their_jobs_and_logs() -> None:
    no_memory = Failure("", "out of memory: OUT_OF_MEMORY", "memory", "raise it", 1, "100", "n0", Path("/logs/100"))
    jobs = [
        replace(no_memory, task=f"Train piece={piece}", job_id=one, node=f"n{one}", log_path=Path("/logs", one))
        for one, piece in (("100", "south"), ("101", "middle"), ("102", "north"))
    ]
    full = "OSError: [Errno 28] No space left"
    local = [Failure(f"Regrid piece={piece}", full, log_path=Path("/logs", piece)) for piece in "ab"]
    board = Board()
    board.expect("All", "slurm", [(str(number), "Rule") for number in range(9)])
    for number, failure in enumerate([Failure("", "refused"), *jobs[:2], *local, jobs[2]]):
        board.end(str(number), failure)
    assert list(status_of(board.snapshot(), time.time()).lists["failed"]) == [
        "3 alike: Train piece=north: job 102 on n102, attempt 1: out of memory: OUT_OF_MEMORY; raise it log: /logs/102",
        f"2 alike: Regrid piece=b failed: {full} log: /logs/b",
        "refused",
    ]
    assert list(status_of(board.snapshot(), time.time(), most_failures=1).lists["failed"])[1:] == ["and 3 before"]


@pytest.fixture()
def logger() -> Iterator[logging.Logger]:
    """A logger that writes to the current standard error."""
    logger = logging.getLogger("espo_luigi")
    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    yield logger
    logger.removeHandler(handler)


def test_what_is_logged_stays_above_the_table_and_is_not_broken(tmp_path: Path, logger: logging.Logger) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80, height=24)
    with Screen(console) as table, reported(large_board(), tmp_path, table.show, every_seconds=0.05):
        eventually(lambda: "other people's jobs go first" in screen.getvalue())
        logger.warning("/a/long/%s/path", "x" * 100)
    assert f"/a/long/{'x' * 100}/path\n" in screen.getvalue()
    assert json.loads((tmp_path / "run.json").read_text())["ended"]


class Broken(io.StringIO):
    """A terminal that is gone after some writing."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "Input/output error")
        return len(text)


@pytest.mark.parametrize("writes", [0, 3])
def test_a_terminal_that_goes_takes_the_table_with_it_and_nothing_else(
    writes: int, logger: logging.Logger, log: pytest.LogCaptureFixture
) -> None:
    before = sys.stderr
    with Screen(Console(file=Broken(writes), force_terminal=True, width=80, height=24)) as screen:
        for _ in range(5):
            screen.show(large_board().snapshot())
    assert sys.stderr is before
    assert [one.stream for one in logger.handlers if isinstance(one, logging.StreamHandler)][-1:] == [before]
    assert log.text.count("not shown in this terminal any more") == 1


@contextmanager
def run_in_a_terminal(folder: Path, **environ: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The run of two tasks that end when there is a file `go`, with a terminal as its standard error; and that."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    path = f"{SUPPORT.parents[1]}{os.pathsep}{SUPPORT}"
    environ = {**os.environ, "TERM": "xterm", **environ, "PYTHONPATH": path}
    (folder / "luigi.cfg").write_text(f"[espo]\nworkdir = {folder}/work\nlive = {environ.get('LIVE', 'true')}\n")
    command = [sys.executable, "-c", RUN, str(folder)]
    process = subprocess.Popen(command, cwd=folder, env=environ, stderr=theirs, start_new_session=True)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()


def read_until(terminal: int, wanted: str, seconds: float = 60.0) -> str:
    """Return the terminal's text until it contains `wanted` or every writer has closed it."""
    text, until = "", time.monotonic() + seconds
    while wanted not in text:
        assert time.monotonic() < until, f"no {wanted!r} in {text[-500:]!r}"
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                text += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                break
    return text


def test_a_real_terminal_shows_the_run_is_resized_and_closed_and_the_run_goes_on(tmp_path: Path) -> None:
    with run_in_a_terminal(tmp_path) as (process, terminal):
        shown = read_until(terminal, "longest at work:")
        assert re.search(r"0 of 2 done, \d running", shown) and "\x1b[" in shown
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 6, 30, 0, 0))
        read_until(terminal, "…")
        os.close(terminal)
        time.sleep(2.5)
        assert process.poll() is None
        (tmp_path / "go").touch()
        assert process.wait(60) == 0
    state = json.loads((tmp_path / "work" / "run.json").read_text())
    assert (state["outcome"], state["rules"]["Gated"]["done"]) == ("done", 2)


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"LIVE": "false"}])
def test_a_dumb_terminal_or_who_wants_none_gets_lines(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "go").touch()
    with run_in_a_terminal(tmp_path, **environ) as (process, terminal):
        shown = read_until(terminal, "the end")
        assert process.wait(60) == 0
        os.close(terminal)
    assert "[2/2] Gated" in shown and "\x1b" not in shown


def ended(outcome: str) -> dict[str, object]:
    board = large_board()
    board.close(outcome)
    return board.snapshot()


def test_whom_notify_names_is_told_outcome_counts_and_what_failed_and_no_shell_sees_it(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    script = tmp_path / "it's told"
    script.write_text(
        f'#!/bin/sh\n{{ echo "$# $1|$ESPO_RESULT $ESPO_DONE/$ESPO_TOTAL $ESPO_FAILED"; cat; }} > {tmp_path}/told\n'
    )
    script.chmod(0o700)
    notify(f'"{script}" "$(touch {tmp_path}/shell);"', ended("failed"))
    told = (tmp_path / "told").read_text()
    assert told.startswith(f"1 $(touch {tmp_path}/shell);|failed 200/560 5\nfailed: 200 of 560 done, ")
    assert "\n  5 alike: Rule14 n=19 failed: ValueError: a reason\n" in told
    assert not (tmp_path / "shell").exists()
    assert log.text == ""


@pytest.mark.parametrize("command", ["/nowhere/at/all", "false", "an 'open quote", " ", "sleep 9"])
def test_a_message_that_cannot_be_given_is_a_warning(
    command: str, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("espo_luigi.driver.board._NOTIFY_TIMEOUT_SECONDS", 0.3)
    notify(command, ended("done"))
    assert f"[espo] notify = {command}: " in log.text
