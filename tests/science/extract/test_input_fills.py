"""Generated files with a number that stands for missing values: its count is right, or nothing recurs."""

from __future__ import annotations

import numpy as np
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from espo_luigi.science.extract.input_fills import Fills
from espo_luigi.science.extract.input_problems import RawSeries
from espo_luigi.science.extract.input_values import value_problems

TIME = xr.date_range("2000-01-01", periods=90, calendar="noleap", use_cftime=True)
COORDS = {"time": TIME, "lat": np.arange(4.0), "lon": np.arange(5.0)}
UNITS = {"tasmax": "K", "tasmin": "K", "pr": "kg m-2 s-1"}


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(UNITS)),
    fill=st.sampled_from([1e20, 9.96921e36, -9999.0, -999.0, -99.9, -32768.0]),
    cells=st.sampled_from([0.0, 0.05, 0.3, 0.95]),
    days=st.sampled_from([0.02, 0.2, 1.0]),
    chunk=st.sampled_from([7, 30, 90]),
    seed=st.integers(0, 2**16),
)
def test_a_number_that_recurs_is_counted_and_sound_values_are_no_problem(
    name: str, fill: float, cells: float, days: float, chunk: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.exponential(3e-5, (90, 4, 5)) if name == "pr" else 280 + rng.standard_normal((90, 4, 5))
    there = (rng.random(90) < days)[:, None, None] & (rng.random((4, 5)) < cells)
    values[there] = fill
    data = xr.DataArray(values.astype("float32"), COORDS, ("time", "lat", "lon"), name, {"units": UNITS[name]})
    raw = RawSeries("file.nc", data.chunk(time=chunk), units=UNITS[name])
    found = {problem.kind: problem for problem in value_problems({name: [raw]}, {})}
    if there.sum() >= 9 and there.any(axis=(1, 2)).sum() > 1 and there.any(axis=0).sum() > 1:
        problem, day = found["fill_values"], np.argwhere(there)[0][0]
        assert (problem.count, problem.day) == (there.sum(), TIME[int(day)].strftime("%Y-%m-%d"))
        assert np.isclose(problem.value or 0, fill)
        assert there[:, int(problem.lat or 0), int(problem.lon or 0)].any()
    elif there.any():
        assert found
    else:
        assert not found


def test_impossible_numbers_that_do_not_recur_are_not_kept() -> None:
    """Else their number grows with the file, and each is looked for in all later blocks."""
    values = np.full((90, 4, 5), 280.0)
    values[:, 0, 0] = 1000 + np.arange(90)
    data = xr.DataArray(values, COORDS, ("time", "lat", "lon"), "tasmax", {"units": "K"})
    fills = Fills(RawSeries("file.nc", data, units="K"))
    for day in range(90):
        fills.taken_out(np.array([day]), values[day : day + 1], (slice(0, 4), slice(0, 5)))
    assert fills._impossible == {}
