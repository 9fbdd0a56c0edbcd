"""Levels of global warming: the years in which the model of a simulation reaches +1.5, 2, 3 or 4 K.

A level is reached in the first `window` years in a row whose mean global temperature exceeds that of the base period by
more than the level, as in the Atlas of IPCC AR6 (Iturbide et al. 2020, doi:10.5194/essd-12-2959-2020) and in xscen.
"""

from __future__ import annotations

import functools
import io
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import NamedTuple

import pandas as pd

from espo_luigi.errors import DataError
from espo_luigi.science.netcdf import NETCDF, load_netcdf

log = logging.getLogger(__name__)
BASE = (1850, 1900)


class Run(NamedTuple):
    """A simulation of a global model; its text is that of xscen, such as CMIP6_CanESM5_ssp585_r1i1p1f1."""

    mip_era: str
    source: str
    experiment: str
    member: str

    def __str__(self) -> str:
        return "_".join(self)

    @classmethod
    def of(cls, facets: Mapping[str, str]) -> Run:
        """Return the global simulation behind a dataset, from columns of its catalogue; a regional model's driver.

        `historical+rcp45` is rcp45. A facet that is missing is "".
        """

        def first(*names: str) -> str:
            return next(filter(None, map(facets.get, names)), "")

        experiment = first("experiment").rpartition("+")[2]
        return cls(first("mip_era"), first("driving_model", "source"), experiment, first("driving_member", "member"))


GlobalMeans = Mapping[Run, pd.Series]
"""Yearly global mean temperature of simulations (K or degC); the index has years, and a year without value is NaN."""


class Period(NamedTuple):
    """The first and the last year, both included."""

    first: int
    last: int


@dataclass(frozen=True)
class Warming:
    """By simulations' labels: the years of each level, and why there are none."""

    periods: dict[str, dict[float, Period]]
    absent: dict[str, dict[float, str]]


@functools.cache
def global_means() -> GlobalMeans:
    """Return the table that comes with the package: 288 simulations of CMIP5 and CMIP6, 1850-2100 (see NOTICE)."""
    table = files("espo_luigi.science.outcomes").joinpath("global_means.nc")
    return parse_global_means(table.read_bytes(), table.name)


def parse_global_means(content: bytes, where: str) -> GlobalMeans:
    """Return a table of yearly global means from the content of a file.

    NetCDF: `tas` (simulation, time) with coordinates mip_era, source, experiment and member along `simulation`, as in
    xscen. CSV: a column `year`, and a column for each simulation, named like CMIP6_CanESM5_ssp585_r1i1p1f1.

    Raises
    ------
    DataError
        If the content is neither, or has a simulation or a year twice. `where` names the file.
    """
    try:
        if content.startswith(NETCDF):
            tas = load_netcdf(io.BytesIO(content))["tas"].transpose("time", "simulation")
            runs = [Run(*facets) for facets in zip(*(tas[key].values.tolist() for key in Run._fields), strict=True)]
            frame = pd.DataFrame(tas.values, index=tas["time"].dt.year.values)
        else:
            frame = pd.read_csv(io.BytesIO(content), index_col="year", comment="#").astype(float)
            frame.index = frame.index.astype(int)
            runs = [Run(*_split(name)) for name in frame.columns]
    except (KeyError, ValueError, TypeError, AttributeError, OSError, RuntimeError, DataError) as error:
        raise DataError(
            f"{where} is no table of yearly global temperatures ({error}). Expected CSV with a column `year` and "
            "columns named like CMIP6_CanESM5_ssp585_r1i1p1f1, or NetCDF with `tas` on `time` and `simulation` and the "
            f"coordinates {', '.join(Run._fields)}."
        ) from error
    twice = sorted(
        {str(run) for run in runs if runs.count(run) > 1} | {*map(str, frame.index[frame.index.duplicated()])}
    )
    if twice or frame.empty:
        raise DataError(f"{where} has no values, or has twice: {', '.join(twice) or 'nothing'}. Keep one of each.")
    years = range(frame.index.min(), frame.index.max() + 1)
    return {run: frame.iloc[:, number].reindex(years) for number, run in enumerate(runs)}


def _split(name: str) -> Sequence[str]:
    era, _, rest = name.partition("_")
    parts = [era, *rest.rsplit("_", 2)]
    if len(parts) != len(Run._fields):
        raise ValueError(f"the column {name!r} names no simulation")
    return parts


def reaching(
    simulations: Mapping[str, Mapping[str, str]],
    levels: Collection[float],
    table: GlobalMeans,
    *,
    base: tuple[int, int] = BASE,
    window: int = 20,
    any_member: bool = False,
) -> Warming:
    """Find the years of each level (K above the base period) for each simulation.

    Parameters
    ----------
    simulations
        Facets by label: columns of the catalogue (see `Run.of`).
    base
        The first and the last year of the base period.
    window
        Number of years.
    any_member
        Whether the first member of the same model and experiment stands for a member without a row.
    """
    made = Warming({}, {})
    for label, facets in simulations.items():
        row, reason = _row(Run.of(facets), table, any_member)
        found: dict[float, Period | str] = dict.fromkeys(levels, reason)
        if row is not None:
            found = _periods(table[row], levels, base, window)
        made.periods[label] = {level: period for level, period in found.items() if isinstance(period, Period)}
        made.absent[label] = {level: text for level, text in found.items() if isinstance(text, str)}
    return made


def _row(run: Run, table: GlobalMeans, any_member: bool) -> tuple[Run | None, str]:
    """The row of a simulation, or None and why."""
    # A name of CORDEX ends in the model's: the longest such name.
    of_era = [row for row in table if run.mip_era in ("", row.mip_era)]
    names = [row.source for row in of_era if re.search(f"(^|[-_]){re.escape(row.source)}$", run.source)]
    of_model = [row for row in of_era if row.source == max(names, key=len, default="")]
    of_run = [row for row in of_model if row.experiment == run.experiment]
    own = [row for row in of_run if row.member == run.member]
    if own:
        return own[0], ""
    if of_run and any_member:
        log.warning("%s has no row in the table of warming levels: %s stands for it", run, of_run[0])
        return of_run[0], ""
    if of_run:
        members = ", ".join(row.member for row in of_run[:5])
        return None, f"the table has no row of {run}, but of members {members}: `any_member` takes one of these"
    known = ", ".join(sorted({row.experiment for row in of_model})) or "no row of this model"
    return None, f"the table has no row of {run}; it has {known}"


def _periods(
    means: pd.Series, levels: Collection[float], base: tuple[int, int], window: int
) -> dict[float, Period | str]:
    """The first `window` years that are warmer than each level, or why there are none."""
    of_base = means.loc[base[0] : base[1]]
    if not of_base.notnull().any():
        return dict.fromkeys(levels, f"its row has no year of the base period {base[0]}-{base[1]}")
    warming = means.rolling(window).mean() - of_base.mean()
    highest = f"until {means.last_valid_index()} (at most {warming.max():+.2f} K in {window} years)"
    found: dict[float, Period | str] = {}
    for level in levels:
        warmer = warming.index[warming > level]
        reached = Period(int(warmer[0]) - window + 1, int(warmer[0])) if warmer.size else None
        found[level] = reached or f"stays below +{level:g} K {highest}"
    return found
