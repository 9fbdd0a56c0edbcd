"""The production configuration that is shipped: the reference workflow's values."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from dumped import given

from espo_luigi.config import RunConfig, load

FOLDER = Path(__file__).parents[2] / "config" / "espo-g6"

# The 21 names of the reference workflow's official diagnostics.
PROPERTIES = {
    *("mean_tasmax", "mean_tasmin", "mean_pr", "mean_dtr", "q01_tasmax", "q01_tasmin", "q99_tasmax", "q99_tasmin"),
    *("q95_pr", "q99_pr", "q99_dtr", "dry_spell_freq", "aca_tasmax", "aca_tasmin", "aca_pr", "corr_tasmax_tasmin"),
    *("corr_tasmax_pr", "max_dry_spell", "max_warm_spell", "wet_wet", "dry_wet"),
}


@pytest.fixture(scope="module")
def espo_g6(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """The production configuration, loaded from elsewhere than its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        for name in ("OUTPUT", "SCRATCH", "CATALOGS"):
            patch.setenv(f"ESPO_{name}", f"/site/{name.lower()}")
        return load([FOLDER / "config.yml", FOLDER / "paths.yml"])


def test_regions_are_the_three_bands_from_south_to_north(espo_g6: RunConfig) -> None:
    regions = espo_g6.custom.regions
    assert {name: region.lat_bnds for name, region in regions.items()} == {
        "south": (10, 40.05),
        "middle": (40.05, 65.05),
        "north": (65.05, 83.3),
    }
    assert list(regions) == ["south", "middle", "north"]
    assert {region.lon_bnds for region in regions.values()} == {(-179.95, -10)}
    assert (espo_g6.domain.name, espo_g6.domain.tile_buffer) == ("NAM", 1.5)
    assert espo_g6.domain.lat_bnds == (10, 83.4)


def centres(first: float, last: float, step: float) -> np.ndarray:
    """The centres of xESMF's regular grid: bounds are arange(first, last + step / 2, step)."""
    bounds = np.arange(first, last + step / 2, step)
    return (bounds[:-1] + bounds[1:]) / 2


@pytest.mark.parametrize(
    ("name", "lon", "lat"),
    [
        ("reg1", (172, 179.55, 350.55, 1), (75, 9.5, 83.5, 1)),
        ("reg2", (344, 179.29, 350.79, 0.5), (150, 9.15, 83.65, 0.5)),
    ],
)
def test_grids_of_the_cascade_have_the_reference_workflows_cells(
    espo_g6: RunConfig, name: str, lon: tuple[float, ...], lat: tuple[float, ...]
) -> None:
    grid = espo_g6.regrid.regrid_dataset.intermediate_grids[name].cf_grid_2d.model_dump()
    for axis, (size, first, last, step) in (("lon", lon), ("lat", lat)):
        cells = centres(grid[f"{axis}0_b"], grid[f"{axis}1_b"], grid[f"d_{axis}"])
        assert cells.size == size
        np.testing.assert_allclose(cells[[0, -1]], [first, last])
        np.testing.assert_allclose(np.diff(cells), step)


def test_grids_dump_under_the_names_of_the_file(espo_g6: RunConfig) -> None:
    dumped = {name: grid.model_dump() for name, grid in espo_g6.regrid.regrid_dataset.intermediate_grids.items()}
    assert list(dumped) == ["reg1", "reg2"]
    assert dumped["reg1"]["cf_grid_2d"]["lon0_b"] == 179.05
    assert dumped["reg1"]["regridder_kwargs"]["extrap_method"] == "inverse_dist"


@pytest.mark.parametrize(
    ("variable", "kind", "jitter", "adapt"),
    [("tasmax", "+", None, None), ("dtr", "*", "1e-4 K", None), ("pr", "*", "0.01 mm d-1", "1 mm d-1")],
)
def test_variables_are_trained_as_in_the_reference_workflow(
    espo_g6: RunConfig, variable: str, kind: str, jitter: str | None, adapt: str | None
) -> None:
    found = espo_g6.biasadjust.variables[variable]
    assert given(found.training_args) == {
        "period": ["1991", "2020"],
        "method": "DetrendedQuantileMapping",
        "group": {"group": "time.dayofyear", "window": 31},
        "xclim_train_args": {"kind": kind, "nquantiles": 50},
        **({"jitter_under": {"thresh": jitter}} if jitter else {}),
        **({"adapt_freq": {"thresh": adapt}} if adapt else {}),
    }
    assert given(found.adjusting_args) == {
        "periods": ["1950", "2100"],
        "xclim_adjust_args": {
            "detrend": {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}},
            "interp": "nearest",
            "extrapolation": "constant",
        },
        "bias_adjust_institution": "Ouranos",
        "bias_adjust_project": "ESPO-G6",
    }


def test_simulations_are_eleven_models_of_one_experiment(espo_g6: RunConfig) -> None:
    search = espo_g6.extraction.simulation.search_data_catalogs
    assert search.data_catalogs == (Path("/site/catalogs/simulation.json"),)
    assert len(search.other_search_criteria["source"]) == 11
    assert search.other_search_criteria["experiment"] == ["ssp585"]
    assert (search.match_hist_and_fut, search.allow_conversion, search.allow_resampling) == (True, True, False)
    assert given(search.restrict_members) == {"ordered": 1}
    assert espo_g6.extraction.simulation.chunks == {}, "ours read faster than ESPO-G's maps of a year"
    assert espo_g6.variables == ("tasmax", "tasmin", "pr", "dtr")
    assert espo_g6.reference_source == "ERA5-Land"


def test_products_are_cleaned_up_as_in_the_reference_workflow(espo_g6: RunConfig) -> None:
    problems, clean_up = espo_g6.clean_up.problems, espo_g6.clean_up.xscen_clean_up
    assert len(problems) == 6
    assert all("BCC-CSM2-MR" in one or "GFDL-ESM4" in one for one in problems)
    assert (clean_up.round_var, clean_up.to_level) == ({"pr": 10}, "cleaned_up")
    assert set(clean_up.add_attrs) == {"global", "lat", "lon", "tasmax", "tasmin", "pr"}


def test_the_texts_of_products_are_filled_in(espo_g6: RunConfig) -> None:
    assert espo_g6.attributes["global"] == {
        "dataset": "ESPO-G6-E5L v1.0.0",
        "Notes": "Daily CMIP6 simulations, interpolated to the ERA5-Land grid and adjusted against\n"
        "ERA5-Land over 1991-2020 by detrended quantile mapping (31-day window around each\n"
        "day of the year, 50 quantiles, LOESS trend). The adjusted variables are tasmax,\n"
        "dtr and pr; tasmin is the adjusted tasmax minus the adjusted dtr.\n",
    }


def test_checks_raise_on_everything_but_the_flags(espo_g6: RunConfig) -> None:
    checks = given(espo_g6.health_checks)
    assert checks["raise_on"] == ["structure", "start_date", "end_date", "variables_and_units", "cfchecks", "freq"]
    assert checks["flags"]["tasmin"] == {"temperature_extremely_low": {"thresh": "-70 degC"}}
    assert checks["flags"]["tasmax"]["tasmax_below_tasmin"] == {}
    assert (checks["start_date"], checks["end_date"]) == ("1950-01-01", "2100-12-30")


def test_four_domains_are_diagnosed_by_21_properties(espo_g6: RunConfig) -> None:
    off_diag = espo_g6.off_diag
    assert list(off_diag.domains) == ["Haudenosaunee", "Ute", "Dene", "Magtogoek"]
    assert off_diag.steps["sim"].domain["Ute"] == "south"
    assert set(off_diag.steps["scen"].domain.values()) == {"NAM"}
    assert [step.unstack for step in off_diag.steps.values()] == [True, True, False]
    assert [set(step.properties_and_measures.properties["indicators"]) for step in off_diag.steps.values()] == [
        PROPERTIES
    ] * 3


def test_every_property_is_built_by_xclim(tmp_path: Path) -> None:
    from xclim.core.indicator import build_indicator_module_from_yaml

    pytest.importorskip("xsdba.properties")
    for name, count in (("off-properties_ESPO-G", 21), ("properties_ESPO-G", 3)):
        shutil.copy(FOLDER / f"{name}.yml", tmp_path / f"{name.replace('-', '_')}.yml")
        module = build_indicator_module_from_yaml(tmp_path / f"{name.replace('-', '_')}.yml", mode="raise")
        assert len(list(module.iter_indicators())) == count
