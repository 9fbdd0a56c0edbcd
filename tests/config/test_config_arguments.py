"""The mappings of arguments: each wrong key or value is named at the start; what the libraries accept is accepted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from dumped import given

from espo_luigi.config import health_checks, load
from espo_luigi.config.searching import RegridderKwargs
from espo_luigi.errors import ConfigurationError
from espo_luigi.fields import Section
from espo_luigi.methods import xsdba as xsdba_arguments

TRAINING = "biasadjust.variables.tasmax.training_args"
ADJUSTING = "biasadjust.variables.tasmax.adjusting_args.xclim_adjust_args"
REGRIDDER = "regrid.regrid_dataset.regridder_kwargs"
SEARCH = "extraction.simulation.search_data_catalogs"


def nested(path: str, value: str) -> str:
    """Return the YAML text of one value at a path of keys."""
    keys = path.split(".")
    return "{" + ": {".join(keys) + f": {value}" + "}" * len(keys)


def message(load_with: Any, path: str, value: str) -> str:
    """Return what loading the small configuration with one changed value complains about."""
    with pytest.raises(ConfigurationError) as caught:
        load_with(nested(path, value))
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (f"{TRAINING}.method", "DetrendedQuantileMappin", "got 'DetrendedQuantileMappin' (text), expected 'DetrendedQuantileMapping', 'EmpiricalQuantileMapping', 'QuantileDeltaMapping' or 'Scaling'; did you mean DetrendedQuantileMapping? It is the class of xsdba"),  # noqa: E501
        (f"{TRAINING}.group", "time.dayofyer", "got 'time.dayofyer' (text), expected 'time.dayofyear', 'time.month', 'time.season' or 'time'; did you mean time.dayofyear?"),  # noqa: E501
        (f"{TRAINING}.group.window", "0", "got 0 (a whole number): expected greater than or equal to 1."),
        (f"{TRAINING}.xclim_train_args.nquantile", "50", "unknown key; did you mean nquantiles?"),
        (f"{TRAINING}.xclim_train_args.nquantiles", "fifty", "got 'fifty' (text): expected a whole number above 0, or a list of quantiles between 0 and 1. It is how many quantiles, or which."),  # noqa: E501
        (f"{TRAINING}.xclim_train_args.nquantiles", "[0.1, 2]", "got [0.1, 2] (a list): expected a whole number"),
        (f"{TRAINING}.xclim_train_args.nquantiles", "0", "got 0 (a whole number): expected a whole number above 0"),
        (f"{TRAINING}.xclim_train_args.nquantiles", "true", "got True (true or false): expected a whole number"),
        (f"{TRAINING}.xclim_train_args.kind", "x", "got 'x' (text), expected '+' or '*'."),
        (f"{TRAINING}.xclim_train_args.adapt_freq_thresh", "1 mmm", "'mmm' is not a unit; expected CF units such as K or mm d-1; did you mean mm?"),  # noqa: E501
        (f"{TRAINING}.jitter_under", "5", "got 5 (a whole number), expected a mapping"),
        (f"{TRAINING}.jitter_under.thresh", "1 mmm d-1", "got '1 mmm d-1' (text): 'mmm d-1' is not a unit; expected CF units such as K or mm d-1; did you mean mm d-1?"),  # noqa: E501
        (f"{TRAINING}.jitter_under.thresh", "5", "got 5 (a whole number): expected a number, a space and a unit"),
        (f"{TRAINING}.adapt_freq.thresh", "1mm", "got '1mm' (text): expected a number, a space and a unit"),
        (f"{TRAINING}.jitter_under.thresh", "nan K", "got 'nan K' (text): expected a number, a space and a unit"),
        (f"{TRAINING}.jitter_under.thresh", "1e999 K", "got '1e999 K' (text): expected a finite number"),
        (f"{TRAINING}.jitter_under.thresh", "-1 K", "got '-1 K' (text): expected a number above 0, a space and a unit"),
        (f"{TRAINING}.adapt_freq.thresh", "0 K", "got '0 K' (text): expected a number above 0, a space and a unit"),
        (f"{TRAINING}.xclim_train_args.jitter_under_thresh_value", "-1 K", "expected a number above 0"),
        (f"{TRAINING}.xclim_train_args.max_tail_factor", ".nan", "got nan (a number): expected a finite number."),
        (f"{TRAINING}.xclim_train_args.nquantiles", "[0.9, 0.5, 0.1]", "got [0.9, 0.5, 0.1] (a list): expected quantiles that increase, each given once."),  # noqa: E501
        (f"{TRAINING}.xclim_train_args.nquantiles", "[0.5, 0.5]", "expected quantiles that increase, each given once"),
        (f"{TRAINING}.xclim_train_args.nquantiles", "[.nan]", "got [nan] (a list): expected a whole number above 0"),
        (f"{TRAINING}.group.window", "true", "got True (true or false): expected a number."),
        (f"{SEARCH}.periods", "[[1950, 2000], [1990, 2100]]", "expected periods in order of time and without overlap, and 1990-2100 follows 1950-2000"),  # noqa: E501
        ("health_checks.start_date", "soon", "got 'soon' (text): expected a date, such as 1950-01-01."),
        ("health_checks.end_date", "2100-02-31", "got '2100-02-31' (text): expected a date"),
        ("health_checks.calendar", "julian", "got 'julian' (text), expected '360_day'"),
        (f"{ADJUSTING}.extrapolation", "constnt", "expected 'constant' or 'nan'; did you mean constant?"),
        (f"{ADJUSTING}.interp", "neares", "'nearest_quantile' or 'linear'; did you mean nearest?"),
        (f"{ADJUSTING}.detrend.LoesDetrend", "{f: 0.2}", "unknown key; did you mean LoessDetrend?"),
        (f"{ADJUSTING}.detrend.LoessDetrend.f", "2", "got 2 (a whole number): expected less than or equal to 1."),
        (f"{TRAINING}.method", "LOCI", "espo_luigi no longer has LOCI: take DetrendedQuantileMapping or Quantile"),
        (f"{ADJUSTING}.interp", "cubic", "espo_luigi no longer has cubic: take nearest_quantile, nearest or linear"),
        (f"{ADJUSTING}.detrend", "{MeanDetrend: }", "espo_luigi no longer has MeanDetrend: take LoessDetrend"),
        (f"{ADJUSTING}.detrend", "1", "got 1 (a whole number), expected a mapping (`key: value`). It is {LoessDetrend"),
        (f"{ADJUSTING}.detrend", "{LoessDetrend: , NoDetrend: }", "expected one way of detrending"),
        (f"{REGRIDDER}.methd", "bilinear", "unknown key; did you mean method?"),
        (f"{REGRIDDER}.method", "conservative", "got 'conservative' (text), expected 'bilinear'."),
        (f"{REGRIDDER}.reuse_weights", "true", "got True (true or false), expected False."),
        (f"{SEARCH}.restrict_members.ordered", "0", "expected greater than or equal to 1."),
        (f"{SEARCH}.variables_and_freqs.pr", "Day", "got 'Day' (text): expected a frequency as pandas writes it, such as D, 6h, MS or YS-JAN; did you mean D?"),  # noqa: E501
        ("health_checks.variables_and_units.pr", "kgm-2s-1", "'kgm-2s-1' is not a unit; expected CF units such as K or mm d-1; did you mean kg m-2 s-1?"),  # noqa: E501
        ("health_checks.flags.tasmax.temperature_extremly_high", "", "unknown key; did you mean temperature_extremely_high?"),  # noqa: E501
        ("health_checks.flags.tasmax.temperature_extremely_high.thresh", "60 degX", "did you mean degC?"),
        ("health_checks.final.flags.tasmax.tasmax_below_tasmi", "", "unknown key; did you mean tasmax_below_tasmin?"),
        ("health_checks.cfchecks.pr.cfcheck_from_nam", "", "unknown key; did you mean cfcheck_from_name?"),
        ("health_checks.missing", "anny", "there is no method 'anny'; expected any, some_but_not_all,"),
        ("health_checks.missing", "{pctt: {tolerance: 0.1}}", "did you mean pct?"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_named_with_its_path_place_and_what_is_allowed(
    load_with: Any, tmp_path: Path, path: str, value: str, expected: str
) -> None:
    line = next(one for one in message(load_with, path, value).splitlines() if one.startswith(f"- `{path}`"))
    assert f"`{path}` ({tmp_path / 'change0.yml'}, line 1): " in line
    assert expected in line


def test_an_argument_of_a_cascades_stage_is_named_with_its_grid(load_with: Any) -> None:
    grid = "{lon0_b: 1, lon1_b: 2, d_lon: 1, lat0_b: 0, lat1_b: 9, d_lat: 1}"
    text = message(
        load_with,
        "regrid.regrid_dataset.intermediate_grids.reg1",
        f"{{cf_grid_2d: {grid}, regridder_kwargs: {{methd: 1}}}}",
    )
    assert "`regrid.regrid_dataset.intermediate_grids.reg1.regridder_kwargs.methd` (" in text
    assert "did you mean method?" in text


def test_an_argument_below_an_old_name_is_named_as_it_was_written(write: Any, small: str) -> None:
    old = small.replace("xclim_train_args", "xsdba_train_args").replace("nquantiles: 50", "nquantile: 50")
    with pytest.raises(
        ConfigurationError, match=rf"`{TRAINING}.xsdba_train_args.nquantile` .*did you mean nquantiles\?"
    ):
        load([write(old)])


def test_a_threshold_that_is_missing_is_named(load_with: Any) -> None:
    assert f"`{TRAINING}.adapt_freq.thresh` (" in message(load_with, f"{TRAINING}.adapt_freq", "{group: time}")


def test_a_window_around_the_whole_series_is_an_error(load_with: Any) -> None:
    text = message(load_with, f"{TRAINING}.group", "{group: time, window: 31}")
    assert "the group time is the whole series, and cannot have a window of 31" in text


@pytest.mark.parametrize(
    ("method", "path", "argument"),
    [
        ("DetrendedQuantileMapping", ADJUSTING, "rank_window: true"),
        ("EmpiricalQuantileMapping", ADJUSTING, "detrend: {NoDetrend: }"),
        ("QuantileDeltaMapping", ADJUSTING, "detrend: {NoDetrend: }"),
        ("Scaling", ADJUSTING, "extrapolation: constant"),
    ],
)
def test_an_argument_of_another_method_is_refused(load_with: Any, method: str, path: str, argument: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_with(nested(f"{TRAINING}.method", method), nested(path, f"{{{argument}}}"))
    assert f"`{path}.{argument.partition(':')[0]}` (" in str(caught.value)
    assert f"the method {method} does not take it; it takes " in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("group", "time.month", "time.month"),
        ("group", "{group: time.season, window: 1}", {"group": "time.season", "window": 1}),
        ("adapt_freq", "{thresh: 1 K, group: time.month}", {"thresh": "1 K", "group": "time.month"}),
        ("jitter_under", "{thresh: 0.1 millikelvin}", {"thresh": "0.1 millikelvin"}),
        ("jitter_under", "{}", {}),
        ("xclim_train_args", "{nquantiles: [0.1, 1]}", {"kind": "+", "nquantiles": [0.1, 1.0]}),
        ("xclim_train_args", "{max_tail_factor: 2}", {"kind": "+", "nquantiles": 50, "max_tail_factor": 2.0}),
        ("xclim_train_args", "{nquantiles: null}", {"kind": "+"}),
        (
            "xclim_train_args",
            "{jitter_over_thresh_value: 1.1574e-05 K m^2 m^-2}",
            {"kind": "+", "nquantiles": 50, "jitter_over_thresh_value": "1.1574e-05 K m^2 m^-2"},
        ),
    ],
)
def test_arguments_that_xsdba_accepts_are_handed_on_without_those_that_were_not_given(
    load_with: Any, path: str, value: str, expected: Any
) -> None:
    old = "{group: null, window: null}" if value == "{group: time.season, window: 1}" else None
    changes = [nested(f"{TRAINING}.group", old)] if old else []
    variable = load_with(*changes, nested(f"{TRAINING}.{path}", value)).biasadjust.variables["tasmax"]
    assert given(variable.training_args)[path] == expected


@pytest.mark.parametrize("detrend", ["{LoessDetrend: }", "{LoessDetrend: {d: 1, f: 0.4}}", "{NoDetrend: }"])
def test_every_way_of_detrending_is_built_by_xsdba(load_with: Any, detrend: str) -> None:
    import xsdba

    variable = load_with(nested(f"{ADJUSTING}.detrend", detrend)).biasadjust.variables["tasmax"]
    ((name, values),) = given(variable.adjusting_args)["xclim_adjust_args"]["detrend"].items()
    made = getattr(xsdba.detrending, name)(**values)
    assert {argument: made[argument] for argument in values} == values


def test_the_methods_of_missing_values_are_those_of_the_checks() -> None:
    from xclim.core import missing

    from espo_luigi.config.health_checks import MissingMethod
    from espo_luigi.science.diagnose.flags import method_of, some_but_not_all

    known = {missing.missing_any, missing.at_least_n_valid, missing.missing_pct, missing.missing_wmo, some_but_not_all}
    assert {method_of(name) for name in get_args(MissingMethod)} == known


def test_loading_imports_neither_xarray_nor_xclim(write: Any, small: str) -> None:
    path = write(small.replace("xclim_train_args: {", "jitter_under: {thresh: 0.01 K}\n        xclim_train_args: {"))
    code = (
        "import sys; from espo_luigi.config import load; load([sys.argv[1]]);"
        "print({'xarray', 'xclim', 'xsdba', 'cf_xarray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_known_sections_have_a_description_for_every_key() -> None:
    sections: list[type[Section]] = [
        RegridderKwargs,
        xsdba_arguments.TrainArguments,
        xsdba_arguments.AdjustArguments,
        health_checks.Flags,
    ]
    assert all(field.description for section in sections for field in section.model_fields.values())
