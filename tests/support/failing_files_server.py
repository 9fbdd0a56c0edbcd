"""The process behind a `FailingFiles` mount: it passes every call on to a folder, unless a fault says otherwise.

``failing_files_server.py FOLDER MOUNTPOINT SOCKET``; the process ends, and all hangs with it, when its standard input
ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fnmatch
import itertools
import json
import os
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

os.environ["FUSE_LIBRARY_NAME"] = "fuse3"  # where both are installed, version 2 would be taken
import mfusepy

RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_UTIME_NOW, _UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
_STAT_FIELDS = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino", "st_blocks", "st_rdev")
T = TypeVar("T")


@dataclass
class Rule:
    """A fault (see `failing_files.Fault`) in force, and how often it has struck."""

    operations: list[str]
    path: str
    error: str
    until: float
    lasting: float
    times: float
    hang: float
    hide: float
    after: bool
    shared: bool
    hits: int = 0
    struck_at: float | None = None
    cleared: threading.Event = field(default_factory=threading.Event)

    @property
    def error_number(self) -> int:
        """The errno, 0 for none."""
        return int(getattr(errno, self.error)) if self.error else 0

    def strikes(self, operation: str, paths: tuple[str, ...], now: float) -> bool:
        """Whether it applies to a call now; counts it, if so."""
        wanted = self.operations == ["*"] or operation in self.operations
        if not wanted or self.hits >= self.times or now >= self.until:
            return False
        if not any(fnmatch.fnmatchcase(path.lstrip("/"), self.path) for path in paths):
            return False
        if self.struck_at is None:
            self.struck_at = time.time()
            self.until = min(self.until, now + self.lasting)
        self.hits += 1
        return True


class Faults:
    """The rules in force; asked by many threads at once."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._rules: dict[int, Rule] = {}
        self._all: dict[int, Rule] = {}
        self._ids = itertools.count(1)

    def set(self, fault: dict[str, Any]) -> int:
        """Put a fault into force; return its number."""
        seconds, lasting, times = (
            float("inf") if fault[name] is None else fault[name] for name in ("seconds", "lasting", "times")
        )
        values = fault | {"lasting": lasting, "times": times, "until": time.monotonic() + seconds}
        rule = Rule(**{name: value for name, value in values.items() if name != "seconds"})
        with self._guard:
            number = next(self._ids)
            self._rules[number] = self._all[number] = rule
        return number

    def clear(self, number: int | None = None) -> None:
        """End a fault, or all faults, and the calls that hang by them."""
        with self._guard:
            ended = list(self._rules) if number is None else [number]
            for one in ended:
                rule = self._rules.pop(one, None)
                if rule is not None:
                    rule.cleared.set()

    def hits(self, number: int) -> int:
        """How often a fault has struck."""
        return self._all[number].hits

    def struck_at(self, number: int) -> float | None:
        """When it first struck, in seconds since the epoch."""
        return self._all[number].struck_at

    def struck_by(self, operation: str, *paths: str) -> Rule | None:
        """Return the oldest fault that strikes a call, after the hang of the fault."""
        with self._guard:
            now = time.monotonic()
            self._forget(now)
            errors = (rule for rule in self._rules.values() if not rule.hide)
            found = next((rule for rule in errors if rule.strikes(operation, paths, now)), None)
        if found is not None and found.hang:
            found.cleared.wait(found.hang)
        return found

    def hidden_for(self, path: str) -> float:
        """For how many seconds from its appearance a name is not shown."""
        with self._guard:
            now = time.monotonic()
            return max(
                (one.hide for one in self._rules.values() if one.hide and one.strikes("*", (path,), now)), default=0
            )

    def _forget(self, now: float) -> None:
        for number in [number for number, rule in self._rules.items() if now >= rule.until]:
            del self._rules[number]


class Passthrough(mfusepy.Operations):
    """Passes every call of the mount on to the folder behind it."""

    use_ns = True

    def __init__(self, folder: str, faults: Faults) -> None:
        self._folder = folder
        self._faults = faults
        self._seen: set[str] = {"/"}
        self._appeared: dict[str, float] = {}

    def _real(self, path: str) -> str:
        return self._folder + path

    def _do(self, operation: str, paths: tuple[str, ...], action: Callable[[], T]) -> T:
        rule = self._faults.struck_by(operation, *paths)
        error = OSError(rule.error_number, os.strerror(rule.error_number)) if rule is not None and rule.error else None
        if rule is not None and error is not None and not rule.after:
            raise error
        done = action()
        if error is not None:
            # It was done, and the answer was lost: the client asks again, and hears that it is done already.
            if operation == "create" and isinstance(done, int):
                os.close(done)
            raise error
        return done

    # Names.

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        return self._do("stat", (path,), lambda: self._stat(path, fh))

    def _stat(self, path: str, fh: int | None) -> dict[str, Any]:
        found = os.lstat(self._real(path)) if fh is None else os.fstat(fh)
        if fh is None and self._is_hidden(path, found):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        times = {f"st_{one}time": getattr(found, f"st_{one}time_ns") for one in "amc"}
        return {name: getattr(found, name) for name in _STAT_FIELDS} | times

    def _is_hidden(self, path: str, found: os.stat_result) -> bool:
        """Whether a second client has made this name so lately that this client does not see it yet."""
        if path in self._seen:
            return False
        seconds = self._faults.hidden_for(path)
        # Later entries change the time of a folder: the first time counts.
        appeared = self._appeared.setdefault(path, found.st_ctime)
        if time.time() - appeared < seconds:
            return True
        self._saw(path)
        return False

    def _saw(self, path: str) -> None:
        self._seen.add(path)
        self._appeared.pop(path, None)

    def _lost(self, path: str) -> None:
        self._seen.discard(path)

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        found = self._do("listdir", (path,), lambda: list(os.scandir(self._real(path))))
        shown = [one for one in found if not self._is_hidden_entry(f"{path.rstrip('/')}/{one.name}")]
        # An inode of 0 would have readdir skip the entry.
        inodes = {".": 1, "..": 1, **{one.name: one.inode() for one in shown}}
        return [(name, {"st_ino": inode}, 0) for name, inode in inodes.items()]

    def _is_hidden_entry(self, path: str) -> bool:
        if path in self._seen:
            return False
        try:
            return self._is_hidden(path, os.lstat(self._real(path)))
        except FileNotFoundError:
            return True

    def readlink(self, path: str) -> str:
        return os.readlink(self._real(path))

    def mkdir(self, path: str, mode: int) -> int:
        self._do("mkdir", (path,), lambda: os.mkdir(self._real(path), mode))
        self._saw(path)
        return 0

    def unlink(self, path: str) -> int:
        self._do("unlink", (path,), lambda: os.unlink(self._real(path)))
        self._lost(path)
        return 0

    def rmdir(self, path: str) -> int:
        self._do("rmdir", (path,), lambda: os.rmdir(self._real(path)))
        self._lost(path)
        return 0

    def symlink(self, target: str, source: str) -> int:
        self._do("symlink", (target,), lambda: os.symlink(source, self._real(target)))
        self._saw(target)
        return 0

    def link(self, target: str, source: str) -> int:
        self._do("link", (target,), lambda: os.link(self._real(source), self._real(target), follow_symlinks=False))
        self._saw(target)
        return 0

    def rename2(self, old: str, new: str, flags: int) -> int:
        """Rename, or swap (RENAME_EXCHANGE), atomically."""
        name = "exchange" if flags & RENAME_EXCHANGE else "rename"
        self._do(name, (old, new), lambda: _rename(self._real(old), self._real(new), flags))
        self._saw(new)
        if name == "rename":
            self._lost(old)
        return 0

    rename = rename2

    # Attributes.

    def chmod(self, path: str, mode: int) -> int:
        self._do("chmod", (path,), lambda: os.chmod(self._real(path), mode))
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        self._do("chown", (path,), lambda: os.lchown(self._real(path), uid, gid))
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        now = time.time_ns()
        found = os.lstat(self._real(path))
        before = (found.st_atime_ns, found.st_mtime_ns)
        given = tuple(_time(one, old, now) for one, old in zip(times or (now, now), before, strict=True))
        self._do("utimens", (path,), lambda: os.utime(self._real(path), ns=given, follow_symlinks=False))
        return 0

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._do("truncate", (path,), lambda: os.truncate(self._real(path), length))
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        found = self._do("statfs", (path,), lambda: os.statvfs(self._real(path)))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    # Content.

    def open(self, path: str, flags: int) -> int:
        return self._do("open", (path,), lambda: os.open(self._real(path), flags & ~os.O_DIRECT))

    def create(self, path: str, mode: int, flags: int) -> int:
        rule = self._faults.struck_by("exclusive", path) if flags & os.O_EXCL else None
        shared = rule is not None and rule.shared
        kept = flags & ~os.O_DIRECT & ~(os.O_EXCL if shared else 0)
        descriptor = self._do("create", (path,), lambda: os.open(self._real(path), kept | os.O_CREAT, mode))
        self._saw(path)
        return descriptor

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return self._do("read", (path,), lambda: os.pread(fh, size, offset))

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return self._do("write", (path,), lambda: os.pwrite(fh, data, offset))

    def flush(self, path: str, fh: int) -> int:
        self._do("close", (path,), lambda: os.close(os.dup(fh)))
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._do("fsync", (path,), lambda: os.fsync(fh))
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._do("fsync", (path,), lambda: _sync_folder(self._real(path)))
        return 0


def _time(given: int, before: int, now: int) -> int:
    return {_UTIME_NOW: now, _UTIME_OMIT: before}.get(given, given)


def _rename(old: str, new: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Fuse(mfusepy.FUSE):
    """With the flags of `renameat2`, which the package drops: an exchange would become a rename that destroys."""

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        return int(self.operations.rename2(os.fsdecode(old), os.fsdecode(new), flags))


def _serve_control(faults: Faults, socket_path: str) -> None:
    commands: dict[str, Callable[..., Any]] = {
        name: getattr(faults, name) for name in ("set", "clear", "hits", "struck_at")
    }

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            name, arguments = json.loads(self.rfile.readline())
            self.wfile.write(json.dumps(commands[name](*arguments)).encode() + b"\n")

    server = socketserver.ThreadingUnixStreamServer(socket_path, Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()


def _watch_parent(faults: Faults) -> None:
    """End the mount's process when whoever started it is gone: nothing hangs by it for ever."""
    while os.read(0, 4096):
        pass
    faults.clear()
    with contextlib.suppress(OSError):
        os.kill(os.getpid(), 15)
    time.sleep(5)
    os._exit(0)


def main() -> None:
    """Mount, and serve until unmounted."""
    folder, mountpoint, socket_path = sys.argv[1:]
    faults = Faults()
    _serve_control(faults, socket_path)
    threading.Thread(target=_watch_parent, args=(faults,), daemon=True).start()
    # Nothing is cached by the kernel, so that each call comes here; inodes are the folder's own, so that links are.
    uncached = {"entry_timeout": 0.0, "attr_timeout": 0.0, "negative_timeout": 0.0}
    threads = {"max_threads": 64, "max_idle_threads": 64}
    with contextlib.suppress(RuntimeError):  # the number of the signal that ended it
        _Fuse(
            Passthrough(folder, faults),
            mountpoint,
            foreground=True,
            allow_other=True,
            use_ino=True,
            **uncached,
            **threads,
        )


if __name__ == "__main__":
    main()
