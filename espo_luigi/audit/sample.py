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
from espo_luigi.audit import cells
from espo_luigi.audit.cells import Cell, Made, Series
from espo_luigi.audit.shown import plain
from espo_luigi.audit.value import TOLERANCE, first_difference, made_of
from espo_luigi.errors import DataError, ParameterError, StoreError
from espo_luigi.science.calendar import day_of
from espo_luigi.science.choices import TREATED
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


def audit(number: int, seed: int) -> Audit:
    """Compare a random sample of the run's products with what their raw files give; reads each raw file once.

    Raises
    ------
    StoreError
        If no simulation's product is there, or the reference's stores are not.
    """
    began, run = time.monotonic(), context()
    _products.cache_clear()
    there = [
        sim_id
        for sim_id in run.simulations
        if all(store.is_complete(info.path) for info in run.archives(sim_id).values())
    ]
    missing = tuple(sim_id for sim_id in run.simulations if sim_id not in there)
    if not there:
        raise StoreError(f"none of {len(missing)} simulations has a product yet. Finish the run first (`espo status`).")
    by_pool: dict[str, list[Sample]] = defaultdict(list)
    for sample in draw(run, there, number, seed):
        by_pool[partition.pool_of(run, sample.sim_id)].append(sample)
    rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
    differences: list[Difference] = []
    left_out: Counter[str] = Counter()
    for pool, samples in by_pool.items():
        # A member's archives stay open while its samples are compared.
        for sample, made in _remade(run, pool, sorted(samples, key=lambda sample: sample.sim_id), left_out):
            try:
                for row, difference in _compare(sample, made, left_out):
                    rows[row.sim_id, row.var].append(row)
                    differences += [] if difference is None else [difference]
            except ParameterError:
                left_out["outside of the simulation's domain"] += 1
    in_order = tuple(
        Row(
            *key,
            len(own),
            sum(row.values for row in own),
            sum(row.identical for row in own),
            max(row.largest for row in own),
        )
        for key, own in sorted(rows.items())
    )
    return Audit(in_order, tuple(differences), dict(left_out), missing, seed, time.monotonic() - began)


def draw(run: RunContext, simulations: Sequence[str], number: int, seed: int) -> list[Sample]:
    """Return random samples: simulations in turn, each land cell and each day being as likely as any other."""
    generator = np.random.default_rng(seed)
    lands = cells.lands(run)
    places = [np.flatnonzero(land.is_land) for land in lands]
    ends = np.cumsum([of_piece.size for of_piece in places])
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
    pieces = dict.fromkeys(sample.cell.piece for sample in samples)
    places = {
        piece: np.unique([sample.cell.place for sample in samples if sample.cell.piece == piece]) for piece in pieces
    }
    members = {name: cells.from_raw(run, name, places) for name in partition.members(run, pool)}
    for piece, of_piece in places.items():
        of_members = {name: of_pieces[piece] for name, of_pieces in members.items()}
        reference = cells.references_of(run, piece, of_piece, next(iter(of_members.values())))
        for first in range(0, of_piece.size, _CELLS_AT_ONCE):
            part = slice(first, first + _CELLS_AT_ONCE)
            inputs = reference.isel(loc=part), {name: ds.isel(loc=part) for name, ds in of_members.items()}
            series = cells.adjust(run, Series(pool, piece, of_piece[part], *inputs))
            for sample in samples:
                if sample.cell.piece == piece and sample.cell.place in series.places:
                    try:
                        cells.check_complete(series.cell(sample.cell.place), sample.cell)
                        yield sample, cells.finish(run, sample.sim_id, sample.cell, series)
                    except DataError:
                        left_out["inputs lack a year or more"] += 1


@functools.lru_cache(maxsize=2)
def _products(run: RunContext, sim_id: str) -> dict[str, xr.Dataset]:
    """The opened product of each variable: opening an archive takes longer than comparing a cell."""
    paths = {var: info.path for var, info in run.archives(sim_id).items()}
    opened = {path: cells.open_product(path) for path in set(paths.values())}
    return {var: opened[path] for var, path in paths.items()}


def _compare(sample: Sample, made: Made, left_out: Counter[str]) -> Iterator[tuple[Row, Difference | None]]:
    """Compare the chunk of time that has the sample's day."""
    drawn_in_blocks = {var for var, ds in made.series.adjusted.items() if TREATED not in ds}
    for var, whole in _products(made.run, sample.sim_id).items():
        if drawn_in_blocks & made_of(made, var, 0)[0].keys():
            left_out[f"{var} is adjusted by xsdba, which draws random numbers for blocks of cells"] += 1
            continue
        product = cells.in_product(whole, made.run, sample.sim_id, sample.cell)[var]
        size = product.chunksizes[_CHUNK][0]
        first = int(sample.part * product.sizes[_CHUNK]) // size * size
        chunk = {_CHUNK: slice(first, first + size)}
        yield _compared(sample, made, product.isel(chunk).load(), made.product[var].isel(chunk))


def _compared(sample: Sample, made: Made, found: xr.DataArray, again: xr.DataArray) -> tuple[Row, Difference | None]:
    ours, theirs = (data.values.astype(np.float64) for data in (again, found))
    equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    apart = np.where(equal, 0.0, np.abs(ours - theirs))
    apart = np.where(np.isnan(apart), np.inf, apart)
    wrong = np.flatnonzero(apart > TOLERANCE * np.fmax(np.abs(ours), np.abs(theirs)))
    var, difference = str(found.name), None
    if wrong.size:
        step, stage = int(wrong[0]), first_difference(made, made.series.members[sample.sim_id])
        day = day_of(found["time"].values[step])
        difference = Difference(sample.sim_id, var, stage, sample.cell, day, float(ours[step]), float(theirs[step]))
    return Row(sample.sim_id, var, 1, ours.size, int(equal.sum()), float(apart.max())), difference


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
