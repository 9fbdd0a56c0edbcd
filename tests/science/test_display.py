"""Names, units and colours of what reports show."""

import pytest
import xarray as xr
from xclim import atmos, land
from xclim.indicators import anuclim

from espo_luigi.science import display
from espo_luigi.science.variables import VARIABLES, names_of


@pytest.mark.parametrize(
    ("units", "text"),
    [
        ("degC", "°C"), ("mm d-1", "mm/d"), ("W m-2", "W/m²"), ("kg m-2 s-1", "kg m⁻² s⁻¹"), ("g kg-1", "g/kg"),
        ("d", "days"), ("days", "days"), ("%", "%"), ("K days", "K days"), ("", "1"), ("mm/day", "mm/d"),
        ("mm day-1", "mm/d"), ("10 m-2", "10 m⁻²"),
    ],
)  # fmt: skip
def test_units_are_those_that_people_write(units: str, text: str) -> None:
    assert display.units_text(units) == text


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"long_name": "The number of days with maximum temperature above 30 degc"},
         "Number of days with maximum temperature above 30 °C"),
        ({"long_name": "30-year climatological mean of The number of days below -5 degc: abs. delta compared to 1991"},
         "Number of days below -5 °C"),
        ({"long_name": "maximum consecutive days with daily precipitation < 1 mm/day"},
         "Maximum consecutive days with daily precipitation < 1 mm/d"),
        ({"long_name": "Days above 300 k of 5 kinds"}, "Days above 300 K of 5 kinds"),
        ({"standard_name": "air_temperature"}, "Air temperature"),
        ({}, "Own"),
    ],
)  # fmt: skip
def test_names_are_words_and_thresholds_have_units_of_people(attrs: dict[str, str], words: str) -> None:
    assert display.long_name(xr.DataArray(0.0, name="own", attrs=attrs)) == words


def test_seasons_months_experiments_numbers_and_variables_are_written_in_words() -> None:
    texts = [display.months_text(of) for of in ("DJF", "JJA", "JAN", "NDJFM", "", "else")]
    assert texts == ["December to February", "June to August", "January", "November to March", "", "else"]
    texts = [display.experiment_text(of) for of in ("ssp585", "rcp45", "historical")]
    assert texts == ["SSP5-8.5", "RCP4.5", "historical"]
    assert [display.counted(number, "simulation") for number in (1, 3)] == ["1 simulation", "3 simulations"]
    assert [display.noun(of) for of in ("tasmax", "pr", "own")] == ["daily maximum temperature", "precipitation", "own"]


@pytest.mark.parametrize(
    ("colours", "indicators"),
    [
        ("RdBu_r", "tx_mean tx_days_above hot_days tropical_nights growing_degree_days heat_wave_frequency tn_min "
                   "frost_free_spell_max_length warm_spell_duration_index"),
        ("RdBu", "frost_days ice_days tn_days_below consecutive_frost_days heating_degree_days cold_spell_days"),
        ("BrBG", "precip_accumulation wetdays max_1day_precipitation_amount daily_pr_intensity wet_spell_max_length "
                 "snowfall_frequency cold_and_wet_days"),
        ("BrBG_r", "dry_days maximum_consecutive_dry_days dry_spell_max_length warm_and_dry_days"),
        ("PuOr", "sfcWind_mean daily_temperature_range first_day_tx_above snw_max_doy windy_days"),
    ],
)  # fmt: skip
def test_xclims_indicators_are_brown_where_it_gets_drier_and_red_where_it_gets_warmer(
    colours: str, indicators: str
) -> None:
    made = {name: getattr(atmos, name, None) or getattr(land, name) for name in indicators.split()}
    found = {name: display.colours_of_differences(xr.DataArray(0, attrs=of.cf_attrs[0])) for name, of in made.items()}
    assert found == dict.fromkeys(made, colours)


@pytest.mark.parametrize(
    ("colours", "units", "words"),
    [
        ("RdBu_r", "K", "Mean temperature of the coldest month"), ("RdBu_r", "degC", "Wind chill index"),
        ("RdBu_r", "K", "Temperature on dry days"), ("RdBu_r", "degC", "Temperature of wet days"),
        ("RdBu", "days", "Number of days with wind chill"), ("BrBG_r", "days", "Number of dry days"),
        ("BrBG_r", "kPa", "Vapour pressure deficit"), ("PuOr", "K", "Standard deviation of temperature"),
    ],
)  # fmt: skip
def test_temperatures_are_red_where_it_gets_warmer_whatever_days_they_are_of(
    colours: str, units: str, words: str
) -> None:
    assert display.colours_of_differences(xr.DataArray(0, attrs={"long_name": words, "units": units})) == colours
    for units_of_change in ("K", "%"):  # "Min Temperature of Coldest Period"
        attrs = anuclim.P6_MinTempColdestPeriod.cf_attrs[0] | {"units": units_of_change}
        assert display.colours_of_differences(xr.DataArray(0, attrs=attrs)) == "RdBu_r"


@pytest.mark.parametrize(
    ("shown", "attrs"),
    [
        (-3.15, {}), (-3.15, anuclim.P6_MinTempColdestPeriod.cf_attrs[0]),
        (270, atmos.daily_temperature_range.cf_attrs[0]),
        (270, {"cell_methods": "time: standard_deviation"}), (270, {"long_name": "Standard deviation"}),
        (270, {"units_metadata": "temperature: difference"}), (270, {"nature": "difference"}),
        (270, {"units": "K days"}),
    ],
)  # fmt: skip
def test_temperatures_but_no_differences_or_ranges_are_shown_in_celsius(shown: float, attrs: dict[str, str]) -> None:
    made = display.in_celsius(xr.DataArray(270.0, attrs={"long_name": "Coldest period", "units": "K"} | attrs))
    assert float(made) == pytest.approx(shown)


def test_variables_of_the_table_have_their_colours_by_their_names() -> None:
    found = {name: display.colours_of_differences(xr.DataArray(0, attrs=names_of(name))) for name in VARIABLES}
    assert {name for name, of in found.items() if of == "RdBu_r"} == {"tas", "tasmax", "tasmin", "tdps"}
    wet = {"pr", "prsn", "hurs", "hursmin", "hursmax", "huss", "snw"}
    assert {name for name, of in found.items() if of == "BrBG"} == wet
    assert {of for name, of in found.items() if name not in wet} == {"RdBu_r", "PuOr"}
