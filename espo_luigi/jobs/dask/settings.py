"""What Dask's workers on other nodes find in their session's folder: settings, and the keys that only they have."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espo_luigi.files import write_new
from espo_luigi.jobs.order import extra_folders

if TYPE_CHECKING:
    from distributed.security import Security

logger = logging.getLogger(__name__)

# On any of a cluster's nodes, whoever has an account could else speak with a worker, which runs whatever it is sent.
_PROTECTED = {"distributed.comm.require-encryption": True}
# All messages of a worker go to its job's log, the package's own, too.
_LOGGED = {"logging": {"distributed": "info", "espo_luigi": "info"}}


# What a worker runs before anything else: it finds the modules that its session's process finds, and reads no machine
# code that others may have written. An environment of its own may be without this package.
_PRELOAD = """\
import sys

sys.path.extend(folder for folder in {folders!r} if folder not in sys.path)
try:
    from espo_luigi.files import drop_shared_numba_cache
except ImportError:
    pass
else:
    print(drop_shared_numba_cache(), file=sys.stderr, end="")
"""


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Log Dask's warnings, but not refused connections of worker jobs that test the port."""
    levels = {"distributed": logging.WARNING, "distributed.comm.tcp": logging.ERROR}
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@contextmanager
def private_folder(path: Path) -> Iterator[Path]:
    """Make a folder for its owner alone, anew, and remove it at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def write_security(folder: Path) -> Security:
    """Write a key and a certificate that are valid for this session only into its folder; return them by their paths.

    Who has them may speak with scheduler and workers, and nobody else may.
    """
    from distributed.security import Security

    made: Any = Security.temporary()
    for name in ("tls_ca_file", "tls_scheduler_key"):
        _write_private(folder / f"{name}.pem", getattr(made, name))
    return read_security(folder)


def read_security(folder: Path) -> Security:
    """Return what `write_security` has written."""
    from distributed.security import Security

    cert, key = str(folder / "tls_ca_file.pem"), str(folder / "tls_scheduler_key.pem")
    roles = ("client", "scheduler", "worker")
    pairs = {f"tls_{role}_cert": cert for role in roles} | {f"tls_{role}_key": key for role in roles}
    return Security(require_encryption=True, tls_ca_file=cert, **pairs)


def write_settings(path: Path, security: Any, settings: Mapping[str, Any]) -> None:
    """Write Dask's settings of the workers, as Dask reads them by ``DASK_CONFIG``."""
    import dask

    keys: dict[str, Any] = {"distributed.comm.tls.ca-file": security.tls_ca_file}
    for role in ("client", "worker"):
        for kind in ("key", "cert"):
            keys[f"distributed.comm.tls.{role}.{kind}"] = getattr(security, f"tls_{role}_{kind}")
    said: dict[str, Any] = {}
    preload = path.with_suffix(".py")
    _write_private(preload, _PRELOAD.format(folders=extra_folders()))
    keys["distributed.worker.preload"] = [*dask.config.get("distributed.worker.preload", []), str(preload)]
    own = {name: value for name, value in settings.items() if not name.startswith("logging")}
    dask.config.set({**own, **keys, **_PROTECTED, **_LOGGED}, config=said)
    # JSON is YAML, and takes tuples.
    _write_private(path, json.dumps(said))


def _write_private(path: Path, text: str) -> None:
    write_new(path, text, 0o600)
