"""The benchmark of production's size: its input and configuration in ESPO v2's shape, and the table that it writes."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import production
from production_input import REFERENCE, make_input, region_of

from espo_luigi.config import load
from espo_luigi.tasks import partition
from espo_luigi.tasks.context import RunContext

V2 = production.WORKFLOWS["v2"]


@pytest.fixture(scope="module")
def v2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, production.Size]:
    """The input of a small run of v2 with two members, and its configuration."""
    folder = tmp_path_factory.mktemp("benchmark")
    region, cells = region_of(200, 20, V2.pole)
    size = production.Size(region, cells, last_year=2020, members=2)
    make_input(folder / "raw", region, size.last_year, size.members)
    production.configure(folder, V2, size)
    return folder, size


def test_the_run_of_v2_is_a_pool_of_the_members_in_three_slices_that_divide_nothing(v2: Any) -> None:
    folder, size = v2
    run = RunContext(load([folder / "config.yml", folder / "paths.yml"]))
    assert run.production.name == "espo-v2"
    assert [len(members) for members in run.pools.values()] == [2]
    assert run.land_cells == size.cells
    lengths = [run.production.pieces.cells(run, name) for name in partition.pieces(run)]
    assert len(lengths) == V2.pieces == 3 and lengths[0] == lengths[1] != lengths[2]
    assert all(length % run.config.custom.working_chunks["loc"] for length in lengths)
    assert run.config.custom.sim_period == ("1951", "2020")


def test_the_simulations_know_the_share_of_land_that_the_mask_has_in_their_cells(v2: Any) -> None:
    folder, _ = v2
    with (
        xr.open_dataset(next(folder.rglob("mask_*.nc"))) as reference,
        xr.open_dataset(next(folder.rglob("sftlf_*r2i1p1f1*.nc"))) as simulation,
    ):
        row, column = reference["lat"].round(), (reference["lon"] % 360).round()
        cell = (row == row[5, -2]) & (column == column[5, -2])
        share = 100 * float(reference["mask"].where(cell).mean())
        assert 5 < share < 95
        known = simulation["sftlf"].sel(lat=row[5, -2], lon=column[5, -2])
        np.testing.assert_allclose(float(known), share, rtol=1e-5)
        assert reference.attrs["source_id"] == REFERENCE


def test_a_workflow_s_rules_take_the_place_of_their_former_lines_beside_those_of_others(tmp_path: Path) -> None:
    path = tmp_path / "measured.yml"
    line = {"seconds": 1.0, "seconds_a_million": 2.0, "mib": 3.0, "mib_a_million": 0.0}
    first = {"processor": "one: fast", "date": "2026-11-01", "cells": [1, 2], "rules": {"Train": line, "Move": line}}
    other = {**first, "rules": {"Train": line | {"seconds": 5.0}, "Swap": line}}
    production.write_table(path, "espo-2024", first)
    production.write_table(path, "espo-v2", first)
    production.write_table(path, "espo-v2", other)
    # `Move`, which the later runs lacked, keeps its line.
    kept = {**other, "rules": other["rules"] | {"Move": line}}
    assert yaml.safe_load(path.read_text()) == {"espo-2024": first, "espo-v2": kept}


def test_linked_files_count_once_and_the_line_through_two_sizes_meets_both(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "c").write_bytes(b"1234567")
    (tmp_path / "store" / "linked").hardlink_to(tmp_path / "store" / "c")
    assert production.size_of(tmp_path) == 7
    constant, slope = production.line_through([2.0, 10.0], [14.0, 30.0])
    assert (constant, slope) == (10.0, 2.0)
