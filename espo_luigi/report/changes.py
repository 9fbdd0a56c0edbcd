"""The page "What changes": indicators over simulations as maps, plumes and tables, in a folder with their numbers."""

from __future__ import annotations

import calendar
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.export.netcdf import Layout, from_cf_axes, statistics_file, write_netcdf
from espo_luigi.files import open_regular
from espo_luigi.report import drawings
from espo_luigi.report.drawings import REFERENCE, THIN, Drawing, broken, drawing, panels_of, short
from espo_luigi.report.html import Link, Picture, Section, Table, Text, Warned, render_page
from espo_luigi.report.maps import PANEL_WIDTH, areas_of, draw_map, edges_of, map_lines, places_of, width_by_height
from espo_luigi.report.reading import Reader, RunView, Together
from espo_luigi.science import display
from espo_luigi.science.attributes import FEWEST, FEWEST_ROBUST
from espo_luigi.science.display import counted, experiment_text, in_celsius, months_text, units_text
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.netcdf import load_netcdf
from espo_luigi.science.outcomes.natures import around_mean, means_of, nature_of, on_standard_year, rules_of, unwrapped
from espo_luigi.science.outcomes.regions import region_means
from espo_luigi.science.stations import are_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "index.html"
# With more maps, those of one experiment are drawn; with more indicators, their figures are folded; numbers of more
# bytes stay in the stores.
MOST_MAPS, MOST_OPEN, MOST_BYTES = 150, 8, 200_000_000
_MOST_ROWS, _MOST_PANELS = 4, 6
_ALONG, _PARTS = ("horizon", "warming_level"), ("season", "month")
_STATISTICS, _WHOLE = ("low", "median", "high", "agree", "members"), "whole domain"
# After Okabe and Ito (2008), with lines that differ in grey, too.
_COLOURS, _LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"), ("--", "-", "-.")
_INSIDE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
_HATCHED = {
    "advanced": "Hatched: no robust signal, as under 66 % of the simulations change by more than their variability. "
    "Crossed: 66 % do, but under 80 % agree about the sign.",
    "simple": "Hatched: under 80 % of the simulations agree about the sign.",
}
_INTRODUCTION = (
    "Changes are those of each simulation since its own baseline; the median and percentiles are over the simulations, "
    "weighted as configured (by default, each model has one vote), cell by cell. Maps of an indicator share a scale "
    "around no change; grey cells have no data. The percentiles do not bound what is possible."
)


@dataclass(frozen=True, eq=False)
class Shown:
    """An indicator's values or changes over simulations.

    `names` are those of the low, middle and high statistic; `means` has `low`, `median`, `high`, `agree` and `members`
    (region, ...); `maps` are the statistics of changes as far as they are `drawn`, by dimension. Of fewer members than
    `fewest`, which have no percentiles, the three are the lowest, mean and highest.
    """

    of: Together
    indicator: str
    names: tuple[str, str, str]
    attrs: Mapping[str, Any]
    members: Mapping[str, Any]
    means: xr.Dataset
    fewest: int = 1
    drawn: Mapping[str, Any] = field(default_factory=dict)
    maps: xr.Dataset | None = None

    @property
    def file(self) -> str:
        """The name of its figure and numbers, without ending."""
        return "+".join((self.indicator, self.of.freq, self.of.product, self.of.experiment))

    @property
    def words(self) -> str:
        """The indicator in words, and what its values are of, if not calendar years."""
        year = "" if self.of.freq == "YS-JAN" else f", years from {months_text(self.of.freq[3:])}"
        of = {"Q": ", by season", "M": ", by month"}.get(self.of.freq[0], year)
        return display.long_name(xr.DataArray(name=self.indicator, attrs=self.attrs)) + of


def read_shown(view: RunView, reader: Reader) -> Iterator[Shown]:
    """Yield all that is made and can be read; means of changes are in memory, all else is lazy."""
    for one in view.ensembles:
        try:
            yield from _shown_of(one, reader)
        except Exception as error:  # a damaged chunk raises whatever its codec does
            reader.lacking.append(f"{one.ensemble or one.regions}: {type(error).__name__}: {error}")


def _shown_of(one: Together, reader: Reader) -> Iterator[Shown]:
    maps = reader.dataset(one.ensemble, load=False) if one.ensemble else None
    source, is_of_regions = maps, False
    if one.regions and reader.has(one.regions):
        with open_regular(one.regions.with_suffix(".nc")) as file:
            source, is_of_regions = from_cf_axes(load_netcdf(file, without=["realization"])), True
    if source is None:
        return
    for base, names in percentile_names(source).items():
        keys = zip((*names, f"{base}_agree", f"{base}_members"), _STATISTICS, strict=True)
        fewest = int(source.attrs.get(FEWEST, 1))
        filled = without_percentiles(source, names, fewest)
        means = xr.Dataset({key: in_celsius(filled[name]) for name, key in keys if name in source})
        means = means if is_of_regions else domain_means(means)
        shown = Shown(one, base.partition("_clim_")[0], names, source[names[1]].attrs, source.attrs, means, fewest)
        if maps is not None and names[1] not in maps:
            reader.lacking.append(f"{base.partition('_clim_')[0]} in {one.ensemble}: not made")
        if one.product != "indicators":
            drawn = selection(means.load()["members"].max("region"), str(shown.attrs.get("delta_reference")))
            more = ("agree", "members", "simple", "advanced", "min", "mean", "max")
            wanted = dict.fromkeys([*names, *(f"{base}_{end}" for end in more)])
            there = [name for name in wanted if name in maps] if maps is not None else []
            cut = maps.sel(drawn)[there] if maps is not None and there and all(drawn.values()) else None
            shown = replace(shown, drawn=drawn, maps=cut)
        yield shown


def percentile_names(ds: xr.Dataset) -> dict[str, tuple[str, str, str]]:
    """Return the names of the low, middle and high statistic over simulations, by the indicator's or change's name."""
    percentiles: dict[str, list[int]] = {}
    for variable in map(str, ds.data_vars):
        if (matched := re.fullmatch(r"(.+)_p(\d+)", variable)) and f"{matched[1]}_members" in ds:
            percentiles.setdefault(matched[1], []).append(int(matched[2]))
    return {
        base: (f"{base}_p{min(of)}", f"{base}_{'p50' if 50 in of else 'mean'}", f"{base}_p{max(of)}")
        for base, of in percentiles.items()
    }


def without_percentiles(ds: xr.Dataset, names: Sequence[str], fewest: int) -> xr.Dataset:
    """Return statistics whose `names` are the lowest, mean and highest where there are fewer members; lazy.

    Only to be shown under these words.
    """
    base = names[0].rpartition("_")[0]
    ends = [f"{base}_{end}" for end in ("min", "mean", "max")]
    if not {*names, *ends, f"{base}_members"} <= {*ds.data_vars}:
        return ds
    enough = ds[f"{base}_members"] >= fewest
    return ds.assign({one: ds[one].where(enough, ds[end]) for one, end in zip(names, ends, strict=True)})


def domain_means(ds: xr.Dataset) -> xr.Dataset:
    """Return the means over all cells (of `members`, the most), weighted by areas, along `region` of one; lazy."""
    areas = areas_of(ds)
    means = means_of(ds, lambda one: one.weighted(areas).mean(areas.dims, keep_attrs=True))
    most = {name: ds[name].max(areas.dims) for name in ds if name == "members"}
    return means.assign(most).expand_dims(region=[_WHOLE])


def selection(counts: xr.DataArray, baseline: str) -> dict[str, list[Any]]:
    """Return what is drawn, by dimension, from the numbers of members (horizon or level, season or month).

    Horizons do not overlap; of seasons and months, only the last horizon or level of most members is drawn.
    """
    along = next(dim for dim in _ALONG if dim in counts.dims)
    most = counts.max([dim for dim in counts.dims if dim != along]).to_series()
    there = [value for value, count in most.items() if count > 0 and value != baseline]
    if part := next((dim for dim in _PARTS if dim in counts.dims), None):
        last = [value for value in there if most[value] == most[there].max()][-1:]
        return {along: last, part: counts[part].values[:: -(-counts.sizes[part] // _MOST_ROWS)].tolist()}
    if along == "warming_level":
        return {along: there[:_MOST_ROWS]}
    apart: list[Any] = []
    for value in reversed(there):
        apart += [value] if not apart or value.split("-")[1] < apart[-1].split("-")[0] else []
    return {along: apart[: _MOST_ROWS - 1][::-1]}


def points(ds: xr.Dataset) -> Iterator[tuple[str, str, xr.Dataset]]:
    """Yield the data of each horizon or level and, if there are any, season or month, with both in words."""
    dims = [dim for dim in (*_ALONG, *_PARTS) if dim in ds.dims]
    for values in itertools.product(*(ds[dim].values.tolist() for dim in dims)):
        first = f"+{values[0]:g} K" if dims[0] == "warming_level" else str(values[0])
        yield first, months_text("".join(values[1:])), ds.sel(dict(zip(dims, values, strict=True)))


@drawing
def change_maps(
    changes: xr.Dataset, names: Sequence[str], *, title: str = "", others: Sequence[xr.Dataset] = (), fewest: int = 1
) -> Figure:
    """Draw maps (y, x) of the low, middle and high change, a row for each of `points`, on a scale around no change.

    Of fewer than `fewest` members, these are the lowest, mean and highest; a single member is drawn once.

    The middle is hatched where it is not robust or without agreement, and crossed where signals conflict. Colours end
    at the 99.5th percentile of absolute changes, those of `others` too.
    """
    from matplotlib.figure import Figure

    base, attrs = names[0].rpartition("_")[0], changes[names[1]].attrs
    # Of the others, only what the scale needs is read.
    ds, *others = (without_percentiles(one, names, fewest) for one in (changes.load(), *others))
    rows, (y, x) = list(points(ds)), horizontal_dims(ds)
    like = rows[0][2][names[1]]
    height = min(max(PANEL_WIDTH / width_by_height(like), 1.2), 2.6)
    across = min(PANEL_WIDTH, height * width_by_height(like))
    width, total = max(3 * across + 1.7, 6.5), len(rows) * (height + 0.12) + 2.2
    figure = Figure(figsize=(width, total))
    grid = figure.subplots(len(rows), 3, squeeze=False)
    edges = {"left": 1.25 / width, "right": 1 - 0.2 / width, "top": 1 - 0.65 / total, "bottom": 1.55 / total}
    figure.subplots_adjust(**edges, wspace=0.05, hspace=0.12 / height)
    lines, scale = map_lines(like), scale_around([one[name] for one in (ds, *others) for name in names], ds[names[1]])
    kind, above = "advanced" if f"{base}_advanced" in ds else "simple", list[str]()
    for at, ((first, part, row), axes) in enumerate(zip(rows, grid, strict=True)):
        count = int(row[f"{base}_members"].max())
        for place in axes[1:] if count == 1 else ():
            place.set_axis_off()
        for place, name in zip(axes, names[1:2] if count == 1 else names, strict=False):
            image = draw_map(place, row[name], lines, scale)
            place.set(**({"yticks": [], "ylabel": ""} if place is not axes[0] else {}))
            place.set(**({"xticks": [], "xlabel": ""} if at < len(rows) - 1 else {"title": ""}))
        if count > 1:
            _hatch(axes[1], row[f"{base}_{kind}"].transpose(y, x))
        told = f"{first}\n{part}\n{counted(count, 'simulation')}".replace("\n\n", "\n")
        words = [_statistic(name) for name in names] if count >= fewest else ["Lowest", "Mean", "Highest"]
        words = ["The simulation", "", ""] if count == 1 else words
        above = above or words
        for place, word in zip(axes, words, strict=True):
            if at == 0:
                place.set_title(word)
            elif word and words != above:  # what stands above the first row is not true of this
                place.text(0.03, 0.95, word, transform=place.transAxes, va="top", fontsize=7, bbox=_INSIDE)
        axes[0].set_ylabel(f"{told}\n\n{axes[0].get_ylabel()}")
    bar = figure.add_axes((0.3, 0.85 / total, 0.45, 0.13 / total))
    figure.colorbar(image, cax=bar, orientation="horizontal", extend="both").set_label(label_of(attrs))
    figure.text(0.02, 0.08 / total, broken(_of_hatches(ds, f"{base}_{kind}"), int(16 * width)), fontsize=7)
    figure.suptitle(broken(title, int(9 * width)), y=1 - 0.05 / total)
    return figure


def _of_hatches(ds: xr.Dataset, name: str) -> str:
    """Say what hatches mean; categories of too few members are NaN or 99."""
    fewest, judged = int(ds.attrs.get(FEWEST_ROBUST, 1)), bool(ds[name].isin((1, 2, 3)).any())
    told = f" Robustness is not judged of fewer than {fewest} simulations." if fewest > 1 else ""
    return f"{_HATCHED[name.rpartition('_')[2]] if judged else ''}{told}".strip()


def _hatch(axes: Any, robust: xr.DataArray) -> None:
    """Hatch whole cells of the categories 2 and 3, or mark stations: a value stands at each edge of its cell."""
    if are_points(robust):
        lat, lon = places_of(robust)
        for category, mark in ((2, "_"), (3, "x")):
            there = robust.values.ravel() == category
            axes.scatter(lon[there], lat[there], marker=mark, s=18, c="black", linewidths=0.7, zorder=4)
        return
    rows, columns = (edges_of(robust[dim].values).repeat(2)[1:-1] for dim in robust.dims)
    marks = robust.values.repeat(2, axis=0).repeat(2, axis=1)
    marks = np.where(np.isin(marks, (2, 3)), marks, 1)
    if (marks > 1).any():
        axes.contourf(columns, rows, marks, [1.5, 2.5, 3.5], hatches=["////", "xxxx"], colors="none")


def _statistic(name: str) -> str:
    last = name.rpartition("_")[2]
    return {"p50": "Median", "mean": "Mean"}.get(last, f"{last[1:]}th percentile")


def label_of(attrs: Mapping[str, Any]) -> str:
    """Return the label of a change's scale, by its attributes: since when it is, and its units."""
    since, is_quotient = attrs.get("delta_reference", "the baseline"), attrs.get("delta_kind") == "rel."
    return f"Quotient by {since}" if is_quotient else f"Change since {since} [{units_text(attrs.get('units', ''))}]"


def scale_around(fields: Sequence[xr.DataArray], change: xr.DataArray) -> dict[str, Any]:
    """Return the scale and colours, around no change, of maps of a change."""
    from matplotlib.colors import LogNorm

    is_quotient = change.attrs.get("delta_kind") == "rel."
    values = np.concatenate([field.values.ravel() for field in fields])
    sizes = abs(np.log(values[values > 0]) if is_quotient else values)
    most = float(np.nanquantile(sizes, 0.995)) if np.isfinite(sizes).any() else 0.0
    colours = {"cmap": display.colours_of_differences(change)}
    if is_quotient:
        return {"norm": LogNorm(np.exp(-max(most, 0.01)), np.exp(max(most, 0.01))), **colours}
    return {"vmin": -(most or 1), "vmax": most or 1, **colours}


@drawing
def plumes(
    series: Mapping[str, xr.Dataset], reference: xr.DataArray | None, *, title: str = "", label: str = ""
) -> Figure:
    """Draw `low`, `median` and `high` (region, time) by experiment over the years, and the reference.

    Thick lines are running means of ten years. Panels are regions, or seasons or months of the first region.
    """
    loaded = {words: ds.load() for words, ds in series.items()}
    like = next(iter(loaded.values()))
    months = sorted(set(like["time"].dt.month.values.tolist()), key=lambda month: month % 12)
    parts = {month: ("JFMAMJJASOND" * 2)[month - 1 :][: 12 // len(months)] for month in months}
    parts = {month: months_text(of) if of[1:] else calendar.month_name[month] for month, of in parts.items()}
    shown = list(itertools.product(like["region"].values.tolist(), months[:: -(-len(months) // _MOST_ROWS)]))
    shown = shown[: _MOST_PANELS if len(months) == 1 else _MOST_ROWS]
    figure, axes = panels_of(len(shown), 2.2)
    for (region, month), place in zip(shown, axes[:, 0], strict=True):
        for at, (experiment, ds) in enumerate(loaded.items()):
            one = drawings.all_years(ds.sel(region=region).isel(time=ds["time"].dt.month.values == month))
            style = {"color": _COLOURS[at % len(_COLOURS)], "linestyle": _LINES[at % len(_LINES)], "linewidth": 1.8}
            place.fill_between(one["year"], one["low"], one["high"], color=style["color"], alpha=0.2, linewidth=0)
            _draw_years(place, one["median"], experiment_text(experiment), style)
        if reference is not None:
            own = reference.sel(region=region).isel(time=reference["time"].dt.month.values == month)
            _draw_years(place, drawings.all_years(own), "reference", REFERENCE)
        words = region if len(months) == 1 else f"{region}, {parts[month]}"
        place.set(title=words, xlabel="Year", ylabel=broken(label, 40))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=len(loaded) + 1)
    figure.suptitle(broken(title, int(9 * figure.get_figwidth())))
    return figure


def _draw_years(axes: Any, values: xr.DataArray, label: str, style: Mapping[str, Any]) -> None:
    """Draw years thin below their running means; the legend names the years where they are too few for means."""
    means = drawings.running_means(values)
    is_long = bool(means.notnull().any())
    axes.plot(values["year"], values, label=None if is_long else label, **{**style, **THIN})
    if is_long:
        axes.plot(values["year"], means, label=label, **style)


def changes_sections(view: RunView) -> tuple[list[Section], dict[str, xr.Dataset]]:
    """Return the page's sections, its figures not yet drawn, and the numbers of its maps by name of file; lazy."""
    reader = Reader()
    shown = list(read_shown(view, reader))
    final = "scenario" if any(one.of.dataset == "scenario" for one in shown) else "simulation"
    raw = {(one.file, one.names): one.means for one in shown if one.of.dataset != final}
    shown = [one for one in shown if one.of.dataset == final]
    mapped = [one for one in shown if one.maps is not None]
    chosen = sorted({one.of.experiment for one in mapped} - {"all"})[-1:] if len(mapped) > MOST_MAPS else []
    mapped = [one for one in mapped if not chosen or one.of.experiment in (*chosen, "all")]
    numbers = {f"{one.file}.nc": one.maps for one in mapped if one.maps is not None}
    numbers = numbers if sum(ds.nbytes for ds in numbers.values()) <= MOST_BYTES else {}
    titles = _titles(shown)
    sections = [Section("All indicators", [*_overview(shown, chosen, titles), *reader.warned(), *_members(shown)])]
    for key, title in titles.items():
        of = [one for one in shown if (one.indicator, one.of.freq) == key]
        blocks: list[Any] = [Text(_kind(of))]
        for one in (one for one in mapped if one in of):
            blocks += _maps(one, [other.maps for other in mapped if other.names == one.names and other in of], numbers)
        blocks += [*_plume([one for one in of if one.of.product == "indicators"], view), *_table(of, raw)]
        sections.append(Section(title, blocks, folded=len(titles) > MOST_OPEN))
    return sections, numbers


def _titles(shown: Sequence[Shown]) -> dict[tuple[str, str], str]:
    """Indicators in words, by name and frequency; the names of those that share their words tell them apart."""
    words = {(one.indicator, one.of.freq): one.words for one in shown}
    return {key: of if [*words.values()].count(of) == 1 else f"{of} ({key[0]})" for key, of in words.items()}


def _kind(of: Sequence[Shown]) -> str:
    attrs = next((one.attrs for one in of if one.of.product != "indicators"), None)
    if attrs is None:
        return "No changes of this indicator are made: there are its values only."
    since = attrs.get("delta_reference")
    words = {"pct.": "in per cent of", "rel.": "quotients by"}.get(str(attrs.get("delta_kind")))
    if words is None:
        return f"Absolute changes: differences from the mean of {since}, in {units_text(attrs.get('units', ''))}."
    return f"Relative changes: {words} the mean of {since}. Cells in which that is nearly 0 have none."


def _maps(one: Shown, others: Sequence[Any], numbers: Mapping[str, Any]) -> list[Any]:
    scenario = f"in {experiment_text(one.of.experiment)}"
    at = "at levels of global warming" if one.of.product == "warming_levels" else scenario
    title = f"{one.words}: changes {at}"
    options = {"title": title, "others": others, "fewest": one.fewest}
    lacking = dict.fromkeys(first for first, _, row in points(one.means) if not row["members"].max() > 0)
    absent = str(one.maps.attrs.get("warming_level_absent", "")) if one.maps is not None else ""
    why = f" Levels that simulations lack: {absent}." if absent else ""
    warned = [Warned(f"No simulation has a value at {', '.join(lacking)}.{why}")] if lacking else []
    name = f"{one.file}.nc"
    told = Text(f"The numbers of these maps are {', '.join(one.names)} of {one.of.ensemble}.")
    link = Link(f"The numbers of these maps, NetCDF: {name}", name) if name in numbers else told
    return [Drawing(one.file, title, change_maps, [one.maps, one.names], options), *warned, link]


def _plume(values: Sequence[Shown], view: RunView) -> list[Any]:
    """The values over the years, if there are any, with the reference's."""
    values = [one for one in values if one.of.experiment != "all"] or values
    if not values:
        return []
    one, reader, reference, is_whole = values[0], Reader(), None, _WHOLE in values[0].means["region"]
    path = view.of_reference.get(one.of.freq)
    if path and (ds := reader.dataset(path, load=False)) is not None and one.indicator in ds:
        ds = on_standard_year(ds[[one.indicator]])
        reference = in_celsius((domain_means(ds) if is_whole else region_means(ds, view.regions))[one.indicator])
    low, middle, high = (_statistic(name).lower() for name in one.names)
    way = "of each cell, mean over all cells" if is_whole else "of the means over each region"
    short_title = f"{one.words}: {middle}, {low} to {high}"
    title = f"{short_title} of the simulations, {way}; thick: running means of ten years"
    title += "; black: the reference" if reference is not None else ""
    series = {each.of.experiment: each.means for each in values}
    units = units_text(one.means["median"].attrs.get("units", ""))
    if rules_of(one.means["median"]).circular:
        units, (_, center, _) = nature_of(one.means["median"]), around_mean(one.means["median"], "time")
        around = {words: ds[[*_STATISTICS[:3]]].map(unwrapped, center=center) for words, ds in series.items()}
        series = {words: ds.assign(around[words]) for words, ds in series.items()}
        reference = None if reference is None else unwrapped(reference, center)
    options = {"title": short_title, "label": f"{one.words} [{units}]"}
    name = f"{one.indicator}+{one.of.freq}+plumes"
    return [Drawing(name, title, plumes, [series, reference], options), *reader.warned()]


def _table(of: Sequence[Shown], raw: Mapping[Any, xr.Dataset]) -> list[Table]:
    """Changes by region, at every horizon and level, with the median before adjustment."""
    rows, changes = list[list[str]](), [one for one in of if one.of.product != "indicators"]
    for one in changes:
        before = raw.get((one.file, one.names), one.means.where(False)).reindex_like(one.means)
        for (first, part, row), (_, _, was) in zip(points(one.means), points(before), strict=True):
            for at, region in enumerate(row["region"].values if first != one.attrs.get("delta_reference") else ()):
                here = row.isel(region=at)
                numbers = [_number(here[name]) for name in _STATISTICS[:3]]
                if int(here["members"]) == 1:
                    numbers = ["–", numbers[1], "–"]
                agree = f"{float(here['agree']):.0%}".replace("nan%", "–")
                if raw:
                    numbers.append(_number(was["median"].isel(region=at)))
                count = str(int(here["members"]))
                rows.append([region, one.of.experiment, f"{first} {part}".strip(), *numbers, agree, count])
    if not rows:
        return []
    columns = [*map(_statistic, changes[0].names), *(["Median, raw"] if raw else []), "Same sign", "Simulations"]
    caption = f"{label_of(changes[0].attrs)}, by region"
    return [Table(["Region", "Experiment", "When", *columns], rows, caption, folded=len(rows) > 24)]


def _number(value: Any) -> str:
    return drawings.number_text(float(value), ",.0f" if abs(value) >= 999.5 else ".3g")


def _overview(shown: Sequence[Shown], chosen: Sequence[str], titles: Mapping[Any, str]) -> Iterator[Any]:
    """Changes of all indicators as far as they are drawn."""
    yield Text(_INTRODUCTION)
    if shown and (few := shown[0].fewest) > 1:
        robust = shown[0].members.get(FEWEST_ROBUST, 1)
        yield Text(
            f"Fewer than {few} simulations have no percentiles: their lowest, mean and highest change is shown. Of "
            f"fewer than {robust}, nothing is said about agreement and robustness."
        )
    if chosen:
        yield Text(f"Maps are of {experiment_text(chosen[0])} only: with others, there would be more than {MOST_MAPS}.")
    rows, columns, place = dict[tuple[str, str], dict[str, str]](), dict[str, None](), ""
    for one in shown:
        of_drawn = one.means.sel(one.drawn) if one.drawn and all(one.drawn.values()) else None
        drawn = [first for first, _, _ in points(of_drawn)] if of_drawn is not None else []
        all_ends = one.means.sel({dim: of for dim, of in one.drawn.items() if dim in _PARTS})
        for first, part, row in points(all_ends) if drawn else ():
            there, most = int(row["members"][0]), int(one.means["members"].max())
            low, middle, high = (_number(row[name][0]) for name in _STATISTICS[:3])
            when = f"{'at' if one.of.product == 'warming_levels' else f'{experiment_text(one.of.experiment)},'} {first}"
            words = titles[one.indicator, one.of.freq]
            label = f"{words}: {part}" if part else words, units_text(one.attrs.get("units", ""))
            fewer = f", {there} of {most} simulations" if there < most else ""
            words = f"{middle} ({low} to {high}){fewer}"
            if there < one.fewest:
                words = f"{middle if there == 1 else f'{low} to {high}'} ({counted(there, 'simulation')})"
            rows.setdefault(label, {})[when] = words if there else "–"
            columns |= {when: None} if first in drawn else {}
            place = str(row["region"].values[0])
    table = [[*label, *(of.get(when, "–") for when in columns)] for label, of in rows.items()]
    way = "each cell's statistics, mean over all cells" if place == _WHOLE else "statistics of the region's means"
    if rows:
        yield Table(["Indicator", "Units", *columns], table, f"Changes: {place} ({way})")


def _members(shown: Sequence[Shown]) -> Iterator[Any]:
    """The simulations of each experiment, and those that are missing."""
    rows, missing = dict[tuple[str, str], list[str]](), dict[str, dict[str, None]]()
    for one in shown:
        of = one.of.product.replace("_", " "), one.of.experiment
        ids = str(one.members.get("ensemble_members", "")).split("; ")
        rows[of] = [*of, str(len(ids)), ", ".join(map(short, ids))]
        for told in filter(None, str(one.members.get("ensemble_missing", "")).split("\n")):
            label, _, rest = told.partition(": ")
            # Names of variables begin with a letter, periods and levels with a digit.
            lacks = dict.fromkeys(re.findall(r" (\d.*?)(?=, [^\W\d]|$)", rest)) if label in ids else {}
            words = f"no value at {' or '.join(lacks)}" if lacks else rest
            missing.setdefault(f"{', '.join(of)}: {words}", {})[short(label)] = None
    lines = [f"• {words}: {', '.join(of)}" for words, of in missing.items()]
    if lines:
        yield Warned("\n".join(["Simulations that are missing, altogether or in part:", *lines]))
    yield Table(["Of", "Experiment", "Number", "Simulations"], list(rows.values()), "Simulations", folded=True)


def write_changes(
    view: RunView, made: tuple[list[Section], dict[str, xr.Dataset]], folder: Path, processes: int = 0
) -> None:
    """Write the page, its figures and numbers into a new folder; so many forked processes draw, or, if 0, this one.

    `made` is what `changes_sections` returns.
    """
    undrawn, numbers = made
    parts = drawings.with_pictures(undrawn, processes)
    folder.mkdir(parents=True)
    for picture in (each for part in parts for each in part.pictures):
        (folder / f"{picture.name}.png").write_bytes(picture.png)
    for name, ds in numbers.items():
        try:
            write_netcdf(statistics_file(ds.load(), name.removesuffix(".nc")), folder / name, Layout({}))
        except Exception as error:  # a damaged chunk raises whatever its codec does
            blocks = [*parts[0].blocks, Warned(f"{name} was not written: {type(error).__name__}: {error}")]
            parts[0] = replace(parts[0], blocks=blocks)
    shown = [[replace(one, linked=True) if isinstance(one, Picture) else one for one in part.blocks] for part in parts]
    linked = [replace(part, blocks=blocks) for part, blocks in zip(parts, shown, strict=True)]
    told = f"Adjusted to {view.reference}. This folder has the figures, and the numbers of the maps."
    (folder / PAGE).write_text(render_page("What changes", told, linked), encoding="utf-8")
