"""Extraction: canonical units, derived variables, a period of whole years and a box of daily climate data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any

import cftime
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import day_of, whole_years
from espo_luigi.science.chunks import join
from espo_luigi.science.derivations import OF_RAW_DATA, derive
from espo_luigi.science.extract.input_problems import require_days
from espo_luigi.science.geometry.cells import normalise_coordinates
from espo_luigi.science.geometry.cutting import subset_box
from espo_luigi.science.periods import each_period
from espo_luigi.science.units import as_difference, as_floats, convert_to, rate_of_totals
from espo_luigi.science.variables import VARIABLES, Variable, variable

# Global attributes (CMIP6, CORDEX, ACDD, tools) that describe a single file, variable or experiment. They are wrong for
# data joined from several: identities, texts about the file, the run's branching point.
_OF_A_FILE = (
    *("tracking_id", "creation_date", "date_*", "uuid", "timeStamp", "id", "name", "status", "version_id"),
    *("variable_id", "table_id", "table_info", "mipTable", "external_variables", "product", "further_info_url"),
    *("title", "description", "comment", "contact", "history", "*_history", "variant_info", "case_id", "EXPID"),
    *("experiment", "driving_experiment*", "parent_*", "branch_*", "YMDH_*", "*_runid", "*_hash", "*_commit"),
    *("cmor_version", "data_specs_version", "CMIP6_CV_version", "dr2xml_*", "NCO", "nco_*", "CDO", "DODS*"),
    *("geospatial_*", "time_coverage_*"),
    *("intake_esm*", "cat:path", "cat:format", "cat:date"),
)
# Attributes of variables that describe a single file, name its content, or limit values that change.
_OF_A_FILES_VARIABLE = (
    *("history", "original_*", "GRIB_*", "interval_*", "online_operation", "interp_method", "mipTable", "prov", "id"),
    *("title", "time", "time_label", "time_title", "coordinates", "bounds", "climatology", "cell_measures"),
    *("actual_range", "valid_min", "valid_max", "valid_range"),
)


def extract(
    ds: xr.Dataset,
    *,
    variables_and_freqs: Mapping[str, str],
    period: Sequence[str] | Sequence[Sequence[str]],
    region: Mapping[str, Any],
    table: Mapping[str, Variable] = VARIABLES,
) -> xr.Dataset:
    """Cut daily data to variables, years and a box; lazy.

    Parameters
    ----------
    ds : xarray.Dataset
        (time, lat, lon), or (time, y, x) with 2-D lat and lon; daily, any calendar; any CF units.
    variables_and_freqs : mapping
        The variables of the result, each ``"D"``; those of `derivations.OF_RAW_DATA` are derived if
        they are not there.
    period : (start, end) or sequence of them
        Years, both included; in order, with years between them that are left out.
    region : mapping
        `name`, `lon_bnds`, `lat_bnds` (degrees, inclusive) and `tile_buffer`, which widens each bound by so many of the
        data's largest coordinate steps.
    table : mapping
        What is known of variables.

    Returns
    -------
    xarray.Dataset
        The variables in the order asked for, in the table's units, as float32 or float64, in the input's calendar,
        longitude convention and order of latitudes; cells of a curvilinear grid outside the box are NaN. Without the
        attributes that describe one file, such as `tracking_id` or `title`.

    Raises
    ------
    DataError
        If a variable or part of the period is missing, days are missing or double, units are unknown, or no cell is in
        the box.
    """
    parts = [
        select(ds, variables_and_freqs=variables_and_freqs, period=years, table=table) for years in each_period(period)
    ]
    selected = parts[0] if len(parts) == 1 else join(parts, "time")
    cut = subset_box(selected, region).copy(deep=False)
    for each in cut.variables.values():
        each.attrs = _without(each.attrs, _OF_A_FILES_VARIABLE)
    cut.attrs = _attributes(ds, cut, region, each_period(period))
    return cut


def select(
    ds: xr.Dataset,
    *,
    variables_and_freqs: Mapping[str, str],
    period: Sequence[str],
    table: Mapping[str, Variable] = VARIABLES,
) -> xr.Dataset:
    """Do what `extract` does before it cuts the box: variables, units and period, on the whole grid; lazy."""
    if other := {name: frequency for name, frequency in variables_and_freqs.items() if frequency != "D"}:
        raise DataError(f"frequencies {other} are wanted; expected D: only daily data are extracted.")
    named = normalise_coordinates(ds)
    variables = {name: _variable(named, name, table) for name in variables_and_freqs}
    # Built on the coordinates alone, so that variables and attributes of the input cannot slip in.
    return select_period(named[[]].assign(variables), period)


def _attributes(
    ds: xr.Dataset, cut: xr.Dataset, region: Mapping[str, Any], periods: Sequence[Sequence[str]]
) -> dict[Any, Any]:
    """The global attributes of the files that are true of the cut, and those that follow from the cut."""
    return of_all_files(ds.attrs) | {
        "cat:domain": str(region["name"]),
        "cat:processing_level": "extracted",
        "cat:xrfreq": "D",
        "cat:frequency": "day",
        "cat:variable": ",".join(map(str, cut.data_vars)),
        **dates(cut),
        "history": f"espo_luigi: extracted {' and '.join(map('-'.join, periods))}, region {region['name']}",
    }


def of_all_files(attrs: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return those of a file's global attributes that are true of its simulation."""
    # "CF-1.7 CMIP-6.2": products follow CF, and not the rules for CMIP6's files.
    conventions = " ".join(re.findall(r"CF-[\d.]+", str(attrs.get("Conventions", ""))))
    return _without(attrs, (*_OF_A_FILE, "Conventions")) | ({"Conventions": conventions} if conventions else {})


def dates(ds: xr.Dataset) -> dict[str, str]:
    """Return the attributes that say which days a series has, in its own calendar."""
    first, last = ds["time"].values[[0, -1]]
    return {"cat:date_start": day_of(first), "cat:date_end": day_of(last)}


def _without(attrs: Mapping[Any, Any], patterns: Sequence[str]) -> dict[Any, Any]:
    return {
        name: value for name, value in attrs.items() if not any(fnmatchcase(str(name), pattern) for pattern in patterns)
    }


def to_canonical_units(data: xr.DataArray, where: str = "", table: Mapping[str, Variable] = VARIABLES) -> xr.DataArray:
    """Convert to a table's units, precipitation depths by the density of water, with the types of `as_floats`; lazy.

    Differences of temperatures always get the attribute that says so. Variables without units in the table keep their
    own, known or not; an absent attribute becomes an empty text.

    Raises
    ------
    DataError
        If units are absent, unknown or of another quantity; it names `where`, the variable, its units and the expected.
    """
    known = variable(str(data.name), table)
    given = as_difference(data) if known.difference else data
    if not known.units:
        return as_floats(given.assign_attrs(units=data.attrs.get("units", "")))
    try:
        return convert_to(given, known.units)
    except DataError as error:
        said, name = data.attrs.get("units", "none"), data.name
        total = rate_of_totals(str(said), known.units)
        remedy = (
            f"If they are totals of each day, write `accumulation: {{{name}: over_step}}` beside the search of these "
            f"data; if rates, `units: {{{name}: {total}}}`."
            if total
            else f"Correct the attribute, or write what is true, such as `units: {{{name}: {known.shown_units}}}`, "
            "beside the search of these data."
        )
        raise DataError(
            f"{where + ': ' if where else ''}{name} has units {said!r}; expected {known.units} or what converts to it "
            f"({error}) {remedy}"
        ) from None


def as_maps(data: xr.DataArray) -> xr.DataArray:
    """Return a variable on `lat` and `lon` as (time, y, x), without other dimensions of size 1; lazy.

    Raises
    ------
    DataError
        If it has other dimensions, lacks any of these, or holds no numbers.
    """
    if data.dtype.kind not in "fiu":
        raise DataError(f"{data.name} holds {data.dtype}; expected numbers.")
    dims = ("time", *dict.fromkeys((*data["lat"].dims, *data["lon"].dims)))
    if "expver" in data.dims:  # of ERA5: final values (version 1), and preliminary ones (5) where there are none
        order = data["expver"].argsort().values if "expver" in data.coords else np.arange(data.sizes["expver"])
        final, *preliminary = (data.isel(expver=int(at), drop=True) for at in order)
        data = reduce(lambda known, other: known.fillna(other), preliminary, final).assign_attrs(data.attrs)
    others = [dim for dim in data.dims if dim not in dims]
    if set(dims) - set(data.dims) or any(data.sizes[dim] != 1 for dim in others):
        raise DataError(
            f"{data.name} has the dimensions {', '.join(f'{dim} ({size})' for dim, size in data.sizes.items())}; "
            f"expected {', '.join(map(str, dims))} and no others of more than one value. Select one value of others."
        )
    return data.squeeze(others, drop=True).transpose(*dims)


def _variable(ds: xr.Dataset, name: str, table: Mapping[str, Variable]) -> xr.DataArray:
    if name in ds.data_vars:
        return to_canonical_units(as_maps(ds[name]), table=table)
    inputs = OF_RAW_DATA.get(name, ())
    if inputs and set(inputs) <= set(ds.data_vars):
        return derive(name, {given: _variable(ds, given, table) for given in inputs}, table)
    raise DataError(f"variable {name} is missing; got {sorted(map(str, ds.data_vars))}.")


def select_period(ds: xr.Dataset, period: Sequence[str]) -> xr.Dataset:
    """Select whole years, or from a day to a day, both ends included, of a daily series without gaps; lazy.

    Raises
    ------
    DataError
        If the data begin after 1 January of the first year or end before the last day of the last one (30 December
        in a 360-day calendar), or days are missing or double.
    """
    start, end = (str(bound) for bound in period)
    first = ds["time"].values[:1]
    if first.size and not (np.issubdtype(first.dtype, np.datetime64) or isinstance(first[0], cftime.datetime)):
        raise DataError(f"time holds {first.dtype}, not dates. Correct its units and calendar.")
    selected = ds.sel(time=slice(start, end)) if "-" in start else whole_years(ds, start, end)
    if not selected.sizes["time"]:
        there = " to ".join(map(day_of, ds["time"].values[[0, -1]])) if ds.sizes["time"] else "no time steps"
        raise DataError(f"the period {start}-{end} is wanted, and the data have no day of it, but {there}.")
    require_days(selected, period=(start, end))
    return selected
