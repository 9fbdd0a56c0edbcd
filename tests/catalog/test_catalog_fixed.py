"""Fixed fields: which run's serves a simulation, and how they are opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from test_catalog_open import LAT, LON, asset, daily, match, store
from test_catalog_search import DAILY, dropped, row, rows_of, search

from espo_luigi.catalog import Match, make_catalog, open_fixed, open_match
from espo_luigi.catalog.search import Catalog
from espo_luigi.errors import CatalogError, DataError
from espo_luigi.science.extract.dataset import extract
from espo_luigi.science.extract.repairs import create_mask
from espo_luigi.science.geometry.cutting import subset_box
from espo_luigi.science.regrid import regrid

WANTED = {**DAILY, "sftlf": "fx"}


def field(variable: str = "sftlf", **columns: str) -> dict[str, str]:
    return row(variable, "", "", **{"xrfreq": "fx", "frequency": "fx"} | columns)


def found_with(folder: Path, rows: list[dict[str, str]], **kwargs: Any) -> dict[str, Match]:
    return search(folder, rows, **{"variables_and_freqs": WANTED} | kwargs)


def name_of(match: Match) -> str:
    return Path(match.fixed["sftlf"].path).name


def test_a_field_without_dates_is_found_apart_from_the_series(tmp_path: Path) -> None:
    (found,) = found_with(tmp_path, [*rows_of(), field()]).values()
    assert set(found.variables) == {"tasmax", "tasmin", "pr"}
    assert list(found.fixed) == ["sftlf"]
    assert found.fixed["sftlf"].path.endswith("CanESM5_ssp585_r1i1p1f1_global_sftlf_.nc")
    assert found.fixed["sftlf"] not in found.assets
    assert found.files[-1] == Path(found.fixed["sftlf"].path) and len(found.files) == 4
    assert found.columns["xrfreq"] == "D"
    assert not found.on(found.assets[0].start, "tasmax").fixed


def test_a_field_alone_is_found(tmp_path: Path) -> None:
    (found,) = search(tmp_path, [*rows_of(), field()], variables_and_freqs={"sftlf": "fx"}).values()
    assert not found.assets and not found.variables
    assert len(found.files) == 1
    assert found.columns["source"] == "CanESM5"


@pytest.mark.parametrize("joined", [True, False])
def test_the_field_of_another_member_experiment_and_institution_serves(tmp_path: Path, joined: bool) -> None:
    run = {"member": "r5i1p1f1"}
    history = rows_of(experiment="historical", end="2004-12-31", **run) if joined else []
    series = rows_of(experiment="ssp245", start="2005-01-01" if joined else "2000-01-01", **run)
    fields = [field(source="MIROC6", experiment="ssp245", **run), field(experiment="historical", institution="DKRZ")]
    criteria = {"processing_level": "raw", "experiment": "ssp245", **run}
    rows = [*history, *series, *fields]
    (found,) = found_with(tmp_path, rows, other_search_criteria=criteria, match_hist_and_fut=joined).values()
    assert name_of(found) == "CMIP6_CMIP_CCCma_CanESM5_historical_r1i1p1f1_global_sftlf_.nc"


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"source": "MIROC6"}, r"not of its source and grid (there are fields of mip_era CMIP6; source MIROC6; domain"),
        ({"grid_label": "gr"}, "grid_label gr"),
        ({"domain": "NAM"}, "domain NAM"),
        ({"processing_level": "regridded"}, "processing_level regridded"),
        ({"mip_era": "CMIP5", "id": "other"}, "mip_era CMIP5"),
        ({"variable": "('orog',)"}, "sftlf has no rows of frequency fx in the catalogue"),
        ({"xrfreq": "MS"}, "sftlf has no rows of frequency fx in the catalogue"),
    ],
)
def test_without_a_field_of_its_grid_a_simulation_is_dropped_with_the_reason(
    tmp_path: Path, columns: dict[str, str], reason: str
) -> None:
    rows = [*rows_of(grid_label="gn"), field(**columns)]
    with pytest.raises(CatalogError, match="nothing found") as raised:
        found_with(tmp_path, rows)
    assert reason in str(raised.value)


def test_a_simulation_without_a_field_does_not_drop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    complete = [*rows_of(source="MIROC6"), field(source="MIROC6")]
    (found,) = found_with(tmp_path, [*rows_of(), *complete]).values()
    assert found.columns["source"] == "MIROC6"
    assert "ssp585_r1i1p1f1_global is dropped" in dropped(caplog)
    assert "sftlf is there" in dropped(caplog)


def test_grid_labels_agree_only_where_both_are_given(tmp_path: Path) -> None:
    fields = [field(grid_label="gr", path="/data/1.nc"), field(grid_label="gn", path="/data/2.nc")]
    (found,) = found_with(tmp_path, [*rows_of(grid_label="gn"), *fields]).values()
    assert name_of(found) == "2.nc"
    (found,) = found_with(tmp_path, [*rows_of(), *fields]).values()
    assert name_of(found) == "1.nc"


def test_a_runs_own_field_comes_first_and_then_what_fits_the_criteria(tmp_path: Path) -> None:
    others = [field(member="r2i1p1f1", path="/data/0.nc"), field(experiment="historical", path="/data/1.nc")]
    own = [field(version="v1", path="/data/2.nc"), field(version="v2", path="/data/3.nc")]
    series = rows_of(version="v2")
    (found,) = found_with(tmp_path, [*series, *others, *own], other_search_criteria={"version": "v2"}).values()
    assert name_of(found) == "3.nc"
    (found,) = found_with(tmp_path, [*series, *others, *own]).values()
    assert name_of(found) == "2.nc"
    other = field(member="r2i1p1f1", version="v2", path="/data/4.nc")
    (found,) = found_with(tmp_path, [*series, other, own[0]], other_search_criteria={"version": "v2"}).values()
    assert name_of(found) == "2.nc"
    criteria = {"version": "v2", "experiment": "ssp585"}
    (found,) = found_with(tmp_path, [*series, *others], other_search_criteria=criteria).values()
    assert name_of(found) == "0.nc"


def test_an_excluded_runs_field_serves_others_unless_its_file_is_excluded(tmp_path: Path) -> None:
    rows = [*rows_of(), *rows_of(member="r2i1p1f1"), field()]
    (found,) = found_with(tmp_path, rows, exclusions={"id": rows[0]["id"]}).values()
    assert name_of(found) == "CMIP6_ScenarioMIP_CCCma_CanESM5_ssp585_r1i1p1f1_global_sftlf_.nc"
    assert found.columns["member"] == "r2i1p1f1"
    with pytest.raises(CatalogError, match="sftlf has no rows of frequency fx"):
        found_with(tmp_path, rows, exclusions={"path": ".*sftlf.*"})


def test_a_field_whose_row_is_faulty_is_not_used_and_drops_nothing(tmp_path: Path) -> None:
    broken, other = field(format="tape", path="/data/0.nc"), field(member="r2i1p1f1", path="/data/1.nc")
    (found,) = found_with(tmp_path, [*rows_of(), broken, other]).values()
    assert name_of(found) == "1.nc"


def test_a_field_that_is_not_wanted_changes_nothing(tmp_path: Path) -> None:
    assert search(tmp_path, [*rows_of(), field()]) == search(tmp_path, rows_of())


def fixed(values: Any, name: str = "sftlf", units: str = "%", **coords: Any) -> xr.Dataset:
    grid = {"lat": LAT, "lon": LON} | coords
    return xr.Dataset({name: (("lat", "lon"), values, {"units": units})}, grid)


SHARES = np.array([[0, 20, 40, 60], [10, 30, 100, 100], [0, np.nan, 25, 24]], "float32")


def opened(folder: Path, field: xr.Dataset, **kwargs: Any) -> xr.Dataset:
    """The field as it is opened beside a series on LAT, LON."""
    found = match(asset(store(daily(), folder / "series.nc"), "tasmax"))
    path = folder / "field.nc"
    field.to_netcdf(path)
    (name,) = field.data_vars
    held = {name: asset(path, str(name), "", "")}
    series = open_match(found)
    return open_fixed(Match(found.id, found.assets, found.variables, fixed=held), series, **kwargs)


def test_a_field_is_opened_in_its_own_units_on_the_coordinates_of_the_series(tmp_path: Path) -> None:
    ds = opened(tmp_path, fixed(SHARES, lat=np.array(LAT) + 3e-5), xr_open_kwargs={"drop_variables": ["height"]})
    xr.testing.assert_identical(ds, fixed(SHARES))
    assert isinstance(ds.sftlf.variable._data, np.ndarray)


def test_a_field_with_a_single_time_has_none_when_it_is_open(tmp_path: Path) -> None:
    timed = fixed(SHARES).expand_dims(time=xr.date_range("2000-01-01", periods=1))
    xr.testing.assert_identical(opened(tmp_path, timed), fixed(SHARES))


def test_a_mask_of_true_and_false_is_opened_as_numbers(tmp_path: Path) -> None:
    ds = opened(tmp_path, fixed(SHARES > 20, "mask", "1"))
    assert ds["mask"].values.tolist() == [[0, 0, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]


def test_a_field_on_another_grid_or_without_the_variable_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"field.nc: sftlf is not on the grid of CMIP6_M; expected the same lat"):
        opened(tmp_path, fixed(SHARES, lat=np.array(LAT) + 0.1))
    found = Match("CMIP6_M", (), (), fixed={"orog": asset(tmp_path / "field.nc", "orog", "", "")})
    with pytest.raises(DataError, match=r"field.nc has no variable orog; it has sftlf"):
        open_fixed(found, fixed(SHARES))
    found = Match("CMIP6_M", (), (), fixed={"orog": asset(tmp_path / "none.nc", "orog", "", "")})
    with pytest.raises(DataError, match=r"none.nc is in the catalogue .* but does not exist"):
        open_fixed(found, fixed(SHARES))


@pytest.mark.parametrize("rotated", [False, True])
def test_from_the_folder_of_files_to_a_masked_regridding(tmp_path: Path, rotated: bool) -> None:
    """The land's values are 280 K and the sea's 0 K: a sea cell that took part would show."""
    land, days = fixed(SHARES), daily(end="2000-12-31")
    days["tasmax"] = (280 * (land.sftlf >= 25) + 0 * days.tasmax).astype("float32").assign_attrs(units="K")
    if rotated:
        lon, lat = np.meshgrid(LON, LAT)
        two = {"lat": (("rlat", "rlon"), lat), "lon": (("rlat", "rlon"), lon)}
        days, land = (one.rename(lat="rlat", lon="rlon").assign_coords(two) for one in (days, land))
    about = {"mip_era": "CMIP6", "activity_id": "ScenarioMIP", "institution_id": "I", "source_id": "M"}
    about |= {"experiment_id": "ssp245", "variant_label": "r1i1p1f1"}
    (tmp_path / "data").mkdir()
    store(days.assign_attrs(about, frequency="day"), tmp_path / "data" / "series.nc")
    land.assign_attrs(about, frequency="fx").to_netcdf(tmp_path / "data" / "land.nc")
    make_catalog(tmp_path / "data", tmp_path / "cat.json")

    wanted = {"tasmax": "D", "sftlf": "fx"}
    catalog = Catalog.from_files([tmp_path / "cat.json"])
    (found,) = catalog.search(variables_and_freqs=wanted, periods=["2000", "2000"]).values()
    series = open_match(found)
    mask = create_mask(open_fixed(found, series)["sftlf"], where_operator=">=", where_threshold=25)
    box = {"name": "NAM", "lon_bnds": [249, 266], "lat_bnds": [39, 51]}
    cut = extract(series, variables_and_freqs={"tasmax": "D"}, period=("2000", "2000"), region=box)
    masked = cut.assign_coords(mask=subset_box(mask.to_dataset(), box)["mask"])
    target = xr.Dataset(coords={"lat": ("loc", [41.0, 44, 48]), "lon": ("loc", [251.0, 256, 264])})
    # A grid on the way: a single stage to points ignores the mask.
    bounds = {"lon0_b": 249, "lon1_b": 266, "d_lon": 1, "lat0_b": 39, "lat1_b": 51, "d_lat": 1}
    way = {"regridder_kwargs": {"extrap_method": "inverse_dist"}}
    grids = {"reg1": {"cf_grid_2d": bounds, **way}}
    np.testing.assert_allclose(regrid(masked, target, intermediate_grids=grids, **way).tasmax, 280)
    assert (regrid(cut, target, intermediate_grids=grids, **way).tasmax < 279).any()
