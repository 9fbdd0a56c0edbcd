"""Each debiaser of ibicus, as a method in blocks, against ibicus called directly on the same series."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import xarray as xr
from test_quantile_mapping import days_of

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods import blocks, ibicus
from espo_luigi.methods.base import method_named
from espo_luigi.science import seeds

debias = pytest.importorskip("ibicus.debias", reason="needs the package ibicus: pip install -e '.[test]'")
pytestmark = pytest.mark.filterwarnings("ignore")

PERIOD, LATER = ["1981", "1984"], ["1985", "1988"]
# Windows of the year that do not overlap: a twelfth of ibicus's fits.
STEPS = {"running_window_step_length": 31}
UNITS = {"pr": "mm d-1", "tas": "degC", "dtr": "degC", "sfcWind": "km h-1"}
# From ours to ibicus's units.
CONVERSIONS = {"pr": (1 / 86400, 0.0), "tas": (1.0, 273.15), "dtr": (1.0, 0.0), "sfcWind": (1 / 3.6, 0.0)}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two cells."""
    monkeypatch.setattr(ibicus.Ibicus, "cells_in_a_block", 2)


def series(name: str, seed: int, *, years: int = 8, cells: int = 5, calendar: str = "noleap") -> xr.DataArray:
    """Days (loc, time) from 1981, in chunks of three cells; the cell in the middle has no data."""
    random = np.random.default_rng(seed)
    time = days_of(calendar, 1981, years)
    size = (cells, time.size)
    season = np.sin(time.dt.dayofyear.values / 58)
    if name == "pr":
        values = np.where(random.random(size) < 0.4, 0, random.gamma(0.8, 4 + seed, size))
    elif name == "tas":
        values = 5 + seed + 10 * season + random.normal(0, 3, size)
    else:
        values = random.gamma(4, 2 + 0.2 * seed, size) + 0.1
    values[cells // 2] = np.nan
    data = xr.DataArray(values.astype("f4"), dims=("loc", "time"), coords={"time": time}, name=name)
    return data.assign_attrs(units=UNITS[name]).chunk(loc=3)


def scenario(method: str, name: str, *cut: slice, **arguments: Any) -> xr.DataArray:
    """The scenario of the second half of the years, by our blocks, of all cells or those of a slice."""
    (cells,) = cut or (slice(None),)
    reference, simulation = (series(name, seed, years=4 * seed + 4).isel(loc=cells) for seed in (0, 1))
    made = blocks.adjust(
        simulation,
        method=method,
        training_args={"period": PERIOD},
        reference=reference,
        seed="s",
        first_cell=cells.start or 0,
        **{"periods": LATER} | arguments,
    )
    return made.transpose("loc", "time")


def by_ibicus(debiaser: str, name: str, **arguments: Any) -> np.ndarray:
    """The same by ibicus, (loc, time); cells in our units, with the random numbers of each cell."""
    factor, offset = CONVERSIONS[name]
    reference, simulation = series(name, 0, years=4), series(name, 1)
    of = {
        "obs": reference,
        "cm_hist": simulation.sel(time=slice(*PERIOD)),
        "cm_future": simulation.sel(time=slice(*LATER)),
    }
    ours = getattr(debias, debiaser).from_variable({"dtr": "tasrange"}.get(name, name), **arguments)
    times = {f"time_{key}": one["time"].values for key, one in of.items()}
    made = np.full(of["cm_future"].shape, np.nan)
    for cell in (0, 1, 3, 4):
        cubes = {key: one.values[cell].astype("f8")[:, None, None] * factor + offset for key, one in of.items()}
        with seeds.numpy_state("s", "ibicus", cell):
            made[cell] = ours.apply(**cubes, **times, progressbar=False)[:, 0, 0]
    return (made - offset) / factor


@pytest.mark.parametrize(
    ("debiaser", "name"),
    [
        *[(debiaser, "pr") for debiaser in ("CDFt", "ECDFM", "ISIMIP", "QuantileDeltaMapping", "QuantileMapping")],
        *[(debiaser, "tas") for debiaser in ("DeltaChange", "ISIMIP", "LinearScaling", "ScaledDistributionMapping")],
        ("CDFt", "dtr"),
        ("LinearScaling", "sfcWind"),
    ],
)
def test_the_scenario_is_ibicus_s(debiaser: str, name: str) -> None:
    made = scenario(f"ibicus.{debiaser}", name, **STEPS)
    assert made.chunks == ((2, 2, 1), (1460,)), "it is lazy, in blocks of cells"
    assert (made.dtype, made.attrs["units"]) == (np.float32, UNITS[name])
    assert f": {debiaser}.from_variable(" in made.attrs["bias_adjustment"]
    expected = by_ibicus(debiaser, name, **STEPS)
    np.testing.assert_allclose(made.values, expected, rtol=2e-6, atol=2e-5)
    original = series(name, 1).sel(time=slice(*LATER)).values
    assert not np.allclose(original[0], made.values[0], rtol=1e-3), "the method changes values"


@pytest.mark.parametrize("name", ["CDFt", "ISIMIP"])
def test_random_numbers_do_not_depend_on_the_cut_and_leave_numpy_s_alone(name: str) -> None:
    np.random.seed(0)
    whole, before = scenario(f"ibicus.{name}", "pr", **STEPS).values, np.random.random()
    part = scenario(f"ibicus.{name}", "pr", slice(3, 5), **STEPS).values
    np.testing.assert_array_equal(part, whole[3:5])
    np.random.seed(0)
    assert np.random.random() == before


@pytest.mark.parametrize("calendar", ["360_day", "standard"])
def test_other_calendars_and_the_members_of_a_pool(calendar: str) -> None:
    """The reference's calendar becomes the simulation's, at most noleap, and each member is adjusted by itself."""
    reference = series("tas", 0, calendar="standard")
    members = [series("tas", seed, calendar=calendar) for seed in (1, 2)]
    pool = xr.concat(members, "realization").assign_coords(realization=["r1", "r2"])
    given: dict[str, Any] = {
        "method": "ibicus.LinearScaling",
        "training_args": {"period": PERIOD},
        "periods": LATER,
        "running_window_mode": False,
        "reference": reference,
    }
    made = blocks.adjust(pool, **given)
    for member, one in zip(members, made.transpose("realization", ...), strict=True):
        converted = member.convert_calendar("noleap") if calendar == "standard" else member
        mean = blocks.adjust(member, **given)
        np.testing.assert_array_equal(one, mean)
        if calendar == "standard":
            factor = reference.convert_calendar("noleap").sel(time=slice(*PERIOD)).mean("time")
            expected = converted - converted.sel(time=slice(*PERIOD)).mean("time") + factor
            np.testing.assert_allclose(one, expected.sel(time=slice(*LATER)), atol=2e-5)


def test_what_ibicus_does_not_have_is_refused_with_what_it_has() -> None:
    with pytest.raises(ConfigurationError, match=r"ibicus\.ISIMP; expected one of ibicus\.CDFt, .*did you mean ISIMIP"):
        method_named("ibicus.ISIMP")
    with pytest.raises(ConfigurationError, match=r"adjusting_args\.detrendin"):
        scenario("ibicus.ISIMIP", "tas", detrendin=True)
    assert method_named("ibicus.ScaledDistributionMapping").variables == ("pr", "tas", "tasmin", "tasmax")
    assert "dtr" in method_named("ibicus.ISIMIP").variables


@pytest.mark.parametrize(
    ("method", "arguments", "told"),
    [
        ("ibicus.ISIMIP", {"detrending": "x"}, r"'detrending' must be <class 'bool'>"),
        ("ibicus.ISIMIP", {"running_window_step_length": 99}, "step length"),
        ("ibicus.QuantileMapping", {"distribution": "nrm"}, "'nrm'; expected a continuous distribution of scipy.stats"),
        ("ibicus.DeltaChange", {"periods": ["1985", "1987"]}, "periods of as many years"),
    ],
)
def test_arguments_that_do_not_fit_are_problems_of_the_configuration(
    method: str, arguments: dict[str, Any], told: str
) -> None:
    named = method_named(method)
    training = named.Training(period=PERIOD)
    assert list(named.problems(training, named.Adjusting(periods=LATER))) == []
    (problem,) = named.problems(training, named.Adjusting(**{"periods": LATER} | arguments))
    assert problem["loc"][0] == "adjusting_args"
    with pytest.raises(ValueError, match=told):
        raise ValueError(str(problem["type"]))


def test_without_ibicus_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ibicus.debias", None)
    with pytest.raises(ConfigurationError, match=r"needs the package ibicus .*pip install espo_luigi\[ibicus\]"):
        ibicus._class.__wrapped__("CDFt")


def test_a_cell_that_lacks_days_is_named_by_its_place_in_the_domain() -> None:
    simulation = series("tas", 1).compute()
    simulation[4, 30] = np.nan
    with pytest.raises(DataError, match=r"cell 104 of the domain lacks days \(1 of cm_hist\)"):
        blocks.adjust(
            simulation,
            method="ibicus.LinearScaling",
            training_args={"period": PERIOD},
            reference=series("tas", 0),
            periods=LATER,
            first_cell=100,
        ).compute()
