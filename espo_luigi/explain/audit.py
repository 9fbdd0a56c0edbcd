"""An audit by sample: random land cells and days of the products, made again from the raw files."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import DataError, ParameterError, StoreError
from espo_luigi.explain import cells
from espo_luigi.explain.cells import Cell, Made
from espo_luigi.explain.sentences import plain
from espo_luigi.explain.steps import why_xsdba
from espo_luigi.explain.values import TOLERANCE
from espo_luigi.explain.way import check_complete, made_of, step_of_difference
from espo_luigi.science import stack
from espo_luigi.science.calendar import day_of
from espo_luigi.tasks import partition
from espo_luigi.tasks.context import RunContext, context

# Cells that are adjusted together: a pool's members share a block of the kernels.
_CELLS_AT_ONCE = 50
# The days around a sample's day that are compared: those of its chunk of time, which is read whole.
_CHUNK = "time"
# How many differences are shown.
_SHOWN = 10


@dataclass(frozen=True)
class Sample:
    """A land cell of a simulation's product, and a part of its time from 0 to 1."""

    sim_id: str
    cell: Cell
    part: float


@dataclass(frozen=True)
class Difference:
    """The first value of a variable and sample that the product does not have: the step, and both values."""

    sim_id: str
    var: str
    step: str
    cell: Cell
    day: str
    made: float
    found: float

    def __str__(self) -> str:
        return (
            f"{self.step}: {self.var} of {self.sim_id} at {self.cell} on {self.day} is {self.found!r}, and "
            f"{self.made!r} when it is made again from the raw files"
        )


@dataclass(frozen=True)
class Row:
    """The comparison of a variable of a simulation: cells and values, and the largest difference."""

    sim_id: str
    var: str
    cells: int
    values: int
    identical: int
    largest: float


@dataclass(frozen=True)
class Audit:
    """The findings of an audit.

    Attributes
    ----------
    left_out
        Samples that could not be compared, by the reason.
    without_product
        Simulations whose products are not there.
    """

    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    left_out: Mapping[str, int]
    without_product: tuple[str, ...]
    seed: int
    seconds: float


@dataclass(frozen=True)
class _Compared:
    """A sample's comparison of a variable."""

    sim_id: str
    var: str
    values: int
    identical: int
    largest: float
    difference: Difference | None


def audit(number: int, seed: int) -> Audit:
    """Compare a random sample of the run's products with what their raw files give; reads each raw file once.

    Raises
    ------
    StoreError
        If no simulation's product is there, or the reference's stores are not.
    """
    began, run = time.monotonic(), context()
    _products.cache_clear()
    finals = {sim_id: run.archives(sim_id).values() for sim_id in run.simulations}
    there = [sim_id for sim_id, infos in finals.items() if all(store.is_complete(info.path) for info in infos)]
    missing = tuple(sim_id for sim_id in run.simulations if sim_id not in there)
    if not there:
        raise StoreError(f"none of {len(missing)} simulations has a product yet. Finish the run first (`espo status`).")
    by_pool: dict[str, list[Sample]] = defaultdict(list)
    for sample in draw(run, there, number, seed):
        by_pool[partition.pool_of(run, sample.sim_id)].append(sample)
    compared: list[_Compared] = []
    left_out: Counter[str] = Counter()
    for pool, samples in by_pool.items():
        # A member's archives stay open while its samples are compared.
        for sample, made in _remade(run, pool, sorted(samples, key=lambda one: one.sim_id), left_out):
            try:
                compared += _compare(run, sample, made, left_out)
            except ParameterError:
                left_out["outside of the simulation's domain"] += 1
    differences = tuple(one.difference for one in compared if one.difference is not None)
    return Audit(_rows(compared), differences, dict(left_out), missing, seed, time.monotonic() - began)


def draw(run: RunContext, simulations: Sequence[str], number: int, seed: int) -> list[Sample]:
    """Return random samples: simulations in turn, each land cell and each day being as likely as any other."""
    generator = np.random.default_rng(seed)
    lands = cells.lands(run)
    places = [np.flatnonzero(land.is_land) for land in lands]
    ends = np.cumsum([one.size for one in places])
    samples = []
    for index in range(number):
        chosen = int(generator.integers(ends[-1]))
        piece = int(np.searchsorted(ends, chosen, side="right"))
        cell = lands[piece].cell(int(places[piece][chosen - ends[piece]]))
        samples.append(Sample(simulations[index % len(simulations)], cell, float(generator.random())))
    return samples


def _remade(
    run: RunContext, pool: str, samples: Sequence[Sample], left_out: Counter[str]
) -> Iterator[tuple[Sample, Made]]:
    """Make the cells of a pool's samples again, from raw files read once."""
    by_piece: dict[str, list[Cell]] = defaultdict(list)
    for cell in dict.fromkeys(sample.cell for sample in samples):
        by_piece[cell.piece].append(cell)
    members = {name: cells.from_raw(run, name, by_piece) for name in partition.members(run, pool)}
    for piece, some in by_piece.items():
        of_piece = {name: pieces[piece] for name, pieces in members.items()}
        references = cells.references_of(run, some, next(iter(of_piece.values())))
        for first in range(0, len(some), _CELLS_AT_ONCE):
            own = some[first : first + _CELLS_AT_ONCE]
            at = {stack.STACKED_DIM: slice(first, first + _CELLS_AT_ONCE)}
            inputs = cells.Inputs(references.isel(at), {name: one.isel(at) for name, one in of_piece.items()})
            series = cells.adjust(run, pool, own, inputs)
            for sample in (sample for sample in samples if sample.cell in own):
                made = cells.finish(run, sample.sim_id, series, own.index(sample.cell))
                try:
                    check_complete(made.members, sample.cell)
                    yield sample, made
                except DataError:
                    left_out["inputs lack a year or more"] += 1


@functools.lru_cache(maxsize=2)
def _products(run: RunContext, sim_id: str) -> dict[str, xr.Dataset]:
    """The opened product of each variable: opening an archive takes longer than comparing a cell."""
    paths = {var: info.path for var, info in run.archives(sim_id).items()}
    opened = {path: cells.open_product(path) for path in set(paths.values())}
    return {var: opened[path] for var, path in paths.items()}


def _compare(run: RunContext, sample: Sample, made: Made, left_out: Counter[str]) -> Iterator[_Compared]:
    """Compare the chunk of time that has the sample's day."""
    drawn_in_blocks = {var for var in made.adjusted if why_xsdba(run, made, var)}
    for var, whole in _products(run, sample.sim_id).items():
        if drawn_in_blocks & made_of(run, made, var, 0)[0].keys():
            left_out[f"{var} is adjusted by xsdba, which draws random numbers for blocks of cells"] += 1
            continue
        product = cells.in_product(whole, run, sample.sim_id, sample.cell)[var]
        size = product.chunksizes[_CHUNK][0]
        first = int(sample.part * product.sizes[_CHUNK]) // size * size
        found = product.isel({_CHUNK: slice(first, first + size)}).load()
        again = made.product[var].isel({_CHUNK: slice(first, first + size)})
        yield _compared(run, sample, made, found, again)


def _compared(run: RunContext, sample: Sample, made: Made, found: xr.DataArray, again: xr.DataArray) -> _Compared:
    one, other = (data.values.astype(np.float64) for data in (again, found))
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    apart = np.where(equal, 0.0, np.abs(one - other))
    apart = np.where(np.isnan(apart), np.inf, apart)
    wrong = np.flatnonzero(apart > TOLERANCE * np.fmax(np.abs(one), np.abs(other)))
    var, difference = str(found.name), None
    if wrong.size:
        step = int(wrong[0])
        difference = Difference(
            sample.sim_id,
            var,
            step_of_difference(run, made),
            sample.cell,
            day_of(found["time"].values[step]),
            float(one[step]),
            float(other[step]),
        )
    return _Compared(sample.sim_id, var, one.size, int(equal.sum()), float(apart.max()), difference)


def _rows(compared: Sequence[_Compared]) -> tuple[Row, ...]:
    groups: dict[tuple[str, str], list[_Compared]] = defaultdict(list)
    for one in compared:
        groups[one.sim_id, one.var].append(one)
    return tuple(
        Row(
            sim_id,
            var,
            len(of_one),
            sum(one.values for one in of_one),
            sum(one.identical for one in of_one),
            max(one.largest for one in of_one),
        )
        for (sim_id, var), of_one in sorted(groups.items())
    )


def render(found: Audit) -> str:
    """Return a table of the comparisons, and the differences."""
    width = max((len(row.sim_id) for row in found.rows), default=10)
    lines = [
        f"{'simulation':<{width}}  {'variable':<8} {'cells':>6} {'values':>10} {'identical':>10}  largest difference"
    ]
    lines += [
        f"{row.sim_id:<{width}}  {row.var:<8} {row.cells:>6} {row.values:>10,} {row.identical:>10,}  {row.largest:.3g}"
        for row in found.rows
    ]
    lines += [f"left out: {number} sample(s), {reason}" for reason, number in found.left_out.items()]
    lines += [f"not checked, no product: {sim_id}" for sim_id in found.without_product]
    lines += [f"DIFFERENT {difference}" for difference in found.differences[:_SHOWN]]
    lines += [f"… and {len(found.differences) - _SHOWN} more"] if len(found.differences) > _SHOWN else []
    verdict = "differ from" if found.differences else "are those of"
    said = f"products {verdict} this run." if found.rows else "nothing was compared: no product is proved."
    lines.append(f"From raw file to product in {found.seconds:.0f} s (seed {found.seed}): {said}")
    return "\n".join(lines)


def as_json(found: Audit) -> dict[str, Any]:
    """Return an audit as values of JSON; a number that is none is null."""
    content: dict[str, Any] = plain(dataclasses.asdict(found))
    return content
