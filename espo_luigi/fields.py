"""Types of single values, checked; the base class of a section; templates of paths; classes that packages register."""

from __future__ import annotations

import math
import os
import re
import string
from collections.abc import Iterable, Mapping
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationInfo,
    WrapSerializer,
    model_serializer,
    model_validator,
)

from espo_luigi.errors import ConfigurationError, DataError, ParameterError, nearest
from espo_luigi.science.periods import each_period
from espo_luigi.science.quantities import Quantity

Registered = TypeVar("Registered")
_FORBIDDEN = re.compile(r"[+/\\\x00-\x1f\x7f]")


def check_wildcard(name: str, value: str) -> None:
    """Raise `ParameterError` if `value` cannot be a part of a file name."""
    if not value or _FORBIDDEN.search(value) or value.strip(".") == "":
        raise ParameterError(
            f"{name} = {value!r} cannot be part of a file name; "
            "expected text without '+', '/', '\\' or control characters"
        )


def render_path(template: str, fields: Mapping[str, str]) -> Path:
    """Return the path that a template names once its wildcards are `fields`.

    A template is a path such as ``{tmpdir}/{sim_id}+{piece}+regridded.zarr``. Because ``+`` never occurs inside a part,
    a path always says which task makes it.
    """
    return Path(template.format_map(fields))


def filled(value: Any, fields: Mapping[Any, Any]) -> Any:
    """Return a text with the values of fields in braces; unknown fields and other values stay."""
    if not isinstance(value, str):
        return value
    return re.sub(r"\{(\w+)\}", lambda match: str(fields.get(match[1], match[0])), value)


def match_path(template: str, constants: Mapping[str, str], path: Path) -> dict[str, str] | None:
    """Return the wildcards that turn `template` into `path`, or None; `constants` are the fields already known."""
    pattern = ""
    seen: set[str] = set()
    for literal, name, _, _ in string.Formatter().parse(template):
        pattern += re.escape(literal)
        if name is None:
            continue
        if name in constants:
            pattern += re.escape(constants[name])
        elif name in seen:
            pattern += f"(?P={name})"
        else:
            pattern += f"(?P<{name}>[^+/]+)"
            seen.add(name)
    match = re.fullmatch(pattern, str(path))
    return None if match is None else match.groupdict()


def registered(
    base: type[Registered], name: str, ours: Mapping[str, str], aliases: Iterable[str] = ()
) -> type[Registered]:
    """Return the subclass of `base` with this name: of `ours` (name → MODULE:CLASS), or of an installed package.

    Packages register theirs in the entry-point group named after `base`, such as `espo_luigi.methods`. An error lists
    the `aliases`, too.

    Raises
    ------
    ConfigurationError
        If there is no such name, its module cannot be imported, or it is no subclass.
    """
    what = base.__name__.lower()
    group = f"espo_luigi.{what}s"
    # Ours need no look through all installed packages.
    installed = () if name in ours else metadata.entry_points(group=group)
    places = {**{point.name: point.value for point in installed}, **ours}
    if name not in places:
        known = [*aliases, *sorted(places)]
        raise ConfigurationError(
            f"{what} is {name!r}; expected {', '.join(known)}, or a {what} that an installed package registers under "
            f"the entry-point group {group}{nearest(name, known)}"
        )
    try:
        found = metadata.EntryPoint(name, places[name], group).load()
    except Exception as error:  # whatever the module of others raises
        raise ConfigurationError(
            f"{what} {name}: {places[name]} cannot be imported ({type(error).__name__}: {error}). Install what it "
            f"needs, or choose another {what}."
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigurationError(
            f"{what} {name}: {places[name]} is {found!r}, expected a subclass of {base.__module__}.{base.__name__}. "
            "Correct the entry point of its package."
        )
    return found


def existing_parent(folder: Path) -> Path:
    """Return `folder`, or the nearest folder above it that exists."""
    return next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())


class Section(BaseModel):
    """A section of the configuration: frozen, and closed to keys that it does not declare."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, serialize_by_alias=True, allow_inf_nan=False
    )

    def arguments(self, *without: str) -> dict[str, Any]:
        """Return it as keyword arguments: all that has a value, in ordinary dictionaries and tuples."""
        return self.model_dump(exclude_none=True, exclude=set(without))


class Arguments(Section):
    """Keyword arguments of a function: the function's defaults replace arguments that are absent or null."""

    @model_serializer(mode="wrap")
    def _dumped(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        given = {
            field.alias or name for name, field in self.__pydantic_fields__.items() if name in self.model_fields_set
        }
        return {key: value for key, value in dump(self).items() if key in given and value is not None}


class Switch(Arguments):
    """Arguments of something that `{}` leaves out, whatever else is required."""

    @model_validator(mode="wrap")
    @classmethod
    def _nothing(cls, value: Any, validate: ModelWrapValidatorHandler[Self]) -> Self:
        return cls.model_construct() if value == {} else validate(value)


NothingIsEmpty = BeforeValidator(lambda value: {} if value is None else value)


def single_or_mapping(kind: type, single: Any, section: type[Section], expected: str) -> BeforeValidator:
    """Validate a mapping as `section`, and a value of type `kind` as `single`; avoids the branches of a union."""
    adapter = TypeAdapter(single)

    def validated(value: Any) -> Any:
        if isinstance(value, Mapping | section):
            return section.model_validate(value)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(expected)
        return adapter.validate_python(value)

    return BeforeValidator(validated)


def OmitDefault(description: str, default: Any = None, **options: Any) -> Any:
    """Return the field of a key that leaves no trace in dumps, and so in hashes, where it has its default."""
    return Field(default=default, exclude_if=lambda value: value == default, description=description, **options)


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


# Without the check, `true` would count as 1.
Integer = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean)]

Value = TypeVar("Value")
# A mapping whose keys are the user's own; nobody changes it.
Named = Annotated[
    Mapping[str, Value],
    AfterValidator(MappingProxyType),
    WrapSerializer(lambda value, dump: dump(dict(value))),
]
AnyMapping = Annotated[Named[Any], NothingIsEmpty]


def file_name_part(name: str) -> str:
    """Return the name if it can be part of a file name, else raise ValueError."""
    try:
        check_wildcard("the name", name)
    except ParameterError as error:
        raise ValueError(str(error)) from error
    if name != name.strip():
        raise ValueError(f"the name {name!r} begins or ends with a space; expected none there")
    return name


def _with_names_of_files(value: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in value:
        file_name_part(name)
    return value


# A mapping whose keys are parts of file names.
ByFileName = Annotated[Named[Value], AfterValidator(_with_names_of_files)]


def _as_years(value: Any) -> tuple[str, str]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError("expected two years, [first, last]")
    if not all(isinstance(year, str | int) and re.fullmatch(r"[0-9]{4}", str(year)) for year in value):
        raise ValueError("expected two years of four digits, [first, last]")
    first, last = str(value[0]), str(value[1])
    if first > last:
        raise ValueError(f"expected [first, last] in this order, and {first} is after {last}")
    return first, last


def _as_period(value: Any) -> Any:
    """A period, also when written as a list of a single period."""
    periods = each_period(value)
    return _as_years(periods[0] if len(periods) == 1 else value)


def _as_periods(value: Any) -> Any:
    """A single period as a pair of years; several as a tuple of pairs."""
    periods = tuple(_as_years(period) for period in each_period(value))
    for (first, last), (start, end) in pairwise(periods):
        if start <= last:
            raise ValueError(
                f"expected periods in order of time and without overlap, and {start}-{end} follows {first}-{last}"
            )
    return periods if len(periods) > 1 else periods[0]


Period = Annotated[tuple[str, str], BeforeValidator(_as_period)]
Periods = Annotated[tuple[str, str] | tuple[tuple[str, str], ...], BeforeValidator(_as_periods)]


def _is_finite(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _as_bounds(value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2 or not all(map(_is_finite, value)):
        raise ValueError("expected two numbers, [lowest, highest]")
    low, high = (float(bound) for bound in value)
    if not low < high:
        raise ValueError(f"expected [lowest, highest], and {low:g} is not below {high:g}")
    return low, high


def _as_longitudes(value: Any) -> tuple[float, float]:
    low, high = _as_bounds(value)
    if not any(lowest <= low and high <= lowest + 360 for lowest in (-180, 0)):
        raise ValueError("expected degrees east within -180..180 or 0..360, both bounds in the same of the two")
    return low, high


def _as_latitudes(value: Any) -> tuple[float, float]:
    low, high = _as_bounds(value)
    if low < -90 or high > 90:
        raise ValueError("expected degrees north within -90..90")
    return low, high


Longitudes = Annotated[tuple[float, float], BeforeValidator(_as_longitudes)]
Latitudes = Annotated[tuple[float, float], BeforeValidator(_as_latitudes)]


def _as_chunk(value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"-1|[1-9][0-9]*", str(value)):
        raise ValueError("expected a number of points above 0, or -1 for the whole dimension")
    return int(value)


Chunk = Annotated[int, BeforeValidator(_as_chunk)]
Chunks = Annotated[Named[Chunk], NothingIsEmpty]


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
    """Return the absolute path of `text`: from the working folder, or else from the first folder that holds it.

    Raises
    ------
    ValueError
        An environment variable that is not set, or a path that the system does not take.
    """
    return find_in(text, (Path.cwd(), *folders))


def find_in(text: str, folders: Iterable[Path]) -> Path:
    """Return what `find_file` does, without the working folder: if no folder holds the file, it is in the first."""
    path = Path(expand(text))
    candidates = [folder / path for folder in folders]
    try:
        chosen = next((candidate for candidate in candidates if candidate.exists()), candidates[0])
    except OSError as error:  # such as a name that is too long
        raise ValueError(
            f"the path cannot be looked for: {error.strerror}; expected a path that the system takes"
        ) from error
    return Path(os.path.abspath(chosen))


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


# Asking the registry of units costs seconds; nearly all configurations have only these units.
# By what converts to each other, precipitation as depth or mass through the density of water.
_CONVERTIBLE = (
    ("K", "degC", "C"),
    ("mm d-1", "mm/d", "mm day-1", "mm/day", "kg m-2 s-1", "kg m-2 d-1", "m s-1", "km h-1"),
    ("mm", "kg m-2", "m"),
    ("1", "%", "kg kg-1", "g kg-1"),
    ("Pa", "hPa"),
    ("W m-2",),
)
FAMILIAR_UNITS = tuple(unit for units in _CONVERTIBLE for unit in units)


def _known_unit(text: str) -> str:
    """Raise ValueError unless `text` is a unit."""
    if text not in FAMILIAR_UNITS:
        from espo_luigi.science.units import threshold_in

        try:
            threshold_in(f"1 {text}", text)
        except DataError:
            near = nearest(text, FAMILIAR_UNITS)
            raise ValueError(f"{text!r} is not a unit; expected CF units such as K or mm d-1{near}") from None
    return text


def _as_threshold(value: Any) -> Quantity:
    quantity = Quantity(value)
    _known_unit(quantity.unit)
    return quantity


def _as_positive_threshold(value: Any) -> Quantity:
    quantity = _as_threshold(value)
    if quantity.value <= 0:
        raise ValueError("expected a number above 0, a space and a unit, such as 0.01 mm d-1")
    return quantity


Unit = Annotated[str, AfterValidator(_known_unit)]
Threshold = Annotated[Quantity, PlainValidator(_as_threshold)]
PositiveThreshold = Annotated[Quantity, PlainValidator(_as_positive_threshold)]


def converts(unit: str, units: str) -> bool:
    """Whether a number in a unit can be compared with a series in `units`."""
    if unit in FAMILIAR_UNITS and units in FAMILIAR_UNITS:
        return any(unit in group and units in group for group in _CONVERTIBLE)
    from espo_luigi.science.units import threshold_in

    try:
        threshold_in(f"1 {unit}", units)
    except DataError:
        return False
    return True


def is_total(unit: str, units: str) -> bool:
    """Whether a day's totals in a unit (mm) are rates in `units` (mm d-1)."""
    from espo_luigi.science.units import rate_of_totals

    return bool(rate_of_totals(unit, units))


def check_threshold(path: str, text: str, units: str | None) -> None:
    """Raise `ConfigurationError` unless the text at a key is a number with a unit that converts to a variable's."""
    try:
        if not units or converts(Quantity(text).unit, units):
            return
    except ValueError:
        pass
    raise ConfigurationError(
        f"`{path}`: got {text!r}, expected a number and a unit that converts to {units}, the variable's."
    )


# As pandas writes what xarray infers; `fx` is what catalogues have for fields without time.
_FREQUENCIES = ("D", "h", "min", "s", "W", "MS", "ME", "M", "QS", "QE", "Q", "YS", "YE", "Y", "AS", "A", "fx")
_IN_WORDS = {
    "d": "D", "day": "D", "daily": "D", "mon": "MS", "month": "MS", "monthly": "MS", "yr": "YS", "year": "YS",
    "yearly": "YS", "annual": "YS", "hr": "h", "hour": "h", "hourly": "h",
}  # fmt: skip
_ANCHORED = re.compile(
    r"([1-9]\d*)?(D|h|H|min|s|MS|ME|M|"
    r"W(-(MON|TUE|WED|THU|FRI|SAT|SUN))?|"
    r"(QS|QE|Q|YS|YE|Y|AS|A)(-(JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC))?)|fx"
)


def _known_frequency(text: str) -> str:
    if not _ANCHORED.fullmatch(text):
        near = nearest(_IN_WORDS.get(text.lower(), text), _FREQUENCIES)
        raise ValueError(f"expected a frequency as pandas writes it, such as D, 6h, MS or YS-JAN{near}")
    return text


Frequency = Annotated[str, AfterValidator(_known_frequency)]
