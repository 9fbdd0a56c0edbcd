"""The usual settings of a variable: what `biasadjust.variables.NAME: {}` stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from espo_luigi.config import RunConfig, load
from espo_luigi.config.bias_adjustment import VariableAdjustment
from espo_luigi.config.dialects import modernise
from espo_luigi.config.schema import fingerprint
from espo_luigi.config.usual import give_usual_settings
from espo_luigi.errors import ConfigurationError
from espo_luigi.science.units import threshold_in

CONFIG = Path(__file__).parents[2] / "config"
GROUP = {"group": "time.dayofyear", "window": 31}
LOESS = {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}
ADJUST = {"detrend": {"LoessDetrend": LOESS}, "interp": "nearest_quantile", "extrapolation": "constant"}
ZEROS = ("rsds", "sfcWind", "huss", "ozone", "pr", "snw")
LOGIT = {"lower_bound": "0 %", "upper_bound": "100 %", "trans": "logit", "margin": "1 %"}
OZONE = {"units": "ug m-3", "kind": "*", "possible": [0, 1000], "bounds": [0, None], "jitter": "0.5 ug m-3"}


def loaded(folder: Path, name: str, given: Any, base: str = "demo-humid", **sections: Any) -> RunConfig:
    """A shipped configuration that adjusts a variable in this way."""
    wanted = {"search_data_catalogs": {"variables_and_freqs": {name: "D"}}}
    content = {
        "extraction": {"reference": wanted, "simulation": wanted},
        "biasadjust": {"variables": {name: given}},
        **sections,
    }
    (folder / "own.yml").write_text(yaml.safe_dump(content))
    # `null` takes away how the shipped configuration adjusts it.
    (folder / "without.yml").write_text(yaml.safe_dump({"biasadjust": {"variables": {name: None}}}))
    shipped = [CONFIG / base / "config.yml", CONFIG / base / "paths.yml"]
    return load([*shipped, folder / "without.yml", folder / "own.yml"])


def noisy(noise: str, small: str, **more: Any) -> dict[str, Any]:
    """Ratios with noise, and at most 2 below small amounts."""
    train = {"kind": "*", "nquantiles": 50, **more}
    return {"xclim_train_args": train, "jitter_under": {"thresh": noise}, "small_amounts": {"thresh": small}}


@pytest.mark.parametrize(
    ("name", "training"),
    [
        ("tasmax", {"xclim_train_args": {"kind": "+", "nquantiles": 50}}),
        ("psl", {"xclim_train_args": {"kind": "+", "nquantiles": 50}}),
        ("dtr", {"xclim_train_args": {"kind": "*", "nquantiles": 50}, "jitter_under": {"thresh": "0.0001 K"}}),
        ("rsds", noisy("0.01 W m-2", "0.1 W m-2")),
        ("sfcWind", noisy("0.01 m s-1", "0.1 m s-1")),
        ("huss", noisy("0.0001 g kg-1", "0.001 g kg-1")),
        ("snw", noisy("0.01 kg m-2", "0.1 kg m-2", adapt_freq_thresh="1 kg m-2", max_tail_factor=10)),
        ("hurs", {"xclim_train_args": {"kind": "+", "nquantiles": 50}, "additive_space": LOGIT}),
        ("ozone", noisy("0.5 ug m-3", "5 ug m-3")),
        (
            "pr",
            noisy("0.01 mm d-1", "0.1 mm d-1", adapt_freq_thresh="1 mm d-1", max_tail_factor=10),
        ),
    ],
)
def test_settings_follow_from_the_table_of_variables(name: str, training: dict[str, Any], tmp_path: Path) -> None:
    config = loaded(tmp_path, name, {}, variables={"ozone": OZONE})
    how = config.biasadjust.variables[name].arguments()
    expected = {"method": "DetrendedQuantileMapping", "period": config.custom.ref_period, "group": GROUP, **training}
    assert how["training_args"] == expected
    loess = LOESS | ({"mult_skip_zeros": True} if name in ZEROS else {})
    adjust = ADJUST | {"detrend": {"LoessDetrend": loess}}
    assert how["adjusting_args"] == {"periods": config.custom.sim_period, "xclim_adjust_args": adjust}


@pytest.mark.parametrize("name", ["tasmax", "dtr"])
def test_they_are_those_that_the_workflow_of_2024_has_where_amounts_are_not_small(name: str) -> None:
    given = load([CONFIG / "demo" / "config.yml", CONFIG / "demo" / "paths.yml"]).biasadjust.variables[name]
    usual, expected = loaded_settings("demo", name), plain(given)
    assert (usual["adjust"].pop("interp"), expected["adjust"].pop("interp")) == ("nearest_quantile", "nearest")
    assert usual == expected


@pytest.mark.parametrize("name", ["tasmax", "tasmin", "dtr", "pr"])
def test_they_are_those_that_espo_v2_has_for_pools_but_for_ratios_of_small_amounts(name: str) -> None:
    given = load([CONFIG / "v2-demo" / "config.yml", CONFIG / "v2-demo" / "paths.yml"]).biasadjust.variables[name]
    usual, expected = loaded_settings("v2-demo", name), plain(given)
    assert (usual["train"].pop("small_amounts", None) is not None) == (name == "pr")
    assert (usual["adjust"].pop("interp"), expected["adjust"].pop("interp")) == ("nearest_quantile", "nearest")
    assert usual == expected


def loaded_settings(base: str, name: str) -> dict[str, Any]:
    """A variable's usual settings in a shipped configuration, whose own are taken away first."""
    content = yaml.safe_load((CONFIG / base / "config.yml").read_text())
    modernise(content)
    content["biasadjust"]["variables"] = {name: None}
    give_usual_settings(content)
    made = content["biasadjust"]["variables"][name]
    made["training_args"]["period"], made["adjusting_args"]["periods"] = ("1991", "2020"), ("1950", "2100")
    return plain(VariableAdjustment.model_validate(made))


def plain(how: Any) -> dict[str, Any]:
    """All that numbers depend on, with thresholds as numbers in the variable's units."""
    dumped = how.arguments()
    train, own = dumped["training_args"], dumped["training_args"]["xclim_train_args"]
    units = "K" if "K" in str(train.get("jitter_under")) else "kg m-2 s-1"
    for holder in (train.get("jitter_under", {}), train.get("adapt_freq", {})):
        holder.update({"thresh": pytest.approx(threshold_in(holder["thresh"], units), rel=1e-4)} if holder else {})
    if "adapt_freq_thresh" in own:
        own["adapt_freq_thresh"] = pytest.approx(threshold_in(own["adapt_freq_thresh"], units), rel=1e-4)
    train.pop("period")
    return {"train": train, "adjust": dumped["adjusting_args"]["xclim_adjust_args"]}


def test_null_is_the_same_and_another_method_has_its_own_arguments(tmp_path: Path) -> None:
    assert loaded(tmp_path, "psl", None).biasadjust.variables["psl"].name == "DetrendedQuantileMapping"
    how = loaded(tmp_path, "hurs", {"method": "QuantileDeltaMapping"}).biasadjust.variables["hurs"].arguments()
    assert how["training_args"]["method"] == "QuantileDeltaMapping" and how["training_args"]["additive_space"] == LOGIT
    by_rank = {"interp": "nearest_quantile", "extrapolation": "constant", "rank_window": True}
    assert how["adjusting_args"]["xclim_adjust_args"] == by_rank


@pytest.mark.parametrize(
    ("given", "periods"),
    [({}, [1950, 2100]), ({}, [[1950, 1978], [1979, 2100]]), ({"periods": [1990, 2019]}, None)],
)
def test_quantile_delta_mapping_ranks_in_windows_of_years_where_periods_are_long_enough(
    given: dict[str, Any], periods: Any
) -> None:
    for method in ("QuantileDeltaMapping", "xsdba.QuantileDeltaMapping", "dqm.QuantileDeltaMapping"):
        own = {"method": method, **({"adjusting_args": given} if given else {})}
        content: Any = {"custom": {"sim_period": periods}, "biasadjust": {"variables": {"pr": own}}}
        give_usual_settings(content)
        made = content["biasadjust"]["variables"]["pr"]
        assert made["training_args"]["method"] == "QuantileDeltaMapping"
        assert made.get("method") == (method if method.startswith("dqm") else None)
        adjusting = made["adjusting_args"]
        assert adjusting["jitter_under"] == {"thresh": "0.01 mm d-1"} and adjusting.items() >= given.items()
        windows = None if periods == [[1950, 1978], [1979, 2100]] else {"window": 30, "step": 10}
        assert adjusting.get("moving_yearly_window") == windows


def test_xsdba_has_the_plane_s_nearest_and_what_the_kernels_alone_do_is_refused_without_them(tmp_path: Path) -> None:
    def interp(**given: Any) -> Any:
        how: Any = loaded(tmp_path, "psl", given).biasadjust.variables["psl"].adjusting_args
        return how.xclim_adjust_args.interp

    assert interp() == interp(method="QuantileDeltaMapping") == "nearest_quantile"
    assert interp(engine="xsdba") == interp(adjusting_args={"xclim_adjust_args": {"interp": "nearest"}}) == "nearest"
    asked: dict[str, Any] = {"interp": "nearest_quantile", "detrend": {"LoessDetrend": {}}}
    whole = {"training_args": {"group": GROUP, "xclim_train_args": {"kind": "+"}}}
    assert interp(**whole, adjusting_args={"xclim_adjust_args": asked}) == "nearest_quantile"
    months = {"training_args": {**whole["training_args"], "group": "time.month"}}
    for given, own in (
        ({**whole, "engine": "xsdba"}, {}),
        (months, {}),
        (whole, {"detrend": {"NoDetrend": {}}}),
        (whole | {"training_args": {"method": "EmpiricalQuantileMapping", "group": GROUP}}, {"detrend": None}),
    ):
        with pytest.raises(ConfigurationError, match=r"interp`.*got 'nearest_quantile'.*expected nearest"):
            interp(**given, adjusting_args={"xclim_adjust_args": asked | own})


def test_radiation_is_limited_by_what_a_day_can_have_unless_settings_are_given(tmp_path: Path) -> None:
    limit = {"rsds": "potential_radiation"}
    assert loaded(tmp_path, "rsds", {}).clean_up.xscen_clean_up.limit_var == limit
    together: Any = {"method": "MBCn", "variables": ["rsds", "tas"]}
    (tmp_path / "nothing.yml").write_text(yaml.safe_dump({"biasadjust": {"variables": {"rsds": None, "tas": None}}}))
    (tmp_path / "joint.yml").write_text(yaml.safe_dump({"biasadjust": {"variables": {"joint": together}}}))
    shipped = [CONFIG / "demo-humid" / name for name in ("config.yml", "paths.yml")]
    config = load([*shipped, tmp_path / "nothing.yml", tmp_path / "joint.yml"])
    assert config.clean_up.xscen_clean_up.limit_var == limit
    by_variable: Any = config.biasadjust.variables["joint"].training_args
    assert by_variable.by_variable["rsds"].ratio_to == "potential_radiation"
    assert by_variable.by_variable["tas"].ratio_to is None
    whole = {"training_args": {"group": GROUP, "xclim_train_args": {"kind": "*"}}, "adjusting_args": {}}
    assert loaded(tmp_path, "rsds", whole).clean_up.xscen_clean_up.limit_var == {}
    content: Any = {"subregions": {}, "biasadjust": {"variables": {"rsds": {}, "tas": {}}}}
    assert give_usual_settings(content) == ["rsds", "tas"]
    assert content["clean_up"] == {"variables": {"rsds": {"limit_var": limit}}}
    together["training_args"] = {"by_variable": {"tas": {"ratio_to": "potential_radiation"}}}
    (tmp_path / "joint.yml").write_text(yaml.safe_dump({"biasadjust": {"variables": {"joint": together}}}))
    with pytest.raises(
        ConfigurationError, match=r"by_variable.tas.ratio_to`: tas is in K; expected a product in W m-2"
    ):
        load([*shipped, tmp_path / "nothing.yml", tmp_path / "joint.yml"])


def test_usual_settings_have_a_name_which_changes_nothing_where_it_is_the_newest(tmp_path: Path) -> None:
    without, named = (loaded(tmp_path, "psl", {}, **given) for given in ({}, {"usual": "2027-01"}))
    assert without.usual == named.usual == "2027-01" and without.hash == named.hash
    assert "psl" in named.with_usual
    assert load([CONFIG / "demo" / "config.yml", CONFIG / "demo" / "paths.yml"]).with_usual == ()
    with pytest.raises(ConfigurationError, match=r"(?s)`usual` .*own.yml.*got '2025-01'.*expected '2027-01'"):
        loaded(tmp_path, "psl", {}, usual="2025-01")


def test_what_is_given_takes_the_place_of_usual_settings_key_by_key(tmp_path: Path) -> None:
    own = {"adjusting_args": {"xclim_adjust_args": {"detrend": {"LoessDetrend": {"f": 0.5}}}}}
    usual, changed = (
        loaded(tmp_path, "hurs", given, variables={}).biasadjust.variables["hurs"].arguments() for given in ({}, own)
    )
    usual["adjusting_args"]["xclim_adjust_args"]["detrend"]["LoessDetrend"]["f"] = 0.5
    assert changed == usual
    by_kernels = loaded(tmp_path, "hurs", {"method": "dqm.QuantileDeltaMapping"}).biasadjust.variables["hurs"]
    assert by_kernels.name == "dqm.QuantileDeltaMapping"
    with pytest.raises(ConfigurationError, match=r"moving_yearly_window`.*only QuantileDeltaMapping ranks in windows"):
        loaded(tmp_path, "hurs", {"adjusting_args": {"moving_yearly_window": {"window": 30, "step": 10}}})
    training = {"method": "QuantileDeltaMapping", "group": "time", "xclim_train_args": {"kind": "+"}}
    how = loaded(tmp_path, "hurs", {"training_args": training, "adjusting_args": {}}).biasadjust.variables["hurs"]
    assert "additive_space" not in how.arguments()["training_args"], "nothing is added"


def test_bounds_keep_all_of_their_digits(tmp_path: Path) -> None:
    row = {"bounds": [0, 1234567.5], "transformation": "logit", "units": "kg", "kind": "+"}
    config: Any = loaded(tmp_path, "ozone", {}, variables={"ozone": row})
    assert config.biasadjust.variables["ozone"].training_args.additive_space.upper_bound == "1234567.5 kg"


def test_the_section_variables_counts_before_the_table(tmp_path: Path) -> None:
    # The numbers of the table, in the units that are given.
    config = loaded(tmp_path, "hurs", {}, variables={"hurs": {"units": "1"}})
    space: Any = config.biasadjust.variables["hurs"].training_args
    assert space.additive_space.arguments() == LOGIT | {
        "lower_bound": "0 1",
        "upper_bound": "1 1",
        "margin": "0.01 1",
    }, "numbers of the table in the units that are given"
    without: Any = loaded(tmp_path, "hurs", {}, variables={"hurs": {"transformation": None}}).biasadjust
    assert without.variables["hurs"].training_args.additive_space is None


def test_a_variable_whose_kind_nobody_knows_has_no_usual_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, "ozone", {})
    assert "own.yml, line 3: `biasadjust.variables.ozone`: got no settings" in str(caught.value)
    assert "expected `variables.ozone.kind`" in str(caught.value)
    assert loaded(tmp_path, "ozone", {}, variables={"ozone": {"kind": "+"}}).table["ozone"].units == ""


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            {"transformation": "logit", "units": "1", "bounds": [0, None]},
            "transformation`: got logit, which needs a lower",
        ),
        ({"transformation": "log", "units": "1"}, "transformation`: got log, which needs a lower bound"),
        ({"transformation": "log", "bounds": [0, None]}, "units`: missing; `transformation`"),
        (
            {"bounds": [0, 100], "possible": [-1, 90]},
            "possible`: got [-1, 90], expected limits within",
        ),
        (
            {"kind": "*", "transformation": "log", "bounds": [0, None], "units": "1"},
            "kind`: got '*', and factors are added to a log",
        ),
        ({"possible": [5, 1]}, "possible`: got [5, 1], expected [lowest, highest]"),
        ({"units": "mm d-1", "wet": 0.5}, "(a number): expected a number, a space and a unit, such as 0.01 mm d-1"),
        (
            {"units": "mm d-1", "wet": "0.5 K"},
            "wet`: got '0.5 K', expected a number and a unit that converts to mm d-1",
        ),
        (
            {"units": "kg m-2 s-1", "possible": [0, 1e-3], "jitter": "0.5 kg m-2 s-1"},
            "jitter`: got 0.5 kg m-2 s-1, expected less than the highest possible value, 0.001",
        ),
        ({"wet": "1 mm d-1"}, "units`: missing; `transformation`, `wet`"),
        ({"units": "shovels"}, "'shovels' is not a unit"),
        ({"colours": "virdis"}, "'virdis' is not a colour map of matplotlib; did you mean viridis?"),
        ({"units": "ug m-3", "display_units": "K"}, "display_units`: got K, expected a unit that ug m-3 converts to"),
    ],
)
def test_what_contradicts_itself_in_a_row_is_refused_by_its_key(
    own: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"own\.yml") as caught:
        loaded(tmp_path, "ozone", {}, variables={"ozone": {"kind": "+", **own}})
    assert "`variables.ozone." in str(caught.value) and message in str(caught.value)


def test_a_row_of_a_variable_that_is_not_there_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded(tmp_path, "hurs", {}, variables={"hrus": {"raw": [-1, 120]}, "tas": {"colours": "magma"}})
    (told,) = (message for message in caplog.messages if "`variables." in message)
    assert told == "`variables.hrus` has no effect: hrus is neither searched nor made; did you mean hurs?"


def test_units_of_another_kind_than_the_table_s_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"`variables.hurs.units`: got K; expected a unit that converts to %"):
        loaded(tmp_path, "hurs", {}, variables={"hurs": {"units": "K"}})


def test_a_threshold_is_given_with_its_unit_and_a_bound_may_be_taken_away(tmp_path: Path) -> None:
    own = {"pr": {"wet": "2 mm d-1"}, "hurs": {"units": "1", "bounds": None, "transformation": None}}
    table = loaded(tmp_path, "hurs", {}, variables=own).table
    assert table["pr"].wet == pytest.approx(2 / 86400) and table["pr"].jitter == pytest.approx(0.01 / 86400)
    assert table["hurs"].bounds == (None, None) and table["hurs"].possible == pytest.approx((0, 1))
    with pytest.raises(ConfigurationError, match="Give `bounds`, or `transformation: null`"):
        loaded(tmp_path, "hurs", {}, variables={"hurs": {"bounds": None}})


@pytest.mark.parametrize(
    ("own", "changed"),
    [
        ({"tas": {"colours": "magma", "long_name": "Air"}}, []),
        ({"hurs": {"units": "1"}}, ["units"]),
        ({"hurs": {"bounds": None, "transformation": None}}, ["bounds"]),
        ({"pr": {"wet": None}}, ["wet"]),
    ],
)
def test_a_row_changes_the_fingerprints_of_the_keys_that_it_gives(
    own: dict[str, Any], changed: list[str], tmp_path: Path
) -> None:
    without, with_row = loaded(tmp_path, "hurs", {}), loaded(tmp_path, "hurs", {}, variables=own)
    keys = ("units", "bounds", "difference", "possible", "raw", "wet")
    differ = [key for key in keys if len({fingerprint(one, f"variables.*.{key}") for one in (without, with_row)}) == 2]
    assert differ == changed
    ((name, _),) = own.items()
    of_one = [
        key for key in keys if fingerprint(with_row, f"variables.{name}.{key}") != fingerprint(without, "nothing")
    ]
    assert of_one == [key for key in changed if key != "wet"]


def test_a_row_of_the_table_keeps_its_meaning_in_other_units(tmp_path: Path) -> None:
    table = loaded(tmp_path, "psl", {}, variables={"psl": {"units": "hPa"}, "tasmin": {"units": "degC"}}).table
    assert table["psl"].possible == pytest.approx((850, 1100)) and table["psl"].standard_name
    assert table["tasmin"].raw == pytest.approx((-103.15, 79.85))
    own = loaded(tmp_path, "ozone", {}, variables={"ozone": OZONE | {"possible": None}}).table["ozone"]
    assert own.possible == (0, float("inf")) and own.jitter == 0.5, "no less than the lower bound"


@pytest.mark.parametrize(
    ("name", "flag", "units"),
    [
        ("tas", "percentage_values_outside_of_bounds", "%"),
        ("rsds", "wind_values_outside_of_bounds", "m s-1"),
        ("hurs", "temperature_extremely_high", "degC"),
    ],
)
def test_a_data_flag_of_another_quantity_is_refused(name: str, flag: str, units: str, tmp_path: Path) -> None:
    flags: Any = {"hurs": {"percentage_values_outside_of_bounds": {}}, "sfcWind": {"wind_values_outside_of_bounds": {}}}
    assert loaded(tmp_path, "hurs", {}, health_checks={"flags": flags}).flags == flags
    with pytest.raises(
        ConfigurationError, match=rf"health_checks.flags.{name}.{flag}`: this flag is about values in {units}"
    ):
        loaded(tmp_path, "hurs", {}, health_checks={"flags": {name: {flag: {}}}})


def test_radiation_that_is_a_part_of_its_limit_has_no_small_amounts(tmp_path: Path) -> None:
    together = {"method": "MBCn", "variables": ["rsds", "hurs"]}
    wanted = {"search_data_catalogs": {"variables_and_freqs": {"rsds": "D", "hurs": "D"}}}
    sections = {"extraction": {"reference": wanted, "simulation": wanted}}
    alone = {"rsds": None, "hurs": None, "joint": together}
    (tmp_path / "alone.yml").write_text(yaml.safe_dump({"biasadjust": {"variables": alone}, **sections}))
    config = load([*(CONFIG / "demo-humid" / f"{name}.yml" for name in ("config", "paths")), tmp_path / "alone.yml"])
    own = config.biasadjust.variables["joint"].training_args.arguments()["by_variable"]["rsds"]
    assert own["ratio_to"] == "potential_radiation" and "small_amounts" not in own


@pytest.mark.parametrize(
    ("own", "interp"),
    [
        ({"detrend": {"LoessDetrend": {"f": 0.3}}}, "nearest_quantile"),
        ({"detrend": {"LoessDetrend": {"niter": 1, "d": 0, "weights": "tricube"}}}, "nearest_quantile"),
        ({"detrend": {"LoessDetrend": {"d": 1}}}, "nearest"),
        ({"extrapolation": "nan"}, "nearest"),
    ],
)
def test_what_xsdba_has_to_do_is_searched_as_xsdba_does(own: dict[str, Any], interp: str, tmp_path: Path) -> None:
    config = loaded(tmp_path, "psl", {"adjusting_args": {"xclim_adjust_args": own}})
    assert config.biasadjust.variables["psl"].adjusting_args.arguments()["xclim_adjust_args"]["interp"] == interp
