"""Variables and indicators as reports show them: names, order, units, colours, and the least amount of a wet day."""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterable, Mapping
from typing import Any

import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.outcomes.natures import DATE, NATURES, rules_of
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
    "d": "days",
}
# Units as they stand in long names: xclim writes thresholds with small letters.
_IN_NAMES = {"degc": "°C", "k": "K", "pa": "Pa", "hpa": "hPa", "mm/day": "mm/d", "mm d-1": "mm/d", "m s-1": "m/s"}
WETTER, WARMER, NEUTRAL = "BrBG", "RdBu_r", NATURES[DATE].colours
_BELOW = r"( \w+){0,3} (below|under|<)"
# matplotlib's colour maps of differences, by standard and long names: the first row that matches counts.
_COLOURS = (
    (NEUTRAL, r"correlation|amplitude|variability|deviation|range(?! modifier)"),
    (WARMER, r"\[(K|C|degC|delta_degC|°C)\]|^air temperature "),
    ("BrBG_r", rf"^(?!.*wet day follows).*\bdry|drought|moisture code|(precip|rain|snow|humid)\w*( amount)?{_BELOW}"),
    ("BrBG_r", r"(?<!temperature )deficit"),
    (WETTER, r"precip|rain|snow|\bwet\b|humid|moist|water cycle"),
    (WARMER, r"temperature above threshold|growing season|frost free"),
    ("RdBu", rf"frost|cold|chill|\bice\b|freez|heating|deficit|temperatures?{_BELOW}"),
    (WARMER, r"temperature|warm|heat|\bhot\b|tropical|summer"),
)
_POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def in_order(names: Iterable[str], table: Mapping[str, Variable] = VARIABLES) -> list[str]:
    """Return variables in the table's order; those that it lacks come last, as given."""
    given = dict.fromkeys(names)
    return [*(name for name in table if name in given), *(name for name in given if name not in table)]


def units_text(units: Any) -> str:
    """Return CF's units as people write them: mm/d, W/m², kg m⁻² s⁻¹."""
    divided = re.sub(r"^([^\s\d-][^\s-]*) ([A-Za-z]+)-(?:1|(\d))$", r"\1/\2\3", str(units))
    divided = re.sub(r"/day$", "/d", divided)
    raised = re.sub(r"(?<=[A-Za-z])-?\d", lambda power: power[0].translate(_POWERS), divided)
    return _UNITS.get(str(units), raised)


def long_name(data: xr.DataArray) -> str:
    """Return the name in words, by CF's attributes, its own without these; that of an indicator for its statistics."""
    words = str(data.attrs.get("long_name") or str(data.attrs.get("standard_name", "")).replace("_", " ") or data.name)
    begun, ended = r"^(\d+-year climatological \w+ of )?(The (?=number))?", r"(: \w+\. delta compared to .*?)?"
    words = re.sub(rf"{begun}|{ended}(, ([\w ]+ of members|\w+est member))?$", "", words)
    units = rf"(?<=\d )({'|'.join(_IN_NAMES)})(?!\w)"
    words = re.sub(units, lambda unit: _IN_NAMES[unit[0].lower()], words, flags=re.IGNORECASE)
    return words[:1].upper() + words[1:]


def noun(name: str, table: Mapping[str, Variable] = VARIABLES) -> str:
    """Return a variable in a few words, such as daily maximum temperature; its name if the table has none."""
    return re.sub(r"(near-surface|air|2m) ", "", variable(name, table).long_name.lower()) or name


def colours_of_differences(data: xr.DataArray) -> str:
    """Return matplotlib's colour map of differences: drier is brown, wetter green, colder blue, warmer red."""
    words = " ".join(str(data.attrs.get(name)) for name in ("standard_name", "long_name")).replace("_", " ").lower()
    words += f" [{data.attrs.get('units')}]"
    of_words = (colours for colours, pattern in _COLOURS if re.search(pattern, words))
    return rules_of(data).colours or next(of_words, NEUTRAL)


def in_celsius(data: xr.DataArray) -> xr.DataArray:
    """Return an indicator's temperatures in degrees Celsius, and all else, such as changes, as it is; lazy."""
    return as_shown(data, Variable(display_units=rules_of(data).shown_units))


def months_text(letters: str) -> str:
    """Return a month (JAN) or a season (DJF) in words; other words stay."""
    names, initials = calendar.month_name[1:], "JFMAMJJASONDJFMAMJJASOND"
    if month := [name for name in names if name[:3].upper() == letters]:
        return month[0]
    first = initials.find(letters) if 1 < len(letters) < 12 else -1
    return f"{names[first]} to {names[(first + len(letters) - 1) % 12]}" if first >= 0 else letters


def experiment_text(experiment: str) -> str:
    """Return an experiment as people write it: SSP5-8.5, RCP4.5."""
    known = re.fullmatch(r"(?:(ssp)(\d)|rcp)(\d)(\d)", experiment)
    return f"{f'SSP{known[2]}-' if known[1] else 'RCP'}{known[3]}.{known[4]}" if known else experiment


def counted(number: int, noun: str) -> str:
    """Return a number of things: 1 simulation, 2 simulations."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


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
