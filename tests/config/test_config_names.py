"""Files of ESPO-G's older branches: nested boxes, old names, diagnostics of whole regions."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from dumped import given

from espo_luigi.config import RunConfig, load
from espo_luigi.errors import ConfigurationError

# The shape of the files of the branch stage-2024, with every spelling of theirs that differs from the newest one.
STAGE_2024 = """
project: {name: ESPO-G6-E5L, version: 1.0.0, id: eg6}
tasks: [makeref, extract, regrid, rechunk, train, adjust, clean_up, final_zarr, diagnostics, concat]
custom:
  delete_in_final_zarr: False
  delete_in_diag: True
  regions:
    south_nodup:
      name: south_nodup
      method: bbox
      bbox: {lon_bnds: [-179.95, -10], lat_bnds: [10, 40.05]}
    middle_nodup:
      name: middle_nodup
      method: bbox
      bbox: {lon_bnds: [-179.95, -10], lat_bnds: [40.05, 65.05]}
  amno_region:
    name: &name NAM
    method: bbox
    buffer: 1.5
    bbox: {lon_bnds: [-179.95, -10], lat_bnds: [10, 83.4]}
  stack_drop_nans: &stack True
  chunks: {lat: 20, lon: 20, loc: 600, time: -1}
  out_chunks: {lat: 50, lon: 50, time: 4year}
  ref_period: &ref_period ['1991', '2020']
  sim_period: &sim_period ['1950', '2100']
  maximal_calendar: noleap
  rechunk: {lat: 50, lon: 50}
extraction:
  reference:
    search_data_catalogs:
      variables_and_freqs: &variables {tasmax: D, tasmin: D, pr: D, dtr: D}
      allow_conversion: True
      periods: *ref_period
      other_search_criteria: {source: &ref_source ERA5-Land}
    extract_dataset: {}
    properties_and_measures: {to_level_prop: diag-ref-prop, period: *ref_period, unstack: *stack}
    chunks: {time: -1}
  simulation:
    search_data_catalogs:
      variables_and_freqs: *variables
      match_hist_and_fut: True
      periods: *sim_period
      exclusions: {id: [CMIP6_ScenarioMIP_KIOST_KIOST-ESM_ssp245_r1i1p1f1_global]}
    extract_dataset: {periods: *sim_period, xr_open_kwargs: {drop_variables: [height]}}
    chunks: {'time': 365, 'lat': -1, 'lon': -1}
  ref_source: *ref_source
regrid:
  target: {source: *ref_source, calendar: noleap}
  regrid_dataset:
    regridder_kwargs: {method: bilinear, locstream_out: *stack}
biasadjust:
  variables:
    pr:
      training_args:
        reference_period: *ref_period
        group: {group: time.dayofyear, window: 31}
        adapt_freq: {thresh: 1 mm d-1}
        xsdba_train_args: {kind: '*', nquantiles: 50}
      adjusting_args:
        simulation_period: *sim_period
        xsdba_adjust_args: {interp: nearest}
        bias_adjust_institution: Ouranos
        bias_adjust_project: ESPO-G6
clean_up:
  search_data_catalogs: {variables_and_freqs: {tasmax: D}, allow_conversion: True}
  xscen_clean_up:
    maybe_unstack_dict: {stack_drop_nans: *stack, rechunk: {lat: 20, lon: 20, time: -1}}
    round_var: {pr: 10}
diagnostics:
  sim:
    input: {processing_level: regridded_and_rechunked}
    dref_for_measure: {processing_level: diag-ref-prop}
    properties_and_measures: {period: *ref_period, unstack: *stack}
  scen:
    input: {processing_level: final}
    dref_for_measure: {processing_level: diag-ref-prop}
    properties_and_measures: {period: *ref_period, unstack: False}
indicators: {input: {processing_level: final, domain: [*name]}}
off-diag:
  domains:
    Ute:
      name: Ute
      method: bbox
      bbox: {lat_bnds: [35.0, 40.0], lon_bnds: [-111.0, -103.0]}
  correlogram_regions: [Ute]
  steps:
    ref:
      input: {source: *ref_source, calendar: default}
      domain: {Ute: south_nodup, Dene: middle_nodup}
      properties_and_measures: {period: *ref_period}
      unstack: *stack
    sim:
      domain: {Ute: south, Dene: middle_nodup}
      dref_for_measure: {processing_level: off-diag-ref-prop}
      properties_and_measures: {period: *ref_period}
      unstack: *stack
    scen:
      domain: {Ute: NAM, Dene: NAM}
      properties_and_measures: {period: *ref_period}
      unstack: False
scripting: {send_mail_on_exit: {on_error_only: True}}
tdd: {xarray_open_kwargs: {decode_timedelta: False}}
"""

STAGE_2024_PATHS = """
paths:
  project_catalog: &pcat OUT/cat.json
  workdir: OUT/workdir/
  exec_workdir: EXEC/ESPO-G_workdir/
  refdir: OUT/reference/
  output: OUT/NAM_SPLIT/{region_name}/day_{sim_id}_1950-2100.zarr
  logging: OUT/logging/log_{sim_id}_{region_name}.log
dask: {client: {local_directory: EXEC/tmp_eg6/, dashboard_address: 1234}}
logging: {handlers: {file: {filename: EXEC/logger.log}}}
extraction:
  reference:
    search_data_catalogs: {data_catalogs: [CATALOGS/reconstruction.json]}
    properties_and_measures: {properties: &properties means.yml}
  simulation:
    search_data_catalogs: {data_catalogs: [CATALOGS/simulation.json]}
regrid: {regrid_dataset: {weights_location: OUT/workdir/weights/}}
clean_up: {search_data_catalogs: {data_catalogs: [*pcat]}}
diagnostics:
  sim: {properties_and_measures: {properties: *properties}}
  scen: {properties_and_measures: {properties: *properties}}
off-diag:
  steps:
    ref: {properties_and_measures: {properties: &off official.yml}}
    sim: {properties_and_measures: {properties: *off}}
    scen: {properties_and_measures: {properties: *off}}
indicator: {load_xclim_module: {filename: portraits.yml}}
utils: {stack_drop_nans: {to_file: 'OUT/coords/coords_{domain}_{shape}.nc'}}
"""

MEANS = "realm: generic\nindicators:\n  mean-pr: {base: xsdba.properties.mean, input: {da: pr}}\n"
OFFICIAL = "indicators:\n  q95_pr: {base: xclim.sdba.properties.quantile, input: {da: pr}, parameters: {q: 0.95}}\n"


@pytest.fixture
def stage_2024(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> RunConfig:
    """The files of the branch stage-2024, loaded with a warning: a host is a region up to its suffix."""
    monkeypatch.chdir(tmp_path)
    write(MEANS, "means.yml")
    write(OFFICIAL, "official.yml")
    with caplog.at_level(logging.WARNING, "espo_luigi.config"):
        config = load([write(STAGE_2024, "config.yml"), write(STAGE_2024_PATHS, "paths.yml")])
    assert [record.getMessage() for record in caplog.records] == [
        "`off-diag.steps.sim.domain.Ute` is south, which is not a region: south_nodup is taken."
    ]
    assert config.off_diag.steps["sim"].domain == {"Ute": "south_nodup"}
    return config


def test_nested_boxes_and_old_names_of_buffers_chunks_and_folders_are_read(
    stage_2024: RunConfig, tmp_path: Path
) -> None:
    assert stage_2024.custom.regions["middle_nodup"].lat_bnds == (40.05, 65.05)
    assert stage_2024.domain.tile_buffer == 1.5
    assert stage_2024.domain.lon_bnds == (-179.95, -10)
    assert stage_2024.off_diag.domains["Ute"].lat_bnds == (35.0, 40.0)
    assert stage_2024.custom.working_chunks == {"lat": 20, "lon": 20, "loc": 600, "time": -1}
    assert stage_2024.custom.final_chunks == {"lat": 50, "lon": 50}, "the product's chunk of time is dropped"
    assert stage_2024.paths.tmpdir == tmp_path / "EXEC/ESPO-G_workdir"
    assert stage_2024.paths.final == tmp_path / "OUT"
    assert stage_2024.paths.project_catalog == tmp_path / "OUT/cat.json"


def test_old_names_of_the_adjustment_become_the_current_ones(stage_2024: RunConfig) -> None:
    pr = stage_2024.biasadjust.variables["pr"]
    assert given(pr.training_args) == {
        "period": ["1991", "2020"],
        "method": "DetrendedQuantileMapping",
        "group": {"group": "time.dayofyear", "window": 31},
        "adapt_freq": {"thresh": "1 mm d-1"},
        "xclim_train_args": {"kind": "*", "nquantiles": 50},
    }
    assert given(pr.adjusting_args) == {
        "periods": ["1950", "2100"],
        "xclim_adjust_args": {"interp": "nearest"},
        "bias_adjust_institution": "Ouranos",
        "bias_adjust_project": "ESPO-G6",
    }


def test_diagnostics_of_regions_and_small_domains_have_their_steps_properties_and_levels(stage_2024: RunConfig) -> None:
    diagnostics = stage_2024.diagnostics
    assert list(diagnostics.steps) == ["ref", "sim", "scen"]
    assert diagnostics.steps["sim"].unstack is True
    assert diagnostics.steps["scen"].unstack is False
    assert diagnostics.steps["sim"].properties_and_measures.to_level_prop == "diag-sim-prop"
    assert diagnostics.steps["scen"].properties_and_measures.to_level_meas == "diag-scen-meas"
    assert list(diagnostics.ref.properties_and_measures.properties["indicators"]) == ["mean-pr"]
    assert diagnostics.ref.properties_and_measures.to_level_prop == "diag-ref-prop"
    assert diagnostics.ref.unstack is True
    scen = stage_2024.off_diag.steps["scen"].properties_and_measures
    assert scen.properties["indicators"]["q95_pr"]["base"] == "xsdba.properties.quantile"
    assert (scen.to_level_prop, scen.to_level_meas) == ("off-diag-scen-prop", "off-diag-scen-meas")
    assert scen.period == ("1991", "2020")


def test_old_and_current_names_mean_the_same(load_with: Any, write: Any, small: str) -> None:
    old = small.replace("xclim_train_args", "xsdba_train_args").replace("xclim_adjust_args", "xsdba_adjust_args")
    old = old.replace("tile_buffer", "buffer").replace("amno_region", "full_region")
    old = old.replace(
        "lon_bnds: [-80, -60], lat_bnds: [45, 47.05]", "bbox: {lon_bnds: [-80, -60], lat_bnds: [45, 47.05]}"
    )
    assert old != small
    assert load([write(old, "old.yml")]).hash == load_with().hash


def test_an_old_name_in_a_later_file_overrides_the_current_name_in_an_earlier_one(load_with: Any) -> None:
    change = "biasadjust: {variables: {tasmax: {training_args: {xsdba_train_args: {nquantiles: 20}}}}}"
    training = given(load_with(change).biasadjust.variables["tasmax"].training_args)
    assert training["xclim_train_args"] == {"kind": "+", "nquantiles": 20}


def test_both_names_of_one_key_in_one_file_are_an_error(load_with: Any) -> None:
    change = "custom: {chunks: {lat: 1}, working_chunks: {lat: 2}}"
    with pytest.raises(ConfigurationError, match=r"Both `custom.working_chunks` and `custom.chunks`.*Keep one"):
        load_with(change)


def test_the_reference_may_be_one_level_deeper_under_its_source(write: Any, content: dict[str, Any]) -> None:
    expected = load([write(content, "flat.yml")])
    content["extraction"]["reference"] = {"ERA5-Land": content["extraction"]["reference"]}
    nested = load([write(content, "nested.yml")])
    assert nested.hash == expected.hash
    assert nested.reference_source == "ERA5-Land"


def test_errors_below_a_nested_source_name_the_path_as_written(write: Any, content: dict[str, Any]) -> None:
    content["extraction"]["reference"]["search_data_catalogs"]["periods"] = "1991"
    content["extraction"]["reference"] = {"ERA5-Land": content["extraction"]["reference"]}
    with pytest.raises(ConfigurationError, match=r"`extraction.reference.ERA5-Land.search_data_catalogs.periods` \("):
        load([write(content)])


def test_several_reference_sources_are_an_error_that_names_them(write: Any, content: dict[str, Any]) -> None:
    reference = content["extraction"]["reference"]
    content["extraction"]["reference"] = {"ERA5-Land": reference, "CaSR": reference}
    with pytest.raises(ConfigurationError, match=r"`extraction.reference` holds 2 sources \(ERA5-Land, CaSR\)"):
        load([write(content)])


def test_two_files_name_the_same_reference_source(write: Any, content: dict[str, Any]) -> None:
    content["extraction"]["reference"] = {"ERA5-Land": content["extraction"]["reference"]}
    first = write(content, "config.yml")
    of_both = {"extract_dataset": {"xr_open_kwargs": {"drop_variables": ["height"]}}}
    same = write({"extraction": {"reference": {"ERA5-Land": of_both}}}, "same.yml")
    assert load([first, same]).extraction.reference.extract_dataset.xr_open_kwargs == {"drop_variables": ["height"]}
    other = write({"extraction": {"reference": {"CaSR": of_both}}}, "other.yml")
    with pytest.raises(ConfigurationError, match=r"other.yml: `extraction.reference.CaSR`: a file before it gives"):
        load([first, other])


def test_errors_name_old_keys_as_they_were_written(write: Any, small: str) -> None:
    old = small.replace("xclim_train_args: {kind: +, nquantiles: 50}", "xsdba_train_args: 50")
    with pytest.raises(ConfigurationError) as caught:
        load([write(old)])
    assert "`biasadjust.variables.tasmax.training_args.xsdba_train_args` (" in str(caught.value)
    assert "line 30): got 50 (a whole number), expected a mapping" in str(caught.value)


def test_diagnostics_without_steps_are_left_out_with_a_warning(
    load_with: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "espo_luigi.config"):
        config = load_with("diagnostics: {properties_and_measures: {properties: some.yml}}")
    assert config.diagnostics is None
    assert "`diagnostics` has neither `sim` nor `scen`" in caplog.text


def test_diagnostics_without_the_references_properties_name_the_key_that_is_missing(load_with: Any) -> None:
    step = (
        "{properties_and_measures: {properties: {indicators: {a: {base: xsdba.properties.mean, input: {da: tasmax}}}}}}"
    )
    with pytest.raises(ConfigurationError) as caught:
        load_with(f"diagnostics: {{sim: {step}, scen: {step}}}")
    assert "`extraction.reference.properties_and_measures.properties`" in str(caught.value)
    assert "this key is missing. It is the definitions of the properties" in str(caught.value)
