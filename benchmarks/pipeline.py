"""Where the demo's time goes: every rule of the demo, with our kernels and with xsdba, one after the other.

    python benchmarks/pipeline.py                  # both
    python benchmarks/pipeline.py --only kernels

Each run is the README's main job in a temporary folder, from the raw data on; the figures come from the results that
the jobs write themselves. The last line is the same as one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from espo_luigi.report.jobs import job_results, job_table

REPOSITORY = Path(__file__).parent.parent
ENGINES = {"kernels": "auto", "xsdba": "xsdba"}


def main() -> None:
    """Run the demo as asked, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ENGINES, help="run one of the two")
    only = parser.parse_args().only
    figures: dict[str, Any] = {"load_before": os.getloadavg()[0], "cpus": os.cpu_count()}
    for name in [only] if only else ENGINES:
        figures[name] = measure(name)
    if not only:
        figures["ratio"] = round(figures["xsdba"]["wall_seconds"] / figures["kernels"]["wall_seconds"], 2)
        print(f"\nwhole demo: xsdba / kernels = {figures['ratio']}")
    print(json.dumps(figures))


def measure(name: str) -> dict[str, Any]:
    """Run the demo with one way of adjusting; return its wall time and each rule's seconds and peak memory."""
    with tempfile.TemporaryDirectory(prefix="espo-pipeline-") as folder:
        prepare(Path(folder), ENGINES[name])
        luigi = Path(sys.executable).parent / "luigi"
        command = [str(luigi), "--module", "espo_luigi.tasks", "All", "--local-scheduler"]
        started = time.monotonic()
        with (Path(folder) / "log").open("wb") as log:
            code = subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=False).returncode
        wall = time.monotonic() - started
        if code:
            raise SystemExit(f"the demo failed:\n{(Path(folder) / 'log').read_text()[-3000:]}")
        work = Path(folder) / "espo-demo" / "run"
        print(f"\n{name}: {wall:.0f} s\n{job_table(work)}")
        return {"wall_seconds": round(wall, 1), "rules": rules(work)}


def prepare(folder: Path, engine: str) -> None:
    """Copy the demo's configuration, with the way of adjusting set for every variable."""
    (folder / "config" / "demo").mkdir(parents=True)
    for source in (REPOSITORY / "config" / "demo").glob("*.yml"):
        (folder / "config" / "demo" / source.name).write_text(source.read_text())
    (folder / "luigi.cfg").write_text((REPOSITORY / "luigi.cfg").read_text())
    file = folder / "config" / "demo" / "config.yml"
    config = yaml.safe_load(file.read_text())
    for variable in config["biasadjust"]["variables"].values():
        variable["engine"] = engine
    file.write_text(yaml.safe_dump(config, sort_keys=False))


def rules(work: Path) -> dict[str, dict[str, float]]:
    """Return seconds in all and peak MiB of each rule."""
    found: dict[str, dict[str, float]] = {}
    for result in job_results(work):
        rule = found.setdefault(result["family"], {"jobs": 0, "seconds": 0.0, "peak_mib": 0.0})
        rule["jobs"] += 1
        rule["seconds"] = round(rule["seconds"] + result["ended"] - result["started"], 2)
        rule["peak_mib"] = max(rule["peak_mib"], round(result["peak_memory_bytes"] / 2**20))
    return found


if __name__ == "__main__":
    main()
