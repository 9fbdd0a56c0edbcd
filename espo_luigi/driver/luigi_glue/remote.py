"""Luigi's central scheduler (luigid) as a driver uses it: it may not answer for a while."""

from __future__ import annotations

import http.client
import json
import logging
import time
from typing import Any

from luigi.rpc import RemoteScheduler, RPCError, _urljoin

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
_SAY_SILENT_EVERY = 60.0
# Calls that may get lost: signs of life, and what luigid's page shows of running tasks.
_OPTIONAL = ("/api/ping", "/api/set_task_status_message", "/api/set_task_progress_percentage")
_NOTHING = json.dumps({"response": None})
_PASSING = (502, 503, 504)  # a proxy's answers while luigid restarts


class PatientScheduler(RemoteScheduler):
    """Waits, for as long as it takes, for a luigid that has answered before; one that never has is an error soon."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._reached = False
        self._silent_since: float | None = None
        self._said_silent = 0.0

    def _fetch(self, url_suffix: str, body: Any) -> str:
        if url_suffix in _OPTIONAL:
            return self._try(url_suffix, body)
        if not self._reached:
            answer = str(super()._fetch(url_suffix, body))
            self._reached = True
            return answer
        while True:
            try:
                return self._once(url_suffix, body)
            except (OSError, http.client.HTTPException) as error:
                self._wait(error)

    def show(self, **task: Any) -> None:
        """Send luigid what only its page shows of a running task, unless it does not answer now."""
        self._try("/api/add_task", {"data": json.dumps(task)})

    def _try(self, url_suffix: str, body: Any) -> str:
        # These calls come from the thread that watches the jobs, which must not wait.
        if self._silent_since is not None and url_suffix != _OPTIONAL[0]:
            return _NOTHING
        try:
            return self._once(url_suffix, body)
        except (OSError, http.client.HTTPException, RPCError):
            return _NOTHING

    def _once(self, url_suffix: str, body: Any) -> str:
        try:
            answer = str(self._fetcher.fetch(_urljoin(self._url, url_suffix), body, self._connect_timeout))
        except (OSError, http.client.HTTPException) as error:  # requests' and urllib's errors are OSErrors
            code = getattr(getattr(error, "response", None), "status_code", getattr(error, "code", None))
            if code is not None and code not in _PASSING:
                raise RPCError(f"luigid at {self._url} refused {url_suffix}: {error}", error) from error
            self._silent_since = self._silent_since or time.monotonic()
            raise
        self._silent_since = None
        return answer

    def _wait(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._said_silent >= _SAY_SILENT_EVERY:
            self._said_silent = now
            away = now - (self._silent_since or now)
            logger.warning("luigid at %s has not answered for %.0f s; waiting, jobs go on (%s)", self._url, away, error)
        time.sleep(_RETRY_SECONDS)
