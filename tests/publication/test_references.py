"""References of kerchunk to files whose chunks differ, beside xarray's own reading of the files."""

import json
from pathlib import Path
from typing import Any

import exported_products as made
import numpy as np
import pytest
import xarray as xr

from espo_luigi.publication.references import references

pytest.importorskip("kerchunk")
pytestmark = pytest.mark.filterwarnings("ignore")


def write(folder: Path, name: str, part: xr.Dataset, **encoding: Any) -> Path:
    """Write a file with bounds of time, whose chunks have all of its days, as `espo export` does."""
    days = part.sizes["time"]
    bounds = xr.DataArray(np.arange(2 * days, dtype="float64").reshape(days, 2), dims=("time", "bnds"))
    path = folder / f"{name}.nc"
    stored = {
        str(one): {"zlib": True, "shuffle": True, "chunksizes": (days, 2, 5)} | encoding for one in part.data_vars
    }
    time = {"time": {"units": "days since 1950-01-01", "dtype": "float64", "_FillValue": None}}
    part.assign(time_bnds=bounds).to_netcdf(path, encoding=stored | time, unlimited_dims=[])
    return path


def opened(folder: Path, files: list[Path]) -> list[xr.Dataset]:
    found = references(files, folder, str(folder))
    for number, one in enumerate(found):
        (folder / f"{number}.json").write_text(json.dumps(one))
    return [
        xr.open_dataset(str(folder / f"{number}.json"), engine="kerchunk", chunks={}) for number in range(len(found))
    ]


def test_a_shorter_last_file_begins_a_second_reference_and_both_hold_everything(tmp_path: Path) -> None:
    whole = made.on_map(years=5)
    years = {"a": ("2001", "2002"), "b": ("2003", "2004"), "c": ("2005", "2005")}
    files = [
        write(tmp_path, f"{var}_{name}", whole[[var]].sel(time=slice(*ends)))
        for var in ("tasmax", "tasmin")
        for name, ends in years.items()
    ]
    found = opened(tmp_path, files)
    assert [one.sizes["time"] for one in found] == [4 * 365, 365]
    joined = xr.concat(found, "time", data_vars="minimal", coords="minimal", compat="override")
    for var in ("tasmax", "tasmin"):
        in_files = xr.open_mfdataset([path for path in files if path.name.startswith(var)])
        np.testing.assert_array_equal(joined[var], in_files[var])
        np.testing.assert_array_equal(joined[var], whole[var])
        np.testing.assert_array_equal(joined["time_bnds"], in_files["time_bnds"])
    assert list(joined["time"].values) == list(whole["time"].values)


def test_files_that_are_stored_differently_are_not_joined(tmp_path: Path) -> None:
    whole = made.on_map(years=2)[["tasmax"]]
    first = write(tmp_path, "a", whole.sel(time="2001"))
    second = write(tmp_path, "b", whole.sel(time="2002"), complevel=9, shuffle=False)
    found = opened(tmp_path, [first, second])
    assert [one["time"].dt.year.values[0] for one in found] == [2001, 2002]
    np.testing.assert_array_equal(xr.concat(found, "time", data_vars="minimal")["tasmax"], whole["tasmax"])


def test_attributes_that_differ_between_files_are_left_out(tmp_path: Path) -> None:
    whole = made.on_map(years=2)[["tasmax"]]
    files = [
        write(tmp_path, year, whole.sel(time=year).assign_attrs(title="T", tracking_id=year))
        for year in ("2001", "2002")
    ]
    (found,) = opened(tmp_path, files)
    assert found.attrs["title"] == "T" and "tracking_id" not in found.attrs
