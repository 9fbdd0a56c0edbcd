"""Indicators, and statistics of them, as a stranger reads them: their order, and a sample computed again by xclim."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.science.chunks import join
from espo_luigi.science.outcomes.daily import DAILY
from espo_luigi.science.outcomes.natures import rules_of

_PERCENTILE = re.compile(r"(.+)_(min|max|p\d+(?:\.\d+)?)")
# A day of the year is before another if it is at most half a year earlier.
_YEAR = 365.25
# xclim adds in another order, and single precision has seven digits.
_TOLERANCE = 1e-5


def out_of_order(ds: xr.Dataset) -> Iterator[str]:
    """Yield repeated labels, times that do not increase, and lower percentiles of members above higher; by blocks."""
    for dim, index in ds.indexes.items():
        if twice := [str(label) for label in index[index.duplicated()]]:
            yield f"{dim} has {twice[0]} twice"
        elif dim == "time" and not index.is_monotonic_increasing:
            yield "times are not in order"
    found: dict[str, dict[float, str]] = {}
    for name in map(str, ds if "ensemble_members" in ds.attrs else ()):
        if named := _PERCENTILE.fullmatch(name):
            share = {"min": -1.0, "max": 101.0}.get(named[2]) or float(named[2][1:])
            found.setdefault(named[1], {})[share] = name
    pairs = [pair for of in found.values() for pair in pairwise(of[share] for share in sorted(of))]
    for low, high in pairs:
        excess = ds[low] - ds[high]
        excess = (excess + _YEAR / 2) % _YEAR - _YEAR / 2 if rules_of(ds[high]).circular else excess
        if number := int((excess > _TOLERANCE * abs(ds[high])).sum()):
            yield f"{low} is above {high} in {number} values"


def sample_of(ds: xr.Dataset, land: np.ndarray, number: int) -> np.ndarray:
    """Return so many land cells (of a map in C order) that lack a value where others have some, and as many others."""
    lacks = np.zeros(land.shape, bool)
    for da in ds.data_vars.values():
        null = da.isnull().transpose("time", ...)
        lacks |= (null & ~null.where(land, True).all(null.dims[1:])).any("time").values
    suspects, others = np.flatnonzero(land & lacks), np.flatnonzero(land & ~lacks)
    draw = np.random.default_rng(0)
    return np.concatenate([draw.permutation(suspects)[:number], draw.permutation(others)[:number]])


def comparable(ds: xr.Dataset, indicators: Sequence[tuple[str, Any]]) -> tuple[xr.Dataset, list[tuple[str, Any]]]:
    """Return the variables that `differences` can make again, and their indicators.

    It has neither the days of a base period nor daily indices. Of a whole module, the rule leaves out what is not
    possible.
    """
    made = [({each["var_name"] for each in one.cf_attrs}, (name, one)) for name, one in indicators]
    left_out = {name for name, data in ds.items() if {"base_period", "calibration_period"} & data.attrs.keys()}
    for names, (_, one) in made:
        if DAILY.keys() & {str(each.default) for each in one.parameters.values()}:
            left_out |= names
    ds = ds.drop_vars(left_out, errors="ignore")
    return ds, [pair for names, pair in made if names & {*ds}]


def differences(
    ds: xr.Dataset, days: xr.Dataset, indicators: Sequence[tuple[str, Any]], spans: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Yield the first value of each variable that is not what xclim makes of the days; (time, cell), in memory.

    `spans` are the first and last years of stretches without a gap.
    """
    from xclim import set_options

    made: dict[str, list[xr.DataArray]] = {}
    with warnings.catch_warnings(), set_options(run_length_ufunc=False):
        warnings.simplefilter("ignore")
        for _, one in indicators:
            how = {"freq": str(ds.attrs["cat:xrfreq"])} if "freq" in one.parameters else {}
            for first, last in spans:
                for data in _computed(one, days.sel(time=slice(first, last)), how):
                    # As in the archives, without the winter before the first year.
                    ours = data.isel(time=data["time"].dt.year.values >= int(first))
                    made.setdefault(str(data.name), []).append(ours)
    for name in sorted({*made} ^ set(map(str, ds))):
        yield f"{name} is only {'computed again' if name in made else 'in the archive'}"
    for name, parts in made.items():
        if name in ds:
            yield from _apart(ds[name], join(parts, "time").dropna("time", how="all"))


def _computed(one: Any, days: xr.Dataset, how: dict[str, str]) -> Sequence[xr.DataArray]:
    """Return what an indicator makes of days (time, cell); those with latitudes want these as a dimension."""
    if "lat" in one.parameters:
        cells = [days.isel(cell=cell).expand_dims("lat") for cell in range(days.sizes["cell"])]
        made = [one(ds=cell, **how).isel(lat=0, drop=True) for cell in cells]
        return (join(made, "cell"),)
    results = one(ds=days, **how)
    return results if isinstance(results, tuple) else (results,)


def _apart(kept: xr.DataArray, made: xr.DataArray) -> Iterator[str]:
    if absent := [str(time)[:10] for time in made["time"].values if time not in kept.indexes["time"]]:
        yield f"{kept.name} lacks {len(absent)} periods, the first {absent[0]}"
    # A year that is there twice is told elsewhere.
    made = made.reindex(time=kept.drop_duplicates("time")["time"]).sel(time=kept["time"]).transpose(*kept.dims)
    wrong = ~np.isclose(kept, made.values, rtol=_TOLERANCE, atol=_TOLERANCE / 10, equal_nan=True)
    if wrong.any():
        at = dict(zip(kept.dims, np.argwhere(wrong)[0], strict=True))
        one, told = kept.isel(at), f"{kept.isel(at).item():.7g}, and {made.isel(at).item():.7g} by xclim of the product"
        where = f"{str(one['time'].values)[:10]} at {one['lat'].item():g} °N {one['lon'].item():g} °E"
        yield f"{kept.name} is different in {wrong.sum()} of {wrong.size} values: on {where} it is {told}"
