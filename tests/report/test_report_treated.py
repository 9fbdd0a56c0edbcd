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
from espo_luigi.report.view import RunView
from espo_luigi.science.choices import TREATMENTS

MARKER = store.Marker("Example", {}, {}, {}, "abc")


def product(**days: int) -> xr.Dataset:
    """A product that counts so many of 400 days, alike in its 11 land cells."""
    land = properties(0.0)["mean_tasmax"].notnull()
    counts = {name: xr.where(land, float(number), np.nan).assign_attrs(days=400) for name, number in days.items()}
    return properties(0.0).assign(counts)


@pytest.fixture()
def view(tmp_path: Path) -> RunView:
    """Two simulations, the second with a product for each variable, one of which is not there."""
    found = write_run(tmp_path)
    paths = [tmp_path / f"{name}.zarr" for name in ("both", "pr", "dtr", "none")]
    made = product(pr_days_jittered=0, pr_days_made_wet=40, pr_days_extrapolated=8, pr_days_limited=4)
    north = made["lat"] > made["lat"].min()
    for kind, south in (("made_wet", 40), ("limited", 0)):
        days = made[f"pr_days_{kind}"]
        made[f"pr_days_{kind}"] = days.where(north, south * days.notnull()).where(days.notnull()).assign_attrs(days=400)
    made["pr_days_made_wet"] = (made["pr_days_made_wet"] * ~north).assign_attrs(days=400)
    store.write_store(made, paths[0], MARKER)
    store.write_store(product(**{f"pr_days_{kind}": 0 for kind in TREATMENTS}), paths[1], MARKER)
    store.write_store(product(dtr_days_clipped=4), paths[2], MARKER)
    return replace(found, products_of={SIMULATIONS[0]: (paths[0],), SIMULATIONS[1]: tuple(paths[1:])})


def test_shares_are_of_all_days_and_of_all_land_cells(view: RunView) -> None:
    (section,) = treated_section(view)
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    kinds = ["Jittered", "Made wet", "Extrapolated", "Tail kept", "Clipped"]
    assert list(table.columns) == ["Simulation", "Variable", *kinds]
    # Of dtr nothing was counted but the clipped days.
    assert [list(row[1:]) for row in table.rows] == [
        ["pr", "0", f"{10 * 3 / 11:.3g}", "2", f"{8 / 11:.3g}", ""],
        ["pr", "0", "0", "0", "0", ""],
        ["dtr", "", "", "", "", "1"],
    ]


def test_a_run_that_clips_nothing_has_no_column_of_clipped_days(view: RunView) -> None:
    (section,) = treated_section(replace(view, products_of={SIMULATIONS[0]: view.products_of[SIMULATIONS[0]]}))
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
    expected = np.array([10.0] * 3 + [0.0] * 8)
    np.testing.assert_allclose(fields["Made wet"].values.ravel()[1:], expected)
    assert np.isnan(fields["Made wet"].values[0, 0])
    pictures = [picture for part in with_pictures([section], 0) for picture in part.pictures]
    assert all(picture.png.startswith(b"\x89PNG") for picture in pictures) and len(pictures) == 2


def test_a_run_without_counts_has_no_such_section(view: RunView) -> None:
    titles = [section.title for section in make_sections(view)[0]]
    assert "Days treated otherwise" in titles
    titles = [section.title for section in make_sections(replace(view, products_of={}))[0]]
    assert "Days treated otherwise" not in titles
