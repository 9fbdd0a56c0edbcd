"""From markers to the relations between products and their inputs, as DataCite and Zenodo take them.

https://datacite-metadata-schema.readthedocs.io/en/4.6, https://developers.zenodo.org
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from espo_luigi.errors import CatalogError, nearest
from espo_luigi.files import read_text
from espo_luigi.publication.products import Product, raw_files
from espo_luigi.replacing import by_content

_HANDLE = re.compile(r"(?:hdl:|https?://hdl\.handle\.net/)?(\d+(?:\.\d+)+/\S+)")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_DOI = re.compile(r"(?:doi:\s*|https?://(?:dx\.)?doi\.org/)?(10\.\d{4,9}/\S+)", re.IGNORECASE)
_COLUMNS = ("pattern", "doi")
# How a file of relations is known to be ours, of earlier versions, too.
RELATIONS = by_content(
    lambda content: (
        content.startswith(b'{\n "datacite": {\n  "relatedIdentifiers": [') and b'"without_doi": [' in content
    ),
    "a file of relations of `espo publish --datacite`",
)


@dataclass(frozen=True)
class Identifier:
    """The persistent identifier of an input."""

    kind: str
    """DOI, Handle or URN, as DataCite names them."""
    value: str

    @property
    def url(self) -> str:
        """An address that leads to the input; of a URN, the URN."""
        resolvers = {"DOI": "https://doi.org/", "Handle": "https://hdl.handle.net/"}
        return resolvers.get(self.kind, "") + self.value


@dataclass(frozen=True)
class Relations:
    """The identifiers of all inputs of products, and inputs that have none."""

    identifiers: tuple[Identifier, ...]
    without_doi: tuple[str, ...]
    """Datasets to which no line of the table gives a DOI."""
    without_tracking_id: tuple[str, ...]
    """Names of raw files without an identifier of their own."""
    unknown: tuple[str, ...]
    """Datasets whose table of raw files is gone."""

    def document(self) -> dict[str, Any]:
        """Return the content of the file, for DataCite and for Zenodo."""
        return {
            "datacite": {"relatedIdentifiers": [_for_datacite(one) for one in self.identifiers]},
            "zenodo": {"related_identifiers": [_for_zenodo(one) for one in self.identifiers]},
            "without_doi": list(self.without_doi),
            "without_tracking_id": list(self.without_tracking_id),
            "unknown": list(self.unknown),
        }


def _for_datacite(one: Identifier) -> dict[str, str]:
    return {
        "relatedIdentifier": one.value,
        "relatedIdentifierType": one.kind,
        "relationType": "IsDerivedFrom",
        "resourceTypeGeneral": "Dataset",
    }


def _for_zenodo(one: Identifier) -> dict[str, str]:
    # Zenodo tells the kind from the text; a handle needs its prefix for that.
    text = f"hdl:{one.value}" if one.kind == "Handle" else one.value
    return {"identifier": text, "relation": "isDerivedFrom", "resource_type": "dataset"}


def identifier_of(tracking_id: str) -> Identifier | None:
    """Return the identifier that a tracking id is: a handle (CMIP6, CMIP7), or a UUID (CMIP5); None of other texts."""
    text = tracking_id.strip()
    if match := _HANDLE.fullmatch(text):
        return Identifier("Handle", match[1])
    return Identifier("URN", f"urn:uuid:{text.lower()}") if _UUID.fullmatch(text) else None


def doi_of(text: str) -> str:
    """Return a DOI without the address before it; an empty text if it is no DOI."""
    match = _DOI.fullmatch(text.strip())
    return match[1] if match else ""


def relations(products: Sequence[Product], dois: Mapping[str, str]) -> Relations:
    """Return the relations of products to their inputs.

    Parameters
    ----------
    products : sequence of Product
        Data, whose markers name raw datasets, and the tables of raw files that `InputCheck` has written.
    dois : mapping of str to str
        The DOI of each raw dataset that has one, by its id.
    """
    tables = raw_files(products)
    raw = {one for product in products if product.is_data for one in product.marker.raw.items()}
    files = {path: tracking for one in raw for path, tracking in tables.get(one, {}).items()}
    by_file = {path: identifier_of(tracking) for path, tracking in files.items()}
    datasets = {dataset for dataset, _ in raw}
    found = {Identifier("DOI", dois[one]) for one in datasets if one in dois}
    found |= {one for one in by_file.values() if one is not None}
    return Relations(
        tuple(sorted(found, key=lambda one: (one.kind, one.value))),
        tuple(sorted(datasets - set(dois))),
        tuple(sorted({Path(path).name for path, one in by_file.items() if one is None})),
        tuple(sorted({dataset for dataset, fingerprint in raw if (dataset, fingerprint) not in tables})),
    )


def raw_datasets(products: Sequence[Product]) -> set[str]:
    """Return the ids of the raw datasets behind the data among products."""
    return {dataset for product in products if product.is_data for dataset in product.marker.raw}


def read_dois(table: Path, datasets: Collection[str]) -> dict[str, str]:
    """Read a table of DOIs: the DOI of each dataset whose id fits one of its patterns.

    Parameters
    ----------
    table : Path
        CSV with the columns `pattern` (of an id, with `*` and `?`) and `doi`; further columns are ignored.
    datasets : collection of str
        The ids of the raw datasets.

    Raises
    ------
    CatalogError
        If a column is missing, a DOI is none, a pattern fits no dataset, or a dataset has two DOIs.
    """
    found: dict[str, tuple[str, int]] = {}
    for number, pattern, text in _lines(table):
        where, doi = f"{table}, line {number}", doi_of(text)
        if not doi:
            raise CatalogError(f"{where}: {text!r} is not a DOI; expected 10.22033/ESGF/CMIP6.1234 or its address")
        fitting = sorted(one for one in datasets if fnmatchcase(one, pattern))
        if not fitting:
            raise CatalogError(
                f"{where}: the pattern {pattern!r} fits none of the {len(datasets)} input datasets"
                f"{nearest(pattern, datasets)}; expected the id of one, where * stands for any text: correct or remove "
                f"the line. The ids are {', '.join(sorted(datasets)[:5])}{', …' if len(datasets) > 5 else ''}"
            )
        for one in fitting:
            former, line = found.setdefault(one, (doi, number))
            if former.lower() != doi.lower():
                raise CatalogError(
                    f"{where}: {one} has a second DOI, {doi}; line {line} gives it {former}. Expected one for each "
                    "dataset: make one of the patterns narrower"
                )
    return {dataset: doi for dataset, (doi, _) in found.items()}


def _lines(table: Path) -> list[tuple[int, str, str]]:
    """The number, pattern and DOI of each line."""
    try:
        stream = io.StringIO(read_text(table, encoding="utf-8-sig"), newline="")
        reader = csv.DictReader(stream, strict=True, restval="")
        rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise CatalogError(
            f"{table} cannot be read: {error}; expected a CSV file with {' and '.join(_COLUMNS)}"
        ) from None
    columns = [name.strip() for name in reader.fieldnames or ()]
    if missing := [name for name in _COLUMNS if name not in columns]:
        raise CatalogError(
            f"{table}: the column {' and '.join(missing)} is missing; expected a first line with "
            f"{' and '.join(_COLUMNS)}, got {', '.join(columns)[:500] or 'an empty file'}"
        )
    named = [(number, {str(name).strip(): str(value).strip() for name, value in row.items()}) for number, row in rows]
    return [(number, row["pattern"], row["doi"]) for number, row in named]
