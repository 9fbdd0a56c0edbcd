"""From markers to an RO-Crate, which says where each product comes from, as entities of JSON-LD.

Its profile is Process Run Crate.

https://w3id.org/ro/crate/1.1, https://w3id.org/ro/wfrun/process/0.5
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from espo_luigi.jobs.order import label_of
from espo_luigi.publication.products import Product, raw_files
from espo_luigi.replacing import by_content
from espo_luigi.store import Marker

METADATA_NAME = "ro-crate-metadata.json"
_CRATE = "https://w3id.org/ro/crate/1.1"
_PROFILE = "https://w3id.org/ro/wfrun/process/0.5"

# How a metadata file is known to be ours: it names this profile, and this software.
OF_OURS = by_content(
    lambda content: _PROFILE.encode() in content and b'"name": "espo_luigi"' in content,
    "an RO-Crate that espo_luigi has made",
)

Entity = dict[str, Any]


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
    """
    entities = {entity["@id"]: entity for entity in _entities(products, folder.absolute(), about)}
    # Somebody may have edited it: entities of other shapes are passed over.
    graph = (former or {}).get("@graph")
    known = {id: entity for entity in (graph if isinstance(graph, list) else ()) if (id := _id_of(entity))}
    return {
        "@context": [f"{_CRATE}/context", "https://w3id.org/ro/terms/workflow-run/context"],
        "@graph": [_compact(entity) for entity in (entities | _recalled(entities, known)).values()],
    }


def _compact(entity: Entity) -> Entity:
    """The entity without empty lists, and without the list around a single value, as RO-Crate recommends."""
    return {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value
        for name, value in entity.items()
        if value != []
    }


def listed(value: Any) -> list[Any]:
    """Return the values of a property; a single value may be without a list."""
    return value if isinstance(value, list) else [value]


def _entities(products: Sequence[Product], folder: Path, about: About) -> Iterator[Entity]:
    """Yield all entities; if several have the same id, the last counts."""
    tables = raw_files(products)
    # By name and marker: the folder of products may have been moved, and an input replaced since.
    ids = {(product.path.name, product.marker.id): _relative(product.path, folder) for product in products}
    by_task: dict[str, list[Product]] = {}
    for product in products:
        by_task.setdefault(product.marker.id, []).append(product)
    yield from _whole(about, list(ids.values()), [_action_id(one) for one in by_task])
    for product in products:
        yield _product(product, _relative(product.path, folder))
    for raw in {raw for made in by_task.values() for raw in made[0].marker.raw.items()}:
        yield from _raw(*raw, tables.get(raw, {}))
    for made in by_task.values():
        marker = made[0].marker
        yield from _software(marker.versions)
        yield from _parameters(marker.parameters)
        yield _configuration(marker.config_hash)
        yield _action(marker, [_relative(one.path, folder) for one in made], ids)
    yield from _current_configuration(about)


def _whole(about: About, parts: Iterable[str], actions: Iterable[str]) -> Iterator[Entity]:
    yield {
        "@id": METADATA_NAME,
        "@type": "CreativeWork",
        "conformsTo": {"@id": _CRATE},
        "about": {"@id": "./"},
    }
    yield {
        "@id": "./",
        "@type": "Dataset",
        "conformsTo": {"@id": _PROFILE},
        "name": about.name,
        "description": about.description,
        "license": about.licence,
        "datePublished": about.published,
        "hasPart": _refer(parts),
        "mentions": _refer(actions),
    }
    yield {"@id": _PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}


def _product(product: Product, id: str) -> Entity:
    marker = product.marker
    return {
        "@id": id,
        "@type": "Dataset" if id.endswith("/") else "File",
        "name": product.path.name,
        "encodingFormat": product.format,
        "dateCreated": marker.created,
        "identifier": marker.id,
    }


def _action(marker: Marker, results: Iterable[str], ids: Mapping[tuple[str, str], str]) -> Entity:
    named = [(Path(path).name, id) for path, id in marker.inputs.items()]
    inputs = [ids[one] for one in named if one in ids]
    raw = [_raw_id(*one) for one in marker.raw.items()]
    parameters = [_parameter_id(*one) for one in marker.parameters.items()]
    return {
        "@id": _action_id(marker.id),
        "@type": "CreateAction",
        "name": label_of(marker.task, marker.parameters),
        "endTime": marker.created,
        "instrument": {"@id": _software_id(marker.versions)},
        "object": _refer([*inputs, *raw, _configuration_id(marker.config_hash), *parameters]),
        "result": _refer(results),
    }


def _software(versions: Mapping[str, str]) -> Iterator[Entity]:
    needed = {f"#{name}-{version}": (name, version) for name, version in versions.items() if name != "espo_luigi"}
    yield {
        "@id": _software_id(versions),
        "@type": "SoftwareApplication",
        "name": "espo_luigi",
        "version": versions.get("espo_luigi", "unknown"),
        "softwareRequirements": _refer(needed),
    }
    for id, (name, version) in needed.items():
        yield {"@id": id, "@type": "SoftwareApplication", "name": name, "version": version}


def _parameters(parameters: Mapping[str, str]) -> Iterator[Entity]:
    for name, value in parameters.items():
        yield {"@id": _parameter_id(name, value), "@type": "PropertyValue", "name": name, "value": value}


def _raw(dataset: str, fingerprint: str, files: Mapping[str, str]) -> Iterator[Entity]:
    described = {f"#file-{_quoted(path)}": (path, tracking) for path, tracking in files.items()}
    found = {"@id": _raw_id(dataset, fingerprint), "@type": "CreativeWork", "name": dataset, "identifier": dataset}
    # Without files, it takes those of a former metadata file.
    yield found | ({"version": fingerprint, "hasPart": _refer(described)} if described else {})
    for id, (path, tracking) in described.items():
        known = {"identifier": tracking} if tracking else {}
        is_url = "://" in path
        name = Path(urlsplit(path).path if is_url else path).name
        address = path if is_url else Path(path).absolute().as_uri()
        yield {"@id": id, "@type": "CreativeWork", "name": name, "url": address, **known}


def _configuration(config_hash: str) -> Entity:
    named = f"configuration {config_hash or 'unknown'}"
    return {"@id": _configuration_id(config_hash), "@type": "CreativeWork", "name": named, "identifier": config_hash}


def _current_configuration(about: About) -> Iterator[Entity]:
    """Yield the configuration in force, whole, with its files."""
    if not about.config_hash:
        return
    whole = _configuration_id(about.config_hash)
    files = {f"{whole}-{number}": path for number, path in enumerate(about.config_files)}
    inside = {"encodingFormat": "application/json", "text": about.config_text, "hasPart": _refer(files)}
    yield _configuration(about.config_hash) | inside
    for id, path in files.items():
        text = about.config_files[path]
        yield {
            "@id": id,
            "@type": "CreativeWork",
            "name": Path(path).name,
            "url": Path(path).absolute().as_uri(),
            "encodingFormat": "application/yaml",
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "text": text,
        }


def _recalled(entities: Mapping[str, Entity], known: Mapping[str, Entity]) -> dict[str, Entity]:
    """The former entities of configurations and raw data whose content is not known any more."""
    recalled: dict[str, Entity] = {}
    for id, entity in entities.items():
        former = known.get(id, {})
        if id.startswith(("#configuration-", "#raw-")) and "hasPart" in former and "hasPart" not in entity:
            recalled[id] = former
            parts = map(_id_of, listed(former["hasPart"]))
            recalled |= {id: known[id] for id in parts if id in known}
    return recalled


def _id_of(entity: Any) -> str:
    """The id of an entity, or of a reference to it; an empty text of anything else."""
    id = entity.get("@id") if isinstance(entity, dict) else None
    return id if isinstance(id, str) else ""


def _refer(ids: Iterable[str]) -> list[dict[str, str]]:
    return [{"@id": id} for id in ids]


def _quoted(text: str) -> str:
    return quote(text, safe="/+")


def _relative(path: Path, folder: Path) -> str:
    return _quoted(str(path.relative_to(folder))) + ("/" if path.suffix == ".zarr" else "")


def _action_id(id: str) -> str:
    return f"#task-{id}"


def _parameter_id(name: str, value: str) -> str:
    return f"#{name}={_quoted(value)}"


def _raw_id(dataset: str, fingerprint: str) -> str:
    return f"#raw-{_quoted(dataset)}-{fingerprint}"


def _configuration_id(config_hash: str) -> str:
    return f"#configuration-{config_hash or 'unknown'}"


def _software_id(versions: Mapping[str, str]) -> str:
    text = json.dumps(dict(versions), sort_keys=True)
    return f"#software-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
