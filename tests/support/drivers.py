"""The commands of a run, started by tests: `luigi` on a throwaway Slurm, and luigid."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path

from throwaway_daemons import eventually
from throwaway_slurm import ThrowawayCluster

from espo_luigi.jobs.lifecycle.records import Record, RecordStore

BIN = Path(sys.executable).parent
_LUIGI = "from luigi.cmdline import luigi_run; luigi_run()"


class Luigid:
    """A luigid with its state in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = int(one.getsockname()[1])
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        address = ["--address", "127.0.0.1", "--port", str(self.port)]
        with (self.folder / "luigid.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(BIN / "luigid"), *address, "--state-path", str(self.folder / "state.pickle")],
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        eventually(self._answers)

    def stop(self, signum: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(signum)
            self.process.wait(20)
            self.process = None

    def _answers(self) -> bool:
        try:
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/task_list?data=%7B%7D", timeout=5))
        except OSError:
            return False


class Driver:
    """The `luigi` command in its own folder."""

    def __init__(self, folder: Path, cluster: ThrowawayCluster) -> None:
        self.folder = folder
        self.cluster = cluster
        self.environ = cluster.environ
        (folder / "luigi.cfg").write_text(
            "[core]\nworkers = 50\nlog_level = WARNING\nno_lock = true\n"
            "[espo]\nengine = slurm\nworkdir = work\n"
            "[slurm]\npoll_seconds = 0.5\nresult_seconds = 0.2\nlatency_wait = 5\nmax_status_per_second = 10\n"
            "[worker]\nwait_interval = 0.2\n[scheduler]\nretry_count = 1\n"
            "[retcode]\ntask_failed = 30\nscheduling_error = 35\n"
        )

    def start(
        self, task: str, *arguments: str, luigid: Luigid | None = None, first: str = "", module: str = "toy_tasks"
    ) -> subprocess.Popen[str]:
        """Start `luigi`; a statement of Python's that comes `first` may shorten waits."""
        luigi = [sys.executable, "-c", f"{first}\n{_LUIGI}"] if first else [str(BIN / "luigi")]
        command = [*luigi, "--module", module, task, "--folder", str(self.folder), *arguments]
        scheduler = ["--scheduler-url", f"http://127.0.0.1:{luigid.port}"] if luigid else ["--local-scheduler"]
        return subprocess.Popen(
            [*command, *scheduler], cwd=self.folder, env=self.environ, stderr=subprocess.PIPE, text=True
        )

    def record(self) -> Record:
        (record,) = RecordStore(self.folder / "work" / "scheduler").all()
        return record

    def jobs(self) -> list[str]:
        return self.cluster.run("squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%j").split()

    def starts(self) -> Counter[str]:
        path = self.folder / "starts"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def wait_for_starts(self, n: int) -> None:
        eventually(lambda: self.starts().total() >= n)
