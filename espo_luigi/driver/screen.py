"""The status of a run, drawn by rich: a table at the bottom of a terminal, or lines of text."""

from __future__ import annotations

import io
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from espo_luigi.driver.status import (
    PENDING,
    RUNNING,
    SHOWN_FAILURES,
    WAITING,
    RunStatus,
    cpu_seconds,
    cpu_time,
    fitted,
    status_of,
)

logger = logging.getLogger(__name__)

# In a narrower terminal, the numbers leave no room for bars.
_WIDTH_FOR_BARS = 90
_LONGEST_NAME = 24
_LEAST_LINES = 5
# Wider than any line: only a terminal cuts lines.
_WIDTH_OF_TEXT = 100_000
_BAR: dict[str, Any] = {"style": "bright_black", "complete_style": "green", "finished_style": "green"}
_STYLES = {"failed": "red", "pending": "yellow"}


class Screen:
    """The table of a run in a terminal, with the log above it, inside of a ``with`` block.

    The run does not depend on the terminal: if writing to it fails, the table is given up.
    """

    def __init__(self, console: Console | None = None) -> None:
        names, streams = ("", "espo_luigi", "luigi", "luigi-interface"), (sys.stderr, sys.__stderr__)
        self._streams = [
            (handler, handler.stream)
            for name in names
            for handler in logging.getLogger(name).handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream in streams
        ]
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)

    def __enter__(self) -> Screen:
        """Open the table."""
        try:
            self._live.start()
            # A driver that is killed could not show it again.
            self._console.show_cursor(True)
            for handler, _ in self._streams:
                handler.setStream(_Above(self._console))
        except (Exception, SystemExit) as error:
            self._give_up(error)
        return self

    def show(self, state: Mapping[str, Any]) -> None:
        """Redraw the table, if it is open and the driver in the foreground."""
        if not self._live.is_started or not in_foreground():
            return
        try:
            self._live.update(as_table(status_of(state, time.time()), *self._console.size), refresh=True)
        except (Exception, SystemExit) as error:
            self._give_up(error)

    def __exit__(self, *_: object) -> None:
        """Leave the table as it is, and log as before."""
        for handler, stream in self._streams:
            handler.setStream(stream)
        with suppress(Exception, SystemExit):
            self._live.stop()

    def _give_up(self, error: BaseException) -> None:
        self.__exit__()
        logger.warning("the run is not shown in this terminal any more (%s); `espo status --watch` shows it", error)


class _Above:
    """Replaces the stream of a log handler: writes above the table, without breaking lines."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> None:
        if text.strip("\n"):
            self._console.print(Text(text.rstrip("\n")), soft_wrap=True)

    def flush(self) -> None:
        self._console.file.flush()


def in_foreground() -> bool:
    """Return whether the terminal is this process's now; True for a terminal that does not control the process."""
    try:
        return os.tcgetpgrp(sys.__stderr__.fileno()) == os.getpgrp()  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):
        return True


def as_table(found: RunStatus, width: int, height: int) -> Group:
    """Return as much of a status as fits a terminal of this size, for rich to draw."""
    lines = max(height - 1, _LEAST_LINES)
    found = fitted(found, lines)
    shown = max(lines - found.height + len(found.rules), 0)
    found = replace(found, rules=dict(list(found.rules.items())[:shown]))
    parts = _parts(found, with_bars=width >= _WIDTH_FOR_BARS, longest_name=_LONGEST_NAME)
    return Group(*parts[: lines - len(found.rules)])


def status_lines(
    state: Mapping[str, Any], now: float | None = None, lines: int = 0, most_failures: int = SHOWN_FAILURES
) -> list[str]:
    """Return the status of a run as lines of text, at most `lines` of them unless that is 0."""
    found = status_of(state, time.time() if now is None else now, most_failures)
    found = fitted(found, lines) if lines else found
    text = io.StringIO()
    Console(file=text, width=_WIDTH_OF_TEXT, color_system=None).print(Group(*_parts(found)))
    return [line.rstrip() for line in text.getvalue().splitlines()][: lines or None]


def _parts(found: RunStatus, *, with_bars: bool = False, longest_name: int | None = None) -> list[RenderableType]:
    table = Table.grid(padding=(0, 1), expand=with_bars)
    table.add_column("rule", no_wrap=True, min_width=12, max_width=longest_name)
    if with_bars:
        table.add_column("", ratio=1)
    for _ in range(6):
        table.add_column(justify="right", no_wrap=True)
    columns = (RUNNING, PENDING, WAITING)
    table.add_row("rule", *[""] * with_bars, "done", *columns, "failed", "CPU time", style="dim")
    for name, rule in found.rules.items():
        bar = [ProgressBar(rule["total"], rule["done"], **_BAR)] if with_bars else []
        counts = [f"{rule['done']}/{rule['total']}", *(str(rule[column] or "-") for column in columns)]
        failed = Text(str(rule["failed"] or "-"), style="bold red" if rule["failed"] else "")
        table.add_row(name, *bar, *counts, failed, cpu_time(cpu_seconds(rule) / 3600))
    parts: list[RenderableType] = [_line(found.summary, "bold"), Text(), table]
    parts += [_line(line, "dim") for line in found.folded]
    for title, lines in found.lists.items():
        style = _STYLES.get(title, "")
        parts += [Text(), Text(f"{title}:", style="dim"), *(_line(f"  {line}", style) for line in lines)]
    return parts


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
