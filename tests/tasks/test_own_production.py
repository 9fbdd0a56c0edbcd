"""A stranger's production, whose package is the how-to page's: its paths, ends and names, chosen by its name."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from complete_demo import NOLEAP, in_order
from luigi.configuration import LuigiConfigParser

from espo_luigi import tasks
from espo_luigi.export.drs import load_drs
from espo_luigi.overview.plan import plan_of
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.context import RunContext, context
from espo_luigi.tasks.make import task_for
from espo_luigi.tasks.production import Production

Configure = Callable[..., list[Path]]


@pytest.fixture()
def installed(others_site: Path, monkeypatch: pytest.MonkeyPatch, own_settings: LuigiConfigParser) -> None:
    """The page's package is installed for this process."""
    monkeypatch.syspath_prepend(others_site)
    monkeypatch.delitem(sys.modules, "institute_x", raising=False)


def test_a_stranger_s_production_has_its_own_paths_ends_and_names(
    installed: None, configured: Configure, tmp_path: Path
) -> None:
    configured(production="institute-x")
    product = tasks.ConcatenationFinal(sim_id=NOLEAP).out_final().path
    assert product == tmp_path / f"final/X/ESPO-DEMO/Demo-NoLeap/{NOLEAP}_NAM_1950-2100.zarr.zip"
    assert task_for(product) == tasks.ConcatenationFinal(sim_id=NOLEAP)
    flags = tasks.ConcatenationFinal(sim_id=NOLEAP).out_flags().path
    assert flags == product.with_name(f"flags_{product.name}")
    assert task_for(flags) == tasks.ConcatenationFinal(sim_id=NOLEAP)
    rules = {planned.rule for planned in plan_of((), Selection()).tasks.values()}
    assert {"YearlyRain", "HealthChecks", "Move"} <= rules
    assert sum(task.get_task_family() == "YearlyRain" for task in in_order(tasks.All())) == 2
    assert "institute-x" in tasks.ConcatenationFinal(sim_id=NOLEAP).marker().versions
    assert load_drs(context().production.drs).description == "Scenarios of institute X"


@pytest.mark.parametrize("facet", ["source", "driving", "member"])
def test_a_path_may_name_any_facet_without_the_institution(
    facet: str, configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured()
    monkeypatch.setattr(
        type(context().production), "templates", {"ConcatenationFinal.out_final": f"{{final}}/{{{facet}}}/x.zarr"}
    )
    expected = context().config.paths.final / context().facets(NOLEAP)[facet] / "x.zarr"
    assert tasks.ConcatenationFinal(sim_id=NOLEAP).out_final().path == expected


def test_a_production_that_only_names_pools_has_the_members_that_it_put_into_them(configured: Configure) -> None:
    configured()

    class Pooled(Production):
        def pool_of(self, run: RunContext, sim_id: str) -> str:
            return "all"

    context().__dict__["production"] = made = Pooled(context().config)
    assert list(made.members(context(), "all")) == list(context().simulations)
