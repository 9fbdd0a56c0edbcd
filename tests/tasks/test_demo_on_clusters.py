"""The demo with a single simulation runs as jobs of a real cluster: up to the product; in `.ci/long`, every rule."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from complete_demo import OTHER_RULES
from demo_runs import CONFIG, content_of, use, write_config
from test_production_shape import (
    MANY,
    ONE,
    REGIONS,
    SHAPE,
    assert_same,
    make_raw,
    of_source,
    products,
    two_threads,
    work_through,
)
from throwaway_sge import ThrowawayGridEngine
from throwaway_slurm import ClusterSpec, ThrowawayCluster

from espo_luigi import tasks
from espo_luigi.driver.graph import Graph
from espo_luigi.driver.task import SlurmTask
from espo_luigi.jobs.lifecycle.records import RecordStore
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.make import rules
from espo_luigi.tasks.report import kept_by

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1500)]
DEMO = content_of(CONFIG / "config.yml")
DOMAINS = DEMO["off-diag"]["domains"]
_WIDE = {**REGIONS["middle"], "lat_bnds": [45.0, 48.0]}
# Two bands, of 3 and 9 rows, so that there is more than one task of each rule to bundle.
TWO_BANDS = {
    **of_source("Demo-360Day"),
    "custom__regions": {"south": REGIONS["south"], "middle": {**_WIDE, "lat_bnds": [45.75, 48.0]}},
}
# Each task is a job that imports for seconds.
_ONE_DOMAIN = {
    "off_DASH_diag__domains": {"Highland": DOMAINS["Highland"]},
    **{
        f"off_DASH_diag__steps__{step}__domain": {"Highland": region}
        for step, region in {"ref": "middle", "sim": "middle", "scen": "NAM"}.items()
    },
}
# A variable by itself, and two together.
_GROUP = {"tasmax": DEMO["biasadjust"]["variables"]["tasmax"], "joint": {"method": "MBCn", "variables": ["dtr", "pr"]}}
_JOINT = {"joint": {"method": "MBCn", "variables": ["tasmax", "dtr", "pr"]}}
# Three jobs: of the simulation, and of an ensemble that has no other.
_OUTCOMES = {
    "indicators": {"module": str(CONFIG / "indicators.yml"), "datasets": ["scenario"]},
    "ensembles": {"processing_levels": ["indicators"]},
}
CHANGES = {
    "slurm": {**TWO_BANDS, **_ONE_DOMAIN, "biasadjust__variables": _GROUP, **_OUTCOMES},
    "sge": {
        **of_source("Demo-360Day"),
        **_ONE_DOMAIN,
        "custom__regions": {"middle": _WIDE},
    },
}
# Dask's workers of a job: several are processes of their own, among which blocks travel.
WORKERS = {rule: 2 if rule in (tasks.Regrid, tasks.CleanUp) else 1 for rule in rules()}
# On Slurm, all ways in which a job can go: Dask's workers as jobs of their own, and on two nodes of their job; tasks in
# arrays, in steps, and all others in pilots.
WAYS = {
    tasks.CleanUp: "cluster = jobqueue\n",
    tasks.Regrid: "cluster = allocation\nnodes = 2\n",
    tasks.RefDefault: "pack = 2\nbundle = steps\n",
    tasks.ReferenceCalendar: "pack = 4\nbundle = array\n",
    tasks.Adjust: "pack = 3\nbundle = steps\n",
}
PILOTS = "pack = 6\npack_at_once = 2\nbundle = pilot\n"
# Before that, the tasks below the simulation's raw files, as steps of an allocation.
IN_ALLOCATION = {tasks.InputCheck, tasks.Extract}
SIMULATION = "CMIP6_ScenarioMIP_ESPO-DEMO_Demo-360Day_ssp585_r1i1p1f1_global"


class Made(NamedTuple):
    """The folder of a finished run on a cluster, its exit code and its log; of `every` rule, or up to the product."""

    engine: str
    every: bool
    folder: Path
    code: int
    said: str


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_raw(tmp_path_factory.mktemp("shape") / "raw")


@contextmanager
def on_cluster(engine: str) -> Iterator[tuple[Mapping[str, str], str]]:
    """The environment of a cluster's commands, and further options of its section of luigi.cfg."""
    if engine == "slurm":
        with ThrowawayCluster.start(ClusterSpec(nodes=2, cpus=4)) as cluster:
            yield cluster.environ, f"max_jobs = 8\nnode_memory = 4GB\n{PILOTS}"
    else:
        # Its `h_vmem` limits what a process maps, beyond what it uses.
        with ThrowawayGridEngine.start() as cluster:
            yield cluster.environ, "max_jobs = 3\nnode_memory = 8GB\nqueue = main.q"


def changes(engine: str, every: bool) -> dict[str, object]:
    return CHANGES[engine] | ({} if every else {"biasadjust__variables": _JOINT})


def root(every: bool) -> EspoTask:
    return tasks.All() if every else tasks.ConcatenationFinal(sim_id=SIMULATION)


def make_by_command(
    folder: Path, raw: Path, engine: str, every: bool, options: str, environ: Mapping[str, str]
) -> Made:
    """Make the demo in many chunks, with a single simulation, by the command, as jobs of a cluster."""
    config = " ".join(map(str, write_config(folder, raw, **{**SHAPE, **MANY, **changes(engine, every)})))
    ways = {} if engine == "sge" else WAYS if every else WAYS | {tasks.RefDefault: PILOTS}
    (folder / "luigi.cfg").write_text(
        "[core]\nworkers = 500\nlog_level = WARNING\nno_lock = true\n"
        f"[espo]\nengine = {engine}\nworkdir = run\nconfig = {config}\n"
        f"[{engine}]\nnode_cpus = 2\npoll_seconds = 1\nresult_seconds = 1\n{options}\n"
        "[worker]\nwait_interval = 0.5\n[retcode]\ntask_failed = 30\nscheduling_error = 35\n"
        + "".join(
            f"[{rule.__name__}]\nn_workers = {n}\ncpus_per_task = {n}\n{ways.get(rule, '')}"
            for rule, n in WORKERS.items()
        )
    )
    luigi = [str(Path(sys.executable).parent / "luigi"), "--module", "espo_luigi.tasks", "--local-scheduler"]
    salloc = ["salloc", "--cpus-per-task=2", "--mem=4G", "--time=30"]
    first = [*salloc, *luigi, "Extract", "--sim-id", SIMULATION, "--espo-engine", "allocation"]
    last = [*luigi, "All"] if every else [*luigi, "ConcatenationFinal", "--sim-id", SIMULATION]
    code = 0
    with (folder / "stderr").open("w") as stderr:
        for command in [first, last] if engine == "slurm" else [last]:
            code = code or subprocess.call(command, cwd=folder, env=environ, stderr=stderr, timeout=1400)
    return Made(engine, every, folder, code, (folder / "stderr").read_text()[-4000:])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("slurm", False), id="slurm"),
        pytest.param(("sge", False), id="sge", marks=pytest.mark.sge),
        pytest.param(("slurm", True), id="every rule on slurm", marks=pytest.mark.long),
        pytest.param(("sge", True), id="every rule on sge", marks=[pytest.mark.sge, pytest.mark.long]),
    ],
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, raw: Path) -> Made:
    engine, every = request.param
    with on_cluster(engine) as (environ, options):
        return make_by_command(tmp_path_factory.mktemp("run"), raw, engine, every, options, environ)


@pytest.fixture(scope="module")
def in_one_chunk(tmp_path_factory: pytest.TempPathFactory, raw: Path, made: Made) -> Mapping[str, Path]:
    """What is kept, made in this process in a single chunk."""
    folder = tmp_path_factory.mktemp("one")
    use(write_config(folder, raw, **{**SHAPE, **ONE, **changes(made.engine, made.every)}), folder)
    with two_threads():
        return products(work_through(root(made.every), lambda task: task.work()), folder / "final")


def test_the_demo_ends_well_with_its_products_one_attempt_a_job_and_nothing_temporary(made: Made) -> None:
    assert made.code == 0, made.said
    folder = made.folder
    use([folder / "config.yml", folder / "paths.yml"], folder)
    graph = list(Graph([root(made.every)]))
    if made.every:
        report = {tasks.Summaries, tasks.NotCalibrated, tasks.FlagDetails, tasks.Report}
        outcomes = {tasks.Indicators, tasks.Climatology, tasks.Ensemble} if made.engine == "slurm" else set()
        assert {type(task) for task in graph} - {tasks.All} - outcomes == set(rules()) - report - OTHER_RULES
        assert outcomes <= {type(task) for task in graph}
    kept = [info for task in graph for info in kept_by(task)]
    assert kept
    assert [info.path for info in kept if not info.target.exists()] == []
    # What is temporary may be wanted above the product.
    assert not made.every or list((folder / "work").iterdir()) == []
    records = list(RecordStore(folder / "run" / "scheduler").all())
    without = Counter(type(task) for task in graph if isinstance(task, SlurmTask))
    without -= Counter(getattr(tasks, record.rule) for record in records)
    assert set(without) == (IN_ALLOCATION if made.engine == "slurm" else set())
    bundled = {getattr(tasks, record.rule) for record in records if record.bundle}
    # Those of a rule of each kind of bundle that always become ready together.
    together = {tasks.RefDefault, tasks.ReferenceCalendar} | ({tasks.ConcatenationDiag} if made.every else set())
    assert bundled >= together if made.engine == "slurm" else not bundled
    assert {(record.submission, record.attempt) for record in records} == {(1, 1)}


def test_its_jobs_make_the_same_bytes(made: Made, in_one_chunk: Mapping[str, Path]) -> None:
    assert made.code == 0, made.said
    assert any(name.startswith("final/NAM/") for name in in_one_chunk)
    for name, path in in_one_chunk.items():
        assert_same(made.folder / "final" / name, path)
