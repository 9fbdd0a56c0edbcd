"""`espo docs`: the pages are listed, shown, searched; and what code and configuration name is there."""

import os
import pty
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import PackagePath
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from espo_luigi.commands import cli, docs
from espo_luigi.errors import nearest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "espo_luigi.commands.cli", "docs"]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["docs", *words]) == 0
    return capsys.readouterr().out


def test_no_two_pages_have_the_same_name() -> None:
    counts = Counter(page.stem for page in docs.pages())
    assert len(counts) > 40
    assert {stem for stem, count in counts.items() if count > 1} == set()


def test_every_page_is_listed_by_tab_with_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    listed = said(capsys)
    assert [line for line in listed.splitlines() if line[0] != " "] == [
        tab for folder, tab in docs.TABS.items() if any(page.tab == folder for page in docs.pages())
    ]
    assert re.search(r"^  tutorial +Tutorial: from raw files to a report$", listed, re.M)
    files = [path for path in (ROOT / "docs").rglob("*.md")]
    assert len(re.findall("^  ", listed, re.M)) == len(files) + 2


def test_the_folders_of_pages_are_those_of_the_command_and_of_the_wheel() -> None:
    folders = {path.parent.name for path in (ROOT / "docs").rglob("*.md")} - {"docs"}
    assert folders <= docs.TABS.keys()
    (block,) = re.findall(r"^\[options\.data_files\]\n(.*?)^\[", (ROOT / "setup.cfg").read_text(), re.M | re.S)
    assert folders <= set(re.findall(r"docs/([\w-]+)/\*\.md", block))


def test_the_menu_of_the_site_has_the_tabs_of_the_command() -> None:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.BaseLoader)["nav"]
    tabs = [next(iter(entry)) for entry in nav]
    assert [tab for tab in docs.TABS.values() if tab in tabs] == tabs


@pytest.mark.parametrize("word", ["job", "understand/job", "docs/understand/job.md", "job.md#why-no-job-runs-twice"])
def test_a_page_is_known_by_its_name_and_by_its_path(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(said(capsys, word, "--path").rstrip("\n"))
    assert path.parts[-2:] == ("understand", "job.md") and path.is_file()


def test_a_pipe_gets_markdown_without_images_and_comments(capsys: pytest.CaptureFixture[str]) -> None:
    for page in docs.pages():
        shown = said(capsys, page.stem)
        prose = re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", shown, flags=re.DOTALL | re.MULTILINE)
        assert "<!--" not in prose and "![" not in prose and "```mermaid" not in shown, page.path


def test_a_terminal_gets_a_page_in_a_pager(tmp_path: Path) -> None:
    pager = tmp_path / "less"
    pager.write_text('#!/bin/sh\nsed "s/^/paged: /"\n')
    pager.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name not in ("PAGER", "LESS")}
    environ |= {"TERM": "xterm", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "job"], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environ
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # Linux says so that the other end is closed
        os.close(ours)
    assert process.returncode == 0
    assert shown.decode().startswith("paged: # How a job lives")


def test_pages_that_are_not_where_the_installation_lists_them_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "slurm.md").write_text("# Slurm\n")
    listed = [PackagePath(f"../share/doc/espo_luigi/run/{name}.md") for name in ("slurm", "elsewhere")]
    for file in listed:
        file.dist = SimpleNamespace(locate_file=lambda path: tmp_path / "run" / Path(path).name)
    monkeypatch.setattr(docs, "distribution", lambda name: SimpleNamespace(files=listed))
    monkeypatch.setattr(docs, "__file__", str(tmp_path / "lib" / "espo_luigi" / "commands" / "docs.py"))
    assert [(page.path, page.tab) for page in docs.pages()] == [(tmp_path / "run" / "slurm.md", "run")]
    monkeypatch.setattr(docs, "distribution", lambda name: SimpleNamespace(files=listed[1:]))
    assert cli.main(["docs"]) == 1
    assert "espo: no page found" in capsys.readouterr().err


def test_a_misspelt_page_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docs", "tutoral"]) == 1
    told = "espo: there is no page tutoral; did you mean tutorial? `espo docs` lists the pages\n"
    assert capsys.readouterr() == ("", told)


def test_a_word_that_is_no_page_is_searched_in_all(capsys: pytest.CaptureFixture[str]) -> None:
    first, *rows = said(capsys, "nquantiles").splitlines()
    assert first == "There is no page nquantiles. These pages have the word:"
    assert [row for row in rows if "nquantiles" not in row] == []
    assert "keys" in [row.split()[0] for row in rows]
    assert cli.main(["docs", "no_page_has_this"]) == 1
    assert "and no page has the word. `espo docs` lists" in capsys.readouterr().err


def test_where_pages_have_the_word_no_other_page_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert nearest("memory", [page.stem for page in docs.pages()]), "a page's name is like this word"
    assert said(capsys, "memory").startswith("There is no page memory. These pages have the word:\n")


def a_page(folder: Path, stem: str, text: str) -> docs.Page:
    (folder / f"{stem}.md").write_text(text)
    return docs.Page(folder / f"{stem}.md", "run")


def test_pages_about_a_word_come_before_those_that_mention_it_often(tmp_path: Path) -> None:
    often = a_page(tmp_path, "often", "# Jobs\n\nWith memory, memory, memory.\n")
    heading = a_page(tmp_path, "heading", "# Laptop\n\nIts memory.\n\n## Little memory\n")
    title = a_page(tmp_path, "title", "# Time and memory\n\nCosts.\n")
    without = a_page(tmp_path, "without", "# Disks\n")
    found = docs.with_word("Memory", [without, heading, often, title])
    lines = [(title, "Time and memory"), (often, "With memory, memory, memory."), (heading, "Little memory")]
    assert list(found.items()) == lines


def test_every_page_that_code_and_configuration_name_is_there() -> None:
    texts = [path for name in ("espo_luigi", "config") for path in (ROOT / name).rglob("*.*") if path.is_file()]
    texts = [path for path in [*texts, ROOT / "luigi.cfg"] if path.suffix in (".py", ".cfg", ".yml", ".md", ".html")]
    named = {(name, path.name) for path in texts for name in re.findall(r"espo docs ([\w-]+)", path.read_text())}
    known = {page.stem for page in docs.pages()}
    assert ("slurm", "docs.py") in named, "the example of the command's help"
    assert sorted((name, file) for name, file in named if name not in known) == []
