"""The tables of arguments against the installed xsdba and xclim."""

from __future__ import annotations

import inspect
from typing import Any, get_args

from espo_luigi.config import health_checks
from espo_luigi.methods import together
from espo_luigi.methods import xsdba as xsdba_arguments
from espo_luigi.methods.xsdba import METHOD_ARGUMENTS, PROPERTIES


def parameters(function: Any) -> dict[str, bool]:
    """Return the parameters that a configuration may give, and whether each is required."""
    data = {"self", "ref", "hist", "sim", "group", "da"}
    found = {name: one.default is one.empty for name, one in inspect.signature(function).parameters.items()}
    return {name: required for name, required in found.items() if name not in data}


def test_the_arguments_of_each_method_are_those_of_xsdba() -> None:
    import xsdba

    from espo_luigi.methods.names import METHODS

    assert tuple(METHOD_ARGUMENTS) == METHODS
    for name, table in METHOD_ARGUMENTS.items():
        method = getattr(xsdba.adjustment, name)
        train, adjust = parameters(method._train), parameters(method._adjust)
        assert set(table.train) == set(train) | {"skip_input_checks"}
        assert set(table.adjust) == set(adjust) | {"skip_input_checks"}
        assert set(table.required) == {key for key, required in (train | adjust).items() if required}
    known = [{key for one in METHOD_ARGUMENTS.values() for key in one[place]} for place in (0, 1)]
    assert known == [
        set(xsdba_arguments.TrainArguments.model_fields),
        set(xsdba_arguments.AdjustArguments.model_fields),
    ]


def test_the_arguments_of_methods_of_variables_together_are_those_of_xsdba() -> None:
    import xsdba

    ours = {"period", "align_on", "group", "by_variable", "jitter_under", "additive_space", "ratio_to", "small_amounts"}
    for method, training in ((xsdba.OTC, together.OTCTraining), (xsdba.dOTC, together.DOTCTraining)):
        fields = {*training.model_fields, *together.VariableOfTransport.model_fields} - ours
        # Its factors are those of a plan: OTC has no kind.
        assert fields - ({"kind"} if method is xsdba.OTC else set()) == {*parameters(method._adjust)} - {
            "pts_dim",
            "kwargs",
        }
    of_train, of_adjust = parameters(xsdba.MBCn._train), parameters(xsdba.MBCn._adjust)
    given = {"pts_dim", "rot_matrices", "n_escore", "period_dim", "base_kws", "base_kws_vars", "adj_kws"}
    alone = {"nquantiles", "interp", "extrapolation"}  # of `base_kws` and `adj_kws`
    assert {*together.MBCnTraining.model_fields} - ours - alone == {*of_train, *of_adjust} - given
    for base in (xsdba.QuantileDeltaMapping, xsdba.DetrendedQuantileMapping):
        assert {*together.VariableOfMBCn.model_fields} - ours < {*parameters(base._train)}
        assert alone - {"nquantiles"} < {*parameters(base._adjust)}


def test_the_ways_of_detrending_and_their_arguments_are_those_of_xsdba() -> None:
    import xsdba

    found = {
        name: set(inspect.signature(one).parameters) - {"kwargs"}
        for name, one in vars(xsdba.detrending).items()
        if isinstance(one, type) and issubclass(one, xsdba.detrending.BaseDetrend) and name != "BaseDetrend"
    }
    ways: dict[str, Any] = {name: one.annotation for name, one in xsdba_arguments.Detrend.model_fields.items()}
    known = {name: set(section.model_fields) for name, section in ways.items()}
    assert known == found


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
    assert set(PROPERTIES) == set(found)
    for name, one in found.items():
        own = [key for key in inspect.signature(one).parameters if key in one.parameters and key != "ds"]
        taken = PROPERTIES[name]
        assert {*taken.inputs, *taken.parameters} == set(own), name
        assert list(taken.inputs) == [key for key in own if key.startswith("da")], name
