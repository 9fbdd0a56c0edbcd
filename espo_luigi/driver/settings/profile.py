"""A cluster's profile: how its jobs are submitted and looked after, and what its site allows.

The packaged profiles lie in the repository's ``config/profiles``. A scheduler's section of luigi.cfg names a packaged
profile, or a file of the user's.
"""

from __future__ import annotations

import fnmatch
import functools
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from espo_luigi.errors import ConfigurationError, SizingError, nearest, unknown
from espo_luigi.jobs.dask.jobs import GPU_DIRECTIVES
from espo_luigi.jobs.resources import LISTS, TABLES
from espo_luigi.jobs.settings import AMOUNTS, Site

_PACKAGED = Path(__file__).parent / "profiles"
# The words for null in YAML.
_NULLS = ("~", "null", "Null", "NULL")
_NOTHING = ("", *_NULLS)
_OF_THE_SITE = frozenset({"extends", "scheduler", "limits", "needs", "not_for_workers", "login_hosts", "grace"})
# The settings of a section that are tables.
_TABLES = ("worker_jobs",)


@dataclass(frozen=True)
class Profile:
    """The values of a profile and of the profiles that it extends.

    `options` are options of jobs, `settings` are parameters of the section of luigi.cfg, as text.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    site: Site = field(default_factory=Site)


def _setting(name: str, value: Any, where: str) -> str:
    # A table as its parameter reads it.
    return json.dumps(as_table(name, value, where)) if name in _TABLES else as_text(name, value, where)


def packaged_profiles() -> list[str]:
    """Return the names of the profiles that come with this package."""
    return sorted(path.stem for path in _PACKAGED.glob("*.yml"))


@functools.cache
def read_profile(section: str, name: str, options: frozenset[str], settings: frozenset[str]) -> Profile:
    """Return a profile by its name or path, for a section of luigi.cfg; read once a process, as luigi.cfg is.

    Scalars stay text, as written. `options` are the names of a job's options, `settings` those of the section's other
    parameters.

    Raises
    ------
    ConfigurationError
        If a file cannot be read, is for a different scheduler, has an unknown name, or a value of the wrong kind.
    """
    if not name:
        return Profile()
    where = f"[{section}] profile = {name}"
    content = _read(where, name)
    scheduler = content.get("scheduler", section)
    if scheduler != section:
        raise ConfigurationError(f"{where}: this profile is for engine = {scheduler}; name it in [{scheduler}]")
    known = options | settings | _OF_THE_SITE
    _check_names(where, content, known)
    return Profile(
        options=as_options({key: content[key] for key in content.keys() & options}, where),
        settings={key: _setting(key, content[key], where) for key in content.keys() & settings},
        site=_site(where, content, options),
    )


def login_host_of(host: str, names: Iterable[str]) -> str | None:
    """Return the profile that lists `host` (with or without its domain) as a login host, or None."""
    for name in names:
        where = f"profile {name}"
        patterns = as_texts("login_hosts", _read(where, name).get("login_hosts", []), where)
        if any(fnmatch.fnmatchcase(one, pattern) for pattern in patterns for one in (host, host.partition(".")[0])):
            return name
    return None


def values_of(name: str) -> dict[str, Any]:
    """Return the values of a profile and of the profiles that it extends, as text."""
    return _read(f"profile {name}", name)


def describe(name: str) -> str:
    """Return the same as YAML, so that it could be a profile."""
    return f"{name}\n" + textwrap.indent(yaml.dump(values_of(name), Dumper=_Plain, sort_keys=False), "  ")


class _Plain(yaml.SafeDumper):
    """Writes scalars without quotes: they are all text."""

    yaml_implicit_resolvers: Any = {}


def _read(where: str, name: str) -> dict[str, Any]:
    content = _with_inherited(where, _path_of(name, Path()))
    return {key: _entries(value) for key, value in content.items() if key != "extends" and value not in _NOTHING}


def _entries(value: Any) -> Any:
    """Return a table without its null entries; empty text stays, as `extra` takes it for a flag."""
    return {key: one for key, one in value.items() if one not in _NULLS} if isinstance(value, Mapping) else value


def _path_of(name: str, folder: Path) -> Path:
    return (_PACKAGED / f"{name}.yml" if name in packaged_profiles() else folder / Path(name).expanduser()).absolute()


def _with_inherited(where: str, path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in below:
        raise ConfigurationError(f"{where}: a circle; a profile cannot extend one that extends it")
    content = _load(where, path)
    if (name := content.get("extends", "")) in _NOTHING:
        return content
    parent = _path_of(as_text("extends", name, where), path.parent)
    inherited = _with_inherited(f"{where}: extends {name}", parent, (*below, path.resolve()))
    return inherited | {key: _over(inherited.get(key), value) for key, value in content.items()}


def _over(inherited: Any, value: Any) -> Any:
    both_tables = isinstance(inherited, Mapping) and isinstance(value, Mapping)
    return {**inherited, **value} if both_tables else value


def _load(where: str, path: Path) -> dict[str, Any]:
    try:
        # BaseLoader: an account called 012345 is not the number 5349.
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader) or {}
    except FileNotFoundError as error:
        names, hint = ", ".join(packaged_profiles()), nearest(path.name, packaged_profiles())
        raise ConfigurationError(f"{where}: there is no file {path}; expected one, or a name: {names}{hint}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{where}: expected options, such as 'account: ctb-somebody', not {content!r}")
    return content


def _site(where: str, content: Mapping[str, Any], options: frozenset[str]) -> Site:
    needs = as_table("needs", content.get("needs", {}), where)
    _check_names(f"{where}: needs", needs, options)
    limits = as_table("limits", content.get("limits", {}), where)
    _check_names(f"{where}: limits", limits, AMOUNTS)
    _amounts(where, "limits", content, AMOUNTS.__getitem__)
    forbidden = as_table("not_for_workers", content.get("not_for_workers", {}), where)
    _check_names(f"{where}: not_for_workers", forbidden, options | GPU_DIRECTIVES)
    not_for_workers = {name: as_texts(name, text, where) for name, text in forbidden.items()}
    return Site(where, limits, needs, _amounts(where, "grace", content, lambda _: int), not_for_workers)


def _check_names(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    allowed = sorted(known)
    for name in sorted(set(names) - set(allowed)):
        raise ConfigurationError(f"{where}: {name}: {unknown('key', name, allowed)}")


def _amounts(
    where: str, table: str, content: Mapping[str, Any], kind: Callable[[str], Callable[[str], int]]
) -> dict[str, int]:
    texts = as_table(table, content.get(table, {}), where)
    return {name: parsed(f"{where}: {table}", name, text, kind(name)) for name, text in texts.items()}


def parsed(where: str, name: str, text: str, parse: Callable[[str], Any]) -> Any:
    """Return the value of a text; raises a `ConfigurationError` that begins with `where`."""
    try:
        return parse(text)
    except (ValueError, SizingError) as error:
        raise ConfigurationError(f"{where}: {name} = {text}: {error}") from error


def as_options(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return options with text for scalars, and a list or a table where that is expected."""
    readers: dict[str, Callable[..., Any]] = {**dict.fromkeys(LISTS, as_texts), **dict.fromkeys(TABLES, as_table)}
    given = {name: value for name, value in values.items() if value is not None}
    return {name: readers.get(name, as_text)(name, value, where) for name, value in given.items()}


def as_texts(name: str, value: Any, where: str) -> tuple[str, ...]:
    """Return a list, which may be written as text with commas: ``n[1-3,7],m1``."""
    if isinstance(value, str):
        # The comma of n[1-3,7] is part of a name.
        return tuple(part.strip() for part in re.split(r",(?![^\[]*\])", value) if part.strip())
    return tuple(as_text(name, entry, where) for entry in (value if isinstance(value, (list, tuple)) else [value]))


def as_table(name: str, value: Any, where: str) -> dict[str, str]:
    """Return names with values, as text."""
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{where}: {name} is {value!r}, expected names with values, such as NAME: value")
    return {str(key): as_text(f"{name}: {key}", one, where) for key, one in value.items()}


def as_text(name: str, value: Any, where: str) -> str:
    """Return a scalar as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ConfigurationError(f"{where}: {name} is {value!r}, expected text or a number")
