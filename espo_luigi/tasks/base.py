"""`EspoTask`, the base of all rules: opens the inputs, calls `compute`, publishes the outputs with their markers."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import luigi
import xarray as xr

from espo_luigi import store
from espo_luigi.catalog import Match
from espo_luigi.config.paths import check_wildcard
from espo_luigi.driver.task import SlurmTask
from espo_luigi.errors import InputChangedError, ParameterError, not_one_of
from espo_luigi.tasks import staleness
from espo_luigi.tasks.context import RunContext, context
from espo_luigi.tasks.extent import files_and_bytes, size_of
from espo_luigi.tasks.ports import BoundOutput, DependencyHelpers, InputPort, OutputPort, ZarrInfo, kept_ports, ports_of
from espo_luigi.tasks.settings import settings

logger = logging.getLogger(__name__)

# Chunks of a shard along each dimension: 8 of 4 years x 50 x 50 cells make files of some 100 MB.
SHARD_CHUNKS = 2
_PACKAGES = ("espo_luigi", "xarray", "xclim", "xsdba", "numpy", "zarr", "dask")


class WildcardParameter(luigi.Parameter):
    """A parameter that only takes what the configuration or the catalogue holds; `choices` says what that is."""

    def choices(self, run: RunContext) -> list[str]:
        """Return all valid values."""
        raise NotImplementedError

    def check(self, name: str, value: str, task: str) -> None:
        """Raise `ParameterError`, with the choices, if `value` is not one of them."""
        check_wildcard(name, value)
        choices = self.choices(context())
        if value not in choices:
            raise ParameterError(f"{task}: {not_one_of(name, value, choices)}")


class SimulationParameter(WildcardParameter):
    """A simulation's id, as in the catalogue."""

    def choices(self, run: RunContext) -> list[str]:
        """Return the ids that the configuration's search finds."""
        return list(run.simulations)


class RegionParameter(WildcardParameter):
    """A region, from ``custom.regions``."""

    def choices(self, run: RunContext) -> list[str]:
        """Return the configuration's regions."""
        return list(run.config.custom.regions)


class VariableParameter(WildcardParameter):
    """A variable to adjust, from ``biasadjust.variables``."""

    def choices(self, run: RunContext) -> list[str]:
        """Return the variables that the configuration adjusts."""
        return list(run.config.biasadjust.variables)


class CalendarParameter(WildcardParameter):
    """The calendar of a copy of the reference."""

    def choices(self, run: RunContext) -> list[str]:
        """Return the two calendars in which training is done."""
        return ["noleap", "360_day"]


class DiagDomainParameter(WildcardParameter):
    """A domain of the official diagnostics, from ``off-diag.domains``."""

    def choices(self, run: RunContext) -> list[str]:
        """Return the configuration's domains."""
        return list(run.config.off_diag.domains) if run.config.off_diag else []


class EspoTask(DependencyHelpers, SlurmTask):
    """A rule: parameters (the wildcards), named inputs (`in_…`), named outputs (`out_…`), resources, and `compute`."""

    # What jobs import, some of it only when they start: a forked one finds it there.
    preload: ClassVar[tuple[str, ...]] = (
        *SlurmTask.preload,
        "espo_luigi.science.adjust.quantile_mapping",
        "espo_luigi.store.archive",
        "espo_luigi.store.link",
        "espo_luigi.store.read",
        "scipy.spatial",
        "xclim",
        "xsdba",
        "netCDF4",
    )

    # Inputs that `compute` cuts into blocks itself, so that each block reads what it needs (`open_store`, cut=False).
    uncut: ClassVar[tuple[str, ...]] = ()
    # The keys of the configuration on which the outputs depend, beside those of what they are made from. `{var}` is
    # this task's; `*` stands for the names below a key, and their order.
    reads: ClassVar[tuple[str, ...]] = ()
    # How many values the outputs have for each cell, day and variable, at most; 0: hardly any.
    values_in_outputs: ClassVar[float] = 0.0
    # Whether the files of the outputs, but for archives, are those of the inputs, linked.
    only_links: ClassVar[bool] = False
    # Whether other tasks' outputs are made of this one's; else they only wait for it.
    is_material: ClassVar[bool] = True
    # Whether it is about all of a run: a part of the run is without it, unless its rule is named.
    is_about_all: ClassVar[bool] = False
    _began_with = ""

    def compute(self, *args: Any, **inputs: Any) -> xr.Dataset | Mapping[str, xr.Dataset]:
        """Return the output (or the outputs, by port name without ``out_``), lazily, from the opened inputs."""
        raise NotImplementedError

    @property
    def context(self) -> RunContext:
        """The configuration and the catalogue of this run."""
        return context()

    def path_fields(self) -> dict[str, str]:
        """Return the fields of this task's path templates."""
        return self.context.fields | self.wildcards

    def dask_settings(self) -> dict[str, Any]:
        """Return the configuration's Dask settings."""
        return dict(self.context.config.dask_settings)

    def dask_client(self) -> dict[str, Any]:
        """Return the configuration's ``dask.client``, but no dashboard port, which jobs on one node would share."""
        return {name: value for name, value in self.context.config.dask_client.items() if name != "dashboard_address"}

    @classmethod
    def expected(cls, name: str) -> Sequence[str]:
        """Return what may be given for a parameter; what the configuration or the catalogue holds of a wildcard."""
        parameter = getattr(cls, name)
        return parameter.choices(context()) if isinstance(parameter, WildcardParameter) else super().expected(name)

    def check(self) -> None:
        """Raise an error if a wildcard or a resource is not possible."""
        super().check()
        _ = self.context.folders_are_writable
        for name, parameter in self.get_params():
            if isinstance(parameter, WildcardParameter):
                parameter.check(name, getattr(self, name), self.get_task_family())

    def requires(self) -> list[luigi.Task]:
        """Return the tasks that make this one's inputs, as its ports say."""
        for name, _ in ports_of(type(self), InputPort):
            getattr(self, name)
        wired = [value for name, value in vars(self).items() if name.startswith("in_")]
        tasks = {task for value in wired for task in self._tasks_behind(value)}
        return sorted(tasks, key=lambda task: task.task_id)

    def _tasks_behind(self, value: Any) -> Iterable[luigi.Task]:
        """Return the tasks of what an input was wired to; sciluigi, which takes anything, would render their paths."""
        ours = value if isinstance(value, list) else [value]
        if all(isinstance(one, BoundOutput) for one in ours):
            return {one.task for one in ours}
        return self._add_upstream_tasks(set(), value)

    def output(self) -> list[luigi.Target]:
        """Return the targets of all output ports."""
        return [info.target for info in self._infos().values()]

    def complete(self) -> bool:
        """Return True if every kept output exists (or, where all are temporary, every output)."""
        markers = self._markers()
        if not markers or not staleness.of_one_piece(markers):
            return False
        path, marker = next((path, marker) for path, marker in markers.items() if marker is not None)
        if settings().rerun == "stale":
            return not self._changes(marker)
        if changed := staleness.changes(self.context, marker, files=False):
            staleness.warn(path, changed, self.context.config.hash)
        return True

    def _markers(self) -> dict[Path, store.Marker | None]:
        return {info.path: info.target.marker() for info in self.decisive_infos()}

    def decisive_infos(self) -> list[ZarrInfo]:
        """Return the outputs by which it is complete: those that are kept, or all where none is."""
        return [getattr(self, name)() for name in kept_ports(type(self)) or dict(ports_of(type(self), OutputPort))]

    def stale(self, *, files: bool = True) -> list[str]:
        """Return the keys of settings, raw files and inputs that have changed since; without `files`, of settings."""
        marker = self._one_marker()
        if marker is None:
            return []
        return self._changes(marker) if files else staleness.changes(self.context, marker, files=False)

    def _one_marker(self) -> store.Marker | None:
        return next((marker for marker in self._markers().values() if marker is not None), None)

    def _changes(self, marker: store.Marker) -> list[str]:
        material = [info for info in self.input_infos() if _is_material(info)]
        return staleness.changes(self.context, marker, files=True) + staleness.made_anew(material, marker)

    def reading(self) -> list[str]:
        """Return the keys of the configuration that this task reads, `reads` with its wildcards."""
        return [key.format_map(self.wildcards) for key in self.reads]

    def delete_temporary(self) -> None:
        """Delete the temporary outputs, unless ``[espo] keep_temporary`` says otherwise."""
        for path in () if settings().keep_temporary else self.temporary_paths():
            if store.is_complete(path):
                logger.debug("Deleting %s: no task needs it any more", path)
                store.remove(path)

    def has_no_temporary(self) -> bool:
        """Return True if none of the temporary outputs is there."""
        return not any(store.is_complete(path) for path in self.temporary_paths())

    def temporary_paths(self) -> list[Path]:
        """Return the paths of the temporary outputs, whether they are there or not."""
        return [getattr(self, name)().path for name, port in ports_of(type(self), OutputPort) if port.is_temporary]

    @classmethod
    def exclusive_folders(cls) -> tuple[Path, ...]:
        """Return the folders of temporary and final files: two runs would delete what the other one reads."""
        paths = context().config.paths
        return paths.tmpdir, paths.final

    def configuration_id(self) -> str:
        """Return the hash of the configuration as it was parsed, which the outputs' markers carry, too."""
        return self.context.config.hash

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Let `work` publish only what it made of inputs that stayed the same, and go on from blocks made of these."""
        stores, raw = [info.path for info in self.input_infos()], self.raw_files()
        with store.unchanged(stores, raw):
            self._began_with = store.fingerprint(stores, raw)
            yield

    def work_size(self) -> float:
        """Return area times days times variables."""
        return size_of(self.context.config, self.wildcards)

    def work_made(self) -> dict[str, int]:
        """Return the files and the bytes of the outputs, without those that are links to an input's."""
        ports = [port for _, port in ports_of(type(self), OutputPort) if port.packed_from or not self.only_links]
        found = [files_and_bytes(port.path_of(self)) for port in ports]
        return {"files": sum(files for files, _ in found), "bytes": sum(size for _, size in found)}

    def raw(self) -> Match | None:
        """Return the dataset of the catalogue that `work` reads."""
        return None

    def raw_files(self) -> list[Path]:
        """Return its files."""
        raw = self.raw()
        return raw.files if raw is not None else []

    def work(self) -> None:
        """Open the inputs, compute, and publish each output."""
        inputs = {
            name.removeprefix("in_"): _opened(getattr(self, name), cut=name not in self.uncut)
            for name, _ in ports_of(type(self), InputPort)
        }
        outputs = self.compute(**inputs)
        self.publish(outputs if isinstance(outputs, Mapping) and not isinstance(outputs, xr.Dataset) else {"": outputs})

    def publish(self, outputs: Mapping[str, xr.Dataset]) -> None:
        """Write each output beside its final name and rename it; then pack what is to be packed."""
        marker = self.marker()
        for name, port in ports_of(type(self), OutputPort):
            path = getattr(self, name)().path
            if port.packed_from is not None:
                source = getattr(self, port.packed_from)().path
                if port.packed_from.startswith("out_"):
                    _check_ours(source, marker)
                self._pack(source, path, marker)
            else:
                dataset = outputs[name.removeprefix("out_")] if "" not in outputs else outputs[""]
                self.write(dataset.assign_attrs(self.provenance(marker)), path, marker)

    def layout(self, dataset: xr.Dataset) -> dict[str, Any]:
        """Return keywords of `write_store` for an output; by default files are Dask's blocks."""
        return {}

    def write(self, dataset: xr.Dataset, path: Path, marker: store.Marker) -> None:
        """Compute one output and publish it."""
        store.write_store(dataset, path, marker, key=self._work_key(marker), **self.layout(dataset))

    def _work_key(self, marker: store.Marker) -> str:
        """Return what the values of the outputs depend on, or nothing where the inputs are not guarded."""
        return f"{marker.id}; {self._began_with}" if self._began_with else ""

    def marker(self) -> store.Marker:
        """Return how the outputs are made: task, parameters, versions, configuration and inputs."""
        inputs = {info: store.read_marker(info.path) for info in self.input_infos()}
        material = [marker for info, marker in inputs.items() if _is_material(info)]
        return store.Marker(
            task=self.get_task_family(),
            parameters=self.wildcards,
            versions=_versions(),
            inputs=_ids(inputs),
            config_hash=self.context.config.hash,
            made_of=staleness.made_of(self.context, self.reading(), self.raw(), material),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def input_ids(self) -> dict[str, str]:
        """Return the id of each input's marker now, by its path; an empty one of what is not there."""
        return _ids({info: store.read_marker(info.path) for info in self.input_infos()})

    def provenance(self, marker: store.Marker) -> dict[str, str]:
        """Return the global attributes that say how an output was made."""
        return {
            "espo_luigi_task": self.label(),
            "espo_luigi_config": marker.config_hash,
            "espo_luigi_versions": ", ".join(f"{name} {version}" for name, version in marker.versions.items()),
        }

    def link(self, source: Path, destination: Path) -> None:
        """Publish an input's files as this task's output, without copying."""
        marker = self.marker()
        store.link_store(source, destination, marker, self.provenance(marker))

    def _pack(self, source: Path, path: Path, marker: store.Marker) -> None:
        if settings().final_format == "zip":
            store.pack(source, path, marker)
            return
        dataset = store.open_store(source)
        store.write_store(
            dataset,
            path,
            marker,
            shards={name: SHARD_CHUNKS * sizes[0] for name, sizes in dataset.chunksizes.items()},
            key=self._work_key(marker),
        )

    def _infos(self) -> dict[str, ZarrInfo]:
        return {name: getattr(self, name)() for name, _ in ports_of(type(self), OutputPort)}

    def input_infos(self) -> list[ZarrInfo]:
        """Return the stores that its inputs are."""
        infos: list[Any] = []
        for name, _ in ports_of(type(self), InputPort):
            value = getattr(self, name)
            infos.extend(value if isinstance(value, list) else [value])
        return [_info(one) for one in infos]


def _is_material(info: ZarrInfo) -> bool:
    return getattr(info.task, "is_material", True)


def _ids(inputs: Mapping[ZarrInfo, store.Marker | None]) -> dict[str, str]:
    return {str(info.path): marker.id if marker is not None else "" for info, marker in inputs.items()}


@functools.cache
def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


def every_region(task: EspoTask) -> list[str]:
    """Return the configuration's regions, from south to north."""
    return list(task.context.config.custom.regions)


def _check_ours(path: Path, marker: store.Marker) -> None:
    """Check that the store that is to be packed is the one that this task has just published."""
    found = store.read_marker(path)
    if found is None or found.id != marker.id:
        raise InputChangedError(
            f"{path} was published by this job with the marker {marker.id}, and has {found and found.id} now: another "
            "job works in that folder. It is not packed; the task is tried again"
        )


def _info(value: Any) -> ZarrInfo:
    return value() if callable(value) else value


def _opened(value: Any, *, cut: bool) -> Any:
    if isinstance(value, list):
        return [_opened(one, cut=cut) for one in value]
    path = _info(value).path
    return store.read_table(path) if path.suffix == ".csv" else store.open_store(path, cut=cut)
