"""The options of `espo publish` for others, and its words about what they lack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import click

from espo_luigi.publication.assets import StacOptions
from espo_luigi.tasks.publish import Published, RelationsOptions, default_folder

# More names than this are counted.
_NAMED = 20
_DEFAULT = Path()
"""What an option without its value gives."""


def stac_options(
    folder: Path | None, exported: Path | None, kerchunk: bool, addresses: tuple[str, ...]
) -> StacOptions | None:
    """Return what is asked of a STAC catalogue; nothing if none is. Raises click.UsageError."""
    given = {"--exported": exported, "--kerchunk": kerchunk, "--href": addresses}
    if folder is None and any(given.values()):
        raise click.UsageError(f"{next(name for name, value in given.items() if value)} needs --stac.")
    if kerchunk and exported is None:
        raise click.UsageError("--kerchunk needs --exported, the folder with the NetCDF files.")
    for address in addresses:
        if not urlsplit(address).scheme:
            raise click.UsageError(f"--href {address} is not a URL; expected https://… or the like.")
    if folder is None:
        return None
    return StacOptions(default_folder() / "stac" if folder == _DEFAULT else folder, addresses, exported, kerchunk)


def relations_options(file: Path | None, doi_table: Path | None) -> RelationsOptions | None:
    """Return what is asked of the relations to the inputs; nothing if none is. Raises click.UsageError."""
    if file is None and doi_table is not None:
        raise click.UsageError("--doi-table needs --datacite.")
    if file is None:
        return None
    return RelationsOptions(default_folder() / "datacite.json" if file == _DEFAULT else file, doi_table)


def render_published(done: Published) -> str:
    """Return the lines about a publication: what was written, and what is missing in it."""
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


def _named(what: str, names: Sequence[str]) -> Iterator[str]:
    yield from (f"  {what}: {name}" for name in names[:_NAMED])
    if len(names) > _NAMED:
        yield f"  {what}: {len(names) - _NAMED} more, listed in the file"
