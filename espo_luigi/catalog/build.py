"""Making a catalogue from a folder of NetCDF files and Zarr stores of CMIP6, CMIP7 or CORDEX."""

from __future__ import annotations

import csv
import datetime
import io
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.catalog.cmip7 import described_by_path, is_cmip7, normal_region, searched_names, suffix_of
from espo_luigi.catalog.files import first_line, is_zarr, open_netcdf, open_zarr
from espo_luigi.catalog.history import HISTORIES, NO_PARENT
from espo_luigi.catalog.presets import Preset
from espo_luigi.catalog.read import CMIP7_COLUMNS, COLUMNS, faults_of, make_id
from espo_luigi.catalog.stations import TABLES, holds_tables, is_stations, open_stations
from espo_luigi.errors import CatalogError, EspoError, as_cell, as_text
from espo_luigi.files import read_object
from espo_luigi.replacing import Judge, by_content, by_digest, check_ours, digest_of_ours, write_ours
from espo_luigi.science.attributes import FREQUENCY_BY_LETTER
from espo_luigi.science.calendar import SECONDS_PER_DAY, TO_MIDPOINT, floor_to_day
from espo_luigi.science.geometry.cells import COORDINATE_NAMES, coordinate_names

logger = logging.getLogger(__name__)

_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "mip_era": ("mip_era", "project_id"),
    "activity": ("activity_id",),
    "driving_model": ("driving_source_id", "driving_model_id"),
    "driving_member": ("driving_variant_label", "driving_model_ensemble_member"),
    "institution": ("institution_id", "institute_id"),
    "source": ("source_id", "model_id"),
    "experiment": ("experiment_id", "driving_experiment_id", "driving_experiment_name"),
    "member": ("variant_label", "member_id", "version_realization", "rcm_version_id"),
    "frequency": ("frequency",),
    "domain": ("domain_id", "CORDEX_domain"),
    "grid_label": ("grid_label",),
    "version": ("version",),
}
"""Where each column is found in a file's global attributes: CMIP and CORDEX names, in order of preference."""

_PARENT_ATTRIBUTES = {
    "parent_mip_era": "parent_mip_era",
    "parent_activity": "parent_activity_id",
    "parent_source": "parent_source_id",
    "parent_experiment": "parent_experiment_id",
    "parent_member": "parent_variant_label",
}

_FREQUENCIES = {"day": "D", "mon": "MS", "yr": "YS", "fx": "fx", "6hr": "6h", "3hr": "3h", "1hr": "h", "30min": "30min"}
_XRFREQ_OF_DAYS = ((1 / 48, "30min"), (1 / 24, "h"), (0.125, "3h"), (0.25, "6h"), (1.0, "D"))
_FREQUENCY_OF = {xrfreq: frequency for frequency, xrfreq in _FREQUENCIES.items()}
# Hindcasts of DCPP begin with the year of their start: s1960-r1i1p1f1.
_MEMBER = r"(?:s\d+-)?r\d+i\d+p\d+(?:f\d+)?"
_CMIP_NAME = re.compile(
    rf"(?P<variable>[A-Za-z0-9-]+)_(?P<table>[A-Za-z0-9]+)_(?P<source>[A-Za-z0-9-]+)_(?P<experiment>[A-Za-z0-9-]+)_(?P<member>{_MEMBER})"
    r"(?:_(?P<grid_label>g[a-z0-9]+))?(?:_(?P<dates>\d{4,}-\d{4,}))?$"
)
_CORDEX_NAME = re.compile(
    rf"(?P<variable>[A-Za-z0-9]+)_(?P<domain>[A-Z]{{3}}-\w+?)_(?P<driving_model>[A-Za-z0-9-]+)_(?P<experiment>[A-Za-z0-9-]+)"
    rf"_(?P<driving_member>{_MEMBER})_(?P<source>[A-Za-z0-9-]+)_(?P<member>[A-Za-z0-9-]+)_(?P<table>[A-Za-z0-9]+)(?:_(?P<dates>\d{{4,}}-\d{{4,}}))?$"
)
_LEFT_OVER = re.compile(r"\.nc4?\..*(?:tmp|temp|part|partial|filepart|crdownload)$")
# Columns that describe the file, not the datasets that are made of it.
_OF_THE_FILE = ("variable", "date_start", "date_end", "format", "path")
# Of a file in several versions.
_SAME_FILE = ("id", "variable", "xrfreq", "grid_label", "date_start")
_ABSENT = {"", "none", "no parent", "unknown", "n/a", "nan"}


# How a catalogue is known to be ours.
OF_OURS = by_content(
    lambda content: content.startswith(b'{\n  "esmcat_version"') and b'"description": "Made by ' in content,
    "a catalogue that espo_luigi has made",
)


@dataclass(frozen=True)
class CatalogReport:
    """The result of `make_catalog`."""

    found: int
    """The number of files and stores in the catalogue."""
    unreadable: list[tuple[Path, str]] = field(default_factory=list)
    """The files that were left out, each with the reason."""


def make_catalog(folder: Path, out: Path, source: str = "", preset: Preset | None = None) -> CatalogReport:
    """Write a catalogue (JSON, and CSV beside it) of the NetCDF files and Zarr stores of a folder and its subfolders.

    Attributes describe a file first (``cat:…``, then those of CMIP or CORDEX), then its name
    (``{var}_{table}_{source}_{experiment}_{member}_{grid}_{dates}.nc``) and its place in an ESGF folder tree.
    `source` names the dataset of files that do not name theirs, such as a reference's. A table of stations, or a folder
    of such tables without other data, makes a single row. A `preset` counts before all
    of these; the JSON file keeps it, for those who open the files. Of a preset's file in several versions, the newest
    counts.

    Raises
    ------
    CatalogError
        If the folder does not exist or has no readable file, or the catalogue cannot be written.
    """
    folder, out = Path(folder), Path(out)
    with _errors_of_the_catalogue():
        check_catalog_replaceable(out)
    is_table = folder.is_file() and folder.name.endswith(TABLES)
    if not folder.is_dir() and not is_table:
        raise CatalogError(
            f"{folder} is not a folder; expected one with NetCDF files (*.nc), Zarr stores (*.zarr) or tables of "
            f"stations, or a table (*{', *'.join(TABLES)})."
        )
    rows: list[dict[str, str]] = []
    unreadable: list[tuple[Path, str]] = []
    found = [] if is_table else sorted(find_data(folder, unreadable))
    for path in found or ([folder] if is_table or holds_tables(folder) else []):
        try:
            rows.append(describe(path.absolute(), source, preset))
        # A damaged file may raise nearly anything from its backend; it is reported, and the rest goes on.
        except Exception as error:
            reason = str(error) if isinstance(error, EspoError) else first_line(error)
            unreadable.append((path, reason))
            # Terminals and logs refuse names with bytes other than UTF-8.
            logger.warning("%s is not in the catalogue: %s", as_text(str(path)), reason)
    if not rows:
        reasons = (
            "; ".join(f"{path}: {reason}" for path, reason in unreadable[:5])
            or "there are no *.nc, *.zarr or *.zarr.zip"
        )
        raise CatalogError(f"nothing in {folder} can be catalogued ({reasons}).")
    rows.sort(key=lambda row: (row["id"], row["variable"], row.get("date_start", ""), row["path"]))
    if preset:
        newest: dict[tuple[str | None, ...], dict[str, str]] = {}
        for row in sorted(rows, key=lambda row: [int(part) for part in re.findall(r"[0-9]+", row.get("version", ""))]):
            newest[tuple(row.get(column) for column in (*_SAME_FILE, *(() if "version" in row else ("path",))))] = row
        kept = {row["path"] for row in newest.values()}
        unreadable += [(Path(row["path"]), "a newer version is there") for row in rows if row["path"] not in kept]
        rows = [row for row in rows if row["path"] in kept]
    with _errors_of_the_catalogue():
        write_catalog(rows, out, "espo catalog", preset)
    return CatalogReport(len(rows), unreadable)


@contextmanager
def _errors_of_the_catalogue() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CatalogError(f"the catalogue cannot be written: {error}.") from error


def find_data(folder: Path, unreadable: list[tuple[Path, str]]) -> list[Path]:
    """Return the NetCDF files and Zarr stores below a folder, left-overs of tools too; looks into no store.

    Links to folders are followed, after all other folders. A file or store that several links show is there once, by
    its own path if that lies below the folder. Folders that cannot be listed are added to `unreadable`.
    """
    found: dict[str, Path] = {}
    pending, seen = [folder], set()
    errors: list[OSError] = []
    while pending:
        for place, folders, files in os.walk(pending.pop(0), onerror=errors.append):
            is_new = (own := os.path.realpath(place)) not in seen
            seen.add(own)
            visible = [name for name in sorted(folders) if is_new and not name.startswith(".")]
            stores = [name for name in visible if name.endswith(".zarr")]
            folders[:] = [name for name in visible if name not in stores]
            links = (path for name in folders if (path := Path(place) / name).is_symlink())
            # A link to a folder that holds it is a circle, or leads out to all that lies above.
            pending += [path for path in links if not Path(own).is_relative_to(os.path.realpath(path))]
            data = [
                name
                for name in sorted(files)
                if not name.startswith(".") and (name.endswith((".nc", ".nc4", ".zarr.zip")) or _LEFT_OVER.search(name))
            ]
            for path in (Path(place) / name for name in [*stores, *data] if is_new):
                if path.is_symlink():
                    found.setdefault(os.path.realpath(path), path)
                else:
                    found[os.path.join(own, path.name)] = path
    for error in errors:
        unreadable.append((Path(error.filename), f"the folder cannot be listed ({error.strerror})"))
        logger.warning("%s is not in the catalogue: %s", as_text(str(error.filename)), unreadable[-1][1])
    return list(found.values())


def describe(path: Path, source: str = "", preset: Preset | None = None) -> dict[str, str]:
    """Return one file's row of a catalogue: by a preset, its attributes, its name and its place, or else of `source`.

    Raises
    ------
    CatalogError
        If its source (the model or dataset), its frequency or its variables are unknown, or a cell of its row could
        not be read again.
    DataError
        If its calendar is unknown, or its branding suffix (CMIP7) contradicts its `cell_methods`.
    """
    if _LEFT_OVER.search(path.name):
        raise CatalogError("by its name, it is the left-over of an interrupted download or tool. Remove it")
    with _opened(path, preset) as ds:
        by_attributes = _of_attributes(ds.attrs)
        if is_cmip7(ds.attrs, str(path)):
            row = described_by_path(str(path)) | by_attributes | _of_cmip7_attributes(ds.attrs, str(path))
        else:
            row = _of_place(path) | _of_name(path) | by_attributes
        if preset:
            named = {"source": source or preset.source} if source or preset.source else {}
            row |= {**preset.columns, **named, **preset.described(str(path))}
        elif source:
            row.setdefault("source", source)
        row |= _of_contents(ds, row, path, [*preset.names] if preset else [])
    form = {} if is_stations(str(path)) else {"format": "zarr" if is_zarr(str(path)) else "nc"}
    row |= form | {"path": str(path)}
    row = _defaults(row)
    if "source" not in row:
        raise CatalogError(
            "no source: neither attributes (source_id, cat:source) nor the file's name say which dataset it is; "
            "give `espo catalog` its name as --source, set cat:source, or name the file "
            "{var}_{table}_{source}_{experiment}_{member}_{grid}_{dates}.nc"
        )
    row = {"id": make_id(row), **row}
    faults = [f"{column} {fault}" for column, fault in faults_of(row).items()]
    if faults:
        raise CatalogError(f"its row would have cells that cannot be used: {'; '.join(faults)}")
    return row


def describe_product(ds: xr.Dataset) -> dict[str, str]:
    """Return a row for a product of ours: its ``cat:…`` attributes, variables and dates, without format and path.

    It is empty if the attributes do not name a dataset. Statistics of years have the frequency of their series, as in
    xscen, and the first and the last day of all of these years.
    """
    stated = {key.removeprefix("cat:"): str(value) for key, value in ds.attrs.items() if key.startswith("cat:")}
    row = {column: stated[column] for column in COLUMNS if column in stated and column not in _OF_THE_FILE}
    if "id" not in row:
        return {}
    names = [str(name) for name in ds.data_vars]
    row["variable"] = repr(tuple([name for name in names if "time" in ds[name].dims] or names))
    is_of_years = "horizon" in ds.dims or "warming_level" in ds.dims
    if "time" not in ds.dims and not is_of_years:
        return row | {"xrfreq": "fx", "frequency": "fx"}
    if "time" in ds.dims:
        times = ds["time"].values
    else:
        # Of all horizons, or of the years of all levels of warming; none if none is reached.
        named = ds["horizon"].values if "horizon" in ds.dims else [ds.attrs.get("warming_level_years", "")]
        years = [pair for name in named for pair in re.findall(r"(?:^| K: )(\d{4})-(\d{4})", str(name))]
        ends = [f"{min(years)[0]}-01-01", f"{max(last for _, last in years)}-12-31"] if years else []
        times = np.array(ends)
    # A clean-up that keeps few attributes removes those of the frequency.
    xrfreq = row.get("xrfreq") or _frequency(times[:2]) or ""
    known = row.get("frequency") or _FREQUENCY_OF.get(xrfreq) or FREQUENCY_BY_LETTER.get(xrfreq[:1], "")
    dates = {"date_start": stamp(times[0]), "date_end": stamp(times[-1])} if len(times) else {}
    return row | {"xrfreq": xrfreq, "frequency": known} | dates


def _opened(path: Path, preset: Preset | None = None) -> xr.Dataset:
    options = {"chunks": None} | (preset.options(str(path)) if preset else {})
    if is_stations(str(path)):
        return open_stations(str(path))
    ds = open_zarr(str(path), options) if is_zarr(str(path)) else open_netcdf(str(path), (), options)
    return preset.opened(ds, str(path)) if preset else ds


def _of_attributes(attrs: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for column, names in _ATTRIBUTES.items():
        values = (str(attrs.get(name, "")).strip() for name in names)
        value = next((value for value in values if value.lower() not in _ABSENT), None)
        if value is not None:
            # Attributes may list several activities ("ScenarioMIP AerChemMIP"): the first is the file's folder in ESGF.
            found[column] = value.split()[0]
    table = str(attrs.get("table_id", "")).strip()
    if "frequency" not in found and table in _FREQUENCIES:
        found["frequency"] = table
    if "member" in found and (start := _stated(attrs, "sub_experiment_id")):
        found["member"] = f"{start}-{found['member'].removeprefix(f'{start}-')}"
    if found.get("mip_era") == "CORDEX":
        # CORDEX's files of CMIP5 only have this `project_id`; those of CMIP6 have a `mip_era`.
        found |= {"mip_era": "CMIP5", "activity": "CORDEX"}
    if found.get("mip_era") == "CMIP6" and found.get("experiment", "").startswith("ssp"):
        # The parent is noted if it differs from the `historical` run that the search joins.
        parent = {column: _stated(attrs, name) for column, name in _PARENT_ATTRIBUTES.items()}
        own = {"parent_experiment": "historical"} | {f"parent_{of}": found.get(of) for of in ("source", "member")}
        if any(parent[column] not in ("", value) for column, value in own.items()):
            found |= {column: text for column, text in parent.items() if text}
    stated = {key.removeprefix("cat:"): str(value) for key, value in attrs.items() if key.startswith("cat:")}
    return found | {
        column: value for column, value in stated.items() if column in COLUMNS and column not in ("id", "path")
    }


def _stated(attrs: Mapping[str, Any], name: str) -> str:
    """Return an attribute's text; empty for "none", "no parent" and the like."""
    text = str(attrs.get(name, "")).strip()
    return "" if text.lower() in _ABSENT else text


def _of_cmip7_attributes(attrs: Mapping[str, Any], path: str) -> dict[str, str]:
    """Return the columns that rows of CMIP7 have besides; a run without a parent says so."""
    names = {"grid_label": "grid_label", "region": "region", **_PARENT_ATTRIBUTES}
    found = {column: text for column, name in names.items() if (text := _stated(attrs, name))}
    if "region" in found:
        found["region"] = normal_region(found["region"])
    if "parent_experiment" not in found and "parent_experiment_id" in attrs:
        found["parent_experiment"] = NO_PARENT
    suffix = suffix_of(attrs, path)
    return found | {"mip_era": "CMIP7"} | ({"branding_suffix": suffix} if suffix else {})


def _of_name(path: Path) -> dict[str, str]:
    stem = re.sub(r"(\.nc4?|\.zarr|\.zarr\.zip)$", "", path.name)
    match = _CORDEX_NAME.match(stem) or _CMIP_NAME.match(stem)
    if match is None:
        return {}
    parts = {key: value for key, value in match.groupdict().items() if value is not None}
    frequency = {"frequency": parts["table"]} if parts["table"] in _FREQUENCIES else {}
    return {key: value for key, value in parts.items() if key in COLUMNS} | frequency


def _of_place(path: Path) -> dict[str, str]:
    """Activity and institution from an ESGF tree: …/{mip_era}/{activity}/{institution}/{source}/…"""
    source = _of_name(path).get("source")
    folders = path.parts[:-1]
    if source not in folders or folders.index(source) < 3:
        return {}
    era, activity, institution = folders[folders.index(source) - 3 : folders.index(source)]
    return {"mip_era": era, "activity": activity, "institution": institution} if era.startswith("CMIP") else {}


def _of_contents(ds: xr.Dataset, row: Mapping[str, str], path: Path, wanted: Sequence[str] = ()) -> dict[str, str]:
    variables = _climate_variables(ds)
    variables = [name for name in variables if name in wanted] or variables
    if not variables:
        raise CatalogError(
            f"no variable with latitudes and longitudes; it has {', '.join(map(str, ds.variables)) or 'none'}"
        )
    along = [ds[name].dims for name in coordinate_names(ds).values()]
    is_list = len(along) == 2 and along[0] == along[1] and len(along[0]) == 1 and ds.sizes[along[0][0]] > 1
    is_model = "experiment" in row or not row.get("source")
    if is_list and is_model and ds.attrs.get("cat:processing_level", "raw") == "raw":
        raise CatalogError(
            f"an unstructured grid: latitudes and longitudes of its cells stand along {along[0][0]}; expected rows and "
            "columns. Interpolate the file to a regular grid first"
        )
    if is_cmip7(ds.attrs, str(path)):
        variables = list(searched_names(ds, variables, str(path)).values())
    found = {"variable": repr(tuple(variables))}
    if "time" not in ds.dims or not ds.sizes["time"]:
        return found | {"xrfreq": "fx", "frequency": "fx"}
    times = ds["time"].values
    xrfreq = _frequency(times) or _FREQUENCIES.get(row.get("frequency", ""))
    if xrfreq is None:
        raise CatalogError(
            f"no frequency: {len(times)} time steps of unequal length and no attribute frequency or table_id"
        )
    days = floor_to_day(ds[["time"]], ds.get(TO_MIDPOINT))["time"].values if xrfreq == "D" else times
    first, last = _ends(days, path) if xrfreq == "D" else (days[0], days[-1])
    dates = {"date_start": stamp(first), "date_end": stamp(last)}
    return found | dates | {"xrfreq": xrfreq, "frequency": _FREQUENCY_OF.get(xrfreq, row.get("frequency", ""))}


def _ends(times: np.ndarray, path: Path) -> tuple[Any, Any]:
    """Return the first and the last date. If dates go back, return as many days as there are steps.

    The files' check then names the fault: by their latest date, such files would only seem too short.
    """
    back = np.flatnonzero(times[1:] < times[:-1])
    if not back.size:
        return times[0], times[-1]
    before, after = (str(times[at])[:10] for at in (back[0], back[0] + 1))
    logger.warning(
        "%s: the dates go back: %s is followed by %s. No product can be made of this file. Correct its dates.",
        as_text(str(path)),
        before,
        after,
    )
    day = np.timedelta64(1, "D") if isinstance(times[0], np.datetime64) else datetime.timedelta(days=1)
    return times.min(), max(times.max(), times.min() + (times.size - 1) * day)


def _climate_variables(ds: xr.Dataset) -> list[str]:
    bounds = {value.attrs.get("bounds") or value.encoding.get("bounds") for value in ds.variables.values()}
    names = [str(name) for name, data in ds.data_vars.items() if data.ndim >= 2 and name not in bounds]
    coordinates = {*COORDINATE_NAMES["lat"], *COORDINATE_NAMES["lon"]}
    suffixes = ("_bnds", "_bounds", "_vertices")
    return [name for name in names if name not in coordinates and not name.endswith(suffixes)]


def _frequency(times: np.ndarray) -> str | None:
    if len(times) < 2:
        return None
    steps = np.diff(times[:1000]).astype("timedelta64[s]").astype("float64") / SECONDS_PER_DAY
    typical = float(np.median(steps))
    exact = [name for days, name in _XRFREQ_OF_DAYS if abs(typical - days) < 1e-3]
    if exact:
        return exact[0]
    return "MS" if 27.9 < typical < 31.1 else "YS" if 359.9 < typical < 366.1 else None


def stamp(time: Any) -> str:
    """Return a date as xscen writes it, at midnight; 29 and 30 February of other calendars become 28 February."""
    text = str(time)[:10]
    day = "28" if text[5:7] == "02" and int(text[8:10]) > 28 and not isinstance(time, np.datetime64) else text[8:10]
    return f"{text[:8]}{day} 00:00"


def _defaults(row: Mapping[str, str]) -> dict[str, str]:
    """Add era, activity and domain where the file leaves them out; a dataset without experiment is no simulation."""
    filled = {key: value for key, value in row.items() if key in (*COLUMNS, *CMIP7_COLUMNS) and value}
    experiment = filled.get("experiment", "")
    is_history = experiment == "historical" and "driving_model" not in filled
    is_scenario = experiment.startswith("ssp")
    if filled.get("mip_era") == "CMIP7":
        is_history, is_scenario = experiment in HISTORIES, "scen7-" in experiment
    region = filled.get("region", "glb")
    inferred = {
        "type": "simulation" if experiment else "reconstruction",
        "processing_level": "raw",
        "domain": "" if not experiment else "global" if region == "glb" else region,
        "activity": "CMIP" if is_history else "ScenarioMIP" if is_scenario else "",
        "mip_era": "CMIP6" if re.fullmatch(r"(?:s\d+-)?r\d+i\d+p\d+f\d+", filled.get("member", "")) else "",
    }
    return {key: value for key, value in inferred.items() if value} | filled


def check_catalog_replaceable(out: Path) -> None:
    """Raise an error if a catalogue `out` would replace, or its table beside it, what `espo catalog` has not made."""
    if out.suffix == ".csv":
        raise CatalogError(
            f"--out {out}: expected a JSON file's name, such as {out.stem}.json; its table ends in .csv."
        )
    if check_ours(out, OF_OURS) is None:
        check_ours(
            out.with_suffix(".csv"),
            lambda _: f"there is no catalogue {out.name} that it belongs to, so it may be yours",
        )
    check_ours(out.with_suffix(".csv"), _table_of(out))


def _table_of(out: Path) -> Judge:
    """The judge of the table that was written with a catalogue: rows and remarks of others since are not ours."""
    digests = (read_object(out) or {}).get("table_sha256")
    return by_digest([str(digest) for digest in digests] if isinstance(digests, list) else [])


def write_catalog(rows: list[dict[str, str]], out: Path, maker: str, preset: Preset | None = None) -> None:
    """Write rows as a catalogue: `out`, with the preset that describes their files, and a table beside it.

    After a kill between the two, the catalogue shows that the table's name is its own.
    """
    table = out.with_suffix(".csv")
    text = io.StringIO()
    besides = [column for column in CMIP7_COLUMNS if any(column in row for row in rows)]
    writer = csv.DictWriter(text, [*COLUMNS, *besides], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: as_cell(value) for name, value in row.items()} for row in rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    check_catalog_replaceable(out)
    digests = [sha256(text.getvalue().encode()).hexdigest(), *digest_of_ours(table, _table_of(out))]
    said = description(out, table, maker) | {"table_sha256": digests}
    said |= {"preset": preset.model_dump(mode="json")} if preset else {}
    write_ours(out, json.dumps(said, indent=2) + "\n", OF_OURS)
    write_ours(table, text.getvalue(), by_digest(digests))


def description(out: Path, table: Path, maker: str) -> dict[str, Any]:
    """Return the JSON file that intake-esm and xscen open: datasets are grouped by id, domain, level and frequency."""
    aggregations = [
        {"type": "join_existing", "attribute_name": "date_start", "options": {"dim": "time"}},
        {"type": "union", "attribute_name": "variable", "options": {}},
    ]
    return {
        "esmcat_version": "0.1.0",
        "id": out.stem,
        "description": f"Made by {maker}",
        "title": out.stem,
        "attributes": [],
        "catalog_file": table.name,
        "assets": {"column_name": "path", "format": None, "format_column_name": "format"},
        "aggregation_control": {
            "variable_column_name": "variable",
            "groupby_attrs": ["id", "domain", "processing_level", "xrfreq"],
            "aggregations": aggregations,
        },
    }
