"""Replacing and removing what stands under a name, if espo_luigi has made it; anything else is refused, and stays.

A judge looks at what stands there through a descriptor, and returns why it is not ours: an empty text if it is. All
outputs get their names, and lose them, in this module; the files of state in a run's own folder do not.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from espo_luigi.errors import StoreError
from espo_luigi.files import (
    MOST_BYTES,
    keep_rights,
    open_new,
    parse_json,
    process_room,
    sha256_of,
    sync_path,
    write_new,
)

Judge = Callable[[int], str]
# The device, inode and time of a change of a file or folder.
Identity = tuple[int, int, int]

MANIFEST_NAME = "espo-files.json"
PARTIAL_SUFFIX = ".partial"
_AT_FDCWD = -100
NO_REPLACE, EXCHANGE = 1, 2
# A folder that gets another parent must be writable itself: that of a colleague is not, and can be moved aside.
_CANNOT = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EPERM, errno.EACCES}
# Another process published, or removed, between the look at the name and the renaming.
_TAKEN_MEANWHILE = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR}
_ATTEMPTS = 100
_FSYNC_THREADS = 8
_LOOKS = 10
# From `files.aside_of` and `partial_path`; nobody else makes such names.
_HIDDEN = re.compile(r"\..+\.(?:\d+\.[0-9a-f]{16}|[^/]+-\d+-[0-9a-f]{8,}\.partial)", re.DOTALL)
# The former store, moved aside for its successor. Unlike a partial, it may be the only copy.
_FORMER = re.compile(r"\.(.+)\.former\.[^/]+-\d+-[0-9a-f]{8,}\.partial", re.DOTALL)
# A network file system that lost a file, or fails over, often answers again within seconds.
_GIVE_BACK_PAUSES = (0.0, 0.1, 0.5, 1.0, 3.0)


@functools.cache
def _token(host: str, pid: int) -> str:
    """Random digits of a process; in a container, every writer may have the same number."""
    return uuid.uuid4().hex[:8]


def process_name() -> str:
    """Return the part of hidden names that says which process on which host made them, and in which room."""
    host, pid = socket.gethostname(), os.getpid()
    return f"{host}-{pid}-{room_digits()}{_token(host, pid)}"


@functools.cache
def room_digits() -> str:
    """Return 8 digits of this process's room: its boot and PID namespace."""
    return hashlib.sha256(process_room().encode()).hexdigest()[:8]


def partial_path(path: Path) -> Path:
    """Return a hidden, unique name beside `path` that says which process on which host made it."""
    return path.parent / f".{path.name}.{process_name()}{uuid.uuid4().hex[:8]}{PARTIAL_SUFFIX}"


def is_only_copy(hidden: Path, judge_of: Callable[[Path], Judge]) -> bool:
    """Return whether a hidden name holds a former store without a successor: nothing of ours has its final name."""
    name = _FORMER.fullmatch(hidden.name)
    if name is None:
        return False
    path = hidden.with_name(name[1])
    return bool(why_not(path, judge_of(path)))


def is_hidden_name(name: str) -> bool:
    """Return whether a name is a hidden name of ours: the name that it is for, the process, random digits."""
    return bool(_HIDDEN.fullmatch(name))


def check_ours(path: Path, judge: Judge) -> Identity | None:
    """Return the identity of what stands at `path`; None if nothing does. No link is followed.

    Raises
    ------
    StoreError
        If it is not ours.
    OSError
        If it cannot be looked at.
    """
    try:
        for _ in range(_LOOKS):
            with _opened(path) as descriptor:
                identity = _identity(os.fstat(descriptor))
                why = judge(descriptor)
            # Another process may have replaced it, or deleted a part of it, while it was judged.
            if _identity(os.lstat(path)) == identity:
                break
        else:
            why = "it changes while it is looked at"
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        why = "it is a link" if error.errno == errno.ELOOP else "it is neither a file nor a folder"
    if why:
        raise StoreError(
            f"{path} was not replaced or removed: nothing shows that it is an unchanged output of espo_luigi ({why}). "
            "Move it away, or choose another name or folder"
        )
    return identity


@contextlib.contextmanager
def _opened(path: str | Path, folder: int | None = None) -> Iterator[int]:
    # O_NONBLOCK: a FIFO would block until it has a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino, found.st_mtime_ns


def put(new: Path, path: Path, judge: Judge) -> list[Path]:
    """Give `new`, a hidden name, its final name; return the hidden names under which the former content is now.

    Where the file system can swap two names, something is under `path` at every moment. Elsewhere the former content is
    moved aside first: after a kill between the two renames, `path` is missing. If the second renaming fails, the former
    content gets its name back.

    Raises
    ------
    StoreError
        If what stands at `path` is not ours.
    """
    former: list[Path] = []
    ours = os.lstat(new).st_ino
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            if (identity := check_ours(path, judge)) is not None:
                # A catalogue of a group stays the group's.
                keep_rights(new, path)
                swapped = _identity(os.lstat(new))
                if renamed(new, path, EXCHANGE):
                    _check_again(new, path, identity, judge, swapped)
                    return [*former, new]
                # Noted before, as a renaming that was done may be answered by an error.
                former.append(partial_path(path.with_name(f"{path.name}.former")))
                _move_aside(path, former[-1], identity, judge)
            give_name(new, path)
            return former
        except (StoreError, OSError) as error:
            if isinstance(error, OSError) and _has_inode(path, ours):
                return [*former, new]
            kept = _give_back(former, path)
            is_late = isinstance(error, OSError) and error.errno in _TAKEN_MEANWHILE
            if not is_late or attempt == _ATTEMPTS or not os.path.lexists(new):
                if kept:
                    raise StoreError(f"{error}. What had the name {path} before is now {kept}") from error
                raise
    return former


def _has_inode(path: Path, inode: int) -> bool:
    """Whether the renaming to `path` happened despite the error."""
    try:
        return os.lstat(path).st_ino == inode
    except OSError:
        return False


def _give_back(former: list[Path], path: Path) -> Path | None:
    """Give what was moved aside last its name back, unless something is there; return where it is if that fails."""
    for pause in _GIVE_BACK_PAUSES:
        there = [aside for aside in former if os.path.lexists(aside)]
        if not there:
            return None
        if os.path.lexists(path):
            break
        time.sleep(pause)
        with contextlib.suppress(OSError):
            give_name(there[-1], path)
            return None
    return there[-1]


def give_name(new: Path, path: Path) -> None:
    """Rename to a free name. Raises OSError if the name is taken."""
    if renamed(new, path, NO_REPLACE):
        return
    if stat.S_ISREG(os.lstat(new).st_mode):
        try:
            # Unlike a rename, a link fails if another process was faster.
            os.link(new, path, follow_symlinks=False)
            return os.unlink(new)
        except OSError as error:
            # Else, the file system has no hard links.
            if error.errno in _TAKEN_MEANWHILE:
                raise
    os.rename(new, path)


def take_away(path: Path, judge: Judge) -> list[Path]:
    """Give what stands at `path` a hidden name, and return that; nothing if nothing is there.

    Raises `StoreError` if it is not ours.
    """
    identity = check_ours(path, judge)
    if identity is None:
        return []
    aside = partial_path(path)
    _move_aside(path, aside, identity, judge)
    return [aside]


def _move_aside(path: Path, aside: Path, identity: Identity, judge: Judge) -> None:
    try:
        os.rename(path, aside)
    except OSError as error:
        # A network file system may repeat a request that was done, and find nothing there.
        if not os.path.lexists(aside):
            if isinstance(error, FileNotFoundError):
                return
            raise
    _check_again(aside, path, identity, judge)


def _check_again(moved: Path, path: Path, identity: Identity, judge: Judge, ours: Identity | None = None) -> None:
    """Undo the renaming if somebody put something else there after it was judged; `ours` is at `path` if swapped."""
    if _identity(os.lstat(moved)) == identity:
        return
    try:
        check_ours(moved, judge)
    except (StoreError, OSError) as error:
        try:
            is_swapped = os.path.lexists(path) and _identity(os.lstat(path)) == ours
            if not (is_swapped and renamed(moved, path, EXCHANGE)):
                give_name(moved, path)
        except OSError:
            # No hidden name of ours, which would be deleted.
            kept = path.with_name(f"{path.name}.moved-{uuid.uuid4().hex[:8]}")
            os.rename(moved, kept)
            raise StoreError(
                f"{path} was not replaced or removed: somebody put something there meanwhile, which is now {kept}"
            ) from error
        check_ours(path, judge)
        raise


def renamed(first: Path, second: Path, how: int) -> bool:
    """Rename by Linux's `renameat2`; False where the file system (NFS, Lustre) or this account cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), how) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(second))


def delete(hidden: Path) -> None:
    """Delete a file or a tree under a hidden name of ours; readers may see a part of it meanwhile.

    Raises `StoreError` if the name is none of our hidden names.
    """
    if not is_hidden_name(hidden.name):
        raise StoreError(f"{hidden} was not deleted: expected a hidden name that espo_luigi has made")
    if hidden.is_dir() and not hidden.is_symlink():
        shutil.rmtree(hidden)
    else:
        hidden.unlink(missing_ok=True)


def write_ours(path: Path, content: str | bytes, judge: Judge) -> None:
    """Replace a file of ours, or make it: a reader sees the old or the new content, whole.

    Mode and group of the former file stay.

    Raises
    ------
    StoreError
        If what stands at `path` is not ours.
    """
    aside = partial_path(path)
    former = [aside]
    try:
        with open(open_new(aside), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        former += put(aside, path, judge)
    finally:
        for hidden in former:
            delete(hidden)


# Judges of files.


def is_file(descriptor: int) -> bool:
    """Return whether the descriptor is of a regular file."""
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def is_no_folder(descriptor: int) -> str:
    """Return a reason if the descriptor is not of a folder."""
    return "" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "it is no folder"


def why_not(path: str | Path, judge: Judge, folder: int | None = None) -> str:
    """Return why a file, by its name or within an opened folder, is not ours; an empty text if it is."""
    try:
        with _opened(path, folder) as descriptor:
            return judge(descriptor)
    except OSError as error:
        return "it is a link" if error.errno == errno.ELOOP else os.strerror(error.errno or 0)


def _read(file: BinaryIO) -> bytes:
    # Python would make room for all bytes that it is asked for.
    return file.read(min(os.fstat(file.fileno()).st_size, MOST_BYTES))


def by_content(is_ours: Callable[[bytes], bool], expected: str) -> Judge:
    """Return the judge of a small file that is ours if its content says so."""

    def judge(descriptor: int) -> str:
        if not is_file(descriptor):
            return f"it is a folder or a device, expected {expected}"
        size = os.fstat(descriptor).st_size
        with open(descriptor, "rb", closefd=False) as file:
            return "" if size <= MOST_BYTES and is_ours(_read(file)) else f"it is not {expected}"

    return judge


def by_digest(digests: Collection[str]) -> Judge:
    """Return the judge of a file that is ours if its SHA-256 is among those that we have noted."""

    def judge(descriptor: int) -> str:
        if not is_file(descriptor):
            return "it is a folder or a device, expected a file"
        with open(descriptor, "rb", closefd=False) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() in digests:
                return ""
        return "it has another checksum than our file" if digests else "no list of our files has it"

    return judge


def digest_of_ours(path: Path, judge: Judge) -> list[str]:
    """Return the SHA-256 of a file of ours in a list; an empty list of anything else, or nothing."""
    with contextlib.suppress(OSError), _opened(path) as descriptor:
        if not judge(descriptor):
            with open(descriptor, "rb", closefd=False) as file:
                file.seek(0)
                return [hashlib.file_digest(file, "sha256").hexdigest()]
    return []


# Folders with a list of our files.


def write_manifest(folder: Path, maker: str, beside: Mapping[str, Collection[str]] | None = None) -> None:
    """Write the list of all files below a new folder, with their SHA-256, and those of files `beside` the folder.

    The folder and all below it are forced onto the disk.
    """
    below = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): sha256_of(path) for path in below}
    said = {"made_by": maker, "files": files, "beside": {name: list(of) for name, of in (beside or {}).items()}}
    write_new(folder / MANIFEST_NAME, json.dumps(said, indent=1) + "\n")
    sync_tree(folder)


def sync_tree(root: Path) -> None:
    """Force a tree onto the disk, files first and folders last, so that a power cut leaves no empty chunk."""
    entries = list(root.rglob("*"))
    files = [entry for entry in entries if not entry.is_dir()]
    folders = [entry for entry in entries if entry.is_dir()]
    with ThreadPoolExecutor(_FSYNC_THREADS) as pool:
        list(pool.map(sync_path, files))
        list(pool.map(sync_path, [*folders, root]))


def noted_beside(folder: Path, name: str) -> list[str] | None:
    """Return the SHA-256 that a folder's list has of a file beside it; None without a list."""
    try:
        with _opened(folder) as descriptor:
            listed = _listed(descriptor, "beside")
    except OSError:
        return None
    return None if listed is None else listed.get(name, [])


def by_manifest(maker: str) -> Judge:
    """Return the judge of a folder that is ours if it is empty, or `maker`'s list has each file as it is."""

    def judge(descriptor: int) -> str:
        if (why := is_no_folder(descriptor)) or not os.listdir(descriptor):
            return why
        listed = _listed(descriptor, "files", maker)
        if listed is None:
            return f"it has no {MANIFEST_NAME} of {maker}, the list of our files, which earlier versions did not write"
        try:
            return next(_not_listed(descriptor, listed), "")
        except OSError as error:
            return f"a folder in it cannot be read ({error.strerror})"

    return judge


def _listed(descriptor: int, key: str, maker: str = "") -> dict[str, list[str]] | None:
    """Return the SHA-256 of each file that a folder's list has; None without a list, or if it is damaged."""
    try:
        with _opened(MANIFEST_NAME, descriptor) as opened, open(opened, "rb", closefd=False) as file:
            said = parse_json(_read(file) if is_file(opened) else b"")
        listed = {name: [of] if isinstance(of, str) else of for name, of in said[key].items()}
        are_texts = all(isinstance(of, list) and all(isinstance(one, str) for one in of) for of in listed.values())
        return listed if are_texts and maker in ("", said["made_by"]) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _not_listed(descriptor: int, listed: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield what is not ours below a folder. Raises OSError if a folder there cannot be read."""

    def refuse(error: OSError) -> None:
        raise error

    known = {str(parent) for name in listed for parent in Path(name).parents}
    for place, folders, names, within in os.fwalk(dir_fd=descriptor, onerror=refuse):
        where = Path(os.path.normpath(place))
        for name in folders:
            why = why_not(name, is_no_folder, within) if str(where / name) in known else "no list of our files has it"
            if why:
                yield f"{where / name} in it is not ours ({why})"
        for name in names:
            of = str(where / name)
            if of == MANIFEST_NAME:
                continue
            why = why_not(name, by_digest(listed[of]), within) if of in listed else "no list of our files has it"
            if why:
                yield f"{of} in it is not ours ({why})"
