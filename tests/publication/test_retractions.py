"""Products made of retracted datasets, by lists as ESGF's services and people write them."""

import json
from pathlib import Path

import exported_products as made
import pytest
import xarray as xr

from espo_luigi import store
from espo_luigi.commands import cli
from espo_luigi.errors import CatalogError
from espo_luigi.publication.retractions import check

TREE = "/data/CMIP6/ScenarioMIP/CCCma/CanESM5/ssp585/r1i1p1f1/day/pr/gn/v20190429/pr_day_CanESM5_2015.nc"
OLD = "/data/cmip5/output1/IPSL/IPSL-CM5A-MR/rcp85/day/atmos/day/r1i1p1/v20111119/pr/pr_day_2006.nc"
HANDLES = {
    "/flat/pr_a.nc": "hdl:21.14100/0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab",
    "/flat/pr_b.nc": "1F2b8e0e-1b2c-4c1d-9c0e-0123456789ab",
    "/flat/nameless.nc": "",
}
NAMES = {"a": TREE, "b": OLD, "c": "/flat/pr_a.nc", "d": "/flat/pr_b.nc"}


@pytest.fixture()
def final(tmp_path: Path) -> Path:
    """Products a to d, each of a dataset with a raw file of its own; d has a second one, which is nameless."""
    for name, path in NAMES.items():
        raw = {f"files of {name}": f"of-{name}"}
        files = {path: HANDLES.get(path, f"hdl:21.14100/{name * 8}-0000-0000-0000-000000000000")}
        files |= {"/flat/nameless.nc": ""} if name == "d" else {}
        marker = store.Marker("ConcatenationFinal", {"sim_id": name}, fingerprints=raw)
        store.write_store(xr.Dataset({"pr": 1.0}), tmp_path / f"{name}.zarr", marker)
        looked = store.Marker("InputCheck", {"sim_id": name}, inputs=files, fingerprints=raw)
        store.write_table(["problem"], [], tmp_path / f"{name}_input.csv", looked)
    return tmp_path


def found(final: Path, text: str, name: str = "list.txt") -> str:
    (final / name).write_text(text)
    return "".join(sorted(Path(product).stem for product in check(final / name, final).found))


ISSUE = {
    "uid": "0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab",  # of the issue: by chance that of a file
    "title": "Wrong units", "severity": "critical", "status": "resolved", "project": "cmip6",
    "datasets": ["CMIP6.ScenarioMIP.CCCma.CanESM5.ssp585.r1i1p1f1.day.pr.gn#20190429"],
}  # fmt: skip
SEARCH = {
    "response": {
        "docs": [
            {
                "id": "CMIP6.ScenarioMIP.CCCma.CanESM5.ssp585.r1i1p1f1.day.pr.gn.v20190429.pr_2015.nc|esgf.x",
                "instance_id": "CMIP6.ScenarioMIP.CCCma.CanESM5.ssp585.r1i1p1f1.day.pr.gn.v20190429",
                "tracking_id": ["hdl:21.14100/1f2b8e0e-1b2c-4c1d-9c0e-0123456789ab"],
                "retracted": True,
            }
        ]
    }
}


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("hdl:21.14100/0F2B8E0E-1b2c-4c1d-9c0e-0123456789ab\n", "list.txt", "c"),
        ("# of May\n\nhttps://hdl.handle.net/21.14100/0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab", "list", "c"),
        ("1f2b8e0e-1b2c-4c1d-9c0e-0123456789ab\n9f2b8e0e-1b2c-4c1d-9c0e-0123456789ab\n", "list.txt", "d"),
        ("CMIP6.ScenarioMIP.CCCma.CanESM5.ssp585.r1i1p1f1.day.pr.gn.v20190429", "list.txt", "a"),
        ("CMIP6.ScenarioMIP.CCCma.CanESM5.ssp585.r1i1p1f1.day.pr.gn.v20190430", "list.txt", ""),
        ("CMIP6.ScenarioMIP.CCCma.CanESM5.ssp585.r1i1p1f1.day.pr.gr.v20190429", "list.txt", ""),
        ("cmip5.output1.IPSL.IPSL-CM5A-MR.rcp85.day.atmos.day.r1i1p1#20111119\n", "dataset.txt", "b"),
        ("tracking_id,why\r\nhdl:21.14100/0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab,units\r\n", "list.csv", "c"),
        (json.dumps(ISSUE, indent=1), "issue.json", "a"),
        (json.dumps([ISSUE, ISSUE]), "issues.json", "a"),
        (json.dumps(SEARCH), "search.json", "ad"),
    ],
)
def test_the_products_of_a_listed_file_or_dataset_are_named(final: Path, text: str, name: str, expected: str) -> None:
    assert found(final, text, name) == expected


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "list.txt", "list.txt: got no identifier, expected tracking ids"),
        ("hdl:21.14100/0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab\nCanESM5 all\n", "list.txt", "line 2: got 'CanESM5 all'"),
        ("CMIP6.ScenarioMIP.CCCma.CanESM5.ssp585.r1i1p1f1.day.pr.gn\n", "list.txt", "line 1: got 'CMIP6.Scen"),
        ("why\nbroken\n", "list.csv", "line 2: got 'broken'"),
        ('{"datasets": ["CMIP6', "list.json", "list.json cannot be read .*expected tracking ids"),
        ('{"uid": "0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab", "datasets": []}', "list.json", "got no identifier"),
    ],
)
def test_a_list_that_cannot_be_read_is_refused_with_the_line(
    tmp_path: Path, text: str, name: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(CatalogError, match=message):
        check(tmp_path / name, tmp_path)
    with pytest.raises(CatalogError, match="cannot be read"):
        check(tmp_path / "absent.txt", tmp_path)


def test_the_exit_code_tells_whether_any_was_found(final: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = final / "list.txt"
    listed.write_text("hdl:21.14100/0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab\n")
    assert cli.main(["catalog", "--check", str(listed), str(final)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("1 product(s) made of what is listed (1 identifiers)")
    assert f"{final}/c.zarr: pr_a.nc (0f2b8e0e-1b2c-4c1d-9c0e-0123456789ab)" in out
    listed.write_text("hdl:21.14100/9f2b8e0e-1b2c-4c1d-9c0e-0123456789ab\n")
    assert cli.main(["catalog", "--check", str(listed), str(final)]) == 1
    assert "/flat/nameless.nc: no tracking id" in capsys.readouterr().out
    store.remove(final / "d.zarr")
    assert cli.main(["catalog", "--check", str(listed), str(final), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["found"] == {}
    (final / "a_input.csv").unlink()  # what cannot be looked up is not free of retracted data
    assert cli.main(["catalog", "--check", str(listed), str(final)]) == 1
    assert "a: its raw files are unknown" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9f2b8e0e-1b2c-4c1d-9c0e-0123456789ab", {"/flat/nameless.nc", "/elsewhere" + OLD}),
        (
            "CMIP6.ScenarioMIP.CCCma.CanESM5.ssp585.r9i1p1f1.day.pr.gn.v20190429",
            {"/flat/nameless.nc", "/flat/pr_a.nc", "/flat/pr_b.nc"},
        ),
        (json.dumps(SEARCH | {"more": "9f2b8e0e-1b2c-4c1d-9c0e-0123456789ab"}), {"/flat/nameless.nc"}),
    ],
)
def test_files_without_an_identifier_of_the_lists_kinds_are_not_called_clean(
    final: Path, text: str, expected: set[str]
) -> None:
    raw = {"files of e": "of-e"}
    store.write_store(xr.Dataset({"pr": 1.0}), final / "e.zarr", store.Marker("Move", {}, fingerprints=raw))
    looked = store.Marker("InputCheck", {"sim_id": "e"}, inputs={"/elsewhere" + OLD: ""}, fingerprints=raw)
    store.write_table(["problem"], [], final / "e_input.csv", looked)
    listed = final / ("list.json" if text[0] == "{" else "list")
    listed.write_text(text)
    assert check(listed, final).unchecked.keys() == expected


def test_a_reference_from_outside_esgf_is_named_and_no_reason_to_fail(
    final: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.remove(final / "d.zarr")
    raw = {"files of ERA": "of-era"}
    store.write_store(xr.Dataset({"pr": 1.0}), final / "era.zarr", store.Marker("Move", {}, fingerprints=raw))
    looked = store.Marker("RefInputCheck", {}, inputs={"/era/pr.nc": "", "/era/tasmax.nc": "none"}, fingerprints=raw)
    store.write_table(["problem"], [], final / "era_input.csv", looked)
    listed = final / "list.txt"
    listed.write_text("hdl:21.14100/9f2b8e0e-1b2c-4c1d-9c0e-0123456789ab\n")
    assert cli.main(["catalog", "--check", str(listed), str(final)]) == 0
    assert "not of ESGF: ERA\n" in capsys.readouterr().out
    store.remove(final / "era_input.csv")
    looked = store.Marker("RefInputCheck", {}, inputs={"/era" + OLD: ""}, fingerprints=raw)  # of obs4MIPs
    store.write_table(["problem"], [], final / "era_input.csv", looked)
    assert cli.main(["catalog", "--check", str(listed), str(final)]) == 1


def test_tables_of_regions_are_products_too(final: Path) -> None:
    store.write_table(["mean"], [], final / "regions.csv", store.Marker("Regions", fingerprints={"files of c": "of-c"}))
    (final / "list").write_text(HANDLES["/flat/pr_a.nc"])
    assert check(final / "list", final).found.keys() == {str(final / name) for name in ("c.zarr", "regions.csv")}


def test_the_products_of_an_empty_folder_are_not_called_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list").write_text(made.FILES["/raw/pr_a.nc"])
    assert cli.main(["catalog", "--check", str(tmp_path / "list"), str(tmp_path / "empty")]) == 1
    assert "no product in" in capsys.readouterr().err
    assert cli.main(["catalog", "--check", "list", "--out", "x.json"]) == 2
    assert cli.main(["catalog", "folder"]) == 2


def test_a_list_of_points_without_end_is_looked_through_once(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("a." * 100_000)
    with pytest.raises(CatalogError, match=r"got 'a.a.*expected tracking ids"):
        check(tmp_path / "list", tmp_path)
