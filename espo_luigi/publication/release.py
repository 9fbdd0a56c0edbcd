"""`RELEASE.json` in a folder of products: its files with sizes and checksums, and what `espo validate` says of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
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


# Inode, size and time of modification of each file of an archive, a store or a NetCDF file, by its path in that.
Identities = Mapping[str, Mapping[str, tuple[int, int, int]]]


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identities(folder: Path, unlisted: list[tuple[Path, str]]) -> Identities:
    """Return the identities of all archives, stores and NetCDF files as they are now, by their paths in the folder.

    Folders that cannot be listed are added to `unlisted`, with the reason.
    """
    found: dict[str, dict[str, tuple[int, int, int]]] = {}
    for path in sorted(find_data(folder, unlisted)):
        states = {file.relative_to(path).as_posix(): file.stat() for file in (path, *path.rglob("*")) if file.is_file()}
        told = {name: (state.st_ino, state.st_size, state.st_mtime_ns) for name, state in sorted(states.items())}
        found[path.relative_to(folder).as_posix()] = told
    return found


def _entry(path: Path, files: Mapping[str, tuple[int, int, int]], known: Mapping[str, Any]) -> dict[str, Any]:
    """Size, state and SHA-256 of a file or store; that is not read if size and state are `known`.

    The SHA-256 of a store is that of its files' lines as `sha256sum` has them, sorted by name.
    """
    state = "".join(f"{size} {time} {name}\n" for name, (_, size, time) in files.items())
    told = {
        "size_bytes": sum(size for _, size, _ in files.values()),
        "state": hashlib.sha256(state.encode()).hexdigest(),
    }
    if told.items() <= known.items():
        return told | {"sha256": known.get("sha256")}
    if path.is_dir():
        lines = "".join(f"{digest_of(path / name)}  {name}\n" for name in files)
        return told | {"sha256": hashlib.sha256(lines.encode()).hexdigest()}
    return told | {"sha256": digest_of(path)}


def write_release(folder: Path, version: str, checks: Sequence[Any], examined: Identities) -> Path:
    """Write the release of a folder's files, whole or not at all.

    Raises
    ------
    StoreError
        If the files are not those `examined`, whose identities were taken before the checks, or the disk refuses.
    """
    markers = [product.marker for product in find_products(folder)]
    with disk_errors(folder, "read"):
        products = {name: _entry(folder / name, files, {}) for name, files in examined.items()}
    # Only now, as files may also change while they are read here.
    now = identities(folder, [])
    if differ := [name for name in sorted(now.keys() | examined.keys()) if now.get(name) != examined.get(name)]:
        raise StoreError(
            f"{len(differ)} file(s) in {folder} came, went or changed since the checks began, the first {differ[0]}: "
            "no release is written. Let nothing write there, and give the command again"
        )
    said = {
        "made_by": _MAKER,
        "version": version,
        "date": datetime.now(UTC).date().isoformat(),
        "configurations": sorted({marker.config_hash for marker in markers}),
        "software": sorted({f"{name} {own}" for marker in markers for name, own in marker.versions.items()}),
        "checks": [asdict(check) for check in checks],
        "products": products,
    }
    with disk_errors(folder / RELEASE, "write"):
        write_ours(folder / RELEASE, json.dumps(said, indent=1) + "\n", OF_OURS)
    return folder / RELEASE


def differences(folder: Path, *, read_all: bool = True) -> Iterator[str]:
    """Yield how files differ from the release of their folder; nothing without a release.

    Without `read_all`, files are not read whose names, sizes and times of modification are those of the release.
    """
    if (folder / RELEASE).exists():
        listed, found = (read_object(folder / RELEASE) or {}).get("products"), identities(folder, [])
        listed = listed if isinstance(listed, dict) else {}
        for name in sorted(listed.keys() | found.keys()):
            known = listed[name] if isinstance(listed.get(name), dict) else {}
            told = _entry(folder / name, found[name], {} if read_all else known) if name in found else {}
            # A copy has another state.
            got, expected = (of.get("sha256", "no file") for of in (told, known))
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
