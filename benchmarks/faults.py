"""What becomes of runs of 60 small tasks on a real Slurm when files, nodes and people fail, fault by fault.

``python benchmarks/faults.py [--faults 200] [--seed S] [--seconds-limit 3600] [--a-run 20] [--groups 10]
[--only "driver's records"] [--folder KEPT]``. Real: Slurm (the throw-away cluster of `throwaway_slurm.py`), the
`luigi` command, jobs, stores, and the file system, which is a FUSE mount that fails on command
(`tests/support/failing_files.py`), as two clients of one server: login node and nodes.

Each run gets some 20 faults, a second or three apart. A driver that ends, by a fault or by itself with an error, is
started again, as a user would. A fault has ended *right* if nobody had to hear of it; *named* if an error told of it
by its own words; *anything else* is a defect: an error that names nothing that was done, a traceback, a run that does
not end, products that differ from those of an undisturbed run. Starts of a task beyond its first are counted with the
fault before them. All runs of a seed get the same faults, at times that differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from fault_campaign import ELSE, NAMED, RIGHT, Run, Verdict, stage
from fault_kinds import deck


def main() -> None:
    """Print what was found as it is found, then a line for each kind, then the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--seconds-limit", type=float, default=3600.0)
    parser.add_argument("--a-run", type=int, default=20, help="faults in a run")
    parser.add_argument("--groups", type=int, default=10, help="groups of six tasks in a run")
    parser.add_argument("--only", default="", help="kinds whose name has this in it")
    parser.add_argument("--run-limit", type=float, default=600.0, help="seconds after which a run hangs")
    parser.add_argument("--folder", type=Path, help="where to work, and to leave the drivers' logs")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    rng, end = random.Random(options.seed), time.monotonic() + options.seconds_limit
    kinds, verdicts = deck(rng, options.faults, options.only), []
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="espo-faults-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with stage(folder, rng) as scene:
        while kinds and time.monotonic() < end:
            run = Run(scene, f"run{len(verdicts)}", options.groups, 1.0, options.run_limit)
            verdicts.append(verdict := run.through(kinds[: options.a_run]))
            # Those that a run was too short for, and those that found no job to strike, are injected in the next.
            kinds = _without(kinds, verdict)
            _tell(len(verdicts), verdict)
            scene.cluster.run("scancel", "--user", "root", check=False)
    for row in _rows(verdicts):
        print(*(f"{name} {value}" for name, value in row.items()), sep=", ")
    print(json.dumps({"seed": options.seed, "load": os.getloadavg(), **_figures(verdicts)}))


def _without(kinds: list, verdict: Verdict) -> list:
    if not verdict.faults:
        return kinds[1:]
    left = list(kinds)
    for fault in verdict.faults:
        left.remove(next(kind for kind in left if kind.name == fault.kind.name))
    return left


def _tell(number: int, verdict: Verdict) -> None:
    outcomes = Counter(one.outcome for one in verdict.faults)
    equal = "products equal" if verdict.products_equal else "PRODUCTS DIFFER"
    print(
        f"run {number}: {verdict.seconds:.0f} s, {len(verdict.faults)} faults {dict(outcomes)}, {equal}, "
        f"{verdict.starts} starts, {verdict.done_again} done again, exit codes {' '.join(verdict.legs)}"
    )
    for finding in verdict.findings:
        print(f"  ! {finding}", flush=True)


def _rows(verdicts: list[Verdict]) -> list[dict]:
    faults = [one for verdict in verdicts for one in verdict.faults]
    extra = sum((verdict.extra_starts for verdict in verdicts), Counter())
    rows = []
    for name in sorted({one.kind.name for one in faults}):
        mine = [one for one in faults if one.kind.name == name]
        outcomes = Counter(one.outcome for one in mine)
        hits = [one.hits_seen for one in mine if one.hits_seen is not None]
        row = {"kind": name, "injected": len(mine), "calls": sum(hits) if hits else None}
        rows.append(row | {one: outcomes[one] for one in (RIGHT, NAMED, ELSE)} | {"extra starts": extra[name]})
    return rows


def _figures(verdicts: list[Verdict]) -> dict:
    rows = _rows(verdicts)
    totals = {name: sum(row[name] for row in rows) for name in ("injected", RIGHT, NAMED, ELSE, "extra starts")}
    done_again = sum(verdict.done_again for verdict in verdicts)
    equal = sum(verdict.products_equal for verdict in verdicts)
    return {"runs": len(verdicts), **totals, "done_again": done_again, "products_equal": equal, "rows": rows}


if __name__ == "__main__":
    main()
