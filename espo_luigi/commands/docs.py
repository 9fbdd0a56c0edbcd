"""``espo docs``: the pages of the documentation, which come with the package, shown in the terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

import click

from espo_luigi.commands.views import completing, say, say_in_a_line
from espo_luigi.errors import EspoError, nearest

# The site's tabs, in its order, by the folder of their pages; mkdocs.yml has them, too.
TABS = {
    "start": "Start",
    "set-up": "Set up",
    "run": "Run",
    "check": "Check, hand on",
    "extend": "Extend",
    "understand": "Understand",
    "reference": "Reference",
    "project": "Project",
    "developers": "Developers",
}
# Pages that lie beside these folders: in docs/, and in the checkout's root.
_OTHER_PAGES = {"index": "start", "architecture": "developers", "CHANGELOG": "project", "CONTRIBUTING": "project"}
# Where setup.cfg has the pages put, below the environment's folder.
_INSTALLED = "share/doc/espo_luigi/"
_MOST_MATCHES = 10
# Diagrams, comments, tags, images and icons.
_ONLY_ON_THE_SITE = re.compile(
    r"^```mermaid\n.*?^```$|<!--.*?-->|^ *</?[a-z][^>\n]*> *$|!\[[^\]]*\]\([^)]*\)|:(?:material|octicons)-[\w-]+: *",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Page:
    """A page of the documentation: its file, and the folder of its tab."""

    path: Path
    tab: str

    @property
    def stem(self) -> str:
        """The name by which commands and messages know the page."""
        return self.path.stem.lower()

    @cached_property
    def text(self) -> str:
        """The page's Markdown, without what only the site can show."""
        text = _ONLY_ON_THE_SITE.sub("", self.path.read_text("utf-8"))
        return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"

    @property
    def title(self) -> str:
        heading = re.search(r"^# +(.+)", self.text, re.MULTILINE)
        return heading[1].replace("`", "") if heading else self.stem


def pages() -> list[Page]:
    """Return all pages, by tab: those of the checkout that the package lies in, else those that came with the wheel.

    Raises EspoError if there are none.
    """
    root = Path(__file__).parents[2]
    if (root / "docs" / "index.md").is_file() and (root / "mkdocs.yml").is_file():
        paths = {*(root / "docs").rglob("*.md"), root / "CHANGELOG.md", root / "CONTRIBUTING.md"}
    else:
        try:
            listed = distribution("espo_luigi").files or []
        except PackageNotFoundError:
            listed = []
        ours = [file for file in listed if file.suffix == ".md" and _INSTALLED in file.as_posix()]
        # `pip install --target` puts the pages elsewhere than it lists.
        paths = {path for file in ours if (path := Path(str(file.locate())).resolve()).is_file()}
    if not paths:
        raise EspoError(
            f"no page found: neither docs/ beside the package nor {_INSTALLED} of the environment; "
            "install the wheel again, or read the pages on the site"
        )
    known = [Page(path, _OTHER_PAGES.get(path.stem, path.parent.name)) for path in paths]
    return sorted(known, key=lambda page: ([*TABS].index(page.tab), page.stem != "index", page.stem))


def stems() -> list[str]:
    """Return the names of all pages."""
    return [page.stem for page in pages()]


def with_word(word: str, known: Iterable[Page]) -> dict[Page, str]:
    """Return the pages whose text has `word` and a line with it: a heading, if any has it.

    Pages with the word in their title come first, then those that have it most often.
    """
    wanted, lines = re.compile(re.escape(word), re.IGNORECASE), dict[Page, str]()
    for page in sorted(known, key=lambda page: (not wanted.search(page.title), -len(wanted.findall(page.text)))):
        if having := [line for line in page.text.splitlines() if wanted.search(line)]:
            lines[page] = next((line for line in having if line.startswith("#")), having[0]).strip("|#- ")
    return lines


@click.command(epilog="Example: espo docs slurm")
@click.argument("word", default="", metavar="[PAGE|WORD]", shell_complete=completing("commands.docs", "stems"))
@click.option("--path", "only_path", is_flag=True, help="Print the page's path instead.")
def docs(word: str, only_path: bool) -> int:
    """Show a page of the documentation; without a name, list them.

    A word that is no page's name is searched in all pages.
    """
    known = pages()
    # A page may be called `slurm`, `run/slurm` or `docs/run/slurm.md#a-heading`, as links have it.
    stem = PurePosixPath(word.partition("#")[0]).stem.lower()
    page = next((page for page in known if page.stem == stem), None)
    if not word:
        for folder, tab in TABS.items():
            say(tab)
            for page in [page for page in known if page.tab == folder]:
                say_in_a_line(f"  {page.stem:<20}  {page.path if only_path else page.title}")
    elif page and only_path:
        say(page.path)
    elif page and sys.stdout.isatty():
        click.echo_via_pager(page.text)
    elif page:
        say(page.text, end="")
    elif matches := {} if only_path else with_word(word, known):
        say(f"There is no page {word}. These pages have the word:")
        for page, line in [*matches.items()][:_MOST_MATCHES]:
            say_in_a_line(f"  {page.stem:<20}  {line}")
    else:
        close = nearest(word.lower(), [page.stem for page in known])
        no_page = f"there is no page {word}{close or ('.' if only_path else ', and no page has the word.')}"
        raise EspoError(f"{no_page} `espo docs` lists the pages")
    return 0
