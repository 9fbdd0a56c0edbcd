"""From adjusted variables to the product: variables derived, complete grid, metadata, and the regions joined."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science import quality
from espo_luigi.science.attributes import (
    ABOUT_RAW_FILES,
    CELLS_WITHOUT_DATA,
    DAYS,
    EXTRAPOLATED_CELLS,
    IMPOSSIBLE_VALUES,
)
from espo_luigi.science.chunks import is_lazy, join, rechunk
from espo_luigi.science.derivations import NEEDED_FOR, TEMPERATURES, Consistency, with_derived
from espo_luigi.science.extract.dataset import dates
from espo_luigi.science.finalize.consistency import consistent
from espo_luigi.science.finalize.gaps import allowed_gaps, require_data
from espo_luigi.science.finalize.quantization import round_bits
from espo_luigi.science.finalize.radiation import limited_to_potential_radiation
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.limits import LOWEST_CREDIBLE_TASMIN_K
from espo_luigi.science.stack import ORIGINAL_SHAPE, unstack_fill_nan
from espo_luigi.science.units import convert_to
from espo_luigi.science.variables import VARIABLES, Variable, names_of

logger = logging.getLogger(__name__)

DEFAULT_CHUNKS = {"lat": 20, "lon": -1, "time": -1}
# Attributes of the raw simulation: the scenario has its own version.
_RAW_VERSION = ("version", "cat:version")


@dataclass(frozen=True)
class Treatment:
    """What is done to variables of the product, in this order; variables that the product lacks are passed over."""

    round_var: Mapping[str, int] = field(default_factory=dict)
    clip_var: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """The lowest and the highest value, in the variable's units."""
    limit_var: Mapping[str, str] = field(default_factory=dict)
    """The name of a limit that depends on day and place: `potential_radiation` alone."""
    remove_all_attrs_except: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The attributes that stay, of the dataset (`global`) and of variables: names or regular expressions."""
    add_attrs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Attributes for `global` and any variable or coordinate; they win over those that the data have."""
    to_level: str = "final"
    """The `cat:processing_level` of the product."""
    change_attr_prefix: str = ""
    """What takes the place of `cat:` in the names of global attributes; nothing does if it is empty."""
    bits: int | None = None
    """The bits of mantissa that are kept; None keeps all."""


@dataclass(frozen=True)
class Land:
    """Where a product has values: its grid, and the land cells that need data in each chunk of time.

    Attributes
    ----------
    cells
        Boolean (y, x) on the product's grid, as `stack.land_of` returns it; its attribute `incomplete_cells` says in
        how many cells the reference itself lacks data.
    grid
        The complete grid (`stack.grid_of`) of the stacked cells.
    part
        The part of the grid that the product has, by default all. Cells outside of `cells` are then NaN.
    days
        The length of a chunk of time; by default a block's.
    """

    cells: xr.DataArray
    grid: xr.Dataset
    part: xr.Dataset | None = None
    days: int | None = None


def finish(
    adjusted: xr.Dataset,
    *,
    treatment: Treatment,
    land: Land | None = None,
    chunks: Mapping[str, int] | None = None,
    temperatures: Consistency | None = None,
    derived: Mapping[str, Sequence[str]] = MappingProxyType({}),
    mask: bool = False,
    table: Mapping[str, Variable] = VARIABLES,
    limits: xr.Dataset | None = None,
) -> xr.Dataset:
    """Make a product of adjusted variables: on the complete grid, treated and described; lazy.

    Units, calendar and period stay. Days that `clip_var` and `limit_var` change are flagged in flags that are there
    (`science.quality`). Without flags, these days and maps of `quality.days_of` are summed up in attributes of their
    variable, which computes. A block of the result is a task that reads only the cells that it needs.

    Parameters
    ----------
    adjusted
        Variables (time, loc), or maps if `land` is None, as `join` makes of several.
    land
        Where the product has values. None takes maps as they are, and looks for no gaps.
    chunks
        Blocks; by default 20 rows, all columns, all times.
    temperatures
        How tasmax and tasmin are made, in tasmax's units and dtype; they take the place of a dtr that it takes.
    derived
        Variables that are derived from others, each with these, before they are rounded and clipped.
    mask
        Whether the simulation has impossible values: every variable is then NaN unless tasmin > 100 K, and the result's
        attribute says that any land cell may lack data, which is looked at before.
    table
        What is known of variables: names for those that lack theirs, and the units of derived ones.
    limits
        Of `quality.limits_of`, of the same cells as `adjusted`: days beyond them are flagged in flags that are there.

    Raises
    ------
    DataError
        When computed, if land has no data in a chunk of time. As many land cells may lack data as do so in the
        simulation or in the reference.
    """
    cut = dict(DEFAULT_CHUNKS if chunks is None else chunks)
    if land is None:
        complete = rechunk(adjusted, cut) if chunks is not None or is_lazy(adjusted) else adjusted
    else:
        maps = unstack_fill_nan(adjusted, land.grid, cut, part=land.part)
        if land.part is not None:
            inside = land.cells.reset_coords(drop=True)
            maps = maps.map(lambda data: data.where(inside, 0 if data.dtype.kind == "u" else np.nan), keep_attrs=True)
        allowed = allowed_gaps(adjusted.attrs, land.cells)
        complete = _told(require_data(maps, land.cells, allowed=allowed, days=land.days), land.cells, allowed)
    if temperatures is not None:
        made = consistent({name: complete[name] for name in NEEDED_FOR[temperatures]}, how=temperatures)
        flags = quality.of_temperatures(complete, made["dtrpreswap"], temperatures)
        complete = complete.assign({name: made[name] for name in TEMPERATURES} | flags)
        complete = complete.drop_vars({*NEEDED_FOR[temperatures]} - {*TEMPERATURES})
    whole = with_derived(complete, derived, table).assign(quality.inherited(complete, derived or {}))
    made = _summed(_treated(whole, treatment), land)
    if limits is not None:
        limits = limits if land is None else unstack_fill_nan(limits, land.grid, cut, part=land.part)
        made = quality.with_beyond(made, limits)
    for name in series_of(made):
        attrs = made[name].attrs
        made[name].attrs = attrs | {key: words for key, words in names_of(name, table).items() if key not in attrs}
    described = _described(made, treatment)
    if mask:
        masked = mask_impossible(described)
        return masked if land is None else _with_gaps(masked, int(land.cells.sum()))
    return described


def _treated(ds: xr.Dataset, treatment: Treatment) -> xr.Dataset:
    """The dataset rounded and clipped, with flags or maps of the days on which values were clipped."""
    rounded = ds.assign({name: ds[name].round(n) for name, n in treatment.round_var.items() if name in ds})
    bounds = {name: limits for name, limits in treatment.clip_var.items() if name in ds}
    clipped = {name: rounded[name].clip(*limits, keep_attrs=True) for name, limits in bounds.items()}
    for name in (name for name in treatment.limit_var if name in ds):
        clipped[name] = limited_to_potential_radiation(clipped.get(name, rounded[name]))
    marks = {}
    for name, data in clipped.items():
        changed = (data != rounded[name]) & rounded[name].notnull()
        if (flags := quality.flags_name(name)) in ds:
            marks[flags] = quality.with_flag(ds[flags], changed, "clipped")
        else:
            marks[f"{name}{quality.COUNTED}clipped"] = changed.sum("time")
    return rounded.assign(clipped | marks)


def _summed(ds: xr.Dataset, land: Land | None) -> xr.Dataset:
    """The dataset with sums of its maps of days in attributes of their variables, instead of the maps; computes."""
    maps = ds[[name for name, data in ds.items() if quality.COUNTED in str(name) and "time" not in data.dims]]
    for name, days in maps.sum().compute().items():
        variable, _, kind = str(name).partition(quality.COUNTED)
        if variable in ds:
            cells = maps[name].size if land is None else int(land.cells.sum())
            told = {DAYS: cells * ds.sizes["time"], f"{DAYS}_{kind}": int(days)}
            ds = ds.assign({variable: ds[variable].assign_attrs(told)})
    return ds.drop_vars(maps.data_vars)


def counts_of_flags(flags: xr.Dataset, product: xr.Dataset) -> xr.Dataset:
    """Return maps of the days on which each flag is raised, or of whether a cell's is, as `quality.days_of`; lazy.

    The attribute `days` tells how many there could be. Cells with neither data on the first day nor the flag are NaN.
    """
    maps: dict[str, xr.DataArray] = {}
    is_land = product[series_of(product)[0]].isel(time=0, drop=True).notnull()
    for name, bits in flags.data_vars.items():
        variable = str(name).removesuffix("_flags").removesuffix("_cell")
        of, units, days = ("days", "d", bits.sizes["time"]) if "time" in bits.dims else ("cells", "1", 1)
        for map_name, counts in quality.days_of(bits, variable).items():
            kind = map_name.rpartition(quality.COUNTED)[2]
            told = {"long_name": f"{kind}, {of} of {variable}", "units": units, "days": days}
            maps[map_name] = counts.astype("float32").where(is_land | (counts > 0)).assign_attrs(told)
    return xr.Dataset(maps)


def _described(ds: xr.Dataset, treatment: Treatment) -> xr.Dataset:
    """The dataset with its metadata, and only as many bits as are kept."""
    derived = {"cat:variable": ",".join(series_of(ds)), "cat:processing_level": treatment.to_level, **dates(ds)}
    kept = {key: value for key, value in ds.attrs.items() if key not in _RAW_VERSION}
    out = _with_attrs(ds, kept | derived | {"cat:_data_format_": "zarr"})
    if treatment.remove_all_attrs_except:
        out = _with_attributes_left(out, treatment.remove_all_attrs_except)
    for name in out.coords:  # the grid that was stacked need not be the product's
        attrs = out.variables[name].attrs
        out.variables[name].attrs = {key: value for key, value in attrs.items() if key != ORIGINAL_SHAPE}
    for name, given in treatment.add_attrs.items():
        if name == "global":
            out.attrs.update(given)
        elif name in out.variables:
            out[name].attrs.update(given)
        else:
            logger.warning(
                "add_attrs names %r, which the product does not have (%s): ignored.", name, list(out.variables)
            )
    mapping = next((name for name, one in out.coords.items() if "grid_mapping_name" in one.attrs), None)
    if mapping is not None:  # CF 5.6
        out = out.assign({name: data.assign_attrs(grid_mapping=mapping) for name, data in out.items()})
    if prefix := treatment.change_attr_prefix.removesuffix(":"):
        out = _with_attrs(out, {re.sub("^cat:", f"{prefix}:", str(name)): value for name, value in out.attrs.items()})
    if treatment.bits is None:
        return out
    return round_bits(out, series_of(out), treatment.bits, version=importlib.metadata.version("espo_luigi"))


def series_of(ds: xr.Dataset) -> list[str]:
    """Return the names of the variables that have a value for each day; flags have none."""
    return [str(name) for name, data in ds.data_vars.items() if "time" in data.dims and not quality.is_flags(name)]


def merge_products(products: xr.Dataset | Sequence[xr.Dataset]) -> xr.Dataset:
    """Return the variables of a simulation's products as one dataset; raises `DataError` if coordinates differ."""
    if isinstance(products, xr.Dataset):
        return products
    whole = join(products, attributes="drop_conflicts", what=f"The products {[series_of(one) for one in products]}")
    gaps = max(int(one.attrs.get(CELLS_WITHOUT_DATA, 0)) for one in products)
    return _with_gaps(whole, gaps)


def _with_attributes_left(ds: xr.Dataset, left: Mapping[str, Sequence[str]]) -> xr.Dataset:
    """The dataset with only those attributes, and our own; the history of its variables comes before its own."""
    histories = [str(one.attrs.get("history", "")) for one in (*ds.data_vars.values(), ds)]
    told = "\n".join(filter(None, dict.fromkeys(histories)))
    out = _with_attrs(ds, ds.attrs | ({"history": told} if told else {}))
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
    """The dataset with attributes that tell how many land cells may lack data, and of the raw files and their units."""
    both = {name: [str(one[name]) for one in (ds.attrs, land.attrs) if name in one] for name in ABOUT_RAW_FILES}
    return _with_gaps(ds, gaps).assign_attrs({name: "; ".join(texts) for name, texts in both.items() if texts})


def mask_impossible(ds: xr.Dataset) -> xr.Dataset:
    """Return the dataset with all variables NaN unless tasmin is above 100 K; lazy, dtypes and attributes kept."""
    credible = convert_to(ds["tasmin"], "K") > LOWEST_CREDIBLE_TASMIN_K
    masked = {name: ds[name].where(credible) for name in series_of(ds) if set(credible.dims) <= set(ds[name].dims)}
    return ds.assign({name: data.assign_attrs(ds[name].attrs) for name, data in masked.items()})


def concatenate(parts: Sequence[xr.Dataset], *, domain: str, processing_level: str = "final") -> xr.Dataset:
    """Join the regions along latitude (`rlat` on rotated grids) into a single domain.

    Regions come from south to north; where their latitudes descend, they are joined from north to south, so that the
    latitudes of the result stay monotonic. Attributes are those of the first region, with `cat:domain` and
    `cat:processing_level` set and counts of cells and days added up.
    Coordinates keep the attributes on which the regions do not conflict, without `original_shape`, which describes a
    single region and never the result. Lazy.

    Raises
    ------
    DataError
        When regions are not in order, overlap, or differ in time, longitude or variables.
    """
    y, _ = horizontal_dims(parts[0])
    ordered = list(parts) if ascending(parts[0], y) else list(parts)[::-1]
    _check_order([np.asarray(part[y].values) for part in ordered], y)
    attrs = {**parts[0].attrs, "cat:domain": domain, "cat:processing_level": processing_level}
    out = _with_attrs(join(ordered, y, what="Regions"), attrs)
    out = _with_gaps(out, sum(int(part.attrs.get(CELLS_WITHOUT_DATA, 0)) for part in parts))
    for count in (EXTRAPOLATED_CELLS, IMPOSSIBLE_VALUES):
        if any(count in part.attrs for part in parts):
            out.attrs[count] = sum(int(part.attrs.get(count, 0)) for part in parts)
    for name, data in out.data_vars.items():
        counts = [key for key in data.attrs if str(key).startswith(DAYS)]
        data.attrs |= {key: sum(int(part[name].attrs.get(key, 0)) for part in parts) for key in counts}
    for name in out.coords:
        told = [part[name].attrs for part in parts if name in part.coords]
        known = {key: value for of in told for key, value in of.items() if key != ORIGINAL_SHAPE}
        agreed = {key for key, value in known.items() if all(np.array_equal(of.get(key, value), value) for of in told)}
        out[name].attrs = {key: value for key, value in known.items() if key in agreed}
    return out


def _with_attrs(ds: xr.Dataset, attrs: Mapping[str, object]) -> xr.Dataset:
    out = ds.copy(deep=False)
    out.attrs = dict(attrs)
    return out


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
