"""The attributes that training and scenario get from the configuration and from the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from demo_runs import of_years, use, write_config

from espo_luigi import tasks
from espo_luigi.methods import blocks
from espo_luigi.science.finalize import scenario as finalize
from espo_luigi.tasks.publish import _about

WILDCARDS = {"pool": "SIM", "piece": "south", "var": "tasmax"}
ADJUSTED = ("tasmax", "dtr", "pr")
ORIGIN = {"cat:xrfreq": "D", "cat:domain": "south", "cat:id": "SIM"}


def make_regridded() -> xr.Dataset:
    time = xr.date_range("1991-01-01", "2020-12-31", calendar="noleap", use_cftime=True)
    tasmax = 280 + np.random.default_rng(0).random((len(time), 1))
    return xr.Dataset(
        {"tasmax": (("time", "loc"), tasmax, {"units": "K"})},
        {"time": time, "lat": ("loc", [45.0]), "lon": ("loc", [-70.0])},
        ORIGIN | {"cat:processing_level": "regridded", "title": "t"},
    )


def configure(folder: Path, **adjusting: Any) -> None:
    use(write_config(folder, folder / "raw", biasadjust__variables__tasmax__adjusting_args=adjusting), folder)


@pytest.mark.parametrize(
    ("adjusting", "expected"),
    [
        (
            {"bias_adjust_institution": "MeteoX", "bias_adjust_project": "ESPO-demo"},
            {"cat:bias_adjust_institution": "MeteoX", "cat:bias_adjust_project": "ESPO-demo"},
        ),
        ({"bias_adjust_institution": "Ouranos", "bias_adjust_project": ""}, {"cat:bias_adjust_institution": "Ouranos"}),
        ({}, {}),
    ],
)
def test_the_adjusting_institution_is_a_global_attribute_if_configured(
    adjusting: dict[str, str], expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, **adjusting)
    monkeypatch.setattr(
        blocks, "adjust_and_count", lambda simulation, training, **kwargs: simulation.to_dataset(name="scenario")
    )
    regridded = make_regridded()
    out = tasks.Adjust(**WILDCARDS).compute([xr.Dataset()], [regridded], [])
    common = ORIGIN | {"title": "t", "cat:processing_level": "biasadjusted", "cat:variable": "tasmax"}
    assert out.attrs == common | expected
    assert out.tasmax.attrs == {"units": "K"}
    assert regridded.attrs["cat:processing_level"] == "regridded", "the input is not changed"


@pytest.mark.parametrize(
    ("row", "expected"), [({}, "0.0001 K"), ({"jitter": "0.01 K"}, "0.01 K"), ({"jitter": None}, None)]
)
def test_the_noise_of_a_simulated_range_is_the_table_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any], expected: str | None
) -> None:
    use(write_config(tmp_path, tmp_path / "raw", **({"variables": {"dtr": row}} if row else {})), tmp_path)
    given: dict[str, Any] = {}

    def adjusted(simulation: xr.DataArray, training: xr.Dataset, **kwargs: Any) -> xr.Dataset:
        given.update(kwargs)
        return simulation.to_dataset(name="scenario")

    monkeypatch.setattr(blocks, "adjust_and_count", adjusted)
    task = tasks.Adjust(**{**WILDCARDS, "var": "dtr"})
    task.compute([xr.Dataset()], [make_regridded().rename(tasmax="dtr")], [])
    assert (given.get("jitter_under") or {}).get("thresh") == expected


def test_a_copied_configuration_makes_products_that_name_its_own_reference_period_and_institution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "{project} {version} of {institution}: {reference}, {period}, {first}-{last}; {other}"
    changes = {
        "project": {"name": "ESPO-RDRS", "version": "0.1"},
        **of_years(1971, 2040, 1981, 2010),
        "extraction__reference__search_data_catalogs__other_search_criteria": {"source": "RDRS"},
        **{f"biasadjust__variables__{var}__adjusting_args__bias_adjust_institution": "MeteoX" for var in ADJUSTED},
        "clean_up__xscen_clean_up__add_attrs__global__said": said,
    }
    use(write_config(tmp_path, tmp_path / "raw", **changes), tmp_path)
    given: dict[str, Any] = {}
    monkeypatch.setattr(finalize, "finish", lambda adjusted, **keywords: given.update(keywords) or xr.Dataset())
    tasks.CleanUp(sim_id="SIM", piece="south").compute([make_regridded()], make_grid())
    added = given["treatment"].add_attrs
    attributes = added["global"]
    assert attributes["dataset"] == _about().name == "ESPO-RDRS v0.1"
    assert "the grid of RDRS and adjusted against it over 1981-2010 by" in " ".join(attributes["Notes"].split())
    assert attributes["said"] == "ESPO-RDRS 0.1 of MeteoX: RDRS, 1981-2010, 1971-2040; {other}"
    texts = " ".join(str(value) for of_one in added.values() for value in of_one.values())
    assert not [old for old in ("Demo", "1991", "2020", "1950", "2100", "ESPO-demo") if old in texts]


def make_grid() -> xr.Dataset:
    return xr.Dataset({"land": (("lat", "lon"), [[True]])}, {"lat": [45.0], "lon": [-70.0]})


def test_a_training_names_its_level_and_the_origin_of_its_simulation(tmp_path: Path) -> None:
    configure(tmp_path)
    regridded = make_regridded().chunk()  # lazy: no number is needed
    out = tasks.Train(**WILDCARDS).compute([regridded, regridded], [regridded])
    assert {name: value for name, value in out.attrs.items() if name.startswith("cat:")} == ORIGIN | {
        "cat:processing_level": "training_tasmax"
    }
