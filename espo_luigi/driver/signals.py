"""Signals that end a run, and how a process ends then: without a traceback, and with what shells expect."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class Stopped(KeyboardInterrupt):
    """A signal other than Ctrl-C's ends the run; its argument is the signal's number."""


class Detach(Stopped):
    """The terminal is gone: the driver ends, and its jobs are left to the next one."""


@contextmanager
def heard() -> Iterator[None]:
    """Turn SIGTERM into what Ctrl-C does, and SIGHUP into `Detach`, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, _frame: object) -> None:
        raise (Detach if signum == signal.SIGHUP else Stopped)(signum)

    # nohup has SIGHUP ignored, and means it.
    wanted = [signum for signum in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, stop) for signum in wanted}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


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
