"""Changes of climatologies against a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.outcomes.climatology import HORIZON
from espo_luigi.science.outcomes.natures import (
    NATURE,
    RATIO,
    as_spread,
    check_allowed,
    on_standard_year,
    rules_of,
    unwrapped,
    without_years,
)
from espo_luigi.science.units import threshold_in, units_of

# A difference, a quotient, a difference in percent of the baseline: xscen's words.
Kind = Literal["+", "/", "%"]
_WORDS = {"+": "abs.", "/": "rel.", "%": "pct."}
# A value of over so many baselines tells of a baseline of nearly 0, not of a change.
_MOST_BASELINES = 100


def delta(
    ds: xr.Dataset,
    baseline: str | xr.Dataset,
    *,
    kind: Kind | Mapping[str, Kind] = "+",
    least: Mapping[str, str] | None = None,
) -> xr.Dataset:
    """Return changes of each horizon against the baseline: absolute, as a quotient, or in percent.

    Dimensions (horizon, ...) in and out; the variable `prcptot_clim_mean` becomes
    `prcptot_clim_mean_delta_1991_2020`. Absolute changes of temperatures say that they are differences; quotients have
    units "1", percentages "%". Days of the year change by days, the shortest way. A baseline of another calendar is
    compared on the standard year. Lazy on Dask.

    There is no relative change where the baseline is nearly 0: where its size is under the variable's `least`, is 0, or
    is under a hundredth of the value's.

    Parameters
    ----------
    baseline
        Its horizon ("1991-2020"), or a climatology of the same variables, such as the reference's, with one horizon.
    kind
        "+", "/" or "%"; also by variable: its name, or the name without `_clim_mean` and the like. Others get "+".
    least
        The least baseline for a relative change, by variable, with units: {"prcptot": "10 mm"}.

    Raises
    ------
    ConfigurationError
        If a kind is none of a variable's nature (`natures`), or a name of `kind` or `least` is no variable.
    DataError
        If the baseline is absent, or has not one horizon, or other units.

    References
    ----------
    `xscen.compute_deltas`, which has no guard.
    """
    ds = without_years(ds)
    base, name = _baseline(ds, baseline)
    if any(data.attrs.get("calendar") != base[one].attrs.get("calendar") for one, data in ds.items() if one in base):
        ds, base = on_standard_year(ds), on_standard_year(base)
    names = [str(known) for known in ds.data_vars]
    for argument, given in {"kind": {} if isinstance(kind, str) else kind, "least": least or {}}.items():
        if strange := sorted(set(given).difference(names, (known.partition("_clim_")[0] for known in names))):
            raise ConfigurationError(f"{argument} names {', '.join(strange)}; the variables are {', '.join(names)}.")
    made = {}
    for variable, data in ds.data_vars.items():
        own = kind if isinstance(kind, str) else _of(kind, str(variable)) or "+"
        if variable not in base:
            raise DataError(f"the baseline lacks {variable}; it has {', '.join(map(str, base.data_vars))}.")
        if units_of(base[variable]) != units_of(data):
            raise DataError(
                f"{variable} is in {units_of(data)}, its baseline in {units_of(base[variable])}; convert one of them."
            )
        changed = _change(data, base[variable], own, least or {})
        attrs = {"delta_kind": _WORDS[own], "delta_reference": name}
        for key in ("long_name", "description"):
            if key in data.attrs:
                attrs[key] = f"{data.attrs[key]}: {_WORDS[own]} delta compared to {name}"
        made[f"{variable}_delta_{name.replace('-', '_')}"] = changed.transpose(*data.dims).assign_attrs(attrs)
    return xr.Dataset(made, ds.coords, ds.attrs)


def _baseline(ds: xr.Dataset, baseline: str | xr.Dataset) -> tuple[xr.Dataset, str]:
    """Return the baseline without the dimension of horizons, and its name."""
    source = ds if isinstance(baseline, str) else baseline
    horizons = [str(one) for one in source[HORIZON].values.ravel()] if HORIZON in source.coords else []
    if isinstance(baseline, str) and baseline not in horizons:
        raise DataError(
            f"the baseline {baseline} is none of the horizons, which are {', '.join(horizons)}; add it to the periods."
        )
    if not isinstance(baseline, str) and len(horizons) != 1:
        raise DataError(f"the baseline has the horizons {', '.join(horizons) or 'none'}; expected one.")
    name = baseline if isinstance(baseline, str) else horizons[0]
    source = source.sel({HORIZON: name}) if HORIZON in source.dims else source
    return source.drop_vars(HORIZON, errors="ignore"), name


def _of(by_name: Mapping[str, Kind] | Mapping[str, str], variable: str) -> str | None:
    return by_name.get(variable) or by_name.get(variable.partition("_clim_")[0])


def _change(data: xr.DataArray, base: xr.DataArray, kind: str, least: Mapping[str, str]) -> xr.DataArray:
    check_allowed(data, "changes", kind)
    if kind == "+":
        near = unwrapped(data, base) if rules_of(data).circular else data
        return as_spread((near - base).assign_attrs(data.attrs))
    enough = (abs(base) > 0) & (abs(data) <= _MOST_BASELINES * abs(base))
    if text := _of(least, str(data.name)):
        enough &= abs(base) >= threshold_in(text, units_of(data))
    change = (data / base if kind == "/" else 100 * (data - base) / base).where(enough)
    attrs = {key: value for key, value in data.attrs.items() if key not in ("standard_name", "units_metadata")}
    return change.assign_attrs({**attrs, "units": "1" if kind == "/" else "%", NATURE: RATIO})
