"""A production is divided into pools of simulations and pieces of land; rules learn their names and members here."""

from collections.abc import Callable
from pathlib import Path

import pytest
from complete_demo import NOLEAP

from espo_luigi import tasks
from espo_luigi.driver.graph import Graph
from espo_luigi.errors import ConfigurationError, ParameterError
from espo_luigi.tasks import partition
from espo_luigi.tasks.context import context

SIM = "a-simulation"


def test_pieces_are_the_configured_regions_from_south_to_north(configured: Callable[..., list[Path]]) -> None:
    configured()
    pieces = partition.pieces(context())
    assert pieces == ["south", "middle", "north"]
    souths = [partition.box_of(context(), piece).lat_bnds[0] for piece in pieces]
    assert souths == sorted(souths)


@pytest.mark.parametrize(
    ("rule", "wildcards", "simulations", "pieces"),
    [
        ("Train", {"pool": SIM, "piece": "south", "var": "pr"}, {SIM}, {"south"}),
        ("Regrid", {"sim_id": SIM, "piece": "south"}, {SIM}, {"south"}),
        ("HealthChecks", {"sim_id": SIM}, {SIM}, set()),
        ("RefDefault", {"piece": "south"}, set(), {"south"}),
    ],
)
def test_a_task_is_about_its_simulation_or_its_pools_members_and_its_piece(
    configured: Callable[..., list[Path]], rule: str, wildcards: dict[str, str], simulations: set[str], pieces: set[str]
) -> None:
    configured()
    task = getattr(tasks, rule)(**wildcards)
    assert (partition.simulations_of(task), partition.pieces_of(task)) == (simulations, pieces)


def test_the_rules_of_a_pool_work_on_its_members_and_those_of_a_member_on_its_pool(
    configured: Callable[..., list[Path]],
) -> None:
    configured()
    pool = partition.pool_of(context(), SIM)
    training = tasks.Train(pool=pool, piece="south", var="pr")
    assert [bound.task for bound in training.in_regridded] == [tasks.Regrid(sim_id=SIM, piece="south")]
    cleaned = tasks.CleanUp(sim_id=SIM, piece="south")
    assert {bound.task.pool for bound in cleaned.in_adjusted} == {pool}


def test_without_off_diag_the_whole_domain_is_diagnosed_and_costs_as_much_as_its_cells_that_are_taken(
    configured: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(**{"off-diag": None})
    assert list(context().domains) == ["whole-NAM"]
    of_domain = {"sim_id": SIM, "diag_domain": "whole-NAM"}
    assert partition.size_of(context(), of_domain) == pytest.approx(partition.size_of(context(), {"sim_id": SIM}))
    half = context().cells_by_area * 3.75  # of 2.5 x 3 degrees squared
    monkeypatch.setattr(partition, "CELLS_OF_A_DOMAIN", half)
    whole = partition.size_of(context(), {"sim_id": SIM})
    assert partition.size_of(context(), of_domain) == pytest.approx(whole / 2)
    prop = tasks.OffDiagRefProp(diag_domain="whole-NAM")
    assert [bound.task.piece for bound in prop.in_reference] == ["south", "middle", "north"]
    assert "variables.*.wet" in prop.reading() and not any("off-diag" in key for key in prop.reading())


def test_a_tasks_size_is_its_pieces_area_times_its_days_and_variables(configured: Callable[..., list[Path]]) -> None:
    configured()
    run = context()
    whole = partition.size_of(run, {"sim_id": SIM})
    by_piece = [partition.size_of(run, {"sim_id": SIM, "piece": piece}) for piece in partition.pieces(run)]
    assert sum(by_piece) == pytest.approx(whole)
    of_a_variable = partition.size_of(run, {"pool": SIM, "piece": "south", "var": "pr"})
    assert of_a_variable * len(run.config.variables) == pytest.approx(by_piece[0])


def test_only_the_archives_that_keep_names_are_made(configured: Callable[..., list[Path]]) -> None:
    for keep, ports in ((["pieces"], ["out_scenario"]), (["regridded"], ["out_regridded"])):
        configured(keep=keep)
        assert [name for name, _ in tasks.Move(sim_id=SIM, piece="south").ports()] == ports
    configured(keep=[])
    rules = {type(task) for task in Graph([tasks.All()])}
    assert tasks.Move not in rules and {tasks.ConcatenationFinal, tasks.OffDiagSimPropMeas, tasks.Regrid} <= rules
    with pytest.raises(ParameterError, match="`keep` is empty; expected `pieces`, `regridded` or both"):
        tasks.Move(sim_id=NOLEAP, piece="south").check()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "institute-y",
            "production is 'institute-y'; expected espo-2024, espo-v2, institute-x, .*; did you mean institute-x",
        ),
        ("no-production", "os:path is <module 'posixpath'.*expected a subclass of .*Production"),
        ("without", "production without: nowhere_at_all:Line cannot be imported .*Install what it needs"),
        ("espo-v2", "`production: espo-v2` cuts the land into slices, and the section `subregions` is absent"),
    ],
)
def test_a_production_that_there_is_not_is_refused_with_those_that_there_are(
    strangers_production: None, configured: Callable[..., list[Path]], name: str, said: str
) -> None:
    configured(production=name)
    with pytest.raises(ConfigurationError, match=said):
        _ = context().production
