"""Where the kernels' machine code is kept between processes: in folders named after all that it is made from."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import hashlib
import logging
import os
import random
import re
import shutil
import sys
import time
import uuid
from typing import Any

import llvmlite
import numba
from llvmlite import binding
from numba.core import caching

from espo_luigi.files import make_private, open_own

logger = logging.getLogger(__name__)

_KERNELS = os.path.join(os.path.dirname(__file__), "kernels")
_OTHERS = [
    os.path.join(os.path.dirname(__file__), os.pardir, *place)
    for place in (("mbcn", "bins.py"), ("mbcn", "kernels.py"), (os.pardir, "downscaling", "kernels.py"))
]
_NAME = "kernels-"
_FOLDER = re.compile(rf"{_NAME}[0-9a-f]{{16}}")
# Longer than compiling takes; then whoever waits compiles for itself.
_PATIENCE_SECONDS = 900.0
_UNUSED_SECONDS = 30 * 86400.0


def _in(folder: str, pattern: str) -> list[str]:
    return [os.path.join(folder, name) for name in glob.glob(pattern, root_dir=folder)]


def sources() -> list[str]:
    """Return the modules that machine code is made from."""
    return [*sorted(_in(_KERNELS, "*.py")), *filter(os.path.exists, _OTHERS)]


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


@functools.cache
def code_id() -> str:
    """Name what machine code depends on: the kernels' sources, the compiler, Python and the processor.

    Numba looks at the file of the function itself only, and keeps processors apart in an index that two nodes of a
    cluster can write at once.
    """
    processor = f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"
    versions = f"{numba.__version__} {llvmlite.__version__} {sys.implementation.cache_tag}"
    parts = [processor.encode(), versions.encode(), *map(_read, sources())]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:16]


def chosen_folder() -> str:
    """Return what `NUMBA_CACHE_DIR` says, or nothing."""
    return str(numba.config.CACHE_DIR)  # type: ignore[attr-defined]


class _ByContent:
    """A place of numba's for a function's code, with a folder for each `code_id`."""

    def __init__(self, function: Any, path: str) -> None:
        # Numba's places depend on the module's: all kernels have the same.
        super().__init__(function, os.path.join(_KERNELS, os.path.basename(path)))  # type: ignore[call-arg]

    def get_cache_path(self) -> str:
        # In the user's own cache, numba names a folder after the package's path. An environment that each job creates
        # would never find the code of an earlier job.
        in_users_folder = isinstance(self, caching.UserProvidedCacheLocator)
        place = chosen_folder() if in_users_folder else super().get_cache_path()  # type: ignore[misc]
        return os.path.join(place, _NAME + code_id())

    def ensure_cache_path(self) -> None:
        # The code is kept as pickles: anybody who can write them can run code in this process.
        if not make_private(self.get_cache_path()):
            raise PermissionError(f"{self.get_cache_path()} is not this user's alone")
        super().ensure_cache_path()  # type: ignore[misc]

    def get_source_stamp(self) -> str:
        return code_id()


class _Places(caching.CompileResultCacheImpl):
    _locator_classes: list[Any] = [
        type(one.__name__, (_ByContent, one), {}) for one in caching.CacheImpl._locator_classes
    ]


class KernelCache(caching.FunctionCache):
    """Numba's cache of a kernel; of the processes that lack its code, the first compiles and the rest wait."""

    _impl_class = _Places
    _turn = contextlib.ExitStack()

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        # Numba numbers the files by what it last read of the index. Where processes cannot wait for each other, two
        # may take the same number for arguments of different types, and later ones get wrong code without an error.
        self._cache_file._data_name_pattern = f"{self._impl.filename_base}.{{number}}.{uuid.uuid4().hex[:16]}.nbc"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the code, if need be after waiting for the process that compiles it; None: compile it."""
        self._turn.close()  # of a compilation that failed
        found = super().load_overload(sig, target_context)
        if found is None:
            logger.info("Compiling %s for this kind of processor, once: it may take minutes.", self._name)
            self._turn = _take_turn(os.path.join(self.cache_path, f"{self._impl.filename_base}.lock"))
            found = super().load_overload(sig, target_context)
            if found is not None:
                self._turn.close()
        else:
            with contextlib.suppress(OSError):
                os.utime(self.cache_path)
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the code for all processes, and remove code that has not been used for long."""
        with self._turn:
            super().save_overload(sig, data)
        remove_unused(self.cache_path)


def _take_turn(path: str) -> contextlib.ExitStack:
    """Lock a file until it is closed, or its process ends; where files cannot be locked, do without."""
    turn = contextlib.ExitStack()
    deadline, pause = time.monotonic() + _PATIENCE_SECONDS, 0.1
    with contextlib.suppress(OSError):
        file = turn.enter_context(open(open_own(path), "w"))  # noqa: SIM115 (the stack closes it)
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Said, not left to closing: a forked child may hold the file open.
                turn.callback(fcntl.flock, file, fcntl.LOCK_UN)
                break
            except BlockingIOError:
                # Hundreds of jobs may wait on one file server.
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, 2.0)
    return turn


def remove_unused(folder: str) -> None:
    """Remove the code beside `folder` that no process has loaded for a month: other sources', or other processors'."""
    for other in _in(os.path.dirname(folder), f"{_NAME}*"):
        with contextlib.suppress(OSError):
            is_ours = _FOLDER.fullmatch(os.path.basename(other)) and not os.path.islink(other)
            if is_ours and other != folder and time.time() - os.stat(other).st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(other, ignore_errors=True)
