"""Groups of variables that are adjusted together: their usual settings, and what is refused before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from espo_luigi.config import RunConfig, load
from espo_luigi.config.usual import give_usual_settings
from espo_luigi.errors import ConfigurationError

THREE = ["tasmax", "dtr", "pr"]
LOGIT = {"lower_bound": "0 %", "upper_bound": "100 %", "trans": "logit", "margin": "1 %"}
Adjusting = Callable[..., RunConfig]


@pytest.fixture
def adjusting(content: dict[str, Any], write: Callable[..., Path]) -> Adjusting:
    """Return a function that loads the small configuration with a group only, and other changes."""

    def loaded(custom: dict[str, Any] | None = None, **group: Any) -> RunConfig:
        changed = deepcopy(content)
        for kind in ("reference", "simulation"):
            changed["extraction"][kind]["search_data_catalogs"]["variables_and_freqs"]["hurs"] = "D"
        changed["biasadjust"]["variables"] = {"joint": {"method": "MBCn", "variables": THREE, **group}}
        changed["custom"] |= custom or {}
        return load([write(changed)])

    return loaded


def test_a_method_and_names_are_a_whole_setting(adjusting: Adjusting) -> None:
    how = adjusting(variables=[*THREE, "hurs"]).biasadjust.variables["joint"]
    train = how.training_args.arguments()
    assert train["by_variable"] == {
        "tasmax": {"kind": "+", "nquantiles": 50},
        "dtr": {"kind": "*", "nquantiles": 50, "jitter_under": {"thresh": "0.0001 K"}},
        "pr": {
            "kind": "*",
            "nquantiles": 50,
            "jitter_under": {"thresh": "0.01 mm d-1"},
            "adapt_freq_thresh": "1 mm d-1",
            "max_tail_factor": 10,
            "small_amounts": {"thresh": "0.1 mm d-1"},
        },
        "hurs": {"kind": "+", "nquantiles": 50, "additive_space": LOGIT},
    }
    assert train["group"] == {"group": "15D", "window": 7} and train["period"] == ("1991", "2020")
    assert (train["n_iter"], train["nquantiles"], train["base"]) == (20, 20, "QuantileDeltaMapping")
    adjust = how.adjusting_args.arguments()
    assert adjust == {"periods": ("1950", "2100"), "moving_yearly_window": {"window": 30, "step": 10}}


def test_what_is_given_is_laid_over_and_null_leaves_out(adjusting: Adjusting) -> None:
    given = {"n_iter": 5, "group": {"group": "time.month"}, "by_variable": {"pr": {"jitter_under": None}}}
    how = adjusting(training_args=given, adjusting_args={"periods": ["1991", "2010"]}).biasadjust.variables["joint"]
    train = how.training_args.arguments()
    assert train["group"] == {"group": "time.month"} and train["n_iter"] == 5
    assert "jitter_under" not in train["by_variable"]["pr"] and train["by_variable"]["pr"]["kind"] == "*"
    assert how.adjusting_args.arguments() == {"periods": ("1991", "2010")}, "fewer years than a window has"


def test_members_of_pools_are_together() -> None:
    groups: Any = {"MBCn": {"method": "MBCn", "variables": ["pr", "tasmax"]}}
    groups["months"] = {**groups["MBCn"], "training_args": {"group": "time.month"}}
    custom = {"ref_period": [1991, 2010], "sim_period": [1950, 2100]}
    content: Any = {"custom": custom, "subregions": {}, "biasadjust": {"variables": groups}}
    give_usual_settings(content)
    made = content["biasadjust"]["variables"]
    assert made["MBCn"]["training_args"]["group"] == {"group": "15D", "window": 7, "add_dims": ["realization"]}
    assert made["months"]["training_args"]["group"] == {"group": "time.month", "add_dims": ["realization"]}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("variables", {"variables": ["pr"]}, "got ['pr'] (a list): pr alone is no group; expected two variables or more"),
    (
        "method",
        {"variables": []},
        "adjusts several variables together; expected `variables: [NAME, NAME]`",
    ),
    ("method", {"method": "mbcn"}, "did you mean MBCn?"),
    (
        "method",
        {"method": "QuantileDeltaMapping"},
        "QuantileDeltaMapping adjusts each variable by itself; expected a method of several (MBCn)",
    ),
    (
        "training_args.by_variable.hurs",
        {"training_args": {"by_variable": {"hurs": {"kind": "+"}}}},
        "got 'hurs' (text): not adjusted here; expected names of `variables`: tasmax, dtr, pr",
    ),
    (
        "training_args.base",
        {"training_args": {"base": "DetrendedQuantileMapping"}},
        "espo_luigi no longer has DetrendedQuantileMapping: take QuantileDeltaMapping, which is the default",
    ),
    (
        "adjusting_args.moving_yearly_window",
        {"adjusting_args": {"moving_yearly_window": {"window": 20, "step": 30}}},
        "{window: 30, step: 10}",
    ),
    (
        "training_args.by_variable.pr",
        {"training_args": {"by_variable": {"pr": {"additive_space": LOGIT, "adapt_freq_thresh": None}}}},
        """additive_space needs kind "+" without adapt_freq_thresh, and the kind is '*'""",
    ),
    (
        "training_args.by_variable.tasmax",
        {"training_args": {"by_variable": {"tasmax": {"adapt_freq_thresh": "1 K"}}}},
        """needs kind "*", and the kind is '+'""",
    ),
    (
        "training_args.by_variable.pr.adapt_freq_thresh",
        {"training_args": {"by_variable": {"pr": {"adapt_freq_thresh": "1 K"}}}},
        "expected a number and a unit that converts to kg m-2 s-1",
    ),
    ("training_args.group", {"training_args": {"group": {"group": "5D", "window": 75}}}, "five days, below 72"),
    (
        "training_args.group",
        {"training_args": {"group": {"group": "time.dayofyear", "window": 30}}},
        "expected an odd window below 360, and it is 30",
    ),
    (
        "training_args.group",
        {"training_args": {"group": {"group": "time.month", "window": 3}}},
        "months have no window",
    ),
    (
        "training_args.group",
        {"training_args": {"group": "time.season"}},
        "got 'time.season' (text), expected 'time.dayofyear', '5D', '15D', 'time.month' or 'time'",
    ),
    (
        "adjusting_args",
        {"adjusting_args": {"periods": ["1991", "2010"], "moving_yearly_window": {"window": 30, "step": 10}}},
        "moving_yearly_window has windows of 30 years, and the period 1991-2010 has 20; expected periods of as many",
    ),
    ("", {"engine": "xsdba"}, "the method MBCn is never xsdba's: leave `engine: xsdba` out"),
    ("method", {"method": "dOTC"}, "method is 'dOTC', which espo_luigi no longer has: take MBCn"),
]


@pytest.mark.parametrize(("key", "group", "message"), REFUSED)
def test_what_cannot_be_is_refused_with_its_key(
    adjusting: Adjusting, key: str, group: dict[str, Any], message: str
) -> None:
    path = ".".join(filter(None, ("biasadjust.variables.joint", key)))
    with pytest.raises(ConfigurationError, match=rf"`{re.escape(path)}`.*{re.escape(message)}") as caught:
        adjusting(**group)
    assert "missing" not in str(caught.value), "arguments of a wrong method are not told of"


@pytest.mark.parametrize("names", [{}, {"variables": ["tasmax", "dtr"]}])
def test_a_method_of_several_on_a_variables_own_key_is_one_problem_which_says_what_to_do(
    content: dict[str, Any], write: Callable[..., Path], names: dict[str, Any]
) -> None:
    second = write({"biasadjust": {"variables": {"tasmax": {"method": "MBCn", **names}}}}, name="second.yml")
    told = "expected another name of the group, and `null` here" if names else "expected `variables: [NAME, NAME]`"
    with pytest.raises(
        ConfigurationError, match=rf"has a problem:\n- `biasadjust.variables.tasmax.method`.*{re.escape(told)}"
    ):
        load([write(content), second])
