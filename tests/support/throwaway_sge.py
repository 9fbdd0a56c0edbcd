"""A throw-away Grid Engine on this machine, for tests and for trying things out.

It starts a qmaster and one execution host, this machine, in one temporary folder, with a cell, ports, spool and group
ids of its own: nothing of the machine's own configuration is read or changed, and several of them can run side by side.
Grid Engine tells hosts apart by their addresses, so that there is one host, with two queues.

From the shell: ``python tests/support/throwaway_sge.py start`` prints the ``export …`` lines that make ``qsub`` and the
rest use it; ``python tests/support/throwaway_sge.py stop FOLDER`` ends it.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

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

PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client")
_PROGRAMS = ("sge_qmaster", "sge_execd", "qconf", "qsub", "qstat", "qacct", "qdel", "qmod")
# Where Debian has what is not on the PATH: the installation, and its programs and defaults.
_INSTALLED = Path("/var/lib/gridengine")
_TOOLS = Path("/usr/lib/gridengine")
_SHARED = Path("/usr/share/gridengine")
QUEUES = ("main.q", "other.q")
SLOTS = 64


@functools.cache
def missing_packages() -> str | None:
    """Say what to install before `ThrowawayGridEngine` can run, or None when everything is there."""
    missing = [name for name in _PROGRAMS if find(name) is None]
    missing += [str(path) for path in (_TOOLS / "spoolinit", _SHARED / "default-configuration") if not path.exists()]
    if not missing:
        return None
    return (
        f"a real Grid Engine is needed; not found: {', '.join(missing)}; on Debian: echo gridengine-common "
        "shared/gridengineconfig boolean false | debconf-set-selections; DEBIAN_FRONTEND=noninteractive "
        f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    )


@dataclass
class ThrowawayGridEngine(Throwaway):
    """A running throw-away Grid Engine; a context manager.

    Queues: ``main.q`` and ``other.q``, of 64 slots each, with the parallel environment ``threaded``. The host has 200 G
    of ``h_vmem``. Jobs are told 3 s before they are killed.
    """

    logs: ClassVar[str] = "*.out and spool/*/messages"

    @classmethod
    def start(cls, folder: Path | None = None) -> ThrowawayGridEngine:
        """Start it; return when its queues take jobs. Raises ClusterError, which says where the messages are."""
        if message := missing_packages():
            raise ClusterError(message)
        cluster = cls(folder or Path(tempfile.mkdtemp(prefix="espo-sge-")))
        return cluster._started(cluster._start)

    @classmethod
    def attach(cls, folder: Path) -> ThrowawayGridEngine:
        """Take over a cluster that another process started in `folder`."""
        return cls(folder, **saved(folder))

    @property
    def variables(self) -> dict[str, str]:
        """What Grid Engine's commands have to find in their environment to speak to this cluster."""
        ports = {f"SGE_{name.upper()}_PORT": str(port) for name, port in self.ports.items()}
        return {"SGE_ROOT": str(self.folder), "SGE_CELL": "default", **ports}

    @property
    def tmpdir(self) -> Path:
        """Where its jobs have their folders."""
        return self.folder / "tmp"

    @property
    def environ(self) -> dict[str, str]:
        """The environment in which Grid Engine's commands speak to this cluster."""
        others = {name: value for name, value in os.environ.items() if not name.startswith("SGE_")}
        return {**others, **self.variables, "PATH": SEARCH_PATH}

    def configure(self, option: str, text: str) -> None:
        """Give qconf a file with `text`, by its ``option``: ``-Aq``, ``-Ap``, ``-Msconf``, …"""
        file = self.folder / "qconf" / ("global" if option == "-Mconf" else "text")
        file.write_text(text)
        self.run("qconf", option, str(file))

    def change(self, what: str, **values: str) -> None:
        """Change values of the ``conf`` (global configuration) or the ``sconf`` (scheduler's configuration)."""
        text = self.run("qconf", f"-s{what}")
        for name, value in values.items():
            text, found = re.subn(rf"^{name} .*$", f"{name} {value}", text, flags=re.MULTILINE)
            if not found:
                raise ClusterError(f"{what} has no {name}")
        self.configure(f"-M{what}", text)

    def start_daemon(self, name: str) -> None:
        """Start one daemon: ``qmaster`` or ``execd``."""
        environ = {**self.environ, "SGE_ND": "1"}  # it stays in the foreground
        self._start_process(name, [f"sge_{name}"], self.folder / f"{name}.out", environ)

    def wait_for_master(self) -> None:
        """Return when the qmaster answers."""
        self._wait_for("the qmaster to answer", lambda: bool(self.run("qconf", "-sconf", check=False)))

    def stop(self, remove: bool = True) -> None:
        """Delete all jobs, end both daemons and, unless told otherwise, remove the folder."""
        if "qmaster" in self.pids:
            self.run("qdel", "*", check=False)
            wait(lambda: not self.run("qstat", "-u", "*", check=False), 20)
        for name in ("execd", "qmaster"):
            # By itself, execd takes seconds to end.
            self.stop_daemon(name, hard=True)
        if remove:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        # A job of any user must be able to go through the folder.
        self.folder.chmod(0o755)
        for name in ("default/common", "spool/qmaster/job_scripts", "spool/execd", "spool/db", "qconf", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (self.folder / name).symlink_to(_INSTALLED / name)
        self.ports = dict(zip(("qmaster", "execd"), free_ports(2), strict=True))
        self._spool()
        self.start_daemon("qmaster")
        self.wait_for_master()
        for option, text in _configuration(self.tmpdir):
            self.configure(option, text)
        self.run("qconf", "-as", _host())
        self.change("sconf", schedule_interval="0:0:1", flush_submit_sec="1", flush_finish_sec="1")
        self.start_daemon("execd")
        self._wait_for("the queues to take jobs", self._takes_jobs)

    def _spool(self) -> None:
        common, spool = self.folder / "default" / "common", self.folder / "spool"
        (common / "act_qmaster").write_text(f"{_host()}\n")
        # The host's name is often that of the loopback, which Grid Engine finds out.
        (common / "host_aliases").write_text(f"{_host()} localhost\n")
        bootstrap = {"admin_user": "none", "spooling_params": spool / "db", "qmaster_spool_dir": spool / "qmaster"}
        (common / "bootstrap").write_text(_changed("default-bootstrap", bootstrap))
        # Grid Engine finds a job's processes by a group of their own: two clusters must not give the same one.
        first_group = 20_000 + self.ports["qmaster"] % 400 * 100
        configuration = {
            "execd_spool_dir": spool / "execd",
            "mailer": "/bin/true",
            "min_uid": "0",
            "min_gid": "0",
            "load_report_time": "00:00:02",
            "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false sharelog=00:00:00",
            "gid_range": f"{first_group}-{first_group + 99}",
        }
        (self.folder / "configuration").write_text(_changed("default-configuration", configuration))
        resources = _SHARED / "util" / "resources"
        self._tool("spoolinit", "berkeleydb", "libspoolb", str(spool / "db"), "init")
        self._tool("spooldefaults", "configuration", str(self.folder / "configuration"))
        self._tool("spooldefaults", "complexes", str(resources / "centry"))
        self._tool("spooldefaults", "usersets", str(resources / "usersets"))
        self._tool("spooldefaults", "managers", "root")

    def _tool(self, name: str, *arguments: str) -> None:
        self.run(str(_TOOLS / name), *arguments)

    def _takes_jobs(self) -> bool:
        lines = [line for line in self.run("qstat", "-f", check=False).splitlines() if "@" in line]
        # A queue whose host has not reported has no load and the state "au".
        return len(lines) == len(QUEUES) and all(len(line.split()) == 5 and "-NA-" not in line for line in lines)


def _host() -> str:
    return socket.gethostname()


def _changed(name: str, values: dict[str, object]) -> str:
    text = (_SHARED / name).read_text()
    for key, value in values.items():
        text = re.sub(rf"^{key}\s.*$", f"{key} {value}", text, flags=re.MULTILINE)
    return text


def _configuration(tmpdir: Path) -> list[tuple[str, str]]:
    """What qconf is given, in this order: option and text; jobs have their folders in `tmpdir`."""
    host = {"hostname": _host(), "complex_values": f"slots={2 * SLOTS},h_vmem=200G"}
    return [
        ("-Ap", _lines({**_PARALLEL, "pe_name": "threaded"})),
        ("-Ae", _lines({**_HOST, **host})),
        *(("-Aq", queue(name, tmpdir)) for name in QUEUES),
    ]


def queue(name: str, tmpdir: Path, **values: str) -> str:
    """Text of a queue of this host, for ``configure("-Aq", …)``, whose jobs have their folders in `tmpdir`.

    That is of the cluster's own: another throw-away Grid Engine on this host gives the same numbers to its jobs.
    """
    return _lines({**_QUEUE, "qname": name, "hostlist": _host(), "tmpdir": str(tmpdir), **values})


def _lines(values: dict[str, str]) -> str:
    return "".join(f"{key} {value}\n" for key, value in values.items())


def _all(names: str, value: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), value)


_LISTS = _all("user_lists xuser_lists projects xprojects", "NONE")
_HOST = {"hostname": "", **_all("load_scaling complex_values", "NONE"), **_LISTS, **_all("usage_scaling", "NONE")} | {
    "report_variables": "NONE"
}
_PARALLEL = {
    "pe_name": "",
    "slots": "9999",
    **_all("user_lists xuser_lists start_proc_args stop_proc_args", "NONE"),
    "allocation_rule": "$pe_slots",
    "control_slaves": "FALSE",
    "job_is_first_task": "TRUE",
    "urgency_slots": "min",
    "accounting_summary": "FALSE",
    "qsort_args": "NONE",
}
_QUEUE = {
    "qname": "",
    "hostlist": "",
    **_all("seq_no priority", "0"),
    # A machine that is busy with tests takes jobs nevertheless.
    **_all("load_thresholds suspend_thresholds ckpt_list", "NONE"),
    "nsuspend": "1",
    **_all("suspend_interval min_cpu_interval", "00:05:00"),
    "processors": "UNDEFINED",
    "qtype": "BATCH",
    "pe_list": "threaded",
    "rerun": "FALSE",
    "slots": str(SLOTS),
    # As on many sites: no job of ours may depend on it.
    "shell": "/bin/csh",
    "shell_start_mode": "posix_compliant",
    **_all("prolog epilog starter_method suspend_method resume_method terminate_method", "NONE"),
    "notify": "00:00:03",
    **_all("owner_list subordinate_list complex_values calendar", "NONE"),
    **_LISTS,
    "initial_state": "default",
    **_all("s_rt h_rt s_cpu h_cpu s_fsize h_fsize s_data h_data s_stack h_stack", "INFINITY"),
    **_all("s_core h_core s_rss h_rss s_vmem h_vmem", "INFINITY"),
}


def main(arguments: list[str] | None = None) -> int:
    """Command line: ``start`` or ``stop FOLDER``."""
    parser, _ = command_line(Path(__file__).name, __doc__)
    chosen = parser.parse_args(arguments)
    if chosen.command == "stop":
        ThrowawayGridEngine.attach(chosen.folder).stop()
        return 0
    cluster = ThrowawayGridEngine.start()
    sys.stdout.write(how_to_use(Path(__file__).name, cluster, cluster.variables))
    return 0


if __name__ == "__main__":
    sys.exit(main())
