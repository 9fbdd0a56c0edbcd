"""Types of single values: periods, boxes, paths, and the base class of a section."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema


class Section(BaseModel):
    """A section of the configuration: frozen, and closed to keys that it does not declare."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, serialize_by_alias=True)


class FrozenDict(dict[Any, Any]):
    """A dictionary that refuses changes; `copy()`, `copy.deepcopy`, `|` and pickling give an ordinary one."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("The configuration is frozen. Change a copy: dict(value) or copy.deepcopy(value).")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}

    def __reduce__(self) -> tuple[type[dict], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def freeze(value: Any) -> Any:
    """Return `value` with every mapping in it as a `FrozenDict`."""
    if isinstance(value, Mapping):
        return FrozenDict({str(key): freeze(inner) for key, inner in value.items()})
    if isinstance(value, list | tuple):
        return type(value)(freeze(inner) for inner in value)
    return value


def _nothing_is_empty(value: Any) -> Any:
    return {} if value is None else value


NothingIsEmpty = BeforeValidator(_nothing_is_empty)


@dataclass(frozen=True)
class Known:
    """Annotation of a mapping of arguments: it holds what was given, checked and typed as a `section` would.

    Arguments that were not given stay absent, so that defaults are those of the function that gets the mapping; an
    argument without a value counts as not given. What is no mapping is validated as `otherwise`, where there is one.
    """

    section: type[Section]
    otherwise: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler(source) if self.otherwise is None else handler.generate_schema(self.otherwise)
        plain = core_schema.plain_serializer_function_ser_schema(copy.deepcopy)
        return core_schema.no_info_wrap_validator_function(self._checked, inner, serialization=plain)

    def _checked(self, value: Any, validate: Callable[[Any], Any]) -> Any:
        if self.otherwise is not None and not isinstance(value, Mapping):
            return validate(value)
        if self.otherwise is None and (value is None or value == {}):
            return FrozenDict()
        given = self.section.model_validate(value)
        return freeze(given.model_dump(exclude_unset=True, exclude_none=True))


class NoEffect(Enum):
    """Mark of a key of ESPO-G's that has no effect here, by what is done about it."""

    SILENT = "nothing"
    WARN = "a warning: in ESPO-G the key changes attributes"
    REFUSE = "an error: in ESPO-G the key changes numbers"


Ignored = Annotated[Any, Field(exclude=True), NoEffect.SILENT]
Unused = Annotated[Any, Field(exclude=True), NoEffect.WARN]
Refused = Annotated[Any, Field(exclude=True), NoEffect.REFUSE]

Frozen = AfterValidator(freeze)
Free = Annotated[dict[str, Any], NothingIsEmpty, Frozen]


def _as_years(value: Any) -> tuple[str, str]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("expected two years, [first, last]")
    if not all(isinstance(year, str | int) and re.fullmatch(r"\d{4}", str(year)) for year in value):
        raise ValueError("expected two years of four digits, [first, last]")
    first, last = str(value[0]), str(value[1])
    if first > last:
        raise ValueError(f"expected [first, last] in this order, and {first} is after {last}")
    return first, last


def _as_period(value: Any) -> Any:
    """One period, also when written as a list of one period."""
    nested = isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], list | tuple)
    return _as_years(value[0] if nested else value)


def _as_periods(value: Any) -> Any:
    """One period as a pair of years; several as a tuple of pairs."""
    if not isinstance(value, list | tuple) or len(value) < 2 or not isinstance(value[0], list | tuple):
        return _as_period(value)
    return tuple(_as_years(period) for period in value)


Period = Annotated[tuple[str, str], BeforeValidator(_as_period)]
Periods = Annotated[tuple[str, str] | tuple[tuple[str, str], ...], BeforeValidator(_as_periods)]


def _as_bounds(value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("expected two numbers, [lowest, highest]")
    try:
        low, high = (float(bound) for bound in value)
    except (TypeError, ValueError) as error:
        raise ValueError("expected two numbers, [lowest, highest]") from error
    if not low < high:
        raise ValueError(f"expected [lowest, highest], and {low:g} is not below {high:g}")
    return low, high


def _as_longitudes(value: Any) -> tuple[float, float]:
    low, high = _as_bounds(value)
    if low < -360 or high > 360 or high - low > 360:
        raise ValueError("expected degrees east within -180..180 or 0..360")
    return low, high


def _as_latitudes(value: Any) -> tuple[float, float]:
    low, high = _as_bounds(value)
    if low < -90 or high > 90:
        raise ValueError("expected degrees north within -90..90")
    return low, high


Longitudes = Annotated[tuple[float, float], BeforeValidator(_as_longitudes)]
Latitudes = Annotated[tuple[float, float], BeforeValidator(_as_latitudes)]


def _as_chunk(value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"-1|[1-9]\d*", str(value)):
        raise ValueError("expected a number of points above 0, or -1 for the whole dimension")
    return int(value)


Chunk = Annotated[int, BeforeValidator(_as_chunk)]
Chunks = Annotated[dict[str, Chunk], NothingIsEmpty, Frozen]


def expand(text: str) -> str:
    """Return `text` with `~` and environment variables replaced.

    Raises
    ------
    ValueError
        An environment variable that is not set.
    """
    expanded = os.path.expandvars(os.path.expanduser(text))
    left = re.search(r"\$(\w+|\{[^}]*\})", expanded)
    if left:
        raise ValueError(f"the environment variable {left.group(1).strip('{}')} is not set; set it, or write the path")
    return expanded


def find_file(text: str, folders: Iterable[Path]) -> Path:
    """Return the absolute path of `text`: from the working folder, or else from the first folder that holds it."""
    path = Path(expand(text))
    candidates = [Path.cwd() / path, *(folder / path for folder in folders)]
    found = next((candidate for candidate in candidates if candidate.exists()), candidates[0])
    return Path(os.path.abspath(found))


def _as_path(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ValueError("expected the path of a file or a folder")
    return find_file(str(value), (info.context or {}).get("folders", ()))


def _as_output_path(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise ValueError("expected the path of a folder")
    return find_file(str(value), ())


InputPath = Annotated[Path, BeforeValidator(_as_path)]
OutputPath = Annotated[Path, BeforeValidator(_as_output_path)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | os.PathLike) else [] if value is None else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]
InputPaths = Annotated[tuple[InputPath, ...], BeforeValidator(_as_list), Field(min_length=1)]
