"""The sections of a report about products: each reads its data, and lists the data that it could not read."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.report import distributions, improvement, maps
from espo_luigi.report.drawings import Drawing, labels, long_name, short
from espo_luigi.report.page import Heading, Section, Table, Text, Warned
from espo_luigi.report.reading import Reader
from espo_luigi.report.view import Diagnosed, Made, RunView
from espo_luigi.science.diagnose import diagnosis
from espo_luigi.store.inventory import size_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More figures than these would make the page heavy and slow: then a rule, which is on the page, chooses.
MOST_MAPS = 50
MOST_SERIES = 8
SERIES: Mapping[str, tuple[Callable[..., Figure], str]] = {
    "annual-cycle": (distributions.annual_cycle, "Annual cycle"),
    "quantiles": (distributions.quantile_quantile, "Quantiles against the reference's, below with the tail enlarged"),
    "wet-days": (distributions.wet_days, "Wet days, spells, transitions and the correlation with temperature"),
    "yearly-means": (distributions.yearly_means, "Means of all years"),
}


def lacking(reader: Reader) -> list[Any]:
    """Return a paragraph about what could not be read, if there is anything."""
    if not reader.lacking:
        return []
    shown = [f"• {one}" for one in reader.lacking[:10]]
    more = [f"and {len(reader.lacking) - 10} more"] if len(reader.lacking) > 10 else []
    return [Warned("\n".join([f"{len(reader.lacking)} product(s) are not there:", *shown, *more]))]


def products_table(view: RunView) -> list[Any]:
    """Return how many products of each rule are there, and, folded, each with its size and path."""
    rules: dict[str, list[Made]] = defaultdict(list)
    for made in view.products:
        rules[made.rule].append(made)
    rows, files = [], []
    for rule, of in rules.items():
        sizes = {path: size_bytes(path) or 0 for made in of for path in made.paths}
        there = sum(made.complete for made in of)
        rows.append([rule, str(len(of)), str(there), _size(sum(sizes.values())), _common_folder(list(sizes))])
        files += [
            [made.label, "yes" if made.complete else "no", _size(sizes[path]), str(path)]
            for made in of
            for path in made.paths
        ]
    columns = ["Rule", "Tasks", "Complete", "Size", "Folder"]
    return [
        Table(columns, rows, "Products, by rule"),
        Table(
            ["Task", "Complete", "Size", "Path"], files, f"All {len(files)} products with sizes and paths", folded=True
        ),
    ]


def _common_folder(paths: Sequence[Path]) -> str:
    import os

    return os.path.commonpath([str(path.parent) for path in paths]) if paths else ""


def _size(n_bytes: int) -> str:
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} B"


def provenance_table(view: RunView) -> list[Any]:
    """Return the versions and configurations that the products name, with how many products each has."""
    markers = [store.read_marker(path) for made in view.products for path in made.paths if made.complete]
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for marker in markers:
        if marker is not None:
            found["configuration"][marker.config_hash] += 1
            for name, version in marker.versions.items():
                found[name][version] += 1
    rows = [
        [name, ", ".join(f"{value} ({count} products)" if len(of) > 1 else value for value, count in of.items())]
        for name, of in found.items()
    ]
    several = [name for name, of in found.items() if len(of) > 1]
    blocks: list[Any] = [Table(["What", "Version"], rows, "Versions with which the products were made")]
    if several:
        blocks.append(Warned(f"Products were made with different {', '.join(several)}."))
    return blocks


def improvement_section(view: RunView) -> tuple[Section, dict[tuple[str, str], xr.DataArray]]:
    """Return the section, and the shares of improved cells by domain and simulation."""
    reader, blocks = Reader(), list[Any]()
    shares = {
        (one.domain, one.sim_id): found["improved_grid_points"]
        for one in view.diagnosed
        if (found := reader.dataset(one.improvement)) is not None
    }
    for domain in view.domains:
        of_domain = {sim: one for (at, sim), one in shares.items() if at == domain}
        if of_domain:
            blocks += [Heading(domain), *_improvement_of(domain, of_domain), *_heatmap_of(domain, view, reader)]
    text = (
        "The share of the domain's cells in which the scenario is at least as near to the reference as the raw "
        "simulation is, property by property: 1 where no cell has become worse. It is measured over the period of the "
        "diagnostics, which is the calibration period unless the configuration names a different one: it shows the "
        "fit, and not the skill in other years. The first row is ESPO-G6-R2 v1.0.0 as published: the mean "
        "of 14 models over Magtogoek, SSP3-7.0, calibrated on RDRS v2.1 over 1989-2018, read off "
        "the published heatmap to 0.02; another domain, another reference and other models than here, to compare with "
        "in general terms only."
    )
    return Section("Improvement", [Text(text), *lacking(reader), *blocks]), shares


def _improvement_of(domain: str, shares: Mapping[str, xr.DataArray]) -> list[Any]:
    ordered = improvement.in_published_order(_joined(dict(zip(labels(shares), shares.values(), strict=True))))
    caption = f"{domain}: share of improved cells, by simulation and property"
    return [Drawing(f"improvement+{domain}", caption, improvement.improvement_matrix, [ordered], {"title": domain})]


def _joined(rows: Mapping[str, xr.DataArray]) -> xr.DataArray:
    plain = [one.assign_coords(properties=[str(name) for name in one["properties"].values]) for one in rows.values()]
    return xr.concat(plain, dim=xr.Variable("realization", list(rows)), join="outer")


def _heatmap_of(domain: str, view: RunView, reader: Reader) -> list[Any]:
    names = dict(zip(view.simulations, labels(view.simulations), strict=True))
    paths = {
        f"{names[one.sim_id]}, {kind}": path
        for one in view.diagnosed
        for kind, path in (("raw", one.sim_meas), ("adjusted", one.scen_meas))
        if one.domain == domain and reader.has(path)
    }
    caption = (
        f"{domain}: mean distance of each property from the reference's, rescaled over the rows; 0 is the nearest "
        "dataset, 1 the farthest"
    )
    return [Drawing(f"heatmap+{domain}", caption, draw_heatmap, [paths, domain])] if paths else []


def draw_heatmap(measures: Mapping[str, Path], title: str) -> Figure:
    """Draw the heatmap of stores of measures, by row."""
    opened = {row: store.open_store(path, cut=False) for row, path in measures.items()}
    found = diagnosis.heatmap(opened)["heatmap"].compute()
    return improvement.heatmap_figure(improvement.in_published_order(found), title=title)


def maps_section(view: RunView, shares: Mapping[tuple[str, str], xr.DataArray]) -> Section:
    """Return the section of maps: of every simulation, or, where that is too many, of the least improved simulation."""
    reader, blocks = Reader(), list[Any]()
    names = {str(name) for one in shares.values() for name in one["properties"].values}
    every = len(view.diagnosed) * len(names) <= MOST_MAPS
    for domain in view.domains:
        of_domain = [one for one in view.diagnosed if one.domain == domain]
        wanted = {name: of_domain if every else _least_improved(name, of_domain, shares) for name in sorted(names)}
        needed = dict.fromkeys(one for of in wanted.values() for one in of)
        there = {one for one in needed if all([reader.has(path) for path in _five(one)])}
        pictures = [_maps_of(name, one) for name, of in wanted.items() for one in of if one in there]
        if pictures:
            blocks += [Heading(domain), *pictures]
    rule = (
        "Maps of every simulation."
        if every
        else f"Of {len(view.diagnosed)} pairs of simulation and domain, each property is shown of the simulation in "
        "which the share of improved cells is the lowest in that domain."
    )
    text = (
        f"{rule} Reference, simulation and scenario share a scale, and so do the two measures. Cells without data (the "
        "sea) are grey; a thin grey line goes around those that have some, the black one is the coast (Natural Earth)."
    )
    if not names:
        blocks.append(Warned("No share of improved cells is there, which says what properties there are to map."))
    return Section("Maps", [Text(text), *lacking(reader), *blocks])


def _least_improved(
    name: str, of_domain: Sequence[Diagnosed], shares: Mapping[tuple[str, str], xr.DataArray]
) -> list[Diagnosed]:
    known = {
        one: float(found.sel(properties=name))
        for one in of_domain
        if (found := shares.get((one.domain, one.sim_id))) is not None and name in found["properties"]
    }
    return sorted((one for one in known if not math.isnan(known[one])), key=known.__getitem__)[:1]


def _five(one: Diagnosed) -> tuple[Path, ...]:
    return one.reference, one.sim_prop, one.scen_prop, one.sim_meas, one.scen_meas


def _maps_of(name: str, one: Diagnosed) -> Drawing:
    words = f"{name}, {one.domain}, {short(one.sim_id)}"
    return Drawing(f"map+{name}+{one.domain}+{one.sim_id}", words, draw_maps, [_five(one), name, words])


def draw_maps(stores: Sequence[Path], name: str, words: str) -> Figure:
    """Draw the five maps of a property from the stores of `property_maps`; only that property is read."""
    five = [store.open_store(path, check=False, cut=False)[name].load() for path in stores]
    return maps.property_maps(*five, title=f"{long_name(five[0])} ({words})")


def read_summaries(view: RunView) -> tuple[dict[Diagnosed, xr.Dataset], Reader]:
    """Return the summaries of series that are there."""
    reader = Reader()
    summarised = {one: one.summary for one in view.diagnosed if one.summary is not None}
    found = {one: ds for one, path in summarised.items() if (ds := reader.dataset(path)) is not None}
    return found, reader


def series_section(found: Mapping[Diagnosed, xr.Dataset], reader: Reader, period: Sequence[int]) -> Section:
    """Return the section of series and distributions, by domain, and by simulation if these are few."""
    blocks: list[Any] = []
    for words, key, summaries in groups(found):
        blocks.append(Heading(words))
        for name, (draw, caption) in SERIES.items():
            blocks.append(Drawing(f"{name}+{key}", f"{caption}: {words}", draw, [summaries], {"title": words}))
    cells = sorted({f"{one.domain}: {ds.attrs.get('cells', '?')}" for one, ds in found.items()})
    text = (
        f"Daily series of sample cells ({'; '.join(cells) or 'none'}), over {period[0]}-{period[1]} but for the means "
        "of all years. Quantiles are those of each cell, averaged over the cells; a day of 1 mm or more is wet."
    )
    return Section("Series and distributions", [Text(text), *lacking(reader), *blocks])


def groups(found: Mapping[Diagnosed, xr.Dataset]) -> Iterator[tuple[str, str, distributions.Summaries]]:
    """Yield groups of summaries: a simulation in a domain, or, where that is too many, all of a domain."""
    if len(found) <= MOST_SERIES:
        for one, ds in found.items():
            yield f"{one.domain}, {short(one.sim_id)}", f"{one.domain}+{one.sim_id}", _by_source([ds])
        return
    for domain in dict.fromkeys(one.domain for one in found):
        yield domain, domain, _by_source([ds for one, ds in found.items() if one.domain == domain])


def _by_source(found: Sequence[xr.Dataset]) -> distributions.Summaries:
    kinds = {kind: [ds.sel(source=kind) for ds in found] for kind in ("reference", "raw", "adjusted")}
    return {**kinds, "reference": kinds["reference"][:1]}


def change_section(found: Mapping[Diagnosed, xr.Dataset], reader: Reader, wanted: str) -> Section:
    """Return the section about the climate-change signal before and after the adjustment."""
    blocks: list[Any] = []
    for words, key, summaries in groups(found):
        kinds = {kind: summaries[kind] for kind in ("raw", "adjusted")}
        periods = sorted({str(one.attrs.get("periods", "?")) for one in kinds["raw"]})
        title = f"{words}: change from {'; '.join(periods)}"
        blocks.append(Drawing(f"change+{key}", title, distributions.climate_change_signal, [kinds], {"title": title}))
    others = sorted({str(ds.attrs.get("periods", "?")) for ds in found.values()} - {wanted})
    text = (
        "The change of each quantile of daily values, by season, in the raw simulation and in the scenario. Of "
        "temperature it is a difference; of precipitation it is in per cent of the first period's quantile, and left "
        "out where that is below 0.1 mm d⁻¹. Where the lines lie on each other, the adjustment has kept the signal."
    )
    instead = (
        f"The years do not hold {wanted}: the longest two periods of equal length are compared instead, "
        f"{'; '.join(others)}."
    )
    warned, table = [Warned(instead)] if others else [], [_change_table(found)] if found else []
    return Section("Is the climate-change signal kept?", [Text(text), *warned, *lacking(reader), *table, *blocks])


# Half of the days may be dry, and their change cannot be given in per cent.
_QUANTILE_OF_CHANGE = {"pr": 0.95}


def _change_table(found: Mapping[Diagnosed, xr.Dataset]) -> Table:
    """The change over all seasons, raw and adjusted: of the median, of precipitation of a day with much of it."""
    rows = []
    for one, ds in found.items():
        for name in distributions.VARIABLES:
            if f"{name}_change" in ds:
                quantile = _QUANTILE_OF_CHANGE.get(name, 0.5)
                change = ds[f"{name}_change"].sel(change_quantile=quantile, method="nearest").mean("season")
                raw, adjusted = (float(change.sel(source=kind)) for kind in ("raw", "adjusted"))
                units = str(ds[f"{name}_change"].attrs.get("units", ""))
                numbers = map(_number, (raw, adjusted, adjusted - raw))
                rows.append([one.domain, short(one.sim_id), name, *numbers, units])
    columns = ["Domain", "Simulation", "Variable", "Raw", "Adjusted", "Adjusted − raw", "Units"]
    caption = "Change of the median (of precipitation: of the quantile 0.95), mean of the four seasons"
    return Table(columns, rows, caption, folded=len(rows) > 24)


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−") if np.isfinite(value) else "–"
