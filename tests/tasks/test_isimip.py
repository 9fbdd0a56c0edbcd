"""Real data of ten variables, as ISIMIP's example has them: catalogued by hand, in two stretches of years, to products.

The files have the dimensions longitude, latitude, time, latitudes from north to south, no global attributes, and no
names of CMIP6.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import xsdba
import yaml
from complete_demo import work
from demo_runs import use
from luigi.configuration import get_config

from espo_luigi import store, tasks
from espo_luigi.catalog.build import make_catalog
from espo_luigi.errors import CatalogError, DataError
from espo_luigi.tasks.context import context, forget

DATA = Path(__file__).parents[3] / "shared" / "data" / "isimip-berlin"
pytestmark = [pytest.mark.production, pytest.mark.skipif(not DATA.is_dir(), reason=f"needs {DATA}, which is not there")]

SIM = "Model"
STRETCHES = [["1979", "2014"], ["2065", "2100"]]
BOX = {"lon_bnds": [12, 14], "lat_bnds": [52, 54]}
COLUMNS = ("source", "xrfreq", "variable", "date_start", "date_end", "path")


def write_catalogue(path: Path) -> Path:
    """Write what the page says for files of other names: a table of six columns."""
    with path.with_suffix(".csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for one in sorted(DATA.glob("*.nc")):
            variable, kind, _, years = one.stem.split("_")
            table.writerow(["Berlin" if kind == "obs-hist" else SIM, "D", variable, *years.split("-"), one])
    path.write_text(json.dumps({"esmcat_version": "0.1.0", "catalog_file": path.with_suffix(".csv").name}))
    return path


def configuration(folder: Path, adjusted: dict[str, Any], **changes: Any) -> dict[str, Any]:
    wanted = {
        "data_catalogs": [str(write_catalogue(folder / "berlin.json"))],
        "variables_and_freqs": dict.fromkeys(adjusted, "D"),
    }
    return {
        "project": {"name": "Berlin", "id": "berlin"},
        "paths": {"final": str(folder / "final"), "tmpdir": str(folder / "work")},
        "custom": {
            "regions": {"land": BOX},
            "working_chunks": {"loc": 5},
            "final_chunks": {"lat": 3, "lon": 3},
            "ref_period": STRETCHES[0],
            "sim_period": STRETCHES,
        },
        "domain": {"name": "berlin", **BOX},
        "extraction": {
            "ref_source": "Berlin",
            "reference": {"search_data_catalogs": {**wanted, "other_search_criteria": {"source": "Berlin"}}},
            "simulation": {"search_data_catalogs": {**wanted, "other_search_criteria": {"source": SIM}}},
        },
        "biasadjust": {"variables": adjusted},
        **changes,
    }


def configure(folder: Path, content: dict[str, Any]) -> None:
    (folder / "config.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    use([folder / "config.yml"], folder)


OWN = {
    "tasskew": {
        "units": "1",
        "kind": "+",
        "possible": [0, 1],
        "bounds": [0, 1],
        "transformation": "logit",
        "long_name": "Skewness of the Day's Temperature",
    },
    "tasrange": {"units": "K", "kind": "*", "possible": [0, 100], "bounds": [0, None], "difference": True},
}
NAMES = ("hurs", "pr", "ps", "tasrange", "tasskew", "rsds", "rlds", "sfcWind")
# The reference's outer cells lie beyond the middles of the simulation's.
REGRID = {"regrid_dataset": {"regridder_kwargs": {"extrap_method": "inverse_dist"}}}
LIMITS = {"hurs": (0, 100), "pr": (0, 0.01), "rsds": (0, 500), "rlds": (50, 600), "sfcWind": (0, 40), "tasskew": (0, 1)}


@pytest.fixture(scope="module", autouse=True)
def settings_are_put_back() -> Iterator[None]:
    """Luigi's configuration is that of other tests again."""
    before = {name: dict(get_config().items(name, raw=True)) for name in get_config().sections()}
    yield
    get_config().clear()
    get_config().read_dict(before)
    forget()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of eight variables, to the health checks."""
    folder = tmp_path_factory.mktemp("berlin")
    configure(folder, configuration(folder, {name: {} for name in NAMES}, variables=OWN, regrid=REGRID))
    work(tasks.HealthChecks(sim_id=SIM), tasks.Move(sim_id=SIM, piece="land"))
    return folder


@pytest.fixture(scope="module")
def product(here: Path) -> xr.Dataset:
    """The product, as (time, lat, lon)."""
    return store.open_store(here / "final" / "final" / "berlin" / f"day+{SIM}+berlin_1979-2100.zarr.zip")


def test_eight_real_variables_in_two_stretches_of_years_have_products_within_their_bounds(
    here: Path, product: xr.Dataset
) -> None:
    years, days = np.unique(product["time"].dt.year, return_counts=True)
    assert years.tolist() == [*range(1979, 2015), *range(2065, 2101)] and set(days) == {365}
    assert product.sizes["lat"] == product.sizes["lon"] == 4
    for name in NAMES:
        assert product[name].notnull().all()
        low, high = LIMITS.get(name, (0, 2e5))
        assert low <= product[name].min() and product[name].max() <= high, name
    assert product["tasskew"].attrs["units"] == "1"
    checks = store.open_store(here / "final" / "checks" / "berlin" / f"{SIM}+berlin_checks.zarr")
    assert "warnings" not in checks.attrs


def test_variables_that_tell_what_they_are_together_stay_so(product: xr.Dataset) -> None:
    """The day's range and its skewness make tasmin and tasmax: 0 <= skewness <= 1 keeps their order."""
    tas_less_tasmin = product["tasskew"] * product["tasrange"]
    assert (tas_less_tasmin >= 0).all() and (product["tasrange"] - tas_less_tasmin >= 0).all()


def series_of(here: Path, name: str) -> tuple[xr.DataArray, xr.DataArray]:
    """Reference and regridded simulation of two cells, without leap days, double precision."""
    reference = store.open_store(here / "final" / "reference" / "Berlin+land+noleap.zarr")
    path = here / "final" / "regridded" / f"day+{SIM}+land+regchunked.zarr.zip"
    simulation = store.open_store(path).convert_calendar("noleap")
    known, simulated = (ds[name].isel(loc=[2, 9]).load().astype("float64") for ds in (reference, simulation))
    return known, simulated


def by_xsdba(reference: xr.DataArray, simulation: xr.DataArray, historical: xr.DataArray, kind: str) -> xr.DataArray:
    """Return what xsdba makes of the second stretch."""
    group = xsdba.Grouper("time.dayofyear", 31)
    trained = xsdba.DetrendedQuantileMapping.train(reference, historical, group=group, nquantiles=50, kind=kind)
    detrend = xsdba.detrending.LoessDetrend(group=group, kind=kind, f=0.2, niter=1, d=0, weights="tricube")
    future = simulation.sel(time=slice(*STRETCHES[1]))
    return trained.adjust(future, detrend=detrend, interp="nearest", extrapolation="constant").transpose("loc", "time")


def product_at(product: xr.Dataset, cells: xr.DataArray) -> xr.DataArray:
    at = {name: cells[name].reset_coords(drop=True) for name in ("lat", "lon")}
    found = product[str(cells.name)].sel(at)
    return found.transpose("loc", "time").load()


def test_the_first_stretch_has_the_distribution_of_the_reference(here: Path, product: xr.Dataset) -> None:
    """Of each variable, also where the simulation's own is another."""
    far = []
    for name in NAMES:
        reference, simulation = series_of(here, name)
        adjusted = product_at(product, reference)
        known, before, after = (
            np.quantile(da.sel(time=slice(*STRETCHES[0])), [0.1, 0.5, 0.9], axis=1)
            for da in (reference.transpose("loc", "time"), simulation.transpose("loc", "time"), adjusted)
        )
        spread = known[2] - known[0]
        assert abs(after - known).max() < 0.02 * spread.min(), name
        far += [name] if abs(before - known).max() > 0.1 * spread.min() else []
    assert len(far) >= 3


# Its kernels are compared with xsdba in less time, on the same data, in `methods/test_bounded.py`.
@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_humidity_of_the_second_stretch_is_xsdbas_through_the_logit(here: Path, product: xr.Dataset) -> None:
    reference, simulation = series_of(here, "hurs")
    assert simulation.max() > 103
    to = {"lower_bound": "-1 %", "upper_bound": "101 %", "trans": "logit"}

    def unbounded(da: xr.DataArray) -> xr.DataArray:
        inside = da.astype("float32").clip(0, 100).assign_attrs(da.attrs)
        return xsdba.processing.to_additive_space(inside, **to).astype("float64")

    known, series = unbounded(reference), unbounded(simulation)
    made = by_xsdba(known, series, series.sel(time=slice(*STRETCHES[0])), "+")
    expected = xsdba.processing.from_additive_space(made, **to, units="%").clip(0, 100)
    off = np.abs(product_at(product, reference).sel(time=made.time).values - expected.values) > 1e-2
    assert off.mean() < 1e-3


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_precipitation_of_the_second_stretch_is_distributed_as_xsdbas(here: Path, product: xr.Dataset) -> None:
    """Random draws differ: distributions are compared."""
    reference, simulation = series_of(here, "pr")
    thresh = f"{0.01 / 86400!r} kg m-2 s-1"
    historical = simulation.sel(time=slice(*STRETCHES[0]))
    dry = {"thresh": f"{1 / 86400!r} kg m-2 s-1", "group": xsdba.Grouper("time.dayofyear", 31)}
    noisy = [xsdba.processing.jitter_under_thresh(one, thresh) for one in (reference, historical)]
    adapted, _, _ = xsdba.processing.adapt_freq(*noisy, **dry)
    expected = by_xsdba(noisy[0], simulation, adapted, "*")
    found = product_at(product, reference).sel(time=expected.time)
    ours, theirs = (da.values * 86400 for da in (found, expected))
    np.testing.assert_allclose(ours.mean(1), theirs.mean(1), rtol=0.005)
    np.testing.assert_allclose((ours >= 1).mean(1), (theirs >= 1).mean(1), atol=0.005)
    high = [np.quantile(one, [0.95, 0.99], axis=1) for one in (ours, theirs)]
    np.testing.assert_allclose(high[0], high[1], rtol=0.01)


def test_the_years_between_the_stretches_are_refused_where_they_are_wanted(tmp_path: Path) -> None:
    content = configuration(tmp_path, {"pr": {}})
    content["custom"]["sim_period"] = ["1979", "2100"]
    configure(tmp_path, content)
    told = r"files cover 59\.\d% of 1979-2100 .*give `custom\.sim_period: \[\[1979, 2014\], \[2065, 2100\]\]`"
    with pytest.raises(CatalogError, match=told):
        _ = context().simulations


def test_a_variable_of_some_days_and_one_on_another_grid_are_refused_by_file(tmp_path: Path) -> None:
    content = configuration(tmp_path, {"pr": {}, "prsnratio": {}, "tas": {}}, variables={"prsnratio": {"kind": "+"}})
    configure(tmp_path, content)
    with pytest.raises(DataError) as caught:
        work(tasks.RefInputCheck())
    grid = rf"grids (fail): tas, {DATA}/tas_obs-hist_coarse_1979-2014.nc: latitudes or longitudes are not those of"
    days = f"too_few_days (fail): prsnratio, {DATA}/prsnratio_obs-hist_fine_1979-2014.nc"
    assert grid in str(caught.value) and days in str(caught.value)
    with pytest.raises(DataError, match=r"too_few_days \(fail\): prsnratio, .*_sim-hist_coarse"):
        work(tasks.InputCheck(sim_id=SIM))


def test_the_command_s_catalogue_of_a_folder_of_links_finds_the_same_files(tmp_path: Path) -> None:
    for source, pattern in ((SIM, "*_sim-*.nc"), ("Berlin", "*_obs-*.nc")):
        (tmp_path / source).mkdir()
        for path in DATA.glob(pattern):
            (tmp_path / source / path.name).symlink_to(path)
        make_catalog(tmp_path / source, tmp_path / f"{source}.json", source)
    content = configuration(tmp_path, {"hurs": {}, "sfcWind": {}})
    for kind in ("reference", "simulation"):
        catalogues = [str(tmp_path / f"{source}.json") for source in (SIM, "Berlin")]
        content["extraction"][kind]["search_data_catalogs"]["data_catalogs"] = catalogues
    configure(tmp_path, content)
    found = context().simulations[SIM]
    assert [Path(asset.path).resolve().name for asset in found.assets] == [
        f"{name}_{part}.nc"
        for name in ("hurs", "sfcWind")
        for part in ("sim-hist_coarse_1979-2014", "sim-fut_coarse_2065-2100")
    ]
