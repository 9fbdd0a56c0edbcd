"""Figures that are yet to be drawn, each by itself: one by one, or by several processes."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from espo_luigi.report.page import Picture, Section, Warned
from espo_luigi.report.style import png, warm_up

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

_OBJECTS_BETWEEN_COLLECTIONS = 200_000


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure to be drawn by `draw`, a function of a module; `arguments` are pickled for the process that draws."""

    name: str
    caption: str
    draw: Callable[..., Figure]
    arguments: Sequence[Any] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def drawn(self) -> Picture | Warned:
        """Return the picture, or a paragraph about why it could not be drawn."""
        try:
            return Picture(self.name, png(self.draw(*self.arguments, **self.options)), self.caption)
        except Exception as error:  # a chunk that cannot be read raises whatever its codec does
            return Warned(f"{self.caption}: could not be drawn ({type(error).__name__}: {error})")


def with_pictures(sections: Sequence[Section], processes: int = 0) -> list[Section]:
    """Return the sections with their drawings drawn, by so many forked processes, or, if 0, by this one."""
    drawings = [block for section in sections for block in section.blocks if isinstance(block, Drawing)]
    done = dict(zip(map(id, drawings), _each(drawings, processes), strict=True))
    return [replace(section, blocks=[done.get(id(block), block) for block in section.blocks]) for section in sections]


def _each(drawings: Sequence[Drawing], processes: int) -> list[Picture | Warned]:
    if not processes or len(drawings) < 2:
        return [drawing.drawn() for drawing in drawings]
    # Forked ones have what this process has imported, which takes a new one as long as drawing ten figures.
    warm_up()
    done: list[Picture | Warned] = []
    try:
        with ProcessPoolExecutor(processes, get_context("fork"), _alone) as pool:
            done.extend(pool.map(Drawing.drawn, drawings))
    except BrokenProcessPool:
        left = len(drawings) - len(done)
        logger.warning("A process that draws figures was killed: %d of them are drawn by this one", left)
        done += [drawing.drawn() for drawing in drawings[len(done) :]]
    return done


def _alone() -> None:
    """Have a forked process compute by itself: the threads of its parent's pools are not in it."""
    import dask

    dask.config.set(scheduler="synchronous")
    # A figure is a hundred thousand objects: the garbage collector, which goes through all again and again, takes a
    # quarter of the time.
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
