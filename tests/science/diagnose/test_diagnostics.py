"""Properties and measures against xsdba called directly and against numpy; improvement and heatmap by hand."""

from __future__ import annotations

import warnings
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr
import xsdba.measures
import xsdba.properties
import yaml

from espo_luigi.errors import DataError
from espo_luigi.science.diagnose.definitions import judged
from espo_luigi.science.diagnose.diagnosis import heatmap, improvement, measures
from espo_luigi.science.diagnose.properties import properties

DATA = Path(__file__).parents[2] / "data" / "CanESM2_1950-2100.nc"
SECONDS = 86400
CONFIG = Path(__file__).parents[3] / "config"


def define(base: str, inputs: dict[str, str], prefix: str = "xclim.sdba", **parameters: object) -> dict:
    return {
        "base": f"{prefix}.properties.{base}",
        "input": inputs,
        "parameters": parameters,
        "cf_attrs": {"long_name": base},
    }


# As they are shipped.
DEFINITIONS = yaml.safe_load((CONFIG / "espo-g6" / "off-properties_ESPO-G.yml").read_text())
FEW = {**DEFINITIONS, "indicators": {n: DEFINITIONS["indicators"][n] for n in ("mean_tasmax", "aca_pr", "wet_wet")}}
RANGES_ONLY = {**DEFINITIONS, "indicators": {n: DEFINITIONS["indicators"][n] for n in ("mean_dtr", "q99_dtr")}}
PERIOD = ("2001", "2003")


def make_series(calendar: str = "noleap") -> xr.Dataset:
    """Six cells on (lat, lon) over four years, one cell without data, pr as a flux."""
    rng = np.random.default_rng(1)
    time = xr.date_range("2000-01-01", "2004-01-01", calendar=calendar, use_cftime=True, inclusive="left")
    doy = np.asarray(time.dayofyear)[:, None, None]
    shape = (len(time), 2, 3)
    tasmax = 285 - 12 * np.cos(doy / 365 * 2 * np.pi) + rng.normal(0, 3, shape)
    data = {
        "tasmax": (tasmax, "K", "air_temperature"),
        "tasmin": (tasmax - rng.gamma(4, 2, shape), "K", "air_temperature"),
        "pr": (rng.gamma(0.4, 5, shape) / SECONDS, "kg m-2 s-1", "precipitation_flux"),
    }
    coords = {"time": time, "lat": [45.0, 46.0], "lon": [-72.0, -71.0, -70.0]}
    ds = xr.Dataset(
        {
            name: (("time", "lat", "lon"), values.astype("float32"), {"units": units, "standard_name": standard})
            for name, (values, units, standard) in data.items()
        },
        coords,
        {
            **{"cat:variable": "tasmax", "cat:id": "sim", "cat:frequency": "day", "cat:xrfreq": "D"},
            # Of the series: properties have neither their dates nor their frequency.
            **{"cat:date_start": "2000-01-01", "cat:date_end": "2003-12-31", "frequency": "day"},
        },
    )
    return ds.where((ds.lat > 45) | (ds.lon > -72))


@pytest.fixture(scope="module")
def series() -> xr.Dataset:
    return make_series()


@pytest.fixture(scope="module")
def found(series) -> xr.Dataset:
    return properties(series, definitions=DEFINITIONS, period=PERIOD, to_level="diag-sim-prop")


def test_all_properties_come_out_by_name_in_the_order_of_the_file(found):
    assert list(found.data_vars) == list(DEFINITIONS["indicators"]) and len(found.data_vars) == 21
    assert all(da.dims == ("lat", "lon") for da in found.data_vars.values())


def test_statistics_are_those_that_numpy_gives(found, series):
    during = series.sel(time=slice("2001", "2003")).isel(lat=1, lon=1)
    pr = during.pr.values.astype("float64") * SECONDS
    dtr = (during.tasmax - during.tasmin).values
    here = found.isel(lat=1, lon=1)
    wet = pr >= 1
    expected = {
        "mean_tasmax": during.tasmax.values.mean(dtype="float64"),
        "mean_dtr": dtr.mean(dtype="float64"),
        "q99_dtr": np.quantile(dtr, 0.99),
        "q01_tasmin": np.quantile(during.tasmin.values, 0.01),
        "q95_pr": np.quantile(pr, 0.95) / SECONDS,
        "dry_spell_freq": 1 - wet.mean(),
        "wet_wet": (wet[:-1] & wet[1:]).mean(),
        "dry_wet": (~wet[:-1] & wet[1:]).mean(),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(here[name], value, rtol=2e-6, err_msg=name)


def longest_run(flags: np.ndarray) -> int:
    return max(len(run) for run in "".join("01"[int(flag)] for flag in flags).split("0"))


def test_spells_are_the_longest_of_any_year_cut_at_new_year(found, series):
    during = series.sel(time=slice("2001", "2003")).isel(lat=1, lon=2)
    dry = during.pr.values * SECONDS < 1
    warm = during.tasmax.values >= np.quantile(during.tasmax.values, 0.9)
    assert found.max_dry_spell[1, 2] == max(longest_run(dry[i * 365 : (i + 1) * 365]) for i in range(3))
    assert found.max_warm_spell[1, 2] == max(longest_run(warm[i * 365 : (i + 1) * 365]) for i in range(3))


def test_the_annual_cycle_is_the_range_of_the_circular_31_day_mean_of_the_climatology(found, series):
    for name, expected in (("tasmax", lambda cycle: np.ptp(cycle)), ("pr", lambda c: 100 * np.ptp(c) / c.mean())):
        daily = series[name].sel(time=slice("2001", "2003")).isel(lat=0, lon=1).values.astype("float64")
        climatology = daily.reshape(3, 365).mean(axis=0)
        cycle = np.convolve(np.pad(climatology, 15, mode="wrap"), np.ones(31) / 31, mode="valid")
        np.testing.assert_allclose(found[f"aca_{name}"][0, 1], expected(cycle), rtol=1e-4)


def test_correlations_are_spearmans(found, series):
    during = series.sel(time=slice("2001", "2003")).isel(lat=1, lon=0)
    ranks = [np.argsort(np.argsort(during[name].values)) for name in ("tasmax", "pr")]
    np.testing.assert_allclose(found.corr_tasmax_pr[1, 0], np.corrcoef(*ranks)[0, 1], atol=1e-4)


def test_a_cell_without_data_has_no_property_and_the_others_have_all(found):
    for name, da in found.data_vars.items():
        assert int(da.isnull().sum()) == 1 and bool(da[0, 0].isnull()), name


def test_units_period_measure_and_global_attributes_are_those_of_the_reference_workflow(found):
    assert found.aca_pr.attrs["units"] == "%" and found.mean_pr.attrs["units"] == "kg m-2 s-1"
    assert {da.attrs["period"] for da in found.data_vars.values()} == {"2001-2003"}
    assert [n for n, da in found.data_vars.items() if da.attrs["measure"].endswith("RATIO")] == ["aca_pr"]
    assert found.attrs == {
        "cat:id": "sim",
        "cat:frequency": "fx",
        "cat:xrfreq": "fx",
        "cat:processing_level": "diag-sim-prop",
        "frequency": "fx",
    }


@pytest.mark.parametrize("chunks", [{"time": 365, "lat": 1, "lon": 2}, {"time": -1}])
def test_on_dask_properties_are_lazy_and_the_same(series, chunks):
    lazy = properties(series.chunk(chunks), definitions=FEW, period=PERIOD, to_level="x")
    assert all(dask.is_dask_collection(da) for da in lazy.data_vars.values())
    expected = properties(series, definitions=FEW, period=PERIOD, to_level="x")
    computed = lazy.compute(scheduler="threads", num_workers=2)
    # sums in float32 depend on the order in memory
    xr.testing.assert_allclose(computed, expected, rtol=1e-6)
    for name, da in expected.data_vars.items():
        assert computed[name].dtype == da.dtype and computed[name].attrs["units"] == da.attrs["units"]


def test_a_variable_that_xclim_has_never_heard_of_has_properties(series):
    ozone = series[["pr"]].rename(pr="ozone").assign(ozone=lambda ds: ds["ozone"].assign_attrs(units="ug m-3"))
    of = {
        f"{name}_ozone": {
            "base": f"xsdba.properties.{base}",
            "cf_attrs": {"long_name": f"{name} of ozone"},
            "input": {"da": "ozone"},
            "parameters": parameters,
        }
        for name, base, parameters in (("mean", "mean", {}), ("q99", "quantile", {"q": 0.99}))
    }
    made = properties(ozone, definitions={"indicators": of}, period=PERIOD, to_level="diag")
    during = ozone["ozone"].sel(time=slice("2001", "2003"))
    np.testing.assert_allclose(made["mean_ozone"], during.mean("time"), rtol=1e-6)
    np.testing.assert_allclose(made["q99_ozone"], during.quantile(0.99, "time"), rtol=1e-6)
    assert made["mean_ozone"].attrs["units"] == "ug m-3"
    unknown = ozone.assign(ozone=ozone["ozone"].assign_attrs(units="DU"))
    with pytest.raises(DataError, match="units 'DU' of variable 'ozone' are unknown"):
        properties(unknown, definitions={"indicators": of}, period=PERIOD, to_level="diag")


def test_stacked_cells_work_like_a_grid(series):
    stacked = series.stack(loc=("lat", "lon"), create_index=False).chunk(loc=2)
    found = properties(stacked, definitions=FEW, period=PERIOD, to_level="x")
    gridded = properties(series, definitions=FEW, period=PERIOD, to_level="x")
    assert found.wet_wet.dims == ("loc",) and set(found.coords) == {"lat", "lon"}
    np.testing.assert_array_equal(found.wet_wet, gridded.wet_wet.values.ravel())


@pytest.mark.parametrize("calendar", ["standard", "360_day"])
def test_native_calendars_work(calendar):
    found = properties(make_series(calendar), definitions=FEW, period=PERIOD, to_level="x")
    assert bool((found.aca_pr.isel(lat=1) > 0).all())


def test_a_property_of_each_day_of_year_knows_of_leap_days_that_come_late():
    ds = make_series("standard")
    late = ds.assign_coords(time=xr.date_range("2001-01-01", "2005-01-01", use_cftime=True, inclusive="left"))
    of_days = {**FEW, "indicators": {"daily": define("mean", {"da": "tasmax"}, group="time.dayofyear")}}
    lazy = properties(late.chunk(lat=1), definitions=of_days, period=("2001", "2004"), to_level="x")
    assert lazy.daily.sizes["dayofyear"] == lazy.compute().daily.sizes["dayofyear"] == 366


def test_precipitation_in_millimetres_a_day_gives_the_same_probabilities(series):
    depth = series.assign(pr=(series.pr * SECONDS).assign_attrs({**series.pr.attrs, "units": "mm d-1"}))
    found = properties(depth, definitions=FEW, period=PERIOD, to_level="x")
    expected = properties(series, definitions=FEW, period=PERIOD, to_level="x")
    np.testing.assert_allclose(found.wet_wet, expected.wet_wet, atol=1e-9)


def test_bases_of_old_files_are_those_of_today():
    new, old = ({"indicators": {"a": define("mean", {"da": "pr"}, prefix=of)}} for of in ("xsdba", "xclim.sdba"))
    assert judged(old) == judged(new) == new


def test_neither_data_nor_definitions_are_changed(series):
    before, text = series.copy(deep=True), str(DEFINITIONS)
    properties(series, definitions=FEW, period=PERIOD, to_level="x")
    xr.testing.assert_identical(series, before)
    assert str(DEFINITIONS) == text


def test_a_missing_variable_or_period_is_an_error_that_says_what_there_is(series):
    with pytest.raises(DataError, match=r"need \['pr'\]: the data have \['tasmax', 'tasmin'\]"):
        properties(series.drop_vars("pr"), definitions=FEW, period=PERIOD, to_level="x")
    with pytest.raises(DataError, match=r"No day in 1991-1995: the data span 2000-01-01"):
        properties(series, definitions=FEW, period=(1991, 1995), to_level="x")


def test_a_threshold_that_cannot_be_compared_is_an_error(series):
    wrong = {"indicators": {"dry": define("relative_frequency", {"da": "pr"}, op="<", thresh="1 K")}}
    with pytest.raises(DataError, match=r"threshold '1 K' cannot be compared with 'pr' in 'kg m-2 s-1'"):
        properties(series, definitions=wrong, period=PERIOD, to_level="x")


def test_real_stations_have_the_properties_that_xsdba_gives():
    with xr.open_dataset(DATA) as stations:
        ds = stations.sel(time=slice("1991", "2020")).drop_vars("location").load()
    names = ("mean_pr", "q95_pr", "aca_tasmax", "aca_pr", "corr_tasmax_pr", "max_warm_spell", "dry_spell_freq")
    chosen = {"indicators": {name: DEFINITIONS["indicators"][name] for name in names}}
    found = properties(ds, definitions=chosen, period=("1991", "2020"), to_level="x")
    theirs = xsdba.properties
    flux = f"{1 / SECONDS!r} kg m-2 s-1"
    expected = {
        "mean_pr": theirs.mean(ds.pr),
        "q95_pr": theirs.quantile(ds.pr, q=0.95),
        "aca_tasmax": theirs.annual_cycle_amplitude(ds.tasmax),
        "aca_pr": theirs.relative_annual_cycle_amplitude(ds.pr),
        "corr_tasmax_pr": theirs.corr_btw_var(ds.tasmax, ds.pr),
        "max_warm_spell": theirs.spell_length_distribution(
            ds.tasmax, method="quantile", op=">=", thresh=0.9, stat="max"
        ),
        "dry_spell_freq": theirs.relative_frequency(ds.pr, op="<", thresh=flux),
    }
    for name, da in expected.items():
        xr.testing.assert_equal(found[name].drop_vars(found[name].coords), da.drop_vars(da.coords).rename(name))


@pytest.fixture(scope="module")
def reference(found) -> xr.Dataset:
    return found.map(lambda da: (da * 0.8 + 0.1).assign_attrs(da.attrs), keep_attrs=True)


def test_measures_are_xsdbas_bias_except_the_ratio_for_the_annual_cycle_of_precipitation(found, reference):
    measured = measures(found, reference, to_level="diag-sim-meas")
    for name in found.data_vars:
        theirs = xsdba.measures.ratio if name == "aca_pr" else xsdba.measures.bias
        expected = theirs(sim=found[name], ref=reference[name])
        xr.testing.assert_equal(measured[name], expected.rename(name))
        assert measured[name].attrs["units"] == expected.attrs["units"]
    assert "xsdba.measures.RATIO" in measured.aca_pr.attrs["history"]
    assert "xsdba.measures.BIAS" in measured.mean_pr.attrs["history"]
    assert measured.attrs["cat:processing_level"] == "diag-sim-meas" and measured.attrs["cat:frequency"] == "fx"
    assert measured.mean_pr.attrs["long_name"].startswith(found.mean_pr.attrs["long_name"])


DIFFERENCE = "temperature: difference"
TEMPERATURES = [f"{kind}_{name}" for name in ("tasmax", "tasmin") for kind in ("mean", "q01", "q99", "aca")]
RANGES = ["mean_dtr", "q99_dtr"]


def test_differences_of_temperature_say_so(found, reference):
    said = {name: da.attrs.get("units_metadata") for name, da in found.data_vars.items()}
    assert {name for name, what in said.items() if what == DIFFERENCE} == {"aca_tasmax", "aca_tasmin", *RANGES}
    assert {name for name, what in said.items() if what is None} == set(found) - {*TEMPERATURES, *RANGES}
    measured = measures(found, reference, to_level="x")
    said = {name: da.attrs.get("units_metadata") for name, da in measured.data_vars.items()}
    assert said == {name: DIFFERENCE if name in (*TEMPERATURES, *RANGES) else None for name in found.data_vars}


def test_the_properties_of_a_stored_range_say_that_they_are_differences(series):
    stored = series.assign(dtr=series.tasmax - series.tasmin)
    for attrs in ({"units": "K"}, {"units": "K", "units_metadata": "temperature: unknown"}):
        stored.dtr.attrs = attrs
        found = properties(stored, definitions=RANGES_ONLY, period=PERIOD, to_level="x")
        assert {da.attrs["units_metadata"] for da in found.data_vars.values()} == {DIFFERENCE}
        assert stored.dtr.attrs == attrs, "the input is not changed"


def test_what_has_no_dimension_of_temperature_is_no_difference_of_it(found, reference):
    by_ratio = found.mean_dtr.assign_attrs(measure="xsdba.measures.RATIO").to_dataset()
    measured = measures(by_ratio, reference, to_level="x")
    assert measured.mean_dtr.attrs["units"] == ""
    assert "units_metadata" not in measured.mean_dtr.attrs


def test_measures_are_in_the_units_of_the_reference(found, reference):
    celsius = (reference.mean_tasmax - 273.15).assign_attrs({**reference.mean_tasmax.attrs, "units": "degC"})
    measured = measures(found, reference.assign(mean_tasmax=celsius), to_level="x")
    expected = measures(found, reference, to_level="x")
    np.testing.assert_allclose(measured.mean_tasmax, expected.mean_tasmax, atol=1e-4)


def test_measures_of_dask_properties_are_lazy(found, reference):
    assert dask.is_dask_collection(measures(found.chunk(lat=1), reference, to_level="x").mean_pr)


def test_measures_on_another_grid_are_an_error(found, reference):
    with pytest.raises(
        DataError, match=r"The grids differ in lat: 2 values from 45\.0 to 46\.0 against 2 from 45\.001"
    ):
        measures(found, reference.assign_coords(lat=reference.lat + 0.001), to_level="x")


def test_properties_without_a_measure_are_an_error(found, reference):
    bare = found[["mean_pr"]].map(lambda da: da.assign_attrs(), keep_attrs=False)
    with pytest.raises(DataError, match="'mean_pr' has no attribute 'measure'"):
        measures(bare, reference, to_level="x")


def make_measures(bias: list[float], ratio: list[float], level: str = "meas") -> xr.Dataset:
    histories = {"mean_pr": "mean_pr: xsdba.measures.BIAS(sim=…)", "aca_pr": "aca_pr: xclim.sdba.measures.RATIO(sim=…)"}
    data = {
        name: ("loc", np.array(values), {"history": histories[name]})
        for name, values in (("mean_pr", bias), ("aca_pr", ratio))
    }
    coords = {"lat": ("loc", [45.0, 46, 47, 48]), "lon": ("loc", [1.0, 2, 3, 4])}
    return xr.Dataset(data, coords, {"cat:id": "x", "cat:processing_level": level, "cat:variable": "pr"})


SIM = make_measures([-2, 1, 3, np.nan], [0.5, 1.2, 1.0, 1.6], "sim-meas")
SCEN = make_measures([1, -1, -4, 0.1], [1.4, 0.7, 1.0, np.nan], "scen-meas")


def test_ties_count_as_improved_and_cells_without_both_measures_do_not_count():
    out = improvement(SIM, SCEN)
    assert list(out.data_vars) == ["improved_grid_points"] and out.improved_grid_points.dims == ("properties",)
    assert out.properties.values.tolist() == ["mean_pr", "aca_pr"]
    np.testing.assert_allclose(out.improved_grid_points, [2 / 3, 2 / 3])
    assert out.attrs == {"cat:id": "x", "cat:processing_level": "diag-improved"}


def test_improvement_and_heatmap_carry_no_attribute_of_a_property(found, reference):
    measured = measures(found, reference, to_level="x")
    improved, ranked = improvement(measured, measured), heatmap({"sim": measured, "scen": measured})
    assert improved.improved_grid_points.attrs == {"long_name": "Fraction of improved grid cells", "units": ""}
    assert ranked.heatmap.attrs == {"long_name": "Ranking of measure performance", "units": ""}
    assert measured.mean_tasmax.attrs["measure"] == "xsdba.measures.BIAS", "the input is not changed"


def test_improvement_is_lazy_and_the_same_on_dask():
    lazy = improvement(SIM.chunk(loc=2), SCEN.chunk(loc=2))
    assert dask.is_dask_collection(lazy.improved_grid_points)
    xr.testing.assert_identical(lazy.compute(), improvement(SIM, SCEN))


def test_improvement_and_heatmap_can_be_written_as_zarr_3_without_a_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, ds in (("i", improvement(SIM, SCEN)), ("h", heatmap({"sim": SIM, "scen": SCEN}))):
            ds.to_zarr(tmp_path / name, zarr_format=3, consolidated=False)
            xr.testing.assert_equal(xr.open_zarr(tmp_path / name, consolidated=False).compute(), ds)


def test_measures_whose_history_is_lost_cannot_be_compared():
    with pytest.raises(DataError, match="'mean_pr' has no history"):
        improvement(SIM.map(lambda da: da.assign_attrs(), keep_attrs=False), SCEN)


def test_a_property_that_only_the_scenario_has_is_an_error():
    with pytest.raises(DataError, match=r"\['aca_pr'\] are missing"):
        improvement(SIM[["mean_pr"]], SCEN)


def test_the_heatmap_ranks_two_datasets_by_zero_and_one_per_property():
    out = heatmap({"sim": SIM, "scen": SCEN})
    assert out.heatmap.dims == ("realization", "properties") and out.realization.values.tolist() == ["sim", "scen"]
    # |bias|: sim (2 + 1 + 3) / 3 = 2, scen 6.1 / 4 = 1.525; |ratio - 1|: sim 1.3 / 4 = 0.325, scen 0.7 / 3 = 0.233
    np.testing.assert_array_equal(out.heatmap, [[1, 1], [0, 0]])
    assert out.attrs == {"cat:id": "x", "cat:processing_level": "diag-heatmap"}


def test_the_heatmap_is_rescaled_between_the_best_and_the_worst_and_half_where_all_are_equal():
    middle = SIM.assign(mean_pr=SIM.mean_pr.copy(data=[1.8, 1.8, 1.8, 1.8]))
    same = SIM.aca_pr
    out = heatmap({"sim": SIM, "middle": middle, "scen": SCEN.assign(aca_pr=same)})
    np.testing.assert_allclose(out.heatmap[:, 0], [1, (1.8 - 1.525) / (2 - 1.525), 0])
    np.testing.assert_array_equal(out.heatmap[:, 1], [0.5, 0.5, 0.5])


def test_properties_whose_text_would_run_code_are_not_computed() -> None:
    given = {"indicators": {"a": {"base": "xsdba.properties.mean", "cf_attrs": {"long_name": "{ds.__init__}"}}}}
    with pytest.raises(DataError, match=r"indicators.a.cf_attrs.long_name` is '{ds.__init__}'; expected plain names"):
        properties(xr.Dataset(), definitions=given, period=("2000", "2001"), to_level="none")
