"""Simulations of one experiment are paired; what cannot be compared is refused before anything is submitted."""

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from complete_demo import edit, work
from demo_runs import ONE_REGION, of_years
from luigi.configuration import get_config

from espo_luigi import store, tasks
from espo_luigi.commands.cli import main
from espo_luigi.driver.graph import Graph
from espo_luigi.errors import ConfigurationError, ParameterError
from espo_luigi.methods.perfect_model import Adjustment
from espo_luigi.report.perfect_model import Pair, write_page
from espo_luigi.report.reading import job_results
from espo_luigi.tasks import perfect_model
from espo_luigi.tasks.context import context, forget

Configure = Callable[..., list[Path]]


def test_each_simulation_is_the_truth_in_turn_and_every_piece_is_a_task(configured: Configure) -> None:
    configured()
    one, other = context().simulations
    root = perfect_model.tasks_for(())[0]
    assert {(task.truth, task.sim_id, task.piece) for task in root.requires()} == {
        (truth, sim_id, piece)
        for truth, sim_id in ((one, other), (other, one))
        for piece in ("south", "middle", "north")
    }
    (of_one,) = perfect_model.tasks_for(("Demo-NoLeap",))
    assert {task.truth for task in of_one.requires()} == {one if "NoLeap" in one else other}
    assert not {tasks.Train, tasks.Adjust, tasks.CleanUp} & {type(task) for task in Graph([root])}


def test_other_methods_adjust_the_compared_periods_and_no_windows_of_years() -> None:
    space = {"lower_bound": "0 %", "upper_bound": "100 %", "trans": "logit"}
    train = {"xclim_train_args": {"kind": "+", "nquantiles": 50}, "group": "time", "additive_space": space}
    train |= {"small_amounts": {"thresh": "1 %"}}
    adjust = {"xclim_adjust_args": {"interp": "nearest"}, "moving_yearly_window": {"window": 30, "step": 10}}
    given = Adjustment(("hurs",), "DetrendedQuantileMapping", train, adjust)
    by_rank, scaled = (perfect_model.by_method(of, given, [(2001, 2030)]) for of in ("QuantileDeltaMapping", "Scaling"))
    assert by_rank.training["additive_space"] == space and {*scaled.training} == {"xclim_train_args", "group"}
    assert all("moving_yearly_window" not in how.adjusting for how in (by_rank, scaled))
    assert by_rank.adjusting["periods"] == [(2001, 2030)]


def test_only_simulations_of_one_experiment_are_paired_and_those_of_one_model_are_the_control(
    configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured()
    run = context()
    one, other = run.simulations
    assert not perfect_model.is_control(run, one, other)
    columns = dict(run.simulation(one).columns)
    both = {one: columns, other: {**columns, "experiment": "ssp126"}}
    monkeypatch.setattr(run, "simulation", lambda sim_id: type("Match", (), {"columns": both[sim_id]}))
    assert perfect_model.is_control(run, one, other)
    assert perfect_model.pairs(run, "all") == []


def methods_of(variable: str) -> dict[str, Adjustment]:
    """How each method of the comparison adjusts a variable."""
    return {
        label: how
        for label, several in perfect_model.adjustments(context()).items()
        for how in several
        if variable in how.variables
    }


def test_the_configured_method_keeps_its_arguments_and_others_take_those_that_they_know(configured: Configure) -> None:
    configured(perfect_model={"methods": ["QDM", "EQM"]})
    found = methods_of("pr")
    assert list(found) == ["adjusted", "Scaling", "QDM", "EQM"]
    adjusted, by_rank, scaled = (found[label] for label in ("adjusted", "QDM", "Scaling"))
    assert adjusted.method == "DetrendedQuantileMapping" and "detrend" in adjusted.adjusting["xclim_adjust_args"]
    assert by_rank.method == "QuantileDeltaMapping" and by_rank.shared["engine"] == "auto"
    assert by_rank.training["xclim_train_args"] == {"kind": "*", "nquantiles": 50} and "adapt_freq" in by_rank.training
    assert by_rank.adjusting["xclim_adjust_args"] == {"interp": "nearest", "extrapolation": "constant"}
    assert by_rank.adjusting["periods"] == [(1991, 2020), (2041, 2070), (2071, 2100)]
    assert scaled.training["xclim_train_args"] == {"kind": "*"} and "adapt_freq" not in scaled.training


def test_a_label_that_is_the_configured_method_whole_is_not_computed_twice(configured: Configure) -> None:
    configured(perfect_model={"methods": ["DQM", "QDM"]})
    assert list(perfect_model.adjustments(context())) == ["adjusted", "Scaling", "QDM"]


IBICUS = {"method": "ibicus.LinearScaling", "training_args": {"period": ["1991", "2020"]}}


def test_further_methods_are_the_configured_ones_or_have_usual_settings(configured: Configure) -> None:
    pytest.importorskip("ibicus", reason="needs the package ibicus: pip install -e '.[test]'")
    methods = ["DQM", "QDM", "EQM", "ibicus.CDFt"]
    own = {**IBICUS, "adjusting_args": {"periods": ["1950", "2100"]}}
    configured(perfect_model={"methods": methods}, biasadjust__variables__pr=own)
    of_pr, of_tasmax = methods_of("pr"), methods_of("tasmax")
    assert list(of_pr) == ["adjusted", "Scaling", *methods]
    assert of_tasmax["DQM"] == of_tasmax["adjusted"] and of_pr["adjusted"].method == IBICUS["method"]
    assert of_pr["DQM"].training["xclim_train_args"]["adapt_freq_thresh"] == "1 mm d-1"
    assert of_pr["DQM"].adjusting["periods"] == ("1950", "2100"), "a trend needs all years"
    compared = (("1991", "2020"), ("2041", "2070"), ("2071", "2100"))
    for label in ("QDM", "EQM", "ibicus.CDFt"):
        assert [tuple(map(str, one)) for one in of_pr[label].adjusting["periods"]] == list(compared), label
        assert tuple(of_pr[label].training["period"]) == ("1991", "2020")
    assert of_pr["QDM"].adjusting["xclim_adjust_args"]["rank_window"] is True
    assert of_tasmax["ibicus.CDFt"].method == "ibicus.CDFt" and of_pr["Scaling"].training["group"]["window"] == 31


def test_it_is_planned_with_its_page_and_nothing_is_written(
    configured: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configured()
    assert main(["perfect-model", "--plan"]) == 0
    rows = {words[0]: words[1:3] for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert rows["PerfectPair"] == ["-", "6"] and rows["PerfectModel"] == ["-", "1"] and "Train" not in rows
    assert not (tmp_path / "final").exists() and not (tmp_path / "run").exists()


def test_espo_why_and_espo_script_know_its_tasks(configured: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    configured()
    one, other = context().simulations
    get_config().set("espo", "engine", "slurm")
    assert main(["why", "PerfectModel"]) == 0
    answer = capsys.readouterr().out
    assert "a run of All would not make it" in answer and "/perfect-model+all.html` makes it" in answer
    assert main(["why", "PerfectPair", "south"]) == 1
    assert f"2 tasks are PerfectPair south, expected one; such as:\n  PerfectPair truth={one} sim_id={other}" in (
        capsys.readouterr().err
    )
    assert main(["script", "PerfectPair", "--truth", one, "--sim-id", other, "--piece", "south"]) == 0
    assert "#SBATCH --mem=102400M\n" in capsys.readouterr().out


# Fifty years of a single region.
SHORT = {
    **of_years(1991, 2040),
    **ONE_REGION,
    "perfect_model": {"cells": 2, "periods": [[2021, 2040]]},
}


def regridded(seed: int, calendar: str, warmer: float) -> xr.Dataset:
    """Daily series of 1991-2040 of three cells, as `Regrid` publishes them."""
    draws = np.random.default_rng(seed)
    time = xr.date_range("1991-01-01", "2040-12-30", calendar=calendar, use_cftime=True)
    shape, season = (3, time.size), 10 * np.sin(2 * np.pi * np.arange(time.size) / (time.size / 50))
    made = {
        "tasmax": (285 + warmer + season + draws.normal(0, 3, shape), "K"),
        "dtr": (draws.gamma(4, 2, shape), "K"),
        "pr": (np.maximum(draws.gamma(0.5, 8, shape) - 1, 0) / 86400, "kg m-2 s-1"),
    }
    data = {name: (("loc", "time"), values.astype("float32"), {"units": unit}) for name, (values, unit) in made.items()}
    return xr.Dataset(data, {"time": time, "lat": ("loc", [45.0, 45, 46]), "lon": ("loc", [-66.0, -65, -65])})


def test_a_run_compares_each_pair_in_a_job_and_goes_on_where_it_stopped(
    configured: Configure, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    configured(**SHORT)
    one, other = context().simulations
    for sim_id, calendar, warmer in ((one, "noleap", 0.0), (other, "360_day", 4.0)):
        task = tasks.Regrid(sim_id=sim_id, piece="south")
        store.write_store(regridded(len(calendar), calendar, warmer), task.out_regridded().path, task.marker())
    assert main(["perfect-model"]) == 0
    page = Path(capfd.readouterr().out.split()[-1])
    assert page == tmp_path / "final" / "report" / "perfect-model+all.html"
    assert (
        "Pairs of different models: daily maximum temperature" in page.read_text()
        and "could not be drawn" not in page.read_text()
    )
    done = list(job_results(tmp_path / "run"))
    assert Counter(result["family"] for result in done) == {"PerfectPair": 2, "PerfectModel": 1}
    pair = tasks.PerfectPair(truth=one, sim_id=other, piece="south")
    errors = store.open_store(pair.out_errors().path).sel(variable="tasmax", property="mean", period="2021-2040")
    assert errors["adjustment"].values.tolist() == ["raw", "adjusted", "Scaling"] and errors.sizes["cell"] == 2
    np.testing.assert_allclose(errors["level"].sel(adjustment="raw"), 4, atol=0.6)
    np.testing.assert_allclose(errors["level"].sel(adjustment=["adjusted", "Scaling"]), 0, atol=0.6)

    store.remove(pair.out_errors().path)
    assert main(["perfect-model"]) == 0
    before = {result["started"] for result in done}
    again = [result["family"] for result in job_results(tmp_path / "run") if result["started"] not in before]
    assert sorted(again) == ["PerfectModel", "PerfectPair"]


@pytest.mark.production
def test_both_ways_are_compared_on_withheld_years_of_the_reference(configured: Configure, tmp_path: Path) -> None:
    section = {"grid": 0.5, "method": "QPLAD", "arguments": {"years": 4}, "variables": {"tasmax": {"method": "BCSD"}}}
    of_both = {**of_years(1991, 1998, 1991, 1994), **ONE_REGION, "downscaling": section}
    configured(**of_both, perfect_model={"cells": 20, "periods": [[1995, 1998]]})
    (root,) = perfect_model.tasks_for(("reference",))
    assert {task.task_family for task in root.requires()} == {"WithheldYears"}
    (of_all,) = perfect_model.tasks_for(())
    assert {task.task_family for task in of_all.requires()} == {"PerfectPair", "WithheldYears"}
    work(root)
    errors = store.open_store(tasks.WithheldYears().out_errors().path).load()
    assert (
        sorted(errors["way"].values) == ["BCSD", "MBCnSD", "QPLAD", "default"] and errors.attrs["years"] == "1993-1994"
    )
    assert sorted(errors["variable"].values) == ["dtr", "pr", "tasmax"]
    assert errors["error"].sel(variable="pr").notnull().all() and errors["across"].any()
    assert np.isnan(errors["error"].sel(variable="dtr", measure="wet_days")).all()
    page = (tmp_path / "final" / "report" / "perfect-model+reference.html").read_text()
    assert page.count("Within noise") == page.count("data:image/png") == 3 and "could not be drawn" not in page


def test_without_downscaling_there_are_no_two_ways(configured: Configure) -> None:
    configured()
    with pytest.raises(ParameterError, match="downscaling"):
        perfect_model.tasks_for(("reference",))


@pytest.mark.long
def test_a_pair_of_two_calendars_is_compared_with_mbcn_of_all_variables_and_shown(
    configured: Configure, tmp_path: Path
) -> None:
    configured(**{**SHORT, "perfect_model": {"cells": 2, "periods": [[2021, 2040]], "methods": ["MBCn"]}})
    one, other = context().simulations
    pair = tasks.PerfectPair(truth=one, sim_id=other, piece="south")
    errors = pair.compute(regridded(1, "noleap", 0.0), regridded(2, "360_day", 4.0)).load()
    assert errors["adjustment"].values.tolist() == ["raw", "adjusted", "Scaling", "MBCn"]
    names = context().config.biasadjust.adjusted
    joint = [*map(", ".join, itertools.combinations(names, 2)), f"energy {', '.join(names)}"]
    assert sorted(errors["joint"].values) == sorted(joint) and errors["dependence"].notnull().all()
    np.testing.assert_allclose(errors["level"].sel(adjustment="MBCn", variable="tasmax", property="mean"), 0, atol=0.6)
    store.write_store(errors, pair.out_errors().path, pair.marker())
    write_page([Pair(one, other, False, (pair.out_errors().path,))], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert f"Rank correlation {joint[0]}" in page and "≈</td>" in page and "could not be drawn" not in page


def test_a_single_simulation_is_refused(configured: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    configured(perfect_model={"simulations": ["Demo-NoLeap"]})
    assert main(["perfect-model"]) == 1
    assert "1 simulation(s) take part, of ssp585" in capsys.readouterr().err


def test_a_period_outside_of_the_adjusted_years_is_refused(configured: Configure) -> None:
    configured(perfect_model={"periods": [[2041, 2070], [2081, 2110]]})
    with pytest.raises(ConfigurationError, match=r"`perfect_model.periods`: got 2081-2110, .* 1950-2100"):
        perfect_model.tasks_for(())


def test_a_period_in_the_gap_of_two_stretches_is_refused(configured: Configure) -> None:
    config = configured(perfect_model={"periods": [[2010, 2050]]})[0]

    def change(content: dict[str, Any]) -> None:
        content["custom"]["sim_period"] = [["1950", "2020"], ["2041", "2100"]]
        for one in content["biasadjust"]["variables"].values():
            one["adjusting_args"]["periods"] = [["1950", "2020"], ["2041", "2100"]]

    edit(config, change)
    with pytest.raises(ConfigurationError, match=r"`perfect_model.periods`: got 2010-2050, .* 1950-2020, 2041-2100"):
        perfect_model.tasks_for(())


def test_a_method_of_several_variables_takes_all_or_the_configured_group(configured: Configure) -> None:
    files = configured(perfect_model={"methods": ["MBCn", "DQM"]})
    (of_all,) = perfect_model.adjustments(context())["MBCn"]
    assert of_all.variables == context().config.biasadjust.adjusted and len(of_all.variables) == 3
    assert set(of_all.training["by_variable"]) == set(of_all.variables)
    assert [tuple(map(int, one)) for one in of_all.adjusting["periods"]] == [(1991, 2020), (2041, 2070), (2071, 2100)]
    assert "moving_yearly_window" not in of_all.adjusting

    def change(content: dict[str, Any]) -> None:
        own = content["biasadjust"]["variables"]
        content["biasadjust"]["variables"] = {
            "pr": own["pr"],
            "heat": {"method": "MBCn", "variables": ["tasmax", "dtr"], "training_args": {"n_iter": 3}},
        }

    edit(files[0], change)
    forget()
    found = perfect_model.adjustments(context())
    assert [how.variables for how in found["adjusted"]] == [("pr",), ("tasmax", "dtr")]
    assert found["MBCn"] == found["adjusted"][1:] and found["MBCn"][0].training["n_iter"] == 3
    assert found["MBCn"][0].adjusting["periods"] == ("1950", "2100")
    assert [how.variables for how in found["DQM"]] == [("pr",), ("tasmax",), ("dtr",)]
    assert found["DQM"][1].training["group"] == {"group": "time.dayofyear", "window": 31}
    perfect_model.tasks_for(())


def test_a_method_that_cannot_adjust_a_variable_is_refused_before_any_job(configured: Configure) -> None:
    pytest.importorskip("ibicus", reason="needs the package ibicus: pip install -e '.[test]'")
    configured(perfect_model={"methods": ["ibicus.ScaledDistributionMapping"], "periods": [[2041, 2075]]})
    told = "got ibicus.ScaledDistributionMapping, and it has no settings for dtr; it has: "
    with pytest.raises(ConfigurationError, match=f"`perfect_model.methods`: {told}"):
        perfect_model.tasks_for(())


def test_what_the_methods_are_made_of_makes_pairs_stale(configured: Configure) -> None:
    configured()
    one, other = context().simulations
    pair = tasks.PerfectPair(truth=one, sim_id=other, piece="south")
    assert {"biasadjust.variables.pr.method", "biasadjust.variables.pr.variables"} <= set(pair.reading())
    assert "variables.*.kind" not in pair.reading()
    configured(perfect_model={"methods": ["DQM"]})
    assert "variables.*.kind" in tasks.PerfectPair(truth=one, sim_id=other, piece="south").reading()


def test_a_domain_without_land_is_refused(configured: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    configured()
    monkeypatch.setattr(perfect_model.partition, "pieces", lambda run: [])
    monkeypatch.setitem(context().__dict__, "land_cells", 0)
    with pytest.raises(ConfigurationError, match="NAM has 0 land cells; expected 1 or more"):
        perfect_model.tasks_for(())


def test_regions_in_the_sea_are_refused_before_any_job(
    configured: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    sea = {"name": "south", "method": "bbox", "lon_bnds": [-64.75, -64.5], "lat_bnds": [46.0, 46.75]}
    domains = {name: {**sea, "name": name} for name in ("Highland", "Lowland")}
    configured(**{**SHORT, "custom__regions": {"south": sea}, "off_DASH_diag__domains": domains})
    assert main(["perfect-model"]) == 1
    # Luigi's command sets the log up; in a process where another test has done so, the line is in the log only.
    said = capsys.readouterr().err + caplog.text
    assert "has no land: of the reference's 3 cells" in said and "none has a value" in said
    assert not (tmp_path / "run" / "jobs").exists()


def test_unknown_names_are_refused_with_the_nearest(configured: Configure) -> None:
    configured()
    with pytest.raises(ParameterError, match=r"--truth 'Demo-NoLep' is not one of: .*did you mean .*Demo-NoLeap"):
        perfect_model.tasks_for(("Demo-NoLep",))
    configured(perfect_model={"simulations": ["Demo-NoLep"]})
    with pytest.raises(ParameterError, match=r"`perfect_model.simulations`: 'Demo-NoLep' .*did you mean .*Demo-NoLeap"):
        perfect_model.tasks_for(())
    with pytest.raises(ConfigurationError, match=r"perfect_model.methods"):
        configured(perfect_model={"methods": ["QMD"]})
        context()


def test_a_changed_number_of_cells_makes_pairs_stale_and_other_rules_not(configured: Configure) -> None:
    configured()
    one, other = context().simulations
    pair = tasks.PerfectPair(truth=one, sim_id=other, piece="south")
    store.write_store(xr.Dataset({"level": ("cell", [0.0])}), pair.out_errors().path, pair.marker())
    assert pair.complete() and not pair.stale(files=False)
    before = tasks.Regrid(sim_id=one, piece="south").marker().fingerprints
    configured(perfect_model={"cells": 7})
    again = tasks.PerfectPair(truth=one, sim_id=other, piece="south")
    assert any("perfect_model.cells" in changed for changed in again.stale(files=False))
    assert tasks.Regrid(sim_id=one, piece="south").marker().fingerprints == before


def test_overlapping_periods_are_adjusted_as_one() -> None:
    assert perfect_model.slices([(2041, 2070), (2001, 2030), (2021, 2045), (2071, 2100)]) == [
        (2001, 2070),
        (2071, 2100),
    ]
