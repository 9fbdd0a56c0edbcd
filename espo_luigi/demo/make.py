"""Making the example's folder: files, catalogues, once."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from espo_luigi.catalog.build import write_catalog
from espo_luigi.catalog.read import make_id
from espo_luigi.demo.files import activity_of, dataset_of, file_name, fixed_dataset_of, folder_of
from espo_luigi.demo.sources import (
    HUMID_REFERENCE,
    HUMID_SIMULATION,
    INSTITUTION,
    REFERENCE,
    REFERENCE_DOMAIN,
    SIMULATIONS,
    V2_REFERENCE,
    V2_SIMULATIONS,
    Source,
)
from espo_luigi.demo.weather import Days, Field, days_of, heights, invent_humid_weather, invent_weather
from espo_luigi.errors import ConfigurationError
from espo_luigi.files import open_own, write_new
from espo_luigi.replacing import by_manifest, check_ours, write_manifest
from espo_luigi.science.finalize.quantization import round_mantissas
from espo_luigi.store.publish import written_aside

logger = logging.getLogger(__name__)

# A new number makes folders of earlier editions again: raise it when the same seed gives other data.
_EDITION = 3
_RECORD_NAME = "demo.json"
# The impossible tasmax of `Source.hot_cell`: the year, the days after 1 January, and K.
_HOT_YEAR, _HOT_DAY, _HOT_KELVIN = 2030, 195, 340.0
# Mantissa bits of compact files: 1/64 K, and a thousandth of the rain.
_KEPT_BITS = {"tasmax": 14, "tasmin": 14, "pr": 9}
# Examples of their own: the reference, the simulations, and the MB of their files.
_PRODUCTIONS = {"v2": (V2_REFERENCE, V2_SIMULATIONS, 60), "humid": (HUMID_REFERENCE, (HUMID_SIMULATION,), 30)}
_MAKER = "the demonstration of espo_luigi; all data are invented"


def ensure_demo(section: Mapping[str, Any]) -> Path:
    """Make the example's raw files and catalogues, unless they are there already.

    Makes about 230 MB in a few seconds (v2: 60 MB, humid: 30 MB): NetCDF files with the names and attributes of
    CMIP6, and their catalogues `simulation.json` and `reconstruction.json`. The same seed gives the same data.
    Several processes may call it at once.

    Parameters
    ----------
    section : mapping
        The configuration's section `demo`: `folder`, relative to the working folder, `seed` (default 1), and
        `production`: v2 makes the data of ESPO v2's example, humid those of five variables with humidity.

    Returns
    -------
    Path
        The folder, absolute.

    Raises
    ------
    ConfigurationError
        If the section lacks a folder or has an unknown key or production, or its seed is not a whole number of 0
        or more.
    StoreError
        If the disk refuses.
    """
    folder, seed = _checked(section)
    record: dict[str, Any] = {"edition": _EDITION, "seed": seed, "folder": str(folder)}
    if "production" in section:
        record["production"] = section["production"]
    if _is_made(folder, record):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(open_own(folder.parent / f".{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_made(folder, record):
            return folder
        check_ours(folder, by_manifest(_MAKER))
        start = time.monotonic()
        usual = REFERENCE, SIMULATIONS, 230
        reference, simulations, size = _PRODUCTIONS.get(record.get("production", ""), usual)
        logger.info("Making the demo's data in %s (once; about %d MB)", folder, size)
        with written_aside(folder, judge=by_manifest(_MAKER)) as partial:
            partial.mkdir()
            for name, sources in {"reconstruction": (reference,), "simulation": simulations}.items():
                rows = [row for source in sources for row in _write_source(source, partial, folder, seed)]
                write_catalog(rows, partial / f"{name}.json", _MAKER)
            write_new(partial / _RECORD_NAME, json.dumps(record))
            write_manifest(partial, _MAKER)
    logger.info("Made the demo's data in %.0f s", time.monotonic() - start)
    return folder


def _checked(section: Mapping[str, Any]) -> tuple[Path, int]:
    unknown = set(section) - {"folder", "seed", "production"}
    folder, seed = section.get("folder"), section.get("seed", 1)
    if unknown or not isinstance(folder, str | os.PathLike) or not str(folder):
        raise ConfigurationError(
            f"`demo`: got {dict(section)}, expected a `folder` and, if you like, `seed` or `production`"
        )
    if "production" in section and section["production"] not in _PRODUCTIONS:
        raise ConfigurationError(
            f"`demo.production`: got {section['production']!r}, expected v2 or humid, or no such key"
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigurationError(f"`demo.seed`: got {seed!r}, expected a whole number of 0 or more")
    return Path(os.path.expandvars(folder)).expanduser().absolute(), seed


def _is_made(folder: Path, record: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads((folder / _RECORD_NAME).read_text(encoding="utf-8")) == record)
    except (OSError, ValueError):
        return False


def _write_source(source: Source, partial: Path, folder: Path, seed: int) -> list[dict[str, str]]:
    """Write a source's files into `partial`; return its rows of the catalogue, with paths in the final `folder`."""
    years = [year for pair in source.experiments.values() for year in pair]
    days = days_of(source.calendar, min(years), max(years))
    lats, lons = source.places()
    logger.info("Demo: %s, %d days of %d cells", source.name, days.years.size, len(source.lats) * len(source.lons))
    rng = np.random.default_rng([seed, zlib.crc32(source.random_stream.encode())])
    invent = invent_humid_weather if source.is_humid else invent_weather
    weather = _as_in_files(source, invent(source.climate, days, lats, lons, rng), days)
    rows = []
    for experiment, (first, last) in source.experiments.items():
        part = days.within(first, last)
        part = slice(part.start + (source.begins(experiment) != "0101"), part.stop)
        datasets = {
            name: dataset_of(source, experiment, name, data[part], days, part) for name, data in weather.items()
        }
        if experiment == next(iter(source.experiments)):
            fields = _fixed_fields(source).items()
            datasets |= {name: fixed_dataset_of(source, experiment, name, values) for name, values in fields}
        for name, ds in datasets.items():
            path = Path(folder_of(source, experiment, name)) / file_name(source, experiment, name, days.last_day)
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            ds.to_netcdf(partial / path, engine="netcdf4")
            rows.append(catalog_row(source, experiment, name, folder / path, days.last_day))
    return rows


def _as_in_files(source: Source, weather: Mapping[str, Field], days: Days) -> dict[str, Field]:
    """Return the weather with the source's gaps, its impossible value and its precision."""
    values = dict(weather)
    if source.land:
        sea = np.array([[letter not in "#+" for letter in row] for row in reversed(source.land)])
        values = {name: np.where(sea, np.float32(np.nan), data) for name, data in weather.items()}
    if source.hot_cell:
        values["tasmax"][(days.within(_HOT_YEAR, _HOT_YEAR).start + _HOT_DAY, *source.hot_cell)] = _HOT_KELVIN
    if source.is_compact:
        values = {name: round_mantissas(data, _KEPT_BITS[name]) for name, data in values.items()}
    return values


def _fixed_fields(source: Source) -> dict[str, np.ndarray]:
    """Return the source's fixed fields (y, x)."""
    land = np.array([[letter == "#" for letter in row] for row in reversed(source.land)])
    fields: dict[str, np.ndarray] = {}
    if "sftlf" in source.fixed:
        fields["sftlf"] = np.array(source.land_percent, np.float32)
    if "mask" in source.fixed:
        fields["mask"] = land.astype(np.int8)
    if "orog" in source.fixed:
        fields["orog"] = np.where(land, heights(source.climate, *source.places()), 0).astype(np.float32)
    return fields


def catalog_row(source: Source, experiment: str, variable: str, path: Path, last_day: str) -> dict[str, str]:
    """One file's row of a catalogue."""
    first, last = source.experiments[experiment]
    row = {
        "type": "reconstruction",
        "processing_level": "raw",
        "institution": INSTITUTION,
        "source": source.name,
        "xrfreq": "D",
        "frequency": "day",
        "variable": f"('{variable}',)",
        "domain": REFERENCE_DOMAIN,
        "version": source.version or f"v{_EDITION}",
        "format": "nc",
        "path": str(path),
    }
    if variable in source.fixed:
        row |= {"xrfreq": "fx", "frequency": "fx"}
    else:
        begins = source.begins(experiment)
        row["date_start"] = f"{first}-{begins[:2]}-{begins[2:]}"
        row["date_end"] = f"{last}-{last_day[:2]}-{last_day[2:]}"
    if source.is_simulation:
        activity = activity_of(source, experiment)
        row |= {"type": "simulation", "mip_era": "CMIP6", "activity": activity, "experiment": experiment}
        row |= {"member": source.member, "domain": source.domain, "grid_label": "gn"}
    if source.driver:
        row |= dict(zip(("driving_model", "driving_member"), source.driver, strict=True))
    return row | {"id": make_id(row)}
