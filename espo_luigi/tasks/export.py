"""The rules of `espo export`: NetCDF files of each variable of each simulation, and of each indicators' store.

A DRS names and cuts those of simulations. Those of indicators, and of statistics of them, have their stores' names.
"""

from __future__ import annotations

import functools
import logging
import os
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import luigi

from espo_luigi import store
from espo_luigi.catalog.open import open_years
from espo_luigi.errors import EspoError, ParameterError, StoreError, not_one_of
from espo_luigi.export import netcdf
from espo_luigi.export.drs import Drs, check_distinct, has_value, lacking, load_drs
from espo_luigi.export.folder import (
    INPUT_IDS,
    PRODUCT,
    Owner,
    checksums_of,
    export_files,
    files_of,
    is_whole,
)
from espo_luigi.fields import existing_parent
from espo_luigi.jobs.resources import Resources
from espo_luigi.science.extract.dataset import of_all_files
from espo_luigi.tasks.base import EspoTask, PublishedParameter, SimulationParameter
from espo_luigi.tasks.context import RunContext, context, settings
from espo_luigi.tasks.ensembles import ends_of_ensembles
from espo_luigi.tasks.inputs import InputCheck
from espo_luigi.tasks.outcomes import OutcomeTask, ends_of_outcomes
from espo_luigi.tasks.ports import BoundOutput, InputPort, OutputPort
from espo_luigi.tasks.product import final_archives
from espo_luigi.tasks.staleness import DRS_KEY

logger = logging.getLogger(__name__)


class DrsParameter(luigi.Parameter):
    """The name of a DRS, or the path of a file of the user's, which jobs get as an absolute path; "": the run's own."""

    def normalize(self, x: str) -> str:
        """Return the name, or the absolute path."""
        is_path = "/" in x or x.endswith((".yml", ".yaml"))
        return str(Path(x).absolute()) if is_path else x or context().production.drs


class _ChecksumsPort(OutputPort):
    """The checksums of a product's files; FOLDER and FILE of the template are those of the DRS."""

    def path_of(self, task: Any) -> Path:
        """Return the path of the checksums."""
        return checksums_of(task.folder, task.names.stems[task.sim_id, task.var])


class _OutcomePort(InputPort):
    """The store that is exported."""

    def _wire(self, task: Any) -> BoundOutput:
        return outcomes(task.context)[task.outcome]


class ExportTask(EspoTask):
    """A rule of an export, of the port `in_final`."""

    drs, folder = DrsParameter(default=""), luigi.PathParameter(absolute=True)
    resources_default = Resources(n_workers=1, cpus_per_task=1, memory="4GB", time="1000")
    uses_dask = False
    values_in_outputs = 0.5  # deflated
    out_checksums: Any

    def reading(self) -> list[str]:
        """Return the keys of the configuration that are read, and the DRS."""
        return [*super().reading(), f"{DRS_KEY}{self.drs}"]

    def check(self) -> None:
        """Raise an error, too, if the folder belongs to another run, or the archive or the export to other settings."""
        super().check()
        _owner(self).check(self.folder)
        archive = self.in_final()
        made = ((archive.path, archive.task), (self.out_checksums().path, self))
        for path, task in () if settings().rerun == "stale" else made:
            if changed := task.stale(files=False):
                raise ParameterError(
                    f"{path} was made under another configuration (changed since: {', '.join(changed)}): export with "
                    "`--rerun stale`, which makes again what has changed, or with the configuration that made it"
                )

    def check_outputs(self) -> None:
        """Raise an error if the files cannot get their names."""
        if not os.access(there := existing_parent(self.folder), os.W_OK | os.X_OK) or not there.is_dir():
            raise StoreError(f"{self.folder}: {there} is no folder that you may write; choose another folder")
        super().check_outputs()

    def complete(self) -> bool:
        """Return True if the checksums are there, and all files that they name."""
        return super().complete() and is_whole(self.out_checksums().path)

    def product_of(self, source: Path) -> str:
        """Return the path of the exported store below the folder of products."""
        return str(source.absolute().relative_to(self.context.config.paths.final.absolute()))

    def work_made(self) -> dict[str, int]:
        """Return the number of the NetCDF files, and their bytes."""
        made = files_of(self.out_checksums().path)
        return {"files": len(made), "bytes": sum(path.stat().st_size for path in made)}


class Export(ExportTask):
    """Rule `export`, new against ESPO-G: a variable of a simulation as NetCDF files, with their checksums."""

    sim_id, var = SimulationParameter(), PublishedParameter()
    in_final = final_archives(lambda task: task.var)
    out_checksums = _ChecksumsPort("{folder}/FOLDER/FILE.sha256")
    reads = (
        "biasadjust.variables",
        "domain.name",
        "custom.sim_period",
        "extraction.reference.search_data_catalogs.other_search_criteria.source",
        "project.name",
        "project.version",
    )

    @property
    def names(self) -> Names:
        """The names of all exports of the run by this DRS."""
        return names_of(self.context, load_drs(self.drs))

    def check_outputs(self) -> None:
        """Raise an error if the files have no names, or cannot get them, or if any export lacks an attribute."""
        if self.var not in (known := list(self.context.archives(self.sim_id))):
            raise ParameterError(f"{self.get_task_family()}: {not_one_of('var', self.var, known)}")
        self.names.check([self.sim_id])
        super().check_outputs()

    def work(self) -> None:
        """Write the files, and the checksums last."""
        drs, source = load_drs(self.drs), self.in_final().path
        product = store.open_store(source, cut=False)
        fields = self.names.fields[self.sim_id, self.var] | {"created": datetime.now(UTC).date().isoformat()}
        described = netcdf.described(
            product, self.var, drs.name_of(self.var), drs.attributes_for(fields), self.context.config.table
        ).assign_attrs(self._origin(source))
        days = netcdf.stretches(product["time"], drs.years, drs.first_year)
        _owner(self).claim(self.folder)
        export_files(described, self.out_checksums().path, days, drs.layout, self.marker())

    def _origin(self, source: Path) -> dict[str, str]:
        """Return the attributes that name the archive, and the raw files that it was made from."""
        checked = store.read_marker(InputCheck(sim_id=self.sim_id).out_problems().path)
        ids = sorted({id for id in checked.inputs.values() if id}) if checked is not None else []
        return {PRODUCT: self.product_of(source), **({INPUT_IDS: " ".join(ids)} if ids else {})}


class ExportOutcome(ExportTask):
    """Rule `export_outcome`, new against ESPO-G: indicators, or statistics of them, as a NetCDF file."""

    outcome = luigi.Parameter(description="the store's path below paths.final, without its suffix")
    resources_default = Resources(n_workers=1, cpus_per_task=1, memory="4GB", time="10")
    values_in_outputs = 0.0  # periods, far fewer than days
    in_final = _OutcomePort((), "", None, {})
    out_checksums = OutputPort("{folder}/{outcome}.sha256")

    def check_outputs(self) -> None:
        """Raise an error if there is no such store, or the file cannot get its name."""
        if self.outcome not in (known := outcomes(self.context)):
            raise ParameterError(f"{self.get_task_family()}: {not_one_of('outcome', self.outcome, list(known))}")
        super().check_outputs()

    def work(self) -> None:
        """Write the file, and its checksum last."""
        source = self.in_final().path
        made = store.open_store(source, cut=False)
        title, told = Path(self.outcome).name, {PRODUCT: self.product_of(source)}
        whole = netcdf.statistics_file(made, title, self.context.config.table, told)
        _owner(self).claim(self.folder)
        layout, of_all = load_drs(self.drs).layout, [netcdf.Stretch(slice(None), "")]
        export_files(whole, self.out_checksums().path, of_all, layout, self.marker())


@functools.lru_cache(maxsize=2)
def outcomes(run: RunContext) -> Mapping[str, BoundOutput]:
    """Return the kept stores of indicators and of statistics of them, by their paths in `final` without suffix."""
    found: dict[str, BoundOutput] = {}
    todo: list[luigi.Task] = [*ends_of_outcomes(run), *ends_of_ensembles(run)]
    while todo:
        if isinstance(task := todo.pop(), OutcomeTask):
            (kept,) = [getattr(task, name) for name, port in task.ports() if not port.is_temporary]
            stem = kept().path.relative_to(run.config.paths.final).as_posix().rpartition(".zarr")[0]
            if stem not in found:
                todo += task.requires()
            # Of regions there is a NetCDF file already.
            found |= {stem: kept} if stem else {}
    return found


class Exports(luigi.WrapperTask):
    """All exports of a run: every variable of every simulation, or of the simulations named, and its outcomes."""

    drs, folder = DrsParameter(default=""), luigi.PathParameter(absolute=True)
    sim_id = luigi.Parameter(default="", description="these simulations only; parts of ids will do")

    @functools.cached_property
    def _sim_ids(self) -> list[str]:
        run, parts = context(), self.sim_id.replace(",", " ").split()
        parameter = Export.sim_id
        for part in parts:
            parameter.check("sim_id", run.full_id(part), self.get_task_family())
        return list(dict.fromkeys(map(run.full_id, parts))) or list(run.simulations)

    @functools.cached_property
    def _exports(self) -> list[Export | ExportOutcome]:
        run, where = context(), {"drs": self.drs, "folder": self.folder}
        stores = {key: getattr(kept.task, "sim_id", "") for key, kept in outcomes(run).items()}
        named = [key for key, sim_id in stores.items() if not self.sim_id.strip() or sim_id in self._sim_ids]
        exports = [Export(sim_id=one, var=var, **where) for one in self._sim_ids for var in run.archives(one)]
        return [*exports, *(ExportOutcome(outcome=key, **where) for key in named)]

    def requires(self) -> list[luigi.Task]:
        """Return the exports."""
        return list(self._exports)

    def check(self) -> None:
        """Raise an error if any of the exports cannot be made as asked."""
        names_of(context(), load_drs(self.drs)).check(self._sim_ids)
        for task in self._exports:
            task.check()


@dataclass(frozen=True)
class Names:
    """The fields, and the path without dates, of everything that a run would export by a DRS.

    Keys are a simulation's id and a variable.
    """

    run: RunContext
    drs: Drs
    fields: Mapping[tuple[str, str], dict[str, str]]

    @functools.cached_property
    def stems(self) -> Mapping[tuple[str, str], Path]:
        """The path of each product's files, below the export's folder."""
        return {key: self.drs.stem(fields) for key, fields in self.fields.items()}

    def check(self, sim_ids: Collection[str]) -> None:
        """Raise an error if two products have the same files, or required attributes of simulations lack a value."""
        check_distinct({f"{var} of {sim_id}": stem for (sim_id, var), stem in self.stems.items()}, self.drs)
        missing: dict[str, list[str]] = defaultdict(list)
        for (sim_id, var), fields in self.fields.items():
            for name in self._missing(sim_id, var, fields) if sim_id in sim_ids else ():
                missing[name].append(f"{var} of {sim_id}")
        if missing:
            raise ParameterError(lacking(self.drs, missing, self.run.production.attributes))

    def _missing(self, sim_id: str, var: str, fields: Mapping[str, str]) -> list[str]:
        config = self.run.config
        given = [config.attributes.get("global", {}), config.treatment(var).get("add_attrs", {}).get("global", {})]
        missing = self.drs.missing(fields, *given)
        if not missing:
            return missing
        is_made = store.is_complete(archive := self.run.archives(sim_id)[var].path)
        more = store.open_store(archive, check=False).attrs if is_made else _of_raw_files(self.run, sim_id)
        return self.drs.missing(fields, *given, more)


@functools.lru_cache(maxsize=1024)
def _of_raw_files(run: RunContext, sim_id: str) -> Mapping[Any, Any]:
    """The attributes of a simulation's first file that its products have; none if it cannot be read."""
    match = run.simulation(sim_id)
    with suppress(EspoError, OSError):
        options = run.config.extraction.simulation.extract_dataset.xr_open_kwargs
        with open_years(match.assets[0], match, options) as ds:
            return of_all_files(ds.attrs)
    return {}


@functools.lru_cache(maxsize=1)
def warn_of_refusal(run: RunContext) -> None:
    """Log, once, why exports of the run's products by its own DRS would be refused."""
    try:
        if run.production.drs:
            names_of(run, load_drs(run.production.drs)).check(run.simulations)
    except ParameterError as error:
        logger.warning("`espo export` would be refused: %s", error)
    except StoreError:  # whoever reads the archive tells of it
        pass


def names_of(run: RunContext, drs: Drs) -> Names:
    """Return the names of everything that a run would export by a DRS; looked up once."""
    return _names_of(run, drs.name, drs.hash)


@functools.lru_cache(maxsize=8)
def _names_of(run: RunContext, drs: str, _hash: str) -> Names:
    found = load_drs(drs)
    every = [(sim_id, var) for sim_id in run.simulations for var in run.archives(sim_id)]
    return Names(run, found, {(sim_id, var): fields_of(run, found, sim_id, var) for sim_id, var in every})


def fields_of(run: RunContext, drs: Drs, sim_id: str, var: str) -> dict[str, str]:
    """Return the values of a DRS's fields for a variable of a simulation; "" where there is none."""
    config, facets, columns = run.config, run.facets(sim_id), run.simulation(sim_id).columns
    adjusted = config.biasadjust.variables
    how = adjusted.get(config.biasadjust.group_of(var)) or next(iter(adjusted.values()))
    given = {
        **facets,
        "id": sim_id,
        "driving_model": columns.get("driving_model") or facets["source"],
        "driving_member": columns.get("driving_member") or facets["member"],
        "variable": drs.name_of(var),
        "domain": config.domain.name,
        "reference": config.reference_source,
        "calibration": "-".join(how.training_args.period),
        "method": how.name,
        "adjusted_by": how.adjusting_args.bias_adjust_institution,
        "project": config.project.name if config.project else "",
        "version": config.project.version if config.project else "",
        "period": "-".join(config.custom.span),
        "created": datetime.now(UTC).date().isoformat(),
    }
    return {name: str(value) if value is not None and has_value(value) else "" for name, value in given.items()}


def _owner(task: ExportTask) -> Owner:
    drs = load_drs(task.drs)
    return Owner(str(task.context.config.paths.final.absolute()), drs.name, drs.hash_of_names)


def every_export(folder: Path, drs: str, sim_id: str = "") -> Exports:
    """Return the task of all exports, checked: nothing is written or submitted before."""
    task = Exports(drs=drs, folder=folder, sim_id=sim_id)
    task.check()
    return task
