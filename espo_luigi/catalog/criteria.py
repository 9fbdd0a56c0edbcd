"""Criteria and exclusions of a search: which rows of a catalogue have the wanted values."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from espo_luigi.catalog.read import CMIP7_COLUMNS, COLUMNS, Asset
from espo_luigi.errors import CatalogError, as_text, nearest

logger = logging.getLogger(__name__)

_SHOWN = 12
_OF_A_DATASET = ("id", "processing_level", "xrfreq", "domain", "grid_label", "region", "branding_suffix")
"""The columns that versions of a CMIP7 dataset share, as they share its variables."""
_WILDCARD = re.compile(r"(?<!\\)[*?$^]")
"""What makes a text a regular expression, for intake-esm too."""

# Each `*` of a pattern may end at each character of a cell, and Python tries all combinations: in a cell of 300
# characters, a hundred million take some seconds.
_MOST_STEPS, _USUAL_CELL, _LONGEST_CELL = 10**8, 300, 1000
_CHARACTER = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""What stands for one character in a regular expression: an escape, or a set in brackets."""


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | set | frozenset) else [value]


def _holds(asset: Asset, column: str, values: Sequence[Any]) -> bool:
    if column == "variable":
        return any(str(value) in asset.variables for value in values)
    cell = asset.columns.get(column)
    return any(_equal(cell, value) for value in values)


def fits(asset: Asset, criteria: Mapping[str, Any]) -> bool:
    """Whether a row has a wanted value in every column that the criteria name."""
    return all(_holds(asset, column, _as_list(value)) for column, value in criteria.items())


def _is_unknown(asset: Asset, column: str) -> bool:
    """Whether a cell is faulty and empty, so that the search may want its row."""
    return column in asset.faults and not (asset.variables if column == "variable" else asset.columns.get(column))


def _equal(cell: str | None, value: Any) -> bool:
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


def _check_criterion(assets: Sequence[Asset], column: str, values: Sequence[Any]) -> None:
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


def _steps(pattern: str) -> float:
    """Return a bound of the steps in which Python finds a regular expression in a cell; infinite if there is none."""
    characters = _CHARACTER.findall(pattern)
    plain = _CHARACTER.sub("c", pattern).replace("(?:", "(")
    if any(re.fullmatch(r"\\[1-9]", one) for one in characters) or re.search(r"\)[*+{]|\(\?", plain):
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
        values = _as_list(value)
        _check_criterion(assets, column, values)
        kept = [asset for asset in assets if not _holds(asset, column, values)]
        trail.append(f"{len(kept)} without {column} = {listed(values)}")
        refuse_empty(kept, assets, column, f"{column} other than {listed(values)}", trail)
        assets = kept
    return assets


def select(
    assets: list[Asset], criteria: Mapping[str, Any], trail: list[str], *, joined: Sequence[str] = ()
) -> list[Asset]:
    """Return the rows that all criteria fit, noting counts in `trail`; raises `CatalogError` if none is left.

    A warning names the wanted values that no row has, except the `joined` values.
    """
    for column, value in criteria.items():
        values = _as_list(value)
        _check_criterion(assets, column, values)
        kept = [asset for asset in assets if _holds(asset, column, values) or _is_unknown(asset, column)]
        trail.append(f"{len(kept)} with {column} = {listed(values)}")
        refuse_empty(kept, assets, column, f"{column} = {listed(values)}", trail, wanted=values)
        _warn_of_what_is_nowhere(kept, assets, column, [value for value in values if value not in joined])
        assets = kept
    return assets


def newest_versions(assets: Sequence[Asset], criteria: Mapping[str, Any], exclusions: Mapping[str, Any]) -> list[Asset]:
    """Return the rows without those of older versions of the same CMIP7 dataset, which a message names.

    Versions and paths that criteria or exclusions leave out do not count.
    """
    wanted = _as_list(criteria["version"]) if "version" in criteria else None
    without = {column: _as_list(exclusions[column]) for column in ("version", "path") if column in exclusions}
    datasets: dict[tuple[object, ...], dict[str, list[Asset]]] = {}
    for asset in assets:
        counts = wanted is None or _holds(asset, "version", wanted)
        if asset.is_cmip7 and counts and not any(_holds(asset, column, values) for column, values in without.items()):
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


def _warn_of_what_is_nowhere(kept: list[Asset], before: list[Asset], column: str, values: Sequence[Any]) -> None:
    nowhere = [value for value in values if not any(_holds(asset, column, [value]) for asset in kept)]
    if nowhere:
        others = [known for known in values_of(before, column) if not any(_equal(known, value) for value in values)]
        hint = _hint(nowhere, others)
        logger.warning("the search finds nothing with %s = %s, and goes on without.%s", column, listed(nowhere), hint)


def _hint(wanted: Iterable[Any], values: list[str]) -> str:
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
    hint = _hint(wanted, values)
    raise CatalogError(
        f"nothing found: no row has {what}; the values of {column} there are: {listed(values) or '(none)'}.{hint} "
        f"Rows: {'; '.join(trail)}."
    )


def values_of(assets: Iterable[Asset], column: str) -> list[str]:
    """Return the different values of a column, sorted."""
    if column == "variable":
        return sorted({name for asset in assets for name in asset.variables})
    return sorted({asset.columns[column] for asset in assets if column in asset.columns})


def listed(values: Iterable[Any], separator: str = ", ") -> str:
    """Return values as a text that stays short."""
    texts = [as_text(str(value)) for value in values]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return separator.join(texts[:_SHOWN]) + more
