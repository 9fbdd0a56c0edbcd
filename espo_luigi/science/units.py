"""Units of series and thresholds: precipitation as depth or flux, and temperatures as values or differences.

The registry is cf-xarray's, which xclim extends; xclim itself takes seconds to import, and a process
that trains one block needs no more than this.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import xarray as xr

from espo_luigi.errors import DataError
from espo_luigi.science.definitions import LONGEST_UNITS, is_bounded
from espo_luigi.science.quantities import Quantity
from espo_luigi.science.variables import variable

_DIFFERENCE = "temperature: difference"


@lru_cache(maxsize=1)
def _registry() -> Any:
    from cf_xarray.units import units

    return units


def is_difference(data: xr.DataArray) -> bool:
    """Whether a temperature is a difference (such as dtr, or a standard deviation), where 1 degC is 1 K."""
    methods = str(data.attrs.get("cell_methods", ""))  # the word is xclim's or CF's
    return (
        "std" in methods
        or "standard_deviation" in methods
        or data.attrs.get("units_metadata") == _DIFFERENCE
        or variable(str(data.name)).difference
    )


def is_temperature(data: xr.DataArray) -> bool:
    """Whether the units are those of a temperature, or of a difference of temperatures."""
    return dict(_parse(units_of(data), f"variable {data.name!r}").dimensionality) == {"[temperature]": 1}


def _parse(text: str, what: str) -> Any:
    if not is_bounded(text):
        shown = text if len(text) <= LONGEST_UNITS else f"{text[:LONGEST_UNITS]}…"
        raise DataError(
            f"units {shown!r} of {what} are not read: got {len(text)} characters; expected CF units such as K or "
            f"kg m-2 s-1, of at most {LONGEST_UNITS} characters, with powers of units (m**-2) and of 10 (10**-3) only."
        )
    registry = _registry()
    try:
        # pint's decade is one of frequencies.
        return registry.parse_units(text.replace("decade", "decayear"))
    except Exception as error:  # pint raises half a dozen unrelated types
        raise DataError(
            f"units {text!r} of {what} are unknown ({error}); expected CF units such as K or kg m-2 s-1."
        ) from None


def as_floats(data: xr.DataArray) -> xr.DataArray:
    """Return a series in a floating type that holds all its values; float32 and float64 stay as they are.

    Integers and half precision would round results: types of 16 bits and fewer become float32, wider ones float64.
    Lazy. Raises `DataError` if the values are not real numbers.
    """
    if data.dtype.kind not in "fiu":
        raise DataError(f"variable {data.name!r} holds {data.dtype}; expected numbers.")
    wanted = np.result_type(data.dtype, np.float32)
    return data if data.dtype == wanted else data.astype(wanted)


def as_difference(data: xr.DataArray) -> xr.DataArray:
    """A temperature that says, as CF does, that it is a difference; the input is not changed."""
    return data.assign_attrs(units_metadata=_DIFFERENCE)


def without_idle_metadata(data: xr.DataArray) -> xr.DataArray:
    """Remove `units_metadata`, which is for temperatures, from other quantities; the input is not changed."""
    if "units_metadata" not in data.attrs or "[temperature]" in _parse(units_of(data), str(data.name)).dimensionality:
        return data
    out = data.copy(deep=False)
    del out.attrs["units_metadata"]
    return out


@lru_cache(maxsize=64)
def _is_number(name: str) -> bool:
    """Whether a unit by itself is a number, such as percent, or degree, which "deg K" has."""
    return bool(_registry().parse_units(name).dimensionless)


def _ways(source: Any, target: Any) -> list[int]:
    """How one unit converts to another: 0 as it is, 1 or 2 multiplied or divided by the density of water; or not.

    Compared, not tried: an exception of pint's is part of a cycle with the callers' frames, so that a block's arrays
    would stay in memory until the garbage collector runs.
    """
    density = _registry().parse_units("kg m-3")
    units = source, source * density, source / density
    return [way for way, unit in enumerate(units) if unit.dimensionality == target.dimensionality]


def _linear(source: Any, target: Any, difference: bool, what: str) -> tuple[float, float]:
    """Factor and offset between two units, through liquid water's density where depth meets mass."""
    registry = _registry()
    if not source.dimensionless and (numbers := [name for name in source._units if _is_number(name)]):
        raise DataError(
            f"units {source:~cf} of {what} multiply a quantity with {' and '.join(map(str, numbers))}; "
            f"expected a unit that converts to {target:~cf}. Correct the units."
        )
    density = registry.Quantity(1000.0, "kg m-3")
    if not (ways := _ways(source, target)):
        raise DataError(f"cannot convert the units of {what} from {source:~cf} to {target:~cf}.")

    def at(value: float) -> float:
        quantity = registry.Quantity(value, source)
        given = quantity if ways[0] == 0 else quantity * density if ways[0] == 1 else quantity / density
        return float(given.to(target).magnitude)

    offset = at(0.0)
    return at(1.0) - offset, 0.0 if difference else offset


def units_of(data: xr.DataArray) -> str:
    """The `units` attribute, which may be no unit that is known; raises `DataError` if it is absent."""
    if "units" not in data.attrs:
        raise DataError(f"variable {data.name!r} has no units attribute; set it, for example to K or kg m-2 s-1.")
    return str(data.attrs["units"])


def known_units(data: xr.DataArray) -> str:
    """The `units` attribute; raises `DataError` if it is absent or no unit."""
    _parse(units_of(data), f"variable {data.name!r}")
    return units_of(data)


def convert_to(data: xr.DataArray, units: str) -> xr.DataArray:
    """Series in other units, as `as_floats` has it; lazy; unchanged if the units are the same, known or not.

    Precipitation depths and fluxes convert through 1000 kg m-3; temperature differences without an offset. Raises
    `DataError` if a unit is unknown or the two have different dimensions.
    """
    if units_of(data) == units:
        return as_floats(data)
    what = f"variable {data.name!r}"
    source, target = _parse(units_of(data), what), _parse(units, what)
    factor, offset = _linear(source, target, is_difference(data), what)
    values = as_floats(data)
    converted = values if (factor, offset) == (1.0, 0.0) else (values * factor + offset).astype(values.dtype)
    return converted.assign_attrs({**data.attrs, "units": units})


def rate_of_totals(units: str, wanted: str) -> str:
    """Return the units that totals of a day have as a rate, m d-1 for m, if only the rate converts to `wanted`.

    Empty for other units, known or not.
    """
    try:
        source, target = _parse(units, "totals"), _parse(wanted, "rates")
    except DataError:
        return ""
    rate = source / _registry().parse_units("day")
    return f"{rate:~cf}" if wanted and _ways(rate, target) and not _ways(source, target) else ""


def in_units(ds: xr.Dataset, units: Mapping[str, str]) -> xr.Dataset:
    """Return a dataset with the variables that `units` names in these units, as `convert_to` does; lazy."""
    return ds.assign({name: convert_to(ds[name], wanted) for name, wanted in units.items() if name in ds})


def value_in(quantity: Quantity, name: str, units: str) -> float:
    """Return a quantity of the variable `name` in other units; temperatures are values, unless `name` is a difference.

    Raises `DataError` if the units do not convert.
    """
    return float(convert_to(xr.DataArray(quantity.value, name=name, attrs={"units": quantity.unit}), units))


@lru_cache(maxsize=256)
def threshold_in(threshold: str, units: str) -> float:
    """Magnitude of a threshold such as "0.01 mm d-1" in a series' units.

    Temperatures are taken as differences: the thresholds of the adjustment bound values from zero upwards, which
    only makes sense for a difference ("1e-4 K" against a dtr in degC must not become -273).

    Raises
    ------
    DataError
        If it is not a number followed by a unit that can be converted.
    """
    what = f"threshold {threshold!r}"
    try:
        given = Quantity(threshold)
    except ValueError as error:
        raise DataError(f"{what}: {error}.") from None
    factor, _ = _linear(_parse(given.unit, what), _parse(units, what), True, what)
    return given.value * factor
