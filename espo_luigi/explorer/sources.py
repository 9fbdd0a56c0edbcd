"""What the explorer shows of a run, and reading it: maps, and yearly series of cells and regions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.export.netcdf import from_cf_axes
from espo_luigi.files import open_regular
from espo_luigi.report.changes import percentile_names, without_percentiles
from espo_luigi.science.attributes import FEWEST
from espo_luigi.science.chunks import join
from espo_luigi.science.display import in_celsius
from espo_luigi.science.geometry.cells import horizontal_dims
from espo_luigi.science.netcdf import load_netcdf
from espo_luigi.science.outcomes.climatology import HORIZON, LEVEL, MEMBER, by_year
from espo_luigi.science.outcomes.natures import around_mean, on_standard_year, rules_of, unwrapped, without_years
from espo_luigi.science.outcomes.regions import region_means

REFERENCE = ""
"""The scenario of the reference."""
_FEW, _PARTS = ("min", "mean", "max"), {"season": "part", "month": "part"}


class Field(NamedTuple):
    """An indicator's maps (horizon or level, season or month if any, y, x), lazy: names by statistic, the most members.

    `robust` names the categories of AR6, if there are any.
    """

    indicator: str
    members: int
    statistics: Mapping[str, str]
    robust: str | None
    ds: xr.Dataset


@dataclass(frozen=True)
class Source:
    """The stores of a scenario, a product and a frequency.

    `product` is indicators (yearly), climatology, delta or warming_levels. `ensemble` has statistics; without it, the
    one simulation (or the reference) among `members` stands for itself. `members` are stores by simulation, of an
    ensemble those of `indicators` only. Beside the table `regions` is a NetCDF file.
    """

    scenario: str
    product: str
    freq: str
    members: Mapping[str, Path]
    ensemble: Path | None = None
    regions: Path | None = None

    @property
    def path(self) -> Path:
        """The store of the statistics, or of what stands for itself."""
        return self.ensemble or next(iter(self.members.values()))

    def opened(self) -> xr.Dataset:
        """Open this store; lazy."""
        return store.open_store(self.path, cut=False)

    def indicators(self) -> dict[str, xr.DataArray]:
        """Return the yearly indicators by name, of an ensemble their middle statistic; lazy."""
        ds = self.opened()
        if self.ensemble:
            return {base: ds[names[1]] for base, names in percentile_names(ds).items()}
        return {str(name): data for name, data in ds.items() if {"time", *horizontal_dims(ds)} <= {*data.dims}}

    def fields(self) -> Iterator[Field]:
        """Yield the maps of each indicator; of fewer members than percentiles need, the lowest, mean and highest."""
        ds = self.opened()
        if not self.ensemble:
            ds, dims = without_years(ds), {*horizontal_dims(ds)}
            for name in (str(name) for name, of in ds.items() if {HORIZON, LEVEL} & {*of.dims} and dims <= {*of.dims}):
                yield Field(name.partition("_clim_")[0], 1, {"value": name}, None, ds[[name]])
            return
        for base, names in percentile_names(ds).items():
            counts = ds[f"{base}_members"].load()
            most, fewest = int(counts.max()), int(ds.attrs.get(FEWEST, 1))
            of_along = counts.max([dim for dim in counts.dims if dim not in (HORIZON, LEVEL)])
            chosen = {name.rpartition("_")[2]: name for name in names} if most >= fewest else {}
            if ((of_along > 0) & (of_along < fewest)).any():
                chosen |= {end: f"{base}_{end}" for end in _FEW}
            chosen = {"value": f"{base}_mean"} if most == 1 else chosen
            kinds = (f"{base}_{kind}" for kind in ("advanced", "simple"))
            robust = next((kind for kind in kinds if kind in ds), None) if most > 1 else None
            if most > 0:
                wanted = [*chosen.values(), *([robust] if robust else [])]
                yield Field(base.partition("_clim_")[0], most, chosen, robust, ds[wanted])

    def yearly(self, indicator: str, cells: Mapping[str, np.ndarray], *, with_members: bool) -> xr.Dataset:
        """Return the series of an indicator as `_shown` does, (…, y, x), of cells by their coordinates; in memory."""
        if not self.ensemble:
            return _shown({"median": _in_cells(self.path, [indicator], cells)})
        names = percentile_names(self.opened())[indicator]
        ends = [f"{indicator}_{end}" for end in (*_FEW, "members")]
        made = _in_cells(self.path, list(dict.fromkeys((*names, *ends))), cells)
        members = {label: _in_cells(path, [indicator], cells) for label, path in self.members.items() if with_members}
        return _of_statistics(made, indicator, names, members)

    def over_regions(self, regions: Mapping[str, Any]) -> Iterator[tuple[str, xr.Dataset]]:
        """Yield each indicator, and its series as `_shown` does, (…, region); in memory."""
        if self.scenario == REFERENCE and regions:
            means = region_means(on_standard_year(self.opened()[[*self.indicators()]]), regions).load()
            yield from ((name, _shown({"median": means[[name]]})) for name in self.indicators())
        if not self.regions:
            return
        with open_regular(self.regions.with_suffix(".nc")) as file:
            ds = from_cf_axes(load_netcdf(file)).load()
        for base, names in percentile_names(ds).items():
            each = {str(label): ds[[base]].sel({MEMBER: label}, drop=True) for label in ds[MEMBER].values}
            own = [of for label, of in each.items() if label in self.members and not self.ensemble]
            yield base, _shown({"median": own[0]}) if own else _of_statistics(ds, base, names, each)


@dataclass(frozen=True)
class ExplorerView:
    """A run: its names, its stores, also the reference's, its regions by name, and the maps of flags."""

    title: str
    domain: str
    reference: str
    sources: Sequence[Source]
    regions: Mapping[str, Any] = field(default_factory=dict)
    flags: Sequence[Path] = ()


def _in_cells(path: Path, names: Sequence[str], cells: Mapping[str, np.ndarray]) -> xr.Dataset:
    """Return variables of a store in these cells, which its grid may lack; in memory."""
    ds = store.open_store(path, check=False, cut=False)
    there = {dim: np.flatnonzero(ds[dim].isin(values)) for dim, values in cells.items()}
    within = {dim: slice(at[0], at[-1] + 1) if at.size else slice(0) for dim, at in there.items()}
    return ds[[name for name in names if name in ds]].isel(within).load().reindex(cells)


def _of_statistics(ds: xr.Dataset, base: str, names: Sequence[str], members: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """The low, middle and high statistic, of few members the lowest, mean and highest; and the members."""
    fewest = int(ds.attrs.get(FEWEST, 1))
    filled, there = without_percentiles(ds, names, fewest), {key: of for key, of in members.items() if base in of}
    are_enough = bool(ds[f"{base}_members"].max() >= fewest)
    bounds = [name.rpartition("_")[2] for name in names] if are_enough else _FEW
    made = _shown({key: filled[[name]] for key, name in zip(("low", "median", "high"), names, strict=True)})
    each = [*_shown(there).values()]
    return made.assign({"members": join(each, "member")} if each else {}).assign_attrs(bounds=bounds, members=[*there])


def _shown(of: Mapping[str, xr.Dataset]) -> xr.Dataset:
    """Series of a variable each, by key, as they are shown: (part of the year, year, places), years of 365 days, °C."""
    made = {}
    for key, ds in ((key, ds) for key, ds in of.items() if ds):
        years = by_year(on_standard_year(ds).map(in_celsius, keep_attrs=True))
        years = years.rename({dim: part for dim, part in _PARTS.items() if dim in years.dims})
        (made[key],) = (years if "part" in years.dims else years.expand_dims(part=["year"])).values()
    return xr.Dataset(made)


def together(series: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Return series by scenario, in all years of any; days of the year are around one date in each place."""
    there = {scenario: ds for scenario, ds in series.items() if ds}
    first = next(iter(there.values()))["median"]
    years = np.unique(np.concatenate([ds["year"].values for ds in there.values()]))
    every = {scenario: ds.reindex(part=first["part"], year=years) for scenario, ds in there.items()}
    if not rules_of(first).circular:
        return every
    center = around_mean(first, "year")[1].mean("part")
    return {scenario: ds.map(unwrapped, keep_attrs=True, center=center) for scenario, ds in every.items()}
