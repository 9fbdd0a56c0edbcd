"""The assets of STAC items: archives, NetCDF files and references, with addresses and checksums."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from espo_luigi.publication import references
from espo_luigi.publication.crate import About
from espo_luigi.publication.exported import ExportedFile
from espo_luigi.publication.products import Product
from espo_luigi.store.identity import check_still, identity_of
from espo_luigi.store.inventory import size_bytes

ITEMS, REFERENCES = "items", "kerchunk"
# A multihash begins with the code of SHA-256 and its length, 32 bytes.
_SHA256 = "1220"
_NETCDF, _KERCHUNK = "application/netcdf", "application/vnd.zarr+kerchunk"


@dataclass(frozen=True)
class StacOptions:
    """The options of a STAC catalogue.

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
class Order:
    """All that an item is made from besides its product."""

    options: StacOptions
    final: Path
    about: About
    exported: Mapping[str, Sequence[ExportedFile]]
    inputs: Mapping[tuple[str, str], Mapping[str, str]]
    former: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Items of the catalogue that is replaced, by product."""


def relative(product: Product, final: Path) -> str:
    """Return a product's path below the folder of products."""
    return product.path.relative_to(final).as_posix()


def checksum_of(product: Product, order: Order) -> str:
    """Return the multihash of an archive; of a folder, whose chunks have checksums of their own, nothing."""
    if product.path.suffix != ".zip":
        return ""
    former = order.former.get(relative(product, order.final), {})
    properties, archive = former.get("properties", {}), former.get("assets", {}).get("zarr", {})
    same = (properties.get("espo_luigi:marker"), properties.get("created"), archive.get("file:size"))
    known = str(archive.get("file:checksum"))
    is_known = same == (product.marker.id, product.marker.created, product.path.stat().st_size)
    if is_known and re.fullmatch(rf"{_SHA256}[0-9a-f]{{64}}", known):
        return known
    opened = identity_of(product.path)
    with product.path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    check_still(product.path, opened)
    return _SHA256 + digest


def archive_asset(product: Product, checksum: str, order: Order) -> dict[str, Any]:
    """Return the asset of a product's own store."""
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


def netcdf_assets(files: Iterable[ExportedFile], order: Order) -> dict[str, dict[str, Any]]:
    """Return the assets of a product's NetCDF files, by name."""
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
            **({"espo_luigi:tracking_id": file.tracking_id} if file.tracking_id else {}),
        }
    return found


def references_of(id: str, files: Sequence[ExportedFile], order: Order) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the assets of an item's references, and the content of their files by name."""
    if not files or not order.options.with_references or order.options.exported is None:
        return {}, {}
    exported = order.options.exported.absolute()
    found = references.references([file.path for file in files], exported, _address(order, exported) or str(exported))
    numbers = [""] if len(found) == 1 else [f"-{number}" for number in range(1, len(found) + 1)]
    contents = {f"{REFERENCES}/{id}{number}.json": one for number, one in zip(numbers, found, strict=True)}
    described = {"type": _KERCHUNK, "roles": ["data", "virtual"], "title": "the NetCDF files as one Zarr store"}
    names = zip(numbers, contents, strict=True)
    return {f"kerchunk{number}": {"href": f"../{name}", **described} for number, name in names}, contents


def _hrefs(path: Path, order: Order) -> dict[str, Any]:
    """The address of an asset, and its alternates by the name of their host."""
    if not order.options.addresses:
        place = path.parent.resolve() / path.name
        return {"href": quote(os.path.relpath(place, order.options.folder / ITEMS), safe="/+")}
    first, *others = [_address(order, path, base) for base in order.options.addresses]
    if not others:
        return {"href": first}
    hosts = [urlsplit(base).netloc for base in order.options.addresses]
    names = hosts if len(set(hosts)) == len(hosts) else list(order.options.addresses)
    alternates = {name: {"href": href, "alternate:name": name} for name, href in zip(names[1:], others, strict=True)}
    return {"href": first, "alternate:name": names[0], "alternate": alternates}


def _address(order: Order, path: Path, base: str = "") -> str:
    """Return the URL of a file or folder; an empty text without a base.

    A folder of NetCDF files that is not below the folder of products is expected beside the products, by its name.
    """
    base = base or next(iter(order.options.addresses), "")
    exported = order.options.exported.absolute() if order.options.exported else None
    if path.is_relative_to(order.final):
        below = path.relative_to(order.final)
    else:
        below = path.relative_to(exported.parent) if exported else Path(path.name)
    return f"{base.rstrip('/')}/{quote(below.as_posix(), safe='/+')}" if base else ""
