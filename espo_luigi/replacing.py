"""Replacing and removing what stands under a name, if espo_luigi has made it; anything else is refused, and stays.

A judge looks at what stands there through a descriptor, and returns why it is not ours: an empty text if it is. Only
this module deletes, or renames over, names that are not hidden names of ours.
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
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from espo_luigi.errors import StoreError
from espo_luigi.files import aside_of, keep_rights, open_new, write_new

Judge = Callable[[int], str]
# The device, inode and time of a change of a file or folder.
Identity = tuple[int, int, int]

MANIFEST_NAME = "espo-files.json"
PARTIAL_SUFFIX = ".partial"
_AT_FDCWD = -100
NO_REPLACE, EXCHANGE = 1, 2
_CANNOT = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EXDEV, errno.EPERM}
# Another process published, or removed, between the look at the name and the renaming.
_TAKEN_MEANWHILE = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR}
_ATTEMPTS = 100
_MOST_BYTES = 2**28
# From `files.aside_of` and `partial_path`; nobody else makes such names.
_HIDDEN = re.compile(r"\..+\.(?:\d+\.[0-9a-f]{16}|[^/]+-\d+-[0-9a-f]{8,}\.partial)", re.DOTALL)


@functools.cache
def _token(host: str, pid: int) -> str:
    """Random digits of a process; in a container, every writer may have the same number."""
    return uuid.uuid4().hex[:8]


def process_name() -> str:
    """Return the part of hidden names that says which process on which host made them."""
    host, pid = socket.gethostname(), os.getpid()
    return f"{host}-{pid}-{_token(host, pid)}"


def partial_path(path: Path) -> Path:
    """Return a hidden, unique name beside `path` that says which process on which host made it."""
    return path.parent / f".{path.name}.{process_name()}{uuid.uuid4().hex[:8]}{PARTIAL_SUFFIX}"


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
        with _opened(path) as descriptor:
            why, identity = judge(descriptor), _identity(os.fstat(descriptor))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        why, identity = "it is a link" if error.errno == errno.ELOOP else "it is neither a file nor a folder", None
    if why:
        raise StoreError(
            f"{path} is there, and cannot be replaced or removed, as espo_luigi has not made it: {why}. It was left as "
            "it is: move it away, or choose another name or folder"
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

    Where the file system can swap two names, something is under `path` at every moment. Elsewhere a folder is moved
    aside first: after a kill between the two renames, `path` is missing.

    Raises
    ------
    StoreError
        If what stands at `path` is not ours.
    """
    former: list[Path] = []
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            if (identity := check_ours(path, judge)) is None:
                if not renamed(new, path, NO_REPLACE):
                    os.rename(new, path)
                return former
            # A catalogue of a group stays the group's.
            keep_rights(new, path)
            if renamed(new, path, EXCHANGE):
                _check_again(new, path, identity, judge)
                return [*former, new]
            if stat.S_ISDIR(os.lstat(path).st_mode):
                former += _moved_aside(path, identity, judge)
            os.replace(new, path)
            return former
        except OSError as error:
            # A full disk may refuse the new name: the former folder gets its own back, unless another is there now.
            with contextlib.suppress(OSError, IndexError):
                os.rename(former[-1], path)
                former.pop()
            if error.errno not in _TAKEN_MEANWHILE or attempt == _ATTEMPTS or not os.path.lexists(new):
                raise
    return former


def take_away(path: Path, judge: Judge) -> list[Path]:
    """Give what stands at `path` a hidden name, and return that; nothing if nothing is there.

    Raises
    ------
    StoreError
        If it is not ours.
    """
    identity = check_ours(path, judge)
    return [] if identity is None else _moved_aside(path, identity, judge)


def _moved_aside(path: Path, identity: Identity, judge: Judge) -> list[Path]:
    aside = partial_path(path)
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
        _check_again(aside, path, identity, judge)
        return [aside]
    return []


def _check_again(moved: Path, path: Path, identity: Identity, judge: Judge) -> None:
    """Undo the renaming if somebody has put something else there after it was judged."""
    if _identity(os.lstat(moved)) == identity:
        return
    try:
        check_ours(moved, judge)
    except StoreError:
        if not (os.path.lexists(path) and renamed(moved, path, EXCHANGE)):
            os.rename(moved, path)
        check_ours(path, judge)
        raise


def renamed(first: Path, second: Path, how: int) -> bool:
    """Rename by Linux's `renameat2`; False where the file system cannot (NFS, Lustre)."""
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

    Raises
    ------
    StoreError
        If the name is none of our hidden names.
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
    aside = aside_of(path)
    try:
        with open(open_new(aside), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        put(aside, path, judge)
    finally:
        delete(aside)


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


def read_file(path: Path) -> bytes:
    """Return the content of a regular file of up to 256 MB, following no link. Raises OSError."""
    with _opened(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        if not is_file(descriptor) or os.fstat(descriptor).st_size > _MOST_BYTES:
            raise OSError(errno.EFBIG, f"no regular file of up to {_MOST_BYTES >> 20} MiB", os.fspath(path))
        return file.read(_MOST_BYTES)


def by_content(is_ours: Callable[[bytes], bool], expected: str) -> Judge:
    """Return the judge of a small file that is ours if its content says so."""

    def judge(descriptor: int) -> str:
        if not is_file(descriptor):
            return f"it is a folder or a device, expected {expected}"
        size = os.fstat(descriptor).st_size
        with open(descriptor, "rb", closefd=False) as file:
            return "" if size <= _MOST_BYTES and is_ours(file.read(_MOST_BYTES)) else f"it is not {expected}"

    return judge


def by_digest(digests: Collection[str]) -> Judge:
    """Return the judge of a file that is ours if its SHA-256 is among those that we have noted."""

    def judge(descriptor: int) -> str:
        if not is_file(descriptor):
            return "it is a folder or a device, expected a file"
        with open(descriptor, "rb", closefd=False) as file:
            if hashlib.file_digest(file, "sha256").hexdigest() in digests:
                return ""
        return "it has another checksum than our file"

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
    """Write the list of all files below a new folder, with their SHA-256, and those of files `beside` the folder."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            files[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    said = {"made_by": maker, "files": files, "beside": {name: list(of) for name, of in (beside or {}).items()}}
    write_new(folder / MANIFEST_NAME, json.dumps(said, indent=1) + "\n", durable=True)


def noted_beside(folder: Path, name: str) -> list[str] | None:
    """Return the SHA-256 that a folder's list has of a file beside it; None without a list."""
    try:
        with _opened(folder) as descriptor:
            listed = _listed(descriptor, "beside")
    except OSError:
        return None
    return None if listed is None else list(listed.get(name, ()))


def by_manifest(maker: str) -> Judge:
    """Return the judge of a folder that is ours if it is empty, or `maker`'s list has each file as it is."""

    def judge(descriptor: int) -> str:
        if (why := is_no_folder(descriptor)) or not os.listdir(descriptor):
            return why
        listed = _listed(descriptor, "files", maker)
        if listed is None:
            return f"it has no {MANIFEST_NAME} of {maker}, the list of our files, which earlier versions did not write"
        return next(_not_listed(descriptor, listed), "")

    return judge


def _listed(descriptor: int, key: str, maker: str = "") -> dict[str, str] | None:
    try:
        with _opened(MANIFEST_NAME, descriptor) as opened, open(opened, "rb", closefd=False) as file:
            said = json.loads(file.read(_MOST_BYTES) if is_file(opened) else b"")
        return dict(said[key]) if maker in ("", said["made_by"]) else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _not_listed(descriptor: int, listed: Mapping[str, str]) -> Iterator[str]:
    """Yield what is not ours below a folder."""
    known = {str(parent) for name in listed for parent in Path(name).parents}
    for place, folders, names, within in os.fwalk(dir_fd=descriptor):
        where = Path(os.path.normpath(place))
        yield from (f"{where / name} in it is not ours" for name in folders if str(where / name) not in known)
        for name in names:
            of = str(where / name)
            if of == MANIFEST_NAME:
                continue
            why = why_not(name, by_digest({listed[of]}), within) if of in listed else "no list of our files has it"
            if why:
                yield f"{of} in it is not ours ({why})"
