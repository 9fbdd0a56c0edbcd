"""Which blocks of a store that is being written are complete: one line each, inside of its partial.

A block is a set of whole files of one variable. Whoever has written its files appends its line, each process to a file
of its own: what is recorded was written, whatever ends the writer, and a line that was cut short is passed over. A line
counts if the files have the sizes and the checksums that it names.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import socket
import threading
import uuid
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.errors import StoreError
from espo_luigi.files import open_own, replace_text

FOLDER_NAME = "espo-blocks"
_BASE_NAME = "base.json"
_LINES = ".jsonl"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_READ_BYTES = 2**24
_THREADS = 8
_appending = threading.Lock()

# A variable, and its block's number along each dimension.
Block = tuple[str, tuple[int, ...]]
# Size in bytes and checksum of each file, by its name from the store's root.
Sums = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Base:
    """All that was in a partial before its blocks: metadata, and data that are not lazy.

    The `id` is the same for attempts at the same work only.
    """

    id: str
    files: Sums


def begin(partial: Path, key: str) -> Base:
    """Write down whose work this is, and what is there before the first block."""
    files = sums(partial, files_below(partial))
    meant = {name: _meaning(partial / name) for name in files if name.endswith("zarr.json")}
    base = Base(hashlib.sha256(json.dumps([key, sorted({**files, **meant}.items())]).encode()).hexdigest(), files)
    (partial / FOLDER_NAME).mkdir()
    replace_text(partial / FOLDER_NAME / _BASE_NAME, json.dumps({"id": base.id, "files": base.files}))
    return base


def _meaning(metadata: Path) -> str:
    """The content of a file of metadata, without the times at which a history says that something was done."""
    return json.dumps(json.loads(metadata.read_text(encoding="utf-8"), object_pairs_hook=_without_times))


def _without_times(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {
        name: _TIME.sub("", value) if name.endswith("history") and isinstance(value, str) else value
        for name, value in items
    }


def read_base(partial: Path) -> Base | None:
    """Return what `begin` has written; None where that is not there, or cannot be read."""
    try:
        said = json.loads((partial / FOLDER_NAME / _BASE_NAME).read_text(encoding="utf-8"))
        return Base(str(said["id"]), _parsed(said["files"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def record(partial: Path, block: Block, names: Iterable[str]) -> None:
    """Append a block whose files are all there.

    Raises
    ------
    StoreError
        If the partial is gone: another writer has taken it.
    """
    try:
        files = {name: _sum_of(partial / name) for name in names}
        if None in files.values():
            raise FileNotFoundError(partial)
        line = json.dumps({"block": block, "files": files})
        with _appending:
            # It begins on a line of its own, too: the one before may have been cut short by a full disk.
            _append(partial / FOLDER_NAME / _own_name(os.getpid()), f"\n{line}\n".encode())
    except FileNotFoundError as error:
        raise StoreError(
            f"{partial} was deleted while it was written, or taken over. Nothing is published. Another attempt at this "
            "task goes on from it, or another person works in that folder"
        ) from error


@functools.lru_cache(maxsize=1)
def _own_name(pid: int) -> str:
    return f"{socket.gethostname()}-{pid}-{uuid.uuid4().hex[:8]}{_LINES}"


def _append(path: Path, text: bytes) -> None:
    descriptor = open_own(path, os.O_APPEND)
    try:
        while text:
            text = text[os.write(descriptor, text) :]
    finally:
        os.close(descriptor)


def lines_of(partial: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the whole lines of each file of blocks, by the file's name."""
    folder = partial / FOLDER_NAME
    names = sorted(name for name in _listed(folder) if name.endswith(_LINES))
    return {name: list(_whole_lines((folder / name).read_bytes())) for name in names}


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _whole_lines(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        try:
            said = json.loads(line)
            yield {"block": (str(said["block"][0]), tuple(said["block"][1])), "files": _parsed(said["files"])}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            continue


def _parsed(files: Mapping[str, Any]) -> Sums:
    return {str(name): (int(size), int(checksum)) for name, (size, checksum) in files.items()}


def verified(partial: Path) -> set[Block] | None:
    """Return the blocks whose files are as they were recorded, and delete all other files of blocks.

    None if what was there before the blocks is not as it was.
    """
    base = read_base(partial)
    if base is None or sums(partial, base.files) != base.files:
        return None
    lines = [line for of_one in lines_of(partial).values() for line in of_one]
    found = sums(partial, {name for line in lines for name in line["files"]})
    # The last line of a block that was written twice has the files' checksums.
    complete = [line for line in lines if line["files"] and line["files"].items() <= found.items()]
    kept = {*base.files, *(name for line in complete for name in line["files"])}
    for name in files_below(partial):
        if name not in kept:
            (partial / name).unlink(missing_ok=True)
    return {line["block"] for line in complete}


def files_below(partial: Path) -> list[str]:
    """Return the names of all files of the store, without those that say which blocks are complete."""
    own = partial / FOLDER_NAME
    return [
        str(Path(parent, name).relative_to(partial))
        for parent, _, names in os.walk(partial)
        if Path(parent) != own
        for name in names
    ]


def sums(root: Path, names: Iterable[str]) -> Sums:
    """Return size and checksum of each of these files that is there."""
    names = sorted(names)
    if len(names) < _THREADS:
        found = [_sum_of(root / name) for name in names]
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            found = list(pool.map(lambda name: _sum_of(root / name), names))
    return {name: one for name, one in zip(names, found, strict=True) if one is not None}


def _sum_of(path: Path) -> tuple[int, int] | None:
    size = checksum = 0
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_READ_BYTES):
                size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return size, checksum


def forget(partial: Path) -> None:
    """Delete the record of which blocks are complete: all are."""
    if (partial / FOLDER_NAME).exists():
        shutil.rmtree(partial / FOLDER_NAME)


# What this process has found complete, and what it has written, in all stores; and the stores at which it is, each with
# the files of blocks that were there before.
_tally: Counter[str] = Counter()
_at_work: dict[Path, set[str]] = {}


@contextmanager
def counted(partial: Path, found: int) -> Iterator[None]:
    """Have `tally` count the blocks that are written in the block of code, and those that were found before it."""
    _tally["found"] += found
    _at_work[partial] = set(lines_of(partial))
    try:
        yield
    finally:
        _tally["computed"] += _new_blocks(partial, _at_work[partial])
        del _at_work[partial]


def tally() -> dict[str, int]:
    """Return how many recorded blocks this process and its children have found complete, and how many computed."""
    at_work = sum(_new_blocks(partial, before) for partial, before in list(_at_work.items()))
    return {"found": _tally["found"], "computed": _tally["computed"] + at_work}


def _new_blocks(partial: Path, before: set[str]) -> int:
    folder = partial / FOLDER_NAME
    new = [name for name in _listed(folder) if name.endswith(_LINES) and name not in before]
    with suppress(FileNotFoundError):
        return sum((folder / name).read_bytes().count(b"}\n") for name in new)
    return 0
