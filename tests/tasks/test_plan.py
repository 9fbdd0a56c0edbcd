"""The plan and the cost of a run, before it begins."""

import configparser
import json
import re
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import luigi
import pytest
from complete_demo import NOLEAP, complete_all, in_order, publish, remove, set_key
from luigi.cmdline_parser import CmdlineParser
from luigi.configuration import get_config

from espo_luigi import tasks
from espo_luigi.commands import cli
from espo_luigi.driver.board import FILE, Board
from espo_luigi.driver.graph import Graph
from espo_luigi.errors import CatalogError, ParameterError, UnknownPathError
from espo_luigi.jobs.order import write_json
from espo_luigi.overview import why
from espo_luigi.overview.dag import Node, as_dot, as_mermaid, nodes_of
from espo_luigi.overview.plan import Plan, plan_of
from espo_luigi.overview.plan_text import render_plan
from espo_luigi.overview.states import BLOCKED, DONE, RUN
from espo_luigi.overview.timing import TimedTask, timing
from espo_luigi.tasks import product
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import RunContext, context
from espo_luigi.tasks.cost import Basis, measured
from espo_luigi.tasks.partition import simulations_of

# What follows Adjust, of one region, until a product that is kept.
NEXT = (tasks.CleanUp, tasks.Move)
Configure = Callable[..., list[Path]]
ROOT = Path(__file__).parent.parent.parent
DEMO = configparser.ConfigParser()
DEMO.read(ROOT / "luigi.cfg")


def planned(*rules: str, **narrowed: str) -> Plan:
    luigi.task_register.Register.clear_instance_cache()
    return plan_of(rules, Selection(**narrowed))


def in_state(plan: Plan, state: str) -> set[str]:
    return {task_id for task_id, one in plan.tasks.items() if one.status.in_plan == state}


def first(rule: type[EspoTask], **wildcards: str) -> EspoTask:
    found = (task for task in in_order(tasks.All()) if isinstance(task, rule))
    return next(task for task in found if task.wildcards.items() >= wildcards.items())


def test_a_plan_names_what_a_run_would_do_and_the_output_that_is_missing(complete_demo: Path) -> None:
    assert in_state(planned(), DONE) == {task.task_id for task in in_order(tasks.All())}
    move = first(tasks.Move)
    remove(move)
    plan = planned()
    assert in_state(plan, RUN) == {move.task_id}
    assert plan.tasks[move.task_id].status.why.startswith(f"output missing: {move.out_scenario().path.name}, ")
    remove(move.in_regridded.task)  # type: ignore[attr-defined]
    plan = planned()
    assert in_state(plan, RUN) == {move.task_id, move.in_regridded.task.task_id}
    assert "\nAll tasks to run have a missing output" in render_plan(plan)
    status = plan.tasks[move.task_id].status
    plan.tasks[move.task_id].status = replace(status, why="made of something else: x")
    lines = render_plan(plan).splitlines()
    assert "Move: 1 to run: made of something else (x)" in lines
    assert "All other tasks to run have a missing output; `--tasks` names it." in lines
    move.out_scenario().path.mkdir()
    assert "it is no folder with a marker" in planned().tasks[move.task_id].status.why


def test_a_plan_tells_what_is_stale_by_which_key_and_what_rerun_would_make_again(
    complete_demo: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
) -> None:
    # It opens the reference's grid, which has nothing in it here.
    monkeypatch.setattr(product, "_look_where_pieces_meet", lambda _: None)

    set_key(complete_demo / "config.yml", "clean_up.xscen_clean_up.round_var.pr", 8)
    assert cli.main(["plan"]) == 0
    # Temporary stores are there, too.
    out = capsys.readouterr().out
    (said,) = re.findall(r"^stale: (.*): clean_up\.xscen_clean_up changed since$", out, re.MULTILINE)
    diagnosed = {"4 OffDiagScenPropMeas", "4 DiagMeasuresImprovement"}
    assert diagnosed | {"6 CleanUp", "2 ConcatenationFinal", "2 HealthChecks", "6 Move"} <= {*said.split(", ")}
    assert "was made of something else" not in log.text, "the plan itself says so"
    plan = planned()
    again = {one.task.task_id for one in plan.tasks.values() if one.rule in ("CleanUp", "HealthChecks")}
    assert again <= plan.again and in_state(plan, RUN) == set()
    assert plan.tasks[first(tasks.HealthChecks).task_id].status.changed == ("clean_up.xscen_clean_up",)
    assert cli.main(["plan", "--rerun", "stale", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    to_run = [one for one in told["tasks"] if one["state"] == RUN]
    rules = {one["rule"] for one in to_run}
    assert len(to_run) == len(plan.again) and rules >= {"CleanUp", "Move", "OffDiagScenPropMeas"}
    assert {one["reason"] for one in to_run} == {"changed: clean_up.xscen_clean_up"}


def test_a_sizing_error_blocks_its_rule_and_what_follows_and_is_the_exit_code(
    complete_demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = first(tasks.Train)
    adjusted, move = first(tasks.Adjust, **training.wildcards), first(tasks.Move, piece=str(training.piece))
    remove(training, adjusted, adjusted)
    remove(*(task for task in in_order(tasks.All()) if isinstance(task, tasks.CleanUp | tasks.Move)))
    get_config().set("Train", "n_workers", "5")
    plan = planned()
    assert cli.main(["plan"]) == 1
    reason = plan.tasks[training.task_id].status.why
    assert "equally by n_workers = 5" in reason
    assert plan.tasks[adjusted.task_id].reason == f"needs {training.label()}: {reason}"
    assert plan.tasks[move.task_id].status.in_plan == BLOCKED
    out = capsys.readouterr().out
    problem, blocks = out.splitlines()[:2]
    assert problem == f"PROBLEM  {reason}" and out.count("cannot be shared equally") == 1
    count = len(plan.of(BLOCKED))
    label = training.label()
    assert blocks.strip() == (f"It blocks {count} of {len(plan.tasks)} tasks: {label}, and {count - 1} later tasks.")
    assert re.search(r"^\d+ tasks: .*; luigi starts nothing before the problems are solved$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("narrowed", "rules"),
    [
        ({"until": "Regrid"}, {"Regrid", "ReferenceCalendar", "RefDefault", "Extract", "InputCheck"}),
        ({"only": "Train", "pieces": "south"}, {"Train", "Regrid", "ReferenceCalendar"}),
        ({"first": "DiagMeasuresImprovement"}, {"DiagMeasuresImprovement", "OffDiagSimPropMeas"}),
    ],
)
def test_a_run_is_narrowed_by_its_rules(configured: Configure, narrowed: dict[str, str], rules: set[str]) -> None:
    configured()
    ends = Selection(**narrowed).ends(Graph(tasks.All().everything()))
    assert {task.task_family for task in Graph(ends)} >= rules
    last = {narrowed.get("until"), narrowed.get("only")} - {None}
    assert {task.task_family for task in ends} == (last or {"DiagMeasuresImprovement"})


def test_before_the_first_rule_nothing_is_run(complete_demo: Path, log: pytest.LogCaptureFixture) -> None:
    one, other = first(tasks.Train, piece="south", var="pr"), first(tasks.Train, piece="north", var="pr")
    remove(one, other, other.in_regridded[0].task)  # type: ignore[attr-defined]
    plan = planned(only="Train")
    assert in_state(plan, RUN) == {one.task_id}
    regridded = other.in_regridded[0].task  # type: ignore[attr-defined]
    lacking = "outputs of rules before Train are missing: give --until Train in place of --only"
    assert plan.tasks[other.task_id].reason == f"needs {regridded.label()}: {lacking}"
    text = render_plan(plan)
    assert text.startswith(f"PROBLEM  {lacking}\n")
    assert re.search(rf"tasks: {re.escape(regridded.label())}, and 1 later task\.\n", text)
    assert "luigi starts nothing" not in text
    luigi.task_register.Register.clear_instance_cache()
    part = tasks.All(only="Train")
    assert one in part.requires() and other not in part.requires()
    assert not part.covers_everything and tasks.All().covers_everything
    assert f"what needs {regridded} is left out: {lacking}" in log.text


def test_lines_of_tasks_that_are_longer_than_the_terminal_go_on_below_beside_the_states(complete_demo: Path) -> None:
    remove(first(tasks.Train, piece="south", var="pr"))
    plan = planned()
    wide, narrow = (render_plan(plan, each=True, width=width).split("\n\n")[1] for width in (10_000, 100))
    assert len(wide.splitlines()) == len(plan.tasks) < len(narrow.splitlines())
    columns = {match.start(1) for line in wide.splitlines() if (match := re.match(r"\w+ +\w+ +(\w+=)", line))}
    assert len(columns) == 1, "parameters stand below each other"
    assert max(map(len, narrow.splitlines())) <= 100
    begun = [line for line in narrow.splitlines() if line[0] != " "]
    assert len(begun) == len(plan.tasks) and narrow.split() == wide.split()


def test_a_problem_of_many_tasks_is_said_once_and_the_report_is_to_run_because_of_what_it_shows(
    complete_demo: Path, with_report: None
) -> None:
    complete_all()
    assert in_state(planned(), RUN) == set()
    move = first(tasks.Move)
    remove(move)
    plan = planned()
    assert in_state(plan, RUN) == {move.task_id, tasks.Report().task_id}
    named = {info.path.name for info in (move.out_scenario(), move.out_regridded())}
    reason = plan.tasks[tasks.Report().task_id].status.why
    assert reason.startswith("not about what is there now: ") and set(reason.partition(": ")[2].split(", ")) == named
    remove(*(task for task in in_order(tasks.All()) if isinstance(task, tasks.Regrid | tasks.Train)))
    text = render_plan(planned(only="Train"))
    assert re.search(r" It blocks \d+ of \d+ tasks: 6 Regrid, and 18 later tasks\.\n", text)
    assert text.count("PROBLEM") == 1


def test_a_wrong_name_in_the_search_is_said_once_and_first(
    configured: Configure, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = configured()[0]

    set_key(config, "custom.ref_period", ["1981", "2010"])
    assert cli.main(["plan"]) == 1
    told = capsys.readouterr()
    assert (told.out + told.err + caplog.text).count("files cover") == 1
    first_line, blocks = told.out.splitlines()[:2]
    assert first_line.startswith(
        "PROBLEM  nothing found. ESPO-DEMO_Demo-Land_NAM: tasmax, tasmin, pr: files cover 66.7%"
    )
    assert "(there are pr, tasmax, tasmin)" in first_line
    assert re.match(r" +It blocks \d+ of \d+ tasks: \d+ RefDefault, .* later tasks\.$", blocks)
    said = why.why(["Train", "south", "pr", "NoLeap"])
    assert "RefDefault" in said.splitlines()[0] and said.splitlines()[1].endswith(first_line.removeprefix("PROBLEM  "))


def test_a_wrong_source_of_the_reference_is_said_once_though_costs_need_it_too(
    configured: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured()[0]

    set_key(config, "extraction.reference.search_data_catalogs.other_search_criteria.source", "Elsewhere")
    assert cli.main(["plan"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("PROBLEM  nothing found: no row has source") and out.count("nothing found") == 1
    assert "cells of 0.1 degrees are assumed" in out


def test_a_simulation_that_the_search_drops_is_named_below_the_table(
    configured: Configure, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configured()[0]

    set_key(config, "extraction.simulation.search_data_catalogs.exclusions", {"path": "^.*pr_.*360Day"})
    assert cli.main(["plan"]) == 0
    (dropped,) = context().dropped
    assert "360Day" in dropped and NOLEAP in context().simulations
    last = capsys.readouterr().out.split("\n\n")[-1].splitlines()
    said = "LEFT OUT: 1 of the catalogue's simulations, for reasons that the warnings name: "
    assert last[1] == f"{said}{dropped}"
    assert cli.main(["plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == {dropped: "pr is missing (there are tasmax, tasmin)"}


def test_a_run_is_narrowed_to_simulations_and_to_regions_with_what_they_need(complete_demo: Path) -> None:
    sim_id = next(iter(context().simulations))
    of_sim = planned(sims=sim_id)
    assert {name for one in of_sim.tasks.values() for name in simulations_of(one.task)} == {sim_id}
    assert {one.rule for one in of_sim.tasks.values()} > {"HealthChecks", "Move", "OffDiagScenPropMeas", "RefDefault"}
    of_region = planned(pieces="south, north")
    assert {getattr(one.task, "piece", "south") for one in of_region.tasks.values()} == {"south", "north"}
    rules = {one.rule for one in of_region.tasks.values()}
    assert not rules & {"ConcatenationFinal", "HealthChecks", "OffDiagScenPropMeas"}


@pytest.mark.parametrize(
    ("narrowed", "ends"),
    [
        ({"first": "HealthChecks"}, {"FlagDetails"}),
        ({"sims": NOLEAP}, {"FlagDetails", "NotCalibrated", "DiagMeasuresImprovement"}),
        ({"until": "Report"}, {"Report"}),
        ({"only": "Report"}, {"Report"}),
        ({"first": "Report"}, {"Report"}),
    ],
)
def test_a_part_of_a_run_is_without_the_report_unless_it_is_named(
    configured: Configure, narrowed: dict[str, str], ends: set[str]
) -> None:
    configured()
    get_config().set("espo", "report", "true")
    assert {task.task_family for task in tasks.All().requires()} > {"Report", "Move"}
    found = {task.task_family for task in Selection(**narrowed).ends(Graph(tasks.All().everything()))}
    assert found >= ends and ("Report" in found) == ("Report" in ends)
    with pytest.raises(ParameterError, match=f"no task is all of that: --until Report, --sim-id {NOLEAP}"):
        Selection(until="Report", sims=NOLEAP).ends(Graph(tasks.All().everything()))


@pytest.mark.parametrize(
    ("narrowed", "said"),
    [
        ({"first": "Trian"}, r"there is no rule Trian here\. Did you mean Train\? `espo rules` lists them\."),
        ({"until": "Config"}, r"there is no rule Config here\."),
        ({"until": "Rechunk"}, r"the rule Rechunk has gone; its work is done by Regrid\. Name that\."),
        ({"until": "Swap"}, "All runs no Swap with this configuration; it runs Adjust, CleanUp, .*Train"),
        ({"only": "PerfectPair"}, "All runs no PerfectPair with .*; `espo perfect-model --plan` plans it"),
        ({"sims": "-NoLaep"}, r"--sim-id '-NoLaep' is not one of: .*; did you mean \S+_Demo-NoLeap_ssp585_\S+\?"),
        ({"sims": "Demo-"}, r"--sim-id 'Demo-' is a part of 2 names; expected a part of one: .*360Day\S+, .*NoLeap\S+"),
        ({"pieces": "sooth"}, r"--piece 'sooth' is not one of: middle, north, south; did you mean south\?"),
        ({"only": "Train", "until": "Adjust"}, "--only excludes --from and --until"),
        ({"until": "ReferenceCalendar", "first": "Adjust"}, "no task is all of that: --from Adjust, --until Ref"),
    ],
)
def test_a_part_that_is_none_is_refused(configured: Configure, narrowed: dict[str, str], said: str) -> None:
    configured()
    with pytest.raises(ParameterError, match=said):
        Selection(**narrowed).ends(Graph(tasks.All().everything()))


def test_luigis_command_takes_the_same_words() -> None:
    words = shlex.split("--module espo_luigi.tasks All --from Train --until Adjust --sim-id A,B --region south")
    with CmdlineParser.global_instance(words) as parsed:
        assert parsed.get_task_obj().selection == Selection("Train", "Adjust", "", "A,B", pieces="south")


@pytest.mark.parametrize("words", ["All --until Train", "Train --piece south --var pr", "Extract"])
def test_a_part_of_a_simulations_id_makes_the_same_task_as_the_whole(configured: Configure, words: str) -> None:
    configured()
    made = {}
    for sim_id in (NOLEAP, "NoLeap_", "Demo-", "NoLaep"):
        with CmdlineParser.global_instance([*words.split(), "--sim-id", sim_id]) as parsed:
            made[sim_id] = parsed.get_task_obj()
    whole, part, ambiguous, unknown = made.values()
    assert whole.task_id == part.task_id and NOLEAP in map(str, part.param_kwargs.values())
    asks = "deps" if words.startswith("All") else "check"
    with pytest.raises(ParameterError, match=f"--sim-id 'Demo-' is a part of 2 names; .*{NOLEAP}"):
        getattr(ambiguous, asks)()
    with pytest.raises(ParameterError, match=rf"--sim-id 'NoLaep' is not one of: .*; did you mean {NOLEAP}\?"):
        getattr(unknown, asks)()


def result_of(task: EspoTask, seconds: float, cpus: int, **made: int) -> None:
    order = task.order()
    write_json(
        order.files.result,
        {
            "family": order.family,
            "outcome": "success",
            "parameters": {**order.parameters, "cpus_per_task": str(cpus)},
            "started": 1000.0,
            "ended": 1000.0 + seconds,
            "peak_memory_bytes": 3 * 10**9,
            "size": order.size,
            "made": made,
        },
    )


def test_cost_is_learnt_from_jobs_of_the_same_place_or_scaled_by_size_or_else_the_tables(complete_demo: Path) -> None:
    get_config().read_dict({"espo": {"local_cpus": "20", "local_memory": "100GB"}})
    known = first(tasks.Regrid, piece="south")
    rest = [task for task in in_order(tasks.All()) if isinstance(task, tasks.Regrid)]
    result_of(known, 100.0, 4, files=10, bytes=10**6)
    remove(*rest, *(task for task in in_order(tasks.All()) if isinstance(task, tasks.Train)))
    costs = {task_id: one.cost for task_id, one in planned("Train").tasks.items() if one.cost is not None}
    at = {str(task.piece): costs[task.task_id] for task in rest}
    # Regrid asks for 9 CPUs, no more than half of the 20. The middle is 1.75 degrees high, the south 0.75.
    assert at["south"].seconds == pytest.approx(400 / 9) and at["south"].basis == Basis.JOBS
    assert at["middle"].core_hours == pytest.approx(400 / 3600 * 1.75 / 0.75)
    assert at["middle"].size_bytes == pytest.approx(10**6 * 1.75 / 0.75)
    assert (at["south"].memory_bytes, at["south"].memory_basis) == (3 * 10**9, Basis.JOBS)
    assert (at["middle"].memory_bytes, at["middle"].memory_basis) == (pytest.approx(7 * 10**9), Basis.LIMITS)
    training = costs[first(tasks.Train).task_id]
    assert training.basis == training.memory_basis == Basis.TABLE
    assert 0 < training.seconds < 60 and 0 < training.memory_bytes < 2 * 10**9


def test_cost_of_a_rule_that_has_not_ended_here_is_learnt_from_another_runs_jobs(
    complete_demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = [task for task in in_order(tasks.All()) if isinstance(task, tasks.Train)]
    regrids = [task for task in in_order(tasks.All()) if isinstance(task, tasks.Regrid)]
    remove(*training, *regrids)
    for task in (training[0], regrids[0]):
        result_of(task, 1000.0, 4)
    here = complete_demo / "run"
    (here / "jobs").rename(tmp_path / "jobs")
    result_of(regrids[0], 500.0, 4)
    before = planned("Train", "Regrid").tasks
    get_config().set("espo", "learn_from", f"{tmp_path} {here}")
    after = planned("Train", "Regrid").tasks
    get_config().set("espo", "learn_from", str(tmp_path / "jobs"))
    assert cli.main(["plan"]) == 1
    unknown, known = before[training[0].task_id].cost, after[training[0].task_id].cost
    assert unknown is not None and known is not None
    assert (unknown.basis, known.basis) == (Basis.TABLE, Basis.JOBS)
    assert known.seconds * known.cpus == pytest.approx(4000.0)
    assert before[regrids[0].task_id].cost == after[regrids[0].task_id].cost, "what was learnt here counts"
    assert f"{tmp_path / 'jobs'} is no work folder of a run" in capsys.readouterr().err


def test_before_any_job_has_ended_the_plan_estimates_every_rule_and_says_by_what(
    configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured()
    get_config().set("espo", "report", "true")
    plan = planned()
    costs = [one.cost for one in plan.tasks.values() if one.cost is not None]
    assert len(costs) == len(plan.tasks) and {cost.basis for cost in costs} == {Basis.TABLE}
    lacking = "outputs of rules before Train are missing: run without --from"
    assert render_plan(planned(first="Train")).startswith(f"PROBLEM  {lacking}\n")
    text = render_plan(plan)
    assert text.splitlines()[0].split()[-2:] == ["longest", "bytes"], "no job has told how many files it makes"
    assert re.search(r"\ncost: about \d+ (s|min) of CPU time reserved.*\nwall time: about \d", text)
    table = measured()
    assert f"~ is an estimate by what jobs took on {table['processor']} on {table['date']}" in text
    assert "0.1 degrees are assumed" not in text

    def gone(run: RunContext) -> float:
        raise CatalogError("the catalogue has gone")

    monkeypatch.setattr(RunContext, "cells_by_area", property(gone))
    assumed = "cells of 0.1 degrees are assumed, as the reference cannot be opened: the catalogue has gone"
    assert assumed in render_plan(planned())


def test_a_plan_says_that_memory_of_the_section_slurm_changes_no_rule(configured: Configure) -> None:
    configured()
    get_config().read_dict({"espo": {"engine": "slurm"}, "slurm": {"memory": "60GB"}})
    assert "[slurm] memory = 60GB changes no job" in render_plan(planned())
    assert "changes no job" in render_plan(planned("Train"))
    get_config().remove_option("slurm", "memory")
    assert "changes no job" not in render_plan(planned())


def test_the_table_gives_way_to_the_limits_of_a_rule_that_it_lacks(
    configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured()
    get_config().read_dict({"Train": {"time": "60", "memory": "1GB"}, "Adjust": {"memory": "300M", "n_workers": "1"}})
    get_config().set("Train", "n_workers", "1")
    monkeypatch.delitem(measured()["rules"], "Train")
    by_rule = {one.rule: one.cost for one in planned("Adjust").tasks.values()}
    training, adjusting = by_rule["Train"], by_rule["Adjust"]
    assert training is not None and adjusting is not None
    assert (training.basis, training.seconds, training.memory_bytes) == (Basis.LIMITS, 3600, 2**30)
    assert (adjusting.basis, adjusting.memory_bytes) == (Basis.TABLE, 300 * 2**20), "no more than it may have"
    assert "no job has ended yet: Train\n" in render_plan(planned("Adjust"))


def test_a_run_takes_as_long_as_its_tasks_wait_for_each_other_and_for_room() -> None:
    one, two = {"cpus": 1}, {"cpus": 2}
    chain = {name: TimedTask(seconds, one) for name, seconds in (("a", 10), ("b", 5), ("c", 7))}
    needs = {"b": ["a"], "c": ["a", "elsewhere"]}
    assert timing(chain, needs, {"cpus": 2}).seconds == 17
    assert timing(chain, needs, {"cpus": 1}).seconds == 22
    wide = {str(number): TimedTask(1, two) for number in range(10)}
    assert (timing(wide, {}, {"cpus": 4}).seconds, timing(wide, {}, {"cpus": 4}).most_at_once) == (5, 2)
    assert timing(wide, {}, {"cpus": 1}).seconds == 10  # a task larger than the capacity runs alone
    held = {"a": TimedTask(1, one, 8.0), "b": TimedTask(1, one, 4.0), "c": TimedTask(1, one, 2.0)}
    assert timing(held, {"b": "a", "c": "b"}, {"cpus": 9}).temporary_bytes == 12
    assert timing({}, {}, {"cpus": 1}).seconds == 0


def test_a_label_of_the_picture_is_text_whatever_it_holds() -> None:
    hostile = 'Train\na"]:::x; click n0 "javascript:x" <img src=x onerror=y>`**b**`\x1b#35;'
    _, node, *rest = as_mermaid({"a": Node(hostile, "done")}).splitlines()
    label = node.removeprefix('  n0["').removesuffix('"]:::done')
    assert node == f'  n0["{label}"]:::done'
    assert not set(label.replace("<br>", "", 1)) & set("\"<>[](){}`*:\x1b'&\\")
    assert re.sub(r"#(\d+);", lambda match: chr(int(match[1])), label.replace("<br>", "\n")) == hostile
    assert [line for line in rest if "click" in line] == []


def test_a_label_with_anything_in_it_stays_one_string_for_graphviz() -> None:
    hostile = 'Train\na"]; x -> y \\'
    node = as_dot({"a": Node(hostile, "done")}).splitlines()[3]
    assert node == r'  n0 [label="Train\na\"]; x -> y \\", fillcolor="#cfe8d5"]'


def test_the_graph_has_every_rule_or_every_task_of_a_simulation(
    complete_demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("espo_luigi.overview.dag.MOST_NODES", 70)
    remove(first(tasks.Move))
    assert cli.main(["plan", "--dag", "mermaid"]) == 0
    text = capsys.readouterr().out
    rules = {task.task_family for task in Graph([tasks.All()])} - {"All"}
    assert set(re.findall(r'\["(\w+)<br>', text)) == rules
    assert re.search(r'"Move<br>5 done, 1 to run"\]:::to_run', text)
    sim_id = next(iter(context().simulations))
    assert cli.main(["plan", "--sim-id", sim_id, "--dag", "dot"]) == 0
    text, plan = capsys.readouterr().out, planned(sims=sim_id)
    assert text.startswith("digraph {") and text.count("[label=") == len(plan.tasks)
    assert text.count(" -> ") == as_mermaid(nodes_of(plan)).count(" --> ") > 0


def test_an_archive_that_a_former_releases_rule_packed_is_complete(complete_demo: Path) -> None:
    properties = first(tasks.OffDiagRefProp)
    publish(properties, replace(properties.marker(), task="MoveRef"))
    assert properties.complete()


def test_why_goes_down_to_the_root_past_what_only_waits(complete_demo: Path) -> None:
    move = first(tasks.Move, piece="south")
    regridded = move.in_regridded.task  # type: ignore[attr-defined]
    remove(move, regridded)
    sim_id = str(move.sim_id)
    luigi.task_register.Register.clear_instance_cache()
    said = why.why(["Move", "south", sim_id])
    assert said.startswith(f"{move.label()} waits for Regrid.\n")
    assert "no driver is running" in said
    order = regridded.order()
    order.write()
    write_json(order.files.result, {"outcome": "error", "exception": "ValueError: no such grid"})
    order.files.log.write_text("it began\nit ended badly\n")
    said = why.why([str(move.out_regridded().path)])
    assert f"{regridded.label()} failed: ValueError: no such grid" in said and "    it ended badly\n" in said
    assert why.why(["OffDiagRefProp", "Highland"]).startswith("OffDiagRefProp diag_domain=Highland was done at 20")
    chunk = regridded.output()[0].path / "pr" / "c" / "0"  # of a store that is not there any more
    assert f"{regridded.label()} failed" in why.why([str(chunk)])
    folder = why.why([str(move.out_regridded().path.parent)])
    assert re.match(r"\S+/regridded: 5 of 6 outputs are there\. The tasks that make them:\n", folder)
    assert re.search(r"^  Move +5 done, 1 to run$", folder, re.MULTILINE)
    with pytest.raises(ParameterError, match=r"2 tasks are Move south, expected one; such as:\n  Move sim_id="):
        why.why(["Move", "south"])
    with pytest.raises(
        ParameterError, match=r"0 tasks are Move souht \(no souht; did you mean south\?\), expected one;"
    ):
        why.why(["Move", "souht"])
    with pytest.raises(ParameterError, match=r" \(no NoLep; did you mean NoLeap\?\)"):
        why.why(["Move", "south", "NoLep"])
    with pytest.raises(UnknownPathError, match=r"no task makes report\.html\n"):
        why.why(["report.html"])


def test_why_tells_of_what_is_not_there_and_not_needed_that_no_run_makes_it(complete_demo: Path) -> None:
    training = first(tasks.Train, piece="south", var="pr")
    reference = first(tasks.ReferenceCalendar, piece="south")
    remove(training, training.in_regridded[0].task, reference)  # type: ignore[attr-defined]
    luigi.task_register.Register.clear_instance_cache()
    for task in (training, reference):
        path = str(task.output()[0])
        said = why.why([path])
        assert f"{task.label()} is not there, and a run of All would not make it" in said
        assert f"`espo make {path}` makes it." in said
    training.order().write()
    write_json(training.order().files.result, {"outcome": "success", "ended": 1763900000.0})
    said = why.why([path_of_training := str(training.output()[0])])
    assert re.search(r" var=pr was done at 2025-11-2\d \d\d:\d\d; its temporary store was deleted because", said)
    assert f"`espo make {path_of_training}` makes it again." in said
    folder = why.why([str(Path(path_of_training).parent)])
    assert re.search(
        r"^  Train +(1 not needed any more, 17 done|17 done, 1 not needed any more)$", folder, re.MULTILINE
    )
    remove(first(tasks.Adjust, **training.wildcards), *(first(rule, piece="south") for rule in NEXT))
    luigi.task_register.Register.clear_instance_cache()
    assert "give the command of the run again" in why.why([str(training.output()[0])])
    with pytest.raises(ParameterError, match=r"there is no rule Trian here\. Did you mean Train\?"):
        why.why(["Trian", "south"])


def test_the_training_of_a_period_that_the_reference_lacks_is_blocked_though_stores_of_another_are_there(
    complete_demo: Path,
) -> None:
    training = first(tasks.Train)
    remove(training, first(tasks.Adjust, **training.wildcards), *(first(rule, **place(training)) for rule in NEXT))

    set_key(complete_demo / "config.yml", "custom.ref_period", ["1981", "2010"])
    one = planned().tasks[training.task_id]
    assert one.status.in_plan == BLOCKED
    assert "1991-01-01" in one.status.why and "1981" in one.status.why


def test_without_a_change_nothing_is_asked_of_the_references_catalogue(
    complete_demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(run: RunContext) -> None:
        raise CatalogError("the catalogue has gone")

    monkeypatch.setattr(RunContext, "reference", gone)
    training = first(tasks.Train)
    remove(training)
    training.check()

    set_key(complete_demo / "config.yml", "custom.ref_period", ["1992", "2020"])
    luigi.task_register.Register.clear_instance_cache()
    with pytest.raises(CatalogError, match="the catalogue has gone"):
        first(tasks.Train).check()


def test_why_does_not_tell_of_all_while_a_driver_makes_something_else(complete_demo: Path) -> None:
    training = first(tasks.Train, piece="south", var="pr")
    remove(training)
    state = Board().snapshot() | {"updated": time.time(), "ended": False}
    write_json(complete_demo / "run" / FILE, state)
    assert "waits for its turn" in why.why([str(training.output()[0])])


def place(training: EspoTask) -> dict[str, str]:
    """The wildcards of the tasks that follow a training, by simulation."""
    (sim_id,) = simulations_of(training)
    return {"sim_id": sim_id, "piece": training.wildcards["piece"]}


def before(graph: str) -> dict[str, set[str]]:
    """The rules that must be made before each rule, near and far, of a graph in Mermaid's language."""
    names = dict(re.findall(r'^  (n\d+)\["(\w+)<br>', graph, re.MULTILINE))
    edges = [(names.get(a, a), names.get(b, b)) for a, b in re.findall(r"^  (\w+) --> (\w+)$", graph, re.MULTILINE)]
    found = {name: {a for a, b in edges if b == name} for edge in edges for name in edge}
    for middle in found:
        for name in found:
            found[name] |= found[middle] if middle in found[name] else set()
    return found


def test_the_graph_of_a_plan_has_the_order_of_the_page_of_rules(configured: Configure) -> None:
    configured()
    get_config().set("espo", "report", DEMO["espo"]["report"])
    page = (ROOT / "docs" / "reference" / "rules.md").read_text()
    drawn = before(as_mermaid(nodes_of(planned())))
    assert drawn == {rule: needed & drawn.keys() for rule, needed in before(page).items() if rule in drawn}
    assert len(drawn) == 25
