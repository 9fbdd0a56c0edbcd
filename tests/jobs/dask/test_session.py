"""The Dask cluster of a job: the effect of too little memory in each layout, and of the user's keywords."""

import http.client
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dask
import psutil
import pytest
from distributed import KilledWorker, get_client
from distributed.comm import CommClosedError
from strangers import as_root, listening, no_luck, strangers_luck

from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.dask.session import Failing, dask_session, fail_on_exit, prepared
from espo_luigi.jobs.dask.settings import check_client, on_loopback, threaded_session
from espo_luigi.jobs.node.run import _outcome
from espo_luigi.jobs.resources import Resources

MIB = 2**20


def hold(n_bytes: int) -> int:
    """Fill `n_bytes` of memory, slowly enough for a nanny to see it."""
    held = []
    for _ in range(n_bytes // (32 * MIB)):
        held.append(bytearray(b"x") * (32 * MIB))
        time.sleep(0.02)
    time.sleep(5)
    return len(held)


def test_a_node_without_the_loopback_of_ipv4_is_named() -> None:
    begin = "from espo_luigi.jobs.dask.session import dask_session; from espo_luigi.jobs.resources import Resources"
    code = f"{begin}; dask_session(Resources(2, 1, '400MB')).__enter__()"
    without = 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$@"'
    command = ["unshare", "--net", "sh", "-c", without, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "has no address 127.0.0.1" in done.stderr and "interface lo" in done.stderr


def test_what_fits_in_memory_is_computed_by_threads_of_this_process_without_a_client() -> None:
    two = threading.Barrier(2, timeout=60)
    # In a session, they decide nothing either.
    users = {"scheduler": "dask.distributed", "num-workers": 7}

    def meet() -> int:
        with pytest.raises(ValueError):
            get_client()
        two.wait()
        return os.getpid()

    with threaded_session(Resources(1, 2, "1GB"), {"array.chunk-size": "1 MiB", **users}):
        assert dask.compute(*(dask.delayed(meet, pure=False)() for _ in range(2))) == (os.getpid(),) * 2
        assert (dask.config.get("array.chunk-size"), dask.config.get("num_workers")) == ("1 MiB", 2)


def test_the_only_worker_is_not_paused_by_memory_that_it_cannot_spill() -> None:
    with dask_session(Resources(1, 1, "400MB")) as client:
        worker = next(iter(client.cluster.workers.values()))
        held = bytearray(b"x") * (400 * MIB)
        # The worker looks at its memory every 100 ms.
        time.sleep(1)
        assert worker.monitor.get_process_memory() > worker.memory_manager.memory_limit
        assert client.submit(len, held[:1000]).result(timeout=60) == 1000
        assert worker.status.name == "running"


@pytest.mark.parametrize("n_workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_dask_task_that_calls_sys_exit_fails_and_its_worker_goes_on(n_workers: int) -> None:
    with dask_session(Resources(n_workers, n_workers, "1GB")) as client:
        fail_on_exit(client)
        with pytest.raises(RuntimeError, match=r"a Dask task called sys\.exit\(.no data.\)"):
            client.submit(sys.exit, "no data").result(timeout=60)
        assert client.submit(abs, -1).result(timeout=60) == 1


def test_a_worker_that_is_lost_while_the_session_begins_does_not_fail_the_job(caplog: pytest.LogCaptureFixture) -> None:
    client = Mock()
    client.register_plugin.side_effect = CommClosedError("in <TCP>: Stream is closed")
    fail_on_exit(client)
    assert "a Dask worker was lost" in caplog.text


def test_the_only_worker_still_spills_as_the_user_says() -> None:
    with dask_session(Resources(1, 1, "1GB"), {"distributed.worker.memory.target": 0.4}) as client:
        manager = next(iter(client.cluster.workers.values())).memory_manager
        assert manager.memory_target_fraction == 0.4
        assert manager.memory_spill_fraction == dask.config.get("distributed.worker.memory.spill")
        assert not manager.memory_pause_fraction


def test_a_task_that_kills_its_workers_by_memory_is_to_be_retried_with_more() -> None:
    with (
        # As many deaths as workers at the start, because waiting for restarts takes most of the time.
        dask_session(Resources(2, 2, "800MB"), {"distributed.scheduler.allowed-failures": 1}) as client,
        pytest.raises(KilledWorker) as caught,
    ):
        client.submit(hold, 800 * MIB).result(timeout=60)
    assert _outcome(caught.value) == "memory"


@pytest.mark.parametrize(
    ("n_workers", "keywords"), [(2, {"interface": "lo"}), (1, {"interface": "lo"}), (1, {"host": "127.0.0.1"})]
)
def test_workers_talk_where_the_user_says(n_workers: int, keywords: dict[str, str]) -> None:
    with dask_session(Resources(n_workers, 2, "2GB"), client=keywords) as client:
        addresses = [client.scheduler.address, *client.scheduler_info()["workers"]]
        assert client.submit(abs, -1).result(timeout=60) == 1
    assert len(addresses) == 1 + n_workers
    assert all(address.startswith("tls://127.0.0.1:") for address in addresses)


@pytest.mark.parametrize(("dashboard", "expected"), [(False, 404), (True, 200)])
def test_the_worker_has_a_dashboard_only_where_asked_for_and_always_on_the_loopback(
    dashboard: bool, expected: int
) -> None:
    with dask_session(Resources(1, 1, "1GB"), dashboard=dashboard) as client:
        server = next(iter(client.cluster.workers.values())).http_server
        (listening,) = server._sockets.values()
        address = listening.getsockname()
        connection = http.client.HTTPConnection(*address, timeout=60)
        connection.request("GET", "/status")
        assert connection.getresponse().status == expected
    assert address[0] == "127.0.0.1"


@pytest.mark.parametrize("n_workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_no_worker_imports_what_draws_dashboards(n_workers: int) -> None:
    program = (
        "import sys; from espo_luigi.jobs.resources import Resources\n"
        "from espo_luigi.jobs.dask.session import dask_session\n"
        "if __name__ == '__main__':\n"
        f"    with dask_session(Resources({n_workers}, {n_workers}, '2GB')) as client:\n"
        "        print(client.submit(lambda: 'bokeh' in __import__('sys').modules).result())\n"
        "    print('bokeh' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["False", "False"]


@as_root
@pytest.mark.parametrize("n_workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_another_account_of_the_node_reaches_no_scheduler_worker_or_page(n_workers: int) -> None:
    before = listening([psutil.Process()])  # of the tests that this process has run
    with dask_session(Resources(n_workers, n_workers, "1GB")) as client:
        assert client.submit(len, [1, 2]).result(timeout=60) == 2
        addresses = [address for address in listening([psutil.Process()]) if address not in before]
        assert {address.ip for address in addresses} == {"127.0.0.1"}
        assert strangers_luck(addresses) == no_luck(len(addresses))


@as_root
def test_with_the_dashboard_another_account_reads_its_pages_and_speaks_with_no_server() -> None:
    before = listening([psutil.Process()])
    with dask_session(Resources(2, 2, "1GB"), dashboard=True):
        addresses = [address for address in listening([psutil.Process()]) if address not in before]
        assert {address.ip for address in addresses} == {"127.0.0.1"}
        luck = strangers_luck(addresses)
    assert luck["refused"] == 2 * len(addresses)
    shown = {line for line in luck if line not in ("refused", "not shown")}
    assert any(line.startswith("SHOWN /status ") for line in shown)
    assert all(line.startswith("SHOWN ") for line in shown)


def test_the_keys_of_a_session_are_in_no_file_environment_or_command_line(tmp_path: Path) -> None:
    with dask_session(Resources(2, 2, "1GB"), client={"local_directory": str(tmp_path)}) as client:
        key = client.cluster.security.tls_worker_key.splitlines()[1].encode()
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [path for path in files if key in path.read_bytes()]
        for process in psutil.Process().children(recursive=True):
            seen = [Path(f"/proc/{process.pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
            assert not [text for text in seen if key in text]


@pytest.mark.parametrize(
    ("address", "taken"),
    [(":0", "127.0.0.1:0"), (8787, "127.0.0.1:8787"), ("localhost:1", "localhost:1"), (None, "127.0.0.1:0")],
)
def test_a_dashboard_listens_on_the_loopback(address: Any, taken: str) -> None:
    assert on_loopback(address) == taken


@pytest.mark.parametrize("address", ["0.0.0.0:8787", "node12:0", "[::]:0", "192.168.1.2:80", "ib0"])
def test_a_dashboard_on_a_network_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="expected a port or an address of this node alone"):
        on_loopback(address)


@pytest.mark.parametrize(
    "keywords",
    [
        {"protocol": "tcp"},
        {"security": False},
        {"processes": True},
        {"worker_dashboard_address": ":0"},
        {"scheduler_kwargs": {"jupyter": True}},
    ],
)
def test_a_keyword_that_would_let_other_accounts_in_is_refused(keywords: dict[str, object]) -> None:
    words = rf"`dask\.client\.{next(iter(keywords))}`: got .*, expected no such key.*Remove it"
    with pytest.raises(ConfigurationError, match=words):
        check_client(keywords)
    with pytest.raises(ConfigurationError, match=words), dask_session(Resources(1, 1, "1GB"), client=keywords):
        pass


def test_workers_on_other_nodes_find_settings_and_modules_in_a_private_folder_and_say_which_cache_they_drop(
    tmp_path: Path,
) -> None:
    (shared := tmp_path / "shared").mkdir(mode=0o755)
    folder = tmp_path / "session"
    with prepared(folder, Failing(), {"array.chunk-size": "1MiB"}, dashboard=False):
        assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}
        found = dask.config.collect([str(folder / "dask.yaml")], {})
        assert dask.config.get("array.chunk-size", config=found) == "1MiB"
        assert dask.config.get("distributed.scheduler.allowed-failures", config=found) == 10
        (preload,) = dask.config.get("distributed.worker.preload", config=found)
        environ = {**os.environ, "NUMBA_CACHE_DIR": str(shared)}
        done = subprocess.run([sys.executable, preload], env=environ, capture_output=True, text=True, check=True)
    assert done.stderr.startswith(f"NUMBA_CACHE_DIR = {shared} is not used") and done.stderr.endswith("\n")
    assert not folder.exists()


def test_dasks_own_settings_of_a_hub_or_a_site_do_not_stop_a_session() -> None:
    of_others = {
        "distributed.dashboard.link": "{JUPYTERHUB_SERVICE_PREFIX}proxy/{port}/status",
        "distributed.comm.require-encryption": True,
    }
    with dask.config.set(of_others), dask_session(Resources(1, 1, "1GB"), dashboard=False) as client:
        assert client.submit(abs, -1).result() == 1
        assert client.dashboard_link is None or "JUPYTER" not in client.dashboard_link
