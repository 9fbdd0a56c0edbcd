"""The products of a run for other people: the catalogue, which many write at the same time, and the RO-Crate."""

import ast
import csv
import json
import multiprocessing
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from damaged import damaged
from hypothesis import assume, given, settings

from espo_luigi import store
from espo_luigi.catalog import read_catalogue
from espo_luigi.catalog.files import tracking_id
from espo_luigi.catalog.read import COLUMNS
from espo_luigi.errors import CatalogError, StoreError
from espo_luigi.files import write_new
from espo_luigi.publication import catalogue as catalogue_module
from espo_luigi.publication.catalogue import add_to_catalogue, alone, row_of
from espo_luigi.publication.origin import About, crate, listed
from espo_luigi.publication.products import find_products
from espo_luigi.replacing import by_digest

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["espo_luigi.publication.catalogue", "xarray", "zarr"])
SIM = "CMIP6_ScenarioMIP_X_Model_ssp585_r1i1p1f1_global"
SIM_ATTRS = {
    "cat:id": SIM,
    "cat:type": "simulation",
    "cat:processing_level": "final",
    "cat:mip_era": "CMIP6",
    "cat:source": "Model",
    "cat:xrfreq": "D",
    "cat:frequency": "day",
    "cat:domain": "NAM",
    "cat:date_start": "1950-01-01",
    "cat:variable": "tasmax,dtr",
    "cat:path": "/raw/pr.nc",
    "cat:format": "nc",
    "cat:bias_adjust_project": "ESPO",
    "cat:_data_format_": "zarr",
}
REF_ATTRS = {"cat:id": "X_Land_NAM", "cat:source": "Land", "cat:domain": "south", "cat:processing_level": "extracted"}
RAW = {"files of " + SIM: "0123456789ab", "custom.final_chunks": "ba9876543210"}


def daily(first: str = "2001-01-01", calendar: str = "noleap") -> xr.Dataset:
    time = xr.date_range(first, periods=360, calendar=calendar, use_cftime=True)
    return xr.Dataset({"tasmax": ("time", [280.0] * 360), "pr": ("time", [0.0] * 360)}, {"time": time})


def make(path: Path, dataset: xr.Dataset, task: str, **parameters: str) -> store.Marker:
    """Publish a store, or an archive, with a marker."""
    marker = store.Marker(task, parameters, {"espo_luigi": "0.1.0", "xarray": "2026.1"}, {}, "0123", fingerprints=RAW)
    folder = path.with_suffix("") if path.suffix == ".zip" else path
    store.write_store(dataset, folder, marker)
    if path.suffix == ".zip":
        store.pack(folder, path, marker)
        store.remove(folder)
    return marker


@pytest.fixture(scope="module")
def final(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kept products of a simulation and of the reference, of all kinds that a run has."""
    folder = tmp_path_factory.mktemp("products") / "final"
    make(folder / "final" / "day+sim+NAM.zarr.zip", daily().assign_attrs(SIM_ATTRS), "ConcatenationFinal", sim_id=SIM)
    region = daily().assign_attrs(SIM_ATTRS | {"cat:domain": "south", "cat:processing_level": "cleaned_up"})
    make(folder / "NAM_SPLIT" / "day+sim+south.zarr", region, "Move", sim_id=SIM, region="south")
    flags = xr.Dataset({"pr_negative": False}, attrs=SIM_ATTRS)
    make(folder / "checks" / "sim_checks.zarr", flags, "HealthChecks", sim_id=SIM)
    level = {"cat:processing_level": "off-diag-scen-meas", "cat:xrfreq": "fx", "cat:frequency": "fx"}
    measures = xr.Dataset({"mean_pr": ("lat", [1.0, 2.0])}, {"lat": [40.0, 41.0]}, SIM_ATTRS | level)
    make(folder / "diagnostics" / "meas.zarr.zip", measures, "OffDiagScenPropMeas", sim_id=SIM, diag_domain="Ute")
    reference = daily(calendar="standard").assign_attrs(REF_ATTRS | {"cat:xrfreq": "D"})
    make(folder / "reference" / "Land+south+default.zarr", reference, "RefDefault", region="south")
    for calendar in ("noleap", "360_day"):
        copy = daily(calendar=calendar).assign_attrs(reference.attrs)
        where = folder / "reference" / f"Land+south+{calendar}.zarr"
        make(where, copy, "ReferenceCalendar", region="south", calendar=calendar)
    make(folder / "reference" / "Land+south+coords.zarr", xr.Dataset({"land": ("lat", [True])}), "RefDefault")
    looked_at = {"/raw/pr.nc": "hdl:21.14100/1", "/raw/tas max.nc": ""}
    marker = store.Marker("InputCheck", {"sim_id": SIM}, inputs=looked_at, config_hash="0123", fingerprints=RAW)
    store.write_table(["problem"], [], folder / "checks" / "sim_input.csv", marker)
    (folder / "checks" / "half.zarr").mkdir()
    (folder / "checks" / "notes.csv").write_text("of no task\n")
    return folder


def test_products_are_all_that_have_a_marker(final: Path) -> None:
    found = {product.path.name: product.marker.task for product in find_products(final)}
    assert found == {
        "day+sim+NAM.zarr.zip": "ConcatenationFinal",
        "day+sim+south.zarr": "Move",
        "sim_checks.zarr": "HealthChecks",
        "meas.zarr.zip": "OffDiagScenPropMeas",
        "Land+south+default.zarr": "RefDefault",
        "Land+south+noleap.zarr": "ReferenceCalendar",
        "Land+south+360_day.zarr": "ReferenceCalendar",
        "Land+south+coords.zarr": "RefDefault",
        "sim_input.csv": "InputCheck",
    }


@pytest.mark.filterwarnings("ignore")
def test_intake_esm_finds_and_opens_each_dataset_by_itself(final: Path, tmp_path: Path) -> None:
    intake_esm = pytest.importorskip("intake_esm")
    done = add_to_catalogue(tmp_path / "out" / "cat.json", find_products(final), final)
    assert [path.name for path in done.left_out] == ["Land+south+coords.zarr"]
    opened = intake_esm.esm_datastore(
        str(tmp_path / "out" / "cat.json"), read_kwargs={"converters": {"variable": ast.literal_eval}}
    )
    assert set(opened.keys()) == {
        f"{SIM}.NAM.final.D",
        f"{SIM}.NAM.final.fx",
        f"{SIM}.south.cleaned_up.D",
        f"{SIM}.NAM.off-diag-scen-meas.fx",
        "X_Land_NAM.south.extracted.D",
        "X_Land_NAM.south.extracted_noleap.D",
        "X_Land_NAM.south.extracted_360_day.D",
    }
    assert opened.df["path"].is_unique and done.rows == len(opened.df) == 7
    options = {"decode_timedelta": False, "backend_kwargs": {"storage_options": None}}
    how: dict[str, Any] = {"progressbar": False, "xarray_open_kwargs": options}
    days = opened.search(xrfreq="D", processing_level=["cleaned_up", "^extracted"]).to_dataset_dict(**how)
    assert {key: ds["time"].dt.calendar for key, ds in days.items()} == {
        f"{SIM}.south.cleaned_up.D": "noleap",
        "X_Land_NAM.south.extracted.D": "proleptic_gregorian",
        "X_Land_NAM.south.extracted_noleap.D": "noleap",
        "X_Land_NAM.south.extracted_360_day.D": "360_day",
    }
    assert all(float(ds["tasmax"].mean()) == 280 for ds in days.values())
    # Of an archive it gives the path, which no string opens with Zarr 3.
    (archive,) = opened.search(processing_level="off-diag-scen-meas").df["path"]
    assert store.open_store(archive)["mean_pr"].values.tolist() == [1.0, 2.0]


def rows_of(catalogue: Path) -> list[dict[str, str]]:
    with catalogue.with_suffix(".csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_row_says_what_xscen_says_of_the_same_store(final: Path, tmp_path: Path) -> None:
    """As xscen 0.15.2 does (`update_from_ds`), but for seconds and the format, which it takes for the raw files'."""
    add_to_catalogue(tmp_path / "cat.json", find_products(final), final)
    (row,) = (row for row in rows_of(tmp_path / "cat.json") if row["path"].endswith("NAM.zarr.zip"))
    assert tuple(row) == COLUMNS
    assert {name: value for name, value in row.items() if value} == {
        "id": SIM,
        "type": "simulation",
        "processing_level": "final",
        "bias_adjust_project": "ESPO",
        "mip_era": "CMIP6",
        "source": "Model",
        "xrfreq": "D",
        "frequency": "day",
        "variable": "('pr', 'tasmax')",
        "domain": "NAM",
        "date_start": "2001-01-01 00:00",
        "date_end": "2001-12-26 00:00",
        "format": "zarr",
        "path": f"{final}/final/day+sim+NAM.zarr.zip",
    }
    read = {asset.path for asset in read_catalogue(tmp_path / "cat.json")}
    assert read == {str(product.path) for product in find_products(final) if product.marker.task != "InputCheck"} - {
        str(final / "reference" / "Land+south+coords.zarr")
    }


@pytest.mark.parametrize(("task", "level"), [("ConcatClean", "final"), ("ConcatCleanPreswap", "preswap")])
def test_a_row_has_level_and_frequency_though_the_clean_up_removed_the_attributes(
    task: str, level: str, tmp_path: Path
) -> None:
    """As ESPO v2's `remove_all_attrs_except` leaves them."""
    kept = {name: value for name, value in SIM_ATTRS.items() if name in ("cat:id", "cat:source", "cat:domain")}
    # The preswapped are joined like the final data, which writes that level.
    said = {"cat:processing_level": "final"} if level == "preswap" else {}
    make(tmp_path / "a.zarr.zip", daily(calendar="360_day").assign_attrs(kept | said), task, sim_id=SIM, var="pr")
    make(tmp_path / "one_day.zarr", daily().isel(time=[0]).assign_attrs(kept), task, sim_id=SIM, var="pr")
    days, one_day = (row_of(product) for product in find_products(tmp_path))
    assert (days["processing_level"], days["xrfreq"], days["frequency"]) == (level, xr.infer_freq(daily().time), "day")
    assert (one_day["processing_level"], one_day["xrfreq"], one_day["frequency"]) == (level, "", "")


def test_others_rows_and_columns_stay_and_products_that_are_gone_leave(final: Path, tmp_path: Path) -> None:
    """A catalogue as xscen 0.15 writes it, with its own order of columns and with a column of somebody."""
    table = "id,variable,path,rating\nother,\"('pr', 'tas')\",/elsewhere/a.zarr,5\n"
    table += f"gone,\"('pr',)\",{final}/gone.zarr,\nours,\"('old',)\",{final}/checks/sim_checks.zarr,4\n"
    (tmp_path / "pcat.csv").write_text(table)
    esmcat = {"esmcat_version": "0.1.0", "attributes": [], "catalog_file": str(tmp_path / "pcat.csv"), "title": "mine"}
    (tmp_path / "pcat.json").write_text(json.dumps(esmcat))
    done = add_to_catalogue(tmp_path / "pcat.json", find_products(final), final)
    assert (done.rows, done.others) == (7, 1)
    rows = {row["path"]: row for row in rows_of(tmp_path / "pcat.json")}
    assert list(rows["/elsewhere/a.zarr"])[:4] == ["id", "variable", "path", "rating"]
    assert {name: value for name, value in rows["/elsewhere/a.zarr"].items() if value} == {
        "id": "other",
        "variable": "('pr', 'tas')",
        "path": "/elsewhere/a.zarr",
        "rating": "5",
    }
    assert rows[f"{final}/checks/sim_checks.zarr"]["variable"] == "('pr_negative',)"
    assert [row["id"] for row in rows.values() if "gone" in row["path"]] == []
    assert json.loads((tmp_path / "pcat.json").read_text()) == esmcat
    again = add_to_catalogue(tmp_path / "pcat.json", find_products(final), final)
    assert (again.rows, again.others) == (7, 1)
    assert len(read_catalogue(tmp_path / "pcat.json")) == 8


def test_a_groups_catalogue_stays_the_groups(final: Path, tmp_path: Path) -> None:
    """A group keeps its right to write the catalogue when a run publishes."""
    if os.geteuid():
        pytest.skip("only root may give a file to a group that it is not in: run as root")
    add_to_catalogue(tmp_path / "pcat.json", find_products(final), final)
    for suffix in ("json", "csv"):
        os.chown(tmp_path / f"pcat.{suffix}", -1, 4242)
        os.chmod(tmp_path / f"pcat.{suffix}", 0o664)
    with (tmp_path / "pcat.csv").open("a") as table:
        table.write("other,,,,,,,,,,,,,,,,,,,,,,/elsewhere/a.zarr\n")
    add_to_catalogue(tmp_path / "pcat.json", find_products(final), final)
    for suffix in ("json", "csv"):
        found = (tmp_path / f"pcat.{suffix}").stat()
        assert (found.st_gid, found.st_mode & 0o777) == (4242, 0o664)


@pytest.mark.parametrize(
    ("json_text", "table", "said"),
    [
        ('{"catalog_dict": []}', "", "holds its rows itself"),
        ('{"catalog_file": "cat.csv"}', "id,name\n1,2\n", "expected a column `path`.*got the columns id, name"),
        ('{"catalog_file": "cat.csv"}', "id,path\n1,/a,3\n", "as many cells in each row as columns"),
        ('{"catalog_file": "no.csv"}', "", "no.csv.*cannot be read"),
        ("nonsense", "", "expected an intake-esm JSON"),
    ],
)
def test_a_catalogue_that_cannot_be_kept_is_refused_and_left_as_it_is(
    json_text: str, table: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "cat.json").write_text(json_text)
    (tmp_path / "cat.csv").write_text(table)
    with pytest.raises(CatalogError, match=said):
        add_to_catalogue(tmp_path / "cat.json", [], tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"cat.json": json_text, "cat.csv": table}


def in_a_process(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    process = FORKS.Process(target=work, args=arguments)
    process.start()
    return process


def add_one_by_one(catalogue: Path, folder: Path, start: float) -> None:
    """A run that puts its products into the catalogue as they are made."""
    products = find_products(folder)
    time.sleep(max(0.0, start - time.time()))
    for count in range(1, len(products) + 1):
        add_to_catalogue(catalogue, products[:count], folder)


def test_runs_that_publish_at_the_same_time_all_leave_all_rows_and_readers_see_a_whole_catalogue(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / f"run{number}" for number in range(5)]
    for folder in folders:
        for name in "ab":
            make(folder / f"{name}.zarr", xr.Dataset({"x": 1.0}, attrs=SIM_ATTRS), "Move", sim_id=folder.name)
    catalogue = tmp_path / "shared" / "cat.json"
    start = time.time() + 2
    processes = [in_a_process(add_one_by_one, catalogue, folder, start) for folder in folders]
    seen = []
    while any(process.is_alive() for process in processes):
        seen.append(len(read_catalogue(catalogue)) if catalogue.exists() else 0)
        time.sleep(0.005)
    seen.append(len(read_catalogue(catalogue)))
    assert [process.exitcode for process in processes] == [0] * 5
    assert {row["path"] for row in rows_of(catalogue)} == {
        str(run / f"{name}.zarr") for run in folders for name in "ab"
    }
    assert seen == sorted(seen) and seen[-1] == 10, "no row is ever lost again"
    assert sorted(path.name for path in catalogue.parent.iterdir()) == ["cat.csv", "cat.json"]


def stop_before_the_rename(catalogue: Path, folder: Path, reached: Path) -> None:
    """A run that is about to give the new table its name."""

    def write_and_wait(path: Path, text: str, durable: bool) -> None:
        write_new(path, text, durable=durable)
        reached.touch()
        time.sleep(60)

    catalogue_module.write_new = write_and_wait
    add_to_catalogue(catalogue, find_products(folder), folder)


def test_a_run_that_is_killed_while_it_writes_leaves_the_old_catalogue_and_nobody_waits_for_it(
    final: Path, tmp_path: Path
) -> None:
    catalogue = tmp_path / "cat.json"
    other = tmp_path / "other"
    make(other / "a.zarr", xr.Dataset({"x": 1.0}, attrs=SIM_ATTRS), "Move")
    add_to_catalogue(catalogue, find_products(other), other)
    before = catalogue.with_suffix(".csv").read_bytes()
    process = in_a_process(stop_before_the_rename, catalogue, final, tmp_path / "reached")
    deadline = time.monotonic() + 300
    while not (tmp_path / "reached").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    said = f"being written by process {process.pid} on {socket.gethostname()}"
    with pytest.raises(StoreError, match=said), alone(catalogue, patience_seconds=0.3):
        pass
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert catalogue.with_suffix(".csv").read_bytes() == before
    with alone(catalogue, patience_seconds=0):
        pass
    done = add_to_catalogue(catalogue, find_products(final), final)
    assert (done.rows, done.others) == (7, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cat.csv", "cat.json", "other", "reached"]


@pytest.fixture()
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """The lock of a process on another node."""
    lock = tmp_path / ".cat.json.lock"
    lock.write_text(json.dumps({"host": "another-node", "pid": 1, "started": "1"}))
    yield lock


def test_a_writer_on_another_node_is_waited_for_until_it_has_been_silent_for_long(
    elsewhere: Path, tmp_path: Path
) -> None:
    said = "process 1 on another-node, also after a long wait"
    with pytest.raises(StoreError, match=said), alone(tmp_path / "cat.json", patience_seconds=0.3):
        pass
    os.utime(elsewhere, (0, time.time() - 2 * catalogue_module.SILENT_SECONDS))
    with alone(tmp_path / "cat.json", patience_seconds=0.3) as write:
        write(tmp_path / "cat.json", "{}", by_digest(()))
    assert [path.name for path in tmp_path.iterdir()] == ["cat.json"]


def test_who_was_suspended_until_another_took_over_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cat.json").write_text("the other's")
    said = "was suspended, and another process writes there now"
    with pytest.raises(StoreError, match=said), alone(tmp_path / "cat.json") as write:
        (tmp_path / ".cat.json.lock").write_text(json.dumps({"host": "another-node", "pid": 1, "started": "1"}))
        monkeypatch.setattr("espo_luigi.jobs.retry.Clock.now", lambda clock: time.monotonic() + 10**6)
        write(tmp_path / "cat.json", "mine", lambda descriptor: "")
    assert (tmp_path / "cat.json").read_text() == "the other's"


ABOUT = About(
    "ESPO", "Scenarios", "CC-BY-4.0", "2026-01-01", "0123", '{"custom": {}}', {"/etc/espo/config.yml": "custom: {}\n"}
)


def entities(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {entity["@id"]: entity for entity in document["@graph"]}
    assert len(found) == len(document["@graph"])
    return found


def test_rocrate_reads_where_each_product_comes_from(final: Path, tmp_path: Path) -> None:
    rocrate = pytest.importorskip("rocrate.rocrate")
    moved = tmp_path / "moved"
    moved.symlink_to(final)
    document = crate(find_products(moved), moved, ABOUT)
    text = json.loads(json.dumps(document))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = rocrate.ROCrate(text)
    assert {part.id for part in read.root_dataset["hasPart"]} == {
        "NAM_SPLIT/day+sim+south.zarr/",
        "checks/sim_checks.zarr/",
        "checks/sim_input.csv",
        "diagnostics/meas.zarr.zip",
        "final/day+sim+NAM.zarr.zip",
        *(f"reference/Land+south+{name}.zarr/" for name in ("360_day", "coords", "default", "noleap")),
    }
    made_by = {result.id: action for action in read.root_dataset["mentions"] for result in listed(action["result"])}
    assert made_by.keys() == {part.id for part in read.root_dataset["hasPart"]}
    action = made_by["final/day+sim+NAM.zarr.zip"]
    assert action["name"] == f"ConcatenationFinal sim_id={SIM}"
    assert action["instrument"]["version"] == "0.1.0"
    needed = listed(action["instrument"]["softwareRequirements"])
    assert [(one["name"], one["version"]) for one in needed] == [("xarray", "2026.1")]
    raw, configuration, parameter = action["object"]
    assert (parameter["name"], parameter["value"]) == ("sim_id", SIM)
    assert raw["identifier"] == SIM
    assert [(file["name"], file.get("identifier")) for file in raw["hasPart"]] == [
        ("pr.nc", "hdl:21.14100/1"),
        ("tas max.nc", None),
    ]
    assert configuration["text"] == '{"custom": {}}'
    assert [file["text"] for file in listed(configuration["hasPart"])] == ["custom: {}\n"]
    # Everything that is referred to is there.
    known = entities(document)
    named = {ref for entity in known.values() for ref in references(entity)}
    assert {ref for ref in named if ref not in known and not ref.startswith("https://w3id.org/ro/crate/")} == set()


def references(value: Any) -> Iterator[str]:
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict) and set(inner) == {"@id"}:
            yield inner["@id"]
        elif isinstance(inner, (dict, list)):
            yield from references(inner)


def test_an_input_that_is_kept_is_named_and_one_that_was_replaced_since_is_not(tmp_path: Path) -> None:
    source = make(tmp_path / "a.zarr", xr.Dataset({"x": 1.0}), "RefDefault")
    (tmp_path / "old").mkdir()
    for name, work in (("same", source.id), ("older", "f" * 16)):
        marker = store.Marker("HealthChecks", {"sim_id": name}, inputs={"/was/once/here/a.zarr": work})
        store.write_table(["x"], [], tmp_path / f"{name}.csv", marker)
    known = entities(crate(find_products(tmp_path), tmp_path, ABOUT))
    made = {one["name"]: one["object"] for one in known.values() if one["@type"] == "CreateAction"}
    assert {"@id": "a.zarr/"} in made["HealthChecks sim_id=same"]
    assert {"@id": "a.zarr/"} not in made["HealthChecks sim_id=older"]


def test_the_text_of_a_former_configuration_is_kept_as_long_as_a_product_was_made_under_it(final: Path) -> None:
    products = find_products(final)
    first = crate(products, final, ABOUT)
    changed = About("ESPO", "Scenarios", "CC-BY-4.0", "2026-02-01", "4567", '{"custom": 1}', {"/b.yml": "custom: 1\n"})
    second = entities(crate(products, final, changed, first))
    assert second["#configuration-0123"]["text"] == '{"custom": {}}'
    assert second["#configuration-0123-0"]["text"] == "custom: {}\n"
    # The table of the raw files is gone: their names are not.
    without = [product for product in products if product.marker.task != "InputCheck"]
    third = entities(crate(without, final, changed, {"@graph": list(second.values())}))
    assert len(third[f"#raw-{SIM}-0123456789ab"]["hasPart"]) == 2
    assert third["#file-/raw/pr.nc"]["identifier"] == "hdl:21.14100/1"
    unrelated = [product for product in products if product.marker.config_hash != "0123"]
    assert "#configuration-0123" not in entities(crate(unrelated, final, changed, first))


def test_tracking_ids_are_those_of_the_raw_files(tmp_path: Path) -> None:
    known = xr.Dataset({"pr": 1.0}, attrs={"tracking_id": "hdl:21.14100/1"})
    known.to_netcdf(tmp_path / "a.nc")
    known.to_zarr(tmp_path / "a.zarr", consolidated=False)
    xr.Dataset({"pr": 1.0}).to_netcdf(tmp_path / "without.nc")
    (tmp_path / "damaged.nc").write_bytes(b"not NetCDF")
    found = {name: tracking_id(str(tmp_path / name)) for name in ("a.nc", "a.zarr", "without.nc", "damaged.nc")}
    assert found == {"a.nc": "hdl:21.14100/1", "a.zarr": "hdl:21.14100/1", "without.nc": "", "damaged.nc": ""}


def test_a_former_metadata_file_of_any_shape_costs_only_what_it_alone_knew(final: Path) -> None:
    products = find_products(final)
    without = [product for product in products if product.marker.task != "InputCheck"]
    whole = crate(products, final, ABOUT)
    changed = About("ESPO", "Scenarios", "CC-BY-4.0", "2026-02-01", "4567", '{"custom": 1}', {"/b.yml": "custom: 1\n"})
    expected = entities(crate(without, final, changed))

    @settings(max_examples=40, deadline=None)
    @given(damaged(whole) | damaged({"@graph": [one for one in whole["@graph"] if "hasPart" in one]}))
    def keeps_the_rest(former: Any) -> None:
        assume(isinstance(former, dict))  # `read_json` returns nothing else
        found = entities(json.loads(json.dumps(crate(without, final, changed, former))))
        recalled = {id for id in found if id.startswith(("#raw-", "#configuration-"))}
        assert {id: found[id] for id in expected if id not in recalled} == {
            id: entity for id, entity in expected.items() if id not in recalled
        }

    keeps_the_rest()


def test_no_address_with_a_secret_is_published(tmp_path: Path) -> None:
    make(tmp_path / "day.zarr", daily().assign_attrs(SIM_ATTRS), "ConcatenationFinal", sim_id=SIM)
    address = "https://me:hunter2@data.org/a/pr.nc?sig=hunter2"
    marker = store.Marker("InputCheck", {"sim_id": SIM}, inputs={address: "hdl:21.14100/1"}, fingerprints=RAW)
    store.write_table(["problem"], [], tmp_path / "sim_input.csv", marker)
    found = entities(crate(find_products(tmp_path), tmp_path, ABOUT))
    (file,) = [one for id, one in found.items() if id.startswith("#file-")]
    assert file["url"] == "https://***@data.org/a/pr.nc?sig=***" and file["name"] == "pr.nc"
    assert "hunter2" not in json.dumps(found)
