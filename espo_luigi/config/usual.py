"""The usual settings of a variable's adjustment, made of what the table of variables knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from espo_luigi.config.dialects import Content, mappings
from espo_luigi.config.variables import VariableSection
from espo_luigi.errors import ConfigurationError
from espo_luigi.science.variables import VARIABLES, Variable, variable

# Those of xsdba's methods that the usual settings suit.
_METHODS = ("DetrendedQuantileMapping", "QuantileDeltaMapping")


def give_usual_settings(content: Content) -> None:
    """Give merged content the settings of the variables whose adjustment has none, but for its method.

    Raises
    ------
    ConfigurationError
        If neither the table nor the section `variables` knows whether a variable's factors are added or multiplied, or
        the section contradicts itself.
    """
    for _, adjusted in mappings(content, "biasadjust.variables"):
        for name, given in adjusted.items():
            how = {} if given is None else given
            if isinstance(how, Mapping) and set(how) <= {"method", "engine"}:
                method = str(how.get("method") or _METHODS[0]).removeprefix("xsdba.")
                if method in _METHODS:
                    rest = {key: value for key, value in how.items() if key != "method"}
                    adjusted[name] = rest | _settings(_row(content, name), method, pooled="subregions" in content)


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


def _settings(known: Variable, method: str, *, pooled: bool) -> dict[str, Any]:
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
        if known.wet is not None:
            # The series of a single member can be adapted before the training, as the workflow of 2024 does.
            adapted = {"thresh": threshold_of(known.wet, known)}
            training |= {} if pooled else {"adapt_freq": adapted}
            train |= {"adapt_freq_thresh": adapted["thresh"], "max_tail_factor": 10} if pooled else {}
            loess |= {"mult_skip_zeros": True} if pooled else {}
    adjust = {"interp": "nearest", "extrapolation": "constant"}
    detrend = {"detrend": {"LoessDetrend": loess}} if method == "DetrendedQuantileMapping" else {}
    return {"training_args": training, "adjusting_args": {"xclim_adjust_args": detrend | adjust}}


def _space(known: Variable) -> dict[str, str]:
    """Return the additive space of a bounded variable; raw values beyond its bounds are moved inside."""
    named = zip(("lower_bound", "upper_bound"), known.bounds, strict=True)
    bounds = {name: f"{bound:g} {known.units}" for name, bound in named if bound is not None}
    return {**bounds, "trans": str(known.transformation), "clip_next_to_bounds": "permissive"}


def threshold_of(number: float, known: Variable) -> str:
    """Return a threshold with its unit, as reports show the variable."""
    from espo_luigi.science.units import threshold_in

    shown = known.display_units or known.units
    return f"{threshold_in(f'{number!r} {known.units}', shown):.6g} {shown}"
