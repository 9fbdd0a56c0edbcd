"""The configuration of a run: YAML files of ESPO-G's schema → validated, frozen values.

Imports `errors`, and of `science` the lists of allowed values. Gives `load` and `RunConfig` to `tasks`; each section of
the files is a model in a module of its own.
"""

from espo_luigi.config.diagnosis import Diagnostics, DomainDiag, OffDiag
from espo_luigi.config.load import load
from espo_luigi.config.regions import Region
from espo_luigi.config.schema import RunConfig
from espo_luigi.config.searching import Extraction

__all__ = ["Diagnostics", "DomainDiag", "Extraction", "OffDiag", "Region", "RunConfig", "load"]
