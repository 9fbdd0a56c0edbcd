"""Training and adjusting a block of cells with our own kernels: xsdba's quantile mappings by day of year.

They are detrended quantile mapping, and quantile delta mapping.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr
from pydantic_core import InitErrorDetails

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.machine import given_cpus
from espo_luigi.methods import xsdba
from espo_luigi.methods.base import DEFAULT_METHOD, Array, Block, Method, Setup, Step, problem
from espo_luigi.methods.bounded import Bounded
from espo_luigi.methods.dqm import quantile_mapping, ranking
from espo_luigi.methods.dqm.kernels import TREATMENTS
from espo_luigi.methods.dqm.kernels.adjusting import MADE_WET
from espo_luigi.methods.dqm.windows import WindowPlan, plan_windows, spans_of
from espo_luigi.methods.xsdba import Options
from espo_luigi.science.attributes import QUANTILE, TREATED
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.chunks import REALIZATION

_TRAIN_ARGS = {"kind", "nquantiles", "adapt_freq_thresh", "max_tail_factor"}
QDM = "QuantileDeltaMapping"


class Kernels(Method):
    """Detrended quantile mapping, or quantile delta mapping, by our kernels: xsdba's numbers, many times as fast."""

    Training, Adjusting = xsdba.Training, xsdba.Adjusting
    counts = TREATMENTS
    # Enough to keep every thread busy; a block's memory grows with it. The members of a pool share them.
    cells_in_a_block = 600
    # Making dates for a block would take as long as many of its cells.
    dated = False

    def __init__(self, variant: str = "") -> None:
        if variant not in ("", QDM):
            raise ConfigurationError(f"method dqm.{variant}: expected dqm, or dqm.{QDM}")
        super().__init__(variant)
        self.method = variant or DEFAULT_METHOD

    def problems(self, training: Any, adjusting: Any) -> Iterator[InitErrorDetails]:
        """Yield an error for another method of xsdba's, and for what xsdba's errors are, too."""
        if training.method != self.method:
            yield problem(
                f"the method {self.name} is {self.method} alone", ("training_args", "method"), training.method
            )
        yield from xsdba.Xsdba(self.method).problems(training, adjusting)

    @staticmethod
    def why_not(setup: Setup, method: str = DEFAULT_METHOD) -> str | None:
        """Say why the kernels cannot do what a method of xsdba does; None if they can."""
        options = Options.of(setup, method)
        if method not in (DEFAULT_METHOD, QDM):
            return f"the kernels have no {method}"
        if others := set(options.train) - _TRAIN_ARGS:
            return f"the kernels have no {', '.join(sorted(others))}"
        if options.additive_space and options.adapt_freq is not None:
            return "the kernels adapt no frequencies in an additive_space"
        if options.adapt_freq is not None and options.adapt_freq_group != options.group:
            return f"the kernels adapt frequencies in the training's groups, not in {options.adapt_freq_group}"
        if options.group.name != "time.dayofyear":
            return f"the kernels do days of year, not {options.group}"
        try:
            _windows(setup.time, options.group.window)
        except DataError as error:
            return str(error)
        return xsdba.why_no_kernels(method, options.adjust) if setup.adjusting else None

    def chosen(self, setup: Setup) -> Method:
        """Return itself; raise `ConfigurationError` if the kernels cannot do this."""
        if reason := self.why_not(setup, self.method):
            raise ConfigurationError(f"method {self.name}: {reason}. Take {self.method}, which takes xsdba then.")
        xsdba.check_pool(setup)
        return self

    def bits(self, setup: Setup) -> dict[str, int]:
        """Return the bits of what the arguments ask for, and of extrapolated days."""
        options = Options.of(setup, self.method)
        adapts = options.adapt_freq is not None or options.adapt_freq_thresh is not None
        limits = options.train.get("max_tail_factor") is not None
        asked = {"jittered": options.jitter_under is not None, "made_wet": adapts, "limited": limits}
        return {name: bit for name, bit in super().bits(setup).items() if asked.get(name, True)}

    def ranks(self, setup: Setup) -> bool:
        """Return True for quantile delta mapping in windows of years and of days."""
        options = Options.of(setup, self.method)
        return self.method == QDM and bool(options.adjust.get("rank_window") and options.year_windows)

    def layout(self, setup: Setup) -> dict[str, Array]:
        """Return the arrays of a training, by day of year."""
        options = Options.of(setup, self.method)
        days = {"dayofyear": np.arange(1, setup.time.days_in_longest_year + 1)}
        by_quantile = days | {"quantiles": _quantiles(options).astype(setup.dtype)}
        units = {"units": setup.unit}
        arrays = {"af": Array(by_quantile, attrs=units), "hist_q": Array(by_quantile, attrs=units)}
        if self.method == DEFAULT_METHOD:
            arrays["scaling"] = Array(days, attrs=units)
        if options.adapt_freq is not None:
            arrays |= {"pth": Array(days, "float64", units), "dP0": Array(days, "float64", {"units": "1"})}
        if options.train.get("max_tail_factor") is not None:
            arrays["hist_q_raw"] = Array(by_quantile, attrs=units)
        if options.adapt_freq_thresh is not None:
            of_members = days | ({} if setup.members is None else {REALIZATION: len(setup.members)})
            arrays |= {name: Array(of_members, attrs={"units": "1"}) for name in ("P0_ref", "P0_hist")}
            arrays["pth"] = Array(of_members, attrs=units)
        return arrays

    def train(self, block: Block, setup: Setup) -> xr.Dataset:
        """Train on a block."""
        options = Options.of(setup, self.method)
        reference, historical = (
            _flat(block[name], block["cell"]).astype(setup.dtype, copy=False) for name in ("reference", "historical")
        )
        _check_members(historical, setup)
        plan = _windows(setup.time, options.group.window)
        of_members = _seeds_of_members(block, setup)
        own = of_members.ravel() if setup.members is None else _cell_seeds(block, setup.seed)
        pth, dry_share, threads = None, None, given_threads()
        if (noise := options.jitter_under) is not None:
            reference = quantile_mapping.jitter(reference, noise, seeds=own, series="reference", threads=threads)
            historical = quantile_mapping.jitter(historical, noise, seeds=of_members, threads=threads)
        if options.adapt_freq is not None:
            historical, pth, dry_share = quantile_mapping.adapt_frequencies(
                reference, historical, plan, options.adapt_freq, seeds=own, threads=threads
            )
        if space := Bounded.of(setup.units, options.additive_space):
            reference, historical = (
                _transformed(one, space, name) for name, one in (("reference", reference), ("simulation", historical))
            )
        made = quantile_mapping.train(
            reference,
            historical,
            plan,
            quantiles=_quantiles(options),
            kind=options.kind,
            detrended=self.method == DEFAULT_METHOD,
            raw=options.train.get("max_tail_factor") is not None,
            adapt_freq_thresh=options.adapt_freq_thresh,
            small=options.small,
            seeds=of_members,
            threads=threads,
        )
        arrays: dict[str, np.ndarray | None] = {
            "af": made.factors,
            "hist_q": made.historical_quantiles,
            "hist_q_raw": made.raw_quantiles,
            "scaling": made.scaling,
            "pth": pth,
            "dP0": dry_share,
        }
        if made.shares is not None:
            new = zip(("P0_ref", "P0_hist", "pth"), made.shares, strict=True)
            arrays |= {name: one if setup.members is not None else one[..., 0] for name, one in new}
        return xr.Dataset(
            {
                name: _shaped(block, _all_days(arrays[name], plan.dayofyear, setup), tuple(array.dims))
                for name, array in self.layout(setup).items()
            }
        )

    def adjust(self, block: Block, trained: xr.Dataset, setup: Setup) -> xr.Dataset:
        """Adjust a block; bit n of `treated` marks the days that are treated as `TREATMENTS[n]` says."""
        options, given = Options.of(setup, self.method), _flat(block["simulation"], block["cell"])
        _check_members(given, setup)
        simulation, noise = _with_noise(given, block, setup), options.jitter_under
        is_noise = None if noise is None else given < noise
        del given  # a sixth of the peak
        if space := Bounded.of(setup.units, options.additive_space):
            simulation = _transformed(simulation, space, "simulation")
        if self.method == QDM:
            ranked, how = _ranked(block, trained, setup)
            if setup.keeps_ranks and self.ranks(setup):
                how["traced"] = np.empty((1, len(simulation), simulation[0].size // len(setup.time), len(setup.time)))
            adjusted, treated = ranking.adjust(simulation, *ranked, **how, threads=given_threads())
        else:
            training, plan, how = _trained(block, trained, setup)
            adjusted, treated = quantile_mapping.adjust(simulation, training, plan, **how, threads=given_threads())
        if space:
            quantile_mapping.run_by_cells(lambda cells: space.put_back(adjusted[cells]), len(adjusted), given_threads())
        if is_noise is not None:
            if self.method == QDM and options.kind == "*":  # a dry day stays dry
                adjusted[is_noise & ((treated & MADE_WET) == 0)] = 0
            treated |= is_noise.view(np.uint8) << TREATMENTS.index("jittered")
        dims = ("time",) if setup.members is None else (REALIZATION, "time")
        made = {"scenario": adjusted, TREATED: treated}
        if "traced" in how:
            made[QUANTILE] = ranking.as_quantiles(how["traced"].reshape(adjusted.shape))
        return xr.Dataset({name: _shaped(block, values, dims) for name, values in made.items()})

    def steps(
        self, block: Block, trained: xr.Dataset, setup: Setup, day: int, member: int = 0, variable: str = ""
    ) -> list[Step]:
        """Return the steps of a value; the last is the scenario's."""
        from espo_luigi.methods.dqm.steps import steps_by_rank, steps_of_day

        flat, options, first = _flat(block["simulation"], block["cell"]), Options.of(setup, self.method), []
        given, series = (one.reshape(-1, len(setup.time)) for one in (flat, _with_noise(flat, block, setup)))
        units, noise = setup.unit, options.jitter_under
        if noise is not None and given[member, day] < noise:
            first = [Step("noise", float(series[member, day]), units, f"Values below {noise:.4g} {units} are.")]
        if space := Bounded.of(setup.units, options.additive_space):
            series, units = space.transformed(series), "1"
            first.append(Step(space.trans, float(series[member, day]), units, space.sentence))
        if self.method == QDM:
            ranked, how = _ranked(block, trained, setup)
            made = steps_by_rank(series, *ranked, **how, units=units, step=day, member=member)
            was_dry = noise is not None and given[member, day] < noise
            if was_dry and all(one.value == series[member, day] for one in made if one.name == "made wet"):
                made.append(Step("dry", 0.0, units, "Noise is 0 again."))
        else:
            training, plan, how = _trained(block, trained, setup)
            how |= {"units": units, "levels": trained["quantiles"].values, "step": day, "member": member}
            made = steps_of_day(series, training, plan, **how)
        if space:
            back = np.array([made[-1].value], setup.dtype)
            space.put_back(back)
            made.append(Step("back", float(back[0]), setup.unit, f"The inverse of {space.trans}, within the bounds."))
        return first + made


def _trained(
    block: Block, trained: xr.Dataset, setup: Setup
) -> tuple[quantile_mapping.Training, quantile_mapping.AdjustmentPlan, dict[str, Any]]:
    """Return the training, the plan and the other arguments of `quantile_mapping.adjust`."""
    options = Options.of(setup)
    arrays = {str(name): _flat(one, block["cell"]) for name, one in trained.data_vars.items()}
    loess = options.adjust["detrend"]["LoessDetrend"] or {}
    plan = _plan(setup.time, options.group.window, float(loess.get("f", 0.2)), trained.sizes["dayofyear"])
    if options.adjust.get("interp") == "nearest_quantile":
        plan = plan._replace(reach=np.inf)
    how = {
        "kind": options.kind,
        "skips_zeros": bool(loess.get("mult_skip_zeros")),
        "adaptation": _adaptation(arrays, _seeds_of_members(block, setup), options),
    }
    return quantile_mapping.Training(arrays["af"], arrays["hist_q"], arrays["scaling"]), plan, how


# All blocks of a period share these.
@functools.lru_cache(maxsize=4)
def _windows(time: TimeAxis, window: int) -> WindowPlan:
    return plan_windows(time.dayofyear, window)


@functools.lru_cache(maxsize=4)
def _plan(time: TimeAxis, window: int, fraction: float, n_training_days: int) -> quantile_mapping.AdjustmentPlan:
    return quantile_mapping.plan_adjustment(
        time.dayofyear, time.days, window=window, fraction=fraction, n_training_days=n_training_days
    )


@functools.lru_cache(maxsize=4)
def _ranks(
    time: TimeAxis, of_years: tuple[tuple[str, int], ...], window: int, n_training_days: int, pool: int | None
) -> list[ranking.RankPlan]:
    spans = spans_of(time.year, dict(of_years))
    return ranking.plan_ranks(
        time.dayofyear, time.days, spans, window=window, n_training_days=n_training_days, pool=pool
    )


def _transformed(values: np.ndarray, space: Bounded, series: str) -> np.ndarray:
    """Return a bounded series, (cell, …, time), where additive factors keep its bounds."""
    space.check(values, series)
    out = np.empty_like(values)

    def transform(cells: slice) -> None:
        out[cells] = space.transformed(values[cells])

    quantile_mapping.run_by_cells(transform, len(values), given_threads())
    return out


def _ranked(
    block: Block, trained: xr.Dataset, setup: Setup
) -> tuple[tuple[np.ndarray, np.ndarray, list[ranking.RankPlan]], dict[str, Any]]:
    """Return factors, levels and plans, and the other arguments of `ranking.adjust`."""
    options = Options.of(setup, QDM)
    arrays = {str(name): _flat(one, block["cell"]) for name, one in trained.data_vars.items()}
    in_window = bool(options.adjust.get("rank_window"))
    # xsdba ranks members together only where it ranks within the window.
    pool = len(setup.members) if in_window and setup.members is not None else None
    window = options.group.window if in_window else 1
    plans = _ranks(setup.time, tuple(options.year_windows.items()), window, trained.sizes["dayofyear"], pool)
    how = {"kind": options.kind, "adaptation": _adaptation(arrays, _seeds_of_members(block, setup), options)}
    return (arrays["af"], trained["quantiles"].values.astype(arrays["af"].dtype), plans), how


def _with_noise(values: np.ndarray, block: Block, setup: Setup) -> np.ndarray:
    """Return the simulation, (cell, time) or (cell, member, time), with noise if there has to be some."""
    noise = Options.of(setup).jitter_under
    if noise is None:
        return values
    of_members = _seeds_of_members(block, setup)
    return quantile_mapping.jitter(values, noise, seeds=of_members, series="simulation", threads=given_threads())


def _adaptation(
    arrays: Mapping[str, np.ndarray], of_members: np.ndarray, options: Options
) -> quantile_mapping.Adaptation:
    """Return how the training adapted dry days and limited tails."""
    made = quantile_mapping.Adaptation.none(arrays["af"].dtype)
    if options.adapt_freq_thresh is not None:
        shares = [arrays[name] for name in ("P0_ref", "P0_hist", "pth")]
        made = dataclasses.replace(
            made,
            threshold=options.adapt_freq_thresh,
            shares=quantile_mapping.Shares(*(one.reshape(*one.shape[:2], -1) for one in shares)),
            seeds=of_members,
            nearby=bool(options.small),
        )
    if (factor := options.train.get("max_tail_factor")) is not None:
        tails = arrays["hist_q_raw"][..., -1]
        made = dataclasses.replace(made, limits=tails.dtype.type(factor) * tails)
    return made


def _cell_seeds(block: Block, seed: str) -> np.ndarray:
    return quantile_mapping.cell_seeds(seed, block["cell"].values)


def _seeds_of_members(block: Block, setup: Setup) -> np.ndarray:
    """Seeds (cell, member)."""
    return quantile_mapping.seeds_of_members(setup.member_seeds, block["cell"].values)


def _check_members(values: np.ndarray, setup: Setup) -> None:
    """Check that each member of a pool has values if any has."""
    if setup.members is None or len(setup.members) == 1:
        return
    empty = np.array([np.isnan(values[:, member]).all() for member in range(len(setup.members))])
    if empty.any() and not empty.all():
        without = ", ".join(label for label, lacks in zip(setup.members, empty, strict=True) if lacks)
        raise DataError(
            f"No value of the members {without} in {setup.time}, where the pool's other members have values; "
            "a pool needs the same years of all. Leave them out of the pool, or shorten the period."
        )


def _flat(data: xr.DataArray, cell: xr.DataArray) -> np.ndarray:
    """Return an array, whose first dimensions are the cells', with all cells along the first axis."""
    return np.ascontiguousarray(data.values).reshape(cell.size, *data.shape[cell.ndim :])


def _shaped(block: Block, values: np.ndarray, last: tuple[str, ...]) -> xr.DataArray:
    """Inverse of `_flat`."""
    cell = block["cell"]
    return xr.DataArray(values.reshape(*cell.shape, *values.shape[1:]), dims=(*cell.dims, *last))


def _all_days(values: np.ndarray | None, days: np.ndarray, setup: Setup) -> np.ndarray:
    """Fill absent days of year with NaN (29 February's in a period without leap years)."""
    assert values is not None
    longest = setup.time.days_in_longest_year
    if days.size == longest:
        return values
    filled = np.full((values.shape[0], longest, *values.shape[2:]), np.nan, dtype=values.dtype)
    filled[:, days - 1] = values
    return filled


def _quantiles(options: Options) -> np.ndarray:
    return levels_of(options.train.get("nquantiles", xsdba.NQUANTILES_OF_OTHERS))


def levels_of(asked: Any) -> np.ndarray:
    """Return the middles of so many equal bins, to xsdba's last bit, or the quantiles that are given."""
    if not isinstance(asked, (int, np.integer)):
        return np.asarray(asked)
    half_bin = 1 / int(asked) / 2
    return np.linspace(half_bin, 1 - half_bin, int(asked))


def given_threads() -> int:
    """Return all CPUs if this process computes a block at a time, or 1 if Dask runs a block in each of its threads."""
    return given_cpus() if threading.current_thread() is threading.main_thread() else 1
