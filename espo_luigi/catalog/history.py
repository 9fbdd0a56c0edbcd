"""Joining each future experiment with the historical run of the same simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from espo_luigi.catalog.read import ID_COLUMNS, Asset

HISTORICAL = "historical"
_NOT_FUTURE = {HISTORICAL, "piControl"}
_SAME_RUN = tuple(column for column in ID_COLUMNS if column not in ("activity", "experiment"))


@dataclass(frozen=True)
class Dispatched:
    """Assets after historical runs were copied to the futures that continue them."""

    assets: list[Asset]
    objections: Mapping[str, str]
    """By id, why a future cannot be used: no historical run precedes it, or its run has two ids."""


def dispatch_history(assets: Sequence[Asset]) -> Dispatched:
    """Copy every historical row to each future experiment of the same run, with that experiment's activity and id.

    The same run means equal institution, source, member, domain and so on: all columns of the id but activity and
    experiment. The historical rows themselves are left out. Rows without an experiment (observations, reanalyses) stay.
    """
    runs: dict[tuple[str, ...], list[Asset]] = defaultdict(list)
    for asset in assets:
        runs[tuple(asset.columns.get(column, "") for column in _SAME_RUN)].append(asset)
    result: list[Asset] = []
    objections: dict[str, str] = {}
    for run in runs.values():
        history = [asset for asset in run if asset.columns.get("experiment") == HISTORICAL]
        futures, several = _futures(run)
        objections |= several
        result += [asset for asset in run if asset.columns.get("experiment") != HISTORICAL]
        if history:
            result += [copy for future in futures.values() for copy in _copies(history, future)]
        else:
            lonely = "no historical run of the same simulation is in the catalogue"
            objections |= {future.id: lonely for future in futures.values()}
    return Dispatched(result, objections)


def _futures(run: Sequence[Asset]) -> tuple[dict[tuple[str, str], Asset], dict[str, str]]:
    """One row of each future (activity and experiment) of a run, and objections to those that have several ids."""
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


def _copies(history: Sequence[Asset], future: Asset) -> list[Asset]:
    changed = {name: future.columns[name] for name in ("id", "activity", "experiment") if name in future.columns}
    return [asset.with_columns(**changed) for asset in history]
