"""A ratio is a quotient of two small numbers: usual settings in climates where it hardly ever rains, or snow melts."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import xarray as xr
from climates import CALIBRATION, CLIMATES, FUTURE, OTHERS, Both, Climate, daily, measure
from generated import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from espo_luigi.config.usual import give_usual_settings, usual_settings
from espo_luigi.methods import blocks
from espo_luigi.science.variables import VARIABLES, variable

PERIODS = [[str(OTHERS[0]), str(FUTURE[1])]]
BY_RANK = "QuantileDeltaMapping"
# Maxima beyond 1.5 times what they should be: those of few wet days, and of snow that the future hardly has.
BEYOND = {("pr", "ties"): 1.9, ("snw", "temperate"): 1.7, ("snw", "ties"): 2.0}
METHODS = ["DetrendedQuantileMapping", BY_RANK, "MBCn"]


@functools.cache
def made(climate: str) -> dict[str, Both]:
    return daily(CLIMATES[climate])


def adjusted(both: Both, method: str, **more: Any) -> xr.DataArray:
    """The scenario by usual settings, with other arguments of the training laid over them."""
    name, period = str(both.model.name), [str(year) for year in CALIBRATION]
    content: Any = {"biasadjust": {"variables": {"one": {"method": method, "variables": [name]}}}}
    if method == "MBCn":
        content["custom"] = {"sim_period": PERIODS[0]}
        give_usual_settings(content)
        usual = content["biasadjust"]["variables"]["one"]
        series = [one.to_dataset(name=name) for one in (both.model, both.reference)]
        training = usual["training_args"] | {"period": period, "n_iter": 1} | more
        how = {"method": method, "training_args": training, "periods": PERIODS[0], "seed": "seed"}
        scenario = blocks.adjust_and_count(series[0], reference=series[1], **how, **usual["adjusting_args"])[name]
    else:
        usual = usual_settings(variable(name), method, pooled=False)
        if method == BY_RANK:
            usual["adjusting_args"]["moving_yearly_window"] = {"window": 30, "step": 10}
        trained = blocks.train(*both, period=period, seed="seed", **usual["training_args"] | more)
        scenario = blocks.adjust(both.model, trained, periods=PERIODS[0], seed="seed", **usual["adjusting_args"])
    return scenario.rename(name).transpose(*both.model.dims)


@pytest.mark.parametrize("method", [*METHODS[:2], pytest.param("MBCn", marks=pytest.mark.long)])
@pytest.mark.parametrize("climate", CLIMATES)
@pytest.mark.parametrize("name", ["pr", *(pytest.param(one, marks=pytest.mark.long) for one in ("prsn", "snw"))])
def test_mean_maximum_and_changes_stay_within_multiples_or_the_climate_is_flagged(
    name: str, climate: str, method: str
) -> None:
    both = made(climate)[name]
    scenario = adjusted(both, method)
    if float(both.reference.max()) == 0:  # no snow in the reference, as in the desert
        assert float(scenario.max()) == 0
        return
    found = measure(both, scenario)
    beyond = found.beyond(float(both.reference.mean()), BEYOND.get((name, climate), 1.5))
    assert not beyond or found.arid > 0, (beyond, found)
    # Nothing is invented, in arid cells either.
    assert max(found.highest, found.highest_later) < 3


def test_only_where_wet_days_are_few_is_a_climate_arid() -> None:
    for climate in ("polar", "temperate", "tropical", "snow line"):
        both = made(climate)["pr"]
        assert measure(both, both.model).arid == 0, climate
    both = made("desert")["pr"]
    assert measure(both, both.model).arid == 1, "by the simulation's own days, whatever adjusts them"


def sunny(seed: int, night: slice) -> np.ndarray:
    """Amounts of four years, (loc, time), without any in a season."""
    values = np.random.default_rng(seed).gamma(4, 30, (2, 4, 365)).astype(np.float32)
    values[..., night] = 0
    return values.reshape(2, -1)


@pytest.mark.parametrize(("name", "unit"), [("rsds", 1.0), ("huss", 1e-5), ("pr", 0.1)])
@pytest.mark.parametrize("night", [slice(None), slice(0, 60)], ids=["always", "in winter"])
def test_noise_in_place_of_zero_is_zero_again_by_rank(name: str, unit: float, night: slice) -> None:
    time = xr.date_range("1981-01-01", "1984-12-31", calendar="noleap", use_cftime=True)
    attrs = {"units": {"pr": "mm d-1"}.get(name, variable(name).units)}
    attrs["standard_name"] = variable(name).standard_name
    reference, model = (
        xr.DataArray(values * np.float32(unit), {"time": time}, ("loc", "time"), name, attrs)
        for values in (sunny(1, slice(0, 50)), sunny(2, night))
    )
    period, usual = ["1981", "1984"], usual_settings(variable(name), BY_RANK, pooled=False)
    usual["training_args"]["xclim_train_args"].pop("adapt_freq_thresh", None)  # no dry day is made wet
    for engine in ("auto", "xsdba") if name == "rsds" else ("auto",):
        how = {"engine": engine, "seed": "seed"}
        trained = blocks.train(reference, model, period=period, **usual["training_args"], **how)
        scenario = blocks.adjust(model, trained, periods=period, **usual["adjusting_args"], **how)
        is_dark = model.values == 0
        assert is_dark.any() and (scenario.transpose(*model.dims).values[is_dark] == 0).all()


@pytest.mark.parametrize("method", METHODS[:2])
def test_ratios_below_small_amounts_are_xsdbas_or_two(method: str) -> None:
    both = made("coast")["pr"]
    train = {"kind": "*", "nquantiles": 20}
    given: dict[str, Any] = {"method": method, "group": {"group": "time.dayofyear", "window": 31}, "seed": "seed"}
    given |= {"period": ["1981", "1984"], "xclim_train_args": train}
    # Without zeros, whose ratios to each other are no numbers.
    model, reference = (one.isel(loc=[0]).clip(min=0.001) for one in both)  # which drizzles here
    small = {"small_amounts": {"thresh": "0.1 mm d-1"}}
    free, limited, by_xsdba = (
        blocks.train(reference, model, engine=engine, **given, **more).transpose("loc", "dayofyear", "quantiles")
        for engine, more in (("xsdba", {}), ("auto", small), ("xsdba", small))
    )
    scaling = free.get("scaling", xr.ones_like(free["af"].isel(quantiles=0, drop=True)))
    days = model.sel(time=slice("1981", "1984"))
    mean = days.rolling(time=31, center=True).construct("day").groupby("time.dayofyear").mean(("time", "day"))
    is_small = free["hist_q"] * (mean if "scaling" in free else 1) < 0.1
    expected = free["af"].where(~is_small | (free["af"] * scaling <= 2), 2 / scaling)
    assert (expected != free["af"]).any() and (expected == free["af"]).any()
    for found in (limited, by_xsdba):
        xr.testing.assert_allclose(
            found["af"].drop_attrs(), expected.drop_attrs().transpose(*found["af"].dims), rtol=1e-4
        )


@pytest.mark.parametrize("years", [3, 30])
def test_dry_days_become_wet_as_often_as_in_the_reference_and_keep_the_change(years: int) -> None:
    rain = Climate((0.4, 0.2), (0.4, 0.2), (6, 6), 10, 5, more_rain=1)
    both = daily(rain, cells=4)["pr"]
    # In the future, three of four wet days are lost.
    lost = np.random.default_rng(3).random(both.model.shape) < 0.75
    later = (both.model["time"].dt.year >= FUTURE[0]).values
    model = both.model.copy(data=np.where(lost & later, np.float32(0), both.model.values))
    usual = usual_settings(variable("pr"), METHODS[0], pooled=False)
    trained = blocks.train(both.reference, model, period=["1981", "2010"], seed="seed", **usual["training_args"])
    shares, expected = [], []
    wet, before = (float((one.sel(time=slice("1981", "2010")) > 1).mean()) for one in (both.reference, model))
    for first in (CALIBRATION[0], FUTURE[0]):
        period = [str(first), str(first + years - 1)]
        scenario = blocks.adjust(model, trained, periods=period, seed="seed", **usual["adjusting_args"])
        shares.append(float((scenario > 1).mean()))
        expected.append(float((model.sel(time=slice(*period)) > 1).mean()) * wet / before)
    assert shares == pytest.approx(expected, rel=0.03 if years == 30 else 0.1)
    assert years == 3 or shares[1] / shares[0] == pytest.approx(1 / 4, rel=0.05)


@given(
    st.sampled_from([name for name, row in VARIABLES.items() if row.kind == "*" and not row.is_range]),
    st.sampled_from(METHODS),
    st.floats(-3, 0),
    st.floats(-1, 0.7),
    st.sampled_from([0.0, 0.01, 0.1, 0.4]),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
)
@settings(deadline=None, max_examples=examples(3), derandomize=True)
def test_no_climate_makes_amounts_that_neither_reference_nor_model_have(
    name: str, method: str, wet: float, bias: float, drizzle: float, step: float, dry_season: bool
) -> None:
    share = 10**wet, min(1.0, 10 ** (wet + bias))
    season = (0.0, 0.0) if dry_season else share
    climate = Climate(share, season, (8, 6), 5, 9, drizzle=drizzle, step=step)
    both = daily(climate, cells=2)[name if name in ("prsn", "snw") else "pr"]
    jitter = variable(name).jitter
    assert jitter is not None
    if name not in ("pr", "prsn", "snw"):
        # As many times the noise as precipitation is.
        unit, attrs = np.float32(jitter / 0.01), {"units": variable(name).units}
        both = Both(*((one * unit).rename(name).assign_attrs(attrs) for one in both))
    scenario = adjusted(both, method)
    assert np.isfinite(scenario).all() and float(scenario.min()) >= 0
    most = max(float(both.reference.max()), float(both.model.max()))
    assert float(scenario.max()) <= 3 * most, (float(scenario.max()), most)
