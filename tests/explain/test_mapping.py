"""The steps of one day against xsdba's own training, trend and adjustment, and scipy's nearest point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import xarray as xr
from scipy.interpolate import griddata

from espo_luigi.explain import mapping
from espo_luigi.methods.dqm import quantile_mapping as qm
from espo_luigi.methods.dqm.windows import plan_windows
from espo_luigi.science.calendar import TimeAxis

pytestmark = pytest.mark.filterwarnings("ignore")
WINDOW, FRACTION = 31, 0.2
# Steps of all seasons, of the first and the last year, and the first and the last day.
STEPS = (0, 1, 58, 59, 195, 364, 1200, 2024, 2500, 3333, 4300, -1)


@dataclass(frozen=True)
class Example:
    """A cell's steps, and what xsdba makes of the same series."""

    method: mapping.Method
    simulation: np.ndarray
    trained: xr.Dataset
    trend: np.ndarray
    scenario: np.ndarray
    axis: TimeAxis


@pytest.fixture(scope="module", params=[("noleap", "+"), ("standard", "*")], ids="-".join)
def example(request: pytest.FixtureRequest) -> Example:
    import xsdba

    calendar, kind = request.param
    times = xr.date_range("2000-01-01", "2011-12-31", calendar=calendar, use_cftime=True)
    random = np.random.default_rng(3)
    season = 10 * np.sin(np.arange(times.size) / 58.1)
    values = random.normal(280 + season, 4, (2, times.size)) if kind == "+" else random.gamma(0.7, 4, (2, times.size))
    reference, simulation = (
        xr.DataArray(one.astype("f4"), {"time": times}, ["time"], attrs={"units": "K"})
        for one in (values[0], values[1] * (1.01 if kind == "+" else 1.3) + np.linspace(0, 2, times.size))
    )
    group = xsdba.Grouper("time.dayofyear", WINDOW)
    train = {"group": group, "nquantiles": 50, "kind": kind}
    six = slice("2000", "2005")
    trained = xsdba.DetrendedQuantileMapping.train(reference.sel(time=six), simulation.sel(time=six), **train)
    loess = xsdba.detrending.LoessDetrend(group=group, kind=kind, f=FRACTION, niter=1, d=0, weights="tricube")
    scenario = trained.adjust(simulation, detrend=loess, interp="nearest", extrapolation="constant")
    arrays = trained.ds.transpose(..., "dayofyear", "quantiles").load()
    scaling = arrays.scaling.sel(dayofyear=simulation.time.dt.dayofyear).values
    scaled = simulation.copy(data=simulation.values * scaling if kind == "*" else simulation.values + scaling)
    axis = TimeAxis.of(simulation)
    plan = qm.plan_adjustment(
        axis.dayofyear, axis.days, window=WINDOW, fraction=FRACTION, n_training_days=arrays.sizes["dayofyear"]
    )
    known = {name: arrays[name].values for name in ("af", "hist_q", "scaling", "quantiles")}
    return Example(
        mapping.Method(kind, plan, known),
        simulation.values[np.newaxis],
        arrays,
        loess.fit(scaled).ds.trend.values,
        scenario.values,
        axis,
    )


@pytest.mark.parametrize("step", STEPS)
def test_each_step_is_xsdbas(example: Example, step: int) -> None:
    at = step % example.axis.days.size
    found = mapping.correct(example.simulation, example.method, member=0, step=at)
    assert found.dayofyear == example.axis.dayofyear[at]
    np.testing.assert_allclose(found.trend, example.trend[at], rtol=1e-6)
    np.testing.assert_allclose(found.result, example.scenario[at], rtol=2e-6)
    of_factor = example.trained.sel(dayofyear=found.day_of_factor).sel(quantiles=found.level, method="nearest")
    np.testing.assert_array_equal([found.factor, found.quantile], [float(of_factor.af), float(of_factor.hist_q)])


def test_the_nearest_point_is_scipys(example: Example) -> None:
    quantiles, factors = (np.asarray(example.method.training[name], float) for name in ("hist_q", "af"))
    days = len(quantiles)
    rows = np.arange(-1, days + 1)
    points = np.column_stack([quantiles[rows % days].ravel(), np.repeat(rows, quantiles.shape[1])])
    random = np.random.default_rng(5)
    for day in random.integers(0, days, 40):
        value = random.uniform(quantiles[day, 0], quantiles[day, -1])
        expected = griddata(points, factors[rows % days].ravel(), [[value, day]], method="nearest")[0]
        assert mapping.nearest(value, int(day), factors, quantiles).factor == expected


def test_a_value_beyond_the_quantiles_gets_the_factor_of_their_end(example: Example) -> None:
    quantiles, factors = example.method.training["hist_q"], example.method.training["af"]
    above = mapping.nearest(float(quantiles[9, -1]) + 1, 9, factors, quantiles)
    below = mapping.nearest(float(quantiles[9, 0]) - 1, 9, factors, quantiles)
    assert (above.beyond, above.place, above.factor) == ("above", 49, factors[9, 49])
    assert (below.beyond, below.place, below.factor) == ("below", 0, factors[9, 0])


def test_a_value_above_its_limit_stays_as_it_is(example: Example) -> None:
    limits = np.full(len(example.method.training["scaling"]), -1.0)
    kept = mapping.Method(example.method.kind, example.method.plan, example.method.training, tail_limits=limits)
    found = mapping.correct(example.simulation, kept, member=0, step=400)
    assert found.kept
    assert found.result == example.simulation[0, 400]


def test_the_window_has_the_days_that_xarray_finds(example: Example) -> None:
    plan = plan_windows(example.axis.dayofyear, WINDOW)
    series = xr.DataArray(np.arange(example.axis.days.size), {"time": example.axis.index}, ["time"])
    of_day = series.rolling(time=WINDOW, center=True).construct("window").groupby("time.dayofyear")[200]
    expected = of_day.values[~np.isnan(of_day.values)]
    np.testing.assert_array_equal(np.sort(mapping.places_in_window(plan, 200, series.size)), np.sort(expected))
