"""Partials: private folders beside the final names, where stores are written; a later writer keeps complete blocks.

The name of a partial says which process on which host made it. The store is its `content`. A block is a set of whole
files of a variable. The process that wrote these files appends a line with their inventory to a file in the partial;
each process has its own. A block is complete if its files still match its line. A torn line is ignored.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.errors import StoreError
from espo_luigi.files import (
    CONTENT,
    HeldFolder,
    load_json,
    open_folder,
    open_own,
    parse_json,
    process_start,
    read_bytes,
    read_text,
    replace_text,
)
from espo_luigi.replacing import PARTIAL_SUFFIX, delete, is_hidden_name, partial_path, process_name
from espo_luigi.store.disk import delete_quietly, disk_errors
from espo_luigi.store.inventory import size_bytes

logger = logging.getLogger(__name__)

# No job runs this long: if a process has the number of a partial's writer now, it is not the writer.
SILENT_PARTIAL_AGE_HOURS = 48
FOLDER_NAME = "espo-blocks"
START_NAME = "start.json"
_LINES = ".jsonl"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_READ_BYTES = 2**24
_THREADS = 8
_appending = threading.Lock()

# A variable, and the number of its block along each dimension.
Block = tuple[str, tuple[int, ...]]
# The inventory of some files: size in bytes and checksum of each, by its name from the store's root.
Files = dict[str, tuple[int, int]]


def _is_partial(name: str) -> bool:
    """Whether a name is that of a partial of ours; hidden names of others may end in `.partial`, too."""
    return name.endswith(PARTIAL_SUFFIX) and is_hidden_name(name)


def _is_own(partial: Path) -> bool:
    return f".{process_name()}" in partial.name


def _is_elsewhere(partial: Path, name: str) -> bool:
    return not partial.name.startswith(f".{name}.{socket.gethostname()}-")


def _is_abandoned(partial: Path) -> bool:
    """Whether the process that made a partial is dead, as far as this host can know, or silent for two days.

    Partials of other accounts do not count.
    """
    if _is_closed(partial):
        return False
    here = re.search(rf"\.{re.escape(socket.gethostname())}-(\d+)-[0-9a-f]+{re.escape(PARTIAL_SUFFIX)}$", partial.name)
    if here is not None:
        is_own_number = int(here[1]) == os.getpid()
        if not (_is_own(partial) if is_own_number else process_start(int(here[1])) is not None):
            return True
    signs = (partial, *(partial / FOLDER_NAME).glob("*"))
    age_hours = (time.time() - max(sign.stat().st_mtime for sign in signs)) / 3600
    return age_hours > SILENT_PARTIAL_AGE_HOURS


def _is_closed(partial: Path) -> bool:
    """Whether a partial is another account's, which alone can delete it."""
    return partial.is_dir() and not os.access(partial, os.R_OK | os.W_OK | os.X_OK)


def bytes_begun(paths: Sequence[Path]) -> list[int]:
    """Return the bytes of each path's partials, whoever writes them; lists each folder once."""
    folders = {path.parent for path in paths}
    begun = {folder: [one for one in folder.glob(f".*{PARTIAL_SUFFIX}") if _is_partial(one.name)] for folder in folders}
    return [
        sum(size_bytes(partial) or 0 for partial in begun[path.parent] if partial.name.startswith(f".{path.name}."))
        for path in paths
    ]


def abandoned_partials(folder: Path) -> Iterator[Path]:
    """Yield the partials below `folder` whose process is dead, as far as this host can know, or silent for two days.

    Stores are not searched.
    """
    for parent, folders, files in os.walk(folder):
        partials = [name for name in (*folders, *files) if _is_partial(name)]
        folders[:] = [name for name in folders if name not in partials and not name.endswith(".zarr")]
        for name in sorted(partials):
            with contextlib.suppress(FileNotFoundError):  # its writer has just published it
                if _is_abandoned(Path(parent, name)):
                    yield Path(parent, name)


def _partials_of(path: Path) -> list[Path]:
    """The partials of all writers and deletions of a store."""
    prefix = f".{path.name}."
    names = [entry.name for entry in os.scandir(path.parent)]
    return [path.parent / name for name in names if name.startswith(prefix) and _is_partial(name)]


def sweep_partials(path: Path, *, published: bool = False, spare_resumable: bool = False) -> None:
    """Delete the partials that killed writers of a store left behind.

    Parameters
    ----------
    path : Path
        The store's final name.
    published : bool
        Also delete partials of other hosts. This host cannot tell whether their writers live, but only one job at a
        time makes a store: once it is published, they are left from an earlier attempt.
    spare_resumable : bool
        Keep the partials that a writer may take over.
    """
    for partial in _partials_of(path):
        with contextlib.suppress(OSError, StoreError):
            swept = _is_abandoned(partial) or (published and _is_elsewhere(partial, path.name))
            if swept and not _is_closed(partial) and not (spare_resumable and _read_start(partial)):
                logger.info("removing %s, left behind by a writer that was killed", partial)
                remove_partial(partial)


def remove_partial(partial: Path) -> None:
    """Rename the partial of another process, then delete it; a writer that lives after all cannot publish it.

    Raises
    ------
    StoreError
        If the folder does not allow it.
    """
    aside = partial_path(partial.with_name(partial.name.removeprefix(".").removesuffix(PARTIAL_SUFFIX)))
    with disk_errors(partial, "remove"), contextlib.suppress(FileNotFoundError):
        os.rename(partial, aside)
        delete(aside)


@dataclass(frozen=True)
class _Start:
    """A partial before its first block: the files of its metadata and of its data that are not lazy.

    The fingerprint covers these and all that the values of the blocks depend on: attempts at the same store share it.
    """

    fingerprint: str
    files: Files


def take_over(partial: HeldFolder, path: Path, fingerprint: str, claim: Callable[[], None] | None) -> set[Block]:
    """Move the content of an earlier attempt's partial at the same store into `partial`, which has no block yet.

    An attempt is over if its process is dead, as far as this host can know, or if this process holds a claim. Of
    several processes that want the same partial, the first to rename it gets it; a writer that still lives finds its
    content gone. All other abandoned partials are deleted.

    Parameters
    ----------
    partial : HeldFolder
        The new partial, with its metadata and the data that are not lazy.
    path : Path
        The store's final name.
    fingerprint : str
        A text for all that the values of the store depend on.
    claim : callable, optional
        Raises unless this process alone may write the store.

    Returns
    -------
    set of Block
        The complete blocks of the earlier attempt; its other files of blocks are deleted.
    """
    start = _begin(partial, fingerprint)
    if claim is not None:
        claim()
    blocks: set[Block] = set()
    for former in _partials_of(path):
        # A partial that is gone meanwhile was taken by another process, or published.
        with contextlib.suppress(FileNotFoundError):
            found = _read_start(former)
            is_over = not _is_own(former) and (claim is not None or _is_abandoned(former))
            if is_over and found is not None and found.fingerprint == start.fingerprint:
                blocks = _take(former, partial, path)
        if blocks:
            break
    sweep_partials(path)
    return blocks


def _take(former: Path, partial: HeldFolder, path: Path) -> set[Block]:
    """Move the content of a former partial into `partial` if it has complete blocks; return these."""
    taken = partial_path(path)
    os.rename(former, taken)
    with open_folder(taken) as descriptor:
        inside = Path(f"/proc/self/fd/{descriptor}")
        # Another account can change what is not private, also after it was verified.
        is_ours = _rights(inside) == _rights(partial.inside)
        blocks = _verified(inside) if is_ours else set()
        if blocks:
            for name in (CONTENT, FOLDER_NAME):
                os.rename(partial.inside / name, inside / f"new-{name}")
                os.rename(inside / name, partial.inside / name)
    delete_quietly(taken)
    return blocks


def _rights(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_uid, found.st_mode


def _begin(partial: HeldFolder, fingerprint: str) -> _Start:
    content = partial.content
    files = _inventory(content, _files_below(content))
    meant = {name: _meaning(content / name) for name in files if name.endswith("zarr.json")}
    text = json.dumps([fingerprint, sorted({**files, **meant}.items())])
    start = _Start(hashlib.sha256(text.encode()).hexdigest(), files)
    folder = partial.inside / FOLDER_NAME
    folder.mkdir()
    replace_text(folder / START_NAME, json.dumps({"fingerprint": start.fingerprint, "files": start.files}))
    return start


def _meaning(metadata: Path) -> str:
    """The content of a metadata file without the times in its histories."""
    return json.dumps(parse_json(read_text(metadata), _without_times))


def _without_times(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {
        name: _TIME.sub("", value) if name.endswith("history") and isinstance(value, str) else value
        for name, value in items
    }


def _read_start(partial: Path) -> _Start | None:
    try:
        content = load_json(partial / FOLDER_NAME / START_NAME)
        return _Start(str(content["fingerprint"]), _parsed(content["files"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def record(partial: HeldFolder, block: Block, names: Iterable[str]) -> None:
    """Append the line of a block whose files are all written. Raises FileNotFoundError if the partial is gone."""
    files = {name: _size_and_checksum(partial.content / name) for name in names}
    if None in files.values():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(partial.path))
    # It starts with a line break: a full disk may have torn the line before.
    line = f"\n{json.dumps({'block': block, 'files': files})}\n"
    path = partial.inside / FOLDER_NAME / f"{process_name()}{_LINES}"
    with _appending, open(open_own(path, os.O_APPEND), "wb") as file:
        file.write(line.encode())


def recorded(partial: Path) -> list[tuple[Block, Files]]:
    """Return the blocks that have a whole line, each with the inventory of its files."""
    folder = partial / FOLDER_NAME
    return [line for name in sorted(_line_files(partial)) for line in _whole_lines(read_bytes(folder / name))]


def _line_files(partial: Path) -> set[str]:
    try:
        return {name for name in os.listdir(partial / FOLDER_NAME) if name.endswith(_LINES)}
    except FileNotFoundError:
        return set()


def _whole_lines(content: bytes) -> Iterator[tuple[Block, Files]]:
    for text in content.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError, IndexError, AttributeError):
            line = parse_json(text)
            yield (str(line["block"][0]), tuple(line["block"][1])), _parsed(line["files"])


def _parsed(files: Mapping[str, Any]) -> Files:
    return {str(name): (int(size), int(checksum)) for name, (size, checksum) in files.items()}


def _verified(partial: Path) -> set[Block]:
    """The complete blocks, if the files from before them are unchanged; files of incomplete blocks are deleted."""
    start, content = _read_start(partial), partial / CONTENT
    if start is None or _inventory(content, start.files) != start.files:
        return set()
    lines = recorded(partial)
    found = _inventory(content, {name for _, files in lines for name in files})
    # Of a block that was written twice, the last line has the checksums of the files.
    complete = [(block, files) for block, files in lines if files and files.items() <= found.items()]
    kept = {*start.files, *(name for _, files in complete for name in files)}
    for name in _files_below(content):
        if name not in kept:
            (content / name).unlink(missing_ok=True)
    return {block for block, _ in complete}


def _files_below(content: Path) -> list[str]:
    return [str(Path(parent, name).relative_to(content)) for parent, _, names in os.walk(content) for name in names]


def _inventory(root: Path, names: Iterable[str]) -> Files:
    """Size and checksum of each of these files that is there."""
    names = sorted(names)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda name: _size_and_checksum(root / name), names))
    return {name: entry for name, entry in zip(names, found, strict=True) if entry is not None}


def _size_and_checksum(path: Path) -> tuple[int, int] | None:
    size = checksum = 0
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_READ_BYTES):
                size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return size, checksum


class BlockCount:
    """How many blocks of all its stores a job found complete, and how many it and its Dask workers computed."""

    def __init__(self) -> None:
        self._found = self._computed = 0
        # The partials that are being written, each with the files of lines that it had before.
        self._open: dict[HeldFolder, set[str]] = {}

    @contextlib.contextmanager
    def of(self, partial: HeldFolder, found: int) -> Iterator[None]:
        """Count the blocks that are written in the `with` block, and those that were found before it."""
        self._found += found
        self._open[partial] = _line_files(partial.inside)
        try:
            yield
        finally:
            self._computed += _new_blocks(partial.inside, self._open[partial])
            del self._open[partial]

    def __call__(self) -> dict[str, int]:
        """Return the two numbers, as they stand now."""
        still_open = sum(_new_blocks(partial.inside, before) for partial, before in list(self._open.items()))
        return {"found": self._found, "computed": self._computed + still_open}


def _new_blocks(partial: Path, before: set[str]) -> int:
    new = _line_files(partial) - before
    with contextlib.suppress(FileNotFoundError):
        return sum(read_bytes(partial / FOLDER_NAME / name).count(b"}\n") for name in new)
    return 0
