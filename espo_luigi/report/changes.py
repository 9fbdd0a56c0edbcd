"""The page "What changes": indicators over simulations, as maps, plumes and tables, with the numbers of maps.

The page, its figures and the numbers of its maps are in a folder of their own beside the report.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi.report.drawings import (
    DIVERGING,
    Drawing,
    broken,
    drawing,
    panels_of,
    short,
    units_text,
    with_pictures,
)
from espo_luigi.report.html import Link, Picture, Section, Table, Text, Warned, render_page
from espo_luigi.report.maps import PANEL_WIDTH, coast_lines, draw_map, edges_of, width_by_height
from espo_luigi.report.reading import Reader, RunView, Together
from espo_luigi.science.conservative import cells_of
from espo_luigi.science.outcomes.regions import region_means
from espo_luigi.science.regrid import horizontal_of
from espo_luigi.science.stack import horizontal_dims
from espo_luigi.store.write import prepared

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "index.html"
# With more maps, those of a single experiment are drawn; with more indicators, each one's figures are folded; numbers
# of more bytes stay in the stores.
MOST_MAPS, MOST_OPEN, MOST_BYTES = 150, 8, 200_000_000
_MOST_ROWS, _MOST_PANELS = 4, 6
CHANGES = ("delta", "warming_levels")
_ALONG, _PARTS = ("horizon", "warming_level"), ("season", "month")
_WHOLE = "whole domain"
_EACH = {"Y": "yearly", "Q": "by season", "M": "by month"}
# After Okabe and Ito (2008), with lines that differ in grey, too.
_EXPERIMENTS = (
    ("#0072B2", "--"), ("#D55E00", "-"), ("#009E73", "-."), ("#CC79A7", ":"), ("#E69F00", "--"), ("#56B4E9", "-."),
)  # fmt: skip
_OF_WATER = re.compile("precipitation|rainfall|snow")
_HATCHED = {
    "advanced": "Hatched: the change is not robust (most simulations have none beyond their variability). Crossed: it "
    "is, but they disagree about the sign.",
    "simple": "Hatched: under 80 % of the simulations agree about the sign.",
}


_INTRODUCTION = (
    "Changes are those of each simulation since its own baseline; percentiles and the median are over the simulations, "
    "cell by cell. Maps share a scale around no change; grey cells have no data. Ranges are from the lowest to the "
    "highest percentile, and no bounds of what is possible."
)


@dataclass(frozen=True, eq=False)
class Shown:
    """An indicator's values or changes over the simulations of an experiment: `names` of the low, middle and high."""

    of: Together
    base: str
    names: tuple[str, str, str]
    maps: xr.Dataset | None
    regions: xr.Dataset | None

    @property
    def source(self) -> xr.Dataset:
        """Means over regions, or else maps."""
        found = self.maps if self.regions is None else self.regions
        assert found is not None
        return found

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The attributes of the middle."""
        return self.source[self.names[1]].attrs

    @property
    def indicator(self) -> tuple[str, str]:
        """Its name and frequency."""
        return self.base.partition("_clim_")[0], self.of.freq

    @functools.cached_property
    def means(self) -> xr.Dataset:
        """`low`, `median`, `high`, `agree` and `members` (region, ...), over the whole domain without regions; lazy."""
        wanted = dict(zip(("low", "median", "high"), self.names, strict=True))
        wanted |= {name: f"{self.base}_{name}" for name in ("agree", "members")}
        ds = xr.Dataset({name: self.source[of] for name, of in wanted.items() if of in self.source})
        return domain_means(ds) if self.regions is None else ds

    @functools.cached_property
    def drawn(self) -> dict[str, list[Any]]:
        """What is drawn of changes, by dimension: see `selection`; empty for values, and without any change."""
        source = self.source if self.maps is None else self.maps
        counts = source[f"{self.base}_members"] if self.of.product in CHANGES else None
        if counts is None:
            return {}
        most = counts.max([dim for dim in counts.dims if dim not in (*_ALONG, *_PARTS)]).compute()
        chosen = selection(most, str(self.attrs.get("delta_reference")))
        return chosen if all(chosen.values()) else {}

    @property
    def numbers(self) -> xr.Dataset:
        """The statistics of its maps as far as they are drawn; lazy."""
        assert self.maps is not None
        endings = ("agree", "members", "simple", "advanced")
        names = [*self.names, *(name for end in endings if (name := f"{self.base}_{end}") in self.maps)]
        return self.maps[names].sel(self.drawn)

    @property
    def experiment(self) -> str:
        """The experiment in words."""
        return "all experiments" if self.of.experiment == "all" else self.of.experiment

    @property
    def file(self) -> str:
        """The name of its figure and numbers, without ending."""
        return "+".join((self.indicator[0], self.of.freq, self.of.product, self.of.experiment))


def read_shown(view: RunView, reader: Reader) -> list[Shown]:
    """Return all that is made; lazy, but for regions."""
    found = []
    for one in view.ensembles:
        maps = reader.dataset(one.ensemble, load=False) if one.ensemble else None
        regions = _read_regions(one.regions, reader) if one.regions else None
        source, percentiles = maps if regions is None else regions, dict[str, list[int]]()
        for name in source.data_vars if source is not None else ():
            if (
                source is not None
                and (matched := re.fullmatch(r"(.+)_p(\d+)", str(name)))
                and f"{matched[1]}_members" in source
            ):
                percentiles.setdefault(matched[1], []).append(int(matched[2]))
        for base, of in percentiles.items():
            middle = "p50" if 50 in of else "mean"
            names = f"{base}_p{min(of)}", f"{base}_{middle}", f"{base}_p{max(of)}"
            found.append(Shown(one, base, names, maps, regions))
    return found


def _read_regions(table: Path, reader: Reader) -> xr.Dataset | None:
    if not reader.has(table):
        return None
    try:
        with xr.open_dataset(table.with_suffix(".nc"), engine="h5netcdf") as ds:
            return ds.drop_dims("realization", errors="ignore").load()
    except (OSError, ValueError) as error:
        reader.lacking.append(f"{table.with_suffix('.nc')}: {error}")
        return None


def domain_means(ds: xr.Dataset) -> xr.Dataset:
    """Return means over all cells with a value, weighted by their areas, along a new dimension `region` of one; lazy.

    `members` is the most of any cell.
    """
    horizontal = horizontal_of(ds, "grid")
    areas = cells_of(horizontal.grid).areas().reshape(horizontal.grid.shape)
    of_cells = xr.DataArray(np.nan_to_num(areas), dims=horizontal.dims)
    means = ds.weighted(of_cells).mean(horizontal.dims, keep_attrs=True)
    if "members" in ds:
        means["members"] = ds["members"].max(horizontal.dims)
    return means.expand_dims(region=[_WHOLE])


def selection(counts: xr.DataArray, baseline: str) -> dict[str, list[Any]]:
    """Return what is drawn of changes, by dimension, from the number of members (horizon or level, season or month).

    Horizons do not overlap each other; of seasons and months, only one horizon or level is drawn.
    """
    along = next(dim for dim in _ALONG if dim in counts.dims)
    most = counts.max([dim for dim in counts.dims if dim != along])
    there = [value for value in most[along].values.tolist() if most.sel({along: value}) > 0 and value != baseline]
    if part := next((dim for dim in _PARTS if dim in counts.dims), None):
        full = [value for value in there if most.sel({along: value}) == max(most.sel({along: there}).values)]
        parts = counts[part].values.tolist()
        return {along: full[-1:], part: parts[:: -(-len(parts) // _MOST_ROWS)]}
    if along == "warming_level":
        return {along: there[:_MOST_ROWS]}
    apart: list[str] = []
    for value in reversed(there):
        if not apart or value.split("-")[1] < apart[-1].split("-")[0]:
            apart.append(value)
    return {along: apart[: _MOST_ROWS - 1][::-1]}


def points(ds: xr.Dataset) -> Iterator[tuple[str, str, xr.Dataset]]:
    """Yield each horizon or level, and season or month if there are any, in words, with the data."""
    dims = [dim for dim in (*_ALONG, *_PARTS) if dim in ds.dims]
    for values in itertools.product(*(ds[dim].values.tolist() for dim in dims)):
        first = f"+{values[0]:g} K" if dims[0] == "warming_level" else str(values[0])
        yield first, " ".join(map(str, values[1:])), ds.sel(dict(zip(dims, values, strict=True)))


def unsure(changes: xr.Dataset, base: str) -> xr.DataArray:
    """Return where a change is hatched (1: not robust, or without agreement) or crossed (2: conflicting), else 0."""
    if f"{base}_advanced" in changes:
        robust = changes[f"{base}_advanced"]
        return (robust == 2) * 1 + (robust == 3) * 2
    return (changes[f"{base}_simple"] == 2) * 1


@drawing
def change_maps(
    changes: xr.Dataset, base: str, names: Sequence[str], *, title: str = "", others: Sequence[xr.Dataset] = ()
) -> Figure:
    """Draw maps (y, x) of the low, middle and high change, one row for each of `points`, on a scale around no change.

    The middle is hatched by `unsure`. Colours end at the 99.5th percentile of absolute changes, those of `others` too.
    """
    from matplotlib.figure import Figure

    ds = changes.load()
    rows, attrs = list(points(ds)), ds[names[1]].attrs
    y, x = horizontal_dims(ds)
    like = ds[names[1]].isel({dim: 0 for dim in ds[names[1]].dims if dim not in (y, x)}, drop=True)
    height = min(max(PANEL_WIDTH / width_by_height(like), 1.2), 2.6)
    width, total = 3 * PANEL_WIDTH + 1.6, len(rows) * (height + 0.12) + 2.0
    figure = Figure(figsize=(width, total))
    grid = figure.subplots(len(rows), 3, squeeze=False)
    edges = {"left": 1.25 / width, "right": 1 - 0.2 / width, "top": 1 - 0.65 / total, "bottom": 1.35 / total}
    figure.subplots_adjust(**edges, wspace=0.05, hspace=0.12 / height)
    coast, scale = coast_lines(like), _scale([one[name] for one in (ds, *others) for name in names], attrs)
    for at, ((first, part, row), axes) in enumerate(zip(rows, grid, strict=True)):
        for place, name in zip(axes, names, strict=True):
            image = draw_map(place, row[name], coast, scale)
            if place is not axes[0]:
                place.set(yticks=[], ylabel="")
            if at < len(rows) - 1:
                place.set(xticks=[], xlabel="")
        _hatch(axes[1], unsure(row, base), row)
        told = f"{' '.join(filter(None, (first, part)))}\n{int(row[f'{base}_members'].max())} simulation(s)"
        axes[0].set_ylabel(f"{told}\n\n{axes[0].get_ylabel()}")
    for place, name in zip(grid[0], names, strict=True):
        place.set_title(_statistic(name))
    bar = figure.colorbar(
        image, cax=figure.add_axes((0.3, 0.62 / total, 0.45, 0.13 / total)), orientation="horizontal", extend="both"
    )
    bar.set_label(_label(attrs))
    kind = "advanced" if f"{base}_advanced" in ds else "simple"
    figure.text(0.02, 0.08 / total, _HATCHED[kind], fontsize=7.5)
    figure.suptitle(broken(title, int(9 * width)), y=1 - 0.05 / total)
    return figure


def _statistic(name: str) -> str:
    last = name.rpartition("_")[2]
    return {"p50": "Median", "mean": "Mean"}.get(last, f"{last[1:]}th percentile")


def _label(attrs: Mapping[str, Any]) -> str:
    since, units = attrs.get("delta_reference", "the baseline"), units_text(attrs.get("units", ""))
    return f"Quotient by {since}: 1 is no change" if _is_quotient(attrs) else f"Change since {since} [{units}]"


def _is_quotient(attrs: Mapping[str, Any]) -> bool:
    return bool(attrs.get("delta_kind") == "rel.")


def _scale(fields: Sequence[xr.DataArray], attrs: Mapping[str, Any]) -> dict[str, Any]:
    from matplotlib.colors import LogNorm

    values = np.concatenate([field.values.ravel() for field in fields])
    values = values[np.isfinite(values)]
    is_water = _OF_WATER.search(f"{attrs.get('standard_name')} {attrs.get('long_name')}".lower())
    colours = "BrBG" if is_water else DIVERGING
    if _is_quotient(attrs):
        most = max(
            float(np.exp(np.quantile(abs(np.log(values[values > 0])), 0.995))) if (values > 0).any() else 1, 1.01
        )
        return {"norm": LogNorm(1 / most, most), "cmap": colours}
    most = (float(np.quantile(abs(values), 0.995)) if values.size else 0) or 1.0
    return {"vmin": -most, "vmax": most, "cmap": colours}


def _hatch(axes: Any, marks: xr.DataArray, ds: xr.Dataset) -> None:
    """Hatch whole cells: between their edges, values are constant."""
    y, x = horizontal_dims(ds)
    values = marks.transpose(y, x).values.repeat(2, axis=0).repeat(2, axis=1)
    columns, rows = (edges_of(ds[dim].values).repeat(2)[1:-1] for dim in (x, y))
    if values.any():
        axes.contourf(columns, rows, values, levels=[0.5, 1.5, 2.5], hatches=["////", "xxxx"], colors="none")


@drawing
def plumes(
    series: Mapping[str, xr.Dataset], reference: xr.DataArray | None, *, title: str = "", label: str = ""
) -> Figure:
    """Draw `low`, `median` and `high` (region, time) of each experiment over the years, and the reference.

    Panels are regions; of seasons and months, those of the first region.
    """
    loaded = {words: ds.load() for words, ds in series.items()}
    known = None if reference is None else reference.load()
    shown = _panels(next(iter(loaded.values())))
    figure, axes = panels_of(len(shown), 2.2)
    for (words, region, month), place in zip(shown, axes[:, 0], strict=True):
        for (experiment, ds), (colour, line) in zip(loaded.items(), itertools.cycle(_EXPERIMENTS), strict=False):
            one = ds.sel(region=region).isel(time=ds["time"].dt.month.values == month)
            years = one["time"].dt.year.values
            place.fill_between(years, one["low"], one["high"], color=colour, alpha=0.2, linewidth=0)
            place.plot(years, one["median"], color=colour, linestyle=line, label=experiment, linewidth=1.2)
        if known is not None:
            own = known.sel(region=region).isel(time=known["time"].dt.month.values == month)
            place.plot(own["time"].dt.year.values, own, color="black", linewidth=1.4, label="reference", zorder=3)
        place.set(title=words, xlabel="Year", ylabel=broken(label, 40))
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=len(loaded) + 1)
    figure.suptitle(broken(title, int(9 * figure.get_figwidth())))
    return figure


def _panels(ds: xr.Dataset) -> list[tuple[str, str, int]]:
    """The regions of yearly series, or the seasons or months of the first one: words, region, first month."""
    months = sorted(set(ds["time"].dt.month.values.tolist()), key=lambda month: month % 12)
    regions = ds["region"].values.tolist()
    if len(months) == 1:
        return [(region, region, months[0]) for region in regions[:_MOST_PANELS]]
    length = 12 // len(months)
    words = {month: ("JFMAMJJASOND" * 2)[month - 1 :][:length] if length > 1 else f"month {month}" for month in months}
    return [(f"{regions[0]}, {words[month]}", regions[0], month) for month in months[:: 3 // length]]


def changes_sections(view: RunView) -> tuple[list[Section], dict[str, xr.Dataset]]:
    """Return the page's sections, its figures not yet drawn, and the numbers of its maps by name of file; lazy."""
    reader = Reader()
    shown = read_shown(view, reader)
    final = "scenario" if any(one.of.dataset == "scenario" for one in shown) else "simulation"
    own = [one for one in shown if one.of.dataset == final]
    raw = {(one.base, one.of.freq, one.of.product, one.of.experiment): one for one in shown if one.of.dataset != final}
    mapped = [one for one in own if one.maps is not None and one.drawn]
    chosen = sorted({one.of.experiment for one in mapped} - {"all"})[-1:] if len(mapped) > MOST_MAPS else []
    mapped = [one for one in mapped if not chosen or one.of.experiment in (*chosen, "all")]
    numbers = {f"{one.file}.nc": one.numbers for one in mapped}
    are_given = sum(ds.nbytes for ds in numbers.values()) <= MOST_BYTES
    indicators = list(dict.fromkeys(one.indicator for one in own))
    sections = [_first_section(own, reader, chosen)]
    for indicator in indicators:
        of = [one for one in own if one.indicator == indicator]
        blocks: list[Any] = [Text(_kind(of))]
        of_maps = [one for one in of if one in mapped]
        for one in of_maps:
            blocks += _maps_of(one, [other for other in of_maps if other.base == one.base], are_given)
        blocks += [*_plume(of, view, reader), *_table(of, raw)]
        sections.append(Section(_name(of[0]), blocks, folded=len(indicators) > MOST_OPEN))
    return sections, numbers if are_given else {}


def _name(one: Shown) -> str:
    """The indicator in words; names of changes tell of the window and the baseline, too."""
    words = re.sub(
        r"^\d+-year climatological \w+ of |: \w+\. delta compared to .*$", "", one.attrs.get("long_name", "")
    )
    name, freq = one.indicator
    usual = "" if freq in ("YS-JAN", "QS-DEC", "MS") else f", {freq}"
    return f"{words or name} ({name}, {_EACH.get(freq[0], freq)}{usual})"


def _kind(of: Sequence[Shown]) -> str:
    changes = [one for one in of if one.of.product in CHANGES]
    if not changes:
        return "No changes of this indicator are made: there are its values only."
    attrs = changes[0].attrs
    since, units = attrs.get("delta_reference"), units_text(attrs.get("units", ""))
    return {
        "pct.": f"Relative changes, in per cent of the mean of {since}. Cells in which that is nearly 0 have none.",
        "rel.": f"Relative changes: quotients by the mean of {since}. Cells in which that is nearly 0 have none.",
    }.get(str(attrs.get("delta_kind")), f"Absolute changes: differences from the mean of {since}, in {units}.")


def _maps_of(one: Shown, others: Sequence[Shown], are_given: bool) -> list[Any]:
    at = "at levels of global warming" if one.of.product == "warming_levels" else f"in {one.experiment}"
    title = f"{one.indicator[0]}: changes {at}, over simulations"
    lacking = dict.fromkeys(first for first, _, row in points(one.means.load()) if not row["members"].max() > 0)
    options = {"title": title, "others": [other.numbers for other in others]}
    blocks: list[Any] = [Drawing(one.file, title, change_maps, [one.numbers, one.base, one.names], options)]
    if lacking:
        blocks.append(Warned(f"No simulation has a value at {', '.join(lacking)}."))
    if are_given:
        return [*blocks, Link(f"The numbers of these maps, NetCDF: {one.file}.nc", f"{one.file}.nc")]
    return [*blocks, Text(f"The numbers of these maps are {', '.join(one.names)} of {one.of.ensemble}.")]


def _plume(of: Sequence[Shown], view: RunView, reader: Reader) -> list[Any]:
    """The values over the years, if there are any, with the reference's."""
    values = [one for one in of if one.of.product == "indicators"]
    if not values:
        return []
    (name, freq), reference = values[0].indicator, None
    found = reader.dataset(view.of_reference[freq], load=False) if freq in view.of_reference else None
    if found is not None and name in found:
        is_of_regions = values[0].regions is not None
        reference = (region_means(found[[name]], view.regions) if is_of_regions else domain_means(found[[name]]))[name]
    low, _, high = map(_statistic, values[0].names)
    way = "of the means over each region" if values[0].regions is not None else "of each cell, mean over all cells"
    title = f"{name}: median, {low} to {high} of the simulations, {way}; black: the reference"
    attrs = values[0].attrs
    options = {"title": title, "label": f"{name} [{units_text(attrs.get('units', ''))}]"}
    series = {one.experiment: one.means for one in values}
    return [Drawing(f"{name}+{freq}+plumes", title, plumes, [series, reference], options)]


def _table(of: Sequence[Shown], raw: Mapping[Any, Shown]) -> list[Table]:
    """Changes by region, at every horizon and level; with the raw simulations' median, if that is known."""
    changes = [one for one in of if one.of.product in CHANGES]
    rows, parts, befores = [], set(), set()
    for one in changes:
        before = raw.get((one.base, one.of.freq, one.of.product, one.of.experiment))
        known = dict(((first, part), row) for first, part, row in points(before.means.load())) if before else {}
        for first, part, row in points(one.means.load()):
            for region in row["region"].values if first != one.attrs.get("delta_reference") else ():
                here = row.sel(region=region)
                other = known[first, part].sel(region=region)["median"] if (first, part) in known else None
                parts.add(part)
                befores.add(before is not None)
                numbers = [_number(here[name]) for name in ("low", "median", "high")]
                was = "–" if other is None else _number(other)
                agree = f"{float(here['agree']):.0%}" if "agree" in here and here["agree"].notnull() else "–"
                rows.append([region, one.experiment, first, part, *numbers, was, agree, str(int(here["members"]))])
    if not rows:
        return []
    low, _, high = map(_statistic, changes[0].names)
    columns = ["Region", "Experiment", "When", "Season", low, "Median", high, "Median, raw", "Same sign", "Simulations"]
    idle = [at for at, is_used in ((3, any(parts)), (7, any(befores))) if not is_used]
    kept = [at for at in range(len(columns)) if at not in idle]
    table = [[row[at] for at in kept] for row in rows]
    caption = f"{_label(changes[0].attrs)}, by region"
    return [Table([columns[at] for at in kept], table, caption, folded=len(rows) > 24)]


def _number(value: Any) -> str:
    number = float(value)
    return f"{number:.3g}".replace("-", "−") if np.isfinite(number) else "–"


def _first_section(own: Sequence[Shown], reader: Reader, chosen: Sequence[str]) -> Section:
    """The simulations, those that are missing, and the changes of all indicators at the last horizon and each level."""
    changes = [one for one in own if one.drawn]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for one in changes:
        for first, part, row in points(one.means.sel(one.drawn).load()):
            here = row.isel(region=0)
            when = f"at {first}" if one.of.product == "warming_levels" else f"{one.experiment}, {first}"
            low, middle, high = (_number(here[name]) for name in ("low", "median", "high"))
            label = f"{one.indicator[0]} {part}".strip(), units_text(one.attrs.get("units", ""))
            rows.setdefault(label, {})[when] = f"{middle} ({low} to {high})"
    columns = list(dict.fromkeys(when for of in rows.values() for when in of))
    table = [[*label, *(of.get(when, "–") for when in columns)] for label, of in rows.items()]
    place = str(changes[0].means["region"].values[0]) if changes else ""
    way = (
        "each cell's median and percentiles, mean over all cells" if place == _WHOLE else "of the means over the region"
    )
    blocks: list[Any] = [
        Text(_INTRODUCTION),
        *([Text(f"Maps are of {chosen[0]} only: with the others there would be over {MOST_MAPS}.")] if chosen else []),
        *reader.warned(),
        *_members(own),
        *([Table(["Indicator", "Units", *columns], table, f"Changes: {place} ({way})")] if rows else []),
    ]
    return Section("All indicators", blocks)


def _members(own: Sequence[Shown]) -> list[Any]:
    """The simulations of each experiment, and those that are missing."""
    rows, missing = dict[tuple[str, str], list[str]](), dict[str, None]()
    for one in own:
        attrs, of = one.source.attrs, (one.of.product.replace("_", " "), one.experiment)
        ids = str(attrs.get("ensemble_members", "")).split("; ")
        rows[of] = [*of, str(len(ids)), ", ".join(map(short, ids))]
        missing |= dict.fromkeys(f"• {', '.join(of)}: {told}" for told in missing_members(attrs))
    found = [Warned("\n".join(["Simulations that are missing, altogether or in part:", *missing]))] if missing else []
    return [
        *found,
        Table(["Of", "Experiment", "Number", "Simulations"], list(rows.values()), "Simulations", folded=True),
    ]


def missing_members(attrs: Mapping[str, Any]) -> list[str]:
    """Return a line for each missing simulation, or for those that lack the same; what all variables lack is one."""
    ids, lines, alike = str(attrs.get("ensemble_members", "")).split("; "), list[str](), dict[str, list[str]]()
    for told in filter(None, str(attrs.get("ensemble_missing", "")).split("; ")):
        label, _, rest = told.partition(": ")
        # Names of variables begin with a letter, periods and levels with a digit.
        lacks = dict(re.findall(r"([^\W\d]\w*) (\d.*?)(?=, [^\W\d]|$)", rest)) if label in ids else {}
        same = set(lacks.values())
        if len(same) == 1:
            alike.setdefault(same.pop(), []).append(short(label))
        else:
            lines.append(told)
    return [*lines, *(f"no value at {lacks}: {', '.join(of)}" for lacks, of in alike.items())]


def write_changes(view: RunView, folder: Path, processes: int = 0) -> None:
    """Write the page, its figures and numbers into a new folder; so many forked processes draw, or, if 0, this one."""
    undrawn, numbers = changes_sections(view)
    parts = with_pictures(undrawn, processes)
    folder.mkdir(parents=True)
    for picture in (shown for part in parts for shown in part.pictures):
        (folder / f"{picture.name}.png").write_bytes(picture.png)
    for name, ds in numbers.items():
        packed = {one: {"zlib": True, "complevel": 4} for one in ds.data_vars}
        prepared(ds.load()).to_netcdf(folder / name, engine="h5netcdf", encoding=packed)
    linked = [replace(part, blocks=[_linked(block) for block in part.blocks]) for part in parts]
    introduction = f"{view.reference}, {len(view.simulations)} simulation(s). This folder has the figures and numbers."
    page = render_page(f"What changes: {len(parts) - 1} indicator(s)", introduction, linked)
    (folder / PAGE).write_text(page, encoding="utf-8")


def _linked(block: object) -> object:
    return replace(block, linked=True) if isinstance(block, Picture) else block
