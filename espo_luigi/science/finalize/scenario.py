"""From adjusted variables to the product: derived tasmin, complete grid, metadata, and the regions joined."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.chunks import is_lazy, rechunk
from espo_luigi.science.extract.dataset import dates
from espo_luigi.science.finalize.consistency import derive_tasmin
from espo_luigi.science.finalize.gaps import (
    CELLS_WITHOUT_DATA,
    EXTRAPOLATED_CELLS,
    IMPOSSIBLE_VALUES,
    LET_THROUGH,
    allowed_gaps,
    require_data,
)
from espo_luigi.science.stack import ORIGINAL_SHAPE, horizontal_dims, unstack_fill_nan
from espo_luigi.science.units import convert_to

logger = logging.getLogger(__name__)

DEFAULT_CHUNKS = {"lat": 20, "lon": -1, "time": -1}
LOWEST_CREDIBLE_TASMIN_K = 100
# Attributes of the raw simulation: the scenario has its own version.
_RAW_VERSION = ("version", "cat:version")


def clean_up(
    adjusted: Sequence[xr.Dataset],
    *,
    grid: xr.Dataset | None,
    land: xr.DataArray | None = None,
    problem: bool,
    round_var: Mapping[str, int],
    to_level: str,
    add_attrs: Mapping[str, Mapping[str, object]],
    chunks: Mapping[str, int] | None = None,
    days: int | None = None,
) -> xr.Dataset:
    """Merge the adjusted variables, derive tasmin and give the metadata of the product.

    tasmin = tasmax - dtr, in tasmax's units and dtype, and its attributes say so; dtr is dropped. Variables and dates
    among the attributes are those of the data. Dimensions (time, loc) or (time, lat, lon) in,
    (time, lat, lon) out when `grid` is given. Units, calendar and range stay. Lazy on dask, and with
    `grid`; a block then is a task that reads its part of each variable.

    Parameters
    ----------
    adjusted
        One dataset per adjusted variable, with the same coordinates: tasmax, dtr and others, such as pr.
    grid
        The complete grid (`stack.grid_of`) when the data are stacked; None when they are not.
    land
        The reference's land cells (`stack.land_of`): that one has no data in a block is an error, unless as many lack
        some in the simulation itself or in other variables of the reference. None does not look.
    problem
        Whether this is one of the simulations with impossible values: every variable is then NaN unless tasmin > 100 K,
        and the result's attribute says that any land cell may lack data, of which `land` is looked at before.
    round_var
        Decimals to which a variable is rounded.
    to_level
        The `cat:processing_level` of the result.
    add_attrs
        Attributes for the keys `global` and any variable or coordinate; they win over those that the data have.
    chunks
        Blocks; default lat 20, all longitudes, all times.
    days
        The length of a chunk of time, in each of which `land` must have data; by default a block's.

    Raises
    ------
    DataError
        When coordinates differ between variables, or tasmax or dtr is missing; when computed, if land has no data.
    """
    merged = _merge_exactly(adjusted)
    cut = dict(DEFAULT_CHUNKS if chunks is None else chunks)
    lazy = chunks is not None or is_lazy(merged)
    gridded = unstack_fill_nan(merged, grid, cut) if grid is not None else rechunk(merged, cut) if lazy else merged
    gaps = 0 if land is None else allowed_gaps(merged.attrs, land)
    complete = gridded if land is None else _told(require_data(gridded, land, allowed=gaps, days=days), land, gaps)
    derived = _with_tasmin(complete)
    rounded = derived.assign({name: derived[name].round(n) for name, n in round_var.items() if name in derived})
    described = _describe(_labelled(rounded, to_level), add_attrs)
    if not problem:
        return described
    masked = mask_impossible(described)
    return masked if land is None else _with_gaps(masked, int(land.sum()))


@dataclass(frozen=True)
class Treatment:
    """What is done to a variable of the product, in this order."""

    round_var: Mapping[str, int] = field(default_factory=dict)
    clip_var: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """The lowest and the highest value, in the variable's units."""
    remove_all_attrs_except: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The attributes that stay, of the dataset (`global`) and of variables: names or regular expressions."""
    add_attrs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    to_level: str = "final"
    """The `cat:processing_level` of the product."""
    bits: int | None = None
    """The bits of mantissa that are kept; None keeps all."""
    change_attr_prefix: str = ""
    """What takes the place of `cat:` in the names of global attributes; nothing does if it is empty."""


def clean_up_cells(
    cells: xr.Dataset,
    *,
    grid: xr.Dataset,
    land: xr.DataArray,
    treatment: Treatment,
    chunks: Mapping[str, int],
    days: int,
    part: xr.Dataset | None = None,
) -> xr.Dataset:
    """Put an adjusted variable on its grid, and give it the values and the metadata of the product; lazy.

    Parameters
    ----------
    cells
        (time, loc), the land cells of the whole domain.
    grid, part
        The complete grid, and the part of it that the product has, by default all.
    land
        Boolean (y, x) on the product's grid: the cells that have values there. Its attribute `incomplete_cells` says in
        how many of them the reference itself lacks data.
    chunks, days
        Blocks, and the length of a chunk of time, in each of which `land` must have data.

    Raises
    ------
    DataError
        When a variable to be treated is missing; when computed, if land has no data.
    """
    allowed = allowed_gaps(cells.attrs, land)
    maps = unstack_fill_nan(cells, grid, chunks, part=part)
    if part is not None:
        inside = land.reset_coords(drop=True)
        maps = maps.map(lambda data: data.where(inside), keep_attrs=True)
    complete = _told(require_data(maps, land, allowed=allowed, days=days), land, allowed)
    rounded = _rounded(complete, treatment)
    clipped = rounded.assign(
        {name: rounded[name].clip(*bounds, keep_attrs=True) for name, bounds in treatment.clip_var.items()}
    )
    bare = _with_attributes_left(_with_history(_labelled(clipped, "final")), treatment.remove_all_attrs_except)
    described = _with_grid_mapping(_describe(_without_original_shape(bare), treatment.add_attrs))
    prefix = treatment.change_attr_prefix.removesuffix(":")
    if not prefix:
        return described
    named = {str(name).replace("cat:", f"{prefix}:", 1) if str(name).startswith("cat:") else name: value
             for name, value in described.attrs.items()}  # fmt: skip
    return _with_attrs(described, named)


def _without_original_shape(ds: xr.Dataset) -> xr.Dataset:
    """The dataset without the shape of the grid that was stacked, which need not be the product's."""
    out = ds.copy(deep=False)
    for name in out.coords:
        attrs = out.variables[name].attrs
        out.variables[name].attrs = {key: value for key, value in attrs.items() if key != ORIGINAL_SHAPE}
    return out


def _rounded(ds: xr.Dataset, treatment: Treatment) -> xr.Dataset:
    return ds.assign({name: ds[name].round(n) for name, n in treatment.round_var.items()})


def clipped_days(cells: xr.Dataset, treatment: Treatment) -> xr.Dataset:
    """Count the days on which each cell's value (time, loc) is beyond the bounds of `clip_var`; lazy, (loc).

    The attribute `days` of each count is the number of all days.
    """
    rounded = _rounded(cells, treatment)
    beyond = {
        name: (rounded[name].clip(*bounds) != rounded[name]) & rounded[name].notnull()
        for name, bounds in treatment.clip_var.items()
    }
    attrs = {"long_name": "Days on which the value was clipped", "units": "d", "days": cells.sizes["time"]}
    return xr.Dataset({name: days.sum("time", keep_attrs=False).assign_attrs(attrs) for name, days in beyond.items()})


def _with_grid_mapping(ds: xr.Dataset) -> xr.Dataset:
    """The dataset whose variables name its grid mapping (CF 5.6), if it has one."""
    mapping = next((name for name, one in ds.coords.items() if "grid_mapping_name" in one.attrs), None)
    named = {} if mapping is None else {name: data.assign_attrs(grid_mapping=mapping) for name, data in ds.items()}
    return ds.assign(named)


def together(products: Sequence[xr.Dataset]) -> xr.Dataset:
    """Return the variables of a simulation's products as one dataset; raises `DataError` if coordinates differ."""
    whole = _merge_exactly(products)
    gaps = max(int(one.attrs.get(CELLS_WITHOUT_DATA, 0)) for one in products)
    return _with_gaps(whole, gaps)


def _with_history(ds: xr.Dataset) -> xr.Dataset:
    """The dataset with the history of its variables before its own."""
    of_variables = (str(data.attrs.get("history", "")) for data in ds.data_vars.values())
    told = dict.fromkeys(filter(None, [*of_variables, str(ds.attrs.get("history", ""))]))
    return _with_attrs(ds, {**ds.attrs, **({"history": "\n".join(told)} if told else {})})


def _with_attributes_left(ds: xr.Dataset, left: Mapping[str, Sequence[str]]) -> xr.Dataset:
    """The dataset with only those attributes, and our own."""
    out = ds.copy(deep=False)
    for name, patterns in left.items():
        holder = out if name == "global" else out.variables.get(name)
        if holder is not None:
            kept = (*patterns, "espo_luigi_.*")
            holder.attrs = {
                key: value
                for key, value in holder.attrs.items()
                if any(re.fullmatch(pattern, str(key)) for pattern in kept)
            }
    return out


def _with_gaps(ds: xr.Dataset, number: int) -> xr.Dataset:
    """The dataset with an attribute that says how many land cells may lack data, if any."""
    attrs = {key: value for key, value in ds.attrs.items() if key != CELLS_WITHOUT_DATA}
    return _with_attrs(ds, attrs | ({CELLS_WITHOUT_DATA: number} if number else {}))


def _told(ds: xr.Dataset, land: xr.DataArray, gaps: int) -> xr.Dataset:
    """The dataset with attributes that tell how many land cells may lack data, and the problems of the raw files."""
    problems = [str(one[LET_THROUGH]) for one in (ds.attrs, land.attrs) if LET_THROUGH in one]
    counted = _with_gaps(ds, gaps)
    return counted.assign_attrs({LET_THROUGH: "; ".join(problems)}) if problems else counted


def mask_impossible(ds: xr.Dataset) -> xr.Dataset:
    """Return the dataset with all variables NaN unless tasmin is above 100 K; lazy, dtypes and attributes kept."""
    credible = convert_to(ds["tasmin"], "K") > LOWEST_CREDIBLE_TASMIN_K
    return ds.map(lambda da: da.where(credible) if set(credible.dims) <= set(da.dims) else da, keep_attrs=True)


def concatenate(parts: Sequence[xr.Dataset], *, domain: str, processing_level: str = "final") -> xr.Dataset:
    """Join the regions along latitude (`rlat` on rotated grids) into a single domain.

    Regions come from south to north; where their latitudes descend, they are joined from north to south, so that the
    latitudes of the result stay monotonic. Attributes are those of the first region, with
    `cat:domain` and `cat:processing_level` set and counts of cells added up. Coordinates keep the attributes on which
    the regions do not conflict, without `original_shape`, which describes a single region and never the result. Lazy.

    Raises
    ------
    DataError
        When regions are not in order, overlap, or differ in time, longitude or variables.
    """
    y, x = horizontal_dims(parts[0])
    for index, part in enumerate(parts[1:], 2):
        _check_same_axes(parts[0], part, index, ("time", x))
    ordered = list(parts) if ascending(parts[0], y) else list(parts)[::-1]
    _check_order([np.asarray(part[y].values) for part in ordered], y)
    joined = xr.concat(
        ordered, dim=y, data_vars="minimal", coords="minimal", compat="equals", join="exact", combine_attrs="override"
    )
    out = _with_attrs(joined, {**parts[0].attrs, "cat:domain": domain, "cat:processing_level": processing_level})
    out = _with_gaps(out, sum(int(part.attrs.get(CELLS_WITHOUT_DATA, 0)) for part in parts))
    for count in (EXTRAPOLATED_CELLS, IMPOSSIBLE_VALUES):
        if any(count in part.attrs for part in parts):
            out.attrs[count] = sum(int(part.attrs.get(count, 0)) for part in parts)
    for name in out.coords:
        out[name].attrs = _without_conflicts([part[name].attrs for part in parts if name in part.coords])
    return out


def _without_conflicts(attrs: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Merge attributes, dropping those with several values, and the shape of the grid that was stacked."""
    merged: dict[str, object] = {}
    conflicts = {ORIGINAL_SHAPE}
    for of_part in attrs:
        conflicts |= {name for name, value in of_part.items() if name in merged and not _equal(merged[name], value)}
        merged |= of_part
    return {name: value for name, value in merged.items() if name not in conflicts}


def _equal(one: object, other: object) -> bool:
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def _with_attrs(ds: xr.Dataset, attrs: Mapping[str, object]) -> xr.Dataset:
    out = ds.copy(deep=False)
    out.attrs = dict(attrs)
    return out


def _merge_exactly(adjusted: Sequence[xr.Dataset]) -> xr.Dataset:
    try:
        merged = xr.merge(adjusted, join="exact", compat="equals", combine_attrs="drop_conflicts")
    except (ValueError, xr.MergeError) as err:
        names = [list(ds.data_vars) for ds in adjusted]
        raise DataError(f"The adjusted variables {names} cannot be merged: their coordinates differ. {err}") from err
    return _with_attrs(merged, {key: value for key, value in merged.attrs.items() if key != "cat:variable"})


def _with_tasmin(ds: xr.Dataset) -> xr.Dataset:
    missing = [name for name in ("tasmax", "dtr") if name not in ds]
    if missing:
        raise DataError(f"tasmin = tasmax - dtr needs {missing}: got only {list(ds.data_vars)}.")
    return ds.assign(tasmin=derive_tasmin(ds["tasmax"], ds["dtr"])).drop_vars("dtr")


def _labelled(ds: xr.Dataset, to_level: str) -> xr.Dataset:
    derived = {
        "cat:variable": ",".join(map(str, ds.data_vars)),
        "cat:processing_level": to_level,
        **dates(ds),
        "cat:_data_format_": "zarr",
    }
    return _with_attrs(ds, {key: value for key, value in ds.attrs.items() if key not in _RAW_VERSION} | derived)


def _describe(ds: xr.Dataset, add_attrs: Mapping[str, Mapping[str, object]]) -> xr.Dataset:
    out = ds.copy(deep=False)
    for name, attrs in add_attrs.items():
        if name == "global":
            out.attrs.update(attrs)
        elif name in out.variables:
            out[name].attrs.update(attrs)
        else:
            logger.warning(
                "add_attrs names %r, which the product does not have (%s): ignored.", name, list(out.variables)
            )
    return out


def _check_same_axes(first: xr.Dataset, part: xr.Dataset, index: int, dims: Sequence[str]) -> None:
    for dim in dims:
        if (dim in first) != (dim in part) or (dim in first and not first.indexes[dim].equals(part.indexes[dim])):
            raise DataError(
                f"Region {index} has another {dim} axis than region 1: {_span(part, dim)} against {_span(first, dim)}. "
                f"Regions of one simulation must share it; make the one that is out of date again."
            )
    if set(first.data_vars) != set(part.data_vars):
        raise DataError(
            f"Region {index} has the variables {list(part.data_vars)}, region 1 has {list(first.data_vars)}."
        )


def _span(ds: xr.Dataset, dim: str) -> str:
    if dim not in ds.indexes or not ds.sizes[dim]:
        return "none"
    axis = ds.indexes[dim]
    return f"{axis.size} values from {axis[0]} to {axis[-1]}"


def ascending(ds: xr.Dataset, y: str) -> bool:
    """Return whether rows go from south to north."""
    values = ds[y].values
    return values.size < 2 or bool(values[-1] > values[0])


def _check_order(axes: Sequence[np.ndarray], y: str) -> None:
    steps = np.diff(np.concatenate(axes))
    if np.all(steps > 0) or np.all(steps < 0):
        return
    spans = ", ".join(f"{axis.min()} to {axis.max()}" for axis in axes)
    raise DataError(
        f"Regions overlap or are not in order along {y}: they span {spans}. List custom.regions from south to north, "
        f"with bounds that fall between grid points."
    )
