"""From products to a static STAC catalogue: a collection, and an item for each simulation on a map.

https://github.com/radiantearth/stac-spec/tree/v1.1.0
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pandas
import xarray as xr

from espo_luigi.errors import DataError, StoreError
from espo_luigi.files import load_json, read_object, sha256_of, write_new
from espo_luigi.publication import footprint
from espo_luigi.publication.catalogue import Row, ends_of, row_of
from espo_luigi.publication.origin import About, identifier_of
from espo_luigi.publication.products import NETCDF, ExportedFile, Product, check_installed, raw_files
from espo_luigi.redaction import without_secrets
from espo_luigi.replacing import by_manifest, check_ours, write_manifest
from espo_luigi.store.identity import check_still, identity_of
from espo_luigi.store.inventory import size_bytes
from espo_luigi.store.marker import REMAKE
from espo_luigi.store.publish import written_aside

if TYPE_CHECKING:
    import pystac

COLLECTION, ITEMS = "collection.json", "items"
_MAKER = "espo publish --stac"
_JUDGE = by_manifest(_MAKER)
# pystac 1.15 reads datacube 2.2.0, and nothing of 2.3.0 is needed.
_EXTENSIONS = ["file/v2.1.0", "datacube/v2.2.0", "zarr/v1.1.0"]
_ALTERNATES = "alternate-assets/v1.2.0"
# A multihash begins with the code of SHA-256 and its length, 32 bytes.
_SHA256 = "1220"
_READERS = 4
# The step of time by the first letter of a frequency.
_STEPS = {"D": "P1D", "M": "P1M", "Q": "P3M", "Y": "P1Y"}
# Columns of a row that stand elsewhere in an item.
_NOT_PROPERTIES = ("path", "format", "date_start", "date_end", "variable")


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
    """

    folder: Path
    addresses: tuple[str, ...] = ()
    exported: Path | None = None


@dataclass(frozen=True)
class StacCatalogue:
    """The catalogue that was written."""

    collection: Path
    items: int
    netcdf: int
    """NetCDF files that are assets."""
    left_out: tuple[Path, ...]
    """Data that are no simulations on a map with times: references, diagnostics, checks."""


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
        If pystac is not installed.
    """
    check_installed("pystac", "a STAC catalogue")
    # A folder that is a link stays a link, and relative addresses are those of the folders behind links.
    options, final = replace(options, folder=options.folder.resolve()), final.absolute()
    _check_same_collection(options.folder, about)
    writer = _Writer(final, about, options, exported, raw_files(products))
    data = [product for product in products if product.is_data]
    made = [(product, item) for product in data if (item := writer.item(product)) is not None]
    if not made:
        raise StoreError(f"no simulation with times and a map is complete in {final}: run `All`, or some of it, first")
    _name_apart([item for _, item in made])
    _link_inputs(made)
    former = former_checksums(options.folder)
    with ThreadPoolExecutor(_READERS) as pool:
        checksums = pool.map(lambda pair: checksum_of(pair[0], pair[0].below(final), former), made)
    for (_, item), checksum in zip(made, checksums, strict=True):
        item.assets["zarr"].extra_fields |= {"file:checksum": checksum} if checksum else {}
    collection = writer.collection([item for _, item in made])
    with written_aside(options.folder, judge=_JUDGE) as partial:
        (partial / ITEMS).mkdir(parents=True)
        for _, item in made:
            write_new(partial / ITEMS / f"{item.id}.json", _render(item))
        write_new(partial / COLLECTION, _render(collection))
        write_manifest(partial, _MAKER)
    files = sum(len(exported.get(product.below(final), ())) for product, _ in made)
    there = {product.path for product, _ in made}
    left_out = tuple(product.path for product in data if product.path not in there)
    return StacCatalogue(options.folder / COLLECTION, len(made), files, left_out)


def _render(made: pystac.STACObject) -> str:
    content = made.to_dict(include_self_link=False)
    return without_secrets(json.dumps(content, indent=1, ensure_ascii=False)) + "\n"


def _check_same_collection(folder: Path, about: About) -> None:
    """Refuse to replace anything but an earlier catalogue of the same collection."""
    if check_ours(folder, _JUDGE) is None or not any(folder.iterdir()):
        return
    former, new = (read_object(folder / COLLECTION) or {}).get("id"), _collection_id(about)
    if former != new:
        raise StoreError(
            f"{folder} holds the collection {former}, and this run's is {new}; name another folder, or remove that one"
        )


def _collection_id(about: About) -> str:
    return re.sub(r"[^a-z0-9]+", "-", about.name.lower()).strip("-") or "scenarios"


def _item_id(path: str) -> str:
    """The path without its ending, in the letters that STAC recommends for ids."""
    stem = path.removesuffix(".zip").removesuffix(".zarr").replace("/", ".")
    return re.sub(r"[^A-Za-z0-9._-]", "_", stem)


def _name_apart(items: Sequence[pystac.Item]) -> None:
    """Give items of the same name their folder in the id; refuse ids that are the same nevertheless."""
    names, seen = Counter(item.id for item in items), dict[str, str]()
    for item in items:
        path = item.properties["espo_luigi:product"]
        if names[item.id] > 1:
            item.id = _item_id(path)
        other = seen.setdefault(item.id, path)
        if other != path:
            raise StoreError(f"{other} and {path} would both be the item {item.id}; rename one of them")


def _link_inputs(made: Sequence[tuple[Product, pystac.Item]]) -> None:
    """Link each item to the items that its product was made from."""
    import pystac

    ids = {(product.path.name, product.marker.id): item.id for product, item in made}
    for product, item in made:
        inputs = {(Path(path).name, id) for path, id in product.marker.inputs.items()}
        needed = [ids[one] for one in inputs if one in ids]
        item.add_links(
            [pystac.Link("derived_from", f"./{id}.json", "application/geo+json", id) for id in sorted(needed)]
        )


@dataclass(frozen=True)
class _Writer:
    """Makes a catalogue's items and their collection."""

    final: Path
    about: About
    options: StacOptions
    exported: Mapping[str, Sequence[ExportedFile]]
    inputs: Mapping[tuple[str, str], Mapping[str, str]]

    def collection(self, items: Sequence[pystac.Item]) -> pystac.Collection:
        """Return the collection of all items, which get their links to it."""
        import pystac
        from pystac.layout import CustomLayoutStrategy

        about = self.about
        names = [
            name for name in dict.fromkeys(name for item in items for name in item.properties) if name[:4] == "cat:"
        ]
        values = {name: sorted({item.properties.get(name, "") for item in items} - {""}) for name in names}
        ends = [item.properties[f"{end}_datetime"] for item in items for end in ("start", "end")]
        interval = [datetime.fromisoformat(end) for end in (min(ends), max(ends))]
        producer = pystac.Provider(about.institution, roles=[pystac.ProviderRole.PRODUCER])
        collection = pystac.Collection(
            _collection_id(about),
            about.description,
            pystac.Extent(
                pystac.SpatialExtent([footprint.union([item.bbox for item in items if item.bbox])]),
                pystac.TemporalExtent([interval]),
            ),
            title=about.name,
            href=str(self.options.folder / COLLECTION),
            catalog_type=pystac.CatalogType.SELF_CONTAINED,
            license=about.licence if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]*", about.licence) else "other",
            providers=[producer] if about.institution else None,
            summaries=pystac.Summaries({name: texts for name, texts in values.items() if name != "cat:id"}),
            strategy=CustomLayoutStrategy(item_func=lambda item, folder: f"{folder}/{ITEMS}/{item.id}.json"),
        )
        collection.add_links(self._cited())
        if urlsplit(about.licence).scheme in ("http", "https"):
            collection.add_link(pystac.Link("license", about.licence))
        collection.add_items(items)
        return collection

    def _cited(self) -> list[pystac.Link]:
        import pystac

        return [pystac.Link("cite-as", self.about.cite_as)] if self.about.cite_as else []

    def item(self, product: Product) -> pystac.Item | None:
        """Describe a simulation, or what was made of simulations, with times or years on a map; None for others."""
        import pystac

        row = row_of(product)
        if not row or row.get("type") == "reconstruction" or not row.get("date_start"):
            return None
        with ends_of(product.path) as ds:
            if not any(data.ndim >= 3 for data in ds.data_vars.values()):
                return None
            properties = self._properties(product, row, ds)
            try:
                place = footprint.footprint_of(ds)
            except DataError as error:
                where = f"{product.path}: {error}"
                raise DataError(f"{where}; {REMAKE}, or move it out of the folder of products") from None
        assets = {"zarr": self._archive(product), **self._netcdf(self.exported.get(product.below(self.final), ()))}
        mirrored = [_ALTERNATES] if any("alternate" in asset.extra_fields for asset in assets.values()) else []
        extensions = [f"https://stac-extensions.github.io/{name}/schema.json" for name in _EXTENSIONS + mirrored]
        item = pystac.Item(
            _item_id(product.path.name),
            place.geometry,
            place.bbox,
            None,
            properties,
            stac_extensions=extensions,
            assets=assets,
        )
        raw = {file: id for raw in product.marker.raw.items() for file, id in self.inputs.get(raw, {}).items()}
        known = {(Path(file).name, identifier.url) for file, id in raw.items() if (identifier := identifier_of(id))}
        store = pystac.Link("store", assets["zarr"].href, assets["zarr"].media_type)
        derived_from = [pystac.Link("derived_from", url, title=name) for name, url in sorted(known)]
        item.add_links([store, *self._cited(), *derived_from])
        return item

    def _properties(self, product: Product, row: Row, ds: xr.Dataset) -> dict[str, Any]:
        freq = row.get("xrfreq", "")
        # A day, a season or a year lasts until its last second; the years of horizons end with a day.
        end = pandas.Timestamp(row["date_end"][:10])
        if lasts := freq if "time" in ds.dims else "D":
            end = end + pandas.tseries.frequencies.to_offset(lasts) - pandas.Timedelta(seconds=1)
        period = [f"{row['date_start'][:10]}T00:00:00Z", f"{end:%Y-%m-%dT%H:%M:%SZ}"]
        return {
            "title": product.path.name,
            "start_datetime": period[0],
            "end_datetime": period[1],
            "created": product.marker.created,
            **{f"cat:{name}": text for name, text in row.items() if text and name not in _NOT_PROPERTIES},
            "espo_luigi:product": product.below(self.final),
            "espo_luigi:task": product.marker.task,
            "espo_luigi:marker": product.marker.id,
            **footprint.cube_of(ds, period, _STEPS.get(freq[:1], "")),
        }

    def _archive(self, product: Product) -> pystac.Asset:
        """The asset of a product's own store."""
        is_packed = product.path.suffix == ".zip"
        said = {"zarr:zarr_format": 3, "zarr:node_type": "group", "zarr:consolidated": True}
        return self._asset(
            product.path,
            "Zarr 3 store in an uncompressed zip" if is_packed else "Zarr 3 store",
            product.format if is_packed else "application/vnd.zarr; version=3",
            said | {"file:size": size_bytes(product.path)},
        )

    def _netcdf(self, files: Sequence[ExportedFile]) -> dict[str, pystac.Asset]:
        """The assets of a product's NetCDF files, by name."""
        assets: dict[str, pystac.Asset] = {}
        for file in files:
            key = file.path.stem
            if key in assets:
                key = str(file.path.relative_to(self.options.exported or "/"))
            known = {"espo_luigi:tracking_id": file.tracking_id} if file.tracking_id else {}
            said = {"file:size": file.size_bytes, "file:checksum": _SHA256 + file.sha256, **known}
            assets[key] = self._asset(file.path, file.path.name, NETCDF, said)
        return assets

    def _asset(self, path: Path, title: str, media_type: str, said: dict[str, Any]) -> pystac.Asset:
        """An asset with its address, and its alternates by the name of their host."""
        import pystac

        bases, exported = self.options.addresses, self.options.exported
        if not bases:
            href = quote(os.path.relpath(path.parent.resolve() / path.name, self.options.folder / ITEMS), safe="/+")
            return pystac.Asset(href, title, media_type=media_type, roles=["data"], extra_fields=said)
        # A folder of NetCDF files outside of the folder of products is expected beside the products, by its name.
        root = self.final if exported is None or path.is_relative_to(self.final) else exported.absolute().parent
        below = quote(path.relative_to(root).as_posix(), safe="/+")
        href, *mirrors = (f"{base.rstrip('/')}/{below}" for base in bases)
        hosts = [urlsplit(base).netloc for base in bases]
        names = hosts if len(set(hosts)) == len(hosts) else list(bases)
        alternates = {
            name: {"href": mirror, "alternate:name": name} for name, mirror in zip(names[1:], mirrors, strict=True)
        }
        said |= {"alternate:name": names[0], "alternate": alternates} if mirrors else {}
        return pystac.Asset(href, title, media_type=media_type, roles=["data"], extra_fields=said)


def checksum_of(product: Product, name: str, former: Mapping[tuple[Any, ...], str]) -> str:
    """Return the multihash of an archive; of a folder, whose chunks have checksums of their own, nothing."""
    path, marker = product.path, product.marker
    if path.suffix != ".zip":
        return ""
    known = former.get((name, marker.id, marker.created, path.stat().st_size), "")
    if re.fullmatch(rf"{_SHA256}[0-9a-f]{{64}}", known):
        return known
    opened = identity_of(path)
    digest = sha256_of(path)
    check_still(path, opened)
    return _SHA256 + digest


def former_checksums(folder: Path) -> dict[tuple[Any, ...], str]:
    """Return the checksums in a catalogue, by product, marker, time of creation and size; damaged items are skipped."""
    known: dict[tuple[Any, ...], str] = {}
    for path in sorted((folder / ITEMS).glob("*.json")):
        try:
            item = load_json(path)
            said, archive = item["properties"], item["assets"]["zarr"]
            key = (said["espo_luigi:product"], said["espo_luigi:marker"], said["created"], archive["file:size"])
            known[key] = str(archive["file:checksum"])
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return known
