"""The tables of `policy`, row by row: what is done about a job, and what follows from a cause."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from job_work import Work

from espo_luigi.jobs.causes import CAUSES, Cause, words_of
from espo_luigi.jobs.lifecycle.policy import Action, cause_of, next_record, pause_before, step
from espo_luigi.jobs.lifecycle.records import Record
from espo_luigi.jobs.lifecycle.state import End, Files, Intent, Job, Seen
from espo_luigi.jobs.order import JobState, result_cause
from espo_luigi.jobs.resources import GIB
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.schedulers.base import Phase, Row
from espo_luigi.jobs.settings import BatchSettings, Patience

STALL = 1800.0
PATIENCE = Patience()
SETTINGS = BatchSettings(stall_timeout_seconds=STALL)
SLURM = SCHEDULERS["slurm"]
RECORD = Record("run.rule.0", "rule", {}, GIB, 60, "log-%j", state=JobState.QUEUED, job_id="7")
WITHOUT_ID = replace(RECORD, state=JobState.SUBMITTING, job_id=None)
CANCELLED = replace(RECORD, ending=Cause.STALLED)
GIVEN_UP = replace(RECORD, ending=Cause.HOPELESS)
EPOCH = 10_000.0  # when what a row knows began


def seen(phase: Phase | Cause, **more: Any) -> Seen:
    return Seen(Row("7", "run.rule.0.1", phase.name, phase, "n1", **more), since=EPOCH)


def said(outcome: str) -> Files:
    return Files(result={"outcome": outcome}, result_since=EPOCH)


MISSING = Seen(missing=EPOCH)
SILENT = Seen(answered=False)
RUNNING, PENDING, LEAVING = seen(Phase.RUNNING), seen(Phase.PENDING), seen(Phase.LEAVING)
HOPELESS = seen(Phase.PENDING, hopeless=True)
UNSTARTABLE = seen(Phase.PENDING, hopeless=True, launch_failed=True)
NOTHING, NO_INTENT = Files(), Intent()


@dataclass(frozen=True)
class Known:
    """A row of `step`'s table: the state, and the action after so many seconds; before, it is WAIT."""

    state: JobState
    action: Action = Action.WAIT
    after: float = 0.0
    record: Record = RECORD
    seen: Seen = RUNNING
    files: Files = NOTHING
    intent: Intent = NO_INTENT
    unwanted: bool = False


WAIT, LOOK, CLAIM, END, CANCEL = Action.WAIT, Action.LOOK, Action.CLAIM, Action.CLOSE, Action.CANCEL
ROWS = {
    "not submitted": Known(JobState.READY, record=replace(RECORD, state=JobState.READY, job_id=None), seen=Seen()),
    "not submitted, not wanted": Known(
        JobState.READY,
        Action.FAIL,
        record=replace(RECORD, state=JobState.READY, job_id=None),
        seen=Seen(),
        unwanted=True,
    ),
    "not wanted": Known(JobState.RUNNING, CANCEL, unwanted=True),
    "not wanted, pends": Known(JobState.QUEUED, CANCEL, seen=PENDING, unwanted=True),
    "not wanted, silent": Known(JobState.QUEUED, CANCEL, seen=SILENT, unwanted=True),
    "not wanted, in no answer": Known(JobState.MISSING, CANCEL, seen=MISSING, unwanted=True),
    "not wanted, its id unknown": Known(JobState.SUBMITTING, WAIT, 1e6, WITHOUT_ID, Seen(), unwanted=True),
    "not wanted, cancelled": Known(
        JobState.CANCELLING,
        CANCEL,
        PATIENCE.cancel_again,
        replace(RECORD, ending=Cause.DRIVER_CANCELLED),
        intent=Intent(cancelled=EPOCH),
        unwanted=True,
    ),
    "not wanted, success": Known(JobState.ENDED, LOOK, files=said("success"), unwanted=True),
    "not wanted, it has ended": Known(JobState.ENDED, END, PATIENCE.latency_wait, seen=seen(Cause.NODE), unwanted=True),
    "handed over": Known(JobState.SUBMITTING, record=WITHOUT_ID, seen=Seen()),
    "not listed yet": Known(JobState.QUEUED, seen=Seen()),
    "pends": Known(JobState.QUEUED, WAIT, 1e6, seen=PENDING),
    "is suspended": Known(JobState.QUEUED, WAIT, 1e6, seen=seen(Phase.SUSPENDED)),
    "without hope": Known(JobState.QUEUED, CANCEL, PATIENCE.hopeless, seen=HOPELESS),
    "its node could not start it": Known(JobState.QUEUED, CANCEL, PATIENCE.hopeless, seen=UNSTARTABLE),
    "stopped by a signal": Known(JobState.QUEUED, WAIT, 1e6, files=said("stopped"), seen=PENDING),
    "runs without a sign of life": Known(JobState.RUNNING, CANCEL, STALL),
    "runs, heard later": Known(JobState.RUNNING, CANCEL, STALL + 50, files=Files(heard=EPOCH + 50)),
    "leaves": Known(JobState.RUNNING, WAIT, 1e6, seen=LEAVING),
    "the scheduler is silent": Known(JobState.RUNNING, WAIT, 1e6, seen=replace(RUNNING, answered=False)),
    "failure, silent": Known(JobState.QUEUED, END, PATIENCE.latency_wait, seen=SILENT, files=said("error")),
    "failure, silent, out of memory": Known(JobState.QUEUED, WAIT, 1e6, seen=SILENT, files=said("memory")),
    "failure, it leaves its node": Known(
        JobState.RUNNING, END, PATIENCE.latency_wait, seen=LEAVING, files=said("error")
    ),
    "failure, still there": Known(JobState.RUNNING, END, PATIENCE.absent_after, files=said("error")),
    "failure, a sign of life": Known(
        JobState.RUNNING, END, PATIENCE.absent_after + 50, files=replace(said("error"), heard=EPOCH + 50)
    ),
    "in no answer": Known(JobState.MISSING, END, PATIENCE.absent_after, seen=MISSING),
    "in no answer, ran": Known(JobState.MISSING, END, PATIENCE.absent_after, seen=replace(RUNNING, missing=EPOCH)),
    "in no answer, a failure": Known(JobState.MISSING, END, PATIENCE.latency_wait, seen=MISSING, files=said("error")),
    "in no answer, its id unknown": Known(JobState.MISSING, CLAIM, PATIENCE.settle, WITHOUT_ID, MISSING),
    "in no answer, its id unknown, taken": Known(
        JobState.MISSING, CLAIM, PATIENCE.absent_after, WITHOUT_ID, MISSING, intent=Intent(accepted=True)
    ),
    "in no answer, a sign of life": Known(
        JobState.MISSING, END, PATIENCE.absent_after + 100, seen=MISSING, files=Files(heard=EPOCH + 100)
    ),
    "in no answer, files unreadable": Known(
        JobState.MISSING, END, PATIENCE.absent_after + 100, seen=MISSING, files=Files(unreadable=EPOCH + 100)
    ),
    "in no answer, a result": Known(JobState.MISSING, END, PATIENCE.absent_after, seen=MISSING, files=said("stopped")),
    "in no answer, cancelled": Known(JobState.CANCELLING, END, PATIENCE.absent_after, CANCELLED, MISSING),
    "cancelled by an earlier driver, leaves": Known(JobState.CANCELLING, CANCEL, 0.0, CANCELLED, LEAVING),
    "cancelled, leaves": Known(
        JobState.CANCELLING, END, PATIENCE.absent_after, CANCELLED, LEAVING, intent=Intent(cancelled=EPOCH)
    ),
    "cancelled, and there still": Known(
        JobState.CANCELLING,
        CANCEL,
        PATIENCE.cancel_again,
        replace(RECORD, ending=Cause.DRIVER_CANCELLED),
        intent=Intent(cancelled=EPOCH),
    ),
    "cancelled, and without hope still": Known(
        JobState.CANCELLING,
        CANCEL,
        PATIENCE.hopeless + PATIENCE.cancel_again,
        GIVEN_UP,
        HOPELESS,
        intent=Intent(cancelled=EPOCH + PATIENCE.hopeless),
    ),
    "cancelled in vain, and it has begun": Known(
        JobState.CANCELLING, WAIT, STALL - 1, GIVEN_UP, intent=Intent(cancelled=EPOCH)
    ),
    "cancelled in vain, and it is heard again": Known(
        JobState.CANCELLING, WAIT, STALL, CANCELLED, files=Files(heard=EPOCH + 50), intent=Intent(cancelled=EPOCH)
    ),
    "its result says success": Known(JobState.ENDED, LOOK, files=said("success")),
    "success, and it has ended": Known(JobState.ENDED, LOOK, seen=seen(Phase.COMPLETED), files=said("success")),
    "it has ended, and has a result": Known(JobState.ENDED, END, seen=seen(Cause.CRASHED), files=said("error")),
    "it has ended, and nothing of it ran": Known(JobState.ENDED, END, seen=seen(Cause.CRASHED, no_log=True)),
    "it has ended": Known(JobState.ENDED, END, PATIENCE.latency_wait, seen=seen(Cause.NODE)),
    "cancelled, and it has ended": Known(
        JobState.ENDED, END, PATIENCE.latency_wait, CANCELLED, seen=seen(Cause.CANCELLED)
    ),
}


def job_of(work: Work, known: Known) -> Job:
    order = work.order("a")
    values = {name: getattr(known, name) for name in ("seen", "files", "intent", "unwanted")}
    return Job(order, known.record, SLURM, **values)


@pytest.mark.parametrize("known", ROWS.values(), ids=ROWS.keys())
def test_where_a_job_stands_and_what_is_done_not_a_moment_before(work: Work, known: Known) -> None:
    job, due = job_of(work, known), EPOCH + known.after
    assert step(job, due, SETTINGS)[:2] == (known.state, known.action)
    if known.after:
        assert step(job, due - 1, SETTINGS)[:2] == (known.state, WAIT)


@pytest.mark.parametrize("name", [name for name, known in ROWS.items() if known.after and known.action is not WAIT])
def test_where_nobody_looked_for_a_while_all_waiting_begins_anew(work: Work, name: str) -> None:
    job, due = job_of(work, ROWS[name]), EPOCH + ROWS[name].after
    job.watched_since = due
    assert step(job, due, SETTINGS)[:2] == (ROWS[name].state, WAIT)


def test_a_job_that_has_failed_and_does_not_end_is_not_taken_for_stalled(work: Work) -> None:
    job, settings = job_of(work, ROWS["failure, still there"]), replace(SETTINGS, stall_timeout_seconds=120.0)
    assert step(job, EPOCH + 200, settings)[:2] == (JobState.RUNNING, WAIT)
    never = replace(SETTINGS, stall_timeout_seconds=None)
    assert step(job, EPOCH + PATIENCE.absent_after, never)[:2] == (JobState.RUNNING, END)


def test_an_end_that_is_accounted_stays_while_the_sites_epilog_runs(work: Work) -> None:
    job = job_of(work, replace(ROWS["it has ended"], seen=seen(Cause.TIMEOUT)))
    assert LEAVING.row is not None and not job.stands(LEAVING.row, EPOCH + 2)
    job.saw(LEAVING.row, EPOCH + 4)
    assert job.ended_since == EPOCH and job.row is not None and job.row.phase is Cause.TIMEOUT
    job.stands(PENDING.row or LEAVING.row, EPOCH + 6)
    assert job.ended_since is None, "it is queued again"


SGE = SCHEDULERS["sge"]
NEVER_ARRIVED = Known(JobState.MISSING, after=PATIENCE.unclear_refusal, record=WITHOUT_ID, seen=MISSING)
REFUSED = replace(
    NEVER_ARRIVED, record=replace(WITHOUT_ID, exclude=("n9",)), seen=Seen(), intent=Intent(refused="too much")
)
UNCLEAR = replace(NEVER_ARRIVED, intent=Intent(unclear="hm", refused_since=EPOCH))
DONE = Known(JobState.ENDED, after=PATIENCE.latency_wait, files=said("success"))
CRASHED = Known(JobState.ENDED, after=PATIENCE.latency_wait, seen=seen(Cause.CRASHED))
WITHOUT_LOG = replace(CRASHED, seen=seen(Cause.CRASHED, no_log=True))
WITHOUT_HOPE = replace(CRASHED, record=GIVEN_UP, seen=seen(Cause.CANCELLED))
GONE = replace(CRASHED, after=PATIENCE.absent_after, seen=MISSING)
GONE_WHILE_IT_WAITED = replace(GONE, seen=replace(PENDING, missing=EPOCH))
QUEUED_AGAIN = replace(CRASHED, seen=replace(PENDING, off_node=EPOCH + 1), files=said("error"))
OPEN, CLOSED, UNCLAIMED = End(), End(unclaimed=False, complete=False), End(unclaimed=True, complete=False)
CHANGED = replace(DONE, files=said("configuration"), seen=seen(Cause.CRASHED))


def in_bundle(known: Known) -> Known:
    return replace(known, record=replace(known.record, bundle="run.rule.bundle-1"))


@pytest.mark.parametrize(
    ("known", "end", "action", "cause"),
    [
        (DONE, End(complete=True), Action.SUCCEED, None),
        (DONE, End(complete=False), Action.CLOSE, None),
        (DONE, CLOSED, Action.FAIL, Cause.NO_OUTPUT),
        (CRASHED, OPEN, Action.CLOSE, None),
        (CRASHED, End(unclaimed=False), Action.LOOK, Cause.CRASHED),
        (CRASHED, End(unclaimed=False, complete=True), Action.SUCCEED, Cause.CRASHED),
        (CRASHED, CLOSED, Action.AGAIN, Cause.CRASHED),
        (CRASHED, replace(CLOSED, log_says_memory=True), Action.AGAIN, Cause.MEMORY),
        (replace(CRASHED, record=replace(RECORD, attempt=3)), CLOSED, Action.FAIL, Cause.CRASHED),
        (replace(CRASHED, unwanted=True), CLOSED, Action.FAIL, Cause.CRASHED),
        (replace(CRASHED, files=said("error")), End(unclaimed=False), Action.FAIL, Cause.EXCEPTION),
        (QUEUED_AGAIN, OPEN, Action.WITHDRAW, None),
        (QUEUED_AGAIN, CLOSED, Action.FAIL, Cause.EXCEPTION),
        # Nothing of it ran.
        (WITHOUT_LOG, replace(CLOSED, no_log=True), Action.AGAIN, Cause.CRASHED),
        (WITHOUT_LOG, replace(CLOSED, no_log=True, no_log_again=True), Action.FAIL, Cause.NO_LOG),
        (
            replace(WITHOUT_LOG, record=replace(RECORD, attempt=3)),
            replace(CLOSED, no_log=True),
            Action.FAIL,
            Cause.NO_LOG,
        ),
        # It found no place.
        (WITHOUT_HOPE, CLOSED, Action.FAIL, Cause.HOPELESS),
        (WITHOUT_HOPE, replace(CLOSED, avoids_nodes=True), Action.AGAIN_ANYWHERE, Cause.HOPELESS),
        (in_bundle(WITHOUT_HOPE), replace(CLOSED, avoids_nodes=True), Action.AGAIN_ALONE, Cause.HOPELESS),
        (REFUSED, OPEN, Action.CLAIM, None),
        (REFUSED, UNCLAIMED, Action.FAIL, Cause.REFUSED),
        (REFUSED, replace(UNCLAIMED, avoids_nodes=True), Action.AGAIN_ANYWHERE, Cause.REFUSED),
        (in_bundle(REFUSED), UNCLAIMED, Action.AGAIN_ALONE, Cause.REFUSED),
        # It left no trace.
        (NEVER_ARRIVED, OPEN, Action.CLAIM, None),
        (replace(NEVER_ARRIVED, files=Files(claim_empty_since=EPOCH)), OPEN, Action.CLOSE, None),
        (NEVER_ARRIVED, replace(UNCLAIMED, is_only_job=True), Action.AGAIN, Cause.UNCONFIRMED),
        (UNCLEAR, UNCLAIMED, Action.AGAIN, Cause.UNCONFIRMED),
        (UNCLEAR, replace(UNCLAIMED, is_only_job=True), Action.FAIL, Cause.REFUSED),
        (GONE, UNCLAIMED, Action.AGAIN, Cause.LOST),
        # Slurm forgets an element of an array that is cancelled while it waits.
        (replace(GONE, record=replace(RECORD, job_id="7_1")), UNCLAIMED, Action.FAIL, Cause.CANCELLED),
        (replace(GONE, record=replace(RECORD, job_id="7_1")), CLOSED, Action.AGAIN, Cause.LOST),
        (
            replace(GONE, record=replace(RECORD, job_id="7_1")),
            replace(CLOSED, is_accounted=True),
            Action.AGAIN,
            Cause.LOST,
        ),
        (GONE_WHILE_IT_WAITED, replace(CLOSED, is_accounted=True), Action.AGAIN, Cause.LOST),
    ],
)
def test_what_follows_an_end_by_what_was_found_out_about_it(
    work: Work, known: Known, end: End, action: Action, cause: Cause | None
) -> None:
    job = replace(job_of(work, known), end=end)
    found = step(job, EPOCH + known.after, SETTINGS)
    assert (found.action, found.cause) == (action, cause)
    if action is Action.SUCCEED:
        assert found.record == replace(known.record, state=JobState.SUCCEEDED)
    elif action is Action.FAIL:
        assert found.record == replace(known.record, state=JobState.FAILED, cause=cause or "")
    elif action is Action.AGAIN_ANYWHERE:
        assert found.record is not None and found.record.exclude == ()
    elif found.record is not None:
        assert (found.record.submission, found.record.history[-1]["ended"]) == (known.record.submission + 1, cause)


@pytest.mark.parametrize(
    ("last_seen", "claimed", "accounting", "cause"),
    [
        (PENDING, False, True, Cause.CANCELLED),
        # It was rescheduled, and deleted before it began again: its claim is of its first start.
        (PENDING, True, True, Cause.CANCELLED),
        # Without accounting, it may have begun and crashed since.
        (PENDING, True, False, Cause.LOST),
        (PENDING, False, False, Cause.CANCELLED),
        # It began, and could not write its claim.
        (RUNNING, False, True, Cause.LOST),
        (RUNNING, True, True, Cause.LOST),
        # An earlier driver's, never seen by this one.
        (MISSING, False, True, Cause.CANCELLED),
        (MISSING, True, True, Cause.LOST),
    ],
)
def test_a_job_of_grid_engine_without_a_trace_was_deleted_while_it_waited_or_is_lost(
    work: Work, last_seen: Seen, claimed: bool, accounting: bool, cause: Cause
) -> None:
    end = replace(CLOSED if claimed else UNCLAIMED, is_accounted=accounting)
    job = replace(job_of(work, GONE), scheduler=SGE, end=end, seen=replace(last_seen, missing=EPOCH))
    assert step(job, EPOCH + GONE.after, SETTINGS).cause is cause


@pytest.mark.parametrize(("known", "cause"), [(DONE, Cause.NO_OUTPUT), (CHANGED, Cause.CONFIGURATION)])
def test_a_job_of_an_earlier_driver_that_is_of_no_use_is_submitted_anew(work: Work, known: Known, cause: Cause) -> None:
    job = replace(job_of(work, replace(known, record=replace(RECORD, attempt=2))), end=CLOSED, adopted=True)
    assert step(job, EPOCH + known.after, SETTINGS)[1:3] == (Action.AGAIN, cause)


def test_amounts_of_a_run_that_was_refused_are_forgotten(work: Work) -> None:
    learnt = replace(WITHOUT_ID, learnt_memory_bytes=2**40, learnt_time_minutes=99)
    found = step(replace(job_of(work, replace(REFUSED, record=learnt)), end=UNCLAIMED), EPOCH, SETTINGS).record
    assert found is not None and (found.learnt_memory_bytes, found.learnt_time_minutes) == (0, 0)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("without hope", Cause.HOPELESS),
        ("not wanted", Cause.DRIVER_CANCELLED),
        ("its node could not start it", Cause.NODE),
        ("runs without a sign of life", Cause.STALLED),
        ("cancelled, and there still", Cause.DRIVER_CANCELLED),
        ("cancelled, and without hope still", Cause.HOPELESS),
    ],
)
def test_why_a_job_is_cancelled(work: Work, name: str, cause: Cause) -> None:
    found = step(job_of(work, ROWS[name]), EPOCH + ROWS[name].after, SETTINGS)
    assert (found.cause, found.record) == (cause, replace(ROWS[name].record, ending=cause))


def test_a_submission_forgets_the_one_before(work: Work) -> None:
    job = job_of(work, Known(JobState.MISSING, seen=MISSING, files=said("error"), intent=Intent(cancelled=EPOCH)))
    job.again(RECORD.next_submission(Cause.LOST), Intent(ready=EPOCH))
    assert (job.seen, job.files, job.intent) == (Seen(), Files(), Intent(ready=EPOCH))


# What next_record makes of a cause: the attempt, what is uncharged and the excluded nodes; None where it is the last.
FOLLOWS: dict[Cause, tuple[int, int, tuple[str, ...]] | None] = {
    Cause.EXCEPTION: None,
    Cause.INPUT: None,
    Cause.FILES: (2, 5, ("n1",)),
    Cause.CONFIGURATION: None,
    Cause.MEMORY: (2, 5, ()),
    Cause.TIMEOUT: (2, 5, ()),
    Cause.NODE: (1, 6, ("n1",)),
    Cause.PREEMPTED: (1, 6, ()),
    Cause.NOT_BEGUN: (1, 6, ()),
    Cause.CANCELLED: None,
    Cause.DEADLINE: None,
    Cause.STALLED: (2, 5, ("n1",)),
    Cause.CRASHED: (2, 5, ("n1",)),
    Cause.LOST: (2, 5, ("n1",)),
    Cause.REFUSED: None,
    Cause.HOPELESS: None,
    Cause.NO_LOG: None,
    Cause.NO_OUTPUT: None,
    Cause.UNCONFIRMED: (1, 5, ()),
    Cause.DRIVER_CANCELLED: (1, 5, ()),
    Cause.DETACHED: None,
    Cause.INTERNAL: None,
}


@pytest.mark.parametrize("cause", Cause)
def test_what_follows_from_each_cause(cause: Cause) -> None:
    following = next_record(replace(RECORD, uncharged=5), cause, BatchSettings(retries=1), "n1")
    found = following and (following.attempt, following.uncharged, following.exclude)
    assert found == FOLLOWS[cause]
    if following is not None:
        assert following.history[-1]["ended"] == cause.value
        # Retries are counted.
        assert following.attempt == 1 or next_record(following, cause, BatchSettings(retries=1)) is None


@pytest.mark.parametrize(
    ("phase", "outcome", "ending", "cause"),
    [
        # The scheduler's word goes before the job's own, and a driver's own ending before both.
        (Cause.CRASHED, "error", "", Cause.EXCEPTION),
        (Cause.TIMEOUT, "error", "", Cause.TIMEOUT),
        (Cause.PREEMPTED, "error", "", Cause.PREEMPTED),
        (Cause.CANCELLED, "error", "", Cause.CANCELLED),
        (Cause.CANCELLED, None, "", Cause.CANCELLED),
        (Cause.CANCELLED, None, "stalled", Cause.STALLED),
        (Cause.CANCELLED, None, "hopeless", Cause.HOPELESS),
        (Cause.CANCELLED, None, "node", Cause.NODE),
        (Cause.CANCELLED, "error", "stalled", Cause.STALLED),
        (Cause.CRASHED, "memory", "hopeless", Cause.MEMORY),
        (Phase.COMPLETED, None, "", Cause.CRASHED),
        (Cause.NOT_BEGUN, None, "", Cause.NOT_BEGUN),
        (Cause.CRASHED, "input", "", Cause.INPUT),
        (Cause.CRASHED, "files", "", Cause.FILES),
        (None, "files", "", Cause.FILES),
        (None, "input", "", Cause.INPUT),
        (Cause.CRASHED, "memory", "", Cause.MEMORY),
        (Cause.CRASHED, "stopped", "", Cause.CRASHED),
        (None, "error", "", Cause.EXCEPTION),
        # The job says why it ended where the scheduler does not.
        (Cause.CRASHED, "preempted", "", Cause.PREEMPTED),
        (Cause.CRASHED, "time limit", "", Cause.TIMEOUT),
        (Cause.PREEMPTED, "time limit", "", Cause.PREEMPTED),
        (Cause.TIMEOUT, "preempted", "", Cause.TIMEOUT),
        (Cause.CANCELLED, "preempted", "", Cause.CANCELLED),
        (None, "preempted", "", Cause.PREEMPTED),
        # A driver was cancelling the job.
        (Cause.CANCELLED, None, "driver_cancelled", Cause.DRIVER_CANCELLED),
        (Cause.CANCELLED, "stopped", "driver_cancelled", Cause.DRIVER_CANCELLED),
        (None, "stopped", "driver_cancelled", Cause.DRIVER_CANCELLED),
        # It went on in spite of the intent, and ended for a reason of its own.
        (Cause.CRASHED, "error", "driver_cancelled", Cause.EXCEPTION),
        (Cause.MEMORY, None, "driver_cancelled", Cause.MEMORY),
        (Cause.CRASHED, None, "driver_cancelled", Cause.CRASHED),
    ],
)
def test_why_a_job_ended(phase: Phase | Cause | None, outcome: str | None, ending: str, cause: Cause) -> None:
    said = result_cause({"outcome": outcome}) if outcome else None
    assert cause_of(phase, said, ending, log_says_memory=False) is cause


@pytest.mark.parametrize(
    ("phase", "cause"),
    # An allocation that failed, and was survived, is in the log of a job that somebody cancels hours later.
    [
        (Cause.CANCELLED, Cause.CANCELLED),
        (Cause.CRASHED, Cause.MEMORY),
        (None, Cause.MEMORY),
        (Cause.MEMORY, Cause.MEMORY),
    ],
)
def test_a_definite_cancellation_goes_before_what_the_log_says_of_memory(
    phase: Phase | Cause | None, cause: Cause
) -> None:
    assert cause_of(phase, None, "", log_says_memory=True) is cause


@pytest.mark.parametrize("cause", Cause)
def test_each_cause_has_words_for_people_and_a_code_for_records(cause: Cause) -> None:
    assert cause in CAUSES and cause.value == cause.name.lower()
    assert words_of(cause.value) == cause.words() and "{" not in cause.explanation(SLURM)


def test_the_page_on_jobs_has_every_state_in_its_diagram_and_its_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "understand" / "job.md").read_text()
    diagram = page.split("```mermaid")[1].split("```")[0]
    in_table = re.findall(r"\b[A-Z]{5,}\b", " ".join(re.findall(r"^\| ([A-Z, ]+) \|", page, re.MULTILINE)))
    states = {state.name for state in JobState}
    assert set(re.findall(r"\b[A-Z]{5,}\b", diagram)) == states == set(in_table)


@pytest.mark.parametrize(
    ("cause", "amounts"),
    [(Cause.MEMORY, [(3 * GIB // 2, 60), (2 * GIB, 60)]), (Cause.TIMEOUT, [(GIB, 90), (GIB, 100)])],
)
def test_more_is_given_up_to_its_cap_and_then_no_more(cause: Cause, amounts: list[tuple[int, int]]) -> None:
    limits = BatchSettings(retries=3, memory_cap_bytes=2 * GIB, time_cap_minutes=100)
    record, given = next_record(RECORD, cause, limits), list[tuple[int, int]]()
    while record is not None:
        given.append((record.memory_bytes, record.time_minutes))
        record = next_record(record, cause, limits)
    assert given == amounts


def test_a_failed_node_is_excluded_and_charged_to_nobody_but_not_for_ever() -> None:
    record: Record | None = RECORD
    for number in range(1, 4):
        assert record is not None
        record = next_record(record, Cause.NODE, BatchSettings(retries=0, max_uncharged=3), f"n{number}")
    assert record is not None and (record.attempt, record.exclude) == (1, ("n1", "n2", "n3"))
    assert next_record(record, Cause.NODE, BatchSettings(retries=0, max_uncharged=3), "n4") is None


def test_where_a_file_system_failed_is_avoided_and_each_time_the_pause_is_longer() -> None:
    limits, record, pauses = BatchSettings(retries=9), RECORD, [pause_before(RECORD, 60)]
    for number in range(1, 5):
        following = next_record(record, Cause.FILES, limits, f"n{number}")
        assert following is not None
        record = following
        pauses.append(pause_before(record, 60))
    assert pauses == [0, 60, 300, 1500, 1800]
    assert (record.exclude, record.attempt) == (("n1", "n2", "n3", "n4"), 5)
    crashed = next_record(record, Cause.CRASHED, limits)
    assert crashed is not None and pause_before(crashed, 60) == 0
