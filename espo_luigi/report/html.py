"""A page of HTML from sections of text, tables and figures: one file, with nothing to load from elsewhere."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from urllib.parse import quote


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


class Warned(Text):
    """A paragraph about something wrong or missing."""


class Heading(Text):
    """A heading inside of a section."""


class Code(Text):
    """Lines to copy."""


@dataclass(frozen=True)
class Verdict(Text):
    """A few words, how bad they are (0 is good, 2 the worst), and the reason."""

    level: int
    reason: str


@dataclass(frozen=True)
class Link(Text):
    """A paragraph that leads to a file, by its path from the page."""

    file: str


@dataclass(frozen=True)
class Table:
    """A table, with its columns' names; the reader opens `folded` tables."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    folded: bool = False


@dataclass(frozen=True)
class Picture:
    """A figure: the name of its file, its bytes (PNG), and its caption; a `linked` figure's file is beside the page."""

    name: str
    png: bytes
    caption: str
    linked: bool = False

    @property
    def source(self) -> str:
        """The figure as a URL that holds it, or that of its file."""
        if self.linked:
            return quote(f"{self.name}.png")
        return "data:image/png;base64," + base64.b64encode(self.png).decode()

    @property
    def width(self) -> int:
        """Pixels, from the file's header: a browser leaves so much room before it has decoded the figure."""
        return int.from_bytes(self.png[16:20], "big")

    @property
    def height(self) -> int:
        """Pixels, as `width`."""
        return int.from_bytes(self.png[20:24], "big")


@dataclass(frozen=True)
class Section:
    """A section of the page: of the blocks above, and of drawings until they are drawn; may be `folded`.

    `part` is the key of the part that it belongs to, of a page with parts.
    """

    title: str
    blocks: Sequence[object]
    folded: bool = False
    part: str = ""

    @property
    def pictures(self) -> list[Picture]:
        """Its figures."""
        return [block for block in self.blocks if isinstance(block, Picture)]


def _is_number(cell: str) -> bool:
    """Whether a cell is a number as tables have it, such as −1,234.5; versions and 1991-2020 are not."""
    return re.fullmatch(r"[−-]?\d[\d,]*(\.\d+)?", cell) is not None


def render_page(
    title: str, introduction: str, sections: Sequence[Section], parts: Mapping[str, str] | None = None
) -> str:
    """Return the page's HTML; all text is escaped. `parts` are titles by key; without them, each section is a part."""
    import jinja2

    template = files("espo_luigi.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"kind": lambda block: type(block).__name__, "is_number": _is_number}
    of_parts = {key: (name, [one for one in sections if one.part == key]) for key, name in (parts or {}).items()}
    alone = {f"section-{at}": (one.title, [replace(one, title="")]) for at, one in enumerate(sections, 1)}
    return environment.from_string(template).render(title=title, introduction=introduction, parts=of_parts or alone)
