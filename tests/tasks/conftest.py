"""Fixtures that configure the demo in a test's own folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from complete_demo import complete_all, edit
from demo_runs import use, write_config
from luigi.configuration import LuigiConfigParser, get_config
from others_packages import install_all
from shared_folder import shared_folder
from small_demo import ensure_small_demo

from espo_luigi.demo import ensure_demo


@pytest.fixture(scope="module", autouse=True)
def tasks_share_a_fork_server(one_fork_server: None) -> None:
    """All runs of this process start their local jobs from the same server."""


@pytest.fixture(scope="session")
def demo_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw data of the demo in small."""
    return ensure_small_demo(shared_folder(tmp_path_factory) / "small-demo" / "raw")


@pytest.fixture(scope="session")
def v2_raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The raw data of the demo of ESPO v2."""
    return ensure_demo({"folder": str(shared_folder(tmp_path_factory) / "v2-demo" / "raw"), "production": "v2"})


@pytest.fixture()
def configured(tmp_path: Path, demo_raw: Path, own_settings: LuigiConfigParser) -> Callable[..., list[Path]]:
    """A function that configures this process for the demo, with changes, in the test's own folder."""

    def configure(**changes: object) -> list[Path]:
        files = write_config(tmp_path, demo_raw, **changes)
        use(files, tmp_path)
        return files

    return configure


@pytest.fixture()
def own_raw(tmp_path: Path, demo_raw: Path, configured: Callable[..., list[Path]]) -> Path:
    """A copy of the raw data that the test may damage; the demo does not repair it."""
    folder = tmp_path / "raw"
    shutil.copytree(demo_raw, folder)
    files = configured()
    for text in (*folder.glob("*.*"), files[1]):
        text.write_text(text.read_text().replace(str(demo_raw), str(folder)))
    edit(files[1], lambda content: content.pop("demo"))
    return folder


@pytest.fixture()
def complete_demo(configured: Callable[..., list[Path]], tmp_path: Path) -> Path:
    """The folder of a demo with everything complete, though its stores are empty."""
    get_config().set("espo", "final_format", "sharded")
    configured()
    complete_all()
    return tmp_path


@pytest.fixture()
def with_report(own_settings: LuigiConfigParser) -> None:
    """Have `All` end with the report."""
    own_settings.set("espo", "report", "true")


@pytest.fixture(scope="session")
def others_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the packages of the how-to pages are installed."""
    return install_all(tmp_path_factory.mktemp("others"))


STRANGER = """
from espo_luigi.tasks import ConcatenationFinal
from espo_luigi.tasks.espo_2024 import Espo2024

class Ours(Espo2024):
    name = "institute-x"
    drs = "espo-v2"
    templates = {"ConcatenationFinal.out_final": "{final}/{collection}/{sim_id}_{domain}.{archive}"}

    def ends(self, run):
        for sim_id in run.simulations:
            yield ConcatenationFinal(sim_id=sim_id)
"""


@pytest.fixture()
def strangers_production(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that registers a production."""
    site = tmp_path / "site"
    (site / "institute_x-1.0.dist-info").mkdir(parents=True)
    (site / "institute_x.py").write_text(STRANGER)
    (site / "institute_x-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: institute-x\nVersion: 1.0\n"
    )
    (site / "institute_x-1.0.dist-info" / "entry_points.txt").write_text(
        "[espo_luigi.productions]\n"
        "institute-x = institute_x:Ours\nno-production = os:path\nwithout = nowhere_at_all:Line\n"
    )
    monkeypatch.syspath_prepend(site)
