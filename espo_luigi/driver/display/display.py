"""What a driver shows during its run: a table that is drawn anew in a terminal, or else a line every few minutes."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from espo_luigi.driver.display.status import status_lines, summary_line
from espo_luigi.driver.run.board import Reporter, board
from espo_luigi.driver.run.signals import Detach
from espo_luigi.driver.settings.espo import settings

logger = logging.getLogger(__name__)

_LINE_EVERY_SECONDS = 300.0
_NOTIFY_TIMEOUT_SECONDS = 60.0
_FAILURES_TOLD = 50


@contextmanager
def watched() -> Iterator[None]:
    """Write and show how the run stands during the block, and note how it ended."""
    if not board().state.rules:  # nothing to do
        yield
        return
    reporter = Reporter(board(), Path(settings().workdir).absolute())
    with in_terminal(reporter) if _is_terminal() else _by_line(reporter):
        reporter.start()
        try:
            yield
            board().close(board().outcome)
        except BaseException as error:
            board().close("detached" if isinstance(error, Detach) else "stopped")
            raise
        finally:
            reporter.stop()


def _is_terminal() -> bool:
    return bool(settings().live) and sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "", None)


@contextmanager
def _by_line(reporter: Reporter) -> Iterator[None]:
    said = [time.monotonic()]

    def show(state: Mapping[str, Any]) -> None:
        if time.monotonic() - said[0] >= _LINE_EVERY_SECONDS:
            said[0] = time.monotonic()
            logger.info("%s", summary_line(state, time.time()))

    reporter.shows.append(show)
    yield


@contextmanager
def in_terminal(reporter: Reporter, console: Any = None) -> Iterator[None]:
    """Show what the reporter writes as a table at the bottom of a terminal."""
    from espo_luigi.driver.display.live import Screen

    screen = Screen(console)
    screen.open()
    reporter.shows.append(screen.show)
    try:
        yield
    finally:
        screen.close()


def tell_the_end() -> None:
    """Run the command of ``[espo] notify``, if the run ended, was refused or had nothing to do."""
    if board().state.outcome:
        notify(settings().notify, board().snapshot())


def notify(command: str, state: Mapping[str, Any]) -> None:
    """Run the command, without a shell, with how the run ended on its standard input and in its environment."""
    if not command:
        return
    try:
        text, environ = _told(state)
        words = shlex.split(command)
        subprocess.run(words, input=text.encode(), env=environ, timeout=_NOTIFY_TIMEOUT_SECONDS, check=True)
    except Exception as error:  # whatever it is, the run has ended as it has
        logger.warning("[espo] notify = %s: %s: %s", command, type(error).__name__, error)


def _told(state: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """What the command reads, and its environment."""
    how, summary = state["outcome"], summary_line(state, time.time())
    counts = {name: sum(rule[name] for rule in state["rules"].values()) for name in ("total", "done")}
    counts["failed"] = len(state["failures"])
    told = {"RESULT": how, "SUMMARY": summary, **{name.upper(): str(count) for name, count in counts.items()}}
    lines = status_lines(state, most_failures=_FAILURES_TOLD)[1:]
    text = "\n".join([f"{how}: {summary}", f"work folder: {Path(settings().workdir).absolute()}", *lines, ""])
    return text, {**os.environ, **{f"ESPO_{name}": value for name, value in told.items()}}
