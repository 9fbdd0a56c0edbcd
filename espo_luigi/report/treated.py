"""The section of a report about days that were not mapped between quantiles, or barely, and about repaired days."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xarray as xr

from espo_luigi.report import maps
from espo_luigi.report.drawings import Drawing, labels
from espo_luigi.report.page import Heading, Section, Table, Text
from espo_luigi.report.product_sections import MOST_MAPS, lacking
from espo_luigi.report.reading import Reader
from espo_luigi.report.view import RunView, TreatedStores
from espo_luigi.science import pooling, stack
from espo_luigi.science.choices import TREATED, TREATMENTS

_WORDS = {"jittered": "Jittered", "made_wet": "Made wet", "extrapolated": "Extrapolated", "limited": "Tail kept"}
_MEANING = (
    "Quantile mapping gives a day's value the factor of its quantile. These days got none, or hardly one of their own. "
    "Jittered: the value was under the threshold, and noise took its place. Made wet: a dry day became wet, as the "
    "reference has more wet days. Extrapolated: the value lay beyond the lowest or the highest quantile of the "
    "calibration, and got that quantile's factor; days without rain do not count. Tail kept: the value was above the "
    "tail's limit, and stayed as it was. Shares are of all days of the adjusted period."
)


@dataclass(frozen=True)
class Treated:
    """The share of a simulation's days (treatment, y, x), in percent, of a variable."""

    sim_id: str
    variable: str
    shares: xr.DataArray

    def mean(self, treatment: str) -> float:
        """Return the mean over the cells."""
        return float(self.shares.sel(treatment=treatment).mean())

    def shown(self) -> list[str]:
        """Return the treatments that any day got."""
        return [one for one in TREATMENTS if float(self.shares.sel(treatment=one).max()) > 0]


def treated_section(view: RunView) -> list[Section]:
    """Return the section; none for a run without counts (an earlier version, or xsdba)."""
    reader = Reader()
    found = [one for sim_id, stores in view.treated.items() for one in _treated(sim_id, stores, reader)]
    repaired = {
        sim_id: days
        for sim_id, stores in view.treated.items()
        if stores.repaired.exists() and (days := reader.dataset(stores.repaired)) is not None
    }
    if not found and not repaired:
        return []
    blocks = [*(_treated_blocks(found) if found else []), *(_repaired_blocks(repaired) if repaired else [])]
    return [Section("Days treated otherwise", [*lacking(reader), *blocks])]


def _treated(sim_id: str, stores: TreatedStores, reader: Reader) -> Iterator[Treated]:
    """The shares of each variable whose pieces have all been counted."""
    for variable, paths in stores.counts.items():
        if not stores.product.exists() or not all(path.exists() for path in paths):
            continue
        pieces = [reader.dataset(path) for path in paths]
        product = reader.lazy(stores.product)
        if product is None or any(piece is None for piece in pieces):
            continue
        days = [100 * _of_member(piece, sim_id) / piece[TREATED].attrs["days"] for piece in pieces if piece is not None]
        yield Treated(sim_id, variable, stack.on_grid(days, stack.grid_of(product)))


def _of_member(piece: xr.Dataset, sim_id: str) -> xr.DataArray:
    return pooling.member(piece, sim_id)[TREATED].astype("float32")


def _treated_blocks(found: Sequence[Treated]) -> list[Any]:
    names = dict(zip(ids := list(dict.fromkeys(one.sim_id for one in found)), labels(ids), strict=True))
    rows = [[names[one.sim_id], one.variable, *(_percent(one.mean(kind)) for kind in TREATMENTS)] for one in found]
    with_any = [one for one in found if one.shown()]
    shown = sorted(with_any, key=lambda one: -float(one.shares.sum()))[:MOST_MAPS]
    left = len(with_any) - len(shown)
    return [
        Text(_MEANING),
        Table(["Simulation", "Variable", *_WORDS.values()], rows, "Share of days [%], mean over the cells"),
        *([Text(f"Maps of the {MOST_MAPS} with the most such days; {left} more have some.")] if left else []),
        *(
            Drawing(
                f"treated+{one.sim_id}+{one.variable}",
                f"{names[one.sim_id]}: {one.variable}, days that were not mapped between quantiles",
                maps.share_maps,
                [{_WORDS[kind]: one.shares.sel(treatment=kind, drop=True) for kind in one.shown()}],
                {"title": f"{one.variable} of {names[one.sim_id]}", "label": "Share of days [%]"},
            )
            for one in with_any
            if one in shown
        ),
    ]


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{share:.3g}"


def _repaired_blocks(repaired: Mapping[str, xr.Dataset]) -> list[Any]:
    names = dict(zip(repaired, labels(repaired), strict=True))
    return [
        Heading("Repaired"),
        Text("Days on which a value of the raw simulation was repaired, on its own grid."),
        *(
            Drawing(
                f"repaired+{sim_id}",
                f"{names[sim_id]}: repaired days",
                maps.share_maps,
                [{str(name): one for name, one in days.data_vars.items()}],
                {"title": f"Repaired in {names[sim_id]}", "label": "Days [d]"},
            )
            for sim_id, days in list(repaired.items())[:MOST_MAPS]
        ),
    ]
