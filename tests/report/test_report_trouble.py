"""A report of a run of which something cannot be read or drawn says so, and is whole."""

import os
import signal
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from espo_luigi import store
from espo_luigi.report.drawings import Drawing, labels, with_pictures
from espo_luigi.report.html import Picture, Section
from espo_luigi.report.maps import _least_improved
from espo_luigi.report.reading import Diagnosed, Reader

IDS = [
    "CMIP6_ScenarioMIP_MPI-M_MPI-ESM_ssp585_r1i1p1f1_global",
    "CMIP6_ScenarioMIP_DKRZ_MPI-ESM_ssp585_r1i1p1f1_global",
]


def draw(parent: int, fatal: bool) -> Figure:
    if fatal and os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return Figure(figsize=(1, 1))


def test_a_damaged_chunk_is_said_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    store.write_store(xr.Dataset({"a": ("x", np.arange(1000.0))}), path, store.Marker("A"))
    chunk = path / "a" / "c" / "0"
    chunk.write_bytes(b"x" * chunk.stat().st_size)
    reader = Reader()
    assert reader.dataset(path) is None
    assert str(path) in reader.lacking[0]


def test_a_drawing_process_that_is_killed_costs_no_figure() -> None:
    drawings = [Drawing(f"figure-{n}", "A figure", draw, [os.getpid(), n == 1]) for n in range(3)]
    (section,) = with_pictures([Section("Figures", drawings)], processes=2)
    assert [type(block) for block in section.blocks] == [Picture] * 3


def test_simulations_of_one_short_name_are_told_apart() -> None:
    assert labels(IDS) == {sim_id: sim_id for sim_id in IDS}
    assert labels(IDS[:1]) == {IDS[0]: "MPI-ESM ssp585 r1i1p1f1"}


def test_a_share_that_is_unknown_is_not_the_lowest() -> None:
    several = [Diagnosed(sim, "Land", *[Path(str(n)) for n in range(7)]) for sim in "abc"]
    shares = {
        ("Land", one.sim_id): xr.DataArray([share], {"properties": ["mean"]}, ["properties"])
        for one, share in zip(several, (np.nan, 0.5, 0.25), strict=True)
    }
    assert [one.sim_id for one in _least_improved("mean", several, shares)] == ["c"]
