"""What a report opens with: a map, five sentences made of the run's numbers, and a verdict, by ranks of doubts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import enumerated
from espo_luigi.report import changes, maps
from espo_luigi.report.distributions import names_of
from espo_luigi.report.drawings import OF_WATER, Drawing, broken, drawing, labels, long_name, new_figure, number_text
from espo_luigi.report.html import Heading, Section, Table, Text, Verdict
from espo_luigi.report.improvement import Compared
from espo_luigi.report.members import Treated
from espo_luigi.report.problem_sections import flag_sentence
from espo_luigi.report.reading import Diagnosed, Reader, RunView
from espo_luigi.science.diagnose.added_value import verdicts
from espo_luigi.science.display import as_shown, units_text
from espo_luigi.science.limits import FLAGS, RANKS, Flag, Rank
from espo_luigi.science.quality import rank_of
from espo_luigi.science.units import as_difference
from espo_luigi.science.variables import variable as row_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By rank, the verdict and the heading. A flag counts where it is raised on more than `MUCH` of the days or cells;
# below, what is not to be used is worth a look.
WORDS: Mapping[Rank, tuple[str, str]] = {
    "do_not_use": ("Do not use", "Do not use"),
    "look": ("Look before use", "Look"),
    "for_information": ("Ready to use", "For information"),
}
MUCH = 0.05


@dataclass(frozen=True)
class Doubt:
    """A reason for doubt; `share` is that of the days or cells that it is about."""

    rank: Rank
    text: str
    share: float = 1.0

    @property
    def counts_as(self) -> Rank:
        """The rank that decides about the run."""
        if self.share > MUCH:
            return self.rank
        return "look" if self.rank == "do_not_use" else "for_information"


@dataclass(frozen=True)
class Bias:
    """The mean absolute biases of a property over cells, domains and simulations, before and after."""

    words: str
    units: str
    raw: float
    adjusted: float


def biases_of(view: RunView, reader: Reader) -> dict[str, Bias]:
    """Return the mean absolute bias of each property; of ratios, the distance from 1. Computes."""
    found: dict[str, list[tuple[xr.DataArray, float, float]]] = {}
    for of in view.diagnosed:
        raw, adjusted = (reader.dataset(path) for path in (of.sim_meas, of.scen_meas))
        for name in map(str, raw or {}):
            if raw is not None and adjusted is not None and name in adjusted:
                both = [_shown(one[name], view) for one in (raw, adjusted)]
                one = 1.0 if maps.is_ratio(raw[name]) else 0.0
                found.setdefault(name, []).append((both[0], *(float(abs(each - one).mean()) for each in both)))
    means = {name: np.mean([each[1:] for each in of], axis=0) for name, of in found.items()}
    named = {name: (long_name(of[0][0]), units_text(of[0][0].attrs.get("units", ""))) for name, of in found.items()}
    return {name: Bias(*named[name], *map(float, of)) for name, of in means.items()}


def _shown(measure: xr.DataArray, view: RunView) -> xr.DataArray:
    """A bias in the units of the table; a ratio as it is."""
    if maps.is_ratio(measure):
        return measure
    return as_shown(as_difference(measure), row_of(str(measure.name), view.table))


def doubts_of(
    view: RunView,
    checks: Mapping[str, Sequence[store.Row]],
    flagged: Sequence[Treated],
    compared: Compared,
    biases: Mapping[str, Bias],
) -> list[Doubt]:
    """Return all doubts, the worst first."""
    found = [
        *_of_run(view, checks, biases),
        *_of_checks(checks),
        *_of_aspects(compared),
        *(Doubt("look", f"{one.words}: farther from the reference than raw") for one in _farther(biases)),
        *_of_flags(flagged),
    ]
    return sorted(found, key=lambda one: (RANKS.index(one.counts_as), RANKS.index(one.rank), -one.share))


def _of_run(view: RunView, checks: Mapping[str, Any], biases: Mapping[str, Bias]) -> Iterator[Doubt]:
    missing = sum(not made.complete for made in view.products)
    if missing == len(view.products):
        yield Doubt("do_not_use", "no product is there")
    elif missing:
        yield Doubt("look", f"{missing} of {len(view.products)} tasks are not complete")
    if unchecked := len(view.simulations) - len(checks):
        yield Doubt("look", f"{unchecked} of {len(view.simulations)} simulations have not been checked")
    if not biases:
        yield Doubt("look", "nothing was compared with the reference")
    elif len(_farther(biases)) > len(biases) / 2:
        yield Doubt("do_not_use", "most properties are farther from the reference than raw")


def _of_checks(checks: Mapping[str, Sequence[store.Row]]) -> Iterator[Doubt]:
    names = labels(checks)
    for sim_id, rows in checks.items():
        for row in (row for row in rows if row["raised"] == "True"):
            yield Doubt(FLAGS.get(row["flag"], Flag("")).rank, f"{names[sim_id]}: {flag_sentence(row)}")


def _of_aspects(compared: Compared) -> Iterator[Doubt]:
    judged = [verdict for ds in compared.values() for verdict in verdicts(ds)]
    for key, words in (("is_broken", "calibrated, and yet not right"), ("is_worse", "made worse, not calibrated")):
        if names := dict.fromkeys(verdict.long_name for verdict in judged if getattr(verdict, key)):
            yield Doubt("look", f"{words}, beyond noise: {_few([*names])}")


def _of_flags(flagged: Sequence[Treated]) -> Iterator[Doubt]:
    names, most = labels(one.sim_id for one in flagged), dict[tuple[str, str, str], tuple[float, str]]()
    for one in flagged:
        for flag in one.shown():
            key = flag, one.variable, one.of_what
            most[key] = max(most.get(key, (0.0, "")), (float(one.shares[flag].mean()) / 100, names[one.sim_id]))
    for (flag, variable, of_what), (share, name) in most.items():
        yield Doubt(
            rank_of(flag), f"{flag}: {variable} on {_percent(share)} of the {of_what}, the most in {name}", share
        )


def _farther(biases: Mapping[str, Bias]) -> list[Bias]:
    return [one for one in biases.values() if one.adjusted > one.raw]


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-4 else "under 0.01 %"


def _few(names: Sequence[str], most: int = 3) -> str:
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return enumerated([*names[:most], *more])


def verdict_of(doubts: Sequence[Doubt]) -> Verdict:
    """Return the verdict of the worst doubt, with the reason."""
    worst: Rank = doubts[0].counts_as if doubts else "for_information"
    texts = [one.text for one in doubts if one.counts_as == worst]
    reason = f"{texts[0]}{f'; and {len(texts) - 1} more reasons' if len(texts) > 1 else ''}." if texts else ""
    if worst == "for_information":
        reason = f"All is made, checked and compared; no flag to look at is on over {MUCH:.0%} of the days or cells."
    return Verdict(WORDS[worst][0], 2 - RANKS.index(worst), reason[:1].upper() + reason[1:])


def ranked_section(doubts: Sequence[Doubt]) -> Section:
    """Return the section with the doubts of each rank."""
    blocks: list[Any] = []
    for rank, (_, heading) in WORDS.items():
        rows = [[one.text, f"{100 * one.share:.3g}" if one.share < 1 else ""] for one in doubts if one.rank == rank]
        table = Table(["What", "Share of days or cells [%]"], rows, heading, folded=len(rows) > 20)
        blocks += [Heading(heading), table if rows else Text("Nothing.")]
    return Section("Doubts, by rank", blocks)


def sentences(
    view: RunView,
    biases: Mapping[str, Bias],
    change: tuple[str, Drawing] | None,
    summaries: Mapping[Diagnosed, xr.Dataset],
    doubts: Sequence[Doubt],
) -> Iterator[Text]:
    """Yield what was adjusted, with what, how much better it is, what changes, and what not to trust."""
    names = [row_of(name, view.table).long_name.lower() or name for name in view.adjusted]
    of = f"{len(view.simulations)} simulation{'s' if len(view.simulations) != 1 else ''}"
    years = f", {enumerated(view.years)}," if view.years else ""
    yield Text(f"Adjusted: {enumerated(names) or 'the variables'} of {of}{years} to {view.reference}.")
    yield Text(f"Method: {view.method or 'not told'}; calibrated over {view.period[0]}-{view.period[1]}.")
    yield Text(_better(biases))
    yield Text(_of_change(*change) if change else _of_daily_values(summaries))
    worst = [one.text for one in doubts if one.counts_as != "for_information"]
    told = f"{'; '.join(worst[:2])}{f'; and {len(worst) - 2} more' if len(worst) > 2 else ''}"
    yield Text(f"Not to trust: {told or 'nothing that these checks see'}.")


def _better(biases: Mapping[str, Bias]) -> str:
    if not biases:
        return "Not compared with the reference: no diagnostics are there."
    one = next((of for name, of in biases.items() if name.startswith("mean_")), next(iter(biases.values())))
    kept = [of.adjusted / of.raw for of in biases.values() if of.raw > 0]
    share = f" Of {len(biases)} properties, the median keeps {np.median(kept):.0%} of the raw bias" if kept else ""
    farther = [of.words for of in _farther(biases)]
    told = f"; farther than raw: {_few(farther)}" if farther else "; none is farther than raw"
    numbers = " to ".join(number_text(value, ".2g") for value in (one.raw, one.adjusted))
    return f"Mean absolute bias of “{one.words}”: from {numbers} {one.units}.{share}{told if share else ''}."


def chosen_change(sections: Iterable[Section]) -> tuple[str, Drawing] | None:
    """Return the indicator and the maps of changes that a report opens with: a temperature's, else the first."""
    found = [
        (section.title.partition(" (")[0], block)
        for section in sections
        for block in section.blocks
        if isinstance(block, Drawing) and block.draw is changes.change_maps
    ]
    warm = [one for one in found if _middle(one[1]).attrs.get("standard_name") == "air_temperature"]
    return next(iter([*_last(warm), *_last(found)]), None)


def _last(found: Sequence[tuple[str, Drawing]]) -> list[tuple[str, Drawing]]:
    """Of the first indicator, the maps of the last experiment."""
    of = [one for one in found if one[0] == found[0][0] and "+delta+" in one[1].name]
    return [*of[-1:], *found[:1]]


def _middle(change: Drawing) -> xr.DataArray:
    ds, names = change.arguments
    middle: xr.DataArray = ds[names[1]]
    return middle


def _of_change(indicator: str, change: Drawing) -> str:
    ds, names = change.arguments
    when, part, row = list(changes.points(ds))[-1]
    attrs, count = row[names[1]].attrs, int(row[f"{names[0].rpartition('_')[0]}_members"].max())
    low, middle, high = (number_text(float(changes.domain_means(row[[name]])[name][0])) for name in names)
    few = f"{middle}" if count == 1 else f"{low} to {high}"
    words = few if count < change.options["fewest"] else f"{middle} ({low} to {high})"
    units = {"rel.": "times"}.get(str(attrs.get("delta_kind")), units_text(attrs.get("units", "")))
    since, experiment = attrs.get("delta_reference", "the baseline"), change.name.split("+")[-1]
    simulations = f"{count} simulation{'s' if count != 1 else ''}"
    return (
        f"{indicator} changes by {words} {units} {f'{experiment} {when} {part}'.strip()} since {since} ({simulations})."
    )


def _of_daily_values(summaries: Mapping[Diagnosed, xr.Dataset]) -> str:
    for of, ds in summaries.items():
        for name in names_of({"": [ds]}, "change"):
            change = ds[f"{name}_change"].sel(change_quantile=0.5, method="nearest").mean("season")
            raw, adjusted = (number_text(float(change.sel(source=kind)), ".2f") for kind in ("raw", "adjusted"))
            units = units_text(change.attrs.get("units") or ds[f"{name}_change"].attrs.get("units", ""))
            return (
                f"The median of {name} changes by {adjusted} {units} (raw {raw}) from {ds.attrs.get('periods', '?')}, "
                f"in {of.domain} of {labels([of.sim_id])[of.sim_id]}."
            )
    return "What changes is not told: neither changes of indicators nor summaries are there."


def first_map(view: RunView, change: tuple[str, Drawing] | None) -> list[Drawing]:
    """Return the map that a report opens with: of the change, else of a bias before and after, if there is any."""
    if change:
        words = f"Change of {change[0][:1].lower()}{change[0][1:]}, over simulations"
        return [Drawing("first-map", words, change_map, change[1].arguments)]
    for of in view.diagnosed:
        if store.is_complete(of.sim_meas) and store.is_complete(of.scen_meas):
            caption = f"Distance from the reference before and after, {of.domain}, {labels([of.sim_id])[of.sim_id]}"
            return [Drawing("first-map", caption, bias_maps, [of.sim_meas, of.scen_meas, view])]
    return []


@drawing
def change_map(ds: xr.Dataset, names: Sequence[str]) -> Figure:
    """Draw the middle change (y, x) of the last horizon or level, and the last season."""
    when, part, row = list(changes.points(ds))[-1]
    field = row[names[1]].load()
    return _in_a_row(
        {f"{when} {part}".strip(): field}, changes._scale([field], field.attrs), changes._label(field.attrs)
    )


@drawing
def bias_maps(raw: Path, adjusted: Path, view: RunView) -> Figure:
    """Draw the measures (y, x) of the first mean, or property, before and after the adjustment."""
    first, second = (store.open_store(path, cut=False) for path in (raw, adjusted))
    name = next((name for name in map(str, first) if name.startswith("mean_")), str(next(iter(first))))
    fields = [_shown(ds[name].load(), view) for ds in (first, second)]
    scale = maps._around(fields) | ({"cmap": OF_WATER} if row_of(name, view.table).wet is not None else {})
    words = f"{long_name(fields[0])}, minus reference [{units_text(fields[0].attrs.get('units', ''))}]"
    return _in_a_row(dict(zip(("Raw", "Adjusted"), fields, strict=True)), scale, words)


def _in_a_row(fields: Mapping[str, xr.DataArray], scale: dict[str, Any], label: str) -> Figure:
    """Maps on one scale, beside or below each other, in a figure that fits into half of a screen."""
    first = next(iter(fields.values()))
    ratio, count = maps.width_by_height(first), len(fields)
    rows = count if ratio > 1.3 else 1
    height = min(6.4 / (count // rows) / ratio, 4.0 / rows) + 0.25
    figure, axes = new_figure(6.4, rows * height + 0.9, rows, count // rows)
    coast = maps.coast_lines(first)
    for place, (words, field) in zip(axes.flat, fields.items(), strict=True):
        image = maps.draw_map(place, field, coast, scale)
        place.set_title(words)
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", aspect=40, shrink=0.8, extend="both")
    bar.set_label(broken(label, 80))
    return figure
