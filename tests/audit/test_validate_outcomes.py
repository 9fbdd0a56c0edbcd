"""`espo validate` of indicators, statistics of them, regions and the reference: each planted defect is named."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from exported_products import SIM, publish
from luigi.configuration import LuigiConfigParser
from test_validate import OTHER, archive, failed, found, product

from espo_luigi import store
from espo_luigi.audit.integrity import strays
from espo_luigi.audit.outcomes import comparable, differences, out_of_order
from espo_luigi.audit.validate import CHECKS, Validation, render
from espo_luigi.replacing import write_manifest
from espo_luigi.science.outcomes.indicators import load_indicators
from espo_luigi.science.stack import stack_drop_nans

Plant = Callable[[Path], object]
YEARLY = {"cat:domain": "", "cat:xrfreq": "YS-JAN", "cat:frequency": "yr"}
TABLE, NETCDF = "ensembles/all+regions.csv", "ensembles/all+regions.nc"
ENSEMBLE, REFERENCE = "ensembles/all+ensemble.zarr", "reference/Land+default.zarr"
CLIMATOLOGY = "indicators/climatology.zarr"


@pytest.fixture(autouse=True)
def without_configuration(own_settings: LuigiConfigParser, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is given where no luigi.cfg is; test_validate has tests with compliance-checker."""
    own_settings.set("espo", "config", "")
    monkeypatch.setitem(CHECKS, "cf", ("not looked at", lambda seen: ()))


def yearly(ds: xr.Dataset) -> xr.Dataset:
    return ds[["tasmax"]].resample(time="YS").mean(keep_attrs=True).assign_attrs(YEARLY).rename(tasmax="tx_mean")


def statistics_of(members: list[xr.Dataset]) -> xr.Dataset:
    values = np.stack([member["tx_mean"].values for member in members])
    like = members[0]["tx_mean"]
    made = {f"tx_mean_p{share}": like.copy(data=np.percentile(values, share, axis=0)) for share in (10, 50, 90)}
    made |= {"tx_mean_min": like.copy(data=values.min(0)), "tx_mean_max": like.copy(data=values.max(0))}
    attrs = {"cat:processing_level": "ensemble-indicators", "ensemble_members": f"{SIM}; {OTHER}", "cat:id": "all"}
    return xr.Dataset(made, attrs=YEARLY | attrs)


def write_regions(folder: Path, ds: xr.Dataset) -> None:
    marker = store.Marker("Regions", created="2026-01-01T00:00:00+00:00")
    of_town = ds.isel(lat=[2], lon=3).rename(lat="region").assign_coords(region=["town"])
    of_town.assign_attrs(espo_luigi_marker=marker.id).to_netcdf(folder / NETCDF, engine="h5netcdf")
    names = ["time", "region", "value", "variable", "units"]
    rows = [
        {"time": str(one["time"].values), "region": "town", "value": repr(one.item()), "variable": var, "units": "K"}
        for var, da in of_town.items()
        for one in da[:, 0].astype(float)
    ]
    store.write_table(names, rows, folder / TABLE, marker, beside=[folder / NETCDF])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Days of two simulations and of the reference, indicators, their percentiles, and those of a region."""
    folder, members = tmp_path_factory.mktemp("outcomes"), []
    for sim_id in (SIM, OTHER):
        days = product(sim_id)
        # Of one seed: else the members would be the same.
        days["tasmax"], days["tasmin"] = (days[var] + 3 * (sim_id == OTHER) for var in ("tasmax", "tasmin"))
        for var in ("tasmax", "tasmin"):
            days[var].attrs = product(sim_id)[var].attrs
        days["pr"] = days["tasmax"].copy(data=(days["tasmax"] - 249) * 1e-6).assign_attrs(units="kg m-2 s-1")
        days["pr"].attrs |= {"standard_name": "precipitation_flux", "cell_methods": "time: mean"}
        publish(days, archive(folder, sim_id))
        members.append(yearly(days).assign_attrs({"cat:processing_level": "indicators"}))
        publish(members[-1], folder / f"indicators/{sim_id}+indicators.zarr.zip", "Indicators", sim_id=sim_id)
    of_reference = {"cat:id": "Land", "cat:type": "reconstruction", "cat:processing_level": "extracted"}
    publish(stack_drop_nans(days.assign_attrs(of_reference)), folder / REFERENCE, "RefDefault")
    store.write_store(statistics_of(members), folder / ENSEMBLE, store.Marker("Ensemble"), summed=True)
    of_years = members[0].assign_attrs({"cat:processing_level": "climatology"})
    store.write_store(of_years, folder / CLIMATOLOGY, store.Marker("Climatology"), summed=True)
    write_regions(folder, statistics_of(members))
    return folder


def remade(path: Path, change: Callable[[xr.Dataset], xr.Dataset], **how: bool) -> None:
    """Change a store or archive as whoever writes it anew: all of its checksums are right."""
    marker, ds = store.read_marker(path), store.open_store(path).load()
    assert marker is not None
    folder = path.with_suffix("") if path.suffix == ".zip" else path
    store.write_store(change(ds.drop_encoding()), folder, marker, **how)
    if path.suffix == ".zip":
        store.pack(folder, path, marker)
        store.remove(folder)


def of_each(change: Callable[[xr.Dataset], xr.Dataset]) -> Plant:
    return lambda final: [remade(archive(final, sim_id), change) for sim_id in (SIM, OTHER)]


def with_units(var: str, units: str) -> Callable[[xr.Dataset], xr.Dataset]:
    return lambda ds: ds.assign({var: ds[var].assign_attrs(units=units)})


def exchanged(ds: xr.Dataset) -> xr.Dataset:
    return ds.assign(tx_mean_p10=ds["tx_mean_p90"], tx_mean_p90=ds["tx_mean_p10"])


def a_byte_of(path: str, place: int = -40) -> Plant:
    def plant(final: Path) -> None:
        content = bytearray((final / path).read_bytes())
        content[place] ^= 1
        (final / path).write_bytes(content)

    return plant


def replaced(path: str, old: str, new: str, number: int = 1) -> Plant:
    def plant(final: Path) -> None:
        text = (final / path).read_text()
        assert old in text and len(old) == len(new)
        (final / path).write_text(text.replace(old, new, number))

    return plant


def names_exchanged(final: Path) -> None:
    """The chunks of two variables in each other's folders: each chunk's checksum is right."""
    low, high = (final / ENSEMBLE / f"tx_mean_{share}" / "c" for share in ("p10", "p90"))
    aside = low.rename(final / "aside")
    high.rename(low)
    aside.rename(high)


def a_value_of_the_table(final: Path) -> None:
    text = (final / TABLE).read_text()
    value = text.splitlines()[1].split(",")[2]
    (final / TABLE).write_text(text.replace(value, f"{float(value) + 1!r}", 1))


def a_file_in_an_archive(final: Path) -> None:
    with zipfile.ZipFile(archive(final, SIM), "a") as packed:
        packed.writestr("notes.txt", "mine")


def nothing_more(final: Path) -> None:
    """The defect of another check shows here, too."""


def write(path: str) -> Plant:
    def plant(final: Path) -> None:
        (final / path).parent.mkdir(exist_ok=True)
        (final / path).write_text("mine")

    return plant


def twice(ds: xr.Dataset) -> xr.Dataset:
    return ds.isel(time=[0, 1, 1, 2])


def on(path: str, change: Callable[[xr.Dataset], xr.Dataset], **how: bool) -> Plant:
    return lambda final: remade(final / path, change, **how)


OTHER_INDICATORS = f"indicators/{OTHER}+indicators.zarr.zip"
INDICATORS = f"indicators/{SIM}+indicators.zarr.zip"
SUM = "has the SHA-256 .*; its espo.json has"


def test_sound_outcomes_pass_and_what_was_not_compared_is_told(final: Path) -> None:
    (final / "README.md").write_text("Of these products.")
    checks = {check.name: check for check in found(final).checks}
    assert {name for name, check in checks.items() if check.verdict != "passed"} == {"flags", "audit"}
    told = render(Validation(2, list(checks.values()), None, ()))
    left_out = {name for name, check in checks.items() if check.verdict == "passed" and check.details}
    assert left_out == {"times", "cells", "variables", "outcomes"} and "every file is whole" in told
    assert "no indicators of scenarios" in told
    assert not any(sentence in told for sentence in ("every day is there", "a sample is what", "indicators are those"))


PLANTED: dict[str, dict[str, list[tuple[Plant, str]]]] = {
    "as the disk or people may do it": {
        "checksums": [
            (a_byte_of(f"{ENSEMBLE}/tx_mean_p50/c/0/0/0"), f"ensemble.zarr {SUM}"),
            (a_byte_of(f"{REFERENCE}/tasmax/c/0/0"), "default.zarr: cannot be read: .*checksum"),
            (a_value_of_the_table, "regions.csv has the SHA-256 .*; all.regions.csv.espo.json has"),
            (a_byte_of(NETCDF), "regions.nc has the SHA-256 .*; all.regions.csv.espo.json has"),
            (a_file_in_an_archive, "notes.txt is there twice, or belongs to none of its arrays"),
            (write(f"{CLIMATOLOGY}/notes.txt"), "climatology.zarr was changed after .*: got 10 files .*, expected 9"),
            (write("stray.nc"), "stray: cannot be read"),
        ],
        "files": [
            (write("notes.txt"), "notes.txt belongs to no product"),
            (write("reference/script.py"), "script.py belongs to no product"),
            (write("ensembles/mine.csv"), "mine.csv belongs to no product"),
        ],
        "outcomes": [(nothing_more, "ensemble.zarr: cannot be read: .*checksum")],
        "magnitudes": [(nothing_more, "checksum")],
    },
    "in metadata": {
        "checksums": [
            (replaced(f"{ENSEMBLE}/zarr.json", "ensemble-indicators", "ensemble-indicatorz"), f"ensemble.zarr {SUM}"),
            (replaced(f"{CLIMATOLOGY}/tx_mean/zarr.json", '"K"', '"J"'), f"climatology.zarr {SUM}"),
            (replaced(f"{REFERENCE}/tasmin/zarr.json", '"K"', '"J"'), "metadata of tasmin differ from"),
            (replaced(TABLE, ",K", ",J"), "regions.csv has the SHA-256 .*; all.regions.csv.espo.json has"),
            (lambda final: (final / NETCDF).unlink(), "regions.nc is gone, and all.regions.csv.espo.json is there"),
        ],
        "catalogue": [(nothing_more, "its row has another processing_level")],
    },
    "with all checksums right": {
        "magnitudes": [
            (
                of_each(with_units("pr", "mm d-1")),
                "pr has a mean of .* mm d-1 .*, the reference 2.*are the units right",
            ),
        ],
        "outcomes": [
            (on(ENSEMBLE, exchanged, summed=True), "ensemble.zarr: tx_mean_p10 is above tx_mean_p50 in .* values"),
            (on(CLIMATOLOGY, twice, summed=True), "climatology.zarr: time has 2002-01-01 00:00:00 twice"),
            (on(INDICATORS, twice), f"{SIM}.indicators.zarr.zip: time has 2002-01-01 00:00:00 twice"),
            (on(OTHER_INDICATORS, lambda ds: ds.isel(time=[0, 2, 1])), f"{OTHER}.*: times are not in order"),
        ],
        "catalogue": [(nothing_more, f"{OTHER}.indicators.zarr.zip: its row has another date_end")],
    },
    "of content alone": {
        "checksums": [(names_exchanged, f"ensemble.zarr {SUM}")],
        "outcomes": [(nothing_more, "tx_mean_p10 is above tx_mean_p50 in .* values")],
        "magnitudes": [(on(REFERENCE, lambda ds: ds.assign(pr=ds["pr"] / 24)), "expected at most a factor of 3")],
    },
}


@pytest.mark.parametrize("kind", PLANTED)
def test_every_planted_defect_is_named(kind: str, final: Path) -> None:
    for plant in dict.fromkeys(plant for of in PLANTED[kind].values() for plant, _ in of):
        plant(final)
    problems = failed(final)
    assert problems.keys() == PLANTED[kind].keys(), json.dumps(problems, indent=1)
    for name, planted in PLANTED[kind].items():
        for _, said in planted:
            assert any(re.search(said, problem) for problem in problems[name]), (said, problems[name])


def test_amounts_that_hardly_fall_may_have_any_ratio(final: Path) -> None:
    of_each(lambda ds: ds.assign(pr=ds["pr"] * 0.02))(final)
    on(REFERENCE, lambda ds: ds.assign(pr=ds["pr"] * 0.004))(final)
    assert "magnitudes" not in failed(final), "of at most 0.1 mm d-1"
    of_each(lambda ds: ds.assign(pr=ds["pr"] * 10))(final)
    assert "magnitudes" in failed(final)


def test_files_of_a_page_are_those_of_its_list(tmp_path: Path) -> None:
    page = tmp_path / "report" / "report-figures"
    page.mkdir(parents=True)
    (page / "a.png").write_bytes(b"")
    (page.parent / "report-improvement.csv").write_text("share")
    write_manifest(page, "espo report", {"report-improvement.csv": []})
    store.write_table(["problem"], [], tmp_path / "checks" / "complete.csv", store.Marker("InputCheck"))
    store.write_table(["problem"], [], tmp_path / "checks" / "incomplete.csv", None)
    assert list(strays(tmp_path, ())) == []
    (page / "b.png").write_bytes(b"")
    assert list(strays(tmp_path, ())) == [f"{page / 'b.png'} belongs to no product: move it elsewhere"]


def test_days_of_the_year_are_in_order_over_the_turn_of_the_year() -> None:
    def days(low: float, high: float) -> list[str]:
        day = {"is_dayofyear": 1}
        made = {"first_p10": ("x", [low], day), "first_p90": ("x", [high], day)}
        return list(out_of_order(xr.Dataset(made, attrs={"ensemble_members": "a; b"})))

    assert days(350, 12) == [] and days(12, 350) == ["first_p10 is above first_p90 in 1 values"]


def test_indicators_with_latitudes_are_computed_again_without_the_winter_before() -> None:
    from xclim.indicators import atmos

    time = xr.date_range("2000-01-01", "2001-12-31", calendar="noleap", use_cftime=True)
    warm = 280 + 15 * np.sin(2 * np.pi * (np.arange(time.size) - 100) / 365)
    series = xr.DataArray(warm[:, None] + [0.0, 2.0, 5.0], {"time": time}, ("time", "cell"), attrs={"units": "K"})
    days = xr.Dataset({"tas": series, "tasmax": series + 4, "tasmin": series - 4}).assign_coords(
        lat=("cell", [45.0, 46.0, 47.0], {"units": "degrees_north", "standard_name": "latitude"}),
        lon=("cell", [0.0, 1.0, 2.0]),
    )
    for name in days.data_vars:
        days[name].attrs = {"units": "K", "standard_name": "air_temperature"}
    # By xclim of a grid whose rows are the cells.
    grid = days.drop_vars("lon").swap_dims(cell="lat")
    kept = atmos.huglin_index(ds=grid, freq="YS").rename(lat="cell").drop_vars("cell").assign_coords(days["lon"].coords)
    ds = kept.to_dataset().assign_attrs({"cat:xrfreq": "YS-JAN"})
    asked = [("huglin", atmos.huglin_index)]
    assert list(differences(ds, days, asked, [("2000", "2001")])) == []
    (told,) = differences(ds + 1, days, asked, [("2000", "2001")])
    assert "is different in 6 of 6 values" in told


def test_what_needs_a_base_period_or_a_daily_index_is_not_compared() -> None:
    names = ("fd", "tx90p"), ("spi3",), ("wet_bulb_max",)
    asked = [
        pair
        for module, chosen in zip(("etccdi", "drought", "heat"), names, strict=True)
        for pair in load_indicators(module)
        if pair[0] in chosen
    ]
    attrs = {"tx90p": {"base_period": "1991-2020"}, "spi3": {"calibration_period": "1991-2020"}}
    ds = xr.Dataset(
        {name: ("time", [1.0], attrs.get(name, {})) for name in ("fd", "tx90p", "spi3", "wet_bulb_max", "x")}
    )
    compared, ours = comparable(ds, asked)
    assert {*compared} == {"fd", "x"} and [name for name, _ in ours] == ["fd"] and len(asked) == 4
