"""Seconds from a command's start to its end, with N trivial jobs on a real Slurm: bare, ours and Snakemake.

``python benchmarks/slurm_overhead.py --jobs 500 [--python-jobs 50] [--only bare,ours]``. Real: Slurm with accounting
(the throw-away cluster of `throwaway_slurm.py`, whose nodes are this machine), its jobs, Luigi, Snakemake.

- bare: one ``sbatch`` after the other, then ``squeue`` every half second until no job is left;
- ours: tasks, worker and Slurm engine as users have them (records on disk, claims, one watcher), but with no limit on
  submissions a second, and with a job that is a shell script: it writes the result file, and starts no Python;
- ours-python: the same with what a job really runs, ``python -m espo_luigi.job``;
- snakemake-slurm: Snakemake with its Slurm executor plugin, as it is by default;
- snakemake-generic: Snakemake with cluster-generic and the profile of the ESPO-G workflow (10 jobs a second).

All jobs share this machine's CPUs with the drivers. The last three start a Python process in every job, which costs
more than anything that they measure, so that Snakemake is compared with ours-python. ``--python-jobs`` makes fewer of
these: then the time that a driver takes to start, and Snakemake's first look at its jobs after 40 s, weigh more.
The memory is the most that a process of
the driver's command had. Snakemake is installed by pip in a virtual environment of its own (``--venv``), which is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import luigi
import measuring
from luigi.configuration import get_config

from espo_luigi import Resources, SlurmTask
from espo_luigi.driver.install import WorkerSchedulerFactory
from espo_luigi.driver.settings import sections

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
from throwaway_slurm import ClusterSpec, ThrowawayCluster

KINDS = ("bare", "ours", "ours-python", "snakemake-slurm", "snakemake-generic")
PACKAGES = ("snakemake", "snakemake-executor-plugin-slurm", "snakemake-executor-plugin-cluster-generic")
JOB = """\
#!/bin/sh
name=${1##*/n=} result=${1%.json}.result.json
: > "out/${name%%-*}.txt"
printf '{"outcome": "success", "job_id": "%s"}' "$SLURM_JOB_ID" > "$result.part" && mv "$result.part" "$result"
"""
SNAKEFILE = """\
rule all:
    input: expand("out/{{i}}.txt", i=range({n}))
rule one:
    output: "out/{{i}}.txt"
    shell: "true > {{output}}"
"""
# The seed's config.v8+.yaml, with the partition, account, time and memory of the throw-away cluster. Its resource
# ``mem`` is ``mem_mb`` here: today's Snakemake renders the former with a blank in it, which sbatch refuses.
PROFILE = """\
executor: cluster-generic
cluster-generic-submit-cmd:
  mkdir -p slurm_logs/{rule} &&
  sbatch
    --partition=main
    --account=science
    --cpus-per-task={threads}
    --mem={resources.mem_mb}
    --job-name={rule}-{wildcards}
    --output=slurm_logs/{rule}/{rule}-{wildcards}-%j.out
    --time={resources.time}
    --parsable
default-resources:
  - mem_mb=300
  - time=5
cluster-generic-status-cmd: ./status-sacct.sh
max-jobs-per-second: 10
max-status-checks-per-second: 10
local-cores: 1
latency-wait: 60
jobs: 500
keep-going: True
rerun-incomplete: True
printshellcmds: True
scheduler: greedy
"""
STATUS = """\
#!/bin/sh
state=$(sacct -j "$1" --format State --noheader --parsable2 --allocations | head -n 1)
case "$state" in
COMPLETED) echo success ;;
RUNNING | PENDING | COMPLETING | CONFIGURING | SUSPENDED | "") echo running ;;
*) echo failed ;;
esac
"""


class Touch(SlurmTask):
    """Make an empty file."""

    n = luigi.IntParameter()
    resources_default = Resources(1, 1, "300MB", "5")
    uses_dask = False

    def output(self) -> luigi.LocalTarget:
        return luigi.LocalTarget(str(Path("out").absolute() / f"{self.n}.txt"))

    def work(self) -> None:
        Path(self.output().path).touch()


def drive(n: int, shell: bool) -> None:
    """Be our driver, in the current folder."""
    Path("out").mkdir()
    configuration = get_config()
    for section, option, value in (
        ("espo", "engine", "slurm"),
        ("espo", "workdir", "work"),
        ("slurm", "max_jobs", str(n)),
        ("slurm", "max_submit_per_second", "1000"),
    ):
        configuration.set(section, option, value)
    if shell:
        Path("job.sh").write_text(JOB)
        sections.JOB_COMMAND = ("/bin/sh", str(Path("job.sh").absolute()))
    result = luigi.build(
        [Touch(n=i) for i in range(n)],
        local_scheduler=True,
        workers=n,
        worker_scheduler_factory=WorkerSchedulerFactory(),
        log_level="ERROR",
        detailed_summary=True,
    )
    assert result.status == luigi.LuigiStatusCode.SUCCESS


def bare(n: int) -> None:
    """Submit `n` jobs one after the other and wait until squeue knows none, in the current folder."""
    Path("out").mkdir()
    for i in range(n):
        words = ["--parsable", "--output=/dev/null", "--cpus-per-task=1", "--mem=300M", "--time=5"]
        subprocess.run(
            ["sbatch", *words, f"--wrap=true > {Path('out').absolute()}/{i}.txt"], check=True, capture_output=True
        )
    while subprocess.run(["squeue", "--noheader"], check=True, capture_output=True).stdout:
        time.sleep(0.5)


def with_srun(cluster: ThrowawayCluster) -> dict[str, str]:
    """Return an environment in which srun finds the cluster: Snakemake's job step drops SLURM_CONF before it."""
    folder = cluster.folder / "shim"
    folder.mkdir(exist_ok=True)
    call = f'SLURM_CONF={cluster.folder}/slurm.conf exec {shutil.which("srun")} "$@"'
    (folder / "srun").write_text(f"#!/bin/sh\n{call}\n")
    (folder / "srun").chmod(0o755)
    modules = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    return cluster.environ | {"PATH": f"{folder}:{cluster.environ['PATH']}", "PYTHONPATH": modules}


def snakemake_command(kind: str, venv: Path, n: int, folder: Path) -> list[str]:
    """Write the Snakefile (and the profile) of `n` jobs in the folder; return the command to run."""
    (folder / "Snakefile").write_text(SNAKEFILE.format(n=n))
    command = [str(venv / "bin" / "snakemake"), "--quiet", "all"]
    if kind == "snakemake-slurm":
        defaults = ["slurm_account=science", "slurm_partition=main", "mem_mb=300", "runtime=5"]
        return [*command, "--executor", "slurm", "--jobs", "500", "--default-resources", *defaults]
    (folder / "profile").mkdir()
    (folder / "profile/config.v8+.yaml").write_text(PROFILE)
    (folder / "status-sacct.sh").write_text(STATUS)
    (folder / "status-sacct.sh").chmod(0o755)
    return [*command, "--profile", "profile"]


def install(venv: Path) -> str:
    """Make the virtual environment with Snakemake, unless it is there; return the versions."""
    python = venv / "bin" / "python"
    if not (venv / "bin" / "snakemake").exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    frozen = subprocess.run([str(python), "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    return " ".join(line for line in frozen.split() if line.split("==")[0] in PACKAGES)


def measure(kind: str, n: int, venv: Path, environ: dict[str, str]) -> dict[str, Any]:
    """Run one kind with `n` jobs in a folder of its own; return what the driver took."""
    with tempfile.TemporaryDirectory(prefix="espo-overhead-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if kind.startswith("snakemake"):
            command = snakemake_command(kind, venv, n, folder)
        else:
            # Not as a script: a job has to be able to import its task's module.
            program = "import slurm_overhead; slurm_overhead.main()"
            command = [sys.executable, "-c", program, "--drive", kind, "--jobs", str(n)]
        taken, _ = measuring.run(*command, cwd=folder, env=environ)
        made = len(list((folder / "out").glob("*.txt")))
    return {"kind": kind, "jobs": n, "made": made, "ms_a_job": 1000 * taken.seconds / n, **taken.rounded()}


def main() -> None:
    """Print the table, then the figures as one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--python-jobs", type=int, help="jobs of the last three kinds; by default as many")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--venv", type=Path, default=Path(tempfile.gettempdir()) / "espo-snakemake-venv")
    parser.add_argument("--drive", choices=KINDS[:3], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        bare(options.jobs) if options.drive == "bare" else drive(options.jobs, options.drive == "ours")
        return
    kinds = options.only.split(",")
    versions = install(options.venv) if any(kind.startswith("snakemake") for kind in kinds) else ""
    rows = []
    with ThrowawayCluster.start(ClusterSpec(nodes=2, cpus=64, accounting=True)) as cluster:
        for kind in kinds:
            n = options.jobs if kind in KINDS[:2] else options.python_jobs or options.jobs
            rows.append(measure(kind, n, options.venv, with_srun(cluster)))
            print(*(f"{name} {value}" for name, value in rows[-1].items()), sep=", ", flush=True)
    each = {row["kind"]: row["ms_a_job"] for row in rows}
    # Like with like: shell with shell, Python with Python.
    pairs = (("ours", "bare"), ("snakemake-slurm", "ours-python"), ("snakemake-generic", "ours-python"))
    ratios = {f"{one} / {other}": each[one] / each[other] for one, other in pairs if {one, other} <= each.keys()}
    print(json.dumps({"rows": rows, "ratios": ratios, "load": os.getloadavg(), "versions": versions}))


if __name__ == "__main__":
    main()
