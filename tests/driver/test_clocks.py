"""Hosts whose clocks differ by minutes: drivers ahead of and behind a real Slurm, its nodes and the file server."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import toy_tasks
from drivers import Driver
from luigi.configuration import LuigiConfigParser
from throwaway_daemons import end_process, ended, eventually, find
from throwaway_slurm import ClusterSpec, ThrowawayCluster

from espo_luigi.overview import states, why
from espo_luigi.report.reading import job_results

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        shutil.which("faketime") is None, reason="faketime is needed; on Debian: apt-get install faketime"
    ),
]
CLUSTER = ClusterSpec(nodes=2, cpus=16)
# munge refuses credentials that are older than 300 s.
AHEAD = 240
# libfaketime 0.9.10 takes Python's waiting by the monotonic clock for waiting by the date.
LUIGI = (
    "import select, time; time.sleep = lambda seconds: select.select([], [], [], seconds); "
    "from luigi.cmdline import luigi_run; luigi_run()"
)
TASK = ("SlowOnesAndGated", "--n", "3", "--seconds", "2")


@contextmanager
def host(cluster: ThrowawayCluster, ahead: int) -> Iterator[dict[str, str]]:
    """A host of the cluster whose clock, which its munge has too, is ahead: the environment of programs there.

    Times of files are the file server's, which is right, and only the date is ahead, not what measures waiting.
    """
    clock = {"FAKETIME": f"{ahead:+d}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1"}
    preloaded = subprocess.run(["faketime", "now", "env"], capture_output=True, text=True, check=True).stdout
    clock["LD_PRELOAD"] = dict(line.partition("=")[::2] for line in preloaded.splitlines())["LD_PRELOAD"]
    munge = str(cluster.folder / "run" / f"munge{ahead}")
    options = ["--foreground", "--force", f"--key-file={cluster.folder / 'munge.key'}", f"--socket={munge}.sock"]
    options += [f"--{part}-file={munge}.{part}" for part in ("pid", "seed")]
    with (cluster.folder / "log" / f"munged{ahead}.out").open("w") as log:
        munged = subprocess.Popen([find("munged") or "", *options], env=cluster.environ | clock, stderr=log)
    conf = cluster.folder / f"slurm{ahead}.conf"
    conf.write_text((cluster.folder / "slurm.conf").read_text().replace("/run/munge.sock", f"/run/munge{ahead}.sock"))
    try:
        eventually(Path(f"{munge}.sock").exists)
        yield cluster.environ | clock | {"SLURM_CONF": str(conf)}
    finally:
        end_process(munged.pid, hard=False, timeout=60)
        forget_shared_clock(munged.pid)


def forget_shared_clock(pid: int) -> None:
    """Remove the files that a killed process under libfaketime has left."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        Path("/dev/shm", name).unlink(missing_ok=True)


@contextmanager
def driver_on(environ: dict[str, str], driver: Driver) -> Iterator[subprocess.Popen[str]]:
    """The driver on a host with that environment."""
    words = ["--module", "toy_tasks", *TASK, "--folder", str(driver.folder), "--local-scheduler"]
    process = subprocess.Popen(
        [sys.executable, "-c", LUIGI, *words], cwd=driver.folder, env=environ, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        forget_shared_clock(process.pid)


def told() -> dict[str, Any]:
    """How the run stands, once the driver of the moment has written it."""
    return dict(states.read())


def is_told_alive(process: subprocess.Popen[str], gated: toy_tasks.Gated, begun: float) -> None:
    """Check what status and why, on a host with the right clock, say of a run whose driver is this process."""
    eventually(
        lambda: (told()["run"] or {}).get("pid") == process.pid and states.trace_of("Gated", gated.wildcards).beat
    )
    eventually(lambda: any("RUNNING" in line or "Gated" in line for line in states.render(told())))
    for _ in range(5):
        found = told()
        assert found["alive"] and found["run"]["silent_seconds"] < 30, found
        driver, *lines = states.render(found)
        said = re.fullmatch(rf"driver: process {process.pid} on \S+, since (\d+) s", driver)
        assert said and int(said[1]) <= time.monotonic() - begun + 3, driver
        assert not any(" min" in line for line in lines), lines
        assert re.search(r" is at work: job \d+ on \S+ for [\d.]+ s", why.about(gated)), why.about(gated)
        assert "waits for its turn" in why.about(toy_tasks.Slow(n=99, folder=gated.folder))
        time.sleep(0.5)


def test_drivers_minutes_ahead_and_behind_are_known_to_live_and_start_each_job_once(
    driver: Driver, own_settings: LuigiConfigParser
) -> None:
    own_settings.set("espo", "workdir", str(driver.folder / "work"))
    own_settings.set("espo", "engine", "slurm")
    config = driver.folder / "luigi.cfg"
    # A submission hands its environment on: the jobs are to have their nodes' clock.
    config.write_text(config.read_text().replace("[slurm]\n", "[slurm]\nsetup = unset LD_PRELOAD FAKETIME\n"))
    gated = toy_tasks.Gated(n=3, folder=str(driver.folder))

    begun = time.monotonic()
    with host(driver.cluster, AHEAD) as environ, driver_on(environ, driver) as process:
        driver.wait_for_starts(3)
        is_told_alive(process, gated, begun)
        assert told()["run"]["updated"] - time.time() == pytest.approx(AHEAD, abs=30)
    # That driver was killed there.

    begun = time.monotonic()
    with host(driver.cluster, -AHEAD) as environ, driver_on(environ, driver) as process:
        is_told_alive(process, gated, begun)
        assert told()["run"]["updated"] - time.time() == pytest.approx(-AHEAD, abs=30)
        (driver.folder / "go").touch()
        ended(process)

    assert driver.starts() == Counter({"0": 1, "1": 1, "2": 1, "3": 1})
    results = list(job_results(driver.folder / "work"))
    assert [result["outcome"] for result in results] == ["success"] * 4
    assert all(0 <= time.time() - result["ended"] < 120 for result in results), "the jobs' clock is right"
    assert states.render(told())[0].startswith("no driver: the last run ended")
    assert json.loads((driver.folder / "work" / "run.json").read_text())["outcome"] == "done"
