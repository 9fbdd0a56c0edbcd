"""Making the explorer: its page, and the folder of its data beside it."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import as_file, files
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any
from urllib.parse import quote

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.explorer.packing import BYTES_OF_NUMBER, as_base64, as_script, packed
from espo_luigi.explorer.sources import REFERENCE, ExplorerView, Field, Source, together
from espo_luigi.export.netcdf import Layout, statistics_file, write_netcdf
from espo_luigi.files import sha256_of, write_new
from espo_luigi.replacing import by_manifest, check_ours, noted_beside, write_manifest
from espo_luigi.report.drawings import SEQUENTIAL, labels, short
from espo_luigi.report.first_screen import MUCH
from espo_luigi.report.maps import LINES, edges_of, line_pieces
from espo_luigi.science import display
from espo_luigi.science.geometry.boxes import Box
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.limits import RANKS
from espo_luigi.science.outcomes.climatology import HORIZON, LEVEL
from espo_luigi.science.outcomes.natures import means_of, rules_of
from espo_luigi.science.outcomes.regions import Point
from espo_luigi.science.quality import COUNTED, rank_of
from espo_luigi.science.sphere import cell_corners, unit_vectors
from espo_luigi.science.stations import IDS, NAMES, are_points
from espo_luigi.store.disk import disk_errors
from espo_luigi.store.marker import marked
from espo_luigi.store.publish import written_aside
from espo_luigi.store.table import page_text

logger = logging.getLogger(__name__)

MOST_CELLS, MOST_NUMBER_BYTES = 50_000, 200_000_000
"""Cells beyond which maps are coarsened, and the bytes of maps beyond which there are no NetCDF files."""
MOST_PLUME_BYTES, MOST_TILE_BYTES, MOST_REGION_BYTES = 300_000_000, 200_000, 2_000_000
"""Of the plumes of all cells, of a tile of these, and of all regions of an indicator."""
_BLOCK_BYTES = 2**27
_MAKER = "espo explorer"
_KINDS = {"rel.": "quotient", "pct.": "per cent"}


def write_explorer(view: ExplorerView, out: Path, marker: store.Marker | None = None) -> None:
    """Write the page `out`, and the folder of its name without ending: script, style, data, and NetCDF files.

    Raises
    ------
    StoreError
        If anything there is no explorer's, or has changed since, or the disk refuses.
    """
    check_replaceable(out)
    folder, app = out.with_suffix(""), files("espo_luigi.explorer") / "app"
    with as_file(app) as source, written_aside(folder, judge=by_manifest(_MAKER)) as partial:
        copytree(source, partial / "app", ignore=ignore_patterns("explore.html"))
        text = files("espo_luigi.explorer").joinpath("app/explore.html").read_text(encoding="utf-8")
        page = page_text(text, marker)
        _Writer(view, partial, folder.name).write()
        write_manifest(partial, _MAKER, {out.name: [sha256(page.encode()).hexdigest()]})
    with written_aside(out) as partial:
        write_new(partial, page)
    size = sum(path.stat().st_size for path in folder.rglob("*"))
    logger.info("The explorer is %s (%.1f MB with its folder)", out, size / 1e6)


def check_replaceable(out: Path) -> None:
    """Raise `StoreError` if page or folder would replace what is not ours."""
    with disk_errors(out, "write"):
        check_ours(out.with_suffix(""), by_manifest(_MAKER))
        check_ours(out, marked(out))


def is_whole(out: Path) -> bool:
    """Return whether the folder beside a page is that with which it was made."""
    return out.is_file() and (noted_beside(out.with_suffix(""), out.name) or [""])[0] == sha256_of(out)


def what_fits(cells: int, shapes: Sequence[tuple[int, Sequence[Source]]]) -> str:
    """Return what plumes of all cells may have: members, statistics, or "", nothing.

    `shapes` are each indicator's times and sources.
    """
    sizes = {of: sum(_cell_bytes(*shape, of) for shape in shapes) for of in ("members", "statistics")}
    return next((what for what, size in sizes.items() if cells * size <= MOST_PLUME_BYTES), "")


def _cell_bytes(times: int, sources: Sequence[Source], what: str) -> float:
    """The bytes of a cell's plume: of each ensemble the statistics and the members, of others the series."""
    arrays = (3 + len(one.members) * (what == "members") if one.ensemble else 1 for one in sources)
    return times * sum(arrays) * BYTES_OF_NUMBER + 20


class _Writer:
    """Writes all data into a new folder."""

    def __init__(self, view: ExplorerView, folder: Path, name: str) -> None:
        self.view, self.folder, self.name = view, folder, name
        grids = [one.opened() for one in view.sources]
        self.y, self.x = horizontal_dims(grids[0])
        # A regional simulation's products are a part of the grid.
        largest = max(grids, key=lambda ds: ds.sizes[self.y] * ds.sizes[self.x])
        self.lat, self.lon = largest["lat"], largest["lon"]
        self.at = {dim: largest[dim].values for dim in (self.y, self.x)}
        shape = tuple(map(len, self.at.values()))
        self.stations = _stations(largest) if are_points(largest) else []
        self.several = 1 if self.stations else math.ceil((math.prod(shape) / MOST_CELLS) ** 0.5)
        self.land = xr.DataArray(np.zeros(shape, bool), self.at, (self.y, self.x))
        self.indicators: dict[str, dict[str, Any]] = {}

    def write(self) -> None:
        """Write maps, plumes, lines, flags, and the index."""
        maps, plumes, flags = list(self.maps()), dict(self.plumes()), self.flags()
        for each in maps:
            ends = [one["limits"] for one in maps if (one["indicator"], one["of"]) == (each["indicator"], each["of"])]
            each["limits"] = [min(low for low, _ in ends), max(high for _, high in ends)]
        scenarios = {_id(one): _scenario(one) for one in self.view.sources if one.scenario != REFERENCE}
        named = [(name, one, {"id": name, "name": name}) for name, one in self.view.regions.items()]
        points = [told | {"lon": at.lon, "lat": at.lat} for _, at, told in named if isinstance(at, Point)]
        index = {
            "format": 1,
            **{key: getattr(self.view, key) or None for key in ("title", "domain", "reference")},
            "grid": None if self.stations else self.cells(),
            # A temperature, which most people look for, is shown first.
            "indicators": sorted(self.indicators.values(), key=lambda one: not one["units"].startswith("°C")),
            "scenarios": list(scenarios.values()),
            "maps": maps,
            "plumes": plumes,
            "regions": [told | {"lines": _outline(one)} for _, one, told in named if not isinstance(one, Point)],
            "stations": self.stations or points,  # maps of stations have values of each
            "flags": flags,
        }
        self.script("lines", self.lines())
        self.script("index", index)

    def script(self, key: str, value: Any) -> int:
        """Write a data file; return its bytes."""
        path = self.folder / "data" / f"{key}.js"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.write_bytes(as_script(key, value).encode())

    def coarse(self, ds: xr.Dataset, how: str = "mean") -> xr.Dataset:
        """Return data on the grid of the maps: means of several rows and columns, or the greatest values."""
        if self.several == 1:
            return ds
        cut = functools.partial(xr.Dataset.coarsen, dim=dict.fromkeys(self.at, self.several), boundary="pad")
        return means_of(ds, lambda one: cut(one).mean()) if how == "mean" else cut(ds).max()

    def maps(self) -> Iterator[dict[str, Any]]:
        """Write a file for each indicator, scenario, and of changes or values; yield the index's entries."""
        fields = [(one, of) for one in self.view.sources if one.product != "indicators" for of in one.fields()]
        are_few = sum(of.ds.nbytes for _, of in fields) <= MOST_NUMBER_BYTES
        for number, (source, field) in enumerate(fields):
            ds = field.ds.reset_coords(drop=True).load().map(display.in_celsius, keep_attrs=True)
            first = ds[next(iter(field.statistics.values()))]
            along = next(str(dim) for dim in first.dims if dim in (HORIZON, LEVEL))
            part = next((str(dim) for dim in first.dims if dim in ("season", "month")), None)
            dims, since = (along, *([part] if part else []), self.y, self.x), first.attrs.get("delta_reference")
            known = ds[[*field.statistics.values()]].notnull().to_array("statistic").any("statistic").transpose(*dims)
            kept = [str(at) != since and bool(of.any()) for at, of in zip(first[along].values, known, strict=True)]
            if not any(kept):
                continue
            categories = ds[field.robust] if field.robust else xr.zeros_like(known, float)
            robust = xr.Dataset({"robust": categories.where(categories.isin((1, 2, 3)), 0).where(known)})
            ds, robust = (one.isel({along: kept}).reindex(self.at) for one in (ds, robust))
            self.land |= known.any(dims[:-2]).reindex(self.at, fill_value=False)
            shown, robust = self.coarse(ds[[*field.statistics.values()]]), self.coarse(robust, "max")
            values = np.stack([shown[name].transpose(*dims).values for name in shown], len(dims) - 2)
            codes = robust["robust"].transpose(*dims).fillna(255).values.astype(np.uint8)
            shown_first = _first(values, list(field.statistics))
            values = values[..., 0] if self.stations else values
            of_map: dict[str, Any] = {"values": packed(values if part else values[:, None])}
            of_map["robust"] = as_base64(codes) if field.robust else None
            yield {
                "key": f"maps/{number}",
                "indicator": self.indicator(source, field.indicator, first),
                "scenario": _id(source),
                "of": "change" if "delta_kind" in first.attrs else "value",
                "baseline": since,
                "along": [f"+{value:g} K" if along == LEVEL else str(value) for value in ds[along].values],
                "parts": first[part].values.tolist() if part else ["year"],
                "statistics": list(field.statistics),
                "first": shown_first,
                "members": field.members,
                "limits": _limits(values, first),
                "file": self.numbers(source, field) if are_few else None,
                "bytes": self.script(f"maps/{number}", of_map),
            }

    def numbers(self, source: Source, field: Field) -> str:
        """Write the numbers of a map as NetCDF; return the link."""
        title = "+".join((field.indicator, source.freq, source.product, source.scenario))
        path = self.folder / "numbers" / (re.sub(r"[^\w.+-]", "_", title) + ".nc")
        path.parent.mkdir(exist_ok=True)
        write_netcdf(statistics_file(field.ds.load(), title), path, Layout({}))
        return f"{self.name}/numbers/{quote(path.name)}"

    def indicator(self, source: Source, name: str, data: xr.DataArray) -> str:
        """Return the id of an indicator, and have the index tell what its data tell."""
        year = f", years from {display.months_text(source.freq[3:])}" if source.freq[3:] != "JAN" else ""
        of = {"Q": ", by season", "M": ", by month"}.get(source.freq[0], year)
        id_, units = f"{name}.{source.freq}", display.units_text(data.attrs.get("units", ""))
        empty = {"units": "", "change": {"units": "", "kind": "difference"}, "colours": {}, "file": None}
        known = self.indicators.setdefault(id_, {"id": id_, "name": f"{display.long_name(data)}{of}", **empty})
        if kind := data.attrs.get("delta_kind"):
            known["change"] = {"units": units, "kind": _KINDS.get(kind, "difference")}
            known["colours"]["change"] = _colours(display.colours_of_differences(data))
        else:
            known["units"] = units
            known["colours"]["value"] = _colours(rules_of(data).colours or SEQUENTIAL)
        return id_

    def plumes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Write the series of cells, regions and stations; yield where they are, by indicator."""
        every = dict[tuple[str, str], list[Source]]()
        means = dict[tuple[str, str], dict[str, xr.Dataset]]()
        for source in (one for one in self.view.sources if one.product == "indicators"):
            for name in source.indicators():
                every.setdefault((source.freq, name), []).append(source)
            for name, series in source.over_regions(self.view.regions):
                means.setdefault((source.freq, name), {})[source.scenario] = series
        every = {key: of for key, of in every.items() if of[0].scenario != REFERENCE}
        times = {key: of[0].indicators()[key[1]].sizes["time"] for key, of in every.items()}
        fitting = what_fits(int(self.land.sum()), [(times[key], of) for key, of in every.items()])
        for number, ((freq, name), sources) in enumerate(every.items()):
            data, key = display.in_celsius(sources[0].indicators()[name]), f"plumes/{number}/"
            of_cells = fitting and self.several == 1 and not self.stations
            found: dict[str, Any] = {"tiles": self.tiles(key, name, sources, fitting) if of_cells else None}
            for kind, is_point in (("regions", False), ("stations", True)):
                places = [place for place, one in self.view.regions.items() if isinstance(one, Point) is is_point]
                found[kind] = self.regions(f"{key}{kind}", means.get((freq, name), {}), places)
            if self.stations:
                found["stations"] = self.regions(f"{key}stations", *self.of_stations(name, sources, fitting))
            yield self.indicator(sources[0], name, data), found

    def tiles(self, key: str, name: str, sources: Sequence[Source], what: str) -> dict[str, Any]:
        """Write the plumes of land cells in tiles of rows and columns; so many rows are read as memory allows."""
        times, (ny, nx) = sources[0].indicators()[name].sizes["time"], self.land.shape
        words = 3000 + 8 * times + 500 * len(sources) + sum(len(label) + 4 for one in sources for label in one.members)
        sizes = {of: _cell_bytes(times, sources, of) for of in ("members", "statistics")}
        what = what if sizes[what] <= MOST_TILE_BYTES - words else "statistics"
        fit = max(1, int((MOST_TILE_BYTES - words) / sizes[what]))
        rows = min(math.isqrt(fit), ny)
        columns, at_once = min(fit // rows, nx), int(_BLOCK_BYTES / (nx * sizes[what]))
        for top in range(0, ny, max(rows, at_once // rows * rows)):
            land = self.land[top : top + max(rows, at_once // rows * rows)]
            if not land.any():
                continue
            cells, members = {str(dim): land[dim].values for dim in land.dims}, what == "members"
            series = together({one.scenario: one.yearly(name, cells, with_members=members) for one in sources})
            for j, i in itertools.product(range(0, len(land), rows), range(0, nx, columns)):
                at = np.argwhere(land.values[j : j + rows, i : i + columns]) + np.array([j, i])
                if at.size:
                    chosen = dict(zip((self.y, self.x), (xr.DataArray(of, dims="place") for of in at.T), strict=True))
                    tile = _plumes({scenario: ds.isel(chosen) for scenario, ds in series.items()})
                    tile["cells"] = (at + np.array([top, 0])).tolist()
                    self.script(f"{key}{(top + j) // rows}_{i // columns}", tile)
        return {"rows": rows, "columns": columns, "key": key}

    def of_stations(self, name: str, sources: Sequence[Source], what: str) -> tuple[dict[str, xr.Dataset], list[str]]:
        """Return the series of stations as those of regions, and the stations."""
        ids, series = [one["id"] for one in self.stations], dict[str, xr.Dataset]()
        for one in sources:
            ds = one.yearly(name, self.at, with_members=what == "members").isel({self.x: 0})
            series[one.scenario] = ds.reset_coords(drop=True).rename({self.y: "region"}).assign_coords(region=ids)
        return series, ids

    def regions(self, key: str, means: Mapping[str, xr.Dataset], names: Sequence[str]) -> str | None:
        """Write the plumes of regions; return the key, or None without any."""
        if not names or not means:
            return None
        every = {scenario: ds.sel(region=names).rename(region="place") for scenario, ds in together(means).items()}
        if sum(ds.nbytes / 8 for ds in every.values()) * BYTES_OF_NUMBER > MOST_REGION_BYTES:
            every = {scenario: ds.drop_vars("members", errors="ignore") for scenario, ds in every.items()}
        self.script(key, {**_plumes(every), "cells": names})
        return key

    def flags(self) -> bool:
        """Write the cells that are not to be used, if there are maps of flags; return whether there are."""
        unusable = xr.zeros_like(self.land)
        for path in self.view.flags:
            for name, days in store.open_store(path).items():
                if rank_of(str(name).partition(COUNTED)[2]) == RANKS[0]:
                    unusable = unusable | (days.load().reindex(self.at) / days.attrs["days"] > MUCH).values
        coarse = self.coarse(xr.Dataset({"flags": unusable.astype(float)}), "max")["flags"]
        self.script("flags", {"unusable": as_base64(coarse.values.astype(np.uint8))})
        return bool(self.view.flags)

    def cells(self) -> dict[str, Any]:
        """Return the edges, or corners, of the maps' cells."""
        at = [[*range(0, len(of), self.several), len(of)] for of in self.at.values()]
        shape = [len(of) - 1 for of in at]
        if self.lat.ndim == 1:
            lat, lon = (edges_of(values)[of].tolist() for values, of in zip(self.at.values(), at, strict=True))
            return {"shape": shape, "lat_edges": lat, "lon_edges": lon}
        centres = (one.transpose(self.y, self.x).values.astype(float) for one in (self.lat, self.lon))
        x, y, z = np.moveaxis(cell_corners(unit_vectors(*centres))[np.ix_(*at)], -1, 0)
        lon, lat = np.rad2deg(np.arctan2(y, x)), np.rad2deg(np.arctan2(z, np.hypot(x, y)))
        lon -= 360 * np.round((lon - lon[0, 0]) / 360)
        return {"shape": shape, "corner_lat": packed(lat), "corner_lon": packed(lon)}

    def lines(self) -> dict[str, Any]:
        """Return coasts, borders and lakes in the domain, as lines of longitude and latitude."""
        (ends, kinds), found = line_pieces(), dict[str, Any]()
        low, high = (np.array([end(self.lon), end(self.lat)]) for end in (np.min, np.max))
        turns = 360 * np.round((ends[:, :1, 0] - (low[0] + high[0]) / 2) / 360)
        ends = ends - np.stack([turns, np.zeros_like(turns)], axis=-1)
        inside = ((ends >= low - 2) & (ends <= high + 2)).all(axis=-1).any(axis=-1)
        inside &= np.abs(ends[:, 1, 0] - ends[:, 0, 0]) < 90
        for kind in ("coast", "borders", "lakes"):
            of = ends[inside & (kinds == list(LINES).index(kind))].round(2)
            starts = np.flatnonzero((of[1:, 0] != of[:-1, 1]).any(axis=-1)) + 1
            found[kind] = [[run[0, 0].tolist(), *run[:, 1].tolist()] for run in np.split(of, starts) if len(run)]
        return found


def _stations(ds: xr.Dataset) -> list[dict[str, Any]]:
    """The stations of a grid of one column, which perhaps have no names."""
    ids, places = ds[IDS].values, (ds[of].values[:, 0].round(4) for of in ("lon", "lat"))
    rows = zip(ids, ds[NAMES].values if NAMES in ds.coords else ids, *places, strict=True)
    return [{"id": str(id_), "name": str(name or id_), "lon": float(x), "lat": float(y)} for id_, name, x, y in rows]


def _id(source: Source) -> str:
    return f"levels {source.scenario}" if source.product == "warming_levels" else source.scenario


def _scenario(source: Source) -> dict[str, Any]:
    are_levels, name = source.product == "warming_levels", display.experiment_text(short(source.scenario))
    name = f"Levels of global warming{'' if source.ensemble else f', {name}'}" if are_levels else name
    return {"id": _id(source), "name": name, "levels": are_levels}


def _plumes(series: Mapping[str, xr.Dataset]) -> dict[str, Any]:
    """The content of a file: series (…, place) by scenario, as `together` returns them."""
    found = dict[str, Any]()
    for scenario, one in series.items():
        ds = one.transpose(..., "place", "part", "year")
        of = {key: packed(ds[key]) if key in ds else None for key in ("low", "median", "high", "members")}
        found[scenario] = {**of, "names": [*labels(ds.attrs["members"]).values()] if "members" in ds else []}
    first, reference = next(iter(series.values())), found.pop(REFERENCE, None)
    bounds = next((list(ds.attrs["bounds"]) for ds in series.values() if "bounds" in ds.attrs), ["value"])
    told = {"years": first["year"].values.tolist(), "parts": first["part"].values.tolist(), "bounds": bounds}
    return {**told, "scenarios": found, "reference": reference and reference["median"]}


def _first(values: np.ndarray, statistics: Sequence[str]) -> dict[str, Any]:
    """What is shown first of a map's values (along, …, statistic, y, x): the last place along with any statistic."""
    there = np.isfinite(values).any(axis=(-2, -1)).reshape(len(values), -1, len(statistics)).any(axis=1)
    at = int(np.flatnonzero(there.any(axis=1))[-1])
    middle = [name for name in ("p50", "mean", *statistics) if name in statistics]
    return {"along": at, "statistic": next(name for name in middle if there[at, statistics.index(name)])}


def _limits(values: np.ndarray, data: xr.DataArray) -> list[float]:
    """The ends of a scale, of changes around none; a two-hundredth of the values is beyond."""
    numbers = values[np.isfinite(values)]
    if "delta_kind" not in data.attrs:
        return [float(end) for end in np.quantile(numbers, [0.005, 0.995])]
    is_quotient = data.attrs["delta_kind"] == "rel."
    apart = abs(np.log(numbers[numbers > 0])) if is_quotient else abs(numbers)
    most = float(np.quantile(apart, 0.995)) if apart.size else math.log(1.1)
    return [math.exp(-most), math.exp(most)] if is_quotient else [-most, most]


def _colours(name: str) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps[name](at)) for at in np.linspace(0, 1, 9)]


def _outline(region: Any) -> list[Any]:
    """The rings of a box or of polygons, to a hundredth of a degree."""
    import shapely

    if isinstance(region, Box):
        (west, east), (south, north) = region
        region = shapely.box(west, south, east + 360 * (east < west), north)
    rings = shapely.get_rings(shapely.get_parts(shapely.simplify(region, 0.01)))
    return [shapely.get_coordinates(ring).round(3).tolist() for ring in rings]
