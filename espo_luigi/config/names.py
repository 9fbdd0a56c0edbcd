"""Older spellings of the schema, brought to the current one, file by file and before files are merged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from espo_luigi.config.yaml_files import KeyPath
from espo_luigi.errors import ConfigurationError

logger = logging.getLogger(__name__)

Mutable = dict[str, Any]

# (where, old name, current name); `*` stands for any key.
RENAMED: tuple[tuple[str, str, str], ...] = (
    ("custom", "chunks", "working_chunks"),
    ("custom", "out_chunks", "final_chunks"),
    ("custom", "full_region", "amno_region"),
    ("custom.regions.*", "buffer", "tile_buffer"),
    ("custom.amno_region", "buffer", "tile_buffer"),
    ("off-diag.domains.*", "buffer", "tile_buffer"),
    ("biasadjust.variables.*.training_args", "reference_period", "period"),
    ("biasadjust.variables.*.training_args", "xsdba_train_args", "xclim_train_args"),
    ("biasadjust.variables.*.adjusting_args", "simulation_period", "periods"),
    ("biasadjust.variables.*.adjusting_args", "xsdba_adjust_args", "xclim_adjust_args"),
)

# (where, inner mapping whose keys belong one level up).
_BOXES = ("custom.regions.*", "custom.amno_region", "off-diag.domains.*")
_STEPS = ("off-diag.steps.*", "diagnostics.*")

_EXTRACTION_KEYS = {"search_data_catalogs", "extract_dataset", "chunks", "properties_and_measures", "create_mask"}


class Names:
    """The current paths of keys that a file spells differently, to name them in messages as the user wrote them."""

    def __init__(self) -> None:
        self._written: dict[KeyPath, KeyPath] = {}

    def add(self, current: KeyPath, written: KeyPath) -> None:
        """Remember that the key at `current` was written at `written`."""
        self._written[current] = self.as_written(written)

    def as_written(self, path: KeyPath) -> KeyPath:
        """Return the user's own path of the key that is at `path` in the current schema."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._written:
                return (*self._written[path[:length]], *path[length:])
        return path


def modernise(content: Mapping[str, Any], names: Names) -> Mutable:
    """Return a file's content with current names only; `names` learns what was renamed.

    Raises
    ------
    ConfigurationError
        Both the old and the current name of a key are given, or several reference sources are.
    """
    modern: Mutable = _copied(content)
    _unnest_source(modern, names)
    for where, old, new in RENAMED:
        for at, mapping in _mappings(modern, where.split(".")):
            _move(mapping, at, (old,), new, names)
    for where in _BOXES:
        for at, mapping in _mappings(modern, where.split(".")):
            _unnest(mapping, at, "bbox", ("lon_bnds", "lat_bnds"), names)
    for where in _STEPS:
        for at, mapping in _mappings(modern, where.split(".")):
            _unnest(mapping, at, "properties_and_measures", ("unstack",), names)
    return modern


def _copied(value: Any) -> Any:
    return {key: _copied(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _mappings(content: Mutable, where: list[str], at: KeyPath = ()) -> Iterator[tuple[KeyPath, Mutable]]:
    """Yield the mappings at `where`, in which `*` is any key."""
    if not isinstance(content, dict):
        return
    if not where:
        yield at, content
        return
    keys = list(content) if where[0] == "*" else [where[0]]
    for key in keys:
        yield from _mappings(content.get(key, None), where[1:], (*at, key))  # type: ignore[arg-type]


def _move(mapping: Mutable, at: KeyPath, written: KeyPath, new: str, names: Names) -> None:
    holder = mapping if len(written) == 1 else mapping[written[0]]
    if written[-1] not in holder:
        return
    if new in mapping:
        old_path, new_path = ".".join((*at, *written)), ".".join((*at, new))
        raise ConfigurationError(
            f"Both `{new_path}` and `{old_path}` (its other spelling) are given. Keep one of them."
        )
    mapping[new] = holder.pop(written[-1])
    names.add((*at, new), (*at, *written))


def _unnest(mapping: Mutable, at: KeyPath, outer: str, keys: tuple[str, ...], names: Names) -> None:
    if not isinstance(mapping.get(outer), dict):
        return
    for key in keys:
        _move(mapping, at, (outer, key), key, names)
    if outer == "bbox" and not mapping[outer]:
        del mapping[outer]


def _unnest_source(content: Mutable, names: Names) -> None:
    """Bring `extraction.reference.{source}.…` up to `extraction.reference.…`."""
    at: KeyPath = ("extraction", "reference")
    for _, reference in _mappings(content, list(at)):
        sources = [key for key, value in reference.items() if _is_source(key, value)]
        if len(sources) > 1:
            raise ConfigurationError(
                f"`extraction.reference` holds {len(sources)} sources ({', '.join(sources)}), expected one. Keep one."
            )
        for source in sources:
            inner = reference.pop(source)
            for key in inner:
                reference[key] = inner[key]
                names.add((*at, key), (*at, source, key))


def _is_source(key: str, value: Any) -> bool:
    return key not in _EXTRACTION_KEYS and isinstance(value, Mapping) and bool(_EXTRACTION_KEYS & set(value))


def fill_in(content: Mapping[str, Any], names: Names) -> Mutable:
    """Return merged content with the values that one section takes from another.

    Periods default to `custom.ref_period` and `custom.sim_period`, the names of processing levels to their step's,
    and the stage-2024 diagnostics take their reference step from `extraction.reference.properties_and_measures`.
    """
    filled: Mutable = _copied(content)
    custom = filled.get("custom")
    periods = custom if isinstance(custom, dict) else {}
    for at, section in _mappings(filled, ["biasadjust", "variables", "*"]):
        _default_period(section, "training_args", "period", periods.get("ref_period"), at)
        _default_period(section, "adjusting_args", "periods", periods.get("sim_period"), at)
    _name_regions(filled)
    _reference_diagnostics(filled, names)
    for at, step in _steps(filled):
        _default_step(step, at, periods.get("ref_period"))
    return filled


def _default_period(section: Mutable, args: str, key: str, period: Any, _: KeyPath) -> None:
    if period is not None and isinstance(section.get(args), dict):
        section[args].setdefault(key, period)


def _name_regions(content: Mutable) -> None:
    for where in ("custom.regions.*", "off-diag.domains.*"):
        for at, region in _mappings(content, where.split(".")):
            region.setdefault("name", at[-1])


def _reference_diagnostics(content: Mutable, names: Names) -> None:
    if not isinstance(content.get("diagnostics"), dict):
        return
    if not {"sim", "scen"} & set(content["diagnostics"]):
        logger.warning("`diagnostics` has neither `sim` nor `scen`: the diagnostics of stage 2024 are not made.")
        del content["diagnostics"]
        return
    at: KeyPath = ("extraction", "reference", "properties_and_measures")
    found = next((mapping for _, mapping in _mappings(content, list(at))), {})
    step = {"properties_and_measures": dict(found)}
    names.add(("diagnostics", "ref", "properties_and_measures"), at)
    _unnest(step, ("diagnostics", "ref"), "properties_and_measures", ("unstack",), names)
    content["diagnostics"]["ref"] = step


def _steps(content: Mutable) -> Iterator[tuple[KeyPath, Mutable]]:
    yield from _mappings(content, ["off-diag", "steps", "*"])
    yield from _mappings(content, ["diagnostics", "*"])


def _default_step(step: Mutable, at: KeyPath, period: Any) -> None:
    details = step.setdefault("properties_and_measures", {})
    if not isinstance(details, dict):
        return
    prefix = "off-diag" if at[0] == "off-diag" else "diag"
    details.setdefault("to_level_prop", f"{prefix}-{at[-1]}-prop")
    details.setdefault("to_level_meas", f"{prefix}-{at[-1]}-meas")
    if period is not None:
        details.setdefault("period", period)


def apply_to_steps(content: Mutable, change: Callable[[KeyPath, Mutable], None]) -> None:
    """Call `change` with the path and the content of each step's `properties_and_measures`."""
    for at, step in _steps(content):
        if isinstance(step.get("properties_and_measures"), dict):
            change((*at, "properties_and_measures"), step["properties_and_measures"])
