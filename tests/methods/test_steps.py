"""The steps of one day against xsdba's own training, trend and adjustment, and the kernels' scenario."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import xarray as xr
from frozen import Answers

from espo_luigi.methods.dqm import quantile_mapping as qm
from espo_luigi.methods.dqm.steps import steps_of_day
from espo_luigi.science.calendar import TimeAxis

pytestmark = pytest.mark.filterwarnings("ignore")
WINDOW, FRACTION = 31, 0.2
# Steps of all seasons, of the first and the last year, and the first and the last day.
STEPS = (0, 1, 58, 59, 195, 364, 1200, 2024, 2500, 3333, 4300, -1)


@dataclass(frozen=True)
class Example:
    """A cell's series and training, and what xsdba makes of them."""

    arguments: Mapping[str, Any]
    training: qm.Training
    simulation: np.ndarray
    trained: xr.Dataset
    trend: np.ndarray
    scenario: np.ndarray
    axis: TimeAxis

    def steps(self, step: int, **changed: Any) -> dict[str, Any]:
        arguments = {**self.arguments, **changed}
        return {one.name: one for one in steps_of_day(self.simulation, self.training, step=step, **arguments)}


def xsdbas(reference: xr.DataArray, simulation: xr.DataArray, kind: str) -> xr.Dataset:
    """What xsdba makes of series of which it knows the first six years: a training, the trend and a scenario."""
    import xsdba

    group = xsdba.Grouper("time.dayofyear", WINDOW)
    train = {"group": group, "nquantiles": 50, "kind": kind}
    six = slice("2000", "2005")
    trained = xsdba.DetrendedQuantileMapping.train(reference.sel(time=six), simulation.sel(time=six), **train)
    loess = xsdba.detrending.LoessDetrend(group=group, kind=kind, f=FRACTION, niter=1, d=0, weights="tricube")
    scenario = trained.adjust(simulation, detrend=loess, interp="nearest", extrapolation="constant")
    scaling = trained.ds.scaling.sel(dayofyear=simulation.time.dt.dayofyear).values
    scaled = simulation.copy(data=simulation.values * scaling if kind == "*" else simulation.values + scaling)
    return trained.ds.assign(trend=loess.fit(scaled).ds.trend, scenario=scenario).load()


@pytest.fixture(scope="module", params=[("noleap", "+"), ("standard", "*")], ids="-".join)
def example(request: pytest.FixtureRequest, answers: Answers) -> Example:
    calendar, kind = request.param
    times = xr.date_range("2000-01-01", "2011-12-31", calendar=calendar, use_cftime=True)
    random = np.random.default_rng(3)
    season = 10 * np.sin(np.arange(times.size) / 58.1)
    values = random.normal(280 + season, 4, (2, times.size)) if kind == "+" else random.gamma(0.7, 4, (2, times.size))
    reference, simulation = (
        xr.DataArray(one.astype("f4"), {"time": times}, ["time"], attrs={"units": "K"})
        for one in (values[0], values[1] * (1.01 if kind == "+" else 1.3) + np.linspace(0, 2, times.size))
    )
    arrays = answers(f"steps-{calendar}", partial(xsdbas, reference, simulation, kind))
    arrays = arrays.transpose(..., "dayofyear", "quantiles")
    axis = TimeAxis.of(simulation)
    plan = qm.plan_adjustment(
        axis.dayofyear, axis.days, window=WINDOW, fraction=FRACTION, n_training_days=arrays.sizes["dayofyear"]
    )
    return Example(
        {"plan": plan, "kind": kind, "units": "K", "levels": arrays["quantiles"].values},
        qm.Training(*(arrays[name].values[np.newaxis] for name in ("af", "hist_q", "scaling"))),
        simulation.values[np.newaxis],
        arrays,
        arrays["trend"].values,
        arrays["scenario"].values,
        axis,
    )


@pytest.mark.parametrize("step", STEPS)
def test_each_step_is_xsdbas(example: Example, step: int) -> None:
    at = step % example.axis.days.size
    found = example.steps(at)
    assert list(found) == ["scaled", "trend", "anomaly", "quantile", "factor", "result"]
    np.testing.assert_allclose(found["trend"].value, example.trend[at], rtol=1e-6)
    np.testing.assert_allclose(found["result"].value, example.scenario[at], rtol=2e-6)
    of_day = example.trained.sel(dayofyear=example.axis.dayofyear[at])
    away = abs(of_day.hist_q - found["anomaly"].value)
    np.testing.assert_allclose(away.sel(quantiles=found["quantile"].value, method="nearest"), away.min(), rtol=1e-4)
    assert found["factor"].value in example.trained.af.values


def test_the_result_is_the_kernels_scenario_bit_for_bit(example: Example) -> None:
    arguments = {name: example.arguments[name] for name in ("plan", "kind")}
    adjusted, _ = qm.adjust(example.simulation, example.training, **arguments)
    assert [example.steps(at)["result"].value for at in range(0, 4000, 97)] == adjusted[0, :4000:97].tolist()


def test_a_value_beyond_the_quantiles_gets_the_factor_of_their_end(example: Example) -> None:
    beyond = replace(example, simulation=example.simulation.copy())
    beyond.simulation[0, 400] = 2000
    found = beyond.steps(400)
    assert found["quantile"].value == float(example.arguments["levels"][-1])
    assert found["quantile"].sentence.startswith("Above all quantiles of day ")
    assert found["factor"].value == example.training.factors[0, int(example.axis.dayofyear[400]) - 1, -1]


def test_a_value_above_its_limit_stays_as_it_is(example: Example) -> None:
    adaptation = replace(qm.Adaptation.none(np.dtype("f4")), limits=np.full((1, 366), np.float32(-1)))
    found = example.steps(400, adaptation=adaptation)
    assert found["result"].value == example.simulation[0, 400]
    assert found["result"].sentence.startswith("Above the limit -1 K")


def test_a_dry_day_that_is_made_wet_is_a_step_of_its_own(example: Example) -> None:
    if example.arguments["kind"] == "+":
        return
    dry = replace(example, simulation=np.where(np.arange(example.simulation.size) % 3, example.simulation, 0))
    dry = replace(dry, simulation=dry.simulation.astype("f4"))
    halves = np.full((1, 366, 1), np.float32(0.5))
    shares = qm.Shares(halves * np.float32(0.2), halves, halves * 4)
    adaptation = qm.Adaptation(1.0, shares, np.array([[7]], np.uint64), np.empty((0, 0), np.float32))
    adjusted, _ = qm.adjust(dry.simulation, dry.training, dry.arguments["plan"], kind="*", adaptation=adaptation)
    steps = [dry.steps(at, adaptation=adaptation) for at in range(0, 300, 3)]
    wet = [found["made wet"].value for found in steps if found["made wet"].sentence.startswith("A dry day")]
    assert 100 > len(wet) > 30 and 1 < min(wet) <= max(wet) < 2
    assert [found["result"].value for found in steps] == adjusted[0, :300:3].tolist()
