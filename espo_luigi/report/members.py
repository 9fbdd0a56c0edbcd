"""The sections about simulations: how far members of a pool are apart, and on how many days values were changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.report import maps
from espo_luigi.report.drawings import (
    ADJUSTED,
    RAW,
    SEQUENTIAL,
    Drawing,
    broken,
    drawing,
    label,
    labels,
    panels_of,
    short,
)
from espo_luigi.report.html import Heading, Section, Table, Text
from espo_luigi.report.reading import Reader, RunView
from espo_luigi.science.attributes import DAYS, INSERTED_DAYS, REPAIRS
from espo_luigi.science.chunks import REALIZATION, join
from espo_luigi.science.display import long_name, noun
from espo_luigi.science.quality import CELLS, COUNTED, DOWNSCALED
from espo_luigi.science.variables import Variable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MEAN = "mean_"
_STYLES = {"raw": RAW, "adjusted": ADJUSTED}


@dataclass(frozen=True)
class Means:
    """A mean property of a pool's members over a domain: (realization, y, x), raw and adjusted, on the same cells."""

    pool: str
    domain: str
    variable: str
    raw: xr.DataArray
    adjusted: xr.DataArray

    def spread(self, kind: str) -> float:
        """Return the standard deviation over the members, averaged over the cells."""
        members: xr.DataArray = getattr(self, kind)
        return float(members.std("realization", ddof=1).mean())

    def apart(self, kind: str) -> np.ndarray:
        """Return how far each member's mean over the domain is from that of all."""
        members: xr.DataArray = getattr(self, kind)
        of_members = members.mean([dim for dim in members.dims if dim != "realization"])
        return np.asarray((of_members - of_members.mean()).values)


def members_section(view: RunView) -> list[Section]:
    """Return the section, or none for a run without pools of several members and without counts of inversions."""
    several = any(len(ids) > 1 for ids in view.pools.values())
    if not several and not view.inversions:
        return []
    reader = Reader()
    blocks = [*(_spread_blocks(view, reader) if several else []), *_change_blocks(view, reader)]
    return [Section("Members", [*reader.warned(), *blocks])]


def means_of(view: RunView, reader: Reader) -> Iterator[Means]:
    """Yield the mean properties of each pool of several in each domain, where two members or more are there."""
    for pool, ids in view.pools.items():
        for domain in view.domains if len(ids) > 1 else ():
            of_pool = [of for of in view.diagnosed if of.domain == domain and of.sim_id in ids]
            pairs = [(reader.dataset(of.sim_prop), reader.dataset(of.scen_prop)) for of in of_pool]
            there = [(raw, adjusted) for raw, adjusted in pairs if raw is not None and adjusted is not None]
            if len(there) < 2:
                continue
            for name in sorted(name for name in map(str, there[0][0].data_vars) if name.startswith(_MEAN)):
                known = maps.row_of(name, view.table)
                raw, adjusted = (
                    # Only distances between members are shown.
                    join([maps.shown_measure(pair[kind][name], known) for pair in there], REALIZATION)
                    for kind in (0, 1)
                )
                common = raw.notnull().all("realization") & adjusted.notnull().all("realization")
                yield Means(pool, domain, name.removeprefix(_MEAN), raw.where(common), adjusted.where(common))


def _spread_blocks(view: RunView, reader: Reader) -> list[Any]:
    means = list(means_of(view, reader))
    rows = []
    for mean in means:
        raw, adjusted = mean.spread("raw"), mean.spread("adjusted")
        quotient = f"{adjusted / raw:.2f}" if raw > 0 else "–"
        units = label(mean.adjusted).rpartition("[")[2].rstrip("]")
        spreads = [str(mean.raw.sizes["realization"]), f"{raw:.3f}", f"{adjusted:.3f}", quotient, units]
        rows.append([mean.pool, mean.domain, mean.variable, *spreads])
    columns = ["Pool", "Domain", "Variable", "Members", "Raw", "Adjusted", "Adjusted : raw", "Units"]
    caption = "Spread between members: standard deviation of their means, averaged over the cells"
    text = (
        "Members of a pool are adjusted by the same quantiles: the adjustment brings them together to the reference, "
        "and has to keep the distance between them, which is the model's own variability. Means are over "
        f"{view.period[0]}-{view.period[1]}; raw is the simulation on the reference's cells, as under Improvement. "
        "That one passes all intermediate grids, as in ESPO v2: of a model that is finer than these, the raw spread is "
        "smoothed, and the quotient too large. A multiplicative adjustment scales the spread with the mean."
    )
    return [
        Text(text),
        *([Table(columns, rows, caption)] if rows else []),
        *(
            Drawing(
                f"members+{pool}",
                f"{pool}: each member's mean, minus that of all",
                members_figure,
                [of],
                {"title": pool},
            )
            for pool in view.pools
            if (of := [mean for mean in means if mean.pool == pool])
        ),
    ]


@drawing
def members_figure(means: Sequence[Means], *, title: str = "") -> Figure:
    """Draw how far the members of a pool are apart, raw and adjusted, by variable and domain."""
    from matplotlib.lines import Line2D

    variables, domains = (list(dict.fromkeys(getattr(mean, name) for mean in means)) for name in ("variable", "domain"))
    figure, axes = panels_of(len(variables), 1.53)
    for (place,), variable in zip(axes, variables, strict=True):
        of_variable = [mean for mean in means if mean.variable == variable]
        for mean in of_variable:
            for kind, shift in (("raw", -0.13), ("adjusted", 0.13)):
                values, at = mean.apart(kind), domains.index(mean.domain) + shift
                place.plot([at, at], [values.min(), values.max()], **_STYLES[kind])
                place.plot(np.full(len(values), at), values, "o", color=_STYLES[kind]["color"], markersize=3.5)
        place.axhline(0, color="#888888", linewidth=0.6)
        place.set_xticks(range(len(domains)), [broken(name, 12) for name in domains])
        place.set_xlim(-0.5, len(domains) - 0.5)
        place.set_title(broken(long_name(of_variable[0].adjusted), 36))
        place.set_ylabel(label(of_variable[0].adjusted, name="Member minus all"))
        place.grid(True, axis="y")
    handles = [Line2D([], [], marker="o", markersize=3.5, **style, label=kind) for kind, style in _STYLES.items()]
    figure.legend(handles=handles, loc="lower center", ncols=2, handlelength=3.5)
    figure.suptitle(broken(title, int(12 * figure.get_figwidth())), y=1 - 0.08 / figure.get_figheight(), va="top")
    return figure


def _change_blocks(view: RunView, reader: Reader) -> list[Any]:
    """What was exchanged, repaired and inserted in each simulation, and maps of the exchanges, the most first."""
    counts = {sim_id: ds for sim_id, path in view.inversions.items() if (ds := reader.dataset(path)) is not None}
    if not counts:
        return []
    names = labels(counts)
    exchanged = {sim_id: float(ds["before"].sum()) for sim_id, ds in counts.items()}
    with_any = sorted((sim_id for sim_id in counts if exchanged[sim_id]), key=lambda sim_id: -exchanged[sim_id])
    shown, left = with_any[: maps.MOST_MAPS], len(with_any[maps.MOST_MAPS :])
    text = (
        "Days of a cell on which the adjusted tasmax was below the adjusted tasmin, before and after they were made "
        "consistent. Repairs are of known defects of the raw files, and inserted days those that no file had."
    )
    columns = ["Simulation", "Before", "Share of days [%]", "Most in a cell", "After", "Repaired", "Inserted days"]
    rows = [[names[sim_id], *_changed(ds)] for sim_id, ds in counts.items()]
    most = {sim_id: float(ds["before"].max()) for sim_id, ds in counts.items()}
    scales = {sim_id: {"vmin": 0, "vmax": high, "cmap": SEQUENTIAL} for sim_id, high in most.items()}
    more = [Text(f"Maps of the {maps.MOST_MAPS} with the most such days; {left} more have some.")] if left else []
    return [
        Heading("Exchanged, repaired and inserted"),
        Text(text),
        Table(columns, rows, "What was changed in each simulation"),
        *more,
        *(
            Drawing(
                f"inversions+{sim_id}",
                f"{names[sim_id]}: days whose maximum temperature is below the minimum",
                maps.share_maps,
                [{"Before": counts[sim_id]["before"], "After": counts[sim_id]["after"]}],
                {"title": f"Maximum below minimum: {short(sim_id)}", "label": "Days", "scale": scales[sim_id]},
            )
            for sim_id in counts
            if sim_id in shown
        ),
    ]


def _changed(counts: xr.Dataset) -> list[str]:
    before, after, days = (float(counts[name].sum()) for name in ("before", "after", "days"))
    return [
        f"{before:,.0f}",
        f"{100 * before / days:.4f}" if days else "–",
        f"{float(counts['before'].max()):,.0f}" if days else "–",
        f"{after:,.0f}",
        str(counts.attrs.get(REPAIRS, "none")),
        str(counts.attrs.get(INSERTED_DAYS, "none")),
    ]


_WORDS = {
    "jittered": "Jittered",
    "made_wet": "Made wet",
    "extrapolated": "Extrapolated",
    "limited": "Tail kept",
    "clipped": "Clipped",
}
_MEANING = (
    "Quantile mapping gives a day's value the factor of its quantile. These days got none, or hardly one of their own. "
    "Jittered: the value was under the threshold, and noise took its place. Made wet: a dry day became wet, as the "
    "reference has more wet days. Extrapolated: the value lay beyond the lowest or the highest quantile of the "
    "calibration, and got that quantile's factor; days without rain do not count. Tail kept: the value was above the "
    "tail's limit, and stayed as it was. Clipped: the adjusted value was beyond `clip_var` or `limit_var`, and got "
    "that. Noise and wet days of the training alone do not count. Shares are of all days of the adjusted period."
)

_FLAGS_MEAN = (
    "Why to doubt values, by the archive of flags beside each product. Shares are of all days of the product; a cell "
    "has its flag (100 %) or has not (0). Beyond the record, beyond the season: more extreme than the reference ever "
    "is, or is in the month and those beside it. Crossed before, exchanged: the minimum was above the maximum, as "
    "regridded or as adjusted. Filled in time: the regridded value was missing. Repaired: a raw value was replaced. "
    "Extrapolated in space: a grid on the way does not reach the cell. Signal distorted, sign flipped: the change "
    "differs from that of the regridded simulation, or has the other sign; not judged: there are too few days or "
    "years. Arid: months with few wet days in the calibration, whose factors are quotients of small numbers, have "
    "much of the amounts or the highest value."
)


@dataclass(frozen=True)
class Treated:
    """Shares (y, x) of a simulation's days, in percent, by flag; 0 or 100 of `of_what` cells."""

    sim_id: str
    variable: str
    of_what: str
    shares: Mapping[str, xr.DataArray]
    means: Mapping[str, float]

    def mean(self, flag: str) -> str:
        """Return the mean over the domain's area as text, or "" if the variable has no such flag."""
        return f"{self.means[flag]:.3g}" if flag in self.means else ""

    def shown(self) -> list[str]:
        """Return the flags that are raised anywhere."""
        return [name for name, share in self.shares.items() if float(share.max()) > 0]


def treated_section(view: RunView) -> list[Section]:
    """Return the section; none for products without sums: those with flags, and those of xsdba."""
    reader, rows, names = Reader(), [], labels(view.archives)
    for sim_id, path in ((sim_id, path) for sim_id, paths in view.archives.items() for path in paths if path.exists()):
        for name, data in (reader.dataset(path, load=False) or xr.Dataset()).items():
            sums = {key.removeprefix(f"{DAYS}_"): of for key, of in data.attrs.items() if key.startswith(f"{DAYS}_")}
            told = [f"{_WORDS.get(kind, kind)} {100 * of / data.attrs[DAYS]:.3g}" for kind, of in sums.items()]
            rows += [[names[sim_id], str(name), ", ".join(told)]] if told else []
    table = Table(["Simulation", "Variable", "Treated"], rows, "Share of days [%], mean over the cells")
    return [Section("Days treated otherwise", [*reader.warned(), Text(_MEANING), table])] if rows else []


def read_flags(view: RunView, reader: Reader) -> list[Treated]:
    """Return the shares of days and of cells with each flag."""
    found = dict[tuple[str, str, str], tuple[dict[str, xr.DataArray], dict[str, float]]]()
    for sim_id, path in view.raised.items():
        counts = (path.exists() and reader.dataset(path)) or xr.Dataset()
        areas = maps.areas_of(counts) if counts else xr.DataArray(1.0)
        for name, days in counts.items():
            variable, _, flag = str(name).partition(COUNTED)
            if "days" in days.attrs:
                key = sim_id, variable, "cells" if flag in {**CELLS, **DOWNSCALED} else "days"
                shares, means = found.setdefault(key, ({}, {}))
                shares[flag] = 100 * days / days.attrs["days"]
                means[flag] = float(shares[flag].weighted(areas).mean())
    return [Treated(*key, *of) for key, of in found.items()]


def flags_section(found: Sequence[Treated], reader: Reader, table: Mapping[str, Variable]) -> list[Section]:
    """Return the section about the flags of `read_flags`; none for a run without them."""
    blocks: list[Any] = [Text(_FLAGS_MEAN), Text(_MEANING)]
    for of_what in ("days", "cells"):
        chosen = [one for one in found if one.of_what == of_what]
        blocks += _share_blocks(chosen, f"flagged-{of_what}", f"flags of {of_what}", table)
    return [Section("Flags of values and cells", [*reader.warned(), *blocks])] if found else []


def _share_blocks(counted: Sequence[Treated], key: str, about: str, table: Mapping[str, Variable]) -> list[Any]:
    """A table of the shares of days or cells, and maps."""
    of_what = counted[0].of_what if counted else ""
    names = labels(of.sim_id for of in counted)
    counts = dict.fromkeys(kind for of in counted for kind in of.shares)
    words = {kind: words for kind, words in _WORDS.items() if kind in counts}
    words |= {kind: kind.replace("_", " ").capitalize() for kind in counts if kind not in words}
    rows = [[names[of.sim_id], of.variable, *(of.mean(kind) for kind in words)] for of in counted]
    with_any = [of for of in counted if of.shown()]
    most = sorted(with_any, key=lambda of: -sum(float(share.sum()) for share in of.shares.values()))[: maps.MOST_MAPS]
    left = len(with_any) - len(most)
    return [
        Table(["Simulation", "Variable", *words.values()], rows, f"Share of {of_what} [%], mean over the domain"),
        *([Text(f"Maps of the {maps.MOST_MAPS} with the most such {of_what}; {left} more have some.")] if left else []),
        *(
            Drawing(
                f"{key}+{of.sim_id}+{of.variable}",
                f"{names[of.sim_id]}: {noun(of.variable, table)}, {about}",
                maps.share_maps,
                [{text: of.shares[kind] for kind, text in words.items() if kind in of.shown()}],
                {"title": f"{names[of.sim_id]}: {noun(of.variable, table)}", "label": f"Share of {of_what} [%]"},
            )
            for of in with_any
            if of in most
        ),
    ]
