"""Joining each future experiment with the historical run of the same simulation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from espo_luigi.catalog.read import ID_COLUMNS, Asset
from espo_luigi.errors import CatalogError

HISTORICAL = "historical"
_NOT_FUTURE = {HISTORICAL, "piControl"}
_SAME_RUN = tuple(column for column in ID_COLUMNS if column not in ("activity", "experiment"))


@dataclass(frozen=True)
class Dispatched:
    """Assets after historical runs were copied to the futures that continue them."""

    assets: list[Asset]
    without_history: frozenset[str]
    """Ids of futures that no historical run precedes."""


def dispatch_history(assets: Sequence[Asset]) -> Dispatched:
    """Copy every historical row to each future experiment of the same run, with that experiment's activity and id.

    The same run means equal institution, source, member, domain and so on: all columns of the id but activity and
    experiment. The historical rows themselves are left out. Rows without an experiment (observations, reanalyses) stay.

    Raises
    ------
    CatalogError
        If one future experiment of a run has several ids.
    """
    runs: dict[tuple[str, ...], list[Asset]] = defaultdict(list)
    for asset in assets:
        runs[tuple(asset.columns.get(column, "") for column in _SAME_RUN)].append(asset)
    result: list[Asset] = []
    lonely: set[str] = set()
    for run in runs.values():
        history = [asset for asset in run if asset.columns.get("experiment") == HISTORICAL]
        futures = _futures(run)
        result += [asset for asset in run if asset.columns.get("experiment") != HISTORICAL]
        if history:
            result += [copy for future in futures.values() for copy in _copies(history, future)]
        else:
            lonely |= {future.id for future in futures.values()}
    return Dispatched(result, frozenset(lonely))


def _futures(run: Sequence[Asset]) -> dict[tuple[str, str], Asset]:
    """One row of each future (activity and experiment) of a run."""
    futures: dict[tuple[str, str], Asset] = {}
    for asset in run:
        experiment = asset.columns.get("experiment")
        if experiment is None or experiment in _NOT_FUTURE or "id" in asset.faults:
            continue
        first = futures.setdefault((asset.columns.get("activity", ""), experiment), asset)
        if first.id != asset.id:
            raise CatalogError(
                f"experiment {experiment} of one run has two ids, {first.id} and {asset.id} "
                f"({first.path}, {asset.path}); expected one. Correct the id column of the catalogue."
            )
    return futures


def _copies(history: Sequence[Asset], future: Asset) -> list[Asset]:
    changed = {name: future.columns[name] for name in ("id", "activity", "experiment") if name in future.columns}
    return [asset.with_columns(**changed) for asset in history]
