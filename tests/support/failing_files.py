"""A file system that fails on command, for tests: a FUSE mount of a folder, in a separate process.

    with FailingFiles.mounted(behind, mountpoint) as files:
        files.set(Fault("write", "records/*", error="EDQUOT", seconds=2))

Two mounts of the same folder are two clients of a file server. With ``private=True``, only processes that are started
with `FailingFiles.inside` before their command see a mount. So several clients have it under the same path, as the
nodes of a cluster have.

The mount behaves like NFS in these ways:

- Names that a second client has made appear late (`hide`). A name that was seen stays; a deletion shows at once.
- An open file that is deleted leaves a hidden name behind.
- Locks hold only among the processes of a client.
- Calls are not interrupted while the server does not answer.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_SERVER = Path(__file__).with_name("failing_files_server.py")
# What asks a metadata server, where NFS or Lustre is mounted; reads and writes go elsewhere.
METADATA = (
    "stat", "listdir", "open", "create", "mkdir", "rename", "exchange", "link", "symlink", "unlink", "rmdir",
    "chmod", "utimens", "truncate", "close", "fsync",
)  # fmt: skip


def missing_parts() -> str | None:
    """Say what to install or allow before `FailingFiles` can mount, or None when all is there."""
    if find_spec("mfusepy") is None:
        return "mfusepy is needed: pip install mfusepy"
    if shutil.which("fusermount3") is None:
        return "fusermount3 is needed; on Debian: apt-get install fuse3"
    if not os.access("/dev/fuse", os.W_OK) or os.geteuid() != 0:
        return "a FUSE mount needs /dev/fuse, and root for private mounts; in a container: --privileged"
    return None


@dataclass(frozen=True)
class Fault:
    """A fault of all calls of `operations` on paths below the mount that match `path`.

    Parameters
    ----------
    operations : str
        Names of `METADATA`, ``read``, ``write``, ``exclusive`` (a create with O_EXCL), separated by blanks; ``*``: all.
    path : str
        Pattern of the path relative to the mount; ``*`` stands for slashes too.
    error : str
        Name of an errno.
    seconds, times : float, int, optional
        For how long, and how often; by default until it is cleared.
    lasting : float, optional
        For how long from the first call that it strikes: an outage that nobody misses.
    hang : float
        Seconds until the call goes on, or fails by `error`.
    hide : float
        Seconds for which a name that a second client has made is not seen.
    after : bool
        Whether the call is done before the `error`: the server's answer was lost, and a repeated call found it done.
    shared : bool
        Whether O_EXCL excludes nobody (of operation ``exclusive``).
    """

    operations: str = "*"
    path: str = "*"
    error: str = ""
    seconds: float | None = None
    lasting: float | None = None
    times: int | None = None
    hang: float = 0.0
    hide: float = 0.0
    after: bool = False
    shared: bool = False

    def __post_init__(self) -> None:
        known = {*METADATA, "read", "write", "exclusive", "statfs", "chown", "*"}
        unknown = set(self.operations.split()) - known
        if unknown or (self.error and not hasattr(errno, self.error)):
            raise ValueError(f"{self}: {unknown or self.error} is unknown; operations are {', '.join(sorted(known))}")


@dataclass(frozen=True)
class FailingFiles:
    """A mount of `folder` at `mountpoint`, as a single client sees it."""

    folder: Path
    mountpoint: Path
    private: bool
    process: subprocess.Popen[bytes]
    control: Path

    @classmethod
    @contextlib.contextmanager
    def mounted(cls, folder: Path, mountpoint: Path, *, private: bool = False) -> Iterator[FailingFiles]:
        """Mount `folder`, until the block ends; whatever hangs then fails."""
        for path in (folder, mountpoint):
            path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="failing-files-") as outside:
            control = Path(outside) / "control"
            namespace = ["unshare", "--mount", "--propagation", "private", "--"] if private else []
            words = [sys.executable, str(_SERVER), str(folder), str(mountpoint), str(control)]
            process = subprocess.Popen([*namespace, *words], stdin=subprocess.PIPE, start_new_session=True)
            files = cls(folder, mountpoint, private, process, control)
            try:
                files._wait_until_mounted()
                yield files
            finally:
                files._unmount()

    @property
    def inside(self) -> tuple[str, ...]:
        """Words before a command that is to see this mount."""
        return ("nsenter", f"--mount=/proc/{self.process.pid}/ns/mnt", "--") if self.private else ()

    def set(self, fault: Fault) -> int:
        """Put a fault into force; return its number."""
        return int(self._ask("set", {**asdict(fault), "operations": fault.operations.split()}))

    def clear(self, number: int | None = None) -> None:
        """End a fault, or all of them; what hangs goes on."""
        self._ask("clear", number)

    def hits(self, number: int) -> int:
        """How many calls a fault has struck."""
        return int(self._ask("hits", number))

    def struck_at(self, number: int) -> float | None:
        """When a fault first struck, in seconds since the epoch."""
        found = self._ask("struck_at", number)
        return None if found is None else float(found)

    def _ask(self, command: str, *arguments: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self.control))
            connection.sendall(json.dumps([command, arguments]).encode() + b"\n")
            return json.loads(connection.makefile().readline())

    def _is_mounted(self) -> bool:
        try:
            lines = Path(f"/proc/{self.process.pid}/mountinfo").read_text().splitlines()
        except OSError:  # of a process that has ended
            return False
        return any(line.split()[4] == str(self.mountpoint) and "fuse" in line.split(" - ")[1] for line in lines[::-1])

    def _wait_until_mounted(self) -> None:
        deadline = time.monotonic() + 30
        while not (self.control.exists() and self._is_mounted()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.folder} could not be mounted at {self.mountpoint}; {missing_parts() or ''}")
            time.sleep(0.05)

    def _unmount(self) -> None:
        with contextlib.suppress(OSError):
            self.clear()
        umount = [*self.inside, "umount", "--lazy", str(self.mountpoint)]
        subprocess.run(umount, check=False, capture_output=True, timeout=30)
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()  # the kernel then fails all calls under way
            self.process.wait()
