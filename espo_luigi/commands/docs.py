"""``espo docs``: the pages of the documentation, which come with the package, shown in the terminal."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

import click

from espo_luigi.commands.views import line_width, say
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
# Pages that lie beside these folders.
_TAB_OF_TOP_PAGES = {"index": "start", "architecture": "developers"}
# Files of the checkout's root that are pages of the tab `project`.
_ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")
# Where setup.cfg has the pages put, below the environment's folder.
_INSTALLED = "share/doc/espo_luigi/"
_MOST_COLUMNS = 100
_MOST_MATCHES = 10


class PageError(EspoError):
    """There is no such page."""


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
        return readable(self.path.read_text("utf-8"))

    @property
    def title(self) -> str:
        """The page's title."""
        found = re.search(r"^# +(.+)", self.text, re.MULTILINE)
        return _plain(found[1]) if found else self.stem

    @property
    def first_sentence(self) -> str:
        """The first sentence of the page's first paragraph; nothing if the page begins without prose."""
        before_sections = re.split(r"^## ", _BLOCK.sub("\n", self.text), maxsplit=1, flags=re.MULTILINE)[0]
        for paragraph in re.split(r"\n\s*\n", before_sections):
            words = _plain(" ".join(paragraph.split()))
            if words and not _NO_PROSE.match(paragraph.strip("\n")):
                return re.split(r"(?<=[.?!])(?<!et al\.)\s", words, maxsplit=1)[0].rstrip(":")
        return ""

    @cached_property
    def headings(self) -> list[str]:
        """The page's headings, the title first."""
        return [_plain(words) for words in re.findall(r"^#+ +(.+)", _BLOCK.sub("", self.text), re.MULTILINE)]


# Headings, tables, quotations, items, what the site takes from docstrings, titles of tabs and notes, indented code.
_NO_PROSE = re.compile(r"\s*(#|\||>|:::|[*+-]\s|\d+\.\s|\*\*[^*]+\*\*\s*$)|    ")
_BLOCK = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)[^)]*\)")
# What only the site can show, and what stands for it in a terminal.
_ONLY_ON_THE_SITE = (
    (re.compile(r"^```mermaid\n.*?^```$", re.DOTALL | re.MULTILINE), ""),
    (re.compile(r"<!--.*?-->", re.DOTALL), ""),
    (re.compile(r"^ *</?(?:div|figure|figcaption|section|span|p|br)\b[^>]*>\s*$", re.MULTILINE), ""),
    (re.compile(r"<br */?>"), " "),
    (re.compile(r"!\[[^\]]*\]\([^)]*\)(?:\{[^}]*\})?"), ""),
    (re.compile(r":(?:material|octicons|fontawesome)-[\w-]+:(?:\{[^}]*\})? *"), ""),
    (re.compile(r"(?<=\S) *\{ *[:#.][^}`]*\}$", re.MULTILINE), ""),
)
_TAB_OR_NOTE = re.compile(r'^( *)(?:===|!!!|\?\?\?\+?) *(\w*) *(?:"(.*)")? *$')


def readable(markdown: str) -> str:
    """Return a page's Markdown without images, diagrams, icons and comments; tabs and notes are paragraphs."""
    for pattern, instead in _ONLY_ON_THE_SITE:
        markdown = pattern.sub(instead, markdown)
    lines = _without_boxes(markdown.splitlines())
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n") + "\n"


def _without_boxes(lines: list[str]) -> Iterator[str]:
    """Yield lines with the content of tabs and notes at the margin of the text around, below their titles in bold."""
    inside: list[int] = []  # the margins of the boxes around a line
    for line in lines:
        indent = len(line) - len(line.lstrip())
        while line.strip() and inside and indent < inside[-1] + 4:
            inside.pop()
        if box := _TAB_OR_NOTE.match(line):
            yield f"{' ' * (indent - 4 * len(inside))}**{box[3] or box[2].capitalize()}**"
            inside.append(indent)
        else:
            yield line[4 * len(inside) :] if line.strip() else ""


def _plain(markdown: str) -> str:
    return re.sub(r"[*`]", "", _LINK.sub(r"\1", markdown))


def pages() -> list[Page]:
    """Return all pages, by tab: those of the checkout that the package lies in, else those that came with the wheel."""
    checkout = Path(__file__).parents[2]
    if (checkout / "docs" / "index.md").is_file() and (checkout / "mkdocs.yml").is_file():
        found = {path: path.relative_to(checkout / "docs").parent.name for path in (checkout / "docs").rglob("*.md")}
        found |= {checkout / name: "project" for name in _ROOT_PAGES}
    else:
        found = _installed()
    order = list(TABS)
    known = [
        Page(path, tab or _TAB_OF_TOP_PAGES[path.stem])
        for path, tab in found.items()
        if tab or path.stem in _TAB_OF_TOP_PAGES
    ]
    return sorted(known, key=lambda page: (order.index(page.tab), page.stem != "index", page.stem))


def _installed() -> dict[Path, str]:
    """The pages that the installation of the package put below the environment's folder, with their folders."""
    try:
        listed = distribution("espo_luigi").files or ()
    except PackageNotFoundError:
        listed = ()
    places = {file: file.as_posix().partition(_INSTALLED)[2] for file in listed if file.suffix == ".md"}
    found = {Path(str(file.locate())).resolve(): place.rpartition("/")[0] for file, place in places.items() if place}
    # `pip install --target` puts the pages elsewhere than it lists.
    return {path: folder for path, folder in found.items() if path.is_file()}


def page_of(word: str, known: list[Page]) -> Page | None:
    """Return the page that `word` names: `slurm`, `run/slurm` or `docs/run/slurm.md`."""
    stem = PurePosixPath(word.partition("#")[0]).stem.lower()
    return next((page for page in known if page.stem == stem), None)


def with_word(word: str, known: list[Page]) -> dict[Page, str]:
    """Return the pages whose text has `word`, with its first heading there, else its first line.

    Pages with the word in their title come first, and pages for users before those for developers; then pages with the
    word in a heading, and those that have it most often.
    """
    wanted = re.compile(re.escape(word), re.IGNORECASE)
    found: dict[Page, str] = {}
    for page in known:
        if line := next((line for line in (*page.headings, *page.text.splitlines()) if wanted.search(line)), ""):
            found[page] = _plain(line).strip("|#- ")

    def rank(page: Page) -> tuple[bool, bool, bool, int]:
        in_title, in_heading = (any(map(wanted.search, words)) for words in ([page.title], page.headings))
        is_for_few = page.tab == "developers" or page.stem == "changelog"
        return not in_title, is_for_few, not in_heading, -len(wanted.findall(page.text))

    return {page: found[page] for page in sorted(found, key=rank)}


def _stems(_context: object, _parameter: object, begun: str) -> list[str]:
    return [page.stem for page in pages() if page.stem.startswith(begun)]


@click.command(epilog="Example: espo docs slurm")
@click.argument("word", default="", metavar="[PAGE|WORD]", shell_complete=_stems)
@click.option("--path", "only_path", is_flag=True, help="Print the page's path instead.")
def docs(word: str, only_path: bool) -> int:
    """Show a page of the documentation; without a name, list them.

    A word that is no page's name is searched in all pages.
    """
    known = pages()
    if not known:
        raise PageError(
            f"no page found: neither docs/ beside the package nor {_INSTALLED} of the environment; "
            "install the wheel again, or read the pages on the site"
        )
    if not word:
        say("\n".join(page_list(known, with_paths=only_path)))
        return 0
    if page := page_of(word, known):
        _show(page, known, only_path)
        return 0
    found = {} if only_path else with_word(word, known)
    if not found:
        close = nearest(word.lower(), [page.stem for page in known])
        no_page = f"there is no page {word}{close or ('.' if only_path else ', and no page has the word.')}"
        raise PageError(f"{no_page} `espo docs` lists the pages")
    say(f"There is no page {word}. These pages have the word:")
    say("\n".join(_rows({page.stem: line for page, line in list(found.items())[:_MOST_MATCHES]})))
    return 0


def page_list(known: list[Page], with_paths: bool = False) -> Iterator[str]:
    """Yield the lines of the list of all pages, by tab."""
    for folder, tab in TABS.items():
        shown = {page.stem: page for page in known if page.tab == folder}
        if shown:
            yield tab
            told = {stem: page.path if with_paths else _described(page) for stem, page in shown.items()}
            yield from _rows(told, max(len(page.stem) for page in known))


def _described(page: Page) -> str:
    return f"{page.title}{'' if page.title[-1] in '.?!' else '.'} {page.first_sentence}".rstrip()


def _rows(told: Mapping[str, object], room: int = 0) -> Iterator[str]:
    """Yield a line for each page, cut to the terminal's width."""
    width, room = line_width(), room or max(map(len, told))
    for stem, text in told.items():
        line = f"  {stem:<{room}}  {text}"
        yield line if len(line) <= width else f"{line[: width - 1]}…"


def _show(page: Page, known: list[Page], only_path: bool) -> None:
    if only_path:
        say(page.path)
    elif sys.stdout.isatty():
        # Without `color`, click has `less` show the styles; a pager that cannot gets plain text.
        click.echo_via_pager(_rendered(page, known))
    else:
        say(page.text, end="")


def _rendered(page: Page, known: list[Page]) -> str:
    """A page as the terminal shows it, and the names of the pages that it links to."""
    from rich.console import Console
    from rich.markdown import Markdown

    names = [linked.stem for _, target in _LINK.findall(page.text) if (linked := _target(target, known))]
    others = " · ".join(dict.fromkeys(f"`espo docs {name}`" for name in names if name != page.stem))
    text = _LINK.sub(lambda link: link[0] if link[2].startswith("http") else link[1], page.text)
    console = Console(file=io.StringIO(), force_terminal=True, width=min(line_width(), _MOST_COLUMNS))
    console.print(Markdown(text + (f"\n\n---\n\nLinked pages: {others}\n" if others else "")))
    return console.file.getvalue()  # type: ignore[attr-defined]


def _target(link: str, known: list[Page]) -> Page | None:
    is_page = "://" not in link and link.partition("#")[0].endswith(".md")
    return page_of(link, known) if is_page else None
