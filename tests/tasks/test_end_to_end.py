"""The whole demo: every rule and both calendars; then second runs."""

import ast
import importlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import luigi
import numpy as np
import pytest
import site_outputs
import xarray as xr
import zarr
from checked_netcdf import assert_cdo_reads, problems_of
from complete_demo import DAY360, NOLEAP, in_order
from demo_runs import CONFIG, of_years, use, write_config
from given_commands import espo
from json_shapes import check_shape
from luigi.configuration import LuigiConfigParser, get_config
from page_commands import can_run, commands_of, filled, written_pages
from small_demo import SMALL_CONFIG

import espo_luigi
from espo_luigi import store, tasks
from espo_luigi.audit import cells, shown
from espo_luigi.audit.validate import CHECKS
from espo_luigi.audit.value import first_difference, way_of
from espo_luigi.commands import cli
from espo_luigi.driver.engines import close_engines, hold_folders
from espo_luigi.driver.graph import Graph
from espo_luigi.errors import DataError
from espo_luigi.export.folder import files_of
from espo_luigi.jobs.resources import Resources
from espo_luigi.overview.plan import plan_of
from espo_luigi.publication.origin import listed
from espo_luigi.replacing import room_digits
from espo_luigi.report.html import Section
from espo_luigi.report.reading import job_results
from espo_luigi.science.finalize.scenario import series_of
from espo_luigi.tasks.adjustment import Adjust
from espo_luigi.tasks.all import Selection
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import RunContext, context, forget
from espo_luigi.tasks.cost import Basis, Experience
from espo_luigi.tasks.product import ConcatenationFinal
from espo_luigi.tasks.report import kept_by, run_view

pytestmark = pytest.mark.production
SIMULATIONS = (NOLEAP, DAY360)
# Of the raw data's 151 years, 38, which make no whole chunks: the same tasks and kinds of chunks in less time.
FIRST, LAST = 1989, 2026
PERIOD = f"{FIRST}-{LAST}"
CHANGES = {**of_years(FIRST, LAST), "validation": {"sample": 1}}


class Said(NamedTuple):
    """The last output of a command, and its exit code."""

    pid: int
    code: int
    text: str


class Made(NamedTuple):
    """The folder of a finished run of the demo, and the ends of its command and of a second command given meanwhile.

    `planned` is what the plan said before, if the site is to show it.
    """

    folder: Path
    first: Said
    second: Said
    planned: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, demo_raw: Path) -> Made:
    """The demo, made by the command that users give; meanwhile a second command for the same folders is refused."""
    folder = tmp_path_factory.mktemp("run")
    write_config(folder, demo_raw, **CHANGES)
    commands = write_luigi_cfg(folder)
    planned = said(start(commands, "espo", "plan"), timeout=600).text if site_outputs.asked_for() else ""
    first = start(commands, "luigi", "--module", "espo_luigi.tasks", "All", "--local-scheduler")
    extracted = folder / "work" / f"{NOLEAP}+NAM+extracted.zarr"
    deadline = time.monotonic() + 300
    while not extracted.exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    wanted = ["CleanUp", "--sim-id", NOLEAP, "--region", "south", "--espo-workdir", "other"]
    second = start(commands, "luigi", "--module", "espo_luigi.tasks", *wanted, "--local-scheduler")
    refused = said(second, timeout=600)
    return Made(folder, said(first, timeout=800), refused, planned)


@pytest.fixture(scope="module")
def run(made: Made) -> Path:
    """The folder of a finished run."""
    assert made.first.code == 0, made.first.text
    return made.folder


@pytest.fixture()
def here(run: Path) -> Path:
    """The same folder, as the configuration of this process."""
    use([run / "config.yml", run / "paths.yml"], run)
    return run


def write_luigi_cfg(run: Path) -> Path:
    """Return a folder in which commands are about `run`."""
    folder = run / "commands"
    folder.mkdir()
    config = f"{run / 'config.yml'} {run / 'paths.yml'}"
    (folder / "luigi.cfg").write_text(
        f"[core]\nworkers = 50\nno_lock = true\n[espo]\nworkdir = {run / 'run'}\nconfig = {config}\npublish = true\n"
    )
    return folder


def start(folder: Path, program: str, *arguments: str) -> subprocess.Popen[str]:
    command = [str(Path(sys.executable).parent / program), *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def said(process: subprocess.Popen[str], timeout: float) -> Said:
    """Wait for a command's end."""
    text, _ = process.communicate(timeout=timeout)
    return Said(process.pid, process.returncode, text)


RUN_COMMAND = "luigi --module espo_luigi.tasks All --local-scheduler\n"
TUTORIAL = Path(__file__).parents[2] / "docs" / "start" / "tutorial.md"


@pytest.fixture()
def tutorial(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the tutorial's reader has it, with the products of the finished run."""
    for file in run.glob("*.yml"):
        (tmp_path / file.name).write_text(file.read_text())
    # The reader's own file, over fewer years: the test's has lost its comments and anchors.
    text = (CONFIG.parent / "espo-g6" / "config.yml").read_text()
    text, changed = re.subn(r"(sim_period: ).*", rf"\1['{FIRST}', '{LAST}']", text)
    for name, year in (("start_date", FIRST), ("end_date", LAST)):
        text, more = re.subn(rf"({name}: ['\"]?)\d{{4}}", rf"\g<1>{year}", text)
        changed += more
    assert changed == 3
    (tmp_path / "base.yml").write_text(text)
    (tmp_path / "config.yml").write_text((CONFIG / "config.yml").read_text().replace("espo-g6/config.yml", "base.yml"))
    (tmp_path / SMALL_CONFIG.name).write_text(SMALL_CONFIG.read_text())
    settings = (run / "commands" / "luigi.cfg").read_text()
    (tmp_path / "luigi.cfg").write_text(re.sub("config = .*", "config = config.yml paths.yml small_demo.yml", settings))
    (tmp_path / "espo-demo").symlink_to(run)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tutorial_s_blocks_do_what_it_says(tutorial: Path, made: Made) -> None:
    """Blocks marked `sh` make a folder or products, which other tests do."""
    python: dict[str, Any] = {}
    answers = []
    printed = {}
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```", TUTORIAL.read_text(), re.DOTALL | re.MULTILINE):
        if language == "python":
            with redirect_stdout(StringIO()) as shown:
                exec(compile(block, str(TUTORIAL), "exec"), python)
            printed[block] = shown.getvalue()
        elif language == "bash":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, block + done.stdout + done.stderr
            answers.append(done.stdout + done.stderr)
            printed[block] = answers[-1]
    before, again, after, stale, why = answers
    assert "0 to run, 0 blocked" in before and "would be made again" not in before
    assert "[1/" not in again, "a job ran"
    assert "0 to run, 0 blocked" in after and "would be made again with --rerun stale" in after
    assert "training_args changed since" in after
    assert re.search(r"^Train +- +18 ", stale, re.MULTILINE) and re.search(r"^RefDefault +3 +- ", stale, re.MULTILINE)
    assert "emporary store" in why and "deleted" in why
    assert {"tasmax", "tasmin", "pr"} == set(python["scenario"].data_vars)
    mean = {name: float(ds.tasmax.sel(time=slice("1991", "2020")).mean()) for name, ds in python["region"].items()}
    assert abs(mean["adjusted"] - mean["reference"]) < 0.2 < 1 < mean["raw"] - mean["reference"]
    assert (tutorial / "monthly.png").stat().st_size > 10_000
    if folder := site_outputs.asked_for():
        # As the reader has them: before the run, and from the run that made everything.
        before_it = {"espo plan\n": made.planned, RUN_COMMAND: made.first.text}
        assert printed.keys() >= before_it.keys()
        printed |= before_it
        site_outputs.keep(folder, printed, tutorial, made.folder)


def of_this_run(words: list[str], run: Path) -> list[str]:
    """A page's command with the folder of this run, a cell and a day in the place of those of the whole demo."""
    words = [re.sub(r"^(19|20)\d\d(-\d\d-\d\d)$", r"2025\2", word) for word in filled(words)]
    words = [f"{run}{word.removeprefix('espo-demo')}" if word.startswith("espo-demo/") else word for word in words]
    at = next((place for place, word in enumerate(words) if re.match(r"-?\d+\.\d+$", word)), None)
    return words if at is None else [*words[:at], *LAND, *words[at + 2 :]]


def test_the_commands_on_pages_that_look_at_a_run_succeed(
    tutorial: Path, run: Path, own_settings: LuigiConfigParser, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = [words for page in written_pages() for words in commands_of(page) if can_run(words)]
    given = {tuple(of_this_run(words, run)) for words in commands}
    assert {words[1] for words in given} >= {"init", "plan", "why"}
    LuigiConfigParser.reload()  # of the reader's luigi.cfg
    forget()
    failed = {words: capsys.readouterr().err for words in sorted(given) if cli.main([*words[1:]])}
    assert failed == {}


def jobs_of(folder: Path, *wanted: luigi.Task) -> Counter[str]:
    """Build `wanted`, and count the jobs that this took, by rule."""
    before = {result["started"] for result in job_results(folder / "run")}
    assert espo_luigi.build(list(wanted)).succeeded
    return Counter(one["family"] for one in job_results(folder / "run") if one["started"] not in before)


def final(folder: Path, sim_id: str) -> xr.Dataset:
    return store.open_store(folder / "final" / "final" / "NAM" / f"day+{sim_id}+NAM_{PERIOD}.zarr.zip")


def test_every_product_is_there_and_every_temporary_store_is_gone(here: Path) -> None:
    for task in Graph([tasks.All()]):
        if isinstance(task, EspoTask):
            for name, port in task.ports():
                info = getattr(task, name)()
                assert info.target.exists() != port.is_temporary, info.path
    assert list((here / "work").iterdir()) == []


def test_the_products_pass_a_validation_and_are_released_and_published_as_they_are(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = here / "final" / "RELEASE.json"
    try:
        assert cli.main(["validate", str(here / "final"), "--release", "1.0", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        check_shape("validate", told)
        # Of outcomes, there is none.
        absent = {"flags": "not done", "outcomes": "not applicable"}
        assert {check["name"]: check["verdict"] for check in told["checks"]} == {
            name: "passed" if name not in absent or [*(here / "final").rglob(f"*{name}*.zarr*")] else absent[name]
            for name in CHECKS
        }
        released = json.loads(path.read_text())
        assert released["version"] == "1.0" and len(released["configurations"]) == 1
        assert len(released["products"]) == len(
            [*(here / "final").rglob("*.zarr.zip"), *(here / "final").rglob("*.zarr")]
        )
        assert cli.main(["publish", "--catalog"]) == 0
        released["products"].popitem()
        path.write_text(json.dumps(released, indent=1))
        assert cli.main(["publish", "--catalog"]) == 1
        assert "RELEASE.json is of other files" in capsys.readouterr().err
    finally:
        path.unlink()


@pytest.mark.skipif(shutil.which("cdo") is None, reason="install cdo")
def test_every_product_is_exported_to_netcdf_that_a_checker_accepts_and_cdo_reads(here: Path, tmp_path: Path) -> None:
    assert cli.main(["export", str(tmp_path / "netcdf")]) == 0
    first = []
    for sim_id in SIMULATIONS:
        archive = store.open_store(ConcatenationFinal(sim_id=sim_id).out_final().path)
        for name in ("tasmax", "tasmin", "pr"):
            task = tasks.Export(sim_id=sim_id, var=name, drs="espo-g6", folder=str(tmp_path / "netcdf"))
            files = files_of(task.out_checksums().path)
            assert len(files) == 10
            first.append(files[0])
            assert_cdo_reads(files, archive[name].load(), tmp_path)
    assert problems_of(first) == ""


def test_the_estimate_before_the_run_was_right_within_a_factor_of_five(here: Path) -> None:
    """Of CPU seconds, which the machine's load does not change: core-seconds, as expected, are more in small tasks."""
    expected = took = 0.0
    no_experience = Experience([])
    for task in in_order(tasks.All()):
        cost = no_experience.expected(task, Resources())
        assert cost.basis == Basis.TABLE
        expected += cost.seconds * cost.cpus
        took += json.loads(task.order("local").files.result.read_text())["cpu_seconds"]
    assert took / 5 < expected < took * 5


def test_the_markers_name_the_task_its_parameters_and_the_markers_of_its_inputs(here: Path) -> None:
    path = here / "final" / "checks" / "NAM" / f"{NOLEAP}+NAM_checks.zarr"
    marker = store.read_marker(path)
    assert marker is not None
    assert (marker.task, marker.parameters) == ("HealthChecks", {"sim_id": NOLEAP})
    (source,) = [path for path in marker.inputs if path.endswith(".zip")]
    assert len(marker.inputs) == 4, "the archive, and the grids of three regions"
    archive = store.read_marker(Path(source))
    assert archive is not None
    assert marker.inputs[source] == archive.id
    assert {"espo_luigi", "xsdba", "xclim"} <= set(marker.versions)


@pytest.mark.parametrize(("sim_id", "days"), [(NOLEAP, 38 * 365), (DAY360, 38 * 360)])
def test_the_scenario_has_the_whole_period_the_land_cells_and_the_products_layout(
    here: Path, sim_id: str, days: int
) -> None:
    scenario = final(here, sim_id)
    assert dict(scenario.sizes) == {"time": days, "lat": 12, "lon": 10}
    assert set(series_of(scenario)) == {"tasmax", "tasmin", "pr"}
    assert set(scenario.coords) == {"time", "lat", "lon"}
    assert {str(scenario[name].dtype) for name in scenario.data_vars} == {"float32"}
    assert scenario.attrs["cat:processing_level"] == "final"
    assert scenario.attrs["cat:domain"] == "NAM"
    assert scenario.tasmax.dims == ("time", "lat", "lon")
    assert scenario.tasmax.variable.chunks[1:] == ((4, 4, 4), (9, 1))
    land = int(scenario.tasmax.isel(time=0).notnull().sum())
    assert land == 95
    assert int(scenario.pr.isel(time=-1).notnull().sum()) == land


@pytest.mark.parametrize("sim_id", SIMULATIONS)
def test_the_scenario_has_the_references_climate_over_the_reference_period(here: Path, sim_id: str) -> None:
    scenario = final(here, sim_id)[["tasmax", "pr"]].sel(time=slice("1991", "2020")).load()
    for region in ("south", "middle", "north"):
        reference = store.open_store(here / "final" / "reference" / f"Demo-Land+{region}+noleap.zarr")
        cells = scenario.sel(lat=reference.lat, lon=reference.lon).mean("time")
        expected = reference[["tasmax", "pr"]].mean("time").load()
        np.testing.assert_allclose(cells.tasmax, expected.tasmax, atol=0.15)
        np.testing.assert_allclose(cells.pr, expected.pr, rtol=0.1)


# In less time, on series of their own, kernels and steps are compared with xsdba in `tests/methods`.
@pytest.mark.long
def test_the_scenario_of_cells_of_every_chunk_equals_xsdbas_of_the_same_series(here: Path) -> None:
    from xsdba import DetrendedQuantileMapping, Grouper
    from xsdba.detrending import LoessDetrend

    simulation = store.open_store(here / "final" / "regridded" / f"day+{NOLEAP}+middle+regchunked.zarr.zip")
    reference = store.open_store(here / "final" / "reference" / "Demo-Land+middle+noleap.zarr")
    assert simulation.tasmax.variable.chunks[-1] == (20, 20, 13)
    cells = {"loc": [19, 20, 52]}
    # Double precision: in single precision, xsdba's round-off moves a few days to the next quantile.
    sim = simulation.tasmax.isel(cells).load().astype("float64")
    ref = reference.tasmax.isel(cells).load().astype("float64")
    hist = sim.sel(time=slice("1991", "2020"))
    group = Grouper("time.dayofyear", window=31)
    trained = DetrendedQuantileMapping.train(ref, hist, group=group, nquantiles=50, kind="+")
    detrend = LoessDetrend(group=trained.group, kind="+", f=0.2, niter=1, d=0, weights="tricube")
    expected = trained.adjust(sim, detrend=detrend, interp="nearest", extrapolation="constant")
    got = final(here, NOLEAP).tasmax.sel(lat=ref.lat, lon=ref.lon).transpose("loc", "time").load()
    off = np.abs(got.values - expected.transpose("loc", "time").values) > 1e-3
    assert off.mean() < 1e-4


OF_ONE_RAW_FILE = ("variable_id", "table_id", "grid_label", "title", "cat:path", "cat:format", "cat:date", "bounds")


def test_no_product_has_an_attribute_that_is_not_true_of_it(here: Path) -> None:
    """Series, properties, measures, checks and the reference; the report's stores and the grids are no datasets."""
    looked_at = 0
    for path in sorted([*(here / "final").rglob("*.zarr"), *(here / "final").rglob("*.zarr.zip")]):
        product = store.open_store(path)
        attrs, kept = product.attrs, [product.attrs, *(variable.attrs for variable in product.variables.values())]
        assert not [name for name in OF_ONE_RAW_FILE for one in kept if name in one], path
        assert "intake_esm_dataset_key" not in attrs, path
        if "cat:id" not in attrs:
            assert path.name.endswith(("+coords.zarr", "+summary.zarr", "+yearly-sums.zarr")), path
            continue
        looked_at += 1
        assert "Lowland" not in path.parts or attrs["cat:domain"] == "Lowland", path
        if "cat:experiment" in attrs:
            assert (attrs["experiment_id"], attrs["activity_id"]) == ("ssp585", "ScenarioMIP"), path
        said = tuple(attrs.get(name) for name in ("cat:variable", "cat:date_start", "cat:date_end", "frequency"))
        if "time" not in product.dims:
            assert said == (None, None, None, "fx"), path
            continue
        days = [str(one)[:10] for one in product.time.values[[0, -1]]]
        assert set(said[0].split(",")) == set(series_of(product)), path
        assert said[1:] == (*days, "day"), path
    assert looked_at > 40


def test_tasmin_has_no_adjustment_of_its_own(here: Path) -> None:
    scenario = final(here, NOLEAP)
    said = {name: scenario[name].attrs["bias_adjustment"] for name in series_of(scenario)}
    assert "kind='+'" in said["tasmax"] and said["tasmin"] != said["tasmax"]
    assert said["tasmin"].startswith("not adjusted itself: tasmax - dtr")
    assert said["tasmax"] in said["tasmin"] and "kind='*'" in said["tasmin"]
    assert scenario.tasmin.attrs["cell_methods"] == "time: minimum within days"


def test_differences_of_temperature_say_so_in_the_kept_products(here: Path) -> None:
    folder = here / "final" / "diagnostics" / "Lowland"
    kept = [
        store.open_store(here / "final" / "reference" / "Demo-Land+south+default.zarr").dtr,
        store.open_store(here / "final" / "reference" / "Demo-Land+south+360_day.zarr").dtr,
        store.open_store(here / "final" / "regridded" / f"day+{NOLEAP}+south+regchunked.zarr.zip").dtr,
        store.open_store(folder / f"{NOLEAP}+Lowland+diag_scen_prop.zarr.zip").q99_dtr,
        *(
            store.open_store(folder / f"{NOLEAP}+Lowland+diag_scen_meas.zarr.zip")[["mean_tasmax", "aca_tasmin"]]
        ).values(),
    ]
    assert {data.attrs["units_metadata"] for data in kept} == {"temperature: difference"}


@pytest.mark.parametrize("sim_id", SIMULATIONS)
def test_adjustment_improves_the_means_everywhere(here: Path, sim_id: str) -> None:
    folder = here / "final" / "diagnostics" / "Lowland"
    improved = store.open_store(folder / f"{sim_id}+Lowland+improvement.zarr.zip").improved_grid_points
    assert len(improved.properties) == 21
    assert float(improved.sel(properties="mean_tasmax")) == 1.0
    assert float(improved.mean()) > 0.7
    assert float(improved.max()) <= 1.0


def test_health_checks_find_nothing_wrong_with_the_structure(here: Path) -> None:
    checks = store.open_store(here / "final" / "checks" / "NAM" / f"{DAY360}+NAM_checks.zarr")
    assert bool(checks["tasmax_tasmax_below_tasmin"]) is False
    assert bool(checks["pr_negative_accumulation_values"]) is False


def test_a_second_run_says_that_there_is_nothing_to_do_and_where_the_results_are(
    here: Path, log: pytest.LogCaptureFixture
) -> None:
    assert jobs_of(here, tasks.All()) == {}
    assert f"Nothing to do: what was asked for is there already: {here / 'final'}" in log.text
    assert "STALE" not in log.text


def test_a_missing_product_is_made_again_with_its_missing_inputs_only(here: Path) -> None:
    store.remove(here / "final" / "checks" / "NAM" / f"{NOLEAP}+NAM_checks.zarr")
    assert jobs_of(here, tasks.All()) == {"HealthChecks": 1}
    (here / "final" / "diagnostics" / "Lowland" / f"{NOLEAP}+Lowland+improvement.zarr.zip").unlink()
    assert jobs_of(here, tasks.All()) == {"DiagMeasuresImprovement": 1}
    assert list((here / "work").iterdir()) == []


def test_the_report_is_about_the_products_that_are_there_and_made_again_when_they_change(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, flags = tasks.Summaries(sim_id=NOLEAP, diag_domain="Highland"), tasks.FlagDetails(sim_id=NOLEAP)
    aspects = tasks.NotCalibrated(pool=NOLEAP, diag_domain="Highland")
    made = {"FlagDetails": 1, "Summaries": 1, "NotCalibrated": 1}
    assert jobs_of(here, summary, flags, aspects) == made
    # What follows from the summaries of a run is made again from them.
    store.remove(aspects.out_compared().path)
    assert jobs_of(here, aspects) == {"NotCalibrated": 1}
    compared = store.open_store(aspects.out_compared().path)
    assert compared.sizes["cell"] == 30 and compared["value"].notnull().all()
    found = store.open_store(summary.out_summary().path)
    assert found["year"].values.tolist() == list(range(FIRST, LAST + 1))
    assert found.attrs["cells"].startswith("16 of 30 diagnosed land cells")

    # A single simulation and domain, without maps: each figure takes a third of a second.
    view = run_view()
    one = [each for each in view.diagnosed if (each.sim_id, each.domain) == (NOLEAP, "Highland")]
    part = replace(view, diagnosed=tuple(one), domains=("Highland",), flags={NOLEAP: view.flags[NOLEAP]})
    part = replace(part, compared={(NOLEAP, "Highland"): aspects.out_compared().path}, archives={})
    monkeypatch.setattr("espo_luigi.tasks.report.run_view", lambda: part)
    assert found.attrs["periods"] == f"{FIRST}-2007 to 2008-{LAST}"
    # Else it warns that the years end before 2071-2100.
    monkeypatch.setattr("espo_luigi.report.make.WANTED_PERIODS", found.attrs["periods"])
    monkeypatch.setattr("espo_luigi.report.make.maps_section", lambda view, shares: Section("Maps", []))
    report = tasks.Report()
    assert not report.complete()
    report.work()
    assert report.complete()
    page = report.out_page().path.read_text()
    assert page.count("<h2>") == 5 and "Verdicts of 1 pair of" in page
    assert page.count('class="warned"') == 1, "what was not made for the other pairs"
    figures = {path.name for path in (here / "final" / "report" / "report-figures").glob("*.png")}
    assert len(figures) == 11 and "first-map.png" in figures
    if folder := site_outputs.asked_for():
        site_outputs.keep_figures(folder, report.out_page().path)
    store.remove(flags.out_flags().path)
    assert not report.complete()


@pytest.mark.filterwarnings("ignore")
def test_all_ends_with_a_catalogue_that_intake_esm_opens_and_the_provenance_of_every_product(
    run: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = json.loads((here / "final" / "ro-crate-metadata.json").read_text())["@graph"]
    actions = {
        result["@id"]: one for one in known if one["@type"] == "CreateAction" for result in listed(one["result"])
    }
    graph = list(Graph([tasks.All()]))
    kept = {info.path for task in graph for info in kept_by(task)}
    assert {here / "final" / unquote(one) for one in actions} == kept
    by_id = {entity["@id"]: entity for entity in known}
    product = ConcatenationFinal(sim_id=NOLEAP).out_final().path
    objects = [by_id[one["@id"]] for one in actions[str(product.relative_to(here / "final"))]["object"]]
    raw = {one["name"]: one for one in objects if one["@id"].startswith("#raw-")}
    assert raw.keys() == {NOLEAP, "ESPO-DEMO_Demo-Land_NAM"}
    files = [by_id[one["@id"]]["url"] for one in raw[NOLEAP]["hasPart"]]
    assert len(files) == 6 and all(Path(unquote(file).removeprefix("file://")).is_file() for file in files)

    intake_esm = pytest.importorskip("intake_esm")
    assert cli.main(["publish", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    check_shape("publish", told)
    assert told["catalogued"]["catalogue"] == str(here / "project-catalog.json")
    opened = intake_esm.esm_datastore(
        told["catalogued"]["catalogue"], read_kwargs={"converters": {"variable": ast.literal_eval}}
    )
    assert len(opened.keys()) == len(opened.df) == told["catalogued"]["rows"]
    left_out = {Path(path).name.rpartition("+")[2] for path in told["catalogued"]["left_out"]}
    # Grids, and what the test of the report makes.
    always = {"coords.zarr"}
    assert always <= left_out <= always | {"summary.zarr", "yearly-sums.zarr", "not-calibrated.zarr"}
    (archive,) = opened.search(id=NOLEAP, processing_level="final", xrfreq="D").df["path"]
    assert archive == str(product)
    options = {"decode_timedelta": False, "backend_kwargs": {"storage_options": None}}
    found = opened.search(id=NOLEAP, processing_level="diag-sim-prop")
    ((key, read),) = found.to_dataset_dict(progressbar=False, xarray_open_kwargs=options).items()
    assert key == f"{NOLEAP}.NAM.diag-sim-prop.fx"
    assert set(read.data_vars) == {"mean-tasmax", "mean-tasmin", "mean-pr"}


def test_the_stac_catalogue_of_the_run_is_valid_and_leads_to_its_numbers(here: Path) -> None:
    pystac = pytest.importorskip("pystac")
    validator = importlib.import_module("pystac.validation.stac_validator").JsonSchemaSTACValidator()
    assert cli.main(["publish", "--stac"]) == 0
    collection = pystac.Collection.from_file(str(here / "final" / "stac" / "collection.json"))
    found = {item.properties["espo_luigi:product"]: item for item in collection.get_items()}
    assert len(found) == len(SIMULATIONS) * 4, "a simulation on the whole domain and in three regions"
    for one in (collection, *found.values()):
        validator.validate_core(one.to_dict(), one.STAC_OBJECT_TYPE, "1.1.0")
    ends = {item.properties["end_datetime"] for item in found.values()}
    assert ends == {f"{LAST}-12-31T23:59:59Z", f"{LAST}-12-30T23:59:59Z"}
    (item,) = (one for name, one in found.items() if NOLEAP in name and name.startswith("final/"))
    opened = xr.open_zarr(zarr.storage.ZipStore(item.assets["zarr"].get_absolute_href(), mode="r"))
    xr.testing.assert_equal(opened["tasmax"].isel(time=0).load(), final(here, NOLEAP)["tasmax"].isel(time=0).load())
    west, south, east, north = item.bbox
    assert west < opened["lon"].min() < opened["lon"].max() < east
    assert south < opened["lat"].min() < opened["lat"].max() < north


def test_a_second_command_on_the_same_folders_is_refused_and_the_product_has_data_on_all_land(
    made: Made, here: Path
) -> None:
    first, second = made.first, made.second
    assert second.code == 35, second.text
    assert f"a driver already works in {here / 'final'}: process {first.pid} on {socket.gethostname()}" in second.text
    assert not (here / "commands" / "other").exists()
    assert first.code == 0, first.text
    assert "FAILED" not in first.text
    tasmax = final(here, NOLEAP).tasmax.load()
    assert int(tasmax.notnull().all("time").sum()) == int(tasmax.notnull().any("time").sum()) == 95
    assert list((here / "work").iterdir()) == []


def test_after_a_partly_failed_run_of_all_only_unneeded_stores_are_deleted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "final" / "NAM_SPLIT" / "north" / f"day+{NOLEAP}+north+{PERIOD}.zarr.zip").unlink()
    work = here / "work"
    in_the_way = work / f"{NOLEAP}+north+cleaned_up.zarr"
    in_the_way.touch()
    with pytest.MonkeyPatch.context() as patch:  # as if the file had come after the run's start
        patch.setattr(tasks.base.EspoTask, "check_outputs", lambda task: None)
        assert not espo_luigi.build([tasks.All()]).succeeded
    kept = {f"{NOLEAP}+north+{name}.zarr" for name in ("regridded", "tasmax+adjusted", "dtr+adjusted", "pr+adjusted")}
    assert {path.name for path in work.iterdir()} == kept | {in_the_way.name}

    adjust = tasks.Adjust(pool=NOLEAP, piece="north", var="tasmax")
    assert jobs_of(here, adjust) == {}
    assert jobs_of(here, tasks.Extract(sim_id=DAY360)) == {"Extract": 1}
    partial = work / f".a.zarr.{socket.gethostname()}-999999999-{room_digits()}0123456789abcdef.partial"
    partial.mkdir()
    unneeded = {f"{DAY360}+NAM+extracted.zarr", partial.name}
    there = kept | unneeded | {in_the_way.name}
    assert {path.name for path in work.iterdir()} == there

    assert cli.main(["clean"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {Path(line.split()[-1]).name for line in lines[:-1]} == unneeded
    assert lines[-1].startswith("2 item(s), ")
    assert {path.name for path in work.iterdir()} == there
    hold_folders([work])
    refused = espo(here / "commands", "clean", "--yes")
    close_engines()
    assert refused.returncode == 1
    assert f"a driver already works in {work}: process {os.getpid()}" in refused.stderr
    assert {path.name for path in work.iterdir()} == there
    assert cli.main(["clean", "--yes"]) == 0
    assert "2 item(s)" in capsys.readouterr().out
    assert {path.name for path in work.iterdir()} == kept | {in_the_way.name}

    in_the_way.unlink()
    assert jobs_of(here, tasks.All()) == {"CleanUp": 1, "Move": 1}
    assert list(work.iterdir()) == []


@pytest.mark.long()
def test_within_a_limit_of_scratch_pools_come_one_after_the_other_with_the_same_products_whatever_is_killed(
    run: Path, demo_raw: Path, tmp_path: Path
) -> None:
    use(write_config(tmp_path, demo_raw, **CHANGES), tmp_path)
    commands, work = write_luigi_cfg(tmp_path), tmp_path / "work"

    def goes_on(until: Callable[[], object]) -> tuple[str, set[frozenset[str]], float]:
        """Run All in scratch space for one pool; return its words, the pools seen together, the most used of it."""
        get_config().set("espo", "scratch_limit", "1TB")
        account = plan_of([], Selection()).scratch
        assert account is not None
        uses = dict(account.uses)
        limit = uses.pop("").bytes + max(use.bytes for use in uses.values())
        arguments = ("--module", "espo_luigi.tasks", "All", "--local-scheduler", "--espo-scratch-limit", f"{limit}B")
        process, together, most = start(commands, "luigi", *arguments), set(), 0
        found = [task for task in Graph([tasks.All()]) if isinstance(task, EspoTask)]
        while process.poll() is None:
            names = [path.name for path in work.glob("*")] if work.exists() else []
            together.add(frozenset(pool for pool in SIMULATIONS if any(pool in name for name in names)))
            most = max(most, sum(EspoTask.scratch_on_disk(found)))
            if until():
                process.kill()
            time.sleep(0.05)
        return said(process, timeout=600).text, together, most / limit

    text, together, most = goes_on(until=lambda: any(work.glob("*+regridded.zarr")))
    assert "waits for room on scratch" in text
    assert max(map(len, together)) == 1
    assert 0 < most <= 1
    begun = max(together, key=len)
    text, together, most = goes_on(until=lambda: False)
    assert "Everything is done" in text
    assert "waits for room on scratch" in text
    assert together >= {begun, frozenset(SIMULATIONS) - begun}
    assert 0 < most <= 1
    assert list(work.iterdir()) == []
    archives = sorted(path.relative_to(run) for path in (run / "final").rglob("*.zip"))
    assert archives == sorted(path.relative_to(tmp_path) for path in (tmp_path / "final").rglob("*.zip"))
    assert [_chunks(tmp_path / path) for path in archives] == [_chunks(run / path) for path in archives]


# A land cell in the middle of the small demo, and a cell of the sea.
LAND, SEA = ("46.4", "-66.6"), ("47.1", "-64.6")


@pytest.mark.parametrize(("sim_id", "date"), [(NOLEAP, "2025-07-14"), (DAY360, "2003-02-30")])
def test_explain_makes_the_products_values_again_bit_for_bit(
    here: Path, capsys: pytest.CaptureFixture[str], sim_id: str, date: str
) -> None:
    assert cli.main(["explain", sim_id, *LAND, date, "--json"]) == 0
    way = json.loads(capsys.readouterr().out)
    check_shape("explain", way)
    assert (way["cell"]["lat"], way["cell"]["lon"], way["cell"]["piece"]) == (46.375, -66.625, "middle")
    product = final(here, sim_id).sel(lat=46.375, lon=-66.625, time=date).squeeze().load()
    assert {var: one["steps"][-1]["value"] for var, one in way["products"].items()} == {
        name: float(product[name]) for name in ("tasmax", "tasmin", "pr")
    }
    assert all(one["identical"] for one in way["products"].values())
    raw = context().simulation(sim_id)
    for var in ("tasmax", "pr"):
        parts, first = way["adjusted"][var]["raw"], way["adjusted"][var]["steps"][0]
        files = [asset.path for asset in raw.assets if var in asset.variables]
        with xr.open_mfdataset(files, combine="by_coords", data_vars="minimal", decode_timedelta=False) as opened:
            field = opened[var].sel(time=date).squeeze().load()
        values = [float(field.sel(lat=one["lat"], lon=one["lon"] % 360 if field.lon.max() > 180 else one["lon"],
                                  method="nearest")) for one in parts]  # fmt: skip
        if field.attrs["units"] != "kg m-2 s-1" and var == "pr":
            values = [value / 86400 for value in values]
        np.testing.assert_allclose([one["value"] for one in parts], values, rtol=1e-6)
        weights = [one["weight"] for one in parts]
        np.testing.assert_allclose(sum(weights), 1, rtol=1e-6)
        assert first["name"] == "regridded"
        np.testing.assert_allclose(np.average(values, weights=weights), first["value"], rtol=1e-6)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("sim_id", "date", "var", "kind"),
    [(NOLEAP, "2025-07-14", "tasmax", "+"), (NOLEAP, "2025-07-14", "dtr", "*"), (DAY360, "2025-01-16", "pr", "*")],
)
def test_each_step_of_explain_is_xsdbas_on_the_same_cell(
    here: Path, capsys: pytest.CaptureFixture[str], sim_id: str, date: str, var: str, kind: str
) -> None:
    """The training, which has random draws, is that of the audit; all else is from the kept stores."""
    import xsdba

    run = context()
    assert cli.main(["explain", sim_id, *LAND, date, "--json"]) == 0
    way = json.loads(capsys.readouterr().out)["adjusted"][var]
    steps = {one["name"]: one["value"] for one in way["steps"]}
    made = made_again(run, sim_id)
    simulation = made.series.members[sim_id][var].isel(loc=0, drop=True)
    training = made.series.training[var][0].isel(loc=0)
    group = xsdba.Grouper("time.dayofyear", 31)
    known = {"adapt_freq_thresh": None, "max_tail_factor": None, "hist_calendar": simulation.time.dt.calendar}
    trained = xsdba.DetrendedQuantileMapping(
        _trained=True, train_units=simulation.attrs["units"], group=group, kind=kind, **known
    )
    trained.set_dataset(training[["af", "hist_q", "scaling"]])
    detrend = xsdba.detrending.LoessDetrend(group=group, kind=kind, f=0.2, niter=1, d=0, weights="tricube")
    of_days = training.scaling.sel(dayofyear=simulation.time.dt.dayofyear).values
    scaled = simulation.copy(data=simulation.values * of_days if kind == "*" else simulation.values + of_days)
    trend = detrend.fit(scaled).ds.trend.sel(time=date).item()
    adjusted = trained.adjust(simulation, detrend=detrend, interp="nearest", extrapolation="constant")
    assert steps["factor"] in training.af.values
    expected = {
        "regridded": simulation.sel(time=date).item(),
        "scaled": scaled.sel(time=date).item(),
        "trend": trend,
        "result": adjusted.sel(time=date).item(),
    }
    # A float32 near 300 K has steps of 3e-5 K.
    atol = 1e-4 if kind == "+" else 0
    np.testing.assert_allclose([steps[name] for name in expected], list(expected.values()), rtol=5e-6, atol=atol)
    assert steps["result"] == steps["adjusted"]


def made_again(run: RunContext, sim_id: str) -> cells.Made:
    """The land cell as an audit makes it from the kept stores."""
    cell = cells.find_cell(run, *map(float, LAND))
    given, _ = cells.kept_series(run, sim_id, cell.piece, np.array([cell.place]))
    return cells.finish(run, sim_id, cell, cells.adjust(given, run.production.needed()))


def test_explain_shows_the_steps_as_tables_and_draws_them(
    here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figure = tmp_path / "way.svg"
    assert cli.main(["explain", "NoLeap", *LAND, "1999-07-14", "pr", "--plot", str(figure)]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert names == [
        "regridded", "scaled", "trend", "anomaly", "quantile", "factor", "result", "adjusted",
        "adjusted", "clean-up", "product", "in",
    ]  # fmt: skip
    assert "rounded to 10 decimals" in " ".join(" ".join(lines).split())
    assert lines[-1] == "The steps give the product's values exactly, bit for bit."
    assert figure.read_text().startswith("<?xml")


def test_a_product_made_elsewhere_is_close_and_explain_tells_what_differs(here: Path) -> None:
    found = way_of(NOLEAP, float(LAND[0]), float(LAND[1]), "1999-07-14", "tasmax")
    near = {name: replace(product, identical=False) for name, product in found.products.items()}
    for other, words in (
        ({"numba": ("0.1", "0.2")}, "the product was made with numba 0.1 (here 0.2)."),
        ({}, "an earlier job may have had a different processor."),
    ):
        text = " ".join(shown.render(replace(found, products=near, other_versions=other)).split())
        assert "within a hundred-thousandth of each" in text
        assert text.endswith(words)


def test_a_method_whose_steps_miss_its_own_value_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Adjust.steps

    def wrong(*given: Any) -> list[Any]:
        *others, last = steps(*given)
        return [*others, last._replace(value=last.value + 1)]

    monkeypatch.setattr(Adjust, "steps", wrong)
    with pytest.raises(DataError, match=r"adjustment: the steps of tasmax give .*, and the method .*Please report"):
        way_of(NOLEAP, float(LAND[0]), float(LAND[1]), "1999-07-14", "tasmax")


def test_the_first_step_that_differs_is_named_and_those_whose_stores_are_deleted(here: Path) -> None:
    made = made_again(context(), NOLEAP)
    raw = made.series.members[NOLEAP]
    assert first_difference(made, raw) == "product"
    assert first_difference(made, raw + 1) == f"regridding (day+{NOLEAP}+middle+regchunked.zarr.zip)"
    # Other values, and series of another length, as a changed period makes them.
    for product in (made.product + 1, made.product.isel(time=slice(-1))):
        other = replace(made, product=product)
        assert first_difference(other, raw) == f"training to clean-up (day+{NOLEAP}+middle+{PERIOD}.zarr.zip)"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((NOLEAP, *SEA, "2025-07-14"), "lies in a cell of the sea"),
        ((NOLEAP, "10", "-66.6", "2025-07-14"), "lies outside of the domain"),
        ((NOLEAP, *LAND, f"{LAST + 1}-07-14"), f"lies outside of the product, which has {FIRST}-01-01 to {LAST}-12-31"),
        ((NOLEAP, *LAND, "2004-02-29"), "'2004-02-29' is no day of the noleap calendar"),
        ((NOLEAP, *LAND, "14.7.2025"), "expected YYYY-MM-DD"),
        (("Demo-NoLep", *LAND, "2025-07-14"), "did you mean"),
        (("Demo", *LAND, "2025-07-14"), "is a part of 2 names"),
        ((NOLEAP, *LAND, "2025-07-14", "tasmx"), "did you mean tasmax"),
        ((NOLEAP, *LAND, "2025-07-14", "pr", "--plot", "way.txt"), "expected a file of .png"),
    ],
)
def test_explain_says_in_a_sentence_why_it_explains_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    assert cli.main(["explain", *words]) == 1
    assert said in capsys.readouterr().err


def test_a_sample_of_the_products_is_what_the_raw_files_give(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--sample", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    check_shape("explain --sample", told)
    rows = told["rows"]
    assert {(row["sim_id"], row["var"]) for row in rows} == {
        (sim_id, var) for sim_id in SIMULATIONS for var in ("tasmax", "tasmin", "pr")
    }
    assert all(row["cells"] == 2 and row["values"] == row["identical"] > 2000 for row in rows)


def test_a_sample_names_the_step_the_cell_and_the_day_of_a_difference(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = cells.open_product
    monkeypatch.setattr(cells, "open_product", lambda path: opened(path).assign(tasmax=opened(path).tasmax + 0.5))
    assert cli.main(["explain", "--sample", "1", "--seed", "1"]) == 1
    said = capsys.readouterr().out
    assert re.search(
        rf"DIFFERENT product: tasmax of ({NOLEAP}|{DAY360}) at 4\d\S* °N -6\S* °E on \d{{4}}-\d\d-\d\d", said
    )
    assert "tasmin" not in said.split("DIFFERENT", 1)[1]
    assert cli.main(["explain", NOLEAP, *LAND, "2025-07-14", "tasmax"]) == 1
    assert "product: tasmax is" in capsys.readouterr().err


@pytest.fixture(scope="module")
def remade(run: Path) -> tuple[Path, dict[str, int]]:
    """The run again, one region made a second time with its temporary stores kept; and that archive's first bytes."""
    use([run / "config.yml", run / "paths.yml"], run)
    archive = run / "final" / "NAM_SPLIT" / "north" / f"day+{NOLEAP}+north+{PERIOD}.zarr.zip"
    first = _chunks(archive)
    archive.unlink()
    get_config().set("espo", "keep_temporary", "true")
    assert jobs_of(run, tasks.Move(sim_id=NOLEAP, piece="north"))["Adjust"] == 3
    return run, first


def test_the_same_region_made_twice_has_the_same_bytes(remade: tuple[Path, dict[str, int]]) -> None:
    folder, first = remade
    assert _chunks(folder / "final" / "NAM_SPLIT" / "north" / f"day+{NOLEAP}+north+{PERIOD}.zarr.zip") == first


def test_temporary_stores_can_be_kept_and_go_with_the_next_run_that_does_not_keep_them(
    remade: tuple[Path, dict[str, int]], here: Path
) -> None:
    kept = {path.name for path in (here / "work").glob("*.zarr")}
    assert {f"{NOLEAP}+north+{name}.zarr" for name in ("regridded", "pr+adjusted", "cleaned_up")} <= kept
    get_config().set("espo", "final_format", "sharded")
    try:
        assert jobs_of(here, tasks.Move(sim_id=NOLEAP, piece="north")) == {"Move": 1}
        folder = here / "final" / "NAM_SPLIT" / "north"
        sharded = store.open_store(folder / f"day+{NOLEAP}+north+{PERIOD}.zarr")
        zipped = store.open_store(folder / f"day+{NOLEAP}+north+{PERIOD}.zarr.zip")
        assert sharded.tasmax.encoding["shards"] is not None
        xr.testing.assert_identical(sharded.load(), zipped.load())
    finally:
        get_config().set("espo", "final_format", "zip")
    assert jobs_of(here, tasks.All()) == {}
    assert list((here / "work").iterdir()) == []


def _chunks(archive: Path) -> dict[str, int]:
    with zipfile.ZipFile(archive) as opened:
        return {info.filename: info.CRC for info in opened.infolist() if "/c/" in info.filename}
