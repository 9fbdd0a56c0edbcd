"""The products of a production: the tasks that make them, their catalogue, and the record of their origin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from espo_luigi.errors import StoreError
from espo_luigi.files import read_object, read_text
from espo_luigi.publication.catalogue import Catalogued, add_to_catalogue, alone, check_catalogue
from espo_luigi.publication.origin import (
    METADATA_NAME,
    OF_OURS,
    RELATIONS,
    About,
    Relations,
    crate,
    doi_of,
    raw_datasets,
    read_dois,
)
from espo_luigi.publication.origin import relations as relations_of
from espo_luigi.publication.products import check_installed, find_exported, find_products, is_installed, unfinished
from espo_luigi.publication.release import check_release
from espo_luigi.publication.stac import StacCatalogue, StacOptions, write_stac
from espo_luigi.redaction import redacted, redacted_text, without_secrets
from espo_luigi.replacing import check_ours, write_ours
from espo_luigi.store.disk import disk_errors
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import context
from espo_luigi.tasks.ensembles import ends_of_ensembles
from espo_luigi.tasks.outcomes import ends_of_outcomes

# Names of the global attribute that has the products' licence.
_LICENCES = ("license", "licence", "terms_of_use")
# Names of the global attribute that has the products' DOI or page.
_CITED = ("doi", "dataset_doi", "cite_as", "further_info_url")


def ends_of_run() -> Iterator[EspoTask]:
    """Yield the tasks of health checks, diagnostics and archives of every simulation, and of indicators."""
    run = context()
    yield from run.production.ends(run)
    yield from ends_of_outcomes(run)
    yield from ends_of_ensembles(run)


@dataclass(frozen=True)
class Published:
    """The files that were written."""

    products: int
    """How many products are complete."""
    crate: Path | None
    catalogued: Catalogued | None
    stac: StacCatalogue | None = None
    unfinished: int = 0
    """NetCDF files in the exported folder that belong to no finished product."""
    relations: Relations | None = None
    relations_file: Path | None = None
    without_rocrate: bool = False
    """Whether the crate was left out, as the package rocrate is not installed."""
    without_release: tuple[Path, ...] = ()
    """The folders of files that no `RELEASE.json` covers."""

    def __str__(self) -> str:
        """Return sentences about the files."""
        sentences = [f"{self.products} products are complete"]
        if self.crate:
            sentences.append(f"{self.crate} says where each comes from")
        if self.without_rocrate:
            sentences.append("no RO-Crate says where each comes from: pip install 'espo_luigi[publication]'")
        if (found := self.catalogued) is not None:
            others = f", beside {found.others} rows of others" if found.others else ""
            sentences.append(f"{found.catalogue} lists the {found.rows} that are data{others}")
        if (stac := self.stac) is not None:
            files = f", with {stac.netcdf} NetCDF files" if stac.netcdf else ""
            sentences.append(f"{stac.collection} is the STAC collection of {stac.items} items{files}")
        if self.relations is not None:
            sentences.append(
                f"{self.relations_file} relates them to {len(self.relations.identifiers)} identifiers of inputs"
            )
        sentences += [f"no RELEASE.json covers the files in {folder}" for folder in self.without_release]
        return "; ".join(sentences)


def publish(
    *,
    with_crate: bool | None = None,
    with_catalogue: bool = True,
    stac: StacOptions | None = None,
    relations: Path | None = None,
    doi_table: Path | None = None,
    released: bool = False,
) -> Published:
    """Write where each product comes from, and add the products to the catalogue, whose other rows stay.

    `stac` and the file `relations` ask for a STAC catalogue, and for the relations to the inputs, whose DOIs are in
    `doi_table`. By default, the crate is written if rocrate is installed. With `released`, all files must be released.

    Raises
    ------
    CatalogError, StoreError
        If nothing is complete, a file cannot be written, or the products or exported files are not those of their
        `RELEASE.json`.
    InstallationError
        If a package is missing that a wanted file needs.
    """
    for package, purpose, is_wanted in (("rocrate", "an RO-Crate", with_crate), ("pystac", "a STAC catalogue", stac)):
        if is_wanted:
            check_installed(package, purpose)
    without_rocrate = with_crate is None and not is_installed("rocrate")
    with_crate = with_crate is not False and not without_rocrate
    final = context().config.paths.final.absolute()
    products = find_products(final)
    if not products:
        raise StoreError(f"nothing in {final} (paths.final) is complete: run `All`, or some of it, first")
    netcdf = stac.exported if stac else None
    folders = (final, netcdf) if netcdf else (final,)
    without_release = tuple(folder for folder in folders if not check_release(folder, required=released))
    # What the user gives is read, and what would be replaced is looked at, before anything is written.
    written = [(final / METADATA_NAME, OF_OURS)] if with_crate else []
    for path, judge in written + ([(relations, RELATIONS)] if relations else []):
        with disk_errors(path, "write"):
            check_ours(path, judge)
    catalogue = context().config.paths.project_catalog or final / "catalog.json"
    if with_catalogue:
        check_catalogue(catalogue)
    dois = read_dois(doi_table, raw_datasets(products)) if doi_table else {}
    related = relations_of(products, dois) if relations else None
    markers = {one.path.relative_to(final).as_posix(): one.marker.id for one in products if one.is_data}
    exported = find_exported(netcdf, markers) if netcdf else {}
    stacked = write_stac(products, final, _about(), stac, exported) if stac else None
    if related and relations:
        with disk_errors(relations, "write"):
            write_ours(relations, _as_json(related.document()), RELATIONS)
    if with_crate:
        write_crate(final)
    return Published(
        len(products),
        final / METADATA_NAME if with_crate else None,
        add_to_catalogue(catalogue, products, final) if with_catalogue else None,
        stacked,
        unfinished(netcdf, [one for files in exported.values() for one in files]) if netcdf else 0,
        related,
        relations,
        without_rocrate,
        without_release,
    )


def default_folder() -> Path:
    """Return the folder of files about the products, if none is named."""
    return context().config.paths.final.absolute()


def write_crate(final: Path) -> None:
    """Write the metadata file of the products' folder."""
    path = final / METADATA_NAME
    with alone(path) as write:
        # A folder is refused as it is to be replaced. Earlier versions copied secrets into the file.
        former = {} if path.is_dir() else read_object(path) or {}
        graph = former.get("@graph")
        entities = [entity for entity in graph if isinstance(entity, dict)] if isinstance(graph, list) else []
        hidden = [{**each, "text": redacted_text(str(each["text"]))} if "text" in each else each for each in entities]
        # Products are looked for while no other process writes, so that the last writer has found all of them.
        write(path, _as_json(crate(find_products(final), final, _about(), {**former, "@graph": hidden})), OF_OURS)


def _as_json(document: Any) -> str:
    return without_secrets(json.dumps(document, indent=1, ensure_ascii=False)) + "\n"


def _about() -> About:
    config = context().config
    attributes = config.attributes.get("global", {})
    ref, sim = "-".join(config.custom.ref_period), " and ".join(map("-".join, config.custom.stretches))
    return About(
        name=str(attributes.get("title") or attributes.get("dataset") or f"Scenarios of {config.reference_source}"),
        description=f"Daily simulations of {sim}, adjusted to {config.reference_source} over {ref}, with "
        "diagnostics and checks; made by espo_luigi.",
        licence=next((str(attributes[name]) for name in _LICENCES if attributes.get(name)), "none stated"),
        cite_as=next(filter(None, (_address(str(attributes.get(name, ""))) for name in _CITED)), ""),
        institution=str(attributes.get("institution") or ""),
        published=datetime.now(UTC).date().isoformat(),
        config_hash=config.hash,
        config_text=json.dumps(
            redacted(config.model_dump(mode="json", by_alias=True)), ensure_ascii=False, default=str
        ),
        config_files={str(path): redacted_text(read_text(path)) for path in config.files},
    )


def _address(text: str) -> str:
    """The address of a DOI or a page; nothing of other texts."""
    if doi := doi_of(text):
        return f"https://doi.org/{doi}"
    return text if text.startswith(("https://", "http://")) else ""
