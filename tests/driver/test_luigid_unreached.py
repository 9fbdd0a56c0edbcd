"""luigid that does not answer is told in a sentence, and luigid on this machine is reached without a proxy."""

import json
import logging
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import toy_tasks
from luigi.configuration import get_config

from espo_luigi.driver.luigid import LuigidWorker, PatientScheduler

NOBODY = "http://127.0.0.1:9"


class Answers(BaseHTTPRequestHandler):
    """Answer each question of a driver with the code of the server."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.code)  # type: ignore[attr-defined]
        self.end_headers()
        self.wfile.write(json.dumps({"response": {}}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture()
def server() -> Iterator[HTTPServer]:
    made = HTTPServer(("127.0.0.1", 0), Answers)
    made.code = 200  # type: ignore[attr-defined]
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture(autouse=True)
def behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", NOBODY)
    monkeypatch.setenv("NO_PROXY", "login.example")
    monkeypatch.setenv("no_proxy", "")
    get_config().set("core", "rpc-retry-attempts", "2")
    get_config().set("core", "rpc-retry-wait", "0")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_luigid_on_this_machine_is_asked_without_a_proxy(host: str, server: HTTPServer) -> None:
    assert PatientScheduler(f"http://{host}:{server.server_port}")._request("/api/task_list", {}) == {}


@pytest.mark.parametrize(("before", "after"), [("*", "*"), ("login.example", "login.example,localhost")])
def test_a_loopback_host_joins_the_hosts_without_a_proxy_once(
    before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", before)
    for _ in range(2):
        PatientScheduler("http://localhost:8082")
    assert os.environ["no_proxy"] == after


def refused(url: str, folder: Path) -> bool:
    with LuigidWorker(scheduler=PatientScheduler(url)) as worker:
        return not worker.add(toy_tasks.Count(n=1, folder=str(folder))) and not worker.run()


def test_luigid_that_does_not_answer_is_told_with_what_to_do(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    assert refused(NOBODY, tmp_path)
    warning, error = (record for record in log.records if record.levelno >= logging.WARNING)
    said = f"luigid at {NOBODY} does not answer ([Errno 111] Connection refused)"
    assert warning.getMessage().startswith(said) and warning.getMessage().endswith("trying again in 0 s")
    assert error.getMessage().startswith(f"Nothing was started: {said}: start luigid, correct --scheduler-url")
    assert error.exc_info is None


def test_the_proxy_that_was_asked_for_luigid_is_named(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    assert refused("http://luigid.example:8082", tmp_path)
    assert "http_proxy is set, and luigid.example" in log.text


def test_what_refuses_a_drivers_first_question_is_told_at_once(
    tmp_path: Path, log: pytest.LogCaptureFixture, server: HTTPServer
) -> None:
    server.code = 404  # type: ignore[attr-defined]
    assert refused(f"http://localhost:{server.server_port}", tmp_path)
    (error,) = (record for record in log.records if record.levelno >= logging.WARNING)
    assert f"what answers at http://localhost:{server.server_port} is no luigid, or a proxy: " in error.getMessage()
