"""The invented datasets, and their files as CMIP6 and CMIP7 have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import numpy as np
import xarray as xr

from espo_luigi.demo.weather import Axis, Climate, Days, Field

MEMBER = "r1i1p1f1"
INSTITUTION = "ESPO-DEMO"

_VARIABLE_ATTRIBUTES = {
    "tasmax": {
        "standard_name": "air_temperature",
        "long_name": "Daily Maximum Near-Surface Air Temperature",
        "units": "K",
        "cell_methods": "area: mean time: maximum",
    },
    "tasmin": {
        "standard_name": "air_temperature",
        "long_name": "Daily Minimum Near-Surface Air Temperature",
        "units": "K",
        "cell_methods": "area: mean time: minimum",
    },
    "pr": {
        "standard_name": "precipitation_flux",
        "long_name": "Precipitation",
        "units": "kg m-2 s-1",
        "cell_methods": "area: time: mean",
    },
}


@dataclass(frozen=True)
class Source:
    """An invented dataset: its name, its climate, its grid (degrees), its calendar, and where it has land.

    `land` has a row of letters for each latitude, the northernmost first: # is land. Without it, all cells have data.
    """

    name: str
    climate: Climate
    lats: tuple[float, ...]
    lons: tuple[float, ...]
    calendar: str
    experiments: Mapping[str, tuple[int, int]]
    mip_era: str = "CMIP6"
    land: tuple[str, ...] = ()

    @property
    def is_simulation(self) -> bool:
        """Whether it is a simulation; otherwise it is the reference."""
        return "historical" in self.experiments


def _steps(first: float, step: float, count: int) -> tuple[float, ...]:
    return tuple(round(first + step * index, 6) for index in range(count))


# After Natural Earth's coast, as the report draws it, with Lac Saint-Jean (~); the sea is dots.
_LAND = (
    "##################.......########.......",  # 49.125
    "################.....#############......",
    "#~~~~#########....################......",
    "##~~####.####...#################.......",
    "############..#############.###.........",  # 48.125
    "###########..###############............",
    "##########..####################........",
    "#########..####################.........",
    "########.#####################..........",  # 47.125
    "######.########################...#.....",
    "################################..#.....",
    "################################....####",
    "####################################...#",  # 46.125
    "####################################....",
    "###############################..#######",
    "#############################..#.....###",
    "##########################.....#########",  # 45.125
    "#######################......###########",
    "#####################......##########...",
    "###############.##.........#######......",
)
_SCENARIO = {"historical": (1950, 2014), "ssp585": (2015, 2100)}
REFERENCE = Source(
    name="Demo-Land",
    climate=Climate(warming_kelvin=4.0),
    lats=_steps(44.375, 0.25, len(_LAND)),
    lons=_steps(-72.625, 0.25, len(_LAND[0])),
    calendar="standard",
    experiments={"reference": (1991, 2020)},
    land=_LAND,
)
SIMULATIONS = (
    # Too warm, seasons too weak, drizzle on nearly every day; longitudes 0-360.
    Source(
        name="Demo-NoLeap",
        climate=Climate(
            mean_kelvin=279.5,
            seasonal_kelvin=11.5,
            noise_kelvin=5.0,
            range_kelvin=7.5,
            warming_kelvin=6.0,
            wet_fraction=0.85,
            rain_mm_per_day=2.6,
            rain_shape=0.65,
            cell_degrees=2.8,
        ),
        lats=_steps(37.67, 2.79, 7),
        lons=_steps(278.4375, 2.8125, 10),
        calendar="noleap",
        experiments=_SCENARIO,
    ),
    # Too cold, seasons too strong, too dry; longitudes -180-180, latitudes from north to south.
    Source(
        name="Demo-360Day",
        climate=Climate(
            mean_kelvin=272.5,
            seasonal_kelvin=16.5,
            noise_kelvin=3.2,
            range_kelvin=13.0,
            warming_kelvin=4.5,
            wet_fraction=0.30,
            rain_mm_per_day=7.5,
            rain_shape=1.0,
            cell_degrees=2.25,
        ),
        lats=_steps(56.0, -2.0, 11),
        lons=_steps(-81.25, 2.5, 11),
        calendar="360_day",
        experiments=_SCENARIO,
    ),
)


# Grids and calendars of the same two climates; the experiments of CMIP7, whose history ends in 2021.
CMIP7_SIMULATIONS = tuple(
    replace(
        source,
        name=source.name.replace("Demo-", "Demo7-"),
        experiments={"historical": (1950, 2021), "scen7-h": (2022, 2100)},
        mip_era="CMIP7",
    )
    for source in SIMULATIONS
)
_BRANDED = {
    "tasmax": ("tas", "tmax-h2m-hxy-u"),
    "tasmin": ("tas", "tmin-h2m-hxy-u"),
    "pr": ("pr", "tavg-u-hxy-u"),
}


def folder_of(source: Source, experiment: str, variable: str) -> str:
    """Return the folder of one variable's files of an experiment, below the demo's."""
    if not source.is_simulation:
        return f"reconstruction/{source.name}"
    if source.mip_era == "CMIP7":
        run = f"{activity_of(experiment)}/{INSTITUTION}/{source.name}/{experiment}/{MEMBER}"
        held, suffix = _BRANDED[variable]
        dataset = f"{_region_of(experiment)}/day/{held}/{suffix}/g999/v20260901"
        return f"simulation/MIP-DRS7/CMIP7/{run}/{dataset}"
    return f"simulation/{activity_of(experiment)}/{INSTITUTION}/{source.name}/{experiment}/{MEMBER}/day"


def _region_of(experiment: str) -> str:
    """Return the region's code: in capitals in older files, as data request 1.2.2.2 had it."""
    return "GLB" if experiment == "historical" else "glb"


def activity_of(experiment: str) -> str:
    """Return the project within CMIP that an experiment belongs to."""
    return "CMIP" if experiment == "historical" else "ScenarioMIP"


def file_name(source: Source, experiment: str, variable: str, last_day: str) -> str:
    """Return a file's name after the template of its CMIP; `last_day` is month and day, MMDD."""
    first, last = source.experiments[experiment]
    if source.mip_era == "CMIP7" and source.is_simulation:
        dataset = f"{'_'.join(_BRANDED[variable])}_day_{_region_of(experiment)}_g999"
        return f"{dataset}_{source.name}_{experiment}_{MEMBER}_{first}0101-{last}{last_day}.nc"
    middle = f"{experiment}_{MEMBER}_gn" if source.is_simulation else experiment
    return f"{variable}_day_{source.name}_{middle}_{first}0101-{last}{last_day}.nc"


def dataset_of(source: Source, experiment: str, name: str, values: Field, days: Days, part: slice) -> xr.Dataset:
    """One file's content, time as numbers, with bounds and the scalar height as CMIP6 files have them."""
    numbers = days.numbers[part]
    coords: dict[str, Any] = {
        "time": ("time", numbers, _time_attributes(days)),
        "lat": ("lat", np.array(source.lats), _axis_attributes("latitude", "degrees_north", "Y", "lat_bnds")),
        "lon": ("lon", np.array(source.lons), _axis_attributes("longitude", "degrees_east", "X", "lon_bnds")),
    }
    if name != "pr":
        coords["height"] = ((), 2.0, {"standard_name": "height", "units": "m", "positive": "up", "axis": "Z"})
    bounds = {
        "time_bnds": (("time", "bnds"), np.stack([numbers - 0.5, numbers + 0.5], axis=1)),
        "lat_bnds": (("lat", "bnds"), _bounds(source.lats)),
        "lon_bnds": (("lon", "bnds"), _bounds(source.lons)),
    }
    data = {name: (("time", "lat", "lon"), values, _VARIABLE_ATTRIBUTES[name])}
    ds = xr.Dataset({**data, **bounds}, coords, _global_attributes(source, experiment, name))
    for variable in ds.variables.values():
        variable.encoding["_FillValue"] = None
    ds[name].encoding["_FillValue"] = np.float32(1e20)
    if source.mip_era == "CMIP7":
        ds[name].encoding["missing_value"] = np.float32(1e20)
        ds[name].attrs["cell_measures"] = "area: areacella"
        return ds.rename({name: _BRANDED[name][0]})
    return ds


def _bounds(centres: tuple[float, ...]) -> Axis:
    half = (centres[1] - centres[0]) / 2
    return np.array([[centre - half, centre + half] for centre in centres])


def _time_attributes(days: Days) -> dict[str, str]:
    return {"standard_name": "time", "axis": "T", "bounds": "time_bnds", "units": days.units, "calendar": days.calendar}


def _axis_attributes(name: str, units: str, axis: str, bounds: str) -> dict[str, str]:
    return {"standard_name": name, "long_name": name, "units": units, "axis": axis, "bounds": bounds}


def _global_attributes(source: Source, experiment: str, variable: str) -> dict[str, str]:
    attributes = {
        "Conventions": "CF-1.7",
        "title": f"{source.name}: invented weather for the demonstration of espo_luigi, not a model's output",
        "institution_id": INSTITUTION,
        "source_id": source.name,
        "frequency": "day",
        "variable_id": variable,
    }
    if source.mip_era == "CMIP7":
        return attributes | _cmip7_attributes(source, experiment, variable)
    if source.is_simulation:
        attributes |= {
            "mip_era": "CMIP6",
            "activity_id": activity_of(experiment),
            "experiment_id": experiment,
            "variant_label": MEMBER,
            "table_id": "day",
            "grid_label": "gn",
        }
    return attributes


def _cmip7_attributes(source: Source, experiment: str, variable: str) -> dict[str, str]:
    """Return the attributes that CMIP7 asks for; the tracking id is made of the file's name."""
    held, suffix = _BRANDED[variable]
    attributes = {
        "Conventions": "CF-1.12",
        "mip_era": "CMIP7",
        "drs_specs": "MIP-DRS7",
        "data_specs_version": "MIP-DS7.1.0.0",
        "activity_id": activity_of(experiment),
        "experiment_id": experiment,
        "variant_label": MEMBER,
        "realization_index": "r1",
        "variable_id": held,
        "branding_suffix": suffix,
        "branded_variable": f"{held}_{suffix}",
        "region": _region_of(experiment),
        "grid_label": "g999",
        "nominal_resolution": "250 km",
        "product": "model-output",
        "license_id": "CC0-1.0",
        "tracking_id": f"hdl:21.14107/{uuid5(NAMESPACE_URL, f'{source.name} {experiment} {variable}')}",
    }
    if experiment == "historical":
        return attributes | {"parent_experiment_id": "no parent"}
    return attributes | {
        "parent_mip_era": "CMIP7",
        "parent_activity_id": "CMIP",
        "parent_source_id": source.name,
        "parent_experiment_id": "historical",
        "parent_variant_label": MEMBER,
    }
