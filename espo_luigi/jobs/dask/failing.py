"""Ending work that waits for Dask workers which never come."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from espo_luigi.errors import JobError

logger = logging.getLogger(__name__)


class Failing:
    """Why the work of the thread that made this cannot go on; another thread finds that out, and interrupts it."""

    def __init__(self, kind: type[JobError] = JobError) -> None:
        self._kind = kind
        self._thread = threading.get_ident()
        self.words = ""

    def fail(self, words: str) -> None:
        """Have `raised` raise; of a thread that is not the main one, only log it, as no signal reaches it."""
        self.words = words
        logger.error("%s", words)
        if self._thread == threading.main_thread().ident:
            signal.pthread_kill(self._thread, signal.SIGINT)

    @contextmanager
    def raised(self) -> Iterator[None]:
        """Surround the work; raise the error if it was ended."""
        try:
            yield
        except KeyboardInterrupt:
            if self.words:
                raise self._kind(self.words) from None
            raise
