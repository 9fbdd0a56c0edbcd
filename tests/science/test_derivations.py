"""Variables that are derived from others, against xclim and the formulas of the field."""

import numpy as np
import pytest
import xarray as xr
from xclim import indices

from espo_luigi.science.attributes import DERIVED_FROM
from espo_luigi.science.derivations import DERIVATIONS, derive, inputs_of, with_derived
from espo_luigi.science.variables import VARIABLES

UNITS = {"tas": "K", "tasmax": "K", "tasmin": "K", "uas": "m s-1", "vas": "m s-1", "hurs": "%", "huss": "1", "ps": "Pa"}


@pytest.fixture()
def air() -> xr.Dataset:
    """Seven days in five cells, float32, moist and dry, lazy in uneven blocks; tdps is not among them."""
    draw = np.random.default_rng(3)
    shape = 7, 5
    tas = draw.uniform(235, 308, shape)
    values = {
        "tas": tas,
        "tasmax": tas + 4,
        "tasmin": tas - 5,
        "uas": draw.normal(0, 5, shape),
        "vas": draw.normal(0, 5, shape),
        "hurs": draw.uniform(5, 100, shape),
        "ps": draw.uniform(6e4, 1.02e5, shape),
    }
    made = xr.Dataset({name: (("time", "loc"), of.astype("f4"), {"units": UNITS[name]}) for name, of in values.items()})
    made["huss"] = indices.specific_humidity(made["tas"], made["hurs"], made["ps"]).astype("f4").assign_attrs(units="1")
    made["tdps"] = indices.dewpoint_from_specific_humidity(made["huss"], made["ps"]).astype("f4")
    return made.chunk(time=4, loc=3)


@pytest.mark.parametrize(("name", "inputs"), [(name, way.inputs) for name, ways in DERIVATIONS.items() for way in ways])
def test_each_way_is_lazy_keeps_float32_and_has_the_table_s_units_and_names(
    air: xr.Dataset, name: str, inputs: tuple[str, ...]
) -> None:
    made = derive(name, {one: air[one].assign_attrs(standard_name="of_an_input") for one in reversed(inputs)})
    assert made.chunks == air["tas"].chunks and made.dtype == made.compute().dtype == np.float32
    row = VARIABLES[name]
    assert made.attrs["units"] == row.units and made.attrs["long_name"] == row.long_name
    assert made.attrs.get("standard_name", "") == row.standard_name
    assert np.isfinite(made.values).all()
    assert made.attrs.get("units_metadata") == ("temperature: difference" if row.difference else None)


# Each pair of variables that are made of each other, with what else both ways take.
PAIRS = [("hurs", "huss", ("tas", "ps")), ("hurs", "tdps", ("tas",)), ("huss", "tdps", ("ps",))]


@pytest.mark.parametrize(("one", "other", "beside"), PAIRS)
def test_humidity_comes_back_through_each_pair_of_ways(
    air: xr.Dataset, one: str, other: str, beside: tuple[str, ...]
) -> None:
    given = air.astype("f8")
    for name, by in ((one, other), (other, one)):
        through = given[list(beside)].assign({by: derive(by, given[[name, *beside]])})
        np.testing.assert_allclose(derive(name, through), given[name], rtol=1e-6)


def test_every_way_of_humidity_has_its_inverse_among_the_tested_pairs() -> None:
    """Unless the inverse is there, nothing says that a variable comes back."""
    humid = {"hurs", "huss", "tdps"}
    ways = {(name, frozenset(way.inputs)) for name in humid for way in DERIVATIONS[name]}
    both = {(a, frozenset((b, *beside))) for one, other, beside in PAIRS for a, b in ((one, other), (other, one))}
    assert ways == both


def test_specific_humidity_is_of_the_vapour_s_pressure_of_which_hurs_is_the_part(air: xr.Dataset) -> None:
    """WMO-No. 8, annex 4.B: e = hurs / 100 es(tas), and q = 0.622 e / (p - 0.378 e); es is xclim's."""
    tas, hurs, ps = (air[name].astype("f8") for name in ("tas", "hurs", "ps"))
    vapour = hurs.values / 100 * indices.saturation_vapor_pressure(tas).values
    expected = 0.62198 * vapour / (ps.values - (1 - 0.62198) * vapour)
    np.testing.assert_allclose(derive("huss", {"tas": tas, "hurs": hurs, "ps": ps}), expected, rtol=1e-12)
    shown = (
        hurs.copy(data=hurs.data / 100).assign_attrs(units="1"),
        ps.copy(data=ps.data / 100).assign_attrs(units="hPa"),
    )
    np.testing.assert_allclose(derive("huss", {"tas": tas, "hurs": shown[0], "ps": shown[1]}), expected, rtol=1e-12)


def test_the_dew_point_of_saturated_air_is_its_temperature_and_of_dry_air_a_number(air: xr.Dataset) -> None:
    saturated = air.assign(hurs=xr.full_like(air["hurs"], 100.0))
    np.testing.assert_allclose(derive("tdps", saturated[["tas", "hurs"]]), air["tas"], atol=2e-3)
    dry = derive("tdps", {"huss": xr.zeros_like(air["huss"]), "ps": air["ps"]})
    assert float(dry.min()) > 180 and float(dry.max()) < 190


def test_the_dew_point_of_hurs_is_that_of_its_vapour_pressure(air: xr.Dataset) -> None:
    """Buck (1981) over water: e = 611.21 exp(17.502 (T - 273.16) / (T - 32.19)), hurs = 100 e(Td) / e(T)."""

    def pressure(kelvin: xr.DataArray) -> np.ndarray:
        return 611.21 * np.exp((17.502 * (kelvin - 273.16) / (kelvin - 32.19)).values)

    made = derive("tdps", air[["tas", "hurs"]]).astype("f8")
    np.testing.assert_allclose(100 * pressure(made) / pressure(air["tas"].astype("f8")), air["hurs"], rtol=2e-3)


def test_wind_is_the_length_of_the_vector_and_tas_the_mean_in_any_units(air: xr.Dataset) -> None:
    knots = air["uas"].copy(data=air["uas"].data / 0.514444).assign_attrs(units="knot")
    speed = derive("sfcWind", {"uas": knots, "vas": air["vas"]})
    np.testing.assert_allclose(speed, np.hypot(air["uas"].values, air["vas"].values), rtol=1e-5)
    cold = (air["tasmin"] - 273.15).assign_attrs(units="degC")
    np.testing.assert_allclose(derive("tas", {"tasmax": air["tasmax"], "tasmin": cold}), air["tas"] - 0.5, atol=1e-4)


def test_the_first_way_whose_inputs_are_there_is_taken() -> None:
    assert inputs_of("hurs", ["ps", "tas", "huss", "tdps"]) == ("tas", "huss", "ps")
    assert inputs_of("hurs", ["tas", "tdps", "pr"]) == ("tas", "tdps")
    assert inputs_of("hurs", ["tas"]) == inputs_of("ozone", ["tas"]) == ()


def test_products_tell_how_a_variable_was_derived(air: xr.Dataset) -> None:
    air["tas"].attrs["bias_adjustment"] = "DQM"
    made = with_derived(air[["tas", "huss", "ps"]], {"hurs": ("tas", "huss", "ps")})
    told = made["hurs"].attrs
    assert list(made) == ["tas", "huss", "ps", "hurs"] and told[DERIVED_FROM] == "tas huss ps"
    assert told["bias_adjustment"].startswith(
        "not adjusted itself: relative humidity (xclim, sonntag90) of tas, huss and ps"
    )
    assert told["bias_adjustment"].endswith("; tas: DQM")
