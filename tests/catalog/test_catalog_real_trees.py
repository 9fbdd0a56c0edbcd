"""What trees of ESGF hold besides the plain: each file is catalogued rightly, or left out by name."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.catalog import Catalog, Match, make_catalog, open_match
from espo_luigi.catalog.build import describe
from espo_luigi.catalog.examine import examine_match
from espo_luigi.errors import CatalogError

CORDEX = {
    "project_id": "CORDEX",
    "CORDEX_domain": "AFR-22",
    "institute_id": "GERICS",
    "model_id": "GERICS-REMO2015",
    "rcm_version_id": "v1",
    "driving_model_id": "MPI-M-MPI-ESM-LR",
    "driving_model_ensemble_member": "r1i1p1",
    "driving_experiment_name": "historical",
    "experiment_id": "historical",
    "frequency": "day",
}
HINDCAST = {
    "mip_era": "CMIP6",
    "activity_id": "DCPP",
    "institution_id": "MPI-M",
    "source_id": "MPI-ESM1-2-HR",
    "experiment_id": "dcppA-hindcast",
    "variant_label": "r1i1p1f1",
    "table_id": "day",
    "frequency": "day",
}
NAME = "pr_day_MPI-ESM1-2-HR_dcppA-hindcast_s{year}-r1i1p1f1_gn_{year}1101-{last}1231.nc"


def daily(first: str, days: int, **attrs: str) -> xr.Dataset:
    time = xr.date_range(f"{first} 12:00", periods=days, freq="D", calendar="standard", use_cftime=True)
    half = datetime.timedelta(hours=12)
    values = np.full((days, 3, 4), 1e-5, "float32")
    coords: dict[str, Any] = {"time": time, "lat": [40.0, 45.0, 50.0], "lon": [0.0, 5.0, 10.0, 15.0]}
    ds = xr.Dataset({"pr": (("time", "lat", "lon"), values, {"units": "kg m-2 s-1"})}, coords, attrs)
    ds["time"].attrs["bounds"] = "time_bnds"
    return ds.assign(time_bnds=(("time", "bnds"), np.stack([time.values - half, time.values + half], 1)))


def store(ds: xr.Dataset, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    units = {"units": "days since 1949-12-01", "dtype": "float64"}
    ds.to_netcdf(path, encoding={name: dict(units) for name in ("time", "time_bnds") if name in ds.variables})
    return path


def rotated(ds: xr.Dataset, mapping: str) -> xr.Dataset:
    """The same on a rotated grid, whose grid mapping has this name."""
    on_grid = ds.rename(lat="rlat", lon="rlon")
    lat, lon = np.meshgrid([40.0, 45.0, 50.0], [0.0, 5.0, 10.0, 15.0], indexing="ij")
    ways = ("rlat", "rlon")
    vertices = {f"{name}_vertices": ((*ways, "vertices"), np.zeros((3, 4, 4))) for name in ("lat", "lon")}
    made = on_grid.assign({mapping: ((), 0, {"grid_mapping_name": "rotated_latitude_longitude"}), **vertices})
    made = made.assign_coords(lat=(ways, lat, {"bounds": "lat_vertices"}), lon=(ways, lon, {"bounds": "lon_vertices"}))
    made["pr"].attrs["grid_mapping"] = mapping
    return made


@pytest.mark.parametrize("mapping", ["rotated_latitude_longitude", "rotated_pole", "crs"])
def test_cordex_is_its_own_activity_whatever_its_grid_mapping_is_called(tmp_path: Path, mapping: str) -> None:
    row = describe(store(rotated(daily("1996-01-01", 366, **CORDEX), mapping), tmp_path / "a.nc"))
    assert (row["mip_era"], row["activity"], row["domain"]) == ("CMIP5", "CORDEX", "AFR-22")
    assert row["id"] == "CMIP5_CORDEX_MPI-M-MPI-ESM-LR_r1i1p1_GERICS_GERICS-REMO2015_historical_v1_AFR-22"
    assert row["variable"] == "('pr',)"
    make_catalog(tmp_path, tmp_path / "cat.json")
    (match,) = Catalog.from_files([tmp_path / "cat.json"]).search(variables_and_freqs={"pr": "D"}).values()
    assert open_match(match)["pr"].dims == ("time", "rlat", "rlon")


def test_a_regional_simulation_that_only_its_name_describes_has_no_activity_of_cmip(tmp_path: Path) -> None:
    name = "pr_AFR-22_MPI-M-MPI-ESM-LR_historical_r1i1p1_GERICS-REMO2015_v1_day_19960101-19961231.nc"
    assert "activity" not in describe(store(daily("1996-01-01", 366), tmp_path / name))


def test_the_history_of_cordex_is_joined_to_its_scenario(tmp_path: Path) -> None:
    store(daily("2005-01-01", 365, **CORDEX), tmp_path / "past.nc")
    future = {"experiment_id": "rcp45", "driving_experiment_name": "rcp45"}
    store(daily("2006-01-01", 365, **CORDEX | future), tmp_path / "future.nc")
    make_catalog(tmp_path, tmp_path / "cat.json")
    catalog = Catalog.from_files([tmp_path / "cat.json"])
    (match,) = catalog.search(
        variables_and_freqs={"pr": "D"}, periods=["2005", "2006"], match_hist_and_fut=True
    ).values()
    assert open_match(match).sizes["time"] == 730


def test_an_unstructured_grid_is_left_out_by_name(tmp_path: Path) -> None:
    cells = ("i", np.linspace(0, 80, 20), {"standard_name": "latitude"}), ("i", np.linspace(0, 350, 20), {})
    ds = xr.Dataset(
        {"tas": (("time", "i"), np.zeros((1, 20), "float32"))},
        {"time": xr.date_range("1850-01-16", periods=1, use_cftime=True), "latitude": cells[0], "longitude": cells[1]},
        {"source_id": "ICON-ESM-LR", "frequency": "mon", "experiment_id": "historical"},
    )
    with pytest.raises(CatalogError, match="an unstructured grid: latitudes and longitudes of its cells stand along i"):
        describe(store(ds, tmp_path / "a.nc"))
    # Land cells of a product of ours stand in one dimension, too.
    product = ds.assign_attrs({"cat:processing_level": "regridded"})
    assert describe(store(product, tmp_path / "b.nc"))["variable"] == "('tas',)"


@pytest.mark.parametrize("by", ["attributes", "name"])
def test_hindcasts_of_each_start_are_a_dataset_of_their_own(tmp_path: Path, by: str) -> None:
    for year in (1960, 1980):
        attrs = HINDCAST | {"sub_experiment_id": f"s{year}"} if by == "attributes" else {}
        name = f"{year}.nc" if by == "attributes" else NAME.format(year=year, last=year + 1)
        for member in ("r1", "r2"):
            ds = daily(f"{year}-11-01", 426, **{key: text.replace("r1i", f"{member}i") for key, text in attrs.items()})
            store(ds, tmp_path / member / name.replace("r1i", f"{member}i"))
    make_catalog(tmp_path, tmp_path / "cat.json")

    def found(**kwargs: Any) -> dict[str, Match]:
        return Catalog.from_files([tmp_path / "cat.json"]).search(variables_and_freqs={"pr": "D"}, **kwargs)

    starts = {(match.columns["member"], match.assets[0].columns["date_start"][:10]) for match in found().values()}
    assert starts == {(f"s{year}-{r}i1p1f1", f"{year}-11-01") for year in (1960, 1980) for r in ("r1", "r2")}
    assert all(len(match.assets) == 1 for match in found().values())
    kept = found(most_members=1)
    assert {match.columns["member"] for match in kept.values()} == {"s1960-r1i1p1f1", "s1980-r1i1p1f1"}


def test_a_left_over_of_an_interrupted_tool_is_left_out_by_name(tmp_path: Path) -> None:
    store(daily("2015-01-01", 365, **HINDCAST), tmp_path / "good.nc")
    for name in ("good.nc.pid29866.ncks.tmp", "other.nc.part"):
        (tmp_path / name).write_bytes((tmp_path / "good.nc").read_bytes())
    (tmp_path / "good.nc.md5").write_text("0")
    report = make_catalog(tmp_path, tmp_path / "cat.json")
    assert report.found == 1
    assert {path.name for path, _ in report.unreadable} == {"good.nc.pid29866.ncks.tmp", "other.nc.part"}
    assert all("interrupted download or tool" in reason for _, reason in report.unreadable)


def test_links_to_folders_are_followed_and_each_file_is_there_once(tmp_path: Path) -> None:
    """NCI's archive shows each file twice, and people select models by links; some links lead in circles."""
    folder, elsewhere = tmp_path / "raw", tmp_path / "archive"
    name = NAME.format(year=1960, last=1961)
    real = store(daily("1960-11-01", 300, **HINDCAST), elsewhere / "MPI" / "files/d20200817" / name)
    (elsewhere / "MPI/v20200817").mkdir()
    (elsewhere / "MPI/v20200817" / name).symlink_to(real)
    (elsewhere / "MPI/latest").symlink_to("v20200817")
    (elsewhere / "MPI/again").symlink_to(elsewhere)
    folder.mkdir()
    (folder / "selected").symlink_to(elsewhere / "MPI")
    (folder / "loop").symlink_to(folder)
    (folder / "above").symlink_to("..")
    for place, path in ((elsewhere, real), (folder, folder / "selected" / real.relative_to(elsewhere / "MPI"))):
        assert make_catalog(place, tmp_path / "cat.json").found == 1
        (asset,) = Catalog.from_files([tmp_path / "cat.json"]).assets
        assert asset.path == str(path)


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(daily("1960-11-01", 300, **HINDCAST), tmp_path / NAME.format(year=1960, last=1961))
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr("os.scandir", scandir)
    report = make_catalog(tmp_path, tmp_path / "cat.json")
    assert report.unreadable == [(tmp_path / "closed", "the folder cannot be listed (Permission denied)")]


def test_dates_that_start_again_are_named_and_no_reason_to_call_a_file_too_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in KIOST-ESM's ssp245: the check of the files then says which days are double."""
    ds = daily("1960-11-01", 1990, **HINDCAST)
    days = np.concatenate([np.arange(1000.0), np.arange(990.0)])
    name = NAME.format(year=1960, last=1964)
    units = {"units": "days since 1960-11-01", "calendar": "standard"}
    ds.drop_vars("time_bnds").assign_coords(time=("time", days, units)).to_netcdf(tmp_path / name)
    row = describe(tmp_path / name)
    assert (row["date_start"], row["date_end"]) == ("1960-11-01 00:00", "1966-04-13 00:00")
    assert "1963-07-28 is followed by 1960-11-01" in caplog.text
    assert make_catalog(tmp_path, tmp_path / "cat.json").found == 1
    (match,) = (
        Catalog.from_files([tmp_path / "cat.json"])
        .search(variables_and_freqs={"pr": "D"}, periods=["1961", "1963"])
        .values()
    )
    box = {"name": "box", "lon_bnds": (0, 15), "lat_bnds": (40, 50)}
    found = {
        problem.kind: problem for problem in examine_match(match, period=("1961", "1963"), regions=[box], limits={})
    }
    assert found.keys() - {"constant_series"} == {"days_out_of_order", "double_days", "missing_days"}
    assert "at 1 place(s): 1963-07-28" in found["days_out_of_order"].message
