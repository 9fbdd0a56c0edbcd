"""A data reference syntax (DRS): a file of data that says how exported files are named, described and cut."""

from __future__ import annotations

import difflib
import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, field_validator, model_validator

from espo_luigi.config.messages import explain
from espo_luigi.config.schema import short_hash
from espo_luigi.config.yaml_files import named_file, read_yaml
from espo_luigi.errors import ConfigurationError, ParameterError, nearest, problems_in
from espo_luigi.export.netcdf import Layout, is_project_of_cordex
from espo_luigi.fields import AnyMapping, Chunk, Integer, Named, Names, Section, check_wildcard, filled

FOLDER = Path(__file__).parent / "drs"
# The fields of paths and attributes, and where a value comes from.
FIELDS: Mapping[str, str] = {
    **dict.fromkeys(
        ("mip_era", "activity", "institution", "source", "experiment", "member"),
        "the simulation's row of the catalogue",
    ),
    "id": "the simulation's id in the catalogue",
    "driving_model": "the catalogue; of a global simulation, `source`",
    "driving_member": "the catalogue; of a global simulation, `member`",
    "driving": "`driving_model/driving_member/` of a regional simulation, else nothing",
    "variable": "the variable's name in the file",
    "domain": "domain.name",
    "reference": "the source of extraction.reference",
    "calibration": "the years of biasadjust's training, such as 1991-2020",
    "method": "biasadjust's method",
    "adjusted_by": "biasadjust's bias_adjust_institution",
    "project": "project.name",
    "version": "project.version",
    "period": "custom.sim_period, such as 1950-2100",
    "created": "the day of the export, such as 2026-11-24",
}
DATES = "dates"
# Fields that may be empty, and that may have slashes.
_MAY_BE_EMPTY = ("driving",)
# A catalogue's ways to say that it has no value.
_NO_VALUE = ("", "unknown", "none", "None", "nan")


def _template(value: Any, allowed: Iterable[str]) -> str:
    """Return a template, or raise ValueError if a field is none of those allowed."""
    if not isinstance(value, str) or not value:
        raise ValueError("expected a text with fields in braces, such as {source}/{experiment}/day/{variable}")
    known = list(allowed)
    for name in fields_in(value):
        if name not in known:
            hint = nearest(name, known) or f"; fields: {', '.join(known)}"
            raise ValueError(f"there is no field {{{name}}}{hint}")
    return value


# Whose attributes are given, besides variables by their names.
_OWNERS = ("global", "variable")
# Dates, a suffix, and what a file that is being written has around its name, take the other bytes.
_LONGEST_STEM = 200


def fields_in(template: str) -> list[str]:
    """Return the names of a template's fields. Raises ValueError for braces that are no pairs or hold more."""
    parts = list(string.Formatter().parse(template))
    if any(form or conversion or name == "" for _, name, form, conversion in parts):
        raise ValueError("expected only a name in braces, without `:` and `!`")
    return [name for _, name, _, _ in parts if name is not None]


class Time(Section):
    """How days are stamped."""

    units: str = Field(
        default="days since 1950-01-01", pattern=r"^days since \d{4}-\d\d-\d\d$", description="the units"
    )
    stamp: Literal["start", "noon"] = Field(default="start", description="the day's beginning, or its noon")


class Drs(Section):
    """How exported files are named, described and cut."""

    description: str = Field(default="", description="a sentence about it")
    folder: Annotated[str, BeforeValidator(lambda value: _template(value, FIELDS))] = Field(
        description="the folder of a product's files, below the export's folder"
    )
    file: Annotated[str, BeforeValidator(lambda value: _template(value, [*FIELDS, DATES]))] = Field(
        description="a file's name, which ends in _{dates}.nc"
    )
    years: Annotated[Integer, Field(ge=1)] = Field(description="calendar years by file; a last file may have fewer")
    first_year: Integer | None = Field(
        default=None, description="a year with which a file begins; by default the first of the series"
    )
    chunks: Named[Chunk] = Field(
        default={},
        description="cells of a chunk along Y and X; -1: all. A chunk has all days of its file, and 4 MB or more",
    )
    time: Time = Field(default_factory=Time, description="the units of time, and the stamp of a day")
    format: Literal["NETCDF4", "NETCDF4_CLASSIC"] = Field(default="NETCDF4", description="the data model")
    rename: Named[str] = Field(default={}, description="names of variables in files, where they are others")
    required: Names = Field(default=(), description="global attributes without which nothing is exported")
    attributes: Named[AnyMapping] = Field(
        default={}, description="attributes to set: `global`, `variable` (the exported one), or a variable's name"
    )
    _name: str = PrivateAttr(default="")
    _path: Path = PrivateAttr(default=Path())

    @field_validator("file")
    @classmethod
    def _ends_in_dates(cls, value: str) -> str:
        if not value.endswith(f"_{{{DATES}}}.nc") or value.count(f"{{{DATES}}}") > 1 or "/" in value:
            raise ValueError("expected a name without / that ends in _{dates}.nc")
        return value

    @field_validator("folder")
    @classmethod
    def _stays_below(cls, value: str) -> str:
        if value.startswith("/") or ".." in value.split("/"):
            raise ValueError("expected a path below the export's folder, without .. and not from /")
        return value

    @field_validator("chunks")
    @classmethod
    def _along_known_axes(cls, value: Mapping[str, int]) -> Mapping[str, int]:
        for name in value:
            if name not in ("X", "Y"):
                raise ValueError(f"got a chunk along {name}, expected X and Y; a chunk has all days of its file")
        return value

    @model_validator(mode="after")
    def _templates_are_known(self) -> Self:
        for owner, attrs in self.attributes.items():
            if owner == "time":
                raise ValueError("attributes.time: those of time follow from the section `time`; leave them out")
            if owner not in _OWNERS and (meant := difflib.get_close_matches(owner, _OWNERS, 1)):
                raise ValueError(f"attributes.{owner}: did you mean {meant[0]}?")
            for name, value in attrs.items():
                try:
                    if isinstance(value, str) and owner != "variable":
                        _template(value or " ", FIELDS)
                    elif isinstance(value, str):
                        fields_in(value)
                except ValueError as error:
                    raise ValueError(f"attributes.{owner}.{name}: {error}") from error
        return self

    @property
    def name(self) -> str:
        """Its name in the package, or its path."""
        return self._name

    @property
    def path(self) -> Path:
        """Its file."""
        return self._path

    @cached_property
    def hash(self) -> str:
        """A text that changes with anything that it says."""
        return short_hash(self.model_dump_json(exclude={"description"}))

    @cached_property
    def hash_of_names(self) -> str:
        """A text that changes with the names of files, and with the days in them."""
        return short_hash(self.model_dump_json(include={"folder", "file", "years", "first_year", "rename"}))

    @property
    def layout(self) -> Layout:
        """How files are cut and encoded."""
        noon, classic = self.time.stamp == "noon", self.format == "NETCDF4_CLASSIC"
        return Layout(dict(self.chunks), self.time.units, noon, classic)

    def name_of(self, variable: str) -> str:
        """Return a variable's name in files."""
        return self.rename.get(variable, variable)

    def stem(self, fields: Mapping[str, str]) -> Path:
        """Return the path of a product's files below the export's folder, without dates and suffix.

        Raises
        ------
        ParameterError
            If a field has no value, or its value cannot be a part of a file name.
        """
        name = self.file.removesuffix(f"_{{{DATES}}}.nc")
        for field in dict.fromkeys([*fields_in(self.folder), *fields_in(name)]):
            if field not in _MAY_BE_EMPTY:
                _check_part(field, fields.get(field, ""), self)
            else:
                for part in fields.get(field, "").split("/")[:-1]:
                    _check_part(field, part, self)
        made = Path(self.folder.format_map(fields)) / name.format_map(fields)
        if (length := len(made.name.encode())) > _LONGEST_STEM:
            raise ParameterError(
                f"{self.path}: the file {made.name}_….nc has a name of {length} bytes before its dates; expected "
                f"{_LONGEST_STEM} at most, as file systems allow 255. Choose a shorter template."
            )
        return made

    def attributes_for(self, fields: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return the attributes to set, without those that lack a field's value.

        Attributes of `variable` keep the fields that are none of `FIELDS`: the product's own attributes stand for them.

        Raises
        ------
        ParameterError
            If `project_id` would be CORDEX.
        """
        made = {
            owner: {name: filled(value, fields) for name, value in attrs.items() if not _lacks(value, fields)}
            for owner, attrs in self.attributes.items()
        }
        if is_project_of_cordex("project_id", value := made.get("global", {}).get("project_id")):
            raise ParameterError(
                f"{self.path}: attributes.global.project_id = {value} is for results that CORDEX coordinates: its "
                "guidance forbids the name to others; expected another, such as CORDEX-Adjust"
            )
        return made

    def missing(self, fields: Mapping[str, str], *given: Mapping[Any, Any]) -> list[str]:
        """Return the required global attributes that neither the DRS nor any of `given` has a value for."""
        set_here = self.attributes_for(fields).get("global", {})
        there = {
            str(name)
            for attrs in given
            for name, value in attrs.items()
            if has_value(value) and not is_project_of_cordex(name, value)
        }
        return [name for name in self.required if name not in set_here.keys() | there]


def _lacks(value: Any, fields: Mapping[str, str]) -> bool:
    """Whether an attribute to set has no value: it is empty, or a field of it is."""
    if not isinstance(value, str):
        return value is None
    own = [name for name in fields_in(value) if name in FIELDS and name not in _MAY_BE_EMPTY]
    return not has_value(value) or any(not has_value(fields.get(name, "")) for name in own)


def has_value(value: Any) -> bool:
    """Return whether a catalogue's or a product's value says something."""
    return str(value).strip() not in _NO_VALUE


def _check_part(field: str, value: str, drs: Drs) -> None:
    if not has_value(value):
        raise ParameterError(
            f"{drs.path}: its names have the field {{{field}}}, which has no value here; it comes from "
            f"{FIELDS[field]}: set it there, or take the field out of the DRS (a copy of yours: `--drs PATH`)"
        )
    check_wildcard(f"{{{field}}} of {drs.path}", value.replace("+", ""))


def packaged() -> list[str]:
    """Return the names of the DRS files that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yml"))


def load_drs(name: str) -> Drs:
    """Read a DRS of the package by its name, or a user's by its path; an unchanged file is read once.

    Raises
    ------
    ParameterError
        If there is none.
    ConfigurationError
        If the file cannot be read, or a key or a value is not allowed.
    """
    path = named_file("drs", name, FOLDER).absolute()
    state = path.stat() if path.exists() else None
    return _load(name, path, (state.st_mtime_ns, state.st_size) if state else None)


@lru_cache(maxsize=8)
def _load(name: str, path: Path, _state: tuple[int, int] | None) -> Drs:
    file = read_yaml(path)
    try:
        drs = Drs.model_validate(file.content)
    except ValidationError as error:
        raise ConfigurationError(explain(error, Drs, {}, file.places, f"The DRS {path}")) from error
    drs._name, drs._path = name, path
    return drs


def check_distinct(stems: Mapping[str, Path], drs: Drs) -> None:
    """Raise `ParameterError` if the files of two products, by label, would have the same name."""
    owners: dict[str, list[str]] = defaultdict(list)
    for label, stem in stems.items():
        owners[str(stem)].append(label)
    if shared := {stem: labels for stem, labels in owners.items() if len(labels) > 1}:
        same, labels = next(iter(shared.items()))
        raise ParameterError(
            f"{drs.path}: {len(labels)} products would have the same files {same}_*.nc: {', '.join(labels[:4])}; add "
            f"the field in which they differ to `folder` or `file`, in a DRS of your own (`--drs PATH`). Fields: "
            f"{', '.join(FIELDS)}"
        )


def lacking(drs: Drs, missing: Mapping[str, Sequence[str]], setting: str) -> str:
    """Return the message for required attributes without a value, by name, each with the products that lack it."""
    lines = [f"{name} ({len(labels)} product(s), such as {labels[0]})" for name, labels in missing.items()]
    texts = [text for name in missing if isinstance(text := drs.attributes.get("global", {}).get(name), str)]
    fields = dict.fromkeys(field for text in texts for field in fields_in(text))
    return (
        problems_in(f"{drs.path} requires global attributes that nothing gives: this export", lines)
        + f"\nGive each of them a value under `{setting}` of the configuration, or under `attributes: global:` of a "
        "DRS of your own (`--drs PATH`). A field of the DRS has its value from: "
        + "; ".join(f"{{{name}}} {FIELDS[name]}" for name in fields)
    ).removesuffix(" A field of the DRS has its value from: ")
