"""`espo docs`: the pages are listed, shown, searched; and what code and configuration name is there."""

import os
import pty
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

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
    assert re.search(r"^  tutorial +Tutorial: from raw files to a report\. You run the built-in example", listed, re.M)
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
    assert said(capsys, word, "--path") == f"{ROOT / 'docs' / 'understand' / 'job.md'}\n"


def test_a_pipe_gets_markdown_without_images_and_comments(capsys: pytest.CaptureFixture[str]) -> None:
    for page in docs.pages():
        shown = said(capsys, page.stem)
        prose = re.sub(r"^ *```.*?^ *```|`[^`\n]*`", "", shown, flags=re.DOTALL | re.MULTILINE)
        assert "<!--" not in prose and "![" not in prose and "```mermaid" not in shown, page.path


def test_a_terminal_gets_a_page_in_a_pager_with_the_names_of_linked_pages() -> None:
    ours, theirs = pty.openpty()
    environ = os.environ | {"PAGER": "cat", "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen([*COMMAND, "job"], stdout=theirs, stderr=subprocess.PIPE, env=environ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # Linux says so that the other end is closed
        os.close(ours)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).replace("\r", "")
    assert text.split("\n")[0].strip() == "How a job lives" and "\x1b[1" in shown.decode()
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^Linked pages: espo docs \w+", text, re.M)
    assert "](" not in text


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


def a_page(folder: Path, stem: str, text: str, tab: str = "run") -> docs.Page:
    (folder / f"{stem}.md").write_text(text)
    return docs.Page(folder / f"{stem}.md", tab)


def test_pages_about_a_word_come_before_those_that_mention_it_often(tmp_path: Path) -> None:
    often = a_page(tmp_path, "often", "# Jobs\n\nWith memory, memory, memory.\n")
    in_code = a_page(tmp_path, "in-code", "# Nodes\n\n```sh\n# memory\n```\n")
    heading = a_page(tmp_path, "heading", "# Laptop\n\nIts memory.\n\n## Little `memory`\n")
    title = a_page(tmp_path, "title", "# Time and memory\n\nCosts.\n")
    for_few = a_page(tmp_path, "for-few", "# Tests\n\n## Memory\n", tab="developers")
    changes = a_page(tmp_path, "changelog", "# Changes\n\nMemory and memory.\n", tab="project")
    without = a_page(tmp_path, "without", "# Disks\n")
    found = docs.with_word("Memory", [changes, without, for_few, in_code, often, heading, title])
    assert list(found.items()) == [
        (title, "Time and memory"),
        (heading, "Little memory"),
        (often, "With memory, memory, memory."),
        (in_code, "memory"),
        (for_few, "Memory"),
        (changes, "Memory and memory."),
    ]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("::: package.function\n\nIt runs.", "It runs."),
        ("**Yes**, if you can. Else not.", "Yes, if you can."),
        ("`engine = local` runs jobs here. Others do not.", "engine = local runs jobs here."),
        ("By quantiles (Cannon et al. 2015) of a day. More.", "By quantiles (Cannon et al. 2015) of a day."),
        ('=== "Narval"\n\n    - an item\n\n| a |\n|---|\n\n1. Go.\n\n```sh\nespo plan\n```\n\nSo:\n', "So"),
        ("| a |\n|---|\n\n## A section\n\nOf something else.", ""),
    ],
)
def test_the_first_sentence_of_a_page_is_that_of_its_first_paragraph(tmp_path: Path, text: str, first: str) -> None:
    assert a_page(tmp_path, "page", f"# Title\n\n{text}\n").first_sentence == first


def test_no_page_is_described_by_what_is_no_sentence() -> None:
    told = {page.stem: page.first_sentence for page in docs.pages()}
    assert {stem: words for stem, words in told.items() if re.match(r":::|\W*$", words) and words} == {}
    assert {stem: words for stem, words in told.items() if words.count("(") != words.count(")")} == {}


def test_tabs_and_notes_of_the_site_are_paragraphs_with_a_title() -> None:
    markdown = (
        'Before.\n\n=== "Narval"\n\n    Text.\n\n    ```ini\n    [slurm]\n    ```\n\n'
        '    !!! warning\n\n        Days.\n\n=== "Mila"\n\n    - an item\n\nAfter.\n'
    )
    assert docs.readable(markdown) == (
        "Before.\n\n**Narval**\n\nText.\n\n```ini\n[slurm]\n```\n\n**Warning**\n\nDays.\n\n"
        "**Mila**\n\n- an item\n\nAfter.\n"
    )


def test_every_page_that_code_and_configuration_name_is_there() -> None:
    texts = [path for name in ("espo_luigi", "config") for path in (ROOT / name).rglob("*.*") if path.is_file()]
    texts = [path for path in [*texts, ROOT / "luigi.cfg"] if path.suffix in (".py", ".cfg", ".yml", ".md", ".html")]
    named = {(name, path.name) for path in texts for name in re.findall(r"espo docs ([\w-]+)", path.read_text())}
    known = {page.stem for page in docs.pages()}
    assert ("slurm", "docs.py") in named, "the example of the command's help"
    assert sorted((name, file) for name, file in named if name not in known) == []
