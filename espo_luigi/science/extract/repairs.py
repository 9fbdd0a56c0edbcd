"""What the configuration says of raw values: known defects that are repaired, and source cells that are left out."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import dask.array
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.attributes import REPAIRS
from espo_luigi.science.quantities import OPERATORS, Comparison
from espo_luigi.science.units import units_of, value_in

logger = logging.getLogger(__name__)

REPAIR, REPAIRED = "repair", "repaired"

# A cell is named by its coordinates, which files hold as float32 or float64.
_SAME_DEGREES = 1e-4


@dataclass(frozen=True)
class Repair:
    """A row of the table: the values that are wrong, and what takes their place."""

    id: str
    """The simulation's id; ``*`` and ``?`` stand for any text and any letter."""
    variable: str
    what: Literal["missing", "mean_of_neighbours"]
    """``missing`` (NaN), or ``mean_of_neighbours``: the mean of the 8 cells around, without those that are NaN."""
    where: str | tuple[float, float] = ""
    """The values, as ``> 335 K``, or the cell, as latitude and longitude of its centre; all of them if empty."""
    when: str = ""
    """A day, a month or a year, as 2014-12-31; all days if empty."""

    def __str__(self) -> str:
        cell = "" if isinstance(self.where, str) else f"at {self.where[0]:g} N {self.where[1]:g} E"
        parts = (self.variable, cell or self.where, f"on {self.when}" if self.when else "")
        return f"{' '.join(str(part) for part in parts if part)}: {self.what}"


def repair(ds: xr.Dataset, repairs: Sequence[Repair]) -> xr.Dataset:
    """Repair this dataset by the rows of a table that name it, in their order.

    Raises `DataError` if the dataset has no ``cat:id``, or a cell lies at the edge and has no 8 neighbours.

    Parameters
    ----------
    ds : xarray.Dataset
        Variables (time, y, x) with `lat` and `lon`, 1-D or 2-D; its attribute ``cat:id`` chooses the rows.
    repairs : sequence of Repair

    Returns
    -------
    xarray.Dataset
        Lazy if `ds` is, in the same chunks; other values keep their bytes. If a row names this dataset, there are two
        coordinates along the dimension `REPAIR`: the rows as text, and lazily `REPAIRED`, the number of values that
        each row changes. `with_repairs_told` brings them into an attribute.
    """
    name = str(ds.attrs.get("cat:id", ""))
    if repairs and not name:
        raise DataError(f"the data have no attribute cat:id; expected one, to choose among {len(repairs)} repairs.")
    own = [row for row in repairs if fnmatchcase(name, row.id)]
    if not own:
        return ds
    repaired, counts = ds, []
    for row in own:
        repaired, count = _repaired(repaired, row)
        counts.append(dask.array.asarray(count, dtype=np.int64))
    return repaired.assign_coords({REPAIR: list(map(str, own)), REPAIRED: (REPAIR, dask.array.stack(counts))})


def with_repairs_told(ds: xr.Dataset) -> xr.Dataset:
    """Bring the counts of repaired values from their coordinates into the attribute `REPAIRS`; reads the counts."""
    if REPAIRED not in ds.coords:
        return ds
    counts = zip(ds[REPAIR].values.tolist(), ds[REPAIRED].values.tolist(), strict=True)
    done = [f"{row}, {count} value{'' if count == 1 else 's'}" for row, count in counts if count]
    told = {REPAIRS: "; ".join(done)} if done else {}
    return ds.drop_vars([REPAIR, REPAIRED]).assign_attrs(told)


def idle_repairs(ds: xr.Dataset) -> list[str]:
    """Return the rows that change no value of a dataset that `repair` has made; reads the counts."""
    return [str(row) for row in ds[REPAIR].values[ds[REPAIRED].values == 0]] if REPAIRED in ds.coords else []


def _repaired(ds: xr.Dataset, row: Repair) -> tuple[xr.Dataset, Any]:
    """Return the dataset with a row's repair, and the number of changed values, which may be lazy."""
    places = _places(ds, row)
    if places is None:
        return ds, 0
    data = ds[row.variable]
    old = data.isel(places)
    if row.what == "missing":
        wrong = old.notnull()
        if isinstance(row.where, str) and row.where:
            asked = Comparison(row.where)
            wrong &= asked.compare(old, value_in(asked.limit, row.variable, units_of(data)))
        new, count = old.where(~wrong), wrong.sum().data
    else:
        new, count = _mean_of_neighbours(data, places, row), old.size
    if not places:
        return ds.assign({row.variable: new}), count
    result = data.copy()
    result[places] = new
    return ds.assign({row.variable: result}), count


def _places(ds: xr.Dataset, row: Repair) -> dict[Hashable, Any] | None:
    """Return the indices of a row's days, as a slice, and of its cell, by dimension; None if they are absent."""
    if row.variable not in ds.data_vars:
        return None
    places: dict[Hashable, Any] = {}
    if row.when:
        try:
            days = ds.get_index("time").slice_indexer(row.when, row.when)
        # A day that the calendar lacks.
        except ValueError:
            return None
        if days.start >= days.stop:
            return None
        places["time"] = days
    if not isinstance(row.where, str):
        lat, lon = row.where
        near = (abs(ds["lat"] - lat) < _SAME_DEGREES) & (abs((ds["lon"] - lon + 180) % 360 - 180) < _SAME_DEGREES)
        found = np.argwhere(near.values)
        if not len(found):
            return None
        places |= dict(zip(near.dims, map(int, found[0]), strict=True))
    return places


def _mean_of_neighbours(data: xr.DataArray, places: Mapping[Hashable, Any], row: Repair) -> xr.DataArray:
    cell = {dim: at for dim, at in places.items() if dim != "time"}
    if any(not 0 < at < data.sizes[dim] - 1 for dim, at in cell.items()):
        raise DataError(
            f"repair ({row}): the cell lies at the edge of the data, {dict(data.sizes)}, and has no 8 neighbours."
        )
    around = data.isel({**places, **{dim: slice(at - 1, at + 2) for dim, at in cell.items()}})
    ring = xr.DataArray(np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], bool), dims=tuple(cell))
    return around.where(ring).mean(tuple(cell))


def create_mask(
    field: xr.DataArray, *, where_operator: str, where_threshold: float, mask_nans: bool = True
) -> xr.DataArray:
    """Return 1 where a field compares with a threshold, and 0 elsewhere, as `xscen.regrid.create_mask`; lazy.

    Parameters
    ----------
    field : xarray.DataArray
        Any dimensions, such as `sftlf` (y, x); of several times the first counts.
    where_operator : str
        One of `OPERATORS`.
    where_threshold : float
        In the field's own unit: land that fills a quarter of a cell is 25 where `sftlf` is in %.
    mask_nans : bool
        What cells without a value are: 0, or 1 if it is false.

    Returns
    -------
    xarray.DataArray
        `mask`, of the field's type, on its coordinates. The attribute `where_threshold` tells the comparison.
    """
    if field.attrs.get("units") == "%" and 0 < where_threshold <= 1:
        message = "%s is in %%, and where_threshold is %g: nearly all cells count. A quarter of a cell is 25."
        logger.warning(message, field.name, where_threshold)
    values = field.isel(time=0) if "time" in field.dims else field
    chosen = OPERATORS[where_operator](values, where_threshold)
    chosen = chosen & values.notnull() if mask_nans else chosen | values.isnull()
    mask = chosen.astype(field.dtype).rename("mask")
    mask.attrs = {
        "long_name": "Mask",
        "where_threshold": f"{field.name} {where_operator} {where_threshold}",
        "mask_NaNs": str(mask_nans),
    }
    return mask
