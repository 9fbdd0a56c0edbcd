"""Quantile delta mapping by our kernels: xsdba's numbers, on generated and on real data, also in windows of years."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import xsdba
from scipy import stats

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods import blocks
from espo_luigi.methods.base import checked, method_named
from espo_luigi.methods.dqm import ranking
from espo_luigi.methods.dqm.method import Kernels
from espo_luigi.methods.dqm.windows import year_windows
from espo_luigi.methods.xsdba import Adjusting

pytestmark = pytest.mark.filterwarnings("ignore")
DATA = Path(__file__).parents[3] / "shared" / "data"
QDM = "QuantileDeltaMapping"
NEAREST = {"interp": "nearest", "extrapolation": "constant"}
WINDOWS = {"window": 6, "step": 2}
CALIBRATION = ("2001", "2008")


def series(
    calendar: str, kind: str, seed: int, members: int = 0, *, years: int = 17, dtype: str = "f4", cells: int = 5
) -> xr.DataArray:
    """Cells that are plain, with missing days and years, with many equal values, of a single value, and all missing."""
    last = f"{2000 + years}-12-{30 if calendar == '360_day' else 31}"
    time = xr.date_range("2001-01-01", last, calendar=calendar, use_cftime=True)
    random = np.random.default_rng(seed)
    shape = (cells, members or 1, time.size)
    season = np.sin(np.arange(time.size) / 58)
    warming = np.linspace(0, 3, time.size)
    values = random.normal(280 + 9 * season + warming, 4, shape) if kind == "+" else random.gamma(0.7, 4, shape) + 0.01
    if cells == 5:
        values[1, ..., random.random(time.size) < 0.1] = np.nan
        values[1, ..., 400:900] = np.nan
        values[2] = np.round(values[2]) + (0 if kind == "+" else 1)
        values[3] = values[3, 0, 0]
        values[4] = np.nan
    made = xr.DataArray(values.astype(dtype), {"time": time}, ("loc", "realization", "time"), "pr", {"units": "mm d-1"})
    return made if members else made.isel(realization=0)


def both(
    reference: xr.DataArray,
    simulation: xr.DataArray,
    *,
    kind: str,
    nquantiles: int = 20,
    window: int = 31,
    rank_window: bool = False,
    windows: dict[str, int] | None = None,
    period: tuple[str, str] = CALIBRATION,
    **train: Any,
) -> tuple[xr.Dataset, xr.DataArray, xr.Dataset, xr.DataArray]:
    """Training and scenario of ours, by the kernels, and xsdba's."""
    pool = {"add_dims": ["realization"]} if "realization" in simulation.dims else {}
    reference, simulation = (one.sel(time=slice("1900", "2100")) for one in (reference, simulation))
    train = {"kind": kind, "nquantiles": nquantiles, **train}
    training = blocks.train(
        reference,
        simulation,
        method=QDM,
        group={"group": "time.dayofyear", "window": window, **pool},
        xclim_train_args=train,
        period=period,
        maximal_calendar="standard",
        seed="s",
    )
    own = {**NEAREST, "rank_window": rank_window}
    years = tuple(str(simulation.time.dt.year.values[place]) for place in (0, -1))
    more = {"moving_yearly_window": windows} if windows else {}
    scenario = blocks.adjust(simulation, training, periods=years, xclim_adjust_args=own, **more)
    assert "_xsdba_adjustment" not in training.attrs  # the kernels', not xsdba's
    group = xsdba.Grouper("time.dayofyear", window, **pool)
    selected = (one.sel(time=slice(*period)) for one in (reference, simulation))
    trained = xsdba.QuantileDeltaMapping.train(*selected, group=group, **train)
    stacked = xsdba.stack_periods(simulation, windows["window"], windows["step"]) if windows else simulation
    expected = trained.adjust(stacked, **own)
    return training, scenario, trained.ds, xsdba.unstack_periods(expected) if windows else expected


def assert_xsdbas(found: xr.DataArray, expected: xr.DataArray, share: float = 1e-3) -> None:
    """Missing in the same places, and equal but for a share of the days."""
    one, other = (data.transpose(*expected.dims).values for data in (found, expected))
    np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
    known = ~np.isnan(other)
    assert known.any()
    assert 1 - np.isclose(one[known], other[known], rtol=2e-6, atol=1e-6).mean() <= share


@pytest.mark.parametrize(
    ("calendar", "kind", "members", "dtype", "options"),
    [
        ("noleap", "+", 0, "f4", {}),
        ("standard", "*", 0, "f4", {"rank_window": True}),
        ("360_day", "+", 0, "f8", {"nquantiles": 50, "window": 5}),
        ("noleap", "*", 3, "f4", {}),
        ("standard", "+", 2, "f4", {"rank_window": True}),
        ("noleap", "*", 0, "f8", {"max_tail_factor": 1}),
    ],
)
def test_training_and_scenario_are_xsdbas(
    calendar: str, kind: str, members: int, dtype: str, options: dict[str, Any]
) -> None:
    reference = series(calendar, kind, 1, dtype=dtype).roll(loc=1)
    training, scenario, trained, expected = both(
        reference, series(calendar, kind, 2, members, dtype=dtype), kind=kind, **options
    )
    assert set(trained.data_vars) - set(training.data_vars) <= {"hist_q_raw"}
    for name in ("af", "hist_q"):
        dims = ("loc", "dayofyear", "quantiles")
        one, other = (data[name].transpose(*dims).values for data in (training, trained))
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert_xsdbas(scenario, expected)
