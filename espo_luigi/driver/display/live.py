"""How a run stands, as a table at the bottom of a terminal; the run does not depend on the terminal."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from espo_luigi.driver.display.status import TITLES, RuleRow, Standing, fitted, standing_of

logger = logging.getLogger(__name__)

# In a narrower terminal, the numbers leave no room for bars.
_WIDTH_FOR_BARS = 90
_LEAST_LINES = 5
_BAR: dict[str, Any] = {"style": "bright_black", "complete_style": "green", "finished_style": "green"}
_STYLES = {"failed": "red", "pending": "yellow", "longest": ""}


class Screen:
    """The table of a run in a terminal, and what is logged above it. It may be `closed` at any time, and twice."""

    def __init__(self, console: Console | None = None) -> None:
        self._streams = [(one, one.stream) for one in _handlers_of_the_terminal()]
        self._console = console or Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)
        self._is_open = False

    def open(self) -> None:
        """Begin."""
        self._is_open = True
        try:
            self._live.start()
            # A driver that is killed could not show it again.
            self._console.show_cursor(True)
            for handler, _ in self._streams:
                handler.setStream(_Above(self._console))
        except (Exception, SystemExit) as error:
            self._give_up(error)

    def show(self, state: Mapping[str, Any]) -> None:
        """Draw the table anew, if it is open and the driver in the foreground."""
        if not self._is_open or not in_foreground():
            return
        try:
            self._live.update(as_table(standing_of(state, time.time()), *self._console.size), refresh=True)
        except (Exception, SystemExit) as error:
            self._give_up(error)

    def close(self) -> None:
        """Leave the table as it is, and log as before."""
        if self._is_open:
            self._is_open = False
            for handler, stream in self._streams:
                handler.setStream(stream)
            with suppress(Exception, SystemExit):
                self._live.stop()

    def _give_up(self, error: BaseException) -> None:
        self.close()
        logger.warning("the run is not shown in this terminal any more (%s); `espo status --watch` shows it", error)


class _Above:
    """Stands for the stream of a log: what is written goes above the table, and its lines stay whole."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> None:
        if text.strip("\n"):
            self._console.print(Text(text.rstrip("\n")), soft_wrap=True)

    def flush(self) -> None:
        self._console.file.flush()


def _handlers_of_the_terminal() -> list[Any]:
    names = ("", "espo_luigi", "luigi", "luigi-interface")
    handlers = [one for name in names for one in logging.getLogger(name).handlers]
    streams = (sys.stderr, sys.__stderr__)
    return [one for one in handlers if isinstance(one, logging.StreamHandler) and one.stream in streams]


def in_foreground() -> bool:
    """Whether the terminal is this process's now; of one that it does not control, it is."""
    try:
        return os.tcgetpgrp(sys.__stderr__.fileno()) == os.getpgrp()  # type: ignore[union-attr]
    except (OSError, ValueError, AttributeError):
        return True


def as_table(found: Standing, width: int, height: int) -> Group:
    """Return what fits a terminal of this size, for rich to draw."""
    lines = max(height - 1, _LEAST_LINES)
    found = fitted(found, lines)
    rules = found.rules[: max(lines - found.height + len(found.rules), 0)]
    below = [line for name, rows in found.parts() for line in _section(name, rows)]
    folded = [_line(line, "dim") for line in found.folded]
    table = _rules(rules, width >= _WIDTH_FOR_BARS)
    parts: list[RenderableType] = [_line(found.summary, "bold"), Text(), table, *folded, *below]
    return Group(*parts[: lines - len(rules)])


def _rules(rules: Sequence[RuleRow], with_bars: bool) -> Table:
    table = Table.grid(padding=(0, 1), expand=with_bars)
    table.add_column("rule", no_wrap=True, min_width=12, max_width=24)
    if with_bars:
        table.add_column("", ratio=1)
    for _ in range(6):
        table.add_column(justify="right", no_wrap=True)
    names = ("done", "running", "pending", "waiting", "failed", "core-h")
    table.add_row("rule", *[""] * with_bars, *names, style="dim")
    for rule in rules:
        bar = [ProgressBar(rule.total, rule.done, **_BAR)] if with_bars else []
        counts = [str(count or "-") for count in (rule.running, rule.pending, rule.waiting)]
        failed = Text(str(rule.failed or "-"), style="bold red" if rule.failed else "")
        table.add_row(rule.name, *bar, f"{rule.done}/{rule.total}", *counts, failed, f"{rule.core_hours:.3g}")
    return table


def _section(name: str, lines: Any) -> Iterator[Text]:
    yield from (Text(), Text(TITLES[name], style="dim"))
    yield from (_line(f"  {line}", _STYLES[name]) for line in lines)


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")
