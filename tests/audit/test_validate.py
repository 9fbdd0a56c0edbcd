"""`espo validate`: each planted defect is found by the check that must find it, and by no other."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
from exported_products import ATTRS, SIM, on_map, publish, rotated
from luigi.configuration import LuigiConfigParser

from espo_luigi import store
from espo_luigi.audit import integrity
from espo_luigi.audit import validate as module
from espo_luigi.audit.validate import CHECKS, Check, Validation, validate
from espo_luigi.commands import cli
from espo_luigi.errors import ParameterError, StoreError
from espo_luigi.export.folder import export_files
from espo_luigi.export.netcdf import Layout, described, stretches
from espo_luigi.publication.catalogue import add_to_catalogue
from espo_luigi.publication.products import find_products
from espo_luigi.publication.release import RELEASE, check_release, digest_of, states, write_release
from espo_luigi.replacing import write_manifest
from espo_luigi.store.table import read_checksums, write_checksums

OTHER = SIM.replace("Model", "Other")
# What a folder without a reference or a configuration cannot tell; those have no indicators.
NOT_DONE = {"flags", "audit", "magnitudes"}


@pytest.fixture(autouse=True)
def without_configuration(own_settings: LuigiConfigParser) -> None:
    """The command is given where no luigi.cfg is."""
    own_settings.set("espo", "config", "")


def product(sim_id: str, calendar: str = "noleap") -> xr.Dataset:
    """Three years of possible temperatures on 18 land cells and 2 of the sea."""
    ds = on_map(calendar)
    ds["tasmin"] = ds["tasmax"] - np.float32(9.5)
    for name, how in (("tasmax", "maximum"), ("tasmin", "minimum")):
        ds[name].attrs = {"units": "K", "standard_name": "air_temperature", "cell_methods": f"time: {how}"}
    return ds.assign_attrs(ATTRS | {"cat:id": sim_id, "title": "Demo", "history": "Invented."})


def archive(final: Path, sim_id: str) -> Path:
    return final / f"day+{sim_id}.zarr.zip"


def catalogue(final: Path) -> None:
    add_to_catalogue(final / "catalog.json", find_products(final), final)


@pytest.fixture()
def without_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    """compliance-checker is not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "compliance_checker" else find(name))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished products of two simulations."""
    folder = tmp_path_factory.mktemp("made")
    for sim_id, calendar in ((SIM, "noleap"), (OTHER, "360_day")):
        publish(product(sim_id, calendar), archive(folder, sim_id))
    return folder


@pytest.fixture()
def netcdf(tmp_path: Path) -> Path:
    """The NetCDF files of a product, a file for two years, with their checksums."""
    return exported(tmp_path / "nc")


def exported(folder: Path, calendar: str = "noleap") -> Path:
    for name in ("tasmax", "tasmin"):
        ds = described(product(SIM, calendar), name, name, {})
        export_files(ds, folder / f"{name}.sha256", stretches(ds["time"], 2), Layout({}), store.Marker("Export"))
    return folder


def found(folder: Path, version: str | None = None) -> Validation:
    return validate(folder, lambda line: None, version=version)


def failed(folder: Path) -> dict[str, list[str]]:
    return {check.name: check.details for check in found(folder).checks if check.verdict == "failed"}


def test_whole_products_pass_all_that_can_be_done(final: Path) -> None:
    checks = found(final).checks
    assert {check.name: check.verdict for check in checks} == {
        name: {"outcomes": "not applicable"}.get(name, "not done" if name in NOT_DONE else "passed") for name in CHECKS
    }
    assert all(check.details for check in checks if check.verdict == "not done")
    (sizes,) = [check.details for check in checks if check.name == "magnitudes"]
    assert sizes == ["the folder has no daily values of the reference"]


def test_variables_on_a_rotated_grid_in_archives_of_their_own_pass(tmp_path: Path) -> None:
    final, grid = tmp_path / "final", rotated(np.linspace(-1.5, 1.5, 4), np.linspace(-2, 2, 5))
    bare = product(SIM).drop_vars(["lat", "lon"]).rename(lat="rlat", lon="rlon")
    for var in ("tasmax", "tasmin"):
        ds = bare[[var]].assign_coords(grid.coords)
        ds[var].attrs["grid_mapping"] = "rotated_pole"
        ds["lat"].attrs = {"standard_name": "latitude", "units": "degrees_north"}
        ds["lon"].attrs = {"standard_name": "longitude", "units": "degrees_east"}
        ds["rlat"].attrs = {"standard_name": "grid_latitude", "units": "degrees", "axis": "Y"}
        ds["rlon"].attrs = {"standard_name": "grid_longitude", "units": "degrees", "axis": "X"}
        publish(ds, final / "simulation" / var / f"{var}_day_{SIM}.zarr.zip", "ConcatClean", var=var)
    catalogue(final)
    assert {check.name: check.details for check in found(final).checks if check.verdict == "failed"} == {}


def test_products_of_a_standard_calendar_pass(tmp_path: Path) -> None:
    publish(product(SIM, "standard"), archive(tmp_path / "final", SIM))
    catalogue(tmp_path / "final")
    for folder in (tmp_path / "final", exported(tmp_path / "nc", "standard")):
        assert (failed(folder), found(folder).products > 0) == ({}, True)


def test_an_archive_that_is_a_link_is_as_good(final: Path, tmp_path: Path) -> None:
    archive(final, SIM).rename(tmp_path / "elsewhere.zarr.zip")
    archive(final, SIM).symlink_to(tmp_path / "elsewhere.zarr.zip")
    assert failed(final) == {}


def test_whole_netcdf_files_pass_what_can_be_done(netcdf: Path) -> None:
    verdicts = {check.name: check.verdict for check in found(netcdf).checks}
    without = {*NOT_DONE, "catalogue", "outcomes"}
    assert verdicts == {name: "not applicable" if name in without else "passed" for name in CHECKS}


def test_a_folder_of_netcdf_files_is_released_by_default(netcdf: Path, without_checker: None) -> None:
    released = found(netcdf, "1.0")
    assert released.refused == () and released.release == netcdf / RELEASE
    audit = next(check for check in released.checks if check.name == "audit")
    assert audit.details == [
        "no archive can be read; of NetCDF files, validate the archives that they were exported from, too"
    ]
    assert check_release(netcdf)


def truncated(final: Path) -> None:
    content = archive(final, SIM).read_bytes()
    archive(final, SIM).write_bytes(content[: len(content) // 2])


def a_byte_of_a_chunk(final: Path) -> None:
    with zipfile.ZipFile(archive(final, SIM)) as packed:
        member = next(one for one in packed.infolist() if one.filename.startswith("tasmax/c/0"))
    content = bytearray(archive(final, SIM).read_bytes())
    content[member.header_offset + 200] ^= 1
    archive(final, SIM).write_bytes(content)


def remade(change: Callable[[xr.Dataset], xr.Dataset]) -> Callable[[Path], None]:
    def plant(final: Path) -> None:
        archive(final, SIM).unlink()
        publish(change(product(SIM)), archive(final, SIM))
        catalogue(final)

    return plant


def without_a_day(ds: xr.Dataset) -> xr.Dataset:
    return ds.isel(time=[place for place in range(ds.sizes["time"]) if place != 400])


def without_a_year(ds: xr.Dataset) -> xr.Dataset:
    return ds.sel(time=ds["time"].dt.year != 2002)


def without_a_cell(ds: xr.Dataset) -> xr.Dataset:
    ds["tasmax"][:, 2, 3] = np.nan
    return ds


def with_a_gap(ds: xr.Dataset) -> xr.Dataset:
    ds["tasmin"][100, 2, 3] = np.nan
    return ds


def too_hot(ds: xr.Dataset) -> xr.Dataset:
    ds["tasmax"][100, 2, 3] = 345
    return ds


def crossed(ds: xr.Dataset) -> xr.Dataset:
    ds["tasmin"][100, 2, 3] = ds["tasmax"][100, 2, 3] + 1
    return ds


def in_other_units(ds: xr.Dataset) -> xr.Dataset:
    ds["tasmax"].attrs["units"] = "degC"
    return ds


def without_its_file(final: Path) -> None:
    archive(final, OTHER).unlink()


def without_its_row(final: Path) -> None:
    publish(product(SIM + "2"), archive(final, SIM + "2"))


def with_other_dates_in_its_row(final: Path) -> None:
    table = final / "catalog.csv"
    table.write_text(table.read_text().replace("2003-12-31", "2002-12-31"))


@pytest.mark.parametrize(
    ("plant", "by", "said"),
    [
        (truncated, {"checksums"}, "day.*Model.*: cannot be read: .* truncated"),
        (a_byte_of_a_chunk, {"checksums"}, "Bad CRC-32 for file 'tasmax/c/0"),
        (remade(without_a_day), {"times"}, "1 days are missing .* the first 2002-02-05"),
        (remade(lambda ds: ds.isel(time=slice(730))), {"times"}, "365 days are missing .* the first 2003-01-01"),
        (remade(without_a_year), {"times"}, "365 days are missing .* the first 2002-01-01"),
        (remade(without_a_cell), {"cells"}, "tasmax lacks days in 1 of 18 land cells"),
        (remade(with_a_gap), {"cells"}, "tasmin lacks days in 1 of 18 land cells"),
        (remade(too_hot), {"bounds"}, "1 impossible values of tasmax, the first 345 K on 2001-04-11 at latitude 46.25"),
        (remade(crossed), {"bounds"}, "1 impossible values of tasmin"),
        (remade(in_other_units), {"bounds"}, "impossible values of tasmax"),
        (remade(lambda ds: ds.drop_vars("tasmin")), {"variables"}, "Model.* has no tasmin of , which others have"),
        (without_its_file, {"catalogue"}, "Other.*: the catalogue has it, and its file is gone"),
        (without_its_row, {"catalogue"}, "Model.*2.zarr.zip: no row of the catalogue has it"),
        (with_other_dates_in_its_row, {"catalogue"}, "its row has another date_end"),
    ],
)
def test_a_planted_defect_is_found_by_the_check_that_must(
    plant: Callable[[Path], None],
    by: set[str],
    said: str,
    final: Path,
    without_checker: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant(final)
    assert cli.main(["validate", str(final), "--json"]) == 1
    told = {
        one["name"]: one["details"]
        for one in json.loads(capsys.readouterr().out)["checks"]
        if one["verdict"] == "failed"
    }
    assert told.keys() == by
    for problems in told.values():
        assert any(re.search(said, problem) for problem in problems), problems
    if "catalogue" in by:
        assert "`espo publish`" in told["catalogue"][0]


def split(ds: xr.Dataset) -> tuple[xr.Dataset, xr.Dataset]:
    return ds[["tasmax"]], ds[["tasmin"]]


def test_temperatures_that_cross_are_found_in_archives_and_files_of_their_own(
    tmp_path: Path, without_checker: None
) -> None:
    for folder, ds in ((tmp_path / "whole", product(SIM)), (tmp_path / "crossed", crossed(product(SIM)))):
        for var, name in (("tasmax", "tasmaxAdjust"), ("tasmin", "tasminAdjust")):
            publish(ds[[var]], folder / f"{var}.zarr.zip", "ConcatClean", var=var)
            one, days = described(ds, var, name, {}), stretches(ds["time"], 2)
            export_files(one, folder / "nc" / f"{name}.sha256", days, Layout({}), store.Marker("Export"))
        (folder / "nc").rename(tmp_path / f"nc-{folder.name}")
    assert failed(tmp_path / "whole") == {} and failed(tmp_path / "nc-whole") == {}
    for folder in (tmp_path / "crossed", tmp_path / "nc-crossed"):
        (problem,) = failed(folder)["bounds"]
        assert "1 impossible values of tasmin" in problem and "on 2001-04-11 at latitude 46.25" in problem


def test_temperatures_are_compared_with_those_of_the_same_simulation_under_any_prefix_of_attributes(
    tmp_path: Path, without_checker: None
) -> None:
    def publish_as(sim_id: str, ds: xr.Dataset) -> None:
        for var in ("tasmax", "tasmin"):
            bare = ds[[var]].assign_attrs()
            bare.attrs = {name.replace("cat:", "dataset:"): text for name, text in ds.attrs.items()}
            publish(bare, tmp_path / sim_id / f"{var}.zarr.zip", "ConcatClean", sim_id=sim_id, var=var)

    warmer = product(OTHER)
    for var in ("tasmax", "tasmin"):
        warmer[var][:] = warmer[var] + 25
    publish_as(SIM, product(SIM))
    publish_as(OTHER, warmer)
    assert failed(tmp_path) == {}
    publish_as(OTHER, crossed(warmer))
    (problem,) = failed(tmp_path)["bounds"]
    assert "1 impossible values of tasmin" in problem


def test_a_cell_that_all_products_lack_is_found_by_the_reference_s_land(
    tmp_path: Path, without_checker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = product(SIM)
    land = ds["tasmax"][0].notnull().drop_vars("time")
    lacking = ds.where(~((ds["lat"] == ds["lat"][2]) & (ds["lon"] == ds["lon"][3])))
    monkeypatch.setattr(module._Seen, "reference", [land[:2], land[2:]])
    publish(lacking, archive(tmp_path, SIM))
    assert "tasmax lacks days in 1 of 18 land cells" in failed(tmp_path)["cells"][0]
    publish(lacking[["tasmax"]], archive(tmp_path, SIM))
    assert len(failed(tmp_path)["cells"]) == 1
    monkeypatch.setattr(module._Seen, "reference", [land[:2], land[2:].assign_attrs(incomplete_cells=1)])
    assert failed(tmp_path) == {}


@pytest.mark.parametrize(("more", "is_found"), [(0, False), (1, True)])
def test_cells_that_a_product_counts_excuse_no_gap_of_others(
    more: int, is_found: bool, tmp_path: Path, without_checker: None
) -> None:
    ds = without_a_cell(product(SIM)).assign_attrs(espo_luigi_incomplete_cells=1)
    ds["tasmax"][:100, 1, 1 : 1 + more] = np.nan
    publish(ds, archive(tmp_path, SIM))
    assert ("cells" in failed(tmp_path)) == is_found


@pytest.mark.parametrize(
    ("change", "by", "allowed"),
    [
        (with_a_gap, {"cells"}, {"cells_without_data": 1}),
        (too_hot, {"bounds"}, {"impossible_values": 1}),
        (lambda ds: ds, set(), {"optional": ["cf", "flags", "audit", "catalogue", "magnitudes"]}),
    ],
)
def test_the_section_validation_allows_what_is_refused_by_default(
    change: Callable[[xr.Dataset], xr.Dataset],
    by: set[str],
    allowed: dict[str, Any],
    tmp_path: Path,
    without_checker: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for sim_id in (SIM, OTHER):
        publish(change(product(sim_id)) if sim_id == SIM else product(sim_id), archive(tmp_path, sim_id))
    always = {"audit", "catalogue", "magnitudes"}
    assert {*found(tmp_path, "1.0").refused} == by | always and not (tmp_path / RELEASE).exists()
    monkeypatch.setattr(module, "Thresholds", functools.partial(module.Thresholds, **allowed))
    released = found(tmp_path, "1.0")
    assert {*released.refused} == (set() if "optional" in allowed else always)
    assert (released.release is not None) == ("optional" in allowed)


def test_units_are_the_same_in_all_products(final: Path, without_checker: None) -> None:
    with_units = product(SIM)
    with_units["tasmax"] = (with_units["tasmax"] - np.float32(273.15)).assign_attrs(units="degC")
    publish(with_units.drop_vars("tasmin"), archive(final, SIM))
    assert "tasmax has different units: " in failed(final)["bounds"][0]


def test_a_product_without_its_facets_is_looked_at_all_the_same(final: Path, without_checker: None) -> None:
    bare = without_a_day(too_hot(product(SIM)))
    bare.attrs = {}
    publish(bare, archive(final, SIM))
    assert failed(final).keys() >= {"bounds", "times"}


def test_a_variable_of_another_domain_is_no_substitute(final: Path, without_checker: None) -> None:
    for sim_id in (SIM, OTHER):
        ds = product(sim_id).assign_attrs({"cat:domain": "QC"})
        publish(ds if sim_id == SIM else ds.drop_vars("tasmin"), archive(final / "QC", sim_id))
    catalogue(final)
    assert list(failed(final)) == ["variables"]


def test_years_between_stretches_are_no_gap_to_a_stranger(final: Path, without_checker: None) -> None:
    for sim_id, calendar in ((SIM, "noleap"), (OTHER, "360_day")):
        archive(final, sim_id).unlink()
        publish(without_a_year(product(sim_id, calendar)), archive(final, sim_id))
    catalogue(final)
    assert failed(final) == {}


def flags_of(ds: xr.Dataset) -> xr.Dataset:
    bits = xr.zeros_like(ds["tasmax"], dtype=np.uint16)
    bits[[0, 5], 2, 3] = 2
    bits[7, 2, 3] = 1
    bits.attrs = {"flag_masks": [1, 2], "flag_meanings": "jittered extrapolated"}
    cells = bits[0].drop_vars("time").astype(np.uint8).assign_attrs(flag_masks=[1], flag_meanings="sign_flipped")
    both = {f"{var}_{of}": one for var in ("tasmax", "tasmin") for of, one in (("flags", bits), ("cell_flags", cells))}
    return xr.Dataset(both, attrs=ds.attrs)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda flags: flags, None),
        (lambda flags: flags.drop_vars("tasmin_flags"), "no archive has flags of tasmin"),
        (lambda flags: flags.isel(time=slice(1, None)), "its flags have another time"),
        (lambda flags: flags.assign_coords(lat=flags["lat"] + 0.5), "its flags have another lat"),
    ],
)
def test_all_values_have_flags(
    change: Callable[[xr.Dataset], xr.Dataset], said: str | None, tmp_path: Path, without_checker: None
) -> None:
    ds = product(SIM)
    publish(change(flags_of(ds)), tmp_path / "flags" / f"flags_{SIM}.zarr.zip")
    publish(ds, archive(tmp_path, SIM))
    (check,) = [one for one in found(tmp_path).checks if one.name == "flags"]
    assert check.verdict == ("failed" if said else "passed"), check.details
    assert not said or said in check.details[0]


def test_flags_are_of_all_products(final: Path, without_checker: None) -> None:
    publish(flags_of(product(SIM)), final / "flags" / f"flags_{SIM}.zarr.zip")
    (problem,) = failed(final)["flags"]
    assert "Other" in problem and problem.endswith(": no archive has flags of tasmax, tasmin")


def test_broken_units_of_a_netcdf_file_are_found_by_bounds_and_compliance_checker(netcdf: Path) -> None:
    path = netcdf / "tasmax_20030101-20031231.nc"
    with netCDF4.Dataset(path, "r+") as file:
        file["tasmax"].units = "kelvins per wish"
    assert "has the SHA-256" in failed(netcdf)["checksums"][0]
    sums = read_checksums(netcdf / "tasmax.sha256")
    write_checksums(sums | {path.name: digest_of(path)}, netcdf / "tasmax.sha256", store.Marker("Export"))
    assert failed(netcdf).keys() == {"bounds", "cf"}


def test_the_checker_asks_no_server_whatever_the_file_names(netcdf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("socket.socket.connect", lambda _, address: asked.append(address))
    monkeypatch.setattr("socket.getaddrinfo", lambda *address, **_: asked.append(address) or [])
    path = netcdf / "tasmax_20030101-20031231.nc"
    with netCDF4.Dataset(path, "r+") as file:
        file.standard_name_vocabulary = "CF Standard Name Table v77"
    assert not [fault for fault in module._faults(path) if "vocabulary" in fault]
    assert not asked


def test_a_file_with_two_checksums_is_named(netcdf: Path) -> None:
    table = netcdf / "tasmax.sha256"
    first, rest = table.read_text().split("\n", 1)
    table.write_text("\n".join(["0" * 64 + first[64:], first, rest]))
    assert "has 2 checksums; expected one" in failed(netcdf)["checksums"][0]


def test_a_truncated_netcdf_file_ends_no_check(netcdf: Path) -> None:
    path = netcdf / "tasmax_20030101-20031231.nc"
    path.write_bytes(path.read_bytes()[:3000])
    assert failed(netcdf).keys() == {"checksums"}


def test_a_release_is_of_the_very_files(final: Path, without_checker: None) -> None:
    assert found(final, "1.0").refused == ("magnitudes", "audit") and not (final / RELEASE).exists()
    assert not check_release(final)
    write_release(final, "1.0", found(final).checks, states(final, []))
    assert check_release(final) and failed(final) == {}
    said = json.loads((final / RELEASE).read_text())
    assert said["products"].keys() == {f"day+{one}.zarr.zip" for one in (SIM, OTHER)}
    content = archive(final, SIM).read_bytes()
    entry = said["products"][f"day+{SIM}.zarr.zip"]
    assert (entry["size_bytes"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    # Nothing but the release tells that the bytes before the first member's values changed.
    archive(final, SIM).write_bytes(content[:10] + b"\1" + content[11:])
    with pytest.raises(
        StoreError, match=r"is of other files: day\+.*Model.*: got .*, expected .* Nothing was published"
    ):
        check_release(final)
    problems = failed(final)
    assert problems.keys() == {"checksums"} and f"expected by {RELEASE}" in problems["checksums"][-1]
    archive(final, SIM).unlink()
    with pytest.raises(StoreError, match=r"Model.*: got no file, expected by RELEASE\.json"):
        check_release(final)


def test_a_single_archive_is_compared_with_its_own_entry_of_the_release(final: Path, without_checker: None) -> None:
    write_release(final, "1.0", [], states(final, []))
    content = archive(final, SIM).read_bytes()
    archive(final, SIM).write_bytes(content[:10] + b"\1" + content[11:])
    (problem,) = failed(archive(final, SIM))["checksums"]
    assert f"expected by {RELEASE}" in problem
    assert failed(archive(final, OTHER)) == {}


def another_byte_at_the_same_time(path: Path) -> None:
    content, was = path.read_bytes(), path.stat()
    with path.open("r+b") as file:
        file.write(content[:10] + b"\1" + content[11:])
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.write_bytes(path.read_bytes()),
        lambda path: shutil.copy(path, path.with_name("later.zarr.zip")),
        another_byte_at_the_same_time,
    ],
)
def test_files_that_change_during_the_checks_are_not_released(
    change: Callable[[Path], object], final: Path, without_checker: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def while_checking(seen: object) -> tuple[()]:
        change(archive(final, SIM))
        return ()

    monkeypatch.setitem(CHECKS, "magnitudes", ("no sizes", lambda seen: ()))
    monkeypatch.setitem(CHECKS, "audit", ("no audit", while_checking))
    with pytest.raises(StoreError, match="came, went or changed since the checks began"):
        found(final, "1.0")
    assert not (final / RELEASE).exists()


def test_a_table_beside_a_netcdf_file_belongs_to_the_release(tmp_path: Path) -> None:
    for name in ("regions.nc", "regions.csv", "regions.csv.espo.json", "catalog.csv"):
        (tmp_path / name).write_text(name)
    write_release(tmp_path, "1.0", [], states(tmp_path, []))
    (tmp_path / "catalog.csv").write_text("made again by espo publish")
    assert check_release(tmp_path)
    for name in ("regions.csv", "regions.csv.espo.json"):
        (tmp_path / name).write_text("other")
        with pytest.raises(StoreError, match=rf"{name}: got "):
            check_release(tmp_path)
        (tmp_path / name).write_text(name)


def test_publishing_reads_only_files_whose_size_or_time_is_not_that_of_the_release(
    final: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_release(final, "1.0", [], states(final, []))
    read: list[Path] = []

    def digest(path: Path) -> str:
        read.append(path)
        return digest_of(path)

    monkeypatch.setattr(module.release, "digest_of", digest)
    assert check_release(final) and read == []
    os.utime(archive(final, SIM))
    assert check_release(final) and read == [archive(final, SIM)]
    assert not list(module.release.differences(final)) and len(read) == 3


def test_a_required_release_is_verified_by_its_digests_verdicts_and_signature(final: Path, tmp_path: Path) -> None:
    passed, key = Check("cells", "passed", []), tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    write_release(final, "1.0", [passed], states(final, []), key)
    assert check_release(final, required=True) and not list(integrity.strays(final, states(final, [])))
    text = (final / RELEASE).read_text()

    def refused(why: str, *, required: bool = True, **changed: object) -> None:
        (final / RELEASE).write_text(json.dumps(json.loads(text) | changed))
        with pytest.raises(StoreError, match=why):
            check_release(final, required=required)

    refused("check-novalidate.*failed", version="2.0")
    refused("got passed, failed, expected checks that passed", checks=[{"verdict": "passed"}, {"verdict": "failed"}])
    refused("got failed, expected checks that passed", checks=[{"verdict": "failed"}], required=False)
    refused("got no checks, expected checks that passed", checks=[])
    refused("got signature 'none'", signature="none")
    products = json.loads(text)["products"]
    products[archive(final, SIM).name]["sha256"] = "0" * 64
    refused("is of other files: day", products=products, signature="unsigned")
    write_release(final, "1.1", [passed], states(final, []))
    assert check_release(final, required=True) and not (final / f"{RELEASE}.sig").exists()
    with pytest.raises(StoreError, match=r"ssh-keygen -Y sign .* failed"):
        write_release(final, "1.2", [passed], states(final, []), tmp_path / "none")
    assert json.loads((final / RELEASE).read_text())["version"] == "1.1"


def test_a_file_behind_a_link_out_of_the_folder_is_not_released(final: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    shutil.move(archive(final, SIM), tmp_path / "elsewhere")
    archive(final, SIM).symlink_to(tmp_path / "elsewhere" / archive(final, SIM).name)
    with pytest.raises(StoreError, match=r"1 file\(s\) of the release lie behind links out of"):
        found(final, "1.0")


def test_a_single_archive_is_validated_and_no_release(final: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {check.verdict for check in found(archive(final, SIM)).checks} == {"passed", "not done", "not applicable"}
    assert cli.main(["validate", str(archive(final, SIM)), "--release", "1.0"]) == 1
    assert "expected the folder of all products" in capsys.readouterr().err and not (final / RELEASE).exists()


def test_a_foreign_file_of_the_release_s_name_stays(final: Path) -> None:
    (final / RELEASE).write_text("{}")
    with pytest.raises(StoreError, match="it is not a release that espo_luigi wrote"):
        found(final, "1.0")
    assert (final / RELEASE).read_text() == "{}"


def test_a_folder_without_products_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(tmp_path)]) == 1
    assert "has no daily product" in capsys.readouterr().err
    (tmp_path / "notes.txt").write_text("")
    for name in ("gone", "gone.zarr.zip", "notes.txt"):
        assert cli.main(["validate", str(tmp_path / name)]) == 1
        assert f"{name} is no folder and no archive" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["", " ", "../x", "a\nb", "-1"])
def test_a_release_has_a_version_that_may_stand_in_a_name(final: Path, version: str) -> None:
    with pytest.raises(ParameterError, match="a version of letters, digits"):
        found(final, version)
    assert not (final / RELEASE).exists()


def test_without_a_product_that_can_be_read_no_check_of_products_passes(final: Path) -> None:
    for path in final.glob("*.zarr.zip"):
        path.write_bytes(b"PK")
    verdicts = {check.name: check.verdict for check in found(final).checks}
    assert verdicts["checksums"] == "failed"
    assert {verdicts[name] for name in ("times", "cells", "variables", "bounds")} == {"not applicable"}


def test_files_of_a_page_are_no_products(final: Path) -> None:
    page = final / "report" / "report-changes"
    page.mkdir(parents=True)
    xr.Dataset({"cdd": ("lat", [1.0, 2.0])}).to_netcdf(page / "cdd.nc", engine="h5netcdf")
    write_manifest(page, "espo report")
    assert failed(final) == {} and not any("cdd" in name for name in states(final, []))


def test_a_table_of_regions_without_its_file_is_told(final: Path) -> None:
    netcdf = final / "YS-JAN+indicators+regions.nc"
    netcdf.write_bytes(b"")
    store.write_table(["region"], [], netcdf.with_suffix(".csv"), store.Marker("Regions"), [netcdf])
    netcdf.unlink()
    store.write_table(["problem"], [], final / "input.csv", store.Marker("InputCheck"))
    assert failed(final) == {"checksums": [f"{netcdf} is gone, and {netcdf.stem}.csv.espo.json is there"]}


@pytest.mark.parametrize("half", ["", "{", "{}", '{"sha256": {"other.nc": ""}}', '{"sha256": {"": "0", "t.nc": "0"}}'])
def test_a_table_without_a_whole_marker_and_the_file_beside_it_are_told(final: Path, half: str) -> None:
    (final / "t.nc").write_bytes(b"")
    store.write_table(["region"], [], final / "t.csv", store.Marker("Regions"), [final / "t.nc"])
    (final / "t.csv.espo.json").write_text(half)
    assert integrity.has_table(final / "t.nc") == ("t.nc" in half and "other" not in half)
    problems = list(integrity.checksums(final, [final / "t.nc"], ()))
    assert any(path in problem for problem in problems for path in ("t.csv ", "t.csv.espo.json is empty or damaged"))
    assert any("t.nc has the SHA-256" in problem for problem in problems)


def test_a_table_whose_writing_was_cut_short_is_told(final: Path) -> None:
    for marker in (store.Marker("InputCheck"), None):
        store.write_table(["problem"], [], final / "input.csv", marker)
        assert failed(final) == {}, "without a task, the input was refused"
        (final / "input.csv").write_text("problem\nunits\n")
        (problem,) = failed(final)["checksums"]
        assert problem.startswith(f"{final / 'input.csv'} has the SHA-256 ")
        (final / "input.csv").write_text("problem\n")
