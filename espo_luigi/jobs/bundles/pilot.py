"""A bundle's members one after the other, or some at once, as children of one process that has imported everything.

It runs as a job of a scheduler. What its plan holds is `submissions`' business; each member claims its work by its own
script, which hands the environment over that a job of its own would have.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.jobs.lifecycle.records import write_atomically
from espo_luigi.jobs.local.forkserver import forked
from espo_luigi.jobs.schedulers import known as schedulers
from espo_luigi.jobs.schedulers.script import end_path
from espo_luigi.jobs.trouble import JOBS_PATIENCE_SECONDS, persistently

logger = logging.getLogger("espo_luigi.job")

_LOOK_SECONDS = 10.0
# What a member whose claim was closed gets at each look: time to end by itself, the order to write its stack, to end.
_ORDERS = (None, signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL)


@dataclass
class Member:
    """One of the plan's, and the child that does its work; `closed` counts the looks that found its claim closed."""

    script: str
    order: Path
    log: Path
    claim: Path
    pid: int = 0
    closed: int = 0


class Pilot:
    """Runs `members` by `run`, which takes an order's path and returns an exit code, so many at once."""

    def __init__(self, members: list[Member], at_once: int, run: Callable[[Path], int]) -> None:
        self._waiting = deque(members)
        self._at_once = at_once
        self._run = run
        self._running: dict[int, Member] = {}
        self._stopping = False

    def work(self) -> None:
        """Run all to their ends, or until this process gets a signal to stop."""
        for member in self._waiting:
            with suppress(OSError):
                end_path(member.claim).unlink(missing_ok=True)
        with _children_wake_up():
            signal.signal(signal.SIGTERM, self._stop)
            next_look = time.monotonic() + _LOOK_SECONDS
            while self._running or (self._waiting and not self._stopping):
                self._start_some()
                signal.sigtimedwait({signal.SIGCHLD}, 1.0)
                self._reap()
                if time.monotonic() >= next_look:
                    self._look()
                    next_look = time.monotonic() + _LOOK_SECONDS

    def _start_some(self) -> None:
        while self._waiting and len(self._running) < self._at_once and not self._stopping:
            member = self._waiting.popleft()
            member.pid = forked(member.log, os.O_APPEND, lambda one=member: _member(one, self._run))  # type: ignore[misc]
            self._running[member.pid] = member

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            member = self._running.pop(pid, None)
            # Where all are being stopped, the scheduler has the cause.
            if member is not None and not self._stopping:
                _note_end(member, os.waitstatus_to_exitcode(status))

    def _look(self) -> None:
        """Stop the members whose claims the driver has closed."""
        for member in self._running.values():
            if _is_closed(member.claim):
                member.closed += 1
                order = _ORDERS[min(member.closed, len(_ORDERS)) - 1]
                if order is not None:
                    _signal(member, order)

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for member in self._running.values():
            _signal(member, signal.SIGTERM)


def run_plan(plan: Path, run: Callable[[Path], int]) -> int:
    """Do what a plan says; return the exit code of this job."""
    said = json.loads(persistently(plan.read_text, JOBS_PATIENCE_SECONDS))
    Pilot([_parsed(one) for one in said["members"]], said["at_once"], run).work()
    return 0


def _parsed(said: Mapping[str, Any]) -> Member:
    scheduler = schedulers.around()
    assert scheduler is not None, "a pilot is a scheduler's job"
    log = scheduler.log_path(said["log"], str(schedulers.job_id()))
    return Member(said["script"], Path(said["order"]), Path(log), Path(said["claim"]))


def _member(member: Member, run: Callable[[Path], int]) -> int:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    environment = _claimed(member.script)
    if isinstance(environment, int):
        return environment
    os.environ.clear()
    os.environ.update(environment)
    return run(member.order)


def _claimed(script: str) -> dict[str, str] | int:
    """The environment of the member's work, or the exit code where it is another's."""
    done = subprocess.run(["bash", "--", script], stdout=subprocess.PIPE, check=False)
    if not done.stdout:
        return done.returncode
    pairs = (entry.partition(b"=") for entry in done.stdout.split(b"\0") if entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _is_closed(claim: Path) -> bool:
    try:
        return claim.read_text(encoding="utf-8").strip() not in ("", schedulers.job_id())
    except OSError:
        return False


def _note_end(member: Member, code: int) -> None:
    if code == 0 and not member.claim.exists():
        return  # its success is known, and its files are gone
    text = f"{schedulers.job_id()} {code if code >= 0 else 128 - code}"
    try:
        persistently(lambda: write_atomically(end_path(member.claim), text), JOBS_PATIENCE_SECONDS)
    except OSError as error:
        logger.error("cannot write how %s has ended: %s", member.claim.name, error)


def _signal(member: Member, number: int) -> None:
    # The command alone gets it: it ends Dask's workers, and writes its own stack.
    with suppress(ProcessLookupError):
        os.kill(member.pid, number)


@contextmanager
def _children_wake_up() -> Iterator[None]:
    """Have the end of a child be waited for, in place of interrupting whatever is being done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        sys.stdout.flush()
