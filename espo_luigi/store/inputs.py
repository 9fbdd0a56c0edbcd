"""The stores and files that a job reads: still the ones that it began with when it publishes what it made of them.

Another run, or a user, may remove or replace a store while it is read; whatever was computed then may be of
both, or of fill values.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import InputChangedError
from espo_luigi.store.identity import Identity, identity_of
from espo_luigi.store.publish import publishing_after
from espo_luigi.store.read import read_marker


@dataclass(frozen=True)
class _Store:
    """A complete store: what made it, and its inode and time."""

    marker_id: str
    identity: Identity | None

    def __str__(self) -> str:
        return f"marker {self.marker_id}, {self.identity}"


def _store_at(path: Path) -> _Store | None:
    identity = identity_of(path)
    marker = read_marker(path)
    return None if marker is None else _Store(marker.id, identity)


@dataclass(frozen=True)
class _Raw:
    """A file, or a folder with all that is in it, that others may write to at any time."""

    identity: Identity | None
    files: int
    size_bytes: int
    newest_ns: int

    def __str__(self) -> str:
        return (
            f"{self.files} files of {self.size_bytes} bytes, the newest of {self.newest_ns / 1e9:.3f}, {self.identity}"
        )


def _raw_at(path: Path) -> _Raw | None:
    """What is there; None if that cannot be read, which is an error once it is opened."""
    identity = identity_of(path)
    if identity is None:
        return None
    try:
        found = [entry.stat() for entry in (path.rglob("*") if path.is_dir() else [path])]
    except OSError:
        return None
    files = [entry for entry in found if stat.S_ISREG(entry.st_mode)]
    newest = max([identity.modified_ns, *(entry.st_mtime_ns for entry in found)])
    return _Raw(identity, len(files), sum(entry.st_size for entry in files), newest)


def fingerprint(stores: Collection[Path], raw: Collection[Path] = ()) -> str:
    """Return a text that is the same as long as these inputs are (as `unchanged` compares them)."""
    looks: dict[Path, _Look] = {**dict.fromkeys(stores, _store_at), **dict.fromkeys(raw, _raw_at)}
    return "; ".join(f"{path}: {look(path)}" for path, look in sorted(looks.items()))


_Look = Callable[[Path], _Store | _Raw | None]


@contextmanager
def unchanged(stores: Collection[Path], raw: Collection[Path] = ()) -> Iterator[None]:
    """Let nothing be published in the block unless its inputs are the ones that were there at its start.

    Parameters
    ----------
    stores : collection of Path
        Stores of ours: never changed in place, so that marker, inode and time of the root are enough.
    raw : collection of Path
        Files, and Zarr folders, of others: also the number, the bytes and the newest time of all files.

    Raises
    ------
    InputChangedError
        If a store is missing at the start, or an input is another, or gone, before anything is published or when the
        block fails.
    """
    looks: dict[Path, _Look] = {**dict.fromkeys(stores, _store_at), **dict.fromkeys(raw, _raw_at)}
    began_with = {path: look(path) for path, look in looks.items()}
    for path in stores:
        _check_there(path, began_with[path])

    def check() -> None:
        for path, before in began_with.items():
            _check_same(path, before, looks[path](path))

    with publishing_after(check):
        try:
            yield
        except InputChangedError:
            raise
        except Exception as error:
            try:
                check()
            except InputChangedError as changed:
                raise changed from error
            raise


_ADVICE = (
    "Nothing is published; the task is tried again, after its input where that is gone. If this comes back, find out "
    "who else works in that folder"
)


def _check_there(path: Path, found: _Store | _Raw | None) -> None:
    if found is None:
        raise InputChangedError(f"the input {path} is not there when the work begins: it was missing. {_ADVICE}")


def _check_same(path: Path, before: _Store | _Raw | None, now: _Store | _Raw | None) -> None:
    if now != before:
        raise InputChangedError(
            f"the input {path} is not the {'file' if isinstance(before, _Raw) else 'store'} that this job began with: "
            f"it was {before or 'missing'}, and is now {now or 'gone'}. {_ADVICE}"
        )
