"""What the jobs of a run took, as a table, from the results that they wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from espo_luigi.jobs.records import read_json


def job_results(workdir: Path) -> Iterator[dict[str, Any]]:
    """Yield the results of all jobs below the work folder, in the order in which they started."""
    found = (read_json(path) for path in (workdir / "jobs").glob("*/*.result.json"))
    yield from sorted((result for result in found if result is not None), key=lambda result: float(result["started"]))


def job_table(workdir: Path) -> str:
    """Return one line a rule: number of jobs, seconds in all and at most, peak memory, failures."""
    rules: dict[str, list[dict[str, Any]]] = {}
    for result in job_results(workdir):
        rules.setdefault(result["family"], []).append(result)
    lines = [f"{'rule':26}{'jobs':>6}{'failed':>8}{'total s':>10}{'longest s':>11}{'peak MiB':>10}"]
    for rule, results in rules.items():
        seconds = [float(one["ended"]) - float(one["started"]) for one in results]
        failed = sum(one["outcome"] != "success" for one in results)
        peak = max(int(one["peak_memory_bytes"]) for one in results) / 2**20
        lines.append(f"{rule:26}{len(results):6}{failed:8}{sum(seconds):10.1f}{max(seconds):11.1f}{peak:10.0f}")
    if not rules:
        return f"{workdir}: no job has ended yet"
    return "\n".join(lines)
