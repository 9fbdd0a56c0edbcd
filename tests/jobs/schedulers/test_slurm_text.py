"""The text that goes to Slurm, and the reading of its answers (golden files: made by Slurm 22.05 itself)."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.causes import Cause
from espo_luigi.jobs.resources import Resources
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.base import Phase, Refusal, Row, chunked
from espo_luigi.jobs.schedulers.commands import Answer, Commands
from espo_luigi.jobs.schedulers.script import ScriptValues, submission_name, task_name
from espo_luigi.jobs.schedulers.slurm import (
    SlurmOptions,
    directives,
    environment,
    log_path,
    log_pattern,
    render,
    step_command,
)
from espo_luigi.jobs.schedulers.slurm_parse import (
    STATES,
    in_words,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    phase_of,
    refusal,
    row,
    says_out_of_memory,
)

GOLDEN = Path(__file__).parents[1] / "golden"
WILDCARDS = {"var": "tasmax", "region": "south_nodup", "sim_id": "CMIP6_ScenarioMIP_AS-RCEC_TaiESM1_ssp585"}
PLAIN = ScriptValues(
    name="espo6.Adjust.0123456789ab.1",
    attempt=1,
    argv=("/env/bin/python", "-m", "espo_luigi.job", "/work/jobs/adjust.json"),
    cpus_per_task=15,
    memory_bytes=61440 * 2**20,
    time_minutes=60,
    log_pattern="slurm_logs/Adjust/Adjust-region=south_nodup,var=tasmax-%j.out",
    claim_file="/work/state/claims/espo6.Adjust.0123456789ab.1",
    workdir="/work",
)
FULL = replace(
    PLAIN,
    attempt=2,
    argv=("/env with space/bin/python", "-m", "espo_luigi.job", "/work/it's $HOME.json"),
    workdir="/work/it's here",
    warning_seconds=120,
    options=SlurmOptions(
        partition="c-frigon",
        account="ctb-frigon",
        constraint="genoa|rome",
        qos="high_priority",
        nodelist="nc[1-3]",
        exclude=("nc10101", "nc10102"),
        gres="gpu:1",
        licenses="matlab:1",
        extra={"reservation": 'it\'s "mine"', "exclusive": ""},
        setup="module load StdEnv/2023 gcc\nsource ~/env/bin/activate",
        environment={"GREETING": "it's $(date)", "EMPTY": ""},
        scratch="$SLURM_TMPDIR/espo",
    ),
)


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(("values", "name"), [(PLAIN, "plain.sh"), (FULL, "full.sh")])
def test_a_script_is_as_its_golden_file_and_bash(values: ScriptValues, name: str) -> None:
    assert render(values) == golden(name)
    done = subprocess.run(["bash", "-n"], input=render(values), text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("character", ["\n", "\r", "\x00", "\x1b", "\x85", "\u2028", "\ud800"])
@pytest.mark.parametrize(
    "change",
    [
        lambda text: {"log_pattern": text},
        lambda text: {"workdir": text},
        lambda text: {"argv": (text,)},
        lambda text: {"claim_file": text},
        *(
            (lambda text, name=name: {"options": SlurmOptions(**{name: text})})
            for name in ("partition", "account", "constraint", "qos", "nodelist", "gres", "licenses", "scratch")
        ),
        lambda text: {"options": SlurmOptions(exclude=(text,))},
        lambda text: {"options": SlurmOptions(extra={"comment": text})},
        lambda text: {"options": SlurmOptions(extra={text: "x"})},
        lambda text: {"options": SlurmOptions(environment={"X": text})},
        lambda text: {"options": SlurmOptions(environment={text: "x"})},
    ],
)
def test_control_characters_are_refused_everywhere(change: object, character: str) -> None:
    with pytest.raises(SubmissionError):
        render(replace(PLAIN, **change(f"a{character}b")))  # type: ignore[operator]


@pytest.mark.parametrize(
    "name", ["array", "wait", "wrap", "output", "job-name", "mem", "clusters", "partition", "-x", "Foo", ""]
)
def test_directives_that_are_not_the_users_are_refused(name: str) -> None:
    with pytest.raises(SubmissionError, match="extra"):
        directives(replace(PLAIN, options=SlurmOptions(extra={name: "1"})))


@pytest.mark.parametrize("field", ["cpus_per_task", "memory_bytes", "time_minutes"])
def test_sizes_below_one_are_refused(field: str) -> None:
    with pytest.raises(SubmissionError, match="0, expected 1 or more"):
        directives(replace(PLAIN, **{field: 0}))


def test_no_memory_is_asked_for_where_the_site_forbids_that() -> None:
    asked = directives(replace(PLAIN, options=SlurmOptions(memory_resource="none")))
    assert asked == tuple(one for one in directives(PLAIN) if one != "--mem=61440M")
    with pytest.raises(SubmissionError, match="memory_resource: 'h_vmem'; expected 'mem', 'mem-per-cpu', or 'none'"):
        directives(replace(PLAIN, options=SlurmOptions(memory_resource="h_vmem")))


def test_limits_of_the_login_node_stay_there_unless_the_user_says_otherwise() -> None:
    assert "--propagate=NONE" in directives(PLAIN)
    asked = directives(replace(PLAIN, options=SlurmOptions(extra={"propagate": "STACK"})))
    assert [one for one in asked if one.startswith("--propagate")] == ["--propagate=STACK"]


def test_directives_in_the_script_are_those_given_to_sbatch() -> None:
    lines = [line for line in render(FULL).splitlines() if line.startswith("#SBATCH ")]
    # sbatch's quoting in scripts is, for what we write, that of a POSIX shell.
    assert tuple(shlex.split(line)[1] for line in (line.removeprefix("#") for line in lines)) == directives(FULL)


def test_a_log_is_where_the_reference_workflow_had_it() -> None:
    pattern = log_pattern("slurm_logs", "adjust", {"var": "tasmax", "region": "south_nodup"})
    assert log_path(pattern, "32072380") == "slurm_logs/adjust/adjust-region=south_nodup,var=tasmax-32072380.out"


def test_a_log_file_name_holds_nothing_that_file_names_cannot() -> None:
    pattern = log_pattern("/a%b", "r/../x", {"k": "/etc/%j\n" + "é" * 400})
    path = Path(log_path(pattern, "7"))
    assert path.parts[:2] == ("/", "a%b") and len(path.parts) == 4
    assert len(path.name.encode()) < 255 and path.name.endswith("-7.out") and "%" not in path.name


def test_a_job_name_is_the_same_in_any_process_and_differs_between_tasks() -> None:
    name = task_name("run", "Adjust", WILDCARDS)
    assert name == task_name("run", "Adjust", dict(reversed(WILDCARDS.items())))
    others = [
        task_name("run", "Train", WILDCARDS),
        task_name("run2", "Adjust", WILDCARDS),
        task_name("run", "Adjust", {}),
    ]
    assert len({name, *others, task_name("run", "Adjust", WILDCARDS, salt="x")}) == 5
    assert submission_name(name, 3) == f"{name}.3"


def test_squeue_is_read_with_other_peoples_odd_names() -> None:
    rows = {row.job_id: row for row in parse_squeue(golden("squeue.txt"))}
    assert rows["24"] == row("24", "a|b c=d UserId=x", "RUNNING", "n2", "None")
    assert rows["26"].said == "PENDING (PartitionTimeLimit)" and rows["26"].hopeless
    assert not rows["25"].hopeless, "a job that its user holds waits for its user"
    assert {row.phase for row in rows.values()} >= {Phase.COMPLETED, Cause.CRASHED, Cause.CANCELLED, Cause.NODE}


def test_sacct_is_read_with_the_last_run_of_a_requeued_job() -> None:
    rows = {row.job_id: row for row in parse_sacct(golden("sacct.txt"))}
    assert golden("sacct.txt").count("demo.Adjust.dd.1") == 2
    assert rows["23"].state == "RUNNING"
    assert rows["13"].phase is Cause.CANCELLED
    assert rows["12"] == row("12", "demo.Train.bb.1", "FAILED", "n2")
    assert rows["24"].name == "a|b c=d UserId=x"
    assert rows["25"].node == ""


def test_of_two_runs_the_one_submitted_last_counts_whatever_the_order() -> None:
    runs = ["7|NODE_FAIL|0:0|n1|2026-01-01T10:00:00|x", "7|RUNNING|0:0|n2|2026-01-01T10:05:00|x"]
    for lines in (runs, runs[::-1]):
        assert [row.state for row in parse_sacct("\n".join(lines))] == ["RUNNING"]


def test_of_two_runs_submitted_in_the_same_second_sacct_s_later_line_counts() -> None:
    runs = ["7|NODE_FAIL|0:0|n1|2026-01-01T10:00:00|x", "7|RUNNING|0:0|n2|2026-01-01T10:00:00|x"]
    assert [row.state for row in parse_sacct("\n".join(runs))] == ["RUNNING"]


def test_an_id_that_slurm_gave_twice_is_two_jobs() -> None:
    text = "7|FAILED|1:0|n1|2025-01-01T10:00:00|old\n7|COMPLETED|0:0|n1|2026-01-01T10:00:00|new"
    assert {(row.name, row.state) for row in parse_sacct(text)} == {("old", "FAILED"), ("new", "COMPLETED")}


def test_scontrol_is_read_with_odd_names() -> None:
    rows = {row.job_id: row for row in parse_scontrol(golden("scontrol.txt"))}
    assert rows["24"].name == "a|b c=d UserId=x"
    assert (rows["12"].state, rows["12"].reason) == ("FAILED", "NonZeroExitCode")
    assert rows["25"].node == ""


def test_text_that_is_no_answer_gives_no_jobs() -> None:
    for text in ("", "slurm_load_jobs error: Unable to contact slurm controller\n", "|||||\n", "x|y|z"):
        assert parse_squeue(text) == parse_sacct(text) == parse_scontrol(text) == []


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("42\n", "42"),
        ("42;narval\n", "42"),
        ("a site's greeting\n42\n", "42"),
        ("", None),
        ("Submitted batch job 42", "42"),
        ("--> Welcome to node 7\n2026\nsbatch: Submitted batch job 42 on cluster narval\n", "42"),
        ("2026\n42\n", None),
        ("--> Checking allocation 17...OK\n", None),
    ],
)
def test_sbatch_parsable_is_read(text: str, job_id: str | None) -> None:
    assert Commands(slurm, environ={}).id_of(Answer(0, text)) == job_id


def test_every_state_that_slurms_manual_names_is_in_the_table() -> None:
    manual = (
        "BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING "
        "PREEMPTED RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED SIGNALING "
        "SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED TIMEOUT"
    )
    assert set(manual.split()) <= set(STATES)


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("FAILED,COMPLETING", Phase.LEAVING),
        ("COMPLETED+COMPLETING", Phase.LEAVING),
        ("RUNNING,SIGNALING", Phase.RUNNING),
        ("RUNNING,STOPPED", Phase.SUSPENDED),
        ("PENDING,COMPLETING,REQUEUED", Phase.PENDING),
        ("RUNNING,POWER_UP_NODE", Phase.PENDING),
        ("NODE_FAIL,REQUEUED", Phase.PENDING),
        ("PENDING,LAUNCH_FAILED,REQUEUE_HOLD", Phase.PENDING),
        ("CANCELLED,A_FLAG_OF_SLURM_30", Cause.CANCELLED),
        ("completed", Phase.COMPLETED),
    ],
)
def test_a_state_with_flags_means_what_still_happens_to_the_job(state: str, phase: Phase) -> None:
    assert phase_of(state) is phase


@pytest.mark.parametrize(
    ("reason", "is_used_up"),
    [
        *((f"{whose}Grp{what}", True) for whose in ("Assoc", "QOS") for what in ("CPUMinutesLimit", "GRESMinutes")),
        *((f"{whose}Grp{what}", True) for whose in ("Assoc", "QOS") for what in ("BillingMinutes", "WallLimit")),
        *((f"AssocGrp{what}", False) for what in ("CPURunMinutesLimit", "MemRunMinutes", "CpuLimit", "Billing")),
        ("Priority", False),
    ],
)
def test_a_job_whose_account_has_no_time_left_waits_for_somebody(reason: str, is_used_up: bool) -> None:
    assert row("7", "x", "PENDING", reason=reason).held is is_used_up
    assert ("is used up" in in_words(reason)) is is_used_up


@pytest.mark.parametrize(
    ("reason", "is_hopeless"),
    [
        *((f"AssocMax{what}", True) for what in ("CpuPerJobLimit", "MemPerJob", "WallDurationPerJobLimit")),
        *((f"QOSMax{what}", True) for what in ("NodePerJobLimit", "CPUMinutesPerJobLimit", "GRESPerNode")),
        *(("QOSMinMemory", True), ("InvalidQOS", True), ("AccountNotAllowed", True)),
        *((reason, False) for reason in ("QOSMaxCpuPerUserLimit", "AssocMaxJobsLimit", "QOSGrpMemLimit", "Resources")),
    ],
)
def test_a_job_that_asks_for_more_than_any_job_may_get_waits_in_vain(reason: str, is_hopeless: bool) -> None:
    assert row("7", "x", "PENDING", reason=reason).hopeless is is_hopeless


@pytest.mark.parametrize(
    "ended",
    [
        *parse_squeue("1|FAILED|n1|JobLaunchFailure|wrap\n"),
        *parse_squeue("1|FAILED|n1|RaisedSignal:53(Real-time_signal_19)|wrap\n"),
        *parse_sacct("1|FAILED|0:53|n1|2026-11-25T23:15:20|wrap\n"),
        *parse_scontrol(
            "JobId=1 JobName=wrap UserId=root(0) GroupId=root(0) JobState=FAILED Reason=JobLaunchFailure "
            "ExitCode=0:53 NodeList=n1\n"
        ),
    ],
)
def test_a_job_whose_log_could_not_be_opened_is_known(ended: Row) -> None:
    assert ended.no_log and not row("1", "x", "FAILED", reason="NonZeroExitCode", exit_code="1:0").no_log


def test_a_job_that_its_node_could_not_start_is_known_by_its_flag_too() -> None:
    assert row("7", "x", "PENDING,LAUNCH_FAILED,REQUEUE_HOLD", reason="JobHeldUser").launch_failed
    assert not row("7", "x", "PENDING,REQUEUE_HOLD", reason="JobHeldUser").launch_failed


@pytest.mark.parametrize("name", ["squeue", "sacct", "scontrol"])
def test_answers_of_newer_versions_are_read_alike(name: str) -> None:
    parse = {"squeue": parse_squeue, "sacct": parse_sacct, "scontrol": parse_scontrol}[name]
    rows = {row.job_id: row for row in parse(golden(f"{name}-25.05.txt"))}
    phases = {job_id: rows[job_id].phase for job_id in sorted(rows)}
    pending = {"33": Phase.PENDING} if name != "sacct" else {}
    assert phases == {
        "31": Phase.LEAVING if name != "sacct" else Cause.CRASHED,
        "32": Phase.PENDING,
        **pending,
        "34": Phase.RUNNING,
        "35": Cause.NODE,
    }
    assert (rows["34"].name, rows["34"].node) == ("demo.Adjust.dd.2", "n1")
    assert rows["32"].node == ""


def test_of_the_users_environment_only_what_says_which_slurm_who_pays_and_where_reaches_slurm() -> None:
    said = {
        "SBATCH_WAIT": "1",
        "SBATCH_ARRAY_INX": "0-3",
        "SQUEUE_FORMAT": "%i",
        "SLURM_X": "1",
    }
    said |= {"SACCT_FORMAT": "JobID", "SCANCEL_STATE": "PENDING", "SBATCH_MEM_PER_CPU": "1"}
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "def-me", "SBATCH_QOS": "q", "HOME": "/home/me"}
    assert environment(said | kept) == kept | {"LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "standard", "TZ": "UTC"}


def test_an_unknown_state_is_taken_as_still_there_and_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    assert [phase_of("DREAMING"), phase_of("DREAMING")] == [Phase.RUNNING, Phase.RUNNING]
    assert caplog.text.count("DREAMING") == 1


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", "PASSING"),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", "PASSING"),
        ("sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying", "PASSING"),
        ("sbatch: error: Batch job submission failed: Resource temporarily unavailable", "PASSING"),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit sbatch: error: Batch job submission failed: Job violates "
         "accounting/QOS policy (job submit limit, user's size and/or time limits)", "TOO_MANY"),
        ("sbatch: error: AssocMaxSubmitJobLimit sbatch: error: Batch job submission failed: Job violates "
         "accounting/QOS policy (job submit limit, user's size and/or time limits)", "TOO_MANY"),
        ("sbatch: error: QOSMaxWallDurationPerJobLimit sbatch: error: Batch job submission failed: Job violates "
         "accounting/QOS policy (job submit limit, user's size and/or time limits)", "PERMANENT"),
        ("sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's "
         "size and/or time limits)", "UNCLEAR"),
        ("sbatch: error: invalid partition specified: nix sbatch: error: Batch job submission failed: Invalid "
         "partition name specified", "PERMANENT"),
        ("sbatch: error: Memory specification can not be satisfied sbatch: error: Batch job submission failed: "
         "Requested node configuration is not available", "PERMANENT"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
         "PERMANENT"),
        ("sbatch: error: The --mem=... request is not allowed nor necessary on this cluster: each job gets all of its "
         "node sbatch: error: Batch job submission failed: Unspecified error", "PERMANENT"),
        ("sbatch: error: You have too many jobs in the queue sbatch: error: Batch job submission failed: Unspecified "
         "error", "TOO_MANY"),
        ("sbatch: error: Batch job submission failed: No partition specified or system default partition", "PERMANENT"),
        ("sbatch: error: Batch job submission failed: Job size specification needs to be provided", "PERMANENT"),
        ("sbatch: error: Batch job submission failed: User's group not permitted to use this partition", "PERMANENT"),
        ("sbatch: unrecognized option '--foo' Try \"sbatch --help\" for more information", "PERMANENT"),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", "PASSING"),
        ("a plugin of this site says something of its own", "UNCLEAR"),
        ("sbatch: error: Batch job submission failed: Unspecified error", "UNCLEAR"),
        ("sbatch: error: You are not allowed to submit more than 500 jobs at once sbatch: error: Batch job submission "
         "failed: Unspecified error", "TOO_MANY"),
        ("sbatch: error: You are not allowed to have more than 1000 jobs in the queue", "TOO_MANY"),
        ("sbatch: error: User has reached the maximum number of jobs (200)", "TOO_MANY"),
        ("sbatch: error: Your wait queue is too long", "PASSING"),
        ("sbatch: error: Job submissions are not allowed during maintenance", "PASSING"),
        ("sbatch: error: Cannot reach the accounting database, submissions are paused", "PASSING"),
        ("sbatch: error: Submissions are not allowed at this time sbatch: error: Batch job submission failed: "
         "Unspecified error", "UNCLEAR"),
        ("sbatch: error: An account is required (-A)", "PERMANENT"),
        ("sbatch: error: The time limit of this job is too long for short", "PERMANENT"),
        ("sbatch: error: --mem is forbidden here, use --mem-per-cpu sbatch: error: Batch job submission failed: "
         "Unspecified error", "PERMANENT"),
        ("sbatch: error: Please use --mem-per-cpu instead of --mem", "PERMANENT"),
        ("sbatch: error: You must give a partition", "PERMANENT"),
        ("sbatch: error: Batch job submission failed: Invalid job array specification", "TOO_LARGE"),
        ("sbatch: error: only 500 jobs in the queue at a time", "PASSING"),
        ("sbatch: error: You need not give memory: it is not allowed to give --mem here", "PERMANENT"),
    ],
)  # fmt: skip
def test_refusals_are_told_apart(words: str, meaning: str) -> None:
    assert refusal(words) is Refusal[meaning]


@pytest.mark.parametrize(
    ("log", "memory"),
    [
        ("slurmstepd-n1: error: StepId=2.batch exceeded memory limit (313733120 > 104857600), being killed", True),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=5.batch. Some of your processes may", True),
        ("my program found an exceeded memory limit", False),
        ("slurmstepd: error: *** JOB 2 ON n1 CANCELLED AT 2026-11-21T02:15:48 ***", False),
    ],
)
def test_slurms_words_for_too_much_memory_are_known_and_nobody_elses(log: str, memory: bool) -> None:
    assert bool(says_out_of_memory(f"some output\n{log}\n")) is memory


def test_lists_of_jobs_are_cut_to_the_length_of_an_argument() -> None:
    ids = [str(number) for number in range(100_000, 110_000)]
    groups = chunked(ids, longest=1000)
    assert [word for group in groups for word in group] == ids
    assert max(len(",".join(group)) for group in groups) <= 1000
    assert chunked([]) == []


def test_memory_is_asked_for_each_cpu_where_the_site_wants_it_so() -> None:
    options = SlurmOptions(memory_resource="mem-per-cpu")
    values = replace(PLAIN, options=options, cpus_per_task=3, memory_bytes=10 * 2**30)
    memory = [one for one in directives(values) if one.startswith("--mem")]
    assert memory == ["--mem-per-cpu=3414M"]
    assert [one for one in directives(values, ntasks=2) if one.startswith("--mem")] == ["--mem-per-cpu=1707M"]
    step = step_command("8", "n3", "A", Resources(1, 3, "10GB"), options, ())
    assert "--mem-per-cpu=3414M" in step and not any(one.startswith("--mem=") for one in step)
    # The job takes what it was given: no less than it asked for.
    given = slurm.given({"SLURM_CPUS_PER_TASK": "3", "SLURM_MEM_PER_CPU": "3414"})
    assert given == {"cpus_per_task": 3, "memory_bytes": 3 * 3414 * 2**20}


@pytest.mark.parametrize("name", ["SLURM_CLUSTERS", "SBATCH_CLUSTERS"])
def test_an_environment_that_chooses_another_cluster_is_refused(name: str) -> None:
    with pytest.raises(SubmissionError, match=f"{name}=second chooses a cluster.*Nothing was submitted.*unset {name}"):
        slurm.environment({name: "second", "SLURM_CLUSTER_NAME": "first"})
    assert name not in slurm.environment({name: "second", "SLURM_CLUSTER_NAME": "second"})
    assert slurm.environment({name: "", "SBATCH_WCKEY": "science"})["SBATCH_WCKEY"] == "science"


def test_a_drained_node_is_told_once_whatever_its_reason_says() -> None:
    from espo_luigi.jobs.schedulers.slurm_parse import _DRAINED_BY_SLURM, parse_drained

    reason = " and ".join(phrase for phrase, _ in _DRAINED_BY_SLURM)
    (sentence,) = parse_drained(f"n1|{reason}\nn1|{reason}\nn2|{reason}\n")
    assert sentence.count("Slurm drained n1, n2") == 1
