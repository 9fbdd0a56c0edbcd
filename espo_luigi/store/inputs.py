"""The stores that a job reads: still the ones that it began with when it publishes what it made of them.

Another run, or a user, may remove or replace a store while it is read; whatever was computed then may be of
both, or of fill values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from espo_luigi.errors import InputChangedError
from espo_luigi.store.publish import publishing_after
from espo_luigi.store.read import read_marker


@dataclass(frozen=True)
class Identity:
    """What tells a store, folder or zip, from any other that ever bears its name.

    A store is never changed in place. The time is there because a new folder may get a deleted one's inode.
    """

    marker_id: str
    device: int
    inode: int
    modified_ns: int

    def __str__(self) -> str:
        return f"marker {self.marker_id}, inode {self.inode} of device {self.device}, of {self.modified_ns / 1e9:.3f}"


def identity_of(path: Path) -> Identity | None:
    """Return the identity of the complete store at `path`, None where there is none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    marker = read_marker(path)
    return None if marker is None else Identity(marker.id, found.st_dev, found.st_ino, found.st_mtime_ns)


@contextmanager
def unchanged(paths: Iterable[Path]) -> Iterator[None]:
    """Let nothing be published in the block unless the stores at `paths` are the ones that were there at its start.

    Raises
    ------
    InputChangedError
        If one is missing at the start, or is another, or gone, before a store is published or when the block fails.
    """
    began_with = {path: identity_of(path) for path in paths}

    def check() -> None:
        _check(began_with)

    check()
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


def _check(began_with: Mapping[Path, Identity | None]) -> None:
    for path, before in began_with.items():
        now = identity_of(path)
        if before is None or now != before:
            raise InputChangedError(
                f"the input {path} is not the store that this job began with: it was {before or 'missing'}, and is now "
                f"{now or 'gone'}. Nothing is published; the task is tried again, after its input where that is gone. "
                "If this comes back, find out who else works in that folder"
            )
