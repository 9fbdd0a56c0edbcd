"""The report's rules, where several variables are adjusted together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from complete_demo import NOLEAP
from demo_runs import ONE_REGION, of_years

from espo_luigi import tasks

YEARS = ["1991", "1994"]
NAMES = ["tasmax", "dtr", "pr"]
JOINT = {
    "method": "MBCn",
    "variables": NAMES,
    "training_args": {"period": YEARS, "group": {"group": "time.dayofyear", "window": 31}},
    "adjusting_args": {"periods": ["1991", "1998"]},
}
CHANGES: dict[str, Any] = {
    **ONE_REGION,
    **of_years(1991, 1998, *map(int, YEARS)),
    "biasadjust__variables": {"joint": JOINT},
}
OF = {"sim_id": NOLEAP, "diag_domain": "Highland"}


def series(seed: int, calendar: str, warmer: float, together: float) -> xr.Dataset:
    """Days of 3 x 2 cells, the last of them sea, in display units, whose precipitation follows tasmax more or less."""
    random = np.random.default_rng(seed)
    time = xr.date_range("1991-01-01", "1994-12-31", calendar=calendar, use_cftime=calendar != "standard")
    day = random.normal(size=(time.size, 3, 2))
    tasmax = 10 + warmer - 12 * np.cos(2 * np.pi * np.arange(time.size) / 365)[:, None, None] + 4 * day
    rain = together * day + np.sqrt(1 - together**2) * random.normal(size=day.shape)
    values = {
        "tasmax": tasmax,
        "tasmin": tasmax - 4 - random.gamma(4, size=day.shape) * (1 + warmer / 10),
        "pr": np.maximum(4 * rain + warmer, 0) + 0.0,
    }
    units = {"tasmax": "degC", "tasmin": "degC", "pr": "mm d-1"}
    coords = {"time": time, "lat": [60.0, 60.5, 61.0], "lon": [10.0, 10.5]}
    ds = xr.Dataset({name: (("time", "lat", "lon"), of) for name, of in values.items()}, coords)
    ds["pr"].attrs["standard_name"] = "precipitation_flux"
    for name, of in units.items():
        ds[name].attrs["units"] = of
    return ds.where((ds["lat"] < 61) | (ds["lon"] < 10.5)).astype("f4")


@pytest.fixture()
def sums(configured: Callable[..., list[Path]]) -> xr.Dataset:
    """The sums of years of a product that is the reference of another day."""
    configured(**CHANGES)
    reference, raw = series(1, "standard", 0.0, 0.8), series(2, "noleap", 2.0, 0.0)
    product = reference.roll(time=1).map(lambda da: da.assign_attrs(reference[da.name].attrs))
    field = reference["tasmax"].mean("time")
    return tasks.Summaries(**OF).describe(field, {"reference": reference, "raw": raw, "adjusted": product})["sums"]


def test_each_variable_by_itself_keeps_what_pairs_of_raw_days_have_in_common_and_the_group_is_nearer(
    sums: xr.Dataset,
) -> None:
    assert list(sums["source"].values) == ["reference", "raw", "adjusted", "DQM"] and sums.sizes["cell"] == 5
    compared = tasks.NotCalibrated(pool=NOLEAP, diag_domain="Highland").compute([sums, sums])
    value = compared["value"].mean("cell")
    correlation = value.sel(aspect="corr_tasmax_pr_JJA")
    assert float(correlation.sel(source="reference")) > 0.5
    assert abs(float(correlation.sel(source="raw"))) < 0.1 and abs(float(correlation.sel(source="DQM"))) < 0.1
    for name, precision in {"mean_tasmax_JJA": 0.2, "mean_pr_DJF": 0.15, "wet_days": 2.0}.items():
        of = value.sel(aspect=name)
        away = {source: abs(float(of.sel(source=source) - of.sel(source="reference"))) for source in ("raw", "DQM")}
        assert away["DQM"] < precision < away["raw"], name
    assert np.isfinite(compared["value"].sel(source="DQM", aspect="next_cell_tasmax_DJF")).all()
    assert np.isnan(compared["value"].sel(source="DQM", aspect="mean_tasmin_DJF")).all(), "it is not adjusted itself"
    assert compared.attrs["together"] == "tasmax, dtr, pr by MBCn"
    assert str(compared["distance"].values[0]) == "tasmax, dtr, pr, DJF"
    energy = compared["energy"].mean("cell").sel(distance="tasmax, dtr, pr, JJA")
    assert float(energy.sel(other="adjusted")) < float(energy.sel(other="DQM")) < float(energy.sel(other="raw"))
    calibrated = set(compared["aspect"].values[compared["calibrated"].values])
    pairs = {"corr_tasmax_pr_JJA", "corr_dtr_pr_JJA", "corr_tasmax_dtr_JJA", "corr_tasmax_tasmin_JJA", "lag1_pr_JJA"}
    assert pairs & calibrated == {"corr_tasmax_dtr_JJA"}, "of days without rain, MBCn makes no correlation exact"


def test_only_where_variables_are_adjusted_together_sums_of_years_depend_on_the_group(
    configured: Callable[..., list[Path]],
) -> None:
    configured(**CHANGES)
    together = set(tasks.Summaries(**OF).reading())
    assert "biasadjust.variables.joint.variables" in together
    assert "biasadjust.variables.joint.method" in tasks.NotCalibrated(pool=NOLEAP, diag_domain="Highland").reading()
    configured()
    assert set(tasks.Summaries(**OF).reading()) == set(tasks.Summaries.reads) - {
        key for key in tasks.Summaries.reads if "{" in key
    } | {key.format_map(OF) for key in tasks.Summaries.reads if "{" in key}
