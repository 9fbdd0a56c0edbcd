"""A cluster's profile: how its jobs are submitted and looked after, and what its site allows.

The packaged profiles lie in the repository's ``config/profiles``. A scheduler's section of luigi.cfg names a packaged
profile, or a file of the user's.
"""

from __future__ import annotations

import fnmatch
import json
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.driver.settings.espo import Profile, settings_keys
from espo_luigi.errors import ConfigurationError, nearest, unknown
from espo_luigi.files import read_text
from espo_luigi.jobs.dask import GPU_DIRECTIVES
from espo_luigi.jobs.keys import NAMES, NUMBER, WHOLE, as_texts, checked, key, keys_of
from espo_luigi.jobs.resources import JobOptions
from espo_luigi.jobs.settings import Site

PROFILES = Path(__file__).parent / "profiles"
# The words for null in YAML.
_NULLS = ("~", "null", "Null", "NULL")
_NOTHING = ("", *_NULLS)
_HOSTS = "login_hosts"


@dataclass(frozen=True)
class SiteKeys(Site):
    """The keys of a profile that are no keys of the scheduler's section."""

    extends: str = key(
        "",
        "a profile to inherit from: a name, or a path from the file's folder. Tables are merged; `licenses: ~` drops a "
        "value, `needs: {account: ~}` an entry",
    )
    scheduler: str = key("", "the engine that it is for (`slurm`, `sge`); others refuse it")
    login_hosts: tuple[str, ...] = key(
        (), "machines where `engine = local` is refused, unless `[espo] allow_login_host = true`", NAMES
    )


def packaged_profiles() -> list[str]:
    """Return the names of the profiles that come with this package."""
    return sorted(path.stem for path in PROFILES.glob("*.yml"))


def read_profile(section: str, name: str, options: type[JobOptions]) -> Profile:
    """Return a profile by its name or path, for a section of luigi.cfg.

    Raise `ConfigurationError` if a file cannot be read, is for a different scheduler, or has a wrong name or value.
    """
    where = f"[{section}] profile = {name}"
    content = values_of(name, where)
    scheduler = content.get("scheduler", section)
    if scheduler != section:
        raise ConfigurationError(f"{where}: this profile is for engine = {scheduler}; name it in [{scheduler}]")
    own, of_section = keys_of(options), {**settings_keys()}
    del of_section["profile"]
    values = checked({**keys_of(SiteKeys), **of_section, **own}, content, where)
    for table, known in (("needs", own.keys()), ("not_for_workers", own.keys() | GPU_DIRECTIVES)):
        for entry in values.get(table, {}).keys() - known:
            raise ConfigurationError(f"{where}: {table}: {entry}: {unknown('key', entry, sorted(known))}")
    return Profile(
        options={name: values[name] for name in values.keys() & own},
        # As luigi.cfg has them: amounts and paths are text.
        settings={
            name: values[name] if of_section[name].kind in (WHOLE, NUMBER) else content[name]
            for name in values.keys() & of_section
        },
        site=Site(where, **{name: values[name] for name in values.keys() & keys_of(Site)}),
    )


def login_host_of(host: str, names: Iterable[str]) -> str | None:
    """Return the profile that lists `host` (with or without its domain) as a login host, or None."""
    for name in names:
        patterns = as_texts(_own_login_hosts(name) if name in packaged_profiles() else values_of(name).get(_HOSTS, []))
        if any(fnmatch.fnmatchcase(one, pattern) for pattern in patterns for one in (host, host.partition(".")[0])):
            return name
    return None


def _own_login_hosts(name: str) -> list[str]:
    """Return the login hosts of a packaged profile, a list in JSON on a line of its own, without the reader of YAML.

    That need not be installed, and takes long for all profiles. Their parents are packaged, too.
    """
    line = re.search(rf"^{_HOSTS}: (\[.*\])$", read_text(_path_of(name, Path())), re.MULTILINE)
    return list(json.loads(line[1])) if line else []


def describe(name: str) -> str:
    """Return the values of a profile and of the profiles that it extends, as YAML that could be a profile."""
    import yaml

    class Plain(yaml.SafeDumper):
        """Writes scalars without quotes: they are all text."""

        yaml_implicit_resolvers: Any = {}

    return f"{name}\n" + textwrap.indent(yaml.dump(values_of(name), Dumper=Plain, sort_keys=False), "  ")


def values_of(name: str, where: str = "") -> dict[str, Any]:
    """Return the values of a profile and of the profiles that it extends, as text."""
    content = _with_inherited(where or f"profile {name}", _path_of(name, Path()))
    for option, value in content.items():
        if isinstance(value, Mapping):
            # Empty text stays, as `extra` takes it for a flag.
            content[option] = {entry: one for entry, one in value.items() if one not in _NULLS}
    return {option: value for option, value in content.items() if option != "extends" and value not in _NOTHING}


def _path_of(name: str, folder: Path) -> Path:
    return (PROFILES / f"{name}.yml" if name in packaged_profiles() else folder / Path(name).expanduser()).absolute()


def _with_inherited(where: str, path: Path, below: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in below:
        raise ConfigurationError(f"{where}: a circle; a profile cannot extend one that extends it")
    content = _load(where, path)
    if (name := str(content.get("extends", ""))) in _NOTHING:
        return content
    values = _with_inherited(f"{where}: extends {name}", _path_of(name, path.parent), (*below, path.resolve()))
    for option, value in content.items():
        both_tables = isinstance(values.get(option), dict) and isinstance(value, dict)
        values[option] = values[option] | value if both_tables else value
    return values


def _load(where: str, path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise ConfigurationError(f"{where}: a profile needs PyYAML: run `pip install PyYAML` ({error})") from error
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
