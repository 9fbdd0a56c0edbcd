"""Zarr stores that were not copied to their end, and numbers that stand for missing values without saying so."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from examined_files import BOX, FLAGS, LAT, LON, UNITS, Files, good_files, weather
from hypothesis import given, settings
from hypothesis import strategies as st

from espo_luigi.catalog import Asset, Match
from espo_luigi.catalog.examine import examine_match, missing_chunks
from espo_luigi.catalog.open import open_match
from espo_luigi.science.diagnose.flags import limits_of
from espo_luigi.science.extract.input_problems import Problem

CHUNKS = (100, 4, 5)
YEAR = st.integers(1999, 2002)


def match_of(path: Path, name: str = "tasmax") -> Match:
    asset = Asset({"date_start": "2000-01-01", "date_end": "2001-12-31", "path": str(path)}, (name,), str(path))
    return Match("CMIP6_M", (asset,), (name,), (), (("2000", "2001"),), {"id": "CMIP6_M"})


def problems(
    path: Path, name: str = "tasmax", years: tuple[str, str] = ("2000", "2001"), **kwargs: Any
) -> list[Problem]:
    return examine_match(match_of(path, name), period=years, regions=[BOX], limits=limits_of(FLAGS), **kwargs)


def only(found: list[Problem]) -> Problem:
    """The only problem; that cells have values on too few days follows from it."""
    (problem,) = (each for each in found if each.kind != "too_few_days")
    return problem


def zarr_of(ds: xr.Dataset, path: Path, zarr_format: int = 2, name: str = "tasmax", **encoding: Any) -> Path:
    encoding = {"chunks": CHUNKS} | encoding
    ds.to_zarr(path, zarr_format=zarr_format, encoding={name: encoding, "time": {"chunks": (300,)}})
    return path


@pytest.mark.parametrize(
    ("zarr_format", "encoding", "lost"),
    [(2, {}, "2.1.1"), (3, {}, "c/2/1/1"), (3, {"shards": (200, 4, 10)}, "c/1/1/0")],
)
def test_chunks_that_are_not_in_a_store_are_counted(
    tmp_path: Path, zarr_format: int, encoding: dict[str, Any], lost: str
) -> None:
    path = zarr_of(weather("tasmax", (2000, 2001), "noleap"), tmp_path / "raw.zarr", zarr_format, **encoding)
    assert problems(path) == []
    files = 8 * 2 * 3 if not encoding else 4 * 2 * 2
    (path / "tasmax" / lost).unlink()
    found = {problem.kind: problem for problem in problems(path)}["missing_chunks"]
    assert (found.variable, found.file, found.day, found.count) == ("tasmax", str(path), "2000-07-20", 1)
    assert f"1 of {files} chunks are not in the store, the first of them tasmax/{lost}" in found.message
    assert "on_input_problem.missing_chunks: warn`" in found.message


def test_a_shard_without_bytes_counts_as_missing(tmp_path: Path) -> None:
    """Zarr reads fill values there, too."""
    path = zarr_of(weather("tasmax", (2000, 2001), "noleap"), tmp_path / "raw.zarr", 3, shards=(200, 4, 10))
    (path / "tasmax/c/1/1/0").write_bytes(b"")
    found = {problem.kind: problem.count for problem in problems(path)}
    assert found["missing_chunks"] == 1


def test_chunks_outside_of_the_years_do_not_count_and_those_within_have_their_first_day(tmp_path: Path) -> None:
    path = zarr_of(weather("tasmax", (2000, 2001), "noleap"), tmp_path / "raw.zarr")
    (path / "tasmax/2.0.0").unlink()
    (path / "tasmax/3.0.0").unlink()
    found = {one.kind: (one.day, one.count) for one in problems(path, years=("2001", "2001"))}
    assert found["missing_chunks"] == ("2001-01-01", 1)


def test_cells_that_are_always_missing_need_no_chunks(tmp_path: Path) -> None:
    """As xarray writes seas: with NaN as fill value, and without the chunks that hold nothing else."""
    ds = weather("tasmax", (2000, 2001), "noleap")
    ds["tasmax"][:, 4:, :5] = np.nan
    path = zarr_of(ds, tmp_path / "raw.zarr")
    assert not (path / "tasmax/0.1.0").exists()
    assert problems(path) == []


def test_a_single_empty_day_in_chunks_of_a_day_is_a_map_without_data(tmp_path: Path) -> None:
    """Several such days in a row are rather a copy that stopped."""
    ds = weather("tasmax", (2000, 2001), "noleap")
    ds["tasmax"][[0, 200]] = np.nan
    path = zarr_of(ds, tmp_path / "raw.zarr", chunks=(1, 7, 11))
    assert not (path / "tasmax/200.0.0").exists()
    assert [(problem.kind, problem.count) for problem in problems(path)] == [("maps_without_data", 2)]
    (path / "tasmax/201.0.0").unlink()
    found = {problem.kind: problem.count for problem in problems(path)}
    assert found["missing_chunks"] == 2


def test_chunks_of_a_fixed_field(tmp_path: Path) -> None:
    path = zarr_of(weather("tasmax", (2000, 2001), "noleap"), tmp_path / "raw.zarr")
    shares = xr.Dataset({"sftlf": (("lat", "lon"), np.full((7, 11), 50.0))}, {"lat": LAT, "lon": LON})
    shares.to_zarr(tmp_path / "fx.zarr", zarr_format=2, encoding={"sftlf": {"chunks": (7, 6)}})
    field = Asset({"path": str(tmp_path / "fx.zarr")}, ("sftlf",), str(tmp_path / "fx.zarr"))
    match = replace(match_of(path), fixed={"sftlf": field})

    def found() -> list[tuple[str, str, int]]:
        examined = examine_match(match, period=("2000", "2001"), regions=[BOX], limits={})
        return [(problem.kind, problem.variable, problem.count) for problem in examined]

    assert found() == []
    (tmp_path / "fx.zarr/sftlf/0.0").unlink()
    assert found() == [], "a sea may have no chunk"
    (tmp_path / "fx.zarr/sftlf/0.1").unlink()
    assert found() == [("missing_chunks", "sftlf", 2)]


def test_a_whole_variable_and_coordinates_that_are_not_in_a_store(tmp_path: Path) -> None:
    path = zarr_of(weather("tasmax", (2000, 2001), "noleap"), tmp_path / "raw.zarr")
    chunk = (path / "time/1").read_bytes()
    (path / "time/1").unlink()
    found = {problem.kind: problem for problem in problems(path)}["missing_chunks"]
    assert (found.variable, found.count) == ("time", 1)
    (path / "time/1").write_bytes(chunk)
    for file in path.glob("tasmax/[0-9]*"):
        file.unlink()
    found = {problem.kind: problem for problem in problems(path)}["missing_chunks"]
    assert (found.variable, found.count) == ("tasmax", 48)


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_chunks_are_named_if_and_only_if_values_of_the_years_are_lost(data: st.DataObject) -> None:
    """Except where a cell has lost all chunks, or a day in chunks of a day, which may always have been missing."""
    chunks = tuple(data.draw(st.integers(1, size)) for size in (12, 2, 3))
    zarr_format, first, last = data.draw(st.sampled_from((2, 3))), *sorted(data.draw(st.tuples(YEAR, YEAR)))
    times = xr.date_range("2000-12-26", periods=12, calendar="noleap", use_cftime=True)
    values = np.arange(72, dtype="float32").reshape(12, 2, 3)
    coords = {"time": times, "lat": [0.0, 1.0], "lon": [0.0, 1.0, 2.0]}
    ds = xr.Dataset({"pr": (("time", "lat", "lon"), values)}, coords)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = zarr_of(ds, Path(folder) / "a.zarr", zarr_format, "pr", chunks=chunks)
        files = sorted(file for file in (path / "pr").rglob("*") if file.is_file() and file.name[-1].isdigit())
        lost = data.draw(st.lists(st.sampled_from(files), unique=True, max_size=5))
        for file in lost:
            file.unlink()
        found = missing_chunks(str(path), ["pr"], (first, last), {})
        left = xr.open_zarr(path).pr
        within = left["time"].dt.year.isin(range(first, last + 1)).values
        gone = np.isnan(left.values)
    always = gone.all(axis=0) & ~gone.all()
    if chunks[0] == 1 and not gone.all():
        empty = gone.all(axis=(1, 2))
        alone = [day for day in range(12) if empty[day] and not empty[max(day - 1, 0) : day + 2].sum() > 1]
        gone[alone] = False
    names = {key for lacking in found for key in lacking.keys}
    assert bool(found) == bool((gone & ~always)[within].any())
    assert names <= {str(file.relative_to(path)) for file in lost}


def zero_filled(folder: Path, dry: bool) -> tuple[Path, np.ndarray]:
    """Precipitation as zarr-python writes it by default."""
    ds = weather("pr", (2000, 2001), "noleap")
    values = np.where((ds.pr.values < 1e-5) & dry, np.float32(0), ds.pr.values)
    path = zarr_of(ds, folder / "raw.zarr", name="pr")
    array = zarr.open_group(path, mode="r+").create_array(
        "pr", shape=values.shape, chunks=CHUNKS, dtype="f4", fill_value=0, overwrite=True
    )
    array[...] = values
    array.attrs.update({"units": UNITS["pr"], "_ARRAY_DIMENSIONS": ["time", "lat", "lon"]})
    zarr.consolidate_metadata(path, zarr_format=2)
    return path, values


def test_dry_days_are_not_missing_days(tmp_path: Path) -> None:
    path, values = zero_filled(tmp_path, dry=True)
    found = only(problems(path, "pr"))
    rows, columns = (LAT > 41) & (LAT < 54), (LON > 252) & (LON < 278)
    assert (found.kind, found.value) == ("fill_values", 0.0)
    assert found.count == (values[:, rows][..., columns] == 0).sum()
    assert "`xr_open_kwargs: {mask_and_scale: {pr: false}}`" in found.message
    remedy = {"mask_and_scale": {"pr": False}}
    assert problems(path, "pr", xr_open_kwargs=remedy) == []
    opened = open_match(match_of(path, "pr"), xr_open_kwargs=remedy)
    np.testing.assert_array_equal(opened.pr, values)
    assert "_FillValue" not in opened.pr.attrs


def test_a_fill_value_of_zero_without_dry_days_is_no_problem(tmp_path: Path) -> None:
    assert problems(zero_filled(tmp_path, dry=False)[0], "pr") == []


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return good_files(tmp_path, "noleap")


@pytest.mark.parametrize(
    ("name", "fill", "units"),
    [("tasmax", 1e20, "K"), ("tasmin", -99.9, "degC"), ("pr", -99.0, "mm d-1"), ("pr", 1e20, "kg m-2 s-1")],
)
def test_a_fill_value_that_no_attribute_declares(files: Files, name: str, fill: float, units: str) -> None:
    """A sea of numbers: named by the number as it is in the file, and no other check takes them for values."""

    def sea(ds: xr.Dataset) -> xr.Dataset:
        factor = 86400 if units == "mm d-1" else 1
        values = ds[name] * factor - (273.15 if units == "degC" else 0)
        changed = values.where(ds["lon"] < 265, np.float32(fill)).astype("float32")
        changed.encoding = {"_FillValue": None}
        return ds.assign({name: changed.assign_attrs(units=units)})

    file = files.change(name, 2002, sea)
    found = only(files.problems())
    assert (found.kind, found.variable, found.file) == ("fill_values", name, file)
    assert found.value == pytest.approx(fill, rel=1e-5)
    cells = ((LAT > 41) & (LAT < 54)).sum() * ((LON >= 265) & (LON < 278)).sum()
    assert found.count == 3 * 365 * cells
    assert f"are {fill:.6g} {units}, which is impossible" in found.message


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("missing_value", np.float64(1e20), "a fill value that missing_value (1e+20, float64) declares, but not as"),
        ("missing_value", "1e20", "a fill value that missing_value (1e20, str) declares, but not as readers take it"),
        ("missing_value", np.float64(-999), "a fill value that no attribute declares"),
        ("comment", np.float64(1e20), "a fill value that no attribute declares"),
    ],
)
def test_a_fill_value_that_an_attribute_of_another_type_declares(
    files: Files, attribute: str, value: Any, said: str
) -> None:
    """float32's 1e20 is not float64's: xarray takes it for a value."""

    def sea(ds: xr.Dataset) -> xr.Dataset:
        changed = ds["tasmax"].where(ds["lon"] < 265, np.float32(1e20)).astype("float32")
        changed.encoding = {"_FillValue": None}
        return ds.assign(tasmax=changed)

    file = files.change("tasmax", 2002, sea)
    with netCDF4.Dataset(file, "a") as opened:
        opened["tasmax"].setncattr(attribute, value)
    found = only(files.problems())
    assert (found.kind, found.file) == ("fill_values", file)
    assert said in found.message and "as _FillValue" in found.message


def test_no_number_of_mislabelled_units_is_a_fill_value(files: Files) -> None:
    """Celsius as K, rounded so that each number recurs."""
    files.change("tasmax", 2002, lambda ds: ds.assign(tasmax=(ds["tasmax"] - 273.15).round().assign_attrs(units="K")))
    assert "mislabelled_units" in {problem.kind for problem in files.problems() if problem.variable == "tasmax"}
    assert "fill_values" not in {problem.kind for problem in files.problems()}
