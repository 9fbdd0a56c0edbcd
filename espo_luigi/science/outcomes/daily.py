"""Daily indices of which indicators are made, by xclim, and the distribution of SPEI.

An indicator that names an index as its input (`input: {data: humidex}`) is computed from the index's own inputs. Each
index is of whole series: fire weather goes on from day to day.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import expit
from scipy.stats import rv_continuous

from espo_luigi.science.derivations import derive, of_xclim
from espo_luigi.science.units import convert_to, units_of


def _humidex(tasmax: xr.DataArray, **vapour: xr.DataArray) -> xr.DataArray:
    """The day's highest: vapour hardly changes in a day."""
    return of_xclim("humidex")(tas=tasmax, tdps=vapour["tdps"] if "tdps" in vapour else derive("tdps", vapour))


def _utci(sfcWind: xr.DataArray, **given: xr.DataArray) -> xr.DataArray:
    """In the shade, where surroundings are as warm as the air; of winds from 0.5 to 17 m s-1, as UTCI is defined."""
    given["sfcWind"] = convert_to(sfcWind, "m s-1").clip(max=17, keep_attrs=True)
    return of_xclim("universal_thermal_climate_index", mask_invalid=False, wind_cap_min=True)(mrt=given["tas"], **given)


def _wet_bulb(tas: xr.DataArray, hurs: xr.DataArray) -> xr.DataArray:
    """At 1013 hPa: Stull (2011), https://doi.org/10.1175/JAMC-D-11-0143.1."""
    t, rh = convert_to(tas, "degC"), convert_to(hurs, "%").clip(0, 100)
    made = t * np.arctan(0.151977 * (rh + 8.313659) ** 0.5) + np.arctan(t + rh) - np.arctan(rh - 1.676331)
    return (made + 0.00391838 * rh**1.5 * np.arctan(0.023101 * rh) - 4.686035).assign_attrs(units="degC")


def _water_budget(**given: xr.DataArray) -> xr.DataArray:
    return of_xclim("water_budget", **({} if "evspsblpot" in given else {"method": "hargreaves85"}))(**given)


def _fire_weather(**given: xr.DataArray) -> xr.Dataset:
    """Each season (Wotton and Flannigan, 1993) begins with xclim's default codes; outside of seasons, codes are 0."""
    from xclim import indices

    season = indices.fire_season(given["tas"])
    codes = indices.cffwis_indices(**given, season_mask=season)
    rating = xr.apply_ufunc(indices.fire.daily_severity_rating, codes.FWI)
    made = xr.Dataset({"dc": codes.DC, "fwi": codes.FWI, "dsr": rating, "fire_season": season.astype(rating.dtype)})
    missing = sum(data.isnull() for name, data in given.items() if name != "lat") > 0
    return made.where(season, 0).where(~missing).map(lambda data: data.assign_attrs(units="1"))


def _chill_units(lat: xr.DataArray, **given: xr.DataArray) -> xr.DataArray:
    """The positive ones of the hours of each day (Utah's model), year by year: hours take much memory."""
    from xclim import indices

    days, parts = xr.Dataset(given, {"lat": lat}), []
    for first in range(0, days.sizes["time"], 365):
        # A night is that before the next morning.
        year = days.isel(time=slice(first, first + 366))
        hours = indices.helpers.make_hourly_temperature(year["tasmin"], year["tasmax"], infill_polar_days=True)
        parts.append(indices.chill_units(hours, positive_only=True, freq="D").isel(time=slice(365)))
    missing = given["tasmin"].isnull() | given["tasmax"].isnull()
    return xr.concat(parts, "time").where(~missing).assign_attrs(units="1")


@dataclass(frozen=True)
class Daily:
    """A function of daily variables, the units of its index or indices, and the sets of inputs that it takes."""

    formula: Callable[..., xr.DataArray | xr.Dataset]
    units: str
    ways: tuple[tuple[str, ...], ...]

    def inputs(self, there: Collection[Any]) -> tuple[str, ...]:
        """Return the first set of inputs that is there, besides the latitude, or else the first of all."""
        return next((way for way in self.ways if {*way} <= {*there, "lat"}), self.ways[0])


_FIRE = Daily(_fire_weather, "1", (("tas", "pr", "hurs", "sfcWind", "lat"),))
DAILY: Mapping[str, Daily] = {
    "humidex": Daily(_humidex, "degC", (("tasmax", "tdps"), ("tasmax", "tas", "hurs"))),
    "utci": Daily(_utci, "degC", (("tas", "hurs", "sfcWind"),)),
    "wet_bulb": Daily(_wet_bulb, "degC", (("tas", "hurs"),)),
    "water_budget": Daily(_water_budget, "kg m-2 s-1", (("pr", "evspsblpot"), ("pr", "tasmin", "tasmax", "lat"))),
    "chill_units": Daily(_chill_units, "1", (("tasmin", "tasmax", "lat"),)),
    **dict.fromkeys(("dc", "fwi", "dsr", "fire_season"), _FIRE),
}
"""The daily indices that indicators may name."""


def inputs_of(names: Collection[str], there: Collection[Any]) -> set[str]:
    """Return names without the latitude; in place of a daily index that is not there, its inputs."""
    made = {name: DAILY[name].inputs(there) for name in names if name in DAILY and name not in there}
    return {*names, *sum(made.values(), ())} - {*made, "lat"}


def with_daily(ds: xr.Dataset, names: Collection[str], lat: xr.DataArray | None) -> xr.Dataset:
    """Return a dataset in memory with the named daily indices that it lacks, each function called once."""
    given, ds = {**ds.data_vars, "lat": lat}, ds.copy()
    dims = next(iter(ds.data_vars.values())).dims
    for name in (name for name in names if name in DAILY):
        if name not in ds:
            with np.errstate(all="ignore"):  # of missing days
                made = DAILY[name].formula(**{one: given[one] for one in DAILY[name].inputs(given)})
            for key, data in made.items() if isinstance(made, xr.Dataset) else ((name, made),):
                # Arithmetic keeps attributes of the inputs.
                bare = data.drop_vars("lat", errors="ignore").drop_attrs().assign_attrs(units=units_of(data))
                ds[key] = convert_to(bare.transpose(*dims), DAILY[name].units)
    return ds


class _GeneralisedLogistic(rv_continuous):
    """SPEI's log-logistic distribution of three parameters, which may be skewed either way, fitted by L-moments.

    Vicente-Serrano et al. (2010), https://doi.org/10.1175/2009JCLI2909.1; Hosking and Wallis (1997), appendix A.7.
    """

    def _argcheck(self, k: Any) -> Any:
        return np.isfinite(k)

    def _cdf(self, x: Any, k: Any) -> Any:
        bounded = np.maximum(1 - k * x, np.finfo(float).tiny)
        return expit(np.where(np.abs(k) < 1e-9, x, -np.log(bounded) / np.where(k == 0, 1, k)))

    def lmom_fit(self, sample: np.ndarray) -> dict[str, float]:
        """Return the parameters, as lmoments3's distributions do, of which xclim asks the method "PWM"."""
        x, n, i = np.sort(sample), len(sample), np.arange(len(sample))
        first, second = np.mean(x * i) / (n - 1), np.mean(x * i * (i - 1)) / ((n - 1) * (n - 2))
        spread = 2 * first - x.mean()
        k = -(6 * second - 6 * first + x.mean()) / spread
        shift = (1 - 1 / np.sinc(k)) / k if k else 0.0
        return {"k": k, "loc": x.mean() - spread * np.sinc(k) * shift, "scale": spread * np.sinc(k)}


LOG_LOGISTIC = _GeneralisedLogistic(name="log-logistic", shapes="k")


def calibration(indicator: Any, base: tuple[str, str] | None) -> dict[str, Any]:
    """Return the arguments of a standardized index that a YAML file cannot have; none of other indicators.

    Of its methods, "APP" gets a location of 0, and "PWM" the log-logistic distribution.
    """
    if "cal_start" not in indicator.parameters:
        return {}
    method: dict[str, dict[str, Any]] = {"APP": {"fitkwargs": {"floc": 0}}, "PWM": {"dist": LOG_LOGISTIC}}
    period = dict(zip(("cal_start", "cal_end"), base or (), strict=False))
    return {**period, **method.get(indicator.injected_parameters.get("method"), {})}
