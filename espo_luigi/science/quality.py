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
| `beyond_the_record` | day | beyond the reference's lowest or highest value, by more than `record` | `Adjust` |
| `beyond_the_season` | day | the same of the month and those beside it, by more than `season` | `Adjust` |
| `extrapolated_in_space` | cell | a grid on the way does not reach the cell | `Regrid` |
| `signal_distorted` | cell | the change differs from the regridded simulation's by more than `signal` | `Adjust` |
| `sign_flipped` | cell | both change, by more than a quarter of `signal`, in opposite directions | `Adjust` |

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
from espo_luigi.science.chunks import rechunk_variable
from espo_luigi.science.units import convert_to, units_of
from espo_luigi.science.variables import Kind

# The variables of a regridded simulation that are compared with each other.
COMPARED = ("tasmax", "tasmin", "dtr")
_OF_DAYS, _OF_CELLS = "_flags", "_cell_flags"
# The bits of a day after the method's eight, and those of a cell.
DAYS = (
    "clipped", "exchanged", "crossed_before", "filled_in_time", "repaired", "beyond_the_record", "beyond_the_season",
)  # fmt: skip
CELLS = ("extrapolated_in_space", "signal_distorted", "sign_flipped")
_BITS = {name: np.uint16(1 << place) for place, name in enumerate(DAYS, 8)}
_BITS_OF_CELLS = {name: np.uint8(1 << place) for place, name in enumerate(CELLS)}
_THE_METHODS = np.uint16(0xFF)
_OF_SIGNAL = "signal_distorted and sign_flipped: of the change against that of the simulation regridded to these cells."


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
    reference: xr.DataArray,
    marks: xr.DataArray | None = None,
    *,
    period: Sequence[str | int],
    kind: Kind,
    tolerances: Mapping[str, float],
    align_on: AlignOn = "year",
) -> dict[str, xr.DataArray]:
    """Return the flags of the days and cells of an adjusted variable, by name; lazy, in blocks of whole series.

    Parameters
    ----------
    scenario, reference
        Daily, with `time` and the same cells; their calendars may differ.
    simulation
        The regridded variables of the scenario's cells, with their flags of `of_regridded`.
    marks
        What the method marks (`treated` of `Method`), with its names in `flag_meanings`.
    period
        The first and the last year of the calibration. The change is from there to as many years at the end.
    kind
        Whether changes are differences (+) or ratios (*).
    tolerances
        `record` and `season`: shares of the range (highest minus lowest value) of the cell's reference. `signal`:
        standard deviations of the regridded simulation's yearly means in the calibration.
    """
    name, units = str(scenario.name), units_of(scenario)
    series = {"time": scenario, "raw": convert_to(simulation[name], units), "known": convert_to(reference, units)}
    years, months = (
        [np.asarray(getattr(one.indexes["time"], part)) for one in series.values()] for part in ("year", "month")
    )
    first, last = (int(year) for year in period)
    none, like = xr.zeros_like(scenario, dtype=np.uint16), scenario.isel(time=0, drop=True)
    before = _before(simulation, scenario, align_on), simulation.get(flags_name(name, "cells"))
    others = [none if one is None else one for one in (marks, before[0])]
    setup = {
        "months": (months[0], np.where((years[2] >= first) & (years[2] <= last), months[2], 0)),
        "spans": [_spans(one, first, last) for one in years[:2]],
        "kind": kind,
        "tolerances": tolerances,
    }
    days, cells = xr.apply_ufunc(
        _of_block,
        *(_bare(one, dim, scenario) for dim, one in series.items()),
        *(_bare(one, "time", scenario) for one in others),
        _bare(xr.zeros_like(like, dtype=np.uint8) if before[1] is None else before[1], "time", like),
        kwargs={"setup": setup},
        input_core_dims=[*([dim] for dim in series), ["time"], ["time"], []],
        output_core_dims=[["time"], []],
        dask="parallelized",
        output_dtypes=[np.uint16, np.uint8],
    )
    own = [] if marks is None else marks.attrs["flag_meanings"].split()
    told = {} if own else {"comment": "The method marks no days: there are no flags of what it treats."}
    of_days, of_cells = (
        one.drop_attrs(deep=False).copy(data=bits.transpose(*one.dims).data)
        for one, bits in ((scenario, days), (like, cells))
    )
    return {
        flags_name(name): of_days.assign_attrs(_names(own, name) | told),
        flags_name(name, "cells"): of_cells.assign_attrs(_names((), name, "cells")),
    }


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


def _of_block(*arrays: np.ndarray, setup: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The flags of days (…, time) and cells (…) of a block."""
    scenario, simulation, reference, marks, before, cells = arrays
    (own_months, months), tolerances = setup["months"], setup["tolerances"]
    flags = marks.astype(np.uint16) | before
    parts = [reference[..., months == month] for month in range(1, 13)]
    lows = np.stack([np.fmin.reduce(one, axis=-1, initial=np.inf) for one in parts])
    highs = np.stack([np.fmax.reduce(one, axis=-1, initial=-np.inf) for one in parts])
    highest, lowest = highs.max(axis=0), lows.min(axis=0)
    width = np.where(highest < lowest, np.nan, highest - lowest)  # a cell without a reference has no record

    def raise_beyond(days: Any, near: Sequence[int], tolerance: float, name: str) -> None:
        low, high = lows[near].min(axis=0) - tolerance * width, highs[near].max(axis=0) + tolerance * width
        part = scenario[..., days]
        is_beyond = (part < low[..., np.newaxis]) | (part > high[..., np.newaxis])
        flags[..., days] |= is_beyond.astype(np.uint16) * _BITS[name]

    raise_beyond(slice(None), range(12), tolerances["record"], "beyond_the_record")
    for month in range(12):
        near = [(month + away) % 12 for away in (-1, 0, 1)]
        raise_beyond(np.flatnonzero(own_months == month + 1), near, tolerances["season"], "beyond_the_season")
    if None in setup["spans"]:
        return flags, cells
    return flags, cells | _of_signal((scenario, simulation), setup["spans"], setup["kind"], tolerances["signal"])


def _of_signal(series: Sequence[np.ndarray], spans: Sequence[Any], kind: Kind, tolerance: float) -> np.ndarray:
    """The flags of cells (…) whose change in the scenario is not the simulation's."""
    base, later = (
        [one[..., span[place]].mean(axis=-1, dtype=np.float64) for one, span in zip(series, spans, strict=True)]
        for place in (0, 2)
    )
    days, starts, _ = spans[1]
    given = series[1][..., days]
    lengths = np.diff(starts, append=given.shape[-1])
    spread = tolerance * (np.add.reduceat(given, starts, axis=-1, dtype=np.float64) / lengths).std(axis=-1)
    changes = np.subtract(later, base)
    with np.errstate(divide="ignore", invalid="ignore"):
        if kind == "*":
            changes, spread = changes / base, spread / base[1]
        is_distorted = np.abs(changes[0] - changes[1]) > spread
        is_flipped = (changes[0] * changes[1] < 0) & (np.abs(changes).min(axis=0) > spread / 4)
    distorted, flipped = (_BITS_OF_CELLS[name] for name in ("signal_distorted", "sign_flipped"))
    return is_distorted.astype(np.uint8) * distorted | is_flipped.astype(np.uint8) * flipped


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
