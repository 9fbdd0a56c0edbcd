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
    difference: bool = False
    filling: Filling = "both"
    display_units: str = ""
    colours: str = "viridis"
    standard_name: str = ""
    long_name: str = ""
    cell_methods: str = "time: mean"


def _temperature(what: str, method: str, filling: Filling) -> Variable:
    # Air was measured from 184 K (Vostok) to 330 K (Death Valley), which a warmer climate may pass. Models may be
    # colder over Antarctica, and have hot spikes: the raw limits are near -100 and 80 °C.
    return Variable(
        units="K",
        possible=(180.0, 340.0),
        raw=(170.0, 353.0),
        filling=filling,
        display_units="degC",
        standard_name="air_temperature",
        long_name=f"Daily {what} Near-Surface Air Temperature",
        cell_methods=f"time: {method}",
    )


def _humidity(what: str, method: str) -> Variable:
    return Variable(
        units="%",
        possible=(0.0, 100.0),
        raw=(-5.0, 200.0),
        fill_margin=10.0,
        bounds=(0.0, 100.0),
        transformation="logit",
        colours="YlGnBu",
        standard_name="relative_humidity",
        long_name=f"{what}Near-Surface Relative Humidity",
        cell_methods=f"time: {method}",
    )


def _radiation(direction: str, name: str, possible: Limits) -> Variable:
    return Variable(
        units="W m-2",
        kind="*" if name == "shortwave" else "+",
        possible=possible,
        raw=(possible[0] - 5.0, possible[1] + 50.0),
        fill_margin=10.0,
        bounds=(0.0, None),
        colours="inferno",
        standard_name=f"surface_{direction}_{name}_flux_in_air",
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


VARIABLES: Mapping[str, Variable] = {
    "tas": _temperature("Mean", "mean", "both"),
    "tasmax": _temperature("Maximum", "maximum", "forward"),
    "tasmin": _temperature("Minimum", "minimum", "both"),
    "dtr": Variable(
        units="K",
        kind="*",
        possible=(0.0, 100.0),
        # Some models have a tasmin above tasmax.
        raw=(-100.0, 100.0),
        fill_margin=10.0,
        bounds=(0.0, None),
        difference=True,
        long_name="Daily Temperature Range",
        cell_methods="time: range",
    ),
    "pr": Variable(
        units="kg m-2 s-1",
        kind="*",
        # The most of a day is 1825 mm (La Réunion). Spectral models and interpolation leave up to 1 mm/d below zero.
        possible=(0.0, 3000.0 / _DAY),
        raw=(-1.0 / _DAY, 3000.0 / _DAY),
        fill_margin=5.0 / _DAY,
        bounds=(0.0, None),
        wet=1.0 / _DAY,
        filling="zero",
        display_units="mm d-1",
        standard_name="precipitation_flux",
        long_name="Precipitation",
    ),
    "hurs": _humidity("", "mean"),
    "hursmin": _humidity("Daily Minimum ", "minimum"),
    "hursmax": _humidity("Daily Maximum ", "maximum"),
    "huss": Variable(
        units="1",
        kind="*",
        possible=(0.0, 0.05),
        raw=(-1e-4, 0.06),
        fill_margin=0.1,
        bounds=(0.0, None),
        colours="YlGnBu",
        standard_name="specific_humidity",
        long_name="Near-Surface Specific Humidity",
    ),
    "tdps": _temperature("Mean", "mean", "both"),
    "sfcWind": Variable(
        units="m s-1",
        kind="*",
        possible=(0.0, 90.0),
        raw=(-0.1, 113.0),
        fill_margin=5.0,
        bounds=(0.0, None),
        standard_name="wind_speed",
        long_name="Near-Surface Wind Speed",
    ),
    "uas": _wind("eastward"),
    "vas": _wind("northward"),
    "rsds": _radiation("downwelling", "shortwave", (0.0, 600.0)),
    "rlds": _radiation("downwelling", "longwave", (20.0, 700.0)),
    "ps": Variable(
        units="Pa",
        possible=(40_000.0, 110_000.0),
        raw=(35_000.0, 115_000.0),
        standard_name="surface_air_pressure",
        long_name="Surface Air Pressure",
    ),
    "psl": Variable(
        units="Pa",
        possible=(85_000.0, 110_000.0),
        raw=(80_000.0, 115_000.0),
        standard_name="air_pressure_at_mean_sea_level",
        long_name="Sea Level Pressure",
    ),
    "snw": Variable(
        units="kg m-2",
        kind="*",
        possible=(0.0, 20_000.0),
        raw=(-1.0, 1e6),
        fill_margin=10.0,
        bounds=(0.0, None),
        colours="Blues",
        standard_name="surface_snow_amount",
        long_name="Surface Snow Amount",
    ),
}


def variable(name: str, table: Mapping[str, Variable] = VARIABLES) -> Variable:
    """Return what a table knows of a variable; nothing is known of one that it does not have."""
    return table.get(name, Variable())
