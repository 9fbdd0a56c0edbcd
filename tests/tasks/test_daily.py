"""Days of hourly files, as production has them, from the catalogue to the reference's and the simulation's series."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml
from complete_demo import work
from demo_runs import use
from hourly_files import cdo, since_midnight, weather, write_months
from luigi.configuration import get_config

from espo_luigi import store, tasks
from espo_luigi.audit.cells import extracted
from espo_luigi.catalog import Catalog
from espo_luigi.catalog.build import make_catalog
from espo_luigi.errors import CatalogError, StoreError
from espo_luigi.overview.plan import plan_of
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.context import context, forget
from espo_luigi.tasks.cost import Basis, Experience

BOX = {"lon_bnds": [-71.0, -66.6], "lat_bnds": [45.0, 47.2]}
VARIABLES = {"tasmax": "D", "tas": "D", "pr": "D"}
LOST = np.datetime64("1999-03-05T07")


def configure(folder: Path, simulation: dict[str, object] | None = None, **reference: object) -> None:
    def search(name: str, **more: object) -> dict[str, object]:
        catalogues = {"data_catalogs": [str(folder / f"{name}.json")], "variables_and_freqs": VARIABLES}
        found = {**catalogues, "allow_resampling": True, "other_search_criteria": {"source": name}}
        return {"search_data_catalogs": found, **more}

    years = ["1999", "2000"]
    content = {
        "paths": {"final": str(folder / "final"), "tmpdir": str(folder / "work")},
        "custom": {
            "regions": {"land": BOX},
            "working_chunks": {"loc": 5},
            "final_chunks": {"lat": 3, "lon": 3},
            "ref_period": years,
            "sim_period": years,
        },
        "domain": {"name": "box", **BOX},
        "extraction": {
            "ref_source": "Land",
            "reference": search("Land", **{"accumulation": "since_midnight", **reference}),
            "simulation": search("Model", accumulation={"pr": "over_step"}, **(simulation or {})),
            "on_input_problem": {"mislabelled_units": "warn"},
        },
        "regrid": {"regrid_dataset": {"regridder_kwargs": {"extrap_method": "inverse_dist"}}},
        "biasadjust": {"variables": {"tasmax": {}, "tas": {}, "pr": {}}},
    }
    (folder / "config.yml").write_text(yaml.safe_dump(content, sort_keys=False))
    use([folder / "config.yml"], folder)


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
    """A folder with two years of hours, a leap year among them, of which one is lost; and the catalogues."""
    folder = tmp_path_factory.mktemp("hourly")
    land = since_midnight(weather("1999-01-01", "2001-01-02T23"))
    write_months(land.sel(valid_time=land["valid_time"] != LOST), folder / "land")
    model = weather("1999-01-01", "2001-01-02T23", np.arange(43.0, 51, 2), np.arange(284.0, 300, 2.5))
    write_months(model, folder / "model", "%Y")
    for name in ("Land", "Model"):
        make_catalog(folder / name.lower(), folder / f"{name}.json", source=name)
    configure(folder)
    return folder


def by_cdo(here: Path, tmp_path: Path, of: str, name: str, *words: str) -> xr.Dataset:
    months = sorted((here / of).glob(f"{name}_*.nc"))
    ds = cdo(*words, paths=months, out=tmp_path / "cdo.nc").rename(valid_time="time", latitude="lat", longitude="lon")
    return ds[name].sel(time=slice("1999-01-01", "2000-12-31"))


@pytest.fixture(scope="module")
def reference(here: Path) -> xr.Dataset:
    work(tasks.RefDefault(piece="land"))
    return store.open_store(tasks.RefDefault(piece="land").out_reference().path)


def of_cells(wanted: xr.DataArray, like: xr.Dataset) -> np.ndarray:
    return wanted.sel(lat=like["lat"], lon=like["lon"]).transpose(*like["tas"].dims).values


def test_the_reference_of_hours_is_that_of_cdo(here: Path, tmp_path: Path, reference: xr.Dataset) -> None:
    assert reference["tas"].sizes["time"] == 731
    tasmax = by_cdo(here, tmp_path, "land", "tas", "-daymax")
    np.testing.assert_array_equal(reference["tasmax"], of_cells(tasmax, reference))
    tas = by_cdo(here, tmp_path, "land", "tas", "-daymean")
    np.testing.assert_allclose(reference["tas"], of_cells(tas, reference), rtol=1e-6)
    pr = by_cdo(here, tmp_path, "land", "pr", "-shifttime,-1day", "-selhour,0")
    np.testing.assert_allclose(reference["pr"], of_cells(pr, reference) / 86.4, rtol=1e-6)
    grid = store.open_store(tasks.RefDefault(piece="land").out_grid().path)
    assert int(grid["land"].sum()) == reference.sizes["loc"] == context().land_cells == 16


def test_the_simulation_of_hours_is_that_of_cdo(here: Path, tmp_path: Path) -> None:
    work(tasks.Extract(sim_id="Model"))
    made = store.open_store(tasks.Extract(sim_id="Model").out_extracted().path)
    for name, words, factor in (("tas", ["-daymean"], 1), ("pr", ["-daysum", "-shifttime,-30minute"], 1 / 86.4)):
        wanted = by_cdo(here, tmp_path, "model", name, *words) * factor
        np.testing.assert_allclose(made[name], of_cells(wanted, made), rtol=2e-6)
    assert made.attrs["cat:frequency"] == "day"
    assert {name: made[name].attrs["cell_methods"][6:] for name in VARIABLES} == {
        "tasmax": "maximum",
        "tas": "mean",
        "pr": "mean",
    }


def test_the_store_of_days_has_the_domain_with_a_margin_and_is_temporary(here: Path, reference: xr.Dataset) -> None:
    task = tasks.RefDaily()
    daily = store.open_store(task.out_daily().path)
    assert (daily.sizes["lat"], daily.sizes["lon"]) == (7, 8)
    assert daily["tas"].sel(time="1999-03-05").notnull()[0, 0].all()
    assert task.temporary_paths() == [task.out_daily().path]


def test_a_plan_knows_the_rules_and_what_they_cost(here: Path) -> None:
    assert {"Daily", "RefDaily"} <= {task.rule for task in plan_of((), Selection()).tasks.values()}
    for task in (tasks.Daily(sim_id="Model"), tasks.RefDaily()):
        assert Experience([]).expected(task, task.allocation).basis == Basis.TABLE


def test_another_zone_and_other_units_make_days_stale(here: Path, reference: xr.Dataset) -> None:
    task = tasks.RefDefault(piece="land")
    assert not task.stale()
    try:
        configure(here, day="UTC-05:00")
        assert tasks.RefDaily().stale() == ["extraction.reference.day"]
        assert "extraction.reference.day" in tasks.RefDefault(piece="land").stale()
        assert not tasks.Daily(sim_id="Model").stale()
        configure(here, units={"pr": "mm d-1"})
        assert tasks.RefDaily().stale() == ["extraction.reference.units"]
    finally:
        configure(here)


def test_its_units_make_a_simulations_days_stale(here: Path) -> None:
    if not tasks.Daily(sim_id="Model").complete():
        work(tasks.Daily(sim_id="Model"))
    try:
        configure(here, {"units": [{"id": "Model", "variable": "pr", "units": "mm d-1"}]})
        assert tasks.Daily(sim_id="Model").stale() == ["extraction.simulation.units.Model"]
        configure(here, {"units": [{"id": "Other", "variable": "pr", "units": "mm d-1"}]})
        assert not tasks.Daily(sim_id="Model").stale()
    finally:
        configure(here)


def test_a_cell_is_not_explained_of_hours_whose_days_are_gone(here: Path) -> None:
    task = tasks.Daily(sim_id="Model")
    store.remove(task.out_daily().path)
    with pytest.raises(StoreError, match="espo make"):
        extracted("Model")
    work(task)
    assert extracted("Model")["tas"].sizes["time"] == 731


def test_hours_are_only_taken_where_they_are_asked_for(here: Path) -> None:
    catalog = Catalog.from_files([here / "Land.json"])
    wanted = {"variables_and_freqs": {"tasmax": "D"}, "periods": ["1999", "2000"]}
    with pytest.raises(CatalogError, match="allow_resampling: true"):
        catalog.search(**wanted)
    (match,) = catalog.search(**wanted, allow_resampling=True).values()
    assert (match.variables, dict(match.hours)) == (("tasmax",), {"tasmax": "tas"})
    # The file of the hour after the last day is there, too.
    assert len(match.assets) == 25
