"""`RELEASE.json` in a folder of products: its files with sizes and checksums, and what `espo validate` says of them."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from espo_luigi.catalog.build import find_data
from espo_luigi.catalog.files import first_line
from espo_luigi.errors import StoreError
from espo_luigi.files import leads_out, read_bytes, read_object
from espo_luigi.publication.products import find_products
from espo_luigi.replacing import MANIFEST_NAME, by_content, delete, take_away, write_ours
from espo_luigi.store.disk import disk_errors
from espo_luigi.store.inventory import digest_of, files_of
from espo_luigi.store.marker import marker_beside

RELEASE = "RELEASE.json"
_MAKER = "espo validate"
OF_OURS = by_content(lambda content: f'"made_by": "{_MAKER}"'.encode() in content, "a release that espo_luigi wrote")
SIGNATURE, UNSIGNED = f"{RELEASE}.sig", "unsigned"
SIGNATURE_OF_OURS = by_content(lambda content: content.startswith(b"-----BEGIN SSH SIGNATURE-----"), "a signature")
# A check that was not done was optional, or there was no release.
_GOOD = {"passed", "not applicable", "not done"}
# What `ssh-keygen -Y verify` takes for files.
_NAMESPACE = "file"


def states(folder: Path, unlisted: list[tuple[Path, str]]) -> dict[str, dict[str, Any]]:
    """Return size and state of all archives, stores, and NetCDF files with their tables, by their paths in the folder.

    A state is the digest of the names, numbers, sizes and times of the files: nobody can set the time of a change.
    Folders that cannot be listed are added to `unlisted`, with the reason.
    """
    found: dict[str, dict[str, Any]] = {}
    # A page about changes has files that are made anew with the page.
    data = [path for path in find_data(folder, unlisted) if not (path.parent / MANIFEST_NAME).exists()]
    tables = [path.with_suffix(".csv") for path in data if path.suffix == ".nc"]
    beside = [path for path in (*tables, *map(marker_beside, tables)) if path.is_file()]
    for path in sorted([*data, *beside]):
        stats = {name: (path / name).stat() for name in files_of(path)}
        lines = "".join(
            f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} {name}\n"
            for name, stat in stats.items()
        )
        size, state = sum(stat.st_size for stat in stats.values()), hashlib.sha256(lines.encode()).hexdigest()
        found[path.relative_to(folder).as_posix()] = {"size_bytes": size, "state": state}
    return found


def check_inside(folder: Path, names: Collection[str]) -> None:
    """Raise `StoreError` if a link leads to a file out of the folder: it may be changed, or private, elsewhere."""
    if out := {name: target for name in names if (target := leads_out(folder / name, folder))}:
        name, target = next(iter(out.items()))
        raise StoreError(
            f"{len(out)} file(s) of the release lie behind links out of {folder}, the first {name}, which is "
            f"{target}; expected all files below the folder. Copy them there, or remove the link"
        )


def write_release(
    folder: Path,
    version: str,
    checks: Sequence[Any],
    examined: Mapping[str, Mapping[str, Any]],
    key: Path | None = None,
) -> Path:
    """Write the release of a folder's files, whole or not at all, and its signature by a `key` of ssh-keygen.

    Raises
    ------
    StoreError
        If the files are not those `examined`, whose states were taken before the checks, the disk refuses, or the key
        cannot sign.
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
        "signature": SIGNATURE if key else UNSIGNED,
        "products": products,
    }
    text = json.dumps(document, indent=1) + "\n"
    signature = _ssh_keygen(["sign", "-f", str(key)], text.encode()) if key else b""
    with disk_errors(folder / RELEASE, "write"):
        # That of a former release first: it is of another text.
        for aside in take_away(folder / SIGNATURE, SIGNATURE_OF_OURS):
            delete(aside)
        write_ours(folder / RELEASE, text, OF_OURS)
        if key:
            write_ours(folder / SIGNATURE, signature, SIGNATURE_OF_OURS)
    return folder / RELEASE


def _ssh_keygen(arguments: Sequence[str], content: bytes) -> bytes:
    """Sign a content, or check a signature of it. Raises `StoreError` with the program's message."""
    command = ["ssh-keygen", "-Y", *arguments, "-n", _NAMESPACE]
    try:
        done = subprocess.run(command, input=content, capture_output=True, check=True)
    except FileNotFoundError:
        raise StoreError("ssh-keygen, which signs and verifies releases, is not installed. Install OpenSSH") from None
    except subprocess.CalledProcessError as error:
        said = first_line(
            ValueError(error.stderr.decode(errors="replace").strip() or f"it ended with {error.returncode}")
        )
        raise StoreError(
            f"`{' '.join(command)}` failed: {said}. Expected a private key, or a valid signature"
        ) from None
    return done.stdout


def differences(folder: Path, *, only: Collection[str] = (), read_all: bool = True) -> Iterator[str]:
    """Yield how files, or `only` some of them, differ from the release of their folder; nothing without a release.

    Without `read_all`, files are not read whose names, sizes and times are those of the release.
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
    """Return whether a folder has a release; a `required` one is verified: all files are read, and its signature.

    Raises
    ------
    StoreError
        If the release names other files than there are, or a check that failed; if it is `required` and not there, has
        no checks, or has another signature than it says.
    """
    path = folder / RELEASE
    again = "Release the files anew (`espo validate FOLDER --release VERSION`), or remove it"
    if not path.exists():
        if required:
            raise StoreError(f"no {path}; expected a release. Give `espo validate {folder} --release VERSION`")
        return False
    document = read_object(path) or {}
    checks = document.get("checks")
    verdicts = (
        [one.get("verdict") if isinstance(one, dict) else None for one in checks if one]
        if isinstance(checks, list)
        else []
    )
    if (required and not verdicts) or not {*verdicts} <= _GOOD:
        got = ", ".join(map(str, dict.fromkeys(verdicts))) or "no checks"
        raise StoreError(f"{path}: got {got}, expected checks that passed. Nothing was published. {again}")
    if required and (signed := document.get("signature", UNSIGNED)) != UNSIGNED:
        if signed != SIGNATURE:
            raise StoreError(f"{path}: got signature {signed!r}, expected {SIGNATURE} or {UNSIGNED}. {again}")
        _ssh_keygen(["check-novalidate", "-s", str(folder / SIGNATURE)], read_bytes(path))
    if found := list(differences(folder, read_all=required)):
        raise StoreError(
            f"{path} is of other files: {'; '.join(found[:5])} ({len(found)} in all). Nothing was published. Restore "
            f"the files. {again}"
        )
    return True
