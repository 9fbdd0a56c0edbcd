"""Bundles as text: the scripts of each kind, run by bash without Slurm, and the options that are refused."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from throwaway_daemons import eventually

from espo_luigi.errors import ProcessLimitError, SubmissionError
from espo_luigi.jobs.bundles import BundleValues, Bundling, pilot, total_minutes
from espo_luigi.jobs.bundles.slurm import bundled
from espo_luigi.jobs.resources import ARRAY, GIB, PILOT, STEPS
from espo_luigi.jobs.retry import JOBS_PATIENCE_SECONDS
from espo_luigi.jobs.schedulers.script import ScriptValues
from espo_luigi.jobs.schedulers.slurm import SlurmOptions
from espo_luigi.jobs.schedulers.slurm_parse import parse_sacct, parse_scontrol, parse_squeue

GOLDEN = Path(__file__).parents[1] / "golden"


def bundle(bundling: Bundling, n: int = 4, folder: str = "/work", **options: Any) -> BundleValues:
    """Return a bundle of `n` tasks with such options."""
    names = [f"run.Train.{place:012x}.1" for place in range(n)]
    patterns = {
        STEPS: [f"{folder}/logs/Train/Train-n={p - p % bundling.per_step}-%j-step-%s-task-" for p in range(n)],
        ARRAY: [f"{folder}/logs/Train/Train-%A_%a"] * n,
        PILOT: [f"{folder}/logs/Train/Train-n={p}-%j" for p in range(n)],
    }[bundling.kind]
    ends = [str(p % bundling.per_step) if bundling.kind == STEPS else "" for p in range(n)]
    members = [
        ScriptValues(
            name=name,
            attempt=1,
            argv=("/env/bin/python", "-m", "espo_luigi.job", f"{folder}/jobs/{place}.json"),
            cpus_per_task=3,
            memory_bytes=15_000 * 2**20,
            time_minutes=60,
            log_pattern=f"{patterns[place]}{ends[place]}.out",
            claim_file=f"{folder}/state/claims/{name}",
            workdir=folder,
            options=SlurmOptions(**options),
        )
        for place, name in enumerate(names)
    ]
    return BundleValues(
        name="run.Train.bundle-0123456789ab",
        bundling=bundling,
        members=tuple(members),
        scripts=tuple(f"{folder}/state/scripts/{name}.sh" for name in names),
        log_pattern=members[0].log_pattern
        if bundling.kind == ARRAY
        else f"{folder}/logs/Train/Train-bundle={n}-%j.out",
        time_minutes=total_minutes(bundling, n, 60, None),
        listing=f"{folder}/state/scripts/run.Train.bundle-0123456789ab.json",
        pilot=("/env/bin/python", "-m", "espo_luigi.job", "--pilot", f"{folder}/plan.json", "my.tasks"),
    )


ONE_GPU_EACH = bundle(Bundling(STEPS, 4), gres="gpu:1")
TWO_TASKS_A_GPU = bundle(Bundling(STEPS, 8, per_step=2), 8, gres="gpu:1")
ARRAY_OF_FOUR = bundle(Bundling(ARRAY, 100, at_once=2))
PILOT_OF_FOUR = bundle(Bundling(PILOT, 4, at_once=2), setup="module load python", environment={"GREETING": "it's"})


@pytest.mark.parametrize(
    ("values", "name"),
    [(ONE_GPU_EACH, "steps"), (TWO_TASKS_A_GPU, "shared-steps"), (ARRAY_OF_FOUR, "array"), (PILOT_OF_FOUR, "pilot")],
)
def test_a_bundle_is_as_its_golden_file(values: BundleValues, name: str) -> None:
    text = bundled(values)
    more = "".join(f"\n### {ending}\n{content}" for ending, content in text.files.items())
    said = f"{text.script}{more}\n### {values.scripts[1]}\n{text.members[1]}"
    path = GOLDEN / f"bundle-{name}.sh"
    if "ESPO_WRITE_GOLDEN" in os.environ:
        path.write_text(said, encoding="utf-8")
    assert said == path.read_text(encoding="utf-8")


def test_the_allocation_asks_for_what_runs_at_once_and_not_for_the_sum() -> None:
    command = bundled(bundle(Bundling(STEPS, 4, at_once=2), gres="gpu:p100:1")).command
    assert {"--ntasks=2", "--cpus-per-task=3", "--mem=30000M", "--time=120", "--gres=gpu:p100:2"} <= set(command)
    assert "--array=0-3%2" in bundled(ARRAY_OF_FOUR).command


def test_neither_a_bundle_nor_its_steps_ask_for_memory_where_the_site_forbids_that() -> None:
    text = bundled(bundle(Bundling(STEPS, 4), memory_resource="none"))
    assert not [one for one in text.command if one.startswith("--mem")] and "--mem" not in text.script


def test_steps_that_overlap_share_what_the_job_has() -> None:
    values = bundle(Bundling(STEPS, 4, step_options={"overlap": "", "gpu-bind": "none"}), gres="gpu:1")
    text = bundled(values)
    assert "--gres=gpu:1" in text.command
    assert text.script.count("--overlap --nodes=1") == text.script.count("--gpu-bind=none") == 4


@pytest.mark.parametrize("name", ["mem", "Bad Name"])
def test_an_option_of_a_step_that_is_not_the_users_is_refused(name: str) -> None:
    with pytest.raises(SubmissionError, match=f"step_options: '{name}'"):
        bundled(bundle(Bundling(STEPS, 4, step_options={name: "3G"})))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pack": "four"}, "pack = four: expected a whole number, 1 or more"),
        ({"pack": "0"}, "pack = 0"),
        ({"pack": "4", "bundle": "pair"}, "expected one of steps, array, pilot"),
        ({"pack": "4", "bundle": "array", "pack_per_step": "2"}, "of bundle = steps"),
        ({"pack": "4", "pack_per_step": "2", "pack_at_once": "3"}, "no multiple of pack_per_step"),
    ],
)
def test_a_bad_option_is_refused_with_what_was_expected(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SubmissionError) as error:
        Bundling.of(SlurmOptions(**options))
    assert words in str(error.value)


def test_a_path_that_multi_prog_would_misread_is_refused_or_protected() -> None:
    shared = Bundling(STEPS, 2, per_step=2)
    with pytest.raises(SubmissionError, match="holds %"):
        bundled(bundle(shared, 2, "/work/100%"))
    (conf,) = bundled(bundle(shared, 2, "/work/it's here")).files.values()
    assert conf.splitlines()[0] == r"0 bash /work/it\'s\ here/state/scripts/run.Train.000000000000.1.sh"


def test_what_runs_at_once_is_fitted_to_small_nodes() -> None:
    steps = Bundling(STEPS, 8, per_step=2)
    assert steps.within_node(3, 15 * GIB, 16, 200 * GIB).width == 4
    assert steps.within_node(3, 15 * GIB, None, 80 * GIB).width == 4
    assert steps.within_node(3, 15 * GIB, 64, None) == steps
    assert Bundling(ARRAY, 8).within_node(3, 15 * GIB, 3, 15 * GIB) == Bundling(ARRAY, 8)


def test_the_time_of_a_bundle_is_that_of_its_rounds_up_to_the_cap() -> None:
    assert total_minutes(Bundling(STEPS, 8), 8, 60, None) == 60
    assert total_minutes(Bundling(PILOT, 8), 8, 60, None) == 480
    assert total_minutes(Bundling(PILOT, 8, at_once=3), 8, 60, 150) == 150
    assert total_minutes(Bundling(PILOT, 8), 8, 60, 10) == 60


def test_elements_of_an_array_are_rows_of_their_own() -> None:
    # As Slurm 22.05 answered.
    squeue = "2_2|PENDING||JobArrayTaskLimit|arrx\n2_0|RUNNING|n1|None|arrx\n1|RUNNING|n1|None|b.sh\n"
    assert [(row.job_id, row.name) for row in parse_squeue(squeue)] == [
        ("2_2", "arrx[2]"),
        ("2_0", "arrx[0]"),
        ("1", "b.sh"),
    ]
    sacct = "2_[3,5-6%2]|CANCELLED by 0|0:0|None assigned|2026-11-22T08:27:58|arrx\n"
    assert [row.job_id for row in parse_sacct(sacct)] == ["2_3", "2_5", "2_6"]
    scontrol = (
        "JobId=3 ArrayJobId=2 ArrayTaskId=0 ArrayTaskThrottle=2 JobName=arrx UserId=root(0) GroupId=root(0) "
        "MCS_label=N/A JobState=RUNNING Reason=None NodeList=n1 ExitCode=0:0"
    )
    assert [(row.job_id, row.name, row.node) for row in parse_scontrol(scontrol)] == [("2_0", "arrx[0]", "n1")]


class Alone:
    """A bundle of steps whose `srun` is a stand-in that runs its last words."""

    def __init__(self, folder: Path, commands: list[str], bundling: Bundling) -> None:
        self.folder = folder
        for name in ("bin", "state/claims", "state/scripts"):
            (folder / name).mkdir(parents=True)
        values = bundle(bundling, len(commands), str(folder))
        argv = [("bash", "-c", command) for command in commands]
        self.values = replace(
            values, members=tuple(replace(m, argv=a) for m, a in zip(values.members, argv, strict=True))
        )
        text = bundled(self.values)
        self.script = folder / "bundle.sh"
        for path, script in ((self.script, text.script), *zip(self.values.scripts, text.members, strict=True)):
            Path(path).write_text(script.replace("sleep 10", "sleep 0.1").replace("sleep 2\n", "sleep 0.3\n"))
        srun = folder / "bin" / "srun"
        srun.write_text('#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n')
        srun.chmod(0o755)

    def start(self) -> subprocess.Popen[bytes]:
        environ = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "HOSTNAME": "n1"}
        return subprocess.Popen(["bash", self.script], env=environ, cwd=self.folder, start_new_session=True)

    def claim(self, place: int) -> Path:
        return Path(self.values.members[place].claim_file)

    def end(self, place: int) -> str:
        path = Path(f"{self.claim(place)}.end")
        return path.read_text().strip() if path.exists() else ""


def test_each_member_that_ends_is_noted_with_its_exit_code_and_no_more_run_than_may(tmp_path: Path) -> None:
    counted = "echo 1 >> running; sleep 0.4; echo -1 >> running"
    alone = Alone(tmp_path, ["exit 3", "kill -9 $$", *[counted] * 4], Bundling(STEPS, 6, at_once=2))
    assert alone.start().wait(60) == 0
    assert [alone.end(place) for place in range(6)] == ["7 3", "7 137", *["7 0"] * 4]
    changes = map(int, (tmp_path / "running").read_text().split())
    assert max(itertools.accumulate(changes)) == 2


def test_a_member_whose_claim_is_closed_ends_alone(tmp_path: Path) -> None:
    alone = Alone(tmp_path, ["touch there; exec sleep 60", "until [ -e go ]; do sleep 0.1; done"], Bundling(STEPS, 2))
    process = alone.start()
    eventually((tmp_path / "there").exists)
    alone.claim(0).write_text("the driver")
    eventually(lambda: alone.end(0))
    assert alone.end(0) == f"7 {128 + signal.SIGTERM}"
    assert process.poll() is None and alone.end(1) == ""
    (tmp_path / "go").touch()
    assert process.wait(60) == 0 and alone.end(1) == "7 0"


def test_where_the_whole_bundle_is_stopped_no_member_is_said_to_have_ended(tmp_path: Path) -> None:
    waits = "touch there; exec sleep 60"
    alone = Alone(tmp_path, [waits, waits], Bundling(STEPS, 2))
    process = alone.start()
    eventually(lambda: all(alone.claim(place).exists() for place in (0, 1)) and (tmp_path / "there").exists())
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGTERM)  # as Slurm: to all processes
    process.wait(40)
    assert [alone.end(0), alone.end(1)] == ["", ""]


PILOT_PROGRAM = """
import sys, time
from pathlib import Path
from espo_luigi.jobs.bundles.pilot import run_members

def run(order):
    Path(f"{order}.there").touch()
    while not Path("go").exists():
        time.sleep(0.1)
    return 0

sys.exit(run_members(Path("plan.json"), run))
"""


def test_a_member_of_a_pilot_whose_claim_is_closed_ends_alone(tmp_path: Path) -> None:
    values = bundle(Bundling(PILOT, 2, at_once=2), 2, str(tmp_path))
    claims = [Path(member.claim_file) for member in values.members]
    claims[0].parent.mkdir(parents=True)
    plan: dict[str, Any] = {"at_once": 2, "members": []}
    for place, (member, script) in enumerate(zip(values.members, bundled(values).members, strict=True)):
        path = tmp_path / f"{place}.sh"
        path.write_text(script.replace("sleep 10", "sleep 0.1"))
        fields = {"script": str(path), "order": str(place), "log": f"{place}.log", "claim": member.claim_file}
        plan["members"].append(fields)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    environ = {**os.environ, "SLURM_JOB_ID": "7", "PYTHONPATH": str(Path(__file__).parents[3])}
    pilot = subprocess.Popen([sys.executable, "-c", PILOT_PROGRAM], env=environ, cwd=tmp_path)
    eventually(lambda: all((tmp_path / f"{place}.there").exists() for place in (0, 1)))
    claims[0].write_text("the driver")
    end = Path(f"{claims[0]}.end")
    eventually(end.exists)
    assert end.read_text().strip() == f"7 {128 + signal.SIGTERM}"
    assert pilot.poll() is None and not Path(f"{claims[1]}.end").exists()
    (tmp_path / "go").touch()
    assert pilot.wait(60) == 0 and Path(f"{claims[1]}.end").read_text().strip() == "7 0"


CROWDED_PROGRAM = """
import errno, os, sys
from pathlib import Path
from espo_luigi.jobs.bundles.pilot import run_members

fork, tries = os.fork, []

def limited():
    tries.append(None)
    if len(tries) in (2, 3):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")
    return fork()

os.fork = limited
sys.exit(run_members(Path("plan.json"), lambda order: 0))
"""


def test_a_pilot_that_may_start_no_process_for_a_moment_loses_no_member(tmp_path: Path) -> None:
    (tmp_path / "claimed.sh").write_text(r"printf 'A=1\0'")
    members = [
        {"script": "claimed.sh", "order": name, "log": f"{name}.log", "claim": str(tmp_path / name)} for name in "abc"
    ]
    (tmp_path / "plan.json").write_text(json.dumps({"at_once": 2, "members": members}))
    for name in "abc":
        (tmp_path / name).touch()
    environ = {**os.environ, "SLURM_JOB_ID": "7", "PYTHONPATH": str(Path(__file__).parents[3])}
    program = [sys.executable, "-c", CROWDED_PROGRAM]
    done = subprocess.run(program, env=environ, cwd=tmp_path, timeout=60, check=False, capture_output=True, text=True)
    assert done.returncode == 0 and "Cannot allocate memory" in done.stderr and "trying again" in done.stderr
    assert [(tmp_path / f"{name}.end").read_text().strip() for name in "abc"] == ["7 0"] * 3


@pytest.mark.parametrize(("refused", "started"), [(2, 2), (3, 1)], ids=["for a moment", "for too long"])
def test_the_patience_of_a_pilot_begins_at_the_first_refusal_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int, started: int
) -> None:
    now, begun = [0.0], list[int]()
    answers = [False, *[True] * refused, False]

    def forked(*_: object) -> int:
        now[0] += JOBS_PATIENCE_SECONDS * 0.8
        if answers.pop(0):
            raise ProcessLimitError("full")
        begun.append(1)
        return -1

    monkeypatch.setattr(pilot, "forked", forked)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    two = [pilot.Member("", tmp_path, tmp_path / "log", tmp_path / "claim")] * 2
    pair = pilot.Pilot(two, 1, lambda _: 0)
    with suppress(ProcessLimitError):
        for _ in range(len(answers)):
            pair._start_some()
            pair._running.clear()
    assert len(begun) == started
