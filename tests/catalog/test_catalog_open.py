"""Opening what a search found: small NetCDF files and Zarr stores."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numcodecs
import numcodecs.zarr3
import numpy as np
import pytest
import xarray as xr
import zarr
from xclim.core.units import amount2rate, convert_units_to

from espo_luigi.catalog import Asset, Match, open_match
from espo_luigi.catalog.examine import examine_match
from espo_luigi.catalog.files import tracking_id
from espo_luigi.catalog.open import open_grid
from espo_luigi.errors import DataError, StoreError
from espo_luigi.science.attributes import STATED_UNITS

LAT, LON = [40.0, 45.0, 50.0], [250.0, 255.0, 260.0, 265.0]


def daily(
    name: str = "tasmax",
    start: str = "2000-01-01",
    end: str = "2001-12-31",
    *,
    calendar: str = "noleap",
    units: str = "K",
    hour: int = 12,
    dtype: str = "float32",
) -> xr.Dataset:
    time = xr.date_range(f"{start} {hour:02}:00", f"{end} {hour:02}:00", freq="D", calendar=calendar, use_cftime=True)
    values = np.random.default_rng(len(time)).uniform(270, 290, (len(time), len(LAT), len(LON))).astype(dtype)
    coords = {"time": time, "lat": LAT, "lon": LON, "height": 2.0}
    ds = xr.Dataset({name: (("time", "lat", "lon"), values, {"units": units})}, coords)
    bounds = np.stack([time.values, time.values], 1)
    return ds.assign(time_bnds=(("time", "bnds"), bounds)).assign_attrs(source_id="M", tracking_id=f"{name}{start}")


def store(ds: xr.Dataset, path: Path, **encoding: Any) -> Path:
    units = {"units": "days since 1850-01-01", "dtype": "float64"}
    times = {name: dict(units) for name in ("time", "time_bnds") if name in ds}
    if path.suffix == ".zarr":
        ds.drop_vars("time_bnds", errors="ignore").to_zarr(path, encoding={"time": units}, consolidated=False)
    else:
        ds.to_netcdf(path, encoding=times | encoding)
    return path


def asset(path: Path, variable: str | tuple[str, ...], start: str = "2000-01-01", end: str = "2001-12-31") -> Asset:
    names = (variable,) if isinstance(variable, str) else variable
    columns = {
        "id": "CMIP6_M",
        "domain": "global",
        "processing_level": "raw",
        "xrfreq": "D",
        "variable": repr(names),
        "date_start": start,
        "date_end": end,
        "format": "zarr" if path.suffix in (".zarr", ".zip") else "nc",
        "path": str(path),
    }
    return Asset(columns, names, str(path))


def match(*assets: Asset, period: tuple[str, str] = ("2000", "2003")) -> Match:
    names = tuple(dict.fromkeys(name for each in assets for name in each.variables))
    return Match("CMIP6_M", assets, names, periods=(period,), columns={"id": "CMIP6_M", "source": "M"})


@pytest.fixture
def two_files(tmp_path: Path) -> tuple[Match, xr.Dataset, xr.Dataset]:
    first, second = daily(), daily(start="2002-01-01", end="2003-12-31")
    assets = (
        asset(store(first, tmp_path / "a.nc"), "tasmax"),
        asset(store(second, tmp_path / "b.nc"), "tasmax", "2002-01-01", "2003-12-31"),
    )
    return match(*assets), first, second


def test_files_are_joined_in_time_lazily_with_stamps_at_midnight(
    two_files: tuple[Match, xr.Dataset, xr.Dataset],
) -> None:
    found, first, second = two_files
    ds = open_match(found)
    assert ds["tasmax"].chunks is not None
    assert ds["tasmax"].dtype == "float32"
    assert set(ds.variables) == {"tasmax", "time", "lat", "lon"}
    plain = xr.concat([first["tasmax"], second["tasmax"]], "time")
    plain = plain.assign_coords(time=plain["time"].dt.floor("D")).drop_vars("height")
    xr.testing.assert_equal(ds["tasmax"].compute(), plain)
    assert ds["time"].dt.calendar == "noleap"


def test_attributes_of_the_files_that_differ_go_unless_the_first_files_are_asked_for(
    two_files: tuple[Match, xr.Dataset, xr.Dataset],
) -> None:
    found, *_ = two_files
    dropped = open_match(found)
    assert dropped.attrs["source_id"] == "M"
    assert "tracking_id" not in dropped.attrs
    first = open_match(found, xr_combine_kwargs={"combine_attrs": "override"})
    assert first.attrs["tracking_id"] == "tasmax2000-01-01"
    assert not {"cat:path", "cat:format"} & (set(dropped.attrs) | set(first.attrs)), "they are of one file"
    expected = {"cat:id": "CMIP6_M", "cat:source": "M", "cat:variable": "tasmax", "cat:date_end": "2003-12-31"}
    assert expected.items() <= dropped.attrs.items()


def test_the_experiment_is_the_catalogues_and_not_that_of_the_historical_file_which_comes_first(
    two_files: tuple[Match, xr.Dataset, xr.Dataset],
) -> None:
    found, *_ = two_files
    for asset, experiment in zip(found.assets, ("historical", "ssp585"), strict=True):
        with xr.open_dataset(asset.path, decode_times=False) as file:
            stated = file.load().assign_attrs(experiment_id=experiment, activity_id="?")
        stated.to_netcdf(asset.path)
    match = replace(found, columns={**found.columns, "activity": "ScenarioMIP", "experiment": "ssp585"})
    attrs = open_match(match, xr_combine_kwargs={"combine_attrs": "override"}).attrs
    assert (attrs["activity_id"], attrs["experiment_id"], attrs["cat:experiment"]) == (
        "ScenarioMIP",
        "ssp585",
        "ssp585",
    )


@pytest.mark.parametrize("calendar", ["noleap", "standard", "proleptic_gregorian", "360_day"])
def test_calendars_stay_and_variables_stamped_at_other_hours_are_aligned(tmp_path: Path, calendar: str) -> None:
    end = "2001-12-30" if calendar == "360_day" else "2001-12-31"
    noon = daily(calendar=calendar, end=end)
    midnight = daily("pr", calendar=calendar, end=end, units="kg m-2 s-1", hour=0)
    ds = open_match(
        match(asset(store(noon, tmp_path / "a.nc"), "tasmax"), asset(store(midnight, tmp_path / "b.nc"), "pr"))
    )
    days = {"noleap": 730, "360_day": 720}.get(calendar, 731)
    assert ds.sizes["time"] == days
    gregorian = calendar in ("standard", "proleptic_gregorian")
    assert ds["time"].dt.calendar == ("proleptic_gregorian" if gregorian else calendar)
    np.testing.assert_array_equal(ds["tasmax"], noon["tasmax"])
    np.testing.assert_array_equal(ds["pr"], midnight["pr"])


@pytest.mark.parametrize(
    ("name", "units", "expected"),
    [
        ("tasmax", "degC", "K"),
        ("tasmax", "degF", "K"),
        ("pr", "mm d-1", "kg m-2 s-1"),
        ("pr", "mm s-1", "kg m-2 s-1"),
        ("pr", "mm/day", "kg m-2 s-1"),
        ("pr", "m s-1", "kg m-2 s-1"),
    ],
)
def test_units_are_converted_as_xclim_converts_them_in_hydro_context(
    tmp_path: Path, name: str, units: str, expected: str
) -> None:
    raw = daily(name, units=units)
    ds = open_match(match(asset(store(raw, tmp_path / "a.nc"), name)))
    assert ds[name].attrs["units"] == expected
    assert ds[name].dtype == "float32"
    oracle = convert_units_to(raw[name].astype("float64"), expected, context="hydro")
    np.testing.assert_allclose(ds[name], oracle, rtol=3e-7)


def test_canonical_units_change_no_bit(tmp_path: Path) -> None:
    raw = daily("pr", units="kg m-2 s-1", dtype="float64")
    ds = open_match(match(asset(store(raw, tmp_path / "a.nc"), "pr")))
    np.testing.assert_array_equal(ds["pr"].values, raw["pr"].values)
    assert ds["pr"].dtype == "float64"


def test_files_of_one_variable_may_have_different_units(tmp_path: Path) -> None:
    kelvin, celsius = daily(), daily(start="2002-01-01", end="2003-12-31", units="degC")
    ds = open_match(
        match(
            asset(store(kelvin, tmp_path / "a.nc"), "tasmax"),
            asset(store(celsius, tmp_path / "b.nc"), "tasmax", "2002"),
        )
    )
    later = ds["tasmax"].sel(time=slice("2002", "2003"))
    np.testing.assert_allclose(later, celsius["tasmax"] + 273.15, rtol=1e-6)


def totals(path: Path, start: str = "2000", end: str = "2001", units: str = "mm", **attrs: str) -> tuple[Asset, Any]:
    raw = daily("pr", f"{start}-01-01", f"{end}-12-31", units=units)
    raw["pr"].attrs |= attrs
    return asset(store(raw, path), "pr", f"{start}-01-01", f"{end}-12-31"), raw["pr"]


def test_totals_and_rates_of_several_files_are_joined_and_told(tmp_path: Path) -> None:
    sums, first = totals(tmp_path / "a.nc", cell_methods="time: sum")
    rates, second = totals(tmp_path / "b.nc", "2002", "2003", units="mm d-1")
    ds = open_match(match(sums, rates))
    rate = [amount2rate(first, out_units="mm d-1"), second]
    oracle = convert_units_to(xr.concat(rate, "time"), "kg m-2 s-1", context="hydro")
    np.testing.assert_allclose(ds["pr"], oracle, rtol=3e-7)
    assert ds.attrs[STATED_UNITS] == "CMIP6_M: pr in mm d-1 in place of mm"
    assert STATED_UNITS not in ds["pr"].attrs


@pytest.mark.parametrize(
    ("stated", "in_place_of"),
    [
        ({"accumulation": {"pr": "over_step"}}, "mm"),
        ({"units": {"pr": "mm d-1"}}, "mm"),
        ({"units": {"pr": "mm"}}, "mm"),
    ],
)
def test_the_configuration_makes_rates_of_totals_that_do_not_say_so(
    tmp_path: Path, stated: dict[str, Any], in_place_of: str
) -> None:
    given, raw = totals(tmp_path / "a.nc")
    with pytest.raises(DataError, match=r"`accumulation: \{pr: over_step\}`.* `units: \{pr: mm d-1\}`"):
        open_match(match(given))
    ds = open_match(replace(match(given), **stated))
    np.testing.assert_allclose(ds["pr"], raw / 86400, rtol=3e-7)
    assert ds.attrs[STATED_UNITS] == f"CMIP6_M: pr in mm d-1 in place of {in_place_of}"


def test_examination_takes_stated_units_and_refuses_unsaid_totals(tmp_path: Path) -> None:
    given, _ = totals(tmp_path / "a.nc", cell_methods="time: mean")
    how: dict[str, Any] = {"period": ("2000", "2001"), "limits": {}}
    region = {"name": "all", "lon_bnds": [245, 270], "lat_bnds": [35, 55], "tile_buffer": 0}
    problems = examine_match(match(given), regions=[region], **how)
    assert [(each.kind, each.variable) for each in problems] == [("units", "pr")]
    stated = replace(match(given), units={"pr": "mm d-1"})
    assert "units" not in {each.kind for each in examine_match(stated, regions=[region], **how)}


def test_a_missing_day_is_an_error_with_its_date(tmp_path: Path) -> None:
    ds = daily()
    path = store(ds.isel(time=np.delete(np.arange(ds.sizes["time"]), 59)), tmp_path / "gap.nc")
    with pytest.raises(DataError, match="1 day is missing: 2000-03-01"):
        open_match(match(asset(path, "tasmax")))


def test_a_double_day_is_an_error_with_its_date(tmp_path: Path) -> None:
    ds = daily()
    path = store(ds.isel(time=np.insert(np.arange(ds.sizes["time"]), 3, 3)), tmp_path / "twice.nc")
    with pytest.raises(DataError, match="2000-01-04: days are there more than once"):
        open_match(match(asset(path, "tasmax")))


def test_what_is_wrong_outside_the_period_does_not_matter(tmp_path: Path) -> None:
    ds = daily(start="1998-01-01")
    path = store(ds.isel(time=np.delete(np.arange(ds.sizes["time"]), 59)), tmp_path / "a.nc")
    opened = open_match(match(asset(path, "tasmax", "1998-01-01"), period=("2000", "2001")))
    assert opened.sizes["time"] == 730


def test_files_in_two_calendars_are_refused(tmp_path: Path) -> None:
    first, second = daily(), daily(start="2002-01-01", end="2003-12-30", calendar="360_day")
    assets = (
        asset(store(first, tmp_path / "a.nc"), "tasmax"),
        asset(store(second, tmp_path / "b.nc"), "tasmax", "2002-01-01", "2003-12-30"),
    )
    with pytest.raises(DataError, match=r"do not combine .*a\.nc, .*b\.nc"):
        open_match(match(*assets))


def test_round_off_in_coordinates_is_forgiven_and_other_grids_are_not(tmp_path: Path) -> None:
    first = store(daily(), tmp_path / "a.nc")
    pr = daily("pr", units="kg m-2 s-1")
    close = store(pr.assign_coords(lat=np.asarray(LAT) + 1e-6), tmp_path / "close.nc")
    ds = open_match(match(asset(first, "tasmax"), asset(close, "pr")))
    assert ds["pr"].shape == ds["tasmax"].shape
    assert not ds.isnull().any().to_array().any()
    far = store(pr.assign_coords(lat=np.asarray(LAT) + 1), tmp_path / "far.nc")
    with pytest.raises(DataError, match=r"far\.nc and .*a\.nc are on different grids"):
        open_match(match(asset(first, "tasmax"), asset(far, "pr")))


def test_an_absent_file_is_named_with_the_id(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.nc is in the catalogue \(id CMIP6_M\) but does not exist"):
        open_match(match(asset(tmp_path / "gone.nc", "tasmax")))


def test_a_truncated_netcdf_file_is_named(tmp_path: Path) -> None:
    path = store(daily(), tmp_path / "cut.nc")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"cut\.nc \(id CMIP6_M\) cannot be read"):
        open_match(match(asset(path, "tasmax")))


@pytest.mark.parametrize(
    ("number", "said", "told"),
    [
        (errno.ENOLCK, "unable to lock file", r"HDF5_USE_FILE_LOCKING=\w+ asks for them: set it to FALSE"),
        (524, "unable to lock file", r"has no locks, and HDF5_USE_FILE_LOCKING"),
        (errno.EIO, "Input/output error", "The file system refuses it"),
        (errno.EACCES, "Permission denied", "The file system refuses it"),
    ],
)
def test_an_error_of_the_file_system_is_not_blamed_on_the_data(
    number: int, said: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, said)

    path = store(daily(), tmp_path / "a.nc")
    monkeypatch.setattr("espo_luigi.catalog.open.open_netcdf", refuse)
    with pytest.raises(StoreError, match=told) as error:
        open_match(match(asset(path, "tasmax")))
    assert "Download" not in str(error.value)


def test_a_zarr_store_without_its_metadata_is_named(tmp_path: Path) -> None:
    path = store(daily(), tmp_path / "cut.zarr")
    (path / "zarr.json").unlink()
    with pytest.raises(DataError, match=r"cut\.zarr \(id CMIP6_M\) cannot be read"):
        open_match(match(asset(path, "tasmax")))


def test_zarr_stores_and_archives_of_them_are_opened_like_netcdf(tmp_path: Path) -> None:
    raw = daily()
    path = store(raw, tmp_path / "a.zarr")
    archive = Path(shutil.make_archive(str(tmp_path / "b.zarr"), "zip", path))
    for each in (path, archive):
        ds = open_match(match(asset(each, "tasmax")))
        np.testing.assert_array_equal(ds["tasmax"], raw["tasmax"])


@pytest.mark.parametrize("folder", ["run#1", "run?", "run 50%20"])
def test_a_store_whose_folder_has_the_characters_of_a_url_is_opened(tmp_path: Path, folder: str) -> None:
    raw = daily()
    path = store(raw, tmp_path / "a.zarr")
    (tmp_path / folder).mkdir()
    path = path.rename(tmp_path / folder / "a.zarr")
    np.testing.assert_array_equal(open_match(match(asset(path, "tasmax")))["tasmax"], raw["tasmax"])


def test_chunks_hold_about_a_year_in_whole_stored_chunks(tmp_path: Path) -> None:
    fine = {"lat": np.linspace(40, 60, 100), "lon": np.linspace(-80, -60, 140)}
    path = store(daily().reindex(fine, method="nearest"), tmp_path / "a.nc", tasmax={"chunksizes": (100, 100, 140)})
    ds = open_match(match(asset(path, "tasmax")))
    assert ds["tasmax"].chunks[0][0] == 300
    assert (
        open_match(match(asset(path, "tasmax")), xr_open_kwargs={"chunks": {"time": 50}})["tasmax"].chunks[0][0] == 50
    )


def test_years_of_a_small_grid_share_a_chunk(tmp_path: Path) -> None:
    path = store(daily(), tmp_path / "a.nc", tasmax={"chunksizes": (100, 3, 4)})
    assert len(open_match(match(asset(path, "tasmax")))["tasmax"].chunks[0]) == 1


def test_latitude_and_longitude_of_a_rotated_grid_are_named_and_its_dimensions_kept(tmp_path: Path) -> None:
    raw = daily().rename(lat="rlat", lon="rlon")
    lon2d, lat2d = np.meshgrid(LON, LAT)
    attrs = {name: {"standard_name": name} for name in ("latitude", "longitude")}
    rotated = raw.assign_coords(
        nav_lat=(("rlat", "rlon"), lat2d, attrs["latitude"]), nav_lon=(("rlat", "rlon"), lon2d, attrs["longitude"])
    ).assign(rotated_pole=((), b"", {"grid_mapping_name": "rotated_latitude_longitude"}))
    rotated["tasmax"].attrs["grid_mapping"] = "rotated_pole"
    ds = open_match(match(asset(store(rotated, tmp_path / "a.nc"), "tasmax")))
    assert ds["tasmax"].dims == ("time", "rlat", "rlon")
    assert set(ds.coords) == {"time", "rlat", "rlon", "lat", "lon"}
    np.testing.assert_array_equal(ds["lat"], lat2d)


class _Payload:
    """An object whose pickle, when it is read, makes a file."""

    def __init__(self, made: Path) -> None:
        self._made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._made,)


def hostile(path: Path, made: Path, kind: str) -> Path:
    """Write a Zarr 2 store with the codec `pickle` for a coordinate, which makes a file when it is decoded.

    Zarr looks at the first codec of text alone, so that `pickle` behind it is not seen. If `kind` is "consolidated",
    only the consolidated metadata name it.
    """
    coords = {"time": np.arange(3.0), "lat": LAT, "lon": LON, "place": np.array(["here"], object)}
    ds = xr.Dataset({"tasmax": (("time", "lat", "lon"), np.zeros((3, 3, 4), "f4"), {"units": "K"})}, coords)
    ds["time"].attrs = {"units": "days since 2000-01-01", "calendar": "noleap"}
    ds.to_zarr(path, zarr_format=2, consolidated=kind == "consolidated")
    text, pickled = {"id": "vlen-utf8"}, {"id": "pickle", "protocol": 5}
    metadata = path / (".zmetadata" if kind == "consolidated" else "place/.zarray")
    content = json.loads(metadata.read_text())
    array = content["metadata"]["place/.zarray"] if kind == "consolidated" else content
    compressed = kind == "compressor"
    array |= {"filters": [text] if compressed else [text, pickled], "compressor": pickled if compressed else None}
    metadata.write_text(json.dumps(content))
    (path / "place" / "0").write_bytes(pickle.dumps(_Payload(made)))
    return path


@pytest.fixture
def pickles_are_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have numcodecs decode pickles, as its versions before 0.16.6 do, and Zarr let it, as its older versions do."""
    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
    with zarr.config.set({"array.allow_unsafe_pickle_decode": True}):
        yield


@pytest.mark.usefixtures("pickles_are_read")
@pytest.mark.parametrize("kind", ["filter", "compressor", "consolidated", "archive", "url"])
def test_a_store_whose_codec_runs_code_is_refused_and_nothing_runs(tmp_path: Path, kind: str) -> None:
    made = tmp_path / "made"
    path = hostile(tmp_path / "a.zarr", made, kind)
    place = str(path)
    if kind == "archive":
        place = shutil.make_archive(str(path), "zip", path)
    if kind == "url":
        place = path.as_uri()
    each = replace(asset(path, "tasmax"), path=place)
    with pytest.raises(DataError, match=r"a\.zarr(\.zip)? \(id CMIP6_M\): the codec pickle of place is not one that"):
        open_match(match(each))
    assert tracking_id(place) == ""
    assert not made.exists()
    # The store does what it is for: where nobody looks at the codecs, its code runs.
    with contextlib.suppress(Exception):
        xr.open_dataset(str(path), engine="zarr", consolidated=kind == "consolidated").load()
    assert made.exists()


@pytest.mark.parametrize("inside_of_shards", [False, True])
def test_a_codec_of_objects_of_a_zarr_3_store_is_refused(tmp_path: Path, inside_of_shards: bool) -> None:
    path = store(daily(), tmp_path / "a.zarr")
    metadata = path / "tasmax" / "zarr.json"
    content = json.loads(metadata.read_text())
    plain = [{"name": "bytes", "configuration": {"endian": "little"}}]
    objects = [{"name": "vlen-bytes", "configuration": {}}]
    shards = {"chunk_shape": content["shape"], "codecs": objects, "index_codecs": plain, "index_location": "end"}
    content["chunk_grid"]["configuration"]["chunk_shape"] = content["shape"]
    content["codecs"] = [{"name": "sharding_indexed", "configuration": shards}] if inside_of_shards else objects
    content |= {"data_type": "variable_length_bytes", "fill_value": ""}
    metadata.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"a\.zarr \(id CMIP6_M\): the codec vlen-bytes of tasmax is not one that"):
        open_match(match(asset(path, "tasmax")))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_text_and_lossy_filters_of_numbers_are_no_reason_to_refuse_a_store(tmp_path: Path, zarr_format: int) -> None:
    raw = daily().drop_vars("time_bnds").assign_coords(place=("place", np.array(["here", "there"], object)))
    lossy = numcodecs.BitRound(12) if zarr_format == 2 else numcodecs.zarr3.BitRound(keepbits=12)
    raw.to_zarr(tmp_path / "a.zarr", zarr_format=zarr_format, encoding={"tasmax": {"filters": [lossy]}})
    found = open_match(match(asset(tmp_path / "a.zarr", "tasmax")))
    np.testing.assert_allclose(found["tasmax"], raw["tasmax"], rtol=1e-3)


@pytest.mark.usefixtures("pickles_are_read")
def test_a_file_that_another_package_would_read_by_its_name_is_refused(tmp_path: Path) -> None:
    made = tmp_path / "made"
    held = hostile(tmp_path / "a.zarr", made, "filter")
    texts = {str(file.relative_to(held)): file for file in held.rglob("*") if file.name.startswith(".z")}
    chunk = {"place/0": "base64:" + base64.b64encode((held / "place" / "0").read_bytes()).decode()}
    references = tmp_path / "a.json"
    references.write_text(json.dumps({name: file.read_text() for name, file in texts.items()} | chunk))
    with pytest.raises(DataError, match=r"a\.json \(id CMIP6_M\): by its name, xarray would read it with kerchunk"):
        open_match(match(asset(references, "tasmax")))
    with pytest.raises(DataError, match=r"by its name, xarray would read it with kerchunk"):
        open_grid(asset(references, "tasmax"), {})
    assert tracking_id(str(references)) == ""
    assert not made.exists()


@pytest.mark.parametrize("kind", ["nc", "zarr"])
def test_coordinates_may_have_the_names_of_era5_since_2024(tmp_path: Path, kind: str) -> None:
    ds = daily().drop_vars("time_bnds")
    names = {"time": "valid_time", "lat": "latitude", "lon": "longitude"}
    path, plain = tmp_path / f"a.{kind}", store(ds, tmp_path / "b.nc")
    renamed = ds.rename(names).assign_coords(number=0, time=0.0, expver=("valid_time", np.ones(ds.sizes["time"], int)))
    encoding = {"valid_time": {"units": "days since 1850-01-01", "dtype": "float64"}}
    renamed.to_netcdf(path, encoding=encoding) if kind == "nc" else renamed.to_zarr(path, encoding=encoding)
    opened = open_match(match(asset(path, "tasmax"), period=("2000", "2001")))
    expected = open_match(match(asset(plain, "tasmax"), period=("2000", "2001")))
    xr.testing.assert_equal(opened, expected)
    assert opened.tasmax.chunks == expected.tasmax.chunks or kind == "zarr"


def test_preliminary_values_of_era5_take_the_place_of_final_ones_that_are_missing(tmp_path: Path) -> None:
    ds = daily()
    final, preliminary = ds.tasmax.copy(), ds.tasmax + 1
    final[-60:], preliminary[:-90] = np.nan, np.nan
    versions = xr.concat([preliminary, final], "expver").transpose("time", ...)
    both = ds.assign(tasmax=versions.assign_attrs(units="K"), expver=("expver", [5, 1]))
    opened = open_match(match(asset(store(both, tmp_path / "a.nc"), "tasmax"), period=("2000", "2001")))
    np.testing.assert_array_equal(opened.tasmax, ds.tasmax.where(ds.time < ds.time[-60], ds.tasmax + 1))
    assert opened.tasmax.dtype == "float32" and opened.tasmax.attrs["units"] == "K"


@pytest.mark.parametrize("calendar", ["noleap", "standard"])
@pytest.mark.parametrize("zone", ["", " +0100", " +01:00", "+1:00", " -11:30", "Z", " UTC", " 9:00"])
def test_a_day_is_that_of_the_time_zone_in_the_units_of_time(tmp_path: Path, zone: str, calendar: str) -> None:
    """xarray would convert the dates to UTC, on which a midnight of the east is of the day before."""
    path = tmp_path / "a.nc"
    ds = daily(calendar=calendar, hour=0).drop_vars("time_bnds").isel(lat=[0], lon=[0])
    numbers = np.arange(ds.sizes["time"], dtype=float)
    units = {"units": f"days since 2000-01-01 00:00:00{zone}", "calendar": calendar}
    ds.assign_coords(time=("time", numbers, units)).to_netcdf(path)
    opened = open_match(match(asset(path, "tasmax"), period=("2000", "2001")))
    assert [str(opened.time.values[at])[:10] for at in (0, -1)] == ["2000-01-01", "2001-12-31"]
    np.testing.assert_array_equal(opened.tasmax, ds.tasmax)


@pytest.mark.parametrize("combine", [{}, {"combine_attrs": "override"}])
def test_the_institution_is_the_scenarios_where_the_history_has_another(
    tmp_path: Path, combine: dict[str, Any]
) -> None:
    history = daily().assign_attrs(institution_id="MPI-M")
    scenario = daily(start="2002-01-01", end="2003-12-31").assign_attrs(institution_id="DKRZ")
    paths = [store(ds, tmp_path / f"{number}.nc") for number, ds in enumerate((history, scenario))]
    both = match(asset(paths[0], "tasmax"), asset(paths[1], "tasmax", "2002-01-01", "2003-12-31"))
    named = replace(both, columns=both.columns | {"institution": "DKRZ"})
    opened = open_match(named, xr_combine_kwargs=combine)
    assert opened.attrs["institution_id"] == opened.attrs["cat:institution"] == "DKRZ"


def test_dimensions_of_the_same_grid_may_have_other_names(tmp_path: Path) -> None:
    """WRF361H's scenarios: the same 2-D coordinates along rlat and rlon, and along y and x."""
    lat, lon = np.meshgrid(LAT, LON, indexing="ij")

    def curvilinear(start: str, end: str, y: str, x: str) -> xr.Dataset:
        ds = daily(start=start, end=end).drop_vars("time_bnds").rename(lat=y, lon=x).drop_vars([y, x])
        ds = ds.assign_coords(lat=((y, x), lat), lon=((y, x), lon))
        return ds.assign_coords(rlat=[0.0, 1.0, 2.0], rlon=[0.0, 1.0, 2.0, 3.0]) if y == "rlat" else ds

    parts = [curvilinear("2000-01-01", "2001-12-31", "rlat", "rlon"), curvilinear("2002-01-01", "2003-12-31", "y", "x")]
    paths = [store(part, tmp_path / f"{number}.nc") for number, part in enumerate(parts)]
    assets = [asset(paths[0], "tasmax"), asset(paths[1], "tasmax", "2002-01-01", "2003-12-31")]
    box = {"name": "box", "lon_bnds": (250, 265), "lat_bnds": (40, 50)}
    for ordered in (assets, assets[::-1]):
        opened = open_match(match(*ordered))
        np.testing.assert_array_equal(opened.tasmax, np.concatenate([part.tasmax for part in parts]))
        assert opened.tasmax.dims == ("time", *opened.lat.dims)
        assert examine_match(match(*ordered), period=("2000", "2003"), regions=[box], limits={}) == []
    # As other tools write them: 2-D coordinates in another order, and the wanted names for something else.
    for change in (
        parts[1].rename(y="rlat", x="rlon").transpose("rlon", "rlat", "time"),
        parts[1].assign_coords(rlat=(("y", "x"), lat), rlon=(("y", "x"), lon)),
    ):
        changed = [assets[0], replace(assets[1], path=str(store(change, tmp_path / "changed.nc")))]
        xr.testing.assert_equal(open_match(match(*changed)).tasmax, open_match(match(*assets)).tasmax)
    moved = parts[1].assign_coords(lat=parts[1].lat + 0.5)
    other = [assets[0], replace(assets[1], path=str(store(moved, tmp_path / "moved.nc")))]
    with pytest.raises(DataError, match="are on different grids"):
        open_match(match(*other))
