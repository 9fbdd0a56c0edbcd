"""The rules of ESPO-G, each a Luigi task: ``luigi --module espo_luigi.tasks All``.

| module | rules |
|---|---|
| `inputs` | InputCheck, RefInputCheck |
| `reference` | MakeRef, RefDefault, ReferenceCalendar |
| `simulation` | Extract, Regrid, Rechunk |
| `adjustment` | Train, Adjust |
| `product` | CleanUp, FinalZarr, Move, ConcatenationFinal, HealthChecks |
| `product`, v2 | Swap, Derive, ConcatClean, ConcatCleanPreswap |
| `diagnostics` | OffDiagRefProp, OffDiagSimPropMeas, OffDiagScenPropMeas, DiagMeasuresImprovement, MoveRef, MoveDiag |
| `diagnostics`, 2024 | DiagnosticsReference, ConcatDiagRefProp, Diagnostics, ConcatenationDiag, DiagImprovedEtHeatmap |
| `diagnostics`, v2 | DiagRef, DiagExtract, Diag |
| `outcomes` | Indicators, ReferenceIndicators, Climatology, ReferenceClimatology, Delta, WarmingLevels |
| `ensembles` | Ensemble, Regions |
| `report` | SeriesSummary, YearlySums, NotCalibrated, FlagDetails, FlagMaps, Inversions, Report |
| `export` | Export, ExportOutcome, Exports |
| `perfect_model` | PerfectPair, PerfectModel |
| `all` | All |

`production` says what a production line consists of; `espo_2024` and `espo_v2` describe ours. A module of rules imports
all that it needs from here, too: `EspoTask`, parameters, ports, `Resources` and `every`. The base of all rules is
`base`, with ports (`ports`), the run's configuration and catalogue (`context`), its pools and pieces (`partition`) and
the state of outputs (`staleness`). Commands use `make`, `clean` and `publish`.
"""

from espo_luigi.driver.install import install
from espo_luigi.jobs.resources import Resources
from espo_luigi.tasks.adjustment import Adjust, Train
from espo_luigi.tasks.all import All
from espo_luigi.tasks.base import (
    EspoTask,
    PieceParameter,
    PoolParameter,
    SimulationParameter,
    VariableParameter,
    every,
    every_piece,
)
from espo_luigi.tasks.diagnostics import (
    ConcatDiagRefProp,
    ConcatenationDiag,
    Diag,
    DiagExtract,
    DiagImprovedEtHeatmap,
    DiagMeasuresImprovement,
    Diagnostics,
    DiagnosticsReference,
    DiagRef,
    MoveDiag,
    MoveRef,
    OffDiagRefProp,
    OffDiagScenPropMeas,
    OffDiagSimPropMeas,
)
from espo_luigi.tasks.ensembles import Ensemble, Regions
from espo_luigi.tasks.espo_2024 import Espo2024 as Espo2024
from espo_luigi.tasks.espo_v2 import EspoV2 as EspoV2
from espo_luigi.tasks.export import Export, ExportOutcome, Exports
from espo_luigi.tasks.inputs import InputCheck, RefInputCheck
from espo_luigi.tasks.outcomes import (
    Climatology,
    Delta,
    Indicators,
    ReferenceClimatology,
    ReferenceIndicators,
    WarmingLevels,
)
from espo_luigi.tasks.perfect_model import PerfectModel, PerfectPair
from espo_luigi.tasks.ports import kept, packed, temporary, upstream
from espo_luigi.tasks.product import (
    CleanUp,
    ConcatClean,
    ConcatCleanPreswap,
    ConcatenationFinal,
    Derive,
    FinalZarr,
    HealthChecks,
    Move,
    Swap,
)
from espo_luigi.tasks.reference import MakeRef, RefDefault, ReferenceCalendar
from espo_luigi.tasks.report import FlagDetails, FlagMaps, Inversions, NotCalibrated, Report, SeriesSummary, YearlySums
from espo_luigi.tasks.simulation import Extract, Rechunk, Regrid

# Luigi's command line has no other way to choose its worker than a module of tasks that sets it.
install()

__all__ = [
    "Adjust",
    "All",
    "CleanUp",
    "Climatology",
    "ConcatClean",
    "ConcatCleanPreswap",
    "ConcatDiagRefProp",
    "ConcatenationDiag",
    "ConcatenationFinal",
    "Delta",
    "Derive",
    "Diag",
    "DiagExtract",
    "DiagImprovedEtHeatmap",
    "DiagMeasuresImprovement",
    "DiagRef",
    "Diagnostics",
    "DiagnosticsReference",
    "Ensemble",
    "Export",
    "ExportOutcome",
    "Exports",
    "Extract",
    "FinalZarr",
    "FlagDetails",
    "FlagMaps",
    "HealthChecks",
    "Indicators",
    "InputCheck",
    "Inversions",
    "MakeRef",
    "Move",
    "MoveDiag",
    "MoveRef",
    "NotCalibrated",
    "OffDiagRefProp",
    "OffDiagScenPropMeas",
    "OffDiagSimPropMeas",
    "PerfectModel",
    "PerfectPair",
    "Rechunk",
    "RefDefault",
    "RefInputCheck",
    "ReferenceCalendar",
    "ReferenceClimatology",
    "ReferenceIndicators",
    "Regions",
    "Regrid",
    "Report",
    "SeriesSummary",
    "Swap",
    "Train",
    "WarmingLevels",
    "YearlySums",
]
# What a module of rules needs.
__all__ += [
    "EspoTask",
    "PieceParameter",
    "PoolParameter",
    "Resources",
    "SimulationParameter",
    "VariableParameter",
    "every",
    "every_piece",
    "kept",
    "packed",
    "temporary",
    "upstream",
]
