"""MBCn on numpy arrays (variable, cell, time), by compiled kernels: the numbers are xsdba's with the same rotations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from espo_luigi.methods.dqm.quantile_mapping import run_by_cells
from espo_luigi.methods.dqm.windows import YearWindow
from espo_luigi.methods.mbcn.kernels import Groups, Univariates, adjust_together
from espo_luigi.science.calendar import TimeAxis

TRACED = ("univariate value", "rank before", "rank after", "donor", "size of the sample")


class Univariate(NamedTuple):
    """How a variable is adjusted by itself, before its values are reordered.

    Attributes
    ----------
    kind
        "+" or "*".
    levels
        Those of its quantiles, from 0 to 1, ascending.
    threshold
        The frequency of values up to here is adapted to the reference's (`adapt_freq_thresh`); None: it is not.
    tail_factor
        Values above so many times the historical sample's last quantile are not adjusted; None: all are.
    small
        Where the historical values are below it, ratios are at most 2.
    """

    kind: str
    levels: np.ndarray
    threshold: float | None = None
    tail_factor: float | None = None
    small: float = 0.0


class Plan(NamedTuple):
    """The samples of each group of days: of the calibration, and of each window of years of the simulation."""

    calibration: Groups
    simulation: Groups
    spans: np.ndarray


def plan(
    calibration: TimeAxis,
    simulation: TimeAxis,
    *,
    group: str = "time",
    window: int = 1,
    spans: Sequence[YearWindow] | None = None,
) -> Plan:
    """Lay out the samples.

    Parameters
    ----------
    calibration, simulation
        The dates of reference and historical, and of the simulation: daily, of any length, in one calendar.
    group, window
        "time.dayofyear" with a window of days, "5D" and "15D" with one of five-day steps (all odd; days that remain at
        the end of a year are of its last group), "time.month" or "time" without. A sample is the window around each
        group's days, up to the ends of the series or of the window of years.
    spans
        Windows of years (`dqm.windows.year_windows`), each a sample of its own; by default the whole simulation.
    """
    chosen = list(spans or [YearWindow(0, len(simulation), 0, len(simulation))])
    of_calibration = _samples(_labels(calibration, group), group, window)
    labels = _labels(simulation, group)
    layouts: dict[bytes, int] = {}
    samples: list[dict[int, _Sample]] = []
    rows = []
    for span in chosen:
        part = labels[span.first : span.last]
        if part.tobytes() not in layouts:
            layouts[part.tobytes()] = len(samples)
            samples.append(_samples(part, group, window))
        rows.append((*span, layouts[part.tobytes()]))
    groups = sorted({label for sample in samples for label in sample})
    known = np.array(sorted(of_calibration))
    # A calibration without leap years has no day 366: the day before stands for it.
    nearest = [int(known[max(int(np.searchsorted(known, label, side="right")) - 1, 0)]) for label in groups]
    return Plan(
        _joined([of_calibration[label] for label in nearest]),
        _joined([sample.get(label, _NOTHING) for sample in samples for label in groups]),
        np.array(rows, dtype=np.int64),
    )


def adjust(
    reference: np.ndarray,
    historical: np.ndarray,
    simulation: np.ndarray,
    plan: Plan,
    *,
    rotations: np.ndarray,
    levels: np.ndarray,
    variables: Sequence[Univariate],
    interp: str = "nearest",
    seeds: np.ndarray | None = None,
    traced: np.ndarray | None = None,
    threads: int = 1,
) -> np.ndarray:
    """Adjust variables together by MBCn (Cannon 2018, as xsdba's MBCn); the result has the simulation's type and shape.

    In each sample: values by their mean and standard deviation; rotations, after each of which every axis is adjusted
    by ranks; quantile delta mapping of each variable; and its values in the order of the ranks after the rotations.
    A day that lacks a variable is missing in all, and is NaN. A level has no factor where it is not finite: the nearest
    that is applies, and without any, values stay. All is computed in float64.

    Parameters
    ----------
    reference
        (variable, cell, time) over the calibration.
    historical, simulation
        (variable, cell, time) or (variable, cell, member, time), with the same members.
    rotations
        Orthogonal matrices in float64, (cell, pool, iteration, variable, variable). With a single pool, all members
        are a sample; with as many pools as members, each by itself, against its own historical.
    levels, interp
        Levels of the rotations' quantiles, and how factors lie between them, "nearest" or "linear", also in the
        univariate adjustment; constant beyond.
    variables
        How each is adjusted by itself.
    seeds
        Of the adaptation's draws, (cell, pool) in uint64.
    traced
        If given, in float64, filled with what `TRACED` names: (5, variable, cell, member, time). Ranks are from 1;
        a donor is the place of the value's day in (member, time).
    """
    shape = (*simulation.shape[:2], simulation.shape[2] if simulation.ndim == 4 else 1, simulation.shape[-1])
    members, modelled = simulation.reshape(shape), historical.reshape(*shape[:3], -1)
    adjusted = np.empty(shape, simulation.dtype)
    turns, draws = np.asarray(rotations, np.float64), seeds
    if draws is None:
        draws = np.zeros(rotations.shape[:2], np.uint64)
    most = max(one.levels.size for one in variables)
    of_levels = np.full((len(variables), most), np.nan)
    for row, one in zip(of_levels, variables, strict=True):
        row[: one.levels.size] = one.levels
    given = Univariates(
        np.array([one.kind == "*" for one in variables]),
        of_levels,
        np.array([one.levels.size for one in variables]),
        np.array([np.nan if one.threshold is None else one.threshold for one in variables]),
        np.array([np.nan if one.tail_factor is None else one.tail_factor for one in variables]),
        np.array([float(one.small) for one in variables]),
    )
    nowhere = np.empty((len(TRACED), 0, 0, 0, 0)) if traced is None else traced

    def kernel(cells: slice) -> None:
        out = np.full(members[:, cells].shape, np.nan)
        adjust_together(
            *(np.ascontiguousarray(one[:, cells], np.float64) for one in (reference[:, :, None], modelled, members)),
            np.ascontiguousarray(turns[cells]),
            np.asarray(levels, np.float64),
            interp == "linear",
            given,
            plan,
            np.ascontiguousarray(draws[cells]),
            out,
            nowhere[:, :, cells],
        )
        adjusted[:, cells] = out

    run_by_cells(kernel, shape[1], threads)
    return adjusted.reshape(simulation.shape)


# A group's time steps, and which of them are its own days, not the window's.
_Sample = tuple[np.ndarray, np.ndarray]
# Days of a group that has a window.
_LENGTHS = {"time.dayofyear": 1, "5D": 5, "15D": 15}
_NOTHING: _Sample = np.empty(0, np.int32), np.empty(0, np.bool_)


def _labels(axis: TimeAxis, group: str) -> np.ndarray:
    """Number the group of each time step."""
    days = np.asarray(axis.dayofyear)
    if group == "time":
        return np.zeros(days.size, np.int64)
    if group == "time.month":
        return np.asarray(axis.index.month, np.int64)
    if group == "time.dayofyear":
        return days.astype(np.int64)
    length = _LENGTHS[group]
    return np.minimum((days - 1) // length, axis.days_in_longest_year // length - 1).astype(np.int64)


def _samples(labels: np.ndarray, group: str, window: int) -> dict[int, _Sample]:
    """Return each group's sample: its runs of days, each with the window around it."""
    step = 1 if group == "time.dayofyear" else 5
    reach = max(window * step - _LENGTHS[group], 0) // 2 if group in _LENGTHS else 0
    bounds = [0, *(np.flatnonzero(np.diff(labels)) + 1).tolist(), labels.size]
    runs: dict[int, list[tuple[int, int]]] = {}
    for first, last in itertools.pairwise(bounds):
        runs.setdefault(int(labels[first]), []).append((first, last))
    made = {}
    for label, own in runs.items():
        parts = [np.arange(max(first - reach, 0), min(last + reach, labels.size)) for first, last in own]
        times = np.concatenate(parts).astype(np.int32)
        made[label] = times, labels[times] == label
    return made


def _joined(samples: list[_Sample]) -> Groups:
    starts = np.concatenate([[0], np.cumsum([times.size for times, _ in samples])]).astype(np.int64)
    times, central = map(np.concatenate, zip(*samples, strict=True))
    return Groups(times, central, starts)
