"""Catalogues and raw files of others: no code of theirs runs, and no file elsewhere becomes data."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import pickle
import re
import struct
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.registry import _registry
from pydantic import ValidationError

from espo_luigi.catalog import Asset, Catalog, Match, make_catalog, open_match, read_catalogue
from espo_luigi.catalog.files import open_zarr, tracking_id
from espo_luigi.catalog.open import open_grid
from espo_luigi.config.searching import ExtractDataset
from espo_luigi.errors import CatalogError, DataError, StoreError
from espo_luigi.store import Marker, open_store, write_store
from espo_luigi.store.identity import identity_of
from espo_luigi.store.marker import read_marker
from espo_luigi.store.read import ClosedStore, DenseStore, check_inside

SECRET = b"the private key of the user" * 40


def daily() -> xr.Dataset:
    time = xr.date_range("2000-01-01", "2000-02-19", freq="D", calendar="noleap", use_cftime=True)
    values = np.full((time.size, 3, 4), 280, "f4")
    coords = {"time": time, "lat": [40.0, 45, 50], "lon": [250.0, 255, 260, 265]}
    return xr.Dataset({"tasmax": (("time", "lat", "lon"), values, {"units": "K"})}, coords)


def match(path: str | Path) -> Match:
    columns = {"id": "M", "variable": "tasmax", "xrfreq": "D", "path": str(path)}
    asset = Asset(columns, ("tasmax",), str(path))
    return Match("M", (asset,), ("tasmax",), periods=(("2000", "2000"),), columns={"id": "M"})


@pytest.fixture
def private(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "id_rsa"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    return path


class _Payload:
    """An object whose pickle, when it is read, makes a file."""

    def __init__(self, made: Path) -> None:
        self._made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._made,)


@pytest.mark.parametrize(
    "path",
    [
        *("reference::file://{0}", "filecache::file://{0}", "simplecache::https://h/a.zarr", "zip://a::file://{0}"),
        *(
            "reference://{0}",
            "http://h/a.nc",
            "ftp://h/a.nc",
            "FILE://{0}",
            "memory://a",
            "github://a:b@/c",
            "dods://h/a",
        ),
        *("/data/reference::file://{0}", "file://reference::file://{0}", "https://h/a.nc#mode=zarr,file", "s3://"),
        *("[mode=zarr]file://{0}", "https://h/a.nc?u=file://{0}", "simplecache::{0}"),
    ],
)
def test_chained_urls_and_those_of_other_schemes_are_faults_of_their_rows_and_never_opened(
    path: str, tmp_path: Path
) -> None:
    path = path.format(tmp_path / "a.json")
    table = tmp_path / "cat.csv"
    table.write_text(f'id,variable,xrfreq,path\nM,tasmax,D,"{path}"\n')
    (tmp_path / "cat.json").write_text('{"catalog_file": "cat.csv"}')
    (asset,) = read_catalogue(tmp_path / "cat.json")
    expected = "expected the path of a file or store, or a URL that begins with file:///, s3:// or https://"
    assert expected in asset.faults["path"]
    with pytest.raises(DataError, match="expected the path of a file or store, or a URL"):
        open_match(match(path))
    with pytest.raises(DataError, match="expected the path of a file or store, or a URL"):
        open_grid(match(path).assets[0], {"engine": "h5netcdf"})
    assert tracking_id(path) == ""


def test_a_file_url_is_the_path_and_links_at_its_end_are_followed(tmp_path: Path) -> None:
    (tmp_path / "v2019").mkdir()
    daily().to_netcdf(tmp_path / "v2019" / "a.nc")
    (tmp_path / "latest").symlink_to("v2019")
    url = f"file://{tmp_path}/latest/a.nc"
    (tmp_path / "cat.csv").write_text(f"id,variable,xrfreq,path\nM,tasmax,D,{url}\n")
    (tmp_path / "cat.json").write_text('{"catalog_file": "cat.csv"}')
    (asset,) = read_catalogue(tmp_path / "cat.json")
    assert asset.path == str(tmp_path / "latest" / "a.nc") and not asset.faults
    for path in (asset.path, url):
        assert float(open_match(match(path))["tasmax"].mean()) == 280


def with_a_pickle(folder: Path, made: Path) -> Path:
    """Write a kerchunk reference whose coordinate, when it is decoded, makes a file."""
    array = {"shape": [1], "chunks": [1], "dtype": "|O", "fill_value": None, "order": "C", "zarr_format": 2}
    codecs = {"filters": [{"id": "vlen-utf8"}, {"id": "pickle", "protocol": 5}], "compressor": None}
    chunk = "base64:" + base64.b64encode(pickle.dumps(_Payload(made))).decode()
    refs = {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(array | codecs), "x/0": chunk}
    path = folder / "refs.json"
    path.write_text(json.dumps({"version": 1, "refs": refs | {"x/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}'}}))
    return path


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "kerchunk"},
        {"engine": "zarr", "backend_kwargs": {"storage_options": {"protocol": "reference", "fo": "{0}"}}},
        {"engine": "zarr", "chunk_store": "reference::file://{0}"},
        {"engine": "zarr", "backend_kwargs": {"chunk_store": "reference::file://{0}"}},
        {"storage_options": {"https": {"fo": "{0}"}}},
        {"engine": "netcdf4", "mode": "w"},
        {"engine": "h5netcdf", "driver": "family"},
        {"from_array_kwargs": {"meta": 1}},
        *({"backend_kwargs": 5}, {"backend_kwargs": [{"mode": "w"}]}, {"storage_options": 0}),
        {"backend_kwargs": {"storage_options": "s3"}},
        {"storage_options": {"s3": [[{"fo": "{0}"}]]}},
    ],
)
def test_options_that_open_other_files_or_run_code_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    made = tmp_path / "made"
    reference = with_a_pickle(tmp_path, made)
    given = json.loads(json.dumps(options).replace("{0}", str(reference)))
    for path in (reference, f"file://{reference}"):
        with pytest.raises(DataError, match=r"xr_open_kwargs: got .*, expected (one of|no option|a mapping)"):
            open_match(match(path), xr_open_kwargs=given)
    with pytest.raises(ValidationError, match=r"got .*, expected (one of|no option|a mapping)"):
        ExtractDataset(xr_open_kwargs=given)
    assert not made.exists()


def kept_elsewhere(path: Path, private: Path, how: str) -> Path:
    """Write a NetCDF-4 file of which one part is in a private file, in one of the ways of HDF5."""
    daily().to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "a") as file:
        shape, scales = file["tasmax"].shape, [file["tasmax"].dims[n][0] for n in range(3)]
        del file["tasmax"]
        if how == "storage":
            data = file.create_dataset("tasmax", shape, "f4", external=[(str(private), 0, h5py.h5f.UNLIMITED)])
        elif how == "virtual":
            layout = h5py.VirtualLayout(shape, "f4")
            layout[...] = h5py.VirtualSource(str(private), "tasmax", shape)
            data = file.create_virtual_dataset("tasmax", layout)
        else:
            file["tasmax"] = h5py.ExternalLink(str(private), "tasmax")
            return path
        data.attrs["units"] = "K"
        for number, scale in enumerate(scales):
            data.dims[number].attach_scale(scale)
    return path


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
@pytest.mark.parametrize("how", ["storage", "virtual", "link"])
def test_hdf5_values_of_another_file_are_refused(how: str, engine: str, tmp_path: Path, private: Path) -> None:
    if how != "storage":
        daily().to_netcdf(private, engine="h5netcdf")
    path = kept_elsewhere(tmp_path / "a.nc", private, how)
    with pytest.raises(DataError, match=r"a\.nc \(id M\): .*tasmax (is a link to|are in) .*id_rsa, another file"):
        open_match(match(path), xr_open_kwargs={"engine": engine})
    with pytest.raises(DataError, match="another file"):
        open_match(match(f"file://{path}"), xr_open_kwargs={"engine": engine})
    with pytest.raises(CatalogError, match="another file"):
        make_catalog(tmp_path, tmp_path / "cat.json", source="M")


def test_hdf5_links_within_the_file_stay_readable(tmp_path: Path) -> None:
    daily().to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    with h5py.File(tmp_path / "a.nc", "a") as file:
        file["other"] = h5py.SoftLink("/tasmax")
    assert float(open_match(match(tmp_path / "a.nc"))["tasmax"].mean()) == 280


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_groups_in_themselves_are_refused_in_which_netcdf_goes_round_for_ever(kind: str, tmp_path: Path) -> None:
    daily().to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
    with h5py.File(tmp_path / "a.nc", "a") as file:
        file.create_group("group")
        file["group/loop"] = file["/group"] if kind == "hard" else h5py.SoftLink("/")
    with pytest.raises(DataError, match=r"loop is (there twice|a link to a group)"):
        open_match(match(tmp_path / "a.nc"))


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("what", ["chunk", "attributes", "array", "folder of chunks", "root"])
def test_a_part_of_a_zarr_store_that_is_a_link_out_of_it_is_refused(
    what: str, zarr_format: int, tmp_path: Path, private: Path
) -> None:
    path = tmp_path / "a.zarr"
    daily().to_zarr(path, zarr_format=zarr_format, consolidated=False, encoding={"tasmax": {"compressors": None}})
    parts = {
        "chunk": ["tasmax/0.0.0", "tasmax/c/0/0/0"],
        "attributes": ["tasmax/.zattrs", "tasmax/zarr.json"],
        "array": ["tasmax", "tasmax"],
        "folder of chunks": ["tasmax/0.0.0", "tasmax/c"],
        "root": [".zattrs", "zarr.json"],
    }
    part = path / parts[what][zarr_format - 2]
    moved = private.with_name("moved")
    part.rename(moved)
    part.symlink_to(moved)
    with pytest.raises((DataError, StoreError), match=r"is a link to .*moved, out of the store"):
        open_match(match(path))["tasmax"].load()
    part.unlink()
    moved.rename(path / "inside")
    part.symlink_to(os.path.relpath(path / "inside", part.parent))
    assert float(open_match(match(path))["tasmax"].load().mean()) == 280


@pytest.mark.parametrize(
    "kind", [ClosedStore.at, lambda path: DenseStore(ClosedStore.at(path), path, identity_of(path))]
)
def test_zarrs_reads_of_several_keys_do_not_pass_by_the_check(kind: Any, tmp_path: Path, private: Path) -> None:
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "x").symlink_to(private)
    store, prototype = kind(tmp_path / "a.zarr"), zarr.core.buffer.default_buffer_prototype()

    async def many() -> None:
        async for _ in store._get_many([("x", prototype, None)]):
            pass

    for reads in (many(), store.get_partial_values(prototype, [("x", None)])):
        with pytest.raises(StoreError, match="out of the store"):
            asyncio.run(reads)


def test_a_classic_file_that_gzip_compressed_is_read(tmp_path: Path) -> None:
    daily().to_netcdf(tmp_path / "a.nc", format="NETCDF3_CLASSIC")
    (tmp_path / "a.nc.gz").write_bytes(gzip.compress((tmp_path / "a.nc").read_bytes()))
    xr.testing.assert_identical(
        open_match(match(tmp_path / "a.nc.gz")).load(), open_match(match(tmp_path / "a.nc")).load()
    )


def test_an_archive_whose_header_names_gigabytes_is_not_read(tmp_path: Path) -> None:
    name = b"espo.json"
    path = tmp_path / "a.zarr.zip"
    header = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 2**32 - 2, len(name), 0)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 4, len(header + name), 0)
    path.write_bytes(header + name + b"PK\1\2" + end)
    tracemalloc.start()
    assert read_marker(path) is None
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_a_store_behind_a_link_is_read_and_one_of_ours_has_no_links_out_of_it(tmp_path: Path, private: Path) -> None:
    daily().to_zarr(tmp_path / "v2.zarr", consolidated=False)
    (tmp_path / "latest.zarr").symlink_to("v2.zarr")
    assert float(open_match(match(tmp_path / "latest.zarr"))["tasmax"].load().mean()) == 280
    ours = tmp_path / "ours.zarr"
    write_store(daily(), ours, chunks={"time": 50}, marker=Marker("Test"))
    chunk = ours / "tasmax" / "c" / "0" / "0" / "0"
    chunk.rename(private)
    chunk.symlink_to(private)
    with pytest.raises(StoreError, match="out of the store"):
        open_store(ours)["tasmax"].load()


@pytest.mark.parametrize("name", ["a.nc", "a.zarr", "a.zarr.zip"])
def test_pipes_and_devices_are_named_and_nobody_waits_for_them(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=rf"{name} is a pipe; expected a f"):
        open_match(match(tmp_path / name))
    reason = "is a pipe; expected a f" if name != "a.zarr" else r"there are no \*\.nc"
    with pytest.raises(CatalogError, match=reason):
        make_catalog(tmp_path, tmp_path / "cat.json", source="M")
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is a device; expected a f"):
        open_match(match(tmp_path / name))
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(name)
    with pytest.raises(DataError, match="does not exist"):
        open_match(match(tmp_path / name))


def test_a_pipe_in_a_zarr_store_is_named(tmp_path: Path) -> None:
    daily().to_zarr(tmp_path / "a.zarr", consolidated=False)
    chunk = tmp_path / "a.zarr" / "tasmax" / "c" / "0" / "0" / "0"
    chunk.unlink()
    os.mkfifo(chunk)
    with pytest.raises(StoreError, match="tasmax/c/0/0/0 is a pipe; expected a file"):
        open_match(match(tmp_path / "a.zarr"))["tasmax"].load()


@pytest.mark.parametrize("kind", ["NETCDF4", "NETCDF3_64BIT_OFFSET", "zarr"])
def test_a_hundred_million_declared_times_are_refused_before_they_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.zarr" if kind == "zarr" else "a.nc")
    if kind == "zarr":
        group = zarr.create_group(path)
        shape = {"shape": (10**8,), "chunks": (10**8,), "dtype": "f8"}
        group.create_array("time", **shape, dimension_names=["time"], attributes={"units": "days since 2000-01-01"})
        group.create_array("tasmax", **shape, dimension_names=["time"])
    else:
        with netCDF4.Dataset(path, "w", format=kind) as file:
            file.createDimension("time", 10**8)
            if kind == "NETCDF4":
                file.createVariable("time", "f8", "time").units = "days since 2000-01-01"
    with pytest.raises(DataError, match="a dimension has 100000000 steps; expected 5000000 at most"):
        open_match(match(path))
    with pytest.raises(CatalogError, match="a dimension has 100000000 steps"):
        make_catalog(tmp_path, tmp_path / "cat.json", source="M")


def test_thousands_of_variables_are_refused_before_they_are_opened(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.nc", "w") as file:
        for number in range(30_000):
            file[f"v{number}"] = h5py.SoftLink("/none")
    with pytest.raises(DataError, match="it has more than 5000 variables; expected a dataset of a few"):
        open_match(match(tmp_path / "a.nc"))
    array = {"shape": [1], "chunks": [1], "dtype": "<f4", "fill_value": 0, "order": "C", "zarr_format": 2}
    codecs = {"filters": None, "compressor": None}
    metadata = {f"v{number}/.zarray": array | codecs for number in range(5001)} | {".zgroup": {"zarr_format": 2}}
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": metadata}))
    (tmp_path / "a.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    with pytest.raises(DataError, match="it has more than 5000 variables"):
        open_match(match(tmp_path / "a.zarr"))


def row(name: str, start: str = "2000") -> Asset:
    text = f"date_start is {start!r}"
    columns = {"id": name, "source": name, "xrfreq": "D", "variable": "tasmax", "date_start": start, "date_end": "2001"}
    faults = {} if start.isdigit() else {"date_start": text}
    return Asset(columns, ("tasmax",), f"/{name}.nc", faults)


def search(assets: Sequence[Asset], **criteria: Any) -> list[str]:
    told: list[str] = []
    found = Catalog(assets).search(
        variables_and_freqs={"tasmax": "D"}, tell_dropped=lambda name, reason, columns: told.append(reason), **criteria
    )
    assert all(len(reason) < 1000 for reason in told)
    return list(found)


def test_thousands_of_faulty_rows_take_no_longer_than_as_many_sound_ones(caplog: pytest.LogCaptureFixture) -> None:
    bad = [row(f"M{number}", f"none{number}") for number in range(20_000)]
    began = time.process_time()
    assert search([*bad, row("GOOD")], other_search_criteria={"source": "GOOD"}) == ["GOOD"]
    assert time.process_time() - began < 10
    assert max(len(record.getMessage()) for record in caplog.records) < 2000
    with pytest.raises(CatalogError, match="wants 20000 rows with a cell that cannot be used") as caught:
        search([*bad, row("GOOD")])
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|aa)*$", "^(a*)*$", "(?:a|a){2,}$", "a*a*a*a*b$", r"(a*)\1$", "(?=(a+))+$", "a?" * 30 + "$"],
)
@pytest.mark.parametrize("kind", ["other_search_criteria", "exclusions"])
def test_a_pattern_that_takes_for_ever_is_refused_before_it_is_compared(kind: str, pattern: str) -> None:
    with pytest.raises(CatalogError, match=r"criterion source: .* might take hours to compare; expected a regular"):
        search([row("a" * 200 + "!")], **{kind: {"source": ["X", pattern]}})


@pytest.mark.parametrize(
    "pattern",
    [
        "^EC-Earth3",
        "Veg$",
        ".*Earth.*Veg.*",
        "^EC-(Earth3|Moon).*(Veg|CC)",
        "^[A-Z]+-.*[^0-9]$",
        "E?C-Earth3-V*",
        "EC*",
    ],
)
def test_ordinary_patterns_find_what_python_s_own_search_finds(pattern: str) -> None:
    names = ["EC-Earth3-Veg", "EC-Earth3", "CanESM5", "MPI-ESM1-2-HR", "E3SM-2-0"]
    expected = [name for name in names if re.search(pattern, name)]
    assert expected and search(list(map(row, names)), other_search_criteria={"source": pattern}) == sorted(expected)


def test_a_pattern_is_not_compared_with_a_cell_of_any_length() -> None:
    with pytest.raises(CatalogError, match="got a cell of 5000 characters"):
        search([row("a" * 5000)], other_search_criteria={"source": "^a.*b"})


@pytest.mark.parametrize("name", ["../home", "{0}"])
def test_consolidated_metadata_cannot_name_an_array_out_of_the_store(name: str, tmp_path: Path, private: Path) -> None:
    (private.parent / "0").write_bytes(SECRET[:1000])
    array = {"shape": [1000], "chunks": [1000], "dtype": "|u1", "fill_value": 0, "order": "C", "zarr_format": 2}
    array |= {"filters": None, "compressor": None}
    name = name.format(private.parent)
    metadata = {
        ".zgroup": {"zarr_format": 2},
        f"{name}/.zarray": array,
        f"{name}/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]},
    }
    path = tmp_path / "a.zarr"
    path.mkdir()
    (path / ".zgroup").write_text('{"zarr_format": 2}')
    (path / ".zmetadata").write_text(json.dumps({"zarr_consolidated_format": 1, "metadata": metadata}))
    try:
        with open_zarr(str(path), {"consolidated": True, "decode_times": False, "chunks": None}) as ds:
            read = b"".join(data.values.tobytes() for data in ds.variables.values())
    except (DataError, StoreError, ValueError, KeyError):
        read = b""
    assert b"private key" not in read
    with pytest.raises(StoreError, match="expected the name of a file in the store"):
        check_inside(str(path), f"{name}/0")


class _Bucket(MemoryFileSystem):
    """A service of objects, in this process."""

    protocol = "s3"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("s3://").lstrip("/")


def test_a_file_behind_a_url_is_looked_at_as_a_local_one(
    tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_registry, "s3", _Bucket)
    daily().to_netcdf(tmp_path / "sound.nc", engine="h5netcdf")
    _Bucket().pipe("s3://bucket/sound.nc", (tmp_path / "sound.nc").read_bytes())
    ds = open_match(match("s3://bucket/sound.nc"), xr_open_kwargs={"engine": "h5netcdf"})
    assert float(ds["tasmax"].mean()) == 280
    _Bucket().pipe("s3://bucket/a.nc", kept_elsewhere(tmp_path / "a.nc", private, "storage").read_bytes())
    with pytest.raises(DataError, match=r"the values of /tasmax are in .*id_rsa, another file"):
        open_match(match("s3://bucket/a.nc"), xr_open_kwargs={"engine": "h5netcdf"})
