"""Variables that are derived from others: before the adjustment where raw files lack them, and after it.

Humidity is xclim's. Its formulas for saturation are over water at any temperature, as WMO has relative humidity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from espo_luigi.errors import enumerated
from espo_luigi.science.attributes import DERIVED_FROM
from espo_luigi.science.variables import VARIABLES, Variable, names_of, variable

if TYPE_CHECKING:  # the configuration, which reads the registry, needs none of xarray and xclim
    import xarray as xr

# tasmin = tasmax - dtr (2024), exchange where tasmax is below tasmin (ESPO v2), or both (its variant DQM-dtr).
Consistency = Literal["derived", "swap", "dqm-dtr"]
# The variables that are made so, and the adjusted variables that each way takes.
TEMPERATURES = ("tasmax", "tasmin")
NEEDED_FOR: Mapping[str, tuple[str, ...]] = {
    "derived": ("tasmax", "dtr"),
    "swap": ("tasmax", "tasmin"),
    "dqm-dtr": ("tasmax", "tasmin", "dtr"),
}

_ADJUSTED = "bias_adjustment"
# Air without vapour has no dew point; of this much, it is 184 K near sea level.
_DRIEST = 2e-7
_ANY_PRESSURE_PA = 1e5
# Of the molar weights of water and dry air, as xclim has it.
_EPSILON = 0.62198


@dataclass(frozen=True)
class Derivation:
    """A way to derive a variable: from what, by which function of these, and what that is.

    `of_raw` says whether raw data are derived that way, too, and `exact` whether that is what models store.
    """

    inputs: tuple[str, ...]
    formula: Callable[..., xr.DataArray]
    what: str
    of_raw: bool = False
    exact: bool = False

    @property
    def words(self) -> str:
        """What it is, and of what: mean of tasmax and tasmin."""
        return f"{self.what} of {enumerated(self.inputs)}"


def daily_temperature_range(tasmax: xr.DataArray, tasmin: xr.DataArray) -> xr.DataArray:
    """Return tasmax - tasmin (converted to tasmax's units), K, as a temperature difference. Lazy.

    Raises
    ------
    DataError
        If a unit is unknown.
    """
    from espo_luigi.science.units import as_difference, convert_to, units_of

    units = units_of(tasmax)
    dtr = tasmax - convert_to(tasmin, units)
    result = convert_to(as_difference(dtr.rename("dtr").assign_attrs(units=units)), "K")
    result.attrs = {"units": "K", "units_metadata": "temperature: difference", **names_of("dtr")}
    return result


def of_xclim(index: str, **options: Any) -> Callable[..., xr.DataArray]:
    """Return the function that computes one of xclim's indices; its arguments are the inputs by their names."""

    def formula(**given: xr.DataArray) -> xr.DataArray:
        from xclim import indices

        made = getattr(indices, index)(**given, **options)
        return made[0] if isinstance(made, tuple) else made

    return formula


def _dew_point(huss: xr.DataArray, ps: xr.DataArray) -> xr.DataArray:
    return of_xclim("dewpoint_from_specific_humidity")(huss=huss.clip(min=_DRIEST, keep_attrs=True), ps=ps)


def _humidity(tas: xr.DataArray, hurs: xr.DataArray, ps: xr.DataArray, method: str = "sonntag90") -> xr.DataArray:
    """The vapour has hurs of the saturated pressure, as WMO and MetPy have it; in xclim, of the mixing ratio."""
    from xclim import indices

    from espo_luigi.science.units import convert_to

    vapour = indices.saturation_vapor_pressure(tas, method=method) * (convert_to(hurs, "%") / 100)
    huss = _EPSILON * vapour / (convert_to(ps, "Pa") - (1 - _EPSILON) * vapour)
    return huss.assign_attrs(units="1")


def _dew_point_of_hurs(tas: xr.DataArray, hurs: xr.DataArray) -> xr.DataArray:
    """The vapour's pressure is hurs of the saturated one, whatever the air's pressure, which cancels out."""
    import xarray as xr

    ps = xr.DataArray(_ANY_PRESSURE_PA, attrs={"units": "Pa"})
    return _dew_point(_humidity(tas, hurs, ps, "buck81"), ps)


_HURS = of_xclim("relative_humidity", invalid_values=None)
# Dew points are Buck's, whose formula has an inverse: what is made of them takes the same, and comes back.
_HURS_OF_DEW_POINT = of_xclim("relative_humidity", invalid_values=None, method="buck81")
_HUSS_OF_DEW_POINT = of_xclim("specific_humidity_from_dewpoint", method="buck81")
DERIVATIONS: Mapping[str, tuple[Derivation, ...]] = {
    "dtr": (Derivation(("tasmax", "tasmin"), daily_temperature_range, "difference", of_raw=True, exact=True),),
    "tas": (Derivation(("tasmax", "tasmin"), of_xclim("tas_from_tasmin_tasmax"), "mean", of_raw=True),),
    "sfcWind": (Derivation(("uas", "vas"), of_xclim("uas_vas_to_sfcwind"), "speed", of_raw=True),),
    "hurs": (
        Derivation(("tas", "huss", "ps"), _HURS, "relative humidity (xclim, sonntag90)"),
        Derivation(("tas", "tdps"), _HURS_OF_DEW_POINT, "relative humidity (xclim, buck81)"),
    ),
    "huss": (
        Derivation(("tas", "hurs", "ps"), _humidity, "specific humidity (xclim, sonntag90)"),
        Derivation(("tdps", "ps"), _HUSS_OF_DEW_POINT, "specific humidity (xclim, buck81)"),
    ),
    "tdps": (
        Derivation(("huss", "ps"), _dew_point, "dew point (xclim, buck81)"),
        Derivation(("tas", "hurs"), _dew_point_of_hurs, "dew point (xclim, buck81)"),
    ),
}
OF_RAW_DATA: Mapping[str, tuple[str, ...]] = {
    name: way.inputs for name, ways in DERIVATIONS.items() for way in ways if way.of_raw
}
"""Variables that are derived where raw data lack them, each with what it is derived from."""
INEXACT = tuple(name for name, ways in DERIVATIONS.items() if any(way.of_raw and not way.exact for way in ways))
"""Those of which the derived values differ from the stored: a mean of extremes is not the daily mean."""


def inputs_of(name: str, there: Collection[str]) -> tuple[str, ...]:
    """Return the inputs of the first way to derive a variable from what is there; none if there is no way."""
    return next((way.inputs for way in DERIVATIONS.get(name, ()) if {*way.inputs} <= {*there}), ())


def way_from(name: str, inputs: Collection[str]) -> Derivation:
    """Return the way to derive a variable from these inputs, in any order; raises KeyError if there is none."""
    for way in DERIVATIONS[name]:
        if {*way.inputs} == {*inputs}:
            return way
    raise KeyError(name)


def derive(
    name: str, given: Mapping[str, xr.DataArray] | xr.Dataset, table: Mapping[str, Variable] = VARIABLES
) -> xr.DataArray:
    """Return a variable derived from all that is `given`, in the table's units, with the dtype of the first; lazy.

    Parameters
    ----------
    name
        The variable.
    given
        Its inputs, on the same dimensions, in any units of CF.
    table
        What is known of variables: units and names are the table's. Its bounds are not applied.

    Raises
    ------
    KeyError
        If it cannot be derived from these.
    DataError
        If a unit is unknown.
    """
    from espo_luigi.science.units import as_difference, convert_to, units_of

    way, units = way_from(name, [str(one) for one in given]), variable(name, table).units
    made = way.formula(**{one: given[one] for one in way.inputs}).rename(name)
    made = convert_to(made, units) if units else made
    described = made.astype(given[way.inputs[0]].dtype)
    # Arithmetic keeps attributes of the inputs; xclim says of each result that its scale is unknown.
    described.attrs = {"units": units_of(made)}
    if variable(name, table).difference:
        described = as_difference(described)
    described.attrs |= names_of(name, table)
    return described


def with_lacking(
    ds: xr.Dataset, derived: Mapping[str, Collection[str]], table: Mapping[str, Variable] = VARIABLES
) -> xr.Dataset:
    """Return raw data or a reference with what products derive, where it is lacking and its inputs are there; lazy."""
    wanted = {name: inputs for name, inputs in derived.items() if name not in ds and {*inputs} <= {*ds.data_vars}}
    return ds.assign({name: derive(name, ds[list(inputs)], table) for name, inputs in wanted.items()})


def with_derived(
    ds: xr.Dataset, derived: Mapping[str, Collection[str]], table: Mapping[str, Variable] = VARIABLES
) -> xr.Dataset:
    """Return adjusted variables with those that are derived from them, whose attributes tell how; lazy.

    `derived` has the inputs of each, as `derive` takes them.
    """
    made = {name: derive(name, {one: ds[one] for one in inputs}, table) for name, inputs in derived.items()}
    for name, inputs in derived.items():
        way = way_from(name, inputs)
        how = [f"{one}: {ds[one].attrs[_ADJUSTED]}" for one in way.inputs if _ADJUSTED in ds[one].attrs]
        made[name].attrs |= {
            "history": f"derived: {way.words}, which are adjusted",
            _ADJUSTED: "; ".join([f"not adjusted itself: {way.words}, each of which is adjusted", *how]),
            DERIVED_FROM: " ".join(way.inputs),
        }
    return ds.assign(made)
