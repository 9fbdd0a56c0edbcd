"""Sections `biasadjust` and `clean_up`: how variables are trained, adjusted and cleaned up."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

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
from pydantic_core import ErrorDetails, InitErrorDetails
from pydantic_core.core_schema import ErrorType

from espo_luigi.config.messages import keys_beside
from espo_luigi.errors import ConfigurationError, enumerated, nearest, unknown
from espo_luigi.fields import (
    AnyMapping,
    ByFileName,
    Integer,
    Named,
    Names,
    NothingIsEmpty,
    Number,
    OmitDefault,
    Section,
    file_name_part,
)
from espo_luigi.methods.base import METHODS, TOGETHER, Engine, Method, method_named, problem
from espo_luigi.methods.xsdba import Adjusting, Training
from espo_luigi.science.derivations import Consistency


def _of_the_method(section: str) -> WrapValidator:
    """Validate a section by the model of the variable's method; xsdba's, without a method."""

    def validated(value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        if "method" not in info.data:  # which is no text
            return value
        if (name := info.data["method"]) is None:
            return validate(value)
        return validated_by(getattr(method_named(name), section), name, value, info)

    return WrapValidator(validated)


def validated_by(model: type[Section], method: str, value: Any, info: ValidationInfo) -> Section:
    """Return the arguments of a method as its model; errors are about the arguments."""
    try:
        return model.model_validate({} if value is None else value, context=info.context)
    except ValidationError as error:
        lines = [_line(one, model, method) for one in error.errors()]
        raise ValidationError.from_exception_data(model.__name__, lines) from None


def _line(one: ErrorDetails, model: type[Section], method: str) -> InitErrorDetails:
    """Return an error of a method's arguments, which names those that the method takes if it is an unknown key."""
    if one["type"] == "extra_forbidden":
        key, keys = str(one["loc"][-1]), keys_beside(model, one["loc"])
        foreign = f"the method {method} does not take it; it takes {', '.join(keys)}{nearest(key, keys, cutoff=0.8)}"
        return problem(unknown("key", key, keys) if one["loc"][1:] else foreign, one["loc"], one["input"])
    if one["type"] not in get_args(ErrorType):  # one of a package's own
        return problem(one["msg"], one["loc"], one["input"])
    return InitErrorDetails(type=one["type"], loc=one["loc"], input=one["input"], ctx=one.get("ctx", {}))


# What a variable's section has for its method, and a group's has not.
_OF_ONE = ("method", "xclim_train_args", "xclim_adjust_args")


def _wrong_method(given: Mapping[str, Any]) -> str:
    """Return why the method cannot be, or cannot adjust what is given: its arguments need no look then."""
    sections = [one for one in map(given.get, ("training_args", "adjusting_args")) if isinstance(one, Mapping)]
    if (name := given.get("method")) is None:
        name = next((one["method"] for one in sections if one.get("method") in METHODS), METHODS[0])
    try:
        together = method_named(name).variables_together
    except ConfigurationError as error:
        return str(error)
    if not together:
        several = f"expected a method of several ({', '.join(TOGETHER)}), or no `variables`"
        return f"the method {name} adjusts each variable by itself; {several}" if given.get("variables") else ""
    if not given.get("variables"):
        expected = "expected `variables: [NAME, NAME]`, under a name of the group's own"
        return f"the method {name} adjusts several variables together; {expected}"
    if own := [key for one in sections for key in one if key in _OF_ONE and name in TOGETHER]:
        told = f"under this key are a single variable's settings, too ({', '.join(own)})"
        return f"{told}; expected another name of the group, and `null` here"
    return ""


class VariableAdjustment(Section):
    """How one variable is adjusted, or several together."""

    method: str | None = OmitDefault(
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
    def _of_a_method_that_suits(cls, value: Any) -> Any:
        """Write a method of xsdba where ESPO-G's files have it: both ways are the same configuration."""
        name = value.get("method") if isinstance(value, Mapping) else None
        if isinstance(value, Mapping) and isinstance(name, str | None) and (told := _wrong_method(value)):
            at = "variables" if name is None else "method"
            raise ValidationError.from_exception_data(cls.__name__, [problem(told, (at,), value[at])])
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
        if self.method is not None and self.engine == "xsdba":
            raise ValueError(f"the method {self.name} is never xsdba's: leave `engine: xsdba` out, or `method`")
        for name in self.variables:
            file_name_part(name)
        listed, names = list[InitErrorDetails](), list(self.variables)
        if len(names) == 1:
            told = f"{names[0]} alone is no group; expected two variables or more"
            listed.append(problem(told, ("variables",), names))
        for name in getattr(self.training_args, "by_variable", ()) if names else ():
            if name not in names:
                told = f"not adjusted here; expected names of `variables`: {', '.join(names)}{nearest(name, names)}"
                listed.append(problem(told, ("training_args", "by_variable", name), name))
        if listed := [*listed, *self.chosen.problems(self.training_args, self.adjusting_args)]:
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

    @property
    def in_words(self) -> str:
        """The method with its sample, quantiles, trend and windows of years, for the attributes of products."""
        training, adjusting = self.training_args.arguments(), self.adjusting_args.arguments()
        given, further = training.get("xclim_train_args", {}), adjusting.get("xclim_adjust_args", {})
        short = self.name.removeprefix("dqm.")
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", short).lower() if short in METHODS else self.name
        quantiles = given.get("nquantiles", training.get("nquantiles"))
        details = [
            _sample(training.get("group")),
            f"{len(quantiles) if isinstance(quantiles, list) else quantiles} quantiles" if quantiles else "",
        ]
        detrend = further.get("detrend") or (("PolyDetrend",) if short == METHODS[0] else ())
        details += [_TRENDS.get(name, name) for name in detrend]
        if years := adjusting.get("moving_yearly_window"):
            details.append(f"windows of {years['window']} years")
        return f"{words} ({', '.join(filter(None, details))})" if any(details) else words


_TRENDS = {"LoessDetrend": "LOESS trend", "PolyDetrend": "polynomial trend", "NoDetrend": "no trend"}


def _sample(group: Any) -> str:
    """Return the days that are a sample, in words; "" for all days."""
    name, window = (group.get("group"), group.get("window", 1)) if isinstance(group, Mapping) else (group, 1)
    if name == "time.dayofyear":
        return f"{window}-day window around each day of the year"
    if name in ("5D", "15D"):
        return f"{max(5 * window, int(name[:-1]))}-day window around each {name[:-1]} days"
    if name in ("time.month", "time.season"):
        return f"each {name.removeprefix('time.')}"
    return "all days together" if name == "time" else ""


class BiasAdjust(Section):
    """Section `biasadjust`."""

    variables: Annotated[ByFileName[VariableAdjustment], Field(min_length=1)] = Field(
        description="the variables that are adjusted, or groups of variables"
    )

    @model_validator(mode="after")
    def _fit(self) -> BiasAdjust:
        times, errors = Counter(self.adjusted), list[InitErrorDetails]()
        for key, how in self.variables.items():
            if twice := ", ".join(name for name in how.variables if times[name] > 1):
                told = f"{twice}: adjusted twice; expected each variable in one place, and `null` elsewhere"
                errors.append(problem(told, ("variables", key, "variables"), list(how.variables)))
            known = how.chosen.variables
            if foreign := ", ".join(name for name in how.variables or (key,) if known and name not in known):
                told = f"the method {how.name} has no settings for {foreign}; it has: {', '.join(known)}"
                errors.append(problem(told, ("variables", key, "method"), how.name))
        if errors:
            raise ValidationError.from_exception_data(type(self).__name__, errors)
        return self

    @property
    def adjusted(self) -> tuple[str, ...]:
        """The variables that are adjusted, alone or in a group."""
        return tuple(self.variables_of(self.variables))

    @property
    def in_words(self) -> str:
        """The methods, each with the variables that it adjusts if there are several methods, or groups."""
        ways = defaultdict[str, list[str]](list)
        for name, how in self.variables.items():
            together = how.variables and f"{enumerated(how.variables)} together"
            ways[how.in_words].append(together or name)
        if len(ways) == 1 and not self.together:
            return next(iter(ways))
        return ", and by ".join(f"{way} of {enumerated(names)}" for way, names in ways.items())

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


class _CleanUpOfVariables(Section):
    """What both workflows clean up, and keys of xscen's `clean_up` without effect here."""

    round_var: Named[Annotated[Integer, Field(ge=0, le=30)]] = Field(
        default={}, description="decimals that are kept, by variable"
    )
    limit_var: Named[Literal["potential_radiation"]] = OmitDefault(
        "a limit that depends on day and latitude, by variable; rsds: potential_radiation", {}
    )


class XscenCleanUp(_CleanUpOfVariables):
    """The treatment of the adjusted variables."""

    to_level: str = Field(default="cleaned_up", description="the attribute cat:processing_level")
    add_attrs: Annotated[Named[AnyMapping], NothingIsEmpty] = Field(
        default={},
        description=(
            "attributes by variable; `global` for the dataset. Texts may hold {reference}, {period}, {first}, {last}, "
            "{adjustment} (the methods), {adjusted} (the variables), {institution}, {project} and {version}"
        ),
    )


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


class VariableCleanUp(_CleanUpOfVariables):
    """The treatment of a variable's product in ESPO v2: rounding, clipping, the limit, and then attributes."""

    clip_var: Named[tuple[Number | None, Number | None]] = Field(
        default={}, description="the lowest and the highest value, by variable, in its unit"
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


class DerivedVariable(Section):
    """How a variable is derived from adjusted variables."""

    inputs: Names = Field(
        default=(), alias="from", description="the variables that it is made of; by default the first way that there is"
    )


# A list of names stands for a mapping of them.
_EACH = BeforeValidator(lambda value: {name: {} for name in value} if isinstance(value, list | tuple) else value)


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
    derive: Annotated[ByFileName[DerivedVariable], _EACH] = OmitDefault(
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
