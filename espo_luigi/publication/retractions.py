"""Products made of retracted or superseded data, by a list as ESGF's services export it (or people write it).

Errata name a dataset `CMIP6.….gn#20190429`, a search names it `CMIP6.….gn.v20190429`; files have tracking ids.
https://errata.ipsl.fr, https://esgf.github.io/esg-search/ESGF_Search_RESTful_API.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import CatalogError, StoreError
from espo_luigi.files import parse_json, read_text
from espo_luigi.publication.origin import UUID
from espo_luigi.publication.products import LOOK_AT_RAW_FILES, find_products, raw_files

# It begins where a name does: from each of its points on, it would be looked through again.
_DATASET = re.compile(r"(?<![\w-])(?<![\w-]\.)((?:[\w-]+\.){5,}[\w-]+)(?:\.v|#v?)(\d+)\b")
# A version's folder in ESGF's tree. It has files (CMIP6), or variables' folders with files (CMIP5), or is a Zarr store.
_IN_TREE = re.compile(r"((?:[^/]+/){6,}v\d+)(?:/[^/]+){0,2}/?$")
# In an export of errata, the identifiers of issues, which are UUIDs, too.
_OF_ISSUES = ("uid", "errata_id", "errata_ids")
_EXPECTED = "expected tracking ids (hdl:21.14100/…), or datasets with a version (CMIP6.….gn.v20190429)"


@dataclass(frozen=True)
class Checked:
    """How many identifiers a list has; those found, by product and raw file; what it cannot check, with the reason.

    References none of whose files has a tracking id or a place in ESGF's tree are `outside_esgf`.
    """

    listed: int
    found: Mapping[str, Mapping[str, str]]
    unchecked: Mapping[str, str]
    outside_esgf: Sequence[str]


def check(path: Path, folder: Path) -> Checked:
    """Look raw files of the products below a folder up in a list, by tracking ids and their places in ESGF's tree.

    Raises
    ------
    CatalogError, StoreError
        If the list cannot be read, or the folder has no complete data.
    """
    listed, complete = _read(path), find_products(folder)
    if not (products := [each for each in complete if each.marker.task not in LOOK_AT_RAW_FILES]):
        raise StoreError(f"no product in {folder} is complete: expected the folder of products (paths.final)")
    are_paths, tables = {"/" in key for key in listed}, raw_files(complete)
    of_references = (each.marker.raw.items() for each in complete if each.marker.task == "RefInputCheck")
    outside = {raw for of in of_references for raw in of if not any(_keys(*file) for file in tables[raw].items())}
    found, unchecked = dict[str, dict[str, str]](), dict[str, str]()
    for product, raw in ((each, raw) for each in products for raw in each.marker.raw.items()):
        if not tables.get(raw):
            unchecked[raw[0]] = "its raw files are unknown, as their InputCheck is gone"
        for file, tracking_id in tables.get(raw, {}).items() if raw not in outside else ():
            keys = _keys(file, tracking_id)
            if key := next((key for key in keys if key in listed), ""):
                found.setdefault(str(product.path), {})[file] = listed[key]
            elif not are_paths & {"/" in key for key in keys}:
                unchecked[file] = f"no {' nor '.join('ESGF path' if each else 'tracking id' for each in are_paths)}"
    return Checked(len(listed), found, unchecked, sorted({name for name, _ in outside}))


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
    """The UUID of a file, and the path of its version's folder in ESGF's tree, which may begin with any folder."""
    folders = match[1].split("/") if (match := _IN_TREE.search(file.lower())) else []
    ends = ["/".join(folders[first:]) for first in range(len(folders) - 6)]
    return [uuid[0].lower() for uuid in UUID.finditer(tracking_id)] + ends
