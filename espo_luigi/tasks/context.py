"""The settings of the current run, its configuration and its catalogue; the last two are read once a process."""

from __future__ import annotations

import functools
import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import luigi
import numpy as np
import xarray as xr
from luigi.parameter import ParameterVisibility

from espo_luigi.catalog import Catalog, Match, derived_otherwise, open_fixed, open_match, warn_of_dropped
from espo_luigi.catalog.hours import noon_of
from espo_luigi.catalog.open import asset_with, open_grid
from espo_luigi.config import Extraction, OffDiag, Region, RunConfig, load
from espo_luigi.config.downscaling import MODEL
from espo_luigi.config.regions import check_products_folder
from espo_luigi.config.schema import given_keys
from espo_luigi.demo import ensure_demo
from espo_luigi.downscaling.base import downscaler_named
from espo_luigi.driver.settings import espo as driver
from espo_luigi.errors import CatalogError, ConfigurationError, DataError, ParameterError, StoreError, named_by_part
from espo_luigi.fields import existing_parent
from espo_luigi.science import coarse, grid, stack
from espo_luigi.science.diagnose.definitions import usual_properties
from espo_luigi.science.extract import dataset as extract
from espo_luigi.science.geometry.cutting import subset_box
from espo_luigi.science.stations import are_points
from espo_luigi.science.variables import variable
from espo_luigi.tasks import partition
from espo_luigi.tasks.production import Production, production_of

logger = logging.getLogger(__name__)

_MOST_TOLD = 200
"""How many dropped datasets a search tells one by one: a damaged catalogue may have a hundred thousand."""

# The catalogue's columns that paths of products may name.
FACETS = ("mip_era", "activity", "institution", "source", "experiment", "member")


class espo(driver.espo):
    """Orchestration settings, from luigi.cfg's ``[espo]`` section or the command line (``--espo-config my.yml``)."""

    config = luigi.Parameter(
        default="", description="YAML files of the science and the site, in order, separated by spaces"
    )
    keep_temporary = driver.flag(default=False, description="keep intermediate outputs")
    rerun = luigi.ChoiceParameter(
        choices=["missing", "stale"],
        default="missing",
        description="what is made again: what is missing, or also what the configuration or raw files changed for",
    )
    final_format = luigi.ChoiceParameter(
        choices=["zip", "sharded"], default="zip", description="kept archives: .zarr.zip, or sharded .zarr"
    )
    report = driver.flag(default=False, description="All makes the report, too")
    publish = driver.flag(
        default=False, description="All ends with the catalogue of the products, and where each comes from"
    )
    learn_from = luigi.Parameter(
        default="", description="work folders of other runs, whose jobs teach `espo plan` what a task costs"
    )
    # Travels with a job: the catalogue may have grown since the run began.
    pool_members: Any = luigi.DictParameter(
        default={},
        visibility=ParameterVisibility.PRIVATE,
        description="set by the driver for its jobs: the members of the task's pool",
    )

    @property
    def config_files(self) -> tuple[Path, ...]:
        """The configuration's files, in order."""
        return paths_in(self.config)

    @property
    def experienced(self) -> tuple[Path, ...]:
        """The work folders from whose jobs a task's cost is estimated, this run's first."""
        return Path(self.workdir), *paths_in(self.learn_from)


@functools.lru_cache(maxsize=16)
def paths_in(text: str) -> tuple[Path, ...]:
    """Return the paths that a setting names, separated by spaces, commas or lines; quotation marks keep spaces."""
    words = shlex.shlex(text, posix=True, punctuation_chars="")
    words.whitespace, words.whitespace_split, words.commenters = " ,\t\n", True, ""
    return tuple(Path(word) for word in words)


def settings() -> espo:
    """Return the current settings."""
    current = driver.settings()
    return current if isinstance(current, espo) else espo()


class RunContext:
    """The configuration, the simulations and the fields of file names, which all tasks of a run share."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        # Fingerprints of configuration keys and raw files, by key, as far as `staleness` needed them.
        self.fingerprints: dict[str, str] = {}
        # The keys that each task and those before it read, by its id.
        self.keys_read: dict[str, frozenset[str]] = {}
        # Simulations that the search drops, each with the reason; and the columns of each.
        self.dropped: dict[str, str] = {}
        self.columns_of_dropped: dict[str, Mapping[str, str]] = {}
        # Indicators of one of xclim's modules that are not possible, each with the reason.
        self.indicators_left_out: dict[str, str] = {}
        self._fields: dict[str, dict[str, str]] = {}
        self._grid_of = functools.cache(self._read_grid)
        self.coarse_numbers = functools.cache(self._coarse_numbers)

    @functools.cached_property
    def simulations(self) -> Mapping[str, Match]:
        """The simulations that the configuration's search finds, by id, all of them with the whole period.

        Those are dropped that have to derive what the reference has stored, or the reverse.
        """
        found, reference = self._search(self.config.extraction.simulation, None), self._reference
        if isinstance(reference, CatalogError):
            return found
        reasons = {sim_id: derived_otherwise(match, reference) for sim_id, match in found.items()}
        if all(reasons.values()):
            told = "; ".join(f"{sim_id}: {reason}" for sim_id, reason in reasons.items())
            raise CatalogError(f"no simulation is left. {told}.")
        for sim_id in filter(reasons.get, reasons):
            self._drop(sim_id, reasons[sim_id], found[sim_id].columns)
        return {sim_id: match for sim_id, match in found.items() if not reasons[sim_id]}

    def simulation(self, sim_id: str) -> Match:
        """Return a simulation; raises `CatalogError` if the search finds none or several."""
        if "simulations" in self.__dict__ and sim_id in self.simulations:
            return self.simulations[sim_id]
        return self._only(self._search(self.config.extraction.simulation, {"id": sim_id}), f"id = {sim_id}")

    @functools.cached_property
    def production(self) -> Production:
        """The production line: how its work is divided, its rules, and where its outputs lie."""
        return production_of(self.config)

    @functools.cached_property
    def pools(self) -> Mapping[str, tuple[str, ...]]:
        """The members of each pool; the search is made once, so that pools stay the same all through a run."""
        return partition.pools_by_name(self, self.simulations)

    def members(self, pool: str) -> Sequence[str]:
        """Return the ids of a pool's simulations: in a job, those that the driver has found."""
        return settings().pool_members.get(pool) or self.production.members(self, pool)

    def is_regional(self, sim_id: str) -> bool:
        """Return True if a simulation covers only a part of the domain, to which its products are cut."""
        return self.production.is_regional(self, sim_id)

    def archives(self, sim_id: str) -> dict[str, Any]:
        """Return the store (`ZarrInfo`) of the final archive of each variable of a simulation's product."""
        return self.production.archives(self, sim_id)

    def facets(self, sim_id: str) -> dict[str, str]:
        """Return the fields of paths that describe a simulation: the catalogue's columns, and `driving`."""
        columns = self.simulation(sim_id).columns
        given = {name: columns.get(name) or "unknown" for name in FACETS}
        driven = [columns.get(name) or "" for name in ("driving_model", "driving_member")]
        return given | {"driving": "".join(f"{name}/" for name in driven if name)}

    def needed(self, name: str, whose: str = "the rule") -> Any:
        """Return a section of the configuration; raises `ParameterError` if it is absent."""
        section = getattr(self.config, name)
        if section is None:
            key = RunConfig.model_fields[name].alias or name
            raise ParameterError(f"{whose} needs the section `{key}` of the configuration, which has none: add it")
        return section

    def full_id(self, part: str) -> str:
        """Return the id of the only simulation whose id has this part, or `part` itself."""
        found = named_by_part(part, self.simulations)
        return found[0] if len(found) == 1 else part

    def reference(self) -> Match:
        """Return the reference dataset: the single hit of its search, which is made once."""
        found = self._reference
        if isinstance(found, CatalogError):
            raise CatalogError(str(found)) from found
        return found

    @functools.cached_property
    def _reference(self) -> Match | CatalogError:
        try:
            return self._only(self._search(self.config.extraction.reference, None), "extraction.reference")
        except CatalogError as error:
            return error

    @property
    def mask_variable(self) -> str:
        """The reference's variable that has values on land only: the first of its search that varies in time."""
        return next(iter(self.config.extraction.reference.series))

    @functools.cached_property
    def reference_on_its_first_day(self) -> xr.Dataset:
        """The reference on the first day of the calibration, as a lazy `land_map`; opens the only file that has it."""
        year, name, extraction = self.config.custom.ref_period[0], self.mask_variable, self.config.extraction.reference
        match, day = self.reference().on(datetime(int(year), 1, 1), name), f"{year}-01-01"
        if match.hours:
            noon = noon_of(match, name, day, extraction.extract_dataset.xr_open_kwargs)
            return grid.land_map(self.masked(noon)[0][name].isel(time=0, drop=True))
        opened = self.open(match, extraction)
        found = extract.select(opened, variables_and_freqs={name: "D"}, period=(day, day), table=self.config.table)
        if are_points(found):
            self._check_for_stations()
        return grid.land_map(self.masked(found)[0][name].isel(time=0, drop=True))

    def _check_for_stations(self) -> None:
        """Raise `ConfigurationError` for what needs a reference with cells, which have areas and neighbours."""
        config = self.config
        wrong = {f"regrid.regrid_method.{name}": "`nearest` or `bilinear`" for name in config.regrid.conserved}
        wrong |= {key: "no such section" for key in ("downscaling", "spatial_mean") if getattr(config, key) is not None}
        wrong |= {"custom.regions": "a single region"} if len(config.custom.regions) > 1 else {}
        for key, expected in wrong.items():
            raise ConfigurationError(
                f"`{config.name_of(key)}`: the reference {config.reference_source} has stations, which are no cells of "
                f"a grid; expected {expected}."
            )

    def masked(self, reference: xr.Dataset, match: Match | None = None) -> tuple[xr.Dataset, xr.Dataset]:
        """Return the opened reference and its fixed fields, in memory, both without values where its mask is not 1.

        `match` is what was opened, by default the reference's own files.
        """
        options = self.config.extraction.reference.extract_dataset
        fixed = open_fixed(match or self.reference(), reference, xr_open_kwargs=options.xr_open_kwargs)
        if not options.mask:
            return reference, fixed
        try:
            kept = fixed["mask"].reset_coords(drop=True) == 1
        except KeyError:
            raise ConfigurationError(
                "`extraction.reference.extract_dataset.mask` is true, and no field `mask` is searched; expected "
                "`mask: fx` in `search_data_catalogs.variables_and_freqs`."
            ) from None
        series, fields = (
            ds.assign({name: data.where(kept) for name, data in ds.data_vars.items() if name != "mask"})
            for ds in (reference, fixed)
        )
        return series, fields

    @functools.cached_property
    def land_cells(self) -> int:
        """How many cells of the whole domain the reference has data in on its first day; reads that map."""
        return int(self._land["land"].notnull().sum())

    @property
    def _land(self) -> xr.Dataset:
        return subset_box(self.reference_on_its_first_day, partition.domain_without_buffer(self.config).arguments())

    @functools.cached_property
    def coarse_grids(self) -> Mapping[str, coarse.CoarseGrid]:
        """The grids, by their names as pieces, on which simulations are adjusted that are downscaled afterwards."""
        given = self.needed("downscaling", "the coarse grid").grid
        if given != MODEL:
            return {partition.COARSE: coarse.CoarseGrid(given)}
        return {partition.adjusted_piece(self, pool): self.coarse_grid(pool) for pool in self.pools}

    def coarse_grid(self, pool: str) -> coarse.CoarseGrid:
        """Return the grid on which a pool is adjusted; with `model`, the first call opens a raw file of each member.

        Raises `ConfigurationError` if members then differ, or have no grid of latitudes and longitudes.
        """
        if self.needed("downscaling", "the coarse grid").grid != MODEL:
            return self.coarse_grids[partition.COARSE]
        grids = {sim_id: self._grid_of(sim_id) for sim_id in self.members(pool)}
        (first, its), *others = grids.items()
        if other := next((sim_id for sim_id, grid in others if grid != its), ""):
            raise ConfigurationError(
                f"`downscaling.grid`: {MODEL} needs one grid in the pool {pool}, which has {first} ({its.name}) and "
                f"{other} ({grids[other].name}), whose edges differ. Exclude one of the two, or give degrees."
            )
        return its

    def _read_grid(self, sim_id: str) -> coarse.CoarseGrid:
        asset = asset_with(self.simulation(sim_id), self.config.variables)
        try:
            found = open_grid(asset, dict(self.config.extraction.simulation.extract_dataset.xr_open_kwargs))
            return coarse.CoarseGrid(coarse.edges_in(found.set_coords(found.data_vars)))
        except (DataError, OSError, ValueError) as error:
            raise ConfigurationError(
                f"`downscaling.grid`: {MODEL} needs the grid of {sim_id} ({asset.path}): {error} Exclude the "
                "simulation, or give degrees."
            ) from error

    def _coarse_numbers(self, grid: coarse.CoarseGrid) -> np.ndarray:
        """The coarse cell that each land cell of the whole domain lies in, in the order of rows; reads that map once.

        Raises `ConfigurationError` if the grid is no coarser than the reference, its cells are too large for the land
        that is there, or have more cells of the reference than a downscaler takes.
        """
        section, cells = self.needed("downscaling", "the coarse grid"), stack.stack_drop_nans(self._land[["land"]])
        numbers = grid.numbers(cells["lat"].values, cells["lon"].values)
        try:
            coarse.coarse_numbers(grid, cells, section.least_share)
            for _, _, how in section.ways(self.config.biasadjust.adjusted):
                downscaler_named(how.method).check_sizes(numbers)
        except DataError as error:
            raise ConfigurationError(f"`downscaling.grid`: {error}") from error
        share = np.unique(numbers, return_counts=True)[1].max() / (self.cells_by_area * grid.area)
        if share < section.least_share:
            raise ConfigurationError(
                f"`downscaling.least_share`: expected land on {section.least_share:.3g} of a coarse cell at least, and "
                f"the one with most has it on {share:.2g}. Give smaller cells (`downscaling.grid`), or a smaller share."
            )
        return numbers

    @functools.cached_property
    def cells_by_area(self) -> float:
        """How many cells the reference has in a degree squared; opens the file of its first day."""
        box = self.config.domain
        found = subset_box(self.reference_on_its_first_day, box.arguments())
        (west, east), (south, north) = box.lon_bnds, box.lat_bnds
        return float(found["cell"].size) / ((east - west) * (north - south))

    @functools.cached_property
    def given_keys(self) -> list[str]:
        """The keys of the configuration that leave no trace where they have their default, and are given."""
        return given_keys(self.config)

    @functools.cached_property
    def off_diag(self) -> OffDiag | None:
        """The section `off-diag`; without it, where boxes cut the land, usual properties of the whole domain."""
        config = self.config
        of_reference = config.extraction.reference.search_data_catalogs.variables_and_freqs
        there = {*config.biasadjust.adjusted, *(of_reference.keys() & {*config.variables})}
        table = {name: variable(name, config.table) for name in config.published if name in there}
        table = {name: row for name, row in table.items() if row.units}
        if config.off_diag is not None or config.subregions is not None or not table:
            return config.off_diag
        whole = config.domain.model_copy(update={"tile_buffer": 0.0, "name": f"whole-{config.domain.name}"})
        asked = {"properties": usual_properties(table), "period": config.custom.ref_period}
        steps = {}
        for step in ("ref", "sim", "scen"):
            levels = {f"to_level_{one}": f"off-diag-{step}-{one}" for one in ("prop", "meas")}
            steps[step] = {"properties_and_measures": asked | levels}
        return OffDiag.model_validate({"domains": {whole.name: whole}, "steps": steps})

    @property
    def domains(self) -> Mapping[str, Region]:
        """The small domains that are diagnosed, or the whole, if there are any."""
        diagnosed = self.off_diag or self.config.domain_diag
        return diagnosed.domains if diagnosed else {}

    def open(self, match: Match, extraction: Extraction) -> Any:
        """Open a found dataset lazily, with the options that the configuration has for it."""
        options = extraction.extract_dataset
        return open_match(
            match,
            xr_open_kwargs=options.xr_open_kwargs,
            xr_combine_kwargs=options.xr_combine_kwargs,
            may_lack=extraction.days_to_fill,
            table=self.config.table,
        )

    @property
    def fields(self) -> dict[str, str]:
        """The fields of file names that all tasks of the run share."""
        form = settings().final_format
        if form not in self._fields:
            config = self.config
            self._fields[form] = {
                "tmpdir": str(config.paths.tmpdir),
                "final": str(config.paths.final),
                "ref_source": config.reference_source,
                "domain": config.domain.name,
                "period": "-".join(config.custom.span),
                "archive": {"zip": "zarr.zip", "sharded": "zarr"}[form],
                **self.production.fields(),
            }
        return self._fields[form]

    @functools.cached_property
    def folders_are_writable(self) -> bool:
        """True; raises `StoreError` if a folder of the run cannot be written."""
        paths = self.config.paths
        for name, folder in {
            "paths.tmpdir": paths.tmpdir,
            "paths.final": paths.final,
            "workdir": Path(settings().workdir),
        }.items():
            there = existing_parent(folder)
            if not os.access(there, os.W_OK | os.X_OK):
                raise StoreError(
                    f"{name} = {folder}: {there} cannot be written; choose another folder, or get the right to write"
                )
        return True

    def _search(self, extraction: Extraction, instead: dict[str, Any] | None) -> dict[str, Match]:
        if self.config.demo is not None:
            ensure_demo(self.config.demo)
        search = extraction.search_data_catalogs
        criteria = search.arguments("data_catalogs", "restrict_members")
        criteria["most_members"] = search.most_members
        if search.periods is None:
            custom = self.config.custom
            is_reference = extraction is self.config.extraction.reference
            criteria["periods"] = custom.ref_period if is_reference else custom.stretches
        if instead is not None:
            criteria |= {"other_search_criteria": instead, "most_members": None}
        catalog = Catalog.from_files(list(search.data_catalogs))
        if extraction is not self.config.extraction.reference:
            criteria |= {"whole": self.config.custom.span, "tell_dropped": self._drop}
        found: dict[str, Match] = {}
        for name, match in catalog.search(**criteria).items():
            units, totals = extraction.units_of(name), extraction.accumulated(match.variables)
            found[name] = replace(match, units={**match.units, **units}, accumulation={**match.accumulation, **totals})
        return found

    def _drop(self, sim_id: str, reason: str, columns: Mapping[str, str]) -> None:
        self.dropped[sim_id], self.columns_of_dropped[sim_id] = reason, columns
        if len(self.dropped) < _MOST_TOLD:
            warn_of_dropped(sim_id, reason, columns)
        elif len(self.dropped) == _MOST_TOLD:
            logger.warning("the search drops further datasets, too, which are not told one by one.")

    def _only(self, found: Mapping[str, Match], what: str) -> Match:
        if len(found) != 1:
            raise CatalogError(
                f"{what}: {len(found)} datasets found ({', '.join(found) or 'none'}); expected exactly one: "
                "make the search criteria more precise"
            )
        return next(iter(found.values()))


@functools.cache
def _context(names: str) -> RunContext:
    if not (files := paths_in(names)):
        lacking = (
            "luigi.cfg does not name the configuration, [espo] config = config.yml paths.yml,"
            if Path("luigi.cfg").exists()
            else f"{Path.cwd()} has no luigi.cfg, which names the configuration"
        )
        raise ConfigurationError(
            f"{lacking} of the run.\n"
            "Go to the folder that has your luigi.cfg, or let `espo init` write a folder to start from."
        )
    config = load(list(files))
    check_products_folder(config.paths.final, config.paths.tmpdir)
    return RunContext(config)


def context() -> RunContext:
    """Return the context of the configuration files that ``[espo] config`` names now."""
    return _context(settings().config)


def forget() -> None:
    """Forget configuration and catalogue, so that changed files are read again."""
    _context.cache_clear()
