"""Joining each future experiment with the runs that it continues."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from espo_luigi.catalog.criteria import Period, bounds
from espo_luigi.catalog.read import ID_COLUMNS, PARENT_COLUMNS, Asset

HISTORICAL = "historical"
HISTORIES = (HISTORICAL, "esm-hist")
"""The experiments that scenarios of CMIP7 continue: with concentrations, and with emissions."""
NO_PARENT = "no parent"
"""The `parent_experiment` of a run whose files deny a parent."""

_NOT_FUTURE = {HISTORICAL, "piControl"}
_SAME_RUN = tuple(column for column in ID_COLUMNS if column not in ("activity", "experiment"))
# Monthly stamps leave such a gap between parent and child. Opening daily data names each missing day.
_LONGEST_GAP = timedelta(days=31)


@dataclass(frozen=True)
class Dispatched:
    """Assets after historical runs were copied to the futures that continue them."""

    assets: list[Asset]
    objections: Mapping[str, str] = field(default_factory=dict)
    """By id, why a future cannot be used: no historical run precedes it, or its run has two ids."""
    doubts: Mapping[str, str] = field(default_factory=dict)
    """By id, the parent that a scenario of CMIP6 names in place of the historical run that is joined to it."""


def dispatch_history(assets: Sequence[Asset], periods: Sequence[Period] = ()) -> Dispatched:
    """Copy the rows of historical runs to the futures that continue them, with those futures' ids.

    A future of CMIP7 continues its parent, and its parent's parent, until the `periods` are covered. Any other future
    continues `historical` of the same run. The historical rows themselves are left out. Rows without an
    experiment (observations, reanalyses) stay.
    """
    older = _join_historical([asset for asset in assets if not asset.is_cmip7])
    rows, objections = list(older.assets), dict(older.objections)
    runs: dict[str, list[Asset]] = defaultdict(list)
    for asset in assets:
        runs[asset.id].append(asset)
    for name, run in runs.items():
        own = [asset for asset in run if asset.is_cmip7]
        experiment = _cell(own[0], "experiment") if own else ""
        if not own or experiment in HISTORIES:
            continue
        rows += own
        if experiment and "id" not in own[0].faults and "picontrol" not in experiment.lower():
            before, objection = _chain(own, runs.values(), periods)
            rows += before
            objections |= {name: objection} if objection else {}
    return Dispatched(rows, objections, older.doubts)


def _join_historical(assets: Sequence[Asset]) -> Dispatched:
    """Copy every historical row to each future experiment of the same run, with that experiment's activity and id.

    The same run means equal institution, source, member, domain and so on: all columns of the id but activity and
    experiment. A future of CMIP6 without such a run continues its parent, which another institution may have made.
    """
    histories: dict[str, list[Asset]] = defaultdict(list)
    for asset in assets:
        if asset.columns.get("experiment") == HISTORICAL:
            histories[asset.id].append(asset)
    runs: dict[tuple[str, ...], list[Asset]] = defaultdict(list)
    for asset in assets:
        runs[tuple(_cell(asset, column) for column in _SAME_RUN)].append(asset)
    result: list[Asset] = []
    objections: dict[str, str] = {}
    doubts: dict[str, str] = {}
    for run in runs.values():
        history = [asset for asset in run if asset.columns.get("experiment") == HISTORICAL]
        futures, several = _futures(run)
        objections |= several
        result += [asset for asset in run if asset.columns.get("experiment") != HISTORICAL]
        if history:
            result += [_copy(asset, future) for future in futures.values() for asset in history]
            doubts |= {
                future.id: f"its files name {_called(_parent_named(future))} as parent; {history[0].id} is joined to it"
                for future in futures.values()
                if any(_parent_named(future))
            }
            continue
        for future in futures.values():
            rows, objection = _historical_parent(future, histories.values())
            result += [_copy(asset, future, ID_COLUMNS) for asset in rows]
            objections |= {future.id: objection} if objection else {}
    return Dispatched(result, objections, doubts)


def _historical_parent(future: Asset, histories: Iterable[list[Asset]]) -> tuple[list[Asset], str]:
    """Return the rows of a future's historical run under another institution or member, or an objection.

    CMIP6's files name their parent without its institution; a source has one set of members for all institutions.
    """
    lonely = "no historical run of the same simulation is in the catalogue"
    if future.columns.get("mip_era") != "CMIP6":
        return [], lonely
    named = _parent_named(future)
    own = ("CMIP6", "", future.columns.get("source", ""), HISTORICAL, future.columns.get("member", ""))
    parent = named if HISTORICAL in named else own
    may_differ = {"institution", "member"} if parent is named else {"institution"}
    shared = [column for column in _SAME_RUN if column not in may_differ]
    similar = [run for run in histories if all(_cell(run[0], name) == _cell(future, name) for name in shared)]
    rows, objection = _rows_of_parent(parent, [future], similar)
    if "ambiguous" in objection:
        return [], f"its history, {_called(parent)}, {objection}"
    return rows, "" if rows else lonely


def _cell(asset: Asset, column: str) -> str:
    return asset.columns.get(column, "")


def _futures(run: Sequence[Asset]) -> tuple[dict[tuple[str, str], Asset], dict[str, str]]:
    """Return a row of each future (activity and experiment) of a run, and objections to futures with two ids."""
    futures: dict[tuple[str, str], Asset] = {}
    objections: dict[str, str] = {}
    for asset in run:
        experiment = asset.columns.get("experiment")
        if experiment is None or experiment in _NOT_FUTURE or "id" in asset.faults:
            continue
        first = futures.setdefault((asset.columns.get("activity", ""), experiment), asset)
        if first.id != asset.id:
            several = (
                f"experiment {experiment} of one run has two ids, {first.id} and {asset.id} ({first.path}, "
                f"{asset.path}); expected one. Correct the id column of the catalogue"
            )
            objections |= {first.id: several, asset.id: several}
    return futures, objections


def _copy(asset: Asset, future: Asset, columns: Sequence[str] = ("activity", "experiment")) -> Asset:
    """Return a row of a run with the id of the future that continues the run."""
    return asset.with_columns(**{name: future.columns[name] for name in ("id", *columns) if name in future.columns})


def _chain(run: list[Asset], runs: Iterable[list[Asset]], periods: Sequence[Period]) -> tuple[list[Asset], str]:
    """Return the rows of the runs before a run with that run's id, and an objection if a needed run is absent.

    Each run is cut on the first day of its child. The chain ends where the periods begin, at a run
    without parent, and at control runs, whose years are not those of the calendar.
    """
    begin = min((bounds(period)[0] for period in periods), default=None)
    chained: list[Asset] = []
    link, seen = run, {run[0].id}
    while starts := [asset.start for asset in _dated(link) if asset.start is not None]:
        first = min(starts)
        if begin is not None and first <= begin:
            break
        named = {_parent_named(asset) for asset in link if any(_parent_named(asset))} or {_usual_parent(link[0])}
        if len(named) > 1:
            return [], f"the files of {link[0].id} name several parents: {' and '.join(sorted(map(_called, named)))}"
        parent = named.pop()
        if not any(parent) or NO_PARENT in parent or "picontrol" in "".join(parent).lower():
            break
        rows, objection = _rows_of_parent(parent, link, runs)
        last = max((asset.end for asset in _dated(rows) if asset.end is not None), default=first)
        if not objection and last < first - _LONGEST_GAP:
            objection = f"ends before {last:%Y-%m-%d}, and {link[0].id} begins on {first:%Y-%m-%d}: years are missing"
        if objection:
            return [], f"its history, {_called(parent)}, which is the parent of {link[0].id}, {objection}"
        if rows[0].id in seen:
            break
        later = {id(asset) for asset in _dated(rows) if asset.start is not None and asset.start >= first}
        link = [asset for asset in rows if id(asset) not in later]
        seen.add(rows[0].id)
        chained += [replace(_copy(asset, run[0], ID_COLUMNS), until=first) for asset in link]
    return chained, ""


def _dated(rows: Iterable[Asset]) -> list[Asset]:
    """Return the daily rows whose dates can be used, or all that have any if none is daily."""
    dated = [
        asset for asset in rows if not {"date_start", "date_end"} & set(asset.faults) and asset.start and asset.end
    ]
    return [asset for asset in dated if asset.columns.get("xrfreq") == "D"] or dated


def _parent_named(asset: Asset) -> tuple[str, ...]:
    """Return the cells of a row's `PARENT_COLUMNS`; absent cells are empty texts."""
    return tuple(asset.columns.get(column, "") for column in PARENT_COLUMNS)


def _usual_parent(asset: Asset) -> tuple[str, ...]:
    """Return the parent of a scenario whose row names none: of the same source and member, as CMIP7 defines it."""
    experiment, own = asset.columns.get("experiment", ""), asset.columns
    before = (
        "esm-hist" if experiment.startswith("esm-scen7-") else HISTORICAL if experiment.startswith("scen7-") else ""
    )
    if before and experiment.endswith("-ext"):
        before = experiment.removesuffix("-ext")
    return (
        ("CMIP7", "", own.get("source", ""), before, own.get("member", "")) if before else ("",) * len(PARENT_COLUMNS)
    )


def _called(parent: Sequence[str]) -> str:
    """Return a parent in words: "historical of UKCM2-0-LL, r1i1p1f1 (CMIP7, CMIP)"."""
    era, activity, source, experiment, member = parent
    project = ", ".join(filter(None, (era, activity)))
    return f"{experiment} of {source or 'any source'}, {member or 'any member'} ({project})"


def _rows_of_parent(
    parent: Sequence[str], child: Sequence[Asset], runs: Iterable[list[Asset]]
) -> tuple[list[Asset], str]:
    """Return the rows of a named run on the child's grid and region, or an objection."""
    found = [run for run in runs if _fits(run[0], parent, child[0])]
    same = [run for run in found if run[0].columns.get("institution") == child[0].columns.get("institution")]
    # Files do not name the parent's institution, which may differ.
    chosen = same or found
    if not chosen:
        return [], "is not in the catalogue"
    if len(chosen) > 1:
        return [], f"is ambiguous: {' and '.join(run[0].id for run in chosen)}. Exclude one of them"
    rows = chosen[0]
    for column in ("grid_label", "region"):
        wanted = {asset.columns[column] for asset in child if column in asset.columns}
        there = {asset.columns[column] for asset in rows if column in asset.columns}
        rows = [asset for asset in rows if not wanted or asset.columns.get(column, "") in {"", *wanted}]
        if not rows:
            return [], f"has another {column}: {', '.join(sorted(there))} in place of {', '.join(sorted(wanted))}"
    return rows, ""


def _fits(run: Asset, parent: Sequence[str], child: Asset) -> bool:
    columns = [name.removeprefix("parent_") for name in PARENT_COLUMNS]
    named = all(not value or run.columns.get(name) == value for name, value in zip(columns, parent, strict=True))
    return named and all(run.columns.get(name) == child.columns.get(name) for name in ("domain", "processing_level"))
