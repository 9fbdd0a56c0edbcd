"""xclim's yearly ensemble of five simulations, cut to 2 x 3 cells, one of them in a third calendar."""

from pathlib import Path

import xarray as xr

FOLDER = Path(__file__).parents[2] / "../shared/data/ensemble-tg"
FUTURE, REFERENCE = ("1991", "2010"), ("1981", "2000")
# Edges of cells.
BOX = (-74.0, -73.0), (45.5, 46.25)


def opened_whole(folder: Path = FOLDER) -> xr.Dataset:
    """The map of a member."""
    with xr.open_dataset(next(iter(sorted(folder.glob("*CCSM4*r2i1p1*.nc")))), engine="h5netcdf") as ds:
        return ds.isel(time=slice(5)).load()


def opened(folder: Path = FOLDER) -> dict[str, xr.Dataset]:
    """The members by label; CNRM-CM5 has 1970-2050 only, and CCSM4 comes twice."""
    members = {}
    for path in sorted(folder.glob("*.nc")):
        model, _, member = path.name.split("ANUSPLIN300_")[1].split("_")[:3]
        with xr.open_dataset(path, engine="h5netcdf") as ds:
            cut = ds.isel(lat=[0, 23], lon=[0, 17, 35]).load()
        if model == "ACCESS1-0":
            cut = cut.convert_calendar("360_day", align_on="date")
        cut.attrs = {"cat:source": model, "cat:member": member, "cat:experiment": "rcp45", "cat:mip_era": "CMIP5"}
        members[f"{model} {member}"] = cut
    return members
