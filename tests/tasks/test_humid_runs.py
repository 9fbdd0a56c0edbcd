"""The example of five variables from the command that writes it to products, report, files and an explained value."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import dask
import numpy as np
import pytest
import xarray as xr
from complete_demo import work
from demo_runs import use
from given_commands import espo
from luigi.configuration import get_config

from espo_luigi import store, tasks
from espo_luigi.tasks.context import forget
from espo_luigi.tasks.export import every_export
from espo_luigi.tasks.publish import publish

pytestmark = pytest.mark.production
SIM = "CMIP6_ScenarioMIP_ESPO-DEMO_Demo-Humid_ssp585_r1i1p1f1_global"
VARIABLES = ("tas", "pr", "hurs", "sfcWind", "rsds")
KNOWN = slice("1991", "2020")


class Made(NamedTuple):
    """The folder of a finished run."""

    folder: Path

    def opened(self, *parts: str) -> xr.Dataset:
        """The single store of the run's products whose path fits."""
        (path,) = (self.folder / "espo-demo-humid" / "final").glob("/".join(parts))
        return store.open_store(path)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """A run whose rules work in this process, and two variables of its products as NetCDF files."""
    folder = tmp_path_factory.mktemp("humid")
    assert espo(folder, "init", "wet", "--from", "demo-humid").returncode == 0
    before = {name: dict(get_config().items(name, raw=True)) for name in get_config().sections()}
    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="threads", num_workers=2):
        patch.chdir(folder / "wet")
        use([Path("config.yml"), Path("paths.yml")], Path("espo-demo-humid"))
        get_config().set("espo", "report", "true")
        work(tasks.All())
        publish()
        work(*(task for task in every_export(Path("netcdf"), "espo-g6")._exports if task.var in ("hurs", "tdps")))
    yield Made(folder / "wet")
    get_config().clear()
    get_config().read_dict(before)
    forget()


@pytest.fixture(scope="module")
def product(made: Made) -> xr.Dataset:
    return made.opened("final", "humid", f"day+{SIM}+humid_1991-2050.zarr.zip")


def test_values_are_within_their_bounds_on_all_land_and_nowhere_else(made: Made, product: xr.Dataset) -> None:
    raw = made.opened("regridded", f"day+{SIM}+all+regchunked.zarr.zip")
    assert raw["hurs"].max() > 103, "the simulation has nothing to bound"
    bounds = {"hurs": (0, 100), "pr": (0, 0.01), "sfcWind": (0, 50), "rsds": (0, 500), "tas": (220, 315)}
    for name, (low, high) in bounds.items():
        land = np.isfinite(product[name].values)
        assert (land == land[0]).all() and land[0].sum() == 57
        assert low <= product[name].min() and product[name].max() <= high


def test_the_calibration_period_has_the_reference_s_distribution(made: Made, product: xr.Dataset) -> None:
    """Where the raw simulation is far from it."""
    reference = made.opened("reference", "Demo-Wet+all+noleap.zarr")
    raw = made.opened("regridded", f"day+{SIM}+all+regchunked.zarr.zip").sel(time=KNOWN)
    cells = {name: xr.DataArray(reference[name].values, dims="loc") for name in ("lat", "lon")}
    adjusted = product.sel(time=KNOWN).sel(cells)
    for name in VARIABLES:
        known, before, after = (np.quantile(ds[name], [0.1, 0.5, 0.9]) for ds in (reference, raw, adjusted))
        spread = known[2] - known[0]
        assert abs(after - known).max() < 0.02 * spread < abs(before - known).max(), name


def test_the_dew_point_is_xclims_of_the_adjusted_temperature_and_humidity(product: xr.Dataset) -> None:
    from xclim.indices import dewpoint_from_specific_humidity, specific_humidity

    few = product[["tas", "hurs", "tdps"]].isel(time=slice(None, None, 500)).load()
    pressure = xr.full_like(few["tas"], 1e5).assign_attrs(units="Pa")
    huss = specific_humidity(few["tas"], few["hurs"], pressure)
    expected = dewpoint_from_specific_humidity(huss, pressure, method="buck81")
    np.testing.assert_allclose(few["tdps"], expected, atol=0.25)
    assert (few["tdps"] <= few["tas"] + 1e-3).where(few["tas"].notnull(), True).all()


def test_checks_report_and_catalogue_know_the_variables(made: Made) -> None:
    final = made.folder / "espo-demo-humid" / "final"
    checks = made.opened("checks", "humid", f"{SIM}+humid_checks.zarr")
    assert "warnings" not in checks.attrs
    page = (final / "report" / "report.html").read_text()
    assert "0 failed" in page or "Nothing failed" in page
    for name in VARIABLES:
        assert name in page
    assert (final / "ro-crate-metadata.json").exists()
    rows = (made.folder / "espo-demo-humid" / "project-catalog.csv").read_text()
    assert SIM in rows


def test_a_humidity_is_explained_step_by_step_and_files_are_exported(made: Made) -> None:
    found = espo(made.folder, "explain", SIM, "47.125", "-66.625", "2040-07-14", "hurs", "--json")
    assert found.returncode == 0, found.stderr
    way = json.loads(found.stdout)
    assert 0 < way["adjusted"]["hurs"]["steps"][-1]["value"] < 100
    files = {path.name.split("_")[0]: path for path in (made.folder / "netcdf").rglob("*.nc")}
    assert set(files) == {"hurs", "tdps"}
    with xr.open_dataset(files["hurs"]) as ds:
        assert ds["hurs"].attrs["standard_name"] == "relative_humidity" and ds["hurs"].attrs["units"] == "%"
        assert ds.attrs["institution"] == "ESPO-DEMO"


@pytest.mark.long
def test_jobs_make_the_same_product(product: xr.Dataset, tmp_path: Path) -> None:
    assert espo(tmp_path, "init", "wet", "--from", "demo-humid").returncode == 0
    command = [str(Path(sys.executable).parent / "luigi"), "--module", "espo_luigi.tasks", "All", "--local-scheduler"]
    done = subprocess.run(command, cwd=tmp_path / "wet", capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    theirs = Made(tmp_path / "wet").opened("final", "humid", f"day+{SIM}+humid_1991-2050.zarr.zip")
    for name in product.data_vars:
        np.testing.assert_array_equal(theirs[name], product[name])
