"""Quantile delta mapping by our kernels: xsdba's numbers, on generated and on real data, also in windows of years."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import xsdba
from scipy.interpolate import griddata
from scipy.stats import rankdata

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.methods import blocks
from espo_luigi.methods.base import checked, method_named
from espo_luigi.methods.dqm import ranking
from espo_luigi.methods.xsdba import Adjusting
from espo_luigi.science.quality import days_of

pytestmark = pytest.mark.filterwarnings("ignore")
DATA = Path(__file__).parents[3] / "shared" / "data"
QDM = "QuantileDeltaMapping"
WINDOWS = {"window": 6, "step": 2}
YEARS = 11
CALIBRATION = ("2001", "2006")
PR = {"kind": "*", "nquantiles": 20, "adapt_freq_thresh": "1 mm d-1"}


def series(calendar: str, kind: str, seed: int, members: int = 0, dtype: str = "f4") -> xr.DataArray:
    """Cells that are plain, with missing days and years, with many equal values, of a single value, and all missing."""
    last = f"{2000 + YEARS}-12-{30 if calendar == '360_day' else 31}"
    time = xr.date_range("2001-01-01", last, calendar=calendar, use_cftime=True)
    random = np.random.default_rng(seed)
    shape, season = (5, members or 1, time.size), np.sin(np.arange(time.size) / 58)
    values = random.normal(280 + 9 * season, 4, shape) if kind == "+" else random.gamma(0.7, 4, shape) + 0.01
    values += np.linspace(0, 3, time.size)
    values[1, ..., random.random(time.size) < 0.1] = np.nan
    values[1, ..., 400:900] = np.nan
    values[2] = np.round(values[2]) + (0 if kind == "+" else 1)
    values[3] = values[3, 0, 0]
    values[4] = np.nan
    made = xr.DataArray(values.astype(dtype), {"time": time}, ("loc", "realization", "time"), "pr", {"units": "mm d-1"})
    return made if members else made.isel(realization=0)


class Both:
    """A training by the kernels and by xsdba, of the same series."""

    ours: xr.Dataset
    xsdbas: Any

    def __init__(
        self, reference: xr.DataArray, simulation: xr.DataArray, period: tuple[str, str] = CALIBRATION, **train: Any
    ) -> None:
        self.simulation, pool = simulation, {"add_dims": ["realization"]} if "realization" in simulation.dims else {}
        self.ours = blocks.train(
            reference,
            simulation,
            method=QDM,
            group={"group": "time.dayofyear", "window": 31, **pool},
            xclim_train_args=train,
            period=period,
            maximal_calendar="standard",
        )
        selected = (one.sel(time=slice(*period)) for one in (reference, simulation))
        group = xsdba.Grouper("time.dayofyear", 31, **pool)
        self.xsdbas = xsdba.QuantileDeltaMapping.train(*selected, group=group, **train)

    def scenario(self, *, rank_window: bool = False, **more: Any) -> xr.DataArray:
        assert "_xsdba_adjustment" not in self.ours.attrs  # the kernels' training, not xsdba's
        years = (int(self.simulation.indexes["time"].year[place]) for place in (0, -1))
        own = {"interp": "nearest", "extrapolation": "constant", "rank_window": rank_window}
        return blocks.adjust(self.simulation, self.ours, periods=tuple(years), xclim_adjust_args=own, **more)

    def expected(self, simulation: xr.DataArray, rank_window: bool = False) -> xr.DataArray:
        return self.xsdbas.adjust(simulation, interp="nearest", extrapolation="constant", rank_window=rank_window)


def assert_xsdbas(found: xr.DataArray, expected: xr.DataArray, share: float = 1e-3) -> None:
    """Equal to round-off but for a share of the days; equal values, which xsdba cannot rank, have values, too."""
    one, other = (data.transpose("loc", ..., "time").values for data in (found, expected))
    known = ~np.isnan(other)
    assert np.isfinite(one[known]).all()
    assert known.mean() > 0.3
    assert 1 - np.isclose(one[known], other[known], rtol=2e-6, atol=1e-6).mean() <= share


@pytest.fixture(scope="module")
def plain() -> Both:
    return Both(series("noleap", "+", 1).roll(loc=-1), series("noleap", "+", 2), kind="+", nquantiles=20)


def assert_trained_as_xsdba(case: Both) -> None:
    for name in ("af", "hist_q"):
        dims = ("loc", "dayofyear", "quantiles")
        one, other = (data[name].transpose(*dims).values for data in (case.ours, case.xsdbas.ds))
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_training_and_scenario_are_xsdbas(plain: Both) -> None:
    assert_trained_as_xsdba(plain)
    assert set(plain.xsdbas.ds.data_vars) - set(plain.ours.data_vars) == {"hist_q_raw"}
    assert_xsdbas(plain.scenario(), plain.expected(plain.simulation))


@pytest.mark.parametrize(
    ("calendar", "kind", "members", "dtype", "rank_window", "train"),
    [
        ("standard", "*", 2, "f4", True, {"max_tail_factor": 1}),
        pytest.param("360_day", "+", 0, "f8", True, {"nquantiles": 50}, marks=pytest.mark.long),
        pytest.param("standard", "*", 0, "f8", False, {}, marks=pytest.mark.long),
        pytest.param("noleap", "*", 3, "f4", False, {}, marks=pytest.mark.long),
    ],
)
def test_they_are_of_pools_calendars_and_types(
    calendar: str, kind: str, members: int, dtype: str, rank_window: bool, train: dict[str, Any]
) -> None:
    reference, simulation = series(calendar, kind, 1, 0, dtype).roll(loc=-1), series(calendar, kind, 2, members, dtype)
    case = Both(reference, simulation, **{"kind": kind, "nquantiles": 20, **train})
    assert_trained_as_xsdba(case)
    assert_xsdbas(case.scenario(rank_window=rank_window), case.expected(simulation, rank_window))


def test_windows_of_years_are_xsdbas_and_years_that_it_leaves_out_are_those_of_a_last_window(plain: Both) -> None:
    found = plain.scenario(moving_yearly_window=WINDOWS)
    expected = xsdba.unstack_periods(plain.expected(xsdba.stack_periods(plain.simulation, 6, 2)))
    assert expected.indexes["time"].year[-1] == 2010 and found.indexes["time"].year[-1] == 2000 + YEARS
    assert_xsdbas(found.sel(time=expected.time), expected)
    alone = copy(plain)
    alone.simulation = plain.simulation.sel(time=slice("2006", "2011"))
    rest = alone.scenario()
    xr.testing.assert_equal(found.sel(time="2011"), rest.sel(time="2011"))
    assert (abs(found - plain.scenario()) > 0.1).any()


def test_windows_that_lie_in_a_gap_of_years_are_left_out(plain: Both) -> None:
    """Of windows of 3 years, those of 2004-2006, 2005-2007 and 2006-2008 have no day."""
    case = copy(plain)
    years = case.simulation.time.dt.year
    case.simulation = case.simulation.isel(time=(years < 2004) | (years > 2008))
    found = case.scenario(moving_yearly_window={"window": 3, "step": 1})
    assert found.sizes == case.simulation.sizes
    case.simulation = case.simulation.sel(time=slice("2009", "2011"))
    xr.testing.assert_equal(found.sel(time=slice("2010", None)), case.scenario().sel(time=slice("2010", None)))


def test_xsdba_does_windows_of_years_with_its_other_methods_and_groups(plain: Both) -> None:
    simulation, reference = plain.simulation, series("noleap", "+", 1).roll(loc=-1)
    train = {"kind": "+", "nquantiles": 20}
    training = blocks.train(reference, simulation, method=QDM, group="time", xclim_train_args=train, period=CALIBRATION)
    periods = (2001, 2000 + YEARS)
    found = blocks.adjust(simulation, training, periods=periods, moving_yearly_window=WINDOWS)
    trained = xsdba.QuantileDeltaMapping.train(
        *(one.sel(time=slice(*CALIBRATION)) for one in (reference, simulation)), group="time", **train
    )
    expected = xsdba.unstack_periods(trained.adjust(xsdba.stack_periods(simulation, 6, 2)))
    assert_xsdbas(found.sel(time=expected.time), expected)
    assert found.sizes == simulation.sizes


def cells(*parts: xr.DataArray) -> xr.DataArray:
    """Series of whatever variables as cells of one: differences know no units."""
    stacked = [one.transpose(..., "time").values.reshape(-1, one.sizes["time"]) for one in parts]
    values = np.concatenate([one[:4] for one in stacked]).astype("f4")
    return xr.DataArray(values, {"time": parts[0].time}, ("loc", "time"), "tasmax", {"units": "K"})


@pytest.mark.long
def test_hurs_wind_and_radiation_of_berlin_are_xsdbas() -> None:
    folder = DATA / "isimip-berlin"
    if not folder.exists():
        pytest.skip(f"{folder} is not there")
    names = ("hurs", "sfcWind", "rsds", "pr")
    observed, simulated = (
        cells(*(xr.open_dataset(folder / f"{name}_{which}_1979-2014.nc")[name] for name in names))
        for which in ("obs-hist_fine", "sim-hist_coarse")
    )
    case = Both(observed, simulated, ("1990", "2009"), kind="+", nquantiles=50)
    assert_trained_as_xsdba(case)
    assert_xsdbas(case.scenario(), case.expected(case.simulation))


@pytest.mark.long
def test_stations_and_canesm2_are_xsdbas() -> None:
    if not DATA.exists():
        pytest.skip(f"{DATA} is not there")
    files = {name: xr.open_dataset(DATA / name) for name in ("ahccd_1950-2013.nc", "CanESM2_1950-2100.nc")}
    reference, simulation = (cells(one["tasmax"], one["pr"]) for one in files.values())
    case = Both(reference, simulation, ("1981", "2010"), kind="+", nquantiles=50)
    assert_trained_as_xsdba(case)
    for rank_window in (False, True):
        assert_xsdbas(case.scenario(rank_window=rank_window), case.expected(simulation, rank_window))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_halfway_between_two_levels_the_side_is_scipys(dtype: str) -> None:
    """Of 151 values, each third has its rank there: 3 / 150 between the levels 0.01 and 0.03."""
    levels = np.linspace(0.01, 0.99, 50).astype(dtype).astype(np.float64)
    turns = ranking.turning_points(tuple(levels.tolist()), 365)
    ranks = (np.arange(1, 152) / 151 - 1 / 151) / (1 - 1 / 151)
    rows = np.arange(367)
    points = np.tile(levels, rows.size), np.repeat(rows, levels.size)
    places = np.tile(ranks, rows.size), np.repeat(rows, ranks.size)
    expected = griddata(points, np.tile(np.arange(50), rows.size), places, method="nearest")
    found = [(turns[row][:, np.newaxis] < ranks).sum(axis=0) for row in rows]
    np.testing.assert_array_equal(np.concatenate(found), expected)


@pytest.fixture(scope="module")
def rainy() -> tuple[xr.DataArray, xr.DataArray]:
    """A pool with more dry days than the reference."""
    reference, simulation = series("noleap", "*", 1).isel(loc=[0, 0]), series("noleap", "*", 2, 2).isel(loc=[0, 0])
    return reference.where(reference > 0.5, 0), simulation.where(simulation > 2, simulation * 0)


def trained_and_adjusted(method: str, rainy: tuple[xr.DataArray, xr.DataArray], **more: Any) -> xr.Dataset:
    reference, simulation = rainy
    group = {"group": "time.dayofyear", "window": 31, "add_dims": ["realization"]}
    training = blocks.train(
        reference, simulation, method=method, group=group, xclim_train_args=PR, period=CALIBRATION, seed="s"
    )
    loess = {"detrend": {"LoessDetrend": {"mult_skip_zeros": True}}} if method != QDM else {}
    made = blocks.adjust_and_count(
        simulation,
        training,
        periods=(2001, 2000 + YEARS),
        xclim_adjust_args={"interp": "nearest", "extrapolation": "constant", **loess},
        seed="t",
        **more,
    )
    return xr.merge([training, made], compat="override", join="outer", combine_attrs="drop_conflicts")


def test_frequencies_are_adapted_as_in_detrended_quantile_mapping(rainy: tuple[xr.DataArray, xr.DataArray]) -> None:
    """Whose adaptation is xsdba's (test_pools): the same draws, and quantiles of the values themselves."""
    found, other = (trained_and_adjusted(method, rainy) for method in (QDM, "DetrendedQuantileMapping"))
    for name in ("P0_ref", "P0_hist", "pth"):
        np.testing.assert_array_equal(found[name], other[name])
    windows = rainy[0].sel(time=slice(*CALIBRATION)).rolling(time=31, center=True).construct("window")
    mean = windows.groupby("time.dayofyear").mean(["time", "window"]) / other["scaling"]
    np.testing.assert_allclose(found["hist_q"], (other["hist_q"] * mean).transpose(*found["hist_q"].dims), rtol=1e-4)
    days, of_other = (days_of(one["treated"], "pr") for one in (found, other))
    np.testing.assert_array_equal(days["pr_days_made_wet"], of_other["pr_days_made_wet"])
    assert (days["pr_days_made_wet"] > 100).all() and (days["pr_days_extrapolated"] == 0).all()
    assert ((found["scenario"] > 0) & (rainy[1] == 0)).sum() > 400


def test_windows_of_years_draw_for_themselves(rainy: tuple[xr.DataArray, xr.DataArray]) -> None:
    found = trained_and_adjusted(QDM, rainy, moving_yearly_window=WINDOWS)
    of_dry = found["scenario"].where(rainy[1] == 0).values
    drawn = of_dry[of_dry > 0]
    assert drawn.size > 400 and np.unique(drawn).size > 0.99 * drawn.size
    assert (days_of(found["treated"], "pr")["pr_days_made_wet"] > 100).all()


@pytest.mark.parametrize("windows", [None, WINDOWS], ids=["whole", "windows"])
def test_the_steps_lead_from_the_value_over_its_rank_to_the_scenario(
    plain: Both, windows: dict[str, int] | None
) -> None:
    more: dict[str, Any] = {"moving_yearly_window": windows} if windows else {}
    scenario = plain.scenario(**more).isel(loc=[0])
    for date in ("2001-01-01", "2005-07-09", "2011-12-31"):
        arguments: dict[str, Any] = {
            "periods": (2001, 2000 + YEARS),
            "xclim_adjust_args": {"interp": "nearest"},
            **more,
        }
        found = blocks.steps(plain.simulation.isel(loc=[0]), plain.ours.isel(loc=[0]), date=date, **arguments)
        assert [one.name for one in found] == ["quantile", "factor", "result"]
        assert found[-1].value == scenario.sel(time=date).item()
        years = (int(date[:4]) // 2 * 2 - 1, int(date[:4]) // 2 * 2 + 4) if windows else (2001, 2011)
        years = (2001, 2006) if windows and date < "2004" else (2006, 2011) if windows and date > "2010" else years
        same = plain.simulation.isel(loc=0).sel(time=slice(*map(str, years)))
        same = same.sel(time=same.time.dt.strftime("%m-%d") == date[5:])
        at = same.indexes["time"].year.tolist().index(int(date[:4]))
        rank = (rankdata(same.values)[at] - 1) / (same.size - 1)
        assert found[0].value == pytest.approx(rank) and f"in {same.size} years" in found[0].sentence
        np.testing.assert_allclose(found[1].value, found[2].value - same.values[at], atol=1e-4)


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ({"window": 30, "step": 15}, "odd number of steps"),
        ({"window": 30, "step": 20}, "odd number of steps"),
        ({"window": 33, "step": 11}, "windows of 33 years, and the period 1991-2020 has 30"),
        ({"window": 30}, "step"),
    ],
)
def test_windows_that_do_not_fit_are_refused(windows: dict[str, int], message: str) -> None:
    given = {"periods": [[1950, 1990], [1991, 2020]], "moving_yearly_window": windows}
    with pytest.raises(ConfigurationError, match=message):
        checked(Adjusting, given, "adjusting_args")


@pytest.mark.parametrize("engine", ["auto", "xsdba"])
def test_data_of_fewer_years_than_a_window_are_refused_though_the_period_has_them(engine: Any) -> None:
    data = series("noleap", "+", 1)
    group = {"group": "time.dayofyear", "window": 31}
    training = blocks.train(data, data, method=QDM, group=group, xclim_train_args={"kind": "+"}, period=CALIBRATION)
    windows: dict[str, Any] = {"periods": ("2001", "2030"), "moving_yearly_window": {"window": 15, "step": 5}}
    with pytest.raises(DataError, match="windows of 15 years, and 2001-2011 has 11"):
        blocks.adjust(data, training, engine=engine, **windows).compute()


def test_other_methods_have_no_kernels() -> None:
    with pytest.raises(ConfigurationError, match=r"dqm\.Scaling: expected dqm, or dqm\.QuantileDeltaMapping"):
        method_named("dqm.Scaling")


@pytest.mark.parametrize("more", [{}, {"rank_window": True}, {"moving_yearly_window": WINDOWS}])
def test_days_without_rain_in_each_year_stay_dry(more: dict[str, Any]) -> None:
    reference, simulation = series("noleap", "*", 1), series("noleap", "*", 2)
    desert = simulation.where((simulation["time.month"] < 6) | (simulation["time.month"] > 8), 0)
    both = Both(reference, simulation, kind="*", nquantiles=20)
    both.simulation = desert
    found = both.scenario(**more)
    july = found.sel(time=found["time.month"] == 7).isel(loc=0)
    assert (july == 0).all()


def test_ranks_in_windows_are_kept_as_the_shares_of_lower_days(plain: Both) -> None:
    how = {"interp": "nearest", "extrapolation": "constant", "rank_window": True}
    given: dict[str, Any] = {"periods": ("2001", "2011"), "xclim_adjust_args": how, "moving_yearly_window": WINDOWS}
    made = blocks.adjust_and_count(plain.simulation, plain.ours, keeps_ranks=True, **given)
    assert made["quantile"].dtype == np.uint16
    ranks = ranking.of_quantiles(made["quantile"].values)
    # Of the middle years 2005 and 2006 are kept of the window of 2003 to 2008.
    values, dayofyear = plain.simulation.values[0], plain.simulation.indexes["time"].dayofyear
    years = plain.simulation.indexes["time"].year
    for place in np.flatnonzero((years == 2005) & (dayofyear % 60 == 40)):
        centres = np.flatnonzero((dayofyear == dayofyear[place]) & (years >= 2003) & (years <= 2008))
        sample = values[(centres[:, None] + np.arange(-15, 16)).ravel()]
        expected = (rankdata(sample)[sample == values[place]][0] - 1) / (sample.size - 1)
        assert ranks[0, place] == pytest.approx(expected, abs=1 / 131_068 + 1e-9)
    assert np.isnan(ranks[4]).all()
    np.testing.assert_array_equal(made["scenario"], blocks.adjust(plain.simulation, plain.ours, **given))
    for without in ({"keeps_ranks": False}, {"keeps_ranks": True, "xclim_adjust_args": {**how, "rank_window": False}}):
        assert "quantile" not in blocks.adjust_and_count(plain.simulation, plain.ours, **given | without)
