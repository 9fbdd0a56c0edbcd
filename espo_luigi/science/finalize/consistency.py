"""Adjusted tasmax, tasmin and dtr made consistent: by exchange, by derivation, or by both (DQM-dtr)."""

from __future__ import annotations

from collections.abc import Mapping

import xarray as xr

from espo_luigi.science.chunks import join
from espo_luigi.science.derivations import NEEDED_FOR, Consistency, daily_temperature_range
from espo_luigi.science.units import convert_to, units_of


def consistent(adjusted: Mapping[str, xr.DataArray], *, how: Consistency) -> xr.Dataset:
    """Return `tasmax` and `tasmin`, consistent, and `dtrpreswap`, tasmax - tasmin before; lazy.

    Raises
    ------
    DataError
        If coordinates differ, or a unit is unknown.
    """
    if how == "swap":
        return swap_inversions(adjusted["tasmax"], adjusted["tasmin"])
    # ESPO v2 exchanges days first for DQM-dtr, and undoes that: tasmax is as adjusted.
    given = adjusted if how == "derived" else _together(**{name: adjusted[name] for name in NEEDED_FOR[how]})
    tasmax, tasmin = given["tasmax"], derive_tasmin(given["tasmax"], given["dtr"])
    before = _before(tasmax, tasmin if how == "derived" else given["tasmin"])
    return xr.Dataset({"tasmax": tasmax, "tasmin": tasmin, "dtrpreswap": before})


def swap_inversions(tasmax: xr.DataArray, tasmin: xr.DataArray) -> xr.Dataset:
    """Exchange tasmax and tasmin where tasmax < tasmin, as ESPO v2 does; lazy.

    Days on which either is NaN stay as they are. Raises `DataError` if the two have different coordinates, or a unit is
    unknown.

    Returns
    -------
    xarray.Dataset
        `tasmax` and `tasmin` in the units of tasmax, and `dtrpreswap`, tasmax - tasmin before the exchange (K, negative
        where they were exchanged).
    """
    pair = _same_units(tasmax, tasmin)
    high, low = pair["tasmax"], pair["tasmin"]
    inverted = high < low
    return pair.assign(
        tasmax=_described(high.where(~inverted, low), high, "exchanged with tasmin where it was below tasmin"),
        tasmin=_described(low.where(~inverted, high), low, "exchanged with tasmax where it was above tasmax"),
        dtrpreswap=_before(high, low),
    )


def derive_tasmin(tasmax: xr.DataArray, dtr: xr.DataArray) -> xr.DataArray:
    """Return tasmax - dtr, in tasmax's units and dtype, with attributes that say so; lazy.

    Raises `DataError` if a unit is unknown.
    """
    tasmin = (convert_to(tasmax, units_of(dtr)) - dtr).rename("tasmin")
    own = {"tasmax": tasmax, "dtr": dtr}
    told = [f"{name}: {da.attrs['bias_adjustment']}" for name, da in own.items() if "bias_adjustment" in da.attrs]
    # Not dtr's attributes, which say that it is a difference, nor tasmax's, which say how that was adjusted.
    tasmin.attrs = {
        "standard_name": "air_temperature",
        "long_name": "Daily minimum temperature",
        "units": units_of(dtr),
        "cell_methods": "time: minimum within days",
        "history": "tasmin = tasmax - dtr, of the adjusted tasmax and dtr",
        "bias_adjustment": "; ".join(["not adjusted itself: tasmax - dtr, each of which is adjusted", *told]),
    }
    return convert_to(tasmin, units_of(tasmax)).astype(tasmax.dtype)


def count_inversions(tasmax: xr.DataArray, tasmin: xr.DataArray) -> xr.Dataset:
    """Count the days of each cell on which tasmax < tasmin (`inversions`), and those with both (`days`); lazy.

    Raises
    ------
    DataError
        If the two have different coordinates, or a unit is unknown.
    """
    pair = _same_units(tasmax, tasmin)
    inverted = pair["tasmax"] < pair["tasmin"]
    valid = pair["tasmax"].notnull() & pair["tasmin"].notnull()
    counts = xr.Dataset({"inversions": inverted.sum("time"), "days": valid.sum("time")})
    counts["inversions"].attrs = {"long_name": "Days on which tasmax is below tasmin", "units": "1"}
    counts["days"].attrs = {"long_name": "Days with tasmax and tasmin", "units": "1"}
    return counts


def inversions_before_and_after(dtrpreswap: xr.DataArray, tasmax: xr.DataArray, tasmin: xr.DataArray) -> xr.Dataset:
    """Count the days of each cell with tasmax < tasmin, `before` they were made consistent and `after`; lazy.

    Cells without data are NaN. `days` are those that have both in the end. Raises `DataError` if the series have
    different coordinates, or a unit is unknown.
    """
    found = _together(dtrpreswap=dtrpreswap, tasmax=tasmax, tasmin=tasmin)
    after = count_inversions(found["tasmax"], found["tasmin"])
    before = (found["dtrpreswap"] < 0).sum("time").assign_attrs(after["inversions"].attrs)
    counts = xr.Dataset({"before": before, "after": after["inversions"], "days": after["days"]})
    return counts.where(counts["days"] > 0)


def _before(tasmax: xr.DataArray, tasmin: xr.DataArray) -> xr.DataArray:
    return daily_temperature_range(tasmax, tasmin).assign_attrs(
        long_name="Daily temperature range before tasmax and tasmin were made consistent",
        history="tasmax - tasmin, as adjusted, before they were made consistent",
    )


def _same_units(tasmax: xr.DataArray, tasmin: xr.DataArray) -> xr.Dataset:
    units = units_of(tasmax)
    return _together(tasmax=convert_to(tasmax, units), tasmin=convert_to(tasmin, units))


def _together(**variables: xr.DataArray) -> xr.Dataset:
    """The variables in a dataset: xarray's arithmetic would silently drop the days that some of them lack."""
    # Datasets: the attributes of arrays would become those of the whole.
    named = [variable.to_dataset(name=name) for name, variable in variables.items()]
    whole: xr.Dataset = join(named, attributes="drop_conflicts", what=", ".join(variables))
    return whole


def _described(values: xr.DataArray, like: xr.DataArray, history: str) -> xr.DataArray:
    described = values.copy(deep=False)
    described.attrs = {**like.attrs, "history": "\n".join(filter(None, [history, like.attrs.get("history", "")]))}
    return described
