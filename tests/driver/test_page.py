"""What luigid's page is given about a task: its parameters, and where its job stands."""

import inspect
import json
import re
from collections import defaultdict
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import luigi
import luigi.setup_logging
import pytest
from luigi.configuration import get_config
from luigi.scheduler import Scheduler
from luigi.worker import Worker
from toy_tasks import Blocks, Count, Grumble, Slow

from espo_luigi.driver.luigid import PageReporter, PatientScheduler
from espo_luigi.driver.scheduler import LinearScheduler
from espo_luigi.driver.worker import EspoWorker


def shown(task: luigi.Task) -> dict[str, str]:
    """The parameters in the page's column "Details"."""
    scheduler = Scheduler()
    with Worker(scheduler=scheduler) as worker:
        assert worker.add(task)
    return dict(scheduler.task_list("", "")[task.task_id]["params"])


def test_the_page_shows_the_parameters_that_identify_a_task(tmp_path: Path) -> None:
    assert shown(Count(n=3, folder=str(tmp_path))) == {"n": "3", "folder": str(tmp_path)}
    assert shown(Slow(n=3, folder=str(tmp_path))) == {"n": "3", "folder": str(tmp_path)}


def test_the_page_shows_resources_and_options_that_the_user_has_set(tmp_path: Path) -> None:
    get_config().set("Count", "memory", "3GB")
    task = Count(n=3, folder=str(tmp_path), partition="long", extra={"reservation": "mine"})
    expected = {"memory": "3GB", "partition": "long", "extra": '{"reservation": "mine"}'}
    assert shown(task) == {"n": "3", "folder": str(tmp_path), **expected}


def test_what_a_task_needs_to_be_run_again_from_the_page_is_not_lost(tmp_path: Path) -> None:
    task = Count(n=3, folder=str(tmp_path), memory="3GB")
    assert Count.from_str_params(task.to_str_params()) == task
    assert task.to_str_params()["n_workers"] == "1"


class Page(LinearScheduler):
    """A scheduler that keeps all that it was told to show."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[str, list[str]] = defaultdict(list)
        self.percents: dict[str, list[int]] = defaultdict(list)

    def set_task_status_message(self, task_id: str, status_message: str) -> None:
        self.said[task_id].append(status_message)

    def set_task_progress_percentage(self, task_id: str, progress_percentage: int) -> None:
        self.percents[task_id].append(progress_percentage)


def run(*tasks: luigi.Task) -> Page:
    page = Page()
    with EspoWorker(scheduler=page, worker_processes=len(tasks)) as worker:
        for task in tasks:
            worker.add(task)
        worker.run()
    return page


@pytest.mark.usefixtures("one_fork_server")
def test_a_job_of_seconds_shows_its_progress_and_who_waits_for_a_cpu_says_so(tmp_path: Path) -> None:
    get_config().set("espo", "local_cpus", "1")
    tasks = [Blocks(n=20, folder=str(tmp_path)), Count(n=5, folder=str(tmp_path))]
    page = run(*tasks)
    for task in tasks:
        assert page.said[task.task_id][0] == "waiting for free CPUs"
        assert re.fullmatch(r"done: on \S+, \d+\.\d s, 0\.\d of 1 GiB", page.said[task.task_id][-1])
        assert page.percents[task.task_id][-1] == 100
    of_blocks = tasks[0].task_id
    assert [percent for percent in page.percents[of_blocks] if 0 < percent < 100]
    assert any(re.match(r"running on \S+, \d+ %, 0\.\d of 1 GiB\nDask: \d+ tasks", one) for one in page.said[of_blocks])


@pytest.mark.usefixtures("one_fork_server")
def test_a_failed_task_says_why_and_its_text_is_no_html(tmp_path: Path) -> None:
    task = Grumble(n=1, folder=str(tmp_path))
    page = run(task)
    assert page.said[task.task_id][-1] == f"failed: {task.label()} failed: ValueError: 1 &lt; 2 &amp; 3"


class Wire(PatientScheduler):
    """luigid without a network."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__("http://luigid")
        self.scheduler = scheduler

    def _once(self, url_suffix: str, body: Any) -> str:
        said = json.loads(body["data"])
        return json.dumps({"response": getattr(self.scheduler, url_suffix.rpartition("/")[2])(**said)})


def test_a_link_takes_nothing_of_the_task_from_luigid(tmp_path: Path) -> None:
    scheduler, task = Scheduler(), Count(n=1, folder=str(tmp_path))
    with Worker(scheduler=scheduler, worker_id="w") as worker:
        worker.add(task)
        scheduler.get_work(worker="w")
        entry = scheduler._state.get_task(task.task_id)
        before = (entry.retry_policy, entry.resources, entry.accepts_messages, entry.priority, entry.deps)
        reporter = PageReporter(task, Wire(scheduler), "w", None)
        reporter.update_tracking_url("http://127.0.0.1:1/status")
        assert scheduler.task_list("", "")[task.task_id]["tracking_url"] == "http://127.0.0.1:1/status"
        assert (entry.retry_policy, entry.resources, entry.accepts_messages, entry.priority, entry.deps) == before
        assert entry.retry_policy.retry_count == 1
        reporter.update_tracking_url("")
        assert not scheduler.task_list("", "")[task.task_id]["tracking_url"]


def test_each_line_of_luigids_configuration_is_an_option_of_luigi() -> None:
    written = ConfigParser()
    written.read(Path(__file__).parents[2] / "config" / "luigid.cfg")
    known = dict(luigi.scheduler.scheduler.get_params())
    assert {name: known[name].parse(text) for name, text in written["scheduler"].items()} == {
        "state_path": "luigid.pickle",
        "record_task_history": False,
        "retry_count": 1,
        "max_shown_tasks": 1000,
        "max_graph_nodes": 1000,
        "worker_disconnect_delay": 300.0,
        "remove_delay": 86400.0,
        "prune_on_get_work": False,
        "send_messages": False,
    }
    assert list(written["core"]) == ["no_configure_logging"]
    assert '"core", "no_configure_logging"' in inspect.getsource(luigi.setup_logging)
