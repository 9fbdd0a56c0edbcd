"""Keys of a Dask session on one node, which are nowhere on a disk: in this process and its workers' memory only."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed.security import Security


class MemorySecurity(Security):
    """A `Security` whose key and certificate are text: `MemorySecurity.temporary()` makes them for one session.

    Python's ssl reads keys from files, and Dask would write them into a temporary folder for that. Here the file is
    one in memory, which no other account can open. A nanny hands the text to its worker through a pipe.
    """

    def _get_tls_context(self, tls: dict[str, Any], purpose: ssl.Purpose) -> ssl.SSLContext:
        with _in_memory(tls["cert"]) as cert, _in_memory(tls["key"]) as key:
            context: ssl.SSLContext = super()._get_tls_context({**tls, "cert": cert, "key": key}, purpose)
        return context


@contextmanager
def _in_memory(text: str) -> Iterator[str]:
    descriptor = os.memfd_create("espo-luigi", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
