"""What a file takes of the files before it: not whose products are, and not the settings of another method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from espo_luigi.config import RunConfig, load
from espo_luigi.errors import ConfigurationError

OWN = "adjusting_args: {bias_adjust_institution: FU, bias_adjust_project: BERLIN}"
SEARCHED = "{search_data_catalogs: {variables_and_freqs: {mine: D}}}"
EXTRACTED = f"extraction: {{reference: {SEARCHED}, simulation: {SEARCHED}}}"
LESS = "adjusting_args: {bias_adjust_institution: FU}"
EACH = f"tasmax: {{{OWN}}}, dtr: {{{OWN}}}"


@pytest.fixture
def over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load the shipped values of ESPO-G6 with an own file after them."""
    for name in ("ESPO_SCRATCH", "ESPO_OUTPUT", "ESPO_CATALOGS"):
        monkeypatch.setenv(name, str(tmp_path))

    def loaded(text: str) -> RunConfig:
        (own := tmp_path / "own.yml").write_text(text)
        shipped = Path(__file__).parents[2] / "config" / "espo-g6"
        return load([shipped / "config.yml", shipped / "paths.yml", own])

    return loaded


@pytest.mark.parametrize(
    "own",
    [
        "project: {name: BERLIN}",
        "biasadjust: {variables: {pr: {method: QuantileDeltaMapping}}}",
        f"project: {{name: BERLIN}}\nbiasadjust: {{variables: {{{EACH}, pr: {{{LESS}}}}}}}",
    ],
)
def test_who_adjusts_is_not_inherited_by_another_project_or_method(over: Any, own: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"own\.yml: `biasadjust\.variables\.\w+\.adjusting_args\.bias_adjust_"
    ):
        over(own)


def test_what_an_own_file_says_holds_for_those_after_it(over: Any, tmp_path: Path) -> None:
    over(f"project: {{name: BERLIN}}\nbiasadjust: {{variables: {{{EACH}, pr: {{{OWN}}}}}}}")
    (after := tmp_path / "after.yml").write_text("biasadjust: {variables: {pr: {method: QuantileDeltaMapping}}}")
    shipped = Path(__file__).parents[2] / "config" / "espo-g6"
    how = load([shipped / "config.yml", shipped / "paths.yml", tmp_path / "own.yml", after]).biasadjust.variables["pr"]
    assert (how.name, how.adjusting_args.bias_adjust_project) == ("QuantileDeltaMapping", "BERLIN")


def test_an_own_project_that_says_who_adjusts_is_taken(over: Any) -> None:
    config = over(f"project: {{name: BERLIN}}\nbiasadjust: {{variables: {{{EACH}, pr: {{{OWN}}}}}}}")
    makers = [
        (how.adjusting_args.bias_adjust_institution, how.adjusting_args.bias_adjust_project)
        for how in config.biasadjust.variables.values()
    ]
    assert makers == [("FU", "BERLIN")] * 3


def test_other_settings_inherit_who_adjusts(over: Any) -> None:
    own = "{pr: {training_args: {jitter_under: {thresh: 0.02 mm d-1}}}}"
    config = over(f"project: {{version: 1.1.0}}\nbiasadjust: {{variables: {own}}}")
    assert config.biasadjust.variables["pr"].adjusting_args.bias_adjust_institution == "Ouranos"


def test_a_copied_start_whose_project_is_renamed_names_its_own_project(over: Any, tmp_path: Path) -> None:
    shipped = Path(__file__).parents[2] / "config" / "espo-g6"
    (copy := tmp_path / "config.yml").write_text((shipped / "config.yml").read_text().replace("ESPO-G6-E5L", "BERLIN"))
    with pytest.raises(ConfigurationError, match=r"`biasadjust\.variables\.\w+\.adjusting_args\.bias_adjust_project`"):
        load([copy, shipped / "paths.yml"])


@pytest.mark.parametrize("method", ["method: QuantileDeltaMapping", "training_args: {method: QuantileDeltaMapping}"])
def test_another_method_takes_its_own_usual_settings_and_keeps_whose_products_are(over: Any, method: str) -> None:
    own = f"{method}, {OWN}"
    config = over(f"biasadjust: {{variables: {{{EACH}, pr: {{{own}}}}}}}")
    how = config.biasadjust.variables["pr"]
    assert (how.name, how.adjusting_args.bias_adjust_project) == ("QuantileDeltaMapping", "BERLIN")
    adjusting = how.adjusting_args.arguments()
    assert "detrend" not in adjusting["xclim_adjust_args"]
    assert adjusting["moving_yearly_window"] == {"window": 30, "step": 10}
    assert how.training_args.arguments()["xclim_train_args"]["nquantiles"] == 50
    assert config.biasadjust.variables["tasmax"].name == "DetrendedQuantileMapping"


def test_variables_that_share_a_mapping_take_the_usual_settings_of_its_method(over: Any) -> None:
    config = over(
        f"biasadjust: {{variables: {{tasmax: {{training_args: &q {{method: QuantileDeltaMapping}}, {OWN}}}, "
        f"dtr: {{{OWN}}}, pr: {{training_args: *q, {OWN}}}}}}}"
    )
    methods = {name: how.name for name, how in config.biasadjust.variables.items()}
    assert methods == {"tasmax": (qdm := "QuantileDeltaMapping"), "dtr": "DetrendedQuantileMapping", "pr": qdm}


def test_attributes_say_what_was_done(over: Any) -> None:
    group = f"joint: {{method: MBCn, variables: [tasmax, dtr], {OWN}}}"
    config = over(
        f"biasadjust: {{variables: {{tasmax: null, dtr: null, {group}, pr: {{method: QuantileDeltaMapping, {OWN}}}}}}}"
    )
    notes = " ".join(config.attributes["global"]["Notes"].split())
    assert (
        "by quantile delta mapping (31-day window around each day of the year, 50 quantiles, windows of 30 years) of pr"
        in notes
    )
    assert (
        "by MBCn (35-day window around each 15 days, 20 quantiles, windows of 30 years) of tasmax and dtr together"
        in notes
    )
    assert "The adjusted variables are tasmax, dtr and pr; tasmin is" in notes


def test_a_packages_method_needs_no_null_for_the_former_methods_settings(over: Any) -> None:
    config = over(f"biasadjust: {{variables: {{{EACH}, pr: {{method: ibicus.ISIMIP, {OWN}}}}}}}")
    how = config.biasadjust.variables["pr"]
    assert (how.name, how.training_args.arguments()["period"]) == ("ibicus.ISIMIP", ("1991", "2020"))


def test_a_variable_that_the_table_lacks_is_named_last(over: Any) -> None:
    of_own = "training_args: {group: time.month, xclim_train_args: {kind: '+'}}"
    config = over(f"biasadjust: {{variables: {{{EACH}, pr: {{{OWN}}}, mine: {{{of_own}, {OWN}}}}}}}\n{EXTRACTED}")
    assert "variables are tasmax, dtr, pr and mine" in " ".join(config.attributes["global"]["Notes"].split())


def test_another_method_keeps_the_years_of_the_training(over: Any, tmp_path: Path) -> None:
    over(f"biasadjust: {{variables: {{{EACH}, pr: {{training_args: {{period: [1995, 2014]}}, {OWN}}}}}}}")
    (after := tmp_path / "after.yml").write_text("biasadjust: {variables: {pr: {method: QuantileDeltaMapping}}}")
    shipped = Path(__file__).parents[2] / "config" / "espo-g6"
    how = load([shipped / "config.yml", shipped / "paths.yml", tmp_path / "own.yml", after]).biasadjust.variables["pr"]
    assert (how.name, how.training_args.period) == ("QuantileDeltaMapping", ("1995", "2014"))


@pytest.mark.parametrize("none", ["biasadjust: null", "biasadjust: {variables: null}"])
def test_what_takes_the_adjustments_away_inherits_no_maker(over: Any, none: str) -> None:
    with pytest.raises(ConfigurationError, match=r"`biasadjust(\.variables)?`.*this key is needed"):
        over(f"project: {{name: BERLIN}}\n{none}")


@pytest.mark.parametrize("given", ["null", "hello"])
def test_null_for_the_arguments_inherits_no_maker_and_a_text_is_told(over: Any, given: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"dtr\.adjusting_args\.bias_adjust_institution`|adjusting_args`.*hello"
    ):
        over(f"project: {{name: BERLIN}}\nbiasadjust: {{variables: {{pr: {{adjusting_args: {given}}}}}}}")
