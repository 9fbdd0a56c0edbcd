"""What a report opens with: the numbers of its sentences, its map, and the verdict."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from changes_example import BASELINE, write_changes_run
from report_examples import SIMULATIONS, measures, properties, write_run

from espo_luigi import store
from espo_luigi.report import changes
from espo_luigi.report.drawings import Drawing, with_pictures
from espo_luigi.report.first_screen import MUCH, VERDICTS, biases_of, of_one_sign
from espo_luigi.report.html import Section, Text, Verdict
from espo_luigi.report.make import PARTS, make_sections
from espo_luigi.report.reading import Made, Reader, RunView
from espo_luigi.science import quality
from espo_luigi.science.limits import RANKS

DOCUMENT = Path(__file__).parents[2] / "docs/check/right.md"
MARKER = store.Marker("Example", {}, {}, {}, "abc")
READY, LOOK, NOT = reversed(VERDICTS.values())
MISSING = Made("Move", "Move sim_id=X", (), False)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """A run of two simulations without a raised flag."""
    view = write_run(tmp_path_factory.mktemp("run"))
    told = {"adjusted": ("tasmax", "pr"), "method": "quantile mapping", "years": "1951-2100"}
    return replace(view, flags=dict.fromkeys(SIMULATIONS, view.flags[SIMULATIONS[1]]), **told)


def opened(view: RunView, made: list[Section] | None = None) -> tuple[Verdict, list[str], list[Drawing]]:
    """The verdict, the sentences and the map."""
    first = make_sections(view, changes=made or ())[0][0]
    assert first.part == "glance"
    (verdict,) = (block for block in first.blocks if isinstance(block, Verdict))
    said = [block.text for block in first.blocks if type(block) is Text]
    assert len(said) == 5
    return verdict, said, [block for block in first.blocks if isinstance(block, Drawing)]


def with_flag(view: RunView, folder: Path, flag: str, share: float) -> RunView:
    """The run with a flag of precipitation that is raised on a share of the days, or of the cells."""
    field = properties(0.0)["mean_pr"]
    days = xr.where(field.notnull(), 1000.0 * share, np.nan).assign_attrs(days=1000)
    store.write_store(xr.Dataset({f"pr_days_{flag}": days}), folder / "flags.zarr", MARKER)
    return replace(view, raised={SIMULATIONS[0]: folder / "flags.zarr"})


def test_a_run_without_doubts_is_ready_and_its_sentences_have_its_numbers(good: RunView) -> None:
    verdict, said, (drawn,) = opened(good)
    assert (verdict.text, verdict.level) == (READY, 0)
    assert "of 2 simulations" in said[0] and "1951-2100" in said[0] and "precipitation" in said[0]
    assert "uantile mapping" in said[1] and "ERA5-Land of 1991-2010" in said[1]
    # Biases are 1 and 3 K before, 0.1 K after; those of precipitation go down as much.
    assert (
        "from 2 to 0.1 K; of 2 properties, the median keeps 5 %" in said[2]
        and "farther than raw, in any simulation and domain: none" in said[2]
    )
    assert list(drawn.arguments[0]) == ["Raw", "Adjusted"]
    assert with_pictures([Section("", [drawn])])[0].pictures[0].name == "first-map"


def test_biases_are_means_of_absolute_values_over_cells_and_simulations(good: RunView) -> None:
    biases = biases_of(good, Reader())
    assert list(biases.index) == ["mean_tasmax", "mean_pr"]
    weights = np.cos(np.deg2rad(measures(0.0)["lat"]))
    raw = [float(abs(measures(offset)["mean_pr"]).weighted(weights).mean()) * 86400 for offset in (1.0, 3.0)]
    assert biases.raw["mean_pr"] == pytest.approx(np.mean(raw))
    assert biases.units.tolist() == ["K", "mm/d"]


@pytest.mark.parametrize(
    ("raw", "adjusted", "farther"),
    [(0.0, 1e-9, False), (0.0, 0.1, True), (1.0, 1.04, False), (1.0, 1.06, True), (np.nan, np.nan, False)],
)
def test_a_property_is_farther_by_more_than_a_tolerance(
    raw: float, adjusted: float, farther: bool, good: RunView, tmp_path: Path
) -> None:
    (one, *_), paths = good.diagnosed, {"sim_meas": tmp_path / "raw.zarr", "scen_meas": tmp_path / "adjusted.zarr"}
    field = measures(0.0)[["mean_tasmax"]]
    for path, value in zip(paths.values(), (raw, adjusted), strict=True):
        made = field.map(lambda of, value=value: xr.full_like(of, value).assign_attrs(of.attrs))
        store.write_store(made, path, MARKER)
    view = replace(good, diagnosed=(replace(one, **paths),))
    assert biases_of(view, Reader()).farther.tolist() == [farther]
    verdict, said, _ = opened(view)
    assert (verdict.text == NOT) == farther and "nan" not in said[2]


@pytest.mark.parametrize(
    ("flag", "share", "verdict"),
    [
        ("sign_flipped", 2 * MUCH, NOT),
        ("sign_flipped", MUCH / 2, LOOK),
        ("signal_distorted", 2 * MUCH, LOOK),
        ("signal_distorted", MUCH / 2, READY),
        ("extrapolated", 0.9, READY),
    ],
)
def test_the_verdict_follows_the_rank_of_a_flag_and_its_share(
    flag: str, share: float, verdict: str, good: RunView, tmp_path: Path
) -> None:
    found, said, _ = opened(with_flag(good, tmp_path, flag, share))
    assert found.text == verdict
    assert (flag in found.reason.lower()) == (verdict != READY)
    assert (flag in said[4]) == (verdict != READY)


def test_what_is_missing_or_was_not_checked_is_worth_a_look(good: RunView) -> None:
    assert opened(replace(good, products=(*good.products, MISSING)))[0].text == LOOK
    assert opened(replace(good, products=(MISSING,)))[0].text == NOT
    assert opened(replace(good, flags={}))[0].text == LOOK
    verdict, said, drawn = opened(replace(good, diagnosed=()))
    assert verdict.text == LOOK and drawn == [] and "not known" in said[2]


def test_a_value_that_cannot_be_is_not_to_be_used(good: RunView, tmp_path: Path) -> None:
    (row,) = store.read_table(good.flags[SIMULATIONS[0]])
    store.write_table(list(row), [row | {"raised": "True", "count": "2"}], tmp_path / "flags.csv", None)
    verdict, *_ = opened(replace(good, flags={**good.flags, SIMULATIONS[0]: tmp_path / "flags.csv"}))
    assert verdict.text == NOT and "tasmax below tasmin" in verdict.reason


@pytest.mark.parametrize("fewest", [1, 5])
def test_the_change_is_a_temperatures_in_the_last_experiment_with_as_much_as_its_members_allow(
    fewest: int, tmp_path: Path
) -> None:
    view = write_changes_run(tmp_path, fewest=fewest)
    sections, _ = changes.changes_sections(view)
    _, said, (drawn,) = opened(view, sections)
    ((where, field),) = drawn.arguments[0].items()
    assert where == "SSP5-8.5, 2021-2040"
    (one,) = [one for one in view.ensembles if (one.product, one.experiment) == ("delta", "ssp585")]
    ds = store.open_store(one.ensemble).sel(horizon="2021-2040")
    base = "tx_mean_clim_mean_delta_1991_2010"
    xr.testing.assert_allclose(field, ds[f"{base}_{'p50' if fewest == 1 else 'mean'}"], check_dim_order=False)
    weights = np.cos(np.deg2rad(ds["lat"]))
    ends = ("p10", "p50", "p90") if fewest == 1 else ("min", "max")
    numbers = [f"{float(ds[f'{base}_{end}'].weighted(weights).mean()):.3g}" for end in ends]
    middle = f"{numbers[0]} to {numbers[-1]}"
    assert (f"{numbers[1]} ({middle}, 10th to 90th percentile)" if fewest == 1 else f"by {middle} K") in said[
        3
    ] and "3 simulations" in said[3]
    assert BASELINE in drawn.caption
    assert [one.part for one in make_sections(view, changes=sections)[0] if one.title == "Indicators"] == ["changes"]


def test_values_of_one_sign_get_all_colours_of_that_sign() -> None:
    field, scale = properties(0.0)["mean_tasmax"] - 270, {"vmin": -30, "vmax": 30, "cmap": "RdBu_r"}
    made = of_one_sign(field, scale)
    assert (made["vmin"], made["vmax"]) == (float(field.min()), float(field.max()))
    red, _, blue, _ = made["cmap"](0.0)
    assert red > blue
    assert of_one_sign(field - 15, scale) == scale


def test_every_flag_has_the_rank_that_is_documented_and_every_part_a_title() -> None:
    told = dict[str, str]()
    for flags, rank in re.findall(r"\n\| (`\w+`[^|]*) \| ([a-z ]+)(?= \|)", DOCUMENT.read_text(encoding="utf-8")):
        told |= dict.fromkeys(re.findall(r"`(\w+)`", flags), rank)
    for of, attrs in (("days", quality._names({"jittered": 1}, "pr")), ("cells", quality._names({}, "pr", "cells"))):
        ranks = dict(zip(attrs["flag_meanings"].split(), attrs["flag_ranks"].split(), strict=True))
        assert set(ranks.values()) <= {*RANKS} and len(ranks) == len(attrs["flag_masks"])
        assert [rank.replace("_", " ") for rank in ranks.values()] == [told[flag] for flag in ranks], of
    assert all(re.fullmatch("[a-z]+", key) and title for key, title in PARTS.items())
