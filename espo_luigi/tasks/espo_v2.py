"""The production of ESPO v2: pools of members, slices of the land cells, and an archive for each variable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import xarray as xr

from espo_luigi.catalog import Match
from espo_luigi.config import RunConfig
from espo_luigi.errors import CatalogError, ConfigurationError
from espo_luigi.science.derivations import NEEDED_FOR, TEMPERATURES
from espo_luigi.science.finalize.scenario import Treatment
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import RunContext
from espo_luigi.tasks.diagnostics import Diag, DiagRef
from espo_luigi.tasks.ports import ZarrInfo
from espo_luigi.tasks.product import ConcatClean, ConcatCleanPreswap, Derive, HealthChecks, Swap
from espo_luigi.tasks.production import Production, Slices
from espo_luigi.tasks.reference import MakeRef
from espo_luigi.tasks.simulation import Regrid

# The members of a pool, where the configuration does not say how many are kept.
_MOST_MEMBERS = 5
_REFERENCE = "{final}/reference/split_regions/{domain}_{ref_source}_{piece}"
_PRODUCT = (
    "{final}/staging/simulation/biasadjusted/{collection}_{ref_source}/{mip_era}/{activity}/{domain}/{institution}/"
    "{source}/{driving}{experiment}/{member}/day/{var}/"
    "{var}_day_{label}_{ref_source}+{sim_id}_{domain}_{period}.{archive}"
)


class EspoV2(Production):
    """Pools by model and experiment, slices of `subregions.n` cells, and the paths of v2."""

    name = costs = drs = "espo-v2"
    final_rule = ConcatClean
    summarised = {
        "prop": (Diag, "out_scen_prop"),
        "reference": (MakeRef, "out_fullregion"),
        "regridded": (Regrid, "out_regridded"),
    }
    templates = {
        "RefDefault.out_reference": _REFERENCE + "_default.zarr",
        "RefDefault.out_grid": _REFERENCE + "_coords.zarr",
        "ReferenceCalendar.out_reference": _REFERENCE + "_{calendar}.zarr",
        "ConcatClean.out_final": _PRODUCT,
        "ConcatClean.out_flags": "{final}/flags/{var}_flags_day_{label}_{ref_source}+{sim_id}_{domain}.{archive}",
        "HealthChecks.out_checks": "{final}/checks/{domain}/{sim_id}+{ref_source}+{domain}_checks.zarr",
    }
    collection, label = "ESPO_v20", "ESPO6_v20"
    attributes = "clean_up.xscen_clean_up.VARIABLE.add_attrs.global"

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        if config.subregions is None:
            raise ConfigurationError(
                f"`production: {self.name}` cuts the land into slices, and the section `subregions` is absent: give "
                "`subregions: {n: …}`, the number of land cells of a slice."
            )
        whole = partition.domain_without_buffer(config)
        self.pieces = Slices({whole.name: whole}, config.subregions.n)
        self.most_members = config.extraction.simulation.search_data_catalogs.most_members or _MOST_MEMBERS

    def pool_of(self, run: RunContext, sim_id: str) -> str:
        """Return ScenarioMIP_{source}_{experiment}; of regional models, {source}_{driving_model}_{experiment}."""
        match = run.simulation(sim_id)
        first = ("source", "driving_model") if _is_driven(match) else ("activity", "source")
        columns = (*first, "experiment")
        if missing := [name for name in columns if not match.columns.get(name)]:
            raise CatalogError(
                f"{match.id}: the catalogue has no {' or '.join(missing)}, which names its pool. Correct the catalogue."
            )
        return "_".join(match.columns[name] for name in columns)

    def members(self, run: RunContext, pool: str) -> Sequence[str]:
        """Return the simulations that the catalogue's search has put into the pool."""
        return run.pools.get(pool, ())

    def is_regional(self, run: RunContext, sim_id: str) -> bool:
        """Return True for simulations with a driving model."""
        return _is_driven(run.simulation(sim_id))

    def ends(self, run: RunContext) -> Iterator[EspoTask]:
        """Yield the archives of each variable, the range before the exchange, checks, and diagnostics."""
        yield MakeRef()
        for domain in run.domains:
            yield DiagRef(diag_domain=domain)
        for sim_id in (sim_id for pool in run.pools.values() for sim_id in pool):
            for variable in run.config.published:
                yield ConcatClean(sim_id=sim_id, var=variable)
            yield HealthChecks(sim_id=sim_id)
            for domain in run.domains:
                yield Diag(sim_id=sim_id, diag_domain=domain)
            if run.config.consistency:
                yield ConcatCleanPreswap(sim_id=sim_id)

    def archives(self, run: RunContext, sim_id: str) -> dict[str, ZarrInfo]:
        """Return an archive of each variable."""
        return {var: ConcatClean(sim_id=sim_id, var=var).out_final() for var in run.config.published}

    def stores_on_the_way(self, sim_id: str, piece: str) -> dict[str, list[ZarrInfo]]:
        """Return the regridded series."""
        return {"regridding": [Regrid(sim_id=sim_id, piece=piece).out_regridded()]}

    def product_of_cell(
        self, names: Mapping[str, str], grid: xr.Dataset, adjusted: Mapping[str, xr.Dataset], only: Sequence[str] = ()
    ) -> xr.Dataset:
        """Return what `Swap` and `ConcatClean` make of the cell."""
        place, config = {"pool": names["pool"], "piece": names["piece"]}, self.config
        wanted, given = list(only) or config.published, {name: ds for ds in adjusted.values() for name in ds.data_vars}
        if config.consistency and {*NEEDED_FOR[config.consistency]} <= {*given}:
            swap = Swap(**place)
            swapped = swap.compute([adjusted[name] for name in config.biasadjust.groups_of(swap.needs)])
            given |= {name: swapped[name] for name in TEMPERATURES}
        for var in config.derived.keys() & {*wanted}:
            given[var] = Derive(**place, var=var).compute([given[name] for name in config.derived[var]], [], [])
        made = {var: ConcatClean(sim_id=names["sim_id"], var=var).compute([given[var]], [grid], []) for var in wanted}
        return xr.Dataset({var: dataset[var] for var, dataset in made.items()})

    def treatment(self, var: str = "") -> Treatment:
        """Return the variable's own treatment."""
        asked = self.config.treatment(var)
        clipped = self.bounds_of_derived | dict(asked.get("clip_var", {}))
        return Treatment(**{**asked, "clip_var": clipped}, bits=self.config.clean_up.bitround)


def _is_driven(match: Match) -> bool:
    return bool(match.columns.get("driving_model"))
