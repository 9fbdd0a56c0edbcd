"""A job's script, run by bash: how it claims its work, and the environment of its command."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from test_slurm_text import PLAIN

from espo_luigi.errors import ClaimLostError
from espo_luigi.jobs.node.claim import check_claim
from espo_luigi.jobs.schedulers.slurm import SlurmOptions, render

NO_LINKS = "ln() { echo 'ln: Operation not permitted' >&2; return 1; }\n"


def run_script(
    folder: Path, job_id: str, while_waiting: str = "true", argv: tuple[str, ...] = ("echo", "worked"), first: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a job's script, whose pauses take no time: `while_waiting` runs in each pause."""
    values = replace(PLAIN, argv=argv, workdir=str(folder), claim_file=str(folder / "claim"))
    script = f"{first}sleep() {{ {while_waiting}; }}\n{render(values)}"
    environ = {**os.environ, "SLURM_JOB_ID": job_id}
    return subprocess.run(["bash"], input=script, text=True, capture_output=True, env=environ, check=False)


def test_of_two_jobs_of_one_name_the_first_to_start_works(tmp_path: Path) -> None:
    assert run_script(tmp_path, "1").stdout == "worked\n"
    second = run_script(tmp_path, "2")
    assert (second.returncode, second.stdout) == (0, "")
    assert "belongs to '1'" in second.stderr


def test_a_requeued_job_finds_its_own_claim_and_works(tmp_path: Path) -> None:
    run_script(tmp_path, "1")
    assert run_script(tmp_path, "1").stdout == "worked\n"


def test_a_claim_appears_whole_and_nothing_else_stays(tmp_path: Path) -> None:
    run_script(tmp_path, "1")
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]
    assert (tmp_path / "claim").read_text() == "1\n"


def test_a_claim_is_made_once_the_file_system_lets_it_be_made(tmp_path: Path) -> None:
    (tmp_path / "claim").symlink_to(tmp_path / "missing" / "claim")
    done = run_script(tmp_path, "1", while_waiting=f"rm -f {tmp_path}/claim")
    assert (done.returncode, done.stdout) == (0, "worked\n")


def test_a_link_where_a_claim_would_be_written_aside_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.nc"
    precious.write_text("years of work")
    values = replace(PLAIN, argv=("true",), workdir=str(tmp_path), claim_file=str(tmp_path / "claim"))
    # Twice, as the second start also writes which start works.
    for aside in (".claim.1.h.$$", "claim.start.h.$$"):
        script = f"cd {tmp_path}; HOSTNAME=h; ln -s thesis.nc {aside}\n{render(values)}"
        environ = {**os.environ, "SLURM_JOB_ID": "1"}
        subprocess.run(["bash"], input=script, text=True, capture_output=True, env=environ, check=True)
        assert precious.read_text() == "years of work"


def test_without_hard_links_a_claim_is_made_once_and_never_over_another(tmp_path: Path) -> None:
    assert run_script(tmp_path, "1", first=NO_LINKS).stdout == "worked\n"
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]
    assert "belongs to '1'" in run_script(tmp_path, "2", first=NO_LINKS).stderr
    assert run_script(tmp_path, "1", first=NO_LINKS).stdout == "worked\n"
    (tmp_path / "claim").write_text("the driver")
    assert "belongs to 'the driver'" in run_script(tmp_path, "1", first=NO_LINKS).stderr


def test_full_disks_make_no_empty_claim(tmp_path: Path) -> None:
    # printf writes to a device that is always full.
    script = f'cd {tmp_path}; sleep() {{ ls -A > seen; }}; printf() {{ builtin printf "$@" > /dev/full; }}\n'
    values = replace(PLAIN, argv=("echo", "worked"), workdir=str(tmp_path), claim_file=str(tmp_path / "claim"))
    environ = {**os.environ, "SLURM_JOB_ID": "1"}
    done = subprocess.run(
        ["bash"], input=script + render(values), text=True, capture_output=True, env=environ, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "No space left on device" in done.stderr
    assert not (tmp_path / "claim").exists() and "claim\n" not in (tmp_path / "seen").read_text().split(".claim")[0]


@pytest.mark.parametrize("first", ["", NO_LINKS], ids=["hard links", "no hard links"])
def test_of_many_jobs_that_start_at_once_one_works(tmp_path: Path, first: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        # Each real pause lets the job that created the claim write it.
        waiting = "command sleep 0.1"
        done = list(pool.map(lambda number: run_script(tmp_path, str(number), waiting, first=first), range(1, 9)))
    assert sorted(one.stdout for one in done) == [""] * 7 + ["worked\n"]
    assert all(one.returncode == 0 for one in done)


def test_a_claim_that_stays_empty_is_nobodys_and_the_job_says_so(tmp_path: Path) -> None:
    (tmp_path / "claim").touch()
    done = run_script(tmp_path, "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing is done" in done.stderr


def test_of_several_starts_of_a_job_the_last_has_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = [run_script(tmp_path, "1", argv=("printenv", "ESPO_START")).stdout.strip() for _ in range(3)]
    assert starts[0] == "0" and len(set(starts)) == 3
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert files == {"claim": "1\n", "claim.start": f"{starts[-1]}\n"}
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("ESPO_CLAIM", str(tmp_path / "claim"))
    for start in starts[:-1]:
        monkeypatch.setenv("ESPO_START", start)
        with pytest.raises(ClaimLostError, match=re.escape(f"start {start}) does not own")):
            check_claim()
    monkeypatch.setenv("ESPO_START", starts[-1])
    check_claim()


def test_a_job_started_again_waits_until_the_file_system_lets_it_say_so(tmp_path: Path) -> None:
    run_script(tmp_path, "1")
    (tmp_path / "claim.start").mkdir()
    done = run_script(tmp_path, "1", f"rmdir {tmp_path}/claim.start", ("printenv", "ESPO_START"))
    assert done.returncode == 0
    assert (tmp_path / "claim.start").read_text() == done.stdout


def test_a_job_started_again_that_cannot_say_so_does_nothing_and_fails(tmp_path: Path) -> None:
    run_script(tmp_path, "1")
    (tmp_path / "claim.start").mkdir()
    done = run_script(tmp_path, "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Cannot write" in done.stderr and list((tmp_path / "claim.start").iterdir()) == []


def test_a_job_that_cannot_claim_its_work_does_nothing_and_fails(tmp_path: Path) -> None:
    (tmp_path / "claim").symlink_to(tmp_path / "missing" / "claim")
    done = run_script(tmp_path, "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Cannot claim the work by" in done.stderr and "File exists" in done.stderr


@pytest.mark.parametrize(
    ("scratch", "there", "absent"),
    [
        ("$SLURM_TMPDIR", "/node", "/tmp/x"),
        ("${SLURM_TMPDIR}/a b", "/node/a b", "/tmp/x/a b"),
        ("$(id)", "$(id)", "$(id)"),
    ],
)
def test_scratch_takes_one_variable_and_nothing_else(tmp_path: Path, scratch: str, there: str, absent: str) -> None:
    options = SlurmOptions(scratch=scratch)
    argv = ("printenv", "ESPO_NODE_SCRATCH")
    values = replace(PLAIN, argv=argv, workdir=str(tmp_path), claim_file=str(tmp_path / "c"))
    script = render(replace(values, options=options))
    for node, expected in (({"SLURM_TMPDIR": "/node"}, there), ({"TMPDIR": "/tmp/x"}, absent)):
        environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "1", **node}
        done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=environ, check=True)
        assert done.stdout == expected + "\n"
