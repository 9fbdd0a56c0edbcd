"""Climate indicators of daily series, by xclim: of its own modules, or of a YAML file in xclim's format.

xclim computes an indicator from xarray's objects: on Dask, that is a graph of small tasks for each indicator. Here all
indicators of a frequency are computed from the same block. Indicators with a kernel (`kernels`) go through the series
in pieces of whole periods, each a task. The others are xclim's own work, on blocks of cells in
memory with all days.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr
import yaml
from dask._task_spec import convert_legacy_graph
from dask.base import clone_key
from dask.core import flatten

from espo_luigi.errors import ConfigurationError, DataError, problems_in, unknown
from espo_luigi.files import read_text
from espo_luigi.science.calendar import TimeAxis, calendar_of
from espo_luigi.science.chunks import CellBlocks, assign_coords, block_sizes, is_lazy, join, rechunk, rechunk_variable
from espo_luigi.science.definitions import BUNDLES, fault_in, fault_of_name, further_variables, is_file
from espo_luigi.science.outcomes.daily import DAILY, calibration, inputs_of, with_daily
from espo_luigi.science.outcomes.kernels import Kernel, kernel_of
from espo_luigi.science.outcomes.natures import check_declared, with_natures
from espo_luigi.science.outcomes.percentiles import (
    Base,
    Percentile,
    compute_percentiles,
    cut_like,
    percentiles_of,
    precipitation_over_percentile,
)
from espo_luigi.science.units import as_floats, convert_to
from espo_luigi.science.variables import VARIABLES, Variable, names_of, variable

if TYPE_CHECKING:
    from xclim.core.indicator import Indicator

# xclim's modules that can be named in place of a file.
MODULES = ("anuclim", "atmos", "cf", "icclim", "land", "seaIce")
_MODULE = "espo_luigi"
# Years of a sample, on which kernels are compared with xclim; those of a base period in it.
_YEARS = 3
_BASE_YEARS = 4
# Functions that files may name besides xclim's.
_FUNCTIONS = {"precipitation_over_percentile": precipitation_over_percentile}
_CELLS = 3
_LATITUDE = {"standard_name": "latitude", "units": "degrees_north"}
# Among its latitudes, xclim asks for one whose summer has the season's dates.
_TEMPERATE = (-45.0, 45.0)
_MOST_BYTES = 5_000_000
_setting = Lock()


def load_indicators(module: str) -> list[tuple[str, Indicator]]:
    """Return the named indicators of a bundle ("etccdi"), a module of xclim's, or a YAML file in xclim's format.

    A bundle or module with the name of an indicator ("etccdi.fd") has that one.

    Python files and translations beside the YAML file are not read.

    Raises
    ------
    ConfigurationError
        If there is no such module, indicator or file, if the file has a definition that is not safe
        (`definitions.fault_in`), or if xclim refuses it.
    """
    import xclim

    if not is_file(module):
        module, _, only = module.partition(".")
        if module not in (known := (*BUNDLES, *MODULES)):
            raise ConfigurationError(f"{unknown(f'module of indicators {module}', module, known)} "
                                     "Or give a file in xclim's format that ends in .yml.")  # fmt: skip
        found = load_indicators(BUNDLES[module]) if module in BUNDLES else [
            (name, one)
            for name, one in vars(getattr(xclim.indicators, module)).items()
            if isinstance(one, xclim.core.indicator.Indicator) and not name.startswith("_")
        ]  # fmt: skip
        if only and only not in dict(found):
            raise ConfigurationError(unknown(f"indicator {only} of {module}", only, dict(found)))
        return [pair for pair in found if only in ("", pair[0])]
    with further_variables() as table, warnings.catch_warnings(), NamedTemporaryFile(suffix=".yml") as own:
        warnings.simplefilter("ignore")
        # Only xclim's warnings name the indicator.
        warnings.filterwarnings("error", "Constructing ")
        try:
            text = read_text(module, _MOST_BYTES)
            if fault := fault_in(yaml.safe_load(text)):
                raise ConfigurationError(f"{module}: {fault}.")
            # xclim opens the file twice, and somebody may change it meanwhile.
            own.write(text.encode())
            own.flush()
            daily = {name: {"canonical_units": one.units, "description": name} for name, one in DAILY.items()}
            table.update({**daily, **table})
            # Emptied first: indicators of the same names would keep the order of the former file.
            xclim.core.indicator.build_indicator_module(_MODULE, {}, reload=True)
            built = xclim.build_indicator_module_from_yaml(
                own.name, name=_MODULE, indices=_FUNCTIONS, mode="warn", reload=True
            )
        except ConfigurationError:
            raise
        except Exception as error:  # of several libraries, YAML's and yamale's among them
            reason = " ".join([f"{type(error).__name__}:", *str(error).split()]).removeprefix("UserWarning: ")
            raise ConfigurationError(
                f"{module}: xclim refuses it: {reason.rstrip('.')}. Expected indicators in xclim's format."
            ) from error
        return list(built.iter_indicators())


def by_frequency(
    indicators: Iterable[tuple[str, Indicator]], freqs: Sequence[str] = ()
) -> dict[str, list[tuple[str, Indicator]]]:
    """Return the indicators of each frequency, such as "QS-DEC": their own, or all of them at each of `freqs`."""
    found: dict[str, list[tuple[str, Indicator]]] = {}
    for name, one in indicators:
        if not hasattr(one, "allowed_periods"):
            raise ConfigurationError(f"the indicator {name} has no frequency; expected years, seasons or months.")
        for freq in freqs or (_own_freq(one),):
            found.setdefault(_full(freq), []).append((name, one))
    return found


def possible(
    indicators: Iterable[tuple[str, Indicator]], variables: Collection[str]
) -> tuple[list[tuple[str, Indicator]], dict[str, str]]:
    """Return the indicators whose variables are there, and by name why the others are left out. Computes nothing."""
    found = [(name, one, _obstacle(one, variables)) for name, one in indicators]
    return [(name, one) for name, one, why in found if not why], {name: why for name, _, why in found if why}


def checked(
    indicators: Iterable[tuple[str, Indicator]],
    variables: Collection[str],
    table: Mapping[str, Variable] = VARIABLES,
    freqs: Sequence[str] | None = None,
    *,
    calendar: str = "noleap",
    years: tuple[int, int] = (2001, 2003),
    if_possible: Collection[str] = (),
    base_period: tuple[str, str] | None = None,
) -> dict[str, str]:
    """Check indicators against the variables that a production has; return by name why indicators are left out.

    Each is computed from the invented days from which `compute_indicators` chooses how to compute it: in the
    production's calendar, of its first years or, where years are missing between others, of its shortest stretch of
    years (`years`, both included), with the units of `table`. None of the production's data is read. Indicators that
    cannot be computed are left out if their names are in `if_possible`, or else raise.

    Raises
    ------
    ConfigurationError
        Names each indicator that cannot be computed: which variable is missing, that it needs a base period or a
        percentile's level, that it has no frequency, or what xclim says.
    """
    first, end = years[0], min(years[1], years[0] + _YEARS - 1) + 1
    dates = TimeAxis(calendar, np.empty(0))
    days = np.arange(dates.number(f"{first:04}-01-01"), dates.number(f"{end:04}-01-01"), dtype=np.float64)
    series = {}
    for name in variables:
        units = variable(name, table).units
        attrs = names_of(name, table) | ({"units": units} if units else {})
        series[name] = ("time", "lat"), np.zeros((days.size, 1), np.float32), attrs
    ds = xr.Dataset(series, {"time": TimeAxis(calendar, days).index, "lat": [45.0]})
    return _chosen(indicators, ds, freqs, if_possible, base_period)[1]


def compute_indicators(
    ds: xr.Dataset,
    indicators: Iterable[tuple[str, Indicator]],
    *,
    freqs: Sequence[str] | None = None,
    cells_in_a_block: int = 400,
    if_possible: Collection[str] = (),
    base_period: tuple[str, str] | None = None,
    percentiles: xr.Dataset | None = None,
) -> dict[str, xr.Dataset]:
    """Compute indicators of daily series; return a dataset for each frequency, such as "YS-JAN" or "QS-DEC".

    `ds` has `time` (any calendar) and the same cells (`loc`, lat and lon, any dimensions, or none) for each variable,
    with units as attributes. Results have `time`, the first day of each period, in place of the days. Periods that
    begin before the year of the first day are left out, as the winter before the first year, and periods without a day.
    Where years are missing between others, each stretch of years is a series of its own. Names, units and attributes
    are xclim's, with the attribute `nature` besides (`natures`). The rules for missing days are xclim's, too: by
    default, a period with a missing day has no value, nor has a period that the series has only in part. Lazy if `ds`
    is lazy.

    Parameters
    ----------
    freqs
        Computes each indicator at each of these frequencies; by default, at its own.
    cells_in_a_block
        The cells that xclim computes at a time, of indicators without a kernel.
    if_possible
        The names of indicators that are left out where they cannot be computed; others raise.
    base_period
        The first and the last year over which standardized indices are calibrated, by default all; and those of
        percentiles. Of years in it, days beyond percentiles by day of the year are counted with the bootstrap of
        Zhang et al. (2005), unless the indicator's `bootstrap` is false.
    percentiles
        What `compute_percentiles` makes of `percentiles_needed`, on the same cells; by default it is computed.

    Raises
    ------
    ConfigurationError
        As `checked` does.
    DataError
        If a series has no time.

    References
    ----------
    xclim's indicators; the years that are left out follow `xscen.compute_indicators`.
    """
    calendar_of(ds)
    years = ds["time"].dt.year.values
    stretches = list(pairwise((0, *(np.flatnonzero(np.diff(years) > 1) + 1), years.size)))
    first, end = min(stretches, key=lambda ends: int(years[ends[1] - 1] - years[ends[0]]))
    chosen, _ = _chosen(indicators, ds.isel(time=slice(first, end)), freqs, if_possible, base_period)
    needed = {one for own in chosen for one in own.percentiles.values()}
    if needed and percentiles is None:
        percentiles = compute_percentiles(ds, needed, _years_of(base_period))
    per = None if percentiles is None else percentiles[[one.name for one in sorted(needed)]]
    base = base_period or (f"{years[0]:04}", f"{years[-1]:04}")
    calibrated = [one.calibrated(base) for one in chosen]
    if len(stretches) == 1:
        return _of_a_stretch(ds, calibrated, cells_in_a_block, per)
    made = [_of_a_stretch(ds.isel(time=slice(*ends)), chosen, cells_in_a_block, per) for ends in stretches]
    joined = {freq: join((part[freq] for part in made), "time") for freq in made[0]}
    if of_base := [one for one in calibrated if one.base_period]:
        axis = TimeAxis.of(ds)
        whole = ds.reindex(time=TimeAxis(axis.calendar, np.arange(axis.days[0], axis.days[-1] + 1)).index)
        for freq, of in _of_a_stretch(whole, of_base, cells_in_a_block).items():
            joined[freq] = joined[freq].assign(of.sel(time=joined[freq]["time"]).data_vars)
    return joined


def percentiles_needed(indicators: Iterable[tuple[str, Indicator]]) -> list[Percentile]:
    """Return the percentiles of a base period that indicators need, each once."""
    return sorted({per for _, one in indicators for per in percentiles_of(one).values()})


def _years_of(period: tuple[str, str] | None) -> tuple[int, int]:
    if period is None:
        raise ConfigurationError("it needs percentiles of a base period, of which the years are not given.")
    return int(period[0]), int(period[1])


def _of_a_stretch(
    ds: xr.Dataset, chosen: Sequence[_Chosen], cells_in_a_block: int, percentiles: xr.Dataset | None = None
) -> dict[str, xr.Dataset]:
    """Return the indicators of years without a gap, by frequency."""
    made = {}
    # Percentiles of a base without 29 February, of data with it, are xclim's work.
    is_whole = percentiles is None or percentiles.sizes.get("dayofyear") in (None, TimeAxis.of(ds).days_in_longest_year)
    for freq in dict.fromkeys(one.freq for one in chosen):
        ours = [one for one in chosen if one.freq == freq]
        period = next((one.period for one in ours if one.period), None)
        periods = _Periods.of(ds, freq, period)
        fast = [one for one in ours if one.kernel and (is_whole or not one.percentiles)]
        parts = []
        if fast:
            span = periods.days.span if any(one.bootstrap for one in fast) else (0, 0)
            pieces = (_piece(ds, fast, periods, percentiles, *ends) for ends in periods.pieces(ds, span))
            parts.append(join(pieces, "time"))
        if slow := [one for one in ours if one not in fast]:
            parts.append(_by_xclim(ds, slow, periods, cells_in_a_block, percentiles))
        if is_lazy(ds):
            parts = [rechunk(part, {**block_sizes(ds), "time": -1}) for part in parts]
        joined: xr.Dataset = join(part.drop_vars("time", errors="ignore") for part in parts)
        joined = joined[[name for one in ours for name in one.outputs]].assign_coords(time=periods.labels)
        coords = {name: coord for name, coord in ds.coords.items() if "time" not in coord.dims}
        joined = assign_coords(joined, coords).isel(
            time=periods.labels["time"].dt.year.values >= ds["time"].dt.year.values[0]
        )
        joined = with_natures(joined, {name: one.indicator.compute.__name__ for one in ours for name in one.outputs})
        made[freq] = joined.assign_attrs({**ds.attrs, "cat:xrfreq": freq})
    return made


@dataclass(frozen=True, eq=False)
class _Chosen:
    """An indicator at a frequency.

    `outputs` has a sample's result for each of its variables, with name, type and attributes. `percentiles` are those
    of the base `period`, by xclim's argument.
    """

    name: str
    indicator: Indicator
    freq: str
    needs: tuple[str, ...]
    outputs: Mapping[str, xr.DataArray]
    kernel: Kernel | None = None
    base_period: tuple[str, str] | None = None
    percentiles: Mapping[str, Percentile] = field(default_factory=dict)
    period: tuple[int, int] | None = None

    @property
    def bootstrap(self) -> bool:
        """Whether days of the base are compared with percentiles without their own year."""
        parameter = self.indicator._all_parameters.get("bootstrap")
        if parameter is None or any(not per.daily or per.wet for per in self.percentiles.values()):
            return False
        return bool(parameter.value) if parameter.injected else len(self.percentiles) == 1

    def compute(self, ds: xr.Dataset, bootstrap: bool = True) -> dict[str, xr.DataArray]:
        """Return xclim's results; percentiles are in `ds` by their own names."""
        from xclim import set_options

        how: dict[str, Any] = {
            key: ds[per.name].assign_coords(percentiles=int(per.level) if per.level.is_integer() else per.level)
            for key, per in self.percentiles.items()
        }
        if self.bootstrap and "bootstrap" in self.indicator.parameters:
            how["bootstrap"] = bootstrap
        # The option holds for all threads: one at a time. It lets xclim find the runs of all cells together.
        with _setting, set_options(run_length_ufunc=False), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            freq = {"freq": self.freq} if "freq" in self.indicator.parameters else {}
            if calibrated := calibration(self.indicator, self.base_period):
                # Fits in 32 bits differ with the order of sums.
                ds = ds[[*_needed(self.indicator)]].astype(np.float64)
            results = self.indicator(ds=ds, **freq, **how, **calibrated)
        several = results if isinstance(results, tuple) else (results,)
        return {str(data.name): data for data in several}

    @classmethod
    def of(
        cls, name: str, indicator: Indicator, ds: xr.Dataset, freq: str | None, base: tuple[str, str] | None
    ) -> _Chosen:
        """Compute the indicator from a sample; take the kernel if it gives the same. May raise what xclim raises."""
        from xclim.core.missing import MISSING_METHODS

        if reason := _obstacle(indicator, set(map(str, ds.data_vars))):
            raise ConfigurationError(reason)
        if (rule := indicator.missing) not in (words := (*MISSING_METHODS, "skip", "from_context")):
            raise ConfigurationError(f"`missing`: got {rule}, expected one of {', '.join(words)}.")
        kinds = {key: parameter.kind for key, parameter in indicator.parameters.items()}
        optional = {key for key, kind in kinds.items() if kind == 1 and key in ds.data_vars}
        needed = _needed(indicator) | optional
        percentiles = percentiles_of(indicator)
        period = _years_of(base) if percentiles else None
        sample = _sample(ds, sorted(inputs_of(needed, ds.data_vars)), period)
        own = cls(name, indicator, _full(freq or _own_freq(indicator)), tuple(map(str, sample.data_vars)), {})
        if period:
            own = replace(own, percentiles=percentiles, period=period)
            sample = sample.merge(_percentiles_of_sample(sample, percentiles.values(), period))
        sample = with_daily(sample, needed, sample.coords.get("lat"))
        with _uncompiled():
            outputs = own.compute(sample)
        if wrong := [data for data in outputs.values() if set(data.dims) != {"time", "lat"}]:
            raise ConfigurationError(f"{wrong[0].name} has dimensions {list(wrong[0].dims)}; expected time only.")
        if period:
            told = {"base_period": f"{period[0]}-{period[1]}", "bootstrap": "yes" if own.bootstrap else "no"}
            for data in outputs.values():
                data.attrs.pop("climatology_bounds", None)  # of the sample, where xclim makes them again
                data.attrs |= told
        own = replace(own, outputs=outputs)
        return own if needed - {*own.needs} else replace(own, kernel=own._proven_kernel(sample))

    def calibrated(self, base: tuple[str, str]) -> _Chosen:
        """Return a standardized index over a base period, of which its attributes tell; others as they are."""
        if "cal_start" not in self.indicator.parameters:
            return self
        ((name, data),) = self.outputs.items()
        history = str(data.attrs.get("history")).replace("cal_start=None, cal_end=None", "calibration_period")
        told = data.assign_attrs(calibration_period="-".join(base), history=history)
        return replace(self, base_period=base, outputs={name: told})

    def _proven_kernel(self, sample: xr.Dataset) -> Kernel | None:
        """Return the kernel if there is one that gives xclim's numbers for the sample, missing days included."""
        # Other rules for missing days may be the same in the sample's years only.
        if self.indicator.missing not in ("any", "from_context"):
            return None
        given = {
            meta.compute_name: meta.value if meta.injected else meta.default
            for meta in self.indicator._all_parameters.values()
        } | {"bootstrap": self.bootstrap}
        if len(self.outputs) > 1 or given.get("indexer") not in (None, inspect.Parameter.empty) or "S" not in self.freq:
            return None
        if "indexer" in self.indicator.injected_parameters:
            return None
        (expected,) = self.outputs.values()
        parameters = [item for item in self.indicator.parameters.items() if item[0] not in self.percentiles]
        series = {key: sample[meta.default] for key, meta in parameters if meta.kind == 0}
        units, per = expected.attrs.get("units", ""), [*self.percentiles.values()]
        kernel = kernel_of(self.indicator.compute.__name__, given, series, units, per)
        if kernel is None:
            return None
        first = int(sample["time"].dt.year[0])
        periods = _Periods.of(sample, self.freq, (first, self.period[1]) if self.period else None)
        if any(sample.sizes.get("dayofyear", 0) < periods.days.doys.max() for one in per if one.daily):
            return None
        block = {str(name): _values(data) for name, data in sample.items()}
        values = _masked(kernel, block, periods.edges, periods.days, ~periods.whole)
        theirs = expected.transpose("time", ...).values
        same = values.shape == theirs.shape and np.allclose(values, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)
        return kernel if same else None


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Let xclim find runs without numba, which takes seconds to compile: a sample has few days."""
    from xclim.indices import run_length

    name = "_cumsum_reset_np"
    compiled: Any = getattr(run_length, name, None)
    if not hasattr(compiled, "py_func"):
        yield
        return
    setattr(run_length, name, compiled.py_func)
    try:
        yield
    finally:
        setattr(run_length, name, compiled)


def _chosen(
    indicators: Iterable[tuple[str, Indicator]],
    ds: xr.Dataset,
    freqs: Sequence[str] | None,
    if_possible: Collection[str] = (),
    base_period: tuple[str, str] | None = None,
) -> tuple[list[_Chosen], dict[str, str]]:
    """Return the indicators that can be computed, and by name why others cannot; these raise unless `if_possible`."""
    chosen: list[_Chosen] = []
    problems: dict[str, str] = {}
    told: list[str] = []
    taken: dict[tuple[str, str], str] = {}
    for name, indicator in indicators:
        for freq in freqs or (None,):
            try:
                own = _Chosen.of(name, indicator, ds, freq, base_period)
                for output in own.outputs:
                    if fault := fault_of_name(output):
                        raise ConfigurationError(f"it makes {output!r}; {fault}. Set another var_name.")
                    if (other := taken.setdefault((own.freq, output), name)) != name:
                        raise ConfigurationError(f"{other} makes {output} at {own.freq}, too; set another var_name.")
                    check_declared(own.outputs[output])
            except Exception as error:  # xclim and pint raise unrelated types
                where = f"{name}{f' at {freq}' if freq else ''}"
                problems[where] = " ".join(str(error).split())
                if name not in if_possible:
                    told.append(f"indicator {where}: {problems[where]}")
                continue
            chosen.append(own)
    if told:
        raise ConfigurationError(problems_in("the choice of indicators", told))
    return chosen, problems


def _needed(indicator: Indicator) -> set[str]:
    """Return the variables that an indicator needs besides the latitude, a coordinate, and percentiles of the others.

    Raises ConfigurationError if a percentile's level is not told.
    """
    percentiles = percentiles_of(indicator)
    parameters = [one for key, one in indicator.parameters.items() if key not in percentiles]
    return {str(one.default) for one in parameters if one.kind == 0} - {"lat"}


def _obstacle(indicator: Indicator, variables: Collection[str]) -> str:
    """Return why an indicator cannot be computed from variables, as far as its definition tells; empty if it can."""
    try:
        absent = sorted(inputs_of(_needed(indicator), variables) - {*variables})
    except ConfigurationError as error:
        return str(error)
    if absent:
        return f"it needs {', '.join(absent)}; the production has {', '.join(sorted(variables))}."
    if not hasattr(indicator, "allowed_periods"):
        return "it has no frequency; expected an indicator of years, seasons or months."
    return ""


def northern_dates(indicator: Indicator) -> dict[str, str]:
    """Return the parameters by which a season starts, or has its middle, from April to September, such as "07-01"."""
    of_days = {key: one for key, one in indicator._all_parameters.items() if one.kind == 6 and "end" not in key}
    dates = {key: str(one.value if one.injected else one.default) for key, one in of_days.items()}
    return {key: date for key, date in dates.items() if "04" <= date[:2] <= "09"}


def _own_freq(indicator: Indicator) -> str:
    injected = indicator.injected_parameters
    return str(injected["freq"] if "freq" in injected else indicator.parameters["freq"].default)


def _full(freq: str) -> str:
    """Return a frequency with its month: "YS-JAN" for "YS"."""
    from xclim.core.calendar import construct_offset, parse_offset

    return str(construct_offset(*parse_offset(freq)))


def _sample(ds: xr.Dataset, names: Sequence[str], period: tuple[int, int] | None = None) -> xr.Dataset:
    """Invent values for the first years: (time, lat), the last cell with a missing day.

    With a base period, of its last years and the one after it.
    """
    years, random = ds["time"].dt.year.values, np.random.default_rng(0)
    # Up to a year's end: xclim fails where a period has fewer days than a run that it looks for.
    time = ds["time"].isel(time=slice(np.searchsorted(years, years[0] + _YEARS))).drop_attrs()
    if period:
        axis = TimeAxis.of(time)
        first = max(period[0], period[1] + 1 - _BASE_YEARS)
        ends = (axis.number(f"{year:04}-01-01") for year in (first, period[1] + 2))
        index = TimeAxis(axis.calendar, np.arange(*ends, dtype=np.float64)).index
        time = xr.DataArray(index, dims="time", coords={"time": index}, name="time")
    shape, dims = (time.size, _CELLS), ("time", "lat")
    # Wide enough for thresholds of frost and heat; the same weather for all temperatures.
    season = 14 * np.sin((time.dt.dayofyear.values - 105) * 2 * np.pi / 365)[:, None]
    weather = 285 + season + np.arange(_CELLS)[::-1] * 2 + random.normal(0, 4, shape)
    sample = {}
    for name in names:
        if name.startswith("tas") or name == "tdps":
            values, units = weather + {"tasmax": 5, "tasmin": -5, "tdps": -8}.get(name, 0), "K"
            values = values + random.normal(0, 1, shape)
        elif name.startswith("hurs"):
            values, units = random.uniform(20, 100, shape), "%"
        elif name.startswith("sfcWind"):
            values, units = random.gamma(2, 2, shape), "m s-1"
        else:
            values, units = random.gamma(0.7, 8, shape) * (random.random(shape) < 0.4), "mm d-1"
        values[len(values) // 2, -1] = np.nan
        data = xr.DataArray(values, dims=dims, name=name, attrs={"units": units})
        with suppress(DataError):  # other quantities keep these numbers
            data = convert_to(data, ds[name].attrs.get("units", ""))
        sample[name] = data.astype(np.result_type(ds[name].dtype, np.float32)).assign_attrs(ds[name].attrs)
    coords = {"time": time}
    if "lat" in ds.coords:
        coords["lat"] = xr.DataArray([*_TEMPERATE, 50.0], dims="lat", attrs=_LATITUDE)
    return xr.Dataset(sample, coords)


def _percentiles_of_sample(sample: xr.Dataset, needed: Iterable[Percentile], period: tuple[int, int]) -> xr.Dataset:
    """Return percentiles of a sample's part of the base period, which say that they are of all of it."""
    years = sample["time"].dt.year.values
    made = compute_percentiles(sample, needed, (int(years[0]), period[1])).drop_vars("lat", errors="ignore")
    last = sample["time"].values[np.searchsorted(years, period[1], "right") - 1]
    bounds = [f"{period[0]:04}-01-01", str(last)[:10]]
    return made.assign({name: data.assign_attrs(climatology_bounds=bounds) for name, data in made.items()})


@dataclass(frozen=True, eq=False)
class _Periods:
    """The periods of a series at a frequency.

    Period i has the days from edges[i] up to edges[i + 1]; it is `whole` if the series has all its days.
    """

    labels: xr.DataArray
    edges: np.ndarray
    days: Base
    whole: np.ndarray

    @classmethod
    def of(cls, ds: xr.Dataset, freq: str, period: tuple[int, int] | None = None) -> _Periods:
        from xclim.core.missing import missing_any

        days = xr.DataArray(np.ones(ds.sizes["time"], np.float32), {"time": ds["time"].variable}, ("time",))
        missing = missing_any(days, freq, src_timestep="D")
        begins = TimeAxis.of(missing).days
        edges = np.searchsorted(TimeAxis.of(ds).days, [*begins, np.inf])
        edges[0] = 0
        with_days = np.append(np.diff(edges) > 0, True)
        missing = missing[with_days[:-1]]
        return cls(missing["time"].drop_attrs(), edges[with_days], Base.of(ds, freq, period), ~missing.values)

    def pieces(self, ds: xr.Dataset, span: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Yield first and last period (excluded) of pieces that follow the series' chunks along time.

        The days of `span`, from the first up to the last, are in one piece.
        """
        ends = np.searchsorted(self.edges, np.cumsum(_time_chunks(ds)[:-1]), side="right") - 1
        cuts = sorted({0, *(int(end) for end in ends), len(self.edges) - 1})
        yield from pairwise(cut for cut in cuts if not span[0] < self.edges[cut] < span[1])


def _time_chunks(ds: xr.Dataset) -> tuple[int, ...]:
    return next((data.chunksizes["time"] for data in ds.data_vars.values() if data.chunks), ())


def _template(blocks: CellBlocks, chosen: Sequence[_Chosen], periods: int) -> xr.Dataset:
    cell = blocks.data["cell"]
    empty = cell.drop_vars(cell.coords).expand_dims(time=periods).chunk({"time": -1})
    outputs = {name: data for one in chosen for name, data in one.outputs.items()}
    return xr.Dataset(
        {name: xr.zeros_like(empty, data.dtype).assign_attrs(data.attrs) for name, data in outputs.items()}
    )


def _series(ds: xr.Dataset, chosen: Sequence[_Chosen], days: slice = slice(None)) -> dict[str, xr.DataArray]:
    """Return the variables that are needed; of lazy ones, each block has all the days."""
    series = ds[sorted({name for one in chosen for name in one.needs})].isel(time=days)
    return {str(name): data for name, data in (rechunk(series, {"time": -1}) if is_lazy(series) else series).items()}


def _values(data: xr.DataArray) -> np.ndarray:
    """Return the values with days, or days of the year, first."""
    return data.transpose("time", "dayofyear", ..., missing_dims="ignore").values


def _bare_percentiles(chosen: Sequence[_Chosen], percentiles: xr.Dataset | None) -> xr.Dataset:
    names = sorted({per.name for one in chosen for per in one.percentiles.values()})
    found = xr.Dataset() if percentiles is None else percentiles[names]
    return found.drop_vars([name for name in found.coords if name != "dayofyear"])


def _piece(
    ds: xr.Dataset,
    chosen: Sequence[_Chosen],
    periods: _Periods,
    percentiles: xr.Dataset | None,
    first: int,
    last: int,
) -> xr.Dataset:
    """Return the periods from the first up to the last, by kernels."""
    kernels = {name: one.kernel for one in chosen for name in one.outputs if one.kernel}
    edges = periods.edges[first : last + 1]
    begin = max(0, int(edges[0]) - max(kernel.before for kernel in kernels.values()))
    starts = np.cumsum((0, *_time_chunks(ds)))
    own = min(int(starts[np.searchsorted(starts, edges[0])]), int(edges[-1]))
    series = _series(ds, chosen, slice(own, int(edges[-1])))
    if begin < own:
        read = {name for kernel in kernels.values() if kernel.before or edges[0] < own for name in kernel.variables}
        before = _series(ds, chosen, slice(begin, own))
        series = {name: _joined(before[name], data, name in read) for name, data in series.items()}
    per, days = _bare_percentiles(chosen, percentiles), periods.days.part(begin, int(edges[-1]))
    if is_lazy(ds):
        # A piece with the whole base has many days: fewer cells keep its blocks as large as the others.
        sizes = cut_like(ds, len(days.doys) if len(days.groups) else 0)
        series = {str(name): data for name, data in rechunk(xr.Dataset(series), sizes).items()}
        per = rechunk(per, {"dayofyear": -1, **sizes})
    blocks = CellBlocks.of(series, cells_in_a_block=2**40, fixed=False, others=per)
    task = kernels, edges - begin, days, ~periods.whole[first:last]
    made = blocks.map(_block_by_kernels, _template(blocks, chosen, last - first), task)
    return rechunk(made, {**block_sizes(ds), "time": -1}) if is_lazy(ds) else made


def _joined(before: xr.DataArray, data: xr.DataArray, is_read: bool) -> xr.DataArray:
    """Return days with those before their first chunk, which are read again, or NaN.

    A task that two pieces share would keep its chunk in memory from one to the other, and Dask takes pieces in any
    order.
    """
    first = before.variable if is_read else xr.full_like(before.variable, np.nan)
    if is_read and first.chunks:
        first = xr.Variable(first.dims, _again(first.data))
    return xr.DataArray(rechunk_variable(xr.Variable.concat([first, data.variable], "time"), {"time": -1}))


def _again(data: da.Array) -> da.Array:
    """Return the same array of tasks of its own (`dask.graph_manipulation.clone` leaves the old names in tasks)."""
    tasks = convert_legacy_graph(dict(data.dask.cull(flatten(data.__dask_keys__()))))
    names = {key: clone_key(key, "again") for key in tasks}
    graph = {names[key]: task.substitute(names, key=names[key]) for key, task in tasks.items()}
    return da.Array(graph, clone_key(data.name, "again"), data.chunks, data.dtype)


def _block_by_kernels(block: xr.Dataset, task: tuple[dict[str, Kernel], np.ndarray, Base, np.ndarray]) -> xr.Dataset:
    cells = block["cell"].dims
    block = block.transpose("time", "dayofyear", *cells, missing_dims="ignore")
    daily = {str(name): as_floats(data).values for name, data in block.items() if name != "cell"}
    return xr.Dataset({name: (("time", *cells), _masked(kernel, daily, *task[1:])) for name, kernel in task[0].items()})


def _masked(
    kernel: Kernel, daily: Mapping[str, np.ndarray], edges: np.ndarray, days: Base, partial: np.ndarray
) -> np.ndarray:
    """Return a kernel's numbers without those of periods with a missing day."""
    made = kernel(daily, edges, days)
    made[partial] = np.nan
    for name in kernel.variables:
        for period, (first, last) in enumerate(pairwise(edges)):
            values = daily[name][first:last]
            # A sum is not finite where a day is missing; that is cheaper than to look at each day.
            if not np.isfinite(values.sum(0)).all():
                made[period] = np.where(np.isnan(values).any(0), np.nan, made[period])
    return made


def _by_xclim(
    ds: xr.Dataset,
    chosen: Sequence[_Chosen],
    periods: _Periods,
    cells_in_a_block: int,
    percentiles: xr.Dataset | None,
) -> xr.Dataset:
    """Return all periods, by xclim on blocks of cells with all days."""
    series = _series(ds, chosen)
    lat = xr.Dataset({"lat_of_cells": ds["lat"].variable.to_base_variable()} if "lat" in ds.coords else {})
    per = _bare_percentiles(chosen, percentiles)
    # Fire weather holds some 20 arrays of all days.
    makes_daily = any(inputs_of(_needed(one.indicator), one.needs) - _needed(one.indicator) for one in chosen)
    cells = cells_in_a_block // 2 if makes_daily else cells_in_a_block
    blocks = CellBlocks.of(series, cells_in_a_block=cells, fixed=True, others=lat.merge(per))
    attrs = {name: ds[name].attrs for name in series} | {str(name): data.attrs for name, data in per.items()}
    task = chosen, TimeAxis.of(ds), TimeAxis.of(periods.labels.to_dataset(name="labels")), attrs
    return blocks.map(_block_by_xclim, _template(blocks, chosen, len(periods.whole)), task)


def _block_by_xclim(
    block: xr.Dataset, task: tuple[Sequence[_Chosen], TimeAxis, TimeAxis, Mapping[str, Mapping[str, Any]]]
) -> xr.Dataset:
    chosen, axis, labels, attrs = task
    cells = block["cell"].dims
    block = block.transpose("time", "dayofyear", *cells, missing_dims="ignore")
    ds = xr.Dataset({name: block[name].assign_attrs(attrs[name]) for name in attrs})
    ds, lat = ds.assign_coords(time=axis.index), None
    if "lat_of_cells" in block:
        lat = block["lat_of_cells"].broadcast_like(block["cell"]).transpose(*cells).assign_attrs(_LATITUDE)
    ds = with_daily(ds, {name for one in chosen for name in _needed(one.indicator)}, lat)
    made = {}
    for one in chosen:
        if lat is not None and "lat" in one.indicator.parameters:
            results = _at_latitudes(one, ds, lat)
        else:
            results = one.compute(*_with_a_year_outside(ds, one))
        for name, data in results.items():
            # xclim leaves out periods for which it has no days to look at.
            placed = data if data.sizes["time"] == len(labels) else data.reindex(time=labels.index)
            made[name] = placed.drop_vars(placed.coords).transpose("time", *cells)
    return xr.Dataset(made)


def _with_a_year_outside(ds: xr.Dataset, one: _Chosen) -> tuple[xr.Dataset, bool]:
    """Return days for xclim, which bootstraps only where some are outside of the base, and whether it is to."""
    if not one.bootstrap or one.period is None:
        return ds, False
    years = ds["time"].dt.year.values
    if years[0] > one.period[1] or years[-1] < one.period[0]:
        return ds, False
    if one.period[0] <= years[0] and years[-1] <= one.period[1]:
        axis = TimeAxis.of(ds)
        days = np.arange(axis.days[0], axis.number(f"{years[-1] + 2:04}-01-01"))
        return ds.reindex(time=TimeAxis(axis.calendar, days).index), True
    return ds, True


def _at_latitudes(one: _Chosen, ds: xr.Dataset, lat: xr.DataArray) -> dict[str, xr.DataArray]:
    """Return an indicator of cells at latitudes, NaN at far ones, which xclim leaves out.

    xclim needs a dimension of latitudes, each of them once, and a temperate latitude among them: rows have the cells of
    a latitude, and NaN up to the longest row.
    """
    rows = np.unique([*lat.values.ravel(), *_TEMPERATE])
    row = np.searchsorted(rows, lat.values)
    place = pd.Series(row.ravel()).groupby(row.ravel()).cumcount().values.reshape(row.shape)
    arranged = {}
    for name, data in ds.items():
        values = np.full((ds.sizes["time"], len(rows), place.max() + 1), np.nan, data.dtype)
        values[:, row, place] = data.values
        arranged[name] = (("time", "lat", "place"), values, data.attrs)
    made = one.compute(xr.Dataset(arranged, {"time": ds["time"], "lat": ("lat", rows, _LATITUDE)}))
    at = {"lat": xr.Variable(lat.dims, row), "place": xr.Variable(lat.dims, place)}
    return {name: data.reindex(lat=rows).isel(at) for name, data in made.items()}
