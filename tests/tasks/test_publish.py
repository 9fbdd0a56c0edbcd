"""What `espo publish` writes of a configuration, for people to read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from complete_demo import DAY360, NOLEAP, complete_all, edit

from espo_luigi.commands import cli
from espo_luigi.publication.origin import METADATA_NAME
from espo_luigi.tasks.context import forget


def test_no_secret_of_the_configuration_is_in_published_files(
    complete_demo: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = {"backend_kwargs": {"storage_options": {"key": "hunter2-id", "client_kwargs": {"Token": "hunter2"}}}}
    config, crate = complete_demo / "config.yml", complete_demo / "final" / METADATA_NAME
    edit(config, lambda content: content["extraction"]["simulation"]["extract_dataset"].update(xr_open_kwargs=secret))
    complete_all()
    assert cli.main(["publish", "--crate"]) == 0
    text = crate.read_text()
    # As an earlier version has written it.
    crate.write_text(text.replace('\\"Token\\": \\"***\\"', '\\"Token\\": \\"hunter2\\"'))
    assert "hunter2" in crate.read_text()
    edit(config, lambda content: content["project"].update(name="Renamed"))
    assert cli.main(["publish", "--crate"]) == 0
    assert cli.main(["plan", "--json"]) == 0
    assert cli.main(["status"]) in (0, 1)
    said = capfd.readouterr()
    assert "hunter2" not in said.out + said.err
    holding = [path for path in complete_demo.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert holding == [config]
    shown = [one for one in json.loads(crate.read_text())["@graph"] if "storage_options" in str(one.get("text"))]
    assert len(shown) == 4 and all("***" in one["text"] for one in shown)


def test_the_record_of_origin_holds_the_base_of_the_configuration(complete_demo: Path) -> None:
    (complete_demo / "config.yml").rename(complete_demo / "base.yml")
    (complete_demo / "config.yml").write_text("base: base.yml\n")
    forget()
    assert cli.main(["publish", "--crate"]) == 0
    graph = json.loads((complete_demo / "final" / METADATA_NAME).read_text())["@graph"]
    base = (complete_demo / "base.yml").absolute()
    assert [one["text"] for one in graph if one.get("url") == base.as_uri()] == [base.read_text()]


def test_without_rocrate_the_catalogue_is_written_and_the_crate_is_asked_for_in_vain(
    complete_demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    complete_all()
    there = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "rocrate" else there(name))
    (complete_demo / "final" / METADATA_NAME).unlink(missing_ok=True)
    before = {path: path.read_bytes() for path in (complete_demo / "final").glob("*.json")}
    assert cli.main(["publish", "--crate", "--catalog"]) == 1
    assert "needs the package rocrate" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (complete_demo / "final").glob("*.json")} == before
    assert cli.main(["publish"]) == 0
    said = capsys.readouterr().out
    assert "pip install 'espo_luigi[publication]'" in said
    assert "that are data" in said and not (complete_demo / "final" / METADATA_NAME).exists()
    assert f"no RELEASE.json covers the files in {(complete_demo / 'final').absolute()}" in said
    assert cli.main(["publish", "--released"]) == 1
    assert "RELEASE.json; expected a release" in capsys.readouterr().err


def test_relations_to_the_inputs_are_written_by_the_users_table_or_not_at_all(
    complete_demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(complete_demo)
    dois, written = complete_demo / "dois.csv", complete_demo / "final" / "datacite.json"
    dois.write_text("pattern,doi\n*_Demo-NoLeap_*,10.22033/ESGF/CMIP6.1\n*_Demo-NoLaep_*,10.22033/ESGF/CMIP6.2\n")
    assert cli.main(["publish", "--datacite", "--doi-table", "dois.csv"]) == 1
    assert "line 3: the pattern '*_Demo-NoLaep_*'" in capsys.readouterr().err
    assert not written.exists()
    dois.write_text("pattern,doi\n*_Demo-NoLeap_*,10.22033/ESGF/CMIP6.1\n")
    assert cli.main(["publish", "--datacite", "--doi-table", "dois.csv"]) == 0
    said = capsys.readouterr().out
    assert f"no DOI: {DAY360}" in said and NOLEAP not in said
    found = json.loads(written.read_text())
    assert [one["identifier"] for one in found["zenodo"]["related_identifiers"]] == ["10.22033/ESGF/CMIP6.1"]
    assert DAY360 in found["without_doi"] and NOLEAP not in found["without_doi"]
    # Only what is asked for.
    assert not (written.parent / METADATA_NAME).exists()
    assert cli.main(["publish", "--datacite", ".", "--json"]) == 1
    assert "datacite" not in {path.stem for path in complete_demo.iterdir()}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--exported netcdf", "--exported needs --stac"),
        ("--href https://a", "--href needs --stac"),
        ("--stac s --href data/espo", "--href data/espo is not a URL"),
        ("--doi-table dois.csv", "--doi-table needs --datacite"),
    ],
)
def test_an_option_without_that_to_which_it_belongs_is_a_wrong_command_line(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["publish", *words.split()]) == 2
    assert f"espo publish: {said}" in capsys.readouterr().err
