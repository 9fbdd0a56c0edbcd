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
from espo_luigi.replacing import by_content, check_ours, write_ours
from espo_luigi.store.disk import disk_errors

RELEASE = "RELEASE.json"
_MARK = '"made_by": "espo validate"'
_OF_OURS = by_content(lambda content: _MARK.encode() in content, "a release that espo_luigi has written")


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; of a folder that of its files' lines as `sha256sum` has them, sorted by name."""
    if path.is_dir():
        files = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
        return hashlib.sha256("".join(f"{digest_of(path / name)}  {name}\n" for name in files).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> dict[str, Path]:
    """All data and products, by their paths in the folder."""
    found = {*find_data(folder, []), *(product.path for product in find_products(folder))}
    return {path.relative_to(folder).as_posix(): path for path in sorted(found)}


def write_release(folder: Path, version: str, checks: Sequence[Any]) -> Path:
    """Write the release of a folder as it is now, whole or not at all; raises `StoreError` if the disk refuses."""
    markers = [product.marker for product in find_products(folder)]
    software = sorted({f"{name} {own}" for marker in markers for name, own in marker.versions.items()})
    files = [{"path": name, **_described(path)} for name, path in _files(folder).items()]
    said = {
        "made_by": "espo validate",
        "version": version,
        "date": datetime.now(UTC).date().isoformat(),
        "configurations": sorted({marker.config_hash for marker in markers}),
        "software": software,
        "checks": [asdict(each) for each in checks],
    }
    with disk_errors(folder / RELEASE, "write"):
        write_ours(folder / RELEASE, json.dumps(said | {"products": files}, indent=1) + "\n", _OF_OURS)
    return folder / RELEASE


def _described(path: Path) -> dict[str, Any]:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return {"size_bytes": sum(file.stat().st_size for file in files), "sha256": digest_of(path)}


def check_replaceable(folder: Path) -> None:
    """Raise `StoreError` if a file that is no release of ours has the name."""
    check_ours(folder / RELEASE, _OF_OURS)


def differences(folder: Path) -> Iterator[str]:
    """Yield how a folder differs from its release: files that are gone, new or altered; nothing without a release."""
    if not (path := folder / RELEASE).exists():
        return
    try:
        listed = {one["path"]: one for one in (read_object(path) or {})["products"]}
    except (LookupError, TypeError):
        yield f"{path} is damaged; expected a list of products"
        return
    files = _files(folder)
    yield from (f"{name} is in {RELEASE}, and its file is gone" for name in listed if name not in files)
    for name, file in files.items():
        if name not in listed:
            yield f"{name} is not in {RELEASE}"
        elif listed[name] != {"path": name, **_described(file)}:
            yield f"{name} was altered after its release: its size or SHA-256 is not that in {RELEASE}"


def check_release(folder: Path) -> None:
    """Raise `StoreError` if a folder has a release, and other files than this names."""
    if found := list(differences(folder)):
        raise StoreError(
            f"{folder / RELEASE} is of other files: {'; '.join(found[:5])} ({len(found)} in all). Nothing was "
            "published. Restore the files, release them anew (`espo validate FOLDER --release VERSION`), or remove it"
        )
