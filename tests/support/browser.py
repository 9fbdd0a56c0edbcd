"""A headless Chromium, told what to do over its DevTools protocol."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from tornado.websocket import websocket_connect

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_ANSWER_SECONDS = 30.0
_OPTIONS = (
    "--headless=new",
    "--window-size=1280,900",
    "--remote-debugging-port=0",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    # Pages of this machine only.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


def missing_browser() -> str | None:
    """Say what to install before `Browser` can start, or None when it is there."""
    if any(shutil.which(name) for name in PROGRAMS):
        return None
    return f"a browser is needed; not found: {', '.join(PROGRAMS)}; on Debian: apt-get install chromium"


def missing_axe() -> str | None:
    """Say what to install before `Browser.findings` can tell anything, or None when all is there."""
    if missing := missing_browser():
        return missing
    return None if find_spec("axe_core_python") else "axe-core is needed: pip install axe-core-python"


class Browser:
    """One page of a Chromium of its own, whose profile is in `folder`; a context manager that ends it.

    `errors` has what its console says of errors: exceptions, failed assertions, resources that cannot be loaded.
    """

    def __init__(self, folder: Path) -> None:
        self.errors: list[str] = []
        self._folder = folder
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        program = next(found for found in map(shutil.which, PROGRAMS) if found)
        # Chromium refuses to be root in its sandbox; it opens nothing but pages of these tests.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [program, *_OPTIONS, *sandbox, f"--user-data-dir={self._folder}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._thread.start()
        try:
            self._wait(self._connect())
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self._process.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give a command of the DevTools protocol; return its result."""
        answer = self._wait(self._call(method, parameters))
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        return dict(answer["result"])

    def open(self, url: str) -> None:
        """Open a page anew, and wait until it is loaded."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.until("document.readyState == 'complete' && location.href != 'about:blank'")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 30.0) -> Any:
        """Wait until a JavaScript expression is true; return its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {expression}; page: {self.text()}"
            time.sleep(0.1)
        return value

    def text(self) -> str:
        """Return the visible text of the page."""
        return str(self.evaluate("document.body?.innerText ?? ''"))

    def findings(self, *, dark: bool) -> list[str]:
        """Return what axe-core has serious or critical against the page, with all of its folds open, in a scheme."""
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
        self.evaluate(f"{files('axe_core_python').joinpath('axe.min.js').read_text('utf-8')}; true")
        found = "axe.run({rules: {'link-in-text-block': {enabled: true}}}).then(done => done.violations)"
        return [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
            for one in self.evaluate(found)
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]

    def click(self, selector: str) -> None:
        """Click on the first element that a selector finds, once it is there."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.until(f"{found} !== null")
        self.evaluate(f"{found}.click()")

    def _wait(self, doing: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(doing, _ANSWER_SECONDS), self._loop).result()

    async def _connect(self) -> None:
        port = self._folder / "DevToolsActivePort"
        while not (port.exists() and port.read_text().count("\n")):
            assert self._process.poll() is None, f"the browser ended with {self._process.returncode}"
            await asyncio.sleep(0.05)
        url = f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json/list"
        (page,) = (one for one in json.load(urllib.request.urlopen(url)) if one["type"] == "page")
        self._socket = await websocket_connect(
            page["webSocketDebuggerUrl"], on_message_callback=self._heard, max_message_size=2**27
        )

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        return await answer

    def _heard(self, message: str | bytes | None) -> None:
        said = json.loads(message or "{}")
        if "id" in said:
            self._answers.pop(said["id"]).set_result(said)
        elif describe := _ERRORS.get(said.get("method", "")):
            self.errors += describe(said["params"])


def _of_console(said: dict[str, Any]) -> list[str]:
    return [json.dumps(said["args"])] if said["type"] in ("error", "assert") else []


_ERRORS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "Runtime.exceptionThrown": lambda said: [json.dumps(said["exceptionDetails"])],
    "Runtime.consoleAPICalled": _of_console,
    "Log.entryAdded": lambda said: [json.dumps(said["entry"])] if said["entry"]["level"] == "error" else [],
}
