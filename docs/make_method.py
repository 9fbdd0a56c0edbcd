"""Make docs/explanation/method.png: one cell, step by step, from the real series of tests/data."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import xarray as xr

from espo_luigi.science.adjust import biasadjust
from espo_luigi.science.units import convert_to

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "data"
CALIBRATION = slice("1981", "2010")
COLOURS = {"reference": "black", "simulation": "#d55e00", "scenario": "#0072b2"}


def opened(file: str) -> xr.DataArray:
    """Return the daily maximum temperature of Vancouver (cells, time)."""
    data = xr.open_dataset(DATA / file).tasmax.isel(location=[0])
    return data.rename(location="loc").drop_vars("loc").transpose("loc", "time").load()


def main() -> None:
    """Train, adjust and draw."""
    simulation = opened("CanESM2_1950-2100.nc")
    reference = convert_to(opened("ahccd_1950-2013.nc"), simulation.attrs["units"])
    training = biasadjust.train(
        reference, simulation, period=["1981", "2010"], xclim_train_args={"kind": "+", "nquantiles": 50}, seed="figure"
    ).load()
    loess = {"LoessDetrend": {"f": 0.2, "niter": 1, "d": 0, "weights": "tricube"}}
    scenario = biasadjust.adjust(
        simulation,
        training,
        periods=["1950", "2100"],
        xclim_adjust_args={"detrend": loess, "interp": "nearest", "extrapolation": "constant"},
        seed="figure",
    ).load()
    series = {"reference": reference, "simulation": simulation, "scenario": scenario}
    draw({name: data.isel(loc=0) - 273.15 for name, data in series.items()}, training.isel(loc=0))


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
    figure.savefig(HERE / "explanation" / "method.png", dpi=110)


if __name__ == "__main__":
    main()
