"""Pools of members for the golden tests of `realization`: real series, and what is asked of each pool.

A member is a stretch of 30 years of the climate model, dated 1981-2010: members differ as years do, without random
numbers. Only numpy and xarray are imported: the environment of the original has no `espo_luigi`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

DATA = Path(__file__).parents[1] / "data"
PERIOD = ["1981", "2000"]
PERIODS = ["1981", "2010"]
MM_PER_DAY = 1 / 86400
# Cells of precipitation, by place.
PR_CELLS = ("plain", "tail", "mixed", "never dry", "drizzle", "all zero", "missing years")
TAIL_DAYS = ((0, "1990-02-10"), (0, "2005-07-01"))
_FIRST_YEARS = (1966, 1973, 1981, 1988, 1995)
_YEAR = 365
# The days of the year and the days that the golden files keep.
KEPT_DAYS = slice(4, None, 20)
KEPT_TIMES = slice(7, None, 29)
# Quantiles of a scenario in which days were drawn.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


class Pool(NamedTuple):
    """A variable's series, and the arguments of its training and adjustment."""

    variable: str
    members: int
    calendar: str
    # Whether anything random is asked for.
    drawn: bool = True

    @property
    def name(self) -> str:
        """The name of the golden file."""
        return f"pool-{self.variable}-{self.members}-{self.calendar}" + ("" if self.drawn else "-undrawn")

    @property
    def seeds(self) -> int:
        """How many times the original was run: a run of a large pool takes minutes."""
        return 1 if not self.drawn else 3 if self.members == 5 else 4

    def training_args(self) -> dict[str, Any]:
        """The arguments of `train` beside the series, as the configuration of ESPO 2.0 has them."""
        args: dict[str, Any] = {
            "period": PERIOD,
            "method": "DetrendedQuantileMapping",
            "group": {"group": "time.dayofyear", "window": 31, "add_dims": ["realization"]},
            "xsdba_train_args": {"kind": "+" if self.variable.startswith("tas") else "*", "nquantiles": 50},
        }
        if self.variable == "dtr" and self.drawn:
            args["jitter_under"] = {"thresh": "1e-4 K"}
        if self.variable == "pr":
            args["xsdba_train_args"]["max_tail_factor"] = 10
        if self.variable == "pr" and self.drawn:
            args["jitter_under"] = {"thresh": "0.01 mm d-1"}
            args["xsdba_train_args"]["adapt_freq_thresh"] = "1.1574e-05 kg m^-2 s^-1"
        return args

    def adjusting_args(self) -> dict[str, Any]:
        """The arguments of `adjust` beside the series and the training."""
        loess: dict[str, Any] = {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}
        if self.variable == "pr":
            loess["mult_skip_zeros"] = True
        args: dict[str, Any] = {
            "periods": PERIODS,
            "xsdba_adjust_args": {
                "detrend": {"LoessDetrend": loess},
                "interp": "nearest",
                "extrapolation": "constant",
            },
        }
        return args | ({"jitter_under": {"thresh": "1e-4 K"}} if self.variable == "dtr" and self.drawn else {})

    def reference(self) -> xr.DataArray:
        """Station observations of the training period, (time, loc), noleap."""
        place = _observed()[self.variable]
        cells = [place[0], place[1], place[2], place[2], place[1], place[0], place[0]]
        if self.variable == "pr":
            return self._series(np.stack(cells, -1), "noleap", PERIOD)
        missing = place[0].copy()
        missing[4 * _YEAR : 5 * _YEAR] = np.nan
        return self._series(np.stack([*place, missing], -1), "noleap", PERIOD)

    def simulation(self) -> xr.DataArray:
        """Members of 1981-2010, (time, realization, loc)."""
        members = [_simulated(first)[self.variable] for first in _FIRST_YEARS[: self.members]]
        make = _precipitation_cells if self.variable == "pr" else _temperature_cells
        values = np.stack([make(place, number) for number, place in enumerate(members)], 1)
        series = self._series(values, "noleap", PERIODS)
        if self.calendar == "standard":
            # The 29 February of a leap year is as its eve.
            return series.convert_calendar("standard", align_on="date", missing=np.nan, use_cftime=False).where(
                lambda x: ~((x.time.dt.month == 2) & (x.time.dt.day == 29)), lambda x: x.shift(time=1)
            )
        return series if self.calendar == "noleap" else series.convert_calendar(self.calendar, align_on="year")

    def _series(self, values: np.ndarray, calendar: str, period: list[str]) -> xr.DataArray:
        time = xr.date_range(f"{period[0]}-01-01", f"{period[1]}-12-31", calendar=calendar, use_cftime=True)
        dims = ("time", "loc") if values.ndim == 2 else ("time", "realization", "loc")
        attrs = (
            {"units": "kg m-2 s-1", "standard_name": "precipitation_flux"} if self.variable == "pr" else {"units": "K"}
        )
        coords: dict[str, Any] = {"time": time}
        if "realization" in dims:
            coords["realization"] = [f"m{number}" for number in range(values.shape[1])]
        return xr.DataArray(values.astype("float32"), coords, dims, self.variable, attrs)


POOLS = (
    Pool("tasmax", 1, "noleap", drawn=False),
    Pool("tasmax", 2, "standard", drawn=False),
    Pool("tasmax", 5, "noleap", drawn=False),
    Pool("tasmin", 5, "360_day", drawn=False),
    Pool("dtr", 2, "standard", drawn=False),
    Pool("pr", 1, "360_day", drawn=False),
    Pool("pr", 5, "noleap", drawn=False),
    Pool("pr", 1, "noleap"),
    Pool("pr", 2, "standard"),
    Pool("pr", 5, "noleap"),
    Pool("dtr", 5, "noleap"),
)


def distribution(scenario: xr.DataArray) -> xr.DataArray:
    """Mean, share of days of 1 mm (or 1 K) or more, and quantiles of each cell and member."""
    wet = MM_PER_DAY if scenario.name == "pr" else 1
    parts = [
        scenario.mean("time"),
        (scenario >= wet).mean("time"),
        *(scenario.quantile(q, "time", skipna=True) for q in QUANTILES),
    ]
    return xr.concat([part.drop_vars("quantile", errors="ignore") for part in parts], "statistic").drop_attrs()


def _observed() -> dict[str, list[np.ndarray]]:
    ds = xr.open_dataset(DATA / "ahccd_1950-2013.nc").sel(time=slice(*PERIOD)).transpose("location", "time")
    # A station's missing days are few: the day before them stands in, as in the original's filled series.
    return _variables(ds.tasmax.values + np.float32(273.15), ds.pr.values * np.float32(MM_PER_DAY))


def _simulated(first: int) -> dict[str, list[np.ndarray]]:
    ds = xr.open_dataset(DATA / "CanESM2_1950-2100.nc").transpose("location", "time")
    ds = ds.sel(time=slice(f"{first}", f"{first + 29}"))
    return _variables(ds.tasmax.values, ds.pr.values)


def _variables(tasmax: np.ndarray, pr: np.ndarray) -> dict[str, list[np.ndarray]]:
    tasmax, pr = _filled(tasmax), _filled(pr)
    # No minimum is at hand: the change from day to day is as skewed, and as often zero, as a range of a day.
    dtr = np.abs(np.diff(tasmax, axis=-1, append=tasmax[:, :1]))
    return {"tasmax": list(tasmax), "tasmin": list(tasmax - dtr - 2), "dtr": list(dtr), "pr": list(pr)}


def _filled(values: np.ndarray) -> np.ndarray:
    last = np.maximum.accumulate(np.where(np.isnan(values), 0, np.arange(values.shape[-1])), axis=-1)
    return np.nan_to_num(np.take_along_axis(values, last, axis=-1), nan=float(np.nanmean(values)))


def _temperature_cells(place: list[np.ndarray], number: int) -> np.ndarray:
    return np.stack([*place, _with_missing_years(place[0], number)], -1)


def _precipitation_cells(place: list[np.ndarray], number: int) -> np.ndarray:
    mm = np.float32(MM_PER_DAY)
    tail = place[1].copy()
    if number == TAIL_DAYS[0][0]:
        tail[[9 * _YEAR + 40, 24 * _YEAR + 181]] = 900 * mm
    mixed = np.maximum(place[2] - 3 * mm, 0) if number % 2 == 0 else place[2] + 0.6 * mm
    never_dry, drizzle = np.maximum(place[2], 1.5 * mm), np.minimum(place[1], 0.5 * mm)
    return np.stack(
        [place[0], tail, mixed, never_dry, drizzle, np.zeros_like(tail), _with_missing_years(place[0], number)], -1
    )


def _with_missing_years(values: np.ndarray, number: int) -> np.ndarray:
    """Two years of training missing in the first member, one after it in the second."""
    missing = values.copy()
    for year in ((9, 10), (27,), (), (), ())[number]:
        missing[year * _YEAR : (year + 1) * _YEAR] = np.nan
    return missing
