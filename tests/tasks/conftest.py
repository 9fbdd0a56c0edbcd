"""A run of the demo in a folder of its own, once for all tests of the rules."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from demo_runs import use, write_config

from espo_luigi.jobs import local
from espo_luigi.jobs.forkserver import ForkServer


class KeptServer(ForkServer):
    """The process that starts local jobs, kept for the next run: it has imported for six seconds."""

    def close(self) -> None:
        """Do nothing: `fork_servers` ends it."""


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[Callable[[list[str]], KeptServer]]:
    """A function that starts the server of a command in this environment, once."""
    servers: dict[object, KeptServer] = {}

    def server(command: list[str]) -> KeptServer:
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        key = (tuple(command), frozenset(environment.items()))
        if key not in servers:
            servers[key] = KeptServer(command)
        return servers[key]

    yield server
    for one in servers.values():
        ForkServer.close(one)


@pytest.fixture(scope="module", autouse=True)
def one_fork_server(fork_servers: Callable[[list[str]], KeptServer]) -> Iterator[None]:
    """All runs of this process start their local jobs from one server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "ForkServer", fork_servers)
        yield


@pytest.fixture(scope="session")
def demo_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's raw data."""
    from espo_luigi.demo import ensure_demo

    return ensure_demo({"folder": str(tmp_path_factory.mktemp("demo") / "raw"), "seed": 1})


@pytest.fixture()
def configured(tmp_path: Path, demo_raw: Path) -> Iterator[Callable[..., list[Path]]]:
    """A function that configures this process for the demo, with changes, in the test's own folder."""

    def configure(**changes: object) -> list[Path]:
        files = write_config(tmp_path, demo_raw, **changes)
        use(files, tmp_path)
        return files

    yield configure
