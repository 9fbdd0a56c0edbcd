"""The options of `espo publish` for STAC and DataCite, and the lines that it and `espo catalog --check` print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click

from espo_luigi.publication.retractions import Checked
from espo_luigi.publication.stac import StacOptions
from espo_luigi.redaction import without_secrets
from espo_luigi.tasks.publish import Published, default_folder

# More names than this are counted.
_NAMED = 20


def stac_options(folder: str | None, exported: Path | None, addresses: tuple[str, ...]) -> StacOptions | None:
    """Return the options of the STAC catalogue; None without `--stac`. Raises click.UsageError.

    `folder` is an empty text if the option was given without it.
    """
    given = {"--exported": exported, "--href": addresses}
    if folder is None and any(given.values()):
        raise click.UsageError(f"{next(name for name, value in given.items() if value)} needs --stac.")
    for address in addresses:
        if not urlsplit(address).scheme:
            raise click.UsageError(f"--href {address} is not a URL; expected https://… or the like.")
        if (hidden := without_secrets(address)) != address:
            raise click.UsageError(
                f"--href {hidden} holds a password or a key, which everybody who reads the catalogue would have; "
                "expected an address without"
            )
    if folder is None:
        return None
    return StacOptions(Path(folder) if folder else default_folder() / "stac", addresses, exported)


def relations_file(file: str | None, doi_table: Path | None) -> Path | None:
    """Return where the relations to inputs go; None without `--datacite`. Raises click.UsageError.

    `file` is an empty text if the option was given without it.
    """
    if file is None and doi_table is not None:
        raise click.UsageError("--doi-table needs --datacite.")
    if file is None:
        return None
    return Path(file) if file else default_folder() / "datacite.json"


def render_published(done: Published) -> str:
    """Return the lines about a publication: the files written, and the gaps in them."""
    lines = [str(done)]
    if done.catalogued:
        lines += [f"  of no dataset, not listed: {path}" for path in done.catalogued.left_out]
    if done.stac and done.stac.left_out:
        lines.append(f"  no simulations on a map with times, no items: {len(done.stac.left_out)} stores")
    if done.unfinished:
        lines.append(f"  of no finished product, no assets: {done.unfinished} NetCDF file(s)")
    if (related := done.relations) is not None:
        lines += _named("no DOI", related.without_doi)
        lines += _named("no tracking id", related.without_tracking_id)
        lines += _named("raw files unknown, as their InputCheck is gone", related.unknown)
    return "\n".join(lines)


def render_checked(checked: Checked) -> str:
    """Return the lines about products made of retracted files, and about what could not be checked."""
    lines = [f"{len(checked.found)} product(s) made of what is listed ({checked.listed} identifiers)"]
    for product, files in checked.found.items():
        lines += _named(product, [f"{Path(file).name} ({listed})" for file, listed in files.items()])
    lines += _named("not of ESGF", checked.outside_esgf)
    return "\n".join([*lines, *_named("cannot be checked", [": ".join(one) for one in checked.unchecked.items()])])


def _named(what: str, names: Sequence[str]) -> Iterator[str]:
    yield from (f"  {what}: {name}" for name in names[:_NAMED])
    if len(names) > _NAMED:
        yield f"  {what}: {len(names) - _NAMED} more, which `--json` lists"
