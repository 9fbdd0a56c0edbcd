"""The page "Your domain and reference": its commands and files, on invented data of two days, make a plan."""

import os
import re
import runpy
import subprocess
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import yaml

from espo_luigi.config import load
from espo_luigi.errors import ConfigurationError

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "set-up" / "domain.md").read_text()
VARIABLES = {"tasmax": ("K", 285.0), "tasmin": ("K", 275.0), "pr": ("kg m-2 s-1", 1e-5)}
# The catalogue's dates: the files have two days.
LAST = {"1991": "2020", "1950": "2014", "2015": "2100"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def write(
    path: Path, name: str, lats: np.ndarray, lons: np.ndarray, first: str, attrs: dict[str, str] | None = None
) -> None:
    """Write two days of a variable, without values where the reference has sea: east of 20 degrees."""
    units, value = VARIABLES[name]
    time = xr.date_range(f"{first}-01-01", periods=2, calendar="noleap", use_cftime=True)
    values = np.where(lons > 20, np.nan, np.full((2, lats.size, lons.size), value)).astype("float32")
    coords = {
        "time": time,
        "lat": ("lat", lats, {"units": "degrees_north"}),
        "lon": ("lon", lons, {"units": "degrees_east"}),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    xr.DataArray(values, coords, ("time", "lat", "lon"), name, {"units": units}).to_dataset().assign_attrs(
        attrs or {}
    ).to_netcdf(path)


@pytest.fixture()
def data(tmp_path: Path) -> Path:
    """A reference of 0.1 degree around the Alps, and CanESM5, as /data of the page."""
    lats, lons = np.round(np.arange(42, 50.01, 0.1), 1), np.round(np.arange(3, 19.01, 0.1), 1)
    attrs = {"mip_era": "CMIP6", "institution_id": "CCCma", "source_id": "CanESM5", "variant_label": "r1i1p1f1"}
    globe = np.arange(-88.75, 90, 2.5), np.arange(0, 360, 2.8125)
    for name in VARIABLES:
        write(tmp_path / f"data/MyRef/{name}.nc", name, lats, lons, "1991")
        for experiment, activity, first in (("historical", "CMIP", "1950"), ("ssp585", "ScenarioMIP", "2015")):
            more = {"experiment_id": experiment, "activity_id": activity, "table_id": "day", **attrs}
            write(tmp_path / f"data/CMIP6/{name}_{experiment}.nc", name, *globe, first, more)
    return tmp_path / "data"


def given(folder: Path, commands: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture()
def alps(tmp_path: Path, data: Path) -> Path:
    """The folder that the page's first two steps make."""
    given(tmp_path, blocks("sh")[0].replace("/data", str(data)))
    folder = tmp_path / "alps"
    dated(folder)
    (folder / "alps.yml").write_text(blocks("yaml")[0])
    (line,) = [line for line in blocks("ini")[0].splitlines() if line.startswith("config")]
    text, changed = re.subn("^config = .*", line, (folder / "luigi.cfg").read_text(), flags=re.MULTILINE)
    assert changed == 1
    (folder / "luigi.cfg").write_text(text)
    return folder


def dated(folder: Path) -> None:
    """Let the catalogues say that the files of two days have all years."""
    for path in folder.glob("*.csv"):
        path.write_text(
            re.sub(r"(\d{4})-01-02 00:00", lambda day: f"{LAST[day[1]]}-12-31 00:00", path.read_text()),
        )


def land(folder: Path) -> int:
    """How many land cells the run in `folder` finds."""
    count = "from espo_luigi.tasks.context import context; print('cells', context().land_cells)"
    (cells,) = re.findall(r"^cells (\d+)$", given(folder, f'python -c "{count}"'), re.MULTILINE)
    return int(cells)


def test_the_page_s_files_make_a_plan_of_two_regions_without_a_warning(alps: Path) -> None:
    plan = given(alps, blocks("sh")[1].splitlines()[0])
    assert re.search(r"^RefDefault +- +2 ", plan, re.MULTILINE), plan
    assert "0 blocked" in plan and "WARNING" not in plan, plan
    assert land(alps) == 7260 and "7260" in PAGE


def test_the_page_s_mask_leaves_out_cells(alps: Path, data: Path) -> None:
    grid = xr.open_dataset(data / "MyRef" / "pr.nc")
    mask = xr.where((grid.lat > 46) & (grid.lon > 0), 1.0, 0.0).transpose("lat", "lon").rename("mask")
    mask.to_dataset().to_netcdf(data / "MyRef" / "mask.nc")
    (alps / "reference.csv").unlink()  # `dated` has changed it, and what people have changed is not replaced
    given(alps, f"espo catalog {data}/MyRef --out reference.json --source MyRef")
    dated(alps)
    (mask_yml,) = (text for text in blocks("yaml") if "mask: fx" in text)
    (alps / "mask.yml").write_text(mask_yml)
    settings = (alps / "luigi.cfg").read_text()
    (alps / "luigi.cfg").write_text(settings.replace("config.yml alps.yml", "config.yml alps.yml mask.yml"))
    assert land(alps) == 121 * 29


@pytest.mark.parametrize(
    ("box", "bound", "told"),
    [
        ("lat1_b: 50", "lat1_b: 48.5", r"intermediate_grids.reg2.*0.45 degrees in the north would be extrapolated"),
        ("lat1_b: 52", "lat1_b: 49", r"intermediate_grids.reg1.*a cell more of the next grid, reg2"),
        ("[42.95, 48.95], tile", "[42.95, 48], tile", "does not cover `custom.regions.north`"),
        ("[45.95, 48.95]", "[46.05, 48.95]", "leave a gap"),
    ],
)
def test_a_box_of_the_page_that_is_too_small_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, box: str, bound: str, told: str
) -> None:
    """`espo plan` refuses it by the same function."""
    text = blocks("yaml")[0]
    assert text.count(box) == 1
    (tmp_path / "alps.yml").write_text(text.replace(box, bound))
    monkeypatch.chdir(DOCS.parent / "config" / "espo-g6")
    with pytest.raises(ConfigurationError, match=told):
        load(["config.yml", tmp_path / "alps.yml"])


def test_a_single_variable_is_adjusted_as_the_page_on_variables_says(tmp_path: Path) -> None:
    page = (DOCS / "set-up" / "variables.md").read_text()
    (given_file,) = re.findall(r"^```yaml\n(base.*?)^```", page, re.DOTALL | re.MULTILINE)
    searched, adjusted = re.findall(r"\{.*null\}", given_file)
    for_searches, for_variables = re.findall(r"`(\{.*?null\})`", page)
    for_tasmax = given_file.replace(searched, for_searches).replace(adjusted, for_variables)
    for base in ("espo-g6", "demo"):
        folder = tmp_path / base
        given(tmp_path, f"espo init {base} --from {base}")
        for variable, text in (("pr", given_file), ("tasmax", for_tasmax)):
            (folder / "one.yml").write_text(text)
            config = load([folder / "one.yml", DOCS.parent / "config" / "demo" / "paths.yml"])
            assert list(config.biasadjust.adjusted) == list(config.extraction.simulation.series) == [variable]
            assert config.off_diag is None and config.diagnostics is None


def test_the_other_examples_of_the_page_on_methods_are_taken_over_production_s_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ibicus", reason="needs the package ibicus: pip install -e '.[test]'")
    page = (DOCS / "set-up" / "methods.md").read_text()
    found = [textwrap.dedent(text) for text in re.findall(r"^ *```yaml\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)]
    monkeypatch.chdir(DOCS.parent / "config" / "espo-g6")
    quantile_delta, group, part, debiaser = found[:4]
    # What is given of the group stands where the group stands.
    only = group.split("    joint:")[0] + textwrap.indent(part, "    ")
    methods = []
    for text in (quantile_delta, group, only, debiaser):
        (tmp_path / "example.yml").write_text(text)
        (name,) = (name for name, how in yaml.safe_load(text)["biasadjust"]["variables"].items() if how)
        chosen = load(["config.yml", "../demo/paths.yml", tmp_path / "example.yml"]).biasadjust.variables[name]
        methods.append((name, chosen.name))
    assert methods == [("pr", "QuantileDeltaMapping"), *[("joint", "MBCn")] * 2, ("pr", "ibicus.ISIMIP")]


def test_the_examples_of_the_page_on_variables_are_taken_together(tmp_path: Path) -> None:
    page = (DOCS / "set-up" / "variables.md").read_text()
    searched, _, own = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    given(tmp_path, "espo init wet --from demo-humid")
    for number, text in enumerate((searched, own)):
        (tmp_path / "wet" / f"{number}.yml").write_text(text)
    config = load([tmp_path / "wet" / name for name in ("config.yml", "paths.yml", "0.yml", "1.yml")])
    assert config.table["tasskew"].transformation == "logit" and config.table["hurs"].raw == (-1, 120)


def test_the_figure_is_what_its_program_makes_of_the_page() -> None:
    made = runpy.run_path(str(DOCS / "make_domain.py"))
    assert (DOCS / "set-up" / "domain.svg").read_text() == made["drawing"](), "run `python docs/make_domain.py`"
    boxes = [box for _, box, _ in made["nested"](yaml.safe_load(blocks("yaml")[0]))]
    for ((w, e), (s, n)), ((west, east), (south, north)) in pairwise(boxes[:4]):
        assert w < west and e > east and s < south and n > north
