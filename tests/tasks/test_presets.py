"""A reference in an archive's layout, catalogued with `--as`, is checked and cut as the same data in CMIP's layout."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from complete_demo import edit
from demo_runs import of_years

from espo_luigi import tasks
from espo_luigi.commands import cli
from espo_luigi.science.attributes import INSERTED_DAYS
from espo_luigi.tasks.context import context, forget

Configure = Callable[..., list[Path]]
YEARS = ("1991", "1992")


def reference_in_celsius(raw: Path) -> xr.Dataset:
    """The small demo's reference: temperatures in °C, precipitation in mm a day, in single precision."""
    files = sorted(raw.rglob("*Demo-Land*.nc"))
    ds = xr.merge([xr.open_dataset(file) for file in files], compat="override")[["tasmax", "tasmin", "pr"]].load()
    ds = ds.sel(time=slice(*YEARS)).drop_encoding().drop_attrs()
    return (ds - xr.Dataset({"tasmax": 273.15, "tasmin": 273.15})).assign(pr=ds["pr"] * 86400).astype("float32")


def write(ds: xr.Dataset, path: Path, name: str, held: str, units: str, time: str = "time") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = ds[[name]].rename({name: held})
    data[held].attrs["units"] = units
    data.rename({"time": time} if time != "time" else {}).to_netcdf(path)


def as_e_obs(ds: xr.Dataset, folder: Path) -> None:
    named = ds.rename(lat="latitude", lon="longitude")
    for name, held, units in (("tasmax", "tx", "Celsius"), ("tasmin", "tn", "Celsius"), ("pr", "rr", "mm")):
        write(named, folder / f"{held}_ens_mean_0.25deg_reg_v31.0e.nc", name, held, units)


def as_gridmet(ds: xr.Dataset, folder: Path) -> None:
    kelvin = ds.assign(tasmax=ds["tasmax"] + np.float32(273.15), tasmin=ds["tasmin"] + np.float32(273.15))
    for year, of_year in kelvin.groupby("time.year"):
        for name, file, held, units in (
            ("tasmax", "tmmx", "air_temperature", "K"),
            ("tasmin", "tmmn", "air_temperature", "K"),
            ("pr", "pr", "precipitation_amount", "mm"),
        ):
            write(of_year.transpose("time", "lat", "lon"), folder / f"{file}_{year}.nc", name, held, units, "day")


def as_daymet(ds: xr.Dataset, folder: Path) -> None:
    for year, of_year in ds.groupby("time.year"):
        kept = of_year.isel(time=slice(365)).assign_coords(
            time=of_year["time"][:365].dt.floor("D") + np.timedelta64(12, "h")
        )
        for name, held, units in (
            ("tasmax", "tmax", "degrees C"),
            ("tasmin", "tmin", "degrees C"),
            ("pr", "prcp", "mm/day"),
        ):
            write(kept, folder / f"daymet_v4_daily_na_{held}_{year}.nc", name, held, units)


@pytest.fixture()
def plain(configured: Configure) -> tuple[xr.Dataset, Path]:
    """What `RefDefault` makes of the demo's own reference, and the configuration's file."""
    files = configured(**of_years(1991, 2000, 1991, 1992))
    return tasks.RefDefault(piece="north").compute([])["reference"].load(), files[0]


@pytest.mark.parametrize(
    ("preset", "source", "layout"),
    [("e-obs", "E-OBS", as_e_obs), ("gridmet", "gridMET", as_gridmet), ("daymet", "Daymet", as_daymet)],
)
def test_a_reference_of_an_archive_gives_the_values_of_the_same_data(
    preset: str,
    source: str,
    layout: Callable[[xr.Dataset, Path], None],
    plain: tuple[xr.Dataset, Path],
    demo_raw: Path,
    tmp_path: Path,
) -> None:
    expected, config = plain
    layout(reference_in_celsius(demo_raw), tmp_path / "archive")
    assert cli.main(["catalog", str(tmp_path / "archive"), "--out", str(tmp_path / "ref.json"), "--as", preset]) == 0

    def change(content: dict) -> None:  # type: ignore[type-arg]
        search = content["extraction"]["reference"]["search_data_catalogs"]
        search |= {"data_catalogs": [str(tmp_path / "ref.json")], "other_search_criteria": {"source": source}}
        content["extraction"]["ref_source"] = source

    edit(config, change)
    edit(config.with_name("paths.yml"), lambda content: content["extraction"].pop("reference"))
    forget()
    assert tasks.RefInputCheck().problems() == []
    made = tasks.RefDefault(piece="north").compute([])["reference"].load()
    last = expected["time"].dt.strftime("%Y-%m-%d") == "1992-12-31"
    for name in ("tasmax", "tasmin", "pr"):
        kept = {"rtol": 1e-5, "atol": 1e-10}
        if preset == "daymet":
            xr.testing.assert_allclose(made[name].where(~last), expected[name].where(~last), **kept)
            how = context().config.table[name].filling
            before = made[name].isel(time=-2, drop=True)
            filled = xr.zeros_like(before) if how == "zero" else before
            xr.testing.assert_equal(made[name].isel(time=-1, drop=True), filled)
        else:
            xr.testing.assert_allclose(made[name], expected[name], **kept)
    assert made.attrs.get(INSERTED_DAYS) == ("1992-12-31" if preset == "daymet" else None)


def test_a_catalogue_made_with_another_preset_makes_the_reference_stale(
    plain: tuple[xr.Dataset, Path], demo_raw: Path, tmp_path: Path
) -> None:
    from espo_luigi.catalog import Catalog, make_catalog
    from espo_luigi.catalog.presets import load_preset
    from espo_luigi.tasks.staleness import _of_files

    as_e_obs(reference_in_celsius(demo_raw), tmp_path / "archive")
    matches = []
    for preset in (load_preset("e-obs"), load_preset("e-obs").model_copy(update={"units": {"pr": "cm d-1"}})):
        make_catalog(tmp_path / "archive", tmp_path / "ref.json", preset=preset)
        (match,) = Catalog.from_files([tmp_path / "ref.json"]).search(variables_and_freqs={"pr": "D"}).values()
        matches.append(match)
    assert len({_of_files(match) for match in matches}) == 2
