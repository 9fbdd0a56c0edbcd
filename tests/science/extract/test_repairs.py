"""Repairs of single simulations, against values set by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from espo_luigi import store
from espo_luigi.errors import DataError
from espo_luigi.science.attributes import REPAIRS
from espo_luigi.science.extract.repairs import REPAIRED, Repair, create_mask, idle_repairs, repair, with_repairs_told
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


@pytest.mark.parametrize("chunks", [None, {"time": 2, "lat": 2, "lon": 4}])
def test_a_day_of_two_variables_becomes_missing(chunks: Any) -> None:
    ds = simulation("BCC-CSM2-MR_ssp585", chunks=chunks)
    repaired = with_repairs_told(repair(ds, PATCHES))
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
    repaired = with_repairs_told(repair(ds, PATCHES))
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
    repaired = with_repairs_told(repair(simulation("UKESM1-0-LL_ssp370"), PATCHES))
    target = xr.Dataset(coords={"lat": ("loc", [50.0]), "lon": ("loc", [285.0])})
    assert regrid(repaired, target).attrs[REPAIRS] == repaired.attrs[REPAIRS]


def test_a_dataset_that_no_row_names_is_returned_as_it_is() -> None:
    ds = simulation("MIROC6_ssp370")
    xr.testing.assert_identical(repair(ds, PATCHES), ds)


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
def test_a_row_that_changes_nothing_is_known_as_idle(row: Repair) -> None:
    ds = simulation("UKESM1-0-LL_ssp370", "360_day")
    repaired = repair(ds, (PATCHES[0], row))
    assert idle_repairs(repaired) == [str(row)]
    xr.testing.assert_identical(with_repairs_told(repaired), ds)


def test_thresholds_are_converted_and_cells_of_a_rotated_grid_are_found_in_any_convention() -> None:
    ds = simulation("M").rename(lat="rlat", lon="rlon")
    lat, lon = xr.broadcast(ds.rlat, ds.rlon)
    ds = ds.assign_coords(lat=lat + 0.01 * lon, lon=lon)
    rows = (
        Repair("*", "tasmax", "missing", where=">= 62.8 degC"),
        Repair("*", "pr", "missing", where=(float(ds.lat[2, 2]), 285.9375 - 360)),
    )
    repaired = repair(ds, rows)
    assert repaired[REPAIRED].values.tolist() == [2, 7]
    assert np.argwhere(np.isnan(repaired.pr.values)).tolist() == [[day, 2, 2] for day in range(7)]


def test_the_writer_of_a_repaired_store_reads_each_chunk_once_and_the_store_has_the_counts(tmp_path: Path) -> None:
    read: Counter[int] = Counter()

    def noted(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        read[block_info[0]["chunk-location"][0]] += 1
        return block

    ds = simulation("BCC-CSM2-MR_ssp585", chunks={"time": 1})
    ds["tasmin"] = ds.tasmin.copy(
        data=ds.tasmin.data.map_blocks(noted, dtype="float32", meta=np.empty((0, 0, 0), "f4"))
    )
    rows = (*PATCHES, Repair("*", "tasmin", "missing", where="> 289 K"))
    path, marker = tmp_path / "repaired.zarr", store.Marker("Extract", {}, {}, {}, "")
    store.write_store(repair(ds, rows), path, marker)
    assert read == dict.fromkeys(range(7), 1)
    warm = int((simulation("BCC-CSM2-MR_ssp585").tasmin.isel(time=[0, 1, 2, 4, 5, 6]) > 289).sum())
    written = store.open_store(path)
    assert warm and written[REPAIRED].values.tolist() == [30, 30, warm]
    assert with_repairs_told(written).attrs[REPAIRS].endswith(f"tasmin > 289 K: missing, {warm} values")


def test_a_cell_at_the_edge_and_a_dataset_without_id_are_errors() -> None:
    edge = Repair("*", "pr", "mean_of_neighbours", where=(46.875, 285.9375))
    with pytest.raises(DataError, match=r"repair \(pr at 46.875 N .*\): the cell lies at the edge of the data"):
        repair(simulation("M"), (edge,))
    with pytest.raises(DataError, match="no attribute cat:id"):
        repair(simulation("M").drop_attrs(), (edge,))


SHARES = xr.DataArray(
    np.array([[0, 24.5, 25], [25.5, 100, np.nan]], "float32"),
    dims=("lat", "lon"),
    coords={"lat": [1.0, 2.0], "lon": [3.0, 4.0, 5.0]},
    name="sftlf",
    attrs={"units": "%", "standard_name": "land_area_fraction"},
)
# By `xscen.regrid.create_mask` of xscen 0.15.1: the six cells with mask_nans, and without.
BY_XSCEN = {
    ">=": ("001110", "001111"),
    ">": ("000110", "000111"),
    "<=": ("111000", "111001"),
    "<": ("110000", "110001"),
    "==": ("001000", "001001"),
    "!=": ("110110", "110111"),
}


@pytest.mark.parametrize("mask_nans", [True, False])
@pytest.mark.parametrize("sign", BY_XSCEN)
def test_each_operator_gives_what_xscen_gives(sign: str, mask_nans: bool) -> None:
    mask = create_mask(SHARES, where_operator=sign, where_threshold=25, mask_nans=mask_nans)
    expected = SHARES.copy(data=np.array(list(BY_XSCEN[sign][not mask_nans]), "float32").reshape(2, 3)).rename("mask")
    expected.attrs = {"long_name": "Mask", "where_threshold": f"sftlf {sign} 25", "mask_NaNs": str(mask_nans)}
    xr.testing.assert_identical(mask, expected)
    assert mask.dtype == np.float32


def test_the_first_of_several_times_counts_and_nothing_is_computed() -> None:
    timed = xr.concat([SHARES, SHARES * 0], "time").chunk(lat=1)
    mask = create_mask(timed, where_operator=">=", where_threshold=25)
    assert mask.chunks is not None
    xr.testing.assert_equal(mask.compute(), create_mask(SHARES, where_operator=">=", where_threshold=25))


def test_a_fraction_as_threshold_of_a_field_in_percent_is_pointed_out(caplog: pytest.LogCaptureFixture) -> None:
    create_mask(SHARES, where_operator=">=", where_threshold=25)
    create_mask(SHARES.assign_attrs(units="1"), where_operator=">=", where_threshold=0.25)
    assert not caplog.records
    create_mask(SHARES, where_operator=">=", where_threshold=0.25)
    assert " and where_threshold is 0.25" in caplog.text
