"""The keys of a Dask session: only processes that hold them can speak with its scheduler and workers.

Without them, any account of the cluster could have a worker run code.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed.security import Security

from espo_luigi.files import write_new


class MemorySecurity(Security):
    """A `Security` for a session on one node, made by `temporary()`: key and certificate are text and on no disk.

    Python's ssl reads keys from files, for which Dask would create a temporary folder. This class uses a file in
    memory, which no other account can open. A nanny hands the text to its worker through a pipe.
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


def write_security(folder: Path) -> Security:
    """Write a key and a certificate for this session alone into its private folder; return them by their paths."""
    made: Any = Security.temporary()
    for name in ("tls_ca_file", "tls_scheduler_key"):
        write_new(folder / f"{name}.pem", getattr(made, name), 0o600)
    return read_security(folder)


def read_security(folder: Path) -> Security:
    """Return the keys that `write_security` wrote."""
    cert, key = str(folder / "tls_ca_file.pem"), str(folder / "tls_scheduler_key.pem")
    roles = ("client", "scheduler", "worker")
    pairs = {f"tls_{role}_cert": cert for role in roles} | {f"tls_{role}_key": key for role in roles}
    return Security(require_encryption=True, tls_ca_file=cert, **pairs)
