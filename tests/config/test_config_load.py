"""Loading: merging, anchors, frozen values, the hash, paths and environment variables."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dumped import given
from pydantic import ValidationError

from espo_luigi.config import RunConfig, load
from espo_luigi.config.load import merged
from espo_luigi.errors import ConfigurationError


def test_values_have_the_types_that_tasks_expect(load_with: Any) -> None:
    config = load_with()
    assert isinstance(config, RunConfig)
    assert config.paths.tmpdir == Path("/tmp/espo/scratch")
    assert list(config.custom.regions) == ["south", "north"]
    assert config.custom.regions["south"].lat_bnds == (45.0, 47.05)
    assert config.custom.regions["south"].tile_buffer == 0
    assert config.domain.tile_buffer == 1.5
    assert config.custom.ref_period == ("1991", "2020")
    assert config.reference_source == "ERA5-Land"
    assert config.variables == ("tasmax", "tasmin", "pr", "dtr")
    assert config.extraction.simulation.search_data_catalogs.data_catalogs == (Path("/data/simulation.json"),)
    assert given(config.extraction.simulation.search_data_catalogs.restrict_members) == {"ordered": 1}
    assert config.diagnostics is None
    assert config.demo is None


def test_later_files_win_key_by_key_and_replace_lists(load_with: Any) -> None:
    config = load_with(
        "custom: {ref_period: ['1981', '2010'], final_chunks: {lat: 10}}",
        "extraction: {simulation: {search_data_catalogs: {other_search_criteria: {experiment: [ssp245, ssp370]}}}}",
        "custom: {final_chunks: {lon: 5}}",
    )
    assert config.custom.ref_period == ("1981", "2010")
    assert config.custom.sim_period == ("1950", "2100")
    assert config.custom.final_chunks == {"lat": 10, "lon": 5}
    criteria = config.extraction.simulation.search_data_catalogs.other_search_criteria
    assert criteria == {"experiment": ["ssp245", "ssp370"]}


SECTIONS = {
    "dask": "dask: {array.chunk-size: 1MiB}",
    "project": "project: {name: P}",
    "perfect_model": "perfect_model: {methods: [QDM]}",
    "health_checks": "health_checks: {freq: D, raise_on: [freq]}",
}


@pytest.mark.parametrize("section", SECTIONS)
def test_null_removes_a_section_of_an_earlier_file(load_with: Any, section: str) -> None:
    without = load_with(*(text for name, text in SECTIONS.items() if name != section))
    then = load_with(*SECTIONS.values(), f"{section}: null")
    assert getattr(load_with(*SECTIONS.values()), section) != getattr(without, section)
    assert (then.model_dump(), then.dask, then.hash) == (without.model_dump(), without.dask, without.hash)


def paths_of(content: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in content.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from paths_of(value, (*above, key))


def loaded(*files: Path) -> Any:
    """All values, or that they are refused."""
    try:
        return load(files).model_dump(by_alias=True)
    except ConfigurationError:
        return "refused"


def test_null_for_any_key_is_as_if_no_file_had_given_it(write: Any, content: dict[str, Any]) -> None:
    whole, wrong = write(content), []
    for *outer, key in paths_of(content):
        null: dict[str, Any] = {key: None}
        for name in reversed(outer):
            null = {name: null}
        less = copy.deepcopy(content)
        inside = less
        for name in outer:
            inside = inside[name]
        del inside[key]
        if loaded(whole, write(null, "over.yml")) != loaded(write(less, "less.yml")):
            wrong.append(".".join((*outer, key)))
    assert wrong == []


def test_a_section_whose_keys_are_all_commented_out_changes_nothing(load_with: Any) -> None:
    before = load_with(*SECTIONS.values())
    assert load_with(*SECTIONS.values(), "health_checks:\n  # freq: D\n").health_checks == before.health_checks
    assert load_with(*SECTIONS.values(), "health_checks: ~").health_checks != before.health_checks


@pytest.mark.parametrize("key", ["paths", "paths.tmpdir", "paths.final", "biasadjust", "domain", "custom.amno_region"])
def test_null_for_what_a_run_needs_is_refused_by_file_and_key(load_with: Any, tmp_path: Path, key: str) -> None:
    nested = "".join(f"{'  ' * depth}{name}:\n" for depth, name in enumerate(key.split("."))).rstrip() + " null"
    with pytest.raises(ConfigurationError) as caught:
        load_with(nested)
    line = len(key.split("."))
    place = f"({tmp_path / 'change0.yml'}, line {line})"
    assert f"`{key}` {place}: this key is needed, and is `null` (nothing) here." in str(caught.value)


@pytest.mark.parametrize("key", ["exec_workdir", "output"])
def test_null_for_a_path_by_its_older_name_is_refused_by_the_file_that_has_the_null(
    write: Any, small: str, key: str
) -> None:
    older = small.replace("tmpdir: ", "exec_workdir: ").replace("final: /tmp/espo/final", "output: /tmp/espo/a/x.zarr")
    over = write(f"paths:\n  {key}:\n", "over.yml")
    assert load([write(older)]).paths.final == Path("/tmp/espo/a")
    for text in (older, small):
        with pytest.raises(ConfigurationError) as caught:
            load([write(text), over])
        assert f"`paths.{key}` ({over}, line 2): this key is needed, and is `null`" in str(caught.value)


def test_null_removes_a_domain_and_the_hosts_that_steps_still_name_for_it_do_not_matter(load_with: Any) -> None:
    other = "{lat_bnds: [45.5, 46.5], lon_bnds: [-70, -65]}"
    added = (
        f"off-diag: {{domains: {{Cree: {other}}}, steps: "
        + "{"
        + "".join(
            f"{step}: {{domain: {{Cree: {host}}}}}, "
            for step, host in (("ref", "south"), ("sim", "south"), ("scen", "NAM"))
        )
        + "}}"
    )
    config = load_with(added, "off-diag: {domains: {Ute: null}}")
    assert list(config.off_diag.domains) == ["Cree"]
    assert {name: dict(step.domain) for name, step in config.off_diag.steps.items()} == {
        "ref": {"Cree": "south"}, "sim": {"Cree": "south"}, "scen": {"Cree": "NAM"}
    }  # fmt: skip


def test_what_null_removed_can_be_given_anew(load_with: Any) -> None:
    north = "{lon_bnds: [-80, -60], lat_bnds: [47.05, 49]}"
    config = load_with("custom: {regions: {north: null}}", f"custom: {{regions: {{north: {north}}}}}")
    assert config.custom.regions["north"].lat_bnds == (47.05, 49)
    assert config.custom.regions["north"].tile_buffer == 0


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("custom: {maximal_calendar: standard}", "custom: {maximal_calendar: null}"),
        ("custom: {regions: {south: {tile_buffer: 2}}}", "custom: {regions: {south: {tile_buffer: null}}}"),
        ("custom: {working_chunks: {lat: 1}}", "custom: {working_chunks: null}"),
        ("clean_up: {xscen_clean_up: {round_var: {pr: 5}}}", "clean_up: {xscen_clean_up: {round_var: {pr: null}}}"),
        ("health_checks: {flags: {pr: {negative_accumulation_values: }}}", "health_checks: {flags: null}"),
        ("health_checks: {missing: {any: {freq: D}}}", "health_checks: {missing: null}"),
        ("health_checks: {final: {freq: D, raise_on: [freq]}}", "health_checks: {final: null}"),
        ("paths: {project_catalog: /tmp/espo/mine.json}", "paths: {project_catalog: null}"),
    ],
)
def test_null_gives_a_key_its_default_again(load_with: Any, first: str, then: str) -> None:
    assert load_with(first).hash != load_with().hash
    assert load_with(first, then).hash == load_with().hash


@pytest.mark.parametrize("of_pr", ["", "{thresh: null}"])
def test_null_removes_a_variables_flags_and_a_flags_arguments_and_not_the_flag(load_with: Any, of_pr: str) -> None:
    first = (
        "health_checks: {flags: {tasmin: {temperature_extremely_low: }, "
        "pr: {very_large_precipitation_events: {thresh: 300 mm d-1}}}}"
    )
    then = f"health_checks: {{flags: {{tasmin: null, pr: {{very_large_precipitation_events: {of_pr}}}}}}}"
    assert given(load_with(first, then).health_checks)["flags"] == {"pr": {"very_large_precipitation_events": {}}}


def test_anchors_and_merge_keys_are_resolved_with_own_keys_first(load_with: Any) -> None:
    config = load_with(
        """
biasadjust:
  variables:
    dtr:
      training_args: &training
        group: {group: time.dayofyear, window: 31}
        jitter_under: {thresh: 1e-4 K}
        xclim_train_args: {kind: '*', nquantiles: 50}
      adjusting_args: &adjusting {xclim_adjust_args: {interp: nearest}}
    pr:
      training_args:
        jitter_under: {thresh: 0.01 mm d-1}
        <<: *training
      adjusting_args: *adjusting
"""
    )
    training = given(config.biasadjust.variables["pr"].training_args)
    assert training["jitter_under"] == {"thresh": "0.01 mm d-1"}
    assert training["xclim_train_args"] == {"kind": "*", "nquantiles": 50}
    assert given(config.biasadjust.variables["pr"].adjusting_args)["xclim_adjust_args"] == {"interp": "nearest"}


def test_periods_of_the_adjustment_come_from_custom_when_not_given(load_with: Any) -> None:
    tasmax = load_with().biasadjust.variables["tasmax"]
    assert given(tasmax.training_args)["period"] == ["1991", "2020"]
    assert given(tasmax.adjusting_args)["periods"] == ["1950", "2100"]
    assert tasmax.engine == "auto"
    assert set(given(tasmax.training_args)) == {"period", "method", "group", "xclim_train_args"}


@pytest.mark.parametrize("period", ["[1991, 2020]", "['1991', '2020']", "[['1991', '2020']]"])
def test_periods_may_be_numbers_text_or_a_list_of_one_period(load_with: Any, period: str) -> None:
    config = load_with(
        f"custom: {{ref_period: {period}}}",
        f"extraction: {{reference: {{search_data_catalogs: {{periods: {period}}}}}}}",
        f"biasadjust: {{variables: {{tasmax: {{adjusting_args: {{periods: {period}}}}}}}}}",
    )
    assert config.custom.ref_period == ("1991", "2020")
    assert config.extraction.reference.search_data_catalogs.periods == ("1991", "2020")
    assert given(config.biasadjust.variables["tasmax"].adjusting_args)["periods"] == ["1991", "2020"]


def test_several_periods_stay_several(load_with: Any) -> None:
    periods = "[['1951', '1980'], ['2021', '2050']]"
    config = load_with(f"biasadjust: {{variables: {{tasmax: {{adjusting_args: {{periods: {periods}}}}}}}}}")
    found = given(config.biasadjust.variables["tasmax"].adjusting_args)["periods"]
    assert found == [["1951", "1980"], ["2021", "2050"]]


def test_dates_in_attributes_stay_text_and_keys_are_what_was_written(load_with: Any) -> None:
    attrs = "{cat:date_start: 1950-01-01, no: Norway, 2020: a year}"
    config = load_with(f"clean_up: {{xscen_clean_up: {{add_attrs: {{global: {attrs}}}}}}}")
    found = config.clean_up.xscen_clean_up.add_attrs["global"]
    assert found == {"cat:date_start": "1950-01-01", "no": "Norway", "2020": "a year"}


def test_fixed_variables_are_not_among_those_that_are_adjusted(load_with: Any) -> None:
    change = "extraction: {simulation: {search_data_catalogs: {variables_and_freqs: {sftlf: fx}}}}"
    assert "sftlf" not in load_with(change).variables


def test_dask_client_loses_its_folder_and_settings_get_dotted_names(load_with: Any) -> None:
    config = load_with(
        """
dask:
  client: {local_directory: /somewhere, dashboard_address: 6787}
  array.slicing.split_large_chunks: false
  distributed: {worker: {memory: {spill: 0.7}}}
"""
    )
    assert config.dask_client == {"dashboard_address": 6787}
    assert config.dask_settings == {
        "array.slicing.split_large_chunks": False,
        "distributed.worker.memory.spill": 0.7,
    }


def test_the_configuration_cannot_be_changed(load_with: Any) -> None:
    config = load_with()
    with pytest.raises(ValidationError, match="frozen"):
        config.custom.maximal_calendar = "standard"
    with pytest.raises(TypeError, match="does not support item assignment"):
        config.custom.regions["west"] = config.custom.regions["south"]
    with pytest.raises(ValidationError, match="frozen"):
        config.biasadjust.variables["tasmax"].training_args.group.window = 5
    with pytest.raises(TypeError, match="not supported"):
        config.custom.working_chunks |= {"lat": 1}
    assert config.custom.working_chunks == {"lat": 20, "lon": 20, "loc": 600, "time": -1}


def test_what_functions_are_given_is_made_of_ordinary_dictionaries(load_with: Any) -> None:
    group = load_with().biasadjust.variables["tasmax"].training_args.arguments()["group"]
    for one in (copy.deepcopy(group), pickle.loads(pickle.dumps(group)), group | {}, dict(group)):  # noqa: S301
        assert type(one) is dict
        assert one == group
    assert json.loads(json.dumps(group)) == group


def test_the_hash_does_not_depend_on_how_the_same_is_written(write: Any, small: str, content: dict[str, Any]) -> None:
    one = load([write(small, "one.yml")])
    reordered = {key: content[key] for key in reversed(content)}
    reordered["custom"] = {key: content["custom"][key] for key in reversed(content["custom"])}
    two = load([write(reordered, "two.yml")])
    paths = write({"paths": content.pop("paths")}, "paths.yml")
    rest = write(content, "rest.yml")
    assert one.hash == two.hash == load([paths, rest]).hash == load([rest, paths]).hash
    assert len(one.hash) == 12
    assert set(one.hash) <= set("0123456789abcdef")


ATTRIBUTES = """
project: {name: ESPO-R, version: 2.0, id: r}
clean_up:
  xscen_clean_up:
    add_attrs:
      global:
        said: '{project} v{version} of {institution}: {reference}, {period}, {first}-{last}'
        free: '{unknown} {} {{period} {a b} 100 % {0}'
        number: 3
      tasmax: {note: 'against {reference}'}
"""


def test_attributes_name_what_the_other_sections_say(load_with: Any) -> None:
    change = """
custom: {ref_period: ['1981', '2010'], sim_period: ['1971', '2040']}
extraction: {reference: {search_data_catalogs: {other_search_criteria: {source: RDRS}}}}
biasadjust: {variables: {tasmax: {adjusting_args: {bias_adjust_institution: MeteoX}}}}
"""
    attributes = load_with(ATTRIBUTES, change).attributes
    assert attributes["global"]["said"] == "ESPO-R v2.0 of MeteoX: RDRS, 1981-2010, 1971-2040"
    assert attributes["tasmax"] == {"note": "against RDRS"}


def test_other_braces_and_fields_without_a_value_stay_as_they_are(load_with: Any) -> None:
    config = load_with(ATTRIBUTES, "project:\n  name: null\n  version: null\n")
    assert config.attributes["global"] == {
        "said": "{project} v{version} of {institution}: ERA5-Land, 1991-2020, 1950-2100",
        "free": "{unknown} {} {1991-2020 {a b} 100 % {0}",
        "number": 3,
    }
    assert load_with().attributes == {}


def test_the_periods_are_those_that_variables_are_adjusted_with(load_with: Any) -> None:
    training, adjusting = "{period: [2001, 2010], group: time.month}", "{periods: [[1950, 1960], [2071, 2100]]}"
    pr = f"training_args: {training}, adjusting_args: {adjusting}"
    attributes = load_with(ATTRIBUTES, f"biasadjust: {{variables: {{pr: {{{pr}}}}}}}").attributes
    assert attributes["global"]["said"].endswith(": ERA5-Land, 1991-2020 and 2001-2010, 1950-2100")


@pytest.mark.parametrize(("name", "expected"), [("espo-g6", "9e9fa7400248"), ("demo", "17872a14d918")])
def test_the_hash_of_what_is_shipped_changes_with_its_files_only(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    # Another hash makes every run warn that its products were made under another configuration.
    monkeypatch.chdir("/")
    for variable in ("OUTPUT", "SCRATCH", "CATALOGS"):
        monkeypatch.setenv(f"ESPO_{variable}", f"/site/{variable.lower()}")
    folder = Path(__file__).parents[2] / "config" / name
    assert load([folder / "config.yml", folder / "paths.yml"]).hash == expected


@pytest.mark.parametrize(
    ("change", "changes"),
    [
        ("custom: {ref_period: ['1981', '2010']}", True),
        ("paths: {final: /elsewhere}", True),
        ("biasadjust: {variables: {tasmax: {training_args: {xclim_train_args: {nquantiles: 20}}}}}", True),
        ("clean_up: {xscen_clean_up: {to_level: final}}", True),
        ("dask: {client: {dashboard_address: 1}}", False),
        ("logging: {version: 1}", False),
        ("io: {rechunk: {worker_mem: 9GB}}", False),
        # Defaults that are written out.
        ("custom: {maximal_calendar: noleap, final_chunks: {lat: 50, lon: 50}}", False),
        ("regrid: {regrid_method: {tasmax: bilinear}}", False),
        ("regrid: {regrid_method: {tasmax: conservative}}", True),
    ],
)
def test_the_hash_changes_with_what_can_change_a_product_only(load_with: Any, change: str, changes: bool) -> None:
    assert (load_with(change).hash != load_with().hash) == changes


def test_the_hash_counts_the_order_of_regions_in_which_products_are_concatenated(
    write: Any, content: dict[str, Any]
) -> None:
    first = load([write(content, "first.yml")])
    content["custom"]["regions"] = dict(reversed(content["custom"]["regions"].items()))
    assert load([write(content, "second.yml")]).hash != first.hash


def test_environment_variables_and_the_home_folder_are_expanded_and_folders_start_from_the_working_folder(
    load_with: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_with("paths: {final: results}").paths.final == tmp_path / "results"
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("ESPO_OUTPUT", "/project/out")
    config = load_with(
        "paths: {final: $ESPO_OUTPUT/espo, tmpdir: ~/scratch, project_catalog: '${ESPO_OUTPUT}/cat.json'}",
        "extraction: {reference: {search_data_catalogs: {data_catalogs: $ESPO_OUTPUT/ref.json}}}",
    )
    assert config.paths.final == Path("/project/out/espo")
    assert config.paths.tmpdir == Path("/home/somebody/scratch")
    assert config.paths.project_catalog == Path("/project/out/cat.json")
    assert config.extraction.reference.search_data_catalogs.data_catalogs == (Path("/project/out/ref.json"),)


PROPERTIES = {"indicators": {"mean_tasmax": {"base": "xclim.sdba.properties.mean", "input": {"da": "tasmax"}}}}


@pytest.mark.parametrize(
    ("name", "place"),
    [("some.yml", "work"), ("some.yml", "."), ("config/some.yml", "work/config"), ("FOLDER/some.yml", ".")],
)
def test_a_properties_file_is_found_from_the_working_folder_or_the_configurations(
    load_with: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    (tmp_path / "work" / "config").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / place / "some.yml").write_text(yaml.safe_dump(PROPERTIES))
    name = name.replace("FOLDER", tmp_path.name)  # as from the folder of the project
    config = load_with(f"off-diag: {{steps: {{ref: {{properties_and_measures: {{properties: {name}}}}}}}}}")
    definitions = config.off_diag.steps["ref"].properties_and_measures.properties
    assert definitions == {"indicators": {"mean_tasmax": {"base": "xsdba.properties.mean", "input": {"da": "tasmax"}}}}
    assert type(definitions["indicators"]) is dict


def test_a_section_that_has_nearly_the_name_of_a_known_one_is_refused(load_with: Any) -> None:
    with pytest.raises(ConfigurationError, match="`clean-up`: unknown section; did you mean clean_up"):
        load_with("clean-up: {problems: []}")


def test_a_section_of_a_strangers_is_warned_about(load_with: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "espo_luigi.config"):
        load_with("publication: {doi: none}")
    assert "the section `publication` is unknown and has no effect." in caplog.text


@pytest.mark.parametrize(
    "section",
    [
        *("project", "tasks", "indicators", "indicator", "aggregate", "ensemble"),
        *("scripting", "io", "utils", "tdd", "logging", "demo"),
    ],
)
def test_known_sections_are_accepted_in_silence(load_with: Any, section: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "espo_luigi.config"):
        load_with(f"{section}: {{anything: {{at: all}}}}")
    assert not caplog.records


def test_no_file_at_all_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="No configuration file was given"):
        load([])


def test_a_file_is_merged_over_its_base_which_is_beside_it_or_shipped(write: Any, small: str, load_with: Any) -> None:
    write(small, "base.yml")
    over = write("base: base.yml\ncustom: {maximal_calendar: standard}\n", "over.yml")
    last = write("base: base.yml\nclean_up: {xscen_clean_up: {round_var: {pr: 5}}}\n", "last.yml")
    expected = load_with("custom: {maximal_calendar: standard}", "clean_up: {xscen_clean_up: {round_var: {pr: 5}}}")
    # A base that two files name is merged once, before both.
    assert load([over, last]).hash == expected.hash
    paths = write({"paths": {"tmpdir": "/tmp/work", "final": "/tmp/final"}}, "paths.yml")
    shipped = merged([write("base: espo-g6/config.yml\n", "mine.yml"), paths])[0]
    assert shipped["project"]["name"] == "ESPO-G6-E5L"


def test_a_base_is_looked_for_beside_the_file_and_in_the_package_and_not_in_the_working_folder(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = write("project: {name: Beside}\n", "base.yml")
    file = write("base: base.yml\n", "mine.yml")
    here = tmp_path / "here"
    (here / "espo-g6").mkdir(parents=True)
    monkeypatch.chdir(here)
    for name in ("base.yml", "espo-g6/config.yml", "only-here.yml"):
        Path(name).write_text("project: {name: Here}\n")
    assert merged([file])[0]["project"]["name"] == "Beside"
    assert merged([write(f"base: {beside}\n", "other.yml")])[0]["project"]["name"] == "Beside"
    assert merged([write("base: espo-g6/config.yml\n", "other.yml")])[0]["project"]["name"] == "ESPO-G6-E5L"
    with pytest.raises(ConfigurationError, match="expected a YAML file") as caught:
        merged([write("base: only-here.yml\n", "other.yml")])
    assert str(here) not in str(caught.value)


def test_a_base_that_has_two_names_is_merged_once(write: Any) -> None:
    base = write("project: {name: Base}\n", "base.yml")
    (base.parent / "link.yml").symlink_to("base.yml")
    first = write("base: base.yml\nproject: {name: Mine}\n", "first.yml")
    assert merged([first, write("base: link.yml\n", "second.yml")])[0]["project"]["name"] == "Mine"


def test_null_takes_a_section_of_the_base_away(write: Any) -> None:
    write("production: espo-2024\ndiagnostics: {a: 1}\ndiagregion: {Ute: {}}\nproject: {name: P}\n", "base.yml")
    over = write("base: base.yml\nproduction: null\ndiagnostics: null\ndiagregion: null\ndask: null\n", "over.yml")
    assert set(merged([over])[0]) == {"project"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("base: nowhere.yml", "`base` ({file}, line 1): got 'nowhere.yml', expected a YAML file; looked in "),
        ("base: [config.yml]", "`base` ({file}, line 1): got ['config.yml']: expected the name of a YAML file"),
        ("base: config.yml", "{file}: its `base` leads back to the file itself. Name another file."),
        ("base: $NOT_THERE/config.yml", "the environment variable NOT_THERE is not set"),
    ],
)
def test_a_base_that_cannot_be_read_is_named(write: Any, text: str, expected: str) -> None:
    file = write(text)
    with pytest.raises(ConfigurationError, match=re.escape(expected.format(file=file))):
        load([file])


def test_a_chain_of_bases_has_an_end(write: Any) -> None:
    last = write("custom: {}\n", "0.yml")
    for number in range(1, 23):
        last = write(f"base: {number - 1}.yml\n", f"{number}.yml")
    with pytest.raises(ConfigurationError, match=r"1.yml is a `base` of a `base` 21 times; expected 20 at most"):
        merged([last])
    assert merged([last.with_name("20.yml")])[0] == {"custom": {}}
