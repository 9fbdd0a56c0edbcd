"""What daily values can be, in raw data, references and products; small defects of raw data are repaired.

The place of an impossible value is named by its date, latitude and longitude, in any calendar and on any grid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from textwrap import wrap
from typing import Any, Literal

import dask.array
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import REALIZATION
from espo_luigi.science.limits import SMALLEST_RANGE_K, expected, is_impossible
from espo_luigi.science.units import as_difference, convert_to, threshold_in
from espo_luigi.science.variables import VARIABLES, Limits, Variable, variable


def limits_in(
    name: str,
    units: str,
    table: Mapping[str, Variable] = VARIABLES,
    which: Literal["possible", "raw"] = "possible",
) -> Limits:
    """Return the limits that a table has for a product or for raw data, in other units; infinite if it has none."""
    known = variable(name, table)
    low, high = _in_units(getattr(known, which), name, known, units)
    return low, high


def _in_units(numbers: Sequence[float], name: str, known: Variable, units: str) -> list[float]:
    """Convert numbers of a variable's row to other units."""
    if not known.units:
        return list(numbers)
    given = xr.DataArray(list(numbers), dims="side", name=name, attrs={"units": known.units})
    return [float(one) for one in convert_to(as_difference(given) if known.difference else given, units).values]


def converted(known: Variable, units: str) -> Variable:
    """Return a row with its numbers in other units; raises `DataError` if it has units that do not convert to them."""
    scale = replace(known, difference=True)  # of widths and of thresholds, which count from zero

    def moved(number: float | None, row: Variable) -> Any:
        return None if number is None else _in_units([number], "", row, units)[0]

    pairs = {name: tuple(moved(one, known) for one in getattr(known, name)) for name in ("possible", "raw", "bounds")}
    sizes = {name: moved(getattr(known, name), scale) for name in ("fill_margin", "wet", "jitter")}
    changed: dict[str, Any] = pairs | sizes
    return replace(known, units=units, **changed)


def require_possible(da: xr.DataArray, table: Mapping[str, Variable] = VARIABLES) -> xr.DataArray:
    """Return the same raw data, which raise `DataError` where a value is beyond the raw limits; lazy on dask."""
    units = str(da.attrs.get("units", ""))
    limits = limits_in(str(da.name), units, table, "raw")
    refusal = (
        f"{da.name} has {{number}} impossible values after its repairs, such as {{first}}; expected "
        f"{expected(limits, units)}. Add rows to `extraction.simulation.repairs` (the table of InputCheck has them), "
        "or exclude the simulation."
    )
    return da.copy(data=judged(da, limits, {}, refusal))


def judged(da: xr.DataArray, limits: Limits, beside: Mapping[str, xr.Variable], refusal: str = "") -> Any:
    """Return the data of a variable, which raise `DataError` with the `refusal` where a value is impossible; lazy.

    The refusal's fields are the `number` of such values of a block, its `size`, and the `first` with its place. Without
    a refusal, the result has a pair for each block: the number, and the first. `beside` may have `tasmax`, which values
    must not exceed, and `land`, where each day needs a value.
    """
    one_each = {"chunks": (1,) * da.ndim, "dtype": object, "meta": np.empty((0,) * da.ndim, object)}
    look = partial(_judge, limits=limits, units=str(da.attrs.get("units", "")), refusal=refusal)
    # Where a value is: member, date (as the number YYYYMMDD), latitude and longitude, if any.
    places = {name: da[name].variable for name in (REALIZATION, "time", "lat", "lon") if name in da.coords}
    if "time" in places:
        dates = da["time"].dt
        places["time"] = ((dates.year * 100 + dates.month) * 100 + dates.day).variable
    return over_blocks(da, look, {**beside, **places}, **({} if refusal else one_each))


def _judge(
    values: np.ndarray, beside: Mapping[str, np.ndarray], *, limits: Limits, units: str, refusal: str
) -> np.ndarray:
    wrong = is_impossible(values, limits, beside.get("tasmax"), beside.get("land"))
    number, first = int(wrong.sum()), _first_of(wrong, values, units, beside) if wrong.any() else ""
    if number and refusal:
        # Not `format`, as names and units of files may have braces.
        told = refusal.replace("{number}", str(number)).replace("{size}", str(values.size))
        raise DataError(told.replace("{first}", first))
    if refusal:
        return values
    pair = np.empty((1,) * values.ndim, object)
    pair.flat[0] = number, first
    return pair


def totalled(blocks: np.ndarray) -> tuple[int, str]:
    """Return the number of impossible values of all blocks that `judged` has counted, and the first with its place."""
    return sum(number for number, _ in blocks.flat), next((first for _, first in blocks.flat if first), "")


def over_blocks(
    da: xr.DataArray,
    look: Callable[[np.ndarray, dict[str, np.ndarray]], np.ndarray],
    beside: Mapping[str, xr.Variable],
    **options: Any,
) -> Any:
    """Return what `look` makes of each block and of the same part of `beside`; lazy if `da` is on dask.

    In `beside` are variables on some of the dimensions of `da`; a block has length 1 along the others. `options` are
    those of `dask.array.map_blocks`.
    """
    parts = [
        variable.to_base_variable()
        .chunk({dim: da.variable.chunksizes.get(dim, -1) for dim in variable.dims})
        .set_dims(list(da.dims))
        .data
        for variable in beside.values()
    ]
    whole = partial(_look_at_block, look=look, names=tuple(beside))
    if da.chunks is None:
        return whole(da.values, *(part.compute() for part in parts))
    return dask.array.map_blocks(whole, da.data, *parts, **{"dtype": da.dtype, "meta": da.data._meta} | options)


def _look_at_block(block: np.ndarray, *parts: np.ndarray, look: Callable[..., Any], names: tuple[str, ...]) -> Any:
    return look(block, dict(zip(names, parts, strict=True)))


def _first_of(wrong: np.ndarray, values: np.ndarray, units: str, beside: Mapping[str, np.ndarray]) -> str:
    """Return the first wrong value and its place: ``345 K on 2030-07-10 at latitude 45.5, longitude -73.25``."""
    first = tuple(np.argwhere(wrong)[0])
    place = {name: np.broadcast_to(coord, wrong.shape)[first] for name, coord in beside.items()}
    words = [f"{values[first]:g} {units}".rstrip()]
    words += [f"of {place[REALIZATION]}"] if REALIZATION in place else []
    words += ["on {}{}-{}-{}".format(*wrap(f"{place['time']:08}", 2))] if "time" in place else []
    if "lat" in place and "lon" in place:
        words.append(f"at latitude {place['lat']:.6g}, longitude {place['lon']:.6g}")
    return " ".join(words)


def credible(ds: xr.Dataset, table: Mapping[str, Variable] = VARIABLES) -> xr.Dataset:
    """Return raw data without values below a variable's lower bound, which become the bound; lazy.

    A range (of temperatures) of zero or below becomes `SMALLEST_RANGE_K`. All other values keep their bits, those above
    an upper bound, too.
    """
    made = dict(ds.data_vars)
    for name, da in ds.data_vars.items():
        known = variable(str(name), table)
        if known.is_range:
            smallest = threshold_in(f"{SMALLEST_RANGE_K} K", str(da.attrs.get("units", known.units)))
            made[name] = da.where(~(da <= 0), smallest)
        elif (lowest := known.bounds[0]) is not None:
            (bound,) = _in_units([lowest], str(name), known, str(da.attrs.get("units", "")))
            made[name] = da.where(~(da < bound), bound)
    return ds.assign(made)
