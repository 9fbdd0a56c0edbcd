"""Checks between sections: what would fail, or be extrapolated, hours later is refused before anything runs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, get_args

import pytest
from small_demo import SMALL_CONFIG
from test_config_arguments import nested

from espo_luigi.config import load
from espo_luigi.errors import ConfigurationError

DEMO = Path(__file__).parents[2] / "config" / "demo"
GRIDS = "regrid.regrid_dataset.intermediate_grids"


def demo_with(tmp_path: Path, *changes: tuple[str, str]) -> Any:
    """Load the configuration of the demo in small, then each value at its path of keys."""
    files = [DEMO / "config.yml", DEMO / "paths.yml", SMALL_CONFIG]
    for number, (path, value) in enumerate(changes):
        files.append(tmp_path / f"change{number}.yml")
        files[-1].write_text(nested(path, value))
    return load(files)


def refused(tmp_path: Path, *changes: tuple[str, str]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        demo_with(tmp_path, *changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("custom.amno_region.lat_bnds", "[45, 46.2]", "`custom.amno_region` (45..46.2 degrees north, -67..-64.5 degrees east) does not cover `custom.regions.middle` (45.75..47.5 degrees north, -67..-64.5 degrees east): 1.3 degrees in the north would be extrapolated"),  # noqa: E501
        ("custom.amno_region.lon_bnds", "[10, 12.5]", "does not cover `custom.regions.south`"),
        ("custom.amno_region.lon_bnds", "[293.5, 295.5]", "0.5 degrees in the west would be extrapolated"),
        (f"{GRIDS}.reg2.cf_grid_2d.lat1_b", "47.8", "`regrid.regrid_dataset.intermediate_grids.reg2`: its cells (43.9..47.9 degrees north, 291.04..297.04 degrees east) do not cover `custom.regions.north` (47.5..48 degrees north, -67..-64.5 degrees east): 0.1 degrees in the north would be extrapolated. Give the grid bounds that cover all regions, or leave the grid out"),  # noqa: E501
        (f"{GRIDS}.reg1.cf_grid_2d.lat0_b", "45", "(45..45.75 degrees north, -67..-64.5 degrees east) with a cell more of the next grid, reg2, on each side: 0.5 degrees in the south would be extrapolated"),  # noqa: E501
        ("biasadjust.variables.pr.training_args.period", "[1981, 2010]", "`biasadjust.variables.pr.training_args.period`: got 1981-2010, expected years within `custom.ref_period`, 1991-2020: of other years nothing is extracted."),  # noqa: E501
        ("custom.sim_period", "[2000, 2100]", "got 1991-2020, expected years within `custom.sim_period`, 2000-2100"),
        ("biasadjust.variables.pr.adjusting_args.periods", "[[1950, 2000], [2001, 2101]]", "`biasadjust.variables.pr.adjusting_args.periods`: got 2001-2101, expected years within `custom.sim_period`"),  # noqa: E501
        ("off-diag.steps.ref.properties_and_measures.period", "[1981, 2010]", "`off-diag.steps.ref.properties_and_measures.period`: got 1981-2010, expected years within `custom.ref_period`"),  # noqa: E501
        ("off-diag.steps.scen.properties_and_measures.period", "[2071, 2101]", "expected years within `custom.sim_period`"),  # noqa: E501
        ("diagnostics.sim.properties_and_measures.period", "[1949, 2000]", "`diagnostics.sim.properties_and_measures.period`"),  # noqa: E501
        ("extraction.reference.properties_and_measures.period", "[1949, 2000]", "`extraction.reference.properties_and_measures.period`: got 1949-2000, expected years within `custom.ref_period`"),  # noqa: E501
        ("health_checks.start_date", "1949-12-31", "`health_checks.start_date`: got 1949-12-31, expected 1950-01-01 or later: products begin with `custom.sim_period`, so that all would fail."),  # noqa: E501
        ("health_checks.end_date", "2101-01-01", "`health_checks.end_date`: got 2101-01-01, expected 2100-12-31 or earlier"),  # noqa: E501
        ("biasadjust.variables.pr.training_args.adapt_freq.thresh", "1 K", "`biasadjust.variables.pr.training_args.adapt_freq.thresh`: got '1 K', expected a number and a unit that converts to kg m-2 s-1, the variable's."),  # noqa: E501
        ("regrid.regrid_method", "{prr: conservative}", "`regrid.regrid_method.prr`: this variable is not among"),
        ("regrid.regrid_method", "{pr: conservativ}", "did you mean conservative?"),
        ("clean_up.xscen_clean_up.limit_var", "{pr: potential_radiation}", "`clean_up.xscen_clean_up.limit_var.pr`: pr is in kg m-2 s-1; expected a product in W m-2, such as rsds."),  # noqa: E501
        ("clean_up.xscen_clean_up.limit_var", "{rsds: potential_radiation}", "`clean_up.xscen_clean_up.limit_var.rsds`: rsds is no product; expected"),  # noqa: E501
        ("biasadjust.variables.tasmax.training_args.additive_space", "{lower_bound: 0 mm d-1}", "`biasadjust.variables.tasmax.training_args.additive_space.lower_bound`: got '0 mm d-1', expected a number and a unit that converts to K"),  # noqa: E501
        ("biasadjust.variables.pr.training_args.jitter_under.thresh", "1 mm", "expected a number and a unit that converts to kg m-2 s-1"),  # noqa: E501
        ("biasadjust.variables.pr.training_args.xclim_train_args.jitter_under_thresh_value", "1 furlong", "xclim_train_args.jitter_under_thresh_value`: got '1 furlong'"),  # noqa: E501
        ("health_checks.flags.pr.very_large_precipitation_events.thresh", "1 K", "`health_checks.flags.pr.very_large_precipitation_events.thresh`: got '1 K', expected"),  # noqa: E501
        ("health_checks.flags.pr.temperature_extremely_high", "", "`health_checks.flags.pr.temperature_extremely_high`: this flag is about values in degC, and pr is in kg m-2 s-1."),  # noqa: E501
        ("off-diag.steps.sim.properties_and_measures.properties", "{indicators: {a: {base: xsdba.properties.mean, input: {da: tasmux}}}}", "`off-diag.steps.sim.properties_and_measures.properties`: the property a needs the variable 'tasmux'; there are tasmax, tasmin, pr, dtr; did you mean tasmax?"),  # noqa: E501
        ("off-diag.steps.sim.properties_and_measures.properties", "{indicators: {a: {base: xsdba.properties.relative_frequency, input: {da: pr}, parameters: {thresh: 1 K}}}}", "properties.indicators.a.parameters.thresh`: got '1 K', expected a number and a unit that converts to kg m-2 s-1"),  # noqa: E501
    ],
)  # fmt: skip
def test_what_could_only_fail_later_is_refused(tmp_path: Path, path: str, value: str, expected: str) -> None:
    assert expected in refused(tmp_path, (path, value))


def test_years_between_two_stretches_are_no_years_of_the_simulation(tmp_path: Path) -> None:
    stretches = ("custom.sim_period", "[[1950, 2030], [2065, 2100]]")
    config = demo_with(tmp_path, stretches)
    assert config.custom.stretches == (("1950", "2030"), ("2065", "2100")) and config.custom.span == ("1950", "2100")
    assert config.biasadjust.variables["pr"].adjusting_args.periods == config.custom.sim_period
    text = refused(tmp_path, stretches, ("biasadjust.variables.pr.adjusting_args.periods", "[1950, 2100]"))
    assert "got 1950-2100, expected years within `custom.sim_period`, 1950-2030 or 2065-2100: of other years" in text
    text = refused(tmp_path, ("custom.sim_period", "[[1950, 2030], [2030, 2100]]"))
    assert "expected periods in order of time and without overlap" in text


def test_the_shipped_grids_cover_the_shipped_regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OUTPUT", "SCRATCH", "CATALOGS"):
        monkeypatch.setenv(f"ESPO_{name}", "/data")
    production = DEMO.parent / "espo-g6"
    config = load([production / "config.yml", production / "paths.yml"])
    assert len(config.regrid.regrid_dataset.intermediate_grids) == 2
    assert len(demo_with(tmp_path).regrid.regrid_dataset.intermediate_grids) == 2


def test_regions_that_moved_away_from_the_grids_are_refused_and_accepted_without_grids(tmp_path: Path) -> None:
    alps = "{lon_bnds: [5, 7.5], lat_bnds: [45, 48]}"
    custom = (
        "{amno_region: " + alps + ", regions: {south: {lon_bnds: [5, 7.5]}, middle: {lon_bnds: [5, 7.5]}, "
        "north: {lon_bnds: [5, 7.5]}}}"
    )
    moved = ("custom", custom)
    domains = ("off-diag.domains", "{Highland: {lon_bnds: [5, 6]}, Lowland: {lon_bnds: [5, 6]}}")
    text = refused(tmp_path, moved, domains)
    assert "`regrid.regrid_dataset.intermediate_grids.reg2`: its cells" in text
    assert "or leave the grid out" in text
    config = demo_with(tmp_path, moved, domains, (GRIDS, "null"))
    assert dict(config.regrid.regrid_dataset.intermediate_grids) == {}


def test_a_whole_domain_may_count_longitudes_in_the_other_way(tmp_path: Path) -> None:
    config = demo_with(tmp_path, ("custom.amno_region.lon_bnds", "[293, 295.5]"))
    assert config.domain.lon_bnds == (293, 295.5)


def test_the_last_of_december_is_warned_about_and_refused_where_all_years_have_360_days(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = ("health_checks.end_date", "2100-12-31")
    with caplog.at_level(logging.WARNING, "espo_luigi.config"):
        demo_with(tmp_path, last)
    assert "products with years of 360 days end on 2100-12-30, and will fail" in caplog.text
    text = refused(tmp_path, last, ("custom.maximal_calendar", "360_day"))
    assert "got 2100-12-31, expected 2100-12-30 or earlier" in text


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("biasadjust.variables.pr.training_args.period", "[1991, 2010]"),
        ("biasadjust.variables.pr.adjusting_args.periods", "[[1950, 2000], [2001, 2100]]"),
        ("biasadjust.variables.pr.adjusting_args.periods", "[[1950, 1980], [2071, 2100]]"),
        ("biasadjust.variables.pr.training_args.adapt_freq.thresh", "1e-5 kg m-2 s-1"),
        ("biasadjust.variables.pr.training_args.adapt_freq.thresh", "0.1 cm/day"),
        ("health_checks.flags.tasmin.temperature_extremely_low.thresh", "203 K"),
        ("health_checks.start_date", "'1950'"),
        ("health_checks.end_date", "2050-02-30"),
        ("off-diag.steps.scen.properties_and_measures.period", "[2071, 2100]"),
        ("custom.maximal_calendar", "gregorian"),
        ("off-diag.steps.ref.properties_and_measures.properties", "{indicators: {a: {base: xclim.sdba.properties.spell_length_distribution, input: {da: tasmax}, parameters: {method: quantile, thresh: 0.9}}}}"),  # noqa: E501
    ],
)  # fmt: skip
def test_what_can_work_is_accepted(tmp_path: Path, path: str, value: str) -> None:
    assert demo_with(tmp_path, (path, value)).hash


def test_the_calendars_of_a_run_are_those_that_the_adjustment_knows() -> None:
    from espo_luigi.config.regions import Calendar
    from espo_luigi.science.calendar import canonical

    assert {canonical(name) for name in get_args(Calendar)} == {"360_day", "noleap", "standard", "all_leap"}


def test_familiar_units_convert_to_each_other_where_the_registry_says_so() -> None:
    from espo_luigi import fields
    from espo_luigi.errors import DataError
    from espo_luigi.science.units import threshold_in

    def registry_converts(one: str, other: str) -> bool:
        try:
            threshold_in(f"1 {one}", other)
        except DataError:
            return False
        return True

    pairs = [(one, other) for one in fields.FAMILIAR_UNITS for other in fields.FAMILIAR_UNITS]
    assert len(pairs) > 400
    for one, other in pairs:
        assert fields.converts(one, other) == registry_converts(one, other), (one, other)


@pytest.mark.parametrize(
    "setting",
    [
        "distributed: {worker: {preload: [/tmp/evil.py]}}",
        "distributed.worker.preload: /tmp/evil.py",
        "distributed.worker: {preload_argv: [--x]}",
        "distributed: {nanny.preload: [evil], scheduler.preload: [evil]}",
        "distributed.nanny.environ: {LD_PRELOAD: /tmp/evil.so}",
        "distributed.nanny.pre_spawn_environ.LD_PRELOAD: /tmp/evil.so",
        "distributed.scheduler.http.routes: [evil]",
        "distributed.worker: [evil]",
        "distributed.scheduler.active-memory-manager.policies: [{class: evil.Policy}]",
        "distributed.comm.require-encryption: false",
        "distributed.client.security-loader: evil.load",
        "default_scheme: tcp",
        "jobqueue.slurm.job_script_prologue: [evil]",
        "logging: {version: 1, handlers: {x: {(): os.system, command: evil}}}",
        "distributed.nanny.environ: {MALLOC_TRIM_THRESHOLD_: '1 2'}",
        *("distributed.logging-file-config: evil.ini", "logging_file_config: evil.ini", "preload: [evil]"),
        *("pdb-on-err: true", "multiprocessing-method: fork", "multiprocessing.initializer: evil"),
    ],
)
def test_a_setting_of_dask_that_runs_code_or_opens_a_session_is_refused(load_with: Any, setting: str) -> None:
    with pytest.raises(ConfigurationError, match=r"`dask\.\S+`: expected a setting that runs no code"):
        load_with(f"dask: {{{setting}}}")


def test_settings_that_tune_dask_pass(load_with: Any) -> None:
    settings = {
        "distributed.scheduler.worker_saturation": 6.0,
        "distributed.comm.timeouts.connect": "60s",
        "distributed.worker.memory.target": False,
        "logging.distributed": "info",
        "array.chunk-size": "64MiB",
        "temporary_directory": "/tmp/x",
        "optimization.fuse.active": True,
        "distributed.nanny.environ.MALLOC_TRIM_THRESHOLD_": 65536,
        "distributed.nanny.pre_spawn_environ.MALLOC_TRIM_THRESHOLD_": "0",
    }
    assert load_with(f"dask: {json.dumps(settings)}").dask_settings == settings
