"""A run as a report needs it, and reading its stores, tables, and the results and records of its jobs.

Stores and tables may be missing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xarray as xr

from espo_luigi import store
from espo_luigi.driver.status import duration
from espo_luigi.errors import EspoError
from espo_luigi.files import read_json
from espo_luigi.jobs.energy import Power
from espo_luigi.jobs.lifecycle.records import Record, RecordStore
from espo_luigi.jobs.order import JobFiles, ResultWord, order_files, result_files, seconds_of
from espo_luigi.jobs.resources import MIB
from espo_luigi.jobs.schedulers import SCHEDULERS
from espo_luigi.jobs.settings import STATE_FOLDER
from espo_luigi.report.html import Warned
from espo_luigi.report.job_use import Job
from espo_luigi.science.display import counted
from espo_luigi.science.variables import VARIABLES, Variable


@dataclass(frozen=True)
class Made:
    """What one task is to make, and whether that is there."""

    rule: str
    label: str
    paths: tuple[Path, ...]
    complete: bool


@dataclass(frozen=True)
class Diagnosed:
    """The stores about a simulation in a domain."""

    sim_id: str
    domain: str
    reference: Path
    summary: Path | None
    improvement: Path
    sim_prop: Path
    sim_meas: Path
    scen_prop: Path
    scen_meas: Path


@dataclass(frozen=True)
class Together:
    """What is known of all simulations of an experiment: indicators, or their changes, on the grid and over regions.

    `ensemble` is a store, `regions` a table with a NetCDF file of its name beside it; None: not asked for.
    """

    product: str
    freq: str
    dataset: str
    experiment: str
    ensemble: Path | None = None
    regions: Path | None = None


@dataclass(frozen=True)
class RunView:
    """A run: its inputs, its products, and their places.

    `flags` and `inputs` are tables, by dataset; `raised` has maps of flags, by simulation; `pools` has the
    simulations that are adjusted together, by name; `inversions` counts days with tasmax below tasmin, and
    `archives` are the products, which count the days that were treated otherwise, by simulation; `compared` has
    what was nearer to the reference after adjusting, by pool and domain; `table` is that of the variables;
    `ensembles` has what simulations have in common, `of_reference` the reference's indicators by frequency, and
    `regions` those of means, by name (see `science.outcomes.regions`); `adjusted` are the adjusted variables, `method`
    how, in words, and `years` those of the products; `explorer` is the page with maps and plumes, if one is made.
    """

    config_files: tuple[Path, ...]
    config_hash: str
    reference: str
    simulations: tuple[str, ...]
    domains: tuple[str, ...]
    period: tuple[int, ...]
    final: Path
    workdir: Path
    engine: str
    products: tuple[Made, ...] = ()
    diagnosed: tuple[Diagnosed, ...] = ()
    flags: Mapping[str, Path] = field(default_factory=dict)
    raised: Mapping[str, Path] = field(default_factory=dict)
    inputs: Mapping[str, Path] = field(default_factory=dict)
    pools: Mapping[str, Sequence[str]] = field(default_factory=dict)
    inversions: Mapping[str, Path] = field(default_factory=dict)
    archives: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    power: Power = field(default_factory=Power)
    compared: Mapping[tuple[str, str], Path] = field(default_factory=dict)
    table: Mapping[str, Variable] = field(default_factory=lambda: VARIABLES)
    ensembles: tuple[Together, ...] = ()
    of_reference: Mapping[str, Path] = field(default_factory=dict)
    regions: Mapping[str, Any] = field(default_factory=dict)
    adjusted: tuple[str, ...] = ()
    method: str = ""
    years: str = ""
    explorer: Path | None = None


class Reader:
    """Opens a report's stores and tables, and remembers why any could not be read."""

    def __init__(self) -> None:
        self.lacking: list[str] = []

    def dataset(self, path: Path, *, load: bool = True) -> xr.Dataset | None:
        """Return a small store in memory (or lazily), or None if it is missing or unreadable."""
        try:
            opened = store.open_store(path, cut=False)
            return opened.load() if load else opened
        except Exception as error:  # a damaged chunk raises whatever its codec does
            words = str(error) if isinstance(error, EspoError) else f"{path}: {type(error).__name__}: {error}"
            self.lacking.append(words if path.exists() else f"{path}: not made")
            return None

    def has(self, path: Path) -> bool:
        """Return whether a store is there."""
        if store.is_complete(path):
            return True
        self.lacking.append(f"{path}: not made")
        return False

    def warned(self) -> list[Warned]:
        """Return a paragraph about what could not be read, if there is anything."""
        if not self.lacking:
            return []
        shown = [f"• {name}" for name in self.lacking[:10]]
        more = [f"and {len(self.lacking) - 10} more"] if len(self.lacking) > 10 else []
        return [Warned("\n".join([f"Not there: {counted(len(self.lacking), 'product')}", *shown, *more]))]

    def table(self, path: Path, columns: Collection[str]) -> list[store.Row] | None:
        """Return a table's rows, or None if it is missing, unreadable, or lacks a column."""
        try:
            return store.read_table(path, columns)
        except EspoError as error:
            self.lacking.append(f"{path}: not made" if not path.exists() else str(error))
            return None


@dataclass(frozen=True)
class RuleFigures:
    """The time and memory that a rule's jobs took."""

    rule: str
    jobs: int
    failed: int
    total_seconds: float
    longest_seconds: float
    peak_memory_bytes: int


def results_of(workdir: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the results of all jobs below the work folder with their paths, ordered by their start."""
    read = ((path, read_json(path)) for path in result_files(workdir))
    results = [(path, result) for path, result in read if result is not None]
    return sorted(results, key=lambda pair: float(pair[1].get("started") or 0.0))


def job_results(workdir: Path) -> list[dict[str, Any]]:
    """Return the same, without paths."""
    return [result for _, result in results_of(workdir)]


def rule_figures(workdir: Path) -> list[RuleFigures]:
    """Return the figures of each rule with an ended job; the rule that started first comes first."""
    rules: dict[str, list[dict[str, Any]]] = {}
    for result in job_results(workdir):
        rules.setdefault(result["family"], []).append(result)
    figures = []
    for rule, results in rules.items():
        seconds = [seconds_of(result) for result in results]
        failed = sum(result["outcome"] != ResultWord.SUCCESS for result in results)
        peak = max(int(result["peak_memory_bytes"]) for result in results)
        figures.append(RuleFigures(rule, len(results), failed, sum(seconds), max(seconds), peak))
    return figures


def job_table(workdir: Path) -> str:
    """Return one line a rule: number of jobs, failures, time in all and at most, peak memory."""
    lines = [f"{'rule':26}{'jobs':>6}{'failed':>8}{'in all':>13}{'longest':>13}{'peak MiB':>10}"]
    lines += [
        f"{of.rule:26}{of.jobs:6}{of.failed:8}{duration(of.total_seconds):>13}{duration(of.longest_seconds):>13}"
        f"{of.peak_memory_bytes / MIB:10.0f}"
        for of in rule_figures(workdir)
    ]
    return "\n".join(lines) if lines[1:] else f"{workdir}: no job has ended yet"


def read_jobs(workdir: Path) -> list[Job]:
    """Return the jobs below a run's work folder whose result has all that they took."""
    jobs: list[Job] = []
    for path, result in results_of(workdir):
        order = JobFiles.at(path).order
        with suppress(KeyError, ValueError, TypeError, EspoError):
            # Slurm's jobs were submitted, local jobs started, when their order was written, by the file server's clock.
            # The job's own times are by its node's clock, which read `ended` when the result was written.
            ago = path.stat().st_mtime - order.stat().st_mtime if order.exists() else None
            jobs.append(Job.of(result, None if ago is None else float(result["ended"]) - ago))
    return jobs


@dataclass(frozen=True)
class Failed:
    """A job that failed, or left no result, with its message and the path of its log."""

    label: str
    words: str
    log: str


def read_failures(workdir: Path, engine: str = "") -> Iterator[Failed]:
    """Yield the jobs that have failed, and those that were ordered and have left no result."""
    # A scheduler's log is not where the local engine's would be; the last job of a task counts.
    records = read_records(workdir)[0] if engine in SCHEDULERS else []
    logs = {
        (each.rule, *sorted(each.wildcards.items())): SCHEDULERS[engine].log_path(each.log_pattern, each.job_id)
        for each in records
        if each.job_id
    }
    for path in order_files(workdir):
        result = read_json(JobFiles.at(path).result)
        if result is not None and result.get("outcome") == ResultWord.SUCCESS:
            continue
        order = read_json(path) or {}
        words = "no result: it is still waiting or at work, or was killed"
        if result is not None:
            words = str(result.get("exception") or result.get("outcome"))
        key = path.parent.name, *sorted(order.get("wildcards", {}).items())
        log = logs.get(key, str(order.get("files", {}).get("log", "")))
        yield Failed(str(order.get("label", path.stem)), words, log)


def read_records(workdir: Path) -> tuple[list[Record], str]:
    """Return the records of a run's submissions, and the problems with reading others, if any."""
    problems: list[str] = []
    return list(RecordStore(workdir / STATE_FOLDER).all(problems.append)), "; ".join(problems)
