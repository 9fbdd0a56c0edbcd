"""Statistics as NetCDF: each file has the source's values, and CDO, R and compliance-checker read it."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from changes_example import MODELS, REGIONS, changes_of, together, yearly
from checked_netcdf import problems_of

from espo_luigi.export.netcdf import Layout, from_cf_axes, statistics_file, write_netcdf
from espo_luigi.science import display
from espo_luigi.science.outcomes.ensemble import MEMBER
from espo_luigi.science.outcomes.regions import region_means
from espo_luigi.tasks.ensembles import _long_table

NAME = "tx_mean_clim_mean_delta_1991_2010"
CASES = [
    (freq, product, kind)
    for freq in ("YS-JUL", "QS-DEC", "MS")
    for product in ("indicators", "delta", "warming_levels")
    for kind in ("grid", "regions")
]


def needs(program: str, package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"install {package}, which has {program}")


def statistics(freq: str, product: str, kind: str) -> xr.Dataset:
    """Statistics over three simulations; of regions, with the simulations."""
    of = {label.format("ssp585"): yearly(at, slope + 0.05, freq) for at, (label, slope) in enumerate(MODELS.items())}
    members = of if product == "indicators" else changes_of(of, product)
    if kind == "grid":
        return together(members, None if product == "indicators" else {}, {})[1].compute()
    means = {label: region_means(ds, REGIONS) for label, ds in members.items()}
    joined, made = together(means, None if product == "indicators" else {}, {})
    return made.merge(joined, compat="override").compute()


def write(ds: xr.Dataset, path: Path) -> Path:
    write_netcdf(statistics_file(ds, "Of a test"), path, Layout({}))
    return path


@pytest.fixture(scope="module", params=CASES, ids="+".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[xr.Dataset, Path]:
    ds = statistics(*request.param)
    return ds, write(ds, tmp_path_factory.mktemp("nc") / f"{'+'.join(request.param)}.nc")


def cdo(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["cdo", "-s", *map(str, words)], capture_output=True, text=True, check=True)


def test_a_file_has_the_values_and_the_dimensions_of_its_source(case: tuple[xr.Dataset, Path]) -> None:
    ds, path = case
    with xr.open_dataset(path) as file:
        assert file.attrs["title"] == "Of a test" and file["crs"].attrs["grid_mapping_name"] == "latitude_longitude"
        assert {one.dtype.kind for one in file.variables.values()} <= {"f", "i", "M", "S", "U", "O"}
        found = from_cf_axes(file.load())
    assert found.attrs.get("frequency", "yr") in ("yr", "qtr", "mon")
    names = {str(name): str(data.attrs.get("long_name")) for name, data in found.data_vars.items()}
    ends = {"_p10": ", 10th percentile of members", "_mean": ", mean of members", "_max": ", highest member"}
    found_ends = [
        (name.removesuffix(last), names[name], end)
        for name in names
        for last, end in ends.items()
        if name.endswith(last)
    ]
    told = [(words, end) for base, words, end in found_ends if f"{base}_members" in names]
    assert told and all(words.endswith(end) for words, end in told)
    for name in (name for name in names if name.endswith(("_p10", "_max"))):
        assert display.long_name(found[name]) == display.long_name(ds[name].rename(name.rpartition("_")[0]))
    for name, data in ds.data_vars.items():
        expected = data.where(data != data.attrs.get("_FillValue", np.nan)).astype("float32")
        np.testing.assert_array_equal(found[name].transpose(*data.dims), expected)
        for dim in data.dims:
            np.testing.assert_array_equal(found[dim], data[dim])


@needs("cdo", "cdo")
def test_cdo_reads_every_variable(case: tuple[xr.Dataset, Path]) -> None:
    """But simulations' values at levels, which have an axis more than CDO knows."""
    ds, path = case
    said = cdo("showname", path)
    cdo("sinfon", path)
    skipped = [line for line in said.stderr.splitlines() if "skipped" in line]
    of_members = [name for name, data in ds.data_vars.items() if MEMBER in data.dims]
    if "warming_level" not in ds.dims or "region" not in ds.dims:
        assert not skipped and len(said.stdout.split()) >= len(ds.data_vars)
    else:
        assert all(any(str(name) in line for name in of_members) for line in skipped)
        assert {str(name).partition("_clim")[0] for name in ds.data_vars} <= {
            name.partition("_clim")[0] for name in said.stdout.split()
        }
    if "region" not in ds.dims:
        assert said.stderr == ""


@needs("cdo", "cdo")
def test_times_have_the_years_and_the_months_of_their_periods(tmp_path: Path) -> None:
    seasons = write(statistics("QS-DEC", "delta", "grid"), tmp_path / "s.nc")
    assert cdo("showdate", seasons).stdout.split()[:5] == [
        "2000-01-16", "2000-04-16", "2000-07-16", "2000-10-16", "2010-01-16"
    ]  # fmt: skip
    with xr.open_dataset(seasons, decode_times=False) as raw:
        bounds = xr.DataArray(raw["climatology_bnds"].values[:2], dims=("time", "bnds"), attrs=raw["time"].attrs)
        first = xr.decode_cf(bounds.to_dataset(name="b"))["b"].dt.strftime("%Y-%m-%d").values.tolist()
        assert first == [["1990-12-01", "2010-03-01"], ["1991-03-01", "2010-06-01"]]
        assert raw["time"].attrs["horizon"].split()[0] == "1991-2010" and "bounds" not in raw["time"].attrs
    years = write(statistics("YS-JUL", "delta", "grid"), tmp_path / "y.nc")
    with xr.open_dataset(years) as found:
        assert found["time"].dt.strftime("%Y-%m-%d").values[0] == "2001-01-01"
        assert found[f"{NAME}_mean"].dims == ("time", "lat", "lon")


def test_the_methods_of_a_climatology_are_those_of_cf(tmp_path: Path) -> None:
    """Of a simulation's own means; statistics over simulations have none that CF knows."""
    ds = changes_of({"a": yearly(1, 0.05)}, "delta")["a"].compute()
    methods = {
        "time: maximum within days time: mean over days time: mean over years": "mean",
        "time: maximum time: mean over years": "maximum",
    }
    for given, within in methods.items():
        ds[NAME].attrs["cell_methods"] = given
        path = write(ds, tmp_path / f"{within}.nc")
        with xr.open_dataset(path) as found:
            assert found[NAME].attrs["cell_methods"] == f"time: {within} within years time: mean over years"
        assert problems_of([path]) == ""


def test_periods_out_of_order_and_sources_of_variance_are_parts_of_names(tmp_path: Path) -> None:
    ds = statistics("QS-DEC", "delta", "grid").isel(horizon=[2, 0])
    with xr.open_dataset(write(ds, tmp_path / "a.nc")) as file:
        assert f"{NAME}_p50_2011_2030_DJF" in file and "time" not in file.dims
        xr.testing.assert_allclose(
            from_cf_axes(file.load())[f"{NAME}_p50"].drop_attrs(), ds[f"{NAME}_p50"].drop_attrs()
        )
    split = statistics("YS-JAN", "indicators", "grid")
    sources = xr.concat([split["tx_mean_p50"], split["tx_mean_p90"]], xr.Variable("uncertainty", ["model", "total"]))
    split["tx_mean_uncertainty"] = sources.assign_attrs(units="%")
    with xr.open_dataset(write(split, tmp_path / "b.nc")) as file:
        np.testing.assert_array_equal(file["tx_mean_uncertainty_total"], split["tx_mean_p90"])


@pytest.mark.parametrize("product", ["delta", "warming_levels"])
def test_the_checker_of_cf_accepts_maps_and_of_regions_all_but_the_place_of_their_axis(
    tmp_path: Path, product: str
) -> None:
    grid, regions = (statistics("QS-DEC", product, kind) for kind in ("grid", "regions"))
    for ds in (grid, regions):
        if "warming_level" in ds:
            ds["warming_level"].attrs = {"units": "K", "long_name": "level of global warming"}
    assert problems_of([write(grid, tmp_path / "grid.nc")]) == ""
    said = problems_of([write(regions, tmp_path / "regions.nc")])
    faults = [line for line in said.splitlines() if line.startswith("*")]
    assert faults and all("recommended order" in line and "region (A)" in line for line in faults)


@needs("Rscript", "r-cran-ncdf4")
def test_r_reads_names_and_values_of_regions(tmp_path: Path) -> None:
    ds = statistics("QS-DEC", "delta", "regions")
    path = write(ds, tmp_path / "r.nc")
    program = f"""
        if (!requireNamespace("ncdf4", quietly = TRUE)) quit(status = 9)
        file <- ncdf4::nc_open("{path}")
        cat(ncdf4::ncvar_get(file, "region_name"), ncdf4::ncatt_get(file, "time", "season")$value, sep = "|")
        cat("|", sprintf("%.9g ", ncdf4::ncvar_get(file, "{NAME}_p50")))
    """
    run = subprocess.run(["Rscript", "-e", program], capture_output=True, text=True, check=False)
    if run.returncode == 9:
        pytest.skip("install r-cran-ncdf4, the package ncdf4 of R")
    *names, seasons, values = run.stdout.split("|")
    assert names == [*REGIONS] and seasons == "DJF MAM JJA SON"
    found = np.array([np.nan if word == "NA" else float(word) for word in values.split()], "f4")
    expected = ds[f"{NAME}_p50"].transpose("horizon", "season", "region").values.ravel()
    np.testing.assert_array_equal(found, expected.astype("f4"))


def test_names_of_regions_may_have_any_letters(tmp_path: Path) -> None:
    names = ["Montr\u00e9al", "\u6771\u4eac"]
    ds = statistics("YS-JUL", "delta", "regions").assign_coords(region=names)
    path = write(ds, tmp_path / "r.nc")
    with xr.open_dataset(path) as file:
        assert from_cf_axes(file.load())["region"].values.tolist() == names
    if shutil.which("ncdump"):
        said = subprocess.run(["ncdump", "-v", "region_name", path], capture_output=True, text=True, check=True).stdout
        assert r'"Montr\303\251al"' in said, "ncdump shows the bytes of UTF-8"


def test_attributes_of_the_source_s_times_do_not_replace_those_of_the_file_s(tmp_path: Path) -> None:
    ds = statistics("YS-JUL", "indicators", "grid")
    ds["time"].attrs = {"bounds": "b", "climatology": "c", "calendar": "d", "units": "e", "long_name": "year"}
    with xr.open_dataset(write(ds, tmp_path / "t.nc"), decode_times=False) as file:
        assert file["time"].attrs["bounds"] == "time_bnds" in file and "climatology" not in file["time"].attrs
        assert file["time"].attrs["units"] == "days since 1950-01-01" and file["time"].attrs["long_name"] == "year"
        assert file["time"].attrs["calendar"] == "standard"


def test_categories_alone_have_no_means_over_regions(tmp_path: Path) -> None:
    """Their table has its header."""
    of = {label: yearly(1, 0.05).isel(time=slice(3)) for label in "ab"}
    for ds in of.values():
        for data in ds.values():
            data.attrs |= {"flag_values": "1, 2", "flag_meanings": "dry wet"}
    joined, made = together({label: region_means(ds, REGIONS) for label, ds in of.items()}, None, {})
    write(made.merge(joined, compat="override"), tmp_path / "r.nc")
    columns, rows = _long_table(joined, [], "ssp585")
    assert list(rows) == [] and {"region", "indicator", "value"} < {*columns}
