"""The site's generated pages are what docs/make_reference.py makes of the code, and the pages name what exists."""

import json
import os
import re
import runpy
import zlib
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from make_blocks import BLOCKS, filled

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SITE = ROOT / "mkdocs.yml"


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "make_reference.py"))


@pytest.fixture(scope="module")
def made(reference: dict[str, Any]) -> dict[str, str]:
    pages: dict[str, str] = reference["pages"]()
    return pages


@pytest.mark.parametrize("name", ["cli.md", "drs.md", "keys.md", "rules.md", "settings.md"])
def test_the_page_is_what_the_code_says(name: str, made: dict[str, str]) -> None:
    written = (DOCS / "reference" / name).read_text()
    assert written == made[name], "run `python docs/make_reference.py`"


def test_the_blocks_of_written_pages_are_what_the_code_says(reference: dict[str, Any]) -> None:
    written = reference["written_pages"]()
    assert len(written) > 0
    for page, text in written.items():
        assert page.read_text() == text, f"{page}: run `python docs/make_reference.py`"


def test_each_block_stands_on_a_page() -> None:
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    assert [name for name in BLOCKS if f"<!-- made: {name} -->" not in pages] == []


def block(text: str) -> str:
    page = DOCS / "run" / "slurm.md"
    return filled(page, text, {"one": lambda: "See [it](/run/messages.md#a) or [that](/reference/keys.md).\n"})


def test_a_block_is_filled_with_links_from_its_page_and_indented_as_its_markers() -> None:
    filled_in = "See [it](messages.md#a) or [that](../reference/keys.md)."
    text = "Before.\n<!-- made: one -->\nold\n<!-- end made -->\nAfter.\n"
    assert block(text) == f"Before.\n<!-- made: one -->\n\n{filled_in}\n\n<!-- end made -->\nAfter.\n"
    assert block(block(text)) == block(text)
    within = '=== "Tab"\n    <!-- made: one -->\n    <!-- end made -->\n'
    assert block(within) == f'=== "Tab"\n    <!-- made: one -->\n\n    {filled_in}\n\n    <!-- end made -->\n'


def test_the_page_of_rules_has_every_rule_with_its_class_s_module(
    reference: dict[str, Any], made: dict[str, str]
) -> None:
    from espo_luigi.tasks.make import rules

    sections = {part.splitlines()[0]: part for part in re.split("\n##+ ", made["rules.md"])[1:]}
    assert {rule.__name__ for rule in rules()} == sections.keys() - {
        *reference["STAGES"],
        reference["V2"],
        reference["GONE"],
    }
    assert set(reference["ONLY_V2"]) < sections.keys()
    assert all(f"`{rule.__module__}`" in sections[rule.__name__] for rule in rules())


def test_the_pages_tell_nothing_of_the_machine_that_made_them(made: dict[str, str]) -> None:
    text = "".join(made.values())
    assert str(Path.cwd()) not in text and str(Path.home()) not in text and " at 0x" not in text


def test_the_promises_name_tests_and_programs_that_exist() -> None:
    named = re.findall(r"(?:pytest|python) (?:-m slurm )?(\S+\.py)", (DOCS / "start" / "for-me.md").read_text())
    assert len(named) == 3
    assert [name for name in named if not (DOCS.parent / name).is_file()] == []


def test_the_files_from_elsewhere_have_their_licences_beside_them() -> None:
    vendor = DOCS / "assets" / "vendor"
    listed = (vendor / "README").read_text()
    files = [path.name for path in vendor.iterdir() if path.is_file() and path.name != "README"]
    assert [name for name in files if name not in listed] == []
    assert len([name for name in files if name.startswith("LICENSE-")]) == 3


@pytest.fixture(scope="module")
def maker() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "make_notebook.py"))


def test_the_notebook_is_the_tutorial(maker: dict[str, Any]) -> None:
    written = maker["TUTORIAL"].with_suffix(".ipynb").read_text()
    assert written == maker["notebook"](maker["TUTORIAL"].read_text()), "run `python docs/make_notebook.py`"


def linked(path: Path) -> list[tuple[Path, str]]:
    """The files, with anchors, that a Markdown file outside of the site links to."""
    found = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text())
    return [(path.parent / name if name else path, anchor) for name, anchor in found]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_the_links_outside_of_the_site_lead_somewhere(name: str) -> None:
    for target, anchor in linked(ROOT / name):
        assert target.exists(), target
        titles = re.findall(r"^#+ (.+)", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in titles]


def test_the_pages_that_code_messages_and_changelog_name_exist() -> None:
    texts = [path for name in ("espo_luigi", "tests", "benchmarks", "config") for path in (ROOT / name).rglob("*.*")]
    texts = [path for path in [*texts, ROOT / "CHANGELOG.md"] if path.suffix in (".py", ".cfg", ".yml", ".md")]
    texts.remove(Path(__file__))
    named = {one for path in texts for one in re.findall(r"\bdocs/[\w/-]+\.(?:md|py|png|ipynb)\b", path.read_text())}
    assert len(named) > 15
    assert sorted(name for name in named if not (ROOT / name).is_file()) == []


@pytest.fixture(scope="module")
def hooks() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "hooks.py"))


def test_a_file_of_the_root_links_to_pages_and_names_other_files(hooks: dict[str, Any]) -> None:
    gone = "docs/" + "gone.md"  # in parts: a test looks for pages that files name
    text = (
        "See [Slurm](docs/run/slurm.md#stopping), [NOTICE](NOTICE), [it](https://a.org/docs/run/slurm.md),\n"
        f"[changes](CHANGELOG.md) and docs/index.md, not {gone} nor `docs/make_method.py`.\n"
    )
    pages = {"run/slurm.md", "index.md", *hooks["ROOT_PAGES"]}
    assert hooks["page_of_the_root"](text, "project/contributing.md", pages) == (
        "See [Slurm](../run/slurm.md#stopping), NOTICE, [it](https://a.org/docs/run/slurm.md),\n"
        f"[changes](changelog.md) and [`docs/index.md`](../index.md), not {gone} nor `docs/make_method.py`.\n"
    )


def test_outputs_stand_below_the_blocks_that_made_them_and_long_ones_are_cut(hooks: dict[str, Any]) -> None:
    page = "# Title\n\nText.\n\n```bash\nespo plan\n```\n\nMore.\n\n```sh\nother\n```\n"
    long = "".join(f"line {number}\n" for number in range(100))
    shown = hooks["with_outputs"](page, [{"block": "espo plan\n", "output": long}])
    box = shown.partition('```bash\nespo plan\n```\n\n<div class="output" markdown>\n\n```text\n')[2].partition(
        "\n```"
    )[0]
    lines = box.splitlines()
    assert lines[0] == "line 0" and lines[-1] == "line 99" and "…" in lines and len(lines) == 33
    assert shown.endswith("More.\n\n```sh\nother\n```\n") and shown.count("```text") == 1
    assert shown.startswith("# Title\n\n!!! info") and "\n\nText.\n" in shown
    assert hooks["with_outputs"](page, [{"block": "another\n", "output": long}]) == page


def test_the_gallery_has_the_figures_of_the_folder_that_the_environment_names(
    hooks: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (page,) = [path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).as_posix() == hooks["GALLERY"]]
    empty = hooks["with_figures"](page.read_text(), hooks["figures_in"](tmp_path))
    assert "built without a run" in empty and "when this site was built" not in empty
    figures = [{"file": f"{name}.png", "caption": f"of {name}", "section": "2. Maps"} for name in "ab"]
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    monkeypatch.setenv(hooks["OUTPUTS"], str(tmp_path))
    shown = hooks["with_figures"](page.read_text(), hooks["figures_in"](hooks["outputs_folder"]()))
    assert shown.count("## Maps") == 1 and "<!-- figures -->" not in shown
    assert "when this site was built" in shown and "built without a run" not in shown
    assert re.findall(r"!\[(of .)\]\(report-figures/(.)\.png\)", shown) == [("of a", "a"), ("of b", "b")]
    assert (DOCS / hooks["TUTORIAL"]).is_file()


def test_the_inventories_are_what_their_script_makes_and_the_site_uses_all_of_them() -> None:
    script = runpy.run_path(str(DOCS / "make_inventories.py"))
    used = dict(re.findall(r"file:docs/assets/inventories/(\w+)\.inv', base_url: '([^']+)'", SITE.read_text()))
    assert used == {package: documents.address for package, documents in script["DOCUMENTS"].items()}
    for package, documents in script["DOCUMENTS"].items():
        written = (DOCS / "assets" / "inventories" / f"{package}.inv").read_bytes()
        assert entries(written) == entries(script["inventory"](package, documents)), "run docs/make_inventories.py"


def entries(inventory: bytes) -> list[str]:
    """The lines of an inventory; how they are compressed depends on the library."""
    *_, compressed = inventory.split(b"\n", 4)
    return zlib.decompress(compressed).decode().splitlines()


if BUILT := os.environ.get("ESPO_BUILT_SITE"):

    @pytest.mark.parametrize("page", ["index", "check/report", "set-up/methods", "start/tutorial", "reference/api"])
    def test_a_page_of_the_site_is_accessible_in_light_and_dark(page: str, tmp_path: Path) -> None:
        with Browser(tmp_path / "browser") as browser:
            browser.open((Path(BUILT) / f"{page}.html").resolve().as_uri())
            for dark in (False, True):
                scheme = "slate" if dark else "default"
                # Without a server, the theme does not follow the browser's scheme. Its colours fade.
                browser.evaluate(
                    "document.head.append(Object.assign(document.createElement('style'), "
                    "{textContent: '* {transition: none !important}'})); "
                    f"document.body.dataset.mdColorScheme = '{scheme}'"
                )
                assert browser.findings(dark=dark) == []
