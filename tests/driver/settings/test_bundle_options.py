"""The places that set how many tasks of a rule share a job, and the refusals before anything is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import luigi
import pytest
from luigi.configuration import get_config

from espo_luigi import Resources, SlurmTask
from espo_luigi.driver.run import preview
from espo_luigi.driver.settings.sections import SECTIONS
from espo_luigi.errors import SubmissionError
from espo_luigi.jobs.bundles import Bundling
from espo_luigi.jobs.engine import fitted
from espo_luigi.jobs.lifecycle.submit import bundling_of
from espo_luigi.jobs.resources import ARRAY, PILOT, STEPS


class Packed(SlurmTask):
    n = luigi.IntParameter(default=1)
    resources_default = Resources(n_workers=1, cpus_per_task=4, memory="30GB", time="60")


def say(section: str, **values: str) -> None:
    get_config().read_dict({section: values})


def bundling(task: Packed) -> Bundling:
    chosen = SECTIONS["slurm"]().batch_settings()
    return bundling_of(fitted(task.order("slurm"), chosen), chosen)


def test_a_task_goes_alone_unless_its_section_the_cluster_or_a_profile_says_otherwise(tmp_path: Path) -> None:
    assert bundling(Packed()).most == 1
    (tmp_path / "profile.yml").write_text("pack: 4\nbundle: array\nstep_options: {}\n")
    say("slurm", profile=str(tmp_path / "profile.yml"))
    assert bundling(Packed()) == Bundling(ARRAY, 4)
    say("slurm", bundle="pilot")
    say("Packed", pack_at_once="2")
    assert bundling(Packed(pack="8")) == Bundling(PILOT, 8, at_once=2)


def test_members_take_turns_in_a_pilot_unless_an_option_of_steps_is_given() -> None:
    assert bundling(Packed(pack="8")) == Bundling(PILOT, 8)
    assert bundling(Packed(pack="8")).width == 1
    assert bundling(Packed(pack="8", pack_per_step="2")) == Bundling(STEPS, 8, per_step=2)


def test_what_runs_at_once_fits_the_nodes(tmp_path: Path) -> None:
    say("slurm", node_memory="100GB", pack="8", bundle="steps")
    assert bundling(Packed()).width == 3


def test_the_script_of_a_bundle_can_be_seen() -> None:
    script = preview(Packed(pack="3", gres="gpu:1", step_options={"gpu-bind": "none"}))
    assert "#SBATCH --gres=gpu:3" in script and "#SBATCH --mem=" in script
    assert script.count("--gpu-bind=none bash -- ") == 3


@pytest.mark.parametrize(
    ("given", "limits", "words"),
    [
        ({"pack": "some"}, "{}", "pack = some: expected a whole number"),
        ({"pack": "4", "bundle": "steps"}, "{memory: 100GB}", "4 at once: memory = .* is more than the 100GB"),
        ({"pack": "4", "bundle": "steps"}, "{cpus: 8}", "pack = 4, 4 at once: cpus = 16 is more than the 8"),
        ({"pack": "4", "bundle": "steps", "pack_at_once": "1"}, "{steps: 3}", "steps = 4 is more than the 3"),
    ],
)
def test_what_cannot_be_had_is_refused(tmp_path: Path, given: Mapping[str, str], limits: str, words: str) -> None:
    from espo_luigi.jobs.engine import BatchEngine
    from espo_luigi.jobs.schedulers import SCHEDULERS

    (tmp_path / "profile.yml").write_text(f"limits: {limits}\n")
    say("slurm", profile=str(tmp_path / "profile.yml"))
    used = BatchEngine(SCHEDULERS["slurm"], SECTIONS["slurm"]().batch_settings())
    try:
        with pytest.raises(SubmissionError, match=words):
            used.check([Packed(**given).order("slurm")])
    finally:
        used.close()
