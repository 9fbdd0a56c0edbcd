"""Times as files have them: read where their meaning is certain, else refused in a sentence that shows them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import cftime
import netCDF4
import numpy as np
import pytest
import xarray as xr

from espo_luigi.catalog import Asset, Match, open_match
from espo_luigi.catalog.build import describe
from espo_luigi.errors import DataError, EspoError

DAYS = np.arange(366)
DATES = np.array([int(day.strftime("%Y%m%d")) for day in cftime.num2date(DAYS, "days since 2000-01-01")])
ABSOLUTE = "day as %Y%m%d.%f"


def write(
    folder: Path, times: Any, units: str | None, calendar: str | None = None, *, name: str = "time", bounds: Any = None
) -> Path:
    """Write a file of a year of 2 x 2 cells; with bounds of the times, if any."""
    with netCDF4.Dataset(folder / "a.nc", "w") as file:
        for dim, size in ((name, None), ("lat", 2), ("lon", 2), ("bnds", 2)):
            file.createDimension(dim, size)
        time = file.createVariable(name, "f8", (name,))
        time.setncatts({key: text for key, text in (("units", units), ("calendar", calendar)) if text is not None})
        for dim, start in (("lat", 45.0), ("lon", 10.0)):
            file.createVariable(dim, "f8", (dim,))[:] = start + np.arange(2)
        data = file.createVariable("tasmax", "f4", (name, "lat", "lon"))
        data.units = "K"
        if len(times):
            time[:] = times
            data[:] = 280 + np.arange(len(times))[:, None, None] * np.ones((1, 2, 2))
        if bounds is not None:
            time.bounds = "time_bnds"
            file.createVariable("time_bnds", "f8", (name, "bnds"))[:] = bounds
    return folder / "a.nc"


def opened(path: Path) -> xr.Dataset:
    columns = {"id": "M", "xrfreq": "D", "variable": "('tasmax',)", "format": "nc", "path": str(path)}
    asset = Asset(columns, ("tasmax",), str(path))
    return open_match(Match("M", (asset,), ("tasmax",), periods=(("2000", "2001"),), columns=columns))


KNOWN: dict[str, tuple[Any, str | None, str | None]] = {
    "absolute": (DATES + 0.5, ABSOLUTE, "proleptic_gregorian"),
    "absolute in a calendar": (np.delete(DATES, 59) + 0.5, ABSOLUTE, "365_day"),
    "dates by name": (DATES, "YYYYMMDD", None),
    "dates by format": (DATES, "%Y%m%d", "standard"),
    "dates without units": (DATES, None, None),
    "capitals": (DAYS + 0.5, "Days Since 2000-01-01", None),
    "all capitals": (DAYS * 24, "HOURS SINCE 2000-01-01 00:00:00", "GREGORIAN"),
    "no calendar": (DAYS, "days since 2000-01-01", ""),
    "365_days": (DAYS[:365], "days since 2000-01-01", "365_days"),
    "no_leap": (DAYS[:365], "days since 2000-01-01", "no_leap"),
    "360_days": (DAYS[:360], "days since 2000-01-01", "360_days"),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_times_of_certain_meaning_are_read(tmp_path: Path, kind: str) -> None:
    times, units, calendar = KNOWN[kind]
    path = write(tmp_path, times, units, calendar)
    found = opened(path)
    expected = {365: "noleap", 360: "360_day", 366: "proleptic_gregorian"}[len(times)]
    assert found["time"].dt.calendar == expected
    days = xr.date_range("2000-01-01", periods=len(times), freq="D", calendar=expected, use_cftime=True)
    assert [str(day)[:10] for day in found["time"].values] == [str(day)[:10] for day in days]
    np.testing.assert_array_equal(found["tasmax"][:, 0, 0], np.float32(280 + np.arange(len(times))))
    row = describe(path, "M")
    assert (row["date_start"][:10], row["xrfreq"]) == ("2000-01-01", "D")


@pytest.mark.parametrize(
    ("stamps", "units"), [(DATES, ABSOLUTE), (DAYS, "Days Since 2000-01-01")], ids=["absolute", "capitals"]
)
def test_stamps_at_the_end_of_a_day_are_of_that_day_by_their_bounds(
    tmp_path: Path, stamps: np.ndarray, units: str
) -> None:
    path = write(tmp_path, stamps[1:], units, bounds=np.stack([stamps[:-1], stamps[1:]], 1))
    assert [str(opened(path)["time"].values[at])[:10] for at in (0, 59, -1)] == [
        "2000-01-01",
        "2000-02-29",
        "2000-12-30",
    ]


@pytest.mark.parametrize("calendar", ["standard", "360_day"])
@pytest.mark.parametrize("middle", [0, 0.5])
def test_whole_months_are_months_and_no_days(tmp_path: Path, calendar: str, middle: float) -> None:
    path = write(tmp_path, np.arange(24) + middle, "months since 2000-01-01", calendar)
    row = describe(path, "M")
    assert (row["xrfreq"], row["date_start"][:7], row["date_end"][:7]) == ("MS", "2000-01", "2001-12")
    with pytest.raises(DataError, match="steps are 30"):
        opened(path)


UNKNOWN: dict[str, tuple[Any, str | None, str | None, str]] = {
    "units without a date": (DAYS, "days", None, "units 'days'"),
    "no units": (DAYS, None, None, "units ''"),
    "dates that are none": (DATES + 50, "YYYYMMDD", None, "units 'YYYYMMDD'"),
    "parts of months": (DAYS / 30.4, "months since 2000-01-01", "standard", "units 'months since 2000-01-01'"),
    "years": (DAYS / 365, "years since 2000-01-01", None, "units 'years since 2000-01-01'"),
    "no calendar at all": (DAYS, "days since 2000-01-01", "none", "calendar 'none'"),
    "an unknown calendar": (DATES, "YYYYMMDD", "lunar", "calendar 'lunar'"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_times_of_uncertain_meaning_are_refused_as_they_stand_with_the_remedy(tmp_path: Path, kind: str) -> None:
    times, units, calendar, said = UNKNOWN[kind]
    path = write(tmp_path, times, units, calendar)
    key = said.split()[0]
    for call in (opened, lambda path: describe(path, "M")):
        with pytest.raises(EspoError) as caught:
            call(path)
        told = str(caught.value)
        assert said in told and f"ncatted -a {key},time,o,c," in told
        assert "cftime" not in told and "decode_times" not in told


def test_a_refusal_names_the_time_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, DAYS, "days since 2000-01-01", "none", name="valid_time")
    with pytest.raises(EspoError, match="ncatted -a calendar,valid_time,o,c,"):
        describe(path, "M")


def test_a_file_without_steps_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [], "days since 2000-01-01")
    for call in (opened, lambda path: describe(path, "M")):
        with pytest.raises(EspoError, match="tasmax has no time step"):
            call(path)


def test_a_zarr_store_is_read_the_same_way(tmp_path: Path) -> None:
    with xr.open_dataset(write(tmp_path, DATES + 0.5, ABSOLUTE), decode_times=False) as ds:
        ds.load().drop_encoding().to_zarr(tmp_path / "a.zarr", consolidated=True)
    found = opened(tmp_path / "a.zarr")
    assert [str(found["time"].values[at])[:10] for at in (0, 59, -1)] == ["2000-01-01", "2000-02-29", "2000-12-31"]


@pytest.mark.skipif(shutil.which("cdo") is None, reason="CDO, the oracle, is not installed")
def test_absolute_times_as_cdo_writes_them_are_the_days_that_it_read(tmp_path: Path) -> None:
    path = write(tmp_path, DAYS + 1.0, "days since 2000-01-01", "standard", bounds=np.stack([DAYS, DAYS + 1], 1))
    subprocess.run(["cdo", "-s", "-a", "-f", "nc", "copy", str(path), str(tmp_path / "b.nc")], check=True)
    xr.testing.assert_equal(opened(tmp_path / "b.nc"), opened(path))
