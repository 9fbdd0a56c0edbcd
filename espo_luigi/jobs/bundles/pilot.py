"""Runs a bundle's members as children of a process that has imported everything, some at a time.

The pilot is a scheduler's job. `lifecycle.submit` writes its listing. Each member claims its work by its own script,
which prints the environment that the member would have as a single job. `stop_if_closed.sh` stops a member whose claim
the driver has closed.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from espo_luigi.errors import ProcessLimitError
from espo_luigi.files import write_atomically
from espo_luigi.jobs import schedulers
from espo_luigi.jobs.forkserver import forked
from espo_luigi.jobs.retry import JOBS_PATIENCE_SECONDS, Minutely, persistently
from espo_luigi.jobs.schedulers.script import end_path

logger = logging.getLogger("espo_luigi.job")


@dataclass(frozen=True)
class Member:
    """A member in the pilot's listing."""

    script: str
    order: Path
    log: Path
    claim: Path


class Pilot:
    """Runs `members`, `at_once` at a time. `run` does the work of an order's path and returns an exit code."""

    def __init__(self, members: list[Member], at_once: int, run: Callable[[Path], int]) -> None:
        self._waiting = deque(members)
        self._at_once = at_once
        self._run = run
        self._running: dict[int, Member] = {}
        self._stopping = False
        self._refused_since: float | None = None
        self._trouble = Minutely()

    def work(self) -> None:
        """Run all members to their ends, or until this process gets a signal to stop."""
        for member in self._waiting:
            with suppress(OSError):
                end_path(member.claim).unlink(missing_ok=True)
        # Blocked, so that the loop can wait for it and no other call is interrupted.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        signal.signal(signal.SIGTERM, self._stop)
        while self._running or (self._waiting and not self._stopping):
            self._start_some()
            signal.sigtimedwait({signal.SIGCHLD}, 1.0)
            while self._running:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                ended = self._running.pop(pid, None)
                # While the whole bundle is being stopped, nothing is written: the scheduler has the cause.
                if ended is not None and not self._stopping:
                    _note_end(ended, os.waitstatus_to_exitcode(status))

    def _start_some(self) -> None:
        while self._waiting and len(self._running) < self._at_once and not self._stopping:
            member = self._waiting.popleft()
            try:
                pid = forked(member.log, os.O_APPEND, partial(_member, member, self._run))
            except ProcessLimitError as error:
                # The end of another member, or of another program, makes room.
                now = time.monotonic()
                if self._running or self._refused_since is None:
                    self._refused_since = now
                elif now > self._refused_since + JOBS_PATIENCE_SECONDS:
                    raise
                self._trouble.warn("%s; trying again", error)
                self._waiting.appendleft(member)
                return
            self._refused_since = None
            self._running[pid] = member

    def _stop(self, *_: object) -> None:
        self._stopping = True
        for pid in self._running:
            # Only the command gets the signal: it ends its Dask workers.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)


def run_members(listing: Path, run: Callable[[Path], int]) -> int:
    """Run the members of a listing; return the exit code of this job."""
    fields = json.loads(persistently(listing.read_text, JOBS_PATIENCE_SECONDS))
    scheduler, job_id = schedulers.around(), str(schedulers.job_id())
    assert scheduler is not None, "a pilot is a scheduler's job"
    members = [
        Member(one["script"], Path(one["order"]), Path(scheduler.log_path(one["log"], job_id)), Path(one["claim"]))
        for one in fields["members"]
    ]
    Pilot(members, fields["at_once"], run).work()
    return 0


def _member(member: Member, run: Callable[[Path], int]) -> int:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    # It prints the environment of the member's work, or nothing if the work is not this job's.
    claimed = subprocess.run(["bash", "--", member.script], stdout=subprocess.PIPE, check=False)
    if not claimed.stdout:
        return claimed.returncode
    os.environ.clear()
    for name, _, value in (entry.partition(b"=") for entry in claimed.stdout.split(b"\0") if entry):
        os.environb[name] = value
    return run(member.order)


def _note_end(member: Member, code: int) -> None:
    if code == 0 and not member.claim.exists():
        return  # the driver knows of its success, and has deleted its files
    text = f"{schedulers.job_id()} {code if code >= 0 else 128 - code}"
    try:
        persistently(lambda: write_atomically(end_path(member.claim), text), JOBS_PATIENCE_SECONDS)
    except OSError as error:
        logger.error("cannot write how %s has ended: %s", member.claim.name, error)
