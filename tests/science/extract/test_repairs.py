"""Repairs of single simulations, against values set by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi.errors import ConfigurationError, DataError
from espo_luigi.science.extract.repairs import REPAIRS, Repair, repair, repaired_days
from espo_luigi.science.regrid import regrid

# The defects that the scripts of ESPO 2.0 patch.
PATCHES = (
    Repair("*_BCC-CSM2-MR_*", "tasmin", "missing", when="2014-12-31"),
    Repair("*_BCC-CSM2-MR_*", "dtr", "missing", when="2014-12-31"),
    Repair("*_UKESM1-0-LL_*", "tasmax", "missing", where="> 335 K"),
    Repair("*_UKESM1-0-LL_ssp370_r1*", "pr", "mean_of_neighbours", where=(49.375, 285.9375), when="2014-12-30"),
)


def simulation(name: str, calendar: str = "noleap", chunks: Any = None) -> xr.Dataset:
    time = xr.date_range("2014-12-28", "2015-01-03", calendar=calendar, use_cftime=True)
    rng = np.random.default_rng(4)
    shape = (time.size, 5, 6)
    fields = {"tasmax": (290, 30, "K"), "tasmin": (270, 20, "K"), "dtr": (0, 20, "K"), "pr": (0, 1e-4, "kg m-2 s-1")}
    data = {
        name: (("time", "lat", "lon"), rng.uniform(low, low + width, shape).astype("float32"), {"units": units})
        for name, (low, width, units) in fields.items()
    }
    coords = {"time": time, "lat": np.arange(46.875, 53, 1.25), "lon": np.arange(282.1875, 292, 1.875)}
    ds = xr.Dataset(data, coords, {"cat:id": f"CMIP6_ScenarioMIP_X_{name}_r1i1p1f2_global"})
    ds.tasmax[1, 2, 3], ds.tasmax[4, 0, 0] = 336, 400
    ds.pr[2, 2, 2] = 1024 / 86400
    return ds.chunk(chunks) if chunks else ds


def values(counts: dict[int, xr.DataArray]) -> dict[int, int]:
    """The number of changed values of each row."""
    return {number: int(count.sum()) for number, count in counts.items()}


def test_changed_days_are_counted_by_cell_and_variable() -> None:
    ds = simulation("UKESM1-0-LL_ssp370")
    rows = (*PATCHES, Repair("*", "tasmax", "missing", where="> 335 K"), Repair("*", "pr", "missing", when="2015-01"))
    repaired, counts = repair(ds, rows)
    found = repaired_days(counts.values())
    assert set(found.data_vars) == {"tasmax", "pr"}
    for name in found.data_vars:
        changed = (ds[name] != repaired[name]) | repaired[name].isnull()
        np.testing.assert_array_equal(found[name].values, changed.sum("time").values, err_msg=str(name))
    assert found.tasmax.sum() == 2 and found.pr.max() > 1


@pytest.mark.parametrize("chunks", [None, {"time": 2, "lat": 2, "lon": 4}])
def test_a_day_of_two_variables_becomes_missing(chunks: Any) -> None:
    ds = simulation("BCC-CSM2-MR_ssp585", chunks=chunks)
    repaired, counts = repair(ds, PATCHES)
    assert values(counts) == {1: 30, 2: 30}
    expected = ds.copy(deep=True).compute()
    expected["tasmin"][3], expected["dtr"][3] = np.nan, np.nan
    expected.attrs[REPAIRS] = "tasmin on 2014-12-31: missing, 30 values; dtr on 2014-12-31: missing, 30 values"
    assert repaired.chunks == ds.chunks
    xr.testing.assert_identical(repaired.compute(), expected)
    assert not np.isnan(ds.tasmin).any()


@pytest.mark.parametrize("chunks", [None, {"time": 2, "lat": 2, "lon": 4}])
@pytest.mark.parametrize("calendar", ["noleap", "360_day"])
def test_values_beyond_a_threshold_and_a_cells_day_are_replaced(chunks: Any, calendar: str) -> None:
    ds = simulation("UKESM1-0-LL_ssp370", calendar, chunks)
    repaired, counts = repair(ds, PATCHES)
    assert values(counts) == {3: 2, 4: 1}
    expected = ds.copy(deep=True).compute()
    expected["tasmax"][1, 2, 3], expected["tasmax"][4, 0, 0] = np.nan, np.nan
    around = expected["pr"].values[2, 1:4, 1:4].astype("float64")
    expected["pr"][2, 2, 2] = (around.sum() - around[1, 1]) / 8
    assert repaired.chunks == ds.chunks and repaired.pr.dtype == np.float32
    xr.testing.assert_allclose(repaired.compute(), expected, rtol=1e-6, atol=0)
    untouched = np.ones(ds.pr.shape, bool)
    untouched[2, 2, 2] = False
    np.testing.assert_array_equal(repaired.pr.values[untouched], expected.pr.values[untouched])
    assert repaired.attrs[REPAIRS] == (
        "tasmax > 335 K: missing, 2 values; pr at 49.375 N 285.938 E on 2014-12-30: mean_of_neighbours, 1 value"
    )


def test_the_list_of_repairs_stays_with_what_is_made_of_the_data() -> None:
    repaired, _ = repair(simulation("UKESM1-0-LL_ssp370"), PATCHES)
    target = xr.Dataset(coords={"lat": ("loc", [50.0]), "lon": ("loc", [285.0])})
    assert regrid(repaired, target).attrs[REPAIRS] == repaired.attrs[REPAIRS]


def test_a_dataset_that_no_row_names_is_returned_as_it_is() -> None:
    ds = simulation("MIROC6_ssp370")
    repaired, counts = repair(ds, PATCHES)
    assert values(counts) == {}
    xr.testing.assert_identical(repaired, ds)


@pytest.mark.parametrize(
    "row",
    [
        Repair("*", "hurs", "missing", when="2014-12-31"),
        Repair("*", "pr", "missing", when="2016"),
        Repair("*", "pr", "missing", when="2014-12-31"),
        Repair("*", "pr", "missing", where=(49.3, 285.9375)),
        Repair("*", "tasmax", "missing", where="> 500 K"),
    ],
    ids=["variable", "year", "day of another calendar", "cell", "threshold"],
)
def test_a_row_that_changes_nothing_is_a_warning_with_its_number(row: Repair, caplog: pytest.LogCaptureFixture) -> None:
    ds = simulation("UKESM1-0-LL_ssp370", "360_day")
    repaired, counts = repair(ds, (PATCHES[0], row))
    assert values(counts) == {2: 0}
    xr.testing.assert_identical(repaired, ds)
    assert f"repair 2 ({row}) changes nothing in {ds.attrs['cat:id']}. Correct or remove it." in caplog.text


def test_thresholds_are_converted_and_cells_of_a_rotated_grid_are_found_in_any_convention() -> None:
    ds = simulation("M").rename(lat="rlat", lon="rlon")
    lat, lon = xr.broadcast(ds.rlat, ds.rlon)
    ds = ds.assign_coords(lat=lat + 0.01 * lon, lon=lon)
    rows = (
        Repair("*", "tasmax", "missing", where=">= 62.8 degC"),
        Repair("*", "pr", "missing", where=(float(ds.lat[2, 2]), 285.9375 - 360)),
    )
    repaired, counts = repair(ds, rows)
    assert values(counts) == {1: 2, 2: 7}
    assert np.argwhere(np.isnan(repaired.pr.values)).tolist() == [[day, 2, 2] for day in range(7)]


def test_counting_reads_only_the_days_that_a_row_names() -> None:
    read: list[int] = []

    def noted(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        read.append(block_info[0]["chunk-location"][0])
        return block

    ds = simulation("BCC-CSM2-MR_ssp585", chunks={"time": 1})
    ds["tasmin"] = ds.tasmin.copy(
        data=ds.tasmin.data.map_blocks(noted, dtype="float32", meta=np.empty((0, 0, 0), "f4"))
    )
    read.clear()
    repair(ds, PATCHES)
    assert set(read) == {3}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"what": "zero"}, "repair 2: what is 'zero'; expected missing or mean_of_neighbours"),
        ({"when": "31/12/2014"}, "repair 2: when is '31/12/2014'; expected a day, a month or a year"),
        ({"where": "over 335 K"}, "repair 2: where is 'over 335 K'; expected one of >=, >, <=, <, ==, !=, a number"),
        ({"where": "> hot K"}, "repair 2: where is '> hot K'"),
        ({"where": "=> 335 K"}, "repair 2: where is '=> 335 K'"),
        ({}, "repair 2 would replace all values of pr; expected where, when or both"),
        ({"what": "mean_of_neighbours", "when": "2014"}, "repair 2: where is ''; expected the latitude and longitude"),
    ],
)
def test_a_row_that_is_no_repair_is_an_error_for_every_dataset(row: dict[str, Any], message: str) -> None:
    wrong = Repair(**{"id": "another", "variable": "pr", "what": "missing"} | row)
    with pytest.raises(ConfigurationError, match=message):
        repair(simulation("M"), (PATCHES[0], wrong))


def test_a_cell_at_the_edge_and_a_dataset_without_id_are_errors() -> None:
    edge = Repair("*", "pr", "mean_of_neighbours", where=(46.875, 285.9375))
    with pytest.raises(DataError, match=r"repair 1 \(pr at 46.875 N .*\): the cell lies at the edge of the data"):
        repair(simulation("M"), (edge,))
    with pytest.raises(DataError, match="no attribute cat:id"):
        repair(simulation("M").drop_attrs(), (edge,))
