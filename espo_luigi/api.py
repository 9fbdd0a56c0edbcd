"""Running tasks from Python: ``espo_luigi.build([...], config=…, engine=…, workers=…)``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import luigi
from luigi.configuration import get_config
from luigi.execution_summary import LuigiRunResult, LuigiStatusCode

from espo_luigi.driver.install import install
from espo_luigi.driver.task import made_anew
from espo_luigi.jobs.settings import BatchSettings
from espo_luigi.tasks.context import forget


@dataclass(frozen=True)
class Summary:
    """How a run ended.

    Attributes
    ----------
    succeeded : bool
        Whether all tasks are complete.
    status : luigi.execution_summary.LuigiStatusCode
        Luigi's word for the end.
    text : str
        Luigi's summary: the numbers of tasks that were complete, ran or failed.
    """

    succeeded: bool
    status: LuigiStatusCode
    text: str


def build(
    tasks: Sequence[luigi.Task],
    *,
    config: str | Path | Sequence[str | Path] | None = None,
    engine: str | None = None,
    workers: int = BatchSettings.max_jobs,
    workdir: str | Path | None = None,
    local_scheduler: bool = True,
    **options: Any,
) -> Summary:
    """Run `tasks` and all that they need, and return how it went.

    Parameters
    ----------
    tasks
        Instances of rules (``Train(pool=…, piece=…, var=…)``) or of any Luigi task.
    config
        The YAML file or files of the run; by default those of luigi.cfg.
    engine
        ``"local"``, ``"allocation"``, ``"slurm"`` or ``"sge"``; by default luigi.cfg's.
    workers
        How many jobs may be in flight at once. A waiting job costs a thread; the local engine starts only as many as
        fit on this machine.
    workdir
        Folder of job files, logs and records.
    local_scheduler
        Use Luigi's scheduler inside this process rather than luigid.
    options
        Further keywords for `luigi.build`.

    Returns
    -------
    Summary
        Neither a failed task nor a configuration that cannot be used raises an exception: look at `succeeded`. The log
        says why.
    """
    files = [config] if isinstance(config, (str, Path)) else config
    paths = None if files is None else shlex.join(str(Path(file).absolute()) for file in files)
    for name, value in {"config": paths, "engine": engine, "workdir": workdir}.items():
        if value is not None:
            get_config().set("espo", name, str(value).replace("%", "%%"))
    install()
    forget()
    result: LuigiRunResult = luigi.build(
        made_anew(tasks),
        detailed_summary=True,
        workers=workers,
        local_scheduler=local_scheduler,
        log_level=options.pop("log_level", "WARNING"),
        **options,
    )
    return Summary(result.scheduling_succeeded and result.status in _GOOD, result.status, result.summary_text)


_GOOD = (LuigiStatusCode.SUCCESS, LuigiStatusCode.SUCCESS_WITH_RETRY)
