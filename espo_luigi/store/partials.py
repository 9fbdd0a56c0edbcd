"""Partials: private folders beside the final names, where stores are written; a later writer keeps complete blocks.

The name of a partial says which process on which host made it. The store is its `content`. A block is a set of whole
files of a variable, which Zarr writes beside their names and renames. A block is complete if its files are there and
can be decoded: each chunk has a checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from espo_luigi.errors import StoreError
from espo_luigi.files import (
    CONTENT,
    HeldFolder,
    lives,
    open_folder,
    parse_json,
    process_room,
    read_object,
    read_text,
    sha256_of,
    write_atomically,
)
from espo_luigi.replacing import (
    PARTIAL_SUFFIX,
    delete,
    is_hidden_name,
    is_only_copy,
    partial_path,
    process_name,
    room_digits,
)
from espo_luigi.store.disk import delete_quietly, disk_errors
from espo_luigi.store.inventory import size_bytes
from espo_luigi.store.marker import ROOT_METADATA_NAME, marked

logger = logging.getLogger(__name__)

# No job runs this long: if a process has the number of a partial's writer now, it is not the writer.
SILENT_PARTIAL_AGE_HOURS = 48
START_NAME = "start.json"
# A network file system answers several at once; each of these threads holds a decoded block in memory.
_DECODING_THREADS = 4
# The name of an array's folder of chunks; of the chunk itself if the array has no dimensions.
_CHUNKS = "c"
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")

# A variable, and the number of its block along each dimension.
BlockKey = tuple[str, tuple[int, ...]]


def _is_partial(name: str) -> bool:
    """Whether a name is that of a partial of ours; hidden names of others may end in `.partial`, too."""
    return name.endswith(PARTIAL_SUFFIX) and is_hidden_name(name)


def _is_own(partial: Path) -> bool:
    return f".{process_name()}" in partial.name


def _is_abandoned(partial: Path) -> bool:
    """Whether the process that made a partial is dead, as far as this host can know, or silent for two days.

    Partials of other accounts do not count.
    """
    if _is_closed(partial) or is_only_copy(partial, marked):
        return False
    room = rf"{re.escape(socket.gethostname())}-(\d+)-{room_digits()}[0-9a-f]{{16}}"
    here = re.search(rf"\.{room}{re.escape(PARTIAL_SUFFIX)}$", partial.name)
    if here is not None:
        is_own_number = int(here[1]) == os.getpid()
        if not _is_own(partial) if is_own_number else lives(int(here[1]), "", process_room()) is False:
            return True
    # Each new chunk changes the time of its folder. What cannot be listed is not silent.
    unread: list[OSError] = []
    signs = (partial, *(Path(parent) for parent, _, _ in os.walk(partial, onerror=unread.append)))
    age_hours = (time.time() - max(sign.stat().st_mtime for sign in signs)) / 3600
    return not unread and age_hours > SILENT_PARTIAL_AGE_HOURS


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
            is_elsewhere = not partial.name.startswith(f".{path.name}.{socket.gethostname()}-")
            swept = _is_abandoned(partial) or (published and is_elsewhere)
            if swept and not _is_closed(partial) and not (spare_resumable and _read_start(partial)):
                logger.info("removing %s, left behind by a writer that was killed", partial)
                remove_partial(partial)


def remove_partial(partial: Path) -> None:
    """Rename the partial of another process, then delete it; a writer that lives after all cannot publish it.

    Raises `StoreError` if the folder does not allow it.
    """
    aside = partial_path(partial.with_name(partial.name.removeprefix(".").removesuffix(PARTIAL_SUFFIX)))
    with disk_errors(partial, "remove"), contextlib.suppress(FileNotFoundError):
        os.rename(partial, aside)
        delete(aside)


def take_over(
    partial: HeldFolder,
    path: Path,
    fingerprint: str,
    claim: Callable[[], None] | None,
    files: Mapping[BlockKey, Collection[str]],
    is_valid: Callable[[BlockKey], bool],
) -> set[BlockKey]:
    """Move the blocks of an earlier attempt's partial at the same store into `partial`, which has no block yet.

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
    files : mapping
        The files of each block, by their names from the store's root.
    is_valid : callable
        Returns whether a block whose files are there can be decoded.

    Returns
    -------
    set of BlockKey
        The complete blocks of the earlier attempt; its other files are deleted.
    """
    start = _start(partial.content, fingerprint)
    # The inode tells the partial's own content from a former store that was swapped into it.
    said = {"fingerprint": start, "content": partial.content.stat().st_ino}
    write_atomically(partial.inside / START_NAME, json.dumps(said), mode=0o600)
    if claim is not None:
        claim()
    blocks: set[BlockKey] = set()
    for former in _partials_of(path):
        # A partial that is gone meanwhile was taken by another process, or published.
        with contextlib.suppress(FileNotFoundError):
            is_over = not _is_own(former) and (claim is not None or _is_abandoned(former))
            if is_over and _read_start(former).get("fingerprint") == start:
                _take(former, partial, path, {name for name, _ in files})
                blocks = _verified(partial.content, files, is_valid)
        if blocks:
            break
    sweep_partials(path)
    return blocks


def _take(former: Path, partial: HeldFolder, path: Path, variables: Iterable[str]) -> None:
    """Move the chunks of some variables from a former partial into `partial`, out of reach of a writer that lives."""
    taken = partial_path(path)
    os.rename(former, taken)
    # Its store may have been published. After any other error, a later writer goes on from what was taken.
    with contextlib.suppress(FileNotFoundError), open_folder(taken) as descriptor:
        inside = Path(f"/proc/self/fd/{descriptor}")
        # Another account may have write access, and could change the blocks after they are verified.
        is_ours = _rights(inside) == _rights(partial.inside)
        if is_ours and (inside / CONTENT).stat().st_ino == _read_start(inside).get("content"):
            for name in variables:
                with contextlib.suppress(FileNotFoundError):
                    os.rename(inside / CONTENT / name / _CHUNKS, partial.content / name / _CHUNKS)
    delete_quietly(taken)


def _rights(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_uid, found.st_mode


def _verified(
    content: Path, files: Mapping[BlockKey, Collection[str]], is_valid: Callable[[BlockKey], bool]
) -> set[BlockKey]:
    """The complete blocks; all other chunks of their variables are deleted."""
    there = _files_below(content)
    whole = [block for block, names in files.items() if names and there.issuperset(names)]
    with ThreadPoolExecutor(_DECODING_THREADS) as pool:
        blocks = {block for block, valid in zip(whole, pool.map(is_valid, whole), strict=True) if valid}
    kept = {name for block in blocks for name in files[block]}
    for variable in {name for name, _ in files}:
        if not blocks:
            shutil.rmtree(content / variable / _CHUNKS, ignore_errors=True)
        for name in there - kept:
            if name.startswith(f"{variable}/{_CHUNKS}"):
                (content / name).unlink(missing_ok=True)
    return blocks


def _start(content: Path, fingerprint: str) -> str:
    """A hash of all that the values of the blocks depend on: attempts at the same store share it.

    It covers the fingerprint, the metadata, and the data that are not lazy.
    """
    files = {name: _meaning(content / name) for name in _files_below(content)}
    return hashlib.sha256(json.dumps([fingerprint, sorted(files.items())]).encode()).hexdigest()


def _meaning(file: Path) -> str:
    """The content of a metadata file without the times in its histories; a hash of any other content."""
    if file.name == ROOT_METADATA_NAME:
        return json.dumps(parse_json(read_text(file), _without_times))
    return sha256_of(file)


def _without_times(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {
        name: _TIME.sub("", value) if name.endswith("history") and isinstance(value, str) else value
        for name, value in items
    }


def _read_start(partial: Path) -> dict[str, Any]:
    """What a partial's blocks depend on; empty if the partial cannot be taken over. Raises an OSError of the disk."""
    try:
        return read_object(partial / START_NAME) or {}
    except (NotADirectoryError, PermissionError):
        return {}


def _files_below(content: Path) -> set[str]:
    # Text instead of `Path`, as each heartbeat lists the stores.
    start = len(os.fspath(content)) + 1
    return {os.path.join(parent, name)[start:] for parent, _, names in os.walk(content) for name in names}


class BlockCount:
    """How many blocks of all its stores a job found complete, and how many it and its Dask workers computed."""

    def __init__(self) -> None:
        self._found = self._computed = 0
        # The partials that are being written, each with the files of the blocks to compute.
        self._open: dict[HeldFolder, list[Collection[str]]] = {}

    @contextlib.contextmanager
    def of(
        self, partial: HeldFolder, files: Mapping[BlockKey, Collection[str]], found: Collection[BlockKey]
    ) -> Iterator[None]:
        """Count the blocks that are written in the `with` block, and those that were found before it."""
        self._found += len(found)
        self._open[partial] = [names for block, names in files.items() if block not in found]
        try:
            yield
        finally:
            self._computed += _count_there(partial, self._open[partial])
            del self._open[partial]

    def __call__(self) -> dict[str, int]:
        """Return the two numbers, as they stand now."""
        still_open = sum(_count_there(partial, files) for partial, files in list(self._open.items()))
        return {"found": self._found, "computed": self._computed + still_open}


def _count_there(partial: HeldFolder, files: Iterable[Collection[str]]) -> int:
    there = _files_below(partial.content)
    return sum(there.issuperset(names) for names in files)
