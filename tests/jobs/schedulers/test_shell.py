"""The bash of the package, as shellcheck judges it: the static files and the scripts rendered from them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import test_sge_text
import test_slurm_text
from test_bundle_text import ARRAY_OF_FOUR, ONE_GPU_EACH, PILOT_OF_FOUR, TWO_TASKS_A_GPU

import espo_luigi
from espo_luigi.jobs.bundles.slurm import bundled
from espo_luigi.jobs.schedulers import gridengine as sge
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.driver_job import render_driver
from espo_luigi.jobs.schedulers.script import shell_text

PACKAGE = Path(espo_luigi.__file__).parent
FILES = sorted(PACKAGE.rglob("*.sh"))
BUNDLES = [bundled(slurm, values) for values in (ONE_GPU_EACH, TWO_TASKS_A_GPU, ARRAY_OF_FOUR, PILOT_OF_FOUR)]
RENDERED = [
    *(slurm.render(values) for values in (test_slurm_text.PLAIN, test_slurm_text.FULL)),
    *(sge.render(values) for values in (test_sge_text.PLAIN, test_sge_text.FULL)),
    render_driver(test_slurm_text.PLAIN, Path("/state/driver-job.json"), "0123456789abcdef"),
    *(script for bundle in BUNDLES for script in (bundle.script, bundle.members[0])),
]
# Expected in rendered scripts: a sourced file that is not here, a quoted value that holds a literal `$`, and
# Grid Engine's JOB_ID, which shellcheck takes for a misspelt `job_id`.
EXPECTED = "--exclude=SC1090,SC1091,SC2016,SC2153"

needs_shellcheck = pytest.mark.skipif(
    shutil.which("shellcheck") is None, reason="shellcheck is not on the PATH; on Debian: apt-get install shellcheck"
)


@needs_shellcheck
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_shellcheck_finds_nothing_in_a_file(path: Path) -> None:
    done = subprocess.run(["shellcheck", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@needs_shellcheck
@pytest.mark.parametrize("script", RENDERED, ids=range(len(RENDERED)))
def test_shellcheck_finds_nothing_in_a_rendered_script(script: str) -> None:
    command = ["shellcheck", "--shell=bash", EXPECTED, "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_file_is_part_of_a_rendered_script_without_its_head(path: Path) -> None:
    text = shell_text(path)
    assert any(f"{text}\n" in script for script in RENDERED)
    assert "shellcheck" not in text
