"""The way of a value as a table, as JSON, and as a figure."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.audit.value import Way
from espo_luigi.errors import ParameterError
from espo_luigi.methods.base import Step
from espo_luigi.replacing import check_ours, write_ours
from espo_luigi.report.drawings import ADJUSTED, PICTURE_OF_OURS, RAW, drawing, new_figure, picture
from espo_luigi.science.display import as_shown, units_text
from espo_luigi.science.units import as_difference
from espo_luigi.science.variables import VARIABLES, Variable, variable

# Steps whose values, if they have a unit, are differences.
_DIFFERENCES, _OF_OTHERS = ("anomaly", "factor"), "adjusted "
_SUFFIXES = (".png", ".svg", ".pdf")
_COLUMNS = 100


def as_json(value: Any) -> Any:
    """Return the way of a value, or an audit, as values of JSON; a number that is none is null."""
    if dataclasses.is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Step):
        return as_json(value._asdict())
    if isinstance(value, Mapping):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render(way: Way, table: Mapping[str, Variable] = VARIABLES) -> str:
    """Return a way as tables, in the units of reports: the raw cells and steps of each variable, and each product's."""
    raw_day = "" if way.raw_date == way.date else f", {way.raw_date} in the raw files"
    lines = [
        way.sim_id,
        f"{way.cell} (piece {way.cell.piece}, land cell {way.cell.place}), {way.date} ({way.calendar}{raw_day})",
    ]
    lines.append(f"regridded series: {way.source or 'made again from the raw files'}")
    for name, adjusted in way.adjusted.items():
        lines += ["", f"{name}, adjusted", f"  {'lat °N':>9} {'lon °E':>9} {'weight':>7}  raw value"]
        lines += [
            f"  {cell.lat:9.3f} {cell.lon:9.3f} {cell.weight:7.4f}  "
            f"{_quantity(Step('raw', cell.value, adjusted.units), name, table)}"
            for cell in adjusted.raw
        ]
        lines += _table(adjusted.steps, name, table)
    for name, product in way.products.items():
        lines += ["", f"{name}, product", *_table(product.steps, name, table), f"  in {product.store}"]
    return "\n".join([*lines, "", *textwrap.wrap(_exactness(way), _COLUMNS)])


def _quantity(step: Step, name: str, table: Mapping[str, Variable]) -> str:
    """A step's value with its units; amounts, and numbers without a unit, have four digits."""
    if math.isnan(step.value):
        return "no value"
    # A product's first steps are of the variables that it is made of.
    name = step.name.removeprefix(_OF_OTHERS) if step.name.startswith(_OF_OTHERS) else name
    given, known = xr.DataArray(step.value, attrs={"units": step.unit}, name=name), variable(name, table)
    shown = as_shown(as_difference(given) if step.name in _DIFFERENCES else given, known)
    units = shown.attrs["units"]
    if units in ("", "1"):
        return f"{float(shown):.4g}"
    return f"{float(shown):{'.6g' if known.wet is None else '.4g'}} {units_text(units)}"


def _table(steps: tuple[Step, ...], name: str, table: Mapping[str, Variable]) -> Iterator[str]:
    rows = [(step.name, _quantity(step, name, table), step.sentence) for step in steps]
    names, values = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, value, sentence in rows:
        start = f"  {name:<{names}}  {value:<{values}}  "
        yield from textwrap.wrap(
            start + sentence, _COLUMNS, subsequent_indent=" " * len(start), drop_whitespace=True,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def _exactness(way: Way) -> str:
    if all(product.identical for product in way.products.values()):
        return "The steps give the product's values exactly, bit for bit."
    differ = ", ".join(f"{name} {was} (here {now})" for name, (was, now) in way.other_versions.items())
    reason = (
        "has the marker of these versions and this processor, but an earlier job may have had a different processor"
    )
    if differ:
        reason = f"was made with {differ}"
    return f"The steps give the values within a hundred-thousandth of each, not bit for bit: the product {reason}."


def check_suffix(path: Path) -> None:
    """Raise an error unless the file's suffix can be drawn, and any file there is a drawing of ours."""
    if path.suffix not in _SUFFIXES:
        raise ParameterError(f"--plot {path}: expected a file of {', '.join(_SUFFIXES)}.")
    check_ours(path, PICTURE_OF_OURS)


def draw(way: Way, path: Path, table: Mapping[str, Variable] = VARIABLES) -> None:
    """Draw each adjusted variable before and after, on the days around the day, and write `path`.

    Raises
    ------
    ParameterError
        If the file's suffix is none of those that can be drawn.
    """
    check_suffix(path)
    write_ours(path, picture(_figure_of(way, table), path.suffix, 150), PICTURE_OF_OURS)


@drawing
def _figure_of(way: Way, table: Mapping[str, Variable]) -> Any:
    figure, axes = new_figure(5 * len(way.adjusted), 3.6, 1, len(way.adjusted))
    for ax, (name, adjusted) in zip(axes[0], way.adjusted.items(), strict=True):
        days = np.arange(len(adjusted.adjusted)) - adjusted.day
        both = np.array([adjusted.regridded, adjusted.adjusted])
        shown = as_shown(xr.DataArray(both, attrs={"units": adjusted.units}, name=name), variable(name, table))
        ax.plot(days, shown.values[0], **RAW, label="regridded")
        ax.plot(days, shown.values[1], **ADJUSTED, label="adjusted")
        ax.axvline(0, color="#999999", linewidth=0.8)
        ax.set_xlabel(f"days from {way.date}")
        ax.set_ylabel(f"{name} ({units_text(shown.attrs['units'])})")
        ax.legend()
    title = "\n".join(textwrap.wrap(way.sim_id.replace("_", " "), 48 * len(way.adjusted)))
    figure.suptitle(f"{title}\n{way.cell}")
    return figure
