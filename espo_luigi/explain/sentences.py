"""A way as text for people, and as JSON."""

from __future__ import annotations

import dataclasses
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from espo_luigi.explain.mapping import Correction, Sample
from espo_luigi.explain.values import Adjusted, Day, DryDays, Final, Noise, Regridded, Stage, Way

_SECONDS_PER_DAY = 86400
_FLUX = "kg m-2 s-1"
# The levels of the small plot, and its width in characters.
_SHOWN_LEVELS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)
_WIDTH = 44
_COLUMNS = 100
_KELVIN = 273.15


def quantity(value: float, units: str, *, difference: bool = False) -> str:
    """Return a value with its units, precipitation in mm/d, and temperatures in °C, too."""
    if math.isnan(value):
        return "no value"
    if units == _FLUX:
        return f"{value * _SECONDS_PER_DAY:.4g} mm/d"
    if units == "K" and not difference:
        return f"{value:.3f} K ({value - _KELVIN:.2f} °C)"
    return f"{value:.4g} {units}"


def as_json(way: Way) -> dict[str, Any]:
    """Return a way as values of JSON; missing numbers are None."""
    content: dict[str, Any] = plain(dataclasses.asdict(way))
    for shown, final in zip(content["finals"], way.finals, strict=True):
        shown["identical"] = final.identical
    return content


def plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def render(way: Way) -> str:
    """Return the text of a way."""
    lines = [f"{way.sim_id}", f"{way.cell} (piece {way.cell.piece}, land cell {way.cell.place}), {way.day.date}"]
    lines += ["", f"Day. {_day(way.day)}", f"Source. {_source(way)}"]
    for adjusted in way.adjusted.values():
        lines += ["", *_adjusted(adjusted, way)]
    for final in way.finals:
        lines += ["", *_final(final)]
    lines += ["", _exactness(way)]
    return "\n".join(line for text in lines for line in _wrapped(text))


def _wrapped(text: str) -> list[str]:
    """A paragraph's lines; those after the first are indented."""
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text, _COLUMNS, subsequent_indent=f"{indent}  ", break_on_hyphens=False, break_long_words=False
    ) or [""]


def _day(day: Day) -> str:
    place = f"day {day.dayofyear} of {day.days_in_year}"
    if day.simulation_calendar != day.calendar:
        how = "29 February is left out" if day.calendar == "noleap" else "some days of each year are left out"
        return (
            f"The simulation has the calendar {day.simulation_calendar}, and the product {day.calendar}: {how}. "
            f"{day.date} is {place}, and {day.simulation_date} in the simulation."
        )
    also = (
        ""
        if day.calendar != "360_day"
        else (
            f" The reference is brought to this calendar, too: its {day.reference_day} has the same place in the year."
        )
    )
    return f"The simulation and the product have the calendar {day.calendar}; {day.date} is {place}.{also}"


def _source(way: Way) -> str:
    if way.source:
        return f"The regridded series was read from {way.source}; the day's raw cells from the raw files."
    return "The regridded series was deleted, and was made again from the raw files."


def _adjusted(adjusted: Adjusted, way: Way) -> Iterator[str]:
    yield f"{adjusted.var}: {_show(adjusted, adjusted.regridded.value)} -> {_show(adjusted, adjusted.value)}"
    yield from _regridded(adjusted, adjusted.regridded)
    if adjusted.noise is not None:
        yield _noise(adjusted, adjusted.noise)
    if adjusted.dry_days is not None:
        yield _dry_days(adjusted, adjusted.dry_days)
    yield from _sample(adjusted, adjusted.sample, way)
    yield from _correction(adjusted, adjusted.correction, len(way.members))


def _show(adjusted: Adjusted, value: float) -> str:
    return quantity(value, adjusted.units, difference=adjusted.var == "dtr")


def _regridded(adjusted: Adjusted, regridded: Regridded) -> Iterator[str]:
    raw, *between = regridded.stages
    derived = " (dtr is tasmax - tasmin of each raw cell)" if adjusted.var == "dtr" else ""
    yield f"  Raw cells. {len(raw.parts)} cells of the simulation's grid{derived}:"
    for part in raw.parts:
        yield f"      {part.lat:8.3f} °N {part.lon:8.3f} °E  weight {part.weight:.4f}  {_show(adjusted, part.value)}"
    for stage in between:
        yield f"    by way of {_stage(adjusted, stage)}."
    text = f"    Regridded: {_show(adjusted, regridded.value)}."
    if regridded.filled:
        text += " A gap of the raw series was filled (`extraction.simulation.fill_in_time`)."
    if regridded.repairs:
        without = any(math.isnan(part.value) for part in raw.parts)
        what = "Values that are missing here may be among those repaired" if without else "The raw series was repaired"
        text += f" {what}: {'; '.join(regridded.repairs)}."
    if regridded.extrapolated:
        text += " A cell on the way lies outside of the grid before it, or of its mask: extrapolated."
    yield text


def _stage(adjusted: Adjusted, stage: Stage) -> str:
    values = [part.value for part in stage.parts]
    known = [value for value in values if not math.isnan(value)] or values
    heaviest = stage.parts[0]
    return (
        f"{stage.grid} ({len(values)} cells from {_show(adjusted, min(known))} to {_show(adjusted, max(known))}; "
        f"{heaviest.lat:g} °N {heaviest.lon:g} °E has most weight, {heaviest.weight:.3f})"
    )


def _noise(adjusted: Adjusted, noise: Noise) -> str:
    shares = f"{noise.reference_share:.1%} of the reference's and {noise.simulation_share:.1%} of the simulation's"
    own = "This day is not one of them."
    if adjusted.regridded.value < noise.threshold:
        own = "This day is, too; its own value in the scenario is made without noise."
    if noise.in_scenario and noise.day_before is not None:
        own = f"This day is one of them, in the scenario, too: {_show(adjusted, noise.day_before)}."
    return (
        f"  Noise. In the training, values under {_show(adjusted, noise.threshold)} become noise: {shares} values in "
        f"this window. {own}"
    )


def _dry_days(adjusted: Adjusted, dry: DryDays) -> str:
    text = (
        f"  Dry days (at most {_show(adjusted, dry.threshold)}) in the window: {dry.reference_share:.1%} of the "
        f"reference's, {dry.simulation_share:.1%} of the simulation's."
    )
    if not dry.simulation_share > dry.reference_share:
        return f"{text} The simulation is not too dry: no day is made wet."
    number = "" if dry.made_wet is None else f" {dry.made_wet} values of the sample are wet now."
    text = (
        f"{text} The surplus is made wet: new values lie between the threshold and {_show(adjusted, dry.top)}.{number}"
    )
    if dry.in_scenario:
        return f"{text} The simulation is adapted, too: {_adapted_day(adjusted)}"
    if not dry.in_calibration:
        return f"{text} This day lies outside of the calibration, and only the training sees these amounts."
    if dry.day is None:
        return f"{text} This day stays as it is."
    return f"{text} In the training this day has {_show(adjusted, dry.day)}; the scenario does not see that."


def _adapted_day(adjusted: Adjusted) -> str:
    before, after = adjusted.regridded.value, adjusted.correction.value
    return "this day stays as it is." if before == after else f"this day was made wet, {_show(adjusted, after)}."


def _sample(adjusted: Adjusted, sample: Sample, way: Way) -> Iterator[str]:
    of_members = f" of {len(way.members)} members" if len(way.members) > 1 else ""
    yield (
        f"  Sample. {sample.window} days around this day of the year, {sample.first_year}-{sample.last_year}: "
        f"{sample.reference_size} values of the reference, mean {_show(adjusted, sample.reference_mean)}; "
        f"{sample.simulation_size} of the simulation{of_members}, mean {_show(adjusted, sample.simulation_mean)}."
    )
    yield from _plot(adjusted, sample)
    yield f"    Of the simulation's values in the sample, {sample.rank:.1%} are not above this day's."


def _plot(adjusted: Adjusted, sample: Sample) -> Iterator[str]:
    """The quantiles of both, a line each level: x for the simulation, o for the reference, 8 for both."""
    places = [min(range(len(sample.levels)), key=lambda i: abs(sample.levels[i] - level)) for level in _SHOWN_LEVELS]
    shown = [(sample.levels[i], sample.simulation[i], sample.reference[i]) for i in places]
    low, high = (f(value for row in shown for value in row[1:]) for f in (min, max))
    # Most of a sample of precipitation is small: in its roots, both ends can be told apart.
    scale = math.sqrt if adjusted.units == _FLUX and low >= 0 else float
    span = scale(high) - scale(low) or 1.0
    roots = ", square roots" if scale is math.sqrt else ""
    yield f"      quantile  {_show(adjusted, low)} to {_show(adjusted, high)}{roots}; x simulation, o reference, 8 both"
    for level, simulation, reference in shown:
        line = ["·"] * (_WIDTH + 1)
        at, other = (round((scale(value) - scale(low)) / span * _WIDTH) for value in (simulation, reference))
        line[other] = "o"
        line[at] = "8" if at == other else "x"
        yield f"      {level:7.0%}   {''.join(line)}"


def _correction(adjusted: Adjusted, correction: Correction, members: int) -> Iterator[str]:
    times = correction.kind == "*"

    def amount(value: float) -> str:
        return f"x {value:.4g}" if times else f"{value:+.4g} {adjusted.units}"

    mean = f", the mean of {members} members" if members > 1 else ""
    trend = _show(adjusted, correction.trend)
    anomaly = f"{correction.anomaly:.4g}" if times else f"{correction.anomaly:+.4g} {adjusted.units}"
    yield f"  Scaling. {amount(correction.scaling)} (the two means): {_show(adjusted, correction.scaled)}."
    yield (
        f"  Trend. LOESS over the years has {trend} here{mean}; without it, the value is {anomaly}"
        f"{' times the trend' if times else ' from the trend'}."
    )
    yield f"  Factor. {_nearest(adjusted, correction)} Factor {amount(correction.factor)}."
    if correction.kept and correction.tail_limit is not None:
        limit = _show(adjusted, correction.tail_limit)
        yield f"  The value is above the limit {limit}, and stays as the model has it: neither scaled nor adjusted."
    else:
        sign = "x" if times else "+"
        yield f"  Adjusted. anomaly {sign} factor {sign} trend = {_show(adjusted, adjusted.value)}."


def _nearest(adjusted: Adjusted, correction: Correction) -> str:
    number = round(correction.level * correction.quantiles + 0.5)
    if correction.beyond:
        end = "first" if correction.beyond == "below" else "last"
        return (
            f"The anomaly lies {correction.beyond} all {correction.quantiles} quantiles of this day of the year, the "
            f"{end} of which, {correction.quantile:.4g}, gives the factor (constant extrapolation)."
        )
    day = "" if correction.day_of_factor == correction.dayofyear else f" of day {correction.day_of_factor}"
    return (
        f"The nearest of the training's quantiles is number {number} of {correction.quantiles}{day} "
        f"(level {correction.level:.2f}, {correction.quantile:.4g})."
    )


def _final(final: Final) -> Iterator[str]:
    def show(value: float) -> str:
        return quantity(value, final.units, difference=final.var == "dtr")

    parts = {name: quantity(value, final.units, difference=name == "dtr") for name, value in final.made_of.items()}
    how = {
        "adjusted": "the adjusted value",
        "difference": " - ".join(f"{name} {text}" for name, text in parts.items() if name in ("tasmax", "dtr")),
        "exchanged": "tasmax was below tasmin: the two were exchanged",
        "consistent": "tasmax is not below tasmin: nothing was exchanged",
    }[final.how]
    steps = [how]
    steps += [] if final.rounded_to is None else [f"rounded to {final.rounded_to} decimals of {final.units}"]
    steps += [] if final.clipped is None else [_clipped(final, final.clipped)]
    steps += [] if final.bits is None else [f"rounded to {final.bits} bits of the mantissa"]
    named = "; ".join(f"{name}: {value}" for name, value in final.attributes.items())
    yield f"{final.var} in the product: {show(final.value)}"
    yield f"  Clean-up. {'; '.join(steps)}: {show(final.clean)}.{f' Attributes: {named}.' if named else ''}"
    equal = "the same, bit for bit" if final.identical else f"a difference of {final.value - final.clean:.3g}"
    yield f"  Product. {final.store} has {final.value!r} {final.units}: {equal}."


def _clipped(final: Final, bounds: tuple[float | None, float | None]) -> str:
    """Whether a value was beyond the bounds; of an exchange, the value of the other variable was treated."""
    own = {"tasmax": "tasmin", "tasmin": "tasmax"}.get(final.var, final.var) if final.how == "exchanged" else final.var
    before, (low, high) = final.made_of.get(own, final.clean), bounds
    known = [(word, one) for word, one in (("at least", low), ("at most", high)) if one is not None]
    said = " and ".join(f"{word} {quantity(one, final.units, difference=final.var == 'dtr')}" for word, one in known)
    is_beyond = (low is not None and before < low) or (high is not None and before > high)
    return f"clipped to {said}" if is_beyond else f"not clipped ({said})"


def _exactness(way: Way) -> str:
    if all(final.identical for final in way.finals):
        return "The steps give the product's values exactly, bit for bit."
    differ = ", ".join(f"{name} {was} (here {now})" for name, (was, now) in way.other_versions.items())
    reason = (
        "has the marker of these versions and this processor, but an earlier job may have had a different processor"
    )
    if differ:
        reason = f"was made with {differ}"
    return f"The steps give the values within a hundred-thousandth of each, not bit for bit: the product {reason}."
