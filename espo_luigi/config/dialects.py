"""Files of ESPO-G 2024 and of ESPO v2, translated into the schema when they are read; and values by default.

The functions change the content that they are given, which `owned` has copied.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import PurePath
from typing import Any

from espo_luigi.config.yaml_files import KeyPath
from espo_luigi.errors import ConfigurationError
from espo_luigi.science.periods import each_period
from espo_luigi.science.variables import variable

logger = logging.getLogger(__name__)

Content = dict[str, Any]
# A key's path in the schema → the path at which the user wrote it.
Written = Mapping[KeyPath, KeyPath]

_REGIONS = ("custom.regions.*", "domain", "off-diag.domains.*")
_ADJUSTED = "biasadjust.variables.*"
# Older paths, and those of the schema; `*` is any key.
_MOVES = (
    ("custom.chunks", "custom.working_chunks"),
    ("custom.out_chunks", "custom.final_chunks"),
    ("custom.amno_region", "domain"),
    ("custom.full_region", "domain"),
    ("full_region", "domain"),
    *((f"{where}.buffer", f"{where}.tile_buffer") for where in _REGIONS),
    *((f"{where}.bbox.{bounds}", f"{where}.{bounds}") for where in _REGIONS for bounds in ("lon_bnds", "lat_bnds")),
    (f"{_ADJUSTED}.training_args.reference_period", f"{_ADJUSTED}.training_args.period"),
    (f"{_ADJUSTED}.training_args.xsdba_train_args", f"{_ADJUSTED}.training_args.xclim_train_args"),
    (f"{_ADJUSTED}.adjusting_args.simulation_period", f"{_ADJUSTED}.adjusting_args.periods"),
    (f"{_ADJUSTED}.adjusting_args.xsdba_adjust_args", f"{_ADJUSTED}.adjusting_args.xclim_adjust_args"),
    ("off-diag.steps.*.properties_and_measures.unstack", "off-diag.steps.*.unstack"),
    ("diagnostics.*.properties_and_measures.unstack", "diagnostics.*.unstack"),
    ("warminglevels", "warming_levels"),
    ("indicators.path_yml", "indicators.module"),
    ("indicators.compute_indicators.indicators", "indicators.module"),
    ("indicators.compute_indicators.periods", "indicators.periods"),
)
_REFERENCE = ("extraction", "reference")
_EXTRACTION_KEYS = {"search_data_catalogs", "extract_dataset", "chunks", "properties_and_measures", "create_mask"}


def owned(content: Any) -> Any:
    """Return a copy whose mappings nobody else has: those that a YAML file names (`&name`) are shared."""
    return {key: owned(value) for key, value in content.items()} if isinstance(content, Mapping) else content


def modernise(content: Content) -> dict[KeyPath, KeyPath]:
    """Bring a file's keys to their paths in the schema; return where those that moved were written.

    Raises
    ------
    ConfigurationError
        Both the old and the current name of a key are given, or several reference sources are.
    """
    written: dict[KeyPath, KeyPath] = {}
    for source in _sources(content):
        for key in list(content["extraction"]["reference"][source]):
            _move(content, (*_REFERENCE, source, key), (*_REFERENCE, key), written)
    for old, new in _MOVES:
        _move(content, tuple(old.split(".")), tuple(new.split(".")), written)
    for at, checks in mappings(content, "health_checks"):
        if "final" in checks:  # beside those of other steps
            content["health_checks"] = checks["final"]
            written[at] = (*at, "final")
    for _, chunks in mappings(content, "custom.final_chunks"):  # a product's chunks have four years
        chunks.pop("time", None)
    for _, paths in mappings(content, "paths"):
        _put_folders(paths, written)
    return written


def _put_folders(paths: Content, written: dict[KeyPath, KeyPath]) -> None:
    """Give a file's folders their current names, also where its older names are `null`."""
    folder = _folder_of(paths.get("output"))
    for old, name, path in (("exec_workdir", "tmpdir", paths.get("exec_workdir")), ("output", "final", folder)):
        if old in paths and (path or paths[old] is None) and paths.get(name) is None:
            paths[name] = path
            if path is None:
                written["paths", name] = ("paths", old)


def _sources(content: Content) -> list[str]:
    """The source below which a file gives `extraction.reference`, if it names one."""
    reference = next((mapping for _, mapping in mappings(content, ".".join(_REFERENCE))), {})
    sources = [
        key
        for key, value in reference.items()
        if key not in _EXTRACTION_KEYS and isinstance(value, Mapping) and _EXTRACTION_KEYS & set(value)
    ]
    if len(sources) > 1:
        raise ConfigurationError(
            f"`{'.'.join(_REFERENCE)}` holds {len(sources)} sources ({', '.join(sources)}), expected one. Keep one of "
            "them."
        )
    return sources


def reference_source(written: Written) -> str:
    """Return the source below which a file gives `extraction.reference`, by its moved keys; "" if it names none."""
    names = (path[2] for key, path in written.items() if key[:2] == path[:2] == _REFERENCE and len(path) > len(key))
    return next(names, "")


def _folder_of(template: Any) -> str | None:
    """The folder of products in a file-name template such as ``FOLDER/NAM_SPLIT/{region_name}/day_{sim_id}.zarr``."""
    if not isinstance(template, str) or not template:
        return None
    fixed = list(takewhile(lambda part: "{" not in part, PurePath(template).parent.parts))
    kept = fixed[:-1] if fixed[-1:] == ["NAM_SPLIT"] else fixed
    return os.path.join(*kept) if kept else None


def as_written(path: KeyPath, written: Written) -> KeyPath:
    """Return the user's own path of the key that is at `path` in the schema."""
    moved = next((length for length in range(len(path), 0, -1) if path[:length] in written), None)
    return path if moved is None else (*written[path[:moved]], *path[moved:])


def mappings(content: Any, where: str) -> list[tuple[KeyPath, Content]]:
    """Return the mappings at a dotted path, in which `*` is any key, with their paths."""
    return list(_mappings(content, tuple(where.split(".")), ()))


def _mappings(content: Any, where: KeyPath, at: KeyPath) -> Iterator[tuple[KeyPath, Content]]:
    if isinstance(content, dict):
        if not where:
            yield at, content
        for key in _keys(content, where[0]) if where else ():
            yield from _mappings(content[key], where[1:], (*at, key))


def _keys(content: Content, wanted: str) -> list[str]:
    return list(content) if wanted == "*" else [wanted] if wanted in content else []


def _move(content: Content, old: KeyPath, new: KeyPath, written: dict[KeyPath, KeyPath]) -> None:
    """Move the values at one path, whose `*` are any keys, to another; a mapping that this empties goes."""
    for outer, holder in list(_mappings(content, old[:-1], ())):
        keys = _keys(holder, old[-1])
        for key in keys:
            at = (*outer, key)
            names = iter([name for name, wanted in zip(at, old, strict=True) if wanted == "*"])
            target = tuple(next(names) if wanted == "*" else wanted for wanted in new)
            if _has(content, target):
                raise ConfigurationError(
                    f"Both `{'.'.join(target)}` and `{'.'.join(at)}` (its other spelling) are given. Keep one of them."
                )
            put(content, target, holder.pop(key))
            written[target] = as_written(at, written)
        if keys and not holder:
            _take(content, outer)


def _has(content: Any, at: KeyPath) -> bool:
    for key in at:
        if not isinstance(content, dict) or key not in content:
            return False
        content = content[key]
    return True


def put(content: Content, at: KeyPath, value: Any) -> None:
    """Add a value that is absent; where a text or a list takes a section's place, that is an error of its own."""
    for key in at[:-1]:
        inner = content.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        content = inner
    content.setdefault(at[-1], value)


def _take(content: Content, at: KeyPath) -> Any:
    """Remove the value at a path, if there is one, and return it."""
    for holder in (holder for _, holder in _mappings(content, at[:-1], ())):
        return holder.pop(at[-1], None)
    return None


# ESPO v2

_REFUSED = {
    "biasadjust_extremes": "the adjustment of extreme values (ExtremeValues) is not done by espo_luigi",
    "partition": "the partition of uncertainty (rule `partition`) is not done by espo_luigi",
    "filter_extremes": "this limit of adjusted values is not done by espo_luigi: v2 has `max_tail_factor` in its place",
}
# Sections that only v2 has, and that are translated into others.
V2_SECTIONS = ("full_region", "chunks", "diagregion", "QC", "save_to_zarr", *_REFUSED)
_V2_MOVES = (
    ("extraction.clean_up.variables_and_units", "extraction.variables_and_units"),
    ("clean_up.xscen_clean_up", "clean_up.variables"),
    ("save_to_zarr.bitround", "clean_up.bitround"),
    ("health_checks.finalNAM.*", "health_checks.*"),
    ("health_checks.finalQC", "health_checks.scopes.QC"),
    ("health_checks.NAM.flags", "health_checks.inputs.flags"),
    ("health_checks.QC.flags", "health_checks.inputs.scopes.QC.flags"),
    # Without domains, v2 computes no diagnostics.
    ("diagnostics.properties_and_measures", "domain-diag"),
    ("diagregion", "domain-diag.domains"),
)
# What v2's scripts do without, or always do: each member is a chunk, and a product's chunks have four years.
_UNUSED = (
    *(
        "chunks.workingloc",
        "chunks.workingXY",
        "chunks.final",
        "chunks",
        "QC",
        "save_to_zarr",
        "extraction.clean_up",
        "clean_up.save",
        "diagnostics",
        "io",
        "tdd",
    ),
    *("health_checks.NAM", "health_checks.QC"),
)
# The horizontal dimensions of both kinds of grids.
_DIMENSIONS = {"X": ("lon", "rlon"), "Y": ("lat", "rlat")}
# Values where files of v2 have no key: what its scripts do, repairs as they name them, and the day that all files of
# the regional simulations lack.
_V2_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("custom.regions", {}),
    ("extraction.simulation.days_to_fill", ["2015-01-01"]),
    (
        "extraction.simulation.repairs",
        [
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
        ],
    ),
    ("regrid.skip_coarser", True),
    ("clean_up.temperatures", "swap"),
)


def translate(content: Content) -> dict[KeyPath, KeyPath]:
    """Bring merged content of ESPO v2, which has a section `subregions`, into the schema; return as `modernise` does.

    Raises
    ------
    ConfigurationError
        If a section asks for something that is not done here, or is of v2 and there are no `subregions`.
    """
    if not _is_v2(content):
        return {}
    written: dict[KeyPath, KeyPath] = {}
    unused = [".".join(at) for at, _ in mappings(content, "clean_up.xscen_clean_up.*.maybe_unstack_dict")]
    _put_chunks(content, written)
    _put_periods(content, written)
    if "diagnostics" not in content:
        unused += ["diagregion"] if content.pop("diagregion", None) else []
    if "diagregion" not in content:
        unused += ["diagnostics"] if content.pop("diagnostics", None) else []
    has_checks = _has(content, ("health_checks", "finalNAM"))
    for old, new in _V2_MOVES:
        _move(content, tuple(old.split(".")), tuple(new.split(".")), written)
    if has_checks:
        written["health_checks",] = ("health_checks", "finalNAM")
    _put_extents(content, written)
    for where in _UNUSED:
        left = _take(content, tuple(where.split(".")))
        unused += [f"{where}.{key}" for key in left] if isinstance(left, dict) else [where] if left else []
    for where, value in (*_V2_DEFAULTS, ("extraction.simulation.fill_in_time", _fillings(content))):
        put(content, tuple(where.split(".")), value)
    if unused:
        logger.info("keys without effect here: %s", ", ".join(unused))
    return written


def _fillings(content: Content) -> dict[str, Any]:
    """Return how gaps of v2's variables, and of all others of the simulations, are filled by default."""
    wanted = "extraction.simulation.search_data_catalogs.variables_and_freqs"
    names = (name for _, found in mappings(content, wanted) for name, freq in found.items() if freq != "fx")
    given = {at[-1]: row["filling"] for at, row in mappings(content, "variables.*") if row.get("filling")}
    return {name: given.get(name, variable(name).filling) for name in ("tasmax", "tasmin", "dtr", "pr", *names)}


def null_older_keys(own: Content, before: Content) -> None:
    """Write each `null` of a file at the key of ESPO v2 that earlier files give in its place.

    `translate` moves keys once all files are merged, and would bring back what `null` takes away.
    """
    for at in list(_nulls(own, ())):
        for old, new in ((tuple(old.split(".")), tuple(new.split("."))) for old, new in _V2_MOVES):
            if not all(wanted in ("*", key) for key, wanted in zip(at, new, strict=False)):
                continue
            names = iter([key for key, wanted in zip(at, new, strict=False) if wanted == "*"])
            older = tuple(next(names, "") if key == "*" else key for key in old)
            older = (*(key for key in older if key), *at[len(new) :])
            if _has(before, older) and older != at:
                if len(at) >= len(new):
                    _remove(own, at)
                put(own, older, None)


def _nulls(content: Content, at: KeyPath) -> Iterator[KeyPath]:
    for key, value in content.items():
        if value is None:
            yield (*at, key)
        elif isinstance(value, dict):
            yield from _nulls(value, (*at, key))


def _remove(content: Content, at: KeyPath) -> None:
    """Remove a value, and the mappings that this empties."""
    _take(content, at)
    if len(at) > 1 and any(not holder for _, holder in _mappings(content, at[:-1], ())):
        _remove(content, at[:-1])


def _is_v2(content: Content) -> bool:
    """Whether the content has `subregions`; refuses sections that are not done, or are of v2 alone."""
    for section, what in _REFUSED.items():
        if section in content:
            raise ConfigurationError(f"`{section}`: {what}. Take the section away.")
    if "subregions" not in content:
        if others := [section for section in V2_SECTIONS if section in content and section != "save_to_zarr"]:
            raise ConfigurationError(
                f"`{others[0]}` is a section of ESPO v2, and there is no section `subregions`; expected "
                "`subregions: {n: 50000}`, the number of cells of a slice, or no section of v2."
            )
        content.pop("save_to_zarr", None)
    return "subregions" in content


def _put_extents(content: Content, written: dict[KeyPath, KeyPath]) -> None:
    """Give the scopes QC of products and of inputs the extent of the section QC."""
    for key in ("lon_bnds", "lat_bnds", "shape"):
        value = _take(content, ("QC", key))
        for at in (("health_checks", "scopes", "QC"), ("health_checks", "inputs", "scopes", "QC")):
            if value is not None and _has(content, at):
                put(content, (*at, key), value)
                written[*at, key] = ("QC", key)


def _put_chunks(content: Content, written: dict[KeyPath, KeyPath]) -> None:
    """Give chunks to the horizontal dimensions of both kinds of grids, without members: each is a chunk."""
    for key, sections in {"working_chunks": ("workingloc", "workingXY"), "final_chunks": ("final",)}.items():
        if _has(content, ("custom", key)):
            continue
        for section in sections:
            for at, chunks in mappings(content, f"chunks.{section}"):
                for name in [name for name in chunks if name != "realization" and (section, name) != ("final", "time")]:
                    size = chunks.pop(name)
                    for dim in _DIMENSIONS.get(name, (name,)):
                        put(content, ("custom", key, dim), size)
                        written["custom", key, dim] = (*at, name)


def _put_periods(content: Content, written: dict[KeyPath, KeyPath]) -> None:
    """Take `custom.ref_period` and `sim_period` from the searches, or from what is cut out of the data."""
    reference, simulation = "extraction.reference", "extraction.simulation"
    for key, sections in {
        "ref_period": (reference, "search_data_catalogs", "extract_dataset"),
        "sim_period": (simulation, "extract_dataset", "search_data_catalogs"),
    }.items():
        given = [
            (at, section["periods"])
            for name in sections[1:]
            for at, section in mappings(content, f"{sections[0]}.{name}")
            if section.get("periods")
        ]
        if given and not _has(content, ("custom", key)):
            at, periods = given[0]
            listed = each_period(periods)
            put(content, ("custom", key), listed[0] if len(listed) == 1 else periods)
            written["custom", key] = (*at, "periods")


# Values that sections take from each other

# Every mapping that describes a diagnosed dataset.
STEPS = ("off-diag.steps.*", "diagnostics.*")
# The diagnostics of whole regions have their reference's settings here.
REFERENCE_DIAGNOSTICS: KeyPath = ("extraction", "reference", "properties_and_measures")
COPIED: Written = {
    ("diagnostics", "ref", "properties_and_measures"): REFERENCE_DIAGNOSTICS,
    ("diagnostics", "ref", "unstack"): (*REFERENCE_DIAGNOSTICS, "unstack"),
}


def fill_in(content: Content) -> None:
    """Give merged content the values that sections take from each other.

    Periods default to `custom.ref_period` and `custom.sim_period`, the names of processing levels to their step's,
    those of regions to their keys, and the diagnostics of whole regions take their reference's settings from
    `extraction.reference.properties_and_measures`.
    """
    custom = next((custom for _, custom in mappings(content, "custom")), {})
    ref_period = {"period": custom["ref_period"]} if custom.get("ref_period") is not None else {}
    sim_period = {"periods": custom["sim_period"]} if custom.get("sim_period") is not None else {}
    _fill(content, "biasadjust.variables.*.training_args", ref_period)
    _fill(content, "biasadjust.variables.*.adjusting_args", sim_period)
    _fill(content, "domain-diag", ref_period)
    for where in ("custom.regions.*", "off-diag.domains.*", "domain-diag.domains.*"):
        for at, region in mappings(content, where):
            region.setdefault("name", at[-1])
    _fill_in_reference(content)
    for where in STEPS:
        for (section, *_, name), step in mappings(content, where):
            prefix = "off-diag" if section == "off-diag" else "diag"
            levels = {"to_level_prop": f"{prefix}-{name}-prop", "to_level_meas": f"{prefix}-{name}-meas"}
            if not step.get("properties_and_measures"):
                step["properties_and_measures"] = {}
            _fill({"step": step}, "step.properties_and_measures", {**levels, **ref_period})


def _fill(content: Content, where: str, values: Content) -> None:
    for _, section in mappings(content, where):
        for key, value in values.items():
            section.setdefault(key, value)


def _fill_in_reference(content: Content) -> None:
    for _, section in mappings(content, "diagnostics"):
        if not {"sim", "scen"} & set(section):
            logger.warning("`diagnostics` has neither `sim` nor `scen`: the diagnostics of whole regions are not made.")
            del content["diagnostics"]
            return
        reference = next((dict(given) for _, given in mappings(content, ".".join(REFERENCE_DIAGNOSTICS))), {})
        unstack = {"unstack": reference.pop("unstack")} if "unstack" in reference else {}
        section["ref"] = {"properties_and_measures": reference, **unstack}
