"""Blocks for tests of downscalers: one coarse cell, or a row of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from espo_luigi.downscaling.base import Setup
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.coarse import Places


class Block(NamedTuple):
    """The series of a block, and its setup."""

    coarse: np.ndarray
    fine: np.ndarray
    adjusted: np.ndarray
    setup: Setup


def axis(days: int, first_day: float = 0.0) -> TimeAxis:
    """Return days of the noleap calendar, from so many days after the first day of 1850 on."""
    return TimeAxis("noleap", first_day + np.arange(days, dtype=np.float64))


def block(
    fine: np.ndarray,
    coarse: np.ndarray,
    adjusted: np.ndarray,
    kind: Any,
    *,
    areas: np.ndarray | None = None,
    own: np.ndarray | None = None,
    places: Places | None = None,
    **others: Any,
) -> Block:
    """Return a block whose fine cells have `own` coarse cells, by default a single one."""
    own = np.zeros(len(fine), np.int64) if own is None else own
    weights = np.tile([1.0, 0, 0, 0], (len(fine), 1))
    given = {name: others.pop(name) for name in ("lower", "upper", "wet", "reference", "time") if name in others}
    setup = Setup(
        kind=kind,
        reference=given.pop("reference", axis(fine.shape[1])),
        time=given.pop("time", axis(adjusted.shape[1])),
        places=places or Places(own + 100, own, np.zeros(len(fine), bool), np.tile(own[:, None], 4), weights),
        numbers=np.arange(len(coarse)) + 100,
        areas=np.ones(len(fine)) if areas is None else areas,
        seed="test",
        arguments=others,
        **given,
    )
    return Block(coarse, fine, adjusted, setup)
