"""Make the golden results of ensembles by xscen itself, in the environment of make_warming.py.

    python tests/golden/make_ensemble.py ../shared/data/ensemble-tg tests/data/golden

`ensemble-statistics.nc`: `ensemble_stats` of `tests/support/tg_ensemble.py`, and `_weighted` with `generate_weights`
(one model one vote, by year). `ensemble-robustness.nc`: the fractions and categories of 1991-2010 against 1981-2000, by
IPCC AR6's advanced approach. `regions-box.nc`: `spatial_mean` of a member over
`BOX`, weighted by the cosine of latitude.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import xarray as xr
import xscen

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from tg_ensemble import BOX, FUTURE, REFERENCE, opened, opened_whole

warnings.filterwarnings("ignore")
PERCENTILES = {"ensemble_percentiles": {"values": [10, 50, 90], "split": True}}


def main(ensemble: Path, folder: Path) -> None:
    """Write the files."""
    kwargs = {"create_kwargs": {"calendar": "standard"}, "common_attrs_only": False}
    statistics = PERCENTILES | {"ensemble_mean_std_max_min": None}
    plain = xscen.ensemble_stats(opened(ensemble), statistics, **kwargs)
    members = {label: ds.convert_calendar("standard", align_on="date") for label, ds in opened(ensemble).items()}
    weights = xscen.generate_weights(members, independence_level="GCM", skipna=False)
    weighted = xscen.ensemble_stats(opened(ensemble), statistics, weights=weights, **kwargs)
    out = plain.merge(weighted.rename({name: f"{name}_weighted" for name in weighted.data_vars}), compat="override")
    write(out, folder / "ensemble-statistics.nc")
    ens = xscen.ensembles.ensembles.create_ensemble(opened(ensemble), calendar="standard")
    fractions = {"ref": ens["tg_mean"].sel(time=slice(*REFERENCE)), "test": "ipcc-ar6-c"}
    wanted = {"robustness_fractions": fractions, "robustness_categories": {}}
    write(xscen.ensemble_stats(ens.sel(time=slice(*FUTURE)), wanted, **kwargs), folder / "ensemble-robustness.nc")
    region = {"name": "box", "method": "bbox", "lon_bnds": list(BOX[0]), "lat_bnds": list(BOX[1])}
    write(xscen.spatial_mean(opened_whole(ensemble), "cos-lat", region=region), folder / "regions-box.nc")


def write(ds: xr.Dataset, path: Path) -> None:
    """Write without attributes: they hold dates and texts of the libraries."""
    ds = ds.drop_attrs().drop_encoding().drop_vars("horizon", errors="ignore")
    ds.to_netcdf(path, engine="h5netcdf", encoding={name: {"zlib": True} for name in ds.data_vars})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
