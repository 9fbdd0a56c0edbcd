"""Flags of values and cells: bits that say why to doubt them, in a product's store of flags.

Of each variable `pr` there are `pr_flags` (time and cells, uint16) and `pr_cell_flags` (cells, uint8), whose attributes
`flag_masks` and `flag_meanings` (CF 3.5) name the bits. The first eight bits of a day are the method's: what it marks,
by its `counts`. A variable that is derived from others has the flags of these.

| flag | of | raised where | by the rule |
|---|---|---|---|
| `jittered`, `made_wet`, `extrapolated` (beyond the calibration), `limited` | day | our kernels do it | `Adjust` |
| `clipped` | day | `clip_var` or `limit_var` change the value | `CleanUp`, `ConcatClean` |
| `exchanged` | day | tasmax and tasmin are exchanged | `CleanUp`, `Swap` |
| `crossed_before` | day | the regridded simulation has tasmin above tasmax, or a negative dtr | `Adjust` |
| `filled_in_time` | day | the regridded value was missing, and filled | `Regrid` |
| `repaired` | day | a raw cell with a weight was repaired | `Extract`, `Regrid` |
| `beyond_the_record` | day | beyond the reference's lowest or highest value, by more than `record` | as `clipped` |
| `beyond_the_season` | day | the same of the month and those beside it, by more than `season` | as `clipped` |
| `extrapolated_in_space` | cell | a grid on the way does not reach the cell | `Regrid` |
| `signal_distorted` | cell | the change differs from the regridded simulation's by more than `signal` | `Adjust` |
| `sign_flipped` | cell | both change, by more than a quarter of `signal`, in opposite directions | `Adjust` |
| `signal_not_judged` | cell | no years after the calibration, or more than 1 % of the days missing | `Adjust` |

The values of a product, rounded and clipped, are compared with the reference's of the same variable: derived ones, too,
if the reference has them. Flags of a signal are those of the adjusted variables that a value is made of.

On their way, flags are variables beside the values, in the same stores, and are computed with them. The product's
archive is packed without them, and that of flags with nothing else. So a count of treated days is the sum of its bit.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.science.calendar import TimeAxis, convert
from espo_luigi.science.choices import AlignOn, Consistency
from espo_luigi.science.chunks import rechunk, rechunk_variable
from espo_luigi.science.units import convert_to, units_of
from espo_luigi.science.variables import Kind

# The variables of a regridded simulation that are compared with each other.
COMPARED = ("tasmax", "tasmin", "dtr")
_OF_DAYS, _OF_CELLS = "_flags", "_cell_flags"
# The bits of a day after the method's eight, and those of a cell.
DAYS = (
    "clipped", "exchanged", "crossed_before", "filled_in_time", "repaired", "beyond_the_record", "beyond_the_season",
)  # fmt: skip
CELLS = ("extrapolated_in_space", "signal_distorted", "sign_flipped", "signal_not_judged")
_BITS = {name: np.uint16(1 << place) for place, name in enumerate(DAYS, 8)}
_BITS_OF_CELLS = {name: np.uint8(1 << place) for place, name in enumerate(CELLS)}
_THE_METHODS = np.uint16(0xFF)
_OF_SIGNAL = (
    "signal_distorted and sign_flipped: of the change, as adjusted, against that of the simulation regridded to these "
    "cells; signal_not_judged: too few days."
)
# The share of the days of each stretch of years that must have values, for means that missing days do not shift.
_ENOUGH = 0.99


def is_flags(name: Hashable) -> bool:
    """Return whether a variable of this name has flags."""
    return str(name).endswith(_OF_DAYS)


def flags_name(variable: str, of: str = "days") -> str:
    """Return the name of a variable's flags of `days` or `cells`."""
    return f"{variable}{_OF_DAYS if of == 'days' else _OF_CELLS}"


def beside(ds: Mapping[Any, Any], names: Iterable[str]) -> list[str]:
    """Return those of a dataset's variables that have these names, or are flags of variables of these names."""
    wanted = [one for name in names for one in (name, flags_name(name), flags_name(name, "cells"))]
    return [name for name in wanted if name in ds]


def meanings(flags: xr.DataArray) -> dict[str, int]:
    """Return the masks of an array of flags by their meanings."""
    masks = np.atleast_1d(flags.attrs.get("flag_masks", [])).astype(int)
    return dict(zip(str(flags.attrs.get("flag_meanings", "")).split(), masks.tolist(), strict=True))


def raised(flags: xr.Dataset, variable: str, step: int) -> list[str]:
    """Return the meanings of the flags that are raised at a single cell, on a day and of the cell."""
    given = flags[flags_name(variable)].isel(time=step), flags[flags_name(variable, "cells")]
    return [name for one in given for name, mask in meanings(one).items() if int(one) & mask]


def with_flag(flags: xr.DataArray, where: xr.DataArray, name: str) -> xr.DataArray:
    """Return flags of days with one of `DAYS` raised where it is true, beside those that are; lazy."""
    raised = flags | where.transpose(*flags.dims).astype(np.uint16) * _BITS[name]
    return raised.drop_attrs(deep=False).assign_attrs(flags.attrs)


def inherited(ds: Mapping[Any, xr.DataArray], made_of: Mapping[str, Sequence[str]]) -> dict[str, xr.DataArray]:
    """Return the flags of variables that are made of others, by name: all of these. Lazy.

    The methods' own are left out where methods have different ones. Variables of which no input has flags have none.
    """
    made = {}
    for name, inputs in made_of.items():
        given = [one for one in inputs if flags_name(one) in ds]
        days, cells = ([ds[flags_name(one, of)] for one in given] for of in ("days", "cells"))
        if not given:
            continue
        own, *others = {one.attrs["flag_meanings"] for one in days}
        if others:
            days = [one & ~_THE_METHODS for one in days]
        names = [] if others else own.split()[: -len(DAYS)]
        made[flags_name(name)] = reduce(or_, days).assign_attrs(_names(names, name))
        made[flags_name(name, "cells")] = reduce(or_, cells).assign_attrs(_names((), name, "cells"))
    return made


def of_temperatures(ds: Mapping[Any, xr.DataArray], before: xr.DataArray, how: Consistency) -> dict[str, xr.DataArray]:
    """Return the flags of tasmax and tasmin that are made consistent; `before` is tasmax - tasmin before. Lazy."""
    made = inherited(ds, {"tasmax": ("tasmax",), "tasmin": ("tasmin",) if how == "swap" else ("tasmax", "dtr")})
    if how == "derived":
        return made
    return made | {
        name: with_flag(one, before < 0, "exchanged") for name, one in made.items() if not name.endswith(_OF_CELLS)
    }


def of_regridded(
    filled: xr.Dataset, regridded: xr.Dataset, extrapolated: Mapping[Hashable, np.ndarray], filling: Iterable[str]
) -> xr.Dataset:
    """Return regridded series with flags: filled days, repaired raw values, and cells that are extrapolated. Lazy.

    `regridded` is the series before gaps were filled, of the variables `filling`. Variables of `with_repairs_marked`
    become flags.
    """
    marks = [name for name in filled.data_vars if str(name).endswith(_REPAIRED)]
    flags: dict[str, xr.DataArray] = {}
    for name in (str(one) for one, series in filled.drop_vars(marks).data_vars.items() if "time" in series.dims):
        series, repaired = filled[name], f"{name}{_REPAIRED}"
        bits = xr.zeros_like(series.drop_attrs(deep=False), dtype=np.uint16).assign_attrs(_names((), name))
        if name in filling:
            bits = with_flag(bits, regridded[name].isnull() & series.notnull(), "filled_in_time")
        bits = with_flag(bits, filled[repaired] > 0, "repaired") if repaired in marks else bits
        flags |= {flags_name(name): bits} if name in filling or repaired in marks else {}
        first = series.isel(time=0, drop=True)
        cells = extrapolated[name].reshape(first.shape) * _BITS_OF_CELLS["extrapolated_in_space"]
        flags[flags_name(name, "cells")] = first.copy(data=cells).drop_attrs(deep=False)
    return filled.drop_vars(marks).assign(flags)


_REPAIRED = "_is_repaired"


def with_repairs_marked(repaired: xr.Dataset, before: xr.Dataset, names: Iterable[str]) -> xr.Dataset:
    """Return raw data with a variable beside each of `names` that is 1 where `repair` changed values, else 0; lazy."""
    pairs = {f"{name}{_REPAIRED}": (repaired[name], before[name]) for name in names}
    changed = {name: (new != old) & (new.notnull() | old.notnull()) for name, (new, old) in pairs.items()}
    return repaired.assign({name: one.astype(np.float32) for name, one in changed.items()})


def of_adjusted(
    scenario: xr.DataArray,
    simulation: xr.Dataset,
    marks: xr.DataArray | None = None,
    *,
    period: Sequence[str | int],
    kind: Kind,
    signal: float,
    align_on: AlignOn = "year",
) -> dict[str, xr.DataArray]:
    """Return the flags of the days and cells of an adjusted variable, by name; lazy, in blocks of whole series.

    Parameters
    ----------
    scenario
        Daily, with `time` and cells.
    simulation
        The regridded variables of the same cells, in any calendar, with their flags of `of_regridded`.
    marks
        What the method marks (`treated` of `Method`), with its names in `flag_meanings`.
    period
        The first and the last year of the calibration. The change is from there to as many years at the end.
    kind
        Whether changes are differences (+) or ratios (*).
    signal
        By how much changes may differ: standard deviations of the regridded simulation's yearly means in the
        calibration.
    """
    name, like = str(scenario.name), scenario.isel(time=0, drop=True)
    series = {"time": scenario, "raw": convert_to(simulation[name], units_of(scenario))}
    first, last = (int(year) for year in period)
    spans = [_spans(one["time"].dt.year.values, first, last) for one in series.values()]
    cells = xr.apply_ufunc(
        _of_signal,
        *(_bare(one, dim, scenario) for dim, one in series.items()),
        kwargs={"spans": spans, "kind": kind, "tolerance": signal},
        input_core_dims=[[dim] for dim in series],
        dask="parallelized",
        output_dtypes=[np.uint8],
    )
    before, of_cells = _before(simulation, scenario, align_on), simulation.get(flags_name(name, "cells"))
    days = xr.zeros_like(scenario, dtype=np.uint16).variable
    for one in (one for one in (marks, before) if one is not None):
        days = days | _bare(one, "time", scenario).astype(np.uint16)
    cells = cells if of_cells is None else cells | _bare(of_cells, "time", like)
    own = [] if marks is None else marks.attrs["flag_meanings"].split()
    told = {} if own else {"comment": "The method marks no days: there are no flags of what it treats."}
    made_days, made_cells = (
        one.drop_attrs(deep=False).copy(data=bits.transpose(*one.dims).data)
        for one, bits in ((scenario, days), (like, cells))
    )
    return {
        flags_name(name): made_days.assign_attrs(_names(own, name) | told),
        flags_name(name, "cells"): made_cells.assign_attrs(_names((), name, "cells")),
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
    parts = [values[..., months == month] for month in range(1, 13)]
    near = [range(12), *([month - 1, month, (month + 1) % 12] for month in range(12))]
    lows, highs = (
        np.stack([reach.reduce(one, axis=-1, initial=start) for one in parts], axis=-1)
        for reach, start in ((np.fmin, np.inf), (np.fmax, -np.inf))
    )
    low = np.stack([lows[..., each].min(axis=-1) for each in near], axis=-1)
    high = np.stack([highs[..., each].max(axis=-1) for each in near], axis=-1)
    width = np.where(high < low, np.nan, high - low)[..., :1] * shares
    return np.stack([low - width, high + width], axis=-1).astype(np.float32)


def with_beyond(flags: xr.DataArray, values: xr.DataArray, limits: xr.DataArray) -> xr.DataArray:
    """Return flags of days with those raised that tell of values beyond limits of `limits_of`; lazy.

    Flags and values are (time, …), limits (…, of, side) of the same cells, in units of their own.
    """
    bits = xr.apply_ufunc(
        _beyond,
        values.variable,
        values["time"].dt.month.variable,
        convert_to(limits, units_of(values)).variable,
        input_core_dims=[[], [], ["of", "side"]],
        dask="parallelized",
        output_dtypes=[np.uint16],
    )
    return flags.copy(data=(flags.variable | bits).data)


def _beyond(values: np.ndarray, months: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """The bits of values (time, …) of months (time, 1, …) beyond limits (…, of, side)."""
    bits = np.zeros(values.shape, np.uint16)
    for of in range(13):
        days = (months.ravel() == of) if of else np.full(len(values), True)
        part, bit = values[days], _BITS["beyond_the_season" if of else "beyond_the_record"]
        bits[days] |= ((part < limits[..., of, 0]) | (part > limits[..., of, 1])).astype(np.uint16) * bit
    return bits


def _bare(data: xr.DataArray, dim: str, like: xr.DataArray) -> xr.Variable:
    """A series without coordinates, along a dimension of its own instead of `time`, in the blocks of another."""
    bare = xr.Variable([dim if name == "time" else name for name in data.dims], data.variable.data)
    blocks: dict[Any, Any] = {**like.variable.chunksizes, dim: -1}
    return bare if like.chunks is None else rechunk_variable(bare, blocks)


def _spans(years: np.ndarray, first: int, last: int) -> tuple[slice, np.ndarray, slice] | None:
    """The days of the calibration, where each of its years begins, and the days of as many years at the end.

    None without two years of the calibration, or without any year after it.
    """
    begin, end = np.searchsorted(years, [first, last + 1])
    starts = np.flatnonzero(np.diff(years[begin:end], prepend=first - 1))
    if starts.size < 2 or end == years.size:
        return None
    later = np.searchsorted(years, max(last + 1, years[-1] + 1 - starts.size))
    return slice(begin, end), starts, slice(later, None)


def _of_signal(*series: np.ndarray, spans: Sequence[Any], kind: Kind, tolerance: float) -> np.ndarray:
    """The flags of cells (…) whose change in the scenario is not the simulation's; missing days are left out."""
    distorted, flipped, not_judged = (_BITS_OF_CELLS[name] for name in CELLS[1:])
    if None in spans:
        return np.full(series[0].shape[:-1], not_judged)
    each = [one[..., span[place]] for place in (0, 2) for one, span in zip(series, spans, strict=True)]
    has_days = np.min([np.isfinite(one).mean(axis=-1) for one in each], axis=0) >= _ENOUGH
    starts = spans[1][1]
    yearly = np.nan_to_num(each[1]), np.isfinite(each[1])
    totals, numbers = (np.add.reduceat(one, starts, axis=-1, dtype=np.float64) for one in yearly)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = [np.nansum(one, axis=-1, dtype=np.float64) / np.isfinite(one).sum(axis=-1) for one in each]
        base, later = means[:2], means[2:]
        spread = tolerance * (totals / numbers).std(axis=-1)
        changes = np.subtract(later, base)
        if kind == "*":
            changes, spread = changes / base, spread / base[1]
        is_distorted = np.abs(changes[0] - changes[1]) > spread
        is_flipped = (changes[0] * changes[1] < 0) & (np.abs(changes).min(axis=0) > spread / 4)
    bits: np.ndarray = is_distorted.astype(np.uint8) * distorted | is_flipped.astype(np.uint8) * flipped
    return np.where(has_days, bits, not_judged)


def _before(simulation: xr.Dataset, scenario: xr.DataArray, align_on: AlignOn) -> xr.DataArray | None:
    """The flags of the simulation on the scenario's days, and of temperatures that cross; None without any."""
    name, found = str(scenario.name), {*COMPARED} & {*simulation}
    flags = simulation.get(flags_name(name))
    if name in found and len(found) > 1:
        width = simulation["tasmax"] - simulation["tasmin"] if "tasmin" in found else simulation["dtr"]
        start = xr.zeros_like(simulation[name], dtype=np.uint16) if flags is None else flags
        flags = with_flag(start, width < 0, "crossed_before")
    if flags is None:
        return None
    axis = TimeAxis.of(scenario)
    converted = convert(flags, axis.calendar, align_on=align_on)
    return converted.isel(time=np.isin(np.floor(TimeAxis.of(converted).days), np.floor(axis.days)))


def _names(own: Sequence[str], variable: str, of: str = "days") -> dict[str, Any]:
    """The attributes of flags: their masks and meanings."""
    bits = {one: 1 << place for place, one in enumerate(own)} | _BITS if of == "days" else _BITS_OF_CELLS
    return {
        "standard_name": "quality_flag",
        "long_name": f"Flags of the {of} of {variable}",
        "flag_masks": np.array([int(bit) for bit in bits.values()], np.uint16 if of == "days" else np.uint8),
        "flag_meanings": " ".join(bits),
        **({"comment": _OF_SIGNAL} if of == "cells" else {}),
    }
