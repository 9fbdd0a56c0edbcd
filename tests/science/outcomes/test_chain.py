"""From yearly indicators of an ensemble to the means of regions, by horizon and by level of warming."""

import numpy as np
import pytest
import xarray as xr
from tg_ensemble import FOLDER, opened

from espo_luigi.errors import DataError
from espo_luigi.science.geometry.boxes import Box
from espo_luigi.science.outcomes.climatology import by_year, climatology
from espo_luigi.science.outcomes.delta import delta
from espo_luigi.science.outcomes.ensemble import agreement, join, present, statistics, variability, weigh
from espo_luigi.science.outcomes.regions import region_means
from espo_luigi.science.outcomes.warming import global_means, reaching

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/data/ensemble-tg beside the project")
LEVELS = (1.5, 2.0, 4.0)
BASE = "1981-2010"


def at_levels(ds, periods):
    """The climatology of each level and its change since the base period, (warming_level, ...)."""
    base = climatology(ds, periods=[BASE.split("-")])
    made = {}
    for level, period in periods.items():
        try:
            made[level] = delta(climatology(ds, periods=[period]), base).isel(horizon=0, drop=True)
        except DataError as error:
            made[level] = str(error)
    data = {level: of for level, of in made.items() if not isinstance(of, str)}
    reasons = [of for of in made.values() if isinstance(of, str)]
    return (xr.concat(data.values(), xr.Variable("warming_level", list(data))) if data else None), reasons


def test_changes_at_levels_of_warming_are_those_of_each_member_s_own_years():
    members, facets = opened(), {}
    for label, ds in members.items():
        facets[label] = {key.removeprefix("cat:"): value for key, value in ds.attrs.items()}
        ds.attrs = {"cat:xrfreq": "YS-JAN"}
    warming = reaching(facets, LEVELS, global_means(), any_member=True)
    changes, absent = (
        {},
        {label: next(iter(of.values())) for label, of in warming.absent.items() if len(of) == len(LEVELS)},
    )
    for label, periods in warming.periods.items():
        if label not in absent:
            changes[label], reasons = at_levels(members[label], periods)
            # The level of 2 K is reached after 2050, where CNRM-CM5's series ends.
            assert bool(reasons) == (label == "CNRM-CM5 r1i1p1")
    assert absent == {"BNU-ESM r1i1p1": "its row has no year of the base period 1850-1900"}
    ens = join(changes, absent)
    there = present(ens)
    (name,) = ens.data_vars
    made = statistics(ens, there, weights={name: weigh(there[name], {label: label.split()[0] for label in changes})})
    assert made["warming_level"].values.tolist() == [1.5, 2.0]
    assert made.attrs["ensemble_missing"] == f"BNU-ESM r1i1p1: {absent['BNU-ESM r1i1p1']}\nCNRM-CM5 r1i1p1: {name} 2.0"
    first, last = warming.periods["ACCESS1-0 r1i1p1"][2.0]
    tg = members["ACCESS1-0 r1i1p1"]["tg_mean"]
    change = tg.sel(time=slice(str(first), str(last))).mean("time") - tg.sel(time=slice("1981", "2010")).mean("time")
    np.testing.assert_allclose(ens[name].sel(realization="ACCESS1-0 r1i1p1", warming_level=2.0), change, rtol=1e-4)
    reference = {
        label: by_year(ds)["tg_mean"].sel(year=slice(1981, 2010)) for label, ds in members.items() if label in changes
    }
    thresholds = xr.concat([variability(da, 20) for da in reference.values()], ens["realization"])
    robust = agreement(ens[name], there[name], thresholds=thresholds.broadcast_like(ens[name]))
    assert set(np.unique(robust["advanced"])) <= {1, 2, 3}
    means = region_means(made, {"west": Box((-75, -74.9), (45, 47)), "all": Box((-75, -72), (45, 47))})
    assert means[f"{name}_p50"].dims == ("region", "warming_level")


def test_a_quotient_of_1_is_no_change():
    quotients = xr.DataArray([1.2, 1.1, 0.9, 0.8, 0.7], dims="realization", attrs={"delta_kind": "rel."})
    made = agreement(quotients, xr.ones_like(quotients, bool))
    assert (float(made["positive"]), float(made["negative"]), int(made["simple"])) == (0.4, 0.6, 2)
