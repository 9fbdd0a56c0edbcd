"""The kernels against xsdba, numpy and scipy: same numbers, whatever the calendar, the missing values and the ties."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import xarray as xr
from frozen import Answers
from generated import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree

from espo_luigi.errors import DataError
from espo_luigi.methods.dqm import quantile_mapping as qm
from espo_luigi.methods.dqm.kernels import compiled
from espo_luigi.methods.dqm.kernels.adjusting import share_middle
from espo_luigi.methods.dqm.kernels.bits import nth_bit
from espo_luigi.methods.dqm.windows import plan_windows

WINDOW = 31
FRACTION = 0.2
# The tolerances: training to 1e-5, scenarios to 1e-4 in all but one value in 10 000.
TRAINING_TOLERANCE = 1e-5
SCENARIO_TOLERANCE = 1e-4
pytestmark = pytest.mark.filterwarnings("ignore")


def days_of(calendar: str, first_year: int, n_years: int, skip: int = 0) -> xr.DataArray:
    """Daily time coordinate of whole years, or from ``skip`` days later."""
    last = f"{first_year + n_years - 1}-12-{30 if calendar == '360_day' else 31}"
    times = xr.date_range(f"{first_year}-01-01", last, calendar=calendar, use_cftime=True)[skip:]
    return xr.DataArray(times, dims="time", coords={"time": times})


def numbers_of(time: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Day of year and days since the first one."""
    index = time.indexes["time"]
    return np.asarray(index.dayofyear), np.asarray([delta.days for delta in index - index[0]])


def messy(time: xr.DataArray, seed: int, kind: str, dtype: Any) -> xr.DataArray:
    """Six cells: plain, with gaps and isolated missing days, rounded, constant, all dry (or zero), all missing."""
    random = np.random.default_rng(seed)
    season = np.sin(numbers_of(time)[0] / 58)
    shape = (6, time.size)
    warming = np.linspace(0, 3, time.size)
    values = random.normal(280 + 12 * season + warming, 4, shape) if kind == "+" else random.gamma(0.7, 4, shape)
    values[1, random.random(time.size) < 0.05] = np.nan
    values[1, 400:900] = np.nan
    values[2] = np.round(values[2])
    values[3] = values[3, 0]
    values[4] = 0
    values[5] = np.nan
    return xr.DataArray(values.astype(dtype), dims=("loc", "time"), coords={"time": time}, attrs={"units": "K"})


def assert_close_but_for(actual: np.ndarray, expected: np.ndarray, tolerance: float, share: float, kind: str) -> None:
    """Equal to a tolerance, absolute (+) or relative (*), in all but a share of the values, and missing in the same."""
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    known = np.isfinite(expected)
    scale = 1.0 if kind == "+" else np.maximum(np.abs(expected[known]), 1e-3)
    off = np.abs(actual[known] - expected[known]) > tolerance * scale
    assert off.mean() <= share, f"{off.sum()} of {off.size} values differ by more than {tolerance}"


def plan_for(
    time: xr.DataArray, training: qm.Training, window: int = WINDOW, *, own_day: bool = False
) -> qm.AdjustmentPlan:
    dayofyear, days = numbers_of(time)
    n_days = training.scaling.shape[1]
    plan = qm.plan_adjustment(dayofyear, days, window=window, fraction=FRACTION, n_training_days=n_days)
    return plan._replace(reach=np.inf) if own_day else plan


def xsdbas(reference: xr.DataArray, historical: xr.DataArray, simulation: xr.DataArray, kind: str) -> xr.Dataset:
    """What xsdba makes of series: a training and a scenario."""
    import xsdba

    group = xsdba.Grouper("time.dayofyear", WINDOW)
    trained = xsdba.DetrendedQuantileMapping.train(reference, historical, nquantiles=20, kind=kind, group=group)
    loess = xsdba.detrending.LoessDetrend(group=group, kind=kind, f=FRACTION, niter=1, d=0, weights="tricube")
    with pytest.MonkeyPatch.context() as patch:
        # From scipy 1.18 on, griddata takes a tree of smaller leaves, which chooses otherwise among equal quantiles.
        patch.setattr("scipy.interpolate._ndgriddata.KDTree", cKDTree, raising=False)
        scenario = trained.adjust(simulation, interp="nearest", extrapolation="constant", detrend=loess)
    return trained.ds.assign(scenario=scenario)


@pytest.fixture(scope="module", params=[("noleap", "+"), ("standard", "*")], ids="-".join)
def by_xsdba(request: pytest.FixtureRequest, answers: Answers) -> dict[str, Any]:
    """What xsdba makes of messy data of 12 years, trained on the first six."""
    calendar, kind = request.param
    time, times = days_of(calendar, 1998, 6), days_of(calendar, 1998, 12)
    series = tuple(messy(axis, seed, kind, "f4") for seed, axis in enumerate((time, time, times)))
    made = answers(f"messy-{calendar}", partial(xsdbas, *series, kind))
    training = [made[name].transpose("loc", "dayofyear", ...).values for name in ("af", "hist_q", "scaling")]
    return {
        "kind": kind,
        "series": series,
        "quantiles": made["quantiles"].values,
        "training": qm.Training(*training),
        "scenario": made["scenario"].transpose("loc", "time").values,
    }


def train_like(case: dict[str, Any]) -> qm.Training:
    reference, historical, _ = case["series"]
    plan = plan_windows(numbers_of(reference.time)[0], WINDOW)
    return qm.train(reference.values, historical.values, plan, quantiles=case["quantiles"], kind=case["kind"])


def test_training_is_that_of_xsdba(by_xsdba: dict[str, Any]) -> None:
    for actual, expected in zip(train_like(by_xsdba)[:3], by_xsdba["training"][:3], strict=True):
        np.testing.assert_allclose(actual, expected, rtol=TRAINING_TOLERANCE, atol=1e-6)
        assert actual.dtype == expected.dtype


def test_scenario_is_that_of_xsdba(by_xsdba: dict[str, Any]) -> None:
    simulation = by_xsdba["series"][2]
    training = train_like(by_xsdba)
    actual, _ = qm.adjust(simulation.values, training, plan_for(simulation.time, training), kind=by_xsdba["kind"])
    assert_close_but_for(actual, by_xsdba["scenario"], SCENARIO_TOLERANCE, 1e-4, by_xsdba["kind"])
    assert actual.dtype == np.float32


def brute_force_training(
    reference: np.ndarray, historical: np.ndarray, dayofyear: np.ndarray, window: int, quantiles: np.ndarray, kind: str
) -> qm.Training:
    """The definition, with numpy's own means and quantiles in float64."""
    half = window // 2
    groups = np.unique(dayofyear)

    def quantiles_of_sample(sample: np.ndarray) -> np.ndarray:
        # The same numbers where nothing is missing, and numpy takes all cells at once.
        found = np.quantile(sample, quantiles, axis=1).T
        missing = np.isnan(sample).any(axis=1)
        if missing.any():
            found[missing] = np.nanquantile(sample[missing], quantiles, axis=1).T
        return found

    def of_series(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        padded = np.pad(values.astype(np.float64), ((0, 0), (half, half)), constant_values=np.nan)
        windows = np.lib.stride_tricks.sliding_window_view(padded, window, axis=1)
        samples = [windows[:, dayofyear == day].reshape(len(values), -1) for day in groups]
        means = np.stack([np.nanmean(sample, axis=1) for sample in samples], axis=1)
        anomalies = [
            sample - mean[:, None] if kind == "+" else sample / mean[:, None]
            for sample, mean in zip(samples, means.T, strict=True)
        ]
        return means, np.stack([quantiles_of_sample(one) for one in anomalies], axis=1)

    # Both at once: numpy's quantiles take as long for two cells as for four.
    means, quantiles_of = of_series(np.concatenate([reference, historical]))
    (reference_mean, mean), (reference_q, q) = np.split(means, 2), np.split(quantiles_of, 2)
    if kind == "+":
        return qm.Training(reference_q - q, q, reference_mean - mean)
    return qm.Training(reference_q / q, q, reference_mean / mean)


@settings(max_examples=examples(10), deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    calendar=st.sampled_from(["noleap", "360_day", "standard"]),
    n_years=st.integers(1, 4),
    skip=st.sampled_from([0, 40, 200]),
    window=st.sampled_from([1, 3, 7, 9, 31, 127]),
    n_quantiles=st.integers(1, 60),
    kind=st.sampled_from(["+", "*"]),
    dtype=st.sampled_from(["f4", "f8"]),
    missing=st.sampled_from([0.0, 0.1, 0.9, 0.999]),
    decimals=st.sampled_from([0, 1, 6]),
    seed=st.integers(0, 1000),
)
def test_training_is_the_definition_on_any_series(
    calendar: str, n_years: int, skip: int, window: int, n_quantiles: int, kind: str, dtype: str, missing: float,
    decimals: int, seed: int,
) -> None:  # fmt: skip
    time = days_of(calendar, 1999, n_years, skip)
    random = np.random.default_rng(seed)
    reference, historical = np.round(random.gamma(2, 4, (2, 2, time.size)) + 1, decimals).astype(dtype)
    historical[random.random(historical.shape) < missing] = np.nan
    dayofyear = numbers_of(time)[0]
    quantiles = (np.arange(n_quantiles) + 0.5) / n_quantiles
    plan = plan_windows(dayofyear, window)
    actual = qm.train(reference, historical, plan, quantiles=quantiles, kind=kind)
    expected = brute_force_training(reference, historical, dayofyear, window, quantiles, kind)
    assert actual[3:] == (None, None), "nothing more was asked for"
    for one, other in zip(actual[:3], expected[:3], strict=True):
        # anomalies of values of about 10 in float32: 1e-5 of the values
        np.testing.assert_allclose(one, other, rtol=TRAINING_TOLERANCE, atol=1e-4 if dtype == "f4" else 1e-9)


def trends_by_xsdba(scaled: np.ndarray, dayofyear: np.ndarray, days: np.ndarray, window: int) -> np.ndarray:
    """LOESS of each day of year's windowed means by xsdba's own function."""
    from xsdba import loess

    half = window // 2
    padded = np.pad(scaled, ((0, 0), (half, half)), constant_values=np.nan)
    means = np.nanmean(np.lib.stride_tricks.sliding_window_view(padded, window, axis=-1), axis=-1)
    trends = np.full(scaled.shape, np.nan)
    for day in np.unique(dayofyear):
        times = np.flatnonzero(dayofyear == day)
        if times.size == 1:  # where xsdba fails; see test_one_year_has_its_own_windowed_means_as_trend
            trends[:, times] = means[:, times]
            continue
        x = (days[times] - days[times[0]]) / (days[times[-1]] - days[times[0]])
        equal = np.ptp(np.diff(days[times])) == 0
        for cell in range(len(scaled)):
            trends[cell, times] = loess._loess_nb(
                x, means[cell, times].astype("f8"), f=FRACTION, niter=1, weight_func=loess._tricube_weighting,
                reg_func=loess._constant_regression, dx=x[1] - x[0] if equal else 0.0, skipna=True,
            )  # fmt: skip
    return trends


def of_its_day(x: float, row: int, quantiles: np.ndarray, factors: np.ndarray) -> float:
    """The definition: the factor of the day's nearest quantile, or of the nearest day that has any; constant beyond."""
    known = ~(np.isnan(quantiles) | np.isnan(factors))
    with_points = np.flatnonzero(known.any(axis=1))
    if np.isnan(x) or not with_points.size:
        return np.nan
    q, f = quantiles[row], factors[row]
    ends = q[~np.isnan(q)][[0, -1]] if not np.isnan(q).all() else (-np.inf, np.inf)
    if not ends[0] <= x <= ends[1] and not np.isnan(f).all():  # xsdba's, of all that are known
        return float(f[~np.isnan(f)][0 if x < ends[0] else -1])
    day = with_points[np.argmin(np.abs(with_points - row))]
    own = quantiles[day][known[day]]
    return float(factors[day][known[day]][np.argmin(np.abs(own.astype("f8") - x))])


def adjustment_by_xsdba(
    simulation: np.ndarray,
    training: qm.Training,
    dayofyear: np.ndarray,
    days: np.ndarray,
    window: int,
    kind: str,
    *,
    own_day: bool = False,
) -> np.ndarray:
    """The adjustment, step by step, with xsdba's and scipy's own functions; `own_day` is no way of xsdba's."""
    from xsdba.utils import _interp_on_quantiles_2d

    n_days = training.scaling.shape[1]
    scaling = training.scaling[:, np.minimum(dayofyear, n_days) - 1]
    scaled = simulation + scaling if kind == "+" else simulation * scaling
    trends = trends_by_xsdba(scaled, dayofyear, days, window)
    anomalies = scaled - trends if kind == "+" else scaled * (1 / trends)
    factors, quantiles = (
        np.pad(one, ((0, 0), (1, 1), (0, 0)), mode="wrap") for one in (training.factors, training.historical_quantiles)
    )
    rows = np.broadcast_to(np.arange(n_days + 2)[:, None], factors.shape[1:]).copy()

    def find(cell: int) -> Any:
        if own_day:
            pairs = zip(anomalies[cell], dayofyear, strict=True)
            return [of_its_day(x, row, quantiles[cell], factors[cell]) for x, row in pairs]
        return _interp_on_quantiles_2d(
            anomalies[cell], dayofyear, quantiles[cell], factors[cell], rows, "nearest", "constant"
        )

    found = np.stack([find(cell) for cell in range(len(simulation))])
    return anomalies + found + trends if kind == "+" else anomalies * found * trends


@settings(max_examples=examples(4), deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    calendar=st.sampled_from(["noleap", "360_day", "standard"]),
    n_years=st.integers(2, 7),
    skip=st.sampled_from([0, 100]),
    window=st.sampled_from([1, 5, 31]),
    # Beyond 64, the search begins with two comparisons instead of one.
    n_quantiles=st.integers(1, 12) | st.sampled_from([50, 65, 80]),
    kind=st.sampled_from(["+", "*"]),
    dtype=st.sampled_from(["f4", "f8"]),
    missing=st.sampled_from(["nothing", "days", "years", "factors"]),
    spread=st.sampled_from([0.3, 20.0]),
    own_day=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_adjustment_is_xsdba_s_step_by_step_on_any_series(
    calendar: str, n_years: int, skip: int, window: int, n_quantiles: int, kind: str, dtype: str, missing: str,
    spread: float, own_day: bool, seed: int,
) -> None:  # fmt: skip
    time = days_of(calendar, 1999, n_years, skip)
    dayofyear, days = numbers_of(time)
    random = np.random.default_rng(seed)
    n_days = {"noleap": 365, "360_day": 360, "standard": 366}[calendar]
    simulation = random.gamma(3, spread, (1, time.size)).astype(dtype)
    sample = np.sort(random.gamma(3, spread, (1, n_days, n_quantiles)), axis=-1)
    anomalies = sample - sample.mean() if kind == "+" else sample / sample.mean()
    factors = random.normal(1, 0.2, sample.shape)
    scaling = random.normal(1, 0.1, (1, n_days))
    if missing == "days":
        simulation[random.random(simulation.shape) < 0.4] = np.nan
    elif missing == "years":
        simulation[:, 300:700] = np.nan
    elif missing == "factors":
        factors[random.random(factors.shape) < 0.3] = np.nan
        anomalies[:, 20:24] = np.nan
    training = qm.Training(*(one.astype(dtype) for one in (factors, anomalies, scaling)))
    actual, _ = qm.adjust(simulation, training, plan_for(time, training, window, own_day=own_day), kind=kind)
    expected = adjustment_by_xsdba(simulation, training, dayofyear, days, window, kind, own_day=own_day)
    assert_close_but_for(actual, expected, SCENARIO_TOLERANCE, 1e-4, "*")


def test_equal_quantiles_of_a_day_have_the_middle_one_s_factor() -> None:
    """As quantile delta mapping gives equal values the middle of their ranks."""
    factors = np.array([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    share_middle(np.array([0.0, 0.0, 0.0, 5.0, 5.0, 9.0]), factors)
    np.testing.assert_array_equal(factors, [20.0, 20.0, 20.0, 40.0, 40.0, 60.0])


def test_a_training_of_365_days_adjusts_leap_days_with_the_first_day_s_factors() -> None:
    time = days_of("standard", 1999, 6)
    dayofyear, days = numbers_of(time)
    random = np.random.default_rng(0)
    simulation = random.normal(0, 2, (2, time.size))
    training = qm.Training(
        random.normal(0, 1, (2, 365, 9)),
        np.sort(random.normal(0, 2, (2, 365, 9)), axis=-1),
        random.normal(0, 1, (2, 365)),
    )
    actual, _ = qm.adjust(simulation, training, plan_for(time, training), kind="+")
    expected = adjustment_by_xsdba(simulation, training, dayofyear, days, WINDOW, "+")
    np.testing.assert_allclose(actual, expected, atol=1e-9)


def test_one_year_has_its_own_windowed_means_as_trend() -> None:
    time = days_of("noleap", 1999, 1)
    simulation = np.random.default_rng(0).normal(0, 2, (1, 365))
    training = qm.Training(np.zeros((1, 365, 3)), np.zeros((1, 365, 3)), np.zeros((1, 365)))
    actual, _ = qm.adjust(simulation, training, plan_for(time, training), kind="+")
    np.testing.assert_allclose(actual, simulation, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plan_windows(np.arange(1, 366), 30), "A window of 30 days"),
        (lambda: plan_windows(np.tile(np.arange(1, 13), 9), 31), "overlap"),
        (
            lambda: qm.plan_adjustment(np.arange(1, 367), np.arange(366), window=31, fraction=0.2, n_training_days=360),
            "day of year 366",
        ),
    ],
)
def test_what_the_kernels_cannot_do_is_an_error_that_says_so(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


def test_the_nth_bit_is_found() -> None:
    for word in np.random.default_rng(0).integers(1, 2**64, 50, dtype=np.uint64, endpoint=False):
        places = [place for place in range(64) if int(word) >> place & 1]
        assert [int(nth_bit(word, np.uint64(n))) for n in range(len(places))] == places


def nowhere(function: object) -> None:
    raise RuntimeError("cannot cache function: no locator available")


def test_kernels_compile_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled.KernelCache, "_impl_class", staticmethod(nowhere))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled.compiled(lambda x: x + 1)(1) == 2
