"""Variables as reports show them: their order, their units, and the least amount of a wet day."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.units import convert_to, is_difference, threshold_in
from espo_luigi.science.variables import VARIABLES, Variable, variable

_NUMBERS = ("", "1", "%")
_UNITS = {
    "degC": "°C",
    "delta_degC": "°C",
    "degrees_north": "°N",
    "degrees_east": "°E",
    "degrees": "°",
    "1": "1",
    "": "1",
}
_POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def in_order(names: Iterable[str], table: Mapping[str, Variable] = VARIABLES) -> list[str]:
    """Return variables in the table's order; those that it lacks come last, as given."""
    given = dict.fromkeys(names)
    return [*(name for name in table if name in given), *(name for name in given if name not in table)]


def units_text(units: Any) -> str:
    """Return CF's units as people write them."""
    raised = re.sub(r"(?<=[A-Za-z])-?\d", lambda power: power[0].translate(_POWERS), str(units))
    return _UNITS.get(str(units), raised)


def of_differences(units: str) -> str:
    """Return the units of differences between values."""
    return "K" if units == "degC" else units


def wet_day(name: str, units: str = "", table: Mapping[str, Variable] = VARIABLES) -> float | None:
    """Return the value below which a day is dry, in these or in a report's units; None of a variable without dry days.

    It has six digits: conversion leaves 0.9999999999999999 mm d-1.
    """
    known = variable(name, table)
    wanted = units or known.shown_units
    if known.wet is None or not known.units or wanted == known.units:
        return known.wet
    return float(f"{threshold_in(f'{known.wet!r} {known.units}', wanted):.6g}")


def as_shown(data: xr.DataArray, known: Variable) -> xr.DataArray:
    """Return values, statistics or differences of a variable in the units of reports, by the variable's row; lazy.

    Differences of temperatures are in K. Data that do not convert stay, such as the days of a spell; so do numbers
    without a unit, such as correlations, unless they have the row's own.
    """
    units, wanted = str(data.attrs.get("units", "")), known.shown_units
    if is_difference(data):
        wanted = of_differences(wanted)
    if not wanted or (units in _NUMBERS and units != known.units):
        return data
    try:
        return convert_to(data, wanted)
    except DataError:
        return data


def in_display_units(
    ds: xr.Dataset, names: Iterable[str] | None = None, *, table: Mapping[str, Variable] = VARIABLES
) -> xr.Dataset:
    """Return variables (by default all) in a report's units and the table's order; lazy.

    Units are those of `as_shown`. Each has a `long_name`.
    """
    shown = [name for name in in_order(map(str, ds.data_vars if names is None else names), table) if name in ds]
    made = {}
    for name in shown:
        words = {"long_name": variable(name, table).long_name or name}
        named = ds[name].assign_attrs({} if {"long_name", "standard_name"} & ds[name].attrs.keys() else words)
        made[name] = as_shown(named, variable(name, table))
    return ds.assign(made)[shown]
