"""From products to a static STAC catalogue: a collection, and an item for each simulation on a map.

https://github.com/radiantearth/stac-spec/tree/v1.1.0
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import xarray as xr

from espo_luigi.errors import StoreError
from espo_luigi.files import write_new
from espo_luigi.publication import footprint, references
from espo_luigi.publication.catalogue import Row, ends_of, row_of
from espo_luigi.publication.crate import About
from espo_luigi.publication.exported import ExportedFile
from espo_luigi.publication.products import Product, raw_files
from espo_luigi.publication.relations import identifier_of
from espo_luigi.store.identity import check_still, identity_of
from espo_luigi.store.inventory import size_bytes
from espo_luigi.store.publish import written_aside

VERSION = "1.1.0"
COLLECTION, ITEMS, REFERENCES = "collection.json", "items", "kerchunk"
_OURS = {COLLECTION, ITEMS, REFERENCES}
_SCHEMAS = {
    name: f"https://stac-extensions.github.io/{name}/{version}/schema.json"
    for name, version in (
        ("file", "v2.1.0"),
        ("datacube", "v2.3.0"),
        ("zarr", "v1.1.0"),
        ("alternate-assets", "v1.2.0"),
    )
}
# A multihash begins with the code of SHA-256 and its length, 32 bytes.
_SHA256 = "1220"
_READERS = 4
_NETCDF, _JSON, _GEOJSON = "application/netcdf", "application/json", "application/geo+json"
_KERCHUNK = "application/vnd.zarr+kerchunk"
# Of a row, these are said in other places.
_NOT_PROPERTIES = ("path", "format", "date_start", "date_end", "variable")
_SPDX = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


@dataclass(frozen=True)
class StacOptions:
    """What the user asks for.

    Parameters
    ----------
    folder : Path
        Where the catalogue goes.
    addresses : tuple of str
        The URLs under which the folder of products can be reached; the first is the main, the others are alternates.
        Without, links are relative.
    exported : Path, optional
        A folder of NetCDF files of `espo export`.
    with_references : bool
        Whether the NetCDF files get references of kerchunk.
    """

    folder: Path
    addresses: tuple[str, ...] = ()
    exported: Path | None = None
    with_references: bool = False


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
class _Order:
    """All that an item is made from besides its product."""

    options: StacOptions
    final: Path
    about: About
    exported: Mapping[str, Sequence[ExportedFile]]
    inputs: Mapping[tuple[str, str], Mapping[str, str]]
    former: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Items of the catalogue that is replaced, by product."""


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

    The same products give the same bytes. A former catalogue in the folder is replaced; checksums of archives that
    have not changed are taken from it.

    Raises
    ------
    StoreError
        If no product is a simulation on a map, the folder holds anything else, or the disk refuses.
    InstallationError
        If references are asked for, and kerchunk is not installed.
    """
    if options.with_references:
        references.check_installed()
    folder, final = options.folder.absolute(), final.absolute()
    _check_ours(folder)
    found = {product: described for product in products if product.is_data and (described := _describe(product, final))}
    if not found:
        raise StoreError(f"no simulation with times and a map is complete in {final}: run `All`, or some of it, first")
    _check_distinct(found.values(), final)
    order = _Order(options, final, about, exported, raw_files(products), _former_items(folder))
    with ThreadPoolExecutor(_READERS) as pool:
        checksums = list(pool.map(lambda product: _checksum(product, order), found))
    texts: dict[str, str] = {}
    for described, checksum in zip(found.values(), checksums, strict=True):
        texts |= _files_of_item(described, checksum, order)
    texts[COLLECTION] = _render(_collection(list(found.values()), about))
    with written_aside(folder) as partial:
        for name, text in texts.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            write_new(partial / name, text, durable=True)
    files = sum(len(exported.get(_relative(product, final), ())) for product in found)
    left_out = tuple(product.path for product in products if product.is_data and product not in found)
    count = sum(name.startswith(REFERENCES) for name in texts)
    return StacCatalogue(folder / COLLECTION, len(found), files, count, left_out)


def _check_ours(folder: Path) -> None:
    """Refuse to replace anything but a catalogue."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if COLLECTION not in names or names - _OURS:
        other = ", ".join(sorted(names - _OURS)[:3]) or "no collection.json"
        raise StoreError(
            f"{folder} is there and is no catalogue of `espo publish --stac` (it has {other}); expected a new folder, "
            "or that of an earlier catalogue: name another folder"
        )


def _check_distinct(found: Iterable[_Described], final: Path) -> None:
    seen: dict[str, Path] = {}
    for one in found:
        other = seen.setdefault(one.id, one.product.path)
        if other != one.product.path:
            raise StoreError(
                f"{other.relative_to(final)} and {one.product.path.relative_to(final)} would both be the item "
                f"{one.id}; rename one of them"
            )


def _relative(product: Product, final: Path) -> str:
    return product.path.relative_to(final).as_posix()


def _describe(product: Product, final: Path) -> _Described | None:
    """Return nothing of a product that is no simulation with times, rows and columns."""
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
        stem = _relative(product, final).removesuffix(".zip").removesuffix(".zarr")
        id = re.sub(r"[^A-Za-z0-9._-]", "_", stem.replace("/", "."))
        return _Described(product, id, row, footprint.footprint_of(ds), period, cube)


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


def _checksum(product: Product, order: _Order) -> str:
    """The multihash of an archive; of a folder, whose chunks have checksums of their own, nothing."""
    if product.path.suffix != ".zip":
        return ""
    former = order.former.get(_relative(product, order.final), {})
    properties, archive = former.get("properties", {}), former.get("assets", {}).get("zarr", {})
    same = (properties.get("espo_luigi:marker"), properties.get("created"), archive.get("file:size"))
    if same == (product.marker.id, product.marker.created, product.path.stat().st_size):
        return str(archive.get("file:checksum") or "")
    opened = identity_of(product.path)
    with product.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    check_still(product.path, opened)
    return _SHA256 + digest


def _former_items(folder: Path) -> dict[str, dict[str, Any]]:
    """The items of the catalogue that is there, by their products; unreadable items count as missing."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / ITEMS).glob("*.json")):
        try:
            item = json.loads(path.read_text(encoding="utf-8"))
            found[str(item["properties"]["espo_luigi:product"])] = item
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _files_of_item(described: _Described, checksum: str, order: _Order) -> dict[str, str]:
    """The texts of an item and of its references, by their names below the folder."""
    product, made = described.product, _relative(described.product, order.final)
    files = order.exported.get(made, ())
    assets = {"zarr": _archive(product, checksum, order)} | _netcdf(files, order)
    texts: dict[str, str] = {}
    if files and order.options.with_references and order.options.exported is not None:
        exported = order.options.exported.absolute()
        address = _address(order, exported) or str(exported)
        refs = references.references([file.path for file in files], exported, address)
        for number, one in enumerate(refs, 1):
            key = "kerchunk" if len(refs) == 1 else f"kerchunk-{number}"
            name = f"{REFERENCES}/{described.id}{key.removeprefix('kerchunk')}.json"
            texts[name] = _render(one)
            assets[key] = {"href": f"../{name}", "type": _KERCHUNK, "roles": ["data", "virtual"], "title": _REFERENCE}
    return {f"{ITEMS}/{described.id}.json": _render(_item(described, assets, order)), **texts}


_REFERENCE = "the NetCDF files as one Zarr store, without a copy"


def _item(described: _Described, assets: Mapping[str, Any], order: _Order) -> dict[str, Any]:
    product, row = described.product, described.row
    start, end = described.period
    properties = {
        "title": product.path.name,
        "datetime": None,
        "start_datetime": start,
        "end_datetime": end,
        "created": product.marker.created,
        **{f"cat:{name}": text for name, text in row.items() if text and name not in _NOT_PROPERTIES},
        "espo_luigi:product": _relative(product, order.final),
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


def _links(product: Product, archive: Mapping[str, Any], order: _Order) -> list[dict[str, str]]:
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


def _archive(product: Product, checksum: str, order: _Order) -> dict[str, Any]:
    is_packed = product.path.suffix == ".zip"
    described = {
        "type": product.format if is_packed else "application/vnd.zarr; version=3",
        "title": "Zarr 3 store in an uncompressed zip" if is_packed else "Zarr 3 store",
        "roles": ["data"],
        "zarr:zarr_format": 3,
        "zarr:node_type": "group",
        "zarr:consolidated": True,
        "file:size": size_bytes(product.path),
    }
    known = {"file:checksum": checksum} if checksum else {}
    return {**_hrefs(product.path, order), **described, **known}


def _netcdf(files: Iterable[ExportedFile], order: _Order) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        key = (
            file.path.stem if file.path.stem not in found else str(file.path.relative_to(order.options.exported or "/"))
        )
        found[key] = {
            **_hrefs(file.path, order),
            "type": _NETCDF,
            "roles": ["data"],
            "title": file.path.name,
            "file:size": file.size_bytes,
            "file:checksum": _SHA256 + file.sha256,
            "espo_luigi:tracking_id": file.tracking_id,
        }
    return found


def _hrefs(path: Path, order: _Order) -> dict[str, Any]:
    """The address of an asset, and its alternates by the name of their host."""
    if not order.options.addresses:
        return {"href": quote(os.path.relpath(path, order.options.folder.absolute() / ITEMS), safe="/+")}
    first, *others = [_address(order, path, base) for base in order.options.addresses]
    if not others:
        return {"href": first}
    hosts = [urlsplit(base).netloc for base in order.options.addresses]
    names = hosts if len(set(hosts)) == len(hosts) else list(order.options.addresses)
    alternates = {name: {"href": href, "alternate:name": name} for name, href in zip(names[1:], others, strict=True)}
    return {"href": first, "alternate:name": names[0], "alternate": alternates}


def _address(order: _Order, path: Path, base: str = "") -> str:
    """The URL of a file or folder; nothing without a base.

    A folder of NetCDF files that is not below the folder of products is expected beside the products, by its name.
    """
    base = base or next(iter(order.options.addresses), "")
    exported = order.options.exported.absolute() if order.options.exported else None
    if path.is_relative_to(order.final):
        below = path.relative_to(order.final)
    else:
        below = path.relative_to(exported.parent) if exported else Path(path.name)
    return f"{base.rstrip('/')}/{quote(below.as_posix(), safe='/+')}" if base else ""


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
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
