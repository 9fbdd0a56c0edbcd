"""The driver's engines and the locks of its folders: an instance of each engine, and a set of locks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from espo_luigi.driver.settings.espo import amount_of, settings, state_dir
from espo_luigi.driver.settings.sections import JOB_COMMAND, SECTIONS, refuse_login_host
from espo_luigi.errors import EspoError, SubmissionError
from espo_luigi.jobs.local import Forks, Launcher, LocalEngine
from espo_luigi.jobs.lock import DriverLock, HeldLocks, SecondDriverError
from espo_luigi.jobs.order import Engine
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.srun import Steps

logger = logging.getLogger(__name__)

_lock = threading.Lock()
_engines: dict[str, Engine] = {}
_lost: list[SecondDriverError] = []
# The local engine's, from `begin_local` on.
_begun: list[Forks] = []


def engine(name: str) -> Engine:
    """Return the engine called `name` in ``[espo] engine``; tasks ask from many threads at once."""
    with _lock:
        if _lost:
            raise _lost[0]
        if name not in _engines:
            _engines[name] = _made(name)
        return _engines[name]


def _made(name: str) -> Engine:
    if name in SCHEDULERS:
        # A run on this machine does without.
        from espo_luigi.jobs.engine import BatchEngine

        return BatchEngine(SCHEDULERS[name], SECTIONS[name]().batch_settings(), _held)
    if name == "local":
        refuse_login_host()
        launcher: Launcher = _begun[0] if _begun else local_launcher()
    else:
        launcher = Steps(JOB_COMMAND, SECTIONS["slurm"]().options_of({}, {}))
    made = LocalEngine(launcher, _held)
    # A scheduler's engine takes the same lock: both must never run the same jobs.
    _held.hold(DriverLock(state_dir(), engine=name))
    return made


def local_launcher() -> Forks:
    """Return the launcher of jobs on this machine, which knows what they may use of it."""
    return Forks((*JOB_COMMAND, "--serve"), settings().local_cpus or None, amount_of("local_memory"))


def begin_local(modules: Sequence[str]) -> None:
    """Let the local engine, if it is the run's, import what jobs need while the driver looks at its tasks.

    Both take seconds. What is wrong is told once the engine is needed.
    """
    if modules and settings().engine == "local" and not _begun and "local" not in _engines:
        with suppress(EspoError, OSError):
            refuse_login_host()
            launcher = local_launcher()
            launcher.begin(modules)
            _begun.append(launcher)


def hold_folders(folders: Iterable[Path]) -> None:
    """Reserve `folders` for this driver until `close_engines`; missing folders are made.

    Raise `SecondDriverError` if a driver that may be alive holds a folder: then none is held. Raise `SubmissionError`
    if a folder cannot be made or written.
    """
    try:
        # Hidden files, in folders that are not the driver's own.
        _held.hold(*(DriverLock(folder.absolute(), name=".espo-driver.lock") for folder in set(folders)))
    except OSError as error:
        raise SubmissionError(
            f"a folder in which this driver has to work alone cannot be used: {error}; choose another, or get the "
            "right to write there"
        ) from error


def _give_up(error: SecondDriverError) -> None:
    """Start no more jobs: a second driver has taken the lock, and runs these jobs."""
    logger.error("%s; it starts nothing any more, and leaves its jobs alone", error)
    with _lock:
        _lost.append(error)
        running = list(_engines.values())
    for one in running:
        one.detach()


_held = HeldLocks(_give_up)


def stop_engines() -> None:
    """End all jobs of this run."""
    with _lock:
        running = list(_engines.values())
    for one in running:
        one.stop()


def close_engines(*, detach: bool = False) -> None:
    """End all engines and give up the folders; with `detach`, the jobs are left to the next driver."""
    with _lock:
        running = list(_engines.values())
        _engines.clear()
    # Outside of the lock: the thread that an engine waits for may find out meanwhile that a folder is lost.
    for one in running:
        one.detach() if detach else one.close()
    for launcher in _begun:  # which had no job
        launcher.close()
    _begun.clear()
    _held.release()
    _lost.clear()
