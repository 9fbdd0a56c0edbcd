"""The attributes that training and scenario get from the configuration and from the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from demo_runs import use, write_config

from espo_luigi import tasks
from espo_luigi.science import biasadjust

WILDCARDS = {"sim_id": "SIM", "region": "south", "var": "tasmax"}
ORIGIN = {"cat:xrfreq": "D", "cat:domain": "south", "cat:id": "SIM"}


def make_regchunked() -> xr.Dataset:
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
            {"bias_adjust_institution": "Ouranos", "bias_adjust_project": "ESPO-G6"},
            {"cat:bias_adjust_institution": "Ouranos", "cat:bias_adjust_project": "ESPO-G6"},
        ),
        ({"bias_adjust_institution": "Ouranos", "bias_adjust_project": ""}, {"cat:bias_adjust_institution": "Ouranos"}),
        ({}, {}),
    ],
)
def test_who_adjusted_is_a_global_attribute_if_it_is_configured(
    adjusting: dict[str, str], expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, **adjusting)
    monkeypatch.setattr(biasadjust, "adjust", lambda simulation, training, **kwargs: simulation)
    regchunked = make_regchunked()
    out = tasks.Adjust(**WILDCARDS).compute(xr.Dataset(), regchunked)
    common = ORIGIN | {"title": "t", "cat:processing_level": "biasadjusted", "cat:variable": "tasmax"}
    assert out.attrs == common | expected
    assert out.tasmax.attrs == {"units": "K"}
    assert regchunked.attrs["cat:processing_level"] == "regridded", "the input is not changed"


def test_a_training_says_what_it_is_and_where_its_simulation_comes_from(tmp_path: Path) -> None:
    configure(tmp_path)
    regchunked = make_regchunked().chunk()  # lazy: no number is needed
    out = tasks.Train(**WILDCARDS).compute(regchunked, regchunked, regchunked)
    assert {name: value for name, value in out.attrs.items() if name.startswith("cat:")} == ORIGIN | {
        "cat:processing_level": "training_tasmax"
    }
