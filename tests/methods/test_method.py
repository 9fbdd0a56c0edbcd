"""Methods of others: a name becomes a method, and methods of every shape train and adjust."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from demo_runs import use, write_config
from pydantic import Field

from espo_luigi import tasks
from espo_luigi.config import load
from espo_luigi.errors import ConfigurationError
from espo_luigi.methods import blocks
from espo_luigi.methods.base import AdjustingSection, Array, Block, Method, Setup, Step, TrainingSection, method_named
from espo_luigi.science.quality import days_of


class AddedSpread(AdjustingSection):
    """Arguments of `Together`."""

    spread: float = Field(default=0.0, description="a constant that is added")


class Together(Method):
    """Move each variable by the bias of the sum of all variables."""

    Adjusting = AddedSpread
    variables_together = True

    def layout(self, setup: Setup) -> dict[str, Array]:
        """A bias for each cell."""
        return {"bias": Array({})}

    def train(self, block: Block, setup: Setup) -> xr.Dataset:
        """The bias of the sum, of series with different units."""
        assert "units" not in block["reference"].attrs
        bias = (block["reference"].mean("time") - block["historical"].mean("time")).sum("variable")
        return bias.to_dataset(name="bias")

    def adjust(self, block: Block, trained: xr.Dataset, setup: Setup) -> xr.Dataset:
        """Add it."""
        moved = block["simulation"] + trained["bias"] + setup.adjusting["spread"]
        return moved.to_dataset(name="scenario")

    def steps(
        self, block: Block, trained: xr.Dataset, setup: Setup, day: int, member: int = 0, variable: str = ""
    ) -> list[Step]:
        """The bias, and the value moved by it."""
        made = self.adjust(block, trained, setup)["scenario"][list(setup.units).index(variable), ..., day]
        bias, unit = float(trained["bias"].squeeze()), setup.units[variable]
        return [Step("bias", bias, unit), Step("moved", float(made.squeeze()), unit)]


class Counting(Together):
    """A method of several variables that counts days, which no product could tell apart."""

    counts = ("moved",)


class CountingALot(Method):
    """A method with more counts than a byte has bits."""

    counts = tuple(f"kind_{place}" for place in range(9))


class Monthly(Method):
    """Move each month's mean to the reference's, which is looked at while adjusting."""

    trains = False
    needs_reference_to_adjust = True
    counts = ("moved",)

    def adjust(self, block: Block, trained: xr.Dataset, setup: Setup) -> xr.Dataset:
        """Move."""
        means = [block[name].groupby("time.month").mean() for name in ("reference", "historical")]
        moved = block["simulation"].groupby("time.month") + (means[0] - means[1])
        days = xr.ones_like(moved.drop_vars("month"), dtype=np.uint8)
        return xr.Dataset({"scenario": moved.drop_vars("month"), "treated": days})


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {
        "together": f"{__name__}:Together",
        "counting": f"{__name__}:Counting",
        "countingalot": f"{__name__}:CountingALot",
        "monthly": f"{__name__}:Monthly",
        "broken": "nowhere_at_all:Method",
        "function": f"{__name__}:series",
    }
    points = tuple(metadata.EntryPoint(name, value, "espo_luigi.methods") for name, value in places.items())
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)


def series(seed: int, first: int = 2001, last: int = 2004) -> xr.Dataset:
    """Two variables of three cells."""
    time = xr.date_range(f"{first}-01-01", f"{last}-12-31", calendar="noleap", use_cftime=True)
    random = np.random.default_rng(seed)
    values = {name: random.normal(280 + seed, 5, (3, time.size)).astype("f4") for name in ("tasmax", "dtr")}
    return xr.Dataset({name: (("loc", "time"), one, {"units": "K"}) for name, one in values.items()}, {"time": time})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("togethr", "expected DetrendedQuantileMapping.*did you mean together"),
        ("broken", "method broken: nowhere_at_all:Method cannot be imported.*nowhere_at_all.*Install"),
        ("function", "expected a subclass of espo_luigi.methods.base.Method"),
        ("counting", "counting counts days .*variables_together.*expected `counts` without"),
        ("countingalot", "countingalot has 9 names in `counts` .*kind_8.*expected at most 8"),
        ("xsdba.Scalin", "did you mean Scaling"),
    ],
)
def test_a_name_that_is_no_method_says_why(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        method_named(name)


def test_xsdbas_names_stand_for_themselves() -> None:
    assert method_named("Scaling").variant == method_named("xsdba.Scaling").variant == "Scaling"


@pytest.mark.parametrize("chunks", [None, {"loc": 1}, {"loc": 2}])
def test_variables_are_adjusted_together_in_any_blocks(chunks: dict[str, int] | None) -> None:
    reference, simulation = (one if chunks is None else one.chunk(chunks) for one in (series(0), series(3, last=2006)))
    training = blocks.train(reference, simulation, method="together", period=[2001, 2004])
    made = blocks.adjust_and_count(simulation, training, periods=[[2001, 2003], [2004, 2006]], spread=1)
    known, given = series(0), series(3, last=2006)
    historical = given.sel(time=slice("2001", "2004"))
    bias = sum(known[name].mean("time") - historical[name].mean("time") for name in ("tasmax", "dtr"))
    for name in ("tasmax", "dtr"):
        np.testing.assert_allclose(made[name], given[name] + bias + 1, rtol=1e-6)
        assert made[name].dtype == np.float32
        assert made[name].attrs["units"] == "K"


def test_variables_together_do_not_depend_on_the_order_of_values_in_memory() -> None:
    """Of a sum in single precision, which rounds off otherwise along another axis."""
    given = {"reference": series(0), "historical": series(3)}
    turned = {name: one.transpose("time", "loc").map(np.ascontiguousarray) for name, one in given.items()}
    made = [blocks.train(*one.values(), method="together", period=[2001, 2004], seed="x") for one in (given, turned)]
    xr.testing.assert_identical(*made)


@pytest.mark.parametrize("variable", ["tasmax", "dtr"])
def test_steps_are_those_of_one_of_the_variables_together(variable: str) -> None:
    reference, simulation = (one.isel(loc=[2]) for one in (series(0), series(3, last=2006)))
    training = blocks.train(reference, simulation, method="together", period=[2001, 2004])
    how = {"periods": [[2001, 2003], [2004, 2006]], "spread": 1}
    made = blocks.adjust_and_count(simulation, training, **how)[variable].sel(time="2005-03-01")
    told = blocks.steps(simulation, training, date="2005-03-01", variable=variable, **how)
    assert [(step.name, step.value) for step in told] == [
        ("bias", float(training["bias"][0])),
        ("moved", float(made.values.squeeze())),
    ]


def test_a_single_array_for_variables_together_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="together takes a dataset of several variables; got a DataArray"):
        blocks.train(series(0)["dtr"], series(1)["dtr"], method="together", period=[2001, 2004])


@pytest.mark.parametrize("chunks", [{}, {"loc": 2}])
def test_a_method_sees_the_reference_while_it_adjusts(chunks: dict[str, int]) -> None:
    reference, simulation = series(0)["dtr"].chunk(chunks), series(3, last=2006)["dtr"].chunk(chunks)
    made = blocks.adjust_and_count(
        simulation,
        method="monthly",
        training_args={"period": [2001, 2004]},
        reference=reference,
        periods=[[2001, 2003], [2004, 2006]],
    ).compute()
    historical = simulation.sel(time=slice("2001", "2004"))
    shift = reference.groupby("time.month").mean() - historical.groupby("time.month").mean()
    expected = simulation.groupby("time.month") + shift
    np.testing.assert_allclose(made["scenario"], expected, rtol=1e-6)
    assert days_of(made["treated"], "dtr")["dtr_days_moved"].values.tolist() == [6 * 365] * 3
    with pytest.raises(ConfigurationError, match="needs the reference to adjust"):
        blocks.adjust_and_count(
            simulation, method="monthly", training_args={"period": [2001, 2004]}, periods=[2001, 2003]
        )


YEARS = {"training_args": {"period": ["1991", "2020"]}, "adjusting_args": {"periods": ["1991", "2020"]}}

PLAIN = {**YEARS, "training_args": {"period": ["1991", "2020"], "group": "time.month"}}


def configured(folder: Path, how: dict[str, Any], **more: Any) -> list[Path]:
    return write_config(folder, folder / "raw", biasadjust__variables={"both": how | more, "pr": PLAIN})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"adjusting_args": {"periods": ["1991", "2020"], "spred": 1}},
            r"both\.adjusting_args\.spred.*config\.yml.*line",
        ),
        (
            {"adjusting_args": {"periods": ["1991", "2020"], "spred": 1}},
            "the method together does not take it; it takes.*spread",
        ),
        ({"variables": []}, "the method together adjusts several variables together; expected `variables"),
        ({"method": "togethr"}, "method is 'togethr'.*did you mean together"),
        ({"method": "monthly"}, "the method monthly adjusts each variable by itself"),
    ],
)
def test_arguments_are_held_against_the_methods_own_models(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    files = configured(tmp_path, {"method": "together", "variables": ["tasmax", "dtr"], **YEARS}, **changed)
    with pytest.raises(ConfigurationError, match=message):
        load(files)


def test_a_group_is_trained_and_adjusted_as_one_task_in_several_pieces(tmp_path: Path) -> None:
    use(configured(tmp_path, {"method": "together", "variables": ["tasmax", "dtr"], **YEARS}), tmp_path)
    reference, simulation = (series(seed, 1991, 2020).chunk({"loc": 2}) for seed in (0, 3))
    bias = sum(
        series(0, 1991, 2020)[one].mean("time") - series(3, 1991, 2020)[one].mean("time") for one in ("tasmax", "dtr")
    )
    for piece in ("south", "north"):
        wildcards = {"pool": "SIM", "piece": piece, "var": "both"}
        training = tasks.Train(**wildcards).compute([reference, reference], [simulation])
        made = tasks.Adjust(**wildcards).compute([training], [simulation], [])
        assert sorted(made.data_vars) == ["dtr", "tasmax"]
        np.testing.assert_allclose(made["dtr"], series(3, 1991, 2020)["dtr"] + bias, rtol=1e-5)


def test_a_method_that_trains_nothing_has_no_training_and_gets_the_reference(tmp_path: Path) -> None:
    groups = {name: {"method": "monthly", **YEARS} for name in ("tasmax", "dtr")} | {"pr": PLAIN}
    use(write_config(tmp_path, tmp_path / "raw", biasadjust__variables=groups), tmp_path)
    task = tasks.Adjust(pool="SIM", piece="south", var="dtr")
    assert task.in_training == []
    assert [port.task.calendar for port in (one() for one in task.in_reference)] == ["noleap", "360_day"]
    reference, simulation = series(0, 1991, 2020), series(3, 1991, 2020)
    made = task.compute([], [simulation], [reference, reference])
    np.testing.assert_allclose(made["dtr"].mean("time"), reference["dtr"].mean("time"), rtol=1e-5)


def test_the_training_section_is_the_least_that_methods_take() -> None:
    assert set(TrainingSection.model_fields) == {"period", "align_on"}
