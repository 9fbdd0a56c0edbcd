"""Whether a scenario has data in every land cell of the reference, in every chunk of time, and values that can be."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any, Literal

import dask.array
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.attributes import (
    CELLS_WITHOUT_DATA,
    DERIVED_FROM,
    IMPOSSIBLE_VALUES,
    INCOMPLETE,
    INSERTED_DAYS,
    LET_THROUGH,
    REPAIRS,
)
from espo_luigi.science.chunks import REALIZATION, concat
from espo_luigi.science.possible import first_of, limits_in, over_blocks, part_beside, places_of
from espo_luigi.science.quality import is_flags
from espo_luigi.science.stack import INCOMPLETE_CELLS, horizontal_dims
from espo_luigi.science.variables import VARIABLES, Limits, Variable

logger = logging.getLogger(__name__)

DAYS_OF_A_GAP = 360
# The problems of raw files after which a scenario may lack values on land.
_LEAVE_GAPS = ("missing_values", "too_few_days", "maps_without_data", "constant_series")

_TEMPERATURES = ("tasmax", "tasmin", "tas", "dtr")

_ADVICE = (
    "A store that this was made from was damaged or taken away while it was read: delete this simulation's stores of "
    "this region in paths.tmpdir (cleaned_up, adjusted, regchunked, regridded, extracted), and run again"
)


def with_incomplete_cells(ds: xr.Dataset, inside: xr.DataArray | bool = True) -> xr.Dataset:
    """Return the dataset with a boolean coordinate (y, x), where a variable lacks a year's days or more; lazy.

    Single days that are missing leave a scenario with data in every chunk of time. Cells that are not `inside` of the
    box that was cut do not count.
    """
    lacking = [da.isnull().sum("time") >= DAYS_OF_A_GAP for da in ds.data_vars.values() if "time" in da.dims]
    return ds.assign_coords({INCOMPLETE: (reduce(operator.or_, lacking) & inside).variable})


def allowed_gaps(attrs: Mapping[Any, Any], land: xr.DataArray) -> int:
    """Return how many land cells may lack data, because the simulation or another variable of the reference does."""
    return int(attrs.get(CELLS_WITHOUT_DATA, 0)) + int(land.attrs.get(INCOMPLETE_CELLS, 0))


def over_time(ds: xr.Dataset, land: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return the variables that have the land's cells and more dimensions, time that is, by name; not flags."""
    return {str(name): da for name, da in ds.data_vars.items() if set(land.dims) < set(da.dims) and not is_flags(name)}


def require_data(ds: xr.Dataset, land: xr.DataArray, *, allowed: int = 0, days: int | None = None) -> xr.Dataset:
    """Return the same dataset, which raises where a block has land cells without any data; lazy on dask.

    Raises `DataError` when it is computed: if more land cells of a block are NaN on all days of a chunk of time.

    Parameters
    ----------
    ds
        (time, y, x) and other variables, which pass.
    land
        Boolean (y, x), the land cells of the reference.
    allowed
        So many land cells of a block may lack data (where the simulation itself lacks them).
    days
        The length of a chunk of time, of which a block may have several; by default a block is one.
    """
    return ds.assign({name: _checked(da, land, allowed, days) for name, da in over_time(ds, land).items()})


def join_land(lands: Sequence[xr.DataArray], whole: xr.Dataset) -> xr.DataArray:
    """Return the land cells of all pieces on the grid of a product.

    Pieces are parts of the grid, or all of it with the cells of each apart. The product may be a cut of the grid.
    """
    y, x = horizontal_dims(whole)
    if all(land[y].equals(lands[0][y]) for land in lands):
        joined = reduce(operator.or_, lands)
    else:
        joined = concat(lands, y, combine_attrs="drop")
    return joined.drop_attrs(deep=False).sel({y: whole[y], x: whole[x]})


def lacks_data(da: xr.DataArray, land: xr.DataArray, *, allowed: int = 0) -> xr.DataArray:
    """Return whether more land cells than allowed are NaN on all days of some chunk of time; no dimensions, lazy."""
    ordered = da.transpose(..., *land.dims)
    data = dask.array.asarray(ordered.data)
    cells = part_beside(ordered, land.variable)
    length = max(data.chunks[0])
    chunks = (tuple(-(-size // length) for size in data.chunks[0]), *((1,) * n for n in data.numblocks[1:]))
    counts = dask.array.map_blocks(_count_gaps, data, cells, dtype=np.int64, chunks=chunks, days=length)
    return xr.DataArray(counts.sum(axis=(-2, -1)).max() > allowed, name=da.name)


def _checked(da: xr.DataArray, land: xr.DataArray, allowed: int, days: int | None) -> xr.DataArray:
    options: dict[str, Any] = {"name": str(da.name), "allowed": allowed, "days": days}
    ordered = da.transpose(..., *land.dims)
    if ordered.chunks is None:
        return ordered.copy(data=_refuse_gaps(ordered.values, land.values[None], options=options))
    return ordered.copy(
        data=dask.array.map_blocks(
            _refuse_gaps,
            ordered.data,
            part_beside(ordered, land.variable),
            dtype=da.dtype,
            meta=ordered.data._meta,
            options=options,
        )
    )


def with_possible_values(
    ds: xr.Dataset,
    land: xr.DataArray,
    *,
    on_impossible: Literal["fail", "warn"],
    table: Mapping[str, Variable] = VARIABLES,
    which: Literal["possible", "raw"] = "possible",
    known: int = 0,
) -> xr.Dataset:
    """Return a product that has no impossible values, or tells their number in its attributes.

    Impossible are values beyond the limits of a table (`which`: those of products or of raw data), infinite ones,
    tasmin above tasmax, and NaN on land, unless the attributes of `ds` or `land` tell that values are lacking. With
    "warn", all values are computed here to count these; with "fail", the result is lazy, and costs a look at each
    block when it is computed. `known` is the number of impossible values that earlier steps counted, as of a tasmin
    above the tasmax of another product.

    Raises
    ------
    DataError
        With "fail", when it is computed: at the first block with an impossible value. At once, if some are known.
    """
    variables = {name: ds[name].transpose(..., *land.dims) for name in over_time(ds, land)}
    limits = {name: limits_in(name, str(da.attrs.get("units", "")), table, which) for name, da in variables.items()}
    if on_impossible == "fail":
        if known:
            raise DataError(
                f"tasmin is above tasmax in {known} values, which `clean_up.on_impossible: warn` let through when the "
                "inputs were made; expected none with `fail`. Make the outdated inputs again (`[espo] rerun = stale`)."
            )
        checked = {name: _looked_at(da, ds, land, limits[name], _refuse_impossible) for name, da in variables.items()}
        return ds.assign({name: variables[name].copy(data=data) for name, data in checked.items()})
    number = known
    counts = dask.compute(*(count_impossible(da, ds, land, limits[name]) for name, da in variables.items()))
    for name, blocks in zip(variables, counts, strict=True):
        found = [(count, first) for count, first in blocks.flat if count]
        number += (of_variable := sum(count for count, _ in found))
        if found:
            logger.warning(
                "the product has %d impossible values of %s, the first of them %s, which `clean_up.on_impossible: "
                "warn` lets through",
                of_variable,
                name,
                found[0][1],
            )
    return ds.assign_attrs({IMPOSSIBLE_VALUES: number}) if number else ds


def count_impossible(da: xr.DataArray, ds: xr.Dataset, land: xr.DataArray, limits: Limits) -> Any:
    """Return the number of impossible values of a variable of `ds` and the first, a pair for each block; lazy."""
    return _looked_at(da, ds, land, limits, _count_impossible)


def count_crossed(ds: xr.Dataset) -> xr.DataArray:
    """Return the number of values of tasmin above tasmax, for each member of a pool; computes."""
    above = ds["tasmin"] > ds["tasmax"]
    return above.sum([dim for dim in above.dims if dim != REALIZATION]).compute()


def _looked_at(
    da: xr.DataArray, ds: xr.Dataset, land: xr.DataArray, limits: Limits, look: Callable[..., np.ndarray]
) -> Any:
    """Return what a function makes of each block of a variable."""
    name, units = str(da.name), str(da.attrs.get("units", ""))
    made_of = str(da.attrs.get(DERIVED_FROM, "")).split()
    may_lack = any(may_lack_values(ds.attrs, land, one) for one in (name, *made_of))
    beside = {"land": land.variable, **places_of(da)}
    # tasmin must not be above tasmax.
    beside |= {"tasmax": ds["tasmax"].variable} if name == "tasmin" and "tasmax" in ds else {}
    one_each = {"chunks": (1,) * da.ndim, "dtype": object, "meta": np.empty((0,) * da.ndim, object)}
    options = one_each if look is _count_impossible else {}
    told = {"name": name, "units": units, "low": limits[0], "high": limits[1], "may_lack": may_lack}
    return over_blocks(da, partial(look, told=told), beside, **options)


def may_lack_values(attrs: Mapping[Any, Any], land: xr.DataArray, name: str) -> bool:
    told = " ".join(str(one.get(LET_THROUGH, "")) for one in (attrs, land.attrs))
    # Temperatures are made of each other.
    of = _TEMPERATURES if name in _TEMPERATURES else (name,)
    is_told = (
        any(f"{kind} of {one} (" in told for kind in _LEAVE_GAPS for one in of)
        or REPAIRS in attrs
        or INSERTED_DAYS in attrs
    )
    return is_told or allowed_gaps(attrs, land) > 0


def _impossible(block: np.ndarray, beside: Mapping[str, np.ndarray], told: Mapping[str, Any]) -> np.ndarray:
    found = (block < told["low"]) | (block > told["high"]) | np.isinf(block)
    if "tasmax" in beside:
        found |= block > beside["tasmax"]
    return found if told["may_lack"] else found | (np.isnan(block) & beside["land"])


def _count_impossible(block: np.ndarray, beside: Mapping[str, np.ndarray], told: Mapping[str, Any]) -> np.ndarray:
    """Return a single element: the number of impossible values, and the first with its place."""
    found = _impossible(block, beside, told)
    counted = np.empty((1,) * block.ndim, object)
    counted.flat[0] = int(found.sum()), first_of(found, block, told["units"], beside) if found.any() else ""
    return counted


def _refuse_impossible(block: np.ndarray, beside: Mapping[str, np.ndarray], told: Mapping[str, Any]) -> np.ndarray:
    found = _impossible(block, beside, told)
    if not found.any():
        return block
    limited = np.isfinite([told["low"], told["high"]]).all()
    limits = f"{told['low']:g} to {told['high']:g} {told['units']}".rstrip() if limited else "finite values"
    raise DataError(
        f"{told['name']} of the product would have {int(found.sum())} impossible values among {block.size}, the "
        f"first of them {first_of(found, block, told['units'], beside)}; expected "
        f"{limits}{', not above tasmax' if 'tasmax' in beside else ''}. Each land cell needs a value on each day. "
        "Look at the raw values of that variable (the table of InputCheck, `espo explain`) and correct them, "
        "or exclude the simulation. `clean_up.on_impossible: warn` publishes such values, and counts them in the "
        f"attribute {IMPOSSIBLE_VALUES}."
    )


def _refuse_gaps(block: np.ndarray, land: np.ndarray, *, options: Mapping[str, Any]) -> np.ndarray:
    days = options["days"] or len(block)
    lacking = int(_count_gaps(block, land, days).max())
    if lacking > options["allowed"]:
        raise DataError(
            f"{options['name']} has no data on any of {min(days, len(block))} days in {lacking} of {int(land.sum())} "
            f"land cells of a block of {block.shape[1]} x {block.shape[2]}; expected data in all but "
            f"{options['allowed']}, which the simulation or the reference itself lacks. {_ADVICE}"
        )
    return block


def _count_gaps(block: np.ndarray, land: np.ndarray, days: int) -> np.ndarray:
    """The number of land cells without data, (chunk of time, 1, 1)."""
    chunks = (block[first : first + days] for first in range(0, len(block), days))
    return np.array([_count_in_chunk(chunk, land[0]) for chunk in chunks], np.int64).reshape(-1, 1, 1)


def _count_in_chunk(chunk: np.ndarray, land: np.ndarray) -> int:
    # Most chunks are settled by their first day.
    suspects = land & np.isnan(chunk[0])
    return int(np.isnan(chunk[:, suspects]).all(axis=0).sum()) if suspects.any() else 0
