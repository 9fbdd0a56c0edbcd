"""Flags of values and cells: bits that say why to doubt them, in a product's store of flags.

Of each variable `pr` there are `pr_flags` (time and cells, uint16) and `pr_cell_flags` (cells, uint8), whose attributes
`flag_masks` and `flag_meanings` (CF 3.5) name the bits, and `flag_ranks` their ranks. The first eight bits of a day are
the method's: what it marks, by its `counts`. A variable that is derived from others has the flags of these.

The values of a product, rounded and clipped, are compared with the reference's of the same variable: derived ones, too,
if the reference has them. Flags of a signal are those of the adjusted variables that a value is made of.

On their way, flags are variables beside the values, in the same stores, and are computed with them. The product's
archive is packed without them, and that of flags with nothing else. A sum of a bit is the number of treated days, which
products without flags have as attributes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial, reduce
from operator import itemgetter, or_
from typing import Any

import dask.array
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import TimeAxis, convert
from espo_luigi.science.chunks import indexer, rechunk
from espo_luigi.science.derivations import Consistency
from espo_luigi.science.limits import FEW_WET_DAYS, MUCH_IN_ARID_MONTHS, NEARLY_ALL_DAYS, Rank, is_outside
from espo_luigi.science.periods import AlignOn
from espo_luigi.science.possible import over_blocks
from espo_luigi.science.units import convert_to, units_of
from espo_luigi.science.variables import Kind

# The variables of a regridded simulation that are compared with each other.
_COMPARED = ("tasmax", "tasmin", "dtr")
_OF_DAYS, _OF_CELLS, _REPAIRED = "_flags", "_cell_flags", "_is_repaired"
# Between a variable and a meaning, in the name of a map of days.
COUNTED = "_days_"
# The bits of a day after the method's eight, and those of a cell, each with its rank.
DAYS: Mapping[str, Rank] = {
    "clipped": "for_information", "exchanged": "for_information", "crossed_before": "for_information",
    "filled_in_time": "look", "repaired": "look", "beyond_the_record": "look", "beyond_the_season": "look",
}  # fmt: skip
CELLS: Mapping[str, Rank] = {
    "extrapolated_in_space": "look", "signal_distorted": "look", "sign_flipped": "do_not_use",
    "signal_not_judged": "for_information", "arid": "look",
}  # fmt: skip
# Further bits of a cell, and of a day, in products that are downscaled.
DOWNSCALED: Mapping[str, Rank] = {"coarse_cell_missing": "look"}
DOWNSCALED_DAYS: Mapping[str, Rank] = {"downscaled_beyond": "for_information"}
_BITS = {name: np.uint16(1 << place) for place, name in enumerate(DAYS, 8)}
_BITS_OF_CELLS = {name: np.uint8(1 << place) for place, name in enumerate(CELLS)}
_BITS_OF_DOWNSCALED: dict[str, Any] = {
    **{name: np.uint8(1 << place) for place, name in enumerate(DOWNSCALED, len(CELLS))},  # of cells
    **{name: np.uint16(1 << place) for place, name in enumerate(DOWNSCALED_DAYS, 8 + len(DAYS))},
}
_THE_METHODS = np.uint16(0xFF)
_OF_SIGNAL = (
    "signal_distorted and sign_flipped: of the change, as adjusted, against that of the simulation regridded to these "
    "cells; signal_not_judged: too few days, or no ratio to a mean of 0. arid: amounts rest on factors of few wet days."
)


def is_flags(name: Hashable) -> bool:
    """Return whether a variable of this name has flags."""
    return str(name).endswith(_OF_DAYS)


def flags_name(variable: str, of: str = "days") -> str:
    """Return the name of a variable's flags of `days` or `cells`."""
    return f"{variable}{_OF_DAYS if of == 'days' else _OF_CELLS}"


def rank_of(flag: str) -> Rank:
    """Return how much a flag of days or cells matters; what a method marks is for information."""
    return {**DAYS, **CELLS, **DOWNSCALED, **DOWNSCALED_DAYS}.get(flag, "for_information")


def beside(ds: Mapping[Any, Any], names: Iterable[str]) -> list[str]:
    """Return those of a dataset's variables that have these names, or are their flags or maps of `days_of`."""
    wanted = {each for name in names for each in (name, flags_name(name), flags_name(name, "cells"))}
    return [str(name) for name in ds if name in wanted or str(name).partition(COUNTED)[0] in wanted]


def meanings(flags: xr.DataArray) -> dict[str, int]:
    """Return the masks of an array of flags by their meanings."""
    masks = np.atleast_1d(flags.attrs.get("flag_masks", [])).astype(int)
    return dict(zip(str(flags.attrs.get("flag_meanings", "")).split(), masks.tolist(), strict=True))


def days_of(bits: xr.DataArray, variable: str) -> dict[str, xr.DataArray]:
    """Return maps of the days on which each bit is raised, uint32, by name, such as pr_days_made_wet; lazy.

    Each block is read once, for all of its bits. Bits of cells count as those of a day.
    """
    masks, days = meanings(bits), (bits if "time" in bits.dims else bits.expand_dims("time")).transpose("time", ...)
    data = dask.array.asarray(days.data)
    chunks = ((1,) * data.numblocks[0], (len(masks),), *data.chunks[1:])
    meta = np.empty((0,) * (data.ndim + 1), np.uint32)
    counts = data.map_blocks(_count_bits, list(masks.values()), new_axis=1, chunks=chunks, meta=meta).sum(
        axis=0, dtype=np.uint32
    )
    first = days.isel(time=0, drop=True).drop_attrs(deep=False)
    return {f"{variable}{COUNTED}{kind}": first.copy(data=counts[at]) for at, kind in enumerate(masks)}


def _count_bits(block: np.ndarray, masks: Sequence[int]) -> np.ndarray:
    counts = np.zeros((1, len(masks), *block.shape[1:]), np.uint32)
    # Most bits are raised in few blocks.
    there = int(np.bitwise_or.reduce(block, axis=None))
    for at, mask in enumerate(masks):
        if there & mask:
            counts[0, at] = np.count_nonzero(block & mask, axis=0)
    return counts


def raised(flags: xr.Dataset, variable: str, step: int) -> list[str]:
    """Return the meanings of the flags that are raised at a single cell, on a day and of the cell."""
    both = flags[flags_name(variable)].isel(time=step), flags[flags_name(variable, "cells")]
    return [name for bits in both for name, mask in meanings(bits).items() if int(bits) & mask]


def with_flag(flags: xr.DataArray, where: xr.DataArray, name: str) -> xr.DataArray:
    """Return flags of days with one of `DAYS` raised where it is true, beside those that are; lazy."""
    raised = flags | where.transpose(*flags.dims) * _BITS[name]
    return raised.drop_attrs(deep=False).assign_attrs(flags.attrs)


def of_downscaled(flags: xr.DataArray, where: xr.DataArray, name: str, variable: str) -> xr.DataArray:
    """Return flags with one of downscaled products raised where it is true, beside those that are; lazy."""
    bit, of = _BITS_OF_DOWNSCALED[name], "cells" if name in DOWNSCALED else "days"
    raised: xr.DataArray = flags | where.transpose(*[dim for dim in flags.dims if dim in where.dims]) * bit
    return raised.transpose(*flags.dims).assign_attrs(_names({**meanings(flags), name: bit}, variable, of))


def inherited(ds: Mapping[Any, xr.DataArray], made_of: Mapping[str, Sequence[str]]) -> dict[str, xr.DataArray]:
    """Return the flags of variables that are made of others, by name: all of these. Lazy.

    The methods' own are left out where a bit has several names. Variables of which no input has flags have none.
    """
    made = {}
    for name, inputs in made_of.items():
        if not any(flags_name(variable) in ds for variable in inputs):
            continue
        days, cells = ([_flags_of(ds, variable, of) for variable in inputs] for of in ("days", "cells"))
        pairs = {pair for bits in days for pair in meanings(bits).items()}
        own = dict(pairs)
        if len({*own.values()}) < len(pairs):
            own = {one: bit for one, bit in own.items() if one in DOWNSCALED_DAYS}
            days = [bits & ~_THE_METHODS for bits in days]
        made[flags_name(name)] = reduce(or_, days).assign_attrs(_names(own, name))
        further = {one: bit for bits in cells for one, bit in meanings(bits).items() if one in DOWNSCALED}
        made[flags_name(name, "cells")] = reduce(or_, cells).assign_attrs(_names(further, name, "cells"))
    return made


def _flags_of(ds: Mapping[Any, Any], variable: str, of: str = "days") -> Any:
    if (name := flags_name(variable, of)) not in ds:
        raise DataError(
            f"{variable} has no {name}: it was made before the section `flags` was given. Make it again "
            "(`[espo] rerun = stale`), or leave out the section."
        )
    return ds[name]


def require_flags(ds: xr.Dataset) -> None:
    """Raise a `DataError` unless each series has flags."""
    for name in (str(name) for name, data in ds.data_vars.items() if "time" in data.dims and not is_flags(name)):
        _flags_of(ds, name)


def of_temperatures(ds: Mapping[Any, xr.DataArray], before: xr.DataArray, how: Consistency) -> dict[str, xr.DataArray]:
    """Return the flags of tasmax and tasmin that are made consistent; `before` is tasmax - tasmin before. Lazy."""
    made = inherited(ds, {"tasmax": ("tasmax",), "tasmin": ("tasmin",) if how == "swap" else ("tasmax", "dtr")})
    of_days = [] if how == "derived" else [name for name in made if not name.endswith(_OF_CELLS)]
    return made | {name: with_flag(made[name], before < 0, "exchanged") for name in of_days}


def of_regridded(
    filled: xr.Dataset, regridded: xr.Dataset, extrapolated: Mapping[Hashable, np.ndarray], filling: Iterable[str]
) -> xr.Dataset:
    """Return regridded series, each with its flags; lazy.

    `regridded` is the series before gaps were filled, of the variables `filling`. Variables of `with_repairs_marked`
    become flags.
    """
    values = filled.drop_vars([name for name in filled.data_vars if str(name) != without_mark(name)])
    given = {*_COMPARED} & {*values}
    if len(given) > 1:
        width = values["dtr"] if "dtr" in given else values["tasmax"] - values["tasmin"]
    flags: dict[str, xr.DataArray] = {}
    for name in (str(one) for one, series in values.data_vars.items() if "time" in series.dims):
        series, repaired = values[name], f"{name}{_REPAIRED}"
        bits = xr.zeros_like(series, dtype=np.uint16).drop_attrs(deep=False)
        if name in filling:
            bits = with_flag(bits, regridded[name].isnull() & series.notnull(), "filled_in_time")
        if repaired in filled:
            bits = with_flag(bits, filled[repaired] > 0, "repaired")
        if name in given and len(given) > 1:
            bits = with_flag(bits, width < 0, "crossed_before")
        first = bits.isel(time=0, drop=True)
        cells = extrapolated[name].reshape(first.shape) * _BITS_OF_CELLS["extrapolated_in_space"]
        flags |= {flags_name(name): bits, flags_name(name, "cells"): first.copy(data=cells)}
    return values.assign(flags)


def with_repairs_marked(repaired: xr.Dataset, before: xr.Dataset, names: Iterable[str]) -> xr.Dataset:
    """Return raw data with a variable beside each of `names` that is 1 where `repair` changed values, else 0; lazy."""
    pairs = {f"{name}{_REPAIRED}": (repaired[name], before[name]) for name in names}
    changed = {name: (new != old) & (new.notnull() | old.notnull()) for name, (new, old) in pairs.items()}
    return repaired.assign({name: mark.astype(np.float32) for name, mark in changed.items()})


def without_mark(name: Hashable) -> str:
    """Return the name of a variable that a variable of `with_repairs_marked` tells of; other names as they are."""
    return str(name).removesuffix(_REPAIRED)


def of_adjusted(
    scenario: xr.DataArray,
    simulation: xr.Dataset,
    marks: xr.DataArray | None = None,
    *,
    period: Sequence[str | int],
    kind: Kind,
    signal: float,
    wet: float | None = None,
    align_on: AlignOn = "year",
) -> dict[str, xr.DataArray]:
    """Return the flags of the days and cells of an adjusted variable, by name; lazy, in blocks of whole series.

    `simulation` is the regridded variable of the same cells, in any calendar, with its flags of `of_regridded`; `marks`
    are what the method marks (`treated` of `Method`), as `flag_meanings` names it. Changes, differences (+) or
    ratios (*), are from the calibration, `period`, to as many years at the end. They may differ by `signal` standard
    deviations of the regridded simulation's yearly means in the calibration. Days are wet
    above `wet`, in the scenario's units; None for variables without dry days.
    """
    name, axis = str(scenario.name), TimeAxis.of(scenario)
    given = {"values": convert_to(simulation[name], units_of(scenario)), "days": _flags_of(simulation, name)}
    converted = convert(xr.Dataset(given), axis.calendar, align_on=align_on)
    its_days = np.isin(np.floor(TimeAxis.of(converted).days), np.floor(axis.days))
    on_its_days = converted.isel(time=indexer(np.flatnonzero(its_days)))
    on_its_days["cells"] = _flags_of(simulation, name, "cells")
    raw = rechunk(on_its_days, dict[Any, Any](scenario.variable.chunksizes)).transpose(*scenario.dims).variables
    series = scenario.transpose(..., "time")
    how: dict[str, Any] = {"years": axis.year, "period": [int(year) for year in period]}
    how |= {"kind": kind, "tolerance": signal, "months": scenario["time"].dt.month.values, "wet": wet}
    # Core dimensions of `apply_ufunc`, here time, would be copied.
    chunks, nothing = (*(series.chunks or [()])[:-1], (1,)), np.empty((0,) * series.ndim, np.uint8)
    look = partial(_of_cells, **how)
    of_cells = over_blocks(series, look, {"raw": raw["values"]}, chunks=chunks, dtype=np.uint8, meta=nothing)
    cells = xr.Variable(series.dims[:-1], of_cells[..., 0])
    cells = cells | raw["cells"]
    days = raw["days"] if marks is None else raw["days"] | marks.variable
    own = {} if marks is None else meanings(marks)
    like = xr.Dataset({"days": scenario, "cells": scenario.isel(time=0, drop=True)}).drop_attrs()
    return {
        flags_name(name): like["days"].copy(data=days.data).assign_attrs(_names(own, name)),
        flags_name(name, "cells"): like["cells"].copy(data=cells.data).assign_attrs(_names({}, name, "cells")),
    }


def limits_of(reference: xr.Dataset, record: float, season: float) -> xr.Dataset:
    """Return the limits of values beyond which flags are raised: (…, of, side) of each variable (…, time); lazy.

    `of` is the whole record, and the twelve months, each with those beside it; `side` the lowest and the highest.
    `record` and `season` are how far values may be beyond them: shares of the range (highest minus lowest value).
    Cells without a reference have the limits NaN.
    """
    sizes = {"of": 13, "side": 2}
    return xr.apply_ufunc(
        _limits,
        rechunk(reference.drop_vars("time"), {"time": -1}),
        kwargs={"months": reference["time"].dt.month.values, "shares": np.array([record] + [season] * 12)},
        input_core_dims=[["time"]],
        output_core_dims=[[*sizes]],
        dask="parallelized",
        dask_gufunc_kwargs={"output_sizes": sizes},
        output_dtypes=[np.float32],
        keep_attrs=True,
    )


def _limits(values: np.ndarray, *, months: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The limits (…, of, side) of a block of series (…, time)."""
    starts, sides = np.flatnonzero(np.diff(months, prepend=0)), []
    near = [months[starts] > 0, *(np.isin((months[starts] - month) % 12, [11, 0, 1]) for month in range(1, 13))]
    # NumPy's fmin and fmax, which leave NaN out, are many times slower.
    for reach, missing in ((np.minimum, np.inf), (np.maximum, -np.inf)):
        each = reach.reduceat(np.where(np.isnan(values), np.float32(missing), values), starts, axis=-1)
        ends = np.stack([reach.reduce(each[..., of], axis=-1, initial=missing) for of in near], axis=-1)
        sides.append(np.where(np.isinf(ends), np.nan, ends))
    low, high = sides
    width = (high - low)[..., :1] * shares
    return np.stack([low - width, high + width], axis=-1).astype(np.float32)


def with_beyond(ds: xr.Dataset, limits: xr.Dataset) -> xr.Dataset:
    """Return variables (time, …) with those flags raised, too, that tell of values beyond limits of `limits_of`; lazy.

    Limits (…, of, side) are of the same cells, in units of their own.
    """
    flags = {}
    for name in (name for name in map(str, limits.data_vars) if {name, flags_name(name)} <= {*ds.data_vars}):
        bits, values = ds[flags_name(name)], ds[name]
        beyond = xr.apply_ufunc(
            _beyond,
            values.variable,
            bits.variable,
            values["time"].dt.month.variable,
            convert_to(limits[name], units_of(values)).variable,
            input_core_dims=[[], [], [], ["of", "side"]],
            dask="parallelized",
            output_dtypes=[np.uint16],
        )
        flags[flags_name(name)] = bits.copy(data=beyond.data)
    return ds.assign(flags)


def _beyond(values: np.ndarray, bits: np.ndarray, months: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """The bits of values (time, …) of months (time, 1, …), with those beyond limits (…, of, side) raised, too.

    Days of a month are compared together: slices are several times faster than days chosen by their month.
    """
    made, of_days = bits.copy(), months.ravel()
    limits = np.ascontiguousarray(np.moveaxis(limits, (-2, -1), (0, 1)))
    starts = np.flatnonzero(np.diff(of_days, prepend=0))
    for start, end in zip(starts, [*starts[1:], len(of_days)], strict=True):
        record, season = (is_outside(values[start:end], limits[of]).view(np.uint8) for of in (0, of_days[start]))
        # The season's bit is the next after the record's.
        made[start:end] |= (record + season + season) * _BITS["beyond_the_record"]
    return made


def _of_cells(
    scenario: np.ndarray, beside: Mapping[str, np.ndarray], *, months: np.ndarray, wet: float | None, **how: Any
) -> np.ndarray:
    """The flags of cells (…, 1) of a scenario (…, time); the simulation is `beside`."""
    bits, years, period = _of_signal(scenario, beside["raw"], **how), how["years"], how["period"]
    if wet is not None:
        known = (years >= period[0]) & (years <= period[1])
        bits = bits | _of_aridity(scenario, beside["raw"], months=months, known=known, wet=wet)
    return bits[..., None]


def _of_signal(
    scenario: np.ndarray, raw: np.ndarray, *, years: np.ndarray, period: Sequence[int], kind: Kind, tolerance: float
) -> np.ndarray:
    """The flags of cells (…) whose change in the scenario (…, time) is not the raw one; missing days are left out.

    The change is from the calibration's years to as many at the end, of years after the calibration.
    """
    distorted, flipped, not_judged = (_BITS_OF_CELLS[name] for name in (*CELLS,)[1:4])
    begin, end = np.searchsorted(years, [period[0], period[1] + 1])
    starts = np.unique(years[begin:end], return_index=True)[1]
    later = np.searchsorted(years, max(period[1], years[-1] - starts.size) + 1)
    if starts.size < 2 or later == years.size:
        return np.full(scenario.shape[:-1], not_judged)
    each = [series[..., days] for days in (slice(begin, end), slice(later, None)) for series in (scenario, raw)]
    sums = [_sums(series) for series in each]
    has_days = np.min([n / series.shape[-1] for (_, n), series in zip(sums, each, strict=True)], 0) >= NEARLY_ALL_DAYS
    totals, numbers = _sums(each[1], starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = [total / number for total, number in sums]
        changes = np.subtract(means[2:], means[:2])
        spread = tolerance * (totals / numbers).std(axis=-1)
        if kind == "*":
            changes, spread = changes / means[:2], spread / means[1]
        apart = np.abs(changes[0] - changes[1])
        # Zero has no ratios.
        is_known, is_distorted = has_days & ~np.isnan(apart - spread), apart > spread
        is_flipped = (changes[0] * changes[1] < 0) & (np.abs(changes).min(axis=0) > spread / 4)
    bits: np.ndarray = is_distorted.astype(np.uint8) * distorted | is_flipped.astype(np.uint8) * flipped
    return np.where(is_known, bits, not_judged)


def _sums(values: np.ndarray, starts: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The sums of values (…, time), of all or from each start on, and their number; missing ones are left out.

    Days are looked at in cells whose sum is not finite.
    """

    def total(of: np.ndarray, dtype: type) -> np.ndarray:
        return np.asarray(of.sum(-1, dtype) if starts is None else np.add.reduceat(of, starts, -1, dtype))

    sums = total(values, np.float64)
    numbers = np.broadcast_to(total(np.ones(values.shape[-1]), int), sums.shape)
    lacks = ~np.isfinite(sums if starts is None else sums.sum(axis=-1))
    if lacks.any():
        part, numbers = values[lacks], numbers.copy()
        sums[lacks], numbers[lacks] = total(np.nan_to_num(part), np.float64), total(np.isfinite(part), int)
    return sums, numbers


def _of_aridity(
    scenario: np.ndarray, raw: np.ndarray, *, months: np.ndarray, known: np.ndarray, wet: float
) -> np.ndarray:
    """The flags of cells (…) where months with few wet days in the calibration hold much, or the highest value.

    `known` are the days of the calibration; the simulation or the scenario may lack the wet days.
    """
    near = indexer(np.flatnonzero(known))
    within = np.flatnonzero(np.diff(months[near], prepend=0))
    of_months = np.equal.outer(months[near][within], np.arange(1, 13))
    wet_days = [np.add.reduceat(series[..., near] > wet, within, -1, int) @ of_months for series in (scenario, raw)]
    is_dry = np.min(wet_days, axis=0) < FEW_WET_DAYS * np.bincount(months[near], minlength=13)[1:]
    bits, has_dry = np.zeros(is_dry.shape[:-1], np.uint8), is_dry.any(axis=-1)
    part, starts = np.nan_to_num(scenario[has_dry]), np.flatnonzero(np.diff(months, prepend=0))
    dry = is_dry[has_dry][:, months[starts] - 1]
    total, most = np.add.reduceat(part, starts, -1, np.float64), np.maximum.reduceat(part, starts, -1)
    much = np.where(dry, total, 0).sum(axis=-1) > MUCH_IN_ARID_MONTHS * total.sum(axis=-1)
    rests = much | (np.where(dry, most, 0).max(axis=-1) >= np.maximum(most.max(axis=-1), wet))
    bits[has_dry] = rests * _BITS_OF_CELLS["arid"]
    return bits


def _names(own: Mapping[str, Any], variable: str, of: str = "days") -> dict[str, Any]:
    """The attributes of flags: their masks and meanings, of days the method's `own` first."""
    bits: dict[str, Any] = dict(
        sorted({**own, **(_BITS if of == "days" else _BITS_OF_CELLS)}.items(), key=itemgetter(1))
    )
    return {
        "standard_name": "quality_flag",
        "long_name": f"Flags of the {of} of {variable}",
        "flag_masks": np.array([int(bit) for bit in bits.values()], np.uint16 if of == "days" else np.uint8),
        "flag_meanings": " ".join(bits),
        "flag_ranks": " ".join(map(rank_of, bits)),
        **({"comment": _OF_SIGNAL} if of == "cells" else {}),
    }
