"""What is said of the energy that jobs took."""

from __future__ import annotations

import pytest
from luigi.configuration import LuigiConfigParser

from espo_luigi.driver.settings.espo import power
from espo_luigi.errors import ConfigurationError
from espo_luigi.jobs.energy import Power, in_words

# 10 core-hours at 12 W are 0.12 kWh; 3.6 MJ are 1 kWh.
KWH = 3.6e6


@pytest.mark.parametrize(
    ("core_hours", "joules", "text"),
    [
        (10.0, 0.0, "about 0.12 kWh (estimate: 12 W a CPU)"),
        (0.0, 2 * KWH, "2 kWh (measured by the scheduler)"),
        (100.0, 2 * KWH, "about 3.2 kWh (2 kWh measured by the scheduler, the rest an estimate: 12 W a CPU)"),
        (1.0, 0.0, "about 12 Wh (estimate: 12 W a CPU)"),
        (100_000.0, 0.0, "about 1,200 kWh (estimate: 12 W a CPU)"),
    ],
)
def test_the_words_say_whether_energy_was_measured(core_hours: float, joules: float, text: str) -> None:
    assert in_words(Power(12.0), core_hours, joules) == text


def test_co2_is_told_where_a_factor_is_given() -> None:
    assert in_words(Power(12.0, 30.0), 1000.0).endswith(", 0.36 kg of CO2 at 30 g/kWh")
    assert "CO2" not in in_words(Power(12.0), 1000.0)


def test_a_negative_power_is_refused(own_settings: LuigiConfigParser) -> None:
    own_settings.set("espo", "watts_per_cpu", "-1")
    with pytest.raises(ConfigurationError, match=r"watts_per_cpu = -1; expected a number from 0 up"):
        power()
