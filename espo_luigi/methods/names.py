"""The names of methods and engines; imports nothing."""

from __future__ import annotations

from typing import Literal, get_args

Method = Literal[
    "DetrendedQuantileMapping", "EmpiricalQuantileMapping", "QuantileDeltaMapping", "LOCI", "Scaling"
]  # fmt: skip
METHODS: tuple[str, ...] = get_args(Method)
# Those that adjust several variables together.
TOGETHER = ("MBCn", "OTC", "dOTC")
DEFAULT_METHOD: Method = "DetrendedQuantileMapping"
# What computes an adjustment: our kernels where they can, else xsdba; or always xsdba.
Engine = Literal["auto", "xsdba"]
