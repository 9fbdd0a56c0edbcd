"""The tables of arguments against the installed xsdba and xclim."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest

from espo_luigi.config import health_checks
from espo_luigi.methods import xsdba as xsdba_arguments
from espo_luigi.methods.base import METHODS
from espo_luigi.methods.mbcn.method import MBCnTraining, VariableOfMBCn
from espo_luigi.methods.xsdba import arguments_of
from espo_luigi.science.diagnose.definitions import known_properties


def parameters(function: Any) -> set[str]:
    """Return the parameters that a configuration may give."""
    return {*inspect.signature(function).parameters} - {"self", "ref", "hist", "sim", "group", "da"}


@pytest.mark.parametrize(
    ("function", "section"),
    [("train", xsdba_arguments.TrainArguments), ("adjust", xsdba_arguments.AdjustArguments)],
)
def test_the_arguments_of_each_method_are_those_of_xsdba(function: Any, section: Any) -> None:
    import xsdba

    known = {name: {*arguments_of(name, function)} for name in METHODS}
    for name, found in known.items():
        assert found == parameters(getattr(getattr(xsdba, name), f"_{function}")) | {"skip_input_checks"}
    assert set[str]().union(*known.values()) == set(section.model_fields)


def test_the_arguments_of_mbcn_are_those_of_xsdba() -> None:
    import xsdba

    ours = {"period", "align_on", "group", "by_variable", "jitter_under", "additive_space", "ratio_to", "small_amounts"}
    of_train, of_adjust = parameters(xsdba.MBCn._train), parameters(xsdba.MBCn._adjust)
    given = {"pts_dim", "rot_matrices", "n_escore", "period_dim", "base_kws", "base_kws_vars", "adj_kws"}
    alone = {"nquantiles", "interp", "extrapolation"}  # of `base_kws` and `adj_kws`
    assert {*MBCnTraining.model_fields} - ours - alone == (of_train | of_adjust) - given
    assert {*VariableOfMBCn.model_fields} - ours < parameters(xsdba.QuantileDeltaMapping._train)
    assert alone - {"nquantiles"} < parameters(xsdba.QuantileDeltaMapping._adjust)


def test_the_ways_of_detrending_and_their_arguments_are_those_of_xsdba() -> None:
    import xsdba

    found = {
        name: set(inspect.signature(one).parameters) - {"kwargs"}
        for name, one in vars(xsdba.detrending).items()
        if isinstance(one, type) and issubclass(one, xsdba.detrending.BaseDetrend) and name != "BaseDetrend"
    }
    ways: dict[str, Any] = {name: one.annotation for name, one in xsdba_arguments.Detrend.model_fields.items()}
    known = {name: set(section.model_fields) for name, section in ways.items()}
    assert known == {name: found[name] for name in ("LoessDetrend", "NoDetrend")}


def test_the_flags_and_their_arguments_are_those_of_xclim() -> None:
    from xclim.core.dataflags import _REGISTRY

    keyword_only = inspect.Parameter.KEYWORD_ONLY
    for name, function in _REGISTRY.items():
        found = {one.name for one in inspect.signature(function).parameters.values() if one.kind is keyword_only}
        annotation = health_checks.Flags.model_fields[name].annotation
        section: Any = next(one for one in (annotation, *get_args(annotation)) if inspect.isclass(one))
        assert set(section.model_fields) == found, name
    assert set(health_checks.Flags.model_fields) == set(_REGISTRY)


def test_properties_and_what_they_take_are_those_of_xsdba() -> None:
    import xsdba.properties as module

    found = {name: one for name, one in vars(module).items() if isinstance(one, module.StatisticalProperty)}
    known = known_properties()
    assert set(known) == set(found)
    for name, one in found.items():
        own = [key for key in inspect.signature(one).parameters if key in one.parameters and key != "ds"]
        inputs, parameters = known[name]
        assert {*inputs, *parameters} == set(own), name
        assert inputs == [key for key in own if key.startswith("da")], name
