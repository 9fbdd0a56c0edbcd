"""What a report opens with: a map, five sentences made of the run's numbers, and a verdict, by ranks of doubts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import enumerated
from espo_luigi.report import changes, maps
from espo_luigi.report.drawings import Drawing, label, labels, number_text, short, spread_of
from espo_luigi.report.html import Section, Table, Text, Verdict
from espo_luigi.report.improvement import PUBLISHED, Compared, aspects_in_doubt
from espo_luigi.report.members import Treated
from espo_luigi.report.problem_sections import flag_sentence
from espo_luigi.report.reading import Reader, RunView
from espo_luigi.science.display import colours_of_differences, counted, experiment_text, long_name, noun, units_text
from espo_luigi.science.limits import FLAGS, RANKS, Flag, Rank
from espo_luigi.science.quality import rank_of

# The verdict, by the worst rank. A doubt about at most the share `MUCH` of the days or cells counts one rank less.
VERDICTS: Mapping[Rank, str] = dict(zip(RANKS, ("Do not use", "Look before use", "Ready to use"), strict=True))
MUCH = 0.05
# Farther from the reference than raw: by more than these shares of the raw bias, and of the reference's spread.
_TOLERANCE, _OF_SPREAD = 0.05, 0.01


@dataclass(frozen=True)
class Doubt:
    """A reason for doubt; `share` is that of the days or cells that it is about."""

    rank: Rank
    text: str
    share: float = 1.0

    @property
    def level(self) -> int:
        """How bad it is for the whole run: 0 is good, 2 the worst."""
        return max(0, 2 - RANKS.index(self.rank) - (self.share <= MUCH))


def biases_of(view: RunView, reader: Reader) -> pd.DataFrame:
    """Return `words`, `units` and mean absolute biases, `raw` and `adjusted`, by property; of ratios, distances from 1.

    They are means over areas, domains and simulations. `farther` is the share of pairs of simulation and domain whose
    adjusted bias is the larger by 5 % of the raw and by 1 % of the reference's standard deviation over the cells (of a
    ratio, by 0.01). Computes.
    """
    rows = []
    for of in view.diagnosed:
        paths = of.sim_meas, of.scen_meas, of.reference
        raw, adjusted, reference = (reader.dataset(path) or xr.Dataset() for path in paths)
        for name in (name for name in map(str, raw) if name in adjusted):
            known, none, areas = maps.row_of(name, view.table), float(maps.is_ratio(raw[name])), maps.areas_of(raw)
            both = [maps.shown_measure(ds[name], known) for ds in (raw, adjusted)]
            spread = float(maps.shown_measure(reference[name], known).std()) if name in reference else np.nan
            words = re.sub(" (absolute |relative )?(bias|ratio)$", "", long_name(both[0]))
            before, after = (float(abs(field - none).weighted(areas).mean()) for field in both)
            is_farther = after - before > np.nanmax([_TOLERANCE * before, _OF_SPREAD * (none or spread)])
            rows.append((name, words, units_text(both[0].attrs.get("units", "")), before, after, is_farther))
    columns = {"words": "first", "units": "first", "raw": "mean", "adjusted": "mean", "farther": "mean"}
    means = pd.DataFrame(rows, columns=["name", *columns]).groupby("name", sort=False).agg(columns)
    return means.loc[[name for name in dict.fromkeys((*PUBLISHED, *means.index)) if name in means.index]]


def doubts_of(
    view: RunView,
    checks: Mapping[str, Sequence[store.Row]],
    flagged: Sequence[Treated],
    compared: Compared,
    biases: pd.DataFrame,
) -> list[Doubt]:
    """Return all doubts, the worst first: of products, checks, comparisons, and flags of days and cells."""
    found, total = list[Doubt](), len(view.products)
    if missing := sum(not made.complete for made in view.products):
        found.append(Doubt("look" if missing < total else "do_not_use", f"{missing} of {total} tasks are not complete"))
    if unchecked := len(view.simulations) - len(checks):
        found.append(Doubt("look", f"{unchecked} of {len(view.simulations)} simulations are not checked"))
    if biases.empty:
        found.append(Doubt("look", "no property was compared with the reference"))
    rank: Rank = "do_not_use" if (biases.farther > 0.5).sum() > len(biases) / 2 else "look"
    for words, share in zip(*(biases[column][biases.farther > 0] for column in ("words", "farther")), strict=True):
        of_pairs = f"{100 * share:.0f} % of the pairs of simulation and domain"
        found.append(Doubt(rank, f"{words}: farther from the reference than raw in {of_pairs}"))
    names = labels([*checks, *(one.sim_id for one in flagged)])
    raised = [(names[sim_id], row) for sim_id, rows in checks.items() for row in rows if row["raised"] == "True"]
    found += [Doubt(FLAGS.get(row["flag"], Flag("")).rank, f"{name}: {flag_sentence(row)}") for name, row in raised]
    found += [Doubt("look", *told) for told in aspects_in_doubt(compared)]
    most = dict[tuple[str, str, str], tuple[float, str]]()
    for one in flagged:
        for key in ((flag, one.variable, one.of_what) for flag in one.shown()):
            most[key] = max(most.get(key, (0.0, "")), (one.means[key[0]] / 100, names[one.sim_id]))
    for (flag, variable, of_what), (share, name) in most.items():
        percent = f"{100 * share:.2g}" if share >= 1e-4 else "under 0.01"
        told = f"{flag}: {percent} % of the {of_what} of {variable}"
        found.append(Doubt(rank_of(flag), f"{told}, the most in {name}" if len(names) > 1 else told, share))
    return sorted(found, key=lambda one: (-one.level, RANKS.index(one.rank), -one.share))


def ranked_section(doubts: Sequence[Doubt]) -> Section:
    """Return the section with the doubts of each rank."""
    rows = {rank: [[one.text] for one in doubts if one.rank == rank] or [["nothing"]] for rank in RANKS}
    return Section("By rank", [Table([rank.replace("_", " ").capitalize()], of) for rank, of in rows.items()])


def opening(view: RunView, biases: pd.DataFrame, change: tuple[str, list[Drawing]], doubts: Sequence[Doubt]) -> Section:
    """Return the section with the map, the verdict and the sentences; `change` is what changes, and its map."""
    names = [noun(name, view.table) for name in view.adjusted]
    level, told = (doubts[0].level if doubts else 0), [one.text for one in doubts if one.level]
    worst = [one.text for one in doubts if one.level == level] if level else []
    much = f"over {100 * MUCH:.0f} % of the days or cells"
    unflagged = "" if view.raised else "; no flags of days and cells are made"
    domains = enumerated(list(dict.fromkeys(of.domain for of in view.diagnosed)))
    where = f" in {domains}" if domains else ""
    good = f"all is made and checked, and compared{where}{unflagged or f', and no flag to look at is on {much}'}"
    simulations = counted(len(view.simulations), "simulation")
    sentences = [
        f"this run adjusts {enumerated(names) or 'nothing'} of {simulations}, {view.years}",
        f"the method is {view.method}, the reference {view.reference} of {'-'.join(map(str, view.period))}",
        _better(biases),
        change[0],
        f"not to trust: {_first(told, '; ') or f'nothing on {much}'}{unflagged}",
    ]
    verdict = Verdict(VERDICTS[RANKS[2 - level]], level, _sentence(_first(worst, "; ", 1) or good))
    return Section("", [*(change[1] or _map_of_bias(view)), verdict, *map(Text, map(_sentence, sentences))])


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _first(texts: Sequence[str], between: str = ", ", most: int = 2) -> str:
    return between.join([*texts[:most], *([f"{len(texts) - most} more"] if len(texts) > most else [])])


def _better(biases: pd.DataFrame) -> str:
    if biases.empty:
        return "whether it is better than raw is not known: no property was compared with the reference"
    one, kept = biases.iloc[0], (biases.adjusted / biases.raw)[biases.raw > 0].median()
    farther = _first([*biases.words[biases.farther > 0]]) or "none"
    median = f"the median keeps {100 * kept:.0f} % of its raw bias" if np.isfinite(kept) else "none has a raw bias"
    numbers = f"{number_text(one.raw, '.2g')} to {number_text(one.adjusted, '.2g')} {one.units}".rstrip()
    return (
        f"the mean absolute bias of {one.words[:1].lower()}{one.words[1:]} went from {numbers}; of "
        f"{len(biases)} properties, {median}; farther than raw, in any simulation and domain: {farther}"
    )


def change_of(sections: Sequence[Section], reader: Reader) -> tuple[str, list[Drawing]]:
    """Return what changes of a temperature, else of the first indicator, by the page of changes: words and a map."""
    drawn = [(section.title.partition(" (")[0], block) for section in sections for block in section.blocks]
    found = [(words, of) for words, of in drawn if isinstance(of, Drawing) and of.draw is changes.change_maps]
    warm = [one for one in found if _middle(one[1]).attrs.get("standard_name") == "air_temperature"]
    of_first = [one for one in found if one[0] == (warm or found)[0][0]]
    for words, block in [one for one in of_first if "+delta+" in one[1].name][-1:] or of_first[:1]:
        try:
            return _told(words, block)
        except Exception as error:  # a damaged chunk raises whatever its codec does
            reader.lacking.append(f"{block.caption}: {type(error).__name__}: {error}")
    return "what changes is not known: there are no maps of changes of indicators", []


def _middle(change: Drawing) -> Any:
    return change.arguments[0][change.arguments[1][1]]


def _told(words: str, change: Drawing) -> tuple[str, list[Drawing]]:
    """The last horizon or level of a change, with as much as so many members allow to tell."""
    ds, names = change.arguments
    ds = changes.without_percentiles(ds, names, change.options["fewest"])
    when, part, row = list(changes.points(ds))[-1]
    row, count = row[[*names]].load(), int(row[f"{names[0].rpartition('_')[0]}_members"].max())
    low, middle, high = (number_text(float(of.squeeze())) for of in changes.domain_means(row)[[*names]].values())
    first, last = (int(name.rpartition("_p")[2]) for name in names[::2])
    between = f"{middle} ({low} to {high}, {first}th to {last}th percentile)"
    several = f"{low} to {high}" if count < change.options["fewest"] else between
    field, where = row[names[1]], f"{experiment_text(change.name.split('+')[-1])}, {when} {part}".strip()
    units = "times" if field.attrs.get("delta_kind") == "rel." else units_text(field.attrs.get("units", ""))
    told = f"{words} changes by {middle if count == 1 else several} {units} ({where}; {counted(count, 'simulation')})"
    scale = of_one_sign(field, changes.scale_around([field], field))
    of_scale = changes.label_of(field.attrs)
    options = {"title": "", "label": of_scale, "scale": scale, "wide": 2 * maps.PANEL_WIDTH}
    caption = f"{words}: {of_scale.partition(' [')[0].lower()}"
    return told, [Drawing("first-map", caption, maps.share_maps, [{where: field}], options)]


def _map_of_bias(view: RunView) -> Iterator[Drawing]:
    """A map of the first simulation's bias of the first property, before and after, if there is any."""
    for of in view.diagnosed:
        both = [Reader().dataset(path) or xr.Dataset() for path in (of.sim_meas, of.scen_meas)]
        for name in [one for one in (*PUBLISHED, *map(str, both[0])) if all(one in ds for ds in both)][:1]:
            raw, adjusted = (maps.shown_measure(ds[name], maps.row_of(name, view.table)) for ds in both)
            scale = maps.scale_around([raw, adjusted]) | {"cmap": colours_of_differences(raw)}
            caption = f"Before and after: {long_name(raw)}, {of.domain}, {short(of.sim_id)}"
            options = {"title": "", "label": label(raw), "scale": scale}
            yield Drawing("first-map", caption, maps.share_maps, [{"Raw": raw, "Adjusted": adjusted}], options)
            return


def of_one_sign(field: xr.DataArray, scale: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the scale of a map: if all its values have one sign, with all of that sign's colours."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    low, high = spread_of(field)
    if "vmin" not in scale or low == high or low * high <= 0:
        return scale
    shades = colormaps[scale["cmap"]](np.linspace(*((0.55, 1.0) if low > 0 else (0.0, 0.45)), 200))
    return {"vmin": low, "vmax": high, "cmap": ListedColormap(shades)}
