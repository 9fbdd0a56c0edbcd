"""NetCDF files as other programs read them: xarray, netCDF4's and Debian's ncdump, CDO, R; and a full disk."""

import json
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from damaged import damaged
from exported import product
from failing_files import FailingFiles, Fault, missing_parts
from hypothesis import given, settings
from page_commands import ROOT, blocks_of
from zarr.storage import LocalStore, WrapperStore

from espo_luigi import store
from espo_luigi.errors import StoreError
from espo_luigi.export import netcdf
from espo_luigi.export.folder import Owner, _Notes
from espo_luigi.export.netcdf import Layout, described, stretches, write_netcdf
from espo_luigi.science.netcdf import text_attribute

ROWS = Layout({"Y": 4, "X": 9})


def needs(program: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"install {package}, which has {program}")


@pytest.fixture(scope="module")
def source() -> xr.Dataset:
    return described(product("noleap", bits=9), "tasmax", "tasmax", {})


@pytest.fixture(scope="module")
def file(source: xr.Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("netcdf") / "tasmax.nc"
    write_netcdf(source, path, ROWS)
    return path


def askew(source: xr.Dataset) -> xr.Dataset:
    """The days on a grid whose rows rise eastwards; the values are the cells' latitudes."""
    x, y = np.meshgrid(np.arange(10.0), np.arange(12.0))
    lat = (("rlat", "rlon"), 45 + 0.25 * y + 0.05 * x, source["lat"].attrs)
    lon = (("rlat", "rlon"), -67 + 0.25 * x - 0.05 * y, source["lon"].attrs)
    tasmax = source["tasmax"].isel(time=slice(120)).rename(lat="rlat", lon="rlon").drop_vars(["rlat", "rlon"])
    ds = tasmax.to_dataset().assign_coords(lat=lat, lon=lon)
    ds["tasmax"] = xr.zeros_like(ds["tasmax"]).fillna(0) + ds["lat"].astype("f4")
    ds["tasmax"].attrs = source["tasmax"].attrs
    return ds.assign_coords(rlat=("rlat", y[:, 0], {"axis": "Y"}), rlon=("rlon", x[0], {"axis": "X"}))


def test_xarray_reads_the_same_values_days_and_coordinates(source: xr.Dataset, file: Path) -> None:
    with xr.open_dataset(file, decode_times=xr.coders.CFDatetimeCoder(use_cftime=True)) as found:
        assert found["tasmax"].dtype == np.float32
        np.testing.assert_array_equal(found["tasmax"].values, source["tasmax"].values)
        for name in ("time", "lat", "lon"):
            np.testing.assert_array_equal(found[name].values, source[name].values)
        assert (found["time_bnds"][:, 0] == found["time"]).all()
        assert (found["time_bnds"][:-1, 1].values == found["time_bnds"][1:, 0].values).all()
        assert found["quantization_info"].attrs["algorithm"] == "bitround"


def test_dates_of_numpy_and_leap_years_stay(tmp_path: Path) -> None:
    leap = product("noleap").isel(time=slice(0, 61))
    leap = leap.assign_coords(time=xr.date_range("1992-01-01", periods=61, use_cftime=False))
    write_netcdf(described(leap, "pr", "pr", {}), tmp_path / "leap.nc", ROWS)
    with xr.open_dataset(tmp_path / "leap.nc") as found:
        np.testing.assert_array_equal(found["time"].values, leap["time"].values)
        assert found["time"].encoding["calendar"] in ("standard", "gregorian", "proleptic_gregorian")
        assert str(found["time"].values[59])[:10] == "1992-02-29"


def test_noon_is_in_the_middle_of_the_bounds(source: xr.Dataset, tmp_path: Path) -> None:
    write_netcdf(source, tmp_path / "noon.nc", Layout({}, at_noon=True, classic=True))
    with xr.open_dataset(tmp_path / "noon.nc", decode_times=False) as found:
        np.testing.assert_array_equal(found["time"], found["time_bnds"].mean("bnds"))
        np.testing.assert_array_equal(found["time"] % 1, 0.5)


def test_sums_of_days_are_attributes_of_classic_files(source: xr.Dataset, tmp_path: Path) -> None:
    few, many = ({"espo_luigi_days_clipped": days} for days in (95, 27_000_000_000))
    source = source.assign(tasmax=source["tasmax"].assign_attrs(few)).assign_attrs(many)
    write_netcdf(source, tmp_path / "sums.nc", Layout({}, classic=True))
    with netCDF4.Dataset(tmp_path / "sums.nc") as found:
        assert found["tasmax"].espo_luigi_days_clipped == 95 and found.espo_luigi_days_clipped == 27_000_000_000


def test_the_library_below_finds_one_chunk_of_time_deflated_and_shuffled(file: Path) -> None:
    with h5py.File(file) as found:
        data, time = found["tasmax"], found["time"]
        assert (data.compression, data.compression_opts, data.shuffle) == ("gzip", 1, True)
        assert data.chunks[0] == data.shape[0] and time.chunks == time.shape
        assert data.attrs["_FillValue"] == np.float32(1e20) and data.dtype == np.float32
        for name in ("time", "time_bnds", "lat", "lon"):
            assert found[name].dtype == np.float64 and "_FillValue" not in found[name].attrs


@pytest.mark.parametrize(
    ("shape", "asked", "expected"),
    [
        ((1461, 700, 1700), {"Y": 50, "X": 50}, (1461, 50, 50)),  # 14.6 MB, as asked
        ((1461, 700, 1700), {"Y": 10, "X": 10}, (1461, 80, 10)),  # 0.6 MB, made higher
        ((1461, 12, 1700), {"Y": 10, "X": 10}, (1461, 12, 60)),  # as high as the grid, then wider
        ((1461, 12, 10), {"Y": 4, "X": 9}, (1461, 12, 10)),  # smaller than 4 MB as a whole
        ((365, 700, 1700), {}, (365, 700, 1700)),
    ],
)
def test_a_chunk_has_four_megabytes_or_the_whole(
    shape: tuple[int, ...], asked: dict[str, int], expected: tuple[int, ...]
) -> None:
    found = Layout(asked).chunk(shape)
    assert found == expected
    assert 4 * np.prod(found) >= 4 * 2**20 or found == shape


def test_chunks_at_the_edge_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netcdf, "SMALLEST_CHUNK_BYTES", 1)
    made = described(product("360_day"), "pr", "prAdjust", {})
    write_netcdf(made, tmp_path / "pr.nc", ROWS)
    with h5py.File(tmp_path / "pr.nc") as raw, xr.open_dataset(tmp_path / "pr.nc") as found:
        assert raw["prAdjust"].chunks[1:] == (4, 9)
        np.testing.assert_array_equal(found["prAdjust"].values, made["prAdjust"].values)


class _Noted(WrapperStore[LocalStore]):
    """A Zarr store that notes the chunks of data that are read."""

    def __init__(self, store: LocalStore) -> None:
        super().__init__(store)
        self.read: list[str] = []

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        if key.startswith("tasmax/c/"):
            self.read.append(key)
        return await super().get(key, *arguments, **options)


@pytest.mark.parametrize(("years", "reads"), [(4, 12), (5, 18)])
def test_files_that_begin_with_the_archives_chunks_of_time_read_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, years: int, reads: int
) -> None:
    """Files of five years need the chunks of the fifth year twice."""
    monkeypatch.setattr(netcdf, "SMALLEST_CHUNK_BYTES", 1)
    chunks = {"time": 4 * 365, "lat": 4, "lon": 9}
    store.write_store(product("noleap"), tmp_path / "day.zarr", store.Marker("a"), chunks=chunks)
    noted = _Noted(LocalStore(tmp_path / "day.zarr", read_only=True))
    with xr.open_zarr(noted, chunks=None) as ds:
        made = described(ds, "tasmax", "tasmax", {})
        for one in stretches(ds["time"], years):
            write_netcdf(made.isel(time=one.days), tmp_path / f"{one.dates}.nc", ROWS)
    assert len(noted.read) == reads and len(set(noted.read)) == 12


@needs("ncdump", "netcdf-bin")
def test_ncdump_shows_what_cf_asks_for(file: Path) -> None:
    said = subprocess.run(["ncdump", "-hs", str(file)], capture_output=True, text=True, check=True).stdout
    for line in (
        "tasmax:_FillValue = 1.e+20f ;",
        'tasmax:cell_methods = "area: mean time: maximum" ;',
        'tasmax:units_metadata = "temperature: on_scale" ;',
        'time:bounds = "time_bnds" ;',
        'time:calendar = "noleap" ;',
        "tasmax:quantization_nsb = 9 ;",
        "tasmax:_DeflateLevel = 1 ;",
    ):
        assert line in said
    assert said.count("_FillValue") == 1


@needs("ncdump", "netcdf-bin")
def test_ncdump_prints_the_same_values_and_the_same_land(source: xr.Dataset, file: Path) -> None:
    words = ["ncdump", "-p", "9,17", "-v", "tasmax", str(file)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    printed = said.partition("data:")[2].partition("tasmax =")[2].partition(";")[0].split(",")
    found = np.array([np.nan if word.strip() == "_" else float(word) for word in printed], "f4")
    np.testing.assert_array_equal(found, source["tasmax"].values.ravel())


@needs("cdo", "cdo")
def test_cdo_finds_the_same_mean_the_same_land_and_the_same_days(
    source: xr.Dataset, file: Path, tmp_path: Path
) -> None:
    def cdo(*words: str) -> str:
        return subprocess.run(["cdo", "-s", *words], capture_output=True, text=True, check=True).stdout

    cdo("timmean", str(file), str(tmp_path / "mean.nc"))
    with xr.open_dataset(tmp_path / "mean.nc", decode_times=False) as found:
        expected = source["tasmax"].astype("f8").mean("time", skipna=False)
        np.testing.assert_allclose(found["tasmax"].isel(time=0), expected, rtol=1e-6)
        np.testing.assert_array_equal(found["tasmax"].isel(time=0).isnull(), expected.isnull())
    assert int(cdo("ntime", str(file))) == source.sizes["time"]
    assert cdo("showdate", "-seltimestep,60", str(file)).split() == ["1991-03-01"]


@needs("Rscript", "r-cran-ncdf4")
def test_r_finds_the_same_values_and_the_same_land(source: xr.Dataset, file: Path) -> None:
    program = f"""
        if (!requireNamespace("ncdf4", quietly = TRUE)) quit(status = 9)
        file <- ncdf4::nc_open("{file}")
        day <- ncdf4::ncvar_get(file, "tasmax", start = c(1, 1, 100), count = c(-1, -1, 1))
        cat(sprintf("%.9g", day))
    """
    run = subprocess.run(["Rscript", "-e", program], capture_output=True, text=True, check=False)
    if run.returncode == 9:
        pytest.skip("install r-cran-ncdf4, the package ncdf4 of R")
    found = np.array([np.nan if word == "NA" else float(word) for word in run.stdout.split()], "f4")
    np.testing.assert_array_equal(found, source["tasmax"].isel(time=99).values.ravel())


@needs("Rscript", "r-cran-ncdf4")
@needs("gdal_translate", "gdal-bin")
@needs("cdo", "cdo")
def test_the_lines_of_the_page_for_r_qgis_and_excel_find_the_same_values(
    source: xr.Dataset, file: Path, tmp_path: Path
) -> None:
    shutil.copy(file, tmp_path / "tasmax.nc")
    write_netcdf(described(askew(source), "tasmax", "tasmax", {}), tmp_path / "rotated.nc", ROWS)
    (tmp_path / "regions.csv").write_text("region,statistic,value\ntown,p50,1.5\ntown,p10,0.5\nvalley,p50,2\n")
    blocks = blocks_of(ROOT / "docs" / "check" / "r-qgis-excel.md")
    in_r = "\n".join(block.text for block in blocks if block.language == "r")
    in_shell = "\n".join(block.text for block in blocks if block.language == "sh")
    program = in_r + 'cat(sprintf("%.9g", day), "\\n", calendar, length(lon), length(lat))'
    said = subprocess.run(["Rscript", "-e", program], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    *table, values, last = said.splitlines()
    assert len(table) == 2 and table[1].split()[1:] == ["town", "p50", "1.5"]
    expected = source["tasmax"].isel(time=99).values
    found = np.array([np.nan if word == "NA" else float(word) for word in values.split()], "f4")
    np.testing.assert_array_equal(found, expected.ravel())
    assert last.split() == ["noleap", str(source.sizes["lon"]), str(source.sizes["lat"])]

    subprocess.run(["bash", "-euc", in_shell], cwd=tmp_path, check=True)
    told = subprocess.run(["gdalinfo", "-json", "-stats", "tasmax.tif"], cwd=tmp_path, capture_output=True, check=True)
    band = json.loads(told.stdout)["bands"][0]
    assert band["minimum"] == pytest.approx(float(np.nanmin(expected)), rel=1e-6)
    assert band["maximum"] == pytest.approx(float(np.nanmax(expected)), rel=1e-6)
    row = ["gdallocationinfo", "-valonly", "-wgs84", "straight.tif", "-66", "46.5"]
    told = subprocess.run(row, cwd=tmp_path, capture_output=True, check=True)
    assert float(told.stdout) == pytest.approx(46.5, abs=0.25)  # half a cell
    of_town = source["tasmax"].sel(lon=-66.6, lat=45.9, method="nearest")
    lines = [line.split() for line in (tmp_path / "town.txt").read_text().splitlines() if not line.startswith("#")]
    assert [line[0] for line in lines] == [str(one)[:10] for one in of_town["time"].values]
    np.testing.assert_allclose([float(line[1]) for line in lines], of_town, rtol=1e-5)


@pytest.mark.skipif(missing_parts() is not None, reason=str(missing_parts()))
def test_a_file_system_that_refuses_is_named_and_nothing_is_left(source: xr.Dataset, tmp_path: Path) -> None:
    with FailingFiles.mounted(tmp_path / "behind", tmp_path / "mount") as files:
        files.set(Fault("write", error="EDQUOT"))
        with pytest.raises(StoreError, match=r"cannot write .*tasmax\.nc \(EDQUOT: .*; your quota is used up"):
            write_netcdf(source, tmp_path / "mount" / "tasmax.nc", ROWS)
        files.clear()
        assert [path.name for path in (tmp_path / "behind").iterdir() if not path.name.startswith(".fuse")] == []


@pytest.mark.skipif(missing_parts() is not None, reason=str(missing_parts()))
def test_a_disk_that_gets_full_halfway_is_named_and_nothing_is_left(
    source: xr.Dataset, file: Path, tmp_path: Path
) -> None:
    half = file.stat().st_size // 2
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={half}", "tmpfs", str(tmp_path)], check=True)
    try:
        with pytest.raises(StoreError, match=r"cannot write .*tasmax\.nc \(ENOSPC: No space left .*; free space there"):
            write_netcdf(source, tmp_path / "tasmax.nc", ROWS)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


OWNER = Owner("/final", "espo-g6", "0123")


@settings(deadline=None, max_examples=60)
@given(damaged(asdict(OWNER)))
def test_an_owners_file_of_any_shape_is_ours_or_refused(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    folder = tmp_path_factory.mktemp("exported")
    (folder / "espo-export.json").write_text(json.dumps(content))
    try:
        assert OWNER.check(folder) and content == {**content, **asdict(OWNER)}
    except StoreError as error:
        assert str(folder) in str(error)


def test_an_export_has_an_owner_also_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    OWNER.claim(tmp_path)
    assert OWNER.check(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["espo-export.json"]


@pytest.mark.parametrize("notes", ["a folder", f"{'0' * 64}  ../thesis.nc\n", "words\n", "\udcff"])
def test_damaged_notes_of_an_export_are_named(notes: str, tmp_path: Path) -> None:
    path = tmp_path / ".a.sha256.espo-notes"
    if notes == "a folder":
        path.mkdir()
    else:
        path.write_text(notes, errors="surrogateescape")
    with pytest.raises(StoreError, match=re.escape(str(path))):
        _Notes(path).read(tmp_path / "a.sha256")


@pytest.mark.parametrize("text", ["0f3a", "", "final/Montréal/day.zarr"])
def test_text_attributes_are_read_whichever_way_the_library_stores_them(tmp_path: Path, text: str) -> None:
    """As letters where they are ASCII, else as a string: h5py has bytes for the former, an array for the latter."""
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.setncattr("made_by", text)
    with h5py.File(tmp_path / "a.nc") as file:
        assert text_attribute(file, "made_by") == text and text_attribute(file, "nothing") == ""
