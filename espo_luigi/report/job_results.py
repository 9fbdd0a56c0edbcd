"""The time and memory that a run's jobs took, from the results that they wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from espo_luigi.driver.status import duration
from espo_luigi.files import read_json
from espo_luigi.jobs.order import ResultWord, result_files, seconds_of
from espo_luigi.jobs.resources import MIB


@dataclass(frozen=True)
class RuleFigures:
    """The time and memory that a rule's jobs took."""

    rule: str
    jobs: int
    failed: int
    total_seconds: float
    longest_seconds: float
    peak_memory_bytes: int


def job_results(workdir: Path) -> Iterator[dict[str, Any]]:
    """Yield the results of all jobs below the work folder, ordered by their start."""
    yield from (result for _, result in results_of(workdir))


def results_of(workdir: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Return the same, with their paths."""
    found = ((path, read_json(path)) for path in result_files(workdir))
    results = [(path, result) for path, result in found if result is not None]
    return sorted(results, key=lambda one: float(one[1].get("started") or 0.0))


def rule_figures(workdir: Path) -> list[RuleFigures]:
    """Return the figures of each rule with an ended job; the rule that started first comes first."""
    rules: dict[str, list[dict[str, Any]]] = {}
    for result in job_results(workdir):
        rules.setdefault(result["family"], []).append(result)
    return [_figures(rule, results) for rule, results in rules.items()]


def _figures(rule: str, results: list[dict[str, Any]]) -> RuleFigures:
    seconds = [seconds_of(one) for one in results]
    failed = sum(one["outcome"] != ResultWord.SUCCESS for one in results)
    peak = max(int(one["peak_memory_bytes"]) for one in results)
    return RuleFigures(rule, len(results), failed, sum(seconds), max(seconds), peak)


def job_table(workdir: Path) -> str:
    """Return one line a rule: number of jobs, failures, time in all and at most, peak memory."""
    lines = [f"{'rule':26}{'jobs':>6}{'failed':>8}{'in all':>13}{'longest':>13}{'peak MiB':>10}"]
    lines += [
        f"{one.rule:26}{one.jobs:6}{one.failed:8}{duration(one.total_seconds):>13}{duration(one.longest_seconds):>13}"
        f"{one.peak_memory_bytes / MIB:10.0f}"
        for one in rule_figures(workdir)
    ]
    return "\n".join(lines) if lines[1:] else f"{workdir}: no job has ended yet"
