"""What a report says of aspects that were calibrated, and of those that were not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from report_examples import DOMAIN, SIMULATIONS, write_run

from espo_luigi import store
from espo_luigi.report.drawings import Drawing, with_pictures
from espo_luigi.report.html import Table, Warned
from espo_luigi.report.improvement import aspects_figure, aspects_in_doubt, read_compared, uncalibrated_section
from espo_luigi.report.make import make_sections
from espo_luigi.report.reading import RunView
from espo_luigi.science.diagnose.climate_aspects import aspects_of
from espo_luigi.science.variables import VARIABLES

MARKER = store.Marker("Example", {}, {}, {}, "abc")
CELLS = 20
# Of each aspect: whether it is calibrated, and how many cells are nearer, farther, and not right after adjusting.
BETTER = {"mean_pr_JJA": (True, 20, 0, 0), "wet_spell": (False, 2, 0, 9), "lag1_tasmax_DJF": (False, 0, 0, 20)}
WORSE = {"mean_pr_JJA": (True, 0, 0, 4), "wet_spell": (False, 1, 5, 9), "lag1_tasmax_DJF": (False, 0, 0, 20)}


def compared(aspects: dict[str, tuple[bool, int, int, int]]) -> xr.Dataset:
    """A comparison with these verdicts, in which the reference is 1, raw 1.5, adjusted 1.25 and noise 0.25."""
    cell = np.arange(CELLS)
    verdict = [
        np.where(cell < nearer, 1.0, np.where(cell >= CELLS - farther, -1.0, 0.0))
        for _, nearer, farther, _ in aspects.values()
    ]
    off = [np.where(cell < wrong, 1.0, 0.0) for *_, wrong in aspects.values()]
    shape = (len(aspects), CELLS)
    known = [aspects_of(VARIABLES)[name] for name in aspects]
    texts = {"long_name": [one.long_name for one in known], "units": [one.units for one in known]}
    return xr.Dataset(
        {
            "value": (("source", "aspect", "cell"), np.stack([np.full(shape, one) for one in (1.0, 1.5, 1.25)])),
            "noise": (("side", "aspect", "cell"), np.full((2, *shape), 0.25)),
            "p_value": (("aspect", "cell"), np.full(shape, 0.5)),
            "verdict": (("aspect", "cell"), np.stack(verdict)),
            "off": (("side", "aspect", "cell"), np.stack([np.ones(shape), np.stack(off)])),
            "calibrated": ("aspect", [one[0] for one in aspects.values()]),
        },
        {
            "source": ["reference", "raw", "adjusted"],
            "side": ["raw", "adjusted"],
            "aspect": list(aspects),
            **{name: ("aspect", np.array(of, dtype=object)) for name, of in texts.items()},
        },
        {"cells": f"{CELLS} of 90 land cells"},
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """The run of the examples."""
    return write_run(tmp_path_factory.mktemp("run"))


def view_of(run: RunView, folder: Path, of: dict[str, xr.Dataset]) -> RunView:
    """A run, with such a comparison of each simulation."""
    paths = {(sim_id, DOMAIN): folder / f"{sim_id}+compared.zarr" for sim_id in of}
    for (sim_id, _), path in paths.items():
        store.write_store(of[sim_id], path, MARKER)
    return replace(run, compared=paths)


@pytest.fixture()
def view(run: RunView, tmp_path: Path) -> RunView:
    return view_of(run, tmp_path, dict(zip(SIMULATIONS, (compared(BETTER), compared(WORSE)), strict=True)))


def test_what_was_made_worse_and_what_is_broken_is_in_doubt_with_the_largest_share(view: RunView) -> None:
    sections = make_sections(view)[0]
    assert "Calibrated and not" in [one.title for one in sections]
    (broken, share), (worse, farther) = aspects_in_doubt(read_compared(view)[0])
    assert broken.startswith("Mean precipitation, JJA: calibrated") and "in 1 of 2 pairs" in broken and share == 0.2
    assert worse.startswith("Mean length of wet spells: not calib") and "Model-B ssp585 r1i1p1f1, Mag" in worse
    assert farther == 0.25
    (ranked,) = (one for one in sections if one.title == "By rank")
    assert {broken, worse} <= {row[0] for table in ranked.blocks if isinstance(table, Table) for row in table.rows}


def test_nothing_is_in_doubt_if_nothing_is_worse(run: RunView, tmp_path: Path) -> None:
    found, _ = read_compared(view_of(run, tmp_path, {SIMULATIONS[0]: compared(BETTER)}))
    assert [*aspects_in_doubt(found)] == [*aspects_in_doubt({})] == []


def test_comparisons_of_0_2_0_have_the_aspects_short_names(run: RunView, tmp_path: Path) -> None:
    former = compared(WORSE).drop_vars(["long_name", "units"])
    found, reader = read_compared(view_of(run, tmp_path, {SIMULATIONS[0]: former}))
    (section,) = uncalibrated_section(found, reader)
    overview = next(block for block in section.blocks if isinstance(block, Table))
    assert {row[0] for row in overview.rows} == set(WORSE)


def test_tables_have_the_verdicts_and_the_numbers(view: RunView) -> None:
    (section,) = uncalibrated_section(*read_compared(view))
    overview, *pairs = (block for block in section.blocks if isinstance(block, Table))
    assert [list(row) for row in overview.rows] == [
        ["Mean length of wet spells", "not calibrated", "1", "0", "1", "8", "12", "100", "45"],
        ["Lag-1 autocorrelation of tasmax, DJF", "not calibrated", "0", "2", "0", "0", "0", "100", "100"],
        ["Mean precipitation, JJA", "calibrated", "1", "1", "0", "50", "0", "100", "10"],
    ]
    assert list(pairs[1].rows[0][1:]) == ["1", "1.5", "1.25", "0.25", "days", "5", "25", "100", "45", "farther"]
    assert "20 of 90 land cells" in section.blocks[0].text  # type: ignore[attr-defined]


def test_a_figure_of_each_pair_or_with_many_of_each_domain(view: RunView, monkeypatch: pytest.MonkeyPatch) -> None:
    def names() -> list[str]:
        (section,) = uncalibrated_section(*read_compared(view))
        pictures = [picture for part in with_pictures([section], 0) for picture in part.pictures]
        assert all(picture.png.startswith(b"\x89PNG") for picture in pictures)
        return [block.name for block in section.blocks if isinstance(block, Drawing)]

    assert names() == [f"calibrated+{DOMAIN}+{sim_id}" for sim_id in SIMULATIONS]
    monkeypatch.setattr("espo_luigi.report.improvement.MOST_SERIES", 1)
    assert names() == [f"calibrated+{DOMAIN}"]


def test_the_figure_has_distances_in_units_of_noise_and_the_mean_shares() -> None:
    figure = aspects_figure([compared(BETTER), compared(WORSE)])
    left, right, below, _ = figure.axes
    assert [text.get_text() for text in left.get_yticklabels()] == [
        "Mean length of wet spells",
        "Lag-1 autocorrelation of tasmax, DJF",
    ]
    assert [text.get_text() for text in below.get_yticklabels()] == ["Mean precipitation, JJA"]
    raw, adjusted = ([*line.get_xdata()] for line in left.lines[:2])
    assert (raw, adjusted) == ([2, 2], [1, 1])
    widths = [[bar.get_width() for bar in bars] for bars in right.containers]
    np.testing.assert_allclose(widths, [[7.5, 0], [80, 100], [12.5, 0]])


def test_missing_comparisons_are_listed_and_few_years_have_no_verdict(run: RunView, tmp_path: Path) -> None:
    few = compared(BETTER)
    few = few.assign({name: few[name] * np.nan for name in ("p_value", "verdict", "off")})
    found = view_of(run, tmp_path, {SIMULATIONS[0]: few})
    lacking = {(SIMULATIONS[1], DOMAIN): tmp_path / "none.zarr"}
    both = replace(found, compared={**found.compared, **lacking})
    (section,) = uncalibrated_section(*read_compared(both))
    warned = [block.text for block in section.blocks if isinstance(block, Warned)]
    assert warned[0] == "1 comparison without a verdict: noise needs 10 years or more."
    assert "none.zarr: not made" in warned[1]
    assert [*aspects_in_doubt(read_compared(both)[0])] == []
    assert uncalibrated_section(*read_compared(replace(found, compared={}))) == []
