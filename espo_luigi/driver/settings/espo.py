"""The base of luigi.cfg's sections, with remembered values, and ``[espo]``: where jobs run, and its work folder."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import luigi
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import get_config
from luigi.interface import core

from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.accounts import WATTS_PER_CPU, Power
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.settings import STATE_FOLDER

Section = tuple[tuple[str, str], ...]


def section_of(family: str) -> Section:
    """Return luigi.cfg's section of this name, as a key for values computed from it."""
    configuration = get_config()
    return tuple(configuration.items(family, raw=True)) if configuration.has_section(family) else ()


def give_parameter(owner: type, name: str, parameter: Any) -> None:
    """Give a class a Luigi parameter, unless it defines a parameter of that name itself."""
    if not isinstance(vars(owner).get(name), luigi.Parameter):
        parameter.__set_name__(owner, name)
        setattr(owner, name, parameter)


def choices_of(parameter: luigi.Parameter) -> list[str]:
    """Return the values that a parameter of choices takes; none for other parameters."""
    return sorted(map(str, getattr(parameter, "_choices", ())))


def expected_of(parameter: luigi.Parameter[Any]) -> str:
    """Return in words what a parameter of numbers or of booleans takes; "" for other parameters."""
    kinds: dict[Any, str] = {
        luigi.IntParameter: "a whole number, such as 4",
        luigi.FloatParameter: "a number, such as 0.5",
        luigi.BoolParameter: "true or false",
    }
    return next((words for kind, words in kinds.items() if isinstance(parameter, kind)), "")


class KnownParameters:
    """A base of Luigi's classes that looks for their parameters once; Luigi asks for them nine times a task."""

    @classmethod
    @functools.cache
    def get_params(cls) -> list[tuple[str, luigi.Parameter]]:
        """Return names and parameters, which are always the same."""
        return list(super().get_params())  # type: ignore[misc]


class Settings(KnownParameters, luigi.Config):
    """A section of luigi.cfg that remembers its values: luigi would look each of them up several times a task."""

    @classmethod
    def get_param_values(cls, params: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return names and values; they are looked up again only after luigi.cfg or the command line has changed."""
        if args or kwargs:
            return list(super().get_param_values(params, args, kwargs))
        return _values(cls, CmdlineParser.get_instance(), section_of(cls.get_task_family()))

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return all values, completed from sources other than luigi.cfg."""
        return values

    @classmethod
    def given(cls) -> frozenset[str]:
        """Return the names of the parameters that luigi.cfg or the command line sets."""
        return _given(cls, CmdlineParser.get_instance(), section_of(cls.get_task_family()))


@functools.lru_cache(maxsize=64)
def _values(kind: type[Settings], parser: Any, section: Section) -> list[tuple[str, Any]]:
    return list(kind.completed(dict(super(Settings, kind).get_param_values(kind.get_params(), (), {}))).items())


@functools.lru_cache(maxsize=64)
def _given(kind: type[Settings], parser: Any, section: Section) -> frozenset[str]:
    without_default, family = luigi.Parameter(), kind.get_task_family()
    return frozenset(name for name, _ in kind.get_params() if without_default.has_task_value(family, name))


class espo(Settings):
    """Orchestration settings, from luigi.cfg's ``[espo]`` section or the command line (``--espo-engine slurm``)."""

    engine = luigi.ChoiceParameter(
        choices=["local", "allocation", *SCHEDULERS], default="local", description="where the tasks' work runs"
    )
    workdir = luigi.Parameter(default="espo-work", description="folder of the run's job files, logs and records")
    local_cpus = luigi.IntParameter(
        default=0, description="CPUs that the local engine may use; 0: all of this machine's"
    )
    local_memory = luigi.Parameter(
        default="",
        description="memory that the local engine may use, such as 16GB; empty: nine tenths of this machine's",
    )
    scratch_limit = luigi.Parameter(
        default="",
        description="most that temporary stores may take, such as 20TB (20 x 10^12 bytes): what is too much at once "
        "waits; empty: no limit",
    )
    allow_login_host = luigi.BoolParameter(
        default=False,
        parsing=luigi.BoolParameter.EXPLICIT_PARSING,
        description="run the local engine on a login host all the same",
    )
    live = luigi.BoolParameter(
        default=True,
        parsing=luigi.BoolParameter.EXPLICIT_PARSING,
        description="show the run as a table in the terminal, where there is one",
    )
    notify = luigi.Parameter(
        default="", description="command that gets how the run ended on its standard input, such as mail -s ESPO me"
    )
    watts_per_cpu = luigi.FloatParameter(
        default=WATTS_PER_CPU,
        description="power of a CPU in W, for the estimate of energy where the scheduler measures none; the default is "
        "that of an unknown core in Green Algorithms (doi:10.1002/advs.202100707)",
    )
    grams_per_kwh = luigi.FloatParameter(
        default=0.0, description="CO2 that a kWh emits at your site, in g; 0: no CO2 is shown"
    )
    dashboard = luigi.BoolParameter(
        default=False, parsing=luigi.BoolParameter.EXPLICIT_PARSING, description="start Dask's dashboard in each job"
    )


def settings() -> espo:
    """Return the current settings, of the project's own subclass of the section if there is one."""
    return _held[0] if _held else (espo.__subclasses__() or [espo])[-1]()


def workers() -> int:
    """Return how many tasks Luigi has at work at once."""
    return int(core().workers)


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
