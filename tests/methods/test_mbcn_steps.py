"""The steps of a value of MBCn: its ranks among its sample, and the day whose univariate value it gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.stats import ortho_group, rankdata

from espo_luigi.methods.base import Setup
from espo_luigi.methods.mbcn import transform
from espo_luigi.methods.mbcn.method import steps_of_day
from espo_luigi.science.calendar import TimeAxis, day_of

UNITS = {"tasmax": "K", "pr": "mm d-1"}
TIME = xr.date_range("2001-01-01", "2003-12-31", calendar="noleap", use_cftime=True)


@pytest.mark.parametrize("members", [None, ("r1", "r2")])
def test_a_value_is_the_univariate_value_of_the_day_that_has_its_rank(members: tuple[str, ...] | None) -> None:
    axis = TimeAxis.of(xr.DataArray(np.zeros(TIME.size), {"time": TIME}, ["time"]))
    group = {"group": "time"} | ({"add_dims": ["realization"]} if members else {})
    setup = Setup(
        UNITS, axis, np.dtype("f8"),
        {"group": group, "n_iter": 4, "base": "QuantileDeltaMapping", "by_variable": {"pr": {"kind": "*"}}}, "seed",
        members=members,
    )  # fmt: skip
    random, n_members = np.random.default_rng(1), len(members or ("",))
    observed, modelled = random.gamma(2, 3, (2, 1, TIME.size)), random.gamma(2, 4, (2, 1, n_members, TIME.size))
    traced = np.full((5, 2, 1, n_members, TIME.size), np.nan)
    levels = (np.arange(20) + 0.5) / 20
    made = transform.adjust(
        observed, modelled, modelled, transform.plan(axis, axis),
        rotations=ortho_group.rvs(2, 4, random_state=random)[None, None],
        levels=levels,
        variables=[transform.Univariate("+", levels), transform.Univariate("*", levels)],
        traced=traced,
    )  # fmt: skip
    for row, (name, unit) in enumerate(UNITS.items()):
        ranks = rankdata(traced[0, row, 0]).reshape(n_members, -1)
        for member, day in ((0, 5), (n_members - 1, 1000)):
            given, result = float(modelled[row, 0, member, day]), float(made[row, 0, member, day])
            told = steps_of_day(
                traced[:, row, 0], given, result, setup, variable=name, units=unit, day=day, member=member
            )
            alone, before, after, last = told
            assert before.value == ranks[member, day] and before.value != after.value
            donor = np.argwhere(ranks == after.value)
            assert last.value == result == traced[0, row, 0][tuple(donor[0])]
            date = day_of(TIME[donor[0][1]])
            assert last.sentence.startswith(
                f"The univariate value of {date}{f' of {members[donor[0][0]]}' if members else ''},"
            )
            change = alone.value / given if name == "pr" else alone.value - given
            assert f"{change:.4g}" in alone.sentence and "all days, 2001-2003" in alone.sentence
            assert f"among {n_members * TIME.size}." in before.sentence


@pytest.mark.parametrize(
    ("how", "given", "alone", "said"),
    [
        ({"adapt_freq_thresh": "1 mm d-1"}, 0.2, 3.0, "made wet:"),
        ({"adapt_freq_thresh": "1 mm d-1"}, 2.0, 3.0, "× 1.5:"),
        ({"max_tail_factor": 10}, 900.0, 900.0, "kept:"),
    ],
)
def test_days_that_are_made_wet_or_kept_have_no_factor(
    how: dict[str, Any], given: float, alone: float, said: str
) -> None:
    axis = TimeAxis.of(xr.DataArray(np.zeros(TIME.size), {"time": TIME}, ["time"]))
    training = {
        "group": "time",
        "n_iter": 4,
        "base": "QuantileDeltaMapping",
        "by_variable": {"pr": {"kind": "*", **how}},
    }
    setup = Setup(UNITS, axis, np.dtype("f8"), training, "seed")
    traced = np.array([alone, 4, 5, 6, TIME.size])[:, None, None] * np.ones((5, 1, TIME.size))
    told = steps_of_day(traced, given, 2.0, setup, variable="pr", units="mm d-1", day=5, member=0)
    assert told[0].sentence.startswith(said)
