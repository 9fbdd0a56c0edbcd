"""What is published is on the disk, with its name: a crash of the machine leaves it whole, or does not leave it.

And its checksum tells it from all else.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import exported_products as made
import pytest
from forced import Forced
from store_examples import MARKER, constant, pass_on

from espo_luigi.export.netcdf import Layout, described, write_netcdf
from espo_luigi.jobs.order import write_json
from espo_luigi.publication.catalogue import alone
from espo_luigi.publication.products import find_products
from espo_luigi.publication.stac import StacOptions, write_stac
from espo_luigi.replacing import by_content
from espo_luigi.store import write_store
from espo_luigi.store.inventory import digest_of
from espo_luigi.store.table import write_checksums


def _in_blocks(path: Path) -> None:
    write_store(constant(1), path, MARKER)


def _joined(path: Path) -> None:
    write_store(constant(2), path.with_name("first.zarr"), MARKER)
    pass_on("joined", path.with_name("first.zarr"), path)


def _packed(path: Path) -> None:
    write_store(constant(2), path.with_name("first.zarr"), MARKER)
    pass_on("packed", path.with_name("first.zarr"), path)


def _exported(path: Path) -> None:
    write_netcdf(described(made.on_map(years=1), "tasmax", "tasmax", {}), path, Layout({"T": 60, "Y": 2, "X": 3}))


def _checksums(path: Path) -> None:
    write_checksums({"pr.nc": "0" * 64}, path, MARKER)


def _catalogue(path: Path) -> None:
    with alone(path) as write:
        write(path, "id,path\n", by_content(lambda text: True, "a catalogue"))


def _stac(path: Path) -> None:
    final = path.parent / "final"
    made.publish(made.on_map(years=1), final / "final" / "day+sim+NAM.zarr.zip", sim_id=made.SIM)
    write_stac(find_products(final), final, made.ABOUT, StacOptions(path), {})


def _result(path: Path) -> None:
    write_json(path, {"outcome": "success"})


@pytest.mark.parametrize(
    "write",
    [_in_blocks, _joined, _packed, _exported, _checksums, _catalogue, _stac, _result],
    ids=lambda one: one.__name__,
)
def test_what_gets_a_name_is_on_the_disk_and_then_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], None]
) -> None:
    path, forced = tmp_path / "product", Forced(monkeypatch)
    write(path)
    assert forced.early[path] == [], "not on the disk when it got its name"
    assert path in forced.kept


def test_a_folder_s_checksum_is_that_of_sha256sum_s_list_with_the_names(tmp_path: Path) -> None:
    folder = tmp_path / "a.zarr"
    for name, text in {"c/0": "first", "c/1": "second", "zarr.json": "{}"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    listed = "find . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1"
    as_made = digest_of(folder)
    assert subprocess.check_output(["bash", "-c", listed], cwd=folder, text=True).strip() == as_made
    shutil.move(folder / "c/0", folder / "c/2")
    assert digest_of(folder) != as_made
