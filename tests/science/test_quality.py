"""Planted defects raise their flags, where they are and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.config.health_checks import FlagsSection
from espo_luigi.science import quality

CELLS = 5
PERIOD = ["1981", "2000"]


def series(seed: int, name: str = "tasmax", last: int = 2030, trend: float = 0.05) -> xr.DataArray:
    """Daily temperatures of five cells, a season of +-12 K and noise of 3 K; or sums of a gamma distribution."""
    time = xr.date_range("1981-01-01", f"{last}-12-31", calendar="noleap", use_cftime=True)
    random, days = np.random.default_rng(seed), np.arange(time.size)
    if name == "pr":
        values = random.gamma(0.8, 3, (CELLS, time.size)) * (1 + trend / 10 * days / 365)
    else:
        season = -12 * np.cos(2 * np.pi * (days % 365) / 365)
        values = 280 + season + trend * days / 365 + np.clip(random.normal(0, 3, (CELLS, time.size)), -7, 7)
    units = {"pr": "mm d-1"}.get(name, "K")
    return xr.DataArray(values.astype("f4"), {"time": time}, ("loc", "time"), name, {"units": units})


def flags(scenario: xr.DataArray, simulation: xr.DataArray, reference: xr.DataArray, **more: Any) -> xr.Dataset:
    """The flags with the usual tolerances."""
    kind = "*" if scenario.name == "pr" else "+"
    given: dict[str, Any] = {"period": PERIOD, "kind": kind, "tolerances": FlagsSection().model_dump()}
    made = quality.of_adjusted(scenario, simulation.to_dataset(), reference, **given | more)
    return xr.Dataset(made).compute()


def where(made: xr.Dataset, flag: str, of: str = "days") -> np.ndarray:
    """Where a flag is raised: (loc, time), or (loc)."""
    (one,) = (data for name, data in made.data_vars.items() if name.endswith("_cell_flags") == (of == "cells"))
    return (one.values & quality.meanings(one)[flag]) > 0


@pytest.mark.parametrize("name", ["tasmax", "pr"])
def test_a_scenario_with_the_simulations_change_in_the_references_range_has_no_flag(name: str) -> None:
    scenario, reference = series(1, name), series(2, name, 2000, 0)
    made = flags(scenario, scenario, reference)
    assert not made[f"{name}_cell_flags"].any()
    highest, lowest = reference.max("time"), reference.min("time")
    beyond = (scenario > highest + 0.1 * (highest - lowest)) | (scenario < lowest - 0.1 * (highest - lowest))
    np.testing.assert_array_equal(where(made, "beyond_the_record"), beyond)
    assert int(beyond.sum()) == {"tasmax": 0, "pr": 14}[name]
    assert int((made[f"{name}_flags"] > 0).sum()) <= 2 * int(beyond.sum())


@pytest.mark.parametrize("chunks", [None, {"loc": 2}])
def test_a_spike_is_beyond_the_record_on_its_day_alone(chunks: Any) -> None:
    scenario = series(1)
    scenario[3, 4000] += 40
    given = [one if chunks is None else one.chunk(chunks) for one in (scenario, series(1), series(2, last=2000))]
    made = flags(*given)
    for flag in ("beyond_the_record", "beyond_the_season"):
        np.testing.assert_array_equal(np.argwhere(where(made, flag)), [[3, 4000]])


def test_a_swapped_month_is_beyond_its_season_and_within_the_record() -> None:
    scenario, first = series(1), 365 * 30
    july = slice(first + 181, first + 212)
    january = slice(first, first + 31)
    scenario[1, january], scenario[1, july] = series(1)[1, july].values, series(1)[1, january].values
    made = flags(scenario, series(1), series(2, last=2000))
    raised = where(made, "beyond_the_season")
    days = np.zeros(raised.shape, bool)
    days[1, january] = days[1, july] = True
    assert raised[days].mean() > 0.5 and not raised[~days].any() and not where(made, "beyond_the_record").any()


def test_a_year_of_one_and_a_half_times_the_rain_is_beyond_the_record_in_that_year_alone() -> None:
    scenario, year = series(1, "pr", trend=0), slice(365 * 40, 365 * 41)
    plain = flags(scenario, scenario, series(2, "pr", 2000, 0))
    scenario[2, year] = np.maximum(scenario[2, year] * 1.5, scenario.max() * 1.5)
    made = flags(scenario, series(1, "pr", trend=0), series(2, "pr", 2000, 0))
    raised = where(made, "beyond_the_record") & ~where(plain, "beyond_the_record")
    assert raised[2, year].all() and raised.sum() == 365


@pytest.mark.parametrize("name", ["tasmax", "pr"])
def test_an_inverted_change_is_distorted_and_flipped_in_its_cell_alone(name: str) -> None:
    scenario, opposite = series(1, name), series(1, name, trend=-0.05)
    scenario[4] = opposite[4]
    made = flags(scenario, series(1, name), series(2, name, 2000, 0))
    for flag in ("signal_distorted", "sign_flipped"):
        assert where(made, flag, "cells").tolist() == [False] * 4 + [True]


def test_a_larger_change_of_the_same_sign_is_distorted_alone() -> None:
    scenario = series(1)
    scenario[0] = series(1, trend=0.2)[0]
    made = flags(scenario, series(1), series(2, last=2000))
    assert where(made, "signal_distorted", "cells").tolist() == [True] + [False] * 4
    assert not where(made, "sign_flipped", "cells").any()


def test_a_cell_with_the_climate_of_another_is_beyond_the_record() -> None:
    scenario = series(1)
    scenario[2] -= 25
    raised = where(flags(scenario, series(1), series(2, last=2000)), "beyond_the_record")
    assert raised[2].mean() > 0.3 and not raised[[0, 1, 3, 4]].any()


def test_a_cell_without_a_reference_or_without_values_has_no_flag() -> None:
    reference, scenario = series(2, last=2000), series(1)
    reference[0], scenario[1] = np.nan, np.nan
    made = flags(scenario, series(1), reference)
    assert not where(made, "beyond_the_record").any() and not made["tasmax_cell_flags"].any()


def test_without_years_after_the_calibration_there_is_no_change_to_compare() -> None:
    scenario = series(1, last=2000, trend=1)
    made = flags(scenario, series(1, last=2000, trend=-1), series(2, last=2000))
    assert not made["tasmax_cell_flags"].any()


def test_marks_of_the_method_keep_their_bits_and_a_method_without_marks_says_so() -> None:
    given = series(1), series(1), series(2, last=2000)
    marks = xr.zeros_like(given[0], dtype=np.uint8).assign_attrs(flag_meanings="made_wet moved")
    marks[2, 7] = 2
    made = flags(*given, marks=marks)
    assert np.argwhere(where(made, "moved")).tolist() == [[2, 7]]
    assert (
        "marks no days" in flags(*given)["tasmax_flags"].attrs["comment"]
        and "comment" not in made["tasmax_flags"].attrs
    )
    masks = made["tasmax_flags"].attrs["flag_masks"]
    assert masks.dtype == made["tasmax_flags"].dtype and len({*masks.tolist()}) == len(masks) == 9


def test_temperatures_that_cross_before_are_flagged_on_the_scenarios_days() -> None:
    time = xr.date_range("1999-12-31", "2001-12-31", use_cftime=True)
    cold = xr.DataArray(np.full((2, time.size), 280.0), {"time": time}, ("loc", "time"), "tasmin")
    hot = (cold + 5).rename("tasmax")
    hot[1, [60, 61]] = 279  # the first is 29 February of 2000, which the scenario lacks
    scenario = xr.DataArray(
        np.zeros((2, 365)), {"time": xr.date_range("2000-01-01", "2000-12-31", calendar="noleap", use_cftime=True)},
        ("loc", "time"), "tasmax",
    )  # fmt: skip
    given = xr.Dataset({"tasmax": hot.assign_attrs(units="K"), "tasmin": cold.assign_attrs(units="K")})
    scenario.attrs["units"] = "K"
    for names, days in ((["tasmax", "tasmin"], [[1, 59]]), (["tasmax"], [])):
        made = quality.of_adjusted(
            scenario, given[names], scenario, period=PERIOD, kind="+", tolerances=FlagsSection().model_dump()
        )
        assert np.argwhere(where(xr.Dataset(made), "crossed_before")).tolist() == days


def test_derived_variables_have_the_flags_of_all_that_they_are_made_of() -> None:
    made = flags(series(1), series(1), series(2, last=2000))
    made["tasmax_flags"][0, 5] = 256
    other = made.rename(tasmax_flags="dtr_flags", tasmax_cell_flags="dtr_cell_flags").copy(deep=True)
    other["dtr_flags"][0, 6], other["dtr_cell_flags"][3] = 512, 2
    ds = made.merge(other)
    before = series(1) * 0 + 1
    before[1, 8] = -1
    derived = quality.of_temperatures(ds, before, "derived")
    assert np.argwhere(derived["tasmin_flags"].values).tolist() == [[0, 5], [0, 6]]
    assert np.flatnonzero(derived["tasmin_cell_flags"]).tolist() == [3]
    swapped = quality.of_temperatures(ds, before, "dqm-dtr")
    assert np.argwhere(swapped["tasmax_flags"].values).tolist() == [[0, 5], [1, 8]]
    assert quality.of_temperatures(xr.Dataset(), before, "swap") == {}
