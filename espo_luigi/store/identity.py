"""What distinguishes a store, folder or zip, from any other that has the same path before or after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import InputChangedError


@dataclass(frozen=True)
class Identity:
    """A path's inode and time; the time is there because a new folder may get a deleted one's inode.

    Neither changes when a store is published under its name, as it was written aside; nor is it written to afterwards.
    The device's number does: an automounter gives a network file system another one each time it mounts it.
    """

    inode: int
    modified_ns: int

    def __str__(self) -> str:
        return f"inode {self.inode}, of {self.modified_ns / 1e9:.3f}"


def identity_of(path: Path) -> Identity | None:
    """Return the identity of what is at `path` now, None where there is nothing."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Identity(found.st_ino, found.st_mtime_ns)


def check_still(path: Path, opened: Identity | None) -> None:
    """Check that what was just read at `path` belongs to what was opened there.

    A name never gets a former store back: if it is the opened one after a read, it was so during the read.

    Raises
    ------
    InputChangedError
        If it is another, or gone.
    """
    now = identity_of(path)
    if now != opened:
        raise InputChangedError(
            f"{path} was replaced or deleted while it was read: it was {opened or 'missing'} when it was opened, and "
            f"is now {now or 'gone'}; open it again, and compute anew what was made of it"
        )
