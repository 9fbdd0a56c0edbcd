"""Health checks of a product: violations raise a single combined error, suspicious values are stored as flags.

xclim is imported where it is used, since its import takes seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import dask
import numpy as np
import xarray as xr

from espo_luigi.errors import DataError, HealthCheckError
from espo_luigi.science.calendar import canonical
from espo_luigi.science.diagnose.flags import inferred_freq, lacking
from espo_luigi.science.diagnose.properties import as_fixed
from espo_luigi.science.finalize.gaps import cells_without_data, over_time
from espo_luigi.science.geometry.cells import cells_in, cut_to
from espo_luigi.science.limits import CHECKS, LAND_FLAG
from espo_luigi.science.periods import date_of
from espo_luigi.science.stations import OF_A_STATION, POINT, STATION, are_points

logger = logging.getLogger(__name__)

SLOW_CHECKS = {"missing", "flags", "land"}
# Bytes of a part of the grid, with all its days and variables, whose checks are a single graph: where flags compare
# variables, Dask keeps most of a graph's blocks in memory.
PART_BYTES = 2 * 1024**3
# The arguments beside the checks.
_OPTIONS = ("flags_kwargs", "return_flags", "raise_on")


def health_checks(
    ds: xr.Dataset,
    *,
    scopes: Mapping[str, Mapping[str, Any]] | None = None,
    land: xr.DataArray | None = None,
    allowed_gaps: int = 0,
    **whole: Any,
) -> xr.Dataset:
    """Check a dataset by the section `health_checks` of the configuration.

    Returns a boolean scalar per flag, named {variable}_{flag}, when `return_flags` is set; the flags of a scope are
    named {scope}_{variable}_{flag}, and have the attribute `scope`. Global attributes: the input's, and `warnings`, the
    failed checks that do not raise. Metadata are checked first, and raise before any data are read. The data are then
    read block by block, once for each set of checks; flags and missing days are computed when this returns.

    Parameters
    ----------
    scopes
        Further sets of checks, by name, each of a part of the grid: `lon_bnds` and `lat_bnds`, or `shape` (polygons),
        as `espo_luigi.science.geometry.cells.cells_in` takes them, and any of the arguments for the whole.
    land, allowed_gaps
        The reference's land cells, boolean (y, x), of which no more than so many may be NaN on all days of a chunk of
        time: the flag {variable}_land_cells_without_data, and the check `land`.
    **whole
        The checks of the whole dataset, by the keys of the section. `cfchecks`, `missing` and `flags` have functions of
        xclim's modules `cfchecks`, `missing` and `dataflags` with their arguments. Missing days are looked for in each
        year, in variables with time. `flags` of None are xclim's own list.

    Raises
    ------
    HealthCheckError
        Listing all failed checks of `raise_on`; or when there are no time steps.
    DataError
        When an argument or `raise_on` names no check, or a scope has no (land) cell.
    """
    if unknown := ({*whole} - {*CHECKS, *_OPTIONS}) | ({*(whole.get("raise_on") or ())} - {*CHECKS}):
        raise DataError(f"there are no checks {sorted(unknown)}: expected some of {list(CHECKS)}.")
    if not ds.sizes.get("time") or "time" not in ds.coords:
        raise HealthCheckError(f"There is nothing to check: no time steps in dimensions {dict(ds.sizes)}.")
    sets = [
        _Set(name, arguments, set(arguments.get("raise_on") or ()))
        for name, arguments in {"": whole, **(scopes or {})}.items()
    ]
    failed = [failure for checks in sets for failure in _of_metadata(ds, checks)]
    if not any(checks.errors_on & SLOW_CHECKS for checks in sets):
        _raise_if_any(failed)
    # Set by set: Dask's order for all sets in one graph keeps most blocks in memory. numpy warns of NaN in blocks, too.
    with np.errstate(invalid="ignore"):
        computed = [_computed(ds, checks, land, allowed_gaps) for checks in sets]
    failed += [failure for checks, found in zip(sets, computed, strict=True) for failure in _of_data(checks, found)]
    _raise_if_any(failed)
    return _result(ds, sets, computed, [failure.message for failure in failed])


@dataclass(frozen=True)
class _Set:
    """A set of checks; the scope of the set for the whole dataset is ""."""

    scope: str
    arguments: Mapping[str, Any]
    errors_on: set[str]

    def failure(self, check: str, message: str) -> _Failure:
        return _Failure(check, f"{self.scope}: {message}" if self.scope else message, check in self.errors_on)


@dataclass(frozen=True)
class _Failure:
    check: str
    message: str
    raises: bool


# The results of a set that need the data: of a check, a variable, and a flag or a method for missing days.
_Found = dict[tuple[str, str, str], xr.DataArray]
_SENTENCES = {
    "missing": "The variable '{name}' has missing values according to the method '{raised}'.",
    "flags": "'{name}' has suspicious values according to the following flags: {raised}.",
    "land": "'{name}' has no data on any day of a chunk of time in land cells of the reference.",
}


def _of_metadata(ds: xr.Dataset, checks: _Set) -> Iterator[_Failure]:
    wanted = checks.arguments.get
    freq = inferred_freq(ds) if wanted("freq") or wanted("missing") else None
    quick: list[tuple[str, Iterable[str]]] = [
        ("structure", _structure(ds, wanted("structure") or {})),
        ("calendar", _calendar(ds, wanted("calendar"))),
        *_period(ds, wanted("start_date"), wanted("end_date")),
        ("variables_and_units", _units(ds, wanted("variables_and_units") or {})),
        ("cfchecks", _cf(ds, wanted("cfchecks") or {})),
    ]
    if wanted("freq") not in (None, freq):
        told = f"The frequency is {freq!r}, expected {wanted('freq')!r} (None: irregular, or too few steps to tell)."
        quick.append(("freq", [told]))
    if wanted("missing") and freq is None:
        told = "Missing values cannot be looked for: the time axis is irregular, or has too few steps to tell."
        quick.append(("missing", [told]))
    yield from (checks.failure(check, message) for check, messages in quick for message in messages)


def _computed(ds: xr.Dataset, checks: _Set, land: xr.DataArray | None, allowed: int) -> _Found:
    """The results of a set, from one part of the grid after the other."""
    whole, cells = cut_to(ds, cells_in(ds, checks.scope, checks.arguments, land)) if checks.scope else (ds, None)
    wanted = checks.arguments.get
    kwargs = wanted("flags_kwargs") or {}
    # Flags with dimensions of their own are not a single truth, of which parts could tell.
    places = [{}] if "dims" in kwargs else _parts(whole)
    joined: _Found = {}
    for place in places:
        part = whole.isel(place)
        of_cells = None if cells is None else cells.isel(place, missing_dims="ignore")
        lacks, flags = lacking(part, wanted("missing") or {}, of_cells), _flags(part, wanted("flags") or {}, kwargs)
        lazy: _Found = {("missing", name, method): da for method, of in lacks.items() for name, da in of.items()}
        lazy |= {("flags", name, str(flag)): da for name, of in flags.items() for flag, da in of.data_vars.items()}
        if land is not None and not checks.scope:
            of_part = land.isel(place, missing_dims="ignore")
            gaps = {name: cells_without_data(da, of_part) for name, da in over_time(part, of_part).items()}
            lazy |= {("land", name, LAND_FLAG): da for name, da in gaps.items()}
        (found,) = dask.compute(lazy)
        joined = {key: _joined(key, joined[key], da) if key in joined else da for key, da in found.items()}
    return {key: da.max() > allowed if key[0] == "land" else da for key, da in joined.items()}


def _joined(key: tuple[str, str, str], one: xr.DataArray, other: xr.DataArray) -> xr.DataArray:
    """The result for two parts of the grid: cells without data add up, before they are compared with those allowed."""
    return one + other if key[0] == "land" else (one | other).assign_attrs(other.attrs)


def _parts(ds: xr.Dataset) -> list[dict[Hashable, slice]]:
    """Return the places of parts of the grid, along the data's own chunks; a single one of small data."""
    if ds.nbytes <= PART_BYTES:
        return [{}]
    edges = {dim: np.cumsum((0, *sizes)) for dim, sizes in ds.chunksizes.items() if dim != "time"}
    along = [[{dim: slice(*pair)} for pair in pairwise(edges[dim].tolist())] for dim in edges]
    return [{dim: cells for place in places for dim, cells in place.items()} for places in product(*along)]


def _of_data(checks: _Set, found: _Found) -> Iterator[_Failure]:
    raised: dict[tuple[str, str], list[str]] = {}
    for (check, name, what), da in found.items():
        if bool(da.any()):
            raised.setdefault((check, name), []).append(what)
    for (check, name), flags in raised.items():
        for each in flags if check == "missing" else [flags]:
            yield checks.failure(check, _SENTENCES[check].format(name=name, raised=each))


def _raise_if_any(failed: Iterable[_Failure]) -> None:
    errors = [f"{failure.message} [{failure.check}]" for failure in failed if failure.raises]
    if errors:
        raise HealthCheckError("The following health checks failed:" + "".join(f"\n  - {error}" for error in errors))


def _result(ds: xr.Dataset, sets: Sequence[_Set], computed: Sequence[_Found], messages: Sequence[str]) -> xr.Dataset:
    flags = {}
    for checks, found in zip(sets, computed, strict=True):
        kept = found if checks.arguments.get("return_flags", True) else {}
        scope, named = (f"{checks.scope}_", {"scope": checks.scope}) if checks.scope else ("", {})
        of_variables = [key for key in kept if key[0] != "missing"]
        names = [name for _, name, _ in of_variables]
        for key in sorted(of_variables, key=lambda key: names.index(key[1])):
            flags[f"{scope}{key[1]}_{key[2]}"] = kept[key].assign_attrs(named)
    out = xr.Dataset(flags)
    out = as_fixed(out, ds.attrs, "health_checks")
    if messages:
        logger.warning("The following health checks failed:%s", "".join(f"\n  - {message}" for message in messages))
        out.attrs["warnings"] = ", ".join(messages)
    return out


def _structure(ds: xr.Dataset, structure: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for kind, what, names in (("dims", "dimension", list(ds.dims)), ("coords", "coordinate", list(ds.coords))):
        if kind not in structure:
            continue
        expected = list(structure[kind])
        if are_points(ds):  # what is expected of a grid
            expected = [name for name in expected if name not in ("lat", "lon")]
            names = [name for name in names if name not in ("lat", "lon", STATION, POINT, *OF_A_STATION)]
        for name in expected:
            if name not in names:
                where = " (it is a data variable)" if name in ds.data_vars else ""
                yield f"The {what} '{name}' is missing{where}: found {names}."
        extra = [name for name in names if name not in expected]
        if extra:
            yield f"Extra {what}s {extra}: expected {expected} only."


def _calendar(ds: xr.Dataset, calendar: str | None) -> Iterator[str]:
    actual = ds["time"].dt.calendar
    # `canonical` refuses calendars that the adjustment does not know, such as Julian.
    with suppress(DataError):
        if calendar in (None, actual) or canonical(actual) == canonical(str(calendar)):
            return
    yield f"The calendar is '{actual}', expected '{calendar}'."


def _period(ds: xr.Dataset, start: str | None, end: str | None) -> Iterator[tuple[str, list[str]]]:
    """Days are compared as numbers, since 30 February exists in some calendars."""
    first, last = ((int(day.year), int(day.month), int(day.day)) for day in (ds["time"][0].dt, ds["time"][-1].dt))
    if start is not None and first > date_of(start):
        yield "start_date", ["The data start on {:04d}-{:02d}-{:02d}, expected ".format(*first) + f"{start} or before."]
    if end is not None and last < date_of(end):
        yield "end_date", ["The data end on {:04d}-{:02d}-{:02d}, expected ".format(*last) + f"{end} or after."]


def _units(ds: xr.Dataset, variables_and_units: Mapping[str, str]) -> Iterator[str]:
    from xclim.core.units import units2pint

    for name, expected in variables_and_units.items():
        if name not in ds:
            yield f"The variable '{name}' is missing: found {list(ds.data_vars)}."
            continue
        units = ds[name].attrs.get("units")
        with suppress(Exception):  # pint raises many unrelated types for text that is not a unit
            if units is not None and units2pint(units) == units2pint(expected):
                continue
        yield f"The variable '{name}' is in {units!r}, expected {expected!r}."


def _cf(ds: xr.Dataset, checks_by_variable: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    import xclim
    from xclim.core import ValidationError, cfchecks

    for name, checks in checks_by_variable.items():
        if name not in ds:
            yield f"The variable '{name}' is missing: its CF attributes cannot be checked."
            continue
        for check, arguments in checks.items():
            given = dict(arguments or {})
            try:
                with xclim.set_options(cf_compliance="raise"):
                    if check == "cfcheck_from_name":
                        cfchecks.cfcheck_from_name(given.pop("varname", name), ds[name], **given)
                    else:
                        cfchecks.check_valid(ds[name], **given)
            except ValidationError as err:
                yield f"'{name}' does not follow CF: {err}"


def _flags(
    ds: xr.Dataset, flags: Mapping[str, Mapping[str, Any] | None], kwargs: Mapping[str, Any]
) -> dict[str, xr.Dataset]:
    """The flags of all variables that can be computed; lazy."""
    from xclim.core import dataflags

    absent = [name for name in flags if name not in ds]
    if absent:
        logger.warning("No flags for %s: the data have %s.", absent, list(ds.data_vars))
    made = {
        name: dataflags.data_flags(ds[name], ds, flags=None if chosen is None else dict(chosen), **kwargs)
        for name, chosen in flags.items()
        if name in ds
    }
    # xclim returns None where a second variable is missing.
    unknown = {name: [flag for flag, da in of.data_vars.items() if da.dtype != bool] for name, of in made.items()}
    for name in (name for name, lacking_another in unknown.items() if lacking_another):
        logger.warning("The flags %s of %r need a variable that the data do not have: skipped.", unknown[name], name)
    return {name: of.drop_vars(unknown[name]) for name, of in made.items()}
