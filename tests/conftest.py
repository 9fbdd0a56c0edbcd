"""The longest files go first; and where every real part has to be there (`.ci/run`), a skipped test has failed."""

import gc
import importlib
import logging
import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import cftime
import pytest
import throwaway_sge
import throwaway_slurm
from kept_servers import KeptServers
from luigi.configuration import LuigiConfigParser, get_config
from throwaway_daemons import Throwaway

from espo_luigi.jobs.order import JobFiles, JobOrder
from espo_luigi.jobs.resources import Resources

# Files of a minute or so first: begun last, they would leave the other processes with nothing to do. Those of a
# cluster, which wait more than they compute, run beside those that compute.
LONG = (
    "tasks/test_end_to_end.py",
    "methods/test_pools.py",
    "driver/test_many_nodes.py",
    "driver/test_slurm_engine.py",
    "tasks/test_demo_on_clusters.py",
    "tasks/test_outcomes.py",
    "tasks/test_espo_v2.py",
    "store/test_store_interrupted.py",
    "tasks/test_espo_v2_runs.py",
    "tasks/test_staleness.py",
    "jobs/lifecycle/test_real_sge.py",
    "driver/test_people_on_slurm.py",
    "driver/test_library.py",
    "tasks/test_plan.py",
    "jobs/lifecycle/test_real_slurm.py",
    "tasks/test_cmip7.py",
    "tasks/test_staleness_runs.py",
    "jobs/lifecycle/test_real_slurm_drivers.py",
    "methods/test_known_future.py",
    "methods/test_steps.py",
    "methods/test_quantile_mapping.py",
    "tasks/test_production_shape.py",
    "jobs/lifecycle/test_real_slurm_losses.py",
    "tasks/test_rules.py",
    "demo/test_demo_v2.py",
)


# What is imported stays until the end: the garbage collector need not go through it again and again. `gc.disable` would
# last: Dask's decorator `disable_gc` puts back the state in which it was imported.
gc.set_threshold(0)

# cftime looks its version up on the disk each time that it is asked for, as xarray does for any part of dates.
cftime.__version__ = cftime.__version__

# Hundreds of processes that the tests start would each compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    """Have xsdba compile what it does when it is first imported, once, and not in each of the processes with tests."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        importlib.import_module("xsdba")


def pytest_collection_finish() -> None:
    """Look for garbage from now on, after as many objects as a series of dates has."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the items of long files first; skip those on a cluster that cannot be started here."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))
    for item in items:
        if mark := item.get_closest_marker("slurm"):
            on_sge = item.get_closest_marker("sge") is not None
            missing = throwaway_sge.missing_packages() if on_sge else throwaway_slurm.missing_packages(**mark.kwargs)
            item.add_marker(pytest.mark.skipif(missing is not None, reason=str(missing)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let only tests that are marked start a cluster: others are for machines that have none."""
    Throwaway.may_start = item.get_closest_marker("slurm") is not None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.CallInfo[None], None]:
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("ESPO_REQUIRE_REAL_PARTS") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skipped where every real part has to be there: {report.longrepr}"


@pytest.fixture()
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What the package logs from INFO up, which a run would else send to standard error by a handler of its own."""
    monkeypatch.setattr("espo_luigi.driver.install.show_progress_on_stderr", lambda: None)
    monkeypatch.setattr(logging.getLogger("espo_luigi"), "propagate", True)
    caplog.set_level(logging.INFO, "espo_luigi")
    return caplog


@pytest.fixture()
def own_settings() -> Iterator[LuigiConfigParser]:
    """Luigi's configuration, of which nothing is left that a test sets."""
    configuration = get_config()
    before = {section: dict(configuration.items(section, raw=True)) for section in configuration.sections()}
    yield configuration
    configuration.clear()
    configuration.read_dict(before)


@pytest.fixture()
def order(tmp_path: Path) -> JobOrder:
    """An order of a job, in its file."""
    order = JobOrder("id", "Rule", "module", "Rule", {}, {}, Resources(), JobFiles.of(tmp_path, "Rule", {"n": "1"}))
    order.write()
    return order


@pytest.fixture()
def tmpfs(tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """A function that mounts a file system in memory, as `mount`'s options say, at a folder of that name."""
    mounted = []

    def mount(name: str, options: str) -> Path:
        (tmp_path / name).mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path / name)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a tmpfs cannot be mounted here: that needs root and CAP_SYS_ADMIN")
        mounted.append(tmp_path / name)
        return mounted[-1]

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[throwaway_slurm.ThrowawayCluster]:
    """A Slurm of the module's own, as its `CLUSTER` says."""
    with throwaway_slurm.ThrowawayCluster.start(request.module.CLUSTER) as started:
        yield started


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[KeptServers]:
    """The processes that start local jobs, kept until the tests end."""
    servers = KeptServers()
    yield servers
    servers.close()


@pytest.fixture(scope="module")
def one_fork_server(fork_servers: KeptServers) -> Iterator[None]:
    """The runs of a module start their local jobs from one server, as far as commands and environment are the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("espo_luigi.jobs.local.ForkServer", fork_servers)
        yield
