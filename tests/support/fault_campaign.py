"""A run of small tasks on the throw-away Slurm, on files and among people that fail; and a verdict on each fault."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from failing_files import FailingFiles, Fault
from fault_kinds import Kind, Scene
from fault_tasks import make_undisturbed
from throwaway_slurm import ClusterError, ClusterSpec, ThrowawayCluster

from espo_luigi.files import read_json

HERE = Path(__file__).parent
RIGHT, NAMED, ELSE = "right", "named", "anything else"
_LUIGI_CFG = """\
[core]
workers = 70
log_level = WARNING
no_lock = true
[espo]
engine = slurm
workdir = work
[slurm]
poll_seconds = 0.5
result_seconds = 0.3
latency_wait = 8
absent_after = 20
stall_timeout = 90
max_status_per_second = 10
[worker]
wait_interval = 0.2
[scheduler]
retry_count = 1
[retcode]
task_failed = 30
scheduling_error = 35
"""


@dataclass
class Injected:
    """A fault that was injected: when, how many calls it struck (None: not one of files), and what became of it."""

    kind: Kind
    at: float
    mount: FailingFiles | None = None
    number: int = 0
    outcome: str = RIGHT
    words: str = ""
    hits_seen: int | None = None

    @property
    def hits(self) -> int | None:
        """How many calls it struck."""
        return None if self.mount is None else self.mount.hits(self.number)


@dataclass
class Verdict:
    """What became of one run: its faults, the leg that each driver was, and the starts of jobs."""

    faults: list[Injected] = field(default_factory=list)
    legs: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    starts: int = 0
    extra_starts: Counter[str] = field(default_factory=Counter)
    done_again: int = 0
    products_equal: bool = False


@contextmanager
def stage(folder: Path, rng: random.Random, nodes: int = 3, cpus: int = 3) -> Iterator[Scene]:
    """Start a cluster whose nodes are one client of a mount, and whose login node is another, under the same path."""
    behind, mount = folder / "behind", folder / "shared"
    with ExitStack() as stack:
        # The nodes' first: their mount is made in a copy of this process's mounts, where the other must not be yet.
        node_files = stack.enter_context(FailingFiles.mounted(behind, mount, private=True))
        login_files = stack.enter_context(FailingFiles.mounted(behind, mount))
        spec = ClusterSpec(nodes=nodes, cpus=cpus, node_prefix=node_files.inside)
        cluster = stack.enter_context(ThrowawayCluster.start(spec))
        yield Scene(login_files, node_files, cluster, rng)


def _hear() -> None:
    """Hear Ctrl-C in a process that is about to start, even where the campaign itself was started with `&`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Run:
    """One run of `groups` times six tasks, driven to its end however many drivers that takes."""

    def __init__(self, scene: Scene, name: str, groups: int, seconds: float, limit_seconds: float) -> None:
        self.scene = scene
        self.groups = groups
        self.folder = scene.login.mountpoint / name
        self.outside = scene.login.folder.parent / f"{name}-outside"
        self.seconds = seconds
        self.deadline = time.monotonic() + limit_seconds
        self.verdict = Verdict()
        self.folder.mkdir()
        self.outside.mkdir()
        self.diary = self.outside / "diary"
        self.diary.touch()

    def through(self, kinds: list[Kind], pause: tuple[float, float] = (1.0, 3.0)) -> Verdict:
        """Inject `kinds` one after the other while drivers run; return the verdict."""
        began, left = time.monotonic(), list(kinds)
        for client in (self.scene.login, self.scene.nodes):
            client.set(Fault("exchange", error="EINVAL"))  # as NFS and Lustre do
        with self._requeued_jobs_start_at_once():
            while not self._leg(left, pause):
                pass
        self.verdict.seconds = time.monotonic() - began
        for one in self.verdict.faults:
            one.hits_seen = one.hits
            one.at = (one.mount.struck_at(one.number) if one.mount else None) or one.at
        if self.verdict.legs[-1] == "0":
            self._judge_products()
        self._count_starts()
        self.scene.settle()
        return self.verdict

    def _leg(self, left: list[Kind], pause: tuple[float, float]) -> bool:
        """Be one driver from its start to its end; return whether there is to be no other."""
        log = self.outside / f"driver-{len(self.verdict.legs)}.log"
        first = len(self.verdict.faults)
        with log.open("wb") as file:
            self.scene.driver = self._start(file)
            self._inject_while_it_runs(self.scene.driver, left, pause)
            code = self._wait(self.scene.driver, log)
        self.scene.driver = None
        said = log.read_text(errors="replace")
        self.verdict.legs.append(f"{code}")
        if code == 0 or code is None:
            return True
        self._judge_leg(code, said, self.verdict.faults[first:], log)
        return len(self.verdict.legs) > 12 + len(self.verdict.faults)

    def _start(self, log: object) -> subprocess.Popen[bytes]:
        config = self.outside / "luigi.cfg"
        config.write_text(_LUIGI_CFG)
        paths = filter(None, [str(HERE), os.environ.get("PYTHONPATH")])
        environ = self.scene.cluster.environ | {"PYTHONPATH": os.pathsep.join(paths), "LUIGI_CONFIG_PATH": str(config)}
        words = {"groups": self.groups, "folder": self.folder, "diary": self.diary, "seconds": self.seconds}
        options = [f"--{name}={value}" for name, value in words.items()]
        command = [str(Path(sys.executable).parent / "luigi"), "--module", "fault_tasks", "Everything", *options]
        command.append("--local-scheduler")
        return subprocess.Popen(
            command, cwd=self.folder, env=environ, stderr=log, stdout=log, start_new_session=True, preexec_fn=_hear
        )

    def _inject_while_it_runs(
        self, driver: subprocess.Popen[bytes], left: list[Kind], pause: tuple[float, float]
    ) -> None:
        lock = self.folder / "work" / "scheduler" / "driver.lock"
        while driver.poll() is None and (read_json(lock) or {}).get("pid") != driver.pid and self._in_time():
            time.sleep(0.2)
        while left and driver.poll() is None and self._in_time():
            self._inject(left.pop(0))
            if self.verdict.faults and self.verdict.faults[-1].kind.ends_driver:
                return
            time.sleep(self.scene.rng.uniform(*pause))

    def _inject(self, kind: Kind) -> None:
        at = time.time()
        struck = kind.strike(self.scene)
        if struck is False:
            return
        mount, number = struck if isinstance(struck, tuple) else (None, 0)
        self.verdict.faults.append(Injected(kind, at, mount, number))

    def _in_time(self) -> bool:
        return time.monotonic() < self.deadline

    def _wait(self, driver: subprocess.Popen[bytes], log: Path) -> int | None:
        try:
            return driver.wait(max(1.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            waiting = self.scene.cluster.run("squeue", check=False)
            self._find(f"the run did not end in time; its driver was killed; log {log}; squeue:\n{waiting}")
            self._blame(self.verdict.faults[-1:], "the run did not end in time")
            driver.kill()
            driver.wait()
            return None

    def _judge_leg(self, code: int, said: str, faults: list[Injected], log: Path) -> None:
        failures = failures_in(said)
        if not failures and not (faults and faults[-1].kind.ends_driver):
            failures = [said.strip()[-800:] or "nothing was said"]
        struck = [one for one in self.verdict.faults if one.hits != 0]
        if died := re.search(r"^Exception in thread(.*\n)*?(?=\d)", said, re.MULTILINE):
            self._find(f"exit code {code}: a thread of the driver died; log {log}:\n{died[0][-600:]}")
            self._blame(struck[-1:], "a thread of the driver died")
        for failure in failures:
            naming = [one for one in struck if any(word in failure for word in one.kind.words)]
            for one in naming:
                one.outcome, one.words = max(one.outcome, NAMED, key=_gravity), failure
            if not naming:
                self._find(f"exit code {code}: no fault is named; log {log}: {failure}")
                self._blame(struck[-1:], failure)

    def _find(self, text: str) -> None:
        recent = ", ".join(f"{one.kind.name} ({one.hits} calls)" for one in self.verdict.faults[-4:])
        self.verdict.findings.append(f"{text}\n    last faults: {recent}")

    def _blame(self, faults: list[Injected], words: str) -> None:
        for one in faults:
            one.outcome, one.words = ELSE, words

    @contextmanager
    def _requeued_jobs_start_at_once(self) -> Iterator[None]:
        """Slurm lets a requeued job wait for two minutes, unless told otherwise."""
        over = threading.Event()

        def look() -> None:
            waiting: set[str] = set()
            while not over.wait(2.0):
                try:
                    waiting = self._start_those_that_wait(waiting)
                    self._resume_drained_nodes()
                except (ClusterError, subprocess.TimeoutExpired):
                    continue  # the controller may be down just now

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _start_those_that_wait(self, before: set[str]) -> set[str]:
        """Start those that waited `before`, too: in the second of its requeueing, a node refuses to start a job."""
        rows = self.scene.cluster.run("squeue", "--noheader", "--states=PENDING", "--format=%i %r", check=False)
        lines = (line.partition(" ") for line in rows.splitlines())
        waiting = {job for job, _, reason in lines if reason.strip() == "BeginTime"}
        for job in waiting & before:
            self.scene.cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
        return waiting

    def _resume_drained_nodes(self) -> None:
        """Do as an administrator whom the driver's words ask to: a controller that was killed forgets jobs."""
        rows = self.scene.cluster.run("sinfo", "--noheader", "--Node", "--states=drain", "--format=%N|%E", check=False)
        for node in {line.partition("|")[0] for line in rows.splitlines() if "Duplicate jobid" in line}:
            self.scene.cluster.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)

    def _judge_products(self) -> None:
        """Compare all files of the run's products, as they are behind the mount, with an undisturbed run's."""
        wanted = self.outside / "undisturbed"
        make_undisturbed(self.groups, wanted)
        made = self.scene.login.folder / self.folder.name / "products"
        different = sorted(different_names(contents_of(wanted / "products"), contents_of(made)))
        self.verdict.products_equal = not different
        if different:
            self._find(f"products differ from those of an undisturbed run: {different[:10]}")
            self._blame(self.verdict.faults[-1:], "products differ")

    def _count_starts(self) -> None:
        lines = [line.split() for line in self.diary.read_text().splitlines()]
        starts = [(float(at), task) for at, task, what, _ in lines if what == "start"]
        self.verdict.starts = len(starts)
        seen: set[str] = set()
        for at, task in starts:
            if task in seen:
                before = [(one.at, one.kind.name) for one in self.verdict.faults if one.at <= at and one.hits_seen != 0]
                self.verdict.extra_starts[max(before)[1] if before else "none"] += 1
            seen.add(task)
        done = Counter(task for _, task, what, _ in lines if what == "done")
        self.verdict.done_again = sum(n - 1 for n in done.values())


def _gravity(outcome: str) -> int:
    return (RIGHT, NAMED, ELSE).index(outcome)


def failures_in(said: str) -> list[str]:
    """What the driver tells at its end about each task that has failed: one line or several."""
    _, found, after = said.partition(" failed:\n")
    lines = after.splitlines() if found else []
    failures: list[str] = []
    for line in (line for line in lines if "  " in line and line.strip()):
        # Failures with the same words, which the line above names.
        if re.match(r"  \d+ more failed alike: ", line):
            continue
        if failures and line.startswith("    "):
            failures[-1] += f"\n{line}"
        else:
            failures.append(line.partition("ERROR")[2] or line)
    return failures


def contents_of(products: Path) -> dict[str, bytes]:
    """All files of stores and members of archives, but for markers, which hold the time, and what was not published."""
    contents: dict[str, bytes] = {}
    for path in sorted(products.rglob("*")):
        name = str(path.relative_to(products))
        if name.startswith("."):
            continue
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                contents |= {f"{name}/{one}": archive.read(one) for one in archive.namelist()}
        elif path.is_file():
            contents[name] = path.read_bytes()
    return {name: content for name, content in contents.items() if not name.endswith("espo.json")}


def different_names(wanted: dict[str, bytes], made: dict[str, bytes]) -> set[str]:
    """The files that are not the same in both, or not in both."""
    return {name for name in wanted.keys() | made.keys() if wanted.get(name) != made.get(name)}
