"""Odd files, by generation: what is extracted and regridded is that of the plain file, or an error names the file."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from generated import examples
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from espo_luigi.catalog import Asset, Match, open_match
from espo_luigi.catalog.build import describe
from espo_luigi.catalog.examine import examine_match
from espo_luigi.errors import DataError
from espo_luigi.science.extract.dataset import extract
from espo_luigi.science.finalize.gaps import with_incomplete_cells
from espo_luigi.science.regrid import regrid
from espo_luigi.science.stack import stack_drop_nans

LAT, LON = np.arange(-87.5, 90, 5), np.arange(0.0, 360, 7.5)
PERIOD = ("2001", "2001")
CALENDARS = ("standard", "proleptic_gregorian", "noleap", "all_leap", "360_day")
# Each unit of tasmax and pr, with the whole numbers that a file has in it.
UNITS: dict[str, dict[str, tuple[int, int]]] = {
    "tasmax": {"K": (250, 320), "degC": (0, 45), "degF": (0, 110), "kelvin": (250, 320), "celsius": (0, 45)},
    "pr": {"mm d-1": (0, 90), "mm/day": (0, 90), "kg m-2 d-1": (0, 90), "kg m-2 s-1": (0, 0), "cm day-1": (0, 9)},
}
TYPES = ("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16")
# Hours after midnight of a stamp, whether it has bounds, and how many days its day begins before it.
STAMPS = {
    "noon": (12.0, False, 0),
    "midnight": (0.0, False, 0),
    "evening": (18.0, False, 0),
    "noon with bounds": (12.0, True, 0),
    "begin with bounds": (0.0, True, 0),
    "end with bounds": (24.0, True, 1),
    "a little early": (-5e-6 / 3600, False, 0),
}
BOXES = ((-20.0, 25.0), (170.0, 190.0), (340.0, 360.0), (-180.0, -150.0), (200.0, 260.0))
TARGET = xr.Dataset(coords={"lat": ("loc", [44.0, 47.3, 51.0]), "lon": ("loc", [0.0, 3.1, 6.2])})

FILES = st.fixed_dictionaries(
    {
        "variable": st.sampled_from(sorted(UNITS)),
        "unit": st.integers(0, 4),
        "dtype": st.sampled_from(TYPES),
        "packing": st.sampled_from(["no", "scale", "scale and offset"]),
        "missing": st.sampled_from(["none", "_FillValue", "missing_value"]),
        "dims": st.permutations(["time", "lat", "lon"]),
        "extra": st.booleans(),
        "stamps": st.sampled_from(sorted(STAMPS)),
        "time_units": st.sampled_from(
            ["days since 1850-01-01", "hours since 1949-12-01 06:00", "seconds since 2000-1-1"]
        ),
        "time_name": st.sampled_from(["time", "valid_time"]),
        "bounds_units": st.booleans(),
        "drop_variables": st.booleans(),
        "calendar": st.sampled_from(CALENDARS),
        "first_longitude": st.sampled_from([0.0, -180.0, -172.5, 97.5, -3.75]),
        "descending": st.sets(st.sampled_from(["lat", "lon"])),
        "coordinates": st.sampled_from(["float64", "float32"]),
        "names": st.sampled_from([("lat", "lon"), ("latitude", "longitude"), ("nav_lat", "nav_lon"), ("y", "x")]),
        "curvilinear": st.booleans(),
        "format": st.sampled_from(["nc", "nc3", "zarr", "zarr2"]),
        "box": st.sampled_from(BOXES),
        "buffer": st.sampled_from([0, 1.5]),
    }
)


def plain(how: dict[str, Any]) -> xr.Dataset:
    """Whole numbers in a unit, as float64 of canonical units, on the grid that others are turned from."""
    unit, (low, high) = _unit(how)
    end = "30" if how["calendar"] == "360_day" else "31"
    time = xr.date_range("2001-01-01", f"2001-12-{end}", calendar=how["calendar"], use_cftime=True)
    lon = LON - 3.75 if how["first_longitude"] == -3.75 else LON
    rng = np.random.default_rng(len(unit))
    values = rng.integers(low, high + 1, (len(time), len(LAT), len(lon))).astype("float64")
    if how["missing"] != "none":
        values[5, 20, 2] = values[100:, 21, 3] = np.nan
    return xr.Dataset({how["variable"]: (("time", "lat", "lon"), values)}, {"time": time, "lat": LAT, "lon": lon})


def canonical(ds: xr.Dataset, how: dict[str, Any]) -> xr.Dataset:
    """What the file says, by hand."""
    unit, _ = _unit(how)
    factor = {"degF": 5 / 9, "cm day-1": 10 / 86400, "kg m-2 s-1": 1.0}.get(
        unit, 1 / 86400 if how["variable"] == "pr" else 1
    )
    offset = {"degC": 273.15, "celsius": 273.15, "degF": 459.67 * 5 / 9}.get(unit, 0.0)
    data = ds[how["variable"]] * factor + offset
    units = {"tasmax": "K", "pr": "kg m-2 s-1"}[how["variable"]]
    return ds.assign({how["variable"]: data.assign_attrs(units=units)})


def _unit(how: dict[str, Any]) -> tuple[str, tuple[int, int]]:
    return list(UNITS[how["variable"]].items())[how["unit"]]


def write(ds: xr.Dataset, how: dict[str, Any], folder: Path) -> Path:
    """Write numbers as a centre might."""
    name = how["variable"]
    data = ds[name].assign_attrs(units=_unit(how)[0])
    lon = data["lon"].values
    turned = (lon - how["first_longitude"]) % 360 + how["first_longitude"]
    data = data.assign_coords(lon=turned).sortby("lon")
    for dim in how["descending"]:
        data = data.isel({dim: slice(None, None, -1)})
    data = data.assign_coords({dim: data[dim].astype(how["coordinates"]) for dim in ("lat", "lon")})
    stored = _with_stamps(data.to_dataset(), how)
    if how["extra"]:
        stored = stored.assign({name: stored[name].expand_dims(height=[2.0], axis=1)})
    stored[name] = stored[name].transpose(*[dim for dim in stored[name].dims if dim == "height"], *how["dims"])
    stored = _with_names(stored, how)
    packed, encoding = _packing(how)
    time = {"units": how["time_units"], "dtype": "float64", "calendar": how["calendar"]}
    encodings: dict[str, Any] = {name: {"dtype": packed, **encoding}, "time": time}
    if "time_bnds" in stored:
        encodings["time_bnds"] = {**time, "units": "days since 1900-01-01"} if how["bounds_units"] else time
    if how["time_name"] != "time":
        stored, encodings[how["time_name"]] = stored.rename(time=how["time_name"]), encodings.pop("time")
    path = folder / f"{name}_day_Odd_historical_r1i1p1f1_gn_20010101-20011231.{how['format'][:4]}"
    if how["format"].startswith("zarr"):
        stored.to_zarr(path, encoding=encodings, zarr_format=2 if how["format"] == "zarr2" else 3, consolidated=False)
        return path
    path = path.with_suffix(".nc")
    stored.to_netcdf(path, encoding=encodings, format="NETCDF3_64BIT" if how["format"] == "nc3" else "NETCDF4")
    return path


def _with_stamps(ds: xr.Dataset, how: dict[str, Any]) -> xr.Dataset:
    hours, has_bounds, _ = STAMPS[how["stamps"]]
    days = ds.indexes["time"]
    stamped = ds.assign_coords(time=xr.CFTimeIndex([day + datetime.timedelta(hours=hours) for day in days]))
    if not has_bounds:
        return stamped
    bounds = np.stack([days.values, days.values + datetime.timedelta(days=1)], axis=1)
    stamped["time"].attrs["bounds"] = "time_bnds"
    return stamped.assign(time_bnds=(("time", "bnds"), bounds))


def _with_names(ds: xr.Dataset, how: dict[str, Any]) -> xr.Dataset:
    lat, lon = how["names"]
    attrs = {"lat": {"standard_name": "latitude"}, "lon": {"standard_name": "longitude"}}
    named = ds.assign_coords({dim: ds[dim].assign_attrs(attrs[dim]) for dim in attrs})
    if not how["curvilinear"]:
        return named.rename(lat=lat, lon=lon)
    grid = xr.broadcast(named["lat"], named["lon"])
    bare = named.drop_vars(["lat", "lon"]).rename(lat="j", lon="i")
    names = (lat, lon) if lat != "y" else ("lat", "lon")
    coords = {
        name: (("j", "i"), values.values, attrs[key])
        for name, key, values in zip(names, ("lat", "lon"), grid, strict=True)
    }
    return bare.assign_coords(coords)


def _packing(how: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The type in the file and how numbers are packed: what every type can hold of whole numbers to 320."""
    dtype = how["dtype"]
    if how["format"] == "nc3":
        dtype = {"uint8": "int16", "uint16": "int32", "int64": "int32", "float16": "float32"}.get(dtype, dtype)
    if dtype == "float16" and not how["format"].startswith("zarr"):
        dtype = "float32"
    low, high = UNITS[how["variable"]][_unit(how)[0]]
    packing: dict[str, Any] = {}
    integer = np.dtype(dtype).kind in "iu"
    offset = float(low if np.dtype(dtype).kind == "u" else high - 70)
    if integer and high > 100:
        dtype = {"int8": "int16", "uint8": "uint16"}.get(dtype, dtype) if how["packing"] == "no" else dtype
    if integer and how["packing"] != "no":
        packing = {"scale_factor": 1.0} | ({"add_offset": offset} if "offset" in how["packing"] else {})
        if "offset" not in how["packing"] and high > 100:
            dtype = {"int8": "int16", "uint8": "uint16"}.get(dtype, dtype)
    if how["missing"] != "none":
        fill = float("nan") if not integer else 99 + 21 if np.dtype(dtype).itemsize == 1 else 999
        if how["missing"] == "missing_value" and not integer:
            fill = 1e20 if dtype != "float16" else 6e4
        packing[how["missing"]] = np.dtype(dtype).type(fill)
    elif not integer:
        packing["_FillValue"] = None
    return dtype, packing


def match_of(path: Path, name: str) -> Match:
    columns = {
        "id": "odd", "date_start": "2001-01-01", "date_end": "2001-12-31", "path": str(path),
        "format": "zarr" if path.suffix == ".zarr" else "nc",
    }  # fmt: skip
    return Match("odd", (Asset(columns, (name,), str(path)),), (name,), periods=(PERIOD,), columns={"id": "odd"})


def by_place(ds: xr.Dataset, name: str) -> dict[tuple[float, float], np.ndarray]:
    """Each cell's series by its place, cells without any data left out."""
    stacked = ds[name].stack(cell=ds[name].dims[1:])
    lat, lon = (stacked[one].values for one in ("lat", "lon"))
    found = {
        (round(float(a), 2), round(float(b) % 360, 2)): values
        for a, b, values in zip(lat, lon, stacked.transpose("cell", "time").values, strict=True)
    }
    return {place: values for place, values in found.items() if np.isfinite(values).any()}


@settings(
    max_examples=examples(20),
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    derandomize=examples(1) == 1,
)
@given(how=FILES)
def test_an_odd_file_gives_what_the_plain_one_gives_or_an_error_names_it(
    how: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    name, ds = how["variable"], plain(how)
    region = {"name": "box", "lon_bnds": how["box"], "lat_bnds": (31.0, 64.0), "tile_buffer": how["buffer"]}
    asked: dict[str, Any] = {"variables_and_freqs": {name: "D"}, "period": PERIOD, "region": region}
    expected = extract(canonical(ds, how), **asked)
    path = write(ds, how, folder)
    kwargs = {"drop_variables": ["height", "time_bnds"]} if how["drop_variables"] else {}
    try:
        opened = open_match(match_of(path, name), xr_open_kwargs=kwargs)
        found = extract(opened, **asked)
    except DataError as error:
        assert str(path) in str(error)
        raise AssertionError(f"nothing is wrong with it: {error}") from error
    assert found[name].dtype in (np.float32, np.float64)
    series, wanted = by_place(found, name), by_place(expected, name)
    assert series.keys() == wanted.keys()
    for place, values in wanted.items():
        np.testing.assert_allclose(series[place], values, rtol=3e-7, atol=1e-12)
    assert (
        found.indexes["time"].equals(expected.indexes["time"])
        or list(found["time"].values) == list(expected["time"].values)
        or [str(one)[:10] for one in found["time"].values] == [str(one)[:10] for one in expected["time"].values]
    )
    problems = examine_match(match_of(path, name), period=PERIOD, regions=[region], limits={}, xr_open_kwargs=kwargs)
    assert {one.kind for one in problems} <= {"constant_series"}
    described = describe(path)
    assert (described["date_start"][:10], described["xrfreq"]) == ("2001-01-01", "D")
    _compare_regridded(found, expected, name, how)


def _compare_regridded(found: xr.Dataset, expected: xr.Dataset, name: str, how: dict[str, Any]) -> None:
    """Compare the field on points inside of the box."""
    middle = sum(how["box"]) / 2
    target = TARGET.assign_coords(lon=("loc", middle + np.array([-1.0, 0.4, 1.1])))
    one, other = (
        regrid(with_incomplete_cells(ds), target, regridder_kwargs={"extrap_method": "inverse_dist"})
        for ds in (found, expected)
    )
    np.testing.assert_allclose(one[name].values, other[name].values, rtol=1e-6, atol=1e-11)
    reference = stack_drop_nans(found)
    assert reference[name].dtype == found[name].dtype


DAMAGE = {
    "bounds in disorder": lambda ds: ds.assign(time_bnds=ds["time_bnds"].isel(bnds=[1, 0])),
    "bounds of nothing": lambda ds: ds.assign(time_bnds=ds["time_bnds"] * 0),
    "bounds of another month": lambda ds: ds.assign(time_bnds=ds["time_bnds"] + 31),
    "bounds of 30 years": lambda ds: ds.assign(time_bnds=ds["time_bnds"] + np.array([-5000, 5000])),
    "one bound": lambda ds: ds.drop_vars("time_bnds").assign(time_bnds=ds["time_bnds"].isel(bnds=0)),
    "units of two": lambda ds: ds.assign(tasmax=ds["tasmax"].assign_attrs(units="K count")),
    "units of percent": lambda ds: ds.assign(tasmax=ds["tasmax"].assign_attrs(units="percent K")),
    "a latitude that is none": lambda ds: ds.assign_coords(lat=ds["lat"].where(ds["lat"] != 42.5)),
    "a longitude that is none": lambda ds: ds.assign_coords(lon=ds["lon"].where(ds["lon"] != 7.5)),
    "rows in disorder": lambda ds: ds.isel(lat=np.r_[0:20, 22, 21, 20, 23:36]),
    "text": lambda ds: ds.assign(tasmax=ds["tasmax"].astype(str).assign_attrs(units="K")),
    "members": lambda ds: ds.assign(tasmax=ds["tasmax"].expand_dims(member=[1, 2])),
    "a time that is none": lambda ds: ds.assign_coords(time=ds["time"].where(ds["time"] != ds["time"][5])),
    "the last day": lambda ds: ds.isel(time=slice(0, -1)),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_what_makes_no_sense_is_an_error_that_names_the_file(tmp_path: Path, damage: str, suffix: str) -> None:
    days, time = np.arange(365.0), {"units": "days since 2001-01-01", "calendar": "noleap"}
    values = np.random.default_rng(1).uniform(270, 300, (365, len(LAT), len(LON))).astype("float32")
    good = xr.Dataset(
        {
            "tasmax": (("time", "lat", "lon"), values, {"units": "K"}),
            "time_bnds": (("time", "bnds"), np.stack([days, days + 1], 1)),
        },
        {"time": ("time", days + 0.5, {**time, "bounds": "time_bnds"}), "lat": LAT, "lon": LON},
    )
    path = tmp_path / f"odd.{suffix}"
    bad = DAMAGE[damage](good)
    bad["time"].attrs = good["time"].attrs
    bad.to_netcdf(path) if suffix == "nc" else bad.to_zarr(path, consolidated=False)
    region = {"name": "box", "lon_bnds": (-20.0, 25.0), "lat_bnds": (31.0, 64.0), "tile_buffer": 1.5}
    problems = examine_match(match_of(path, "tasmax"), period=PERIOD, regions=[region], limits={})
    assert problems and {one.file for one in problems} == {str(path)}
    with pytest.raises(DataError):
        extract(open_match(match_of(path, "tasmax")), variables_and_freqs={"tasmax": "D"}, period=PERIOD, region=region)


def test_bounds_that_make_no_sense_outside_of_the_period_do_not_matter(tmp_path: Path) -> None:
    days = np.arange(730.0)
    bounds = np.stack([days, days + 1], 1)
    bounds[400] = 0
    values = np.random.default_rng(1).uniform(270, 300, (730, 4, 4)).astype("float32")
    attrs = {"units": "days since 2001-01-01", "calendar": "noleap", "bounds": "time_bnds"}
    coords = {"time": ("time", days + 1, attrs), "lat": LAT[20:24], "lon": LON[20:24]}
    data = {"tasmax": (("time", "lat", "lon"), values, {"units": "K"}), "time_bnds": (("time", "bnds"), bounds)}
    xr.Dataset(data, coords).to_netcdf(tmp_path / "a.nc")
    found = open_match(match_of(tmp_path / "a.nc", "tasmax"))
    np.testing.assert_array_equal(found["tasmax"], values[:365])
