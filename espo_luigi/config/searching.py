"""What to read: sections `extraction` and `regrid`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from espo_luigi.errors import nearest
from espo_luigi.fields import (
    AnyMapping,
    Arguments,
    ByFileName,
    Chunks,
    Frequency,
    InputPaths,
    Integer,
    Named,
    NothingIsEmpty,
    Number,
    OmitDefault,
    Periods,
    Section,
    Switch,
    Unit,
)
from espo_luigi.redaction import redacted
from espo_luigi.science.attributes import RegridMethod
from espo_luigi.science.geometry.boxes import Box, made_edges
from espo_luigi.science.limits import INPUT_PROBLEMS
from espo_luigi.science.quantities import Comparison
from espo_luigi.science.variables import Filling

# xESMF's ways to put values outside of the source's grid.
ExtrapMethod = Literal["inverse_dist", "nearest_s2d"]

# A cascade needs thousands of cells; this many would fill a node's memory with weights.
_MOST_CELLS = 10_000_000


class RestrictMembers(Switch):
    """Which members of a simulation are kept."""

    ordered: Integer = Field(ge=1, description="the number of members that are kept, the first in natural order")


class SearchDataCatalogs(Section):
    """The search in the catalogues."""

    data_catalogs: InputPaths = Field(description="the catalogues (JSON files) that are searched")
    variables_and_freqs: Annotated[ByFileName[Frequency], Field(min_length=1)] = Field(
        description="the variables that are wanted, each with its frequency"
    )
    allow_resampling: bool = Field(
        default=False, description="make days of hours (or of 3 or 6) where a variable is not there by day"
    )
    allow_conversion: bool = Field(default=False, description="derive missing variables (dtr from tasmax and tasmin)")
    match_hist_and_fut: bool = Field(default=False, description="join each future experiment with its historical run")
    restrict_members: RestrictMembers | None = Field(
        default=None, description="which members are kept, such as `ordered: 1`"
    )
    periods: Periods | None = Field(
        default=None, description="years that must be covered; those of `custom` by default"
    )
    other_search_criteria: AnyMapping = Field(
        default={}, description="wanted values of catalogue columns: a value, a list, or a regular expression"
    )
    exclusions: AnyMapping | None = Field(
        default=None, description="unwanted values of catalogue columns, written like wanted values"
    )

    allow_missing: bool = OmitDefault(
        "go on without an experiment of which no simulation is found; a single source may be missing in any case", False
    )

    @property
    def most_members(self) -> int | None:
        """How many members of a model and experiment are kept; None if all are."""
        return self.restrict_members.arguments().get("ordered") if self.restrict_members else None


ENGINES = ("netcdf4", "h5netcdf", "scipy", "pydap", "zarr")
"""The backends of xarray that are for NetCDF and Zarr. Others may read further files, or pickles, which run code."""

_OPEN_KWARGS = frozenset(
    {
        *("backend_kwargs", "cache", "chunks", "concat_characters", "consolidated", "create_default_indexes"),
        *("decode_cf", "decode_coords", "decode_timedelta", "decode_times", "decode_vlen_strings", "drop_variables"),
        *("engine", "group", "inline_array", "invalid_netcdf", "lock", "mask_and_scale", "phony_dims"),
        *("storage_options", "use_cftime", "use_zarr_fill_value_as_mask", "zarr_format"),
    }
)
# Options of fsspec that open something else than the URL in the catalogue.
_OTHER_FILES = frozenset({"fo", "fs", "protocol", "remote_options", "remote_protocol"}) | {
    *("target_options", "target_protocol"),
}


def refused_option(options: Mapping[str, Any]) -> str:
    """Return what is wrong with keyword arguments of `xarray.open_dataset`, as "got …, expected …"; nothing if sound.

    The rest may write (`mode`), run code or read other files than those of the catalogue (`chunk_store`).
    """
    inner = options.get("backend_kwargs") or {}
    storage = [each.get("storage_options") for each in (options, inner) if isinstance(each, Mapping)]
    for name, value in (("backend_kwargs", options.get("backend_kwargs")), *(("storage_options", s) for s in storage)):
        if value is not None and not isinstance(value, Mapping):
            return f"got {repr(redacted(value))[:100]} as {name}, expected a mapping of names to values"
    for name in [*options, *inner]:
        if name not in _OPEN_KWARGS:
            near = nearest(str(name), _OPEN_KWARGS)
            return f"got the argument {name!r}, expected one of {', '.join(sorted(_OPEN_KWARGS))}{near}"
    engine = options.get("engine")
    if engine is not None and engine not in ENGINES:
        return f"got the engine {engine!r}, expected one of {', '.join(ENGINES)}"
    if other := sorted(_OTHER_FILES & set(_keys_in(storage))):
        return f"got {other[0]!r} in storage_options, expected no option that names another file or protocol"
    return ""


def _keys_in(value: Any) -> Iterator[Any]:
    """Yield the keys of mappings, and of mappings and lists inside of these."""
    if isinstance(value, Mapping):
        yield from value
    if isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _keys_in(inner)


def _as_open_kwargs(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if fault := refused_option(value):
        raise ValueError(fault)
    return value


class ExtractDataset(Section):
    """How datasets are opened."""

    periods: Periods | None = Field(
        default=None, description="no influence: `custom.ref_period` and `custom.sim_period` say which years are read"
    )
    xr_open_kwargs: Annotated[AnyMapping, AfterValidator(_as_open_kwargs)] = Field(
        default={}, description="keyword arguments of xarray.open_dataset"
    )
    xr_combine_kwargs: AnyMapping = Field(default={}, description="keyword arguments of xarray.combine_by_coords")
    mask: bool = OmitDefault("keep values only where the fixed field `mask` is 1; of the reference", False)


class CreateMask(Section):
    """A mask of the simulations' cells, made of a fixed field."""

    variable: str = Field(description="the fixed field, which the search wants with the frequency fx")
    where_operator: Literal[">=", ">", "<=", "<", "==", "!="] = Field(description="the comparison")
    where_threshold: Number = Field(description="the number that the field is compared with, in the field's unit")
    mask_nans: bool = Field(default=True, description="whether cells without a value are left out")


def _matching(pattern: str, expected: str) -> BeforeValidator:
    def validated(value: Any) -> str:
        if not re.fullmatch(pattern, str(value)):
            raise ValueError(expected)
        return str(value)

    return BeforeValidator(validated)


_DAY = _matching(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "expected a day, such as 2015-01-01")
_DAYS = _matching(r"([0-9]{4}(-[0-9]{2}){0,2})?", "expected a day, a month or a year, such as 2014-12-31")
_PARSED = AfterValidator(lambda value: Comparison(value) if value and isinstance(value, str) else value)


class RepairRow(Section):
    """Values of a simulation that are known to be wrong."""

    id: str = Field(description="the simulation's id; `*` stands for any text")
    variable: str = Field(description="the variable")
    what: Literal["missing", "mean_of_neighbours"] = Field(description="what takes their place")
    where: Annotated[str | tuple[float, float], _PARSED] = Field(
        default="", description="the values (`> 335 K`), or a cell's latitude and longitude"
    )
    when: Annotated[str, _DAYS] = Field(default="", description="a day, a month or a year")

    @model_validator(mode="after")
    def _of_some_values(self) -> RepairRow:
        if not self.where and not self.when:
            raise ValueError(f"this would replace all values of {self.variable}; expected where, when or both")
        if self.what == "mean_of_neighbours" and isinstance(self.where, str):
            raise ValueError("expected the latitude and longitude of a cell as `where` of mean_of_neighbours")
        return self


class UnitsRow(Section):
    """The units of a variable of a dataset, whatever its files say."""

    id: str = Field(default="*", description="the dataset's id; `*` stands for any text")
    variable: str = Field(description="the variable")
    units: Unit = Field(description="the units of its numbers; a total's (mm) are those of a day's total")


def _as_rows(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [{"variable": name, "units": units} for name, units in value.items()]
    return value


def _as_mapping(value: Any) -> Any:
    return {"*": value} if isinstance(value, str) else value


Accumulation = Literal["since_midnight", "over_step"]
_ZONE = _matching(r"UTC([+-](0\d|1[0-4]):[0-5]\d)?|local", "expected UTC, a zone such as UTC-05:00, or local")


class Extraction(Section):
    """One of the two inputs, the reference or the simulations."""

    search_data_catalogs: SearchDataCatalogs = Field(description="what is searched, and in which catalogues")
    extract_dataset: Annotated[ExtractDataset, NothingIsEmpty] = Field(
        default_factory=ExtractDataset, description="how datasets are opened"
    )
    chunks: Chunks = Field(
        default={},
        description="chunks of what is extracted; by default whole maps in files of some 64 MB, which suits most runs",
    )
    create_mask: CreateMask | None = OmitDefault("the source cells that are interpolated from; of the simulations")
    repairs: tuple[RepairRow, ...] = OmitDefault("known defects of single simulations, repaired in this order", ())
    fill_in_time: Named[Filling] = OmitDefault(
        "variables whose gaps are filled from other days, after regridding: forward, both or zero", {}
    )
    days_to_fill: tuple[Annotated[str, _DAY], ...] = OmitDefault(
        "days that files may lack (YYYY-MM-DD); `fill_in_time` fills them, of the reference `variables.*.filling`", ()
    )

    units: Annotated[tuple[UnitsRow, ...], BeforeValidator(_as_rows)] = OmitDefault(
        "the units in place of the files', by variable (`pr: mm d-1`), or rows of single datasets", ()
    )
    accumulation: Annotated[Named[Accumulation], BeforeValidator(_as_mapping)] = OmitDefault(
        "what amounts are totals of: a word for all variables, or by variable; `over_step` is the time step", {}
    )
    day: Annotated[str, _ZONE] | None = OmitDefault(
        "the zone of days that are made of hours: UTC (the default), UTC-05:00 and the like, or local, by longitude",
        None,
    )

    @property
    def series(self) -> dict[str, str]:
        """The wanted variables that vary in time, with their frequencies, in the order of the file."""
        wanted = self.search_data_catalogs.variables_and_freqs
        return {name: frequency for name, frequency in wanted.items() if frequency != "fx"}

    def repaired(self, sim_id: str) -> set[str]:
        """Return the variables that repairs of a simulation name."""
        return {row.variable for row in self.repairs if fnmatchcase(sim_id, row.id)}

    def units_of(self, dataset_id: str) -> dict[str, str]:
        """Return the stated units of a dataset by variable; later rows count before earlier ones."""
        return {row.variable: row.units for row in self.units if fnmatchcase(dataset_id, row.id)}

    def accumulated(self, variables: Iterable[str]) -> dict[str, str]:
        """Return those of a dataset's variables that may be totals, with what they are totals of."""
        known = {name: self.accumulation.get(name, self.accumulation.get("*")) for name in variables}
        return {name: over for name, over in known.items() if over}

    @property
    def wanted_source(self) -> str | None:
        """The source that the search wants, if it is a single name."""
        source = self.search_data_catalogs.other_search_criteria.get("source")
        only = source[0] if isinstance(source, list | tuple) and len(source) == 1 else source
        return only if isinstance(only, str) else None


def _only_fail(value: Any) -> Any:
    if value == "warn":
        raise ValueError("expected fail: no dataset can be made of such files. Correct them, or exclude the simulation")
    return value


Action = Literal["fail", "warn"]
Fails = Annotated[Literal["fail"], BeforeValidator(_only_fail)]


_EFFECTS: dict[str, Any] = {
    name: (Action if kind.may_warn else Fails, Field(default=kind.effect, description=kind.meaning))
    for name, kind in INPUT_PROBLEMS.items()
}
OnInputProblem = create_model(
    "OnInputProblem",
    __base__=Section,
    __doc__="The effect of each kind of problem with raw files: the tasks that need them fail, or a warning.",
    **_EFFECTS,
)


class ExtractionSection(Section):
    """Section `extraction`."""

    reference: Extraction = Field(description="the reference dataset")
    simulation: Extraction = Field(description="the simulations")
    variables_and_units: Named[Unit] = OmitDefault("the units of what is extracted, by variable", {})
    ref_source: str | None = Field(
        default=None, description="the reference's source, if its search criteria do not name it"
    )
    # The hash leaves it out, since it changes no number.
    on_input_problem: Annotated[OnInputProblem, NothingIsEmpty] = Field(  # type: ignore[valid-type]
        default_factory=OnInputProblem, exclude=True, description="what problems with raw files do, by kind"
    )


class CfGrid2d(Section):
    """A regular grid by the outer bounds of its cells and their widths, degrees."""

    lon0_b: Number = Field(description="the western bound")
    lon1_b: Number = Field(description="the eastern bound")
    d_lon: Number = Field(gt=0, description="the cells' width in longitude")
    lat0_b: Number = Field(description="the southern bound")
    lat1_b: Number = Field(description="the northern bound")
    d_lat: Number = Field(gt=0, description="the cells' width in latitude")

    @model_validator(mode="after")
    def _cells(self) -> CfGrid2d:
        if self.lat0_b < -90 or self.lat1_b > 90:
            raise ValueError("expected lat0_b and lat1_b within -90..90 degrees north")
        if self.lon0_b < -360 or self.lon1_b > 360 or self.lon1_b - self.lon0_b > 360:
            raise ValueError("expected lon0_b and lon1_b within -360..360 degrees east, and 360 degrees apart at most")
        cells = 1.0
        for axis, low, high, width in (
            ("lon", self.lon0_b, self.lon1_b, self.d_lon),
            ("lat", self.lat0_b, self.lat1_b, self.d_lat),
        ):
            if high - low <= 1.5 * width:
                raise ValueError(f"expected {axis}1_b above {axis}0_b by two cells (d_{axis}) at least")
            cells *= (high - low) / width
        if cells > _MOST_CELLS:
            raise ValueError(f"this grid has {cells:.3g} cells; expected {_MOST_CELLS:.0e} at most: make them wider")
        return self

    def made(self) -> Box:
        """Return the outer edges of the cells that are really made, which may fall short of the upper bounds."""
        east, _ = made_edges(self.lon0_b, self.lon1_b, self.d_lon)
        north, _ = made_edges(self.lat0_b, self.lat1_b, self.d_lat)
        return Box((self.lon0_b, east), (self.lat0_b, north))


class RegridderKwargs(Arguments):
    """xESMF's arguments that our regridding knows; those that cannot change a number here take any value."""

    method: Literal["bilinear"] | None = Field(
        default=None, description="the interpolation; others by variable, as `regrid.regrid_method`"
    )
    extrap_method: ExtrapMethod | None = Field(
        default=None, description="what is put outside of the source's grid; nothing by default"
    )
    extrap_dist_exponent: Number | None = Field(
        default=None, gt=0, description="the exponent of the inverse distance; 2 by default"
    )
    extrap_num_src_pnts: Integer | None = Field(
        default=None, gt=0, description="how many points inverse_dist takes; 8 by default"
    )
    periodic: Literal[False] | None = Field(default=None, description="whether the grid goes around the Earth")
    reuse_weights: Literal[False] | None = Field(default=None, description="whether weights are read from a file")
    skipna: Literal[False] | None = Field(default=None, description="whether missing values are left out")
    unmapped_to_nan: Literal[True] | None = Field(default=None, description="whether points without source are missing")
    locstream_out: Any = Field(default=None, description="no influence here: the reference decides")
    output_chunks: Any = Field(default=None, description="no influence here")
    keep_attrs: Any = Field(default=None, description="no influence here")


class IntermediateGrid(Section):
    """A grid that the cascade passes through."""

    cf_grid_2d: CfGrid2d = Field(description="the grid")
    regridder_kwargs: Annotated[RegridderKwargs, NothingIsEmpty] = Field(
        default_factory=RegridderKwargs, description="keyword arguments of this stage's regridder"
    )


class RegridDataset(Section):
    """How data are brought to the reference's points."""

    regridder_kwargs: Annotated[RegridderKwargs, NothingIsEmpty] = Field(
        default_factory=RegridderKwargs, description="keyword arguments of the last stage's regridder"
    )
    intermediate_grids: Named[IntermediateGrid] = Field(
        default={}, description="the grids of the cascade, from coarse to fine"
    )


# Bilinear is left out: a default that is written out must not change fingerprints.
_WITHOUT_DEFAULT = AfterValidator(
    lambda methods: MappingProxyType({name: method for name, method in methods.items() if method != "bilinear"})
)


class Regrid(Section):
    """Section `regrid`."""

    regrid_dataset: RegridDataset = Field(default_factory=RegridDataset, description="how data are regridded")
    skip_coarser: bool = OmitDefault("leave out grids of the cascade that are coarser than a simulation", False)
    regrid_method: Annotated[Named[RegridMethod], _WITHOUT_DEFAULT] = OmitDefault(
        "by variable, such as `pr: conservative`, the interpolation of all stages; bilinear by default; nearest takes "
        "the simulation's nearest cell, by way of no grid",
        {},
    )

    @property
    def conserved(self) -> dict[str, RegridMethod]:
        """The conservative method of each variable that has one."""
        return {name: method for name, method in self.regrid_method.items() if method != "nearest"}

    def options(self) -> dict[str, Any]:
        """Return the arguments of `espo_luigi.science.regrid.weigh` that are the same for all simulations."""
        return {**self.regrid_dataset.arguments(), "methods": dict(self.regrid_method)}
