"""Health checks of a product: violations raise a single combined error, suspicious values are stored as flags.

xclim is imported where it is used, since its import takes seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_args

import dask
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError, HealthCheckError
from espo_luigi.science.calendar import canonical
from espo_luigi.science.choices import CHECKS, LAND_FLAG, MissingMethod
from espo_luigi.science.diagnose.properties import as_fixed
from espo_luigi.science.finalize.gaps import lacks_data, over_time

logger = logging.getLogger(__name__)

SLOW_CHECKS = {"missing", "flags", "land"}


def health_checks(
    ds: xr.Dataset,
    *,
    structure: Mapping[str, Sequence[str]] | None = None,
    calendar: str | None = None,
    start_date: str | None = None,
    end_date: str | None = None,
    variables_and_units: Mapping[str, str] | None = None,
    cfchecks: Mapping[str, Mapping[str, Any]] | None = None,
    freq: str | None = None,
    missing: Mapping[str, Any] | Sequence[str] | str | None = None,
    flags: Mapping[str, Mapping[str, Any] | None] | None = None,
    flags_kwargs: Mapping[str, Any] | None = None,
    return_flags: bool = True,
    raise_on: Sequence[str] | None = None,
    land: xr.DataArray | None = None,
    allowed_gaps: int = 0,
) -> xr.Dataset:
    """Check a dataset; arguments but the last two are the section `health_checks` of the configuration.

    Returns a boolean scalar per flag, named {variable}_{flag}, when `return_flags` is set. Global attributes: the
    input's, and `warnings`, the failed checks that do not raise. Metadata are checked first, and raise before any
    data are read; the data are then read block by block, and flags and missing days are computed when this returns.

    Parameters
    ----------
    structure
        Exactly these `dims` and `coords`; others fail too.
    calendar
        Expected calendar; synonyms are the same.
    start_date, end_date
        The first day must not be after, the last day not before.
    variables_and_units
        Variables that must be there, in units equivalent to these.
    cfchecks
        Per variable, functions of `xclim.core.cfchecks` with their arguments.
    freq
        Frequency as `xarray.infer_freq` writes it.
    missing
        Methods of `xclim.core.missing` (any, at_least_n_valid, pct, wmo) with their arguments, per year by default.
    flags
        Per variable, flags of `xclim.core.dataflags` with their arguments; None is xclim's own list.
    flags_kwargs
        Other arguments of `xclim.core.dataflags.data_flags`.
    return_flags
        Whether the flags are variables of the result.
    raise_on
        Names of the checks whose failure is an error; "all" is every one.
    land, allowed_gaps
        The reference's land cells, boolean (y, x), of which no more than so many may be NaN on all days of a chunk of
        time: the flag {variable}_land_cells_without_data, and the check `land`.

    Raises
    ------
    HealthCheckError
        Listing all failed checks of `raise_on`; or when there are no time steps.
    DataError
        When an argument names a check that does not exist.
    """
    errors_on = _checks_that_raise(raise_on)
    if not ds.sizes.get("time") or "time" not in ds.coords:
        raise HealthCheckError(f"There is nothing to check: no time steps in dimensions {dict(ds.sizes)}.")
    quick: list[tuple[str, Iterator[str]]] = [
        ("structure", _structure(ds, structure or {})),
        ("calendar", _calendar(ds, calendar)),
        ("start_date", _start(ds, start_date)),
        ("end_date", _end(ds, end_date)),
        ("variables_and_units", _units(ds, variables_and_units or {})),
        ("cfchecks", _cf(ds, cfchecks or {})),
        ("freq", _freq(ds, freq)),
    ]
    failed = [(check, message) for check, messages in quick for message in messages]
    if not errors_on & SLOW_CHECKS:
        _raise_if_any(failed, errors_on)
    flagged = _flags(ds, flags or {}, flags_kwargs or {}, _land_flags(ds, land, allowed_gaps))
    failed += [("missing", message) for message in _missing(ds, missing or {})]
    failed += [("flags", message) for message in _suspicious(flagged)]
    failed += [("land", message) for message in _land(flagged)]
    _raise_if_any(failed, errors_on)
    return _result(ds, flagged if return_flags else {}, [message for _, message in failed])


def _checks_that_raise(raise_on: Sequence[str] | None) -> set[str]:
    wanted = set(raise_on or ())
    unknown = wanted - set(CHECKS) - {"all"}
    if unknown:
        raise DataError(f"raise_on names {sorted(unknown)}: expected some of {list(CHECKS)} or 'all'.")
    return set(CHECKS) if "all" in wanted else wanted


def _raise_if_any(failed: Sequence[tuple[str, str]], errors_on: set[str]) -> None:
    errors = [f"{message} [{check}]" for check, message in failed if check in errors_on]
    if errors:
        raise HealthCheckError("The following health checks failed:" + "".join(f"\n  - {error}" for error in errors))


def _result(ds: xr.Dataset, flagged: Mapping[str, xr.Dataset], messages: Sequence[str]) -> xr.Dataset:
    out = xr.Dataset({f"{name}_{flag}": da for name, of in flagged.items() for flag, da in of.data_vars.items()})
    out = as_fixed(out, ds.attrs, "health_checks")
    if messages:
        logger.warning("The following health checks failed:%s", "".join(f"\n  - {message}" for message in messages))
        out.attrs["warnings"] = ", ".join(messages)
    return out


def _structure(ds: xr.Dataset, structure: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for kind, what, found in (("dims", "dimension", list(ds.dims)), ("coords", "coordinate", list(ds.coords))):
        if kind not in structure:
            continue
        expected = list(structure[kind])
        for name in expected:
            if name not in found:
                where = " (it is a data variable)" if name in ds.data_vars else ""
                yield f"The {what} '{name}' is missing{where}: found {found}."
        extra = [name for name in found if name not in expected]
        if extra:
            yield f"Extra {what}s {extra}: expected {expected} only."


def _calendar(ds: xr.Dataset, calendar: str | None) -> Iterator[str]:
    if calendar is None:
        return
    found = ds["time"].dt.calendar
    if not _same_calendar(found, calendar):
        yield f"The calendar is '{found}', expected '{calendar}'."


def _same_calendar(one: str, other: str) -> bool:
    try:
        return canonical(one) == canonical(other)
    except DataError:  # such as Julian, which the adjustment does not know
        return one == other


def _ymd(ds: xr.Dataset, index: int) -> tuple[int, int, int]:
    day = ds["time"][index].dt
    return int(day.year), int(day.month), int(day.day)


def _parse_date(text: str) -> tuple[int, int, int]:
    """Parse year, year-month or year-month-day; compared as numbers, since 30 February exists in some calendars."""
    parts = [int(part) for part in str(text).split("T")[0].split(" ")[0].split("-")]
    year, month, day = (*parts, 1, 1)[:3]
    return year, month, day


def _start(ds: xr.Dataset, start_date: str | None) -> Iterator[str]:
    if start_date is not None and _ymd(ds, 0) > _parse_date(start_date):
        yield f"The data start on {_iso(_ymd(ds, 0))}, expected {start_date} or before."


def _end(ds: xr.Dataset, end_date: str | None) -> Iterator[str]:
    if end_date is not None and _ymd(ds, -1) < _parse_date(end_date):
        yield f"The data end on {_iso(_ymd(ds, -1))}, expected {end_date} or after."


def _iso(ymd: tuple[int, int, int]) -> str:
    return "{:04d}-{:02d}-{:02d}".format(*ymd)


def _units(ds: xr.Dataset, variables_and_units: Mapping[str, str]) -> Iterator[str]:
    for name, expected in variables_and_units.items():
        if name not in ds:
            yield f"The variable '{name}' is missing: found {list(ds.data_vars)}."
        elif not _equivalent(ds[name].attrs.get("units"), expected):
            yield f"The variable '{name}' is in {ds[name].attrs.get('units')!r}, expected {expected!r}."


def _equivalent(units: str | None, expected: str) -> bool:
    if units is None:
        return False
    from xclim.core.units import units2pint

    try:
        return units2pint(units) == units2pint(expected)
    except Exception:  # pint raises many unrelated types for text that is not a unit
        return False


def _cf(ds: xr.Dataset, checks_by_variable: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    import xclim
    from xclim.core import ValidationError

    for name, checks in checks_by_variable.items():
        if name not in ds:
            yield f"The variable '{name}' is missing: its CF attributes cannot be checked."
            continue
        for check, arguments in checks.items():
            try:
                with xclim.set_options(cf_compliance="raise"):
                    _cf_function(check, name, ds[name])(**(arguments or {}))
            except ValidationError as err:
                yield f"'{name}' does not follow CF: {err}"


def _cf_function(check: str, name: str, da: xr.DataArray) -> Callable[..., None]:
    from xclim.core import cfchecks

    if check == "cfcheck_from_name":
        return lambda varname=name, **kwargs: cfchecks.cfcheck_from_name(varname, da, **kwargs)
    if check == "check_valid":
        return lambda **kwargs: cfchecks.check_valid(da, **kwargs)
    raise DataError(f"cfchecks names {check!r} for {name!r}: expected cfcheck_from_name or check_valid.")


def _freq(ds: xr.Dataset, freq: str | None) -> Iterator[str]:
    if freq is None:
        return
    found = xr.infer_freq(ds["time"]) if ds.sizes["time"] > 2 else None
    if found != freq:
        yield f"The frequency is {found!r}, expected {freq!r} (None: irregular, or too few steps to tell)."


def _missing(ds: xr.Dataset, methods: Mapping[str, Any] | Sequence[str] | str) -> Iterator[str]:
    names = [methods] if isinstance(methods, str) else methods
    arguments = dict(methods) if isinstance(methods, Mapping) else {name: {} for name in names}
    for method, kwargs in arguments.items():
        function = _missing_function(method)
        lacking = {name: function(da, **{"freq": "YS", **(kwargs or {})}).any() for name, da in ds.data_vars.items()}
        for name, da in dask.compute(lacking)[0].items():
            if bool(da):
                yield f"The variable '{name}' has missing values according to the method '{method}'."


def _missing_function(method: str) -> Callable[..., xr.DataArray]:
    from xclim.core import missing

    if method not in get_args(MissingMethod):
        raise DataError(f"missing names the method {method!r}: expected any, at_least_n_valid, pct or wmo.")
    return getattr(missing, method, None) or getattr(missing, f"missing_{method}")


def _flags(
    ds: xr.Dataset,
    flags: Mapping[str, Mapping[str, Any] | None],
    kwargs: Mapping[str, Any],
    more: Mapping[str, xr.DataArray],
) -> dict[str, xr.Dataset]:
    """Evaluate the flags of all variables, and further lazy flags, in a single pass over the data."""
    from xclim.core import dataflags

    absent = [name for name in flags if name not in ds]
    if absent:
        logger.warning("No flags for %s: the data have %s.", absent, list(ds.data_vars))
    with np.errstate(invalid="ignore"):
        lazy = {
            name: dataflags.data_flags(ds[name], ds, flags=None if chosen is None else dict(chosen), **kwargs)
            for name, chosen in flags.items()
            if name in ds
        }
        computed, others = dask.compute(lazy, dict(more))
    found = {name: _evaluated(name, of) for name, of in computed.items()}
    return found | {name: found.get(name, xr.Dataset()).assign({LAND_FLAG: da}) for name, da in others.items()}


def _land_flags(ds: xr.Dataset, land: xr.DataArray | None, allowed: int) -> dict[str, xr.DataArray]:
    if land is None:
        return {}
    return {name: lacks_data(da, land, allowed=allowed) for name, da in over_time(ds, land).items()}


def _land(flagged: Mapping[str, xr.Dataset]) -> Iterator[str]:
    for name, of in flagged.items():
        if LAND_FLAG in of and bool(of[LAND_FLAG]):
            yield f"'{name}' has no data on any day of a chunk of time in land cells of the reference."


def _evaluated(name: str, flags: xr.Dataset) -> xr.Dataset:
    """Drop the flags that xclim returns as None because a second variable is missing."""
    unknown = [flag for flag, da in flags.data_vars.items() if da.dtype != bool]
    if unknown:
        logger.warning("The flags %s of %r need a variable that the data do not have: skipped.", unknown, name)
    return flags.drop_vars(unknown)


def _suspicious(flagged: Mapping[str, xr.Dataset]) -> Iterator[str]:
    for name, of in flagged.items():
        raised = [str(flag) for flag, da in of.data_vars.items() if flag != LAND_FLAG and bool(da.any())]
        if raised:
            yield f"'{name}' has suspicious values according to the following flags: {raised}."
