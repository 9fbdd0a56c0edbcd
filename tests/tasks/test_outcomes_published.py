"""Indicators, climatologies, changes and ensembles for others: in the catalogue, STAC and the crate, as NetCDF."""

import csv
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import test_outcomes
import xarray as xr
from checked_netcdf import problems_of
from complete_demo import DAY360, NOLEAP
from test_outcomes import LAST, MODULE, REGIONS, made, publish_inputs, table_of_warming, work

from espo_luigi import store, tasks
from espo_luigi.audit import sample, validate
from espo_luigi.commands import cli
from espo_luigi.errors import ParameterError
from espo_luigi.export.netcdf import from_cf_axes
from espo_luigi.publication.origin import listed
from espo_luigi.report import comparison
from espo_luigi.tasks.context import context
from espo_luigi.tasks.export import outcomes as outcomes_of

pytestmark = pytest.mark.production
FACETS = {"cat:mip_era": "CMIP6", "cat:activity": "ScenarioMIP", "cat:experiment": "ssp585", "cat:type": "simulation"}
OF_ALL = {"cat:domain": "NAM", "cat:frequency": "day", "cat:xrfreq": "D", "cat:processing_level": "final"}
NAMES = {
    "noleap": {"cat:id": NOLEAP, "cat:source": "Demo-NoLeap"},
    "360_day": {"cat:id": DAY360, "cat:source": "Demo-360Day"},
}
REFERENCE = {
    "cat:id": "Demo-Land_NAM",
    "cat:source": "Demo-Land",
    "cat:type": "reconstruction",
    "cat:processing_level": "extracted",
}
THREE = {**MODULE, "indicators": {name: MODULE["indicators"][name] for name in ("tx_mean", "prcptot", "tn_mean")}}
LEVELS = {"processing_levels": ["indicators", "delta", "warming_levels"]}
WHOLE = {"dataset": "scenario", "experiment": "ssp585", "product": "delta"}


@pytest.fixture()
def outcomes(tmp_path: Path, configured: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of products of a production whose indicators, changes and ensembles are complete."""
    series = test_outcomes.days

    def described(calendar: str, warmer: float, last: int = LAST) -> xr.Dataset:
        own = FACETS | NAMES[calendar] if calendar in NAMES else REFERENCE
        made = series(calendar, warmer, last).assign_attrs(OF_ALL | own)
        for name, standard, units in (("lat", "latitude", "degrees_north"), ("lon", "longitude", "degrees_east")):
            made[name].attrs.update(standard_name=standard, long_name=standard, units=units)
        return made

    monkeypatch.setattr(test_outcomes, "days", described)
    monkeypatch.setattr(test_outcomes, "MODULE", THREE)
    levels = {"wl": [0.5, 1.0, 5.0], "tas_src": table_of_warming(tmp_path)}
    made(
        tmp_path,
        configured,
        warming_levels=levels,
        ensembles=LEVELS,
        spatial_mean={"regions": REGIONS},
        validation={"sample": 4},
    )
    publish_inputs()
    work([tasks.Ensemble(**WHOLE, freq=freq) for freq in ("YS-JAN", "QS-DEC")])
    work([tasks.Ensemble(**{**WHOLE, "product": "indicators"}, freq="YS-JAN")])
    at_levels = {**WHOLE, "experiment": "all", "product": "warming_levels", "freq": "YS-JAN"}
    work(
        [tasks.Regions(**WHOLE, freq="YS-JAN"), tasks.Ensemble(**at_levels), tasks.ReferenceClimatology(freq="QS-DEC")]
    )
    return tmp_path / "final"


def test_outcomes_are_exported_and_published(
    outcomes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = outcomes.parent / "netcdf"
    are_compared_with_those_of_another_production(outcomes)
    are_netcdf_files_as_cf_asks_for(outcomes, out)
    are_exported_by_the_command_with_simulations(outcomes)
    assert cli.main(["publish"]) == 0
    assert cli.main(["publish", "--stac", "--exported", str(out)]) == 0
    have_rows_as_xscen_describes_them(outcomes)
    have_items_with_years_and_inputs(outcomes)
    are_in_the_crate_with_tables_and_netcdf_of_regions(outcomes)
    pass_the_validation(outcomes, out := outcomes.parent / "both", monkeypatch)
    next(out.rglob("*tasmin*.nc")).write_bytes(b"other")
    assert cli.main(["publish", "--stac", "--exported", str(out)]) == 1
    assert f"{out / 'RELEASE.json'} is of other files" in capsys.readouterr().err


def pass_the_validation(outcomes: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker of CF has looked at the exported files already."""
    monkeypatch.setitem(validate.CHECKS, "cf", ("looked at already", lambda seen: ()))
    (netcdf,) = outcomes.rglob("*regions.nc")
    checks = validate.validate(outcomes, lambda line: None).checks
    assert {check.name: check.details for check in checks if check.verdict == "failed"} == {}
    assert {check.name for check in checks if check.verdict == "not done"} == {"flags", "audit"}
    stores = [key for key, kept in outcomes_of(context()).items() if kept().path.exists()]
    work([tasks.ExportOutcome(outcome=key, drs="espo-g6", folder=str(out)) for key in stores[:6]])
    work([tasks.Export(sim_id=NOLEAP, var=var, drs="espo-g6", folder=str(out)) for var in ("tasmin", "tasmax")])
    exported = validate.validate(out, lambda line: None, version="1.0")
    assert [check.details for check in exported.checks if check.verdict == "failed"] == []
    assert exported.refused == () and exported.products == 2
    with h5py.File(netcdf, "r+") as file:
        file.attrs["espo_luigi_marker"] = "another"
    assert not tasks.Regions(**WHOLE, freq="YS-JAN").complete()
    defects_are_named(outcomes, netcdf, monkeypatch)


def defects_are_named(outcomes: Path, netcdf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Archives are packed again, with all checksums right: xclim tells that their values are not the products'."""

    def without(ds: xr.Dataset) -> xr.Dataset:
        ds["tx_mean"][:, 3, 4] = np.nan
        return ds

    def warmer(ds: xr.Dataset) -> xr.Dataset:
        ds["tn_mean"][5] += 0.01
        return ds

    planted: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], str]] = {
        f"{NOLEAP}*YS-JAN": (without, r"tx_mean is different in 40 of \d+ values: on 1991-01-01 at 45.875 °N -65.875 °E"
        r" it is nan, and 2\d\d\.\d+ by xclim of the product"),
        f"{DAY360}*YS-JAN": (lambda ds: ds.isel(time=[*range(9), *range(8, 40)]), "time has 1999-01-01 00:00:00 twice"),
        f"{NOLEAP}*QS-DEC": (warmer, r"tn_mean is different in 4 of \d+ values: on 1992-06-01 at "),
        f"{DAY360}*QS-DEC": (lambda ds: ds.isel(time=slice(4, None)), "tn_mean lacks 4 periods, the first 1991-03-01"),
    }  # fmt: skip
    for name, (change, _) in planted.items():
        (archive,) = outcomes.rglob(f"{name}+indicators.zarr.zip")
        marker, folder = store.read_marker(archive), archive.with_suffix("")
        assert marker is not None
        store.write_store(change(store.open_store(archive).load().drop_encoding()), folder, marker)
        store.pack(folder, archive, marker)
        store.remove(folder)
    checks = validate.validate(outcomes, lambda line: None).checks
    found = {check.name: check.details for check in checks if check.verdict == "failed" and check.name != "catalogue"}
    assert found.keys() == {"checksums", "outcomes"}
    (problem,) = found["checksums"]
    assert problem.startswith(f"{netcdf} has the SHA-256 ") and f"{netcdf.stem}.csv.espo.json has " in problem
    assert len(found["outcomes"]) == len(planted)
    for name, (_, said) in planted.items():
        assert any(re.search(f"{name.replace('*', '.*')}.*: {said}", line) for line in found["outcomes"]), found


def are_compared_with_those_of_another_production(outcomes: Path) -> None:
    for kind in ("indicators.zarr.zip", "climatology.zarr", "delta.zarr", "warming-levels.zarr"):
        one = next(outcomes.rglob(f"*NoLeap*YS-JAN+{kind}"))
        assert comparison.compare(one, one, lambda text: None)[0].is_equal
    outcomes = outcomes / "ensembles"
    other = Path(shutil.copytree(outcomes, outcomes.parents[1] / "other"))
    kinds = {name.split()[0].rpartition("+")[2] for name in comparison._products(other)}
    assert kinds == {"ensemble.zarr", "regions.nc"}
    (regions,) = other.rglob("*regions.nc")
    with h5py.File(regions, "r+") as file:
        file["tx_mean_clim_mean_delta_1991_2010"][0] += 1
    gone = next(other.rglob("*delta+ensemble.zarr"))
    shutil.rmtree(gone)
    found, maps = comparison.compare(outcomes, other, lambda text: None)
    assert {name.split()[0] for name in found.only_in_a} == {str(gone.relative_to(other))}
    assert {name.split()[0] for name in maps} == {str(regions.relative_to(other))}
    (rows,) = (rows for name, rows in found.differences.items() if name in maps)
    assert [(row.season, row.beyond_noise) for row in rows] == [("year", None)]
    comparison.write_page(found, maps, other / "page.html", outcomes, other)
    shutil.rmtree(other)


def have_rows_as_xscen_describes_them(outcomes: Path) -> None:
    with (outcomes.parent / "project-catalog.csv").open(newline="") as stream:
        rows = {(row["id"], row["processing_level"], row["xrfreq"]): row for row in csv.DictReader(stream)}
    columns = ("frequency", "domain", "experiment", "date_start", "date_end")
    found = {key: tuple(row[name][:10] for name in columns) for key, row in rows.items() if key[2] not in ("D", "fx")}
    # The frequencies of statistics are those of their series, as in rows of xscen's `update_from_ds`.
    in_years = ("yr", "NAM", "ssp585", "1991-01-01", "2030-12-31")
    in_seasons = ("qtr", *in_years[1:])
    for sim_id in (NOLEAP, DAY360):
        assert found.pop((sim_id, "indicators", "YS-JAN")) == (*in_years[:4], "2030-01-01")
        assert found.pop((sim_id, "indicators", "QS-DEC")) == ("qtr", "NAM", "ssp585", "1991-03-01", "2030-12-01")
        for level in ("climatology", "delta"):
            assert found.pop((sim_id, level, "YS-JAN")) == in_years
            assert found.pop((sim_id, level, "QS-DEC")) == in_seasons
    assert found.pop((NOLEAP, "warming-levels", "YS-JAN")) == ("yr", "NAM", "ssp585", "1994-01-01", "2025-12-31")
    assert found.pop((DAY360, "warming-levels", "YS-JAN")) == ("yr", "NAM", "ssp585", "", "")
    ensemble = "Demo-Land_NAM_ssp585"
    assert found.pop((ensemble, "ensemble-delta", "YS-JAN")) == in_years
    assert found.pop((ensemble, "ensemble-indicators", "YS-JAN")) == (*in_years[:4], "2030-01-01")
    assert found.pop((ensemble, "ensemble-delta", "QS-DEC")) == in_seasons
    levels = found.pop(("Demo-Land_NAM_all", "ensemble-warming-levels", "YS-JAN"))
    assert levels == ("yr", "NAM", "ssp585", "1994-01-01", "2025-12-31")
    reference = {
        level: found.pop(("Demo-Land_NAM", f"{level}_reference", "QS-DEC")) for level in ("indicators", "climatology")
    }
    assert reference["climatology"] == ("qtr", "NAM", "", "1991-01-01", "2020-12-31")
    assert not found and rows[ensemble, "ensemble-delta", "YS-JAN"]["type"] == "ensemble"
    assert "tx_mean_clim_mean_delta_1991_2010_p50" in rows[ensemble, "ensemble-delta", "YS-JAN"]["variable"]


def have_items_with_years_and_inputs(outcomes: Path) -> None:
    pystac = pytest.importorskip("pystac")
    from pystac.validation.stac_validator import JsonSchemaSTACValidator

    collection = pystac.Collection.from_file(str(outcomes / "stac" / "collection.json"))
    items = {item.id: item for item in collection.get_items()}
    for item in items.values():
        # The core alone: the schemas of extensions are on the network.
        JsonSchemaSTACValidator().validate_core(item.to_dict(), item.STAC_OBJECT_TYPE, "1.1.0")
        assert Path(item.assets["zarr"].get_absolute_href()).exists()
    # Two simulations: days, and of years and of seasons indicators, climatologies, changes; years at levels, ensembles.
    assert len(items) == 2 + 2 * 2 * 3 + 1 + 4
    exported = [id for id, item in items.items() if len(item.assets) == 2]
    assert len(exported) == 2 * 3 + 1 + 4 and "ssp585_NAM_scenario_YS-JAN_delta_ensemble" in exported
    ensemble = items["ssp585_NAM_scenario_YS-JAN_delta_ensemble"]
    period = ("start_datetime", "end_datetime")
    assert [ensemble.properties[key] for key in period] == ["1991-01-01T00:00:00Z", "2030-12-31T23:59:59Z"]
    assert ensemble.properties["cube:dimensions"]["horizon"] == {
        "type": "other",
        "values": ["1991-2010", "2001-2020", "2011-2030"],
    }
    needed = [link.get_absolute_href() for link in ensemble.get_links("derived_from")]
    levels = {items[Path(href).stem].properties["cat:processing_level"] for href in needed}
    assert levels == {"delta", "indicators"} and len(needed) == 4
    assert all(Path(href).is_file() for href in needed)
    seasons = items[f"{NOLEAP}_NAM_scenario_QS-DEC_indicators"]
    assert [seasons.properties[key] for key in period] == ["1991-03-01T00:00:00Z", "2031-02-28T23:59:59Z"]
    assert seasons.properties["cube:dimensions"]["time"]["step"] == "P3M"


def are_in_the_crate_with_tables_and_netcdf_of_regions(outcomes: Path) -> None:
    rocrate = pytest.importorskip("rocrate.rocrate")

    crate = rocrate.ROCrate(str(outcomes))
    made_by = {result.id: one for one in crate.root_dataset["mentions"] for result in listed(one["result"])}
    (table,) = [id for id in made_by if id.endswith("regions.csv")]
    netcdf = table.removesuffix("csv") + "nc"
    assert made_by[table] is made_by[netcdf] and crate.get(netcdf)["encodingFormat"] == "application/netcdf"
    inputs = [one.id for one in made_by[table]["object"] if one.type in ("Dataset", "File")]
    assert sum("climatology" in id for id in inputs) == 2 and len(inputs) == 4


def are_netcdf_files_as_cf_asks_for(outcomes: Path, out: Path) -> None:
    stores = {key: kept().path for key, kept in outcomes_of(context()).items() if NOLEAP in key or "ensembles" in key}
    stores = {key: path for key, path in stores.items() if path.exists()}
    work([tasks.ExportOutcome(outcome=key, drs="cordex-adjust", folder=str(out)) for key in stores])
    files = {key: (out / key).with_name(f"{Path(key).name}.nc") for key in stores}
    assert problems_of(list(files.values())) == "" and len(files) == 2 * 3 + 1 + 4
    for key, path in files.items():
        with xr.open_dataset(path) as found:
            kept = store.open_store(stores[key]).astype("float32")
            own = from_cf_axes(found.load()).drop_vars(["time_bnds", "crs"], errors="ignore")
            xr.testing.assert_allclose(own.drop_attrs(), kept.drop_attrs())
    with xr.open_dataset(next(path for path in files.values() if "QS-DEC+indicators" in path.name)) as seasons:
        assert seasons["tn_mean"].attrs["cell_methods"] == "time: mean"
        first, *_, last = seasons["time_bnds"].dt.strftime("%Y-%m-%d").values.tolist()
        assert (first, last) == (["1991-03-01", "1991-06-01"], ["2030-12-01", "2031-03-01"])
    ensemble = next(path for path in files.values() if "YS-JAN+delta+ensemble" in path.name)
    said = subprocess.run(["cdo", "-s", "showname", str(ensemble)], capture_output=True, text=True, check=True).stdout
    assert "tx_mean_clim_mean_delta_1991_2010_p50" in said
    with pytest.raises(ParameterError, match="outcome 'indicators/none' is not one of"):
        tasks.ExportOutcome(outcome="indicators/none", drs="cordex-adjust", folder=str(out)).check()


def are_exported_by_the_command_with_simulations(outcomes: Path) -> None:
    every = {key: tasks.Exports(drs="espo-g6", folder="elsewhere", sim_id=key) for key in ("", "NoLeap")}
    named = {key: [task.outcome for task in one.deps() if "outcome" in task.wildcards] for key, one in every.items()}
    assert len(named[""]) == len(set(named[""])) == len(outcomes_of(context()))
    # Of two frequencies, the scenario and the simulation before: indicators, climatology, changes, levels.
    assert len(named["NoLeap"]) == 2 * 2 * 4 and all(NOLEAP in key for key in named["NoLeap"])
    assert "indicators/NAM/reference/Demo-Land+NAM+QS-DEC+climatology" in named[""]
    assert cli.main(["export", "--plan", str(outcomes.parent / "elsewhere")]) == 0


def test_an_audit_tells_that_indicators_are_not_checked(
    tmp_path: Path,
    configured: Callable[..., list[Path]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        sample, "audit", lambda number, seed: sample.Audit([sample.Row(NOLEAP, "pr")], [], {}, [], 0, 1.0)
    )
    configured()
    assert cli.main(["explain", "--sample", "1"]) == 0 and "indicators" not in capsys.readouterr().out
    made(tmp_path, configured)
    assert cli.main(["explain", "--sample", "1"]) == 0
    assert "not checked: indicators" in capsys.readouterr().out
