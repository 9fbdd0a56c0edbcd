"""Where every real part has to be there (`.ci/run` says so), a test that skips is a test that fails."""

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.CallInfo[None], None]:
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("ESPO_REQUIRE_REAL_PARTS") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} skipped where every real part has to be there: {report.longrepr}"
