"""A job that a real Grid Engine runs again goes on from the blocks that it has completed."""

import json
from pathlib import Path

import pytest
from drivers import Driver
from test_preemption import BLOCKS, Preempted, contents, undisturbed
from throwaway_daemons import ended, eventually
from throwaway_sge import ThrowawayGridEngine

pytestmark = [pytest.mark.slurm, pytest.mark.sge]


class Rerun(Driver):
    """A run of one task of many blocks on Grid Engine."""

    def __init__(self, folder: Path, cluster: ThrowawayGridEngine) -> None:
        folder.mkdir()
        super().__init__(folder, cluster)  # type: ignore[arg-type]
        text = (folder / "luigi.cfg").read_text().replace("engine = slurm", "engine = sge")
        # h_vmem limits the memory that a process maps, used or not.
        (folder / "luigi.cfg").write_text(text.replace("[slurm]", "[sge]\nqueue = main.q\nmemory = 8GB"))

    computed = Preempted.computed


@pytest.mark.long
def test_a_job_that_is_run_again_goes_on_from_its_complete_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThrowawayGridEngine.start() as cluster:
        run = Rerun(tmp_path / "run", cluster)
        process = run.start("Blocks", "--n", str(BLOCKS))
        eventually(lambda: run.computed() >= 10)
        job_id = run.record().job_id
        assert job_id is not None
        cluster.run("qmod", "-rj", job_id)
        ended(process)
    (result,) = (json.loads(file.read_text()) for file in (run.folder / "work" / "jobs").rglob("*.result.json"))
    assert result["job_id"] == job_id
    assert result["blocks"]["found"] >= 9 and sum(result["blocks"].values()) == BLOCKS
    assert BLOCKS <= run.computed() <= BLOCKS + 1
    assert contents(run.folder / f"blocks-{BLOCKS}.zarr") == undisturbed(tmp_path / "undisturbed", monkeypatch)
