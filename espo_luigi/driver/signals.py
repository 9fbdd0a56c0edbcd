"""Signals that end a run, and how a process ends then: without a traceback, and with what shells expect."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

logger = logging.getLogger(__name__)


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C's ends the run; its argument is the signal's number."""


class Detach(Terminated):
    """The driver ends, and leaves its jobs to the next driver: the terminal is gone, or the machine goes down."""


class Signals:
    """Raises an exception in the main thread on the first signal, and logs all further signals, until `restore`.

    Ctrl-C raises KeyboardInterrupt, SIGHUP `Detach`, and SIGTERM `Detach` if `leaves_jobs()`, or `Terminated`. A second
    signal must not interrupt the work that follows: cancelling jobs, writing records.
    """

    def __init__(self, leaves_jobs: Callable[[], bool]) -> None:
        self._leaves_jobs = leaves_jobs
        self._before: dict[signal.Signals, Any] = {}

    def hear(self) -> None:
        """Begin; outside of the main thread, which alone gets signals, do nothing."""
        if threading.current_thread() is threading.main_thread():
            # nohup ignores SIGHUP on purpose; so does a shell that starts a command in the background.
            ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            heard = [one for one in ending if signal.getsignal(one) is not signal.SIG_IGN]
            self._before = {one: signal.signal(one, self._stop) for one in heard}

    def only_note(self) -> None:
        """From here on, log that a signal came, and go on."""
        for one in self._before:
            signal.signal(one, _note)

    def restore(self) -> None:
        """Restore the handlers from before `hear`."""
        for one, handler in self._before.items():
            signal.signal(one, handler)
        self._before = {}

    def _stop(self, signum: int, _frame: object) -> None:
        self.only_note()
        if signum == signal.SIGINT:
            raise KeyboardInterrupt
        detaches = signum == signal.SIGHUP or self._leaves_jobs()
        raise (Detach if detaches else Terminated)(signum)


def _note(signum: int, _frame: object) -> None:
    logger.warning(
        "%s: this run is stopping already, which takes up to some minutes. If it has to end at once: kill -KILL %d; "
        "what is complete stays, and the same command takes over jobs of a cluster that go on",
        signal.Signals(signum).name,
        os.getpid(),
    )


def end_quietly(interrupt: KeyboardInterrupt) -> None:
    """Let this process end without a traceback; after a signal other than Ctrl-C's, end it with 128 + its number.

    After Ctrl-C the interrupt has to go on: Python then ends itself by SIGINT (130 to a shell). Nothing else ends a
    shell's loop around the command.
    """
    sys.excepthook = _without_traceback
    if isinstance(interrupt, Terminated):
        raise SystemExit(128 + int(interrupt.args[0] if interrupt.args else signal.SIGTERM)) from None


def _without_traceback(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
