"""From markers to the origin of products: an RO-Crate of their tasks, and their relations to their inputs.

The profile of the crate is Process Run Crate. DataCite and Zenodo take the relations.

https://w3id.org/ro/crate/1.1, https://w3id.org/ro/wfrun/process/0.5,
https://datacite-metadata-schema.readthedocs.io/en/4.6, https://developers.zenodo.org
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pandas

from espo_luigi.errors import CatalogError, nearest
from espo_luigi.files import read_text
from espo_luigi.jobs.order import label_of
from espo_luigi.publication.products import Product, check_installed, raw_files
from espo_luigi.replacing import by_content
from espo_luigi.store import Marker

METADATA_NAME = "ro-crate-metadata.json"
_PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
# How a metadata file is known to be ours: it names this profile, and this software.
OF_OURS = by_content(
    lambda content: _PROFILE.encode() in content and b'"name": "espo_luigi"' in content,
    "an RO-Crate that espo_luigi has made",
)
# How a file of relations is known to be ours, of earlier versions, too.
RELATIONS = by_content(
    lambda content: (
        content.startswith(b'{\n "datacite": {\n  "relatedIdentifiers": [') and b'"without_doi": [' in content
    ),
    "a file of relations of `espo publish --datacite`",
)
_HANDLE = re.compile(r"(?:hdl:|https?://hdl\.handle\.net/)?(\d+(?:\.\d+)+/\S+)")
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_DOI = re.compile(r"(?:doi:\s*|https?://(?:dx\.)?doi\.org/)?(10\.\d{4,9}/\S+)", re.IGNORECASE)


@dataclass(frozen=True)
class About:
    """Facts that markers do not hold: about the whole, and the configuration in force, if it is known."""

    name: str
    description: str
    licence: str
    published: str
    config_hash: str = ""
    config_text: str = ""
    config_files: Mapping[str, str] = field(default_factory=dict)
    """The text of each file, by its path."""
    cite_as: str = ""
    """The address of the products' DOI or page."""
    institution: str = ""


def crate(
    products: Sequence[Product], folder: Path, about: About, former: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the metadata file of a folder's products.

    Markers refer to things that neither they nor `about` hold any more, as the text of a former configuration. These
    are taken from the `former` metadata file.

    Raises
    ------
    InstallationError
        If rocrate is not installed.
    """
    made = _Crate(products, folder.absolute())
    made.describe(about)
    # Somebody may have edited it: entities of other shapes are passed over.
    graph = (former or {}).get("@graph")
    made.recall({id: entity for entity in (graph if isinstance(graph, list) else ()) if (id := _id_of(entity))})
    return made.document()


class _Crate:
    """The entities of a crate; those that are added later take the place of those with the same id."""

    def __init__(self, products: Sequence[Product], folder: Path) -> None:
        check_installed("rocrate", "an RO-Crate")
        from rocrate.rocrate import ROCrate

        self.crate, self.former = ROCrate(version="1.1"), dict[str, dict[str, Any]]()
        self.products, self.folder, self.raw = products, folder, raw_files(products)
        # By name and marker: the folder of products may have been moved, and an input replaced since.
        self.ids = {(product.path.name, product.marker.id): self.id_of(product) for product in products}

    def id_of(self, product: Product) -> str:
        return _quoted(product.below(self.folder)) + ("/" if product.path.suffix == ".zarr" else "")

    def add(self, id: str, type: str, **properties: Any) -> dict[str, str]:
        """Add an entity, without empty lists, and without lists around single values; return the reference to it."""
        from rocrate.model import ContextEntity

        self.crate.add(ContextEntity(self.crate, id, {"@type": type, **_compact(properties)}))
        return {"@id": id}

    def describe(self, about: About) -> None:
        markers, results = {}, defaultdict(list)
        for product in self.products:
            markers[product.marker.id] = product.marker
            results[product.marker.id].append({"@id": self.id_of(product)})
        parts = [self.product(product) for product in self.products]
        actions = [self.action(marker, results[id]) for id, marker in markers.items()]
        profile = self.add(_PROFILE, "CreativeWork", name="Process Run Crate", version="0.5")
        whole = {"name": about.name, "description": about.description, "license": about.licence}
        refs = {"conformsTo": profile, "datePublished": about.published, "hasPart": parts, "mentions": actions}
        self.add("./", "Dataset", **whole, **refs)
        if about.config_hash:
            self.current_configuration(about)

    def product(self, product: Product) -> dict[str, str]:
        return self.add(
            id := self.id_of(product),
            "Dataset" if id.endswith("/") else "File",
            name=product.path.name,
            encodingFormat=product.format,
            dateCreated=product.marker.created,
            identifier=product.marker.id,
        )

    def action(self, marker: Marker, results: list[dict[str, str]]) -> dict[str, str]:
        inputs = [(Path(path).name, id) for path, id in marker.inputs.items()]
        return self.add(
            f"#task-{marker.id}",
            "CreateAction",
            name=label_of(marker.task, marker.parameters),
            endTime=marker.created,
            instrument=self.software(marker.versions),
            object=[
                *({"@id": self.ids[name]} for name in inputs if name in self.ids),
                *(self.raw_dataset(*raw) for raw in marker.raw.items()),
                self.configuration(marker.config_hash),
                *(
                    self.add(f"#{name}={_quoted(value)}", "PropertyValue", name=name, value=value)
                    for name, value in marker.parameters.items()
                ),
            ],
            result=results,
        )

    def software(self, versions: Mapping[str, str]) -> dict[str, str]:
        text = json.dumps(dict(versions), sort_keys=True)
        return self.add(
            f"#software-{hashlib.sha256(text.encode()).hexdigest()[:12]}",
            "SoftwareApplication",
            name="espo_luigi",
            version=versions.get("espo_luigi", "unknown"),
            softwareRequirements=[
                self.add(f"#{name}-{version}", "SoftwareApplication", name=name, version=version)
                for name, version in versions.items()
                if name != "espo_luigi"
            ],
        )

    def raw_dataset(self, dataset: str, fingerprint: str) -> dict[str, str]:
        id = f"#raw-{_quoted(dataset)}-{fingerprint}"
        # Many tasks have the same raw data, of hundreds of files.
        if self.crate.get(id):
            return {"@id": id}
        files = []
        for path, tracking in self.raw.get((dataset, fingerprint), {}).items():
            is_url = "://" in path
            name = Path(urlsplit(path).path if is_url else path).name
            known = {"identifier": tracking} if tracking else {}
            url = path if is_url else Path(path).absolute().as_uri()
            files.append(self.add(f"#file-{_quoted(path)}", "CreativeWork", name=name, url=url, **known))
        # Without files, it takes those of a former metadata file.
        version = {"version": fingerprint} if files else {}
        return self.add(id, "CreativeWork", name=dataset, identifier=dataset, **version, hasPart=files)

    def configuration(self, config_hash: str, **content: Any) -> dict[str, str]:
        known = config_hash or "unknown"
        name = f"configuration {known}"
        return self.add(f"#configuration-{known}", "CreativeWork", name=name, identifier=config_hash, **content)

    def current_configuration(self, about: About) -> None:
        """Add the configuration in force, whole, with its files."""
        files = [
            self.add(
                f"#configuration-{about.config_hash}-{number}",
                "CreativeWork",
                name=Path(path).name,
                url=Path(path).absolute().as_uri(),
                encodingFormat="application/yaml",
                sha256=hashlib.sha256(text.encode()).hexdigest(),
                text=text,
            )
            for number, (path, text) in enumerate(about.config_files.items())
        ]
        inside = {"encodingFormat": "application/json", "text": about.config_text, "hasPart": files}
        self.configuration(about.config_hash, **inside)

    def recall(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the former entities of configurations and raw data whose content is not known any more."""
        for entity in list(self.crate.get_entities()):
            former = known.get(entity.id, {})
            if not entity.id.startswith(("#configuration-", "#raw-")) or "hasPart" in entity or "hasPart" not in former:
                continue
            for id in (entity.id, *map(_id_of, listed(former["hasPart"]))):
                if id in known:
                    self.former[id] = dict(known[id])

    def document(self) -> dict[str, Any]:
        entities = {entity.id: entity.properties() for entity in self.crate.get_entities()}
        return {
            "@context": [f"{self.crate.metadata.profile}/context", "https://w3id.org/ro/terms/workflow-run/context"],
            "@graph": [_compact(entity) for entity in (entities | self.former).values()],
        }


def _compact(entity: Mapping[str, Any]) -> dict[str, Any]:
    """The entity without empty lists, and without the list around a single value, as RO-Crate recommends."""
    return {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value
        for name, value in entity.items()
        if value != []
    }


def listed(value: Any) -> list[Any]:
    """Return the values of a property; a single value may be without a list."""
    return value if isinstance(value, list) else [value]


def _id_of(entity: Any) -> str:
    """The id of an entity, or of a reference to it; an empty text of anything else."""
    id = entity.get("@id") if isinstance(entity, dict) else None
    return id if isinstance(id, str) else ""


def _quoted(text: str) -> str:
    return quote(text, safe="/+")


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
        datacite = [
            {
                "relatedIdentifier": identifier.value,
                "relatedIdentifierType": identifier.kind,
                "relationType": "IsDerivedFrom",
                "resourceTypeGeneral": "Dataset",
            }
            for identifier in self.identifiers
        ]
        # Zenodo tells the kind from the text; a handle needs its prefix for that.
        texts = [f"hdl:{known.value}" if known.kind == "Handle" else known.value for known in self.identifiers]
        zenodo = [{"identifier": text, "relation": "isDerivedFrom", "resource_type": "dataset"} for text in texts]
        return {
            "datacite": {"relatedIdentifiers": datacite},
            "zenodo": {"related_identifiers": zenodo},
            "without_doi": list(self.without_doi),
            "without_tracking_id": list(self.without_tracking_id),
            "unknown": list(self.unknown),
        }


def identifier_of(tracking_id: str) -> Identifier | None:
    """Return the identifier that a tracking id is: a handle (CMIP6, CMIP7), or a UUID (CMIP5); None of other texts."""
    text = tracking_id.strip()
    if match := _HANDLE.fullmatch(text):
        return Identifier("Handle", match[1])
    return Identifier("URN", f"urn:uuid:{text.lower()}") if UUID.fullmatch(text) else None


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
    raw = {dataset for product in products if product.is_data for dataset in product.marker.raw.items()}
    names = {name for name, _ in raw}
    files = {path: identifier_of(id) for dataset in raw for path, id in tables.get(dataset, {}).items()}
    identifiers = {Identifier("DOI", dois[name]) for name in names if name in dois}
    identifiers |= {identifier for identifier in files.values() if identifier is not None}
    return Relations(
        tuple(sorted(identifiers, key=lambda identifier: (identifier.kind, identifier.value))),
        tuple(sorted(names - set(dois))),
        tuple(sorted({Path(path).name for path, identifier in files.items() if identifier is None})),
        tuple(sorted({name for name, fingerprint in raw if (name, fingerprint) not in tables})),
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
    try:
        # The first line has the names of columns.
        rows = pandas.read_csv(io.StringIO(read_text(table, encoding="utf-8-sig")), dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise CatalogError(f"{table} cannot be read: {error}; expected a CSV file with pattern and doi") from None
    rows.columns = [str(name).strip() for name in rows.columns]
    if missing := [name for name in ("pattern", "doi") if name not in rows]:
        raise CatalogError(
            f"{table}: the column {' and '.join(missing)} is missing; expected a first line with pattern and doi, got "
            f"{', '.join(rows.columns)[:500]}"
        )
    known: dict[str, tuple[str, int]] = {}
    for number, pattern, text in zip(rows.index + 2, rows["pattern"].str.strip(), rows["doi"], strict=True):
        where, doi = f"{table}, line {number}", doi_of(text)
        if not doi:
            raise CatalogError(f"{where}: {text!r} is not a DOI; expected 10.22033/ESGF/CMIP6.1234 or its address")
        fitting = sorted(dataset for dataset in datasets if fnmatchcase(dataset, pattern))
        if not fitting:
            raise CatalogError(
                f"{where}: the pattern {pattern!r} fits none of the {len(datasets)} input datasets"
                f"{nearest(pattern, datasets)}; expected the id of one, where * stands for any text: correct or remove "
                f"the line. The ids are {', '.join(sorted(datasets)[:5])}{', …' if len(datasets) > 5 else ''}"
            )
        for dataset in fitting:
            former, line = known.setdefault(dataset, (doi, number))
            if former.lower() != doi.lower():
                raise CatalogError(
                    f"{where}: {dataset} has a second DOI, {doi}; line {line} gives it {former}. Expected one for each "
                    "dataset: make one of the patterns narrower"
                )
    return {dataset: doi for dataset, (doi, _) in known.items()}
