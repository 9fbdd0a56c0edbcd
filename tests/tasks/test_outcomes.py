"""From complete products to indicators, climatologies, changes, ensembles and regions; bad input is named before."""

import csv
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import yaml
from checked_netcdf import problems_of
from complete_demo import DAY360, NOLEAP, complete_all, in_order
from demo_runs import of_years
from luigi.task_register import Register
from shapely.geometry import box, mapping
from small_demo import LAND
from test_production_shape import of_source
from xclim import atmos
from xclim.core.calendar import percentile_doy

import espo_luigi
from espo_luigi import store, tasks
from espo_luigi.config.schema import fingerprint
from espo_luigi.errors import ConfigurationError, StoreError
from espo_luigi.export.netcdf import Layout, from_cf_axes, statistics_file, write_netcdf
from espo_luigi.overview.plan import plan_of
from espo_luigi.overview.plan_text import render_plan
from espo_luigi.overview.states import RUN
from espo_luigi.science import stack
from espo_luigi.science.outcomes.delta import delta
from espo_luigi.science.outcomes.indicators import load_indicators
from espo_luigi.science.outcomes.natures import on_standard_year
from espo_luigi.science.outcomes.regions import Box, region_means
from espo_luigi.science.outcomes.return_levels import return_levels
from espo_luigi.science.outcomes.trends import trends
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.context import context
from espo_luigi.tasks.cost import Basis
from espo_luigi.tasks.ensembles import (
    _pooled,
    check_regions,
    dropped,
    ends_of_ensembles,
    experiment_of,
    members,
    on_one_grid,
    regions,
)
from espo_luigi.tasks.outcomes import _fault_of_outcomes, check_outcomes, chosen, ends_of_outcomes, on_the_grid

Configure = Callable[..., list[Path]]
FIRST, LAST = 1991, 2030
LATS, LONS = 45.125 + 0.25 * np.arange(12), -66.875 + 0.25 * np.arange(10)
BANDS = {"south": slice(0, 3), "middle": slice(3, 10), "north": slice(10, 12)}
TASMAX = {"standard_name": "air_temperature", "cell_methods": "time: maximum within days"}
MODULE = {
    "realm": "atmos",
    "indicators": {
        "tx_mean": {"base": "tx_mean"},
        "tx_days_above": {"base": "tx_days_above", "parameters": {"thresh": "25 degC"}},
        "frost_days": {"base": "frost_days"},
        "prcptot": {"base": "prcptot"},
        "rx1day": {"base": "rx1day"},
        "tn_mean": {"base": "tn_mean", "parameters": {"freq": "QS-DEC"}},
    },
}
OP = {"climatological_op": {"op": "mean", "window": 20, "stride": 10, "periods": [["1991", "2030"]]}}
PCT = {"kind": {"prcptot": "%"}}
SINCE = {"reference_horizon": "1991-2010"}
LATER = {"climatological_op": {"window": 30, "periods": [[1991, 2020], [2041, 2070]]}}
AGGREGATE = {**OP, "compute_deltas": {"kind": {"prcptot": "%"}, **SINCE}}


def days(calendar: str, warmer: float, last: int = LAST) -> xr.Dataset:
    """Daily maps of land: each year warmer than the one before."""
    draws = np.random.default_rng(len(calendar))
    time = xr.date_range(
        f"{FIRST}-01-01", f"{last}-12-{30 + (calendar != '360_day')}", calendar=calendar, use_cftime=True
    )
    shape = (time.size, 12, 10)
    land = np.array([[letter == "#" for letter in row] for row in LAND])
    season = (
        np.sin(2 * np.pi * (np.asarray(time.dayofyear) - 105) / 365) * 15
        + (np.asarray(time.year) - FIRST) * warmer / 10
    )
    tasmax = np.where(land, 285 + season[:, None, None] + draws.normal(0, 4, shape), np.nan)
    pr = np.where(land, draws.gamma(0.3, 8, shape), np.nan) / 86400
    data = {"tasmax": (tasmax, "K"), "tasmin": (tasmax - 8, "K"), "pr": (pr, "kg m-2 s-1")}
    made = {name: (("time", "lat", "lon"), of.astype("float32"), {"units": unit}) for name, (of, unit) in data.items()}
    return xr.Dataset(made, {"time": time, "lat": ("lat", LATS), "lon": ("lon", LONS)}, {"cat:id": calendar})


def publish(task: Any, **outputs: xr.Dataset) -> None:
    for name, dataset in outputs.items():
        store.write_store(dataset, getattr(task, f"out_{name}")().path, task.marker())


def made(folder: Path, configured: Configure, **sections: Any) -> None:
    """Configure the demo with sections for outcomes, and publish what they are made of."""
    (folder / "six.yml").write_text(yaml.safe_dump(MODULE))
    given = {"indicators": {"module": "six.yml"}, "aggregate": AGGREGATE, **sections}
    # Two chunks: many small variables take Dask long.
    chunks = {"lat": 8, "lon": 10}
    configured(**of_years(FIRST, LAST), custom__final_chunks=chunks, keep=["regridded"], **given)


def publish_inputs() -> None:
    reference = days("standard", 0.0, 2020)
    for piece, rows in BANDS.items():
        part = reference.isel(lat=rows)
        grid = stack.grid_of(part).assign(land=stack.land_of(part))
        publish(tasks.RefDefault(piece=piece), reference=stack.stack_drop_nans(part), grid=grid)
    for sim_id, calendar, warmer in ((NOLEAP, "noleap", 0.5), (DAY360, "360_day", 1.0)):
        whole = days(calendar, warmer)
        task = tasks.ConcatenationFinal(sim_id=sim_id)
        publish(task, scenario=whole.chunk(time=1460, lat=4, lon=9))
        store.pack(task.out_scenario().path, task.out_final().path, task.marker())
        for piece, rows in BANDS.items():
            raw = stack.stack_drop_nans(whole.isel(lat=rows)).chunk(time=-1, loc=20)
            raw.attrs["cat:processing_level"] = "regridded"
            regrid, move = tasks.Regrid(sim_id=sim_id, piece=piece), tasks.Move(sim_id=sim_id, piece=piece)
            publish(regrid, regridded=raw)
            store.pack(regrid.out_regridded().path, move.out_regridded().path, move.marker())


def delete_temporary() -> None:
    """Delete all temporary stores, as a run of `All` does."""
    for task in in_order(tasks.All()):
        task.delete_temporary()


def work(wanted: Iterable[Any]) -> None:
    """Do the work of tasks, and of all that they need, in this process."""
    for task in wanted:
        if not task.complete():
            task.check()
            work(task.requires())
            task.work()


def table_of_warming(folder: Path) -> str:
    """Global means that rise by 0.04 K a year from 1991 on, of one of the simulations."""
    lines = [f"{year},{288 + max(0, year - 1990) * 0.04}" for year in range(1850, 2101)]
    (folder / "warming.csv").write_text("\n".join(["year,CMIP6_Demo-NoLeap_ssp585_r1i1p1f1", *lines]))
    return "warming.csv"


REGIONS = {
    "south-west": {"method": "bbox", "lon_bnds": [-67, -66], "lat_bnds": [45, 46]},
    "town": {"method": "gridpoint", "lon": -66.9, "lat": 47.6},
}


@pytest.mark.production
def test_products_become_changes_of_an_ensemble_and_of_regions(
    tmp_path: Path, configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = {"wl": [0.5, 1.0, 3.0, 5.0], "tas_src": table_of_warming(tmp_path)}
    fewest = {"ensemble_stats": {"fewest": {"percentiles": 2, "robustness": 2}}}
    made(tmp_path, configured, warming_levels=levels, ensembles=fewest, spatial_mean={"regions": REGIONS})
    publish_inputs()
    names = {"sim_id": NOLEAP, "freq": "YS-JAN"}
    assert espo_luigi.build([tasks.Indicators(**names, dataset="scenario")]).succeeded
    whole = {"freq": "YS-JAN", "dataset": "scenario", "experiment": "ssp585"}
    at_all = {**whole, "experiment": "all", "product": "warming_levels"}
    work([tasks.Indicators(**names, dataset="simulation"), tasks.ReferenceClimatology(freq="QS-DEC")])
    seasonal = tasks.Ensemble(**{**whole, "freq": "QS-DEC"}, product="delta")
    work([tasks.Ensemble(**whole, product="delta"), tasks.Ensemble(**at_all), seasonal])
    assert espo_luigi.build([tasks.Regions(**whole, product="delta")]).succeeded
    of_scenario, of_raw = (
        store.open_store(tasks.Indicators(**names, dataset=dataset).out_indicators().path)
        for dataset in ("scenario", "simulation")
    )
    assert of_scenario.sizes == {"time": 40, "lat": 12, "lon": 10}
    xr.testing.assert_allclose(of_scenario.load(), of_raw.load())
    assert (of_scenario.attrs["cat:processing_level"], of_raw.attrs["cat:processing_level"]) == (
        "indicators",
        "indicators_simulation",
    )
    expected = atmos.tx_days_above(days("noleap", 0.5)["tasmax"].assign_attrs(TASMAX), thresh="25 degC")
    np.testing.assert_allclose(of_scenario["tx_days_above"], expected)

    change = store.open_store(tasks.Delta(**names, dataset="scenario").out_delta().path)
    assert change["horizon"].values.tolist() == ["1991-2010", "2001-2020", "2011-2030"]
    of_tx = "tx_mean_clim_mean_delta_1991_2010"
    np.testing.assert_allclose(change[of_tx].sel(horizon="2011-2030").mean(), 20 * 0.5 / 10, atol=0.05)
    assert change["prcptot_clim_mean_delta_1991_2010"].attrs["units"] == "%"
    # A simulation of 360 days has counts of a year of 365.
    of_360 = {**names, "sim_id": DAY360, "dataset": "scenario"}
    counted = store.open_store(tasks.Indicators(**of_360).out_indicators().path)["frost_days"]
    normal = store.open_store(tasks.Climatology(**of_360).out_climatology().path)["frost_days_clim_mean"]
    expected = counted.sel(time=slice("1991", "2010")).mean("time", skipna=False) * 365 / 360
    np.testing.assert_allclose(normal.sel(horizon="1991-2010"), expected, rtol=1e-5)
    assert (counted.attrs["nature"], counted.attrs["calendar"]) == ("count", "360_day")
    assert (normal.attrs["calendar"], normal.attrs["standard_year"][:8]) == ("noleap", "365 days")
    reference = store.open_store(tasks.ReferenceClimatology(freq="QS-DEC").out_climatology().path)
    assert sorted(reference["season"].values) == ["DJF", "JJA", "MAM", "SON"]

    at_levels = store.open_store(tasks.WarmingLevels(**names, dataset="scenario").out_warming_levels().path)
    assert at_levels.attrs["warming_level_years"] == "0.5 K: 1994-2013; 1 K: 2006-2025"
    absent = at_levels.attrs["warming_level_absent"]
    assert "5 K: stays below" in absent and "3 K: the period 2056-2075" in absent
    assert np.isnan(at_levels[of_tx].sel(warming_level=3)).all()
    np.testing.assert_allclose(at_levels[of_tx].sel(warming_level=1).mean(), 15 * 0.5 / 10, atol=0.05)

    both = store.open_store(tasks.Ensemble(**whole, product="delta").out_ensemble().path).sel(horizon="2011-2030")
    assert float(both[f"{of_tx}_members"].max()) == 2 and float(both[f"{of_tx}_agree"].min()) == 1
    np.testing.assert_allclose(both[f"{of_tx}_p50"].mean(), 20 * 0.75 / 10, atol=0.05)
    assert set(np.unique(both[f"{of_tx}_advanced"].fillna(99))) == {1, 99}
    # Rain has no trend.
    assert (both["prcptot_clim_mean_delta_1991_2010_advanced"] == 2).sum() > 40
    of_seasons = store.open_store(seasonal.out_ensemble().path)["tn_mean_clim_mean_delta_1991_2010_advanced"]
    assert set(np.unique(of_seasons.sel(horizon="2011-2030").fillna(99))) == {1, 99}
    assert both.attrs["cat:id"] == "Demo-Land_NAM_ssp585" and both.attrs["cat:processing_level"] == "ensemble-delta"
    assert DAY360 in store.open_store(tasks.Ensemble(**at_all).out_ensemble().path).attrs["ensemble_missing"]

    table = tasks.Regions(**whole, product="delta").out_table().path
    with xr.open_dataset(table.with_suffix(".nc")) as file:
        assert file[of_tx].dims == ("time", "realization", "region") and "crs" in file
        of_regions = from_cf_axes(file)
        assert of_regions["region"].values.tolist() == ["south-west", "town"]
        np.testing.assert_allclose(of_regions[of_tx].sel(horizon="2011-2030", realization=DAY360), 2, atol=0.2)
    work([tasks.Regions(**at_all)])
    are_changes_of_the_regions_means(whole, at_all)
    regional = tasks.Regions(**whole, product="delta")
    netcdf = table.with_suffix(".nc").rename(tmp_path / "taken-away.nc")
    assert not regional.complete()
    table.with_suffix(".nc").write_text("mine")
    with pytest.raises(StoreError, match="is no NetCDF-4 file with the global attribute espo_luigi_marker"):
        regional.check()
    netcdf.replace(table.with_suffix(".nc"))
    assert regional.complete()
    is_read_by_others(table, of_tx)
    assert tasks.Ensemble(**whole, product="delta").complete()
    # Another simulation is found, or one no longer: the ensemble is made again, and nothing of the others.
    monkeypatch.setattr("espo_luigi.tasks.ensembles.members", lambda run, experiment: [NOLEAP])
    Register.clear_instance_cache()
    assert not tasks.Ensemble(**whole, product="delta").complete()
    assert all(task.complete() for task in tasks.Ensemble(**whole, product="delta").requires())


@pytest.mark.production
def test_indicators_become_trends_and_return_levels_of_ensembles_and_regions(
    tmp_path: Path, configured: Configure
) -> None:
    levels = {"indicators": "rx1day", "return_periods": [20, 50], "periods": [[1991, 2010], [2011, 2030]]}
    extremes = {"trends": {"periods": [[1991, 2030]]}, "return_levels": levels}
    fewest = {"ensemble_stats": {"fewest": {"percentiles": 2, "robustness": 2}}}
    percent = {"compute_deltas": {"kind": {"rx1day": "%"}, **SINCE}}
    given = {**OP, **percent, **extremes}
    regional = {"spatial_mean": {"regions": REGIONS}}
    made(tmp_path, configured, aggregate=given, ensembles=fewest, **regional)
    publish_inputs()
    check_outcomes(context())
    whole = {"freq": "YS-JAN", "dataset": "scenario", "experiment": "ssp585"}
    both = [rule(**whole, product=of) for of in ("trends", "return_levels") for rule in (tasks.Ensemble, tasks.Regions)]
    work([*both, tasks.ReferenceTrends(freq="YS-JAN"), tasks.ReferenceReturnLevels(freq="YS-JAN")])
    assert {tasks.Trends, tasks.ReturnLevels, tasks.ReferenceTrends} <= {*map(type, ends_of_outcomes(context()))}
    of_levels = [end.freq for end in ends_of_ensembles(context()) if end.product == "return_levels"]  # type: ignore[attr-defined]
    assert set(of_levels) == {"YS-JAN"}

    own = {"sim_id": DAY360, "freq": "YS-JAN", "dataset": "scenario"}
    yearly = on_standard_year(store.open_store(tasks.Indicators(**own).out_indicators().path)).load()
    of_one = store.open_store(tasks.Trends(**own).out_trends().path).load()
    xr.testing.assert_allclose(of_one, trends(yearly))
    assert of_one.attrs["cat:processing_level"] == "trends"
    of_all = store.open_store(both[0].out_ensemble().path).load().squeeze("horizon")
    np.testing.assert_allclose(of_all["tx_mean_clim_trend_p50"].mean(), 0.75, atol=0.05)
    assert float(of_all["tx_mean_clim_trend_changed"].min()) == 1 and not [name for name in of_all if "pvalue" in name]
    assert "p-value" in of_all["tx_mean_clim_trend_changed"].attrs["long_name"]
    frame = pd.read_csv(both[1].out_table().path).set_index(["region", "indicator", "statistic"]).sort_index()
    of_regions = trends(region_means(yearly, regions(context())))
    for end, statistic in (("", DAY360), ("_pvalue", f"pvalue_{DAY360}")):
        found = frame.loc[("south-west", "prcptot", statistic)]
        np.testing.assert_allclose(
            found["value"], of_regions[f"prcptot_clim_trend{end}"].sel(region="south-west"), 1e-3
        )
        assert found["unit"] == ("1" if end else "mm decade-1")

    of_one = store.open_store(tasks.ReturnLevels(**own).out_return_levels().path).load()
    name, change = "rx1day_clim_return_level", "rx1day_clim_return_level_delta_1991_2010"
    assert of_one[name].dims == ("horizon", "lat", "lon", "return_period") and of_one[change].attrs["units"] == "%"
    expected = return_levels(yearly[["rx1day"]], periods=levels["periods"], return_periods=[20, 50], resamples=0)
    np.testing.assert_allclose(of_one[name], expected[name].isel(resample=0), rtol=1e-5)
    assert {f"{one}_{end}" for one in (name, change) for end in ("lower", "upper")} < {*of_one}
    of_all = store.open_store(both[2].out_ensemble().path)
    assert {f"{name}_p50", f"{change}_p50", f"{change}_agree"} < {*of_all} and f"{name}_agree" not in of_all
    rows = pd.read_csv(both[3].out_table().path)
    assert set(rows["return_period"]) == {20, 50} and {f"lower_{DAY360}", "p50"} < set(rows["statistic"])
    with xr.open_dataset(both[3].out_table().path.with_suffix(".nc")) as file:
        means = from_cf_axes(file.load()).sel(region="town", realization=DAY360)
        cell = of_one.sel(lat=47.6, lon=-66.9, method="nearest")
        for key in (name, change, f"{name}_upper", f"{change}_lower"):
            np.testing.assert_allclose(means[key].transpose(*cell[key].dims), cell[key], rtol=1e-5)
    trended = both[1].out_table().path.with_suffix(".nc")
    with xr.open_dataset(trended) as file:
        assert file["tx_mean_clim_trend_p50"].attrs["units"] == "0.1 K year-1"
    for kept in (both[0].out_ensemble(), both[2].out_ensemble(), tasks.ReturnLevels(**own).out_return_levels()):
        are_accepted_as_netcdf(store.open_store(kept.path).load(), tmp_path)
    # Another method: nothing of return levels is stale.
    made(tmp_path, configured, ensembles=fewest, aggregate={**given, "trends": {"method": "linear"}}, **regional)
    Register.clear_instance_cache()
    again = [type(task)(**task.param_kwargs) for task in both]
    assert [task.stale(files=False) for task in again] == [["aggregate.trends"]] * 2 + [[]] * 2


def are_accepted_as_netcdf(ds: xr.Dataset, folder: Path) -> None:
    for name, long_name in (("lat", "latitude"), ("lon", "longitude")):
        ds[name].attrs = {"standard_name": long_name, "units": f"degrees_{'north' if name == 'lat' else 'east'}"}
    for data in ds.values():  # xclim's of rx1day is that of an amount
        data.attrs.pop("standard_name", None)
    file = folder / "statistics.nc"
    file.unlink(missing_ok=True)
    write_netcdf(statistics_file(ds, "x"), file, Layout({}))
    assert problems_of([file]) == ""


def is_read_by_others(table: Path, of_tx: str) -> None:
    """By pandas and R: one line of names, in long form, four digits, of each simulation and over them."""
    frame = pd.read_csv(table)
    along = ["region", "indicator", "long_name", "unit", "experiment", "horizon", "season", "statistic", "value"]
    assert [*frame] == along and frame["value"].dtype == float
    of_town = frame[(frame["region"] == "town") & (frame["indicator"] == "tx_mean")].set_index(["statistic", "horizon"])
    with xr.open_dataset(table.with_suffix(".nc")) as file:
        of_regions = from_cf_axes(file.load()).sel(region="town")
    for name, statistic in ((f"{of_tx}_p50", "p50"), (f"{of_tx}_agree", "agree")):
        of_file = of_regions[name].sel(horizon=of_town.loc[statistic].index)
        np.testing.assert_allclose(of_town.loc[statistic, "value"], of_file, rtol=5.1e-4)
    of_file = of_regions[of_tx].sel(realization=DAY360, horizon=of_town.loc[DAY360].index)
    np.testing.assert_allclose(of_town.loc[DAY360, "value"], of_file, rtol=5.1e-4)
    assert set(of_town["unit"]) == {"K", "1"} and set(of_town["season"]) == {"annual"}
    assert len(table.read_text().splitlines()) == len(frame) + 1 and set(frame["experiment"]) == {"ssp585"}
    assert all(len(row["value"].strip("-").replace(".", "").lstrip("0")) <= 4 for row in store.read_table(table))
    if shutil.which("Rscript"):
        program = f't <- read.csv("{table}"); cat(nrow(t), ncol(t), is.numeric(t$value), sum(t$region == "town"))'
        said = subprocess.run(["Rscript", "-e", program], capture_output=True, text=True, check=True).stdout
        assert said == f"{len(frame)} 9 TRUE {(frame['region'] == 'town').sum()}"


def are_changes_of_the_regions_means(whole: dict[str, str], at_all: dict[str, str]) -> None:
    """In percent, too; a mean of the cells' percentages is another."""
    of, name = {"sim_id": NOLEAP, "freq": "YS-JAN", "dataset": "scenario"}, "prcptot_clim_mean_delta_1991_2010"
    ds = store.open_store(tasks.Indicators(**of).out_indicators().path)[["prcptot"]]
    yearly = region_means(ds, regions(context())).compute()["prcptot"].groupby("time.year").mean()

    def percent(first: int, last: int) -> Any:
        base = yearly.sel(year=slice(1991, 2010)).mean("year")
        return 100 * (yearly.sel(year=slice(first, last)).mean("year") / base - 1)

    for task, when in ((whole | {"product": "delta"}, {"horizon": "2011-2030"}), (at_all, {"warming_level": 1.0})):
        with xr.open_dataset(tasks.Regions(**task).out_table().path.with_suffix(".nc")) as file:
            made = from_cf_axes(file.load())
            expected = percent(2011, 2030) if "horizon" in when else percent(2006, 2025)
            np.testing.assert_allclose(made[name].sel(realization=NOLEAP, **when), expected, rtol=1e-3)
            assert made.attrs["cat_processing_level"] == task["product"].replace("_", "-")


def test_a_region_s_change_is_of_the_cells_that_have_all_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("espo_luigi.tasks.ensembles.regions", lambda run: {"all": Box((4.5, 7.5), (-0.5, 0.5))})
    rain = np.repeat([[[10.0, 500, 7]], [[20, 485, np.nan]], [[np.nan] * 3]], 2, axis=1)
    axes = {"horizon": ["1991-2020", "2041-2070", "2071-2100"], "lat": [0.0, 1], "lon": [5.0, 6, 7]}
    ds = xr.Dataset({"pr": (("horizon", "lat", "lon"), rain, {"units": "mm"})}, axes)
    for name, attrs in (("lat", {"units": "degrees_north"}), ("lon", {"units": "degrees_east"})):
        ds[name].attrs = attrs
    made = delta(*_pooled(None, ds, ds.isel(horizon=[0])), kind="%")["pr_delta_1991_2020"]
    np.testing.assert_allclose(made.squeeze(), [0, 100 * (505 / 510 - 1), np.nan])


def test_simulations_are_of_the_experiment_in_their_columns(own_raw: Path) -> None:
    """Ids are the institute's own: nothing in them tells the experiment."""
    catalogue = own_raw / "simulation.csv"
    with catalogue.open() as file:
        rows = list(csv.DictReader(file))
    future = [row for row in rows if row["id"] == NOLEAP]
    rows.append({**future[0], "id": "third", "member": "r2i1p1f1"})
    for row in future:
        row["id"] = "first"
    with catalogue.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    run = context()
    assert members(run, "ssp585") == [DAY360, "first"] and members(run, "all") == members(run, "ssp585")
    assert set(dropped(run, "ssp585")) == set(dropped(run, "all")) == {"third"} and not dropped(run, "ssp245")
    assert [experiment_of({"experiment": name}) for name in ("historical+rcp45", "rcp45", "")] == [
        *["rcp45"] * 2,
        "unknown",
    ]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"indicators": {"module": "wind.yml"}}, r"(?s)`indicators.module`.*needs sfcWind; the production has"),
        # Only of one of the simulations: its calendar has no 31 July.
        (
            {"indicators": {"module": "july.yml"}},
            r"(?s)of the scenario \(360_day calendar\).*indicator a at .*invalid day",
        ),
        (
            {"indicators": {"module": "six.yml", "periods": [[1991, 2000], [2021, 2040]]}},
            "`indicators.periods`: got 2021-2040, expected years within the data, 1991-2030",
        ),
        ({"indicators": {"module": "seaIce"}}, "no indicator of seaIce can be computed from .*'pr', 'tasmax'"),
        ({"aggregate": {"climatological_op": {"periods": [[1971, 2000]]}}}, "got 1971-2000, expected years within"),
        (
            {"aggregate": {"compute_deltas": {"reference_horizon": "1996-2015"}}},
            r"compute_deltas`: the baseline 1996-2015 is none of the horizons, .*add",
        ),
        (
            {"aggregate": {"compute_deltas": {"reference_horizon": "1971-2000"}, **OP}},
            "horizon`: got 1971-2000, expect",
        ),
        ({"aggregate": {"compute_deltas": {**SINCE, "least": {"prcptot": "1 K"}, **PCT}, **OP}}, "_deltas`: .*1 K"),
        ({"aggregate": {"climatological_op": {"window": 50}}}, "climatological_op`: no window of 50 years"),
        ({"warming_levels": {}}, "no simulation reaches any of 1.5, 2.0, 3.0, 4.0 K .*has no row of"),
        (
            {"warming_levels": {"wl": [3.0, 5.0], "tas_src": "warming.csv"}},
            r"Demo-NoLeap_ssp585_r1i1p1f1_\w+: 5 K: stays below.*; 3 K: the period 2056-2075 is not in the data",
        ),
        (
            {"aggregate": {"climatological_op": {"window": 30, "min_periods": 25}}, "warming_levels": {}},
            "min_periods`: got 25, but warming_levels.window has 20 years",
        ),
        ({"warming_levels": {"tas_src": "six.yml"}}, "tas_src`: .*is no table of yearly global temperatures"),
        (
            {"indicators": {"module": "dates.yml"}, "aggregate": {"climatological_op": {"op": "sum"}}},
            "climatological_op`: frost is of the nature day of the year, whose operations are mean, .*; got sum",
        ),
        ({"aggregate": {"trends": {"periods": [[1971, 2000]]}}}, "trends`: the period 1971-2000 is not in the data"),
        ({"aggregate": {"trends": {"min_periods": 50}}}, "aggregate.trends`: min_periods 50 is not possible"),
        ({"aggregate": {"return_levels": {"indicators": "rx2day"}}}, "levels`: got rx2day, expected of .* rx1day"),
        (
            {"aggregate": {"return_levels": {"indicators": "tx_mean"}}},
            "return_levels`: tx_mean is no maximum or minimum .*'time: mean over days'",
        ),
        (
            {"aggregate": {"return_levels": {"indicators": "rx1day", "periods": [[1991, 2005]]}}},
            "return_levels`: the period 1991-2005 is too short; expected 20",
        ),
        (
            {"aggregate": {**AGGREGATE, "return_levels": {"indicators": "rx1day", "periods": [[2001, 2030]]}}},
            "return_levels`: the baseline 1991-2010 is none of the horizons",
        ),
        (
            {"aggregate": {"compute_deltas": {**SINCE, "kind": {"tn_mean": "%"}}, **OP}},
            r"compute_deltas`: tn_mean_clim_mean is of the nature temperature, whose changes are \+; got %",
        ),
        ({"indicators": {"module": "warm.yml"}}, "cf_attrs.nature` of warm: got 'warmth', expected one of .*count"),
    ],
)
def test_bad_input_is_named_before_anything_runs(
    sections: dict[str, Any], message: str, tmp_path: Path, configured: Configure
) -> None:
    (tmp_path / "wind.yml").write_text(yaml.safe_dump({"realm": "atmos", "indicators": {"a": {"base": "sfcWind_max"}}}))
    (tmp_path / "dates.yml").write_text("realm: atmos\nindicators: {frost: {base: last_spring_frost}}\n")
    warm = "realm: atmos\nindicators: {warm: {base: tx_days_above, cf_attrs: {nature: warmth}}}\n"
    (tmp_path / "warm.yml").write_text(warm)
    late = {"indexer": {"date_bounds": ["07-31", "08-31"]}}
    july = {"realm": "atmos", "indicators": {"a": {"base": "tx_max", "parameters": late}}}
    (tmp_path / "july.yml").write_text(yaml.safe_dump(july))
    table_of_warming(tmp_path)
    made(tmp_path, configured, **sections)
    with pytest.raises(ConfigurationError, match=message):
        check_outcomes(context())


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ({"lon_bnds": [10, 12], "lat_bnds": [45, 46]}, "'far' lies outside of the domain"),
        ({"method": "gridpoint", "lon": -64.6, "lat": 45.1}, "'far' has no land cell"),
        ({"method": "shape", "shape": "none.json"}, "regions.far`: .*No such file .*none.json"),
        (
            {"method": "shape", "shape": "nameless.json"},
            "regions.far`: nameless.json, feature 1: no property 'name' .*got code",
        ),
        ({"method": "shape", "shape": "sea.json"}, "'bay' has no land cell"),
        ({"method": "shape", "shape": "far.json"}, "'bay' lies outside of the domain"),
        ({"method": "shape", "shape": "same.json"}, "regions.far`: another region has the name near"),
    ],
)
def test_a_region_without_land_is_named_before_anything_runs(
    region: dict[str, Any], message: str, tmp_path: Path, configured: Configure
) -> None:
    for name, shape, names in (
        ("nameless", box(-67, 45, -66, 46), {"code": 1}),
        ("sea", box(-64.65, 45.05, -64.6, 45.1), {"name": "bay"}),
        ("far", box(10, 45, 11, 46), {"name": "bay"}),
        ("same", box(-67, 45, -66, 46), {"name": "near"}),
    ):
        feature = {"type": "Feature", "geometry": mapping(shape), "properties": names}
        (tmp_path / f"{name}.json").write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    near = {"method": "bbox", "lon_bnds": [-67, -66], "lat_bnds": [45, 46]}
    made(tmp_path, configured, spatial_mean={"regions": {"near": near, "far": region}})
    with pytest.raises(ConfigurationError, match=message):
        check_regions(context())


def yearly(last: int) -> xr.Dataset:
    time = xr.date_range(f"{FIRST}-01-01", periods=last - FIRST + 1, freq="YS", calendar="noleap", use_cftime=True)
    values = 280 + np.arange(time.size, dtype="float32")[:, None, None] * np.ones((1, 12, 10), np.float32)
    coords = {"time": time, "lat": ("lat", LATS), "lon": ("lon", LONS)}
    attrs = {"units": "K", "long_name": "mean", "cell_methods": "time: mean"}
    return xr.Dataset({"tx_mean": (("time", "lat", "lon"), values, attrs)}, coords, {"cat:xrfreq": "YS-JAN"})


def test_a_member_without_a_horizon_is_named_and_counted_where_it_has_values(
    tmp_path: Path, configured: Configure
) -> None:
    of_trends = {**AGGREGATE, "trends": {"periods": [[1991, 2020], [1991, 2030]]}}
    made(tmp_path, configured, ensembles={}, aggregate=of_trends)
    for sim_id, last in ((NOLEAP, 2022), (DAY360, LAST)):
        task = tasks.Indicators(sim_id=sim_id, dataset="scenario", freq="YS-JAN")
        publish(task, computed=yearly(last).chunk(time=-1))
        store.pack(task.out_computed().path, task.out_indicators().path, task.marker())
    wanted = {"freq": "YS-JAN", "dataset": "scenario", "experiment": "ssp585", "product": "climatology"}
    work([tasks.Ensemble(**wanted)])
    found = store.open_store(tasks.Ensemble(**wanted).out_ensemble().path)
    counts = found["tx_mean_clim_mean_members"].max(("lat", "lon")).to_series().to_dict()
    assert counts == {"1991-2010": 2, "2001-2020": 2, "2011-2030": 1}
    assert found.attrs["ensemble_missing"] == f"{NOLEAP}: tx_mean_clim_mean 2011-2030"
    work([ensemble := tasks.Ensemble(**{**wanted, "product": "trends"})])
    found = store.open_store(ensemble.out_ensemble().path)
    assert found["tx_mean_clim_trend_members"].max(("lat", "lon")).values.tolist() == [2, 1]
    assert found.attrs["ensemble_missing"] == f"{NOLEAP}: tx_mean_clim_trend 1991-2030"


def test_a_simulation_that_fails_holds_its_ensemble_back(tmp_path: Path, configured: Configure) -> None:
    made(tmp_path, configured, ensembles={})
    failing = tasks.ConcatenationFinal(sim_id=NOLEAP)
    publish(failing, scenario=days("noleap", 0.0, FIRST)[["pr"]])
    store.pack(failing.out_scenario().path, failing.out_final().path, failing.marker())
    good, bad = (tasks.Indicators(sim_id=name, dataset="scenario", freq="YS-JAN") for name in (DAY360, NOLEAP))
    publish(good, computed=yearly(LAST).chunk(time=-1))
    store.pack(good.out_computed().path, good.out_indicators().path, good.marker())
    wanted = {"freq": "YS-JAN", "dataset": "scenario", "experiment": "ssp585", "product": "indicators"}
    ensemble = tasks.Ensemble(**wanted)
    result = espo_luigi.build([ensemble])
    assert not result.succeeded and good.complete() and not bad.complete()
    assert not ensemble.complete() and not ensemble.out_ensemble().path.exists()


def test_all_plans_them_until_the_ensemble_and_a_run_of_one_simulation_makes_its_own(
    tmp_path: Path, configured: Configure
) -> None:
    made(tmp_path, configured, ensembles={}, spatial_mean={"regions": REGIONS})
    plan = plan_of((), Selection(until="Ensemble"))
    assert {one.rule for one in plan.of(RUN) if one.cost and one.cost.basis is Basis.LIMITS} == set()
    assert plan.timing().seconds < 3600
    planned = Counter(one.rule for one in plan.tasks.values())
    # Two simulations, of each the scenario and what it was before; two frequencies; indicators, climatologies, changes.
    assert {"Indicators": 8, "Climatology": 8, "Delta": 8, "Ensemble": 12}.items() <= planned.items()
    assert "Regions" not in planned
    until = plan_of((), Selection(until="Regions")).tasks.values()
    assert Counter(one.rule for one in until)["Regions"] == 12 and "Ensemble" not in {one.rule for one in until}
    own = Counter(one.rule for one in plan_of((), Selection(sims=NOLEAP)).tasks.values())
    assert own["Delta"] == 4 and "Ensemble" not in own


def test_of_a_whole_module_what_is_not_possible_is_left_out_and_named_once(
    tmp_path: Path, configured: Configure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    some = [pair for pair in load_indicators("icclim") if pair[0] in ("TX", "RX5day", "TX90p", "TN90p", "SD", "HI")]
    monkeypatch.setattr("espo_luigi.tasks.outcomes.science.load_indicators", lambda module: some)
    made(tmp_path, configured, indicators={"module": "icclim"}, aggregate=LATER | OP)
    assert [name for name, _ in chosen(context())["YS-JAN"]] == ["TX", "TX90p", "TN90p", "RX5day"]
    plan = render_plan(plan_of((), Selection()))
    check_outcomes(context())
    told = [record.getMessage() for record in caplog.records if "choice of all of icclim" in record.getMessage()]
    assert len(told) == 1 and "TX90p" not in told[0] and "- SD: it needs snd" in told[0]
    assert "HI" in plan and "TX90p" not in plan


def test_dates_of_northern_summers_are_told_where_the_domain_reaches_to_the_south(
    tmp_path: Path, configured: Configure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, configured, indicators={"module": "six.yml"}, aggregate=OP)
    run = context()
    frost = [("frost", dict(load_indicators("atmos"))["last_spring_frost"])]
    monkeypatch.setattr("espo_luigi.tasks.outcomes.science.load_indicators", lambda module: frost)
    check_outcomes(run)
    assert "northern" not in caplog.text
    monkeypatch.setattr("espo_luigi.tasks.outcomes._fault_of_outcomes", _fault_of_outcomes.__wrapped__)
    monkeypatch.setitem(run.config.__dict__, "domain", SimpleNamespace(lat_bnds=(-30.0, 20.0)))
    check_outcomes(run)
    assert "begins at -30 degrees north" in caplog.text and "frost (before_date: 07-01)" in caplog.text


@pytest.mark.parametrize(("season_year", "winter"), [("january", 1990), ("december", 1991)])
def test_the_year_of_winters_is_a_key_of_climatologies(
    season_year: str, winter: int, tmp_path: Path, configured: Configure
) -> None:
    made(tmp_path, configured, aggregate={"climatological_op": {**OP["climatological_op"], "season_year": season_year}})
    time = xr.date_range("1991-03-01", "2030-12-01", freq="QS-DEC", calendar="noleap", use_cftime=True)
    years = xr.DataArray(time.year.astype(float), {"time": time}, ("time",), attrs={"units": "K"})
    yearly = xr.Dataset({"x": years.expand_dims(lat=[45.0], lon=[-66.0])}, attrs={"cat:xrfreq": "QS-DEC"})
    task = tasks.Climatology(freq="QS-DEC", dataset="scenario", sim_id=NOLEAP)
    normals = task.compute(yearly)["x_clim_mean"].sel(season="DJF", horizon="2001-2020").squeeze()
    assert float(normals) == np.mean(np.arange(winter + 10, winter + 30))


def test_several_modules_are_one_whose_names_are_each_of_one(
    tmp_path: Path, configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    was = []
    for module in (
        "etccdi",
        "etccdi.fd",
        ["six.yml", "etccdi.fd", "drought"],
        ["etccdi", "icclim.FD", "drought.spi3"],
    ):
        made(tmp_path, configured, indicators={"module": module})
        was.append(fingerprint(context().config, "indicators.definitions"))
    names = {name for of in chosen(context()).values() for name, _ in of}
    assert len(set(was)) == 4 and {"FD", "fd", "rx5day", "spi3"} <= names and "gsl" not in names
    assert "it needs tas;" in context().indicators_left_out["gsl"]
    check_outcomes(context())
    assert context().indicators_left_out.keys() == {"gsl"}
    for periods, why in (
        ([[2001, 2030]], "but `indicators.periods` has a part of it only"),
        ([[2021, 2030]], "expected years"),
    ):
        made(tmp_path, configured, indicators={"module": "drought", "periods": periods}, aggregate={})
        with pytest.raises(ConfigurationError, match=f"`indicators.base_period`: got 1991-2020, {why}"):
            check_outcomes(context())
    made(tmp_path, configured, indicators={"module": "drought", "base_period": [2001, 2025]}, aggregate={})
    with pytest.raises(
        ConfigurationError, match=r"`indicators.base_period`: got 2001-2025, but the reference has 1991"
    ):
        check_outcomes(context())
    with monkeypatch.context() as patch, pytest.raises(ConfigurationError, match="got 2001-2025, but the reference"):
        patch.delattr("espo_luigi.tasks.outcomes._check_outcomes")  # it is told again, and not found out again
        check_outcomes(context())
    with pytest.raises(ConfigurationError, match=r"`indicators.freqs`: YS-JAN without an indicator of the "):
        made(tmp_path, configured, indicators={"module": "drought", "freqs": ["YS"]})
        check_outcomes(context())
    with pytest.raises(ConfigurationError, match="fire can be computed"):
        made(tmp_path, configured, indicators={"module": ["six.yml", "fire"]})
        chosen(context())
    (tmp_path / "fd.yml").write_text("indicators: {fd: {base: frost_days}}")
    with pytest.raises(ConfigurationError, match="etccdi has names of another module's indicators: fd"):
        made(tmp_path, configured, indicators={"module": ["fd.yml", "etccdi"]})
        chosen(context())
    with pytest.raises(ConfigurationError, match="two modules have the name etccdi"):
        made(tmp_path, configured, indicators={"module": ["etccdi", "etccdi"]})
        chosen(context())
    with pytest.raises(ConfigurationError, match="unknown indicator fdd of etccdi; did you mean fd"):
        made(tmp_path, configured, indicators={"module": "etccdi.fdd"})
        chosen(context())


@pytest.mark.parametrize("method", ["hawkins-sutton", "lafferty-sriver"])
def test_the_variance_of_all_experiments_is_split_by_source_or_the_store_says_why_not(
    method: str, tmp_path: Path, configured: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, configured, ensembles={"ensemble_stats": {"partition": method}})
    assert "all" not in {task.experiment for task in ends_of_ensembles(context())}
    runs = [(model, rcm, ssp) for model in "AB" for rcm in ("CRCM5", "RegCM") for ssp in ("ssp126", "ssp585")]
    columns = [{"driving_model": model, "source": rcm, "experiment": ssp} for model, rcm, ssp in runs]
    found = {"_".join(run): SimpleNamespace(columns=of) for run, of in zip(runs, columns, strict=True)}
    monkeypatch.setitem(context().__dict__, "simulations", found)
    of_all = [task for task in ends_of_ensembles(context()) if task.experiment == "all"]
    assert {(task.product, task.freq) for task in of_all} == {("indicators", "YS-JAN")}
    time, draws = xr.date_range("1991", periods=40, freq="YS"), np.random.default_rng(0)
    members = [
        xr.Dataset({"tx": (("time", "lat"), draws.normal(i, 1, (40, 3)), {"units": "K"})}, {"time": time})
        for i in range(8)
    ]
    whole = of_all[0].over_members(members, [])[1]
    sources = ["model", "scenario", *["downscaling"] * (method == "lafferty-sriver"), "variability"]
    split = whole["tx_uncertainty"]
    assert split["uncertainty"].values.tolist() == [*sources, "total"]
    middle = split.isel(time=slice(10, 30))
    np.testing.assert_allclose(middle.sel(uncertainty=sources).sum("uncertainty"), 100, rtol=1e-5)
    assert "tx_p50" in whole and "uncertainty_absent" not in whole.attrs
    monkeypatch.setitem(context().__dict__, "simulations", dict([*found.items()][::2]))
    alone = of_all[0].over_members(members[::2], [])[1]
    assert "expected 2 or more of each" in alone.attrs["uncertainty_absent"] and "tx_uncertainty" not in alone


@pytest.mark.parametrize("keep", [["regridded"], []])
def test_indicators_added_to_a_finished_run_take_the_kept_archives_or_the_plan_tells_what_is_regridded_again(
    keep: list[str], complete_demo: Path, configured: Configure
) -> None:
    configured(keep=keep)
    complete_all()
    delete_temporary()
    (complete_demo / "six.yml").write_text(yaml.safe_dump(MODULE))
    configured(keep=keep, indicators={"module": "six.yml", "datasets": ["scenario", "simulation"]})
    plan = plan_of((), Selection())
    planned = Counter(one.rule for one in plan.of(RUN))
    assert planned["Indicators"] == 8 and ("Regrid" in planned) == (not keep)
    told = "stores that an earlier run has deleted: 6 Regrid, 2 Extract" in render_plan(plan)
    assert told == (not keep)


def test_a_new_simulation_makes_its_own_indicators_and_the_ensembles_again(
    complete_demo: Path, configured: Configure
) -> None:
    (complete_demo / "six.yml").write_text(yaml.safe_dump(MODULE))
    sections = {"indicators": {"module": "six.yml"}, "aggregate": {"compute_deltas": {}, **LATER}, "ensembles": {}}
    configured(**sections, **of_source("Demo-NoLeap"))
    complete_all()
    configured(**sections)
    ours = {"Indicators", "ReferenceIndicators", "Climatology", "ReferenceClimatology", "Delta", "Ensemble"}
    again = [one.task for one in plan_of((), Selection()).of(RUN) if one.rule in ours]
    # The scenario and the raw simulation; years and seasons; indicators, climatologies and changes of both.
    assert Counter(type(task).__name__ for task in again) == {"Indicators": 4, "Climatology": 4, "Delta": 4} | {
        "Ensemble": 12
    }
    assert {getattr(task, "sim_id", DAY360) for task in again} == {DAY360}


def test_what_lies_beside_the_definitions_is_not_run_and_their_content_decides(
    tmp_path: Path, configured: Configure
) -> None:
    """Xclim takes NAME.py and NAME.fr.json, too, where it is given NAME without .yml."""
    (tmp_path / "six.py").write_text("raise SystemExit\n")
    (tmp_path / "six.fr.json").write_text("{")
    was = []
    for warmer in (25, 26):
        made(tmp_path, configured)
        text = (tmp_path / "six.yml").read_text().replace("25 degC", f"{warmer} degC")
        (tmp_path / f"{warmer}.yml").write_text(text)
        made(tmp_path, configured, indicators={"module": f"{warmer}.yml"})
        assert len([one for of in chosen(context()).values() for one in of]) == 6
        was.append(fingerprint(context().config, "indicators.definitions"))
    (tmp_path / "26.yml").rename(tmp_path / "renamed.yml")
    configured(indicators={"module": "renamed.yml"})
    assert was[0] != was[1] == fingerprint(context().config, "indicators.definitions")
    with pytest.raises(ConfigurationError, match=r"`indicators.module`: .*module of indicators renamed"):
        configured(indicators={"module": "renamed"})
        chosen(context())


def test_without_a_module_the_sections_of_xscen_have_no_effect(tmp_path: Path, configured: Configure) -> None:
    configured()
    before = context().config.hash
    configured(indicators={"input": {"processing_level": "final"}}, aggregate={"anything": 1})
    assert context().config.hash == before and not list(ends_of_outcomes(context()))


def stats(**given: Any) -> dict[str, Any]:
    return {"ensembles": {"ensemble_stats": given}}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({NOLEAP: 1}, f"no weight of {DAY360}"),
        ({NOLEAP: 1, DAY360: 1, "other": 1}, "got other, expected simulations: "),
        ({NOLEAP: 0, DAY360: 0}, "expected 0 or more, and for one of"),
        ({NOLEAP: -1, DAY360: 2}, "'.*: -1.*expected 0 or more"),
    ],
)
def test_weights_of_other_simulations_are_named(
    weights: dict[str, float], message: str, tmp_path: Path, configured: Configure
) -> None:
    made(tmp_path, configured, **stats(weights=weights))
    task = tasks.Ensemble(freq="YS-JAN", dataset="scenario", experiment="ssp585", product="indicators")
    with pytest.raises(ConfigurationError, match=message):
        task.check()


def test_robustness_is_always_computed(tmp_path: Path, configured: Configure, caplog: pytest.LogCaptureFixture) -> None:
    made(tmp_path, configured, **stats(statistics={"robustness_fractions": {"test": "ttest"}}))
    assert context().config.ensembles and "robustness_fractions` has no effect" in caplog.text


# The keys of xscen 0.15.2's templates: of 1-basic_workflow_with_config, config1.yml and paths1.yml.
TEMPLATE = """
indicators:
  dask: {n_workers: 8, threads_per_worker: 5, memory_limit: 2GB}
  inputs: {processing_level: final}
  compute_indicators: {periods: [[1991, 2020]], to_level: indicators}
  path_yml: six.yml
  save: {mode: o, rechunk: {time: -1}}
aggregate:
  dask: {n_workers: 4}
  input: {clim: {processing_level: indicators}, delta: {processing_level: climatology}}
  climatological_op: {op: mean, window: 30, stride: 10, periods: [['1991', '2020']], to_level: climatology}
  compute_deltas: {kind: "+", reference_horizon: 1991-2020, to_level: delta}
  save: {mode: o}
warminglevels: {wl: [1.5, 2], window: 30, ignore_member: true, wl_dim: "+{wl}C"}
ensembles:
  dask: {n_workers: 3}
  processing_levels: [indicators, climatology, delta]
  ensemble_stats:
    statistics: {ensemble_percentiles: {values: [5, 95], split: False}}
    common_attrs_only: True
  save: {mode: o}
"""


def test_sections_of_xscen_s_templates_are_read_as_they_are(
    tmp_path: Path, configured: Configure, caplog: pytest.LogCaptureFixture
) -> None:
    made(tmp_path, configured, **yaml.safe_load(TEMPLATE))
    config = context().config
    assert config.indicators and config.warming_levels and config.ensembles
    assert (config.indicators.periods, set(config.indicators.definitions)) == (
        (("1991", "2020"),),
        {"realm", "indicators"},
    )
    assert config.aggregate.climatological_op.stride == 10
    assert config.warming_levels.wl == (1.5, 2) and config.warming_levels.ignore_member
    assert config.ensembles.ensemble_stats.statistics.ensemble_percentiles.values == (5, 95)
    assert len(list(ends_of_outcomes(context()))) > 4
    told = [record.getMessage().partition(" has no")[0] for record in caplog.records]
    assert told == ["`indicators.inputs`", "`aggregate.input`"]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"indicators": {"module": "six.yml", "path_yml": "six.yml"}}, "Both `indicators.module` and"),
        ({"indicators": {"module": "six.yml", "load_xclim_module": {}}}, "`indicators.load_xclim_module`"),
        ({"aggregate": {"produce_horizon": {"warminglevels": {"wl": [2]}}}}, "`aggregate.produce_horizon`"),
        ({"ensembles": {"inputs": {"some": {"source": "a"}}}}, "`ensembles.inputs`: in ESPO-G or xscen"),
        (stats(statistics={"ensemble_percentiles": {"values": [10, 101]}}), r"ensemble_percentiles.values.*101"),
        (stats(statistics={"ensemble_percentiles": {"values": []}}), r"ensemble_percentiles.values"),
        (
            {"indicators": {"module": "six.yml", "periods": [[1991, 2010], [2005, 2020]]}},
            "`indicators.periods`.*2005-2020 after 1991-2010",
        ),
        (
            {"indicators": {"module": "six.yml", "periods": [[1991, 2010], [2011, 2020]]}},
            "years between",
        ),
    ],
)
def test_keys_that_are_not_possible_or_not_supported_are_named(
    sections: dict[str, Any], message: str, tmp_path: Path, configured: Configure
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        made(tmp_path, configured, **sections)
        context()


def test_a_regional_product_is_a_part_of_the_grid_of_the_others() -> None:
    whole = xr.Dataset({"a": (("lat", "lon"), np.ones((3, 2)))}, {"lat": [1.0, 2, 3], "lon": [5.0, 6]})
    part = whole.isel(lat=slice(1, 3), lon=slice(1))
    one, other = on_one_grid([part, whole])
    assert other is whole and one["a"].notnull().values.tolist() == [[False, False], [True, False], [True, False]]
    (moved, _) = on_one_grid([part.assign_coords(lat=[2.1, 3.1]), whole])
    assert moved.sizes["lat"] == 2


@pytest.mark.parametrize("bands", [[slice(0, 3), slice(3, 12)], None])
def test_cells_of_bands_and_of_slices_come_to_the_whole_grid(bands: list[slice] | None) -> None:
    whole = days("noleap", 0.0, FIRST)[["pr"]].isel(time=slice(2))
    grid = stack.grid_of(whole).assign(land=stack.land_of(whole))
    cells = stack.stack_drop_nans(whole)
    pieces = [cells.isel(loc=slice(0, 40)), cells.isel(loc=slice(40, None))]
    grids = [grid, grid]
    if bands:
        pieces, grids = (
            [stack.stack_drop_nans(whole.isel(lat=band)) for band in bands],
            [grid.isel(lat=b) for b in bands],
        )
    made = on_the_grid(pieces, grids, {"lat": 4, "lon": -1})
    xr.testing.assert_identical(made.compute().drop_attrs(), whole.drop_attrs())
    assert made["pr"].chunks == ((2,), (4, 4, 4), (10,))


def test_another_content_of_a_table_of_warming_makes_levels_stale(tmp_path: Path, configured: Configure) -> None:
    was = []
    for slower in (1, 2):
        name = table_of_warming(tmp_path)
        (tmp_path / name).write_text((tmp_path / name).read_text() + f"2101,{290 + slower}\n")
        made(tmp_path, configured, warming_levels={"tas_src": name})
        was.append(fingerprint(context().config, "warming_levels"))
    assert was[0] != was[1]


def test_another_content_of_a_file_of_a_shapefile_makes_regions_stale(tmp_path: Path, configured: Configure) -> None:
    was = []
    for name in ("shp", "dbf", "prj", "cpg", "sbn"):
        (tmp_path / f"bays.{name}").write_text(name)
        made(tmp_path, configured, spatial_mean={"regions": {"a": {"method": "shape", "shape": "bays.shp"}}})
        was.append(fingerprint(context().config, "spatial_mean"))
    assert len(set(was)) == 4 and was[-1] == was[-2]  # what is not read does not count


WITH_PERCENTILES = {
    "realm": "atmos",
    "indicators": {
        "tx90p": {"base": "tx90p"},
        "tn10p": {"base": "tn10p", "parameters": {"freq": "QS-DEC"}},
        "r95": {"base": "days_over_precip_thresh", "parameters": {"pr_per": {"description": "95th percentile"}}},
    },
}


def test_percentiles_of_the_base_are_kept_for_all_frequencies_and_stale_with_it(
    tmp_path: Path, configured: Configure
) -> None:
    (tmp_path / "own.yml").write_text(yaml.safe_dump(WITH_PERCENTILES))
    section = {"module": "own.yml", "base_period": ["1995", "2004"]}
    made(tmp_path, configured, indicators=section, aggregate={})
    publish_inputs()
    names = {"sim_id": NOLEAP, "dataset": "scenario"}
    of = tasks.Percentiles(**names)
    for freq in ("YS-JAN", "QS-DEC"):
        assert of in tasks.Indicators(**names, freq=freq).requires()
    raw = tasks.Indicators(sim_id=NOLEAP, dataset="simulation", freq="YS-JAN")
    annual = tasks.Indicators(**names, freq="YS-JAN"), raw, tasks.ReferenceIndicators(freq="YS-JAN")
    work(annual)
    kept = store.open_store(of.out_percentiles().path)
    assert kept["tasmax_p90"].sizes == {"dayofyear": 365, "lat": 12, "lon": 10}
    assert (kept.attrs["cat:processing_level"], kept.attrs["cat:xrfreq"]) == ("percentiles", "fx")
    ours, of_raw, of_reference = (store.open_store(task.out_indicators().path).load() for task in annual)
    xr.testing.assert_allclose(ours, of_raw)
    for made_of, daily in ((ours, days("noleap", 0.5)), (of_reference, days("standard", 0.0, 2020))):
        cell = daily["tasmax"].isel(lat=[5], lon=[5]).assign_attrs(TASMAX)
        per = percentile_doy(cell.sel(time=slice("1995", "2004")), per=90).sel(percentiles=90)
        expected = atmos.tx90p(cell, per, bootstrap=True)
        np.testing.assert_allclose(made_of["tx90p"].isel(lat=[5], lon=[5]), expected.transpose("time", ...))
        assert made_of["tx90p"].attrs["base_period"] == "1995-2004"
    assert of.complete() and not of.stale()
    made(tmp_path, configured, indicators={**section, "base_period": ["1995", "2005"]}, aggregate={})
    for task in (tasks.Percentiles(**names), tasks.ReferencePercentiles(dataset="reference"), *annual):
        assert any("indicators.base_period" in key for key in type(task)(**task.param_kwargs).stale())


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"base_period": ["1961", "1990"]}, "`indicators.base_period`: got 1961-1990, but the scenario has 1991-2030"),
        ({"base_period": ["2001", "2030"]}, "got 2001-2030, but the reference has 1991-"),
        ({"periods": [["2001", "2030"]], "base_period": ["1995", "2004"]}, "has a part of it only, 2001-2030"),
    ],
)
def test_a_base_period_outside_of_the_data_is_refused(
    section: dict[str, Any], told: str, tmp_path: Path, configured: Configure
) -> None:
    (tmp_path / "own.yml").write_text(yaml.safe_dump(WITH_PERCENTILES))
    made(tmp_path, configured, indicators={"module": "own.yml", **section}, aggregate={})
    with pytest.raises(ConfigurationError, match=told):
        check_outcomes(context())
