"""Starts jobs as forks of a server process that has imported everything once.

A job's imports take seconds; a fork starts in milliseconds. The server imports the modules that its command names and
calls `serve`. It reads a JSON line for each job (``{"order": …, "log": …}``), answers with the job's pid, and later
with its exit code. If the machine lets no further process start, it answers with the reason (``{"refused": …}``).

The forkserver of `multiprocessing` is as fast (18 ms a job), but runs the driver's main script again in each child. A
script that calls `build` outside of ``if __name__ == "__main__"`` would start itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from espo_luigi.errors import JobError
from espo_luigi.files import open_own
from espo_luigi.jobs.dask.local import limit_thread_pools
from espo_luigi.jobs.retry import process_limit, start


class Child:
    """A job, as its driver sees it."""

    def __init__(self) -> None:
        self.pid = 0
        self.refused = ""  # why it was not started
        self._stopped = False
        self.ended = threading.Event()

    def stop(self) -> None:
        """Send SIGTERM to the job, or as soon as it has started."""
        self._stopped = True
        if self.pid and not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def started(self, pid: int) -> None:
        """Record that the job runs, and stop it if that was asked before."""
        self.pid = pid
        if self._stopped:
            self.stop()


class ForkServer:
    """The driver's end of the server: starts it, passes jobs to it, and reads their ends."""

    def __init__(self, command: Sequence[str]) -> None:
        environment = dict(os.environ)
        limit_thread_pools(environment)  # a process with a thread pool cannot be forked safely
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._lock = threading.Lock()
        self._starting: list[Child] = []
        self._running: dict[int, Child] = {}
        start(threading.Thread(target=self._listen, daemon=True))

    def start(self, order: Path, log: Path) -> Child:
        """Start the job of `order`; its output goes to `log`."""
        child = Child()
        assert self._process.stdin is not None
        with self._lock:
            self._starting.append(child)
            try:
                self._process.stdin.write(json.dumps({"order": str(order), "log": str(log)}) + "\n")
                self._process.stdin.flush()
            except OSError as error:
                raise JobError(
                    "the process that starts the local engine's jobs is gone; give the command again"
                ) from error
        return child

    def close(self) -> None:
        """End the server, without waiting for jobs that still run."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            with self._lock:
                if "refused" in answer:
                    child = self._starting.pop(0)
                    child.refused = answer["refused"]
                    child.ended.set()
                elif "exit_code" not in answer:
                    child = self._starting.pop(0)
                    child.started(answer["pid"])
                    self._running[child.pid] = child
                else:
                    self._running.pop(answer["pid"]).ended.set()
        with self._lock:
            for child in (*self._starting, *self._running.values()):
                child.ended.set()


def serve(run: Callable[[Path], int]) -> None:
    """Fork a child for each line of standard input until that closes."""
    wake_up, awake = os.pipe()
    os.set_blocking(awake, False)

    signal.set_wakeup_fd(awake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    buffer = b""
    while True:
        ready, _, _ = select.select([0, wake_up], [], [])
        if wake_up in ready:
            os.read(wake_up, 4096)
            _reap()
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                _answer(_fork(json.loads(line), run))


def _fork(job: dict[str, str], run: Callable[[Path], int]) -> dict[str, Any]:
    try:
        return {"pid": forked(Path(job["log"]), os.O_TRUNC, lambda: run(Path(job["order"])))}
    except BlockingIOError as error:
        return {"refused": process_limit(error)}


def forked(log: Path, mode: int, run: Callable[[], int]) -> int:
    """Fork a child in a new session that calls `run` and logs to a file opened with `mode`; return its pid."""
    pid = os.fork()
    if pid:
        return pid

    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    code = 1
    try:
        stream_to = open_own(log, mode, 0o644)
        for stream in (1, 2):
            os.dup2(stream_to, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _answer({"pid": pid, "exit_code": os.waitstatus_to_exitcode(status)})


def _answer(value: dict[str, Any]) -> None:
    os.write(1, (json.dumps(value) + "\n").encode())
