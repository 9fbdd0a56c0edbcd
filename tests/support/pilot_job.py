"""A pilot whose members are jobs of `node_job`: pilot_job.py PLAN."""

import sys
from pathlib import Path

import node_job

from espo_luigi.jobs.bundles.pilot import run_members


def _run(job_file: Path) -> int:
    sys.argv[1:] = [str(job_file)]
    return node_job.main()


if __name__ == "__main__":
    sys.exit(run_members(Path(sys.argv[1]), _run))
