"""The whole configuration of a run as a frozen value, its parts by dotted keys, and fingerprints of parts."""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from espo_luigi.config.bias_adjustment import BiasAdjust, CleanUp
from espo_luigi.config.diagnosis import Diagnostics, DomainDiag, OffDiag, PerfectModelSection
from espo_luigi.config.dialects import Written, as_written
from espo_luigi.config.downscaling import DownscalingSection
from espo_luigi.config.health_checks import FlagsSection, HealthChecks, Validation
from espo_luigi.config.outcomes import (
    Aggregate,
    EnsemblesSection,
    IndicatorsSection,
    SpatialMean,
    WarmingLevelsSection,
)
from espo_luigi.config.regions import Custom, Paths, Region, Subregions
from espo_luigi.config.searching import ExtractionSection, Regrid, RepairRow, UnitsRow
from espo_luigi.config.usual import NEWEST, Usual
from espo_luigi.config.variables import VariableSection
from espo_luigi.errors import enumerated
from espo_luigi.fields import AnyMapping, ByFileName, OmitDefault, Section, filled
from espo_luigi.science.derivations import NEEDED_FOR, TEMPERATURES, Consistency, inputs_of
from espo_luigi.science.periods import each_period
from espo_luigi.science.variables import VARIABLES, Variable, variable

# The width of lines of attributes with what was done.
_LINE = 82
_OF_RANGE = "tasmin is the adjusted tasmax minus the adjusted dtr"
_MADE_CONSISTENT: Mapping[Consistency, str] = {
    "derived": _OF_RANGE,
    "swap": "tasmax and tasmin are exchanged where they cross",
    "dqm-dtr": _OF_RANGE,
}


def _dotted(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _dotted(inner, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", inner


def _as_text(value: Any) -> Any:
    """A version such as 1.0, which YAML takes for a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


class Project(Section):
    """The products' name and version; further keys have no effect."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str | None, BeforeValidator(_as_text)] = Field(
        default=None, description="the field {project} of attributes"
    )
    version: Annotated[str | None, BeforeValidator(_as_text)] = Field(
        default=None, description="the field {version} of attributes"
    )


class RunConfig(Section):
    """The configuration of a run: made by `load`, never changed."""

    project: Project | None = Field(default=None, description="names for the products")
    paths: Paths = Field(description="the folders of the run")
    subregions: Subregions | None = OmitDefault("slices of cells, as ESPO v2 cuts land, in place of `custom.regions`")
    production: str | None = OmitDefault(
        "the production line by its name; espo-v2 by default where `subregions` is given, else espo-2024"
    )
    usual: Usual = OmitDefault(
        "the dated name of the usual settings of adjustments; the newest by default, so write it for a run that lasts",
        NEWEST,
    )
    domain: Region = Field(
        description=(
            "the whole domain: what is extracted, and the name of the final product; older names are "
            "custom.amno_region and full_region"
        ),
    )
    custom: Custom = Field(description="regions, chunks and periods")
    keep: Annotated[tuple[Literal["pieces", "regridded"], ...], BeforeValidator(lambda value: value or ())] = Field(
        default=("pieces", "regridded"),
        exclude=True,  # the hash leaves it out, since it changes no number
        description="archives of the steps before the product that are kept, too",
    )
    own_variables: ByFileName[VariableSection] = OmitDefault(
        "variables that the table of variables lacks, or has otherwise", {}, alias="variables"
    )
    extraction: ExtractionSection = Field(description="the data to read: reference and simulations")
    regrid: Regrid = Field(default_factory=Regrid, description="how simulations come to the reference's points")
    biasadjust: BiasAdjust = Field(description="how variables are adjusted")
    downscaling: DownscalingSection | None = OmitDefault(
        "adjusting on a coarse grid, and downscaling afterwards; without it, simulations are adjusted on the "
        "reference's cells"
    )
    clean_up: CleanUp = Field(default_factory=CleanUp, description="treatment of the adjusted variables")
    flagging: FlagsSection | None = OmitDefault(
        "flags of values and cells, in an archive beside each product; without it, there are none", alias="flags"
    )
    health_checks: HealthChecks = Field(default_factory=HealthChecks, description="the checks of the final products")
    off_diag: OffDiag | None = Field(
        default=None, alias="off-diag", description="diagnostics of small domains; without it, of the whole"
    )
    diagnostics: Diagnostics | None = Field(default=None, description="diagnostics of the branch stage-2024")
    domain_diag: DomainDiag | None = OmitDefault("diagnostics of small domains, of ESPO v2", alias="domain-diag")
    perfect_model: PerfectModelSection = OmitDefault("tests of the methods on known futures", PerfectModelSection())
    indicators: IndicatorsSection | None = OmitDefault("climate indicators; without a module, no effect")
    aggregate: Aggregate = OmitDefault("climatologies and changes of indicators", Aggregate())
    warming_levels: WarmingLevelsSection | None = OmitDefault("changes of indicators at levels of global warming")
    ensembles: EnsemblesSection | None = OmitDefault("statistics over simulations")
    spatial_mean: SpatialMean | None = OmitDefault("means over regions")
    # How a run is computed and reported never changes a number: neither belongs in the hash.
    dask: AnyMapping = Field(default={}, exclude=True, description="dask's settings")
    logging: AnyMapping = Field(default={}, exclude=True, description="a dictionary for logging.config.dictConfig")
    validation: Validation = Field(default=Validation(), exclude=True, description="thresholds of `espo validate`")
    demo: AnyMapping | None = Field(default=None, description="the built-in example data")

    _written: Written = PrivateAttr(default={})
    _files: tuple[Path, ...] = PrivateAttr(default=())
    _with_usual: tuple[str, ...] = PrivateAttr(default=())

    @property
    def files(self) -> tuple[Path, ...]:
        """The absolute paths of the files that were merged, in their order: a `base` before the file that names it."""
        return self._files

    @property
    def with_usual(self) -> tuple[str, ...]:
        """The keys below `biasadjust.variables` that have usual settings, which `usual` names."""
        return self._with_usual

    def name_of(self, key: str) -> str:
        """Return a key as the user's files have it: `custom.amno_region`, for example, for `domain`."""
        return ".".join(as_written(tuple(key.split(".")), self._written))

    @property
    def reference_source(self) -> str:
        """The single source that the reference's search wants; it names the reference's files."""
        return self.extraction.reference.wanted_source or str(self.extraction.ref_source)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the simulations that vary in time, in the order of the file."""
        wanted = self.extraction.simulation.search_data_catalogs.variables_and_freqs
        return tuple(name for name, freq in wanted.items() if freq != "fx")

    @cached_property
    def table(self) -> Mapping[str, Variable]:
        """The table of variables, with the section `variables` over it."""
        return {**VARIABLES, **{name: own.over(variable(name)) for name, own in self.own_variables.items()}}

    @property
    def consistency(self) -> Consistency | None:
        """How temperatures are made consistent: as asked for, or as the adjusted variables allow; None for not."""
        asked, adjusted = self.clean_up.temperatures, {*self.biasadjust.adjusted}
        ways: tuple[Consistency, ...] = (
            (asked,) if "temperatures" in self.clean_up.model_fields_set else (asked, "swap")
        )
        return next((way for way in ways if {*NEEDED_FOR[way]} <= adjusted), None)

    @property
    def derived(self) -> Mapping[str, tuple[str, ...]]:
        """The variables that are derived from adjusted ones, each with those; () for one that cannot be derived."""
        return {name: how.inputs or inputs_of(name, self.not_derived) for name, how in self.clean_up.derive.items()}

    @property
    def not_derived(self) -> list[str]:
        """The variables that are adjusted, and consistent temperatures."""
        return list(dict.fromkeys([*self.biasadjust.adjusted, *(TEMPERATURES if self.consistency else ())]))

    @property
    def published(self) -> list[str]:
        """The variables that products may have: those that are adjusted, and those that are derived from them."""
        return [*self.not_derived, *self.derived]

    def needed_for(self, variables: Iterable[str]) -> list[str]:
        """Return the adjusted variables that it takes to make variables of the product."""
        wanted = {one for name in variables for one in self.derived.get(name, (name,))}
        if self.consistency and wanted & {*TEMPERATURES}:
            wanted |= {*NEEDED_FOR[self.consistency]}
        return [name for name in self.biasadjust.adjusted if name in wanted]

    def treatment(self, variable: str) -> dict[str, Any]:
        """Return what is done to a variable's product in ESPO v2; the fields in its attributes are filled in."""
        given = self.clean_up.variables.get(variable)
        if given is None:
            return {}
        return {**given.arguments("add_attrs"), "add_attrs": self._filled_in(given.add_attrs)}

    @property
    def attributes(self) -> dict[str, dict[str, Any]]:
        """The attributes that products are given, by variable; the fields in their texts are filled in."""
        return self._filled_in(self.clean_up.xscen_clean_up.add_attrs)

    def _filled_in(self, attributes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """The attributes with `{reference}` and the further fields in their texts replaced, as far as they have values.

        A field without a value, and braces around anything else, stay.
        """
        project, adjusted = self.project or Project(), self.biasadjust.variables.values()
        years = [period for adjustment in adjusted for period in each_period(adjustment.adjusting_args.periods)]
        periods = ["-".join(adjustment.training_args.period) for adjustment in adjusted]
        institutions = [adjustment.adjusting_args.bias_adjust_institution for adjustment in adjusted]
        fields = {
            "reference": self.reference_source,
            "period": " and ".join(dict.fromkeys(periods)),
            "first": min(first for first, _ in years),
            "last": max(last for _, last in years),
            "institution": " and ".join(dict.fromkeys(filter(None, institutions))),
            "project": project.name,
            "version": project.version,
        }
        known = {name: value for name, value in fields.items() if value}
        done = {"adjustment": self.biasadjust.in_words, "adjusted": self._adjusted_in_words}

        def text(value: Any) -> Any:
            if isinstance(value, str) and (with_done := filled(value, done)) != value:
                paragraphs = with_done.rstrip().split("\n\n")
                lists = [any(line[:1] in ("-", "*", " ") for line in one.split("\n")) for one in paragraphs]
                parts = zip(paragraphs, lists, strict=True)
                wrapped = (one if is_list else textwrap.fill(one, _LINE) for one, is_list in parts)
                value = "\n\n".join(wrapped) + value[len(value.rstrip()) :]
            return filled(value, known)

        return {name: {key: text(value) for key, value in attrs.items()} for name, attrs in attributes.items()}

    @property
    def _adjusted_in_words(self) -> str:
        """The adjusted variables, and how the others are made of them."""
        places = {name: place for place, name in enumerate(self.table)}
        adjusted = sorted(self.biasadjust.adjusted, key=lambda name: places.get(name, len(places)))
        made = [_MADE_CONSISTENT[self.consistency]] if self.consistency else []
        made += [f"{name} is derived from {enumerated(inputs)}" for name, inputs in self.derived.items() if inputs]
        return "; ".join([enumerated(adjusted), *made])

    @property
    def flags(self) -> dict[str, Any]:
        """The data flags of the health checks, with their arguments, by variable."""
        return self.health_checks.arguments().get("flags", {})

    @property
    def input_limits(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Parts of raw data, and the data flags that limit values there, by variable; the first is for all data."""
        inputs = self.health_checks.inputs
        if inputs is None:
            return [({}, self.flags)]
        scopes = [
            ({"name": name, **scope.arguments("flags")}, scope.arguments().get("flags", {}))
            for name, scope in inputs.scopes.items()
        ]
        return [({}, inputs.arguments().get("flags", {})), *scopes]

    @property
    def dask_client(self) -> dict[str, Any]:
        """Keyword arguments of the Dask client, without `local_directory`, which is the job's."""
        client = self.dask.get("client") or {}
        return {key: value for key, value in client.items() if key != "local_directory"}

    @property
    def dask_settings(self) -> dict[str, Any]:
        """Settings for dask.config.set, under dotted names."""
        return dict(_dotted({key: value for key, value in self.dask.items() if key != "client"}))

    @cached_property
    def hash(self) -> str:
        """The first 12 hexadecimal digits of the SHA-256 of all values that can change a product or its place.

        The order of keys counts only for the regions, as products are concatenated, and for the cascade's grids.
        `dask`, `logging` and keys without effect do not count.
        """
        values = self.model_dump(mode="json", by_alias=True)
        orders = [list(self.custom.regions), list(self.regrid.regrid_dataset.intermediate_grids)]
        text = json.dumps([values, orders], sort_keys=True, separators=(",", ":"), default=str)
        return short_hash(text)


def value_at(value: Any, key: str) -> Any:
    """Return the value of a configuration, or of a part of it, under a dotted key; None if it is absent.

    The key of a list's element is the element: `True` if it is there; of a list of rows by simulation, the rows that
    concern the simulation are returned. `*` stands for the names of all that is there, in their order; with a key after
    it, for the values of each under that key, where it is given.
    """
    if not key:
        return value
    if isinstance(value, tuple | list):
        rows = [row for row in value if isinstance(row, RepairRow | UnitsRow) and fnmatchcase(key, row.id)]
        return rows or (True if key in value else None)
    members = _members(value)
    if key == "*":
        return list(members)
    if key.startswith("*."):
        held = {name: value_at(member, key[2:]) for name, member in members.items()}
        null = [n for n, one in members.items() if isinstance(one, BaseModel) and key[2:] in one.model_fields_set]
        return {name: one for name, one in held.items() if one is not None or name in null}
    # A user's own name may hold a dot: the longest that fits.
    fitting = [name for name in members if f"{key}.".startswith(f"{name}.")]
    longest = max(fitting, key=len, default=None)
    return None if longest is None else value_at(members[longest], key[len(longest) + 1 :])


def fingerprint(config: BaseModel, key: str) -> str:
    """Return twelve hexadecimal digits that change with the value under a key, and not with the order of its keys."""
    text = json.dumps(_plain(value_at(config, key)), sort_keys=True, separators=(",", ":"), default=str)
    return short_hash(text)


def given_keys(config: BaseModel, prefix: str = "") -> list[str]:
    """Return the keys that leave no trace where they have their default, and that have another value."""
    given = []
    for name, field in type(config).model_fields.items():
        value, key = getattr(config, name), f"{prefix}{field.alias or name}"
        if field.exclude_if is not None:
            given += [] if field.exclude_if(value) else [key]
        elif isinstance(value, BaseModel):
            given += given_keys(value, f"{key}.")
    return given


def short_hash(text: str) -> str:
    """Return the first twelve hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _members(value: Any) -> Mapping[str, Any]:
    if isinstance(value, BaseModel):
        return {field.alias or name: getattr(value, name) for name, field in type(value).model_fields.items()}
    return value if isinstance(value, Mapping) else {}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        # A key of a later version changes no fingerprint until somebody gives it.
        fields = type(value).model_fields
        absent = {name for name, field in fields.items() if field.exclude_if and field.exclude_if(getattr(value, name))}
        values = {name: getattr(value, name) for name in fields if name not in absent} | (value.model_extra or {})
        return {n: _plain(inner) for n, inner in values.items() if inner is not None or n in value.model_fields_set}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value
