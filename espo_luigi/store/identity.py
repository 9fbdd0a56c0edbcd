"""Identities: a store that is read, and the inputs of a job, are still those that were there at the beginning.

A run or a user may remove or replace a store while a job reads it. The values computed then may come from both stores,
or be fill values.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import InputChangedError
from espo_luigi.store.marker import read_marker
from espo_luigi.store.publish import Publication


@dataclass(frozen=True)
class Identity:
    """A path's inode and time of modification: a new folder may get a deleted folder's inode, but not its time.

    Neither changes when a store gets its final name, and nobody writes to it afterwards. The device's number does not
    belong here: an automounter gives a network file system a new number each time it mounts it.
    """

    inode: int
    modified_ns: int

    def __str__(self) -> str:
        return f"inode {self.inode}, of {_seconds(self.modified_ns)}"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 10**9}.{nanoseconds % 10**9:09d}"


def identity_of(path: Path) -> Identity | None:
    """Return the identity of the file or folder at `path` now; None if the path is free."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Identity(found.st_ino, found.st_mtime_ns)


def check_still(path: Path, opened: Identity | None) -> None:
    """Check, after a read, that the store at `path` is the store that was opened there.

    A store that was replaced never gets its name back. So if the opened store is there after a read, the read saw it.
    Raises `InputChangedError` if the store was replaced or deleted.
    """
    now = identity_of(path)
    if now != opened:
        raise InputChangedError(
            f"{path} was replaced or deleted while it was read: it was {opened or 'missing'} when it was opened, and "
            f"is now {now or 'gone'}; open it again, and compute anew what was made of it"
        )


# Describes the store or file at a path now; empty if the path is free.
_Describe = Callable[[Path], str]


def _store_at(path: Path) -> str:
    """A complete store: the id of its marker, and its identity."""
    identity = identity_of(path)
    marker = read_marker(path)
    return "" if marker is None else f"marker {marker.id}, {identity}"


def _raw_at(path: Path) -> str:
    """A raw file, or a raw folder with all its files, which anybody may write to; empty if it cannot be read."""
    identity = identity_of(path)
    if identity is None:
        return ""
    try:
        found = [entry.stat() for entry in (path.rglob("*") if path.is_dir() else [path])]
    except OSError:
        return ""  # an error once the job opens it
    files = [entry for entry in found if stat.S_ISREG(entry.st_mode)]
    newest = max([identity.modified_ns, *(entry.st_mtime_ns for entry in found)])
    size = sum(entry.st_size for entry in files)
    return f"{len(files)} files of {size} bytes, the newest of {_seconds(newest)}, {identity}"


@contextmanager
def unchanged(stores: Collection[Path], raw: Collection[Path] = ()) -> Iterator[str]:
    """Let the `with` block publish only while its inputs are those that were there at its start.

    Yields the fingerprint of the inputs: a text that is equal as long as they are unchanged.

    Parameters
    ----------
    stores : collection of Path
        Our own stores: nobody changes them in place, so that marker and identity are enough.
    raw : collection of Path
        Files and Zarr folders of others: also the number, the bytes and the newest time of all files count.

    Raises
    ------
    InputChangedError
        If a store is missing at the start; or if an input is gone or replaced before a publication, or when the block
        fails.
    """
    descriptions = {**dict.fromkeys(stores, _store_at), **dict.fromkeys(raw, _raw_at)}
    began_with = {path: describe(path) for path, describe in descriptions.items()}
    for path in stores:
        if not began_with[path]:
            raise InputChangedError(f"the input {path} is not there when the work begins: it was missing. {_ADVICE}")

    def check() -> None:
        for path, before in began_with.items():
            now = descriptions[path](path)
            if now != before:
                kind = "file" if path in raw else "store"
                raise InputChangedError(
                    f"the input {path} is not the {kind} that this job began with: it was {before or 'missing'}, and "
                    f"is now {now or 'gone'}. {_ADVICE}"
                )

    with Publication.current().only_after(check).in_force():
        try:
            yield "; ".join(f"{path}: {text}" for path, text in sorted(began_with.items()))
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
