"""Indicators, compared with those of xscen and xclim."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import yaml
from dask._task_spec import convert_legacy_graph
from outcomes import CALENDARS, DATA, FREQUENCIES, MODULE, daily

from espo_luigi.errors import ConfigurationError
from espo_luigi.science.definitions import fault_in
from espo_luigi.science.outcomes.indicators import (
    MODULES,
    _chosen,
    checked,
    compute_indicators,
    load_indicators,
)

SOME = (
    *("tg_mean", "tg_mean_seasonal", "frost_days_of_winter", "growing_season_length", "prcptot_monthly", "rx5day"),
    *("cwd_seasonal", "wetdays_mostly"),
)
VARIABLES = ["tas", "tasmax", "tasmin", "pr"]


def golden(calendar: str, group: str) -> xr.Dataset:
    path = DATA / "golden" / f"outcomes-{calendar}.nc"
    return xr.load_dataset(path, group=group, decode_timedelta=False, engine="h5netcdf")


def lazy(ds: xr.Dataset, days: int = 1460) -> xr.Dataset:
    return ds.chunk({"time": days, "loc": 2})


def written(folder: Path, text: str) -> str:
    path = folder / "own.yml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("calendar", CALENDARS)
def test_values_times_and_attributes_are_those_of_xscen(calendar: str) -> None:
    indicators = load_indicators(str(MODULE))
    # In calendars of cftime's, xclim takes half a second for each.
    some = indicators if calendar == "standard" else [one for one in indicators if one[0] in SOME]
    made = compute_indicators(lazy(daily(calendar)), some, cells_in_a_block=2)
    assert set(made) == set(FREQUENCIES)
    for freq, ds in made.items():
        theirs = golden(calendar, f"indicators/{freq}")
        assert set(ds) == set(theirs) or len(some) < len(indicators)
        ds = ds.load()
        for name in ds:
            expected = theirs[name]
            own = ds[name].transpose(*expected.dims)
            xr.testing.assert_allclose(own.drop_vars("time"), expected.drop_vars("time"), rtol=1e-5)
            assert [str(day)[:10] for day in own["time"].values] == [str(day)[:10] for day in expected["time"].values]
            assert own["time"].dt.calendar == expected["time"].dt.calendar
            # xscen has other words for operators in the long name, and older xarrays lose attributes of the data.
            for key in ("units", "cell_methods"):
                assert own.attrs.get(key) == expected.attrs.get(key)
            assert "xclim version" in own.attrs["history"]


def test_kernels_are_taken_for_all_but_the_rare_indicators() -> None:
    chosen, _ = _chosen(load_indicators(str(MODULE)), daily("noleap"), None)
    assert {one.name for one in chosen if one.kernel is None} == {
        "freezethaw_mean_length",
        "tx_max_of_july",
        "wetdays_mostly",
    }


def test_pieces_of_any_length_give_the_same_as_numbers_in_memory() -> None:
    indicators = [
        one for one in load_indicators(str(MODULE)) if one[0] in ("rx5day", "cdd", "frost_days", "prcptot_monthly")
    ]
    whole = compute_indicators(daily("standard"), indicators)
    for days in (400, 30000):
        pieces = compute_indicators(lazy(daily("standard"), days), indicators)
        for freq, ds in pieces.items():
            assert whole[freq].chunks == {} and ds.chunks
            xr.testing.assert_allclose(ds.compute(), whole[freq], rtol=1e-6)


def test_no_chunk_stays_in_memory_from_a_piece_to_another() -> None:
    indicators = [one for one in load_indicators(str(MODULE)) if one[0] in ("rx5day", "tg_mean")]
    made = compute_indicators(lazy(daily("standard"), 400), indicators)["YS-JAN"]
    graph = convert_legacy_graph(dict(made.__dask_graph__()))
    pieces = [key for key in graph if str(key[0]).startswith("_call-")]
    assert len(pieces) > 6
    readers: Counter[Any] = Counter()
    for piece in pieces:
        above, found = [piece], set()
        while above:
            found.add(above.pop())
            above = list({key for one in found for key in graph[one].dependencies} - found)
        readers.update(key for key in found if str(key[0]).startswith(("xarray-pr", "xarray-tas")))
    assert readers and set(readers.values()) == {1}


def test_other_frequencies_than_the_own_are_those_of_xclim() -> None:
    ds = daily("360_day").isel(time=slice(1100))
    indicators = [one for one in load_indicators(str(MODULE)) if one[0] in ("tx_max", "growing_season_length")]
    made = compute_indicators(ds, indicators[:1], freqs=["MS", "QS-SEP"])
    for freq, own in made.items():
        expected = indicators[0][1](ds=ds, freq=freq)
        expected = expected[expected["time"].dt.year.values >= 1980]
        xr.testing.assert_allclose(own["tx_max"].drop_attrs(), expected.drop_attrs(), rtol=1e-5)


def test_years_in_a_gap_of_the_days_are_left_out() -> None:
    ds = daily("noleap")[["tasmax"]].isel(time=slice(365 * 8))
    first = int(ds["time"].dt.year[0])
    cut = ds.sel(time=~ds["time"].dt.year.isin([first + 4, first + 5]))
    indicators = [one for one in load_indicators(str(MODULE)) if one[0] == "tx_max"]
    (made,) = compute_indicators(cut, indicators, freqs=["YS"]).values()
    assert made["time"].dt.year.values.tolist() == [first + year for year in (0, 1, 2, 3, 6, 7, 8)]


def test_a_grid_and_other_units_give_the_same() -> None:
    ds = daily("noleap")[["tasmax", "pr"]].isel(time=slice(1000))
    grid = ds.drop_vars(["lat", "lon"]).expand_dims(lat=[45.0, 46.0]).rename(loc="lon").chunk(lat=1, lon=2, time=365)
    grid["tasmax"] = (grid["tasmax"] - 273.15).assign_attrs(ds["tasmax"].attrs | {"units": "degC"})
    grid["pr"] = (grid["pr"] * 86400).assign_attrs(ds["pr"].attrs | {"units": "mm/day"})
    names = {"tx_max": "temperature", "tx_days_above": "count", "prcptot": "amount", "sdii": "ratio", "cdd": "extreme"}
    names |= {"rx1day": "extreme", "rx5day": "extreme"}
    indicators = [one for one in load_indicators(str(MODULE)) if one[0] in names]
    made = compute_indicators(grid, indicators)["YS-JAN"]
    for name, indicator in indicators:
        expected = indicator(ds=grid.compute()).transpose("time", "lat", "lon")
        own = made[expected.name]
        assert own.attrs["nature"] == names[name]
        ours = {key: text for key, text in own.attrs.items() if key not in ("nature", "calendar")}
        assert ours | {"history": ""} == expected.attrs | {"history": ""}
        assert own.dims == ("time", "lat", "lon")
        np.testing.assert_allclose(own.values, expected.values, rtol=1e-5, err_msg=name)


def test_an_indicator_that_needs_the_latitude_gets_it() -> None:
    (found,) = [one for one in load_indicators("atmos") if one[0] == "huglin_index"]
    ds = daily("noleap").isel(time=slice(1200)).swap_dims(loc="lat").drop_vars(["loc", "lon"])
    ds["lat"].attrs = {"standard_name": "latitude", "units": "degrees_north"}
    made = compute_indicators(ds.chunk(time=365, lat=2), [found])["YS-JAN"]
    expected = found[1](ds=ds)
    # xclim leaves out years whose summer is absent, and the Arctic.
    own = made[expected.name].load()
    assert own.sizes == {"time": 5, "lat": 3} and own.notnull().sum() == expected.notnull().sum()
    shared = own.sel(time=expected["time"], lat=expected["lat"]).transpose(*expected.dims)
    np.testing.assert_allclose(shared.values, expected.values, rtol=1e-5)
    cells = compute_indicators(ds.drop_indexes("lat").rename_dims(lat="loc"), [found])["YS-JAN"][expected.name]
    np.testing.assert_array_equal(cells.transpose("time", "loc"), own.transpose("time", "lat"))


def test_a_southern_summer_has_an_index_of_latitudes_too(tmp_path: Path) -> None:
    of_summer = "parameters: {start_date: 10-01, end_date: 04-01, freq: YS-JUL}"
    module = written(tmp_path, f"indicators: {{south: {{base: huglin_index, {of_summer}}}}}")
    ((name, one),) = load_indicators(str(module))
    ds = daily("noleap").isel(time=slice(1200)).swap_dims(loc="lat").drop_vars(["loc", "lon"])
    ds = ds.assign_coords(lat=("lat", [-48.0, -40.0, -36.0, -35.0][: ds.sizes["lat"]], ds["lat"].attrs))
    ds["lat"].attrs = {"standard_name": "latitude", "units": "degrees_north"}
    made, expected = compute_indicators(ds.chunk(time=365), [(name, one)])["YS-JUL"], one(ds=ds)
    shared = made[expected.name].sel(time=expected["time"], lat=expected["lat"]).transpose(*expected.dims)
    assert expected.notnull().any()
    np.testing.assert_allclose(shared.values, expected.values, rtol=1e-5)


def test_a_single_series_without_cells_may_lack_a_day() -> None:
    ds = daily("noleap").isel(loc=0, time=slice(1200)).drop_vars(["loc", "lat", "lon"], errors="ignore").load()
    ds["tas"][400] = np.nan
    asked = [one for one in load_indicators("etccdi") if one[0] in ("gsl", "tr")]
    of_cell = compute_indicators(ds.expand_dims(loc=1), asked)["YS-JAN"].isel(loc=0)
    made = compute_indicators(ds, asked)["YS-JAN"]
    assert made["gsl"].isnull().any() and made["gsl"].notnull().any()
    for name, data in made.items():
        np.testing.assert_array_equal(data.values, of_cell[name].values)


def test_all_that_cannot_be_computed_is_named_at_once(tmp_path: Path) -> None:
    module = written(
        tmp_path,
        """
indicators:
  snow: {base: snw_max}
  hot: {base: tx90p}
  good: {base: tx_max}
  swe: {base: tx_days_above, parameters: {thresh: 3 kg}}
  daily: {base: humidex}
""",
    )
    with pytest.raises(ConfigurationError) as raised:
        checked(load_indicators(module), [*VARIABLES, "hurs", "tdps"])
    text = str(raised.value)
    assert "has 4 problems" in text
    assert "indicator snow: it needs snw" in text
    assert "indicator hot: it needs percentiles of a base period" in text
    assert "indicator swe: " in text
    assert "indicator daily: it has no frequency" in text
    assert "good" not in text


def test_two_indicators_of_a_name_are_refused(tmp_path: Path) -> None:
    text = (
        "indicators:\n  one: {base: tx_max, cf_attrs: {var_name: t}}\n  two: {base: tn_min, cf_attrs: {var_name: t}}\n"
    )
    with pytest.raises(ConfigurationError, match="indicator two: one makes t at YS-JAN, too; set another var_name"):
        checked(load_indicators(written(tmp_path, text)), VARIABLES)


@pytest.mark.parametrize(
    "text",
    ["indicators: {a: {base: no_such_indicator}}", "indicators: [", "indicators: {a: {parameters: 3}}", "{}"],
)
def test_a_file_that_xclim_refuses_is_named_with_the_reason(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"own.yml: xclim refuses it: \w+"):
        load_indicators(written(tmp_path, text))


@pytest.mark.parametrize(
    ("definition", "told"),
    [
        ('cf_attrs: [{long_name: "{ds.__init__.__globals__[np]}"}]', "cf_attrs.0.long_name"),
        ('cf_attrs: {description: "{thresh!r}"}', "expected plain names of parameters in braces"),
        ('cf_attrs: {comment: "{thresh:{ds.x}}"}', "expected plain names of parameters in braces"),
        ('cf_attrs: {comment: "{thresh:>99999999999}"}', "expected plain names of parameters in braces"),
        ('title: "{0.__class__}"', "indicators.a.title"),
        *(
            (f"cf_attrs: {{var_name: {name!r}}}", "expected (a variable|another name)")
            for name in ("a/b", "..", "", "time", "lat", "{thresh}/b")
        ),
        ("parameters: {thresh: 9**9**9 degC}", "expected a number and its unit, without arithmetic"),
        ("parameters: {thresh: {default: 9^9^9 degC}}", "expected a number and its unit, without arithmetic"),
        ("parameters: {thresh: 99*(99+9) degC}", "expected a number and its unit, without arithmetic"),
        ("parameters: {thresh: {units: m**9**9**9}}", "expected units"),
        ("cf_attrs: {units: m**9**9**9}", "expected units"),
    ],
)
def test_a_definition_that_would_run_code_or_take_for_ever_is_refused(
    tmp_path: Path, definition: str, told: str
) -> None:
    module = written(tmp_path, f"indicators: {{a: {{base: tx_days_above, {definition}}}}}")
    with pytest.raises(ConfigurationError, match=rf"own.yml: `.*` is .*{told}|own.yml: `.*{told}.*` is"):
        load_indicators(module)


def test_a_name_that_an_indicator_gets_when_it_is_computed_is_refused_if_it_is_none(tmp_path: Path) -> None:
    text = 'indicators: {a: {base: tx_max, cf_attrs: {var_name: "a_{freq}"}}, lat: {base: tx_max}}'
    with pytest.raises(ConfigurationError, match="indicator lat: it makes 'lat'; expected another name"):
        checked(load_indicators(written(tmp_path, text)), VARIABLES)


def test_variables_of_a_file_are_not_known_to_the_next(tmp_path: Path) -> None:
    from xclim.core import VARIABLES as known

    before = {name: dict(row) for name, row in known.items()}
    uses = "indicators: {a: {compute: select_resample_op, input: {da: own}, parameters: {op: max}}}"
    own = "variables: {own: {canonical_units: K, description: x}, tasmax: {canonical_units: mm, description: y}}\n"
    assert [name for name, _ in load_indicators(written(tmp_path, own + uses))] == ["a"]
    assert known == before
    with pytest.raises(ConfigurationError, match="own which is not understood"):
        load_indicators(written(tmp_path, uses))


def test_texts_that_xclim_itself_has_are_sound() -> None:
    for one in [one for module in MODULES for _, one in load_indicators(module)]:
        values = [value for p in one._all_parameters.values() for value in (p.default, p.value)]
        given = {str(number): value for number, value in enumerate(values) if isinstance(value, str)}
        attrs = [{key: text for key, text in attrs.items() if isinstance(text, str)} for attrs in one.cf_attrs]
        assert fault_in({"indicators": {"a": {"parameters": given, "cf_attrs": attrs}}}) == ""
    for text in ("3.2", "-1E-3 kg m-2 s-1", "20 °C", "5 mm/day", "5 m**-2", "2 m²", "2QS-DEC", "BR65", "doy_90p", "<="):
        assert fault_in({"indicators": {"a": {"parameters": {"b": text}}}}) == ""


def test_a_file_that_is_absent_or_no_module_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.yml: xclim refuses it: FileNotFoundError"):
        load_indicators(str(tmp_path / "absent.yml"))
    with pytest.raises(ConfigurationError, match="did you mean icclim"):
        load_indicators("iclim")


def test_a_kernel_that_differs_from_xclim_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from xclim.indices import _threshold

    found = [one for one in load_indicators(str(MODULE)) if one[0] == "wetdays"]
    ds = daily("noleap").isel(time=slice(1200))
    assert _chosen(found, ds, None)[0][0].kernel
    indicator = found[0][1]
    original = _threshold.threshold_count
    monkeypatch.setattr(_threshold, "threshold_count", lambda *args, **kwds: original(*args, **kwds) + 1)
    assert _chosen([("wetdays", indicator)], ds, None)[0][0].kernel is None


def test_xclims_own_options_are_as_before() -> None:
    from xclim.core.options import OPTIONS

    found = [one for one in load_indicators(str(MODULE)) if one[0] == "freezethaw_mean_length"]
    ds = daily("noleap").isel(time=slice(1100))
    many = xr.concat([ds] * 20, "loc")
    made = compute_indicators(many.drop_vars(["loc", "lat", "lon"]), found)["YS-JAN"]["freezethaw_mean_length"]
    assert OPTIONS["run_length_ufunc"] == "auto"
    np.testing.assert_allclose(made.isel(loc=slice(3)).values, found[0][1](ds=ds).values, rtol=1e-6)


def test_indicators_have_the_order_of_their_file_whatever_was_read_before(tmp_path: Path) -> None:
    for names in (("cdd", "tx_mean", "frost_days"), ("tx_mean", "cdd"), ("frost_days", "tx_mean", "cdd")):
        given = {"realm": "atmos", "indicators": {name: {"base": name} for name in names}}
        (tmp_path / "own.yml").write_text(yaml.safe_dump(given, sort_keys=False))
        assert [name for name, _ in load_indicators(str(tmp_path / "own.yml"))] == list(names)


GAPS: dict[str, Any] = {
    "any": {}, "wmo": {"missing": "wmo"}, "skip": {"missing": "skip"}, "context": {"missing": "from_context"},
    "pct": {"missing": "pct", "missing_options": {"tolerance": 0.05}},
    "strict": {"missing": "wmo", "missing_options": {"nm": 2, "nc": 2}},
    "days": {"missing": "at_least_n", "missing_options": {"n": 365}},
    "n": {"missing": "at_least_n", "missing_options": {"n": 20}},
}  # fmt: skip


@pytest.mark.parametrize(("rule", "freq"), [*((rule, "YS") for rule in GAPS), ("wmo", "QS-DEC"), ("n", "MS")])
def test_each_rule_of_missing_days_is_xclims(rule: str, freq: str, tmp_path: Path) -> None:
    time = xr.date_range("2001-01-01", "2005-02-15", calendar="standard", use_cftime=True)
    season = 285 - 14 * np.cos(np.asarray(time.dayofyear) / 365 * 2 * np.pi)
    values = np.random.default_rng(0).normal(0, 4, (time.size, 5)) + season[:, None]
    # In 2004, a leap year: a day, some in a row, scattered ones in May, two whole months.
    for cell, gap in enumerate((slice(1200, 1201), slice(1150, 1154), slice(1217, 1245, 2), slice(1280, 1340))):
        values[gap, cell] = np.nan
    attrs = {"units": "K", "standard_name": "air_temperature", "cell_methods": "time: maximum"}
    ds = xr.Dataset({"tasmax": (("time", "lat"), values, attrs)}, {"time": time, "lat": np.arange(40.0, 45)})
    bases: dict[str, Any] = {
        "hot": {"base": "tx_days_above", "parameters": {"thresh": "12 degC"}},
        "high": {"base": "tx_max"},
    }
    made = {name: {**base, **GAPS[rule], "cf_attrs": {"var_name": name}} for name, base in bases.items()}
    (tmp_path / "own.yml").write_text(yaml.safe_dump({"realm": "atmos", "indicators": made}))
    own = load_indicators(str(tmp_path / "own.yml"))
    (ours,) = compute_indicators(ds.chunk(time=500), own, freqs=[freq]).values()
    for name, one in own:
        theirs = one(ds=ds, freq=freq)
        theirs = theirs.sel(time=theirs["time"].dt.year >= 2001).reindex(time=ours["time"])
        np.testing.assert_allclose(ours[name].transpose(*theirs.dims), theirs, rtol=1e-6)
