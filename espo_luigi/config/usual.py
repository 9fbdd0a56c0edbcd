"""The usual settings of a variable's adjustment, made of what the table of variables knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import ValidationError

from espo_luigi.config.dialects import Content, mappings, put
from espo_luigi.config.variables import VariableSection
from espo_luigi.errors import ConfigurationError
from espo_luigi.methods.base import TOGETHER
from espo_luigi.methods.xsdba import why_no_kernels
from espo_luigi.science.periods import each_period
from espo_luigi.science.variables import VARIABLES, Variable, variable

Usual = Literal["2026-12"]
"""The names of usual settings, the newest last. A change that moves numbers gives a new name in place of the former."""
NEWEST: Usual = get_args(Usual)[-1]
# Those of xsdba's methods that the usual settings suit.
_METHODS = ("DetrendedQuantileMapping", "QuantileDeltaMapping")
# What MBCn takes of a variable's own settings.
_TAKEN = (
    "kind", "nquantiles", "jitter_under", "adapt_freq_thresh", "max_tail_factor", "small_amounts", "additive_space"
)  # fmt: skip
# Variables that a day and its latitude limit, and by what; in the table's units.
_LIMITED = {"rsds": "potential_radiation"}
# Of a window in which quantile delta mapping ranks: a trend over all years would decide the ranks.
_YEARS = 30


def give_usual_settings(content: Content) -> list[str]:
    """Lay what is given of an adjustment without `training_args` over its variable's usual settings.

    Returns the keys below `biasadjust.variables` that have usual settings.

    Raises
    ------
    ConfigurationError
        If neither the table nor the section `variables` knows whether a variable's factors are added or multiplied, or
        the section contradicts itself.
    """
    having, limited = list[str](), list[str]()
    for _, adjusted in mappings(content, "biasadjust.variables"):
        for name, given in adjusted.items():
            how = {} if given is None else given
            if isinstance(how, Mapping) and how.get("method") in TOGETHER:
                adjusted[name] = _laid_over(_together(content, how), how)
                having, limited = [*having, name], [*limited, *_limited(content, _names(how))]
            elif isinstance(how, Mapping) and not {"training_args", "variables"} & set(how):
                if (laid := _alone(content, name, how)) is not None:
                    adjusted[name] = laid
                    having, limited = [*having, name], [*limited, *_limited(content, [name])]
                elif how.get("method"):  # a package's, which may need nothing
                    adjusted[name] = {"training_args": {}, "adjusting_args": {}, **how}
    for name in limited:
        where = f"clean_up.variables.{name}" if "subregions" in content else "clean_up.xscen_clean_up"
        put(content, (*where.split("."), "limit_var", name), _LIMITED[name])
    return having


def _alone(content: Content, name: str, how: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what is given of a variable over the usual settings of its method; None for a method without any."""
    of, _, method = str(how.get("method") or _METHODS[0]).rpartition(".")
    method = _METHODS[0] if (of, method) == ("", "dqm") else method
    if of not in ("", "xsdba", "dqm") or method not in _METHODS:
        return None
    # The kernels' own names stay; those of xsdba's methods stand in `training_args`.
    rest = {key: one for key, one in how.items() if key != "method" or str(one).startswith("dqm")}
    usual = usual_settings(_row(content, name), method, pooled="subregions" in content)
    for _, adjust in mappings(_laid_over(usual, rest), "adjusting_args.xclim_adjust_args"):
        if how.get("engine") == "xsdba" or why_no_kernels(method, adjust):
            # xsdba has no nearest_quantile.
            usual["adjusting_args"]["xclim_adjust_args"]["interp"] = "nearest"
    if method == _METHODS[1] and _long_enough(content, how):
        usual["adjusting_args"]["moving_yearly_window"] = {"window": _YEARS, "step": 10}
    return _laid_over(usual, rest)


def _limited(content: Content, names: list[str]) -> list[str]:
    return [one for one in names if one in _LIMITED and _row(content, one).units == VARIABLES[one].units]


def _names(how: Mapping[str, Any]) -> list[str]:
    """Return the names of a group's variables; what are none is told of when all is validated."""
    names = how.get("variables")
    return list(names) if isinstance(names, list | tuple) and all(isinstance(one, str) for one in names) else []


def _laid_over(usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return usual settings with what is given in their place, key by key."""
    if usual.get("group") and isinstance(given.get("group"), str):  # a group's name alone
        given = {**given, "group": {"group": given["group"]}}
    both = {key: (usual[key], one) for key, one in given.items() if key in usual}
    deep = {key: _laid_over(*two) for key, two in both.items() if all(isinstance(one, Mapping) for one in two)}
    return {**usual, **given, **deep}


def _together(content: Content, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usual settings of a group; names that are none are told of when all is validated."""
    own: dict[str, dict[str, Any]] = {}
    for name in _names(how):
        # Dry days are adapted in the method, not before it, as in pools.
        of_one = usual_settings(_row(content, name), _METHODS[0], pooled=True)["training_args"]
        found = of_one | of_one["xclim_train_args"]
        own[name] = {key: found[key] for key in _TAKEN if key in found}
        if _limited(content, [name]):  # parts of a limit are no amounts
            own[name].pop("small_amounts", None)
            own[name]["ratio_to"] = _LIMITED[name]
    training = how.get("training_args")
    # A window is no other group's.
    has_group = isinstance(training, Mapping) and "group" in training
    group: dict[str, Any] = {} if has_group else {"group": "5D", "window": 7}
    if "subregions" in content:
        group["add_dims"] = ["realization"]
    adjusting: dict[str, Any] = {}
    if _long_enough(content, how):
        adjusting["moving_yearly_window"] = {"window": _YEARS, "step": 10}
    return {"training_args": {"group": group, "by_variable": own}, "adjusting_args": adjusting}


def _long_enough(content: Content, how: Mapping[str, Any]) -> bool:
    """Whether each adjusted period has the years of a window; what is no period is told of when all is validated."""
    given = how.get("adjusting_args")
    periods = given.get("periods") if isinstance(given, Mapping) else None
    for _, custom in mappings(content, "custom"):
        periods = periods or custom.get("sim_period")
    try:
        lengths = [int(str(last)[:4]) - int(str(first)[:4]) + 1 for first, last in each_period(periods)]
    except (TypeError, ValueError):
        return False
    return bool(lengths) and min(lengths) >= _YEARS


def _row(content: Content, name: str) -> Variable:
    """Return what is known of a variable; a section with errors is told of when all is validated."""
    given = next((row for at, row in mappings(content, "variables.*") if at[-1] == name), {})
    if name not in VARIABLES and "kind" not in given:
        raise ConfigurationError(
            f"`biasadjust.variables.{name}`: got no settings, and the usual ones need to know whether factors are "
            f"added or multiplied, which the table of variables does not know of {name}; expected "
            f"`variables.{name}.kind`: '+' or '*', or settings (`training_args` and `adjusting_args`)."
        )
    try:
        return VariableSection.model_validate(given).checked(name)
    except ValidationError:
        return variable(name)


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
    if method == _METHODS[0]:
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
    from espo_luigi.science.units import threshold_in

    return f"{threshold_in(f'{number!r} {known.units}', known.shown_units):.6g} {known.shown_units}"
