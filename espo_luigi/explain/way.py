"""The way of a value from the raw files to the product: the values of each step, and how they are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cftime
import numpy as np
import xarray as xr

from espo_luigi import store
from espo_luigi.config.bias_adjustment import VariableAdjustment
from espo_luigi.errors import ConfigurationError, DataError, ParameterError, not_one_of
from espo_luigi.explain import cells, mapping
from espo_luigi.explain.cells import Cell, Made
from espo_luigi.explain.mapping import Correction, Sample
from espo_luigi.science import calendar, seeds
from espo_luigi.science.adjust import kernel_backend, quantile_mapping
from espo_luigi.science.adjust.training import AdjustmentSetup, Grouping, TrainedObject, TrainingSetup
from espo_luigi.science.adjust.windows import plan_windows
from espo_luigi.science.calendar import TimeAxis
from espo_luigi.science.choices import NEEDED_FOR, each_period
from espo_luigi.science.extract.dataset import day_of
from espo_luigi.science.finalize.gaps import DAYS_OF_A_GAP
from espo_luigi.science.regrid import cascade
from espo_luigi.science.units import convert_to, threshold_in
from espo_luigi.tasks import partition
from espo_luigi.tasks.base import provenance
from espo_luigi.tasks.context import RunContext, context

# What `Adjust` gives for dtr, beside the configuration.
_JITTER_OF_DTR = "1e-4 K"
# How far a value may be from the product's where processors or versions differ: of the value.
TOLERANCE = 1e-5
_SMALLEST_WEIGHT = 1e-9
_LEVELS = tuple(float(one) for one in np.linspace(0, 1, 41))


@dataclass(frozen=True)
class Part:
    """A cell of a grid that the value is made of, its weight and its value."""

    lat: float
    lon: float
    weight: float
    value: float


@dataclass(frozen=True)
class Stage:
    """A grid on the way, with the cells of it that the value is made of: weights add up to 1."""

    grid: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Regridded:
    """The interpolation of a variable: its grids, from the raw grid on."""

    stages: tuple[Stage, ...]
    extrapolated: bool
    value: float
    filled: bool


@dataclass(frozen=True)
class Noise:
    """Noise in place of small values: their shares in the window's samples, and whether it changed the day."""

    threshold: float
    reference_share: float
    simulation_share: float
    in_scenario: bool
    day_before: float | None


@dataclass(frozen=True)
class DryDays:
    """The frequency adaptation in the window.

    Attributes
    ----------
    reference_share, simulation_share
        The shares of days up to the threshold.
    top
        New values are drawn between the threshold and this; NaN if none is drawn.
    made_wet
        How many values of the window's sample became wet, if that is known.
    day
        What the day became in the calibration's sample, or None if it was left as it was, or is not in it.
    in_calibration
        Whether the day lies in the calibration period.
    in_scenario
        Whether the simulation that is adjusted is adapted, too (ESPO v2).
    """

    threshold: float
    reference_share: float
    simulation_share: float
    top: float
    made_wet: int | None
    day: float | None
    in_calibration: bool
    in_scenario: bool


@dataclass(frozen=True)
class Adjusted:
    """The way of an adjusted variable."""

    var: str
    units: str
    regridded: Regridded
    noise: Noise | None
    dry_days: DryDays | None
    sample: Sample
    correction: Correction
    value: float


@dataclass(frozen=True)
class Final:
    """The last steps of a variable of the product.

    Attributes
    ----------
    made_of
        The adjusted variables, with their values of the day.
    how
        A code: "adjusted", "difference" (tasmax - dtr), "exchanged" or "consistent" (tasmax and tasmin).
    clean
        The value after rounding and clipping, made again.
    value, store
        The value in the product, and the product's path.
    """

    var: str
    units: str
    made_of: Mapping[str, float]
    how: str
    rounded_to: int | None
    clipped: tuple[float | None, float | None] | None
    bits: int | None
    clean: float
    value: float
    store: str
    attributes: Mapping[str, str]

    @property
    def identical(self) -> bool:
        """Whether the product has the value that was made again, bit for bit."""
        return same(self.clean, self.value)


@dataclass(frozen=True)
class Day:
    """The day in its calendars; `reference_day` has the same place in the reference's year (month-day)."""

    date: str
    calendar: str
    simulation_date: str
    simulation_calendar: str
    dayofyear: int
    days_in_year: int
    reference_day: str


@dataclass(frozen=True)
class Way:
    """The way of a day's values in a cell.

    Attributes
    ----------
    source
        The store that the regridded series was read from; "" if it was made of raw files.
    other_versions
        Packages of which the product was made with another version than this process has: that, and this.
    """

    sim_id: str
    members: tuple[str, ...]
    cell: Cell
    day: Day
    source: str
    adjusted: Mapping[str, Adjusted]
    finals: tuple[Final, ...]
    other_versions: Mapping[str, tuple[str, str]]


def way_of(sim_id: str, lat: float, lon: float, date: str, var: str = "") -> Way:
    """Return the way of the values of a simulation, at a point, on a day; of a variable of the product, or of all.

    Raises
    ------
    ParameterError
        If the simulation, variable, cell or day is none of the run's.
    DataError
        If the inputs of the cell lack a year or more, or a step does not give the product's value.
    StoreError
        If the product or the reference is not there.
    """
    run = context()
    sim_id, variables = _known(run, sim_id, var)
    cell = cells.find_cell(run, lat, lon)
    infos = cells.published(run, sim_id)
    products = {name: cells.in_product(cells.open_product(infos[name].path), run, cell)[name] for name in variables}
    step = step_of(next(iter(products.values())), date)
    members = {one: cells.series_of(run, one, cell) for one in partition.members(run, partition.pool_of(run, sim_id))}
    check_complete({name: series for name, (series, _) in members.items()}, cell)
    made = cells.make(run, sim_id, cell, {name: series for name, (series, _) in members.items()}, only=variables)
    raw = cells.extracted(sim_id)
    weights = cells.regridding(run, sim_id, cell.piece, raw)
    day = _day(made, raw, step)
    on_the_day = raw.sel(time=day.simulation_date).isel(time=0).compute()
    finals = tuple(
        _final(run, made, name, float(data.isel(time=step)), step, str(infos[name].path))
        for name, data in products.items()
    )
    shown = [name for name in made.adjusted if any(name in final.made_of for final in finals)]
    adjusted = {name: _adjusted(run, made, name, day, (weights, on_the_day)) for name in shown}
    marker = store.read_marker(infos[variables[0]].path)
    return Way(sim_id, tuple(members), cell, day, members[sim_id][1], adjusted, finals, other_versions(marker))


def _known(run: RunContext, sim_id: str, var: str) -> tuple[str, list[str]]:
    """The whole id of a simulation, and the variables; raises `ParameterError` with the nearest names."""
    whole = run.full_id(sim_id)
    if whole not in run.simulations:
        raise ParameterError(not_one_of("sim_id", sim_id, list(run.simulations), takes_parts=True))
    known = list(cells.published(run, whole))
    if var and var not in known:
        raise ParameterError(not_one_of("var", var, known))
    return whole, [var] if var else known


def step_of(data: xr.DataArray, date: str) -> int:
    """Return the time step of a day (YYYY-MM-DD) in a product; raises `ParameterError` if it has no such day."""
    axis = TimeAxis.of(data)
    spans = f"{day_of(data['time'].values[0])} to {day_of(data['time'].values[-1])}"
    try:
        year, month, of_month = (int(part) for part in date.split("-"))
    except ValueError:
        raise ParameterError(f"the date is {date!r}; expected YYYY-MM-DD.") from None
    try:
        wanted = cftime.datetime(year, month, of_month, calendar=axis.calendar)
    except ValueError:
        also = "; the product's years have no 29 February" if (month, of_month) == (2, 29) else ""
        raise ParameterError(
            f"{date} is no day of the product's calendar ({axis.calendar}){also}. Give another day."
        ) from None
    found = _place_of(axis, wanted.isoformat()[:10])
    if found is None:
        raise ParameterError(f"{date} lies outside of the product, which has {spans}. Give a day inside.")
    return found


def _place_of(axis: TimeAxis, date: str) -> int | None:
    """The time step of a day of the axis's calendar, or None."""
    year, month, of_month = map(int, date.split("-"))
    wanted = xr.CFTimeIndex([cftime.datetime(year, month, of_month, calendar=axis.calendar)])
    found = np.flatnonzero(np.floor(axis.days) == TimeAxis.of_index(axis.calendar, wanted).days[0])
    return int(found[0]) if found.size else None


def check_complete(members: Mapping[str, xr.Dataset], cell: Cell) -> None:
    """Raise `DataError` if the regridded series of a cell lack the days of a year or more."""
    for name, series in members.items():
        for var, data in series.data_vars.items():
            missing = int(data.isnull().sum())
            if missing >= DAYS_OF_A_GAP:
                raise DataError(
                    f"{name} has no {var} on {missing} of {data.size} days in the cells that {cell} is interpolated "
                    "from (`incomplete` in the extracted data): it is not explained. Choose a different cell."
                )


def other_versions(marker: store.Marker | None) -> dict[str, tuple[str, str]]:
    """Return the packages whose version differs from the marker's: the marker's version, and the present version."""
    if marker is None:
        return {}
    present = dict(part.split(" ", 1) for part in _present_versions().split(", "))
    return {name: (was, present[name]) for name, was in marker.versions.items() if present.get(name, was) != was}


def _present_versions() -> str:
    from espo_luigi.tasks.base import _versions

    return provenance(store.Marker("", versions=_versions()))["espo_luigi_versions"]


def same(one: float, other: float) -> bool:
    """Whether two values are equal, or both missing."""
    return one == other or (np.isnan(one) and np.isnan(other))


def within_tolerance(one: float, other: float) -> bool:
    """Whether two values differ by round-off only."""
    return same(one, other) or bool(abs(one - other) <= TOLERANCE * max(abs(one), abs(other)))


# Steps


def _day(made: Made, raw: xr.Dataset, step: int) -> Day:
    product = made.product
    axis = TimeAxis.of(product)
    name = calendar.calendar_of(raw)
    numbers = xr.DataArray(np.arange(raw.sizes["time"]), {"time": raw["time"]}, ["time"])
    places = calendar.convert(numbers, axis.calendar)
    at = int(places.sel(time=product["time"].values[step]))
    dayofyear = int(axis.dayofyear[step])
    days = calendar.DAYS_IN_YEAR.get(axis.calendar, 366)
    # A year without 29 February, in which each calendar has its usual days.
    year = xr.DataArray(np.arange(365), {"time": xr.date_range("2001-01-01", periods=365)}, ["time"])
    brought = calendar.convert(year, axis.calendar)
    reference_day = str(year["time"].values[int(brought.values[min(dayofyear, brought.size) - 1])])[5:10]
    return Day(
        day_of(product["time"].values[step]), axis.calendar, day_of(raw["time"].values[at]), name, dayofyear, days,
        reference_day,
    )  # fmt: skip


def _regridded(weights: cascade.Weights, day: xr.DataArray, place: int, value: float, units: str) -> Regridded:
    """The cells of each grid that a cell is made of, with their values of the day."""
    flat = np.asarray(convert_to(day, units).transpose(*weights.source.dims).values, np.float64).ravel()
    fields = [("raw", weights.source.grid, flat)]
    for name, step in weights.steps.items():
        fields.append((name, weights.grids[name], step @ fields[-1][2]))
    rows: list[Any] = [weights.matrix[[place]]]
    # From the last grid back: the weight of each of its cells in the value.
    for step in reversed(list(weights.steps.values())[1:]):
        rows.insert(1, (rows[1] if len(rows) > 1 else _unit(step.shape[0], place)) @ step)
    stages = tuple(
        Stage(name, _parts(grid, values, row)) for (name, grid, values), row in zip(fields, rows, strict=False)
    )
    found = float(np.float32(sum(part.weight * part.value for part in stages[0].parts)))
    filled = bool(np.isnan(found) and not np.isnan(value))
    if not filled and not within_tolerance(found, value):
        raise DataError(
            f"regridding: the raw cells and their weights give {found!r} {units} of {day.name}, and the series has "
            f"{value!r}. The raw files or the configuration changed since: run again with `[espo] rerun = stale`."
        )
    return Regridded(stages, bool(weights.extrapolated[place]), value, filled)


def _unit(size: int, place: int) -> Any:
    from scipy import sparse

    return sparse.csr_matrix(([1.0], ([0], [place])), shape=(1, size))


def _parts(grid: Any, values: np.ndarray, row: Any) -> tuple[Part, ...]:
    lat, lon = (one.ravel() for one in grid.coordinates())
    cells_of_row = sorted(zip(row.indices.tolist(), row.data.tolist(), strict=True), key=lambda one: -one[1])
    return tuple(
        Part(float(lat[cell]), float(lon[cell]), weight, float(values[cell]))
        for cell, weight in cells_of_row
        if weight > _SMALLEST_WEIGHT or np.isnan(values[cell])
    )


@dataclass(frozen=True)
class _Calibration:
    """A cell's calibration, as `train` sees it: the series in the training's calendar and units, and the setup."""

    reference: np.ndarray
    historical: np.ndarray
    prepared_reference: np.ndarray
    prepared: np.ndarray
    axis: TimeAxis
    setup: TrainingSetup


def _calibration(made: Made, var: str, variable: VariableAdjustment, draws: tuple[str, int]) -> _Calibration:
    """Prepare a cell's calibration as the training does."""
    arguments = variable.training_args.arguments()
    units = TrainedObject.of(made.training[var]).units
    target = calendar.calendar_of(made.adjusted[var])
    first, last = arguments["period"]
    align = arguments.get("align_on", "year")

    def series(ds: xr.Dataset) -> xr.DataArray:
        data = convert_to(ds[var].sel(time=slice(first, last)), units)
        return calendar.convert(data, target, align_on=align).isel(loc=0)

    reference = series(made.reference)
    historical = np.stack([series(one).values for one in made.members.values()])
    axis = TimeAxis.of(reference)
    jitter, adapt = (arguments.get(name) for name in ("jitter_under", "adapt_freq"))
    train_args = variable.training_args.xclim_train_args.arguments()
    setup = TrainingSetup(
        variable.training_args.method,
        Grouping.parse(arguments["group"]),
        train_args,
        axis,
        units,
        draws[0],
        None if jitter is None else threshold_in(jitter["thresh"], units),
        None if adapt is None else threshold_in(adapt["thresh"], units),
        members=tuple(made.members) if _is_pooled(made, var) else None,
        first_cell=draws[1],
        additive_space=arguments.get("additive_space"),
    )
    if reason := _why_not(variable, setup):
        raise ConfigurationError(
            f"{var} is adjusted by xsdba ({reason}), which draws random numbers for blocks of cells: `espo explain` "
            "knows the steps of our kernels only."
        )
    reference_values = reference.values[np.newaxis]
    prepared = _prepared(reference_values, historical, setup)
    return _Calibration(reference_values[0], historical, prepared[0][0], prepared[1], axis, setup)


def _why_not(variable: VariableAdjustment, setup: TrainingSetup) -> str | None:
    return "asked for" if variable.engine == "xsdba" else kernel_backend.why_not_train(setup)


def _is_pooled(made: Made, var: str) -> bool:
    return "realization" in made.adjusted[var].dims


def _member_seeds(setup: TrainingSetup) -> list[np.ndarray]:
    names = [setup.seed] if setup.members is None else [f"{setup.seed}+{name}" for name in setup.members]
    return [quantile_mapping.cell_seeds(name, np.array([setup.first_cell])) for name in names]


def _prepared(reference: np.ndarray, historical: np.ndarray, setup: TrainingSetup) -> tuple[np.ndarray, np.ndarray]:
    """The reference (1, time) and the members (member, time), with noise and adapted as before the training."""
    plan = plan_windows(setup.time.dayofyear, setup.group.window)
    own = quantile_mapping.cell_seeds(setup.seed, np.array([setup.first_cell]))
    if setup.adapt_freq is not None:
        made = quantile_mapping.prepare(
            reference, historical, plan, seeds=own, jitter_under=setup.jitter_under, adapt_freq=setup.adapt_freq
        )
        return made.reference, made.historical
    if setup.jitter_under is None:
        return reference, historical
    noisy = [
        quantile_mapping.jitter(one[np.newaxis], setup.jitter_under, seeds=seed)[0]
        for one, seed in zip(historical, _member_seeds(setup), strict=True)
    ]
    return quantile_mapping.jitter(reference, setup.jitter_under, seeds=own, reference=True), np.stack(noisy)


def _adjusted(run: RunContext, made: Made, var: str, day: Day, raw: tuple[cascade.Weights, xr.Dataset]) -> Adjusted:
    """The steps of an adjusted variable, checked against what the rules made."""
    variable = run.config.biasadjust.variables[var]
    pool = partition.pool_of(run, made.sim_id)
    seed, first = run.workflow.pieces.draws(pool, made.cell.piece, var)
    seed_and_cell = seed, first + made.cell.place
    calibration = _calibration(made, var, variable, seed_and_cell)
    units, member = calibration.setup.units, list(made.members).index(made.sim_id)
    simulation, step, axis = _simulation(made, var, variable, day)
    noisy = _with_noise(simulation, var, units, calibration.setup)
    method = _method(made, var, variable, axis)
    adapted = _adapted(made, var, noisy, method, calibration.setup)
    correction = mapping.correct(adapted, method, member=member, step=step)
    value = float(_value(made.adjusted[var], var, made.sim_id, day))
    if not mapping.agree(correction.result, value):
        raise DataError(
            f"adjustment: the steps of {var} give {correction.result!r} {units} on {day.date}, and the kernels "
            f"{value!r}: a defect of espo_luigi. Please report it with this cell and day."
        )
    weights, on_the_day = raw
    regridded = _regridded(weights, on_the_day[var], made.cell.place, float(simulation[member, step]), units)
    window = mapping.places_in_window(
        plan_windows(calibration.axis.dayofyear, calibration.setup.group.window),
        min(day.dayofyear, int(calibration.axis.dayofyear.max())),
        calibration.axis.days.size,
    )
    return Adjusted(
        var,
        units,
        regridded,
        _noise(calibration, window, simulation[member, step], noisy[member, step]),
        _dry_days(made, var, calibration, window, day, member),
        _sample(calibration, window, float(simulation[member, step])),
        correction,
        value,
    )


def _simulation(made: Made, var: str, variable: VariableAdjustment, day: Day) -> tuple[np.ndarray, int, TimeAxis]:
    """The members (member, time) over the period that has the day, in the calendar and the units of the training."""
    units, target = TrainedObject.of(made.training[var]).units, calendar.calendar_of(made.adjusted[var])
    arguments = variable.adjusting_args.arguments()
    year = int(day.date[:4])
    first, last = next(pair for pair in each_period(arguments["periods"]) if int(pair[0]) <= year <= int(pair[1]))
    align = arguments.get("align_on", "year")
    found = [
        calendar.convert(convert_to(one[var].sel(time=slice(first, last)), units), target, align_on=align).isel(loc=0)
        for one in made.members.values()
    ]
    axis = TimeAxis.of(found[0])
    step = _place_of(axis, day.date)
    assert step is not None
    return np.stack([one.values for one in found]), step, axis


def _with_noise(simulation: np.ndarray, var: str, units: str, setup: TrainingSetup) -> np.ndarray:
    """The simulation that is adjusted: a diurnal range has noise below a threshold, as `Adjust` has it."""
    if var != "dtr":
        return simulation
    names = [f"{setup.seed}+adjust"]
    if setup.members is not None:
        names = [f"{names[0]}+{name}" for name in setup.members]
    threshold, cell = threshold_in(_JITTER_OF_DTR, units), np.array([setup.first_cell])
    return np.concatenate(
        [
            seeds.jitter_under(one[np.newaxis], threshold, seed=name, role="simulation", cells=cell)
            for one, name in zip(simulation, names, strict=True)
        ]
    )


def _method(made: Made, var: str, variable: VariableAdjustment, axis: TimeAxis) -> mapping.Method:
    training = made.training[var].isel(loc=0)
    trained = TrainedObject.of(made.training[var])
    arguments = variable.adjusting_args.arguments().get("xclim_adjust_args", {})
    reason = kernel_backend.why_not_adjust(AdjustmentSetup(trained, arguments, axis, ""))
    if reason:
        raise ConfigurationError(f"{var} is adjusted by xsdba ({reason}): `espo explain` knows our kernels only.")
    loess = arguments["detrend"]["LoessDetrend"] or {}
    plan = quantile_mapping.plan_adjustment(
        axis.dayofyear,
        axis.days,
        window=trained.group.window,
        fraction=float(loess.get("f", 0.2)),
        n_training_days=training.sizes["dayofyear"],
    )
    arrays = {name: training[name].transpose("dayofyear", ...).values for name in ("af", "hist_q", "scaling")} | {
        "quantiles": training["quantiles"].values
    }
    tail = trained.state.get("max_tail_factor")
    limits = None
    if tail is not None:
        raw = training["hist_q_raw"].transpose("dayofyear", "quantiles").values[:, -1]
        limits = raw.dtype.type(tail) * raw
    return mapping.Method(trained.kind or "+", plan, arrays, bool(loess.get("mult_skip_zeros")), limits)


def _adapted(made: Made, var: str, simulation: np.ndarray, method: mapping.Method, setup: TrainingSetup) -> np.ndarray:
    """The members with their dry days adapted, where the training asks for that."""
    if setup.adapt_freq_thresh is None:
        return simulation
    from espo_luigi.science.adjust.kernels.adapting import adapt_simulation

    training = made.training[var].isel(loc=0)
    shares = [training[name].transpose("dayofyear", ...).values for name in ("P0_ref", "P0_hist", "pth")]
    names = (
        [f"{setup.seed}+adjust"] if setup.members is None else [f"{setup.seed}+adjust+{name}" for name in setup.members]
    )
    out = np.empty_like(simulation)
    for member, name in enumerate(names):
        dry_reference, dry_historical, tops = (
            np.ascontiguousarray(one.reshape(len(one), -1)[:, member]) for one in shares
        )
        seed = quantile_mapping.cell_seeds(name, np.array([setup.first_cell]))[0]
        threshold = simulation.dtype.type(setup.adapt_freq_thresh)
        adapt_simulation(
            simulation[member], method.plan, threshold, dry_reference, dry_historical, tops, seed, out[member]
        )
    return out


def _value(ds: xr.Dataset, var: str, sim_id: str, day: Day) -> np.ndarray:
    data = ds[var].isel(loc=0)
    if "realization" in data.dims:
        data = data.sel(realization=sim_id)
    return data.isel(time=_place_of(TimeAxis.of(data), day.date)).values


def _noise(calibration: _Calibration, window: np.ndarray, before: float, after: float) -> Noise | None:
    threshold = calibration.setup.jitter_under
    if threshold is None:
        return None
    changed = bool(before != after and not np.isnan(before))
    return Noise(
        threshold,
        float((calibration.reference[window] < threshold).mean()),
        float((calibration.historical[:, window] < threshold).mean()),
        changed,
        float(after) if changed else None,
    )


def _dry_days(
    made: Made, var: str, calibration: _Calibration, window: np.ndarray, day: Day, member: int
) -> DryDays | None:
    setup = calibration.setup
    threshold = setup.adapt_freq if setup.adapt_freq is not None else setup.adapt_freq_thresh
    if threshold is None:
        return None
    row = min(day.dayofyear, made.training[var].sizes["dayofyear"]) - 1
    top = made.training[var]["pth"].isel(loc=0, dayofyear=row).values
    step = _place_of(calibration.axis, day.date)
    before = quantile_mapping.jitter(
        calibration.historical, setup.jitter_under or 0.0, seeds=np.concatenate(_member_seeds(setup))
    )
    after = calibration.prepared
    new = None
    if step is not None and setup.adapt_freq is not None and before[0, step] != after[0, step]:
        new = float(after[0, step])
    return DryDays(
        threshold,
        float((calibration.prepared_reference[window] <= threshold).mean()),
        float((before[member, window] <= threshold).mean()),
        float(np.atleast_1d(top)[member if np.ndim(top) else 0]),
        int((before[:, window] != after[:, window]).sum()) if setup.adapt_freq is not None else None,
        new,
        step is not None,
        setup.adapt_freq_thresh is not None,
    )


def _sample(calibration: _Calibration, window: np.ndarray, value: float) -> Sample:
    reference, simulation = calibration.prepared_reference[window], calibration.prepared[:, window].ravel()
    years = calibration.axis.year
    return Sample(
        calibration.setup.group.window,
        int(years[0]),
        int(years[-1]),
        int(reference.size),
        int(simulation.size),
        float(np.nanmean(reference)),
        float(np.nanmean(simulation)),
        _LEVELS,
        tuple(map(float, np.nanquantile(reference, _LEVELS))),
        tuple(map(float, np.nanquantile(simulation, _LEVELS))),
        float((simulation <= value).mean()),
    )


def _final(run: RunContext, made: Made, var: str, value: float, step: int, path: str) -> Final:
    """The last steps, and the comparison with the product."""
    clean = made.product[var]
    day_value = float(clean.isel(time=step))
    config = run.config
    made_of, how = _made_of(run, made, var, step)
    if run.workflow.product == "ConcatenationFinal":
        rounding, clipping, bits = config.clean_up.xscen_clean_up.round_var, {}, None
    else:
        treatment = config.treatment(var)
        rounding, clipping = treatment.get("round_var", {}), treatment.get("clip_var", {})
        bits = config.clean_up.bitround
    final = Final(
        var,
        str(clean.attrs.get("units", "")),
        made_of,
        how,
        rounding.get(var),
        clipping.get(var),
        bits,
        day_value,
        value,
        path,
        {name: str(clean.attrs[name]) for name in ("long_name", "cell_methods") if name in clean.attrs},
    )
    if not within_tolerance(day_value, value):
        raise DataError(
            f"product: {var} is {value!r} {final.units} in {path}, and {day_value!r} when it is made again from the "
            f"kept stores and raw files. {_blame(run, made.sim_id, var)}"
        )
    return final


def _blame(run: RunContext, sim_id: str, var: str) -> str:
    """What changed since a product was made, as `espo plan --rerun stale` finds it."""
    changed = cells.published(run, sim_id)[var].task.stale()
    if changed:
        return f"Changed since: {', '.join(changed)}. Run again with `[espo] rerun = stale`."
    return "Neither configuration nor files changed since, as far as the marker tells: the product was altered."


def _made_of(run: RunContext, made: Made, var: str, step: int) -> tuple[dict[str, float], str]:
    """The adjusted variables that a variable is made of, with their values, and how."""

    def at(name: str) -> float:
        data = made.adjusted[name][name].isel(loc=0, time=step)
        return float(data.sel(realization=made.sim_id) if "realization" in data.dims else data)

    temperatures = run.config.clean_up.temperatures
    if var not in ("tasmax", "tasmin") or (var == "tasmax" and temperatures == "derived"):
        return {var: at(var)}, "adjusted"
    names: Sequence[str] = [name for name in NEEDED_FOR[temperatures] if name in made.adjusted]
    values = {name: at(name) for name in names}
    if temperatures == "swap":
        return values, "exchanged" if values["tasmax"] < values["tasmin"] else "consistent"
    return values, "difference"
