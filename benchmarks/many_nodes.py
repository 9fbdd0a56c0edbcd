"""Adjusting one variable by Dask workers that are jobs of their own, on 1, 2 and 4 nodes of one CPU each, side by side.

``python benchmarks/many_nodes.py --cells 2400``. Real: Slurm (the throw-away cluster of `throwaway_slurm.py`,
whose nodes are this machine), its jobs, dask-jobqueue with TLS, the numbers of `Adjust` (151 years, DQM, LOESS), blocks
of 600 cells or fewer, and the Zarr store that they are written to. Not real: nodes of their own. More workers than this
machine has CPUs gain nothing. "here" is one worker in this process, as a rule's job has it without a cluster.

Times are wall-clock seconds: until the first worker has come, until all have, and of the adjustment from then on, the
workers' imports included; "second" is the adjustment once more, in the same session. The last line is JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from adjustment import DAYS, FIRST_YEAR, REFERENCE_FIRST_YEAR, TRAINING_YEARS, as_series, make
from throwaway_slurm import ClusterSpec, ThrowawayCluster

from espo_luigi import store
from espo_luigi.cluster import session
from espo_luigi.jobs.dask.session import dask_session
from espo_luigi.jobs.resources import Resources
from espo_luigi.methods import blocks

YEARS = 151
MARKER = store.Marker("Benchmark")
LOESS = {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}


def prepare(folder: Path, cells: int, block: int) -> None:
    """Write a simulation and its training as the rules before `Adjust` leave them."""
    series = make("tasmax", cells, YEARS)
    reference = as_series(series.reference, REFERENCE_FIRST_YEAR, "K").chunk(loc=block)
    simulation = as_series(series.simulation, FIRST_YEAR, "K").chunk(loc=block)
    period = (str(REFERENCE_FIRST_YEAR), str(REFERENCE_FIRST_YEAR + TRAINING_YEARS - 1))
    training = blocks.train(
        reference,
        simulation,
        period=period,
        group={"group": "time.dayofyear", "window": 31},
        xclim_train_args={"kind": "+", "nquantiles": 50},
        seed="benchmark",
    )
    store.write_store(training, folder / "training.zarr", MARKER)
    store.write_store(simulation.to_dataset(name="tasmax"), folder / "simulation.zarr", MARKER)


def adjust(folder: Path) -> float:
    """Adjust from store to store; return how long it took."""
    started = time.monotonic()
    simulation = store.open_store(folder / "simulation.zarr")["tasmax"]
    scenario = blocks.adjust(
        simulation,
        store.open_store(folder / "training.zarr"),
        periods=[[str(FIRST_YEAR), str(FIRST_YEAR + YEARS - 1)]],
        xclim_adjust_args={"detrend": LOESS, "interp": "nearest", "extrapolation": "constant"},
        seed="benchmark",
    )
    store.write_store(scenario.to_dataset(name="tasmax"), folder / "scenario.zarr", MARKER)
    return time.monotonic() - started


def digest(folder: Path) -> str:
    files = sorted(path for path in (folder / "scenario.zarr" / "tasmax").rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


@contextmanager
def workers(n: int) -> Iterator[Any]:
    """A session of `n` jobs, or of one worker in this process."""
    opened = session(jobs=n, memory="2GB", walltime="60", wait_for_workers="0") if n else _here()
    with opened as client:
        yield client


def _here() -> Any:
    return dask_session(Resources(1, 1, "2GB"))


def measure(folder: Path, n: int) -> dict[str, float | str]:
    started = time.monotonic()
    with workers(n) as client:
        client.wait_for_workers(1)
        first = time.monotonic() - started
        client.wait_for_workers(max(n, 1))
        every = time.monotonic() - started
        one, two = adjust(folder), adjust(folder)
    return {"first worker": first, "all workers": every, "adjust": one, "second": two, "bytes": digest(folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=2400)
    parser.add_argument("--block", type=int, default=300, help="cells of a Dask task")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ThrowawayCluster.start(ClusterSpec(nodes=4, cpus=1)) as cluster:
        os.environ |= {"SLURM_CONF": cluster.environ["SLURM_CONF"], "PATH": cluster.environ["PATH"]}
        os.chdir(name)
        prepare(Path(name), options.cells, options.block)
        made = {("here" if n == 0 else f"{n} node(s)"): measure(Path(name), n) for n in (0, 1, 2, 4)}
    print(f"{options.cells} cells, {YEARS} years of {DAYS} days, blocks of {options.block}; {os.cpu_count()} CPUs")
    names = list(next(iter(made.values())))
    print(f"{'':12}" + "".join(f"{name:>14}" for name in names))
    for label, values in made.items():
        shown = (f"{value:14.1f}" if isinstance(value, float) else f"{value:>14}" for value in values.values())
        print(f"{label:12}" + "".join(shown))
    print(json.dumps(made))


if __name__ == "__main__":
    main()
