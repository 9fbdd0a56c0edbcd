"""What a report says of days that were not mapped between quantiles."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from report_examples import SIMULATIONS, properties, write_run

from espo_luigi import store
from espo_luigi.report.drawings import Drawing, with_pictures
from espo_luigi.report.html import Table
from espo_luigi.report.make import make_sections
from espo_luigi.report.members import flags_section, treated_section
from espo_luigi.report.reading import Reader, RunView

MARKER = store.Marker("Example", {}, {}, {}, "abc")
SUMS = {"pr": {"jittered": 0, "made_wet": 200, "limited": 24, "held_back": 44}, "dtr": {"clipped": 44}, "tas": {}}


def product(counts: dict[str, dict[str, tuple[int, int]]]) -> xr.Dataset:
    """Maps of flags, beside maps that are none."""
    land = properties(0.0)["mean_tasmax"].notnull()
    first = land.copy(data=land.values.ravel().cumsum().reshape(land.shape) <= 5)
    made = {
        f"{variable}_days_{kind}": xr.where(first, *days).where(land).astype("float32").assign_attrs(days=400)
        for variable, of in counts.items()
        for kind, days in of.items()
    }
    return properties(0.0).assign(made)


def with_sums(sums: dict[str, dict[str, int]]) -> xr.Dataset:
    """A product whose variables have sums of days, of 11 cells and 400 days."""
    attrs = {var: {f"espo_luigi_days_{kind}": days for kind, days in of.items()} for var, of in sums.items()}
    one = xr.DataArray(np.zeros((2, 2)), dims=("lat", "lon"))
    return xr.Dataset({var: one.assign_attrs(of | {"espo_luigi_days": 4400}) for var, of in attrs.items()})


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """Two simulations: the first has an archive for each variable, the second one that is not there yet."""
    folder = tmp_path_factory.mktemp("run")
    paths = {variable: folder / f"{variable}.zarr" for variable in SUMS}
    for variable, path in paths.items():
        store.write_store(with_sums({variable: SUMS[variable]}), path, MARKER)
    archives = {SIMULATIONS[0]: tuple(paths.values()), SIMULATIONS[1]: (folder / "none.zarr",)}
    return replace(write_run(folder), archives=archives)


def test_shares_are_of_all_days_of_the_cells(view: RunView) -> None:
    (section,) = treated_section(view)
    (table,) = (block for block in section.blocks if isinstance(block, Table))
    assert [list(row[1:]) for row in table.rows] == [
        ["pr", "Jittered 0, Made wet 4.55, Tail kept 0.545, held_back 1"],
        ["dtr", "Clipped 1"],
    ]
    assert not [block for block in section.blocks if isinstance(block, Drawing)]


def test_flags_of_days_and_of_cells_have_a_table_and_a_figure_each(view: RunView, tmp_path: Path) -> None:
    assert flags_section([], Reader(), {}) == []
    made = product({"pr": {"jittered": (0, 0), "repaired": (40, 0), "signal_distorted": (400, 0)}})
    made["pr_days_signal_distorted"] = (made["pr_days_signal_distorted"] / 400).assign_attrs(days=1)
    store.write_store(made, tmp_path / "flags.zarr", MARKER)
    raised = {SIMULATIONS[0]: tmp_path / "flags.zarr", SIMULATIONS[1]: tmp_path / "none.zarr"}
    sections, _ = make_sections(replace(view, raised=raised))
    (section,) = (one for one in sections if one.title.startswith("Flags"))
    days, cells = (block for block in section.blocks if isinstance(block, Table))
    low, middle, high = np.cos(np.deg2rad([45.0, 45.5, 46.0]))
    share = 100 * (3 * low + 2 * middle) / (3 * low + 4 * middle + 4 * high)
    assert [list(days.columns[2:]), list(days.rows[0][2:])] == [["Jittered", "Repaired"], ["0", f"{share / 10:.3g}"]]
    assert [list(cells.columns[2:]), list(cells.rows[0][2:])] == [["Signal distorted"], [f"{share:.3g}"]]
    assert days.caption == "Share of days [%], mean over the domain" != cells.caption
    drawn = {one.name: one for one in section.blocks if isinstance(one, Drawing)}
    fields = drawn[f"flagged-days+{SIMULATIONS[0]}+pr"].arguments[0]
    np.testing.assert_allclose(fields["Repaired"].values.ravel()[1:], [10.0] * 5 + [0.0] * 6)
    assert np.isnan(fields["Repaired"].values[0, 0])
    assert list(drawn) == [f"flagged-{of}+{SIMULATIONS[0]}+pr" for of in ("days", "cells")]
    assert list(drawn[f"flagged-days+{SIMULATIONS[0]}+pr"].arguments[0]) == ["Repaired"]
    assert [picture.name for part in with_pictures([section]) for picture in part.pictures] == list(drawn)


def test_flags_are_ranked_with_their_shares(view: RunView, tmp_path: Path) -> None:
    made = product({"pr": {"arid": (400, 0)}, "dtr": {"arid": (0, 0)}})
    made = made.assign({name: (days / 400).assign_attrs(days=1) for name, days in made.items() if "arid" in str(name)})
    store.write_store(made, tmp_path / "flags.zarr", MARKER)
    sections, _ = make_sections(replace(view, raised={SIMULATIONS[0]: tmp_path / "flags.zarr"}))
    (ranked,) = (one for one in sections if one.title == "By rank")
    (rows,) = (block.rows for block in ranked.blocks if isinstance(block, Table) and block.columns[0] == "Look")
    assert [row[0].partition(", the most")[0] for row in rows if "arid" in row[0]] == ["arid: 46 % of the cells of pr"]


def test_a_run_without_counts_has_no_such_section(view: RunView) -> None:
    titles = [section.title for section in make_sections(view)[0]]
    assert "Days treated otherwise" in titles
    titles = [section.title for section in make_sections(replace(view, archives={}))[0]]
    assert "Days treated otherwise" not in titles
