"""What a run shows while it goes on: a table that is drawn anew in a terminal, or else a line every few minutes."""

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

from espo_luigi.driver.board import Reporter, board
from espo_luigi.driver.settings import settings
from espo_luigi.driver.status import status_lines, summary_line

logger = logging.getLogger(__name__)

_LINE_EVERY_SECONDS = 300.0
_NOTIFY_TIMEOUT_SECONDS = 60.0


@contextmanager
def watched() -> Iterator[None]:
    """Write and show how the run stands while the block goes on; tell whom ``[espo] notify`` names when it ends."""
    if not board().state.rules:  # nothing to do
        yield
        return
    reporter = Reporter(board(), Path(settings().workdir).absolute())
    how = "stopped"
    try:
        with in_terminal(reporter) if _is_terminal() else _by_line(reporter):
            reporter.start()
            try:
                yield
                how = "failed" if board().state.failures else "done"
            finally:
                reporter.stop()
    finally:
        notify(settings().notify, how, board().snapshot())


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
    """Show what the reporter says as a table at the bottom of a terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = console or Console(stderr=True)
    with Live(console=console, auto_refresh=False, redirect_stdout=False) as live, _logging_above():

        def show(state: Mapping[str, Any]) -> None:
            lines = status_lines(state)[: max(console.height - 1, 3)]
            live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)

        reporter.shows.append(show)
        yield


@contextmanager
def _logging_above() -> Iterator[None]:
    """Have what is logged to the terminal go above the table: rich has put a stream of its own in place of stderr."""
    names = ("", "espo_luigi", "luigi", "luigi-interface")
    handlers = [one for name in names for one in logging.getLogger(name).handlers]
    ours = [one for one in handlers if isinstance(one, logging.StreamHandler) and one.stream is sys.__stderr__]
    for one in ours:
        one.setStream(sys.stderr)
    try:
        yield
    finally:
        for one in ours:
            one.setStream(sys.__stderr__)


def notify(command: str, how: str, state: Mapping[str, Any]) -> None:
    """Run the command of ``[espo] notify``, without a shell: the status on its standard input, `how` in ESPO_RESULT."""
    if not command:
        return
    environ = {**os.environ, "ESPO_RESULT": how, "ESPO_SUMMARY": summary_line(state, time.time())}
    text = "\n".join([f"{how}: {environ['ESPO_SUMMARY']}", *status_lines(state)[1:], ""])
    try:
        words = shlex.split(command)
        subprocess.run(words, input=text, text=True, env=environ, timeout=_NOTIFY_TIMEOUT_SECONDS, check=True)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        logger.warning("[espo] notify = %s: %s", command, error)
