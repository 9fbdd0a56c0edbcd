"""Processes that start local jobs, kept from one run to the next: each has imported for seconds."""

import os
from collections.abc import Sequence

from espo_luigi.jobs.forkserver import ForkServer


class KeptServer(ForkServer):
    """A server that the run which started it does not end."""

    def close(self) -> None:
        """Do nothing: `KeptServers.close` ends it."""


class KeptServers:
    """One server for each command and environment."""

    def __init__(self) -> None:
        self._servers: dict[object, KeptServer] = {}

    def __call__(self, command: Sequence[str]) -> KeptServer:
        """Return the server of a command in this environment."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        key = (tuple(command), frozenset(environment.items()))
        if key not in self._servers:
            self._servers[key] = KeptServer(command)
        return self._servers[key]

    def close(self) -> None:
        """End them all."""
        for server in self._servers.values():
            ForkServer.close(server)
