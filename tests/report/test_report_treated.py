"""What a report says of days that were not mapped between quantiles."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from report_examples import SIMULATIONS, properties, write_run

from espo_luigi import store
from espo_luigi.report.drawings import Drawing, with_pictures
from espo_luigi.report.page import Table
from espo_luigi.report.report_page import make_sections
from espo_luigi.report.treated import treated_section
from espo_luigi.report.view import RunView, TreatedStores
from espo_luigi.science.choices import TREATMENTS

MARKER = store.Marker("Example", {}, {}, {}, "abc")


def piece(cells: slice, days: list[int], pooled: bool) -> xr.Dataset:
    """Counts of 400 days in some of the 11 land cells of `properties`, stacked; of a pool, the second member has 0."""
    land = properties(0.0)["mean_tasmax"].stack(loc=("lat", "lon"), create_index=False)
    land = land[land.notnull().values][cells]
    counts = np.broadcast_to(np.array(days, np.int32), (land.size, len(TREATMENTS)))
    treated = xr.DataArray(
        counts, {"lat": land["lat"], "lon": land["lon"], "treatment": list(TREATMENTS)}, ("loc", "treatment")
    )
    if pooled:
        treated = xr.concat([treated, 0 * treated], "realization").assign_coords(realization=list(SIMULATIONS))
    return treated.assign_attrs(days=400).to_dataset(name="treated")


@pytest.fixture()
def view(tmp_path: Path) -> RunView:
    """Two simulations in a pool, on two pieces of the land."""
    found = write_run(tmp_path)
    product = tmp_path / "product.zarr"
    store.write_store(properties(0.0), product, MARKER)
    pr, tasmax = ((tmp_path / f"{name}-0.zarr", tmp_path / f"{name}-1.zarr") for name in ("pr", "tasmax"))
    for path, cells, treated in zip(pr, (slice(5), slice(5, None)), ([0, 40, 8, 0], [0, 0, 8, 4]), strict=True):
        store.write_store(piece(cells, treated, pooled=True), path, MARKER)
    # The second piece of tasmax has not been counted.
    store.write_store(piece(slice(5), [0, 0, 8, 0], pooled=False), tasmax[0], MARKER)
    none = tmp_path / "none.zarr"
    clipped = tmp_path / "clipped.zarr"
    store.write_store(piece(slice(11), [4] * 4, pooled=False)["treated"][:, 0].to_dataset(name="dtr"), clipped, MARKER)
    stores = {
        SIMULATIONS[0]: TreatedStores(product, {"pr": pr, "tasmax": tasmax}, {"pr": none, "tasmax": none}),
        SIMULATIONS[1]: TreatedStores(product, {"pr": pr}, {"pr": none, "dtr": clipped}),
    }
    return replace(found, treated=stores)


def test_shares_are_of_all_days_and_of_the_cells_of_all_pieces(view: RunView) -> None:
    (section,) = treated_section(view)
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    kinds = ["Jittered", "Made wet", "Extrapolated", "Tail kept", "Clipped"]
    assert list(table.columns) == ["Simulation", "Variable", *kinds]
    # No counts of tasmax are whole; of dtr nothing was counted but the clipped days.
    assert [list(row[1:]) for row in table.rows] == [
        ["pr", "0", f"{10 * 5 / 11:.3g}", "2", f"{6 / 11:.3g}", ""],
        ["pr", "0", "0", "0", "0", ""],
        ["dtr", "", "", "", "", "1"],
    ]


def test_a_run_that_clips_nothing_has_no_column_of_clipped_days(view: RunView) -> None:
    (section,) = treated_section(replace(view, treated={SIMULATIONS[0]: view.treated[SIMULATIONS[0]]}))
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert "Clipped" not in table.columns


def test_maps_have_the_treatments_that_occur(view: RunView) -> None:
    (section,) = treated_section(view)
    drawings = {block.name: block for block in section.blocks if isinstance(block, Drawing)}
    clipped = f"treated+{SIMULATIONS[1]}+dtr"
    assert set(drawings) == {f"treated+{SIMULATIONS[0]}+pr", clipped}
    assert list(drawings[clipped].arguments[0]) == ["Clipped"]
    (fields,) = drawings[f"treated+{SIMULATIONS[0]}+pr"].arguments
    assert list(fields) == ["Made wet", "Extrapolated", "Tail kept"]
    expected = np.array([10.0] * 5 + [0.0] * 6)
    np.testing.assert_allclose(fields["Made wet"].values.ravel()[1:], expected)
    assert np.isnan(fields["Made wet"].values[0, 0])
    pictures = [picture for part in with_pictures([section], 0) for picture in part.pictures]
    assert all(picture.png.startswith(b"\x89PNG") for picture in pictures) and len(pictures) == 2


def test_a_run_without_counts_has_no_such_section(view: RunView) -> None:
    titles = [section.title for section in make_sections(view)[0]]
    assert "Days treated otherwise" in titles
    titles = [section.title for section in make_sections(replace(view, treated={}))[0]]
    assert "Days treated otherwise" not in titles
