"""Another account of this machine, and what it can do: only root can be one."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

NOBODY = 65534
AS_STRANGER = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another account: run as root")

# What is tried at each address: to speak with a Dask server, without keys and with keys of one's own; and its pages.
_TRY = """
import asyncio, sys, urllib.request
from distributed.core import connect
from distributed.security import Security

PAGES = ("/", "/status", "/info/main/workers.html", "/json/counts.json", "/metrics")
OWN = Security.temporary().get_connection_args("client")

async def speak(address, protocol, keys):
    try:
        comm = await asyncio.wait_for(connect(f"{protocol}://{address}", timeout=1, **keys), 2)
        await asyncio.wait_for(comm.write({"op": "identity", "reply": True}), 2)
        return f"REACHED {protocol} {address} {await asyncio.wait_for(comm.read(), 2)}"
    except Exception as error:
        return f"refused {type(error).__name__}"

def look(address, page):
    try:
        return f"SHOWN {page} {address} {urllib.request.urlopen(f'http://{address}{page}', timeout=2).status}"
    except Exception as error:
        return f"not shown {type(error).__name__}"

async def all_of_it():
    for address in sys.argv[1:]:
        spoken = [speak(address, "tcp", {}), speak(address, "tls", OWN)]
        seen = [asyncio.to_thread(look, address, page) for page in PAGES]
        print(*await asyncio.gather(*spoken, *seen), sep=chr(10))

asyncio.run(all_of_it())
"""


@contextlib.contextmanager
def reachable(folder: Path) -> Iterator[None]:
    """Let other users go through pytest's own folders, which are for their owner alone.

    Only `folder` is closed again: tests in other processes may need the folders above it.
    """
    mode = stat.S_IMODE(folder.stat().st_mode)
    for one in (folder, *folder.parents):
        if one.is_relative_to("/tmp") and one != Path("/tmp"):
            one.chmod(stat.S_IMODE(one.stat().st_mode) | 0o011)
    try:
        yield
    finally:
        folder.chmod(mode)


def listening(processes: Iterable[psutil.Process]) -> list[Any]:
    """The addresses on which the processes and their children listen."""
    family = {each for one in processes for each in (one, *one.children(recursive=True))}
    found = [one for each in family for one in each.net_connections(kind="inet")]
    return [one.laddr for one in found if one.status == psutil.CONN_LISTEN]


def strangers_luck(addresses: Iterable[Any]) -> Counter[str]:
    """Have another account try all of it at each address; count what it got: ``refused`` and ``not shown``, or more."""
    places = [f"{address.ip}:{address.port}" for address in addresses]
    command = [*AS_STRANGER, sys.executable, "-c", _TRY, *places]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd="/", check=False)
    assert tried.returncode == 0, tried.stderr
    lines = tried.stdout.splitlines()
    return Counter(next((word for word in ("refused", "not shown") if line.startswith(word)), line) for line in lines)


def no_luck(n_addresses: int) -> Counter[str]:
    """What `strangers_luck` counts where nothing was had."""
    return Counter({"refused": 2 * n_addresses, "not shown": 5 * n_addresses})
