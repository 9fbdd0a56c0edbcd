"""The arguments of xsdba's properties, as a table: importing xsdba takes seconds.

A test compares the table with the installed xsdba (tests/config/test_config_signatures.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Property(NamedTuple):
    """The names of a property's data and of its parameters."""

    inputs: tuple[str, ...]
    parameters: tuple[str, ...]


_GROUP = Property(("da",), ("group",))
_CYCLE = Property(("da",), ("window", "group"))
PROPERTIES: Mapping[str, Property] = {
    "mean": _GROUP,
    "var": _GROUP,
    "std": _GROUP,
    "skewness": _GROUP,
    "quantile": Property(("da",), ("q", "group")),
    "spell_length_distribution": Property(
        ("da",), ("method", "op", "thresh", "window", "stat", "stat_resample", "group", "resample_before_rl")
    ),
    "threshold_count": Property(("da",), ("method", "op", "thresh", "stat", "stat_resample", "group")),
    "acf": Property(("da",), ("lag", "group")),
    "annual_cycle_amplitude": _CYCLE,
    "relative_annual_cycle_amplitude": _CYCLE,
    "annual_cycle_phase": _CYCLE,
    "annual_cycle_asymmetry": _CYCLE,
    "annual_cycle_minimum": _CYCLE,
    "annual_cycle_maximum": _CYCLE,
    "mean_annual_range": _CYCLE,
    "mean_annual_relative_range": _CYCLE,
    "mean_annual_phase": _CYCLE,
    "corr_btw_var": Property(("da1", "da2"), ("corr_type", "group", "output")),
    "bivariate_spell_length_distribution": Property(
        ("da1", "da2"),
        ("method1", "method2", "op1", "op2", "thresh1", "thresh2", "window", "stat", "stat_resample", "group",
         "resample_before_rl"),
    ),
    "bivariate_threshold_count": Property(
        ("da1", "da2"),
        ("method1", "method2", "op1", "op2", "thresh1", "thresh2", "stat", "stat_resample", "group"),
    ),
    "relative_frequency": Property(("da",), ("op", "thresh", "group")),
    "transition_probability": Property(("da",), ("initial_op", "final_op", "thresh", "group")),
    "trend": Property(("da",), ("group", "output")),
    "return_value": Property(("da",), ("period", "op", "method", "group")),
    "spatial_correlogram": Property(("da",), ("dims", "bins", "group", "method")),
    "decorrelation_length": Property(("da",), ("radius", "thresh", "dims", "bins", "group")),
    "spectral_variance": Property(("da",), ("dims", "delta", "group")),
}  # fmt: skip
