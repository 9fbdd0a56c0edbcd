"""A product's variable as CF 1.11 wants it in a file: bounds, cell methods, kinds of temperature, plain coordinates."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.finalize.quantization import CONTAINER
from espo_luigi.science.stack import ORIGINAL_SHAPE, horizontal_dims
from espo_luigi.store.write import plain_attributes

# The form that CF keeps for climatologies (section 7.4), which many products have for daily statistics.
_WITHIN_DAYS = re.compile(r"time: (\w+) within days")
_KELVINS = ("K", "degC", "C", "celsius", "kelvin", "Celsius")
# Attributes of the encoding, or of coordinates that the file does not have.
_NOT_COPIED = ("_FillValue", "missing_value", "coordinates", "bounds", "grid_mapping", "ancillary_variables")
# Of the product as a whole: of a file's one variable and few years they would be wrong. The prefix is `cat` or, with
# `change_attr_prefix`, any other.
_OF_THE_PRODUCT = re.compile(r"[^:]+:(variable|date_start|date_end|_data_format_)")
BOUNDS = "bnds"
# The version that files keep to, and the version whose attributes say how bits were rounded.
CONVENTIONS, OF_QUANTIZATION = "CF-1.11", "CF-1.12"


@dataclass(frozen=True)
class Stretch:
    """The days of one file: their places along `time`, and the first and the last day as YYYYMMDD."""

    days: slice
    dates: str


def stretches(time: xr.DataArray, years: int, first_year: int | None = None) -> list[Stretch]:
    """Return the days of each file, of whole calendar years.

    Parameters
    ----------
    time : xr.DataArray
        Daily dates in order, of any calendar.
    years : int
        Years by file.
    first_year : int, optional
        A year with which a file begins, such as 1951 for files of 1951-1955, 1956-1960 …; by default the first year of
        the series.
    """
    of_days = time.dt.year.values
    begin = int(of_days[0]) if first_year is None else first_year
    stamps = time.dt.strftime("%Y%m%d").values
    found, first = [], 0
    for _, group in groupby((int(year) - begin) // years for year in of_days):
        end = first + len(list(group))
        found.append(Stretch(slice(first, end), f"{stamps[first]}-{stamps[end - 1]}"))
        first = end
    return found


def described(ds: xr.Dataset, variable: str, name: str, attributes: Mapping[str, Mapping[str, Any]]) -> xr.Dataset:
    """Return one variable of a product with the metadata of CF 1.11, under its name in files; lazy.

    The dataset has the variable, its horizontal coordinates in double precision, `time`, the grid mapping, and the
    container of CF 1.12's quantization if bits were rounded. Other coordinates, such as masks, are left out.

    Parameters
    ----------
    ds : xr.Dataset
        A product: (time, y, x).
    variable, name : str
        The variable, and its name in the files.
    attributes : mapping
        Attributes to set: of the dataset (`global`), of the variable (`variable`), and of any other by its name. They
        win. In those of the variable, ``{long_name}`` and the like stand for its own attributes.

    Raises
    ------
    DataError
        If the product has no such variable, or is not (time, y, x).
    """
    if variable not in ds.data_vars:
        raise DataError(f"the product has no variable {variable}; it has {', '.join(map(str, ds.data_vars))}.")
    y, x = horizontal_dims(ds)
    data = ds[variable].transpose("time", y, x).variable
    mapping = _grid_mapping(ds, ds[variable])
    attrs = _of_data(ds[variable].attrs, tuple(map(str, data.dims)), mapping)
    given = {key: _filled(value, ds[variable].attrs) for key, value in attributes.get("variable", {}).items()}
    variables: dict[Hashable, xr.Variable] = {name: _like(data, {**attrs, **given})}
    if attrs.get("quantization") == CONTAINER and CONTAINER in ds:
        variables[CONTAINER] = ds[CONTAINER].variable
    if mapping:
        # Its value has no meaning (CF 5.6), and not every form of NetCDF has its type.
        variables[mapping] = xr.Variable((), np.int32(0), plain_attributes(ds[mapping].attrs))
    maps = [each for each in ("lat", "lon") if each in ds.coords and each not in (y, x)]
    coords = {each: _coordinate(ds[each].variable) for each in (y, x, *maps)}
    made = xr.Dataset(variables, {"time": ds["time"].variable, **coords})
    if maps:
        made[name].attrs["coordinates"] = " ".join(maps)
    for each, more in attributes.items():
        if each in made.variables:
            made[each].attrs.update(more)
    told = {**_global(ds.attrs), "Conventions": CONVENTIONS, **attributes.get("global", {})}
    if CONTAINER in variables and told["Conventions"] == CONVENTIONS:
        told["Conventions"] = f"{CONVENTIONS} {OF_QUANTIZATION}"
    return made.assign_attrs(told)


def _like(variable: xr.Variable, attrs: Mapping[Any, Any]) -> xr.Variable:
    made = variable.copy(deep=False)
    made.attrs, made.encoding = plain_attributes(attrs), {}
    return made


def _coordinate(variable: xr.Variable) -> xr.Variable:
    kept = {key: value for key, value in variable.attrs.items() if key not in (*_NOT_COPIED, ORIGINAL_SHAPE)}
    return xr.Variable(variable.dims, np.asarray(variable.values, np.float64), plain_attributes(kept))


def _grid_mapping(ds: xr.Dataset, data: xr.DataArray) -> str:
    """The name of the variable with the grid mapping (CF 5.6), or an empty text."""
    named = data.attrs.get("grid_mapping", data.encoding.get("grid_mapping", ""))
    found = (str(each) for each, one in ds.variables.items() if "grid_mapping_name" in one.attrs)
    return named if named in ds.variables else next(found, "")


def _of_data(attrs: Mapping[Any, Any], dims: Sequence[str], mapping: str) -> dict[str, Any]:
    """The attributes of the variable: those that it has, in the forms of CF 1.11."""
    kept = {str(key): value for key, value in attrs.items() if key not in _NOT_COPIED}
    if mapping:
        kept["grid_mapping"] = mapping
    if methods := kept.get("cell_methods"):
        kept["cell_methods"] = cell_methods(str(methods))
    if str(kept.get("units")) in _KELVINS and "units_metadata" not in kept:
        is_difference = "range" in str(methods) or str(kept.get("standard_name", "")).endswith("_range")
        kept["units_metadata"] = f"temperature: {'difference' if is_difference else 'on_scale'}"
    return kept


def cell_methods(text: str) -> str:
    """Return cell methods of a daily value as CF 1.11 and CMIP write them.

    ``time: maximum within days`` becomes ``area: mean time: maximum``. ``time: mean within days`` becomes
    ``area: time: mean``. Other texts stay.
    """
    found = _WITHIN_DAYS.fullmatch(text.strip())
    if found is None:
        return text
    return "area: time: mean" if found[1] == "mean" else f"area: mean time: {found[1]}"


def _global(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """The product's attributes; a colon, which CF has in no name (section 2.3), becomes an underscore."""
    kept = {
        key: value
        for key, value in attrs.items()
        if not _OF_THE_PRODUCT.fullmatch(str(key)) and not is_project_of_cordex(key, value)
    }
    return {str(key).replace(":", "_"): value for key, value in plain_attributes(kept).items()}


def is_project_of_cordex(name: Any, value: Any) -> bool:
    """Return whether an attribute says that data are CORDEX's, whose guidance forbids that to uncoordinated results."""
    return name == "project_id" and str(value).strip().upper() == "CORDEX"


def _filled(value: Any, fields: Mapping[Any, Any]) -> Any:
    if not isinstance(value, str):
        return value
    return re.sub(r"\{(\w+)\}", lambda found: str(fields.get(found[1], found[0])), value)
