"""Random draws that depend on the seed and the cell, never on blocks, threads or workers."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

# A process has a single legacy generator of numpy's, and Dask may run two blocks in one process.
_GLOBAL_STATE = threading.RLock()


def _digest(seed: str, role: str, cell: int) -> bytes:
    return hashlib.sha256(f"{seed}|{role}|{cell}".encode()).digest()


def cell_generator(seed: str, role: str, cell: int) -> np.random.Generator:
    """Return the generator of a cell's draws for a role ("reference", "historical", "simulation", …)."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(seed, role, cell)[:16], "little")))


@contextmanager
def numpy_state(seed: str, role: str, cell: int) -> Iterator[None]:
    """Seed numpy's global generator, which xsdba draws from, and restore its former state; a single block at a time."""
    with _GLOBAL_STATE:
        before = np.random.get_state()
        np.random.seed(np.frombuffer(_digest(seed, role, cell), dtype=np.uint32))
        try:
            yield
        finally:
            np.random.set_state(before)
