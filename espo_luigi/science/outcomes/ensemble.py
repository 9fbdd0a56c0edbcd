"""Statistics over simulations: percentiles, agreement and robustness as in IPCC AR6, and the partition of variance.

xclim.ensembles computes them, in blocks of all members and few cells. Members that are missing in a period are named in
the attribute `ensemble_missing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dask
import numpy as np
import xarray as xr
import xclim.ensembles as xens

from espo_luigi.errors import DataError
from espo_luigi.science.outcomes.climatology import HORIZON, LEVEL, MEMBER
from espo_luigi.science.outcomes.natures import (
    around_mean,
    as_spread,
    in_year,
    on_standard_year,
    rules_of,
    without_years,
)

ALONG = ("time", HORIZON, LEVEL)
"""Dimensions along which members may be missing."""
_BLOCK_BYTES = 2**24
_SIMPLE: Any = {
    "categories": ["High model agreement", "Low model agreement"],
    "ops": [(None, ">="), (None, "<")],
    "thresholds": [(None, 0.8), (None, 0.8)],
}
_MEANINGS = {
    "positive": "Share of members with an increase",
    "negative": "Share of members with a decrease",
    "agree": "Share of members that agree on the sign of change",
    "changed": "Share of members whose change {criterion}",
    "changed_positive": "Share of members whose increase {criterion}",
    "changed_negative": "Share of members whose decrease {criterion}",
    "simple": "Agreement on the sign of change by the simple approach of IPCC AR6",
    "advanced": "Robustness of change by the advanced approach of IPCC AR6",
}


def join(members: Mapping[str, xr.Dataset], absent: Mapping[str, str] | None = None) -> xr.Dataset:
    """Return the members along the dimension `realization`, with their labels; lazy.

    Yearly, seasonal or monthly series of several calendars get the standard calendar. Counts, amounts and days of the
    year are those of a year of 365 days (`natures.on_standard_year`). A period that a member lacks is NaN. Attributes
    and scalars in which members differ are dropped. `absent` has the reasons, by label, why members are missing
    altogether.

    Raises
    ------
    DataError
        If there is no member, or if members differ in variables, units or grid.
    """
    told = "\n".join(f"{label}: {reason}" for label, reason in (absent or {}).items())
    if not members:
        raise DataError(f"The ensemble has no member ({told or 'none was given'}). Expected one or more.")
    members = {label: on_standard_year(without_years(ds)) for label, ds in members.items()}
    (label, like), *others = members.items()
    for its_label, ds in others:
        if differ := _differences(like, ds):
            raise DataError(
                f"The members {label!r} and {its_label!r} differ in the variables, units or coordinates "
                f"{', '.join(differ)}. An ensemble has members of one grid, with the same variables in the same units: "
                "make them in one production."
            )
    shared = {name: c.variable for name, c in like.coords.items() if not set(c.dims) & set(ALONG)}
    alike = {k: c for k, c in shared.items() if c.dims or all(k in ds and c.equals(ds[k].variable) for _, ds in others)}
    cut = {label: ds.drop_vars(set(ds.coords) - set(ALONG)).assign_coords(alike) for label, ds in members.items()}
    ens = xens.create_ensemble(cut, calendar="standard" if "time" in like.coords else None)
    common = {k: v for k, v in like.attrs.items() if all(k in ds.attrs and ds.attrs[k] == v for _, ds in others)}
    return ens.drop_attrs(deep=False).assign_attrs(
        common | {"ensemble_members": "; ".join(members), "ensemble_missing": told}
    )


def _differences(like: xr.Dataset, ds: xr.Dataset) -> list[str]:
    """Variables that only one member has, or in other units, and coordinates of the grid that differ."""
    differ = set(like.data_vars) ^ set(ds.data_vars)
    units = {name: [da.attrs.get("units") for da in (like[name], ds[name])] for name in set(like.data_vars) - differ}
    told = [*map(str, differ), *(f"{name} ({one} and {other})" for name, (one, other) in units.items() if one != other)]
    for name, one in like.coords.items():
        other = ds.coords.get(name)
        if not one.dims or set(one.dims) & set(ALONG):
            continue
        if other is None or one.dims != other.dims or one.shape != other.shape:
            told.append(f"{name} ({one.shape} and {None if other is None else other.shape})")
        elif one.dtype.kind != "f":
            told += [] if one.equals(other) else [str(name)]
        # Files may have float32.
        elif not np.allclose(one, other, rtol=0, atol=1e-5, equal_nan=True):
            told.append(str(name))
    return sorted(told)


def present(ens: xr.Dataset) -> xr.Dataset:
    """Return which members have any value in a period, boolean (realization, period) for each variable; computes."""
    found = {name: da.notnull().any([d for d in da.dims if d not in (MEMBER, *ALONG)]) for name, da in ens.items()}
    return xr.Dataset(found).compute()


def name_missing(there: xr.Dataset) -> dict[str, str]:
    """Return the periods of `present` that a member lacks, by label, such as "tg_mean 1950-1969, 2051-2100".

    Dates are those at which another member has a value.
    """
    missing: dict[str, list[str]] = {}
    for name, da in there.items():
        for label in there[MEMBER].values:
            # No member can have a season that ends after all data.
            lacks = ~da.sel({MEMBER: label}) & (da.any(MEMBER) if "time" in da.dims else True)
            if lacks.any():
                missing.setdefault(str(label), []).append(f"{name} {_periods(lacks)}".strip())
    return {label: ", ".join(parts) for label, parts in missing.items()}


def _periods(lacks: xr.DataArray) -> str:
    if not lacks.dims:
        return ""
    (dim,) = lacks.dims
    if dim != "time":
        return ", ".join(map(str, lacks[dim].values[lacks.values]))
    years = [str(time)[:4] for time in lacks["time"].values]
    edges = np.flatnonzero(np.diff(lacks.values.astype(int), prepend=0, append=0)).reshape(-1, 2)
    return ", ".join("-".join(dict.fromkeys((years[first], years[end - 1]))) for first, end in edges)


def weigh(
    there: xr.DataArray, models: Mapping[str, str] | None = None, given: Mapping[str, float] | None = None
) -> xr.DataArray:
    """Return the members' weights (realization, period), whose mean is 1 over members that are `there` (see `present`).

    With the model of each member, each model has one vote, which its members of a period share; or each member has the
    weight that is given by its label.

    Raises
    ------
    DataError
        If a member has no weight, or weights are negative, not finite, or all 0.
    """
    labels = [str(label) for label in there[MEMBER].values]
    values = [float((given or {}).get(label, np.nan if given else 1)) for label in labels]
    wrong = [f"{label!r}: {value:g}" for label, value in zip(labels, values, strict=True) if not 0 <= value < np.inf]
    if wrong or not sum(values):
        raise DataError(
            f"The weights of the ensemble are not usable: {', '.join(wrong) or 'all are 0'}. Expected a number of 0 or "
            f"more for each of {', '.join(labels)}, and one above 0."
        )
    weights = there.astype(float) * xr.DataArray(values, dims=MEMBER)
    if models:
        of_model = xr.DataArray([models[label] for label in labels], dims=MEMBER, name="model")
        votes = there.groupby(of_model).sum(MEMBER).sel(model=of_model)
        weights = weights / votes.drop_vars("model").clip(1)
    return (weights / weights.sum(MEMBER) * there.sum(MEMBER)).fillna(0)


def statistics(
    ens: xr.Dataset,
    there: xr.Dataset,
    *,
    percentiles: Sequence[int] = (10, 50, 90),
    weights: Mapping[Any, xr.DataArray] | None = None,
    fewest: int | None = None,
    fewest_of_percentiles: int = 1,
) -> xr.Dataset:
    """Return percentiles, mean, standard deviation (of the population), maximum and minimum of members; lazy.

    Variables have xclim's names (`tg_mean_p10`, `tg_mean_stdev`); `tg_mean_members` counts the members with a value.
    A single member has no deviation. Days of the year have circular statistics, as in `climatology`.

    Parameters
    ----------
    ens, there
        By `join`, and `present` of it.
    weights
        By `weigh`, for each variable.
    fewest
        The number of members that a cell needs, or its statistics are NaN; by default all that the period has.
    fewest_of_percentiles
        The number of members that percentiles need besides.
    """
    out, missing = xr.Dataset(attrs=ens.attrs), name_missing(there)
    for name, of_all in ens.items():
        # Percentiles are of float64, whatever type their lazy array claims.
        da, weight = _in_blocks(of_all.astype(float)), (weights or {}).get(name)
        # xclim goes from cell to cell for weighted percentiles.
        if weight is not None and np.allclose(weight.where(there[name], 1).values, 1):
            weight = None
        if is_circular := rules_of(of_all).circular:
            da, center, spread = around_mean(da, MEMBER, weight)
        made = xens.ensemble_percentiles(da, list(percentiles), weights=weight)
        moments = xens.ensemble_mean_std_max_min(da.to_dataset(), weights=weight)
        made = made.merge(moments, compat="override", combine_attrs="override")
        count, enough = _enough(da, there[name], fewest)
        counted = count.astype("int16").drop_attrs(deep=False)
        counted = counted.assign_attrs(long_name="Number of members with a value", units="1")
        if is_circular:
            made = made.map(lambda data: in_year(data.assign_attrs({**da.attrs, **data.attrs})))  # noqa: B023
            made[f"{name}_mean"] = center.assign_attrs(made[f"{name}_mean"].attrs)
            made[f"{name}_stdev"] = spread.assign_attrs(made[f"{name}_stdev"].attrs)
        made[f"{name}_stdev"] = as_spread(made[f"{name}_stdev"]).where(count > 1)
        made = made.where(enough).astype(np.result_type(of_all.dtype, np.float32))
        for key in [f"{name}_p{percentile:02d}" for percentile in percentiles]:
            made[key] = made[key].where(count >= fewest_of_percentiles)
        made = made.assign({f"{name}_members": counted})
        out = out.merge(made, compat="override", combine_attrs="override")
    told = [ens.attrs.get("ensemble_missing", ""), *(f"{label}: {text}" for label, text in missing.items())]
    return out.assign_attrs(ensemble_missing="\n".join(filter(None, told)))


def _enough(da: xr.DataArray, there: xr.DataArray, fewest: int | None) -> tuple[xr.DataArray, xr.DataArray]:
    """The number of members with a value, and whether it suffices."""
    count = da.notnull().sum(MEMBER)
    return count, (count > 0) & (count >= (there.sum(MEMBER) if fewest is None else fewest))


def _in_blocks(da: xr.DataArray) -> xr.DataArray:
    """Return lazy data in blocks of all members and few cells."""
    if not da.chunks:
        return da
    with dask.config.set({"array.chunk-size": _BLOCK_BYTES}):
        cut = da.variable.chunk({dim: -1 if dim in (MEMBER, *ALONG) else "auto" for dim in da.dims})
    return da.copy(data=cut.data)  # dask has no size of texts, such as names of stations


def variability(reference: xr.DataArray, years: int, kind: str = "abs.", *, least: Any = None) -> xr.DataArray:
    """Return the change that exceeds a simulation's internal variability, of a mean over `years` years; lazy.

    1.645 standard deviations of the difference of two means, from the linearly detrended yearly values (year, ...) of
    the reference period (IPCC AR6 WGI, Cross-Chapter Box Atlas.1, approach C, without a control simulation). xclim up
    to 0.62 takes every period for 20 years (its test `ipcc-ar6-c` has the square root of 2/20). NaN if fewer than
    `least` years have a value: by default all but one, as the first winter may lack; at least 3. `kind` is the changes'
    `delta_kind`: thresholds of relative changes ("rel.", "pct.") are parts of the reference's mean, or percents of it.
    """
    data = reference.astype(float)
    if rules_of(reference).circular:
        data, *_ = around_mean(data, "year")
    known = data.notnull()
    numbers = xr.DataArray(np.arange(float(data.sizes["year"])), dims="year").where(known)
    # What the straight line of least squares leaves of the variance.
    left = data.var("year") - xr.cov(data, numbers, "year", ddof=0) ** 2 / numbers.var("year")
    count = known.sum("year")
    made = 1.645 * ((1 / count.clip(1) + 1 / years) * left.clip(0)) ** 0.5
    made = made.where(count >= np.maximum(3, data.sizes["year"] - 1 if least is None else least))
    mean = abs(data.mean("year"))
    return made if kind == "abs." else made / mean.where(mean > 0) * (100 if kind == "pct." else 1)


def agreement(
    changes: xr.DataArray,
    there: xr.DataArray,
    *,
    thresholds: xr.DataArray | None = None,
    weights: xr.DataArray | None = None,
    fewest: int | None = None,
    fewest_of_robustness: int = 1,
    criterion: str = "exceeds their internal variability",
) -> xr.Dataset:
    """Return the members' agreement on the sign of change, and its robustness by IPCC AR6's approaches; lazy.

    `positive`, `negative`, `agree` (shares of the members) and `simple` (1: 80 % agree, 2: they do not); with
    thresholds also `changed` (the share of members whose change exceeds theirs) and `advanced` (1: robust; 2: no change
    or no robust signal; 3: conflicting signals). Cells with too few members are NaN, or 99 in categories; for `changed`
    and `advanced`, so are members without a threshold.

    Parameters
    ----------
    changes, thresholds
        Changes (realization, ...), also quotients (`delta_kind` "rel."); `variability` of each member in their units.
    there, weights, fewest
        As in `statistics`.
    fewest_of_robustness
        The number of members that a cell needs besides.
    criterion
        What a change does that exceeds its threshold, in words for the attributes.
    """
    change = _in_blocks(changes - 1 if changes.attrs.get("delta_kind") == "rel." else changes)

    def enough(data: xr.DataArray) -> xr.DataArray:
        count, suffices = _enough(data, there, fewest)
        return suffices & (count >= fewest_of_robustness)

    made = _shares(change, enough(change), weights, _SIMPLE, "simple")
    made = made[["positive", "negative", "agree", "simple"]]
    if thresholds is not None:
        tested = change.where(thresholds.notnull())
        test = {"test": "threshold", "abs_thresh": thresholds}
        others = _shares(tested, enough(tested), weights, {}, "advanced", criterion, **test)
        made = made.assign({name: others[name] for name in others if name not in made})
    return made


def _shares(
    change: xr.DataArray,
    enough: xr.DataArray,
    weights: xr.DataArray | None,
    how: Any,
    category: str,
    criterion: str = "",
    **test: Any,
) -> xr.Dataset:
    """Return xclim's shares of the members where there are enough, and the category that follows."""
    shares = xens.robustness_fractions(change, weights=weights, **test)
    shares["valid"] = shares["valid"].where(enough, 0)
    # Shares are sums of weights: 4 of 5 members may have 0.7999999.
    rounded = shares.assign({name: shares[name].round(9) for name in ("agree", "changed")})
    flags = xens.robustness_categories(rounded, **how).astype("int8")
    kept = {key: flags.attrs[key] for key in ("_FillValue", "flag_values", "flag_meanings")}
    made = shares.where(enough).drop_vars("valid").drop_attrs(deep=False).assign({category: flags})
    for name, da in made.items():
        words = _MEANINGS[str(name)].format(criterion=criterion)
        da.attrs = {"long_name": words, "units": "1"} | (kept if name == category else {})
    return made


class Part(NamedTuple):
    """What a simulation is in a partition of variance."""

    model: str
    scenario: str
    downscaling: str = ""


def partition(
    ens: xr.DataArray, there: xr.DataArray, parts: Mapping[str, Part], baseline: tuple[int, int], method: str
) -> xr.DataArray:
    """Return the percentage of the variance of yearly changes by source, (uncertainty, time, ...), by xclim; lazy.

    "hawkins-sutton" (2009) takes the first member of each model that has all scenarios. "lafferty-sriver" (2023) also
    tells the methods of downscaling apart. Cells in which a member has no value are NaN.

    Parameters
    ----------
    ens, there
        Yearly values (realization, time, ...) by `join`, and `present` of them. Years that any member lacks are left
        out.
    parts
        What each member is, by label.

    Raises
    ------
    DataError
        If the ensemble does not allow it; the message says why.
    """
    first = {part: label for label, part in reversed([*parts.items()])}
    scenarios = sorted({part.scenario for part in first})
    models = sorted({part.model for part in first})
    if method == "hawkins-sutton":
        models = [model for model in models if all(Part(model, scenario) in first for scenario in scenarios)]
    taken = {label: part for part, label in first.items() if part.model in models}
    chosen = ens.sel({MEMBER: list(taken)}).sel(time=there.sel({MEMBER: list(taken)}).all(MEMBER))
    years = chosen["time"].dt.year.values
    if len(models) < 2 or len(scenarios) < 2:
        got = f"the scenarios {', '.join(scenarios)}, and of models with all of them {', '.join(models) or 'none'}"
        raise DataError(f"it has {got}; expected 2 or more of each")
    if years.size < 20 or (np.diff(years) != 1).any() or years[0] > baseline[0] or years[-1] < max(baseline[1], 2009):
        got = f"the {years.size} years {years.min(initial=9999)}-{years.max(initial=0)}"
        raise DataError(f"all have {got}; expected years without a gap, the baseline and 2000-2009 among them")
    names = [*Part._fields[: 3 if method == "lafferty-sriver" else 2], "variability", "total"]
    if rules_of(ens).circular:
        chosen, *_ = around_mean(chosen, [MEMBER, "time"])
    blocks = _in_blocks(chosen)
    like = blocks.isel({MEMBER: 0}, drop=True).expand_dims(uncertainty=names).astype(np.float32).drop_attrs()
    how = {"parts": list(taken.values()), "names": names, "baseline": tuple(map(str, baseline))}
    return xr.map_blocks(_partition, blocks, kwargs=how, template=like).assign_attrs(units="%", partition=method)


def _partition(ens: xr.DataArray, parts: list[Part], names: list[str], baseline: tuple[str, str]) -> xr.DataArray:
    known = ens.notnull().all([MEMBER, "time"])
    index: dict[Any, Any] = {name: (MEMBER, [getattr(part, name) for part in parts]) for name in Part._fields}
    cube = ens.drop_vars(MEMBER).assign_coords(index).set_index(realization=[*Part._fields]).unstack(MEMBER)
    # xclim fits a polynomial to all cells at once, unless some are NaN.
    cube = cube.where(known, 0).astype(float)
    if "downscaling" in names:
        variance = xens.lafferty_sriver(cube)[1]
    else:
        variance = xens.hawkins_sutton(cube.squeeze("downscaling", drop=True), baseline=baseline)[1]
    made = xens.fractional_uncertainty(variance).where(known).sel(uncertainty=names)
    return made.transpose("uncertainty", *ens.isel({MEMBER: 0}).dims).astype(np.float32).drop_attrs()
