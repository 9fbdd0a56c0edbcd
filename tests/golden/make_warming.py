"""Make the golden results of warming levels by xscen itself.

The environment: Python 3.11, `pip install --no-deps xscen==0.15.2`, xclim 0.61 and what else xscen imports.
From the project's root, with the table that came with xscen, and with xclim's yearly ensemble beside the project:

    python tests/golden/make_warming.py ../shared/data/ensemble-tg tests/data/golden

`warming-periods.csv`: `get_period_from_warming_level` of each simulation of the table, for windows and base periods.
`warming-subset.nc`: `subset_warming_level` of a member, yearly.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pandas as pd
import xarray as xr
import xscen

LEVELS = (1.5, 2.0, 3.0, 4.0)
CASES = ((20, ("1850", "1900")), (30, ("1850", "1900")), (21, ("1850", "1900")), (20, ("1981", "2010")))
warnings.filterwarnings("ignore")


def main(ensemble: Path, folder: Path) -> None:
    """Write both files."""
    table = xr.open_dataset(Path(xscen.__file__).parent / "data" / "IPCC_annual_global_tas.nc")
    table = table.isel(simulation=table["mip_era"].values != "obs")
    keys = ("mip_era", "source", "experiment", "member")
    rows = []
    for run in zip(*(table[key].values.tolist() for key in keys), strict=True):
        for window, base in CASES:
            kwargs = {"window": window, "tas_baseline_period": list(base)}
            try:
                found = xscen.get_period_from_warming_level(dict(zip(keys, run, strict=True)), list(LEVELS), **kwargs)
            except IndexError:  # No year of the base period: xscen's series is empty.
                found = [[None, None]] * len(LEVELS)
            for level, (first, last) in zip(LEVELS, found, strict=True):
                rows.append(("_".join(run), window, base[0], level, first, last))
    frame = pd.DataFrame(rows, columns=["run", "window", "base", "level", "first", "last"])
    frame = frame.pivot(index=["run", "window", "base"], columns="level", values="first").reset_index()
    frame.fillna("-").to_csv(folder / "warming-periods.csv", index=False)
    path = ensemble / "BCCAQv2+ANUSPLIN300_CCSM4_historical+rcp45_r2i1p1_1950-2100_tg_mean_YS.nc"
    member = xr.open_dataset(path, engine="h5netcdf").isel(lat=slice(2), lon=slice(3))
    member.attrs = {"cat:mip_era": "CMIP5", "cat:source": "CCSM4", "cat:experiment": "rcp45", "cat:member": "r2i1p1"}
    out = xscen.extract.subset_warming_level(member, 2, ignore_member=True, wl_dim="+{wl}C", window=20)
    out.attrs = {}
    out.to_netcdf(folder / "warming-subset.nc", engine="h5netcdf", encoding={"tg_mean": {"zlib": True}})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
