"""The rules that make the final products: the scenario of each region, of the whole domain, and its health checks."""

from __future__ import annotations

import xarray as xr

from espo_luigi.cluster.resources import Resources
from espo_luigi.ports import kept, packed, temporary, upstream
from espo_luigi.science import finalize, health
from espo_luigi.science.chunks import rechunk
from espo_luigi.tasks.adjustment import CleanUp
from espo_luigi.tasks.base import EspoTask, RegionParameter, SimulationParameter
from espo_luigi.tasks.simulation import Rechunk, four_years


class FinalZarr(EspoTask):
    """Rule `final_zarr`: the scenario of one region in the product's chunks."""

    sim_id, region = SimulationParameter(), RegionParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    in_cleaned_up = upstream(CleanUp, "out_cleaned_up")
    out_scenario = temporary("day+{sim_id}+{region}+{period}.zarr")

    def compute(self, cleaned_up: xr.Dataset) -> xr.Dataset:  # type: ignore[override]
        """Rechunk to maps of four years."""
        return rechunk(cleaned_up, self.context.config.custom.final_chunks | {"time": four_years(cleaned_up)})


class PackTask(EspoTask):
    """A rule that only packs its inputs into archives."""

    uses_dask = False

    def work(self) -> None:
        """Pack each input, without opening it as a dataset."""
        self.publish({})


class Move(PackTask):
    """Rule `move`: the archives of one region's scenario and of its regridded simulation."""

    sim_id, region = SimulationParameter(), RegionParameter()
    resources_default = Resources(n_workers=2, cpus_per_task=10, memory="50GB", time="1000")
    in_scenario = upstream(FinalZarr, "out_scenario")
    in_regchunked = upstream(Rechunk, "out_regchunked")
    out_scenario = packed("NAM_SPLIT/{region}/day+{sim_id}+{region}+{period}.zarr.zip", "in_scenario")
    out_regchunked = packed("regridded/day+{sim_id}+{region}+regchunked.zarr.zip", "in_regchunked")


class ConcatenationFinal(EspoTask):
    """Rule `concatenation_final`: the scenario of the whole domain, and its archive."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=12, cpus_per_task=12, memory="60GB", time="1000")
    in_regions = upstream(FinalZarr, "out_scenario", region=lambda task: list(task.context.config.custom.regions))
    out_scenario = temporary("day+{sim_id}+{domain}+{period}.zarr")
    out_final = packed("final/{domain}/day+{sim_id}+{domain}_{period}.zarr.zip", "out_scenario")

    def compute(self, regions: list[xr.Dataset]) -> xr.Dataset:  # type: ignore[override]
        """Put the regions together from south to north."""
        custom = self.context.config.custom
        whole = finalize.concatenate(regions, domain=custom.amno_region.name)
        return rechunk(whole, custom.final_chunks | {"time": four_years(whole)})


class HealthChecks(EspoTask):
    """Rule `health_checks`: what is wrong or suspicious in the scenario of the whole domain."""

    sim_id = SimulationParameter()
    resources_default = Resources(n_workers=8, cpus_per_task=40, memory="40GB", time="1000")
    in_final = upstream(ConcatenationFinal, "out_final")
    out_checks = kept("checks/{domain}/{sim_id}+{domain}_checks.zarr")

    def compute(self, final: xr.Dataset) -> xr.Dataset:  # type: ignore[override]
        """Run the configured checks; those of ``raise_on`` fail the task."""
        return health.health_checks(final, **self.context.config.health_checks)
