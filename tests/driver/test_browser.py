"""luigid's page and the report in a real browser, during and after a run on a real Slurm."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, missing_browser
from drivers import Driver, Luigid
from throwaway_slurm import ClusterSpec, ThrowawayCluster
from toy_tasks import Count, Grumble, Halfway

from espo_luigi.report.make import write_report
from espo_luigi.report.reading import Made, RunView

_MISSING = missing_browser()
pytestmark = [pytest.mark.slurm, pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))]
CLUSTER = ClusterSpec(nodes=1, cpus=2)
# What Luigi's page asks for in vain: it has no icon, and a font of its style is to come from the network.
OF_LUIGI = ("fonts.googleapis.com", "/favicon.ico")
LINK = 'a[title="Track Progress"]'
CONFIGURATION = Path(__file__).parents[2] / "config" / "luigid.cfg"


@pytest.fixture()
def luigid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Luigid]:
    (tmp_path / "luigid").mkdir()
    server = Luigid(tmp_path / "luigid")
    with monkeypatch.context() as environment:
        environment.setenv("LUIGI_CONFIG_PATH", str(CONFIGURATION))
        server.start()
    yield server
    server.stop()


@pytest.fixture()
def browser(tmp_path: Path) -> Iterator[Browser]:
    with Browser(tmp_path / "browser") as opened:
        yield opened


class Page:
    """luigid's page."""

    def __init__(self, browser: Browser, luigid: Luigid) -> None:
        self.browser = browser
        self.url = f"http://127.0.0.1:{luigid.port}/static/visualiser/index.html"

    def load(self) -> None:
        """Reload the page: it shows the state at its loading."""
        self.browser.open(self.url)
        self.browser.until("!!document.querySelector('#DONE_info .fa-check') && document.querySelector('.sidebar ul')")

    def row(self, task_id: str) -> str:
        """The text of a task's line."""
        found = f"document.querySelector('.statusMessage[data-task-id=\"{task_id}\"]')"
        return str(self.browser.evaluate(f"{found}?.closest('tr').innerText ?? ''"))

    def message(self, task_id: str) -> str:
        """Open the status message of a task, and return its text."""
        self.browser.click(f'.statusMessage[data-task-id="{task_id}"]')
        return str(self.browser.until("document.querySelector('#statusMessageModal.in pre')?.innerText"))

    def until_linked(self, task_id: str) -> str:
        """Load the page until a task has a link to a dashboard; return it."""
        deadline = time.monotonic() + 300
        found = f"document.querySelector('.statusMessage[data-task-id=\"{task_id}\"]')?.closest('tr')"
        while not (link := self.browser.evaluate(f"{found}?.querySelector('{LINK}')?.href")):
            assert time.monotonic() < deadline, self.browser.text()
            self.load()
        return str(link)

    def until_said(self, task_id: str, pattern: str) -> str:
        """Load the page until a task's message is like the pattern; return it."""
        said: list[str] = []
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            self.load()
            said += [self.message(task_id)] if self.row(task_id) else []
            if said and re.match(pattern, said[-1]):
                return said[-1]
        raise AssertionError(f"{task_id}: {said[-3:]}, expected {pattern!r}; page: {self.browser.text()}")


def report(folder: Path, *tasks: Count) -> None:
    """Write the report of a run of small tasks, which make no climate."""
    made = tuple(
        Made(task.get_task_family(), task.label(), (Path(task.output().path),), task.complete()) for task in tasks
    )
    view = RunView((), "", "none", (), (), (1991, 2020), folder, folder / "work", "slurm", made)
    write_report(view, folder / "report.html")


def words(browser: Browser) -> str:
    return " ".join(browser.text().split())


def test_a_run_is_seen_in_a_browser_while_it_goes_on_and_afterwards(
    tmp_path: Path, cluster: ThrowawayCluster, luigid: Luigid, browser: Browser
) -> None:
    driver, page = Driver(tmp_path, cluster), Page(browser, luigid)
    folder = str(tmp_path)
    halfway, count = Halfway(n=20, folder=folder), Count(n=1, folder=folder)
    grumble = Grumble(n=1, folder=folder)
    options = ["--n", "20", "--espo-dashboard", "true", "--slurm-heartbeat-seconds", "1"]
    process = driver.start("Shown", *options, luigid=luigid)
    try:
        link = page.until_linked(halfway.task_id)
        said = page.until_said(halfway.task_id, r"job \d+ on \S+, [1-9]\d? %, 0\.\d of 1 GiB\nDask: \d+ tasks to go")
        dashboard = re.search(r"http://127\.0\.0\.1:(\d+)/status", said)
        assert dashboard and f"ssh -N -L {dashboard[1]}:127.0.0.1:{dashboard[1]} " in said.splitlines()[-1]
        assert int(browser.evaluate("document.querySelector('#statusMessageModal .progress-bar').ariaValueNow")) > 0
        assert dashboard[0] == link
        assert "n=20" in page.row(halfway.task_id) and "partition" not in page.row(halfway.task_id)
        report(tmp_path, halfway, count, grumble)
        browser.open((tmp_path / "report.html").as_uri())
        assert f"{halfway.label()} no result: it is still waiting or at work" in words(browser)
    finally:
        (tmp_path / "go").touch()
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 30, errors
    page.load()
    assert browser.evaluate(f"document.querySelectorAll('{LINK}').length") == 0
    assert re.match(r"done: job \d+ on \S+, \d+\.\d s, 0\.\d of 1 GiB", page.message(halfway.task_id))
    page.load()
    assert "ValueError: 1 < 2 & 3" in page.message(grumble.task_id)
    page.load()
    browser.click("button.showError")
    error = browser.until("document.querySelector('#errorModal.in pre')?.innerText")
    again = browser.evaluate("document.querySelectorAll('#errorModal pre')[1].innerText")
    assert again.startswith("luigi --module toy_tasks Grumble --n ") and "partition" not in again
    assert "ValueError: 1 < 2 & 3" in error and 'raise ValueError("1 < 2 & 3")' in error and "log:" in error
    report(tmp_path, halfway, count, grumble)
    browser.open((tmp_path / "report.html").as_uri())
    said = words(browser)
    assert "1 of 3 tasks are not complete" in said and "ValueError: 1 < 2 & 3" in said
    log = re.search(r"\S+/slurm_logs/Grumble/\S+\.out", said)
    assert log and "1 < 2 & 3" in Path(log[0]).read_text()
    assert browser.evaluate("document.images.length") == 2  # of the run: nothing else was computed
    assert browser.evaluate("[...document.images].every(one => one.naturalWidth > 0)")
    browser.click("nav a[href='#run']")
    assert browser.evaluate("location.hash") == "#run"
    assert [error for error in browser.errors if not any(name in error for name in OF_LUIGI)] == []
