"""What the tools that start throw-away clusters share: finding programs, free ports, daemons' ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from espo_luigi.errors import EspoError

# Debian keeps daemons in sbin folders, which an ordinary user's PATH does not have.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])


class ClusterError(EspoError):
    """The throw-away cluster could not be started, or one of its parts does not answer."""


def find(program: str) -> str | None:
    """Return the program's path, or None where it is not installed."""
    return shutil.which(program, path=SEARCH_PATH)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait(ready: Callable[[], bool], timeout: float) -> bool:
    """Wait until `ready`; return whether that came in time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if ready():
            return True
        time.sleep(0.2)
    return ready()


def end_process(pid: int, hard: bool, timeout: float) -> None:
    """End a daemon (SIGTERM, or SIGKILL when `hard`, or when it does not go) and wait until it has gone."""
    _signal(pid, signal.SIGKILL if hard else signal.SIGTERM)
    if not wait(lambda: _gone(pid), timeout):
        _signal(pid, signal.SIGKILL)
        wait(lambda: _gone(pid), 5)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _gone(pid: int) -> bool:
    try:
        # A child of ours stays a zombie until it is waited for; what another process started is not ours to wait for.
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not Path(f"/proc/{pid}").exists()
