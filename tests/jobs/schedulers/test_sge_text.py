"""The text that goes to Grid Engine, and the reading of its answers (golden files: made by 8.1.9 itself)."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs import schedulers
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.jobs.schedulers import gridengine as sge
from espo_luigi.jobs.schedulers.base import Phase
from espo_luigi.jobs.schedulers.commands import Answer, Commands
from espo_luigi.jobs.schedulers.gridengine import (
    SgeOptions,
    accounting,
    arguments,
    environment_script,
    log_path,
    log_pattern,
    parse_qacct,
    parse_qstat,
    parse_qstat_j,
    phase_of,
    refusal,
    render,
    says_out_of_memory,
    sge_name,
    submit_command,
)
from espo_luigi.jobs.schedulers.script import ScriptValues, submission_name, task_name

GOLDEN = Path(__file__).parents[1] / "golden"
PLAIN = ScriptValues(
    name="2024.Adjust.0123456789ab.1",
    attempt=1,
    argv=("/env/bin/python", "-m", "espo_luigi.job", "/work/jobs/adjust.json"),
    cpus_per_task=1,
    memory_bytes=65536 * 2**20,
    time_minutes=60,
    log_pattern="/work/sge_logs/Adjust/Adjust-region=south_nodup+var=tasmax-$JOB_ID.out",
    claim_file="/work/state/claims/2024.Adjust.0123456789ab.1",
    workdir="/work",
    environment_file="/work/state/environment.sh",
)
FULL = replace(
    PLAIN,
    name="it@home.Adjust.0123456789ab.2",
    attempt=2,
    cpus_per_task=10,
    memory_bytes=61440 * 2**20,
    time_minutes=6041,
    workdir="/work/it's here",
    log_pattern="/work/it's here/sge_logs/Adjust/Adjust-$JOB_ID.out",
    options=SgeOptions(
        queue="256G-batch",
        parallel_environment="smp",
        project="climate",
        exclude=("nc10101", "nc10102.site"),
        extra={"l": "mem_free=4G", "R": "y", "p": "-100"},
        setup="#$ -t 1-10\nmodule load gcc\nsource ~/env/bin/activate",
        environment={"GREETING": "it's $(date)"},
        scratch="$TMP/espo",
    ),
)


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("values", "name"), [(PLAIN, "sge-plain.sh"), (FULL, "sge-full.sh")])
def test_a_script_is_as_its_golden_file_and_bash(values: ScriptValues, name: str) -> None:
    assert render(values) == golden(name)
    done = subprocess.run(["bash", "-n"], input=render(values), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_submission_gives_all_options_as_arguments_and_has_none_read_from_the_script() -> None:
    words = submit_command(FULL, Path("/work/s.sh"))
    assert words[:8] == ("qsub", "-terse", "-C", "", "-b", "n", "-sync", "n")
    assert words[8:-1] == arguments(FULL)
    assert words[-1] == "/work/s.sh"


def test_an_environment_that_is_handed_on_is_the_same_in_bash_but_for_what_is_of_each_job() -> None:
    kept = {"A_TOKEN": "it's $(date) `x`\n\\ \t", "ODD": "\udcff", "EMPTY": "", "SGE_ROOT": "/sge", "HOME": "/home/me"}
    of_a_job = {"JOB_ID": "7", "TMPDIR": "/tmp/7", "SGE_TASK_ID": "undefined", "HOSTNAME": "n1", "PWD": "/work"}
    lines = environment_script({**kept, **of_a_job, "BASH_FUNC_ml%%": "() { :; }", "no-name": "x"})
    show = "import os, json; print(json.dumps(dict(os.environ)))"
    script = f"{lines}exec {sys.executable} -c {shlex.quote(show)}"
    done = subprocess.run(["bash", "-c", script], env={"LC_ALL": "C"}, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert {name: found[name] for name in kept} == kept
    assert not {*of_a_job, "no-name"} & {line.split("=")[0].removeprefix("export ") for line in lines.splitlines()}


def resources(values: ScriptValues) -> str:
    words = arguments(values)
    return words[words.index("-l") + 1]


@pytest.mark.parametrize(
    ("changes", "options", "expected"),
    [
        ({}, {}, "h_rt=3600,h_vmem=64G"),
        ({"cpus_per_task": 16}, {}, "h_rt=3600,h_vmem=4G"),
        ({"cpus_per_task": 10}, {}, "h_rt=3600,h_vmem=6554M"),
        ({"cpus_per_task": 16}, {"memory_per": "job"}, "h_rt=3600,h_vmem=64G"),
        ({}, {"memory_resource": "mem_free"}, "h_rt=3600,mem_free=64G"),
        ({}, {"memory_resource": "none"}, "h_rt=3600"),
        ({"time_minutes": 120}, {}, "h_rt=7200,h_vmem=64G"),
        ({}, {"exclude": ("n1", "n2.site")}, "h_rt=3600,h_vmem=64G,h=!(n1|n2.site)"),
    ],
)
def test_memory_is_for_a_slot_or_a_job_and_time_in_seconds(
    changes: dict[str, int], options: dict[str, object], expected: str
) -> None:
    assert resources(replace(PLAIN, **changes, options=SgeOptions(**options))) == expected


def test_a_job_of_one_cpu_needs_no_parallel_environment() -> None:
    assert "-pe" not in arguments(PLAIN)
    assert arguments(FULL)[arguments(FULL).index("-pe") :][:3] == ("-pe", "smp", "10")


@pytest.mark.parametrize(
    "change",
    [
        {"log_pattern": "/a:b/x-$JOB_ID.out"},
        {"log_pattern": "/a,b/x-$JOB_ID.out"},
        {"log_pattern": "/$HOME/x-$JOB_ID.out"},
        {"log_pattern": "/$JOB_ID.out/x-$JOB_ID.out"},
        {"log_pattern": "/a\nb/x-$JOB_ID.out"},
        {"workdir": "/work/$HOME"},
        {"options": SgeOptions(queue="-x")},
        {"options": SgeOptions(queue="a\nb")},
        {"options": SgeOptions(memory_resource="h_vmem=1G,x")},
        {"options": SgeOptions(memory_per="node")},
        {"options": SgeOptions(exclude=("n1)|(x",))},
        {"options": SgeOptions(exclude=("n[1-3]",))},
        *({"options": SgeOptions(extra={name: "1"})} for name in ("t", "sync", "o", "q", "pe", "-l", "", "terse", "@")),
        *({"options": SgeOptions(extra={name: "1"})} for name in ("clear", "ckpt")),
        *({"options": SgeOptions(extra={"l": f"a=1G,{name}=9"})} for name in ("h_rt", "h_vmem", "h", "hostname")),
        {"options": SgeOptions(extra={"l": " h_rt = 9"})},
        {"options": SgeOptions(memory_resource="mem_free", extra={"l": "mem_free=900G"})},
        {"options": SgeOptions(extra={"M": "a\nb"})},
        {"cpus_per_task": 0},
        {"memory_bytes": 0},
        {"time_minutes": 0},
    ],
)
def test_what_qsub_would_read_otherwise_than_meant_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(SubmissionError):
        render(replace(PLAIN, **change))


def test_what_a_site_limits_is_asked_for_by_its_own_name_only() -> None:
    asked = SgeOptions(extra={"l": "scratch=10G,h_rt=99:99:99"})
    with pytest.raises(SubmissionError, match="extra: l: h_rt is asked for by `time`"):
        arguments(replace(PLAIN, options=asked))
    others = SgeOptions(memory_resource="none", extra={"l": "scratch=10G,h_vmem=1G,h_cpu=60"})
    assert arguments(replace(PLAIN, options=others))[-2:] == ("-l", "scratch=10G,h_vmem=1G,h_cpu=60")


@pytest.mark.parametrize("run", ["2024", "run", "a@b", "..", "é", "-x", "50%", "a:b"])
def test_a_jobs_name_is_one_that_grid_engine_takes_and_gives_back(run: str) -> None:
    name = submission_name(task_name(run, "Adjust", {}), 1)
    job = sge_name(name)
    assert job[0].isalpha() and not set(job) & set("\n\t\r/:@\\*? ")
    fields = f"<JB_job_number>1</JB_job_number><JB_name>{job}</JB_name><state>qw</state>"
    listed = f"<job_list>{fields}</job_list></job_info>"
    assert [row.name for row in parse_qstat(listed)] == [name]


def test_a_log_is_found_by_the_id() -> None:
    pattern = log_pattern("/logs/of me", "Adjust", {"var": "pr", "region": "a,b:c$d"})
    assert pattern == "/logs/of me/Adjust/Adjust-region=a+b_c_d+var=pr-$JOB_ID.out"
    assert log_path(pattern, "12") == "/logs/of me/Adjust/Adjust-region=a+b_c_d+var=pr-12.out"


def test_the_id_is_read_from_among_other_lines() -> None:
    commands = Commands(sge, environ={})
    said = {
        "17\n": "17",
        "a site's greeting\n17\n": "17",
        'Welcome\nYour job 17 ("espo.a.1") has been submitted\n': "17",
        "2026\n17\n": None,
        "17.1-3:1\n": "17",
        'Your job-array 17.1-3:1 ("espo.a.1") has been submitted\n': "17",
        "": None,
    }
    assert {text: commands.id_of(Answer(0, text)) for text in said} == said


def test_the_listing_is_read() -> None:
    rows = {row.job_id: row for row in parse_qstat(golden("qstat.xml"))}
    assert {job_id: (row.state, row.phase, row.node) for job_id, row in rows.items()} == {
        "1": ("r", Phase.RUNNING, "n1"),
        "2": ("qw", Phase.PENDING, ""),
        "3": ("hqw", Phase.PENDING, ""),
        "4": ("Eqw", Phase.PENDING, ""),
        "5": ("s", Phase.SUSPENDED, "n1"),
        "7": ("Rq", Phase.PENDING, ""),
        "8": ("r", Phase.RUNNING, "n1"),
        "9": ("dr", Phase.LEAVING, "n1"),
    }
    assert rows["1"].name == "2024@x.Train.0123456789ab.1"
    assert [job_id for job_id, row in rows.items() if row.held] == ["3"]
    assert [job_id for job_id, row in rows.items() if row.hopeless] == ["4"]
    assert rows["4"].said == "Eqw (qstat -j 4 says why)"


def test_half_an_answer_is_none() -> None:
    text = golden("qstat.xml")
    with pytest.raises(ValueError, match="the end is missing"):
        parse_qstat(text[: len(text) // 2])


@pytest.mark.parametrize(
    ("states", "phase"),
    [
        ("qw hqw hRwq Eqw Ehqw EhRqw Rq", Phase.PENDING),
        ("r hr t Rr Rt", Phase.RUNNING),
        ("s ts S tS T tT Rs Rts RS RtS RT RtT", Phase.SUSPENDED),
        ("dr dt dRr dRt ds dS dT dRs dRS dRT", Phase.LEAVING),
    ],
)
def test_all_states_of_the_manual_are_known(states: str, phase: Phase, caplog: pytest.LogCaptureFixture) -> None:
    """The codes of sge_status(5)."""
    assert {phase_of(state) for state in states.split()} == {phase}
    assert caplog.text == ""


def test_an_unknown_state_is_taken_as_still_there_and_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    assert [phase_of("x"), phase_of("x")] == [Phase.RUNNING, Phase.RUNNING]
    assert caplog.text.count("'x'") == 1


def test_the_accounting_is_read_and_of_several_runs_the_last() -> None:
    rows = {row.name.split(".")[1]: row for row in parse_qacct(golden("qacct.txt"))}
    assert {name: row.phase for name, row in rows.items()} == {
        "ok": Phase.COMPLETED,
        "fail": Cause.CRASHED,
        "kill": Cause.CRASHED,
        "told": Cause.CANCELLED,
        "time": Cause.TIMEOUT,
        "timekill": Cause.TIMEOUT,
        "many": Cause.MEMORY,
        "again": Cause.CANCELLED,
    }
    assert rows["kill"].node == "n1" and rows["kill"].reason.endswith("exit status 137")
    assert rows["time"].said == "failed 37 (qmaster enforced h_rt, h_cpu, or h_vmem limit, exit status 140)"
    assert rows["ok"].name == "r.ok.0123456789ab.1"


def ended(**fields: str) -> Phase:
    usual = {"jobname": "espo.r", "jobnumber": "7", "failed": "100 : assumedly after job", "exit_status": "137"}
    text = "".join(f"{key:12} {value}\n" for key, value in {**usual, **fields}.items())
    return parse_qacct("=" * 62 + "\n" + text)[0].phase


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        # 6.2u5 has no code for limits, and writes bare numbers.
        ({"category": "-l h_rt=60", "ru_wallclock": "61"}, Cause.TIMEOUT),
        ({"category": "-l h_rt=60", "ru_wallclock": "59"}, Cause.CRASHED),
        ({"category": "-l h_vmem=1G", "maxvmem": "1.002G", "slots": "1"}, Cause.MEMORY),
        ({"category": "-l h_vmem=1G -pe threaded 2", "maxvmem": "1.500GB", "slots": "2"}, Cause.CRASHED),
        ({"category": "-l h_vmem=1G -pe threaded 2", "maxvmem": "2.100GB", "slots": "2"}, Cause.MEMORY),
        # A resource that the site only reserves is no limit: a process maps more than that.
        ({"category": "-l h_rt=60,mem_free=1G,h_stack=10M", "maxvmem": "3.002G"}, Cause.CRASHED),
        ({"category": "-l h_rt=60,mem_free=1G -l h_vmem=2G", "maxvmem": "1.500G"}, Cause.CRASHED),
        ({"failed": "37  : qmaster enforced …", "ru_wallclock": "5s"}, Cause.MEMORY),
        # h_cpu limits time, too; all limits have the same code.
        ({"failed": "37  : …", "category": "-l h_rt=600,h_vmem=1G,h_cpu=60", "cpu": "61.2s"}, Cause.TIMEOUT),
        ({"failed": "37", "category": "-l h_cpu=00:01:00,h_vmem=1G", "cpu": "61.2", "maxvmem": "0.2G"}, Cause.TIMEOUT),
        ({"failed": "37", "category": "-l h_cpu=60,h_vmem=1G", "cpu": "59.2s", "maxvmem": "0.2G"}, Cause.MEMORY),
        ({"failed": "37", "category": "-l h_cpu=60,h_vmem=1G", "cpu": "61.2s", "maxvmem": "1.1G"}, Cause.MEMORY),
        # Told to stop, and over no limit of time: whoever deletes a job that is large has still deleted it.
        ({"exit_status": "140", "category": "-l h_vmem=1G", "maxvmem": "1.1G"}, Cause.CANCELLED),
        ({"exit_status": "140", "category": "-l h_rt=60,h_vmem=1G", "ru_wallclock": "61"}, Cause.TIMEOUT),
        ({"failed": "37", "exit_status": "140", "category": "-l h_vmem=1G", "maxvmem": "1.1G"}, Cause.MEMORY),
        ({"failed": "8   : in prolog", "exit_status": "0"}, Cause.NODE),
        ({"failed": "15  : in epilog", "exit_status": "0"}, Phase.COMPLETED),
        ({"failed": "0", "exit_status": "1", "category": "-l h_rt=60", "ru_wallclock": "61"}, Cause.CRASHED),
        ({"failed": "25  : rescheduling", "exit_status": "0"}, Phase.PENDING),
    ],
)
def test_an_end_is_what_the_limits_and_the_codes_say(fields: dict[str, str], phase: Phase) -> None:
    assert ended(**fields) is phase


def test_few_jobs_are_looked_up_by_their_ids_and_many_at_once() -> None:
    few, many = accounting(["1", "2"], ["r@x.1"]), accounting([str(i) for i in range(500)], [])
    assert [query.argv for query in few] == [
        ("qacct", "-j", "1"),
        ("qacct", "-j", "2"),
        ("qacct", "-j", "espo.r%40x.1"),
    ]
    assert [query.argv for query in many] == [("qacct", "-j", "espo.*")]


@pytest.mark.parametrize(
    ("out", "words", "rows"),
    [
        ("", "error: job id 12 not found", []),
        ("no jobs running since startup", "/sge/default/common/accounting: No such file or directory", []),
        ("no jobs running since startup", "unable to open /sge/default/common/accounting: Permission denied", []),
        ("", "error: commlib error: got select error (Connection refused)", None),
    ],
)
def test_a_job_that_qacct_does_not_know_yet_is_an_answer(
    tmp_path: Path, out: str, words: str, rows: list[object] | None
) -> None:
    (tmp_path / "qacct").write_text(f"#!/bin/sh\necho '{out}'\necho '{words}' >&2\nexit 1\n")
    (tmp_path / "qacct").chmod(0o755)
    assert Commands(sge, environ={"PATH": f"{tmp_path}:/usr/bin:/bin"}).remembered(["12"], []) == rows


def test_without_qacct_the_rest_goes_on(tmp_path: Path) -> None:
    commands = Commands(sge, environ={"PATH": str(tmp_path)})
    assert [commands.remembered(["12"], []) for _ in range(2)] == [[], []]
    assert commands.lacking == {"qacct"}


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("Unable to run job: job rejected: only 1 jobs are allowed per user (current job count: 5)", "PASSING"),
        ('Unable to run job: unable to send message to qmaster using port 6444 on host "h": got send error', "PASSING"),
        ("error: commlib error: got select error (Connection refused)", "PASSING"),
        ("qsub did not answer in 60 s", "PASSING"),
        ("Unable to run job: error: no suitable queues", "PERMANENT"),
        ('Unable to run job: unknown resource "nix"', "PERMANENT"),
        ('Unable to run job: Job was rejected because job requests unknown queue "nix.q"', "PERMANENT"),
        ('Unable to run job: job rejected: the requested parallel environment "nix" does not exist', "PERMANENT"),
        ('Unable to run job: job rejected: the requested project "nix" does not exist', "PERMANENT"),
        ('Unable to run job: denied: "1a" is not a valid object name (cannot start with a digit)', "PERMANENT"),
        ('Unable to run job: attribute "h_vmem" is not a memory value', "PERMANENT"),
        ('qsub: invalid option argument "-nix"', "PERMANENT"),
        ("Unable to run job: who knows", "UNCLEAR"),
    ],
)
def test_a_refusal_passes_or_not(words: str, meaning: str) -> None:
    assert refusal(words).name == meaning


@pytest.mark.parametrize(
    ("log", "memory"),
    [
        ("Traceback …\nMemoryError\n", True),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 2.00 GiB\n", True),
        ("OSError: [Errno 12] Cannot allocate memory\n", True),
        ("ValueError: no MemoryError here\n", False),
        ("", False),
    ],
)
def test_a_log_says_that_memory_was_refused(log: str, memory: bool) -> None:
    assert bool(says_out_of_memory(log)) is memory


def test_a_job_knows_itself_by_what_only_grid_engine_sets() -> None:
    job = {"JOB_ID": "7", "SGE_TASK_ID": "undefined", "NSLOTS": "4", "ESPO_MEMORY_MIB": "100", "TMP": "/tmp/7.1.q"}
    around = schedulers.around(job)
    assert around is sge
    assert around.given(job) == {"cpus_per_task": 4, "memory_bytes": 100 * 2**20}
    other = {"JOB_ID": "of another program", "TMP": "/tmp"}
    assert schedulers.around(other) is None


def test_the_environment_is_the_users_without_a_parallel_environment_of_the_drivers_own() -> None:
    given = {"SGE_ROOT": "/sge", "PE_HOSTFILE": "/x", "HOME": "/home/me"}
    assert sge.environment(given) == {
        "SGE_ROOT": "/sge",
        "HOME": "/home/me",
        "LC_ALL": "C.UTF-8",
    }


def test_the_folder_of_a_job_that_is_not_there_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SLURM_TMPDIR", "ESPO_NODE_SCRATCH"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "7.1.q"
    monkeypatch.setenv("TMP", str(folder))
    monkeypatch.setenv("JOB_ID", "7")
    monkeypatch.setenv("SGE_TASK_ID", "undefined")
    assert schedulers.node_folder() is None
    folder.mkdir()
    assert schedulers.node_folder() == str(folder)


_BY_ID = """<?xml version='1.0'?>
<detailed_job_info>
  <djob_info>
    <element><JB_job_number>1</JB_job_number><JB_owner>root</JB_owner><JB_job_name>espo.run.A.1</JB_job_name>
      <JB_ja_tasks><ulong_sublist><JAT_status>128</JAT_status></ulong_sublist></JB_ja_tasks></element>
    <element><JB_job_number>2</JB_job_number><JB_job_name>espo.run%402.B.1</JB_job_name></element>
    <element><JB_job_number>3</JB_job_number><JB_job_name>espo.run.C.1</JB_job_name>
      <JB_ja_tasks><ulong_sublist><JAT_status>1152</JAT_status></ulong_sublist></JB_ja_tasks></element>
  </djob_info>
</detailed_job_info>
"""


def test_jobs_that_a_sites_defaults_hide_are_read_by_id() -> None:
    rows = {row.name: (row.job_id, row.phase) for row in parse_qstat_j(_BY_ID)}
    expected = {"run.A.1": ("1", Phase.RUNNING), "run@2.B.1": ("2", Phase.PENDING), "run.C.1": ("3", Phase.LEAVING)}
    assert rows == expected
    assert parse_qstat_j("<?xml version='1.0'?>\n<unknown_jobs >\n <ST_name>9</ST_name>\n</unknown_jobs>\n") == []
    with pytest.raises(ValueError, match="the end is missing"):
        parse_qstat_j(_BY_ID[:200])


def test_of_the_tasks_of_an_array_that_a_sites_defaults_made_one_works(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    store.create_folders()
    claim, argv = store.claim_path("t.1"), ("printenv", "ESPO_OWNER")
    values = replace(PLAIN, argv=argv, workdir=str(tmp_path), claim_file=str(claim), environment_file="")
    (script := tmp_path / "job.sh").write_text(render(values))

    def started(task: str) -> str:
        environ = {"PATH": os.environ["PATH"], "JOB_ID": "17", "SGE_TASK_ID": task}
        return subprocess.run(["bash", script], env=environ, check=True, capture_output=True, text=True).stdout.strip()

    assert [started(task) for task in ("2", "1", "3", "2")] == ["17.2", "", "", "17.2"]
    assert store.claim_owner("t.1") == "17"
    claim.unlink()
    assert started("undefined") == "17", "a job that is no array's"


def test_of_an_array_the_task_that_has_come_furthest_counts() -> None:
    said = "<job_list><JB_job_number>17</JB_job_number><JB_name>espo.a.1</JB_name><state>{}</state></job_list>"
    rows = parse_qstat("".join(said.format(state) for state in ("r", "qw")) + "</job_info>")
    assert {row.name: row.phase for row in rows} == {"a.1": Phase.RUNNING}
