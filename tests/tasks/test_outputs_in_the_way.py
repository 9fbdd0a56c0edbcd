"""What a user has put at the path of an output stops a run before anything is submitted, and stays."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from complete_demo import NOLEAP, edit

from espo_luigi import files, tasks
from espo_luigi.errors import ConfigurationError, StoreError
from espo_luigi.tasks.base import EspoTask
from espo_luigi.tasks.context import context
from espo_luigi.tasks.publish import write_crate
from espo_luigi.tasks.report import Report, write_now


def thesis(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "chapter.txt").write_text("years of work")
    return folder / "chapter.txt"


@pytest.mark.parametrize("rule", ["HealthChecks", "ConcatenationFinal", "Report", "figures"])
def test_a_users_folder_at_an_outputs_path_is_refused_before_a_run_starts(
    rule: str, configured: Callable[..., list[Path]]
) -> None:
    configured()
    task: EspoTask = Report() if rule in ("Report", "figures") else getattr(tasks, rule)(sim_id=NOLEAP)
    path = task.output()[0].path
    chapter = thesis(path.with_name("report-figures") if rule == "figures" else path)
    with pytest.raises(
        StoreError, match=rf"{re.escape(str(chapter.parent))} was not replaced .* output of espo_luigi \(.*Move it away"
    ):
        task.check()
    assert chapter.read_text() == "years of work"


@pytest.mark.parametrize("out", ["mywork", "thesis.html", "x.html"])
def test_a_report_replaces_no_folder_of_the_users(
    out: str, configured: Callable[..., list[Path]], tmp_path: Path
) -> None:
    configured()
    beside = {"mywork": "mywork", "thesis.html": "thesis-figures", "x.html": "x-improvement.csv"}[out]
    chapter = thesis(tmp_path / beside)
    with pytest.raises(StoreError, match=f"{beside} was not replaced"):
        write_now(tmp_path / out)
    assert chapter.read_text() == "years of work"


def test_a_crate_replaces_no_folder_of_the_users(configured: Callable[..., list[Path]], tmp_path: Path) -> None:
    configured()
    chapter = thesis(context().config.paths.final / "ro-crate-metadata.json")
    with pytest.raises(StoreError, match=r"ro-crate-metadata\.json was not replaced"):
        write_crate(context().config.paths.final)
    assert chapter.read_text() == "years of work"


@pytest.mark.parametrize("where", ["root", "home", "same", "inside", "behind a link"])
def test_products_get_a_folder_of_their_own(
    where: str, configured: Callable[..., list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "home")
    work, home, link = tmp_path / "work", tmp_path / "home", tmp_path / "link"
    finals = {"root": Path("/"), "home": home, "same": work, "inside": work / "final", "behind a link": link}
    files = configured()
    edit(files[1], lambda content: content["paths"].update(final=str(finals[where]), tmpdir=str(work)))
    with pytest.raises(ConfigurationError, match=r"paths\.final = .*Expected a folder for the products alone"):
        context()
    edit(files[1], lambda content: content["paths"].update(final=str(home / "final")))
    assert context().config.paths.final == home / "final"


def test_a_former_crate_that_cannot_be_read_for_a_moment_is_not_written_anew(
    configured: Callable[..., list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    configured()
    final = context().config.paths.final
    write_crate(final)
    path, read = final / "ro-crate-metadata.json", files.read_bytes
    said = path.read_text()

    def failing(name: Path, *most: int) -> bytes:
        if name == path:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return read(name, *most)

    monkeypatch.setattr(files, "read_bytes", failing)
    with pytest.raises(OSError, match="Stale"):
        write_crate(final)
    assert path.read_text() == said
