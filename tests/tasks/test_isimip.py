"""Real data of ten variables, as ISIMIP's example has them: catalogued by hand, in two stretches of years, to products.

The files have the dimensions longitude, latitude, time, latitudes from north to south, no global attributes, and no
names of CMIP6.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from complete_demo import in_order
from demo_runs import use

DATA = Path(__file__).parents[3] / "shared" / "data" / "isimip-berlin"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs {DATA}, which is not there")

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


def work(*ends: Any) -> None:
    """Do the work of tasks and of all that they need, in this process."""
    for end in ends:
        for task in in_order(end):
            if not task.complete():
                with task.guarded():
                    task.work()
