"""`SlurmTask`: a Luigi task whose work runs as one job, here or on a cluster. It knows no climate data."""

from __future__ import annotations

import functools
import html
import importlib
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import luigi
import luigi.worker
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import get_config
from luigi.parameter import ParameterVisibility
from luigi.task_register import Register, TaskClassException

from espo_luigi.driver.board import BegunTask, board
from espo_luigi.driver.settings.espo import (
    KnownParameters,
    Section,
    give_parameter,
    parameter_of,
    section_of,
    settings,
    settings_keys,
)
from espo_luigi.driver.settings.sections import OPTION_NAMES, SECTIONS, add_options
from espo_luigi.driver.task_classes import (
    check_class,
    check_dask,
    check_names,
    check_values,
    has_job,
    hashable,
    own_resources,
)
from espo_luigi.errors import EspoError, SizingError, StoppedError, SubmissionError
from espo_luigi.jobs.keys import WHOLE, keys_of
from espo_luigi.jobs.order import JobFiles, JobOrder, JobState, Progress, extra_folders, label_of, seconds_of
from espo_luigi.jobs.resources import JobOptions, Resources

RESOURCE_NAMES = tuple(keys_of(Resources))
# What a Dask session imports late.
DASKS_MODULES = ("dask.array", "distributed.http.scheduler.info", "distributed.http.worker")
# The parameters about Dask's workers and their jobs.
_CLUSTER_NAMES = ("cluster", "worker_jobs")
# Seconds between two messages to luigid about a job's progress, for each job in flight: 50 messages a second.
_SECONDS_A_JOB = 0.02


class SlurmTask(KnownParameters, luigi.Task):
    """A Luigi task whose `work` runs as a job, inside a Dask session sized to the job.

    Subclass it, give it parameters, `output` and `work`, and, beside them, its `resources_default`. Each resource is a
    Luigi parameter, so that luigi.cfg (``[MyTask] memory = 120GB``) and the command line change it.

    Attributes
    ----------
    resources_default : Resources
        What the job asks for where luigi.cfg and the command line say nothing.
    options_default : mapping of mappings
        By engine (``"slurm"``, ``"sge"``), options of the job, such as ``{"slurm": {"partition": "long"}}``.
    uses_dask : bool
        Whether `work` runs inside a Dask session, or in Dask's threads where `is_small`.
    """

    resources_default = Resources()
    # By engine, this rule's options, named as in luigi.cfg's section. They override the profile; luigi.cfg overrides
    # them.
    options_default: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    uses_dask = True
    # Whether only tasks of this task's graph need the graph's outputs. Only then a run deletes outputs that its tasks
    # do not need any more: for other roots we cannot know whether a task outside of the graph still needs an output.
    covers_everything: ClassVar[bool] = False
    # How many values of 4 bytes the outputs have for each unit of `work_size` (in ESPO-G: for each cell, day and
    # variable), at most; 0: hardly any.
    values_in_outputs: ClassVar[float] = 0.0
    # Modules that the local engine and pilots import before they fork jobs, besides `DASKS_MODULES`.
    preload: ClassVar[tuple[str, ...]] = ()

    n_workers = luigi.IntParameter(default=1, significant=False)
    cpus_per_task = luigi.IntParameter(default=1, significant=False)
    memory = luigi.Parameter(default="", significant=False)
    time = luigi.Parameter(default="", significant=False)

    # The schedulers' own options are parameters too: `add_options` below.
    cluster = luigi.ChoiceParameter(
        choices=["", "jobqueue", "allocation"],
        default="",
        significant=False,
        description="Dask's workers: in the task's job (the default), jobs of their own (jobqueue), on several nodes",
    )
    worker_jobs: Any = parameter_of(settings_keys()["worker_jobs"], {}, significant=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_names(cls, SlurmTask)
        # Heirs have these defaults as well.
        cls.resources_default = replace(cls.resources_default, **own_resources(cls, SlurmTask, RESOURCE_NAMES))
        for name, key in keys_of(Resources).items():
            default: Any = getattr(cls.resources_default, name)
            # For Resources(time=90) as well, luigi.cfg may have 2:00:00.
            default = default if key.kind is WHOLE else str(default)
            give_parameter(cls, name, parameter_of(key, default, significant=False))

    @classmethod
    def get_param_values(cls, params: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Return names and values; resources are looked up once in luigi.cfg, not for every task."""
        section = section_of(cls.get_task_family())
        known = {} if args else _configured(cls, CmdlineParser.get_instance(), section)
        if args or section or known.keys() | kwargs.keys() != _names(cls):
            values = {name: value for name, (_, value) in known.items()}
            return list(super().get_param_values(params, args, {**values, **kwargs}))
        # Luigi keeps the pairs of each task: those of the configuration are the same for all.
        return [
            (name, hashable(parameter.normalize(kwargs[name]))) if name in kwargs else known[name]
            for name, parameter in params
        ]

    def to_str_params(self, only_significant: bool = False, only_public: bool = False) -> dict[str, str]:
        """Return the parameters as text, as Luigi does; the parameters of a class are chosen once."""
        told = _told(type(self), only_significant, only_public)
        return {name: parameter.serialize(self.param_kwargs[name]) for name, parameter in told}

    def _get_param_visibilities(self) -> dict[str, int]:
        """Return what luigid's page shows: the parameters that identify this task, and those that are set."""
        own, hidden = self.param_kwargs, ParameterVisibility.HIDDEN
        return {
            name: ParameterVisibility.PUBLIC if is_significant or own[name] != default else hidden
            for name, is_significant, default in _defaults(type(self))
        }

    @property
    def retry_count(self) -> int:
        """How often Luigi tries: once, unless ``[scheduler]`` says otherwise; the engines retry by cause."""
        return _retry_count(section_of("scheduler"))

    @property
    def allocation(self) -> Resources:
        """The resources that this task asks for."""
        return self._resources(settings().engine)

    def _resources(self, engine_name: str) -> Resources:
        # A number is in Slurm's units, as a text is.
        asked = Resources(self.n_workers, self.cpus_per_task, str(self.memory), str(self.time))
        section = SECTIONS.get(engine_name)
        site = section() if section and not (asked.memory and asked.time) else None
        try:
            return _completed(asked, site.memory, site.time) if site else _completed(asked)
        except SizingError as error:
            raise SizingError(f"{self.get_task_family()}: {error}") from None

    @functools.cached_property
    def wildcards(self) -> dict[str, str]:
        """The parameters that identify this task, as text."""
        return self.to_str_params(only_significant=True)

    # How long the job worked, once it is done; the task waited longer.
    job_seconds = 0.0
    # Its CPU time, None if that is unknown.
    job_cpu_seconds = None
    # The link that Luigi's page shows.
    _dashboard = ""
    # When luigid got the last message.
    _told = -math.inf

    def label(self) -> str:
        """Return the task's name for people: its family and its wildcards."""
        return label_of(self.get_task_family(), self.wildcards)

    def check(self) -> None:
        """Raise an `EspoError` if this task cannot run as asked; called for all tasks before any of them starts."""
        if self.run is None:  # an external task
            return
        is_job = has_job(self, SlurmTask)
        if is_job and type(self).__module__ == "__main__":
            raise SubmissionError(
                f"{self.get_task_family()} is defined in the script that is run, which a job cannot import: "
                "put it into a module of its own, and give that to luigi --module"
            )
        check_class(type(self), SlurmTask, settings().engine)
        if is_job:
            check_values(self)
            if self.uses_dask:
                check_dask(self.get_task_family())
        self.allocation.check(self.get_task_family())

    def dask_settings(self) -> dict[str, Any]:
        """Return Dask settings for this task's session, on top of the package's own."""
        return {}

    def dask_client(self) -> dict[str, Any]:
        """Return further keywords for this task's `LocalCluster`."""
        return {}

    @classmethod
    def exclusive_folders(cls) -> tuple[Path, ...]:
        """Return the folders that a driver must have for itself to run tasks of this class."""
        return ()

    def delete_temporary(self) -> None:
        """Delete outputs that only other tasks need; called once these are complete, if the run `covers_everything`."""

    def reads_temporary(self, needs: Sequence[luigi.Task]) -> Sequence[luigi.Task]:
        """Return those of the tasks it needs of which it reads outputs that `delete_temporary` deletes: maybe all."""
        return needs

    def has_no_temporary(self) -> bool:
        """Return True if there is nothing that `delete_temporary` would delete."""
        return False

    def scratch_group(self) -> str:
        """Return the name of the tasks whose temporary stores come and go together; "" if it has no such group."""
        return ""

    @classmethod
    def scratch_to_write(cls, tasks: Sequence[SlurmTask]) -> list[float]:
        """Return the bytes of temporary outputs that each of `tasks` is expected to write.

        Asked once for all tasks of a run, of the class of any of them.
        """
        return [0.0 for _ in tasks]

    @classmethod
    def scratch_on_disk(cls, tasks: Sequence[SlurmTask]) -> list[int]:
        """Return the bytes of temporary outputs, whole or begun, that each of `tasks` has on the disk."""
        return [0 for _ in tasks]

    def stale(self, *, files: bool = True) -> list[str]:
        """Return the names of settings, raw files and inputs that have changed since the outputs were made.

        Without `files`, only settings are compared, which is quick: a task that is stale then is *outdated*.
        """
        return []

    def publishing(self) -> AbstractContextManager[Callable[[], Mapping[str, int]]]:
        """Return a context around all of the job's work. Its value counts the blocks of outputs for heartbeats."""
        return nullcontext(dict)

    def guarded(self) -> AbstractContextManager[None]:
        """Return the context of `work` in its job. If it raises `InputChangedError`, the task is tried again."""
        return nullcontext()

    def is_small(self, resources: Resources) -> bool:
        """Return whether `work` needs no Dask client: threads of the job's own process compute it as well."""
        return False

    def work_size(self) -> float:
        """Return how much there is to do, in a unit of the task's own; jobs' figures are scaled by it. 0: unknown."""
        return 0.0

    def work_made(self) -> dict[str, int]:
        """Return how many `files` the outputs have, and their `bytes`; asked in the job, once `work` is done."""
        return {}

    def configuration_id(self) -> str:
        """Return an id of the configuration of `work`: a job refuses to run under a different id.

        Parameters and sections of luigi.cfg travel with the job and need not be in it.
        """
        return ""

    def work(self) -> None:
        """Do the work; runs on the compute node, with a Dask client active."""
        raise NotImplementedError(f"{type(self).__name__} has no work()")

    def run(self) -> None:
        """Run `work` as a job of the current engine, and wait for it."""
        if isinstance(multiprocessing.current_process(), luigi.worker.TaskProcess):
            raise SubmissionError(
                f"{self.label()}: a process of Luigi's own worker cannot share jobs with the others: call "
                "espo_luigi.install() where your tasks are defined"
            )
        # Jobs import this module, and no engine.
        from espo_luigi.driver.engines import engine

        chosen = engine(settings().engine)
        order = chosen.fitted(self.order())
        given, heartbeat = order.resources, str(order.files.heartbeat)
        words = " ".join([order.family, *sorted(self.wildcards.values(), key=len)])
        size = (given.cpus_per_task, given.memory_bytes)
        board().begin(BegunTask(order.id, order.label, order.family, time.time(), *size, heartbeat, words=words))
        try:
            result = chosen.run(order)
            self.job_seconds = seconds_of(result)
            # Workers in other places count their own.
            self.job_cpu_seconds = None if order.cluster else result.get("cpu_seconds")
        except EspoError as error:
            if not isinstance(error, StoppedError):
                self._show(Progress(f"failed: {str(error).splitlines()[0]}", state=JobState.FAILED))
            raise

    def on_kill(self) -> None:
        """End this task's job, which takes longer than Luigi lets it; the run goes on."""
        from espo_luigi.driver.engines import engine

        engine(settings().engine).cancel(self.task_id)

    def order(self, engine_name: str = "") -> JobOrder:
        """Return this task's job, for the current engine or the named one."""
        name = engine_name or settings().engine
        section = SECTIONS.get(name)
        # A task's own parameter of such a name is a wildcard (CMIP's `project`), and no option.
        ours = [name for name in (*OPTION_NAMES, *_CLUSTER_NAMES) if getattr(type(self), name) is vars(SlurmTask)[name]]
        options = {name: getattr(self, name) for name in OPTION_NAMES if name in ours}
        of_rule = self.options_default.get(name, {})
        order = JobOrder(
            id=self.task_id,
            label=self.label(),
            module=module_with_folder(self.task_module),
            family=self.get_task_family(),
            parameters={name: value for name, value in self.to_str_params().items() if name not in RESOURCE_NAMES},
            wildcards=self.wildcards,
            resources=self._resources(name),
            files=JobFiles.of(Path(settings().workdir).absolute(), self.get_task_family(), self.wildcards),
            settings={**_sections_for(self), "espo": settings().to_str_params()},
            configuration=self.configuration_id(),
            options=section().options_of(of_rule, options) if section else JobOptions(),
            preload=(*(DASKS_MODULES if self.uses_dask else ()), *self.preload),
            size=self.work_size(),
            is_complete=self.complete,
            on_progress=self._show,
        )
        kind = self.cluster if self.uses_dask and "cluster" in ours else ""
        worker_jobs = self.worker_jobs if "worker_jobs" in ours else {}
        if section is None or not (kind or getattr(order.options, "nodes", None)):
            return order
        from espo_luigi.driver.settings.worker_jobs import with_cluster

        return with_cluster(order, section(), kind, worker_jobs)

    def _show(self, progress: Progress) -> None:
        """Show on the board and on Luigi's page where the job stands; limits mere progress to 50 messages a second."""
        board().tell(self.task_id, progress)
        is_progress, now = progress.percent not in (None, 100), time.monotonic()
        too_soon = is_progress and now - self._told < _SECONDS_A_JOB * len(board().state.jobs)
        if not self.set_status_message or too_soon:
            return
        self._told = now
        self.set_status_message(html.escape(progress.message, quote=False))  # the page takes it for HTML
        if progress.percent is not None:
            self.set_progress_percentage(progress.percent)
        if progress.dashboard != self._dashboard:
            self._dashboard = progress.dashboard
            self.set_tracking_url(progress.dashboard)


add_options(SlurmTask)


def without_effect(tasks: Iterable[SlurmTask]) -> list[str]:
    """Return a sentence about each amount of the scheduler's section that `tasks`, which all have their own, ignore."""
    section, tasks = SECTIONS.get(settings().engine), list(tasks)
    if section is None or not tasks:
        return []
    name, family = section.__name__, tasks[0].get_task_family()
    said = {amount: getattr(section(), amount) for amount in ("memory", "time") if amount in section.given()}
    return [
        f"[{name}] {amount} = {text} changes no job of this run, as each rule has its own: set `{amount}` in the "
        f"section of a rule, such as [{family}], or give --{family}-{amount} {text}"
        for amount, text in said.items()
        if text and all(getattr(task, amount) for task in tasks)
    ]


def rebuild_task(order: JobOrder) -> SlurmTask:
    """Return the task that `order` describes, under the luigi configuration that it had in the driver."""
    configuration = get_config()
    for section, options in order.settings.items():
        for option, value in options.items():
            configuration.set(section, option.replace("-", "_"), value.replace("%", "%%"))
    import_task_module(order.module)
    return Register.get_task_cls(order.family).from_str_params({**order.parameters, **order.resources.as_text()})


@functools.cache
def module_with_folder(name: str) -> str:
    """Return ``FOLDER:NAME`` for a module from the driver's `extra_folders`, else the name alone."""
    source = Path(getattr(sys.modules[name], "__file__", None) or "").absolute()
    within = source.parent if source.name == "__init__.py" else source
    folder = str(within.parents[name.count(".")])
    return f"{folder}:{name}" if folder in extra_folders() else name


def import_task_module(text: str) -> None:
    """Import the module that `module_with_folder` has named; its folder goes to the end of Python's path."""
    folder, _, name = text.rpartition(":")
    if folder and folder not in sys.path:
        sys.path.append(folder)
    importlib.import_module(name)


def made_anew(tasks: Iterable[luigi.Task]) -> list[luigi.Task]:
    """Return the same tasks under the luigi configuration as it is now."""
    Register.clear_instance_cache()
    return [type(task)(**task.param_kwargs) for task in tasks]


def _sections_for(task: SlurmTask) -> dict[str, dict[str, str]]:
    """Return the sections of luigi.cfg that travel with a job: of the task, of its requirements, of the project.

    The job reads other sections itself. Passwords stand in those of Luigi and of other programs.
    """
    configuration = get_config()
    names = configuration.sections()
    configs, tasks = _projects_sections(tuple(names), len(Register.task_names()))
    needed = {task.get_task_family(), *configs}
    if not tasks <= needed:
        needed |= {need.get_task_family() for need in task.deps()}
    common = configuration.defaults().items()
    return {name: dict(configuration.items(name, raw=True) - common) for name in names if name in needed}


@functools.lru_cache(maxsize=64)
def _projects_sections(names: tuple[str, ...], _registered: int) -> tuple[set[str], set[str]]:
    """Return the sections among `names` of the project's `luigi.Config`s, and those of its tasks."""
    configs: set[str] = set()
    tasks: set[str] = set()
    for name in names:
        with suppress(TaskClassException):
            kind = Register.get_task_cls(name)
            if name not in SECTIONS and kind.__module__.partition(".")[0] != "luigi":
                (configs if issubclass(kind, luigi.Config) else tasks).add(name)
    return configs, tasks


@functools.cache
def _names(task: type[SlurmTask]) -> frozenset[str]:
    return frozenset(name for name, _ in task.get_params())


@functools.cache
def _told(task: type[SlurmTask], only_significant: bool, only_public: bool) -> list[tuple[str, luigi.Parameter]]:
    """Return the names and parameters of a class that `to_str_params` tells."""
    hidden = {ParameterVisibility.PRIVATE, *([ParameterVisibility.HIDDEN] if only_public else [])}
    return [
        (name, parameter)
        for name, parameter in task.get_params()
        if parameter.visibility not in hidden and (parameter.significant or not only_significant)
    ]


@functools.cache
def _defaults(task: type[SlurmTask]) -> list[tuple[str, bool, Any]]:
    """Return each parameter's name, whether it is significant, and its default."""
    return [(name, parameter.significant, hashable(parameter._default)) for name, parameter in task.get_params()]


@functools.lru_cache(maxsize=16)
def _retry_count(_section: Section) -> int:
    return int(get_config().getint("scheduler", "retry_count", 1))


_completed = functools.lru_cache(maxsize=1024)(Resources.completed)


@functools.lru_cache(maxsize=256)
def _configured(task: type[SlurmTask], parser: Any, section: Section) -> dict[str, tuple[str, Any]]:
    """The names and values of resources and options from configuration and command line, parts of the key."""
    family = task.get_task_family()
    return {
        name: (name, hashable(parameter.task_value(family, name)))
        for name, parameter in task.get_params()
        if name in (*RESOURCE_NAMES, *OPTION_NAMES, *_CLUSTER_NAMES) and parameter.has_task_value(family, name)
    }
