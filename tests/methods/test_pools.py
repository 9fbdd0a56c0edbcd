"""Pools of members: against xsdba, against numpy on the same draws, and the same bytes however they are cut."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import xarray as xr
from frozen import Answers
from scipy import stats
from test_quantile_mapping import assert_close_but_for, days_of, numbers_of

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods import blocks
from espo_luigi.methods.dqm import quantile_mapping as qm
from espo_luigi.methods.dqm.kernels.preparation import NEW_VALUE, draw, stream
from espo_luigi.methods.dqm.windows import plan_windows
from espo_luigi.science import quality

pytestmark = pytest.mark.filterwarnings("ignore")
LOESS = {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube", "mult_skip_zeros": True}}
POOLED = {"group": "time.dayofyear", "window": 31, "add_dims": ["realization"]}
PR = {"kind": "*", "nquantiles": 20, "adapt_freq_thresh": "1 mm d-1", "max_tail_factor": 2}
THRESHOLD = np.float32(1)


def winters(calendar: str, years: int) -> xr.DataArray:
    """The first 60 days of some years: xsdba takes as long for a day of year as for all of its years."""
    time = days_of(calendar, 1999, years)
    return time[time.dt.dayofyear <= 60]


def rain(time: xr.DataArray, seed: int, dry_share: float) -> np.ndarray:
    """Rain of so many dry days; half of these have drizzle, the others none."""
    random = np.random.default_rng(seed)
    season = 1 + 0.3 * np.sin(numbers_of(time)[0] / 58)
    wet = random.gamma(0.8, 6 * season)
    dry = np.where(random.random(time.size) < 0.5, 0, random.uniform(0, 1, time.size))
    return np.where(random.random(time.size) < dry_share, dry, 1.001 + wet).astype("f4")


def noisy(values: np.ndarray) -> np.ndarray:
    """Noise instead of no rain, as `jitter_under` makes it."""
    noise = np.random.default_rng(values.size).uniform(1e-4, 0.01, values.size).astype("f4")
    return np.where(values < 0.01, noise, values)


def series(time: xr.DataArray, cells: list[np.ndarray], units: str = "mm d-1") -> xr.DataArray:
    return xr.DataArray(np.stack(cells), dims=("loc", "time"), coords={"time": time}, attrs={"units": units}, name="pr")


def pool(time: xr.DataArray, members: list[list[np.ndarray]], units: str = "mm d-1") -> xr.DataArray:
    """A pool (realization, loc, time)."""
    labels = [f"r{number}i1p1f1" for number in range(1, len(members) + 1)]
    return xr.concat([series(time, one, units) for one in members], "realization").assign_coords(realization=labels)


def whole_years(calendar: str, years: int) -> xr.DataArray:
    return days_of(calendar, 1999, years)


def rainy(
    calendar: str, n_members: int, days: Callable[[str, int], xr.DataArray] = winters
) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """Reference, historical and simulation in six cells.

    Members drier and wetter than the reference, nothing dry (P0 = 0), all dry, a tail over the limit, years without
    data, and a member with as many dry days as the reference has.
    """
    time, times = days(calendar, 6), days(calendar, 10)
    reference = series(time, [noisy(rain(time, cell, 0.5)) for cell in range(6)])

    def member(axis: xr.DataArray, number: int) -> list[np.ndarray]:
        seed = 100 * number + axis.size
        shares = (0.65, 0.35, 0.8, 0.5, 0.6)
        cells = [rain(axis, seed + cell, shares[number]) for cell in range(6)]
        cells[1] = np.maximum(cells[1], 0) + np.float32(1.5)
        cells[2] = np.minimum(cells[2], 0.9).astype("f4")
        cells[3][::97] *= 30
        cells[4][60:180] = np.nan
        cells[5] = np.roll(reference.values[5], number)[: axis.size] if axis is time else cells[5]
        return cells

    simulation = pool(times, [member(times, number) for number in range(n_members)])
    historical = pool(time, [[noisy(cell) for cell in member(time, number)] for number in range(n_members)])
    return reference, historical, simulation


def by_xsdba(reference: xr.DataArray, historical: xr.DataArray, simulation: xr.DataArray, **train: Any) -> xr.Dataset:
    """The training's days that there are, and the scenario."""
    import xsdba

    group = xsdba.Grouper("time.dayofyear", 31, add_dims=["realization"])
    np.random.seed(0)
    trained = xsdba.DetrendedQuantileMapping.train(reference, historical, group=group, **train)
    detrend = xsdba.detrending.LoessDetrend(
        group=group, kind=train["kind"], f=0.2, niter=1, d=0, weights="tricube", mult_skip_zeros=train["kind"] == "*"
    )
    # With only some days of year, xsdba takes the last for the neighbour of the first.
    days = np.arange(1, reference.time.dt.days_in_year.max().item() + 1)
    trained.set_dataset(trained.ds.reindex(dayofyear=days))
    scenario = trained.adjust(simulation, interp="nearest", extrapolation="constant", detrend=detrend)
    return trained.ds.sel(dayofyear=slice(1, 60)).assign(scenario=scenario)


def ours(
    reference: xr.DataArray, historical: xr.DataArray, simulation: xr.DataArray, train: dict[str, Any], **options: Any
) -> tuple[xr.Dataset, xr.DataArray]:
    training, made = ours_counted(reference, historical, simulation, train, **options)
    return training, made["scenario"]


def ours_counted(
    reference: xr.DataArray, historical: xr.DataArray, simulation: xr.DataArray, train: dict[str, Any], **options: Any
) -> tuple[xr.Dataset, xr.Dataset]:
    first, last = (int(reference.time.dt.year[place]) for place in (0, -1))
    options = {"maximal_calendar": "standard", "seed": "pools", **options}
    training = blocks.train(
        reference, historical, period=[first, last], group=POOLED, xsdba_train_args=train, **options
    )
    adjust_args = {"detrend": LOESS, "interp": "nearest", "extrapolation": "constant"}
    periods = [int(simulation.time.dt.year[place]) for place in (0, -1)]
    return training, blocks.adjust_and_count(
        simulation, training, periods=periods, xsdba_adjust_args=adjust_args, **options
    )


def by_day(training: xr.DataArray) -> np.ndarray:
    """A field of the training on the days that there are."""
    return training.sel(dayofyear=slice(1, 60)).transpose("loc", "dayofyear", ...).values


@pytest.mark.parametrize(
    ("calendar", "kind", "n_members"), [("noleap", "+", 2), ("360_day", "*", 1), ("standard", "*", 5)]
)
def test_a_pool_without_draws_is_xsdbas(answers: Answers, calendar: str, kind: str, n_members: int) -> None:
    _, historical, simulation = rainy(calendar, n_members)
    reference = historical.isel(realization=0, drop=True).roll(loc=2) + np.float32(1)
    if kind == "+":
        reference, historical, simulation = (one + np.float32(270) for one in (reference, historical, simulation))
    reference, historical, simulation = (
        one.assign_attrs(units="K").rename("tasmax") for one in (reference, historical, simulation)
    )
    train = {"kind": kind, "nquantiles": 20, "max_tail_factor": 2 if kind == "*" else None}
    asked = partial(by_xsdba, reference, historical, simulation, **train)
    theirs = answers(f"pool-undrawn-{calendar}-{n_members}", asked)
    train = {name: value for name, value in train.items() if value is not None}
    training, scenario = ours(reference, historical, simulation, train)
    # The mean of 280 K over a pool's sample in float32 is round to 2e-4 K.
    tolerance = {"rtol": 1e-5, "atol": 3e-4 if kind == "+" else 1e-6}
    for name in training.data_vars:
        assert training[name].dtype == np.float32
        found, other = by_day(training[name]), by_day(theirs[name])
        np.testing.assert_allclose(found, other, **tolerance, err_msg=name)
    assert scenario.dims == simulation.dims
    found, expected = scenario.values, theirs["scenario"].transpose(*simulation.dims).values
    assert_close_but_for(found, expected, 1e-3 if kind == "+" else 1e-4, 2e-4, kind)


@pytest.fixture(scope="module", params=[("noleap", 2), ("standard", 1), ("360_day", 5)], ids=str)
def adapted(request: pytest.FixtureRequest, answers: Answers) -> dict[str, Any]:
    """Frequencies adapted by xsdba and by us, in all cases of `rainy`."""
    calendar, n_members = request.param
    series = rainy(calendar, n_members)
    trained = answers(f"pool-{calendar}-{n_members}", partial(by_xsdba, *series, **PR))
    training, made = ours_counted(*series, PR)
    return {
        "series": series,
        "trained": trained.drop_vars("scenario"),
        "theirs": trained["scenario"].assign_coords(time=series[2]["time"]),
        "training": training,
        "scenario": made["scenario"],
        "treated": quality.days_of(made["treated"].transpose("realization", "loc", ...), "pr"),
    }


def test_what_is_not_drawn_is_xsdbas(adapted: dict[str, Any]) -> None:
    training, expected = adapted["training"], adapted["trained"]
    assert set(training.data_vars) == set(expected.data_vars)
    for name in ("P0_ref", "P0_hist", "pth", "hist_q_raw"):
        assert training[name].dtype == np.float32
        np.testing.assert_allclose(by_day(training[name]), by_day(expected[name]), rtol=1e-6, err_msg=name)
        np.testing.assert_array_equal(training["realization"], expected["realization"])


def test_what_is_drawn_has_xsdbas_distribution(adapted: dict[str, Any]) -> None:
    """A day's sample has 186 values a member; some tens of them are drawn, the others are the same."""
    fields = {
        name: [by_day(adapted[which][name]) for which in ("training", "trained")]
        for name in ("scaling", "hist_q", "af")
    }
    for found, other in fields.values():
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(other))
    found, other = fields["scaling"]
    np.testing.assert_allclose(found, other, rtol=0.25)
    np.testing.assert_allclose(found.mean(1), other.mean(1), rtol=0.03)
    found, other = fields["hist_q"]
    np.testing.assert_allclose(found.mean(1), other.mean(1), rtol=0.1, atol=0.01)


def wet_days_made(adapted: dict[str, Any], which: str) -> xr.DataArray:
    """Days whose adjusted value is not 0 and whose simulation is dry, by member, cell and day of year."""
    simulation = adapted["series"][2]
    made = (adapted[which].transpose(*simulation.dims).drop_attrs() > 0) & (simulation == 0)
    return made.groupby("time.dayofyear").sum()


def test_as_many_days_become_wet_as_in_xsdba(adapted: dict[str, Any]) -> None:
    """Zeros that become wet are drawn among the drizzle only by rank, so their number is not drawn."""
    for cell in range(6):
        found, other = (wet_days_made(adapted, which).isel(loc=cell) for which in ("scenario", "theirs"))
        # P0 is stored as float32, and at equality a value moves.
        assert abs(found - other).max() <= 1
        assert abs(found - other).mean() < 0.01


def test_the_scenario_has_xsdbas_distribution(adapted: dict[str, Any]) -> None:
    simulation = adapted["series"][2]
    found, other = (adapted[which].transpose(*simulation.dims).values for which in ("scenario", "theirs"))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(other))
    for cell in range(6):
        one, two = (values[:, cell][~np.isnan(values[:, cell])] for values in (found, other))
        assert stats.ks_2samp(one, two).statistic < 0.06, cell


def test_days_made_wet_are_counted(adapted: dict[str, Any]) -> None:
    """xsdba's shares of dry days tell how many of a day of year become wet, to one."""
    simulation = adapted["series"][2].drop_attrs()
    by_day = simulation.groupby("time.dayofyear")
    dry, shares = (simulation <= THRESHOLD).groupby("time.dayofyear").sum(), adapted["trained"].drop_attrs()
    excess = (1 - shares["P0_ref"] / shares["P0_hist"]).sel(dayofyear=dry.dayofyear).where(by_day.count() > 0)
    expected = (dry * excess.clip(min=0)).sum("dayofyear").transpose("realization", "loc")
    found = adapted["treated"]["pr_days_made_wet"]
    assert found.max() > 50 and found.min() == 0
    assert abs(found - expected).max() <= dry.dayofyear.size


def test_the_tail_is_what_xsdba_leaves_unadjusted(adapted: dict[str, Any]) -> None:
    simulation = adapted["series"][2]
    raw = adapted["trained"]["hist_q_raw"].isel(quantiles=-1, drop=True)
    limit = 2 * raw.sel(dayofyear=simulation.time.dt.dayofyear.clip(max=raw.dayofyear.size), method="nearest")
    over = (simulation > limit).transpose(*simulation.dims).values
    assert over.any()
    counted, made_wet = (adapted["treated"][f"pr_days_{one}"].values.astype(int) for one in ("limited", "made_wet"))
    # A day that was made so wet counts, too.
    more = counted - over.sum(axis=simulation.dims.index("time"))
    assert (more >= 0).all() and (more <= made_wet).all() and (more == 0).mean() > 0.5
    for which in ("scenario", "theirs"):
        kept = adapted[which].transpose(*simulation.dims).values
        np.testing.assert_array_equal(kept[over], simulation.values[over])


@pytest.mark.parametrize("kind", ["+", "*"])
def test_days_beyond_the_quantiles_are_counted(answers: Answers, kind: str) -> None:
    """Of anomalies from xsdba's trend; a value on an edge may round to either side."""
    reference, historical, simulation = (
        one if one.dims == ("loc", "time") else one.isel(realization=0, drop=True) for one in rainy("noleap", 1)
    )
    if kind == "+":
        reference, historical, simulation = (one + np.float32(270) for one in (reference, historical, simulation))
    picked = [0, 1, 3]
    reference, historical, simulation = (
        one.isel(loc=picked).assign_attrs(units="K").rename("tasmax") for one in (reference, historical, simulation)
    )
    group = {"group": "time.dayofyear", "window": 31}
    training = blocks.train(
        reference,
        historical,
        period=[1999, 2004],
        group=group,
        xsdba_train_args={"kind": kind, "nquantiles": 20},
        seed="beyond",
    )
    arguments = {"detrend": LOESS, "interp": "nearest", "extrapolation": "constant"}
    made = blocks.adjust_and_count(simulation, training, periods=[1999, 2008], xsdba_adjust_args=arguments)
    days = simulation.time.dt.dayofyear
    scaling, edges = (training[name].sel(dayofyear=days).drop_attrs() for name in ("scaling", "hist_q"))
    scaled = (simulation * scaling if kind == "*" else simulation + scaling).assign_attrs(units="K")
    anomalies = answers(f"anomalies-{'added' if kind == '+' else 'factors'}", partial(detrended, scaled, kind))["pr"]
    below = (anomalies < edges.isel(quantiles=0)) & (anomalies != 0)
    beyond = (below | (anomalies > edges.isel(quantiles=-1))).sum("time")
    (found,) = quality.days_of(made["treated"], "tasmax").values()
    assert (beyond > 10).all()
    np.testing.assert_allclose(found, beyond, atol=2)
    assert made["treated"].attrs == {"flag_masks": [4], "flag_meanings": "extrapolated"}


def detrended(scaled: xr.DataArray, kind: str) -> xr.Dataset:
    import xsdba

    detrend = xsdba.detrending.LoessDetrend(
        group=xsdba.Grouper("time.dayofyear", 31), kind=kind, f=0.2, niter=1, d=0, weights="tricube",
        mult_skip_zeros=kind == "*",
    )  # fmt: skip
    return detrend.fit(scaled).detrend(scaled).to_dataset(name="pr")


def brute_force_sample(
    reference: np.ndarray, members: np.ndarray, times: np.ndarray, centres: np.ndarray, group: int, seeds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The adapted sample of a day of year and pth, by sorting, with the kernels' draws."""
    half = 15
    places = np.concatenate([np.arange(centre - half, centre + half + 1) for centre in centres])
    places = places[(places >= 0) & (places < times)]
    sample_of_reference = reference[places][~np.isnan(reference[places])]
    sample, tops = [], []
    for values, seed in zip(members[:, places], seeds, strict=True):
        dry, dry_reference = (values <= THRESHOLD).mean(), (sample_of_reference <= THRESHOLD).mean()
        ordered = np.sort(values)
        if dry > dry_reference:
            # As xsdba rounds them: they may be equal.
            ranks = (np.arange(1, values.size + 1) / values.size - 1 / values.size) / (1 - 1 / values.size)
            replaced = (ranks >= (dry_reference / dry) * dry) & (ranks <= dry)
            top = np.float32(np.quantile(sample_of_reference.astype("f8"), dry))
            start = stream(seed, NEW_VALUE)
            draws = np.array([draw(np.uint64(start), (group << 32) + index) for index in range(replaced.sum())], "f4")
            ordered[replaced] = (top - THRESHOLD) * draws + THRESHOLD
            tops.append(top)
        sample.append(ordered)
    return np.concatenate(sample), np.array(tops)


@pytest.mark.parametrize("raw_threshold", [0.0, 0.01], ids=["ties", "noise"])
def test_quantiles_are_those_of_the_sorted_sample_with_the_same_draws(raw_threshold: float) -> None:
    time = winters("noleap", 6)
    dayofyear = numbers_of(time)[0]
    plan = plan_windows(dayofyear, 31)
    seeds = np.stack([qm.cell_seeds(name, np.arange(2)) for name in "abc"], axis=-1)
    reference = np.stack([rain(time, 0, 0.5), np.where(rain(time, 1, 0.95) > 1, rain(time, 1, 0) + 3, 0.2)]).astype(
        "f4"
    )
    shares = (0.5, 0.8, 0.3)
    historical = np.stack([[rain(time, 10 * cell + m, shares[m]) for m in range(3)] for cell in range(2)])
    # With fewer values than the members have, and a jump at the threshold, pth is interpolated to below it.
    historical[1] = [np.roll(reference[1], places) for places in (0, 20, 40)]
    reference[1, ::5] = np.nan
    if raw_threshold:
        historical = qm.jitter(historical, raw_threshold, seeds=seeds)
    quantiles = (np.arange(20) + 0.5) / 20
    made = qm.train(
        reference, historical, plan, quantiles=quantiles, kind="*", adapt_freq_thresh=1.0, seeds=seeds, raw=True
    )
    seen_below = 0
    for cell in range(2):
        for group in range(60):
            centres = np.flatnonzero(dayofyear == group + 1)
            sample, tops = brute_force_sample(reference[cell], historical[cell], time.size, centres, group, seeds[cell])
            seen_below += (tops < THRESHOLD).sum()
            expected = np.quantile(sample.astype("f8"), quantiles.astype("f4")) / sample.mean(dtype="f8")
            # A position in 558 values is round to 3e-5 in float32, and so are quantiles between distant values.
            np.testing.assert_allclose(made.historical_quantiles[cell, group], expected, rtol=5e-6, atol=3e-5)
            assert made.shares is not None
            found = made.shares.pth[cell, group]
            np.testing.assert_allclose(found[~np.isnan(found)], tops, rtol=1e-6)
    assert seen_below > 0


def test_draws_depend_on_the_member_and_the_place_in_the_domain_only() -> None:
    reference, historical, simulation = rainy("noleap", 3)
    jitter = {"thresh": "0.01 mm d-1"}
    training, scenario = ours(reference, historical, simulation, PR)
    sliced = slice(2, 5)
    by_slices = ours(*(one.isel(loc=sliced) for one in (reference, historical, simulation)), PR, first_cell=2)
    xr.testing.assert_equal(by_slices[0], training.isel(loc=sliced))
    xr.testing.assert_equal(by_slices[1], scenario.isel(loc=sliced))
    lazy = ours(*(one.chunk(loc=2) for one in (reference, historical, simulation)), PR)
    xr.testing.assert_equal(lazy[0].compute(), training)
    xr.testing.assert_equal(lazy[1].compute(), scenario)
    noisy = [
        blocks.train(
            reference, one, period=[1999, 2004], group=POOLED, xsdba_train_args=PR, jitter_under=jitter, seed="a"
        )
        for one in (historical, historical.isel(realization=[1]))
    ]
    assert not noisy[0].identical(training)
    alone = noisy[1]["P0_hist"].sel(realization="r2i1p1f1")
    xr.testing.assert_equal(noisy[0]["P0_hist"].sel(realization="r2i1p1f1"), alone)
    cells = np.arange(6)
    values = historical.transpose("loc", "realization", "time").values
    seeds = np.stack([qm.cell_seeds(f"a+{label}", cells) for label in historical.realization.values], axis=-1)
    whole, one = qm.jitter(values, 0.01, seeds=seeds), qm.jitter(values[:, 1], 0.01, seeds=seeds[:, 1])
    np.testing.assert_array_equal(whole[:, 1], one)


def test_xsdba_trains_pools_of_one_cell_without_sorting_their_members_into_each_other() -> None:
    """xsdba 0.7.0 sorts the historical data of a lone cell in place, before it counts each member's dry days."""
    reference, historical, _ = (one.isel(loc=[0]) for one in rainy("noleap", 3, whole_years))
    # By month, as xsdba takes long for each group.
    training = blocks.train(
        reference, historical, period=[1999, 2004], group={**POOLED, "group": "time.month", "window": 1},
        xsdba_train_args=PR, seed="a", engine="xsdba",
    )  # fmt: skip
    expected = (historical <= 1).groupby("time.month").mean("time")
    found = training["P0_hist"].transpose(*expected.dims)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("n_members", [1, 3])
def test_a_lazy_training_has_blocks_of_one_size_though_its_series_have_others(n_members: int) -> None:
    reference, historical, _ = rainy("noleap", n_members)
    training = blocks.train(
        reference.chunk(loc=4), historical.chunk(loc=5), period=[1999, 2004], group=POOLED, xsdba_train_args=PR
    )
    first, *others = training.chunksizes["loc"]
    assert all(size == first for size in others[:-1]) and others[-1] <= first


def test_a_pools_scenario_names_the_arguments_of_its_training_as_xscen_does() -> None:
    reference, historical, _ = (one.chunk(loc=-1) for one in rainy("noleap", 2))
    noise = {"thresh": "0.01 mm d-1"}
    training = blocks.train(
        reference, historical, period=[1999, 2004], group=POOLED, xsdba_train_args=PR, jitter_under=noise
    )
    scenario = blocks.adjust(historical, training, periods=[1999, 2004], xsdba_adjust_args={"detrend": LOESS})
    assert scenario.attrs["bias_adjustment"].endswith(
        f" with xsdba_train_args: {PR | {'max_tail_factor': 2.0}}"
        f", ref and hist were prepared with jitter_under_thresh(ref, hist, {noise})"
    )


def test_scaling_pools_members() -> None:
    reference, historical, _ = rainy("noleap", 2, whole_years)
    training = blocks.train(
        reference,
        historical,
        period=[1999, 2004],
        group={**POOLED, "group": "time.month", "window": 1},
        method="Scaling",
        xsdba_train_args={"kind": "+"},
        seed="a",
    )
    scenario = blocks.adjust(historical, training, periods=[1999, 2004], seed="a")
    bias = historical.mean(["time", "realization"]) - reference.mean("time")
    np.testing.assert_allclose((historical - scenario).mean(["time", "realization"]), bias, atol=0.15)


def train_badly(**changed: Any) -> None:
    reference, historical, _ = rainy("noleap", 2)
    changed = {"group": POOLED, "xsdba_train_args": PR, "seed": "a", **changed}
    change = changed.pop("change", lambda data: data)
    blocks.train(reference, change(historical), period=[1999, 2004], **changed)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"group": {**POOLED, "add_dims": ["member"]}}, ConfigurationError, "group.add_dims.0: Input should be"),
        ({"group": {**POOLED, "add_dims": []}}, ConfigurationError, "2 members along realization"),
        ({"xsdba_train_args": {**PR, "kind": "+"}}, ConfigurationError, 'adapt_freq_thresh .* needs kind "\\*"'),
        ({"adapt_freq": {"thresh": "1 mm d-1"}}, ConfigurationError, "a pool needs adapt_freq_thresh"),
        ({"additive_space": {"lower_bound": "0 mm d-1"}}, ConfigurationError, 'additive_space needs kind "\\+"'),
        (
            {"additive_space": {"lower_bound": "0 mm d-1"}, "xsdba_train_args": {"kind": "+", "max_tail_factor": 2}},
            ConfigurationError,
            "additive_space and max_tail_factor, which compares amounts, exclude each other",
        ),
        ({"change": lambda data: data.isel(realization=0)}, DataError, "the group pools it"),
        ({"change": lambda data: data.isel(time=slice(60, None))}, DataError, "training needs the same time stamps"),
        ({"change": lambda data: data.assign_attrs(units="K")}, DataError, "K"),
        (
            {"change": lambda data: data.assign_coords(realization=["a", "a"])},
            DataError,
            "members of the same name along realization: a, a",
        ),
        (
            {"change": lambda data: data.where(data.realization == "r1i1p1f1")},
            DataError,
            "No value of the members r2i1p1f1 in .*2004.* needs the same years",
        ),
    ],
)  # fmt: skip
def test_a_pool_that_cannot_be_trained_says_why(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        train_badly(**changed)


def test_other_members_than_the_trained_ones_are_refused() -> None:
    reference, historical, simulation = rainy("noleap", 2)
    with pytest.raises(DataError, match="has the members r2i1p1f1, and the training r1i1p1f1, r2i1p1f1"):
        training, _ = ours(reference, historical, simulation, PR)
        blocks.adjust(
            simulation.isel(realization=[1]), training, periods=[1999, 2008], xsdba_adjust_args={"detrend": LOESS}
        )


@pytest.mark.long
@pytest.mark.parametrize(("order", "mixes"), [("realization time loc", True), ("time realization loc", False)])
def test_xsdba_mixes_the_members_of_any_number_of_cells_in_the_order_of_v2s_stores(order: str, mixes: bool) -> None:
    import xsdba

    days = days_of("noleap", 1999, 6)
    reference, historical, _ = rainy("noleap", 3, lambda *_: days[days.dt.dayofyear <= 4])
    given = historical.isel(loc=[0, 2, 5]).transpose(*order.split())
    given = given.copy(data=np.ascontiguousarray(given.values))
    windows = (given <= 1).astype(float).rolling(time=3, center=True).construct("window", fill_value=np.nan)
    expected = windows.groupby("time.dayofyear").mean(["time", "window"])
    group = xsdba.Grouper("time.dayofyear", 3, add_dims=["realization"])
    trained = xsdba.DetrendedQuantileMapping.train(reference.isel(loc=[0, 2, 5]), given, group=group, **PR)
    found = trained.ds["P0_hist"].transpose(*expected.dims)
    assert (float(abs(found - expected).max()) > 0.1) is mixes
