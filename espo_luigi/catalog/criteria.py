"""What a search asks of rows: wanted values, versions, periods that files cover, and fixed fields of the same grid."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from espo_luigi.catalog.read import CMIP7_COLUMNS, COLUMNS, Asset, parse_date
from espo_luigi.errors import CatalogError, as_text, nearest
from espo_luigi.science.periods import each_period

logger = logging.getLogger(__name__)

_OF_A_DATASET = ("id", "processing_level", "xrfreq", "domain", "grid_label", "region", "branding_suffix")
"""The columns that versions of a CMIP7 dataset share, as they share its variables."""
_WILDCARD = re.compile(r"(?<!\\)[*?$^]")
"""What makes a text a regular expression, for intake-esm too."""

# Each `*` of a pattern may end at each character of a cell, and Python tries all combinations: in a cell of 300
# characters, a hundred million take some seconds.
_MOST_STEPS, _USUAL_CELL, _LONGEST_CELL = 10**8, 300, 1000
_CHARACTER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""What stands for one character in a regular expression: an escape, or a set in brackets."""


MINIMUM_COVERAGE = 0.99
"""The fraction of a period's hours that files must cover."""

Period = tuple[str, str]

FIXED = "fx"
"""The `xrfreq` of fields without time."""

_OF_A_RUN = ("id", "activity", "driving_model", "driving_member", "institution", "experiment", "member")
"""The columns that may differ: the land of a model is the same in all of its runs, whichever institution made them."""
_OF_A_GRID = ("mip_era", "source", "domain", "processing_level", "bias_adjust_project", "grid_label", "region")
"""The columns that must agree where both rows have them."""


def as_list(value: Any) -> list[Any]:
    """Return the values of a criterion, which may be a single one."""
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


def holds(asset: Asset, column: str, values: Sequence[Any]) -> bool:
    """Whether a row's cell fits a wanted value."""
    if column == "variable":
        return any(str(value) in asset.variables for value in values)
    cell = asset.columns.get(column)
    return any(equals(cell, value) for value in values)


def fits(asset: Asset, criteria: Mapping[str, Any]) -> bool:
    """Whether a row has a wanted value in every column that the criteria name."""
    return all(holds(asset, column, as_list(value)) for column, value in criteria.items())


def _is_unknown(asset: Asset, column: str) -> bool:
    """Whether a cell is faulty and empty, so that the search may want its row."""
    return column in asset.faults and not (asset.variables if column == "variable" else asset.columns.get(column))


def equals(cell: str | None, value: Any) -> bool:
    """Whether a cell is a wanted value, or fits its regular expression."""
    if cell is None or value is None:
        return cell is value
    if isinstance(value, re.Pattern):
        return value.search(cell) is not None
    text = str(value)
    if cell == text or not _WILDCARD.search(text):
        return cell == text
    if len(cell) > _LONGEST_CELL:
        raise CatalogError(
            f"got a cell of {len(cell)} characters, {cell[:80]!r}…; expected {_LONGEST_CELL} at most where a criterion "
            "is a regular expression. Shorten the cell, or list the wanted values"
        )
    return re.search(text, cell) is not None


def _checked(assets: Sequence[Asset], column: str, value: Any) -> list[Any]:
    """Return the values of a criterion, all of which can be compared with cells."""
    values = as_list(value)
    known = {name for asset in assets for name in asset.columns} | {*COLUMNS, *CMIP7_COLUMNS}
    if column not in known:
        hint = nearest(column, sorted(known), hint=" (did you mean {}?)")
        raise CatalogError(
            f"criterion {column!r} is no column of the catalogue{hint}; it has {', '.join(sorted(known))}."
        )
    for value in values:
        pattern = str(value) if _WILDCARD.search(str(value)) else ""
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise CatalogError(f"criterion {column}: {value!r} is not a regular expression ({error}).") from None
        if _steps(pattern) > _MOST_STEPS:
            raise CatalogError(
                f"criterion {column}: {value!r} might take hours to compare; expected a regular expression without "
                "repeated groups such as `(a+)+` and back-references, and with two or three `*` or `+`, as in "
                "^CMIP6_.*_(ssp245|ssp585)_r1i. Write it so, or list the values."
            )
    return values


def _steps(pattern: str) -> float:
    """Return a bound of the steps in which Python finds a regular expression in a cell; infinite if there is none."""
    characters = _CHARACTER.findall(pattern)
    plain = _CHARACTER.sub("c", pattern).replace("(?:", "(")
    if any(re.fullmatch(r"\\[1-9]", part) for part in characters) or re.search(r"\)[*+{]|\(\?", plain):
        return float("inf")
    starts = 0 if plain.startswith("^") else 1
    # At the ends, `.*` matches whatever is there.
    inner = re.sub(r"^\^?\.\*|\.\*\$?$", "", re.sub(r"([*+?}])[?+]", r"\1", plain))
    repeats, groups = len(re.findall(r"[*+{]", inner)), inner.count("(")
    # The product of the groups' alternatives is largest if all have as many.
    choices = ((inner.count("|") + groups) / groups) ** groups if groups else inner.count("|") + 1
    return float(_USUAL_CELL ** (repeats + starts) * 2 ** inner.count("?") * choices)


def exclude(assets: list[Asset], exclusions: Mapping[str, Any], trail: list[str]) -> list[Asset]:
    """Return the rows that no exclusion fits, noting counts in `trail`; raises `CatalogError` if none is left."""
    for column, value in exclusions.items():
        values = _checked(assets, column, value)
        kept = [asset for asset in assets if not holds(asset, column, values)]
        trail.append(f"{len(kept)} without {column} = {listed(values)}")
        refuse_empty(kept, assets, column, f"{column} other than {listed(values)}", trail)
        assets = kept
    return assets


def select(
    assets: list[Asset], criteria: Mapping[str, Any], trail: list[str], *, joined: Sequence[str] = ()
) -> list[Asset]:
    """Return the rows that all criteria fit, noting counts in `trail`; raises `CatalogError` if none is left.

    A row may fit by a faulty, empty cell. A warning names the wanted values that no row has, except the `joined`.
    """
    for column, value in criteria.items():
        values = _checked(assets, column, value)
        kept = [asset for asset in assets if holds(asset, column, values) or _is_unknown(asset, column)]
        trail.append(f"{len(kept)} with {column} = {listed(values)}")
        refuse_empty(kept, assets, column, f"{column} = {listed(values)}", trail, wanted=values)
        absent = [v for v in values if v not in joined and not any(holds(row, column, [v]) for row in kept)]
        if absent:
            others = [known for known in values_of(assets, column) if not any(equals(known, value) for value in values)]
            message = "the search finds nothing with %s = %s, and goes on without.%s"
            logger.warning(message, column, listed(absent), hint_for(absent, others))
        assets = kept
    return assets


def newest_versions(assets: Sequence[Asset], criteria: Mapping[str, Any], exclusions: Mapping[str, Any]) -> list[Asset]:
    """Return the rows without those of older versions of the same CMIP7 dataset, which a message names.

    Versions and paths that criteria or exclusions leave out do not count.
    """
    wanted = as_list(criteria["version"]) if "version" in criteria else None
    without = {column: as_list(exclusions[column]) for column in ("version", "path") if column in exclusions}
    datasets: dict[tuple[object, ...], dict[str, list[Asset]]] = {}
    for asset in assets:
        counts = wanted is None or holds(asset, "version", wanted)
        if asset.is_cmip7 and counts and not any(holds(asset, column, values) for column, values in without.items()):
            same = tuple(asset.columns.get(column, "") for column in _OF_A_DATASET)
            versions = datasets.setdefault((asset.variables, *same), {})
            versions.setdefault(asset.columns.get("version", ""), []).append(asset)
    older: set[int] = set()
    named: list[str] = []
    for versions in datasets.values():
        *former, newest = sorted(versions, key=lambda version: (len(version), version))
        for version in former:
            older |= {id(asset) for asset in versions[version]}
            first, number = versions[version][0], version or "a version without number"
            named.append(f"{first.id}, {listed(first.variables)}: version {newest} is used, and {number} is left out")
    if named:
        logger.warning("%s. An exclusion of version chooses another.", listed(named, "; "))
    return [asset for asset in assets if id(asset) not in older]


def hint_for(wanted: Iterable[Any], values: list[str]) -> str:
    """Return the value that a wanted one was probably meant to be, as a question."""
    hints = (nearest(str(value), values, cutoff=0.8, hint=" Did you mean {}?") for value in wanted)
    return next(filter(None, hints), "")


def refuse_empty(
    kept: Sequence[Asset],
    before: Sequence[Asset],
    column: str,
    what: str,
    trail: Sequence[str],
    wanted: Sequence[Any] = (),
) -> None:
    """Raise `CatalogError` if no row is left, with the wanted values, the values there, and the counts so far."""
    if kept:
        return
    values = values_of(before, column)
    hint = hint_for(wanted, values)
    raise CatalogError(
        f"nothing found: no row has {what}; the values of {column} there are: {listed(values) or '(none)'}.{hint} "
        f"Rows: {'; '.join(trail)}."
    )


def values_of(assets: Iterable[Asset], column: str) -> list[str]:
    """Return the different values of a column, sorted."""
    if column == "variable":
        return sorted({name for asset in assets for name in asset.variables})
    return sorted({asset.columns[column] for asset in assets if column in asset.columns})


def listed(values: Iterable[Any], separator: str = ", ", most: int = 12) -> str:
    """Return values as a text that stays short."""
    texts = [as_text(str(value)) for value in values]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + more


def as_periods(periods: Sequence[str] | Sequence[Sequence[str]] | None) -> tuple[Period, ...]:
    """Return periods, ``(start, end)`` or a sequence of such pairs, as a tuple of pairs; empty for None.

    Raises `CatalogError` if it is none of these, or a period ends before it starts.
    """
    pairs = [tuple(str(bound) for bound in period) for period in each_period(periods)] if periods else []
    proper = tuple((pair[0], pair[1]) for pair in pairs if len(pair) == 2)
    if len(proper) < len(pairs) or any(bounds(pair)[0] >= bounds(pair)[1] for pair in proper):
        raise CatalogError(f"periods {periods!r}: expected [start, end] with start before end, or a list of such.")
    return proper


def bounds(period: Period) -> tuple[datetime, datetime]:
    """The beginning of a period's first day and the end of its last."""
    start, end = parse_date(period[0], "a period"), parse_date(period[1], "a period", end=True)
    assert start is not None and end is not None
    return start, end


def covering(
    assets: Sequence[Asset], periods: Sequence[Period], whole: Period | None = None, around: timedelta = timedelta()
) -> tuple[list[Asset], str | None]:
    """Choose the files of one variable that overlap the periods, in time order, or say why they cannot be used.

    Parameters
    ----------
    assets : sequence of Asset
    periods : sequence of (start, end)
        Each is covered to 99 % of its hours, without overlap.
    whole : (start, end), optional
        Years of which files reach the first and the last day; 30 December is the last in a 360-day calendar.
    around : timedelta, optional
        How much files may overlap, and how long before and after a period they are chosen.

    Returns
    -------
    chosen : list of Asset
        The files that share a day with a period. Without periods, all files; with an objection, an empty list.
    objection : str or None
    """
    if not periods and whole is None:
        return list(assets), None
    dated = sorted(((asset.start, asset.end, asset) for asset in assets if asset.start and asset.end), key=_first)
    if len(dated) < len(assets):
        undated = next(asset for asset in assets if not (asset.start and asset.end))
        return [], f"no date_start or date_end for {undated.path}"
    for period in periods:
        begin, end = bounds(period)
        if latest := next((pair for pair in itertools.pairwise(dated) if pair[0][1] - around > pair[1][0]), None):
            paths = " and ".join(asset.path for *_, asset in latest)
            return [], f"{paths} overlap in time; leave one of them out of the catalogue, or exclude it"
        shared = sum((_shared(asset, begin, end) for *_, asset in dated), timedelta()) / (end - begin)
        if shared < MINIMUM_COVERAGE:
            extents = listed((f"{a.columns['date_start']} to {a.columns['date_end']}" for *_, a in dated), most=5)
            wanted = "-".join(period)
            remedy = _stretches(dated, begin, end)
            expected = f"expected at least {MINIMUM_COVERAGE:.0%}{remedy}"
            return [], f"files cover {shared:.1%} of {wanted} ({extents}), {expected}"
    begins, ends = dated[0][0], max(end for _, end, _ in dated) - timedelta(days=1)
    if whole and (begins > datetime(int(whole[0]), 1, 1) or ends < datetime(int(whole[1]), 12, 30)):
        return [], (
            f"covers {begins:%Y-%m-%d} to {ends:%Y-%m-%d}, expected all of {'-'.join(whole)}: add the missing files to "
            "the catalogue, or exclude the dataset"
        )
    spans = [(begin - around, end + around) for begin, end in map(bounds, periods)]
    return [asset for *_, asset in dated if not periods or any(_shared(asset, *span) for span in spans)], None


def _stretches(dated: Sequence[tuple[datetime, datetime, Asset]], begin: datetime, end: datetime) -> str:
    """Tell how a period is written of which files lack whole years in the middle; nothing for other gaps."""
    days = [(max(first, begin), min(last, end) - timedelta(days=1)) for first, last, _ in dated]
    firsts = [days[0][0], *(after[0] for before, after in itertools.pairwise(days) if _apart(before, after))]
    lasts = [*(before[1] for before, after in itertools.pairwise(days) if _apart(before, after)), days[-1][1]]
    # 30 December is the last day in a 360-day calendar.
    whole = all(day == (1, 1) for day in ((first.month, first.day) for first in firsts))
    if len(firsts) == 1 or not whole or any((last.month, last.day) < (12, 30) for last in lasts):
        return ""
    years = ", ".join(f"[{first:%Y}, {last:%Y}]" for first, last in zip(firsts, lasts, strict=True))
    return f". To leave out the years between, give `custom.sim_period: [{years}]`"


def _apart(before: tuple[datetime, datetime], after: tuple[datetime, datetime]) -> bool:
    return after[0].year > before[1].year + 1


def overlaps(asset: Asset, periods: Sequence[Period]) -> bool:
    """Whether a file with dates shares at least a day with a period."""
    return any(_shared(asset, *bounds(period)) for period in periods)


def _first(dated: tuple[datetime, datetime, Asset]) -> datetime:
    return dated[0]


def _shared(asset: Asset, begin: datetime, end: datetime) -> timedelta:
    return max(min(asset.end or end, end) - max(asset.start or begin, begin), timedelta())


def usable_fields(assets: Iterable[Asset], exclusions: Mapping[str, Any]) -> list[Asset]:
    """Return the rows of fixed fields that are sound, and that no exclusion fits.

    Exclusions of a run (its id, experiment, member and so on) do not count: its fields may serve other runs.
    """
    others = {column: value for column, value in exclusions.items() if column not in _OF_A_RUN}
    fields = (asset for asset in assets if asset.columns.get("xrfreq") == FIXED and not asset.faults)
    return [asset for asset in fields if not any(fits(asset, {column: value}) for column, value in others.items())]


def choose_field(
    variable: str, run: Sequence[Asset], fields: Sequence[Asset], criteria: Mapping[str, Any]
) -> tuple[Asset | None, str]:
    """Return the row of a fixed field that serves a run, or an objection.

    The run's own field is preferred, then a row that fits the search's criteria, then the row that shares most columns
    with the run. Ids and paths decide the rest.
    """
    named = [asset for asset in fields if variable in asset.variables]
    own = run[0].columns

    def rank(field: Asset) -> tuple[Any, ...]:
        apart = sum(field.columns.get(column) != own.get(column) for column in _OF_A_RUN)
        return field.id != run[0].id, not fits(field, criteria), apart, field.id, field.path

    serving = sorted((asset for asset in named if _serves(asset, run)), key=rank)
    if serving:
        return serving[0], ""
    if not named:
        return None, f"{variable} has no rows of frequency {FIXED} in the catalogue"
    grids = (f"{column} {listed(values_of(named, column))}" for column in _OF_A_GRID if values_of(named, column))
    return None, f"{variable} is there, but not of its source and grid (there are fields of {'; '.join(grids)})"


def _serves(field: Asset, run: Sequence[Asset]) -> bool:
    source = run[0].columns.get("source")
    same = field.id == run[0].id or (source is not None and field.columns.get("source") == source)
    return same and not any(
        {field.columns.get(column, "")} - {"", *values} for column in _OF_A_GRID if (values := values_of(run, column))
    )
