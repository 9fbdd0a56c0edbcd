"""What can go wrong with a run on a cluster: kinds of faults, each with the words by which an error may name it."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from failing_files import FailingFiles, Fault
from throwaway_slurm import ThrowawayCluster

ERRORS = ("ESTALE", "EIO", "EDQUOT", "ENOSPC")
READ_ERRORS = ("ESTALE", "EIO")
_WRITE = "create write rename fsync"
# Name, client, operations, path.
_WRITTEN = (
    ("driver's records", "login", _WRITE, "*/scheduler/records/*"),
    ("driver's lock", "login", f"{_WRITE} open stat", "*driver.lock*"),
    ("driver's scripts", "login", _WRITE, "*/scheduler/scripts/*"),
    ("driver's orders", "login", _WRITE, "*/work/jobs/*"),
    ("driver's claims", "login", f"{_WRITE} open stat", "*/scheduler/claims/*"),
    ("job's claims", "nodes", _WRITE, "*/scheduler/claims/*"),
    ("job's heartbeats", "nodes", f"{_WRITE} mkdir", "*heartbeat*"),
    ("job's results", "nodes", _WRITE, "*result*"),
    ("job's products", "nodes", f"{_WRITE} mkdir close link", "*/products/*"),
)
_READ = (
    ("job's orders", "nodes", "open read", "*/work/jobs/*"),
    ("job's inputs", "nodes", "open read stat listdir", "*/products/*"),
    ("driver's look at products", "login", "open read stat", "*/products/*"),
    ("driver's listings", "login", "listdir", "*/work/*"),
    ("driver's everything", "login", "*", "*"),
    ("nodes' everything", "nodes", "*", "*"),
)


@dataclass
class Scene:
    """Where faults strike: both clients' mounts, the cluster, and the driver's process, if it lives."""

    login: FailingFiles
    nodes: FailingFiles
    cluster: ThrowawayCluster
    rng: random.Random
    driver: subprocess.Popen[bytes] | None = None
    timers: list[threading.Timer] = field(default_factory=list)

    def later(self, seconds: float, action: Callable[..., object], *arguments: object) -> None:
        """Do something after a while, in a thread."""
        timer = threading.Timer(seconds, action, arguments)
        self.timers.append(timer)
        timer.start()

    def settle(self) -> None:
        """Wait for all that was to be done later, and end all faults of files."""
        for timer in self.timers:
            timer.join()
        self.timers.clear()
        self.login.clear()
        self.nodes.clear()

    def signals_to_driver(self) -> Callable[[int], None]:
        """Return what sends a signal to the present driver, not to one that takes its place."""
        driver = self.driver
        return lambda number: driver.send_signal(number) if driver is not None and driver.poll() is None else None

    def running_job(self) -> str | None:
        """Id of a running job, of any."""
        jobs = self.cluster.run("squeue", "--noheader", "--states=RUNNING", "--format=%i", check=False).split()
        return self.rng.choice(jobs) if jobs else None

    def some_node(self) -> str:
        """Name of a node, any."""
        return self.rng.choice(self.cluster.spec.node_names)


@dataclass(frozen=True)
class Kind:
    """A kind of fault; `words` are those by one of which an error may name it, none where there must be no error.

    `strike` makes it happen, and returns whether it could; or the mount and the number of a fault of files.
    """

    name: str
    words: tuple[str, ...]
    strike: Callable[[Scene], bool | tuple[FailingFiles, int]]
    ends_driver: bool = False


def _words(error: str) -> tuple[str, ...]:
    return error, os.strerror(getattr(errno, error))


def _on_files(client: str, fault: Callable[[random.Random], Fault]) -> Callable[[Scene], tuple[FailingFiles, int]]:
    def strike(scene: Scene) -> tuple[FailingFiles, int]:
        mount: FailingFiles = getattr(scene, client)
        return mount, mount.set(fault(scene.rng))

    return strike


def _failing(client: str, operations: str, path: str, error: str) -> Callable[[Scene], tuple[FailingFiles, int]]:
    return _on_files(client, lambda rng: Fault(operations, path, error, lasting=rng.uniform(1, 4)))


def _file_kinds() -> Iterator[Kind]:
    for places, errors in ((_WRITTEN, ERRORS), (_READ, READ_ERRORS)):
        for name, client, operations, path in places:
            for error in errors:
                yield Kind(f"{error}, {name}", _words(error), _failing(client, operations, path, error))
    for client in ("login", "nodes"):
        hang = _on_files(client, lambda rng: Fault(hang=(seconds := rng.uniform(2, 6)), seconds=seconds))
        yield Kind(f"hang, {client}", (), hang)
        late = _on_files(client, lambda rng: Fault(hide=rng.uniform(3, 6), seconds=20))
        yield Kind(f"late names, {client}", (), late)
    lost = _on_files("nodes", lambda rng: Fault("rename", error="ENOENT", times=1, after=True))
    yield Kind("answer to a rename lost, nodes", _words("ENOENT"), lost)
    made = _on_files("nodes", lambda rng: Fault("create mkdir link", error="EEXIST", times=1, after=True))
    yield Kind("answer to a creation lost, nodes", _words("EEXIST"), made)
    for client in ("login", "nodes"):
        shared = _on_files(client, lambda rng: Fault("exclusive", shared=True, seconds=5))
        yield Kind(f"O_EXCL excludes nobody, {client}", (), shared)


def _kill_driver(*numbers: int) -> Callable[[Scene], bool]:
    def strike(scene: Scene) -> bool:
        send = scene.signals_to_driver()
        send(numbers[0])
        for i, number in enumerate(numbers[1:], 1):
            scene.later(0.7 * i, send, number)
        return True

    return strike


def _stop_driver(scene: Scene) -> bool:
    send = scene.signals_to_driver()
    send(signal.SIGSTOP)
    scene.later(scene.rng.uniform(2, 5), send, signal.SIGCONT)
    return True


def _on_job(*command: str) -> Callable[[Scene], bool]:
    def strike(scene: Scene) -> bool:
        job = scene.running_job()
        if job is not None:
            scene.cluster.run(*command, job, check=False)
        return job is not None

    return strike


def _kill_job(scene: Scene) -> bool:
    job = scene.running_job()
    pids = scene.cluster.run("scontrol", "listpids", str(job), check=False).splitlines()[1:] if job else []
    if not pids:
        pids = [str(pid) for pid in _processes_of(str(job))] if job else []
    for line in pids:
        try:
            os.kill(int(line.split()[0]), signal.SIGKILL)
        except (ProcessLookupError, ValueError):
            continue
    return bool(pids)


def _processes_of(job: str) -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"SLURM_JOB_ID={job}".encode() in environ and any(one.startswith(b"ESPO_JOB_NAME=") for one in environ):
            yield int(folder.name)


def _node_fails(scene: Scene) -> bool:
    node = scene.some_node()
    scene.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=failed", check=False)
    resume = ("scontrol", "update", f"NodeName={node}", "State=RESUME")
    scene.later(scene.rng.uniform(2, 5), lambda: scene.cluster.run(*resume, check=False))
    return True


def _daemon_dies(name: Callable[[Scene], str]) -> Callable[[Scene], bool]:
    def strike(scene: Scene) -> bool:
        daemon = name(scene)
        scene.cluster.stop_daemon(daemon, hard=True)
        scene.later(scene.rng.uniform(2, 5), scene.cluster.start_daemon, daemon)
        return True

    return strike


_NODE_WORDS = ("node failed", "preempted", "ended without a result", "lost")
# No task may fail because its driver was told to end, or died: the next one goes on.
CRASHES = (
    Kind("driver killed", (), _kill_driver(signal.SIGKILL), ends_driver=True),
    Kind("driver terminated", (), _kill_driver(signal.SIGTERM), ends_driver=True),
    Kind("Ctrl-C", (), _kill_driver(signal.SIGINT), ends_driver=True),
    Kind("Ctrl-C twice", (), _kill_driver(signal.SIGINT, signal.SIGINT), ends_driver=True),
    Kind("cancelling killed", (), _kill_driver(signal.SIGINT, signal.SIGKILL), ends_driver=True),
    Kind("driver stopped, goes on", (), _stop_driver),
    Kind("job killed", ("ended without a result", "signal 9"), _kill_job),
    Kind("job requeued", _NODE_WORDS, _on_job("scontrol", "requeue")),
    Kind("job cancelled by the user", ("somebody cancelled it",), _on_job("scancel")),
    Kind("node down", _NODE_WORDS, _node_fails),
    Kind("slurmd killed", _NODE_WORDS, _daemon_dies(Scene.some_node)),
    Kind("slurmctld killed", (), _daemon_dies(lambda scene: "slurmctld")),
)
KINDS = (*_file_kinds(), *CRASHES)


def deck(rng: random.Random, n: int, only: str = "") -> list[Kind]:
    """Return `n` kinds in random order, of families in turn: the many errors of files do not crowd out the others."""
    families: dict[str, list[Kind]] = {}
    wanted = [kind for kind in KINDS if only in kind.name]
    for kind in rng.sample(wanted, len(wanted)):
        families.setdefault(kind.name.partition(",")[0], []).append(kind)
    dealt: list[Kind] = []
    turn = 0
    while len(dealt) < n:
        names = rng.sample(sorted(families), len(families))
        dealt += [families[name][turn % len(families[name])] for name in names]
        turn += 1
    return dealt[:n]
