"""Searching catalogues for datasets that have all wanted variables over the wanted periods.

The search is our own: intake-esm's neither joins historical runs nor looks at the years that files cover.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from espo_luigi.catalog.criteria import (
    FIXED,
    Period,
    as_list,
    as_periods,
    choose_field,
    covering,
    equals,
    exclude,
    hint_for,
    holds,
    listed,
    newest_versions,
    overlaps,
    refuse_empty,
    select,
    usable_fields,
    values_of,
)
from espo_luigi.catalog.history import HISTORIES, Dispatched, dispatch_history
from espo_luigi.catalog.presets import Preset
from espo_luigi.catalog.read import ID_COLUMNS, Asset, is_url, read_catalogue
from espo_luigi.errors import CatalogError
from espo_luigi.science.derivations import INEXACT, OF_RAW_DATA

logger = logging.getLogger(__name__)

_OF_ONE_GRID = ("grid_label", "region")
"""Columns of CMIP7 that are the same for all files of a dataset: grids never mix."""

SUB_DAILY = ("30min", "h", "3h", "6h")
"""The `xrfreq` of what days may be made of."""

# Files of hours may end with 0 UTC of the next file's first day; the first and the last day may need those around.
_A_DAY = timedelta(days=1)

_SHOWN = 5
"""How many faulty rows a message names."""


@dataclass(frozen=True)
class Match:
    """A dataset that answers a search: the files to open, and the catalogue's columns."""

    id: str
    assets: tuple[Asset, ...]
    variables: tuple[str, ...]
    """The variables to read from the files."""
    derived: tuple[str, ...] = ()
    """The wanted variables to derive from them."""
    periods: tuple[Period, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The catalogue's columns, where all files agree."""
    fixed: Mapping[str, Asset] = field(default_factory=dict, hash=False)
    """The file of each wanted fixed field, which may be that of another member or experiment."""
    units: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What presets and the configuration state as the units of variables, in place of the files'."""
    accumulation: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The variables whose amounts are totals, with what they are accumulated over."""
    hours: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The variables that are made of hours (or of 3 or 6), each with its name in the files: of tasmax, maybe tas."""

    @property
    def files(self) -> list[Path]:
        """The files and Zarr folders to open, fixed fields last, each once, without those given by a URL."""
        assets = (*self.assets, *self.fixed.values())
        return list(dict.fromkeys(Path(asset.path) for asset in assets if not is_url(asset.path)))

    @property
    def presets(self) -> list[Preset]:
        """What the files call things, each preset once."""
        return [asset.preset for asset in {id(one.preset): one for one in self.assets}.values() if asset.preset]

    @property
    def days_lacking(self) -> list[str]:
        """The days (YYYY-MM-DD) that the presets' files may lack, in all years of the assets."""
        years = {date.year for asset in self.assets for date in (asset.start, asset.end) if date}
        span = range(min(years), max(years) + 1) if years else ()
        return [day for preset in self.presets for day in preset.days_lacking(span)]

    def on(self, day: datetime, variable: str) -> Match:
        """Return the part that one variable takes on one day: its file, or all of its files if none has that day."""
        names = OF_RAW_DATA[variable] if variable in self.derived else (variable,)
        hours = {name: held for name, held in self.hours.items() if name in names}
        held = {hours.get(name, name) for name in names}
        holding = tuple(asset for asset in self.assets if held & set(asset.variables))
        that_day = tuple(row for row in holding if (row.start or day) <= day and (row.end is None or day < row.end))
        year = str(day.year)
        part = replace(self, assets=that_day or holding, variables=names, hours=hours)
        return replace(part, derived=(), periods=((year, year),), fixed={})

    def by_day(self, path: Path) -> Match:
        """Return the dataset as the store that `Daily` has made of it at `path` has it, fixed fields included."""
        columns = {**self.columns, "xrfreq": "D", "frequency": "day", "format": "zarr"}
        made = Asset({**columns, "path": str(path)}, self.variables, str(path))
        fixed = dict.fromkeys(self.fixed, made)
        return replace(self, assets=(made,), columns=columns, fixed=fixed, hours={}, units={}, accumulation={})


@dataclass(frozen=True)
class _Wanted:
    variables_and_freqs: Mapping[str, str]
    periods: tuple[Period, ...]
    whole: Period | None
    allow_conversion: bool
    allow_resampling: bool
    fields: tuple[Asset, ...]
    """The usable rows of fixed fields."""
    criteria: Mapping[str, Any]

    @property
    def series(self) -> dict[str, str]:
        """The wanted variables that vary in time."""
        return {name: frequency for name, frequency in self.variables_and_freqs.items() if frequency != FIXED}

    @property
    def fixed(self) -> list[str]:
        """The wanted fixed fields."""
        return [name for name in self.variables_and_freqs if name not in self.series]

    def may_be(self, asset: Asset) -> bool:
        """Whether a faulty row may be of a wanted series and period: no sound cell says otherwise."""
        pairs = list(self.series.items())
        if self.allow_conversion:
            pairs += [(name, frequency) for variable, frequency in pairs for name in OF_RAW_DATA.get(variable, ())]
        if self.allow_resampling:
            pairs += [(name, hours) for variable, _ in pairs for name in made_of(variable) for hours in SUB_DAILY]
        names = asset.variables or tuple(name for name, _ in pairs)
        unknown = "xrfreq" in asset.faults
        if not any(name in names and (unknown or asset.columns["xrfreq"] == frequency) for name, frequency in pairs):
            return False
        if {"date_start", "date_end"} & set(asset.faults) or asset.start is None or asset.end is None:
            return True
        return not self.periods or overlaps(asset, self.periods)


def derived_otherwise(match: Match, reference: Match) -> str:
    """Return which variable is stored in one of the two and derived in the other, so that they differ; "" if none."""
    for name in INEXACT:
        if all(name in (*one.derived, *one.variables) for one in (match, reference)):
            words = ["derived" if name in one.derived else "stored" for one in (match, reference)]
            if words[0] != words[1]:
                return (
                    f"{name} is {words[0]} here and {words[1]} in the reference, and {name} made of "
                    f"{' and '.join(OF_RAW_DATA[name])} is another quantity; let both have it stored, or both derived"
                )
    return ""


def warn_of_dropped(name: str, reason: str, columns: Mapping[str, str]) -> None:
    """Warn of a dataset that a search drops, of the columns of its first row."""
    logger.warning("%s is dropped from the search: %s.", name, reason)


class Catalog:
    """The rows of one or several catalogues."""

    def __init__(self, assets: Iterable[Asset], sources: Sequence[Path] = ()) -> None:
        self.assets = tuple(assets)
        self.sources = tuple(sources)

    @classmethod
    def from_files(cls, paths: Sequence[Path]) -> Catalog:
        """Read catalogues (intake-esm JSON files) in order; double rows count once.

        Raises `CatalogError` if no catalogue is given, or a catalogue is missing or unreadable.
        """
        if not paths:
            raise CatalogError("no catalogue to search; name at least one in data_catalogs.")
        assets = [asset for path in paths for asset in read_catalogue(Path(path))]
        # Faults name the line, so that each row that has some counts.
        unique = {(a.id, a.columns.get("processing_level"), a.variables, a.path, *a.faults.values()): a for a in assets}
        return cls(unique.values(), [Path(path) for path in paths])

    def search(
        self,
        *,
        variables_and_freqs: Mapping[str, str],
        periods: Sequence[str] | Sequence[Sequence[str]] | None = None,
        whole: Period | None = None,
        other_search_criteria: Mapping[str, Any] | None = None,
        exclusions: Mapping[str, Any] | None = None,
        allow_conversion: bool = True,
        allow_resampling: bool = False,
        match_hist_and_fut: bool = False,
        most_members: int | None = None,
        allow_missing: bool = False,
        tell_dropped: Callable[[str, str, Mapping[str, str]], None] = warn_of_dropped,
    ) -> dict[str, Match]:
        """Find the datasets that have every wanted variable, at exactly its frequency, over all periods.

        The steps, in order: older versions of CMIP7 left out, history joined to futures, exclusions, criteria,
        variables, members. A variable is stored or derived. Its files cover 99 % of each period's hours without
        overlap. Ids that lack a variable are dropped, each with a warning that says which and why.

        A fixed field (frequency ``fx``) has no period, and any run of the same source and grid gives it: where both
        rows have a `grid_label`, they agree. `Match.fixed` has it, apart from the series.

        A row with a cell that cannot be used is an error if the search may want it: a sound row in its place could
        change the result. A warning counts all others.

        Parameters
        ----------
        variables_and_freqs : mapping
            The wanted variables, each with its `xrfreq`.
        periods : (start, end) or sequence of them, optional
            Years (or dates) to be covered, both included.
        whole : (start, end), optional
            Years of which files reach the first and the last day.
        other_search_criteria, exclusions : mapping, optional
            Values by column: one or a list; text with ``*``, ``?``, ``^`` or ``$`` is a regular expression, other text
            is matched exactly. All criteria must hold; any exclusion excludes.
        allow_conversion : bool
            Whether variables of `OF_RAW_DATA` may be derived; a stored one that covers the periods has priority.
        allow_resampling : bool
            Whether a variable that is not there by day may be made of hours, or of 3 or 6 (`Match.hours`).
        match_hist_and_fut : bool
            Copy historical rows to each future experiment of the same run. Futures without history are dropped, even if
            their own files cover the periods.
        most_members : int, optional
            Keeps the first so many members, in natural order, of datasets that differ by member only.
        allow_missing : bool
            Whether to go on without a wanted experiment of which nothing is found.
        tell_dropped : callable
            Gets the id of each dropped dataset, the reason, and the columns of its first row; by default a warning.

        Returns
        -------
        dict of str to Match
            By id, in the ids' order.

        Raises
        ------
        CatalogError
            If nothing is found, or nothing of a wanted experiment: with the number of rows after each step, and what
            values there are. If a row that the search may want has a cell that cannot be used: with its file and line.
        """
        faulty = _faults_of(self.assets)
        trail = [f"{len(self.assets)} rows in {', '.join(map(str, self.sources)) or 'the catalogue'}"]
        if not self.assets:
            raise CatalogError(
                f"{trail[0]}: nothing to search. `espo catalog FOLDER --out cat.json` makes a catalogue."
            )
        if faulty:
            trail[0] += f" ({_told(faulty)})"
        newest = newest_versions(self.assets, other_search_criteria or {}, exclusions or {})
        spans = as_periods(periods)
        dispatched = dispatch_history(newest, spans) if match_hist_and_fut else Dispatched(newest)
        if match_hist_and_fut:
            trail.append(f"{len(dispatched.assets)} after history was joined to futures")
            refuse_empty(dispatched.assets, self.assets, "experiment", "a future experiment", trail)
        chosen = exclude(dispatched.assets, exclusions or {}, trail)
        joined = HISTORIES if match_hist_and_fut else ()
        without = as_list((exclusions or {}).get("experiment", []))
        asked = [name for name in as_list((other_search_criteria or {}).get("experiment", [])) if name not in joined]
        asked = [] if allow_missing else [name for name in asked if not any(equals(name, one) for one in without)]
        chosen = select(chosen, other_search_criteria or {}, trail, joined=[*joined, *asked])
        fields = tuple(usable_fields(newest, exclusions or {}))
        how = allow_conversion, allow_resampling
        wanted = _Wanted(dict(variables_and_freqs), spans, whole, *how, fields, other_search_criteria or {})
        found, dropped = _complete([asset for asset in chosen if not asset.faults], wanted, dispatched.objections)
        columns = {asset.id: asset.columns for asset in reversed(chosen)}
        for name, objections in dropped.items() if found else ():  # if nothing is found, the error names them
            tell_dropped(name, objections, columns[name])
        # Only rows of members that are kept count.
        doubtful = _by_id(asset for asset in chosen if asset.faults and wanted.may_be(asset))
        candidates = {
            name: Match(name, tuple(rows), rows[0].variables, columns=rows[0].columns)
            for name, rows in doubtful.items()
        }
        kept = _first_members(candidates | found, most_members) if most_members else candidates | found
        if damaged := _faults_of(asset for name in kept for asset in doubtful.get(name, ())):
            raise CatalogError(
                f"the search wants {_told(damaged)}. Correct the catalogue, or leave such rows out by exclusions in "
                "search_data_catalogs."
            )
        if not found:
            trail.append(f"0 of {len(dropped)} ids with all of {listed(wanted.variables_and_freqs)}")
            reasons = listed([f"{name}: {objections}" for name, objections in dropped.items()])
            raise CatalogError(f"nothing found. {reasons or 'No row can be used'}. Rows: {'; '.join(trail)}.")
        _refuse_missing(asked, kept, dropped, chosen, trail)
        if faulty:
            logger.warning("the search leaves out %s. It wants none of them.", _told(faulty))
        for name in kept.keys() & dispatched.doubts.keys():
            logger.warning("%s: %s.", name, dispatched.doubts[name])
        return kept


def _refuse_missing(
    experiments: Iterable[str],
    found: Mapping[str, Match],
    dropped: Mapping[str, str],
    chosen: Sequence[Asset],
    trail: Sequence[str],
) -> None:
    """Raise `CatalogError` if nothing is found of an experiment, with the reasons of what is dropped of it."""
    there = [row for match in found.values() for row in (*match.assets, *match.fixed.values())[:1]]
    if absent := [name for name in experiments if not any(holds(row, "experiment", [name]) for row in there)]:
        lost = dict.fromkeys(row.id for row in chosen if row.id in dropped and holds(row, "experiment", absent))
        reasons = listed([f"{name}: {dropped[name]}" for name in lost]) or f"Rows: {'; '.join(trail)}"
        known = values_of(there, "experiment")
        hint = hint_for(absent, known)
        raise CatalogError(
            f"nothing found with experiment = {listed(absent)}, only with {listed(known)}.{hint} {reasons}. "
            "Add the files to the catalogue, take the experiment out of other_search_criteria, or write "
            "`allow_missing: true` into search_data_catalogs."
        )


def _faults_of(assets: Iterable[Asset]) -> list[str]:
    """Return the faults of each faulty row once, also of a row that was joined to several futures."""
    return list(dict.fromkeys("; ".join(asset.faults.values()) for asset in assets if asset.faults))


def _told(faults: Sequence[str]) -> str:
    rows = f"{len(faults)} row{'' if len(faults) == 1 else 's'}"
    return f"{rows} with a cell that cannot be used: {listed(faults, '; ', most=_SHOWN)}"


def _by_id(assets: Iterable[Asset]) -> dict[str, list[Asset]]:
    by_id: dict[str, list[Asset]] = defaultdict(list)
    for asset in assets:
        by_id[asset.id].append(asset)
    return by_id


def _complete(
    assets: Sequence[Asset], wanted: _Wanted, of_history: Mapping[str, str]
) -> tuple[dict[str, Match], dict[str, str]]:
    """Return the complete ids, and the objections to all other ids."""
    by_id = _by_id(assets)
    found: dict[str, Match] = {}
    dropped: dict[str, str] = {}
    for name in sorted(by_id):
        match, objections = _match(name, by_id[name], wanted)
        if name in of_history:
            objections = [("", of_history[name]), *objections]
        if match is not None and not objections:
            found[name] = match
        else:
            dropped[name] = "; ".join(_grouped(objections))
    return found, dropped


# The variable that it is about, or "" where the sentence names it; and the sentence.
_Objection = tuple[str, str]


def _grouped(objections: Iterable[_Objection]) -> Iterator[str]:
    """Yield each objection once, with all variables that it is about."""
    variables: dict[str, list[str]] = {}
    for variable, reason in objections:
        variables.setdefault(reason, []).extend([variable] if variable else [])
    for reason, names in variables.items():
        yield f"{', '.join(names)}: {reason}" if names else reason


def _match(name: str, assets: Sequence[Asset], wanted: _Wanted) -> tuple[Match | None, list[_Objection]]:
    """Return an id's match, or an objection for each wanted variable that it lacks."""
    chosen: dict[str, list[Asset]] = {}
    derived: list[str] = []
    objections: list[_Objection] = []
    for variable, frequency in wanted.series.items():
        files, objection = _files(assets, variable, frequency, wanted)
        if objection is None:
            chosen[variable] = files
        elif wanted.allow_conversion and variable in OF_RAW_DATA:
            answers = {name: _files(assets, name, frequency, wanted) for name in OF_RAW_DATA[variable]}
            chosen |= {name: files for name, (files, _) in answers.items() if files}
            derived.append(variable)
            lacking = [reason for _, reason in answers.values() if reason]
            new = _grouped(reason for reason in lacking if reason not in objections)
            if lacking:
                reasons = ", ".join(new)
                underived = f"{objection[1]}, and it cannot be derived{': ' if reasons else ''}{reasons}"
                objections.append((objection[0], underived))
        else:
            objections.append(objection)
    for column in _OF_ONE_GRID:
        labels = {name: values_of(files, column) for name, files in chosen.items() if files[0].is_cmip7}
        if len({label for found in labels.values() for label in found}) > 1:
            shown = "; ".join(f"{name}: {', '.join(found)}" for name, found in labels.items())
            objections.append(("", f"its variables have several values of {column} ({shown}); expected one"))
    run = [asset for files in chosen.values() for asset in files] or assets
    fields = {variable: choose_field(variable, run, wanted.fields, wanted.criteria) for variable in wanted.fixed}
    objections += [("", objection) for field, objection in fields.values() if field is None]
    if objections:
        return None, objections
    fixed = {variable: field for variable, (field, _) in fields.items() if field is not None}
    each_once = {id(asset): asset for files in chosen.values() for asset in files}.values()
    ordered = sorted(each_once, key=lambda row: (row.variables, row.columns.get("date_start", ""), row.path))
    rows = [asset.columns for asset in ordered or run]
    columns = {key: cell for key, cell in rows[0].items() if all(row.get(key) == cell for row in rows)} | {"id": name}
    hours = {
        variable: next(held for held in made_of(variable) if held in files[0].variables)
        for variable, files in chosen.items()
        if files[0].columns.get("xrfreq") in SUB_DAILY
    }
    found = Match(name, tuple(ordered), tuple(chosen), tuple(derived), wanted.periods, columns, fixed, hours=hours)
    for preset in found.presets:
        totals = preset.accumulations(found.variables)
        found = replace(found, units={**found.units, **preset.units}, accumulation={**found.accumulation, **totals})
    return found, []


def made_of(variable: str) -> tuple[str, ...]:
    """Return the variables whose hours may make a daily one: itself, and tas if it is tasmax or tasmin."""
    return (variable, variable[:-3]) if variable.endswith(("max", "min")) else (variable,)


def _hours_of(assets: Sequence[Asset], variable: str) -> list[Asset]:
    """Return the files of the shortest steps of a variable, or of the one whose hours make it."""
    for name in made_of(variable):
        for hours in SUB_DAILY:
            if found := [row for row in assets if name in row.variables and row.columns.get("xrfreq") == hours]:
                return found
    return []


def _files(
    assets: Sequence[Asset], variable: str, frequency: str, wanted: _Wanted
) -> tuple[list[Asset], _Objection | None]:
    """Return the files of a variable at a frequency, or an objection."""
    having = [asset for asset in assets if variable in asset.variables]
    by_hours = _hours_of(assets, variable) if frequency == "D" else []
    remedy = "; `allow_resampling: true` makes days of hours" if by_hours else ""
    if not having and not (by_hours and wanted.allow_resampling):
        return [], ("", f"{variable} is missing (there are {listed(values_of(assets, 'variable'))}){remedy}")
    exact = [asset for asset in having if asset.columns.get("xrfreq") == frequency]
    is_of_hours = not exact and wanted.allow_resampling
    exact = by_hours if is_of_hours else exact
    if not exact:
        there = listed(values_of(having, "xrfreq"))
        return [], ("", f"{variable} has no rows of frequency {frequency} (there are {there}){remedy}")
    for column in ("processing_level", "domain", *_OF_ONE_GRID):
        if column in _OF_ONE_GRID and not exact[0].is_cmip7:
            continue
        if len(values := values_of(exact, column)) > 1:
            several = f"{variable} is there with {column} {' and '.join(values)}"
            return [], ("", f"{several}; add {column} to other_search_criteria")
    chosen, objection = covering(exact, wanted.periods, wanted.whole, _A_DAY if is_of_hours else timedelta())
    if objection and len(labels := values_of(exact, "grid_label")) > 1:
        objection = f"it is there with grid_label {' and '.join(labels)}; add grid_label to other_search_criteria"
    return chosen, (variable, objection) if objection else None


def _first_members(found: Mapping[str, Match], number: int) -> dict[str, Match]:
    """Keep the first members of those datasets that differ by member only: r2i1p1f1 comes before r10i1p1f1."""
    groups: dict[tuple[str, ...], list[Match]] = defaultdict(list)
    for match in found.values():
        # Hindcasts of several starts (s1960-r1i1p1f1) are not members of a common ensemble.
        start = re.match(r"s\d+-|", match.columns.get("member", ""))
        same = (match.columns.get(column, "") for column in ID_COLUMNS if column not in ("member", "driving_member"))
        groups[(start[0] if start else "", *same)].append(match)

    def natural(match: Match) -> tuple[tuple[int, str], ...]:
        text = match.columns.get("member", "r1") + match.columns.get("driving_member", "r1")
        return tuple((int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text))

    kept: set[str] = set()
    for members in groups.values():
        ordered = sorted(members, key=natural)
        kept |= {match.id for match in ordered[:number]}
        if len(ordered) > number:
            logger.info("of %s, the first %d by member are kept", ", ".join(match.id for match in ordered), number)
    return {name: match for name, match in found.items() if name in kept}
