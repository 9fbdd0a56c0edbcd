"""The usual settings of a variable's adjustment, made of what the table of variables knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import ValidationError

from espo_luigi.config.dialects import Content, mappings, put
from espo_luigi.config.variables import VariableSection
from espo_luigi.errors import ConfigurationError
from espo_luigi.methods.base import DEFAULT_METHOD, TOGETHER, TrainingSection
from espo_luigi.methods.usual import USUAL_METHODS, usual_settings, year_windows
from espo_luigi.methods.xsdba import why_no_kernels
from espo_luigi.science.periods import each_period
from espo_luigi.science.variables import VARIABLES, Variable, variable

Usual = Literal["2027-01"]
"""The names of usual settings, the newest last. A change that moves numbers gives a new name in place of the former."""
NEWEST: Usual = get_args(Usual)[-1]
# What MBCn takes of a variable's own settings.
_TAKEN = (
    "kind", "nquantiles", "jitter_under", "adapt_freq_thresh", "max_tail_factor", "small_amounts", "additive_space"
)  # fmt: skip
# Variables that a day and its latitude limit, and by what; in the table's units.
_LIMITED = {"rsds": "potential_radiation"}


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
            elif isinstance(how, Mapping) and "variables" not in how and not _trains_otherwise(how):
                if (laid := _alone(content, name, how)) is not None:
                    adjusted[name] = laid
                    having, limited = [*having, name], [*limited, *_limited(content, [name])]
                elif how.get("method"):  # a package's, which may need nothing
                    adjusted[name] = {"training_args": {}, "adjusting_args": {}, **how}
    for name in limited:
        where = f"clean_up.variables.{name}" if "subregions" in content else "clean_up.xscen_clean_up"
        put(content, (*where.split("."), "limit_var", name), _LIMITED[name])
    return having


def method_of(how: Mapping[str, Any] | None) -> str:
    """Return the name of the method that a section names, without its package if it is xsdba; "" if it names none."""
    training = (how or {}).get("training_args")
    name = (how or {}).get("method") or (training.get("method") if isinstance(training, Mapping) else None)
    short = str(name or "").removeprefix("xsdba.").removeprefix("dqm.")
    return DEFAULT_METHOD if short == "dqm" else short


def _trains_otherwise(how: Mapping[str, Any]) -> bool:
    """Whether there are arguments of the training beside the method's name and those of every method."""
    training = how.get("training_args", {})
    return not isinstance(training, Mapping) or bool({*training} - {"method", *TrainingSection.model_fields})


def _alone(content: Content, name: str, how: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what is given of a variable over the usual settings of its method; None for a method without any."""
    method = method_of(how) or DEFAULT_METHOD
    if method not in USUAL_METHODS:
        return None
    # The kernels' own names stay; those of xsdba's methods stand in `training_args`.
    rest = {key: one for key, one in how.items() if key != "method" or str(one).startswith("dqm")}
    usual = usual_settings(_row(content, name), method, pooled="subregions" in content)
    for _, adjust in mappings(_laid_over(usual, rest), "adjusting_args.xclim_adjust_args"):
        if how.get("engine") == "xsdba" or why_no_kernels(method, adjust):
            # xsdba has no nearest_quantile.
            usual["adjusting_args"]["xclim_adjust_args"]["interp"] = "nearest"
    if method == USUAL_METHODS[1]:
        usual["adjusting_args"] |= _year_windows(content, how)
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
        of_one = usual_settings(_row(content, name), DEFAULT_METHOD, pooled=True)["training_args"]
        found = of_one | of_one["xclim_train_args"]
        own[name] = {key: found[key] for key in _TAKEN if key in found}
        if _limited(content, [name]):  # parts of a limit are no amounts
            own[name].pop("small_amounts", None)
            own[name]["ratio_to"] = _LIMITED[name]
    training = how.get("training_args")
    # A window is no other group's.
    has_group = isinstance(training, Mapping) and "group" in training
    group: dict[str, Any] = {} if has_group else {"group": "15D", "window": 7}
    if "subregions" in content:
        group["add_dims"] = ["realization"]
    return {"training_args": {"group": group, "by_variable": own}, "adjusting_args": _year_windows(content, how)}


def _year_windows(content: Content, how: Mapping[str, Any]) -> dict[str, Any]:
    """Return the windows of years for all adjusted periods; what is no period is told of when all is validated."""
    given = how.get("adjusting_args")
    periods = given.get("periods") if isinstance(given, Mapping) else None
    for _, custom in mappings(content, "custom"):
        periods = periods or custom.get("sim_period")
    try:
        return year_windows(each_period(periods))
    except (TypeError, ValueError):
        return {}


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
