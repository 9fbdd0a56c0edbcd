"""Make the golden indicators, climatologies and changes, by xscen.

The environment is Python 3.11 after `pip install xscen==0.15.2`, which brings xclim 0.62. From the project's root:

    python tests/golden/make_outcomes.py tests/data/golden

Histories, which tell the time, and attributes of the whole are left out.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import xarray as xr
import xscen
from xclim.core.indicator import Indicator

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from outcomes import AVERAGED, BASELINE, CALENDARS, CLIMATOLOGIES, LONG, MODULE, daily

warnings.filterwarnings("ignore")
FREQUENCIES_OF_CLIMATOLOGIES = ("YS-JAN", "QS-DEC", "MS")


def bare(ds: xr.Dataset) -> xr.Dataset:
    """Return what can be compared, small."""
    ds = ds.drop_attrs(deep=False)
    for data in ds.data_vars.values():
        data.attrs.pop("history", None)
        # Small arrays are smaller without chunks.
        data.encoding = {"zlib": True, "shuffle": True} if data.size > 1500 else {}
    return ds.map(lambda data: data.astype(np.float32) if data.dtype.kind == "f" else data, keep_attrs=True)


def is_averaged(indicator: Indicator) -> bool:
    """Whether there are climatologies of an indicator."""
    return indicator.cf_attrs[0]["var_name"] in AVERAGED


def main(folder: Path) -> None:
    """Write a file for each calendar, with a group for each frequency and climatology."""
    for calendar in CALENDARS:
        path = folder / f"outcomes-{calendar}.nc"
        path.unlink(missing_ok=True)
        for freq, indicators in xscen.compute_indicators(daily(calendar), MODULE).items():
            bare(indicators).to_netcdf(path, mode="a", group=f"indicators/{freq}")
        averaged = [ind for ind in xscen.indicators.load_xclim_module(MODULE).iter_indicators() if is_averaged(ind[1])]
        for freq, indicators in xscen.compute_indicators(daily(calendar, LONG), averaged).items():
            if freq not in FREQUENCIES_OF_CLIMATOLOGIES:
                continue
            bare(indicators).to_netcdf(path, mode="a", group=f"series/{freq}")
            # Whole years and seasons.
            whole = indicators.sel(time=slice("1980-12", "2040"))
            whole = whole if freq == "QS-DEC" else whole.sel(time=slice("1981", None))
            # In single precision, rolling deviations are off by 1e-4.
            whole = whole.astype(np.float64)
            for name, how in CLIMATOLOGIES.items():
                made = xscen.climatological_op(
                    whole,
                    **how,
                    **({"min_periods": how["window"]} if "min_periods" not in how else {}),
                    horizons_as_dim=True,
                    year_start_month=12 if freq == "QS-DEC" else 1,
                )
                made = made.drop_vars("time", errors="ignore")
                bare(made).to_netcdf(path, mode="a", group=f"{name}/{freq}")
                if name != "mean-30":
                    continue
                for kind in ("+", "/", "%") if freq == "QS-DEC" else ("+",):
                    change = xscen.compute_deltas(made, BASELINE, kind=kind)
                    group = {"+": "absolute", "/": "quotient", "%": "percent"}[kind]
                    bare(change).to_netcdf(path, mode="a", group=f"{group}/{freq}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
