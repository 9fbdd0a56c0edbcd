"""In a known future a stationary bias is taken off, one that changes is found, and the numbers are xsdba's own."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xarray as xr
import xclim.indices
import xsdba
from scipy.stats import spearmanr

from espo_luigi.errors import DataError
from espo_luigi.methods import perfect_model
from espo_luigi.methods.perfect_model import ADJUSTED, RAW, SCALING, Adjustment, Plan, Sampling, shown_as
from espo_luigi.science.variables import Variable

CALIBRATION, LATER = (2001, 2020), (2041, 2060)
GROUP = {"group": "time.month"}


def series(
    seed: int, *, cells: int = 2, calendar: str = "noleap", bias: float = 0.0, warming: float = 3.0
) -> xr.DataArray:
    """Daily temperatures of 2001-2060 with a season, a trend and a bias."""
    time = xr.date_range("2001-01-01", "2060-12-30", calendar=calendar, use_cftime=True)
    years = np.arange(time.size) / (360 if calendar == "360_day" else 365)
    noise = np.random.default_rng(seed).normal(0, 4, (cells, time.size))
    values = 280 + bias + 12 * np.sin(2 * np.pi * years) + warming * np.clip(years - 20, 0, None) / 30 + noise
    coords = {"time": time, "lat": ("loc", np.linspace(45, 46, cells)), "lon": ("loc", np.linspace(-70, -69, cells))}
    return xr.DataArray(values.astype("float32"), coords, ("loc", "time"), "tasmax", {"units": "K"})


def by(method: str, kind: str = "+", name: str = "tasmax", **arguments: Any) -> Adjustment:
    """A method of xsdba by month."""
    train = {"period": CALIBRATION, "group": GROUP["group"], "xclim_train_args": {"kind": kind, **arguments}}
    return Adjustment((name,), method, train, {"periods": (2001, 2060)}, {"engine": "xsdba", "seed": "s"})


def compared(truth: xr.DataArray, simulation: xr.DataArray, **methods: Adjustment) -> xr.Dataset:
    name = str(truth.name)
    return perfect_model.compare(
        truth.to_dataset(),
        simulation.to_dataset(),
        plans={name: Plan(CALIBRATION)},
        methods={label: [how] for label, how in (methods or {ADJUSTED: by("Scaling")}).items()},
        sampling=Sampling([LATER], 10, "seed"),
    ).sel(variable=name, period="2041-2060")


def within_noise(found: xr.Dataset, aspect: str, method: str = ADJUSTED) -> xr.DataArray:
    error = abs(found[aspect].sel(adjustment=method)).mean("cell")
    return error.sel(property="mean") <= found["noise"].quantile(0.95, "replicate").sel(property="mean")


def test_a_stationary_bias_is_taken_off_and_stands_in_the_raw_level_only() -> None:
    found = compared(series(1), series(2, bias=5))
    assert within_noise(found, "level").all() and within_noise(found, "change").all()
    assert within_noise(found, "change", RAW).all() and not within_noise(found, "level", RAW).any()
    raw = found["level"].sel(adjustment=RAW, property="mean")
    assert raw.values == pytest.approx(5, abs=0.8)


def test_a_bias_that_changes_is_found_in_level_and_change() -> None:
    found = compared(series(1), series(2, bias=5, warming=7))
    assert not within_noise(found, "level").any() and not within_noise(found, "change").any()
    # 4 K more in 30 years, from 2021 on: the middle of 2041-2060 is 30 years later.
    assert found["change"].sel(adjustment=ADJUSTED, property="mean").values == pytest.approx(4, abs=0.8)


@pytest.mark.parametrize("pairs", [40, pytest.param(200, marks=pytest.mark.long)])
def test_two_realisations_of_one_climate_differ_beyond_noise_no_more_often_than_stated(pairs: int) -> None:
    beyond = []
    for seed in range(pairs):
        draws = np.random.default_rng(seed)
        one, other = (yearly_blocks(draws) for _ in range(2))
        periods = {"calibration": (2001, 2030), "later": (2031, 2060)}
        each = [perfect_model.climates(data, periods).sel(season="DJF", property="mean") for data in (one, other)]
        error = abs((each[1] - each[0]).diff("period")).mean("loc").item()
        noise = perfect_model.resampled(one, periods, f"seed {seed}").sel(season="DJF", property="mean")
        beyond.append(error > float(noise.quantile(0.95)))
    assert 0 < np.mean(beyond) <= 0.05


def yearly_blocks(draws: np.random.Generator) -> xr.DataArray:
    """Twelve days a year, one a month, with a value of the year's own: what varies is the year."""
    time = xr.date_range("2001-01-15", periods=720, freq="MS", calendar="noleap", use_cftime=True)
    values = np.repeat(draws.normal(0, 1, (2, 60)), 12, axis=1) + draws.normal(0, 0.5, (2, 720))
    return xr.DataArray(values, {"time": time}, ("loc", "time"), "tasmax", {"units": "K"})


def test_the_errors_of_a_pair_are_those_of_xsdbas_own_adjustment() -> None:
    truth, simulation = series(1), series(2, bias=3)
    found = compared(
        truth, simulation, **{ADJUSTED: by("EmpiricalQuantileMapping", nquantiles=20), SCALING: by("Scaling")}
    )
    group = xsdba.Grouper("time.month")
    inside = [one.sel(time=slice("2001", "2020")) for one in (truth, simulation)]
    for label, method, arguments in (
        (ADJUSTED, xsdba.EmpiricalQuantileMapping, {"nquantiles": 20}),
        (SCALING, xsdba.Scaling, {}),
    ):
        trained = method.train(*inside, group=group, kind="+", **arguments)
        adjusted = trained.adjust(simulation)
        error = [winter_mean(adjusted, years) - winter_mean(truth, years) for years in (CALIBRATION, LATER)]
        ours = found.sel(adjustment=label, season="DJF", property="mean")
        np.testing.assert_allclose(ours["level"], error[1], atol=2e-4)
        np.testing.assert_allclose(ours["change"], error[1] - error[0], atol=2e-4)


def test_quantile_delta_mapping_by_period_keeps_the_change_of_a_simulation_that_varies_more() -> None:
    truth, simulation = series(1), series(2, warming=7)
    simulation = (280 + 1.5 * (simulation - 280)).assign_attrs(simulation.attrs)
    apart = replace(by("QuantileDeltaMapping", nquantiles=50), adjusting={"periods": [CALIBRATION, LATER]})
    found = compared(truth, simulation, **{ADJUSTED: apart, SCALING: by("Scaling")})
    change = found["change"].sel(property="mean")
    np.testing.assert_allclose(change.sel(adjustment=ADJUSTED), change.sel(adjustment=RAW), atol=0.3)


def winter_mean(data: xr.DataArray, years: tuple[int, int]) -> np.ndarray:
    chosen = data.sel(time=slice(*map(str, years))).astype(float)
    return chosen.groupby("time.season").mean().sel(season="DJF").transpose("loc").values


def test_the_properties_are_xarrays_quantiles_and_xclims_share_of_wet_days() -> None:
    rain = series(3).copy(data=np.random.default_rng(4).gamma(0.5, 6, (2, series(3).sizes["time"]))).rename("pr")
    rain = rain.assign_attrs(units="mm d-1")
    found = perfect_model.climates(rain, {"later": LATER}, wet=1.0).sel(period="later", season="JJA")
    summer = rain.sel(time=slice("2041", "2060"))
    summer = summer.isel(time=summer.time.dt.season.values == "JJA")
    for name, level in {"q95": 0.95, "q99": 0.99}.items():
        np.testing.assert_allclose(found.sel(property=name), summer.quantile(level, "time"))
    shares = xclim.indices.wetdays_prop(rain.sel(time=slice("2041", "2060")), thresh="1 mm/day", freq="QS-DEC")
    expected = shares.isel(time=shares.time.dt.month.values == 6).mean("time")
    np.testing.assert_allclose(found.sel(property="wet_days"), expected, rtol=1e-9)


@pytest.mark.parametrize("method", ["DetrendedQuantileMapping", "QuantileDeltaMapping"])
def test_a_bounded_variable_is_compared_in_its_own_units_as_xsdba_transforms_and_adjusts_it(method: str) -> None:
    truth, simulation = (humidity(seed, drier) for seed, drier in ((1, 0.0), (2, 0.8)))
    bounds = {"lower_bound": "0 %", "upper_bound": "100 %", "trans": "logit"}
    given = by(method, name="hurs", nquantiles=20)
    found = perfect_model.compare(
        truth.to_dataset(),
        simulation.to_dataset(),
        plans={"hurs": Plan(CALIBRATION, **shown_as("hurs"))},
        methods={ADJUSTED: [replace(given, training={**given.training, "additive_space": bounds})]},
        sampling=Sampling([LATER], 10, "seed"),
    ).sel(variable="hurs", period="2041-2060", adjustment=ADJUSTED, season="DJF")
    assert found["units"].item() == "%" and not found["level"].sel(property="wet_days").notnull().any()
    unbounded = [xsdba.processing.to_additive_space(one.astype(float), **bounds) for one in (truth, simulation)]
    inside = [one.sel(time=slice("2001", "2020")) for one in unbounded]
    trained = getattr(xsdba, method).train(*inside, group=xsdba.Grouper("time.month"), kind="+", nquantiles=20)
    adjusted = xsdba.processing.from_additive_space(trained.adjust(unbounded[1]), **bounds, units="%")
    error = winter_mean(adjusted, LATER) - winter_mean(truth, LATER)
    np.testing.assert_allclose(found["level"].sel(property="mean"), error, atol=2e-3)


def humidity(seed: int, drier: float) -> xr.DataArray:
    """Relative humidity in percent that comes near to both bounds."""
    noise = series(seed, cells=1)
    values = 100 / (1 + np.exp(-(noise - 280) / 8 + drier))
    return values.astype("float32").rename("hurs").assign_attrs(units="%")


def test_units_and_dry_days_of_a_comparison_are_those_of_the_table() -> None:
    assert shown_as("pr") == {"units": "mm d-1", "wet": 1.0}
    assert shown_as("tasmax") == {"units": "", "wet": None}, "errors of temperatures are kelvins"
    assert shown_as("sfcWind") == {"units": "m s-1", "wet": None}
    assert shown_as("ozone", {"ozone": Variable(units="ppb", wet=2.0)}) == {"units": "ppb", "wet": 2.0}
    assert shown_as("ozone") == {"units": "", "wet": None}


def test_a_pair_of_two_calendars_is_compared_in_the_smaller() -> None:
    for calendars in (("360_day", "noleap"), ("noleap", "360_day")):
        truth, simulation = (series(seed, calendar=one) for seed, one in zip((1, 2), calendars, strict=True))
        found = compared(truth, simulation)
        assert found["level"].notnull().sel(property="mean").all() and within_noise(found, "level").all()


def test_cells_without_data_are_not_sampled_and_do_not_count() -> None:
    truth = series(1, cells=3)
    found = compared(truth.where(truth["lat"] > 45.2), series(2, cells=3))
    assert found["lat"].values.tolist() == [45.5, 46.0] and int(found["cells"]) == 2
    later = truth.where((truth["lat"] > 45.2) | (truth["time"].dt.year < 2050))
    assert int(compared(later, series(2, cells=3))["cells"]) == 2
    with pytest.raises(DataError, match="No cell of 3 has data in both"):
        compared(truth.where(truth["lat"] > 50), series(2, cells=3))


def test_a_grid_gives_the_errors_of_its_stacked_cells() -> None:
    truth, simulation = series(1, cells=4), series(2, cells=4)
    stacked = compared(truth, simulation)
    grids = [
        xr.DataArray(one.values.reshape(2, 2, -1), {"time": one["time"]}, ("lat", "lon", "time"), one.name, one.attrs)
        for one in (truth, simulation)
    ]
    on_grid = compared(*(one.assign_coords(lat=[45.0, 46.0], lon=[-70.0, -69.0]) for one in grids))
    for name in ("level", "change", "level_of_all", "noise"):
        np.testing.assert_allclose(on_grid[name].transpose(*stacked[name].dims), stacked[name], atol=1e-4)
    assert on_grid["lat"].values.tolist() == [45, 45, 46, 46]


def test_a_period_that_lacks_years_is_refused_with_both_numbers() -> None:
    with pytest.raises(DataError, match="tasmax has 10 of the 20 years 2051-2070; its years are 2001 to 2060"):
        perfect_model.climates(series(1), {"later": (2051, 2070)})


def related(seed: int, rho: float, *, warmer: float = 0.0) -> xr.Dataset:
    """Daily temperatures and precipitation of 2001-2060 with a correlation and no season, in two cells."""
    time = xr.date_range("2001-01-01", "2060-12-31", calendar="noleap", use_cftime=True)
    one, other = np.random.default_rng(seed).normal(0, 1, (2, 2, time.size))
    rain = np.exp(rho * one + np.sqrt(1 - rho**2) * other + warmer / 10)
    made = {"tasmax": (280 + warmer + 4 * one, "K"), "pr": (rain, "mm d-1")}
    data = {name: (("loc", "time"), values.astype("float32"), {"units": unit}) for name, (values, unit) in made.items()}
    return xr.Dataset(data, {"time": time})


def alike(rain: xr.DataArray) -> xr.DataArray:
    """Precipitation, all dry days alike."""
    return rain.where(rain >= 1, 0)


def compared_together(truth: xr.Dataset, simulation: xr.Dataset, **further: list[Adjustment]) -> xr.Dataset:
    return perfect_model.compare(
        truth,
        simulation,
        plans={name: Plan(CALIBRATION, **shown_as(name)) for name in ("tasmax", "pr")},
        methods={ADJUSTED: [by("Scaling"), by("Scaling", kind="*", name="pr")], **further},
        sampling=Sampling([LATER], 2, "seed", groups=[("tasmax", "pr")]),
    )


def test_errors_of_rank_correlations_are_scipys_and_stay_where_variables_are_adjusted_one_by_one() -> None:
    truth, simulation = related(1, -0.6), related(2, 0.3, warmer=3)
    found = compared_together(truth, simulation)
    error = found["dependence"].sel(joint="tasmax, pr", period="2041-2060")
    summer = [
        one.sel(time=slice("2041", "2060")).isel(loc=1).where(lambda ds: ds["time.season"] == "JJA", drop=True)
        for one in (truth.assign(pr=alike(truth["pr"])), simulation.assign(pr=alike(simulation["pr"])))
    ]
    expected = spearmanr(summer[1]["tasmax"], summer[1]["pr"])[0] - spearmanr(summer[0]["tasmax"], summer[0]["pr"])[0]
    assert float(error.sel(adjustment=RAW, season="JJA")[-1]) == pytest.approx(expected, abs=1e-5)
    noise = found["dependence_noise"].sel(period="2041-2060")
    assert (abs(error).mean("cell") > 5 * noise.sel(joint="tasmax, pr")).all()
    energy = found["dependence"].sel(joint="energy tasmax, pr").mean("cell").isel(period=0)
    assert (energy.sel(adjustment=RAW) > energy.sel(adjustment=ADJUSTED)).all()
    assert (energy > noise.sel(joint="energy tasmax, pr")).all()


def test_the_dependence_of_another_realisation_is_within_noise() -> None:
    found = compared_together(related(1, -0.6), related(2, -0.6))
    error = abs(found["dependence"].sel(adjustment=ADJUSTED)).mean("cell")
    assert (error <= found["dependence_noise"]).all()
    assert found["dependence_noise"].sel(joint="tasmax, pr").max() < 0.15


def test_variables_that_are_adjusted_together_get_the_truths_correlation_and_others_keep_the_wrong_one() -> None:
    training = {"period": CALIBRATION, "group": "time.month", "by_variable": {"pr": {"kind": "*"}}}
    together = Adjustment(("tasmax", "pr"), "MBCn", training, {"periods": [CALIBRATION, LATER]}, {"seed": "s"})
    alone = [by("DetrendedQuantileMapping"), by("DetrendedQuantileMapping", kind="*", name="pr")]
    found = compared_together(
        related(1, -0.6),
        related(2, 0.3, warmer=2),
        MBCn=[together],
        DQM=[replace(how, training={**how.training, "group": "time"}) for how in alone],
    ).sel(period="2041-2060", joint="tasmax, pr")
    error = abs(found["dependence"]).mean("cell")
    assert (error.sel(adjustment="MBCn") <= found["dependence_noise"]).all()
    assert (error.sel(adjustment="DQM") > 5 * found["dependence_noise"]).all()
    assert found["level"].sel(adjustment="MBCn", property=["mean", "q95"]).notnull().all()


@pytest.mark.filterwarnings("ignore")
def test_a_method_of_ibicus_adjusts_the_sampled_cells_as_ibicus_does() -> None:
    debias = pytest.importorskip("ibicus.debias", reason="needs the package ibicus: pip install -e '.[test]'")
    truth, simulation = series(1), series(2, bias=5, warming=7)
    periods = [CALIBRATION, LATER]
    how = Adjustment(("tasmax",), "ibicus.LinearScaling", {"period": CALIBRATION}, {"periods": periods}, {"seed": "s"})
    found = compared(truth, simulation, **{ADJUSTED: by("Scaling"), "ibicus.LinearScaling": how})
    of_ibicus = found.sel(adjustment="ibicus.LinearScaling", season="DJF", property="mean")
    known, before, later = (
        one.sel(time=slice(*map(str, years)))
        for one, years in ((truth, CALIBRATION), (simulation, CALIBRATION), (simulation, LATER))
    )
    made = later.astype(float)
    for cell in range(2):
        made[cell] = debias.LinearScaling.from_variable("tasmax").apply_location(
            *(one.values[cell].astype(float) for one in (known, before, later)),
            *(one["time"].values for one in (known, before, later)),
        )
    np.testing.assert_allclose(of_ibicus["level"], winter_mean(made, LATER) - winter_mean(truth, LATER), atol=2e-4)
    assert of_ibicus["level_of_all"].isnull() and found["level_of_all"].sel(adjustment=ADJUSTED, season="DJF")[0] > 0
