"""`EspoTask`, the base of all rules: opens the inputs, calls `compute`, publishes the outputs with their markers."""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import itertools
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Literal

import luigi
import xarray as xr

from espo_luigi import store
from espo_luigi.catalog.files import is_zarr
from espo_luigi.driver.task import DASKS_MODULES, SlurmTask
from espo_luigi.errors import EspoError, InputChangedError, ParameterError, named_by_part, not_one_of
from espo_luigi.fields import check_wildcard
from espo_luigi.jobs.node.claim import check_claim
from espo_luigi.jobs.order import JobOrder, label_of
from espo_luigi.jobs.resources import Resources
from espo_luigi.science.quality import is_flags
from espo_luigi.store.inventory import read_inventory, size_bytes
from espo_luigi.store.partials import bytes_begun
from espo_luigi.store.publish import check_replaceable
from espo_luigi.tasks import partition, staleness
from espo_luigi.tasks.context import RunContext, context, settings
from espo_luigi.tasks.cost import Experience
from espo_luigi.tasks.ports import BoundOutput, DependencyHelpers, InputPort, OutputPort, ZarrInfo, ZarrTarget, ports_of

logger = logging.getLogger(__name__)

# Chunks of a shard along each dimension: 8 of 4 years x 50 x 50 cells make files of some 100 MB.
SHARD_CHUNKS = 2
# A job without workers gets so many times the bytes of its inputs' arrays: all of them, in double precision, and twice
# as much that is computed from them.
_MEMORY_BY_INPUTS = 6
# Of larger inputs, several workers make more than they cost: a session takes some 5 s to start.
_LARGEST_WITHOUT_WORKERS = 2**29
_PACKAGES = ("espo_luigi", "xarray", "xclim", "xsdba", "numpy", "numba", "scipy", "zarr", "dask")


class WildcardParameter(luigi.Parameter):
    """A parameter that takes only names from the configuration or the catalogue.

    Parameters
    ----------
    choices : callable
        Returns all valid names of a run.
    selected_by : str
        The option of `All` and `espo plan` that selects such names; a rule's command line takes it, too.
    takes_parts : bool
        Whether the command line takes a part of a simulation's id; the task gets the whole id.
    """

    def __init__(
        self, choices: Callable[[RunContext], Collection[str]], selected_by: str = "", takes_parts: bool = False
    ) -> None:
        super().__init__()
        self.takes_parts = takes_parts
        self.choices = choices
        self.selected_by = selected_by

    def check(self, name: str, value: str, task: str) -> None:
        """Raise `ParameterError`, with the choices, if `value` is none of them."""
        check_wildcard(name, value)
        choices = self.choices(context())
        if value not in choices:
            wrong = not_one_of(self.selected_by or name, value, choices, takes_parts=self.takes_parts)
            raise ParameterError(f"{task}: {wrong}")

    def parse(self, x: str) -> str:
        """Return the value; of a part that a person has typed, the whole, unless it belongs to several or none."""
        if self.takes_parts and isinstance(x, _Typed):
            with suppress(EspoError, OSError):  # `check` raises them
                found = named_by_part(x, self.choices(context()))
                return found[0] if len(found) == 1 else str(x)
        return str(x)

    # A class method in Luigi, which calls it on the parameter.
    def _parser_kwargs(  # type: ignore[override]
        self, param_name: str, task_name: str | None = None
    ) -> dict[str, Any]:
        keywords = dict(super()._parser_kwargs(param_name, task_name))
        also = ["--" + "-".join(filter(None, [task_name, self.selected_by]))] if self.selected_by else []
        keywords["action"] = functools.partial(_Stored, also=also)
        return keywords


class _Typed(str):
    """A value from a command line."""


class _Stored(argparse.Action):
    """Stores an option's value, given behind Luigi's own flag or behind the flags `also`, as typed."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, also: Sequence[str], **keywords: Any) -> None:
        super().__init__([*option_strings, *also], dest, **keywords)

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, _Typed(values))


SimulationParameter = functools.partial(WildcardParameter, lambda run: run.simulations, takes_parts=True)
PoolParameter = functools.partial(WildcardParameter, lambda run: run.pools, "sim-id", takes_parts=True)
PieceParameter = functools.partial(WildcardParameter, lambda run: partition.pieces(run), "region")
AdjustedPieceParameter = functools.partial(WildcardParameter, lambda run: partition.adjusted_pieces(run), "region")
RegriddedPieceParameter = functools.partial(
    WildcardParameter, lambda run: dict.fromkeys(partition.pieces(run) + partition.adjusted_pieces(run)), "region"
)
VariableParameter = functools.partial(WildcardParameter, lambda run: run.config.biasadjust.variables)
PublishedParameter = functools.partial(WildcardParameter, lambda run: run.config.published)
DerivedParameter = functools.partial(WildcardParameter, lambda run: run.config.derived)
CalendarParameter = functools.partial(WildcardParameter, lambda run: ["noleap", "360_day"])
DiagDomainParameter = functools.partial(WildcardParameter, lambda run: run.domains)


class EspoTask(DependencyHelpers, SlurmTask):
    """A rule: parameters (the wildcards), named inputs (`in_…`), named outputs (`out_…`), resources, and `compute`."""

    # Modules that jobs import, some of them only when they start: a forked job finds them imported. Dask's are among
    # them, as the server imports those of the first job alone, which may be without Dask.
    preload: ClassVar[tuple[str, ...]] = (
        *DASKS_MODULES,
        "espo_luigi.methods.dqm.quantile_mapping",
        "espo_luigi.store.archive",
        "espo_luigi.store.link",
        "espo_luigi.store.read",
        "scipy.spatial",
        "xclim",
        "xsdba",
        "netCDF4",
    )

    # Inputs that `compute` cuts into blocks itself: each block then reads only its own part (`open_store`, cut=False).
    uncut: ClassVar[tuple[str, ...]] = ()
    # The keys of the configuration that the outputs depend on; the inputs' markers add the inputs' own keys. `{var}` is
    # this task's. `*` stands for the names below a key, and their order.
    reads: ClassVar[tuple[str, ...]] = ()
    # Whether the outputs consist of links to the inputs' files; archives are always written.
    only_links: ClassVar[bool] = False
    # Whether outputs of later tasks are made of this task's output; else they only wait for it.
    is_material: ClassVar[bool] = True
    # Whether the task is about the whole run: a part of a run includes it only if its rule is named, and it is complete
    # only if it shows the present inputs.
    is_about_all: ClassVar[bool] = False
    # Whether it reads the reference of other pieces, too, which a part of a run then makes.
    spans_pieces: ClassVar[bool] = False
    # The dataset of the catalogue that `work` reads, if any.
    reads_raw: ClassVar[Literal["", "reference", "simulation"]] = ""
    # Fingerprint of the inputs when the job began.
    _began_with = ""

    @property
    def context(self) -> RunContext:
        """The configuration and the catalogue of this run."""
        return context()

    def dask_settings(self) -> dict[str, Any]:
        """Return the configuration's Dask settings."""
        return dict(self.context.config.dask_settings)

    def dask_client(self) -> dict[str, Any]:
        """Return the configuration's ``dask.client``, but no dashboard port, which jobs on one node would share."""
        return {name: value for name, value in self.context.config.dask_client.items() if name != "dashboard_address"}

    @classmethod
    def exclusive_folders(cls) -> tuple[Path, ...]:
        """Return the folders of temporary and final files: two drivers would delete each other's inputs."""
        paths = context().config.paths
        return paths.tmpdir, paths.final

    def configuration_id(self) -> str:
        """Return the hash of the parsed configuration, which the outputs' markers contain, too."""
        return self.context.config.hash

    def check(self) -> None:
        """Raise an error if a wildcard or resource is not possible, or a foreign file lies at an output's path."""
        super().check()
        _ = self.context.folders_are_writable
        for name, parameter in self.get_params():
            if isinstance(parameter, WildcardParameter):
                parameter.check(name, getattr(self, name), self.get_task_family())
        self.check_outputs()
        _ = self._has_looked

    @functools.cached_property
    def _has_looked(self) -> bool:
        self.look()
        return True

    def look(self) -> None:
        """Raise an error for what takes a while to find out; `check` calls it until it passes."""

    def check_outputs(self) -> None:
        """Raise `StoreError` if an output's path has what is not ours: it would not be replaced."""
        for target in self.output():
            check_replaceable(target.path)

    def requires(self) -> list[luigi.Task]:
        """Return the tasks that make this task's inputs, as its ports say."""
        for name, _ in ports_of(type(self), InputPort):
            getattr(self, name)
        tasks: set[luigi.Task] = set()
        for value in [value for name, value in vars(self).items() if name.startswith("in_")]:
            bound = value if isinstance(value, list) else [value]
            if all(isinstance(each, BoundOutput) for each in bound):
                tasks |= {each.task for each in bound}
            else:  # sciluigi's own way takes anything, and would render the path of each of ours
                self._add_upstream_tasks(tasks, value)
        return sorted(tasks, key=lambda task: task.task_id)

    def output(self) -> list[ZarrTarget]:
        """Return the targets of all output ports."""
        return [getattr(self, name)().target for name, _ in self.ports()]

    def ports(self) -> Sequence[tuple[str, OutputPort]]:
        """Return the output ports that this task has, with their names: by default all of its class."""
        has_flags = self.context.config.flagging is not None
        return [(name, port) for name, port in ports_of(type(self), OutputPort) if has_flags or not port.of_flags]

    def decisive_infos(self) -> list[ZarrInfo]:
        """Return the outputs that decide whether the task is complete: those kept, or all if none is kept."""
        ports = self.ports()
        kept = [name for name, port in ports if not port.is_temporary]
        return [getattr(self, name)() for name in kept or dict(ports)]

    def input_infos(self) -> list[ZarrInfo]:
        """Return the stores that are the task's inputs."""
        infos: list[Any] = []
        for name, _ in ports_of(type(self), InputPort):
            value = getattr(self, name)
            infos.extend(value if isinstance(value, list) else [value])
        return [_info(each) for each in infos]

    def temporary_paths(self) -> list[Path]:
        """Return the paths of the temporary outputs, whether they exist or not."""
        return [getattr(self, name)().path for name, port in self.ports() if port.is_temporary]

    # The scratch space of the temporary outputs.

    def scratch_group(self) -> str:
        """Return the task's pool; "" for tasks of the reference or of the whole run."""
        return next(iter(partition.pools_of(self)), "")

    @classmethod
    @functools.cache
    def temporary_share(cls) -> float:
        """Return the part of the outputs' bytes that is temporary; links have no bytes."""
        ports = [port for _, port in ports_of(cls, OutputPort) if not port.of_flags]
        return sum(port.is_temporary for port in ports) / len(ports) if ports and not cls.only_links else 0.0

    @classmethod
    def scratch_to_write(cls, tasks: Sequence[SlurmTask]) -> list[float]:
        """Return the bytes of temporary outputs that each task is expected to write."""
        experience = Experience(settings().experienced)
        shares = [task.temporary_share() if isinstance(task, EspoTask) else 0.0 for task in tasks]
        return [share and share * experience.size_bytes(task) for share, task in zip(shares, tasks, strict=True)]

    @classmethod
    def scratch_on_disk(cls, tasks: Sequence[SlurmTask]) -> list[int]:
        """Return the bytes of temporary outputs and of their partials; links count, as they outlive their source."""
        paths = [task.temporary_paths() if isinstance(task, EspoTask) else [] for task in tasks]
        begun = iter(bytes_begun([path for of_task in paths for path in of_task]))
        return [sum((size_bytes(path) or 0) + next(begun) for path in of_task) for of_task in paths]

    # The state of the outputs: `staleness` has the table of these four.

    def complete(self) -> bool:
        """Return True if the decisive outputs exist and were made together; with ``rerun = stale``, unchanged, too."""
        markers = {info.path: info.target.marker() for info in self.decisive_infos()}
        if not markers or not staleness.made_together(markers):
            return False
        path, marker = next((path, marker) for path, marker in markers.items() if marker is not None)
        if self.is_about_all and dict(marker.inputs) != self.input_ids():
            return False
        if settings().rerun == "stale":
            return not staleness.changes(self.context, marker, self.keys_read, self.input_infos())
        if changed := staleness.changed_settings(self.context, marker, self.keys_read):
            staleness.warn(path, changed, self.context.config.hash)
        return True

    def stale(self, *, files: bool = True) -> list[str]:
        """Return the settings, raw files and inputs that have changed since; without `files`, the settings."""
        markers = (info.target.marker() for info in self.decisive_infos())
        made_by = next((marker for marker in markers if marker is not None), None)
        if made_by is None:
            return []
        if not files:
            return staleness.changed_settings(self.context, made_by, self.keys_read)
        return staleness.changes(self.context, made_by, self.keys_read, self.input_infos())

    def delete_temporary(self) -> None:
        """Delete the temporary outputs, unless ``[espo] keep_temporary`` says otherwise."""
        for path in () if settings().keep_temporary else self.temporary_paths():
            if store.is_complete(path):
                logger.debug("Deleting %s: no task needs it any more", path)
                store.remove(path)

    def reads_temporary(self, needs: Sequence[luigi.Task]) -> Sequence[luigi.Task]:
        """Return the tasks of which it reads a temporary output; of others, it reads what they keep, as archives."""
        read = {info.path for info in self.input_infos()}
        return [need for need in needs if not (isinstance(need, EspoTask) and read.isdisjoint(need.temporary_paths()))]

    def has_no_temporary(self) -> bool:
        """Return True if none of the temporary outputs exists."""
        return not any(store.is_complete(path) for path in self.temporary_paths())

    # The outputs' marker, and its contents.

    def reading(self) -> list[str]:
        """Return the keys of the configuration that this task reads: `reads` with its wildcards."""
        # Only runs with flags, or downscaling, have the fingerprint of their section.
        sections = {"flags": self.context.config.flagging, "downscaling": self.context.config.downscaling}
        idle = [name for name, section in sections.items() if section is None]
        read = [key for key in self.reads if key.partition(".")[0] not in idle]
        return [key.format_map(self.wildcards) for key in read] + self._pool_key()

    def keys_read(self) -> frozenset[str]:
        """Return the keys, with wildcards, that this task and those before it read for their outputs."""
        known = self.context.keys_read
        if self.task_id not in known:
            # The same rule's tasks have the same rules before them.
            before = {type(info.task): info.task for info in self.input_infos() if staleness.is_material(info)}
            others = (task.keys_read() for task in before.values() if isinstance(task, EspoTask))
            known[self.task_id] = frozenset(self.reads).union(*others)
        return known[self.task_id]

    def _pool_key(self) -> list[str]:
        """Return the key of the members of this task's pool, unless it is a pool of one by its name."""
        pool = getattr(self, "pool", "")
        return [f"{partition.POOL_KEY}{pool}"] if pool and partition.members(self.context, pool) != [pool] else []

    def order(self, engine_name: str = "") -> JobOrder:
        """Return this task's job, with the members of its pool."""
        order = super().order(engine_name)
        if not self._pool_key():
            return order
        members = json.dumps({self.pool: partition.members(self.context, self.pool)})
        espo = {**order.settings["espo"], "pool_members": members}
        return replace(order, settings={**order.settings, "espo": espo})

    def raw(self) -> Any:
        """Return the dataset (`Match`) of the catalogue that `work` reads, as `reads_raw` says, or None."""
        if self.reads_raw == "reference":
            return self.context.reference()
        return self.context.simulation(self.wildcards["sim_id"]) if self.reads_raw else None

    def days(self) -> Any:
        """Return the dataset by day, as `open_match` opens it: `raw`, or the store of `Daily` if that is by hours."""
        daily = getattr(self, "in_daily", [])
        return self.raw().by_day(_info(daily).path) if daily else self.raw()

    def raw_files(self) -> list[Path]:
        """Return the files of that dataset."""
        raw = self.raw()
        return raw.files if raw is not None else []

    def input_ids(self) -> dict[str, str]:
        """Return the id of each input's present marker, by the input's path; "" for a missing input."""
        return _ids({info: store.read_marker(info.path) for info in self.input_infos()})

    def read_for(self, outputs: Iterable[xr.Dataset]) -> list[str]:
        """Return further keys that decide what these outputs hold."""
        return []

    def versions(self) -> dict[str, str]:
        """Return the versions of the packages that can change the outputs' numbers."""
        name = self.context.config.production
        return package_versions() | (version_of_plugin("espo_luigi.productions", name) if name else {})

    def marker(self, outputs: Iterable[xr.Dataset] = ()) -> store.Marker:
        """Return how the outputs are made: task, parameters, versions, configuration and inputs."""
        inputs = {info: store.read_marker(info.path) for info in self.input_infos()}
        material = [marker for info, marker in inputs.items() if staleness.is_material(info)]
        keys = [*self.reading(), *self.read_for(outputs)]
        return store.Marker(
            task=self.get_task_family(),
            parameters=self.wildcards,
            versions=self.versions(),
            inputs=_ids(inputs),
            config_hash=self.context.config.hash,
            fingerprints=staleness.fingerprints_of(self.context, keys, self.raw(), material),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    # The work, in the job.

    @contextmanager
    def publishing(self) -> Iterator[Callable[[], Mapping[str, int]]]:
        """Let the job publish only while it has its claim.

        A job that has the claim, or is a child or a step of the driver that has the locks, is the only one to do this
        work: it takes over the blocks that earlier starts have left.
        """
        with store.Publication(claim=check_claim).in_force() as publication:
            yield publication.blocks

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Let `work` publish only if its inputs stay unchanged, and resume only from blocks of the same inputs.

        Raises `ConfigurationError` if inputs were adjusted by settings that differ; the page about all tells of that.
        """
        if not self.is_about_all:
            infos = filter(staleness.is_material, self.input_infos())
            staleness.require_agreement(self.context, ((info.path, store.read_marker(info.path)) for info in infos))
        stores, raw = [info.path for info in self.input_infos()], self.raw_files()
        with store.unchanged(stores, raw) as self._began_with:
            yield

    def work(self) -> None:
        """Open the inputs, compute, and publish each output."""
        inputs = {
            name.removeprefix("in_"): _opened(getattr(self, name), cut=name not in self.uncut)
            for name, _ in ports_of(type(self), InputPort)
        }
        outputs = self.compute(**inputs)
        self.publish(outputs if isinstance(outputs, Mapping) and not isinstance(outputs, xr.Dataset) else {"": outputs})

    def compute(self, *args: Any, **inputs: Any) -> xr.Dataset | Mapping[str, xr.Dataset]:
        """Return the output (or the outputs, by port name without ``out_``), lazily, from the opened inputs."""
        raise NotImplementedError

    def publish(self, outputs: Mapping[str, xr.Dataset]) -> None:
        """Write each output beside its final name and rename it; then pack the archives."""
        marker = self.marker(outputs.values())
        for name, port in self.ports():
            path = getattr(self, name)().path
            if port.packed_from is not None:
                source = getattr(self, port.packed_from)().path
                found = store.read_marker(source) if port.packed_from.startswith("out_") else marker
                if found is None or found.id != marker.id:
                    raise InputChangedError(
                        f"{source} was published by this job with the marker {marker.id}, and has "
                        f"{found and found.id} now: another job works in that folder. It is not packed; the task is "
                        "tried again"
                    )
                self._pack(source, path, marker, of_flags=port.of_flags)
            else:
                dataset = outputs[name.removeprefix("out_")] if "" not in outputs else outputs[""]
                self.write(dataset.assign_attrs(provenance(marker)), path, marker)

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return keywords of `write_store` for an output; by default files are Dask's blocks."""
        return {}

    def write(self, dataset: xr.Dataset, path: Path, marker: store.Marker) -> None:
        """Compute an output and publish it."""
        store.write_store(dataset, path, marker, fingerprint=self._fingerprint(marker), **self.layout(dataset))

    def _fingerprint(self, marker: store.Marker) -> str:
        """Return a key of everything that determines the outputs' values; "" if the inputs are not guarded."""
        return f"{marker.id}; {self._began_with}" if self._began_with else ""

    def _pack(self, source: Path, path: Path, marker: store.Marker, *, of_flags: bool) -> None:
        left_out = [str(name) for name in store.open_store(source).data_vars if is_flags(name) != of_flags]
        if settings().final_format == "zip":
            store.pack(source, path, marker, left_out)
            return
        dataset = store.open_store(source).drop_vars(left_out)
        shards = {name: SHARD_CHUNKS * sizes[0] for name, sizes in dataset.chunksizes.items()}
        store.write_store(dataset, path, marker, shards=shards, fingerprint=self._fingerprint(marker))

    def is_small(self, resources: Resources) -> bool:
        """Return whether the inputs are stores whose arrays are small beside the job's memory.

        Then `work` computes in threads of the job's process, which cannot spill to disk. A rule that opens other data
        than its inputs has to say so itself.
        """
        paths = [info.path for info in self.input_infos() if is_zarr(info.path.name)]
        if self.raw() is not None or not paths:  # nobody has noted the size of what else is read
            return False
        try:
            size = sum(map(store.array_bytes, paths))
        except (OSError, KeyError, TypeError, ValueError, EspoError):  # reading it tells what is wrong
            return False
        is_quick = resources.n_workers == 1 or size <= _LARGEST_WITHOUT_WORKERS
        return is_quick and _MEMORY_BY_INPUTS * size <= resources.memory_bytes

    def work_size(self) -> float:
        """Return area times days times variables."""
        return partition.size_of(self.context, self.wildcards)

    def work_made(self) -> dict[str, int]:
        """Return the number of files and the bytes of the outputs, without links to an input's files."""
        ports = [port for _, port in self.ports() if port.packed_from or not self.only_links]
        made = [_files_and_bytes(port.path_of(self)) for port in ports]
        return {"files": sum(files for files, _ in made), "bytes": sum(size for _, size in made)}


def provenance(marker: store.Marker) -> dict[str, str]:
    """Return the global attributes that say how an output was made."""
    return {
        "espo_luigi_task": label_of(marker.task, marker.parameters),
        "espo_luigi_config": marker.config_hash,
        "espo_luigi_versions": ", ".join(f"{name} {version}" for name, version in marker.versions.items()),
    }


def every_piece(task: EspoTask) -> list[str]:
    """Return all pieces, from south to north, for an input of each."""
    return partition.pieces(task.context)


def every(rule: type[EspoTask]) -> list[EspoTask]:
    """Return all tasks of a rule: each choice of its wildcards, with the defaults of its other parameters.

    Raises
    ------
    ParameterError
        If a parameter that is no wildcard lacks a default.
    """
    choices = {name: kind.choices(context()) for name, kind in rule.get_params() if isinstance(kind, WildcardParameter)}
    try:
        return [rule(**dict(zip(choices, values, strict=True))) for values in itertools.product(*choices.values())]
    except luigi.parameter.MissingParameterException as error:
        raise ParameterError(f"{error}: give it a default, or make it one of the run's wildcards") from error


def _ids(inputs: Mapping[ZarrInfo, store.Marker | None]) -> dict[str, str]:
    return {str(info.path): marker.id if marker is not None else "" for info, marker in inputs.items()}


@functools.cache
def package_versions() -> dict[str, str]:
    """Return the versions of the packages that can change the numbers."""
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


@functools.cache
def version_of_plugin(group: str, name: str) -> dict[str, str]:
    """Return the version of the package that registers a name in an entry-point group, by its name; {} for ours."""
    distributions = [point.dist for point in importlib.metadata.entry_points(group=group) if point.name == name]
    return {found.name: found.version for found in distributions if found is not None}


def _files_and_bytes(path: Path) -> tuple[int, int]:
    """Return how many files a complete store has, and their bytes; two zeros for a missing store."""
    try:
        if path.is_dir():
            inventory = read_inventory(path)
            return (inventory.files, inventory.size_bytes) if inventory else (0, 0)
        return 1, path.stat().st_size
    except OSError:
        return 0, 0


def _info(value: Any) -> ZarrInfo:
    return value() if callable(value) else value


def _opened(value: Any, *, cut: bool) -> Any:
    if isinstance(value, list):
        return [_opened(each, cut=cut) for each in value]
    path = _info(value).path
    return store.read_table(path) if path.suffix == ".csv" else store.open_store(path, cut=cut)
