"""A member of a pool is what it was before: what was done to others is not told of it."""

import numpy as np
import xarray as xr

from espo_luigi.science import pooling
from espo_luigi.science.attributes import INSERTED_DAYS, REPAIRS

NAMES = ["r1", "r2", "r3"]


def test_repairs_and_inserted_days_stay_with_their_member() -> None:
    time = xr.date_range("2001-01-01", periods=3, calendar="noleap", use_cftime=True)
    told = [{REPAIRS: "tasmax > 335 K: missing, 1 value"}, {}, {INSERTED_DAYS: "2015-01-01"}]
    members = [xr.Dataset({"pr": ("time", np.full(3, n, "f4"))}, {"time": time}, one) for n, one in enumerate(told)]
    pool = pooling.pool_of_members(members, NAMES)
    assert not {REPAIRS, INSERTED_DAYS} & pool.attrs.keys()
    for name, one in zip(NAMES, members, strict=True):
        xr.testing.assert_identical(pooling.member(pool, name), one)
