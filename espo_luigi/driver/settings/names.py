"""luigi.cfg: a section or a key that nothing reads is an error, like a key of the YAML files; so is a wrong number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from configparser import InterpolationError
from pathlib import Path

import luigi
from luigi.configuration import LuigiConfigParser, get_config
from luigi.task_register import Register, TaskClassException

from espo_luigi.driver.settings.espo import KnownParameters, choices_of, espo, expected_of
from espo_luigi.errors import ALIKE, ConfigurationError, nearest, problems_in, unknown

# A section of Luigi's that no class of it stands for; a project's task `Source` is near it.
_OF_LUIGI = "resources"


def check_names() -> None:
    """Raise `ConfigurationError`, with all problems, if luigi.cfg has a wrong name, number or boolean.

    The sections of Luigi, of the project's own `luigi.Config`s, and those that are unlike ours may hold anything.
    """
    if problems := list(_problems()):
        raise ConfigurationError(problems_in("luigi.cfg", problems))


def _problems() -> Iterator[str]:
    ours = _our_classes()
    registered = {*Register.task_names(), _OF_LUIGI}
    for section, keys in _written().items():
        if section in ours:
            yield from _problems_of_keys(section, keys, ours[section])
        elif section in choices_of(vars(espo)["engine"]):
            yield f"`[{section}]`{_place(section)}: unknown section. The engine {section} has its keys in [espo]."
        elif section not in registered:
            folded = {name.casefold(): name for name in sorted(ours)}
            if close := nearest(section.casefold(), folded, cutoff=ALIKE, hint="{}"):
                yield f"`[{section}]`{_place(section)}: unknown section; did you mean {folded[close]}?"


def _problems_of_keys(section: str, keys: list[str], kind: type[luigi.Task]) -> Iterator[str]:
    allowed = dict(kind.get_params())
    others = getattr(kind, "ignore_unconsumed", ())
    for key in keys:
        name = key.replace("-", "_")
        if wrong := _wrong_reference(section, key):
            yield wrong
            continue
        if name in allowed:
            yield from _problem_of_value(section, key, allowed[name])
        if name in allowed or name in others:
            continue
        # The keys of a project's subclass of `espo` are unknown until its module is imported.
        if kind is not espo or nearest(name, allowed, cutoff=ALIKE):
            yield f"`[{section}] {key}`{_place(section, key)}: {unknown('key', name, allowed)}"


def _problem_of_value(section: str, key: str, parameter: luigi.Parameter) -> Iterator[str]:
    """Yield the problem of a value that should be a number or a boolean; other kinds have checks of their own."""
    expected = expected_of(parameter)
    got = get_config().get(section, key) if expected else ""
    if got:
        try:
            parameter.parse(got)
        except ValueError:
            yield f"`[{section}] {key}`{_place(section, key)}: got {got!r}, expected {expected}."


def _wrong_reference(section: str, key: str) -> str:
    try:
        get_config().get(section, key)
    except InterpolationError as error:
        return wrong_reference(error)
    return ""


def wrong_reference(error: InterpolationError) -> str:
    """Return the problem of a value in which Python or Luigi looks for references, and finds none that fits."""
    section, key = error.section, error.option
    got = get_config().get(section, key, raw=True)
    return (
        f"`[{section}] {key}`{_place(section, key)}: got {got!r}; expected `%%` for a per cent sign, `%(key)s` for the "
        f"value of another key of [{section}], or `${{NAME}}` for a variable of the environment that is set."
    )


def _our_classes() -> dict[str, type[luigi.Task]]:
    """Return this package's sections and the rules, by name, without the base classes of this package."""
    classes = {}
    for name in Register.task_names():
        try:
            kind = Register.get_task_cls(name)
        except TaskClassException:  # several classes of a project have this name
            continue
        if (issubclass(kind, KnownParameters) or _is_packaged(kind)) and not _is_base(kind):
            classes[name] = kind
    return classes


def _is_packaged(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "espo_luigi"


def _is_base(kind: type[luigi.Task]) -> bool:
    heirs = (heir for heir in kind.__subclasses__() if _is_packaged(heir))
    return _is_packaged(kind) and any(heir.__name__ != kind.__name__ for heir in heirs)


def _written() -> dict[str, list[str]]:
    """Return luigi.cfg's sections with their keys, without those of [DEFAULT], which all sections have."""
    configuration = get_config()
    common = configuration.defaults().keys()
    return {
        name: [key for key in configuration.options(name) if key not in common] for name in configuration.sections()
    }


def _place(section: str, key: str = "") -> str:
    """Return file and line of a section or its key, in brackets; "" for what no file holds."""
    for path in reversed(LuigiConfigParser._config_paths):
        try:
            lines = Path(path).read_text(errors="replace").splitlines()
        except OSError:
            continue
        within = False
        for number, line in enumerate(lines, 1):
            if header := re.match(r"\[(.+)\]", line):
                within = header[1] == section
            if within and (re.match(rf"{re.escape(key)}\s*[=:]", line) if key else header):
                return f" ({path}:{number})"
    return ""
