"""The table of daily variables: what checks, defaults, products, the report and exports know of each.

A configuration adds to it or overrides it (section `variables`); the merged table is `RunConfig.table`. Functions take
a table; `VARIABLES` is the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# The lowest and the highest value.
Limits = tuple[float, float]
Kind = Literal["+", "*"]
Transformation = Literal["log", "logit"]
# forward: linear in time, then the last value after the end; both: the first value before the beginning, too.
Filling = Literal["forward", "both", "zero"]

_ANY: Limits = (float("-inf"), float("inf"))
_DAY = 86400
_WORDS = {"mean": "", "maximum": "Daily Maximum ", "minimum": "Daily Minimum "}


@dataclass(frozen=True)
class Variable:
    """What is known of a daily variable; numbers are in `units`, unless stated.

    Attributes
    ----------
    units
        What is extracted has these units; "" keeps those of the files.
    kind
        Whether adjustment factors are added (+) or multiplied (*).
    possible
        The limits of a product.
    raw
        The limits of raw data: models may leave the possible ones by a little.
    fill_margin
        A number that recurs beyond `possible` by more than this stands for missing values.
    bounds
        What a value cannot pass by its definition; None for no bound. Of raw data and products.
    transformation
        How a bounded variable becomes an unbounded one for the adjustment.
    wet
        A day below it is dry; None for a variable without dry days.
    jitter
        Noise takes the place of values below it where factors are multiplied, since these divide by the values.
    difference
        Whether it is a difference of temperatures.
    filling
        How days that a calendar lacks are filled (ESPO v2).
    display_units
        The units of reports; "" for `units`.
    colours
        matplotlib's colour map of the variable's maps.
    standard_name, long_name, cell_methods
        CF's names, for products that lack them.
    """

    units: str = ""
    kind: Kind = "+"
    possible: Limits = _ANY
    raw: Limits = _ANY
    fill_margin: float = 0.0
    bounds: tuple[float | None, float | None] = (None, None)
    transformation: Transformation | None = None
    wet: float | None = None
    jitter: float | None = None
    difference: bool = False
    filling: Filling = "both"
    display_units: str = ""
    colours: str = "viridis"
    standard_name: str = ""
    long_name: str = ""
    cell_methods: str = "time: mean"

    @property
    def no_fills(self) -> Limits:
        """The limits beyond which a number that recurs stands for missing values."""
        low, high = self.possible
        return low - self.fill_margin, high + self.fill_margin

    @property
    def is_range(self) -> bool:
        """Whether it is a difference that is never negative, such as tasmax - tasmin."""
        return self.difference and self.bounds[0] == 0


def _temperature(method: str, filling: Filling) -> Variable:
    # Air was measured from 184 K (Vostok) to 330 K (Death Valley), which a warmer climate may pass. Models may be
    # colder over Antarctica, and have hot spikes: the raw limits are near -100 and 80 °C.
    return Variable(
        units="K",
        possible=(180.0, 340.0),
        raw=(170.0, 353.0),
        filling=filling,
        display_units="degC",
        standard_name="air_temperature",
        long_name=f"{_WORDS[method]}Near-Surface Air Temperature",
        cell_methods=f"time: {method}",
    )


def _percentage(name: str, standard_name: str, method: str = "mean") -> Variable:
    return Variable(
        units="%",
        possible=(0.0, 100.0),
        raw=(-5.0, 200.0),
        fill_margin=10.0,
        bounds=(0.0, 100.0),
        transformation="logit",
        colours="YlGnBu",
        standard_name=standard_name,
        long_name=f"{_WORDS[method]}{name}",
        cell_methods=f"time: {method}",
    )


def _precipitation(name: str, standard_name: str) -> Variable:
    return Variable(
        units="kg m-2 s-1",
        kind="*",
        # The most of a day is 1825 mm (La Réunion). Spectral models and interpolation leave up to 1 mm/d below zero.
        possible=(0.0, 3000.0 / _DAY),
        raw=(-1.0 / _DAY, 3000.0 / _DAY),
        fill_margin=5.0 / _DAY,
        bounds=(0.0, None),
        wet=1.0 / _DAY,
        jitter=0.01 / _DAY,
        filling="zero",
        display_units="mm d-1",
        standard_name=standard_name,
        long_name=name,
    )


def _radiation(name: str, possible: Limits) -> Variable:
    return Variable(
        units="W m-2",
        kind="*" if name == "shortwave" else "+",
        possible=possible,
        raw=(possible[0] - 5.0, possible[1] + 50.0),
        fill_margin=10.0,
        bounds=(0.0, None),
        jitter=0.01 if name == "shortwave" else None,
        colours="inferno",
        standard_name=f"surface_downwelling_{name}_flux_in_air",
        long_name=f"Surface Downwelling {name.title()} Radiation",
    )


def _wind(component: str) -> Variable:
    return Variable(
        units="m s-1",
        possible=(-90.0, 90.0),
        raw=(-113.0, 113.0),
        colours="RdBu_r",
        standard_name=f"{component}_wind",
        long_name=f"{component.title()} Near-Surface Wind",
    )


def _wind_speed(method: str = "mean") -> Variable:
    return Variable(
        units="m s-1",
        kind="*",
        possible=(0.0, 113.0 if method == "maximum" else 90.0),
        raw=(-0.1, 113.0),
        fill_margin=5.0,
        bounds=(0.0, None),
        jitter=0.01,
        standard_name="wind_speed",
        long_name=f"{_WORDS[method]}Near-Surface Wind Speed",
        cell_methods=f"time: {method}",
    )


def _pressure(name: str, standard_name: str, lowest: float) -> Variable:
    return Variable(
        units="Pa",
        possible=(lowest, 110_000.0),
        raw=(lowest - 5_000.0, 115_000.0),
        display_units="hPa",
        standard_name=standard_name,
        long_name=name,
    )


VARIABLES: Mapping[str, Variable] = {
    "tas": _temperature("mean", "both"),
    "tasmax": _temperature("maximum", "forward"),
    "tasmin": _temperature("minimum", "both"),
    "dtr": Variable(
        units="K",
        kind="*",
        possible=(0.0, 100.0),
        # Some models have a tasmin above tasmax.
        raw=(-100.0, 100.0),
        fill_margin=10.0,
        bounds=(0.0, None),
        jitter=1e-4,
        difference=True,
        long_name="Daily temperature range",
        cell_methods="time: range within days",
    ),
    "pr": _precipitation("Precipitation", "precipitation_flux"),
    "prsn": _precipitation("Snowfall Flux", "snowfall_flux"),
    "evspsbl": Variable(
        units="kg m-2 s-1",
        possible=(-20.0 / _DAY, 50.0 / _DAY),
        raw=(-50.0 / _DAY, 100.0 / _DAY),
        display_units="mm d-1",
        colours="YlGnBu",
        standard_name="water_evapotranspiration_flux",
        long_name="Evaporation Including Sublimation and Transpiration",
    ),
    "hurs": _percentage("Near-Surface Relative Humidity", "relative_humidity"),
    "hursmin": _percentage("Near-Surface Relative Humidity", "relative_humidity", "minimum"),
    "hursmax": _percentage("Near-Surface Relative Humidity", "relative_humidity", "maximum"),
    "clt": _percentage("Total Cloud Cover Percentage", "cloud_area_fraction"),
    "huss": Variable(
        units="1",
        kind="*",
        possible=(0.0, 0.05),
        raw=(-1e-4, 0.06),
        fill_margin=0.1,
        bounds=(0.0, None),
        jitter=1e-7,
        display_units="g kg-1",
        colours="YlGnBu",
        standard_name="specific_humidity",
        long_name="Near-Surface Specific Humidity",
    ),
    # Air is drier than it can be cold; the highest dew point was 308 K (Dhahran).
    "tdps": Variable(
        units="K",
        possible=(150.0, 320.0),
        raw=(130.0, 353.0),
        display_units="degC",
        standard_name="dew_point_temperature",
        long_name="2m Dewpoint Temperature",
    ),
    "sfcWind": _wind_speed(),
    "sfcWindmax": _wind_speed("maximum"),
    "uas": _wind("eastward"),
    "vas": _wind("northward"),
    # The sun brings up to 560 W m-2 to the top of the air, at a pole in summer.
    "rsds": _radiation("shortwave", (0.0, 600.0)),
    "rlds": _radiation("longwave", (20.0, 700.0)),
    "ps": _pressure("Surface Air Pressure", "surface_air_pressure", 40_000.0),
    # From 870 hPa (typhoon Tip) to 1085 hPa (Mongolia).
    "psl": _pressure("Sea Level Pressure", "air_pressure_at_mean_sea_level", 85_000.0),
    "snw": Variable(
        units="kg m-2",
        kind="*",
        # Some models let the snow of ice sheets grow for ever.
        possible=(0.0, 1e5),
        raw=(-1.0, 1e6),
        fill_margin=10.0,
        bounds=(0.0, None),
        jitter=0.01,
        colours="Blues",
        standard_name="surface_snow_amount",
        long_name="Surface Snow Amount",
    ),
}


def variable(name: str, table: Mapping[str, Variable] = VARIABLES) -> Variable:
    """Return what a table knows of a variable; nothing is known of one that it does not have."""
    return table.get(name, Variable())


def names_of(name: str, table: Mapping[str, Variable] = VARIABLES) -> dict[str, str]:
    """Return the attributes that name a variable in CF's terms; none of a variable that the table does not have."""
    row = table.get(name)
    names = ("standard_name", "long_name", "cell_methods") if row is not None else ()
    return {key: getattr(row, key) for key in names if getattr(row, key)}
