"""What a message says when a file is wrong: the key's full path, what was got, what is allowed, the nearest name."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from espo_luigi.config import load
from espo_luigi.config.yaml_files import read_yaml
from espo_luigi.errors import ConfigurationError


def message(load_with: Any, *changes: str) -> str:
    """Return what loading the small configuration with these changes complains about."""
    with pytest.raises(ConfigurationError) as caught:
        load_with(*changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            "custom: {regions: {south: {lat_bnds: ten}}}",
            "`custom.regions.south.lat_bnds` ({file}, line 1): got 'ten' (text): expected two numbers, "
            "[lowest, highest]. It is the southern and the northern bound, degrees north.",
        ),
        ("custom: {regions: {south: {lat_bnds: [47, 45]}}}", "expected [lowest, highest], and 47 is not below 45"),
        ("custom: {regions: {south: {lat_bnds: [45, 95]}}}", "expected degrees north within -90..90"),
        ("custom: {regions: {south: {latbnds: [45, 46]}}}", "`custom.regions.south.latbnds` ({file}, line 1): unknown key; did you mean lat_bnds?"),  # noqa: E501
        ("custom: {regions: {south: {method: shape}}}", "`custom.regions.south.method` ({file}, line 1): got 'shape' (text), expected 'bbox'"),  # noqa: E501
        ("custom: {regions: {south: 5}}", "`custom.regions.south` ({file}, line 1): got 5 (a whole number), expected a mapping"),  # noqa: E501
        ("custom: {regions: {../up: {lon_bnds: [0, 1], lat_bnds: [50, 51]}}}", "the name = '../up' cannot be part of a file name; expected text without '+', '/', '\\'"),  # noqa: E501
        ('custom: {regions: {"a\\u0007": {lon_bnds: [0, 1], lat_bnds: [50, 51]}}}', "cannot be part of a file name"),
        ("custom: {amno_region: {name: ..}}", "`custom.amno_region.name` ({file}, line 1): got '..' (text): the name"),
        ("extraction: {reference: {search_data_catalogs: {variables_and_freqs: {a/b: D}}}}", "the name = 'a/b' cannot"),
        ("off-diag: {domains: {a/b: {lon_bnds: [0, 1], lat_bnds: [50, 51]}}}", "cannot be part of a file name"),
        ("custom: {regions: {south: {lon_bnds: [-200, -60]}}}", "got [-200, -60] (a list): expected degrees east within -180..180 or 0..360, both bounds in the same"),  # noqa: E501
        ("custom: {regions: {south: {lon_bnds: [-10, 350]}}}", "expected degrees east within -180..180 or 0..360"),
        ("custom: {regions: {south: {lat_bnds: [.nan, 47]}}}", "got [nan, 47] (a list): expected two numbers"),
        ("custom: {regions: {south: {lat_bnds: [true, 47]}}}", "got [True, 47] (a list): expected two numbers"),
        ("custom: {amno_region: {tile_buffer: .inf}}", "got inf (a number): expected a finite number."),
        ("custom: {maximal_calendar: julian}", "`custom.maximal_calendar` ({file}, line 1): got 'julian' (text), expected '360_day', 'noleap',"),  # noqa: E501
        ("custom: {ref_period: ['１９９１', '2020']}", "expected two years of four digits"),
        ("biasadjust: {variables: {tasmax: {adjusting_args: {periods: [[1950, 2000], [2000, 2100]]}}}}", "`biasadjust.variables.tasmax.adjusting_args.periods` ({file}, line 1): got [[1950, 2000], [2000, 2100]] (a list): expected periods in order of time and without overlap, and 2000-2100 follows 1950-2000."),  # noqa: E501
        ("regrid: {regrid_dataset: {intermediate_grids: {reg1: {cf_grid_2d: {lon0_b: -80, lon1_b: -60, d_lon: 1, lat0_b: 40, lat1_b: 91, d_lat: 1}}}}}", "expected lat0_b and lat1_b within -90..90 degrees north"),  # noqa: E501
        ("regrid: {regrid_dataset: {intermediate_grids: {reg1: {cf_grid_2d: {lon0_b: -180, lon1_b: 190, d_lon: 1, lat0_b: 40, lat1_b: 90, d_lat: 1}}}}}", "360 degrees apart at most"),  # noqa: E501
        ("regrid: {regrid_dataset: {intermediate_grids: {reg1: {cf_grid_2d: {lon0_b: -80, lon1_b: -60, d_lon: 1e-3, lat0_b: 40, lat1_b: 60, d_lat: 0.001}}}}}", "this grid has 4e+08 cells; expected 1e+07 at most"),  # noqa: E501
        ("off-diag: {steps: {ref: {properties_and_measures: {properties: {indicators: {a: {cf_attrs: {long_name: '{ds.x[np]}'}}}}}}}}", "`indicators.a.cf_attrs.long_name` is '{{ds.x[np]}}'; expected plain names of parameters in braces"),  # noqa: E501
        ("off-diag: {steps: {ref: {properties_and_measures: {properties: {indicators: {a: {parameters: {thresh: 9**9**9 K}}}}}}}}", "`indicators.a.parameters.thresh` is '9**9**9 K'; expected a number and its unit, without arithmetic"),  # noqa: E501
        ("off-diag: {steps: {ref: {properties_and_measures: {properties: {indicators: {a/b: {base: xsdba.properties.mean}}}}}}}", "a property has the name 'a/b'; expected a variable's name"),  # noqa: E501
        ("off-diag: {steps: {ref: {properties_and_measures: {properties: {indicators: {a: {base: xsdba.properties.men, input: {da: tasmax}}}}}}}}", "the property a has the base 'xsdba.properties.men', and xsdba 0."),  # noqa: E501
        ("off-diag: {steps: {ref: {properties_and_measures: {properties: {indicators: {a: {base: xsdba.properties.men, input: {da: tasmax}}}}}}}}", "; did you mean mean?"),  # noqa: E501
        ("off-diag: {steps: {ref: {properties_and_measures: {properties: {indicators: {a: {base: xsdba.properties.quantile, input: {da: tasmax}, parameters: {quantile: 0.9}}}}}}}}", "the property a has the parameter 'quantile'; expected one of q, group"),  # noqa: E501
        ("off-diag: {steps: {ref: {properties_and_measures: {properties: {indicators: {a: {base: xsdba.properties.mean, input: {ds: tasmax}}}}}}}}", "expected a variable for each of da, such as"),  # noqa: E501
        ("custom: {maximal_calendar: no_leap}", "did you mean noleap?"),
        ("custom: {stack_drop_nans: false}", "`custom.stack_drop_nans` ({file}, line 1): got False (true or false): expected true: land cells alone are computed, and maps are made of them at the end. Leave the key out"),  # noqa: E501
        ("custom: {stack_drop_nans: perhaps}", "`custom.stack_drop_nans` ({file}, line 1): got 'perhaps' (text): expected a valid boolean"),  # noqa: E501
        ("custom: {working_chunks: {loc: 0}}", "`custom.working_chunks.loc` ({file}, line 1): got 0 (a whole number): expected a number of points above 0, or -1"),  # noqa: E501
        ("custom: {ref_period: ['1991']}", "`custom.ref_period` ({file}, line 1): got ['1991'] (a list): expected two years, [first, last]"),  # noqa: E501
        ("custom: {ref_period: ['2020', '1991']}", "expected [first, last] in this order, and 2020 is after 1991"),
        ("custom: {ref_period: [91, 2020]}", "expected two years of four digits"),
        ("extraction: {simulation: {search_data_catalogs: {data_catalogs: []}}}", "`extraction.simulation.search_data_catalogs.data_catalogs`"),  # noqa: E501
        ("regrid: {regrid_dataset: {intermediate_grids: {reg1: {cf_grid_2d: {lon0_b: 9, lon1_b: 2, d_lon: 1, lat0_b: 0, lat1_b: 9, d_lat: 1}}}}}", "expected lon1_b above lon0_b by two cells (d_lon) at least"),  # noqa: E501
        ("biasadjust: {variables: {tasmax: {method: dqm, training_args: {method: QuantileDeltaMapping}}}}", "`biasadjust.variables.tasmax.training_args.method` ({file}, line 1): got 'QuantileDeltaMapping' (text): the method dqm is DetrendedQuantileMapping alone"),  # noqa: E501
        ("biasadjust: {variables: {tasmax: {method: dqm, adjusting_args: {xclim_adjust_args: {rank_window: 3}}}}}", "tasmax.adjusting_args.xclim_adjust_args.rank_window` ({file}, line 1)"),  # noqa: E501
        ("biasadjust: {variables: {tasmax: {method: dqm, engine: xsdba}}}", "the method dqm is never xsdba's: leave `engine: xsdba` out, or `method`"),  # noqa: E501
        ("biasadjust: {variables: {tasmax: {method: dqm.nonsense}}}", "`biasadjust.variables.tasmax.method` ({file}, line 1): got 'dqm.nonsense' (text): method dqm.nonsense: expected dqm, or dqm.QuantileDeltaMapping"),  # noqa: E501
        ("biasadjust: {variables: {tasmax: {engine: xclim}}}", "`biasadjust.variables.tasmax.engine` ({file}, line 1): got 'xclim' (text), expected 'auto' or 'xsdba'"),  # noqa: E501
        ("biasadjust: {variables: {tasmax: {training_args: {group: 5}}}}", "has a problem:\n- `biasadjust.variables.tasmax.training_args.group` ({file}, line 1): got 5 (a whole number): expected text or a mapping"),  # noqa: E501
        ("clean_up: {xscen_clean_up: {round_var: {pr: ten}}}", "`clean_up.xscen_clean_up.round_var.pr` ({file}, line 1): got 'ten' (text)"),  # noqa: E501
        ("health_checks: {raise_on: [structur]}", "did you mean structure?"),
        ("off-diag: {steps: {ref: {properties_and_measures: {properties: nowhere.yml}}}}", "`off-diag.steps.ref.properties_and_measures.properties`: got 'nowhere.yml', expected a YAML file of properties; looked in"),  # noqa: E501
        ("off-diag: {steps: {ref: {properties_and_measures: {properties: {indicators: {a: {base: xclim.indices.tg}}}}}}}", "the property a has the base 'xclim.indices.tg'; expected xsdba.properties.NAME"),  # noqa: E501
        ("custom: {regions: {north: {lat_bnds: [46.95, 50]}}}", "`custom.regions.south` and `custom.regions.north` overlap: south ends at 47.05 degrees north and north begins at 46.95."),  # noqa: E501
        ("custom: {regions: {north: {lat_bnds: [47.15, 50]}}}", "`custom.regions.south` and `custom.regions.north` leave a gap: south ends at 47.05 degrees north and north begins at 47.15."),  # noqa: E501
        ("custom: {regions: {south: null}}", "`off-diag.steps.ref.domain.Ute`: got 'south', expected one of north"),
        ("custom: {regions: {south: null, north: null}}", "`custom.regions`"),
        ("off-diag: {domains: {Utte: null}}", "`off-diag.domains.Utte` ({file}, line 1): got None (nothing), expected a mapping"),  # noqa: E501
        ("off-diag: {steps: {ref: {domain: {Ute: sout}}}}", "`off-diag.steps.ref.domain.Ute`: got 'sout', expected one of south, north; did you mean south?"),  # noqa: E501
        # The reference has no file of the whole domain.
        ("off-diag: {steps: {ref: {domain: {Ute: NAM}}}}", "got 'NAM', expected one of south, north"),
        ("off-diag: {domains: {Dene: {lat_bnds: [48, 49], lon_bnds: [-70, -65]}}}", "`off-diag.steps.ref.domain.Dene` is missing"),  # noqa: E501
        ("off-diag: {domains: {Ute: {lat_bnds: [48, 49]}}}", "the domain Ute (48..49 degrees north, -70..-65 degrees east) is not inside its host south (45..47.05 degrees north, -80..-60 degrees east)"),  # noqa: E501
        ("biasadjust: {variables: {tasmux: {training_args: {group: time}, adjusting_args: {}}}}", "`biasadjust.variables.tasmux`: this variable is not among those of"),  # noqa: E501
        ("biasadjust: {variables: {tasmux: {training_args: {group: time}, adjusting_args: {}}}}", "did you mean tasmax?"),  # noqa: E501
        ("extraction: {reference: {search_data_catalogs: {other_search_criteria: {source: [A, B]}}}}", "other_search_criteria.source`: got ['A', 'B'], expected one name"),  # noqa: E501
        ("extraction: {reference: {search_data_catalogs: {other_search_criteria: {source: ../../x}}}}", "other_search_criteria.source`: the name = '../../x' cannot be part of a file name"),  # noqa: E501
        ("clean_up: {xscen_clean_up: {clip_var: {pr: [0, 1]}}}", "{file}, line 1: `clean_up.xscen_clean_up.clip_var`: in ESPO-G or xscen this key changes the numbers of products, and espo_luigi does not know how to"),  # noqa: E501
        ("biasadjust: {variables: {tasmax: {training_args: {jitter_over: {thresh: 1 K}}}}}", "{file}, line 1: `biasadjust.variables.tasmax.training_args.jitter_over`: in ESPO-G or xscen this key changes the numbers of products, and espo_luigi does not know how to"),  # noqa: E501
        ("extraction: {simulation: {extract_dataset: {resample_methods: {tasmax: mean}}}}", "{file}, line 1: `extraction.simulation.extract_dataset.resample_methods`: in ESPO-G or xscen this key changes the numbers of products, and espo_luigi does not know how to"),  # noqa: E501
        ("paths: {final: $NOT_SET_ANYWHERE/x}", "`paths.final` ({file}, line 1): got '$NOT_SET_ANYWHERE/x' (text): the environment variable NOT_SET_ANYWHERE is not set"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_wrong_key_is_named_with_its_path_place_and_what_is_allowed(
    load_with: Any, tmp_path: Path, change: str, expected: str
) -> None:
    assert expected.format(file=tmp_path / "change0.yml") in message(load_with, change)


@pytest.mark.parametrize(
    ("path", "purpose"),
    [
        ("custom", "It is regions, chunks and periods."),
        ("custom.ref_period", "It is first and last year of the calibration period."),
        ("custom.regions.south.lat_bnds", "It is the southern and the northern bound, degrees north."),
        ("paths.tmpdir", "It is the folder of intermediate files"),
        ("extraction.reference.search_data_catalogs.data_catalogs", "It is the catalogues (JSON files)"),
        ("biasadjust.variables.tasmax.training_args.group", "It is the grouping"),
        ("off-diag.steps.scen", "It is the scenario."),
        ("off-diag.steps.sim.properties_and_measures.properties", "It is the definitions of the properties"),
    ],
)
def test_a_missing_key_is_named_with_what_it_is_for(
    write: Any, content: dict[str, Any], path: str, purpose: str
) -> None:
    *outer, last = path.split(".")
    section = content
    for key in outer:
        section = section[key]
    del section[last]
    with pytest.raises(ConfigurationError) as caught:
        load([write(content)])
    line = next(line for line in str(caught.value).splitlines() if f"`{path}`" in line)
    assert "this key is missing." in line
    assert purpose in line


def test_all_problems_are_listed_at_once(load_with: Any) -> None:
    text = message(load_with, "custom: {ref_period: 5, regoins: {}}\npaths: {tmpdir: 7}")
    assert "has 3 problems" in text
    assert [name in text for name in ("`custom.ref_period`", "`custom.regoins`", "`paths.tmpdir`")] == [True] * 3


def test_regions_of_different_longitudes_need_not_meet(load_with: Any) -> None:
    config = load_with(
        "custom: {regions: {west: {lon_bnds: [-100, -80], lat_bnds: [30, 48]}}, "
        "amno_region: {lon_bnds: [-100, -60], lat_bnds: [30, 50]}}"
    )
    assert list(config.custom.regions) == ["south", "north", "west"]


def test_a_domain_that_sticks_out_of_its_host_is_taken_as_far_as_it_lies_inside(
    load_with: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_with("off-diag: {domains: {Ute: {lat_bnds: [46, 48]}}}").off_diag.domains["Ute"].lat_bnds == (46, 48)
    assert "sticks out of its host south (45..47.05 degrees north" in caplog.text


def test_a_domain_may_have_longitudes_from_0_to_360(load_with: Any) -> None:
    assert load_with("off-diag: {domains: {Ute: {lon_bnds: [290, 295]}}}").off_diag.domains["Ute"].lon_bnds == (
        290,
        295,
    )


def test_a_key_that_would_change_attributes_only_is_warned_about(
    load_with: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "espo_luigi.config"):
        load_with("clean_up: {xscen_clean_up: {change_attr_prefix: dataset}}")
    assert "`clean_up.xscen_clean_up.change_attr_prefix` has no effect" in caplog.text


def test_a_missing_file_is_named_with_the_folder_that_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=rf"The file {tmp_path}/none.yml does not exist .*from {tmp_path}"):
        load(["none.yml"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("custom:\n  a: [1, 2\n  b: 3\n", "line 3, column"),
        ("custom: *nowhere\n", "line 1, column 9: not valid YAML: found undefined alias 'nowhere'"),
        ("custom:\n  stack_drop_nans: true\n  stack_drop_nans: false\n", "line 3: duplicate key `custom.stack_drop_nans`, already given on line 2"),  # noqa: E501
        ("- a\n- b\n", "line 1: got a list, expected sections"),
        ("just text\n", "line 1: got a single value, expected sections"),
        ("? [a, b]\n: c\n", "line 1: got a list as a key, expected text"),
        ("custom: &a\n  b: *a\n", "line 1: the anchor of `custom.b` contains itself"),
        ("custom: \x07\n", "not valid YAML"),
        ("custom:\n  a: 010\n", "`custom.a` ({file}, line 2): got 010, which is no decimal number: YAML reads"),
        ("custom: {a: [1, 0x1F]}\n", "`custom.a.1` ({file}, line 1): got 0x1F, which is no decimal number"),
        ("custom: {a: 1_000}\n", "got 1_000, which is no decimal number"),
        ("custom: {a: 1_0.5}\n", "got 1_0.5, which is no decimal number"),
        ("custom: {a: 1:30}\n", "got 1:30, which is no decimal number"),
        ("custom: {a: 1:30.5}\n", "got 1:30.5, which is no decimal number"),
        ("custom: {a: 0b11}\n", "got 0b11, which is no decimal number"),
        ("custom: {a: !!int ten}\n", "got ten, which is no decimal number"),
        ("custom: {a: !!bool perhaps}\n", "a tag (`!!name`) does not suit its value"),
        ("custom: {a: !!set {b, c}}\n", "a tag (`!!name`) does not suit its value: `custom.a` has the tag"),
        ("custom: {a: !mine b}\n", "line 1, column 13: not valid YAML: could not determine a constructor for the tag '!mine'"),  # noqa: E501
        ("custom: {<<: b}\n", "not valid YAML: expected a mapping or a list of mappings after `<<`, got a single value"),  # noqa: E501
        ("custom: {a: [{b: 1, b: 2}]}\n", "line 1: duplicate key `custom.a.0.b`"),
        ("custom: {a: " + "[" * 51 + "]" * 51 + "}\n", "line 1: lists or mappings are nested more than 50 deep"),
        ("custom: {a: " + "[" * 3000 + "]" * 3000 + "}\n", "line 1: lists or mappings are nested more than 50 deep"),
        ("custom:\n" + "\n".join(" " * at + "a:" for at in range(3, 3000)), "are nested more than 50 deep"),
    ],
)  # fmt: skip
def test_yaml_that_cannot_be_used_is_named_with_file_and_line(write: Any, text: str, expected: str) -> None:
    path = write(text)
    with pytest.raises(ConfigurationError) as caught:
        load([path])
    assert str(path) in str(caught.value)
    assert expected.replace("{file}", str(path)) in str(caught.value)


def test_a_few_lines_that_stand_for_billions_of_values_are_refused_at_once(write: Any) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 10)]
    merged = ["b0: &b0 {x: 1, y: 2}"] + [
        f"b{n}: &b{n} {{p: *b{n - 1}, q: *b{n - 1}, <<: *b{n - 1}}}" for n in range(1, 40)
    ]
    for text, line in (("\n".join(lines), 6), ("\n".join(merged), 11)):
        begun = time.process_time()
        with pytest.raises(
            ConfigurationError, match=rf"line {line}: its aliases \(`\*name`\) stand for more than 200000"
        ):
            load([write(text)])
        assert time.process_time() - begun < 10


def test_a_file_that_is_too_large_to_be_a_configuration_is_not_read(write: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"has 5000008 bytes; expected a configuration, of at most 5000000 bytes"
    ):
        load([write("a: " + "b" * 5_000_004 + "\n")])


def test_numbers_with_decimal_digits_are_taken_as_they_are(write: Any) -> None:
    text = "a: [0, -1, +2, 10, 1.5, .5, 1., 1.0e-4, -2.5E+3, 08, '010', 2020-01-01, 1e5]"
    *numbers, octal_like, quoted, date, without_point = read_yaml(write(text)).content["a"]
    assert numbers == [0, -1, 2, 10, 1.5, 0.5, 1.0, 1e-4, -2500]
    assert (octal_like, quoted, date, without_point) == ("08", "010", "2020-01-01", "1e5")


def test_a_path_that_the_system_does_not_take_is_named_by_its_key(load_with: Any) -> None:
    for key in ("paths.final", "off-diag.steps.ref.properties_and_measures.properties"):
        *outer, last = key.split(".")
        text = message(load_with, "{" + ": {".join([*outer, last]) + ": " + "a" * 300 + "}" * len([*outer, last]))
        assert f"`{key}`" in text
        assert "the path cannot be looked for: File name too long" in text
    with pytest.raises(ConfigurationError, match="the environment variable NOT_SET_ANYWHERE is not set"):
        load(["$NOT_SET_ANYWHERE/config.yml"])


def test_a_folder_in_place_of_a_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load([tmp_path])


def test_a_mapping_and_its_copy_by_an_alias_share_a_line(load_with: Any) -> None:
    said = message(
        load_with,
        "custom: {regions: {south: &box {latbnds: [45, 46]}, north: *box}}",
    )
    keys = [f"`custom.regions.{name}.latbnds`" for name in ("south", "north")]
    assert "has a problem:\n" in said and said.count("did you mean lat_bnds?") == 1
    assert all(key in said for key in keys)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("units: {pr: millimetrs}", "`extraction.reference.units.0.units` ({file}, line 1): got 'millimetrs'"),
        ("units: {pr: degC}", "`extraction.reference.units.pr`: got degC, expected a unit that converts to kg m-2 s-1"),
        ("units: {tasmx: degC}", "`extraction.reference.units.tasmx`: tasmx is not read, but tasmax"),
        ("units: [{id: ERA5, units: mm}]", "`extraction.reference.units.0.variable`"),
        ("accumulation: {prr: over_step}", "`extraction.reference.accumulation.prr`: prr is not read"),
        ("accumulation: {pr: over_day}", "expected 'since_midnight' or 'over_step'"),
        ("accumulation: daily", "expected 'since_midnight' or 'over_step'"),
    ],
)
def test_units_that_cannot_be_stated_are_refused_by_key(load_with: Any, change: str, expected: str) -> None:
    told = message(load_with, f"extraction: {{reference: {{{change}}}}}")
    assert expected.split("{file}")[0] in told and expected.split("{file}")[-1] in told


def test_stated_units_are_those_of_a_dataset(load_with: Any) -> None:
    rows = "[{variable: pr, units: mm d-1}, {id: '*_M2_*', variable: pr, units: degC}]".replace("degC", "mm")
    change = f"units: {rows}, accumulation: over_step"
    extraction = load_with(f"extraction: {{simulation: {{{change}}}, reference: {{units: {{pr: m}}}}}}").extraction
    simulation, reference = extraction.simulation, extraction.reference
    assert [simulation.units_of(name) for name in ("CMIP6_M1_x", "CMIP6_M2_x")] == [{"pr": "mm d-1"}, {"pr": "mm"}]
    assert simulation.accumulated(["pr", "tasmax"]) == {"pr": "over_step", "tasmax": "over_step"}
    assert reference.units_of("ERA5-Land") == {"pr": "m"} and reference.accumulated(["pr"]) == {}
