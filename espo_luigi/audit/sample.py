"""An audit by sample: random land cells and days of the products, made again from the raw files."""

from __future__ import annotations

import functools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.audit import cells
from espo_luigi.audit.cells import Cell, Made, Series
from espo_luigi.audit.value import TOLERANCE, first_difference
from espo_luigi.errors import DataError, ParameterError, StoreError
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


@dataclass
class Row:
    """The comparison of a variable of a simulation: cells and values, and the largest difference."""

    sim_id: str
    var: str
    cells: int = 0
    values: int = 0
    identical: int = 0
    largest: float = 0.0

    def add(self, apart: np.ndarray) -> None:
        """Count the differences of a cell."""
        self.cells += 1
        self.values += apart.size
        self.identical += int((apart == 0).sum())
        self.largest = max(self.largest, float(apart.max()))


@dataclass(frozen=True)
class Audit:
    """The findings of an audit.

    `left_out` counts samples that cannot be compared, `failures` those that cannot be made again, by the reason.
    """

    rows: list[Row]
    differences: list[Difference]
    left_out: Mapping[str, int]
    without_product: list[str]
    seed: int
    seconds: float
    failures: Mapping[str, int] = field(default_factory=dict)


def audit(number: int, seed: int) -> Audit:
    """Compare a random sample of the run's products with what their raw files give; reads each raw file once.

    A method that draws random numbers for blocks of cells takes a reading for each block.

    Raises
    ------
    StoreError
        If no simulation's product is there, or the reference's stores are not.
    """
    began, run = time.monotonic(), context()
    _products.cache_clear()
    finals = {sim_id: run.archives(sim_id).values() for sim_id in run.simulations}
    there = [sim_id for sim_id, infos in finals.items() if all(store.is_complete(info.path) for info in infos)]
    missing = [sim_id for sim_id in run.simulations if sim_id not in there]
    if not there:
        raise StoreError(f"none of {len(missing)} simulations has a product yet. Finish the run first (`espo status`).")
    by_pool: dict[str, list[Sample]] = defaultdict(list)
    for sample in draw(run, there, number, seed):
        by_pool[partition.pool_of(run, sample.sim_id)].append(sample)
    rows: dict[tuple[str, str], Row] = {}
    differences: list[Difference] = []
    left_out: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for pool, samples in by_pool.items():
        # A member's archives stay open while its samples are compared.
        made_again = _remade if run.config.downscaling is None else _downscaled
        for series, sample in made_again(run, pool, sorted(samples, key=lambda sample: sample.sim_id)):
            try:
                cells.check_complete(series.alone(sample.cell.place), sample.cell, run.config.biasadjust.adjusted)
            except DataError:
                left_out["inputs lack a year or more"] += 1
                continue
            try:
                for var, apart, difference in _compare(sample, cells.finish(run, sample.sim_id, sample.cell, series)):
                    rows.setdefault((sample.sim_id, var), Row(sample.sim_id, var)).add(apart)
                    differences += difference
            except DataError as error:
                failures[str(error).partition("\n")[0]] += 1
            except ParameterError:
                left_out["outside of the simulation's domain"] += 1
    in_order = [rows[key] for key in sorted(rows)]
    return Audit(in_order, differences, dict(left_out), missing, seed, time.monotonic() - began, dict(failures))


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


def _remade(run: RunContext, pool: str, samples: Sequence[Sample]) -> Iterator[tuple[Series, Sample]]:
    """Yield each sample with adjusted cells that have its own."""
    places = {
        piece: np.unique([sample.cell.place for sample in samples if sample.cell.piece == piece])
        for piece in dict.fromkeys(sample.cell.piece for sample in samples)
    }
    members = {name: cells.from_raw(run, name, places) for name in partition.members(run, pool)}
    for piece, of_piece in places.items():
        given = cells.series_of(pool, piece, of_piece, {name: of[piece] for name, of in members.items()})
        for series in _adjusted(run, given):
            for sample in samples:
                if sample.cell.piece == piece and sample.cell.place in series.places:
                    yield series, sample


def _downscaled(run: RunContext, pool: str, samples: Sequence[Sample]) -> Iterator[tuple[Series, Sample]]:
    """Yield each sample with its cell, downscaled of the coarse cells around it."""
    piece = partition.adjusted_piece(run, pool)
    around = [cells.coarse_places(run, pool, sample.cell) for sample in samples]
    every = np.unique(np.concatenate(around))
    raw = {name: cells.from_raw(run, name, {piece: every})[piece] for name in partition.members(run, pool)}
    for sample, places in zip(samples, around, strict=True):
        members = {name: ds.isel(loc=np.searchsorted(every, places)) for name, ds in raw.items()}
        if any(bool(ds.isel(time=0).isnull().to_array().all()) for ds in members.values()):
            continue  # a regional simulation ends before these cells
        given = cells.series_of(pool, piece, places, members)
        yield cells.downscale(run, cells.adjust(given, run.production.needed()), sample.cell), sample


def _adjusted(run: RunContext, given: Series) -> Iterator[Series]:
    """Adjust cells of a piece in groups; cells that share random draws in whole blocks, which are read one by one."""
    needed = run.production.needed()
    size = cells.cells_drawn_together(given, needed)
    if not size:
        for first in range(0, given.places.size, _CELLS_AT_ONCE):
            yield cells.adjust(given.cells(slice(first, first + _CELLS_AT_ONCE)), needed)
        return
    for number in np.unique(given.places // size):
        block = cells.block_of(run, given.piece, int(number) * size, size)
        members = {name: cells.from_raw(run, name, {given.piece: block})[given.piece] for name in given.members}
        yield cells.adjust(cells.series_of(given.pool, given.piece, block, members), needed)


@functools.lru_cache(maxsize=2)
def _products(run: RunContext, sim_id: str) -> dict[str, xr.Dataset]:
    """The opened product of each variable: opening an archive takes longer than comparing a cell."""
    paths = {var: info.path for var, info in run.archives(sim_id).items()}
    opened = {path: cells.open_product(path) for path in set(paths.values())}
    return {var: opened[path] for var, path in paths.items()}


def _compare(sample: Sample, made: Made) -> Iterator[tuple[str, np.ndarray, list[Difference]]]:
    """Compare the chunk of time that has the sample's day: the variable, absolute differences, and the first of all."""
    for var, whole in _products(made.run, sample.sim_id).items():
        product = cells.in_product(whole, made.run, sample.sim_id, sample.cell)[var]
        size = product.chunksizes[_CHUNK][0]
        first = int(sample.part * product.sizes[_CHUNK]) // size * size
        chunk = {_CHUNK: slice(first, first + size)}
        found = product.isel(chunk).load()
        ours, theirs = (data.values.astype(np.float64) for data in (made.product[var].isel(chunk), found))
        equal = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        apart = np.where(equal, 0.0, np.nan_to_num(np.abs(ours - theirs), nan=np.inf))
        differences = []
        for step in np.flatnonzero(apart > TOLERANCE * np.fmax(np.abs(ours), np.abs(theirs)))[:1]:
            stage, day = first_difference(made, made.series.members[sample.sim_id]), day_of(found["time"].values[step])
            own = sample.sim_id, var, stage, sample.cell, day, float(ours[step]), float(theirs[step])
            differences.append(Difference(*own))
        yield var, apart, differences


def render(found: Audit) -> str:
    """Return a table of the comparisons, and the differences."""
    width = max((len(row.sim_id) for row in found.rows), default=10)
    head = f"{'simulation':<{width}}  {'variable':<8} {'cells':>6} {'values':>10} {'identical':>10}  largest difference"
    lines = [
        f"{row.sim_id:<{width}}  {row.var:<8} {row.cells:>6} {row.values:>10,} {row.identical:>10,}  {row.largest:.3g}"
        for row in found.rows
    ]
    lines += [f"left out: {number} sample(s), {reason}" for reason, number in found.left_out.items()]
    lines += [f"not checked, no product: {sim_id}" for sim_id in found.without_product]
    lines += [f"FAILED {number} sample(s): {reason}" for reason, number in found.failures.items()]
    lines += [f"DIFFERENT {difference}" for difference in found.differences[:_SHOWN]]
    lines += [f"… and {len(found.differences) - _SHOWN} more"] if len(found.differences) > _SHOWN else []
    verdict = "differ from" if found.differences else "are those of"
    as_far = ", as far as they could be compared" if found.failures else ""
    said = f"products {verdict} this run{as_far}." if found.rows else "nothing was compared: no product is proved."
    return "\n".join([head, *lines, f"From raw file to product in {found.seconds:.0f} s (seed {found.seed}): {said}"])
