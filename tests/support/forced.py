"""What a crash of the machine would leave of files: only what was forced onto the disk as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from espo_luigi import replacing


class Forced:
    """Notes what is forced onto the disk, and of all that gets a name, what was not forced by then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.early: dict[Path, list[Path]] = {}
        self.kept: set[Path] = set()
        self.folders: set[Path] = set()
        self._versions: dict[tuple[int, int], int] = {}
        sync = os.fsync

        def noting(descriptor: int) -> None:
            sync(descriptor)
            found, folder = os.fstat(descriptor), Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            self._versions[found.st_dev, found.st_ino] = found.st_mtime_ns
            self.folders.add(folder)
            self.kept |= {path for path in self.early if path.parent == folder}

        monkeypatch.setattr(os, "fsync", noting)
        for module, name in ((os, "rename"), (os, "replace"), (os, "link"), (replacing, "renamed")):
            self._watch(monkeypatch, module, name)

    def _watch(self, monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
        rename = getattr(module, name)

        def noting(source: Path, target: Path, *rest: int, **descriptors: int) -> object:
            if not descriptors:  # what is in folders that are held open is no product
                self.early.setdefault(Path(target), self.missing(Path(source)))
                self.kept.discard(Path(target))
            return rename(source, target, *rest, **descriptors)

        monkeypatch.setattr(module, name, noting)

    def missing(self, path: Path) -> list[Path]:
        """Return the files and folders from `path` downward that changed since they were forced onto the disk."""
        found = {one: one.stat() for one in (path, *path.rglob("*"))}
        return [one for one, now in found.items() if self._versions.get((now.st_dev, now.st_ino)) != now.st_mtime_ns]
