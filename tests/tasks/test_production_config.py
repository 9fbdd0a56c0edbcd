"""The production configuration, unedited but for a small region and other data, runs on this machine."""

import re
from collections import Counter
from pathlib import Path

import pytest
import yaml
from complete_demo import DAY360
from demo_runs import use

import espo_luigi
from espo_luigi import store, tasks

G6 = Path(__file__).parent.parent.parent / "config" / "espo-g6"
BANDS = {"south": [45.0, 46.0], "middle": [46.0, 47.0], "north": [47.0, 48.0]}
WIDE = {"lon_bnds": [-67.0, -64.5]}


@pytest.fixture()
def small(tmp_path: Path, demo_raw: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A third file, merged over the production files."""
    for name, folder in {"ESPO_OUTPUT": "final", "ESPO_SCRATCH": "work"}.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("ESPO_CATALOGS", str(demo_raw))
    domain = {"lat_bnds": [45.8, 46.8], "lon_bnds": [-66.5, -65.0]}
    changes = {
        "custom": {
            "regions": {name: WIDE | {"lat_bnds": bounds} for name, bounds in BANDS.items()},
            "amno_region": WIDE | {"lat_bnds": [45.0, 48.0]},
        },
        "extraction": {
            "reference": {"search_data_catalogs": {"other_search_criteria": {"source": "Demo-Land"}}},
            "simulation": {"search_data_catalogs": {"other_search_criteria": {"source": ["Demo-360Day"]}}},
        },
        "off-diag": {"domains": dict.fromkeys(("Haudenosaunee", "Ute", "Dene", "Magtogoek"), domain)},
    }
    (tmp_path / "small.yml").write_text(yaml.safe_dump(changes, sort_keys=False))
    use([G6 / "config.yml", G6 / "paths.yml", tmp_path / "small.yml"], tmp_path)
    return tmp_path


def test_a_small_region_is_regridded_and_trained_with_the_production_values(
    small: Path, log: pytest.LogCaptureFixture
) -> None:
    summary = espo_luigi.build([tasks.Train(pool=DAY360, piece="south", var="pr")])
    assert summary.succeeded, log.text
    assert re.search(r"A job on this machine gets at most .* ask for more, and get at most that: .*\bTrain\b", log.text)
    training = store.open_store(tasks.Train(pool=DAY360, piece="south", var="pr").out_training().path)
    assert dict(training.sizes) == {"loc": 37, "dayofyear": 360, "quantiles": 50}
    assert {"af", "hist_q", "scaling", "pth", "dP0"} <= set(training.data_vars)


def test_its_default_target_asks_for_the_products_of_each_region_and_domain(small: Path) -> None:
    off_diag = ("OffDiagRefProp", "OffDiagSimPropMeas", "OffDiagScenPropMeas", "DiagMeasuresImprovement")
    families = Counter(task.get_task_family() for task in tasks.All().requires())
    assert families == {"HealthChecks": 1, "Move": len(BANDS), **dict.fromkeys(off_diag, 4)}
