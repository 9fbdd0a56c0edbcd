"""The configuration of a run: YAML files of ESPO-G's schema → validated, frozen values."""

from espo_luigi.config.adjustment import BiasAdjust, CleanUp, VariableAdjustment
from espo_luigi.config.diagnosis import Diagnostics, DiagStep, OffDiag
from espo_luigi.config.load import load
from espo_luigi.config.regions import Custom, Paths, Region
from espo_luigi.config.schema import RunConfig
from espo_luigi.config.searching import (
    ExtractDataset,
    Extraction,
    IntermediateGrid,
    Regrid,
    SearchDataCatalogs,
)

__all__ = [
    "BiasAdjust",
    "CleanUp",
    "Custom",
    "DiagStep",
    "Diagnostics",
    "ExtractDataset",
    "Extraction",
    "IntermediateGrid",
    "OffDiag",
    "Paths",
    "Region",
    "Regrid",
    "RunConfig",
    "SearchDataCatalogs",
    "VariableAdjustment",
    "load",
]
