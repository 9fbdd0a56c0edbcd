"""Nothing is published if an input was removed or replaced meanwhile."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import xarray as xr
from store_examples import MARKER

from espo_luigi.errors import InputChangedError
from espo_luigi.store import join_stores, open_store, pack, remove, unchanged, write_store


def ones() -> xr.Dataset:
    return xr.Dataset({"pr": ("time", [1.0, 1.0])}, {"time": [0, 1]})


@pytest.fixture(params=["a.zarr", "a.zarr.zip"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write_store(ones(), tmp_path / "a.zarr", MARKER)
    pack(tmp_path / "a.zarr", tmp_path / "a.zarr.zip")
    return tmp_path / str(request.param)


def make_again(path: Path) -> None:
    """The same task's same store, the second time."""
    again = path.with_name("again")
    write_store(ones(), again / "a.zarr", MARKER)
    pack(again / "a.zarr", again / "a.zarr.zip")
    remove(path)
    (again / path.name).rename(path)


def ways_to_publish(folder: Path) -> dict[str, Callable[[], None]]:
    template = folder / "template.zarr"
    write_store(ones(), template, MARKER)
    return {
        "written": lambda: write_store(ones(), folder / "out.zarr", MARKER),
        "joined": lambda: join_stores(
            open_store(template), [template], folder / "out.zarr", MARKER, dim="time", chunks={}
        ),
        "packed": lambda: pack(template, folder / "out.zarr.zip"),
    }


@pytest.mark.parametrize("way", ["written", "joined", "packed"])
@pytest.mark.parametrize(("change", "said"), [(remove, "is now gone"), (make_again, "is now marker")])
def test_nothing_is_published_once_an_input_is_gone_or_another(
    source: Path, tmp_path: Path, way: str, change: Callable[[Path], None], said: str
) -> None:
    folder = tmp_path / "out"
    publish = ways_to_publish(folder)[way]
    message = rf"{source} is not the store.*it was marker .*{said}.*tried again"
    with pytest.raises(InputChangedError, match=message), unchanged([source]):
        change(source)
        publish()
    assert [entry.name for entry in folder.iterdir()] == ["template.zarr"]


def test_a_missing_input_is_told_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(InputChangedError, match="it was missing"), unchanged([tmp_path / "a.zarr"]):
        pytest.fail("the work has begun")


def test_what_fails_because_its_input_went_says_so_and_other_failures_stay_what_they_are(source: Path) -> None:
    with pytest.raises(ZeroDivisionError), unchanged([source]):
        raise ZeroDivisionError
    with pytest.raises(InputChangedError) as caught, unchanged([source]):
        shutil.rmtree(source) if source.is_dir() else source.unlink()
        open_store(source)
    assert "there is no store" in str(caught.value.__cause__)


def test_an_input_that_stays_is_no_hindrance_then_or_later(source: Path, tmp_path: Path) -> None:
    with unchanged([source]):
        write_store(open_store(source), tmp_path / "b.zarr", MARKER)
    remove(source)
    write_store(ones(), tmp_path / "b.zarr", MARKER)
