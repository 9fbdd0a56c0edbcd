"""A throw-away Slurm cluster on this machine, for tests and for trying things out.

It starts munge, slurmctld, several virtual nodes and, when asked, MariaDB with slurmdbd, all in one temporary folder,
with their own ports, key and sockets: nothing of the machine's own configuration is read or changed, and several of
them can run side by side.

From the shell: ``python tests/support/throwaway_slurm.py start --accounting`` prints the ``export SLURM_CONF=…`` line
that makes ``sbatch`` and the rest use it; ``python tests/support/throwaway_slurm.py stop FOLDER`` ends it.
"""

from __future__ import annotations

import functools
import getpass
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from throwaway_daemons import (
    SEARCH_PATH,
    ClusterError,
    Throwaway,
    command_line,
    find,
    free_ports,
    how_to_use,
    saved,
    wait,
)
from throwaway_slurm_conf import ClusterSpec, render_slurm_conf, render_slurmdbd_conf

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
ACCOUNTING_PACKAGES = ("slurmdbd", "mariadb-server")
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "munged", "mungekey")
_ACCOUNTING_PROGRAMS = ("slurmdbd", "sacct", "sacctmgr", "mariadbd", "mariadb-install-db", "mariadb")


@functools.cache
def missing_packages(accounting: bool = False) -> str | None:
    """Say what to install before `ThrowawayCluster` can run, or None when everything is there."""
    programs = _PROGRAMS + (_ACCOUNTING_PROGRAMS if accounting else ())
    missing = [name for name in programs if find(name) is None]
    if not missing:
        return None
    packages = PACKAGES + (ACCOUNTING_PACKAGES if accounting else ())
    return f"a real Slurm is needed; not found: {', '.join(missing)}; on Debian: apt-get install {' '.join(packages)}"


@dataclass
class ThrowawayCluster(Throwaway):
    """A running throw-away cluster; a context manager.

    Partitions: ``main`` (default) and ``urgent``, whose jobs preempt those of ``main`` by requeueing them, and those of
    ``main-grace`` by cancelling them after 10 s.
    """

    spec: ClusterSpec = field(default_factory=ClusterSpec)

    @classmethod
    def start(cls, spec: ClusterSpec | None = None, folder: Path | None = None) -> ThrowawayCluster:
        """Start a cluster; return when all its nodes are idle. Raises ClusterError, which says where the logs are."""
        spec = spec or ClusterSpec()
        if message := missing_packages(spec.accounting):
            raise ClusterError(message)
        cluster = cls(folder or Path(tempfile.mkdtemp(prefix="espo-slurm-")), spec=spec)
        return cluster._started(cluster._start)

    @classmethod
    def attach(cls, folder: Path) -> ThrowawayCluster:
        """Take over a cluster that another process started in `folder`."""
        values = saved(folder)
        spec = ClusterSpec(accounting=values.pop("accounting"), nodes=values.pop("nodes"))
        return cls(folder, spec=spec, **values)

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which Slurm's commands speak to this cluster."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": SEARCH_PATH}

    def start_daemon(self, name: str) -> None:
        """Start one daemon: ``munged``, ``mariadbd``, ``slurmdbd``, ``slurmctld`` or a node's name."""
        log = self.folder / "log" / f"{name}.out"
        self._start_process(name, self._daemon_command(name), log, self.environ)

    def wait_for_controller(self, timeout: float = 30.0) -> None:
        """Return when slurmctld answers."""
        self._wait_for("slurmctld to answer", lambda: "UP" in self.run("scontrol", "ping", check=False), timeout)

    def start_at_once(self, job_id: str, until: Callable[[], bool], timeout: float = 60.0) -> None:
        """Have Slurm start a job that it has requeued, and would let wait for two minutes."""
        time.sleep(2)  # in the second of its requeueing, a node refuses to start it, and Slurm counts it as failed
        deadline = time.monotonic() + timeout
        while not until():
            self.run("scontrol", "update", f"JobId={job_id}", "StartTime=now", check=False)
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"not started within {timeout:.0f} s:\n{self.run('scontrol', 'show', 'job', job_id)}"
                )
            time.sleep(0.5)

    def stop(self, remove: bool = True) -> None:
        """Cancel all jobs, end all daemons and, unless told otherwise, remove the folder."""
        if "slurmctld" in self.pids and self.run("squeue", "--noheader", check=False):
            self.run("scancel", "--user", getpass.getuser(), check=False)
            wait(lambda: not self.run("squeue", "--noheader", check=False), 10)
        for name in (*self.spec.node_names, "slurmctld", "slurmdbd", "mariadbd", "munged"):
            self.stop_daemon(name)
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        # A job of any user must be able to go through the folder, and munge refuses a key that others can write.
        self.folder.chmod(0o755)
        for name in ("log", "state", "spool", "run"):
            (self.folder / name).mkdir(exist_ok=True)
        names = ("slurmctld", *self.spec.node_names, "slurmdbd", "mariadbd")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        text = render_slurm_conf(self.spec, self.folder, self.ports)
        (self.folder / "slurm.conf").write_text(text + _plugins_line())
        self._start_munge()
        if self.spec.accounting:
            self._start_accounting()
        self.start_daemon("slurmctld")
        self.wait_for_controller()
        for name in self.spec.node_names:
            self.start_daemon(name)
        self._wait_for("all nodes to be idle", self._all_idle, 30)

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        subprocess.run([_program("mungekey"), "--create", f"--keyfile={key}"], check=True, timeout=30)
        self.start_daemon("munged")
        self._wait_for("munge's socket", (self.folder / "run" / "munge.sock").exists, 10)

    def _start_accounting(self) -> None:
        data = self.folder / "mariadb"
        install = ["--auth-root-authentication-method=normal", "--skip-test-db", f"--datadir={data}", *_as_root()]
        subprocess.run(
            [_program("mariadb-install-db"), *install], env=self.environ, check=True, timeout=120, capture_output=True
        )
        self.start_daemon("mariadbd")
        self._wait_for("MariaDB to answer", lambda: self._sql("SELECT 1") is not None, 30)
        self._sql(
            "CREATE USER slurm@'127.0.0.1' IDENTIFIED BY 'throwaway'; GRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1'"
        )
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(render_slurmdbd_conf(self.spec, self.folder, self.ports) + _plugins_line())
        conf.chmod(0o600)
        self.start_daemon("slurmdbd")
        self._wait_for("slurmdbd to answer", self._dbd_answers, 30)
        for words in (("cluster", "throwaway"), ("account", "science"), ("user", getpass.getuser(), "account=science")):
            self.run("sacctmgr", "-i", "add", *words)

    def _dbd_answers(self) -> bool:
        command = ["sacctmgr", "-n", "list", "cluster"]
        return subprocess.run(command, env=self.environ, capture_output=True, timeout=30, check=False).returncode == 0

    def _sql(self, statement: str) -> str | None:
        socket_file = self.folder / "run" / "mariadb.sock"
        command = [_program("mariadb"), f"--socket={socket_file}", "--user=root", f"--execute={statement}"]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=30, check=False)
        return None if done.returncode else done.stdout

    def _all_idle(self) -> bool:
        states = self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T", check=False).split()
        return len(states) == self.spec.nodes and set(states) == {"idle"}

    def _daemon_command(self, name: str) -> list[str]:
        run, conf = self.folder / "run", self.folder / "slurm.conf"
        if name == "munged":
            files = [f"--{part}-file={run / 'munge'}.{part}" for part in ("pid", "seed")]
            files += [f"--key-file={self.folder / 'munge.key'}", f"--log-file={self.folder / 'log' / 'munge.log'}"]
            return [_program("munged"), "--foreground", "--force", f"--socket={run / 'munge.sock'}", *files]
        if name == "mariadbd":
            # Small: a throw-away database must not take the memory of the work that is being tested.
            sizes = [
                "--innodb-buffer-pool-size=32M",
                "--performance-schema=OFF",
                "--skip-log-bin",
                "--innodb-flush-log-at-trx-commit=2",
            ]
            where = [
                f"--datadir={self.folder / 'mariadb'}",
                f"--socket={run / 'mariadb.sock'}",
                f"--port={self.ports[name]}",
            ]
            return [
                _program("mariadbd"),
                "--no-defaults",
                *where,
                "--bind-address=127.0.0.1",
                f"--pid-file={run}/mariadb.pid",
                *sizes,
                *_as_root(),
            ]
        if name in ("slurmdbd", "slurmctld"):
            return [_program(name), "-D"] if name == "slurmdbd" else [_program(name), "-D", "-f", str(conf)]
        stepd = ["-d", _program("slurmstepd")] if _plugins().is_dir() else []
        return [*self.spec.node_prefix, _program("slurmd"), "-D", "-N", name, "-f", str(conf), *stepd]

    def _to_save(self) -> dict[str, Any]:
        return {**super()._to_save(), "accounting": self.spec.accounting, "nodes": self.spec.nodes}


def _program(name: str) -> str:
    found = find(name)
    if found is None:
        raise ClusterError(missing_packages(accounting=True) or f"{name} was not found")
    return found


def _plugins() -> Path:
    """The folder of the plugins of a Slurm that `.ci/newer-slurm` made; others find their own."""
    return Path(_program("slurmd")).parent / "slurm-plugins"


def _plugins_line() -> str:
    return f"PluginDir={_plugins()}\n" if _plugins().is_dir() else ""


def _as_root() -> list[str]:
    # MariaDB refuses to run as root unless told so in as many words.
    return ["--user=root"] if os.geteuid() == 0 else []


def main(arguments: list[str] | None = None) -> int:
    """Command line: ``start [--nodes N] [--cpus N] [--accounting]`` or ``stop FOLDER``."""
    parser, start = command_line(Path(__file__).name, __doc__)
    start.add_argument("--nodes", type=int, default=4)
    start.add_argument("--cpus", type=int, default=64)
    start.add_argument("--accounting", action="store_true", help="with MariaDB and slurmdbd, so that sacct answers")
    chosen = parser.parse_args(arguments)
    if chosen.command == "stop":
        ThrowawayCluster.attach(chosen.folder).stop()
        return 0
    cluster = ThrowawayCluster.start(ClusterSpec(chosen.nodes, chosen.cpus, accounting=chosen.accounting))
    sys.stdout.write(how_to_use(Path(__file__).name, cluster, {"SLURM_CONF": cluster.environ["SLURM_CONF"]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
