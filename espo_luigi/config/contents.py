"""Changes to the files' contents before validation: older names of keys, and values taken from other sections."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from espo_luigi.config.yaml_files import KeyPath
from espo_luigi.errors import ConfigurationError

# Current path of a key → the path at which the user wrote it.
Written = Mapping[KeyPath, KeyPath]

_REFERENCE: KeyPath = ("extraction", "reference")
_EXTRACTION_KEYS = {"search_data_catalogs", "extract_dataset", "chunks", "properties_and_measures", "create_mask"}


@dataclass(frozen=True)
class Move:
    """Below every mapping at `where` (`*` is any key), the value at `old` belongs at `new`."""

    where: str
    old: KeyPath
    new: str

    def applies(self, mapping: Mapping[str, Any]) -> bool:
        """Whether `mapping` holds the old spelling."""
        *outer, last = self.old
        holder = mapping.get(outer[0]) if outer else mapping
        return isinstance(holder, Mapping) and last in holder

    def __call__(self, at: KeyPath, mapping: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `mapping`, which is at `at`, with the current spelling."""
        if not self.applies(mapping):
            return mapping
        if self.new in mapping:
            both = [".".join((*at, *path)) for path in ((self.new,), self.old)]
            raise ConfigurationError(
                f"Both `{both[0]}` and `{both[1]}` (its other spelling) are given. Keep one of them."
            )
        outer, last = self.old[0], self.old[-1]
        rest = {key: value for key, value in mapping.items() if key != outer}
        if len(self.old) == 1:
            return {**rest, self.new: mapping[outer]}
        inner = {key: value for key, value in mapping[outer].items() if key != last}
        return {**rest, **({outer: inner} if inner else {}), self.new: mapping[outer][last]}


_REGIONS = ("custom.regions.*", "domain", "off-diag.domains.*")
_ADJUSTED = "biasadjust.variables.*"

MOVES: tuple[Move, ...] = (
    Move("custom", ("chunks",), "working_chunks"),
    Move("custom", ("out_chunks",), "final_chunks"),
    Move("", ("custom", "amno_region"), "domain"),
    Move("", ("custom", "full_region"), "domain"),
    Move("", ("full_region",), "domain"),
    *(Move(where, ("buffer",), "tile_buffer") for where in _REGIONS),
    *(Move(where, ("bbox", "lon_bnds"), "lon_bnds") for where in _REGIONS),
    *(Move(where, ("bbox", "lat_bnds"), "lat_bnds") for where in _REGIONS),
    Move(f"{_ADJUSTED}.training_args", ("reference_period",), "period"),
    Move(f"{_ADJUSTED}.training_args", ("xsdba_train_args",), "xclim_train_args"),
    Move(f"{_ADJUSTED}.adjusting_args", ("simulation_period",), "periods"),
    Move(f"{_ADJUSTED}.adjusting_args", ("xsdba_adjust_args",), "xclim_adjust_args"),
    Move("off-diag.steps.*", ("properties_and_measures", "unstack"), "unstack"),
    Move("diagnostics.*", ("properties_and_measures", "unstack"), "unstack"),
)


def modernise(content: Mapping[str, Any]) -> tuple[Mapping[str, Any], Written]:
    """Return a file's content with current names only, and where moved keys were written.

    Raises
    ------
    ConfigurationError
        Both the old and the current name of a key are given, or several reference sources are.
    """
    written: dict[KeyPath, KeyPath] = {}
    for move in (*_source_moves(content), *MOVES):
        where = move.where.split(".") if move.where else []
        found = [at for at, mapping in mappings(content, where) if move.applies(mapping)]
        written |= {(*at, move.new): as_written((*at, *move.old), written) for at in found}
        content = changed(content, where, move)
    return content, {**written, **_products_checks(content)}


def _products_checks(content: Mapping[str, Any]) -> dict[KeyPath, KeyPath]:
    """Where the checks of the final products are written, if a file gives those of other steps, too."""
    return {at[:1]: at for at, _ in mappings(content, ("health_checks", "final"))}


def as_written(path: KeyPath, written: Written) -> KeyPath:
    """Return the user's own path of the key that is at `path` in the current schema."""
    lengths = range(len(path), 0, -1)
    moved = next((length for length in lengths if path[:length] in written), None)
    return path if moved is None else (*written[path[:moved]], *path[moved:])


def mappings(content: Any, where: Sequence[str], at: KeyPath = ()) -> Iterator[tuple[KeyPath, Mapping[str, Any]]]:
    """Yield the mappings at `where`, and their paths; `*` is any key."""
    if not isinstance(content, Mapping):
        return
    if not where:
        yield at, content
        return
    for key in _keys(content, where[0]):
        yield from mappings(content[key], where[1:], (*at, key))


def changed(
    content: Any,
    where: Sequence[str],
    change: Callable[[KeyPath, Mapping[str, Any]], Mapping[str, Any]],
    at: KeyPath = (),
) -> Any:
    """Return `content` with every mapping at `where` replaced by what `change` makes of its path and itself."""
    if not isinstance(content, Mapping):
        return content
    if not where:
        return change(at, content)
    keys = _keys(content, where[0])
    return {**content, **{key: changed(content[key], where[1:], change, (*at, key)) for key in keys}}


def _keys(content: Mapping[str, Any], wanted: str) -> list[str]:
    return list(content) if wanted == "*" else [wanted] if wanted in content else []


def _source_moves(content: Mapping[str, Any]) -> list[Move]:
    """What brings `extraction.reference.{source}.…` up to `extraction.reference.…`."""
    where = ".".join(_REFERENCE)
    reference = next((mapping for _, mapping in mappings(content, where.split("."))), {})
    sources = [key for key, value in reference.items() if _is_source(key, value)]
    if len(sources) > 1:
        raise ConfigurationError(
            f"`{where}` holds {len(sources)} sources ({', '.join(sources)}), expected one. Keep one of them."
        )
    return [Move(where, (source, key), key) for source in sources for key in reference[source]]


def reference_source(written: Written) -> str:
    """Return the source below which a file gives `extraction.reference`, by its moved keys; "" if it names none."""
    names = (path[2] for key, path in written.items() if key[:2] == path[:2] == _REFERENCE and len(path) > len(key))
    return next(names, "")


def _is_source(key: str, value: Any) -> bool:
    return key not in _EXTRACTION_KEYS and isinstance(value, Mapping) and bool(_EXTRACTION_KEYS & set(value))


logger = logging.getLogger(__name__)

# Every mapping that describes a diagnosed dataset.
STEPS = ("off-diag.steps.*", "diagnostics.*")
# The stage-2024 diagnostics have their reference's settings here.
REFERENCE_DIAGNOSTICS: KeyPath = ("extraction", "reference", "properties_and_measures")
COPIED: Written = {
    ("diagnostics", "ref", "properties_and_measures"): REFERENCE_DIAGNOSTICS,
    ("diagnostics", "ref", "unstack"): (*REFERENCE_DIAGNOSTICS, "unstack"),
}


def fill_in(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return merged content with the values that sections take from each other.

    Periods default to `custom.ref_period` and `custom.sim_period`, the names of processing levels to their step's,
    those of regions to their keys, and the stage-2024 diagnostics take their reference's settings from
    `extraction.reference.properties_and_measures`.
    """
    custom = content.get("custom")
    periods = custom if isinstance(custom, Mapping) else {}
    ref_period, sim_period = periods.get("ref_period"), periods.get("sim_period")
    content = _defaulted(content, "biasadjust.variables.*.training_args", {"period": ref_period})
    content = _defaulted(content, "biasadjust.variables.*.adjusting_args", {"periods": sim_period})
    for where in ("custom.regions.*", "off-diag.domains.*", "domain-diag.domains.*"):
        content = changed(content, where.split("."), lambda at, region: {"name": at[-1], **region})
    content = _with_reference_diagnostics(content)
    for where in STEPS:
        content = changed(content, where.split("."), lambda at, step: _full_step(at, step, ref_period))
    return content


def _defaulted(content: Mapping[str, Any], where: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    given = {key: value for key, value in values.items() if value is not None}
    return changed(content, where.split("."), lambda _, mapping: {**given, **mapping})


def _full_step(at: KeyPath, step: Mapping[str, Any], period: Any) -> Mapping[str, Any]:
    section, name = at[0], at[-1]
    prefix = "off-diag" if section == "off-diag" else "diag"
    levels = {"to_level_prop": f"{prefix}-{name}-prop", "to_level_meas": f"{prefix}-{name}-meas"}
    default = levels if period is None else {**levels, "period": period}
    details = step.get("properties_and_measures") or {}
    return {**step, "properties_and_measures": {**default, **details} if isinstance(details, Mapping) else details}


def _with_reference_diagnostics(content: Mapping[str, Any]) -> Mapping[str, Any]:
    section = content.get("diagnostics")
    if not isinstance(section, Mapping):
        return content
    if not {"sim", "scen"} & set(section):
        logger.warning("`diagnostics` has neither `sim` nor `scen`: the diagnostics of whole regions are not made.")
        return {key: value for key, value in content.items() if key != "diagnostics"}
    found = next((mapping for _, mapping in mappings(content, REFERENCE_DIAGNOSTICS)), {})
    details = {key: value for key, value in found.items() if key != "unstack"}
    step = {"properties_and_measures": details, **{key: found[key] for key in ("unstack",) if key in found}}
    return {**content, "diagnostics": {**section, "ref": step}}
