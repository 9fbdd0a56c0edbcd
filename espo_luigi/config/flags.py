"""Arguments of the health checks: xclim's data flags, CF checks and checks of missing values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, create_model

from espo_luigi.config.fields import Arguments, Free, Named, NothingIsEmpty, Whole
from espo_luigi.config.quantities import Frequency, Threshold
from espo_luigi.config.signatures import Described, decorated, definitions, parameters, section
from espo_luigi.errors import nearest
from espo_luigi.science.choices import FLAGS, Flag, MissingMethod

_ARGUMENTS: Described = {
    "thresh": (Threshold, "the threshold, with its unit; xclim's by default"),
    "lower": (Threshold, "the lower bound, with its unit; xclim's by default"),
    "upper": (Threshold, "the upper bound, with its unit; xclim's by default"),
    "n": (Annotated[Whole, Field(ge=1)], "the number of days, or of standard deviations"),
    "window": (Annotated[Whole, Field(ge=1)], "the window of days"),
    "op": (Literal[">", "gt", "<", "lt", ">=", "ge", "<=", "le", "==", "eq", "!=", "ne"], "the comparison"),
}


def _flags() -> Iterator[tuple[str, Any]]:
    found = decorated(definitions("xclim.core.dataflags"), "register_methods")
    for name in [*(name for name in FLAGS if name in found), *sorted(found.keys() - FLAGS.keys())]:
        # What is before the star is data.
        keys = {one.arg for one in found[name].args.kwonlyargs}
        arguments = {key: needed for key, needed in parameters(found[name]).items() if key in keys}
        flag, description = section(name, arguments, _ARGUMENTS), FLAGS.get(name, Flag("as in xclim")).title
        if any(arguments.values()):
            yield name, (flag | None, Field(default=None, description=description))
        else:
            yield name, (Annotated[flag, NothingIsEmpty], Field(default_factory=flag, description=description))


if TYPE_CHECKING:  # mypy does not read xclim's signatures
    Flags = Arguments
else:
    Flags = create_model("Flags", __base__=Arguments, __doc__="The data flags that xclim has.", **dict(_flags()))


def _as_dims(value: Any) -> Any:
    if not isinstance(value, str) and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
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

    cfcheck_from_name: Free = Field(default={}, description="attributes as the variable's name asks for")
    check_valid: Free = Field(default={}, description="one attribute's value: key and expected")


def _known_methods(value: Any) -> Any:
    if not isinstance(value, str | list | tuple | Mapping):
        raise ValueError("expected text, a list or a mapping")
    known = get_args(MissingMethod)
    for name in [value] if isinstance(value, str) else value:
        if name not in known:
            raise ValueError(f"there is no method {name!r}; expected {', '.join(known)}{nearest(str(name), known)}")
    return value


Missing = Annotated[str | tuple[str, ...] | Named[Any], BeforeValidator(_known_methods)]
FlagsByVariable = Annotated[Named[Annotated[Flags, NothingIsEmpty]], NothingIsEmpty]
CfChecksByVariable = Annotated[Named[Annotated[CfChecks, NothingIsEmpty]], NothingIsEmpty]
