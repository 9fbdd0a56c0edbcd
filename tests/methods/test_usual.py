"""Arrays are adjusted with the usual settings of their variable, where Python gives none."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from espo_luigi.config.bias_adjustment import BiasAdjust
from espo_luigi.config.usual import give_usual_settings
from espo_luigi.errors import ConfigurationError
from espo_luigi.methods import blocks
from espo_luigi.methods.base import MethodName

MM = 1 / 86400


def series(name: str, first: int, last: int, calendar: str, shift: float) -> xr.DataArray:
    """Three cells with an annual cycle, a trend and, of precipitation, dry days."""
    time = xr.date_range(
        f"{first}-01-01", f"{last}-12-{30 if calendar == '360_day' else 31}", calendar=calendar, use_cftime=True
    )
    rng, day = np.random.default_rng(first + last), np.arange(time.size)[:, None]
    cycle = np.sin(2 * np.pi * day / 365.25) + day / 20_000 + shift
    noise = rng.normal(size=(time.size, 3))
    values, units = 280 + 10 * cycle + 4 * noise, "K"
    if name == "pr":
        values, units = np.where(noise < 0.2, 0, (3 + cycle) * noise**2) * MM, "kg m-2 s-1"
    coords = {"time": time, "lat": ("loc", [45.0, 46.0, 47.0]), "lon": ("loc", [-70.0, -69.0, -68.0])}
    return xr.DataArray(values.astype("float32"), coords, ("time", "loc"), name, {"units": units})


@pytest.mark.parametrize(
    ("name", "calendar", "method"),
    [
        ("tasmax", "standard", "DetrendedQuantileMapping"),
        ("pr", "360_day", "DetrendedQuantileMapping"),
        ("pr", "noleap", "QuantileDeltaMapping"),
    ],
)
def test_arrays_without_settings_are_adjusted_as_yaml_without_settings_in_their_own_calendar(
    name: str, calendar: str, method: MethodName
) -> None:
    reference, simulation = series(name, 1991, 2003, "standard", 0), series(name, 1990, 2021, calendar, 0.3)

    training = blocks.train(reference, simulation, method=method, seed="s")
    scenario = blocks.adjust(simulation, training, seed="s")

    content = {
        "custom": {"ref_period": ["1991", "2003"], "sim_period": ["1990", "2021"]},
        "biasadjust": {"variables": {name: {"method": method}}},
    }
    give_usual_settings(content)
    how = content["biasadjust"]["variables"][name]
    how["training_args"]["period"], how["adjusting_args"]["periods"] = ["1991", "2003"], ["1990", "2021"]
    section = BiasAdjust.model_validate(content["biasadjust"]).variables[name]
    given = {"maximal_calendar": "standard", "seed": "s", **section.training_args.arguments()}
    trained = blocks.train(reference, simulation, **given)
    expected = blocks.adjust(simulation, trained, seed="s", **section.adjusting_args.arguments())
    xr.testing.assert_equal(scenario, expected)
    assert scenario.time.dt.calendar == calendar
    assert scenario.sizes == simulation.sizes and not scenario.isnull().any()


def test_an_array_of_no_known_name_says_which_names_have_usual_settings() -> None:
    of_none = series("tasmax", 1991, 1995, "noleap", 0).rename("mine")
    with pytest.raises(ConfigurationError, match="name is mine"):
        blocks.train(of_none, of_none)
