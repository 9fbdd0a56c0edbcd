"""`RELEASE.json` in a folder of products: its files with sizes and checksums, and what `espo validate` says of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from espo_luigi.catalog.build import find_data
from espo_luigi.errors import StoreError
from espo_luigi.files import read_object
from espo_luigi.publication.products import find_products
from espo_luigi.replacing import by_content, write_ours
from espo_luigi.store.disk import disk_errors

RELEASE = "RELEASE.json"
_MAKER = "espo validate"
OF_OURS = by_content(lambda content: f'"made_by": "{_MAKER}"'.encode() in content, "a release that espo_luigi wrote")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; of a folder that of its files' lines as `sha256sum` has them, sorted by name."""
    if path.is_dir():
        files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
        return hashlib.sha256("".join(f"{digest_of(path / name)}  {name}\n" for name in files).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of all archives, stores and NetCDF files, by their paths in the folder."""
    found = find_data(folder, [])
    sizes = {path: [file.stat().st_size for file in (path, *path.rglob("*")) if file.is_file()] for path in found}
    return {
        path.relative_to(folder).as_posix(): {"size_bytes": sum(sizes[path]), "sha256": digest_of(path)}
        for path in sorted(found)
    }


def write_release(folder: Path, version: str, checks: Sequence[Any]) -> Path:
    """Write the release of a folder as it is now, whole or not at all; raises `StoreError` if the disk refuses."""
    markers = [product.marker for product in find_products(folder)]
    said = {
        "made_by": _MAKER,
        "version": version,
        "date": datetime.now(UTC).date().isoformat(),
        "configurations": sorted({marker.config_hash for marker in markers}),
        "software": sorted({f"{name} {own}" for marker in markers for name, own in marker.versions.items()}),
        "checks": [asdict(check) for check in checks],
        "products": _files(folder),
    }
    with disk_errors(folder / RELEASE, "write"):
        write_ours(folder / RELEASE, json.dumps(said, indent=1) + "\n", OF_OURS)
    return folder / RELEASE


def differences(folder: Path) -> Iterator[str]:
    """Yield how files differ from the release of their folder; nothing without a release."""
    if (folder / RELEASE).exists():
        listed, found = (read_object(folder / RELEASE) or {}).get("products"), _files(folder)
        listed = listed if isinstance(listed, dict) else {}
        for name in sorted(listed.keys() | found.keys()):
            if listed.get(name) != found.get(name):
                yield f"{name}: got {found.get(name, 'no file')}, expected by {RELEASE} {listed.get(name, 'no file')}"


def check_release(folder: Path) -> None:
    """Raise `StoreError` if a folder has a release, and other files than this names."""
    if found := list(differences(folder)):
        raise StoreError(
            f"{folder / RELEASE} is of other files: {'; '.join(found[:5])} ({len(found)} in all). Nothing was "
            "published. Restore the files, release them anew (`espo validate FOLDER --release VERSION`), or remove it"
        )
