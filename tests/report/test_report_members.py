"""What a report says of the members of a pool: how far they are apart, and what was exchanged in each."""

from dataclasses import replace

import numpy as np
import pytest
from report_examples import DOMAIN, SIMULATIONS, field, properties, write_run

from espo_luigi import store
from espo_luigi.report.drawings import Drawing, short, with_pictures
from espo_luigi.report.html import Picture, Table
from espo_luigi.report.make import make_sections
from espo_luigi.report.members import means_of, members_section
from espo_luigi.report.reading import Reader, RunView
from espo_luigi.science.attributes import REPAIRS

POOL = "ScenarioMIP_Model_ssp585"
MARKER = store.Marker("Example", {}, {}, {}, "abc")


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """Two members whose means are 2 apart before the adjustment and 0.5 after it; days were exchanged in the first."""
    folder = tmp_path_factory.mktemp("run")
    found = write_run(folder)
    second = found.diagnosed[1]
    store.remove(second.scen_prop)
    # The member is adjusted on a part of the domain only: a cell more has no data.
    adjusted = properties(0.6)
    store.write_store(adjusted.where(adjusted["lon"] < -68.6), second.scen_prop, MARKER)
    inversions = {}
    for sim_id, days, attrs in zip(
        SIMULATIONS, (3.0, 0.0), ({REPAIRS: "tasmax > 335 K: missing, 1 value"}, {}), strict=True
    ):
        counts = {"before": days, "after": 0.0, "days": 100.0}
        maps = {name: field(np.full((3, 4), value), "Days", "1") for name, value in counts.items()}
        inversions[sim_id] = folder / f"{sim_id}+inversions.zarr"
        store.write_store(properties(0.0)[[]].assign(maps).assign_attrs(attrs), inversions[sim_id], MARKER)
    return replace(found, pools={POOL: SIMULATIONS}, inversions=inversions)


def test_the_spread_between_members_is_of_the_cells_that_all_have(view: RunView) -> None:
    means = {one.variable: one for one in means_of(view, Reader())}
    assert set(means) == {"tasmax", "pr"}
    assert means["tasmax"].raw.notnull().all("realization").sum() == 3 * 3 - 1
    # Of two values, the standard deviation is their distance by the root of two.
    for kind, apart in (("raw", 2.0), ("adjusted", 0.5)):
        assert means["tasmax"].spread(kind) == pytest.approx(apart / np.sqrt(2))
        np.testing.assert_allclose(means["tasmax"].apart(kind), [-apart / 2, apart / 2], atol=1e-9)
        assert means["pr"].spread(kind) == pytest.approx(apart / 10 / np.sqrt(2))


def test_the_page_has_the_spread_and_the_exchanges_of_each_member(view: RunView) -> None:
    (section,) = members_section(view)
    spread, changed = [block for block in section.blocks if isinstance(block, Table)]
    assert [POOL, DOMAIN, "tasmax", "2", "1.414", "0.354", "0.25", "K"] in [list(row) for row in spread.rows]
    assert [list(row[1:]) for row in changed.rows] == [
        ["33", "3.0000", "3", "0", "tasmax > 335 K: missing, 1 value", "none"],
        ["0", "0.0000", "0", "0", "none", "none"],
    ]
    drawings = [block.name for block in section.blocks if isinstance(block, Drawing)]
    assert drawings == [f"members+{POOL}", f"inversions+{SIMULATIONS[0]}"]
    (drawn,) = with_pictures([section])
    assert sum(isinstance(block, Picture) for block in drawn.blocks) == 2


def test_the_page_lists_simulations_below_their_pool(view: RunView) -> None:
    sections = {section.title: section for section in make_sections(view)[0]}
    blocks = sections["Inputs, versions and products"].blocks
    run = next(block for block in blocks if isinstance(block, Table) and block.caption == "The run")
    assert dict(run.rows)["Simulations"].splitlines() == [f"{POOL}:", *(f"• {one}" for one in SIMULATIONS)]
    assert sections["Members"].part == "changes"


def test_a_run_without_pools_has_no_such_section(view: RunView) -> None:
    alone = replace(view, pools={one: (one,) for one in SIMULATIONS}, inversions={})
    assert members_section(alone) == []


def test_a_regional_simulation_is_named_by_its_driving_member() -> None:
    name = "CMIP6_DD_MPI-ESM_r1i1p1f1_OURANOS_CRCM5_ssp370_v1-r1_NAM-12"
    assert short(name) == "CRCM5 ssp370 by MPI-ESM r1i1p1f1"
