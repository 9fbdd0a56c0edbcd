"""What luigid's page is given about a task: its parameters, and where its job stands."""

from pathlib import Path

import luigi
from luigi.configuration import get_config
from luigi.scheduler import Scheduler
from luigi.worker import Worker
from toy_tasks import Count, Slow


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
    try:
        task = Count(n=3, folder=str(tmp_path), partition="long", extra={"reservation": "mine"})
        expected = {"memory": "3GB", "partition": "long", "extra": '{"reservation": "mine"}'}
        assert shown(task) == {"n": "3", "folder": str(tmp_path), **expected}
    finally:
        get_config().remove_section("Count")


def test_what_a_task_needs_to_be_run_again_from_the_page_is_not_lost(tmp_path: Path) -> None:
    task = Count(n=3, folder=str(tmp_path), memory="3GB")
    assert Count.from_str_params(task.to_str_params()) == task
    assert task.to_str_params()["n_workers"] == "1"
