"""Tables of stations, and files of GHCN-Daily, ECA&D and CF's discrete sampling geometries, as series at points."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from espo_luigi.catalog import Catalog, open_match
from espo_luigi.catalog.build import describe, make_catalog
from espo_luigi.catalog.stations import open_stations
from espo_luigi.errors import CatalogError, DataError

LONG = '''station,date,lat,lon,elevation,name,tasmax [degC],pr [mm/day],remark
007,2000-01-01,45.5,-73.6,30,"Montréal, ""Est""",-5.5,0,ok
007,2000-01-03,45.5,-73.6,30,"Montréal, ""Est""",-7.5,,ok
a<b>,2000-01-02,46.8,-71.2,,Québec,-9,1.5,
'''


def opened(path: Path, out: Path) -> xr.Dataset:
    make_catalog(path, out / "cat.json", "Stations")
    (match,) = Catalog.from_files([out / "cat.json"]).search(variables_and_freqs={"tasmax": "D"}).values()
    return open_match(match).load()


@pytest.mark.parametrize("form", ["csv", "semicolons", "csv.gz", "parquet", "two tables"])
def test_a_table_of_stations_is_opened_with_ids_names_and_gaps(tmp_path: Path, form: str) -> None:
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "long.csv"
    source.write_text(LONG)
    table = pd.read_csv(source, dtype={"station": str})
    if form == "semicolons":  # of Excel, where a comma is the decimal sign
        table.to_csv(source, index=False, sep=";", decimal=",", encoding="utf-8-sig")
    elif form != "csv":
        source.unlink()
    if form == "csv.gz":
        table.to_csv(source.with_suffix(".csv.gz"), index=False)
    elif form == "parquet":
        pytest.importorskip("pyarrow")
        table.to_parquet(source.with_suffix(".parquet"), index=False)
    elif form == "two tables":
        places = ["station", "lat", "lon", "elevation", "name"]
        table[places].drop_duplicates().to_csv(tmp_path / "in" / "stations.csv", index=False)
        table.drop(columns=places[1:]).to_csv(tmp_path / "in" / "values.csv", index=False)
    ds = opened(tmp_path / "in", tmp_path)
    assert ds["tasmax"].dims == ("time", "station", "point") and ds["tasmax"].attrs["units"] == "K"
    assert list(ds["station_id"].values) == ["007", "a<b>"]
    assert list(ds["station_name"].values) == ['Montréal, "Est"', "Québec"]
    np.testing.assert_array_equal(ds["lat"].values[:, 0], [45.5, 46.8])
    np.testing.assert_array_equal(ds["elevation"], [30, np.nan])
    assert ds.sizes["time"] == 366  # whole years
    expected = [[267.65, np.nan], [np.nan, 264.15], [265.65, np.nan]]
    np.testing.assert_allclose(ds["tasmax"].values[:3, :, 0], expected, rtol=1e-6)


def dly(station: str, month: str, element: str, **values: str) -> str:
    cells = [values.get(f"d{day}", "-9999   ") for day in range(1, 32)]
    return f"{station}{month}{element}{''.join(cells)}"


def test_daily_files_of_ghcn_are_read_without_values_that_failed_a_check(tmp_path: Path) -> None:
    rows = [
        dly("CA006158355", "200001", "TMAX", d1="  -55  C", d2="   12 XC"),
        dly("CA006158355", "200001", "PRCP", d31="  254  C"),
        dly("CA006158355", "200001", "SNWD", d1="   10  C"),
    ]
    (tmp_path / "CA006158355.dly").write_text("\n".join(rows) + "\n")
    (tmp_path / "ghcnd-stations.txt").write_text(
        "CA006158355  43.6667  -79.4000  112.5 ON TORONTO CITY                       71508\n"
    )
    ds = open_stations(str(tmp_path))
    assert set(ds.data_vars) == {"tasmax", "pr"} and ds["station_name"].item() == "TORONTO CITY"
    assert ds["tasmax"].attrs["units"] == "degC" and ds["pr"].attrs["units"] == "mm d-1"
    np.testing.assert_allclose(ds["tasmax"].values[:2, 0], [-5.5, np.nan])
    np.testing.assert_allclose(ds["pr"].values[30, 0], 25.4, rtol=1e-6)
    assert ds["lat"].item() == 43.6667 and ds["elevation"].item() == 112.5


def test_tables_of_noaa_by_station_have_tenths(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        '"STATION","DATE","LATITUDE","LONGITUDE","ELEVATION","NAME","PRCP","PRCP_ATTRIBUTES","TMAX","TMAX_ATTRIBUTES"\n'
        '"USW00094728","2000-01-01","40.779","-73.969","42.7","CENTRAL PARK, NY US","  13",",,X,","  100",",,X"\n'
        '"USW00094728","2000-01-02","40.779","-73.969","42.7","CENTRAL PARK, NY US"," 9999",",X,X,","  956",",I,X"\n'
    )
    ds = open_stations(str(tmp_path / "a.csv"))
    np.testing.assert_allclose(ds["tasmax"].values[:2, 0], [10, np.nan])
    np.testing.assert_allclose(ds["pr"].values[:2, 0], [1.3, np.nan])
    (tmp_path / "a.csv").write_text(
        "ID,DATE,ELEMENT,DATA_VALUE,M_FLAG,Q_FLAG,S_FLAG,OBS_TIME\n"
        "USW00094728,20000101,TMAX,100,,,X,\nUSW00094728,20000102,TMAX,999,,I,X,\n"
    )
    (tmp_path / "ghcnd-stations.txt").write_text("USW00094728  40.7790  -73.9692   42.7 NY NY CITY CENTRAL PARK\n")
    ds = open_stations(str(tmp_path))
    np.testing.assert_array_equal(ds["tasmax"].values[:2, 0], [10, np.nan])


def test_blended_files_of_ecad_are_read_without_suspect_values(tmp_path: Path) -> None:
    (tmp_path / "stations.txt").write_text(
        "EUROPEAN CLIMATE ASSESSMENT & DATASET\n\nSTAID,STANAME                    ,CN,      LAT,       LON,HGHT\n"
        "  162,DE BILT, 'X' <i>                        ,NL,+52:06:00,+005:10:46,   2\n"
    )
    (tmp_path / "TX_STAID000162.txt").write_text(
        "EUROPEAN CLIMATE ASSESSMENT & DATASET (ECA&D)\n17-24 DATE YYYYMMDD\n\n"
        "STAID, SOUID,    DATE,   TX, Q_TX\n   162,100522,20000101,   61,    0\n   162,100522,20000102,  990,    1\n"
        "   162,100522,20000103,-9999,    9\n"
    )
    ds = open_stations(str(tmp_path))
    np.testing.assert_allclose(ds["tasmax"].values[:3, 0], [6.1, np.nan, np.nan], rtol=1e-6)
    assert ds["station_name"].item() == "DE BILT, 'X' <i>"
    assert ds["lat"].item() == pytest.approx(52.1) and ds["lon"].item() == pytest.approx(5 + 10 / 60 + 46 / 3600)


@pytest.mark.parametrize("form", ["series", "contiguous", "indexed"])
def test_discrete_sampling_geometries_are_opened(tmp_path: Path, form: str) -> None:
    time = pd.date_range("2000-01-01", "2000-12-31")
    values = np.arange(2 * time.size, dtype="f4").reshape(2, -1) / 100
    ids = xr.Variable("n", np.array([b"one", b"two"]), {"cf_role": "timeseries_id"})
    places = {"lat": ("n", [50.0, 60.0]), "lon": ("n", [350.0, 1.0]), "id": ids}
    attrs = {"units": "degC"}
    if form == "series":
        ds = xr.Dataset({"tasmax": (("n", "time"), values, attrs)}, {"time": time, **places})
    else:
        flat = {"tasmax": ("obs", values.ravel()[:-1], attrs)}
        count = xr.Variable("n", [time.size, time.size - 1], {"sample_dimension": "obs"})
        index = xr.Variable("obs", np.repeat([0, 1], time.size)[:-1], {"instance_dimension": "n"})
        flat |= {"row_size": count} if form == "contiguous" else {"index": index}
        ds = xr.Dataset(flat, {"time": ("obs", np.tile(time, 2)[:-1]), **places})
        values = np.where(np.arange(values.size).reshape(values.shape) == values.size - 1, np.nan, values)
    ds.assign_attrs(featureType="timeSeries").to_netcdf(tmp_path / "a.nc")
    found = opened(tmp_path, tmp_path)
    assert list(found["station_id"].values) == ["one", "two"]
    np.testing.assert_allclose(found["tasmax"].values[..., 0].T, values + 273.15, rtol=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("a<b>,2000-01-02", "007,2000-01-03", r"tasmax of the station '007' has two values on 2000-01-03"),
        ("-7.5", "-7.5 C", "tasmax has '-7.5 C'; expected numbers"),
        ("2000-01-02", "02/01/2000", "got the date '02/01/2000'"),
        ("46.8", "", r"1 station\(s\) have no place, 'a<b>' first"),
        ("46.8", "146.8", r"1 station\(s\) have no place on Earth, 'a<b>' first"),
    ],
)
def test_what_is_wrong_with_a_table_is_told(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert LONG.count(old) == 1
    (tmp_path / "a.csv").write_text(LONG.replace(old, new))
    with pytest.raises((DataError, CatalogError), match=told):
        opened(tmp_path / "a.csv", tmp_path)


def test_columns_without_units_have_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(LONG.replace(" [degC]", ""))
    assert "units" not in open_stations(str(tmp_path / "a.csv"))["tasmax"].attrs
    assert describe(tmp_path / "a.csv", "S")["variable"] == "('tasmax', 'pr')"
