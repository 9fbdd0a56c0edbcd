"""Files of ESPO-G 2024 and of ESPO v2, translated into the schema when they are read; and values by default.

Lists of paths come first: keys that moved, and keys without effect. In paths, `*` is any key. The functions change the
content that they are given, which `owned` has copied.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import takewhile
from pathlib import PurePath
from typing import Any, NamedTuple

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
# Older paths, and those of the schema.
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
# The same of ESPO v2, once all files are merged.
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
_V2_UNUSED = (
    "chunks.workingloc", "chunks.workingXY", "chunks.final", "chunks", "QC", "save_to_zarr", "extraction.clean_up",
    "clean_up.save", "diagnostics", "io", "tdd", "health_checks.NAM", "health_checks.QC",
)  # fmt: skip
# Sections that only v2 has, and that are translated into others.
_OF_V2 = ("full_region", "chunks", "diagregion", "QC")


class NoEffect(NamedTuple):
    """The reaction to keys that do nothing here: none, a warning, or (`refused`) an error; `told` ends the sentence."""

    told: str = ""
    refused: bool = False


_SILENT = NoEffect()
_WARNED = NoEffect(" here: in ESPO-G or xscen it chooses inputs or changes attributes.")
_ALWAYS_MADE = NoEffect(": agreement and robustness are always computed, as in IPCC AR6.")
_REFUSED = NoEffect(
    "in ESPO-G or xscen this key changes the numbers of products, and espo_luigi does not know how to. Remove it if "
    "products without it will do.",
    refused=True,
)
_NOT_DONE = {
    "biasadjust_extremes": "the adjustment of extreme values (ExtremeValues) is not done by espo_luigi",
    "partition": "the partition of uncertainty is chosen by `ensembles.ensemble_stats.partition`",
    "filter_extremes": "this limit of adjusted values is not done by espo_luigi: v2 has `max_tail_factor` in its place",
}
_CLEANED = ("clean_up.xscen_clean_up", "clean_up.variables.*")
_ENSEMBLE = "ensembles.ensemble_stats"
_STATISTICS = f"{_ENSEMBLE}.statistics"
_OF_XSCEN = (
    "indicators", "indicators.compute_indicators", "aggregate", "aggregate.climatological_op",
    "aggregate.compute_deltas", "warming_levels", _ENSEMBLE, "spatial_mean",
)  # fmt: skip
# Every mapping that describes a diagnosed dataset, and what it says of its properties.
STEPS = ("off-diag.steps.*", "diagnostics.*")
DETAILS = tuple(f"{step}.properties_and_measures" for step in STEPS)
# Keys of ESPO-G, ESPO v2 and xscen that the schema lacks: the mappings that may hold them, the keys, the reaction.
WITHOUT_EFFECT: tuple[tuple[tuple[str, ...], str, NoEffect], ...] = (
    ((), "tasks indicator ensemble scripting io utils tdd", _SILENT),
    *(((), section, NoEffect(f"{what}. Take the section away.", refused=True)) for section, what in _NOT_DONE.items()),
    (("custom",), "delete_in_final_zarr delete_in_diag rechunk", _SILENT),
    (("extraction", "extraction.reference", "extraction.simulation"), "clean_up", _SILENT),
    (("extraction.simulation",), "properties_and_measures", _SILENT),
    (
        ("extraction.*.search_data_catalogs",),
        "coverage_kwargs id_columns conversion_yaml restrict_resolution restrict_warming_level",
        _REFUSED,
    ),
    (("extraction.*.extract_dataset",), "ensure_correct_time to_level", _SILENT),
    (("extraction.*.extract_dataset",), "preprocess resample_methods", _REFUSED),
    (("regrid",), "target weights_location", _SILENT),
    (("regrid.regrid_dataset",), "weights_location to_level", _SILENT),
    ((f"{_ADJUSTED}.training_args",), "jitter_over", _REFUSED),
    ((f"{_ADJUSTED}.adjusting_args",), "to_level", _SILENT),
    (("clean_up",), "search_data_catalogs", _SILENT),
    (("clean_up",), "save", _REFUSED),
    (_CLEANED, "maybe_unstack_dict", _SILENT),
    (_CLEANED, "variables_and_units convert_calendar_kwargs missing_by_var", _REFUSED),
    (_CLEANED, "attrs_to_remove common_attrs_only", _WARNED),
    (_CLEANED[:1], "clip_var", _REFUSED),
    (_CLEANED[:1], "change_attr_prefix remove_all_attrs_except", _WARNED),
    (_CLEANED[1:], "to_level", _SILENT),
    (("off-diag",), "correlogram_regions", _SILENT),
    (("diagnostics", *STEPS), "input", _SILENT),
    ((*STEPS, *DETAILS, "domain-diag"), "dref_for_measure", _SILENT),
    ((*DETAILS, "domain-diag"), "rechunk", _SILENT),
    (DETAILS, "change_units_arg", _REFUSED),
    (("domain-diag",), "to_level_prop to_level_meas", _SILENT),
    (_OF_XSCEN, "input inputs", _WARNED),
    ((*_OF_XSCEN, "ensembles"), "dask save to_level", _SILENT),
    (("ensembles",), "input", _WARNED),
    (("ensembles",), "inputs", _REFUSED),
    (("indicators.compute_indicators",), "rechunk_input", _SILENT),
    (("aggregate.climatological_op",), "periods_as_dim horizons_as_dim", _SILENT),
    (("warming_levels",), "wl_dim", _SILENT),
    ((f"{_STATISTICS}.ensemble_percentiles",), "split", _SILENT),
    ((_STATISTICS,), "ensemble_mean_std_max_min", _SILENT),
    ((_STATISTICS,), "robustness_fractions robustness_categories", _ALWAYS_MADE),
    ((_ENSEMBLE,), "common_attrs_only", _SILENT),
    ((_ENSEMBLE,), "create_kwargs", _WARNED),
    (("spatial_mean.regions.*",), "name", _SILENT),
    (("spatial_mean",), "method skipna", _SILENT),
)
OTHER_SECTIONS = (
    *(*_OF_V2, "save_to_zarr", "warminglevels"),
    *(key for where, keys, _ in WITHOUT_EFFECT if not where for key in keys.split()),
)
_REFERENCE = ("extraction", "reference")
_EXTRACTION_KEYS = {"search_data_catalogs", "extract_dataset", "chunks", "properties_and_measures", "create_mask"}


def drop_without_effect(content: Content) -> None:
    """Remove keys and sections without effect, with a warning where somebody could expect one.

    Raises
    ------
    ConfigurationError
        If a key would change numbers in the originals, and is not done here.
    """
    module = any(section.get("module") for _, section in mappings(content, "indicators"))
    idle = ("ensemble",) if module else ("warming_levels", "ensembles", "spatial_mean")
    for name in filter(content.get, idle):
        why = "; `ensembles` has" if module else " without `indicators.module`"
        logger.warning("The section `%s` has no effect%s.", name, why)
    for name in () if module else ("indicators", "aggregate", *idle):
        content.pop(name, None)
    for where, keys, reaction in WITHOUT_EFFECT:
        holders = [found for place in where for found in mappings(content, place)] if where else [((), content)]
        for at, holder in holders:
            for key in (key for key in keys.split() if key in holder):
                path, given = ".".join((*at, key)), holder.pop(key)
                if reaction.refused and given:
                    raise ConfigurationError(f"`{path}`: {reaction.told}")
                if reaction.told and given:
                    logger.warning("`%s` has no effect%s", path, reaction.told)


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
    nested = [((*_REFERENCE, source, "*"), (*_REFERENCE, "*")) for source in _sources(content)]
    _move(content, [*nested, *_split(_MOVES)], written)
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
    folder, template = None, paths.get("output")  # such as FOLDER/NAM_SPLIT/{region_name}/day_{sim_id}.zarr
    if isinstance(template, str):
        fixed = list(takewhile(lambda part: "{" not in part, PurePath(template).parent.parts))
        kept = fixed[:-1] if fixed[-1:] == ["NAM_SPLIT"] else fixed
        folder = os.path.join(*kept) if kept else None
    for old, name, path in (("exec_workdir", "tmpdir", paths.get("exec_workdir")), ("output", "final", folder)):
        if old in paths and (path or paths[old] is None) and paths.get(name) is None:
            paths[name] = path
            if path is None:
                written["paths", name] = ("paths", old)


def _sources(content: Content) -> list[str]:
    """The source below which a file gives `extraction.reference`, if it names one."""
    reference = next((given for _, given in mappings(content, "extraction.reference")), {})
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


def as_written(path: KeyPath, written: Written) -> KeyPath:
    """Return the user's own path of the key that is at `path` in the schema."""
    moved = next((length for length in range(len(path), 0, -1) if path[:length] in written), None)
    return path if moved is None else (*written[path[:moved]], *path[moved:])


def mappings(content: Content, where: str) -> list[tuple[KeyPath, Content]]:
    """Return the mappings at a dotted path, in which `*` is any key, with their paths."""
    found = [(at, holder[at[-1]]) for at, holder in _holders(content, tuple(where.split(".")))]
    return [(at, value) for at, value in found if isinstance(value, dict)]


def _holders(content: Any, where: KeyPath, at: KeyPath = ()) -> list[tuple[KeyPath, Content]]:
    """Return the paths of the values at a path, in which `*` is any key, each with the mapping that holds it."""
    if not isinstance(content, dict):
        return []
    keys = list(content) if where[0] == "*" else [where[0]] if where[0] in content else []
    if len(where) == 1:
        return [((*at, key), content) for key in keys]
    return [found for key in keys for found in _holders(content[key], where[1:], (*at, key))]


def _split(moves: Iterable[tuple[str, str]]) -> list[tuple[KeyPath, KeyPath]]:
    return [(tuple(old.split(".")), tuple(new.split("."))) for old, new in moves]


def _move(content: Content, moves: Iterable[tuple[KeyPath, KeyPath]], written: dict[KeyPath, KeyPath]) -> None:
    """Move values from paths, whose `*` are any keys, to others; a mapping that this empties goes."""
    for old, new in moves:
        for at, holder in _holders(content, old):
            names = iter([name for name, wanted in zip(at, old, strict=True) if wanted == "*"])
            target = tuple(next(names) if wanted == "*" else wanted for wanted in new)
            if _holders(content, target):
                raise ConfigurationError(
                    f"Both `{'.'.join(target)}` and `{'.'.join(at)}` (its other spelling) are given. Keep one of them."
                )
            put(content, target, holder.pop(at[-1]))
            written[target] = as_written(at, written)
            if not holder:
                _take(content, at[:-1])


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
    return next((holder.pop(at[-1]) for _, holder in _holders(content, at)), None)


# ESPO v2

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


def translate(content: Content, written: dict[KeyPath, KeyPath]) -> None:
    """Bring merged content of ESPO v2, which has a section `subregions`, into the schema; add to where keys were.

    Raises
    ------
    ConfigurationError
        If a section is of v2 and there are no `subregions`, or both names of a key are given.
    """
    if "subregions" not in content:
        if others := [section for section in _OF_V2 if section in content]:
            raise ConfigurationError(
                f"`{others[0]}` is a section of ESPO v2, and there is no section `subregions`; expected "
                "`subregions: {n: 50000}`, the number of cells of a slice, or no section of v2."
            )
        content.pop("save_to_zarr", None)
        return
    unused = [".".join(at) for at, _ in mappings(content, "clean_up.xscen_clean_up.*.maybe_unstack_dict")]
    _put_chunks(content, written)
    _put_periods(content, written)
    for one, other in (("diagregion", "diagnostics"), ("diagnostics", "diagregion")):
        if one not in content and content.pop(other, None):
            unused.append(other)
    has_checks = bool(_holders(content, ("health_checks", "finalNAM")))
    _move(content, _split(_V2_MOVES), written)
    if has_checks:
        written["health_checks",] = ("health_checks", "finalNAM")
    _put_extents(content, written)
    for where in _V2_UNUSED:
        left = _take(content, tuple(where.split(".")))
        unused += [f"{where}.{key}" for key in left] if isinstance(left, dict) else [where] if left else []
    for where, value in (*_V2_DEFAULTS, ("extraction.simulation.fill_in_time", _fillings(content))):
        put(content, tuple(where.split(".")), value)
    if unused:
        logger.info("keys without effect here: %s", ", ".join(unused))


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
        for old, new in _split(_V2_MOVES):
            if not all(wanted in ("*", key) for key, wanted in zip(at, new, strict=False)):
                continue
            names = iter([key for key, wanted in zip(at, new, strict=False) if wanted == "*"])
            older = tuple(next(names, "") if key == "*" else key for key in old)
            older = (*(key for key in older if key), *at[len(new) :])
            if _holders(before, older) and older != at:
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
    if len(at) > 1 and any(not holder[at[-2]] for _, holder in _holders(content, at[:-1])):
        _remove(content, at[:-1])


def _put_extents(content: Content, written: dict[KeyPath, KeyPath]) -> None:
    """Give the scopes QC of products and of inputs the extent of the section QC."""
    for key in ("lon_bnds", "lat_bnds", "shape"):
        value = _take(content, ("QC", key))
        for at in (("health_checks", "scopes", "QC"), ("health_checks", "inputs", "scopes", "QC")):
            if value is not None and _holders(content, at):
                put(content, (*at, key), value)
                written[*at, key] = ("QC", key)


def _put_chunks(content: Content, written: dict[KeyPath, KeyPath]) -> None:
    """Give chunks to the horizontal dimensions of both kinds of grids, without members: each is a chunk."""
    for key, sections in {"working_chunks": ("workingloc", "workingXY"), "final_chunks": ("final",)}.items():
        if _holders(content, ("custom", key)):
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
    searched, cut = "search_data_catalogs", "extract_dataset"
    for key, of, order in (("ref_period", "reference", (searched, cut)), ("sim_period", "simulation", (cut, searched))):
        found = [entry for name in order for entry in mappings(content, f"extraction.{of}.{name}")]
        for at, section in [(at, section) for at, section in found if section.get("periods")][:1]:
            if not _holders(content, ("custom", key)):
                listed = each_period(section["periods"])
                put(content, ("custom", key), listed[0] if len(listed) == 1 else section["periods"])
                written["custom", key] = (*at, "periods")


# Values that sections take from each other

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
    _fill_in_reference(content)
    for at, step in (found for where in STEPS for found in mappings(content, where)):
        prefix = f"{'off-diag' if at[0] == 'off-diag' else 'diag'}-{at[-1]}"
        step["properties_and_measures"] = step.get("properties_and_measures") or {}
        for kind in ("prop", "meas"):
            put(content, (*at, "properties_and_measures", f"to_level_{kind}"), f"{prefix}-{kind}")
    custom = next((custom for _, custom in mappings(content, "custom")), {})
    for outer, key, places in (
        ("ref_period", "period", (f"{_ADJUSTED}.training_args", *DETAILS, "domain-diag")),
        ("sim_period", "periods", (f"{_ADJUSTED}.adjusting_args",)),
    ):
        for _, section in (found for where in places for found in mappings(content, where)):
            if custom.get(outer) is not None:
                section.setdefault(key, custom[outer])
    for where in ("custom.regions.*", "off-diag.domains.*", "domain-diag.domains.*"):
        for at, region in mappings(content, where):
            region.setdefault("name", at[-1])


def _fill_in_reference(content: Content) -> None:
    given = _take(content, REFERENCE_DIAGNOSTICS)
    for _, section in mappings(content, "diagnostics"):
        if not {"sim", "scen"} & set(section):
            logger.warning("`diagnostics` has neither `sim` nor `scen`: the diagnostics of whole regions are not made.")
            del content["diagnostics"]
            return
        reference = dict(given) if isinstance(given, dict) else {}
        unstack = {"unstack": reference.pop("unstack")} if "unstack" in reference else {}
        section["ref"] = {"properties_and_measures": reference, **unstack}
