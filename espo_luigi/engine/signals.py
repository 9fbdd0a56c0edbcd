"""How a process ends that was told to: without a traceback, and with what shells expect."""

from __future__ import annotations

import signal
import sys
from types import TracebackType


class Stopped(KeyboardInterrupt):
    """A signal other than Ctrl-C's ends the run; its argument is the signal's number."""


def end_quietly(interrupt: KeyboardInterrupt) -> None:
    """Have this process end without a traceback; for a signal other than Ctrl-C's, end it, with 128 and its number.

    After Ctrl-C the interrupt has to go on: Python then ends itself by SIGINT (130 to a shell), which alone has a
    shell's loop around the command end, too.
    """
    sys.excepthook = _without_traceback
    if isinstance(interrupt, Stopped):
        raise SystemExit(128 + int(interrupt.args[0] if interrupt.args else signal.SIGTERM)) from None


def _without_traceback(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
