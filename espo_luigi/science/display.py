"""Variables as reports show them: their order, their units, and the least amount of a wet day."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import xarray as xr

from espo_luigi.science.units import convert_to, is_difference
from espo_luigi.science.variables import VARIABLES, Variable, variable


def in_order(names: Iterable[str], table: Mapping[str, Variable] = VARIABLES) -> list[str]:
    """Return variables in the table's order; those that it lacks come last, as given."""
    given = dict.fromkeys(names)
    return [*(name for name in table if name in given), *(name for name in given if name not in table)]


def display_units(name: str, table: Mapping[str, Variable] = VARIABLES) -> str:
    """Return a variable's units in reports; "" for those of its data."""
    known = variable(name, table)
    return known.display_units or known.units


def of_differences(units: str) -> str:
    """Return the units of differences between values."""
    return "K" if units == "degC" else units


def wet_day(name: str, units: str = "", table: Mapping[str, Variable] = VARIABLES) -> float | None:
    """Return the value below which a day is dry, in these or in a report's units; None of a variable without dry days.

    It has six digits: conversion leaves 0.9999999999999999 mm d-1.
    """
    known, wanted = variable(name, table), units or display_units(name, table)
    if known.wet is None or not known.units or wanted == known.units:
        return known.wet
    given = xr.DataArray(known.wet, name=name, attrs={"units": known.units})
    return float(f"{float(convert_to(given, wanted)):.6g}")


def in_display_units(
    ds: xr.Dataset, names: Iterable[str] | None = None, *, table: Mapping[str, Variable] = VARIABLES
) -> xr.Dataset:
    """Return variables (by default all) in a report's units and the table's order; lazy.

    Differences of temperature stay, and so do variables whose units the table does not have. Each has a `long_name`.
    """
    shown = [name for name in in_order(map(str, ds.data_vars if names is None else names), table) if name in ds]
    made = {}
    for name in shown:
        units = "" if is_difference(ds[name]) else display_units(name, table)
        words = {"long_name": variable(name, table).long_name or name}
        named = ds[name].assign_attrs({} if {"long_name", "standard_name"} & ds[name].attrs.keys() else words)
        made[name] = convert_to(named, units) if units else named
    return ds.assign(made)[shown]
