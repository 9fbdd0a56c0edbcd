"""A reference of stations: real ones with gaps, from a table to series, their export and the report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import xsdba
from any_variables import configuration, write_catalogue
from checked_netcdf import problems_of
from complete_demo import work
from demo_runs import use
from explorer_files import read_file, unpacked
from luigi.configuration import LuigiConfigParser

from espo_luigi import store, tasks
from espo_luigi.audit.sample import audit
from espo_luigi.catalog.build import make_catalog
from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.tasks.context import context
from espo_luigi.tasks.export import every_export
from espo_luigi.tasks.report import write_now

pytestmark = pytest.mark.production
SIM = "CMIP6_ScenarioMIP_X_Any_ssp370_r1i1p1f1_gn"
DATA = Path(__file__).parents[1] / "data"
YEARS = slice("1991", "1994")
NAMES = ("Vancouver, <b>BC</b>", '"Kugluktuk" & co; =1+1', "Amos $\\alpha$")
AFTERWARDS = {
    "indicators": {"module": "etccdi.txx", "datasets": ["scenario", "reference"]},
    "aggregate": {
        "climatological_op": {"window": 2, "min_periods": 2, "periods": [[1991, 1992], [1993, 1994]]},
        "compute_deltas": {"reference_horizon": "1991-1992"},
    },
    "ensembles": {},
}
BOX = {"lon_bnds": [-125, -75], "lat_bnds": [45, 70]}


def observed() -> xr.Dataset:
    with xr.open_dataset(DATA / "ahccd_1950-2013.nc", engine="h5netcdf") as ds:
        return ds[["tasmax"]].sel(time=YEARS).transpose("time", "location").load()


def modelled() -> xr.Dataset:
    """CanESM2's series at the stations, each in all cells of a grid that are nearest to its station."""
    with xr.open_dataset(DATA / "CanESM2_1950-2100.nc", engine="h5netcdf") as ds:
        at = ds[["tasmax"]].sel(time=YEARS).transpose("time", "location").load()
    lat, lon = np.arange(40.0, 76, 5), np.arange(-135.0, -64, 5)
    apart = (lat[:, None, None] - at.lat.values) ** 2 + (lon[None, :, None] - at.lon.values) ** 2
    cells = xr.DataArray(apart.argmin(axis=-1), {"lat": lat, "lon": lon}, ("lat", "lon"))
    made = at.drop_vars(["lat", "lon", "location"]).isel(location=cells)
    made["lat"].attrs, made["lon"].attrs = {"units": "degrees_north"}, {"units": "degrees_east"}
    return made


def table(gap: int) -> pd.DataFrame:
    """The stations' values in rows, without those of Amos on so many first days, and of Kugluktuk in a summer."""
    rows = []
    for name, label in zip(NAMES, ["0017", "0203", "3000"], strict=True):
        one = observed()["tasmax"].isel(location=len(rows))
        days = [str(day)[:10] for day in one.time.values]
        place = {"lat": float(one.lat), "lon": float(one.lon), "name": name}
        rows.append(pd.DataFrame({"station": label, "date": days, **place, "tasmax [degC]": one.values}))
    rows[1] = rows[1].drop(index=range(520, 560))
    rows[2] = rows[2].iloc[gap:]
    return pd.concat(rows)


Configure = Callable[..., None]


@pytest.fixture()
def configured(tmp_path: Path, own_settings: LuigiConfigParser) -> Configure:
    """A function that configures a production with these stations."""

    def configure(gap: int = 100, var: str = "tasmax", v2: bool = False, **more: Any) -> None:
        raw = tmp_path / "raw"
        raw.mkdir()
        modelled().rename(tasmax=var).to_netcdf(raw / "simulation.nc", engine="h5netcdf")
        write_catalogue(raw, "simulation", {var: raw / "simulation.nc"})
        table(gap).rename(columns={"tasmax [degC]": f"{var} [degC]"}).to_csv(raw / "stations.csv", index=False)
        make_catalog(raw / "stations.csv", raw / "reference.json", "Any-Reference")
        known = {"regrid": {"regrid_method": {var: "nearest"}}, "domain": BOX}
        known |= {} if v2 else {"custom": {"regions": {"all": BOX}}}
        use(configuration(tmp_path, raw, [var], v2=v2, more={**known, **more}), tmp_path)

    return configure


def adjusted_by_xsdba(reference: xr.DataArray, simulation: xr.DataArray) -> xr.DataArray:
    group = xsdba.Grouper("time.dayofyear", 31)
    given = reference, simulation.sel(time=slice("1991", "1992"))
    trained = xsdba.DetrendedQuantileMapping.train(
        given[0].sel(time=slice("1991", "1992")), given[1], nquantiles=50, kind="+", group=group
    )
    trend = xsdba.detrending.LoessDetrend(group=group, kind="+", f=0.2, niter=1, d=0, weights="tricube")
    return trained.adjust(simulation, interp="nearest", extrapolation="constant", detrend=trend)


@pytest.mark.parametrize(
    ("var", "v2"), [("tasmax", False), pytest.param("tas", True, marks=pytest.mark.long)], ids=["2024", "v2"]
)
def test_stations_are_adjusted_as_xsdba_does_it_and_stay_series(
    configured: Configure, tmp_path: Path, var: str, v2: bool
) -> None:
    configured(gap=30, var=var, v2=v2, **({} if v2 else AFTERWARDS))
    with dask.config.set(scheduler="threads", num_workers=2):
        work(tasks.All())
    product = store.open_store(context().archives(SIM)[var].path)[var].load().isel(point=0)
    assert list(product["station_id"].values) == ["0017", "0203", "3000"]
    assert list(product["station_name"].values) == list(NAMES)
    reference = observed()["tasmax"] + 273.15
    reference[:30, 2] = np.nan
    reference[520:560, 1] = np.nan
    for station in range(3):
        simulation = modelled()["tasmax"].sel(
            lat=product.lat[station], lon=product.lon[station], method="nearest", drop=True
        )
        given = [one.drop_vars(set(one.coords) - {"time"}) for one in (reference.isel(location=station), simulation)]
        expected = adjusted_by_xsdba(*(one.assign_attrs(units="K") for one in given))
        apart = abs(product.isel(station=station).values - expected.values)
        # A nearest neighbour may flip on round-off.
        assert np.isfinite(apart).all() and np.quantile(apart, 0.999) < 1e-3
    if not v2:
        found = audit(2, 1)
        assert found.rows and not found.differences and not found.failures
        work(explorer := tasks.Explorer())
        explained(explorer.out_page().path, product)
        write_now(tmp_path / "report.html")
        assert "<b>BC</b>" not in (tmp_path / "report.html").read_text()
        work(every_export(tmp_path / "netcdf", "espo-v2"))
        files = sorted((tmp_path / "netcdf").rglob("tasmax_*.nc"))
        assert not problems_of(files)
        with xr.open_mfdataset(files) as exported:
            assert exported.attrs["featureType"] == "timeSeries" and exported["tasmax"].dims == ("station", "time")
            assert exported["station_id"].attrs["cf_role"] == "timeseries_id"
            np.testing.assert_allclose(exported["tasmax"], product.T, rtol=1e-6)


def explained(page: Path, product: xr.DataArray) -> None:
    """Compare what the explorer has of the stations with the extremes of the product."""
    index = read_file(page, "index")
    assert index["grid"] is None and [one["id"] for one in index["stations"]] == ["0017", "0203", "3000"]
    assert [one["name"] for one in index["stations"]] == list(NAMES)
    extremes = product.groupby("time.year").max()
    (changes,) = [one for one in index["maps"] if one["of"] == "change"]
    values, step = unpacked(read_file(page, changes["key"])["values"])
    change = extremes.sel(year=[1993, 1994]).mean("year") - extremes.sel(year=[1991, 1992]).mean("year")
    np.testing.assert_allclose(values[0, 0, 0], change, atol=step)
    plumes = read_file(page, next(iter(index["plumes"].values()))["stations"])
    ((_, series),) = plumes["scenarios"].items()
    assert plumes["cells"] == ["0017", "0203", "3000"]
    numbers, step = unpacked(series["median"])
    np.testing.assert_allclose(numbers[:, 0], extremes.transpose("station", "year") - 273.15, atol=step)


def test_a_station_with_values_on_less_than_nine_tenths_of_the_days_is_refused(configured: Configure) -> None:
    configured(gap=200)
    with pytest.raises(DataError, match=r"too_few_days \(fail\): tasmax.* 48.*1 cell\(s\) have values"):
        work(tasks.RefInputCheck())


@pytest.mark.parametrize(
    ("key", "more"),
    [
        ("regrid.regrid_method.tasmax", {"regrid": {"regrid_method": {"tasmax": "conservative_normed"}}}),
        ("downscaling", {"downscaling": {"grid": 5, "method": "BCSD"}}),
        (
            "custom.regions",
            {"custom": {"regions": {"south": BOX | {"lat_bnds": [45, 55]}, "all": BOX | {"lat_bnds": [55, 70]}}}},
        ),
    ],
)
def test_what_needs_cells_is_refused_before_anything_runs(
    configured: Configure, key: str, more: dict[str, Any]
) -> None:
    configured(**more)
    with pytest.raises(ConfigurationError, match=f"`{key}`: the reference Any-Reference has stations"):
        _ = context().land_cells
