"""Random draws that depend on the seed and the cell, never on blocks, threads or workers."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
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


def jitter_under(values: np.ndarray, threshold: float, *, seed: str, role: str, cells: np.ndarray) -> np.ndarray:
    """Replace values strictly below the threshold by uniform noise in (0, threshold).

    `values` is (cell, time); `cells` are the cells' positions in the whole grid, which select their generators. The
    result is a new array of the same dtype; NaN stays NaN. Semantics of `xsdba.processing.jitter_under_thresh`.
    """
    out = values.copy()
    dtype = values.dtype.type
    lowest, highest = np.nextafter(dtype(0), dtype(1)), np.nextafter(dtype(threshold), dtype(0))
    # float64, so that a threshold that float32 cannot represent compares as xsdba compares it
    below = values < np.float64(threshold)
    for row, cell in enumerate(cells):
        hit = below[row]
        draws = cell_generator(seed, role, int(cell)).random(int(hit.sum())) * threshold
        out[row, hit] = np.clip(draws.astype(dtype), lowest, highest)
    return out


def jitter_members(
    values: np.ndarray, threshold: float, *, seeds: Sequence[str], role: str, cells: np.ndarray
) -> np.ndarray:
    """Do the same with the members of (cell, member, time), a seed each; (cell, time) has one."""
    if values.ndim == 2:
        (seed,) = seeds
        return jitter_under(values, threshold, seed=seed, role=role, cells=cells)
    jittered = [
        jitter_under(values[:, member], threshold, seed=seed, role=role, cells=cells)
        for member, seed in enumerate(seeds)
    ]
    return np.stack(jittered, axis=1)
