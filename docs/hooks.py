"""What building the site adds to the pages: mkdocs calls the functions `on_…`.

- The version of setup.cfg, in the header.
- Changelog and contributing: the files of the repository's root, as pages.
- Outputs below the tutorial's blocks, and the gallery of the report's figures. The environment's `ESPO_SITE_OUTPUTS`
  names their folder, which tests/tasks/test_end_to_end.py fills. Without it, the pages are built without outputs.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from configparser import ConfigParser
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
OF_THE_ROOT = {"project/changelog.md": "CHANGELOG.md", "project/contributing.md": "CONTRIBUTING.md"}
TUTORIAL, GALLERY = "start/tutorial.md", "check/gallery.md"
OUTPUTS = "ESPO_SITE_OUTPUTS"
FIGURES = "report-figures"
# Of a longer output, the first and the last lines are shown.
FIRST_LINES, LAST_LINES = 24, 8
_NOTE = (
    '!!! info ""\n    The outputs on this page were made together with this site, by the example on a smaller land '
    "and for 1971 to 2040: your numbers differ.\n"
)
_FIGURES_NOTE = (
    "`espo report` made these figures when this site was built: of the example, on a smaller land than the tutorial's "
    "and for 1971 to 2040."
)
_PAGE_OF_THE_REPOSITORY = re.compile(r"(?<![\w/.(\[])docs/([\w/-]+\.md)")
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]+)?\)")


def on_config(config: Any) -> Any:
    """Name the version in the header."""
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg", "utf-8")
    config.site_name = f"{config.site_name} {setup['metadata']['version']}"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from the repository's root, and the gallery's figures."""
    from mkdocs.structure.files import File

    pages = {file.src_uri for file in files}
    for uri, name in OF_THE_ROOT.items():
        text = page_of_the_root((ROOT / name).read_text("utf-8"), uri, pages | OF_THE_ROOT.keys())
        files.append(File.generated(config, uri, content=text))
    for figure in figures_in(folder := outputs_folder()):
        path = f"{FIGURES}/{figure['file']}"
        files.append(File.generated(config, f"check/{path}", abs_src_path=str(folder / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the outputs of a run into the pages that show them."""
    folder = outputs_folder()
    if page.file.src_uri == TUTORIAL and folder and (folder / "tutorial.json").is_file():
        return with_outputs(markdown, json.loads((folder / "tutorial.json").read_text("utf-8")))
    if page.file.src_uri == GALLERY:
        return with_figures(markdown, figures_in(folder))
    return markdown


def outputs_folder() -> Path | None:
    """Return the folder of a run's outputs, if there is one."""
    named = os.environ.get(OUTPUTS)
    return Path(named) if named and Path(named).is_dir() else None


def figures_in(folder: Path | None) -> list[dict[str, str]]:
    """Return the report's figures: file, caption and section of each."""
    listed = folder / "figures.json" if folder else None
    return list(json.loads(listed.read_text("utf-8"))) if listed and listed.is_file() else []


def page_of_the_root(text: str, uri: str, pages: Iterable[str]) -> str:
    """Return the text of a file of the repository's root, with links to pages of the site.

    Paths of pages become links, too. Links to files that the site does not have become their text.
    """
    known = set(pages)
    ours = {name: page for page, name in OF_THE_ROOT.items()}

    def link(words: str, target: str, anchor: str, otherwise: str) -> str:
        page = ours.get(target, target.removeprefix("docs/"))
        return f"[{words}]({posixpath.relpath(page, posixpath.dirname(uri))}{anchor})" if page in known else otherwise

    text = _PAGE_OF_THE_REPOSITORY.sub(lambda found: link(f"`{found[0]}`", found[0], "", found[0]), text)
    return _LINK.sub(
        lambda found: found[0] if found[2].startswith("../") else link(found[1], found[2], found[3] or "", found[1]),
        text,
    )


def with_outputs(markdown: str, recorded: Iterable[Mapping[str, str]]) -> str:
    """Return a page with what each block printed below the block; a block that is not recorded stays as it is."""
    outputs = {one["block"]: one["output"] for one in recorded}
    blocks = re.compile(r"^```(?:sh|bash|python)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
    text = blocks.sub(lambda block: block[0] + _box(outputs.get(block[1], "")), markdown)
    title, _, rest = text.partition("\n\n")
    return f"{title}\n\n{_NOTE}\n{rest}" if text != markdown else markdown


def _box(output: str) -> str:
    lines = output.rstrip().splitlines()
    if len(lines) > FIRST_LINES + LAST_LINES + 1:
        lines = [*lines[:FIRST_LINES], "…", *lines[-LAST_LINES:]]
    text = "\n".join(lines).replace("```", "'''")
    return f'\n<div class="output" markdown>\n\n```text\n{text}\n```\n\n</div>\n' if text else ""


def with_figures(markdown: str, figures: Sequence[Mapping[str, str]]) -> str:
    """Return the gallery with its figures in the place of its marker, by section of the report."""
    parts = [_FIGURES_NOTE if figures else "This copy of the site was built without a run, so it has no figures."]
    for section, those in groupby(figures, key=lambda figure: figure["section"]):
        parts.append(f"## {re.sub(r'^[0-9]+[.] ', '', section)}")
        parts += [
            f"![{one['caption']}]({FIGURES}/{one['file']}){{ loading=lazy }}\n\n*{one['caption']}*" for one in those
        ]
    return markdown.replace("<!-- figures -->", "\n\n".join(parts))
