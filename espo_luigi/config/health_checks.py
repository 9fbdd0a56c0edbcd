"""Section `health_checks`: data flags, CF checks, checks of missing values, and what products must have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationInfo,
    create_model,
    model_validator,
)

from espo_luigi.config.outcomes import files_of
from espo_luigi.config.regions import Calendar
from espo_luigi.errors import DataError, nearest
from espo_luigi.fields import (
    AnyMapping,
    Arguments,
    ByFileName,
    Frequency,
    Integer,
    Latitudes,
    Longitudes,
    Named,
    Names,
    NothingIsEmpty,
    OmitDefault,
    Section,
    Threshold,
    Unit,
    find_file,
)
from espo_luigi.science.geometry.polygons import read_polygons
from espo_luigi.science.limits import FLAGS, LAND_FLAG, Check, arguments_of_flags
from espo_luigi.science.periods import date_of
from espo_luigi.science.variables import variable

# With xclim's own prefix, and without.
MissingMethod = Literal[
    "any", "some_but_not_all", "at_least_n_valid", "pct", "wmo",
    "missing_any", "missing_some_but_not_all", "missing_pct", "missing_wmo",
]  # fmt: skip

# The checks of `espo validate`.
_OfFiles = Literal["checksums", "files", "times", "cells", "variables", "bounds"]
Validated = Literal[_OfFiles, "magnitudes", "outcomes", "cf", "flags", "audit", "catalogue"]

Share = Annotated[float, Field(ge=0)]


class FlagsSection(Section):
    """Section `flags`: how far values may be off before a flag is raised."""

    record: Share = Field(default=0.1, description="beyond the reference's record, as a share of its range")
    season: Share = Field(default=0.25, description="beyond the record of three months, as a share of the same range")
    signal: Share = Field(default=1.0, description="off the regridded change, in standard deviations of yearly means")


_Number = Annotated[Integer, Field(ge=1)]
_Operator = Literal[">", "gt", "<", "lt", ">=", "ge", "<=", "le", "==", "eq", "!=", "ne"]
# The arguments of xclim's flags.
_ARGUMENTS: Mapping[str, tuple[Any, str]] = {
    "thresh": (Threshold, "the threshold, with its unit"),
    "lower": (Threshold, "the lower bound, with its unit"),
    "upper": (Threshold, "the upper bound, with its unit"),
    "n": (_Number, "the `n` of the flag's name"),
    "window": (_Number, "the window of days"),
    "op": (_Operator, "the comparison"),
}


def _flag(name: str) -> Any:
    """Return a flag's type and field, which its title in reports describes; None where an argument is required."""
    fields: dict[str, Any] = {}
    for argument, default in arguments_of_flags()[name].items():
        kind, what = _ARGUMENTS[argument]
        fields[argument] = kind | None, Field(default=None, description=f"{what}; {default} by default")
        if default is ...:
            fields[argument] = kind, Field(description=what)
    section: Any = create_model(name, __base__=Arguments, **fields)
    if ... in arguments_of_flags()[name].values():
        return section | None, Field(default=None, description=FLAGS[name].title)
    return Annotated[section, NothingIsEmpty], Field(default_factory=section, description=FLAGS[name].title)


Flags = create_model(
    "Flags",
    __base__=Arguments,
    __doc__="The data flags that xclim has, with their arguments.",
    **{name: _flag(name) for name in FLAGS if name != LAND_FLAG},
)


def _as_dims(value: Any) -> Any:
    if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise ValueError("expected text or a list of text")
    return value


class FlagsArguments(Arguments):
    """Arguments that all flags share."""

    dims: Annotated[str | list[str], BeforeValidator(_as_dims)] | None = Field(
        default=None, description="the dimensions over which flags are joined"
    )
    freq: Frequency | None = Field(default=None, description="the frequency to which flags are joined")
    raise_flags: bool | None = Field(default=None, description="whether a flag is an error")


class CfChecks(Arguments):
    """The CF checks of a variable, each with its arguments."""

    cfcheck_from_name: AnyMapping = Field(default={}, description="attributes as the variable's name asks for")
    check_valid: AnyMapping = Field(default={}, description="one attribute's value: key and expected")


def _known_methods(value: Any) -> Any:
    if not isinstance(value, str | list | tuple | Mapping):
        raise ValueError("expected text, a list or a mapping")
    known = get_args(MissingMethod)
    for name in [value] if isinstance(value, str) else value:
        if name not in known:
            raise ValueError(f"there is no method {name!r}; expected {', '.join(known)}{nearest(str(name), known)}")
    return value


Missing = Annotated[str | tuple[str, ...] | Named[Any], BeforeValidator(_known_methods)]


def _differences_in_kelvin(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Refuse limits of differences in degC, which xclim takes for temperatures: 0 degC would be 273.15 K of range."""
    for difference in (name for name in value if variable(name).difference):
        for name, limit in value[difference]:
            given = hasattr(limit, "thresh") and name in value[difference].model_fields_set
            if given and getattr(limit.thresh, "unit", "") != "K":
                told = f"{name} of {difference} has the threshold {limit.thresh}"
                raise ValueError(f"{told}; expected one in K, such as 0 K")
    return value


_Flags = Annotated[Flags, NothingIsEmpty]  # type: ignore[valid-type]
FlagsByVariable = Annotated[Named[_Flags], AfterValidator(_differences_in_kelvin), NothingIsEmpty]
CfChecksByVariable = Annotated[Named[Annotated[CfChecks, NothingIsEmpty]], NothingIsEmpty]


class Structure(Arguments):
    """The exact names that a product must have."""

    dims: Names = Field(default=(), description="the dimensions")
    coords: Names = Field(default=(), description="the coordinates")


def _as_date(value: Any) -> str:
    text = "" if isinstance(value, bool) or not isinstance(value, str | int) else str(value)
    date_of(text)
    return text


Date = Annotated[str, BeforeValidator(_as_date)]


class Checks(Section):
    """A set of checks."""

    structure: Structure | None = Field(default=None, description="exactly these dims and coords")
    calendar: Literal[Calendar, "default"] | None = Field(default=None, description="the calendar that products have")
    start_date: Date | None = Field(
        default=None, description="the products begin on this day or before; within `custom.sim_period`"
    )
    end_date: Date | None = Field(
        default=None, description="the products end on this day or after; years of 360 days end on 30 December"
    )
    variables_and_units: Named[Unit] | None = Field(
        default=None, description="variables that must be there, and their units"
    )
    cfchecks: CfChecksByVariable | None = Field(default=None, description="CF checks by variable")
    freq: Frequency | None = Field(default=None, description="the frequency of the time axis")
    missing: Missing | None = Field(default=None, description="checks of missing values")
    flags: FlagsByVariable | None = Field(
        default=None,
        description="data flags of xclim by variable, with their arguments; limits of `dtr` are differences, in K",
    )
    flags_kwargs: FlagsArguments | None = Field(default=None, description="further arguments of the data flags")
    return_flags: bool = Field(default=True, description="store the flags")
    raise_on: Annotated[tuple[Check, ...], BeforeValidator(lambda value: [] if value is None else value)] = Field(
        default=(),
        description=(
            "the checks whose failure stops the run: those of this section, and `land` (land cells of the reference "
            "without data)"
        ),
    )


def _as_polygons(value: Any, info: ValidationInfo) -> Any:
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ValueError("expected the path of a GeoJSON file or a shapefile")
    path = find_file(str(value), (info.context or {}).get("folders", ()))
    try:
        found = read_polygons(files_of(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error}); expected a GeoJSON file or a shapefile") from error
    except DataError as error:
        raise ValueError(str(error)) from error
    polygons = [part for _, polygon, _ in found for part in getattr(polygon, "geoms", [polygon])]
    return tuple(tuple(tuple(ring.coords) for ring in (one.exterior, *one.interiors)) for one in polygons)


Ring = tuple[tuple[float, float], ...]
Shape = Annotated[tuple[tuple[Ring, ...], ...], BeforeValidator(_as_polygons)]


class Extent(Section):
    """A part of the domain: a box, or the polygons of a file."""

    lon_bnds: Longitudes | None = Field(default=None, description="the western and the eastern bound, degrees east")
    lat_bnds: Latitudes | None = Field(default=None, description="the southern and the northern bound, degrees north")
    shape: Shape | None = Field(
        default=None,
        description=(
            "instead of bounds: a GeoJSON file or a shapefile with polygons in longitudes and latitudes; a cell "
            "belongs to it if its centre does"
        ),
    )

    @model_validator(mode="after")
    def _has_one_extent(self) -> Self:
        bounds = [self.lon_bnds, self.lat_bnds]
        if bounds.count(None) != (2 if self.shape else 0):
            raise ValueError("expected either both lon_bnds and lat_bnds, or shape")
        return self


class ScopedChecks(Checks, Extent):
    """A set of checks of a part of the domain."""


class Limits(Section):
    """Limits of the values of raw files."""

    flags: FlagsByVariable | None = Field(default=None, description="data flags by variable")


class ScopedLimits(Limits, Extent):
    """Limits of the values in a part of the domain."""


class InputLimits(Limits):
    """Limits of the values of raw files, in place of the products'."""

    scopes: Named[ScopedLimits] = Field(default={}, description="further limits, each of a part of the domain")


class HealthChecks(Checks):
    """Section `health_checks`."""

    inputs: InputLimits | None = OmitDefault("limits of the raw files' values; by default those of the products")

    scopes: ByFileName[ScopedChecks] | None = OmitDefault(
        "further sets of checks by name, each of a part of the domain; flags are stored as SCOPE_VARIABLE_FLAG"
    )

    @property
    def sets(self) -> dict[str, Checks]:
        """All sets of checks, by their keys."""
        return {
            "health_checks": self,
            **{f"health_checks.scopes.{name}": checks for name, checks in (self.scopes or {}).items()},
        }


_Count = Annotated[Integer, Field(ge=0)]


class Validation(Section):
    """Section `validation`."""

    sample: _Count = Field(
        default=10,
        description="land cells that are made again: days from the raw files, indicators from the days; 0 for none",
    )
    impossible_values: _Count = Field(
        default=0, description="impossible values that a variable may have beyond those that its attributes tell"
    )
    cells_without_data: _Count = Field(
        default=0, description="land cells that may lack days beyond those that a product's attributes tell"
    )
    optional: tuple[Validated, ...] = Field(
        default=("cf", "flags"), description="checks that a release may do without where they cannot be done"
    )
