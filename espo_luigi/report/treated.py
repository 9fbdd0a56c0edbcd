"""The section of a report about days that were not mapped between quantiles, or barely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from espo_luigi.report import maps
from espo_luigi.report.drawings import Drawing, labels
from espo_luigi.report.page import Section, Table, Text
from espo_luigi.report.product_sections import MOST_MAPS, lacking
from espo_luigi.report.reading import Reader
from espo_luigi.report.view import RunView, TreatedStores
from espo_luigi.science import pooling, stack
from espo_luigi.science.choices import TREATED, TREATMENTS

_CLIPPED = "clipped"
_WORDS = {
    "jittered": "Jittered",
    "made_wet": "Made wet",
    "extrapolated": "Extrapolated",
    "limited": "Tail kept",
    _CLIPPED: "Clipped",
}
_MEANING = (
    "Quantile mapping gives a day's value the factor of its quantile. These days got none, or hardly one of their own. "
    "Jittered: the value was under the threshold, and noise took its place. Made wet: a dry day became wet, as the "
    "reference has more wet days. Extrapolated: the value lay beyond the lowest or the highest quantile of the "
    "calibration, and got that quantile's factor; days without rain do not count. Tail kept: the value was above the "
    "tail's limit, and stayed as it was. Clipped: the adjusted value was beyond a bound of `clip_var`, and got that. "
    "Noise and wet days of the training alone do not count. Shares are of all days of the adjusted period."
)


@dataclass(frozen=True)
class Treated:
    """The shares of a simulation's days (y, x), in percent, of a variable, by treatment: those that were counted."""

    sim_id: str
    variable: str
    shares: Mapping[str, xr.DataArray]

    def mean(self, treatment: str) -> str:
        """Return the mean over the cells as text, or "" if no days were counted."""
        if treatment not in self.shares:
            return ""
        share = float(self.shares[treatment].mean())
        return "0" if share == 0 else f"{share:.3g}"

    def shown(self) -> dict[str, xr.DataArray]:
        """Return the treatments that any day got."""
        return {name: share for name, share in self.shares.items() if float(share.max()) > 0}


def treated_section(view: RunView) -> list[Section]:
    """Return the section; none for a run without counts (an earlier version, or xsdba)."""
    reader = Reader()
    found = [one for sim_id, stores in view.treated.items() for one in _treated(sim_id, stores, reader)]
    if not found:
        return []
    return [Section("Days treated otherwise", [*lacking(reader), *_treated_blocks(found)])]


def _treated(sim_id: str, stores: TreatedStores, reader: Reader) -> Iterator[Treated]:
    """The shares of each variable whose pieces have all been counted, or whose product was clipped."""
    product = reader.lazy(stores.product) if stores.product.exists() else None
    if product is None:
        return
    grid = stack.grid_of(product)
    for variable in dict.fromkeys((*stores.counts, *stores.clipped)):
        counted = _read(stores.counts.get(variable, ()), reader)
        clipped = _read([stores.clipped[variable]] if variable in stores.clipped else [], reader)
        shares: dict[str, xr.DataArray] = {}
        if counted:
            maps = _shares([pooling.member(piece, sim_id)[TREATED] for piece in counted], grid)
            shares = {name: maps.sel(treatment=name, drop=True) for name in TREATMENTS}
        if clipped:
            shares[_CLIPPED] = _shares([one[variable] for one in clipped], grid)
        if shares:
            yield Treated(sim_id, variable, shares)


def _read(paths: Sequence[Path], reader: Reader) -> list[xr.Dataset]:
    """The stores, or none of them if one is missing or cannot be read."""
    found = [reader.dataset(path) for path in paths] if all(path.exists() for path in paths) else []
    whole = [one for one in found if one is not None]
    return whole if len(whole) == len(paths) else []


def _shares(days: Sequence[xr.DataArray], grid: xr.Dataset) -> xr.DataArray:
    """The shares, in percent, of days that were counted in the cells of pieces."""
    return stack.on_grid([100 * one.astype("float32") / one.attrs["days"] for one in days], grid)


def _treated_blocks(found: Sequence[Treated]) -> list[Any]:
    names = dict(zip(ids := list(dict.fromkeys(one.sim_id for one in found)), labels(ids), strict=True))
    kinds = [kind for kind in _WORDS if any(kind in one.shares for one in found)]
    columns = ["Simulation", "Variable", *(_WORDS[kind] for kind in kinds)]
    rows = [[names[one.sim_id], one.variable, *(one.mean(kind) for kind in kinds)] for one in found]
    with_any = [one for one in found if one.shown()]
    shown = sorted(with_any, key=lambda one: -sum(float(share.sum()) for share in one.shares.values()))[:MOST_MAPS]
    left = len(with_any) - len(shown)
    return [
        Text(_MEANING),
        Table(columns, rows, "Share of days [%], mean over the cells"),
        *([Text(f"Maps of the {MOST_MAPS} with the most such days; {left} more have some.")] if left else []),
        *(
            Drawing(
                f"treated+{one.sim_id}+{one.variable}",
                f"{names[one.sim_id]}: {one.variable}, days that were not mapped between quantiles",
                maps.share_maps,
                [{_WORDS[kind]: share for kind, share in one.shown().items()}],
                {"title": f"{one.variable} of {names[one.sim_id]}", "label": "Share of days [%]"},
            )
            for one in with_any
            if one in shown
        ),
    ]
