"""The capacity that a plan assumes for jobs, by engine, and the memory that it expects."""

from collections.abc import Callable
from pathlib import Path

import luigi
import numpy as np
import pytest
import xarray as xr
from complete_demo import DAY360, NOLEAP, in_order
from luigi.configuration import get_config

from espo_luigi import store, tasks
from espo_luigi.commands import cli
from espo_luigi.jobs import srun as allocation
from espo_luigi.jobs.order import write_json
from espo_luigi.jobs.resources import GIB, render_size
from espo_luigi.jobs.schedulers.slurm_parse import Allocation
from espo_luigi.overview import dag
from espo_luigi.overview.plan import Plan, plan_of
from espo_luigi.overview.plan_text import as_json, render_plan
from espo_luigi.overview.timing import TimedTask, timing
from espo_luigi.store.inventory import read_inventory
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import context
from espo_luigi.tasks.cost import Basis, measured

LIMITS = {"time": "60", "memory": "6GB", "cpus_per_task": "4", "n_workers": "1"}


@pytest.fixture()
def regrids(complete_demo: Path, monkeypatch: pytest.MonkeyPatch) -> list[tasks.Regrid]:
    """Those of the demo, the only tasks that are to run, each an hour on 4 CPUs with 6 GiB."""
    monkeypatch.delitem(measured()["rules"], "Regrid")
    get_config().read_dict({"Regrid": LIMITS})
    found = [task for task in in_order(tasks.All()) if isinstance(task, tasks.Regrid)]
    for task in found:
        store.remove(Path(str(task.output()[0])))
    assert len(found) == 6
    return found


def planned(section: str = "espo", **values: str) -> Plan:
    get_config().read_dict({section: values})
    luigi.task_register.Register.clear_instance_cache()
    return plan_of(["Regrid"], Selection())


def hours_and_most(plan: Plan) -> tuple[float, int]:
    told = as_json(plan)
    return told["wall_seconds"] / 3600, told["most_jobs_at_once"]


def test_memory_is_room_as_well_as_cpus_and_workers() -> None:
    steps = {str(number): TimedTask(1, {"cpus": 1, "memory": 6}) for number in range(4)}
    assert timing(steps, {}, {"cpus": 4, "memory": 8}).seconds == 4
    assert timing(steps, {}, {"cpus": 4, "memory": 12}).seconds == 2
    thirds = {str(number): TimedTask(1, {"workers": 1, "jobs": 1 / 3}) for number in range(12)}
    assert timing(thirds, {}, {"workers": 500, "jobs": 2}).most_at_once == 6
    assert timing(thirds, {}, {"workers": 4, "jobs": 2}).most_at_once == 4


def test_on_this_machine_tasks_wait_for_memory_too(regrids: list[tasks.Regrid]) -> None:
    assert hours_and_most(planned(local_cpus="24", local_memory="60GB")) == (1, 6)
    assert hours_and_most(planned(local_cpus="24", local_memory="12GB")) == (3, 2)
    assert "on 24 CPU(s) and 12.0 GiB here" in render_plan(planned())
    assert hours_and_most(planned("core", workers="1")) == (6, 1)


def test_a_bundle_is_one_job_and_workers_limit_too(regrids: list[tasks.Regrid]) -> None:
    get_config().set("espo", "engine", "slurm")
    assert hours_and_most(planned("slurm", max_jobs="2")) == (3, 2)
    assert hours_and_most(planned("Regrid", pack="3")) == (3, 2), "members of a pilot take turns"
    assert hours_and_most(planned("Regrid", bundle="steps")) == (1, 6)
    assert hours_and_most(planned("Regrid", pack_at_once="1")) == (3, 2)
    get_config().remove_option("Regrid", "pack_at_once")
    assert hours_and_most(planned("core", workers="3")) == (2, 3)
    assert "max_jobs = 2, [core] workers = 3" in render_plan(planned())


def test_an_allocation_is_the_room_inside_of_it_and_outside_that_is_not_known(
    regrids: list[tasks.Regrid], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    plan = planned(engine="allocation", local_cpus="2", local_memory="2GB")
    costs = [one.cost for one in plan.tasks.values() if one.cost is not None]
    assert {(cost.cpus, cost.memory_bytes, cost.seconds) for cost in costs} == {(4, 6 * GIB, 3600.0)}
    assert (as_json(plan)["wall_seconds"], as_json(plan)["most_jobs_at_once"]) == (None, None)
    said = render_plan(plan)
    assert "wall time: not known" in said and "the longest chain takes at most 60 min" in said and "CPU(s)" not in said
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setattr(allocation, "allocation_of", lambda *_: Allocation("COMPLETING"))
    assert "77 is COMPLETING, expected RUNNING" in render_plan(planned())
    nodes = {"n1": (8, 2**14), "n2": (4, 2**14)}
    monkeypatch.setattr(allocation, "allocation_of", lambda *_: Allocation("RUNNING", "", nodes))
    plan = planned()
    assert hours_and_most(plan) == (2, 3)
    assert "12 CPU(s) and 32.0 GiB of allocation 77" in render_plan(plan)


def test_memory_is_scaled_for_larger_tasks_than_those_it_was_learnt_from(regrids: list[tasks.Regrid]) -> None:
    regions = {str(task.piece): task for task in regrids}
    small, large = regions["south"], regions["middle"]
    assert large.work_size() / small.work_size() == pytest.approx(1.75 / 0.75)

    def learn(task: tasks.Regrid, peak: int) -> None:
        order = task.order()
        times = {"started": 0.0, "ended": 60.0, "peak_memory_bytes": peak, "size": order.size}
        write_json(order.files.result, {"family": "Regrid", "outcome": "success", "parameters": {}, **times})

    def expected() -> dict[str, tuple[int, Basis]]:
        costs = {task_id: one.cost for task_id, one in planned(local_cpus="24", local_memory="60GB").tasks.items()}
        found = {name: costs[task.task_id] for name, task in regions.items()}
        return {name: (cost.memory_bytes, cost.memory_basis) for name, cost in found.items() if cost is not None}

    learn(small, 10**9)
    assert expected()["south"] == (10**9, Basis.JOBS)
    assert expected()["middle"] == (pytest.approx(1.75 / 0.75 * 10**9), Basis.LIMITS)
    assert "<2.33 GB" in render_plan(planned())
    learn(small, 4 * 10**9)
    assert expected()["middle"] == (6 * GIB, Basis.LIMITS)
    learn(small, 8 * 10**9)
    assert expected()["middle"] == (8 * 10**9, Basis.LIMITS)
    learn(large, 2 * 10**9)
    assert expected() == dict.fromkeys(("south", "middle", "north"), (8 * 10**9, Basis.JOBS))


def test_one_simulation_is_drawn_task_by_task_however_many_there_are(
    configured: Callable[..., list[Path]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configured()
    monkeypatch.setattr(dag, "MOST_NODES", 3)
    one, other = list(context().simulations)[:2]
    of_one = plan_of([], Selection(sims=one))
    for sims, boxes in ((one, set(of_one.tasks)), (f"{one},{other}", {each.rule for each in of_one.tasks.values()})):
        assert cli.main(["plan", "--sim-id", sims, "--dag", "mermaid"]) == 0
        assert capsys.readouterr().out.count("[") == len(boxes)
    assert len(of_one.tasks) > 40


def test_a_plan_tells_the_peak_within_the_limit_of_scratch_and_without_it(
    configured: Callable[..., list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    configured()
    get_config().read_dict({"espo": {"local_cpus": "500", "local_memory": "9000GB", "scratch_limit": "1TB"}})

    def everything() -> Plan:
        luigi.task_register.Register.clear_instance_cache()
        return plan_of([], Selection())

    account = everything().scratch
    assert account is not None
    uses = dict(account.uses)
    need = uses.pop("").bytes + max(use.bytes for use in uses.values())
    assert len(uses) == 2
    wide = everything().timing()
    assert need < sum(use.bytes for use in uses.values())

    get_config().set("espo", "scratch_limit", f"{need}B")
    limited = everything()
    told = as_json(limited)
    assert told["temporary_bytes_at_once"] < told["temporary_bytes_at_once_without_limit"] == wide.temporary_bytes
    assert told["temporary_bytes_at_once"] <= need
    assert limited.timing().seconds > wide.seconds
    assert f"within scratch_limit = {need}B; at most {render_size(wide.temporary_bytes)} without" in render_plan(
        limited
    )

    get_config().set("espo", "keep_temporary", "true")
    kept = render_plan(everything())
    assert "keep_temporary = true" in kept
    assert "cannot start; " in kept

    get_config().set("espo", "scratch_limit", f"{need - 1}B")
    assert cli.main(["plan"]) == 1
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("PROBLEM")]
    assert f"[espo] scratch_limit = {need - 1}B, but" in said
    assert f"alone needs {render_size(need)} for temporary stores" in said


def test_stores_and_what_writers_have_begun_count_as_they_lie_on_the_disk(
    configured: Callable[..., list[Path]],
) -> None:
    configured()
    found = [task for task in in_order(tasks.All()) if isinstance(task, tasks.Regrid)]
    (whole,), (begun,) = (task.temporary_paths() for task in found[:2])
    marker = found[0].marker()
    store.write_store(xr.Dataset({"pr": ("time", np.arange(500.0))}), whole, marker)
    partial = begun.parent / f".{begun.name}.elsewhere-12-0123abcd.partial"
    (partial / "c").mkdir(parents=True)
    (partial / "c" / "0").write_bytes(b"x" * 700)
    inventory = read_inventory(whole)
    assert inventory is not None
    assert tasks.Regrid.scratch_on_disk(found) == [inventory.size_bytes, 700, *[0] * (len(found) - 2)]


def test_a_task_belongs_to_its_pool_and_the_references_tasks_to_none(configured: Callable[..., list[Path]]) -> None:
    configured()
    groups = {task.get_task_family(): set[str]() for task in in_order(tasks.All())}
    for task in in_order(tasks.All()):
        groups[task.get_task_family()].add(task.scratch_group())
    both = {NOLEAP, DAY360}
    assert groups["Extract"] == groups["Train"] == groups["HealthChecks"] == both
    assert groups["RefDefault"] == groups["ReferenceCalendar"] == {""}


def test_only_archives_of_diagnoses_are_read_so_that_stores_which_were_packed_go_at_once(
    configured: Callable[..., list[Path]],
) -> None:
    configured()
    read = {
        (type(task).__name__, type(need).__name__)
        for task in in_order(tasks.All())
        if isinstance(task, EspoTask)
        for need in task.reads_temporary(task.deps())
    }
    assert {("Train", "Regrid"), ("Adjust", "Train"), ("ConcatenationFinal", "CleanUp")} <= read
    packers = {"OffDiagRefProp", "OffDiagSimPropMeas", "ConcatenationFinal", "Move"}
    assert not [pair for pair in read if pair[1] in packers]
