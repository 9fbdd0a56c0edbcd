"""Repairs of known defects in the data of single simulations, from a table that counts changed values."""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import dask
import numpy as np
import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.extract.mask import OPERATORS
from espo_luigi.science.units import convert_to, units_of

logger = logging.getLogger(__name__)

REPAIRS = "espo_luigi_repairs"
"""The global attribute that lists the repairs of a dataset, each with the number of changed values."""

What = Literal["missing", "mean_of_neighbours"]

_COMPARISON = re.compile(r"\s*([<>=!]=?)\s*(\S+)\s+(\S.*)")
_DAYS = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")
# A cell is named by its coordinates, which files hold as float32 or float64.
_SAME_DEGREES = 1e-4


@dataclass(frozen=True)
class Repair:
    """A row of the table: the values that are wrong, and what takes their place."""

    id: str
    """The simulation's id; ``*`` and ``?`` stand for any text and any letter."""
    variable: str
    what: What
    """``missing`` (NaN), or ``mean_of_neighbours``: the mean of the 8 cells around, without those that are NaN."""
    where: str | tuple[float, float] = ""
    """The values, as ``> 335 K``, or the cell, as latitude and longitude of its centre; all of them if empty."""
    when: str = ""
    """A day, a month or a year, as 2014-12-31; all days if empty."""

    def __str__(self) -> str:
        cell = "" if isinstance(self.where, str) else f"at {self.where[0]:g} N {self.where[1]:g} E"
        parts = (self.variable, cell or self.where, f"on {self.when}" if self.when else "")
        return f"{' '.join(str(part) for part in parts if part)}: {self.what}"


def repair(ds: xr.Dataset, repairs: Sequence[Repair]) -> tuple[xr.Dataset, dict[int, xr.DataArray]]:
    """Repair this dataset by the rows of a table that name it, in their order.

    Parameters
    ----------
    ds : xarray.Dataset
        Variables (time, y, x) with `lat` and `lon`, 1-D or 2-D; its attribute ``cat:id`` chooses the rows.
    repairs : sequence of Repair

    Returns
    -------
    ds : xarray.Dataset
        Lazy if `ds` is, in the same chunks; other values keep their bytes. `REPAIRS` lists what was changed.
    counts : dict of int to xarray.DataArray
        By the row's number, from 1, on how many days it changed each cell (y, x), of all rows for this dataset that
        name one of its variables; in memory. Counting reads the days and cells that a row names, a chunk at a time. A
        warning names each row that changed nothing.

    Raises
    ------
    ConfigurationError
        If a row is not a repair, even one of another dataset.
    DataError
        If the dataset has no ``cat:id``, or a cell lies at the edge and has no 8 neighbours.
    """
    for number, row in enumerate(repairs, 1):
        _check(row, f"repair {number}")
    name = str(ds.attrs.get("cat:id", ""))
    if repairs and not name:
        raise DataError(f"the data have no attribute cat:id; expected one, to choose among {len(repairs)} repairs.")
    own = {number: row for number, row in enumerate(repairs, 1) if fnmatchcase(name, row.id)}
    repaired, changes = ds, {}
    for number, row in own.items():
        repaired, changes[number] = _repaired(repaired, row, f"repair {number} ({row})")
    counts = dict(zip(changes, dask.compute(*changes.values()), strict=True))
    values = {number: int(count.sum()) for number, count in counts.items()}
    for number in (number for number, count in values.items() if not count):
        logger.warning("repair %d (%s) changes nothing in %s. Correct or remove it.", number, own[number], name)
    done = [f"{own[number]}, {count} value{'' if count == 1 else 's'}" for number, count in values.items() if count]
    return (repaired.assign_attrs({REPAIRS: "; ".join(done)}) if done else repaired), counts


def repaired_days(counts: Iterable[xr.DataArray]) -> xr.Dataset:
    """Return the days on which each cell (y, x) of a variable was changed, summed over rows of the table.

    `counts` are those of `repair`; variables without a change are left out.
    """
    by_variable: dict[Hashable, xr.DataArray] = {}
    for count in (one for one in counts if one.any()):
        by_variable[count.name] = by_variable[count.name] + count if count.name in by_variable else count
    return xr.Dataset(by_variable).astype("float32").map(lambda one: one.assign_attrs(units="d"))


def _check(row: Repair, where: str) -> None:
    if row.what not in get_args(What):
        raise ConfigurationError(f"{where}: what is {row.what!r}; expected {' or '.join(get_args(What))}.")
    if row.when and not _DAYS.fullmatch(row.when):
        raise ConfigurationError(f"{where}: when is {row.when!r}; expected a day, a month or a year, as 2014-12-31.")
    if isinstance(row.where, str) and row.where:
        _comparison(row.where, where)
    if not row.where and not row.when:
        raise ConfigurationError(f"{where} would replace all values of {row.variable}; expected where, when or both.")
    if row.what == "mean_of_neighbours" and isinstance(row.where, str):
        raise ConfigurationError(f"{where}: where is {row.where!r}; expected the latitude and longitude of a cell.")


def _comparison(text: str, where: str) -> tuple[str, float, str]:
    """Return operator, threshold and units of a text such as "> 335 K"."""
    match = _COMPARISON.fullmatch(text)
    try:
        if match and match[1] in OPERATORS:
            return match[1], float(match[2]), match[3]
    except ValueError:
        pass
    known = ", ".join(OPERATORS)
    raise ConfigurationError(f'{where}: where is {text!r}; expected one of {known}, a number and units, as "> 335 K".')


def _repaired(ds: xr.Dataset, row: Repair, where: str) -> tuple[xr.Dataset, xr.DataArray]:
    """Return the dataset with a row's repair, and the number of changed days of each cell, which may be lazy."""
    places = _places(ds, row)
    if places is None:
        return ds, xr.DataArray(0, name=row.variable)
    data = ds[row.variable]
    old = data.isel(places)
    if row.what == "missing":
        wrong = old.notnull()
        if isinstance(row.where, str) and row.where:
            sign, threshold, units = _comparison(row.where, where)
            limit = convert_to(xr.DataArray(threshold, name=row.variable, attrs={"units": units}), units_of(data))
            wrong &= OPERATORS[sign](old, float(limit))
        new, changed = old.where(~wrong), wrong.sum("time")
    else:
        new = _mean_of_neighbours(data, places, where)
        changed = xr.ones_like(old, dtype=np.int64).sum("time")
    cell = {dim: at for dim, at in places.items() if dim != "time"}
    days = xr.zeros_like(data.isel(time=0, drop=True), dtype=np.int64).drop_attrs(deep=False).compute()
    if cell:
        days[cell] = changed
    else:
        days = days + changed
    if set(places):
        result = data.copy()
        result[places] = new
    else:
        result = new
    return ds.assign({row.variable: result}), days.rename(row.variable)


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


def _mean_of_neighbours(data: xr.DataArray, places: Mapping[Hashable, Any], where: str) -> xr.DataArray:
    cell = {dim: at for dim, at in places.items() if dim != "time"}
    if any(not 0 < at < data.sizes[dim] - 1 for dim, at in cell.items()):
        raise DataError(f"{where}: the cell lies at the edge of the data, {dict(data.sizes)}, and has no 8 neighbours.")
    around = data.isel({**places, **{dim: slice(at - 1, at + 2) for dim, at in cell.items()}})
    ring = xr.DataArray(np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]], bool), dims=tuple(cell))
    return around.where(ring).mean(tuple(cell))
