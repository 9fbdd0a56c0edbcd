"""The page "For a city": its commands, on the small demo in the layouts of E-OBS and CMIP6, make a plan and a run."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import netCDF4
import pytest
import xarray as xr
from archives import as_e_obs, reference_in_celsius
from page_commands import blocks_of

from espo_luigi import config
from espo_luigi.commands import cli

PAGE = Path(__file__).parents[2] / "docs" / "start" / "for-a-city.md"
INDICATORS = ["txx", "su", "id", "tnn", "fd", "tr", "prcptot", "rx1day", "rx5day", "cdd"]
BOX = "45.0,45.75,-67,-65.5"


def lines() -> list[str]:
    """The page's commands, with the small demo's place in that of Lyon's."""
    (block,) = blocks_of(PAGE)
    return re.sub(r"--box \S+", f"--box {BOX}", block.text).strip().splitlines()


@pytest.fixture()
def city(tmp_path: Path, demo_raw: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the page's first commands write."""
    data = tmp_path / "data"
    as_e_obs(reference_in_celsius(demo_raw), data / "E-OBS")
    shutil.copytree(demo_raw / "simulation", data / "CMIP6", copy_function=os.link)
    for path in [*(data / "CMIP6").rglob("*_ssp585_*.nc")]:
        other = Path(str(path).replace("ssp585", "ssp245"))
        other.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, other)
        with netCDF4.Dataset(other, "a") as file:
            file.experiment_id = "ssp245"
    monkeypatch.chdir(tmp_path)
    for line in lines()[:3]:
        assert cli.main(line.replace("/data", str(data)).split()[1:]) == 0
    return tmp_path / lines()[3].split()[1]


def given(folder: Path, command: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command.split(), cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_page_s_commands_make_a_configuration_and_a_plan(city: Path) -> None:
    loaded = config.load(city / "config.yml")
    assert (loaded.custom.ref_period, loaded.custom.sim_period) == (("1991", "2020"), ("1991", "2100"))
    assert [*loaded.biasadjust.adjusted] == ["tasmax", "dtr", "pr"]
    assert loaded.reference_source == "E-OBS" and loaded.project and loaded.project.name == city.name
    plan = given(city, lines()[4])
    assert re.search(r"^InputCheck +- +4 ", plan, re.MULTILINE) and "0 blocked" in plan, plan
    assert "WARNING" not in plan, plan
    assert all(f"`{name}`" in PAGE.read_text() for name in INDICATORS)


@pytest.mark.long
def test_the_page_s_run_has_ten_indicators_of_two_experiments_at_the_point(city: Path) -> None:
    given(city, lines()[5])
    for experiment in ("ssp245", "ssp585"):
        (table,) = (city / "products" / "ensembles" / "box" / "scenario" / experiment).rglob("*+delta+regions.csv")
        with table.open() as file:
            rows = [row for row in csv.DictReader(file) if row["region"] == "point" and row["statistic"] == "mean"]
        assert {row["indicator"] for row in rows} == {*INDICATORS}
        assert all(row["value"] for row in rows)
    (reference,) = (city / "products" / "indicators" / "box" / "reference").rglob("*indicators.zarr")
    assert {*xr.open_zarr(reference).data_vars} >= {*INDICATORS}


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--box", "46,45,4,5", "expected S,N,W,E"),
        ("--variables", "tasmax,tasmn", "did you mean tasmin?"),
        ("--experiments", "spp585", "did you mean ssp585?"),
        ("--reference", "none.json", "none.json does not exist"),
    ],
)
def test_what_the_catalogues_lack_is_told_with_the_nearest(
    option: str, value: str, told: str, tmp_path: Path, demo_raw: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"--box": BOX, "--reference": str(demo_raw / "reconstruction.json"), "--experiments": "ssp585"}
    asked |= {"--simulations": str(demo_raw / "simulation.json"), option: value}
    folder = tmp_path / "city"
    assert cli.main(["init", str(folder), *(word for pair in asked.items() for word in pair)]) == 1
    assert told in capsys.readouterr().err and not folder.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--box", BOX, "--reference", "none.json", "--from", "demo"),
        ("--box", BOX),
        ("--from", "demo", "--import", "."),
        *((option, "any") for option in ("--reference", "--simulations", "--experiments", "--variables")),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init", str(tmp_path / "city"), *words]) == 2
    told = capsys.readouterr().err
    assert "expected" in told and words[-2] in told and not (tmp_path / "city").exists()
