"""The rules of ESPO-G, each a Luigi task: ``luigi --module espo_luigi.tasks All``.

| module | rules |
|---|---|
| `inputs` | InputCheck, RefInputCheck |
| `daily` | Daily, RefDaily |
| `reference` | MakeRef, RefDefault, ReferenceCalendar, CoarseReference |
| `simulation` | Extract, Regrid |
| `adjustment` | Train, Adjust |
| `downscaling` | Downscale |
| `product` | CleanUp, Move, ConcatenationFinal, HealthChecks |
| `product`, v2 | Swap, Derive, ConcatClean, ConcatCleanPreswap |
| `diagnostics` | OffDiagRefProp, OffDiagSimPropMeas, OffDiagScenPropMeas, DiagMeasuresImprovement |
| `diagnostics`, 2024 | DiagnosticsReference, ConcatDiagRefProp, Diagnostics, ConcatenationDiag, DiagImprovedEtHeatmap |
| `diagnostics`, v2 | DiagRef, DiagExtract, Diag |
| `outcomes` | Percentiles, ReferencePercentiles, Indicators, ReferenceIndicators |
| `outcomes`, of these | Climatology, ReferenceClimatology, Delta, WarmingLevels |
| `outcomes`, of these | Trends, ReferenceTrends, ReturnLevels, ReferenceReturnLevels |
| `ensembles` | Ensemble, Regions |
| `report` | Summaries, NotCalibrated, FlagDetails, Inversions, Report |
| `explorer` | Explorer |
| `export` | Export, ExportOutcome, Exports |
| `perfect_model` | PerfectPair, WithheldYears, PerfectModel |
| `all` | All |

`production` says what a production line consists of; `espo_2024` and `espo_v2` describe ours. A module of rules imports
all that it needs from here, too: `EspoTask`, parameters, ports, `Resources` and `every`. The base of all rules is
`base`, with ports (`ports`), the run's configuration and catalogue (`context`), its pools and pieces (`partition`) and
the state of outputs (`staleness`). Commands use `make`, `clean` and `publish`.
"""

# `as` tells type checkers that a name belongs to this module, too.
from espo_luigi.driver.install import install
from espo_luigi.jobs.dask import imported as imported
from espo_luigi.jobs.resources import Resources as Resources
from espo_luigi.tasks.adjustment import Adjust as Adjust
from espo_luigi.tasks.adjustment import Train as Train
from espo_luigi.tasks.all import All as All
from espo_luigi.tasks.base import EspoTask as EspoTask
from espo_luigi.tasks.base import PieceParameter as PieceParameter
from espo_luigi.tasks.base import PoolParameter as PoolParameter
from espo_luigi.tasks.base import SimulationParameter as SimulationParameter
from espo_luigi.tasks.base import VariableParameter as VariableParameter
from espo_luigi.tasks.base import every as every
from espo_luigi.tasks.base import every_piece as every_piece
from espo_luigi.tasks.daily import Daily as Daily
from espo_luigi.tasks.daily import RefDaily as RefDaily
from espo_luigi.tasks.diagnostics import ConcatDiagRefProp as ConcatDiagRefProp
from espo_luigi.tasks.diagnostics import ConcatenationDiag as ConcatenationDiag
from espo_luigi.tasks.diagnostics import Diag as Diag
from espo_luigi.tasks.diagnostics import DiagExtract as DiagExtract
from espo_luigi.tasks.diagnostics import DiagImprovedEtHeatmap as DiagImprovedEtHeatmap
from espo_luigi.tasks.diagnostics import DiagMeasuresImprovement as DiagMeasuresImprovement
from espo_luigi.tasks.diagnostics import Diagnostics as Diagnostics
from espo_luigi.tasks.diagnostics import DiagnosticsReference as DiagnosticsReference
from espo_luigi.tasks.diagnostics import DiagRef as DiagRef
from espo_luigi.tasks.diagnostics import OffDiagRefProp as OffDiagRefProp
from espo_luigi.tasks.diagnostics import OffDiagScenPropMeas as OffDiagScenPropMeas
from espo_luigi.tasks.diagnostics import OffDiagSimPropMeas as OffDiagSimPropMeas
from espo_luigi.tasks.downscaling import Downscale as Downscale
from espo_luigi.tasks.ensembles import Ensemble as Ensemble
from espo_luigi.tasks.ensembles import Regions as Regions
from espo_luigi.tasks.espo_2024 import Espo2024 as Espo2024
from espo_luigi.tasks.espo_v2 import EspoV2 as EspoV2
from espo_luigi.tasks.explorer import Explorer as Explorer
from espo_luigi.tasks.export import Export as Export
from espo_luigi.tasks.export import ExportOutcome as ExportOutcome
from espo_luigi.tasks.export import Exports as Exports
from espo_luigi.tasks.inputs import InputCheck as InputCheck
from espo_luigi.tasks.inputs import RefInputCheck as RefInputCheck
from espo_luigi.tasks.outcomes import Climatology as Climatology
from espo_luigi.tasks.outcomes import Delta as Delta
from espo_luigi.tasks.outcomes import Indicators as Indicators
from espo_luigi.tasks.outcomes import Percentiles as Percentiles
from espo_luigi.tasks.outcomes import ReferenceClimatology as ReferenceClimatology
from espo_luigi.tasks.outcomes import ReferenceIndicators as ReferenceIndicators
from espo_luigi.tasks.outcomes import ReferencePercentiles as ReferencePercentiles
from espo_luigi.tasks.outcomes import ReferenceReturnLevels as ReferenceReturnLevels
from espo_luigi.tasks.outcomes import ReferenceTrends as ReferenceTrends
from espo_luigi.tasks.outcomes import ReturnLevels as ReturnLevels
from espo_luigi.tasks.outcomes import Trends as Trends
from espo_luigi.tasks.outcomes import WarmingLevels as WarmingLevels
from espo_luigi.tasks.perfect_model import PerfectModel as PerfectModel
from espo_luigi.tasks.perfect_model import PerfectPair as PerfectPair
from espo_luigi.tasks.perfect_model import WithheldYears as WithheldYears
from espo_luigi.tasks.ports import kept as kept
from espo_luigi.tasks.ports import packed as packed
from espo_luigi.tasks.ports import temporary as temporary
from espo_luigi.tasks.ports import upstream as upstream
from espo_luigi.tasks.product import CleanUp as CleanUp
from espo_luigi.tasks.product import ConcatClean as ConcatClean
from espo_luigi.tasks.product import ConcatCleanPreswap as ConcatCleanPreswap
from espo_luigi.tasks.product import ConcatenationFinal as ConcatenationFinal
from espo_luigi.tasks.product import Derive as Derive
from espo_luigi.tasks.product import HealthChecks as HealthChecks
from espo_luigi.tasks.product import Move as Move
from espo_luigi.tasks.product import Swap as Swap
from espo_luigi.tasks.reference import CoarseReference as CoarseReference
from espo_luigi.tasks.reference import MakeRef as MakeRef
from espo_luigi.tasks.reference import RefDefault as RefDefault
from espo_luigi.tasks.reference import ReferenceCalendar as ReferenceCalendar
from espo_luigi.tasks.report import FlagDetails as FlagDetails
from espo_luigi.tasks.report import Inversions as Inversions
from espo_luigi.tasks.report import NotCalibrated as NotCalibrated
from espo_luigi.tasks.report import Report as Report
from espo_luigi.tasks.report import Summaries as Summaries
from espo_luigi.tasks.simulation import Extract as Extract
from espo_luigi.tasks.simulation import Regrid as Regrid

# Luigi's command line has no other way to choose its worker than a module of tasks that sets it.
install()
