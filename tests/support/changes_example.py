"""A small run with ensembles of two experiments: of three simulations, changes and values over the years.

espo_luigi.science.outcomes makes all statistics; the test's own numbers are the simulations' indicators.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr
from small_demo import LAND

from espo_luigi import store
from espo_luigi.report.reading import RunView, Together
from espo_luigi.science.attributes import FEWEST, FEWEST_ROBUST
from espo_luigi.science.outcomes import ensemble
from espo_luigi.science.outcomes.climatology import by_year, climatology
from espo_luigi.science.outcomes.delta import delta
from espo_luigi.science.outcomes.regions import Box, region_means

LATS, LONS = 45.125 + 0.25 * np.arange(12), -66.875 + 0.25 * np.arange(10)
MODELS = {f"CMIP6_ScenarioMIP_X_Model-{letter}_{{}}_r1i1p1f1_global": 0.02 * at for at, letter in enumerate("ABC")}
REGIONS = {"south-west": Box((-67, -66), (45, 46)), "north": Box((-67, -65), (47, 48))}
BASELINE, LEVELS = "1991-2010", {1.0: ("2001", "2020"), 2.0: ("2011", "2030"), 4.0: ("2021", "2040")}
MARKER = store.Marker("Example", {}, {"xarray": "1"}, {}, "abc")


def yearly(seed: int, warmer: float, freq: str = "YS-JAN", first: int = 1991, last: int = 2040) -> xr.Dataset:
    """Two indicators of a simulation: warmer every year; wetter in the south, drier in the north."""
    draws = np.random.default_rng(seed)
    time = xr.date_range(f"{first}-01-01", f"{last}-12-01", freq=freq, use_cftime=True)
    land = np.array([[letter == "#" for letter in row] for row in LAND])
    years = (np.asarray(time.year) - first)[:, None, None]
    south = np.linspace(1, -1, 12)[:, None]
    shape = (time.size, 12, 10)
    warm = np.where(land, 285 + warmer * years + draws.normal(0, 0.3, shape), np.nan)
    wet = np.where(land, 800 + (seed - 1.5) * south * 40 * warmer * years + draws.normal(0, 30, shape), np.nan)
    made = {
        "tx_mean": (("time", "lat", "lon"), warm.astype("float32"), {
            "units": "K", "standard_name": "air_temperature", "long_name": "Mean daily maximum temperature"}),
        "prcptot": (("time", "lat", "lon"), wet.astype("float32"), {
            "units": "mm", "standard_name": "lwe_thickness_of_precipitation_amount",
            "long_name": "Total accumulated precipitation"}),
    }  # fmt: skip
    coords = {
        "time": time,
        "lat": ("lat", LATS, {"units": "degrees_north", "standard_name": "latitude"}),
        "lon": ("lon", LONS, {"units": "degrees_east", "standard_name": "longitude"}),
    }
    return xr.Dataset(made, coords, {"cat:xrfreq": freq})


def together(
    members: dict[str, xr.Dataset], yearly_of: dict[str, xr.Dataset] | None, absent: dict[str, str], fewest: int = 1
):
    """Statistics over members, as the rule makes them."""
    joined = ensemble.join(members, absent)
    there = ensemble.present(joined)
    made = ensemble.statistics(joined, there, fewest_of_percentiles=fewest)
    made.attrs |= {FEWEST: fewest, FEWEST_ROBUST: fewest}
    for name in joined if yearly_of is not None else ():
        thresholds = None
        if yearly_of:
            own = str(name).partition("_clim_")[0]
            of = [by_year(ds[[own]])[own].sel(year=slice(1991, 2010)) for ds in yearly_of.values()]
            limits = [ensemble.variability(one, 20, joined[name].attrs["delta_kind"]) for one in of]
            thresholds = xr.concat(limits, joined[ensemble.MEMBER]).broadcast_like(joined[name])
        shares = ensemble.agreement(joined[name], there[name], thresholds=thresholds, fewest_of_robustness=fewest)
        made = made.merge(shares.rename({key: f"{name}_{key}" for key in shares}), compat="override")
    return joined, made


def changes_of(of: dict[str, xr.Dataset], product: str) -> dict[str, xr.Dataset]:
    """Each simulation's changes; at 4 K, the last simulation has none."""
    found = {}
    for at, (label, ds) in enumerate(of.items()):
        if product == "delta":
            periods = [("1991", "2010"), ("2001", "2020"), ("2011", "2030"), ("2021", "2040")]
            found[label] = delta(climatology(ds, window=20, periods=periods), BASELINE, kind={"prcptot": "%"})
            continue
        base = climatology(ds, periods=[("1991", "2010")])
        levels = {
            level: delta(climatology(ds, periods=[years]), base, kind={"prcptot": "%"}).isel(horizon=0, drop=True)
            for level, years in LEVELS.items()
            if level < 4 or at < 2
        }
        made = xr.concat(levels.values(), xr.Variable("warming_level", list(levels), {"units": "K"}))
        found[label] = made.reindex(warming_level=[*LEVELS, 5.0])
    return found


def write_changes_run(
    folder: Path, freqs: tuple[str, ...] = ("YS-JAN",), regions: bool = True, fewest: int = 1
) -> RunView:
    """Write the stores of two experiments of all frequencies; return the view."""
    (folder / "final").mkdir(parents=True)
    found, references = [], {}
    for freq in freqs:
        values = {
            experiment: {
                label.format(experiment): yearly(at, slope + speed, freq)
                for at, (label, slope) in enumerate(MODELS.items())
            }
            for experiment, speed in (("ssp245", 0.02), ("ssp585", 0.05))
        }
        every = {label: ds for of in values.values() for label, ds in of.items()}
        asked = [(p, e, of) for e, of in values.items() for p in ("indicators", "delta")] + [
            ("warming_levels", "all", every)
        ]
        for product, experiment, of in asked:
            absent = {"CMIP6_X_lost_ssp585": "it has no day of 2041; others have"} if experiment == "ssp585" else {}
            members = of if product == "indicators" else changes_of(of, product)
            own = None if product == "indicators" else of if freq.startswith("Y") else {}
            _, made = together(members, own, absent, fewest)
            path = folder / "final" / f"{experiment}+{freq}+{product}"
            store.write_store(made, ensemble_path := path.with_name(f"{path.name}+e.zarr"), MARKER)
            table = path.with_name(f"{path.name}+r.csv") if regions else None
            if table:
                means = {label: region_means(ds, REGIONS) for label, ds in members.items()}
                yearly_means = None if own is None else {label: region_means(ds, REGIONS) for label, ds in own.items()}
                joined, of_regions = together(means, yearly_means, absent, fewest)
                of_regions.merge(joined, compat="override").to_netcdf(table.with_suffix(".nc"), engine="h5netcdf")
                store.write_table(["region"], [{"region": name} for name in REGIONS], table, MARKER)
            found.append(Together(product, freq, "scenario", experiment, ensemble_path, table))
        references[freq] = folder / "final" / f"{freq}+reference.zarr"
        store.write_store(yearly(9, 0.03, freq, last=2020), references[freq], MARKER)
    return RunView(
        (), "abc", "ERA5-Land", (), (), (1991, 2010), folder / "final", folder / "run", "local",
        ensembles=tuple(found), of_reference=references, regions=REGIONS if regions else {},
    )  # fmt: skip
