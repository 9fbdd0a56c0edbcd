"""From products to a static STAC catalogue: a collection, and an item for each simulation on a map.

https://github.com/radiantearth/stac-spec/tree/v1.1.0
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import xarray as xr

from espo_luigi.errors import DataError, StoreError
from espo_luigi.files import load_json, read_json, write_new
from espo_luigi.publication import footprint, references
from espo_luigi.publication.assets import (
    ITEMS,
    REFERENCES,
    Order,
    StacOptions,
    archive_asset,
    checksum_of,
    netcdf_assets,
    references_of,
    relative,
)
from espo_luigi.publication.catalogue import Row, ends_of, row_of
from espo_luigi.publication.crate import About
from espo_luigi.publication.exported import ExportedFile
from espo_luigi.publication.products import Product, raw_files
from espo_luigi.publication.relations import identifier_of
from espo_luigi.redaction import without_secrets
from espo_luigi.replacing import by_manifest, check_ours, write_manifest
from espo_luigi.store.marker import REMAKE
from espo_luigi.store.publish import written_aside

VERSION = "1.1.0"
COLLECTION = "collection.json"
_MAKER = "espo publish --stac"
_JUDGE = by_manifest(_MAKER)
# pystac 1.15 reads datacube 2.2.0, and nothing of 2.3.0 is needed.
_SCHEMAS = {
    name: f"https://stac-extensions.github.io/{name}/{version}/schema.json"
    for name, version in (
        ("file", "v2.1.0"),
        ("datacube", "v2.2.0"),
        ("zarr", "v1.1.0"),
        ("alternate-assets", "v1.2.0"),
    )
}
_READERS = 4
_JSON, _GEOJSON = "application/json", "application/geo+json"
# Of a row, these are said in other places.
_NOT_PROPERTIES = ("path", "format", "date_start", "date_end", "variable")
_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


@dataclass(frozen=True)
class StacCatalogue:
    """The catalogue that was written."""

    collection: Path
    items: int
    netcdf: int
    """NetCDF files that are assets."""
    references: int
    left_out: tuple[Path, ...]
    """Data that are no simulations on a map with times: references, diagnostics, checks."""


@dataclass(frozen=True)
class _Described:
    """A product with its row, and where and when its data lie."""

    product: Product
    id: str
    row: Row
    place: footprint.Footprint
    period: tuple[str, str]
    cube: Mapping[str, Any]


def write_stac(
    products: Sequence[Product],
    final: Path,
    about: About,
    options: StacOptions,
    exported: Mapping[str, Sequence[ExportedFile]],
) -> StacCatalogue:
    """Write a catalogue of the simulations among products, as a whole or not at all.

    The same products give the same bytes. A former catalogue of the same collection is replaced; it gives the checksums
    of unchanged archives.

    Raises
    ------
    StoreError
        If no product is a simulation on a map, the folder holds anything else, or the disk refuses.
    InstallationError
        If references are asked for, and kerchunk is not installed.
    """
    if options.with_references:
        references.check_installed()
    # A folder that is a link stays a link, and relative addresses are those of the folders behind links.
    folder, final = options.folder.resolve(), final.absolute()
    _check_ours(folder, about)
    data = [product for product in products if product.is_data]
    found = _distinct([described for product in data if (described := _describe(product))], final)
    if not found:
        raise StoreError(f"no simulation with times and a map is complete in {final}: run `All`, or some of it, first")
    order = Order(replace(options, folder=folder), final, about, exported, raw_files(products), _former_items(folder))
    with ThreadPoolExecutor(_READERS) as pool:
        checksums = list(pool.map(lambda one: checksum_of(one.product, order), found))
    texts: dict[str, str] = {}
    for described, checksum in zip(found, checksums, strict=True):
        texts |= _files_of_item(described, checksum, order)
    texts[COLLECTION] = _render(_collection(found, about))
    with written_aside(folder, judge=_JUDGE) as partial:
        for name, text in texts.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            write_new(partial / name, text, durable=True)
        write_manifest(partial, _MAKER)
    files = sum(len(exported.get(relative(one.product, final), ())) for one in found)
    items = {one.product.path for one in found}
    left_out = tuple(product.path for product in data if product.path not in items)
    count = sum(name.startswith(REFERENCES) for name in texts)
    return StacCatalogue(folder / COLLECTION, len(found), files, count, left_out)


def _check_ours(folder: Path, about: About) -> None:
    """Refuse to replace anything but an earlier catalogue of the same collection."""
    if check_ours(folder, _JUDGE) is None or not any(folder.iterdir()):
        return
    former, new = (read_json(folder / COLLECTION) or {}).get("id"), _collection_id(about)
    if former != new:
        raise StoreError(
            f"{folder} holds the collection {former}, and this run's is {new}; name another folder, or remove that one"
        )


def _distinct(found: Sequence[_Described], final: Path) -> list[_Described]:
    """Give products of the same name their folder in the id; refuse ids that are the same nevertheless."""
    names = Counter(one.id for one in found)
    named = [one if names[one.id] == 1 else replace(one, id=_id(relative(one.product, final))) for one in found]
    seen: dict[str, Path] = {}
    for one in named:
        other = seen.setdefault(one.id, one.product.path)
        if other != one.product.path:
            raise StoreError(
                f"{other.relative_to(final)} and {one.product.path.relative_to(final)} would both be the item "
                f"{one.id}; rename one of them"
            )
    return named


def _id(path: str) -> str:
    """The path without its ending, in the letters that STAC recommends for ids."""
    stem = path.removesuffix(".zip").removesuffix(".zarr").replace("/", ".")
    return re.sub(r"[^A-Za-z0-9._-]", "_", stem)


def _describe(product: Product) -> _Described | None:
    """Describe a simulation with times, rows and columns; None for other products."""
    row = row_of(product)
    if not row or row.get("type") == "reconstruction" or not row.get("date_start"):
        return None
    with ends_of(product.path) as ds:
        if not any(data.ndim >= 3 and "time" in data.dims for data in ds.data_vars.values()):
            return None
        period = _period(row)
        cube = {
            "cube:dimensions": {**_time(ds, period, row), **footprint.dimensions(ds)},
            "cube:variables": _variables(ds),
        }
        try:
            place = footprint.footprint_of(ds)
        except DataError as error:
            raise DataError(f"{product.path}: {error}; {REMAKE}, or move it out of the folder of products") from None
        return _Described(product, _id(product.path.name), row, place, period, cube)


def _period(row: Row) -> tuple[str, str]:
    """The first and the last second; a day lasts until its last second."""
    is_daily = row.get("xrfreq") == "D"
    return f"{row['date_start'][:10]}T00:00:00Z", f"{row['date_end'][:10]}T{'23:59:59' if is_daily else '00:00:00'}Z"


def _time(ds: xr.Dataset, period: tuple[str, str], row: Row) -> dict[str, Any]:
    calendar = f"calendar {ds['time'].dt.calendar}"
    step = {"step": "P1D"} if row.get("xrfreq") == "D" else {}
    return {"time": {"type": "temporal", "description": calendar, "extent": list(period), **step}}


def _variables(ds: xr.Dataset) -> dict[str, Any]:
    data = {str(name): (one, "data") for name, one in ds.data_vars.items()}
    auxiliary = {str(name): (one, "auxiliary") for name, one in ds.coords.items() if one.ndim > 1}
    return {name: _variable(one, kind) for name, (one, kind) in sorted({**data, **auxiliary}.items())}


def _variable(data: xr.DataArray, kind: str) -> dict[str, Any]:
    said = {"description": data.attrs.get("long_name"), "unit": data.attrs.get("units")}
    return {"type": kind, "dimensions": [str(dim) for dim in data.dims]} | {
        name: str(text) for name, text in said.items() if text
    }


def _former_items(folder: Path) -> dict[str, dict[str, Any]]:
    """The items of the catalogue that is there, by their products; unreadable items count as missing."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / ITEMS).glob("*.json")):
        try:
            item = load_json(path)
            properties, archive = dict(item["properties"]), dict(item["assets"]["zarr"])
            found[str(properties["espo_luigi:product"])] = {"properties": properties, "assets": {"zarr": archive}}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _files_of_item(described: _Described, checksum: str, order: Order) -> dict[str, str]:
    """The texts of an item and of its references, by their names below the folder."""
    product = described.product
    files = order.exported.get(relative(product, order.final), ())
    virtual, contents = references_of(described.id, files, order)
    assets = {"zarr": archive_asset(product, checksum, order), **netcdf_assets(files, order), **virtual}
    texts = {name: _render(content) for name, content in contents.items()}
    return {f"{ITEMS}/{described.id}.json": _render(_item(described, assets, order)), **texts}


def _item(described: _Described, assets: Mapping[str, Any], order: Order) -> dict[str, Any]:
    product, row = described.product, described.row
    start, end = described.period
    properties = {
        "title": product.path.name,
        "datetime": None,
        "start_datetime": start,
        "end_datetime": end,
        "created": product.marker.created,
        **{f"cat:{name}": text for name, text in row.items() if text and name not in _NOT_PROPERTIES},
        "espo_luigi:product": relative(product, order.final),
        "espo_luigi:task": product.marker.task,
        "espo_luigi:marker": product.marker.id,
        **described.cube,
    }
    has_alternates = any("alternate" in asset for asset in assets.values())
    used = [name for name in _SCHEMAS if name != "alternate-assets" or has_alternates]
    return {
        "type": "Feature",
        "stac_version": VERSION,
        "stac_extensions": [_SCHEMAS[name] for name in used],
        "id": described.id,
        "geometry": described.place.geometry,
        "bbox": described.place.bbox,
        "collection": _collection_id(order.about),
        "properties": properties,
        "links": _links(product, assets["zarr"], order),
        "assets": assets,
    }


def _links(product: Product, archive: Mapping[str, Any], order: Order) -> list[dict[str, str]]:
    up = [{"rel": rel, "href": f"../{COLLECTION}", "type": _JSON} for rel in ("root", "parent", "collection")]
    store = {"rel": "store", "href": archive["href"], "type": archive["type"]}
    return [*up, store, *_cited(order.about), *_derived_from(product, order.inputs)]


def _derived_from(product: Product, inputs: Mapping[tuple[str, str], Mapping[str, str]]) -> list[dict[str, str]]:
    """Links to the raw files that have an identifier, by name."""
    named = {path: tracking for raw in product.marker.raw.items() for path, tracking in inputs.get(raw, {}).items()}
    found = {(Path(path).name, one.url) for path, tracking in named.items() if (one := identifier_of(tracking))}
    return [{"rel": "derived_from", "href": url, "title": name} for name, url in sorted(found)]


def _cited(about: About) -> list[dict[str, str]]:
    return [{"rel": "cite-as", "href": about.cite_as}] if about.cite_as else []


def _collection_id(about: About) -> str:
    return re.sub(r"[^a-z0-9]+", "-", about.name.lower()).strip("-") or "scenarios"


def _collection(found: Sequence[_Described], about: About) -> dict[str, Any]:
    is_known = bool(_SPDX.fullmatch(about.licence))
    elsewhere = (
        [{"rel": "license", "href": about.licence}] if urlsplit(about.licence).scheme in ("http", "https") else []
    )
    names = dict.fromkeys(name for one in found for name in one.row if name not in _NOT_PROPERTIES)
    values = {name: sorted({text for one in found if (text := one.row.get(name))}) for name in names}
    periods = [[min(one.period[0] for one in found), max(one.period[1] for one in found)]]
    items = [{"rel": "item", "href": f"./{ITEMS}/{one.id}.json", "type": _GEOJSON} for one in found]
    return {
        "type": "Collection",
        "stac_version": VERSION,
        "stac_extensions": [],
        "id": _collection_id(about),
        "title": about.name,
        "description": about.description,
        "license": about.licence if is_known else "other",
        **({"providers": [{"name": about.institution, "roles": ["producer"]}]} if about.institution else {}),
        "extent": {
            "spatial": {"bbox": [footprint.union([one.place for one in found])]},
            "temporal": {"interval": periods},
        },
        "summaries": {f"cat:{name}": texts for name, texts in values.items() if texts and name != "id"},
        "links": [{"rel": "root", "href": f"./{COLLECTION}", "type": _JSON}, *_cited(about), *elsewhere, *items],
    }


def _render(content: Mapping[str, Any]) -> str:
    return without_secrets(json.dumps(content, indent=1, ensure_ascii=False)) + "\n"
