"""Make docs/understand/method.png, one cell step by step, and print the page's figures about precipitation.

Both are of the real series of tests/data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import xarray as xr

from espo_luigi.methods import blocks
from espo_luigi.science.units import convert_to

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "data"
CALIBRATION = slice("1981", "2010")
COLOURS = {"reference": "black", "simulation": "#d55e00", "scenario": "#0072b2"}


def opened(file: str, variable: str) -> xr.DataArray:
    """Return a daily series of Vancouver, Kugluktuk and Amos (cells, time)."""
    data = xr.open_dataset(DATA / file)[variable]
    return data.rename(location="loc").transpose("loc", "time").load()


def adjusted(variable: str, **train_args: Any) -> tuple[dict[str, xr.DataArray], xr.Dataset]:
    """Train and adjust; return the series by name, and the training."""
    simulation, reference = (opened(file, variable) for file in ("CanESM2_1950-2100.nc", "ahccd_1950-2013.nc"))
    reference = convert_to(reference, simulation.attrs["units"])
    windows = {"group": "time.dayofyear", "window": 31}
    training = blocks.train(
        reference, simulation, period=["1981", "2010"], group=windows, seed="figure", **train_args
    ).load()
    loess = {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}
    scenario = blocks.adjust(
        simulation,
        training,
        periods=["1950", "2100"],
        xclim_adjust_args={"detrend": loess, "interp": "nearest", "extrapolation": "constant"},
        seed="figure",
    ).load()
    return {"reference": reference, "simulation": simulation, "scenario": scenario}, training


def main() -> None:
    """Draw Vancouver's temperature; print the shares of dry days and the changes of precipitation of all three."""
    series, training = adjusted("tasmax", xclim_train_args={"kind": "+", "nquantiles": 50})
    draw({name: data.isel(loc=0) - 273.15 for name, data in series.items()}, training.isel(loc=0))
    noise, dry = {"thresh": "0.01 mm d-1"}, {"thresh": "1 mm d-1"}
    args = {"kind": "*", "nquantiles": 50}
    rain, _ = adjusted("pr", xclim_train_args=args, jitter_under=noise, adapt_freq=dry)
    for name, data in rain.items():
        for season, months in (("year", range(1, 13)), ("January", [1]), ("July", [7])):
            days = data.sel(time=data.time.dt.month.isin(list(months))) * 86400
            now, later = (days.sel(time=period) for period in (CALIBRATION, slice("2071", "2100")))
            shares, means = (now < 1).mean("time").values.round(2), now.mean("time").values.round(2)
            change = (100 * (later.mean("time") / now.mean("time") - 1)).values.round()  # the reference ends in 2013
            print(f"{name:10} {season:7} dry days {shares}, mm/d {means}, change in % {change}")


def draw(series: dict[str, xr.DataArray], training: xr.Dataset) -> None:
    """Draw the four panels."""
    figure, ((cycle, factors), (quantiles, trend)) = plt.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
    for name, data in series.items():
        calibration = data.sel(time=CALIBRATION)
        calibration.groupby("time.dayofyear").mean().rolling(dayofyear=31, center=True).mean().plot(
            ax=cycle, color=COLOURS[name], label=name
        )
        july = calibration.sel(time=calibration.time.dt.month == 7)
        july.quantile(training.quantiles.values).plot(ax=quantiles, color=COLOURS[name], label=name)
        if name != "reference":
            years = data.sel(time=data.time.dt.month == 7).groupby("time.year").mean()
            years.plot(ax=trend, color=COLOURS[name], linewidth=0.6, alpha=0.6)
            years.rolling(year=31, center=True).mean().plot(ax=trend, color=COLOURS[name], linewidth=2, label=name)
    image = training.af.transpose("quantiles", "dayofyear").plot(ax=factors, cmap="RdBu_r", add_colorbar=False)
    figure.colorbar(image, ax=factors, label="factor (K)")
    for axes, title, x, y in (
        (cycle, "a  Mean by day of the year, 1981-2010", "day of the year", "tasmax (°C)"),
        (factors, "b  Factors: by day of the year and quantile", "day of the year", "quantile"),
        (quantiles, "c  Quantiles of July, 1981-2010", "quantile", "tasmax (°C)"),
        (trend, "d  July, each year and over 31 years", "year", "tasmax (°C)"),
    ):
        axes.set(xlabel=x, ylabel=y)
        axes.set_title("")  # xarray's own
        axes.set_title(title, loc="left")
        if axes is not factors:
            axes.legend(frameon=False)
    figure.savefig(HERE / "understand" / "method.png", dpi=110)


if __name__ == "__main__":
    main()
