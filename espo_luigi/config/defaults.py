"""Values that a section takes from another one where it gives none."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from espo_luigi.config.names import Written, changed, mappings
from espo_luigi.config.yaml_files import KeyPath

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
    """Return merged content with the values that one section takes from another.

    Periods default to `custom.ref_period` and `custom.sim_period`, the names of processing levels to their step's,
    those of regions to their keys, and the stage-2024 diagnostics take their reference's settings from
    `extraction.reference.properties_and_measures`.
    """
    custom = content.get("custom")
    periods = custom if isinstance(custom, Mapping) else {}
    ref_period, sim_period = periods.get("ref_period"), periods.get("sim_period")
    content = _defaulted(content, "biasadjust.variables.*.training_args", {"period": ref_period})
    content = _defaulted(content, "biasadjust.variables.*.adjusting_args", {"periods": sim_period})
    for where in ("custom.regions.*", "off-diag.domains.*"):
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
