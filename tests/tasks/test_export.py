"""`espo export`: tasks like any other, on final archives of the small demo; what is wrong stops before anything."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr
import yaml
from checked_netcdf import problems_of
from complete_demo import DAY360, NOLEAP, edit
from exported import TRACKING_IDS, make_archives, write
from luigi.configuration import LuigiConfigParser
from zarr.storage import ZipStore

from espo_luigi import build, store, tasks
from espo_luigi.audit.validate import validate
from espo_luigi.commands import cli
from espo_luigi.errors import ParameterError
from espo_luigi.export import netcdf
from espo_luigi.export.drs import load_drs
from espo_luigi.export.folder import files_of
from espo_luigi.store.identity import identity_of
from espo_luigi.store.marker import SUMS_MARK
from espo_luigi.tasks.all import All
from espo_luigi.tasks.context import context
from espo_luigi.tasks.export import Export, every_export, names_of

HOW_TO = Path(__file__).parents[2] / "docs" / "check" / "netcdf.md"
NC = "ESPO-DEMO/Demo-NoLeap/ssp585/r1i1p1f1/day/tasmax"
STEM = "tasmax_day_ESPO-demo_v1.0.0_CMIP6_ScenarioMIP_NAM_ESPO-DEMO_Demo-NoLeap_ssp585_r1i1p1f1"


@pytest.fixture()
def archives(configured: Callable[..., list[Path]], tmp_path: Path) -> dict[str, xr.Dataset]:
    """The content of the final archives, which are there."""
    configured()
    return make_archives()


def written(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def own_drs(at: Path, /, **changes: object) -> str:
    content = {"folder": "{source}", "file": "{variable}_{source}_{dates}.nc", "years": 4} | changes
    path = at / "own.yml"
    path.write_text(yaml.safe_dump(content))
    os.utime(path, ns=(0, len(path.read_text())))
    return str(path)


def one(folder: Path, drs: str = "espo-g6") -> Export:
    return Export(sim_id=NOLEAP, var="tasmax", drs=drs, folder=str(folder))


@pytest.fixture()
def refused(capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A function that gives the command, which is to be refused, and returns its message."""

    def give(*words: object) -> str:
        capfd.readouterr()
        assert cli.main(["export", *map(str, words)]) == 1
        return capfd.readouterr().err

    return give


def test_the_command_writes_what_the_archives_hold_and_a_second_one_does_nothing(
    archives: dict[str, xr.Dataset], tmp_path: Path
) -> None:
    out = tmp_path / "netcdf"
    assert cli.main(["export", str(out)]) == 0
    names = written(out)
    # Two simulations, three variables: two files, of 1991-1994 and 1995-1997, and their checksums.
    assert len(names) == 2 * 3 * 3 + 1 and f"{NC}/{STEM}_19910101-19941231.nc" in names
    for sums in out.rglob("*.sha256"):
        subprocess.run(["sha256sum", "-c", "--strict", sums.name], cwd=sums.parent, check=True)
    for sim_id, content in archives.items():
        for name in ("tasmax", "tasmin", "pr"):
            sums = Export(sim_id=sim_id, var=name, drs="espo-g6", folder=str(out)).out_checksums().path
            with xr.open_mfdataset(files_of(sums), decode_times=xr.coders.CFDatetimeCoder(use_cftime=True)) as found:
                np.testing.assert_array_equal(found[name].values, content[name].values)
                np.testing.assert_array_equal(found["time"].values, content["time"].values)
                archive = tmp_path / "final" / found.attrs["espo_luigi_product"]
                assert archive == tasks.ConcatenationFinal(sim_id=sim_id).out_final().path
                assert found.attrs["input_tracking_id"] == " ".join(TRACKING_IDS)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert cli.main(["export", str(out)]) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_every_product_and_every_drs_passes_the_compliance_checker(
    configured: Callable[..., list[Path]], tmp_path: Path
) -> None:
    files = configured()
    (text,) = re.findall(r"```yaml\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    (tmp_path / "ours.yml").write_text(text)
    edit(files[0], lambda content: content["clean_up"]["xscen_clean_up"]["add_attrs"]["global"].update(WHO))
    make_archives(bits=10)
    for drs in ("espo-g6", "cordex-adjust", "espo-v2", str(tmp_path / "ours.yml")):
        assert cli.main(["export", "--drs", drs, str(tmp_path / Path(drs).stem)]) == 0
    found = [sorted(one.parent.glob("*.nc"))[-1] for one in tmp_path.rglob("*.sha256")]
    assert len(found) == 4 * 2 * 3
    assert problems_of(found) == ""
    checks = validate(tmp_path / "cordex-adjust", lambda line: None).checks
    # The invented values are of seven years, and hotter than any air.
    wrong = {check.name: check.details[0] for check in checks if check.verdict == "failed"}
    assert wrong.keys() == {"times", "bounds"} and "impossible values of tasmax," in wrong["bounds"]
    with xr.open_dataset(next((tmp_path / "cordex-adjust").rglob("prAdjust*.nc"))) as ds:
        assert ds["prAdjust"].attrs["long_name"] == "Bias-Adjusted Daily mean of pr"
        assert ds.attrs["project_id"] == "CORDEX-Adjust" and ds.attrs["bc_period"] == "1991-2020"
        assert ds["prAdjust"].attrs["quantization_nsb"] == 10


WHO = {"contact": "office@example.org", "license": "CC-BY-4.0"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("drs", ["espo-g6", "cordex-adjust"])
def test_each_asset_of_the_stac_items_has_the_numbers_and_the_land_of_the_archive(
    configured: Callable[..., list[Path]], tmp_path: Path, drs: str
) -> None:
    pystac = pytest.importorskip("pystac")
    edit(configured()[0], lambda content: content["clean_up"]["xscen_clean_up"]["add_attrs"]["global"].update(WHO))
    archives, out = make_archives(bits=10), tmp_path / "netcdf"
    assert cli.main(["export", "--drs", drs, str(out)]) == 0
    assert cli.main(["publish", "--stac", "--exported", str(out)]) == 0
    collection = pystac.Collection.from_file(str(tmp_path / "final" / "stac" / "collection.json"))
    for item in collection.get_items():
        content = archives[item.properties["cat:id"]]
        assets = {kind: [] for kind in ("application/zip", "application/netcdf")}
        for asset in item.assets.values():
            assets[asset.media_type].append(asset.get_absolute_href())
        archive, files = assets.values()
        opened = [xr.open_zarr(ZipStore(archive[0], mode="r")), xr.open_mfdataset(files)]
        suffix = "Adjust" if drs == "cordex-adjust" else ""
        for name in ("tasmax", "tasmin", "pr"):
            for ds, named in zip(opened, (name, name + suffix), strict=True):
                np.testing.assert_array_equal(ds[named].values, content[name].values)
    assert len(list(collection.get_items())) == 2


def test_a_killed_export_leaves_nothing_half_written_and_goes_on_after_the_last_whole_file(
    archives: dict[str, xr.Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "netcdf"
    task, describe = one(out), netcdf._describe

    def killed_in_the_second_file(made: netCDF4.Variable, attrs: dict[str, object]) -> None:
        if made.name == "tasmax" and list((out / NC).glob("*.nc")):
            os.kill(os.getpid(), signal.SIGKILL)
        describe(made, attrs)

    monkeypatch.setattr(netcdf, "_describe", killed_in_the_second_file)
    if not (child := os.fork()):
        task.work()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    notes, *half, made = written(out / NC)
    whole = [made]
    assert (
        notes == f".{STEM}.sha256.espo-notes"
        and half
        and all(".partial/" in one for one in half)
        and whole == [f"{STEM}_19910101-19941231.nc"]
        and not task.complete()
    )
    first = identity_of(out / NC / whole[0])
    monkeypatch.setattr(netcdf, "_describe", describe)
    task.work()
    assert task.complete() and identity_of(out / NC / whole[0]) == first
    assert written(out / NC) == [f"{STEM}.sha256", *whole, f"{STEM}_19950101-19971231.nc"]


def test_a_deleted_file_is_written_again_alone(archives: dict[str, xr.Dataset], tmp_path: Path) -> None:
    task = one(tmp_path / "netcdf")
    task.work()
    first, second = files_of(task.out_checksums().path)
    kept = identity_of(first)
    second.unlink()
    assert not task.complete()
    task.work()
    assert task.complete() and identity_of(first) == kept and second.exists()


@pytest.mark.parametrize("sums_are", ["there", "deleted", "damaged", "a folder"])
def test_a_file_that_has_changed_since_its_export_is_refused_and_stays(
    sums_are: str, archives: dict[str, xr.Dataset], tmp_path: Path
) -> None:
    task = one(tmp_path / "netcdf")
    task.work()
    sums = task.out_checksums().path
    first, second = files_of(sums)
    with netCDF4.Dataset(first, "a") as file:
        file["tasmax"][0, 5, 5] = 0
    if sums_are == "damaged":
        sums.write_bytes(b"\xff\xfe\n")
    elif sums_are == "there":
        second.unlink()
    else:
        sums.unlink()
    if sums_are == "a folder":
        sums.mkdir()
        (sums / "thesis").touch()
    before = {path: path.read_bytes() for path in sums.parent.rglob("*") if path.is_file()}
    with pytest.raises(store.marker.StoreError, match=r"was not replaced or removed: .* Move it away"):
        task.work()
    assert {path: path.read_bytes() for path in sums.parent.rglob("*") if path.is_file()} == before


def test_a_new_archive_makes_the_export_stale_and_its_files_are_replaced_under_new_checksums(
    archives: dict[str, xr.Dataset], tmp_path: Path, own_settings: LuigiConfigParser
) -> None:
    out = tmp_path / "netcdf"
    one(out).work()
    former = (out / NC / f"{STEM}_19910101-19941231.nc").read_bytes()
    left = out / NC / f"{STEM}_19600101-19631231.nc"  # of a longer period, once
    left.write_bytes(former)
    sums = one(out).out_checksums().path
    lines, _, mark = sums.read_text().rpartition(SUMS_MARK)
    lines = f"{hashlib.sha256(former).hexdigest()}  {left.name}\n{lines}"
    said = json.loads(mark) | {"sha256": {"": hashlib.sha256(lines.encode()).hexdigest()}}
    sums.write_text(f"{lines}{SUMS_MARK}{json.dumps(said)}\n")
    extract = out / NC / f"{STEM}_19910101-19911231.nc"  # of the user, with all attributes of the exported file
    first_year = ["cdo", "-s", "-seltimestep,1/365", out / NC / f"{STEM}_19910101-19941231.nc", extract]
    subprocess.run(first_year, check=True)
    extracted = extract.read_bytes()
    beside = out / NC / f"{STEM}_min_19600101-19631231.nc"  # of a variable whose name begins so
    beside.write_bytes(former)
    archive = tasks.ConcatenationFinal(sim_id=NOLEAP)
    ds = archives[NOLEAP].map(lambda data: data + 1, keep_attrs=True)
    store.write_store(ds, archive.out_scenario().path, archive.marker(), chunks={"time": 1440})
    text = json.loads(archive.marker().to_json()) | {"config_hash": "another"}
    store.pack(archive.out_scenario().path, archive.out_final().path, store.Marker.from_json(json.dumps(text)))
    assert one(out).stale() == [f"input {archive.label()}"]
    own_settings.set("espo", "rerun", "stale")
    assert not one(out).complete()
    one(out).work()
    assert one(out).complete() and not left.exists() and beside.exists() and extract.read_bytes() == extracted
    assert (out / NC / f"{STEM}_19910101-19941231.nc").read_bytes() != former


def test_it_runs_as_a_job_with_its_figures_and_is_planned(
    archives: dict[str, xr.Dataset], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "netcdf"
    assert cli.main(["export", "--sim-id", "360Day", "--plan", str(out)]) == 0
    planned = capfd.readouterr().out
    row = next(line.split() for line in planned.splitlines() if line.startswith("Export "))
    assert row[1:3] == ["-", "3"] and not out.exists()
    assert build([every_export(out, "espo-g6", "360Day")], log_level="ERROR").succeeded
    assert {Path(name).parts[1] for name in written(out) if name.endswith(".nc")} == {"Demo-360Day"}
    results = [json.loads(path.read_text()) for path in (tmp_path / "run" / "jobs" / "Export").glob("*.result.json")]
    assert [result["made"]["files"] for result in results] == [2, 2, 2]


def test_luigis_own_command_takes_it_with_relative_paths(archives: dict[str, xr.Dataset], tmp_path: Path) -> None:
    paths = " ".join(str(tmp_path / name) for name in ("config.yml", "paths.yml"))
    (tmp_path / "luigi.cfg").write_text(f"[espo]\nconfig = {paths}\nworkdir = {tmp_path / 'run'}\nengine = local\n")
    own_drs(tmp_path)
    luigi = [str(Path(sys.executable).parent / "luigi"), "--module", "espo_luigi.tasks", "--local-scheduler"]
    words = ["Exports", "--sim-id", "NoLeap", "--folder", "here", "--drs", "./own.yml"]
    subprocess.run([*luigi, *words], cwd=tmp_path, check=True, timeout=600)
    assert len([name for name in written(tmp_path / "here") if name.startswith("Demo-NoLeap/")]) == 3 * 3


# What is wrong.


def test_all_missing_attributes_are_named_at_once_with_where_to_give_them(
    archives: dict[str, xr.Dataset], tmp_path: Path, refused: Callable[..., str]
) -> None:
    said = refused("--drs", "cordex-adjust", tmp_path / "netcdf")
    assert "2 problems" in said and "- contact (6 product(s)" in said and "- license (6 product(s)" in said
    assert "clean_up.xscen_clean_up.add_attrs.global" in said and "cordex-adjust.yml" in said
    assert not (tmp_path / "netcdf").exists() and not (tmp_path / "run" / "jobs").exists()


def test_an_export_of_a_simulation_counts_its_own_products_only(
    archives: dict[str, xr.Dataset], tmp_path: Path, refused: Callable[..., str]
) -> None:
    said = refused("--drs", "cordex-adjust", "--sim-id", "NoLeap", tmp_path / "netcdf")
    assert "- license (3 product(s)" in said and "Demo-360Day" not in said
    run, drs = context(), load_drs(own_drs(tmp_path, required=["license"]))
    archive = store.open_store(run.archives(NOLEAP)["pr"].path).load()
    write(
        task := tasks.ConcatenationFinal(sim_id=NOLEAP), archive.assign_attrs(license="CC0"), task.out_scenario().path
    )
    store.pack(task.out_scenario().path, task.out_final().path)
    names_of(run, drs).check([NOLEAP])
    with pytest.raises(ParameterError, match=r"license \(3 product.*360Day"):
        names_of(run, drs).check(run.simulations)


@pytest.mark.parametrize(
    ("institution", "project", "refusal"),
    [("ESPO-DEMO", "ESPO-demo", ""), (None, "ESPO-demo", "- institution (6 product(s)"), ("A", None, "{project}")],
)
def test_a_plan_and_a_run_tell_once_that_an_export_would_be_refused(
    configured: Callable[..., list[Path]],
    institution: str | None,
    project: str | None,
    refusal: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (config, *_) = configured()

    def change(content: dict[str, Any]) -> None:
        content["clean_up"]["xscen_clean_up"]["add_attrs"]["global"].pop("institution", None)
        content["project"]["name"] = project
        for how in content["biasadjust"]["variables"].values():
            how["adjusting_args"]["bias_adjust_institution"] = institution

    edit(config, change)
    with caplog.at_level("WARNING"):
        assert cli.main(["plan"]) == 0
        list(All().everything())
    told = [record.getMessage() for record in caplog.records if "`espo export`" in record.getMessage()]
    assert len(told) == bool(refusal) and all(refusal in one for one in told)


def test_an_attribute_of_the_raw_files_counts_before_there_are_products(
    configured: Callable[..., list[Path]], tmp_path: Path
) -> None:
    configured()
    run = context()
    names_of(run, load_drs(own_drs(tmp_path, required=["institution_id"]))).check(run.simulations)
    with pytest.raises(ParameterError, match="- contact"):  # of a single file
        names_of(run, load_drs(own_drs(tmp_path, required=["institution_id", "contact"]))).check(run.simulations)


def test_an_attribute_of_the_archives_is_there(archives: dict[str, xr.Dataset], tmp_path: Path) -> None:
    every_export(tmp_path / "netcdf", own_drs(tmp_path, required=["history", "cat:source"]))


def test_a_drs_that_cannot_be_used_stops_before_anything_is_written(
    archives: dict[str, xr.Dataset], tmp_path: Path, refused: Callable[..., str]
) -> None:
    own = own_drs(tmp_path, file="{variable}_{experiment}_{dates}.nc", folder="all")
    assert "2 products would have the same files" in refused("--drs", own, tmp_path / "netcdf")
    assert not (tmp_path / "netcdf").exists()


def test_a_folder_with_the_export_of_another_drs_or_another_run_is_refused(
    archives: dict[str, xr.Dataset], tmp_path: Path, refused: Callable[..., str]
) -> None:
    out = tmp_path / "netcdf"
    one(out).work()
    before = written(out)
    assert "DRS espo-g6, and this is by espo-v2" in refused("--drs", "espo-v2", out)
    own = own_drs(tmp_path)
    one(tmp_path / "own", own).work()
    own_drs(tmp_path, years=10)
    assert "which named files otherwise" in refused("--drs", own, tmp_path / "own")
    edit(tmp_path / "paths.yml", lambda content: content["paths"].update(final=str(tmp_path / "second")))
    assert f"holds the products of {tmp_path / 'final'}" in refused(out)
    assert written(out) == before


def test_a_product_of_another_configuration_is_named_with_what_changed(
    archives: dict[str, xr.Dataset], tmp_path: Path, refused: Callable[..., str]
) -> None:
    edit(tmp_path / "config.yml", lambda content: content["custom"].update(final_chunks={"lat": 5, "lon": 9}))
    said = refused(tmp_path / "netcdf")
    assert "(changed since: custom.final_chunks)" in said
    assert "--rerun stale" in said and not (tmp_path / "netcdf").exists()


def test_an_export_of_another_configuration_is_named(
    archives: dict[str, xr.Dataset], tmp_path: Path, refused: Callable[..., str]
) -> None:
    one(tmp_path / "netcdf").work()
    change = {"period": ["1991", "2010"]}
    edit(
        tmp_path / "config.yml",
        lambda content: content["biasadjust"]["variables"]["pr"]["training_args"].update(change),
    )
    assert "(changed since: biasadjust" in refused(tmp_path / "netcdf")


def test_a_file_in_the_folders_place_is_named(
    archives: dict[str, xr.Dataset], tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "netcdf").write_text("")
    for folder in (tmp_path / "netcdf", tmp_path / "netcdf" / "below"):
        assert "netcdf is no folder that you may write" in refused(folder)


def test_a_file_of_somebody_else_is_never_overwritten(archives: dict[str, xr.Dataset], tmp_path: Path) -> None:
    foreign = tmp_path / "netcdf" / NC / f"{STEM}_19950101-19971231.nc"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("precious")
    with pytest.raises(
        store.marker.StoreError, match=r"19950101-19971231\.nc was not replaced .* output of espo_luigi"
    ):
        one(tmp_path / "netcdf").work()
    assert foreign.read_text() == "precious" and written(foreign.parent) == [foreign.name]


def test_the_range_of_which_tasmin_was_made_and_unknown_simulations_are_no_products(
    archives: dict[str, xr.Dataset], tmp_path: Path, refused: Callable[..., str]
) -> None:
    wrong = Export(sim_id=DAY360, var="dtr", drs="espo-g6", folder=str(tmp_path))
    with pytest.raises(tasks.export.ParameterError, match="--var 'dtr' is not one of: tasmax, tasmin, pr"):
        wrong.check()
    assert "--sim-id 'NoLep' is not one of" in refused("--sim-id", "NoLep", tmp_path / "netcdf")
