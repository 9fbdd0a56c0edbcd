"""Impossible values never reach a product: odd raw data are repaired or refused, or the product is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from espo_luigi.errors import DataError
from espo_luigi.methods import blocks
from espo_luigi.science.attributes import LET_THROUGH
from espo_luigi.science.chunks import join
from espo_luigi.science.derivations import daily_temperature_range
from espo_luigi.science.extract.input_problems import Problem, RawSeries
from espo_luigi.science.extract.input_values import value_problems
from espo_luigi.science.finalize.gaps import with_possible_values
from espo_luigi.science.finalize.scenario import Treatment, finish
from espo_luigi.science.limits import INPUT_PROBLEMS, SMALLEST_RANGE_K
from espo_luigi.science.possible import credible, limits_in, require_possible
from espo_luigi.science.variables import VARIABLES, Variable

UNITS = {"tasmax": "K", "tasmin": "K", "dtr": "K", "pr": "kg m-2 s-1"}
MM = 1 / 86400
CALIBRATION, YEARS = ("2001", "2005"), ("2001", "2010")


def test_limits_are_those_of_the_table_in_the_products_units() -> None:
    assert limits_in("tasmax", "degC") == pytest.approx((-93.15, 66.85))
    assert limits_in("tasmin", "K") == (180, 340)
    assert limits_in("dtr", "degC") == pytest.approx((0, 100)), "a difference"
    assert limits_in("pr", "mm d-1") == pytest.approx((0, 3000))
    assert limits_in("hurs", "1") == pytest.approx((0, 1))
    assert limits_in("hurs", "%", which="raw") == (-5, 200)
    assert limits_in("ozone", "ppb") == (-np.inf, np.inf)
    own = {"ozone": Variable(units="ug m-3", possible=(0, 1000), difference=False)}
    assert limits_in("ozone", "g m-3", own) == pytest.approx((0, 1e-3))


@pytest.mark.parametrize("lazy", [True, False])
def test_drizzle_below_zero_is_zero_and_a_range_that_is_none_the_smallest_and_nothing_else_changes(lazy: bool) -> None:
    pr = np.array([-1e-9, -0.0, 0.0, 1e-12, np.nan, 3.0], "f4")
    dtr = np.array([-3.0, 0.0, 1e-5, 0.5, np.nan, 12.0], "f4")
    given = xr.Dataset({"pr": ("time", pr, {"units": "mm d-1"}), "dtr": ("time", dtr), "tasmax": ("time", pr)})
    made = credible(given.chunk(time=2) if lazy else given)
    assert made.pr.values.tobytes() == np.array([0, -0.0, 0, 1e-12, np.nan, 3], "f4").tobytes()
    low = SMALLEST_RANGE_K
    assert made.dtr.values.tobytes() == np.array([low, low, 1e-5, 0.5, np.nan, 12], "f4").tobytes()
    assert made.tasmax.values.tobytes() == pr.tobytes() and made.pr.attrs == {"units": "mm d-1"}
    assert (made.pr.chunks is not None) == lazy


def test_the_smallest_range_is_half_a_kelvin_in_any_units() -> None:
    table = {"dtr": replace(VARIABLES["dtr"], units="degF")}
    made = credible(xr.Dataset({"dtr": ("time", np.array([-3.0, 12.0]), {"units": "degF"})}), table)
    np.testing.assert_allclose(made.dtr, [0.9, 12])


@pytest.mark.parametrize(("name", "units"), [("hurs", "%"), ("hurs", "1"), ("sfcWind", "m s-1"), ("snw", "kg m-2")])
def test_what_is_below_a_bound_by_round_off_is_at_the_bound_and_above_an_upper_bound_it_stays(
    name: str, units: str
) -> None:
    values = np.array([-0.02, -1e-20, 0.0, np.nan, 70.5, 105.6], "f4") / (100 if units == "1" else 1)
    made = credible(xr.Dataset({name: ("time", values, {"units": units})}))[name]
    assert made.values.tobytes() == np.array([0, 0, *values[2:]], "f4").tobytes()


def test_the_bounds_of_a_variable_of_one_s_own_hold_in_the_units_of_the_data_too() -> None:
    own = {"ozone": Variable(units="g m-3", bounds=(1e-6, None))}
    given = xr.Dataset({"ozone": ("time", np.array([0.5, 2.0]), {"units": "ug m-3"}), "other": ("time", [-1.0, 1.0])})
    made = credible(given, own)
    np.testing.assert_allclose(made.ozone, [1, 2])
    assert made.other.values.tolist() == [-1, 1], "nothing is known of it"


@pytest.mark.parametrize(("value", "units"), [(0.0, "K"), (np.inf, "K"), (81.0, "degC")])
def test_values_that_are_impossible_after_the_repairs_are_refused(value: float, units: str) -> None:
    usual = np.array([175.0, np.nan, 350.0], "f4") - (273.15 if units == "degC" else 0)
    sound = xr.DataArray(usual, dims="time", name="tasmax", attrs={"units": units}).chunk(time=1)
    xr.testing.assert_identical(require_possible(sound).compute(), sound.compute())
    checked = require_possible(sound.where([True, False, True], value))
    with pytest.raises(DataError, match=f"1 impossible values after its repairs, such as {value:g} {units}; expected"):
        checked.compute()


def test_a_value_that_is_impossible_after_the_repairs_is_named_with_its_date_and_cell() -> None:
    raw = weather(("2000", "2001"), 1)["tasmax"].chunk(time=100)
    raw = raw.where((raw.time != raw.time[400]) | (raw.lat != 46) | (raw.lon != -69), 999)
    with pytest.raises(DataError, match="such as 999 K on 2001-02-05 at latitude 46, longitude -69; expected"):
        require_possible(raw).compute()


def test_braces_in_names_and_units_of_files_are_text() -> None:
    da = xr.DataArray([np.inf], dims="time", name="{first.__class__}", attrs={"units": "{0}"})
    with pytest.raises(DataError, match=r"^\{first\.__class__\} has 1 impossible values .* inf \{0\}; expected finite"):
        require_possible(da).compute()


def weather(years: tuple[str, str], seed: int) -> xr.Dataset:
    """Weather of 3 x 3 cells with seasons: tasmax, tasmin 3 to 15 K lower, and rain on half of the days."""
    time = xr.date_range(f"{years[0]}-01-01", f"{years[1]}-12-31", calendar="noleap", use_cftime=True)
    draws, shape = np.random.default_rng(seed), (time.size, 3, 3)
    season = 12 * np.cos(2 * np.pi * (np.arange(time.size) - 200) / 365)[:, None, None]
    tasmax = 285 + season + draws.normal(0, 4, shape)
    rain = draws.gamma(0.6, 8, shape) * (draws.random(shape) < 0.5)
    values = {"tasmax": tasmax, "tasmin": tasmax - draws.uniform(3, 15, shape), "pr": rain * MM}
    coords = {"time": time, "lat": [45.0, 46.0, 47.0], "lon": [-70.0, -69.0, -68.0]}
    dims = ("time", "lat", "lon")
    return xr.Dataset({name: (dims, one.astype("f4"), {"units": UNITS[name]}) for name, one in values.items()}, coords)


@dataclass(frozen=True)
class Damage:
    """What is wrong with one of the two datasets: with these parts of the cells and of the days of a period."""

    kind: str = "none"
    variable: str = "pr"
    cells: float = 1.0
    days: float = 1.0
    period: str = "all"
    dataset: str = "simulation"

    def done(self, ds: xr.Dataset) -> tuple[xr.Dataset, int]:
        """Return the damaged dataset, and the number of values that were changed."""
        draws, out = np.random.default_rng(7), ds.copy(deep=True)
        number, years = ds.sizes["time"], ds["time"].dt.year.values
        inside = {"all": years > 0, "calibration": years <= 2005, "future": years > 2005}
        days = inside[self.period] & (draws.random(number) < self.days)
        hit = days[:, None, None] & (draws.permutation(9) < round(9 * self.cells)).reshape(3, 3)
        values, tasmax = out[self.variable].values, ds["tasmax"].values
        if self.kind == "drizzle below zero":
            hit = hit & (values < MM)
        made = {
            "none": values,
            "missing": np.nan,
            "infinite": np.inf,
            "fill value": 1e20,
            "zero": 0.0,
            "drizzle below zero": -draws.random(hit.shape) * 0.05 * MM,
            "far below zero": -5 * MM,
            "1000 times too small": values / 1000,
            "degrees Celsius": values - 273.15,
        }
        if self.kind == "meet":
            out["tasmin"].values[hit] = (tasmax + draws.uniform(-0.5, 0.5, hit.shape))[hit]
        elif self.kind == "exchanged":
            out["tasmax"].values[hit], out["tasmin"].values[hit] = ds["tasmin"].values[hit], tasmax[hit]
        else:
            values[hit] = np.broadcast_to(np.asarray(made[self.kind], "f4"), hit.shape)[hit]
        return out, int(hit.sum())


def problems_of(ds: xr.Dataset) -> list[Problem]:
    series = {str(name): [RawSeries(f"{name}.nc", data)] for name, data in ds.data_vars.items()}
    return value_problems(series, {"pr": (0.0, 0.02)}, "tasmax", CALIBRATION)


def product_of(reference: xr.Dataset, simulation: xr.Dataset, told: str = "") -> xr.Dataset:
    """Return what the rules make of raw data on the same cells, without their files; raises as they do."""

    def extracted(ds: xr.Dataset) -> xr.Dataset:
        return credible(ds.assign(dtr=daily_temperature_range(ds["tasmax"], ds["tasmin"])))

    reference, simulation, adjusted = extracted(reference), extracted(simulation), []
    detrend = {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}
    arguments: dict[str, dict[str, Any]] = {
        "tasmax": {"xclim_train_args": {"kind": "+", "nquantiles": 20}},
        "dtr": {"xclim_train_args": {"kind": "*", "nquantiles": 20}, "jitter_under": {"thresh": "1e-4 K"}},
        "pr": {
            "xclim_train_args": {"kind": "*", "nquantiles": 20},
            "jitter_under": {"thresh": "0.01 mm d-1"},
            "adapt_freq": {"thresh": "1 mm d-1"},
        },
    }
    for name, training_args in arguments.items():
        training_args |= {"group": {"group": "time.dayofyear", "window": 31}, "period": CALIBRATION}
        training = blocks.train(reference[name], simulation[name], seed=name, **training_args)
        made = blocks.adjust(
            simulation[name],
            training,
            periods=YEARS,
            xclim_adjust_args={"detrend": detrend, "interp": "nearest", "extrapolation": "constant"},
            jitter_under={"thresh": "1e-4 K"} if name == "dtr" else None,
            seed=f"{name}+adjust",
        )
        adjusted.append(made.to_dataset(name=name))
    land = xr.DataArray(np.ones((3, 3), bool), dims=("lat", "lon"), attrs={LET_THROUGH: told} if told else {})
    product = finish(join(adjusted), treatment=Treatment(round_var={"pr": 10}), temperatures="derived")
    return with_possible_values(product, land, on_impossible="fail")


@cache
def sound() -> tuple[xr.Dataset, xr.Dataset, xr.Dataset]:
    """Reference, simulation, and their product."""
    reference, simulation = weather(CALIBRATION, 1), weather(YEARS, 2)
    assert not problems_of(reference) and not problems_of(simulation)
    return reference, simulation, product_of(reference, simulation)


def outcome(damage: Damage) -> str:
    """Return "refused" or "flagged", or "right"; fail if a product has an impossible value, or a wrong count."""
    reference, simulation, clean = sound()
    whole = {"reference": reference, "simulation": simulation}
    whole[damage.dataset], changed = damage.done(whole[damage.dataset])
    problems = problems_of(whole[damage.dataset])
    if any(INPUT_PROBLEMS[found.kind].effect == "fail" for found in problems):
        return "refused"
    told = ", ".join(f"{found.kind} of {found.variable} ({found.count})" for found in problems)
    try:
        product = product_of(**whole, told=told)
    except DataError as error:
        assert "impossible values" in str(error)
        return "refused"
    if not changed or damage.kind == "none":
        xr.testing.assert_identical(product, clean)
        return "right"
    tasmax, tasmin, pr = (product[name].values for name in ("tasmax", "tasmin", "pr"))
    lacking = np.isnan(tasmax) | np.isnan(tasmin) | np.isnan(pr)
    assert lacking.sum() <= (changed if damage.kind == "missing" and damage.dataset == "simulation" else 0)
    assert not (tasmin > tasmax).any() and not (pr < 0).any()
    assert np.nanmin(tasmin) > 180 and np.nanmax(tasmax) < 340 and np.nanmax(pr) < 3000 * MM
    if damage.kind == "missing":
        counts = {found.kind: found.count for found in problems if found.variable == damage.variable}
        assert counts.get("missing_values", 0) + 9 * counts.get("maps_without_data", 0) == changed
        return "flagged"
    # The climate hardly changes: damage that is let through is small.
    for name, most in {"tasmax": 1.5, "tasmin": 1.5, "pr": 0.4 * MM}.items():
        assert abs(float(product[name].mean() - clean[name].mean())) < most, name
    return "flagged" if problems else "right"


def test_days_on_which_tasmin_meets_tasmax_keep_a_small_range() -> None:
    """With noise below 1e-4 K in their place, other days had ranges of thousands of kelvins."""
    reference, simulation, clean = sound()
    damaged, _ = Damage("meet", days=0.03).done(simulation)
    product = product_of(reference, damaged)
    met = (damaged["tasmax"] - damaged["tasmin"] < 0.5).values
    ranges = (product["tasmax"] - product["tasmin"]).values
    assert ranges[met].min() > 0 and ranges[met].max() < 10
    usual = (clean["tasmax"] - clean["tasmin"]).values
    np.testing.assert_allclose(ranges[~met], usual[~met], atol=2)


OF_PR, OF_TEMPERATURE = ("drizzle below zero", "far below zero", "1000 times too small"), ("zero", "degrees Celsius")


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    variable = draw(st.sampled_from(("tasmax", "tasmin", "pr")))
    both = ("meet", "exchanged")
    own = OF_PR if variable == "pr" else (*OF_TEMPERATURE, *both)
    kind = draw(st.sampled_from(("none", "missing", "infinite", "fill value", *own)))
    # Other units are those of whole files: rain of single cells or days may well be little.
    is_whole = kind == "1000 times too small"
    return Damage(
        kind,
        variable,
        1.0 if is_whole else draw(st.sampled_from((0.12, 0.34, 1.0))),
        1.0 if is_whole else draw(st.sampled_from((0.001, 0.01, 0.03, 0.04, 0.06, 0.2, 1.0))),
        draw(st.sampled_from(("all", "calibration", "future"))),
        draw(st.sampled_from(("simulation", "reference"))),
    )


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (Damage("none"), "right"),
        (Damage("meet", days=0.03), "flagged"),
        (Damage("exchanged"), "refused"),
        (Damage("drizzle below zero", days=0.6), "flagged"),
        (Damage("drizzle below zero", days=0.6, dataset="reference"), "flagged"),
        (Damage("far below zero", cells=0.12, days=0.001), "refused"),
        (Damage("1000 times too small"), "refused"),
        (Damage("1000 times too small", period="future"), "refused"),
        (Damage("missing", days=0.05, cells=0.34), "flagged"),
        (Damage("missing", period="future"), "refused"),
        (Damage("missing", days=0.05, dataset="reference"), "flagged"),
        (Damage("missing", days=0.2, cells=0.12, dataset="reference"), "refused"),
        (Damage("infinite", "tasmin", cells=0.12, days=0.001), "refused"),
    ],
)
def test_odd_raw_data_make_a_right_product_or_none(damage: Damage, expected: str) -> None:
    assert outcome(damage) == expected


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(damages())
def test_no_damage_makes_an_impossible_value(damage: Damage) -> None:
    outcome(damage)


@pytest.mark.long
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(damages())
def test_no_damage_of_many_makes_an_impossible_value(damage: Damage) -> None:
    outcome(damage)
