"""Safe creation and reading of files that other accounts may write, and checks that a folder is private.

Files are never created through a link. An account that may write the folder could otherwise put a link where this
process is about to write, and so have this process empty a file of its own elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gzip
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.errors import StoreError

# Opening a link fails with ELOOP, a FIFO without a reader with ENXIO.
_NO_FILE = {errno.ELOOP, errno.ENXIO}
# The most that is read of a file of others, compressed or not: a catalogue of 500 000 rows has 150 MB.
MOST_BYTES = 2**28
# The values of a JSON file may take thirty times as much memory.
MOST_JSON_BYTES = 2**27
_DEEPEST = 100
_TOO_DEEP = f"the recursion of lists or mappings is more than {_DEEPEST} deep, expected a few levels"
# Each further try is needed only if a link or FIFO appears in the microseconds after the last one was removed.
_TRIES = 5


# Errors that may pass: the same operation may succeed later.
PASSING = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,  # the kernel remounts a failed disk read-only
        errno.ETIMEDOUT,
        errno.EREMOTEIO,
        errno.ENOLCK,
        errno.EBUSY,
        errno.EAGAIN,
        errno.EINTR,
        errno.ENOTCONN,  # Lustre and Ceph, when their server has forgotten this client
        errno.ESHUTDOWN,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    }
)
# C libraries quote the system's message in errors of their own (HDF5: "errno = 28, … 'No space left on device'").
_WORDS = tuple(os.strerror(number) for number in (errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT))


def open_new(path: str | os.PathLike[str], mode: int = 0o666, how: int = 0) -> int:
    """Create a file and open it to write. Raises FileExistsError if the name is taken, also by a link."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | how, mode)


def open_own(path: str | os.PathLike[str], how: int = 0, mode: int = 0o666) -> int:
    """Open an existing file to write, or create it.

    `how` is ``O_TRUNC``, ``O_APPEND``, or 0 for a file that is only locked. A link or a FIFO of that name is removed
    and replaced by a new file. So is a hard-linked or foreign file, unless it is only locked.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(FileExistsError):
            return _open_own(path, how, mode)
    raise FileExistsError(errno.EEXIST, "links or pipes appear there again and again", os.fspath(path))


def _open_own(path: str | os.PathLike[str], how: int, mode: int) -> int:
    append = how & os.O_APPEND
    try:
        # No O_TRUNC: hard links are found only after opening. O_NONBLOCK: a FIFO would block until it has a reader.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | append, mode)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
    else:
        found = os.fstat(descriptor)
        is_own = found.st_nlink <= 1 and found.st_uid == os.geteuid()
        if stat.S_ISREG(found.st_mode) and (is_own or not how):
            if how & os.O_TRUNC:
                os.ftruncate(descriptor, 0)
            return descriptor
        os.close(descriptor)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return open_new(path, mode, append)


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def kind_of_file(mode: int) -> str:
    """Return what a path is by its mode, such as "a pipe"."""
    return _KINDS.get(stat.S_IFMT(mode), "a file")


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file of others to read, without waiting: a pipe has perhaps no writer, and a device no end.

    Raises OSError, also for anything that is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, f"it is {kind_of_file(mode)}, expected a file", os.fspath(path))


def leads_out(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> str:
    """Return where links take a path of a folder if that is out of the folder, perhaps to a private file; else ""."""
    target = os.path.realpath(path)
    return "" if target.startswith(os.path.realpath(folder).rstrip("/") + "/") else target


def sha256_of(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a regular file, in hexadecimal digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_bytes(path: str | os.PathLike[str], most: int = MOST_BYTES, *, unzip: bool = False) -> bytes:
    """Read the whole of a file of others, decompressed by gzip if `unzip`, of at most so many bytes.

    Raises OSError as `open_regular` does and for more bytes; for damaged gzip also EOFError and zlib.error.
    """
    with open_regular(path) as file:
        # Python would make room for all bytes that it is asked for.
        size = most if unzip else min(os.fstat(file.fileno()).st_size, most)
        content = (gzip.GzipFile(fileobj=file) if unzip else file).read(size + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes, expected a smaller file", os.fspath(path))
    return content


def read_text(path: str | os.PathLike[str], most: int = MOST_BYTES, encoding: str = "utf-8") -> str:
    """Read the whole text of a file of others. Raises OSError as `read_bytes` does, and UnicodeDecodeError."""
    return read_bytes(path, most).decode(encoding)


def load_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file of others. Raises OSError as `read_bytes` does, and ValueError as `parse_json` does."""
    return parse_json(read_text(path, MOST_JSON_BYTES))


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file, or None while it cannot be read: to display it. Decisions need `read_object`."""
    try:
        return read_object(path)
    except OSError:
        return None


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file; None if the file is missing or holds something else. Raises any further OSError."""
    try:
        return as_object(read_bytes(path, MOST_JSON_BYTES))
    except FileNotFoundError:
        return None


def as_object(text: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None for any other text, such as that of a file that is being written."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def parse_json(text: str | bytes, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """Parse a JSON text of others; `pairs` makes the mappings.

    Raises ValueError for a text that is no JSON, or is nested deeper than a function that looks at it can follow.
    """
    try:
        value = json.loads(text, object_pairs_hook=pairs)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    level = [value]
    for _ in range(_DEEPEST):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)


def write_new(path: Path, text: str, mode: int = 0o666, durable: bool = False) -> None:
    """Write a new file; `durable` forces it onto the disk. Raises FileExistsError as `open_new` does."""
    try:
        with open(open_new(path, mode), "w", encoding="utf-8") as file:
            file.write(text)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        # A full disk refuses the bytes, and the system's error names no file.
        error.filename = error.filename or os.fspath(path)
        raise


def write_atomically(
    path: Path, text: str, durable: bool = False, public: bool = False, mode: int | None = None
) -> None:
    """Write a file beside its name and rename it: a reader sees either the old or the new text.

    Without a `mode`, only the user can read it; if the folder hands its group on (setgid), that group can, too, as far
    as the umask lets it. A `public` file has mode and group of the file that it replaces, or those of any new file. A
    `durable` file survives a crash of the machine.
    """
    mode = 0o666 if public else private_mode(path) if mode is None else mode
    aside = aside_of(path)
    try:
        write_new(aside, text, mode, durable)
        if public:
            keep_rights(aside, path)
        os.replace(aside, path)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename == os.fspath(aside):
            error.filename = os.fspath(path)
        aside.unlink(missing_ok=True)
        raise
    if durable:
        sync_path(path.parent)


def private_mode(path: Path) -> int:
    """The mode of a new file: the user's own, and the group's where the folder says so."""
    return 0o660 if _is_a_groups(os.path.dirname(path)) else 0o600


@functools.lru_cache(maxsize=1024)
def _is_a_groups(folder: str) -> bool:
    # The umask does not decide it: where each user has a private group, umasks let the group write.
    return bool(os.stat(folder or ".").st_mode & stat.S_ISGID)


def create_whole(path: Path, text: str) -> None:
    """Write a file beside its name and link it there: it appears whole, once. Raises FileExistsError if it is there.

    On a file system without hard links (some of FUSE, SMB and BeeGFS), it is empty for a moment. Of all that create it
    in either way, one succeeds.
    """
    aside = aside_of(path)
    try:
        write_new(aside, text)
        try:
            os.link(aside, path)
        except OSError as error:
            if passes(error) or isinstance(error, FileExistsError):
                raise
            write_new(path, text)
    finally:
        aside.unlink(missing_ok=True)


def listed_names(folder: Path) -> set[str]:
    """The names in a folder; empty until the folder exists.

    A listing makes a network file system look again; it may remember that a single file was missing.
    """
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        return set()


def passes(error: OSError) -> bool:
    """Return whether the same operation may succeed a while later."""
    return error.errno in PASSING


def is_file_trouble(error: BaseException) -> bool:
    """Return whether a file-system error is among an error's causes: xarray, Zarr and Dask wrap such errors."""
    return any(
        (isinstance(one, OSError) and passes(one)) or any(words in str(one) for words in _WORDS)
        for one in causes(error)
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, its contexts and the members of groups."""
    seen: list[BaseException] = []
    to_do: list[BaseException | None] = [error]
    while to_do:
        one = to_do.pop(0)
        if one is not None and not any(one is other for other in seen):
            seen.append(one)
            yield one
            to_do += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def sync_path(path: Path) -> None:
    """Force a file's content or a folder's entries onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems refuse fsync on a folder; there the server keeps the order.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def aside_of(path: Path) -> Path:
    """Return the name of a hidden neighbour that no other account can guess."""
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(8)}")


def server_time(path: Path) -> float:
    """Return the time of the file server's clock, by creating a file beside `path` for a moment."""
    probe = aside_of(path)
    try:
        write_new(probe, "")
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def age_of(path: Path) -> float:
    """Return how many seconds ago a file was written, by its server's clock. Raises FileNotFoundError.

    In a folder that this process may not write, this host's clock serves.
    """
    return time.time() + _clock_offset(path.parent) - path.stat().st_mtime


@functools.cache
def _clock_offset(folder: Path) -> float:
    """Return how many seconds the clock of a folder's server is ahead of this host's; measured once for each folder."""
    with contextlib.suppress(OSError):
        return server_time(folder / "clock") - time.time()
    return 0.0


def keep_rights(new: Path, former: Path) -> None:
    """Copy mode and group to a new file from the file that it will replace, as far as its owner may set them."""
    with contextlib.suppress(OSError):
        replaced = os.lstat(former)
        descriptor = os.open(new, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            if stat.S_ISREG(replaced.st_mode) and stat.S_ISREG(os.fstat(descriptor).st_mode):
                # The group first, so that its rights never go to the wrong group.
                os.fchown(descriptor, -1, replaced.st_gid)
                os.fchmod(descriptor, replaced.st_mode & 0o777)
        finally:
            os.close(descriptor)


def make_private(folder: str | os.PathLike[str], others: int = 0o022) -> bool:
    """Create a private folder if it is missing; return whether the folder belongs to this user and is closed.

    `others` are the permission bits that group and others must not have; by default, to write. Raises OSError.
    """
    with contextlib.suppress(FileExistsError):
        os.makedirs(folder, 0o700)
    found = os.stat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder))
    return found.st_uid == os.geteuid() and not found.st_mode & others


@functools.cache
def process_room() -> str:
    """Return the boot and the PID namespace in which this process has its number; empty if they cannot be known."""
    with contextlib.suppress(OSError):
        # A container may have the /proc of its host, where numbers mean other processes.
        if os.readlink("/proc/self") == str(os.getpid()):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    return ""


def process_start(pid: int) -> str:
    """Return when a process of this room started, in ticks since boot; empty if that cannot be read."""
    return (_stat_fields(pid) or [""] * 20)[19]


def _stat_fields(pid: int) -> list[str]:
    # Another user's process may be hidden (hidepid), or this process has no file descriptor left.
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def lives(pid: int, started: object, room: object) -> bool | None:
    """Return whether the process lives that `started` then in that `process_room`; None if that cannot be known.

    Only False allows to conclude that it is dead. A zombie is dead; a later process may have the same number.
    """
    if not room or room != process_room() or pid < 1:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    fields = _stat_fields(pid)
    if not fields:
        return None
    return fields[0] != "Z" and (fields[19] == started if started else None)


def ready_standard_streams(encoding: str | None = None) -> None:
    """Open the standard streams that are closed, and have the others escape characters that their encoding lacks.

    The first files or pipes that are opened would get the numbers of closed streams (``2>&-``), and children would
    inherit them as their output.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  (open until the end)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=encoding or stream.encoding, errors="backslashreplace")


def drop_shared_numba_cache() -> str:
    """Unset `NUMBA_CACHE_DIR` unless the folder is private; return the reason, or an empty text.

    Call it before numba is imported. Numba's cache holds pickles, which run code when they are read.
    """
    folder = os.environ.get("NUMBA_CACHE_DIR", "")
    try:
        if not folder or make_private(folder, others=0o077):
            return ""
        found = os.stat(folder)
        why = (
            f"its owner is {found.st_uid} and its mode {stat.filemode(found.st_mode)}, expected {os.geteuid()} and "
            "drwx------: any account that can write there could run its code in your jobs"
        )
    except OSError as error:
        why = f"it cannot be made or looked at ({error.strerror})"
    del os.environ["NUMBA_CACHE_DIR"]
    return f"NUMBA_CACHE_DIR = {folder} is not used: {why}. Name a folder of your own (`mkdir -m 700`, or `chmod 700`)"


def ensure_numba_cache() -> str:
    """Have `NUMBA_CACHE_DIR` name a private folder if it names a shared one, or numba would find no place.

    Returns what was changed, or an empty text. Call it before anything that imports numba: without a place for its
    code, importing xclim fails.
    """
    fault = drop_shared_numba_cache()
    if os.environ.get("NUMBA_CACHE_DIR"):
        return fault
    found = importlib.util.find_spec("xclim")
    package = os.path.join(os.path.dirname((found and found.origin) or ""), "__pycache__")
    users = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
    if _can_write(package) or _can_write(users):
        return fault
    folder = os.path.join(tempfile.gettempdir(), f"espo-numba-{os.geteuid()}")
    if os.path.islink(folder) or not make_private(folder, others=0o077):
        folder = tempfile.mkdtemp(prefix="espo-numba-")
    os.environ["NUMBA_CACHE_DIR"] = folder
    return (
        f"{fault}{'. ' if fault else ''}Neither {package} nor {users} can be written, so machine code is kept in "
        f"{folder}. NUMBA_CACHE_DIR may name a lasting folder of yours"
    )


def _can_write(folder: str) -> bool:
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def drop_foreign_backend() -> None:
    """Unset `MPLBACKEND` if it names a module that is not installed here, such as that of a notebook's environment.

    Call it before matplotlib is imported, which refuses such a value.
    """
    module = os.environ.get("MPLBACKEND", "").removeprefix("module://")
    if module and module != os.environ["MPLBACKEND"] and importlib.util.find_spec(module.partition(".")[0]) is None:
        del os.environ["MPLBACKEND"]


_A_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEY = "key-"
CONTENT = "content"


@dataclass(frozen=True)
class HeldFolder:
    """A private folder in a shared folder, held by a descriptor.

    An account that may write the shared folder can rename the private folder, and put a link or a folder of its own
    there. Writes below `inside` reach the private folder all the same, and no other account can change anything there.
    Another process that gets this object, also on another node, opens the folder by its name, and refuses a link and
    any folder that lacks the key. Only this account can know the key, which is a file's name in the private folder.
    """

    path: Path
    key: str

    def __reduce__(self) -> tuple[type[HeldFolder], tuple[Path, str]]:
        return HeldFolder, (self.path, self.key)

    @classmethod
    def make(cls, path: Path) -> HeldFolder:
        """Make the folder. Raises FileExistsError if the name is taken.

        Raises
        ------
        StoreError
            If somebody moves the folder away, or puts something else there, before it is held.
        """
        os.mkdir(path, 0o700)
        folder = cls(path, f"{_KEY}{secrets.token_hex(16)}")
        try:
            with open_folder(path) as descriptor:
                folder._lock(descriptor)
                folder._hold(descriptor)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.rmdir(path)
            if isinstance(error, (FileNotFoundError, FileExistsError)):
                raise StoreError(
                    f"{path} was moved away or replaced as soon as it was made ({error.strerror}). Nothing is written: "
                    "another person or program works in that folder; find out who, and run again"
                ) from error
            raise
        return folder

    def _lock(self, descriptor: int) -> None:
        key = os.open(self.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=descriptor)
        try:
            try:
                # The owners on the file system, whose server may map all accounts to one.
                owners = {os.fstat(key).st_uid, os.fstat(descriptor).st_uid}
            finally:
                os.close(key)
            if len(owners) > 1 or os.listdir(descriptor) != [self.key]:
                raise FileExistsError(errno.EEXIST, "another folder was put there meanwhile", str(self.path))
            if (mode := stat.S_IMODE(os.fstat(descriptor).st_mode)) & 0o077:
                with contextlib.suppress(OSError):
                    os.fchmod(descriptor, mode & ~0o077)
        except BaseException:
            os.unlink(self.key, dir_fd=descriptor)
            raise

    @functools.cached_property
    def inside(self) -> Path:
        """The folder, by the descriptor of this process; keep this object as long as the path is used.

        Raises `FileNotFoundError` if the name is gone, or is that of another folder.
        """
        with open_folder(self.path) as descriptor:
            os.stat(self.key, dir_fd=descriptor, follow_symlinks=False)
            return self._hold(descriptor)

    def _hold(self, descriptor: int) -> Path:
        held = os.dup(descriptor)
        # Never closed before: a thread that still writes would write below the number's next folder.
        weakref.finalize(self, os.close, held)
        inside = Path(f"/proc/self/fd/{held}")
        self.__dict__["inside"] = inside
        return inside

    @property
    def content(self) -> Path:
        """The file or folder that is made inside, and renamed when it is whole."""
        return self.inside / CONTENT

    def delete(self) -> None:
        """Delete all that is inside, then the name, unless something else has the name now."""
        for entry in os.scandir(self.inside):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.rmdir(self.path)


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """Yield a descriptor of a folder. Raises FileNotFoundError if the name is gone, or has a link or a file."""
    try:
        descriptor = os.open(path, _A_FOLDER)
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, "a link or a file has the folder's name", str(path)) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@functools.cache
def this_version() -> str:
    """Return the version of this package."""
    try:
        return importlib.metadata.version("espo_luigi")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
