"""Planted defects raise their flags, where they are and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.config.health_checks import FlagsSection
from espo_luigi.errors import DataError
from espo_luigi.science import quality
from espo_luigi.science.finalize.scenario import Treatment, finish
from espo_luigi.science.regrid import regrid

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
    tolerances, name = FlagsSection(), str(scenario.name)
    given: dict[str, Any] = {"period": PERIOD, "kind": "*" if name == "pr" else "+", "signal": tolerances.signal}
    made = quality.of_adjusted(scenario, regridded(simulation), **given | more)
    limits = quality.limits_of(reference.to_dataset(), tolerances.record, tolerances.season)
    beyond = quality.with_beyond(xr.Dataset(made).assign({name: scenario}).transpose("time", ...), limits)
    return beyond.drop_vars(name).transpose(*scenario.dims).compute()


def regridded(*series: xr.DataArray) -> xr.Dataset:
    """A regridded simulation with its flags, none of which is extrapolated in space."""
    ds = xr.Dataset({str(one.name): one for one in series})
    nowhere = {name: np.zeros(one.isel(time=0).shape, bool) for name, one in ds.data_vars.items()}
    return quality.of_regridded(ds, ds, nowhere, ())


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


def test_a_cell_without_a_reference_or_without_values_is_not_beyond_the_record() -> None:
    reference, scenario = series(2, last=2000), series(1)
    reference[0], scenario[1] = np.nan, np.nan
    scenario[0, 4000] = scenario[2, 4000] = 400
    made = flags(scenario, series(1), reference)
    assert np.argwhere(where(made, "beyond_the_record")).tolist() == [[2, 4000]]
    assert where(made, "signal_not_judged", "cells").tolist() == [False, True, False, False, False]
    assert not where(made, "signal_distorted", "cells").any()


@pytest.mark.parametrize("name", ["tasmax", "pr"])
def test_missing_days_hide_no_inverted_change(name: str) -> None:
    scenario, simulation = series(1, name), series(1, name)
    scenario[4] = series(1, name, trend=-0.05)[4]
    scenario[4, [100, 365 * 45]], simulation[4, 400], simulation[2, 365 * 49] = np.nan, np.nan, np.nan
    made = flags(scenario, simulation, series(2, name, 2000, 0))
    for flag in ("signal_distorted", "sign_flipped"):
        assert where(made, flag, "cells").tolist() == [False] * 4 + [True]
    assert not where(made, "signal_not_judged", "cells").any()


@pytest.mark.filterwarnings("error")
def test_a_change_in_per_cent_of_nothing_is_not_judged() -> None:
    """Cells without rain: in the scenario, in the simulation, in both; and with rain after the calibration alone."""
    scenario, simulation = series(1, "pr"), series(1, "pr")
    scenario[0] = simulation[1] = scenario[2] = simulation[2] = 0
    scenario[3, : 365 * 30] = 0
    made = flags(scenario, simulation, series(2, "pr", 2000, 0))
    assert where(made, "signal_not_judged", "cells").tolist() == [True] * 3 + [False] * 2
    assert where(made, "signal_distorted", "cells").tolist() == [False] * 3 + [True, False]


@pytest.mark.parametrize("lacking", ["scenario", "simulation"])
def test_a_change_of_which_two_percent_of_the_days_are_missing_is_not_judged(lacking: str) -> None:
    given = {"scenario": series(1), "simulation": series(1)}
    given["scenario"][4] = series(1, trend=-0.05)[4]
    given[lacking][4, 365 * 40 : 365 * 40 + 146] = np.nan
    made = flags(*given.values(), series(2, last=2000))
    for flag in [*quality.CELLS][1:]:
        assert where(made, flag, "cells").tolist() == [False] * 4 + [flag == "signal_not_judged"]


def test_without_years_after_the_calibration_there_is_no_change_to_judge() -> None:
    scenario = series(1, last=2000, trend=1)
    made = flags(scenario, series(1, last=2000, trend=-1), series(2, last=2000))
    assert where(made, "signal_not_judged", "cells").all()
    assert not where(made, "signal_distorted", "cells").any() and not where(made, "sign_flipped", "cells").any()


def test_limits_are_the_extremes_of_the_days_that_have_values() -> None:
    reference = series(2, last=1985)
    months = reference["time"].dt.month.values
    reference[0], reference[1, ::7], reference[2, months == 5] = np.nan, np.nan, np.nan
    reference[3, np.isin(months, [4, 5, 6])] = np.nan  # May and the months beside it
    made = quality.limits_of(reference.to_dataset().chunk(loc=2, time=900), 0.1, 0.25)["tasmax"].compute()
    assert made.dims == ("loc", "of", "side") and made.dtype == np.float32
    for of in range(13):
        near = months > 0 if of == 0 else np.isin(months, [(of - 2) % 12 + 1, of, of % 12 + 1])
        width = (reference.max("time") - reference.min("time")) * (0.25 if of else 0.1)
        part = reference.isel(time=near)
        for side, wanted in enumerate((part.min("time") - width, part.max("time") + width)):
            np.testing.assert_allclose(made.isel(of=of, side=side), wanted, rtol=1e-6)


def test_a_value_that_is_clipped_into_the_record_is_not_beyond_it() -> None:
    days = {"time": series(1)["time"]}
    hurs = xr.DataArray(np.full((3, days["time"].size), 60.0), days, ("loc", "time"), "hurs", {"units": "%"})
    hurs[:, 0], hurs[:, 1] = 40, 95
    reference = hurs.copy()
    hurs[1, 2000], hurs[2, 2000] = 120, 1
    made = quality.of_adjusted(hurs, regridded(hurs), period=PERIOD, kind="+", signal=1)
    limits = quality.limits_of(reference.to_dataset(), 0.1, 10)
    treated = finish(xr.Dataset(made).assign(hurs=hurs).transpose("time", ...), limits=limits,
                     treatment=Treatment(clip_var={"hurs": (0, 100)}))  # fmt: skip
    assert np.argwhere(where(treated[["hurs_flags"]], "clipped")).tolist() == [[2000, 1]]
    assert np.argwhere(where(treated[["hurs_flags"]], "beyond_the_record")).tolist() == [[2000, 2]]


def test_a_derived_variable_is_compared_with_its_own_record() -> None:
    tasmax = series(1)
    ds = xr.Dataset({"tasmax": tasmax, "tasmin": tasmax - 8, "dtr": tasmax * 0 + 8})
    ds = ds.map(lambda one: one.assign_attrs(units="K"))
    reference = ds.copy(deep=True)
    ds["dtr"][3, 5000] = 60
    for name in ("tasmax", "dtr"):
        ds = ds.assign(quality.of_adjusted(ds[name], regridded(ds[name]), period=PERIOD, kind="+", signal=1))
    limits = quality.limits_of(reference[["tasmax", "tasmin"]], 0.1, 0.25)
    given = ds.drop_vars("tasmin").transpose("time", ...)
    made = finish(given, treatment=Treatment(), limits=limits, temperatures="derived")
    for name, days in {"tasmin": [[5000, 3]], "tasmax": []}.items():
        assert np.argwhere(where(made[[f"{name}_flags"]], "beyond_the_record")).tolist() == days


def test_marks_of_the_method_keep_their_bits_and_a_method_without_marks_names_none() -> None:
    given = series(1), series(1), series(2, last=2000)
    marks = xr.zeros_like(given[0], dtype=np.uint8).assign_attrs(flag_masks=[2, 8], flag_meanings="made_wet moved")
    marks[2, 7] = 8
    made = flags(*given, marks=marks)
    assert np.argwhere(where(made, "moved")).tolist() == [[2, 7]]
    assert flags(*given)["tasmax_flags"].attrs["flag_meanings"].split() == list(quality.DAYS)
    masks = made["tasmax_flags"].attrs["flag_masks"]
    assert masks.dtype == made["tasmax_flags"].dtype and len({*masks.tolist()}) == len(masks) == 9


@pytest.mark.parametrize("align_on", ["year", "date"])
@pytest.mark.parametrize("maximal", ["noleap", "360_day"])
@pytest.mark.parametrize("calendar", ["standard", "noleap", "360_day"])
def test_a_filled_day_is_flagged_on_the_day_that_it_is_in_the_scenarios_calendar(
    calendar: str, maximal: str, align_on: Any
) -> None:
    time = xr.date_range("1999-01-01", "2004-12-30", calendar=calendar, use_cftime=True)
    filled = xr.DataArray(np.full((CELLS, time.size), 280, "f4"), {"time": time}, ("loc", "time"), "tasmax")
    filled.attrs["units"], missing = "K", xr.zeros_like(filled, bool)
    missing[1, time.strftime("%Y-%m-%d") == "2004-07-03"] = missing[4, time.strftime("%m-%d") == "02-29"] = True
    how: dict[str, Any] = {"align_on": align_on, "use_cftime": True}
    to = "360_day" if "360_day" in (calendar, maximal) else "noleap"
    scenario, days = ((one if to == calendar else one.convert_calendar(to, **how)) for one in (filled, missing))
    cut = filled.to_dataset().chunk(loc=3, time=700)
    nowhere = {"tasmax": np.zeros(CELLS, bool)}
    raw = quality.of_regridded(cut, cut.where(~missing), nowhere, ["tasmax"])
    kept = scenario.isel(time=slice(400, None)).chunk(loc=2)
    made = quality.of_adjusted(kept, raw, period=PERIOD, kind="+", signal=1, align_on=align_on)
    assert [one.chunks for one in made.values()] == [kept.chunks, kept.chunks[:1]]
    np.testing.assert_array_equal(where(xr.Dataset(made), "filled_in_time"), days.isel(time=slice(400, None)))


def test_temperatures_that_cross_before_are_flagged_on_the_scenarios_days() -> None:
    time = xr.date_range("1999-12-31", "2001-12-31", use_cftime=True)
    cold = xr.DataArray(np.full((2, time.size), 280.0), {"time": time}, ("loc", "time"), "tasmin")
    hot = (cold + 5).rename("tasmax")
    hot[1, [60, 61]] = 279  # the first is 29 February of 2000, which the scenario lacks
    scenario = xr.DataArray(
        np.zeros((2, 365)), {"time": xr.date_range("2000-01-01", "2000-12-31", calendar="noleap", use_cftime=True)},
        ("loc", "time"), "tasmax",
    )  # fmt: skip
    given = [one.assign_attrs(units="K") for one in (hot, cold)]
    dtr = (hot - cold).rename("dtr").assign_attrs(units="K")
    scenario.attrs["units"] = "K"
    for series, days in ((given, [[1, 59]]), ([given[0], dtr], [[1, 59]]), (given[:1], [])):
        made = quality.of_adjusted(scenario, regridded(*series), period=PERIOD, kind="+", signal=1)
        assert np.argwhere(where(xr.Dataset(made), "crossed_before")).tolist() == days


def test_a_simulation_or_a_variable_without_flags_is_refused() -> None:
    with pytest.raises(DataError, match="tasmax has no tasmax_flags: it was made before"):
        quality.of_adjusted(series(1), series(1).to_dataset(), period=PERIOD, kind="+", signal=1)
    given = quality.of_adjusted(series(1), regridded(series(1)), period=PERIOD, kind="+", signal=1)
    ds = xr.Dataset({"tasmax": series(1), "dtr": series(1), **given})
    with pytest.raises(DataError, match="dtr has no dtr_flags"):
        quality.of_temperatures(ds, series(1), "derived")
    with pytest.raises(DataError, match="dtr has no dtr_flags"):
        quality.require_flags(ds)


def test_a_repaired_value_is_flagged_in_the_cells_that_its_own_interpolation_reaches() -> None:
    cells = {"lat": np.arange(45.0, 49), "lon": np.arange(-70.0, -66)}
    pr = xr.DataArray(np.ones((1, 4, 4), "f4"), {"time": [0], **cells}, name="pr")
    repaired = pr.copy()
    repaired[0, 1, 1] = 2
    marked = quality.with_repairs_marked(repaired.to_dataset(), pr.to_dataset(), ["pr"])
    target = xr.Dataset(coords={name: np.arange(axis[0], axis[-1] + 0.1, 0.25) for name, axis in cells.items()})
    made = regrid(marked, target, methods={"pr": "conservative"})
    np.testing.assert_array_equal(made["pr_is_repaired"] > 0, made["pr"] > 1)
    assert 0 < int((made["pr"] > 1).sum()) < 36


def test_a_raised_flag_keeps_the_attributes_of_flags_alone() -> None:
    made = flags(series(1), series(1), series(2, last=2000))["tasmax_flags"]
    with xr.set_options(keep_attrs=True):
        raised = quality.with_flag(made, (series(1) > 300).T, "clipped")
    assert raised.attrs.keys() == made.attrs.keys() and raised.dims == made.dims and raised.dtype == np.uint16
    np.testing.assert_array_equal((raised.values & 256) > 0, series(1) > 300)


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
