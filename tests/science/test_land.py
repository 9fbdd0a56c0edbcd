"""Whether a part of a map has land is found by reading little, and its cells are counted on any grid."""

from __future__ import annotations

import dask.array
import numpy as np
import xarray as xr

from espo_luigi.science.geometry.cutting import subset_box
from espo_luigi.science.grid import TILE_CELLS, count_cells, holds_land, land_map


def make_field(rows: int, columns: int) -> xr.DataArray:
    grid = {"lat": np.linspace(40.0, 50.0, rows), "lon": np.linspace(-80.0, -60.0, columns)}
    return xr.DataArray(np.full((rows, columns), np.nan, "float32"), grid, name="tasmax")


def test_one_cell_with_data_is_land_wherever_it_is() -> None:
    for at in [(0, 0), (129, 199), (64, 63), (70, 100)]:
        field = make_field(130, 200)
        assert not holds_land(land_map(field))
        field[at] = 280.0
        assert holds_land(land_map(field)) and holds_land(land_map(field.T)) and holds_land(land_map(field.chunk()))


def test_reading_ends_at_the_first_tile_with_data_which_is_looked_for_in_the_middle() -> None:
    read: list[object] = []

    def count(block: np.ndarray, block_info: dict) -> np.ndarray:
        read.append(block_info[0]["chunk-location"])
        return block

    side = 5 * TILE_CELLS
    field = make_field(side, side).fillna(280.0)
    lazy = dask.array.from_array(field.values, chunks=TILE_CELLS).map_blocks(
        count, dtype="float32", meta=np.empty((0, 0))
    )
    assert holds_land(land_map(field.copy(data=lazy)))
    assert set(read) == {(2, 2)}


def test_the_cells_of_a_box_are_counted_on_any_grid() -> None:
    box = {"name": "box", "lat_bnds": (42.0, 44.0), "lon_bnds": (-70.0, -65.0)}
    field = make_field(11, 21)
    assert count_cells(subset_box(land_map(field), box)) == 3 * 6
    y, x = np.meshgrid(np.arange(11.0), np.arange(21.0), indexing="ij")
    turned = xr.DataArray(
        field.values,
        {"lat": (("rlat", "rlon"), 40 + y + 0.1 * x), "lon": (("rlat", "rlon"), -80 + x)},
        ("rlat", "rlon"),
        name="tasmax",
    )
    inside = (turned.lat >= 42) & (turned.lat <= 44) & (turned.lon >= -70) & (turned.lon <= -65)
    assert count_cells(subset_box(land_map(turned), box)) == int(inside.sum()) > 0
