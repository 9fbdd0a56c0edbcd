"""Products made of retracted or superseded data, by a list as ESGF's services export it (or people write it).

Errata name a dataset `CMIP6.….gn#20190429`, a search names it `CMIP6.….gn.v20190429`; files have tracking ids.
https://errata.ipsl.fr, https://esgf.github.io/esg-search/ESGF_Search_RESTful_API.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import CatalogError, StoreError
from espo_luigi.files import parse_json, read_text
from espo_luigi.publication.origin import UUID
from espo_luigi.publication.products import find_products, raw_files

_DATASET = re.compile(r"((?:[\w-]+\.){5,}[\w-]+)(?:\.v|#v?)(\d+)\b")
# The end of a path in ESGF's tree: a version's folder, and a file (CMIP6), or a variable and a file (CMIP5) in it.
_IN_TREE = re.compile(r"(?:[^/]+/){6}v\d+(?:/[^/]+){0,2}/?$")
# In an export of errata, the identifiers of issues, which are UUIDs, too.
_OF_ISSUES = ("uid", "errata_id", "errata_ids")
_EXPECTED = "expected tracking ids (hdl:21.14100/…), or datasets with a version (CMIP6.….gn.v20190429)"


@dataclass(frozen=True)
class Checked:
    """Identifiers of a list by product and raw file, datasets whose raw files are unknown, and files out of its reach.

    The last have no identifier of the list's kinds, but those given.
    """

    listed: int
    found: Mapping[str, Mapping[str, str]]
    unknown: tuple[str, ...]
    cannot_be_checked: Mapping[str, tuple[str, ...]]


def check(path: Path, folder: Path) -> Checked:
    """Look raw files of the data below a folder up in a list, by their tracking ids and their places in ESGF's tree.

    Raises
    ------
    CatalogError, StoreError
        If the list cannot be read, or the folder has no complete data.
    """
    listed, products = _read(path), find_products(folder)
    if not any(product.is_data for product in products):
        raise StoreError(f"no data in {folder} are complete: expected the folder of products (paths.final)")
    kinds, tables = {"ESGF path" if "/" in key else "tracking id" for key in listed}, raw_files(products)
    found, unknown, unchecked = dict[str, dict[str, str]](), set[str](), dict[str, tuple[str, ...]]()
    for product, raw in ((one, raw) for one in products if one.is_data for raw in one.marker.raw.items()):
        if not tables.get(raw):
            unknown.add(raw[0])
        for file, tracking_id in tables.get(raw, {}).items():
            has = {"ESGF path": _IN_TREE.search(file.lower()), "tracking id": UUID.search(tracking_id)}
            if key := next((key for key in _keys(file, tracking_id) if key in listed), ""):
                found.setdefault(str(product.path), {})[file] = listed[key]
            elif not any(has[kind] for kind in kinds):
                unchecked[file] = tuple(kind for kind in has if has[kind])
    return Checked(len(listed), found, tuple(sorted(unknown)), unchecked)


def _read(path: Path) -> dict[str, str]:
    """The identifiers in a list, by the keys of `_keys`."""
    try:
        text = read_text(path, encoding="utf-8-sig")
        if text.lstrip()[:1] in ("{", "["):
            parsed = parse_json(text, lambda pairs: [value for key, value in pairs if key not in _OF_ISSUES])
            text = json.dumps(parsed)
        else:
            for number, line in enumerate(text.splitlines()[path.suffix == ".csv" :], 1 + (path.suffix == ".csv")):
                if line.strip() and not line.startswith("#") and not _identifiers(line):
                    raise CatalogError(f"{path}, line {number}: got {line[:100]!r}, {_EXPECTED} in every line")
    except (OSError, ValueError) as error:
        raise CatalogError(f"{path} cannot be read ({error}); {_EXPECTED}") from None
    if not (found := _identifiers(text)):
        raise CatalogError(f"{path}: got no identifier, {_EXPECTED}")
    return found


def _identifiers(text: str) -> dict[str, str]:
    folders = {f"{match[1].replace('.', '/')}/v{match[2]}".lower(): match[0] for match in _DATASET.finditer(text)}
    return folders | {match[0].lower(): match[0] for match in UUID.finditer(text)}


def _keys(file: str, tracking_id: str) -> list[str]:
    """The UUID of a file, and folders: a Zarr store's own, a file's (CMIP6), or its variable's parent (CMIP5)."""
    parts = file.lower().split("/")
    folders = ["/".join(parts[first:last]) for last in (None, -1, -2) for first in range(len(parts))]
    return [match[0].lower() for match in UUID.finditer(tracking_id)] + folders
