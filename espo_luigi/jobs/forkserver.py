"""Starts jobs as forks of a server process that has imported everything once.

A job's imports take seconds; a fork starts in milliseconds. The server's standard input is a socket. The server reads a
JSON line for each job (``{"order": …, "log": …}``), answers with the job's pid (``{"started": …}``) or the reason why
the machine lets no further process start (``{"refused": …}``), and tells the job's end (``{"ended": …}``, its pid).

The forkserver of `multiprocessing` is as fast (18 ms a job), but runs the driver's main script again in each child. A
script that calls `build` outside of ``if __name__ == "__main__"`` would start itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from espo_luigi.errors import ProcessLimitError
from espo_luigi.files import lives, open_own, process_room, process_start
from espo_luigi.jobs.retry import process_limit, start
from espo_luigi.machine import end_with, limit_thread_pools

# How often it is looked whether a job lives that lost its server.
_LOOK_SECONDS = 0.2
# How long a job may take to end after SIGTERM, as by Slurm's default: in native code it cannot answer.
_LONGEST_STOP_SECONDS = 30.0


class Child:
    """A job that was started, or `refused` for that reason, as its driver sees it."""

    def __init__(self) -> None:
        self.pid = 0
        self.began = ""
        self.refused = ""
        self.stopped_at: float | None = None
        self.ended = threading.Event()

    def stop(self) -> None:
        """Send SIGTERM to the job, or as soon as it has started."""
        self.stopped_at = self.stopped_at or time.monotonic()
        if self.pid and not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def end_if_late(self) -> None:
        """Kill the job with its processes if it has not ended long after `stop`."""
        late = self.stopped_at is not None and time.monotonic() > self.stopped_at + _LONGEST_STOP_SECONDS
        if late and self.pid and not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def refuse(self, why: str) -> None:
        """Record that the job does not start."""
        self.refused = why
        self.ended.set()


class ForkServer:
    """The driver's end of the server: starts it, passes jobs to it, and reads their ends."""

    def __init__(self, command: Sequence[str]) -> None:
        environment = dict(os.environ)
        limit_thread_pools(environment)  # a process with a thread pool cannot be forked safely
        self._channel, theirs = socket.socketpair()
        with theirs:
            # What modules print as they are imported goes to standard error.
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=2, env=environment, start_new_session=True
            )
        self._lock = threading.Lock()
        self._starting: list[Child] = []
        self._running: dict[int, Child] = {}
        self._closed = False
        self._has_jobs = False
        self._over = ""
        start(threading.Thread(target=self._listen, daemon=True))

    def start(self, order: Path, log: Path) -> Child:
        """Start the job of `order`; its output goes to `log`."""
        child = Child()
        with self._lock:
            if self._over:
                child.refuse(self._over)
                return child
            self._starting.append(child)
            self._has_jobs = True
            # Of a server that has ended, `_listen` tells the children.
            with suppress(OSError):
                _send(self._channel, {"order": str(order), "log": str(log)})
        return child

    def close(self) -> None:
        """End the server, without waiting for jobs that still run, nor for imports that no job needs."""
        self._closed = True
        if not self._has_jobs:
            self._process.kill()
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
        self._process.wait()

    def _listen(self) -> None:
        with suppress(ConnectionResetError), self._channel.makefile() as answers:
            for line in answers:
                with self._lock:
                    self._take(json.loads(line))
        code = self._process.wait()
        with self._lock:
            self._over = (
                f"the process that starts the local engine's jobs has ended (exit code {code}), and the lines above "
                "may tell why; give the command again"
            )
            starting, running = self._starting, list(self._running.values())
        for child in starting:
            child.refuse(self._over)
        for child in running:
            child.stop()
        for child in running:
            # A job that is told dead may be started again.
            while not self._closed and lives(child.pid, child.began, process_room()) is not False:
                time.sleep(_LOOK_SECONDS)
            child.ended.set()

    def _take(self, answer: dict[str, Any]) -> None:
        if "ended" in answer:
            self._running.pop(answer["ended"]).ended.set()
            return
        child = self._starting.pop(0)
        if "refused" in answer:
            child.refuse(answer["refused"])
            return
        child.pid, child.began = answer["started"], process_start(answer["started"])
        self._running[child.pid] = child
        if child.stopped_at is not None:
            child.stop()


def serve(run: Callable[[Path], int], imports: Callable[[], object] = lambda: None) -> None:
    """Call `imports`, and then fork a child for each line from the driver until the driver ends."""
    channel = socket.socket(fileno=os.dup(0))
    with open(os.devnull) as nothing:  # for modules that read, and for jobs
        os.dup2(nothing.fileno(), 0)
    imports()
    wake_up, awake = os.pipe()
    os.set_blocking(awake, False)
    signal.set_wakeup_fd(awake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    buffer, running = b"", set[int]()
    with suppress(BrokenPipeError, ConnectionResetError):  # the driver is dead, and needs no answer
        while True:
            ready, _, _ = select.select([channel.fileno(), wake_up], [], [])
            if wake_up in ready:
                os.read(wake_up, 4096)
                # Other children are a module's own, started as it was imported: their ends belong to the module.
                for pid in [pid for pid in running if os.waitpid(pid, os.WNOHANG)[0]]:
                    running.remove(pid)
                    _send(channel, {"ended": pid})
            if channel.fileno() in ready:
                data = channel.recv(65536)
                if not data:
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for job in map(json.loads, lines):
                    try:
                        pid = forked(Path(job["log"]), os.O_TRUNC, partial(_work, channel, run, Path(job["order"])))
                        running.add(pid)
                        _send(channel, {"started": pid})
                    except ProcessLimitError as error:
                        _send(channel, {"refused": str(error)})


def _work(channel: socket.socket, run: Callable[[Path], int], order: Path) -> int:
    channel.close()
    return run(order)


def forked(log: Path, mode: int, run: Callable[[], int]) -> int:
    """Fork a child in a new session that calls `run` and logs to a file opened with `mode`; return its pid.

    Raises ProcessLimitError if the machine lets no further process start.
    """
    # A child would write what waits to be written, too.
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        pid = os.fork()
    except OSError as error:
        raise ProcessLimitError(process_limit(error)) from error
    if pid:
        return pid

    def child() -> int:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        stream_to = open_own(log, mode, 0o644)
        for stream in (1, 2):
            os.dup2(stream_to, stream)
        return run()

    end_with(child)


def _send(channel: socket.socket, value: dict[str, Any]) -> None:
    channel.sendall(f"{json.dumps(value)}\n".encode())
