"""Indicators, climatologies, changes and ensembles for others: in the catalogue, STAC and the crate, as NetCDF."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest
import test_outcomes
import xarray as xr
from complete_demo import DAY360, NOLEAP
from test_outcomes import LAST, MODULE, REGIONS, made, publish_inputs, table_of_warming, work

from espo_luigi import tasks
from espo_luigi.commands import cli
from espo_luigi.publication.origin import listed

FACETS = {"cat:mip_era": "CMIP6", "cat:activity": "ScenarioMIP", "cat:experiment": "ssp585", "cat:type": "simulation"}
OF_ALL = {"cat:domain": "NAM", "cat:frequency": "day", "cat:xrfreq": "D", "cat:processing_level": "final"}
NAMES = {
    "noleap": {"cat:id": NOLEAP, "cat:source": "Demo-NoLeap"},
    "360_day": {"cat:id": DAY360, "cat:source": "Demo-360Day"},
}
REFERENCE = {"cat:id": "Demo-Land_NAM", "cat:source": "Demo-Land", "cat:type": "reconstruction"}
THREE = {**MODULE, "indicators": {name: MODULE["indicators"][name] for name in ("tx_mean", "prcptot", "tn_mean")}}
WHOLE = {"dataset": "scenario", "experiment": "ssp585", "product": "delta"}


@pytest.fixture()
def outcomes(tmp_path: Path, configured: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of products of a production whose indicators, changes and ensembles are complete."""
    series = test_outcomes.days

    def described(calendar: str, warmer: float, last: int = LAST) -> xr.Dataset:
        own = FACETS | NAMES[calendar] if calendar in NAMES else REFERENCE
        return series(calendar, warmer, last).assign_attrs(OF_ALL | own)

    monkeypatch.setattr(test_outcomes, "days", described)
    monkeypatch.setattr(test_outcomes, "MODULE", THREE)
    levels = {"wl": [0.5, 1.0, 5.0], "tas_src": table_of_warming(tmp_path)}
    made(tmp_path, configured, warming_levels=levels, ensembles={}, spatial_mean={"regions": REGIONS})
    publish_inputs()
    work([tasks.Ensemble(**WHOLE, freq=freq) for freq in ("YS-JAN", "QS-DEC")])
    at_levels = {**WHOLE, "experiment": "all", "product": "warming_levels", "freq": "YS-JAN"}
    work(
        [tasks.Regions(**WHOLE, freq="YS-JAN"), tasks.Ensemble(**at_levels), tasks.ReferenceClimatology(freq="QS-DEC")]
    )
    return tmp_path / "final"


def test_outcomes_are_published(outcomes: Path) -> None:
    assert cli.main(["publish"]) == 0
    assert cli.main(["publish", "--stac"]) == 0
    have_rows_as_xscen_describes_them(outcomes)
    have_items_with_years_and_inputs(outcomes)
    are_in_the_crate_with_tables_and_netcdf_of_regions(outcomes)


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
    assert len(items) == 2 + 2 * 2 * 3 + 1 + 3
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
    assert sum("delta" in id for id in inputs) == 2 and len(inputs) == 4
