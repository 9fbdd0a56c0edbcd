"""Making catalogues from folders of files."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr

from espo_luigi.catalog import Catalog, make_catalog, open_match
from espo_luigi.catalog.build import describe
from espo_luigi.errors import CatalogError

SSP = "CMIP6_ScenarioMIP_CCCma_CanESM5_ssp585_r1i1p1f1_global"
CMIP6_ATTRS = {
    "mip_era": "CMIP6",
    "activity_id": "ScenarioMIP",
    "institution_id": "CCCma",
    "source_id": "CanESM5",
    "experiment_id": "ssp585",
    "variant_label": "r1i1p1f1",
    "frequency": "day",
    "variable_id": "pr",
    "grid_label": "gn",
    "source": "CanESM5 (2019): aerosol: interactive",
}


def daily(name: str = "pr", start: str = "2015-01-01", days: int = 365, calendar: str = "noleap") -> xr.Dataset:
    time = xr.date_range(f"{start} 12:00", periods=days, freq="D", calendar=calendar, use_cftime=True)
    units = "kg m-2 s-1" if name == "pr" else "K"
    values = np.full((days, 2, 2), 280.0, "float32")
    ds = xr.Dataset(
        {name: (("time", "lat", "lon"), values, {"units": units})},
        {"time": time, "lat": [40.0, 50.0], "lon": [250.0, 260.0]},
    )
    half = datetime.timedelta(hours=12)
    bounds = xr.DataArray(np.stack([time.values - half, time.values + half], 1), dims=("time", "bnds"))
    return ds.assign(time_bnds=bounds)


def store(ds: xr.Dataset, path: Path) -> Path:
    units = {"units": "days since 1850-01-01", "dtype": "float64"}
    path.parent.mkdir(parents=True, exist_ok=True)
    ds["time"].attrs["bounds"] = "time_bnds"
    ds.to_netcdf(path, encoding={"time": units, "time_bnds": units})
    return path


def test_a_file_with_cmip6_attributes_has_the_id_that_xscen_gives(tmp_path: Path) -> None:
    path = store(daily().assign_attrs(CMIP6_ATTRS), tmp_path / "anything.nc")
    row = describe(path)
    expected = {
        "id": SSP,
        "type": "simulation",
        "processing_level": "raw",
        "xrfreq": "D",
        "frequency": "day",
        "variable": "('pr',)",
        "domain": "global",
        "date_start": "2015-01-01 00:00",
        "date_end": "2015-12-31 00:00",
        "format": "nc",
        "path": str(path),
    }
    assert expected.items() <= row.items()


def test_attributes_come_before_the_name(tmp_path: Path) -> None:
    name = "pr_day_MIROC6_ssp245_r9i1p1f1_gn_20150101-20151231.nc"
    assert describe(store(daily().assign_attrs(CMIP6_ATTRS), tmp_path / name))["id"] == SSP


def test_a_file_without_attributes_is_described_by_its_name_and_place(tmp_path: Path) -> None:
    folder = tmp_path / "CMIP6/ScenarioMIP/CCCma/CanESM5/ssp585/r1i1p1f1/day/pr/gn/v20190429"
    row = describe(store(daily(), folder / "pr_day_CanESM5_ssp585_r1i1p1f1_gn_20150101-20151231.nc"))
    assert row["id"] == SSP
    assert row["frequency"] == "day"


def test_a_name_alone_gives_what_it_can(tmp_path: Path) -> None:
    row = describe(store(daily(), tmp_path / "pr_day_CanESM5_historical_r1i1p1f1_gn_20150101-20151231.nc"))
    assert row["id"] == "CMIP6_CMIP_CanESM5_historical_r1i1p1f1_global"


def test_a_regional_simulation_is_described_by_cordex_attributes_or_its_name(tmp_path: Path) -> None:
    attrs = {
        "mip_era": "CMIP6",
        "activity_id": "DD",
        "institution_id": "OURANOS",
        "source_id": "CRCM5",
        "driving_source_id": "CanESM5",
        "driving_variant_label": "r1i1p2f1",
        "driving_experiment_id": "ssp370",
        "version_realization": "v1-r1",
        "domain_id": "NAM-12",
    }
    row = describe(store(daily().assign_attrs(attrs), tmp_path / "a.nc"))
    assert row["id"] == "CMIP6_DD_CanESM5_r1i1p2f1_OURANOS_CRCM5_ssp370_v1-r1_NAM-12"
    name = "pr_NAM-44_CanESM2_rcp85_r1i1p1_CRCM5_v1_day_20150101-20151231.nc"
    by_name = describe(store(daily(), tmp_path / name))
    assert {"source": "CRCM5", "driving_model": "CanESM2", "domain": "NAM-44"}.items() <= by_name.items()


def test_what_an_xscen_product_says_of_itself_wins(tmp_path: Path) -> None:
    stated = {"cat:source": "ERA5-Land", "cat:type": "reconstruction", "cat:domain": "NAM", "cat:path": "/elsewhere"}
    path = store(daily().assign_attrs(stated), tmp_path / "ref.nc")
    row = describe(path)
    assert row["id"] == "ERA5-Land_NAM"
    assert row["type"] == "reconstruction"
    assert row["path"] == str(path)


def test_the_end_of_a_360_day_february_is_a_date_that_everyone_reads(tmp_path: Path) -> None:
    ds = daily(days=60, calendar="360_day").assign_attrs(CMIP6_ATTRS)
    assert describe(store(ds, tmp_path / "a.nc"))["date_end"] == "2015-02-28 00:00"


def test_a_folder_becomes_a_catalogue_that_the_search_and_open_match_answer_from(tmp_path: Path) -> None:
    for name in ("pr", "tasmax", "tasmin"):
        attrs = CMIP6_ATTRS | {"variable_id": name}
        store(daily(name).assign_attrs(attrs), tmp_path / f"data/{name}/{name}.nc")
        past = attrs | {"activity_id": "CMIP", "experiment_id": "historical"}
        store(daily(name, "2014-01-01").assign_attrs(past), tmp_path / f"data/{name}/past.nc")
    report = make_catalog(tmp_path / "data", tmp_path / "out/cat.json")
    assert (report.found, report.unreadable) == (6, [])
    found = Catalog.from_files([tmp_path / "out/cat.json"]).search(
        variables_and_freqs={"tasmax": "D", "tasmin": "D", "pr": "D", "dtr": "D"},
        periods=["2014", "2015"],
        match_hist_and_fut=True,
    )
    assert list(found) == [SSP]
    assert open_match(found[SSP]).sizes["time"] == 730
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cat.csv", "cat.json"]


@pytest.mark.filterwarnings("ignore")
def test_intake_esm_opens_the_catalogue_and_its_data(tmp_path: Path) -> None:
    import ast

    intake_esm = pytest.importorskip("intake_esm")
    store(daily().assign_attrs(CMIP6_ATTRS), tmp_path / "data/a.nc")
    store(daily(start="2016-01-01").assign_attrs(CMIP6_ATTRS), tmp_path / "data/b.nc")
    make_catalog(tmp_path / "data", tmp_path / "cat.json")
    opened = intake_esm.esm_datastore(
        str(tmp_path / "cat.json"), read_kwargs={"converters": {"variable": ast.literal_eval}}
    )
    assert len(opened.df) == 2
    # By itself it opens files in threads, for which the netCDF4 library is not made.
    with dask.config.set(scheduler="synchronous"):
        how = {"progressbar": False, "xarray_open_kwargs": {"decode_timedelta": False}}
        (dataset,) = opened.to_dataset_dict(threaded=False, **how).values()
    assert dataset["pr"].sizes["time"] == 730


def test_zarr_stores_are_catalogued_and_not_looked_into(tmp_path: Path) -> None:
    ds = daily().drop_vars("time_bnds").assign_attrs(CMIP6_ATTRS)
    ds.to_zarr(tmp_path / "data/a.zarr", consolidated=False)
    report = make_catalog(tmp_path / "data", tmp_path / "cat.json")
    assert report.found == 1
    (asset,) = Catalog.from_files([tmp_path / "cat.json"]).assets
    assert asset.columns["format"] == "zarr"


def test_what_cannot_be_read_is_reported_with_the_reason_and_the_rest_is_catalogued(tmp_path: Path) -> None:
    store(daily().assign_attrs(CMIP6_ATTRS), tmp_path / "data/good.nc")
    (tmp_path / "data/garbage.nc").write_bytes(b"not netCDF")
    whole = (tmp_path / "data/good.nc").read_bytes()
    (tmp_path / "data/cut.nc").write_bytes(whole[: len(whole) // 2])
    store(daily(), tmp_path / "data/nameless.nc")
    empty = xr.Dataset({"orog": ((), 1.0)}, attrs=CMIP6_ATTRS)
    empty.to_netcdf(tmp_path / "data/scalar.nc")
    report = make_catalog(tmp_path / "data", tmp_path / "cat.json")
    assert report.found == 1
    reasons = {path.name: reason for path, reason in report.unreadable}
    assert set(reasons) == {"garbage.nc", "cut.nc", "nameless.nc", "scalar.nc"}
    assert "no source" in reasons["nameless.nc"]
    assert "it has orog" in reasons["scalar.nc"]
    assert all(reasons.values())


def test_a_source_that_is_given_names_only_files_that_do_not_name_theirs(tmp_path: Path) -> None:
    store(daily(), tmp_path / "raw" / "precipitation_1991.nc")
    store(daily().assign_attrs({"cat:source": "Other-Land"}), tmp_path / "raw" / "of_others.nc")
    report = make_catalog(tmp_path / "raw", tmp_path / "c.json", "My-Land")
    assert (report.found, report.unreadable) == (2, [])
    with (tmp_path / "c.csv").open(newline="") as table:
        found = {Path(row["path"]).name: (row["source"], row["type"]) for row in csv.DictReader(table)}
    assert found == {
        "precipitation_1991.nc": ("My-Land", "reconstruction"),
        "of_others.nc": ("Other-Land", "reconstruction"),
    }


def test_a_folder_without_data_or_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=r"there are no \*\.nc, \*\.zarr"):
        make_catalog(tmp_path, tmp_path / "cat.json")
    with pytest.raises(CatalogError, match=r"absent is not a folder"):
        make_catalog(tmp_path / "absent", tmp_path / "cat.json")


def test_a_catalogue_is_replaced_as_a_whole(tmp_path: Path) -> None:
    store(daily().assign_attrs(CMIP6_ATTRS), tmp_path / "data/good.nc")
    out = tmp_path / "cat.json"
    blocked = tmp_path / "file/cat.json"
    (tmp_path / "file").write_text("a file where a folder should be")
    with pytest.raises(CatalogError, match=r"cannot be written: .*cat\.json"):
        make_catalog(tmp_path / "data", blocked)
    for _ in range(2):
        make_catalog(tmp_path / "data", out)
    assert len(Catalog.from_files([out]).assets) == 1


@pytest.mark.parametrize(
    ("name", "attrs", "said"),
    [
        ("a\nb.nc", {}, "path is "),
        ("not-utf-8-\udcff.nc", {}, "path is "),
        ("noaa.nc", {"institution_id": "NOAA/GFDL"}, "id is 'CMIP6_ScenarioMIP_NOAA/GFDL_CanESM5_"),
    ],
    # pytest-xdist cannot send the second name.
    ids=["line break", "not UTF-8", "slash"],
)
def test_a_file_whose_row_could_not_be_read_again_is_left_out_with_the_reason(
    tmp_path: Path, name: str, attrs: dict[str, str], said: str
) -> None:
    # NetCDF refuses such names when it writes; a store is renamed.
    daily().assign_attrs(CMIP6_ATTRS | attrs).drop_encoding().to_zarr(tmp_path / "data/odd.zarr")
    odd = tmp_path / "data" / name.replace(".nc", ".zarr")
    (tmp_path / "data/odd.zarr").rename(odd)
    store(daily().assign_attrs(CMIP6_ATTRS), tmp_path / "data/good.nc")
    report = make_catalog(tmp_path / "data", tmp_path / "cat.json")
    ((path, reason),) = report.unreadable
    assert path == odd
    assert "cells that cannot be used" in reason and said in reason
    assert [asset.faults for asset in Catalog.from_files([tmp_path / "cat.json"]).assets] == [{}]


def test_the_grid_label_chooses_among_the_grids_of_a_cmip6_simulation(tmp_path: Path) -> None:
    for label, value in (("gn", 1.0), ("gr", 2.0)):
        ds = daily().assign_attrs(CMIP6_ATTRS, grid_label=label)
        store(ds.assign(pr=ds["pr"].copy(data=np.full(ds["pr"].shape, value, "float32"))), tmp_path / f"pr_{label}.nc")
    make_catalog(tmp_path, tmp_path / "cat.json")
    catalog = Catalog.from_files([tmp_path / "cat.json"])
    wanted: dict[str, Any] = {"variables_and_freqs": {"pr": "D"}, "periods": ["2015", "2015"]}
    with pytest.raises(CatalogError, match="gn and gr; add grid_label"):
        catalog.search(**wanted)
    found = catalog.search(**wanted, other_search_criteria={"grid_label": "gr"})
    assert list(found) == [SSP] and float(open_match(found[SSP])["pr"].mean()) == 2.0
