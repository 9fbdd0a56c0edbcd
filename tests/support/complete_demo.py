"""The demo with everything complete: stores that have nothing in them but their markers."""

import functools
import hashlib
import operator
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import luigi
import pytest
import yaml

from espo_luigi import store, tasks
from espo_luigi.replacing import write_manifest
from espo_luigi.tasks import inputs
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import forget

NOLEAP = "CMIP6_ScenarioMIP_ESPO-DEMO_Demo-NoLeap_ssp585_r1i1p1f1_global"
DAY360 = "CMIP6_ScenarioMIP_ESPO-DEMO_Demo-360Day_ssp585_r1i1p1f1_global"

OF_DOWNSCALING = {tasks.CoarseReference, tasks.Downscale}
# The rules that are in no run of `All` of 2024: those of ESPO v2, downscaling, the export, known futures, indicators.
OTHER_RULES = {
    *OF_DOWNSCALING,
    *(tasks.Daily, tasks.RefDaily),
    *(tasks.MakeRef, tasks.Swap, tasks.Derive, tasks.ConcatClean, tasks.ConcatCleanPreswap),
    *(tasks.DiagRef, tasks.DiagExtract, tasks.Diag, tasks.Inversions),
    *(tasks.Export, tasks.ExportOutcome, tasks.PerfectPair, tasks.WithheldYears, tasks.PerfectModel),
    *(tasks.Indicators, tasks.ReferenceIndicators, tasks.Climatology, tasks.ReferenceClimatology),
    *(tasks.Percentiles, tasks.ReferencePercentiles, tasks.Explorer),
    *(tasks.Delta, tasks.WarmingLevels, tasks.Ensemble, tasks.Regions),
    *(tasks.Trends, tasks.ReferenceTrends, tasks.ReturnLevels, tasks.ReferenceReturnLevels),
}


# The raw files of the demo are those of all tests.
_tracking_id = functools.cache(inputs.tracking_id)


def complete_all() -> None:
    """Publish the outputs of every task of `All`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "tracking_id", _tracking_id)
        for task in in_order(tasks.All()):
            publish(task, task.marker())


def in_order(root: luigi.Task) -> list[EspoTask]:
    """All tasks of the graph, each after its requirements."""
    found: dict[str, EspoTask] = {}

    def visit(task: luigi.Task) -> None:
        if task.task_id not in found:
            for needed in task.deps():
                visit(needed)
            if isinstance(task, EspoTask):
                found[task.task_id] = task

    visit(root)
    return list(found.values())


def work(*ends: luigi.Task) -> None:
    """Do the work of tasks and of all that they need in this process, in which jobs would take their time to start."""
    for end in ends:
        for task in in_order(end):
            if not task.complete():
                task.check()
                with task.guarded():
                    task.work()


def publish(task: EspoTask, marker: store.Marker) -> None:
    for target in task.output():
        path = Path(str(target))
        if path.suffix == ".csv":
            store.write_table(inputs.COLUMNS, [], path, marker)
            continue
        if path.suffix == ".html":
            store.write_page("<html>\n</html>\n", path, marker)
            figures = path.with_name(f"{path.stem}-figures")
            shutil.rmtree(figures, ignore_errors=True)
            figures.mkdir()
            write_manifest(figures, "espo report", {path.name: [hashlib.sha256(path.read_bytes()).hexdigest()]})
            continue
        path.mkdir(parents=True, exist_ok=True)
        (path / "zarr.json").write_text("{}")
        (path / store.MARKER_NAME).write_text(marker.to_json())


def remove(*gone: EspoTask) -> None:
    """Delete the outputs of tasks."""
    for task in gone:
        for target in task.output():
            store.remove(Path(str(target)))


def set_key(file: Path, key: str, value: Any) -> None:
    """Give a dotted key of a configuration file another value; a list changes wherever an alias repeats it."""

    def change(content: Any) -> None:
        *outer, last = key.split(".")
        part = functools.reduce(operator.getitem, outer, content)
        if isinstance(value, list) and isinstance(part.get(last), list):
            part[last][:] = value
        else:
            part[last] = value

    edit(file, change)


def edit(file: Path, change: Callable[[Any], None]) -> None:
    content = yaml.safe_load(file.read_text())
    change(content)
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    forget()
