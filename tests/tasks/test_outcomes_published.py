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


def test_each_outcome_has_a_row_in_the_catalogue_as_xscen_describes_it(outcomes: Path) -> None:
    assert cli.main(["publish", "--catalog"]) == 0
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
