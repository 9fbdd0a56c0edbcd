"""Figures that are yet to be drawn, each by itself: by the workers of a job's Dask session, or here, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from espo_luigi.errors import EspoError
from espo_luigi.report.page import Picture, Section, Warned
from espo_luigi.report.style import png

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure to be drawn by `draw`, a function of a module; `arguments` travel to whoever draws it."""

    name: str
    caption: str
    draw: Callable[..., Figure]
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def drawn(self) -> Picture | Warned:
        """Return the picture, or a paragraph that says why it could not be drawn."""
        try:
            return Picture(self.name, png(self.draw(*self.arguments, **self.options)), self.caption)
        except (EspoError, ValueError, KeyError, TypeError) as error:
            return Warned(f"{self.caption}: could not be drawn ({type(error).__name__}: {error})")


def with_pictures(sections: Sequence[Section]) -> list[Section]:
    """Return the sections with their drawings drawn, at once where this process has Dask workers."""
    drawings = [block for section in sections for block in section.blocks if isinstance(block, Drawing)]
    done = dict(zip(map(id, drawings), _each(drawings), strict=True))
    return [replace(section, blocks=[done.get(id(block), block) for block in section.blocks]) for section in sections]


def _each(drawings: Sequence[Drawing]) -> list[Picture | Warned]:
    from distributed import get_client

    try:
        client = get_client()
    except ValueError:
        return [drawing.drawn() for drawing in drawings]
    return list(client.gather(client.map(Drawing.drawn, drawings, pure=False)))
