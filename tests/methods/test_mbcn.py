"""MBCn by our kernels: xsdba's numbers, with the same rotations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
import xsdba
from xsdba import adjustment
from xsdba._adjustment import _npdft_adjust, _npdft_train
from xsdba.nbutils import _quantile
from xsdba.processing import grouped_time_indexes
from xsdba.utils import _interp_on_quantiles_1D, equally_spaced_nodes, rank

from espo_luigi.methods.dqm.windows import year_windows
from espo_luigi.methods.mbcn import transform
from espo_luigi.methods.mbcn.transform import Univariate
from espo_luigi.science.calendar import TimeAxis

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = ["tasmax", "dtr", "pr"]
LEVELS = equally_spaced_nodes(20)
VARIABLES = [Univariate("+", LEVELS), Univariate("+", LEVELS), Univariate("*", equally_spaced_nodes(15))]


def dates(calendar: str, first: int, last: int) -> xr.CFTimeIndex:
    end = f"{last}-12-{30 if calendar == '360_day' else 31}"
    return xr.date_range(f"{first}-01-01", end, calendar=calendar, use_cftime=True)


def series(time: xr.CFTimeIndex, seed: int, members: tuple[int, ...] = ()) -> np.ndarray:
    """Three variables that depend on each other, of three cells, the last of which is missing."""
    random = np.random.default_rng(seed)
    noise = random.normal(size=(3, 3, *members, time.size))
    season = np.sin(np.arange(time.size) / 58)
    values = np.stack(
        [
            280 + 9 * season + 4 * noise[0] + seed + np.linspace(0, 2, time.size),
            8 + season + 2 * np.abs(noise[1] + 0.5 * noise[0]),
            np.exp(0.8 * noise[2] - 0.6 * noise[0]) * (1 + 0.3 * seed) + 0.01,
        ]
    )
    values[:, 2] = np.nan
    return values


def rotations(seed: int, pools: int = 1, iterations: int = 6) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(3, pools, iterations, 3, 3))
    return np.linalg.qr(drawn)[0]


def xsdbas(
    monkeypatch: pytest.MonkeyPatch, time: xr.CFTimeIndex, data: tuple[np.ndarray, ...], turns: np.ndarray, **how: Any
) -> xr.DataArray:
    """Adjust a cell by xsdba's MBCn, in a few of its groups only, for it takes a fifth of a second for each."""
    group, interp = xsdba.Grouper(how["group"], how["window"]), how.get("interp", "nearest")
    original = grouped_time_indexes

    def some(*arguments: Any) -> list[xr.DataArray]:
        of_days, of_windows = original(*arguments)
        dim = of_windows.attrs["group_dim"]
        last = of_windows.sizes[dim] - 1
        return [one.isel({dim: sorted({0, min(1, last), last // 2, last})}) for one in (of_days, of_windows)]

    monkeypatch.setattr(adjustment, "grouped_time_indexes", some)
    reference, historical, simulation = (
        xr.DataArray(one, {"multivar": NAMES, "time": time}, ("multivar", "time"), attrs={"units": "mm"})
        for one in data
    )
    matrices = xr.DataArray(
        turns,
        {"multivar": NAMES},
        ("iterations", "rotated", "multivar"),
        attrs={"crd_dim": "multivar", "new_dim": "rotated"},
    )
    trained = xsdba.MBCn.train(
        reference,
        historical,
        base_kws={"nquantiles": 20, "group": group},
        adj_kws={"interp": interp},
        rot_matrices=matrices,
    )
    own = {
        name: {"kind": one.kind, "nquantiles": one.levels.size} | how.get("more", {}).get(name, {})
        for name, one in zip(NAMES, VARIABLES, strict=True)
    }
    base = xsdba.QuantileDeltaMapping
    made = trained.adjust(sim=simulation, ref=reference, hist=historical, base=base, base_kws_vars=own)
    return made.transpose("multivar", "time")


@pytest.mark.parametrize("interp", ["nearest", "linear"])
@pytest.mark.parametrize(("group", "window"), [("time", 1), ("5D", 7), ("time.dayofyear", 31)])
def test_it_equals_xsdba(monkeypatch: pytest.MonkeyPatch, group: str, window: int, interp: str) -> None:
    time = dates("noleap", 2001, 2007)
    axis = TimeAxis.of_index("noleap", time)
    reference, historical, simulation = (series(time, seed) for seed in (0, 1, 2))
    turns = rotations(5)
    plan = transform.plan(axis, axis, group=group, window=window)
    made = transform.adjust(
        reference, historical, simulation, plan, rotations=turns, levels=LEVELS, variables=VARIABLES, interp=interp
    )
    assert np.isnan(made[:, 2]).all()
    data = reference[:, 1], historical[:, 1], simulation[:, 1]
    expected = xsdbas(monkeypatch, time, data, turns[1, 0], group=group, window=window, interp=interp).values
    days = expected[0] != 0
    assert days.sum() >= 28
    error = np.abs(made[:, 1] - expected)[:, days] / reference[:, 1].std(axis=-1, keepdims=True)
    assert (error < 1e-4).mean() > 0.999
    assert np.abs(made[:, 1] - simulation[:, 1]).max() > 1


def by_formulas(reference: np.ndarray, historical: np.ndarray, simulation: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Adjust a sample (variable, day) by xsdba's functions, one after the other; samples of any sizes."""
    how = {"method": "nearest", "extrap": "constant"}
    factors, _ = _npdft_train(reference, historical, turns, LEVELS, n_escore=-1, standardize=True, **how)
    mean, deviation = simulation.mean(-1, keepdims=True), simulation.std(-1, keepdims=True)
    rotated = _npdft_adjust((simulation - mean) / deviation, factors, turns, LEVELS, **how)
    made = np.empty_like(simulation)
    for place, (kind, levels, *_) in enumerate(VARIABLES):
        ends = [_quantile(one[place], levels) for one in (reference, historical)]
        factor = ends[0] / ends[1] if kind == "*" else ends[0] - ends[1]
        shares = rank(xr.DataArray(simulation[place], dims="time"), pct=True).values
        found = _interp_on_quantiles_1D(shares, levels, factor, **how)
        alone = simulation[place] * found if kind == "*" else simulation[place] + found
        made[place] = np.sort(alone)[np.argsort(np.argsort(rotated[place]))]
    return made


def test_windows_of_years_are_samples_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    time, long = dates("noleap", 2001, 2007), dates("noleap", 2001, 2013)
    reference, historical, simulation = series(time, 0), series(time, 1), series(long, 2)
    axes = TimeAxis.of_index("noleap", time), TimeAxis.of_index("noleap", long)
    spans = year_windows(axes[1].year, 7, 3)
    turns = rotations(6)
    plan = transform.plan(*axes, group="time.dayofyear", window=31, spans=spans)
    made = transform.adjust(
        reference, historical, simulation, plan, rotations=turns, levels=LEVELS, variables=VARIABLES, threads=2
    )
    assert len(spans) == 3
    for span in spans:
        part = simulation[:, 0, span.first : span.last]
        data = reference[:, 0], historical[:, 0], part
        expected = xsdbas(monkeypatch, time, data, turns[0, 0], group="time.dayofyear", window=31).values
        kept = np.zeros(part.shape[1], bool)
        kept[span.kept_first - span.first : span.kept_last - span.first] = True
        kept &= expected[0] != 0
        assert kept.sum() >= 12
        np.testing.assert_allclose(made[:, 0, span.first : span.last][:, kept], expected[:, kept], rtol=1e-9)


@pytest.mark.parametrize(
    ("group", "window"), [("time.month", 1), ("time", 1), ("5D", 3), ("15D", 7), ("time.dayofyear", 5)]
)
@pytest.mark.parametrize("calendar", ["standard", "360_day"])
def test_members_together_are_a_sample(calendar: str, group: str, window: int) -> None:
    time, long = dates(calendar, 2001, 2006), dates(calendar, 2001, 2009)
    if calendar == "standard":
        time, long = time.to_datetimeindex(time_unit="ns"), long.to_datetimeindex(time_unit="ns")
    axes = TimeAxis.of_index(calendar, time), TimeAxis.of_index(calendar, long)
    reference, historical, simulation = series(time, 0), series(time, 1, (2,)), series(long, 2, (2,))
    plan = transform.plan(*axes, group=group, window=window)
    how = {"levels": LEVELS, "variables": VARIABLES}
    turns = rotations(7)
    made = transform.adjust(reference, historical, simulation, plan, rotations=turns, **how)
    # The days of a group, and of its sample, once more from the definitions
    kept, samples = [], []
    for axis in axes:
        days, months = axis.dayofyear, np.asarray(axis.index.month)
        place = np.arange(len(axis))
        own = {"time": place >= 0, "time.month": months == 2, "time.dayofyear": days == 60, "5D": (days - 1) // 5 == 30}
        own["15D"] = (days - 1) // 15 == 10
        kept.append(np.flatnonzero(own[group]))
        half = {"5D": 5, "15D": 10, "time.dayofyear": 2}.get(group, 0)
        samples.append(np.unique([day + ahead for day in kept[-1] for ahead in range(-half, half + 1)]))
    sample = simulation[:, 1][..., samples[1]].reshape(3, -1)
    modelled = historical[:, 1][..., samples[0]].reshape(3, -1)
    expected = by_formulas(reference[:, 1][:, samples[0]], modelled, sample, turns[1, 0]).reshape(3, 2, -1)
    np.testing.assert_allclose(made[:, 1][..., kept[1]], expected[..., np.isin(samples[1], kept[1])], rtol=1e-9)
    own = [rotations(8, 2), rotations(9, 2)]
    apart = transform.adjust(reference, historical, simulation, plan, rotations=own[0], **how)
    alone = transform.adjust(reference, historical[:, :, 1], simulation[:, :, 1], plan, rotations=own[0][:, 1:], **how)
    np.testing.assert_array_equal(apart[:, :, 1], alone)


def test_wet_days_and_tails_are_those_of_xsdba(monkeypatch: pytest.MonkeyPatch) -> None:
    time = dates("noleap", 2001, 2007)
    axis = TimeAxis.of_index("noleap", time)
    reference, historical, simulation = (series(time, seed) for seed in (0, 1, 2))
    reference[2] *= 4
    for one in (historical, simulation):
        one[2] = np.where(one[2] < 1, 0, one[2])
    simulation[2, 1, [40, 900]] = 500.0
    turns, plan = rotations(5), transform.plan(axis, axis)
    shares, data = [], (reference[:, 1], historical[:, 1], simulation[:, 1])
    for threshold, more in ((None, {}), (1.0, {"adapt_freq_thresh": "1 mm"})):
        variables = [*VARIABLES[:2], Univariate("+", LEVELS, threshold, 10.0)]
        made = transform.adjust(
            reference, historical, simulation, plan, rotations=turns, levels=LEVELS, variables=variables
        )[:, 1]
        own = {"pr": more | {"kind": "+", "nquantiles": 20, "max_tail_factor": 10.0}}
        expected = xsdbas(monkeypatch, time, data, turns[1, 0], group="time", window=1, more=own).values
        if threshold is None:
            error = np.abs(made - expected) / reference[:, 1].std(axis=-1, keepdims=True)
            assert (error < 1e-4).mean() > 0.999
            assert (made[2] == 500).sum() == 2
        shares.append([(one > 1).mean() for one in (made[2], expected[2])])
    assert abs(shares[1][0] - shares[1][1]) < 0.005
    assert abs(shares[1][0] - shares[0][0]) > 0.02


def make_dry(given: np.ndarray, below: float) -> np.ndarray:
    """Return series whose precipitation below a limit is 0."""
    made = given.copy()
    made[2] = np.where(made[2] < below, 0, made[2])
    return made


@pytest.mark.parametrize("interp", ["nearest", "linear"])
def test_zeros_have_no_factor_and_no_days_become_infinite_or_missing(interp: str) -> None:
    """A level whose historical quantile is 0 takes the nearest finite factor; without any, values stay."""
    time = dates("noleap", 2001, 2004)
    axis = TimeAxis.of_index("noleap", time)
    reference, historical, simulation = (series(time, seed)[:, :1] for seed in (0, 1, 2))
    plan = transform.plan(axis, axis, group="time.month")
    made = {}
    for name, below in (
        ("some", (0, 1, 1.5)),
        ("model", (0, 99, 99)),
        ("all", (99, 99, 99)),
        ("reference", (99, 0, 0)),
    ):
        series_of = [make_dry(*one) for one in zip((reference, historical, simulation), below, strict=True)]
        made[name] = transform.adjust(
            *series_of, plan, rotations=rotations(5)[:1], levels=LEVELS, variables=VARIABLES, interp=interp
        )
        assert np.isfinite(made[name]).all()
        if name != "reference":
            assert ((made[name][2] == 0).sum()) == (series_of[2][2] == 0).sum()
    for name in ("model", "all", "reference"):
        assert (made[name][2] == 0).all(), "a desert has its zeros"
    if interp == "nearest":
        january = np.asarray(time.month) == 1
        observed, modelled, future = (
            one[2, 0, january] for one in (reference, make_dry(historical, 1), make_dry(simulation, 1.5))
        )
        with np.errstate(divide="ignore"):
            factors = _quantile(observed, VARIABLES[2].levels) / _quantile(modelled, VARIABLES[2].levels)
        kept = np.isfinite(factors)
        assert 0 < kept.sum() < kept.size
        shares = rank(xr.DataArray(future, dims="time"), pct=True).values
        found = _interp_on_quantiles_1D(shares, VARIABLES[2].levels[kept], factors[kept], "nearest", "constant")
        np.testing.assert_allclose(np.sort(made["some"][2, 0, january]), np.sort(future * found), rtol=1e-9)


def test_days_are_traced_to_their_donors() -> None:
    time = dates("noleap", 2001, 2004)
    axis = TimeAxis.of_index("noleap", time)
    reference, historical, simulation = (series(time, seed, (2,) * (seed > 0)) for seed in (0, 1, 2))
    plan = transform.plan(axis, axis)
    how = {"rotations": rotations(5), "levels": LEVELS, "variables": VARIABLES}
    traced = np.full((5, *simulation.shape), np.nan)
    made = transform.adjust(reference, historical, simulation, plan, traced=traced, **how)
    np.testing.assert_array_equal(made, transform.adjust(reference, historical, simulation, plan, **how))
    alone, before, after, donor, size = traced[:, :, 1].reshape(5, 3, -1)
    assert (size == 2 * time.size).all()
    for place, values in enumerate(made[:, 1].reshape(3, -1)):
        np.testing.assert_array_equal(values, alone[place, donor[place].astype(int)])
        np.testing.assert_array_equal(np.sort(alone[place])[after[place].astype(int) - 1], values)
        np.testing.assert_array_equal(np.sort(alone[place])[before[place].astype(int) - 1], alone[place])
    assert (before != after).any()


def test_a_day_that_lacks_a_variable_is_missing_in_all() -> None:
    time = dates("noleap", 2001, 2004)
    axis = TimeAxis.of_index("noleap", time)
    reference, historical, simulation = (series(time, seed) for seed in (0, 1, 2))
    reference[0, 0, :30], historical[1, 0, 50:60], simulation[2, 0, 100:110] = np.nan, np.nan, np.nan
    simulation[1, 1] = 5.0  # a constant variable has no rank of its own
    turns, plan = rotations(5), transform.plan(axis, axis)
    made = transform.adjust(
        reference, historical, simulation, plan, rotations=turns, levels=LEVELS, variables=VARIABLES
    )
    missing = np.zeros(time.size, bool)
    missing[100:110] = True
    for values in made[:, 0]:
        np.testing.assert_array_equal(np.isnan(values), missing)
    lacking = [np.isnan(one[:, 0]).any(0) for one in (reference, historical, simulation)]
    parts = [one[:, 0][:, ~gap] for one, gap in zip((reference, historical, simulation), lacking, strict=True)]
    np.testing.assert_allclose(made[:, 0][:, ~missing], by_formulas(*parts, turns[0, 0]), rtol=1e-9)
    assert np.isfinite(made[:, 1]).all()
