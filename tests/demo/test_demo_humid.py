"""The example of other variables is plausible, and wrong in the ways that it promises."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from shared_folder import shared_folder
from xclim.core.cfchecks import cfcheck_from_name
from xclim.core.units import convert_units_to
from xclim.indices.helpers import extraterrestrial_solar_radiation

from espo_luigi.demo import ensure_demo

UNITS = {"tas": "K", "pr": "kg m-2 s-1", "hurs": "%", "sfcWind": "m s-1", "rsds": "W m-2"}
REFERENCE, SIMULATION = "Demo-Wet", "Demo-Humid"


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_demo({"folder": str(shared_folder(tmp_path_factory) / "humid" / "raw"), "production": "humid"})


@lru_cache
def opened(raw: Path, source: str, variable: str) -> xr.DataArray:
    paths = sorted(raw.rglob(f"{variable}_day_{source}_*.nc"))
    return xr.concat([xr.open_dataset(path)[variable].load() for path in paths], "time")


@pytest.mark.parametrize("source", [REFERENCE, SIMULATION])
def test_the_weather_is_possible_and_passes_xclims_checks(raw: Path, source: str) -> None:
    found = {name: opened(raw, source, name) for name in UNITS}
    for name, da in found.items():
        assert da.attrs["units"] == UNITS[name] and da.dtype == np.float32
        if name != "rsds":  # xclim wants "surface_downwelling_shortwave_flux", without CMIP6's "in_air"
            cfcheck_from_name(name, da)
    assert found["tas"].min() > 220 and found["tas"].max() < 315
    assert found["pr"].min() == 0 and found["hurs"].min() > 30
    assert found["sfcWind"].min() > 0 and 10 < found["sfcWind"].max() < 40
    sky = extraterrestrial_solar_radiation(found["rsds"].time, found["rsds"].lat)
    assert (
        (found["rsds"] <= convert_units_to(sky, "W m-2").transpose(*found["rsds"].dims[:2]))
        .where(found["rsds"].notnull(), True)
        .all()
    )


def test_rainy_days_are_humid_and_dark(raw: Path) -> None:
    rain, humid, bright = (opened(raw, REFERENCE, name).isel(lat=3, lon=2) for name in ("pr", "hurs", "rsds"))
    summer = rain.time.dt.month == 7
    wet = (rain * 86400 > 1)[summer]
    assert humid[summer][wet].mean() > humid[summer][~wet].mean() + 5
    assert bright[summer][wet].mean() < bright[summer][~wet].mean() - 20


def test_the_simulation_is_too_humid_even_above_saturation_too_windy_and_too_bright(raw: Path) -> None:
    known, simulated = (
        {name: opened(raw, source, name).sel(time=slice("1991", "2014")) for name in UNITS}
        for source in (REFERENCE, SIMULATION)
    )
    assert known["hurs"].max() == 100 and 105 < simulated["hurs"].max() < 110
    ratio = {name: float(simulated[name].mean() / known[name].mean()) for name in UNITS}
    assert 1.05 < ratio["hurs"] < 1.2 and 1.1 < ratio["sfcWind"] < 1.4 and 1.03 < ratio["rsds"] < 1.2
