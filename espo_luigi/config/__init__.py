"""The configuration of a run: YAML files of ESPO-G's schema → validated, frozen values."""

from espo_luigi.config.diagnosis import Diagnostics, DiagStep, OffDiag
from espo_luigi.config.load import load
from espo_luigi.config.regions import Region
from espo_luigi.config.schema import RunConfig
from espo_luigi.config.searching import Extraction

__all__ = ["DiagStep", "Diagnostics", "Extraction", "OffDiag", "Region", "RunConfig", "load"]
