"""The STAC catalogue, as pystac reads it, and its files, as other tools open them."""

import ast
import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import exported_products as made
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from damaged import damaged
from hypothesis import given, settings
from zarr.storage import ZipStore

from espo_luigi import store
from espo_luigi.errors import DataError, InstallationError, StoreError
from espo_luigi.publication import stac
from espo_luigi.publication.catalogue import add_to_catalogue
from espo_luigi.publication.products import find_exported, find_products, unfinished
from espo_luigi.publication.stac import StacCatalogue, StacOptions, checksum_of, former_checksums, write_stac

pystac = pytest.importorskip("pystac")
ARCHIVE = "final/day+sim+NAM.zarr.zip"
DAY360 = "final/day+360+NAM.zarr"


@pytest.fixture(scope="module")
def final(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive, a folder, and products that are no simulations on a map."""
    folder = tmp_path_factory.mktemp("products") / "final"
    made.publish(made.on_map(), folder / ARCHIVE, sim_id=made.SIM)
    made.publish(made.on_map("360_day", years=1).isel(time=slice(60)), folder / DAY360, sim_id="360")
    reference = made.on_map(years=1).assign_attrs({"cat:type": "reconstruction", "cat:id": "X_Land"})
    made.publish(reference, folder / "reference" / "Land.zarr", "RefDefault")
    made.publish(
        made.on_map(years=1).mean("time", keep_attrs=True), folder / "diagnostics" / "meas.zarr", "OffDiagScenPropMeas"
    )
    made.look_at_raw_files(folder)
    return folder


@pytest.fixture(scope="module")
def exported(final: Path) -> Path:
    """The archive's files, below the folder of products."""
    folder = final / "netcdf"
    made.export(final / ARCHIVE, final, folder)
    return folder


def markers(final: Path) -> dict[str, str]:
    return {one.path.relative_to(final).as_posix(): one.marker.id for one in find_products(final) if one.is_data}


def write(final: Path, options: StacOptions) -> StacCatalogue:
    files = find_exported(options.exported, markers(final)) if options.exported else {}
    return write_stac(find_products(final), final, made.ABOUT, options, files)


@pytest.fixture(scope="module")
def written(final: Path, exported: Path) -> StacCatalogue:
    return write(final, StacOptions(final / "stac", exported=exported))


@pytest.fixture()
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: object) -> None:
        raise AssertionError("a test without the network")

    monkeypatch.setattr(socket.socket, "connect", refused)


def items(catalogue: StacCatalogue) -> "dict[str, pystac.Item]":
    return {one.id: one for one in pystac.Collection.from_file(str(catalogue.collection)).get_items()}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_pystac_finds_the_collection_and_all_items_valid(written: StacCatalogue, offline: None) -> None:
    from pystac.validation.stac_validator import JsonSchemaSTACValidator

    collection = pystac.Collection.from_file(str(written.collection))
    found = [collection, *collection.get_items()]
    assert [one.id for one in found] == ["espo-v1", "day_360_NAM", "day_sim_NAM"]
    for one in found:
        # The core alone: the schemas of extensions are on the network.
        JsonSchemaSTACValidator().validate_core(one.to_dict(), one.STAC_OBJECT_TYPE, "1.1.0")
        assert one.get_root() is collection
    assert collection.extent.spatial.bboxes == [[-73, 45, -70.5, 47]]
    assert [one.isoformat() for one in collection.extent.temporal.intervals[0]] == [
        "2001-01-01T00:00:00+00:00",
        "2003-12-31T23:59:59+00:00",
    ]
    assert (collection.license, collection.get_single_link("cite-as").href) == ("CC-BY-4.0", made.ABOUT.cite_as)
    assert [path.name for path in written.left_out] == ["meas.zarr", "Land.zarr"]


def test_an_item_tells_place_days_grid_variables_and_inputs(written: StacCatalogue) -> None:
    from pystac.extensions.datacube import DatacubeExtension

    item = items(written)["day_sim_NAM"]
    assert item.bbox == [-73, 45, -70.5, 47] and item.datetime is None
    assert (item.properties["cat:source"], item.properties["cat:processing_level"]) == ("Model", "final")
    cube = DatacubeExtension.ext(item)
    assert {name: (one.dim_type, one.extent) for name, one in cube.dimensions.items()} == {
        "time": ("temporal", ["2001-01-01T00:00:00Z", "2003-12-31T23:59:59Z"]),
        "lat": ("spatial", [45.25, 46.75]),
        "lon": ("spatial", [287.25, 289.25]),
    }
    assert {name: (one.dimensions, one.unit) for name, one in cube.variables.items()} == {
        name: (["time", "lat", "lon"], "K") for name in ("tasmax", "tasmin")
    }
    assert [(link.title, link.href) for link in item.get_links("derived_from")] == [
        ("old.nc", "urn:uuid:2f2b8e0e-1b2c-4c1d-9c0e-0123456789ab"),
        ("pr_a.nc", "https://hdl.handle.net/21.14100/1f2b8e0e-1b2c-4c1d-9c0e-0123456789ab"),
        ("pr_b.nc", "https://hdl.handle.net/21.14100/0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab"),
    ]
    assert item.get_single_link("cite-as").href == made.ABOUT.cite_as


def test_a_product_on_a_rotated_grid_has_a_valid_outline_and_its_projection(tmp_path: Path, offline: None) -> None:
    from pystac.validation.stac_validator import JsonSchemaSTACValidator

    pyproj = pytest.importorskip("pyproj")
    grid = made.rotated(np.arange(-2.0, 3), np.arange(-95.0, -60))
    time = xr.date_range("2001-01-01", periods=4, calendar="noleap", use_cftime=True)
    data = grid["tasmax"].expand_dims(time=time).astype("float32")
    made.publish(grid.assign(tasmax=data).assign_attrs(made.ATTRS), tmp_path / "final" / "day.zarr", "ConcatClean")
    (item,) = items(write(tmp_path / "final", StacOptions(tmp_path / "stac"))).values()
    JsonSchemaSTACValidator().validate_core(item.to_dict(), item.STAC_OBJECT_TYPE, "1.1.0")
    west, south, east, north = item.bbox
    assert item.geometry["type"] == "MultiPolygon" and west > 0 > east, "on both sides of the 180th meridian"
    assert south < float(grid["lat"].min()) and float(grid["lat"].max()) < north
    said = item.properties["cube:dimensions"]["rlat"]["reference_system"]
    assert pyproj.CRS.from_json_dict(said).to_cf()["grid_mapping_name"] == "rotated_latitude_longitude"


def test_the_30_february_of_a_calendar_of_360_days_becomes_the_28(written: StacCatalogue) -> None:
    item = items(written)["day_360_NAM"]
    last = store.open_store(Path(item.assets["zarr"].get_absolute_href()))["time"].values[-1]
    assert (last.month, last.day) == (2, 30)
    assert item.properties["end_datetime"] == "2001-02-28T23:59:59Z"
    assert item.properties["cube:dimensions"]["time"]["description"] == "calendar 360_day"


def test_sizes_and_checksums_are_those_of_the_files(written: StacCatalogue) -> None:
    from pystac.extensions.file import FileExtension

    assets = items(written)["day_sim_NAM"].assets
    assert len(assets) == 5
    for one in assets.values():
        path, file = Path(one.get_absolute_href()), FileExtension.ext(one)
        said = subprocess.run(["sha256sum", path], check=True, capture_output=True, text=True).stdout
        # A multihash: SHA-256 has the code 0x12, and 0x20 bytes.
        assert (file.size, file.checksum) == (os.path.getsize(path), "1220" + said.split()[0])


def test_zarr_and_netcdf_have_the_same_numbers_and_land(written: StacCatalogue) -> None:
    assets = items(written)["day_sim_NAM"].assets
    archive = xr.open_zarr(ZipStore(assets["zarr"].get_absolute_href(), mode="r")).load()
    netcdf = [one.get_absolute_href() for one in assets.values() if one.media_type == "application/netcdf"]
    assert len(netcdf) == 4
    for name in ("tasmax", "tasmin"):
        files = xr.open_mfdataset([path for path in netcdf if Path(path).name.startswith(name)])
        np.testing.assert_array_equal(files[name], archive[name])
        land = archive[name].notnull().all("time")
        assert int(land.sum()) == 18
        assert files[name].notnull().all("time").equals(land)


def test_cdo_and_xarray_find_the_archives_mean_in_the_netcdf_asset(written: StacCatalogue) -> None:
    if shutil.which("cdo") is None:
        pytest.skip("cdo is not installed")
    assets = items(written)["day_sim_NAM"].assets
    archive = xr.open_zarr(ZipStore(assets["zarr"].get_absolute_href(), mode="r"))["tasmin"]
    path = next(one.get_absolute_href() for key, one in assets.items() if key.startswith("tasmin") and "2003" in key)
    said = subprocess.run(
        ["cdo", "-s", "outputf,%.6f", "-timmean", "-selindexbox,3,3,1,1", path],
        check=True,
        capture_output=True,
        text=True,
    )
    expected = archive.sel(time="2003").isel(lat=0, lon=2).astype("float64").mean()
    np.testing.assert_allclose(float(said.stdout), float(expected), rtol=1e-6)


def test_the_same_products_give_the_same_bytes_and_no_archive_is_read_twice(
    final: Path, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = StacOptions(tmp_path / "stac", exported=exported)
    write(final, options)
    first = contents(options.folder)
    monkeypatch.setattr(stac, "identity_of", lambda path: pytest.fail("read again"))
    write(final, options)
    assert contents(options.folder) == first
    assert [path.name for path in tmp_path.iterdir()] == ["stac"]


def test_an_archive_that_was_made_again_gets_its_own_checksum(tmp_path: Path) -> None:
    archive, options = tmp_path / "final" / ARCHIVE, StacOptions(tmp_path / "stac")
    checksums = []
    for seed in (1, 2):
        made.publish(made.on_map(years=1, seed=seed), archive, sim_id=str(seed))
        (item,) = items(write(tmp_path / "final", options)).values()
        checksums.append(item.assets["zarr"].extra_fields["file:checksum"])
        assert checksums[-1] == "1220" + hashlib.sha256(archive.read_bytes()).hexdigest()
    assert len(set(checksums)) == 2


def test_addresses_on_the_network_are_the_assets_and_mirrors_their_alternates(
    final: Path, exported: Path, tmp_path: Path
) -> None:
    addresses = ("https://data.example.org/espo/", "s3://mirror/espo")
    found = items(write(final, StacOptions(tmp_path / "stac", addresses, exported)))["day_sim_NAM"]
    archive = found.assets["zarr"]
    assert archive.href == "https://data.example.org/espo/final/day+sim+NAM.zarr.zip"
    assert archive.extra_fields["alternate"] == {
        "mirror": {"href": "s3://mirror/espo/final/day+sim+NAM.zarr.zip", "alternate:name": "mirror"}
    }
    files = {one.href for one in found.assets.values() if one.media_type == "application/netcdf"}
    assert "https://data.example.org/espo/netcdf/tasmax/tasmax_day+sim+NAM_2001.nc" in files
    assert any("alternate-assets" in one for one in found.stac_extensions)
    assert str(tmp_path) not in "".join(path.read_text() for path in (tmp_path / "stac").rglob("*.json"))


def test_the_links_go_on_working_in_a_copy_of_the_folder_of_products(
    final: Path, written: StacCatalogue, tmp_path: Path
) -> None:
    shutil.copytree(final, tmp_path / "copy")
    copied = items(replace(written, collection=tmp_path / "copy" / "stac" / "collection.json"))
    paths = [Path(asset.get_absolute_href()) for one in copied.values() for asset in one.assets.values()]
    assert paths
    assert all(path.is_relative_to(tmp_path) and path.exists() for path in paths)


def test_folders_behind_links_get_the_same_catalogue_and_stay_links(final: Path, tmp_path: Path) -> None:
    shutil.copytree(final, tmp_path / "disk" / "final", ignore=shutil.ignore_patterns("stac", "netcdf"))
    (tmp_path / "project").symlink_to(tmp_path / "disk")
    (tmp_path / "out").mkdir()
    (tmp_path / "shared").symlink_to(tmp_path / "out")
    for folder in (tmp_path / "project" / "final" / "stac", tmp_path / "shared"):
        done = write(tmp_path / "project" / "final", StacOptions(folder))
        assert done.collection.is_file() and (tmp_path / "shared").is_symlink()
        for one in items(done).values():
            assert Path(one.assets["zarr"].get_absolute_href()).exists()
    inside = items(replace(done, collection=tmp_path / "disk" / "final" / "stac" / "collection.json"))
    assert {one.assets["zarr"].href for one in inside.values()} == {f"../../{ARCHIVE}", f"../../{DAY360}"}


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("notes.txt", "notes.txt"),
        (".git", ".git"),
        ("items/my.json", "items/my.json"),
        ("mine/my.json", "mine"),
    ],
)
def test_a_folder_that_holds_anything_else_is_refused(name: str, named: str, final: Path, tmp_path: Path) -> None:
    write(final, StacOptions(tmp_path / "stac"))
    mine = tmp_path / "stac" / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(StoreError, match=rf"stac was not replaced .* espo_luigi \({named} in it is not ours"):
        write(final, StacOptions(tmp_path / "stac"))
    with pytest.raises(StoreError, match=r"espo_luigi \(it is no folder"):
        write(final, StacOptions(mine))
    assert contents(tmp_path) == before


def test_the_catalogue_of_another_collection_is_not_replaced(final: Path, tmp_path: Path) -> None:
    write(final, StacOptions(tmp_path / "stac"))
    before = contents(tmp_path)
    with pytest.raises(StoreError, match=r"holds the collection espo-v1, and this run's is mine-v2"):
        write_stac(
            find_products(final), final, replace(made.ABOUT, name="Mine (v2)"), StacOptions(tmp_path / "stac"), {}
        )
    assert contents(tmp_path) == before


def test_a_disk_that_fails_in_the_middle_leaves_the_former_catalogue(
    final: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(final, StacOptions(tmp_path / "stac"))
    before = contents(tmp_path)

    def full(path: Path, text: str) -> None:
        if path.name == stac.COLLECTION:
            raise OSError(28, "No space left on device")
        path.write_text(text)

    monkeypatch.setattr(stac, "write_new", full)
    with pytest.raises(StoreError, match=r"No space left|full"):
        write(final, StacOptions(tmp_path / "stac", ("https://data.example.org",)))
    assert contents(tmp_path) == before


def test_a_full_disk_leaves_the_former_catalogue_whole(final: Path, tmpfs: Callable[[str, str], Path]) -> None:
    disk = tmpfs("disk", "size=256k")
    write(final, StacOptions(disk / "stac"))
    with suppress(OSError), (disk / "full").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    before = contents(disk / "stac")
    with pytest.raises(StoreError, match=r"cannot write .*stac .ENOSPC: No space left.*; free space there"):
        write(final, StacOptions(disk / "stac", ("https://data.example.org",)))
    assert contents(disk / "stac") == before
    assert {entry.name for entry in disk.iterdir()} == {"stac", "full"}


def test_products_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for region in ("north", "south"):
        made.publish(made.on_map(years=1), tmp_path / "final" / region / "day.zarr", "Move", region=region)
    assert set(items(write(tmp_path / "final", StacOptions(tmp_path / "stac")))) == {"north.day", "south.day"}
    for path in ("north.day.zarr", "a/north.day.zarr"):
        made.publish(made.on_map(years=1), tmp_path / "final" / path, "Move")
    before = contents(tmp_path)
    with pytest.raises(StoreError, match=r"north/day.zarr and north.day.zarr would both be the item north.day"):
        write(tmp_path / "final", StacOptions(tmp_path / "stac"))
    assert contents(tmp_path) == before


def test_a_simulation_without_places_is_named_and_one_at_least_is_needed(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no simulation with times and a map is complete"):
        write(tmp_path, StacOptions(tmp_path / "stac"))
    made.publish(made.on_map(years=1).drop_vars("lat"), tmp_path / "final" / "day.zarr", "Move")
    with pytest.raises(DataError, match=r"day\.zarr: expected latitudes"):
        write(tmp_path / "final", StacOptions(tmp_path / "stac"))
    assert not (tmp_path / "stac").exists()


def test_without_pystac_nothing_is_written(final: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InstallationError, match=r"needs the package pystac.*pip install 'espo_luigi\[publication\]'"):
        write(final, StacOptions(tmp_path / "stac"))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture()
def own_export(final: Path, exported: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the export that a test may damage."""
    yield Path(shutil.copytree(exported, tmp_path / "netcdf"))


def test_only_products_whose_checksums_are_there_are_taken(final: Path, own_export: Path) -> None:
    for name in ("half.nc", "tasmax/half.nc"):
        (own_export / name).write_bytes(b"interrupted")
    found = find_exported(own_export, markers(final))
    assert set(found) == {ARCHIVE} and len(found[ARCHIVE]) == 4
    assert unfinished(own_export, found[ARCHIVE]) == 2
    for checksums in own_export.rglob("*.sha256"):
        checksums.unlink()
    with pytest.raises(StoreError, match="no checksum file"):
        find_exported(own_export, markers(final))


def test_a_product_of_another_run_is_named(final: Path, own_export: Path) -> None:
    others = {name: id for name, id in markers(final).items() if name != ARCHIVE}
    with pytest.raises(
        StoreError, match=r"tasmax_day.*\.nc is of the product final/day\+sim\+NAM.zarr.zip, which is not"
    ):
        find_exported(own_export, others)


def test_files_of_an_earlier_archive_are_refused(final: Path, tmp_path: Path) -> None:
    made.export(final / ARCHIVE, final, tmp_path, made_from="0" * 16)
    with pytest.raises(StoreError, match=r"exported from an earlier final/day.*had the marker 0000.*, expected"):
        find_exported(tmp_path, markers(final))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "has no checksum"),
        ("0" * 64 + "  plain.nc\n# espo.json: {}\n", "has no marker"),
        ("abc  a.nc\n", "got 'abc  a.nc', expected a SHA-256"),
        ("0" * 64 + "  ../../a.nc\n", "expected a SHA-256 and the name of a file beside it"),
        ("0" * 64 + "  gone.nc\n", "gone.nc is missing, though"),
        ("0" * 64 + "  text.nc\n", "text.nc cannot be read as NetCDF-4"),
        ("0" * 64 + "  plain.nc\n", "plain.nc has no global attribute espo_luigi_product"),
    ],
)
def test_a_damaged_export_is_refused_with_its_file(lines: str, said: str, final: Path, tmp_path: Path) -> None:
    (tmp_path / "text.nc").write_text("text")
    xr.Dataset({"a": 1}).to_netcdf(tmp_path / "plain.nc")
    marker = (
        "" if "espo.json" in lines else f"# espo.json: {json.dumps(json.loads(store.Marker('Export').to_json()))}\n"
    )
    (tmp_path / "a.sha256").write_text(lines + marker)
    with pytest.raises(StoreError, match=said):
        find_exported(tmp_path, markers(final))


@pytest.mark.filterwarnings("ignore")
def test_intake_esm_finds_by_variable_what_stac_lists(final: Path, written: StacCatalogue, tmp_path: Path) -> None:
    """As the documentation says: with pandas 3, a table that intake-esm reads by itself has no search by variable."""
    intake_esm = pytest.importorskip("intake_esm")
    add_to_catalogue(tmp_path / "catalog.json", find_products(final), final)
    table = pd.read_csv(tmp_path / "catalog.csv", converters={"variable": ast.literal_eval})
    esmcat = json.loads((tmp_path / "catalog.json").read_text())
    found = intake_esm.esm_datastore({"esmcat": esmcat, "df": table}).search(
        variable="tasmax", processing_level="final", type="simulation", xrfreq="D"
    )
    hrefs = {str(Path(one.assets["zarr"].get_absolute_href()).resolve()) for one in items(written).values()}
    assert set(found.df["path"]) == hrefs
    (archive,) = (path for path in found.df["path"] if path.endswith(".zip"))
    opened = xr.open_zarr(ZipStore(archive, mode="r"))
    assert opened["tasmax"].dims == ("time", "lat", "lon")


def test_former_items_of_any_shape_are_passed_over(written: StacCatalogue, final: Path, tmp_path: Path) -> None:
    path = next((written.collection.parent / "items").glob("day_sim*.json"))
    whole = json.loads(path.read_text())
    (tmp_path / "items").mkdir()
    (product,) = [one for one in find_products(final) if one.path.name == Path(ARCHIVE).name]
    expected = checksum_of(product, product.below(final), {})

    @settings(max_examples=40, deadline=None)
    @given(damaged(whole))
    def is_passed_over(item: Any) -> None:
        (tmp_path / "items" / "a.json").write_text(json.dumps(item))
        assert checksum_of(product, product.below(final), former_checksums(tmp_path)) == expected

    is_passed_over()
