"""Making the example's folder: files, catalogues, once."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from espo_luigi.catalog.build import describe, write_catalog
from espo_luigi.catalog.read import make_id
from espo_luigi.demo.sources import (
    CMIP7_SIMULATIONS,
    INSTITUTION,
    MEMBER,
    REFERENCE,
    SIMULATIONS,
    Source,
    activity_of,
    dataset_of,
    file_name,
    folder_of,
)
from espo_luigi.demo.weather import Field, days_of, invent_weather
from espo_luigi.errors import ConfigurationError
from espo_luigi.files import open_own, write_new
from espo_luigi.store.publish import written_aside

logger = logging.getLogger(__name__)

# A new number makes folders of earlier editions again: raise it when the same seed gives other data.
_EDITION = 3
_RECORD_NAME = "demo.json"
_MAKER = "the demonstration of espo_luigi; all data are invented"


def ensure_demo(section: Mapping[str, Any]) -> Path:
    """Make the example's raw files and catalogues, unless they are there already.

    Makes about 230 MB in a few seconds: NetCDF files with the names and attributes of CMIP6 or CMIP7, and their
    catalogues `simulation.json` and `reconstruction.json`. The same seed gives the same data.
    Several processes may call it at once.

    Parameters
    ----------
    section : mapping
        The configuration's section `demo`: `folder`, relative to the working folder, `seed` (default 1) and `mip_era`,
        CMIP6 (default) or CMIP7.

    Returns
    -------
    Path
        The folder, absolute.

    Raises
    ------
    ConfigurationError
        If the section lacks a folder or has an unknown key or era, or its seed is not a whole number of 0 or more.
    StoreError
        If the disk refuses.
    """
    folder, seed = _checked(section)
    record = {"edition": _EDITION, "seed": seed, "folder": str(folder)}
    if section.get("mip_era") == "CMIP7":
        record["mip_era"] = "CMIP7"
    if _is_made(folder, record):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time(folder):
        if not _is_made(folder, record):
            _make(folder, record)
    return folder


def _checked(section: Mapping[str, Any]) -> tuple[Path, int]:
    unknown = set(section) - {"folder", "seed", "mip_era"}
    folder, seed, mip_era = section.get("folder"), section.get("seed", 1), section.get("mip_era", "CMIP6")
    if unknown or not isinstance(folder, str | os.PathLike) or not str(folder):
        raise ConfigurationError(f"`demo`: got {dict(section)}, expected a `folder` and, if you like, a `seed`")
    if mip_era not in ("CMIP6", "CMIP7"):
        raise ConfigurationError(f"`demo.mip_era`: got {mip_era!r}, expected CMIP6 or CMIP7")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigurationError(f"`demo.seed`: got {seed!r}, expected a whole number of 0 or more")
    return Path(os.path.expandvars(folder)).expanduser().absolute(), seed


def _is_made(folder: Path, record: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads((folder / _RECORD_NAME).read_text(encoding="utf-8")) == record)
    except (OSError, ValueError):
        return False


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with open(open_own(folder.parent / f".{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path, record: Mapping[str, Any]) -> None:
    start = time.monotonic()
    logger.info("Making the demo's data in %s (once; about 230 MB)", folder)
    with written_aside(folder) as partial:
        partial.mkdir()
        simulations = CMIP7_SIMULATIONS if "mip_era" in record else SIMULATIONS
        for name, sources in {"reconstruction": (REFERENCE,), "simulation": simulations}.items():
            rows = [row for source in sources for row in _write_source(source, partial, folder, record["seed"])]
            write_catalog(rows, partial / f"{name}.json", _MAKER)
        write_new(partial / _RECORD_NAME, json.dumps(record))
    logger.info("Made the demo's data in %.0f s", time.monotonic() - start)


def _write_source(source: Source, partial: Path, folder: Path, seed: int) -> list[dict[str, str]]:
    """Write a source's files into `partial`; return its rows of the catalogue, with paths in the final `folder`."""
    years = [year for pair in source.experiments.values() for year in pair]
    days = days_of(source.calendar, min(years), max(years))
    logger.info("Demo: %s, %d days of %d cells", source.name, days.years.size, len(source.lats) * len(source.lons))
    rng = np.random.default_rng([seed, zlib.crc32(source.name.encode())])
    weather = invent_weather(source.climate, days, np.array(source.lats), np.array(source.lons), rng)
    if source.land:
        weather = _without_sea(source, weather)
    rows = []
    for experiment, (first, last) in source.experiments.items():
        part = days.within(first, last)
        for name, values in weather.items():
            path = Path(folder_of(source, experiment, name)) / file_name(source, experiment, name, days.last_day)
            (partial / path).parent.mkdir(parents=True, exist_ok=True)
            dataset_of(source, experiment, name, values[part], days, part).to_netcdf(partial / path, engine="netcdf4")
            if source.mip_era == "CMIP7":
                rows.append(describe(partial / path) | {"path": str(folder / path)})
            else:
                rows.append(catalog_row(source, experiment, name, folder / path, days.last_day))
    return rows


def _without_sea(source: Source, weather: Mapping[str, Field]) -> dict[str, Field]:
    sea = np.array([[letter != "#" for letter in row] for row in reversed(source.land)])
    return {name: np.where(sea, np.float32(np.nan), values) for name, values in weather.items()}


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
        "domain": "NAM",
        "date_start": f"{first}-01-01",
        "date_end": f"{last}-{last_day[:2]}-{last_day[2:]}",
        "version": f"v{_EDITION}",
        "format": "nc",
        "path": str(path),
    }
    if source.is_simulation:
        activity = activity_of(experiment)
        row |= {"type": "simulation", "mip_era": "CMIP6", "activity": activity, "experiment": experiment}
        row |= {"member": MEMBER, "domain": "global"}
    return row | {"id": make_id(row)}
