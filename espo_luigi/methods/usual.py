"""The usual settings of a variable adjusted by itself, made of what the table of variables knows of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from espo_luigi.methods.base import DEFAULT_METHOD
from espo_luigi.science.variables import Variable

# Those of xsdba's methods that the usual settings suit.
USUAL_METHODS = (DEFAULT_METHOD, "QuantileDeltaMapping")
# Of a window in which quantile delta mapping ranks: a trend over all years would decide the ranks.
_YEARS = 30


def year_windows(periods: Iterable[Sequence[str | int]]) -> dict[str, Any]:
    """Return the usual windows of years, where each period is long enough; {} where none fits."""
    lengths = [int(str(last)[:4]) - int(str(first)[:4]) + 1 for first, last in periods]
    return {"moving_yearly_window": {"window": _YEARS, "step": 10}} if lengths and min(lengths) >= _YEARS else {}


def usual_settings(known: Variable, method: str, *, pooled: bool) -> dict[str, Any]:
    """Return arguments of the training and the adjustment; of a pool, whose members are one sample, or of a member."""
    group = {"group": "time.dayofyear", "window": 31} | ({"add_dims": ["realization"]} if pooled else {})
    train: dict[str, Any] = {"kind": "+" if known.transformation else known.kind, "nquantiles": 50}
    training = {"method": method, "group": group, "xclim_train_args": train}
    loess: dict[str, Any] = {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}
    if known.transformation and known.bounds[0] is not None:
        training["additive_space"] = _space(known)
    elif known.kind == "*":
        if known.jitter is not None:
            training["jitter_under"] = {"thresh": threshold_of(known.jitter, known)}
            if not known.is_range:
                training["small_amounts"] = {"thresh": threshold_of(10 * known.jitter, known)}
        if known.wet is not None:
            train |= {"adapt_freq_thresh": threshold_of(known.wet, known), "max_tail_factor": 10}
        # Where all days of a window are zero (polar night, a summer without snow), so is the trend.
        loess |= {} if known.is_range else {"mult_skip_zeros": True}
    adjust: dict[str, Any] = {"interp": "nearest_quantile", "extrapolation": "constant"}
    adjusting: dict[str, Any] = {"xclim_adjust_args": adjust}
    if method == DEFAULT_METHOD:
        adjust["detrend"] = {"LoessDetrend": loess}
    else:
        adjust["rank_window"] = True
        adjusting |= {key: training[key] for key in ("jitter_under",) if key in training}
    return {"training_args": training, "adjusting_args": adjusting}


def _space(known: Variable) -> dict[str, str]:
    """Return the additive space of a bounded variable; its margin is 1 % of the range between bounds."""
    (lowest, highest), trans = known.bounds, {"trans": str(known.transformation)}
    assert lowest is not None
    low = {"lower_bound": _text(lowest, known)}
    if highest is None:
        return {**low, **trans, "clip_next_to_bounds": "permissive"}
    return {**low, "upper_bound": _text(highest, known), **trans, "margin": _text((highest - lowest) / 100, known)}


def _text(number: float, known: Variable) -> str:
    return f"{float(number)!r} {known.units}".replace(".0 ", " ")


def threshold_of(number: float, known: Variable) -> str:
    """Return a threshold with its unit, as reports show the variable."""
    from espo_luigi.science.units import threshold_in  # a configuration is loaded without xarray

    return f"{threshold_in(f'{number!r} {known.units}', known.shown_units):.6g} {known.shown_units}"
