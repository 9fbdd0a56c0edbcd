"""The section `downscaling`: what it may say, and what is refused by its key before anything runs."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
import yaml

from espo_luigi.config import RunConfig
from espo_luigi.config.schema import fingerprint
from espo_luigi.errors import ConfigurationError

Load = Callable[..., RunConfig]


def with_section(load_with: Load, section: Any) -> RunConfig:
    return load_with(yaml.safe_dump({"downscaling": section}))


def test_without_the_section_the_configuration_is_the_same(load_with: Load) -> None:
    plain = load_with()
    assert plain.downscaling is None
    assert "downscaling" not in plain.model_dump(by_alias=True)
    assert with_section(load_with, None).hash == plain.hash


def test_a_variable_may_be_downscaled_otherwise(load_with: Load) -> None:
    section = {"grid": 1, "method": "QPLAD", "variables": {"tasmax": {"method": "MBCnSD", "arguments": {"step": 5}}}}
    config = with_section(load_with, section)
    assert config.downscaling is not None
    assert config.downscaling.of("pr").method == "QPLAD"
    assert config.downscaling.of("pr").given.arguments() == {"window": 31, "years": 21}
    assert config.downscaling.of("tasmax").given.arguments()["step"] == 5
    assert config.hash != with_section(load_with, {"grid": 1, "method": "BCSD"}).hash


@pytest.mark.parametrize(
    ("section", "key", "told"),
    [
        ({"method": "QPLAD"}, "downscaling.grid", "missing"),
        ({"grid": 1.0}, "downscaling.method", "missing"),
        ({"grid": 0.7, "method": "BCSD"}, "downscaling.grid", "180"),
        ({"grid": -1, "method": "BCSD"}, "downscaling.grid", "180"),
        ({"grid": "no_such_file.nc", "method": "BCSD"}, "downscaling.grid", "cannot be read"),
        ({"grid": True, "method": "BCSD"}, "downscaling.grid", "number"),
        ({"grid": 1, "method": "BCCA"}, "downscaling.method", "BCSD, MBCnSD, QPLAD"),
        ({"grid": 1, "method": "BCSD", "arguments": {"windows": 3}}, "downscaling.arguments.windows", "window"),
        ({"grid": 1, "method": "BCSD", "arguments": {"years": 3}}, "downscaling.arguments.years", "BCSD"),
        ({"grid": 1, "method": "QPLAD", "arguments": {"window": 0}}, "downscaling.arguments.window", "1"),
        ({"grid": 1, "method": "QPLAD", "arguments": {"window": 30}}, "downscaling.arguments.window", "odd"),
        ({"grid": 1, "method": "QPLAD", "arguments": {"years": 31}}, "downscaling.arguments.years", "30"),
        ({"grid": 1, "method": "QPLAD", "arguments": {"wet_day": "1 m"}}, "downscaling.arguments.wet_day", "K"),
        ({"grid": 1, "method": "MBCnSD", "arguments": {"window": 31}}, "downscaling.arguments.window", "iterations"),
        ({"grid": 1, "method": "BCSD", "least_share": 2}, "downscaling.least_share", "1"),
        ({"grid": 1, "method": "BCSD", "variables": {"pr": {"method": "QPLAD"}}}, "downscaling.variables.pr", "tasmax"),
        ({"grid": 1, "method": "BCSD", "window": 31}, "downscaling.window", "arguments"),
    ],
)
def test_wrong_settings_are_refused_by_key(load_with: Load, section: Any, key: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(key)) as refused:
        with_section(load_with, section)
    assert told in str(refused.value)


def test_a_pipe_instead_of_a_file_of_cells_is_refused(load_with: Load, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cells.nc")
    with pytest.raises(ConfigurationError, match=r"downscaling\.grid.*it is a pipe"):
        with_section(load_with, {"grid": str(tmp_path / "cells.nc"), "method": "BCSD"})


def test_no_region_has_the_name_of_a_coarse_grid(load_with: Load) -> None:
    assert with_section(load_with, {"grid": "model", "method": "BCSD"}).downscaling is not None
    regions = {"coarse-hills": {"name": "south", "lon_bnds": [-83.0, -60.0], "lat_bnds": [40.0, 49.0]}}
    content = {"downscaling": {"grid": 1, "method": "BCSD"}, "custom": {"regions": regions}}
    with pytest.raises(ConfigurationError, match=r"custom\.regions\.coarse-hills"):
        load_with(yaml.safe_dump(content))


def test_cells_of_a_file_are_part_of_the_configuration(load_with: Load, tmp_path: Path) -> None:
    cells = xr.Dataset(coords={"lat": [40.5, 41.5], "lon": [280.0, 282.0, 284.0]})
    cells.to_netcdf(tmp_path / "cells.nc")
    config = with_section(load_with, {"grid": str(tmp_path / "cells.nc"), "method": "BCSD"})
    assert config.downscaling is not None
    assert config.downscaling.grid == ((40.0, 41.0, 42.0), (279.0, 281.0, 283.0, 285.0))
    cells.assign_coords(lat=[40.5, 42.5]).to_netcdf(tmp_path / "others.nc")
    others = with_section(load_with, {"grid": str(tmp_path / "others.nc"), "method": "BCSD"})
    assert fingerprint(config, "downscaling.grid") != fingerprint(others, "downscaling.grid")


def test_differences_of_a_variable_of_ratios_are_refused(load_with: Load) -> None:
    pr = {
        "training_args": {"group": "time.dayofyear", "xclim_train_args": {"kind": "*", "nquantiles": 50}},
        "adjusting_args": {},
    }
    section = {"grid": 1, "method": "QPLAD", "variables": {"pr": {"method": "BCSD", "arguments": {"kind": "+"}}}}
    with pytest.raises(ConfigurationError, match=r"downscaling\.variables\.pr\.arguments\.kind"):
        load_with(yaml.safe_dump({"downscaling": section, "biasadjust": {"variables": {"pr": pr}}}))
