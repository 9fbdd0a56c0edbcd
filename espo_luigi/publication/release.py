"""`RELEASE.json` in a folder of products: its files with sizes and checksums, and what `espo validate` says of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from espo_luigi.catalog.build import find_data
from espo_luigi.errors import StoreError
from espo_luigi.files import read_object
from espo_luigi.publication.products import find_products
from espo_luigi.replacing import MANIFEST_NAME, by_content, write_ours
from espo_luigi.store.disk import disk_errors
from espo_luigi.store.inventory import digest_of, files_of

RELEASE = "RELEASE.json"
_MAKER = "espo validate"
OF_OURS = by_content(lambda content: f'"made_by": "{_MAKER}"'.encode() in content, "a release that espo_luigi wrote")


def states(folder: Path, unlisted: list[tuple[Path, str]]) -> dict[str, dict[str, Any]]:
    """Return size and state of all archives, stores, and NetCDF files with their tables, by their paths in the folder.

    A state is the digest of the names, sizes and times of modification of the files. Folders that cannot be listed are
    added to `unlisted`, with the reason.
    """
    found: dict[str, dict[str, Any]] = {}
    # A page about changes has files that are made anew with the page.
    data = [path for path in find_data(folder, unlisted) if not (path.parent / MANIFEST_NAME).exists()]
    tables = [table for path in data if path.suffix == ".nc" and (table := path.with_suffix(".csv")).is_file()]
    for path in sorted([*data, *tables]):
        stats = {name: (path / name).stat() for name in files_of(path)}
        lines = "".join(f"{stat.st_size} {stat.st_mtime_ns} {name}\n" for name, stat in stats.items())
        size, state = sum(stat.st_size for stat in stats.values()), hashlib.sha256(lines.encode()).hexdigest()
        found[path.relative_to(folder).as_posix()] = {"size_bytes": size, "state": state}
    return found


def write_release(folder: Path, version: str, checks: Sequence[Any], examined: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write the release of a folder's files, whole or not at all.

    Raises
    ------
    StoreError
        If the files are not those `examined`, whose states were taken before the checks, or the disk refuses.
    """
    markers = [product.marker for product in find_products(folder)]
    with disk_errors(folder, "read"):
        products = {name: {**state, "sha256": digest_of(folder / name)} for name, state in examined.items()}
    # Only now, as files may also change while they are read here.
    now = states(folder, [])
    if differ := [name for name in sorted(now.keys() | examined.keys()) if now.get(name) != examined.get(name)]:
        raise StoreError(
            f"{len(differ)} file(s) in {folder} came, went or changed since the checks began, the first {differ[0]}: "
            "no release is written. Let nothing write there, and give the command again"
        )
    document = {
        "made_by": _MAKER,
        "version": version,
        "date": datetime.now(UTC).date().isoformat(),
        "configurations": sorted({marker.config_hash for marker in markers}),
        "software": sorted({f"{name} {own}" for marker in markers for name, own in marker.versions.items()}),
        "checks": [asdict(check) for check in checks],
        "products": products,
    }
    with disk_errors(folder / RELEASE, "write"):
        write_ours(folder / RELEASE, json.dumps(document, indent=1) + "\n", OF_OURS)
    return folder / RELEASE


def differences(folder: Path, *, only: Collection[str] = (), read_all: bool = True) -> Iterator[str]:
    """Yield how files, or `only` some of them, differ from the release of their folder; nothing without a release.

    Without `read_all`, files are not read whose names, sizes and times of modification are those of the release.
    """
    if not (folder / RELEASE).exists():
        return
    listed, found = (read_object(folder / RELEASE) or {}).get("products") or {}, states(folder, [])
    for name in sorted(only or listed.keys() | found.keys()):
        known, state = listed.get(name, {}), found.get(name)
        got = expected = known.get("sha256", "no file")
        # A copy has another state.
        if read_all or state is None or not state.items() <= known.items():
            got = digest_of(folder / name) if state else "no file"
        if got != expected:
            yield f"{name}: got {got}, expected by {RELEASE} {expected} (SHA-256)"


def check_release(folder: Path, *, required: bool = False) -> bool:
    """Return whether a folder has a release.

    Raises
    ------
    StoreError
        If the release names other files than there are, or is `required` and not there.
    """
    if found := list(differences(folder, read_all=False)):
        raise StoreError(
            f"{folder / RELEASE} is of other files: {'; '.join(found[:5])} ({len(found)} in all). Nothing was "
            "published. Restore the files, release them anew (`espo validate FOLDER --release VERSION`), or remove it"
        )
    if required and not (folder / RELEASE).exists():
        raise StoreError(f"no {folder / RELEASE}; expected a release. Give `espo validate {folder} --release VERSION`")
    return (folder / RELEASE).exists()
