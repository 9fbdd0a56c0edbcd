"""What `espo publish` writes of a configuration, for people to read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from complete_demo import complete_all, edit

from espo_luigi.commands import cli
from espo_luigi.publication.crate import METADATA_NAME


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
    edit(config, lambda content: content["extraction"]["simulation"]["search_data_catalogs"].update(periods=None))
    assert cli.main(["publish", "--crate"]) == 0
    assert cli.main(["plan", "--json"]) == 0
    assert cli.main(["status"]) in (0, 1)
    said = capfd.readouterr()
    assert "hunter2" not in said.out + said.err
    holding = [path for path in complete_demo.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert holding == [config]
    shown = [one for one in json.loads(crate.read_text())["@graph"] if "storage_options" in str(one.get("text"))]
    assert len(shown) == 4 and all("***" in one["text"] for one in shown)
