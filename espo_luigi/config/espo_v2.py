"""Configurations of ESPO v2, translated: the same sections as of 2024, and what v2's scripts do without a key.

A section `subregions` makes a configuration one of v2. Keys that are given under their names here stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from espo_luigi.config.contents import Written
from espo_luigi.config.yaml_files import KeyPath
from espo_luigi.errors import ConfigurationError
from espo_luigi.science.choices import FILLING_OF_V2, each_period

logger = logging.getLogger(__name__)

_REFUSED = {
    "biasadjust_extremes": "the adjustment of extreme values (ExtremeValues) is not done by espo_luigi",
    "partition": "the partition of uncertainty (rule `partition`) is not done by espo_luigi",
    "filter_extremes": "this limit of adjusted values is not done by espo_luigi: v2 has `max_tail_factor` in its place",
}
# Sections that only v2 has, and that are translated into others.
SECTIONS = ("chunks", "diagregion", "QC", "save_to_zarr", *_REFUSED)
# What v2's scripts repair, as they name it.
REPAIRS: tuple[Mapping[str, Any], ...] = (
    {"id": "*_BCC-CSM2-MR_*", "variable": "tasmin", "when": "2014-12-31", "what": "missing"},
    {"id": "*_BCC-CSM2-MR_*", "variable": "dtr", "when": "2014-12-31", "what": "missing"},
    {"id": "*_UKESM1-0-LL_*", "variable": "tasmax", "where": "> 335 K", "what": "missing"},
    {
        "id": "*_UKESM1-0-LL_ssp370_r1i*",
        "variable": "pr",
        "when": "2100-08-11",
        "where": [49.375, 285.9375],
        "what": "mean_of_neighbours",
    },
)
# The day that all files of the regional simulations lack.
DAYS_TO_FILL = ("2015-01-01",)


def translated(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], Written]:
    """Return merged content in the sections of `RunConfig`, and where moved keys were written.

    Raises
    ------
    ConfigurationError
        If a section asks for something that is not done here.
    """
    for section, what in _REFUSED.items():
        if section in content:
            raise ConfigurationError(f"`{section}`: {what}. Take the section away.")
    if "subregions" not in content:
        _check_no_other(content)
        return content, {}
    parts = (_custom, _extraction, _regrid, _clean_up, _diagnostics, _health_checks)
    made, written = dict(content), dict[KeyPath, KeyPath]()
    unused = [section for section in ("io", "tdd") if content.get(section)]
    for part in parts:
        found, moved, without_effect = part(content)
        made |= found
        written |= moved
        unused += without_effect
    if unused:
        logger.info("keys without effect here: %s", ", ".join(unused))
    return {key: value for key, value in made.items() if key not in SECTIONS}, written


def _check_no_other(content: Mapping[str, Any]) -> None:
    if others := [section for section in SECTIONS if section in content and section != "save_to_zarr"]:
        raise ConfigurationError(
            f"`{others[0]}` is a section of ESPO v2, and there is no section `subregions`; expected "
            "`subregions: {n: 50000}`, the number of cells of a slice, or no section of v2."
        )


# The names of the dimensions of chunks, on both kinds of grids.
_NAMES: Mapping[str, tuple[str, ...]] = {"X": ("lon", "rlon"), "Y": ("lat", "rlat"), "realization": ()}
Translation = tuple[dict[str, Any], dict[KeyPath, KeyPath], list[str]]


def _at(content: Any, *path: str) -> Any:
    """The value below a path; None if it is absent."""
    for key in path:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _mapping(content: Any, *path: str) -> dict[str, Any]:
    found = _at(content, *path)
    return dict(found) if isinstance(found, Mapping) else {}


def _custom(content: Mapping[str, Any]) -> Translation:
    sources: dict[str, tuple[KeyPath, Any]] = {
        "ref_period": _first(content, ("extraction", "reference"), ("search_data_catalogs",), ("extract_dataset",)),
        "sim_period": _first(content, ("extraction", "simulation"), ("extract_dataset",), ("search_data_catalogs",)),
        "final_chunks": (("chunks", "final"), _horizontal(_at(content, "chunks", "final"))),
        "working_chunks": (
            ("chunks", "workingloc"),
            _horizontal({**_mapping(content, "chunks", "workingXY"), **_mapping(content, "chunks", "workingloc")}),
        ),
    }
    given = _mapping(content, "custom")
    derived = {key: value for key, (_, value) in sources.items() if value}
    moved: dict[KeyPath, KeyPath] = {
        ("custom", key): path for key, (path, value) in sources.items() if value and key not in given
    }
    for section in ("final", "workingXY", "workingloc"):
        key = "final_chunks" if section == "final" else "working_chunks"
        moved |= {
            ("custom", key, name): ("chunks", section, given_name)
            for given_name in _mapping(content, "chunks", section)
            for name in _NAMES.get(given_name, ())
        }
    unused = [f"chunks.{name}" for name in _mapping(content, "chunks") if name in ("pre-regrid", "diag")]
    # Each member is a chunk, and a product's chunks have four years.
    fixed = [("workingloc", "realization"), ("final", "time")]
    unused += [f"chunks.{name}.{key}" for name, key in fixed if _at(content, "chunks", name, key) is not None]
    return {"custom": {**derived, "regions": {}, **given}}, moved, unused


def _first(content: Mapping[str, Any], where: KeyPath, *places: KeyPath) -> tuple[KeyPath, Any]:
    """The first periods that are given at one of these places, as one period, and their path."""
    paths = [(*where, *place, "periods") for place in places]
    found = next((path for path in paths if _at(content, *path)), paths[0])
    periods = _at(content, *found)
    listed = each_period(periods) if periods else ()
    return found, listed[0] if len(listed) == 1 else periods


def _horizontal(chunks: Any) -> dict[str, Any]:
    """Chunks with X and Y under the names of both kinds of grids, without members: each is a chunk."""
    given = chunks if isinstance(chunks, Mapping) else {}
    return {name: size for key, size in given.items() for name in _NAMES.get(key, (key,))}


def _extraction(content: Mapping[str, Any]) -> Translation:
    extraction = _mapping(content, "extraction")
    simulation, clean_up = _mapping(extraction, "simulation"), _mapping(extraction, "clean_up")
    defaults = {"repairs": [dict(row) for row in REPAIRS], "fill_in_time": FILLING_OF_V2, "days_to_fill": DAYS_TO_FILL}
    extraction["simulation"] = {**defaults, **simulation}
    units = clean_up.pop("variables_and_units", None)
    moved: dict[KeyPath, KeyPath] = {}
    if units is not None and "variables_and_units" not in extraction:
        extraction["variables_and_units"] = units
        moved["extraction", "variables_and_units"] = ("extraction", "clean_up", "variables_and_units")
    return {"extraction": extraction}, moved, [f"extraction.clean_up.{key}" for key in clean_up]


def _regrid(content: Mapping[str, Any]) -> Translation:
    return {"regrid": {"skip_coarser": True, **_mapping(content, "regrid")}}, {}, []


def _clean_up(content: Mapping[str, Any]) -> Translation:
    section, unused, moved = _mapping(content, "clean_up"), list[str](), dict[KeyPath, KeyPath]()
    for key in _mapping(section, "save"):
        unused.append(f"clean_up.save.{key} (no script of v2 reads it; `clean_up.bitround` rounds)")
    section.pop("save", None)
    for name, one in _mapping(section, "xscen_clean_up").items():
        if _at(one, "maybe_unstack_dict"):
            unused.append(f"clean_up.xscen_clean_up.{name}.maybe_unstack_dict (products are always maps)")
    treated = section.pop("xscen_clean_up", None)
    if treated is not None:
        section = {"variables": treated, **section}
        moved["clean_up", "variables"] = ("clean_up", "xscen_clean_up")
    saving = _mapping(content, "save_to_zarr")
    if "bitround" in saving:
        section = {"bitround": saving.pop("bitround"), **section}
        moved["clean_up", "bitround"] = ("save_to_zarr", "bitround")
    return {"clean_up": {"temperatures": "swap", **section}}, moved, unused + [f"save_to_zarr.{key}" for key in saving]


def _diagnostics(content: Mapping[str, Any]) -> Translation:
    domains = _at(content, "diagregion")
    if domains is None:
        return {"diagnostics": None}, {}, ["diagnostics"] if content.get("diagnostics") else []
    asked = _mapping(content, "diagnostics", "properties_and_measures")
    period = _custom(content)[0]["custom"].get("ref_period")
    moved: dict[KeyPath, KeyPath] = {
        ("domain-diag",): ("diagnostics", "properties_and_measures"),
        ("domain-diag", "domains"): ("diagregion",),
    }
    return {"domain-diag": {"period": period, **asked, "domains": domains}, "diagnostics": None}, moved, []


def _health_checks(content: Mapping[str, Any]) -> Translation:
    section = _mapping(content, "health_checks")
    names = ("NAM", "QC", "finalNAM", "finalQC")
    sets = {name: section.pop(name) for name in names if isinstance(section.get(name), Mapping)}
    if not sets:
        return {}, {}, []
    extent = {key: value for key, value in _mapping(content, "QC").items() if key in ("lon_bnds", "lat_bnds", "shape")}
    made: dict[str, Any] = {**sets.get("finalNAM", {}), **section}
    moved: dict[KeyPath, KeyPath] = {("health_checks",): ("health_checks", "finalNAM")}
    if "finalQC" in sets:
        made["scopes"] = {"QC": {**extent, **sets["finalQC"]}}
        moved["health_checks", "scopes", "QC"] = ("health_checks", "finalQC")
        moved |= {("health_checks", "scopes", "QC", key): ("QC", key) for key in extent}
    inputs: dict[str, Any] = {}
    if "NAM" in sets:
        inputs["flags"] = sets["NAM"].get("flags")
        moved["health_checks", "inputs"] = ("health_checks", "NAM")
    unused = [f"health_checks.{name}.{key}" for name, key in _of_inputs(sets)]
    unused += [f"QC.{key}" for key in _mapping(content, "QC") if key not in extent]
    if "QC" in sets:
        inputs["scopes"] = {"QC": {**extent, "flags": sets["QC"].get("flags")}}
        moved["health_checks", "inputs", "scopes", "QC"] = ("health_checks", "QC")
        moved |= {("health_checks", "inputs", "scopes", "QC", key): ("QC", key) for key in extent}
    if inputs:
        made["inputs"] = inputs
    return {"health_checks": made}, moved, unused


def _of_inputs(sets: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The keys of the inputs' sets that `InputCheck` does without: it always looks at dates, units and gaps."""
    for name in ("NAM", "QC"):
        yield from ((name, key) for key in sets.get(name, {}) if key != "flags")
