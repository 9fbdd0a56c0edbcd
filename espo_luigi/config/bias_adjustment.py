"""Sections `biasadjust` and `clean_up`: how variables are trained, adjusted and cleaned up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from espo_luigi.errors import ConfigurationError, nearest
from espo_luigi.fields import (
    AnyMapping,
    ByFileName,
    Ignored,
    Integer,
    Named,
    Names,
    NoEffect,
    NothingIsEmpty,
    Number,
    OmitDefault,
    Refused,
    Section,
    Unused,
    file_name_part,
)
from espo_luigi.methods.base import Method, method_named
from espo_luigi.methods.xsdba import Adjusting, Training
from espo_luigi.science.choices import METHODS, TOGETHER, Consistency, Engine


def _of_the_method(section: str) -> WrapValidator:
    """Validate a section by the model of the variable's method; xsdba's, without a method."""

    def validated(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if "method" not in info.data:  # whose name is wrong
            return value
        if (name := info.data["method"]) is None:
            return validate(value)
        model = getattr(method_named(name), section)
        try:
            return model.model_validate({} if value is None else value, context=info.context)
        except ValidationError as error:
            accepted = ", ".join(
                key for key, field in model.model_fields.items() if NoEffect not in map(type, field.metadata)
            )
            told = {"method": name, "accepted": accepted}
            foreign = PydanticCustomError(
                "foreign_argument", "the method {method} does not take it; it takes {accepted}", told
            )
            lines = [
                InitErrorDetails(
                    type=foreign if one["type"] == "extra_forbidden" else _same_error(one),
                    loc=one["loc"],
                    input=one["input"],
                )
                for one in error.errors()
            ]
            raise ValidationError.from_exception_data(model.__name__, lines) from None

    return WrapValidator(validated)


def _same_error(one: Any) -> PydanticCustomError | str:
    """Return the type of an error as `from_exception_data` takes it."""
    return (
        "missing"
        if one["type"] == "missing"
        else PydanticCustomError(one["type"], one["msg"].removeprefix("Value error, ").replace("{", "{{"))
    )


def _known(name: str | None) -> str | None:
    if name is not None:
        try:
            method_named(name)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
    return name


class VariableAdjustment(Section):
    """How one variable is adjusted, or several together."""

    method: Annotated[str | None, AfterValidator(_known)] = OmitDefault(
        "the method, NAME or NAME.VARIANT, if it is not one of xsdba's, which `training_args.method` names, too"
    )
    variables: Names = OmitDefault(
        "the variables that the method adjusts together; the key above is then their group's name", ()
    )
    training_args: Annotated[SerializeAsAny[Training], _of_the_method("Training")] = Field(
        description="how the variable is trained"
    )
    adjusting_args: Annotated[SerializeAsAny[Adjusting], _of_the_method("Adjusting")] = Field(
        description="how the variable is adjusted"
    )
    # Not luigi.cfg's `engine`, which runs jobs. Markers of products have this key: a new name would make them stale.
    engine: Engine = Field(
        default="auto", description="auto takes our own kernels where they know the configuration; xsdba never"
    )

    @model_validator(mode="before")
    @classmethod
    def _xsdbas_names(cls, value: Any) -> Any:
        """Write a method of xsdba where ESPO-G's files have it: both ways are the same configuration."""
        name = value.get("method") if isinstance(value, Mapping) else None
        short = name.removeprefix("xsdba.") if isinstance(name, str) else ""
        if short not in METHODS:
            return value
        arguments = value.get("training_args") or {}
        if isinstance(arguments, Mapping) and arguments.get("method", short) != short:
            raise ValueError(f"method is {name}, and training_args.method {arguments['method']}; give one of them")
        rest = {key: one for key, one in value.items() if key != "method"}
        return {**rest, "training_args": {**arguments, "method": short}}

    @model_validator(mode="after")
    def _fit(self) -> VariableAdjustment:
        method = self.chosen
        if bool(self.variables) != method.variables_together:
            raise ValueError(
                f"the method {self.name} adjusts several variables together; expected `variables: [NAME, NAME]`"
                if method.variables_together
                else f"the method {self.name} adjusts each variable by itself; `variables` cannot be given"
            )
        if self.method is not None and self.method not in TOGETHER and self.engine == "xsdba":
            raise ValueError(f"the method {self.name} is never xsdba's: leave `engine: xsdba` out, or `method`")
        for name in self.variables:
            file_name_part(name)
        if len(self.variables) == 1:
            raise ValueError(f"variables: {self.variables[0]} alone is no group; expected two variables or more")
        own = getattr(self.training_args, "by_variable", ())
        if self.variables and (foreign := [name for name in own if name not in self.variables]):
            raise ValueError(
                f"training_args.by_variable: {', '.join(foreign)} is not adjusted here; expected names of `variables`: "
                f"{', '.join(self.variables)}{nearest(foreign[0], self.variables)}"
            )
        if listed := list(method.problems(self.training_args, self.adjusting_args)):
            raise ValidationError.from_exception_data(type(self).__name__, listed)
        return self

    @property
    def name(self) -> str:
        """The method's name."""
        return self.method or self.training_args.method

    @property
    def chosen(self) -> Method:
        """The method."""
        return method_named(self.name, self.engine)


class BiasAdjust(Section):
    """Section `biasadjust`."""

    variables: Annotated[ByFileName[VariableAdjustment], Field(min_length=1)] = Field(
        description="the variables that are adjusted, or groups of variables"
    )

    @model_validator(mode="after")
    def _each_once(self) -> BiasAdjust:
        if twice := [name for name, times in Counter(self.adjusted).items() if times > 1]:
            raise ValueError(f"variables: {', '.join(twice)} is adjusted twice; expected each variable in one place")
        return self

    @model_validator(mode="after")
    def _known_to_their_methods(self) -> BiasAdjust:
        errors = []
        for key, how in self.variables.items():
            known = how.chosen.variables
            if foreign := [name for name in how.variables or (key,) if known and name not in known]:
                told = {"method": how.name, "foreign": ", ".join(foreign), "known": ", ".join(known)}
                problem = PydanticCustomError(
                    "foreign_variable", "the method {method} has no settings for {foreign}; it has: {known}", told
                )
                errors.append(InitErrorDetails(type=problem, loc=("variables", key, "method"), input=how.name))
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    @property
    def adjusted(self) -> tuple[str, ...]:
        """The variables that are adjusted, alone or in a group."""
        return tuple(self.variables_of(self.variables))

    @property
    def together(self) -> dict[str, tuple[str, ...]]:
        """The groups of variables that are adjusted together, by their keys."""
        return {name: tuple(how.variables) for name, how in self.variables.items() if how.variables}

    @property
    def trainings(self) -> dict[str, tuple[str, Any]]:
        """The key, and the section, of each variable's own arguments of the training."""
        found: dict[str, tuple[str, Any]] = {}
        for name, how in self.variables.items():
            key, own = f"biasadjust.variables.{name}.training_args", getattr(how.training_args, "by_variable", {})
            alone = {} if how.variables else {name: (key, how.training_args)}
            found |= alone | {one: (f"{key}.by_variable.{one}", section) for one, section in own.items()}
        return found

    def variables_of(self, groups: Iterable[str]) -> list[str]:
        """Return the variables that are adjusted under keys."""
        return [one for name in groups for one in self.variables[name].variables or (name,)]

    def group_of(self, variable: str) -> str:
        """Return the key under which a variable is adjusted: its name, or its group's."""
        return next((name for name, how in self.variables.items() if variable in how.variables), variable)

    def groups_of(self, variables: Iterable[str]) -> list[str]:
        """Return the keys under which variables are adjusted, each once."""
        return list(dict.fromkeys(map(self.group_of, variables)))


class XscenCleanUp(Section):
    """The treatment of the adjusted variables."""

    round_var: Named[Annotated[Integer, Field(ge=0, le=30)]] = Field(
        default={}, description="decimals that are kept, by variable"
    )
    limit_var: Named[Literal["potential_radiation"]] = OmitDefault(
        "a limit that depends on day and latitude, by variable; rsds: potential_radiation", {}
    )
    to_level: str = Field(default="cleaned_up", description="the attribute cat:processing_level")
    add_attrs: Annotated[Named[AnyMapping], NothingIsEmpty] = Field(
        default={},
        description=(
            "attributes by variable; `global` for the dataset. Texts may hold {reference}, {period}, {first}, {last}, "
            "{institution}, {project} and {version}"
        ),
    )
    maybe_unstack_dict: Ignored = None
    variables_and_units: Refused = None
    convert_calendar_kwargs: Refused = None
    missing_by_var: Refused = None
    clip_var: Refused = None
    change_attr_prefix: Unused = None
    remove_all_attrs_except: Unused = None
    attrs_to_remove: Unused = None
    common_attrs_only: Unused = None


def _as_patterns(value: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in value:
        if ":*" in pattern:  # which would match no attribute at all
            raise ValueError(
                f"expected a regular expression, such as {pattern.replace(':*', ':.*')}, and got {pattern}"
            )
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"expected names or regular expressions, and {pattern!r} is neither ({error})") from error
    return value


class VariableCleanUp(Section):
    """The treatment of a variable's product in ESPO v2, in this order."""

    round_var: Named[Annotated[Integer, Field(ge=0, le=30)]] = Field(
        default={}, description="decimals that are kept, by variable"
    )
    clip_var: Named[tuple[Number | None, Number | None]] = Field(
        default={}, description="the lowest and the highest value, by variable, in its unit"
    )
    limit_var: Named[Literal["potential_radiation"]] = OmitDefault(
        "a limit that depends on day and latitude, by variable; rsds: potential_radiation", {}
    )
    remove_all_attrs_except: Named[Annotated[Names, AfterValidator(_as_patterns)]] = Field(
        default={},
        description="attributes that stay (names or regular expressions), by variable; `global` for the dataset's",
    )
    add_attrs: Annotated[Named[AnyMapping], NothingIsEmpty] = Field(
        default={}, description="attributes by variable; `global` for the dataset's"
    )
    change_attr_prefix: str = Field(
        default="", description="takes the place of `cat:` in names of attributes, if given"
    )
    maybe_unstack_dict: Ignored = None
    to_level: Ignored = None
    variables_and_units: Refused = None
    convert_calendar_kwargs: Refused = None
    missing_by_var: Refused = None
    attrs_to_remove: Unused = None
    common_attrs_only: Unused = None


class DerivedVariable(Section):
    """How a variable is derived from adjusted variables."""

    inputs: Names = Field(
        default=(), alias="from", description="the variables that it is made of; by default the first way that there is"
    )


def _each_by_its_name(value: Any) -> Any:
    """Return a list of names as a mapping of them."""
    return {name: {} for name in value} if isinstance(value, list | tuple) else value


class CleanUp(Section):
    """Section `clean_up`."""

    problems: Names = Field(
        default=(), description="ids of simulations whose variables are masked where tasmin is 100 K or less"
    )
    xscen_clean_up: XscenCleanUp = Field(
        default_factory=XscenCleanUp, description="treatment of the adjusted variables"
    )
    variables: Named[VariableCleanUp] = OmitDefault("treatment of each variable's product, in ESPO v2", {})
    temperatures: Consistency = OmitDefault(
        "how tasmax, tasmin and dtr are made consistent: derived (tasmin is tasmax - dtr), swap (exchanged "
        "where they cross) or dqm-dtr (all three are adjusted, then tasmin is tasmax - dtr); if not given, swap "
        "where tasmax and tasmin are adjusted without dtr, and nothing where there is no pair",
        "derived",
    )
    derive: Annotated[ByFileName[DerivedVariable], BeforeValidator(_each_by_its_name)] = OmitDefault(
        "variables that are derived from adjusted variables, such as [hurs, tdps], or {hurs: {from: [tas, huss, ps]}}",
        {},
    )
    bitround: Annotated[Integer, Field(ge=1, le=23)] | None = OmitDefault("bits of the mantissa that products keep")
    # The hash leaves it out, since it changes no number.
    on_impossible: Literal["fail", "warn"] = Field(
        default="fail",
        exclude=True,
        description=(
            "what impossible values in a product do: fail (no product) or warn (the attribute "
            "`espo_luigi_impossible_values` counts them)"
        ),
    )
    search_data_catalogs: Ignored = None
    save: Refused = None
