"""Waiting jobs refuse a configuration that somebody edits meanwhile, unless the edit changes nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from demo_runs import use

from espo_luigi import tasks
from espo_luigi.errors import ConfigurationChangedError
from espo_luigi.files import read_json
from espo_luigi.job import check_configuration
from espo_luigi.jobs.order import JobOrder
from espo_luigi.tasks.context import context, forget


@pytest.fixture()
def order(configured: Callable[..., list[Path]], tmp_path: Path) -> JobOrder:
    use(configured(), tmp_path)
    order = tasks.ReferenceCalendar(piece="south", calendar="noleap").order()
    order.write()
    return JobOrder.parsed(read_json(order.files.order) or {})


def refused(order: JobOrder) -> str:
    """Return the error of a job that starts now, or ""."""
    forget()
    try:
        check_configuration(tasks.ReferenceCalendar(piece="south", calendar="noleap"), order)
    except ConfigurationChangedError as error:
        return str(error)
    return ""


def test_an_order_carries_the_hash_that_the_markers_carry(order: JobOrder) -> None:
    assert order.configuration == context().config.hash
    assert refused(order) == ""


@pytest.mark.parametrize(
    ("before", "after"),
    [("nquantiles: 50", "nquantiles: 50  # enough"), ("split_large_chunks: false", "split_large_chunks: true")],
)
def test_a_comment_and_settings_of_dask_change_nothing(
    order: JobOrder, tmp_path: Path, before: str, after: str
) -> None:
    text = (tmp_path / "config.yml").read_text()
    assert before in text
    (tmp_path / "config.yml").write_text(text.replace(before, after))
    assert refused(order) == ""


def test_an_edit_that_could_change_a_product_has_the_job_refuse_with_both_hashes(
    order: JobOrder, tmp_path: Path
) -> None:
    text = (tmp_path / "config.yml").read_text()
    assert "nquantiles: 50" in text
    (tmp_path / "config.yml").write_text(text.replace("nquantiles: 50", "nquantiles: 40"))
    words = refused(order)
    assert order.configuration != context().config.hash
    assert f"ordered under configuration {order.configuration}" in words
    assert f"its job finds {context().config.hash}" in words
