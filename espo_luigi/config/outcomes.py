"""What is made of products: sections `indicators`, `aggregate`, `warming_levels`, `ensembles`, `spatial_mean`.

Sections and arguments have xscen's names.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from espo_luigi.config.yaml_files import read_yaml
from espo_luigi.errors import ConfigurationError
from espo_luigi.fields import (
    ByFileName,
    Frequency,
    InputPath,
    Integer,
    Latitudes,
    Longitudes,
    Named,
    Number,
    OmitDefault,
    Period,
    Section,
    Threshold,
    find_file,
)
from espo_luigi.files import MOST_JSON_BYTES, leads_out, read_bytes
from espo_luigi.science.definitions import BUNDLES, fault_in, is_file
from espo_luigi.science.periods import each_period

logger = logging.getLogger(__name__)
Dataset = Literal["scenario", "simulation", "reference"]
Product = Literal["indicators", "climatology", "delta", "warming_levels", "trends", "return_levels"]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str | int | float) and not isinstance(value, bool) else value


SeveralPeriods = Annotated[
    tuple[Period, ...], BeforeValidator(lambda value: tuple(each_period(value)) if value else ())
]


class ComputeIndicators(Section):
    """Arguments of `xscen.compute_indicators`."""

    restrict_years: Literal[True] = Field(default=True, description="true: no period begins before the data")


class IndicatorsSection(Section):
    """Section `indicators`: the climate indicators of scenarios, simulations and the reference."""

    module: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        exclude=True,
        min_length=1,
        description="a YAML file in xclim's format; or a bundle, {bundles}, or one of xclim's modules, icclim, "
        "anuclim, cf, atmos or land, of which those indicators are made whose variables are there; or several "
        "of these. `etccdi.fd` is one indicator".format(bundles=", ".join(BUNDLES)),
    )
    definitions: Named[Any] = Field(default={}, description="what files and bundles have; it is read from `module`")
    freqs: Annotated[tuple[Frequency, ...], BeforeValidator(_listed)] = Field(
        default=(), description="the frequencies of all indicators; by default each has its own"
    )
    periods: SeveralPeriods = Field(default=(), description="the years; by default all")
    base_period: Period | None = OmitDefault(
        "the years of percentiles, as of tx90p, and of standardized indices; custom.ref_period by default", None
    )
    datasets: Annotated[tuple[Dataset, ...], BeforeValidator(_listed)] = Field(
        default=("scenario", "simulation", "reference"),
        description="of what: the product, the regridded simulation before adjustment, the reference",
    )
    compute_indicators: ComputeIndicators = Field(default_factory=ComputeIndicators, description="as in xscen")

    @field_validator("periods")
    @classmethod
    def _apart(cls, periods: SeveralPeriods) -> SeveralPeriods:
        for (first, last), (following, end) in pairwise(periods):
            if int(following) <= int(last) + 1:
                raise ValueError(
                    f"{following}-{end} after {first}-{last}; expected periods in order with years between"
                )
        return periods

    @model_validator(mode="before")
    @classmethod
    def _with_definitions(cls, given: Any, info: ValidationInfo) -> Any:
        modules = _listed(given["module"])
        if not isinstance(modules, list | tuple) or not all(isinstance(one, str) for one in modules):
            return given
        paths, found = [], dict[str, Any]()
        for module in modules:
            path, definitions = _defined(module, (info.context or {}).get("folders", ()))
            if found.setdefault(path.name, definitions) is not definitions:
                raise ValueError(f"two modules have the name {path.name}; expected each once")
            paths.append(str(path))
        return {**given, "module": paths, "definitions": definitions if len(paths) == 1 else found}


def _defined(module: str, folders: Sequence[Path]) -> tuple[Path, Mapping[str, Any]]:
    """Return a file's path, or the name of another module, and what it defines."""
    path, bundle = Path(module), BUNDLES.get(module.partition(".")[0])
    if not is_file(module):
        return path, {"module": module, **(read_yaml(Path(bundle)).content if bundle else {})}
    path = find_file(module, folders)
    if not path.is_file():
        raise ValueError(f"{path} does not exist; expected a YAML file in xclim's format")
    try:
        definitions = read_yaml(path).content
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    if fault := fault_in(definitions):
        raise ValueError(f"{path}: {fault}")
    return path, definitions


class ClimatologicalOp(Section):
    """Arguments of `xscen.climatological_op`."""

    op: str | dict[str, dict[str, Number]] = Field(default="mean", description="mean, std, median, min, max, sum, p90")
    window: Integer | None = Field(default=None, ge=1, description="years of a window; by default a whole period")
    stride: Integer = Field(default=1, ge=1, description="years from a window to the next")
    periods: SeveralPeriods = Field(default=(), description="the years of which windows are taken; by default all")
    min_periods: int | float | None = Field(
        default=None,
        description="the years with a value that a window needs; by default all, or 0.8 of them for dates and ratios",
    )
    season_year: Literal["december", "january"] = OmitDefault(
        "whether DJF belongs to the year of its December, as in xscen and xclim, or of its January", "january"
    )
    rename_variables: Literal[True] = Field(default=True, description="true: names say what was computed")


class ComputeDeltas(Section):
    """Arguments of `xscen.compute_deltas`."""

    kind: Literal["+", "/", "%"] | Named[Literal["+", "/", "%"]] = Field(
        default="+", description="a difference, a quotient, or percent; also by indicator"
    )
    reference_horizon: str | None = Field(
        default=None, pattern=r"^\d{4}-\d{4}$", description='the baseline, "1991-2020"; custom.ref_period by default'
    )
    least: Named[Threshold] = Field(default={}, description="the least baseline of a relative change, by indicator")
    rename_variables: Literal[True] = Field(default=True, description="true: names say what was computed")


class OfPeriods(Section):
    """Keys of what is made of periods of years."""

    periods: SeveralPeriods = Field(default=(), description="the first and last year of each")
    min_periods: int | float | None = Field(
        default=None, description="the years with a value that a period needs, as of climatologies"
    )


class Trends(OfPeriods):
    """Trends of the indicators; by default of all years."""

    method: Literal["theil-sen", "linear"] = Field(
        default="theil-sen", description="theil-sen, with the p-value by Mann and Kendall; or linear, least squares"
    )


class ReturnLevels(OfPeriods):
    """Return levels of maxima and minima; by default of the horizons of the climatologies, of 20 years or more."""

    indicators: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        min_length=1, description="yearly or seasonal maxima and minima, such as rx1day"
    )
    return_periods: Annotated[tuple[Annotated[Number, Field(gt=1)], ...], BeforeValidator(_listed)] = Field(
        default=(20.0, 50.0, 100.0), min_length=1, description="in years"
    )


class Aggregate(Section):
    """Section `aggregate`: climatologies of the indicators, their changes, trends and return levels."""

    climatological_op: ClimatologicalOp = Field(default_factory=ClimatologicalOp, description="the climatologies")
    compute_deltas: ComputeDeltas | None = Field(default=None, description="the changes; by default none")
    trends: Trends | None = OmitDefault("trends and their p-values; by default none")
    return_levels: ReturnLevels | None = OmitDefault("return levels; by default none")


def files_of(path: Path) -> dict[str, bytes]:
    """Return a file's content, and of a shapefile also that of the files beside it that are read, by file name.

    Raises OSError as `files.read_bytes` does, and for a file beside it that is a link to another folder.
    """
    read, most = ((".cpg", ".dbf", ".prj"), 2**31) if path.suffix.lower() == ".shp" else ((), MOST_JSON_BYTES)
    beside = [one for one in path.parent.iterdir() if one.stem == path.stem and one.suffix.lower() in read]
    # Only the first has a name that the user has chosen; texts of the others come into names and messages.
    if outside := [one for one in beside if all(leads_out(one, at) for at in (path.parent, path.resolve().parent))]:
        raise OSError(f"{outside[0]} is a link to another folder; expected a file beside {path.name}: copy it there")
    return {one.name: read_bytes(one, most) for one in (path, *sorted(beside))}


class WithFile(Section):
    """Keys with a file, whose content decides whether outputs are stale."""

    digest: str = Field(default="", description="of the file's content; it is computed")

    @model_validator(mode="before")
    @classmethod
    def _with_digest(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, Mapping) or not isinstance(name := given.get("tas_src", given.get("shape")), str):
            return given
        path = find_file(name, (info.context or {}).get("folders", ()))
        try:
            parts = files_of(path) if path.is_file() else {}
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error}") from error
        return {**given, "digest": hashlib.sha256(b"".join(parts.values())).hexdigest() if parts else ""}


class WarmingLevelsSection(WithFile):
    """Section `warming_levels`: with the arguments of `xscen.subset_warming_level`."""

    wl: Annotated[tuple[Number, ...], BeforeValidator(_listed)] = Field(
        default=(1.5, 2.0, 3.0, 4.0), min_length=1, description="the levels of global warming, K"
    )
    window: Integer = Field(default=20, ge=1, description="the years of a level")
    tas_baseline_period: Period = Field(default=("1850", "1900"), description="the years without warming")
    ignore_member: bool = Field(default=False, description="whether another member of the model may stand for one")
    tas_src: InputPath | None = Field(
        default=None, description="yearly global means of simulations, CSV or NetCDF; by default those of the package"
    )


class Percentiles(Section):
    """Arguments of `xclim.ensembles.ensemble_percentiles`."""

    values: tuple[Annotated[Integer, Field(ge=0, le=100)], ...] = Field(
        default=(10, 50, 90), min_length=1, description="the percentiles over simulations"
    )
    min_members: Integer | None = Field(
        default=None, description="the simulations that a cell needs; by default all of the ensemble"
    )


class Statistics(Section):
    """Statistics of `xscen.ensemble_stats`."""

    ensemble_percentiles: Percentiles = Field(default_factory=Percentiles, description="percentiles")


class Fewest(Section):
    """How many simulations a statement about an ensemble needs, in a cell and period."""

    percentiles: Integer = Field(default=3, ge=1, description="simulations below which there are no percentiles")
    robustness: Integer = Field(
        default=5, ge=1, description="simulations below which nothing is said of agreement and robustness"
    )


class EnsembleStats(Section):
    """Arguments of `xscen.ensemble_stats`."""

    statistics: Statistics = Field(default_factory=Statistics, description="what is computed")
    fewest: Fewest = OmitDefault("the simulations that percentiles and robustness need", Fewest())
    weights: Literal["models", "members"] | Named[Number] = Field(
        default="models", description="models (each has one vote), members, or a number for each simulation"
    )
    partition: Literal[False, "hawkins-sutton", "lafferty-sriver"] = Field(
        default=False, description="how the variance of yearly indicators is split by scenarios, models and years"
    )


class EnsemblesSection(Section):
    """Section `ensembles`: statistics over simulations."""

    processing_levels: tuple[Product, ...] = Field(
        default=get_args(Product), description="of what, as far as it is made"
    )
    ensemble_stats: EnsembleStats = Field(default_factory=EnsembleStats, description="the statistics")


class RegionOfMean(WithFile):
    """A box, a point or the polygons of a file."""

    method: Literal["bbox", "gridpoint", "shape"] = Field(default="bbox", description="what it is")
    lon_bnds: Longitudes | None = Field(default=None, description="of a box: degrees east")
    lat_bnds: Latitudes | None = Field(default=None, description="of a box: degrees north")
    lon: Number | None = Field(default=None, ge=-180, le=360, description="of a point: degrees east")
    lat: Number | None = Field(default=None, ge=-90, le=90, description="of a point: degrees north")
    shape: InputPath | None = Field(default=None, description="of polygons: a GeoJSON file or a shapefile")
    name_by: str = Field(default="name", description="of polygons: the property that names them")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        keys = {"bbox": ("lon_bnds", "lat_bnds"), "gridpoint": ("lon", "lat"), "shape": ("shape",)}[self.method]
        if lacking := [key for key in keys if getattr(self, key) is None]:
            raise ValueError(f"method {self.method} needs {' and '.join(keys)}; {' and '.join(lacking)} is missing")
        return self


class SpatialMean(Section):
    """Section `spatial_mean`: means over regions, weighted by areas."""

    regions: ByFileName[RegionOfMean] = Field(min_length=1, description="the regions; a file of polygons has several")
