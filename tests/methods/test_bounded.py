"""Bounded variables in the kernels: xsdba's numbers, and values that never leave their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from espo_luigi.config.usual import give_usual_settings
from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods import blocks
from espo_luigi.methods.base import Method, Setup, checked, method_named
from espo_luigi.methods.bounded import Bounded
from espo_luigi.methods.dqm.method import Kernels
from espo_luigi.methods.xsdba import Training
from espo_luigi.science.calendar import TimeAxis

pytestmark = pytest.mark.filterwarnings("ignore")
ISIMIP = Path(__file__).parents[2] / "../shared/data/isimip-berlin"
LOGIT = {"lower_bound": "0 %", "upper_bound": "100 %", "trans": "logit", "clip_next_to_bounds": "permissive"}
MARGIN = {"lower_bound": "0 %", "upper_bound": "100 %", "trans": "logit", "margin": "1 %"}
UNITS = {"hurs": "%", "rsds": "W m-2", "sfcWind": "m s-1"}
DQM, QDM = "DetrendedQuantileMapping", "QuantileDeltaMapping"


def space_of(variable: str) -> dict[str, str]:
    """The usual `additive_space` of a variable."""
    log = {"lower_bound": f"0 {UNITS[variable]}", "trans": "log", "clip_next_to_bounds": "strict"}
    return LOGIT if variable == "hurs" else log


def first_weeks(data: xr.DataArray) -> xr.DataArray:
    """The first 40 days of each year: xsdba takes as long for a day of year as for all of its years."""
    return data.isel(time=data.time.dt.dayofyear.values <= 40)


def trained_on(
    method: Method, series: Mapping[str, xr.DataArray], space: Mapping[str, Any]
) -> tuple[dict[str, xr.DataArray], xr.Dataset, Setup]:
    """Train on (cell, [realization], time), without the blocks around it; return what an adjustment takes."""
    known, simulation = series["historical"], series["simulation"]
    members = tuple("abc"[: simulation.sizes["realization"]]) if "realization" in simulation.dims else None
    group = {"group": "time.dayofyear", "window": 31} | ({"add_dims": ["realization"]} if members else {})
    setup = Setup(
        units={str(simulation.name): simulation.attrs["units"]},
        time=TimeAxis.of(known),
        dtype=known.dtype,
        training={"group": group, "xclim_train_args": {"kind": "+", "nquantiles": 50}, "additive_space": space},
        seed="a",
        members=members,
    )
    cell = xr.DataArray(np.arange(known.sizes["cell"]), dims="cell")
    trained = method.train({"reference": series["reference"], "historical": known, "cell": cell}, setup)
    trained = trained.assign_coords(quantiles=method.layout(setup)["af"].dims["quantiles"])
    # Our training has the other days of the year, too, as NaN.
    trained = trained.isel(dayofyear=slice(known.time.dt.dayofyear.values.max()))
    how: dict[str, Any] = {"detrend": {"LoessDetrend": {}}} if "scaling" in trained else {}
    adjusting = replace(setup, time=TimeAxis.of(simulation), adjusting={"periods": [1, 2], "xclim_adjust_args": how})
    assert Kernels.why_not(adjusting, method.variant or DQM) is None
    return {"simulation": simulation, "cell": cell}, trained, adjusting


def scenario_of(method: Method, series: Mapping[str, xr.DataArray], space: Mapping[str, Any]) -> xr.DataArray:
    return method.adjust(*trained_on(method, series, space))["scenario"]


def both(series: Mapping[str, xr.DataArray], space: Mapping[str, Any]) -> tuple[xr.DataArray, xr.DataArray]:
    """The kernels' scenario and xsdba's."""
    ours = scenario_of(Kernels(), series, space)
    return ours, scenario_of(method_named(engine="xsdba"), series, space).transpose(*ours.dims)


def assert_but_for_few(ours: xr.DataArray, xsdbas: xr.DataArray, rtol: float) -> None:
    """Equal to round-off, but for a neighbouring quantile on at most one day in 1000."""
    apart = ~np.isclose(ours, xsdbas, rtol=rtol, atol=1e-6, equal_nan=True)
    assert apart.mean() <= 0.001
    np.testing.assert_allclose(ours, xsdbas, rtol=0.1, atol=1e-6)


def generated(dtype: str, members: int = 0) -> dict[str, xr.DataArray]:
    """Humidity with days of exactly 0 and 100 %, some beyond, and missing days: three cells."""
    random = np.random.default_rng(5)

    def one(first: int, years: int, a: float, shape: tuple[int, ...]) -> xr.DataArray:
        time = xr.date_range(f"{first}-01-01", f"{first + years - 1}-12-31", calendar="noleap", use_cftime=True)
        values = 100 * random.beta(a, 2, (*shape, time.size))
        values[..., ::50], values[..., 7::40], values[..., 9::300], values[1, ..., 100:110] = 0, 100, 104.5, np.nan
        dims = ["cell", "realization", "time"] if len(shape) == 2 else ["cell", "time"]
        made = xr.DataArray(values.astype(dtype), {"time": time}, dims, "hurs", {"units": "%"})
        return first_weeks(made)

    shape = (3, members) if members else (3,)
    return {
        "reference": one(2001, 8, 3, (3,)),
        "historical": one(2001, 8, 5, shape),
        "simulation": one(2030, 11, 4, shape),
    }


def over_berlin(variable: str) -> dict[str, xr.DataArray]:
    """Four cells of the reference, and of the model."""
    files = {"reference": "obs-hist_fine_1979-2014", "historical": "sim-hist_coarse_1979-2014"}
    series = {}
    for name, file in {**files, "simulation": "sim-fut_coarse_2065-2100"}.items():
        with xr.open_dataset(ISIMIP / f"{variable}_{file}.nc") as ds:
            cells = ds[variable].isel(lon=slice(2), lat=slice(2)).stack(cell=["lon", "lat"], create_index=False)
            kept = cells.transpose("cell", "time").load().drop_vars(["lat", "lon"])
            series[name] = kept.convert_calendar("noleap", use_cftime=True)
    return series


without_isimip = pytest.mark.skipif(not ISIMIP.is_dir(), reason="no ../shared/data/isimip-berlin beside the project")


@without_isimip
@pytest.mark.parametrize("variable", ["hurs", "rsds", "sfcWind"])
def test_a_real_variable_is_adjusted_as_xsdba_does_in_its_additive_space(variable: str) -> None:
    series = {name: first_weeks(data) for name, data in over_berlin(variable).items()}
    ours, xsdbas = both(series, space_of(variable))
    assert_but_for_few(ours, xsdbas, 2e-5)
    assert ours.min() >= 0 and ours.max() <= (100 if variable == "hurs" else np.inf)


@without_isimip
def test_days_of_100_percent_become_what_the_page_on_the_method_says() -> None:
    series = over_berlin("hurs")
    scenario, raw = scenario_of(Kernels(), series, MARGIN).values, series["simulation"].values
    full = scenario[raw >= 100]
    assert round(float((raw >= 100).mean()), 3) == 0.003
    assert round(float(raw.max()), 1) <= 105.6 and round(float(series["reference"].max()), 1) == 99.7
    assert (round(float(full.min()), 1), round(float(np.median(full)), 1)) == (95.9, 98.1)
    assert round(float(full.max()), 1) == 99.5


def test_zeros_distort_a_logarithm_unless_noise_replaces_them_as_the_page_says() -> None:
    random, time = np.random.default_rng(0), xr.date_range("1981-01-01", "2010-12-31", calendar="noleap")

    def wind(zeros: float, scale: float) -> xr.DataArray:
        values = random.gamma(3, scale, (2, time.size)) * (random.random((2, time.size)) >= zeros)
        return xr.DataArray(values.astype("float32"), {"time": time}, ["loc", "time"], "wind", {"units": "m s-1"})

    reference, simulation = wind(0, 1), wind(0.02, 1.5)
    too_high = []
    noises: list[dict[str, Any]] = [{}, {"jitter_under": {"thresh": "0.1 m s-1"}}]
    for noise in noises:
        group = {"group": "time.dayofyear", "window": 31}
        train: dict[str, Any] = {
            "period": [1981, 2010],
            "group": group,
            "xsdba_train_args": {"nquantiles": 50},
            **noise,
        }
        training = blocks.train(reference, simulation, additive_space=space_of("sfcWind"), seed="a", **train)
        how: dict[str, Any] = {"detrend": {"LoessDetrend": {}}}
        scenario = blocks.adjust(simulation, training, periods=[1981, 2010], xsdba_adjust_args=how, seed="a", **noise)
        too_high.append(float(scenario.mean() / reference.mean()) - 1)
    assert 0.02 < too_high[0] < 0.05 and abs(too_high[1]) < 0.005


@pytest.mark.parametrize("members", [0, 2])
def test_days_at_and_beyond_the_bounds_are_those_of_xsdba(members: int) -> None:
    ours, xsdbas = both(generated("float32", members), LOGIT)
    assert_but_for_few(ours, xsdbas, 2e-5)
    assert ours.min() >= 0 and ours.max() <= 100


@pytest.mark.parametrize("engine", ["auto", "xsdba"])
def test_a_margin_is_xsdbas_transformation_by_wider_bounds_of_limited_values(engine: Any) -> None:
    from xsdba.processing import from_additive_space, to_additive_space

    wider = {"lower_bound": "-1 %", "upper_bound": "101 %", "trans": "logit"}
    series, method = generated("float32"), Kernels() if engine == "auto" else method_named(engine=engine)
    limited = {name: data.clip(0, 100, keep_attrs=True) for name, data in series.items()}
    transforms = {name: to_additive_space(data, **wider).assign_attrs(units="%") for name, data in limited.items()}
    assert float(transforms["simulation"].max()) == pytest.approx(np.log(101), rel=1e-5)
    back = from_additive_space(scenario_of(method, transforms, {}), **wider, units="%").clip(0, 100)
    np.testing.assert_allclose(scenario_of(method, series, MARGIN), back, rtol=1e-6, atol=1e-5)


# The shares of days at 0 and at 100 %, and the parameters of the other days: of reference, historical and simulation.
CLOUDS = [((0.02, 0), (4, 2.4)), ((0.05, 0), (4, 2.8)), ((0.1, 0), (4, 2.8))]
DAMP = [((0, 0.05), (4.2, 3.1)), ((0, 0.2), (4.2, 3.0)), ((0, 0.1), (4.2, 3.0))]


@pytest.mark.parametrize("shares", [DAMP, CLOUDS], ids=["hurs", "clt"])
# Detrended quantile mapping keeps the mean's change, here but for what the logit bends. Quantile delta mapping keeps
# that of each quantile: the 10 % of the days that leave 100 % lose up to half of the range, 5 % in the mean.
@pytest.mark.parametrize(("method", "tolerance"), [(DQM, 1.0), (QDM, 6.0)])
def test_a_changing_share_of_days_at_a_bound_leaves_the_other_days_where_they_are(
    shares: list[Any], method: str, tolerance: float
) -> None:
    random, made = np.random.default_rng(3), []
    for first, ((zero, full), beta) in zip((1981, 1981, 2041), shares, strict=True):
        time = xr.date_range(f"{first}-01-01", f"{first + 29}-12-31", calendar="noleap")
        a, b = beta
        values, chance = 100 * random.beta(a, b, (2, len(time))), random.random((2, len(time)))
        values[chance < zero], values[chance > 1 - full] = 0, 100
        made.append(xr.DataArray(values.astype("f4"), {"time": time}, ["loc", "time"], "hurs", {"units": "%"}))
    reference, historical, simulation = made
    train: dict[str, Any] = {"period": [1981, 2010], "group": {"group": "time.dayofyear", "window": 31}}
    train |= {"xsdba_train_args": {"nquantiles": 50}, "method": method, "additive_space": MARGIN}
    training = blocks.train(reference, historical, seed="a", **train)
    adjust: dict[str, Any] = {"xsdba_adjust_args": {"detrend": {"LoessDetrend": {}}}}
    if method == QDM:
        adjust = {"xsdba_adjust_args": {"rank_window": True}, "moving_yearly_window": {"window": 30, "step": 10}}
    scenario = blocks.adjust(simulation, training, periods=[2041, 2070], seed="a", **adjust)
    assert f"transformed with to_additive_space({MARGIN})" in scenario.attrs["bias_adjustment"]
    windows = "moving_yearly_window={'window': 30, 'step': 10}"
    assert (windows in scenario.attrs["bias_adjustment"]) == (method == QDM)
    expected = float(reference.mean() + simulation.mean() - historical.mean())
    assert abs(float(scenario.mean()) - expected) < tolerance


def of_usual_settings(variable: str, data: list[xr.DataArray]) -> xr.DataArray:
    """The scenario of reference, historical and simulation by a variable's usual settings."""
    content: dict[str, Any] = {"biasadjust": {"variables": {variable: {}}}}
    give_usual_settings(content)
    how = content["biasadjust"]["variables"][variable]
    train = blocks.train(data[0], data[1], seed="a", period=[1981, 1996], **how["training_args"])
    return blocks.adjust(data[2], train, seed="a", periods=[2041, 2057], **how["adjusting_args"])


@pytest.mark.parametrize(("variable", "units"), [("rsds", "W m-2"), ("pr", "mm d-1"), ("snw", "kg m-2")])
def test_days_that_are_zero_in_each_year_stay_zero_with_the_usual_settings(variable: str, units: str) -> None:
    random, data = np.random.default_rng(3), []
    for first, years, scale in ((1981, 16, 20), (1981, 16, 25), (2041, 17, 26)):
        time = xr.date_range(f"{first}-01-01", f"{first + years - 1}-12-31", calendar="noleap", use_cftime=True)
        values = np.where(time.dayofyear <= 60, 0, random.gamma(2, scale, time.size))[None]
        data.append(xr.DataArray(values.astype("f4"), {"time": time}, ["loc", "time"], variable, {"units": units}))
    scenario = of_usual_settings(variable, data)
    assert not scenario.isnull().any()
    assert (scenario.values[data[2] == 0] == 0).all() and (scenario.values[data[2] > 0] > 0).all()


@pytest.mark.parametrize("members", [0, 2])
def test_quantile_delta_mapping_of_transforms_is_that_of_the_bounded_variable(members: int) -> None:
    from xsdba.processing import from_additive_space, to_additive_space

    series, kernels = generated("float32", members), Kernels(QDM)
    scenario = scenario_of(kernels, series, LOGIT)
    transforms = {name: to_additive_space(data, **LOGIT).assign_attrs(units="%") for name, data in series.items()}
    adjusted = scenario_of(kernels, transforms, {})
    bounds = {name: text for name, text in LOGIT.items() if name != "clip_next_to_bounds"}
    np.testing.assert_allclose(scenario, from_additive_space(adjusted, **bounds, units="%"), rtol=1e-6, atol=1e-30)
    assert abs(scenario - series["simulation"].values).max() > 1


@pytest.mark.parametrize("method", ["", QDM])
def test_the_steps_lead_by_the_transform_to_the_scenario(method: str) -> None:
    from xsdba.processing import to_additive_space

    kernels, series = Kernels(method), generated("float32", 2)
    job = trained_on(kernels, series, LOGIT)
    scenario = kernels.adjust(*job)["scenario"]
    transformed = to_additive_space(series["simulation"], **LOGIT)
    block, trained, setup = job
    one = {name: data.isel(cell=[2]) for name, data in block.items()}
    # 50 and 7 are days of 0 and of 100 %.
    for day in (0, 7, 50, 333):
        steps = kernels.steps(one, trained.isel(cell=[2]), setup, day, member=1)
        assert (steps[0].name, steps[-1].name, steps[-1].unit) == ("logit", "back", "%")
        assert steps[0].value == transformed[2, 1, day] and steps[0].unit == "1"
        assert steps[0].sentence == "ln((x - 0) / (100 - x)), x in %, at least next to the bounds."
        assert steps[-1].value == scenario[2, 1, day]
        assert {step.unit for step in steps[:-1]} == {"1"}


# The kernels that numba compiles for float64 are compared with xsdba elsewhere.
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("variable", ["hurs", "sfcWind"])
def test_transforms_are_xsdbas_bit_for_bit_and_its_inverses_to_round_off(variable: str, dtype: str) -> None:
    from xsdba.processing import from_additive_space, to_additive_space

    values = generated(dtype)["simulation"].assign_attrs(units=UNITS[variable])
    space = Bounded.of({variable: UNITS[variable]}, space_of(variable))
    assert space is not None
    made = space.transformed(values.values)
    assert made.dtype == dtype
    expected = to_additive_space(values, **space_of(variable))
    np.testing.assert_array_equal(made, expected)
    inverse, back = from_additive_space(expected).values, made.copy()
    space.put_back(back)
    np.testing.assert_allclose(back, inverse, rtol=1e-6 if dtype == "float32" else 1e-14)


def short(values: np.ndarray, first: int = 2001) -> xr.DataArray:
    """Series (cell, time) of the first 40 days of years."""
    time = xr.date_range(f"{first}-01-01", periods=365 * values.shape[1] // 40, calendar="noleap", use_cftime=True)
    time = time[time.dayofyear <= 40]
    return xr.DataArray(values, {"time": time}, ["cell", "time"], "hurs", {"units": "%"})


SPACES = st.sampled_from(
    [
        LOGIT,
        MARGIN,
        # Their nearest float32 lie beyond them.
        {"lower_bound": "0.7 %", "upper_bound": "1.1 %", "trans": "logit", "clip_next_to_bounds": "permissive"},
        {"lower_bound": "-100000 %", "upper_bound": "-99999 %", "trans": "logit", "clip_next_to_bounds": "permissive"},
        # A margin of theirs that float32 does not have.
        {"lower_bound": "-100000 %", "upper_bound": "-99999 %", "trans": "logit", "margin": "0.001 %"},
        {"lower_bound": "0 %", "margin": "0.1 %"},
        {"lower_bound": "0 %", "clip_next_to_bounds": "permissive"},
        {"lower_bound": "0.7 %", "upper_bound": "1.1 %", "trans": "log", "clip_next_to_bounds": "permissive"},
    ]
)


def limits(space: Mapping[str, str]) -> tuple[float, float]:
    lower, upper = (space.get(name, "inf %").partition(" ")[0] for name in ("lower_bound", "upper_bound"))
    return float(lower), float(upper)


@st.composite
def extremes(draw: st.DrawFn) -> tuple[dict[str, str], list[np.ndarray]]:
    """A space and three series of two cells: constant, at a bound, next to it, beyond it, and anything between."""
    space = draw(SPACES)
    lower, upper = map(np.float32, limits(space))
    top = np.minimum(upper, np.float32(1e37))
    inside = [np.nextafter(lower, top), np.nextafter(top, lower), np.float32(lower / 2 + top / 2)]
    values = st.sampled_from([lower, top, *inside, lower - 1, top + 1, np.float32("nan")])
    anything = st.floats(float(lower), float(min(top, 1e4)), width=32)
    element = draw(st.sampled_from([values, anything, values | anything]))
    return space, [draw(arrays("float32", (2, 200), elements=element, fill=values)) for _ in range(3)]


def everywhere(space: Mapping[str, str], *values: float) -> tuple[dict[str, str], list[np.ndarray]]:
    return dict(space), [np.full((2, 200), value, "float32") for value in values]


@settings(max_examples=60, deadline=None)
@given(extremes())
@example(everywhere(LOGIT, 100, 0, 100))
@example(everywhere(LOGIT, 0, 100, 0))
@example(everywhere(MARGIN, 100, 0, 100))
@example(everywhere(MARGIN, 0, 105.6, -3))
def test_no_input_leaves_the_bounds(given_: tuple[dict[str, str], list[np.ndarray]]) -> None:
    space, (reference, historical, simulation) = given_
    series = {"reference": short(reference), "historical": short(historical), "simulation": short(simulation, 2031)}
    scenario = scenario_of(Kernels(), series, space).values.astype("float64")
    lower, upper = limits(space)
    assert not np.any((scenario < lower) | (scenario > upper))
    complete = ~np.isnan(np.concatenate([reference, historical, simulation], axis=1)).any(axis=1)
    assert not np.isnan(scenario[complete]).any()


@settings(max_examples=100, deadline=None)
@given(SPACES, st.sampled_from(["float32", "float64"]), st.data())
def test_no_transform_leaves_the_bounds(space: dict[str, str], dtype: str, data: st.DataObject) -> None:
    values = data.draw(arrays(dtype, 20, elements=st.floats(-(2.0**99), 2.0**99, width=32)))
    bounded = Bounded.of({"hurs": "%"}, {"trans": "log"} | space)
    assert bounded is not None
    bounded.put_back(values)
    lower, upper = limits(space)
    assert lower <= values.astype("float64").min() and values.astype("float64").max() <= upper


@pytest.mark.parametrize(
    ("clip", "value", "message"),
    [
        ("strict", 100.5, "3 of 400 values of hurs of the simulation are outside of its bounds 0 to 100 %: they go"),
        (
            "strict",
            -1.0,
            r"they go from -1 to 50, and logit .* `biasadjust.variables.hurs.training_args.additive_space.",
        ),
        (None, 100.0, "3 of 400 values .* are at or outside of .*clip_next_to_bounds: strict or permissive`"),
    ],
)
@pytest.mark.parametrize("engine", ["auto", "xsdba"])
def test_values_that_have_no_transform_are_counted_and_the_key_is_named(
    engine: Any, clip: str | None, value: float, message: str
) -> None:
    fine, bad = np.full((2, 200), 50, "float32"), np.full((2, 200), 50, "float32")
    bad[1, 2:5] = value
    space = {name: text for name, text in LOGIT.items() if name != "clip_next_to_bounds"}
    space |= {"clip_next_to_bounds": clip} if clip else {}
    method = Kernels() if engine == "auto" else method_named(engine=engine)
    with pytest.raises(DataError, match=message):
        scenario_of(method, {"reference": short(fine), "historical": short(bad), "simulation": short(fine)}, space)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"upper_bound": None}, "logit needs both bounds, and upper_bound is missing"),
        ({"margin": "1 %"}, "margin limits values to the bounds, so clip_next_to_bounds is needless"),
        ({"upper_bound": "0 %"}, "expected an upper_bound above the lower_bound '0 %', and it is '0 %'"),
        ({"upper_bound": "100 K"}, "expected an upper_bound above the lower_bound '0 %', and it is '100 K'"),
        ({"lower_bound": "0"}, "additive_space.lower_bound: expected a number, a space and a unit"),
    ],
)
def test_bounds_that_cannot_be_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        checked(Training, {"period": [2001, 2005], "group": "time", "additive_space": LOGIT | changed}, "training_args")
