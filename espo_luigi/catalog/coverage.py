"""How much of the wanted periods the files of one variable cover."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from espo_luigi.catalog.cells import parse_date
from espo_luigi.catalog.read import Asset
from espo_luigi.errors import CatalogError
from espo_luigi.science.choices import each_period

MINIMUM_COVERAGE = 0.99
"""The fraction of a period's hours that files must cover."""

Period = tuple[str, str]


def as_periods(periods: Sequence[str] | Sequence[Sequence[str]] | None) -> tuple[Period, ...]:
    """Return periods, ``(start, end)`` or a sequence of such pairs, as a tuple of pairs; empty for None.

    Raises
    ------
    CatalogError
        If it is none of these, or a period ends before it starts.
    """
    if not periods:
        return ()
    pairs = [tuple(str(bound) for bound in period) for period in each_period(periods)]
    proper = tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2)
    if len(proper) < len(pairs) or any(bounds(pair)[0] >= bounds(pair)[1] for pair in proper):
        raise CatalogError(f"periods {periods!r}: expected [start, end] with start before end, or a list of such.")
    return proper


def bounds(period: Period) -> tuple[datetime, datetime]:
    """The beginning of a period's first day and the end of its last."""
    start, end = parse_date(period[0], "a period"), parse_date(period[1], "a period", end=True)
    assert start is not None and end is not None
    return start, end


def covering(assets: Sequence[Asset], periods: Sequence[Period]) -> tuple[list[Asset], str | None]:
    """Choose the files of one variable that overlap the periods, in time order, or say why they cannot be used.

    Returns
    -------
    chosen : list of Asset
        The files that share a day with a period. Without periods, all files; with an objection, an empty list.
    objection : str or None
        It names files without dates, files that overlap, or a period with less than 99 % of its hours.
    """
    if not periods:
        return list(assets), None
    undated = [asset.path for asset in assets if asset.start is None or asset.end is None]
    if undated:
        return [], f"no date_start or date_end for {undated[0]}"
    ordered = sorted(assets, key=_start)
    objection = _overlap(ordered) or next(filter(None, (_shortfall(ordered, period) for period in periods)), None)
    if objection:
        return [], objection
    return [asset for asset in ordered if overlaps(asset, periods)], None


def overlaps(asset: Asset, periods: Sequence[Period]) -> bool:
    """Whether a file with dates shares at least a day with a period."""
    return any(_shared_seconds(asset, bounds(period)) for period in periods)


def _start(asset: Asset) -> datetime:
    assert asset.start is not None
    return asset.start


def _overlap(ordered: Sequence[Asset]) -> str | None:
    latest: Asset | None = None
    for asset in ordered:
        if latest is not None and latest.end > _start(asset):  # type: ignore[operator]
            return (
                f"{latest.path} and {asset.path} overlap in time; leave one of them out of the catalogue, or exclude it"
            )
        latest = asset
    return None


def _shared_seconds(asset: Asset, limits: tuple[datetime, datetime]) -> float:
    start, end = max(_start(asset), limits[0]), min(asset.end or limits[1], limits[1])
    return max((end - start).total_seconds(), 0.0)


def _shortfall(ordered: Sequence[Asset], period: Period) -> str | None:
    limits = bounds(period)
    covered = sum(_shared_seconds(asset, limits) for asset in ordered) / (limits[1] - limits[0]).total_seconds()
    if covered >= MINIMUM_COVERAGE:
        return None
    extents = ", ".join(f"{asset.columns['date_start']} to {asset.columns['date_end']}" for asset in ordered[:5])
    more = f" and {len(ordered) - 5} more" if len(ordered) > 5 else ""
    wanted = f"{period[0]}-{period[1]}"
    return f"files cover {covered:.1%} of {wanted} ({extents}{more}), expected at least {MINIMUM_COVERAGE:.0%}"
