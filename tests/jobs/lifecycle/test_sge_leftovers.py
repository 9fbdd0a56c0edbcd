"""What Grid Engine's part leaves behind, asks too much of, or says of itself that is not so."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from job_work import Work

from espo_luigi.jobs.bundles.members import Bundles
from espo_luigi.jobs.lifecycle.observe import Watcher
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.lifecycle.state import Job, Seen
from espo_luigi.jobs.lifecycle.submit import NodeWatch, Submitter
from espo_luigi.jobs.retry import Minutely
from espo_luigi.jobs.schedulers import gridengine as sge
from espo_luigi.jobs.schedulers.base import Phase, Row
from espo_luigi.jobs.schedulers.commands import Answer, Commands
from espo_luigi.jobs.schedulers.gridengine import SgeOptions
from espo_luigi.jobs.schedulers.script import ScriptValues


def job_of(work: Work, name: str = "a", job_id: str = "7", row: Row | None = None) -> Job:
    record = Record(f"run.rule.{name}", "rule", {"name": name}, 2**30, 10, "log-%j", job_id=job_id)
    return Job(work.order(name), record, sge, seen=Seen(row))


def test_of_many_jobs_only_those_of_the_same_run_are_asked_for() -> None:
    names = [f"run.Train.{n:03}.1" for n in range(500)]
    queries = sge.accounting([str(n) for n in range(500)], ["run.Adjust.0.1"], names)
    assert [query.argv for query in queries] == [("qacct", "-j", "espo.run.*")]
    queries = sge.accounting(["1", "2", "3", "4"], [], names[:4])
    assert [query.argv for query in queries] == [("qacct", "-j", "espo.run.Train.00*")]


def test_a_job_that_cannot_say_which_of_its_starts_works_leaves_no_file_behind(tmp_path: Path) -> None:
    values = ScriptValues("run.1", 1, ("true",), 1, 100, 10, f"{tmp_path}/log/$JOB_ID.out", f"{tmp_path}/claim", "/")
    script = sge.render(replace(values, options=SgeOptions()))
    (tmp_path / "claim").write_text("1\n")
    never = "mv() { false; }; sleep() { :; }\n"
    done = subprocess.run(
        ["bash"], input=never + script, text=True, capture_output=True, env=os.environ | {"JOB_ID": "1"}, check=False
    )
    assert done.returncode == 1 and "Cannot write" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["claim"]


class Accounting(Commands):
    """Grid Engine's commands, of which qacct says where jobs could not be started."""

    def __init__(self, hosts: dict[str, str]) -> None:
        super().__init__(sge)
        self.hosts = hosts
        self.questions: list[Sequence[str]] = []

    def run(self, argv: tuple[str, ...], environ: object = None) -> Answer:
        self.questions.append(argv)
        jobs = self.hosts if argv[2].endswith("*") else {argv[2]: self.hosts.get(argv[2], "")}
        blocks = [
            f"{'=' * 60}\nhostname     {host}\njobname      espo.run.rule.{job_id}.1\njobnumber    {job_id}\n"
            "start_time   -/-\nfailed       26  : opening input/output file\nexit_status  0\n"
            for job_id, host in jobs.items()
            if host
        ]
        return Answer(0, "".join(blocks)) if blocks else Answer(1, stderr="error: job id not found")


def watcher(work: Work, commands: Commands) -> tuple[Watcher, NodeWatch]:
    store = RecordStore(work.state_dir)
    submitter = Submitter(commands, store)
    return Watcher(commands, store, submitter, Bundles(store, tuple), Minutely()), submitter.nodes


def in_error(work: Work, job_id: str) -> Job:
    return job_of(work, job_id, job_id, sge.LISTING.parse(ERROR.format(job_id=job_id))[0])


ERROR = """<job_info><job_list state="pending"><JB_job_number>{job_id}</JB_job_number>
<JB_name>espo.run.rule.{job_id}.1</JB_name><state>Eqw</state><queue_name></queue_name></job_list></job_info>"""


def test_a_host_that_puts_three_jobs_into_an_error_state_is_avoided_and_their_tasks_go_elsewhere(work: Work) -> None:
    commands = Accounting({"1": "bad", "2": "bad", "3": "bad", "4": "good"})
    watch, nodes = watcher(work, commands)
    jobs = [in_error(work, job_id) for job_id in ("1", "2", "3", "4")]
    watch.find_failed_starts(jobs, now=0.0)
    assert nodes.excluded == ("bad",)
    rows = [job.row for job in jobs if job.row]
    assert [(row.node, row.launch_failed) for row in rows] == [("bad", True)] * 3 + [("good", False)]
    assert all(row.no_log and row.said == "Eqw (opening input/output file, exit status 0)" for row in rows)
    assert len(commands.questions) == 1


def test_the_accounting_is_asked_for_each_such_job_until_it_has_it_and_five_times_at_most(work: Work) -> None:
    commands = Accounting({})
    watch, _ = watcher(work, commands)
    for _ in range(8):
        watch.find_failed_starts([in_error(work, "1")], now=0.0)
    assert len(commands.questions) == 5
    commands.hosts["2"] = "bad"
    for _ in range(5):
        job = in_error(work, "2")
        watch.find_failed_starts([job], now=0.0)
        assert job.row is not None and job.row.node == "bad"
    assert len(commands.questions) == 6
    assert Phase.PENDING is job.row.phase
