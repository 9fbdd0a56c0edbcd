"""Whether a scenario has data in every land cell of the reference, in every chunk of time, and values that can be."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any, Literal

import dask
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
from espo_luigi.science.chunks import REALIZATION, join
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.limits import DAYS_OF_A_GAP, INPUT_PROBLEMS, expected
from espo_luigi.science.possible import judged, limits_in, over_blocks, totalled
from espo_luigi.science.quality import is_flags
from espo_luigi.science.stack import INCOMPLETE_CELLS
from espo_luigi.science.variables import VARIABLES, Limits, Variable

logger = logging.getLogger(__name__)

_MADE_OF_EACH_OTHER = ("tasmax", "tasmin", "tas", "dtr")

_ADVICE = (
    "A store that this was made from was damaged or taken away while it was read: delete this simulation's stores of "
    "this region in paths.tmpdir (cleaned_up, adjusted, regridded, extracted), and run again"
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
    checked = {}
    for name, da in over_time(ds, land).items():
        ordered = da.transpose(..., *land.dims)
        refuse = partial(_refuse_gaps, name=name, allowed=allowed, days=days)
        checked[name] = ordered.copy(data=over_blocks(ordered, refuse, {"land": land.variable}))
    return ds.assign(checked)


def join_land(lands: Sequence[xr.DataArray], whole: xr.Dataset) -> xr.DataArray:
    """Return the land cells of all pieces on the grid of a product.

    Pieces are parts of the grid, or all of it with the cells of each apart. The product may be a cut of the grid.
    """
    y, x = horizontal_dims(whole)
    if all(land[y].equals(lands[0][y]) for land in lands):
        joined = reduce(operator.or_, lands)
    else:
        joined = join(lands, y, "drop")
    return joined.drop_attrs(deep=False).sel({y: whole[y], x: whole[x]})


def cells_without_data(da: xr.DataArray, land: xr.DataArray) -> xr.DataArray:
    """Return how many land cells are NaN on all days of each chunk of time; on chunks, lazy."""
    ordered = da.transpose(..., *land.dims)
    # `DataArray.chunk` makes a token of all dates, which takes a second.
    ordered = ordered.copy(data=ordered.variable.chunk().data)
    times, *others = ordered.data.chunks
    length = max(times)
    options = {
        "chunks": (tuple(-(-size // length) for size in times), *((1,) * len(sizes) for sizes in others)),
        "dtype": np.int64,
        "meta": np.empty((0, 0, 0), np.int64),
    }
    counts = over_blocks(ordered, partial(_count_gaps, days=length), {"land": land.variable}, **options)
    return xr.DataArray(counts.sum(axis=(-2, -1)), dims="chunk", name=da.name)


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
        return ds.assign({name: _refusing(da, ds, land, limits[name]) for name, da in variables.items()})
    number = known
    counts = dask.compute(*(count_impossible(da, ds, land, limits[name]) for name, da in variables.items()))
    for name, blocks in zip(variables, counts, strict=True):
        of_variable, first = totalled(blocks)
        number += of_variable
        if first:
            logger.warning(
                "the product has %d impossible values of %s, the first of them %s, which `clean_up.on_impossible: "
                "warn` lets through",
                of_variable,
                name,
                first,
            )
    return ds.assign_attrs({IMPOSSIBLE_VALUES: number}) if number else ds


def count_impossible(da: xr.DataArray, ds: xr.Dataset, land: xr.DataArray, limits: Limits) -> Any:
    """Return the number of impossible values of a variable of `ds` and the first, a pair for each block; lazy."""
    return judged(da, limits, _beside(da, ds, land))


def count_crossed(ds: xr.Dataset) -> xr.DataArray:
    """Return the number of values of tasmin above tasmax, for each member of a pool; computes."""
    above = ds["tasmin"] > ds["tasmax"]
    return above.sum([dim for dim in above.dims if dim != REALIZATION]).compute()


def _beside(da: xr.DataArray, ds: xr.Dataset, land: xr.DataArray) -> dict[str, xr.Variable]:
    """Return what a variable of `ds` must not contradict: the land, unless values may be lacking, and tasmax."""
    made_of = str(da.attrs.get(DERIVED_FROM, "")).split()
    may_lack = any(may_lack_values(ds.attrs, land, name) for name in (str(da.name), *made_of))
    beside = {} if may_lack else {"land": land.variable}
    return beside | ({"tasmax": ds["tasmax"].variable} if da.name == "tasmin" and "tasmax" in ds else {})


def _refusing(da: xr.DataArray, ds: xr.Dataset, land: xr.DataArray, limits: Limits) -> xr.DataArray:
    beside, units = _beside(da, ds, land), str(da.attrs.get("units", ""))
    refusal = (
        f"{da.name} of the product would have {{number}} impossible values among {{size}}, the first of them "
        f"{{first}}; expected {expected(limits, units)}{', not above tasmax' if 'tasmax' in beside else ''}. Each land "
        "cell needs a value on each day. Look at the raw values of that variable (the table of InputCheck, `espo "
        "explain`) and correct them, or exclude the simulation. `clean_up.on_impossible: warn` publishes such values, "
        f"and counts them in the attribute {IMPOSSIBLE_VALUES}."
    )
    return da.copy(data=judged(da, limits, beside, refusal))


def may_lack_values(attrs: Mapping[Any, Any], land: xr.DataArray, name: str) -> bool:
    told = " ".join(str(one.get(LET_THROUGH, "")) for one in (attrs, land.attrs))
    # Temperatures are made of each other.
    of = _MADE_OF_EACH_OTHER if name in _MADE_OF_EACH_OTHER else (name,)
    is_told = (
        any(f"{name} of {one} (" in told for name, kind in INPUT_PROBLEMS.items() if kind.leaves_gaps for one in of)
        or REPAIRS in attrs
        or INSERTED_DAYS in attrs
    )
    return is_told or allowed_gaps(attrs, land) > 0


def _refuse_gaps(
    block: np.ndarray, beside: Mapping[str, np.ndarray], *, name: str, allowed: int, days: int | None
) -> np.ndarray:
    days, land = days or len(block), beside["land"]
    lacking = int(_count_gaps(block, beside, days=days).max())
    if lacking > allowed:
        raise DataError(
            f"{name} has no data on any of {min(days, len(block))} days in {lacking} of {int(land.sum())} land cells "
            f"of a block of {block.shape[1]} x {block.shape[2]}; expected data in all but {allowed}, which the "
            f"simulation or the reference itself lacks. {_ADVICE}"
        )
    return block


def _count_gaps(block: np.ndarray, beside: Mapping[str, np.ndarray], *, days: int) -> np.ndarray:
    """The number of land cells without data, (chunk of time, 1, 1)."""
    counts = []
    for chunk in (block[first : first + days] for first in range(0, len(block), days)):
        # Most chunks are settled by their first day.
        suspects = beside["land"][0] & np.isnan(chunk[0])
        counts.append(int(np.isnan(chunk[:, suspects]).all(axis=0).sum()) if suspects.any() else 0)
    return np.array(counts, np.int64).reshape(-1, 1, 1)
