"""The demo of one simulation, every rule, as jobs of a real Grid Engine: what it leaves, as on Slurm."""

from pathlib import Path

import pytest
from test_demo_on_slurm import Made, check_bytes, check_end, make_by_command
from test_production_shape import make_raw
from throwaway_sge import ThrowawayGridEngine, missing_packages

_MISSING = missing_packages()
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.sge,
    pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING)),
    pytest.mark.timeout(1500),
]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_raw(tmp_path_factory.mktemp("shape") / "raw")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, raw: Path) -> Made:
    """The demo as jobs of Grid Engine, whose `h_vmem` limits what a process maps, beyond what it uses."""
    with ThrowawayGridEngine.start() as cluster:
        options = "node_memory = 8GB\nqueue = main.q"
        return make_by_command(tmp_path_factory.mktemp("run"), raw, "sge", options, cluster.environ)


def test_the_demo_ends_well_with_its_products_one_attempt_a_job_and_nothing_temporary(made: Made) -> None:
    check_end(made)


def test_jobs_of_grid_engine_make_the_same_bytes(tmp_path: Path, raw: Path, made: Made) -> None:
    check_bytes(tmp_path, raw, made)
