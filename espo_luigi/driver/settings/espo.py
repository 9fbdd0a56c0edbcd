"""The base of luigi.cfg's sections, with remembered values; ``[espo]``; and the check of what luigi.cfg holds.

A section or a key that nothing reads is an error, like a key of the YAML files; so is a wrong value.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from configparser import InterpolationError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import luigi
from luigi import BoolParameter, ChoiceParameter, DictParameter, FloatParameter, IntParameter, Parameter
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import LuigiConfigParser, get_config
from luigi.interface import core
from luigi.task_register import Register, TaskClassException

from espo_luigi.errors import ALIKE, FORMER_RULES, ConfigurationError, nearest, problems_in, unknown
from espo_luigi.jobs.energy import WATTS_PER_CPU, Power
from espo_luigi.jobs.keys import ANYTHING, FLAG, NUMBER, WHOLE, Key, checked, key, keys_of, one_of, table_of
from espo_luigi.jobs.resources import MEMORY, SIZE, TIME
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.settings import STATE_FOLDER, BatchSettings, Patience, Site

logger = logging.getLogger(__name__)

Section = tuple[tuple[str, str], ...]


def section_of(family: str) -> Section:
    """Return luigi.cfg's section of this name, as a key for values computed from it."""
    configuration = get_config()
    return tuple(configuration.items(family, raw=True)) if configuration.has_section(family) else ()


def give_parameter(owner: type, name: str, parameter: Any) -> None:
    """Give a class a Luigi parameter, unless it defines a parameter of that name itself."""
    if not isinstance(vars(owner).get(name), Parameter):
        parameter.__set_name__(owner, name)
        setattr(owner, name, parameter)


# A boolean with a value on the command line, too.
flag = functools.partial(BoolParameter, parsing=BoolParameter.EXPLICIT_PARSING)


def parameter_of(declared: Key, default: Any, *, significant: bool = True) -> Any:
    """Return Luigi's parameter of a key. Amounts stay text, because messages quote them."""
    kind, common = declared.kind, dict[str, Any](significant=significant, description=declared.help)
    if kind is FLAG:
        return flag(default=default, **common)
    if kind.choices:
        return ChoiceParameter(choices=list(kind.choices), default=default, **common)
    if kind.entries is not None:
        return DictParameter(default=default or {}, **common)
    if kind is WHOLE:
        return IntParameter(default=default or 0, **common)
    if kind is NUMBER:
        return FloatParameter(default=default or 0.0, **common)
    return Parameter(default=default or "", **common)


def give_parameters(owner: type, keys: Mapping[str, Key], **defaults: Any) -> None:
    """Give a class of Luigi's a parameter for each key that it lacks, with the keys' defaults where none are given."""
    for name, declared in keys.items():
        give_parameter(owner, name, parameter_of(declared, defaults.get(name, declared.default)))


def choices_of(parameter: Any) -> list[str]:
    """Return the values that a parameter of choices takes; none for other parameters."""
    return sorted(map(str, getattr(parameter, "_choices", ())))


_SECTION_AMOUNT = (
    "{} of `espo shell`, `espo submit`, sessions, and tasks of your own without any; each rule of ESPO has its own: {}"
)


@dataclass(frozen=True)
class DriversKeys:
    """The keys of a scheduler's section that only the driver reads."""

    profile: str = key("", "name (`espo profiles`) or YAML file of this cluster's values of all that is below")
    memory: str = key("", _SECTION_AMOUNT.format("memory", "`[Train] memory`"), MEMORY)
    time: str = key("", _SECTION_AMOUNT.format("time limit", "`[Train] time`"), TIME)
    worker_jobs: Mapping[str, Any] = key(
        {}, 'of cluster = jobqueue, such as {"jobs": 10, "walltime": "2:00:00"}', table_of(ANYTHING)
    )
    on_sigterm: str = key("detach", "what becomes of the jobs if the driver is terminated", one_of("detach", "cancel"))


@dataclass(frozen=True)
class Profile:
    """The values of a profile and of the profiles that it extends.

    `options` are options of jobs, `settings` are the other keys of the section of luigi.cfg.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    site: Site = field(default_factory=Site)


def settings_keys() -> Mapping[str, Key]:
    """Return the keys of any scheduler's section that are no options of jobs."""
    return keys_of(DriversKeys, BatchSettings, Patience)


class KnownParameters:
    """A base of Luigi's classes that looks for their parameters once; Luigi asks for them nine times a task."""

    @classmethod
    @functools.cache
    def get_params(cls) -> list[tuple[str, Parameter]]:
        return list(super().get_params())  # type: ignore[misc]


class Settings(KnownParameters, luigi.Config):
    """A section of luigi.cfg that remembers its values: luigi would look each of them up several times a task."""

    @classmethod
    def get_param_values(cls, params: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return names and values; they are looked up again only after luigi.cfg or the command line has changed."""
        if args or kwargs:
            return list(super().get_param_values(params, args, kwargs))
        return _read(cls, CmdlineParser.get_instance(), section_of(cls.get_task_family()))[0]

    @classmethod
    def completed(cls, values: dict[str, Any], given: frozenset[str]) -> dict[str, Any]:
        """Return all values, completed from other sources than luigi.cfg and the command line, which set the given."""
        return values

    @classmethod
    def given(cls) -> frozenset[str]:
        """Return the names of the parameters that luigi.cfg or the command line sets."""
        return _read(cls, CmdlineParser.get_instance(), section_of(cls.get_task_family()))[1]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


@functools.lru_cache(maxsize=64)
def _read(kind: type[Settings], parser: Any, section: Section) -> tuple[list[tuple[str, Any]], frozenset[str]]:
    values = dict(super(Settings, kind).get_param_values(kind.get_params(), (), {}))
    given = frozenset(name for name in values if Parameter().has_task_value(kind.get_task_family(), name))
    return list(kind.completed(values, given).items()), given


@dataclass(frozen=True)
class EspoKeys:
    """The keys of ``[espo]``."""

    engine: str = key("local", "where the tasks' work runs", one_of("local", "allocation", *SCHEDULERS))
    workdir: str = key("espo-work", "folder of the run's job files, logs and records")
    local_cpus: int = key(0, "CPUs that the local engine may use; 0: all of this machine's", WHOLE)
    local_memory: str = key(
        "", "memory that the local engine may use, such as 16GB; empty: nine tenths of this machine's", MEMORY
    )
    scratch_limit: str = key(
        "",
        "most that temporary stores may take, such as 20TB (20 x 10^12 bytes): what is too much at once waits; empty: "
        "no limit",
        SIZE,
    )
    allow_login_host: bool = key(False, "run the local engine on a login host all the same", FLAG)
    live: bool = key(True, "show the run as a table in the terminal, where there is one", FLAG)
    notify: str = key("", "command that gets how the run ended on its standard input, such as mail -s ESPO me")
    watts_per_cpu: float = key(
        WATTS_PER_CPU,
        "power of a CPU in W, for the estimate of energy where the scheduler measures none; the default is that of an "
        "unknown core in Green Algorithms (doi:10.1002/advs.202100707)",
        NUMBER,
    )
    grams_per_kwh: float = key(0.0, "CO2 that a kWh emits at your site, in g; 0: no CO2 is shown", NUMBER)
    dashboard: bool = key(
        False, "start Dask's dashboard in each job, which then always has workers; needs the extra `dashboard`", FLAG
    )


class espo(Settings):
    """Orchestration settings, from luigi.cfg's ``[espo]`` section or the command line (``--espo-engine slurm``)."""


give_parameters(espo, keys_of(EspoKeys))


def settings() -> espo:
    """Return the current settings, of the project's own subclass of the section if there is one."""
    return _held[0] if _held else (espo.__subclasses__() or [espo])[-1]()


def workers() -> int:
    """Return how many tasks Luigi has at work at once."""
    return int(core().workers)


def amount_of(name: str) -> int | None:
    """Return an amount of ``[espo]`` in bytes; None if it is empty. Raises `ConfigurationError`."""
    text = getattr(settings(), name)
    return int(checked(keys_of(EspoKeys), {name: text}, "luigi.cfg, [espo]")[name]) if text else None


def power() -> Power:
    """Return what an hour of a CPU takes, by the settings; raises `ConfigurationError` for what no power is."""
    current = settings()
    for name in ("watts_per_cpu", "grams_per_kwh"):
        if not 0 <= (value := getattr(current, name)) < math.inf:
            raise ConfigurationError(f"[espo] {name} = {value:g}; expected a number from 0 up.")
    return Power(float(current.watts_per_cpu), float(current.grams_per_kwh))


_held: list[espo] = []


@contextmanager
def unchanging_settings() -> Iterator[None]:
    """Keep the settings as they are now during the block: a plan of 20 000 tasks reads them half a million times."""
    _held.append(settings())
    try:
        yield
    finally:
        _held.pop()


def state_dir() -> Path:
    """Return the folder of the driver's lock and of the jobs' records."""
    return Path(settings().workdir).absolute() / STATE_FOLDER


# What a parameter of this kind reads, in words.
_EXPECTED: Mapping[type, str] = {
    IntParameter: "a whole number, such as 4",
    FloatParameter: "a number, such as 0.5",
    BoolParameter: "true or false",
    ChoiceParameter: "one of: {}",
}
# A section of Luigi's that no class of it stands for; a project's task `Source` is near it.
_OF_LUIGI = "resources"


def check_names() -> None:
    """Raise `ConfigurationError`, with all problems, if luigi.cfg has a wrong name, number, boolean or choice.

    Luigi warns of an unknown key once it makes an object of the section, and of one section after the other: too late
    for a task that runs tomorrow. The sections of Luigi, of the project's own `luigi.Config`s, and those that are
    unlike ours may hold anything.
    """
    if problems := list(_problems()):
        raise ConfigurationError(problems_in("luigi.cfg", problems))
    for name in get_config().sections():
        if name in FORMER_RULES and name not in Register.task_names():
            _tell_of_former(name)


@functools.cache  # once
def _tell_of_former(name: str) -> None:
    rules = " and ".join(f"[{rule}]" for rule in FORMER_RULES[name])
    logger.warning("`[%s]`%s has no effect: that rule has gone, and %s has its work", name, _place(name), rules)


def check_packages() -> None:
    """Raise `ConfigurationError` if the settings ask for a package that is not installed."""
    if settings().dashboard and importlib.util.find_spec("bokeh") is None:
        raise ConfigurationError(
            "`[espo] dashboard = true` needs bokeh, which is not installed. Run `pip install 'espo_luigi[dashboard]'`, "
            "or set it to false."
        )


def _problems() -> Iterator[str]:
    configuration, ours = get_config(), dict[str, type[luigi.Task]](espo=espo)
    for name in Register.task_names():
        # Several classes of a project may have a name, also that of [espo].
        with suppress(TaskClassException):
            kind = Register.get_task_cls(name)
            if issubclass(kind, KnownParameters) or kind.__module__.partition(".")[0] == "espo_luigi":
                ours[name] = kind
    registered = {*Register.task_names(), *FORMER_RULES, _OF_LUIGI}
    folded = {name.casefold(): name for name in sorted(ours)}
    for section in configuration.sections():
        if section in ours:
            # All sections have the keys of [DEFAULT].
            for key in configuration.options(section):
                if key not in configuration.defaults() and (problem := _problem(section, key, ours[section])):
                    yield problem
        elif section in choices_of(vars(espo)["engine"]):
            yield f"`[{section}]`{_place(section)}: unknown section. The engine {section} has its keys in [espo]."
        elif section not in registered and (close := nearest(section.casefold(), folded, cutoff=ALIKE, hint="{}")):
            yield f"`[{section}]`{_place(section)}: unknown section; did you mean {folded[close]}?"


def _problem(section: str, key: str, kind: type[luigi.Task]) -> str:
    allowed, name = dict(kind.get_params()), key.replace("-", "_")
    is_known = name in allowed or name in getattr(kind, "ignore_unconsumed", ())
    # The keys of a project's subclass of `espo` are unknown until its module is imported.
    if not is_known and (kind is not espo or nearest(name, allowed, cutoff=ALIKE)):
        return f"`[{section}] {key}`{_place(section, key)}: {unknown('key', name, allowed)}"
    # Luigi itself refuses an empty value where none is allowed.
    return wrong_value(section, key, allowed.get(name) if get_config().get(section, key, raw=True) else None)


def wrong_value(section: str, key: str, parameter: Parameter[Any] | None = None) -> str:
    """Return the problem of a value of luigi.cfg with a wrong reference, or that a parameter cannot read; else ""."""
    got = get_config().get(section, key, raw=True)
    expected = next((words for kind, words in _EXPECTED.items() if isinstance(parameter, kind)), "")
    try:
        got = get_config().get(section, key)
        if parameter is not None and expected:
            parameter.parse(got)
    except InterpolationError:
        expected = (
            "`%%` for a per cent sign, `%(key)s` for the value of another key of "
            f"[{section}], or `${{NAME}}` for a variable of the environment that is set"
        )
        return f"`[{section}] {key}`{_place(section, key)}: got {got!r}; expected {expected}."
    except ValueError:
        choices = choices_of(parameter)
        said = expected.format(", ".join(choices)) + (nearest(got, choices) or ".")
        return f"`[{section}] {key}`{_place(section, key)}: got {got!r}, expected {said}"
    return ""


def _place(section: str, key: str = "") -> str:
    """Return file and line of a section or its key, in brackets; "" if no file has it."""
    for path in reversed(LuigiConfigParser._config_paths):
        within, file = False, Path(path)
        for number, line in enumerate(file.read_text(errors="replace").splitlines() if file.is_file() else (), 1):
            if header := re.match(r"\[(.+)\]", line):
                within = header[1] == section
            if within and (re.match(rf"{re.escape(key)}\s*[=:]", line) if key else header):
                return f" ({path}:{number})"
    return ""
