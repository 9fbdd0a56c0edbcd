"""Bounded variables in the kernels: xsdba's numbers, and values that never leave their bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.methods.base import Method, Setup, method_named
from espo_luigi.methods.bounded import Bounded
from espo_luigi.methods.dqm.method import Kernels
from espo_luigi.science.calendar import TimeAxis

pytestmark = pytest.mark.filterwarnings("ignore")
ISIMIP = Path(__file__).parents[2] / "../shared/data/isimip-berlin"
LOGIT = {"lower_bound": "0 %", "upper_bound": "100 %", "trans": "logit", "clip_next_to_bounds": "permissive"}
UNITS = {"hurs": "%", "rsds": "W m-2", "sfcWind": "m s-1"}
DETREND: dict[str, Any] = {"xclim_adjust_args": {"detrend": {"LoessDetrend": {}}}}


def space_of(variable: str) -> dict[str, str]:
    """The usual `additive_space` of a variable."""
    log = {"lower_bound": f"0 {UNITS[variable]}", "trans": "log", "clip_next_to_bounds": "strict"}
    return LOGIT if variable == "hurs" else log


def first_weeks(data: xr.DataArray) -> xr.DataArray:
    """The first 40 days of each year: xsdba takes as long for a day of year as for all of its years."""
    return data.isel(time=data.time.dt.dayofyear.values <= 40)


def scenario_of(
    method: Method, series: Mapping[str, xr.DataArray], space: Mapping[str, Any], **more: Any
) -> xr.DataArray:
    """Train and adjust (cell, [realization], time) by a method, without the blocks around it."""
    known, simulation = series["historical"], series["simulation"]
    members = tuple("abc"[: simulation.sizes["realization"]]) if "realization" in simulation.dims else None
    group = {"group": "time.dayofyear", "window": 31} | ({"add_dims": ["realization"]} if members else {})
    setup = Setup(
        units={str(simulation.name): simulation.attrs["units"]},
        time=TimeAxis.of(known),
        dtype=known.dtype,
        training={"group": group, "xclim_train_args": {"kind": "+", "nquantiles": 50}, "additive_space": space, **more},
        seed="a",
        members=members,
    )
    cell = xr.DataArray(np.arange(known.sizes["cell"]), dims="cell")
    trained = method.train({"reference": series["reference"], "historical": known, "cell": cell}, setup)
    adjusting = Setup(**{**vars(setup), "time": TimeAxis.of(simulation), "adjusting": {"periods": [1, 2], **DETREND}})
    assert Kernels.why_not(adjusting) is None
    # Our training has the other days of the year, too, as NaN.
    trained = trained.isel(dayofyear=slice(known.time.dt.dayofyear.values.max()))
    return method.adjust({"simulation": simulation, "cell": cell}, trained, adjusting)["scenario"]


def both(
    series: Mapping[str, xr.DataArray], space: Mapping[str, Any], **more: Any
) -> tuple[xr.DataArray, xr.DataArray]:
    """The kernels' scenario and xsdba's."""
    ours = scenario_of(Kernels(), series, space, **more)
    return ours, scenario_of(method_named(engine="xsdba"), series, space, **more).transpose(*ours.dims)


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


@pytest.mark.skipif(not ISIMIP.is_dir(), reason="no ../shared/data/isimip-berlin beside the project")
@pytest.mark.parametrize("variable", ["hurs", "rsds", "sfcWind"])
def test_a_real_variable_is_adjusted_as_xsdba_does_in_its_additive_space(variable: str) -> None:
    files = {"reference": "obs-hist_fine_1979-2014", "historical": "sim-hist_coarse_1979-2014"}
    series = {}
    for name, file in {**files, "simulation": "sim-fut_coarse_2065-2100"}.items():
        with xr.open_dataset(ISIMIP / f"{variable}_{file}.nc") as ds:
            cells = ds[variable].isel(lon=slice(2), lat=slice(2)).stack(cell=["lon", "lat"], create_index=False)
            kept = first_weeks(cells.transpose("cell", "time").load().drop_vars(["lat", "lon"]))
            series[name] = kept.convert_calendar("noleap", use_cftime=True)
    ours, xsdbas = both(series, space_of(variable))
    assert_but_for_few(ours, xsdbas, 2e-5)
    assert ours.min() >= 0 and ours.max() <= (100 if variable == "hurs" else np.inf)


@pytest.mark.parametrize("members", [0, 2])
def test_days_at_and_beyond_the_bounds_are_those_of_xsdba(members: int) -> None:
    ours, xsdbas = both(generated("float32", members), LOGIT)
    assert_but_for_few(ours, xsdbas, 2e-5)
    assert ours.min() >= 0 and ours.max() <= 100


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
