"""Rules that are killed go on from their complete blocks, if their inputs are still the same."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import dask
import pytest

from espo_luigi import store, tasks
from espo_luigi.errors import ClaimLostError
from espo_luigi.jobs.schedulers.script import CLAIM_VARIABLE, OWNER_VARIABLE
from espo_luigi.store.blocks import BlockWriter
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import context
from espo_luigi.tasks.inputs import COLUMNS


def work(task: EspoTask) -> dict[str, int]:
    """Do the work; return how many blocks were found and computed."""
    with dask.config.set(scheduler="synchronous"), task.publishing() as blocks, task.guarded():
        task.work()
    return dict(blocks())


def killed_after(task: EspoTask, blocks: int) -> None:
    """Do the work in another process, which kills itself when it has written so many blocks."""
    child = os.fork()
    if child == 0:
        write = BlockWriter.__call__
        written: list[object] = []

        def counting(self: BlockWriter, block: object, block_id: tuple[int, ...]) -> object:
            done = write(self, block, block_id)  # type: ignore[arg-type]
            written.append(block_id)
            if len(written) == blocks:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        BlockWriter.__call__ = counting  # type: ignore[method-assign,assignment]
        try:
            work(task)
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "it ended by itself"


def contents(path: Path) -> dict[str, bytes]:
    found = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    marker = json.loads(found[store.MARKER_NAME])
    del marker["created"]
    return {**found, store.MARKER_NAME: json.dumps(marker).encode()}


@pytest.fixture(params=["Extract", "RefDefault"])
def task(request: pytest.FixtureRequest, configured: Callable[..., list[Path]]) -> EspoTask:
    configured()
    extract = request.param == "Extract"
    rule = tasks.Extract(sim_id=next(iter(context().simulations))) if extract else tasks.RefDefault(piece="south")
    store.write_table(COLUMNS, [], rule.in_checked().path, store.Marker("InputCheck"))
    return rule


@pytest.mark.parametrize("task", ["RefDefault"], indirect=True)
def test_a_rule_that_was_killed_goes_on_from_its_blocks(task: EspoTask) -> None:
    path = task.output()[-1].path
    blocks = work(task)["computed"]
    expected = contents(path)
    store.remove(path)
    killed_after(task, blocks - 2)
    counted = work(task)
    assert counted["found"] >= blocks - 4 > 0
    assert counted["computed"] <= 4
    assert contents(path) == expected


@pytest.mark.parametrize("task", ["RefDefault"], indirect=True)
def test_a_rule_publishes_nothing_once_another_job_has_its_claim(
    task: EspoTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "claim").write_text("another job's")
    monkeypatch.setenv(CLAIM_VARIABLE, str(tmp_path / "claim"))
    monkeypatch.setenv(OWNER_VARIABLE, "mine")
    with pytest.raises(ClaimLostError):
        work(task)
    assert not task.complete()


def test_work_on_other_raw_files_is_other_work(task: EspoTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = tmp_path / "raw.nc"
    monkeypatch.setattr(type(task), "raw_files", lambda self: [raw])
    fingerprints = []
    for content in ("some", "others"):
        raw.write_text(content)
        with task.guarded():
            fingerprints.append(task._fingerprint(task.marker()))
    assert len({*fingerprints, ""}) == 3
