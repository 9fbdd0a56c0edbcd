"""Statistics over simulations: percentiles, agreement and robustness as in IPCC AR6, and the partition of variance.

xclim.ensembles computes them, in blocks of all members and few cells. Members that are missing in a period are named in
the attribute `ensemble_missing`.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import dask
import dask.array
import numpy as np
import xarray as xr
import xclim.ensembles as xens
from xclim.indices.generic import detrend

from espo_luigi.errors import DataError
from espo_luigi.science.calendar import calendar_of

MEMBER = "realization"
ALONG = ("time", "horizon", "warming_level")
"""Dimensions along which members may be missing."""
_BLOCK_BYTES = 2**24
_SIMPLE: Any = {
    "categories": ["High model agreement", "Low model agreement"],
    "ops": [(None, ">="), (None, "<")],
    "thresholds": [(None, 0.8), (None, 0.8)],
}


def join(members: Mapping[str, xr.Dataset], absent: Mapping[str, str] | None = None) -> xr.Dataset:
    """Return the members along the dimension `realization`, with their labels; lazy.

    Yearly, seasonal or monthly series of several calendars get the standard calendar. A period that a member lacks is
    NaN. Attributes and scalars in which members differ are dropped. `absent` has the reasons, by label, why members are
    missing altogether.

    Raises
    ------
    DataError
        If there is no member, or if members differ in variables, units or grid, or are daily in different calendars.
    """
    told = "; ".join(f"{label}: {reason}" for label, reason in (absent or {}).items())
    if not members:
        raise DataError(f"The ensemble has no member ({told or 'none was given'}). Expected one or more.")
    (label, like), *others = members.items()
    for its_label, ds in others:
        if differ := _differences(like, ds):
            raise DataError(
                f"The members {label!r} and {its_label!r} differ in the variables, units or coordinates "
                f"{', '.join(differ)}. An ensemble has members of one grid, with the same variables in the same units: "
                "make them in one production."
            )
    _check_calendars({label: ds for label, ds in members.items() if "time" in ds.dims})
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
        # Files may have float32.
        elif not (np.allclose(one, other, rtol=0, atol=1e-5) if one.dtype.kind == "f" else one.equals(other)):
            told.append(str(name))
    return sorted(told)


def _check_calendars(series: Mapping[str, xr.Dataset]) -> None:
    calendars = {label: calendar_of(ds) for label, ds in series.items()}
    for label, ds in series.items() if len(set(calendars.values())) > 1 else ():
        if (np.diff(ds["time"].dt.dayofyear.values) == 1).any():
            raise DataError(
                f"The member {label!r} is daily, and calendars differ: {calendars}. Expected yearly, seasonal or "
                "monthly values; or convert all members to one calendar first."
            )


def present(ens: xr.Dataset) -> xr.Dataset:
    """Return which members have any value in a period, boolean (realization, period) for each variable; computes."""
    found = {name: da.notnull().any([d for d in da.dims if d not in (MEMBER, *ALONG)]) for name, da in ens.items()}
    return xr.Dataset(found).compute()


def name_missing(there: xr.Dataset) -> dict[str, str]:
    """Return the periods of `present` that a member lacks, by label, such as "tg_mean 1950-1969, 2051-2100"."""
    missing: dict[str, list[str]] = {}
    for name, da in there.items():
        for label in there[MEMBER].values:
            lacks = ~da.sel({MEMBER: label})
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

    With the model of each member, each model has one vote, which its members of a period share. Weights are given by
    label, or else, with models, by model.

    Raises
    ------
    DataError
        If a member has no weight, or weights are negative, not finite, or all 0.
    """
    labels = [str(label) for label in there[MEMBER].values]
    keys = [models.get(label, "") for label in labels] if models else labels
    values = [float((given or {}).get(key, np.nan if given else 1)) for key in keys]
    wrong = [f"{key!r}: {value:g}" for key, value in zip(keys, values, strict=True) if not 0 <= value < np.inf]
    wrong += [f"{label!r}: no model" for label in labels if models and label not in models]
    if wrong or not sum(values):
        raise DataError(
            f"The weights of the ensemble are not usable: {', '.join(wrong) or 'all are 0'}. Expected a number of 0 or "
            f"more for each of {', '.join(dict.fromkeys(keys))}, and one above 0."
        )
    weights = there.astype(float) * xr.DataArray(values, dims=MEMBER)
    if models:
        of_model = xr.DataArray(keys, dims=MEMBER, name="model")
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
) -> xr.Dataset:
    """Return percentiles, mean, standard deviation (of the population), maximum and minimum of members; lazy.

    Variables have xclim's names (`tg_mean_p10`, `tg_mean_stdev`); `tg_mean_members` counts the members with a value.

    Parameters
    ----------
    ens, there
        By `join`, and `present` of it.
    weights
        By `weigh`, for each variable.
    fewest
        The number of members that a cell needs, or its statistics are NaN; by default all that the period has.
    """
    out, missing = xr.Dataset(attrs=ens.attrs), name_missing(there)
    for name, of_all in ens.items():
        weight = (weights or {}).get(name)

        def compute(da: xr.DataArray, name: Any = name, weight: xr.DataArray | None = weight) -> xr.Dataset:
            made = xens.ensemble_percentiles(da, list(percentiles), weights=weight)
            made = made.merge(
                xens.ensemble_mean_std_max_min(da.to_dataset(), weights=weight),
                compat="override",
                combine_attrs="override",
            )
            count, enough = _enough(da, there[name], fewest)
            counted = count.astype("int16").assign_attrs(long_name="Number of members with a value", units="1")
            made = made.where(enough).astype(np.result_type(da.dtype, np.float32))
            return made.assign({f"{name}_members": counted}).drop_attrs(deep=False)

        out = out.merge(_in_blocks(compute, of_all), compat="override", combine_attrs="override")
    told = [ens.attrs.get("ensemble_missing", ""), *(f"{label}: {text}" for label, text in missing.items())]
    return out.assign_attrs(ensemble_missing="; ".join(filter(None, told)))


def _enough(da: xr.DataArray, there: xr.DataArray, fewest: int | None) -> tuple[xr.DataArray, xr.DataArray]:
    """The number of members with a value, and whether it suffices."""
    count = da.notnull().sum(MEMBER)
    return count, (count > 0) & (count >= (there.sum(MEMBER) if fewest is None else fewest))


def _in_blocks(compute: Callable[..., xr.Dataset], *data: xr.DataArray) -> xr.Dataset:
    """Call a function on all members of some cells at once, lazily if the data are lazy."""
    first = data[0]
    if not all(dask.is_dask_collection(da) for da in data):
        return compute(*(da.load() for da in data))
    sizes = {dim: max(first.chunksizes[dim]) for dim in first.dims if dim not in (MEMBER, *ALONG)}
    whole = {dim: first.sizes[dim] for dim in first.dims if dim not in sizes}
    while np.prod([*sizes.values(), *whole.values()]) * first.dtype.itemsize > _BLOCK_BYTES and max(sizes.values()) > 1:
        longest = max(sizes, key=lambda dim: sizes[dim])
        sizes[longest] = -(-sizes[longest] // 2)
    blocks = [da.chunk({dim: size for dim, size in (whole | sizes).items() if dim in da.dims}) for da in data]
    few = compute(*(da.isel({dim: slice(1) for dim in sizes if dim in da.dims}).compute() for da in data))

    def like(made: xr.DataArray) -> Any:
        shape = {dim: first.sizes.get(dim, size) for dim, size in made.sizes.items()}
        empty = dask.array.empty(
            tuple(shape.values()), dtype=made.dtype, chunks=tuple(sizes.get(dim, -1) for dim in shape)
        )
        return made.dims, empty, made.attrs

    coords = {name: c for name, c in first.coords.items() if MEMBER not in c.dims}
    template = xr.Dataset({name: like(made) for name, made in few.items()}, coords)
    # xarray names tasks by the function's name and the data: statistics and agreement would share theirs.
    compute.__name__ = f"compute-{uuid.uuid4().hex}"
    return xr.map_blocks(compute, blocks[0], args=blocks[1:], template=template)


def variability(reference: xr.DataArray, years: int) -> xr.DataArray:
    """Return the change that exceeds a simulation's internal variability, of a mean over `years` years; lazy.

    1.645 standard deviations of the difference of two means, from the linearly detrended yearly values (time, ...) of
    the reference period (IPCC AR6 WGI, Cross-Chapter Box Atlas.1, approach C, without a control simulation). xclim up
    to 0.62 takes every period for 20 years (its test `ipcc-ar6-c` has the square root of 2/20). NaN if a year is.
    """
    deviation = detrend(reference, dim="time", deg=1).std("time", skipna=False)
    made = 1.645 * np.sqrt(1 / reference.sizes["time"] + 1 / years) * deviation
    return made.assign_attrs(units=reference.attrs.get("units", ""))


def agreement(
    changes: xr.DataArray,
    there: xr.DataArray,
    *,
    thresholds: xr.DataArray | None = None,
    weights: xr.DataArray | None = None,
    fewest: int | None = None,
) -> xr.Dataset:
    """Return the members' agreement on the sign of change, and its robustness by IPCC AR6's approaches; lazy.

    `positive`, `negative`, `agree` (shares of the members) and `simple` (1: 80 % agree, 2: they do not); with
    thresholds also `changed` (the share of members whose change exceeds theirs) and `advanced` (1: robust; 2: no change
    or no robust signal; 3: conflicting signals). Cells with too few members are NaN, or 99 in categories.

    Parameters
    ----------
    changes, thresholds
        Changes (realization, ...), also quotients (`delta_kind` "rel."); `variability` of each member in their units.
    there, weights, fewest
        As in `statistics`.
    """

    def compute(change: xr.DataArray, threshold: xr.DataArray | None = None) -> xr.Dataset:
        test = {} if threshold is None else {"test": "threshold", "abs_thresh": threshold}
        # No change is a quotient of 1, and a difference of 0.
        change = change - 1 if changes.attrs.get("delta_kind") == "rel." else change
        change = change if threshold is None else change.where(threshold.notnull())
        shares = xens.robustness_fractions(change, weights=weights, **test)
        enough = _enough(change, there, fewest)[1]
        shares["valid"] = shares["valid"].where(enough, 0)
        # Shares are sums of weights: 4 of 5 members may have 0.7999999.
        rounded = shares.assign({name: shares[name].round(9) for name in ("agree", "changed")})
        made = shares.where(enough).drop_vars("valid").drop_attrs(deep=False)
        made = made.assign(simple=xens.robustness_categories(rounded, **_SIMPLE).astype("int8"))
        if threshold is None:
            return made.drop_vars(["changed", "changed_positive", "changed_negative"])
        return made.assign(advanced=xens.robustness_categories(rounded).astype("int8"))

    return _in_blocks(compute, changes, *([] if thresholds is None else [thresholds]))


class Part(NamedTuple):
    """What a simulation is in a partition of variance."""

    model: str
    scenario: str
    downscaling: str = ""


def partition(
    series: Mapping[str, xr.DataArray],
    parts: Mapping[str, Part],
    *,
    baseline: tuple[int, int] = (1971, 2000),
    kind: str = "+",
) -> xr.Dataset:
    """Return the mean change and its variance by source, over the years that all simulations have.

    With several methods of downscaling after Lafferty and Sriver (2023), and else after Hawkins and Sutton (2009), of
    differences (`kind` +) or ratios (*): `mean` (time) and `variance` (uncertainty, time). Computes.

    Raises
    ------
    DataError
        If the ensemble of yearly values (time, ...) does not allow it; the message says why.
    """
    ens = join({label: da.rename("value").to_dataset() for label, da in series.items()})["value"]
    ens = ens.sel(time=present(ens.to_dataset())["value"].all(MEMBER))
    of_members = [parts[label] for label in series]
    if reason := _no_partition(ens["time"].dt.year.values, of_members, baseline):
        raise DataError(f"The variance of this ensemble cannot be partitioned: {reason}.")
    index: dict[Any, Any] = {name: (MEMBER, [part[i] for part in of_members]) for i, name in enumerate(Part._fields)}
    cube = ens.drop_vars(MEMBER).assign_coords(index).set_index(realization=[*index]).unstack(MEMBER).compute()
    if cube.sizes["downscaling"] > 1:
        mean, variance = xens.lafferty_sriver(cube)
    else:
        years = (str(baseline[0]), str(baseline[1]))
        mean, variance = xens.hawkins_sutton(cube.squeeze("downscaling", drop=True), baseline=years, kind=kind)
    return xr.Dataset({"mean": mean, "variance": variance.drop_attrs()})


def _no_partition(years: np.ndarray, parts: Sequence[Part], baseline: tuple[int, int]) -> str:
    """Why the variance cannot be partitioned, or ""."""
    twice = [" ".join(part) for part, count in Counter(parts).items() if count > 1]
    models, scenarios, methods = (sorted(set(names)) for names in zip(*parts, strict=True))
    wanted = [Part(model, scenario, method) for model in models for scenario in scenarios for method in methods]
    lacking = [" ".join(part).strip() for part in wanted if part not in parts]
    if len(models) < 2 or len(scenarios) < 2:
        got = f"the models {', '.join(models)} and the scenarios {', '.join(scenarios)}"
        return f"it has {got}; expected 2 or more of each"
    if twice:
        return f"it has twice {', '.join(twice)}; name members of a model apart, or choose one"
    if lacking and len(methods) == 1:
        return f"models need all scenarios, and there is no {', '.join(lacking)}"
    if years.size < 20 or (np.diff(years) != 1).any():
        return f"all members have {years.size} years in common; expected 20 or more yearly values without a gap"
    if years[0] > baseline[0] or years[-1] < max(baseline[1], 2009):
        wanted_years = f"the baseline {baseline[0]}-{baseline[1]}, and 10 years from 2000 on"
        return f"the years in common are {years[0]}-{years[-1]}; expected {wanted_years}"
    return ""
