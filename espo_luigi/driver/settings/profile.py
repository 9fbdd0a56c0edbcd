"""A cluster's profile: how its jobs are submitted and looked after, and what its site allows.

The packaged profiles lie in the repository's ``config/profiles``. A scheduler's section of luigi.cfg names a packaged
profile, or a file of the user's. Only drivers import this module: `jobs/` and `espo_luigi.job` import no pydantic.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import luigi
import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, ValidationError, create_model

from espo_luigi.driver.settings.espo import AMOUNTS, Profile, Settings
from espo_luigi.errors import ConfigurationError, SizingError, nearest, unknown
from espo_luigi.files import read_text
from espo_luigi.jobs.dask import GPU_DIRECTIVES
from espo_luigi.jobs.resources import LISTS, TABLES, JobOptions, parse_memory, parse_time
from espo_luigi.jobs.settings import Site

PROFILES = Path(__file__).parent / "profiles"
# The words for null in YAML.
_NULLS = ("~", "null", "Null", "NULL")
_NOTHING = ("", *_NULLS)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError("expected text or a number")


def _as_texts(value: Any) -> tuple[str, ...]:
    """Return a list, which may be written as text with commas: ``n[1-3,7],m1``."""
    if isinstance(value, str):
        # The comma of n[1-3,7] is part of a name.
        return tuple(part.strip() for part in re.split(r",(?![^\[]*\])", value) if part.strip())
    return tuple(map(_as_text, value if isinstance(value, (list, tuple)) else [value]))


def reads(parse: Callable[[str], Any]) -> BeforeValidator:
    """Return the validator of a text or a number that `parse` reads."""

    def read(value: Any) -> Any:
        try:
            return parse(_as_text(value))
        except SizingError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(read)


Text = Annotated[str, reads(str)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_as_texts)]
Memory = Annotated[int, reads(parse_memory)]
Minutes = Annotated[int, reads(parse_time)]
Table = dict[str, Text]
# What is expected, by pydantic's type of error.
_A_NUMBER, _A_TABLE = "expected a whole number, such as 4", "expected names with values, such as NAME: value"
_EXPECTED = dict.fromkeys(("int_parsing", "int_type", "int_from_float", "greater_than_equal"), _A_NUMBER)
_EXPECTED |= dict.fromkeys(("dict_type", "model_type"), _A_TABLE)


class Strict(BaseModel):
    """A table in which an unknown name is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Limits(Strict):
    cpus: NonNegativeInt = 0
    jobs: NonNegativeInt = 0
    memory: Memory = 0
    steps: NonNegativeInt = 0
    time: Minutes = 0


class OfTheSite(Strict):
    """The keys of a profile that are no options."""

    extends: Text = Field(
        default="",
        description="a profile to inherit from: a name, or a path from the file's folder. Tables are merged; "
        "`licenses: ~` drops a value, `needs: {account: ~}` an entry",
    )
    scheduler: Text = Field(default="", description="the engine that it is for (`slurm`, `sge`); others refuse it")
    limits: _Limits = Field(
        default=_Limits(),
        description="the most `memory`, `cpus`, `time` and `steps` of a job, and `jobs` at once. More is refused "
        "before anything is submitted; retries stop there. Without `max_jobs`, `jobs` takes its place",
    )
    needs: Table = Field(
        default={},
        description="options that each user has to give, with an example. `SBATCH_ACCOUNT` and the like count",
    )
    login_hosts: Texts = Field(
        default=(),
        description="machines where `engine = local` is refused, unless `[espo] allow_login_host = true`",
    )
    grace: dict[str, NonNegativeInt] = Field(
        default={}, description="seconds between SIGTERM and the end of a preempted job, by pattern of partition"
    )
    not_for_workers: dict[str, Texts] = Field(
        default={}, description='values that jobs of Dask\'s workers may not have: `{partition: "gpu*,hpc*"}`'
    )


def valid(model: type[BaseModel], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the values that were given, read by `model`. Raises a `ConfigurationError` that names `where` and key."""
    try:
        read = model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        *path, name = map(str, first["loc"])
        place, got = ": ".join([where, *path]), first["input"]
        if first["type"] == "extra_forbidden":
            known = _Limits if path == ["limits"] else model
            raise ConfigurationError(f"{place}: {name}: {unknown('key', name, sorted(known.model_fields))}") from None
        why = _EXPECTED.get(first["type"], first["msg"].removeprefix("Value error, "))
        raise ConfigurationError(f"{place}: {name} = {got if isinstance(got, str) else repr(got)}: {why}") from None
    return {name: getattr(read, name) for name in read.model_fields_set}


def layered(model: type[BaseModel], layers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the values of all layers, by their places; a later layer overrides an earlier one, name by name."""
    return {name: value for where, layer in layers.items() for name, value in valid(model, layer, where).items()}


def _options_model(options: type[JobOptions], base: type[Strict] = Strict) -> type[Strict]:
    """Return the model of a table that may hold a scheduler's options, besides what `base` has."""
    names = options.__dataclass_fields__
    fields: Any = {name: (Texts if name in LISTS else Table if name in TABLES else Text, None) for name in names}
    return create_model(options.__name__, __base__=base, **fields)


# Made once: a model takes milliseconds.
options_model: Callable[..., type[Strict]] = functools.cache(_options_model)


def _kind(name: str, parameter: luigi.Parameter[Any]) -> Any:
    """Return the kind of a setting's value: what its parameter reads; an amount stays text."""
    if isinstance(parameter, luigi.DictParameter):
        return dict[str, Any]

    def read(text: str) -> Any:
        if name in AMOUNTS:
            AMOUNTS[name](text)
        return parameter.parse(text)

    return Annotated[Any, reads(read)]


def packaged_profiles() -> list[str]:
    """Return the names of the profiles that come with this package."""
    return sorted(path.stem for path in PROFILES.glob("*.yml"))


def read_profile(section: type[Settings], name: str, options: type[JobOptions]) -> Profile:
    """Return a profile by its name or path, for a section of luigi.cfg.

    Raise `ConfigurationError` if a file cannot be read, is for a different scheduler, or has a wrong name or value.
    """
    where = f"[{section.__name__}] profile = {name}"
    content = values_of(name, where)
    scheduler = content.get("scheduler", section.__name__)
    if scheduler != section.__name__:
        raise ConfigurationError(f"{where}: this profile is for engine = {scheduler}; name it in [{scheduler}]")
    own = options.__dataclass_fields__.keys()
    kinds: Any = {key: (_kind(key, one), None) for key, one in section.get_params() if key not in {*own, "profile"}}
    values = valid(create_model("Profile", __base__=options_model(options, OfTheSite), **kinds), content, where)
    for table, known in (("needs", own), ("not_for_workers", own | GPU_DIRECTIVES)):
        for key in values.get(table, {}).keys() - known:
            raise ConfigurationError(f"{where}: {table}: {key}: {unknown('key', key, sorted(known))}")
    tables = {name: values[name] for name in ("needs", "grace", "not_for_workers") if name in values}
    limits = values["limits"].model_dump(exclude_unset=True) if "limits" in values else {}
    return Profile(
        options={name: values[name] for name in values.keys() & own},
        settings={name: values[name] for name in values.keys() & kinds.keys()},
        site=Site(where, limits, **tables),
    )


def login_host_of(host: str, names: Iterable[str]) -> str | None:
    """Return the profile that lists `host` (with or without its domain) as a login host, or None."""
    for name in names:
        patterns = _as_texts(values_of(name).get("login_hosts", []))
        if any(fnmatch.fnmatchcase(one, pattern) for pattern in patterns for one in (host, host.partition(".")[0])):
            return name
    return None


def describe(name: str) -> str:
    """Return the values of a profile and of the profiles that it extends, as YAML that could be a profile."""
    return f"{name}\n" + textwrap.indent(yaml.dump(values_of(name), Dumper=_Plain, sort_keys=False), "  ")


class _Plain(yaml.SafeDumper):
    """Writes scalars without quotes: they are all text."""

    yaml_implicit_resolvers: Any = {}


def values_of(name: str, where: str = "") -> dict[str, Any]:
    """Return the values of a profile and of the profiles that it extends, as text."""
    content = _with_inherited(where or f"profile {name}", _path_of(name, Path()))
    for key, value in content.items():
        if isinstance(value, Mapping):
            # Empty text stays, as `extra` takes it for a flag.
            content[key] = {name: entry for name, entry in value.items() if entry not in _NULLS}
    return {key: value for key, value in content.items() if key != "extends" and value not in _NOTHING}


def _path_of(name: str, folder: Path) -> Path:
    return (PROFILES / f"{name}.yml" if name in packaged_profiles() else folder / Path(name).expanduser()).absolute()


def _with_inherited(where: str, path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in below:
        raise ConfigurationError(f"{where}: a circle; a profile cannot extend one that extends it")
    content = _load(where, path)
    if (name := str(content.get("extends", ""))) in _NOTHING:
        return content
    values = _with_inherited(f"{where}: extends {name}", _path_of(name, path.parent), (*below, path.resolve()))
    for key, value in content.items():
        both_tables = isinstance(values.get(key), dict) and isinstance(value, dict)
        values[key] = values[key] | value if both_tables else value
    return values


def _load(where: str, path: Path) -> dict[str, Any]:
    try:
        # BaseLoader: an account called 012345 is not the number 5349.
        content = yaml.load(read_text(path), Loader=yaml.BaseLoader) or {}
    except FileNotFoundError as error:
        names, hint = ", ".join(packaged_profiles()), nearest(path.name, packaged_profiles())
        raise ConfigurationError(f"{where}: there is no file {path}; expected one, or a name: {names}{hint}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{where}: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{where}: expected options, such as 'account: ctb-somebody', not {content!r}")
    return content
