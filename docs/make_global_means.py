"""Make espo_luigi/science/outcomes/global_means.nc: ``python docs/make_global_means.py IPCC_annual_global_tas.nc``.

The file is xscen's (Ouranosinc/xscen, src/xscen/data). Series of observations are left out: some of them may not be
passed on. Values are rounded to 1e-6 K: 1e-4 K would move two years (tests/science/outcomes/test_warming.py).
"""

import sys
from pathlib import Path

import xarray as xr

OUT = Path(__file__).parent.parent / "espo_luigi" / "science" / "outcomes" / "global_means.nc"
NOTICE = """\
Yearly global means of near-surface air temperature of CMIP5 and CMIP6 simulations, 1850-2100.
Source: xscen 0.15.2 (https://github.com/Ouranosinc/xscen, src/xscen/data/IPCC_annual_global_tas.nc), Apache-2.0.
`data_source` names the origin of each series. "IPCC Atlas": Iturbide et al. 2020, doi:10.5194/essd-12-2959-2020, from
https://github.com/IPCC-WG1/Atlas, CC BY 4.0; the others were computed by xscen's authors from CMIP data on ESGF.
Changes: the series of observations are left out, and values are rounded to 1e-6 K (docs/make_global_means.py)."""


def main(source: str) -> None:
    """Write the table."""
    with xr.open_dataset(source) as table:
        simulations = table.load().isel(simulation=table["mip_era"].values != "obs").transpose("simulation", "time")
    simulations.attrs = {"title": simulations.attrs["title"], "comment": NOTICE}
    packed = {"dtype": "int32", "scale_factor": 1e-6, "_FillValue": -(2**31), "zlib": True, "complevel": 9}
    text = {name: {"zlib": True, "complevel": 9} for name in ("data_source",)}
    simulations.to_netcdf(OUT, engine="h5netcdf", encoding={"tas": packed | {"shuffle": True}} | text)


if __name__ == "__main__":
    main(sys.argv[1])
