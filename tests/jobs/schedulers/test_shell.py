"""The bash of the package, as shellcheck judges it: the static files and the scripts rendered from them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import test_sge_text
import test_slurm_text

import espo_luigi
from espo_luigi.jobs.schedulers import gridengine as sge
from espo_luigi.jobs.schedulers import slurm
from espo_luigi.jobs.schedulers.driver_job import render_driver
from espo_luigi.jobs.schedulers.script import shell_text

PACKAGE = Path(espo_luigi.__file__).parent
FILES = sorted(PACKAGE.rglob("*.sh"))
# The bundles' golden files hold several scripts each, and a pilot's list.
BUNDLES = [path.read_text() for path in (Path(__file__).parents[1] / "golden").glob("bundle-*.sh")]
RENDERED = [
    *(slurm.render(values) for values in (test_slurm_text.PLAIN, test_slurm_text.FULL)),
    *(sge.render(values) for values in (test_sge_text.PLAIN, test_sge_text.FULL)),
    render_driver(test_slurm_text.PLAIN, Path("/state/driver-job.json"), "0123456789abcdef"),
    *(part for bundle in BUNDLES for part in re.split(r"\n### .*\n", bundle) if part.startswith("#!")),
]
assert BUNDLES
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
