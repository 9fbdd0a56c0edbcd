"""The section of a report about days that were not mapped between quantiles, or barely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xarray as xr

from espo_luigi.report import maps
from espo_luigi.report.drawings import Drawing, labels
from espo_luigi.report.page import Section, Table, Text
from espo_luigi.report.product_sections import MOST_MAPS, lacking
from espo_luigi.report.reading import Reader
from espo_luigi.report.view import RunView
from espo_luigi.science.finalize.scenario import CLIPPED, count_of

_WORDS = {
    "jittered": "Jittered",
    "made_wet": "Made wet",
    "extrapolated": "Extrapolated",
    "limited": "Tail kept",
    CLIPPED: "Clipped",
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
        return {
            kind: self.shares[kind] for kind in _WORDS if kind in self.shares and float(self.shares[kind].max()) > 0
        }


def treated_section(view: RunView) -> list[Section]:
    """Return the section; none for a run whose products count nothing (an earlier version, or xsdba)."""
    reader = Reader()
    found = [
        Treated(sim_id, variable, shares)
        for sim_id, products in view.products_of.items()
        for variable, shares in _shares(products, reader).items()
    ]
    if not found:
        return []
    return [Section("Days treated otherwise", [*lacking(reader), *_treated_blocks(found)])]


def _shares(products: Sequence[Path], reader: Reader) -> dict[str, dict[str, xr.DataArray]]:
    """The shares of days, in percent, that a simulation's products count, by variable and treatment."""
    shares: dict[str, dict[str, xr.DataArray]] = {}
    for path in products:
        product = reader.lazy(path) if path.exists() else None
        for name, days in product.data_vars.items() if product is not None else ():
            variable, is_count, kind = str(name).partition(count_of("", ""))
            if is_count and kind in _WORDS:
                share = (100 * days / days.attrs["days"]).drop_attrs().load()
                shares.setdefault(variable, {})[kind] = share
    return shares


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
