"""The files of the invented datasets, as CMIP6 and CORDEX have them: names, folders, contents."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.demo.sources import INSTITUTION, REFERENCE_DOMAIN, Source
from espo_luigi.demo.weather import Axis, Days, Field
from espo_luigi.science.variables import VARIABLES


def _attributes(standard_name: str, long_name: str, units: str, cell_methods: str = "") -> dict[str, str]:
    known = {"standard_name": standard_name, "long_name": long_name, "units": units}
    return {**known, "cell_methods": cell_methods} if cell_methods else known


_TEMPERATURE = "air_temperature"
_VARIABLE_ATTRIBUTES = {
    **{
        name: _attributes(known.standard_name, known.long_name, known.units, f"area: mean {known.cell_methods}")
        for name, known in VARIABLES.items()
    },
    "tasmax": _attributes(_TEMPERATURE, "Daily Maximum Near-Surface Air Temperature", "K", "area: mean time: maximum"),
    "tasmin": _attributes(_TEMPERATURE, "Daily Minimum Near-Surface Air Temperature", "K", "area: mean time: minimum"),
    "pr": _attributes("precipitation_flux", "Precipitation", "kg m-2 s-1", "area: time: mean"),
}
_FIXED_ATTRIBUTES = {
    "mask": _attributes("land_binary_mask", "Land (1) or sea (0)", "1"),
    "orog": _attributes("surface_altitude", "Surface Altitude", "m"),
    "sftlf": _attributes("land_area_fraction", "Percentage of the Grid Cell Occupied by Land", "%"),
}
_HEIGHTS = {"tasmax": 2.0, "tasmin": 2.0, "tas": 2.0, "hurs": 2.0, "sfcWind": 10.0}
_MAPPING = "rotated_pole"


def folder_of(source: Source, experiment: str, variable: str) -> str:
    """Return the folder of one variable's files of an experiment, below the demo's."""
    if not source.is_simulation:
        return f"reconstruction/{source.name}"
    run = f"{source.name}/{experiment}/{source.member}"
    if source.driver:
        driver, member = source.driver
        run = f"{source.domain}/{driver}/{experiment}/{member}/{source.name}/{source.member}"
    return f"simulation/{activity_of(source, experiment)}/{INSTITUTION}/{run}/{_table_of(variable)}"


def _table_of(variable: str) -> str:
    return "fx" if variable in _FIXED_ATTRIBUTES else "day"


def activity_of(source: Source, experiment: str) -> str:
    """Return the project within CMIP that an experiment belongs to; regional simulations are dynamical downscaling."""
    if source.driver:
        return "DD"
    return "CMIP" if experiment == "historical" else "ScenarioMIP"


def file_name(source: Source, experiment: str, variable: str, last_day: str) -> str:
    """Return a file's name after the template of CMIP6 or of CORDEX; `last_day` is month and day, MMDD."""
    first, last = source.experiments[experiment]
    table = _table_of(variable)
    dates = f"_{first}{source.begins(experiment)}-{last}{last_day}" if table == "day" else ""
    if source.driver:
        run = "_".join((source.driver[0], experiment, source.driver[1], INSTITUTION, source.name, source.member))
        return f"{variable}_{source.domain}_{run}_{table}{dates}.nc"
    middle = f"{experiment}_{source.member}_gn" if source.is_simulation else experiment
    return f"{variable}_{table}_{source.name}_{middle}{dates}.nc"


def dataset_of(source: Source, experiment: str, name: str, values: Field, days: Days, part: slice) -> xr.Dataset:
    """One file's content, time as numbers, with bounds and the scalar height as CMIP6 files have them."""
    numbers = days.numbers[part]
    about_time = {"standard_name": "time", "axis": "T", "bounds": "time_bnds"}
    about_time |= {"units": days.units, "calendar": days.calendar}
    coords: dict[str, Any] = {"time": ("time", numbers, about_time), **_coordinates(source)}
    if name in _HEIGHTS:
        coords["height"] = (
            (),
            _HEIGHTS[name],
            {"standard_name": "height", "units": "m", "positive": "up", "axis": "Z"},
        )
    bounds = {"time_bnds": (("time", "bnds"), np.stack([numbers - 0.5, numbers + 0.5], axis=1))}
    data = {name: (("time", *source.dims), values, _VARIABLE_ATTRIBUTES[name])}
    others = bounds | _around_coordinates(source)
    ds = xr.Dataset({**data, **others}, coords, _global_attributes(source, experiment, name))
    _encode(ds, source, name)
    ds[name].encoding["_FillValue"] = np.float32(1e20)
    if source.is_compact:
        for variable in (ds["time"], ds["time_bnds"], ds[name]):
            chunks = (366, *variable.shape[1:])
            variable.encoding |= {"zlib": True, "complevel": 1, "chunksizes": chunks}
    return ds


def fixed_dataset_of(source: Source, experiment: str, name: str, values: np.ndarray) -> xr.Dataset:
    """The content of the file of a fixed field: without time."""
    data = {name: (source.dims, values, _FIXED_ATTRIBUTES[name]), **_around_coordinates(source)}
    ds = xr.Dataset(data, _coordinates(source), _global_attributes(source, experiment, name))
    _encode(ds, source, name)
    return ds


def _encode(ds: xr.Dataset, source: Source, name: str) -> None:
    """No variable has a fill value; that of a rotated grid names its mapping."""
    for variable in ds.variables.values():
        variable.encoding["_FillValue"] = None
    if source.pole:
        ds[name].attrs["grid_mapping"] = _MAPPING
    if source.is_compact:
        # xarray would write that bounds have the coordinate `height`; older editions' files have that.
        for other in ds.data_vars.keys() - {name}:
            ds[other].encoding["coordinates"] = None


def _coordinates(source: Source) -> dict[str, Any]:
    lat, lon = source.places()
    if source.pole:
        rotated = (("rlat", source.lats, "grid_latitude", "Y"), ("rlon", source.lons, "grid_longitude", "X"))
        return {
            **{
                dim: (dim, np.array(values), {"standard_name": name, "units": "degrees", "axis": axis})
                for dim, values, name, axis in rotated
            },
            "lat": (source.dims, lat, {"standard_name": "latitude", "units": "degrees_north"}),
            "lon": (source.dims, lon, {"standard_name": "longitude", "units": "degrees_east"}),
        }
    return {
        "lat": ("lat", lat, _axis_attributes("latitude", "degrees_north", "Y", "lat_bnds")),
        "lon": ("lon", lon, _axis_attributes("longitude", "degrees_east", "X", "lon_bnds")),
    }


def _around_coordinates(source: Source) -> dict[str, Any]:
    """Return the variables that belong to the coordinates: their bounds, or the mapping of a rotated grid."""
    if source.pole:
        attributes = {
            "grid_mapping_name": "rotated_latitude_longitude",
            "grid_north_pole_latitude": source.pole[0],
            "grid_north_pole_longitude": source.pole[1],
            "north_pole_grid_longitude": 0.0,
        }
        return {_MAPPING: ((), np.int32(0), attributes)}
    return {
        "lat_bnds": (("lat", "bnds"), _bounds(source.lats)),
        "lon_bnds": (("lon", "bnds"), _bounds(source.lons)),
    }


def _bounds(centres: tuple[float, ...]) -> Axis:
    half = (centres[1] - centres[0]) / 2
    return np.array([[centre - half, centre + half] for centre in centres])


def _axis_attributes(name: str, units: str, axis: str, bounds: str) -> dict[str, str]:
    return {"standard_name": name, "long_name": name, "units": units, "axis": axis, "bounds": bounds}


def _global_attributes(source: Source, experiment: str, variable: str) -> dict[str, str]:
    table = _table_of(variable)
    attributes = {
        "Conventions": "CF-1.7",
        "title": f"{source.name}: invented weather for the demonstration of espo_luigi, not a model's output",
        "institution_id": INSTITUTION,
        "source_id": source.name,
        "frequency": table,
        "variable_id": variable,
    }
    if source.driver:
        driver, member = source.driver
        return attributes | {
            "project_id": "CORDEX",
            "mip_era": "CMIP6",
            "activity_id": activity_of(source, experiment),
            "domain_id": source.domain,
            "driving_source_id": driver,
            "driving_variant_label": member,
            "driving_experiment_id": experiment,
            "version_realization": source.member,
        }
    if source.is_simulation:
        attributes |= {
            "mip_era": "CMIP6",
            "activity_id": activity_of(source, experiment),
            "experiment_id": experiment,
            "variant_label": source.member,
            "table_id": table,
            "grid_label": "gn",
        }
    if source.version:
        attributes |= {"domain_id": REFERENCE_DOMAIN, "version": source.version}
    return attributes
