"""Fixed fields (`sftlf`, `orog`, a mask): which of a catalogue's rows serves a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from espo_luigi.catalog.criteria import fits, listed, values_of
from espo_luigi.catalog.read import Asset

FIXED = "fx"
"""The `xrfreq` of fields without time."""

_OF_A_RUN = ("id", "activity", "driving_model", "driving_member", "institution", "experiment", "member")
"""The columns that may differ: the land of a model is the same in all of its runs, whichever institution made them."""
_OF_A_GRID = ("mip_era", "source", "domain", "processing_level", "bias_adjust_project", "grid_label", "region")
"""The columns that must agree where both rows have them."""


def usable_fields(assets: Iterable[Asset], exclusions: Mapping[str, Any]) -> list[Asset]:
    """Return the rows of fixed fields that are sound, and that no exclusion fits.

    Exclusions of a run (its id, experiment, member and so on) do not count: its fields may serve other runs.
    """
    others = {column: value for column, value in exclusions.items() if column not in _OF_A_RUN}
    fields = (asset for asset in assets if asset.columns.get("xrfreq") == FIXED and not asset.faults)
    return [asset for asset in fields if not any(fits(asset, {column: value}) for column, value in others.items())]


def choose_field(
    variable: str, run: Sequence[Asset], fields: Sequence[Asset], criteria: Mapping[str, Any]
) -> tuple[Asset | None, str]:
    """Return the row of a fixed field that serves a run, or an objection.

    The run's own field is preferred, then a row that fits the search's criteria, then the row that shares most columns
    with the run. Ids and paths decide the rest.
    """
    named = [asset for asset in fields if variable in asset.variables]
    own = run[0].columns

    def rank(field: Asset) -> tuple[Any, ...]:
        apart = sum(field.columns.get(column) != own.get(column) for column in _OF_A_RUN)
        return field.id != run[0].id, not fits(field, criteria), apart, field.id, field.path

    serving = sorted((asset for asset in named if _serves(asset, run)), key=rank)
    if serving:
        return serving[0], ""
    if not named:
        return None, f"{variable} has no rows of frequency {FIXED} in the catalogue"
    grids = (f"{column} {listed(values_of(named, column))}" for column in _OF_A_GRID if values_of(named, column))
    return None, f"{variable} is there, but not of its source and grid (there are fields of {'; '.join(grids)})"


def _serves(field: Asset, run: Sequence[Asset]) -> bool:
    source = run[0].columns.get("source")
    same = field.id == run[0].id or (source is not None and field.columns.get("source") == source)
    return same and not any(
        {field.columns.get(column, "")} - {"", *values} for column in _OF_A_GRID if (values := values_of(run, column))
    )
