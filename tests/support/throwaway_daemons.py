"""What the tools that start throw-away clusters share: finding programs, free ports, daemons' ends."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from espo_luigi.errors import EspoError

# Debian keeps daemons in sbin folders, which an ordinary user's PATH does not have.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])


class ClusterError(EspoError):
    """The throw-away cluster could not be started, or one of its parts does not answer."""


@dataclass
class Throwaway:
    """The daemons of a cluster in one folder, with ports of their own; a context manager that ends them."""

    logs: ClassVar[str] = "log"
    may_start: ClassVar[bool] = True

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    pids: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which the scheduler's commands speak to this cluster."""
        raise NotImplementedError

    def stop(self, remove: bool = True) -> None:
        """End all jobs and daemons and, unless told otherwise, remove the folder."""
        raise NotImplementedError

    def run(self, *command: str, check: bool = True) -> str:
        """Run one of the scheduler's commands on this cluster and return what it wrote to stdout."""
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=60, check=False)
        if check and done.returncode:
            raise ClusterError(f"{shlex.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def stop_daemon(self, name: str, hard: bool = False, timeout: float = 20.0) -> None:
        """End one daemon (SIGTERM, or SIGKILL when `hard`) and wait until it has gone."""
        pid = self.pids.pop(name, None)
        if pid is not None:
            end_process(pid, hard, timeout)

    def _started(self, start: Callable[[], None]) -> Self:
        if not self.may_start:
            raise ClusterError("a test that starts a cluster has to be marked slurm")
        try:
            start()
        except BaseException:
            self.stop(remove=False)
            raise
        return self

    def _start_process(self, name: str, command: Sequence[str], log: Path, environ: dict[str, str]) -> None:
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                env=environ,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,  # Ctrl-C in a test must not reach the cluster
            )
        self.pids[name] = process.pid
        _saved(self.folder).write_text(json.dumps(self._to_save()))

    def _to_save(self) -> dict[str, Any]:
        """What `attach` has to know."""
        return {"ports": self.ports, "pids": self.pids}

    def _wait_for(self, what: str, ready: Callable[[], bool], timeout: float = 30.0) -> None:
        if not wait(ready, timeout):
            where = f"{self.logs} of {self.folder}"
            raise ClusterError(f"waited {timeout:.0f} s in vain for {what}; what the daemons say is in {where}")


def saved(folder: Path) -> dict[str, Any]:
    """Return what a cluster that another process started in `folder` has saved of itself."""
    return dict(json.loads(_saved(folder).read_text()))


def _saved(folder: Path) -> Path:
    return folder / "cluster.json"


def command_line(program: str, about: str) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parser of ``start`` and ``stop FOLDER``, and that of ``start`` alone, for options of its own."""
    parser = argparse.ArgumentParser(prog=f"python tests/{program}", description=about.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="start a cluster and say how to use it")
    stop = commands.add_parser("stop", help="end a cluster and remove its folder")
    stop.add_argument("folder", type=Path)
    return parser, start


def how_to_use(program: str, cluster: Throwaway, variables: dict[str, str]) -> str:
    """Return the lines for a shell that make commands use the cluster, and the command that ends it."""
    exports = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    return "".join([*exports, f"# to end it: python tests/{program} stop {shlex.quote(str(cluster.folder))}\n"])


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


def wait(ready: Callable[[], object], timeout: float, every: float = 0.2) -> bool:
    """Wait until `ready`; return whether that came in time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if ready():
            return True
        time.sleep(every)
    return bool(ready())


def eventually(condition: Callable[[], object], timeout: float = 90.0) -> None:
    """Wait until `condition`, which has to come in time."""
    assert wait(condition, timeout, 0.05), f"waited {timeout:.0f} s in vain"


def ended(process: subprocess.Popen[str], code: int = 0, timeout: float = 180.0) -> str:
    """Wait for a command's end, which has to have this exit code; return what it has written to standard error."""
    _, errors = process.communicate(timeout=timeout)
    assert process.returncode == code, errors
    return errors


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
