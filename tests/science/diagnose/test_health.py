"""Health checks with the very section of the reference workflow's configuration, on data with planted faults."""

from __future__ import annotations

import weakref

import dask
import numpy as np
import pytest
import xarray as xr
from xclim.core.dataflags import data_flags

from espo_luigi.errors import DataError, HealthCheckError
from espo_luigi.science.diagnose import health
from espo_luigi.science.diagnose.health import health_checks

SECTION = {
    "structure": {"coords": ["lat", "lon", "time"], "dims": ["lat", "lon", "time"]},
    "start_date": "1950-01-01",
    "end_date": "1951-12-30",
    "variables_and_units": {"tasmax": "K", "tasmin": "K", "pr": "kg m-2 s-1"},
    "cfchecks": {name: {"cfcheck_from_name": {}} for name in ("tasmax", "tasmin", "pr")},
    "freq": "D",
    "flags": {
        "tasmax": {"temperature_extremely_high": {"thresh": "60 degC"}, "tasmax_below_tasmin": None},
        "tasmin": {"temperature_extremely_low": {"thresh": "-70 degC"}},
        "pr": {"negative_accumulation_values": None, "very_large_precipitation_events": {"thresh": "1650 mm/d"}},
    },
    "return_flags": True,
    "raise_on": ["structure", "start_date", "end_date", "variables_and_units", "cfchecks", "freq"],
}
FLAGS = {
    "tasmax_temperature_extremely_high",
    "tasmax_tasmax_below_tasmin",
    "tasmin_temperature_extremely_low",
    "pr_negative_accumulation_values",
    "pr_very_large_precipitation_events",
}
ATTRS = {
    "tasmax": {"units": "K", "standard_name": "air_temperature", "cell_methods": "time: maximum within days"},
    "tasmin": {"units": "K", "standard_name": "air_temperature", "cell_methods": "time: minimum within days"},
    "pr": {"units": "kg m-2 s-1", "standard_name": "precipitation_flux", "cell_methods": "time: mean within days"},
}
DAY = 86400


def make_product(calendar: str = "noleap", end: str = "1952-01-01") -> xr.Dataset:
    time = xr.date_range("1950-01-01", end, calendar=calendar, use_cftime=True, inclusive="left")
    coords = {"time": time, "lat": [45.0, 46.0], "lon": [-72.0, -71.0]}
    values = {"tasmax": 290.0, "tasmin": 280.0, "pr": 1e-5}
    data = {
        name: (("time", "lat", "lon"), np.full((len(time), 2, 2), value, "float32"), dict(ATTRS[name]))
        for name, value in values.items()
    }
    return xr.Dataset(data, coords, {"cat:id": "sim"})


def plant(name: str, value: float) -> xr.Dataset:
    ds = make_product()
    ds[name][100, 1, 0] = value
    return ds


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
def test_a_good_product_passes_and_all_flags_are_false(calendar):
    out = health_checks(make_product(calendar), **SECTION)
    assert set(out.data_vars) == FLAGS
    assert all(da.dtype == bool and da.ndim == 0 and not bool(da) for da in out.data_vars.values())
    assert out.attrs == {
        "cat:id": "sim",
        "cat:frequency": "fx",
        "cat:xrfreq": "fx",
        "cat:processing_level": "health_checks",
    }


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("tasmax", 333.2, "tasmax_temperature_extremely_high"),
        ("tasmax", 279.0, "tasmax_tasmax_below_tasmin"),
        ("tasmin", 203.1, "tasmin_temperature_extremely_low"),
        ("pr", -1e-9, "pr_negative_accumulation_values"),
        ("pr", 1651 / DAY, "pr_very_large_precipitation_events"),
    ],
)
@pytest.mark.parametrize("chunks", [None, {"time": 365, "lat": 1}])
def test_one_suspicious_value_raises_its_flag_and_a_warning_but_no_error(name, value, flag, chunks):
    ds = plant(name, value)
    out = health_checks(ds.chunk(chunks) if chunks else ds, **SECTION)
    assert not dask.is_dask_collection(out)
    assert [str(found) for found, da in out.data_vars.items() if bool(da)] == [flag]
    assert out.attrs["warnings"].count(flag.removeprefix(f"{name}_")) == 1


def test_values_just_inside_the_limits_raise_no_flag():
    for name, value in (("tasmax", 333.1), ("tasmin", 203.2), ("pr", 0.0), ("pr", 1649 / DAY)):
        assert "warnings" not in health_checks(plant(name, value), **SECTION).attrs


def test_the_flags_are_those_of_xclim():
    ds = plant("pr", 1.0)
    theirs = data_flags(ds.pr, ds, flags=SECTION["flags"]["pr"])
    out = health_checks(ds, **SECTION)
    for flag, da in theirs.data_vars.items():
        assert bool(out[f"pr_{flag}"]) == bool(da)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ds: ds.assign_coords(height=2.0), r"Extra coordinates \['height'\].*\[structure\]"),
        (lambda ds: ds.expand_dims(realization=1), r"Extra dimensions \['realization'\].*\[structure\]"),
        (lambda ds: ds.drop_vars("lat"), r"coordinate 'lat' is missing: found \['time', 'lon'\]\. \[structure\]"),
        (lambda ds: ds.isel(time=slice(1, None)), r"start on 1950-01-02, expected 1950-01-01 or before"),
        (lambda ds: ds.sel(time=slice(None, "1951-12-29")), r"end on 1951-12-29, expected 1951-12-30 or after"),
        (lambda ds: ds.drop_vars("pr"), r"variable 'pr' is missing: found \['tasmax', 'tasmin'\]"),
        (lambda ds: ds.assign(pr=ds.pr.assign_attrs(units="mm d-1")), r"'pr' is in 'mm d-1', expected 'kg m-2 s-1'"),
        (lambda ds: ds.assign(tasmax=ds.tasmax.assign_attrs(units="degC")), r"'tasmax' is in 'degC', expected 'K'"),
        (lambda ds: ds.assign(pr=ds.pr.assign_attrs(units="bananas")), r"'pr' is in 'bananas'"),
        (
            lambda ds: ds.assign(tasmin=ds.tasmin.assign_attrs(cell_methods="time: mean")),
            r"'tasmin' does not follow CF",
        ),
        (lambda ds: ds.assign(pr=ds.pr.assign_attrs(standard_name="rain")), r"'pr' does not follow CF: .*rain"),
        (lambda ds: ds.isel(time=[*range(50), *range(51, ds.sizes["time"])]), r"frequency is None, expected 'D'"),
    ],
)
def test_a_product_that_is_not_as_it_must_be_is_an_error_that_says_how(change, message):
    with pytest.raises(HealthCheckError, match=message):
        health_checks(change(make_product()), **SECTION)


def test_all_failed_checks_are_in_one_error_and_data_are_not_read_for_it():
    unreadable = dask.array.map_blocks(
        lambda block: 1 / 0, dask.array.zeros((730, 2, 2)), dtype="float32", meta=np.empty(0)
    )
    ds = make_product().isel(time=slice(1, None)).drop_vars("tasmin")
    ds["pr"] = ds.pr.copy(data=unreadable[1:])
    with pytest.raises(HealthCheckError) as caught:
        health_checks(ds, **SECTION)
    assert [
        word for word in ("[start_date]", "[variables_and_units]", "[cfchecks]") if word not in str(caught.value)
    ] == []


def test_a_product_without_a_day_is_an_error():
    with pytest.raises(HealthCheckError, match="no time steps"):
        health_checks(make_product().isel(time=slice(0)), **SECTION)


def test_equivalent_units_are_accepted():
    ds = make_product()
    ds.pr.attrs["units"] = "kg/m2/s"
    # Equal, not identical: xclim writes the time of day into `history`.
    xr.testing.assert_equal(health_checks(ds, **SECTION), health_checks(make_product(), **SECTION))
    assert "warnings" not in health_checks(ds, **{**SECTION, "raise_on": []}).attrs


def test_a_check_that_is_not_in_raise_on_only_warns():
    out = health_checks(make_product(), **{**SECTION, "end_date": "2100-12-30", "raise_on": []})
    assert out.attrs["warnings"] == "The data end on 1951-12-31, expected 2100-12-30 or after."


def test_flags_raise_when_they_are_asked_to():
    with pytest.raises(HealthCheckError, match=r"'pr' has suspicious values .*negative_accumulation_values"):
        health_checks(plant("pr", -1.0), **{**SECTION, "raise_on": ["flags"]})


def test_an_end_date_that_a_360_day_year_has_and_another_has_not_can_be_compared():
    assert not health_checks(make_product("360_day"), end_date="1951-02-30", raise_on=["end_date"]).data_vars


@pytest.mark.parametrize(("calendar", "fails"), [("365_day", False), ("noleap", False), ("standard", True)])
def test_the_calendar_is_compared_by_meaning(calendar, fails):
    out = health_checks(make_product(), calendar=calendar)
    assert ("warnings" in out.attrs) is fails


@pytest.mark.parametrize(("calendar", "fails"), [("julian", False), ("standard", True)])
def test_a_calendar_that_the_adjustment_does_not_know_can_be_checked_all_the_same(calendar, fails):
    out = health_checks(make_product("julian"), calendar=calendar)
    assert ("warnings" in out.attrs) is fails


@pytest.mark.parametrize("methods", ["any", ["missing_any"], {"any": {"freq": "YS"}}, {"pct": {"tolerance": 0.001}}])
def test_missing_values_are_found_by_xclims_methods(methods):
    assert "warnings" not in health_checks(make_product(), missing=methods).attrs
    found = health_checks(plant("pr", np.nan), missing=methods).attrs["warnings"]
    assert "'pr' has missing values" in found and "tasmax" not in found


@pytest.mark.parametrize("given", [{"raise_on": ["structre"]}, {"raise_on": ["all"]}, {"calender": "noleap"}])
def test_names_of_checks_that_do_not_exist_are_errors_that_list_those_that_do(given):
    with pytest.raises(DataError, match=r"no checks \['(structre|all|calender)'\]: expected some of \['structure'"):
        health_checks(make_product(), **given)


def test_a_single_attribute_can_be_checked():
    section = {
        "cfchecks": {"pr": {"check_valid": {"key": "standard_name", "expected": "rain"}}},
        "raise_on": ["cfchecks"],
    }
    with pytest.raises(HealthCheckError, match="rain"):
        health_checks(make_product(), **section)


def test_neither_the_data_nor_the_section_are_changed():
    ds, text = make_product(), str(SECTION)
    before = ds.copy(deep=True)
    health_checks(ds, **SECTION)
    xr.testing.assert_identical(ds, before)
    assert str(SECTION) == text


# The limits of ESPO v2, whole domain and Quebec.
V2 = {
    "": {
        "tasmax": {"temperature_extremely_high": {"thresh": "61 degC"}, "tasmax_below_tasmin": None},
        "tasmin": {"temperature_extremely_low": {"thresh": "-80 degC"}},
        "pr": {"negative_accumulation_values": None, "very_large_precipitation_events": {"thresh": "1650 mm/d"}},
        "dtr": {"temperature_extremely_low": {"thresh": "0 K"}},
    },
    "QC": {
        "tasmax": {"temperature_extremely_high": {"thresh": "45 degC"}},
        "pr": {"very_large_precipitation_events": {"thresh": "400 mm/d"}},
        "dtr": {"temperature_extremely_low": {"thresh": "-1 K"}},
    },
}
QC_BOX = {"lon_bnds": (-72.5, -60), "lat_bnds": (44, 49)}
QC_POLYGON = {"shape": [[[(-73.0, 44.0), (-60.0, 44.0), (-60.0, 49.0), (-73.0, 49.0), (-73.0, 44.0)]]]}


def rotated_product(calendar: str = "noleap") -> xr.Dataset:
    """Two years on 5 x 7 cells of a rotated grid in uneven blocks; the first row is sea, east of -72.5 is Quebec."""
    y, x = np.meshgrid(np.arange(5), np.arange(7), indexing="ij")
    coords = {
        "rlat": np.arange(5.0),
        "rlon": np.arange(7.0),
        "lat": (("rlat", "rlon"), 44.5 + 0.9 * y + 0.05 * x),
        "lon": (("rlat", "rlon"), -76.0 + x - 0.05 * y),
    }
    small = make_product(calendar).isel(lat=0, lon=0, drop=True)
    ds = small.broadcast_like(xr.Dataset(coords=coords)).assign_coords(coords).transpose("time", "rlat", "rlon")
    dtr = (ds.tasmax - ds.tasmin).assign_attrs(units="K", cell_methods="time: range")
    ds = ds.assign(dtr=dtr, rotated_pole=0).where(ds.rlat > 0)
    return ds.chunk(time=300, rlat=2, rlon=3)


def at(ds: xr.Dataset, name: str, value: float, row: int, column: int, day: int = 100) -> xr.Dataset:
    values = ds[name].values.copy()
    values[day, row, column] = value
    return ds.assign({name: ds[name].copy(data=values).chunk(time=300, rlat=2, rlon=3)})


def raised(out: xr.Dataset) -> list[str]:
    return [str(name) for name, da in out.data_vars.items() if bool(da)]


@pytest.mark.parametrize("scope", [QC_BOX, QC_POLYGON], ids=["box", "polygon"])
@pytest.mark.parametrize(
    ("name", "value", "inside", "outside"),
    [
        ("tasmax", 273.15 + 62, ["tasmax_temperature_extremely_high", "QC_tasmax_temperature_extremely_high"], 1),
        ("tasmax", 273.15 + 46, ["QC_tasmax_temperature_extremely_high"], 0),
        ("tasmax", 279.0, ["tasmax_tasmax_below_tasmin"], 1),
        ("tasmin", 273.15 - 80.1, ["tasmin_temperature_extremely_low"], 1),
        ("pr", 1651 / DAY, ["pr_very_large_precipitation_events", "QC_pr_very_large_precipitation_events"], 1),
        ("pr", 401 / DAY, ["QC_pr_very_large_precipitation_events"], 0),
        ("pr", -1e-9, ["pr_negative_accumulation_values"], 1),
        ("dtr", -0.5, ["dtr_temperature_extremely_low"], 1),
        ("dtr", -1.5, ["dtr_temperature_extremely_low", "QC_dtr_temperature_extremely_low"], 1),
    ],
)
def test_the_limits_of_a_scope_hold_for_its_cells_only(scope, name, value, inside, outside):
    sets = {"flags": V2[""], "scopes": {"QC": {**scope, "flags": V2["QC"]}}}
    in_quebec = health_checks(at(rotated_product(), name, value, 3, 5), **sets)
    assert raised(in_quebec) == inside
    assert {da.attrs.get("scope") for found, da in in_quebec.items() if found.startswith("QC_")} == {"QC"}
    assert raised(health_checks(at(rotated_product(), name, value, 3, 0), **sets)) == inside[:outside]


def test_the_flags_of_a_scope_are_those_of_xclim_over_its_cells():
    ds = at(rotated_product(), "pr", 405 / DAY, 2, 3)
    flags = {"pr": V2["QC"]["pr"]}
    found = []
    for west in (-75.5, -73.5, -71.5):
        box = {"lon_bnds": (west, west + 1), "lat_bnds": (44, 49)}
        cells = (ds.lon >= west) & (ds.lon <= west + 1)
        theirs = data_flags(ds.pr.where(cells), ds, flags=flags["pr"])["very_large_precipitation_events"]
        out = health_checks(ds.chunk(time=100, rlon=4), scopes={"part": {**box, "flags": flags}})
        found.append(bool(out["part_pr_very_large_precipitation_events"]))
        assert found[-1] == bool(theirs)
    assert found == [False, True, False]


def test_without_scopes_the_result_is_what_it_was_and_with_them_the_whole_domain_s_flags_are_the_same():
    ds = plant("pr", 401 / DAY)
    alone = health_checks(ds, **SECTION)
    box = {"lon_bnds": (-72.5, -71.5), "lat_bnds": (45.5, 47), "flags": V2["QC"]}
    both = health_checks(ds, **SECTION, scopes={"QC": box})
    assert set(alone.data_vars) == FLAGS and set(both.data_vars) == FLAGS | {
        "QC_tasmax_temperature_extremely_high",
        "QC_pr_very_large_precipitation_events",
    }
    xr.testing.assert_equal(both[sorted(FLAGS)], alone)
    assert "warnings" not in alone.attrs
    assert both.attrs["warnings"] == (
        "QC: 'pr' has suspicious values according to the following flags: ['very_large_precipitation_events']."
    )


def test_each_set_raises_on_what_it_names_and_all_failures_are_in_one_error():
    ds = at(at(rotated_product(), "pr", 401 / DAY, 3, 5), "tasmin", np.nan, 3, 0)
    quebec = {**QC_BOX, "flags": V2["QC"], "raise_on": ["flags", "end_date"], "end_date": "1952-12-30"}
    with pytest.raises(HealthCheckError) as caught:
        health_checks(ds, missing={"some_but_not_all": {"freq": "YS"}}, raise_on=["missing"], scopes={"QC": quebec})
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        "- QC: The data end on 1951-12-31, expected 1952-12-30 or after. [end_date]",
        "- The variable 'tasmin' has missing values according to the method 'some_but_not_all'. [missing]",
        "- QC: 'pr' has suspicious values according to the following flags: ['very_large_precipitation_events']. "
        "[flags]",
    ]


@pytest.mark.parametrize("calendar", ["noleap", "360_day", "standard"])
def test_a_year_without_data_passes_and_a_year_without_a_day_raises(calendar):
    checks = {"missing": {"missing_some_but_not_all": {"freq": "YS"}}, "raise_on": ["missing"]}
    ds = rotated_product(calendar)
    assert health_checks(ds.where(ds.time.dt.year == 1950), **checks).attrs.get("warnings") is None
    for row, column in ((1, 0), (4, 6)):
        with pytest.raises(HealthCheckError, match=r"'dtr' has missing values .* 'missing_some_but_not_all'"):
            health_checks(at(ds, "dtr", np.nan, row, column, day=400), **checks)


@pytest.mark.parametrize("method", ["any", "some_but_not_all"])
def test_missing_values_of_a_scope_are_those_of_its_cells(method):
    box = {"lon_bnds": (-72.5, -60), "lat_bnds": (46, 49), "missing": [method], "raise_on": ["missing"]}
    ds = rotated_product()
    assert "warnings" not in health_checks(at(ds, "pr", np.nan, 3, 0), scopes={"QC": box}).attrs
    with pytest.raises(HealthCheckError, match="QC: The variable 'pr' has missing values"):
        health_checks(at(ds, "pr", np.nan, 3, 5), scopes={"QC": box})


def test_missing_values_on_an_irregular_time_axis_are_a_failure_of_their_own():
    ds = make_product().isel(time=[*range(50), *range(51, 730)])
    with pytest.raises(HealthCheckError, match=r"frequency is None(?s:.*)the time axis is irregular.* \[missing\]"):
        health_checks(ds, freq="D", missing="any", raise_on=["freq", "missing"])


def test_a_scope_without_land_is_an_error_that_names_it():
    ds = rotated_product()
    land = ds.pr.isel(time=0, drop=True).notnull().compute()
    sea = {"lon_bnds": (-77, -60), "lat_bnds": (44, 44.9)}
    assert raised(health_checks(ds, scopes={"Gulf": {**sea, "flags": V2["QC"]}})) == []
    with pytest.raises(DataError, match="scope 'Gulf' of the health checks holds no land cell"):
        health_checks(ds, scopes={"Gulf": {**sea, "flags": V2["QC"]}}, land=land)


def test_a_set_reads_the_data_once_and_a_small_scope_reads_its_own_blocks_only(monkeypatch):
    read: list[tuple[int, ...]] = []

    def count(block: np.ndarray, block_info: dict) -> np.ndarray:
        read.append(tuple(block_info[0]["chunk-location"]))
        return block

    ds = rotated_product().drop_vars("rotated_pole")
    ds = ds.map(lambda da: da.copy(data=da.data.map_blocks(count, dtype=da.dtype, meta=np.empty((0, 0, 0)))))
    checks = {"missing": ["some_but_not_all"], "flags": {"pr": V2[""]["pr"]}}
    quebec = {"QC": {**QC_BOX, "flags": {"pr": V2["QC"]["pr"]}}}
    with dask.config.set(scheduler="synchronous"):
        land = ds.pr.isel(time=0, drop=True).notnull().compute()
        for most in (health.PART_BYTES, 1):
            monkeypatch.setattr(health, "PART_BYTES", most)
            read.clear()
            health_checks(ds[["pr"]], land=land, **checks)
            assert len(read) == len(set(read)) == ds.pr.data.npartitions == 27
        read.clear()
        health_checks(ds[["pr"]], scopes=quebec)
    assert {place[2] for place in read} == {1, 2}


def test_the_checks_of_large_data_are_those_of_its_parts_together(monkeypatch):
    land = rotated_product().pr.isel(time=0, drop=True).notnull().compute()
    ds = at(at(rotated_product(), "tasmax", 273.15 + 62, 3, 5), "pr", np.nan, 4, 0)
    # A cell in each of two parts: together more than the single cell that may.
    lacks = (ds.rlat + ds.rlon == 3) & (ds.rlat < 3) & (ds.rlat > 0)
    ds["dtr"] = ds.dtr.where(~lacks)
    checks = {
        "allowed_gaps": 1,
        "missing": ["any", "some_but_not_all"],
        "flags": V2[""],
        "scopes": {"QC": {**QC_BOX, "flags": V2["QC"], "missing": ["any"]}},
        "land": land,
    }
    whole = health_checks(ds, **checks)
    assert lacks.sum() == 2 and raised(whole) == [
        *("tasmax_temperature_extremely_high", "dtr_land_cells_without_data", "QC_tasmax_temperature_extremely_high")
    ]
    assert "'pr' has missing values" in whole.attrs["warnings"]
    monkeypatch.setattr(health, "PART_BYTES", 1)
    of_parts = health_checks(ds, **checks)
    xr.testing.assert_equal(of_parts, whole)
    assert of_parts.attrs["warnings"] == whole.attrs["warnings"]


def test_no_more_than_the_blocks_of_a_part_are_in_memory(monkeypatch):
    alive = {"now": 0, "most": 0}

    def gone() -> None:
        alive["now"] -= 1

    def counted(block: np.ndarray) -> np.ndarray:
        new = block.copy()
        alive["now"] += 1
        alive["most"] = max(alive.values())
        weakref.finalize(new, gone)
        return new

    ds = rotated_product().drop_vars("rotated_pole")
    ds = ds.map(lambda da: da.copy(data=da.data.map_blocks(counted, dtype=da.dtype, meta=np.empty((0, 0, 0)))))
    monkeypatch.setattr(health, "PART_BYTES", 1)
    with dask.config.set(scheduler="synchronous"):
        health_checks(ds, missing=["some_but_not_all"], flags=V2[""])
    of_a_part, of_all = 3 * 4, ds.pr.data.npartitions * 4
    assert 1 < alive["most"] <= of_a_part < of_all
