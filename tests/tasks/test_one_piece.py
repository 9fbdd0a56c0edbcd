"""A task's outputs fit together and to the inputs that it read, whatever happens meanwhile."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import xarray as xr

from espo_luigi import store, tasks
from espo_luigi.errors import InputChangedError
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import context
from espo_luigi.tasks.inputs import COLUMNS


def ones(value: float = 1.0) -> xr.Dataset:
    return xr.Dataset({"pr": ("time", [value, value])})


@pytest.fixture()
def region(configured: Callable[..., list[Path]]) -> str:
    configured()
    return "south"


def test_outputs_of_two_works_are_not_complete(region: str) -> None:
    """Somebody deleted an output and changed the configuration; the job that remade it was killed in between."""
    task = tasks.RefDefault(piece=region)
    ours = task.marker()
    former = store.Marker(ours.task, ours.parameters, ours.versions, ours.inputs, "another")
    store.write_store(ones(), task.out_reference().path, ours)
    store.write_store(ones(), task.out_grid().path, former)
    assert not task.complete()
    store.write_store(ones(), task.out_grid().path, ours)
    assert task.complete()


def test_a_store_that_a_second_job_published_meanwhile_is_not_packed(
    region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.ConcatenationFinal(sim_id="SIM")

    def write(self: object, dataset: xr.Dataset, path: Path, marker: store.Marker) -> None:
        store.write_store(dataset, path, marker)
        store.write_store(ones(2), path, store.Marker(marker.task, marker.parameters))

    monkeypatch.setattr(tasks.ConcatenationFinal, "write", write)
    with pytest.raises(InputChangedError, match=r"was published by this job with the marker .*It is not packed"):
        task.publish({"": ones()})
    assert not task.out_final().path.exists()


def write_anew(file: Path) -> None:
    """Replace a file by its copy, as a download does."""
    aside = file.with_suffix(".download")
    aside.write_bytes(file.read_bytes())
    os.replace(aside, file)


def append(file: Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"\0")


@pytest.mark.parametrize(
    ("rule", "change"),
    [("Extract", write_anew), ("Extract", append), ("Extract", Path.unlink), ("RefDefault", append)],
)
def test_raw_files_that_change_while_they_are_read_stop_the_publication(
    region: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, change: Callable[[Path], None]
) -> None:
    sim_id = next(iter(context().simulations))
    task: EspoTask = tasks.RefDefault(piece=region) if rule == "RefDefault" else tasks.Extract(sim_id=sim_id)
    files = task.raw_files()
    assert files and all(file.is_file() for file in files)
    copies = [tmp_path / file.name for file in files]
    for file, copy in zip(files, copies, strict=True):
        copy.write_bytes(file.read_bytes())
    monkeypatch.setattr(type(task), "raw_files", lambda self: copies)
    store.write_table(COLUMNS, [], task.in_checked().path, store.Marker("InputCheck"))
    with (
        pytest.raises(InputChangedError, match=rf"the input {copies[-1]} is not the file.*tried again"),
        task.guarded(),
    ):
        change(copies[-1])
        store.write_store(ones(), tmp_path / "b.zarr", task.marker())
    assert not (tmp_path / "b.zarr").exists()


def test_a_rewritten_chunk_of_a_foreign_zarr_folder_stops_the_publication(tmp_path: Path) -> None:
    ones().to_zarr(tmp_path / "raw.zarr")
    with (
        pytest.raises(InputChangedError, match=r"raw\.zarr is not the file"),
        store.unchanged([], [tmp_path / "raw.zarr"]),
    ):
        ones(2).to_zarr(tmp_path / "raw.zarr", mode="r+", region={"time": slice(0, 2)})
        store.write_store(ones(), tmp_path / "b.zarr", store.Marker("Write"))
    assert not (tmp_path / "b.zarr").exists()


def test_a_missing_raw_file_is_left_to_its_reader_to_report(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), store.unchanged([], [tmp_path / "missing.nc"]):
        raise ZeroDivisionError


def test_rules_publish_after_unchanged_inputs_and_stop_readers_of_the_former_store(region: str) -> None:
    task = tasks.RefDefault(piece=region)
    following = tasks.ReferenceCalendar(piece=region, calendar="noleap")
    for each in (tasks.RefInputCheck(), task, following):
        with each.guarded():
            each.work()
        assert each.complete()
    opened = store.open_store(following.out_reference().path)
    store.remove(following.out_reference().path)
    with following.guarded():
        following.work()
    with pytest.raises(InputChangedError, match="was replaced or deleted"):
        opened.load()
