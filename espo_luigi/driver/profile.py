"""Options of a scheduler as people write them, in a cluster's profile or in luigi.cfg, as the values that jobs take."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.script import JobOptions

# What a profile says for "nothing".
_NOTHING = ("", "~", "null", "Null", "NULL")
_LISTS = ("exclude",)
_TABLES = ("extra", "environment")


def read_profile(section: str, path: str, options: type[JobOptions]) -> dict[str, Any]:
    """Return the options of a cluster's profile, which a section of luigi.cfg names. Scalars are text, as they stand.

    Raises
    ------
    ConfigurationError
        If the file cannot be read, names an option that does not exist, or has a value of another kind than expected.
    """
    if not path:
        return {}
    where = f"[{section}] profile = {path}"
    try:
        # BaseLoader: an account called 012345 is not the number 5349.
        profile = yaml.load(Path(path).expanduser().read_text(), Loader=yaml.BaseLoader) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if not isinstance(profile, dict):
        raise ConfigurationError(f"{where}: expected options, such as 'account: ctb-somebody', not {profile!r}")
    known = set(options.__dataclass_fields__)
    unknown = set(profile) - known
    if unknown:
        raise ConfigurationError(
            f"{where}: unknown {', '.join(sorted(unknown))}; expected some of: {', '.join(sorted(known))}"
        )
    return as_options({name: value for name, value in profile.items() if value not in _NOTHING}, where)


def as_options(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return options with text for scalars, and a list or a table where that is expected.

    Raises
    ------
    ConfigurationError
        If a value is of another kind; the message begins with `where`.
    """
    return {name: _as_option(name, value, where) for name, value in values.items() if value is not None}


def _as_option(name: str, value: Any, where: str) -> Any:
    if name in _LISTS:
        return _names(value) if isinstance(value, str) else tuple(_text(name, one, where) for one in _list(value))
    if name not in _TABLES:
        return _text(name, value, where)
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where}: {name} is {value!r}, expected names with values, such as NAME: value")
    return {str(key): _text(f"{name}: {key}", one, where) for key, one in value.items()}


def _names(text: str) -> tuple[str, ...]:
    # The comma of n[1-3,7] is part of one name.
    return tuple(name for part in re.split(r",(?![^\[]*\])", text) if (name := part.strip()))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _text(name: str, value: Any, where: str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ConfigurationError(f"{where}: {name} is {value!r}, expected text or a number")
