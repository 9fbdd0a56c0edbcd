"""A driver runs the tasks of its own run, whatever luigid hands out: others reach luigid's port, too."""

from pathlib import Path

import pytest
from luigi.scheduler import Scheduler
from toy_tasks import Echo

from espo_luigi.driver.worker import EspoWorker


@pytest.mark.usefixtures("one_fork_server")
def test_a_task_that_this_run_has_not_asked_for_is_neither_imported_nor_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger.py").write_text(
        "from pathlib import Path\nimport luigi\n"
        f"Path({str(tmp_path / 'imported')!r}).touch()\n"
        "class Stranger(luigi.Task):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    scheduler, own = Scheduler(retry_count=1), Echo(n=1, text="done", folder=str(tmp_path))
    with EspoWorker(scheduler=scheduler, worker_processes=1) as worker:
        assert worker.add(own)
        strange = {"family": "Stranger", "module": "stranger", "params": {}, "priority": 100}
        scheduler.add_task(worker=worker._id, task_id="Stranger__1", **strange)
        assert worker.run()
    assert not (tmp_path / "imported").exists()
    assert Path(own.output().path).read_text() == "done"
    assert "Not of the run" in scheduler.fetch_error("Stranger__1")["error"]
